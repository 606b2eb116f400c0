"""
Collectives, steps and NCCL's set-up with their times: from a log, from dumps, from a run's own record.

A log is read again line by line, because `logs` only counts calls.  Its lines get times from the run's record
of file lengths, else from their own stamps, else none.
"""

from __future__ import annotations

import functools
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ringup.logs.grammar import CALL_MARK, HEAD, INIT, POINT_TO_POINT, step_in
from ringup.logs.lines import seconds_of
from ringup.timeline import PENDING, UNKNOWN, Kind, Seconds, Track
from ringup.timeline.marks import RecordedCall

_BYTES_OF = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8e4m3", "float8e5m2",
)  # fmt: skip
"""ncclDataType_t (nccl.h, 2.4 to 2.30): the log line of a call has its number."""
_SIZES = {
    **dict.fromkeys(("Double", "Long"), 8),
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Half", "BFloat16"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
}
"""Sizes in bytes of c10::ScalarType, by the flight recorder's names."""
_ASKED = re.compile(
    rb" count (\d+) datatype (\d+) op \d+ root (-?\d+) comm (0x[0-9a-fA-F]+|\(nil\)) \[nranks=(\d+)\]"
)
_STEP = re.compile(rb"(?i)step|iter|epoch")
ORDER_S = 0.001
"""Length of a call in a log without times: its position is its number, not its time."""
MOST_STEP_BYTES = 512
LONGEST_STAMP = 40


class Group(NamedTuple):
    """A communicator of a process: its name, its number of ranks, and its owner."""

    name: str
    ranks: int
    rank: int | None


Places = Mapping[tuple[str, str, int], Group]
"""(pid, pointer, number of earlier uses of the pointer) -> its group."""


Kinds = dict[Kind, int]
"""The kinds of calls of a timeline, without duplicates, with their numbers."""


@dataclass
class FileCalls:
    """Content of a log: calls by rank and group, steps, NCCL's set-up by rank, first and last time."""

    tracks: dict[tuple[int | None, str], Track] = field(default_factory=dict)
    steps: Seconds = field(default_factory=lambda: array("d"))
    init_s: dict[int, list[float]] = field(default_factory=dict)
    """When the first set-up of a rank began, and when it ended (infinite if it did not)."""
    first_s: float = math.inf
    last_s: float = -math.inf
    has_times: bool = False


@functools.lru_cache(maxsize=1 << 14)
def _stamp_s(head: bytes) -> float | None:
    return seconds_of(head.decode("utf-8", "replace"))


