"""`ringup test` and `ringup bench` on nodes played here, and what is judged from their figures."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import bench, collective, request
from ringup.cli.commands import parser_for
from ringup.collective_tests import CorrectnessReport, LinkRate, Pair, Row
from ringup.collective_tests import bandwidth as judging
from ringup.collective_tests.link_rate import carries, link_rate, payload_share
from ringup.collective_tests.rank_records import number, numbers, parse
from ringup.model import Bond, Cluster, Job, RdmaPort
from ringup.output.console import Style
from ringup.planning import ExpectedTransport, NodePlan, Plan
from ringup.planning.network import decide
from tests.clusters import cluster, interface, node

PLANTS = Path(__file__).parent / "jobs" / "plants"
PAYLOAD = Path(judging.__file__).parents[2]

trains = [pytest.mark.torch, pytest.mark.slow]


def prove(tmp_path: Path, *words: str, plant: str = "") -> tuple[int, dict[str, Any], str]:
    """`ringup test|bench` here; exit code, JSON and stderr."""
    options = ["--env", f"RINGUP_PLANT={plant}", "--env", f"PYTHONPATH={PLANTS}"]
    command = [
        sys.executable,
        "-m",
        "ringup",
        *words,
        *options,
        "--json",
        "--log-dir",
        str(tmp_path / "logs"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=dict(os.environ))
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def test_words(*more: str, nodes: int = 2, nproc: int = 2) -> list[str]:
    return ["test", "--local", str(nodes), "--nproc", str(nproc), "--backend", "gloo", *more]


test_words.__test__ = False  # type: ignore[attr-defined]


class TestOfRanks:
    pytestmark = trains

    def test_healthy_ranks_are_all_right(self, tmp_path: Path) -> None:
        code, told, _ = prove(tmp_path, *test_words())
        assert (code, told["ok"]) == (0, True)
        assert [(r["rank"], r["node"], r["local_rank"]) for r in told["ranks"]] == [
            (0, "127.0.0.2", 0), (1, "127.0.0.2", 1), (2, "127.0.0.3", 0), (3, "127.0.0.3", 1),
        ]  # fmt: skip
        assert all(r["device"] == "cpu" and r["ok"] and r["error"] is None for r in told["ranks"])

    @pytest.mark.parametrize(("fault", "nproc", "rank"), [("wrong-input", 3, 4), ("wrong-output", 2, 2)])
    def test_the_rank_that_makes_results_wrong_is_found(
        self, tmp_path: Path, fault: str, nproc: int, rank: int
    ) -> None:
        code, told, _ = prove(tmp_path, *test_words(nproc=nproc), plant=f"{rank}:{fault}")
        assert (code, told["ok"], told["suspects"]) == (1, False, [rank])
        assert [r["rank"] for r in told["ranks"] if r["is_cause"]] == [rank]
        assert "all_reduce of" in told["ranks"][rank]["error"] and "wanted" in told["ranks"][rank]["error"]

    def test_two_ranks_alone_cannot_be_told_apart(self, tmp_path: Path) -> None:
        code, told, _ = prove(tmp_path, *test_words(nodes=1), plant="1:wrong-input")
        assert (code, told["suspects"]) == (1, [0, 1])

    def test_the_rank_that_never_arrives_is_named_with_its_node(self, tmp_path: Path) -> None:
        code, told, _ = prove(tmp_path, *test_words("--wait", "60", nproc=1), plant="1:never-arrives")
        assert (code, told["ok"]) == (1, False)
        causes = [r for r in told["ranks"] if r["is_cause"]]
        assert [(r["rank"], r["node"]) for r in causes] == [(1, "127.0.0.3")]
        assert causes[0]["error"].startswith("did not arrive within 60 s; it never responded")
        assert told["ranks"][0]["error"] == "not tested: waited for rank 1"

    def test_an_interrupted_test_blames_no_rank(self, tmp_path: Path) -> None:
        words = test_words("--anyway", "--env", f"PYTHONPATH={PLANTS}", nproc=1)
        words += ["--env", "RINGUP_PLANT=1:never-arrives"]
        command = [sys.executable, "-m", "ringup", *words, "--log-dir", str(tmp_path / "logs")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as child:
            assert child.stderr and child.stdout
            seen = [*takewhile(lambda line: "ranks started" not in line, child.stderr)]
            assert child.poll() is None, seen
            child.send_signal(signal.SIGINT)
            said = child.stdout.read()
            child.stderr.read()
        assert (child.returncode, said) == (130, "interrupted: not every rank was tested\n")

    def test_a_gpu_that_torch_does_not_see_is_named(self, tmp_path: Path) -> None:
        words = ["nccl" if w == "gloo" else w for w in test_words(nodes=1, nproc=1)]
        code, told, _ = prove(tmp_path, *words, "--anyway", "--env", "CUDA_VISIBLE_DEVICES=")
        assert code == 1
        assert "sees no CUDA device here" in told["ranks"][0]["error"]

    @pytest.mark.parametrize(
        ("command", "fault", "words"),
        [
            ("bench", "dies", "killed by SIGSEGV"),
            ("test", "stops", "stopped responding: the others waited for it"),
        ],
    )
    def test_a_rank_lost_in_the_middle_is_named_and_no_other(
        self, tmp_path: Path, command: str, fault: str, words: str
    ) -> None:
        # A rank that stops is also reported as a hang, which takes two looks: the limit leaves time for them.
        more = ["--limit", "30" if fault == "stops" else "20"]
        more += ["--min", "64K", "--max", "256K"] if command == "bench" else []
        words_of = test_words(*more, nodes=3, nproc=1)[1:]
        code, told, err = prove(tmp_path, command, *words_of, plant=f"2:{fault}")
        assert code != 0, err
        ranks = told["failed"] if command == "bench" else told["ranks"]
        (cause,) = [r for r in ranks if r["is_cause"]]
        assert (cause["rank"], cause["node"]) == (2, "127.0.0.4")
        assert words in cause["error"]
        assert all(r["error"].startswith("not tested: ") for r in ranks if r["rank"] != 2)
        if fault == "stops":
            assert "rank 2 (127.0.0.4) is missing from all_reduce" in err

    def test_a_rank_with_bad_memory_is_named_without_a_search(self, tmp_path: Path) -> None:
        code, told, _ = prove(tmp_path, *test_words(nodes=1, nproc=3), plant="1:bad-memory")
        assert (code, told["suspects"]) == (1, [1])
        assert told["ranks"][1]["error"].startswith("64 MiB of its memory, written and read back: element ")

    def test_where_the_search_for_the_wrong_rank_fails_nobody_is_named(self, tmp_path: Path) -> None:
        words = test_words("--limit", "20", nodes=1, nproc=3)
        code, told, _ = prove(tmp_path, *words, plant="1:wrong-then-breaks")
        assert (code, told["suspects"]) == (1, [])
        assert not any(r["is_cause"] for r in told["ranks"])
        (note,) = told["notes"]
        assert note.startswith(
            "a group of ranks failed during the search for the faulty rank: the faulty rank is unknown"
        )

    @pytest.mark.parametrize(
        ("command", "fault", "blamed"),
        [
            ("test", "out-of-memory", ["OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"]),
            ("bench", "out-of-memory", ["OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"]),
            ("test", "loses-its-peer", []),
        ],
    )
    def test_ranks_that_still_wait_are_not_blamed_for_one_that_has_failed(
        self, tmp_path: Path, command: str, fault: str, blamed: list[str]
    ) -> None:
        # Longer than a rank waits for the others' answer once it knows that they have failed, too.
        more = ["--limit", "30"] + (["--min", "64K", "--max", "64K"] if command == "bench" else [])
        code, told, _ = prove(tmp_path, command, *test_words(*more, nodes=1, nproc=3)[1:], plant=f"1:{fault}")
        assert code == 1
        ranks = told["failed"] if command == "bench" else told["ranks"]
        causes = [(r["rank"], r["error"]) for r in ranks if r["is_cause"]]
        assert causes == [(1, words) for words in blamed], told

    def test_who_waits_in_nccls_set_up_is_not_blamed_for_the_rank_whose_nccl_fails(
        self, tmp_path: Path
    ) -> None:
        code, told, _ = prove(
            tmp_path, *test_words("--limit", "20", nodes=1, nproc=3), plant="all:set-up-fails"
        )
        assert code == 1
        assert [(r["rank"], r["error"]) for r in told["ranks"] if r["is_cause"]] == [
            (1, "DistBackendError: NCCL error in: NCCLUtils.cpp:93, unhandled cuda error")
        ]

    def test_a_wrong_result_that_does_not_come_again_is_nobodys_fault(self, tmp_path: Path) -> None:
        code, told, _ = prove(tmp_path, *test_words(nodes=1, nproc=3), plant="1:wrong-once")
        assert (code, told["suspects"]) == (1, [])
        assert told["notes"] == ["no smaller group of ranks gave a wrong result: the faulty rank is unknown"]
        assert not any(r["is_cause"] for r in told["ranks"])


class TestOfRates:
    pytestmark = trains

    def test_every_collective_is_measured_and_right(self, tmp_path: Path) -> None:
        words = ["bench", "--local", "2", "--nproc", "1", "--backend", "gloo", "--op", "all"]
        code, told, err = prove(tmp_path, *words, "--min", "64K", "--max", "64K")
        assert code == 0, err
        rows = {told["op"]: told["rows"], **{m["op"]: m["rows"] for m in told["more"]}}
        assert list(rows) == [
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "broadcast",
            "all_to_all",
            "send_recv",
        ]
        for of in rows.values():
            assert [r["size_bytes"] for r in of] == [65536]
            assert all(r["correct"] and r["time_us"] > 0 for r in of)
        assert (told["verdict"], told["expected_busbw_gbyte_s"]) == ("not_judged", None)

    def test_a_wrong_sum_fails_the_measurement(self, tmp_path: Path) -> None:
        words = ["bench", "--local", "1", "--nproc", "2", "--backend", "gloo", "--min", "64K", "--max", "64K"]
        code, told, _ = prove(tmp_path, *words, plant="1:wrong-input")
        assert code == 1
        assert [r["correct"] for r in told["rows"]] == [False]

    def test_a_collective_that_times_out_fails_the_measurement(self, tmp_path: Path) -> None:
        words = ["bench", "--local", "1", "--nproc", "2", "--backend", "gloo", "--min", "64K", "--max", "64K"]
        words += ["--limit", "20"]  # the other rank waits so long
        code, told, _ = prove(tmp_path, *words, plant="1:times-out")
        assert (code, told["rows"], told["verdict"]) == (1, [], "not_judged")


@pytest.mark.torch
@pytest.mark.slow
def test_a_node_without_cpu_time_is_not_called_slow(tmp_path: Path) -> None:
    words = ["bench", "--local", "3", "--nproc", "1", "--backend", "gloo", "--min", "1M", "--max", "1M"]
    code, told, err = prove(tmp_path, *words, plant="2:no-cpu")
    assert (code, told["slow"]) == (0, []), err
    assert any(pair["stage"] == "again" for pair in told["pairs"])
    assert any("127.0.0.4 was slower than others" in note for note in told["notes"])


def with_played_torch(tmp_path: Path, program: str) -> str:
    """What a program prints that works with `world` where torch has one visible GPU."""
    fake = tmp_path / "torch"
    (fake / "distributed").mkdir(parents=True)
    (fake / "distributed" / "__init__.py").write_text("")
    (fake / "__init__.py").write_text(
        "class cuda:\n is_available = staticmethod(lambda: True)\n device_count = staticmethod(lambda: 1)\n"
    )
    program = f"from ringup.agent.collective import world as w\n{program}"
    path = f"{PAYLOAD}:{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": path}
    )
    return done.stdout or done.stderr


def test_the_device_of_a_local_rank_must_be_visible(tmp_path: Path) -> None:
    program = "try:\n w.device_of('nccl', 1)\nexcept w.Refused as e: print(e)"
    assert with_played_torch(tmp_path, program) == "no CUDA device 1 for local rank 1: 1 visible\n"


def test_ranks_share_what_their_container_may_still_take(tmp_path: Path) -> None:
    program = (
        "own = w.World.__new__(w.World)\nown.local_size, own.device = 2, type('', (), {'type': 'cpu'})\n"
    )
    program += "for left in 1000, None:\n w.machine.memory_left = lambda root: left\n print(own.free_bytes())"
    limited, unlimited = with_played_torch(tmp_path, program).split()
    assert int(limited) == 500 < int(unlimited)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["test", "--from", "/dev/null"], "--from contacts none"),
        (["test", "--nproc", "two"], "--nproc: 'two' is not a count of ranks"),
        (["bench", "--min", "1M", "--max", "1K"], "--max is less than --min"),
        (["bench", "--max", "1Q"], "'1Q' is not a size from 4 to 64G"),
        (["bench", "--plot", "rate.gif"], "neither .png nor .svg"),
        (["test", "-H", "n1", "n2"], "-H node0,node1 -- torchrun"),
        (["test", "--", "torchrun", "--nnodes=2", "train.py"], "only this machine is known"),
    ],
)
def test_what_cannot_be_meant_is_said_before_any_node_is_reached(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ringup", *words], capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and "checked" not in done.stderr


@pytest.mark.parametrize("mode", ["test", "bench"])
def test_a_start_line_names_the_nodes_ranks_and_variables_and_is_not_started(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["A=1", "accelerate", "launch", "--num_processes", "6", "--main_process_port", "29511", "train.py"]
    args = parser_for(mode).read(["--local", "2", "--", *line])
    collective.take_over(mode, args)
    job = request.job_from(args)
    assert (job.nproc, job.port, job.env["A"], job.launcher, job.script) == (3, 29511, "1", "torchrun", "")
    assert f"the {mode} runs in place of train.py\n" in capsys.readouterr().err


# What is judged from figures


def rows(*busbw: float) -> list[Row]:
    return [Row("all_reduce", 1024 << i, 1.0, b, b, True, 20, (), 1.0) for i, b in enumerate(busbw)]


TEN = LinkRate(10.0, "n0 eth0, 10 Gbit/s", payload_share(1500))
EXPECTED = 10 / 8 * TEN.payload_share


def test_a_plateau_above_half_of_the_link_is_ok() -> None:
    assert judging.judge(rows(0.1, 0.5, 0.7, 0.71, 0.72), EXPECTED, TEN, ())[0] == "ok"


@pytest.mark.parametrize(
    ("busbw", "more", "found"),
    [
        ((1.0, 2.2, 2.3, 0.4), {}, "from 2.3 GB/s at 4 MiB to 0.4 GB/s at 8 MiB"),
        (
            (1.0, 2.3, 0.4, 0.3),
            {"iterations": 1},
            "from 2.3 GB/s at 2 MiB to 0.4 GB/s at 4 MiB, 0.3 GB/s at 8",
        ),
        ((1.0, 2.3, 0.9, 2.4), {}, "from 2.3 GB/s at 2 MiB to 0.9 GB/s at 4 MiB"),
        ((1.0, 2.2, 2.3, 0.4), {"iterations": 1}, ""),
        ((1.0, 2.2, 2.3, 0.4), {"time_us": 1.0}, ""),
        ((1.0, 2.2, 2.3, 0.9), {"starved": 0.6}, ""),  # the ranks had no CPU time
        ((1.0, 2.2, 1.4, 2.3), {}, ""),  # another algorithm
        ((2.3, 2.2, 2.0, 1.9), {}, ""),
    ],
)
def test_bandwidth_that_falls_at_large_sizes_is_reported(
    busbw: tuple[float, ...], more: dict[str, Any], found: str
) -> None:
    slow = {"time_us": 5000.0, **more}
    made = [replace(row, size_bytes=row.size_bytes << 10, **slow) for row in rows(*busbw)]
    texts = judging.drops(made)
    assert len(texts) == bool(found) and found in "".join(texts)
    assert judging.drops([replace(row, size_bytes=row.size_bytes >> 10) for row in made]) == []


def test_a_plateau_below_half_of_the_link_is_slow_and_says_the_share() -> None:
    verdict, because = judging.judge(rows(0.1, 0.3, 0.3, 0.3), EXPECTED, TEN, ())
    assert verdict == "slow"
    assert "25 % of what n0 eth0, 10 Gbit/s can carry" in because


def test_a_rate_that_still_rises_is_not_judged_slow() -> None:
    assert judging.judge(rows(0.1, 0.2, 0.4), EXPECTED, TEN, ())[0] == "not_judged"


def test_a_rate_above_the_link_is_not_judged() -> None:
    assert judging.judge(rows(0.1, 5.0, 5.0, 5.0), EXPECTED, TEN, ())[0] == "not_judged"


def test_an_unknown_link_is_not_judged_and_says_why() -> None:
    unknown = LinkRate(None, "the rate of n0 eth0 (veth) cannot be read")
    assert judging.judge(rows(1, 1, 1), None, unknown, ()) == ("not_judged", unknown.source)


@pytest.mark.parametrize(
    ("op", "nproc", "wanted"),
    [
        ("all_reduce", 8, 100.0),
        ("all_gather", 1, 100.0),
        ("all_to_all", 1, 100.0),
        ("all_to_all", 8, 23.4375),
    ],
)
def test_what_a_link_carries_depends_on_the_operation_and_the_ranks_behind_it(
    op: str, nproc: int, wanted: float
) -> None:
    # 16 ranks, 8 a node: each node sends 8 x 8 of 16 parts, the bus bandwidth counts 15 of 16 once.
    nodes = tuple(
        replace(n, nproc=nproc, first_rank=i * nproc) for i, n in enumerate(plan_of("n0", "n1").nodes)
    )
    planned = replace(plan_of("n0", "n1"), nodes=nodes, world_size=2 * nproc)
    assert carries(LinkRate(800.0, "two links"), planned, op) == pytest.approx(wanted)


def test_a_send_over_one_of_several_cards_is_not_judged() -> None:
    eight = LinkRate(3200.0, "n0 mlx5_0, ...", over="rdma", devices=8)
    assert carries(eight, plan_of("n0", "n1"), "send_recv") is None
    verdict, because = judging.judge([replace(rows(40.0)[0], op="send_recv")], None, eight, ())
    assert (verdict, because) == (
        "not_judged",
        "send_recv uses one of 8 cards a node, which one is not known",
    )


@pytest.mark.parametrize(
    ("backend", "op", "verdict"),
    [
        ("gloo", "reduce_scatter", "not_judged"),
        ("gloo", "all_reduce", "slow"),
        ("nccl", "reduce_scatter", "slow"),
    ],
)
def test_a_link_is_not_called_slow_by_what_gloo_does_not_fill_it_with(
    backend: str, op: str, verdict: str
) -> None:
    row = {"kind": "row", "op": op, "size_bytes": 1, "busbw_gbyte_s": 0.46 * EXPECTED, "correct": True}
    found = judging.report(plan_of("n0", "n1"), {0: [{**row, "rank": 0}] * 4}, TEN, backend, [op], {})
    assert found.verdict == verdict


def pair(a: str, b: str, speed: float, starved: float = 0.0, stage: str = "") -> Pair:
    return Pair((a, b), speed, starved, stage)


def named(*pairs: Pair) -> list[str]:
    return [slow.node for slow in judging.slow_nodes(pairs)[0]]


FAST = (pair("a", "b", 1.0), pair("a", "c", 0.98))


def test_the_node_that_is_slow_with_both_partners_is_named() -> None:
    assert named(*FAST, pair("c", "d", 0.1), pair("b", "d", 0.1), pair("a", "d", 0.1)) == ["d"]


def test_a_node_met_once_is_not_named() -> None:
    assert named(pair("a", "b", 1.0), pair("a", "c", 0.1), pair("b", "d", 1.0)) == []


def test_a_node_that_met_only_a_slow_one_beside_is_not_named() -> None:
    met = [pair("a", "b", 0.4), pair("c", "d", 0.01), pair("a", "c", 0.01), pair("b", "d", 1.2)]
    assert named(*met) == []


def test_equal_nodes_are_not_slow() -> None:
    met = [pair("a", "b", 1.0), pair("c", "d", 0.9), pair("a", "c", 0.95), pair("b", "d", 1.0)]
    assert named(*met) == []


def test_a_node_whose_ranks_had_no_cpu_time_is_not_called_slow_and_that_is_said() -> None:
    met = (*FAST, pair("c", "d", 0.1, 0.9), pair("b", "d", 0.2, 0.8), pair("a", "d", 0.2, 0.8, "again"))
    found, unsure = judging.slow_nodes(met)
    assert found == ()
    assert unsure == [
        "d was slower than others (0.2 GB/s, not 1), but the ranks had no CPU time for up to 90% of that: "
        "measure again on idle nodes"
    ]


@pytest.mark.parametrize(("again", "nodes"), [(0.3, ["d"]), (0.95, [])])
def test_a_slow_card_is_named_on_a_busy_machine_when_it_shows_in_spite_of_it_and_once_more(
    again: float, nodes: list[str]
) -> None:
    met = (*FAST, pair("c", "d", 0.1, 0.4), pair("b", "d", 0.1, 0.4), pair("a", "d", 0.1, again, "again"))
    assert named(*met) == nodes


def test_who_keeps_up_with_healthy_pairs_of_the_same_moment_is_not_named() -> None:
    # The first pair was measured in a quiet moment.
    met = [pair("a", "b", 1.0), pair("c", "d", 0.01), pair("a", "c", 0.01), pair("b", "d", 0.5)]
    met += [pair("a", "d", 0.5), pair("b", "c", 0.01)]
    assert named(*met) == ["c", "d"]
    met += [pair("a", "d", 0.5, stage="again"), pair("b", "c", 0.01, stage="again")]
    assert named(*met, pair("a", "b", 0.55, stage="again")) == ["c"]


def test_who_was_not_measured_again_is_not_compared_with_those_who_were() -> None:
    met = [pair("a", "b", 0.5), pair("c", "d", 0.01), pair("a", "c", 0.5), pair("b", "d", 0.01)]
    met += [pair("a", "d", 0.01, stage="again"), pair("b", "c", 1.0, stage="again")]
    assert named(*met) == ["d"]


def test_a_rate_reached_without_cpu_time_is_not_judged_slow() -> None:
    starved = [replace(row, starved=0.6) for row in rows(0.1, 0.3, 0.3, 0.3)]
    verdict, because = judging.judge(starved, EXPECTED, TEN, (), True)
    assert verdict == "not_judged" and "the ranks had no CPU time for up to 60% of that" in because
    still_slow = [replace(row, starved=0.3) for row in starved]
    assert judging.judge(still_slow, EXPECTED, TEN, ())[0] == "slow"


def plan_of(*nodes: str) -> Plan:
    planned = tuple(NodePlan(n, i, 1, i, "eth0", "", (), {}) for i, n in enumerate(nodes))
    return Plan("r", Job(), planned, (), "", 29500, len(nodes))


def test_lost_packets_are_named_beside_a_slow_rate() -> None:
    row = {
        "kind": "row",
        "op": "all_reduce",
        "size_bytes": 1,
        "busbw_gbyte_s": 0.1,
        "correct": True,
        "rank": 0,
    }
    told = {0: [row] * 4, 1: [{"kind": "tcp", "segments": 10000, "retransmitted": 400, "rank": 1}]}
    found = judging.report(plan_of("n0", "n1"), told, TEN, "gloo", ["all_reduce"], {})
    assert found.verdict == "slow" and "packets are lost" in found.because
    assert found.notes == ("n1: 4.0 % of its TCP segments retransmitted: packets are lost",)


def test_what_was_not_measured_to_the_end_is_not_judged() -> None:

    line = {"kind": "row", "op": "all_reduce", "size_bytes": 1, "busbw_gbyte_s": 0.1, "correct": True}
    told = {0: [{**line, "rank": 0}] * 4}
    plan = plan_of("n0", "n1")
    assert judging.report(plan, told, TEN, "gloo", ["all_reduce"], {}).verdict == "slow"
    found = judging.report(plan, told, TEN, "gloo", ["all_reduce"], {}, is_whole=False)
    assert (found.verdict, found.because) == ("not_judged", "not measured to the end")
    said = bench.last_lines("interrupted", found, CorrectnessReport((), ()), Style(io.StringIO()))
    assert said == ["interrupted before the measurement finished"]
    assert len(bench.last_lines("ok", found, CorrectnessReport((), ()), Style(io.StringIO()))) == 1


def test_a_straggling_rank_is_told() -> None:
    row = Row("all_reduce", 1, 1.0, 1.0, 1.0, True, 20, (10.0, 10.0, 20.0, 10.0), 1.0)
    assert judging.stragglers([row] * 5) == [
        "rank 2 took over 1.25 times the ranks' median in 5 of the 5 largest sizes"
    ]
    busy = replace(row, waited_us=(0.0, 0.0, 12.0, 0.0))
    assert judging.stragglers([busy] * 5)[0].endswith("; it waited for a CPU for 60% of the time")


@pytest.mark.parametrize(
    "text", ["@ringup {", "@ringup 1", '@ringup {"kind": 3}', "@ringup " + "[" * 100000, "x"]
)
def test_hostile_lines_are_none_of_ours(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("figure", ["9" * 400, "NaN", "Infinity", "[1]", "true"])
def test_a_figure_that_is_no_number_counts_as_none(figure: str) -> None:
    line = parse(f'@ringup {{"kind": "x", "a": {figure}, "b": [1, {figure}]}}')
    assert line and (number(line, "a"), numbers(line, "b")) == (0.0, [1.0])


# The rate of the link


def planned(cluster: Cluster, *transports: ExpectedTransport) -> Plan:
    plan = decide(cluster, "r")
    assert plan
    return replace(plan, transports=transports)


def two_nodes(speed_gbit_s: float | None = 25.0, **job: Any) -> Cluster:
    one = node("n0", interface("eth0", "10.0.0.1/24", speed_gbit_s=speed_gbit_s))
    other = node("n1", interface("eth0", "10.0.0.2/24", speed_gbit_s=100.0))
    return replace(cluster(one, other), job=Job(**job))


def test_the_slowest_interface_is_the_link() -> None:
    nodes = two_nodes()
    rate = link_rate(nodes, planned(nodes), "gloo")
    assert (rate.gbit_s, rate.source, rate.over) == (25.0, "n0 eth0, 25 Gbit/s", "tcp")


@pytest.mark.parametrize(
    ("mode", "down", "wanted"),
    [
        ("IEEE 802.3ad Dynamic link aggregation", (), (12.5, "n0 eth0, 12.5 Gbit/s a link of 2")),
        ("IEEE 802.3ad Dynamic link aggregation", ("eth2",), (25.0, "n0 eth0, 25 Gbit/s")),
        ("fault-tolerance (active-backup)", (), (25.0, "n0 eth0, 25 Gbit/s")),
    ],
)
def test_one_connection_over_a_bond_has_one_of_its_links(
    mode: str, down: tuple[str, ...], wanted: tuple[float, str]
) -> None:
    nodes = two_nodes()
    bond = Bond("eth0", mode, "layer3+4", ("eth1", "eth2"), down)
    nodes = replace(nodes, nodes=(replace(nodes.nodes[0], bonds=(bond,)), nodes.nodes[1]))
    rate = link_rate(nodes, planned(nodes), "gloo")
    assert (rate.gbit_s, rate.source) == wanted


def test_a_stated_rate_wins_over_what_the_kernel_says() -> None:
    nodes = two_nodes(link_gbit_s=40.0)
    assert link_rate(nodes, planned(nodes), "gloo").gbit_s == 40.0


def test_an_interface_without_a_rate_makes_the_link_unknown() -> None:
    nodes = two_nodes(None)
    rate = link_rate(nodes, planned(nodes), "gloo")
    assert rate.gbit_s is None and "the rate of n0 eth0 (physical) cannot be read" in rate.source


def test_the_devices_nccl_is_expected_to_use_are_added_up() -> None:
    ports = tuple(RdmaPort(f"mlx5_{i}", 1, "ACTIVE", rate_gbit_s=200.0) for i in range(3))
    nodes = two_nodes()
    nodes = replace(nodes, nodes=tuple(replace(n, rdma_ports=ports) for n in nodes.nodes))
    used = [ExpectedTransport(n.name, "IB", ("mlx5_0:1/IB", "mlx5_2:1/IB"), "high") for n in nodes.nodes]
    rate = link_rate(nodes, planned(nodes, *used), "nccl")
    assert (rate.gbit_s, rate.over) == (400.0, "rdma")
    assert "mlx5_0:1, mlx5_2:1" in rate.source


def test_nccl_over_sockets_is_judged_by_the_interface() -> None:
    nodes = two_nodes()
    used = [ExpectedTransport(n.name, "Socket", ("eth0",), "high") for n in nodes.nodes]
    assert link_rate(nodes, planned(nodes, *used), "nccl").over == "tcp"


class TestOfCpusInPlaceOfGpus:
    pytestmark = trains

    @pytest.mark.parametrize("command", ["test", "bench"])
    def test_cpus_are_not_tested_in_place_of_named_gpus_without_saying_so_first(
        self, tmp_path: Path, command: str
    ) -> None:
        words = [command, "--local", "1", "--nproc", "1", "--env", "CUDA_VISIBLE_DEVICES=0,1"]
        if command == "bench":
            words += ["--min", "1K", "--max", "1K"]
        code, told, err = prove(tmp_path, *words, "--quiet")
        warning = (
            "127.0.0.2: only CPUs are tested: CUDA_VISIBLE_DEVICES=0,1, and no GPU is visible to the job"
        )
        assert (code, told["warnings"], told["backend"]) == (0, [warning], "gloo")
        assert err.splitlines()[0] == f"warning: {warning}"
        if command == "test":
            code, told, err = prove(tmp_path / "asked", *words, "--backend", "gloo", "--quiet")
            assert (code, told["warnings"]) == (0, []) and "only CPUs" not in err
