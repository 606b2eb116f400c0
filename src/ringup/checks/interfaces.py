"""Interfaces themselves: down, doubled, virtual, slow, of unequal MTU, and names that match none."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

from ringup import problems
from ringup.checks import net, paths, verbs
from ringup.checks.picks import expects_nccl, is_candidate, is_virtual, picks
from ringup.facts import Cluster, Interface, Node
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, check
from ringup.units import twice_quoted

READS = paths.READS
USES = paths.USES
MARKED_SLOWER = 0.5
"""An interface with less than this share of the best one's rate is not worth carrying data."""


def subject(node: Node, name: str) -> str:
    return f"interface:{node.name}/{name}"


@check(problems.INTERFACE_DOWN, reads=READS, uses=USES)
def interface_down(cluster: Cluster) -> Iterator[Finding]:
    """Down or without carrier, while others are up on that network or under that name."""
    if cluster.is_local:
        return
    subnets = paths.shared_subnets(cluster)
    for node in cluster.nodes:
        picked = {p.interface for p in picks(cluster, node)}
        for interface in node.interfaces:
            down = not (interface.is_up and interface.has_carrier)
            if (
                down
                and is_card(interface)
                and (interface.name in picked or missed(cluster, node, interface, subnets))
            ):
                state = "down" if not interface.is_up else "up, but without carrier"
                addresses = ", ".join(a.address for a in interface.usable_addresses) or "no address"
                yield Finding(
                    f"{node.name} {interface.name}",
                    found=f"{state} ({addresses})",
                    wanted="up, as on the other nodes",
                    node=node.name,
                    subject=subject(node, interface.name),
                    fix=Fix(
                        "bring the interface up; without carrier look at cable, transceiver and switch port",
                        env=net.pins(cluster),
                        commands=(
                            f"ssh {shlex.quote(node.name)} sudo ip link set dev "
                            f"{twice_quoted(interface.name)} up",
                        ),
                    ),
                )


def is_card(interface: Interface) -> bool:
    """Not a bridge, tunnel, loopback or part of a bond: something that should have a link."""
    return interface.kind != "loopback" and not interface.master and not is_virtual(interface)


def missed(cluster: Cluster, node: Node, interface: Interface, subnets: dict[str, dict[str, str]]) -> bool:
    """Whether another node is up on a network of this interface, or has it up under the same name."""
    peers = [n for n in cluster.nodes if n.name != node.name]
    for members in subnets.values():
        if members.get(node.name) == interface.name:
            others = [p.interface(members[p.name]) for p in peers if p.name in members]
            if any(o and o.is_up and o.has_carrier for o in others):
                return True
    same = [p.interface(interface.name) for p in peers]
    return (
        bool(same)
        and not interface.usable_addresses
        and all(o is not None and o.is_up and o.has_carrier and o.usable_addresses for o in same)
    )


@check(problems.SAME_ADDRESS_ON_TWO_NODES, reads=READS, uses=(*USES, "boot_id"))
def same_address_on_two_nodes(cluster: Cluster) -> Iterator[Finding]:
    """Cards only: that docker0 is the same everywhere harms nobody who does not use it."""
    if cluster.is_local or same_machine(cluster):
        return
    told: set[str] = set()
    for address, who in paths.owners(cluster).items():
        cards = [(n, name) for n, name in who if (i := n.interface(name)) is not None and is_candidate(i)]
        names = list(dict.fromkeys(n.name for n, _ in who))
        if len(names) > 1 and cards:
            told.add(address)
            yield Finding(
                few(f"{n.name} {name}" for n, name in who),
                found=f"{few(names)} {'both' if len(names) == 2 else 'all'} have {address}",
                wanted="an address of its own for every node",
                subject=subject(*cards[-1]),
                fix=Fix(
                    "take the address away from the node it does not belong to",
                    env=net.pins(cluster),
                    commands=tuple(
                        f"ssh {shlex.quote(n.name)} ip -brief address show dev {twice_quoted(name)}"
                        for n, name in who[:2]
                    ),
                ),
            )
    for fault in net.of_kind(cluster, "duplicate"):
        strange = [e for e in fault.edges if e.error in ("another node answered", "stranger answered")]
        if strange and not told:
            where, node, what = net.place(fault)
            yield Finding(
                where,
                found=net.listed(strange),
                wanted="the node itself answers at its address",
                node=node,
                subject=what,
                fix=Fix(
                    "find the other machine with this address (arping) and give one of them another",
                    env=net.pins(cluster),
                    commands=(
                        f"ssh {shlex.quote(strange[0].src)} arping -c 3 {twice_quoted(strange[0].address)}",
                    ),
                ),
            )


