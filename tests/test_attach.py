"""A run that was handed to its head node: it goes on alone, can be found again, and leaves nothing."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup import hosts
from ringup.agent.guard import head
from ringup.cli import command_line
from ringup.errors import NodeUnreachable, UsageError
from ringup.runtime import Options, RunResult, attach, detach, ssh
from ringup.transport import Transport
from tests.guards import alive, tagged, wait_for
from tests.test_launch import make_plan

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux"), pytest.mark.slow]

FOREVER = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('up', rank, flush=True)\ntime.sleep(300)"


def wait_script(go: Path) -> str:
    return f"print('up', rank, flush=True)\nwhile not os.path.exists('{go}'): time.sleep(0.05)\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Detached:
    """A run handed over by a launcher that has gone."""

    def __init__(self, folder: Path, script: str, nodes: int = 2, lease_s: float = 20.0) -> None:
        self.folder = folder
        self.plan = make_plan(folder, script, nodes=nodes)
        self.hosts = hosts.local_nodes(nodes)
        with Transport(self.hosts) as door:
            options = {"log_dir": folder / "logs", "detach": True, "lease_s": lease_s}
            self.handed = ssh.run(self.plan, door, **options)

    def follow(self, **options: Any) -> tuple[RunResult, str]:
        shown: list[str] = []
        noted = detach.load(self.plan.run_id)
        with Transport(noted.hosts) as door:
            result = attach.follow(noted, door, write=shown.append, **options)
        return result, "".join(shown)

    def guards(self) -> list[int]:
        """Both halves on every node, the head's first."""
        label = f"ringup-guard:{self.plan.run_id}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and label in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return sorted(found)

    def up(self) -> None:
        wait_for(lambda: self.journal().count(b"up") >= 4, "every rank has said `up`")

    def journal(self) -> bytes:
        """What the head has written down of the ranks' output."""
        paths = Path(self.plan.nodes[0].run_dir + ".journal").glob("out-*")
        lines = [line for path in paths for line in path.read_text().splitlines()]
        return b"".join(base64.b64decode(json.loads(line)["data"]) for line in lines)


