"""Several runs in one file, as `>> train.log` leaves them: where the last one begins."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 32 << 20
"""Of a file that is searched."""
MOST_STARTS = 4_000
MOSTLY, FEWEST_RUNS = 0.5, 4
"""Share of the runs that begin with one start of a file of so many: it is one rank's."""
FEWEST_LINES = 8
"""Of a run; fewer are a banner that each rank prints."""
_TIMES = re.compile(rb"\x1b\[[0-9;]*m|\d{2,4}[-/]\d\d[-/]\d{2,4}|\d\d?:\d\d(?::\d\d)?(?:[.,]\d{1,9})?")
_DIGITS = re.compile(rb"\x1b\[[0-9;]*m|\d[0-9a-fA-F]*")
_FAILS = re.compile(
    rb"^(?:\S+ )?Traceback \(most|^[\w.]{0,80}(?:Error|Exception|Interrupt)\b|\bFAILED\b"
    rb"|exit ?(?:ed|s|code|status)|CANCELLED|Killed|Aborted|Segmentation fault|core dumped",
    re.MULTILINE,
)
_DATED = re.compile(rb"(?:\d{4}-(\d\d)-(\d\d)[ T_]|[IWEF](\d\d)(\d\d) )(\d\d:\d\d:\d\d)")
_RANK = re.compile(rb"\[rank(\d{1,6})\]")
_AGAIN = re.compile(rb"(?i)\brestart|\brequeue|\bretry(?! to connect|allocator)|\battempt")
_END_BYTES = 16 << 10
"""Before a new start, where the end of the run before it is looked for."""


class LastRun(NamedTuple):
    offset: int = 0
    line: int = 1
    runs: int = 1
    """Of the file."""


def last_run(path: str) -> LastRun:
    """
    Where the last of several runs begins.

    A run begins where the file's first line comes again, above one of the form of its second, after a
    failure.  Ranks and nodes have their number in the first line, or print it another number of times; a
    launcher that restarts its ranks says so.  Parts of different ranks are one run.
    Raises OSError.
    """
    if not 0 < Path(path).stat().st_size <= MOST_BYTES:
        return LastRun()
    with Path(path).open("rb") as file:  # no mmap: a log may be cut while it is read
        return _last_run(file.read(MOST_BYTES))


def _last_run(data: bytes) -> LastRun:
    first = next(_lines(data, 0), b"")
    head = _head(data, 0)
    fixed = max(_DIGITS.split(first), key=len, default=b"")
    if len(head) < 2 or len(fixed) < 12 or _FAILS.search(first):
        return LastRun()
    groups = [[0]]
    for at in _starts(data, fixed, head):
        before = groups[-1][-1]
        ended = data[max(before, at - _END_BYTES) : at]
        if _FAILS.search(ended) and data[before:at].count(b"\n") >= FEWEST_LINES:
            if _AGAIN.search(ended[-2000:]):
                return LastRun()
            groups.append([])
        groups[-1].append(at)
    sizes = [len(group) for group in groups]
    begin = groups[-1][0] if len(set(sizes)) == 1 and not _of_one_run(data, groups) else 0
    if not begin and sizes.count(1) >= MOSTLY * len(sizes) >= FEWEST_RUNS * MOSTLY:
        begin = groups[-1][-1]  # one start a run, some of which ended without a word
    return LastRun(begin, data[:begin].count(b"\n") + 1, len(groups)) if begin else LastRun()


def _of_one_run(data: bytes, groups: list[list[int]]) -> bool:
    """Whether the last two parts are other ranks' or nodes' output, as `cat rank*.log` leaves it."""
    if len(groups) < 2:
        return False
    (before, *_), (last, *_) = groups[-2:]
    ranks = [set(_RANK.findall(part)) for part in (data[before:last], data[last:])]
    if all(len(own) == 1 for own in ranks) and ranks[0] != ranks[1]:
        return True
    ended = _DATED.findall(data, max(before, last - _END_BYTES), last)[-1:]
    begun = [found.groups(b"") for found in [_DATED.search(data, last)] if found]
    return any(b"".join(one) < b"".join(other) for one in begun for other in ended)


def _starts(data: bytes, fixed: bytes, head: list[bytes]) -> Iterator[int]:
    """The offsets of further lines of the first one's form, above one of the second's."""
    at = data.find(b"\n") + 1
    for _ in range(MOST_STARTS):
        found = data.find(fixed, at)
        if found < 0:
            return
        begin = data.rfind(b"\n", 0, found) + 1
        if _head(data, begin) == head:
            yield begin
        at = data.find(b"\n", found) + 1
        if not at:
            return


def _lines(data: bytes, at: int) -> Iterator[bytes]:
    """Lines from an offset on that are not empty, each bounded."""
    while at < len(data):
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        if line := data[at : min(end, at + 500)].strip():
            yield line
        at = end + 1


def _head(data: bytes, at: int) -> list[bytes]:
    """The line at an offset without times, and the next one without numbers."""
    forms = (_TIMES, _DIGITS)
    return [form.sub(b"#", line) for form, line in zip(forms, _lines(data, at), strict=False)]


def blanked(blocks: Iterable[bytes], offset: int) -> Iterator[bytes]:
    """The blocks with the bytes before an offset blanked, so that lines keep their numbers."""
    from ringup.logs.since import BLANK

    for block in blocks:
        if offset >= len(block):
            yield block.translate(BLANK)
        else:
            yield block[:offset].translate(BLANK) + block[offset:] if offset else block
        offset = max(0, offset - len(block))
