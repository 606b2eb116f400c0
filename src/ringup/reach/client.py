"""A child process with three pipes that never block: the ssh client, or a shell on this machine."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from ringup.reach import cpu

CHUNK_BYTES = 65536
LAST_CHUNKS = 64
"""Chunks read from pipes that stay open when their process is gone; a pipe holds 1 MiB at most."""


class Client:
    """
    The process and its pipes, under a selector whose keys' data are what to call.

    `on_stdout` and `on_stderr` hear chunks, and b"" at the end of the stream; `on_end` hears
    the exit code (negative for a signal) once the process is gone.  OSError when it cannot
    be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        selector: selectors.BaseSelector,
        on_stdout: Callable[[bytes], None],
        on_stderr: Callable[[bytes], None],
        on_end: Callable[[int], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._selector = selector
        self._on_end = on_end
        self._watched: dict[int, Callable[[], None]] = {}
        self._readers: list[int] = []
        self._unsent = bytearray()
        self._closes_stdin = False
        self._is_spared = False
        self._waited_s = 0.0
        # A session of its own keeps the terminal's Ctrl-C for us to handle; when we die, the
        # end of file on stdin ends it.
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
        for pipe in self._pipes:
            os.set_blocking(pipe.fileno(), False)
        for pipe, on_data in ((self._process.stdout, on_stdout), (self._process.stderr, on_stderr)):
            fd = pipe.fileno()
            self._readers.append(fd)
            self._watch(fd, selectors.EVENT_READ, functools.partial(self._read, fd, on_data))

    @property
    def unsent_bytes(self) -> int:
        """Bytes given to `send` that the pipe has not taken."""
        return len(self._unsent)

    @property
    def waited_s(self) -> float:
        """Seconds the process was ready to run and had no processor; stays known when it has ended."""
        if self._process.returncode is None:
            self._waited_s = max(self._waited_s, cpu.waited_s(self._process.pid))
        return self._waited_s

    def send(self, data: bytes) -> None:
        """Write to stdin what the pipe takes, the rest when it takes more."""
        self._unsent += data
        self._flush()

    def close_stdin(self) -> None:
        """End of file on stdin after what was sent."""
        self._closes_stdin = True
        self._flush()

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
            # The process is ending; its last words on stderr say why.
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

    def _read(self, fd: int, on_data: Callable[[bytes], None]) -> None:
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._unwatch(fd)
        on_data(data)
        if not data and not any(reader in self._watched for reader in self._readers):
            # Both streams have ended: so has the process, or it will in a moment.
            self._waited_s = self.waited_s
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._on_end(self._process.wait(timeout=0.05))

    def look(self) -> None:
        """Notice a process that ended while something it started still holds its pipes."""
        self._waited_s = self.waited_s  # the kernel forgets it with the process
        code = self._process.poll()
        if code is None:
            return
        for _ in range(LAST_CHUNKS):
            for fd in self._readers:
                if fd in self._watched:
                    self._watched[fd]()
        self._on_end(code)

    def end(self, *, spare: bool = False) -> None:
        """Close the pipes and, unless it is to be spared, ask the process and what it started to end."""
        self._is_spared = spare
        for fd in [*self._watched]:
            self._unwatch(fd)
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        if self._process.poll() is None and not spare:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def reap(self, wait_s: float) -> None:
        """Wait for the ended process; past `wait_s` it is killed."""
        if self._is_spared:
            return
        try:
            self._process.wait(timeout=wait_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
