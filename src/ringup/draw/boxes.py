"""Boxes in two columns and lines between them: GPUs, NICs, and their connections."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ringup.draw import svg

BOX, ROW, GAP, WIDTH = 190, 34, 190, 600


class Box(NamedTuple):
    name: str
    more: str = ""
    is_chosen: bool = False


class Tie(NamedTuple):
    """Between the box `left` and the box `right`, by their positions."""

    left: int
    right: int
    words: str = ""
    is_far: bool = False


def _box(one: Box, x: int, row: int) -> str:
    y, wide = 6 + row * ROW, ' stroke-width="3"' if one.is_chosen else ""
    words = f"✔ {one.name}" if one.is_chosen else one.name
    return (
        f'<rect x="{x}" y="{y}" width="{BOX}" height="{ROW - 6}" rx="4" class="box"{wide}/>'
        f'<text x="{x + 8}" y="{y + 12}">{escape(words[:34])}</text>'
        f'<text x="{x + 8}" y="{y + 24}" class="small">{escape(one.more[:40])}</text>'
    )


def boxes(left: Sequence[Box], right: Sequence[Box], ties: Sequence[Tie], words: str) -> str:
    """Two columns; a far tie is dashed."""
    height = 12 + ROW * max(len(left), len(right), 1)
    x = BOX + GAP
    body = [_box(one, 4, row) for row, one in enumerate(left)]
    body += [_box(one, x, row) for row, one in enumerate(right)]
    for tie in ties:
        a, b = 20 + tie.left * ROW, 20 + tie.right * ROW
        style = ' stroke-dasharray="5 4" stroke="var(--bad)"' if tie.is_far else ' stroke="var(--work)"'
        body.append(f'<path class="line" d="M{BOX + 4} {a}L{x} {b}"{style}/>')
        if tie.words:
            place = f'x="{BOX + 4 + GAP * 0.3:.0f}" y="{a + (b - a) * 0.3 + 4:.0f}"'
            body.append(f'<text class="sign small" {place}>{escape(tie.words)}</text>')
    wide = x + BOX + 8
    return svg(words, "".join(body), f'viewBox="0 0 {wide} {height}" width="{wide}"', "boxes")
