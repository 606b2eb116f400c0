"""`ringup run --detach --max-restarts`: who restarts a run that nobody looks at, and who does after that."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for
from tests.jobs.launched import JOBS

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux"),
    pytest.mark.slow,
    pytest.mark.torch,
]
RINGUP = [sys.executable, "-m", "ringup"]
ENDS_WITHIN_S = 180


class Supervised:
    """A detached run of checkpointing.py on two simulated nodes, a step each 0.1 s."""

    def __init__(self, folder: Path, steps: int, *faults: str) -> None:
        self.folder, self.log_dir = folder, folder / "log"
        self.env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        words = [*RINGUP, "run", "--local", "2", "--nproc", "1", "--backend", "gloo", "--with", "python"]
        words += ["--detach", "--max-restarts", "2", "--log-dir", "log", "--"]
        words += [str(JOBS / "checkpointing.py"), str(folder), str(steps), "0.1", *faults]
        self.started = subprocess.run(
            words, cwd=folder, env=self.env, capture_output=True, text=True, timeout=ENDS_WITHIN_S
        )

    def attach(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*RINGUP, "attach", *options],
            cwd="/",
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def supervisor(self) -> int:
        """Its process, 0 while the file is written."""
        return int((self.log_dir / ".supervisor").read_text().partition(" ")[0] or 0)

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.log_dir / "run.json").read_text())
        return found

    def step(self) -> int:
        path = self.folder / "latest_checkpointed_iteration.txt"
        return int(path.read_text()) if path.exists() else 0

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: self.step() >= step, f"step {step}", ENDS_WITHIN_S)

    def go(self, step: int) -> None:
        """Let who waits before a step go on."""
        (self.folder / f"go-{step}").touch()


def is_there(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def runs() -> Iterator[list[Supervised]]:
    """Runs that are ended with the test."""
    started: list[Supervised] = []
    yield started
    for run in started:
        while True:
            attached = run.attach()
            assert attached.stdout is not None
            attached.stdout.readline()  # before, Ctrl-C would end `attach` alone
            while attached.poll() is None:
                attached.send_signal(signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    attached.wait(10)
            attached.communicate()
            if run.record["outcome"] != "running":
                break


def test_a_detached_run_is_restarted_without_anybody_looking(tmp_path: Path, runs: list[Supervised]) -> None:
    runs.append(run := Supervised(tmp_path, 60, "kill:0:30"))
    assert run.started.returncode == 0, run.started.stderr
    assert f"supervisor: pid {run.supervisor} on this machine" in run.started.stderr
    wait_for(lambda: run.record["outcome"] == "ok", "the end", ENDS_WITHIN_S)
    wait_for(lambda: not is_there(run.supervisor), "the supervisor's end", 60)
    assert [one["decision"] for one in run.record["attempts"]] == ["same", "finished"]
    attached = run.attach("--json")
    shown, said = attached.communicate(timeout=ENDS_WITHIN_S)
    assert attached.returncode == 0 and json.loads(shown) == run.record
    assert "rank-killed" in said and "Finished: all ranks exited with 0" in said and "rank 0 finished" in said


def test_a_supervisor_that_dies_ends_nothing_and_attach_starts_another(
    tmp_path: Path, runs: list[Supervised]
) -> None:
    runs.append(run := Supervised(tmp_path, 100, "wait:0:50", "kill:0:60"))
    run.wait_for_step(2)
    before = run.supervisor
    os.kill(before, signal.SIGKILL)
    assert (run.log_dir / ".supervisor.json").stat().st_mode & 0o777 == 0o600  # it has the command line
    run.wait_for_step(run.step() + 5)
    attached = [run.attach(), run.attach()]  # one of them starts it
    wait_for(lambda: run.supervisor not in (0, before), "another supervisor", ENDS_WITHIN_S)
    run.go(50)
    texts = [one.communicate(timeout=ENDS_WITHIN_S) for one in attached]
    assert [one.returncode for one in attached] == [0, 0], texts
    assert run.supervisor != before
    assert f"supervisor: pid {run.supervisor} continues with attempt 1" in texts[0][0] + texts[1][0]
    assert [one["decision"] for one in run.record["attempts"]] == ["same", "finished"], texts
    assert run.record["attempts"][1]["progress"] == {
        **run.record["attempts"][1]["progress"],
        "from": 59.0,
        "to": 100.0,
    }


def test_a_supervisor_that_died_before_the_failure_decides_after_it_all_the_same(
    tmp_path: Path, runs: list[Supervised]
) -> None:
    runs.append(run := Supervised(tmp_path, 40, "wait:0:10", "kill:0:20"))
    os.kill(run.supervisor, signal.SIGTERM)
    wait_for(lambda: not is_there(run.supervisor), "the supervisor's end")
    run.go(10)
    run.wait_for_step(19)
    rank = json.loads((tmp_path / "seen-1-1").read_text())["pid"]
    wait_for(lambda: not is_there(rank), "the end", ENDS_WITHIN_S)
    assert run.record["outcome"] == "running"
    attached = run.attach()
    shown, said = attached.communicate(timeout=ENDS_WITHIN_S)
    assert attached.returncode == 0, shown + said
    assert [one["decision"] for one in run.record["attempts"]] == ["same", "finished"], shown


def test_ctrl_c_in_attach_ends_the_run_and_closing_the_terminal_leaves_it(
    tmp_path: Path, runs: list[Supervised]
) -> None:
    runs.append(run := Supervised(tmp_path, 10_000))
    run.wait_for_step(2)
    left = run.attach()
    assert left.stdout is not None and left.stdout.readline()
    left.send_signal(signal.SIGHUP)
    left.communicate(timeout=ENDS_WITHIN_S)
    assert left.returncode == 129 and is_there(run.supervisor)
    attached = run.attach()
    assert attached.stdout is not None and attached.stdout.readline()
    attached.send_signal(signal.SIGINT)
    shown, said = attached.communicate(timeout=ENDS_WITHIN_S)
    assert attached.returncode == 130 and "nothing left behind" in shown, shown + said
    pids = [json.loads((tmp_path / f"seen-1-{rank}").read_text())["pid"] for rank in (0, 1)]
    assert not any(map(is_there, [*pids, run.supervisor]))
    assert run.record["outcome"] == "interrupted" and not (run.log_dir / ".supervisor.json").exists()


def test_a_start_that_fails_is_shown_and_leaves_no_supervisor(tmp_path: Path) -> None:
    run = Supervised(tmp_path, 10, "name:0:1:*", "name:1:1:*")
    if run.started.returncode == 0:  # it was left before the failure was seen
        wait_for(lambda: not is_there(run.supervisor), "the supervisor's end", ENDS_WITHIN_S)
    words = [*RINGUP, "run", "--local", "1", "--detach", "--max-restarts", "1", "--", "absent.py"]
    done = subprocess.run(words, cwd=tmp_path, env=run.env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "absent.py" in done.stderr, done.stderr
    assert "The run continues" not in done.stderr


def test_a_supervisor_of_another_machine_is_left_alone(tmp_path: Path, runs: list[Supervised]) -> None:
    runs.append(run := Supervised(tmp_path, 10_000))
    os.kill(run.supervisor, signal.SIGKILL)
    lock = run.log_dir / ".supervisor"
    own = lock.read_text()
    lock.write_text("4242 login7")
    attached = run.attach()
    said = attached.communicate(timeout=ENDS_WITHIN_S)[1]
    lock.write_text(own)
    assert attached.returncode == 4 and "the supervisor of this run was on login7" in said


def test_a_second_supervisor_of_a_run_is_refused(tmp_path: Path) -> None:
    script = "import sys, pathlib\nfrom ringup.cli.background import Background\n"
    script += "one = Background(-1)\none.hold(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\n"
    script += "sys.stdin.read()"
    words = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == b"held\n"
        second = subprocess.run(words, capture_output=True, text=True, timeout=60, input="")
        assert second.returncode != 0 and "has a supervisor already" in second.stderr
