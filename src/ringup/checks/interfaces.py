"""Interfaces: down, with a duplicate address, virtual, slow, of unequal MTU, and names that match none."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ringup.addresses import subnet
from ringup.checks import network_setup, paths
from ringup.checks.paths import is_candidate, is_card, is_virtual
from ringup.checks.software import most_common_number
from ringup.checks.verbs import View
from ringup.model import Cluster, Interface, Node, once
from ringup.nccl import interface_choice
from ringup.nccl.interface_choice import Choice
from ringup.network.predictions import picks, predicted, uses_nccl
from ringup.rules import Finding, Place, at, at_each, check, ssh
from ringup.units import grouped, summarize_names

READS = paths.READS
MARKED_SLOWER = 0.5
"""An interface below this share of the best one's rate should not carry data."""


def subject(node: Node, name: str) -> str:
    return f"interface:{node.name}/{name}"


def at_interface(node: Node, name: str) -> Place:
    return at(node, name, subject(node, name))


@check("interface-down", reads=READS)
def interface_down(cluster: Cluster, view: View) -> Iterator[Finding]:
    """Down or without carrier, while others are up on that network or under that name."""
    for node in () if cluster.is_local else cluster.nodes:
        picked = {p.interface for p in picks(cluster, node)}
        for interface in node.interfaces:
            is_wanted = interface.name in picked or (node.name, interface.name) in missed(cluster)
            if not interface.is_linked and is_card(interface) and is_wanted:
                state = "down" if not interface.is_up else "up, but without carrier"
                addresses = ", ".join(a.address for a in interface.usable_addresses) or "no address"
                yield at_interface(node, interface.name).finding(
                    found=f"{state} ({addresses})",
                    wanted="up, as on the other nodes",
                    severity="note" if is_left_out(cluster, view, node, interface.name) else None,
                    run=f"sudo ip link set dev {shlex.quote(interface.name)} up",
                    env=network_setup.pins(cluster),
                )


def is_left_out(cluster: Cluster, view: View, node: Node, name: str) -> bool:
    """Whether the job uses this interface neither now nor if it were up, by its variables."""
    if name in {p.interface for p in picks(cluster, node)} | {p.netdev for p in view.allowed(node)}:
        return False
    wanted = predicted(cluster).of(node).environment.get("NCCL_SOCKET_IFNAME", "")
    is_refused = len(wanted) > 1 and not interface_choice.parse_names(wanted).accepts(name)
    return is_refused or cluster.job.backend == "gloo" or over_rdma(cluster, view)


@once
def missed(cluster: Cluster) -> set[tuple[str, str]]:
    """Node and interface that should have a link: others have it on this network or for this name."""
    found: set[tuple[str, str]] = set()
    for members in paths.shared_subnets(cluster).values():
        if any(card.is_linked for card in cards_of(cluster, members).values()):
            found |= set(members.items())
    every = [(n.name, i) for n in cluster.nodes for i in n.interfaces]
    usable = Counter(i.name for _, i in every if i.is_linked and i.usable_addresses)
    others = len(cluster.nodes) - 1
    return found | {(n, i.name) for n, i in every if 1 < others == usable[i.name] and not i.usable_addresses}


def cards_of(cluster: Cluster, members: Mapping[str, str]) -> dict[str, Interface]:
    """Node -> its interface on a network."""
    return {name: i for name, own in members.items() if (i := cluster.node(name).interface(own)) is not None}


@check("same-address-on-two-nodes", reads=READS, scope="machines")
def same_address_on_two_nodes(cluster: Cluster, view: View) -> Iterator[Finding]:
    """Physical NICs only: the same docker0 on every node is harmless while no job uses it."""
    if same_machine(cluster):
        return
    doubled = False
    for address, who in paths.owners(cluster).items():
        cards = [(n, name) for n, name in who if (i := n.interface(name)) is not None and is_candidate(i)]
        names = list(dict.fromkeys(n.name for n, _ in who))
        if len(names) > 1 and cards:
            doubled = True
            # A BMC's USB NIC and a DPU's console have one address on every host.
            is_usual = len(names) == len(cluster.nodes) > 2 and len({name for _, name in who}) == 1
            is_unused = all(is_left_out(cluster, view, n, name) for n, name in cards)
            yield at_each(who, subject(*cards[-1])).finding(
                found=f"{summarize_names(names)} {'both' if len(names) == 2 else 'all'} have {address}",
                wanted="a different address on every node",
                severity=None if not is_unused else "note" if is_usual else "warning",
                fix="keep jobs off this interface, if it leads to each node's BMC or DPU"
                if is_usual
                else "take the address away from the node it does not belong to",
                commands=[ssh(n, f"ip -brief address show dev {shlex.quote(i)}") for n, i in who[:2]],
                env=network_setup.pins(cluster),
            )
    for fault in () if doubled else network_setup.of_kind(cluster, "duplicate"):
        strange = [e for e in fault.edges if e.error in ("another node answered", "stranger answered")]
        if strange:
            yield network_setup.place(fault).finding(
                found=network_setup.listed(strange),
                wanted="the node itself answers at its address",
                fix="find the other machine with this address (arping) and give one of them another",
                commands=[ssh(strange[0].src, f"arping -c 3 {shlex.quote(strange[0].address)}")],
                env=network_setup.pins(cluster),
            )


