"""The machine around the job: container limits, memory, processes that neither run nor end, slow paths."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from statistics import median_low

from ringup import problems
from ringup.checks.ranks import ranks_on
from ringup.facts import Cluster, Node
from ringup.rules import Finding, Fix, Severity, check
from ringup.units import printable, show_bytes, show_seconds

GIB = 1024**3
PROCESSES_A_RANK = 128
"""Threads count too: OpenMP's, NCCL's and the data loaders' (some 60 before the first step)."""
MEMORY_A_RANK_BYTES = 2 * GIB
"""torch, its CUDA context and NCCL's buffers on the host, before any data."""
SWAP_SHARE = 0.01
STALL_SHARE = 0.05
MANY_ZOMBIES, ZOMBIE_SHARE = 20, 0.2
"""gpud warns at a fifth of all processes."""
SLOW_LOOK_S = 1.0
OLD_S = 3600.0
MUCH_LEFT_BYTES = 64 * 1024**2
FEW_BYTES = 64 * 1024**2
LOGIND = "/etc/systemd/logind.conf.d/ringup.conf"
SHARED = "nfs|lustre|fuse|cifs|ceph|gpfs|beegfs"
SYSTEM_USERS_BELOW = 1000
"""systemd's usual SYSTEM_UID_MAX is 999; those users are left out of RemoveIPC."""


def on_node(node: Node, command: str) -> str:
    """A command for one node, ready to paste."""
    return f"ssh {shlex.quote(node.name)} {command}"


def usual(cluster: Cluster, value: Callable[[Node], float]) -> float:
    """The middle of the nodes' values."""
    return median_low([value(n) for n in cluster.nodes])


@check("cgroup-limits-tight", reads=("container",), uses=("gpu_count", "cpu_count"), severity="warning")
def cgroup_limits_tight(cluster: Cluster) -> Iterator[Finding]:
    """
    A container or scheduler gives the job less processor time, memory or processes than its ranks need.

    Why: a throttled proxy thread halves NCCL's bandwidth; at the memory limit a rank is killed without a
    word; at the process limit a loader or NCCL's own thread cannot start.

    Fix: raise the request or the limit: `--cpus`, `--memory`, `--pids-limit` of docker, the pod's limits,
    `--cpus-per-task` and `--mem` of Slurm.
    """
    for node in cluster.nodes:
        ranks = ranks_on(cluster, node)
        tight, short = judged_limits(cluster, node, ranks)
        if tight:
            yield Finding(
                node.name,
                found="; ".join(tight),
                wanted=f"enough for {ranks} rank{'s' * (ranks != 1)}",
                node=node.name,
                severity="warning" if short else "note",
                fix=Fix(
                    "raise the limits of the container, pod or job",
                    commands=(on_node(node, "'cat /proc/self/cgroup; grep . /sys/fs/cgroup/*.max'"),),
                ),
            )


def judged_limits(cluster: Cluster, node: Node, ranks: int) -> tuple[list[str], bool]:
    """What is tight on a node, and whether it surely falls short: of its ranks, or of what its peers have."""
    limits, tight, short = node.container, [], False
    peers = usual(cluster, lambda n: n.container.cpus)
    odd = limits.cpus < peers / 2
    # Where fewer processors may be used at all, `processors-fewer-than-ranks` says so.
    allowed = node.cpu_count if "cpu_count" not in node.unknown and node.cpu_count else limits.cpus
    if limits.cpus < min(2 * ranks, allowed) or (odd and limits.cpus < allowed):
        tight.append(f"{limits.cpus:.3g} processors' worth of time")
        short = short or limits.cpus < ranks or odd
    if limits.memory_bytes < MEMORY_A_RANK_BYTES * ranks:
        tight.append(f"{show_bytes(limits.memory_bytes)} of memory")
        short = short or limits.memory_bytes < MEMORY_A_RANK_BYTES * ranks / 4
    if limits.processes < PROCESSES_A_RANK * ranks:
        tight.append(f"{limits.processes:g} processes and threads")
        short = short or limits.processes < PROCESSES_A_RANK * ranks / 2
    return tight, short


@check("numa-balancing-on", reads=("numa",), uses=("gpu_count",), severity="warning")
def numa_balancing_on(cluster: Cluster) -> Iterator[Finding]:
    """
    The kernel moves memory pages between the processors' memories by itself.

    Why: a page that moves stops the threads that use it; NCCL's proxy threads stall with it (NCCL's
    troubleshooting page).

    Fix: `sysctl kernel.numa_balancing=0` on every node.
    """
    on = [n for n in cluster.nodes if n.numa.nodes > 1 and n.numa.is_balancing]
    # The default of many distributions: where all are alike it is worth knowing, an odd node is slower.
    odd = on if len(on) < len(cluster.nodes) / 2 else []
    for node in on:
        gpus = node.gpu_count if "gpu_count" not in node.unknown else 0
        yield Finding(
            node.name,
            found=f"on, with {node.numa.nodes} memory nodes" + (", unlike on the other nodes" if odd else ""),
            wanted="kernel.numa_balancing=0",
            node=node.name,
            severity="warning" if odd and gpus else "note",
            fix=Fix("switch it off", commands=(on_node(node, "sudo sysctl kernel.numa_balancing=0"),)),
        )


