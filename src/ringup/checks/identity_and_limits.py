"""The machine: identity, limits, space, clock."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from ringup.addresses import is_address
from ringup.checks.gpu import without_driver
from ringup.checks.interfaces import are_apart, same_machine
from ringup.model import Clock, Cluster, Node
from ringup.network.predictions import uses_nccl
from ringup.rules import Finding, Place, Severity, at, check, ssh
from ringup.units import GIB, MIB, grouped, printable, show_bytes, show_seconds, summarize_names

SHM_WANTED_BYTES = GIB
"""Docker gives 64 MiB; NCCL and a few loader workers need more."""
TMP_WANTED_BYTES = 64 * MIB
FULL_SHARE, ENOUGH_BYTES = 0.95, 10 * GIB
"""imbue's host checks report a disk at 95 %; a twentieth of a very large disk is enough space."""
CLOCK_WARNING_S = 1.0
CLOCK_NOTE_S = 0.1
FILES_SURELY_SHORT = 256
"""Open files a torch process needs before the first peer (libraries, loaders, logs); a generous estimate."""
FILES_WANTED = 1024
LIMITS_FILE = "/etc/security/limits.d/rdma.conf"
ONE_PROCESS = ("jax", "spawn")
"""Launchers that ignore a host file's slots: the script runs once per node."""


def alike(cluster: Cluster, value: Callable[[Node], str]) -> Iterator[tuple[list[Node], str]]:
    """Groups of names of nodes that share a value which should be unique."""
    groups = grouped((own, n) for n in cluster.nodes if (own := value(n)))
    return ((same, summarize_names(n.name for n in same)) for same in groups.values() if len(same) > 1)


@check("same-machine-twice", reads=("boot_id", "hostname"), scope="machines")
def same_machine_twice(cluster: Cluster) -> Iterator[Finding]:
    """
    Two names in the node list are one machine.

    Why: two launchers share its GPUs and ports; NCCL says `Duplicate GPU detected`.
    Fix: name every machine once.
    """
    identity = alike(cluster, lambda n: f"{n.boot_id} {n.hostname}" if n.boot_id and n.hostname else "")
    for same, names in identity:
        host, apart = printable(same[0].hostname, 80), are_apart(same)
        both = f"{names} have one host name, {host}, and one boot id: one machine to NCCL"
        fix = "if they are containers of one machine, remove one from the list; rename cloned machines"
        yield at(same).finding(
            found=both if apart else f"{names} are one machine, {host}",
            wanted="every machine named once" + (", with a host name of its own" if apart else ""),
            severity="warning" if apart and uses_nccl(cluster) == "no" else "error",
            fix=fix if apart else "take one of them out of the list",
        )


def _own_name(node: Node) -> str:
    """The name that the node is called by; NAME for an address."""
    return "NAME" if is_address(node.name) else shlex.quote(node.name)


@check("duplicate-hostname", reads=("hostname",), scope="machines")
def duplicate_hostname(cluster: Cluster) -> Iterator[Finding]:
    """Not for one machine with two names: `same-machine-twice` reports that."""
    for same, names in () if same_machine(cluster) else alike(cluster, lambda n: n.hostname):
        yield at(same).finding(
            found=f"{names} are all called {printable(same[0].hostname, 80)}",
            wanted="a different host name on every node",
            severity="warning",
            fix="rename all but one; until then NCCL_HOSTID keeps them apart",
            commands=[ssh(n, f"sudo hostnamectl set-hostname {_own_name(n)}") for n in same[1:4]],
        )


@check("duplicate-boot-id", reads=("boot_id",), scope="machines")
def duplicate_boot_id(cluster: Cluster) -> Iterator[Finding]:
    """NCCL's host hash is the host name plus the boot id: harmful only if both are equal."""
    for same, names in () if same_machine(cluster) else alike(cluster, lambda n: n.boot_id):
        yield at(same).finding(
            found=f"{names} have one boot id", wanted="a different boot id on every machine", severity="note"
        )


