"""
Find and end the processes of one run on this node, and no others.

A process belongs to a run if it descends from the run's guard; or if it has the run's tag in its environment,
is of our user, and is not in another batch job or container.  Before a signal, a pidfd (Linux 5.3) holds the
process and its start time is compared again, so a reused pid is never signalled.
"""

import contextlib
import os
import signal
import time

from ringup.agent.proc.files import SHM_NAMES, link, listed, maker, numbered, numbers, pause, read
from ringup.agent.proc.process import below, cgroups, command, environ, family, owner, stat

TAG = "RINGUP_RUN"
PLACE = "RINGUP_NODE"
"""Index of the node: with `--local N` several nodes of one run share a machine."""
DIRECTORY = "RINGUP_RUN_DIR"
"""The run's own directory on the node."""
BATCH = (b"SLURM_JOB_ID", b"PBS_JOBID", b"LSB_JOBID", b"FLUX_JOB_ID", b"OAR_JOB_ID", b"COBALT_JOBID")
"""A job that a rank submits (sbatch) inherits the environment; it does not belong to the run."""
CONTAINERS = ("docker", "libpod", "crio", "cri-", "kubepods", "lxc", "machine-", "job_", "job.")
"""Prefixes of cgroup names made by Docker, Podman, Kubernetes, Slurm and LSF."""
SESSIONS = "sessions"
"""File in the run's directory: a line "SESSION START" for each session that the run has made."""
GUARD = "ringup-guard"
"""`ps` shows the guards as `python3 -c ... ringup-guard:RUN`."""
SHM = "/dev/shm/"
LONGEST_MAPS_BYTES = 16 << 20
FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of linux/proc_ns.h: from any other, processes outside cannot be seen."""
USED_S = 2.0
"""Most seconds for the search of who uses the job's files at its end."""
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


def prctl(option, value):
    """The system call of that name; False where the kernel or a sandbox refuses."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):
        return False


def oom_kills():
    """Processes that the kernel has killed for memory since this machine started (0 if unknown)."""
    return numbers("/proc/vmstat", ("oom_kill",)).get("oom_kill", 0)


def confined(pid):
    """Parts of a process's cgroup path that name a container or a batch job."""
    parts = {part for path in cgroups(pid).values() for part in path.split("/")}
    return {part for part in parts if part.startswith(CONTAINERS) or len(part) == 64}


def elsewhere(pid, found):
    """The other batch job or container that a process with this environment is in; "" for none."""
    for name in BATCH:
        if found.get(name, b"") not in (b"", os.environb.get(name, b"")):
            return "batch job %s=%s" % (name.decode(), found[name].decode("utf-8", "replace")[:40])
    if others := confined(pid) - confined("self"):
        return "container or batch job %s" % min(others)[:80]
    namespace = link("/proc/%d/ns/pid" % pid)
    return "another container" if namespace and namespace != link("/proc/self/ns/pid") else ""


def is_tagged(pid, run_id, place):
    """Whether a process has the tag of the run and node (`place` "": any) and is not in another batch job."""
    found = environ(pid)
    if found.get(TAG.encode()) != run_id.encode() or elsewhere(pid, found):
        return False
    return not place or found.get(PLACE.encode()) == place.encode()


def note_session(pid, started):
    """Add the session of `pid` to the file in the run's directory, which is the current one."""
    with contextlib.suppress(OSError):
        line = "%d %d\n" % (os.getsid(pid), started)
        fd = os.open(SESSIONS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(line)


def members(run_id, place="", root=0, not_before=0, spare=()):
    """The run's processes without `spare`: below `root`, tagged since `not_before`, and their descendants."""
    known, children = family()
    spare = {*spare, os.getpid()}
    young = [pid for pid, (_, started) in known.items() if started >= not_before and pid not in spare]
    roots = [pid for pid in (children.get(root, ()) if root else ()) if pid not in spare]
    roots += [pid for pid in young if is_tagged(pid, run_id, place)]
    return {pid: known[pid][1] for pid in below(roots, children, lambda pid: pid in spare)}


def descendants(root):
    """Every living process below `root`: pid -> start time."""
    known, children = family()
    return {pid: known[pid][1] for pid in below(children.get(root, ()), children)}


def shared_memory(pids):
    """
    Files of NCCL, torch and multiprocessing in /dev/shm that belong to these processes: path -> status.

    A killed process leaves such files behind.  A file belongs to a process if its name has that process's
    pid, or if the process has mapped it.  Containers that share /dev/shm have the same pids for other
    processes: there only what is mapped counts.
    """
    files = own_files(SHM)
    is_first = link("/proc/self/ns/pid") == FIRST_PID_NAMESPACE
    makers = {path: maker(path) if is_first else None for path in files}
    theirs = {path for path, pid in makers.items() if pid in pids}
    nameless = [path for path, pid in makers.items() if pid is None]
    for pid in pids if nameless else ():
        maps = read("/proc/%d/maps" % pid, LONGEST_MAPS_BYTES)
        theirs.update(path for path in nameless if b" %s\n" % os.fsencode(path) in maps)
    return {path: files[path] for path in theirs}


def unused(files):
    """Those of `files` that none of our user's processes has open or mapped; none at all if time runs out."""
    pids, until = numbered("/proc") if files else (), time.monotonic() + USED_S
    used, _ = used_files([pid for pid in pids if owner(pid) == os.geteuid()], until)
    is_late = time.monotonic() > until
    return {} if is_late else {p: s for p, s in files.items() if (s.st_dev, s.st_ino) not in used}


def used_files(pids, until):
    """(device, inode) of every file that these processes have open or mapped; why others may be missing."""
    found, why = set(), ""
    for pid in pids:
        if time.monotonic() > until:
            return found, "not every process could be checked in time"
        folder = "/proc/%d/" % pid
        try:
            for fd in os.listdir(folder + "fd"):
                try:
                    status = os.stat(folder + "fd/" + fd)
                except FileNotFoundError:
                    continue
                found.add((status.st_dev, status.st_ino))
            with open(folder + "maps", "rb") as maps:
                for line in maps:
                    fields = line.split(None, 5)
                    if len(fields) > 4 and fields[4] != b"0":
                        major, _, minor = fields[3].partition(b":")
                        found.add((os.makedev(int(major, 16), int(minor, 16)), int(fields[4])))
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
        except OSError:
            why = "process %d cannot be checked" % pid
    return found, why


def own_files(folder):
    """Our files there with names as NCCL, torch and multiprocessing give them: path -> status."""
    found = {}
    for name in listed(folder):
        with contextlib.suppress(OSError):
            path = os.path.join(folder, name)
            status = os.lstat(path)
            is_ours = status.st_mode & 0o170000 == 0o100000 and status.st_uid == os.geteuid()
            if is_ours and name.startswith(SHM_NAMES):
                found[path] = status
    return found


def remove_file(path, status):
    """Remove a file of `own_files` if it is unchanged; whether it is gone.  Raises OSError."""
    if is_same := os.path.samestat(os.lstat(path), status):
        os.unlink(path)
    return is_same


def send(pid, started, number):
    """Send a signal to exactly that process; False if it is gone or may not be signalled."""
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
    ended = {}
    with contextlib.suppress(OSError):
        pid, status = os.waitpid(-1, os.WNOHANG)
        while pid:
            ended[pid] = status
            pid, status = os.waitpid(-1, os.WNOHANG)
    return ended


def kill_all(find, limit_s):
    """SIGKILL the processes of `find()` until none is left or for `limit_s`; (killed, left) by pid."""
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
