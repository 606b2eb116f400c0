"""What two looks at a silent run say: who is missing, and what is no hang."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from ringup.flight_recorder.dump import from_data
from ringup.hang.activity import Move
from ringup.hang.ras import read as read_ras
from ringup.hang.snapshots import Child, Frame, NodeLook, NodeState, RankLook, Ras, silent
from ringup.hang.stack_frames import place_of
from ringup.hang.verdict import DONE, JudgedRank, Missing, Verdict, judge

C10D = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOADER = "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
GRAPH = "/v/lib/python3.11/site-packages/torch/autograd/graph.py"


def own(line: int, function: str = "main", source: str = "") -> Frame:
    return Frame("/home/u/train.py", line, function, source)


def waits(what: str = "all_reduce", line: int = 88) -> tuple[Frame, ...]:
    return (Frame(C10D, 1, what), own(line))


def rank(
    number: int, frames: tuple[Frame, ...], *, cpu_s: float = 0.0, io: int = 0, state: str = "S", **more: Any
) -> RankLook:
    """A rank of four on two nodes, at the second look; its counters are what it used since the first."""
    base = RankLook(
        rank=number,
        node=f"node{number // 2}",
        local_rank=number % 2,
        world_size=4,
        run="r",
        job=("", "", ""),
        pid=100 + number,
        started=1,
        age_s=50.0,
        state=state,
        wchan="",
        syscall="",
        cpu_s=cpu_s,
        io_bytes=io,
        switches=0,
        command="python train.py",
        frames=frames,
    )
    return dataclasses.replace(base, **more)


def nodes(ranks: list[RankLook], at_s: float, **more: Any) -> list[NodeLook]:
    state = more.pop("state", NodeState())
    names = sorted({r.node for r in ranks})
    return [
        NodeLook(name, at_s, "stacks", tuple(r for r in ranks if r.node == name), state, **more)
        for name in names
    ]


def judged(*ranks: RankLook, seconds: float = 10.0, **more: Any) -> Verdict:
    fresh = {"cpu_s": 0.0, "io_bytes": 0, "switches": 0, "queued_s": 0.0, "frames": (), "children": ()}
    before = [dataclasses.replace(r, **fresh) for r in ranks]  # type: ignore[arg-type]
    options = {"expected": 4, **more}
    return judge(nodes(before, 0.0), nodes(list(ranks), seconds), **options)


def test_a_network_that_is_cut_is_named_where_all_ranks_wait() -> None:
    ranks = [rank(n, waits(), unanswered=("10.0.0.11",) if n == 1 else ()) for n in range(4)]
    verdict = judged(*ranks)
    assert verdict.rule == "collective-stalled"
    assert verdict.headline.endswith("at the same line, and node0 gets no answer from 10.0.0.11")
    assert any("`ringup check` tests it" in line for line in verdict.lines)
    assert "node0: no answer from 10.0.0.11, though the kernel sent the data again and again" in verdict.lines


SLEEPS = (own(12, "load", "time.sleep(9)"),)


def test_an_idle_rank_is_missing_from_what_the_others_wait_in() -> None:
    verdict = judged(*(rank(n, waits()) for n in range(3)), rank(3, SLEEPS, syscall="clock_nanosleep"))
    assert verdict.is_stalled and verdict.collective == "all_reduce"
    assert [(m.rank, m.node) for m in verdict.missing] == [(3, "node1")]
    assert verdict.missing[0].where == "train.py:12 in load: time.sleep(9), asleep"
    assert "3 ranks (0-2): all_reduce, train.py:88 in main" in verdict.lines


@pytest.mark.parametrize("used", [{"cpu_s": 9.8}, {"io": 1 << 20}, {"switches": 5000}])
def test_a_rank_that_uses_anything_is_busy_and_no_hang(used: dict[str, Any]) -> None:
    verdict = judged(*(rank(n, waits("barrier")) for n in range(1, 4)), rank(0, SLEEPS, **used))
    assert verdict.kind == "busy" and not verdict.missing
    assert "rank 0 (node0) is busy; 3 wait in barrier" in verdict.headline


def received_later(ranks: list[RankLook], first: Any, second: Any, left_out: int = 4096) -> Verdict:
    """The verdict on ranks that use nothing; `first`, `second`: pid -> bytes that connections received."""
    sides = [one and {pid: (left_out, sizes) for pid, sizes in one.items()} for one in (first, second)]
    return judge(nodes(ranks, 0.0, transfers=sides[0]), nodes(ranks, 10.0, transfers=sides[1]), expected=4)


FUTURE = (Frame("/usr/lib/python3.11/concurrent/futures/_base.py", 451, "result"), own(10, "load"))
LOADING = [rank(0, FUTURE, syscall="futex"), *(rank(n, waits("barrier")) for n in range(1, 4))]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("threads", "kind"),
    [
        ([(9, 600_000, 90, 10)], "stalled"),  # /proc/stat of a large node and others each second
        ([(8, 0, 0, 900), (9, 600_000, 90, 10)], "stalled"),
        ([(9, 9 * MIB, 9000, 10)], "busy"),
        ([(9, 600_000, 9, 10)], "busy"),  # pieces of 64 KiB are data
        ([(9, 600_000, 400, 200)], "busy"),  # small files of a slow server: it waits for each
        ([(8, 500_000, 400, 200), (9, 100_000, 90, 10)], "busy"),
        ([], "busy"),  # its main thread, its children or a thread that has ended read them
    ],
)
def test_a_thread_that_reads_the_machines_state_does_not_make_a_rank_busy(
    threads: list[tuple[int, int, int, int]], kind: str
) -> None:
    size = sum(one[1] for one in threads) or 600_000
    monitored = rank(0, SLEEPS, io=size, thread_reads=tuple(threads))
    seen = [monitored, *(rank(n, waits("barrier")) for n in range(1, 4))]
    before = [dataclasses.replace(one, io_bytes=0, thread_reads=()) for one in seen]
    assert judge(nodes(before, 0.0), nodes(seen, 10.0), expected=4).kind == kind


def test_sockets_that_cannot_be_seen_are_named() -> None:
    apart = [dataclasses.replace(LOADING[0], namespace="net:[1]"), *LOADING[1:]]
    verdict = received_later(apart, {"100": {"eth0": 5 * MIB}}, {"100": {"eth0": 15 * MIB}})
    assert verdict.kind == "busy" and "1 MiB/s on the interfaces of its network namespace" in verdict.lines[0]
    verdict = received_later(apart, {"100": {"eth0": 0}}, {"100": {"eth0": 0}})
    words = "node0: another network namespace has rank 0 (node0); only the traffic of its interfaces is known"
    assert verdict.is_stalled and any(line.startswith(words) for line in verdict.lines)
    verdict = received_later(LOADING, {}, None)
    assert any("bytes over TCP are not counted" in line for line in verdict.lines)


@pytest.mark.parametrize(
    ("first", "second", "rate"),
    [
        ({"100": {"7": 5 * MIB}}, {"100": {"7": 15 * MIB}}, "1 MiB/s"),
        ({"100": {"7": 5 * MIB}}, {"100": {"8": 4 * MIB}}, "409 KiB/s"),  # another connection
        ({"100": {}}, {"100": {"7": 2 * MIB, "8": 2 * MIB}}, "409 KiB/s"),
        ({"100": {"7": 0}}, {"100": {"7": 200_000}}, "19.5 KiB/s"),  # a slow server
        ({"9": {"7": 0}}, {"9": {"7": MIB}}, "102 KiB/s"),
        ({"100": {}}, {"100": {}, "9": {"7": MIB}}, "102 KiB/s"),  # a new process below it
    ],
)
def test_a_rank_whose_threads_receive_data_over_tcp_is_busy(first: Any, second: Any, rate: str) -> None:
    loading = [
        dataclasses.replace(LOADING[0], children=(Child(9, "python", "S", "", "", 0.0),)),
        *LOADING[1:],
    ]
    verdict = received_later(loading, first, second)
    assert verdict.kind == "busy" and not verdict.missing
    assert "rank 0 (node0) is busy; 3 wait in barrier" in verdict.headline
    assert f"{rate} over TCP" in verdict.lines[0], verdict.lines


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, None),
        (None, {"100": {"7": 90 * MIB}}),
        ({"100": {"7": 90 * MIB}}, None),
        ({"100": {"7": 90 * MIB}}, {"100": {"7": 90 * MIB}}),
        ({"100": {"7": 90 * MIB, "8": MIB}}, {"100": {"8": MIB + 150_000}}),  # one is closed
        ({"100": {"7": 0}}, {"100": {"7": 150_000}}),  # 14 KiB/s
        ({"100": {}}, {"100": {str(inode): 9_000 for inode in range(200)}}),  # heartbeats
        ({"9": {"7": 0}}, {"9": {"7": MIB}}),  # another process
    ],
)
def test_a_rank_that_receives_nothing_is_missing(first: Any, second: Any) -> None:
    verdict = received_later(LOADING, first, second)
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [0], verdict


def test_a_connection_that_was_left_out_is_not_new() -> None:
    assert received_later(LOADING, {"100": {}}, {"100": {"7": 9 * MIB}}, left_out=9 * MIB).is_stalled


def test_ranks_that_wait_and_receive_from_each_other_are_not_stalled() -> None:
    ranks = [rank(n, waits()) for n in range(4)]
    verdict = received_later(ranks, {"101": {"7": 0}}, {"101": {"7": 30 * MIB}})
    assert verdict.kind == "flowing" and "rank 1 (node0) transfers 3 MiB/s over TCP" in verdict.headline
    assert received_later(ranks, {"101": {"7": 0}}, {"101": {"7": 0}}).is_stalled
    stopped = [dataclasses.replace(LOADING[0], state="T"), *LOADING[1:]]
    assert received_later(stopped, {"100": {"7": 0}}, {"100": {"7": MIB}}).is_stalled  # the kernel receives


def test_a_rank_that_computes_and_receives_does_not_only_poll_its_gpu() -> None:
    def seen(received: int) -> JudgedRank:
        look = rank(0, (own(5, "step"),))
        return JudgedRank(look, place_of(look.frames), Move(10.0, 9.9, 0, 0, tcp_bytes=received))

    assert seen(0).only_computes and not seen(MIB).only_computes


def test_a_loop_that_sleeps_and_meets_again_is_no_hang() -> None:
    sleeps = rank(3, SLEEPS, syscall="clock_nanosleep", switches=40)
    others = [rank(n, waits(), switches=30) for n in range(3)]
    assert judged(*others, sleeps).kind == "idle"
    assert judged(*others, dataclasses.replace(sleeps, syscall="read of /data/pipe")).is_stalled
    quiet = [dataclasses.replace(one, switches=1) for one in others]
    asked = judged(*quiet, sleeps)
    assert asked.is_stalled and asked.is_open
    slow_loop = with_flights([*quiet, sleeps], *[recorded(4.0)] * 3, recorded(4.0, number=3, done=True))
    assert judged(*slow_loop).kind == "idle"
    hung = with_flights([*quiet, sleeps], *[recorded(70.0)] * 3, recorded(70.0, number=3, done=True))
    assert [m.rank for m in judged(*hung).missing] == [3]


def test_most_ranks_are_not_blamed_for_a_collective_that_one_has_begun() -> None:
    ranks = [rank(1, waits("barrier", 9)), *(rank(n, waits("recv", 7)) for n in (0, 2, 3))]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    calls = [flight(2, [8], 9)] + [{"version": "2.10", "entries": []}] * 3
    for call in calls:
        call["pg_config"] = config
    verdict = judged(*with_flights(ranks, *map(from_data, calls)))
    assert verdict.is_stalled and not verdict.missing
    assert any("ranks 0, 2-3 started 0 collectives of default_pg" in line for line in verdict.lines), verdict


def test_a_rank_that_polls_with_short_sleeps_is_not_busy() -> None:
    polls = rank(3, SLEEPS, syscall="clock_nanosleep", switches=200)
    verdict = judged(*(rank(n, waits()) for n in range(3)), polls)
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [3]


def test_a_rank_whose_compiler_works_is_busy_with_it() -> None:
    child = Child(9, "/usr/bin/ptxas kernel.ptx", "R", "", "", 9.0)
    compiling = rank(0, (own(5, "step"),), cpu_s=9.0, children=(child,))
    verdict = judged(compiling, *(rank(n, waits()) for n in range(1, 4)))
    assert verdict.kind == "busy" and "ptxas" in verdict.lines[0]


@pytest.mark.parametrize(
    ("command", "file", "kind"),
    [
        (
            "/v/lib/python3.11/site-packages/wandb/bin/wandb-core --port-filename x",
            "/home/u/data.py",
            "stalled",
        ),
        (
            "/v/lib/python3.11/site-packages/wandb/bin/wandb-core",
            "/v/site-packages/wandb/sdk/wandb_run.py",
            "busy",
        ),
        ("python wandb-core.py", "/home/u/data.py", "busy"),
    ],
)
def test_a_monitor_below_a_rank_does_not_make_it_busy_unless_it_waits_for_that(
    command: str, file: str, kind: str
) -> None:
    child = Child(9, command, "S", "", "", 0.5, io_bytes=900_000, started=3)
    stuck = rank(3, (Frame(file, 5, "wait"), own(9)), cpu_s=0.55, io=900_100, children=(child,))
    still = dataclasses.replace(child, cpu_s=0.0, io_bytes=0)
    before = dataclasses.replace(stuck, cpu_s=0.0, io_bytes=0, children=(still,))
    others = [rank(n, waits()) for n in range(3)]
    verdict = judge(nodes([*others, before], 0.0), nodes([*others, stuck], 10.0), expected=4)
    assert verdict.kind == kind


def test_waiting_ranks_may_spin_as_nccl_does() -> None:
    spinning = [rank(n, waits(), cpu_s=10.0, state="R") for n in range(3)]
    assert judged(*spinning, rank(3, SLEEPS)).is_stalled


SCALER = Frame(
    "/v/lib/python3.11/site-packages/torch/amp/grad_scaler.py", 9, "_maybe_opt_step", "if not sum(v.item()"
)
LOADS = (Frame(LOADER, 1, "_try_get_data"), own(93, "main", "for batch in loader:"))
AT_GPU = {
    "item": (own(90, "step", "total += loss.item()"),),
    "copy": (own(91, "step", "x, y = x.to(device), y.to(device)"),),
    "cuda": (own(91, "step", "x = x.cuda()"),),
    "library": (SCALER, own(92, "step", "scaler.step(optimizer)")),
}


@pytest.mark.parametrize("where", AT_GPU)
def test_a_line_that_waits_for_the_gpu_is_a_wait(where: str) -> None:
    spinning = [rank(n, AT_GPU[where], cpu_s=10.0, state="R") for n in range(3)]
    verdict = judged(*spinning, rank(3, LOADS))
    assert verdict.is_stalled and verdict.missing[0].rank == 3 and verdict.is_open
    assert verdict.headline == "rank 3 (node1) is missing: the others wait for the GPU"


@pytest.mark.parametrize(
    "frames",
    [
        (own(91, "step", "x = x.to(device, non_blocking=True)"),),
        (Frame("/v/site-packages/torch/nn/modules/module.py", 1, "convert", "return t.to("), own(9)),
    ],
)
def test_a_copy_that_does_not_wait_and_a_model_that_is_moved_are_work(frames: tuple[Frame, ...]) -> None:
    verdict = judged(*(rank(n, frames, cpu_s=10.0) for n in range(3)), rank(3, LOADS))
    assert verdict.kind == "busy"
    assert any(line.startswith("rank 3 (node1): DataLoader next") for line in verdict.lines), verdict.lines


SPINS = [rank(n, AT_GPU["item"], cpu_s=10.0, state="R") for n in range(3)]


def test_a_rank_that_is_done_is_not_missing_while_the_others_may_compute_on_their_gpus() -> None:
    gone = judged(*SPINS, ended=[Missing(3, "node1", "ended with code 0")])
    assert gone.kind == "waiting" and not gone.missing
    assert gone.headline.startswith("rank 3 (node1) has ended with code 0; 3 ranks (0-2) wait for the GPU;")
    polls = judged(*SPINS, rank(3, SLEEPS, syscall="clock_nanosleep"))
    assert polls.kind == "waiting" and not polls.missing and "rank 3 (node1) uses nothing" in polls.headline


def test_that_the_flight_recorder_is_off_is_said_where_it_was_asked() -> None:
    ranks = [*SPINS, rank(3, AT_GPU["item"], cpu_s=10.0)]
    off = [from_data({"version": "2.4", "entries": []})] * 4
    for asked, said in ((ranks, 0), (with_flights(ranks, *off), 1)):
        assert sum("ringup env --debug" in line for line in judged(*asked).lines) == said


def recorded(
    age_s: float,
    *,
    done: bool = False,
    number: int = 4,
    op: str = "all_reduce",
    group: Sequence[str] = ("0", "default_pg"),
) -> Any:
    """A flight recorder whose last collective was begun so long ago."""
    now = 10**18
    entry = {"process_group": group, "collective_seq_id": number, "input_sizes": [[8]]}
    entry |= {
        "profiling_name": f"nccl:{op}",
        "input_dtypes": ["Float"],
        "time_created_ns": now - int(age_s * 1e9),
    }
    before = {
        **entry,
        "collective_seq_id": number - 1,
        "state": "completed",
        "profiling_name": "nccl:all_reduce",
    }
    entry["state"] = "completed" if done else "scheduled"
    return from_data({"version": "2.10", "entries": [before, entry], "now_ns": now})


def with_flights(ranks: list[RankLook], *flights: Any) -> list[RankLook]:
    return [dataclasses.replace(one, flight=flight) for one, flight in zip(ranks, flights, strict=True)]


def test_ranks_that_wait_at_one_line_in_different_groups_are_named_with_them() -> None:
    """Gloo's dump has no members of a group: they may share ranks or not."""
    first, second = (recorded(80.0, group=[number, "undefined"]) for number in "12")
    verdict = judged(*with_flights([rank(n, waits()) for n in range(4)], first, first, second, first))
    words = "flight recorder: ranks 0-1, 3 in group 1; rank 2 in group 2 (ranks that share groups must enter"
    assert verdict.is_stalled and any(line.startswith(words) for line in verdict.lines), verdict
    same = judged(*with_flights([rank(n, waits()) for n in range(4)], *[first] * 4))
    assert same.is_stalled and not any("share groups" in line for line in same.lines)


