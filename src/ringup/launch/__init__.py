"""
A running job from a `Plan`.

    program       what is sent to the nodes
    render        what each node is told, as data and as text
    node          one node while it runs: what its guard says
    blame         which failure was the first
    show, output  the ranks' lines, on the terminal and in files
    record        run.json
    last_look     what is left on the nodes afterwards
    ssh           starts, follows and ends it over any `Reach`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ringup.rules import Finding

Outcome = Literal["running", "ok", "rank-failed", "check-stopped", "hung", "interrupted", "launcher-error"]
"""What `run.json` says; "running" until somebody has seen the end.  INTERFACE.md."""


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    """Global rank; -1 when its launcher gave it none."""
    local_rank: int
    node: str
    pid: int
    code: int | None
    """Exit code, or minus the signal's number; None while it runs or when its node was lost."""


@dataclass(frozen=True)
class Failure:
    """The failure that came first, in words and in the words of who failed."""

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
    """Its own last words say that somebody else ended first, and nobody who did was seen to fail."""
    left_before: tuple[str, ...] = ()
    """Of a consequence: ranks that had ended with code 0 by then ("rank 3 on node1, 0.2 s before")."""


@dataclass(frozen=True)
class Event:
    """
    Worth a line of progress.

    "ready", "started", "joined", "failed", "ending", "note", "problem", "quiet", "hang", ...
    """

    kind: str
    text: str
    node: str = ""


@dataclass(frozen=True)
class RunResult:
    """What became of a run."""

    run_id: str
    outcome: Outcome
    exit_code: int
    """What `ringup run` exits with; INTERFACE.md."""
    failure: Failure | None
    ranks: tuple[RankEnd, ...]
    findings: tuple[Finding, ...]
    """What cleaning up found."""
    notes: tuple[str, ...]
    log_dir: str
    seconds: float
    record: Mapping[str, Any] = field(default_factory=dict)
    """What run.json holds, or would if it could be written."""


@dataclass(frozen=True)
class Rendered:
    """
    What a backend submits, and the same for people.

    `orders` maps each node to what its guard is told, complete; `text` hides secrets.
    """

    orders: Mapping[str, Mapping[str, Any]]
    text: str


class Watcher(Protocol):
    """Looks at a run while it goes on; `reports` go to run.json."""

    reports: list[dict[str, Any]]

    def on_time(self, now_s: float, nodes: Sequence[Any], tell: Callable[[Event], object]) -> str:
        """Called at every turn with the `NodeRun`s; the reason to end the run as hung, or ""."""
