"""
Connections of the pair test: what comes in, what goes out, and when an attempt is over.

First of the three parts of one program (see probes/pairs.py); the others are pairs_names
and pairs.  On the wire: the caller sends magic, the round's token and the size of the large message; the
listener answers with magic and its own node's token, then gives back what comes: one byte
at once (so a path that loses full-size packets one way only is told from the other way),
then as many bytes as it received.  Whoever does not know the tokens proves nothing.
"""

import errno
import os
import selectors
import socket
import sys
import time

MAGIC = b"ringup-1"
TOKEN_BYTES = 16
HELLO_BYTES = len(MAGIC) + TOKEN_BYTES + 4
REPLY_BYTES = len(MAGIC) + TOKEN_BYTES
LARGE_MAX = 1 << 20
BLOCK = bytes(1 << 16)

FRESH_S = (0.0, 0.3, 0.7, 1.2, 1.8, 2.5)
"""
When a further connection to a silent target is opened, in seconds after the first.

Linux repeats a lost SYN after 1 and 3 s only: under 20 % loss each way one connection in 20
has not come about after 3.5 s.  With these it is one in a million.
"""
LARGE_FRESH_S = (0.0, 0.8, 1.6)
LARGE_S = 3.0
"""Patience with the large message: Linux repeats a lost segment after 0.2, 0.6, 1.4 and 3 s."""
EXPLAIN_AFTER_S = 1.0
EXPLAIN_PATIENCE_S = 2.4
HALF_OPEN_AFTER_S = 2.8
"""When connections that came in and were never completed are looked for."""
TICK_S = 0.05

CONNECTED, SMALL, THERE, BACK, WHOLE = 1, 2, 3, 4, 5

WORDS = {
    errno.ECONNREFUSED: "connection refused",
    errno.EHOSTUNREACH: "no route to host",
    errno.ENETUNREACH: "network unreachable",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timed out",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EADDRNOTAVAIL: "address not available",
}
FINAL = ("connection refused", "network unreachable", "permission denied", "address not available")
"""Words after which the same attempt gives the same answer."""

SO_BINDTODEVICE = 25
TCP_INFO_BYTES = 224
RTT, RETRANSMITTED, SEGMENTS, DELIVERY_RATE, TWICE = 68, 100, 136, 160, 216
"""
Offsets in struct tcp_info (linux/tcp.h): tcpi_rtt (microseconds), tcpi_total_retrans, tcpi_segs_out,
tcpi_delivery_rate (64 bits, bytes a second), tcpi_dsack_dups (4.19).
"""


