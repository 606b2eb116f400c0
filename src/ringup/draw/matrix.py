"""A matrix of nodes as a picture with one square per cell, for clusters too large for a table."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from html import escape

LEAST_PIXELS = 512
STATES = ((255, 255, 255), (0, 114, 178), (230, 159, 0), (213, 94, 0), (90, 90, 90))
"""Not tried, works, works in part, fails, the diagonal."""
NOT_TRIED, WORKS, PARTLY, FAILS, SAME = range(5)
RATES = (
    (0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115), (138, 134, 120),
    (165, 156, 116), (195, 179, 105), (225, 204, 85), (254, 232, 56),
)  # fmt: skip
"""Dark to light, like cividis: the lightness alone shows the order."""
PALETTE = STATES + RATES


def png(cells: Sequence[Sequence[int]], scale: int = 1) -> bytes:
    """Rows of numbers into the palette as an image, each cell `scale` pixels wide and high."""
    width, height = len(cells[0]) * scale, len(cells) * scale
    rows = (b"\0" + b"".join(bytes([cell]) * scale for cell in row) for row in cells)
    pixels = b"".join(line * scale for line in rows)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colours = b"".join(map(bytes, PALETTE))
    parts = ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b""))
    image = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        image += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return image


def marked(cells: Sequence[Sequence[int]], scale: int) -> list[list[int]]:
    """The enlarged cells; a failure has a cross and a partial failure a stripe, against colour blindness."""

    def pixel(cell: int, x: int, y: int) -> int:
        is_cross = cell == FAILS and x in (y, scale - 1 - y)
        return NOT_TRIED if is_cross or (cell == PARTLY and y == scale // 2) else cell

    return [[pixel(cell, x, y) for cell in row for x in range(scale)] for row in cells for y in range(scale)]


def rate(share: float) -> int:
    """
    The cell of a rate, as a share of the fastest one.

    >>> rate(1.0) - rate(0.0), rate(0.0) == len(STATES)
    (9, True)
    """
    return len(STATES) + min(int(share * len(RATES)), len(RATES) - 1)


def image(cells: Sequence[Sequence[int]], words: str) -> str:
    """An <img> whose bytes are in the page; `words` describe it."""
    scale = max(1, min(9, LEAST_PIXELS // max(1, len(cells))))
    data = b64encode(png(marked(cells, scale)) if scale > 2 else png(cells, scale)).decode()
    return f'<img class="matrix" alt="{escape(words, quote=True)}" src="data:image/png;base64,{data}">'
