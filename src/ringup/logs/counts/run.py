"""The result of counting a whole run, in the terms of other parts of ringup."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ringup.logs.counts.model import Part, Row, Sequence, SequenceKey

Counts = Counter[str]


@dataclass(frozen=True)
class Iteration:
    """Calls between two marks; the name is None for calls before the first."""

    name: str | None
    rows: list[tuple[list[str], Row]] = field(repr=False)
    """With the kind of each column."""

    @property
    def counts(self) -> Counts:
        counts: dict[str, int] = {}  # in half the time of a Counter
        for kinds, row in self.rows:
            for column, n in row.items():
                kind = kinds[column]
                counts[kind] = counts.get(kind, 0) + n
        return Counter(counts)


class RankNames(dict[tuple[str, str, str], str]):
    """(Host, pid, device) -> number in the world or launcher's label; without a device: of the process."""

    def of(self, host: str, pid: str, device: str = "") -> str:
        """The name of the rank that runs on a device of a process; HOST:PID if it has none."""
        known = self.get((host, pid, device)) or self.get((host, pid, ""))
        return known or (f"{host}:{pid}" if host or pid else f"[{device}]" if device else "?")


@dataclass(frozen=True)
class Member:
    """One rank of one communicator."""

    rank: int | None
    name: str
    host: str
    pid: str
    file: str
    key: SequenceKey
    calls: Sequence
    judged: bool = True
    """Aligned with other members: nothing of it is cut off, and its rank is in the logs once."""

    @property
    def position(self) -> int:
        """Collectives called so far; Send and Recv are not numbered."""
        return self.calls.count


@dataclass(frozen=True)
class Communicator:
    """One communicator and the members whose lines were found."""

    id: str
    nranks: int
    members: tuple[Member, ...]

    @property
    def kinds(self) -> Counts:
        """Calls by kind, of all members."""
        return sum((Counter(m.calls.kinds) for m in self.members), Counter())


@dataclass(frozen=True)
class Behind:
    """A rank that has called fewer collectives than others of its communicator."""

    member: Member
    communicator: str
    collective: str
    index: int
    """Position of that collective in the communicator's sequence, from 0."""
    ahead: int
    """Ranks that have called it."""
    by: int
    """Number of collectives between this rank and the furthest."""


@dataclass(frozen=True)
class Party:
    """The call of one rank at a position where ranks differ."""

    member: Member
    offset: int
    line: int
    kind: str
    text: str = ""
    fields: tuple[str, ...] = ("", "", "", "")
    """Count, datatype, op and root, once the line has been read."""


@dataclass(frozen=True)
class Mismatch:
    """Ranks of one communicator called different things as their n-th collective."""

    communicator: str
    index: int
    odd: tuple[Party, ...]
    """The ranks in the minority."""
    usual: Party
    """One of the ranks in the majority."""
    skipped: bool
    """The odd rank continues with the others' next call: it skipped this one."""
    differs: tuple[str, ...] = ()
    """kind, count, datatype, op, root: as far as read."""


@dataclass(frozen=True)
class Unlocated:
    """The sequences of these ranks may differ between two calls; the lines between show where."""

    communicator: str
    first: int
    """Calls that are equal in all."""
    last: int
    """Any difference is before this call."""
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Run:
    """All files of a run, counted and aligned."""

    collectives: Counts
    by_rank: dict[str, Counts]
    by_iteration: list[Iteration]
    by_communicator: dict[str, Communicator]
    behind: tuple[Behind, ...]
    mismatches: tuple[Mismatch, ...]
    unlocated: tuple[Unlocated, ...]
    transports: Counts
    transports_by_host: dict[str, Counts]
    parts: dict[str, Part] = field(repr=False, default_factory=dict)
