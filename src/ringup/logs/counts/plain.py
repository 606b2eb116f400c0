"""
Counting with the standard library: heads of lines as dictionary keys.

A collective line begins with its process and its kind, so cutting every line after that and counting
equal heads counts the calls; a head seen before costs one dictionary look-up (measured: 190 ns a line
of 200 bytes where one `grep -c` takes 35).  Heads of another form are taken up one by one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

from ringup.logs.counts.grammar import CALL_MARK, FIELDS, HEAD, POINT_TO_POINT, STAMP, bare
from ringup.logs.counts.ledger import Batch, Ledger
from ringup.logs.counts.model import Sequence

MAX_LINE_BYTES = 1 << 20
"""A line longer than this is taken in pieces: what has no newline must not fill the memory."""

MAX_SHOWN_BYTES = 64 << 10
"""What of a line is handed on to others."""

MAX_HEADS = 50_000
FIRST_WIDTH = 48
MAX_WIDTH = 240
ODD = -1
"""Column of a line that is no plain call."""

FITTING = 4_000
"""Calls whose heads are measured before the width is settled."""

MAX_STAMP = 80
"""A stamp and the label before it end within this."""

MAX_KIND = 13
"""Longest kind's name that is told apart in bulk (`ReduceScatter`)."""

VOTES = 8
"""Lines whose head was cut off before the width grows: one torn line must not widen every head."""

_BEYOND = len(b": o")
LEAST_MIDDLE, MAX_MIDDLE = 23, 56
"""From `opCount ` to ` count `: two pointers of 14 and a counter of 8 digits; a second head does not fit."""

_WHOLE_PREFIX = re.compile(rb"\A(?!.*NCCL )(?:|.*[ \t]|.*[\]>]:)\Z", re.DOTALL)
"""What may stand before a process's name: nothing, a stamp, a label; not the rest of a torn line."""

_FRAGMENTS = (b" comm 0x", b"[nranks=", b" stream 0x", b" datatype ")


def is_fragment(line: bytes) -> bool:
    """Whether a line without a whole call holds a piece of one."""
    return any(fragment in line for fragment in _FRAGMENTS)


