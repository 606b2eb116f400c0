"""A node's InfiniBand and RoCE devices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gid:
    """One entry of a port's GID table."""

    index: int
    gid: str
    """In IPv6's notation; an IPv4 address is mapped, `::ffff:10.0.0.1`."""
    kind: str = ""
    """ "IB/RoCE v1" or "RoCE v2" as sysfs writes it, "" where it was not told."""
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
    """
    One port of one RDMA device, as `/sys/class/infiniband` or the tools show it.

    "" (None for the rate) where the source did not tell; sources told together complete each other.
    """

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
    lid: int = 0
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
    """Lanes of the link, 0 where it was not told."""
    pkeys: tuple[int, ...] = ()
    """Partition keys of an InfiniBand port by index; () where they were not told."""
    driver: str = ""
    """Kernel driver of the device: "mlx5_core", "efa", ..."""
    firmware: str = ""
    hca_type: str = ""
    board_id: str = ""
    node_type: str = ""
    active_mtu_bytes: int = 0
    """As verbs negotiated it (sysfs does not tell), 0 where it was not told."""
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
