"""Changes between two snapshots of the same ranks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ringup.hang.snapshots import NodeLook, NodeState, RankLook

Looks = Iterable[NodeLook]
Identity = tuple[str, int, int]
"""Node, pid, and when the process began."""
IDLE_CPU_SHARE = 0.02
"""A process below this share of a core (heartbeats, a progress bar) does not compute."""
IDLE_BYTES = 16 << 10
IDLE_SWITCHES_PER_S = 8.0
"""A waiting main thread wakes seldom: a DataLoader every 5 s, a poll with time.sleep once a second."""
FLOWING_BYTES_PER_S = 64 << 10
TRANSFER_BYTES_PER_S = 16 << 10
"""Over a rank's connections that count: a slow server's answer, not only a monitor's reports."""
HEARTBEAT_BYTES_PER_S = 1 << 10
"""A connection that carries less does not count: a thousand ranks poll rank 0's TCPStore each second."""
MONITOR_BYTES_PER_S, MONITOR_BYTES, MONITOR_SLEEPS_PER_S = 256 << 10, 32 << 10, 4.0
"""
Threads that read less, in pieces no larger (psutil's buffer), and sleep seldom may only read the machine's
state.  Data comes in larger pieces, or a thread that uses no CPU time waits for each.
"""
_WATCHES = re.compile(r"^\S*/?(?:wandb-core|gpu_stats|nvidia-smi|dcgmi)(?: |$)")
"""Commands that run below a rank during its whole life and read the machine's counters."""


@dataclass(frozen=True)
class Move:
    seconds: float
    cpu_s: float
    io_bytes: int
    switches: int
    faults: int = 0
    """Pages that only this process touched for the first time, or that were read from a file for it."""
    queued_s: float = 0.0
    """For which its main thread waited for a CPU: other processes had them all."""
    tcp_bytes: int = 0
    """Received and sent by the TCP connections of the rank and its descendants; 0 if unknown."""

    @property
    def transfers(self) -> bool:
        """Whether it receives or sends data over TCP, not only heartbeats."""
        return self.tcp_bytes > TRANSFER_BYTES_PER_S * self.seconds > 0

    @property
    def uses_nothing(self) -> bool:
        """Whether it gained neither CPU time nor a relevant number of bytes."""
        # A descendant that has ended elsewhere removes its totals: the difference is meaningless then.
        if self.seconds <= 0 or self.cpu_s < 0 or self.io_bytes < 0 or self.transfers:
            return False
        # CPU time has steps of 10 ms: one step means nothing, however short the time.
        return self.cpu_s <= max(0.02, IDLE_CPU_SHARE * self.seconds) and self.io_bytes <= IDLE_BYTES

    @property
    def is_idle(self) -> bool:
        """The same, and its main thread hardly wakes: data from a Unix socket appears in no other counter."""
        return self.uses_nothing and self.switches <= max(4, IDLE_SWITCHES_PER_S * self.seconds)


def identity(look: RankLook) -> Identity:
    return look.node, look.pid, look.started


def moves(first: Looks, second: Looks) -> dict[Identity, Move]:
    """The changes by identity, for ranks in both snapshots."""
    before = {identity(rank): (node, rank) for node in first for rank in node.ranks}
    found = {}
    for node in second:
        for rank in node.ranks:
            if identity(rank) in before:
                old_node, old = before[identity(rank)]
                cpu_s, io_bytes = _aside(old, rank)
                seconds = node.at_s - old_node.at_s
                io_bytes += _monitored(old, rank, seconds)
                found[identity(rank)] = Move(
                    seconds,
                    rank.cpu_s - old.cpu_s - cpu_s,
                    rank.io_bytes - old.io_bytes - io_bytes - old.answer_bytes,
                    rank.switches - old.switches,
                    rank.faults - old.faults,
                    rank.queued_s - old.queued_s,
                    _tcp_bytes(old_node, old, node, rank),
                )
    return found


def _monitored(old: RankLook, new: RankLook, seconds: float) -> int:
    """Bytes that threads may have read from /proc and /sys only, as a monitor does."""
    before, found = {thread: rest for thread, *rest in old.thread_reads}, 0
    for thread, *rest in new.thread_reads:
        was = before.get(thread, (0, 0, 0))
        size, calls, sleeps = (now - then for now, then in zip(rest, was, strict=True))
        if sleeps <= MONITOR_SLEEPS_PER_S * seconds and size <= MONITOR_BYTES * calls:
            found += max(0, size)
    return found if found <= MONITOR_BYTES_PER_S * seconds else 0