def environ(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


@pytest.fixture
def runs() -> Iterator[list[Detached]]:
    made: list[Detached] = []
    yield made
    for run in made:
        for pid in [*run.guards(), *tagged(run.plan.run_id)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_handed_over_run_ends_well_without_us(tmp_path: Path, runs: list[Detached]) -> None:
    go = tmp_path / "go"
    run = Detached(
        tmp_path,
        wait_script(go) + "print('bye', rank)",
    )
    runs.append(run)
    assert (run.handed.outcome, run.handed.exit_code) == ("running", 0)
    assert run.handed.record["exit_code"] is None
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["detached"] is True
    run.up()
    go.touch()
    wait_for(lambda: not run.guards(), "the guards have ended")
    assert not tagged(run.plan.run_id)
    for _ in range(2):  # as often as one likes
        result, text = run.follow()
        assert (result.outcome, result.exit_code, result.findings) == ("ok", 0, ())
        assert sorted(text.splitlines()) == sorted(
            f"127.0.0.{2 + r // 2}:{r}| {word} {r}" for r in range(4) for word in ("up", "bye")
        )
    assert (tmp_path / "logs" / "rank-00003-127.0.0.3.log").read_text() == "up 3\nbye 3\n"
    record = json.loads((tmp_path / "logs" / "run.json").read_text())
    assert (record["outcome"], [r["code"] for r in record["ranks"]]) == ("ok", [0, 0, 0, 0])


def test_first_failure_ends_a_detached_run_everywhere(tmp_path: Path, runs: list[Detached]) -> None:
    run = Detached(
        tmp_path, FOREVER.replace("time.sleep(300)", "sys.exit(3) if rank == 3 else time.sleep(300)")
    )
    runs.append(run)
    wait_for(lambda: not run.guards(), "the guards have ended")
    assert not tagged(run.plan.run_id)
    result, _ = run.follow()
    assert (result.outcome, result.exit_code) == ("rank-failed", 3)
    assert (result.failure.rank, result.failure.lines) == (3, ("up 3",))
    assert 0 <= result.failure.at_s <= result.seconds


def test_attach_follows_live_and_sees_the_end(tmp_path: Path, runs: list[Detached]) -> None:
    go = tmp_path / "go"
    run = Detached(
        tmp_path,
        wait_script(go) + "print('z' * 3000000)",
    )
    runs.append(run)
    run.up()
    events = []

    def on_event(event: Any) -> None:
        events.append(event)
        if event.kind == "joined":
            go.touch()

    result, text = run.follow(on_event=on_event)
    assert result.outcome == "ok"
    assert text.count("| up") == 4
    for rank in range(4):
        path = tmp_path / "logs" / f"rank-{rank:05d}-127.0.0.{2 + rank // 2}.log"
        assert path.stat().st_size == 5 + 3000001


def test_whoever_still_reads_after_the_end_is_waited_for() -> None:
    def is_drained(moved_s: float, is_read: bool) -> bool:
        ended = head.Head.__new__(head.Head)
        now = time.monotonic()
        ended.finished_at, ended.moved_at = now - 10 * head.LINGER_S, now - moved_s
        ended.peers, ended.clients = {}, [types.SimpleNamespace(is_drained=lambda: is_read)]
        return bool(ended.is_drained())

    assert not is_drained(0.0, is_read=False)
    assert is_drained(2 * head.LINGER_S, is_read=False)
    assert is_drained(0.0, is_read=True)


ATTACH = """
import sys
from ringup.transport import Transport
from ringup.runtime import attach, detach
noted = detach.load(sys.argv[1])
with Transport(noted.hosts) as door:
    result = attach.follow(noted, door, write=lambda t: print(t, end="", flush=True))
print(result.outcome, flush=True)
sys.exit(result.exit_code)
"""


def attached(run: Detached) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", ATTACH, run.plan.run_id], stdout=subprocess.PIPE, start_new_session=True
    )
    seen = b""
    while seen.count(b"| up") < 4:
        data = os.read(process.stdout.fileno(), 65536)
        assert data, seen
        seen += data
    return process


def test_ctrl_c_in_attach_ends_the_run(tmp_path: Path, runs: list[Detached]) -> None:
    run = Detached(tmp_path, FOREVER)
    runs.append(run)
    process = attached(run)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1]) == (130, b"interrupted")
    assert not tagged(run.plan.run_id) and not run.guards()


@pytest.mark.alike
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_attach_that_ends_otherwise_leaves_the_run_alone(
    tmp_path: Path, runs: list[Detached], number: int
) -> None:
    run = Detached(tmp_path, FOREVER)
    runs.append(run)
    process = attached(run)
    process.send_signal(number)
    process.communicate(timeout=60)
    again = attached(run)
    wait_for(lambda: len(run.guards()) == 4, "both halves on both nodes")
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=60)
    assert not tagged(run.plan.run_id)


@pytest.mark.alike
@pytest.mark.parametrize("half", ["guard", "sentinel"])
def test_killed_guard_of_the_head_leaves_nothing_anywhere(
    tmp_path: Path, runs: list[Detached], half: str
) -> None:
    run = Detached(tmp_path, FOREVER)
    runs.append(run)
    run.up()
    parents = {
        pid: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in run.guards()
    }
    head = next(
        pid for pid in run.guards() if str(Path(f"/proc/{pid}/cwd").readlink()) == run.plan.nodes[0].run_dir
    )
    sentinel = parents[head] if parents[head] in parents else head
    guard = next(pid for pid, parent in parents.items() if parent == sentinel)
    os.kill(guard if half == "guard" else sentinel, signal.SIGKILL)
    wait_for(lambda: not tagged(run.plan.run_id), "nothing of the run is left")
    wait_for(lambda: not run.guards(), "the guards have ended")
    result, _ = run.follow()
    assert result.outcome == "launcher-error"
    if half == "guard":
        assert "killed" in result.failure.what