def test_a_collective_that_has_been_pending_for_long_is_waited_for() -> None:
    sleeps = rank(3, SLEEPS, syscall="clock_nanosleep", flight=recorded(90.0, number=3, done=True))
    verdict = judged(*with_flights(SPINS, *[recorded(80.0)] * 3), sleeps)
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [3]
    for fresh in (recorded(3.0), recorded(80.0, done=True)):
        assert judged(*with_flights(SPINS, *[fresh] * 3), rank(3, LOADS)).kind == "waiting"


@pytest.mark.parametrize(("age_s", "kind"), [(290.0, "waiting"), (310.0, "stalled")])
def test_a_collective_that_every_rank_has_begun_and_that_never_ends_is_a_hang(
    age_s: float, kind: str
) -> None:
    ranks = with_flights([rank(n, waits(), cpu_s=9.9) for n in range(4)], *[recorded(age_s)] * 4)
    verdict = judged(*ranks)
    assert verdict.kind == kind and not verdict.missing
    assert ("once all ranks' collectives are pending for 5 min" in verdict.headline) == (kind == "waiting")
    if kind == "stalled":
        assert verdict.rule == "collective-stalled" and "no interface carries data" in verdict.headline
    young = [*ranks[:3], dataclasses.replace(ranks[3], flight=None)]
    assert judged(*young).kind == "waiting"


