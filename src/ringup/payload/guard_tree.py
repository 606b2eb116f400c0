"""
The processes of one run on this node: found, ended, and nothing else touched.

A process belongs to a run when it descends from the run's guard, or when its environment
carries the run's tag, its user is ours and its batch job no other than ours.  Before a signal
is sent, the process is held by a pidfd (Linux 5.3) and its start time compared again, so a pid
used anew is never hit.

Run by itself, `guard_tree.py RUN PORT WAIT_S` is the last look after a run: it waits for the
run's guards to finish, ends what carries the tag, and prints one line of JSON.
"""

import json
import os
import select
import signal
import sys
import time

TAG = "RINGUP_RUN"
PLACE = "RINGUP_NODE"
"""Index of the node: with `--local N` several nodes of one run share a machine."""
BATCH = (b"SLURM_JOB_ID", b"PBS_JOBID", b"LSB_JOBID")
"""A rank that submits the next job (sbatch) hands its whole environment on: such a job is not the run's."""
GUARD = "ringup-guard"
"""`ps` shows the guards as `python3 -c ... ringup-guard:RUN`."""
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
LONGEST_ENVIRON_BYTES = 8 << 20
LONGEST_COMMAND = 300
EXEC_TRIES = 200  # looks a millisecond apart: under load an exec waits for a CPU


def prctl(option, value):
    """The system call of that name; False where the kernel or a sandbox refuses."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False


def pause(seconds):
    """Sleep; not by time.sleep, which fails under libfaketime (Debian 12) with EINVAL."""
    select.select([], [], [], seconds)


def read(path, most=65536):
    """The file's first bytes; b"" when it is gone or not ours to read."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read(most)
            while data and len(data) < most:
                more = file.read(most - len(data))
                if not more:
                    break
                data += more
            return data or b""
    except OSError:
        return b""


def oom_kills():
    """Processes the kernel has ended for memory on this machine since it started (0 where nothing tells)."""
    for line in (read("/proc/vmstat") or b"").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return 0


def stat(pid):
    """(parent, start time in clock ticks since boot) of a living process; None for one that is gone."""
    data = read("/proc/%d/stat" % pid, 4096)
    # The name in parentheses may hold anything, a parenthesis too.
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    # A zombie with more than one thread has only lost its first one and still runs.
    if fields[0] in (b"Z", b"X") and int(fields[17]) <= 1:
        return None
    return int(fields[1]), int(fields[19])


def table():
    """Every living process: pid -> (parent, start time)."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            known = stat(int(name))
            if known:
                found[int(name)] = known
    return found


def environ(pid):
    """The variables a process began with; empty for another user's process."""
    try:
        if os.stat("/proc/%d" % pid).st_uid != os.geteuid():
            return {}
    except OSError:
        return {}
    found = {}
    for entry in raw_environ(pid).split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found.setdefault(name, value)
    return found


def raw_environ(pid):
    """
    The variables as they lie in memory.

    While a process becomes another program /proc shows neither words nor variables (Linux
    fs/proc/base.c: env_end is 0); a member of the run would be missed in that moment, so it is awaited.
    A process without variables shows their place (env_start, env_end of proc(5)), twice the same.
    """
    place = []
    for _ in range(EXEC_TRIES):
        data = read("/proc/%d/environ" % pid, LONGEST_ENVIRON_BYTES)
        # Threads of the kernel, and who is ending, have no program.
        if data or not has_program(pid):
            break
        before, place = place, read("/proc/%d/stat" % pid, 4096).rpartition(b")")[2].split()[47:49]
        if place == before and b"0" not in place:
            break
        pause(0.001)
    return data


