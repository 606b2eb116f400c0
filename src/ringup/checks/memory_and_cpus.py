"""The machine: memory, CPUs, cgroup limits, stuck processes, slow paths."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from statistics import median_low

from ringup.checks.verbs import rose
from ringup.model import Cluster, Node
from ringup.rules import Finding, Severity, at, check
from ringup.units import GIB, plural, printable, show_bytes, show_seconds, summarize_names

PROCESSES_A_RANK = 128
"""Includes threads: OpenMP's, NCCL's and the data loaders' (about 60 before the first step)."""
MEMORY_A_RANK_BYTES = 2 * GIB
"""torch, its CUDA context and NCCL's host buffers, before any data."""
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


@check("cgroup-limits-tight", reads=("container",), severity="warning")
def cgroup_limits_tight(cluster: Cluster) -> Iterator[Finding]:
    """
    A container or scheduler gives the job less CPU time, memory or processes than its ranks need.

    Why: a throttled proxy thread halves NCCL's bandwidth; at the memory limit a rank is killed without a
    message; at the process limit a loader or NCCL's own thread cannot start.
    Fix: raise the request or the limit: `--cpus`, `--memory`, `--pids-limit` of docker, the pod's limits,
    `--cpus-per-task` and `--mem` of Slurm.
    """
    usual_cpus = median_low([n.container.cpus for n in cluster.nodes] or [0.0])
    for node in cluster.nodes:
        limits, ranks = node.container, cluster.ranks_on(node)
        tight, is_short = list[str](), False
        odd = limits.cpus < usual_cpus / 2
        # If the job may only use few CPUs, `processors-fewer-than-ranks` reports it.
        allowed = node.cpu_count or limits.cpus
        if limits.cpus < min(2 * ranks, allowed) or (odd and limits.cpus < allowed):
            tight.append(f"{limits.cpus:.3g} CPUs of time")
            is_short = limits.cpus < ranks or odd
        if limits.memory_bytes < MEMORY_A_RANK_BYTES * ranks:
            tight.append(f"{show_bytes(limits.memory_bytes)} of memory")
            is_short = is_short or limits.memory_bytes < MEMORY_A_RANK_BYTES * ranks / 4
        if limits.processes < PROCESSES_A_RANK * ranks:
            tight.append(f"{limits.processes:g} processes and threads")
            is_short = is_short or limits.processes < PROCESSES_A_RANK * ranks / 2
        if tight:
            yield at(node).finding(
                found="; ".join(tight),
                wanted=f"enough for {plural(ranks, 'rank')}",
                severity="warning" if is_short else "note",
                run="cat /proc/self/cgroup; grep . /sys/fs/cgroup/*.max",
            )


@check("numa-balancing-on", reads=("numa",), severity="warning")
def numa_balancing_on(cluster: Cluster) -> Iterator[Finding]:
    """
    The kernel moves memory pages between NUMA nodes.

    Why: a page that moves stops the threads that use it; NCCL's proxy threads stall with it (NCCL's
    troubleshooting page).
    Fix: `sysctl kernel.numa_balancing=0` on every node.
    """
    on = [n for n in cluster.nodes if n.numa.nodes > 1 and n.numa.is_balancing]
    # The default of many distributions: a note if all nodes are alike; a single odd node is slower.
    odd = on if len(on) < len(cluster.nodes) / 2 else []
    for node in on:
        yield at(node).finding(
            found=f"on, with {node.numa.nodes} memory nodes" + (", unlike on the other nodes" if odd else ""),
            wanted="kernel.numa_balancing=0",
            severity="warning" if odd and node.gpu_count else "note",
            run="sudo sysctl kernel.numa_balancing=0",
        )


@check("swap-in-use", reads=("memory",), severity="warning")
def swap_in_use(node: Node) -> Iterator[Finding]:
    """
    A node has moved memory to a disk, or its tasks wait for memory.

    Why: a rank whose pages come back from a disk stalls for seconds, and all others with it.
    Fix: end the processes that use the memory; then `swapoff -a`.
    """
    memory = node.memory
    used = memory.swap_used_bytes > max(FEW_BYTES, SWAP_SHARE * node.memory_bytes)
    stalled = (memory.stalled_share or 0.0) >= STALL_SHARE
    moving = rose(node, "memory").by.get("pswpin", 0)
    if not (used or stalled or moving):
        return
    has_swap = memory.swap_total_bytes > 0
    shown = f"{show_bytes(memory.swap_used_bytes)} of {show_bytes(memory.swap_total_bytes)} swap used"
    read_back = f", {moving} pages were read back during the check" if moving else ""
    waits = f", tasks waited for memory in {memory.stalled_share:.0%} of the last minute" if stalled else ""
    yield at(node).finding(
        found=(shown if has_swap else "there is no swap") + read_back + waits,
        wanted="no swap in use" if has_swap else "no task that waits for memory",
        severity="warning" if stalled or moving else "note",
        fix="find the processes that use the memory" + (", then switch swap off" if has_swap else ""),
        run="free -h; ps axo pid,user,rss,args --sort=-rss | head",
    )


