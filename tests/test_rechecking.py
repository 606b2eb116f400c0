"""What is made of a check between two attempts, and of a failure's cause; both pure."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from ringup import collectors
from ringup.cli import pipeline, rechecking
from ringup.cli.rechecking import errors_by_node, failure_cause
from ringup.logs.lines import Event
from ringup.logs.rule import Cause
from ringup.model import Counters, Interpreter, Job
from ringup.planning import NodePlan, Plan
from ringup.recovery.decision import EndedAttempt, FailureCause, Policy, Recheck, decide
from ringup.rules import Finding
from ringup.runtime import Failure, RankEnd, RunResult
from tests.clusters import cluster, plain
from tests.rule_cases_gpu import OTHER
from tests.rule_cases_gpu import cluster as gpu_cluster

NODES = ["node0", "node1", "node2", "node10"]


def finding(where: str, rule: str, **more: Any) -> Finding:
    return Finding(where, "found", "wanted", rule=rule, **more)


def test_an_error_is_its_nodes_and_of_a_pair_that_of_the_node_with_most_errors() -> None:
    found = errors_by_node(
        [
            finding("node1 GPU 3", "gpu-missing", node="node1"),
            finding("node0 -> node2 em1", "peer-unreachable"),
            finding("node2 -> node10 em1", "peer-unreachable"),
            finding("node0 port 29500", "port-in-use", node="node0", severity="warning"),
            finding("node1 -> node0 em1", "peer-unreachable"),
            finding("the run", "world-never-formed"),
        ],
        NODES,
    )
    assert found == {"node1": {"gpu-missing"}, "node2": {"peer-unreachable"}}


def test_of_two_nodes_that_alone_cannot_talk_the_later_one_is_meant() -> None:
    assert errors_by_node([finding("node0 -> node1 em1", "x")], NODES) == {"node1": {"x"}}


def ended(failure: Failure | None = None, **more: Any) -> RunResult:
    ranks = more.pop("ranks", ())
    return RunResult("r", "rank-failed", 1, failure, ranks, (), (), "", 1.0, **more)


def failed(node: str, rank: int | None, *lines: str) -> Failure:
    return Failure(node, rank, 1 if rank is not None else None, "it failed", 1.0, 1.0, lines, "")


def plan(*names: str) -> Plan:
    nodes = tuple(NodePlan(name, n, 2, 2 * n, "", "", (), {}) for n, name in enumerate(names))
    return Plan("r", Job(), nodes, (), "", 1, 2 * len(names))


def test_ranks_of_a_cause_name_their_nodes() -> None:
    cause = Cause("text", "high", ranks=(3,), rule="rank-killed")
    found = failure_cause(plan("a", "b"), ended(failed("b", 3)), cause, Recheck())
    assert found == FailureCause("rank-killed", "high", ("b",), (3,))


def test_the_exception_of_the_first_failed_rank_tells_crashes_apart() -> None:
    lines = ("Traceback (most recent call last):", '  File "t.py", line 3, in main', "ValueError: bad batch")
    cause = Cause("text", "high", ranks=(0,), rule="rank-raised-exception")
    found = failure_cause(plan("a", "b"), ended(failed("a", 0, *lines)), cause, Recheck())
    assert found.detail == "ValueError: bad batch"


def test_the_exception_of_a_rank_that_was_ended_while_it_raised_counts() -> None:
    """torchrun ends the ranks of its node with SIGTERM, one of them perhaps in its own traceback."""
    lines = ("Traceback (most recent call last):", '  File "t.py", line 3, in main', "TypeError: bad")
    cause = Cause("text", "high", ranks=(0,), rule="rank-raised-exception")
    for what, detail in (("rank 0 on a: TypeError: bad (exit code 1)", "TypeError: bad"), ("SIGTERM", "")):
        failure = replace(failed("a", 0, *lines), code=-15, what=what)
        assert failure_cause(plan("a", "b"), ended(failure), cause, Recheck()).detail == detail


@pytest.mark.parametrize("code, detail", [(2, "exit code 2"), (1, ""), (-9, "")])
def test_a_code_of_the_script_tells_ends_apart(code: int, detail: str) -> None:
    cause = Cause("text", "medium", ranks=(0,), rule="rank-raised-exception")
    failure = replace(failed("a", 0), code=code)
    assert failure_cause(plan("a", "b"), ended(failure), cause, Recheck()).detail == detail


@pytest.mark.parametrize(
    "line, detail, action",
    [
        # Bus 0x62, pid 79 and channel 48 are no fault codes.
        ("[95.1] NVRM: Xid (PCI:0000:62:00): 13, pid=79, name=python, Ch 48", "Xid 13", "same"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "Xid 79", "exclude"),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot"
            " Required)",
            "Xid 154 fatal",
            "exclude",
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required)"
            " to 0x0 (None)",
            "Xid 154",
            "same",
        ),
        ("SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 30", "SXid 22013", "same"),
        ("SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 30", "SXid 22013 fatal", "exclude"),
    ],
)
def test_only_the_code_of_a_driver_fault_leaves_a_node_out(line: str, detail: str, action: str) -> None:
    tag = "sxid" if "SXid" in line else "xid"
    code = line.partition("): ")[2].partition(",")[0]
    event = Event(tag, 0, 1, line, {"code": code})
    cause = Cause("text", "high", (event,), nodes=("b",), rule="xid-in-kernel-log")
    known = failure_cause(plan("a", "b"), ended(failed("b", 2)), cause, Recheck())
    assert known.detail == detail
    attempts = [EndedAttempt(("a", "b"), known, 20.0)]
    assert decide(attempts, Recheck(), ["c"], Policy(1), lambda: 0.0).action == action


def test_a_lost_node_is_the_cause_unless_something_surer_names_it() -> None:
    lost = ended(failed("b", None), lost=("b",))
    route = Cause("no route", "high", rule="ssh-no-route")
    assert failure_cause(plan("a", "b"), lost, route, Recheck()) == FailureCause("node-lost", "high", ("b",))
    assert failure_cause(plan("a", "b"), lost, None, Recheck()).rule == "node-lost"
    ecc = Cause("ECC", "high", (Event("ecc", 0, 1, "line"),), nodes=("b",), rule="ecc-uncorrectable")
    assert failure_cause(plan("a", "b"), lost, ecc, Recheck()).rule == "ecc-uncorrectable"


def test_a_rank_that_failed_by_itself_stays_the_cause_where_another_node_is_gone() -> None:
    cause = Cause("text", "high", ranks=(0,), rule="rank-raised-exception")
    recheck = Recheck(unreachable=frozenset({"b"}))
    assert (
        failure_cause(plan("a", "b"), ended(failed("a", 0)), cause, recheck).rule == "rank-raised-exception"
    )
    unsure = Cause("text", "low", ranks=(0,), rule="peer-died-first")
    assert failure_cause(plan("a", "b"), ended(failed("a", 0)), unsure, recheck).nodes == ("b",)


@pytest.mark.parametrize(
    "said, raised_on, other_code, is_only_there",
    [
        ("ModuleNotFoundError: No module named 'apex'", (0,), -15, True),
        ("ImportError: libcudart.so.12: cannot open shared object file", (0, 1), None, True),
        ("ModuleNotFoundError: No module named 'apex'", (0, 2), -15, False),
        ("ModuleNotFoundError: No module named 'apex'", (0,), 1, False),
        ("NameError: name 'modle' is not defined", (0,), -15, False),
    ],
)
def test_an_import_that_no_rank_of_another_node_missed_is_its_nodes(
    said: str, raised_on: tuple[int, ...], other_code: int | None, is_only_there: bool
) -> None:
    lines = ("Traceback (most recent call last):", '  File "t.py", line 1, in <module>', said)
    codes = [1, -15, other_code, 0]
    ranks = tuple(RankEnd(n, n % 2, "ab"[n // 2], 10 + n, code) for n, code in enumerate(codes))
    cause = Cause("text", "high", ranks=raised_on, rule="rank-raised-exception")
    result = ended(failed("a", 0, *lines), ranks=ranks)
    assert failure_cause(plan("a", "b"), result, cause, Recheck()).only_there == is_only_there


def test_an_exception_that_names_no_rank_is_of_those_that_ended_alike() -> None:
    cause = Cause("text", "high", rule="rank-raised-exception")
    for codes, nodes in (((1, -15, -15, 0), ("a",)), ((1, 1, 1, -15), ("a", "b"))):
        ranks = tuple(RankEnd(n, n % 2, "ab"[n // 2], 10 + n, code) for n, code in enumerate(codes))
        found = failure_cause(plan("a", "b"), ended(failed("a", 0), ranks=ranks), cause, Recheck())
        assert found.nodes == nodes and found.ranks == tuple(n for n in range(4) if codes[n] == 1)


def test_the_ranks_of_nodes_with_unequal_gpus_are_numbered_anew_for_an_attempt() -> None:
    counts = {"node0": 2, "node1": 4, "node2": 1, "node3": 3}
    nodes = {name: plain(k, gpu_count=n) for k, (name, n) in enumerate(counts.items())}
    for names in (("node1", "node2"), ("node0", "node3", "node2")):
        chosen = cluster(*(nodes[name] for name in names), job=Job(script="t.py"))
        planned = pipeline.judge(chosen, "r.2").plan
        assert planned is not None
        sizes = [counts[name] for name in names]
        assert [node.node for node in planned.nodes] == [*names]
        assert [node.nproc for node in planned.nodes] == sizes and planned.world_size == sum(sizes)
        assert [node.first_rank for node in planned.nodes] == [sum(sizes[:k]) for k in range(len(sizes))]


def test_no_attempt_begins_before_the_ranks_of_a_silent_node_have_ended_by_its_lease() -> None:
    result = ended(failed("b", None), lost=("b",), heard_s=time.monotonic() + 1000.0)
    silent, back = Recheck(unreachable=frozenset({"b"})), Recheck()
    assert 20.0 < rechecking.until_gone_s(result, silent, 20.0) <= 1020.0
    assert rechecking.until_gone_s(result, back, 20.0) == 0.0, "it has proven that nothing is left"
    assert rechecking.until_gone_s(replace(result, heard_s=1.0), silent, 20.0) == 0.0


class Still:
    """A transport that is only waited on."""

    def turn(self, timeout_s: float) -> None:
        pass

    def reopen(self, name: str) -> None:
        pass


@pytest.mark.parametrize("looks, is_out", [(1, False), (3, False), (1_000_000, True)])
def test_a_gpu_is_given_time_to_free_its_memory(
    monkeypatch: pytest.MonkeyPatch, looks: int, is_out: bool
) -> None:
    """What a killed rank held may be free some seconds after its end; a start before that fails."""
    free, held = gpu_cluster()(), gpu_cluster(gpu_processes=(OTHER,))()
    names = [node.name for node in free.nodes]
    found = iter(range(10 * looks))
    monkeypatch.setattr(collectors, "collect", lambda *_, **__: held if next(found) < looks else free)
    monkeypatch.setattr(rechecking, "ASK_EVERY_S", 0.0)
    monkeypatch.setattr(rechecking, "FREE_WITHIN_S", 0.2 if is_out else 60.0)
    again = rechecking.Rechecks(cast(Any, Still()), free, argparse.Namespace(timeout=1.0, lease=1.0))
    recheck = again.look(plan(*names), ended(failed(names[0], 0)), ())
    assert recheck.findings == ({"node1": ["gpu-held-by-other-process"]} if is_out else {})


def test_memory_that_was_held_before_the_first_attempt_leaves_no_node_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = gpu_cluster(gpu_processes=(OTHER,))()
    monkeypatch.setattr(collectors, "collect", lambda *_, **__: held)
    again = rechecking.Rechecks(cast(Any, Still()), held, argparse.Namespace(timeout=1.0, lease=1.0))
    names = [node.name for node in held.nodes]
    assert not again.look(plan(*names), ended(failed(names[0], 0)), ()).unusable


def test_a_spare_that_could_not_run_at_the_start_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node that has trained a new error counts; of a spare every one that the others do not have."""
    broken = replace(plain(1), unknown={}, interpreter=Interpreter("/usr/bin/python3", "3.11.7"))
    found = cluster(plain(0), broken, job=Job(script="t.py"))
    monkeypatch.setattr(collectors, "collect", lambda *_, **__: found)
    args = argparse.Namespace(timeout=1.0, lease=1.0)
    for spares in ((), ("node1",)):
        again = rechecking.Rechecks(cast(Any, Still()), found, args, spares)
        recheck = again.look(plan("node0"), ended(failed("node0", 0)), ["node1"])
        assert recheck.findings == ({"node1": ["torch-missing"]} if spares else {})