@pytest.mark.parametrize(("age_s", "kind"), [(80.0, "stalled"), (3.0, "waiting")])
def test_calls_that_differ_are_a_hang_of_ranks_that_spin_once_they_are_pending_for_long(
    age_s: float, kind: str
) -> None:
    ranks = [*SPINS, rank(3, AT_GPU["item"], cpu_s=10.0, state="R")]
    calls = [recorded(age_s)] * 3 + [recorded(age_s, op="broadcast")]
    assert judged(*ranks).is_open
    verdict = judged(*with_flights(ranks, *calls))
    assert verdict.kind == kind, verdict
    assert [m.rank for m in verdict.missing] == ([3] if kind == "stalled" else [])
    assert any("broadcast [8] Float on rank 3" in line for line in verdict.lines)


FLOATS = [rank(n, (own(52, source="total += float(loss)"),), cpu_s=9.0, state="R", io=682) for n in range(4)]
"""Ranks that wait for the GPU inside Python's float(), or compute there."""


@pytest.mark.parametrize(
    ("age_s", "op", "kind"),
    [(80.0, "broadcast", "stalled"), (80.0, "all_reduce", "busy"), (3.0, "broadcast", "busy")],
)
def test_calls_that_differ_are_a_hang_of_ranks_in_their_own_code(age_s: float, op: str, kind: str) -> None:
    assert judged(*FLOATS).is_open  # only the recorder knows
    calls = [recorded(age_s)] * 3 + [recorded(age_s, op=op)]
    verdict = judged(*with_flights(FLOATS, *calls))
    assert verdict.kind == kind, verdict
    assert [m.rank for m in verdict.missing] == ([3] if kind == "stalled" else [])


