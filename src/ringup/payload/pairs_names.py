"""Look-ups of the pair test, second part of the program: names and addresses, each in a thread."""

import os
import socket
import time
from _thread import allocate_lock, start_new_thread

MOST_THREADS = 16


class LookUps:
    """
    Questions to the resolver, asked in threads: one that hangs holds up nothing.

    Whoever waits watches `pipe`, which is readable once all are answered, and the deadline.
    No thread waits with a time-out of its own: under libfaketime those are wrong.
    """

    def __init__(self, names, addresses, limit_s):
        self.work = [("names", n) for n in names] + [("reverse", a) for a in addresses]
        self.answers, self.limit_s, self.until = {}, limit_s, time.monotonic() + limit_s
        self.lock, self.turn = allocate_lock(), iter(self.work)
        self.pipe, self.told = os.pipe()
        for _ in range(min(MOST_THREADS, len(self.work))):
            start_new_thread(self.ask, ())

    def ask(self):
        while True:
            with self.lock:
                what = next(self.turn, None)
            if what is None:
                return
            answer = self.answer(*what)
            with self.lock:
                self.answers[what] = answer
                if len(self.answers) == len(set(self.work)):
                    os.write(self.told, b".")

    def answer(self, kind, text):
        """[what was asked, addresses or names, the resolver's words, seconds]."""
        start, found, error = time.monotonic(), [], ""
        try:
            if kind == "names":
                rows = socket.getaddrinfo(text, None, 0, socket.SOCK_STREAM)
                found = list(dict.fromkeys(row[4][0] for row in rows))[:32]
            else:
                found = [socket.getnameinfo((text, 0), 0)[0]]
        except (OSError, UnicodeError, ValueError) as failure:
            error = str(getattr(failure, "strerror", None) or failure).lower()[:200]
        return [text, found, error, round(time.monotonic() - start, 4)]

    def result(self):
        """{"names": rows, "reverse": rows}; a look-up that has not ended took at least the limit."""
        late = "no answer within %g s" % self.limit_s
        with self.lock:
            rows = [(w[0], self.answers.get(w) or [w[1], [], late, self.limit_s]) for w in self.work]
        return {kind: [row for k, row in rows if k == kind] for kind in ("names", "reverse")}
