"""
A timeline as Chrome trace events, for Perfetto and chrome://tracing.

One process per node, one thread per rank, and one thread for each of its groups, because slices of one thread
must nest (google/perfetto#4280).  Numbers of processes, threads and arrows begin at 1.  Format: Perfetto's
documentation, "Other formats", Chrome JSON.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ringup.flight_recorder.compare import show_group
from ringup.secrets import safe
from ringup.timeline import PENDING, Kind, RankLine, Seconds, Timeline, Track
from ringup.version import __version__

UNKNOWN_END_S = 1e-6
"""Drawn length of a call with an unknown end; its arguments say so."""
BATCH = 4096
MOST_NUMBERS = 1 << 24
"""Between a group's first and last collective; a larger range gets no arrows."""

NAMES = {
    "launch": "launch and rendezvous", "start": "start", "init": "NCCL set-up", "work": "run",
    "wait": "waits for other ranks", "unknown": "run (no times recorded)",
}  # fmt: skip


def document(timeline: Timeline, about: dict[str, Any]) -> Iterator[str]:
    """The file's text in pieces; `about` is for its reader."""
    head = json.dumps({"ringup": __version__, **{key: safe(str(value)) for key, value in about.items()}})
    yield f'{{"displayTimeUnit":"ms","otherData":{head},"traceEvents":[\n'
    every = events(timeline)
    separator = ""
    while batch := list(islice(every, BATCH)):
        yield separator + ",\n".join(batch)
        separator = ",\n"
    yield "\n]}\n"


def events(timeline: Timeline) -> Iterator[str]:
    """Each event as JSON; the events of one thread in order of time."""
    nodes = {node: pid for pid, node in enumerate(dict.fromkeys(line.node for line in timeline.ranks), 1)}
    for node, pid in nodes.items():
        yield _meta("process_name", pid, 0, name=safe(node) or "node")
        yield _meta("process_sort_index", pid, 0, sort_index=pid)
    slices = {id(track): _slices(track, timeline.end_s) for line in timeline.ranks for track in line.tracks}
    arrows = _arrows(timeline, slices)
    tid = max((line.rank for line in timeline.ranks), default=0) + 1
    order = 0
    for line in timeline.ranks:
        pid = nodes[line.node]
        own = [(line.rank + 1, line.title)]
        own += [(tid + n, f"{line.title}: {_shown(track.group)}") for n, track in enumerate(line.tracks, 1)]
        for number, name in own:
            order += 1
            yield _meta("thread_name", pid, number, name=name)
            yield _meta("thread_sort_index", pid, number, sort_index=order)
        yield from _rank_events(line, pid, timeline.end_s)
        for track in line.tracks:
            tid += 1
            drawn, arrow = slices[id(track)], arrows.get(track.group)
            yield from _calls(timeline, line, track, (pid, tid), drawn, arrow)


def _shown(group: str) -> str:
    """
    A group's name, and of transfers their way.

    >>> _shown("1:undefined"), _shown("0:default_pg send 0->1"), _shown("0x6a")
    ('group 1', 'default_pg send 0->1', '0x6a')
    """
    name, _, way = group.partition(" ")
    return safe(f"{show_group(name) if ':' in name else name} {way}".rstrip())


