"""Curves: rates over sizes, with the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from ringup.draw import svg
from ringup.units import show_bytes

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 280, 56, 34
LINES = (
    ("var(--work)", "", "circle"), ("var(--bad)", "6 4", "square"), ("var(--wait)", "2 3", "diamond"),
    ("var(--ink)", "8 3 2 3", "circle"), ("var(--init)", "1 2", "square"), ("var(--launch)", "", "diamond"),
)  # fmt: skip
"""Colour, dashes and marks: each pair differs in all three."""


Points = Sequence[tuple[float, float]]
"""Size in bytes, rate."""


def _mark(shape: str, x: float, y: float, colour: str) -> str:
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == "diamond" else ""
    return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="{colour}"{turned}/>'


def _marks(most: float) -> list[float]:
    """
    Round values from 0 up to `most`, at most six.

    >>> _marks(12.1), _marks(0.9)
    ([0.0, 2.5, 5.0, 7.5, 10.0], [0.0, 0.2, 0.4, 0.6, 0.8])
    """
    size = 10 ** math.floor(math.log10(most / 5))
    step = next(size * n for n in (1, 2, 2.5, 5, 10) if size * n >= most / 5)
    return [round(n * step, 12) for n in range(int(most / step + 1e-9) + 1)]


def curves(found: Mapping[str, Points], limit: float | None, words: str) -> str:
    """Lines over a size that doubles, the limit dashed across, each line's name at its end."""
    points = [point for own in found.values() for point in own if point[0] > 0 and math.isfinite(point[1])]
    if not points:
        return ""
    first, last = (math.log2(f(size for size, _ in points)) for f in (min, max))
    most = 1.1 * max([rate for _, rate in points] + ([limit] if limit else [])) or 1.0
    if not 1e-300 < most < 1e300:
        return ""
    span = max(last - first, 1e-9)

    def x(size: float) -> float:
        return LEFT + (WIDTH - LEFT - 110) * (math.log2(size) - first) / span

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 14) * rate / most

    body = []
    for rate in _marks(most):
        body.append(f'<path class="axis" d="M{LEFT} {y(rate):.1f}H{WIDTH - 110}"/>')
        body.append(f'<text x="{LEFT - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:.3g}</text>')
    sizes = sorted({size for size, _ in points})
    for size in sizes[:: max(1, len(sizes) // 6)]:
        place = f'x="{x(size):.1f}" y="{HEIGHT - 14}" text-anchor="middle"'
        body.append(f"<text {place}>{show_bytes(size)}</text>")
    body.append(f'<text x="{LEFT}" y="11">bus bandwidth (GB/s)</text>')
    body.append(f'<text x="{WIDTH - 110}" y="{HEIGHT - 1}" text-anchor="end">size</text>')
    if limit:
        across = f'd="M{LEFT} {y(limit):.1f}H{WIDTH - 110}"'
        body.append(f'<path class="line" stroke="var(--ink)" stroke-dasharray="3 3" {across}/>')
    names = []
    for n, (name, measured) in enumerate(found.items()):
        colour, dashes, shape = LINES[n % len(LINES)]
        own = [(x(size), y(rate)) for size, rate in measured if size > 0 and math.isfinite(rate)]
        if own:
            path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in own)
            body.append(f'<path class="line" stroke="{colour}" stroke-dasharray="{dashes}" d="{path}"/>')
            body += [_mark(shape, a, b, colour) for a, b in own]
            names.append((own[-1][1], name))
    names += [(y(limit), f"limit {limit:.3g}")] if limit else []
    free = 0.0
    for at, name in sorted(names):
        free = max(free, at + 4)
        body.append(f'<text x="{WIDTH - 104}" y="{free:.1f}">{escape(name)}</text>')
        free += 13
    return svg(words, "".join(body), f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}"', "curve")
