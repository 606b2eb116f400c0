"""
The outer half of the guard: prepares the node, starts the inner half, and outlives it.

A subreaper: what the inner half had started falls to it when that is killed, and is ended.
"""

import json
import os
import select
import signal
import sys
import time

import guard_tree as tree
from guard_spool import encode

LONGEST_ORDER_BYTES = 64 << 20
ORDER_WITHIN_S = 60.0
SENTINEL_PATIENCE_S = 10.0
"""How much longer than the lease a guard that does not move (stopped, stuck on a dead disk) is left alone."""
UNHEARD = 75
"""Exit code that ends the shell we were started by, too (boot.UNHEARD)."""
STDIO = (0, 1, 2)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def read_order(fd):
    """The first line on `fd` as an object, and what came after it; ends the program when there is none."""
    data = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while b"\n" not in data:
        # A network that was cut just now ends no stream, and we have no lease before the order.
        piece = os.read(fd, 65536) if poll.poll(int(ORDER_WITHIN_S * 1000)) else b""
        if not piece or len(data) > LONGEST_ORDER_BYTES:
            sys.exit(0)
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def make_run_dir(path, files):
    """Make the run's own directory with the shim in it, and go there; words of what failed, or ""."""
    made = False
    try:
        os.makedirs(os.path.dirname(path) or "/", mode=0o700, exist_ok=True)
        os.mkdir(path, 0o700)
        made = True
        os.chdir(path)
        for name, source in files:
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(source)
        return ""
    except OSError as error:
        if made:
            remove_run_dir(path)
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


def leave_session():
    """Let go of the connection we were started by: its end is no longer ours."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in STDIO:
        os.dup2(null, fd)
    os.close(null)


def journal_dir(order):
    """Where the head node of a detached run keeps what its guards say; outlives the run's own directory."""
    return order["run_dir"].rstrip("/") + ".journal"


def note_loss(order, message):
    """Leave the message where `ringup attach` finds it, if this node kept the journal."""
    try:
        with open(os.path.join(journal_dir(order), "lost"), "wb") as file:
            file.write(encode(dict(message, node=order["node"])))
    except OSError:
        pass


def say(order, message):
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
        self.clean = self.detached = self.unheard = self.stuck = False

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
                self.unheard = self.unheard or b"?" in data
                if b"d" in data and not self.detached:
                    self.detached = True
                    leave_session()
                if not data:
                    break
            elif time.monotonic() - heard > patience_s:
                self.stuck = True
                os.kill(self.guard, signal.SIGKILL)  # our child, not yet waited for
        for number in ENDING:
            # Once it is reaped, the guard's pid may be another's; an error in a handler loses its status.
            signal.signal(number, lambda n, frame: None)
        while True:
            ended = tree.reap()
            if self.guard in ended:
                return ended[self.guard]
            tree.pause(0.002)

    def clean_up(self, status, began):
        """What the guard would have done."""
        run_id, place = self.order["run_id"], str(self.order["node"])
        killed, left = {}, {}
        if not self.clean:
            killed, left = tree.kill_all(
                lambda: tree.members(run_id, place, root=os.getpid(), not_before=began), 6.0
            )
            tree.reap()
            tell = note_loss if self.detached else say
            tell(self.order, {
                "type": "guard-lost", "status": status, "stuck": self.stuck, "at": time.monotonic(),
                "killed": list(killed.items()), "left": list(left.items()),
            })  # fmt: skip
        remove_run_dir(self.order["run_dir"])
        if self.unheard:
            return UNHEARD
        return 0 if self.clean else 1


def sentinel(order, run_guard):
    """Prepare the node, start the guard as `run_guard(began, life, pulse, reaper)`, and outlive it."""
    try:
        os.setsid()
    except OSError:
        pass  # already first of its group
    began = (tree.stat(os.getpid()) or (0, 0))[1]
    tree.prctl(tree.PR_SET_NAME, b"ringup-guard")
    reaper = tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    files = [("rank.py", order["rank_source"]), ("rank_main.py", order.get("main_source", ""))]
    files += sorted(order.get("files", {}).items())
    problem = make_run_dir(order["run_dir"], [file for file in files if file[1]])
    if problem:
        say(order, {"type": "problem", "words": problem})
        return 1
    pulse_read, pulse_write = os.pipe()
    life_read, life_write = os.pipe()
    try:
        guard = os.fork()
    except OSError as error:
        remove_run_dir(order["run_dir"])
        words = "no process can be started: %s (`ulimit -u`)" % error.strerror
        say(order, {"type": "problem", "words": words})
        return 1
    if guard == 0:
        os.close(pulse_read)
        os.close(life_write)
        try:
            run_guard(began, life_read, pulse_write, reaper)
            os.write(pulse_write, b"!")
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(70)  # the sentinel cleans up and says so
    os.close(pulse_write)
    os.close(life_read)
    for number in ENDING:
        signal.signal(number, lambda n, frame: os.kill(guard, n))
    keeper = Sentinel(order, guard, pulse_read)
    return keeper.clean_up(keeper.watch(), began)
