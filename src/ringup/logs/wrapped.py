"""Logs whose long lines a terminal, or a program for mail, has broken: the lines as they were printed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

MOST_BYTES = 4 << 20
"""Of a file; nobody copies more from a terminal."""
WIDTHS = range(60, 400)
FEWEST, OF_FEW_LINES, FEWEST_FORMS = 3, 30, 2
"""Broken lines of a file, two in one of so few lines; and how many of them differ in more than numbers."""
LIKE_OTHERS = 0.25
"""Share of the broken lines' further parts that may begin as a whole line of the file does."""
INSIDE_WORDS = 0.3
"""Share of the lines that are broken inside a word, at least; a program ends its lines between words."""
_INSIDE = re.compile(rb"\w\w|[\w)\]'\"][=,.;:)\]%/](?![=*#/.-])| \w")
MOST_BETWEEN_WORDS, MOST_ROOM = 132, 12
"""Columns of lines that are broken between words, and those that a word leaves empty at an end."""
_GOES_ON = re.compile(rb"(?!\S{1,200}:\d|\d\d+[-:/])[a-z(,.;:)\]\d]")
_DIGITS = re.compile(rb"\d")
_RULE = b"-" * 74
"""Open MPI's, around a text that it breaks itself."""
_HEAD_BYTES = 4


class Wrapped(NamedTuple):
    """A file's bytes with the broken lines joined, and the line in the file at which each begins."""

    data: bytes
    first_lines: list[int]
    line_count: int
    """Lines of the file."""

    def line(self, number: int) -> int:
        """The number in the file of a joined line, both from 1; 0 remains 0."""
        return self.first_lines[min(number, len(self.first_lines)) - 1] if number > 0 else 0

    def blocks(self) -> Iterator[bytes]:
        yield self.data


def joined_lines(data: bytes) -> Wrapped | None:
    """
    The lines as they were printed; None for a file without broken lines.

    A joined line has a blank for each break, between the words or at its end: every line begins at the same
    byte as before.

    >>> joined_lines(b"a short line\\n" * 9) is None
    True
    """
    lines = data.split(b"\n")
    columns = [*map(len, lines if data.isascii() else data.decode(errors="replace").split("\n"))]
    width = max(columns)
    if width not in WIDTHS:
        return None
    if _is_of_terminal(lines, columns, width):
        broken, between = {n for n, own in enumerate(columns) if own == width and _is_broken(lines[n])}, b""
    else:
        broken, between = _between_words(lines, columns), b" "
    if not broken:
        return None
    joined: list[bytes] = []
    first_lines: list[int] = []
    for number, line in enumerate(lines):
        if number - 1 in broken:
            joined[-1] = joined[-1] + between + line
        else:
            joined.append(line)
            first_lines.append(number + 1)
    ends = [*first_lines[1:], len(lines) + 1]
    missing = 0 if between else 1
    padded = (
        line + b" " * missing * (end - begin - 1)
        for line, begin, end in zip(joined, first_lines, ends, strict=True)
    )
    return Wrapped(b"\n".join(padded), first_lines, len(lines) - (not lines[-1]))


def _is_of_terminal(lines: list[bytes], columns: list[int], width: int) -> bool:
    """Whether the longest lines end at a terminal's width, not where a program has ended them."""
    pairs = enumerate(pairwise(columns))
    full = [n for n, (own, below) in pairs if own == width and below and _is_broken(lines[n])]
    # The same message once more has the same length and the same line below.
    forms = {_DIGITS.sub(b"", lines[n]): n for n in full}.values()
    near = sum(width - 3 <= count < width for count in columns)
    fewest = FEWEST - (len(lines) <= OF_FEW_LINES)
    if len(full) < fewest or len(forms) < FEWEST_FORMS or 3 * near > len(full):
        return False
    columns_of = Counter(lines[n].rfind(b"  ") for n in full)
    if any(at >= 0 and 2 * count > len(full) for at, count in columns_of.items()):
        return False  # rows of a table
    inside = sum(bool(_INSIDE.match(lines[n][-1:] + lines[n + 1][:2])) for n in forms)
    return _share_like_others(lines, {*full}) <= LIKE_OTHERS and inside >= INSIDE_WORDS * len(forms)


def _share_like_others(lines: list[bytes], full: set[int]) -> float:
    """The share of the lines behind those that begin as other lines of the file do."""
    behind = {n + 1 for n in full}
    heads = {_head(line) for n, line in enumerate(lines) if n not in behind}
    return sum(_head(lines[n]) in heads for n in behind) / len(full)


def _between_words(lines: list[bytes], columns: list[int]) -> set[int]:
    """The lines that a program for mail or text has broken between words; empty where none has."""
    rules = [n for n, line in enumerate(lines) if line.strip() == _RULE]
    framed = {n for begin, end in zip(rules[::2], rules[1::2], strict=False) for n in range(begin, end)}
    several = [n for n, line in enumerate(lines) if n not in framed and len(line.split()) > 1]
    width = max((columns[n] for n in several), default=0)
    if not WIDTHS.start <= width <= MOST_BETWEEN_WORDS:
        return set()
    room = [width - own for own in columns]
    word = [len((line.split(maxsplit=1) or [b""])[0]) for line in lines]
    full = {n for n in several if n + 1 < len(lines) and word[n + 1] >= room[n] and lines[n + 1][:1].strip()}
    full = {n for n in full if _is_broken(lines[n]) and b"  " not in lines[n].strip()}
    unbroken = [n for n in several if room[n] < MOST_ROOM and n not in full]
    forms = {_DIGITS.sub(b"", lines[n]): n for n in full}.values()
    goes_on = sum(bool(_GOES_ON.match(lines[n + 1])) for n in forms)
    is_wrapped = len(forms) >= FEWEST and 2 * goes_on >= len(forms) and 4 * len(unbroken) <= len(full)
    return full if is_wrapped and _share_like_others(lines, full) <= LIKE_OTHERS else set()


def _is_broken(line: bytes) -> bool:
    """Whether a terminal may break such a line: no rule of one or two characters, not filled with blanks."""
    return len({*line.strip()}) >= 3 and not line.endswith(b"   ")


def _head(line: bytes) -> bytes:
    return _DIGITS.sub(b"0", line[:_HEAD_BYTES])