@pytest.mark.parametrize("io, kind", [(0, "stalled"), (5 << 20, "busy")])
def test_a_rank_that_uses_nothing_is_missing_from_what_others_poll_for(io: int, kind: str) -> None:
    spin = [dataclasses.replace(one, io_bytes=io) for one in FLOATS[:3]]
    pending = [recorded(80.0)] * 3
    gets = rank(3, (own(48, source="queue.get()"),), syscall="futex")
    verdict = judged(*with_flights(spin, *pending), gets)
    assert verdict.kind == kind and [m.rank for m in verdict.missing] == ([3] if kind == "stalled" else [])
    assert (verdict.headline == "rank 3 (node1) is missing from all_reduce") == (kind == "stalled")
    left = judged(*with_flights(spin, *pending), ended=[Missing(3, "node1", DONE)])
    assert left.kind == kind
    asleep = judged(*with_flights(spin, *pending), rank(3, SLEEPS, syscall="clock_nanosleep"))
    assert asleep.kind == "busy"  # it may sleep until one of them has computed something
    computes = judged(*with_flights(spin, *pending), rank(3, (own(60),), cpu_s=9.0, io=1 << 20, state="R"))
    assert computes.kind == "busy"


@pytest.mark.parametrize("queued_s, kind", [(6.0, "stalled"), (0.0, "busy")])
def test_ranks_that_poll_on_a_crowded_node_want_a_cpu_all_the_time(queued_s: float, kind: str) -> None:
    spin = [dataclasses.replace(one, cpu_s=3.0, queued_s=queued_s) for one in FLOATS[:3]]
    gets = rank(3, (own(48, source="queue.get()"),), syscall="futex")
    assert judged(*with_flights(spin, *[recorded(80.0)] * 3), gets).kind == kind


@pytest.mark.parametrize("cpu_s", [10.0, 0.0])
def test_a_rank_that_is_behind_and_at_its_gpu_may_compute_there(cpu_s: float) -> None:
    ranks = [rank(n, waits("barrier"), cpu_s=cpu_s) for n in range(1, 4)]
    ranks = [rank(0, AT_GPU["item"], cpu_s=cpu_s), *ranks]
    calls = [recorded(80.0, number=3, done=True)] + [recorded(80.0)] * 3
    verdict = judged(*with_flights(ranks, *calls))
    assert verdict.kind == "waiting" and not verdict.missing
    assert any("rank 0 has not started collective 4 of default_pg" in line for line in verdict.lines)
    counts = (
        RAS.replace('"AllReduce": 42', '"AllReduce": 43')
        .replace('100, "collective_counts": {"AllReduce": 43', '100, "collective_counts": {"AllReduce": 41')
        .replace('103, "collective_counts": {"AllReduce": 41', '103, "collective_counts": {"AllReduce": 43')
    )
    ras = Ras("localhost:28028", "json", counts, "")
    before = [dataclasses.replace(r, cpu_s=0.0) for r in ranks]
    verdict = judge(nodes(before, 0.0, ras=ras), nodes(ranks, 10.0, ras=ras), expected=4)
    assert verdict.kind == "waiting" and not verdict.missing
    assert any("AllReduce: 41 launched, the others 43" in line for line in verdict.lines), verdict.lines


def test_everybody_at_the_gpu_without_cpu_time_is_not_called_a_hang() -> None:
    verdict = judged(*(rank(n, AT_GPU["item"]) for n in range(4)))
    assert verdict.kind == "waiting" and verdict.is_open
    assert verdict.headline == "every rank waits for the GPU; whether the GPU computes is unknown"


DDP = "/v/lib/python3.11/site-packages/torch/nn/parallel/distributed.py"
HANDLE = Frame("/v/lib/python3.11/site-packages/deepspeed/comm/comm.py", 8, "gather", "handle.wait()")
WAITS = {
    "ddp": (Frame(DDP, 9, "_pre_forward"), Frame(DDP, 8, "forward"), own(60)),
    "irecv": (Frame(C10D, 9, "irecv"), own(61)),
    "coalesced": (Frame(C10D, 9, "wait", "work.wait()"), own(62)),
    "handle": (HANDLE, own(63)),
    "destroy": (Frame(C10D, 9, "_shutdown_backend"), Frame(C10D, 8, "destroy_process_group"), own(64)),
    "compiled": (own(65, "call", "buf = torch.ops._c10d_functional.wait_tensor.default(buf)"),),
}


@pytest.mark.parametrize("where", WAITS)
def test_waits_inside_torch_and_libraries_are_waits(where: str) -> None:
    verdict = judged(*(rank(n, WAITS[where]) for n in range(3)), rank(3, SLEEPS))
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [3], verdict


@pytest.mark.parametrize("most", [waits("recv", 40), (AT_GPU["item"])])
def test_who_is_not_in_a_transfer_or_is_at_the_gpu_is_not_blamed_for_it(most: tuple[Frame, ...]) -> None:
    ranks = [rank(n, waits("recv", 40)) for n in range(3)] + [rank(3, waits("all_reduce", 50))]
    if most is AT_GPU["item"]:
        ranks = [rank(n, waits()) for n in range(3)] + [rank(3, most)]
    assert not judged(*ranks).missing


def test_groups_of_which_none_holds_most_ranks_blame_nobody() -> None:
    places = [waits(), waits(), waits("barrier", 9), waits("broadcast", 7)]
    assert not judged(*(rank(n, places[n]) for n in range(4))).missing


