"""
The stuck rank, from only the beginning and the end of each rank's file: an early answer for long logs.

Pure.  The beginning shows the process of a file (Init lines) and the progress of its set-up; the end, the
last calls.  Ends are aligned by their calls, because opCount cannot be compared between ranks.  In case of
doubt no rank is named: the full count decides.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ringup.logs.grammar import CALL_MARK, HEAD, INIT, POINT_TO_POINT, PREFIX, fields_of
from ringup.units import first_of_each

STAGES = ("none", "bootstrap", "network", "init-start", "channels", "connected", "init-complete")
"""Stages of a process, in the order of NCCL's own set-up (2.22 and later connect after Init COMPLETE)."""
_STAGE = re.compile(
    rb"(Bootstrap ?: Using )|(Using network |NET/\w+ ?: Using )|(- Init START)"
    rb"|( via (?:P2P|SHM|NET|COLLNET)/|Trees \[)|(Connected (?:all rings|all trees))|(- Init COMPLETE)"
)
_COMPLETE = len(STAGES) - 1

HEAD_BYTES = 48 << 10
TAIL_BYTES = 32 << 10
MAX_CALLS = 128
"""Last calls of a file that are read: a few iterations are not needed, one is enough."""

MAX_SHIFT = 64
"""Ranks are assumed to be at most this many calls apart."""

MIN_OVERLAP = 6
"""Fewer equal calls in a row than this prove nothing."""

MAX_TURNED = 4
"""Calls at the end of a rank that may differ from what the others called there."""

_NEAREST = sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs)

Ends = tuple[str, bytes, bytes, int]
"""Of a file: its name, first bytes, last bytes and size."""


class Stuck(NamedTuple):
    """A rank for which the others wait."""

    rank: str
    host: str
    reason: str
    confidence: str


@dataclass
class _File:
    name: str
    rank: int | None = None
    nranks: int = 0
    host: str = ""
    pid: str = ""
    stage: int = 0
    comms: dict[bytes, str] = field(default_factory=dict)
    calls: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def stuck(self, reason: str, confidence: str) -> Stuck:
        process = f"{self.host}:{self.pid}" if self.pid else self.name
        return Stuck(process if self.rank is None else str(self.rank), self.host, reason, confidence)


def look(files: Iterable[Ends]) -> list[Stuck]:
    """The ranks that stopped first.  Of each file only its calls are stored, equal texts once."""
    texts: dict[bytes, bytes] = {}
    found = [_read(texts, *ends) for ends in files]
    known = [f for f in found if f.stage or f.calls]
    if len(known) < 2:
        return []
    late = [f for f in known if f.stage < _COMPLETE]
    return _late_in_set_up(known, late) if late else _late_in_calls(known)


def _read(texts: dict[bytes, bytes], name: str, head: bytes, tail: bytes, size_bytes: int) -> _File:
    file = _File(name)
    for line in head.split(b"\n"):
        stage = None if CALL_MARK in line else _STAGE.search(line)
        if stage:
            file.stage = max(file.stage, stage.lastindex or 0)
            if match := INIT.search(line):
                if int(match["nranks"][:9]) > file.nranks:
                    file.rank, file.nranks = int(match["rank"][:9]), int(match["nranks"][:9])
                id_ = match["id"] or (match["parent"] and b"split %s" % match["color"])
                file.comms[match["pointer"]] = (id_ or b"%s ranks" % match["nranks"]).decode()
    if prefix := PREFIX.search(head[:4096]) or PREFIX.search(tail[:4096]):
        file.host, file.pid = prefix["host"].decode("utf-8", "replace"), prefix["pid"].decode()
    lines = tail.split(b"\n")
    # The first is cut.
    for line in lines[size_bytes > len(tail) :][-MAX_CALLS:]:
        head_of_call = HEAD.search(line)
        fields = head_of_call and fields_of(line, head_of_call)
        if head_of_call and fields and head_of_call["kind"].decode() not in POINT_TO_POINT:
            communicator = file.comms.get(fields[8]) or f"{fields[9].decode()} ranks"
            call = b"%s count %s" % (head_of_call["kind"], line[fields.start(4) : fields.end(7)])
            file.calls[communicator].append(texts.setdefault(call, call))
    if file.calls:
        # Its Init lines are after the part that was read: a process that calls has been set up.
        file.stage = _COMPLETE
    return file


