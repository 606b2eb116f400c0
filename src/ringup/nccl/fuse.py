"""
Which ports NCCL fuses into one device: in the verbs transport from 2.20 on, in the topology from 2.24 on.

NCCL `ncclIbInitDevices` (src/transport/net_ib.cc, 2.20); `ncclTopoMakeVNics`, `ncclTopoForceMerge`
(src/graph/topo.cc, 2.24 to 2.30).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ringup.facts import RdmaPort
from ringup.nccl import names
from ringup.nccl.choice import Version
from ringup.nccl.numbers import number

FUSES_IN_VERBS: tuple[Version, Version] = ((2, 20, 3), (2, 24, 0))
"""The verbs transport itself fuses ports of one card, and its line says so; later the topology code does."""
MOST_PORTS = 4
"""NCCL_NET_MAX_DEVS_PER_NIC."""
LEVELS = ("LOC", "PORT", "PIX", "PXB", "PXN", "PHB", "NODE", "SYS")
"""NCCL_NET_MERGE_LEVEL, close to far; NODE is nvidia-smi's word for what NCCL calls PHB."""
_PLACELESS = re.compile(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

Nearness = Callable[[RdmaPort, RdmaPort], str]
"""What lies between two ports, as a level; "" where that is not known."""


@dataclass(frozen=True)
class Device:
    """One network device of NCCL's: a port, or several fused into one."""

    ports: tuple[RdmaPort, ...]

    @property
    def name(self) -> str:
        """`mlx5_1:1`, or `mlx5_0+mlx5_1` fused."""
        return self.ports[0].name if len(self.ports) == 1 else "+".join(p.device for p in self.ports)

    @property
    def speed_mbit_s(self) -> float:
        """Sum of its ports; NCCL computes it from the verbs' speed and width codes."""
        return sum((p.rate_gbit_s or 0.0) * 1000 for p in self.ports)


def card(port: RdmaPort, environment: Mapping[str, str]) -> str:
    """
    What all ports of one card share, "" where that cannot be told.

    The PCI address without the function digit (virtual functions merged unless NCCL_IB_MERGE_VFS=0),
    else all but the last digit of the port's own GUID.
    """
    if _PLACELESS.fullmatch(port.bus_id):
        head = port.bus_id[:-1]
        return f"{head[:-3]}00." if number(environment, "NCCL_IB_MERGE_VFS", 1) else head
    default = next((g.gid for g in port.gids if g.index == 0 and g.gid.startswith("fe80::")), "")
    return f"guid {default[:-1]}" if len(default) > 12 else ""


@dataclass
class _Fusing:
    """What is settled so far, and what is worth saying of it."""

    devices: list[Device]
    because: list[str]
    doubts: list[str]


def fused(
    taken: Sequence[RdmaPort],
    environment: Mapping[str, str],
    version: Version,
    near: Nearness | None,
    because: list[str],
    doubts: list[str],
) -> tuple[Device, ...]:
    """The devices this version makes of `taken`; why to `because`, what could be otherwise to `doubts`."""
    first, last = FUSES_IN_VERBS
    made = _Fusing([], because, doubts)
    level, most = "LOC", 1
    if first <= version < last and number(environment, "NCCL_IB_MERGE_NICS", 1):
        level, most = "PORT", 2
    elif version >= last and number(environment, "NCCL_IB_MERGE_NICS", 1):
        level, most = environment.get("NCCL_NET_MERGE_LEVEL", "") or "PORT", MOST_PORTS
        _by_hand(taken, environment.get("NCCL_NET_FORCE_MERGE", ""), made)
        if level not in LEVELS:
            doubts.append(f"NCCL_NET_MERGE_LEVEL={level} is no level")
            level = "PORT"
    placed = {p for d in made.devices for p in d.ports}
    for port in taken:
        if port not in placed:
            _by_level(port, level, most, made, environment, near)
    order = {port: n for n, port in enumerate(taken)}
    return tuple(sorted(made.devices, key=lambda d: order[d.ports[0]]))


def _by_hand(taken: Sequence[RdmaPort], value: str, made: _Fusing) -> None:
    """NCCL_NET_FORCE_MERGE: `mlx5_0,mlx5_1;mlx5_2,mlx5_3`, names exact."""
    for text in value.split(";"):
        wanted = names.parse(f"={text}", MOST_PORTS)
        group = [p for p in taken if wanted.items and wanted.accepts(p.device, p.number)]
        if not wanted.items:
            continue
        if len(group) != len(wanted.items):
            counted = f"{len(group)} of the {len(wanted.items)} devices in {text} are there"
            made.doubts.append(f"NCCL_NET_FORCE_MERGE={value}: {counted}, NCCL refuses that")
        elif len({p.link_layer for p in group}) > 1:
            made.because.append(f"NCCL_NET_FORCE_MERGE={value}: {text} are of two kinds and stay apart")
        else:
            made.devices.append(Device(tuple(group)))
            made.because.append(f"{made.devices[-1].name} are one device: NCCL_NET_FORCE_MERGE={value}")


def _by_level(
    port: RdmaPort,
    level: str,
    most: int,
    made: _Fusing,
    environment: Mapping[str, str],
    near: Nearness | None,
) -> None:
    """Into the first device whose first port is near enough, else a device of its own."""
    for place, device in enumerate(made.devices):
        one = device.ports[0]
        if one.link_layer != port.link_layer or len(device.ports) >= most:
            continue
        between = _between(one, port, environment, near if LEVELS.index(level) > 1 else None)
        if not between:
            if LEVELS.index(level) > 1:
                told = "how near the devices are to each other is not known"
                made.doubts.append(f"NCCL_NET_MERGE_LEVEL={level}: {told}")
        elif LEVELS.index(between) <= LEVELS.index(level):
            made.devices[place] = Device((*device.ports, port))
            how = "are ports of one card" if between == "PORT" else f"are within {level} of each other"
            made.because.append(f"{made.devices[place].name} {how}: NCCL fuses them into one device")
            if not port.bus_id:
                made.doubts.append(
                    f"that {made.devices[place].name} share a card is a guess from their GUIDs"
                )
            return
    made.devices.append(Device((port,)))


def _between(one: RdmaPort, other: RdmaPort, environment: Mapping[str, str], near: Nearness | None) -> str:
    """The level two ports are apart, "PORT" for two of one card; "" where it is not known, or too far."""
    same = card(other, environment)
    if same and card(one, environment) == same and one.guid == other.guid:
        return "PORT"
    return near(one, other) if near else ""
