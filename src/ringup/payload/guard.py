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
import json
import os
import select
import signal
import sys
import time

import guard_tree as tree
from guard_job import Job
from guard_link import Lines, Link
from guard_spool import Spool, encode

LONGEST_ORDER_BYTES = 64 << 20
SENTINEL_PATIENCE_S = 10.0
"""How much longer than the lease a guard that does not move (stopped, stuck on a dead disk) is left alone."""


def read_order(fd):
    """The first line on `fd` as an object, and what came after it; ends the program when there is none."""
    data = b""
    while b"\n" not in data:
        piece = os.read(fd, 65536)
        if not piece or len(data) > LONGEST_ORDER_BYTES:
            sys.exit(0)
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def make_run_dir(path, rank_source):
    """Make the run's own directory with the shim in it, and go there; words of what failed, or ""."""
    try:
        os.makedirs(os.path.dirname(path) or "/", mode=0o700, exist_ok=True)
        os.mkdir(path, 0o700)
        os.chdir(path)
        fd = os.open("rank.py", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(rank_source)
        return ""
    except OSError as error:
        return "the run's directory %s cannot be made: %s" % (path, error.strerror)


def remove_run_dir(path):
    """Remove what we and the launcher put there; never follows a link out of it."""
    os.chdir("/")
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files + folders:
            full = os.path.join(folder, name)
            try:
                if os.path.isdir(full) and not os.path.islink(full):
                    os.rmdir(full)
                else:
                    os.unlink(full)
            except OSError:
                pass
    try:
        os.rmdir(path)
    except OSError:
        pass


def say(message):
    """One line on stdout if the launcher takes it within 2 s."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    data = b"\n" + encode(message)
    try:
        while data and poll.poll(2000):
            data = data[os.write(1, data[:4096]) :]
    except OSError:
        pass


class Sentinel:
    """Waits for the guard; ends what it leaves behind."""

    def __init__(self, order, guard, pulse):
        self.order, self.guard, self.pulse = order, guard, pulse
        self.clean = False

    def watch(self):
        """Until the guard has ended: its wait status."""
        patience_s = float(self.order["lease_s"]) + SENTINEL_PATIENCE_S
        heard = time.monotonic()
        poll = select.poll()
        poll.register(self.pulse, select.POLLIN)
        while True:
            if poll.poll(1000):
                data = os.read(self.pulse, 4096)
                heard = time.monotonic()
                self.clean = self.clean or b"!" in data
                if not data:
                    break
            elif time.monotonic() - heard > patience_s:
                os.kill(self.guard, signal.SIGKILL)  # our child, not yet waited for
        while True:
            ended = tree.reap()
            if self.guard in ended:
                return ended[self.guard]
            tree.pause(0.002)

    def clean_up(self, status, began):
        """What the guard would have done."""
        run_id, place = self.order["run_id"], str(self.order["node"])
        killed, left = {}, {}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the guard's pid may be another's by now
        if not self.clean:
            killed, left = tree.kill_all(
                lambda: tree.members(run_id, place, root=os.getpid(), not_before=began), 6.0
            )
            tree.reap()
            say({
                "type": "guard-lost", "status": status, "at": time.monotonic(),
                "killed": list(killed.items()), "left": list(left.items()),
            })  # fmt: skip
        remove_run_dir(self.order["run_dir"])
        return 0 if self.clean else 1


def sentinel(order, rest):
    """Prepare the node, start the guard, and outlive it."""
    try:
        os.setsid()
    except OSError:
        pass  # already first of its group
    began = (tree.stat(os.getpid()) or (0, 0))[1]
    tree.prctl(tree.PR_SET_NAME, b"ringup-guard")
    reaper = tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    problem = make_run_dir(order["run_dir"], order["rank_source"])
    if problem:
        say({"type": "problem", "words": problem})
        return 1
    pulse_read, pulse_write = os.pipe()
    life_read, life_write = os.pipe()
    guard = os.fork()
    if guard == 0:
        os.close(pulse_read)
        os.close(life_write)
        try:
            Guard(order, rest, began, life_read, pulse_write, reaper).run()
            os.write(pulse_write, b"!")
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(70)  # the sentinel cleans up and says so
    os.close(pulse_write)
    os.close(life_read)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, frame: os.kill(guard, n))
    keeper = Sentinel(order, guard, pulse_read)
    return keeper.clean_up(keeper.watch(), began)


class Loop:
    """Descriptors and what to do when they can be read."""

    def __init__(self):
        self.poll = select.poll()
        self.actions = {}

    def watch(self, fd, action):
        """Call `action` when `fd` is readable or at its end."""
        self.actions[fd] = action
        self.poll.register(fd, select.POLLIN)

    def forget(self, fd):
        """No longer."""
        if self.actions.pop(fd, None):
            self.poll.unregister(fd)

    def turn(self, timeout_s, writing=-1):
        """Wait for something to do and do it; also returns when `writing` may be written."""
        if writing >= 0:
            mask = select.POLLOUT | (select.POLLIN if writing in self.actions else 0)
            self.poll.register(writing, mask)
        try:
            ready = self.poll.poll(int(timeout_s * 1000 + 0.999))
        finally:
            if writing >= 0:
                self.poll.register(writing, select.POLLIN)
                if writing not in self.actions:
                    self.poll.unregister(writing)
        for fd, events in ready:
            action = self.actions.get(fd)
            if action and events & ~select.POLLOUT:
                action()


class Guard:
    """Runs the job, answers the launcher, and ends the one when the other goes."""

    def __init__(self, order, rest, began, life, pulse, reaper):
        self.order, self.life, self.pulse = order, life, pulse
        self.lease_s, self.grace_s = float(order["lease_s"]), float(order["grace_s"])
        self.loop = Loop()
        self.spool = Spool(".", **order.get("spool", {}))
        self.up = Link(0, 1, self.spool, Lines())
        self.waiting = rest
        self.heard = self.pulsed = time.monotonic()
        self.job = Job(order, self.loop, lambda: self.up, began)
        self.reaper = reaper
        self.over_at = 0.0

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
        self.loop.watch(0, lambda: self._hear(self.up.receive()))
        self.up.send({
            "type": "ready", "pid": os.getppid(), "guard": os.getpid(), "clock": time.monotonic(),
            "python": sys.version.split()[0], "reaper": bool(self.reaper),
        })  # fmt: skip
        self._hear(self.up.lines.feed(self.waiting))
        while not self._is_over():
            self.up.flush()
            if self.up.wants_to_write():
                self.loop.turn(self._pause_s(), self.up.write_fd)
            else:
                self.loop.turn(min(self._pause_s(), self.up.wait_s()))
            self._on_time(time.monotonic())
        self.spool.close()
        return 0

    def _pause_s(self):
        if self.job.end_reason and not self.job.over:
            return 0.03
        return 0.2 if self.job.over else 1.0

    def _hear(self, messages):
        if self.up.ended:
            return
        self.heard = time.monotonic()
        for message in messages:
            kind = message.get("type")
            if kind == "beat":
                self.up.send({"type": "beat", "echo": message.get("sent"), "clock": time.monotonic()})
            elif kind == "go":
                self.job.start()
            elif kind == "end":
                self.job.end(
                    str(message.get("reason", ""))[:200], float(message.get("grace_s", self.grace_s))
                )

    def _signals(self, numbers):
        for number in set(numbers):
            if number == signal.SIGCHLD:
                self.job.reap()
            else:
                self.job.end("the guard was ended by %s" % signal.Signals(number).name, self.grace_s)

    def _sentinel_gone(self):
        self.loop.forget(self.life)
        self.job.end("the other half of the guard was killed", self.grace_s)

    def _on_time(self, now):
        if now - self.pulsed >= 1:
            self.pulsed = now
            try:
                os.write(self.pulse, b".")
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EPIPE):
                    raise
        # Everything is to be gone by the end of the lease, so it ends when 7/10 of it have passed.
        if now - self.heard > 0.7 * self.lease_s:
            self.job.end(
                "no word from the launcher for %.0f s" % (now - self.heard),
                min(self.grace_s, 0.2 * self.lease_s),
            )
        if self.up.ended or self.up.gone:
            self.loop.forget(self.up.read_fd)
            self.job.end("the launcher is gone", self.grace_s)
        self.job.on_time(now)
        if self.job.over and not self.over_at:
            self.over_at = now
            self.spool.ripe_s = 0.0

    def _is_over(self):
        """The job is gone, and the launcher has all there is to know or does not listen any more."""
        if not self.job.over:
            return False
        now = time.monotonic()
        deaf = self.up.ended or self.up.gone or now - self.heard > self.lease_s
        return self.up.is_drained() or (deaf and now - self.over_at > 1)


if __name__ == "__main__":
    sys.exit(sentinel(*read_order(0)))
