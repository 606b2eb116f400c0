"""The ranks' output: live lines with a `node:rank` prefix, and one file per rank with the raw bytes."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ringup.planning import NodePlan
from ringup.runtime import LAUNCHER, Event
from ringup.runtime.transports import NCCL_LINE
from ringup.timeline import marks
from ringup.units import ESCAPES, printable, show_bytes, signal_name

TERMINAL_BYTES = 4 << 20
FILES_BYTES = 64 << 20
LONGEST_PARTIAL_BYTES = 64 << 10
PARTIAL_SHOWN_AFTER_S = 2.0
"""Seconds after which an unfinished line (a progress bar, a prompt) is shown."""
MOST_OPEN_FILES = 200
KEPT_FOLDER = "__before-attach-{}"
"""For saved files that a replay could not continue; `ringup logs` leaves folders with "__" out."""
COPY_BYTES = 1 << 20
LONGEST_LINE = 4000
"""Characters of one line on the terminal; files contain the whole line."""

SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "often the kernel's out-of-memory killer (see `dmesg` on the node)",
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "a failed assertion in native code, or NCCL's watchdog",
    signal.SIGBUS: "often /dev/shm is full",
    signal.SIGILL: "an instruction this CPU does not have: the build is for another CPU",
    signal.SIGTERM: "ended from outside",
    signal.SIGINT: "interrupted",
    signal.SIGHUP: "its terminal or session ended",
    signal.SIGXCPU: "its CPU time limit",
    signal.SIGXFSZ: "its file size limit",
}


def clean(text: str, longest: int = LONGEST_LINE) -> str:
    """
    One line of a job's output without control sequences of terminals; tabs stay.

    A progress bar that overwrites itself shows its last state.

    >>> clean("\\x1b[31mred\\x1b[0m\\x07  50%\\r 100%"), clean("a\\tb\\x00")
    (' 100%', 'a\\tb')
    """
    if not text.isprintable():
        text = text.rstrip("\r\n").rpartition("\r")[2]
        text = ESCAPES.sub("", text)
        text = "".join(c for c in text if c.isprintable() or c == "\t")
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest} more characters)"


def end_words(code: int) -> str:
    """
    How a process ended; a negative code is a signal, with its usual meaning here.

    >>> end_words(3), end_words(-15)
    ('exit code 3', 'killed by SIGTERM (15): ended from outside')
    """
    if code >= 0:
        return f"exit code {code}"
    name, hint = signal_name(-code), SIGNAL_HINTS.get(-code)
    number = f" ({-code})" if name.startswith("SIG") else ""
    return f"killed by {name}{number}" + (f": {hint}" if hint else "")


def file_name(node: NodePlan, rank: int) -> str:
    """
    Name of the file with a rank's output.

    >>> file_name(NodePlan("fe80::1%eth0", 1, 2, 2, "", "", (), {}), 3)
    'rank-00003-fe80__1_eth0.log'
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", node.node)[:100]
    return f"node{node.rank}-launcher.log" if rank == LAUNCHER else f"rank-{rank:05d}-{safe}.log"


@dataclass
class _Partial:
    file: str
    prefix: str
    data: bytes = b""
    since_s: float = 0.0


class Pump:
    """Runs actions in a thread: a stopped terminal or dead file server cannot delay the nodes' beats."""

    def __init__(self, name: str, most_bytes: int) -> None:
        self._room_bytes = most_bytes
        self._lock = threading.RLock()
        self._closed = False
        self._waiting: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        """None is the end."""
        self.problem = ""
        """The error of a failed action; later actions are still run."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, action: Callable[[], None], size_bytes: int) -> bool:
        """Queue an action that writes this many bytes; False if there is no room."""
        with self._lock:
            if self._closed or size_bytes > self._room_bytes:
                return False
            self._room_bytes -= size_bytes
            self._waiting.put((action, size_bytes))
            return True

    def close(self, timeout_s: float) -> bool:
        with self._lock:
            self._closed = True
            self._waiting.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while waiting := self._waiting.get():
            action, size_bytes = waiting
            try:
                action()
            # an exception must not end the thread, which would lose everything that follows
            except Exception as error:
                self.problem = self.problem or f"{error!r} (please report this)"
            with self._lock:
                self._room_bytes += size_bytes


class Terminal(Pump):
    """Writes whole lines to the terminal; if it is not read, drops lines and reports their number."""

    def __init__(self, write: Callable[[str], object] | None) -> None:
        super().__init__("terminal", TERMINAL_BYTES)
        self._write = write
        self._missed = 0

    def lines(self, lines: list[str]) -> None:
        """Show lines, which are already safe."""
        if self._write is None or not lines:
            return
        missed = f"[{self._missed} lines not shown here; they are in the log files]\n" if self._missed else ""
        text = missed + "\n".join(lines) + "\n"
        self._missed = 0 if self.put(lambda: self._show(text), len(text)) else self._missed + len(lines)

    def later(self, action: Callable[[], object]) -> None:
        """Show something else in order; the user's terminal may be stuck, but we must not be."""

        def guarded() -> None:
            with contextlib.suppress(OSError, ValueError):
                action()

        self.put(guarded, 100)

    def _show(self, text: str) -> None:
        try:
            if self._write is not None:
                self._write(text)
        except (OSError, ValueError):
            self._write = None  # a closed pipe or a lost terminal: the files continue


