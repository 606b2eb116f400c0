"""Job files with options of restarts: they start `ringup run` and hold the scheduler's part of the policy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import command_line
from ringup.errors import LaunchError, UsageError
from ringup.jobfiles import KINDS
from tests.guards import wait_for
from tests.test_script import BASH, GOLDEN, HOSTILE, USUAL, needs, program, run_file, written
from tests.test_script_models import MODELS, by_kubernetes, came_back, container, model

RESTARTED = tuple(kind for kind in KINDS if kind not in ("ssh", "docker"))
PODS = tuple(kind for kind in RESTARTED if kind not in BASH)
RESTARTS = ("--max-restarts", "3", "--save-signal", "USR1", "--save-grace", "240")
PLAYS_RINGUP = """\
# Plays ringup: notes its words, then the signals it gets; ends with $CODE, or with 75 on SIGUSR1.
printf '%s\\0' "$@" >"$SHOWN"
trap 'echo USR1 >>"$SHOWN.signals"; exit 75' USR1
for name in INT TERM; do trap "echo $name >>'$SHOWN.signals'" "$name"; done
echo started >>"$SHOWN.signals"
[ -n "${CODE:-}" ] && exit "$CODE"
while :; do sleep 0.05; done
"""


def options_of(kind: str) -> list[str]:
    """As a user gives them: three nodes, one of them a spare where the scheduler can have one."""
    own = [*USUAL, "--nodes", "3", "--nproc", "8", "--env", "NCCL_DEBUG=WARN", "--env", "HF_TOKEN=hf_secret"]
    spares = ["--time", "10:00:00", "--spares", "1"]
    return [*own, *RESTARTS, *(spares if kind in BASH else ["--image", "registry.example/ringup:1"])]


@pytest.mark.parametrize("kind", RESTARTED)
def test_golden_every_kind_carries_its_part_of_the_policy(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    text = written(capsys, kind, *options_of(kind))
    golden = GOLDEN / "restarts" / f"{kind}.{'sh' if kind in BASH else 'yaml'}"
    if os.environ.get("RINGUP_GOLDEN") == "write":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "pbs", "lsf"])
@pytest.mark.parametrize("save", ["USR1", "TERM", ""])
def test_shellcheck_finds_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, save: str
) -> None:
    options = ["--nodes", "2", "--nproc", "1", "--max-restarts", "1", "--setup", "module load cuda"]
    options += ["--save-signal", save] if save else []
    file = tmp_path / "job.sh"
    file.write_text(written(capsys, kind, *options, words=HOSTILE))
    done = subprocess.run([needs("shellcheck"), str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH: an interpreter that plays ringup, a scontrol that notes its words, a squeue."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SHOWN", str(tmp_path / "shown"))
    program(folder / "python-job", PLAYS_RINGUP)
    program(folder / "scontrol", 'echo "$*" >>"$SHOWN.scontrol"\n')
    program(folder / "squeue", 'echo "${STATE:-RUNNING}"\n')
    return folder


def job_file(capsys: pytest.CaptureFixture[str], folder: Path, kind: str, *more: str) -> str:
    options = ["--nodes", "2", "--nproc", "1", "--chdir", str(folder), "--python", "python-job"]
    return written(capsys, kind, *options, *RESTARTS, *more, words=HOSTILE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "pbs", "lsf"])
def test_ringup_gets_the_options_and_the_script_as_they_were_given(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path, kind: str
) -> None:
    more = ("--env", "ODD=it's $HOME `id`\n\\", "--env", "API_KEY=k", "--env", "MASTER_PORT=23456", "--debug")
    text = job_file(capsys, tmp_path, kind, "--progress", "a b", "--restart-on", "16", *more)
    assert "API_KEY=k" not in text
    done = run_file(text, tmp_path, API_KEY="k", CODE="5", SLURM_JOB_ID="7")
    assert done.returncode == 5, done.stderr
    words = (tmp_path / "shown").read_text().split("\0")[:-1]
    at = words.index("--")
    assert words[:3] == ["-m", "ringup", "run"] and tuple(words[at + 1 :]) == HOSTILE
    assert set(words[3:at]) == {
        *("--nproc=1", "--with=torchrun", "--python=python-job", "--debug", "--progress=a b"),
        *("--max-restarts=3", "--save-signal=USR1", "--save-grace=240.0", "--restart-on=16"),
        *("--env=ODD", "--env=API_KEY", "--master-port=23456"),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "count", "is_requeued"),
    [(75, "", True), (75, "2", True), (75, "3", False), (93, "", False), (1, "", False), (0, "", False)],
)
def test_only_75_is_requeued_and_not_for_ever(
    capsys: pytest.CaptureFixture[str],
    played: Path,
    tmp_path: Path,
    code: int,
    count: str,
    is_requeued: bool,
) -> None:
    text = job_file(capsys, tmp_path, "slurm")
    done = run_file(text, tmp_path, CODE=str(code), SLURM_JOB_ID="7", SLURM_RESTART_COUNT=count)
    assert done.returncode == code, done.stderr
    asked = tmp_path / "shown.scontrol"
    assert (asked.read_text() if asked.exists() else "") == ("requeue 7\n" if is_requeued else "")


@pytest.mark.slow
def test_a_job_that_saved_since_somebody_cancelled_it_is_not_requeued(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path
) -> None:
    done = run_file(
        job_file(capsys, tmp_path, "slurm"), tmp_path, CODE="75", SLURM_JOB_ID="7", STATE="CANCELLED"
    )
    assert done.returncode == 75, done.stderr
    assert not (tmp_path / "shown.scontrol").exists()


@pytest.mark.slow
def test_signals_for_the_script_alone_reach_ringup_once(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path
) -> None:
    path, signals = tmp_path / "job.sh", tmp_path / "shown.signals"
    path.write_text(job_file(capsys, tmp_path, "slurm"))
    env = {**os.environ, "SLURM_JOB_ID": "7"}
    job = subprocess.Popen(["bash", str(path)], env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: signals.exists() and handles(job.pid, signal.SIGUSR1), "ringup started")
    for number, seen in ((signal.SIGTERM, []), (signal.SIGINT, ["INT"]), (signal.SIGUSR1, ["INT", "USR1"])):
        job.send_signal(number)
        wait_for(lambda seen=seen: signals.read_text().split()[1:] == seen, f"{seen}")
    _, said = job.communicate(timeout=60)
    assert job.returncode == 75, said
    assert signals.read_text().split() == ["started", "INT", "USR1"]
    assert (tmp_path / "shown.scontrol").read_text() == "requeue 7\n"


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_job_that_may_only_save_is_not_requeued(capsys: pytest.CaptureFixture[str]) -> None:
    text = written(capsys, "slurm", "--nodes", "2", "--nproc", "1", "--save-signal", "TERM")
    assert "#SBATCH --signal=B:TERM@180\n" in text and "#SBATCH --no-requeue\n" in text
    assert "scontrol" not in text and "trap 'kill -TERM " in text


def test_restarts_of_a_pasted_line_become_ringups(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("torchrun", "--nproc-per-node=8", "--max-restarts=2", "train.py")
    text = written(capsys, "slurm", "--nodes", "2", words=words)
    assert " --max-restarts=2 " in text and "#SBATCH --requeue\n" in text


@pytest.mark.parametrize("kind", ["ssh", "docker"])
def test_a_file_without_a_scheduler_restarts_nothing(kind: str) -> None:
    with pytest.raises(LaunchError, match="cannot restart a run") as caught:
        options = ["--nodes", "2", "--nproc", "8", "--max-restarts", "1"]
        command_line.dispatch(["script", kind, *options, "--", "train.py"])
    assert "`ringup run`" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("slurm", ["--spares", "2"], "--spares 2: 2 nodes leave none"),
        ("slurm", ["--spares", "1", "--min-nodes", "2"], "--min-nodes 2: the run has 1 node without"),
        ("slurm", ["--max-restarts", "1", "--restart-on", "137"], "137"),
        ("jobset", ["--spares", "1"], "--spares: in Kubernetes"),
        ("k8s-job", ["--min-nodes", "1"], "--min-nodes: in Kubernetes"),
    ],
)
def test_what_cannot_be_honoured_is_refused(kind: str, options: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        command_line.dispatch(["script", kind, "--nodes", "2", "--nproc", "1", *options, "--", "train.py"])


# -- Kubernetes ----------------------------------------------------------------------------------


def documents(capsys: pytest.CaptureFixture[str], kind: str, *more: str) -> list[dict[str, Any]]:
    return list(model("yaml").safe_load_all(written(capsys, kind, *options_of(kind), *more, words=HOSTILE)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in PODS if kind != "volcano"])
def test_every_field_is_one_that_the_kind_has(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    for value in documents(capsys, kind):
        came_back(value, MODELS[value["apiVersion"], value["kind"]](value))


def test_a_job_fails_on_93_before_it_looks_at_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    job = documents(capsys, "k8s-job")[-1]["spec"]
    first, second = job["podFailurePolicy"]["rules"]
    name = job["template"]["spec"]["containers"][0]["name"]
    assert first == {
        "action": "FailJob",
        "onExitCodes": {"containerName": name, "operator": "In", "values": [93]},
    }
    assert second == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    assert job["template"]["spec"]["restartPolicy"] == "Never", "podFailurePolicy allows no other"
    assert (job["podReplacementPolicy"], job["backoffLimit"]) == ("Failed", 9)
    assert job["template"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_a_jobset_restarts_unless_its_job_failed_by_93(capsys: pytest.CaptureFixture[str]) -> None:
    (made,) = documents(capsys, "jobset")
    policy = made["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 3
    assert [(rule["action"], rule["onJobFailureReasons"]) for rule in policy["rules"]] == [
        ("FailJobSet", ["PodFailurePolicy"])
    ]
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0
    assert [rule["action"] for rule in job["podFailurePolicy"]["rules"]] == ["FailJob"]


HEADS = {
    "k8s-job": ("mingpt-0.mingpt", "mingpt"),
    "jobset": ("mingpt-node-0-0.mingpt", "mingpt"),
    "pytorchjob": ("the-head", ""),
    "trainjob": ("the-head", "mingpt"),
    "volcano": ("the-head", "mingpt"),
}
NAMES = ("RINGUP_NODES", "RINGUP_INDEX", "RINGUP_HEAD", "RINGUP_SERVICE")


@pytest.mark.slow
@pytest.mark.parametrize("kind", PODS)
def test_every_pod_starts_ringup_and_knows_its_place(
    capsys: pytest.CaptureFixture[str], played: Path, tmp_path: Path, kind: str
) -> None:
    show = 'import json, os, sys; json.dump({"words": sys.argv[1:], "env": dict(os.environ)}, sys.stdout)'
    program(played / "python-job", f"exec {needs('python3')} -c '{show}' \"$@\"\n")
    made = container(documents(capsys, kind, "--python", "python-job", "--chdir", str(tmp_path))[-1])
    token = next(entry for entry in made["env"] if entry["name"] == "RINGUP_TOKEN")
    assert token["valueFrom"]["secretKeyRef"] == {"name": "mingpt-ringup", "key": "token"}
    script = by_kubernetes(made["args"][0], {entry["name"] for entry in made["env"]})
    place = {"JOB_COMPLETION_INDEX": "1", "RANK": "1", "PET_NODE_RANK": "1"}
    place |= {"MASTER_ADDR": "the-head", "PET_MASTER_ADDR": "the-head"}
    env = {"PATH": os.environ["PATH"], **place}
    done = subprocess.run([*made["command"], script], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    head, service = HEADS[kind]
    assert [seen["env"].get(name, "") for name in NAMES] == ["3", "1", head, service]
    at = seen["words"].index("--")
    assert tuple(seen["words"][at + 1 :]) == HOSTILE
    assert {"--max-restarts=3", "--save-signal=USR1", "--env=HF_TOKEN"} <= set(seen["words"][:at])
