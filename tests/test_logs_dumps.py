"""Dumps of torch's flight recorder among the logs: recognised, joined, and not blamed on anybody wrongly."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringup.errors import LogsError
from ringup.flight_recorder.dump import FlightError
from ringup.flight_recorder.dump import read as read_dump
from ringup.logs.follow import changes
from ringup.logs.read import Diagnosis, read_logs
from ringup.logs.rule import Cause
from ringup.output import logs_report as show
from ringup.output.terminal import Style
from tests.flight_dumps import BEGUN_NS, VERSIONS, call, dump, waits, written

STEPS = [call(size=8 + n) for n in range(5)]
TIMED_OUT_S = 601.0
WATCHDOG = (
    "[rank{0}]:[E101 00:10:00.1 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=100, NumelOut=100, Timeout(ms)=600000) ran for "
    "600029 milliseconds before timing out.\n"
)


def diagnosed(folder: Path, dumps: dict[int, dict[str, Any]], **more: Any) -> Diagnosis:
    return read_logs([str(written(folder, dumps, **more))])


def first(diagnosis: Diagnosis) -> Cause:
    assert diagnosis.causes, "no cause"
    return diagnosis.causes[0]


def shown(cause: Cause) -> list[str]:
    return [event.text for event in cause.evidence]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["pickle", "json"])
def test_the_rank_that_never_entered_is_named(tmp_path: Path, version: str, form: str) -> None:
    ahead = dump([*STEPS, waits(size=100, retired=True)], version)
    found = diagnosed(tmp_path, {0: ahead, 1: dump(STEPS, version), 2: ahead}, form=form)
    cause = first(found)
    assert (cause.rule, cause.ranks, cause.confidence) == ("rank-fell-behind", (1,), "high")
    assert cause.severity == "error" and not found.healthy
    assert "has not entered collective 6" in cause.text and "train.py:85" in cause.text
    assert "record_id 4" in shown(cause)[0] and "train.py:84" in shown(cause)[0]
    assert found.story.files[cause.evidence[0].file].path.rpartition("_")[2].startswith("1")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "other",
    [waits("broadcast", 100), waits(size=50), waits(size=100, dtype="Half")],
    ids=["kind", "size", "dtype"],
)
def test_the_rank_that_calls_something_else_is_named(tmp_path: Path, version: str, other: Any) -> None:
    if version == "1.4" and other["dtype"] == "Half":
        pytest.skip("dumps before 2.0 have no types")
    usual = dump([*STEPS, waits(size=100)], version)
    cause = first(diagnosed(tmp_path, {0: usual, 1: usual, 2: dump([*STEPS, other], version), 3: usual}))
    assert (cause.rule, cause.ranks, cause.confidence) == ("collective-mismatch", (2,), "high")
    assert "collective 6 " in cause.text and len(cause.evidence) == 3


def test_a_call_left_out_is_said_where_the_next_calls_fit(tmp_path: Path) -> None:
    usual = [*STEPS, waits("broadcast", 3), waits(size=70), waits(size=71)]
    odd = [*STEPS, waits(size=70), waits(size=71)]
    cause = first(diagnosed(tmp_path, {0: dump(usual), 1: dump(odd), 2: dump(usual)}))
    assert cause.rule == "collective-mismatch" and cause.text.endswith("which rank 1 left out")


def test_a_path_that_is_not_utf_8_spoils_no_dump(tmp_path: Path) -> None:
    # A node with another locale: pickle's protocol 2 has the bytes of a name after their number.
    named = [call(frames=[{"name": "step", "filename": "modXXele.py", "line": 7}]), waits("broadcast", 3)]
    other = [named[0], waits("all_gather", 3)]
    for rank, calls in enumerate((named, other)):
        written_by = pickle.dumps(dump(calls), protocol=2).replace(b"modXXele", b"mod\xc3\x28ele")
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(written_by)
    assert first(read_logs([str(tmp_path)])).rule == "collective-mismatch"


@pytest.mark.parametrize("version", VERSIONS)
def test_healthy_dumps_give_no_cause(tmp_path: Path, version: str) -> None:
    found = diagnosed(tmp_path, {rank: dump(STEPS, version) for rank in range(4)}, age_s=300)
    assert found.causes == [] and found.healthy
    text = show.as_text(found, Style(io.StringIO()))
    assert "4 flight recorder dumps" in text


def test_a_running_job_dumped_rank_after_rank_is_no_hang(tmp_path: Path) -> None:
    later = dump([*STEPS, call(size=100), waits(size=101)])
    assert diagnosed(tmp_path, {0: dump(STEPS), 1: later, 2: later}).causes == []


def test_one_call_apart_with_nothing_that_tells_of_waiting_is_a_warning(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100)])
    found = diagnosed(tmp_path, {0: ahead, 1: dump(STEPS)})
    assert found.healthy and first(found).severity == "warning"
    assert "if the job hangs" in first(found).text


@pytest.mark.parametrize(
    ("age_s", "severity", "confidence"),
    [(0.05, "warning", "medium"), (40, "error", "medium"), (TIMED_OUT_S, "error", "high")],
)
def test_the_files_time_tells_how_long_they_waited(
    tmp_path: Path, age_s: float, severity: str, confidence: str
) -> None:
    ahead = dump([*STEPS, waits(size=100)])
    cause = first(diagnosed(tmp_path, {0: ahead, 1: dump(STEPS)}, age_s=age_s))
    assert (cause.rule, cause.severity, cause.confidence) == ("rank-fell-behind", severity, confidence)


def test_a_file_copied_days_later_tells_no_waiting(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100)])
    assert diagnosed(tmp_path, {0: ahead, 1: dump(STEPS)}, age_s=300_000).healthy


def test_what_the_dumps_and_the_lines_say_is_one_cause_with_both_evidences(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100)])
    written(tmp_path, {0: ahead, 1: dump(STEPS), 2: ahead})
    for rank in (0, 2):
        (tmp_path / f"rank{rank}.log").write_text(WATCHDOG.format(rank))
    (tmp_path / "rank1.log").write_text("step 5\n")
    found = read_logs([str(tmp_path)])
    cause = first(found)
    assert [c.rule for c in found.causes].count("rank-fell-behind") == 1
    assert (cause.rule, cause.ranks, cause.confidence) == ("rank-fell-behind", (1,), "high")
    files = {Path(found.story.files[e.file].path).name for e in cause.evidence}
    assert {"nccl_trace_rank_1", "rank0.log"} <= files


def test_who_waits_in_another_group_for_somebody_is_not_blamed(tmp_path: Path) -> None:
    world = dump([*STEPS, waits(size=100, retired=True)])
    in_pair = dump([*STEPS, call(size=3, group="2:tp"), waits(size=4, group="2:tp")])
    gone = dump([*STEPS, call(size=3, group="2:tp")])
    cause = first(diagnosed(tmp_path, {0: world, 1: world, 2: in_pair, 3: gone}))
    assert cause.rule == "rank-fell-behind" and cause.ranks == (3,)


def test_a_rank_that_stands_in_a_transfer_is_said_to_and_not_blamed_for_sure(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100, retired=True)])
    receives = dump([*STEPS, waits("recv 1<-0", 3, is_p2p=True, group="3:pp")])
    cause = first(diagnosed(tmp_path, {0: ahead, 1: receives, 2: ahead}))
    assert (cause.ranks, cause.confidence) == ((1,), "medium")
    assert "rank 1 is in recv 1<-0 [3] Float, train.py:85 of pp" in cause.text


def test_two_groups_entered_in_another_order_name_both(tmp_path: Path) -> None:
    one = dump([*STEPS, call(group="1:a"), call(group="2:b"), waits(group="1:a", retired=True)])
    other = dump([*STEPS, call(group="1:a"), call(group="2:b"), waits(group="2:b", retired=True)])
    cause = first(diagnosed(tmp_path, {0: one, 1: other}))
    assert (cause.rule, cause.ranks, cause.confidence) == ("collective-mismatch", (0, 1), "high")
    assert "rank 0 is in collective" in cause.text and "each waits for the other" in cause.text


def test_the_node_of_the_rank_is_taken_from_nccls_own_lines(tmp_path: Path) -> None:
    lines = [
        f"node{rank}:5:9 [0] NCCL INFO ncclCommInitRank comm 0x5 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 "
        "busId 1000 commId 0x7 - Init COMPLETE"
        for rank in range(2)
    ]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    cause = first(diagnosed(tmp_path, {0: dump([*STEPS, waits(size=100, retired=True)]), 1: dump(STEPS)}))
    assert cause.nodes == ("node1",)


def test_a_group_without_a_description_is_shown_by_its_number(tmp_path: Path) -> None:
    calls = [call(group="7:undefined") for _ in range(3)]
    ahead = dump([*calls, waits(group="7:undefined", retired=True)])
    assert "of group 7 (" in first(diagnosed(tmp_path, {0: ahead, 1: dump(calls)})).text


def test_a_rank_without_a_dump_is_said_as_not_seen(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100, retired=True)], ranks=range(5))
    found = diagnosed(tmp_path, {0: ahead, 1: dump(STEPS, ranks=range(5)), 2: ahead, 3: ahead})
    assert first(found).ranks == (1,) and first(found).text.endswith("no dump of rank 4")
    assert show.as_json(found)["flight_recorder"]["not_seen"] == [4]
    assert "not seen: rank 4" in show.as_text(found, Style(io.StringIO()))


def test_where_all_that_are_seen_wait_the_one_not_seen_is_named_without_being_sure(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100, retired=True)], ranks=range(4))
    cause = first(diagnosed(tmp_path, {0: ahead, 1: ahead, 3: ahead}))
    assert (cause.rule, cause.ranks, cause.confidence) == ("rank-fell-behind", (2,), "low")


def test_one_dump_alone_tells_what_to_collect_and_blames_nobody(tmp_path: Path) -> None:
    cause = first(diagnosed(tmp_path, {0: dump([*STEPS, waits(size=100, retired=True)])}))
    assert (cause.rule, cause.ranks, cause.confidence) == ("rank-fell-behind", (), "low")
    assert "collect those of all ranks" in cause.text


def test_one_dump_of_a_healthy_rank_gives_no_cause(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, {0: dump(STEPS)}, age_s=300).causes == []


def test_all_ranks_waiting_in_one_call_until_the_time_out_is_a_stall(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100, retired=True)], ranks=range(2))
    assert first(diagnosed(tmp_path, {0: ahead, 1: ahead})).rule == "collective-stalled"


def test_a_dump_of_an_earlier_run_is_left_out_and_said(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100, retired=True)])
    earlier = dump([*STEPS[:3]], begun_ns=BEGUN_NS - 3_600_000_000_000)
    found = diagnosed(tmp_path, {0: ahead, 1: ahead, 2: earlier})
    assert 2 not in first(found).ranks or first(found).confidence == "low"
    (left_out,) = show.as_json(found)["flight_recorder"]["left_out"]
    assert left_out["path"].endswith("rank_2") and "another time" in left_out["reason"]


def test_of_two_runs_the_newer_is_judged(tmp_path: Path) -> None:
    ahead = dump([*STEPS, waits(size=100, retired=True)])
    written(tmp_path / "new", {0: ahead, 1: dump(STEPS)})
    old_ns = BEGUN_NS - 86_400_000_000_000
    old = dump([*STEPS, waits(size=100, retired=True)], begun_ns=old_ns)
    written(tmp_path / "old", {0: dump(STEPS, begun_ns=old_ns), 1: old})
    found = read_logs([str(tmp_path)])
    assert first(found).ranks == (1,)
    assert all("/old/" in one["path"] for one in show.as_json(found)["flight_recorder"]["left_out"])


def test_dumps_of_one_run_in_a_folder_a_node_are_joined(tmp_path: Path) -> None:
    written(tmp_path / "node0", {0: dump([*STEPS, waits(size=100, retired=True)])})
    written(tmp_path / "node1", {1: dump(STEPS)})
    assert first(read_logs([str(tmp_path)])).ranks == (1,)


def test_a_ring_that_lost_where_they_parted_lowers_confidence(tmp_path: Path) -> None:
    usual = dump([*STEPS, waits(size=100)], lost=5)
    cause = first(diagnosed(tmp_path, {0: usual, 1: dump([*STEPS, waits("broadcast", 9)], lost=5), 2: usual}))
    assert (cause.rule, cause.confidence) == ("collective-mismatch", "medium")
    assert "earlier records are lost" in cause.text


def test_a_rank_whose_ring_lost_a_groups_entries_is_not_said_to_have_begun_none(tmp_path: Path) -> None:
    in_group = [waits(size=4, group="7:tp", retired=True)]
    worn = dump([call(size=4, group="7:tp"), *STEPS], lost=1)
    assert diagnosed(tmp_path, {0: dump([*STEPS, *in_group]), 1: worn}).causes == []


def test_transfers_counted_as_collectives_blame_nobody_by_themselves(tmp_path: Path) -> None:
    send = call("send 0->1", 3, is_p2p=True)
    shifted = dump([*STEPS, send, waits(size=100, burnt=1)])
    assert diagnosed(tmp_path, {0: dump([*STEPS, waits(size=100)]), 1: shifted}).causes == []


def test_another_shape_of_as_many_elements_is_the_same_call(tmp_path: Path) -> None:
    two = {0: dump([*STEPS, call(size=[2, 6])]), 1: dump([*STEPS, call(size=[12])])}
    assert diagnosed(tmp_path, two).causes == []


def test_a_packed_dump_and_one_named_alone_are_read(tmp_path: Path) -> None:
    written(tmp_path, {0: dump([*STEPS, waits(size=100, retired=True)]), 1: dump(STEPS)})
    paths = []
    for rank in range(2):
        path = tmp_path / f"nccl_trace_rank_{rank}"
        packed = Path(f"{path}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        paths.append(str(packed))
    assert first(read_logs(paths)).ranks == (1,)


def test_json_that_is_no_dump_stays_out_of_a_folder_of_logs(tmp_path: Path) -> None:
    written(tmp_path, {0: dump(STEPS), 1: dump(STEPS)}, form="json")
    (tmp_path / "run.json").write_text('{"entries": [1, 2], "outcome": "ok"}')
    (tmp_path / "job.log").write_text("step 1\n")
    found = read_logs([str(tmp_path)])
    assert [Path(i.path).name for i in found.story.files if i.is_log] == ["job.log"]
    assert len(show.as_json(found)["flight_recorder"]["dumps"]) == 2 and not found.unreadable


def test_a_torn_dump_is_said_to_be_unreadable_and_the_others_are_judged(tmp_path: Path) -> None:
    written(tmp_path, {rank: dump([*STEPS, waits(size=100, retired=True)]) for rank in range(2)})
    whole = (tmp_path / "nccl_trace_rank_0").read_bytes()
    (tmp_path / "nccl_trace_rank_2").write_bytes(whole[: len(whole) // 2])
    found = read_logs([str(tmp_path)])
    assert [Path(u.path).name for u in found.unreadable] == ["nccl_trace_rank_2"]
    assert "not a flight recorder dump" in found.unreadable[0].reason


def test_only_unreadable_dumps_is_an_error_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02}q\x00X\x07\x00\x00\x00entries")
    with pytest.raises(LogsError, match="not a flight recorder dump"):
        read_logs([str(tmp_path)])


def test_a_dump_that_comes_while_logs_are_followed_is_told(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("step 1\n")
    written(tmp_path, {0: dump([*STEPS, waits(size=100, retired=True)]), 1: dump(STEPS)})
    story, causes = next(changes([str(tmp_path)], poll_s=0.01))
    assert causes[0].rule == "rank-fell-behind" and causes[0].ranks == (1,)
    assert story.files[causes[0].evidence[0].file].path.endswith("nccl_trace_rank_1")


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/ringup-dump-ran",)


def nested_tuples() -> bytes:
    """A key whose hash takes two to the 60th steps."""
    data = b"\x80\x02}(X\x07\x00\x00\x00entries]X\x07\x00\x00\x00version)q\x00"
    for n in range(60):
        data += b"h%ch%c\x86q%c" % (n, n, n + 1)
    return data + b"Nu."


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"version": "2.10", "entries": [Runs()]}, protocol=2),
        nested_tuples(),
        b"\x80\x02}r\xff\xff\xff\x7fX\x07\x00\x00\x00entries]s.",
        b"\x80\x04\x8d" + b"\xff" * 8 + b"entries",
        b"\x80\x02" + b"]" * 2_000_000 + b"entries.",
        b"\x80\x02(" * 1000 + b"entries.",
        b'{"version": "2.10", "pg_config": ' + b"[" * 5_000_000,
    ],
    ids=["object", "hash", "memo", "length", "lists", "marks", "json"],
)
def test_a_hostile_dump_is_refused_at_once(data: bytes) -> None:
    try:
        assert read_dump(data).entries == ()
    except FlightError:
        pass
    assert not Path("/tmp/ringup-dump-ran").exists()


def test_a_text_of_lists_inside_lists_is_not_written_out() -> None:
    inner: list[Any] = ["x" * 10]
    for _ in range(60):
        inner = [inner, inner]
    data = pickle.dumps({"version": inner, "entries": [{"profiling_name": inner, "process_group": inner}]})
    assert read_dump(data).entries == ()


def test_names_in_a_dump_are_harmless_on_a_terminal(tmp_path: Path) -> None:
    bad = "\x1b]0;owned\x07"
    ahead = dump([*STEPS, waits(f"all_reduce{bad}", 100, retired=True, group=f"0:{bad}")])
    found = diagnosed(tmp_path, {0: ahead, 1: dump(STEPS), 2: dump([*STEPS, waits(size=4, retired=True)])})
    assert "\x1b" not in show.as_text(found, Style(io.StringIO()), verbose=True)
    assert "\x1b" not in json.dumps(show.as_json(found))


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, dropped, doubled, cut."""
    torn = bytearray(data)
    for _ in range(chance.randint(1, 12)):
        at = chance.randrange(len(torn))
        match chance.randint(0, 3):
            case 0:
                torn[at] = chance.randrange(256)
            case 1:
                del torn[at : at + chance.randint(1, 30)]
            case 2:
                torn[at:at] = torn[at : at + chance.randint(1, 30)]
            case _:
                torn[at:at] = bytes(chance.choices(range(256), k=4))
        if not torn:
            return b""
    return bytes(torn if chance.random() < 0.8 else torn[: chance.randrange(len(torn))])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([pickle.dumps, json.dumps]))
