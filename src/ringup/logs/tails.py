"""
Which rank is stuck, from the beginning and the end of each rank's file alone.

Pure.  The beginning tells who a file is (Init lines) and how far its set-up came; the end, the last calls.
Ends are lined up by what was called, since opCount is no number to compare between ranks.  Where that leaves
a doubt it is said: the full count decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ringup.logs.counts.grammar import (
    CALL_MARK,
    INIT,
    POINT_TO_POINT,
    PREFIX,
    STAGE,
    STAGE_INDEX,
    STAGES,
)

HEAD_BYTES = 48 << 10
TAIL_BYTES = 32 << 10
MAX_CALLS = 128
"""Last calls of a file that are looked at: a few iterations' worth is not needed, one is enough."""

MAX_SHIFT = 64
"""Ranks are taken to be at most this many calls apart."""

MIN_OVERLAP = 6
"""Fewer equal calls in a row than this prove nothing."""

MAX_TURNED = 4
"""Calls at the end of a rank that may differ from what the others called there."""

_NEAREST = sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs)

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Ends:
    """The first and last bytes of one rank's file; of a short file they overlap."""

    head: bytes
    tail: bytes
    size_bytes: int


@dataclass(frozen=True)
class Stuck:
    """A rank the others wait for."""

    rank: str
    host: str
    pid: str
    file: str
    reason: str
    line_text: str
    confidence: Confidence


@dataclass(frozen=True)
class Verdict:
    """What the ends of the files tell."""

    stuck: tuple[Stuck, ...] = ()
    cannot_tell: tuple[str, ...] = ()
    stages: dict[str, str] = field(default_factory=dict)
    last_lines: dict[str, str] = field(default_factory=dict)


@dataclass
class _File:
    """One rank's file."""

    name: str
    rank: int | None = None
    nranks: int = 0
    host: str = ""
    pid: str = ""
    stage: int = 0
    last_line: str = ""
    whole: bool = False
    comms: dict[bytes, str] = field(default_factory=dict)
    calls: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    @property
    def title(self) -> str:
        return (
            str(self.rank) if self.rank is not None else f"{self.host}:{self.pid}" if self.pid else self.name
        )


def look(files: Mapping[str, Ends]) -> Verdict:
    """Name the rank that stopped first, as far as the ends of the files tell."""
    found = [_read(name, ends) for name, ends in files.items()]
    stages = {f.name: STAGES[f.stage] for f in found}
    lasts = {f.name: f.last_line for f in found}
    known = [f for f in found if f.stage or f.calls]
    if len(known) < 2:
        return Verdict((), ("fewer than two files hold NCCL's lines",), stages, lasts)
    stuck, doubts = _set_up(known)
    if not stuck and not doubts:
        stuck, doubts = _calls_apart(known)
    return Verdict(tuple(stuck), tuple(doubts), stages, lasts)


# One file


def _read(name: str, ends: Ends) -> _File:
    file = _File(name)
    tail = ends.tail
    file.whole = ends.size_bytes <= len(ends.head)
    for line in ends.head.split(b"\n"):
        if CALL_MARK not in line:
            _read_set_up(file, line)
    prefix = PREFIX.search(ends.head[:4096]) or PREFIX.search(tail[:4096])
    if prefix:
        file.host = prefix["host"].decode("utf-8", "replace")
        file.pid = prefix["pid"].decode()
    lines = (ends.head if file.whole else tail).split(b"\n")
    if not file.whole and ends.size_bytes > len(tail):
        del lines[0]
    last = next((line for line in reversed(lines) if line.strip()), b"")
    file.last_line = last[:1024].decode("utf-8", "replace").rstrip("\r")
    for line in lines if file.whole else lines[-MAX_CALLS:]:
        _read_call(file, line)
    if file.calls and file.stage < STAGE_INDEX["complete"] and not file.whole:
        # Its Init lines lie behind the part that was read: who calls has been set up.
        file.stage = STAGE_INDEX["complete"]
    return file


