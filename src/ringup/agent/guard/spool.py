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
    """The last lines of one rank with the title of a long traceback, and when its last traceback began."""

    def __init__(self):
        self.lines, self.rest = collections.deque(maxlen=TAIL_LINES), {1: b"", 2: b""}
        self.traceback_at = 0.0
        self.title, self.title_stream = b"", 0  # of the last traceback, while its exception is in `lines`
        self.after = 0  # lines from its exception on; 0 among its frames

    def feed(self, stream, at, data):
        """More output, read at a monotonic time."""
        text = self.rest[stream] + data
        if (found := text.rfind(TRACEBACK)) >= 0:
            before = (*self.lines, *text[:found][-500:].split(b"\n"))
            last = next((line for line in reversed(before) if line.strip()), b"")
            # In a chain of exceptions the first traceback counts.
            is_chained = self.traceback_at > 0 and last.rstrip().endswith(CHAINED)
            self.traceback_at = self.traceback_at if is_chained else at
        if found >= 0 or self.title:
            self._follow(stream, text, found)
        *whole, rest = text.rsplit(b"\n", TAIL_LINES)
        self.lines.extend(line.rpartition(b"\n")[2][-TAIL_LINE_BYTES:] for line in whole)
        self.rest[stream] = rest[-TAIL_LINE_BYTES:]

    def _follow(self, stream, text, found):
        """Keep the title of a traceback until its exception has left `lines`; frames are indented."""
        begin = 0
        if found >= 0:
            begin = text.find(b"\n", found) + 1
            title = text[text.rfind(b"\n", 0, found) + 1 : max(0, begin - 1)]  # empty if not complete
            self.title, self.title_stream, self.after = title[-TAIL_LINE_BYTES:], stream, 0
        lines = text[begin:].split(b"\n")[:-1]
        if self.after:
            self.after += len(lines)
        elif self.title and stream == self.title_stream:
            # torch writes "[rank3]: " before each line.
            indented = (b" ", b"\t", self.title.partition(TRACEBACK)[0] + b" ")
            frames = next((n for n, line in enumerate(lines) if not line.startswith(indented)), len(lines))
            self.after = len(lines) - frames
        if self.after >= TAIL_LINES:
            self.title = b""

    def text(self):
        lines = [*self.lines, *(rest for rest in self.rest.values() if rest)][-TAIL_LINES:]
        if self.title and not any(TRACEBACK in line for line in lines):
            lines[:1] = [self.title]
        return binascii.b2a_base64(b"\n".join(lines), newline=False).decode()
