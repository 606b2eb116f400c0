"""
The schedule of the pair tests: which node tries which address.

Subnets order the attempts and add some; every address of a peer is also tried unbound, as NCCL and Gloo do.
"""

from __future__ import annotations

import random
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Literal

from ringup.model import DEFAULT_PORT, Interface, Job, LinkPurpose, Node

ALL_PAIRS_MAX_NODES = 16
"""In a larger cluster every node tries only ring neighbours and doubling distances."""
ADDRESSES_PER_INTERFACE = 4
ADDRESSES_PER_NODE = 32
EPHEMERAL_PORTS = 8
PATIENCE_S = 3.6
MINOR_PATIENCE_S = 1.5
"""Seconds for bridges without a physical port: no job should use them, but they are tested and shown."""
LARGE_BYTES = 65536
LARGE_BYTES_FEW = 262144
"""Bytes of the message for up to FEW_NODES nodes: above a rate limiter's burst, so the rate is useful."""
FEW_NODES = 4
WAYS_TO_EXPLAIN = 3

NARROW_PORTS = 100
"""A smaller range of ports is too narrow to choose from."""


@dataclass(frozen=True)
class Endpoint:
    node: str
    interface: str
    address: str
    prefix_length: int
    minor: bool


@dataclass(frozen=True)
class Way:
    """A further way to open the same connection, tried after a failure, or always if `always`."""

    bound: Literal["source", "device"]
    value: str
    interface: str
    always: bool = False


@dataclass(frozen=True)
class Target:
    src: str
    endpoint: Endpoint
    port: int
    purpose: LinkPurpose
    patience_s: float
    large_bytes: int = 0
    ways: tuple[Way, ...] = ()


def is_minor(node: Node, interface: Interface) -> bool:
    """Whether it is a bridge for virtual machines or containers (docker0), without an uplink (br-ex)."""
    leads_out = any(r.destination == "default" and r.interface == interface.name for r in node.routes)
    if interface.kind != "bridge" or leads_out:
        return False
    real = {"physical", "bond", "vlan", "infiniband"}
    return not any(i.master == interface.name and i.kind in real for i in node.interfaces)


def endpoints(node: Node) -> tuple[Endpoint, ...]:
    """Every address of every interface that is up, bounded; a `--local` node has only its own."""
    if node.host.local:
        return (Endpoint(node.name, "lo", node.host.address or "127.0.0.1", 8, False),)
    found = [
        Endpoint(node.name, interface.name, a.address, a.prefix_length, is_minor(node, interface))
        for interface in node.interfaces
        if interface.is_up
        for a in interface.usable_addresses[:ADDRESSES_PER_INTERFACE]
    ]
    found.sort(key=lambda e: e.minor)
    return tuple(found[:ADDRESSES_PER_NODE])


