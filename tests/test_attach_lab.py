"""A detached run on hosts with a real sshd: what it survives and what ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for
from tests.test_launch_orphans import PORT, SCRIPT, LabRun

pytestmark = [pytest.mark.lab, pytest.mark.slow]

DETACH = """
import dataclasses, pathlib, sys
from ringup import hosts
from ringup.transport import Transport
from ringup.runtime import ssh
from tests.test_launch import make_plan
folder = pathlib.Path(sys.argv[1])
nodes = hosts.expand(sys.argv[3])
plan = make_plan(folder, sys.argv[2], hosts_=nodes)
plan = dataclasses.replace(plan, master_addr=sys.argv[5], master_port=int(sys.argv[4]))
(folder / "run_id").write_text(plan.run_id)
with Transport(nodes) as door:
    result = ssh.run(plan, door, log_dir=folder / "logs", detach=True)
print(result.outcome, result.failure and result.failure.what, flush=True)
if result.outcome == "running":
    sys.stdin.read()  # the launcher lingers until it is killed
sys.exit(result.exit_code)
"""

ATTACH = """
import sys
from ringup.transport import Transport
from ringup.runtime import attach, detach
noted = detach.load(sys.argv[1])
with Transport(noted.hosts) as door:
    result = attach.follow(noted, door, write=lambda t: print(t, end="", flush=True))
for finding in result.findings:
    print("finding:", finding.where, finding.found, flush=True)
print(result.outcome, result.failure and result.failure.what, flush=True)
sys.exit(result.exit_code)
"""


class DetachedRun(LabRun):
    """Handed over from the laptop, whose launcher was then killed."""

    def __init__(self, lab: Any, folder: Path) -> None:
        self.lab, self.folder, self.text = lab, folder, ""
        self.nodes = ["node0", "node1"]
        words = [str(folder), SCRIPT, "node0,node1", str(PORT), lab.host("node0").address]
        self.process = self.start(DETACH, *words, stdin=subprocess.PIPE)
        self.read_until(lambda: "running" in self.text)
        self.run_id = (folder / "run_id").read_text()
        self.process.kill()
        self.process.wait()

    def start(self, source: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        environment = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        return self.lab.popen(
            "laptop",
            [sys.executable, "-c", source, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            **options,
        )

    def attach(self) -> None:
        self.text = ""
        self.process = self.start(ATTACH, self.run_id)
        self.read_until(lambda: self.text.count("| up") == 4)


@pytest.fixture
def run(shared_lab: Any) -> Iterator[DetachedRun]:
    folder = Path(tempfile.mkdtemp(prefix="ringup-attach-", dir="/var/tmp"))
    made = DetachedRun(shared_lab(["node0", "node1", "laptop"]), folder)
    yield made
    for node in made.nodes:
        for p in made.lab.processes(node, made.run_id):
            with contextlib.suppress(ProcessLookupError):
                os.kill(p.pid, signal.SIGKILL)
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()
    shutil.rmtree(folder)


def test_survives_the_launcher_and_every_ssh_connection_and_ends_by_ctrl_c(run: DetachedRun) -> None:
    run.lab.fault("ssh-reset")
    run.attach()
    run.lab.fault("ssh-reset")
    assert run.end() == 1 or "continues in the background" in run.text
    run.attach()
    assert all(run.left(node) for node in run.nodes)
    run.process.send_signal(signal.SIGINT)
    run.wait_gone()
    assert run.end() == 130
    assert "finding:" not in run.text


@pytest.mark.smoke
@pytest.mark.parametrize("half", ["sentinel", "guard"])
def test_killed_guard_of_the_head_leaves_nothing(run: DetachedRun, half: str) -> None:
    run.attach()
    label = f"ringup-guard:{run.run_id}"
    guards = sorted(
        (p for p in run.lab.processes("node0") if p.command[-1:] == (label,)), key=lambda p: p.pid
    )
    assert len(guards) >= 2  # a child that has not yet become another program, too
    os.kill(guards[0 if half == "sentinel" else 1].pid, signal.SIGKILL)
    run.wait_gone()
    assert run.end() != 0
    assert "launcher-error" in run.text


def test_node_cut_off_from_the_head_ends_and_ends_the_others(run: DetachedRun) -> None:
    run.lab.fault("link-cut", host="node1")
    run.wait_gone()
    run.lab.heal()
    wait_for(lambda: not run.lab.processes("node0", run.run_id), "the head's guard has ended")
    run.process = run.start(ATTACH, run.run_id)
    assert run.end() == 4
    assert "launcher-error node1: no contact for" in run.text
