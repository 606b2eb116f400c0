"""Failing paths of the pair tests: each has one kind of fault; equal kinds on a network are one fault."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple

from ringup.addresses import has_virtual_name, subnet, within
from ringup.model import Cluster, Interface, Link, Node, once
from ringup.network.predictions import picks
from ringup.network.reachability import Network, networks, port_filters
from ringup.rules import Skipped
from ringup.units import grouped

READS = ("interfaces",)

STRICT = 1
"""rp_filter: a packet is dropped unless its return route uses the interface it came in on (RFC 3704)."""

Kind = Literal["down", "duplicate", "ambiguous", "filtered", "black-hole", "one-way", "unreachable"]


def is_virtual(interface: Interface) -> bool:
    """Whether this is a bridge, a tunnel or a veth; a veth with an address counts as a container's NIC."""
    if interface.kind in ("bridge", "tunnel", "virtual"):
        return True
    if interface.kind == "veth" and not interface.usable_addresses:
        return True
    return interface.kind not in ("physical", "bond", "infiniband") and has_virtual_name(interface.name)


def is_card(interface: Interface) -> bool:
    """Not a bridge, tunnel, loopback or part of a bond: an interface that should have a link."""
    return interface.kind != "loopback" and not interface.master and not is_virtual(interface)


def is_candidate(interface: Interface) -> bool:
    """Whether ranks could use it: a separate NIC with an address that peers can use."""
    return bool(interface.usable_addresses) and is_card(interface)


class Edge(NamedTuple):
    """A failing path from `src` to an address of `dst`; packets are lost from `cut[0]` to `cut[1]`."""

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


class Fault(NamedTuple):
    """One fault, with all paths it explains; `node` is "" if either end may be at fault."""

    kind: Kind
    network: str
    edges: tuple[Edge, ...]
    node: str

    @property
    def interface(self) -> str:
        """The blamed node's interface, "" if there are several or it is unknown."""
        names = {e.interface for e in self.edges if e.dst == self.node}
        names |= {e.src_interface for e in self.edges if e.src == self.node and e.src_interface}
        return names.pop() if len(names) == 1 else ""


@once
def tested(cluster: Cluster) -> Cluster:
    return cluster.only(n for n in cluster.nodes if n.name not in cluster.pairs_unknown)


def untested(cluster: Cluster) -> Iterator[Skipped]:
    """Why a rule about paths has no result for some nodes, or for any."""
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    for node in cluster.nodes:
        if node.name in cluster.pairs_unknown:
            yield Skipped("", node.name, f"pairs: {cluster.pairs_unknown[node.name]}")
    if not cluster.pairs_unknown and not any(li.purpose == "interface" for li in cluster.links):
        yield Skipped("", None, "pairs: no node was tried from another")


