"""Lanes: a row for each of many, with bars, ticks and marks over one axis of time."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from ringup.draw import svg
from ringup.units import neighbours

HEIGHT = 20
STEPS = 500
"""Of the axis: ticks closer to each other than one step become one."""


class Bar(NamedTuple):
    kind: str
    """One of `draw.SHADES`."""
    from_s: float
    to_s: float


class Sign(NamedTuple):
    at_s: float
    shape: str
    words: str


def _ticks(times_s: Iterable[float], end_s: float, top: int, kind: str) -> str:
    """Short vertical lines; where they touch, one block."""
    blocks = neighbours(min(STEPS, max(0, round(STEPS * at_s / end_s))) for at_s in times_s)
    path = [f"M{a} {top}v6" + (f"h{b - a}v-6z" if b > a else "") for a, b in blocks]
    return f'<path class="{kind}" d="{"".join(path)}"/>' if path else ""


def lane(
    words: str,
    end_s: float,
    bars: Iterable[Bar] = (),
    ticks: Iterable[float] = (),
    calls: Iterable[float] = (),
    signs: Iterable[Sign] = (),
) -> str:
    """
    One row, as wide as its space: bars and signs in percent, times of ticks above times of calls.

    >>> lane("a", 4.0, [Bar("work", 1.0, 2.0)]).count('x="25.00%" width="25.00%"')
    1
    """
    end_s = max(end_s, 1e-9)

    def percent(at_s: float) -> float:
        return 100 * min(max(at_s / end_s, 0.0), 1.0)

    body = [
        f'<rect class="b-{bar.kind}" x="{percent(bar.from_s):.2f}%"'
        f' width="{max(0.15, percent(bar.to_s) - percent(bar.from_s)):.2f}%" y="3" height="14"/>'
        for bar in bars
        if bar.to_s > bar.from_s
    ]
    stretched = _ticks(ticks, end_s, 3, "tick") + _ticks(calls, end_s, 11, "call")
    if stretched:
        box = f'viewBox="0 0 {STEPS} {HEIGHT}" preserveAspectRatio="none" width="100%" height="{HEIGHT}"'
        body.append(f"<svg {box}>{stretched}</svg>")
    for sign in signs:
        place = min(max(percent(sign.at_s), 1.0), 99.0)
        body.append(
            f'<text class="sign" x="{place:.2f}%" y="16" text-anchor="middle">{escape(sign.shape)}'
            f"<title>{escape(sign.words)}</title></text>"
        )
    return svg(words, "".join(body), f'width="100%" height="{HEIGHT}"')


def marks_of(end_s: float) -> list[tuple[float, float]]:
    """
    Marks of the axis: percent and seconds, at round times.

    >>> marks_of(43.5)
    [(0.0, 0.0), (22.99, 10.0), (45.98, 20.0), (68.97, 30.0), (91.95, 40.0)]
    """
    if end_s <= 0:
        return [(0.0, 0.0)]
    rough, step = end_s / 6, 1e-6
    sizes = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0)
    if rough <= 1:
        while step < rough:
            step *= 10
        step = next(part for part in (step / 5, step / 2, step) if part >= rough)
    else:
        step = next((size for size in sizes if size >= rough), 3600.0 * -(-rough // 3600.0))
    return [(round(100 * n * step / end_s, 2), n * step) for n in range(int(end_s / step) + 1)]
