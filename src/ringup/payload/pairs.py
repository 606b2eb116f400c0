"""
Who reaches whom: runs on every node at once, told what to do on stdin, one JSON object a line.

    begin -> listens on every address it is given, answers `ready` with the ports
    try   -> connects to every target at once, reports `links`, then `done`
    end   -> leaves; so do end-of-file and the deadline

Last of the four parts of one program: pairs_wire, pairs_names and counters come before it.
"""
# ruff: noqa: F821

import errno
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time


GUEST_S = 5.0
"""How long a connection that came in is kept when there is no room for others."""


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
        self.waiting, self.paused = [], []
        self.look_ups = None

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

    def pause(self, listening):
        """Out of file descriptors: who comes now waits in the kernel until some are free again."""
        self.selector.unregister(listening.sock)
        del self.watched[listening.sock]
        self.paused.append(listening)

    def resume(self, now):
        if not self.paused:
            return
        for guest in [g for g in self.guests if now - g.since > GUEST_S]:
            guest.close()
        for listening in self.paused:
            self.watch(listening.sock, listening, selectors.EVENT_READ)
        self.paused = []

    def has_room(self):
        return len(self.watched) - len(self.guests) < self.room

    def say(self, **message):
        data = json.dumps(message).encode() + b"\n"
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
            self.look_ups = LookUps(order["names"], order["reverse"], order["lookup_s"])
            self.selector.register(self.look_ups.pipe, selectors.EVENT_READ, self)

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
            self.say(op="done", counters=[] if self.alone else self.counted(), waited=self.waited_s())

    def waited_s(self):
        """Seconds this process was ready to run and had no processor; 0 where that is not counted."""
        try:
            with open("/proc/self/schedstat", "rb") as file:
                return int(file.read(200).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def counted(self):
        """The error counters, to be compared with those of before; none where the kernel does not tell."""
        try:
            return count_all("")
        except (OSError, ValueError, IndexError):
            return []

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

    def ready(self, mask):
        """The look-ups have ended, or their time has."""
        self.selector.unregister(self.look_ups.pipe)
        self.say(op="looked-up", **self.look_ups.result())
        self.look_ups = None

    def do_end(self, order):
        os._exit(0)

    def run(self):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)
        self.selector.register(0, selectors.EVENT_READ, Orders(self))
        tick = 0.0
        while True:
            idle = self.done and self.look_ups is None and not self.paused
            for key, mask in self.selector.select(None if idle else TICK_S):
                # What one handler closed must not be handed to the next.
                if isinstance(key.fileobj, int) or key.fileobj in self.watched:
                    key.data.ready(mask)
            now = time.monotonic()
            if self.look_ups is not None and now >= self.look_ups.until:
                self.ready(0)
            due = now >= tick
            if due:
                tick = now + TICK_S
                self.resume(now)
            if not self.done and (due or all(a.over for a in self.active)):
                self.advance()


if __name__ == "__main__":
    try:
        Node().run()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