@pytest.mark.parametrize("changes, flaps", [(2, False), (6, True)])
def test_a_link_that_came_and_went_during_the_attempt_is_a_sign_against_its_node(
    monkeypatch: pytest.MonkeyPatch, changes: int, flaps: bool
) -> None:
    """One cut that ended is none; nor is one of an attempt before."""

    def counted(total: int, at_s: float) -> Any:
        counters = (Counters("interface:enp99s0", at_s, {"carrier_changes": total, "rx_errors": total}),)
        return cluster(plain(0), replace(plain(1), unknown={}, counters=counters), job=Job(script="t.py"))

    states = iter([counted(2 + changes, 60.0), counted(2 + changes, 90.0)])
    monkeypatch.setattr(collectors, "collect", lambda *_, **__: next(states))
    args = argparse.Namespace(timeout=1.0, lease=1.0)
    again = rechecking.Rechecks(cast(Any, Still()), counted(2, 1.0), args)
    killed, names = failed("node1", 1), ("node0", "node1")
    recheck = again.look(plan(*names), ended(killed), ())
    assert ("interface-errors" in recheck.warnings.get("node1", ())) == flaps
    cause = FailureCause("rank-killed", "high", ("node1",), (1,))
    attempts = [EndedAttempt(names, cause, 20.0)]
    found = decide(attempts, recheck, ["node2"], Policy(3), lambda: 0.0)
    assert found.nodes == (("node0", "node2") if flaps else names)
    assert not again.look(plan(*names), ended(killed), ()).warnings.get("node1")


def test_an_import_that_most_nodes_missed_is_no_nodes_own() -> None:
    """On three nodes two raised it, and the third was ended before it came so far."""
    lines = ("Traceback (most recent call last):", '  File "t.py", line 1', "ImportError: no apex")
    ranks = tuple(RankEnd(n, 0, name, 10 + n, -15 if name == "c" else 1) for n, name in enumerate("abc"))
    nodes = tuple(NodePlan(name, n, 1, n, "", "", (), {}) for n, name in enumerate("abc"))
    three = Plan("r", Job(), nodes, (), "", 1, 3)
    cause = Cause("text", "high", ranks=(0, 1), rule="rank-raised-exception")
    known = failure_cause(three, ended(failed("a", 0, *lines), ranks=ranks), cause, Recheck())
    assert not known.only_there
    attempts = [EndedAttempt(("a", "b", "c"), known, 20.0)]
    assert decide(attempts, Recheck(), ["d"], Policy(3), lambda: 0.0).action == "stop"
