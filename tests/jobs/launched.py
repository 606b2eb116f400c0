"""`ringup run` on a lab: started as a user would, and everything it left or said."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.guards import PATIENCE_S, wait_for
from tests.lab import Lab
from tests.lab.machine import Process

JOBS = Path(__file__).parent
CHECKED_AND_ENDED_S = 180
"""Bound of a whole run here: several imports of torch on a loaded machine; reached only by a hang."""


def words(script: str, *arguments: str, hosts: str, nproc: int, options: Sequence[str] = ()) -> list[str]:
    """The command line; `script` is a file of this folder or a path."""
    path = str(JOBS / script)
    command = [sys.executable, "-m", "ringup", "run", "-H", hosts, "--backend", "gloo", "--nproc", str(nproc)]
    return [*command, *options, "--", path, *arguments]


class Launched:
    """
    One `ringup run`, started on `on`; nothing of what was there before may be touched by it.

    "{folder}" in an argument becomes its own directory, which every host sees.
    """

    def __init__(
        self,
        lab: Lab,
        script: str,
        *arguments: str,
        on: str = "node0",
        hosts: str = "node0,node1",
        nproc: int = 1,
        options: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        self.lab, self.on = lab, on
        self.before = {host.name: _processes(lab, host.name) for host in lab.hosts}
        # Not in /tmp, which every host of the lab has for itself.
        self.folder = Path(tempfile.mkdtemp(prefix="ringup-run-", dir="/var/tmp"))
        self.log_dir = self.folder / "logs"
        self.out, self.err = self.folder / "out", self.folder / "err"
        arguments = tuple(word.replace("{folder}", str(self.folder)) for word in arguments)
        command = words(
            script, *arguments, hosts=hosts, nproc=nproc, options=[*options, "--log-dir", str(self.log_dir)]
        )
        self.env = env
        self.start(command)

    def start(self, command: Sequence[str]) -> None:
        """Start it where the run was started from; what it says replaces what was said before."""
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = self.lab.popen(
                self.on, command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=self.env
            )

    def attach(self) -> Launched:
        """`ringup attach` to it."""
        self.start([sys.executable, "-m", "ringup", "attach", self.run_id])
        return self

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def stdout(self) -> str:
        """The ranks' output so far."""
        return self.out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What ringup has said so far."""
        return self.err.read_text(errors="replace")

    @property
    def record(self) -> dict[str, Any]:
        """run.json as it is now; empty before there is one."""
        try:
            return json.loads((self.log_dir / "run.json").read_text())
        except FileNotFoundError:
            return {}

    @property
    def run_id(self) -> str:
        return str(self.record["run"])

    @property
    def port(self) -> int:
        """The rendezvous port that the plan chose."""
        return int(self.record["plan"]["master_port"])

    def said(self) -> str:
        """Everything, for the message of a failed assertion."""
        return f"exit {self.process.poll()}\n{self.stdout[-3000:]}\n{self.stderr[-6000:]}"

    def wait(self, within_s: float = CHECKED_AND_ENDED_S) -> int:
        """Wait for the end of ringup; its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s} s: {self.said()}") from None

    def wait_for_output(self, text: str, count: int = 1) -> Launched:
        """Until the ranks have printed `text` so often."""

        def printed() -> bool:
            assert self.process.poll() is None, self.said()
            return self.stdout.count(text) >= count

        wait_for(printed, f"{count} x {text!r}", CHECKED_AND_ENDED_S)
        return self

    def of_the_job(self, host: str) -> list[str]:
        """What runs on a host with this run's tag, label or directory, whoever its parent is."""
        marks = (self.run_id, str(self.folder))
        return [
            f"{p.pid} {' '.join(p.command)[-120:]}"
            for p in self.lab.processes(host)
            if p.state not in "ZX" and p.pid != self.process.pid and any(p.mentions(mark) for mark in marks)
        ]

    def added(self, host: str) -> list[str]:
        """What runs on a host that did not run there before, ringup itself and its ssh clients apart."""
        return [
            f"{p.pid} {' '.join(p.command)[-120:]}"
            for p in self.lab.processes(host)
            if p.state not in "ZX"
            and p.pid not in self.before[host]
            and not self._is_ours(p.pid)
            and not is_sshd(p)
        ]

    def _is_ours(self, pid: int) -> bool:
        """Whether a process belongs to the launcher: it leads a session of its own."""
        if self.process.returncode is not None:
            return False
        try:
            return os.getsid(pid) == self.process.pid
        except ProcessLookupError:
            return True

    def missing(self) -> list[str]:
        """What ran before on a host and does not any more."""
        return [
            f"{host}: {command}"
            for host, known in self.before.items()
            for pid, command in known.items()
            if pid not in _processes(self.lab, host)
        ]

    def leaves_nothing(self) -> None:
        """Nothing of the job is there once ringup has ended; its connections may take a moment to close."""
        self.wait_nothing_left(0, job_only=True)
        self.wait_nothing_left(PATIENCE_S)

    def wait_nothing_left(self, within_s: float, hosts: Iterable[str] = (), job_only: bool = False) -> None:
        """
        No process of the run on any node, its port free, and nothing else touched.

        `job_only` leaves out what is not the job's: ringup's own connections.
        """
        port = self.port
        names = list(hosts) or [host.name for host in self.lab.hosts]

        look = self.of_the_job if job_only else self.added

        def left() -> list[str]:
            found = [f"{name}: {entry}" for name in names for entry in look(name)]
            return found + [f"{name}: port {port}" for name in names if self.lab.listening(name, port)]

        found: list[str] = []

        def gone() -> bool:
            found[:] = left()
            return not found

        try:
            wait_for(gone, "nothing left", within_s)
        except AssertionError:
            raise AssertionError(f"left after {within_s} s: {found}\n{self.said()}") from None
        assert not self.missing()


def _processes(lab: Lab, host: str) -> dict[int, str]:
    """What runs on a host, connections to it apart."""
    return {p.pid: " ".join(p.command) for p in lab.processes(host) if not is_sshd(p)}


def is_sshd(process: Process) -> bool:
    """An end of a connection: the system's, which learns in minutes that a cable was cut."""
    return process.command[:1] == ("sshd",) or " ".join(process.command).startswith("sshd: ")
