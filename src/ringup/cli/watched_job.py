"""The job that `ringup top` watches: its name, the connections to its nodes, its outcome, and ending it."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ringup import saved_run
from ringup.agent_bundle import program
from ringup.cli import background, request, runs
from ringup.errors import LaunchError, RingupError, UsageError
from ringup.model import Host, Unreached
from ringup.output import terminal
from ringup.planning import Plan
from ringup.runtime import detach
from ringup.saved_run import LIVING, SavedFailure, SavedPlan, SavedRun
from ringup.transport import Transport
from ringup.units import printable

END_S = 15.0
"""Seconds in which the head node of a detached run must answer."""


@dataclass
class WatchedJob:
    name: str
    """A run, a rendezvous, or "" for the largest job."""
    hosts: tuple[Host, ...]
    ssh_config: str | None
    folder: Path | None = None
    """The run's folder, if ringup started the job."""
    plan: Plan | SavedPlan | None = None
    journal: str = ""
    """The file on the head node with the output of a detached run; "" if a process here follows it."""
    record: SavedRun | None = None
    """run.json, once it has been read."""
    _read_ns: int = 0

    @property
    def codes(self) -> dict[int, int]:
        ranks = self.record.ranks if self.record else ()
        return {one.rank: one.code for one in ranks if one.code is not None}

    @property
    def failure(self) -> SavedFailure | None:
        return self.record.first_failure if self.record else None

    @property
    def how_ended(self) -> str:
        """The outcome of a run and its first failure; "" while it runs."""
        if not self.record or self.record.is_living:
            return ""
        return f"{self.record.outcome}: {self.failure.what}" if self.failure else self.record.outcome

    def read_record(self) -> None:
        """Read run.json again if it has changed."""
        with contextlib.suppress(OSError):
            changed_ns = (self.folder / saved_run.FILE).stat().st_mtime_ns if self.folder else 0
            if self.folder and changed_ns != self._read_ns and (found := saved_run.read(self.folder)):
                self.record, self._read_ns, self.plan = found, changed_ns, found.plan or self.plan

    def owner(self) -> background.Supervised | None:
        """The process that owns the run, alive or not; None if there never was one."""
        names = (detach.SUPERVISOR, background.LAUNCHER) if self.folder and not self.journal else ()
        found = [background.supervised(self.folder, name) for name in names if self.folder]
        return next(filter(None, found), None)

    def end(self) -> str:
        """End the run, like Ctrl-C at its launcher; returns a sentence with the result."""
        if not self.folder:
            where = "End it where it was started (scancel, Ctrl-C)."
            return f"Not ended: ringup has not started this job. {where}"
        if self.journal and self.plan:
            return self._end_detached(self.plan.nodes[0].run_dir)
        who = self.owner()
        if not who or not who.is_alive:
            return "Not ended: the process that has this run is gone. `ringup clean` finds what it left."
        if who.host != os.uname().nodename:
            return f"Not ended: it was started on {printable(who.host)}. There: kill -INT {who.pid}"
        os.kill(who.pid, signal.SIGINT)
        return f"The run is ending: Ctrl-C was sent to the process that has it (pid {who.pid})."

    def _end_detached(self, run_dir: str) -> str:
        reply = _Reply()
        with Transport(self.hosts[:1], ssh_config=self.ssh_config) as transport:
            words = program("guard.attach"), (run_dir,), reply
            way = transport.start(self.hosts[0].name, *words, label=f"ringup-attach:{self.name}")
            way.write(json.dumps({"type": "end", "reason": "interrupted in ringup top"}).encode() + b"\n")
            until = time.monotonic() + END_S
            while not reply.words and time.monotonic() < until:
                transport.turn(0.1)
        return reply.words or f"Not known whether it ends: no answer within {END_S:.0f} s."


class _Reply:
    """A `Listener` on the head node's guard: waits until it confirms the end."""

    def __init__(self) -> None:
        self.words, self._data = "", b""

    def on_output(self, data: bytes) -> None:
        self._data = (self._data + data)[-(1 << 16) :]
        if b'"ending"' in self._data:
            self.words = "The run is ending: the head node has the order."

    def on_errors(self, data: bytes) -> None: ...

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        self.words = self.words or f"Not ended: {error.words if error else 'the head node has no such run'}."


def job_named(args: argparse.Namespace) -> WatchedJob:
    """The job of a command line.  Raises UsageError and LaunchError."""
    given = request.nodes_from(args) if request.named(args) else ()
    places = [Path(args.name)] if args.name else []
    here = runs.folders(Path(args.log_dir or "runs"))
    elsewhere = [] if args.log_dir and not args.name else runs.detached()
    rows = runs.runs_of([*places, *here, *elsewhere])
    place = places[0].absolute() if places else None
    named = [row for row in rows if args.name and (args.name == row["run"] or str(place) == row["log_dir"])]
    for row in named[:1] or ([] if args.name or (given and not args.log_dir) else rows):
        folder = Path(row["log_dir"])
        if row["state"] in LIVING and (job := _of_run(row["run"], folder, given, args.ssh_config)):
            return job
        if named and row["state"] in LIVING:
            hint = "name its nodes with -H, as for `ringup run`"
            raise LaunchError(f"the process that has run {row['run']} is not known here", hint=hint)
        if named:
            hint = f"`ringup logs {terminal.path_shown(folder)}` tells why; `ringup runs` lists the others"
            raise LaunchError(f"run {row['run']} has ended: {row['outcome']}", hint=hint)
    if args.name and not given and ":" not in args.name:
        hint = "`ringup runs` lists the runs here; another job: its MASTER_ADDR:PORT, with -H for its nodes"
        raise UsageError(f"no run {args.name[:80]!r} is known here", hint=hint)
    return WatchedJob(args.name, given or request.nodes_from(args), args.ssh_config)


def _of_run(run: str, folder: Path, given: tuple[Host, ...], ssh_config: str | None) -> WatchedJob | None:
    """None if the run's nodes are unknown, or the process that owned it is gone."""
    with contextlib.suppress(RingupError):
        known = detach.load(run)
        job = WatchedJob(run, given or known.hosts, ssh_config or known.ssh_config, folder, known.plan)
        if not (folder / detach.SUPERVISOR).exists():
            job.journal = f"{known.plan.nodes[0].run_dir.rstrip('/')}.journal"
        return job
    who = background.supervised(folder, background.LAUNCHER)
    if who and who.is_alive:
        with contextlib.suppress(ValueError, RecursionError):
            reach = msgspec.json.decode(who.more, type=background.Reach)
            return WatchedJob(run, given or reach.hosts, ssh_config or reach.ssh_config, folder)
    return WatchedJob(run, given, ssh_config, folder) if given else None
