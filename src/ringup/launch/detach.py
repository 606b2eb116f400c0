"""
Handing a run over to its head node, and finding it again.

The head's guard listens, the others connect to it and are recognised by a token, and only when
all have done so does it take over and start the job; see payload/guard_head.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ringup import __version__
from ringup.errors import LaunchError
from ringup.facts import Host
from ringup.launch.node import NodeRun, integer, text
from ringup.launch.record import plan_json
from ringup.plan import Plan
from ringup.rules import Finding

PORTS = range(29501, 29517)
"""Where the head listens for the other guards, in order of preference: the ports the check has tried."""


class HandOver:
    """The steps from "every guard is ready" to "the head has the run"."""

    def __init__(self, plan: Plan, nodes: Sequence[NodeRun], fail: Callable[[NodeRun, str], None]) -> None:
        self._plan, self._nodes, self._fail = plan, nodes, fail
        self._token = secrets.token_hex(16)
        self._missing = {node.name for node in nodes[1:]}
        self.done = False

    def begin(self) -> None:
        """Ask the head to listen."""
        self._nodes[0].tell(
            type="host",
            address=self._plan.master_addr,
            ports=[port for port in PORTS if port != self._plan.master_port],
            token=self._token,
            nodes=[node.plan.rank for node in self._nodes],
        )

    def heard(self, node: NodeRun, what: str) -> None:
        """A guard has answered."""
        problem = text(node.reply, "problem")
        if problem:
            self._fail(node, problem)
        elif what == "hosting" and node is self._nodes[0]:
            port = integer(node.reply, "port")
            for other in self._nodes[1:]:
                other.tell(type="join", address=self._plan.master_addr, port=port, token=self._token)
            self._take_over_when_complete()
        elif what == "joined-head":
            self._missing.discard(node.name)
            self._take_over_when_complete()
        elif what == "detached" and node is self._nodes[0]:
            self.done = True

    def _take_over_when_complete(self) -> None:
        if not self._missing:
            self._nodes[0].tell(type="take-over")


@dataclass(frozen=True)
class Detached:
    """What is kept here of a run that was handed over."""

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
    """Where detached runs are noted: the cache directory's `runs`."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "ringup" / "runs"


def save(detached: Detached) -> Path:
    """
    Note a run for `ringup attach`.

    Raises LaunchError where that is impossible.
    """
    path = runs_dir() / f"{detached.run}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(msgspec.json.encode(detached))
        fresh.replace(path)
    except OSError as error:
        raise LaunchError(
            f"{path} cannot be written: {error.strerror}", hint="set XDG_CACHE_HOME to a directory that can"
        ) from error
    return path


def note(
    plan: Plan,
    hosts: Iterable[Host],
    *,
    ssh_config: str | None,
    log_dir: Path,
    lease_s: float,
    findings: Iterable[Finding],
) -> Detached:
    """What to save of a plan that is about to be handed over."""
    shown = msgspec.convert(plan_json(plan), Plan)
    if math.isinf(shown.job.time_left_s):  # JSON has no infinity, and nobody judges this job again
        shown = dataclasses.replace(shown, job=dataclasses.replace(shown.job, time_left_s=0.0))
    return Detached(
        run=plan.run_id,
        started=time.time(),
        hosts=tuple(hosts),
        ssh_config=str(Path(ssh_config).absolute()) if ssh_config else None,
        log_dir=str(log_dir.absolute()),
        lease_s=lease_s,
        plan=shown,
        findings=tuple(findings),
    )


def known() -> list[str]:
    """Detached runs noted here, newest first."""
    try:
        paths = [p for p in runs_dir().iterdir() if p.suffix == ".json"]
        return [p.stem for p in sorted(paths, key=lambda p: p.stat().st_mtime, reverse=True)]
    except OSError:
        return []


def load(run: str) -> Detached:
    """
    The run noted under that name.

    Raises LaunchError when there is none, or it cannot be read.
    """
    if re.fullmatch(r"[A-Za-z0-9._-]{1,200}", run) is None or run not in (runs := known()):
        others = ", ".join(known()[:5])
        raise LaunchError(
            f"no detached run {run[:80]!r} is noted here",
            hint=f"one of: {others}"
            if others
            else "attach from the machine `ringup run --detach` was started on",
        )
    del runs
    path = runs_dir() / f"{run}.json"
    try:
        whole: Any = json.loads(path.read_bytes())
        return msgspec.convert(whole, Detached)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise LaunchError(f"{path} cannot be read: {str(error)[:200]}", hint="remove it") from error
