"""
What the pair tests say, each failure explained once.

Every failing path between two nodes is put down to one kind of fault, and faults of one
kind on one network are one `Fault`: the rules in `net` only give them words.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ringup.checks import picks
from ringup.facts import Cluster, Interface, Link, Node
from ringup.reachability import Network, networks, port_filters
from ringup.rules import Skipped

READS = ("interfaces",)
USES = (*picks.USES, "ports")

STRICT = 1
"""rp_filter: a packet is dropped unless the way back leads out of the interface it came in by (RFC 3704)."""

Kind = Literal["down", "duplicate", "ambiguous", "filtered", "black-hole", "one-way", "unreachable"]


@dataclass(frozen=True)
class Edge:
    """A path that fails: `src` trying an address of `dst`; packets are lost from `cut[0]` to `cut[1]`."""

    src: str
    dst: str
    interface: str
    address: str
    network: str
    kind: Kind
    error: str
    cut: tuple[str, str]
    src_interface: str = ""

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst} {self.interface} {self.address}: {self.error}"


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, with all edges it explains; `node` is "" when it may be either end."""

    kind: Kind
    network: str
    edges: tuple[Edge, ...]
    node: str

    @property
    def interface(self) -> str:
        """The blamed node's interface, "" when there are several or it is not known."""
        names = {e.interface for e in self.edges if e.dst == self.node}
        names |= {e.src_interface for e in self.edges if e.src == self.node and e.src_interface}
        return names.pop() if len(names) == 1 else ""


@lru_cache(maxsize=4096)
def subnet(address: str, prefix_length: int) -> str:
    """The network an address belongs to, as text; "" for what is no address."""
    try:
        return str(ipaddress.ip_network(f"{address}/{prefix_length}", strict=False))
    except ValueError:
        return ""


def tested(cluster: Cluster) -> Cluster:
    """The part of the cluster about which the pair tests say something."""
    return cluster.only(n for n in cluster.nodes if n.name not in cluster.pairs_unknown)


def untested(cluster: Cluster) -> Iterator[Skipped]:
    """Why a rule about paths says nothing of some nodes, or of any."""
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    for node in cluster.nodes:
        if node.name in cluster.pairs_unknown:
            yield Skipped("", node.name, f"pairs: {cluster.pairs_unknown[node.name]}")
    if not cluster.pairs_unknown and not any(li.purpose == "interface" for li in cluster.links):
        yield Skipped("", None, "pairs: no node was tried from another")


