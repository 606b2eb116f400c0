"""
Handing a run over to its head node, and finding it again later.

The head's guard listens, and the others connect to it; both sides authenticate with certificates that this
run's authority has signed (TLS 1.3).  The launcher makes the keys and sends each node its own with its
orders.  Once every node has joined, the head takes over and starts the job; see agent/guard/head.py.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ringup.agent.guard import tls
from ringup.errors import LaunchError, UsageError, writing
from ringup.model import Host
from ringup.planning import Plan
from ringup.rules import Finding
from ringup.runtime import Options
from ringup.runtime.node_history import cache_dir
from ringup.runtime.node_state import LONGEST_WORDS, NodeRun
from ringup.runtime.output import clean
from ringup.runtime.record import plan_json, replace_file
from ringup.version import __version__

PORTS = range(29501, 29517)
"""Ports on which the head listens for other guards, in order of preference; the check tests them."""
SUPERVISOR = ".supervisor"
"""A file in the folder of a run with restarts: locked by its supervisor."""
CACHE_HINT = "set XDG_CACHE_HOME to a directory that can"


class HandOver:
    """The steps from "every guard is ready" to "the head has the run"."""

    def __init__(self, plan: Plan, nodes: Sequence[NodeRun]) -> None:
        from ringup.keys import Authority  # other runs start faster without it

        self._address, self._port, self._nodes = plan.master_addr, plan.master_port, nodes
        names = [tls.HEAD, *(f"node-{node.plan.rank}" for node in nodes[1:])] if len(nodes) > 1 else []
        authority = Authority()
        # A key and certificate for each node, the head's first; the authority's key ends with this function.
        self._identities = [dataclasses.asdict(authority.issue(name)) for name in names]
        self._missing = {node.name for node in nodes[1:]}

    def begin(self) -> None:
        self._nodes[0].tell(
            type="host",
            address=self._address,
            ports=[port for port in PORTS if port != self._port],
            nodes=[node.plan.rank for node in self._nodes],
            **({"identity": self._identities[0]} if self._identities else {}),
        )

    def on_reply(self, node: NodeRun, what: str) -> str:
        """Why the run cannot be handed over; "" if it can."""
        if problem := clean(node.reply["problem"], LONGEST_WORDS):
            return problem
        if what == "hosting" and node is self._nodes[0]:
            for other, identity in zip(self._nodes[1:], self._identities[1:], strict=True):
                other.tell(type="join", address=self._address, port=node.reply["port"], identity=identity)
        elif what == "joined-head":
            self._missing.discard(node.name)
        if what != "detached" and not self._missing:
            self._nodes[0].tell(type="take-over")
        return ""


@dataclass(frozen=True)
class Detached:
    run: str
    started: float
    """Seconds since the epoch."""
    hosts: tuple[Host, ...]
    ssh_config: str | None
    log_dir: str
    lease_s: float
    plan: Plan
    """Without the values of secrets."""
    findings: tuple[Finding, ...] = ()
    ringup: str = __version__
    schema: int = 1


def runs_dir() -> Path:
    """Folder with the records of detached runs: the cache directory's `runs`."""
    return cache_dir() / "runs"


def writable() -> None:
    """Raises LaunchError if no record can be written, before the start takes minutes."""
    folder = runs_dir()
    with writing(folder, CACHE_HINT):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def note(options: Options, hosts: Iterable[Host]) -> Detached:
    """Record a plan that is handed over, for `ringup attach`; LaunchError if that is impossible."""
    plan, ssh_config = options.plan, options.ssh_config
    noted = Detached(
        run=plan.run_id,
        started=time.time(),
        hosts=tuple(hosts),
        ssh_config=str(Path(ssh_config).absolute()) if ssh_config else None,
        log_dir=str(options.log_dir.absolute()),
        lease_s=options.lease_s,
        plan=msgspec.convert(plan_json(plan), Plan),
        findings=options.findings,
    )
    path = runs_dir() / f"{plan.run_id}.json"
    with writing(path, CACHE_HINT):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(path, json.dumps({**msgspec.to_builtins(noted), "plan": plan_json(plan)}))
    return noted


def run_folder(noted: Detached) -> Path:
    """The folder of the whole run, which contains those of its attempts."""
    folder = Path(noted.log_dir)
    return folder.parent if (folder.parent / SUPERVISOR).exists() else folder


def known() -> list[str]:
    """Recorded detached runs, newest first; without their later attempts (RUN.2)."""
    try:
        paths = [p for p in runs_dir().iterdir() if p.suffix == ".json" and "." not in p.stem]
        return [p.stem for p in sorted(paths, key=lambda p: p.stat().st_mtime, reverse=True)]
    except OSError:
        return []


def load(run: str) -> Detached:
    """The recorded run of that name; UsageError if there is none, LaunchError if it cannot be read."""
    name, _, attempt = run.partition(".")
    if name not in (runs := known()) or not (run == name or attempt.isdecimal()):
        hint = "a run without --detach: `ringup top RUN` while it runs, `ringup logs RUN` after it"
        hint = f"detached: {', '.join(runs[:5])}; {hint}" if runs else hint
        raise UsageError(f"no detached run {run[:80]!r} is recorded on this machine", hint=hint)
    path = runs_dir() / f"{run}.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Detached)
    except (OSError, ValueError, RecursionError) as error:
        raise LaunchError(f"{path} cannot be read: {str(error)[:200]}", hint="remove it") from error
