"""Whatever happens to launcher, ssh, network or guard: nothing of the run is left on any node."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

PORT = 29543

SCRIPT = f"""
import signal, socket, subprocess
signal.signal(15, signal.SIG_IGN)
if rank == 0:
    store = socket.create_server(("", {PORT}))
if rank == 2:
    flee = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(300)"
    subprocess.Popen([sys.executable, "-c", flee], env={{}}, start_new_session=True)
print("up", rank, flush=True)
time.sleep(300)
"""

LAUNCH = """
import dataclasses, pathlib, sys
from ringup import hosts
from ringup.transport import Transport
from ringup.runtime import ssh
from tests.test_launch import make_plan
folder = pathlib.Path(sys.argv[1])
nodes = hosts.expand(sys.argv[3])
plan = make_plan(folder, sys.argv[2], hosts_=nodes)
plan = dataclasses.replace(plan, master_port=int(sys.argv[4]))
(folder / "run_id").write_text(plan.run_id)
with Transport(nodes) as door:
    result = ssh.run(plan, door, log_dir=folder / "logs", write=lambda t: print(t, end="", flush=True))
for finding in result.findings:
    print("finding:", finding.where, finding.found, flush=True)
print(result.outcome, result.failure and result.failure.what, flush=True)
sys.exit(result.exit_code)
"""


class LabRun:
    """A run on two hosts, all ranks up, launched from a third."""

    def __init__(self, lab: Lab, folder: Path, script: str = SCRIPT) -> None:
        self.lab, self.folder = lab, folder
        self.nodes = [h.name for h in lab.hosts if h.name != "laptop"]
        self.process = lab.popen(
            "laptop",
            [sys.executable, "-c", LAUNCH, str(folder), script, ",".join(self.nodes), str(PORT)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.text = ""
        self.read_until(lambda: self.text.count("| up") == 4)
        self.run_id = (folder / "run_id").read_text()

    def read_until(self, done: Callable[[], bool]) -> None:
        while not done():
            data = os.read(self.process.stdout.fileno(), 65536).decode()
            assert data, self.text
            self.text += data

    def left(self, host: str) -> list[str]:
        """What there is of the run on a host: tagged, its guards, or fled from it."""
        found = []
        for p in self.lab.processes(host):
            words = " ".join(p.command)
            if self.run_id in words or self.run_id in str(p.environ) or "SIG_IGN" in words:
                found.append(f"{p.pid} {words[-80:]}")
        return found

    def wait_gone(self, hosts: list[str] | None = None) -> None:
        """Wait until nothing is left and the port is free."""
        for host in hosts or self.nodes:
            wait_for(lambda h=host: not self.left(h), f"nothing on {host}")
        assert not self.lab.listening(self.nodes[0], PORT)

    def end(self) -> int:
        """What the launcher prints to its end; its exit code."""
        rest, _ = self.process.communicate(timeout=180)
        self.text += rest.decode()
        return self.process.returncode


@pytest.fixture
def started(shared_lab: Any) -> Iterator[Callable[..., LabRun]]:
    folder = Path(tempfile.mkdtemp(prefix="ringup-orphans-", dir="/var/tmp"))
    runs: list[LabRun] = []

    def start(script: str = SCRIPT) -> LabRun:
        runs.append(LabRun(shared_lab(["node0", "node1", "laptop"]), folder, script))
        others = [runs[-1].lab.popen(n, ["sleep", "333"]) for n in runs[-1].nodes]
        runs[-1].others = others
        return runs[-1]

    yield start
    for run in runs:
        # Nothing else on the nodes was touched.
        assert [p.poll() for p in run.others] == [None] * len(run.others)
        for p in [*run.others, run.process]:
            p.kill()
            p.wait()
        run.wait_gone()
    shutil.rmtree(folder)


def test_ctrl_c_leaves_nothing(started: Any) -> None:
    run = started()
    run.process.send_signal(signal.SIGINT)
    run.wait_gone()
    assert run.end() == 130
    assert "finding:" not in run.text


def test_killed_launcher_leaves_nothing(started: Any) -> None:
    run = started()
    run.process.kill()
    run.wait_gone()


def test_killed_ssh_clients_leave_nothing(started: Any) -> None:
    run = started()
    for p in run.lab.processes("laptop", "ssh"):
        if p.command[0].endswith("ssh"):
            os.kill(p.pid, signal.SIGKILL)
    run.wait_gone()
    assert run.end() != 0
    assert "launcher-error node" in run.text


def test_reset_connections_leave_nothing(started: Any) -> None:
    run = started()
    run.lab.fault("ssh-reset")
    run.wait_gone()
    assert run.end() == 4


def test_cut_link_leaves_nothing_on_either_side(started: Any) -> None:
    run = started()
    run.lab.fault("link-cut", host="node1")
    run.wait_gone()
    assert run.end() == 4
    assert "node1: no contact for" in run.text
    assert "finding: node1 could not be checked" in run.text


@pytest.mark.parametrize("half", ["sentinel", "guard"])
def test_killed_guard_leaves_nothing(started: Any, half: str) -> None:
    run = started()
    label = f"ringup-guard:{run.run_id}"
    guards = sorted(
        (p for p in run.lab.processes("node1") if p.command[-1:] == (label,)), key=lambda p: p.pid
    )
    assert len(guards) >= 2  # a child that has not yet become another program, too
    os.kill(guards[0 if half == "sentinel" else 1].pid, signal.SIGKILL)
    run.wait_gone()
    assert run.end() != 0
    assert "launcher-error node1" in run.text


def test_failing_rank_ends_the_other_node(started: Any) -> None:
    fails = """
open(f"up{rank}", "w").close()
while rank != 3 or len([name for name in os.listdir() if name.startswith("up")]) < 4: time.sleep(0.05)
sys.exit(3)
"""
    run = started(SCRIPT.replace("time.sleep(300)\n", fails))
    run.read_until(lambda: "rank-failed" in run.text)
    run.wait_gone()
    assert run.end() == 3
    assert "rank-failed rank 3 on node1: exit code 3" in run.text
    record = json.loads((run.folder / "logs" / "run.json").read_text())
    assert record["first_failure"]["rank"] == 3


@pytest.mark.parametrize("ahead", ["node0", "node1"])
def test_first_failure_is_found_though_one_clock_is_ahead(started: Any, shared_lab: Any, ahead: str) -> None:
    shared_lab(["node0", "node1", "laptop"]).fault("clock", host=ahead)
    script = """
print("up", rank, time.time(), flush=True)
import select
open(f"up{rank}", "w").close()
def wait(*names):
    while not all(os.path.exists(name) for name in names): select.select([], [], [], 0.01)
wait("up0", "up1", "up2", "up3")
if rank == 3: open("failed", "w").close(); sys.exit(3)
wait("failed")
select.select([], [], [], 0.6 if rank == 0 else 300)
sys.exit(4)
"""
    run = started(script)
    assert run.end() == 3, run.text
    assert "rank-failed rank 3 on node1" in run.text