def same_machine(cluster: Cluster) -> bool:
    """Whether two names of the list are one machine: then it is that, not a doubled address."""
    ids = [n.boot_id for n in cluster.nodes if "boot_id" not in n.unknown and n.boot_id]
    hosts = [n.hostname for n in cluster.nodes if "hostname" not in n.unknown and n.hostname]
    return len(set(ids)) < len(ids) and len(set(hosts)) < len(hosts)


def are_apart(nodes: Iterable[Node]) -> bool:
    """Whether their cards have no address in common: containers of one machine, or clones of one snapshot."""
    own = [[a.address for i in n.interfaces if is_candidate(i) for a in i.usable_addresses] for n in nodes]
    return all(own) and sum(map(len, own)) == len({address for addresses in own for address in addresses})


@check(problems.VIRTUAL_INTERFACE_CHOSEN, reads=(*READS, "cluster.links"), uses=USES)
def virtual_interface_chosen(cluster: Cluster) -> Iterator[Finding]:
    """One that every peer reaches under an address of its own is fine, whatever it is called."""
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    owned = paths.owners(cluster)
    tried = paths.routed(cluster)
    for node in cluster.nodes:
        by_name: dict[str, list[str]] = {}
        severity: dict[str, Severity] = {}
        for pick in picks(cluster, node):
            interface = node.interface(pick.interface)
            if interface is None or not is_virtual(interface):
                continue
            attempts = [li for (_, dst, a), li in tried.items() if (dst, a) == (node.name, pick.address)]
            alone = len(owned.get(pick.address, [])) == 1
            if alone and attempts and all(li.ok and li.large_packet_ok is not False for li in attempts):
                continue
            who = "Gloo announces it: " if pick.by_gloo else ""
            by_name.setdefault(pick.interface, []).append(who + pick.because)
            if pick.by_gloo or expects_nccl(cluster):
                severity[pick.interface] = "error"
        for name, reasons in by_name.items():
            interface = node.interface(name)
            addresses = ", ".join(a.address for a in interface.addresses[:2]) if interface else ""
            yield Finding(
                f"{node.name} {name}",
                found=f"{name} {addresses} would be used: {'; '.join(dict.fromkeys(reasons))}",
                wanted="a network card that the peers reach",
                node=node.name,
                subject=subject(node, name),
                severity=severity.get(name, "note"),
                fix=Fix(
                    "name the interface the nodes share, and repair the hosts file if the node's own name "
                    "points to a bridge",
                    env=net.pins(cluster),
                ),
            )


@check(
    "slow-interface-chosen",
    reads=(*READS, "cluster.links"),
    uses=(*USES, *verbs.USES, "rdma_ports"),
    severity="warning",
)
def slow_interface_chosen(cluster: Cluster) -> Iterator[Finding]:
    """
    NCCL or Gloo would use a slow interface although a faster one joins all nodes, or one in half duplex.

    Why: they take the first in the kernel's order (or the host name's address); a management
    network of 1 Gbit/s then carries the gradients.

    Fix: name the fast one in `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME`.

    In logs: `NET/Socket : Using [0]eno1` on machines with a faster card.
    """
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    best = paths.best(cluster)
    # Over RDMA the interface carries a few words when the ranks meet, and no data.
    fastest = (best.speed_gbit_s or 0.0) if best and not all_over_rdma(cluster) else 0.0
    # Of an interface to which a path fails, that is what is said.
    in_trouble = {(e.dst, e.interface) for f in paths.faults(cluster) for e in f.edges}
    for node in cluster.nodes:
        chosen = {p.interface: p for p in picks(cluster, node)}
        for name, pick in chosen.items():
            interface = node.interface(name)
            if interface is not None and interface.duplex == "half":
                yield half_duplex(cluster, node, name)
                continue
            speed = interface.speed_gbit_s if interface else None
            slow = speed is not None and speed < MARKED_SLOWER * fastest
            if best and slow and name != best.interfaces[node.name] and (node.name, name) not in in_trouble:
                fast = best.interfaces[node.name]
                yield Finding(
                    f"{node.name} {name}",
                    found=f"{name} at {speed:g} Gbit/s would be used ({pick.because})",
                    wanted=f"{fast} at {fastest:g} Gbit/s, which joins all nodes",
                    node=node.name,
                    subject=subject(node, name),
                    fix=Fix("stay on the fast network", env=net.pins(cluster)),
                )