def test_killed_guard_of_another_node_ends_the_run(tmp_path: Path, runs: list[Detached]) -> None:
    run = Detached(tmp_path, FOREVER)
    runs.append(run)
    run.up()
    other = [
        pid for pid in run.guards() if str(Path(f"/proc/{pid}/cwd").readlink()) == run.plan.nodes[1].run_dir
    ]
    for pid in other:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not tagged(run.plan.run_id), "nothing of the run is left")
    wait_for(lambda: not run.guards(), "the guards have ended")
    result, _ = run.follow()
    assert result.outcome == "launcher-error"
    assert result.failure.node == "127.0.0.3"


def test_a_head_that_was_stopped_is_blamed_and_not_the_machine_that_launched(
    tmp_path: Path, runs: list[Detached]
) -> None:
    run = Detached(tmp_path, FOREVER, lease_s=5.0)
    runs.append(run)
    run.up()
    own = run.plan.nodes[0].run_dir
    guards = [pid for pid in run.guards() if str(Path(f"/proc/{pid}/cwd").readlink()) == own]
    ranks = [pid for pid in tagged(run.plan.run_id) if b"RINGUP_NODE=1\0" in environ(pid)]
    for pid in guards:
        os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: not any(map(alive, ranks)), "the other node has ended its ranks by its lease")
    for pid in guards:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not run.guards(), "the guards have ended")
    failure = run.follow()[0].failure
    assert failure.node == "127.0.0.3"
    assert "no contact with the head node's guard" in failure.what, failure.what
    assert "the head node" in failure.what and "launch" not in failure.what, failure.what


def test_run_on_one_node_is_handed_over_too(tmp_path: Path, runs: list[Detached]) -> None:
    run = Detached(tmp_path, "print('up', rank)", nodes=1)
    runs.append(run)
    wait_for(lambda: not run.guards(), "the guards have ended")
    assert run.follow()[0].outcome == "ok"


def test_node_that_cannot_reach_the_head_stops_the_start(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, FOREVER)
    # Nobody routes to TEST-NET-1 (RFC 5737); nothing can listen there either.
    plan = dataclasses.replace(plan, master_addr="192.0.2.1")
    with Transport(hosts.local_nodes(2)) as door:
        result = ssh.run(plan, door, log_dir=tmp_path / "logs", detach=True)
    assert result.outcome == "launcher-error"
    assert "not detached: the head cannot take the run over" in result.failure.what
    assert not tagged(plan.run_id)


