"""
Job files on lab hosts: over ssh as written, and PBS and LSF with their starters played by ssh.

What pbsdsh and blaunch do for a job file is to start words on a node; here real hosts, real ssh and real
torch do the rest, with article 002's card that leads nowhere in place.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.jobfiles import BATCH
from tests.guards import wait_for
from tests.jobs.launched import JOBS
from tests.lab import Lab
from tests.lab.faults import FAULTS

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

RINGUP = [sys.executable, "-m", "ringup"]
ENDED_S = 240
"""Bound of a whole job on a loaded machine; reached only by a hang."""
STARTERS = {
    "pbsdsh": 'node=$(sed -n "$(($2 + 1))p" "$PBS_NODEFILE"); shift 3\n',
    "blaunch": "node=$1; shift\n",
}
"""What they are called with: `pbsdsh -n LINE -- WORDS`, `blaunch HOST WORDS`."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every host sees."""
    made = Path(tempfile.mkdtemp(prefix="ringup-script-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def cluster(lab: Callable[..., Lab]) -> Lab:
    """Two hosts, of which the first has a card that leads nowhere, to which its own name leads."""
    made = lab(hosts=2, **FAULTS["article-002"].wants)
    made.fault("article-002")
    return made


def written(lab: Lab, folder: Path, kind: str, *words: str, options: tuple[str, ...] = ()) -> Path:
    """The file of `ringup script KIND`, written on the first host."""
    file = folder / f"{kind}.sh"
    options += ("--find-network",) * (kind in BATCH)
    command = [*RINGUP, "script", kind, "--output", str(file), "--nproc", "1", "--backend", "gloo", *options]
    lab.run("node0", [*command, "--", *words], cwd=folder, check=True)
    return file


def of_the_job(lab: Lab, folder: Path) -> list[str]:
    """Ranks and launchers of a job of this test that are there, on any host."""
    return [
        f"{host.name}: {process.pid} {' '.join(process.command)[-120:]}"
        for host in lab.hosts
        for process in lab.processes(host)
        if process.state not in "ZX"
        and "python" in "".join(process.command[:1])
        and process.mentions(str(folder))
    ]


@pytest.mark.parametrize("kind", ["pbs", "lsf"])
def test_a_job_of_pbs_or_lsf_trains(cluster: Lab, folder: Path, kind: str) -> None:
    file = written(cluster, folder, kind, str(JOBS / "train.py"), options=("--nodes", "2"))
    programs = folder / "bin"
    programs.mkdir()
    for name, before in STARTERS.items():
        text = f'#!/bin/bash\n{before}exec ssh "$node" "$(printf "%q " "$@")"\n'
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (folder / "nodes").write_text("node0\nnode0\nnode1\nnode1\n")
    env = {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "PBS_NODEFILE": str(folder / "nodes")}
    env |= {"PBS_JOBID": "7.server", "LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node0 2 node1 2"}
    done = cluster.run("node0", ["bash", str(file)], env=env, cwd=folder, timeout_s=ENDED_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ranks meet at 90.91.33.64 port 29500" in done.stdout
    assert done.stdout.count("trained to the end") == 2
    assert not list(folder.glob(".job-*"))


def over_ssh(lab: Lab, folder: Path, launcher: str, *words: str) -> tuple[subprocess.Popen[Any], Path]:
    """The file for ssh, started on the first host; its output."""
    file = written(lab, folder, "ssh", *words, options=("-H", "node0,node1", "--with", launcher))
    out = folder / "out"
    with out.open("wb") as stream:
        return lab.popen("node0", ["bash", str(file)], cwd=folder, stdout=stream, stderr=stream), out


def test_a_file_for_ssh_trains(cluster: Lab, folder: Path) -> None:
    process, out = over_ssh(cluster, folder, "torchrun", str(JOBS / "train.py"))
    assert process.wait(ENDED_S) == 0, out.read_text()
    assert out.read_text().count("trained to the end") == 2


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_file_for_ssh_that_is_ended_leaves_nothing(cluster: Lab, folder: Path, how: signal.Signals) -> None:
    process, out = over_ssh(cluster, folder, "python", str(JOBS / "stays.py"), "plain", str(folder))

    def both_up() -> bool:
        assert process.poll() is None, out.read_text()
        return out.read_text().count("up ") == 2

    wait_for(both_up, "both ranks up", ENDED_S)
    assert len(of_the_job(cluster, folder)) == 2
    process.send_signal(how)
    process.wait(ENDED_S)
    wait_for(lambda: not of_the_job(cluster, folder), "nothing left")


def test_a_file_for_ssh_ends_every_node_when_one_fails(cluster: Lab, folder: Path) -> None:
    script = folder / "fails.py"
    script.write_text(
        "import os, sys, time\nsys.exit(7) if os.environ['RANK'] == '1' else time.sleep(3600)\n"
    )
    process, out = over_ssh(cluster, folder, "python", str(script))
    assert process.wait(ENDED_S) == 1, out.read_text()
    assert "a node failed with 7: the others are ended" in out.read_text()
    wait_for(lambda: not of_the_job(cluster, folder), "nothing left")


@pytest.mark.parametrize("scheduler", ["pbs", "lsf"])
def test_the_nodes_of_an_allocation_of_pbs_or_lsf_are_reached_by_ssh(
    cluster: Lab, folder: Path, scheduler: str
) -> None:
    (folder / "nodes").write_text("node0\nnode0\nnode1\nnode1\n")
    pbs = {"PBS_JOBID": "7.server", "PBS_NODEFILE": str(folder / "nodes")}
    env = pbs if scheduler == "pbs" else {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "node0 2 node1 2"}
    done = cluster.run("node0", [*RINGUP, "check", "--backend", "gloo", "--json"], env=env, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [node["name"] for node in found["nodes"]] == ["node0", "node1"]
    assert [v["value"] for v in found["env"] if v["name"] == "GLOO_SOCKET_IFNAME"] == ["enp99s0"]
