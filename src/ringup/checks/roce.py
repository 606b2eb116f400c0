"""What RDMA traffic is addressed by and marked with: GIDs, subnets, MTU, traffic class, partitions."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from ringup import problems
from ringup.checks import paths, verbs
from ringup.checks.net import listed
from ringup.checks.verbs import View
from ringup.facts import Cluster, Node, RdmaPort
from ringup.nccl import choice, gids, rdma
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, check
from ringup.units import twice_quoted

READS = verbs.READS
USES = verbs.USES
FULL_MTU_BYTES = 4200
"""RoCE sends 4096 bytes a packet where headers of up to 104 fit beside them, else 2048 or 1024."""
FAST_GBIT_S = 100.0
FULL_MEMBER = 0x8000
"""Top bit of a partition key: a full member, who may talk to all; limited ones talk to full ones only."""


def gid_of(view: View, node: Node, port: RdmaPort) -> gids.GidChoice:
    """The entry NCCL connects with."""
    return gids.gid_index(port, view.environment(node), choice.version_of(node.interpreter.nccl))


def kind_of(chosen: gids.GidChoice, port: RdmaPort) -> str:
    """ "v1", "v2", "none" for an entry that is not there, "" where it cannot be told."""
    if chosen.gid is not None:
        return "v2" if "v2" in chosen.gid.kind else "v1" if chosen.gid.kind else ""
    if chosen.index is None and len(port.gids) == 1:
        return "v2" if "v2" in port.gids[0].kind else "v1" if port.gids[0].kind else ""
    return "none"


@check(problems.GID_MISSING_OR_WRONG, reads=READS, uses=USES)
def gid_missing_or_wrong(cluster: Cluster) -> Iterator[Finding]:
    """RoCE v1 on every node alike works as far as one switch; where nodes differ nothing connects."""
    view = verbs.view_of(cluster)
    kinds: dict[str, dict[str, str]] = {}
    for node in view.nodes:
        for port in view.roce(node):
            kinds.setdefault(node.name, {})[port.name] = kind_of(gid_of(view, node, port), port)
    everywhere = {kind for own in kinds.values() for kind in own.values()}
    worst: Severity = "error" if "none" in everywhere or len(everywhere - {""}) > 1 else "warning"
    for node in view.nodes:
        bad = [p for p in view.roce(node) if kinds[node.name][p.name] in ("none", "v1")]
        if not bad:
            continue
        by_hand = view.environment(node).get("NCCL_IB_GID_INDEX", "")
        chosen = gid_of(view, node, bad[0])
        unset = by_hand and choice.version_of(node.interpreter.nccl) >= gids.CHOOSES
        yield Finding(
            f"{node.name} {few(p.name for p in bad)}",
            found=entry(chosen) if bad[0].gids else f"{bad[0].name} has no GID at all",
            wanted="an entry of RoCE v2 with an IPv4 address, on every node",
            node=node.name,
            subject="" if "NCCL_IB_GID_INDEX" in cluster.job.env else f"env:NCCL_IB_GID_INDEX@{node.name}",
            severity=view.at_most(worst),
            fix=Fix(
                "unset it: NCCL finds the entry itself"
                if unset
                else "give the port's interface an IPv4 address",
                commands=("unset NCCL_IB_GID_INDEX",)
                if unset
                else (
                    f"ssh {shlex.quote(node.name)} ip -brief address show dev {twice_quoted(bad[0].netdev)}",
                ),
            ),
        )


def entry(chosen: gids.GidChoice) -> str:
    """Which entry is used and why, and what stands there."""
    there = f"{chosen.gid.gid}, {chosen.gid.kind}" if chosen.gid else ""
    return chosen.because if there in chosen.because else f"{chosen.because}; it is {there}"


def rails(view: View, node: Node) -> dict[str, str]:
    """RoCE port -> the IPv4 subnet of the address NCCL connects it with."""
    found = {}
    for port in view.roce(node):
        gid = gid_of(view, node, port).gid
        own = gid.gid.removeprefix("::ffff:") if gid else ""
        for interface in node.interfaces:
            for a in interface.addresses:
                if a.address == own:
                    found[port.name] = paths.subnet(a.address, a.prefix_length)
    return found


@check("gid-subnets-differ", reads=READS, uses=USES)
def gid_subnets_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The rails of RoCE ports are crossed: the same port lies in another rail's subnet on another node.

    Why: NCCL connects the n-th port of a node with the n-th of the other by default; where that is another
    subnet, packets need a route between rails that is seldom there, or leave by the wrong port.

    Fix: give every port an address in the subnet of its rail, or swap the cables back.

    In logs: `Got completion ... status=12`, `ibv_modify_qp failed with error Connection timed out`.
    """
    view = verbs.view_of(cluster)
    own = {n.name: rails(view, n) for n in view.nodes}
    for name in view.users:
        here = {n: subnets[name] for n, subnets in own.items() if subnets.get(name)}
        common = Counter(here.values()).most_common(1)
        if not common:
            continue
        rail = common[0][0]
        for node, subnet in here.items():
            # A routed fabric has a subnet for each port; only where the rail is there too is it crossed.
            other = next((p for p, s in own[node].items() if s == rail and p != name), "")
            if subnet != rail and other:
                usual = next(n for n, s in here.items() if s == rail)
                yield Finding(
                    f"{node} {name}",
                    found=f"{name} is in {subnet}, {other} in {rail}; on {usual} {name} is in {rail}",
                    wanted=f"{name} in {rail} on every node",
                    node=node,
                    severity=view.at_most("error"),
                    fix=Fix(
                        "swap the addresses or the cables of the two ports",
                        commands=(f"ssh {shlex.quote(node)} ip -brief -4 address",),
                    ),
                )
                return