def test_everybody_at_the_gpu_with_cpu_spent_is_not_called_a_hang() -> None:
    reads_loss = (own(90, "step", "total += loss.item()"),)
    assert judged(*(rank(n, reads_loss, cpu_s=10.0) for n in range(4))).kind == "waiting"


def test_a_rank_that_is_ready_to_run_and_gets_no_processor_is_no_hang() -> None:
    verdict = judged(*(rank(n, waits()) for n in range(3)), rank(3, SLEEPS, state="R", cpu_s=0.1))
    assert verdict.kind == "busy" and "gets hardly any CPU time" in verdict.lines[0]


@pytest.mark.parametrize("lost", [{"cpu_s": -90.0}, {"io": -5000}])
def test_totals_that_went_away_with_a_descendant_are_no_sign_of_idleness(lost: dict[str, Any]) -> None:
    verdict = judged(*(rank(n, waits()) for n in range(3)), rank(3, SLEEPS, **lost))
    assert verdict.kind == "busy"


@pytest.mark.parametrize(("cpu_s", "kind"), [(0.0, "stalled"), (10.0, "waiting")])
def test_a_rank_whose_stack_is_not_known_is_not_said_to_wait_with_the_others(cpu_s: float, kind: str) -> None:
    verdict = judged(*(rank(n, waits()) for n in range(3)), rank(3, (), cpu_s=cpu_s, why_not="no py-spy"))
    assert (verdict.kind, verdict.missing) == (kind, ())
    assert verdict.headline.startswith("3 wait in all_reduce; what rank 3 (node1) does is unknown")


def test_backward_is_a_wait_only_while_idle() -> None:
    backward = (Frame(GRAPH, 1, "_engine_run_backward"), own(70))
    idle = [rank(n, backward) for n in range(3)]
    assert judged(*idle, rank(3, SLEEPS)).missing[0].rank == 3
    computing = [rank(n, backward, cpu_s=10.0) for n in range(3)]
    assert judged(*computing, rank(3, SLEEPS)).kind == "busy"


def test_a_stopped_rank_is_named_though_its_stack_cannot_be_read() -> None:
    stopped = rank(3, (), state="T", why_not="it is stopped")
    verdict = judged(*(rank(n, waits()) for n in range(3)), stopped)
    assert verdict.missing[0].rank == 3 and "stopped (state T" in verdict.missing[0].where


def test_a_rank_stopped_within_the_collective_is_named_as_well() -> None:
    verdict = judged(*(rank(n, waits()) for n in range(3)), rank(3, waits(), state="T"))
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [3]


def test_a_rank_that_left_with_code_0_is_named() -> None:
    verdict = judged(*(rank(n, waits()) for n in range(3)), ended=[Missing(3, "node1", "ended with code 0")])
    assert verdict.is_stalled and verdict.missing[0].rank == 3
    assert "which has ended with code 0" in verdict.headline
    assert verdict.rule == "rank-fell-behind"  # which call was one too many is not known


def test_a_rank_that_left_while_the_others_go_on_with_training_had_less_data() -> None:
    left = [Missing(3, "node1", DONE)]
    backward = (Frame(GRAPH, 1, "_engine_run_backward"), own(70))
    verdict = judged(*(rank(n, backward) for n in range(3)), ended=left)
    assert verdict.is_stalled and verdict.rule == "uneven-batches-between-ranks"


@pytest.mark.parametrize(("before", "rule"), [(88, "uneven-batches-between-ranks"), (9, "rank-fell-behind")])
def test_a_pending_call_that_was_made_before_at_the_same_line_is_another_step(before: int, rule: str) -> None:
    ended, pending = flight(4, [8], before)["entries"][1], flight(5, [8], 88)["entries"][1]
    calls = [ended | {"state": "completed"}, pending | {"state": "scheduled"}]
    waiting = [rank(n, waits(), flight=from_data({"version": "2.10", "entries": calls})) for n in range(3)]
    assert judged(*waiting, ended=[Missing(3, "node1", DONE)]).rule == rule


def test_a_rank_that_is_there_and_one_that_left_are_both_behind() -> None:
    left = [Missing(2, "node1", "ended with code 0")]
    verdict = judged(*(rank(n, waits()) for n in range(2)), rank(3, SLEEPS), ended=left)
    assert verdict.rule == "rank-fell-behind" and {m.rank for m in verdict.missing} == {2, 3}


def test_a_rank_that_never_came_is_no_hang_of_those_who_did() -> None:
    verdict = judged(*(rank(n, waits("init_process_group", 3)) for n in range(2)))
    assert verdict.kind == "meeting" and "2 of 4 ranks have started" in verdict.headline


def test_the_smaller_group_is_in_the_wrong_collective() -> None:
    verdict = judged(*(rank(n, waits()) for n in range(3)), rank(3, waits("broadcast", 91)))
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [3]


def test_two_halves_in_different_collectives_blame_nobody() -> None:
    halves = [rank(n, waits()) for n in range(2)] + [rank(n, waits("barrier", 9)) for n in (2, 3)]
    verdict = judged(*halves)
    assert verdict.is_stalled and not verdict.missing


def flight(number: int, sizes: list[int], line: int, group: str = "0") -> dict[str, Any]:
    frames = [{"filename": "/home/u/train.py", "line": line, "name": "main"}]
    entry = {"process_group": [group, "default_pg"], "collective_seq_id": number, "frames": frames}
    entry |= {"profiling_name": "gloo:all_reduce", "input_sizes": [sizes], "input_dtypes": ["Float"]}
    before = {**entry, "collective_seq_id": number - 1, "input_sizes": [[1]]}
    return {"version": "2.10", "entries": [before, entry]}


def test_the_flight_recorder_tells_who_calls_another_shape_at_the_same_line() -> None:
    same = [rank(n, waits(), flight=from_data(flight(4, [8], 88))) for n in range(3)]
    other = rank(3, waits(), flight=from_data(flight(4, [3], 60)))
    verdict = judged(*same, other)
    assert [(m.rank, m.where) for m in verdict.missing] == [(3, "train.py:60")]
    assert "all_reduce [3] Float on rank 3 (train.py:60)" in verdict.headline


def test_a_rank_that_is_behind_is_where_its_stack_is_and_not_at_its_last_call() -> None:
    here = flight(4, [8], 88)
    past = {**here, "entries": here["entries"][:1]}
    late = [rank(n, waits("new_group", 52), flight=from_data(past)) for n in range(2)]
    others = [rank(n, waits("barrier"), flight=from_data(here)) for n in (2, 3)]
    verdict = judged(*late, *others)
    assert verdict.headline.startswith("ranks 0-1 have not started collective 4")
    assert {one.where.partition(" in ")[0] for one in verdict.missing} == {"new_group, train.py:52"}
    assert sum("every rank of the job has called it" in line for line in verdict.lines) == 1


