"""Display of `ringup top`: a terminal that rich redraws in place, or pictures one below the other."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from ringup.output import terminal
from ringup.units import columns

STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan", "ok": "green", "chosen": "reverse"}
"""Of rich; the other colours have the same names there."""
KEYS = {
    **dict.fromkeys((b"\x1b[A", b"\x1bOA"), "up"),
    **dict.fromkeys((b"\x1b[B", b"\x1bOB"), "down"),
    **dict.fromkeys((b"\r", b"\n"), "enter"),
    **dict.fromkeys((b"\x7f", b"\x08"), "back"),
    b"\x1b": "escape",
}
PRINTED_ROWS = 60
"""Lines of a picture that is printed."""


class Screen:
    """Prints; without input."""

    has_keys = False
    every_s = 10.0

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *error: object) -> None: ...

    def size(self) -> tuple[int, int]:
        return columns(sys.stdout), PRINTED_ROWS

    def typed(self) -> Iterator[str]:
        """The input since the last call: letters, and the words of `KEYS`."""
        return iter(())

    def draw(self, lines: Sequence[tuple[str, str]]) -> None:
        style = terminal.Style(sys.stdout)
        for text, colour in lines:
            print(style(colour, text) if colour in ("error", "warning", "bold") else text)
        print(flush=True)


class LiveScreen(Screen):
    """
    Redraws the last lines of the terminal in place; the last picture stays there.

    The terminal is as before after `__exit__`, and while Ctrl-Z has stopped this process.
    """

    has_keys = True
    every_s = 2.0

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, no_color=bool(os.environ.get("NO_COLOR")) or None)
        self._size = self.size()
        self._before: list[Any] = []
        """The terminal's modes."""
        self._is_to_stop = False

    def __enter__(self) -> Screen:
        self._handler = signal.signal(signal.SIGTSTP, self._stop_soon)
        self._take()
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGTSTP, self._handler)
        self._give_back()

    def _take(self) -> None:
        from rich.live import Live

        if sys.stdin.isatty():
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    def _give_back(self) -> None:
        self._live.stop()
        if self._before:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _stop_soon(self, number: int, frame: object) -> None:
        self._is_to_stop = True  # in the middle of a line nothing else can be written

    def size(self) -> tuple[int, int]:
        # The last column and line stay free: writing there may scroll.
        return max(1, self._console.width - 1), max(1, self._console.height - 1)

    def typed(self) -> Iterator[str]:
        if self._is_to_stop:
            self._is_to_stop = False
            self._give_back()
            os.kill(os.getpid(), signal.SIGSTOP)
            self._take()
        if self._before and select.select([0], [], [], 0)[0]:
            data = os.read(0, 1024)
            if data in KEYS:
                yield KEYS[data]
            elif data[:1] != b"\x1b":
                yield from (KEYS.get(key.encode(), key) for key in data.decode("utf-8", "replace"))

    def draw(self, lines: Sequence[tuple[str, str]]) -> None:
        from rich.text import Text

        if (size := self.size()) != self._size:
            # The terminal has rewrapped its lines: the picture's first line is no longer known.
            self._size = size
            self._console.clear()
        text = Text("\n", no_wrap=True, overflow="ellipsis").join(Text(t, STYLES.get(c, c)) for t, c in lines)
        with contextlib.suppress(OSError):
            self._live.update(text, refresh=True)


def screen_for() -> Screen:
    can_redraw = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    return LiveScreen() if can_redraw and importlib.util.find_spec("rich") else Screen()
