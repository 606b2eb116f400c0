"""Which failure was the first: times on one clock, victims after culprits."""

from __future__ import annotations

import base64
import json
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ringup.agent.guard import messages
from ringup.agent.guard.head import Head
from ringup.planning import NodePlan
from ringup.runtime import blame, node_state, output
from ringup.runtime.blame import TRACEBACK, End
from ringup.timeline.marks import Recorder

VICTIM = (TRACEBACK, "  File ...", "RuntimeError: Connection closed by peer")
CULPRIT = (TRACEBACK, "  File ...", "KeyError: 'loss'")


def rank(number: int, at_s: float, code: int = 1, node: str = "node0", **more: Any) -> End:
    return End("rank", node, at_s, rank=number, code=code, **more)


def first(*ends: End) -> End:
    found = blame.first(ends, lambda text: "closed by peer" in text)
    assert found
    return found[0]


def test_nothing_failed() -> None:
    assert blame.first([], lambda text: False) is None


def test_earlier_failure_comes_first() -> None:
    assert first(rank(0, 5.0), rank(3, 4.0, node="node1")).rank == 3


def test_victim_seen_earlier_does_not_hide_the_culprit() -> None:
    assert first(rank(0, 4.0, lines=VICTIM), rank(3, 5.0, lines=CULPRIT, node="node1")).rank == 3


def test_victims_alone_name_the_earliest_and_say_so() -> None:
    found = blame.first([rank(1, 5.0, lines=VICTIM), rank(0, 4.0, lines=VICTIM)], lambda t: "closed" in t)
    assert found and (found[0].rank, found[1]) == (0, True)


def test_warning_about_a_peer_before_the_traceback_does_not_make_a_victim() -> None:
    lines = ("retrying: Connection closed by peer", *CULPRIT)
    assert first(rank(2, 4.0, lines=lines), rank(0, 5.0, lines=VICTIM)).rank == 2


def test_rank_that_raised_and_was_slow_to_end_comes_before_its_victim() -> None:
    slow = rank(3, 9.0, code=-15, traceback_s=4.0, told_s=6.0, lines=CULPRIT, node="node1")
    assert first(rank(0, 5.0, lines=VICTIM), slow).rank == 3
    assert first(rank(0, 5.0, code=7), slow).rank == 3


def test_a_rank_that_raised_is_the_cause_though_its_launcher_ended_it_before_ringup_did() -> None:
    raised = rank(0, 4.75, code=-15, traceback_s=4.70, told_s=4.751, lines=CULPRIT)
    assert first(rank(1, 4.72, traceback_s=4.71, lines=VICTIM), raised).rank == 0
    assert first(rank(1, 4.72, traceback_s=4.71, lines=VICTIM), replace(raised, told_s=0.0)).rank == 0
    # It went on after its exception, so the end came from somewhere else.
    alive = replace(raised, lines=(*CULPRIT, "step 7"))
    assert first(rank(1, 4.72, code=7, traceback_s=0.0), alive).rank == 1


def test_a_rank_that_raised_comes_before_its_victim_though_its_traceback_was_read_later() -> None:
    raised = rank(0, 5.0, code=-15, traceback_s=4.7, told_s=4.9, lines=CULPRIT)
    victim = rank(1, 4.8, traceback_s=4.6, lines=VICTIM)
    assert first(victim, raised).rank == 0


def test_a_traceback_that_a_rank_outlived_comes_after_an_end_of_its_own() -> None:
    caught = rank(3, 9.0, code=-15, traceback_s=4.0, told_s=6.0, lines=(*CULPRIT, "step 7"), node="node1")
    assert first(rank(0, 5.0, code=-9), caught).rank == 0
    assert first(rank(0, 5.0, lines=VICTIM), caught).rank == 3
    assert first(rank(0, 5.0, code=-9), replace(caught, lines=CULPRIT)).rank == 3


def test_rank_ended_by_us_is_never_first() -> None:
    assert first(rank(3, 4.5, code=-15, told_s=4.4), rank(0, 4.4, lines=VICTIM)).rank == 0


def test_sibling_ended_by_its_launcher_comes_after_a_victim_elsewhere() -> None:
    ends = [rank(2, 4.1, code=-15), rank(3, 4.0, code=3), rank(0, 4.05, node="node1", lines=VICTIM)]
    assert first(*ends).rank == 3


def test_rank_ended_by_sigterm_from_outside_is_the_cause() -> None:
    ends = [rank(3, 4.0, code=-15), rank(2, 4.2, code=-15), rank(0, 4.1, node="node1", lines=VICTIM)]
    assert first(*ends).rank == 3