class Output:
    """Writes every rank's bytes to its file, and its lines to the terminal."""

    def __init__(
        self, log_dir: Path, write: Callable[[str], object] | None, *, nccl_apart: bool = False
    ) -> None:
        """`nccl_apart`: NCCL's INFO lines go to a separate file."""
        self._nccl_apart = nccl_apart
        self.readers: list[Callable[[NodePlan, list[bytes]], object]] = []
        """Called with whole lines."""
        self.log_dir = log_dir
        self.terminal = Terminal(write)
        self.times = marks.Recorder(lambda data: self.to_file(marks.FILE, data))
        self.problem = ""
        """Why the files are incomplete; "" if they are complete."""
        self._is_problem_shown = False
        self._pump = Pump("files", FILES_BYTES)
        self._partials: dict[tuple[str, int, int], _Partial] = {}
        self._open: dict[str, int] = {}
        self._begun: set[str] = set()
        self._is_replay = self._is_shown_only = False
        self._compared: dict[str, int] = {}
        """In a replay: saved file -> its first bytes that the replay has repeated, until the file's end."""
        self._lock_fd = -1
        self._is_closed = False

    def continue_files(self) -> None:
        """
        For a replay of a run's output: a saved file is continued where the replay goes beyond it.

        A file that differs from the replay, which may have lost bytes, is kept under another name.  While
        another process writes the same files, nothing is written.
        """
        self._is_replay = True
        try:
            self._lock_fd = os.open(self.log_dir, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._is_shown_only = True
            words = f"another `ringup attach` writes the files in {printable(str(self.log_dir), 4096)}"
            self.terminal.lines([f"ringup: {words}; this one only shows the output"])
        except OSError:  # a file system without locks, a folder that does not exist
            pass

    def on_rank_output(
        self, node: NodePlan, rank: int, stream: int, data: bytes, at_s: float | None = None
    ) -> None:
        """
        Bytes of a rank (LAUNCHER: of the node's launcher), split anywhere.

        `stream` is 1 or 2, `at_s` when the node read it, on the run's clock.
        """
        is_quiet = rank == LAUNCHER and node.has_shims
        if is_quiet or not self._nccl_apart:
            self.to_file(file_name(node, rank), data, at_s)
        if is_quiet:
            return
        key = node.node, rank, stream
        if key not in self._partials:
            prefix = f"{printable(node.node, 60)}{f':{rank}' if rank >= 0 else ''}| "
            self._partials[key] = _Partial(file_name(node, rank), prefix)
        partial = self._partials[key]
        *lines, rest = (partial.data + data).split(b"\n")
        for read in self.readers if lines else ():
            read(node, lines)
        if self._nccl_apart and lines:
            nccl = [line for line in lines if NCCL_LINE in line]
            lines = [line for line in lines if NCCL_LINE not in line]
            for file, sorted_out in (partial.file, lines), (partial.file.replace("rank-", "nccl-", 1), nccl):
                self.to_file(file, b"".join(line + b"\n" for line in sorted_out), at_s)
        self._show(partial, lines)
        if lines or not partial.data:
            partial.since_s = time.monotonic()
        partial.data = rest
        if len(rest) > LONGEST_PARTIAL_BYTES:
            self._show_partial(partial)

    def on_lost_output(self, node: NodePlan, size_bytes: int) -> None:
        """The node had to drop this many bytes."""
        words = f"{show_bytes(size_bytes)} of output dropped: it came faster than it could be read"
        self.terminal.lines([f"{printable(node.node)}| [{words}]"])
        self._is_problem_shown = self._is_problem_shown or not self.problem
        self.problem = self.problem or f"{node.node}: {words}"

    def on_time(self, now_s: float) -> None:
        """Show unfinished lines that have waited long."""
        for partial in self._partials.values():
            if partial.data and now_s - partial.since_s > PARTIAL_SHOWN_AFTER_S:
                self._show_partial(partial)
                partial.since_s = now_s

    def _show_partial(self, partial: _Partial) -> None:
        self._show(partial, [partial.data])
        if self._nccl_apart:
            self.to_file(partial.file, partial.data)
        partial.data = b""

    def _show(self, partial: _Partial, lines: list[bytes]) -> None:
        self.terminal.lines([partial.prefix + clean(line.decode("utf-8", "replace")) for line in lines])

    def show_problem(self, on_event: Callable[[Event], object]) -> None:
        """Say once, while there is time to make room, that files are not complete."""
        if self.problem and not self._is_problem_shown:
            self._is_problem_shown = True
            on_event(Event("problem", f"{self.problem}; the run continues"))

    def to_file(self, name: str, data: bytes, at_s: float | None = None) -> None:
        """Append to a file of the log directory, later, in the writing thread; output arrived at `at_s`."""
        if self._is_shown_only:
            return
        if data and at_s is not None:
            self.times.output(name, at_s, len(data))
        if data and not self.later(lambda: self._append(name, data), self.log_dir / name, len(data)):
            slow = f"{self.log_dir} takes data too slowly; some output is missing there"
            self.problem = self.problem or slow

    def later(self, action: Callable[[], None], path: Path | None = None, size_bytes: int = 0) -> bool:
        """Do something with files in order; False if there is no more room."""

        def guarded() -> None:
            try:
                action()
            except OSError as error:
                lacks = "the log directory lacks output from then on"
                self.problem = self.problem or f"{path or self.log_dir}: {error.strerror}: {lacks}"

        return self._pump.put(guarded, size_bytes + 200)

    def _append(self, name: str, data: bytes) -> None:
        fd = self._file(name)
        if name in self._compared:
            data = self._new_in(name, fd, data)
            fd = self._file(name)
        while data:
            data = data[os.write(fd, data) :]

    def _file(self, name: str) -> int:
        if (fd := self._open.get(name)) is None:
            if len(self._open) >= MOST_OPEN_FILES:
                os.close(self._open.pop(next(iter(self._open))))
            is_continued = self._is_replay and name != marks.FILE
            fresh = 0 if name in self._begun or is_continued else os.O_TRUNC
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | fresh
            fd = self._open[name] = os.open(self.log_dir / name, flags, 0o644)
            if is_continued and name not in self._begun:
                self._compared[name] = 0
            self._begun.add(name)
        return fd

    def _new_in(self, name: str, fd: int, data: bytes) -> bytes:
        """The part of replayed data that a saved file does not have."""
        saved = os.pread(fd, len(data), self._compared[name])
        if not data.startswith(saved):
            self._set_aside(name, fd)
        elif len(saved) == len(data):
            self._compared[name] += len(data)
            return b""
        else:
            data = data[len(saved) :]
        self._compared.pop(name)
        return data

    def _set_aside(self, name: str, fd: int) -> None:
        """Keep a saved file under another name; the new one begins with the bytes that both have."""
        folders = (self.log_dir / KEPT_FOLDER.format(number) for number in itertools.count(1))
        kept = next(folder for folder in folders if not (folder / name).exists())
        kept.mkdir(exist_ok=True)
        (self.log_dir / name).rename(kept / name)
        lost = "the head node dropped part of the output; what was saved earlier is kept in"
        self.problem = self.problem or f"{lost} {printable(str(kept), 4096)}"
        self._open.pop(name)
        end, at = self._compared[name], 0
        try:
            while at < end:
                at += os.write(self._file(name), os.pread(fd, min(COPY_BYTES, end - at), at))
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.on_time(float("inf"))
        self.times.flush()
        try:
            self._close_files()
        finally:
            if self._lock_fd >= 0:
                os.close(self._lock_fd)

    def _close_files(self) -> None:
        self.terminal.close(2.0)
        if self.terminal.problem:
            self.problem = self.problem or f"not everything was shown: {self.terminal.problem}"
        if not self._pump.close(10.0):
            self.problem = self.problem or f"{self.log_dir} cannot be written"
            return
        if self._pump.problem:
            self.problem = self.problem or f"{self.log_dir}: not all was written: {self._pump.problem}"
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()
