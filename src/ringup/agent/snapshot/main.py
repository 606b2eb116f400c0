"""
A snapshot of the ranks on this node: state, resources used so far, stacks.  Prints one line of JSON.

Arguments: MODE RUN NODE [PYSPY]. "count" reads only counters, "stacks" also stacks ("threads": of all
threads), "flight" also torch's flight recorder; RUN and NODE ("" for any) name the run; PYSPY: see
stacks.unpack.  It reads only processes of its own user, and changes nothing.
"""

import json
import os
import pwd
import sys
import time

from ringup.agent.guard.tree import PLACE, TAG
from ringup.agent.proc.files import integer, link, numbered, numbers, pause, read, text
from ringup.agent.proc.process import HZ, below, command, environ, family, owner, stat_fields
from ringup.agent.proc.process import state, status, waited_s, words
from ringup.agent.proc.programs import launcher
from ringup.agent.proc.sockets import end, tcp
from ringup.agent.snapshot import machine, stacks
from ringup.agent.snapshot.transfers import namespace, transfers

KEYS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Set by torchrun and similar launchers, then by MPI, then by Slurm."""
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
SHIM = "rank.py"
MOST_RANKS = 512
MOST_CHILDREN = 64
MOST_THREADS = 512
READS = ("rchar", "syscr", "voluntary_ctxt_switches")
ON_SOCKET = " of socket:["
MOST_TABLES, MOST_TABLE_BYTES = 16, 4 << 20
"""Network namespaces whose connections are read, and bytes of a table (28,000 connections)."""
STACKS_S = 20.0
"""For all ranks of a node together; ranks that come later are shown without a stack."""
SYSCALLS = {
    "x86_64": {
        0: "read", 1: "write", 3: "close", 7: "poll", 17: "pread64", 23: "select", 26: "msync",
        35: "nanosleep", 42: "connect", 44: "sendto", 45: "recvfrom", 47: "recvmsg", 58: "vfork",
        61: "wait4", 72: "fcntl", 73: "flock",
        74: "fsync", 75: "fdatasync", 162: "sync", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
        257: "openat", 262: "newfstatat", 271: "ppoll", 277: "sync_file_range", 281: "epoll_pwait",
        306: "syncfs",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 32: "flock", 56: "openat", 57: "close", 63: "read", 64: "write",
        67: "pread64", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 81: "sync", 82: "fsync",
        83: "fdatasync", 84: "sync_file_range", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
        203: "connect", 206: "sendto", 207: "recvfrom", 212: "recvmsg", 227: "msync", 260: "wait4",
        267: "syncfs",
    },
}  # fmt: skip
BY_DESCRIPTOR = (
    "read", "write", "pread64", "connect", "sendto", "recvfrom", "recvmsg", "fsync", "fdatasync", "syncfs",
    "flock", "fcntl",
)  # fmt: skip


def first(env, *names):
    return next((env[n.encode()].decode("utf-8", "replace") for n in names if env.get(n.encode())), "")


def whole(value):
    return int(value) if value.isdecimal() and len(value) < 10 else -1


def is_python(pid):
    """Whether a process is a Python interpreter, whatever its name is."""
    return os.path.basename(link("/proc/%d/exe" % pid)).startswith(("python", "pypy"))


class RanksHere:
    def __init__(self, run, place):
        self.table, self.children = family()
        self.env, self.all = {}, []
        keys = {pid: self._key(pid, run, place) for pid in self.table if pid != os.getpid()}
        candidates = {pid: key for pid, key in keys.items() if key}
        launchers = {pid for pid in candidates if self._launches(pid, candidates)}
        ranks = candidates.keys() - launchers
        for pid, key in sorted(candidates.items()):
            if candidates.get(self.table[pid][0]) == key or len(self.all) >= MOST_RANKS:
                continue  # its parent is the rank
            rank = 0 if pid in launchers or ranks & self._above(pid) else self._python(pid, key, candidates)
            if rank:
                self.all.append((rank, key))

    def _launches(self, pid, candidates):
        """
        Whether it started the ranks but is not a rank: a launcher that Slurm or MPI started here, or a script
        that starts the ranks of a larger world.
        """
        own, others = candidates[pid], below([pid], self.children)
        ranks = [candidates[one] for one in others if one in candidates and candidates[one][0]]
        if own[0] or (is_python(pid) and not launcher(words(pid))):
            # A rank that MPI has started may set RANK for itself: what it starts inherits that.
            return any(key[3] > own[3] for key in ranks)
        return bool(ranks)

    def _above(self, pid):
        """Its ancestors: a process that a rank started belongs to that rank, whatever rank it has."""
        found = set()
        while pid in self.table and pid not in found:
            pid = self.table[pid][0]
            found.add(pid)
        return found

    def _key(self, pid, run, place):
        env = environ(pid)
        if not env and owner(pid) == os.geteuid() and not read("/proc/%d/cmdline" % pid, 1):
            return None  # a kernel thread
        rank, size = whole(first(env, *KEYS)), whole(first(env, *SIZES))
        tag, node = first(env, TAG), first(env, PLACE)
        if rank < 0 or size < 1 or (run and tag != run) or (place and node != place):
            return None
        job = tuple(first(env, name) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"))
        self.env[pid] = env
        return (b"RANK" in env, rank, whole(first(env, *LOCAL)), size, tag, node, job)

    def _python(self, pid, key, candidates):
        """The interpreter of the rank: not the shim, nor a shell or tool above it; 0 for none."""
        for _ in range(20):
            names = [os.path.basename(word) for word in words(pid)[1:4]]
            if is_python(pid) and not (b"RINGUP_SCRIPT" in self.env[pid] and SHIM in names):
                return pid
            same = [c for c in sorted(self.children.get(pid, ())) if candidates.get(c) == key]
            if not same:
                return 0
            pid = same[0]
        return 0


def used(pids):
    """(CPU seconds, bytes read and written, voluntary switches) of processes and of their ended children."""
    cpu, size, switches = 0, 0, 0
    for pid in pids:
        cpu += sum(map(int, stat_fields(pid)[11:15]))
        size += sum(numbers("/proc/%d/io" % pid, ("rchar", "wchar", "read_bytes", "write_bytes")).values())
        switches += integer(status(pid).get("voluntary_ctxt_switches", ""))
    return cpu / HZ, size, switches


def thread_reads(pid):
    """[Thread, bytes, calls, sleeps] of each thread that has read something, without the main thread."""
    found = []
    for thread in numbered("/proc/%d/task" % pid)[:MOST_THREADS]:
        place = "/proc/%d/task/%d/" % (pid, thread)
        known = numbers(place + "io", READS) if thread != pid else {}
        if known.get("rchar"):
            known.update(numbers(place + "status", READS))
            found.append([thread] + [known.get(name, 0) for name in READS])
    return found


def waits(pid):
    """(state, kernel function it waits in, system call with its file), "" for each unreadable one."""
    channel = text("/proc/%d/wchan" % pid, 100)
    fields = read("/proc/%d/syscall" % pid, 300).split()
    call = ""
    if len(fields) > 1 and fields[0].isdigit():
        call = SYSCALLS.get(os.uname().machine, {}).get(int(fields[0]), "")
        if call in BY_DESCRIPTOR:
            file = link("/proc/%d/fd/%d" % (pid, int(fields[1], 16)))
            call += " of " + file[:300] if file else ""
            call += lock_holder(pid) if call.startswith(("flock", "fcntl")) else ""
    return state(pid) or "?", "" if channel == "0" else channel, call


def lock_holder(pid):
    """The process that has the file lock for which this one waits ("1: -> FLOCK" in proc_locks(5)), or ""."""
    rows = [line.replace("->", "", 1).split() for line in text("/proc/locks", 1 << 20).splitlines()]
    # "1: FLOCK ADVISORY WRITE PID ...": the holder's line comes first, then those that wait for it.
    heads = {row[0]: row[4] for row in reversed(rows) if len(row) > 4}
    named = (heads[row[0]] for row in rows if row[4:5] == [str(pid)] and heads[row[0]] != row[4])
    holder = integer(next(named, ""))
    return ", held by process %d (%s)" % (holder, command(holder)[:80]) if holder > 0 else ""


def name_connections(processes):
    """Replace the TCP socket that a process waits in by the other end; each table is read once for all."""
    by_namespace = {}
    for one in processes:
        if ON_SOCKET in one["syscall"]:
            by_namespace.setdefault(link("/proc/%d/ns/net" % one["pid"]), []).append(one)
    for waiting in list(by_namespace.values())[:MOST_TABLES]:
        table = tcp(folder="/proc/%d" % waiting[0]["pid"], most_bytes=MOST_TABLE_BYTES)
        ends = {inode: other for _, other, _, inode in table}
        for one in waiting:
            call, _, inode = one["syscall"].rstrip("]").partition(ON_SOCKET)
            if inode in ends:
                one["syscall"] = "%s of the connection to %s port %d" % ((call,) + end(ends[inode]))


def python(pid):
    """The interpreter of a process, by the name in its command line: a virtual environment's is a link."""
    name = (words(pid) or [""])[0]
    return name if name.startswith("/") and is_python(pid) else link("/proc/%d/exe" % pid)


