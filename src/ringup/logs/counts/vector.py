"""
Counting with numpy: newlines, heads and fields of thousands of lines at a time.

A line's head is taken as eight-byte words and multiplied to one 64-bit key; keys seen before name the
column.  The fields are found where they were on the lines before, and every place is verified: a block
with a line that is not built so is counted by `PlainEngine` instead.  So both give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ringup.logs.counts.grammar import CALL_MARK, FIELDS, POINT_TO_POINT
from ringup.logs.counts.ledger import Batch, Ledger
from ringup.logs.counts.model import RADIX, TAIL, Sequence
from ringup.logs.counts.plain import MAX_LINE_BYTES, MAX_WIDTH, ODD, PlainEngine, is_fragment, shortened

Array = Any
"""A numpy array."""

FILL_BYTES = 512 << 10
"""A block: small enough for the second-level cache with all that is made of it."""

MAX_RECENT = 96
"""Blocks whose calls are remembered as arrays; of older ones only a rank's last calls become objects."""

_SLACK = MAX_WIDTH + 16
_KEYS = np.random.default_rng(0x52494E47).integers(1, 1 << 63, 64, dtype=np.uint64) * 2 + 1
_COUNT = np.uint64(int.from_bytes(b" count \0", "little"))
_SEVEN = np.uint64((1 << 56) - 1)
_NRANKS = np.uint64(int.from_bytes(b" [nranks", "little"))
_COMM = np.uint64(int.from_bytes(b" comm 0x", "little"))
_INFO = np.uint64(int.from_bytes(b" NCCL IN", "little"))
_MARK = np.uint64(int.from_bytes(b": opCoun", "little"))
_SIX = np.uint64((1 << 48) - 1)
_LANE = np.uint64(0x0001020304050607)
_MAX_MIDDLE = 56
_REST_BYTES = (25, 40)
"""Shortest and longest ` [nranks=N] stream P` that five overlapping words cover."""
_FIELD_BYTES = (24, 40)
"""Shortest and longest `N datatype D op O root R` that five overlapping words cover."""


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
        if len(self.known) > 1 << 18:
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
        asked = False
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
            rest = np.arange(min(len(base), 8)) if left is None else left
            if asked or not self._learn(rest, ask):
                return found
            asked = True

    def _learn(self, left: Array, ask: Any) -> bool:
        """Take up new distances from a few of the lines left over; False when there are none."""
        if len(self._tried) > 48:
            self._tried.clear()
        before = len(self._tried)
        for i in left[:8].tolist():
            distance = ask(i)
            if 0 <= distance <= self._longest:
                self._tried.setdefault(distance, 0)
        return len(self._tried) > before


class Groups:
    """The sequences being written, as arrays over all of them."""

    def __init__(self) -> None:
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

    def write(self, kinds: list[str]) -> None:
        """Write back what was counted."""
        for number, sequence in enumerate(self.sequences):
            sequence.count = int(self.count[number])
            sequence.digest = int(self.digest[number])
            for kind in self.kinds[number].nonzero()[0].tolist():
                name = kinds[kind]
                sequence.kinds[name] = sequence.kinds.get(name, 0) + int(self.kinds[number, kind])
        self.kinds[:] = 0


def _words_of(buffer: bytearray) -> Array:
    """The eight bytes from each byte on."""
    return np.ndarray((len(buffer) - 7,), "<u8", buffer, strides=(1,))


