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
        if pause > 0.02 and len(running) < min(MOST_THREADS, len(waiting)):
            running.append(1)
            start_new_thread(work, ())
        else:
            pause = min(pause * 2, 0.03)
    return done


def probe(request, root):
    own = socket.gethostname()
    names = request.get("names", [])
    peers = list(request.get("addresses", []))
    seconds = request["limits"]["names"] - 0.5
    jobs = [("forward", own), ("fqdn", own)] + [("forward", name) for name in names]
    begin = time.monotonic()
    done = answers(jobs + [("reverse", address) for address in peers], seconds)
    if not peers:
        # Who the peers are is known only from their names so far.
        peers = [a for n in names for a in done.get(("forward", n), {}).get("addresses", [])][:2]
        done.update(answers([("reverse", a) for a in peers], seconds - (time.monotonic() - begin)))

    def resolution(name):
        late = {"name": name, "addresses": [], "error": "no answer within %g s" % seconds, "took_s": seconds}
        return done.get(("forward", name), late)

    out = {"peer_names": [resolution(name) for name in names], "own_name": resolution(own), "unknown": {}}
    if ("fqdn", own) in done:
        out["fqdn"] = done["fqdn", own]
    else:
        out["unknown"]["fqdn"] = "no answer within %g s" % seconds
    if peers:
        # One that has not ended took at least so long.
        out["reverse_lookup_s"] = max(done.get(("reverse", a), seconds) for a in peers)
    elif names:
        out["unknown"]["reverse_lookup_s"] = "no name of another node resolves here"
    else:
        out["reverse_lookup_s"] = 0.0
    return out
