"""
Counting collective calls: per kind, rank, communicator and iteration, and who is behind.

Pure: bytes in, a small `Part` out, at any size of the file.  `scan` counts one file, `join` lines up the
files of a run, `locate` finds the place of a difference that lies far back.
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
    Count one file; `blocks` are its bytes in order, cut anywhere.

    `other` gets every line that is not one plain collective call, in order; of lines without any of the
    `words` (where some are given, in any case) an engine may leave out those that were not asked for.
    `iteration` finds the lines that begin an iteration (None: the common trainers').  `engine` is "native" or
    "python", by default the native one where it was compiled; the answers are equal.  Raises ImportError for
    an engine that is not there.
    """
    ledger = Ledger(iteration, other, engine, words)
    for block in blocks:
        ledger.feed(block)
    return ledger.finish()