def partners(names: Sequence[str]) -> dict[str, list[str]]:
    """
    The nodes that each node tries: all, or neighbours in a ring at distances 1, 2, 4, ... both ways.

    >>> partners(["a", "b", "c"])["b"]
    ['a', 'c']
    """
    if (count := len(names)) <= ALL_PAIRS_MAX_NODES:
        return {n: [m for m in names if m != n] for n in names}
    steps = [2**k for k in range(count.bit_length()) if 2**k <= count // 2]
    found = {}
    for i, name in enumerate(names):
        places = [(i + s) % count for s in steps] + [(i - s) % count for s in steps]
        found[name] = [names[p] for p in dict.fromkeys(places) if p != i]
    return found


def describe(count: int) -> str:
    """A description of the schedule; "" when every pair is tried."""
    if count <= ALL_PAIRS_MAX_NODES:
        return ""
    each = len(partners([str(i) for i in range(count)])["0"])
    return (
        f"{each} of {count - 1} peers tried by each node, at distances 1, 2, 4, ... in the list both ways, "
        "every interface; and every node the rendezvous on the head"
    )


def ephemeral_ports(nodes: Sequence[Node], dice: random.Random) -> list[int]:
    """One port in each eighth of the nodes' common ephemeral range; none is reserved anywhere."""
    first = max(n.ports.ephemeral_first for n in nodes)
    last = min(n.ports.ephemeral_last for n in nodes)
    if last - first < 4 * EPHEMERAL_PORTS:
        return []
    reserved = {p for n in nodes for p in n.ports.reserved}
    width = (last - first + 1) // EPHEMERAL_PORTS
    found = []
    for i in range(EPHEMERAL_PORTS):
        low = first + i * width
        free = [p for p in dice.sample(range(low, low + width), min(width, 16)) if p not in reserved]
        found += free[:1]
    return found


def rendezvous_ports(head: Node, job: Job, dice: random.Random, taken: Sequence[int]) -> list[int]:
    """The requested port first, its neighbours, two below the ephemeral range, two inside it."""
    first, last = head.ports.ephemeral_first, head.ports.ephemeral_last
    found = [job.port or DEFAULT_PORT, DEFAULT_PORT, DEFAULT_PORT + 1, DEFAULT_PORT + 2]
    for low, high in ((10000, min(29000, first)), (first, last)):
        if high - low > 64:
            found += dice.sample(range(low, high), 2)
    unusable = {*taken, *head.ports.reserved} - {job.port}
    return list(dict.fromkeys(p for p in found if p not in unusable))


def meeting_port(head: Node, dice: random.Random, taken: Container[int]) -> int:
    """The port all nodes listen on: in the ephemeral range, or just outside it if that is narrow."""
    first, last = head.ports.ephemeral_first, head.ports.ephemeral_last
    low = max(1024, min(first, 65535 - NARROW_PORTS))
    high = min(max(last, low + NARROW_PORTS), 65535)
    return next(p for p in iter(lambda: dice.randint(low, high), 0) if p not in taken)


def ways(target: Endpoint, own: Sequence[Endpoint]) -> tuple[Way, ...]:
    """
    Further ways to the target that give more information.

    If several own interfaces are in its subnet, each is tried as a source at once, because the kernel's
    choice shows only one.  Other ways only explain a failure.
    """
    same = [e for e in own if (":" in e.address) == (":" in target.address) and not e.minor]
    address = ip_address(target.address)
    near = [e for e in same if address in ip_interface(f"{e.address}/{e.prefix_length}").network]
    always = len({e.interface for e in near}) > 1
    ordered = near + [e for e in same if e not in near]
    sources = [Way("source", e.address, e.interface, always and e in near) for e in ordered[:WAYS_TO_EXPLAIN]]
    devices = [Way("device", i, i) for i in dict.fromkeys(e.interface for e in ordered)]
    return (*sources, *devices[:WAYS_TO_EXPLAIN])


def targets(
    nodes: Sequence[Node],
    ready: Mapping[str, tuple[Endpoint, ...]],
    ports: Mapping[tuple[str, str], int],
    ephemeral: Mapping[str, Sequence[int]],
    rendezvous: Sequence[int],
) -> dict[str, list[Target]]:
    """
    The targets of each node.

    `ready`: the listening nodes with their addresses; `ports`: (node, address) -> port; `ephemeral`: each
    node's test ports in the ephemeral range; `rendezvous`: the ports on which the head listens.
    """
    names = [n.name for n in nodes if n.name in ready]
    few = len(names) <= FEW_NODES
    large = LARGE_BYTES_FEW if few else LARGE_BYTES
    head = nodes[0].name
    found: dict[str, list[Target]] = {}
    for turn, (src, peers) in enumerate(partners(names).items()):
        own = ready[src]
        mine = {e.address for e in own}
        rows: list[Target] = []
        for dst in peers:
            for place, end in enumerate(ready[dst]):
                minor = end.minor or end.address in mine
                other = () if minor or len(names) > ALL_PAIRS_MAX_NODES else ways(end, own)
                patience = MINOR_PATIENCE_S if minor else PATIENCE_S
                if (dst, end.address) in ports:
                    port = ports[dst, end.address]
                    rows.append(Target(src, end, port, "interface", patience, large, other))
                if not minor:
                    spread = ephemeral.get(dst, ())
                    if not few:
                        spread = share(spread, 2 if len(names) <= ALL_PAIRS_MAX_NODES else 1, turn + place)
                    rows += [Target(src, end, p, "ephemeral", PATIENCE_S) for p in spread]
        found[src] = rows
        if src != head and head in ready:
            candidates = rendezvous if len(names) <= ALL_PAIRS_MAX_NODES else rendezvous[:4]
            usable = [e for e in ready[head] if not e.minor and e.address not in mine]
            rows += [Target(src, e, p, "rendezvous", PATIENCE_S) for e in usable for p in candidates]
    return found


def share(ports: Sequence[int], count: int, turn: int) -> list[int]:
    """
    Some of the ports, different ones at every turn.

    >>> share([1, 2, 3, 4], 2, 1), share([1, 2, 3, 4], 2, 2), share([], 2, 0)
    ([3, 4], [1, 2], [])
    """
    if not ports:
        return []
    return [ports[(turn * count + k) % len(ports)] for k in range(min(count, len(ports)))]
