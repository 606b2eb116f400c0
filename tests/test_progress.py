"""The line about what takes its time, on a real terminal: rewritten, erased, never mixed with the output."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringup import bundle, progress
from ringup.cli import command_line
from ringup.output import terminal
from tests import clusters

ERASED = b"\r\x1b[K"
HERE = Path(__file__).parent


@contextlib.contextmanager
def a_terminal(columns: int) -> Iterator[tuple[int, int]]:
    """Our side and the program's side of a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    try:
        yield ours, theirs
    finally:
        os.close(ours)


def sent_to(ours: int) -> bytes:
    """All that comes until the other side is closed, when an error (EIO) says so."""
    sent = b""
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 4096):
            sent += piece
    return sent


def shown(what: Callable[[], object], monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> bytes:
    """What a terminal of so many columns gets on stderr while something is done with progress allowed."""
    with a_terminal(columns) as (ours, theirs):
        with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            progress.allow(True)
            with progress.line():
                what()
            progress.allow(False)
        return sent_to(ours)


def left_on_screen(sent: bytes) -> bytes:
    """What stays of it: text in front of an erasure is gone."""
    return b"\n".join(line.rpartition(ERASED)[2] for line in sent.split(b"\n"))


@pytest.fixture(autouse=True)
def _a_real_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_progress_never_takes_a_second_line_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "facts: 1 of 2 nodes answered, waiting for " + "n" * 100
    sent = shown(lambda: progress.show(text), monkeypatch, columns=40)
    assert sent.split(ERASED) == [b"", b"facts: 1 of 2 nodes answered, waiting f", b""]
    wide = shown(lambda: progress.show("\u65e5" * 60), monkeypatch, columns=40)
    assert len(wide.split(ERASED)[1].decode()) == 19


def test_a_dumb_terminal_is_sent_nothing_it_would_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown(lambda: progress.show("facts: 1 of 2 nodes answered"), monkeypatch) == b""


def test_hostile_names_are_shown_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = shown(lambda: progress.show("reading \x1b[2Jx\n\u202ey"), monkeypatch)
    assert sent == ERASED + rb"reading \x1b[2Jx\n\u202ey" + ERASED


def test_what_is_said_meanwhile_stands_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        progress.show("pairs: 1 of 2 connections tried")
        terminal.say("note: something")

    sent = shown(work, monkeypatch)
    assert sent.count(b"pairs: 1 of 2") == 2  # it comes back below
    assert left_on_screen(sent) == b"note: something\r\n"


def test_an_error_erases_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with contextlib.suppress(KeyboardInterrupt), progress.line("judging"):
            raise KeyboardInterrupt

    sent = shown(work, monkeypatch)
    assert b"judging" in sent and left_on_screen(sent) == b""


def test_nothing_is_shown_without_a_terminal_or_with_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle.save(clusters.healthy(), tmp_path / "facts")
    words = ["check", "--from", str(tmp_path / "facts")]
    command_line.dispatch(words)
    assert "judging" not in capsys.readouterr().err
    for more, is_there in ([], True), (["--quiet"], False):
        sent = shown(lambda more=more: command_line.dispatch([*words, *more]), monkeypatch)  # type: ignore[misc]
        assert (b"judging" in sent) == is_there and left_on_screen(sent) == b""


@pytest.mark.slow
def test_reading_logs_tells_how_far_it_is_whatever_the_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = b"n0:5:9 [0] NCCL INFO AllReduce: opCount %x sendbuff 0x7f\n"
    for rank in range(4):
        text = b"".join(line % number for number in range(6000))
        (tmp_path / f"rank-{rank}.log").write_bytes(gzip.compress(text, 1) if rank == 3 else text)
    for processes, least in (("1", 5), ("2", 1)):
        words = ["logs", str(tmp_path), "--processes", processes]
        sent = shown(lambda words=words: command_line.dispatch(words), monkeypatch)  # type: ignore[misc]
        steps = re.findall(rb"reading logs: (\d+) % of [\d.]+ MiB, (\d) of 4 files", sent)
        far, files = [int(percent) for percent, _ in steps], [int(count) for _, count in steps]
        assert far == sorted(far) and far[-1] > 10 and len(far) >= least, steps
        assert files == sorted(files), steps
        assert b"looking for causes" in sent
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line * 6000)))
    sent = shown(lambda: command_line.dispatch(["logs", "-"]), monkeypatch)
    assert b"reading logs: 256 KiB" in sent and b" % " not in sent


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "stacks", "clean"])
def test_a_command_that_waits_for_nodes_says_for_which_and_ctrl_c_leaves_no_half_line(
    command: str, tmp_path: Path
) -> None:
    what = {"check": b"facts", "stacks": b"stacks", "clean": b"leftovers"}[command]
    waiting = what + b": 1 of 2 nodes answered, waiting for stuck-logged-in"
    env = {**os.environ, "TERM": "xterm"}
    env["PATH"] = f"{HERE / 'bin'}{os.pathsep}{env['PATH']}"
    with a_terminal(200) as (ours, theirs):
        with open(tmp_path / "out", "wb") as out:
            words = [sys.executable, "-m", "ringup", command, "-H", "fine,stuck-logged-in"]
            process = subprocess.Popen(words, stderr=theirs, stdout=out, env=env, cwd=tmp_path)
        os.close(theirs)
        sent = b""
        while waiting not in sent:
            sent += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        sent += sent_to(ours)
        assert process.wait() == 130
    assert left_on_screen(sent).split() == [b"ringup:", b"interrupted"]
    assert (tmp_path / "out").read_bytes() == b""