@check("swap-in-use", reads=("memory",), uses=("memory_bytes", "rises"), severity="warning")
def swap_in_use(cluster: Cluster) -> Iterator[Finding]:
    """
    A node has moved memory to a disk, or its tasks wait for memory.

    Why: a rank whose pages come back from a disk stalls for seconds, and all others with it.

    Fix: end what uses the memory; then `swapoff -a`.
    """
    for node in cluster.nodes:
        memory = node.memory
        total = node.memory_bytes if "memory_bytes" not in node.unknown else 0
        used = memory.swap_used_bytes > max(FEW_BYTES, SWAP_SHARE * total)
        stalled = (memory.stalled_share or 0.0) >= STALL_SHARE
        moving = risen(node, "pswpin")
        if not (used or stalled or moving):
            continue
        has_swap = memory.swap_total_bytes > 0
        shown = f"{show_bytes(memory.swap_used_bytes)} of {show_bytes(memory.swap_total_bytes)} swap used"
        words = [shown if has_swap else "there is no swap"]
        words += [f"{moving} pages were read back during the check"] if moving else []
        if stalled:
            words.append(f"tasks waited for memory in {memory.stalled_share:.0%} of the last minute")
        yield Finding(
            node.name,
            found=", ".join(words),
            wanted="no swap in use" if has_swap else "no task that waits for memory",
            node=node.name,
            severity="warning" if stalled or moving else "note",
            fix=Fix(
                "see who uses the memory" + (", then switch swap off" if has_swap else ""),
                commands=(on_node(node, "'free -h; ps axo pid,user,rss,args --sort=-rss | head'"),),
            ),
        )


def risen(node: Node, name: str) -> int:
    """How much a counter of memory rose between the first question and the end of the pair tests."""
    if "rises" in node.unknown:
        return 0
    return sum(r.by.get(name, 0) for r in node.rises if r.of == "memory")


@check(problems.OOM_KILLER_RAN, reads=("container", "memory"), uses=("rises",))
def oom_killer_ran(cluster: Cluster) -> Iterator[Finding]:
    """What happened in the job's own container or while we looked; long ago, it is worth knowing at most."""
    lucky = sum(not n.memory.oom_kills for n in cluster.nodes)
    for node in cluster.nodes:
        now, here, ever = risen(node, "oom_kill"), node.container.oom_kills, node.memory.oom_kills
        severity: Severity = "warning"
        if now:
            found = f"the kernel ended {now} processes for memory during the check"
        elif here:
            found = f"the kernel has ended {here} processes of this container or job for memory"
        elif ever and 2 * lucky > len(cluster.nodes):
            found, severity = f"the kernel has ended {ever} processes for memory since the start", "note"
        else:
            continue
        yield Finding(
            node.name,
            found=found,
            wanted="memory enough for all that runs there",
            node=node.name,
            severity=severity,
            fix=Fix(
                "fewer loader workers or ranks, or a larger memory limit",
                commands=(on_node(node, "\"sudo dmesg -T | grep -i 'killed process'\""),),
            ),
        )


@check("stuck-processes", reads=("stuck",), uses=("looks",), severity="warning")
def stuck_processes(cluster: Cluster) -> Iterator[Finding]:
    """
    Processes on a node wait in the kernel and cannot be ended, or have ended and are not taken away.

    Why: a driver, a GPU or a file server that does not answer holds them, and will hold the job; memory
    of a GPU whose process cannot end is not freed.

    Fix: look what they wait for; a driver's hang ends with a reboot, a file server's with the server.
    """
    for node in cluster.nodes:
        stuck = node.stuck
        many = stuck.zombies >= max(MANY_ZOMBIES, ZOMBIE_SHARE * stuck.processes)
        words = []
        # Who waits for a path that does not answer is no fault of its own.
        dead_path = "looks" not in node.unknown and any(not x.answered for x in node.looks)
        if stuck.blocked and not dead_path:
            shown = ", ".join(f"{printable(p.command, 60)} (pid {p.pid})" for p in stuck.blocked[:3])
            more = f" and {len(stuck.blocked) - 3} more" if len(stuck.blocked) > 3 else ""
            words.append(f"{shown}{more}: {printable(stuck.blocked[0].evidence, 120)}")
        if many:
            words.append(
                f"{stuck.zombies} of {stuck.processes} processes are zombies ({stuck.own_zombies} own)"
            )
        if words:
            pids = ",".join(str(p.pid) for p in stuck.blocked[:10])
            which = f"-p {pids}" if pids else "ax"
            look = f"ps {which} -o pid,ppid,user,stat,etime,wchan:30,comm"
            yield Finding(
                node.name,
                found="; ".join(words),
                wanted="processes that end when they are told to",
                node=node.name,
                fix=Fix("look what they wait for", commands=(on_node(node, look),)),
            )


