"""What becomes of a run after a failed attempt: a table of decisions, and what holds for all of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ringup.logs.causes  # noqa: F401  (fills the catalogue)
from ringup.errors import UsageError
from ringup.logs.blame import PLACE
from ringup.logs.rule import CAUSES, CONFIDENCES
from ringup.recovery import table
from ringup.recovery.decision import (
    MOST_UNSAVED,
    Decision,
    EndedAttempt,
    FailureCause,
    Policy,
    Recheck,
    backoff_s,
    decide,
)

NODES = ("node0", "node1", "node2", "node3")
TWO = NODES[:2]
SPARES = ("spare0", "spare1")
AGAIN = ("stop", "will-fail-again")
WITHOUT = ("exclude", "node1")


def failed(
    rule: str = "", node: str = "node1", rank: int = 1, detail: str = "", /, **more: Any
) -> EndedAttempt:
    """An attempt that a node or a rank ended at once; `sure`, `only_there` and `ranks` are of its cause."""
    cause = FailureCause(
        rule,
        more.pop("sure", "high"),
        more.pop("blamed", (node,) if node else ()),
        more.pop("ranks", (rank,)),
        detail,
        more.pop("only_there", False),
    )
    return EndedAttempt(**{"nodes": NODES, "cause": cause, "seconds": 20.0, **more})


def decided(
    *attempts: EndedAttempt, recheck: Recheck | None = None, spares: tuple[str, ...] = SPARES, **policy: Any
) -> Decision:
    rules = Policy(**{"max_restarts": 5, **policy})
    return decide(attempts, recheck or Recheck(), spares, rules, lambda: 1.0)


def found(node: str, *rules: str) -> Recheck:
    return Recheck(findings={node: rules})


def warned(node: str, rule: str = "receive-errors") -> Recheck:
    return Recheck(warnings={node: [rule]})


ECC = failed("ecc-uncorrectable")
KILLED = failed("rank-killed")
BAD_VALUE = failed("rank-raised-exception", "node1", 1, "ValueError: bad batch", step=7)
HUB = failed("rank-raised-exception", "node1", 1, "requests.ConnectionError: hub")
NO_MODULE = "ModuleNotFoundError: No module named 'apex'"
OOM = failed("gpu-out-of-memory")
LOCAL_DISK = failed("disk-full", "node1", 1, "OSError: [Errno 28] No space left on device: '/tmp/x'")
FLAP = failed("link-flapped")
IFNAME = failed("interface-name-missing")
TRAINED = {"saved_from": 0, "saved_to": 500, "step": 510}
STUCK = {"saved_from": 500, "saved_to": 500}


def other(detail: str, **more: Any) -> EndedAttempt:
    return failed("rank-raised-exception", "node1", 1, detail, **more)


CASES = {
    # The script or its command line must change.
    "unused parameters": (decided(failed("ddp-unused-parameters")), *AGAIN),
    "unsure of unused parameters": (decided(failed("ddp-unused-parameters", sure="low")), "same", ""),
    "unsure, and again": (decided(*[failed("ddp-unused-parameters", sure="low")] * 2), *AGAIN),
    "disk full": (decided(failed("disk-full", **TRAINED)), *AGAIN),
    "disk of one node full": (decided(LOCAL_DISK), "same", ""),
    "disk of one node full, twice": (decided(LOCAL_DISK, LOCAL_DISK), *WITHOUT),
    "local disks of all nodes full": (
        decided(failed("disk-full", "", 1, LOCAL_DISK.cause.detail, blamed=NODES)), *AGAIN),
    "shared disk full": (
        decided(failed("disk-full", "node1", 1, LOCAL_DISK.cause.detail.replace("/tmp", "/nfs"))), *AGAIN),
    "wrong numbers": (decided(failed("all-reduce-wrong", **TRAINED)), *AGAIN),
    "import at the start": (decided(other(NO_MODULE)), *AGAIN),
    "import on one node": (decided(other(NO_MODULE, only_there=True)), *WITHOUT),
    "import on one node, unsure": (decided(other(NO_MODULE, only_there=True, sure="low")), "same", ""),
    "import on one node, then on its spare": (
        decided(other(NO_MODULE, only_there=True),
                failed("rank-raised-exception", "spare0", 1, NO_MODULE, only_there=True,
                       nodes=("node0", "spare0", "node2", "node3"))),
        *AGAIN,
    ),
    "import on one node, no spare": (
        decided(other(NO_MODULE, only_there=True), spares=()), "stop", "no-nodes"),
    "import after steps": (decided(other(NO_MODULE, **TRAINED)), "same", ""),
    "arguments refused": (decided(other("SystemExit: 2", exit_code=2)), *AGAIN),
    "exit 2 after steps": (decided(other("", exit_code=2, **TRAINED)), "same", ""),
    # An exception that may pass.
    "value once": (decided(BAD_VALUE), "same", ""),
    "value twice at one step": (decided(BAD_VALUE, BAD_VALUE), *AGAIN),
    "value twice, step unknown": (decided(*[other("ValueError: x")] * 2), *AGAIN),
    "another rank, the same words": (
        decided(BAD_VALUE, failed("rank-raised-exception", "node0", 0, "ValueError: bad batch", step=7)),
        *AGAIN,
    ),
    "other values, no advance": (decided(other("ValueError: x"), other("ValueError: y")), "same", ""),
    "step 7, then 9": (decided(BAD_VALUE, other("ValueError: bad batch", step=9)), "same", ""),
    "the same step whatever was saved": (
        decided(
            other("ValueError: x", saved_from=0, saved_to=400, step=500),
            other("ValueError: x", saved_from=400, saved_to=490, step=500),
        ),
        *AGAIN,
    ),
    "nearly the same step": (
        decided(failed(**TRAINED), other("ValueError: x", step=5000, **STUCK),
                other("ValueError: x", step=5010, **STUCK)),
        *AGAIN,
    ),
    "twenty minutes, and again the same": (
        decided(*[other("ValueError: x", seconds=1300.0)] * 2), *AGAIN),
    "hub once": (decided(HUB), "same", ""),
    "hub four times": (decided(*[HUB] * 4), "stop", "no-progress"),
    "hub three times": (decided(*[HUB] * 3), "same", ""),
    "collectives differ, no rank named": (
        decided(*[failed("collective-mismatch", "", 0, "", ranks=())] * 2), *AGAIN),
    "collectives differ, another rank": (
        decided(failed("collective-mismatch"), failed("collective-mismatch", "node2", 2)), *AGAIN),
    # Memory.
    "GPU memory before a step": (decided(OOM), *AGAIN),
    "GPU memory after steps": (decided(failed("gpu-out-of-memory", **TRAINED)), "same", ""),
    "GPU memory held": (decided(OOM, recheck=found("node1", "gpu-held-by-other-process")), *WITHOUT),
    "host memory after steps": (decided(failed("oom-killer-ran", **TRAINED)), "same", ""),
    "host memory twice": (decided(*[failed("oom-killer-ran")] * 2), *AGAIN),
    # Hardware.
    "ECC": (decided(ECC), *WITHOUT),
    "ECC, unsure": (decided(failed("ecc-uncorrectable", sure="low")), "same", ""),
    "ECC, unsure, seen twice": (decided(KILLED, failed("ecc-uncorrectable", sure="low")), *WITHOUT),
    "ECC, unsure, after an exception there": (
        decided(BAD_VALUE, failed("ecc-uncorrectable", sure="low")), "same", ""),
    "ECC, unsure, and a warning there": (
        decided(failed("ecc-uncorrectable", sure="low"), recheck=warned("node1", "row-remap-pending")),
        *WITHOUT,
    ),
    "ECC, unsure, and the re-check": (
        decided(failed("ecc-uncorrectable", sure="low"), recheck=found("node1", "ecc-uncorrectable")),
        *WITHOUT,
    ),
    "ECC without a node": (decided(failed("ecc-uncorrectable", "")), "same", ""),
    "ECC, no spare": (decided(ECC, spares=()), "stop", "no-nodes"),
    "ECC, fewer allowed": (decided(ECC, spares=(), min_nodes=3), "shrink", "node1"),
    "ECC, not that few": (decided(ECC, spares=(), min_nodes=4), "stop", "no-nodes"),
    "Xid 79": (decided(failed("xid-in-kernel-log", "node1", 1, "Xid 79")), *WITHOUT),
    "Xid 140": (decided(failed("xid-in-kernel-log", "node1", 1, "Xid 140")), *WITHOUT),
    "Xid 143": (decided(failed("xid-in-kernel-log", "node1", 1, "Xid 143")), *WITHOUT),
    "Xid 31": (decided(failed("xid-in-kernel-log", "node1", 1, "Xid 31")), "same", ""),
    "Xid 31 twice": (decided(*[failed("xid-in-kernel-log", "node1", 1, "Xid 31")] * 2), *WITHOUT),
    # Nodes, ranks, links.
    "killed": (decided(KILLED), "same", ""),
    "killed twice": (decided(KILLED, KILLED), *WITHOUT),
    "killed, and its link has errors": (decided(KILLED, recheck=warned("node1")), *WITHOUT),
    "killed, and another's link has errors": (decided(KILLED, recheck=warned("node2")), "same", ""),
    "killed, its link has errors, no spare": (
        decided(KILLED, recheck=warned("node1"), spares=()), "same", ""),
    "killed, and a warning of something else": (
        decided(KILLED, recheck=warned("node1", "swap-in-use")), "same", ""),
    "an exception, and a link with errors": (decided(BAD_VALUE, recheck=warned("node1")), "same", ""),
    "killed after an exception there": (decided(BAD_VALUE, KILLED), "same", ""),
    "killed on two nodes": (decided(KILLED, failed("rank-killed", "node2", 2)), "same", ""),
    "killed on most nodes": (decided(*[failed("rank-killed", blamed=NODES[:3])] * 2), "same", ""),
    "killed again after progress": (
        decided(KILLED, failed("rank-killed", saved_from=0, saved_to=900, step=910)), "same", ""),
    "the only node, killed twice": (decided(*[failed("rank-killed", nodes=("node1",))] * 2), *WITHOUT),
    "flap": (decided(FLAP), "same", ""),
    "flap twice": (decided(FLAP, FLAP), *WITHOUT),
    "node lost and back": (decided(failed(table.NODE_LOST, ranks=())), "same", ""),
    "node lost and silent": (
        decided(failed(table.NODE_LOST, ranks=()), recheck=Recheck(unreachable=frozenset({"node1"}))),
        *WITHOUT,
    ),
    "node lost and back twice": (decided(*[failed(table.NODE_LOST, ranks=())] * 2), *WITHOUT),
    "two nodes lost": (
        decided(failed(table.NODE_LOST, blamed=NODES[1:3], ranks=()), spares=("spare0",), min_nodes=3,
                recheck=Recheck(unreachable=frozenset(NODES[1:3]))),
        *("shrink", "node1,node2"),
    ),
    "node rebooted": (decided(KILLED, recheck=Recheck(rebooted=frozenset({"node1"}))), *WITHOUT),
    "processes left": (decided(KILLED, recheck=Recheck(unclean=frozenset({"node2"}))), "exclude", "node2"),
    "processes left by an import": (
        decided(other(NO_MODULE), recheck=Recheck(unclean=frozenset({"node1"}))), *AGAIN),
    "rank behind twice": (decided(*[failed("rank-fell-behind", is_hung=True)] * 2), *WITHOUT),
    "re-check outranks log": (decided(KILLED, recheck=found("node2", "no-answer")), "exclude", "node2"),
    "but not a certain stop": (
        decided(failed("ddp-unused-parameters", ""), recheck=found("node2", "slow")), *AGAIN),
    # Settings.
    "all nodes, never worked": (decided(failed("interface-name-missing", blamed=NODES)), *AGAIN),
    "all nodes, had worked": (decided(failed("interface-name-missing", blamed=NODES, **TRAINED)), "same", ""),
    "one of four": (decided(IFNAME), *WITHOUT),
    "one of two": (decided(failed("interface-name-missing", nodes=TWO)), *AGAIN),
    "one of two, a spare": (
        decided(failed(nodes=TWO, **TRAINED),
                failed("interface-name-missing", "spare0", nodes=("node0", "spare0"))),
        *("exclude", "spare0"),
    ),
    "one of four, unsure": (decided(failed("interface-name-missing", sure="low")), "same", ""),
    # Causes that name nothing.
    "no cause": (decided(failed("", "", ranks=())), "same", ""),
    "no cause, three times": (decided(*[failed("", "", ranks=())] * 3), "stop", "no-progress"),
    "a name of another release": (decided(failed("cosmic-ray")), "same", ""),
    "two causes in turn": (
        decided(failed("nccl-error-without-detail"), failed("peer-died-first"), failed("store-unreachable")),
        *("stop", "no-progress"),
    ),
    "one cause, another, the first": (
        decided(failed("store-unreachable"), failed("peer-died-first"), failed("store-unreachable")),
        *("stop", "no-progress"),
    ),
    "slow is no end": (decided(failed("fell-back-to-sockets")), "same", ""),
    "port in use three times": (decided(*[failed("port-in-use")] * 3), "same", ""),
    "port in use four times": (decided(*[failed("port-in-use")] * 4), "stop", "no-progress"),
    # What the user asked for.
    "cancelled": (decided(failed("job-cancelled")), "stop", "user"),
    "no restarts": (decided(KILLED, max_restarts=0), "stop", "limit"),
    "one restart": (decided(KILLED, failed("link-flapped"), max_restarts=1), "stop", "limit"),
    "one restart since progress": (
        decided(KILLED, failed("link-flapped", **TRAINED), max_restarts=1), "same", ""),
    "another directory with smaller steps": (
        decided(failed("link-flapped", saved_to=9000),
                failed("rank-killed", "node2", 2, saved_to=500),
                failed("link-flapped", "node3", 3, saved_from=500, saved_to=900), max_restarts=1),
        *("same", ""),
    ),
    "another directory each time": (
        decided(failed("link-flapped", saved_to=500), failed("rank-killed", "node2", 2, saved_to=400),
                max_restarts=1),
        *("stop", "limit"),
    ),
    "begun again at step 0": (
        decided(failed("link-flapped", **TRAINED),
                failed("rank-killed", "node2", 2, saved_from=0, saved_to=300), max_restarts=1),
        *("stop", "limit"),
    ),
    "code never": (decided(failed("rank-killed", exit_code=42), no_restart_on={42}), *AGAIN),
    "cause never": (decided(KILLED, no_restart_on={"rank-killed"}), *AGAIN),
    "code always": (decided(other(NO_MODULE, exit_code=75), restart_on={75}), "same", ""),
    "code always, at most five": (
        decided(*[other(NO_MODULE, exit_code=75)] * 6, restart_on={75}), "stop", "limit"),
    "a run without checkpoints": (
        decided(*[failed("rank-killed", "", n, seconds=900.0) for n in range(11)], max_restarts=1),
        *("stop", "limit"),
    ),
}  # fmt: skip
"""Name -> decision, action, and why it stopped or the node that is left out."""


@pytest.mark.parametrize("name", CASES)
def test_decision(name: str) -> None:
    decision, action, rest = CASES[name]
    assert (decision.action, decision.stopped or ",".join(decision.excluded)) == (action, rest), (
        decision.because
    )
    assert decision.because
    assert bool(decision.nodes) == (action != "stop")


def test_a_spare_takes_the_place_of_the_excluded_node() -> None:
    recheck = Recheck(unreachable=frozenset({"node0", "spare0"}), unclean=frozenset({"node2"}))
    decision = decided(KILLED, recheck=recheck, spares=("spare0", "spare1", "spare2"))
    assert decision.nodes == ("spare1", "node1", "spare2", "node3")
    assert decision.excluded == ("node0", "node2")
    assert decision.because == (
        "without node0 (unreachable), node2 (processes left of this run), with spares spare1, spare2:"
        " rank-killed on node1 (rank 1); the check before the restart fails"
    )


def test_an_excluded_node_never_comes_back() -> None:
    now = ("node0", "spare0", "node2", "node3")
    decision = decided(ECC, failed("ecc-uncorrectable", "spare0", nodes=now), spares=("node1", *SPARES))
    assert decision.nodes == ("node0", "spare1", "node2", "node3")


def test_a_run_with_fewer_nodes_gets_its_place_in_order() -> None:
    decision = decided(ECC, spares=(), min_nodes=1)
    assert (decision.nodes, decision.because) == (
        ("node0", "node2", "node3"),
        "without node1 (ecc-uncorrectable), on 3 of 4 nodes: ecc-uncorrectable on node1 (rank 1); the"
        " hardware is broken, and a restart there would fail again",
    )


def test_the_reason_says_what_a_restart_would_do_when_none_was_asked_for() -> None:
    because = decided(FLAP, max_restarts=0).because
    assert because.startswith(
        "--max-restarts is 0; a restart may help, on the same nodes: link-flapped on node1"
    )


def test_the_same_crash_twice_is_shown_with_both_attempts() -> None:
    because = decided(FLAP, BAD_VALUE, BAD_VALUE).because
    assert because.startswith(
        "attempts 2 and 3 ended alike at step 7 (rank-raised-exception on node1 (rank 1)"
    )


def test_detail_from_a_log_is_safe_to_print_and_short() -> None:
    assert decided(other("ValueError: \x1b[2J" + "x" * 10_000)).because.isprintable()
    assert len(decided(other("E" * 100_000)).because) < 500


def test_restarts_wait_longer_while_nothing_advances() -> None:
    assert decided(KILLED).wait_s == 1.0
    assert decided(failed("peer-died-first"), FLAP).wait_s == 10.0
    assert decided(HUB).wait_s == 10.0, "a hub is shared with other runs"
    assert decided(ECC).wait_s == 0.0, "no wait for a spare"
    assert decided(KILLED, failed("link-flapped", **TRAINED)).wait_s == 1.0


def test_a_storm_of_runs_is_spread_over_the_whole_wait() -> None:
    waits = [backoff_s(5, random.Random(run).random) for run in range(1000)]
    in_each_tenth = [sum(1 for w in waits if n * 16 <= w < (n + 1) * 16) for n in range(10)]
    assert sum(in_each_tenth) == 1000
    assert max(in_each_tenth) < 150


def test_a_scheduler_learns_whether_to_start_the_job_again() -> None:
    assert decided(failed("ddp-unused-parameters")).scheduler_code == 93
    assert decided(*[HUB] * 4).scheduler_code == 93
    assert decided(ECC, spares=()).scheduler_code == 75
    assert [one.scheduler_code for one in (decided(KILLED), decided(KILLED, max_restarts=0))] == [None, None]


# -- invariants ----------------------------------------------------------------------------------

names = st.sampled_from([*table.ROWS, ""])
some_nodes = st.frozensets(st.sampled_from([*NODES, *SPARES]), max_size=3)
numbers = st.none() | st.integers(0, 50)
causes = st.builds(
    FailureCause,
    names,
    st.sampled_from(CONFIDENCES),
    some_nodes.map(tuple),
    st.frozensets(st.integers(0, 7), max_size=2).map(tuple),
    st.sampled_from(["", "ValueError: x", "ImportError: y", "ConnectionError", "Xid 79"]),
    st.booleans(),
)
events = st.tuples(
    causes,
    numbers,
    numbers,
    st.floats(0, 2000),
    st.builds(
        Recheck,
        st.dictionaries(st.sampled_from([*NODES, *SPARES]), st.just(["gpu-missing"]), max_size=1),
        *[some_nodes] * 3,
    ),
)
policies = st.builds(
    Policy,
    st.integers(0, 4),
    st.integers(0, 4),
    st.frozensets(st.just("rank-killed")),
    st.frozensets(st.just("disk-full")),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(events, max_size=25), policies)
def test_no_run_loops_and_no_bad_node_is_used(happenings: list[Any], policy: Policy) -> None:
    attempts: list[EndedAttempt] = []
    nodes, banned, best, idle = NODES, set[str](), -1, 0
    for cause, saved, step, seconds, recheck in happenings:
        attempts.append(EndedAttempt(nodes, cause, seconds, None, None, saved, step))
        idle = 0 if saved is not None and saved > best else idle + 1
        best = max(best, -1 if saved is None else saved)
        decision = decide(attempts, recheck, SPARES, policy, random.random)
        bad = recheck.unusable.keys()
        if decision.action == "stop":
            assert decision.stopped
            assert not decision.nodes
            return
        banned |= {*decision.excluded, *bad} & set(nodes)
        assert not set(decision.nodes) & (banned | bad)
        assert len(set(decision.nodes)) == len(decision.nodes) >= max(1, min(policy.min_nodes, len(nodes)))
        assert (len(decision.nodes) < len(nodes)) == (decision.action == "shrink")
        assert decision.action != "shrink" or policy.min_nodes
        assert (decision.nodes == nodes) == (decision.action == "same") == (not decision.excluded)
        assert 0 <= decision.wait_s <= 300
        assert policy.max_restarts > 0
        assert idle <= MOST_UNSAVED * policy.max_restarts, "restarts without anything saved are bounded"
        if cause.confidence == "low":
            signs = {n for one in attempts[:-1] for n in one.cause.nodes} | bad
            assert set(decision.excluded) <= signs
        nodes = decision.nodes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(causes, st.floats(0, 500)), min_size=1, max_size=8), st.integers(0, 4))
def test_never_more_restarts_than_asked_for_without_progress(happenings: list[Any], most: int) -> None:
    attempts = [
        EndedAttempt(NODES, cause, seconds, saved_from=5, saved_to=5) for cause, seconds in happenings
    ]
    for count in range(1, len(attempts) + 1):
        decision = decide(attempts[:count], Recheck(), SPARES, Policy(most), random.random)
        assert decision.action == "stop" or count <= most
        assert decision.action == "stop" or decision.restarts_left == most - count


@pytest.mark.parametrize(
    "restart_on", [frozenset[str](), frozenset({"rank-killed", "rank-raised-exception"})]
)
@given(cause=causes.filter(lambda one: one.ranks and one.rule))
def test_the_same_crash_at_the_same_step_stops_whatever_is_allowed(cause: Any, restart_on: Any) -> None:
    attempts = [EndedAttempt(NODES, cause, 900.0, saved_from=n, saved_to=n + 1, step=40) for n in (1, 2)]
    decision = decide(attempts, Recheck(), SPARES, Policy(50, 1, restart_on), random.random)
    assert decision.action == ("same" if cause.rule in restart_on else "stop")


# -- the table -----------------------------------------------------------------------------------


def test_every_cause_has_its_row() -> None:
    causes = CAUSES.keys() | PLACE.keys()
    assert causes - table.ROWS.keys() == set(), "add them to _TEXT in recovery/table.py"
    assert table.ROWS.keys() - causes == set(), "recovery/table.py names causes that do not exist"


@pytest.mark.parametrize("name", table.ROWS)
def test_each_row_is_a_sentence_and_decides(name: str) -> None:
    row = table.ROWS[name]
    assert row.kind in table.KINDS
    assert row.sentence.endswith(".")
    assert "{" not in row.sentence
    action = decided(failed(name, **TRAINED)).action
    expected = {"user": {"stop"}, "stop": {"stop"}, "exclude": {"exclude"}, "setup": {"exclude"}}
    assert action in expected.get(row.kind, {"same"})


def test_codes_and_causes_of_the_options_are_read() -> None:
    assert table.code_or_cause("--restart-on", "75") == 75
    assert table.code_or_cause("--restart-on", " rank-killed ") == "rank-killed"


@pytest.mark.parametrize(
    "word", ["137", "143", "0", "256", "-1", "", "७५", "9" * 5000, "rank-kiled", "\x1b[2J"]
)
def test_other_codes_and_causes_are_refused(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        table.code_or_cause("--restart-on", word)
    assert len(str(refused.value)) < 300
    if word == "rank-kiled":
        assert "rank-killed" in refused.value.hint
