"""Networks on which all nodes reach each other by the kernel's routes, as NCCL and Gloo connect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ringup.addresses import subnet, within
from ringup.model import Cluster, Link, Node, once
from ringup.units import grouped

SLOW_FACTOR = 8.0
FAST_MBYTE_S = 1000.0
"""
A network measured SLOW_FACTOR times slower than the fastest ranks after it, whatever its link rate.

The measurement is one short message while all other paths are tried: a smaller factor is noise, and so are
all differences above FAST_MBYTE_S.
"""

LOST_AT_LEAST, LOST_SHARE = 3, 0.1
"""
Connections that retransmitted, and their share of all, from which a network loses packets.

Measured with 20 % of the packets dropped on one side of two hosts: a sixth to a half of all connections.  On
64 healthy hosts that share two CPUs: none of 956 short ones.
"""

KIND_ORDER = {
    "infiniband": 0, "physical": 0, "bond": 0, "vlan": 0,
    "macvlan": 1, "veth": 1, "virtual": 1,
    "bridge": 2, "tunnel": 3, "loopback": 4,
}  # fmt: skip
"""Preferred kinds, bridges and tunnels last; a VLAN ranks like its NIC and above a management port."""


@dataclass(frozen=True)
class Network:
    """One address per node such that every tried pair reached each other, with small and large messages."""

    interfaces: Mapping[str, str]
    """Node -> the name of its interface."""
    addresses: Mapping[str, str]
    family: Literal["inet", "inet6"] = "inet"
    speed_gbit_s: float | None = None
    """The slowest interface's link rate; None if one of them is unknown."""
    mbyte_s: float | None = None
    """Rate of the slowest node's interface, from the large message: only a hint."""


@dataclass(frozen=True)
class Place:
    """An address on a node's interface, and the results of the attempts to it."""

    node: str
    interface: str
    address: str
    tried: tuple[Link, ...] = ()
    failed: tuple[Link, ...] = ()

    @property
    def works(self) -> bool:
        """Every peer that tried it reached it in full."""
        return bool(self.tried) and not self.failed


@once
def routed(cluster: Cluster) -> tuple[Link, ...]:
    """Attempts to an interface's address over the kernel's routes, as NCCL and Gloo make them."""
    tried = (li for li in cluster.links if li.purpose == "interface" and li.bound == "routed")
    return tuple(li for li in tried if li.src != li.dst)


def cut_pairs(cluster: Cluster) -> tuple[tuple[str, str], ...]:
    """(src, dst) if no address of dst answered src at all, in the order of the attempts."""
    answers = grouped(((li.src, li.dst), li.ok) for li in routed(cluster))
    return tuple(pair for pair, answered in answers.items() if not any(answered))


@once
def places(cluster: Cluster) -> dict[str, tuple[Place, ...]]:
    found: dict[str, list[Place]] = {n.name: [] for n in cluster.nodes}
    tried = (li for li in routed(cluster) if li.src in found and li.dst in found)
    for key, links in grouped(((li.dst, li.dst_interface, li.address), li) for li in tried).items():
        failed = tuple(li for li in links if not (li.ok and li.large_packet_ok))
        found[key[0]].append(Place(*key, tuple(links), failed))
    return {name: tuple(rows) for name, rows in found.items()}


@once
def networks(cluster: Cluster) -> tuple[Network, ...]:
    """
    The networks that ranks can use, the best first; () if a node has no working address.

    One for each working address of the head, with the best fitting address of each other node: the same
    subnet, the interface that reaches the head, the same name.  Those that fit on all nodes hide the others.
    """
    if len(cluster.nodes) < 2 or any(n.unreached for n in cluster.nodes):
        return ()
    usable = {name: [p for p in rows if p.works] for name, rows in places(cluster).items()}
    if not all(usable.values()):
        return ()
    paths = _Paths(cluster, {p.address for p in usable[cluster.head.name]})
    found: dict[bool, list[Network]] = {True: [], False: []}
    for first in usable[cluster.head.name]:
        members = [first]
        for node in cluster.nodes[1:]:
            best = max(usable[node.name], key=lambda p: paths.score(first, node, p))
            if is_v6(best.address) != is_v6(first.address):
                break
            members.append(best)
        else:
            fits = all(paths.in_subnet(first, p) or paths.reaches(first, p) for p in members[1:])
            found[fits].append(_network(cluster, paths, members))
    return rank(cluster, found[True] or found[False])


def is_v6(address: str) -> bool:
    return ":" in address