def same_machine(cluster: Cluster) -> bool:
    """Whether two names of the list are one machine: then the address is not a duplicate."""
    ids = [n.boot_id for n in cluster.nodes if n.boot_id]
    hosts = [n.hostname for n in cluster.nodes if n.hostname]
    return len(set(ids)) < len(ids) and len(set(hosts)) < len(hosts)


def are_apart(nodes: Iterable[Node]) -> bool:
    """Whether their NICs have no address in common: containers of one machine, or clones of one snapshot."""
    own = [[a.address for i in n.interfaces if is_candidate(i) for a in i.usable_addresses] for n in nodes]
    return all(own) and sum(map(len, own)) == len({address for addresses in own for address in addresses})


@check("virtual-interface-chosen", reads=READS, scope="machines")
def virtual_interface_chosen(cluster: Cluster) -> Iterator[Finding]:
    """An interface that every peer reaches at an address of its own is fine, whatever its name."""
    owned, routed = paths.owners(cluster), paths.routed(cluster)
    attempts = grouped(((dst, address), link) for (_, dst, address), link in routed.items())

    def is_fine(node: Node, pick: Choice) -> bool:
        interface = node.interface(pick.interface)
        if interface is None or not is_virtual(interface):
            return True
        tried = attempts.get((node.name, pick.address), [])
        works = bool(tried) and all(li.works for li in tried)
        return works and len({n.name for n, _ in owned.get(pick.address, [])}) == 1

    for node in cluster.nodes:
        by_name = grouped((p.interface, p) for p in picks(cluster, node) if not is_fine(node, p))
        for name, chosen in by_name.items():
            interface = node.interface(name)
            addresses = ", ".join(a.address for a in interface.addresses[:2]) if interface else ""
            reasons = [("Gloo announces it: " if p.by_gloo else "") + p.because for p in chosen]
            surely = uses_nccl(cluster) == "yes" or any(p.by_gloo for p in chosen)
            yield at_interface(node, name).finding(
                found=f"{name} {addresses} would be used: {'; '.join(dict.fromkeys(reasons))}",
                wanted="a NIC that peers can reach",
                severity="error" if surely else "note",
                fix="name the interface the nodes share, and repair the hosts file if the node's own name "
                "points to a bridge",
                env=network_setup.pins(cluster),
            )


@check("slow-interface-chosen", reads=READS, scope="machines", severity="warning")
def slow_interface_chosen(cluster: Cluster, view: View) -> Iterator[Finding]:
    """
    NCCL or Gloo would use a slow interface although a faster one joins all nodes, or one in half duplex.

    Why: they take the first in kernel order (or the host name's address); a management
    network of 1 Gbit/s then carries the gradients.
    Fix: name the fast one in `NCCL_SOCKET_IFNAME` and `GLOO_SOCKET_IFNAME`.
    In logs: `NET/Socket : Using [0]eno1` on machines with a faster card.
    """
    best = paths.best(cluster)
    fastest = (best.speed_gbit_s or 0.0) if best and not over_rdma(cluster, view) else 0.0
    # If a path to the interface fails, another rule reports it.
    in_trouble = {(e.dst, e.interface) for f in paths.faults(cluster) for e in f.edges}
    for node in cluster.nodes:
        chosen = {p.interface: p for p in picks(cluster, node)}
        for name, pick in chosen.items():
            interface = node.interface(name)
            if interface is not None and interface.duplex == "half":
                yield at_interface(node, name).finding(
                    found=f"{name} runs half duplex",
                    wanted="full duplex",
                    fix="let both ends of the cable negotiate",
                    run=f"sudo ethtool -s {shlex.quote(name)} autoneg on",
                    env=pins_elsewhere(cluster, node, name),
                )
                continue
            speed = interface.speed_gbit_s if interface else None
            slow = speed is not None and speed < MARKED_SLOWER * fastest
            if best and slow and name != best.interfaces[node.name] and (node.name, name) not in in_trouble:
                fast = best.interfaces[node.name]
                yield at_interface(node, name).finding(
                    found=f"{name} at {speed:g} Gbit/s would be used ({pick.because})",
                    wanted=f"{fast} at {fastest:g} Gbit/s, which joins all nodes",
                    env=network_setup.pins(cluster),
                )


def over_rdma(cluster: Cluster, view: View) -> bool:
    """Whether interfaces carry only a few messages at the rendezvous, and no data."""
    return len(view.nodes) == len(cluster.nodes) and all(view.main.values())


def pins_elsewhere(cluster: Cluster, node: Node, name: str) -> dict[str, str]:
    """Variables that keep a job on a different interface than this one, if there is one."""
    best = paths.best(cluster)
    return network_setup.pins(cluster) if best and best.interfaces.get(node.name) != name else {}


