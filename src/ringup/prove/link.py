"""The rate of the link between the nodes, from facts alone: never from a table of clouds."""

from __future__ import annotations

from ringup.facts import Cluster, Node
from ringup.plan import Plan
from ringup.prove import LinkRate

HEADER_BYTES, FRAME_BYTES = 52, 38
"""Of IPv4 and TCP with timestamps inside the MTU, and of Ethernet with its gap around it."""


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
        return LinkRate(None, "one node: no link between nodes to compare with")
    stated = cluster.job.link_gbit_s
    rdma = _rdma(cluster, plan) if backend == "nccl" else None
    if stated:
        return LinkRate(stated, f"--link-gbit {stated:g}", _share(cluster, plan) if not rdma else 1.0)
    if cluster.is_local:
        return LinkRate(None, "nodes played on one machine share no link")
    return rdma or _sockets(cluster, plan)


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
    if op != "all_to_all":
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


def _rdma(cluster: Cluster, plan: Plan) -> LinkRate | None:
    """The sum of the devices NCCL will use on the node that has least; None where it will not use any."""
    sums = []
    for node in cluster.nodes:
        names = _devices(node, plan)
        if not names:
            return None
        ports = [p for p in node.rdma_ports if p.name in names or p.device in names]
        known = [p.rate_gbit_s for p in ports if p.rate_gbit_s]
        if len(known) < len(names):
            return LinkRate(None, f"the rate of {node.name} {', '.join(names)} cannot be read", over="rdma")
        sums.append((sum(known), f"{node.name} {', '.join(names)}", len(names)))
    slowest, where, count = min(sums)
    return LinkRate(slowest, f"{where}, {slowest:g} Gb/s in all", over="rdma", devices=count)


def _devices(node: Node, plan: Plan) -> list[str]:
    """`mlx5_0:1`, ... that NCCL is expected to use on a node; empty where it takes sockets."""
    for expected in plan.transports:
        if expected.node == node.name and expected.network == "IB":
            return [name.partition("/")[0] for name in expected.devices]
    return []
