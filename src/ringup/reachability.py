"""
What the tried links add up to: pure functions, read by the rules and the plan.

NCCL and Gloo have every rank listen on its chosen interface's address and every peer connect
to it plainly.  So only routed attempts count here; those bound to a source or a device
explain a failure and prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import ip_address, ip_interface
from typing import Literal

from ringup.facts import Cluster, Interface, Link, Node

SLOW_FACTOR = 8.0
FAST_MBYTE_S = 1000.0
"""
A network measured SLOW_FACTOR times slower than the fastest comes after it, whatever its link rate says.

The measure is one short message while everything else is tried too: less than the factor is
noise, and so is every difference above FAST_MBYTE_S.
"""

KIND_ORDER = {
    "infiniband": 0, "physical": 0, "bond": 0, "vlan": 0,
    "macvlan": 1, "veth": 1, "virtual": 1,
    "bridge": 2, "tunnel": 3, "loopback": 4,
}  # fmt: skip
"""
What ranks meet on sooner; a tunnel or a bridge only where nothing else joins all.

A VLAN of a fast card is as good as the card: it must not lose to a management port for being one.
"""


@dataclass(frozen=True)
class Network:
    """One address per node such that every tried pair reached each other, small and large."""

    interfaces: Mapping[str, str]
    """Node -> interface, as that node names it."""
    addresses: Mapping[str, str]
    family: Literal["inet", "inet6"] = "inet"
    speed_gbit_s: float | None = None
    """The slowest interface's link rate; None where one of them is unknown."""
    mbyte_s: float | None = None
    """Rate of the slowest node's interface, by the large message: a hint only."""


@dataclass(frozen=True)
class Place:
    """An address of a node on one of its interfaces, and what trying it showed."""

    node: str
    interface: str
    address: str
    tried: tuple[Link, ...] = ()
    failed: tuple[Link, ...] = ()

    @property
    def works(self) -> bool:
        """Every peer that tried it reached it in full."""
        return bool(self.tried) and not self.failed


@dataclass(frozen=True)
class Excluded:
    """An address no network can be built on, and the attempts that say so."""

    node: str
    interface: str
    address: str
    failed: tuple[Link, ...]
    tried: int

    @property
    def because(self) -> str:
        """
        The failures in a line.

        >>> link = Link("node1", "node0", "", "em1", "10.12.5.64", 4, ok=False, error="timed out")
        >>> Excluded("node0", "em1", "10.12.5.64", (link,), 1).because
        'node1 -> 10.12.5.64: timed out'
        """
        if not self.failed:
            return f"{self.address} was tried by nobody"
        by_error: dict[str, list[str]] = {}
        for link in self.failed:
            by_error.setdefault(link.error or "failed", []).append(link.src)
        return "; ".join(f"{few(srcs)} -> {self.address}: {error}" for error, srcs in by_error.items())


@dataclass(frozen=True)
class Path:
    """One address of `dst` as `src` reached it, routed."""

    src_interface: str
    dst_interface: str
    address: str
    small: bool
    large: bool
    error: str = ""


@dataclass(frozen=True)
class PortFilter:
    """On one address some of the ports tried answer and others do not."""

    src: str
    dst: str
    address: str
    open_ports: tuple[int, ...]
    closed_ports: tuple[int, ...]
    errors: tuple[str, ...]
    """What the closed ones answered, each word once."""
    rendezvous_open: tuple[int, ...] = field(default=())
    """Those of the open ports that are candidates for the rendezvous."""


@dataclass(frozen=True)
class Loss:
    """What had to be sent again from `src` to one address of `dst`, over all attempts that came through."""

    src: str
    dst: str
    src_interface: str
    dst_interface: str
    address: str
    segments: int
    retransmitted: int
    affected: int
    """Connections that had to send something again."""
    connections: int


def few(names: Iterable[str], most: int = 4) -> str:
    """
    Names in a line, the rest counted.

    >>> few(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def works_in_full(link: Link) -> bool:
    """Small and large came through."""
    return link.ok and bool(link.large_packet_ok)


def routed(cluster: Cluster) -> tuple[Link, ...]:
    """The attempts that count: to an interface's address, as NCCL and Gloo make them."""
    return tuple(
        li for li in cluster.links if li.purpose == "interface" and li.bound == "routed" and li.src != li.dst
    )


def paths(cluster: Cluster) -> dict[tuple[str, str], tuple[Path, ...]]:
    """(src, dst) -> what src reached of dst, in the order tried."""
    found: dict[tuple[str, str], list[Path]] = {}
    for li in routed(cluster):
        found.setdefault((li.src, li.dst), []).append(
            Path(li.src_interface, li.dst_interface, li.address, li.ok, works_in_full(li), li.error)
        )
    return {pair: tuple(rows) for pair, rows in found.items()}