@check("oom-killer-ran", reads=("container", "memory"))
def oom_killer_ran(cluster: Cluster) -> Iterator[Finding]:
    """A warning for the job's own container or during the check; an earlier kill is a note at most."""
    lucky = sum(not n.memory.oom_kills for n in cluster.nodes)
    for node in cluster.nodes:
        now = rose(node, "memory").by.get("oom_kill", 0)
        here, ever = node.container.oom_kills, node.memory.oom_kills
        severity: Severity = "warning"
        if now:
            found = f"the kernel ended {now} processes for memory during the check"
        elif here:
            found = f"the kernel has ended {here} processes of this container or job for memory"
        elif ever and 2 * lucky > len(cluster.nodes):
            found, severity = f"the kernel has ended {ever} processes for memory since the start", "note"
        else:
            continue
        yield at(node).finding(
            found=found,
            wanted="enough memory for everything on that node",
            severity=severity,
            run="sudo dmesg -T | grep -i 'killed process'",
        )


@check("stuck-processes", reads=("stuck",), severity="warning")
def stuck_processes(node: Node) -> Iterator[Finding]:
    """
    Processes on a node are blocked in the kernel and cannot be killed, or are zombies.

    Why: a driver, a GPU or a file server that does not answer holds them, and will hold the job; memory
    of a GPU whose process cannot end is not freed.
    Fix: find out what they wait for; a driver's hang ends with a reboot, a file server's with the server.
    """
    stuck = node.stuck
    many = stuck.zombies >= max(MANY_ZOMBIES, ZOMBIE_SHARE * stuck.processes)
    words = []
    # A process that waits for an unresponsive path is not at fault.
    dead_path = any(not x.answered for x in node.looks)
    if stuck.blocked and not dead_path:
        shown = summarize_names((f"{printable(p.command, 60)} (pid {p.pid})" for p in stuck.blocked), 3)
        words.append(f"{shown}: {printable(stuck.blocked[0].evidence, 120)}")
    if many:
        words.append(f"{stuck.zombies} of {stuck.processes} processes are zombies ({stuck.own_zombies} own)")
    if words:
        pids = ",".join(str(p.pid) for p in stuck.blocked[:10])
        which = f"-p {pids}" if pids else "ax"
        run = f"ps {which} -o pid,ppid,user,stat,etime,wchan:30,comm"
        yield at(node).finding(found="; ".join(words), wanted="processes that end when signalled", run=run)


@check("shm-cleaned-by-systemd", reads=("remove_ipc", "container", "uid"), severity="warning")
def shm_cleaned_by_systemd(node: Node) -> Iterator[Finding]:
    """
    systemd removes the user's shared memory when his last login ends, and the job runs outside any login.

    Why: files in /dev/shm vanish under NCCL and the data loaders the moment the user logs out.
    Fix: `RemoveIPC=no` in /etc/systemd/logind.conf, then restart systemd-logind; or
    `loginctl enable-linger` for the user.
    """
    set_on = node.remove_ipc in ("yes", "true", "1", "on")
    ordinary = node.uid >= SYSTEM_USERS_BELOW
    # If unset, it is on in systemd's own build and off in Red Hat's.
    if ordinary and not node.container.has_login_session and (set_on or not node.remove_ipc):
        yield at(node).finding(
            found=f"RemoveIPC is {node.remove_ipc or 'unset, mostly yes'}; no login session here",
            wanted="RemoveIPC=no",
            severity="warning" if set_on else "note",
            run=(
                "sudo mkdir -p /etc/systemd/logind.conf.d",
                f"printf '[Login]\\nRemoveIPC=no\\n' | sudo tee {LOGIND}",
                "sudo systemctl restart systemd-logind",
            ),
        )


@check("yama-forbids-ptrace", reads=("ptrace_scope", "uid"), severity="note")
def yama_forbids_ptrace(node: Node) -> Iterator[Finding]:
    """
    The kernel lets only root inspect a running process.

    Why: stacks of a hung rank cannot be read with py-spy or gdb by its own user; at 1 a parent still may,
    which ringup's guard is.
    Fix: `sysctl kernel.yama.ptrace_scope=1` while looking for a hang, or root.
    """
    if node.ptrace_scope > 1 and (node.uid or node.ptrace_scope > 2):
        yield at(node).finding(
            found=f"kernel.yama.ptrace_scope is {node.ptrace_scope}",
            wanted="1 or 0",
            run="sudo sysctl kernel.yama.ptrace_scope=1",
        )


@check("nfs-mount-slow", reads=("looks",), severity="error")
def nfs_mount_slow(node: Node) -> Iterator[Finding]:
    for look in node.looks:
        if look.answered and look.took_s <= SLOW_LOOK_S:
            continue
        path, how = shlex.quote(look.path), "one access took" if look.answered else "no answer within"
        yield at(node, printable(look.path, 200)).finding(
            found=f"{how} {show_seconds(look.took_s)}",
            wanted=f"an answer within {show_seconds(SLOW_LOOK_S)}",
            severity="warning" if look.answered else "error",
            run=(f"grep -E '{SHARED}' /proc/mounts", f"timeout 5 stat -f {path}"),
        )


