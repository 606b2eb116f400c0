"""The line that says what is being waited for, on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator

import pytest

from ringup.commands.check import Progress


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal of 40 columns, which stderr is."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        yield ours
    os.close(ours)


def test_progress_never_takes_a_second_line_of_a_narrow_terminal(terminal: int) -> None:
    progress = Progress(quiet=False)
    progress("facts: 1 of 2 nodes answered, waiting for " + "n" * 100)
    progress.done()
    shown = os.read(terminal, 4096).decode().split("\r\x1b[K")
    assert shown == ["", "facts: 1 of 2 nodes answered, waiting f", ""]


def test_a_dumb_terminal_is_sent_nothing_it_would_print(
    terminal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    progress = Progress(quiet=False)
    progress("facts: 1 of 2 nodes answered")
    progress.done()
    os.set_blocking(terminal, False)
    with pytest.raises(BlockingIOError):
        os.read(terminal, 4096)
