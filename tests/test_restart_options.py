"""The options of restarts: what they accept, what they refuse, and what they allow."""

from __future__ import annotations

import argparse
import io
import json
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import msgspec
import pytest

from ringup.cli import options, restarting, restarts, supervising
from ringup.cli.command_line import dispatch
from ringup.errors import UsageError
from ringup.output import restart_report
from ringup.output.terminal import Style
from ringup.recovery.decision import Decision, Policy
from ringup.recovery.table import ROWS
from ringup.saved_run import AttemptCause, AttemptProgress, SavedAttempt

Kind = TypeVar("Kind", bound=restarting.Supervisor)


def parsed(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    options.add(parser, (restarts.RESTARTS,))
    return parser.parse_args(line.split())


def test_without_options_nothing_is_restarted() -> None:
    args = parsed("")
    assert restarts.policy_from(args) == Policy()
    assert (args.spares, args.save_signal, args.save_grace, args.progress) == (0, None, 120.0, "")
    restarts.check_node_count(args, 1)


def test_the_options_become_a_policy() -> None:
    line = (
        "--max-restarts 3 --min-nodes 2 --restart-on 75,rank-killed --restart-on 76 --no-restart-on disk-full"
    )
    expected = Policy(3, 2, frozenset({75, 76, "rank-killed"}), frozenset({"disk-full"}))
    assert restarts.policy_from(parsed(line)) == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--restart-on 137", "SIGKILL"),
        ("--no-restart-on 143", "SIGTERM"),
        ("--restart-on rank-kiled", "neither an exit code"),
        ("--restart-on 5 --no-restart-on 5", "in --restart-on and --no-restart-on"),
        ("--restart-on 5,,6", "neither an exit code"),
    ],
)
def test_codes_and_causes_that_cannot_be_are_refused(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        restarts.policy_from(parsed(line))


@pytest.mark.parametrize(
    "line",
    ["--max-restarts -1", "--max-restarts 1.5", "--max-restarts 9999", "--spares -1", "--min-nodes 0",
     "--save-grace -1", "--save-grace nan", "--save-grace 1e9", "--save-signal KILL", "--save-signal STOP",
     "--save-signal 9", "--save-signal FOO", "--save-signal 0", "--save-signal 9999"],
)  # fmt: skip
def test_values_that_cannot_be_are_refused(line: str) -> None:
    with pytest.raises(argparse.ArgumentError):
        parsed(line)


@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "usr1", str(int(signal.SIGUSR1))])
def test_a_signal_is_read_by_name_and_number(name: str) -> None:
    assert parsed(f"--save-signal {name}").save_signal == signal.SIGUSR1


def test_spares_leave_nodes_for_the_run() -> None:
    restarts.check_node_count(parsed("--spares 2 --min-nodes 8"), 10)
    with pytest.raises(UsageError, match="2 nodes leave none for the run"):
        restarts.check_node_count(parsed("--spares 2"), 2)
    with pytest.raises(UsageError, match="the run has 8 nodes without its spares"):
        restarts.check_node_count(parsed("--spares 2 --min-nodes 9"), 10)


def test_explain_says_what_a_restart_does(capsys: pytest.CaptureFixture[str]) -> None:
    for name in sorted(ROWS):
        assert dispatch(["explain", name]) == 0
        assert f"Restart: {ROWS[name].sentence}" in " ".join(capsys.readouterr().out.split())
    assert dispatch(["explain", "clock-skew"]) == 0
    assert "Restart:" not in capsys.readouterr().out
    assert dispatch(["explain", "--json"]) == 0
    told = {one["name"]: one["restart"] for one in json.loads(capsys.readouterr().out)["problems"]}
    assert told["rank-killed"] == ROWS["rank-killed"].sentence
    assert told["clock-skew"] is None