def test_everybody_still_at_the_same_line_without_a_recorder_names_nobody() -> None:
    verdict = judged(*(rank(n, waits()) for n in range(4)))
    assert verdict.is_stalled and not verdict.missing and "the same line" in verdict.headline


def test_data_that_flows_is_no_hang() -> None:
    ranks = [rank(n, waits()) for n in range(4)]
    first = nodes(ranks, 0.0, state=NodeState(interfaces={"eth0": 0}))
    second = nodes(ranks, 10.0, state=NodeState(interfaces={"eth0": 50 << 20}))
    verdict = judge(first, second, expected=4)
    assert verdict.kind == "flowing" and verdict.is_open


@pytest.mark.parametrize(("cpu_s", "kind"), [(0.0, "stalled"), (9.0, "flowing")])
def test_calls_that_differ_are_a_hang_though_somebodys_data_flows(cpu_s: float, kind: str) -> None:
    calls = [from_data(flight(4, [3] if n == 3 else [8], 60 if n == 3 else 88)) for n in range(4)]
    ranks = [rank(n, waits(), flight=calls[n], cpu_s=cpu_s) for n in range(4)]
    still = [dataclasses.replace(one, cpu_s=0.0) for one in ranks]
    first = nodes(still, 0.0, state=NodeState(interfaces={"eth0": 0}))
    verdict = judge(first, nodes(ranks, 10.0, state=NodeState(interfaces={"eth0": 50 << 20})), expected=4)
    assert verdict.kind == kind
    assert [m.rank for m in verdict.missing] == ([3] if kind == "stalled" else [])


def test_ranks_behind_while_data_flows_are_no_hang() -> None:
    calls = [from_data(flight(3 if n == 3 else 4, [8], 88)) for n in range(4)]
    ranks = [rank(n, waits(), flight=calls[n]) for n in range(4)]
    first = nodes(ranks, 0.0, state=NodeState(interfaces={"eth0": 0}))
    second = nodes(ranks, 10.0, state=NodeState(interfaces={"eth0": 50 << 20}))
    assert judge(first, second, expected=4).kind == "flowing"


def test_a_recorder_that_has_lost_what_came_before_names_nobody() -> None:
    calls = [flight(4, [3] if n == 3 else [8], 88) for n in range(4)]
    ranks = [
        rank(n, waits(), flight=from_data({**c, "entries": c["entries"][1:]})) for n, c in enumerate(calls)
    ]
    verdict = judged(*ranks)
    assert verdict.is_stalled and not verdict.missing
    assert any("in doubt: earlier records are lost" in line for line in verdict.lines)


def test_a_worker_stuck_below_a_rank_is_shown() -> None:
    opens = (Frame("/home/u/data.py", 30, "__getitem__", "open(path)"),)
    worker = Child(9, "python train.py", "S", "wait_for_partner", "openat", 0.0, opens)
    loads = (Frame(LOADER, 1, "_try_get_data"), own(93, "main", "for batch in loader:"))
    verdict = judged(*(rank(n, waits()) for n in range(3)), rank(3, loads, children=(worker,)))
    assert verdict.missing[0].where.startswith("DataLoader next, train.py:93")
    assert any("data.py:30 in __getitem__" in line and "FIFO" in line for line in verdict.lines)


def test_ranks_without_stacks_are_not_judged() -> None:
    verdict = judged(*(rank(n, (), why_not="no py-spy on this node") for n in range(4)))
    assert not verdict.is_stalled
    assert any("no py-spy on this node" in line for line in verdict.lines)


def flushing(rate: float, **more: Any) -> Verdict:
    """Rank 3's node writes so many bytes a second; it has used nothing."""
    options = {"syscall": "fsync of /data/model.pt", "state": "D", **more}
    second = [*(rank(n, waits()) for n in range(3)), rank(3, (own(40, "save", "os.fsync(f)"),), **options)]
    before = nodes(second, 0.0)
    return judge(before, nodes(second, 10.0, state=NodeState(written_bytes=int(rate * 10))), expected=4)


def test_a_rank_that_waits_until_its_checkpoint_is_on_disk_is_busy_while_the_disk_is_written_to() -> None:
    verdict = flushing(8 << 20)
    assert verdict.kind == "busy" and "its node writes 8 MiB/s" in verdict.lines[0], verdict


@pytest.mark.parametrize("more", [{"syscall": "read of /data/x"}, {"state": "T"}, {"syscall": ""}])
def test_a_disk_that_is_written_to_excuses_nobody_who_does_not_wait_for_it(more: dict[str, Any]) -> None:
    assert flushing(8 << 20, **more).is_stalled


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"syscall": "", "wchan": "folio_wait_bit_common"}, "busy"),
        ({"syscall": "close"}, "busy"),
        ({"syscall": "", "wchan": "pipe_read", "state": "S"}, "stalled"),
    ],
)
def test_a_checkpoint_is_seen_by_the_kernels_function_where_the_call_may_not_be_read(
    more: dict[str, Any], kind: str
) -> None:
    assert flushing(8 << 20, **more).kind == kind


@pytest.mark.parametrize(
    ("faults", "call", "kind"),
    [
        (900, "read of /mnt/model.bin", "busy"),
        (3, "read of /mnt/model.bin", "stalled"),
        (900, "futex", "stalled"),
    ],
)
def test_one_long_read_that_fills_memory_is_work(faults: int, call: str, kind: str) -> None:
    reader = rank(3, (own(40, "load", "f.read()"),), syscall=call)
    ranks = [*(rank(n, waits()) for n in range(3)), reader]
    second = [*ranks[:3], dataclasses.replace(reader, faults=faults)]
    verdict = judge(nodes(ranks, 0.0), nodes(second, 10.0), expected=4)
    assert verdict.kind == kind, verdict
    assert ("the data it reads arrives" in verdict.lines[0]) == (kind == "busy")


def test_a_rank_that_waits_for_a_disk_that_takes_nothing_is_missing() -> None:
    verdict = flushing(100)
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [3]


JOIN = (Frame("/v/site-packages/torch/multiprocessing/spawn.py", 130, "join"), own(22))


def spawned(pid: int, parent: int, frames: tuple[Frame, ...], **more: Any) -> Child:
    base = Child(pid, "python -c spawn_main()", "S", "", "", 0.0, frames, "", 0, 0, parent, 7, True)
    return dataclasses.replace(base, **more)


