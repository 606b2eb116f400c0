"""
Counting collective calls: per kind, rank, communicator and iteration, and who is behind.

Pure: bytes in, a small `Part` out, at any size of the file.  `scan` counts one file or one slice, `merge`
puts slices together, `join` lines up the files of a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ringup.logs.counts.grammar import ITERATION, STAGES
from ringup.logs.counts.ledger import Batch, Ledger
from ringup.logs.counts.model import Part
from ringup.logs.counts.plain import PlainEngine

__all__ = ["BLOCK_BYTES", "ITERATION", "STAGES", "Batch", "Part", "scan"]

BLOCK_BYTES = 256 << 10
"""Best read at once: what is cut out of a block then stays in the processor's cache."""


def scan(
    blocks: Iterable[bytes],
    other: Callable[[Batch], None] | None = None,
    *,
    iteration: re.Pattern[bytes] | bool | None = None,
    sequences: bool = True,
    engine: str = "auto",
) -> Part:
    """
    Count one file, or one slice of a file that begins and ends at line borders.

    `blocks` are its bytes in order, cut anywhere.  `other` gets every line that is not one plain collective
    call, in order.  `iteration` finds the lines that begin an iteration (None: the common trainers', False:
    none).  Without `sequences` calls are counted but not numbered, at half the price.  `engine` is "numpy",
    "stdlib", or "auto": numpy where it can be imported; the answers are the same.
    """
    pattern = ITERATION if iteration is None or iteration is True else iteration or None
    part = Part(engine="stdlib", numbered=sequences)
    ledger = Ledger(part, pattern, other)
    worker = PlainEngine(ledger)
    for block in blocks:
        worker.feed(block)
    worker.finish()
    return part