def test_a_mutated_dump_is_read_or_refused_without_an_exception(
    seed: int, form: Callable[[Any], Any]
) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(3):
            data = form(dump([*STEPS, waits(size=100, retired=True)][: 5 + rank % 2]))
            whole = data if isinstance(data, bytes) else data.encode()
            (Path(folder) / f"nccl_trace_rank_{rank}").write_bytes(mutated(whole, chance))
        try:
            found = read_logs([folder])
        except LogsError:
            return
        json.dumps(show.as_json(found))
        show.as_text(found, Style(io.StringIO()), verbose=True)


JOB = """\
import os, sys, time, torch, torch.distributed as dist
torch._inductor = None  # for lines of source every rank would load the compiler, which takes seconds
from torch._C._distributed_c10d import _dump_fr_trace
folder = sys.argv[1]

def last(mode, rank):
    # Begun and not waited for: what a dump shows while the job hangs.
    if mode == "skip" and rank != 1:
        return dist.all_reduce(torch.ones(100), async_op=True)
    if mode == "kind":
        if rank == 1:
            return dist.broadcast(torch.ones(100), 1, async_op=True)
        return dist.all_reduce(torch.ones(100), async_op=True)
    if mode == "shape":
        until = time.monotonic() + 100  # Gloo ends the process that gets more than it asked for
        while rank != 1 and not os.path.exists(f"{folder}/shape/nccl_trace_rank_1"):
            assert time.monotonic() < until
            time.sleep(0.01)
        return dist.all_reduce(torch.ones(50 if rank == 1 else 100), async_op=True)

def work(rank, mode):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{mode}", rank=rank, world_size=3)
    for n in range(4):
        dist.all_reduce(torch.ones(8 + n))
    try:
        begun = last(mode, rank)
    except RuntimeError:
        pass  # another rank has gone already; the call is recorded all the same
    path = f"{folder}/{mode}/nccl_trace_rank_{rank}"
    with open(path + ".part", "wb") as file:
        file.write(_dump_fr_trace(True, True, False))
    os.rename(path + ".part", path)
    os._exit(0)  # before a work that never ends is taken apart, which waits for it

ranks = []
for mode in ("skip", "kind", "shape", "healthy"):
    os.mkdir(f"{folder}/{mode}")
    for rank in range(3):
        pid = os.fork()
        if not pid:
            try:
                work(rank, mode)
            finally:
                os._exit(0)
        ranks.append(pid)
for pid in ranks:
    os.waitpid(pid, 0)
"""


@pytest.mark.slow
@pytest.mark.torch
def test_dumps_of_this_torch_tell_a_rank_that_skipped_or_called_otherwise(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path)]
    subprocess.run(command, check=True, timeout=400, capture_output=True)
    for path in tmp_path.glob("[ks]*/nccl_trace_rank_*"):  # not those of the healthy run
        hung_s = path.stat().st_mtime + 60  # as if it had been asked for a minute later
        os.utime(path, (hung_s, hung_s))
    skip, kind, shape, healthy = (
        read_logs([str(tmp_path / mode)]).causes for mode in ("skip", "kind", "shape", "healthy")
    )
    assert (skip[0].rule, skip[0].ranks) == ("rank-fell-behind", (1,)) and skip[0].severity == "error"
    assert "all_reduce [100] Float, job.py:" in skip[0].text
    assert (kind[0].rule, kind[0].ranks) == ("collective-mismatch", (1,))
    assert "is broadcast [100] Float on rank 1 (job.py:" in kind[0].text
    assert (shape[0].rule, shape[0].ranks) == ("collective-mismatch", (1,)) and "[50]" in shape[0].text
    assert healthy == []