@check("link-speed-below-peers", reads=READS, scope="machines", severity="warning")
def link_speed_below_peers(cluster: Cluster, view: View) -> Iterator[Finding]:
    """
    An interface runs slower than the peers' interfaces on the same network.

    Why: a cable, transceiver or port that negotiated down; the slowest link sets the pace of all.
    Fix: reseat or change cable and transceiver, look at the switch port: `ethtool IFNAME`.
    """
    carriers = {(n.name, p.netdev) for n in view.nodes for p in view.main[n.name]}
    if not over_rdma(cluster, view):
        carriers |= {(n.name, p.interface) for n in cluster.nodes for p in picks(cluster, n)}
        carriers |= {*best.interfaces.items()} if (best := paths.best(cluster)) else set()
    for members in paths.shared_subnets(cluster).values():
        cards = cards_of(cluster, members)
        is_used = not carriers.isdisjoint(members.items())
        speeds = {n: i.speed_gbit_s for n, i in cards.items() if i.speed_gbit_s and i.is_linked}
        usual = most_common_number(speeds.values())
        for name, speed in speeds.items():
            if speed < usual:
                yield at_interface(cluster.node(name), members[name]).finding(
                    found=f"{speed:g} Gbit/s",
                    wanted=f"{usual:g} Gbit/s, as the peers on this network",
                    severity=None if is_used else "note",
                    run=f"ethtool {shlex.quote(members[name])}",
                )


@check("mtu-differs", reads=READS, scope="machines", severity="note")
def mtu_differs(cluster: Cluster, view: View) -> Iterator[Finding]:
    """
    Interfaces on one network have different MTUs.

    Why: TCP settles on the smaller one; RDMA and UDP do not, and a router between them drops
    larger packets.
    Fix: set the same MTU on every node and switch port of the network.
    """
    holes = {f.network for f in paths.faults(cluster) if f.kind == "black-hole"}
    over_roce = {n.name: {p.netdev for p in view.roce(n)} for n in view.nodes}
    for network, members in paths.shared_subnets(cluster).items():
        mtus = {name: i.mtu_bytes for name, i in cards_of(cluster, members).items() if i.is_up}
        usual = most_common_number(mtus.values())
        # Another rule reports RoCE ports, for which this matters more.
        odd = [n for n, mtu in mtus.items() if mtu != usual and members[n] not in over_roce.get(n, ())]
        if odd and network not in holes:
            yield at_each(((n, members[n]) for n in odd), f"interface:{odd[0]}/{members[odd[0]]}").finding(
                found=network_setup.listed(f"{n} {members[n]} {mtus[n]} bytes" for n in odd),
                wanted=f"{usual} bytes, as the others on {network}",
            )


@check("several-interfaces-one-subnet", reads=READS, scope="machines")
def several_interfaces_one_subnet(cluster: Cluster, view: View) -> Iterator[Finding]:
    """
    Interfaces of a node lie in one subnet, and paths to it fail or RoCE ports answer for each other.

    Why: replies leave through one interface, whichever interface the request came in on.  Strict filtering by
    reverse path then drops packets that come in on the other; peers learn one port's hardware address
    for all RoCE ports, which so share a single lane.
    Fix: use a subnet for each interface, or set `net.ipv4.conf.all.rp_filter=2`, `arp_ignore=1` and
    `arp_announce=2` with a routing rule for each address.
    """
    ambiguous = [e for f in network_setup.of_kind(cluster, "ambiguous") for e in f.edges]
    failing = grouped(((end, e.network), e) for e in ambiguous for end in dict.fromkeys((e.src, e.dst)))
    networks = {network for _, network in failing}
    for node in cluster.nodes:
        ports = {p.netdev for p in view.roce(node)} if node.name in view.main else set()
        yield from answering_for_each_other(node, ports, networks)
        for network, same in paths.strict_twins(node).items():
            edges = failing.get((node.name, network), [])
            if not edges:
                continue
            names = ", ".join(i.name for i in same)
            hit = next((e.interface for e in edges if e.dst == node.name), same[-1].name)
            yield at(node, names, subject=subject(node, hit)).finding(
                found=f"{names} are all in {network}, with rp_filter 1: {network_setup.listed(edges)}",
                wanted="one interface for a subnet, or loose filtering (rp_filter 2)",
                run="sudo sysctl -w net.ipv4.conf.all.rp_filter=2",
                env=network_setup.pins(cluster),
            )


def answering_for_each_other(node: Node, ports: set[str], failing: set[str]) -> Iterator[Finding]:
    """RoCE ports in one subnet that answer ARP for each other (github.com/NVIDIA/nccl/issues/1109)."""
    addresses = [(i, a) for i in node.interfaces if i.name in ports for a in i.usable_addresses]
    rails = grouped((subnet(a.address, a.prefix_length), i) for i, a in addresses if a.family == "inet")
    for network, same in rails.items():
        names = list(dict.fromkeys(i.name for i in same))
        if network in failing or len(names) < 2 or any(i.arp_ignore != 0 for i in same):
            continue
        yield at(node, summarize_names(names)).finding(
            found=f"the RoCE ports {summarize_names(names)} are all in {network}, with arp_ignore 0",
            wanted="a subnet for each rail, or arp_ignore 1 and arp_announce 2",
            severity="warning",
            run="sudo sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        )
