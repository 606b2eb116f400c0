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

    @property
    def name(self) -> str:
        """As NCCL writes it: `mlx5_0:1`."""
        return f"{self.device}:{self.number}"
