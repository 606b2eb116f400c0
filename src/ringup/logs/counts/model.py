"""
The result of counting a file: small and picklable.

Offsets are bytes, line numbers begin at 1.  Names are text as found: callers that show them use
`units.printable`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

MASK = (1 << 64) - 1
RADIX = 0x9E3779B97F4A7C15
"""Odd, so that no call of a block falls out of its digest modulo 2**64."""

HASH_MODULUS = (1 << 61) - 1

BLOCK_CALLS = 64
"""Calls of a block: one digest, and the place of the first."""

TAIL_CALLS = 2 * BLOCK_CALLS
"""Last calls that are stored of every sequence; earlier ones are compared by the blocks' digests."""

MAX_TRANSPORTS = 10_000
MAX_CELLS = 3_000_000
"""Cells of the rows of iterations, 4 bytes each; the iterations after that share one row."""

MAX_PROCESSES = 10_000
MAX_KINDS = 64
MAX_COLUMNS = 100_000
MAX_SEQUENCES = 30_000

ProcessKey = tuple[str, str]
"""Host and process id; for several threads, whichever writes."""

SequenceKey = tuple[str, str, str, int]
"""Host, process id, communicator pointer, and number of earlier uses of the pointer in this process."""

Place = tuple[int, int, bytes]
"""Offset, line number and line."""

Call = tuple[int, int, int, int]
"""The parameters of a collective as a number, its offset, line number and column."""

NamedCall = tuple[int, int, int, str]
"""The same with the kind in place of the column."""

Blocks: TypeAlias = "array[int]"
"""Of each block: its digest, and offset and line number of its first collective; unsigned 64-bit integers."""

Calls = tuple[list[tuple[int, int]], int, bytes, list[Call], "Place | None"]
"""Of a sequence: calls by column, collectives, blocks, last collectives, last call of any kind."""


@dataclass(frozen=True)
class Column:
    """One cell of a row of counts: a kind of call, on one device of one process."""

    host: str
    pid: str
    device: str
    kind: str


class Row:
    """Calls between two iteration marks, by column number; finished rows are packed: 4 bytes a cell."""

    __slots__ = ("_cells", "_counts", "_keys", "name")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._cells: dict[int, int] | None = {}
        self._keys: tuple[int, ...] = ()
        self._counts = array("I")

    @property
    def cells(self) -> dict[int, int]:
        """Count by column, writable."""
        if self._cells is None:
            self._cells = dict(self.items())
        return self._cells

    def pack(self, known: dict[tuple[int, ...], tuple[int, ...]]) -> int:
        """Pack a finished row; returns the number of its cells.  Rows of equal columns share their keys."""
        if self._cells is not None:
            keys = tuple(self._cells)
            self._keys = known.setdefault(keys, keys)
            small = max(self._cells.values(), default=0) < 1 << 32
            self._counts = array("I" if small else "Q", self._cells.values())
            self._cells = None
        return len(self._keys)

    def items(self) -> Iterable[tuple[int, int]]:
        return zip(self._keys, self._counts, strict=True) if self._cells is None else self._cells.items()


@dataclass
class Comm:
    """One rank's side of a communicator, from its Init lines."""

    host: str
    pid: str
    pointer: str
    rank: int
    nranks: int
    device: str
    comm_id: str | None
    parent: tuple[str, int, str | None, str] | None = None
    """Pointer and generation of the parent, split count if printed, color."""
    started: bool = False
    complete: bool = False
    order: int = 0
    """Position among the communicators of this process."""


@dataclass
class Sequence:
    """The calls of one process on one communicator; `count` is of collectives, which every rank calls."""

    kinds: dict[str, int] = field(default_factory=dict)
    count: int = 0
    blocks: Blocks = field(default_factory=lambda: array("Q"))
    tail: list[NamedCall] = field(default_factory=list)
    last: Place | None = None
    nranks: int = 0


@dataclass
class Part:
    """One file, counted."""

    bytes: int = 0
    lines: int = 0
    last: Place | None = None
    """The last line that is not empty."""
    columns: list[Column] = field(default_factory=list)
    rows: list[Row] = field(default_factory=lambda: [Row(None)])
    label_rows: dict[str, int] = field(default_factory=dict)
    """Row that each label's own last mark opened."""
    processes: dict[ProcessKey, str] = field(default_factory=dict)
    """The launcher's prefix on the lines of each, "" for none."""
    comms: dict[SequenceKey, Comm] = field(default_factory=dict)
    sequences: dict[SequenceKey, Sequence] = field(default_factory=dict)
    transports: dict[tuple[str, str], int] = field(default_factory=dict)
    """Channel lines by host and by what follows `via`."""
    torn: dict[ProcessKey, int] = field(default_factory=dict)
    """Calls whose fields were cut off: counted by kind, but of no known communicator."""

    def label_of(self, column: int) -> str:
        """The launcher's prefix on the lines of a column's process."""
        of = self.columns[column]
        return self.processes.get((of.host, of.pid), "")