@check("shm-cleaned-by-systemd", reads=("remove_ipc", "container", "uid"), severity="warning")
def shm_cleaned_by_systemd(cluster: Cluster) -> Iterator[Finding]:
    """
    systemd removes the user's shared memory when his last login ends, and the job runs outside any login.

    Why: files in /dev/shm vanish under NCCL and the data loaders the moment somebody logs out.

    Fix: `RemoveIPC=no` in /etc/systemd/logind.conf, then restart systemd-logind; or
    `loginctl enable-linger` for the user.
    """
    for node in cluster.nodes:
        set_on = node.remove_ipc in ("yes", "true", "1", "on")
        ordinary = node.uid >= SYSTEM_USERS_BELOW
        # Unset, it is on as systemd ships it and off as Red Hat builds it.
        if ordinary and not node.container.has_login_session and (set_on or not node.remove_ipc):
            yield Finding(
                node.name,
                found=f"RemoveIPC is {node.remove_ipc or 'unset, mostly yes'}; no login session here",
                wanted="RemoveIPC=no",
                node=node.name,
                severity="warning" if set_on else "note",
                fix=Fix(
                    "keep shared memory after a logout",
                    commands=(
                        on_node(node, "sudo mkdir -p /etc/systemd/logind.conf.d"),
                        on_node(node, f"\"printf '[Login]\\nRemoveIPC=no\\n' | sudo tee {LOGIND}\""),
                        on_node(node, "sudo systemctl restart systemd-logind"),
                    ),
                ),
            )


@check("yama-forbids-ptrace", reads=("ptrace_scope", "uid"), severity="note")
def yama_forbids_ptrace(cluster: Cluster) -> Iterator[Finding]:
    """
    The kernel lets nobody but root look into a running process.

    Why: stacks of a hung rank cannot be read with py-spy or gdb by its own user; at 1 a parent still may,
    which ringup's guard is.

    Fix: `sysctl kernel.yama.ptrace_scope=1` while looking for a hang, or root.
    """
    for node in cluster.nodes:
        if node.ptrace_scope > 1 and (node.uid or node.ptrace_scope > 2):
            yield Finding(
                node.name,
                found=f"kernel.yama.ptrace_scope is {node.ptrace_scope}",
                wanted="1 or 0",
                node=node.name,
                fix=Fix("allow it", commands=(on_node(node, "sudo sysctl kernel.yama.ptrace_scope=1"),)),
            )


@check("nfs-mount-slow", reads=("looks",), severity="error")
def nfs_mount_slow(cluster: Cluster) -> Iterator[Finding]:
    """
    One look at the job's directory, its script, a path it is given or TMPDIR takes seconds, or never ends.

    Why: a rank that waits for a file server cannot be interrupted, and its peers time out in NCCL; the
    commonest cause of a "NCCL timeout" that is none.

    Fix: the file server, or a copy on a local disk; `mount -o remount` does not help a dead server.

    In logs: `nfs: server NAME not responding, still trying`.
    """
    for node in cluster.nodes:
        for look in node.looks:
            if look.answered and look.took_s <= SLOW_LOOK_S:
                continue
            path = shlex.quote(look.path)
            yield Finding(
                f"{node.name} {printable(look.path, 200)}",
                found=f"one look took {show_seconds(look.took_s)}"
                if look.answered
                else f"no answer within {show_seconds(look.took_s)}",
                wanted=f"an answer within {show_seconds(SLOW_LOOK_S)}",
                node=node.name,
                severity="warning" if look.answered else "error",
                fix=Fix(
                    "see which file system it is and whether its server answers",
                    commands=(
                        on_node(node, shlex.quote(f"grep -E '{SHARED}' /proc/mounts")),
                        on_node(node, shlex.quote(f"timeout 5 stat -f {path}")),
                    ),
                ),
            )


@check("shm-left-over", reads=("shm_files",), severity="note")
def shm_left_over(cluster: Cluster) -> Iterator[Finding]:
    """
    Files of earlier runs lie in /dev/shm.

    Why: they hold memory until somebody removes them, and NCCL or a data loader fails when none is left.

    Fix: `ringup clean` lists those that nobody uses, `ringup clean --kill` removes what is provably left.
    """
    for node in cluster.nodes:
        left = [f for f in node.shm_files if f.owner == "gone" or (f.owner == "unknown" and f.age_s > OLD_S)]
        size = sum(f.size_bytes for f in left)
        if size >= MUCH_LEFT_BYTES:
            users = sorted({f.user for f in left})
            yield Finding(
                f"{node.name} /dev/shm",
                found=f"{show_bytes(size)} in {len(left)} files of {printable(', '.join(users[:4]), 100)},"
                f" {printable(left[0].name, 60)} the largest",
                wanted="nothing of runs that have ended",
                node=node.name,
                fix=Fix("see what nobody uses", commands=(f"ringup clean -H {shlex.quote(node.name)}",)),
            )