@check("rdma-mtu-low", reads=READS, uses=USES, severity="warning")
def rdma_mtu_low(cluster: Cluster) -> Iterator[Finding]:
    """
    The MTU of a RoCE port's interface is smaller than the peers', or too small for RoCE's largest packets.

    Why: RoCE takes the largest packet that fits: 1024 bytes under an MTU of 1500, 4096 under 9000.  Small
    packets cost rate, and where nodes differ large messages are lost.

    Fix: MTU 9000 on the interface and on every switch port of the fabric.
    """
    view = verbs.view_of(cluster)
    small: list[tuple[Node, RdmaPort]] = []
    mtus: dict[str, dict[str, int]] = {}
    for node in view.nodes:
        for port in view.roce(node):
            interface = node.interface(port.netdev)
            if interface is not None and interface.mtu_bytes:
                mtus.setdefault(port.name, {})[node.name] = interface.mtu_bytes
                if interface.mtu_bytes < FULL_MTU_BYTES:
                    small.append((node, port))
    unlike = {name: here for name, here in mtus.items() if len(set(here.values())) > 1}
    odd = [(n, p) for n, p in small if mtus[p.name][n.name] < max(unlike.get(p.name, {"": 0}).values())]
    concerned = odd or small
    if not concerned:
        return
    where, alone = verbs.places(concerned)
    fast = any((p.rate_gbit_s or 0) >= FAST_GBIT_S for _, p in concerned)
    node, port = concerned[0]
    yield Finding(
        where,
        found=listed(f"{n.name} {p.netdev} {mtus[p.name][n.name]} bytes" for n, p in concerned),
        wanted=f"{max(mtus[port.name].values())} bytes, as the others" if odd else "MTU 9000",
        node=alone,
        severity=view.at_most("warning" if odd or fast else "note"),
        fix=Fix(
            "a large MTU on the interface, and on the switch ports",
            commands=tuple(
                f"ssh {shlex.quote(n.name)} sudo ip link set dev {twice_quoted(p.netdev)} mtu 9000"
                for n, p in concerned[:4]
            ),
        ),
    )


@check("dscp-not-trusted", reads=READS, uses=USES, severity="warning")
def dscp_not_trusted(cluster: Cluster) -> Iterator[Finding]:
    """
    RoCE ports do not sort packets by the mark NCCL's traffic has, or not all nodes do it alike.

    Why: a traffic class (NCCL_IB_TC) is a mark in the IP header; a port that trusts VLAN priorities (pcp)
    ignores it, and the traffic goes through the lossy queue.

    Fix: `mlnx_qos -i IFNAME --trust dscp` on every node, and one traffic class everywhere.
    """
    view = verbs.view_of(cluster)
    ports = [(n, p) for n in view.nodes for p in view.roce(n)]
    marked = [(n, p) for n, p in ports if rdma.number(view.environment(n), "NCCL_IB_TC", 0)]
    blind = [(n, p) for n, p in marked if p.trust == "pcp"]
    trusts = {p.trust for _, p in ports if p.trust}
    classes = {p.traffic_class for _, p in ports if p.traffic_class is not None}
    # Where somebody set a class for all RoCE traffic, a port without one is unlike the others.
    unset = [(n, p) for n, p in ports if classes and p.traffic_class is None and p.trust]
    if blind:
        odd, words = blind, "sorts by VLAN priority (pcp), NCCL_IB_TC marks the IP header"
    elif len(trusts) > 1:
        odd, words = [(n, p) for n, p in ports if p.trust == "pcp"], "trusts pcp, others trust dscp"
    elif len(classes) > 1 or unset:
        told = {p.traffic_class for _, p in ports}
        odd = unset or [(n, p) for n, p in ports if p.traffic_class != max(classes)]
        words = f"traffic classes {few(str(c) for c in told)} side by side"
    else:
        odd, words = [], ""
    if not odd:
        return
    where, alone = verbs.places(odd)
    trusting = bool(blind) or len(trusts) > 1
    yield Finding(
        where,
        found=f"{odd[0][1].netdev}: {words}",
        wanted="dscp trusted, with the same traffic class on every node",
        node=alone,
        severity=view.at_most("warning"),
        fix=Fix(
            "trust DSCP on every RoCE interface" if trusting else "one traffic class on every RoCE port",
            commands=tuple(trust(n, p) if trusting else mark(n, p, max(classes)) for n, p in odd[:4]),
        ),
    )