def process(ranks, pid):
    """Facts of a rank or of a process below it."""
    how, channel, call = waits(pid)
    cpu_s, io_bytes, switches = used([pid])
    return {
        "pid": pid, "command": command(pid), "state": how, "wchan": channel, "syscall": call,
        "cpu_s": cpu_s, "io_bytes": io_bytes, "switches": switches, "parent": ranks.table[pid][0],
        "started": ranks.table[pid][1], "is_python": is_python(pid),
    }  # fmt: skip


def entry(ranks, pid, key, with_children=True):
    """One rank without its stack; `switches` counts only its own: a hundred idle workers wake often."""
    _, rank, local_rank, size, run, node, job = key
    pids = below([pid], ranks.children)
    cpu_s, io_bytes, _ = used(pids)
    fields = stat_fields(pid)
    age_s = float(text("/proc/uptime").split()[0]) - ranks.table[pid][1] / HZ
    children = sorted(child for child in pids if child != pid)[:MOST_CHILDREN] if with_children else ()
    return dict(
        process(ranks, pid), rank=rank, local_rank=local_rank, world_size=size, run=run, node=node,
        job=list(job), python=python(pid), age_s=max(0.0, age_s), cpu_s=cpu_s, io_bytes=io_bytes,
        thread_reads=thread_reads(pid), namespace=namespace(pid),
        # Page faults: memory used for the first time, or read from a file.
        faults=int(fields[7]) + int(fields[9]) if len(fields) > 9 else 0,
        # Time for which its main thread wanted a CPU and had none.
        queued_s=waited_s(pid),
        children=[process(ranks, child) for child in children],
    )  # fmt: skip