@check("shm-left-over", reads=("shm_files",), severity="note")
def shm_left_over(node: Node) -> Iterator[Finding]:
    """
    Files of earlier runs are in /dev/shm.

    Why: they hold memory until they are removed, and NCCL or a data loader fails when no memory is left.
    Fix: `ringup clean` lists the unused ones, `ringup clean --kill` removes proven leftovers.
    """
    left = [f for f in node.shm_files if f.owner == "gone" or (f.owner == "unknown" and f.age_s > OLD_S)]
    size = sum(f.size_bytes for f in left)
    if size >= MUCH_LEFT_BYTES:
        users = sorted({f.user for f in left})
        yield at(node, "/dev/shm").finding(
            found=f"{show_bytes(size)} in {len(left)} files of {printable(', '.join(users[:4]), 100)},"
            f" {printable(left[0].name, 60)} the largest",
            wanted="no files of runs that have ended",
            commands=(f"ringup clean -H {shlex.quote(node.name)}",),
        )


CROWD = 16
"""Ranks per CPU that can only be a mistake: each gets less than a tenth of a CPU."""
LEAST_RANK_BYTES = 64 * 1024**2
"""Memory that a rank certainly uses: after `import torch` (2.13, CPU build) it has 142 MiB of its own."""


def on_machine(cluster: Cluster, node: Node) -> int:
    """Ranks on the machine of this node: with `--local` all nodes are on one machine."""
    return cluster.ranks_on(node) * (len(cluster.nodes) if cluster.is_local else 1)


def for_ranks(cluster: Cluster, node: Node) -> str:
    ranks, all_ranks = cluster.ranks_on(node), on_machine(cluster, node)
    more = f", {all_ranks} in all on this machine" if all_ranks > ranks else ""
    return f"{plural(ranks, 'rank')}{more}"


def least_bytes(cluster: Cluster, node: Node) -> int:
    """Bytes that the requested ranks certainly need if the machine has fewer; else 0."""
    asked, needed = cluster.job.nproc or node.host.slots, on_machine(cluster, node) * LEAST_RANK_BYTES
    return needed if asked and 0 < node.memory_bytes < needed else 0


@check("processors-fewer-than-ranks", reads=("cpu_count",), severity="warning")
def processors_fewer_than_ranks(cluster: Cluster) -> Iterator[Finding]:
    """
    A node lets the job use fewer CPUs than it has ranks there, or far fewer than its peers do.

    Why: a cgroup, an affinity mask or a scheduler's binding, or a wrong number of ranks; ranks,
    loaders and NCCL's own threads then take turns, and the slowest rank sets the pace.
    Fix: request more CPUs (`--cpus-per-task`, the pod's limits), `--cpu-bind=none`; or fewer
    ranks: `--nproc`.
    """
    most = max((n.cpu_count for n in cluster.nodes), default=0)
    for node in cluster.nodes:
        ranks = cluster.ranks_on(node)
        fewer, odd = 0 < node.cpu_count < ranks, 0 < node.cpu_count < most / 2
        crowded = node.cpu_count > 0 and on_machine(cluster, node) > CROWD * node.cpu_count
        if (fewer or odd or crowded) and not least_bytes(cluster, node):
            yield at(node).finding(
                found=f"{node.cpu_count} CPUs for {for_ranks(cluster, node)}",
                wanted=f"{most}, as on the other nodes" if odd else "one for each of them",
                severity="warning" if odd or crowded else "note",
                run="grep Cpus_allowed_list /proc/self/status",
            )


@check("ranks-exceed-memory", reads=("memory_bytes",))
def ranks_exceed_memory(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    A node's memory is too small for the requested ranks.

    Why: the kernel's OOM killer ends processes before all ranks have started, and not only those of the job.
    Fix: start fewer ranks: `--nproc`, or the slots in the host file. `--anyway` starts them anyway.
    """
    needed = least_bytes(cluster, node)
    if needed:
        cpus = f" and {node.cpu_count} CPUs" if node.cpu_count else ""
        yield at(node).finding(
            found=f"{show_bytes(node.memory_bytes)} of memory{cpus} for {for_ranks(cluster, node)}",
            wanted=f"{show_bytes(needed)} at the very least: {show_bytes(LEAST_RANK_BYTES)} a rank",
            fix=f"fewer ranks: --nproc {node.cpu_count or 1}",
        )


@check("node-failed-often", severity="warning")
def node_failed_often(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    A node ended at least 3 of its last 5 runs, by the record of the last 30 days.

    Why: few nodes cause most failures (of 63 nodes, 3 caused more than half: arXiv 2605.09370), and a node
    that is checked without load after a repair or a reboot often passes.
    Fix: leave it out until its hardware was tested under load; `ringup runs --forget NODE` clears its record.
    """
    past = cluster.past.get(node.name)
    if past and past.is_often_failing and not cluster.is_local:
        causes = summarize_names(past.causes)
        yield at(node).finding(
            found=f"ended {past.ended_lately} of its last {past.lately} runs: {causes}",
            wanted="a node that does not end runs",
            commands=(f"ringup runs --forget {shlex.quote(node.name)}",),
        )