def _read_set_up(file: _File, line: bytes) -> None:
    stage = STAGE.search(line)
    if not stage:
        return
    file.stage = max(file.stage, STAGE_INDEX[stage.lastgroup or "bootstrap"])
    match = INIT.search(line) if b"- Init " in line else None
    if match:
        if int(match["nranks"][:9]) > file.nranks:
            file.rank, file.nranks = int(match["rank"][:9]), int(match["nranks"][:9])
        id_ = match["id"] or (match["parent"] and b"split %s" % match["color"])
        file.comms[match["pointer"]] = (id_ or b"%s ranks" % match["nranks"]).decode()


def _read_call(file: _File, line: bytes) -> None:
    colon = line.find(CALL_MARK)
    if colon < 0:
        return
    kind = line[line.rfind(b" ", 0, colon) + 1 : colon]
    begin, comm = line.find(b" count ", colon), line.find(b" comm ", colon)
    end = line.find(b" [nranks=", comm)
    if begin < 0 or comm < begin or end < 0 or kind.decode("latin-1") in POINT_TO_POINT:
        return
    name = (
        file.comms.get(line[comm + 6 : end])
        or f"{line[end + 9 : end + 15].partition(b']')[0].decode('latin-1')} ranks"
    )
    file.calls[name].append(kind + line[begin:comm])


# Set-up


def _set_up(files: list[_File]) -> tuple[list[Stuck], list[str]]:
    """Ranks that did not come through the set-up of their communicators."""
    complete = STAGE_INDEX["complete"]
    late = [f for f in files if f.stage < complete]
    if not late:
        return [], []
    absent = _absent(files)
    if absent:
        size = max(f.nranks for f in files)
        reason = f"no file of it among {len(files)} of {size} ranks, and {len(late)} wait in their set-up"
        return [Stuck(str(r), "", "", "", reason, "", "medium") for r in absent[:16]], []
    lowest = min(f.stage for f in late)
    behind = [f for f in late if f.stage == lowest]
    if len(behind) == len(files):
        words = STAGES[lowest]
        return [], [f"no rank came past {words}: the files do not tell which one the others wait for"]
    reason = f"came no further than {STAGES[lowest]}, others came to {STAGES[max(f.stage for f in files)]}"
    sure: Confidence = "high" if len(behind) <= len(files) // 2 else "low"
    return [_stuck(f, reason, sure) for f in behind], []


def _absent(files: list[_File]) -> list[int]:
    ranks = {f.rank for f in files if f.rank is not None}
    size = max(f.nranks for f in files)
    if not ranks or len(files) > size or len(ranks) < len(files) or size > 1 << 16:
        return []
    return [r for r in range(size) if r not in ranks]


def _stuck(file: _File, reason: str, confidence: Confidence) -> Stuck:
    return Stuck(file.title, file.host, file.pid, file.name, reason, file.last_line, confidence)


# Calls


def _calls_apart(files: list[_File]) -> tuple[list[Stuck], list[str]]:
    """Ranks whose last calls lie before, or beside, those of the others."""
    stuck: list[Stuck] = []
    doubts: list[str] = []
    names = Counter(name for f in files for name, calls in f.calls.items() if calls)
    for name, count in names.most_common(32):
        members = [f for f in files if f.calls.get(name)]
        if count < 2:
            continue
        for item in _compare(name, members):
            if isinstance(item, str):
                doubts.append(item)
            elif item.file not in {s.file for s in stuck}:
                stuck.append(item)
    if not names:
        doubts.append("no collective call in the files: NCCL_DEBUG_SUBSYS=INIT,COLL prints them")
    elif not stuck and not doubts:
        doubts.append("all ranks end with the same call")
    return stuck, doubts


def _compare(name: str, members: list[_File]) -> Iterator[Stuck | str]:
    """Members that are behind on one communicator, or sentences about what cannot be told."""
    if all(m.whole for m in members):
        yield from _compare_whole(name, members)
        return
    base, fits = _reference(name, members)
    places: dict[str, int] = {}
    for member in members:
        shifts = fits[member.name]
        turned = _turned(member.calls[name], base, abs(shifts[0]) if shifts else MAX_SHIFT)
        if turned:
            reason = f"called {_show(turned[0])} where others called {_show(turned[1])}"
            yield _stuck(member, reason, "medium")
            continue
        if not shifts:
            yield f"the last calls of rank {member.title} on {name} fit nowhere among those of the others"
            continue
        if len(shifts) > 1 and abs(shifts[1]) <= abs(shifts[0]) + 1 and len(set(base[-MIN_OVERLAP:])) == 1:
            yield (
                f"the last calls on {name} are all alike: how far apart the ranks are only a full count tells"
            )
            return
        places[member.name] = shifts[0]
    yield from _furthest_back(members, places)


