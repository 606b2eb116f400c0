"""What counting a whole run gives: the words other parts of ringup read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

from ringup.logs.counts.model import Part, Row, SequenceKey, Warn
from ringup.logs.counts.model import Sequence as Calls

Counts = dict[str, int]


@dataclass(frozen=True)
class Iteration:
    """Calls between two marks; the name is None for what came before the first."""

    name: str | None
    _cells: list[tuple[Part, Row]] = field(repr=False)
    _all: Iterations = field(repr=False)

    @cached_property
    def counts(self) -> Counts:
        """Calls by kind."""
        counts: Counts = {}
        for part, row in self._cells:
            keys, numbers = row.cells()
            for kind, n in zip(self._all.kinds_of(part, keys), numbers, strict=True):
                counts[kind] = counts.get(kind, 0) + n
        return {kind: n for kind, n in counts.items() if n}

    @cached_property
    def by_rank(self) -> dict[str, Counts]:
        """Calls by rank and kind."""
        by_rank: dict[str, Counts] = {}
        for part, row in self._cells:
            for number, _, n in row.items():
                column = part.columns[number]
                rank = self._all.names.of(column.host, column.pid, column.device)
                add(by_rank.setdefault(rank, {}), column.kind, n)
        return by_rank


class Iterations(Sequence[Iteration]):
    """The iterations of a run in order; each is put together when asked for, so many cost little."""

    def __init__(self, rows: list[tuple[str | None, list[tuple[Part, Row]]]], names: RankNames) -> None:
        self._rows = rows
        self._kinds: dict[tuple[int, tuple[int, ...]], list[str]] = {}
        self.names = names

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Iteration: ...
    @overload
    def __getitem__(self, index: slice) -> list[Iteration]: ...
    def __getitem__(self, index: int | slice) -> Iteration | list[Iteration]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return Iteration(*self._rows[index], self)

    def kinds_of(self, part: Part, keys: tuple[int, ...]) -> list[str]:
        """The kinds of a row's cells; rows of the same columns share the answer."""
        known = self._kinds.get((id(part), keys))
        if known is None:
            if len(self._kinds) > 1000:
                self._kinds.clear()
            known = self._kinds[id(part), keys] = [part.columns[key >> 1].kind for key in keys]
        return known


@dataclass(frozen=True)
class RankNames:
    """How ranks are called: by their number in the world, by the launcher's label, or host:pid."""

    by_device: dict[tuple[str, str, str], str]
    by_process: dict[tuple[str, str], str]

    def of(self, host: str, pid: str, device: str = "") -> str:
        """The name of the rank that runs on a device of a process."""
        known = self.by_device.get((host, pid, device)) or self.by_process.get((host, pid))
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
    calls: Calls
    started: bool
    complete: bool
    judged: bool = True

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
        total: Counts = {}
        for member in self.members:
            for kind, n in member.calls.kinds.items():
                add(total, kind, n)
        return total


@dataclass(frozen=True)
class Behind:
    """A rank that has called fewer collectives than others of its communicator."""

    rank: str
    communicator: str
    collective: str
    """Kind of the first collective it has not called, "" where the log does not tell."""
    index: int
    """Place of that collective in the communicator's sequence, from 0."""
    ahead: int
    """Ranks that have called it."""
    by: int
    """Collectives between this rank and the furthest."""
    host: str
    pid: str
    file: str
    last: tuple[int, int, str] | None
    """Offset, line number and text of its last call."""


@dataclass(frozen=True)
class Party:
    """What one rank called at a place where ranks differ."""

    rank: str
    host: str
    pid: str
    file: str
    offset: int
    line: int
    kind: str
    text: str = ""
    fields: tuple[str, str, str, str] = ("", "", "", "")
    """Count, datatype, op and root, once the line has been read."""


@dataclass(frozen=True)
class Mismatch:
    """Ranks of one communicator called different things as their n-th collective."""

    communicator: str
    index: int
    odd: tuple[Party, ...]
    """The ranks that do as few others do."""
    usual: Party
    """One of the ranks that do as most do."""
    skipped: bool
    """The odd rank goes on with what the others call next: it left this one out."""
    differs: tuple[str, ...] = ()
    """kind, count, datatype, op, root: as far as read."""


@dataclass(frozen=True)
class Span:
    """
    Part of a member's file to read again.

    `offset` and `line` are those of the last call before it (of the first call, where there is none before).
    """

    member: Member
    offset: int
    line: int
    end: int


@dataclass(frozen=True)
class Unlocated:
    """The sequences of these ranks differ somewhere between two calls; the lines between tell where."""

    communicator: str
    first: int
    """Calls that are the same in all."""
    last: int
    """Somewhere before this call they differ."""
    spans: tuple[Span, ...]
    sliced: bool
    """The file was counted in slices: counted again in one piece it can be narrowed down."""


@dataclass(frozen=True)
class Run:
    """All files of a run, counted and lined up."""

    collectives: Counts
    by_rank: dict[str, Counts]
    by_iteration: Iterations
    by_communicator: dict[str, Communicator]
    behind: tuple[Behind, ...]
    mismatches: tuple[Mismatch, ...]
    unlocated: tuple[Unlocated, ...]
    silent: tuple[tuple[str, int], ...]
    """Communicator and rank, of members no line was found of."""
    incomplete: tuple[tuple[str, str], ...]
    """Communicator and rank name: Init START, no Init COMPLETE."""
    transports: Counts
    transports_by_host: dict[str, Counts]
    warnings: tuple[tuple[str, Warn], ...]
    """File and warning, its repeats collapsed."""
    torn: Counts
    """Calls by rank whose fields were cut off."""
    not_judged: tuple[str, ...]
    parts: dict[str, Part] = field(repr=False, default_factory=dict)
    names: RankNames = field(repr=False, default_factory=lambda: RankNames({}, {}))

    def iterations(self) -> Iterator[Iteration]:
        """The iterations, one at a time."""
        return iter(self.by_iteration)


def add(counts: Counts, kind: str, n: int) -> None:
    """One more entry of a count."""
    counts[kind] = counts.get(kind, 0) + n
