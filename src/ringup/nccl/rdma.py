"""
Which RDMA ports NCCL takes, and in which order; fuse.py tells which become one device.

NCCL `ncclIbInit` / `ncclIbInitDevices` (src/transport/net_ib.cc, from 2.28 src/transport/net_ib/).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringup.facts import Node, RdmaPort
from ringup.nccl import choice, names
from ringup.nccl.choice import Version
from ringup.nccl.fuse import FUSES_IN_VERBS, Device, Nearness, fused
from ringup.nccl.numbers import number as number

MOST_DEVICES_FROM: Version = (2, 18, 5)
"""From here on MAX_IB_DEVS is 32, before 16."""
PCI_ORDER: Version = (2, 29, 7)
"""From here on devices are sorted by PCI address."""
MUCH_SLOWER = 0.5
"""A port of at most this share of the fastest is another network: storage, management."""
_PLACELESS = re.compile(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Ports:
    """What NCCL makes of a node's ports."""

    taken: tuple[RdmaPort, ...] = ()
    """In the order of NCCL's line."""
    devices: tuple[Device, ...] = ()
    """The same, fused."""
    because: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why the list may differ."""
    missing: tuple[str, ...] = ()
    """Facts that were not there."""


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Whether NCCL_IB_DISABLE turns the built-in RDMA transport off."""
    return number(environment, "NCCL_IB_DISABLE", 0) != 0


def hca_filter(environment: Mapping[str, str], version: Version) -> names.Filter:
    """NCCL_IB_HCA as NCCL reads it."""
    return names.parse(environment.get("NCCL_IB_HCA", ""), most_devices(version))


def most_devices(version: Version) -> int:
    """MAX_IB_DEVS, which bounds the devices and the names in NCCL_IB_HCA."""
    return 32 if version >= MOST_DEVICES_FROM else 16


def ports(
    all_ports: Sequence[RdmaPort],
    environment: Mapping[str, str],
    version: Version,
    *,
    in_library_order: bool = True,
    near: Nearness | None = None,
) -> Ports:
    """
    The ports NCCL takes of all a node has.

    `in_library_order` tells whether their order is libibverbs', `near` what lies between two of them.
    """
    accepted = hca_filter(environment, version)
    value = environment.get("NCCL_IB_HCA", "")
    taken: list[RdmaPort] = []
    because: list[str] = []
    doubts: list[str] = []
    missing: list[str] = []
    for port in all_ports:
        if port.state not in ("ACTIVE", ""):
            because.append(f"{port.name} is {port.state}: NCCL takes ACTIVE ports only")
        elif not port.can_open:
            because.append(f"{port.name} cannot be opened: /dev/infiniband is missing or not ours to open")
        elif port.link_layer not in ("InfiniBand", "Ethernet", ""):
            because.append(f"{port.name} has link layer {port.link_layer}: only a plugin can use it")
        elif not accepted.accepts(port.device, port.number):
            because.append(f"{port.name} is left out by NCCL_IB_HCA={value}")
        else:
            taken.append(port)
            if not port.state:
                missing.append(f"the state of {port.name} (taken as ACTIVE; ibstatus shows it)")
            if not port.link_layer:
                missing.append(f"the link layer of {port.name} (ibstatus shows it)")
    if len(taken) > most_devices(version):
        because.append(f"only the first {most_devices(version)} devices count")
        taken = taken[: most_devices(version)]
    taken = _ordered(taken, environment, version, in_library_order, because, doubts)
    devices = fused(taken, environment, version, near, because, doubts)
    return Ports(tuple(taken), devices, tuple(because), tuple(doubts), tuple(missing))


def is_asked(node: Node, env: Mapping[str, str]) -> bool:
    """Whether the built-in RDMA transport is tried at all on this node."""
    environment = choice.effective(node, env)
    return not is_disabled(environment) and environment.get("NCCL_NET", "").lower() in ("", "ib")


def taken(node: Node, env: Mapping[str, str]) -> tuple[RdmaPort, ...]:
    """The ports NCCL takes on this node with `env` set beyond its own environment."""
    if not is_asked(node, env):
        return ()
    version = choice.version_of(node.interpreter.nccl)
    return ports(node.rdma_ports, choice.effective(node, env), version).taken


