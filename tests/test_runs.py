"""The list of runs, and what stands last on the screen when a run has failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringup.cli import attach, launching, restarting, runs
from ringup.cli.command_line import main
from ringup.cli.pipeline import Judgement
from ringup.logs.read import read_logs
from ringup.network.predictions import predicted
from ringup.rules import PROBLEMS, Finding, complete
from ringup.runtime import Event, RunResult
from ringup.runtime.record import run_json
from tests import clusters as c


def record(folder: Path, run: str, started: float, **more: Any) -> None:
    folder.mkdir(parents=True)
    plan = {"job": {"script": "a/train.py"}, "nodes": [{"node": "n0"}, {"node": "n1"}], "world_size": 16}
    content = {"run": run, "outcome": "ok", "started": started, "seconds": 3.0, "plan": plan, **more}
    (folder / "run.json").write_text(json.dumps(content))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["runs", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_runs_are_listed_newest_first_with_their_cause(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(home / "runs/a", "a", 100.0)
    record(home / "runs/b", "b", 300.0, outcome="rank-failed", cause={"rule": "gpu-out-of-memory"})
    record(home / "runs/c", "c", 200.0, outcome="running")
    record(home / "runs/d", "d", 50.0, outcome="check-stopped", plan=None)
    (home / "runs/e").mkdir()
    (home / "runs/e/run.json").write_text('{"run": ' + "[" * 100_000)
    lines = listed(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["RUN", "b", "c", "a", "d"]
    assert "n0, n1" in lines[1] and "train.py" in lines[1]
    assert [line.split()[-1] for line in lines[1:4]] == ["gpu-out-of-memory", "running", "ok"]
    rows = json.loads(listed(capsys, "--json"))["runs"]
    assert [row["state"] for row in rows] == ["ended", "running", "ended", "ended"]
    assert rows[0]["nodes"] == ["n0", "n1"] and (rows[0]["ranks"], rows[0]["outcome"]) == (16, "rank-failed")
    assert [row["outcome"] for row in rows[1:]] == [None, "ok", "check-stopped"]


def test_a_test_has_its_command_in_place_of_a_script(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"job": {"script": "", "arguments": ["test", "gloo"]}, "nodes": [{"node": "n0"}], "world_size": 1}
    record(home / "runs/a", "a", 100.0, plan=plan)
    assert "ringup test" in listed(capsys)


def test_a_run_whose_launcher_is_gone_is_not_called_running(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, host in (("a", os.uname().nodename), ("b", "elsewhere")):
        record(home / "runs" / name, name, 100.0 + len(host), outcome="running")
        (home / "runs" / name / ".launcher").write_text(f"1 {host}\n")
    rows = json.loads(listed(capsys, "--json"))["runs"]
    assert {row["run"]: row["launcher_gone"] for row in rows} == {"a": True, "b": False}
    assert "launcher-gone" in listed(capsys)


def test_a_log_directory_has_its_own_runs_alone(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record(home / "ld/a", "a", 100.0)
    record(home / "elsewhere/b", "b", 200.0)
    monkeypatch.setattr(runs, "detached", lambda: [home / "elsewhere/b"])
    assert [row["run"] for row in json.loads(listed(capsys, "--json"))["runs"]] == ["b"]
    own = json.loads(listed(capsys, "--log-dir", "ld", "--json"))["runs"]
    assert [row["run"] for row in own] == ["a"]


def test_the_errors_that_stopped_a_run_are_its_causes(tmp_path: Path) -> None:
    """`ringup logs` reads a run of which no rank was started."""
    missing = Finding("n1", "held by another process", "port 29500 free", node="n1")
    other = Finding("n0", "3 MB free", "1 GB", node="n0", rule="disk-full", severity="error")
    found = [complete(missing, PROBLEMS["port-in-use"]), complete(other, PROBLEMS["disk-full"])]
    content = run_json("r", outcome="check-stopped", exit_code=1, started=1.0, findings=found)
    launching.write_stopped(tmp_path, content)
    causes = read_logs([str(tmp_path)]).causes
    assert [(cause.rule, cause.confidence) for cause in causes] == [(one.rule, "high") for one in found]
    assert [cause.evidence[0].line for cause in causes] == [1, 2] and causes[0].nodes == ("n1",)


@pytest.mark.parametrize(("verdict", "rule"), [({"text": "rank 1 is missing"}, "rank-missing"), (None, None)])
def test_a_run_that_hung_until_it_was_interrupted_has_a_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: dict[str, str] | None, rule: str | None
) -> None:
    monkeypatch.setattr(launching, "cause_of", lambda log_dir: (["error: x"], None, {"rule": "rank-missing"}))
    known = run_json("r", outcome="interrupted", exit_code=130, started=1.0) | {"verdict": verdict}
    ended = RunResult("r", "interrupted", 130, None, (), (), (), str(tmp_path), 9.0, record=known)
    result, lines, _ = launching.with_cause(ended)
    assert lines == ["error: x"] * bool(verdict)
    assert (result.record.get("cause") or {}).get("rule") == rule


@pytest.mark.parametrize("script", ["", "train.py"])
def test_the_notes_are_where_the_line_before_the_start_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: str
) -> None:
    monkeypatch.setattr("ringup.output.console.plan_lines", lambda plan, style: [])
    cluster = c.healthy(2)
    cluster = replace(cluster, job=replace(cluster.job, script=script))
    note = Finding("train.py:3", "x", "y", rule="no-destroy-process-group", severity="note")
    judged: Any = SimpleNamespace(cluster=cluster, findings=[note])
    launching.show_before(judged, SimpleNamespace(), runs_parser("run", ["--", "train.py"]))  # type: ignore[arg-type]
    said = " ".join(capsys.readouterr().err.split())
    assert ("(`ringup check` and `ringup lint train.py` show notes)" in said) == bool(script)
    assert ("(`ringup check` shows notes)" in said) != bool(script)


def test_a_run_that_was_stopped_before_there_was_a_plan_is_known_by_its_script_and_nodes(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = c.cluster(
        c.unreached("n1", "ssh-name-unknown", "x"), c.unreached("n2", "ssh-name-unknown", "x")
    )
    cluster = replace(cluster, job=replace(cluster.job, script="train.py"))
    (home / "runs/a").mkdir(parents=True)
    content = launching.stopped_record("a", 1, Judgement(cluster, predicted(cluster), [], [], None))
    launching.write_stopped(home / "runs/a", content)
    (row,) = json.loads(listed(capsys, "--json"))["runs"]
    assert (row["nodes"], row["script"]) == (["n1", "n2"], "train.py")


def test_rows_fit_a_terminal_of_80_columns(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, rule = "20261127-030248-4322b1a7", "environment-differs-between-nodes"
    record(home / "runs" / name, name, 100.0, outcome="rank-failed", cause={"rule": rule})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("ringup.output.terminal.columns", lambda stream: 80)
    monkeypatch.setattr("ringup.cli.runs.columns", lambda stream: 80)
    lines = listed(capsys, "--quiet").splitlines()
    assert max(map(len, lines)) <= 80 and lines[-1].endswith(rule)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert listed(capsys).split()[:3] == ["RUN", "SCRIPT", "STATE"]  # the name has the time


def test_words_of_a_record_cannot_reach_the_terminal(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(home / "runs/a", "\x1b[2Ja", 100.0, cause={"rule": "\x1b]0;x\x07"})
    assert not set(listed(capsys)) & {"\x1b", "\x07"}


def test_an_empty_list_says_where_it_looked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("elsewhere").mkdir()
    assert listed(capsys, "--log-dir", "elsewhere") == "no run in elsewhere\n"


def test_attach_without_a_name_takes_the_newest_run_that_goes_on(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(home / "runs/old", "old", 100.0, outcome="running")
    record(home / "runs/new", "new", 200.0)
    noted = [home / "runs/new", home / "runs/old"]
    monkeypatch.setattr(runs, "detached", lambda: noted)
    monkeypatch.setattr("ringup.runtime.detach.known", lambda: ["new", "old"])
    asked = []

    def load(run: str) -> None:
        asked.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr("ringup.runtime.detach.load", load)
    for words in ([], ["new"]):
        with pytest.raises(KeyboardInterrupt):
            attach.run(runs_parser("attach", words))
    assert asked == ["old", "new"]
    capsys.readouterr()
    assert attach.run(runs_parser("attach", ["--list"])) == 0
    heading, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert heading == ["RUN", "AGE", "NODES", "RANKS", "SCRIPT", "STATE", "CAUSE"]
    assert [row[0] for row in rows] == ["new", "old"] and "running" in rows[1]
    monkeypatch.setattr("ringup.runtime.detach.known", lambda: ["lost", "new", "old"])
    assert attach.run(runs_parser("attach", ["--list"])) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:4] == ["lost", "its", "folder", "is"]


def runs_parser(command: str, words: list[str]) -> Any:
    from ringup.cli.commands import parser_for

    return parser_for(command).read(words)


@pytest.mark.slow
@pytest.mark.torch
def test_a_failed_run_ends_with_the_cause_that_logs_names(home: Path) -> None:
    (home / "train.py").write_text("print('step 1', flush=True)\nraise ValueError('bad batch')\n")
    words = ["run", "--local", "1", "--nproc", "1", "--with", "python", "--backend", "gloo", "train.py"]
    done = subprocess.run([sys.executable, "-m", "ringup", *words], capture_output=True, text=True)
    assert done.returncode == 1
    (folder,) = (home / "runs").iterdir()
    cause = read_logs([str(folder)]).causes[0]
    last = done.stderr.rstrip().splitlines()
    assert any(line.startswith(f"error: {cause.rule} ({cause.confidence} confidence)") for line in last), last
    assert any("rank-00000" in line and "ValueError: bad batch" in line for line in last), last
    assert last[-1] == f"  more: ringup logs runs/{folder.name}"
    again = "restart: it may fail in the same way; --max-restarts K tries it once"
    assert f"{again} (`ringup explain {cause.rule}`)" in last
    assert json.loads((folder / "run.json").read_text())["cause"]["rule"] == cause.rule


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_that_ended_well_says_nothing_of_a_cause(home: Path) -> None:
    (home / "train.py").write_text("print('step 1', flush=True)\n")
    words = ["run", "--local", "1", "--nproc", "1", "--with", "python", "--backend", "gloo", "train.py"]
    done = subprocess.run([sys.executable, "-m", "ringup", *words], capture_output=True, text=True)
    assert done.returncode == 0 and "cause" not in done.stderr


@pytest.mark.parametrize(
    ("outcome", "code", "restart"), [("running", None, None), ("ok", 0, {"stopped": "ok"})]
)
def test_a_run_that_goes_on_has_no_exit_code_yet(
    tmp_path: Path, outcome: Any, code: int | None, restart: dict[str, str] | None
) -> None:
    known = run_json("r", outcome=outcome, exit_code=code, started=1.0)
    ended = RunResult("r", outcome, 0, None, (), (), (), str(tmp_path), 9.0, record=known)
    series: Any = SimpleNamespace(result=ended, decision=None, whole=dict, folder=tmp_path, cause_lines=[])
    series.exit_code, series.write = lambda result: 0, SimpleNamespace(code=lambda code: code)
    series.args = runs_parser("run", ["--detach", "--", "train.py"])
    assert restarting.Supervisor.show_end(series) == 0
    written = json.loads((tmp_path / "run.json").read_text())
    assert (written["exit_code"], written["restart"]) == (code, restart)


def test_the_start_of_ranks_is_not_shown_below_their_output() -> None:
    write = launching.RankLines(Namespace(json=False))
    shown: list[Event] = []
    on_event = attach.without_late_starts(shown.append, write)
    joined, note = Event("joined", "2 of 2 ranks started"), Event("note", "the network is slow")
    on_event(joined)
    write("node0:0| step 0\n")
    on_event(joined)
    on_event(note)
    assert shown == [joined, note]


def test_a_hang_is_not_described_twice(capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(quiet=False, hang_timeout=600.0)
    what = "collective 4 is barrier on rank 0, all_reduce on the others"
    lines = [f"no progress for 12 s: {what}", "  rank 0 (n0): barrier, t.py:19", f"  flight recorder: {what}"]
    launching.follow_events(2, args)(Event("hang", "\n".join(lines)))
    assert capsys.readouterr().err.split("\n") == [f"ringup: {lines[0]}", lines[1], ""]
    launching.follow_events(2, Namespace(quiet=False, hang_timeout=0.0))(Event("hang", "\n".join(lines)))
    assert "`--hang-timeout S` ends a run that hangs\n" in capsys.readouterr().err