def all_over_rdma(cluster: Cluster) -> bool:
    """Whether NCCL takes RDMA devices on every node."""
    view = verbs.known_part(cluster)
    return len(view.nodes) == len(cluster.nodes) and all(view.main.values())


def half_duplex(cluster: Cluster, node: Node, name: str) -> Finding:
    """A port that sends or receives, never both: one side of the cable was set by hand."""
    return Finding(
        f"{node.name} {name}",
        found=f"{name} runs half duplex",
        wanted="full duplex",
        node=node.name,
        subject=subject(node, name),
        fix=Fix(
            "let both ends of the cable negotiate",
            env=pins_elsewhere(cluster, node, name),
            commands=(f"ssh {shlex.quote(node.name)} sudo ethtool -s {twice_quoted(name)} autoneg on",),
        ),
    )


def pins_elsewhere(cluster: Cluster, node: Node, name: str) -> dict[str, str]:
    """The variables that keep a job on another interface than this, where there is one."""
    best = paths.best(cluster)
    return net.pins(cluster) if best and best.interfaces.get(node.name) != name else {}


@check("link-speed-below-peers", reads=READS, uses=USES, severity="warning")
def link_speed_below_peers(cluster: Cluster) -> Iterator[Finding]:
    """
    An interface runs slower than the peers' interfaces on the same network.

    Why: a cable, transceiver or port that negotiated down; the slowest link sets the pace of all.

    Fix: reseat or change cable and transceiver, look at the switch port: `ethtool IFNAME`.
    """
    if cluster.is_local:
        return
    for members in paths.shared_subnets(cluster).values():
        speeds = {}
        for name, interface in members.items():
            facts = cluster.node(name).interface(interface)
            if facts and facts.speed_gbit_s and facts.is_up and facts.has_carrier:
                speeds[name] = facts.speed_gbit_s
        usual = max(Counter(speeds.values()).items(), key=lambda kv: (kv[1], kv[0]))[0] if speeds else 0.0
        for name, speed in speeds.items():
            if speed < usual:
                yield Finding(
                    f"{name} {members[name]}",
                    found=f"{speed:g} Gbit/s",
                    wanted=f"{usual:g} Gbit/s, as the peers on this network",
                    node=name,
                    subject=f"interface:{name}/{members[name]}",
                    fix=Fix(
                        "reseat or change cable and transceiver; look at the switch port",
                        commands=(f"ssh {shlex.quote(name)} ethtool {twice_quoted(members[name])}",),
                    ),
                )


