"""
Counting collective calls: per kind, rank, communicator and iteration, and who is behind.

Pure: bytes in, a small `Part` out, at any size of the file.  `scan` counts one file, `join` lines up the
files of a run, `locate` finds the place of a difference that lies far back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ringup.logs.counts.compare import explain, locate
from ringup.logs.counts.join import join
from ringup.logs.counts.ledger import Batch, Ledger
from ringup.logs.counts.model import Part
from ringup.logs.counts.run import Mismatch, Run

__all__ = ["Ledger", "Mismatch", "Part", "Run", "explain", "join", "locate", "scan"]


def scan(
    blocks: Iterable[bytes],
    other: Callable[[Batch], None] | None = None,
    *,
    iteration: re.Pattern[bytes] | None = None,
    engine: str = "",
) -> Part:
    """
    Count one file; `blocks` are its bytes in order, cut anywhere.

    `other` gets every line that is not one plain collective call, in order.  `iteration` finds the lines that
    begin an iteration (None: the common trainers').  `engine` is "native" or "python", by default the native
    one where it was compiled; the answers are equal.  Raises ImportError for an engine that is not there.
    """
    ledger = Ledger(iteration, other, engine)
    for block in blocks:
        ledger.feed(block)
    return ledger.finish()
