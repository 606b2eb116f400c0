"""The machine around the job: identity, limits, room, clock."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from ringup import problems
from ringup.checks.interfaces import are_apart, same_machine
from ringup.checks.verbs import is_without_nccl
from ringup.facts import Clock, Cluster, Node, Space
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, check
from ringup.units import printable, show_bytes, show_seconds, twice_quoted

MIB = 1024**2
GIB = 1024**3
SHM_WANTED_BYTES = GIB
"""Docker gives 64 MiB; NCCL and a few loader workers want more."""
TMP_WANTED_BYTES = 64 * MIB
FULL_SHARE, ENOUGH_BYTES = 0.95, 10 * GIB
"""imbue's host checks call a disk full at 95 %; a twentieth of a very large one is room enough."""
CLOCK_WARNING_S = 1.0
CLOCK_NOTE_S = 0.1
FILES_SURELY_SHORT = 256
"""Open files a torch process needs before the first peer (libraries, loaders, logs), generously."""
FILES_WANTED = 1024
ONE_PROCESS = ("jax", "spawn")
"""Launchers under which a host file's slots start nothing: the script runs once a node."""


def twins(cluster: Cluster, value: Callable[[Node], str]) -> Iterator[list[Node]]:
    """Groups of nodes that have the same value, which should have been their own."""
    groups: dict[str, list[Node]] = {}
    for node in cluster.nodes:
        if value(node):
            groups.setdefault(value(node), []).append(node)
    return (g for g in groups.values() if len(g) > 1)


@check("same-machine-twice", reads=("boot_id", "hostname"), uses=("interfaces", "gpu_count"))
def same_machine_twice(cluster: Cluster) -> Iterator[Finding]:
    """
    Two names in the node list are one machine.

    Why: two launchers share its GPUs and ports; NCCL says `Duplicate GPU detected`.

    Fix: name every machine once.
    """
    if cluster.is_local:
        return
    for same in twins(cluster, lambda n: f"{n.boot_id} {n.hostname}" if n.boot_id and n.hostname else ""):
        names, host = [n.name for n in same], printable(same[0].hostname, 80)
        if not are_apart(same):
            yield Finding(
                few(names),
                found=f"{few(names)} are one machine, {host}",
                wanted="every machine named once",
                fix=Fix("take one of them out of the list"),
            )
            continue
        yield Finding(
            few(names),
            found=f"{few(names)} have one host name, {host}, and one boot id: one machine to NCCL",
            wanted="every machine named once, with a host name of its own",
            severity="warning" if is_without_nccl(cluster) else "error",
            fix=Fix("take one out of the list if they are containers of one machine; rename clones"),
        )


@check(problems.DUPLICATE_HOSTNAME, reads=("hostname",), uses=("boot_id",))
def duplicate_hostname(cluster: Cluster) -> Iterator[Finding]:
    """One machine named twice is said by its own rule."""
    if cluster.is_local or same_machine(cluster):
        return
    for same in twins(cluster, lambda n: n.hostname):
        names = [n.name for n in same]
        yield Finding(
            few(names),
            found=f"{few(names)} are all called {printable(same[0].hostname, 80)}",
            wanted="a host name of its own for every node",
            severity="warning",
            fix=Fix(
                "rename all but one; until then NCCL_HOSTID keeps them apart",
                commands=tuple(
                    f"ssh {shlex.quote(n)} sudo hostnamectl set-hostname {twice_quoted(n)}"
                    for n in names[1:4]
                ),
            ),
        )


@check(problems.DUPLICATE_BOOT_ID, reads=("boot_id",), uses=("hostname",))
def duplicate_boot_id(cluster: Cluster) -> Iterator[Finding]:
    """NCCL's host hash is host name and boot id together: harmful only where both are equal."""
    if cluster.is_local or same_machine(cluster):
        return
    for same in twins(cluster, lambda n: n.boot_id):
        names = [n.name for n in same]
        yield Finding(
            few(names),
            found=f"{few(names)} have one boot id",
            wanted="a boot id of its own for every machine",
            severity="note",
        )


