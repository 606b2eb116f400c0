"""The rate of the link between the nodes, from facts alone: never from a table of clouds."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

from ringup.facts import Cluster, Node, RdmaPort
from ringup.plan import NodePlan, Plan
from ringup.prove import LinkRate

HEADER_BYTES, FRAME_BYTES = 52, 38
"""Of IPv4 and TCP with timestamps inside the MTU, and of Ethernet with its gap around it."""
SIGNALLING = {2.5: 0.8, 5.0: 0.8, 10.0: 0.8, 14.0: 54.5 / 56}
"""
Gb/s a lane of InfiniBand by sysfs -> the part that is data: 8b/10b up to QDR, 14.0625 with 64b/66b for FDR;
rates since EDR are told as data.
"""
NVLINK_DATA = 0.9412
"""Part of the rate which `nvidia-smi nvlink -s` shows: 18 links of 26.5625 GB/s are an H100's 450 GB/s."""
PCI_AT_LEAST_GBIT_S = 48.0
"""What NCCL's own model (src/graph/topo.h) gives the slowest way between two GPUs of a node: 6 GB/s."""
_NVLINKS = re.compile(r"NV(\d{1,2})")


def payload_share(mtu_bytes: int) -> float:
    """
    Part of an Ethernet link's rate that is TCP's payload.

    >>> round(payload_share(1500), 3), round(payload_share(9000), 3)
    (0.941, 0.99)
    """
    return (mtu_bytes - HEADER_BYTES) / (mtu_bytes + FRAME_BYTES)


def link_rate(cluster: Cluster, plan: Plan, backend: str) -> LinkRate:
    """What the slowest node can send to the others; `plan` tells the transports that are expected."""
    if len(cluster.nodes) < 2:
        return _one_node(cluster.nodes[0], plan.nodes[0].nproc, backend)
    found = _between(cluster, plan, backend)
    return _within(found, cluster, plan) if backend == "nccl" else found


def _between(cluster: Cluster, plan: Plan, backend: str) -> LinkRate:
    """The rate of the cards."""
    stated = cluster.job.link_gbit_s
    rdma = _rdma(cluster, plan) if backend == "nccl" else None
    if stated and rdma:
        of = f" a card of {rdma.devices}" if rdma.devices > 1 else ""
        return replace(rdma, gbit_s=stated * rdma.devices, source=f"--link-gbit {stated:g}{of}")
    if stated:
        return LinkRate(stated, f"--link-gbit {stated:g}", _share(cluster, plan))
    if cluster.is_local:
        return LinkRate(None, "nodes played on one machine share no link")
    other = next((t for t in plan.transports if t.network not in ("IB", "Socket")), None)
    if backend == "nccl" and other:
        which = f"that NCCL uses {other.network} on {other.node} is expected, whose rate is not known"
        if not other.network:
            which = f"which network NCCL uses on {other.node} cannot be told"
        return LinkRate(None, f"{which}; --link-gbit N states what a node can send")
    return rdma or _sockets(cluster, plan)


def _one_node(node: Node, nproc: int, backend: str) -> LinkRate:
    """NVLink, where every GPU reaches every other one by it."""
    if backend != "nccl" or nproc < 2:
        return LinkRate(None, "one node: no link between nodes to compare with")
    rate, links = _nvlink(node, nproc)
    if rate is None:
        words = f"one node, and not every pair of GPUs of {node.name} is known to be joined by NVLink"
        return LinkRate(None, words)
    return LinkRate(rate, f"{node.name}, NVLink of {rate / 8:.0f} GB/s a GPU,", over="nvlink", devices=links)


def _within(found: LinkRate, cluster: Cluster, plan: Plan) -> LinkRate:
    """The same where the ranks of a node are what is slower: the ring passes all of them, too."""
    for node, planned in zip(cluster.nodes, plan.nodes, strict=True):
        if planned.nproc < 2 or found.gbit_s is None:
            continue
        rate, _ = _nvlink(node, planned.nproc)
        if rate is None and found.gbit_s > PCI_AT_LEAST_GBIT_S:
            words = (
                f"not every pair of GPUs of {node.name} is known to be joined by NVLink: PCIe may be slower"
            )
            return replace(found, doubt=words)
        if rate is not None and rate < found.gbit_s:
            source = f"{node.name}, NVLink of {rate / 8:.0f} GB/s a GPU,"
            found = replace(found, gbit_s=rate, source=source, payload_share=1.0)
    return found


def _nvlink(node: Node, nproc: int) -> tuple[float | None, int]:
    """
    What a GPU sends to the others over NVLink, in Gb/s, and over how many ways: 1 through a switch.

    None unless each pair of the job's GPUs has as many links as any other.
    """
    gpus = [gpu for gpu in node.gpus if gpu.is_visible]
    rates = [[link.gbyte_s for link in gpu.nvlinks if link.gbyte_s > 0] for gpu in gpus]
    between = {(link.first, link.second): link.path for link in node.gpu_links}
    paths = {between.get((a.index, b.index), "") for a, b in combinations(gpus, 2)}
    joined = _NVLINKS.fullmatch(paths.pop()) if len(paths) == 1 else None
    if not joined or len(gpus) < nproc or not all(rates):
        return None, 0
    least = min(rates, key=sum)
    to_one = min(sum(least), int(joined[1]) * sum(least) / len(least))
    ways = min(nproc - 1, round(sum(least) / to_one))
    return ways * to_one * 8 * NVLINK_DATA, ways


