"""
Output of the ranks on its way to the launcher, kept in bounds on the node.

First in memory, then in segment files of the run's directory; when both are full the
oldest goes and how much it was is said.  A disk that is full or gone means memory alone.
"""

import binascii
import collections
import json
import os
import time

MEMORY_BYTES = 4 << 20
SEGMENT_BYTES = 2 << 20
DISK_BYTES = 256 << 20
JOIN_BYTES = 32 << 10
"""Small writes of one rank are joined up to this size..."""
RIPE_S = 0.02
"""...if they come within this time: unbuffered, Python writes every argument of a `print` by itself."""


def encode(message):
    """One message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Spool:
    """First in, first out; `pop` gives (line, bytes of output in it)."""

    def __init__(self, directory, memory_bytes=MEMORY_BYTES, disk_bytes=DISK_BYTES):
        self.directory = directory
        self.segment_bytes = min(SEGMENT_BYTES, max(1, memory_bytes // 2))
        self.head_limit = memory_bytes - self.segment_bytes
        self.disk_bytes = disk_bytes
        self.head = collections.deque()  # (line, size), oldest
        self.head_size = 0
        self.segments = collections.deque()  # (path, size), in files
        self.segment_number = 0
        self.tail = []  # [rank, stream, at, bytearray], newest
        self.tail_size = 0
        self.ripe_s = RIPE_S
        self.dropped = 0  # bytes, told by the next `pop`

    def __len__(self):
        """Bytes of output held."""
        return self.head_size + self.tail_size + sum(size for _, size in self.segments)

    def push(self, rank, stream, at, data):
        """Add output of a rank (-1: the launcher's own)."""
        last = self.tail[-1] if self.tail else None
        if last and last[0] == rank and last[1] == stream and len(last[3]) + len(data) <= JOIN_BYTES:
            last[3].extend(data)
        else:
            self.tail.append([rank, stream, at, bytearray(data)])
        self.tail_size += len(data)
        if self.tail_size >= self.segment_bytes:
            self._put_away()

    def wait_s(self):
        """Seconds until `pop` has something; infinite when there is nothing."""
        if self.dropped or self.head or self.segments or self.tail_size >= JOIN_BYTES:
            return 0.0
        return max(0.0, self.tail[0][2] + self.ripe_s - time.monotonic()) if self.tail else float("inf")

    def pop(self):
        """The oldest line and how many bytes of output it carries; None when empty."""
        if self.dropped:
            count, self.dropped = self.dropped, 0
            return encode({"type": "dropped", "bytes": count}), 0
        if not self.head:
            self._refill()
        if not self.head:
            return None
        line, size = self.head.popleft()
        self.head_size -= size
        return line, size

    def close(self):
        """Remove the files."""
        while self.segments:
            self._remove(self.segments.popleft()[0])

    def _lines(self):
        """The newest part, encoded, which is thereby taken out."""
        lines = []
        for rank, stream, at, data in self.tail:
            text = binascii.b2a_base64(bytes(data), newline=False).decode()
            message = {"type": "out", "rank": rank, "fd": stream, "at": round(at, 6), "data": text}
            lines.append((encode(message), len(data)))
        self.tail, self.tail_size = [], 0
        return lines

    def _put_away(self):
        size = self.tail_size
        lines = self._lines()
        if not self.segments and self.head_size + size <= self.head_limit:
            self.head.extend(lines)
            self.head_size += size
            return
        while self.segments and sum(s for _, s in self.segments) + size > self.disk_bytes:
            path, lost = self.segments.popleft()
            self.dropped += lost
            self._remove(path)
        self.segment_number += 1
        path = os.path.join(self.directory, "spool-%d" % self.segment_number)
        if size <= self.disk_bytes and self._write(path, lines):
            self.segments.append((path, size))
            return
        # The disk takes nothing: what is oldest in memory makes room, files first.
        while self.segments:
            path, lost = self.segments.popleft()
            self.dropped += lost
            self._remove(path)
        self.head.extend(lines)
        self.head_size += size
        while self.head and self.head_size > self.head_limit:
            lost = self.head.popleft()[1]
            self.head_size -= lost
            self.dropped += lost

    def _write(self, path, lines):
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            with os.fdopen(fd, "wb") as file:
                for line, size in lines:
                    file.write(b"%08d " % size + line)
            return True
        except OSError:
            self._remove(path)
            return False

    def _refill(self):
        if self.segments:
            path, size = self.segments.popleft()
            try:
                with open(path, "rb") as file:
                    for line in file:
                        self.head.append((line[9:], int(line[:8])))
                        self.head_size += int(line[:8])
            except (OSError, ValueError):
                self.dropped += size
            self._remove(path)
        elif self.tail:
            size = self.tail_size
            self.head.extend(self._lines())
            self.head_size += size

    @staticmethod
    def _remove(path):
        try:
            os.unlink(path)
        except OSError:
            pass


TRACEBACK = b"Traceback (most recent call last):"
CHAINED = (b"another exception occurred:", b"direct cause of the following exception:")
TAIL_LINES = 60
TAIL_LINE_BYTES = 2000


class Tail:
    """The last lines of one rank, and when its last traceback began."""

    def __init__(self):
        self.lines = collections.deque(maxlen=TAIL_LINES)
        self.rest = {1: b"", 2: b""}
        self.traceback_at = 0.0

    def feed(self, stream, at, data):
        """More output, read at a monotonic time."""
        text = self.rest[stream] + data
        found = text.rfind(TRACEBACK)
        # In a chain of exceptions the first one is where it went wrong.
        if found >= 0 and not self._is_chained(text[:found]):
            self.traceback_at = at
        *whole, rest = text.rsplit(b"\n", TAIL_LINES)
        if len(whole) > TAIL_LINES:
            whole = whole[1:]
        self.lines.extend(line.rsplit(b"\n", 1)[-1][-TAIL_LINE_BYTES:] for line in whole)
        self.rest[stream] = rest[-TAIL_LINE_BYTES:]

    def _is_chained(self, before):
        last = [line for line in (*self.lines, *before[-500:].split(b"\n")) if line.strip()][-1:]
        return bool(last) and last[0].rstrip().endswith(CHAINED) and self.traceback_at > 0

    def text(self):
        """The lines as base64 text."""
        lines = [*self.lines, *(rest for rest in self.rest.values() if rest)]
        return binascii.b2a_base64(b"\n".join(lines[-TAIL_LINES:]), newline=False).decode()
