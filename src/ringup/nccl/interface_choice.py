"""
The IP interfaces that NCCL takes, and why: `ncclFindInterfaces` (src/misc/socket.cc).

The bootstrap takes the first in the kernel's order, reachable or not; sockets for data take all that match.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ringup.addresses import subnet, within
from ringup.model import Address, Interface, NcclAnswer, Node
from ringup.units import first_of_each

STEERING = ("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID")
"""Variables that decide the choice."""
FIRST = "first in kernel order"
MAX_INTERFACES = 16
"""MAX_IFS of NCCL's socket transport."""

Version = tuple[int, ...]
ASSUMED: Version = (2, 27, 7)
"""Used if a node's NCCL version is unknown; one of the last releases that take interfaces that are down."""
SKIPS_DOWN: Version = (2, 28, 3)
"""From this release on, interfaces that are not running are skipped, and virbr comes last."""


@dataclass(frozen=True)
class Choice:
    """A chosen interface, the address that NCCL or Gloo announces, and the reason."""

    interface: str
    address: str
    because: str
    by_gloo: bool = field(default=False, repr=False)

    @property
    def is_link_local(self) -> bool:
        """Whether the address is in fe80::/10: peers need the interface's own index to use it."""
        return self.address.lower().startswith(("fe8", "fe9", "fea", "feb"))


ANY = -1
_NAME_LENGTH = 63
"""NCCL cuts names at MAX_IF_NAME_SIZE - 1 characters."""


@dataclass(frozen=True)
class Filter:
    """A parsed list: `negate` from a leading `^`, `exact` from a leading `=`, in that order only."""

    items: tuple[tuple[str, int], ...]
    """Each name of a list, with the port it applies to (`ANY` for all)."""
    negate: bool = False
    exact: bool = False

    def accepts(self, name: str, port: int = ANY) -> bool:
        """Whether NCCL would take this interface (or device port); an empty list takes all."""
        fits = (self.names(item, name) and (only == port or ANY in (only, port)) for item, only in self.items)
        return (not self.items or any(fits)) != self.negate

    def names(self, item: str, name: str) -> bool:
        """Whether an item of the list means this name, whatever `negate` says."""
        return name == item if self.exact else name.startswith(item)


@functools.lru_cache(maxsize=1024)
def parse_names(text: str, limit: int = 16) -> Filter:
    """
    The filter of NCCL_SOCKET_IFNAME, NCCL_IB_HCA or NCCL_OOB_NET_IFNAME.

    NCCL `parseStringList` and `matchIfList` (src/misc/utils.cc), 2.18 to 2.30.  NCCL silently ignores items
    beyond `limit`: 16 for interfaces, 32 for NCCL_IB_HCA (16 before 2.18.5).

    >>> parse_names("^docker,lo").accepts("docker0"), parse_names("=eth1").accepts("eth10")
    (False, False)
    >>> parse_names("eth0, eth1").accepts("eth1")   # blanks are not trimmed
    False
    """
    rest = text.removeprefix("^")
    items = []
    for part in rest.removeprefix("=").split(","):
        # In 2.30.7 a further `:` is rail and plane; the port is read like C's atoi, empty is any.
        name, port, *_ = [*part.split(":"), ""]
        match = re.match(r"\s*[+-]?\d+", port)
        if name:
            items.append((name[:_NAME_LENGTH], int(match[0]) if match else 0 if port else ANY))
    return Filter(tuple(items[:limit]), text.startswith("^"), rest.startswith("="))


def version_of(text: str) -> Version:
    """
    A version as numbers; `ASSUMED` for an empty or unreadable string.

    >>> version_of("2.20.5"), version_of("")
    ((2, 20, 5), (2, 27, 7))
    """
    parts = text.split("+")[0].split(".")
    is_known = len(parts) >= 2 and all(p.isdecimal() for p in parts[:3])
    return tuple(map(int, parts[:3])) if is_known else ASSUMED