@once
def shared_subnets(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Subnet -> node -> interface, for subnets in which several nodes have a usable NIC."""
    found: dict[str, dict[str, str]] = {}
    for node, card in ((n, i) for n in cluster.nodes for i in n.interfaces if is_candidate(i)):
        for a in card.usable_addresses:
            found.setdefault(subnet(a.address, a.prefix_length), {}).setdefault(node.name, card.name)
    return {net: members for net, members in found.items() if net and len(members) > 1}


@once
def owners(cluster: Cluster) -> dict[str, list[tuple[Node, str]]]:
    """Address -> every node and interface that has it; without loopback and link-local addresses."""
    cards = [(n, i) for n in cluster.nodes for i in n.interfaces if i.kind != "loopback"]
    return grouped((a.address, (n, i.name)) for n, i in cards for a in i.usable_addresses)


@once
def faults(cluster: Cluster) -> tuple[Fault, ...]:
    """All faults that the pair tests found on interfaces a job would use."""
    cluster = tested(cluster)
    if cluster.is_local or len(cluster.nodes) < 2:
        return ()
    # A firewall belongs to a node, whatever the network; other faults belong to a network.
    groups = grouped(((e.kind, e.dst if e.kind == "filtered" else e.network), e) for e in edges(cluster))
    found = [Fault(kind, where, tuple(es), blamed(es)) for (kind, where), es in groups.items()]
    return tuple(found) if networks(cluster) else tuple(merged(found))


def merged(found: list[Fault]) -> Iterator[Fault]:
    """Faults of one kind and the same directions are one if no network works: a firewall, not a cable."""
    groups = grouped(
        ((f.kind, frozenset(e.cut for e in f.edges if f.kind != "unreachable")), f) for f in found
    )
    for (kind, _), same in groups.items():
        all_edges = tuple(e for fault in same for e in fault.edges)
        yield Fault(kind, same[0].network if len(same) == 1 else "", all_edges, blamed(all_edges))


def blamed(bad: list[Edge] | tuple[Edge, ...]) -> str:
    """The one node that all lost packets were going to (or else coming from); "" if there is none."""
    for end in (1, 0):
        ends = {e.cut[end] for e in bad}
        if len(ends) == 1:
            return ends.pop()
    return ""


def edges(cluster: Cluster) -> Iterator[Edge]:
    """Failing paths to addresses that the job would use, each with its kind."""
    view = view_of(cluster)
    for (src, dst, address), link in view.tried.items():
        if link.works and (src, dst, address) not in view.filtered:
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


@once
def routed(cluster: Cluster) -> dict[tuple[str, str, str], Link]:
    """(node, peer, address) -> the best attempt that used the kernel's routes, as NCCL and Gloo do."""
    found: dict[tuple[str, str, str], Link] = {}
    names = {n.name for n in cluster.nodes}
    for link in cluster.links:
        if link.purpose == "interface" and link.bound == "routed" and link.src in names and link.dst in names:
            key = (link.src, link.dst, link.address)
            if key not in found or (link.ok and not found[key].ok):
                found[key] = link
    return found


class View:
    """Data that explain a failing path, each computed once per cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.tried, self.subnets = cluster, routed(cluster), shared_subnets(cluster)
        self.subnets_of = grouped((name, net) for net, members in self.subnets.items() for name in members)

    @cached_property
    def between(self) -> dict[tuple[str, str], list[Link]]:
        return grouped(((link.src, link.dst), link) for link in self.tried.values())

    @cached_property
    def filtered(self) -> set[tuple[str, str, str]]:
        """Paths on which only ports below the kernel's ephemeral range answer."""
        known = (n.ports.ephemeral_first for n in self.cluster.nodes if "ports" not in n.unknown)
        first = min(known, default=32768)
        return {key for key, ports in port_filters(self.cluster).items() if max(ports) < first}

    @cached_property
    def ambiguous(self) -> dict[str, dict[str, list[Interface]]]:
        return {n.name: strict_twins(n) for n in self.cluster.nodes}

    def network_of(self, node: str, address: str) -> str:
        """The shared subnet of a node's address, "" if no other node is in it."""
        return next((net for net in self.subnets_of.get(node, ()) if within(address, net)), "")

    def concerns(self, link: Link, network: str) -> bool:
        """Whether a job would use it: both nodes share the network, or NCCL or Gloo takes the interface."""
        node = self.cluster.node(link.dst)
        interface = node.interface(link.dst_interface)
        if interface is None or is_virtual(interface):
            return False
        picked = (p.interface for p in picks(self.cluster, node))
        return link.src in self.subnets.get(network, {}) or link.dst_interface in picked

    def kind(self, link: Link, network: str) -> Kind:
        """The explanation of a failing path, the most specific one first."""
        members = self.subnets.get(network, {})
        own, peers = (self.cluster.node(n).interface(members.get(n, "")) for n in (link.src, link.dst))
        if any(interface and not interface.is_linked for interface in (own, peers)):
            return "down"
        wrong_peer = ("own address", "another node answered", "stranger answered")
        addresses = {link.address, *(a.address for a in (own.usable_addresses if own else ()))}
        if link.error in wrong_peer or any(len(owners(self.cluster).get(a, ())) > 1 for a in addresses):
            return "duplicate"
        if network in self.ambiguous.get(link.src, ()) or network in self.ambiguous.get(link.dst, ()):
            return "ambiguous"
        if (link.src, link.dst, link.address) in self.filtered:
            return "filtered"
        if link.ok:
            return "black-hole"
        reverse = self.between.get((link.dst, link.src), ()) if network else ()
        back = [other for other in reverse if within(other.address, network)]
        # Both directions fail, yet one side saw the request and its answer was lost: one direction is cut.
        errors = {link.error, *(other.error for other in back)}
        is_one_way = any(other.ok for other in back) or (back and errors == {"timed out", "answer lost"})
        return "one-way" if is_one_way else "unreachable"


view_of = once(View)


def strict_twins(node: Node) -> dict[str, list[Interface]]:
    """Subnet -> this node's NICs in it, if there are several and one of them filters strictly."""
    members: dict[str, list[Interface]] = {}
    for card in node.interfaces:
        if is_candidate(card) and card.is_linked:
            for net in {subnet(a.address, a.prefix_length) for a in card.usable_addresses} - {""}:
                members.setdefault(net, []).append(card)
    twins = {net: same for net, same in members.items() if len(same) > 1}
    return {net: same for net, same in twins.items() if any(i.rp_filter == STRICT for i in same)}


@once
def proven(cluster: Cluster) -> tuple[Network, ...]:
    """The networks on which all tested nodes reach each other, best first."""
    return networks(tested(cluster))


def best(cluster: Cluster) -> Network | None:
    """The fastest network on which all pairs work, or None."""
    return next(iter(proven(cluster)), None)
