"""
Connections of the pair test: incoming, outgoing, and the end of an attempt.

On the wire: the caller sends magic, the round's token and the size of the large message.  The listener
answers with magic and its own node's token, then sends one byte at once (which shows the direction of a path
that loses full-size packets one way only), then as many bytes as it received.  Strangers do not know the
tokens, so their answers prove nothing.
"""

import errno
import os
import selectors
import socket
import sys
import time

from ringup.agent.proc.sockets import family

MAGIC = b"ringup-1"
TOKEN_BYTES = 16
HELLO_BYTES = len(MAGIC) + TOKEN_BYTES + 4
REPLY_BYTES = len(MAGIC) + TOKEN_BYTES
LARGE_MAX = 1 << 20
BLOCK = bytes(1 << 16)
LARGEST_READ = 1 << 18
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

FRESH_S = (0.0, 0.3, 0.7, 1.2, 1.8, 2.5)
"""
Seconds after the first connection at which further ones are opened to a silent target.

Linux repeats a lost SYN only after 1 and 3 s: with 20 % loss in each direction, one connection in 20 is not
established after 3.5 s.  With these it is one in a million.
"""
LARGE_FRESH_S = (0.0, 0.8, 1.6)
LARGE_S = 3.0
"""Seconds for the large message: Linux repeats a lost segment after 0.2, 0.6, 1.4 and 3 s."""
EXPLAIN_AFTER_S = 1.0
EXPLAIN_PATIENCE_S = 2.4
HALF_OPEN_AFTER_S = 2.8
"""Seconds until the program lists incoming connections that were never completed."""
TICK_S = 0.05

CONNECTED, SMALL, THERE, BACK, WHOLE = 1, 2, 3, 4, 5

WORDS = {
    errno.ENETUNREACH: "network unreachable",
    errno.ECONNRESET: "reset",
    errno.EPIPE: "reset",
    errno.ETIMEDOUT: "timed out",
    errno.EPERM: "permission denied",
    errno.EADDRINUSE: "port held",
    errno.EADDRNOTAVAIL: "address not available",
}
FINAL = ("connection refused", "network unreachable", "permission denied", "address not available")
"""Results that another attempt would not change."""
ANOTHER, STRANGER = "another node answered", "stranger answered"

SO_BINDTODEVICE = 25
TCP_INFO_BYTES = 224
RTT, RETRANSMITTED, SEGMENTS, DELIVERY_RATE, TWICE = 68, 100, 136, 160, 216
"""
Offsets in struct tcp_info (linux/tcp.h): tcpi_rtt (microseconds), tcpi_total_retrans, tcpi_segs_out,
tcpi_delivery_rate (64 bits, bytes a second), tcpi_dsack_dups (4.19).
"""


