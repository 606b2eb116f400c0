"""
Which RDMA devices NCCL takes, and whether it uses them or falls back to sockets.

NCCL `ncclIbInit` (src/transport/net_ib.cc) and `ncclNetInit` (src/net.cc, plugin/net.cc), 2.18
to 2.30.  It asks for state and name only: no preference by kind or speed is made here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ringup.facts import Interface
from ringup.nccl import names
from ringup.nccl.choice import MAX_INTERFACES, Choice, Version, interfaces, shown, sockets_line

LIST_GROWN: Version = (2, 18, 5)
"""From here on 32 devices and 32 names in NCCL_IB_HCA, 16 before."""
SORTED: Version = (2, 29, 7)
"""From here on devices are sorted by PCI path; before, they stand in libibverbs' order."""


@dataclass(frozen=True)
class Port:
    """One port of one RDMA device, in the order of `ibv_devinfo -l`."""

    device: str
    number: int
    state: str
    """ "ACTIVE", "INIT", "DOWN", ... as sysfs names it."""
    link_layer: Literal["InfiniBand", "Ethernet"]
    pci_path: str = ""

    @property
    def shown(self) -> str:
        """As in NCCL's line: "mlx5_0:1/RoCE"."""
        return f"{self.device}:{self.number}/{'IB' if self.link_layer == 'InfiniBand' else 'RoCE'}"


@dataclass(frozen=True)
class Network:
    """
    The network a node's ranks would use, and why.

    `name` is "" when NCCL gives up; `line` is what it prints then at NCCL_DEBUG=INFO.
    """

    name: Literal["IB", "Socket", ""]
    because: tuple[str, ...]
    line: str = ""
    devices: tuple[Port, ...] = ()
    sockets: tuple[Choice, ...] = ()
    out_of_band: Choice | None = None


def integer(text: str, default: int) -> int:
    """
    A value as NCCL's parameters read it (strtoll, base 0); `default` for what is no number.

    >>> integer("0x1", 0), integer("yes", 0), integer("", 5)
    (1, 0, 5)
    """
    match = re.fullmatch(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)\s*", text)
    if not match:
        return default
    digits = match[2]
    base = 16 if digits[:2].lower() == "0x" else 8 if digits.startswith("0") and len(digits) > 1 else 10
    try:
        value = int(digits, base)
    except ValueError:
        return default
    return -value if match[1] == "-" else value


def devices(ports: Sequence[Port], environment: Mapping[str, str], version: Version) -> tuple[Port, ...]:
    """The ports NCCL takes, in the order in which it numbers them."""
    limit = 32 if version >= LIST_GROWN else 16
    wanted = names.parse(environment.get("NCCL_IB_HCA", ""), limit)
    taken = [p for p in ports if p.state == "ACTIVE" and wanted.accepts(p.device, p.number)]
    if version >= SORTED and integer(environment.get("NCCL_IB_DEVICE_PCI_ORDER", ""), 1):
        taken.sort(key=lambda p: (not p.pci_path, p.pci_path))
    return tuple(taken[:limit])


def network(
    ports: Sequence[Port],
    all_interfaces: Sequence[Interface],
    environment: Mapping[str, str],
    version: Version,
    *,
    relaxed_ordering: bool = True,
) -> Network:
    """
    IB where it is allowed and a port is left, else sockets; plugins are not known here.

    `environment` is the whole one a rank sees.  `relaxed_ordering` says whether libibverbs has
    the 1.8 interface, which decides about `[RO]` in the line.
    """
    because: list[str] = []
    forced = environment.get("NCCL_NET", "")
    if forced.lower() in ("", "ib"):
        taken = devices(ports, environment, version)
        out_of_band = next(iter(interfaces(all_interfaces, environment, version, 1)), None)
        why_not = refused(ports, taken, out_of_band, environment)
        if not why_not and out_of_band is not None:
            line = ib_line(taken, out_of_band, relaxed_ordering)
            return Network("IB", tuple(because), line, taken, out_of_band=out_of_band)
        because.append(why_not)
    if forced.lower() in ("", "socket"):
        found = interfaces(all_interfaces, environment, version, MAX_INTERFACES)
        if found:
            return Network("Socket", tuple(because), sockets_line(found), sockets=found)
        because.append("no interface matches")
    elif forced.lower() != "ib":
        because.append(f"NCCL_NET={forced} is neither IB nor Socket: a plugin of that name is needed")
    return Network("", tuple(because))


def refused(
    ports: Sequence[Port], taken: Sequence[Port], out_of_band: Choice | None, environment: Mapping[str, str]
) -> str:
    """Why NET/IB is not used, in words; "" when it is."""
    if integer(environment.get("NCCL_IB_DISABLE", ""), 0):
        return f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']}"
    if not ports:
        return "no RDMA device"
    if not taken:
        active = [p for p in ports if p.state == "ACTIVE"]
        wanted = environment.get("NCCL_IB_HCA", "")
        if active and wanted:
            return f"NCCL_IB_HCA={wanted} matches none of {', '.join(p.device for p in active)}"
        return "no RDMA port is ACTIVE"
    return "" if out_of_band else "no IP interface for the out-of-band connections"


def ib_line(taken: Sequence[Port], out_of_band: Choice, relaxed_ordering: bool) -> str:
    """The line NCCL's IB transport prints for the devices it uses."""
    listed = " ".join(f"[{i}]{p.shown}" for i, p in enumerate(taken))
    ordering = " [RO]" if relaxed_ordering else ""
    return f"NET/IB : Using {listed}{ordering}; OOB {out_of_band.interface}:{shown(out_of_band)}<0>"