@check("machines-not-alike", reads=("machine",), severity="warning")
def machines_not_alike(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have CPUs of different architectures.

    Why: no environment fits both, and collectives assume one byte layout.
    Fix: use nodes of one architecture in one job.
    """
    kinds = grouped((n.machine, n.name) for n in cluster.nodes)
    if len(kinds) > 1:
        yield Place("all nodes", ()).finding(
            found="; ".join(f"{printable(k, 40)}: {summarize_names(v)}" for k, v in kinds.items()),
            wanted="one architecture",
        )


@check("shm-too-small", reads=("shm",))
def shm_too_small(cluster: Cluster) -> Iterator[Finding]:
    """Compared with the peers first; if all are alike and without GPUs, it is only a note."""
    largest = max((n.shm.total_bytes for n in cluster.nodes), default=0)
    for node in cluster.nodes:
        total, free = node.shm.total_bytes, node.shm.free_bytes
        gpus = node.gpu_count
        small = total < SHM_WANTED_BYTES
        full = not small and free < 512 * MIB
        if not (small or full):
            continue
        severity: Severity = "warning"
        if gpus > 1 and free < 128 * MIB:
            severity = "error"
        elif not gpus and small and largest < SHM_WANTED_BYTES:
            severity = "note"
        yield at(node, printable(node.shm.path, 80)).finding(
            found=f"{show_bytes(total)}, {show_bytes(free)} of it free",
            wanted=f"{show_bytes(SHM_WANTED_BYTES)} or more",
            severity=severity,
            run="ls -lS /dev/shm" if full else "sudo mount -o remount,size=8g /dev/shm",
        )


@check("disk-full", reads=("tmp", "cache"), severity="error")
def disk_full(node: Node, cluster: Cluster) -> Iterator[Finding]:
    if not node.cache.path:
        yield at(node).finding(
            found="cannot write to ~/.cache, /dev/shm or /tmp",
            wanted="one writable directory for the run's files",
        )
    elif node.tmp.path and (node.tmp.read_only or node.tmp.free_bytes < TMP_WANTED_BYTES):
        state = "read-only" if node.tmp.read_only else f"{show_bytes(node.tmp.free_bytes)} free"
        yield at(node, printable(node.tmp.path, 80)).finding(
            found=f"{state} of {show_bytes(node.tmp.total_bytes)}",
            wanted=f"{show_bytes(TMP_WANTED_BYTES)} free",
            severity="warning",
            run=(f"df -h {shlex.quote(node.tmp.path)}", f"du -xhd1 {shlex.quote(node.tmp.path)}"),
        )

    own_tmp = cluster.job.env.get("TMPDIR") or node.environment.get("TMPDIR", "")
    for disk in node.disks:
        used = 1 - disk.free_bytes / disk.total_bytes if disk.total_bytes else 0.0
        full = used >= FULL_SHARE and disk.free_bytes < ENOUGH_BYTES
        unwritable = disk.read_only and disk.path == own_tmp
        if disk.path == node.tmp.path or not (full or unwritable):
            continue
        writable = "TMPDIR on a file system that can be written"
        yield at(node, printable(disk.path, 200)).finding(
            found="read-only" if unwritable else f"{used:.0%} used, {show_bytes(disk.free_bytes)} free",
            wanted=writable if unwritable else "free space for the job's files",
            severity="warning",
            run=f"df -h {shlex.quote(disk.path)}",
        )


@check("open-files-too-low", reads=("limits",))
def open_files_too_low(cluster: Cluster) -> Iterator[Finding]:
    """A process also needs a socket for every peer and group, and pipes for the loaders."""
    ranks = sum(map(cluster.ranks_on, cluster.nodes))
    for node in cluster.nodes:
        limit = node.limits.open_files
        short = limit < FILES_SURELY_SHORT + 8 * ranks
        if short or limit < FILES_WANTED:
            yield at(node).finding(
                found=f"{limit:g} open files allowed in the job's shell",
                wanted=f"{FILES_WANTED + 8 * ranks} or more for {ranks} ranks",
                severity="warning" if short else "note",
                commands=("ringup run --setup 'ulimit -n 65536' ...",),
            )


@check("memlock-too-low", reads=("limits", "interfaces"), scope="gpus")
def memlock_too_low(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """Only if there is RDMA and NCCL may use it: sockets lock no memory, and root has no limit."""
    active = any(p.is_active for p in node.rdma_ports)
    rdma = active or any(i.kind == "infiniband" for i in node.interfaces)
    if rdma and node.limits.memlock_bytes < 64 * MIB and not node.limits.locks_freely:
        yield at(node).finding(
            found=f"{show_bytes(node.limits.memlock_bytes)} may be locked in the job's shell",
            wanted="unlimited",
            severity="note" if uses_nccl(cluster) == "no" else None,
            run=f"printf '* %s memlock unlimited\\n' soft hard | sudo tee {LIMITS_FILE}",
        )


@check("clock-skew", reads=("clock",), severity="warning")
def clock_skew(cluster: Cluster) -> Iterator[Finding]:
    """
    A node's clock is off.

    Why: lines of several nodes cannot be put in order, so the first failure is misnamed; tickets
    and certificates are refused.  ringup corrects its own times by the offset.
    Fix: run chrony or ntp on every node: `chronyc tracking`.
    """
    if cluster.is_local or not cluster.nodes:
        return
    # The launcher's own clock may be wrong: then the offset is the same on every node.
    launchers = Clock(0.0, 0.0)
    clocks = [n.clock for n in cluster.nodes] + [launchers] * (len(cluster.nodes) == 2)
    usual = sorted(clocks, key=lambda c: c.offset_s)[(len(clocks) - 1) // 2]
    middle = usual if len(clocks) > 2 else launchers
    for node in cluster.nodes:
        apart = node.clock.offset_s - middle.offset_s
        error_s = node.clock.error_s + middle.error_s
        sure = abs(apart) - error_s
        if sure > CLOCK_NOTE_S:
            yield at(node).finding(
                found=f"{show_seconds(abs(apart))} {'ahead' if apart > 0 else 'behind'}"
                f" (to within {show_seconds(error_s)})",
                wanted=f"within {show_seconds(CLOCK_WARNING_S)}",
                severity="warning" if sure > CLOCK_WARNING_S else "note",
                run="timedatectl; chronyc tracking",
            )


@check("nproc-exceeds-gpus", reads=("gpu_count",), scope="gpus")
def nproc_exceeds_gpus(cluster: Cluster) -> Iterator[Finding]:
    """If no node has a GPU, the job runs on CPUs, and any number works."""
    for node in cluster.nodes if any(n.gpu_count for n in cluster.nodes) else ():
        slots = 0 if cluster.job.launcher in ONE_PROCESS else node.host.ranks(node.gpu_count or 1)
        wanted = cluster.job.nproc or slots
        if wanted > node.gpu_count:
            yield at(node).finding(
                found=f"{wanted} processes requested, {node.gpu_count} GPUs are visible",
                wanted=f"--nproc {node.gpu_count}" if node.gpu_count else "a node with GPUs",
                severity="error" if cluster.job.backend == "nccl" or node.gpu_count == 0 else "warning",
            )


@check("gpu-counts-differ", reads=("gpu_count",), severity="warning")
def gpu_counts_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have different numbers of visible GPUs.

    Why: a GPU that is gone or hidden on one node; launchers that assume equal counts wait for ranks
    that never come.
    Fix: look for the missing GPU (`nvidia-smi`, CUDA_VISIBLE_DEVICES, the container); or a count per
    node, which torchrun can.
    """
    most = max((n.gpu_count for n in cluster.nodes), default=0)
    for node in cluster.nodes if not cluster.job.nproc else ():
        # `gpu-missing` reports GPUs that do not answer or have no driver.
        if node.gpu_count < most and not (without_driver(node) or node.gpu_driver.lost):
            yield at(node).finding(
                found=f"{node.gpu_count} GPUs visible",
                wanted=f"{most}, as on the other nodes",
                run="nvidia-smi -L",
            )
