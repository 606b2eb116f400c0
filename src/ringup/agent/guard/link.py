"""
JSON lines between a guard and its launcher or head, over two pipe ends or one socket.

Between nodes they travel inside TLS (tls.py).  Nothing here blocks.  Output waits in the spool until earlier
output is acknowledged: at most WINDOW_BYTES are in transit, so a slow reader delays no beats and no exits.
"""

import collections
import contextlib
import os
import select

import _socket as socket
from ringup.agent.guard.messages import Checker, Lines
from ringup.agent.guard.spool import encode

WINDOW_BYTES = 512 << 10
PIECE_BYTES = 4096
"""
A pipe that polls writable takes PIPE_BUF bytes without blocking.  We may not set O_NONBLOCK: the shell that
waits for us shares the open file of stdout.
"""
MOST_WAITING_BYTES = 64 << 20
"""Unread messages; above this the link counts as gone."""


class Loop:
    """Descriptors and their actions when readable."""

    def __init__(self):
        self.poll = select.poll()
        self.actions = {}

    def watch(self, fd, action):
        self.actions[fd] = action
        self.poll.register(fd, select.POLLIN)

    def forget(self, fd):
        if self.actions.pop(fd, None):
            self.poll.unregister(fd)

    def turn(self, timeout_s, writing=()):
        """Wait, then run the actions of readable descriptors; also returns when a `writing` one is ready."""
        for fd in writing:
            self.poll.register(fd, select.POLLOUT | (select.POLLIN if fd in self.actions else 0))
        ready = self.poll.poll(int(timeout_s * 1000 + 0.999))
        for fd in writing:
            if fd in self.actions:
                self.poll.register(fd, select.POLLIN)
            else:
                self.poll.unregister(fd)
        for fd, events in ready:
            action = self.actions.get(fd)
            if action and events & ~select.POLLOUT:
                action()


class Link:
    """One connection; `ended` once the other side sends nothing more, `gone` once it reads nothing more."""

    def __init__(self, read_fd, write_fd, spool, table, tls=None):
        self.read_fd, self.write_fd, self.spool, self.tls = read_fd, write_fd, spool, tls
        self.lines, self.checker = Lines(), Checker(table)
        self.control, self.control_bytes = collections.deque(), 0
        self.piece = b""  # being written: whole lines, or whole records of TLS
        self.sent = self.acknowledged = 0  # bytes of output
        self.ended = self.gone = False
        self.error = ""
        """Why it has ended or is gone, if known."""

    def send(self, message):
        """Queue a message; messages go before output."""
        self.send_line(encode(message))

    def send_line(self, line):
        self.control.append(line)
        self.control_bytes += len(line)
        self.gone = self.gone or self.control_bytes > MOST_WAITING_BYTES

    def receive(self):
        """The messages that have arrived; to be called when the read end is readable."""
        try:
            data = os.read(self.read_fd, 65536)
        except BlockingIOError:
            return []
        except OSError as error:
            self.error = self.error or os.strerror(error.errno)
            data = b""
        if not data:
            self.ended = True
        elif self.tls:
            data = self.tls.decrypt(data)
            if self.tls.problem:
                self.ended, self.error = True, self.tls.problem
        return self.take(data)

    def take(self, data):
        messages = [m for m in map(self.checker.read, self.lines.feed(data)) if m]
        for message in messages:
            self.acknowledged = max(self.acknowledged, message.get("acknowledged", 0))
        return messages

    def refused(self):
        return self.checker.refused + self.lines.too_long

    def end_writing(self):
        """Send an end of file; after a close the other side would get a reset and lose unread messages."""
        connection = socket.socket(fileno=os.dup(self.write_fd))
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        connection.close()

    def is_drained(self):
        return self.gone or not (self.piece or self.control or self.spool.dropped or len(self.spool))

    def wait_s(self):
        """Seconds until something can be sent; infinite if nothing is queued or there is no room."""
        shakes = self.tls and not self.tls.is_open
        if self.gone:
            return float("inf")
        if self.piece or (self.tls and self.tls.out.pending) or (self.control and not shakes):
            return 0.0
        has_room = not shakes and self.sent - self.acknowledged < WINDOW_BYTES
        return self.spool.wait_s() if has_room else float("inf")

    def writing(self):
        return [] if self.wait_s() > 0 else [self.write_fd]

    def flush(self):
        """Write without waiting."""
        poll = select.poll()
        poll.register(self.write_fd, select.POLLOUT)
        while self.wait_s() <= 0:
            events = poll.poll(0)
            if not events or not events[0][1] & select.POLLOUT:
                self.gone = self.gone or bool(events)
                return
            if not self.piece:
                self._next_piece()
            try:
                self.piece = self.piece[os.write(self.write_fd, self.piece[:PIECE_BYTES]) :]
            except BlockingIOError:
                return
            except OSError as error:
                self.gone, self.error = True, self.error or os.strerror(error.errno)

    def _next_piece(self):
        if self.tls and self.tls.out.pending:
            self.piece = self.tls.out.read()
            return
        if self.control:
            self.piece = self.control.popleft()
            self.control_bytes -= len(self.piece)
        else:
            self.piece, size = self.spool.pop() or (b"", 0)
            self.sent += size
        if self.tls and self.piece:
            self.piece = self.tls.encrypt(self.piece)