def add_stacks(found, all_threads):
    """Read the stack of every rank, then of the Python processes below the ranks."""
    until = time.monotonic() + STACKS_S
    children = [child for one in found for child in one["children"] if child["is_python"]]
    requests = {one["pid"]: stacks.Request(one["pid"]) for one in found + children}
    pause(stacks.REST_S if found else 0)
    for one in found + children:
        known = {"threads": [], "how": "", "why_not": "the node has too many ranks to query all in time"}
        if time.monotonic() < until:
            known = stacks.stack(requests[one["pid"]], one["started"], all_threads and "rank" in one)
        one.update({name: known[name] for name in known if name != "how" or "rank" in one})
    for one in found:
        own = [one] + [child for child in one["children"] if child["is_python"]]
        one["answer_bytes"] = sum(requests[process["pid"]].size for process in own)
    processes = [process for one in found for process in [one] + one["children"]]
    # Ranks that hang at a file server come last: their source may be on that server, too.
    processes.sort(key=lambda process: process["state"] == "D")
    for i, j, line in machine.bounded(stacks.sources(processes)):
        processes[i]["threads"][0][0][j].append(line)


def others():
    """User -> number of their Python processes, without the system's."""
    found = {}
    for pid in numbered("/proc"):
        user, line = owner(pid), words(pid)[:2]
        is_system = len(line) < 2 or line[1].startswith(("/usr/", "/lib", "/opt/google"))
        if user not in (-1, os.geteuid()) and not is_system and "python" in os.path.basename(line[0]):
            found[user] = found.get(user, 0) + 1
    return {user_name(user): count for user, count in sorted(found.items())[:16]}


def user_name(user):
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return "user %d" % user


def snapshot(ranks, mode, with_details=True, parents=()):
    """
    `with_details`: also bytes over TCP, the processes below the ranks (else of `parents`), NCCL's own report.
    """
    found = [entry(ranks, pid, key, with_details or pid in parents) for pid, key in ranks.all]
    name_connections([process for one in found for process in [one] + one["children"]])
    answer = {
        "type": "look",
        "mode": mode,
        "at": time.monotonic(),
        "wall_ns": time.time_ns(),
        "ranks": found,
        "ras": None,
        "transfers": transfers(found, ranks.children) if with_details else None,
    }
    answer["node"] = machine.node(found)
    if not found and mode != "count":
        answer["node"]["others"] = others()
    if with_details:
        answer["ras"] = machine.ras([ranks.env[pid] for pid, _ in ranks.all if pid in ranks.env])
    if mode != "count":
        add_stacks(found, mode == "threads")
    if mode == "flight":
        dumps = stacks.flights([one["pid"] for one in found if one["state"] not in "TD"])
        for one in found:
            one["flight"], size = dumps.get(one["pid"], (None, 0))
            one["answer_bytes"] += size
    return answer


def main(mode, run="", place="", pyspy=""):
    if pyspy:
        stacks.unpack(pyspy)
    return snapshot(RanksHere(run, place), mode)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
