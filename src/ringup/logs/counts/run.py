"""What counting a whole run gives: the words other parts of ringup read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

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
        for own in self.by_rank.values():
            for kind, n in own.items():
                counts[kind] = counts.get(kind, 0) + n
        return counts

    @cached_property
    def by_rank(self) -> dict[str, Counts]:
        """Calls by rank and kind."""
        by_rank: dict[str, Counts] = {}
        for part, row in self._cells:
            for rank, own in self._all.layout_of(part).ranks(row):
                if known := by_rank.get(rank):
                    for kind, n in own.items():
                        add(known, kind, n)
                else:
                    by_rank[rank] = own
        return by_rank


class Layout:
    """How the cells of a part's rows are read: looked up once, then a whole rank at a time."""

    def __init__(self, part: Part, names: RankNames) -> None:
        places: dict[str, list[tuple[int, str]]] = {}
        for key in dict.fromkeys(key for row in part.rows for key in row.cells()[0]):
            column = part.columns[key >> 1]
            rank = names.of(column.host, column.pid, column.device)
            places.setdefault(rank, []).append((key, column.kind))
        self._keys = [key for own in places.values() for key, _ in own]
        self._ranks = [(rank, tuple(kind for _, kind in own)) for rank, own in places.items()]

    def ranks(self, row: Row) -> Iterator[tuple[str, Counts]]:
        """Each rank of a row with its calls by kind, none of them zero."""
        numbers: list[Any] = list(map(dict(zip(*row.cells(), strict=True)).get, self._keys))
        first = 0
        for rank, kinds in self._ranks:
            own = numbers[first : first + len(kinds)]
            first += len(kinds)
            counts: Counts = dict(zip(kinds, own, strict=True))
            if None in own or 0 in own or len(counts) < len(kinds):
                counts = {}
                for kind, n in zip(kinds, own, strict=True):
                    if n:
                        add(counts, kind, n)
            if counts:
                yield rank, counts


class Iterations(Sequence[Iteration]):
    """The iterations of a run in order; each is put together when asked for, so many cost little."""

    def __init__(self, rows: list[tuple[str | None, list[tuple[Part, Row]]]], names: RankNames) -> None:
        self._rows = rows
        self._layouts: dict[int, Layout] = {}
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

    def layout_of(self, part: Part) -> Layout:
        """How a part's rows are read."""
        known = self._layouts.get(id(part))
        if known is None:
            known = self._layouts[id(part)] = Layout(part, self.names)
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
