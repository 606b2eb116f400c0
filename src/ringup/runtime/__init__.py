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
"""Of `run.json`; "running" until a ringup process sees the end, "restarting" between two attempts."""
LAUNCHER = -1
"""The "rank" of a launcher's own output."""


@dataclass(frozen=True)
class RankEnd:
    rank: int
    """Global rank; -1 if its launcher set none."""
    local_rank: int
    node: str
    pid: int
    code: int | None
    """Exit code, or minus the signal's number; None while it runs or if its node was lost."""


@dataclass(frozen=True)
class Failure:
    """The first failure: a description, and the last lines of the rank that failed."""

    node: str
    rank: int | None
    """None if it was not a rank: the launcher on a node, or the node itself."""
    code: int | None
    """Exit code, or minus the signal's number; None if there is none (a lost node)."""
    what: str
    """One line: the process, and how it ended."""
    at_s: float
    """Seconds after the start, on the launcher's clock (nodes' clocks are corrected)."""
    wall_time: float
    """The same as seconds since the epoch, by the launcher's clock."""
    lines: tuple[str, ...]
    """Its last lines, safe to print."""
    file: str
    """The file with all of its output."""
    is_consequence: bool = False
    """Its last lines blame another rank, but no other rank failed first."""
    left_before: tuple[str, ...] = ()
    """If it is a consequence: ranks that had exited with code 0 before ("rank 3 on node1, 0.2 s before")."""


@dataclass(frozen=True)
class Event:
    """An event for a progress line; kinds are "ready", "joined", "failed", "ending", "note", "hang", ..."""

    kind: str
    text: str
    node: str = ""


@dataclass(frozen=True)
class RunResult:
    run_id: str
    outcome: Outcome
    exit_code: int
    """The exit code of `ringup run`."""
    failure: Failure | None
    ranks: tuple[RankEnd, ...]
    findings: tuple[Finding, ...]
    """The findings of the clean-up."""
    notes: tuple[str, ...]
    log_dir: str
    seconds: float
    record: Mapping[str, Any] = field(default_factory=dict)
    """The content of run.json, even if it could not be written."""
    problem: str = ""
    """Why output is missing in the log directory; also among the notes."""
    lost: tuple[str, ...] = ()
    """Nodes that stopped responding, or whose connection or guard was lost."""
    heard_s: float = 0.0
    """Time of the last message from any of them, monotonic."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds: "start" of all ranks (absent if one never started), "notice" of the failure, "end"."""
    signal: int = 0
    """The first signal that requested the end of this process, before or after the run's end; 0 for none."""

    @property
    def stall(self) -> Mapping[str, Any] | None:
        """The last look that found ranks without progress, as in run.json."""
        return next((h for h in reversed(self.record.get("hangs", ())) if h["verdict"] == "stalled"), None)


class Watcher(Protocol):
    """Watches a run; its `reports` go to run.json."""

    reports: list[dict[str, Any]]
    stalled: object
    """The verdict that the run makes no progress now; None if it does."""

    def on_time(self, now_s: float, nodes: Sequence[Any], tell: Callable[[Event], object]) -> str:
        """Called in every turn with the `NodeRun`s; returns the reason to end the run as hung, or ""."""


GRACE_S = 3.0
"""Seconds from SIGTERM to SIGKILL. All nodes must end within 5 s of the first failure."""


@dataclass(frozen=True)
class Save:
    """How ranks save their state before a run is ended from outside."""

    signal: str
    """Sent to every rank, once ("SIGUSR1")."""
    grace_s: float
    """Seconds from that signal to the end of ranks that have not exited."""
    is_due: Callable[[], bool] = lambda: False
    """Whether the job's time limit is so near that the ranks must save now."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of following a run, by the command that started it or by `attach`."""

    plan: Plan
    reach: Transport
    log_dir: Path
    write: Callable[[str], object] | None = None
    """Gets the ranks' lines (None to show none); called from another thread, and may block."""
    on_event: Callable[[Event], None] = lambda event: None
    """Called from that thread, too."""
    lease_s: float = 20.0
    start_limit_s: float = 60.0
    grace_s: float = GRACE_S
    watcher: Watcher | None = None
    findings: tuple[Finding, ...] = ()
    detach: bool = False
    """Hand the run over to its head node once all nodes have joined (outcome "running")."""
    ssh_config: str | None = None
    """The file that `attach` uses after `detach`."""
    save: Save | None = None
    """None: SIGTERM ends the ranks within `grace_s`, as Ctrl-C always does."""
    on_record: Callable[[Mapping[str, Any]], object] = lambda content: None
    """Gets the content of run.json after it is written; also from another thread."""
    on_lines: Callable[[NodePlan, Sequence[bytes]], None] = lambda node, lines: None
