"""A timeline as lanes and texts: the shown ranks, a text for each, and the clocks' error."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ringup.draw.lanes import Bar, Sign, lane, marks_of
from ringup.secrets import safe
from ringup.timeline import RankLine, Timeline
from ringup.units import grouped, show_ranks, show_seconds, signal_name

MOST_LANES = 64
PHASES = {
    "launch": "launch and rendezvous", "start": "start, imports", "init": "NCCL set-up", "work": "runs",
    "wait": "waits for other ranks", "bad": "does not come, or calls something else",
    "unknown": "no times recorded",
}  # fmt: skip
ROLES = {
    "missing": "does not come", "differs": "calls something else", "failed": "failed first",
    "named": "named as the cause",
}  # fmt: skip


class Row(NamedTuple):
    label: str
    node: str
    words: str
    picture: str
    """SVG."""
    is_named: bool


def clock_words(timeline: Timeline) -> str:
    """Whether times of different ranks can be compared."""
    if timeline.clock == "order":
        return "The logs have no times: a collective's place is its number, and 1 ms stands for each."
    if timeline.clock == "own":
        nodes = {line.node for line in timeline.ranks}
        if len(timeline.ranks) > 1 and nodes == {""}:
            return "Times are of each node's own clock; the nodes of the ranks are not known."
        if len(nodes) > 1:
            return "Times are of each node's own clock. The clocks of different nodes were not compared."
        return "Times are of the node's own clock."
    times = "All times"
    if len(timeline.dumping_nodes) > 1:
        times = "All times except those of collectives"
    if timeline.clock_error_s is None:
        return f"{times} are on one clock; how far a node's times may be off is not known."
    return f"{times} are on one clock; a node's are off by at most {show_seconds(timeline.clock_error_s)}."


def source_words(timeline: Timeline) -> str:
    if not any(line.tracks for line in timeline.ranks):
        return "No collectives: no flight recorder dump and no NCCL line of a call was found."
    own = ""
    if timeline.clock == "one" and len(timeline.dumping_nodes) > 1:
        own = " Their times are of each node's own clock; the clocks of different nodes were not compared."
    words = {
        "watch": "Collectives: from torch's flight recorder, read while the run hung.",
        "dumps": f"Collectives: from dumps of torch's flight recorder.{own}",
        "lines": "Collectives: from NCCL's lines of calls, which show when each began, not when it ended.",
    }
    return words.get(timeline.source, "")


def about(timeline: Timeline) -> dict[str, Any]:
    started = timeline.started
    at = {} if started is None else {"started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(started))}
    return {**at, "clock": clock_words(timeline), "collectives": source_words(timeline)}


def rank_words(line: RankLine, end_s: float) -> str:
    """The end of a rank, the verdict first."""
    parts = [ROLES[line.role]] if line.role else []
    if line.failed_s is not None:
        parts[-1:] = [f"failed first, {show_seconds(line.failed_s)} after the start"]
    if line.where and line.role == "differs":
        parts[-1] = f"calls {line.where}"
    elif line.where:
        waits = "waits in " if line.waits_s is not None and not line.role else ""
        parts.append(f"{waits}{line.where}")
    elif line.waits_s is not None and not line.role:
        parts.append("waits for other ranks")
    if line.waits_s is not None:
        until = end_s if line.ended_s is None else line.ended_s
        since = max(line.waits_s, line.began_s or 0.0)
        parts[-1] += f" for {show_seconds(max(until - since, 0.0))}"
    if line.began_s is None and line.code is None and line.first_s is None:
        parts.append("no process was seen")
    elif not parts and line.code is None:
        parts.append("no end recorded")
    elif line.code == 0 and "code 0" not in line.where:
        parts.append("finished")
    elif line.code is not None and (line.role == "failed" or not parts):
        parts.append(f"exit code {line.code}" if line.code > 0 else f"ended by {signal_name(-line.code)}")
    return safe(", ".join(parts), 300)


def rows(timeline: Timeline) -> tuple[list[Row], int]:
    """A row for each rank; of many, the named ones and one for each kind; and the number of hidden ranks."""
    lines, end_s = timeline.ranks, timeline.end_s
    groups = [[line] for line in lines]
    if len(lines) > MOST_LANES:
        named = [[line] for line in lines if line.role][: MOST_LANES // 2]
        alike = grouped((_likeness(line, end_s), line) for line in lines if not line.role)
        groups = [*named, *sorted(alike.values(), key=len)][:MOST_LANES]
        groups.sort(key=lambda group: (not group[0].role, group[0].rank))
    stalled_s = min((line.waits_s for line in lines if line.waits_s is not None), default=None)
    return [_row(group, timeline, stalled_s) for group in groups], len(lines) - sum(map(len, groups))


def _likeness(line: RankLine, end_s: float) -> tuple[object, ...]:
    phases = (p for p in line.phases(end_s) if p.to_s > p.from_s)
    return line.code, line.where, *((p.name, round(50 * p.from_s / max(end_s, 1e-9))) for p in phases)


def _row(group: Sequence[RankLine], timeline: Timeline, stalled_s: float | None) -> Row:
    line, end_s = group[0], timeline.end_s
    if len(group) == 1:
        label = line.title
    elif line.name:
        label = f"{len(group)} processes"
    else:
        label = f"{len(group)} ranks ({show_ranks([g.rank for g in group])})"
    nodes = list(dict.fromkeys(one.node for one in group))
    node = safe(nodes[0], 64) if len(nodes) == 1 else f"{len(nodes)} nodes"
    words = rank_words(line, end_s)
    bars, calls = _bars(line, end_s, stalled_s), (at_s for track in line.tracks for at_s in track.begun_s)
    picture = lane(f"{label}: {words}", end_s, bars, line.steps, calls, _signs(line))
    return Row(label, node, words, picture, bool(line.role))


def _bars(line: RankLine, end_s: float, stalled_s: float | None) -> Iterator[Bar]:
    is_bad = stalled_s is not None and line.role in ("missing", "differs")
    bad_s = max(stalled_s or 0.0, line.began_s or 0.0) if is_bad else math.inf
    for phase in line.phases(end_s):
        yield Bar(phase.name, phase.from_s, max(phase.from_s, min(phase.to_s, bad_s)))
    if is_bad:
        yield Bar("bad", bad_s, end_s if line.ended_s is None else line.ended_s)


def _signs(line: RankLine) -> Iterator[Sign]:
    if line.failed_s is not None:
        yield Sign(line.failed_s, "✖", f"first failure, {show_seconds(line.failed_s)}")
    elif line.ended_s is not None:
        shape, words = ("✔", "finished") if line.code == 0 else ("■", "ended")
        yield Sign(line.ended_s, shape, f"{words}, {show_seconds(line.ended_s)}")


def axis(timeline: Timeline) -> list[tuple[float, str]]:
    """Percent and text of the marks of time."""
    marks = marks_of(timeline.end_s)
    return [(place, f"{at_s:g} s" if at_s < 120 else show_seconds(at_s)) for place, at_s in marks]


def legend(timeline: Timeline) -> list[tuple[str, str]]:
    """The fills in use, each with its text; marks have no fill."""
    lines = timeline.ranks
    phases = [phase for line in lines for phase in line.phases(timeline.end_s)]
    found = {phase.name for phase in phases if phase.to_s > phase.from_s}
    named = {"bad"} if any(line.role in ("missing", "differs") for line in lines) else set()
    fills = [(name, words) for name, words in PHASES.items() if name in found | named]
    marks = (
        (any(line.steps for line in lines), "upper ticks: steps"),
        (any(line.tracks for line in lines), "lower ticks: collectives"),
        (any(line.failed_s is not None for line in lines), "✖ first failure"),
        (any(line.ended_s is not None for line in lines), "✔ finished, ■ ended"),
    )
    return [*fills, *(("", words) for occurs, words in marks if occurs)]