def _meta(what: str, pid: int, tid: int, **args: object) -> str:
    return json.dumps({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": args})


def _rank_events(line: RankLine, pid: int, end_s: float) -> Iterator[str]:
    base = {"pid": pid, "tid": line.rank + 1}
    for phase in line.phases(end_s):
        if phase.to_s > phase.from_s:
            long = {"ts": _us(phase.from_s), "dur": round(_us(phase.to_s) - _us(phase.from_s), 1)}
            args = {"where": safe(line.where)} if phase.name == "wait" and line.where else {}
            of = {"name": NAMES[phase.name], "cat": "phase", "ph": "X"}
            yield json.dumps({**of, **base, **long, "args": args})
    end = "still running" if line.code is None else f"ended with {line.code}"
    moments: list[tuple[float, str, dict[str, float]]] = [(at_s, "step", {}) for at_s in line.steps]
    error = {} if line.clock_error_s is None else {"clock_error_us": _us(line.clock_error_s)}
    marked = [(line.failed_s, "first failure"), (line.last_s, "last output or call"), (line.ended_s, end)]
    moments += [(at_s, name, error) for at_s, name in marked if at_s is not None]
    for at_s, name, more in sorted(moments, key=lambda one: one[0]):
        instant = {"name": name, "cat": "moment", "ph": "i", "s": "t", **base, "ts": _us(at_s), "args": more}
        yield json.dumps(instant)
    for first, second in zip(line.use, line.use[1:], strict=False):
        took_s = second.at_s - first.at_s
        used = {"CPUs": second.cpu_s - first.cpu_s, "bytes per s": second.io_bytes - first.io_bytes}
        for name, value in used.items() if took_s > 0 else ():
            counter = {"name": f"{line.title} {name}", "ph": "C", **base, "ts": _us(first.at_s)}
            yield json.dumps({**counter, "args": {"value": round(value / took_s, 3)}})


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _slices(track: Track, end_s: float) -> tuple[Seconds, Seconds]:
    """
    Begin and drawn length of each call, so that slices of a thread nest.

    A group runs one call after the other: a call that began during another one is drawn from the other's end.
    Calls that have not ended all last to the end of the run.
    """
    begins, lengths, free_s = array("d"), array("d"), 0.0
    for begun_s, ended_s in zip(track.begun_s, track.ended_s, strict=True):
        begin_s = begun_s if begun_s > free_s else free_s
        if ended_s == PENDING:
            stop_s = end_s if end_s > begin_s else begin_s
            free_s = begin_s
        else:
            stop_s = ended_s if ended_s > begin_s else begin_s + UNKNOWN_END_S
            free_s = stop_s
        begins.append(begin_s)
        lengths.append(stop_s - begin_s)
    return begins, lengths


@dataclass
class _Arrow:
    """For each collective of a group, by number: the first and the last rank that called it, and when."""

    least: int
    """The first number."""
    ids: int
    """Number of its arrow, minus one."""
    first_s: Seconds
    last_s: Seconds
    first: array[int]
    last: array[int]


def _arrows(timeline: Timeline, slices: Mapping[int, tuple[Seconds, Seconds]]) -> dict[str, _Arrow]:
    """Arrows by group, from the first rank, which waits, to the last one."""
    numbers: dict[str, tuple[int, int]] = {}
    for track in (track for line in timeline.ranks for track in line.tracks if max(track.number, default=0)):
        least, most = numbers.get(track.group, (track.number[0], 0))
        numbers[track.group] = min(least, track.number[0]), max(most, track.number[-1])
    found, ids = {}, 0
    for group, (least, most) in numbers.items():
        count = most - least + 1
        if count <= MOST_NUMBERS:
            times = array("d", [math.inf]) * count, array("d", [-math.inf]) * count
            found[group] = _Arrow(least, ids, *times, array("q", [-1]) * count, array("q", [-1]) * count)
            ids += count
    for line in timeline.ranks:
        for track in line.tracks:
            if arrow := found.get(track.group):
                _add_calls(arrow, line.rank, track.number, slices[id(track)][0])
    return found


def _add_calls(arrow: _Arrow, rank: int, numbers: array[int], begins: Seconds) -> None:
    least, first_s, last_s, first, last = arrow.least, arrow.first_s, arrow.last_s, arrow.first, arrow.last
    for number, begin_s in zip(numbers, begins, strict=True):
        place = number - least
        if 0 <= place < len(first_s):
            if begin_s < first_s[place]:
                first_s[place], first[place] = begin_s, rank
            if begin_s > last_s[place]:
                last_s[place], last[place] = begin_s, rank


def _heads(kinds: Sequence[Kind], thread: str, group: str) -> list[tuple[str, str]]:
    """The constant beginning of each kind's events, and their constant arguments."""
    found = []
    for kind in kinds:
        category = "transfer" if kind.peers else "collective"
        args: dict[str, object] = {"group": safe(group)}
        args |= {"what": safe(kind.what)} if kind.what else {}
        args |= {"bytes": kind.size_bytes} if kind.size_bytes >= 0 else {}
        args |= {"peers": safe(kind.peers)} if kind.peers else {}
        args |= {"where": safe(kind.where)} if kind.where else {}
        head = f'{{"ph":"X","name":{json.dumps(safe(kind.op))},"cat":"{category}",{thread},"ts":'
        found.append((head, json.dumps(args)[1:-1]))
    return found


def _calls(
    timeline: Timeline,
    line: RankLine,
    track: Track,
    thread: tuple[int, int],
    drawn: tuple[Seconds, Seconds],
    arrow: _Arrow | None,
) -> Iterator[str]:
    """The slices of a track, and the ends of its arrows."""
    place_of = f'"pid":{thread[0]},"tid":{thread[1]}'
    peers = f',"ranks":{track.ranks}' if track.ranks else ""
    heads = _heads(timeline.kinds, place_of, track.group)
    margin_s = 2 * max((one.clock_error_s or 0.0 for one in timeline.ranks), default=0.0)
    if len(timeline.dumping_nodes) > 1:
        margin_s = math.inf
    rows = zip(track.number, track.kind, track.ended_s, *drawn, strict=True)
    for number, kind, ended_s, begin_s, long_s in rows:
        head, args = heads[kind]
        unended = "not ended" if ended_s == PENDING else "not known"
        state = "" if ended_s < PENDING else f',"end":"{unended}"'
        # Both ends are rounded, so that a slice never ends after the next one begins.
        begin, end = round(begin_s * 1e7), round((begin_s + long_s) * 1e7)
        ts = begin / 10
        yield f'{head}{ts},"dur":{(end - begin) / 10},"args":{{{args},"number":{number}{peers}{state}}}}}'
        place = number - arrow.least if arrow and number else -1
        if arrow is None or not 0 <= place < len(arrow.first):
            continue
        if arrow.last_s[place] - arrow.first_s[place] > margin_s:
            flow = f'"name":"waits for","cat":"flow","id":{arrow.ids + place + 1},{place_of},"ts":{ts}'
            if arrow.first[place] == line.rank:
                yield f'{{"ph":"s",{flow}}}'
            elif arrow.last[place] == line.rank:
                yield f'{{"ph":"f","bp":"e",{flow}}}'
