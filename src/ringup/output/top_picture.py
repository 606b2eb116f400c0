"""The picture of `ringup top`, as lines that fit a screen of a given size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ringup.hang.rank_rows import RowLine, state_counts
from ringup.hang.watched_node import GpuUse
from ringup.hosts.folding import folded
from ringup.output import terminal
from ringup.units import grouped, plural, printable, ranges, show_bytes, show_seconds, summarize_names

LEAST_WHERE = 36
"""Characters for a rank's place; other columns are left out if there are fewer."""
MOST_NOTES = 4
LEAST_ROWS = 6
TAIL_SHARE = 0.3
"""Share of the screen's height for the last lines of the chosen rank."""
COLOURS = {
    **dict.fromkeys(("missing", "failed", "exited", "gone", "stopped"), "error"),
    **dict.fromkeys(("blocked", "not seen", "idle"), "warning"),
    "done": "ok",
    "new": "dim",
}
KEYS = "q leave  s stacks now  f fold  Enter open  / filter  e end the run"


@dataclass(frozen=True)
class View:
    """The content of the picture; every text is safe for a terminal."""

    title: str
    verdict: tuple[str, ...]
    """The first line in its `colour`, then details."""
    colour: str
    lines: Sequence[RowLine]
    rates: Mapping[str, Mapping[str, float]]
    """Node -> interface -> bytes a second."""
    notes: Sequence[str] = ()
    stacks_age_s: float | None = None
    chosen: int = 0
    tail: Sequence[str] = ()
    """Last lines of the chosen rank."""
    no_tail: str = ""
    """Why they are not known."""
    prompt: str = ""
    """Shown instead of the keys."""


def _span(values: Iterable[float | None], unit: str = "") -> str:
    """
    The least and the greatest, as whole numbers; "" if unknown.

    >>> _span([97.2, 100.0, None], "%"), _span([3.0]), _span([None])
    ('97-100%', '3', '')
    """
    known = sorted(round(value) for value in values if value is not None)
    if not known:
        return ""
    return f"{known[0]}{unit}" if known[0] == known[-1] else f"{known[0]}-{known[-1]}{unit}"


def _rate(per_s: float) -> str:
    """
    Steps per second, or the time of one.

    >>> _rate(12.3), _rate(0.25), _rate(0.0)
    ('12.3/s', '4.0 s each', 'none')
    """
    return f"{per_s:.3g}/s" if per_s >= 1 else f"{show_seconds(1 / per_s)} each" if per_s > 0 else "none"


def _size(values: Iterable[int]) -> str:
    most = max(values, default=0)
    return show_bytes(most).replace(" ", "") if most else ""


def _gpu_memory(used: Sequence[GpuUse]) -> str:
    """
    The most that a rank uses; if a rank's share is unknown, at most the use of all together.

    >>> _gpu_memory([GpuUse(97.0, 60 << 30, 9 << 30)]), _gpu_memory([GpuUse(97.0, 60 << 30, None)])
    ('9GiB', '≤60GiB')
    """
    own = [one.own_bytes for one in used if one.own_bytes is not None]
    return _size(own) if len(own) == len(used) else f"≤{_size(one.all_bytes for one in used)}"


def network(nodes: Iterable[str], rates: Mapping[str, Mapping[str, float]]) -> str:
    """
    Each interface with its rate, the fastest first; of several nodes the range.

    >>> network(["a", "b"], {"a": {"ib0": 2 << 30, "em1": 900}, "b": {"ib0": 1 << 30}})
    'ib0 1 GiB/s-2 GiB/s, em1 900 B/s'
    """
    found = grouped(rate for node in dict.fromkeys(nodes) for rate in rates.get(node, {}).items())
    parts = []
    for name, values in sorted(found.items(), key=lambda pair: -max(pair[1])):
        least, most = (f"{show_bytes(value)}/s" for value in (min(values), max(values)))
        parts.append(f"{name} {least if least == most else f'{least}-{most}'}")
    return ", ".join(parts)