def _late_in_set_up(files: list[_File], late: list[_File]) -> list[Stuck]:
    ranks = {f.rank for f in files if f.rank is not None}
    size = max(f.nranks for f in files)
    if ranks and len(files) == len(ranks) <= size <= 1 << 16 and len(ranks) < size:
        reason = f"no file of it among {len(files)} of {size} ranks, and {len(late)} wait in their set-up"
        return [Stuck(str(r), "", reason, "medium") for r in range(size) if r not in ranks][:16]
    lowest = min(f.stage for f in late)
    behind = [f for f in late if f.stage == lowest]
    if len(behind) == len(files):
        return []
    reason = f"came no further than {STAGES[lowest]}, others came to {STAGES[max(f.stage for f in files)]}"
    return [f.stuck(reason, "high" if len(behind) <= len(files) // 2 else "low") for f in behind]


def _late_in_calls(files: list[_File]) -> list[Stuck]:
    """Ranks whose last calls are before those of the others, or different from them."""
    names = Counter(name for f in files for name, calls in f.calls.items() if calls)
    several = (name for name, count in names.most_common(32) if count > 1)
    found = (item for name in several for item in _compare(name, [f for f in files if f.calls.get(name)]))
    return list(first_of_each((item.rank, item) for item in found).values())


def _compare(name: str, members: list[_File]) -> Iterable[Stuck]:
    base, fits = _reference(name, members)
    places: dict[str, int] = {}
    for member in members:
        shifts = fits[member.name]
        turned = _turned(member.calls[name], base, abs(shifts[0]) if shifts else MAX_SHIFT)
        if turned:
            yield member.stuck(f"called {_show(turned[0])} where others called {_show(turned[1])}", "medium")
        elif len(shifts) > 1 and abs(shifts[1]) <= abs(shifts[0]) + 1 and len(set(base[-MIN_OVERLAP:])) == 1:
            return  # all alike: only a full count shows how far apart the ranks are
        elif shifts:
            places[member.name] = shifts[0]
    lowest, highest = min(places.values(), default=0), max(places.values(), default=0)
    ahead = sum(place > lowest for place in places.values())
    reason = f"stopped {highest - lowest} calls before the furthest rank, {ahead} ranks called more"
    last = (m for m in members if ahead and places.get(m.name) == lowest)
    yield from (member.stuck(reason, "medium") for member in last)


def _reference(name: str, members: list[_File]) -> tuple[list[bytes], dict[str, list[int]]]:
    """The calls of a rank that most others fit, and where each of them fits."""
    by_end = first_of_each((tuple(m.calls[name][-3:]), m.calls[name]) for m in members)
    bases = [*by_end.values()][: MAX_TURNED + 1]
    called = {m.name: tuple(m.calls[name]) for m in members}
    options = []
    for base in bases:
        fits = {calls: _shifts([*calls], base) for calls in {*called.values()}}  # most ranks called the same
        options.append((base, {m.name: fits[called[m.name]] for m in members}))
    return min(options, key=lambda o: sum(abs(s[0]) if s else 2 * MAX_SHIFT for s in o[1].values()))


def _shifts(calls: list[bytes], base: list[bytes]) -> list[int]:
    """Number of calls by which this rank is ahead (negative: behind), the two nearest; empty if none fits."""
    fits = (
        n
        for n in _NEAREST
        if -len(base) < n < len(calls)
        and calls[-1 - max(n, 0)] == base[-1 + min(n, 0)]  # most fail here, before lists are cut
        and _end_alike(calls[:-n] if n > 0 else calls, base[:n] if n < 0 else base)
    )
    return list(itertools.islice(fits, 2))


def _end_alike(ours: list[bytes], theirs: list[bytes]) -> bool:
    shared = min(len(ours), len(theirs))
    return shared >= MIN_OVERLAP and ours[-shared:] == theirs[-shared:]


def _turned(calls: list[bytes], base: list[bytes], nearer_than: int) -> tuple[bytes, bytes] | None:
    """
    The first of the last few calls that differs from those of the others at that position.

    A loop's calls repeat in every iteration, so a rank that left the loop also fits a whole iteration away:
    the explanation with fewer calls is taken.
    """
    for turned in range(1, min(MAX_TURNED, nearer_than - 1) + 1):
        before = calls[:-turned]
        for left in range(1, min(MAX_TURNED * 2, nearer_than - 1) + 1):
            if _end_alike(before, base[:-left]) and calls[-turned] != base[-left]:
                return calls[-turned], base[-left]
    return None


def _show(call: bytes) -> str:
    return call[:120].decode("utf-8", "replace")
