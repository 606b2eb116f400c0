"""Bytes to be looked at as eight-byte words, a block at a time, with the block before still at hand."""

from __future__ import annotations

import numpy as np

from ringup.logs.counts.lookup import Array
from ringup.logs.counts.model import Sequence

_LANE = np.uint64(0x0001020304050607)
"""Times a word with one byte of 1, gives that byte's place in the highest byte."""


class Buffers:
    """Two buffers in turn: what is behind the last newline goes on in the other one."""

    def __init__(self, size_bytes: int, slack_bytes: int) -> None:
        self.size = size_bytes
        self.filled = 0
        self._length = size_bytes + slack_bytes
        self.now, self.before = bytearray(self._length), bytearray(self._length)
        self.words, self._words_before = _words_of(self.now), _words_of(self.before)
        self._newlines: Array = np.empty(self._length, bool)

    def append(self, view: memoryview) -> None:
        """More bytes; the caller sees to it that there is room."""
        self.now[self.filled : self.filled + len(view)] = view
        self.filled += len(view)

    def whole_lines(self) -> int:
        """How many bytes end with a newline."""
        return self.now.rfind(b"\n", 0, self.filled) + 1

    def swap(self, end: int) -> None:
        """Go on in the other buffer with what is behind `end`."""
        rest = self.filled - end
        self.before[:rest] = memoryview(self.now)[end : self.filled]
        self.now, self.before = self.before, self.now
        self.words, self._words_before = self._words_before, self.words
        self.filled = rest

    def line(self, start: int, end: int) -> bytes:
        """Bytes of this block."""
        return bytes(self.now[start:end])

    def gather(self, at: Array, count: int) -> Array:
        """`count` eight-byte words from each place on, a row a place."""
        shape = (self._length - count * 8 + 1,)
        rows = np.ndarray(shape, f"V{count * 8}", self.now, strides=(1,))[at]
        return rows.view(np.uint64).reshape(-1, count)

    def line_ends(self, size: int) -> Array:
        """Offsets of the newlines; eight bytes are looked at together, since few words hold one."""
        length = (size + 7) & ~7
        flags = self._newlines[:length]
        np.equal(np.frombuffer(self.now, np.uint8, length), 10, out=flags)
        flags[size:] = False
        packed: Array = flags.view(np.uint64)
        at = (packed != 0).nonzero()[0]
        lanes = packed[at]
        if np.any(lanes & (lanes - np.uint64(1))):
            return np.flatnonzero(flags)
        return (at << 3) + ((lanes * _LANE) >> np.uint64(56)).astype(np.int64)


class LastLines:
    """
    The line of each sequence's last call.

    It is read one block late, and only where the sequence does not go on: most do, in every block.
    """

    def __init__(self, held: Buffers, sequences: list[Sequence]) -> None:
        self._bytes = held
        self._sequences = sequences
        self._before: Array = np.zeros((4, 0), np.int64)
        """In the block before: start and end of the line, its offset and number; -1 for none."""
        self._new = False

    def remember(self, groups: Array, rows: Array, starts: Array, ends: Array, at: tuple[int, int]) -> None:
        """The calls of a block by sequence and line; `at` are the block's offset and line number."""
        last: Array = np.full(len(self._sequences), -1, np.int64)
        last[groups] = np.arange(len(groups))
        self._take((last[: self._before.shape[1]] < 0).nonzero()[0])
        here = rows[last]
        places = np.array([starts[here], ends[here], starts[here] + at[0], here + at[1]])
        self._before = np.where(last < 0, -1, places)
        self._new = True

    def before_swap(self) -> None:
        """The block is done: what is known of the one before it goes with that one's bytes."""
        if not self._new:
            self.take_all()
        self._new = False

    def take_all(self) -> None:
        """Read all that is known."""
        self._take(np.arange(self._before.shape[1]))
        self._before = np.zeros((4, 0), np.int64)

    def _take(self, groups: Array) -> None:
        places = self._before[:, groups].T.tolist()
        for group, (start, end, offset, number) in zip(groups.tolist(), places, strict=True):
            if start >= 0:
                self._sequences[group].last = (offset, number, bytes(self._bytes.before[start:end]))


def _words_of(buffer: bytearray) -> Array:
    """The eight bytes from each byte on."""
    return np.ndarray((len(buffer) - 7,), "<u8", buffer, strides=(1,))