def test_attach_runs_by_the_jobs_python_where_the_nodes_own_is_old(
    tmp_path: Path, runs: list[Detached], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Detached(tmp_path, "print('bye', rank)")
    runs.append(run)
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "python3"
    old.write_text("#!/bin/sh\necho 'needs Python 3.8 or later' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    result, _ = run.follow()
    assert (result.outcome, result.findings) == ("ok", ())


def note(plan: Any, log_dir: Path) -> detach.Detached:
    reach = Transport(hosts.local_nodes(2))
    return detach.note(Options(plan=plan, reach=reach, log_dir=log_dir), reach.hosts)


def test_secrets_are_not_noted(tmp_path: Path, runs: list[Detached]) -> None:
    plan = make_plan(tmp_path, "", env={"HF_TOKEN": "hf_abc"})
    noted = note(plan, tmp_path)
    assert "hf_abc" not in (detach.runs_dir() / f"{plan.run_id}.json").read_text()
    assert detach.load(plan.run_id) == noted


@pytest.mark.parametrize("name", ["nothing", "../../etc/passwd", "", "a" * 300, "\x1b[31m"])
def test_unknown_run_is_said(name: str) -> None:
    with pytest.raises(UsageError, match="no detached run") as refused:
        detach.load(name)
    assert "`ringup top RUN`" in refused.value.hint


def test_the_list_of_runs_is_json_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(tmp_path, "")
    note(plan, tmp_path)
    assert command_line.dispatch(["attach", "--list", "--json"]) == 0
    assert plan.run_id in json.loads(capsys.readouterr().out)["runs"]


def test_a_run_that_has_ended_is_shown_as_it_was_seen_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(tmp_path, "")
    note(plan, tmp_path)
    record = {"run": plan.run_id, "outcome": "hung", "started": 1.0, "exit_code": 124, "cause": {"rule": "x"}}
    (tmp_path / "run.json").write_text(json.dumps(record))
    end = "hung after 23 s: rank 1 on 127.0.0.3 missing from all_reduce\n"
    (tmp_path / "ringup.log").write_text(end)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert command_line.dispatch(["attach", plan.run_id]) == 124
    assert end in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    assert command_line.dispatch(["attach"]) == 124  # the newest, as none is living


def test_run_its_head_has_forgotten_is_said(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "")
    note(plan, tmp_path)
    (tmp_path / "run.json").write_text("how it ended")
    with (
        Transport(hosts.local_nodes(2)) as door,
        pytest.raises(NodeUnreachable, match="has no record of run"),
    ):
        attach.follow(detach.load(plan.run_id), door)
    assert (tmp_path / "run.json").read_text() == "how it ended"


def test_run_its_head_has_forgotten_is_not_running_any_more(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, "")
    note(plan, tmp_path)
    (tmp_path / "run.json").write_text('{"run": "r", "outcome": "running", "started": 1.0}')
    with (
        Transport(hosts.local_nodes(2)) as door,
        pytest.raises(NodeUnreachable, match="has no record of run"),
    ):
        attach.follow(detach.load(plan.run_id), door)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("launcher-error", 4)
    assert record["started"] == detach.load(plan.run_id).started


NOW = 5000.0
"""On the head's clock."""
EXIT = {"type": "exit", "rank": 0, "local_rank": 0, "pid": 1, "code": 3, "traceback_at": 0, "sigterm_at": 0}
EXIT |= {"lost": False, "tail": ""}
BEGAN = {"type": "began", "at": NOW, "wall": 1e9}
LOST = {"type": "guard-lost", "status": 17920, "stuck": False, "killed": [], "left": []}


@pytest.mark.parametrize(
    "lines",
    [
        [{"node": 0, **LOST, "at": NOW}],
        [{"node": 1, "type": "problem", "words": "no room"}],
        [BEGAN, {"node": 1, **EXIT, "at": NOW - 2200.0}],
        [BEGAN, {"node": 1, **EXIT, "at": 1e14}],
        [BEGAN, {"node": 1, "type": "clock", "ahead": -1e14}, {"node": 1, **EXIT, "at": NOW}],
        [BEGAN, {"node": 1, "type": "problem", "words": "no room"}],
    ],
)
def test_no_failure_is_dated_before_the_start_or_after_the_end(
    tmp_path: Path, lines: list[dict[str, Any]]
) -> None:
    plan = make_plan(tmp_path, "")
    note(plan, tmp_path)
    journal = Path(plan.nodes[0].run_dir + ".journal")
    journal.mkdir(parents=True)
    lines = [*lines, {"type": "finished", "at": NOW + 60, "reason": "", "lost_bytes": 0}]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (journal / "control").write_bytes(b"[" * 100_000 + b'\n{"type":[]}\n' + text)
    with Transport(hosts.local_nodes(2)) as door:
        result = attach.follow(detach.load(plan.run_id), door)
    assert result.failure is not None
    assert 0 <= result.failure.at_s <= result.seconds <= 60


@pytest.mark.parametrize(("lost_bytes", "is_told"), [(0, False), (5 << 20, True)])
def test_output_that_the_head_dropped_is_mentioned(tmp_path: Path, lost_bytes: int, is_told: bool) -> None:
    plan = make_plan(tmp_path, "")
    note(plan, tmp_path)
    journal = Path(plan.nodes[0].run_dir + ".journal")
    journal.mkdir(parents=True)
    ends = [{"node": node, **EXIT, "rank": node, "code": 0, "at": NOW + 1} for node in (0, 1)]
    finished = {"type": "finished", "at": NOW + 60, "reason": "", "lost_bytes": lost_bytes}
    lines = [BEGAN, *ends, finished]
    (journal / "control").write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    shown: list[str] = []
    with Transport(hosts.local_nodes(2)) as door:
        attach.follow(detach.load(plan.run_id), door, write=shown.append)
    assert ("the head node dropped 5 MiB of output" in "".join(map(str, shown))) == is_told
