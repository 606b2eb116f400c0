"""
Who reaches whom: runs on every node at once, told what to do on stdin, one JSON object a line.

    begin -> listens on every address it is given, answers `ready` with the ports
    try   -> connects to every target at once, reports `links`, then `done`
    end   -> leaves; so do end-of-file and the deadline

On the wire: the caller sends magic, the round's token and the size of the large message; the
listener answers with magic and its own node's token, then gives back what comes: one byte
at once (so a path that loses full-size packets one way only is told from the other way),
then as many bytes as it received.  Whoever does not know the tokens proves nothing.
"""

import _thread
import errno
import json
import os
import resource
import selectors
import signal
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
TCP_INFO_RTT = slice(68, 72)
"""tcpi_rtt (microseconds) in struct tcp_info, linux/tcp.h: the handshake's, so our own delay is not in it."""


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
        info = b""
        if hasattr(socket, "TCP_INFO"):
            info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        rtt = int.from_bytes(info[TCP_INFO_RTT], sys.byteorder)
        attempt.reached(CONNECTED, self.sock.getsockname()[0], rtt)

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
            seconds = max(time.monotonic() - self.began, 1e-6)
            self.attempt.rate = round(2 * self.attempt.size / seconds / 1e6, 1)
            self.attempt.reached(WHOLE)
        elif self.given_back:
            self.attempt.reached(BACK if self.given_back > 1 else THERE)

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
        self.started = time.monotonic()
        self.small_at = 0.0

    def open(self):
        self.opened += 1
        one = None
        try:
            one = Try(self)
            self.tries.append(one)
            one.start()
        except OSError as error:
            if one is not None:
                one.close()
            self.lost(one, words(error.errno))

    def reached(self, stage, source="", rtt=0):
        if stage == CONNECTED:
            self.source = self.source or source
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
            one.close()
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
            self.source, self.rtt, self.rate, self.answered, self.stranger,
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
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not self.node.guests:
                    return
                next(iter(self.node.guests)).close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = Guest(self.node, sock)
            self.node.guests[guest] = True
            self.node.watch(sock, guest, selectors.EVENT_READ)


class Orders:
    """What the launcher says, line by line."""

    def __init__(self, node):
        self.node, self.rest = node, b""

    def ready(self, mask):
        data = os.read(0, 1 << 16)
        if not data:
            os._exit(0)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            getattr(self.node, "do_" + order["op"])(order)