def carries(link: LinkRate, plan: Plan, op: str) -> float | None:
    """
    The bus bandwidth in GB/s that an operation reaches when the links of a node are full; None where unknown.

    A ring passes each node once, over all of its cards.  In an all_to_all a node with m of n ranks sends
    m (n - m) / n buffers, while the bus bandwidth counts (n - 1) / n of one.  A send_recv uses the card of
    one rank, and which one is not known where there are several.
    """
    if link.gbit_s is None or (op == "send_recv" and link.devices > 1):
        return None
    rate = link.gbit_s / 8 * link.payload_share
    if op != "all_to_all" or link.over == "nvlink":
        return rate
    total = plan.world_size
    return rate * (total - 1) / max(node.nproc * (total - node.nproc) for node in plan.nodes)


def _share(cluster: Cluster, plan: Plan) -> float:
    mtus = [
        i.mtu_bytes for n, p in zip(cluster.nodes, plan.nodes, strict=True) if (i := n.interface(p.interface))
    ]
    return payload_share(min(mtus)) if mtus and min(mtus) > HEADER_BYTES else 1.0


def _sockets(cluster: Cluster, plan: Plan) -> LinkRate:
    rates = []
    for node, planned in zip(cluster.nodes, plan.nodes, strict=True):
        interface = node.interface(planned.interface)
        if interface is None or interface.speed_gbit_s is None:
            name = f"{node.name} {planned.interface}" if planned.interface else node.name
            kind = f" ({interface.kind})" if interface else ""
            return LinkRate(None, f"the rate of {name}{kind} cannot be read; --link-gbit N states it")
        links = _balanced_links(node, interface.name)
        of = f" a link of {links}" if links > 1 else ""
        rates.append((interface.speed_gbit_s / links, f"{node.name} {interface.name}", of))
    slowest, where, of = min(rates)
    return LinkRate(slowest, f"{where}, {slowest:g} Gbit/s{of}", _share(cluster, plan))


def _balanced_links(node: Node, interface: str) -> int:
    """
    Links of a bond that its rate is the sum of; 1 for what is none.

    A ring leaves a node by one connection, and the bond's hash keeps that on one link (the kernel's
    networking/bonding.rst).
    """
    bond = next((bond for bond in node.bonds if bond.name == interface), None)
    if bond is None or "active-backup" in bond.mode or "round-robin" in bond.mode:
        return 1
    return max(1, len(bond.slaves) - len(bond.down))


def data_gbit_s(port: RdmaPort) -> float:
    """
    What of a port's rate is data, in Gb/s; 0 where the rate is not known.

    >>> data_gbit_s(RdmaPort("mlx4_0", 1, rate_gbit_s=40.0, width=4, link_layer="InfiniBand"))
    32.0
    """
    rate = port.rate_gbit_s or 0.0
    return rate if port.link_layer == "Ethernet" else rate * SIGNALLING.get(rate / (port.width or 4), 1.0)


def _rdma(cluster: Cluster, plan: Plan) -> LinkRate | None:
    """The sum of the devices NCCL will use on the node that has least; None where it will not use any."""
    sums = []
    for node, planned in zip(cluster.nodes, plan.nodes, strict=True):
        names = _devices(node, plan)
        if not names:
            return None
        ports = [p for p in node.rdma_ports if p.name in names or p.device in names]
        known = sorted(rate for p in ports if (rate := data_gbit_s(p)))
        shown = ", ".join(names)
        count = _cards(node, planned, len(names))
        if len(known) < len(names):
            words = f"the rate of {node.name} {shown} cannot be read; --link-gbit N states that of one"
            return LinkRate(None, words, over="rdma", devices=count)
        where = f"{node.name} {shown}" if count == len(names) else f"{node.name} {count} of {shown}"
        sums.append((sum(known[:count]), where, count))
    slowest, where, count = min(sums)
    return LinkRate(slowest, f"{where}, {slowest:g} Gb/s in all", over="rdma", devices=count)


def _cards(node: Node, planned: NodePlan, cards: int) -> int:
    """How many of a node's cards the job's ranks feed at least: each GPU has its own, or its part of them."""
    gpus = max(len(node.gpus), node.gpu_count, planned.nproc)
    return max(1, -(-cards * planned.nproc // gpus))


def _devices(node: Node, plan: Plan) -> list[str]:
    """`mlx5_0:1`, ... that NCCL is expected to use on a node; empty where it takes sockets."""
    for expected in plan.transports:
        if expected.node == node.name and expected.network == "IB":
            return [name.partition("/")[0] for name in expected.devices]
    return []
