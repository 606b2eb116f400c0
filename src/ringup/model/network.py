"""A node's interfaces, routes, names, processes and their ports, and its InfiniBand and RoCE devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

InterfaceKind = Literal[
    "physical", "loopback", "bridge", "veth", "bond", "vlan", "tunnel", "infiniband", "macvlan", "virtual"
]
"""`physical` has a device in sysfs; `virtual` is any other kind that the kernel made."""


@dataclass(frozen=True)
class Address:
    address: str
    prefix_length: int
    family: Literal["inet", "inet6"] = "inet"
    scope: str = "global"
    label: str = ""
    """The name under which getifaddrs lists it ("eth0:1"), if that is not its interface's."""


@dataclass(frozen=True)
class Interface:
    """
    One network interface of the kernel; NCCL and Gloo use the order of `index` (ifindex).

    `speed_gbit_s` is None if the kernel has no reliable figure (no physical device).
    """

    name: str
    index: int
    kind: InterfaceKind
    is_up: bool
    has_carrier: bool
    mtu_bytes: int
    speed_gbit_s: float | None = None
    driver: str = ""
    master: str = ""
    addresses: tuple[Address, ...] = ()
    rp_filter: int = 0
    duplex: str = ""
    """"full", "half" or "unknown" from the kernel, "" if it has none."""
    arp_ignore: int | None = None
    """0: it answers ARP requests for addresses of any interface; None if unknown."""
    arp_announce: int | None = None

    @property
    def is_linked(self) -> bool:
        return self.is_up and self.has_carrier

    @property
    def usable_addresses(self) -> tuple[Address, ...]:
        """Addresses for peers: not loopback, not link-local."""
        return tuple(a for a in self.addresses if a.scope == "global")


@dataclass(frozen=True)
class Route:
    """One line of the routing table; `destination` is a prefix such as "10.0.0.0/24" or "default"."""

    destination: str
    interface: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Resolution:
    """Addresses of a name on a node, in getaddrinfo's order; `error` is the resolver's error text."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    took_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the lookup had not ended in time: the name may still exist."""
        return not self.addresses and self.error.startswith("no answer within ")


@dataclass(frozen=True)
class Process:
    """A relevant process; `run_id` is the run tag in its environment, if readable."""

    pid: int
    user: str
    age_s: float
    command: str
    run_id: str = ""
    evidence: str = ""
    """Why it counts as left by an earlier run: "parent gone", "torchrun environment", ..."""


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket; `process` is None if the owner cannot be seen (another user's)."""

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
    """A bonded interface from /proc/net/bonding."""

    name: str
    mode: str = ""
    """The kernel's name: "IEEE 802.3ad Dynamic link aggregation", "fault-tolerance (active-backup)"."""
    hash_policy: str = ""
    slaves: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    """Slaves without link."""


@dataclass(frozen=True)
class SocketLimits:
    """The kernel's limits for sockets; 0 if one does not exist (no connection tracking)."""

    tcp_rmem_max_bytes: int = 0
    """The limit up to which the kernel may grow a connection's receive buffer."""
    tcp_wmem_max_bytes: int = 0
    somaxconn: int = 0
    """Longest queue of connections that are not yet accepted."""
    conntrack_count: int = 0
    conntrack_max: int = 0


@dataclass(frozen=True)
class Gid:
    index: int
    gid: str
    """In IPv6 notation; an IPv4 address is mapped, `::ffff:10.0.0.1`."""
    kind: str = ""
    """"IB/RoCE v1" or "RoCE v2" from sysfs, "" if unknown."""
    netdev: str = ""


@dataclass(frozen=True)
class Verbs:
    """Software that RDMA needs in user space and in the kernel, besides the devices."""

    library: str = ""
    """Path of the libibverbs.so.1 that a program of the job would load, "" if it is not found."""
    error: str = ""
    """The loader's error text if it is not found."""
    providers: tuple[str, ...] = ()
    """The library's drivers: "mlx5", "efa", ..."""
    modules: tuple[str, ...] = ()
    """Loaded kernel modules of RDMA."""
    has_char_devices: bool = True
    """False if the kernel has made no character device for any RDMA device."""
    bound: tuple[str, ...] = ()
    """PCI functions bound to mlx5_core, with or without an RDMA device."""


@dataclass(frozen=True)
class RdmaPort:
    """One port of an RDMA device, from sysfs or tools; "" (None for the rate) for missing values."""

    device: str
    number: int
    state: str = ""
    """"ACTIVE", "INIT", "ARMED", "DOWN": the kernel's text without the number."""
    physical_state: str = ""
    link_layer: str = ""
    """ "InfiniBand" or "Ethernet" (then it is RoCE)."""
    rate_gbit_s: float | None = None
    """Advertised link rate.  Gigabits; benchmark results are gigabytes."""
    netdev: str = ""
    bus_id: str = ""
    """PCI address of the device, "0000:2e:00.0"."""
    guid: str = ""
    """System image GUID, equal for all ports of one card; hexadecimal digits only."""
    gids: tuple[Gid, ...] = ()
    can_open: bool = True
    """False if the user may not open /dev/infiniband/uverbsN, or a container lacks it."""
    sm_lid: int = 0
    """LID of the subnet manager of an InfiniBand port; 0 without one, and for RoCE."""
    width: int = 0
    """Lanes of the link, 0 if unknown."""
    pkeys: tuple[int, ...] = ()
    """Partition keys of an InfiniBand port by index; () if unknown."""
    driver: str = ""
    """Kernel driver of the device: "mlx5_core", "efa", ..."""
    firmware: str = ""
    hca_type: str = ""
    board_id: str = ""
    traffic_class: int | None = None
    """The mark of all RoCE traffic of the port; None if unset or unsupported (needs OFED)."""
    trust: str = ""
    """"dscp" or "pcp": the mark by which the port's interface sorts packets; "" if not reported."""
    pfc: int | None = None
    """Bitmap of the priorities with flow control (PFC); None if the driver does not report it."""

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def name(self) -> str:
        """In NCCL's format: `mlx5_0:1`."""
        return f"{self.device}:{self.number}"
