"""Addressing and marking of RDMA traffic: GIDs, subnets, MTU, traffic class, partitions."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator

from ringup.addresses import parsed, subnet
from ringup.checks import verbs
from ringup.checks.network_setup import listed
from ringup.checks.software import most_common, most_common_number
from ringup.checks.verbs import View
from ringup.model import Cluster, Node, RdmaPort
from ringup.nccl import rdma_devices
from ringup.rules import Finding, Severity, at, at_each, check, ssh
from ringup.units import grouped, summarize_names

READS = verbs.READS
FULL_MTU_BYTES = 4200
"""RoCE sends 4096 bytes per packet if the MTU has room for headers of up to 104 bytes, else 2048 or 1024."""
FAST_GBIT_S = 100.0
CLASS_FILE = "/sys/class/infiniband/{0.device}/tc/{0.number}/traffic_class"
FULL_MEMBER = 0x8000
"""Top bit of a partition key: full members can reach all members, limited ones only full members."""


def kind_of(chosen: rdma_devices.GidChoice, port: RdmaPort) -> str:
    """ "v1", "v2", "none" for a missing entry, "" if unknown."""
    gid = port.gids[0] if chosen.index is None and len(port.gids) == 1 else chosen.gid
    return "none" if gid is None else "v2" if "v2" in gid.kind else "v1" if gid.kind else ""


@check("gid-missing-or-wrong", reads=READS, scope="rdma")
def gid_missing_or_wrong(view: View, cluster: Cluster) -> Iterator[Finding]:
    """RoCE v1 on every node works behind a single switch; if the nodes differ, nothing connects."""
    ports = [(n, p) for n in view.nodes for p in view.roce(n)]
    kinds = {(n.name, p.name): kind_of(view.of(n).gid(p), p) for n, p in ports}
    everywhere = set(kinds.values())
    worst: Severity = "error" if "none" in everywhere or len(everywhere - {""}) > 1 else "warning"
    for node in view.nodes:
        bad = [p for p in view.roce(node) if kinds[node.name, p.name] in ("none", "v1")]
        if not bad:
            continue
        by_hand = view.of(node).environment.get("NCCL_IB_GID_INDEX", "")
        chosen = view.of(node).gid(bad[0])
        unset = by_hand and view.of(node).version >= rdma_devices.CHOOSES_GIDS
        subject = "" if "NCCL_IB_GID_INDEX" in cluster.job.env else f"env:NCCL_IB_GID_INDEX@{node.name}"
        there = f"{chosen.gid.gid}, {chosen.gid.kind}" if chosen.gid else ""
        entry = chosen.because if there in chosen.because else f"{chosen.because}; it is {there}"
        is_v6 = view.of(node).environment.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6"
        family = "IPv6" if is_v6 else "IPv4"
        other = [] if by_hand else other_family(bad, is_v6)
        fix = f"give the port's interface {'a global IPv6' if is_v6 else 'an IPv4'} address"
        if other:
            fix = "use the port's other addresses"
        yield at(node, summarize_names(p.name for p in bad), subject).finding(
            found=entry if bad[0].gids else f"{bad[0].name} has no GID at all",
            wanted=f"an entry of RoCE v2 with an {family} address, on every node",
            severity=worst,
            fix="unset it: NCCL finds the entry itself" if unset else fix,
            commands=["unset NCCL_IB_GID_INDEX"] if unset else other,
            run=() if unset or other else f"ip -brief address show dev {shlex.quote(bad[0].netdev)}",
        )


def other_family(ports: list[RdmaPort], is_v6: bool) -> list[str]:
    """Commands that make NCCL take the other address family, if every port has a RoCE v2 entry of it."""
    addresses = [[parsed(g.gid) for g in port.gids if "v2" in g.kind] for port in ports]
    fits = [any(a and not a.is_link_local and (a.version == 6) != is_v6 for a in own) for own in addresses]
    if not all(fits):
        return []
    return ["unset NCCL_IB_ADDR_FAMILY" if is_v6 else "export NCCL_IB_ADDR_FAMILY=AF_INET6"]


def rails(view: View, node: Node) -> dict[str, str]:
    """RoCE port -> the IPv4 subnet of the address that NCCL uses for it."""
    subnets = {a.address: subnet(a.address, a.prefix_length) for i in node.interfaces for a in i.addresses}
    chosen = {port.name: view.of(node).gid(port).gid for port in view.roce(node)}
    own = {name: gid.gid.removeprefix("::ffff:") for name, gid in chosen.items() if gid}
    return {name: subnets[address] for name, address in own.items() if address in subnets}


@check("gid-subnets-differ", reads=READS, scope="rdma")
def gid_subnets_differ(view: View) -> Iterator[Finding]:
    """
    The rails of RoCE ports are crossed: the same port lies in another rail's subnet on another node.

    Why: NCCL connects the n-th port of a node with the n-th of the other by default; where that is another
    subnet, packets need a route between rails that is seldom there, or leave by the wrong port.
    Fix: give every port an address in the subnet of its rail, or swap the cables back.
    In logs: `Got completion ... status=12`, `ibv_modify_qp failed with error Connection timed out`.
    """
    own = {n.name: rails(view, n) for n in view.nodes}
    for name in view.users:
        here = {n: subnets[name] for n, subnets in own.items() if subnets.get(name)}
        rail = most_common(here.values())
        for node, own_subnet in here.items():
            # A routed fabric has a subnet per port; cables are crossed only if this node has that rail, too.
            other = next((p for p, s in own[node].items() if s == rail and p != name), "")
            if own_subnet != rail and other:
                usual = next(n for n, s in here.items() if s == rail)
                yield at(node, name).finding(
                    found=f"{name} is in {own_subnet}, {other} in {rail}; on {usual} {name} is in {rail}",
                    wanted=f"{name} in {rail} on every node",
                    run="ip -brief -4 address",
                )
                return


def on_each(ports: list[tuple[Node, RdmaPort]], command: str) -> list[str]:
    """A command with {netdev} or {class_file} filled in for each of the first ports."""
    paths = [(n, shlex.quote(p.netdev), shlex.quote(CLASS_FILE.format(p))) for n, p in ports[:4]]
    return [ssh(n, command.format(netdev=netdev, class_file=file)) for n, netdev, file in paths]


@check("rdma-mtu-low", reads=READS, scope="rdma", severity="warning")
def rdma_mtu_low(view: View) -> Iterator[Finding]:
    """
    The MTU of a RoCE port's interface is smaller than the peers', or too small for RoCE's largest packets.

    Why: RoCE takes the largest packet that fits: 1024 bytes under an MTU of 1500, 4096 under 9000; of two
    nodes NCCL takes the smaller one.  Small packets cost rate.
    Fix: set MTU 9000 on the interface and on every switch port of the fabric.
    """
    ports = [(n, p) for n in view.nodes for p in view.roce(n)]
    mtus = {(n.name, p.name): i.mtu_bytes for n, p in ports if (i := n.interface(p.netdev)) is not None}
    largest = {name: max(own) for name, own in grouped((p, mtu) for (_, p), mtu in mtus.items()).items()}
    here = ((n, p, n.interface(p.netdev)) for n, p in ports)
    small = [(n, p) for n, p, i in here if i is not None and 0 < i.mtu_bytes < FULL_MTU_BYTES]
    odd = [(n, p) for n, p in small if mtus[n.name, p.name] < largest[p.name]]
    concerned = odd or small
    if not concerned:
        return
    fast = any((p.rate_gbit_s or 0) >= FAST_GBIT_S for _, p in concerned)
    yield verbs.places(concerned).finding(
        found=listed(f"{n.name} {p.netdev} {mtus[n.name, p.name]} bytes" for n, p in concerned),
        wanted=f"{largest[concerned[0][1].name]} bytes, as the others" if odd else "MTU 9000",
        severity="warning" if odd or fast else "note",
        commands=on_each(concerned, "sudo ip link set dev {netdev} mtu 9000"),
    )


@check("dscp-not-trusted", reads=READS, scope="rdma", severity="warning")
def dscp_not_trusted(view: View) -> Iterator[Finding]:
    """
    RoCE ports do not sort packets by the mark of NCCL's traffic, or the nodes differ in this.

    Why: a traffic class (NCCL_IB_TC) is a mark in the IP header; a port that trusts VLAN priorities (pcp)
    ignores it, and the traffic goes through the lossy queue.
    Fix: `mlnx_qos -i IFNAME --trust dscp` on every node, and one traffic class everywhere.
    """
    ports = [(n, p) for n in view.nodes for p in view.roce(n)]
    marked = [(n, p) for n, p in ports if rdma_devices.number(view.of(n).environment, "NCCL_IB_TC", 0)]
    blind = [(n, p) for n, p in marked if p.trust == "pcp"]
    trusts = {p.trust for _, p in ports if p.trust}
    classes = {p.traffic_class for _, p in ports if p.traffic_class is not None}
    usual = int(most_common_number(p.traffic_class for _, p in ports if p.traffic_class is not None))
    # If a traffic class is set for all RoCE traffic, a port without one differs from the others.
    unset = [(n, p) for n, p in ports if classes and p.traffic_class is None and p.trust]
    if blind:
        odd, words = blind, "sorts by VLAN priority (pcp), NCCL_IB_TC marks the IP header"
    elif len(trusts) > 1:
        trust = most_common(p.trust for _, p in ports) if any(p.trust == "dscp" for _, p in ports) else ""
        odd = [(n, p) for n, p in ports if p.trust and p.trust != trust]
        words = f"trusts {odd[0][1].trust}, others trust {trust}"
    elif len(classes) > 1 or unset:
        values = {p.traffic_class for _, p in ports}
        odd = unset or [(n, p) for n, p in ports if p.traffic_class != usual]
        words = f"traffic classes {summarize_names(str(c) for c in values)} side by side"
    else:
        odd, words = [], ""
    if not odd:
        return
    trusting = bool(blind) or len(trusts) > 1
    wanted = "dscp" if blind else most_common(p.trust for _, p in ports)
    set_class = f"echo {usual} | sudo tee {{class_file}}"
    yield verbs.places(odd).finding(
        found=f"{odd[0][1].netdev}: {words}",
        wanted=f"{wanted or 'dscp'} trusted, with the same traffic class on every node",
        fix=f"trust {wanted} on every RoCE interface" if trusting else "one traffic class on every RoCE port",
        commands=on_each(odd, f"sudo mlnx_qos -i {{netdev}} --trust {wanted}" if trusting else set_class),
    )


@check("pfc-not-configured", reads=READS, scope="rdma", severity="warning")
def pfc_not_configured(view: View) -> Iterator[Finding]:
    """
    RoCE ports have flow control (PFC) for other priorities than the ports of the other nodes.

    Why: a port that ignores pause frames, or pauses another priority, loses packets while the others wait;
    RoCE recovers from losses slowly.
    Fix: set the same priorities on every node and switch port: `mlnx_qos -i IFNAME --pfc 0,0,0,1,0,0,0,0`.
    """
    configured = [(n, p) for n in view.nodes for p in view.roce(n) if p.pfc is not None]
    # No PFC anywhere may be intended: some fabrics use only ECN.
    usual = int(most_common_number(p.pfc or 0 for _, p in configured))
    # `dscp-not-trusted` reports a node on which nothing was set up for RoCE.
    trust_differs = {p.trust for _, p in configured} >= {"pcp", "dscp"}
    odd = [(n, p) for n, p in configured if p.pfc != usual and not (trust_differs and p.trust == "pcp")]
    if not odd:
        return
    on_off = ",".join(str(usual >> k & 1) for k in range(8))
    yield verbs.places(odd).finding(
        found=listed(f"{n.name} {p.netdev}: PFC on {priorities(p.pfc or 0)}" for n, p in odd),
        wanted=f"PFC on {priorities(usual)}, as on the other ports",
        fix="the same priorities everywhere",
        commands=on_each(odd, f"sudo mlnx_qos -i {{netdev}} --pfc {on_off}"),
    )


def priorities(pfc: int) -> str:
    """
    >>> priorities(0b1001), priorities(0)
    ('priority 0, 3', 'no priority')
    """
    on = [str(k) for k in range(8) if pfc >> k & 1]
    return f"priority {', '.join(on)}" if on else "no priority"


@check("pkey-table-empty", reads=READS, scope="rdma")
def pkey_table_empty(view: View) -> Iterator[Finding]:
    """
    InfiniBand ports share no partition: a key is missing, differs, or both sides are limited members.

    Why: packets of another partition are dropped without a message; connecting times out.
    Fix: correct the subnet manager's partitions; or set NCCL_IB_PKEY to the index of a key that all have.
    In logs: `ibv_modify_qp failed`, `Got completion ... status=12`.
    """
    keys: dict[tuple[str, str], int] = {}
    for node in view.nodes:
        index = rdma_devices.number(view.of(node).environment, "NCCL_IB_PKEY", 0)
        for port in view.main[node.name]:
            if port.link_layer == "InfiniBand" and port.pkeys and index >= 0:
                keys[node.name, port.name] = port.pkeys[index] if index < len(port.pkeys) else 0
    common = Counter(key & ~FULL_MEMBER for key in keys.values() if key).most_common(1)
    usual = common[0][0] if common else 0
    odd = {at: key for at, key in keys.items() if not key or key & ~FULL_MEMBER != usual}
    limited = {at: key for at, key in keys.items() if key and not key & FULL_MEMBER}
    if not odd and len({node for node, _ in limited}) < 2:
        return
    shown = odd or limited
    first = next(iter(shown))[1]
    yield at_each(shown).finding(
        found=listed(f"{node} {port}: key {key:#06x}" for (node, port), key in shown.items()),
        wanted="one partition for all, and full members (0x8000 set) on one side at least",
        run=f"grep . /sys/class/infiniband/{shlex.quote(first.replace(':', '/ports/'))}/pkeys/0",
    )
