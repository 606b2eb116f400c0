"""
The connections of each rank of this node, from its sockets.

Ranks that form several worlds instead of one also exit with 0.  So the sockets of every rank's process tree
are read a few times, until all ranks have a connection that leaves their tree.  The threads of torch and Gloo
have names that show whether a rank has a process group.  The launcher compares the nodes.
"""

import binascii
import time

import _socket as socket
from ringup.agent.proc.files import link, numbered, read, text
from ringup.agent.proc.process import below, descriptors, family
from ringup.agent.proc.sockets import ESTABLISHED, MOST_TABLE_BYTES, end, tcp

FIRST_S, GROWTH, LONGEST_S = 0.5, 1.2, 300.0
"""Seconds between reads, which grow: 18 reads in the first minute, 40 in the first hour."""
LASTING_S = 0.5
"""
A group counts if its threads exist in two reads that far apart.

One read takes threads and sockets one after the other, and may run while a group is set up or torn down.
"""
GROUP_THREADS = (b"pt_gloo", b"pt_nccl", b"pt_tcpstore", b"gloo_tcp")
"""Names of a process group's threads in torch 2.5 and later (c10::setThreadName) and in Gloo."""
MOST_ADDRESSES = 64
MOST_THREADS = 4096


class Connections:
    """Connections of one rank in any read; `is_joined`: with a process here outside its own tree."""

    def __init__(self):
        self.has_group = self.is_joined = False
        self.group_since = None
        self.remote = set()
        """Addresses of other machines."""


class World:
    def __init__(self, job):
        self.job = job
        self.is_wanted = job.order.get("world_size", 1) > 1
        self.seen = {}
        self.pause_s, self.due = FIRST_S, 0.0
        self.has_end = False
        self.own = None

    def roots(self):
        """Top of each process tree: a rank's shim -> the rank; without shims, the launcher -> None."""
        if "RINGUP_SCRIPT" in self.job.order["env"]:
            return {rank.shim: rank for rank in self.job.ranks.all if rank.pid} if self.job.ranks else {}
        return {self.job.launcher: None} if self.job.launcher else {}

    def on_time(self, now):
        """Read if it is time; an error here does not end the job."""
        roots = self.roots() if self.is_wanted and not self.job.end_reason else {}
        first_end = not self.has_end and any(rank and rank.ended for rank in roots.values())
        if not roots or (now < self.due and not first_end):
            return
        self.has_end = self.has_end or first_end
        if self.due and not all(root in self.seen and self.seen[root].is_joined for root in roots):
            try:
                self.read(roots)
            except Exception:
                self.is_wanted = False
            self.pause_s = min(self.pause_s * GROWTH, LONGEST_S)
        self.due = now + self.pause_s

    def read(self, roots):
        self.own = self.own or own_addresses()
        _, children = family()
        trees = {root: below([root], children) for root in roots}
        root_of = {pid: root for root, pids in trees.items() for pid in pids}
        owner = {name: root for pid, root in root_of.items() for name in descriptors(pid)}
        ends = {}
        for name, pid in {link("/proc/%d/ns/net" % pid): pid for pid in root_of}.items():
            for local, remote, _, inode in tcp(ESTABLISHED, "/proc/%d" % pid) if name else ():
                if (root := owner.get("socket:[%s]" % inode)) is not None:
                    ends[name, end(local), end(remote)] = root
        for root, pids in trees.items():
            seen = self.seen.setdefault(root, Connections())
            met = {
                remote[0]
                for (name, local, remote), one in ends.items()
                if one == root and ends.get((name, remote, local)) != root
            }
            here = {one for one in met if one in self.own or one.startswith("127.") or one == "::1"}
            seen.is_joined = seen.is_joined or bool(here)
            seen.remote.update(sorted(met - here)[:MOST_ADDRESSES])
            if not seen.has_group and any(map(has_group_thread, pids)):
                now = time.monotonic()
                seen.group_since = seen.group_since or now
                seen.has_group = now - seen.group_since >= LASTING_S

    def report(self, up):
        """Send the result; once, when the job is over."""
        roots = self.roots()
        if not self.is_wanted or not roots:
            return
        ranks = []
        for root, rank in roots.items():
            seen = self.seen.get(root, Connections())
            ranks.append({
                "rank": rank.rank if rank else -1, "world_size": rank.world if rank else 0,
                "has_group": seen.has_group, "is_joined": seen.is_joined,
                "remote": sorted(seen.remote)[:MOST_ADDRESSES],
            })  # fmt: skip
        up.send({"type": "world", "addresses": sorted(self.own or ())[:MOST_ADDRESSES], "ranks": ranks})


def own_addresses():
    """This machine's addresses: the "host LOCAL" entries of /proc/net/fib_trie, and all of if_inet6."""
    found, last = set(), ""
    for line in text("/proc/net/fib_trie", MOST_TABLE_BYTES).splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            last = words[1]
        elif words[1:] == ["host", "LOCAL"]:
            found.add(last)
    lines = read("/proc/net/if_inet6", 1 << 20).splitlines()
    return found | {socket.inet_ntop(socket.AF_INET6, binascii.unhexlify(line.split()[0])) for line in lines}


def has_group_thread(pid):
    comms = ("/proc/%d/task/%d/comm" % (pid, one) for one in numbered("/proc/%d/task" % pid)[:MOST_THREADS])
    return any(read(comm, 32).startswith(GROUP_THREADS) for comm in comms)