def shared_subnets(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Subnet -> node -> interface, for subnets in which several nodes have a card that could be used."""
    found: dict[str, dict[str, str]] = {}
    for node in cluster.nodes:
        for interface in node.interfaces:
            if picks.is_candidate(interface):
                for a in interface.usable_addresses:
                    found.setdefault(subnet(a.address, a.prefix_length), {}).setdefault(
                        node.name, interface.name
                    )
    return {net: members for net, members in found.items() if net and len(members) > 1}


def owners(cluster: Cluster) -> dict[str, list[tuple[Node, str]]]:
    """Address -> every node and interface that has it; loopback and link-local ones left out."""
    found: dict[str, list[tuple[Node, str]]] = {}
    for node in cluster.nodes:
        for interface in node.interfaces:
            if interface.kind != "loopback":
                for address in interface.usable_addresses:
                    found.setdefault(address.address, []).append((node, interface.name))
    return found


def faults(cluster: Cluster) -> tuple[Fault, ...]:
    """Everything the pair tests found wrong on interfaces a job would use."""
    cluster = tested(cluster)
    if cluster.is_local or len(cluster.nodes) < 2:
        return ()
    groups: dict[tuple[Kind, str], list[Edge]] = {}
    for edge in edges(cluster):
        # A firewall belongs to a node whatever the network; the rest belongs to a network.
        where = edge.dst if edge.kind == "filtered" else edge.network
        groups.setdefault((edge.kind, where), []).append(edge)
    found = [Fault(kind, where, tuple(es), blamed(es)) for (kind, where), es in groups.items()]
    return tuple(found) if networks(cluster) else tuple(merged(found))


def merged(found: list[Fault]) -> Iterator[Fault]:
    """Faults of one kind and the same directions are one when no network is left: a wall, not a cable."""
    groups: dict[tuple[Kind, frozenset[tuple[str, str]]], list[Fault]] = {}
    for fault in found:
        cuts = frozenset(e.cut for e in fault.edges) if fault.kind != "unreachable" else frozenset()
        groups.setdefault((fault.kind, cuts), []).append(fault)
    for (kind, _), same in groups.items():
        all_edges = tuple(e for fault in same for e in fault.edges)
        yield Fault(kind, same[0].network if len(same) == 1 else "", all_edges, blamed(all_edges))


def blamed(bad: list[Edge] | tuple[Edge, ...]) -> str:
    """The one node that every lost packet was going to (or else coming from); "" when there is none."""
    for end in (1, 0):
        ends = {e.cut[end] for e in bad}
        if len(ends) == 1:
            return ends.pop()
    return ""


def edges(cluster: Cluster) -> Iterator[Edge]:
    """Failing paths to addresses the job would use or could meet on, each with its kind."""
    view = View(cluster)
    for (src, dst, address), link in view.tried.items():
        if link.ok and link.large_packet_ok is not False and (src, dst, address) not in view.filtered:
            continue
        network = view.network_of(dst, address)
        if not view.concerns(link, network):
            continue
        lost_back = link.error in ("answer lost", "large answer lost")
        yield Edge(
            src=src,
            dst=dst,
            interface=link.dst_interface,
            address=address,
            network=network or f"{dst}/{link.dst_interface}",
            kind=view.kind(link, network),
            error=link.error or "only low ports answer",
            cut=(dst, src) if lost_back else (src, dst),
            src_interface=view.subnets.get(network, {}).get(src, "") or link.src_interface,
        )


def routed(cluster: Cluster) -> dict[tuple[str, str, str], Link]:
    """The attempt as NCCL and Gloo make it, for each node and address of a peer; the best one counts."""
    found: dict[tuple[str, str, str], Link] = {}
    names = {n.name for n in cluster.nodes}
    for link in cluster.links:
        if link.purpose == "interface" and link.bound == "routed" and {link.src, link.dst} <= names:
            key = (link.src, link.dst, link.address)
            if key not in found or (link.ok and not found[key].ok):
                found[key] = link
    return found


@lru_cache(maxsize=65536)
def _within(address: str, network: str) -> bool:
    try:
        net, own = ipaddress.ip_network(network), ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return own.version == net.version and own in net


class View:
    """What the explanation of one failing path looks at, worked out once for a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.nodes = {n.name: n for n in cluster.nodes}
        self.subnets = shared_subnets(cluster)
        self.tried = routed(cluster)
        self.between: dict[tuple[str, str], list[Link]] = {}
        for link in self.tried.values():
            self.between.setdefault((link.src, link.dst), []).append(link)
        self.picked = {n.name: {p.interface for p in picks.picks(cluster, n)} for n in cluster.nodes}
        self.filtered = {
            (f.src, f.dst, f.address) for f in port_filters(cluster) if low_only(f.open_ports, cluster)
        }
        self.doubled = {a for a, who in owners(cluster).items() if len(who) > 1}
        self.ambiguous = {n.name: strict_twins(n) for n in cluster.nodes}

    def network_of(self, node: str, address: str) -> str:
        """The shared subnet an address of a node lies in, "" when it is that node's alone."""
        found = (net for net, members in self.subnets.items() if node in members and _within(address, net))
        return next(found, "")

    def concerns(self, link: Link, network: str) -> bool:
        """Whether a job would care: a network both are on, or an interface NCCL or Gloo takes there."""
        interface = self.nodes[link.dst].interface(link.dst_interface)
        if interface is None or picks.is_virtual(interface):
            return False
        return link.dst_interface in self.picked[link.dst] or link.src in self.subnets.get(network, {})

    def kind(self, link: Link, network: str) -> Kind:
        """The one explanation of a failing path, the most exact first."""
        if any(self.is_down(name, network) for name in (link.src, link.dst)):
            return "down"
        wrong_peer = ("own address", "another node answered", "stranger answered")
        if link.error in wrong_peer or self.is_doubled(link, network):
            return "duplicate"
        if network in self.ambiguous.get(link.src, ()) or network in self.ambiguous.get(link.dst, ()):
            return "ambiguous"
        if (link.src, link.dst, link.address) in self.filtered:
            return "filtered"
        if link.ok:
            return "black-hole"
        return "one-way" if self.is_one_way(link, network) else "unreachable"

    def is_doubled(self, link: Link, network: str) -> bool:
        """Whether the address that is tried, or one of those it is tried from, is another node's as well."""
        own = self.nodes[link.src].interface(self.subnets.get(network, {}).get(link.src, ""))
        return not self.doubled.isdisjoint(
            {link.address, *(a.address for a in (own.usable_addresses if own else ()))}
        )

    def is_down(self, node: str, network: str) -> bool:
        """Whether the node's own interface on this network is down."""
        interface = self.nodes[node].interface(self.subnets.get(network, {}).get(node, ""))
        return interface is not None and not (interface.is_up and interface.has_carrier)

    def is_one_way(self, link: Link, network: str) -> bool:
        """Whether packets pass the other way on the same network."""
        back = [
            other
            for other in self.between.get((link.dst, link.src), ())
            if network and _within(other.address, network)
        ]
        # Both fail, yet one side saw the request and its answer got lost: one direction is cut.
        errors = {link.error, *(other.error for other in back)}
        return any(other.ok for other in back) or (bool(back) and errors == {"timed out", "answer lost"})


def strict_twins(node: Node) -> dict[str, list[Interface]]:
    """Subnet -> this node's cards in it, where there are several and one of them filters strictly."""
    members: dict[str, list[Interface]] = {}
    for interface in node.interfaces:
        if picks.is_candidate(interface) and interface.is_up and interface.has_carrier:
            for net in {subnet(a.address, a.prefix_length) for a in interface.usable_addresses}:
                members.setdefault(net, []).append(interface)
    return {
        net: same
        for net, same in members.items()
        if net and len(same) > 1 and any(i.rp_filter == STRICT for i in same)
    }


def low_only(open_ports: tuple[int, ...], cluster: Cluster) -> bool:
    """Whether the only ports that answer are low ones, which the kernel never gives out by itself."""
    first = min((n.ports.ephemeral_first for n in cluster.nodes if "ports" not in n.unknown), default=32768)
    return bool(open_ports) and all(port < first for port in open_ports)


def proven(cluster: Cluster) -> tuple[Network, ...]:
    """The networks that join all nodes that could be tested, best first."""
    return networks(tested(cluster))


def best(cluster: Cluster) -> Network | None:
    """The fastest network every pair reached, or None."""
    return next(iter(proven(cluster)), None)
