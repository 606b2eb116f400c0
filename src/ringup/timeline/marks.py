"""
Times of a run's events: `times.jsonl` in its folder, one JSON object per line, written during the run.

Times are seconds of one clock, the launching machine's (for a detached run, its head node's).  The record of
a node's ranks has the error of that node's clock.  For output, the length of each file is recorded from time
to time, so that every byte of a log has a time, but the record stays far smaller than the output.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import msgspec

from ringup.flight_recorder.dump import Entry, Flight

FILE = "times.jsonl"
LEAST_GAP_S = 0.2
MARKS = 500
"""Most records of a file's length per the time since the run began."""
MOST_CALLS = 2000
"""Of a rank's flight recorder."""
LARGEST_BYTES = 512 << 20
LATEST_S = 1e12
"""Later times are invalid."""


class Began(msgspec.Struct, tag_field="what", tag="began"):
    at_s: float


class RankBegan(msgspec.Struct, tag_field="what", tag="rank"):
    at_s: float
    rank: int
    node: str
    file: str
    error_s: float | None
    """Error of its node's clock; None if unknown."""


class OwnRank(msgspec.Struct, tag_field="what", tag="own"):
    """A rank that the run's script started itself; `at_s`: when it began."""

    at_s: float
    rank: int
    """Negative if only the script knows it."""
    pid: int
    node: str
    error_s: float | None


class RankEnded(msgspec.Struct, tag_field="what", tag="exit"):
    at_s: float
    rank: int
    code: int


class Written(msgspec.Struct, tag_field="what", tag="output"):
    """A file's length at a time; the bytes since the previous record came from `since_s` on."""

    at_s: float
    since_s: float
    file: str
    bytes: int


class Used(msgspec.Struct, tag_field="what", tag="used"):
    """A rank's counters, with its descendants', since it began."""

    at_s: float
    rank: int
    cpu_s: float
    io_bytes: int


class RecordedCall(msgspec.Struct, array_like=True):
    group: str
    number: int
    is_p2p: bool
    op: str
    sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    where: str
    is_done: bool
    begun_s: float
    ended_s: float | None
    """None if it has not ended, or its end has no time."""


def recorded_calls(entries: Iterable[Entry], began_ns: int) -> Iterator[RecordedCall]:
    """Entries of a dump with a time, in seconds since `began_ns` by the clock of the rank's node."""
    for one in entries:
        if one.begun_ns:
            ended_s = round((one.ended_ns - began_ns) / 1e9, 6) if one.ended_ns else None
            begun_s = round((one.begun_ns - began_ns) / 1e9, 6)
            yield RecordedCall(*one[:6], one.where, one.is_done, begun_s, ended_s)


class Calls(msgspec.Struct, tag_field="what", tag="calls"):
    """The content of a rank's flight recorder; a later record replaces an earlier one."""

    at_s: float
    rank: int
    calls: list[RecordedCall]


Mark = Began | RankBegan | OwnRank | RankEnded | Written | Used | Calls


@dataclass
class _Growing:
    """A file of output; `noted_s`: its length was last recorded, `since_s`: more came after that."""

    at_s: float = float("-inf")
    bytes: int = 0
    noted_s: float = float("-inf")
    since_s: float = 0.0