@check("machines-not-alike", reads=("machine",), severity="warning")
def machines_not_alike(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have processors of different architectures.

    Why: no environment fits both, and collectives assume one byte layout.

    Fix: nodes of one architecture in one job.
    """
    kinds: dict[str, list[str]] = {}
    for node in cluster.nodes:
        kinds.setdefault(node.machine, []).append(node.name)
    if len(kinds) > 1:
        yield Finding(
            "all nodes",
            found="; ".join(f"{printable(k, 40)}: {few(v)}" for k, v in kinds.items()),
            wanted="one architecture",
        )


@check(problems.SHM_TOO_SMALL, reads=("shm",), uses=("gpu_count",))
def shm_too_small(cluster: Cluster) -> Iterator[Finding]:
    """Compared with the peers first; where all are alike and there is no GPU it is only worth knowing."""
    largest = max((n.shm.total_bytes for n in cluster.nodes), default=0)
    for node in cluster.nodes:
        total, free = node.shm.total_bytes, node.shm.free_bytes
        gpus = node.gpu_count if "gpu_count" not in node.unknown else 0
        small = total < SHM_WANTED_BYTES
        full = not small and free < 512 * MIB
        if not (small or full):
            continue
        severity: Severity = "warning"
        if gpus > 1 and free < 128 * MIB:
            severity = "error"
        elif not gpus and small and largest < SHM_WANTED_BYTES:
            severity = "note"
        yield Finding(
            f"{node.name} {printable(node.shm.path, 80)}",
            found=f"{show_bytes(total)}, {show_bytes(free)} of it free",
            wanted=f"{show_bytes(SHM_WANTED_BYTES)} or more",
            node=node.name,
            severity=severity,
            fix=Fix(
                "a larger /dev/shm (docker: --shm-size=8g or --ipc=host), and nothing left over in it",
                commands=(
                    f"ssh {shlex.quote(node.name)} ls -lS /dev/shm"
                    if full
                    else f"ssh {shlex.quote(node.name)} sudo mount -o remount,size=8g /dev/shm",
                ),
            ),
        )


@check("disk-full", reads=("tmp", "cache"), uses=("disks", "environment"), severity="error")
def disk_full(cluster: Cluster) -> Iterator[Finding]:
    """
    There is no room, or no right, to write on a node where the run and its job keep files.

    Why: logs, checkpoints and NCCL's own files fail, and workers die without a word.

    Fix: free space, or set TMPDIR to a file system that has some.

    In logs: `No space left on device`, `Read-only file system`.
    """
    for node in cluster.nodes:
        if not node.cache.path:
            yield Finding(
                node.name,
                found="none of ~/.cache, /dev/shm and /tmp can be written",
                wanted="one directory in which a run can keep its few files",
                node=node.name,
            )
            continue
        if is_full(node.tmp):
            state = "read-only" if node.tmp.read_only else f"{show_bytes(node.tmp.free_bytes)} free"
            yield Finding(
                f"{node.name} {printable(node.tmp.path, 80)}",
                found=f"{state} of {show_bytes(node.tmp.total_bytes)}",
                wanted=f"{show_bytes(TMP_WANTED_BYTES)} free",
                node=node.name,
                severity="warning",
                fix=Fix(
                    "free space there, or set TMPDIR to another file system",
                    commands=(
                        f"ssh {shlex.quote(node.name)} df -h {twice_quoted(node.tmp.path)}",
                        f"ssh {shlex.quote(node.name)} du -xhd1 {twice_quoted(node.tmp.path)}",
                    ),
                ),
            )

    yield from crowded(cluster)


def crowded(cluster: Cluster) -> Iterator[Finding]:
    """The job's own directory, TMPDIR and NCCL_DEBUG_FILE's: full, or TMPDIR that cannot be written."""
    for node in cluster.nodes:
        own_tmp = cluster.job.env.get("TMPDIR") or (
            node.environment.get("TMPDIR", "") if "environment" not in node.unknown else ""
        )
        for disk in node.disks if "disks" not in node.unknown else ():
            used = 1 - disk.free_bytes / disk.total_bytes if disk.total_bytes else 0.0
            full = used >= FULL_SHARE and disk.free_bytes < ENOUGH_BYTES
            unwritable = disk.read_only and disk.path == own_tmp
            if disk.path == node.tmp.path or not (full or unwritable):
                continue
            path = shlex.quote(disk.path)
            yield Finding(
                f"{node.name} {printable(disk.path, 200)}",
                found="read-only" if unwritable else f"{used:.0%} used, {show_bytes(disk.free_bytes)} free",
                wanted="TMPDIR on a file system that can be written"
                if unwritable
                else "room for what a job writes",
                node=node.name,
                severity="warning",
                fix=Fix(
                    "free space there, or name another directory",
                    commands=(f"ssh {shlex.quote(node.name)} {shlex.quote(f'df -h {path}')}",),
                ),
            )


def is_full(space: Space) -> bool:
    return bool(space.path) and (space.read_only or space.free_bytes < TMP_WANTED_BYTES)


@check(problems.OPEN_FILES_TOO_LOW, reads=("limits",), uses=("gpu_count",))
def open_files_too_low(cluster: Cluster) -> Iterator[Finding]:
    """A socket to every peer and group, and the loaders' pipes, come on top of what every process opens."""
    gpus = [n.gpu_count if "gpu_count" not in n.unknown else 0 for n in cluster.nodes]
    ranks = sum(cluster.job.nproc or g or 1 for g in gpus)
    for node in cluster.nodes:
        limit = node.limits.open_files
        if limit < FILES_WANTED + 8 * ranks:
            short = limit < FILES_SURELY_SHORT + 8 * ranks
            if not short and limit >= FILES_WANTED:
                continue
            yield Finding(
                node.name,
                found=f"{limit:g} open files allowed in the job's shell",
                wanted=f"{FILES_WANTED + 8 * ranks} or more for {ranks} ranks",
                node=node.name,
                severity="warning" if short else "note",
                fix=Fix(
                    "raise it in the shell the job gets: --setup, /etc/security/limits.conf, the container",
                    commands=("ringup run --setup 'ulimit -n 65536' ...",),
                ),
            )


@check(problems.MEMLOCK_TOO_LOW, reads=("limits", "interfaces"), uses=("rdma_ports", "gpu_count"))
def memlock_too_low(cluster: Cluster) -> Iterator[Finding]:
    """Only where there is RDMA and NCCL may use it: sockets lock nothing, and root what it likes."""
    if cluster.job.backend == "gloo":
        return
    for node in cluster.nodes:
        ports = node.rdma_ports if "rdma_ports" not in node.unknown else ()
        rdma = any(i.kind == "infiniband" for i in node.interfaces) or any(p.state == "ACTIVE" for p in ports)
        if rdma and node.limits.memlock_bytes < 64 * MIB and not node.limits.locks_freely:
            yield Finding(
                node.name,
                found=f"{show_bytes(node.limits.memlock_bytes)} may be locked in the job's shell",
                wanted="unlimited",
                node=node.name,
                severity="note" if is_without_nccl(cluster) else None,
                fix=Fix(
                    "unlimited where the job is started: limits.conf, Slurm's PropagateResourceLimitsExcept, "
                    "docker `--ulimit memlock=-1`",
                    commands=(
                        f"ssh {shlex.quote(node.name)} \"printf '* %s memlock unlimited\\n' soft hard "
                        '| sudo tee /etc/security/limits.d/rdma.conf"',
                    ),
                ),
            )


@check("clock-skew", reads=("clock",), severity="warning")
def clock_skew(cluster: Cluster) -> Iterator[Finding]:
    """
    A node's clock is off.

    Why: lines of several nodes cannot be put in order, so the first failure is misnamed; tickets
    and certificates are refused.  ringup corrects its own times by the offset.

    Fix: chrony or ntp on every node: `chronyc tracking`.
    """
    if cluster.is_local or not cluster.nodes:
        return
    usual = sorted((n.clock for n in cluster.nodes), key=lambda c: c.offset_s)[(len(cluster.nodes) - 1) // 2]
    middle = usual if len(cluster.nodes) > 2 else Clock(0.0, 0.0)
    for node in cluster.nodes:
        # The launcher's own clock may be the one that is wrong: then every node is off alike.
        apart = node.clock.offset_s - middle.offset_s
        error_s = node.clock.error_s + middle.error_s
        sure = abs(apart) - error_s
        if sure > CLOCK_NOTE_S:
            yield Finding(
                node.name,
                found=f"{show_seconds(abs(apart))} {'ahead' if apart > 0 else 'behind'}"
                f" (to within {show_seconds(error_s)})",
                wanted=f"within {show_seconds(CLOCK_WARNING_S)}",
                node=node.name,
                severity="warning" if sure > CLOCK_WARNING_S else "note",
                fix=Fix(
                    "synchronise it",
                    commands=(f"ssh {shlex.quote(node.name)} 'timedatectl; chronyc tracking'",),
                ),
            )


@check(problems.NPROC_EXCEEDS_GPUS, reads=("gpu_count",))
def nproc_exceeds_gpus(cluster: Cluster) -> Iterator[Finding]:
    """Where no node has a GPU the job runs on CPUs, and any number goes."""
    if cluster.job.backend == "gloo" or not any(n.gpu_count for n in cluster.nodes):
        return
    for node in cluster.nodes:
        slots = 0 if cluster.job.launcher in ONE_PROCESS else node.host.ranks(node.gpu_count or 1)
        wanted = cluster.job.nproc or slots
        if wanted > node.gpu_count:
            yield Finding(
                node.name,
                found=f"{wanted} processes are asked for, {node.gpu_count} GPUs are visible",
                wanted=f"--nproc {node.gpu_count}" if node.gpu_count else "a node with GPUs",
                node=node.name,
                severity="error" if cluster.job.backend == "nccl" or node.gpu_count == 0 else "warning",
            )


def has_missing_gpus(node: Node) -> bool:
    """Whether GPUs are on the bus and do not answer, or have no driver: `gpu-missing` names them."""
    if "gpu_driver" in node.unknown or "pci" in node.unknown:
        return False
    idle = not node.gpu_driver.version and any(d.is_nvidia_gpu for d in node.pci)
    return idle or bool(node.gpu_driver.lost)


@check("gpu-counts-differ", reads=("gpu_count",), uses=("gpu_driver", "pci"), severity="warning")
def gpu_counts_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have different numbers of visible GPUs.

    Why: a GPU that is gone or hidden on one node; launchers that assume equal counts wait for ranks
    that never come.

    Fix: look for the missing GPU (`nvidia-smi`, CUDA_VISIBLE_DEVICES, the container); or a count per
    node, which torchrun can.
    """
    most = max((n.gpu_count for n in cluster.nodes), default=0)
    if cluster.job.nproc:
        return
    for node in cluster.nodes:
        if node.gpu_count < most and not has_missing_gpus(node):
            yield Finding(
                node.name,
                found=f"{node.gpu_count} GPUs visible",
                wanted=f"{most}, as elsewhere",
                node=node.name,
                fix=Fix(
                    "look for the missing one, or give --nproc",
                    commands=(f"ssh {shlex.quote(node.name)} nvidia-smi -L",),
                ),
            )