class CallReader:
    """Reads one log; `time_of` gives the time of a byte, None for stamps or no times at all."""

    def __init__(
        self, kinds: Kinds, places: Places, owner: int | None, time_of: Callable[[int], float | None] | None
    ) -> None:
        self._kinds, self._places, self._owner, self._time_of = kinds, places, owner, time_of
        self.found = FileCalls(has_times=time_of is not None)
        self._offset = self._made = 0
        self._known: dict[bytes, dict[bytes, tuple[Track, int, bool]]] = {}
        self._uses: dict[tuple[str, str], int] = {}
        self._closed: set[tuple[str, str, int]] = set()
        """Set up, or called on: the next set-up at the same pointer is of another communicator."""

    def read(self, blocks: Iterable[bytes]) -> FileCalls:
        rest = b""
        for block in blocks:
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._line(line)
                self._offset += len(line) + 1
            if len(rest) > 1 << 20:  # a file without line ends is not a log
                self._offset, rest = self._offset + len(rest), b""
        self._line(rest)
        return self.found

    def _line(self, line: bytes) -> None:
        mark = line.find(CALL_MARK)
        if mark >= 0 and self._call(line, mark):
            return
        init = INIT.search(line) if b"- Init " in line else None
        if init:
            self._init(init, line)
        elif len(line) <= MOST_STEP_BYTES and _STEP.search(line) and step_in(line):
            at_s = self._time(line)
            if at_s is not None:
                self.found.steps.append(at_s)

    def _time(self, line: bytes) -> float | None:
        found = self.found
        if self._time_of is not None:
            at_s = self._time_of(self._offset)
        else:
            at_s = _stamp_s(line[:LONGEST_STAMP])
            found.has_times |= at_s is not None
        if at_s is not None:
            found.first_s, found.last_s = min(found.first_s, at_s), max(found.last_s, at_s)
        return at_s

    def _call(self, line: bytes, mark: int) -> bool:
        asked = line.find(b" count ", mark)
        head = line[:mark]
        rests = self._known.get(head)
        if rests is None:
            if len(self._known) > 1 << 14:
                self._known.clear()
            rests = self._known[head] = {}
        known = rests.get(line[asked:])
        if known is None:
            made = self._made_of(line, mark, asked)
            if made is None:
                return False
            if len(rests) > 1 << 14:
                rests.clear()
            known = rests[line[asked:]] = made
        track, kind, is_counted = known
        number = len(track.number) + 1
        at_s = self._time(line)
        if at_s is None:  # at the time of the previous line; if no line has one, in order
            at_s = max(self.found.last_s, 0.0) if self.found.has_times else number * ORDER_S
        track.add(at_s, UNKNOWN, number * is_counted, kind)
        return True

    def _made_of(self, line: bytes, mark: int, asked: int) -> tuple[Track, int, bool] | None:
        heads = list(HEAD.finditer(line[: mark + len(CALL_MARK)]))
        fields = _ASKED.match(line, asked) if asked >= 0 else None
        if not heads or not fields:
            return None
        head = heads[-1]
        pid, pointer, op = (head["pid"] or b"").decode(), fields[4].decode(), head["kind"].decode()
        place = (pid, pointer, self._uses.get((pid, pointer), 0))
        self._closed.add(place)
        group = self._places.get(place) or Group(f"{pid} {pointer}", int(fields[5][:9]), None)
        rank = self._owner if self._owner is not None else group.rank
        is_p2p = op in POINT_TO_POINT
        key = (rank, f"{group.name} {op}" if is_p2p else group.name)
        track = self.found.tracks.setdefault(key, Track(key[1], group.ranks))
        number = min(int(fields[2][:3]), len(_TYPES))
        dtype = _TYPES[number] if number < len(_TYPES) else f"type {number}"
        size = int(fields[1][:18]) * _BYTES_OF[number] if number < len(_BYTES_OF) else -1
        peer = fields[3].decode() if is_p2p else ""
        kind = Kind(op, f"[{fields[1][:18].decode()}] {dtype}", size, "", peer)
        return track, self._kinds.setdefault(kind, len(self._kinds)), not is_p2p

    def _init(self, init: re.Match[bytes], line: bytes) -> None:
        is_start = init["state"] == b"START"
        pid = re.search(rb":(\d+):\d+ ", line[: init.start()][-200:])
        place = (pid[1].decode() if pid else "", init["pointer"].decode())
        uses = self._uses.get(place, 0)
        if is_start or (*place, uses) in self._closed:  # numbered as in `logs.counts`
            uses = self._uses[place] = uses + 1
        self._known.clear()
        if not is_start:
            self._closed.add((*place, uses))
        group = self._places.get((*place, uses))
        rank = self._owner if self._owner is not None else group.rank if group else None
        at_s = self._time(line)
        if rank is None or at_s is None:
            return
        if is_start:
            self.found.init_s.setdefault(rank, [at_s, PENDING])
        elif rank in self.found.init_s:
            begun_s, ended_s = self.found.init_s[rank]
            self.found.init_s[rank] = [begun_s, min(ended_s, at_s)]


def _shown(op: str, sizes: Sequence[Sequence[int]], dtypes: Sequence[str], where: str) -> Kind:
    words = [*(str(list(size)) for size in sizes[:4]), ", ".join(sorted(set(dtypes))[:4])]
    each = [math.prod(size) * _SIZES.get(dtype, -1) for size, dtype in zip(sizes, dtypes, strict=False)]
    size_bytes = sum(each) if each and min(each) >= 0 else -1
    name, _, peers = op.partition(" ")
    return Kind(name, " ".join(filter(None, words)), size_bytes, where, peers)


def recorded(calls: Iterable[RecordedCall], kinds: Kinds) -> Iterator[Track]:
    """The tracks of a rank's flight recorder; each direction of transfers has its own track."""
    tracks: dict[str, Track] = {}
    for call in calls:
        group = f"{call.group} {call.op}" if call.is_p2p else call.group
        track = tracks.setdefault(group, Track(group))
        ended_s = UNKNOWN if call.is_done else PENDING
        ended_s = ended_s if call.ended_s is None else max(call.begun_s, call.ended_s)
        kind = kinds.setdefault(_shown(call.op, call.sizes, call.dtypes, call.where), len(kinds))
        track.add(call.begun_s, ended_s, 0 if call.is_p2p else call.number, kind)
    yield from tracks.values()