class Recorder:
    """Records times; `write` gets whole lines, and does not block."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._began_s: float | None = None
        self._files: dict[str, _Growing] = {}

    def note(self, mark: Mark) -> None:
        if isinstance(mark, Began):
            self._began_s = mark.at_s
        if isinstance(mark, RankEnded):
            self.flush()
        self._write(msgspec.json.encode(mark) + b"\n")

    def output(self, file: str, at_s: float, size_bytes: int) -> None:
        """Output came; its time is recorded if the last record is old enough, and after a silence."""
        known = self._files.setdefault(file, _Growing())
        if self._began_s is None:  # a detached run's begin is replayed after its first output
            self._began_s = at_s
        gap_s = max(LEAST_GAP_S, (at_s - self._began_s) / MARKS)
        is_due = at_s - known.noted_s >= gap_s
        if at_s - known.at_s >= gap_s and known.at_s > known.noted_s:
            self._note_length(file, known)
        if known.at_s <= known.noted_s:
            known.since_s = at_s
        known.at_s = at_s
        known.bytes += size_bytes
        if is_due:
            self._note_length(file, known)

    def flush(self) -> None:
        for file, known in self._files.items():
            if known.at_s > known.noted_s:
                self._note_length(file, known)

    def _note_length(self, file: str, known: _Growing) -> None:
        known.noted_s = known.at_s
        self.note(Written(known.at_s, known.since_s, file, known.bytes))

    def calls(self, at_s: float, wall_ns: int, rank: int, flight: Flight) -> None:
        """The content of a rank's flight recorder; `at_s` on the run's clock is `wall_ns` on its node's."""
        began_ns = wall_ns - round(at_s * 1e9)
        self.note(Calls(at_s, rank, [*recorded_calls(flight.entries[-MOST_CALLS:], began_ns)]))


def byte_s(lengths: Sequence[Written], offset: int) -> float | None:
    """About when a byte of a file came, by its recorded lengths; None after the last one."""
    place = bisect_right(lengths, offset, key=attrgetter("bytes"))
    if place >= len(lengths):
        return None
    before, found = lengths[place - 1].bytes if place else 0, lengths[place]
    share = (offset - before) / (found.bytes - before)
    return found.since_s + (found.at_s - found.since_s) * share


@dataclass
class Times:
    """The record of a run; times in seconds since it began."""

    ranks: dict[int, RankBegan] = field(default_factory=dict)
    ends: dict[int, RankEnded] = field(default_factory=dict)
    files: dict[str, list[Written]] = field(default_factory=dict)
    """Recorded lengths, which give each byte a time (`byte_s`)."""
    used: dict[int, list[Used]] = field(default_factory=dict)
    calls: dict[int, Calls] = field(default_factory=dict)
    own: list[OwnRank] = field(default_factory=list)

    def of_rank(self, rank: int) -> Sequence[Written]:
        return self.files.get(self.ranks[rank].file, ()) if rank in self.ranks else ()


def read(folder: Path) -> Times | None:
    """The record in a run's folder, without unreadable lines.  None if there is none."""
    path, decoder = folder / FILE, msgspec.json.Decoder(Mark)
    found, began_s = Times(), 0.0
    try:
        if not path.is_file() or path.stat().st_size > LARGEST_BYTES:
            return None
        for is_begin in (True, False):  # it may come late
            with path.open("rb") as file:
                for line in file:
                    if is_begin and b'"began"' not in line:
                        continue
                    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                        mark = decoder.decode(line)
                        if isinstance(mark, Began):
                            began_s = mark.at_s
                        elif not is_begin and abs(mark.at_s) < LATEST_S:
                            mark.at_s -= began_s
                            _add(found, mark, began_s)
    except OSError:
        return None
    return found if found.ranks or found.own else None


def _add(found: Times, mark: Mark, began_s: float) -> None:
    if isinstance(mark, RankBegan):
        found.ranks[mark.rank] = mark
    elif isinstance(mark, OwnRank):
        found.own.append(mark)
    elif isinstance(mark, RankEnded):
        found.ends[mark.rank] = mark
    elif isinstance(mark, Used):
        found.used.setdefault(mark.rank, []).append(mark)
    elif isinstance(mark, Written):
        lengths = found.files.setdefault(mark.file, [])
        if not lengths or mark.bytes > lengths[-1].bytes:
            mark.since_s -= began_s
            lengths.append(mark)
    elif isinstance(mark, Calls):
        mark.calls = [call for call in mark.calls if abs(call.begun_s) + abs(call.ended_s or 0) < LATEST_S]
        for call in mark.calls:
            call.begun_s -= began_s
            call.ended_s = None if call.ended_s is None else call.ended_s - began_s
        found.calls[mark.rank] = mark
