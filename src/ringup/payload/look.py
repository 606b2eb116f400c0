"""
What the ranks on this node are doing: their state, what they have used so far, where in the code they are.

Runs as `look MODE RUN NODE`: MODE "count" reads counters alone, "stacks" asks for stacks, too ("threads":
of all threads), "flight" for torch's flight recorder as well.
RUN and NODE ("" for any) name the run whose ranks are meant.  Prints one line of JSON.
Only processes of our own user are looked at, and nothing of them is changed.
"""

import json
import os
import sys
import time

import guard_tree as tree
import look_node
import look_stacks

HZ = float(os.sysconf("SC_CLK_TCK"))
KEYS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Who tells a process its rank: torchrun and its like, then MPI, then Slurm."""
SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
SHIM = "rank.py"
MOST_RANKS = 512
MOST_CHILDREN = 64
STACKS_S = 20.0
"""For all ranks of a node together; those who come after it are shown without."""
SYSCALLS = {
    "x86_64": {
        0: "read", 1: "write", 3: "close", 7: "poll", 17: "pread64", 23: "select", 26: "msync",
        35: "nanosleep", 45: "recvfrom", 47: "recvmsg", 58: "vfork", 61: "wait4", 72: "fcntl", 73: "flock",
        74: "fsync", 75: "fdatasync", 162: "sync", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait",
        257: "openat", 262: "newfstatat", 271: "ppoll", 277: "sync_file_range", 281: "epoll_pwait",
        306: "syncfs",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 32: "flock", 56: "openat", 57: "close", 63: "read", 64: "write",
        67: "pread64", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 81: "sync", 82: "fsync",
        83: "fdatasync", 84: "sync_file_range", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep",
        207: "recvfrom", 212: "recvmsg", 227: "msync", 260: "wait4", 267: "syncfs",
    },
}  # fmt: skip
BY_DESCRIPTOR = ("read", "write", "pread64", "recvfrom", "recvmsg", "fsync", "fdatasync", "syncfs", "flock")


def first(env, names):
    """The first of these variables that is set, as text."""
    for name in names:
        if env.get(name.encode()):
            return env[name.encode()].decode("utf-8", "replace")
    return ""


def whole(text, default=-1):
    return int(text) if text.isdecimal() and len(text) < 10 else default


def words(pid):
    return tree.read("/proc/%d/cmdline" % pid, 65536).decode("utf-8", "replace").split("\0")[:-1]


def is_python(pid):
    """Whether a process is an interpreter, whatever it calls itself."""
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid)).startswith(("python", "pypy"))
    except OSError:
        return False


class Ranks:
    """The ranks on this node at one moment."""

    def __init__(self, run, place):
        self.table = tree.table()
        self.children = {}
        for pid, (parent, _) in self.table.items():
            self.children.setdefault(parent, []).append(pid)
        self.env = {}
        self.all = []
        candidates = {}
        for pid in self.table:
            key = self._key(pid, run, place) if pid != os.getpid() else None
            if key:
                candidates[pid] = key
        for pid, key in sorted(candidates.items()):
            if candidates.get(self.table[pid][0]) == key or len(self.all) >= MOST_RANKS:
                continue  # its parent is the one
            rank = self._python(pid, key, candidates)
            if rank and not self._is_stepped_over(pid, key, candidates):
                self.all.append((rank, key))

    def _key(self, pid, run, place):
        env = tree.environ(pid)
        if not env and tree.owner(pid) == os.geteuid() and not tree.read("/proc/%d/cmdline" % pid, 1):
            return None  # the kernel's own
        rank, size = whole(first(env, KEYS)), whole(first(env, SIZES))
        tag = env.get(tree.TAG.encode(), b"").decode("utf-8", "replace")
        node = env.get(tree.PLACE.encode(), b"").decode("utf-8", "replace")
        if rank < 0 or size < 1 or (run and tag != run) or (place and node != place):
            return None
        strong = b"RANK" in env
        job = [first(env, (name,)) for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
        self.env[pid] = env
        return (strong, rank, whole(first(env, LOCAL)), size, tag, node, tuple(job))

    def below(self, pid):
        """A process and its descendants."""
        found, todo = [], [pid]
        while todo:
            one = todo.pop()
            found.append(one)
            todo += self.children.get(one, ())
        return found

    def _python(self, pid, key, candidates):
        """The interpreter that is the rank: not our shim, nor a shell or tool it was started by."""
        for _ in range(20):
            is_shim = b"RINGUP_SCRIPT" in self.env[pid] and any(
                os.path.basename(word) == SHIM for word in words(pid)[1:4]
            )
            if is_python(pid) and not is_shim:
                return pid
            below = [c for c in sorted(self.children.get(pid, ())) if candidates.get(c) == key]
            if not below:
                return 0
            pid = below[0]
        return 0

    def _is_stepped_over(self, pid, key, candidates):
        """Whether Slurm or MPI started a launcher here and not the rank itself."""
        return not key[0] and any(candidates.get(one, (False,))[0] for one in self.below(pid))


def stat_fields(pid):
    return tree.read("/proc/%d/stat" % pid, 4096).rpartition(b")")[2].split()


def used(pids):
    """(CPU seconds, bytes read and written, voluntary switches) of processes and of their ended children."""
    cpu, size, switches = 0, 0, 0
    for pid in pids:
        fields = stat_fields(pid)
        if len(fields) > 14:
            cpu += sum(int(field) for field in fields[11:15])
        for line in tree.read("/proc/%d/io" % pid, 4096).splitlines():
            name, _, value = line.partition(b":")
            if name in (b"rchar", b"wchar", b"read_bytes", b"write_bytes"):
                size += int(value)
        for line in tree.read("/proc/%d/status" % pid).splitlines():
            if line.startswith(b"voluntary_ctxt_switches:"):
                switches += int(line.split()[1])
    return cpu / HZ, size, switches


def faults(pid):
    """How often a process has been given memory that it touched for the first time, or from a file."""
    fields = stat_fields(pid)
    return int(fields[7]) + int(fields[9]) if len(fields) > 9 else 0


def waits(pid):
    """(state, kernel function it waits in, system call with its file), "" for what cannot be read."""
    state = (stat_fields(pid)[:1] or [b"?"])[0].decode()
    channel = tree.read("/proc/%d/wchan" % pid, 100).decode("ascii", "replace")
    fields = tree.read("/proc/%d/syscall" % pid, 300).split()
    call = ""
    if len(fields) > 1 and fields[0].isdigit():
        call = SYSCALLS.get(os.uname().machine, {}).get(int(fields[0]), "")
        if call in BY_DESCRIPTOR:
            try:
                call += " of " + os.readlink("/proc/%d/fd/%d" % (pid, int(fields[1], 16)))[:300]
            except OSError:
                pass
    return state, "" if channel == "0" else channel, call


def entry(ranks, pid, key):
    """Everything about one rank but its stack."""
    _, rank, local_rank, size, run, node, job = key
    pids = ranks.below(pid)
    cpu_s, io_bytes, _ = used(pids)
    switches = used([pid])[2]  # its own alone: a hundred idle workers wake often together
    state, channel, call = waits(pid)
    children = []
    for child in sorted(pids):
        if child != pid and len(children) < MOST_CHILDREN:
            child_cpu_s, child_io, child_switches = used([child])
            child_state, child_channel, child_call = waits(child)
            children.append({
                "pid": child, "command": tree.command(child), "state": child_state, "wchan": child_channel,
                "syscall": child_call, "cpu_s": child_cpu_s, "io_bytes": child_io,
                "switches": child_switches, "parent": ranks.table[child][0],
                "started": ranks.table[child][1], "is_python": is_python(child),
            })  # fmt: skip
    return {
        "rank": rank, "local_rank": local_rank, "world_size": size, "run": run, "node": node,
        "job": list(job), "pid": pid, "started": ranks.table[pid][1],
        "age_s": age_s(ranks.table[pid][1]), "state": state,
        "wchan": channel, "syscall": call, "cpu_s": cpu_s, "io_bytes": io_bytes, "switches": switches,
        "faults": faults(pid), "command": tree.command(pid), "children": children,
    }  # fmt: skip


def age_s(started):
    return max(0.0, float(tree.read("/proc/uptime").split()[0]) - started / HZ)


def add_stacks(ranks, found, all_threads):
    """Ask every rank, then the Python processes below it, for its stack."""
    until = time.monotonic() + STACKS_S
    for one in found:
        one.update(
            look_stacks.stack(one["pid"], one["started"], all_threads)
            if time.monotonic() < until
            else {"threads": [], "how": "", "why_not": "the node has too many ranks to ask them all in time"}
        )
    for child in [child for one in found for child in one["children"] if child["is_python"]]:
        if time.monotonic() < until:
            known = look_stacks.stack(child["pid"], child["started"])
            child.update(threads=known["threads"][:1], why_not=known["why_not"])
    processes = [process for one in found for process in [one] + one["children"]]
    # Who hangs at a file server may have come from there: those last.
    processes.sort(key=lambda process: process["state"] == "D")
    for i, j, text in look_node.bounded(look_stacks.sources(processes)):
        processes[i]["threads"][0][0][j].append(text)


def main(mode, run="", place=""):
    """Look; the answer as plain data."""
    ranks = Ranks(run, place)
    found = [entry(ranks, pid, key) for pid, key in ranks.all]
    answer = {"type": "look", "mode": mode, "at": time.monotonic(), "ranks": found}
    answer["node"] = look_node.node(found)
    answer["ras"] = look_node.ras([ranks.env[pid] for pid, _ in ranks.all if pid in ranks.env])
    if mode != "count":
        add_stacks(ranks, found, mode == "threads")
    if mode == "flight":
        told = look_stacks.flights([one["pid"] for one in found if one["state"] not in "TD"])
        for one in found:
            one["flight"] = told.get(one["pid"])
    return answer


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
