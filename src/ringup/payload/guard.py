"""
Parent of the job on one node: whatever happens, nothing of the job outlives what it was for.

Started on every node with stdin and stdout open to the launcher; JSON lines go both ways
(`docs/guard.md`), the first line from the launcher being the whole order.

Two processes.  The *sentinel* is a subreaper and does nothing but wait for the *guard*, its
child, which runs the job.  When the guard is killed, what it had started falls to the sentinel,
which ends it.  When the sentinel is killed, the guard ends the job.  Either way stdin's end of
file, or silence of the launcher for most of the lease, ends the job too: SIGTERM, then SIGKILL.
"""

import errno
import os
import signal
import sys
import time

import guard_tree as tree
from guard_head import Head, finish, join
from guard_job import Job
from guard_link import Lines, Link, Loop
from guard_look import Look
from guard_sentinel import leave_session, read_order, remove_run_dir, sentinel
from guard_spool import Spool

FINISH_S = 10.0
"""How long the head of a detached run may take to read what another node has sent."""


class Guard:
    """Runs the job, answers the launcher, and ends the one when the other goes."""

    def __init__(self, order, rest, began, life, pulse, reaper):
        self.order, self.life, self.pulse = order, life, pulse
        self.lease_s, self.grace_s = float(order["lease_s"]), float(order["grace_s"])
        self.loop = Loop()
        self.spool = Spool(".", **order.get("spool", {}))
        self.up = self.stdio = Link(0, 1, self.spool, Lines())
        self.head = self.second = None
        self.left = False
        """Whether the launcher's end is no longer ours."""
        self.alone = False
        """Whether the sentinel is gone."""
        self.waiting = rest
        self.heard = self.pulsed = time.monotonic()
        self.job = Job(order, self.loop, lambda: self.up, began)
        self.look = Look(self.loop, lambda: self.up, order["run_id"], str(order["node"]))
        self.reaper = reaper
        self.over_at = self.finished_at = 0.0

    def run(self):
        """From the launcher's `go` to the end of everything; 0."""
        tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
        wake, wake_write = os.pipe()
        for fd in (wake, wake_write, self.pulse):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda n, frame: None)
        self.loop.watch(wake, lambda: self._signals(os.read(wake, 512)))
        self.loop.watch(self.life, self._sentinel_gone)
        self.loop.watch(0, lambda: self._hear(self.stdio, self.stdio.receive()))
        self.up.send({
            "type": "ready", "pid": os.getppid(), "guard": os.getpid(), "clock": time.monotonic(),
            "python": sys.version.split()[0], "reaper": bool(self.reaper),
        })  # fmt: skip
        self._hear(self.stdio, self.stdio.lines.feed(self.waiting))
        while not self._is_over():
            self.up.flush()
            writing = self.up.writing()
            self.loop.turn(self._pause_s() if writing else min(self._pause_s(), self.up.wait_s()), writing)
            self._on_time(time.monotonic())
        self.spool.close()
        if self.alone:
            remove_run_dir(self.order["run_dir"])
        if not self.left and not self.stdio.ended and self._is_unheard(time.monotonic()):
            os.write(self.pulse, b"?")
        return 0

    def _is_unheard(self, now):
        """Whether it is to end: everything is to be gone by the end of the lease, so at 7/10 of it."""
        return now - self.heard > 0.7 * self.lease_s

    def _pause_s(self):
        if self.job.end_reason and not self.job.over:
            return 0.03
        return 0.2 if self.job.over else 1.0

    def _hear(self, link, messages):
        """Messages from whoever we answer to, or (`leave` makes it so) will answer to."""
        if link.ended or self.up not in (link, self.stdio):
            return
        self.heard = time.monotonic()
        for message in messages:
            kind = message.get("type")
            if kind == "beat":
                link.send({"type": "beat", "echo": message.get("sent"), "clock": time.monotonic()})
            elif kind == "go":
                self.job.start()
            elif kind == "leave" and link is self.second:
                self.up = link
                self._leave()
                link.send({"type": "left"})
            elif kind == "end":
                grace_s = message.get("grace_s", self.grace_s)
                self._end(str(message.get("reason", ""))[:200], float(grace_s))
            elif kind == "look" and not self.job.end_reason:
                self.look.start(message)
            elif kind == "host" and not self.head:
                self._host(message)
            elif kind == "join" and not self.second:
                self._join(message)
            elif kind == "take-over" and self.head:
                self._take_over()

    # -- a detached run: see guard_head --------------------------------------------------------

    def _host(self, message):
        """Be the one the other guards answer to, once the launcher is gone."""
        self.head = Head(self.order, self.loop, self.job, self.look, self.spool, message)
        self.stdio.send({"type": "hosting", "port": self.head.port, "problem": self.head.problem})

    def _join(self, message):
        """Connect to the head; from its `go` on we answer to it alone."""
        self.second, problem = join(message, self.order["node"], self.spool)
        if self.second:
            self.loop.watch(self.second.read_fd, lambda: self._hear(self.second, self.second.receive()))
        self.stdio.send({"type": "joined-head", "problem": problem})

    def _take_over(self):
        if not self.head.is_complete():
            self.stdio.send({"type": "detached", "problem": "not every node has joined"})
            return
        self.up = self.head
        self.head.begin(self._handed_over)

    def _handed_over(self):
        """Every other guard answers to us alone: so do we."""
        self.stdio.send({"type": "detached", "problem": ""})
        self.stdio.flush()
        self._leave()
        self.head.go()
        self.job.start()

    def _leave(self):
        """Let go of the launcher."""
        self.left = True
        self.loop.forget(self.stdio.read_fd)
        leave_session()
        os.write(self.pulse, b"d")

    def _end(self, reason, grace_s):
        """End the job here; if we are the head, everywhere."""
        (self.head if self.up is self.head else self.job).end(reason, grace_s)

    def _signals(self, numbers):
        for number in set(numbers):
            if number == signal.SIGCHLD:
                self.job.reap()
            elif number != signal.SIGHUP or not self.left:
                self._end("the guard was ended by %s" % signal.Signals(number).name, self.grace_s)

    def _sentinel_gone(self):
        self.loop.forget(self.life)
        self.alone = True
        words = "the outer half of this node's guard was killed"
        self.up.send({"type": "problem", "words": words, "at": time.monotonic()})
        self._end(words, self.grace_s)

    def _on_time(self, now):
        if now - self.pulsed >= 1:
            self.pulsed = now
            try:
                os.write(self.pulse, b".")
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EPIPE):
                    raise
        if self.up is self.head:
            self.heard = now
            self.head.on_time(now)
        if self._is_unheard(now):
            self.job.end(
                "no word from the launcher for %.0f s" % (now - self.heard),
                min(self.grace_s, 0.2 * self.lease_s),
            )
        links = (self.up, self.second, None if self.left else self.stdio)
        for link in links:
            if link and (link.ended or link.gone):
                self.loop.forget(link.read_fd)
                whose = "the launcher" if link is self.stdio else "the head node's guard"
                self._end(whose + " is gone", self.grace_s)
        self.look.on_time(now, bool(self.job.end_reason))
        self.job.on_time(now)
        if self.job.over and not self.over_at:
            self.over_at = now
            self.spool.ripe_s = 0.0

    def _is_over(self):
        """The job is gone, and the launcher has all there is to know or does not listen any more."""
        if not self.job.over:
            return False
        now = time.monotonic()
        deaf = self.up.ended or self.up.gone or self._is_unheard(now)
        if self.up is self.second and self.up.is_drained() and not deaf:
            # The head closes the connection when it has read everything.
            if not self.finished_at:
                self.finished_at = now
                finish(self.second)
            return now - self.finished_at > FINISH_S
        return self.up.is_drained() or (deaf and now - self.over_at > 1)


def main():
    """The order, then both halves."""
    order, rest = read_order(0)
    return sentinel(order, lambda *surroundings: Guard(order, rest, *surroundings).run())


if __name__ == "__main__":
    sys.exit(main())