def test_launcher_only_repeats_what_its_ranks_did() -> None:
    ends = [End("launcher", "node0", 4.6, code=1), rank(0, 4.5, lines=VICTIM)]
    assert first(*ends).kind == "rank"


def test_launcher_that_fails_first_is_the_cause() -> None:
    ends = [End("launcher", "node0", 4.0, code=1), rank(2, 4.5, node="node1", lines=VICTIM)]
    assert first(*ends).kind == "launcher"


def test_lost_node_comes_before_the_ranks_that_miss_it() -> None:
    ends = [End("node", "node1", 6.0, words="gone"), rank(0, 4.5, lines=VICTIM)]
    assert first(*ends).kind == "node"


def test_old_traceback_does_not_date_a_later_end() -> None:
    assert rank(0, 500.0, traceback_s=10.0).failed_s == 500.0
    assert rank(0, 500.0, code=-9, traceback_s=495.0).failed_s == 500.0
    assert rank(0, 500.0, traceback_s=495.0).failed_s == 495.0


class Sink:
    times = Recorder(lambda line: None)

    def on_rank_output(self, *_: object) -> None: ...

    def on_lost_output(self, *_: object) -> None: ...


READY = {"type": "ready", "pid": 5, "guard": 6, "clock": 1.0, "python": "3.8.1", "reaper": True}


def node_run() -> node_state.NodeRun:
    return node_state.NodeRun(NodePlan("node1", 1, 2, 2, "", "", (), {}), Sink(), lambda *_: None)


def test_clock_ahead_is_corrected_by_the_quickest_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = node_state.Clock()
    clock.hear(sent_s=10.0, clock_s=101.5, now_s=13.0)
    clock.hear(sent_s=20.0, clock_s=110.005, now_s=20.01)
    clock.hear(sent_s=30.0, clock_s=121.9, now_s=32.0)
    assert clock.ours(110.105) == pytest.approx(20.105)
    assert clock.ours(0) == 0


def test_clocks_that_drift_are_compared_again() -> None:
    clock, drift = node_state.Clock(), 20e-6
    for beat in range(40_000):
        sent_s, trip_s = 1.0 + 2 * beat, 0.0002 if beat < 2 else 0.001
        clock.hear(sent_s, (sent_s + trip_s / 2) * (1 + drift), sent_s + trip_s)
        assert clock.error_s is not None and clock.error_s < 0.0011
        assert abs(clock.ours(sent_s * (1 + drift)) - sent_s) <= clock.error_s + 1e-6


def test_the_head_compares_clocks_that_drift_again_but_seldom() -> None:
    written: list[dict[str, Any]] = []
    one = SimpleNamespace(compared={}, peers={0: None, 1: None}, _write=written.append)
    for beat in range(40_000):
        sent_s, trip_s = 2.0 * beat, 0.0002 if beat < 2 else 0.001
        clock_s = (sent_s + trip_s / 2) * (1 + 20e-6)
        Head._compare(one, 1, {"echo": sent_s, "clock": clock_s}, sent_s + trip_s)
    assert 80_000 / 1200 < len(written) < 80_000 / 600 + 3
    assert written[-1]["ahead"] == pytest.approx(80_000 * 20e-6, abs=0.02)


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\xff\xfe", b"[]", b"7", b'"x"', b"{}", b'{"type": null}', b'{"type": []}', b'{"type": "end"}',
        b'{"type": "exit"}', b'{"type": "exit", "code": "x", "at": "y", "tail": 5}',
        b'{"type": "exit", "code": 1e999, "at": NaN, "rank": 99999999999999999999, "tail": "!!!"}',
        b'{"type": "out", "data": 1}', b'{"type": "out", "data": "%%%", "rank": [], "fd": {}}',
        b'{"type": "beat", "echo": "x", "clock": Infinity}',
        b'{"type": "ended", "left": [[1], 2, [3, "a", 4], "x"]}',
        b'{"type": "guard-lost", "left": {"a": 1}}', b'{"type": "launcher-exit", "code": true}',
        b'{"type": "problem", "words": {"a": [1]}}', b'{"type": "_end"}', b'{"type": "over"}', b"[" * 100000,
    ],
)  # fmt: skip
def test_whatever_a_node_says_is_taken_or_left_out(line: bytes) -> None:
    it = node_run()
    it.on_output(line + b"\n" + json.dumps(READY).encode() + b"\n")
    assert it.refused == (line != b"")


