"""A node's interfaces, routes, names, processes and their ports, and its InfiniBand and RoCE devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

InterfaceKind = Literal[
    "physical", "loopback", "bridge", "veth", "bond", "vlan", "tunnel", "infiniband", "macvlan", "virtual"
]
"""`physical` has a device behind it in sysfs; `virtual` is whatever else the kernel made."""


@dataclass(frozen=True)
class Address:
    address: str
    prefix_length: int
    family: Literal["inet", "inet6"] = "inet"
    scope: str = "global"


@dataclass(frozen=True)
class Interface:
    """
    One network interface of the kernel; NCCL and Gloo walk them in the order of `index` (ifindex).

    `speed_gbit_s` is None where the kernel has no trustworthy figure (no device behind it).
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
    """ "full", "half" or "unknown" as the kernel has it, "" where it has none."""
    arp_ignore: int | None = None
    """0: it answers ARP requests for addresses of any interface; None where unknown."""
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
    source: str = ""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a name resolves to on a node, in getaddrinfo's order; `error` is the resolver's own words."""

    name: str
    addresses: tuple[str, ...] = ()
    error: str = ""
    took_s: float = 0.0

    @property
    def is_late(self) -> bool:
        """Whether the lookup had not ended when time was up: the name may be known all the same."""
        return not self.addresses and self.error.startswith("no answer within ")


@dataclass(frozen=True)
class Process:
    """A process of interest; `run_id` is the run tag in its environment, where readable."""

    pid: int
    user: str
    age_s: float
    command: str
    run_id: str = ""
    evidence: str = ""
    """Why it counts as left by an earlier run: "parent gone", "torchrun environment", ..."""


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

    tcp_rmem_max_bytes: int = 0
    """What the kernel may grow a connection's receive buffer to by itself."""
    tcp_wmem_max_bytes: int = 0
    somaxconn: int = 0
    """Longest queue of connections that wait to be accepted."""
    conntrack_count: int = 0
    conntrack_max: int = 0


@dataclass(frozen=True)
class Gid:
    index: int
    gid: str
    """In IPv6's notation; an IPv4 address is mapped, `::ffff:10.0.0.1`."""
    kind: str = ""
    """ "IB/RoCE v1" or "RoCE v2" as sysfs writes it, "" where unknown."""
    netdev: str = ""


@dataclass(frozen=True)
class Verbs:
    """What the user's side and the kernel's side of RDMA need beside the devices themselves."""

    library: str = ""
    """Path of libibverbs.so.1 as a program of the job would load it, "" where it is not found."""
    error: str = ""
    """The loader's words when it is not."""
    providers: tuple[str, ...] = ()
    """The library's drivers: "mlx5", "efa", ..."""
    modules: tuple[str, ...] = ()
    """Kernel modules of RDMA that are loaded."""
    has_char_devices: bool = True
    """False where the kernel has made no character device for any RDMA device."""
    bound: tuple[str, ...] = ()
    """PCI functions that mlx5_core drives, whether or not they have an RDMA device."""


@dataclass(frozen=True)
class RdmaPort:
    """One port of an RDMA device, of sysfs or of tools; "" (None for the rate) where these do not show it."""

    device: str
    number: int
    state: str = ""
    """ "ACTIVE", "INIT", "ARMED", "DOWN": of the kernel's words, without the number."""
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
    """False where the user may not open /dev/infiniband/uverbsN, or a container lacks it."""
    sm_lid: int = 0
    """LID of the subnet manager of an InfiniBand port; 0 while there is none, and for RoCE."""
    width: int = 0
    """Lanes of the link, 0 where unknown."""
    pkeys: tuple[int, ...] = ()
    """Partition keys of an InfiniBand port by index; () where unknown."""
    driver: str = ""
    """Kernel driver of the device: "mlx5_core", "efa", ..."""
    firmware: str = ""
    hca_type: str = ""
    board_id: str = ""
    traffic_class: int | None = None
    """What all RoCE traffic of the port is marked with; None where nothing is set or can be (needs OFED)."""
    trust: str = ""
    """ "dscp" or "pcp": what the port's interface sorts packets by; "" where the driver does not tell."""
    pfc: int | None = None
    """Bitmap of the priorities with flow control (PFC); None where the driver does not tell."""

    @property
    def name(self) -> str:
        """As NCCL writes it: `mlx5_0:1`."""
        return f"{self.device}:{self.number}"
