"""Two TCP connections to a waiting shell in another pod, in the place of a client process with its pipes."""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass

from ringup.facts import Unreached
from ringup.reach.client import CHUNK_BYTES
from ringup.reach.ssh import Phase
from ringup.units import printable, show_seconds


@dataclass(frozen=True)
class Line:
    """A shell that waits in another pod: `out` carries its stdin and stdout, `err` its stderr."""

    out: socket.socket
    err: socket.socket
    token: str
    """Of the loop that waits there; see `boot`."""


class Wire:
    """As `client.Client`, over a `Line`; it ends with code 0 when the other side has closed both."""

    def __init__(
        self,
        line: Line,
        selector: selectors.BaseSelector,
        on_stdout: Callable[[bytes], None],
        on_stderr: Callable[[bytes], None],
        on_end: Callable[[int], None],
    ) -> None:
        self._selector, self._on_end = selector, on_end
        self._sockets = (line.out, line.err)
        self._watched: dict[int, int] = {}
        self._readers: dict[int, Callable[[], None]] = {}
        self._unsent = bytearray()
        self._closes_stdin = self._closed = False
        for connection, on_data in zip(self._sockets, (on_stdout, on_stderr), strict=True):
            connection.setblocking(False)
            fd = connection.fileno()
            self._readers[fd] = functools.partial(self._read, connection, on_data)
            self._watch(fd, selectors.EVENT_READ)

    @property
    def unsent_bytes(self) -> int:
        """Bytes given to `send` that the connection has not taken."""
        return len(self._unsent)

    def send(self, data: bytes) -> None:
        """Write to stdin what the connection takes, the rest when it takes more."""
        self._unsent += data
        self._flush()

    def close_stdin(self) -> None:
        """End of file on stdin after what was sent."""
        self._closes_stdin = True
        self._flush()

    def _watch(self, fd: int, events: int) -> None:
        """Wait for these events alone; for none of them at 0."""
        known = self._watched.get(fd, 0)
        if events and known:
            self._selector.modify(fd, events, functools.partial(self._ready, fd))
        elif events:
            self._selector.register(fd, events, functools.partial(self._ready, fd))
        elif known:
            self._selector.unregister(fd)
        self._watched[fd] = events

    def _ready(self, fd: int) -> None:
        if self._watched.get(fd, 0) & selectors.EVENT_WRITE:
            self._flush()
        if self._watched.get(fd, 0) & selectors.EVENT_READ:
            self._readers[fd]()

    def _flush(self) -> None:
        out = self._sockets[0]
        if self._closed:
            self._unsent.clear()
            return
        fd, reading = out.fileno(), self._watched[out.fileno()] & selectors.EVENT_READ
        try:
            while self._unsent:
                del self._unsent[: out.send(self._unsent[:CHUNK_BYTES])]
        except BlockingIOError:
            self._watch(fd, reading | selectors.EVENT_WRITE)
            return
        except OSError:
            self._unsent.clear()
        self._watch(fd, reading)
        if self._closes_stdin:
            with contextlib.suppress(OSError):
                out.shutdown(socket.SHUT_WR)

    def _read(self, connection: socket.socket, on_data: Callable[[bytes], None]) -> None:
        fd = connection.fileno()
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._watch(fd, self._watched[fd] & ~selectors.EVENT_READ)
        on_data(data)
        if (
            not data
            and not self._closed
            and not any(e & selectors.EVENT_READ for e in self._watched.values())
        ):
            self._on_end(0)

    waited_s = 0.0
    """Nothing of it runs here."""

    def look(self) -> None:
        """Nothing to notice beyond what the selector tells."""

    def end(self, *, spare: bool = False) -> None:
        """Close both connections: the shell there, and what it runs, get end of file."""
        self._closed = True
        for fd in [*self._watched]:
            self._watch(fd, 0)
        for connection in self._sockets:
            connection.close()

    def reap(self, wait_s: float) -> None:
        """There is no process."""


class Errors:
    """The node's own stderr, nothing of a client's in it."""

    phase = Phase.LOGGED_IN

    def feed(self, data: bytes) -> bytes:
        """All of it is the node's."""
        return data

    def was_dropped(self) -> bool:
        """A pod dials once."""
        return False

    def ended_early(self, code: int, noise: str) -> Unreached:
        """The shell there ended before it answered."""
        return Unreached(
            "no-answer", f"the pod's shell ended before it answered: {printable(noise, 300) or '-'}"
        )

    def stuck(self, silent_s: float) -> Unreached:
        """Connected, and silent."""
        return Unreached("no-answer", f"the pod's shell did not answer within {show_seconds(silent_s)}")

    def lost(self, code: int, show_signal: Callable[[int], str]) -> Unreached:
        """It has served."""
        return Unreached("no-answer", "the connection to the pod is lost: it has ended, or its network has")
