"""The client of a node: a process with three pipes that never block, or a pod's open connection."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import resource
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ringup.transport import cpu
from ringup.transport.interrupts import ENDING

if TYPE_CHECKING:
    from ringup.transport.pod_link import Link

CHUNK_BYTES = 65536
LAST_CHUNKS = 64
"""Chunks read from pipes that stay open after their process is gone; a pipe holds at most 1 MiB."""
KILL_AFTER_S = 1.0
"""Seconds from SIGTERM to SIGKILL."""


def allow_open_files(count: int) -> None:
    """Raise this process's soft limit of open files towards `count`, up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # macOS refuses values above kern.maxfilesperproc; connections beyond it then report the error.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Deliver ending signals only after the block: between fork and bookkeeping they would lose a child."""
    before: dict[int, Any] = {}
    came: list[int] = []
    number: int
    if threading.current_thread() is threading.main_thread():
        for number in ENDING:
            if callable(signal.getsignal(number)):
                before[number] = signal.signal(number, lambda n, _frame: came.append(n))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


FDS_SPARE = 128
"""Open files of this process besides connections."""
STDIN, STDOUT, STDERR = range(3)
"""The streams of a process; also the kinds of a pod's frames with bytes of its shell."""


class Client:
    """
    The process and its pipes, under a selector whose keys' data are the functions to call.

    `on_data` gets the number of a stream and a chunk, b"" at its end; `on_end` gets the exit code (negative
    for a signal).  OSError if it cannot be started.  Made under `signals_held`, so that no signal comes
    before the process is recorded.
    """

    def __init__(
        self,
        argv: Sequence[str],
        selector: selectors.BaseSelector,
        on_data: Callable[[int, bytes], None],
        on_end: Callable[[int], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._selector, self._on_data, self._on_end = selector, on_data, on_end
        self._watched: dict[int, Callable[[], None]] = {}
        self._reading: dict[int, Callable[[], None]] = {}
        """Streams that have not ended."""
        self._unsent = bytearray()
        self._closes_stdin = False
        self._is_spared = False
        self._killed_at = math.inf
        self._waited_s = 0.0
        # In its own session: the terminal's Ctrl-C reaches only us; if we die, end of file on stdin ends it.
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=env,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        try:
            for pipe in self._pipes:
                os.set_blocking(pipe.fileno(), False)
            for stream in (STDOUT, STDERR):
                fd = self._pipes[stream].fileno()
                self._reading[fd] = functools.partial(self._read, fd, stream)
                self._watch(fd, selectors.EVENT_READ, self._reading[fd])
        except BaseException:
            self.end()
            self.reap(KILL_AFTER_S)
            raise

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    @property
    def waited_s(self) -> float:
        """Seconds the process was ready to run and had no CPU; still known after its end."""
        if self._process.returncode is None:
            self._waited_s = max(self._waited_s, cpu.waited_s(self._process.pid))
        return self._waited_s

    def send(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def close_stdin(self) -> None:
        self._closes_stdin = True
        self._flush()

    def hold(self, is_held: bool) -> None:
        for fd, read in self._reading.items():
            if is_held:
                self._unwatch(fd)
            else:
                self._watch(fd, selectors.EVENT_READ, read)

    def _flush(self) -> None:
        stdin = self._pipes[0]
        if stdin.closed:
            self._unsent.clear()
            return
        try:
            while self._unsent:
                del self._unsent[: os.write(stdin.fileno(), self._unsent[:CHUNK_BYTES])]
        except BlockingIOError:
            self._watch(stdin.fileno(), selectors.EVENT_WRITE, self._flush)
            return
        except OSError:
            # The process is ending; its last output on stderr says why.
            self._unsent.clear()
        self._unwatch(stdin.fileno())
        if self._closes_stdin:
            stdin.close()

    def _watch(self, fd: int, events: int, action: Callable[[], None]) -> None:
        if fd not in self._watched:
            self._selector.register(fd, events, action)
        self._watched[fd] = action

    def _unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None):
            self._selector.unregister(fd)

    def _read(self, fd: int, stream: int) -> None:
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._unwatch(fd)
            self._reading.pop(fd, None)
        self._on_data(stream, data)
        if not data and not self._reading:
            # Both streams have ended: so has the process, or it will in a moment.
            self._waited_s = self.waited_s
            if (code := self._wait(0.05)) is not None:
                self._on_end(code)

    def look(self) -> None:
        """Notice a process that has ended while its descendants still hold its pipes."""
        self._waited_s = self.waited_s  # the kernel forgets it with the process
        if (code := self._poll()) is None:
            return
        for _ in range(LAST_CHUNKS):
            for read in [*self._reading.values()]:
                read()
        self._on_end(code)

    def end(self, *, spare: bool = False) -> None:
        """Close the pipes and, unless it outlives us, send SIGTERM to the process and its descendants."""
        self._is_spared = spare
        self._reading.clear()
        for fd in [*self._watched]:
            self._unwatch(fd)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        if self._poll() is None and not spare:
            self._killed_at = min(self._killed_at, time.monotonic() + KILL_AFTER_S)
            self._signal(signal.SIGTERM)

    def is_gone(self, now: float) -> bool:
        """Whether the ended process has been reaped; one that ignores SIGTERM is killed."""
        if self._poll() is None and now > self._killed_at:
            self._signal(signal.SIGKILL)
        return self._process.returncode is not None

    def reap(self, wait_s: float) -> None:
        if self._is_spared:
            return
        if self._wait(wait_s) is None:
            self._signal(signal.SIGKILL)
            self._wait(math.inf)

    def _poll(self) -> int | None:
        """The exit code at the end; not by Popen, whose lock a signal handler's exception can leave taken."""
        process = self._process
        if process.returncode is None:
            try:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:  # interrupted just after it was reaped; Popen also returns 0
                pid, status = process.pid, 0
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode

    def _wait(self, limit_s: float) -> int | None:
        until = time.monotonic() + limit_s
        while self._poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        return self._poll()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, number)


class Wire:
    """Like `Client`, for a shell in another pod, in frames of its link; ends with 0 after both streams."""

    def __init__(
        self,
        link: Link,
        selector: selectors.BaseSelector,
        on_data: Callable[[int, bytes], None],
        on_end: Callable[[int], None],
    ) -> None:
        self._link, self._on_data, self._on_end = link, on_data, on_end
        self._open = [STDOUT, STDERR]
        self._link.attach(selector, self._on_frame, self._on_lost)

    @property
    def unsent_bytes(self) -> int:
        return self._link.unsent_bytes

    def send(self, data: bytes) -> None:
        if data:
            self._link.send(STDIN, data)

    def close_stdin(self) -> None:
        self._link.send(STDIN, b"")

    def _on_frame(self, kind: int, data: bytes) -> None:
        if kind not in self._open:
            raise ConnectionError("a frame that is not expected here")
        if not data:
            self._open.remove(kind)
        self._on_data(kind, data)
        if not self._open:
            self._on_end(0)

    def _on_lost(self, _error: OSError) -> None:
        for kind in [*self._open]:
            self._on_frame(kind, b"")

    waited_s = 0.0
    """It has no process here."""

    def look(self) -> None:
        """The selector reports everything."""

    def end(self, *, spare: bool = False) -> None:
        """Close the connection: the shell there, and its processes, get end of file."""
        self._link.close()

    def reap(self, wait_s: float) -> None:
        """There is no process."""

    def is_gone(self, now: float) -> bool:
        return True
