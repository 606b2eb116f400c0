"""What `ringup run` decides after a failure, on nodes simulated on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


class Ended:
    """A run that has ended, and what it said."""

    def __init__(self, folder: Path, options: tuple[str, ...], *job: str, **env: str) -> None:
        words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", "1", "--backend", "gloo"]
        words += ["--log-dir", str(folder / "log"), *options, "--", str(JOBS / job[0]), *job[1:]]
        known = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **env}
        done = subprocess.run(words, cwd=folder, env=known, capture_output=True, text=True, timeout=300)
        self.code, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr
        self.log_dir = folder / "log"

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.log_dir / "run.json").read_text())
        return found


def counting(folder: Path, options: tuple[str, ...], *faults: str, **env: str) -> Ended:
    """A run of checkpointing.py: 12 steps."""
    return Ended(
        folder, ("--with", "python", *options), "checkpointing.py", str(folder), "12", "0.1", *faults, **env
    )


def test_without_restarts_a_failed_run_says_what_one_would_do(tmp_path: Path) -> None:
    run = counting(tmp_path, (), "kill:1:5")
    assert run.code == 137, run.stderr
    assert "restart: it may help; --max-restarts K tries it (`ringup explain rank-killed`)" in run.stderr
    (attempt,) = run.record["attempts"]
    assert (attempt["decision"], attempt["outcome"]) == ("stop", "rank-failed")
    assert (run.log_dir / "rank-00000-127.0.0.2.log").exists()


def test_a_run_that_ends_well_at_once_is_one_attempt(tmp_path: Path) -> None:
    run = counting(tmp_path, ("--max-restarts", "2"))
    assert run.code == 0, run.stderr
    (attempt,) = run.record["attempts"]
    assert (attempt["decision"], attempt["number"], attempt["world_size"]) == ("finished", 1, 2)
    assert attempt["progress"]["to"] == 12 and attempt["seconds"]["first_step"] > 0
    assert "attempt" not in run.stderr.split("logs in", 1)[1].split("\n", 1)[1]


def test_attempts_that_advance_do_not_count_and_those_that_do_not_stop_the_run(tmp_path: Path) -> None:
    faults = ("exit:1:4:1", "exit:0:6:2", "exit:1:9:3", "exit:1:9:4")
    run = counting(tmp_path, ("--max-restarts", "1", "--progress", str(tmp_path)), *faults)
    assert run.code == 3, run.stderr
    assert [one["progress"]["to"] for one in run.record["attempts"]] == [3, 5, 8, 8], run.stderr
    assert [one["decision"] for one in run.record["attempts"]] == ["same", "same", "same", "stop"]
    assert "no restart: attempts 3 and 4 ended alike" in run.stderr or "again without progress" in run.stderr


@pytest.mark.parametrize(
    ("option", "decisions"), [("--no-restart-on", ["stop"]), ("--restart-on", ["same", "finished"])]
)
def test_the_user_has_the_last_word_on_an_exit_code(
    tmp_path: Path, option: str, decisions: list[str]
) -> None:
    run = counting(tmp_path, ("--max-restarts", "2", option, "3"), "exit:1:4")
    assert [one["decision"] for one in run.record["attempts"]] == decisions, run.stderr


@pytest.mark.parametrize(("variable", "restarts"), [("SLURM_JOB_ID", 0), ("LSB_JOBID", None)])
def test_a_scheduler_is_told_not_to_requeue_what_would_fail_again(
    tmp_path: Path, variable: str, restarts: int | None
) -> None:
    run = counting(tmp_path, ("--max-restarts", "2"), "name:1:1", **{variable: "77"})
    assert run.code == 93 and run.record["exit_code"] == 93, run.stderr
    assert [one["decision"] for one in run.record["attempts"]] == ["stop"]
    assert run.record["scheduler_restarts"] == restarts


def test_the_json_of_a_run_holds_its_attempts(tmp_path: Path) -> None:
    run = counting(tmp_path, ("--max-restarts", "2", "--json"), "kill:0:3")
    assert run.code == 0, run.stderr
    shown = json.loads(run.stdout)
    assert shown["attempts"] == run.record["attempts"] and len(shown["attempts"]) == 2
    logs = subprocess.run(
        [sys.executable, "-m", "ringup", "logs", str(run.log_dir)], capture_output=True, text=True, timeout=60
    )
    assert logs.returncode == 1 and "\nerror: rank-killed" in logs.stdout, logs.stderr
    assert f"{run.log_dir}/attempt-2: no failure found" in logs.stdout


def test_an_interrupt_while_a_failed_attempt_is_ended_ends_the_run(tmp_path: Path) -> None:
    """Rank 0 ignores the SIGTERM that ends the attempt: the signal comes before SIGKILL does."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import os, pathlib, signal, time\n"
        "def told(number, frame): pathlib.Path('told').touch()\n"
        "signal.signal(signal.SIGTERM, told)\n"
        "pathlib.Path('up' + os.environ['RANK']).touch()\n"
        "while not pathlib.Path('up0').exists(): time.sleep(0.01)\n"
        "if os.environ['RANK'] == '1': os._exit(3)\n"
        "while True: time.sleep(0.05)\n"
    )
    words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", "1", "--backend", "gloo"]
    words += ["--log-dir", "log", "--with", "python", "--max-restarts", "2", "--", str(script)]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "told").exists, "the end of attempt 1", 120)
    run.terminate()
    _, said = run.communicate(timeout=120)
    assert run.returncode == 143, said
    record = json.loads((tmp_path / "log" / "run.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("interrupted", 143), said
    assert [one["decision"] for one in record["attempts"]] == ["stop"]


FAILS_TO_SAVE = """
import os, pathlib, signal, time
def save(number, frame):
    raise TypeError("cannot pickle")
signal.signal(signal.SIGUSR1, save)
pathlib.Path("up" + os.environ["RANK"]).touch()
while True: time.sleep(0.05)
"""


def test_a_run_that_would_fail_to_save_again_is_not_requeued(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS_TO_SAVE)
    words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", "1", "--backend", "gloo"]
    words += ["--log-dir", "log", "--with", "python", "--save-signal", "USR1", "--", "fails.py"]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: all((tmp_path / f"up{n}").exists() for n in (0, 1)), "both ranks", 120)
    run.terminate()
    _, said = run.communicate(timeout=120)
    record = json.loads((tmp_path / "log" / "run.json").read_text())
    assert (run.returncode, record["exit_code"], record["outcome"]) == (93, 93, "not-saved"), said
    assert record["cause"]["rule"] == "rank-raised-exception" and "cannot pickle" in said


def test_a_detached_run_passes_no_signal_on(tmp_path: Path) -> None:
    run = counting(tmp_path, ("--max-restarts", "1", "--detach", "--save-signal", "USR1"))
    assert run.code == 2 and "--save-signal" in run.stderr
    assert not run.log_dir.exists()


@pytest.mark.torch
def test_a_run_that_hangs_is_restarted_as_any_other_failure(tmp_path: Path) -> None:
    run = Ended(
        tmp_path,
        ("--with", "python", "--max-restarts", "1", "--hang-timeout", "4"),
        *("stuck.py", "sleep", "1", str(tmp_path)),
    )
    assert run.code == 124, run.stderr
    attempts = run.record["attempts"]
    assert [(one["outcome"], one["decision"]) for one in attempts] == [("hung", "same"), ("hung", "stop")]
    assert all(one["seconds"]["notice"] >= 4 for one in attempts), run.stderr
