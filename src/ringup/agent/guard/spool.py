"""Output of the ranks on its way to the launcher, in bounded memory: the oldest is dropped and counted."""

import binascii
import collections
import json
import time

MEMORY_BYTES = 32 << 20
PIECE_COST_BYTES = 200
"""Memory of a piece in addition to its output."""
JOIN_BYTES = 32 << 10
"""Small writes of one rank are joined up to this size..."""
RIPE_S = 0.02
"""...if they come within this time: unbuffered, Python writes every argument of a `print` separately."""


def encode(message):
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class Spool:
    """First in, first out; `pop` gives (line, bytes of output in it)."""

    def __init__(self):
        self.pieces = collections.deque()  # [rank, stream, at, bytearray], oldest first
        self.size, self.ripe_s = 0, RIPE_S
        self.dropped = 0  # bytes, reported by the next `pop`

    def __len__(self):
        return self.size

    def push(self, rank, stream, at, data):
        last = self.pieces[-1] if self.pieces else None
        if last and last[:2] == [rank, stream] and len(last[3]) + len(data) <= JOIN_BYTES:
            last[3].extend(data)
        else:
            self.pieces.append([rank, stream, at, bytearray(data)])
        self.size += len(data)
        while self.size + PIECE_COST_BYTES * len(self.pieces) > MEMORY_BYTES:
            lost = len(self.pieces.popleft()[3])
            self.size -= lost
            self.dropped += lost

    def wait_s(self):
        """Seconds until `pop` has something; infinite if the spool is empty."""
        if self.dropped or self.size >= JOIN_BYTES:
            return 0.0
        return max(0.0, self.pieces[0][2] + self.ripe_s - time.monotonic()) if self.pieces else float("inf")

    def pop(self):
        """The oldest line and how many bytes of output it carries; None when empty."""
        if self.dropped:
            count, self.dropped = self.dropped, 0
            return encode({"type": "dropped", "bytes": count}), 0
        if not self.pieces:
            return None
        rank, stream, at, data = self.pieces.popleft()
        self.size -= len(data)
        text = binascii.b2a_base64(bytes(data), newline=False).decode()
        message = {"type": "out", "rank": rank, "fd": stream, "at": round(at, 6), "data": text}
        return encode(message), len(data)


TRACEBACK = b"Traceback (most recent call last):"
CHAINED = (b"another exception occurred:", b"direct cause of the following exception:")
TAIL_LINES = 60
TAIL_LINE_BYTES = 2000


class Tail:
    """The last lines of one rank, and when its last traceback began."""

    def __init__(self):
        self.lines, self.rest = collections.deque(maxlen=TAIL_LINES), {1: b"", 2: b""}
        self.traceback_at = 0.0

    def feed(self, stream, at, data):
        """More output, read at a monotonic time."""
        text = self.rest[stream] + data
        found = text.rfind(TRACEBACK)
        if found >= 0:
            before = (*self.lines, *text[:found][-500:].split(b"\n"))
            last = next((line for line in reversed(before) if line.strip()), b"")
            # In a chain of exceptions the first traceback counts.
            is_chained = self.traceback_at > 0 and last.rstrip().endswith(CHAINED)
            self.traceback_at = self.traceback_at if is_chained else at
        *whole, rest = text.rsplit(b"\n", TAIL_LINES)
        self.lines.extend(line.rpartition(b"\n")[2][-TAIL_LINE_BYTES:] for line in whole)
        self.rest[stream] = rest[-TAIL_LINE_BYTES:]

    def text(self):
        lines = [*self.lines, *(rest for rest in self.rest.values() if rest)]
        return binascii.b2a_base64(b"\n".join(lines[-TAIL_LINES:]), newline=False).decode()