def kernel_counts(sock, *offsets):
    """Fields of struct tcp_info, 0 if missing; the handshake's rtt includes no delay of this program."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    except (OSError, AttributeError):
        info = b""
    return [int.from_bytes(info[at : at + 4], sys.byteorder) for at in offsets]


def words(number):
    return WORDS.get(number) or os.strerror(number).lower()


class Connection:
    """Common to both ends: `talk` is a generator that yields the events it waits for."""

    def __init__(self, node, sock):
        self.node, self.sock, self.steps = node, sock, self.talk()
        self.out, self.sent = b"", 0
        sock.setblocking(False)

    def go_on(self, mask=None):
        try:
            self.node.watch(self.sock, self.go_on, self.steps.send(mask))
        except StopIteration:
            self.close()
        except OSError as error:
            self.close()
            self.lost(words(error.errno))

    def pour(self, most):
        """Send the pending bytes first, then zeros, `most` in all; returns the events to wait for."""
        try:
            while self.out:
                self.out = self.out[self.sock.send(self.out) :]
            while self.sent < most:
                self.sent += self.sock.send(BLOCK[: most - self.sent])
        except BlockingIOError:
            return READ | WRITE
        return READ

    def close(self):
        self.node.forget(self.sock)


class Incoming(Connection):
    def __init__(self, node, sock):
        super().__init__(node, sock)
        self.since = time.monotonic()
        node.incoming.add(self)
        self.go_on()

    def talk(self):
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = b""
        while len(hello) < HELLO_BYTES:
            yield READ
            data = self.sock.recv(LARGEST_READ)
            hello += data
            if not data or not hello.startswith(self.node.hello[: len(hello)]):
                return  # a stranger
        size = min(int.from_bytes(hello[HELLO_BYTES - 4 : HELLO_BYTES], "big"), LARGE_MAX)
        received = len(hello) - HELLO_BYTES
        self.out = self.node.reply + b"a" * (received > 0)
        while data:
            mask = yield self.pour(min(received, size))
            if mask & READ:
                data = self.sock.recv(LARGEST_READ)
                if data and not received:
                    self.out += b"a"
                received += len(data)

    def lost(self, word):
        """The other end will notice it."""

    def close(self):
        super().close()
        self.node.incoming.discard(self)


class Try(Connection):
    """One connection of an attempt; several may run at once, the best result counts."""

    def __init__(self, attempt):
        self.attempt = attempt
        super().__init__(attempt.node, socket.socket(family(attempt.address), socket.SOCK_STREAM))

    def talk(self):
        attempt, sock = self.attempt, self.sock
        self.connect()
        yield WRITE
        if number := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(number, "")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.send(self.node.hello + attempt.size.to_bytes(4, "big"))
        attempt.reached(CONNECTED, kernel_counts(sock, RTT)[0])
        reply = b""
        while len(reply) < REPLY_BYTES and MAGIC.startswith(reply[: len(MAGIC)]):
            yield READ
            reply += self.receive()
        if reply[:REPLY_BYTES] != MAGIC + attempt.expected:
            token = reply[len(MAGIC) : REPLY_BYTES].hex() if reply.startswith(MAGIC) else ""
            attempt.answered_wrongly(token)
            return
        began, given_back = time.monotonic(), len(reply) - REPLY_BYTES
        attempt.reached(SMALL)
        while not attempt.over and given_back <= attempt.size:
            if given_back:
                attempt.reached(BACK if given_back > 1 else THERE)
            mask = yield self.pour(attempt.size)
            given_back += len(self.receive()) if mask & READ else 0
        if not attempt.over:
            attempt.rate = self.rate(began)
            attempt.reached(WHOLE)

    def connect(self):
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

    def receive(self):
        if not (data := self.sock.recv(LARGEST_READ)):
            raise OSError(errno.ECONNRESET, "")
        return data

    def lost(self, word):
        self.attempt.lost(self, word)

    def rate(self, began):
        """MB/s as the kernel saw them delivered, or by our own clock, which other load delays."""
        low, high = kernel_counts(self.sock, DELIVERY_RATE, DELIVERY_RATE + 4)
        own = 2 * self.attempt.size / max(time.monotonic() - began, 1e-6)
        return round(max(low | high << 32, own) / 1e6, 1)


class Attempt:
    """One target tried in one way until it is reached, refused, or out of time."""

    def __init__(self, node, target, kind="routed", value="", patience=0.0):
        self.node, self.target, self.kind, self.value = node, target, kind, value
        self.number, self.address, self.port, expected, self.size, usual, ways = target
        self.expected, self.patience = bytes.fromhex(expected), patience or usual
        self.explain = ways if kind == "routed" else []
        self.tries, self.opened, self.large_opened = [], 0, 0
        self.stage, self.word, self.source, self.rtt, self.rate = 0, "", "", 0, 0.0
        self.answered, self.over = "", False
        self.again = self.segments = self.unheard = 0
        self.started = time.monotonic()
        self.small_at = 0.0

    def open(self):
        # A second connection before the first is established means a lost SYN, a later one maybe a slow peer.
        self.unheard += self.opened > 0 and self.stage == 0
        self.opened += 1
        try:
            self.tries.append(Try(self))
        except OSError as error:
            # No descriptor is left: other attempts must end first; `tick` tries again.
            self.opened, self.word = self.opened - 1, words(error.errno)
        else:
            self.tries[-1].go_on()

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
        self.tries.remove(one)
        self.word = word
        if (self.stage == 0 and word in FINAL) or (not self.tries and self.opened >= 2):
            self.finish()
        elif not self.tries:
            self.open()

    def answered_wrongly(self, token):
        self.answered = token
        self.word = ANOTHER if token else STRANGER
        self.stage = 0
        self.finish()

    def tick(self, now):
        waited = now - self.started
        if self.stage >= SMALL:
            waited = now - self.small_at
            due = self.large_opened < len(LARGE_FRESH_S) and waited >= LARGE_FRESH_S[self.large_opened]
            if waited >= LARGE_S:
                self.finish()
            elif due and self.stage < BACK and self.node.has_room():
                self.large_opened += 1
                self.open()
        elif waited >= self.patience:
            self.finish()
        else:
            if self.stage == 0 and waited >= EXPLAIN_AFTER_S:
                self.node.explain(self)
            if self.opened < len(FRESH_S) and waited >= FRESH_S[self.opened] and self.node.has_room():
                self.open()

    def finish(self):
        if self.over:
            return
        self.over = True
        for one in self.tries:
            if self.stage >= SMALL:
                again, twice, sent = kernel_counts(one.sock, RETRANSMITTED, TWICE, SEGMENTS)
                # A packet that arrived twice was late, not lost, as on a busy machine.
                self.again += max(0, again - twice)
                self.segments += sent
            one.close()
        if self.stage >= SMALL:
            self.again += self.unheard
        self.tries = []
        if self.stage < SMALL and self.word not in (ANOTHER, STRANGER, words(errno.ECONNREFUSED)):
            self.node.explain(self)
        self.node.results.append(self.result())

    def error(self):
        if self.stage >= SMALL:
            lost = {SMALL: "large message lost", THERE: "large answer lost"}
            return (self.word or lost.get(self.stage, "")) if self.size and self.stage < BACK else ""
        return self.word or ("no answer" if self.stage == CONNECTED else "timed out")

    def result(self):
        large = self.stage >= BACK if self.size and self.stage >= SMALL else None
        return [
            self.number, self.kind, self.value, self.stage >= SMALL, large, self.error(),
            self.source, self.rtt, self.rate, self.answered, self.word == STRANGER, self.segments, self.again,
        ]  # fmt: skip