def effective(node: Node, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a rank on this node: `env` over the node's shell over its nccl.conf."""
    return {**node.nccl_conf, **node.environment, **env}


def asked(node: Node, env: Mapping[str, str]) -> NcclAnswer | None:
    """NCCL's own answer on this node for these settings; None if it was queried with others."""
    answer = node.nccl_answer
    if not answer.version or "nccl_answer" in node.unknown or not (answer.interface or answer.errors):
        return None
    now, then = effective(node, env), {**node.nccl_conf, **answer.asked_with}
    return answer if all(now.get(n, "") == then.get(n, "") for n in STEERING) else None


def first(node: Node, environment: Mapping[str, str], version: Version) -> Choice | None:
    """The bootstrap's interface in this environment, only by the rules of NCCL's source."""
    if environment.get("NCCL_COMM_ID"):
        return next(in_subnet_of(node.interfaces, environment["NCCL_COMM_ID"]), None)
    return next(iter(interfaces(node.interfaces, environment, version, 1)), None)


def interfaces(
    all_interfaces: Sequence[Interface], environment: Mapping[str, str], version: Version, limit: int
) -> tuple[Choice, ...]:
    """NCCL's `ncclFindInterfaces`: at most `limit`, in the order of its log."""
    walk = list(addresses(all_interfaces, environment.get("NCCL_SOCKET_FAMILY", ""), version))

    def find(text: str, because: str) -> tuple[Choice, ...]:
        accepted = parse_names(text)
        named = ((address.label or i.name, i, address) for i, address in walk)
        own = first_of_each(
            (name, (i.name, address.address)) for name, i, address in named if accepted.accepts(name)
        )
        return tuple(Choice(*first, because) for first in own.values())[:limit]

    wanted = environment.get("NCCL_SOCKET_IFNAME", "")
    if len(wanted) > 1:
        return find(wanted, f"NCCL_SOCKET_IFNAME={wanted}")
    found = find("ib", "names that begin with ib go first")
    if not found and environment.get("NCCL_COMM_ID"):
        found = tuple(in_subnet_of(all_interfaces, environment["NCCL_COMM_ID"]))[:1]
    last = {"docker": "docker", "lo": "loopback"} | ({"virbr": "virbr"} if version >= SKIPS_DOWN else {})
    found = found or find(f"^{','.join(last)}", FIRST)
    for text, what in last.items():
        found = found or find(text, f"nothing but {what} is left")
    return found


def addresses(
    all_interfaces: Sequence[Interface], family: str, version: Version
) -> Iterator[tuple[Interface, Address]]:
    """Addresses in getifaddrs' order: all IPv4 by ifindex, then IPv6, each interface's global ones first."""
    usable = (i for i in all_interfaces if version < SKIPS_DOWN or i.is_linked)
    ordered = sorted(usable, key=lambda i: i.index)
    for kind in {"AF_INET": ("inet",), "AF_INET6": ("inet6",)}.get(family, ("inet", "inet6")):
        for interface in ordered:
            own = [a for a in interface.addresses if a.family == kind and a.address != "::1"]
            for address in sorted(own, key=lambda a: kind == "inet6" and a.scope == "link"):
                yield interface, address


def in_subnet_of(all_interfaces: Sequence[Interface], comm_id: str) -> Iterator[Choice]:
    """Interfaces in the subnet of NCCL_COMM_ID (`ADDRESS:PORT`, `[ADDRESS]:PORT`); none for a host name."""
    text = comm_id.partition("]")[0][1:] if comm_id.startswith("[") else comm_id.rpartition(":")[0]
    for interface, address in addresses(all_interfaces, "", ASSUMED):
        if within(text, subnet(address.address, address.prefix_length)):
            yield Choice(interface.name, address.address, f"its subnet holds NCCL_COMM_ID {text}")


def bootstrap_line(chosen: Choice, version: Version) -> str:
    head = "Bootstrap:" if version >= (2, 24, 0) else "Bootstrap :"
    return f"{head} Using {chosen.interface}:{shown(chosen)}<0>"


def sockets_line(chosen: Sequence[Choice]) -> str:
    """The log line of NCCL's socket transport for its interfaces."""
    devices = " ".join(f"[{i}]{c.interface}:{shown(c)}<0>" for i, c in enumerate(chosen))
    return f"NET/Socket : Using {devices}"


def shown(chosen: Choice) -> str:
    """The address in NCCL's format: a link-local one with its interface as scope."""
    return f"{chosen.address}%{chosen.interface}" if chosen.is_link_local else chosen.address
