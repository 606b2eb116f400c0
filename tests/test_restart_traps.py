"""Where restarts go wrong: what lies about an end, what is left of one, what fails in between."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.guards import tagged, wait_for
from tests.jobs.launched import JOBS
from tests.test_restarts import Ended, counting

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux"),
    pytest.mark.slow,
    pytest.mark.torch,
]
PYTHON = ("--with", "python")


def ran(folder: Path, options: tuple[str, ...], script: str, *words: str) -> Ended:
    """A run of a script of its own."""
    (folder / "train.py").write_text(script)
    return Ended(folder, options, str(folder / "train.py"), *words)


CRASHES_WHEN_TORN_DOWN = """
import os, sys, time
class Native:  # as a C++ object whose thread still runs
    def __del__(self, abort=os.abort):
        abort()
rank = os.environ["RANK"]
kept = Native() if rank == "1" else None
crashed = os.path.join(sys.argv[1], "crashed")
if rank == "0":
    while not os.path.exists(crashed):
        time.sleep(0.01)
    pid = open(crashed).read()
    while os.path.exists("/proc/" + pid):
        time.sleep(0.01)
print("rank", rank, "finished", flush=True)
if rank == "1":
    with open(crashed + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(crashed + ".new", crashed)
"""


@pytest.mark.parametrize("launcher", ["python", "torchrun"])
def test_a_crash_after_the_last_line_fails_no_run(tmp_path: Path, launcher: str) -> None:
    options = ("--with", launcher, "--max-restarts", "2")
    run = ran(tmp_path, options, CRASHES_WHEN_TORN_DOWN, str(tmp_path))
    assert run.code == 0, run.stderr
    assert [one["decision"] for one in run.record["attempts"]] == ["finished"], run.stderr
    assert "rank 1 ended well, and was killed by SIGABRT (6)" in run.stderr
    assert "all ranks exited with 0" not in run.stderr
    assert run.stdout.count("finished") == 2
    logs = subprocess.run([sys.executable, "-m", "ringup", "logs", str(run.log_dir)], capture_output=True)
    assert logs.returncode == 0, logs.stdout


def test_an_exit_code_of_a_script_that_ended_badly_is_not_hidden(tmp_path: Path) -> None:
    script = CRASHES_WHEN_TORN_DOWN + "raise SystemExit(3 * int(rank))\n"
    run = ran(tmp_path, PYTHON, script, str(tmp_path))
    assert run.code == 128 + signal.SIGABRT, run.stderr


def test_an_import_error_on_one_node_leaves_that_node_out(tmp_path: Path) -> None:
    run = counting(tmp_path, ("--local", "3", "--spares", "1", "--max-restarts", "2"), "import:1:1")
    assert run.code == 0, run.stderr
    first, second = run.record["attempts"]
    assert first["cause"]["rule"] == "rank-raised-exception" and first["decision"] == "exclude", run.stderr
    assert (first["cause"]["nodes"], second["nodes"]) == (["127.0.0.3"], ["127.0.0.2", "127.0.0.4"])
    assert "that node's software differs" in first["because"]


EVERYWHERE = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder = pathlib.Path(sys.argv[1])
(folder / ("at-" + os.environ["RANK"])).touch()
while len([*folder.glob("at-*")]) < 2:
    pass
import module_of_no_node
"""


# `ringup run` itself reads what is wrong in the second.
@pytest.mark.parametrize(("script", "more"), [(EVERYWHERE, ()), ("def (\n", ("--anyway",))])
def test_what_no_node_can_run_stops_at_once(tmp_path: Path, script: str, more: tuple[str, ...]) -> None:
    options = (*PYTHON, "--local", "3", "--spares", "1", "--max-restarts", "2", *more)
    run = ran(tmp_path, options, script, str(tmp_path))
    assert [one["decision"] for one in run.record["attempts"]] == ["stop"], run.stderr


STAYS = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(1e6)
"""
LEAVES_A_CHILD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
folder, rank, attempt = Path(sys.argv[1]), os.environ["RANK"], os.environ["RINGUP_ATTEMPT"]
child = folder / "old-child"
if attempt == "2":  # before anything else: what is left of attempt 1
    old = [int(path.read_text()) for path in folder.glob("old-*")]
    left = [pid for pid in old if os.path.exists(f"/proc/{pid}")]
    (folder / f"left-{rank}").write_text(json.dumps([len(old), left]))
elif rank == "1":
    subprocess.run(["setsid", "-f", sys.executable, folder / "stays.py", child], env={}, check=True)
    while not (child.exists() and child.read_text()):
        time.sleep(0.01)
else:
    (folder / "old-rank").write_text(str(os.getpid()))
for step in range(5):
    print("step", step, flush=True)
    time.sleep(0.1)
if attempt == "1":
    if rank == "0":
        os.kill(os.getpid(), signal.SIGSTOP)
    other = folder / "old-rank"
    while not (other.exists() and other.read_text()):
        time.sleep(0.01)
    while "State:\\tT" not in Path(f"/proc/{other.read_text()}/status").read_text():
        time.sleep(0.01)
    (folder / "asked-again").touch()
    os._exit(3)
"""


def test_nothing_of_an_attempt_is_left_when_the_next_one_begins(tmp_path: Path) -> None:
    """A child in a session of its own without environment, a stopped rank; one bad answer is no verdict."""
    (tmp_path / "stays.py").write_text(STAYS)
    once = f"if [ -e {tmp_path}/asked-again ]; then rm {tmp_path}/asked-again; exit 7; fi"
    options = (*PYTHON, "--local", "3", "--spares", "1", "--max-restarts", "2", "--setup", once)
    run = ran(tmp_path, options, LEAVES_A_CHILD, str(tmp_path))
    assert run.code == 0, run.stderr
    assert [one["decision"] for one in run.record["attempts"]] == ["same", "finished"], run.stderr
    assert [json.loads((tmp_path / f"left-{rank}").read_text()) for rank in (0, 1)] == [[2, []]] * 2
    assert not (tmp_path / "asked-again").exists()
    assert run.stderr.count("starts over, attempt 1 had reached step 4") == 1, run.stderr


SAVES_HALF = """
import os, pathlib, sys, time, zipfile
folder, attempt = pathlib.Path(sys.argv[1]), os.environ["RINGUP_ATTEMPT"]
if os.environ["RANK"] == "1":
    time.sleep(1e6)
if attempt == "1":
    folder.mkdir()
    for step in (5, 10):
        with zipfile.ZipFile(folder / f"step-{step}.pt", "w") as file:
            file.writestr("data", "x" * 1000)
        time.sleep(0.05)
    os.truncate(folder / "step-10.pt", 500)
    os._exit(3)
newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime)
zipfile.ZipFile(newest)
"""


def test_a_checkpoint_that_is_half_written_is_named(tmp_path: Path) -> None:
    saves = str(tmp_path / "saves")
    run = ran(tmp_path, (*PYTHON, "--max-restarts", "5", "--progress", saves), SAVES_HALF, saves)
    assert run.code == 1, run.stderr
    attempts = run.record["attempts"]
    assert [one["decision"] for one in attempts] == ["same", "same", "stop"], run.stderr
    assert [one["progress"]["to"] for one in attempts] == [5, 5, 5]
    assert all(f"the newest checkpoint is incomplete: {saves}/step-10.pt" in a["because"] for a in attempts)


def test_the_first_failure_of_several_is_kept_and_leads(tmp_path: Path) -> None:
    run = counting(tmp_path, ("--max-restarts", "2"), "raise:1:4:1", "exit:0:6:2", "kill:1:8:3")
    assert run.code == 0, run.stderr
    attempts = run.record["attempts"]
    assert len(attempts) == 4
    for path in (run.log_dir / "attempt-1").iterdir():
        assert path.stat().st_mtime <= attempts[1]["started"], f"{path} was written after attempt 1"
    words = [sys.executable, "-m", "ringup", "logs", "--json", str(run.log_dir)]
    told = json.loads(subprocess.run(words, capture_output=True, text=True, timeout=60).stdout)
    assert "ValueError: bad batch" in told["causes"][0]["text"]
    found = [one["cause"] and one["cause"]["rule"] for one in told["attempts"]]
    assert found == ["rank-raised-exception", "rank-raised-exception", "rank-killed", None], found


@pytest.mark.parametrize("moment", ["recheck", "wait", "after go"])
def test_nothing_is_left_of_a_ringup_that_is_killed_while_it_restarts(tmp_path: Path, moment: str) -> None:
    with begun(tmp_path, (*fails_once(tmp_path), "wait:0:12:2"), *PYTHON) as run:
        record = tmp_path / "log" / "run.json"
        if moment == "recheck":
            wait_for(lambda: record.exists() and outcome(record) == "restarting", "the check")
        elif moment == "wait":
            wait_for(lambda: "attempt 2 of 4 starts" in said(tmp_path), "the decision")
        else:
            wait_for(lambda: (tmp_path / "seen-2-0").exists(), "attempt 2")
        run_id = json.loads(record.read_text())["run"]
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        wait_for(lambda: not (tagged(run_id) + tagged(f"{run_id}.2") + of(tmp_path)), "nothing left")
        last = json.loads(record.read_text())
        # On a busy machine the kill may come later than the moment.
        is_late = moment == "after go" or len(last["attempts"]) == 2
        assert last["outcome"] == ("running" if is_late else "restarting")
        assert len(last["attempts"]) == 1 + is_late
        words = [sys.executable, "-m", "ringup", "runs", "--log-dir", str(tmp_path), "--json"]
        env = {
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }  # other runs of this user are elsewhere
        (row,) = json.loads(subprocess.run(words, env=env, capture_output=True, text=True).stdout)["runs"]
        assert (row["state"], row["outcome"]) == (last["outcome"], None)


def test_a_start_that_fails_is_tried_again(tmp_path: Path) -> None:
    with begun(tmp_path, (*fails_once(tmp_path), "wait:0:3:2"), *PYTHON) as run:
        wait_for(lambda: "attempt 2 of 4 starts" in said(tmp_path), "the decision", 120)
        run_id = json.loads((tmp_path / "log" / "run.json").read_text())["run"]
        guards = wait_for(lambda: of(tmp_path, f"ringup-guard:{run_id}.2"), "a guard of attempt 2")
        os.kill(guards[0], signal.SIGKILL)
        assert run.wait(120) == 0, said(tmp_path)
        attempts = json.loads((tmp_path / "log" / "run.json").read_text())["attempts"]
        assert [one["decision"] for one in attempts] == ["same", "same", "finished"], said(tmp_path)
        # The guard's end ends its ranks, where there are some by then: either is told.
        assert attempts[1]["outcome"] == "launcher-error"
        assert attempts[1]["cause"]["rule"] in ("node-lost", "rank-killed")
        assert attempts[1]["seconds"]["first_step"] is None
        assert not (tagged(f"{run_id}.2") + of(tmp_path)), "left of the start that failed"


LOG_IS_GONE = """
import os, sys, time
if os.environ["RANK"] == "1":
    time.sleep(1e6)
time.sleep(1)
os.rename(sys.argv[1], sys.argv[1] + "-gone")
open(sys.argv[1], "w").close()
os._exit(3)
"""


def test_without_a_record_nothing_is_restarted(tmp_path: Path) -> None:
    run = ran(tmp_path, (*PYTHON, "--max-restarts", "2"), LOG_IS_GONE, str(tmp_path / "log"))
    assert run.code == 3, run.stderr
    assert "without a record nothing is restarted" in run.stderr and "attempt 2" not in run.stderr


def fails_once(folder: Path) -> tuple[str, ...]:
    return "checkpointing.py", str(folder), "12", "0.1", "exit:1:3:1"


class begun:
    """A run under way; what it says goes to FOLDER/err."""

    def __init__(self, folder: Path, job: Sequence[str], *options: str) -> None:
        words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", "1", "--backend", "gloo"]
        words += ["--max-restarts", "3", "--log-dir", str(folder / "log"), *options]
        with (folder / "err").open("wb") as err:
            self.run = subprocess.Popen(
                [*words, "--", str(JOBS / job[0]), *job[1:]],
                cwd=folder,
                env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
                stdout=subprocess.DEVNULL,
                stderr=err,
            )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.run

    def __exit__(self, *_: object) -> None:
        self.run.kill()
        self.run.wait()


def said(folder: Path) -> str:
    return (folder / "err").read_text()


def outcome(record: Path) -> str:
    return str(json.loads(record.read_text())["outcome"])


def of(folder: Path, word: str = "") -> list[int]:
    """Processes with a folder and a word in their words or variables."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            if os.fsencode(folder) in known and word.encode() in known:
                found.append(int(entry.name))
    return found
