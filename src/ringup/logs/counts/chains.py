"""
The sequences of calls as arrays: thousands of calls appended to hundreds of sequences at a time.

A digest is a sum of hash times RADIX to the distance from the end, so a block's share is one weighted sum.
"""

from __future__ import annotations

import numpy as np

from ringup.logs.counts.lookup import Array
from ringup.logs.counts.model import MASK, RADIX, TAIL, Sequence

MAX_RECENT = 48
"""Blocks whose calls are remembered as arrays; of older ones only a rank's last calls become objects."""


class Chains:
    """The sequences being written, as arrays over all of them."""

    def __init__(self, kinds: list[str]) -> None:
        self._names = kinds
        self._powers: Array = np.ones(1, np.uint64)
        self._recent: list[tuple[Array, ...]] = []
        self.sequences: list[Sequence] = []
        self._of: dict[int, int] = {}
        self.count: Array = np.zeros(64, np.int64)
        self.digest: Array = np.zeros(64, np.uint64)
        self.step: Array = np.zeros(64, np.int64)
        self.kinds: Array = np.zeros((64, 16), np.int64)

    def number(self, sequence: Sequence) -> int:
        """The number of a sequence, its state taken over."""
        known = self._of.get(id(sequence))
        if known is not None:
            return known
        number = self._of[id(sequence)] = len(self.sequences)
        self.sequences.append(sequence)
        if number >= len(self.count):
            self.count, self.digest, self.step = (
                np.concatenate([a, np.zeros_like(a)]) for a in (self.count, self.digest, self.step)
            )
            self.kinds = np.concatenate([self.kinds, np.zeros_like(self.kinds)])
        self.load(number)
        return number

    def load(self, number: int) -> None:
        """Take over what the object says."""
        sequence = self.sequences[number]
        self.count[number] = sequence.count
        self.digest[number] = sequence.digest
        self.step[number] = sequence.step

    def load_all(self) -> None:
        """Take over what all objects say."""
        for number in range(len(self.sequences)):
            self.load(number)

    def write(self) -> None:
        """Write everything that was counted back to the objects."""
        while self._recent:
            self._keep_ends(self._recent.pop(0))
        for number, sequence in enumerate(self.sequences):
            sequence.count = int(self.count[number])
            sequence.digest = int(self.digest[number])
            for kind in self.kinds[number].nonzero()[0].tolist():
                name = self._names[kind]
                sequence.kinds[name] = sequence.kinds.get(name, 0) + int(self.kinds[number, kind])
        self.kinds[:] = 0

    def add_kinds(self, groups: Array, kinds: Array) -> None:
        """Count calls by sequence and kind."""
        if len(self._names) > self.kinds.shape[1]:
            self.kinds = np.pad(self.kinds, ((0, 0), (0, len(self._names))))
        both = np.bincount(groups * self.kinds.shape[1] + kinds, minlength=self.kinds.size)
        self.kinds += both.reshape(self.kinds.shape)

    def extend(self, groups: Array, hashes: Array, offsets: Array, lines: Array, kinds: Array) -> None:
        """Digests, counts and the remembered ends of the sequences, by group in order of the file."""
        narrow = groups.astype(np.uint16) if len(self.sequences) < 1 << 16 else groups
        order = np.argsort(narrow, kind="stable")
        per = np.bincount(groups, minlength=len(self.sequences))
        present = per.nonzero()[0]
        sizes = per[present]
        stops = np.cumsum(sizes)
        firsts = stops - sizes
        hashes = hashes[order]
        self._have_powers(int(sizes.max()) + 1)
        weights = self._powers[np.repeat(stops, sizes) - np.arange(1, len(order) + 1)]
        sums = np.add.reduceat(hashes * weights, firsts)
        before = self.count[present]
        offsets, lines = offsets[order], lines[order]
        crossing = (before + sizes) // self.step[present] != before // self.step[present]
        for i in (crossing | (before == 0)).nonzero()[0].tolist():
            a, b = int(firsts[i]), int(stops[i])
            self._milestones(int(present[i]), hashes[a:b], offsets[a:b], lines[a:b])
        self.digest[present] = self.digest[present] * self._powers[sizes] + sums
        self.count[present] = before + sizes
        self._recent.append(
            (present, firsts, stops, self.count[present], hashes, offsets, lines, kinds[order])
        )
        if len(self._recent) > MAX_RECENT:
            self._keep_ends(self._recent.pop(0))

    def _milestones(self, group: int, hashes: Array, offsets: Array, lines: Array) -> None:
        sequence = self.sequences[group]
        sequence.count, sequence.digest = int(self.count[group]), int(self.digest[group])
        if sequence.first is None:
            sequence.first = (int(offsets[0]), int(lines[0]))
        done = 0
        while True:
            more = sequence.step - sequence.count % sequence.step
            if done + more > len(hashes):
                break
            span = hashes[done : done + more]
            added = int((span * self._powers_to(more)[::-1]).sum())
            sequence.digest = (sequence.digest * pow(RADIX, more, 1 << 64) + added) & MASK
            sequence.count += more
            done += more
            sequence.reached(int(offsets[done - 1]), int(lines[done - 1]))
        self.step[group] = sequence.step

    def _have_powers(self, count: int) -> None:
        if len(self._powers) <= count:
            self._powers = np.cumprod(
                np.concatenate([np.ones(1, np.uint64), np.full(count * 2, RADIX, np.uint64)]), dtype=np.uint64
            )

    def _powers_to(self, count: int) -> Array:
        self._have_powers(count)
        return self._powers[:count]

    def _keep_ends(self, record: tuple[Array, ...]) -> None:
        """Calls of an old block that are still among the last of their rank become objects."""
        present, firsts, stops, after, hashes, offsets, lines, kinds = record
        room = TAIL - (self.count[present] - after)
        for i in (room > 0).nonzero()[0].tolist():
            a, b = int(firsts[i]), int(stops[i])
            a = max(a, b - int(room[i]))
            sequence = self.sequences[int(present[i])]
            names = [self._names[k] for k in kinds[a:b].tolist()]
            columns = (hashes[a:b].tolist(), offsets[a:b].tolist(), lines[a:b].tolist(), names)
            sequence.tail = (sequence.tail + list(zip(*columns, strict=True)))[-TAIL:]
