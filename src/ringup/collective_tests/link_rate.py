"""The rate of the link between the nodes, only from facts, never from a table of clouds."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations

from ringup.collective_tests import LinkRate
from ringup.model import Cluster, Node, RdmaPort
from ringup.planning import Plan

HEADER_BYTES, FRAME_BYTES = 52, 38
"""IPv4 and TCP headers with timestamps (inside the MTU), and the Ethernet frame with its gap (outside it)."""
QDR_LANE_GBIT_S = 10.0
"""InfiniBand up to QDR: sysfs shows the signalling rate of a lane; 80 % of it is data."""
NVLINK_DATA = 0.9412
"""Share of the rate in `nvidia-smi nvlink -s`: 18 links of 26.5625 GB/s are an H100's 450 GB/s."""
PCI_AT_LEAST_GBIT_S = 48.0
"""The slowest path between two GPUs of a node in NCCL's own model (src/graph/topo.h): 6 GB/s."""
_NVLINKS = re.compile(r"NV(\d{1,2})")


def payload_share(mtu_bytes: int) -> float:
    """
    Share of an Ethernet link's rate that is TCP payload.

    >>> round(payload_share(1500), 3), round(payload_share(9000), 3)
    (0.941, 0.99)
    """
    return (mtu_bytes - HEADER_BYTES) / (mtu_bytes + FRAME_BYTES)


def link_rate(cluster: Cluster, plan: Plan, backend: str) -> LinkRate:
    """The rate at which the slowest node can send to the others; `plan` has the expected transports."""
    if len(cluster.nodes) > 1:
        found = _between(cluster, plan, backend)
        return _within(found, cluster, plan) if backend == "nccl" else found
    if backend != "nccl" or plan.nodes[0].nproc < 2:
        return LinkRate(None, "one node: no link between nodes to compare with")
    return _nvlink(cluster.nodes[0], plan.nodes[0].nproc)


def _between(cluster: Cluster, plan: Plan, backend: str) -> LinkRate:
    stated = cluster.job.link_gbit_s
    rdma = _rdma(cluster, plan) if backend == "nccl" else None
    if stated and rdma:
        of = f" a card of {rdma.devices}" if rdma.devices > 1 else ""
        return replace(rdma, gbit_s=stated * rdma.devices, source=f"--link-gbit {stated:g}{of}")
    if stated:
        return LinkRate(stated, f"--link-gbit {stated:g}", _share(cluster, plan))
    if cluster.is_local:
        return LinkRate(None, "simulated nodes on one machine have no link between them")
    other = next((t for t in plan.transports if t.network not in ("IB", "Socket")), None)
    if backend == "nccl" and other:
        why = f"NCCL's network on {other.node} is unknown"
        if other.network:
            why = f"NCCL is expected to use {other.network} on {other.node}, whose rate is unknown"
        return LinkRate(None, f"{why}; --link-gbit N states what a node can send")
    return rdma or _sockets(cluster, plan)


def _within(found: LinkRate, cluster: Cluster, plan: Plan) -> LinkRate:
    """The same, or the rate within a node if that is lower: the ring also passes all ranks of a node."""
    for node, planned in zip(cluster.nodes, plan.nodes, strict=True):
        if planned.nproc < 2 or found.gbit_s is None:
            continue
        joined = _nvlink(node, planned.nproc)
        if joined.gbit_s is None and found.gbit_s > PCI_AT_LEAST_GBIT_S:
            return replace(found, doubt=f"{joined.source}: PCIe may be slower")
        if joined.gbit_s is not None and joined.gbit_s < found.gbit_s:
            found = replace(found, gbit_s=joined.gbit_s, source=joined.source, payload_share=1.0)
    return found