def _tcp_bytes(old_node: NodeLook, old: RankLook, node: NodeLook, rank: RankLook) -> int:
    """
    Bytes over TCP between two snapshots: at least that many, for closed connections do not count.

    A connection may be missing in the first snapshot because it had carried little, or less than others.
    """
    if old_node.transfers is None:
        return 0
    (left_out, before), (_, now) = _connections(old_node, old), _connections(node, rank)
    gains = (size - before.get(inode, left_out) for inode, size in now.items())
    least = HEARTBEAT_BYTES_PER_S * (node.at_s - old_node.at_s)
    return sum(gain for gain in gains if gain > least)


def _connections(node: NodeLook, rank: RankLook) -> tuple[int, dict[str, int]]:
    """Bytes by connection of a rank and its descendants, and the most of any that is not listed."""
    pids = [rank.pid, *(child.pid for child in rank.children)]
    known = [one for pid in pids if (one := (node.transfers or {}).get(str(pid)))]
    found = {inode: size for _, sizes in known for inode, size in sizes.items()}
    return max((left_out for left_out, _ in known), default=0), found


def _aside(old: RankLook, new: RankLook) -> tuple[float, int]:
    """CPU seconds and bytes of descendants that only monitor, unless the rank runs their program itself."""
    if any("/wandb/" in frame.file for frame in new.frames):
        return 0.0, 0  # it may wait until all data is sent
    before = {(child.pid, child.started): child for child in old.children if _WATCHES.search(child.command)}
    pairs = [(before[key], c) for c in new.children if (key := (c.pid, c.started)) in before]
    return sum(c.cpu_s - b.cpu_s for b, c in pairs), sum(c.io_bytes - b.io_bytes for b, c in pairs)


def rates(first: Looks, second: Looks) -> list[tuple[str, str, float]]:
    """(node, interface, bytes per second), fastest first."""
    found = [
        (node.node, name, (size - old.state.interfaces.get(name, size)) / seconds)
        for old, node, seconds in _both(first, second)
        for name, size in node.state.interfaces.items()
    ]
    return sorted(found, key=lambda one: -one[2])


def flowing(first: Looks, second: Looks) -> list[tuple[str, str, float]]:
    """`rates` of interfaces with more than background traffic."""
    return [one for one in rates(first, second) if one[2] > FLOWING_BYTES_PER_S]


def _both(first: Looks, second: Looks) -> Iterable[tuple[NodeLook, NodeLook, float]]:
    """For each node its two snapshots, and the seconds between them."""
    before = {node.node: node for node in first}
    pairs = [(before[node.node], node) for node in second if node.node in before]
    return [(old, node, node.at_s - old.at_s) for old, node in pairs if node.at_s > old.at_s]


def written(first: Looks, second: Looks) -> dict[str, float]:
    """Node -> bytes per second to its disks and file servers, if more than log lines."""
    rates = {
        node.node: (node.state.written_bytes - old.state.written_bytes) / seconds
        for old, node, seconds in _both(first, second)
        if not old.problem
    }
    return {node: rate for node, rate in rates.items() if rate > FLOWING_BYTES_PER_S}


def busiest_child(old: RankLook, new: RankLook) -> str:
    """The command of the descendant that used most CPU time since, "" if none did."""
    before = {child.pid: child.cpu_s for child in old.children}
    used = [(child.cpu_s - before.get(child.pid, 0.0), child.command) for child in new.children]
    best = max(used, default=(0.0, ""))
    return best[1] if best[0] > 0.05 else ""


def troubles(old: NodeState | None, new: NodeState) -> list[str]:
    """Problems of a node, one text each."""
    found = []
    if new.memory_bytes and new.memory_available_bytes < 0.03 * new.memory_bytes:
        share = new.memory_available_bytes / new.memory_bytes
        found.append(f"{share:.1%} of its memory is left")
    if old and new.swapped_pages - old.swapped_pages > 2000:
        found.append(f"it is swapping ({new.swapped_pages - old.swapped_pages} pages since the last look)")
    if old and new.oom_kills > old.oom_kills:
        found.append("the kernel's out-of-memory killer has ended a process since the last look")
    elif old and new.cgroup_oom_kills > old.cgroup_oom_kills:
        found.append("the job's memory limit (cgroup) has ended a process since the last look")
    for path, free, size in new.disks:
        if size and free < min(size * 0.001, 16 << 20):
            found.append(f"{path} is full")
    return found