def trust(node: Node, port: RdmaPort) -> str:
    return f"ssh {shlex.quote(node.name)} sudo mlnx_qos -i {twice_quoted(port.netdev)} --trust dscp"


def mark(node: Node, port: RdmaPort, traffic_class: int) -> str:
    file = shlex.quote(f"/sys/class/infiniband/{port.device}/tc/{port.number}/traffic_class")
    return f"ssh {shlex.quote(node.name)} {shlex.quote(f'echo {traffic_class} | sudo tee {file}')}"


@check("pfc-not-configured", reads=READS, uses=USES, severity="warning")
def pfc_not_configured(cluster: Cluster) -> Iterator[Finding]:
    """
    RoCE ports have flow control (PFC) for other priorities than the ports of the other nodes.

    Why: a port that does not stop when told to, or on another priority, loses packets where the others wait;
    RoCE recovers from losses slowly.

    Fix: the same priorities on every node and switch port: `mlnx_qos -i IFNAME --pfc 0,0,0,1,0,0,0,0`.
    """
    view = verbs.view_of(cluster)
    told = [(n, p) for n in view.nodes for p in view.roce(n) if p.pfc is not None]
    counts = Counter(p.pfc or 0 for _, p in told)
    # That it is nowhere may be meant: some fabrics live by ECN alone.
    usual = max(counts, key=lambda pfc: (counts[pfc], pfc), default=0)
    # A node on which nothing was set up for RoCE is said to trust pcp, which is the same fault.
    said = {p.trust for _, p in told} >= {"pcp", "dscp"}
    odd = [(n, p) for n, p in told if p.pfc != usual and not (said and p.trust == "pcp")]
    if not odd:
        return
    where, alone = verbs.places(odd)
    yield Finding(
        where,
        found=listed(f"{n.name} {p.netdev}: PFC on {priorities(p.pfc or 0)}" for n, p in odd),
        wanted=f"PFC on {priorities(usual)}, as on the other ports",
        node=alone,
        severity=view.at_most("warning"),
        fix=Fix(
            "the same priorities everywhere",
            commands=tuple(
                f"ssh {shlex.quote(n.name)} sudo mlnx_qos -i {twice_quoted(p.netdev)} --pfc "
                + ",".join(str(usual >> k & 1) for k in range(8))
                for n, p in odd[:4]
            ),
        ),
    )


def priorities(pfc: int) -> str:
    """
    >>> priorities(0b1001), priorities(0)
    ('priority 0, 3', 'no priority')
    """
    on = [str(k) for k in range(8) if pfc >> k & 1]
    return f"priority {', '.join(on)}" if on else "no priority"


@check("pkey-table-empty", reads=READS, uses=USES)
def pkey_table_empty(cluster: Cluster) -> Iterator[Finding]:
    """
    InfiniBand ports share no partition: a key is missing, differs, or both sides are limited members.

    Why: packets of another partition are thrown away without a word; connecting times out.

    Fix: the partition configuration of the subnet manager; or NCCL_IB_PKEY, the index of a key that all have.

    In logs: `ibv_modify_qp failed`, `Got completion ... status=12`.
    """
    view = verbs.view_of(cluster)
    keys: dict[tuple[str, str], int] = {}
    for node in view.nodes:
        index = rdma.number(view.environment(node), "NCCL_IB_PKEY", 0)
        for port in view.main[node.name]:
            if port.link_layer == "InfiniBand" and port.pkeys and index >= 0:
                keys[node.name, port.name] = port.pkeys[index] if index < len(port.pkeys) else 0
    common = Counter(key & ~FULL_MEMBER for key in keys.values() if key).most_common(1)
    if not common:
        odd = dict(keys)
    else:
        odd = {at: key for at, key in keys.items() if not key or key & ~FULL_MEMBER != common[0][0]}
    limited = {at: key for at, key in keys.items() if key and not key & FULL_MEMBER}
    if not odd and len({node for node, _ in limited}) < 2:
        return
    shown = odd or limited
    nodes = {node for node, _ in shown}
    first = next(iter(shown))
    yield Finding(
        few(f"{node} {port}" for node, port in shown),
        found=listed(f"{node} {port}: key {key:#06x}" for (node, port), key in shown.items()),
        wanted="one partition for all, and full members (0x8000 set) on one side at least",
        node=nodes.pop() if len(nodes) == 1 else None,
        severity=view.at_most("error"),
        fix=Fix(
            "put the ports into one partition, as full members",
            commands=(
                f"ssh {shlex.quote(first[0])} grep . /sys/class/infiniband/"
                f"{twice_quoted(first[1].replace(':', '/ports/'))}/pkeys/0",
            ),
        ),
    )