class Node:
    """This node's side of the round."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.watched, self.guests, self.listening = {}, {}, []
        self.active, self.results, self.alone = [], [], ""
        self.hello = self.reply = b""
        self.tried_at, self.looked, self.done = 0.0, False, True
        self.ports = set()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
            except (OSError, ValueError):
                pass
        self.room = (8192 if soft == resource.RLIM_INFINITY else soft) // 2
        self.waiting = []
        self.speaking = _thread.allocate_lock()

    def watch(self, sock, handler, mask):
        before = self.watched.get(sock)
        if before is None:
            self.selector.register(sock, mask, handler)
        elif before != mask:
            self.selector.modify(sock, mask, handler)
        self.watched[sock] = mask

    def forget(self, sock):
        if self.watched.pop(sock, None) is not None:
            self.selector.unregister(sock)
        sock.close()

    def has_room(self):
        return len(self.watched) - len(self.guests) < self.room

    def say(self, **message):
        data = json.dumps(message).encode() + b"\n"
        with self.speaking:
            while data:
                data = data[os.write(1, data) :]

    def do_begin(self, order):
        signal.alarm(order["deadline_s"])
        self.hello = MAGIC + bytes.fromhex(order["run"])
        self.reply = MAGIC + bytes.fromhex(order["answer"])
        self.alone = order["alone"]
        ports, failed, held = {}, {}, {}
        for address in order["listen"]:
            try:
                ports[address] = self.listen(address, order["port"])
            except OSError as error:
                failed[address] = words(error.errno)
        ephemeral = [p for p in order["ephemeral"] if not self.listen_everywhere(p, False)]
        rendezvous = []
        for port in order["rendezvous"]:
            number = self.listen_everywhere(port, True)
            if number:
                held[port] = "port held" if number == errno.EADDRINUSE else words(number)
            else:
                rendezvous.append(port)
        self.say(
            op="ready", ports=ports, failed=failed, ephemeral=ephemeral, rendezvous=rendezvous, held=held
        )
        if order["names"] or order["reverse"]:
            self.look_up(order["names"], order["reverse"], order["lookup_s"])

    def listen(self, address, port):
        """The port it listens on: the wanted one, or any where that is taken."""
        try:
            return self.bound(family(address), address, port, 1)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return self.bound(family(address), address, 0, 1)

    def listen_everywhere(self, port, prove_free):
        """
        Bind as torch's store does, to the wildcard of both families; 0 or the errno.

        A node played on one address listens on that one alone; whether the port is free for
        the store is then tried without listening.
        """
        try:
            if self.alone:
                if prove_free:
                    self.bound(socket.AF_INET, "0.0.0.0", port, 1, probe=True)
                self.bound(family(self.alone), self.alone, port, 1)
                return 0
            try:
                self.bound(socket.AF_INET6, "::", port, 0)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                self.bound(socket.AF_INET, "0.0.0.0", port, 0)
        except OSError as error:
            return error.errno
        return 0

    def bound(self, kind, address, port, only_six, probe=False):
        sock = socket.socket(kind, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if kind == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_six)
            sock.bind((address, port))
            if not probe:
                sock.listen(512)
                sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        port = sock.getsockname()[1]
        if probe:
            sock.close()
        else:
            self.ports.add(port)
            self.watch(sock, Listening(self, sock), selectors.EVENT_READ)
        return port

    def do_try(self, order):
        self.tried_at, self.done, self.looked = time.monotonic(), False, False
        self.waiting = order["targets"]
        self.advance()

    def advance(self):
        """Start what has room, tell what is finished."""
        now = time.monotonic()
        while self.waiting and self.has_room():
            attempt = Attempt(self, self.waiting.pop())
            self.active.append(attempt)
            for kind, value, always in attempt.explain:
                if always:
                    self.active.append(Attempt(self, attempt.target, kind, value))
                    self.active[-1].open()
            attempt.open()
        for attempt in list(self.active):
            if not attempt.over:
                attempt.tick(now)
        self.active = [a for a in self.active if not a.over]
        if not self.looked and now - self.tried_at > HALF_OPEN_AFTER_S and not self.done:
            self.looked = True
            self.say(op="half", seen=self.half_open())
        finished = not self.active and not self.waiting
        if self.results and (finished or len(self.results) >= 64):
            self.say(op="links", links=self.results)
            self.results = []
        if finished and not self.done:
            self.done = True
            self.say(op="done")

    def explain(self, attempt):
        """The same target once more, bound to each own address and device."""
        ways, attempt.explain = attempt.explain, []
        for kind, value, always in ways:
            if not always and self.has_room():
                other = Attempt(self, attempt.target, kind, value, EXPLAIN_PATIENCE_S)
                self.active.append(other)
                other.open()

    def finished(self, attempt):
        self.results.append(attempt.result())

    def half_open(self):
        """Connections to our ports that were asked for and never completed: [from, to, port], 256 at most."""
        seen = []
        for path, size in (("/proc/net/tcp", 4), ("/proc/net/tcp6", 16)):
            try:
                with open(path) as file:
                    text = file.read(1 << 22)
            except OSError:
                continue
            for line in text.splitlines()[1:]:
                fields = line.split()
                if len(fields) > 3 and fields[3] == "03" and int(fields[1].split(":")[1], 16) in self.ports:
                    local, port = fields[1].split(":")
                    remote = fields[2].split(":")[0]
                    seen.append([self.shown(remote, size), self.shown(local, size), int(port, 16)])
        return seen[:256]

    def shown(self, text, size):
        """An address of /proc/net/tcp: host-order 32-bit words."""
        raw = bytes.fromhex(text)
        if sys.byteorder == "little":
            raw = b"".join(raw[i : i + 4][::-1] for i in range(0, size, 4))
        if size == 16 and raw[:12] == bytes(10) + b"\xff\xff":
            raw = raw[12:]
        return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)

    def look_up(self, names, addresses, lookup_s):
        """Ask the resolver in threads of their own: one that hangs holds up nothing."""
        import threading

        work = [("names", n) for n in names] + [("reverse", a) for a in addresses]
        answers, began, lock = {}, time.monotonic(), threading.Lock()
        turn = iter(work)

        def ask():
            while True:
                with lock:
                    what = next(turn, None)
                if what is None:
                    return
                start, found, error = time.monotonic(), [], ""
                try:
                    if what[0] == "names":
                        rows = socket.getaddrinfo(what[1], None, 0, socket.SOCK_STREAM)
                        found = list(dict.fromkeys(row[4][0] for row in rows))[:32]
                    else:
                        found = [socket.getnameinfo((what[1], 0), 0)[0]]
                except (OSError, UnicodeError, ValueError) as failure:
                    error = str(getattr(failure, "strerror", None) or failure).lower()[:200]
                answers[what] = [what[1], found, error, round(time.monotonic() - start, 4)]

        def report():
            end = began + lookup_s
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()))
            late = "no answer within %g s" % lookup_s
            for kind in ("names", "reverse"):
                asked = [w for w in work if w[0] == kind]
                told = [answers.get(w) or [w[1], [], late, lookup_s] for w in asked]
                self.say(op=kind, found=told)
            self.say(op="looked-up")

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(min(16, len(work)))]
        for thread in threads:
            thread.start()
        threading.Thread(target=report, daemon=True).start()

    def do_end(self, order):
        os._exit(0)

    def run(self):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)
        self.selector.register(0, selectors.EVENT_READ, Orders(self))
        tick = 0.0
        while True:
            for key, mask in self.selector.select(None if self.done else TICK_S):
                if key.fileobj in self.watched or key.fileobj == 0:
                    key.data.ready(mask)
            now = time.monotonic()
            if not self.done and (now >= tick or all(a.over for a in self.active)):
                tick = now + TICK_S
                self.advance()


if __name__ == "__main__":
    try:
        Node().run()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