def _cells(line: RowLine, rates: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    rows = line.rows
    numbers = [row.rank for row in rows if row.rank >= 0]
    states, places = state_counts(rows), Counter(row.where for row in rows)
    steps = [row.step for row in rows]
    speed = [row.steps_per_s for row in rows if row.steps_per_s is not None]
    names = rows[0].name if len(rows) == 1 else f"{len(rows)} processes"
    names = ranges(numbers) if len(numbers) == len(rows) else names
    mark = "  " if line.is_inner else "- " if line.is_open else "+ " if len(rows) > 1 else "  "
    return {
        "RANKS": mark + (names if len(names) <= 16 else f"{len(rows)} ({names[:9]}…)"),
        "NODE": folded(dict.fromkeys(row.node for row in rows if row.node)),
        "STATE": ", ".join(f"{n} {state}" if len(states) > 1 else state for state, n in states.items()),
        "STEP": _span(steps),
        "SPEED": _rate(min(speed)) if speed else "",
        "CPU": _span((row.cpu_percent for row in rows), "%"),
        "GPU": _span((row.gpu.busy_percent for row in rows if row.gpu), "%"),
        "GPUMEM": _gpu_memory([row.gpu for row in rows if row.gpu]),
        "MEM": _size(row.memory_bytes for row in rows),
        "NET": network((row.node for row in rows), rates),
        "WHERE": summarize_names((place for place, _ in places.most_common() if place), 1, "; "),
    }


COLUMNS = ("RANKS", "NODE", "STATE", "STEP", "SPEED", "CPU", "GPU", "GPUMEM", "MEM", "NET", "WHERE")
LEFT_OUT = ("MEM", "NET", "GPUMEM", "NODE", "SPEED", "STEP", "GPU", "CPU")
"""Columns that a narrow screen leaves out, in this order.  The details of the chosen line have them."""
WIDEST = {"NODE": 20, "NET": 32, "STATE": 30}


def table(lines: Sequence[RowLine], rates: Mapping[str, Mapping[str, float]], width: int) -> list[str]:
    """A heading, and a text for each line, none wider than `width`."""
    cells = [_cells(line, rates) for line in lines]
    names = [n for n in COLUMNS if n in ("RANKS", "WHERE") or any(row[n] for row in cells)]
    widths = {n: min(max(len(row[n]) for row in ({n: n}, *cells)), WIDEST.get(n, width)) for n in names}
    for name in LEFT_OUT:
        if sum(widths[n] + 2 for n in names if n != "WHERE") + LEAST_WHERE <= width:
            break
        names = [n for n in names if n != name]
    rows = [dict(zip(names, names, strict=True)), *cells]
    shown = []
    for row in rows:
        parts = [f"{printable(row[n], widths[n]):<{widths[n]}}" for n in names if n != "WHERE"]
        shown.append(printable("  ".join([*parts, row["WHERE"]]).rstrip(), width))
    return shown


def details(line: RowLine, view: View) -> str:
    """All details of a line: ranks, places, and the columns that a narrow table leaves out."""
    row, found = line.rows[0], _cells(line, view.rates)
    who = f"rank {row.name}" if row.rank >= 0 else row.name
    parts = [f"{who} on {row.node}" if row.node else who, f"pid {row.pid}" if row.pid else "", row.where]
    parts.append(f"{found['MEM']} memory" if found["MEM"] else "")
    if row.gpu:
        own = f"{_gpu_memory([row.gpu])} GPU memory, " if row.gpu.own_bytes else "GPU memory: "
        parts.append(f"{own}{_size([row.gpu.all_bytes])} of all processes on that GPU")
    parts.append(network([row.node], view.rates))
    return printable("; ".join(part for part in parts if part), 1000)


Text = tuple[str, str]
"""A line and its colour; "chosen" for the chosen one."""


def _below(view: View, width: int, height: int) -> list[Text]:
    """The chosen line, the last lines of its rank, and the keys."""
    keys = (view.prompt or KEYS, "note" if view.prompt else "dim")
    if not view.lines:
        return [keys]
    title = terminal.wrapped(f"-- {details(view.lines[view.chosen], view)}", width, "", "   ")
    tail = [(text, "") for text in view.tail[-max(2, int(height * TAIL_SHARE)) :]] or [(view.no_tail, "dim")]
    return [*((text, "bold") for text in title[:MOST_NOTES]), *tail, keys]


def picture(view: View, width: int, height: int, with_keys: bool = True) -> list[Text]:
    """All of it, at most `width` by `height`; `with_keys`: if keys can be typed."""
    below = _below(view, width, height) if with_keys else []
    verdict = terminal.wrapped("".join(view.verdict[:1]), width, "", "  ")
    above = [(view.title, "bold"), *((text, view.colour) for text in verdict)]
    more = [f"and {len(view.notes) - MOST_NOTES} more"] if len(view.notes) > MOST_NOTES else []
    above += [(note, "warning") for note in (*view.notes[:MOST_NOTES], *more)]
    above += [(text, "dim") for text in view.verdict[1:]]
    above = above[: max(2, height - len(below) - LEAST_ROWS)]
    room = max(1, height - len(above) - len(below) - 1)
    first = max(0, min(view.chosen - room // 2, len(view.lines) - room))
    last = first + room - (len(view.lines) > first + room)
    heading, *rows = table(view.lines[first:last], view.rates, width)
    age = "" if view.stacks_age_s is None else f" ({show_seconds(view.stacks_age_s)} ago)"
    found = [*above, *[(f"{heading}{age}", "dim")] * bool(rows)]
    for number, text in enumerate(rows, first):
        colour = COLOURS.get(next(iter(state_counts(view.lines[number].rows))), "")
        found.append((text, "chosen" if with_keys and number == view.chosen else colour))
    if left := view.lines[last:]:
        ranks = {row for line in left for row in line.rows}
        found.append((f"… {plural(len(left), 'more line')}, {plural(len(ranks), 'rank')}", "dim"))
    return [(printable(text, width), colour) for text, colour in (*found, *below)][:height]