def has_program(pid):
    """Whether a process of ours is one, or on its way to be one."""
    try:
        return bool(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return False


def is_tagged(pid, run_id, place):
    """
    Whether a process carries the run's tag, and on `--local` this node's (`place` "" means any).

    One that is in another batch job than we are has only inherited it.
    """
    found = environ(pid)
    if found.get(TAG.encode()) != run_id.encode():
        return False
    if any(found.get(name, b"") not in (b"", os.environb.get(name, b"")) for name in BATCH):
        return False
    return not place or found.get(PLACE.encode()) == place.encode()


def members(run_id, place="", root=0, not_before=0, spare=()):
    """
    The run's processes: pid -> start time.

    Descendants of `root` (itself not), tagged ones that began at or after `not_before`, and
    descendants of those; never `spare`.
    """
    known = table()
    children = {}
    for pid, (parent, _) in known.items():
        children.setdefault(parent, []).append(pid)
    todo = list(children.get(root, ())) if root else []
    for pid, (_, started) in known.items():
        if started >= not_before and pid not in spare and is_tagged(pid, run_id, place):
            todo.append(pid)
    found = {}
    while todo:
        pid = todo.pop()
        if pid in found or pid in spare or pid == os.getpid():
            continue
        found[pid] = known[pid][1]
        todo += children.get(pid, ())
    return found


def send(pid, started, number):
    """Send a signal to exactly that process; False when it is gone or may not be signalled."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):
        handle = -1  # Python 3.8, an old kernel, or a sandbox that forbids it
    try:
        now = stat(pid)
        if now is None or now[1] != started:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, number)
        else:
            os.kill(pid, number)
        return True
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)


def reap():
    """Collect ended children: pid -> wait status."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except OSError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def kill_all(find, limit_s):
    """
    SIGKILL what `find()` gives until it gives nothing, for at most `limit_s`.

    Returns (killed, left): both pid -> command.
    """
    killed = {}
    until = time.monotonic() + limit_s
    pause_s = 0.005
    while True:
        victims = find()
        if not victims or time.monotonic() > until:
            return killed, {pid: command(pid) for pid in victims}
        for pid, started in victims.items():
            words = command(pid)
            if send(pid, started, signal.SIGKILL):
                killed.setdefault(pid, words)
        pause(pause_s)
        pause_s = min(pause_s * 2, 0.1)
        reap()


def command(pid):
    """A process's command line, bounded, safe to show."""
    data = read("/proc/%d/cmdline" % pid, 4096).replace(b"\0", b" ").strip() or read(
        "/proc/%d/comm" % pid, 64
    )
    text = data.decode("utf-8", "replace").strip()
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_COMMAND]


def guards(run_id):
    """The run's guards that still live: pid -> start time."""
    label = ("%s:%s" % (GUARD, run_id)).encode()
    found = {}
    for pid, (_, started) in table().items():
        if pid != os.getpid() and label in read("/proc/%d/cmdline" % pid, 1 << 20).split(b"\0"):
            if os.path.exists("/proc/%d" % pid) and owner(pid) == os.geteuid():
                found[pid] = started
    return found


def owner(pid):
    """A process's user; -1 when it is gone."""
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return -1


def listening(port):
    """Inodes of the sockets that listen on a port here."""
    wanted, found = "%04X" % port, set()
    for name in ("tcp", "tcp6"):
        for line in read("/proc/net/" + name, 4 << 20).decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and fields[1].rpartition(":")[2] == wanted:
                found.add(fields[9])
    return found


def holder(inodes):
    """[pid, command] of a process of ours that holds one of these sockets, or []."""
    wanted = {"socket:[%s]" % inode for inode in inodes}
    for pid in table():
        folder = "/proc/%d/fd" % pid
        try:
            links = [os.readlink(folder + "/" + fd) for fd in os.listdir(folder)]
        except OSError:
            continue
        if wanted.intersection(links):
            return [pid, command(pid)]
    return []


def last_look(run_id, port, wait_s):
    """
    End what is left of a run on this node and say what it was.

    `wait_s` is how long its guards may still take to do so themselves.
    """
    until = time.monotonic() + wait_s
    while guards(run_id) and time.monotonic() < until:
        pause(0.05)
    killed, left = kill_all(lambda: members(run_id), 3.0)
    lost = {}
    for pid, started in guards(run_id).items():
        lost[pid] = command(pid)[-80:]
        send(pid, started, signal.SIGTERM)
    inodes = listening(port) if port else set()
    return {
        "type": "last-look",
        "killed": [[pid, words] for pid, words in killed.items()],
        "left": [[pid, words] for pid, words in left.items()],
        "guards": [[pid, words] for pid, words in lost.items()],
        "port": port,
        "port_held": bool(inodes),
        "port_holder": holder(inodes) if inodes else [],
    }


if __name__ == "__main__":
    print(json.dumps(last_look(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))), flush=True)