def made(kind: type[Kind], folder: Path, patch: pytest.MonkeyPatch) -> Kind:
    background = SimpleNamespace(hold=lambda _: None, leave=lambda _: None)
    args = SimpleNamespace(
        spares=0, save_signal=None, save_grace=0.0, max_restarts=3, quiet=True, background=background
    )
    patch.setattr(restarting, "Rechecks", lambda *_: None)
    patch.setattr(restarting.launching, "RankLines", lambda *_: None)
    return kind(SimpleNamespace(nodes=()), None, folder, args)  # type: ignore[arg-type]


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> restarting.Supervisor:
    return made(restarting.Supervisor, tmp_path, monkeypatch)


def test_a_resumed_attempt_keeps_the_number_of_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = made(supervising.DetachedSupervisor, tmp_path, monkeypatch)
    plan = SimpleNamespace(run_id="x", nodes=())
    followed: list[str] = []
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path)
    monkeypatch.setattr(supervising.request, "forwarded", lambda *_: {})
    monkeypatch.setattr(
        supervising.detach, "load", lambda _: SimpleNamespace(plan=plan, findings=(), started=time.time())
    )
    monkeypatch.setattr(resumed, "supervise", lambda attempt: followed.append(str(attempt)) or 0)
    resumed.cluster = SimpleNamespace(job=SimpleNamespace(launcher="torchrun"))  # type: ignore[assignment]
    entry = SavedAttempt(1, started=time.time())
    resumed.note(restarting.Attempt(entry, plan, [], of=4), is_handed_over=True)  # type: ignore[arg-type]
    (tmp_path / "run.json").write_text(json.dumps({"attempts": [msgspec.to_builtins(entry)]}))
    state = msgspec.json.decode((tmp_path / supervising.STATE).read_bytes(), type=supervising.State)
    assert resumed.resume(state) == 0
    assert followed == ["attempt 1 of 4"]


def test_a_clock_that_is_set_does_not_change_the_duration_of_a_run(
    supervisor: restarting.Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor.entries = [SavedAttempt(number, started=supervisor.now()) for number in (1, 2)]
    monkeypatch.setattr(time, "time", lambda: 5.0)
    whole = supervisor.whole({"run": "x", "seconds": 1.0})
    assert 0 <= whole["seconds"] < 60


def test_ctrl_c_again_between_attempts_does_not_hide_the_end(
    supervisor: restarting.Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []

    def after(_attempt: object) -> None:
        signal.raise_signal(signal.SIGINT)

    def show_end() -> int:
        signal.raise_signal(signal.SIGINT)
        return codes[0]

    monkeypatch.setattr(supervisor, "attempt", lambda _attempt: SimpleNamespace(outcome="rank-failed"))
    monkeypatch.setattr(supervisor, "after", after)
    monkeypatch.setattr(supervisor, "interrupted", codes.append)
    monkeypatch.setattr(supervisor, "show_end", show_end)
    assert supervisor.supervise(object()) == 130  # type: ignore[arg-type]


def test_the_table_of_attempts_fits_80_columns_and_the_line_between_two_has_the_confidence() -> None:
    cause = AttemptCause(rule="disk-full", confidence="high", nodes=["node1"])
    nodes = ["node[0-7]", "node8"]
    entries = [
        SavedAttempt(1, nodes, 2, 1.0, 10.0, "rank-failed", cause),
        SavedAttempt(2, nodes, 2, 10.0, 20.0, "ok"),
    ]
    _, head, first, *_ = restart_report.end_lines(entries, 19.0, None)
    assert head.split() == ["attempt", "nodes", "time", "ended", "by", "then"]
    assert len(first) <= 80 and "  disk-full on node1  same nodes" in first
    stop = Decision("stop", "why")
    (line,) = restart_report.decision_lines(entries[0], "attempt 1 of 2", stop, [], Style(io.StringIO()))
    assert line == "ringup: attempt 1 of 2 ended after 9.0 s: disk-full on node1 (high confidence)"
    entries[1].progress = AttemptProgress(None, 40.0, "steps in the output")
    assert "progress" in restart_report.end_lines(entries, 19.0, None)[1]
