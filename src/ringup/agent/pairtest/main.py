"""
The pair test on one node; it runs on every node at once.  Orders on stdin, one JSON object per line:

    begin -> listens on every address in it, answers `ready` with the ports
    try   -> connects to every target at once, reports `links`, then `done`
    end   -> exits; so do end-of-file and the deadline
"""

import errno
import json
import os
import resource
import selectors
import signal
import socket
import time
from _thread import start_new_thread

from ringup.agent.facts.counters import all_counters
from ringup.agent.facts.names import Lookups, reverse
from ringup.agent.pairtest import connections
from ringup.agent.pairtest.connections import MAGIC, TICK_S, Attempt, Incoming, words
from ringup.agent.proc.process import waited_s
from ringup.agent.proc.sockets import ASKED_FOR, end, family, tcp

INCOMING_S = 5.0
"""Seconds for which an incoming connection is kept if there is no room for others."""
MOST_FILES = 8192


class Node:
    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.watched, self.incoming, self.rest = {}, set(), b""
        self.active, self.results, self.alone = [], [], ""
        self.hello = self.reply = b""
        self.tried_at, self.looked, self.done = 0.0, False, True
        self.ports, self.claims, self.waiting, self.paused = set(), [], [], []
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if resource.RLIM_INFINITY < soft < most:  # RLIM_INFINITY is -1
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        self.room = max(soft, most) // 2
        self.resolves, self.looked_up = False, None

    def watch(self, sock, handler, mask):
        if (before := self.watched.get(sock)) is None:
            self.selector.register(sock, mask, handler)
        elif before != mask:
            self.selector.modify(sock, mask, handler)
        self.watched[sock] = mask

    def forget(self, sock):
        if self.watched.pop(sock, None) is not None:
            self.selector.unregister(sock)
        sock.close()

    def accept(self, listener):
        while True:
            try:
                Incoming(self, listener.accept()[0])
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    # New connections wait in the kernel until some descriptors are free again.
                    self.selector.unregister(listener)
                    del self.watched[listener]
                    self.paused.append(listener)
                return

    def resume(self, now):
        if self.paused:
            for connection in [c for c in self.incoming if now - c.since > INCOMING_S]:
                connection.close()
        while self.paused:
            self.listen_to(self.paused.pop())

    def listen_to(self, listener):
        self.watch(listener, lambda mask: self.accept(listener), selectors.EVENT_READ)

    def has_room(self):
        return len(self.watched) - len(self.incoming) < self.room

    def say(self, **message):
        print(json.dumps(message), flush=True)

    def take_orders(self, mask):
        if not (data := os.read(0, 1 << 16)):
            os._exit(0)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            getattr(self, "do_" + order["op"])(order)

    def do_begin(self, order):
        signal.alarm(order["deadline_s"])
        self.hello = MAGIC + bytes.fromhex(order["run"])
        self.reply = MAGIC + bytes.fromhex(order["answer"])
        self.alone = order["alone"]
        ports, failed = {}, {}
        for address in order["listen"]:
            try:
                ports[address] = self.listen(address, order["port"])
            except OSError as error:
                failed[address] = words(error.errno)
        ephemeral = [p for p in order["ephemeral"] if not self.listen_everywhere(p, False)]
        tried = {port: self.listen_everywhere(port, True) for port in order["rendezvous"]}
        held = {port: words(number) for port, number in tried.items() if number}
        free = [port for port in tried if port not in held]
        self.say(op="ready", ports=ports, failed=failed, ephemeral=ephemeral, rendezvous=free, held=held)
        if order["names"] or order["reverse"]:
            self.resolves = True
            start_new_thread(self.look_up, (order["names"], order["reverse"], order["lookup_s"]))

    def look_up(self, names, addresses, limit_s):
        """In its own thread: a lookup that hangs delays nothing else."""
        found = Lookups(names, addresses, limit_s)
        self.looked_up = {
            "names": [found.resolution(name) for name in names],
            "reverse_s": [found.done.get((reverse, address), limit_s) for address in addresses],
        }

    def listen(self, address, port):
        """The port it listens on: the requested one, or any if that is in use."""
        try:
            return self.bind(address, port)
        except OSError:
            return self.bind(address, 0)

    def listen_everywhere(self, port, prove_free):
        """
        Bind like torch's store, to the wildcard of both families; returns 0 or the errno.

        A simulated node has one address and listens only there; a bind without listening then shows whether
        the port is free for the store.  A port claimed by a run that begins here is left to that run.
        """
        try:
            if prove_free:
                self.claims.append(socket.socket(socket.AF_UNIX))
                self.claims[-1].bind("\0ringup-port-%d" % port)  # same as transport/port_claims.py
            if self.alone and prove_free:
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("0.0.0.0", port))
            both = not self.alone and socket.has_dualstack_ipv6()
            self.bind(self.alone or ("::" if both else "0.0.0.0"), port, both)
        except OSError as error:
            return error.errno
        return 0

    def bind(self, address, port, both=False):
        sock = socket.create_server((address, port), family=family(address), backlog=512, dualstack_ipv6=both)
        sock.setblocking(False)
        port = sock.getsockname()[1]
        self.ports.add(port)
        self.listen_to(sock)
        return port

    def do_try(self, order):
        self.tried_at, self.done, self.looked = time.monotonic(), False, False
        self.waiting = order["targets"]
        self.advance()

    def advance(self):
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
        if not self.looked and now - self.tried_at > connections.HALF_OPEN_AFTER_S and not self.done:
            self.looked = True
            self.say(op="half", seen=self.half_open())
        finished = not self.active and not self.waiting
        if self.results and (finished or len(self.results) >= 64):
            self.say(op="links", links=self.results)
            self.results = []
        if finished and not self.done:
            self.done = True
            for claim in self.claims:  # the run that includes this check may claim one now
                claim.close()
            self.say(op="done", counters=[] if self.alone else self.counted(), waited=waited_s())

    def counted(self):
        """The error counters, to compare with the earlier ones; empty if they are unreadable."""
        try:
            return all_counters("")
        except (OSError, ValueError, IndexError):
            return []

    def explain(self, attempt):
        """Try the same target again, bound to each of our addresses and devices."""
        ways, attempt.explain = attempt.explain, []
        for kind, value, always in ways:
            if not always and self.has_room():
                other = Attempt(self, attempt.target, kind, value, connections.EXPLAIN_PATIENCE_S)
                self.active.append(other)
                other.open()

    def half_open(self):
        """Connections to our ports that were requested and never completed: [from, to, port], 256 at most."""
        ends = [(end(local), end(remote)) for local, remote, _, _ in tcp(ASKED_FOR)]
        return [[remote[0], *local] for local, remote in ends if local[1] in self.ports][:256]

    def do_end(self, order):
        os._exit(0)

    def run(self):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(120)
        self.selector.register(0, selectors.EVENT_READ, self.take_orders)
        tick = 0.0
        while True:
            idle = self.done and not self.resolves and not self.paused
            for key, mask in self.selector.select(None if idle else TICK_S):
                # A descriptor that one handler closed must not be passed to the next.
                if isinstance(key.fileobj, int) or key.fileobj in self.watched:
                    key.data(mask)
            if self.looked_up:
                self.say(op="looked-up", **self.looked_up)
                self.resolves, self.looked_up = False, None
            now = time.monotonic()
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
