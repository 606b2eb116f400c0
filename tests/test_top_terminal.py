"""`ringup top` on a terminal: drawn in place, leaves it as it was; and where there is none."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SHOWN, HIDDEN, ALTERNATE = b"\x1b[?25h", b"\x1b[?25l", b"\x1b[?1049h"
pytestmark = pytest.mark.slow


class Terminal:
    """A pseudo-terminal with a view of played ranks on it."""

    def __init__(
        self,
        ranks: int,
        *words: str,
        columns: int = 80,
        rows: int = 24,
        before: str = "pass",
        **env: str,
    ) -> None:
        self.ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(theirs)
        known = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
        }
        code = f"{before}; from tests.top_played import main; main({ranks}, '--hang-report', '4', *{words!r})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; {code}"],
            stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env={**known, "TERM": "xterm", **env},
            preexec_fn=lambda: (os.setsid(), fcntl.ioctl(0, termios.TIOCSCTTY, 0)),
        )  # fmt: skip
        self._theirs, self.sent = theirs, b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self.ours)
        os.close(self._theirs)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bytes:
        """What has come since the last time; b"" after a moment without anything."""
        piece = os.read(self.ours, 65536) if select.select([self.ours], [], [], 0.1)[0] else b""
        self.sent += piece
        return piece

    def until(self, words: bytes) -> bytes:
        """All that comes until these words."""
        found, end_s = b"", time.monotonic() + 60
        while words not in found:
            assert time.monotonic() < end_s and self.process.poll() is None, self.sent[-3000:]
            found += self.read()
        return found

    def type(self, keys: bytes) -> None:
        os.write(self.ours, keys)

    def end(self) -> int:
        """The exit code; everything that was sent is read."""
        code = self.process.wait(60)
        while self.read():
            pass
        return code

    def now(self) -> Any:
        return termios.tcgetattr(self._theirs)


@pytest.mark.parametrize("leave", [b"q", b"\x03"])
def test_leaving_gives_the_terminal_back_as_it_was_with_the_last_picture_on_it(leave: bytes) -> None:
    with Terminal(16) as one:
        one.until(b"q leave")
        assert one.now() != one.modes and one.sent.rfind(HIDDEN) > one.sent.rfind(SHOWN)
        one.type(leave)
        assert one.end() == 0
        assert one.now() == one.modes
        assert one.sent.rfind(SHOWN) > one.sent.rfind(HIDDEN) and ALTERNATE not in one.sent
        assert b"16 ranks on 2 nodes" in one.sent[one.sent.rfind(b"q leave") :]
        assert b"Traceback" not in one.sent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_it_gives_the_terminal_back(number: signal.Signals) -> None:
    with Terminal(16) as one:
        one.until(b"q leave")
        one.process.send_signal(number)
        assert one.end() == 128 + number
        assert one.now() == one.modes and one.sent.rfind(SHOWN) > one.sent.rfind(HIDDEN)


def test_an_error_gives_the_terminal_back() -> None:
    broken = "from ringup.cli import top; top.Top.judge = None"
    with Terminal(16, before=broken) as one:
        assert one.end() == 70
        assert b"TypeError" in one.sent and one.now() == one.modes
        assert one.sent.rfind(SHOWN) > one.sent.rfind(HIDDEN)


def test_ctrl_z_gives_the_terminal_to_the_shell_and_takes_it_again() -> None:
    with Terminal(16) as one:
        one.until(b"q leave")
        one.type(b"\x1a")
        assert os.WIFSTOPPED(os.waitpid(one.process.pid, os.WUNTRACED)[1])
        while one.read():
            pass
        assert one.now() == one.modes and one.sent.rfind(SHOWN) > one.sent.rfind(HIDDEN)
        one.process.send_signal(signal.SIGCONT)
        one.until(b"q leave")
        assert one.now() != one.modes
        one.type(b"q")
        assert one.end() == 0 and one.now() == one.modes


def test_the_picture_is_drawn_in_place_and_again_where_the_size_changes() -> None:
    pyte = pytest.importorskip("pyte")
    with Terminal(512, columns=80, rows=24) as one:
        screen = pyte.Screen(80, 24)
        stream = pyte.ByteStream(screen)

        def drawn(words: str) -> list[str]:
            end_s = time.monotonic() + 60
            while not any(words in line for line in screen.display):
                assert time.monotonic() < end_s, screen.display
                stream.feed(one.read())
            while piece := one.read():
                stream.feed(piece)
            return [line.rstrip() for line in screen.display]

        text = drawn("HANGS")
        assert sum("512 ranks on 64 nodes" in line for line in text) == 1
        assert (
            text[1] == "HANGS: no progress for" + text[1][22:] and "rank 301 (node37) is missing" in text[1]
        )
        assert text[3].split()[:2] == ["301", "missing"]
        for columns, rows in (40, 12), (120, 40), (1, 1), (80, 24):
            screen.resize(rows, columns)
            one.resize(columns, rows)
            text = drawn("HANGS" if columns > 20 else "")
            assert sum(line.startswith("run r: 512") for line in text) == (columns > 20), text
        one.type(b"q")
        assert one.end() == 0


def test_a_dumb_terminal_and_one_without_rich_get_lines_without_escapes() -> None:
    for before, env in ("pass", {"TERM": "dumb"}), ("sys.modules['rich'] = None", {"NO_COLOR": "1"}):
        with Terminal(16, before=before, **env) as one:
            one.until(b"16 ranks on 2 nodes")
            assert b"\x1b" not in one.sent and one.now() == one.modes
            one.type(b"\x03")
            assert one.end() == 0 and b"\x1b" not in one.sent


@contextlib.contextmanager
def piped(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.top_played", "16", *words],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        yield process
        process.kill()


def test_a_pipe_gets_pictures_one_below_the_other_without_an_escape() -> None:
    with piped("--every", "1", "--hang-report", "0") as process:
        assert process.stdout
        found = ""
        while found.count("16 ranks on 2 nodes") < 3:
            found += process.stdout.readline()
    assert "\x1b" not in found and "q leave" not in found and "\n\n" in found
    assert "+ 0-15" in found and "all_reduce, train.py:88 in main" in found


def test_one_picture_on_a_terminal_has_no_keys() -> None:
    with Terminal(16, "--once") as one:
        assert one.end() == 0
        assert b"16 ranks on 2 nodes" in one.sent and b"q leave" not in one.sent


def test_one_picture_is_printed_once_every_node_has_told_enough() -> None:
    with piped("--once") as process:
        text, _ = process.communicate()
    assert process.returncode == 0 and text.count("ranks on 2 nodes") == 1
    assert "+ 0-15" in text and "waits" in text and "\x1b" not in text
