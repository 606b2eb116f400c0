"""
Every launcher's orphans are found and ended, and the same script under a living launcher goes on.

The start is SIGKILLed as a closed laptop does it: the ssh clients (or the launcher's children) live on, and
with them everything on the nodes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for

LASTS = Path(__file__).parent / "jobs" / "lasts.py"
VENV = Path(__file__).parent.parent / ".venv-launchers"
HOSTS = ("node0", "node1")

# Stands for `colossalai run`, which has a process a host with a connection in it.
COLOSSAL = """
import os, subprocess, sys, time
for host, command in zip(("node0", "node1"), sys.argv[2:]):
    if os.fork() == 0:
        sys.exit(subprocess.call(["ssh", host, command]))
time.sleep(3600)
"""


def on_node(launcher: str, rank: int, port: int, label: str) -> str:
    """What one node is told to run."""
    meeting = f"--nnodes 2 --nproc-per-node 2 --node-rank {rank} --master-addr node0 --master-port {port}"
    torch, mark = f"{sys.executable} -m torch.distributed.", f"LABEL={label}"
    plain = f"RANK={rank} WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT={port} {sys.executable} {LASTS}"
    return {
        "torchrun": f"{mark} {torch}run {meeting} {LASTS}",
        "launch": f"{mark} {torch}launch {meeting} {LASTS}",
        "plain": f"{mark} {plain} & {mark} {plain.replace('RANK=', 'RANK=1')} & wait",
        "spawn": f"{mark} MASTER_ADDR=node0 MASTER_PORT={port} {sys.executable} {LASTS} spawn",
        "jax": f"{mark} JAX_COORDINATOR_ADDRESS=node0:{port} {sys.executable} {LASTS}",
        "colossalai": f"{mark} {torch}run {meeting} {LASTS}",
        "accelerate": f"{mark} {VENV}/bin/accelerate launch --multi_gpu --gpu_ids all --num_machines 2"
        " --num_processes 4"
        f" --machine_rank {rank} --main_process_ip node0 --main_process_port {port} --mixed_precision no"
        f" --dynamo_backend no --rdzv_backend static {LASTS}",
        "deepspeed": f"{mark} DS_ACCELERATOR=cpu {VENV}/bin/deepspeed --hostfile $HOSTFILE --no_ssh"
        f" --node_rank {rank} --master_addr node0 --master_port {port} {LASTS}",
    }[launcher]


class Start:
    """One start on both hosts, from node0."""

    def __init__(self, cluster: Any, launcher: str, port: int, label: str, folder: Path) -> None:
        self.cluster, self.label = cluster, label
        (folder / "hosts").write_text("".join(f"{host} slots=2\n" for host in HOSTS))
        lines = [on_node(launcher, rank, port, label) for rank in (0, 1)]
        lines = [line.replace("$HOSTFILE", str(folder / "hosts")) for line in lines]
        if launcher == "colossalai":
            program = folder / "colossalai"
            program.write_text(COLOSSAL)
            words = [sys.executable, str(program), "run", *lines]
        else:
            loop = "".join(f'ssh {host} "${n}" & ' for n, host in enumerate(HOSTS, 1)) + "wait"
            words = ["sh", "-c", loop, "sh", *lines]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = cluster.popen("node0", words, **quiet)

    def _processes(self, host: str) -> list[Any]:
        return [p for p in self.cluster.processes(host, f"LABEL={self.label}") if p.command]

    def left(self, host: str) -> set[int]:
        """Its processes on a host but the ssh clients."""
        found = self._processes(host)
        return {p.pid for p in found if p.state not in "ZX" and p.command[0] != "ssh"}

    def ranks(self, host: str) -> int:
        """How many have come up on a host."""
        found = self._processes(host)
        return sum("lasts.py" in " ".join(p.command) or "--multiprocessing-fork" in p.command for p in found)

    def end(self) -> None:
        """End what the test has left."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        for host in HOSTS:
            for one in self._processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)

    def pids(self) -> set[tuple[str, int]]:
        return {(host, pid) for host in HOSTS for pid in self.left(host)}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every host of a lab sees; each has a /tmp of its own."""
    with tempfile.TemporaryDirectory(prefix="ringup-clean-", dir="/var/tmp") as name:
        yield Path(name)


EXPECTED = {"jax": 1, "deepspeed": 4}
"""Processes a node with the script in their words, agents too, where they are not 3."""


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    "launcher", ["torchrun", "launch", "plain", "spawn", "jax", "colossalai", "accelerate", "deepspeed"]
)
def test_its_orphans_are_ended_and_a_living_job_of_the_same_script_goes_on(
    shared_lab: Any, launcher: str, folder: Path
) -> None:
    if launcher in ("accelerate", "deepspeed") and not (VENV / ".done").exists():
        pytest.skip("no .venv-launchers (tools/get-launchers.sh)")
    cluster = shared_lab(hosts=2)
    for name in ("lost", "living"):
        (folder / name).mkdir()
    lost = Start(cluster, launcher, 29510, f"lost-{launcher}", folder / "lost")
    living = Start(cluster, launcher, 29520, f"living-{launcher}", folder / "living")
    try:
        for one in (lost, living):
            for host in HOSTS:
                wait_for(
                    lambda h=host, o=one: o.ranks(h) >= EXPECTED.get(launcher, 3), f"ranks on {host}", 240
                )
        lost.process.send_signal(signal.SIGKILL)
        lost.process.wait(60)
        before = living.pids()
        assert lost.pids(), "everything lives on"
        listed = cluster.run("node0", ["ringup", "clean", "-H", "node0,node1"], timeout_s=180)
        assert listed.returncode == 1 and lost.pids() and before <= living.pids(), listed.stdout
        done = cluster.run(
            "node0", ["ringup", "clean", "-H", "node0,node1", "--kill", "--json"], timeout_s=180
        )
        nodes = json.loads(done.stdout)["nodes"]
        assert not lost.pids() and done.returncode == 0, nodes
        assert before <= living.pids() and living.process.poll() is None, nodes
        assert all(node["ended"] for node in nodes)
        assert all("LABEL=living" not in one["command"] for node in nodes for one in node["ended"])
    finally:
        for one in (lost, living):
            one.end()
