"""
Addresses that names resolve to on this node, and the resolver's speed; each lookup has its own thread.

A lookup that has not ended in time is an answer too: every rank would wait for it as well. getaddrinfo cannot
be cancelled; the process ends it.
"""

import _socket as socket  # the C half: `import socket` costs 8 ms more
import select
import time
from _thread import start_new_thread

MOST_THREADS = 32
LEAST_S = 2.0
"""With less time than this left, a slow lookup cannot be detected."""


def forward(name):
    """Addresses of a name in getaddrinfo's order, without duplicates."""
    begin = time.monotonic()
    found, error = [], ""
    try:
        found = [where[0] for _, _, _, _, where in socket.getaddrinfo(name, None, 0, socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as problem:
        error = str(getattr(problem, "strerror", None) or problem)
    addresses = list(dict.fromkeys(found))[:64]
    return {"name": name, "addresses": addresses, "error": error, "took_s": time.monotonic() - begin}


def reverse(address):
    """Seconds of a reverse lookup of ::ffff:a.b.c.d, which torch's TCPStore does."""
    begin = time.monotonic()
    try:
        socket.getnameinfo((address if ":" in address else "::ffff:" + address, 0), 0)
    except (OSError, UnicodeError):
        pass
    return time.monotonic() - begin


def answers(jobs, seconds):
    """(function, argument) -> result of the lookups that ended in time; at most MOST_THREADS run at once."""
    waiting, done, running = list(reversed(jobs)), {}, []

    def work():
        while waiting:
            try:
                look_up, argument = waiting.pop()
            except IndexError:
                break
            done[look_up, argument] = look_up(argument)
        running.pop()

    end = time.monotonic() + seconds
    # One thread resolves a few names from /etc/hosts faster than more threads start.
    running.append(1)
    start_new_thread(work, ())
    pause = 0.001
    while running and time.monotonic() < end:
        select.select([], [], [], pause)  # time.sleep fails under libfaketime
        # Even if few are waiting: all running lookups may be stuck.
        if pause > 0.02 and waiting and len(running) < MOST_THREADS:
            running.append(1)
            start_new_thread(work, ())
        else:
            pause = min(pause * 2, 0.03)
    return done


class Lookups:
    """The resolver's answers for names and addresses that came in time."""

    def __init__(self, names, addresses, seconds):
        self.seconds = seconds
        self.done = answers([(forward, n) for n in names] + [(reverse, a) for a in addresses], seconds)

    def resolution(self, name):
        error = "no answer within %g s" % self.seconds
        late = {"name": name, "addresses": [], "error": error, "took_s": self.seconds}
        return self.done.get((forward, name), late)


def questions(request, root):
    """This node's own name, its peers' names, and the time of a reverse lookup of their addresses."""
    own, names, peers = socket.gethostname(), request.get("names", []), request.get("addresses", [])
    begin, left_s = time.monotonic(), max(0.0, request["limits"]["names"] - 0.5)
    found = Lookups([own] + names, peers, left_s)
    if not peers:
        # So far the peers are known by name only.
        known = [found.resolution(name)["addresses"] for name in names]
        peers = [address for addresses in known for address in addresses][:2]
        left_s -= time.monotonic() - begin
        found.done.update(answers([(reverse, a) for a in peers], left_s))

    def reverse_s():
        if names and not peers:
            raise OSError("no name of another node resolves here")
        if left_s < LEAST_S and any((reverse, a) not in found.done for a in peers):
            raise OSError("the name lookups used up all the time")
        # A lookup that has not ended took at least this long.
        return max([found.done.get((reverse, a), left_s) for a in peers] or [0.0])

    yield "own_name", lambda: found.resolution(own)
    yield "peer_names", lambda: [found.resolution(name) for name in names]
    yield "reverse_lookup_s", reverse_s