def wanted(taken: Sequence[RdmaPort]) -> list[RdmaPort]:
    """
    The ports that belong together: the fastest, InfiniBand where both kinds are as fast.

    All of them where a rate or a link layer is not known.
    """
    rates = [p.rate_gbit_s for p in taken]
    if not taken or any((r or 0) <= 0 for r in rates) or any(not p.link_layer for p in taken):
        return list(taken)
    best = max(r for r in rates if r)
    fast = [p for p in taken if (p.rate_gbit_s or 0) > best * MUCH_SLOWER]
    layers = {p.link_layer for p in fast if p.rate_gbit_s == best}
    layer = "InfiniBand" if "InfiniBand" in layers else "Ethernet"
    return [p for p in fast if p.link_layer == layer]


def hca_value(chosen: Sequence[RdmaPort], all_ports: Sequence[RdmaPort]) -> str:
    """
    The exact list of these ports; a port number only where its device has others.

    >>> hca_value([RdmaPort("a", 1)], [RdmaPort("a", 1), RdmaPort("b", 1)])
    '=a'
    """
    several = {p.device for p in all_ports if p.number != 1}
    return "=" + ",".join(p.name if p.device in several else p.device for p in chosen)


def _ordered(
    taken: list[RdmaPort],
    environment: Mapping[str, str],
    version: Version,
    in_library_order: bool,
    because: list[str],
    doubts: list[str],
) -> list[RdmaPort]:
    if len({p.device for p in taken}) < 2:
        return taken
    if version >= PCI_ORDER and number(environment, "NCCL_IB_DEVICE_PCI_ORDER", 1):
        if all(_PLACELESS.fullmatch(p.bus_id) for p in taken):
            because.append("from 2.29.7 on devices stand in the order of their PCI addresses")
            return sorted(taken, key=lambda p: (bus_number(p.bus_id), p.number))
        doubts.append("from 2.29.7 on devices are sorted by PCI address, which is not known here")
    elif not in_library_order and len({p.device for p in taken}) > 10:
        doubts.append("the order of more than ten devices is libibverbs' own (ibv_devinfo -l shows it)")
    return taken


def bus_number(bus_id: str) -> int:
    """
    A PCI address as one number, which is what NCCL sorts by.

    >>> bus_number("0000:2e:00.1") < bus_number("0000:a8:00.0")
    True
    """
    return int(re.sub(r"[^0-9a-f]", "", bus_id.lower()) or "0", 16)


def shown(port: RdmaPort) -> str:
    """As NCCL's line has it: `mlx5_1:1/IB`, `mlx5_0:1/RoCE`; `?` where the link layer is not known."""
    return f"{port.name}/{ {'InfiniBand': 'IB', 'Ethernet': 'RoCE'}.get(port.link_layer, '?') }"


def line(made: Ports, environment: Mapping[str, str], version: Version, oob: str) -> str:
    """
    The line NCCL prints for it; `oob` is INTERFACE:ADDRESS of the out-of-band connection.

    [RO] needs libibverbs with the 1.8 interface, which is taken for granted.
    """
    place = {port: n for n, port in enumerate(made.taken)}
    entries = []
    for n, device in enumerate(made.devices if FUSES_IN_VERBS[0] <= version < FUSES_IN_VERBS[1] else ()):
        inner = ", ".join(f"[{place[p]}] {shown(p)}" for p in device.ports)
        entries.append(
            f"[{n}]={{{inner}}}"
            if len(device.ports) > 1
            else f"[{place[device.ports[0]]}]{shown(device.ports[0])}"
        )
    listed = " ".join(entries or [f"[{n}]{shown(p)}" for n, p in enumerate(made.taken)])
    relaxed = number(environment, "NCCL_IB_PCI_RELAXED_ORDERING", 2) in (1, 2)
    return f"NET/IB : Using {listed} {'[RO]' if relaxed else ''}; OOB {oob}<0>"