def _reference(name: str, members: list[_File]) -> tuple[list[bytes], dict[str, list[int]]]:
    """The calls of a rank that most others fit to, and where each of them fits."""
    best: tuple[list[bytes], dict[str, list[int]]] = ([], {})
    least = float("inf")
    tried: set[tuple[bytes, ...]] = set()
    for candidate in members:
        base = candidate.calls[name]
        end = tuple(base[-3:])
        if end in tried or len(tried) > MAX_TURNED:
            continue
        tried.add(end)
        fits = {m.name: _shifts(m.calls[name], base) for m in members}
        apart = sum(abs(shifts[0]) if shifts else 2 * MAX_SHIFT for shifts in fits.values())
        if apart < least:
            least, best = apart, (base, fits)
    return best


def _furthest_back(members: list[_File], places: dict[str, int]) -> Iterator[Stuck]:
    lowest, highest = min(places.values(), default=0), max(places.values(), default=0)
    if lowest == highest:
        return
    ahead = sum(p > lowest for p in places.values())
    for member in members:
        if places.get(member.name) == lowest:
            reason = f"stopped {highest - lowest} calls before the furthest rank, {ahead} ranks called more"
            yield _stuck(member, reason, "medium")


def _compare_whole(name: str, members: list[_File]) -> Iterator[Stuck | str]:
    """Every call is in view: the exact place."""
    shortest = min(len(m.calls[name]) for m in members)
    for i in range(shortest):
        here = Counter(m.calls[name][i] for m in members)
        if len(here) > 1:
            usual = here.most_common(1)[0][0]
            for member in members:
                call = member.calls[name][i]
                if call != usual:
                    reason = f"called {_show(call)} as number {i} where others called {_show(usual)}"
                    yield _stuck(member, reason, "high")
            return
    places = {m.name: len(m.calls[name]) for m in members}
    yield from _furthest_back(members, places)


def _shifts(calls: list[bytes], base: list[bytes]) -> list[int]:
    """By how many calls this rank is ahead (negative: behind), nearest first; empty where nothing fits."""
    fits = []
    for shift in _NEAREST:
        if shift > 0 and (len(calls) <= shift or calls[-1 - shift] != base[-1]):
            continue
        if shift <= 0 and (len(base) <= -shift or calls[-1] != base[-1 + shift]):
            continue
        ours, theirs = (calls[:-shift], base) if shift > 0 else (calls, base[:shift] if shift else base)
        shared = min(len(ours), len(theirs))
        if shared >= MIN_OVERLAP and ours[-shared:] == theirs[-shared:]:
            fits.append(shift)
            if len(fits) == 2:
                break
    return fits


def _turned(calls: list[bytes], base: list[bytes], nearer_than: int) -> tuple[bytes, bytes] | None:
    """
    The first of the last few calls that differs from what the others called there.

    A loop's calls come again every iteration, so a rank that turned off also fits a whole iteration away:
    the explanation with fewer calls is taken.
    """
    for turned in range(1, min(MAX_TURNED, nearer_than - 1) + 1):
        before = calls[:-turned]
        for left in range(1, min(MAX_TURNED * 2, nearer_than - 1) + 1):
            theirs = base[:-left]
            shared = min(len(before), len(theirs))
            equal = shared >= MIN_OVERLAP and before[-shared:] == theirs[-shared:]
            if equal and calls[-turned] != base[-left]:
                return calls[-turned], base[-left]
    return None


def _show(call: bytes) -> str:
    """
    A call in short.

    >>> _show(b"AllReduce count 8 datatype 7 op 0 root 0")
    'AllReduce count 8 datatype 7 op 0 root 0'
    """
    return call[:120].decode("utf-8", "replace")
