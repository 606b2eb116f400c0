"""
What names mean on this node, and how long the resolver takes: each look-up in a thread.

A look-up that has not ended when time is up is an answer too: "no answer within N s" is
what every rank would meet.  getaddrinfo gives no way to end it, the process does.
"""

import select
import time

try:
    import _socket as socket  # the C half: `import socket` costs 8 ms more
    from _thread import start_new_thread
except ImportError:
    import socket
    from threading import start_new_thread

MOST_THREADS = 32
LEAST_S = 2.0
"""Less than this is no time to find out whether a look-up is slow."""


def forward(name):
    """Resolution of a name: addresses in getaddrinfo's order, each once."""
    begin = time.monotonic()
    found, error = [], ""
    try:
        for _, _, _, _, where in socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM):
            if where[0] not in found:
                found.append(where[0])
    except (OSError, UnicodeError) as problem:
        error = str(getattr(problem, "strerror", None) or problem)
    return {"name": name, "addresses": found[:64], "error": error, "took_s": time.monotonic() - begin}


def reverse(address):
    """
    Seconds of one reverse look-up, whatever its result.

    As ::ffff:a.b.c.d, because torch's TCPStore asks so, and a line for a.b.c.d in
    /etc/hosts does not answer that.
    """
    begin = time.monotonic()
    try:
        socket.getnameinfo((address if ":" in address else "::ffff:" + address, 0), 0)
    except (OSError, UnicodeError):
        pass
    return time.monotonic() - begin


def fully_qualified(name):
    """socket.getfqdn, which torch's c10d rendezvous publishes as MASTER_ADDR."""
    try:
        host, aliases, _ = socket.gethostbyaddr(name)
    except (OSError, UnicodeError):
        return name
    return next((n for n in [host] + aliases if "." in n), host)


LOOK_UPS = {"forward": forward, "reverse": reverse, "fqdn": fully_qualified}


def answers(jobs, seconds):
    """(kind, argument) -> result of those that ended in time; at most MOST_THREADS at once."""
    waiting, done, running = list(reversed(jobs)), {}, []

    def work():
        while waiting:
            try:
                kind, argument = waiting.pop()
            except IndexError:
                break
            done[kind, argument] = {"forward": forward, "reverse": reverse, "fqdn": fully_qualified}[kind](
                argument
            )
        running.pop()

    end = time.monotonic() + seconds
    # One thread answers a few names from /etc/hosts in less than it takes to start more.
    running.append(1)
    start_new_thread(work, ())
    pause = 0.001
    while running and time.monotonic() < end:
        select.select([], [], [], pause)  # time.sleep fails under libfaketime
        # However few wait: those that were begun may all be stuck.
        if pause > 0.02 and waiting and len(running) < MOST_THREADS:
            running.append(1)
            start_new_thread(work, ())
        else:
            pause = min(pause * 2, 0.03)
    return done


class Found:
    """What the resolver has said when time was up."""

    def __init__(self, request):
        self.own = socket.gethostname()
        self.names = request.get("names", [])
        self.peers = list(request.get("addresses", []))
        self.seconds = request["limits"]["names"] - 0.5
        jobs = [("forward", self.own), ("fqdn", self.own)] + [("forward", name) for name in self.names]
        self.done = {}
        self.late = "no answer within %g s" % self.seconds
        self.left = self.seconds
        begin = time.monotonic()
        self.done = answers(jobs + [("reverse", address) for address in self.peers], self.seconds)
        if not self.peers:
            # Who the peers are is known only from their names so far.
            known = [self.resolution(name)["addresses"] for name in self.names]
            self.peers = [address for addresses in known for address in addresses][:2]
            self.left = self.seconds - (time.monotonic() - begin)
            self.done.update(answers([("reverse", a) for a in self.peers], self.left))

    def resolution(self, name):
        late = {"name": name, "addresses": [], "error": self.late, "took_s": self.seconds}
        return self.done.get(("forward", name), late)

    def fqdn(self):
        if ("fqdn", self.own) not in self.done:
            raise OSError(self.late)
        return self.done["fqdn", self.own]

    def reverse_s(self):
        if self.names and not self.peers:
            raise OSError("no name of another node resolves here")
        if self.left < LEAST_S and any(("reverse", a) not in self.done for a in self.peers):
            raise OSError("looking up names took all the time there was")
        # One that has not ended took at least so long.
        return max([self.done.get(("reverse", a), self.left) for a in self.peers] or [0.0])


def questions(request, root):
    found = Found(request)
    yield "own_name", lambda: found.resolution(found.own)
    yield "fqdn", found.fqdn
    yield "peer_names", lambda: [found.resolution(name) for name in found.names]
    yield "reverse_lookup_s", found.reverse_s
