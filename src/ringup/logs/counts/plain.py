"""
The counting engine in plain Python: the reference for `core.c`, and the fallback if nothing is compiled.

Of every 200 lines of a big log 199 are whole calls of one form.  Those are counted here by two lookups: the
text before `: opCount ` and the text after the pointers; every other line goes to the ledger.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from typing import Any

from ringup.logs.counts.model import (
    BLOCK_CALLS,
    HASH_MODULUS,
    MASK,
    RADIX,
    TAIL_CALLS,
    Blocks,
    Call,
    Calls,
    Place,
)
from ringup.logs.grammar import CALL_MARK, FIELDS, HEAD

MAX_LINE_BYTES = 1 << 20
"""A longer line is read in pieces: text without newlines must not fill the memory."""

MAX_PLAIN_BYTES = 1000
"""A longer line is not a plain call."""

LEAST_PLAIN_BYTES = 64
"""Nor is a shorter one."""

MAX_KNOWN = 1 << 16
"""Entries of each table of lookups; a full one is emptied."""

WHOLE_PREFIX = re.compile(rb"(?!.*NCCL )(?:|.*[ \t]|.*[\]>]:)", re.DOTALL)
"""Possible text before a process's name: nothing, a stamp, a label; not the rest of a torn line."""

POINTERS = re.compile(rb"[0-9a-fA-F]+ sendbuff \S+ recvbuff \S+(?: acc \S+)?")
"""From the mark to the count."""


def arguments_number(kind: bytes, asked: bytes) -> int:
    """
    A number below 2**61 for the parameters of a call; the same in every process and engine.

    `asked` is the text from the count to the root; a user-defined operation (5 and above) has another number
    in every process.
    """
    count, operation, root = re.split(rb" op (\d+)", asked, maxsplit=1)
    own = operation if len(operation) == 1 and operation < b"5" else b"own"
    return int.from_bytes(kind + b" " + count + b" op " + own + root, "big") % HASH_MODULUS


class PlainSequence:
    """The calls of one process on one communicator so far."""

    def __init__(self) -> None:
        self.kinds: dict[int, int] = {}
        self.count = 0
        self.digest = 0
        self.blocks: Blocks = array("Q")
        self.tail: deque[Call] = deque(maxlen=TAIL_CALLS)
        self.last: Place | None = None

    def add(self, code: int, asked: int, line: int, offset: int, raw: bytes) -> None:
        """One more call; `code` as `Ledger.column` gives it."""
        self.kinds[code >> 1] = self.kinds.get(code >> 1, 0) + 1
        self.last = (offset, line, raw)
        if code & 1:
            return
        if self.count % BLOCK_CALLS == 0:
            self.blocks.extend((0, offset, line))
            self.digest = 0
        self.count += 1
        self.digest = (self.digest * RADIX + asked) & MASK
        self.blocks[-3] = self.digest
        self.tail.append((asked, offset, line, code >> 1))


class PlainEngine:
    """
    Counts lines as they come; `line` and `offset` are those of the current line, or of the next one.

    For unknown text it calls the ledger: `column`, `sequence`, `odd`.
    """

    def __init__(self, handler: Any) -> None:
        self._handler = handler
        self.line = 1
        self.offset = 0
        self.until = 0
        """Every line up to this one is wanted."""
        self.last: Place | None = None
        """The last line that is not empty."""
        self._carry = b""
        self._counts: dict[int, int] = {}
        self._codes: dict[bytes, int] = {}
        self._heads: dict[bytes, int] = {}
        self._rests: dict[tuple[int, bytes], tuple[int, int]] = {}
        self._sequences: list[PlainSequence] = []

    def feed(self, block: bytes) -> None:
        """The next bytes of the file.  Raises what the handler raises."""
        *lines, self._carry = (self._carry + block).split(b"\n")
        for raw in lines:
            self._take(raw)
            self.offset += len(raw) + 1
            self.line += 1
        if len(self._carry) > MAX_LINE_BYTES:
            raw, self._carry = self._carry, b""
            self._take(raw)
            self.offset += len(raw)

    def finish(self) -> None:
        """The end of the file: a last line without a newline counts, too."""
        if self._carry:
            raw, self._carry = self._carry, b""
            self._take(raw)
            self.offset += len(raw)
            self.line += 1

    def take_counts(self) -> dict[int, int]:
        """Plain calls by column since the last time."""
        counts, self._counts = self._counts, {}
        return counts

    def look_for(self, words: list[bytes]) -> None:
        """Lines without any of these need not be passed on; finding them takes as long as passing them on."""

    def forget(self) -> None:
        """From here on a pointer may mean another communicator."""
        self._rests.clear()

    def append(self, sequence: int, code: int, asked: int, raw: bytes) -> None:
        while sequence >= len(self._sequences):
            self._sequences.append(PlainSequence())
        self._sequences[sequence].add(code, asked, self.line, self.offset, raw)

    def calls(self) -> list[Calls]:
        """Of each sequence: calls by column, collectives, blocks, tail, last."""
        return [
            (list(s.kinds.items()), s.count, s.blocks.tobytes(), list(s.tail), s.last)
            for s in self._sequences
        ]

    def _take(self, raw: bytes) -> None:
        if not raw:
            return
        if not raw.isspace():
            self.last = (self.offset, self.line, raw[:MAX_PLAIN_BYTES])
        code, known = self._call(raw) if len(raw) <= MAX_PLAIN_BYTES else (-1, None)
        if known is None:
            self._handler.odd(self.line, raw, None)
            return
        self._counts[code >> 1] = self._counts.get(code >> 1, 0) + 1
        self.append(known[0], code, known[1], raw)

    def _call(self, raw: bytes) -> tuple[int, tuple[int, int] | None]:
        """The column of a plain call, its sequence and its parameters."""
        mark = raw.find(CALL_MARK)
        if mark < 0 or len(raw) < LEAST_PLAIN_BYTES:
            return -1, None
        code = self._codes.get(raw[:mark], -1)
        if code < 0 and (code := self._head(raw, mark)) < 0:
            return -1, None
        count = raw.find(b" count ", mark)
        if count < 0 or not POINTERS.fullmatch(raw, mark + len(CALL_MARK), count):
            return -1, None
        key = (code, raw[count:])
        known = self._rests.get(key)
        if known is None:
            fields = FIELDS.match(raw, mark + len(CALL_MARK))
            if not fields:
                return -1, None
            kind = raw[raw.rindex(b" ", 0, mark) + 1 : mark]
            sequence = self._handler.sequence(code >> 1, fields[8], int(fields[9][:9]))
            known = (sequence, arguments_number(kind, raw[fields.start(4) : fields.end(7)]))
            if len(self._rests) >= MAX_KNOWN:
                self._rests.clear()
            self._rests[key] = known
        return code, known

    def _head(self, raw: bytes, mark: int) -> int:
        match = HEAD.search(raw, 0, mark + len(CALL_MARK))
        if not match or match.end() != mark + 1 or not WHOLE_PREFIX.fullmatch(raw, 0, match.start()):
            return -1
        head = raw[match.start() : mark]
        code = self._heads.get(head)
        if code is None:
            if len(self._heads) >= MAX_KNOWN:
                self._heads.clear()
            code = self._heads[head] = self._handler.column(raw[: match.start()], head)
        if len(self._codes) >= MAX_KNOWN:
            self._codes.clear()
        self._codes[raw[:mark]] = code
        return code
