"""Whose fault it is by what the ranks of `ringup test` told, and by how their run ended."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from ringup.collective_tests.correctness import report as judged
from ringup.model import Job
from ringup.output import collective_report as show
from ringup.planning import NodePlan, Plan
from ringup.runtime import Failure, Outcome, RankEnd, RunResult

NCCL = (
    "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled cuda error, "
    "NCCL version 2.29.7 ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2"
)
REMOTE = "DistBackendError: NCCL error, ncclRemoteError: socketProgress: Connection closed by remote peer"
WRONG = {"op": "all_reduce", "count": 1, "index": 0, "wrong": 1, "found": 2, "wanted": 3}


def run(
    *lines: dict[str, Any],
    failure: Failure | None = None,
    outcome: Outcome = "rank-failed",
    ends: tuple[RankEnd, ...] = (),
    **record: Any,
) -> dict[int, tuple[str, bool]]:
    """What is said of each of four ranks on two nodes that is not fine, and whether it is a cause."""
    nodes = tuple(NodePlan(f"n{i}", i, 2, 2 * i, "eth0", "", (), {}) for i in range(2))
    plan = Plan("r", Job(), nodes, (), "", 29500, 4)
    told: dict[int, list[dict[str, Any]]] = {rank: [{"kind": "hello", "rank": rank}] for rank in range(4)}
    for line in lines:
        told[line["rank"]].append(line)
    result = RunResult("r", outcome, 1, failure, ends, (), (), "logs", 1.0, record)
    return {r.rank: (r.error or "", r.is_cause) for r in judged(plan, told, result).ranks if not r.ok}


def failed(rank: int, code: int, is_consequence: bool = False) -> Failure:
    what = f"rank {rank} on n{rank // 2}: exit code {code}"
    return Failure(f"n{rank // 2}", rank, code, what, 1.0, 1.0, (), "", is_consequence)


def causes(said: dict[int, tuple[str, bool]]) -> list[int]:
    return [rank for rank, (_, is_cause) in said.items() if is_cause]


def test_the_rank_whose_nccl_fails_is_named_with_nccls_words_and_not_those_it_takes_along() -> None:
    lines = [{"kind": "error", "rank": 3, "error": NCCL}, {"kind": "error", "rank": 0, "error": REMOTE}]
    said = run(*lines, failure=failed(3, 1))
    assert causes(said) == [3]
    assert "ncclUnhandledCudaError: Call to CUDA function failed" in said[3][0]
    assert said[1][0] == "not tested: rank 3 had ended before"


def test_a_rank_that_reached_no_peer_is_not_at_fault_by_that_alone() -> None:
    for words in ("Gloo connectFullMesh failed with no error", "[/gloo/transport/tcp/pair.cc:5] Bad address"):
        line = {"kind": "error", "rank": 0, "error": f"RuntimeError: {words}"}
        assert causes(run(line, failure=failed(0, 1))) == []


def test_a_rank_that_crashed_is_named_though_its_peers_error_was_seen_first() -> None:
    line = {"kind": "error", "rank": 0, "error": "RuntimeError: [/gloo/transport/tcp/pair.cc:5] Bad address"}
    ends = (RankEnd(0, 0, "n0", 41, 1), RankEnd(1, 1, "n0", 42, -15), RankEnd(2, 0, "n1", 43, -11))
    said = run(line, failure=failed(0, 1), ends=ends)
    assert causes(said) == [2] and said[2][0] == "ended: killed by SIGSEGV"
    assert said[1][0] == "not tested: rank 2 had ended before"


def test_a_rank_that_is_missing_and_told_why_is_named_with_its_own_words() -> None:
    lines = [{"kind": "error", "rank": 3, "error": NCCL}]
    lines += [{"kind": "missing", "rank": 0, "ranks": [3], "waited_s": 60, "stage": "failed"}]
    said = run(*lines, failure=failed(3, 1))
    assert causes(said) == [3] and "ncclUnhandledCudaError" in said[3][0]


def test_a_rank_that_torch_ended_because_it_waited_is_not_at_fault() -> None:
    said = run(failure=failed(1, -6, is_consequence=True))
    assert causes(said) == []
    assert said[1][0] == "ended because of another rank: rank 1 on n0: exit code -6"
    assert causes(run(failure=failed(1, -6))) == [1]


@pytest.mark.parametrize(("where", "words"), [("", ""), ("train.py:88", " (train.py:88)")])
def test_of_a_run_ended_as_hung_the_rank_is_named_that_the_others_waited_for(where: str, words: str) -> None:
    missing = [{"rank": 2, "node": "n1", "where": where}]
    hangs = [{"verdict": "stalled", "collective": "all_reduce", "missing": missing}]
    said = run(outcome="hung", hangs=hangs)
    assert said[2] == ("stopped responding: the others waited for it" + words, True)
    assert causes(said) == [2] and said[0][0] == "not tested: waited for rank 2"
    busy = [{"verdict": "busy", "collective": "", "missing": missing}]
    assert causes(run(outcome="hung", hangs=busy)) == []


def test_where_the_search_ended_with_one_rank_the_others_wrong_results_are_not_their_fault() -> None:
    lines = [{"kind": "result", "rank": rank, "ok": False, "wrong": [WRONG]} for rank in range(4)]
    lines.append({"kind": "error", "rank": 2, "error": NCCL})
    said = run(*lines, failure=failed(2, 1))
    assert causes(said) == [2] and "ncclUnhandledCudaError" in said[2][0]
    assert said[0][0] == "all_reduce of 1 element: element 0 is 2, wanted 3"


def test_a_rank_is_shown_with_the_address_of_its_gpu() -> None:
    nodes = (NodePlan("n0", 0, 1, 0, "eth0", "", (), {}),)
    hello = {"kind": "hello", "rank": 0, "device": "cuda:0", "name": "H100", "bus_id": "0000:5d:00.0"}
    told = {0: [hello, {"kind": "error", "rank": 0, "error": NCCL}]}
    result = RunResult("r", "rank-failed", 1, failed(0, 1), (), (), (), "logs", 1.0)
    found = judged(Plan("r", Job(), nodes, (), "", 29500, 1), told, result)
    assert show.test_lines(found)[0].startswith(
        "  rank 0 on n0, local rank 0 (cuda:0 H100 at 0000:5d:00.0): DistBackendError: "
    )
    assert asdict(found)["ranks"][0]["bus_id"] == "0000:5d:00.0"
