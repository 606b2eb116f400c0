"""A running job from a `Plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ringup.planning import NodePlan, Plan
from ringup.rules import Finding
from ringup.transport import Transport

Outcome = Literal[
    "running", "restarting", "ok", "saved", "not-saved", "rank-failed", "check-stopped", "hung",
    "interrupted", "launcher-error",
]  # fmt: skip
"""What `run.json` says; "running" until somebody has seen the end, "restarting" between two attempts."""
LAUNCHER = -1
"""The "rank" under which a launcher's own output travels."""


@dataclass(frozen=True)
class RankEnd:
    rank: int
    """Global rank; -1 when its launcher gave it none."""
    local_rank: int
    node: str
    pid: int
    code: int | None
    """Exit code, or minus the signal's number; None while it runs or when its node was lost."""


@dataclass(frozen=True)
class Failure:
    """The first failure: a description, and the last lines of the rank that failed."""

    node: str
    rank: int | None
    """None when it was not a rank: the launcher on a node, or the node itself."""
    code: int | None
    """Exit code, or minus the signal's number; None when there is none (a lost node)."""
    what: str
    """One line: who, and how it ended."""
    at_s: float
    """Seconds after the start, by clocks corrected to the launcher's."""
    wall_time: float
    """The same as seconds since the epoch, by the launcher's clock."""
    lines: tuple[str, ...]
    """Its last lines, safe to print."""
    file: str
    """Where all of its output is."""
    is_consequence: bool = False
    """Its last lines blame another rank, but no other rank failed first."""
    left_before: tuple[str, ...] = ()
    """Of a consequence: ranks that had ended with code 0 by then ("rank 3 on node1, 0.2 s before")."""


@dataclass(frozen=True)
class Event:
    """Worth a line of progress; kinds are "ready", "joined", "failed", "ending", "note", "hang", ..."""

    kind: str
    text: str
    node: str = ""


@dataclass(frozen=True)
class RunResult:
    run_id: str
    outcome: Outcome
    exit_code: int
    """What `ringup run` exits with."""
    failure: Failure | None
    ranks: tuple[RankEnd, ...]
    findings: tuple[Finding, ...]
    """What cleaning up found."""
    notes: tuple[str, ...]
    log_dir: str
    seconds: float
    record: Mapping[str, Any] = field(default_factory=dict)
    """What run.json holds, or would if it could be written."""
    problem: str = ""
    """Why output is missing in the log directory; among the notes, too."""
    lost: tuple[str, ...] = ()
    """Nodes that stopped responding, or whose connection or guard was lost."""
    heard_s: float = 0.0
    """When the last of them sent something, monotonic."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds: "start" of all ranks (absent where one never did), "notice" of the failure, "end" after it."""
    signal: int = 0
    """The first that asked this process to end, before the run had ended or after; 0 for none."""


class Watcher(Protocol):
    """Looks at a run while it goes on; `reports` go to run.json."""

    reports: list[dict[str, Any]]
    stalled: object
    """What stops the run's progress now; None if nothing does."""

    def on_time(self, now_s: float, nodes: Sequence[Any], tell: Callable[[Event], object]) -> str:
        """Called at every turn with the `NodeRun`s; the reason to end the run as hung, or ""."""


GRACE_S = 3.0
"""SIGTERM to SIGKILL.  All nodes are to end within 5 s of the first failure."""


@dataclass(frozen=True)
class Save:
    """How ranks save their state before a run is ended from outside."""

    signal: str
    """Sent to every rank, once ("SIGUSR1")."""
    grace_s: float
    """From that signal to the end of ranks that have not ended by themselves."""
    is_due: Callable[[], bool] = lambda: False
    """Whether the job's time limit is so near that the ranks have to save without being asked."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A run and how it is followed, by the command that started it or by `attach`."""

    plan: Plan
    reach: Transport
    log_dir: Path
    write: Callable[[str], object] | None = None
    """Takes the ranks' lines (None: none are shown); called from another thread, and may block."""
    on_event: Callable[[Event], None] = lambda event: None
    """Called from that thread, too."""
    lease_s: float = 20.0
    start_limit_s: float = 60.0
    grace_s: float = GRACE_S
    watcher: Watcher | None = None
    findings: tuple[Finding, ...] = ()
    detach: bool = False
    """Leave the run to its head node once that is sure of every other (outcome "running")."""
    ssh_config: str | None = None
    """What `attach` uses after `detach`."""
    save: Save | None = None
    """None: SIGTERM ends the ranks within `grace_s`, as Ctrl-C always does."""
    on_record: Callable[[Mapping[str, Any]], object] = lambda content: None
    """Gets what was written to run.json; from another thread, too."""
    on_lines: Callable[[NodePlan, Sequence[bytes]], None] = lambda node, lines: None
    """Gets the ranks' lines as they come."""