def parents(*last: Frame, **more: Any) -> list[RankLook]:
    """Two that have started two ranks each; the last of them stands in `last`."""
    frames = [waits(), waits(), waits(), last]
    children = [spawned(500 + n, 100 + n // 2, frames[n], **(more if n == 3 else {})) for n in range(4)]
    tracker = spawned(600, 100, (own(1),), command="python -c from multiprocessing.resource_tracker")
    return [rank(0, JOIN, children=(*children[:2], tracker)), rank(1, JOIN, children=tuple(children[2:]))]


def spawned_verdict(second: list[RankLook]) -> Verdict:
    still = [dataclasses.replace(c, cpu_s=0.0, io_bytes=0) for r in second for c in r.children]
    first = [
        dataclasses.replace(r, frames=(), children=tuple(c for c in still if c.parent == r.pid))
        for r in second
    ]
    return judge(nodes(first, 0.0), nodes(second, 10.0), expected=4)


def test_of_ranks_that_a_script_starts_the_missing_one_is_named_by_its_process() -> None:
    verdict = spawned_verdict(parents(*SLEEPS))
    assert verdict.headline == "process 503 (node0) is missing from all_reduce"
    assert [m.rank for m in verdict.missing] == [-1] and "train.py:12" in verdict.missing[0].where


@pytest.mark.parametrize("used", [{"cpu_s": 5.0}, {"io_bytes": 1 << 20}])
def test_a_rank_that_a_script_starts_and_that_works_is_busy(used: dict[str, Any]) -> None:
    verdict = spawned_verdict(parents(*SLEEPS, **used))
    assert verdict.kind == "busy" and verdict.headline.startswith("process 503 (node0) is busy")


def test_processes_of_a_rank_that_has_others_work_for_it_are_no_ranks() -> None:
    first, _ = parents(*SLEEPS)
    verdict = judged(first, *(rank(n, waits()) for n in range(1, 4)))
    assert [m.rank for m in verdict.missing] == [0]


def test_without_their_stacks_processes_a_script_starts_are_not_judged() -> None:
    second = [
        dataclasses.replace(
            r, children=tuple(dataclasses.replace(c, frames=(), why_not="no py-spy") for c in r.children)
        )
        for r in parents(*SLEEPS)
    ]
    verdict = spawned_verdict(second)
    assert not verdict.is_stalled and any("no py-spy" in line for line in verdict.lines)


def test_all_asleep_outside_collectives_is_not_called_a_hang() -> None:
    assert judged(*(rank(n, SLEEPS) for n in range(4))).kind == "idle"


def test_all_held_by_a_dead_disk_is() -> None:
    held = [rank(n, (), state="D", wchan="rpc_wait_bit_killable") for n in range(4)]
    verdict = judged(*held)
    assert verdict.is_stalled and "rpc_wait_bit_killable" in verdict.missing[0].where


def test_a_rank_that_has_just_begun_is_busy() -> None:
    ranks = [rank(n, waits()) for n in range(3)]
    late = rank(3, SLEEPS)
    assert judge(nodes(ranks, 0.0), nodes([*ranks, late], 10.0), expected=4).kind == "busy"


def test_a_node_that_does_not_answer_is_said() -> None:
    ranks = [rank(n, waits()) for n in range(2)]
    second = [*nodes(ranks, 10.0), silent("node1", "it did not answer in time")]
    verdict = judge(nodes(ranks, 0.0), second, expected=4)
    assert verdict.kind == "unknown" and "node1: it did not answer in time" in verdict.lines


RAS = """{"nccl_version": "2.30.7", "communicators": [{"hash": "ab12", "size": 4, "ranks": [
 {"rank": 0, "host": "node0", "pid": 100, "collective_counts": {"AllReduce": 42}},
 {"rank": 1, "host": "node0", "pid": 101, "collective_counts": {"AllReduce": 42}},
 {"rank": 2, "host": "node1", "pid": 102, "collective_counts": {"AllReduce": 42}},
 {"rank": 3, "host": "node1", "pid": 103, "collective_counts": {"AllReduce": 41}}]}]}"""


def test_ras_counts_that_stand_still_name_the_rank_behind() -> None:
    ranks = [rank(n, waits(), cpu_s=10.0) for n in range(4)]
    ras = Ras("localhost:28028", "json", RAS, "")
    before = [dataclasses.replace(r, cpu_s=0.0) for r in ranks]
    verdict = judge(nodes(before, 0.0, ras=ras), nodes(ranks, 10.0, ras=ras), expected=4)
    assert verdict.is_stalled and [m.rank for m in verdict.missing] == [3]
    grown = Ras("localhost:28028", "json", RAS.replace("41", "42"), "")
    assert judge(nodes(before, 0.0, ras=ras), nodes(ranks, 10.0, ras=grown), expected=4).kind == "waiting"


def counted(*counts: dict[str, int]) -> Ras:
    """NCCL 2.28.9's report of one communicator, recorded with two ranks on one H200 and cut down."""
    ranks = [
        {
            "rank": n,
            "host": "192.0.2.2",
            "pid": 100 + n,
            "status": {"init_state": 0, "async_error": 0},
            "collective_counts": {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "AllReduce": 0, **one},
        }
        for n, one in enumerate(counts)
    ]
    report = {"nccl_version": "2.28.9", "communicators": [{"hash": "0x2527664c149094d5", "ranks": ranks}]}
    return Ras("localhost:28028", "json", json.dumps(report), "")


def twice(ras: Ras, *ranks: RankLook) -> Verdict:
    """Two looks at all ranks of a job between which NCCL's counts stand still."""
    before = [dataclasses.replace(r, cpu_s=0.0, frames=(), flight=None) for r in ranks]
    return judge(
        nodes(before, 0.0, ras=ras), nodes(list(ranks), 7.0, ras=ras), expected=len(ranks), long_s=4.8
    )


def begun(age_s: float, *calls: tuple[str, int, str, str]) -> Any:
    """A flight recorder's dump: (operation, elements, type, state) from the first collective on."""
    now = 10**18
    entries = [
        {
            "record_id": n,
            "process_group": ["0", "default_pg"],
            "collective_seq_id": n + 1,
            "profiling_name": f"nccl:{op}",
            "input_sizes": [[size]],
            "input_dtypes": [dtype],
            "state": state,
            "time_created_ns": now - int(age_s * 1e9),
        }
        for n, (op, size, dtype, state) in enumerate(calls)
    ]
    return from_data({"version": "2.10", "entries": entries, "now_ns": now})


STEP = ("all_reduce", 1000, "Float", "completed")
HUNG = ("all_reduce", 1000, "Float", "scheduled")
ITEM = (own(304, "step", 'say("step %d %s" % (number, x.sum().item()))'),)
# What rank 1 of two called in place of its fourth all_reduce, and NCCL's counts on both: recorded on an H200.
APART = {
    # A broadcast has ended on its root, though nobody else has called it.
    "kind": (
        ("broadcast", 4194304, "Float", "completed"),
        {"AllReduce": 4},
        {"AllReduce": 4, "Broadcast": 1},
    ),
    "size": (("all_reduce", 16777216, "Float", "scheduled"), {"AllReduce": 4}, {"AllReduce": 5}),
    "gather": (
        ("all_gather", 1000, "Float", "scheduled"),
        {"AllReduce": 4},
        {"AllReduce": 4, "AllGather": 1},
    ),
    "type": (("all_reduce", 1000, "Double", "scheduled"), {"AllReduce": 4}, {"AllReduce": 5}),
}


@pytest.mark.parametrize("which", APART)
def test_a_rank_that_waits_in_a_call_unlike_the_others_is_not_said_to_be_behind(which: str) -> None:
    other, *counts = APART[which]
    spinning = [rank(n, ITEM, cpu_s=6.9, state="R", world_size=2) for n in range(2)]
    flights = begun(7.5, STEP, STEP, STEP, HUNG), begun(7.5, STEP, STEP, STEP, other, HUNG)
    verdict = twice(counted(*counts), *with_flights(spinning, *flights))
    assert verdict.rule == "collective-mismatch", verdict
    assert [number for number, _ in verdict.apart] == [0, 1]
    # Without a recorder it may be that a GPU computes.
    assert not twice(counted(*counts), *spinning).is_stalled


def test_of_two_ranks_in_collectives_neither_is_named_for_what_ras_counts() -> None:
    ras = counted({"AllReduce": 4}, {"AllReduce": 5})
    spinning = [rank(n, waits("barrier"), cpu_s=6.9, state="R", world_size=2) for n in range(2)]
    assert not twice(ras, *spinning).missing
    receives = dataclasses.replace(spinning[0], frames=waits("recv", 69))
    assert [m.rank for m in twice(ras, receives, spinning[1]).missing] == [0]


def test_counts_that_differ_in_both_directions_are_calls_that_do_not_fit() -> None:
    ras = counted({"AllReduce": 5}, {"AllReduce": 4, "Broadcast": 1}, {"AllReduce": 5})
    spinning = [rank(n, waits("barrier"), cpu_s=6.9, state="R", world_size=3) for n in range(3)]
    verdict = twice(ras, *spinning)
    assert verdict.rule == "collective-mismatch", verdict
    at_gpu = [dataclasses.replace(one, frames=ITEM) for one in spinning]
    assert not twice(ras, *at_gpu).is_stalled


def test_a_rank_that_sleeps_and_has_launched_less_is_missing_while_the_others_spin_at_the_gpu() -> None:
    spins = rank(0, AT_GPU["item"], cpu_s=6.9, state="R", world_size=2)
    sleeps = rank(1, SLEEPS, syscall="clock_nanosleep", world_size=2)
    verdict = twice(counted({"AllReduce": 4}, {"AllReduce": 3}), spins, sleeps)
    assert verdict.rule == "rank-fell-behind" and [m.rank for m in verdict.missing] == [1], verdict
    assert not twice(counted({"AllReduce": 4}, {"AllReduce": 4}), spins, sleeps).is_stalled
    computes = dataclasses.replace(spins, rank=1, pid=101)
    assert not twice(counted({"AllReduce": 4}, {"AllReduce": 3}), spins, computes).is_stalled


def test_what_ras_says_of_another_job_on_the_node_is_not_shown() -> None:
    ras = counted({"AllReduce": 4}, {"AllReduce": 3})
    spinning = [rank(n, waits("barrier"), cpu_s=6.9, state="R", world_size=2) for n in range(2)]
    strangers = [dataclasses.replace(one, pid=one.pid + 900) for one in spinning]
    for ranks, said in ((spinning, 1), (strangers, 0)):
        assert sum("NCCL's RAS" in line for line in twice(ras, *ranks).lines) == said


TWO_KINDS = """Warnings
========

#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different Broadcast operation counts
  Rank 1 has launched up to operation 1 -- GPU 0 managed by process 12 on node 192.0.2.2
  Rank 0 has not launched any operations -- GPU 0 managed by process 13 on node 192.0.2.2
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 5 -- GPU 0 managed by process 13 on node 192.0.2.2
  Rank 1 has launched up to operation 4 -- GPU 0 managed by process 12 on node 192.0.2.2
"""


def test_a_report_in_text_of_two_kinds_names_both() -> None:
    found = read_ras("text", TWO_KINDS)
    assert [(one.rank, one.what) for one in found] == [
        (0, "Broadcast: 0 launched, the others 1"),
        (1, "AllReduce: 4 launched, the others 5"),
    ]
    assert all(one.is_apart and not one.is_minor for one in found)


def test_a_rank_that_does_not_answer_ras_is_not_said_to_be_behind() -> None:
    ranks = [rank(n, waits(), cpu_s=10.0) for n in range(4)]
    silent_one = """{"communicators": [{"hash": "ab12", "ranks": [], "missing_ranks": [
     {"rank": 3, "host": "node1", "pid": 103, "status": {"unresponsive": true}}]}]}"""
    ras = Ras("localhost:28028", "json", silent_one, "")
    before = [dataclasses.replace(r, cpu_s=0.0) for r in ranks]
    verdict = judge(nodes(before, 0.0, ras=ras), nodes(ranks, 10.0, ras=ras), expected=4)
    assert verdict.headline == "rank 3 (node1): no answer to NCCL's RAS"


@pytest.mark.parametrize(("host", "missing"), [("node1", [2]), ("10.0.0.7", [])])
def test_of_containers_that_use_the_same_pid_only_the_one_that_ras_means_is_named(
    host: str, missing: list[int]
) -> None:
    ranks = [rank(n, waits(), cpu_s=10.0, pid=50 + n % 2) for n in range(4)]
    report = """{"communicators": [{"hash": "ab12", "ranks": [
     {"rank": 0, "host": "%s", "pid": 50, "collective_counts": {"AllReduce": 41}},
     {"rank": 1, "host": "x", "pid": 51, "collective_counts": {"AllReduce": 42}},
     {"rank": 2, "host": "x", "pid": 52, "collective_counts": {"AllReduce": 42}}]}]}"""
    ras = Ras("localhost:28028", "json", report % host, "")
    before = [dataclasses.replace(r, cpu_s=0.0) for r in ranks]
    verdict = judge(nodes(before, 0.0, ras=ras), nodes(ranks, 10.0, ras=ras), expected=4)
    assert [m.rank for m in verdict.missing] == missing


def test_a_node_in_trouble_is_told() -> None:
    ranks = [rank(n, waits()) for n in range(3)] + [rank(3, SLEEPS)]
    full = NodeState(disks=(("/data", 0, 1 << 40),), oom_kills=1, swapped_pages=9000)
    verdict = judge(nodes(ranks, 0.0), nodes(ranks, 10.0, state=full), expected=4)
    text = "\n".join(verdict.lines)
    assert "/data is full" in text and "out-of-memory" in text and "swapping" in text
