"""
A run's timeline: the activity of each rank over time, on one clock, with that clock's error.

`marks` are the times that a run records, `calls` reads collectives from logs and dumps, `read` puts a
timeline together, `trace` writes it for Perfetto.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from ringup.timeline.marks import Used

Seconds: TypeAlias = "array[float]"
Role = Literal["", "missing", "differs", "failed", "named"]
"""Of a rank in the verdict: it did not come, called something else, failed first, or is named."""
PhaseName = Literal["launch", "start", "init", "work", "wait", "unknown"]
ClockKind = Literal["one", "own", "order"]
"""Times of one clock, of each node's own clock (not comparable), or none: then a collective's number."""
CallSource = Literal["", "watch", "dumps", "lines"]
"""Torch's flight recorder, read by the watch or from dumps; NCCL's log lines of calls."""
UNKNOWN, PENDING = math.nan, math.inf
"""End of a call: unknown, or not ended."""


SCRIPT = "script"


class RankPhase(NamedTuple):
    name: PhaseName
    from_s: float
    to_s: float


class Kind(NamedTuple):
    """The parameters of a call; calls with equal parameters share one."""

    op: str
    what: str = ""
    """Sizes and type: "[8] Float"."""
    size_bytes: int = -1
    """-1 if unknown."""
    where: str = ""
    """The line of the script, "" if unknown."""
    peers: str = ""
    """For a transfer: "0->1"."""


@dataclass
class Track:
    """A rank's calls on a group, in order and as columns, because there may be millions."""

    group: str
    ranks: int = 0
    """Of the group; 0 if unknown."""
    begun_s: Seconds = field(default_factory=lambda: array("d"))
    ended_s: Seconds = field(default_factory=lambda: array("d"))
    """NaN if unknown, infinite if the call has not ended."""
    number: array[int] = field(default_factory=lambda: array("Q"))
    """Among the group's collectives, from 1; 0 for a transfer."""
    kind: array[int] = field(default_factory=lambda: array("I"))
    """Index into the timeline's kinds."""

    def add(self, begun_s: float, ended_s: float, number: int, kind: int) -> None:
        self.begun_s.append(begun_s)
        self.ended_s.append(ended_s)
        self.number.append(number)
        self.kind.append(kind)


@dataclass
class RankLine:
    """Information about one rank; times in seconds since the run began, None if unknown."""

    rank: int
    """Includes its place; a rank with its own name has only that name."""
    node: str = ""
    name: str = ""
    """"rank 3" or "process 4711" if a script started it itself, SCRIPT for the script; else ""."""
    began_s: float | None = None
    ended_s: float | None = None
    code: int | None = None
    """Its exit code, or minus the signal's number."""
    first_s: float | None = None
    """First and last output, or call."""
    last_s: float | None = None
    init_s: tuple[float, float] | None = None
    """NCCL's set-up; infinite if it did not end."""
    failed_s: float | None = None
    role: Role = ""
    where: str = ""
    """Its place at the end, from the watch or the flight recorder."""
    steps: Seconds = field(default_factory=lambda: array("d"))
    tracks: list[Track] = field(default_factory=list)
    use: list[Used] = field(default_factory=list)
    waits_s: float | None = None
    """Since when it waits for other ranks, if it did at the end."""
    clock_error_s: float | None = None

    @property
    def title(self) -> str:
        return self.name or f"rank {self.rank}"

    def phases(self, end_s: float) -> Iterator[RankPhase]:
        """Its phases from the run's begin to its own end (or the run's), as far as known."""
        until = end_s if self.ended_s is None else self.ended_s
        doing: PhaseName = "work"
        at = self.began_s
        if at is not None:
            yield RankPhase("launch", 0.0, min(at, until))
        elif self.first_s is not None:
            at = self.first_s
        elif self.code is not None or self.waits_s is not None:
            at, doing = 0.0, "unknown"
        if at is None or at > until:
            return
        if self.init_s:
            yield RankPhase("start", at, min(self.init_s[0], until))
            at = min(self.init_s[1], until)
            yield RankPhase("init", min(self.init_s[0], until), at)
        elif self.began_s is not None:
            # Until its first step or call, if output or a record shows one.
            firsts = [times[0] for times in (self.steps, *(track.begun_s for track in self.tracks)) if times]
            if firsts:
                yield RankPhase("start", at, min(*firsts, until))
                at = min(*firsts, until)
        wait = until if self.waits_s is None else min(max(self.waits_s, at), until)
        yield RankPhase(doing, at, wait)
        yield RankPhase("wait", wait, until)


@dataclass
class Timeline:
    ranks: list[RankLine]
    end_s: float
    started: float | None = None
    """Since the epoch, by the launching machine's clock."""
    kinds: list[Kind] = field(default_factory=list)
    clock: ClockKind = "own"
    clock_error_s: float | None = None
    """For "one": the error of any node's times; None if unknown."""
    source: CallSource = ""

    @property
    def dumping_nodes(self) -> set[str]:
        """Nodes of the ranks with dumps ("" if unknown); a dump has times of its own node's wall clock."""
        return {line.node for line in self.ranks if line.tracks} if self.source == "dumps" else set()
