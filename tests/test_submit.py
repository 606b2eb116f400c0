"""`ringup run --slurm` with Slurm's commands played by programs on PATH."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ringup.cli import command_line
from ringup.errors import LaunchError, UsageError
from ringup.runtime import slurm
from ringup.transport import srun

PLAYED = {
    "sbatch": """\
# Runs the file on "the first node" in the background, as job 7.
for word; do case $word in --output=*) out=${word#*=} ;; esac; done
printf '%s\\n' "$*" >"$PLAYED/asked"
if [ -e "$PLAYED/refuses" ]; then
  echo "sbatch: error: Batch job submission failed: $(cat "$PLAYED/refuses")" >&2
  exit 1
fi
now() { echo "$1" >"$PLAYED/new.$BASHPID"; mv "$PLAYED/new.$BASHPID" "$PLAYED/state"; }
now "PENDING|Resources"
(
  for try in 1 2 3; do [ -e "$PLAYED/waits" ] && sleep 1; done
  [ ! -e "$PLAYED/cancelled" ] || exit
  now "RUNNING|None"
  bash "${@: -1}" >"$out" 2>&1 & echo $! >"$PLAYED/pid"
  wait $!; code=$?
  echo "ExitCode=$code:0" >"$PLAYED/code"
  now "$([ $code = 0 ] && echo COMPLETED || echo FAILED)|None"
) </dev/null >/dev/null 2>&1 &
echo "7;cluster"
""",
    "squeue": 'cat "$PLAYED/state" | tee -a "$PLAYED/answers"\n',
    "scontrol": 'echo "JobId=7 $(cat "$PLAYED/code") x=y"\n',
    "scancel": """\
printf '%s\\n' "$*" >>"$PLAYED/cancels"
case $* in
*--batch*) exit ;;
esac
touch "$PLAYED/cancelled"
echo "CANCELLED|None" >"$PLAYED/state"
kill "$(cat "$PLAYED/pid")" 2>/dev/null
""",
    "srun": 'while [[ $1 == -* ]]; do shift; done; SLURM_NODEID=0 exec "$@"\n',
}


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the players keep what they know; a python that has no ringup is the job's."""
    folder = tmp_path / "played"
    folder.mkdir()
    for name, text in PLAYED.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("PLAYED", str(folder))
    for name, value in {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7"}.items():
        monkeypatch.setenv(f"PLAYED_{name}", value)
    return folder


def words(folder: Path, *options: str, script: str = "train.py") -> list[str]:
    """The command line."""
    own = [
        "run",
        "--slurm",
        "--nodes",
        "1",
        "--nproc",
        "1",
        "--backend",
        "gloo",
        "--log-dir",
        str(folder / "logs"),
    ]
    return [*own, "--chdir", str(folder), "--with", "python", *options, "--", script]


def job(folder: Path, text: str) -> str:
    """A training script."""
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def test_a_dry_run_shows_the_file_and_submits_nothing(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--dry-run", "--queue", "gpu", "--option=--qos=high", "--env", "API_KEY=k", "--env", "A=b c"]
    assert command_line.dispatch(words(tmp_path, *options)) == 0
    text = capsys.readouterr().out
    assert {"#SBATCH --partition=gpu", "#SBATCH --qos=high", "#SBATCH --nodes=1"} <= set(text.splitlines())
    assert "if \"$ringup\" -c 'import ringup' 2>/dev/null; then" in text
    assert "-m ringup run --backend=gloo --nproc=1 --with=python --env=API_KEY --env=A --log-dir=" in text
    assert "API_KEY=k" not in text
    assert not (played / "asked").exists()
    assert not (tmp_path / "logs").exists()


@pytest.mark.slow
def test_output_is_shown_and_the_end_is_the_jobs(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    recorded = {"outcome": "rank-failed", "exit_code": 5}
    text = f"print('in the job')\nopen('logs/run.json', 'w').write({json.dumps(recorded)!r})\nexit(1)\n"
    instead = f"exec {sys.executable} {job(tmp_path, text)}"
    assert command_line.dispatch(words(tmp_path, "--setup", instead)) == 5
    said = capsys.readouterr()
    assert said.out == "in the job\n"
    assert "job 7" in said.err
    assert (played / "asked").read_text() == (
        f"--parsable --output={tmp_path}/logs/job.out {tmp_path}/logs/job.sh\n"
    )


@pytest.mark.alike
@pytest.mark.slow
@pytest.mark.parametrize(("code", "outcome"), [(0, "ok"), (3, "launcher-error")])
def test_without_a_record_of_the_run_slurms_word_counts(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, outcome: str
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "run.json").write_text('{"outcome": "rank-failed", "exit_code": 99}')
    (tmp_path / "logs" / "job.out").write_text("of an earlier run\n")
    assert command_line.dispatch(words(tmp_path, "--json", "--setup", f"exit {code}")) == code
    (own,) = [p for p in (tmp_path / "logs").iterdir() if p.is_dir()]
    record = json.loads((own / "run.json").read_text())
    assert (record["outcome"], record["exit_code"]) == (outcome, code)
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["exit_code"] == 99
    said = capsys.readouterr()
    assert json.loads(said.out) == record
    assert "earlier run" not in said.err


def test_what_sbatch_refuses_is_said(played: Path, tmp_path: Path) -> None:
    (played / "refuses").write_text("Invalid account")
    with pytest.raises(LaunchError, match="submission failed: Invalid account") as caught:
        command_line.dispatch(words(tmp_path))
    assert caught.value.exit_code == 4


def test_an_sbatch_that_does_not_answer_may_have_taken_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "sbatch").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    run = srun.run_here
    monkeypatch.setattr(
        srun, "run_here", lambda words, env: run([str(tmp_path / words[0])], env=env, limit_s=0.1)
    )
    with pytest.raises(LaunchError, match="did not answer within") as told:
        slurm.submit(tmp_path / "job.sh", tmp_path / "job.out", env)
    assert "squeue" in told.value.hint


def test_where_there_is_no_sbatch_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="sbatch cannot be started here"):
        command_line.dispatch(words(tmp_path))


@pytest.mark.parametrize("option", [["-H", "node1"], ["--hostfile", os.devnull], ["--local", "2"]])
def test_nodes_are_slurms_to_choose(tmp_path: Path, option: list[str]) -> None:
    with pytest.raises(UsageError, match="Slurm chooses the nodes"):
        command_line.dispatch(words(tmp_path, *option))


def test_a_detached_job_is_left_to_slurm(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.dispatch(words(tmp_path, "--detach", "--setup", "exit 0")) == 0
    assert "scancel 7" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--dry-run", "--detach"])
def test_json_is_all_that_stdout_gets_where_nobody_follows_the_job(
    option: str, played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.dispatch(words(tmp_path, option, "--json", "--setup", "exit 0")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1 and told["run"]
    if option == "--dry-run":
        assert told["text"].startswith("#!/bin/bash\n")
    else:
        assert (told["outcome"], told["notes"]) == ("running", ["Slurm's job 7"])


@pytest.mark.slow
def test_ctrl_c_asks_first_and_the_second_cancels(played: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ringup", *words(tmp_path, "--setup", "echo up; exec sleep 60")]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert started.stdout is not None
    assert started.stdout.readline() == "up\n"
    wait_until(lambda: "RUNNING" in (played / "answers").read_text())
    started.send_signal(signal.SIGINT)
    wait_until(lambda: (played / "cancels").exists())
    assert (played / "cancels").read_text() == "--batch --signal=INT 7\n"
    started.send_signal(signal.SIGINT)
    assert started.wait(60) == 130
    assert (played / "cancels").read_text() == "--batch --signal=INT 7\n7\n"
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["outcome"] == "interrupted"


def wait_until(what: object) -> None:
    until = time.monotonic() + 60
    while not what():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.02)
