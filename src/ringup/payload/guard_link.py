"""
JSON lines between a guard and whoever it answers to, over two pipe ends or one socket.

Output waits in the spool until earlier output was acknowledged: never more than WINDOW_BYTES
are on their way, so beats and exits pass a slow reader at once.  Nothing here blocks.
"""

import collections
import errno
import json
import os
import select

from guard_spool import encode

WINDOW_BYTES = 512 << 10
PIECE_BYTES = 4096
"""A pipe that polls writable takes PIPE_BUF bytes without blocking, and O_NONBLOCK is not ours to set: the
description behind stdout is shared with the shell that waits for us."""
LONGEST_LINE_BYTES = 64 << 20


class Loop:
    """Descriptors and what to do when they can be read."""

    def __init__(self):
        self.poll = select.poll()
        self.actions = {}

    def watch(self, fd, action):
        """Call `action` when `fd` is readable or at its end."""
        self.actions[fd] = action
        self.poll.register(fd, select.POLLIN)

    def forget(self, fd):
        """No longer."""
        if self.actions.pop(fd, None):
            self.poll.unregister(fd)

    def turn(self, timeout_s, writing=()):
        """Wait for something to do and do it; also returns when one of `writing` may be written."""
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


class Lines:
    """Cuts bytes into messages; lines that are none of ours are left out."""

    def __init__(self):
        self.rest = b""

    def feed(self, data):
        """The messages completed by `data`."""
        *whole, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > LONGEST_LINE_BYTES:
            self.rest = b""
        found = []
        for line in whole:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                found.append(message)
        return found


class Link:
    """One conversation; `ended` once the other side says no more, `gone` once it takes no more."""

    def __init__(self, read_fd, write_fd, spool, lines=None):
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.spool = spool
        self.lines = lines or Lines()
        self.control = collections.deque()
        self.piece = b""  # what is being written: always whole lines
        self.sent = 0  # bytes of output
        self.acknowledged = 0
        self.ended = self.gone = False

    def send(self, message):
        """A message that goes before all output."""
        self.control.append(encode(message))

    def push(self, rank, stream, at, data):
        """Output of a rank."""
        self.spool.push(rank, stream, at, data)

    def receive(self):
        """What has come, to be called when the read end is readable."""
        try:
            data = os.read(self.read_fd, 65536)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return []
            data = b""
        if not data:
            self.ended = True
            return []
        messages = self.lines.feed(data)
        for message in messages:
            acknowledged = message.get("acknowledged")
            if isinstance(acknowledged, int):
                self.acknowledged = max(self.acknowledged, acknowledged)
        return messages

    def is_drained(self):
        """Whether everything was written."""
        return self.gone or not (self.piece or self.control or self.spool.dropped or len(self.spool))

    def wait_s(self):
        """Seconds until something may go out; infinite while there is nothing or no room."""
        if self.gone:
            return float("inf")
        if self.piece or self.control:
            return 0.0
        return self.spool.wait_s() if self.sent - self.acknowledged < WINDOW_BYTES else float("inf")

    def wants_to_write(self):
        """Whether something may go out now."""
        return self.wait_s() <= 0

    def writing(self):
        """The descriptors to wait for until something may go out."""
        return (self.write_fd,) if self.wants_to_write() else ()

    def flush(self):
        """Write what the other side takes without waiting."""
        poll = select.poll()
        poll.register(self.write_fd, select.POLLOUT)
        while self.wants_to_write():
            events = poll.poll(0)
            if not events:
                return
            if not events[0][1] & select.POLLOUT:
                self.gone = True
                return
            if not self.piece:
                self._next_piece()
            try:
                done = os.write(self.write_fd, self.piece[:PIECE_BYTES])
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    self.gone = True
                return
            self.piece = self.piece[done:]

    def _next_piece(self):
        if self.control:
            self.piece = self.control.popleft()
            return
        popped = self.spool.pop()
        if popped:
            self.piece = popped[0]
            self.sent += popped[1]
