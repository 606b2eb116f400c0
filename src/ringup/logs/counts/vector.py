"""
Counting with numpy: newlines, heads and fields of thousands of lines at a time.

A line's head is taken as eight-byte words and multiplied to one 64-bit key; keys seen before name the
column.  The fields are found where they were on the lines before, and every place is verified: a block
with a line that is not built so is counted by `PlainEngine` instead.  So both give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ringup.logs.counts.buffers import Buffers, LastLines
from ringup.logs.counts.chains import Chains
from ringup.logs.counts.grammar import CALL_MARK, FIELDS, STAMP
from ringup.logs.counts.ledger import Batch, Ledger
from ringup.logs.counts.lookup import KEYS, MAX_KNOWN, Array, Columns, Distances, Table
from ringup.logs.counts.plain import (
    LEAST_MIDDLE,
    MAX_LINE_BYTES,
    MAX_MIDDLE,
    MAX_WIDTH,
    ODD,
    PlainEngine,
    is_fragment,
    shortened,
)

FILL_BYTES = 1 << 20
"""A block: some five thousand lines, so that what is done once a block costs little."""

_SLACK = MAX_WIDTH + 16
_COUNT = np.uint64(int.from_bytes(b" count \0", "little"))
_SEVEN = np.uint64((1 << 56) - 1)
_NRANKS = np.uint64(int.from_bytes(b" [nranks", "little"))
_COMM = np.uint64(int.from_bytes(b" comm 0x", "little"))
_INFO = np.uint64(int.from_bytes(b" NCCL IN", "little"))
_MARK = np.uint64(int.from_bytes(b": opCoun", "little"))
_TWO = np.uint64((1 << 16) - 1)
_SIX = np.uint64((1 << 48) - 1)
_REST_BYTES = (25, 40)
"""Shortest and longest ` [nranks=N] stream P` that five overlapping words cover."""
_FIELD_BYTES = (24, 40)
"""Shortest and longest `N datatype D op O root R` that five overlapping words cover."""


class VectorEngine:
    """Counts blocks of lines with numpy."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._plain = PlainEngine(ledger)
        self._heads = self._plain.heads
        # The last call of a rank that is silent in this block is read in the one before.
        self._bytes = Buffers(MAX_LINE_BYTES + FILL_BYTES, _SLACK)
        self._table = Table()
        self._fields = Table()
        self._places = Table()
        self._mark = Distances(MAX_WIDTH)
        self._stamp = Distances(80)
        self._stamped = b""
        self._columns = Columns(ledger.part)
        self._counts: Array = np.zeros(0, np.int64)
        self._middle = Distances(MAX_MIDDLE)
        self._right = Distances(_REST_BYTES[1])
        self._pointer = Distances(40)
        self._chains = Chains(self._columns.kinds)
        self._last = LastLines(self._bytes, self._chains.sequences)
        self._hashes: list[int] = []
        self._hash_of: Array = np.zeros(0, np.uint64)

    # Bytes in

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        view, held = memoryview(chunk), self._bytes
        while len(view):
            taken = min(len(view), max(FILL_BYTES - held.filled, 64 << 10), held.size - held.filled)
            held.append(view[:taken])
            view = view[taken:]
            if held.filled >= FILL_BYTES:
                self._work()

    def _work(self) -> None:
        end = self._bytes.whole_lines()
        if end:
            self._block(end)
            self._swap(end)
        elif self._bytes.filled > MAX_LINE_BYTES:
            self._unended()

    def _unended(self) -> None:
        """What has no newline, as a line."""
        size = self._bytes.filled
        self._slow([self._bytes.line(0, size)], size, ended=False)
        self._bytes.filled = 0

    def _swap(self, end: int) -> None:
        """Go on behind the block."""
        self._last.before_swap()
        self._bytes.swap(end)

    def finish(self) -> None:
        """The end of the file."""
        end = self._bytes.whole_lines()
        if end:
            self._block(end)
            self._swap(end)
        if self._bytes.filled:
            self._unended()
            self._plain.line += 1
        self._flush()
        self._write_back()
        self._plain.end()

    # A block of whole lines

    def _block(self, size: int) -> None:
        ends = self._bytes.line_ends(size)
        starts = np.empty_like(ends)
        starts[0] = 0
        starts[1:] = ends[:-1] + 1
        heads, begins = self._look(starts, ends)
        odd = (heads == ODD).nonzero()[0].tolist()
        lines = [self._bytes.line(starts[i], ends[i]) for i in odd]
        if self._ledger.part.numbered:
            done = not any(CALL_MARK in raw for raw in lines) and self._number(
                starts, ends, heads, begins, lines
            )
        else:
            odd, lines = self._suspects(starts, ends, heads, odd, lines)
            done = True
        if not done:
            self._slow(self._bytes.line(0, size - 1).split(b"\n"), size)
            return
        self._in_order(starts, heads, odd, lines)
        self._plain.advance_over(self._last_lines(starts, ends), len(starts), size)

    def _look(self, starts: Array, ends: Array) -> tuple[Array, Array]:
        """Of each line the number of its head, ODD for what is no plain call, and where its fields begin."""
        held = self._bytes

        def ask_mark(i: int) -> int:
            return held.now.find(b" NCCL INFO ", starts[i], ends[i]) - int(starts[i])

        widths = self._mark(held.words, starts, 1, _INFO, None, ask_mark)
        heads: Array = np.full(len(starts), ODD, np.int64)
        begins = starts.copy()
        rows = (widths >= 0).nonzero()[0]
        if len(rows):
            skips = self._stamps(starts[rows], ends[rows], widths[rows])
            heads[rows], begins[rows] = self._pairs_of(starts[rows], ends[rows], widths[rows], skips)
        return heads, begins

    def _stamps(self, starts: Array, ends: Array, widths: Array) -> Array:
        """How many bytes of a stamp each line begins with."""
        if not self._stamped and self._heads.fitting:
            self._heads.fit([self._bytes.line(a, b) for a, b in zip(starts[:400], ends[:400], strict=True)])
            self._stamped = self._heads.stamp_end
        if not self._stamped:
            return np.zeros(len(starts), np.int64)

        def ask(i: int) -> int:
            match = STAMP.match(self._bytes.line(starts[i], ends[i]))
            return match.end() - 2 if match else -1

        end = np.uint64(int.from_bytes(self._stamped, "little"))
        skips = self._stamp(self._bytes.words, starts, 1, end, _TWO, ask) + 2
        skips[(skips < 2) | (widths - skips < 8)] = 0
        return skips

    def _pairs_of(self, starts: Array, ends: Array, widths: Array, skips: Array) -> tuple[Array, Array]:
        words = self._bytes.words
        lines, bases, widths = starts, starts + skips, widths - skips
        shortest, longest = int(widths.min()), int(widths.max())
        whole = shortest >> 3
        keys = widths.astype(np.uint64) * KEYS[60]
        if whole:
            keys += np.einsum("ij,j->i", self._bytes.gather(bases, whole), KEYS[:whole])
        # The rest of longer prefixes: words that may overlap, but never reach beyond the prefix.
        last = bases + np.maximum(widths - 8, 0)
        for i in range(whole, (longest + 7) >> 3):
            keys += words[np.minimum(bases + 8 * i, last)] * KEYS[i]
        kinds = bases + (widths + len(b" NCCL INFO "))
        kind = self._bytes.gather(kinds, 2)
        keys += kind[:, 0] * KEYS[61] + (kind[:, 1] & _SIX) * KEYS[62]

        def ask(i: int) -> int:
            start, skip = int(lines[i]), int(skips[i])
            line = self._bytes.line(start, min(int(ends[i]), start + MAX_WIDTH))
            column, colon = self._heads.read(line, int(widths[i]) + skip)
            return ODD if column == ODD else self._columns.add(column, colon - skip)

        heads = self._table(keys, ask)
        self._columns.update()
        colons = bases + self._columns.colon[heads]
        begins = colons + len(CALL_MARK)
        heads[(words[colons] != _MARK) | (begins > ends)] = ODD
        return heads, begins

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
                raw = self._bytes.line(starts[i], ends[i])
                if raw.count(CALL_MARK) != 1:
                    found[i] = raw
        if not self._plain.long_known:
            plain = (heads != ODD).nonzero()[0][:128].tolist()
            self._plain.learn_length(self._bytes.line(starts[i], ends[i]) for i in plain if i not in found)
        if not found:
            return odd, lines
        heads[list(found)] = ODD
        found.update(zip(odd, lines, strict=True))
        return sorted(found), [found[i] for i in sorted(found)]

    def _in_order(self, starts: Array, heads: Array, odd: list[int], lines: list[bytes]) -> None:
        """Count the plain lines between the odd ones; an iteration's mark parts them."""
        ledger, plain = self._ledger, self._plain
        columns = self._columns.column[heads[heads != ODD]]
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
            count = len(self._ledger.part.columns)
            if count > len(self._counts):
                self._counts = np.pad(self._counts, (0, count - len(self._counts)))
            self._counts += np.bincount(columns, minlength=count)

    def _flush(self) -> None:
        some = self._counts.nonzero()[0]
        self._ledger.flush(zip(some.tolist(), self._counts[some].tolist(), strict=True))
        self._counts[some] = 0

    # Sequences

    def _number(self, starts: Array, ends: Array, heads: Array, begins: Array, lines: list[bytes]) -> bool:
        """Append all plain calls to their sequences; False where one of them is not built as usual."""
        rows = (heads != ODD).nonzero()[0]
        if not len(rows):
            return True
        heads = heads[rows]
        places = self._verify(begins[rows], ends[rows])
        if places is None:
            return False
        columns = self._columns.column[heads]
        # A set-up parts what was called before on the same pointer from what comes after.
        if any(b"- Init " in raw for raw in lines):
            return False
        return self._append(rows, starts, ends, columns, *places)

    def _verify(self, begins: Array, ends: Array) -> tuple[Array, Array, Array] | None:
        """Where count, nranks and comm stand on each line; None where a line has none or is too long."""
        buffer = self._bytes.now

        def ask_middle(i: int) -> int:
            return buffer.find(b" count ", begins[i], ends[i]) - int(begins[i])

        def ask_right(i: int) -> int:
            at = buffer.rfind(b" [nranks=", begins[i], ends[i])
            return int(ends[i]) - at if at >= 0 else -1

        middle = self._middle(self._bytes.words, begins, 1, _COUNT, _SEVEN, ask_middle)
        right = self._right(self._bytes.words, ends, -1, _NRANKS, None, ask_right)
        if middle.min() < LEAST_MIDDLE or right.min() < _REST_BYTES[0]:
            return None
        counts, nranks = begins + middle + 7, ends - right

        def ask_comm(i: int) -> int:
            at = buffer.rfind(b" comm 0x", counts[i], nranks[i])
            return int(nranks[i]) - at if at >= 0 else -1

        width = self._pointer(self._bytes.words, nranks, -1, _COMM, None, ask_comm)
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
        key = np.einsum("ij,j->i", self._bytes.gather(nranks - 16, 5), KEYS[32:37])
        key += np.einsum("ij,j->i", self._bytes.gather(nranks + rest - 16, 2), KEYS[37:39])
        shape = (self._columns.process[columns] << 12) + (rest << 6) + (nranks - length - counts)
        key += shape.astype(np.uint64) * KEYS[39]

        def line(i: int) -> bytes:
            row = rows[i]
            return self._bytes.line(starts[row], ends[row])

        def fields(i: int) -> Any:
            raw = line(i)
            return FIELDS.match(raw, raw.index(CALL_MARK) + len(CALL_MARK))

        def ask_place(i: int) -> int:
            match = fields(i)
            if match is None:
                return ODD
            of = self._ledger.part.columns[int(columns[i])]
            sequence = self._ledger.sequence(of.host, of.pid, self._ledger.name(match[8]), int(match[9]))
            return self._chains.number(sequence)

        groups = self._places(key, ask_place)
        if groups.min() == ODD:
            return False
        kinds = self._columns.kind[columns]
        numbers = self._asked(counts, length, kinds, fields)
        if numbers.min() == ODD:
            return False
        self._chains.add_kinds(groups, kinds)
        self._last.remember(groups, rows, starts, ends, (self._plain.offset, self._plain.line))
        keep = self._columns.numbered[kinds]
        if not keep.all():
            rows, groups, kinds, numbers = rows[keep], groups[keep], kinds[keep], numbers[keep]
        if len(rows):
            offsets, lines = starts[rows] + self._plain.offset, rows + self._plain.line
            self._chains.extend(groups, self._hash_of[numbers], offsets, lines, kinds)
        return True

    def _asked(self, counts: Array, length: Array, kinds: Array, fields: Any) -> Array:
        """The number of what each call asks for; ODD where its fields are none."""
        keys = np.einsum("ij,j->i", self._bytes.gather(counts, 2), KEYS[50:52])
        keys += np.einsum("ij,j->i", self._bytes.gather(counts + length - 24, 3), KEYS[52:55])
        keys += (length * 256 + kinds).astype(np.uint64) * KEYS[55]

        def ask(i: int) -> int:
            match = fields(i)
            if match is None:
                return ODD
            self._hashes.append(self._ledger.hash_of(self._columns.kinds[int(kinds[i])], match))
            return len(self._hashes) - 1

        if len(self._hashes) > MAX_KNOWN:
            self._hashes.clear()
            self._fields.clear()
        numbers = self._fields(keys, ask)
        if len(self._hash_of) != len(self._hashes):
            self._hash_of = np.array(self._hashes, np.uint64)
        return numbers

    # The slow way

    def _write_back(self) -> None:
        self._last.take_all()
        self._chains.write()

    def _slow(self, lines: list[bytes], size: int, ended: bool = True) -> None:
        """Count a block line by line, with the sequences up to date before and after."""
        self._flush()
        self._write_back()
        self._plain.take(lines, size, ended)
        self._plain.flush()
        self._columns.update()
        self._chains.load_all()
        if any(b"- Init " in raw for raw in lines):
            self._places.clear()

    def _last_lines(self, starts: Array, ends: Array) -> list[bytes]:
        """The last lines of the block, back to one that says something."""
        found: list[bytes] = []
        for i in range(len(starts) - 1, -1, -1):
            found.insert(0, self._bytes.line(starts[i], ends[i]))
            if found[0] and not found[0].isspace():
                break
        return found