def _nvlink(node: Node, nproc: int) -> LinkRate:
    """A GPU's rate over NVLink, if all pairs have the same number of links; one device with a switch."""
    gpus = [gpu for gpu in node.gpus if gpu.is_visible]
    rates = [[link.gbyte_s for link in gpu.nvlinks if link.gbyte_s > 0] for gpu in gpus]
    between = {(link.first, link.second): link.path for link in node.gpu_links}
    paths = {between.get((a.index, b.index), "") for a, b in combinations(gpus, 2)}
    joined = _NVLINKS.fullmatch(paths.pop()) if len(paths) == 1 else None
    if not joined or len(gpus) < nproc or not all(rates):
        return LinkRate(None, f"not every pair of GPUs of {node.name} is known to be joined by NVLink")
    least = min(rates, key=sum)
    to_one = min(sum(least), int(joined[1]) * sum(least) / len(least))
    ways = min(nproc - 1, round(sum(least) / to_one))
    rate = ways * to_one * 8 * NVLINK_DATA
    return LinkRate(rate, f"{node.name}, NVLink of {rate / 8:.0f} GB/s a GPU,", over="nvlink", devices=ways)


def carries(link: LinkRate, plan: Plan, op: str) -> float | None:
    """
    The bus bandwidth in GB/s of an operation that fills the links of a node; None if unknown.

    A ring passes each node once, over all of its NICs.  In an all_to_all, a node with m of n ranks sends m (n
    - m) / n buffers, while the bus bandwidth counts (n - 1) / n of one.  A send_recv uses the NIC of one
    rank; with several NICs it is unknown which one.
    """
    if link.gbit_s is None or (op == "send_recv" and link.devices > 1):
        return None
    rate = link.gbit_s / 8 * link.payload_share
    if op != "all_to_all" or link.over == "nvlink":
        return rate
    total = plan.world_size
    return rate * (total - 1) / max(node.nproc * (total - node.nproc) for node in plan.nodes)


def _share(cluster: Cluster, plan: Plan) -> float:
    found = (n.interface(p.interface) for n, p in zip(cluster.nodes, plan.nodes, strict=True))
    mtus = [interface.mtu_bytes for interface in found if interface]
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
    Number of a bond's links that add up to its rate; 1 for other interfaces.

    A ring leaves a node by one connection, and the bond's hash keeps that on one link (the kernel's
    networking/bonding.rst).
    """
    bond = next((bond for bond in node.bonds if bond.name == interface), None)
    if bond is None or "active-backup" in bond.mode or "round-robin" in bond.mode:
        return 1
    return max(1, len(bond.slaves) - len(bond.down))


def _rate_gbit_s(port: RdmaPort) -> float:
    rate = port.rate_gbit_s or 0.0
    return rate if port.link_layer == "Ethernet" or rate > QDR_LANE_GBIT_S * (port.width or 4) else 0.0


def _rdma(cluster: Cluster, plan: Plan) -> LinkRate | None:
    """The sum of NCCL's devices on the node with the least; None if NCCL uses none."""
    sums = []
    for node, planned in zip(cluster.nodes, plan.nodes, strict=True):
        expected = next((t for t in plan.transports if (t.node, t.network) == (node.name, "IB")), None)
        names = [name.partition("/")[0] for name in expected.devices] if expected else []
        if not names:
            return None  # it uses sockets
        ports = [p for p in node.rdma_ports if p.name in names or p.device in names]
        known = sorted(rate for p in ports if (rate := _rate_gbit_s(p)))
        shown = ", ".join(names)
        # NICs that the ranks use at least: each GPU has one, or a share of them.
        gpus = max(len(node.gpus), node.gpu_count, planned.nproc)
        count = max(1, -(-len(names) * planned.nproc // gpus))
        if len(known) < len(names):
            words = f"the rate of {node.name} {shown} cannot be read; --link-gbit N states the rate of one"
            return LinkRate(None, words, over="rdma", devices=count)
        where = f"{node.name} {shown}" if count == len(names) else f"{node.name} {count} of {shown}"
        sums.append((sum(known[:count]), where, count))
    slowest, where, count = min(sums)
    return LinkRate(slowest, f"{where}, {slowest:g} Gb/s in all", over="rdma", devices=count)
