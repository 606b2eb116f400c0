"""
What counting a file leaves behind: small, picklable, and exact when parts are put together.

Offsets are bytes, line numbers begin at 1, both from the beginning of the file (of the slice, inside a
part that has not been merged).  Names are text as found: `units.printable` is for whoever shows them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MASK = (1 << 64) - 1
RADIX = 0x9E3779B97F4A7C15
"""Odd, so that a digest can be shifted both ways modulo 2**64."""

TAIL = 64
"""Last calls kept of every process and communicator; what is further back is compared by digest."""

FIRST_STEP = 1024
MAX_MILESTONES = 64

MAX_WARNINGS = 1_000
MAX_TRANSPORTS = 10_000
MAX_CELLS = 3_000_000
"""Cells of the rows of iterations, 4 bytes each; the iterations after that share one row."""

MAX_PROCESSES = 10_000
MAX_DEVICES = 64
MAX_KINDS = 64
MAX_COLUMNS = 100_000
MAX_SEQUENCES = 30_000

ProcessKey = tuple[str, str]
"""Host and process id; of several threads, whichever writes."""

SequenceKey = tuple[str, str, str, int]
"""Host, process id, communicator pointer, and how often the pointer had been used before in this process."""


@dataclass(frozen=True)
class Line:
    """One line of a file."""

    offset: int
    line: int
    text: str

    def moved(self, offset: int, lines: int) -> Line:
        """The same line, counted from further back."""
        return Line(self.offset + offset, self.line + lines, self.text)


@dataclass(frozen=True)
class Column:
    """One cell of a row of counts: a kind of call, on one device of one process."""

    host: str
    pid: str
    device: str
    kind: str


class Row:
    """
    Calls between two iteration marks, by column number.

    A cell is `own` where the process's label printed the mark itself; all other processes follow the last
    mark anybody printed.  Rows that are done are packed: 4 bytes a cell.
    """

    __slots__ = ("_cells", "_counts", "_keys", "by", "name")

    def __init__(self, name: str | None, by: str = "") -> None:
        self.name = name
        self.by = by
        self._cells: dict[int, int] | None = {}
        self._keys: tuple[int, ...] = ()
        self._counts = array("I")

    def add(self, column: int, own: bool, count: int) -> None:
        """Count calls of a column."""
        if self._cells is None:
            self._cells = dict(zip(self._keys, self._counts, strict=True))
        key = column * 2 + own
        self._cells[key] = self._cells.get(key, 0) + count

    def follow(self, counts: Iterable[tuple[int, int]]) -> None:
        """Count calls of processes that follow the last mark."""
        if self._cells is None:
            self._cells = dict(zip(self._keys, self._counts, strict=True))
        cells = self._cells
        for column, count in counts:
            cells[column * 2] = cells.get(column * 2, 0) + count

    def adopt(self, keys: tuple[int, ...], counts: array[int]) -> bool:
        """Take the cells of another row as they are; False where there are some already."""
        if self._cells or self._keys:
            return False
        self._cells, self._keys, self._counts = None, keys, counts
        return True

    @property
    def packed(self) -> tuple[tuple[int, ...], array[int]] | None:
        """Keys and counts of a row that is done."""
        return None if self._cells is not None else (self._keys, self._counts)

    def pack(self, known: dict[tuple[int, ...], tuple[int, ...]]) -> int:
        """Make a done row small; the number of its cells.  Rows of the same columns share their keys."""
        if self._cells is not None:
            keys = tuple(self._cells)
            self._keys = known.setdefault(keys, keys)
            small = max(self._cells.values(), default=0) < 1 << 32
            self._counts = array("I" if small else "Q", self._cells.values())
            self._cells = None
        return len(self._keys)

    def cells(self) -> tuple[tuple[int, ...], Iterable[int]]:
        """Twice the column plus own, and the counts beside them; done rows share the first."""
        if self._cells is not None:
            return tuple(self._cells), self._cells.values()
        return self._keys, self._counts

    def items(self) -> Iterator[tuple[int, bool, int]]:
        """Column, own, count."""
        for key, count in zip(*self.cells(), strict=True):
            if count:
                yield key >> 1, bool(key & 1), count


@dataclass
class Process:
    """What the lines of one process told, collectives aside."""

    host: str
    pid: str
    label: str = ""
    devices: set[str] = field(default_factory=set)
    stage: int = 0
    first: Line | None = None
    last: Line | None = None
    first_warning: Line | None = None
    warnings: int = 0


@dataclass
class Comm:
    """One rank's side of a communicator, from its Init lines."""

    pointer: str
    rank: int
    nranks: int
    device: str
    comm_id: str | None
    parent: tuple[str, int, str | None, str] | None = None
    """Pointer and generation of the parent, split count where told, color."""
    started: bool = False
    complete: bool = False
    order: int = 0
    """Place among the communicators this process set up."""


@dataclass
class Sequence:
    """
    What one process called on one communicator.

    `count` numbers collectives only (a Send or Recv is not called by every rank); `digest` is the sum of
    hash times RADIX to the distance from the end, modulo 2**64.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    count: int = 0
    digest: int = 0
    tail: list[tuple[int, int, int, str]] = field(default_factory=list)
    """Hash, offset, line number and kind of the last collectives, TAIL of them."""
    milestones: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """After each multiple of `step` collectives: the digest, and where the last of them stands."""
    step: int = FIRST_STEP
    sliced: bool = False
    """Put together from slices: the milestones are those of the first only."""
    first: tuple[int, int] | None = None
    """Offset and line number of the first collective."""
    last: tuple[int, int, bytes] | None = None
    """Offset, line number and line of the last call of any kind."""
    nranks: int = 0

    def reached(self, offset: int, line: int) -> None:
        """Note that a multiple of `step` collectives is behind; double the step when there are many."""
        self.milestones[self.count] = (self.digest, offset, line)
        if len(self.milestones) > MAX_MILESTONES:
            self.step *= 2
            self.milestones = {n: at for n, at in self.milestones.items() if n % self.step == 0}


@dataclass(frozen=True)
class Warn:
    """A warning, its repeats collapsed."""

    text: str
    first: Line
    count: int


@dataclass
class Part:
    """One file, or one slice of it, counted."""

    bytes: int = 0
    lines: int = 0
    last: Line | None = None
    columns: list[Column] = field(default_factory=list)
    rows: list[Row] = field(default_factory=lambda: [Row(None)])
    label_rows: dict[str, int] = field(default_factory=dict)
    """Row that each label's own last mark opened."""
    rows_pooled: bool = False
    processes: dict[ProcessKey, Process] = field(default_factory=dict)
    comms: dict[SequenceKey, Comm] = field(default_factory=dict)
    sequences: dict[SequenceKey, Sequence] = field(default_factory=dict)
    transports: dict[tuple[str, str], int] = field(default_factory=dict)
    """Channel lines by host and by what follows `via`."""
    warnings: dict[str, Warn] = field(default_factory=dict)
    warnings_dropped: int = 0
    torn: dict[ProcessKey, int] = field(default_factory=dict)
    """Calls whose fields were cut off: counted by kind, but of no known communicator."""
    engine: str = "stdlib"
    numbered: bool = True

    def label_of(self, column: int) -> str:
        """What the launcher wrote before the lines of a column's process."""
        of = self.columns[column]
        process = self.processes.get((of.host, of.pid))
        return process.label if process else ""