class _Paths:
    """The interfaces that routed packets took to the head's addresses `near`; rates; the head's subnets."""

    def __init__(self, cluster: Cluster, near: Collection[str]) -> None:
        addresses = [a for i in cluster.head.interfaces for a in i.addresses]
        self._subnets = {a.address: subnet(a.address, a.prefix_length) for a in addresses}
        self._taken: set[tuple[str, str, str]] = set()
        """(src, interface of src, address reached)."""
        self.rates: dict[tuple[str, str], float] = {}
        """(node, interface) -> its best rate in either direction, in MB/s: one stall does not count."""
        for li in cluster.links:
            if li.bound == "routed" and li.address in near:
                self._taken.add((li.src, li.src_interface, li.address))
            if li.bound == "routed" and li.mbyte_s:
                for end in ((li.src, li.src_interface), (li.dst, li.dst_interface)):
                    self.rates[end] = max(self.rates.get(end, 0.0), li.mbyte_s)

    def in_subnet(self, first: Place, place: Place) -> bool:
        """Whether the prefix of the head's address contains the other address; False if unknown."""
        return within(place.address, self._subnets.get(first.address, ""))

    def reaches(self, first: Place, place: Place) -> bool:
        """Whether the node used this interface to reach the head's address."""
        return (place.node, place.interface, first.address) in self._taken

    def score(self, first: Place, node: Node, place: Place) -> float:
        """How well an address fits a network with the head at `first`; the address family counts most."""
        near = self.in_subnet(first, place)
        score = 100.0 * (is_v6(place.address) == is_v6(first.address)) + 10.0 * near
        # With two interfaces in one subnet, the kernel uses the first for all: there the name is more useful.
        # On a routed fabric the path that packets took is.
        if self.reaches(first, place):
            score += 1 if near else 5
        if place.interface == first.interface:
            score += 4 if near else 2
        interface = node.interface(place.interface)
        if interface is not None:
            score -= KIND_ORDER[interface.kind] / 10
            score += min((interface.speed_gbit_s or 0.0) / 10000, 0.09)
        return score


def _network(cluster: Cluster, paths: _Paths, members: list[Place]) -> Network:
    own = {n.name: n.interface(p.interface) for n, p in zip(cluster.nodes, members, strict=True)}
    speeds = [i.speed_gbit_s if i else None for i in own.values()]
    known = [s for s in speeds if s is not None]
    rates = [r for p in members if (r := paths.rates.get((p.node, p.interface)))]
    return Network(
        interfaces={p.node: p.interface for p in members},
        addresses={p.node: p.address for p in members},
        family="inet6" if is_v6(members[0].address) else "inet",
        speed_gbit_s=min(known) if len(known) == len(speeds) else None,
        mbyte_s=min(rates, default=None),
    )


def rank(cluster: Cluster, found: list[Network]) -> tuple[Network, ...]:
    """Best first: kind, measured far slower, link rate, IPv4, the head's own order of interfaces."""
    best = min(max((n.mbyte_s for n in found if n.mbyte_s), default=0.0), FAST_MBYTE_S)
    order = {i.name: k for k, i in enumerate(cluster.head.interfaces)}

    def key(net: Network) -> tuple[float, ...]:
        own = [n.interface(net.interfaces[n.name]) for n in cluster.nodes]
        kinds = [KIND_ORDER[i.kind] if i else 1 for i in own]
        slow = net.mbyte_s is not None and net.mbyte_s * SLOW_FACTOR < best
        place = order.get(net.interfaces[cluster.head.name], len(order))
        return (max(kinds), slow, -(net.speed_gbit_s or 0.0), net.family == "inet6", place)

    return tuple(sorted(found, key=key))


@once
def port_filters(cluster: Cluster) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """(src, dst, address) -> its open ports if others do not answer: packet filters go by port."""
    by_route = (li for li in cluster.links if li.bound == "routed" and not li.answered_by)
    tried = [li for li in by_route if li.error not in ("port held", "own address")]
    closed = {(li.src, li.dst, li.address) for li in tried if not li.ok}
    ways = (((li.src, li.dst, li.address), li.port) for li in tried if closed and li.ok)
    return {key: tuple(sorted(ports)) for key, ports in grouped(ways).items() if key in closed}


@once
def repeats(cluster: Cluster) -> dict[tuple[str, str, str], tuple[int, int]]:
    """
    (src, dst, address) -> connections that retransmitted, and all that worked; only if any retransmitted.

    Short connections count as much as long ones: a large message leaves the kernel in a few big pieces, which
    a packet filter drops as a whole.
    """
    through = [li for li in cluster.links if li.ok and li.bound == "routed" and li.segments]
    again = Counter((li.src, li.dst, li.address) for li in through if li.retransmitted)
    every = Counter((li.src, li.dst, li.address) for li in through if again)
    return {key: (count, every[key]) for key, count in again.items()}
