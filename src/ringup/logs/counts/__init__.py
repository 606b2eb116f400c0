"""
Counting collective calls: per kind, rank, communicator and iteration, and the ranks that are behind.

Pure: bytes in, a small `Part` out, for any file size.  `scan` counts one file, `join` aligns the files of a
run, `locate` finds the place of a difference far back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ringup.logs.counts.compare import explain, locate
from ringup.logs.counts.join import join
from ringup.logs.counts.ledger import Ledger, Other
from ringup.logs.counts.model import Part
from ringup.logs.counts.run import Mismatch, Run

__all__ = ["Ledger", "Mismatch", "Other", "Part", "Run", "explain", "join", "locate", "scan"]


def scan(
    blocks: Iterable[bytes],
    other: Other | None = None,
    *,
    iteration: re.Pattern[bytes] | None = None,
    engine: str = "",
    words: Collection[bytes] = (),
) -> Part:
    """
    Count one file; `blocks` are its bytes in order, split anywhere.

    `other` gets every line that is not one plain collective call, in order; an engine may leave out lines
    without any of the `words` (if given, in any case) that were not requested.  `iteration` finds the lines
    that begin an iteration (None: the common trainers').  `engine` is "native" or "python", by default the
    native one if it was compiled; the answers are equal.  Raises ImportError for a missing engine.
    """
    ledger = Ledger(iteration, other, engine, words)
    for block in blocks:
        ledger.feed(block)
    return ledger.finish()
