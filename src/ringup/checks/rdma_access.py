"""RDMA devices that are there and cannot be used: no driver, device file or library, or a wrong name."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ringup import problems
from ringup.checks import verbs
from ringup.checks.rdma_ports import lacks_module
from ringup.facts import Cluster
from ringup.nccl import choice, rdma
from ringup.reachability import few
from ringup.rules import Finding, Fix, check
from ringup.units import printable

READS = verbs.READS
USES = (*verbs.USES, "own_name", "hostname", "nccl_answer")
PROVIDERS = {"mlx5_core": "mlx5", "mlx4_core": "mlx4", "efa": "efa"}
"""Kernel driver -> the driver of libibverbs that belongs to it (rdma-core, providers/)."""


@check(problems.UVERBS_NOT_ACCESSIBLE, reads=READS, uses=USES)
def uverbs_not_accessible(cluster: Cluster) -> Iterator[Finding]:
    """One finding for a node, whatever the number of devices."""
    view = verbs.view_of(cluster)
    for node in view.nodes:
        shut = [p for p in view.ready(node) if not p.can_open]
        if shut:
            yield Finding(
                f"{node.name} /dev/infiniband",
                found=f"the device files of {few(p.device for p in shut)} are missing, or not ours to open",
                wanted="/dev/infiniband/uverbs* readable and writable for the job's user",
                node=node.name,
                severity=view.loss(node),
                fix=Fix(
                    "in a container: `--device=/dev/infiniband --cap-add=IPC_LOCK`; else let the user in",
                    commands=(
                        f"ssh {shlex.quote(node.name)} ls -l /dev/infiniband",
                        f"ssh {shlex.quote(node.name)} 'sudo usermod -aG rdma $USER'",
                    ),
                ),
            )


@check("ib-char-device-without-module", reads=(*READS, "verbs"), uses=USES)
def ib_char_device_without_module(cluster: Cluster) -> Iterator[Finding]:
    """
    A kernel module of RDMA is not loaded.

    Why: without `mlx5_ib` an adapter is a plain network card, without `ib_uverbs` no program can use its
    RDMA side; NCCL says that there is no device and takes TCP.

    Fix: `modprobe mlx5_ib ib_uverbs`, and load them at boot (`/etc/modules-load.d/rdma.conf`).

    In logs: `NET/IB : No device found.`
    """
    view = verbs.view_of(cluster)
    for node in view.nodes:
        module, words = "", ""
        if lacks_module(node) and any(view.main.values()):
            module = "mlx5_ib"
            words = f"{few(node.verbs.bound)} has its driver mlx5_core and no RDMA device"
        elif view.ready(node) and not node.verbs.has_char_devices:
            module, words = "ib_uverbs", "RDMA devices are there and none has a device file"
        if module:
            yield Finding(
                f"{node.name} {module}",
                found=f"{words}: {module} is not loaded",
                wanted=f"the kernel module {module}, as on the other nodes",
                node=node.name,
                severity=view.loss(node),
                fix=Fix("load it", commands=(f"ssh {shlex.quote(node.name)} sudo modprobe {module}",)),
            )


@check("ib-userspace-missing", reads=(*READS, "verbs"), uses=USES)
def ib_userspace_missing(cluster: Cluster) -> Iterator[Finding]:
    """
    RDMA devices are there and the library to use them is not.

    Why: NCCL loads `libibverbs.so.1` when it starts; without it, or without the library's driver for the
    adapter, it finds no device and takes TCP.

    Fix: install the packages `libibverbs1 librdmacm1 ibverbs-providers` (Debian, Ubuntu) or `rdma-core`
    in the image.

    In logs: `Failed to open libibverbs.so`.
    """
    view = verbs.view_of(cluster)
    for node in view.nodes:
        ports = [p for p in view.ready(node) if p.can_open]
        if not ports or not node.verbs.has_char_devices:
            continue
        needed = {PROVIDERS[p.driver] for p in ports if p.driver in PROVIDERS}
        absent = sorted(needed - set(node.verbs.providers)) if node.verbs.providers else []
        if node.verbs.error:
            words = f"libibverbs.so.1 cannot be loaded: {printable(node.verbs.error, 200)}"
        elif absent:
            words = f"{node.verbs.library} has no driver {few(absent)}, only {few(node.verbs.providers)}"
        else:
            continue
        yield Finding(
            f"{node.name} libibverbs",
            found=words,
            wanted="libibverbs.so.1 and its driver for the adapter",
            node=node.name,
            severity=view.loss(node),
            fix=Fix(
                "install the user side of RDMA where the job runs (the image, if it is a container)",
                commands=("apt-get install libibverbs1 librdmacm1 ibverbs-providers",),
            ),
        )


@check(problems.RDMA_DEVICE_NAME_MISSING, reads=READS, uses=USES)
def rdma_device_name_missing(cluster: Cluster) -> Iterator[Finding]:
    """The value leaves none of the node's active ports."""
    view = verbs.view_of(cluster)
    for node in view.nodes:
        value = view.environment(node).get("NCCL_IB_HCA", "")
        usable = [p for p in node.rdma_ports if p.state == "ACTIVE" and p.link_layer != "Unspecified"]
        asked = value and view.is_asked(node)
        if not (asked and usable) or view.allowed(node):
            continue
        own = "NCCL_IB_HCA" in cluster.job.env
        netdevs = {p.netdev: p.device for p in node.rdma_ports if p.netdev}
        meant = [netdevs[w] for w in value.lstrip("^=").split(",") if w in netdevs]
        yield Finding(
            f"{node.name} NCCL_IB_HCA",
            found=f"NCCL_IB_HCA={printable(value, 100)} names none of {few(p.device for p in usable)}"
            + (f"; that is the interface of {few(meant)}" if meant else ""),
            wanted="names of RDMA devices of this node",
            node=node.name,
            severity=view.loss(node),
            subject="" if own else f"env:NCCL_IB_HCA@{node.name}",
            fix=Fix(
                "unset it, or name devices",
                env={"NCCL_IB_HCA": "=" + ",".join(meant)} if meant else {},
                commands=("unset NCCL_IB_HCA", f"ssh {shlex.quote(node.name)} rdma link"),
            ),
        )


