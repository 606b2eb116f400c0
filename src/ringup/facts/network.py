"""A node's interfaces, routes, names and listening ports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ringup.facts.system import Process

InterfaceKind = Literal[
    "physical", "loopback", "bridge", "veth", "bond", "vlan", "tunnel", "infiniband", "macvlan", "virtual"
]
"""`physical` has a device behind it in sysfs; `virtual` is whatever else the kernel made."""


@dataclass(frozen=True)
class Address:
    """One address of an interface."""

    address: str
    prefix_length: int
    family: Literal["inet", "inet6"] = "inet"
    scope: str = "global"


@dataclass(frozen=True)
class Interface:
    """
    One network interface, as the kernel shows it.

    `index` is the kernel's ifindex: NCCL and Gloo walk interfaces in that order.
    `speed_gbit_s` is None where the kernel has no trustworthy figure (no device behind it).
    """

    name: str
    index: int
    kind: InterfaceKind
    is_up: bool
    has_carrier: bool
    mtu_bytes: int
    speed_gbit_s: float | None = None
    mac: str = ""
    driver: str = ""
    master: str = ""
    addresses: tuple[Address, ...] = ()
    rp_filter: int = 0
    duplex: str = ""
    """ "full", "half" or "unknown" as the kernel has it, "" where it has none."""
    arp_ignore: int | None = None
    """0: it answers ARP requests for addresses of any interface; None where it was not told."""
    arp_announce: int | None = None

    @property
    def usable_addresses(self) -> tuple[Address, ...]:
        """Addresses a peer can be told: not loopback, not link-local."""
        return tuple(a for a in self.addresses if a.scope == "global")


@dataclass(frozen=True)
class Route:
    """One line of the routing table; `destination` is a prefix such as "10.0.0.0/24" or "default"."""

    destination: str
    interface: str
    gateway: str = ""
    source: str = ""
    metric: int = 0


@dataclass(frozen=True)
class Resolution:
    """What a name resolves to on a node, in getaddrinfo's order; `error` is the resolver's own words."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    took_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the look-up had not ended when time was up: the name may be known all the same."""
        return not self.addresses and self.error.startswith("no answer within ")


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket; `process` is None where the owner cannot be seen (another user's)."""

    address: str
    port: int
    user: str = ""
    process: Process | None = None


@dataclass(frozen=True)
class PortRanges:
    """`ip_local_port_range` and `ip_local_reserved_ports` of a node."""

    ephemeral_first: int
    ephemeral_last: int
    reserved: tuple[int, ...] = ()


@dataclass(frozen=True)
class Bond:
    """A bonded interface as /proc/net/bonding tells it."""

    name: str
    mode: str = ""
    """The kernel's words: "IEEE 802.3ad Dynamic link aggregation", "fault-tolerance (active-backup)"."""
    hash_policy: str = ""
    slaves: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    """Slaves without link."""


@dataclass(frozen=True)
class SocketLimits:
    """The kernel's limits for sockets; 0 where there is none of that kind (no connection tracking)."""

    rmem_max_bytes: int = 0
    wmem_max_bytes: int = 0
    tcp_rmem_max_bytes: int = 0
    """What the kernel may grow a connection's receive buffer to by itself."""
    tcp_wmem_max_bytes: int = 0
    somaxconn: int = 0
    """Longest queue of connections that wait to be accepted."""
    conntrack_count: int = 0
    conntrack_max: int = 0