def shortened(line: bytes) -> bytes:
    """A line of bounded length, its beginning and its end kept."""
    return (
        line if len(line) <= MAX_SHOWN_BYTES else line[: MAX_SHOWN_BYTES // 2] + line[-MAX_SHOWN_BYTES // 2 :]
    )


class Heads:
    """What the beginning of a line says: the column of its call, or that it is no plain call."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[bytes, tuple[int, int]] = {}
        self._votes: Counter[int] = Counter()
        self._widths: Counter[int] = Counter()
        self._calls_seen = 0
        self.width = FIRST_WIDTH
        self.stamp_end = b""
        """The last two bytes of the stamps that lines begin with: stamps are never the same twice."""

    def cut(self, line: bytes) -> bytes:
        """The head of a line; behind a stamp it begins with the space."""
        if not self.stamp_end:
            return line[: self.width]
        at = line.find(self.stamp_end, 0, MAX_STAMP)
        return line[at + 1 : at + self.width]

    def cut_all(self, lines: list[bytes]) -> Iterable[bytes]:
        """The heads of lines."""
        if not self.stamp_end:
            return map(itemgetter(slice(0, self.width)), lines)
        return map(self.cut, lines)

    def look(self, head: bytes, line: bytes = b"") -> tuple[int, int]:
        """
        Column and where the kind's colon stands in the head; (ODD, 0) for what is no plain head.

        `line` is needed for what stands before a stamp.
        """
        known = self._known.get(head)
        if known is None:
            known = self._read(head, line) if len(head) == self._length else (ODD, 0)
            if known[0] != ODD:
                self._keep(head, known)
        return known

    @property
    def _length(self) -> int:
        return self.width - 1 if self.stamp_end else self.width

    def _keep(self, head: bytes, known: tuple[int, int]) -> None:
        if len(self._known) > MAX_HEADS:
            self._known.clear()
        self._known[head] = known

    def _read(self, head: bytes, line: bytes) -> tuple[int, int]:
        colon = head.find(b": o")
        if colon < 0 or not CALL_MARK.startswith(head[colon : colon + len(CALL_MARK)]):
            return (ODD, 0)
        # The digits of opCount behind the kind say nothing new: one look at the kind is enough.
        base = head[: colon + _BEYOND]
        known = self._known.get(base)
        if known is None:
            match = HEAD.search(head)
            if not match or match.end() - 1 != colon or not _WHOLE_PREFIX.search(head[: match.start()]):
                return (ODD, 0)
            prefix = head[: match.start()]
            if self.stamp_end:
                if match.start() != 1 or not head.startswith(b" ") or match["host"] is None:
                    return (ODD, 0)
                prefix = line[: line.find(self.stamp_end) + 2]
            known = (self._ledger.column(match, prefix), colon)
            self._keep(base, known)
        return known

    def read(self, line: bytes, width: int) -> tuple[int, int]:
        """The same of a whole line, where its prefix has this width."""
        match = HEAD.search(line)
        if (
            not match
            or match.start("kind") != width + len(b" NCCL INFO ")
            or not line.startswith(b" opCount ", match.end())
            or len(match["kind"]) > MAX_KIND
            or not _WHOLE_PREFIX.search(line[: match.start()])
        ):
            return (ODD, 0)
        return self._ledger.column(match, line[: match.start()]), match.end() - 1

    @property
    def fitting(self) -> bool:
        """Whether heads are still being measured."""
        return self._calls_seen < FITTING

    def fit(self, lines: list[bytes]) -> None:
        """Cut no later than the heads of the first calls need."""
        if not self.fitting:
            return
        if not self._calls_seen:
            self._fit_stamps([line for line in lines if CALL_MARK in line][:400])
        for line in lines:
            wanted = self._wanted(line)
            if wanted:
                self._calls_seen += 1
                self._widths[wanted] += 1
        usual = [w for w, n in self._widths.items() if n * 200 >= self._calls_seen]
        if usual:
            self.width = max(usual)

    def _fit_stamps(self, lines: list[bytes]) -> None:
        """Leave stamps out of heads where most lines begin with one."""
        stamps = [m for line in lines if (m := STAMP.match(line))]
        if stamps and len(stamps) * 10 >= len(lines) * 9:
            self.stamp_end = Counter(m[0][-2:] for m in stamps).most_common(1)[0][0]
            self._known.clear()

    def vote(self, line: bytes) -> None:
        """A call whose head was not plain: cut later when there are several."""
        wanted = self._wanted(line)
        if wanted > self.width:
            self._votes[wanted] += 1
            if self._votes[wanted] >= VOTES:
                self.width = wanted
                self._votes.clear()

    def _wanted(self, line: bytes) -> int:
        colon = line.find(CALL_MARK, 0, MAX_WIDTH)
        stamp = line.find(self.stamp_end, 0, MAX_STAMP) if self.stamp_end else 0
        return colon + _BEYOND - max(stamp, 0) if colon >= 0 else 0


class PlainEngine:
    """Counts blocks of lines with dictionaries."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.heads = Heads(ledger)
        self._counter: Counter[bytes] = Counter()
        self._carry = b""
        self.line = 1
        self.offset = 0
        self.long = 0
        self.long_known = False
        self._asked: dict[tuple[int, bytes], tuple[Sequence, int, str]] = {}

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        size = len(self._carry) + len(chunk)
        lines = chunk.split(b"\n")
        lines[0] = self._carry + lines[0]
        self._carry = lines.pop()
        if lines:
            self.take(lines, size - len(self._carry))
        if len(self._carry) > MAX_LINE_BYTES:
            self.take([self._carry], len(self._carry), ended=False)
            self._carry = b""

    def finish(self) -> None:
        """The end of the file: a last line without a newline counts too."""
        if self._carry:
            self.take([self._carry], len(self._carry), ended=False)
            self.line += 1
        self.flush()
        self.end()

    def flush(self) -> None:
        """Write what was counted to the book."""
        self._flush(self._counter)

    def end(self) -> None:
        """The last words in the book."""
        self._ledger.part.lines = self.line - 1
        self._ledger.part.bytes = self.offset
        self._ledger.close()

    def take(self, lines: list[bytes], size_bytes: int, ended: bool = True) -> None:
        self.heads.fit(lines)
        if self._ledger.part.numbered:
            self._number(lines)
        else:
            self._count(lines)
        self.advance_over(lines, len(lines), size_bytes, ended)

    def advance_over(self, last: list[bytes], count: int, size_bytes: int, ended: bool = True) -> None:
        """Go on behind some lines, of which the last are given."""
        self.offset += size_bytes
        self._ledger.last_of(last, self.line + count - len(last), self.offset + (not ended))
        self.line += count if ended else 0

    def _flush(self, counter: Counter[bytes]) -> None:
        """Write to the book.  The heads stay, at zero: one that comes again is then not looked at as new."""
        look = self.heads.look
        self._ledger.flush([(look(head)[0], n) for head, n in counter.items() if n])
        if len(counter) > MAX_HEADS or len(counter) > 4 * len(self._ledger.part.columns) + 64:
            counter.clear()
        else:
            dict.update(counter, dict.fromkeys(counter, 0))

    # Counts only

    def _count(self, lines: list[bytes]) -> None:
        counter = self._counter
        if len(counter) > MAX_HEADS:
            self._flush(counter)
        before = len(counter)
        counter.update(self.heads.cut_all(lines))
        odd: set[bytes] = set()
        if len(counter) != before:
            lines_of = {self.heads.cut(line): line for line in lines} if self.heads.stamp_end else {}
            for head in list(islice(reversed(counter), len(counter) - before)):
                if self.heads.look(head, lines_of.get(head, b""))[0] == ODD:
                    odd.add(head)
                    del counter[head]
        # A call glued to the rest of another is longer than any whole one.
        long = max(map(len, lines)) >= self.long
        if odd or long or lines[-1].count(CALL_MARK) != 1:
            self._settle(lines, list(self.heads.cut_all(lines)), odd, long)

    def _settle(self, lines: list[bytes], heads: list[bytes], odd: set[bytes], long: bool) -> None:
        """A block that holds more than plain calls: take those lines one by one."""
        uneven = set(_places(heads, odd))
        suspects: Iterable[int] = range(len(lines))
        if not any(is_fragment(lines[i]) for i in uneven):
            suspects = [i for i in suspects if len(lines[i]) >= self.long] if long else []
            suspects.append(len(lines) - 1)
        for i in suspects:
            if i not in uneven and lines[i].count(CALL_MARK) != 1:
                self._counter[heads[i]] -= 1
                uneven.add(i)
        if not self.long_known:
            self.learn_length(line for i, line in enumerate(lines) if i not in uneven)
        self._in_order(lines, heads, sorted(uneven))

    def learn_length(self, plain: Iterable[bytes]) -> None:
        lengths = [len(line) for line in islice(plain, 64) if line.rstrip().rfind(b" stream ") > 0]
        if lengths:
            self.long = min(lengths) + self.heads.width
            self.long_known = True

    def _in_order(self, lines: list[bytes], heads: list[bytes], uneven: list[int]) -> None:
        ledger = self._ledger
        marks = [i for i in uneven if ledger.iteration(lines[i]) is not None]
        segments = []
        for begin, end in zip(marks, marks[1:] + [len(lines)] * bool(marks), strict=True):
            segment = Counter(heads[begin + 1 : end])
            segment.subtract(heads[i] for i in uneven if begin < i < end)
            segments.append({head: n for head, n in segment.items() if n})
            self._counter.subtract(segments[-1])
        batch: Batch = []
        after = iter(segments)
        offset, done = self.offset, 0
        for i in uneven:
            offset += sum(map(len, lines[done:i])) + (i - done)
            done = i
            raw = lines[i].rstrip(b"\r")
            if ledger.iteration(raw) is not None:
                self._flush(self._counter)
                self._counter.update(next(after))
            if self.odd(self.line + i, offset, raw):
                batch.append((self.line + i, offset, shortened(raw)))
        ledger.other(batch)

    def odd(self, number: int, offset: int, raw: bytes) -> bool:
        """A line that is no plain call; whether it says anything but one whole call all the same."""
        said = bare(raw)
        if CALL_MARK in said:
            self.heads.vote(raw)
            if self._ledger.odd_line(number, offset, said):
                return False
        self._ledger.read_line(number, offset, said)
        return bool(raw)

    # Counts and sequences

    def _number(self, lines: list[bytes]) -> None:
        heads, ledger = self.heads, self._ledger
        offset, number = self.offset, self.line - 1
        batch: Batch = []
        counts: dict[int, int] = {}
        for line in lines:
            number += 1
            if not line:
                offset += 1
                continue
            column, colon = heads.look(heads.cut(line), line)
            if heads.stamp_end and column != ODD:
                colon = line.find(CALL_MARK, colon)
            if column == ODD or not self._append(line, column, colon, number, offset):
                raw = line.rstrip(b"\r")
                if ledger.is_boundary(raw):
                    ledger.flush(counts.items())
                    counts.clear()
                    if b"- Init " in raw:
                        self._asked.clear()
                if self.odd(number, offset, raw):
                    batch.append((number, offset, shortened(raw)))
            else:
                counts[column] = counts.get(column, 0) + 1
            offset += len(line) + 1
        ledger.flush(counts.items())
        ledger.other(batch)

    def _append(self, line: bytes, column: int, colon: int, number: int, offset: int) -> bool:
        """Number a plain call; False where the line is not one whole call."""
        at = line.find(b" count ", colon)
        if not LEAST_MIDDLE <= at - colon - len(CALL_MARK) <= MAX_MIDDLE:
            fields = FIELDS.match(line, colon + len(CALL_MARK))
            if fields:
                self._ledger.call(column, fields, number, offset, line)
            return fields is not None
        key = (column, line[at:])
        known = self._asked.get(key)
        if known is None:
            fields = FIELDS.match(line, colon + len(CALL_MARK))
            if not fields:
                return False
            of = self._ledger.part.columns[column]
            sequence = self._ledger.sequence(of.host, of.pid, self._ledger.name(fields[8]), int(fields[9]))
            known = (sequence, self._ledger.hash_of(of.kind, fields), of.kind)
            if len(self._asked) > MAX_HEADS:
                self._asked.clear()
            self._asked[key] = known
        sequence, hash_, kind = known
        sequence.kinds[kind] = sequence.kinds.get(kind, 0) + 1
        sequence.last = (offset, number, line)
        if kind not in POINT_TO_POINT:
            self._ledger.append(sequence, hash_, offset, number, kind)
        return True


def _places(heads: list[bytes], odd: set[bytes]) -> list[int]:
    """Where these heads stand; a few are found faster by looking for each than by looking at all."""
    if len(odd) > 2:
        return [i for i, head in enumerate(heads) if head in odd]
    found = []
    for head in odd:
        at = -1
        for _ in range(heads.count(head)):
            at = heads.index(head, at + 1)
            found.append(at)
    return found