def kernel_counts(sock, *offsets):
    """Figures of struct tcp_info, 0 where there are none; the handshake's rtt holds none of our own delay."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except (OSError, AttributeError):
        info = b""
    return [int.from_bytes(info[at : at + 4], sys.byteorder) for at in offsets]


def words(number):
    return WORDS.get(number) or os.strerror(number).lower()


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


class Guest:
    """A connection that came in."""

    def __init__(self, node, sock):
        self.node, self.sock = node, sock
        self.hello, self.out = b"", b""
        self.size = self.received = self.sent = 0
        self.since = time.monotonic()

    def ready(self, mask):
        try:
            if mask & selectors.EVENT_READ:
                data = self.sock.recv(1 << 18)
                if not data:
                    return self.close()
                if len(self.hello) < HELLO_BYTES:
                    data = self.greet(data)
                    if data is None:
                        return self.close()
                if data and not self.received:
                    self.out += b"a"
                self.received += len(data)
            self.give()
        except OSError:
            self.close()

    def greet(self, data):
        """The bytes after the hello; None for a stranger."""
        self.hello += data
        rest = self.hello[HELLO_BYTES:]
        self.hello = self.hello[:HELLO_BYTES]
        if not self.hello.startswith(self.node.hello[: len(self.hello)]):
            return None
        if len(self.hello) == HELLO_BYTES:
            self.size = min(int.from_bytes(self.hello[-4:], "big"), LARGE_MAX)
            self.out = self.node.reply
        return rest

    def give(self):
        try:
            while self.out:
                self.out = self.out[self.sock.send(self.out) :]
            owed = min(self.received, self.size)
            while self.sent < owed:
                self.sent += self.sock.send(BLOCK[: owed - self.sent])
            self.node.watch(self.sock, self, selectors.EVENT_READ)
        except BlockingIOError:
            self.node.watch(self.sock, self, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def close(self):
        self.node.forget(self.sock)
        self.node.guests.pop(self, None)


class Try:
    """One connection of an attempt; several may be under way, the best counts."""

    def __init__(self, attempt):
        self.attempt, self.node = attempt, attempt.node
        self.stage, self.read, self.sent, self.began = 0, b"", 0, 0.0
        self.given_back = 0
        self.sock = socket.socket(family(attempt.address), socket.SOCK_STREAM)
        self.sock.setblocking(False)

    def start(self):
        attempt = self.attempt
        if attempt.kind == "device":
            self.sock.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, attempt.value.encode() + b"\0")
        source = attempt.value if attempt.kind == "source" else self.node.alone
        if source:
            self.sock.bind((source, 0))
        number = self.sock.connect_ex((attempt.address, attempt.port))
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, "")
        attempt.source = attempt.source or self.sock.getsockname()[0]
        self.began = time.monotonic()
        self.node.watch(self.sock, self, selectors.EVENT_WRITE)

    def ready(self, mask):
        try:
            if not self.stage:
                self.connected()
            else:
                if mask & selectors.EVENT_READ:
                    self.hear()
                if self.stage >= SMALL and self.sent < self.attempt.size and self.sock.fileno() >= 0:
                    self.pour()
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            self.attempt.lost(self, words(error.errno))

    def connected(self):
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, "")
        attempt = self.attempt
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.send(self.node.hello + attempt.size.to_bytes(4, "big"))
        self.node.watch(self.sock, self, selectors.EVENT_READ)
        self.stage = CONNECTED
        attempt.reached(CONNECTED, kernel_counts(self.sock, RTT)[0])

    def hear(self):
        data = self.sock.recv(1 << 18)
        if not data:
            raise OSError(errno.ECONNRESET, "")
        if self.stage == CONNECTED:
            self.read += data
            if len(self.read) < REPLY_BYTES and MAGIC.startswith(self.read[: len(MAGIC)]):
                return
            data, self.read = self.read[REPLY_BYTES:], self.read[:REPLY_BYTES]
            if self.read != MAGIC + self.attempt.expected:
                known = self.read.startswith(MAGIC)
                self.attempt.answered_wrongly(self.read[len(MAGIC) :].hex() if known else "")
                return
            self.stage = SMALL
            self.began = time.monotonic()
            self.attempt.reached(SMALL)
            if self.attempt.size:
                self.pour()
        self.given_back += len(data)
        if self.given_back > self.attempt.size:
            self.attempt.rate = self.rate()
            self.attempt.reached(WHOLE)
        elif self.given_back:
            self.attempt.reached(BACK if self.given_back > 1 else THERE)

    def rate(self):
        """MB/s as the kernel saw them delivered, or by our own clock, which other work delays."""
        low, high = kernel_counts(self.sock, DELIVERY_RATE, DELIVERY_RATE + 4)
        if sys.byteorder == "big":
            low, high = high, low
        own = 2 * self.attempt.size / max(time.monotonic() - self.began, 1e-6)
        return round(max(low | high << 32, own) / 1e6, 1)

    def pour(self):
        try:
            while self.sent < self.attempt.size:
                self.sent += self.sock.send(BLOCK[: self.attempt.size - self.sent])
            self.node.watch(self.sock, self, selectors.EVENT_READ)
        except BlockingIOError:
            self.node.watch(self.sock, self, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def close(self):
        self.node.forget(self.sock)


class Attempt:
    """One target tried in one way until it is proven, refused, or the patience ends."""

    def __init__(self, node, target, kind="routed", value="", patience=0.0):
        self.node, self.target, self.kind, self.value = node, target, kind, value
        self.number, self.address, self.port, expected, self.size, self.patience, self.explain = target
        self.expected = bytes.fromhex(expected)
        if kind != "routed":
            self.explain = []
        self.patience = patience or self.patience
        self.tries, self.opened, self.large_opened = [], 0, 0
        self.stage, self.word, self.source, self.rtt, self.rate = 0, "", "", 0, 0.0
        self.answered, self.stranger, self.over = "", False, False
        self.again = self.segments = self.unheard = 0
        self.started = time.monotonic()
        self.small_at = 0.0

    def open(self):
        # A further connection while no request was answered stands for a lost one; later
        # ones may as well stand for a peer that is slow to speak.
        self.unheard += self.opened > 0 and self.stage == 0
        self.opened += 1
        one = None
        try:
            one = Try(self)
            self.tries.append(one)
            one.start()
        except OSError as error:
            if one is not None:
                one.close()
            if error.errno in (errno.EMFILE, errno.ENFILE) and one is None:
                # Others are to end first; `tick` tries again.
                self.opened, self.word = self.opened - 1, words(error.errno)
                return
            self.lost(one, words(error.errno))

    def reached(self, stage, rtt=0):
        if stage == CONNECTED:
            self.rtt = min(self.rtt or rtt, rtt) or self.rtt
        if stage == SMALL and self.stage < SMALL:
            self.small_at, self.large_opened = time.monotonic(), 1
        self.stage = max(self.stage, stage)
        self.word = ""
        if self.stage == WHOLE or (self.stage >= SMALL and not self.size):
            self.finish()

    def lost(self, one, word):
        if self.over:
            return
        if one in self.tries:
            self.tries.remove(one)
        self.word = word
        if self.stage == 0 and word in FINAL:
            self.finish()
        elif not self.tries and self.opened >= 2:
            self.finish()
        elif not self.tries:
            self.open()

    def answered_wrongly(self, token):
        self.answered, self.stranger = token, not token
        self.word = "another node answered" if token else "stranger answered"
        self.stage = 0
        self.finish()

    def tick(self, now):
        waited = now - self.started
        if self.stage >= SMALL:
            waited = now - self.small_at
            if waited >= LARGE_S:
                return self.finish()
            due = self.large_opened < len(LARGE_FRESH_S) and waited >= LARGE_FRESH_S[self.large_opened]
            if due and self.stage < BACK and self.node.has_room():
                self.large_opened += 1
                self.open()
            return None
        if waited >= self.patience:
            return self.finish()
        if self.stage == 0 and waited >= EXPLAIN_AFTER_S:
            self.node.explain(self)
        if self.opened < len(FRESH_S) and waited >= FRESH_S[self.opened] and self.node.has_room():
            self.open()
        return None

    def finish(self):
        if self.over:
            return
        self.over = True
        for one in self.tries:
            if self.stage >= SMALL:
                again, twice, sent = kernel_counts(one.sock, RETRANSMITTED, TWICE, SEGMENTS)
                # What arrived twice was not lost but late, as on a busy machine.
                self.again += max(0, again - twice)
                self.segments += sent
            one.close()
        if self.stage >= SMALL:
            self.again += self.unheard
        self.tries = []
        nobody = not self.answered and not self.stranger and self.word != WORDS[errno.ECONNREFUSED]
        if self.stage < SMALL and nobody:
            self.node.explain(self)
        self.node.finished(self)

    def error(self):
        if self.stage >= SMALL:
            lost = {SMALL: "large message lost", THERE: "large answer lost"}
            return (self.word or lost.get(self.stage, "")) if self.size and self.stage < BACK else ""
        return self.word or ("no answer" if self.stage == CONNECTED else "timed out")

    def result(self):
        large = self.stage >= BACK if self.size and self.stage >= SMALL else None
        return [
            self.number, self.kind, self.value, self.stage >= SMALL, large, self.error(),
            self.source, self.rtt, self.rate, self.answered, self.stranger, self.segments, self.again,
        ]  # fmt: skip


class Listening:
    """A socket peers connect to."""

    def __init__(self, node, sock):
        self.node, self.sock = node, sock

    def ready(self, mask):
        while True:
            try:
                sock, _ = self.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self.node.pause(self)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = Guest(self.node, sock)
            self.node.guests[guest] = True
            self.node.watch(sock, guest, selectors.EVENT_READ)
