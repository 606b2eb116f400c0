"""Reachability as a small matrix of text: nodes whose paths fail alike share a row and a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from string import ascii_lowercase

from ringup.hosts.folding import folded
from ringup.model import Link
from ringup.output.terminal import Style
from ringup.units import grouped, plural, printable, summarize_names

MOST_GROUPS = 12
LABEL = 34
"""Columns that a group's name may take."""
ROUNDS = 3
"""Rounds in which groups are split by the nodes that their members fail to reach."""
LEGEND = "paths from row to column (ok: all work, x: none, n/m: n of m, .: not tried):"

Column = tuple[str, int]
"""An interface of the nodes of a group."""
Works = Mapping[tuple[int, Column], Sequence[bool]]
"""(group, column) -> for each path that was tried, whether it works."""


def pair_matrix(tried: Sequence[Link], failed: Sequence[Link], style: Style) -> list[str]:
    """Lines of the matrix; empty if every path works."""
    if not failed:
        return []
    groups = _groups(tried, failed)
    number = {name: place for place, names in enumerate(groups) for name in names}
    bad = set(map(id, failed))
    ends = (((number[link.src], (link.dst_interface, number[link.dst])), link) for link in tried)
    works = grouped((cell, id(link) not in bad) for cell, link in ends)
    labels = []
    for letter, names in zip(ascii_lowercase, groups, strict=False):
        count = f" ({len(names):,} nodes)" if len(names) > 1 else ""
        who = printable(folded(printable(name, 64) for name in names), LABEL - len(count))
        labels.append(f"    {letter}  {who}{count}")
    margin = max(map(len, labels)) + 2
    widths, notes = _columns(works, style.width - margin)
    heads = ["", ""]
    for name, same in groupby(widths, key=lambda to: to[0]):
        columns = list(same)
        heads[0] += f"{printable(name, 20):<{sum(widths[to] for to in columns)}}"
        heads[1] += "".join(f"{ascii_lowercase[to[1]]:<{widths[to]}}" for to in columns)
    lines = [f"  {LEGEND}", *(f"{'':<{margin}}{head.rstrip()}" for head in heads)]
    for row, label in enumerate(labels):
        cells = [(*_cell(works.get((row, to), ())), width) for to, width in widths.items()]
        shown = "".join(style(colour, f"{text:<{width}}") for text, colour, width in cells)
        lines.append(f"{label:<{margin}}{shown}".rstrip())
    return lines + notes


def _groups(tried: Sequence[Link], failed: Sequence[Link]) -> list[list[str]]:
    """Nodes that fail alike, in the order of their first one; of many groups the least affected as one."""
    kind: dict[str, object] = dict.fromkeys((name for link in tried for name in (link.src, link.dst)), 0)
    affected = Counter(name for link in failed for name in (link.src, link.dst))
    for _ in range(ROUNDS):
        marks: dict[str, Counter[object]] = {name: Counter() for name in kind}
        for link in failed:
            marks[link.src]["to", link.dst_interface, kind[link.dst]] += 1
            marks[link.dst]["from", link.dst_interface, kind[link.src]] += 1
        found = {name: (kind[name], frozenset(counts.items())) for name, counts in marks.items()}
        numbers = {key: place for place, key in enumerate(dict.fromkeys(found.values()))}
        kind = {name: numbers[key] for name, key in found.items()}
    groups = grouped((key, name) for name, key in kind.items())
    worst = sorted(groups.values(), key=lambda names: -max(affected[name] for name in names))
    rest = [name for names in worst[MOST_GROUPS - 1 :] for name in names]
    if len(worst) > MOST_GROUPS:
        worst = [*worst[: MOST_GROUPS - 1], rest]
    order = {name: place for place, name in enumerate(kind)}
    return sorted(worst, key=lambda names: order[names[0]])


def _cell(paths: Sequence[bool]) -> tuple[str, str]:
    """The text of a cell and its colour, which repeats the text."""
    if not paths:
        return ".", "dim"
    good = sum(paths)
    return ("ok", "ok") if good == len(paths) else (f"{good}/{len(paths)}" if good else "x", "error")


def _columns(works: Works, room: int) -> tuple[dict[Column, int], list[str]]:
    """The columns that fit and their widths, those with failures first; notes on the others."""
    every = sorted({to for _, to in works})
    bad = sorted({to for (_, to), paths in works.items() if not all(paths)})
    names = {name for name, _ in bad}
    ways = [every, [to for to in every if to[0] in names], *(bad[:most] for most in range(len(bad), 0, -1))]
    widths = next((made for way in ways if sum((made := _widths(way, works)).values()) <= room), {})
    good = dict.fromkeys(name for name, _ in every if name not in names | {to[0] for to in widths})
    notes = [f"  every path works to {printable(summarize_names(good), 200)}"] if good else []
    if left := len(bad) - sum(to in widths for to in bad):
        notes.append(f"  and {plural(left, 'column')} with failures: --all lists the paths")
    return widths, notes


def _widths(columns: Sequence[Column], works: Works) -> dict[Column, int]:
    """As wide as the widest cell, the last of an interface so that its name fits above."""
    widths = dict.fromkeys(columns, 0)
    for (_, to), paths in works.items():
        if to in widths:
            widths[to] = max(widths[to], len(_cell(paths)[0]) + 3)
    for name, same in groupby(columns, key=lambda to: to[0]):
        own = list(same)
        widths[own[-1]] += max(0, len(printable(name, 20)) + 2 - sum(widths[to] for to in own))
    return widths