@check(problems.IPOIB_USED_FOR_DATA, reads=READS, uses=USES)
def ipoib_used_for_data(cluster: Cluster) -> Iterator[Finding]:
    """Verbs would work and were turned off; what keeps them from working is said by its own rule."""
    view = verbs.view_of(cluster)
    for node in view.nodes:
        own = {**node.nccl_conf, **node.environment}
        left_on = rdma.is_disabled(own) and "NCCL_IB_DISABLE" not in cluster.job.env
        ready = [
            p for p in node.rdma_ports if p.state == "ACTIVE" and p.link_layer == "InfiniBand" and p.can_open
        ]
        if verbs.lacks_verbs(node):
            continue
        if view.is_asked(node) or left_on or not ready:
            continue
        over = {p.netdev for p in ready} | {i.name for i in node.interfaces if i.kind == "infiniband"}
        carried = [c.interface for c in choice.sockets(node, cluster.job.env) if c.interface in over]
        if carried:
            environment = view.environment(node)
            off = {n: environment[n] for n in ("NCCL_IB_DISABLE", "NCCL_NET") if environment.get(n)}
            yield Finding(
                f"{node.name} {carried[0]}",
                found=f"data over TCP on {few(carried)}, as {few(f'{n}={v}' for n, v in off.items())}",
                wanted=f"RDMA on {few(p.name for p in ready)}",
                node=node.name,
                severity=view.at_most("warning"),
                fix=Fix("let NCCL use verbs", commands=tuple(f"unset {name}" for name in off)),
            )
