"""Output for people on the terminal: lines, colours; requested files and JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from ringup import progress
from ringup.errors import writing
from ringup.units import columns, printable
from ringup.version import __version__

_COLOURS = {"error": "31;1", "warning": "33", "note": "36", "ok": "32", "dim": "2", "bold": "1"}
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


class Style:
    """Width of lines; colour if wanted: a terminal, NO_COLOR (no-color.org) unset or empty."""

    def __init__(self, stream: TextIO) -> None:
        self.width = columns(stream)
        self.on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.on else text


COPIED = ("$ ", "export ", "exec ", "| ", "more  ")
"""Commands, quoted output and addresses: lines that stay whole, however wide they are."""


def fitted(text: str, stream: TextIO) -> str:
    """The text with lines that fit a terminal's width, with their indentation; unchanged elsewhere."""
    if not stream.isatty():
        return text
    width, found = columns(stream), []
    for line in text.split("\n"):
        bare = line.lstrip()
        indent = " " * (len(line) - len(bare) + 2)
        is_whole = len(_COLOUR.sub("", line)) <= width or bare.startswith(COPIED)
        found += [line] if is_whole else wrapped(line, width, "", indent)
    return "\n".join(found)


def wrapped(text: str, width: int, first: str, next_lines: str) -> list[str]:
    """Lines of at most `width`, no word broken; `first` before the first, `next_lines` before the others."""
    wrapper = textwrap.TextWrapper(width, first, next_lines, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(text)


def show(text: str) -> None:
    progress.hide()
    print(fitted(text, sys.stdout), flush=True)


def say(*texts: str, quiet: bool = False) -> None:
    """Lines for people, on stderr, even without a reader; line ends and our own colours get through."""
    if texts and not quiet:
        lines = (
            "".join(part if _COLOUR.fullmatch(part) else printable(part, len(part)) for part in line)
            for line in map(_COLOUR.split, "\n".join(texts).split("\n"))
        )
        with progress.aside(), contextlib.suppress(OSError):
            print(fitted("\n".join(lines), sys.stderr), file=sys.stderr, flush=True)


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


SCHEMA = 1


def envelope(**fields: Any) -> dict[str, Any]:
    """Every JSON object's first two keys, then its own; infinities become null."""
    from ringup.rules import INTERNAL_ERRORS, skipped_json

    if INTERNAL_ERRORS:
        fields.setdefault("not_checked", skipped_json(INTERNAL_ERRORS.values()))
    return {"ringup": __version__, "schema": SCHEMA, **{k: plain(v) for k, v in fields.items()}}


def print_json(**fields: Any) -> None:
    progress.hide()
    print(json.dumps(envelope(**fields)))


_PLAIN = frozenset((str, int, bool, type(None)))
"""Types that need no change: a million values of a large cluster."""


def plain(value: Any) -> Any:
    """Data that JSON can hold: dataclasses as objects, tuples as lists, infinities and NaN as null."""
    if names := getattr(type(value), "__dataclass_fields__", None):
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(k): v if type(v) in _PLAIN else plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [v if type(v) in _PLAIN else plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write(path: Path, text: str, *, executable: bool = False) -> None:
    """A requested file.  Raises LaunchError if it cannot be written."""
    with writing(path):
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        if executable:
            path.chmod(path.stat().st_mode | 0o111)


def path_shown(path: str | Path) -> str:
    r"""
    A path for people, whatever its characters; relative to the current directory if it is below that.

    >>> path_shown("runs/\x1b[2Jx"), path_shown(Path.cwd() / "runs"), path_shown("/runs")
    ('runs/\\x1b[2Jx', 'runs', '/runs')
    """
    shown = str(path)
    with contextlib.suppress(OSError):  # the current directory is gone
        shown = shown.removeprefix(f"{Path.cwd()}/") or shown
    return printable(shown, 400)
