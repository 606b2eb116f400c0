"""The line that says what is being waited for, on a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from ringup.commands.check import Progress


def shown(text: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """What a terminal of so many columns is sent while something is waited for."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        progress = Progress(quiet=False)
        progress(text)
        progress.done()
    sent = b""
    # The other side is closed: what it was sent comes in pieces, then an error (EIO) says that this is all.
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 4096):
            sent += piece
    os.close(ours)
    return sent


def test_progress_never_takes_a_second_line_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    sent = shown("facts: 1 of 2 nodes answered, waiting for " + "n" * 100, 40, monkeypatch)
    assert sent.split(b"\r\x1b[K") == [b"", b"facts: 1 of 2 nodes answered, waiting f", b""]


def test_a_dumb_terminal_is_sent_nothing_it_would_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown("facts: 1 of 2 nodes answered", 40, monkeypatch) == b""
