"""The sentinel prepares the node, starts the guard and, as subreaper, cleans up after a killed guard."""

import contextlib
import json
import os
import select
import shutil
import signal
import sys
import time

from ringup.agent.guard import tree
from ringup.agent.guard.spool import encode
from ringup.agent.proc.files import pause
from ringup.agent.proc.process import stat

LONGEST_ORDER_BYTES = 64 << 20
ORDER_WITHIN_S = 60.0
SENTINEL_PATIENCE_S = 10.0
"""Seconds beyond the lease that the sentinel waits for a guard that is stopped or stuck on a dead disk."""
UNHEARD = 75
"""Exit code that also ends the shell that started us (boot.UNHEARD)."""
CLEAN, DETACHED, SILENT = b"!", b"d", b"?"
"""Marks of the guard to the sentinel: nothing is left, detached, the launcher is silent."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def read_order():
    """The first line of standard input as an object, and the bytes after it; exits if there is none."""
    data = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while b"\n" not in data:
        # A cut network closes no pipe, and the lease comes with the order: this wait needs its own limit.
        piece = os.read(0, 65536) if poll.poll(int(ORDER_WITHIN_S * 1000)) else b""
        if not piece or len(data) > LONGEST_ORDER_BYTES:
            sys.exit(0)
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def make_run_dir(path, files):
    """Make the run's directory with the shim in it, and enter it; the error, or ""."""
    made = False
    try:
        above = os.path.dirname(path) or "/"
        os.makedirs(above, mode=0o700, exist_ok=True)
        owners = {os.lstat(above).st_uid, os.stat(above).st_uid}
        if owners != {os.geteuid()} or os.stat(above).st_mode & 0o002:
            return "the run's directory %s cannot be made: %s is open to other users" % (path, above)
        os.mkdir(path, 0o700)
        made = True
        os.chdir(path)
        for name, source in files:
            with os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(source)
    except OSError as error:
        if made:
            remove_run_dir(path)
        return "the run's directory %s cannot be made: %s" % (path, error.strerror)
    return ""


def remove_run_dir(path):
    os.chdir("/")
    shutil.rmtree(path, ignore_errors=True)  # follows no link


def leave_session():
    """Outlive the connection that started us."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def journal_dir(order):
    """The journal of a detached run on its head node; it outlives the run's directory."""
    return order["run_dir"].rstrip("/") + ".journal"


def write_lost(order, message):
    """Leave the message for `ringup attach`, if this node has the journal."""
    with contextlib.suppress(OSError), open(os.path.join(journal_dir(order), "lost"), "wb") as file:
        file.write(b"\n" + encode(dict(message, node=order["node"])))


def print_message(order, message):
    """One line on stdout if the launcher reads it within 2 s."""
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    data = b"\n" + encode(message)
    with contextlib.suppress(OSError):
        while data and poll.poll(2000):
            data = data[os.write(1, data[:4096]) :]


def watch(guard, pulse, patience_s):
    """Wait for the guard's end; returns its wait status, its marks, and whether it was stuck."""
    marks, is_stuck, pulse_at = set(), False, time.monotonic()
    poll = select.poll()
    poll.register(pulse, select.POLLIN)
    while True:
        if poll.poll(1000):
            if not (data := os.read(pulse, 4096)):
                break
            pulse_at = time.monotonic()
            if DETACHED in data and DETACHED[0] not in marks:
                leave_session()
            marks.update(data)
        elif time.monotonic() - pulse_at > patience_s:
            is_stuck = True
            os.kill(guard, signal.SIGKILL)  # our child, not yet waited for
    for number in ENDING:
        # After it is reaped, the guard's pid may be reused; an error in a handler would lose its status.
        signal.signal(number, lambda n, frame: None)
    while True:
        ended = tree.reap()
        if guard in ended:
            return ended[guard], bytes(marks), is_stuck
        pause(0.002)


def clean_up(order, began, status, marks, is_stuck):
    """End the guard's remaining processes; returns the exit code."""
    if CLEAN not in marks:
        run_id, place, own = order["run_id"], str(order["node"]), os.getpid()
        killed, left = tree.kill_all(lambda: tree.members(run_id, place, root=own, not_before=began), 6.0)
        tree.reap()
        report = write_lost if DETACHED in marks else print_message
        report(order, {
            "type": "guard-lost", "status": status, "stuck": is_stuck, "at": time.monotonic(),
            "killed": list(killed.items()), "left": list(left.items()),
        })  # fmt: skip
    remove_run_dir(order["run_dir"])
    return UNHEARD if SILENT in marks else int(CLEAN not in marks)


def sentinel(order, run_guard):
    """Prepare the node, start the guard as `run_guard(began, life, pulse, reaper)`, wait for it, clean up."""
    with contextlib.suppress(OSError):  # already first of its group
        os.setsid()
    began = (stat(os.getpid()) or (0, 0))[1]
    tree.prctl(tree.PR_SET_NAME, b"ringup-guard")
    reaper = tree.prctl(tree.PR_SET_CHILD_SUBREAPER, 1)
    files = [("rank.py", order["rank_source"]), ("rank_main.py", order.get("main_source", ""))]
    files += sorted(order.get("files", {}).items())
    problem = make_run_dir(order["run_dir"], [file for file in files if file[1]])
    pulse_read, pulse_write = os.pipe()
    life_read, life_write = os.pipe()
    try:
        guard = -1 if problem else os.fork()
    except OSError as error:
        remove_run_dir(order["run_dir"])
        problem = "no process can be started: %s (`ulimit -u`)" % error.strerror
    if problem:
        print_message(order, {"type": "problem", "words": problem})
        return 1
    if guard == 0:
        os.close(pulse_read)
        os.close(life_write)
        try:
            run_guard(began, life_read, pulse_write, reaper)
            os.write(pulse_write, CLEAN)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(70)  # the sentinel cleans up and reports it
    os.close(pulse_write)
    os.close(life_read)
    for number in ENDING:
        signal.signal(number, lambda n, frame: os.kill(guard, n))
    return clean_up(order, began, *watch(guard, pulse_read, order["lease_s"] + SENTINEL_PATIENCE_S))
