"""
The guard: parent of the job on one node; it leaves no process of the job behind.

Runs on every node with stdin and stdout open to the launcher; JSON lines go both ways
(`docs/how/guard.md`), the launcher's first line is the order.

Two processes.  The *sentinel* is a subreaper and only waits for its child, the *guard*, which runs the
job.  When the guard is killed, the sentinel gets its processes and ends them.  When the sentinel is
killed, the guard ends the job.  End of file on stdin, or no message from the launcher for 7/10 of the lease,
ends the job too: SIGTERM, then SIGKILL.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import time

from ringup.agent.guard import tree
from ringup.agent.guard.gate import Joining
from ringup.agent.guard.head import Head
from ringup.agent.guard.job import Job
from ringup.agent.guard.link import Link, Loop
from ringup.agent.guard.messages import FROM_LAUNCHER
from ringup.agent.guard.sentinel import DETACHED, SILENT, leave_session, read_order, remove_run_dir, sentinel
from ringup.agent.guard.spool import Spool

FINISH_S = 10.0
"""How long the head of a detached run may take to read another node's last messages."""
LONGEST_SNAPSHOT_BYTES = 6 << 20
SNAPSHOT_S = 45.0


class Snapshots:
    """Snapshots of the ranks (agent/snapshot), one at a time, in a process of its own."""

    def __init__(self, loop, up, order):
        self.loop, self.up = loop, up
        self.words = [sys.executable, "-c", order["look_source"], None, order["run_id"], str(order["node"])]
        self.process = None
        self.until, self.number, self.data = 0.0, 0, b""

    def start(self, message):
        if self.process:
            return
        self.number, self.data, self.words[3] = message["number"], b"", message["mode"]
        self.until = time.monotonic() + SNAPSHOT_S
        try:
            null, pipe = subprocess.DEVNULL, subprocess.PIPE
            self.process = subprocess.Popen(self.words, bufsize=0, stdin=null, stdout=pipe, stderr=null)
        except OSError as error:  # not a reason to end the job
            words = "no process for the snapshot can be started: %s" % error.strerror
            self.up().send({"type": "look", "problem": words, "number": self.number})
        else:
            self.loop.watch(self.process.stdout.fileno(), self._read)

    def _read(self):
        piece = os.read(self.process.stdout.fileno(), 1 << 20)
        self.data += piece
        if piece and len(self.data) < LONGEST_SNAPSHOT_BYTES:
            return
        self.loop.forget(self.process.stdout.fileno())
        self.process.stdout.close()
        self.process = None
        try:
            answer = dict(json.loads(self.data))
        except (ValueError, TypeError, RecursionError):
            answer = {"type": "look", "problem": "the snapshot of this node's ranks returned nothing"}
        self.up().send({**answer, "number": self.number})

    def on_time(self, now, ending):
        """End a snapshot that takes too long, or that the job's end has overtaken."""
        if self.process and (ending or now > self.until) and self.process.poll() is None:
            self.process.kill()


