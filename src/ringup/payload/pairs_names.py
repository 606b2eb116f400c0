"""Look-ups of the pair test, second part of the program: names and addresses, each in a thread."""

import socket
import time


def look_up(say, names, addresses, lookup_s):
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
            say(op=kind, found=told)
        say(op="looked-up")

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(min(16, len(work)))]
    for thread in threads:
        thread.start()
    threading.Thread(target=report, daemon=True).start()
