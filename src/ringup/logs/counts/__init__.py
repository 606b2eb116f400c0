"""
Counting collective calls: per kind, rank, communicator and iteration, and who is behind.

Pure: bytes in, a small `Part` out, at any size of the file.  `scan` counts one file or one slice, `merge`
puts slices together, `join` lines up the files of a run, `locate` finds the place of a difference that lies
far back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ringup.logs.counts.find import explain, locate
from ringup.logs.counts.grammar import ITERATION, STAGES
from ringup.logs.counts.join import join
from ringup.logs.counts.ledger import Batch, Ledger
from ringup.logs.counts.merge import Merger, merge
from ringup.logs.counts.model import Line, Part, Warn
from ringup.logs.counts.plain import PlainEngine
from ringup.logs.counts.run import (
    Behind,
    Communicator,
    Iteration,
    Member,
    Mismatch,
    Party,
    Run,
    Unlocated,
)

if TYPE_CHECKING:
    from ringup.logs.counts.vector import VectorEngine

__all__ = [
    "BLOCK_BYTES",
    "ITERATION",
    "STAGES",
    "Batch",
    "Behind",
    "Communicator",
    "Iteration",
    "Line",
    "Member",
    "Merger",
    "Mismatch",
    "Part",
    "Party",
    "Run",
    "Unlocated",
    "Warn",
    "cut",
    "explain",
    "join",
    "locate",
    "merge",
    "scan",
]

BLOCK_BYTES = 256 << 10
"""Best read at once: what is cut out of a block then stays in the processor's cache."""


def scan(
    blocks: Iterable[bytes],
    other: Callable[[Batch], None] | None = None,
    *,
    iteration: re.Pattern[bytes] | bool | None = None,
    sequences: bool = True,
    engine: str = "auto",
    known: Iterable[tuple[str, str, str]] = (),
) -> Part:
    """
    Count one file, or one slice of a file that begins and ends at line borders.

    `blocks` are its bytes in order, cut anywhere.  `other` gets every line that is not one plain collective
    call, in order.  `iteration` finds the lines that begin an iteration (None: the common trainers', False:
    none).  Without `sequences` calls are counted but not numbered, which costs a sixth with the standard
    library.  `engine` is "numpy", "stdlib", or "auto": numpy where it can be imported; the answers are equal.
    `known` names processes of the file (host, process id, label): a torn line may be the first of one in a
    slice.
    """
    pattern = ITERATION if iteration is None or iteration is True else iteration or None
    part = Part(numbered=sequences)
    worker = _engine(engine, Ledger(part, pattern, other, known))
    for block in blocks:
        worker.feed(block)
    worker.finish()
    return part


def _engine(name: str, ledger: Ledger) -> PlainEngine | VectorEngine:
    if name not in ("auto", "numpy", "stdlib"):
        raise ValueError(f"no such engine: {name}")
    if name != "stdlib":
        try:
            from ringup.logs.counts.vector import VectorEngine

            ledger.part.engine = "numpy"
            return VectorEngine(ledger)
        except ImportError:
            if name == "numpy":
                raise
            ledger.part.engine = "stdlib"
    return PlainEngine(ledger)


def cut(
    size_bytes: int, shares: Sequence[int], read_at: Callable[[int, int], bytes]
) -> list[tuple[int, int]]:
    """
    Borders of slices of a file, each at the beginning of a line; fewer than asked where lines are long.

    `shares` are the slices' sizes beside each other: `[1, 1]` cuts in the middle.
    """
    borders = [0]
    for i in range(1, len(shares)):
        at = size_bytes * sum(shares[:i]) // sum(shares)
        while at < size_bytes:
            piece = read_at(at, 64 << 10)
            newline = piece.find(b"\n")
            if newline >= 0 or not piece:
                at += newline + 1
                break
            at += len(piece)
        if borders[-1] < at < size_bytes:
            borders.append(at)
    return list(zip(borders, [*borders[1:], size_bytes], strict=True))
