"""
Bulk lookups for numpy: keys to numbers, and where a word stands on thousands of lines.

Both learn as they go: what is not known is asked for one by one, which the regularity of logs makes rare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ringup.logs.counts.grammar import POINT_TO_POINT
from ringup.logs.counts.model import Part
from ringup.logs.counts.plain import ODD

Array = Any
"""A numpy array."""

KEYS: Array = np.random.default_rng().integers(1, 1 << 63, 64, dtype=np.uint64) * 2 + 1
"""Odd factors, other ones in every process: nobody can write lines whose keys fall together."""

MAX_TRIED = 48
"""Distances remembered at a time."""

MAX_ROUNDS = 8
"""Times a block's lines are asked for distances that were not known."""

MAX_KNOWN = 1 << 18


class Table:
    """64-bit keys to small numbers, in bulk; a key it does not know is asked for one by one."""

    def __init__(self, bits: int = 14) -> None:
        self.clear(bits)

    def clear(self, bits: int = 14) -> None:
        """Forget everything."""
        self._bits = bits
        self._shift = np.uint64(64 - bits)
        self._keys: Array = np.zeros(1 << bits, np.uint64)
        self._numbers: Array = np.full(1 << bits, -2, np.int64)
        self.known: dict[int, int] = {}

    def __call__(self, keys: Array, ask: Callable[[int], int]) -> Array:
        """Numbers of keys; `ask` is called with the position of the first line of each new key."""
        slots = keys >> self._shift
        numbers = self._numbers[slots]
        lost = ((self._keys[slots] != keys) | (numbers == -2)).nonzero()[0]
        if len(lost):
            distinct, first, inverse = np.unique(keys[lost], return_index=True, return_inverse=True)
            answers: Array = np.empty(len(distinct), np.int64)
            for i in np.argsort(first).tolist():
                answers[i] = self._answer(int(distinct[i]), int(lost[first[i]]), ask)
            numbers[lost] = answers[inverse]
        return numbers

    def _answer(self, key: int, position: int, ask: Callable[[int], int]) -> int:
        known = self.known.get(key)
        if known is not None:
            return known
        number = ask(position)
        if number == ODD:
            return number
        if len(self.known) > MAX_KNOWN:
            self.clear()
        self.known[key] = number
        if len(self.known) * 16 > 1 << self._bits and self._bits < 20:
            self._grow()
        self._place(key, number)
        return number

    def _place(self, key: int, number: int) -> None:
        slot = key >> (64 - self._bits)
        if self._numbers[slot] == -2:
            self._keys[slot] = key
            self._numbers[slot] = number

    def _grow(self) -> None:
        known, bits = self.known, self._bits + 2
        self.clear(bits)
        self.known = known
        for key, number in known.items():
            self._place(key, number)


class Distances:
    """Where a word stood, counted from a known place, on the lines before: tried in order of success."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._tried: dict[int, int] = {}

    def __call__(
        self, words: Array, base: Array, sign: int, word: np.uint64, mask: np.uint64 | None, ask: Any
    ) -> Array:
        """Distances of all lines, -1 where the word is not found; `ask(i)` looks for it the slow way."""
        found: Array = np.full(len(base), -1, np.int64)
        left, begins = None, base
        asked = 0
        while True:
            for distance in sorted(self._tried, key=self._tried.__getitem__, reverse=True):
                here = words[begins + sign * distance]
                good = (here if mask is None else here & mask) == word
                hits = int(np.count_nonzero(good))
                if not hits:
                    continue
                self._tried[distance] += hits
                if hits == len(good) and left is None:
                    found.fill(distance)
                    return found
                found[good if left is None else left[good]] = distance
                left = (~good).nonzero()[0] if left is None else left[~good]
                if not len(left):
                    return found
                begins = base[left]
            rest = np.arange(len(base)) if left is None else left
            if asked == MAX_ROUNDS or not self._learn(rest, ask):
                return found
            asked += 1

    def _learn(self, left: Array, ask: Any) -> bool:
        """Take up new distances from a few of the lines left over; False when there are none."""
        if len(self._tried) > MAX_TRIED:
            self._tried.clear()
        before = len(self._tried)
        for i in left[:: max(1, len(left) // 16)].tolist():
            distance = ask(i)
            if 0 <= distance <= self._longest:
                self._tried.setdefault(distance, 0)
        return len(self._tried) > before


class Columns:
    """A part's columns as arrays, and the heads of lines that lead to them."""

    def __init__(self, part: Part) -> None:
        self._part = part
        # Never empty, so that ODD too is an index.
        self._heads: list[tuple[int, int]] = [(0, 0)]
        self._processes: dict[tuple[str, str], int] = {}
        self.column: Array = np.zeros(1, np.int64)
        """Column of each head."""
        self.colon: Array = np.zeros(1, np.int64)
        """Where the colon behind the kind stands in each head."""
        self.kinds: list[str] = []
        self.numbered: Array = np.zeros(0, bool)
        """Whether calls of a kind are numbered."""
        self.kind: Array = np.zeros(0, np.int64)
        self.process: Array = np.zeros(0, np.int64)

    def add(self, column: int, colon: int) -> int:
        """The number of a new head; in the arrays after the next `update`."""
        self._heads.append((column, colon))
        return len(self._heads) - 1

    def update(self) -> None:
        """Bring the arrays up to date."""
        if len(self.column) != len(self._heads):
            heads = np.array(self._heads, np.int64)
            self.column, self.colon = heads[:, 0].copy(), heads[:, 1].copy()
        new = self._part.columns[len(self.kind) :]
        if not new:
            return
        for column in new:
            self._processes.setdefault((column.host, column.pid), len(self._processes))
            if column.kind not in self.kinds:
                self.kinds.append(column.kind)
        kinds = [self.kinds.index(c.kind) for c in new]
        processes = [self._processes[c.host, c.pid] for c in new]
        self.kind = np.concatenate([self.kind, np.array(kinds, np.int64)])
        self.process = np.concatenate([self.process, np.array(processes, np.int64)])
        self.numbered = np.array([k not in POINT_TO_POINT for k in self.kinds])