def ended(codes: list[int | None], launcher: int, tail: str = "", sigterm_at: float = 0.0) -> Any:
    """Two ranks with these exit codes (None: it still runs), then the end of their launcher."""
    plan = NodePlan("node1", 1, 2, 2, "", "", ("/run/rank.py",), {}, run_dir="/run")
    it = node_state.NodeRun(plan, Sink(), lambda *_: None)
    for number, code in enumerate(codes):
        own = {"rank": number, "local_rank": number, "pid": 7 + number}
        it.hear({"type": "rank", **own, "at": 1.0})
        if code is not None:
            it.hear({"type": "exit", **own, "code": code, "at": 2.0, "traceback_at": 0, "sigterm_at": 0,
                     "lost": False, "tail": ""})  # fmt: skip
    words = base64.b64encode(tail.encode()).decode()
    it.hear({"type": "launcher-exit", "code": launcher, "at": 3.0, "sigterm_at": sigterm_at, "tail": words})
    return it


def test_a_launcher_that_ends_before_its_ranks_has_failed() -> None:
    assert [end.kind for end in ended([None, None], -9).ends] == ["launcher"]
    assert [end.kind for end in ended([0, None], 1).ends] == ["launcher"]
    done = ended([0, 0], 1)
    assert done.ends == [] and "their launcher exited 1" in done.notes[0]


def test_ranks_that_save_and_exit_with_0_when_torchrun_gets_sigterm_have_not_finished() -> None:
    said = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 5 got signal: 15\n"
    assert [end.kind for end in ended([0, 0], 1, said).ends] == ["launcher"]


@pytest.mark.parametrize(("late", "told_s", "is_done"), [(15, 1.5, True), (9, 1.5, False), (0, 1.5, False)])
def test_a_rank_whose_script_had_ended_when_sigterm_came_has_left_before(
    late: int, told_s: float, is_done: bool
) -> None:
    it = node_run()
    it.hear({"type": "exit", "rank": 1, "local_rank": 1, "pid": 8, "code": 0, "at": 2.0, "traceback_at": 0,
             "sigterm_at": told_s, "lost": False, "tail": "", "late": late})  # fmt: skip
    assert (8 in it.done_s) == is_done


def test_a_launcher_that_exits_with_0_and_has_started_no_ranks_has_failed() -> None:
    (end,) = ended([], 0).ends
    assert end.kind == "launcher" and "0 of its 2 ranks" in end.words
    assert ended([0, 0], 0).ends == [] and ended([], 0, sigterm_at=2.0).ends == []


def test_every_message_of_the_table_has_somebody_to_take_it() -> None:
    for kind in messages.IN_JOURNAL:
        assert callable(getattr(node_state.NodeRun, f"_on_{kind}".replace("-", "_")))


@pytest.mark.parametrize(
    "message",
    [
        {"type": "problem", "words": "w" * 200},
        {"type": "ready", **READY, "reaper": False},
        {"type": "rank", "rank": 1, "local_rank": 1, "pid": 1, "at": 1.0},
        {"type": "exit", "rank": 1, "local_rank": 1, "pid": 1, "code": 1, "at": 1.0, "traceback_at": 0,
         "sigterm_at": 0, "lost": False, "tail": "eHh4" * 2_000},
        {"type": "out", "rank": 1, "fd": 1, "at": 1.0, "data": "eHh4"},
        {"type": "look", "number": 1, "problem": "x" * 2_000},
        {"type": "never heard of", "words": "w" * 200},
    ],
    ids=lambda message: message["type"],
)  # fmt: skip
def test_a_flood_from_a_node_takes_no_memory_and_its_loss_is_counted(message: dict[str, Any]) -> None:
    it = node_run()
    line, count = json.dumps(message).encode() + b"\n", 10_000
    for _ in range(messages.MOST_RANKS):
        it.on_output(line)
    tracemalloc.start()
    for number in range(count):
        it.on_output(json.dumps({**message, "rank": number}).encode() + b"\n")
    kept_bytes, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 1 << 20
    assert it.refused > count / 2


def test_line_without_end_is_not_kept_for_ever() -> None:
    it = node_run()
    tracemalloc.start()
    for _ in range(100):
        it.on_output(b"x" * 1_000_000)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes <= 2 * messages.LONGEST_LINE_BYTES
    assert it.refused == 1


def test_words_of_a_node_cannot_reach_the_terminal() -> None:
    it = node_run()
    it.hear({"type": "problem", "words": "\x1b]0;title\x07\x1b[2Jbad\r\nline\u202e"})
    assert it.ends[0].words == "badline" or "\x1b" not in it.ends[0].words


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1b", "a"),
        ("tab\tstays\x08\x00", "tab\tstays"),
        ("\x9b31mC1", "31mC1"),
        ("left\u202eright", "leftright"),
    ],
)
def test_line_is_shown_without_its_power(raw: str, shown: str) -> None:
    assert output.clean(raw) == shown
