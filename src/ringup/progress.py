"""One line on stderr about a slow step, rewritten in place; silent unless `allow` was called."""

from __future__ import annotations

import contextlib
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence

from ringup.units import printable, summarize_names

_allowed = False
_shown = ""


def allow(is_wanted: bool) -> None:
    """Show lines, on a terminal that can erase them; never called in a program that imports ringup."""
    global _allowed
    _allowed = is_wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def line(text: str = "") -> Iterator[None]:
    """Erases the line on every exit; also a decorator: `@progress.line("judging")`."""
    try:
        show(text)
        yield
    finally:
        hide()


def show(text: str) -> None:
    """Replace the line by this text."""
    global _shown
    if _allowed and text and text != _shown:
        _shown = text
        _replace_line(text)


def hide() -> None:
    """Erase the line, before other output to the terminal."""
    global _shown
    if _shown:
        _shown = ""
        _replace_line("")


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Output of the block goes above the line."""
    text = _shown
    hide()
    yield
    show(text)


def answered(what: str, names: Sequence[str], waiting: Sequence[str]) -> str:
    """
    The number of nodes that have answered, and the missing ones.

    >>> answered("facts", ["a", "b", "c"], ["b"]), answered("facts", ["a", "b"], ["a", "b"])
    ('facts: 2 of 3 nodes answered, waiting for b', 'facts: 0 of 2 nodes answered')
    """
    rest = f", waiting for {summarize_names(waiting, 3)}" if 0 < len(waiting) < len(names) else ""
    return f"{what}: {len(names) - len(waiting)} of {len(names)} nodes answered{rest}"


def _fitted(text: str) -> str:
    """The part that fits one line of the terminal: a second line could not be erased."""
    room = (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
    for end, letter in enumerate(text := printable(text, 1000)):
        room -= 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if room < 0:
            return text[:end]
    return text


def _replace_line(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone must not end the command
        sys.stderr.write(f"\r\x1b[K{_fitted(text) if text else ''}")
        sys.stderr.flush()
