"""
Dumps of torch's flight recorder in the logs: reads them and selects those of one run.

Only a dump's file name has its rank (`TORCH_NCCL_DEBUG_INFO_TEMP_FILE` or `TORCH_FR_DUMP_TEMP_FILE` and the
rank: nccl_trace_rank_3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ringup.flight_recorder import dump as flight_recorder
from ringup.logs import files
from ringup.logs.files import FileInfo, Unreadable
from ringup.units import grouped

MOST_ENTRIES = 400_000
"""Entries stored of all dumps together, about 200 bytes each; of many dumps the last entries of each."""

APART_S = 60.0
"""Seconds between two ranks' begin of one collective in one run: one rank may come late."""

_RANK = re.compile(r"(\d{1,7})(?:\.[A-Za-z]\w{0,30}){0,4}$")


@dataclass(frozen=True)
class Dump:
    path: str
    rank: int
    flight: flight_recorder.Flight
    written_s: float = 0.0
    """When the file was last written, since 1970: later than the dump if it was copied."""

    @property
    def last_ns(self) -> int:
        """When the last entry was begun."""
        return max((e.begun_ns for e in self.flight.entries), default=0)


@dataclass
class Recorded:
    """The dumps of one run, by rank, and the rejected ones with the reason."""

    dumps: dict[int, Dump] = field(default_factory=dict)
    left_out: list[Unreadable] = field(default_factory=list)

    @property
    def flights(self) -> dict[int, flight_recorder.Flight]:
        """Rank -> the content of its recorder."""
        return {rank: dump.flight for rank, dump in self.dumps.items()}

    def infos(self) -> list[FileInfo]:
        """The dumps as files of a story, for evidence to point at."""
        infos = []
        for dump in self.dumps.values():
            text = f"flight recorder dump of rank {dump.rank}, {len(dump.flight.entries)} entries"
            infos.append(FileInfo(dump.path, last_line=text, rank=dump.rank, is_log=False))
        return infos

    @property
    def last_ns(self) -> int:
        """When any rank last began anything."""
        return max((dump.last_ns for dump in self.dumps.values()), default=0)


def read(paths: Sequence[str]) -> tuple[Recorded, list[Unreadable], list[str]]:
    """The dumps of one run; unreadable ones; and files that only begin like a dump."""
    found: list[Dump] = []
    refused: list[Unreadable] = []
    others: list[str] = []
    nameless: list[Unreadable] = []
    most = max(200, MOST_ENTRIES // max(1, len(paths)))
    for path in paths:
        try:
            data, written_s = files.whole(path, flight_recorder.LONGEST_DUMP_BYTES + 1)
            one = flight_recorder.read(data, most)
        except OSError as exc:
            refused.append(Unreadable(path, exc.strerror or str(exc)))
            continue
        except flight_recorder.FlightError as exc:
            if data[:1] != b"\x80" and b"\n" in data[:4096]:
                others.append(path)  # a log of JSON lines
            else:
                refused.append(Unreadable(path, str(exc)))
            continue
        rank = rank_of(path)
        if rank is None:
            nameless.append(Unreadable(path, "a flight recorder dump whose name tells no rank"))
        else:
            found.append(Dump(path, rank, one, written_s))
    recorded = of_one_run(found)
    recorded.left_out += nameless
    return recorded, refused, others


def rank_of(path: str) -> int | None:
    """
    The number at the end of a file's name, else of its folder's.

    >>> rank_of("/tmp/nccl_trace_rank_12"), rank_of("rank3/dump.json"), rank_of("dump")
    (12, 3, None)
    """
    for name in (Path(path).name, Path(path).parent.name):
        number = _RANK.search(name)
        if number:
            return int(number[1])
    return None


def of_one_run(found: Sequence[Dump]) -> Recorded:
    """The newest set of dumps, without those of another time."""
    sets = _sets(found)
    if not sets:
        return Recorded()
    newest_ns = max(dump.last_ns for dumps in sets for dump in dumps)

    def worth(dumps: list[Dump]) -> tuple[bool, bool, int]:
        last_ns = max(dump.last_ns for dump in dumps)
        placed = any(e.where for dump in dumps for e in dump.flight.entries)
        return newest_ns - last_ns < APART_S * 1e9, placed, len(dumps)

    chosen = max(sets, key=worth)
    reason = "another set of flight recorder dumps is newer or fuller"
    left_out = [Unreadable(dump.path, reason) for dumps in sets if dumps is not chosen for dump in dumps]
    kept: list[Dump] = []
    for dump in sorted(chosen, key=lambda d: -d.last_ns):
        if not kept or any(_fit(dump, other) for other in kept):
            kept.append(dump)
        else:
            left_out.append(Unreadable(dump.path, "a flight recorder dump of another time than the others"))
    return Recorded({dump.rank: dump for dump in sorted(kept, key=lambda d: d.rank)}, left_out)


def _sets(found: Iterable[Dump]) -> list[list[Dump]]:
    """Dumps whose names differ only in the rank; by folder, too, if a rank would occur twice."""
    sets: list[list[Dump]] = []
    for dumps in grouped((_RANK.sub("", Path(dump.path).name), dump) for dump in found).values():
        is_one = len({dump.rank for dump in dumps}) == len(dumps)
        sets += [dumps] if is_one else grouped((Path(dump.path).parent, dump) for dump in dumps).values()
    return sets


def _fit(one: Dump, other: Dump) -> bool:
    """Whether two ranks' dumps can be of one run: they began the same collectives at about the same time."""
    mine, theirs = ({(e.group, e.number): e for e in d.flight.entries if not e.is_p2p} for d in (one, other))
    common = [(e, theirs[key]) for key, e in mine.items() if key in theirs]
    gaps_s = [abs(a.begun_ns - b.begun_ns) / 1e9 for a, b in common if a.begun_ns and b.begun_ns]
    if gaps_s:
        longest_s = max(a.timeout_ms for a, _ in common) / 1000
        return min(gaps_s) <= (APART_S if len(gaps_s) > 2 else max(APART_S, longest_s))
    spans = [sorted(e.begun_ns for e in d.flight.entries if e.begun_ns) for d in (one, other)]
    if not all(spans):
        return True
    gap_ns = max(spans[0][0], spans[1][0]) - min(spans[0][-1], spans[1][-1])
    return gap_ns <= max(e.timeout_ms for d in (one, other) for e in d.flight.entries) * 1e6 + APART_S * 1e9
