"""What `ringup script pytorchjob --max-restarts` has every pod run, on lab hosts that play the pods."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import command_line
from tests.guards import wait_for
from tests.jobs.launched import JOBS
from tests.lab import Lab
from tests.test_pods import TOKEN
from tests.test_script_models import by_kubernetes, container, model

pytestmark = [pytest.mark.lab, pytest.mark.slow]

ENDED_S = 240
PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every host sees."""
    with tempfile.TemporaryDirectory(prefix="ringup-pods-", dir="/var/tmp") as name:
        yield Path(name)


class Played:
    """Two pods of the manifest, with the variables that Kubeflow's operator sets."""

    def __init__(
        self, lab: Lab, folder: Path, capsys: pytest.CaptureFixture[str], *faults: str, steps: int = 30
    ) -> None:
        self.lab, self.folder = lab, folder
        words = ["script", "pytorchjob", "--nodes", "2", "--nproc", "1", "--backend", "gloo", "--gpus", "0"]
        words += ["--with", "python", "--python", sys.executable, "--chdir", str(folder)]
        words += ["--max-restarts", "2", "--save-signal", "USR1", "--"]
        job = [str(JOBS / "checkpointing.py"), str(folder), str(steps), "0.1", *faults]
        assert command_line.dispatch([*words, *job]) == 0
        made = container(list(model("yaml").safe_load_all(capsys.readouterr().out))[-1])
        self.words = [*made["command"], by_kubernetes(made["args"][0], set())]
        self.pods = [self.start(f"node{index}", index) for index in (0, 1)]

    def start(self, host: str, index: int) -> subprocess.Popen[str]:
        env = {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "23456"}
        env |= {"PET_NNODES": "2", "PET_NODE_RANK": str(index), "RINGUP_TOKEN": TOKEN}
        return self.lab.popen(host, self.words, env=env, cwd="/", text=True, **PIPES)

    def wait_for_step(self, step: int) -> None:
        saved = self.folder / "latest_checkpointed_iteration.txt"
        wait_for(lambda: saved.exists() and int(saved.read_text()) >= step, f"step {step}", ENDED_S)

    def ends(self) -> tuple[list[int], str]:
        """The pods' exit codes and the first one's output."""
        said = [pod.communicate(timeout=ENDED_S)[0] for pod in self.pods]
        return [pod.returncode for pod in self.pods], said[0]

    @property
    def decisions(self) -> list[str]:
        (path,) = self.folder.glob("runs/*/run.json")
        return [one["decision"] for one in json.loads(path.read_text())["attempts"]]


@pytest.fixture
def pods(lab: Callable[..., Lab], folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Played]:
    cluster = lab(hosts=2)
    return lambda *faults, **more: Played(cluster, folder, capsys, *faults, **more)


def test_a_killed_rank_starts_again_in_the_same_pods(pods: Callable[..., Played]) -> None:
    played = pods("kill:1:5")
    codes, said = played.ends()
    assert codes == [0, 0], said
    assert played.decisions == ["same", "finished"], said


def test_every_pod_ends_with_93_where_the_run_would_fail_again(pods: Callable[..., Played]) -> None:
    codes, said = pods("name:1:1").ends()
    assert codes == [93, 93], said


def test_a_pod_that_is_lost_ends_the_run_with_75(pods: Callable[..., Played]) -> None:
    played = pods(steps=600)
    played.wait_for_step(3)
    for process in played.lab.processes("node1"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    codes, said = played.ends()
    assert codes[0] == 75 and played.decisions == ["stop"], said


def test_a_first_pod_that_is_told_to_end_has_every_rank_save(pods: Callable[..., Played]) -> None:
    played = pods(steps=600)
    played.wait_for_step(3)
    played.pods[0].terminate()
    codes, said = played.ends()
    assert codes == [75, 75] and "saved on 1 signal" in said, said