class VectorEngine:
    """Counts blocks of lines with numpy."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._plain = PlainEngine(ledger)
        self._heads = self._plain.heads
        self._size = MAX_LINE_BYTES + FILL_BYTES
        # Two: the last call of a rank that is silent in this block is read in the one before.
        self._buffer, self._before = bytearray(self._size + _SLACK), bytearray(self._size + _SLACK)
        self._words, self._words_before = _words_of(self._buffer), _words_of(self._before)
        self._ended: Array = np.zeros((4, 0), np.int64)
        """Of each sequence in the block before: start and end of its last line, its offset and number."""
        self._ended_here = False
        self._newlines: Array = np.empty(self._size + 8, bool)
        self._filled = 0
        self._table = Table()
        self._fields = Table()
        self._places = Table()
        self._mark = Distances(MAX_WIDTH)
        # Never empty, so that ODD too is an index.
        self._pairs: list[tuple[int, int]] = [(0, 0)]
        self._colon_of: Array = np.zeros(1, np.int64)
        self._column_of: Array = np.zeros(1, np.int64)
        self._kinds: list[str] = []
        self._counts: Array = np.zeros(0, np.int64)
        self._kind_of: Array = np.zeros(0, np.int64)
        self._process_of: Array = np.zeros(0, np.int64)
        self._numbered_kinds: Array = np.zeros(0, bool)
        self._processes: dict[tuple[str, str], int] = {}
        self._middle = Distances(_MAX_MIDDLE)
        self._right = Distances(_REST_BYTES[1])
        self._pointer = Distances(40)
        self._groups = Groups()
        self._hashes: list[int] = []
        self._hash_of: Array = np.zeros(0, np.uint64)
        self._powers: Array = np.ones(1, np.uint64)
        self._recent: list[tuple[Array, ...]] = []

    # Bytes in

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        view = memoryview(chunk)
        while len(view):
            taken = min(len(view), max(FILL_BYTES - self._filled, 64 << 10), self._size - self._filled)
            self._buffer[self._filled : self._filled + taken] = view[:taken]
            self._filled += taken
            view = view[taken:]
            if self._filled >= FILL_BYTES:
                self._work()

    def _work(self) -> None:
        end = self._buffer.rfind(b"\n", 0, self._filled) + 1
        if end:
            self._block(end)
            self._swap(end)
        elif self._filled > MAX_LINE_BYTES:
            self._slow([bytes(self._buffer[: self._filled])], self._filled, ended=False)
            self._filled = 0

    def _swap(self, end: int) -> None:
        """Go on in the other buffer with what is behind the block."""
        if not self._ended_here:
            self._take_last(np.arange(self._ended.shape[1]))
            self._ended = np.zeros((4, 0), np.int64)
        self._ended_here = False
        rest = self._filled - end
        self._before[:rest] = memoryview(self._buffer)[end : self._filled]
        self._buffer, self._before = self._before, self._buffer
        self._words, self._words_before = self._words_before, self._words
        self._filled = rest

    def finish(self) -> None:
        """The end of the file."""
        end = self._buffer.rfind(b"\n", 0, self._filled) + 1
        if end:
            self._block(end)
            self._swap(end)
        if self._filled:
            self._slow([bytes(self._buffer[: self._filled])], self._filled, ended=False)
            self._plain.line += 1
        self._flush()
        self._write_back()
        self._plain.end()

    def _gather(self, at: Array, count: int) -> Array:
        """`count` eight-byte words from each place on, a row a place."""
        shape = (self._size + _SLACK - count * 8 + 1,)
        rows = np.ndarray(shape, f"V{count * 8}", self._buffer, strides=(1,))[at]
        return rows.view(np.uint64).reshape(-1, count)

    # A block of whole lines

    def _block(self, size: int) -> None:
        ends = self._line_ends(size)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        heads = self._look(starts, ends)
        odd = (heads == ODD).nonzero()[0].tolist()
        lines = [bytes(self._buffer[starts[i] : ends[i]]) for i in odd]
        if self._ledger.part.numbered:
            done = not any(CALL_MARK in raw for raw in lines) and self._number(starts, ends, heads, lines)
        else:
            odd, lines = self._suspects(starts, ends, heads, odd, lines)
            done = True
        if not done:
            self._slow(bytes(self._buffer[: size - 1]).split(b"\n"), size)
            return
        self._in_order(starts, heads, odd, lines)
        self._plain.advance_over(self._last_lines(starts, ends), len(starts), size)

    def _line_ends(self, size: int) -> Array:
        """Offsets of the newlines; eight bytes are looked at together, since few words hold one."""
        self._buffer[size : size + 8] = b"\0" * 8 if size == self._filled else self._buffer[size : size + 8]
        length = (size + 7) & ~7
        flags = self._newlines[:length]
        np.equal(np.frombuffer(self._buffer, np.uint8, length), 10, out=flags)
        flags[size:] = False
        packed: Array = flags.view(np.uint64)
        at = (packed != 0).nonzero()[0]
        lanes = packed[at]
        if np.any(lanes & (lanes - np.uint64(1))):
            return np.flatnonzero(flags)
        return (at << 3) + ((lanes * _LANE) >> np.uint64(56)).astype(np.int64)

    def _look(self, starts: Array, ends: Array) -> Array:
        """Number of the pair of process and kind each line begins with; ODD for what is no plain call."""
        buffer = self._buffer

        def ask_mark(i: int) -> int:
            return buffer.find(b" NCCL INFO ", starts[i], ends[i]) - int(starts[i])

        widths = self._mark(self._words, starts, 1, _INFO, None, ask_mark)
        rows = (widths >= 0).nonzero()[0]
        if len(rows) == len(starts):
            heads = self._pairs_of(starts, ends, widths)
        else:
            heads = np.full(len(starts), ODD, np.int64)
            if len(rows):
                heads[rows] = self._pairs_of(starts[rows], ends[rows], widths[rows])
        return heads

    def _pairs_of(self, starts: Array, ends: Array, widths: Array) -> Array:
        words = self._words
        shortest, longest = int(widths.min()), int(widths.max())
        whole = shortest >> 3
        keys = widths.astype(np.uint64) * _KEYS[60]
        if whole:
            keys += np.einsum("ij,j->i", self._gather(starts, whole), _KEYS[:whole])
        # The rest of longer prefixes: words that may overlap, but never reach beyond the prefix.
        last = starts + np.maximum(widths - 8, 0)
        for i in range(whole, (longest + 7) >> 3):
            keys += words[np.minimum(starts + 8 * i, last)] * _KEYS[i]
        kinds = starts + (widths + len(b" NCCL INFO "))
        kind = self._gather(kinds, 2)
        keys += kind[:, 0] * _KEYS[61] + (kind[:, 1] & _SIX) * _KEYS[62]

        def ask(i: int) -> int:
            start = int(starts[i])
            line = bytes(self._buffer[start : min(int(ends[i]), start + MAX_WIDTH)])
            column, colon = self._heads.read(line, int(widths[i]))
            if column != ODD:
                self._pairs.append((column, colon))
            return len(self._pairs) - 1 if column != ODD else ODD

        heads = self._table(keys, ask)
        self._tabulate()
        colons = starts + self._colon_of[heads]
        heads[(words[colons] != _MARK) | (colons + len(CALL_MARK) > ends)] = ODD
        return heads

    def _tabulate(self) -> None:
        """Arrays over heads and columns, after new ones came."""
        if len(self._column_of) != len(self._pairs):
            pairs = np.array(self._pairs, np.int64).reshape(-1, 2)
            self._column_of, self._colon_of = pairs[:, 0].copy(), pairs[:, 1].copy()
        columns = self._ledger.part.columns
        if len(self._counts) < len(columns):
            self._counts = np.concatenate(
                [self._counts, np.zeros(len(columns) - len(self._counts), np.int64)]
            )
            for column in columns[len(self._kind_of) :]:
                self._processes.setdefault((column.host, column.pid), len(self._processes))
                if column.kind not in self._kinds:
                    self._kinds.append(column.kind)
            self._kind_of = np.array([self._kinds.index(c.kind) for c in columns], np.int64)
            self._numbered_kinds = np.array([k not in POINT_TO_POINT for k in self._kinds])
            self._process_of = np.array([self._processes[c.host, c.pid] for c in columns], np.int64)
            if len(self._kinds) > self._groups.kinds.shape[1]:
                self._groups.kinds = np.pad(self._groups.kinds, ((0, 0), (0, len(self._kinds))))

    # Counts

    def _suspects(
        self, starts: Array, ends: Array, heads: Array, odd: list[int], lines: list[bytes]
    ) -> tuple[list[int], list[bytes]]:
        """Lines with a plain head that may hold more than one call, added to the odd ones."""
        lengths = ends - starts
        if any(map(is_fragment, lines)):
            suspects: Iterable[int] = range(len(starts))
        else:
            suspects = {*(lengths >= self._plain.long).nonzero()[0].tolist(), len(starts) - 1}
        found = {}
        for i in suspects:
            if heads[i] != ODD:
                raw = bytes(self._buffer[starts[i] : ends[i]])
                if raw.count(CALL_MARK) != 1:
                    found[i] = raw
        if not self._plain.long_known:
            plain = (heads != ODD).nonzero()[0][:128].tolist()
            self._plain.learn_length(
                bytes(self._buffer[starts[i] : ends[i]]) for i in plain if i not in found
            )
        if not found:
            return odd, lines
        heads[list(found)] = ODD
        found.update(zip(odd, lines, strict=True))
        return sorted(found), [found[i] for i in sorted(found)]

    def _in_order(self, starts: Array, heads: Array, odd: list[int], lines: list[bytes]) -> None:
        """Count the plain lines between the odd ones; an iteration's mark parts them."""
        ledger, plain = self._ledger, self._plain
        columns = self._column_of[heads[heads != ODD]]
        batch: Batch = []
        begin = 0
        for nth, (i, raw) in enumerate(zip(odd, lines, strict=True)):
            raw = raw.rstrip(b"\r")
            if ledger.iteration(raw) is not None:
                self._count(columns[begin : i - nth])
                begin = i - nth
                self._flush()
            number, offset = plain.line + i, plain.offset + int(starts[i])
            if plain.odd(number, offset, raw):
                batch.append((number, offset, shortened(raw)))
        self._count(columns[begin:])
        ledger.other(batch)

    def _count(self, columns: Array) -> None:
        if len(columns):
            self._counts += np.bincount(columns, minlength=len(self._counts))

    def _flush(self) -> None:
        some = self._counts.nonzero()[0]
        self._ledger.flush(zip(some.tolist(), self._counts[some].tolist(), strict=True))
        self._counts[some] = 0

    # Sequences

    def _number(self, starts: Array, ends: Array, heads: Array, lines: list[bytes]) -> bool:
        """Append all plain calls to their sequences; False where one of them is not built as usual."""
        rows = (heads != ODD).nonzero()[0]
        if not len(rows):
            return True
        heads = heads[rows]
        begins = starts[rows] + self._colon_of[heads] + len(CALL_MARK)
        places = self._verify(begins, ends[rows])
        if places is None:
            return False
        columns = self._column_of[heads]
        # A set-up parts what was called before on the same pointer from what comes after.
        if any(b"- Init " in raw for raw in lines):
            return False
        return self._append(rows, starts, ends, columns, *places)

    def _verify(self, begins: Array, ends: Array) -> tuple[Array, Array, Array] | None:
        """Where count, nranks and comm stand on each line; None where a line has none or is too long."""
        buffer = self._buffer

        def ask_middle(i: int) -> int:
            return buffer.find(b" count ", begins[i], ends[i]) - int(begins[i])

        def ask_right(i: int) -> int:
            at = buffer.rfind(b" [nranks=", begins[i], ends[i])
            return int(ends[i]) - at if at >= 0 else -1

        middle = self._middle(self._words, begins, 1, _COUNT, _SEVEN, ask_middle)
        right = self._right(self._words, ends, -1, _NRANKS, None, ask_right)
        if middle.min() < 0 or right.min() < _REST_BYTES[0]:
            return None
        counts, nranks = begins + middle + 7, ends - right

        def ask_comm(i: int) -> int:
            at = buffer.rfind(b" comm 0x", counts[i], nranks[i])
            return int(nranks[i]) - at if at >= 0 else -1

        width = self._pointer(self._words, nranks, -1, _COMM, None, ask_comm)
        length = nranks - width - counts
        if width.min() < 0 or length.min() < _FIELD_BYTES[0] or length.max() > _FIELD_BYTES[1]:
            return None
        return counts, nranks, length

    def _append(
        self,
        rows: Array,
        starts: Array,
        ends: Array,
        columns: Array,
        counts: Array,
        nranks: Array,
        length: Array,
    ) -> bool:
        """The calls appended; False where one turns out to have no whole fields, before any is counted."""
        rest = ends[rows] - nranks
        key = np.einsum("ij,j->i", self._gather(nranks - 16, 5), _KEYS[32:37])
        key += np.einsum("ij,j->i", self._gather(nranks + rest - 16, 2), _KEYS[37:39])
        shape = (self._process_of[columns] << 12) + (rest << 6) + (nranks - length - counts)
        key += shape.astype(np.uint64) * _KEYS[39]

        def line(i: int) -> bytes:
            row = rows[i]
            return bytes(self._buffer[starts[row] : ends[row]])

        def fields(i: int) -> Any:
            raw = line(i)
            return FIELDS.match(raw, raw.index(CALL_MARK) + len(CALL_MARK))

        def ask_place(i: int) -> int:
            match = fields(i)
            if match is None:
                return ODD
            of = self._ledger.part.columns[int(columns[i])]
            sequence = self._ledger.sequence(of.host, of.pid, self._ledger.name(match[8]), int(match[9]))
            return self._groups.number(sequence)

        groups = self._places(key, ask_place)
        if groups.min() == ODD:
            return False
        kinds = self._kind_of[columns]
        width = self._groups.kinds.shape[1]
        both = np.bincount(groups * width + kinds, minlength=self._groups.kinds.size)
        self._groups.kinds += both.reshape(self._groups.kinds.shape)
        last: Array = np.full(len(self._groups.sequences), -1, np.int64)
        last[groups] = np.arange(len(groups))
        self._remember_last(rows, starts, ends, last)
        self._collectives(rows, starts, columns, groups, kinds, counts, length, fields)
        return True

    def _remember_last(self, rows: Array, starts: Array, ends: Array, last: Array) -> None:
        """Where each sequence's last line is; of those that do not go on in this block the line is taken."""
        self._ended_here = True
        silent = (last[: self._ended.shape[1]] < 0).nonzero()[0]
        self._take_last(silent)
        here = rows[last]
        offsets, numbers = starts[here] + self._plain.offset, here + self._plain.line
        self._ended = np.where(last < 0, -1, np.array([starts[here], ends[here], offsets, numbers]))

    def _take_last(self, groups: Array) -> None:
        """Keep the last lines of some sequences, out of the block before."""
        places = self._ended[:, groups].T.tolist()
        for group, (start, end, offset, number) in zip(groups.tolist(), places, strict=True):
            if start >= 0:
                raw = bytes(self._before[start:end])
                self._groups.sequences[group].last = (offset, number, raw)

    def _collectives(
        self, rows: Array, starts: Array, columns: Array, groups: Array, kinds: Array, counts: Array,
        length: Array, fields: Any,
    ) -> None:  # fmt: skip
        """Number the collectives among the calls."""
        keep = self._numbered_kinds[kinds]
        if not keep.all():
            index = keep.nonzero()[0]
            rows, columns, groups, kinds, counts, length = (
                a[index] for a in (rows, columns, groups, kinds, counts, length)
            )
        else:
            index = np.arange(len(rows))
        if not len(rows):
            return
        end = counts + length
        keys = np.einsum("ij,j->i", self._gather(counts, 2), _KEYS[50:52])
        keys += np.einsum("ij,j->i", self._gather(end - 24, 3), _KEYS[52:55])
        keys += (length * 256 + kinds).astype(np.uint64) * _KEYS[55]

        def ask_hash(i: int) -> int:
            kind = self._kinds[int(kinds[i])]
            self._hashes.append(self._ledger.hash_of(kind, fields(int(index[i]))))
            return len(self._hashes) - 1

        numbers = self._fields(keys, ask_hash)
        if len(self._hash_of) != len(self._hashes):
            self._hash_of = np.array(self._hashes, np.uint64)
        self._extend(groups, self._hash_of[numbers], starts[rows], rows, kinds)

    def _extend(self, groups: Array, hashes: Array, offsets: Array, rows: Array, kinds: Array) -> None:
        """Digests, counts and the remembered ends of the sequences, by group in order of the file."""
        g = self._groups
        narrow = groups.astype(np.uint16) if len(g.sequences) < 1 << 16 else groups
        order = np.argsort(narrow, kind="stable")
        per = np.bincount(groups, minlength=len(g.sequences))
        present = per.nonzero()[0]
        sizes = per[present]
        stops = np.cumsum(sizes)
        firsts = stops - sizes
        hashes = hashes[order]
        self._have_powers(int(sizes.max()) + 1)
        weights = self._powers[np.repeat(stops, sizes) - np.arange(1, len(order) + 1)]
        sums = np.add.reduceat(hashes * weights, firsts)
        before = g.count[present]
        offsets = offsets[order] + self._plain.offset
        lines = rows[order] + self._plain.line
        crossing = (before + sizes) // g.step[present] != before // g.step[present]
        for i in (crossing | (before == 0)).nonzero()[0].tolist():
            a, b = int(firsts[i]), int(stops[i])
            self._milestones(int(present[i]), hashes[a:b], offsets[a:b], lines[a:b])
        g.digest[present] = g.digest[present] * self._powers[sizes] + sums
        g.count[present] = before + sizes
        self._recent.append((present, firsts, stops, g.count[present], hashes, offsets, lines, kinds[order]))
        if len(self._recent) > MAX_RECENT:
            self._keep_ends(self._recent.pop(0))

    def _milestones(self, group: int, hashes: Array, offsets: Array, lines: Array) -> None:
        sequence = self._groups.sequences[group]
        sequence.count, sequence.digest = int(self._groups.count[group]), int(self._groups.digest[group])
        if sequence.first is None:
            sequence.first = (int(offsets[0]), int(lines[0]))
        done = 0
        while True:
            more = sequence.step - sequence.count % sequence.step
            if done + more > len(hashes):
                break
            span = hashes[done : done + more]
            added = int((span * self._powers_to(more)[::-1]).sum())
            sequence.digest = (sequence.digest * pow(RADIX, more, 1 << 64) + added) & ((1 << 64) - 1)
            sequence.count += more
            done += more
            sequence.reached(int(offsets[done - 1]), int(lines[done - 1]))
        self._groups.step[group] = sequence.step

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
        room = TAIL - (self._groups.count[present] - after)
        for i in (room > 0).nonzero()[0].tolist():
            a, b = int(firsts[i]), int(stops[i])
            a = max(a, b - int(room[i]))
            sequence = self._groups.sequences[int(present[i])]
            names = [self._kinds[k] for k in kinds[a:b].tolist()]
            columns = (hashes[a:b].tolist(), offsets[a:b].tolist(), lines[a:b].tolist(), names)
            sequence.tail = (sequence.tail + list(zip(*columns, strict=True)))[-TAIL:]

    # The slow way

    def _write_back(self) -> None:
        self._take_last(np.arange(self._ended.shape[1]))
        self._ended = np.zeros((4, 0), np.int64)
        while self._recent:
            self._keep_ends(self._recent.pop(0))
        self._groups.write(self._kinds)

    def _slow(self, lines: list[bytes], size: int, ended: bool = True) -> None:
        """Count a block line by line, with the sequences up to date before and after."""
        self._flush()
        self._write_back()
        self._plain.take(lines, size, ended)
        self._plain.flush()
        self._tabulate()
        for number in range(len(self._groups.sequences)):
            self._groups.load(number)
        if any(b"- Init " in raw for raw in lines):
            self._places.clear()

    def _last_lines(self, starts: Array, ends: Array) -> list[bytes]:
        """The last lines of the block, back to one that says something."""
        found: list[bytes] = []
        for i in range(len(starts) - 1, -1, -1):
            found.insert(0, bytes(self._buffer[starts[i] : ends[i]]))
            if found[0] and not found[0].isspace():
                break
        return found