def cut_pairs(cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """(src, dst) where no address of dst answered src at all."""
    return tuple(pair for pair, rows in paths(cluster).items() if not any(p.small for p in rows))


@lru_cache(maxsize=8)
def _places(nodes: tuple[str, ...], links: tuple[Link, ...]) -> dict[str, tuple[Place, ...]]:
    found: dict[str, dict[tuple[str, str], Place]] = {n: {} for n in nodes}
    for li in links:
        if li.src in found and li.dst in found:
            rows = found[li.dst]
            key = (li.dst_interface, li.address)
            before = rows.get(key, Place(li.dst, *key))
            failed = before.failed if works_in_full(li) else (*before.failed, li)
            rows[key] = replace(before, tried=(*before.tried, li), failed=failed)
    return {n: tuple(rows.values()) for n, rows in found.items()}


def places(cluster: Cluster) -> dict[str, tuple[Place, ...]]:
    """Node -> its addresses that were tried."""
    return _places(tuple(n.name for n in cluster.nodes), routed(cluster))


def excluded(cluster: Cluster) -> tuple[Excluded, ...]:
    """Every address that some peer could not reach in full."""
    return tuple(
        Excluded(p.node, p.interface, p.address, p.failed, len(p.tried))
        for rows in places(cluster).values()
        for p in rows
        if not p.works
    )


def networks(cluster: Cluster, wanted: Mapping[str, str] | None = None) -> tuple[Network, ...]:
    """
    What the ranks can meet on, the best first; () when a node has no address that works.

    One network for each working address of the head, completed by each other node's address
    that belongs to it best: the same subnet, the interface by which that node reaches the
    head, the same name.  Where some fit so throughout, those that do not are left out.
    `wanted` (node -> interface) leaves only those interfaces.
    """
    wanted = wanted or {}
    usable: dict[str, list[Place]] = {}
    for name, rows in places(cluster).items():
        usable[name] = [p for p in rows if p.works and wanted.get(name) in (None, p.interface)]
    if len(cluster.nodes) < 2 or not all(usable.values()):
        return ()
    ways = ways_taken(cluster)
    near = Neighbours(cluster.head)
    found: dict[bool, list[Network]] = {True: [], False: []}
    for first in usable[cluster.head.name]:
        members, fits = [first], True
        for node in cluster.nodes[1:]:
            scores = [belongs(near, ways, first, node, p) for p in usable[node.name]]
            best = usable[node.name][scores.index(max(scores))]
            if is_v6(best.address) != is_v6(first.address):
                break
            members.append(best)
            by = (node.name, best.interface, first.address)
            fits = fits and (near.share(first, best) or by in ways.taken)
        if len(members) == len(cluster.nodes):
            found[fits].append(network(cluster, ways, members))
    return rank(cluster, found[True] or found[False])


def is_v6(address: str) -> bool:
    """Family of an address."""
    return ":" in address


@dataclass(frozen=True)
class Ways:
    """How routed packets left, and how fast."""

    taken: frozenset[tuple[str, str, str]]
    """(src, interface of src, address reached)."""
    rates: Mapping[tuple[str, str], float]
    """
    (node, interface) -> the best rate into or out of it, in MB/s.

    One stall is no slow card; all slow is one.
    """


def ways_taken(cluster: Cluster) -> Ways:
    """From every routed attempt; of a large cluster many nodes try nothing on the head but the rendezvous."""
    taken = set()
    rates: dict[tuple[str, str], float] = {}
    for li in cluster.links:
        if li.bound == "routed":
            taken.add((li.src, li.src_interface, li.address))
            for end in ((li.src, li.src_interface), (li.dst, li.dst_interface)):
                rates[end] = max(rates.get(end, 0.0), li.mbyte_s or 0.0)
    return Ways(frozenset(taken), rates)


class Neighbours:
    """Which addresses a node has on its own links, by its prefixes."""

    def __init__(self, node: Node) -> None:
        self.own = {}
        for interface in node.interfaces:
            for a in interface.addresses:
                with suppress(ValueError):
                    self.own[a.address] = ip_interface(f"{a.address}/{a.prefix_length}").network

    def share(self, own: Place, other: Place) -> bool:
        """Whether the prefix of `own` holds the other address; false where it is not known."""
        network = self.own.get(own.address)
        if network is None:
            return False
        try:
            return ip_address(other.address) in network
        except ValueError:
            return False


def belongs(neighbours: Neighbours, ways: Ways, first: Place, node: Node, place: Place) -> float:
    """How well an address fits a network that has the head at `first`; the family above all."""
    near = neighbours.share(first, place)
    score = 100.0 * (is_v6(place.address) == is_v6(first.address)) + 10.0 * near
    # Of two interfaces in one subnet the kernel leaves by the first, whichever was meant: there
    # the name tells more.  On a routed fabric the way taken does.
    if (node.name, place.interface, first.address) in ways.taken:
        score += 1 if near else 5
    if place.interface == first.interface:
        score += 4 if near else 2
    interface = node.interface(place.interface)
    if interface is not None:
        score -= KIND_ORDER[interface.kind] / 10
        score += min((interface.speed_gbit_s or 0.0) / 10000, 0.09)
    return score


def network(cluster: Cluster, ways: Ways, members: list[Place]) -> Network:
    """The members as one network, as fast as its slowest part."""
    own = {n.name: n.interface(p.interface) for n, p in zip(cluster.nodes, members, strict=True)}
    speeds = [i.speed_gbit_s if i else None for i in own.values()]
    known = [s for s in speeds if s is not None]
    rates = [r for p in members if (r := ways.rates.get((p.node, p.interface)))]
    return Network(
        interfaces={p.node: p.interface for p in members},
        addresses={p.node: p.address for p in members},
        family="inet6" if is_v6(members[0].address) else "inet",
        speed_gbit_s=min(known) if len(known) == len(speeds) else None,
        mbyte_s=min(rates) if rates else None,
    )


def rank(cluster: Cluster, found: list[Network]) -> tuple[Network, ...]:
    """Best first: kind, measured far slower, link rate, IPv4, the head's own order of interfaces."""
    best = min(max((n.mbyte_s for n in found if n.mbyte_s), default=0.0), FAST_MBYTE_S)
    order = {i.name: k for k, i in enumerate(cluster.head.interfaces)}

    def key(net: Network) -> tuple[float, ...]:
        kinds = [kind_of(n.interface(net.interfaces[n.name])) for n in cluster.nodes]
        slow = net.mbyte_s is not None and net.mbyte_s * SLOW_FACTOR < best
        place = order.get(net.interfaces[cluster.head.name], len(order))
        return (max(kinds), slow, -(net.speed_gbit_s or 0.0), net.family == "inet6", place)

    return tuple(sorted(found, key=key))


def kind_of(interface: Interface | None) -> int:
    """Place of an interface's kind in KIND_ORDER; an unknown one with the plain ones."""
    return KIND_ORDER[interface.kind] if interface else 1


def port_filters(cluster: Cluster) -> tuple[PortFilter, ...]:
    """
    Addresses on which ports are treated differently: a packet filter.

    All purposes count, for a filter knows none; a port that the head could not bind does not.
    """
    rows: dict[tuple[str, str, str], list[Link]] = {}
    for li in cluster.links:
        if li.bound == "routed" and li.error not in ("port held", "own address") and not li.answered_by:
            rows.setdefault((li.src, li.dst, li.address), []).append(li)
    found = []
    for (src, dst, address), links in rows.items():
        closed = [li for li in links if not li.ok]
        opened = [li for li in links if li.ok]
        if closed and opened:
            found.append(
                PortFilter(
                    src,
                    dst,
                    address,
                    tuple(sorted(li.port for li in opened)),
                    tuple(sorted(li.port for li in closed)),
                    tuple(dict.fromkeys(li.error for li in closed)),
                    tuple(sorted(li.port for li in opened if li.purpose == "rendezvous")),
                )
            )
    return tuple(found)


def losses(cluster: Cluster) -> tuple[Loss, ...]:
    """
    Addresses to which something had to be sent again, the worst share first.

    A single one can be chance.  Short connections count as much as the long ones: a large
    message leaves the kernel in a few big pieces, which a packet filter drops whole.
    """
    rows: dict[tuple[str, str, str], list[Link]] = {}
    for li in cluster.links:
        if li.ok and li.bound == "routed" and li.segments:
            rows.setdefault((li.src, li.dst, li.address), []).append(li)
    found = [
        Loss(
            links[0].src,
            links[0].dst,
            links[0].src_interface,
            links[0].dst_interface,
            links[0].address,
            segments=sum(li.segments for li in links),
            retransmitted=sum(li.retransmitted for li in links),
            affected=sum(li.retransmitted > 0 for li in links),
            connections=len(links),
        )
        for links in rows.values()
    ]
    return tuple(sorted((x for x in found if x.retransmitted), key=lambda x: -x.affected / x.connections))