@check("mtu-differs", reads=READS, uses=(*USES, *verbs.USES, "rdma_ports"), severity="note")
def mtu_differs(cluster: Cluster) -> Iterator[Finding]:
    """
    Interfaces on one network have different MTUs.

    Why: TCP settles on the smaller one; RDMA and UDP do not, and a router between them drops
    what is too large.

    Fix: the same MTU on every node and switch port of the network.
    """
    holes = {f.network for f in paths.faults(cluster) if f.kind == "black-hole"}
    view = verbs.known_part(cluster)
    over_roce = {n.name: {p.netdev for p in view.roce(n)} for n in view.nodes}
    for network, members in paths.shared_subnets(cluster).items():
        mtus = {}
        for name, interface in members.items():
            facts = cluster.node(name).interface(interface)
            if facts and facts.is_up:
                mtus[name] = facts.mtu_bytes
        usual = max(Counter(mtus.values()).items(), key=lambda kv: (kv[1], kv[0]))[0] if mtus else 0
        odd = [name for name, mtu in mtus.items() if mtu != usual]
        # Of RoCE ports another rule says it: there it is no small matter.
        odd = [name for name in odd if members[name] not in over_roce.get(name, ())]
        if odd and network not in holes and not cluster.is_local:
            yield Finding(
                few(f"{n} {members[n]}" for n in odd),
                found=net.listed(f"{n} {members[n]} {mtus[n]} bytes" for n in odd),
                wanted=f"{usual} bytes, as the others on {network}",
                node=odd[0] if len(odd) == 1 else None,
                subject=f"interface:{odd[0]}/{members[odd[0]]}",
            )


@check("several-interfaces-one-subnet", reads=READS, uses=(*USES, *verbs.USES, "rdma_ports"))
def several_interfaces_one_subnet(cluster: Cluster) -> Iterator[Finding]:
    """
    Interfaces of a node lie in one subnet, and paths to it fail or RoCE ports answer for each other.

    Why: answers leave by one interface whatever the one they were asked on.  Strict filtering by
    reverse path then drops what comes in on the other; and peers learn one port's hardware address
    for all RoCE ports, which so share a single lane.

    Fix: a subnet for each interface, or `net.ipv4.conf.all.rp_filter=2`, `arp_ignore=1` and
    `arp_announce=2` with a routing rule for each address.
    """
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    failing = [e for f in paths.faults(cluster) if f.kind == "ambiguous" for e in f.edges]
    view = verbs.known_part(cluster)
    for node in cluster.nodes:
        ports = {p.netdev for p in view.roce(node)} if node.name in view.main else set()
        yield from answering_for_each_other(node, ports, {e.network for e in failing})
        for network, same in paths.strict_twins(node).items():
            edges = [e for e in failing if e.network == network and node.name in (e.src, e.dst)]
            if not edges:
                continue
            names = ", ".join(i.name for i in same)
            hit = next((e.interface for e in edges if e.dst == node.name), same[-1].name)
            yield Finding(
                f"{node.name} {names}",
                found=f"{names} are all in {network}, with rp_filter 1: {net.listed(edges)}",
                wanted="one interface for a subnet, or loose filtering (rp_filter 2)",
                node=node.name,
                subject=subject(node, hit),
                fix=Fix(
                    "let answers leave by another interface",
                    env=net.pins(cluster),
                    commands=(f"ssh {shlex.quote(node.name)} sudo sysctl -w net.ipv4.conf.all.rp_filter=2",),
                ),
            )


def answering_for_each_other(node: Node, ports: set[str], told: set[str]) -> Iterator[Finding]:
    """
    RoCE ports in one subnet that answer any ARP request for any of them (arp_ignore 0).

    A cluster that lost its rails so, one port of each node carrying all: github.com/NVIDIA/nccl/issues/1109.
    """
    rails: dict[str, list[Interface]] = {}
    for interface in node.interfaces:
        for a in interface.usable_addresses if interface.name in ports else ():
            if a.family == "inet":
                rails.setdefault(paths.subnet(a.address, a.prefix_length), []).append(interface)
    for network, same in rails.items():
        names = list(dict.fromkeys(i.name for i in same))
        if network in told or len(names) < 2 or any(i.arp_ignore != 0 for i in same):
            continue
        settings = "net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
        yield Finding(
            f"{node.name} {few(names)}",
            found=f"the RoCE ports {few(names)} are all in {network}, with arp_ignore 0",
            wanted="a subnet for each rail, or arp_ignore 1 and arp_announce 2",
            node=node.name,
            severity="warning",
            fix=Fix(
                "let every port answer for itself alone",
                commands=(f"ssh {shlex.quote(node.name)} sudo sysctl -w {settings}",),
            ),
        )