class Guard:
    """Runs the job and answers the launcher (in a detached run, the head); ends the job when it is gone."""

    def __init__(self, order, rest, began, life, pulse, reaper):
        self.order, self.life, self.pulse, self.reaper = order, life, pulse, reaper
        self.lease_s, self.grace_s = float(order["lease_s"]), float(order["grace_s"])
        self.loop, self.spool = Loop(), Spool()
        self.up = self.stdio = Link(0, 1, self.spool, FROM_LAUNCHER)
        self.head = self.joining = self.second = None
        self.is_detached = False
        self.is_alone = False
        """Whether the sentinel is gone."""
        self.unread = rest
        self.contact_at = self.pulsed = time.monotonic()
        self.job = Job(order, self.loop, lambda: self.up, began)
        self.snapshots = Snapshots(self.loop, lambda: self.up, order)
        self.over_at = self.finished_at = 0.0

    def run(self):
        """Until the job is over and everything is reported; 0."""
        tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
        wake, wake_write = os.pipe()
        for fd in (wake, wake_write, self.pulse):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda n, frame: None)
        self.loop.watch(wake, lambda: self._signals(os.read(wake, 512)))
        self.loop.watch(self.life, self._sentinel_gone)
        self.loop.watch(0, lambda: self._receive(self.stdio, self.stdio.receive()))
        self.up.send({
            "type": "ready", "pid": os.getppid(), "guard": os.getpid(), "clock": time.monotonic(),
            "python": sys.version.split()[0], "reaper": bool(self.reaper),
        })  # fmt: skip
        self._receive(self.stdio, self.stdio.take(self.unread))
        while not self._is_over():
            links = [self.up] + ([self.joining.link] if self.joining and self.joining.link else [])
            for link in links:
                link.flush()
            writing = [fd for link in links for fd in link.writing()]
            pause_s = 0.2 if self.job.over else 0.03 if self.job.end_reason else 1.0
            waits_s = [] if writing else [link.wait_s() for link in links]
            self.loop.turn(min([pause_s] + waits_s), writing)
            self._on_time(time.monotonic())
        if self.is_alone:
            remove_run_dir(self.order["run_dir"])
        if not self.is_detached and not self.stdio.ended and self._is_silent(time.monotonic()):
            os.write(self.pulse, SILENT)
        return 0

    def _is_silent(self, now):
        """Whether contact is lost: at 7/10 of the lease, so that all processes are gone when it ends."""
        return now - self.contact_at > 0.7 * self.lease_s

    def _receive(self, link, messages):
        """Messages of the launcher, or of the head, which `leave` puts in the launcher's place."""
        if link.ended or self.up not in (link, self.stdio):
            return
        self.contact_at = time.monotonic()
        for message in messages:
            kind = message["type"]
            if kind == "beat":
                link.send({"type": "beat", "echo": message["sent"], "clock": time.monotonic()})
            elif kind == "go":
                self.job.start()
            elif kind == "leave" and link is self.second:
                self.up = link
                self._leave()
                link.send({"type": "left"})
            elif kind == "end":
                self._end(message.get("reason", "")[:200], message.get("grace_s", self.grace_s))
            elif kind == "signal" and not self.job.end_reason:
                self.job.signal(signal.Signals[message["name"]])
            elif kind == "look" and not self.job.end_reason:
                self.snapshots.start(message)
            elif kind == "host" and not self.head:
                self.head = Head(self.order, self.loop, self.job, self.snapshots, self.spool, message)
                self.stdio.send({"type": "hosting", "port": self.head.port, "problem": self.head.problem})
            elif kind == "join" and not self.second and not self.joining:
                self.joining = Joining(self.loop, message, self.spool)
            elif kind == "take-over" and self.head and not self.head.is_complete():
                self.stdio.send({"type": "detached", "problem": "not every node has joined"})
            elif kind == "take-over" and self.head:
                self.up = self.head
                self.head.begin(self._detach)

    def _detach(self):
        """All other guards have left the launcher: leave it and start the job."""
        self.stdio.send({"type": "detached", "problem": ""})
        self.stdio.flush()
        self._leave()
        self.head.send_others({"type": "go"})
        self.job.start()

    def _leave(self):
        self.is_detached = True
        self.loop.forget(self.stdio.read_fd)
        leave_session()
        os.write(self.pulse, DETACHED)

    def _end(self, reason, grace_s):
        """End the job here; on the head, everywhere."""
        (self.head if self.up is self.head else self.job).end(reason, grace_s)

    def _signals(self, numbers):
        for number in set(numbers):
            if number == signal.SIGCHLD:
                self.job.reap()
            elif number != signal.SIGHUP or not self.is_detached:
                self._end("the guard was ended by %s" % signal.Signals(number).name, self.grace_s)

    def _sentinel_gone(self):
        self.loop.forget(self.life)
        self.is_alone = True
        words = "this node's outer guard process was killed"
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
            self.contact_at = now
        if self.head:
            self.head.on_time(now)
        if self.joining and self.joining.on_time(now):
            second, problem, self.joining = self.joining.link, self.joining.problem, None
            if second:
                self.second = second
                self.loop.watch(second.read_fd, lambda: self._receive(second, second.receive()))
            self.stdio.send({"type": "joined-head", "problem": problem})
        if self._is_silent(now):
            whom = "the head node's guard" if self.is_detached else "the launcher"
            reason = "no contact with %s for %.0f s" % (whom, now - self.contact_at)
            self.job.end(reason, min(self.grace_s, 0.2 * self.lease_s))
        for link in (self.up, self.second, None if self.is_detached else self.stdio):
            if link and (link.ended or link.gone):
                self.loop.forget(link.read_fd)
                whose = "the launcher" if link is self.stdio else "the head node's guard"
                self._end(whose + " is gone", self.grace_s)
        self.snapshots.on_time(now, bool(self.job.end_reason))
        self.job.on_time(now)
        if self.job.over and not self.over_at:
            self.over_at = now
            self.spool.ripe_s = 0.0

    def _is_over(self):
        """The job is gone, and the launcher has every message or reads nothing more."""
        if not self.job.over:
            return False
        now = time.monotonic()
        is_gone = self.up.ended or self.up.gone or self._is_silent(now)
        if self.up is self.second and self.up.is_drained() and not is_gone:
            # The head closes the connection when it has read everything.
            if not self.finished_at:
                self.finished_at = now
                self.second.end_writing()
            return now - self.finished_at > FINISH_S
        return self.up.is_drained() or (is_gone and now - self.over_at > 1)


if __name__ == "__main__":
    order, rest = read_order()
    sys.exit(sentinel(order, lambda *surroundings: Guard(order, rest, *surroundings).run()))
