"""
Which IP interfaces NCCL takes, and why.

NCCL `ncclFindInterfaces` (src/misc/socket.cc).  It never asks whether a peer can be
reached: the first interface in the kernel's order wins the bootstrap, and sockets for
data use all that match.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ringup.facts import Address, Interface, NcclAnswer, Node
from ringup.nccl import names

STEERING = ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID")
"""What the choice depends on."""
MAX_INTERFACES = 16
"""MAX_IFS of NCCL's socket transport."""

Version = tuple[int, ...]
ASSUMED: Version = (2, 27, 7)
"""Judged by when a node's NCCL is not known; of the last releases that take interfaces that are down."""
SKIPS_DOWN: Version = (2, 28, 3)
"""From here on interfaces that are not running are skipped, and virbr comes last."""


@dataclass(frozen=True)
class Choice:
    """An interface that is chosen, the address announced on it, and why."""

    interface: str
    address: str
    because: str


def version_of(text: str) -> Version:
    """
    A version as numbers; `ASSUMED` for the empty string or anything unreadable.

    >>> version_of("2.20.5"), version_of("")
    ((2, 20, 5), (2, 27, 7))
    """
    parts = text.split("+")[0].split(".")
    if len(parts) >= 2 and all(p.isdecimal() for p in parts[:3]):
        return tuple(int(p) for p in parts[:3])
    return ASSUMED


def effective(node: Node, env: Mapping[str, str]) -> dict[str, str]:
    """The environment a rank sees on this node: `env` over the node's shell over its nccl.conf."""
    return {**node.nccl_conf, **node.environment, **env}


def asked(node: Node, env: Mapping[str, str]) -> NcclAnswer | None:
    """What NCCL itself said on this node under these settings; None where it was not asked that."""
    told = node.nccl_answer
    if not told.version or "nccl_answer" in node.unknown or not (told.interface or told.errors):
        return None
    now, then = effective(node, env), {**node.nccl_conf, **told.asked_with}
    return told if all(now.get(n, "") == then.get(n, "") for n in STEERING) else None


def bootstrap(node: Node, env: Mapping[str, str]) -> Choice | None:
    """
    Where NCCL's bootstrap (and its out-of-band connections) listen; None when NCCL finds nothing.

    `env` is what will be set beyond what the node's shell already has.  NCCL's own answer counts
    for more than these rules.
    """
    told = asked(node, env)
    if told:
        because = f"NCCL {told.version} was asked on the node"
        return Choice(told.interface, told.address, because) if told.interface else None
    return by_rules(node, env)


def by_rules(node: Node, env: Mapping[str, str]) -> Choice | None:
    """The same, by the rules of NCCL's source alone."""
    environment = effective(node, env)
    version = version_of(node.interpreter.nccl)
    if environment.get("NCCL_COMM_ID"):
        found = tuple(in_subnet_of(node.interfaces, environment["NCCL_COMM_ID"]))[:1]
    else:
        found = interfaces(node.interfaces, environment, version, 1)
    return found[0] if found else None


def sockets(node: Node, env: Mapping[str, str]) -> tuple[Choice, ...]:
    """Every interface that carries data when NCCL uses sockets; `env` as for `bootstrap`."""
    version = version_of(node.interpreter.nccl)
    return interfaces(node.interfaces, effective(node, env), version, MAX_INTERFACES)


def interfaces(
    all_interfaces: Sequence[Interface], environment: Mapping[str, str], version: Version, limit: int
) -> tuple[Choice, ...]:
    """NCCL's `ncclFindInterfaces`: at most `limit`, in the order it would print them."""
    walk = list(addresses(all_interfaces, environment.get("NCCL_SOCKET_FAMILY", ""), version))

    def find(text: str, because: str) -> tuple[Choice, ...]:
        accepted = names.parse(text)
        first: dict[str, Choice] = {}
        for interface, address in walk:
            if accepted.accepts(interface.name) and interface.name not in first:
                first[interface.name] = Choice(interface.name, address.address, because)
        return tuple(first.values())[:limit]

    wanted = environment.get("NCCL_SOCKET_IFNAME", "")
    if len(wanted) > 1:
        return find(wanted, f"NCCL_SOCKET_IFNAME={wanted}")
    found = find("ib", "names that begin with ib go first")
    if not found and environment.get("NCCL_COMM_ID"):
        found = tuple(in_subnet_of(all_interfaces, environment["NCCL_COMM_ID"]))[:1]
    skipped = "^docker,lo,virbr" if version >= SKIPS_DOWN else "^docker,lo"
    steps = [(skipped, "first in the kernel's order"), ("docker", "nothing but docker is left")]
    steps.append(("lo", "nothing but loopback is left"))
    if version >= SKIPS_DOWN:
        steps.append(("virbr", "nothing but virbr is left"))
    for text, because in steps:
        found = found or find(text, because)
    return found


def addresses(
    all_interfaces: Sequence[Interface], family: str, version: Version
) -> Iterator[tuple[Interface, Address]]:
    """
    Addresses in getifaddrs' order: all IPv4 by ifindex, then all IPv6 by ifindex.

    Within one interface the kernel lists global IPv6 addresses before link-local ones.
    """
    wanted = {"AF_INET": "inet", "AF_INET6": "inet6"}.get(family)
    ordered = sorted(all_interfaces, key=lambda i: i.index)
    for kind in ("inet", "inet6"):
        if wanted not in (None, kind):
            continue
        for interface in ordered:
            if version >= SKIPS_DOWN and not (interface.is_up and interface.has_carrier):
                continue
            own = [a for a in interface.addresses if a.family == kind and a.address != "::1"]
            for address in sorted(own, key=lambda a: kind == "inet6" and a.scope == "link"):
                yield interface, address


def in_subnet_of(all_interfaces: Sequence[Interface], comm_id: str) -> Iterator[Choice]:
    """
    Interfaces whose subnet holds the address of NCCL_COMM_ID (`ADDRESS:PORT`, `[ADDRESS]:PORT`).

    Nothing for a host name: what it resolves to is not known here.
    """
    text = comm_id.partition("]")[0][1:] if comm_id.startswith("[") else comm_id.rpartition(":")[0]
    try:
        target = ipaddress.ip_address(text)
    except ValueError:
        return
    for interface, address in addresses(all_interfaces, "", ASSUMED):
        try:
            subnet = ipaddress.ip_network(f"{address.address}/{address.prefix_length}", strict=False)
        except ValueError:
            continue
        if target.version == subnet.version and target in subnet:
            yield Choice(interface.name, address.address, f"its subnet holds NCCL_COMM_ID {text}")


def bootstrap_line(chosen: Choice, version: Version) -> str:
    """The line NCCL prints for it at NCCL_DEBUG=INFO."""
    head = "Bootstrap:" if version >= (2, 24, 0) else "Bootstrap :"
    return f"{head} Using {chosen.interface}:{shown(chosen)}<0>"


def sockets_line(chosen: Sequence[Choice]) -> str:
    """The line NCCL's socket transport prints for the interfaces it uses."""
    devices = " ".join(f"[{i}]{c.interface}:{shown(c)}<0>" for i, c in enumerate(chosen))
    return f"NET/Socket : Using {devices}"


def shown(chosen: Choice) -> str:
    """The address as NCCL prints it: a link-local one with its interface as scope."""
    link_local = chosen.address.lower().startswith(("fe8", "fe9", "fea", "feb"))
    return f"{chosen.address}%{chosen.interface}" if link_local else chosen.address
