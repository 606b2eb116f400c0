"""
The RDMA ports that NCCL takes, in their order, and those that it fuses into one device.

NCCL `ncclIbInit` / `ncclIbInitDevices` (src/transport/net_ib.cc, from 2.28 src/transport/net_ib/); from 2.24
on the topology code fuses ports (`ncclTopoMakeVNics`, src/graph/topo.cc).
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ringup.addresses import parsed
from ringup.model import Gid, RdmaPort
from ringup.nccl.interface_choice import Filter, Version, parse_names
from ringup.nccl.variables import number as number
from ringup.units import summarize_names

MOST_DEVICES_FROM: Version = (2, 18, 5)
"""MAX_IB_DEVS is 32 from this release on, 16 before."""
PCI_ORDER: Version = (2, 29, 7)
"""From this release on, devices are sorted by PCI address."""
CHOOSES_GIDS: Version = (2, 21, 0)
"""From this release on, NCCL searches the table; before, the default is index 0."""
MUCH_SLOWER = 0.5
"""A port with at most this share of the fastest rate is another network: storage, management."""
FUSES_IN_VERBS: tuple[Version, Version] = ((2, 20, 3), (2, 24, 0))
"""Until then the verbs transport fuses ports of one NIC and logs it; later the topology code does."""
MOST_PORTS = 4
"""NCCL_NET_MAX_DEVS_PER_NIC; the verbs transport fuses two ports."""
BY_HAND = ("NCCL_NET_MERGE_LEVEL", "NCCL_NET_FORCE_MERGE")
"""Variables that change the fusing from 2.24 on; only the levels PORT (default) and LOC are modelled."""
_PCI_ADDRESS = re.compile(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


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
        """Sum of its ports' speeds; NCCL computes it from the verbs' speed and width codes."""
        return sum((p.rate_gbit_s or 0.0) * 1000 for p in self.ports)


@dataclass(frozen=True)
class Ports:
    """NCCL's devices from a node's ports."""

    taken: tuple[RdmaPort, ...] = ()
    """In the order of NCCL's log line."""
    devices: tuple[Device, ...] = ()
    """The devices after fusing."""
    because: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """Why the list may differ."""
    missing: tuple[str, ...] = ()


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Whether NCCL_IB_DISABLE turns the built-in RDMA transport off."""
    return number(environment, "NCCL_IB_DISABLE", 0) != 0


def hca_filter(environment: Mapping[str, str], version: Version) -> Filter:
    return parse_names(environment.get("NCCL_IB_HCA", ""), most_devices(version))


def most_devices(version: Version) -> int:
    """MAX_IB_DEVS, which limits the devices and the names in NCCL_IB_HCA."""
    return 32 if version >= MOST_DEVICES_FROM else 16


def ports(
    all_ports: Sequence[RdmaPort],
    environment: Mapping[str, str],
    version: Version,
    *,
    in_library_order: bool = True,
) -> Ports:
    """The ports that NCCL takes from all of a node; `in_library_order`: they are in libibverbs' order."""
    accepted = hca_filter(environment, version)
    value = environment.get("NCCL_IB_HCA", "")
    taken: list[RdmaPort] = []
    because: list[str] = []
    doubts: list[str] = []
    for port in all_ports:
        if port.state not in ("ACTIVE", ""):
            because.append(f"{port.name} is {port.state}: NCCL takes ACTIVE ports only")
        elif not port.can_open:
            why = "/dev/infiniband is missing, or this user cannot open it"
            because.append(f"{port.name} cannot be opened: {why}")
        elif port.link_layer not in ("InfiniBand", "Ethernet", ""):
            because.append(f"{port.name} has link layer {port.link_layer}: only a plugin can use it")
        elif not accepted.accepts(port.device, port.number):
            because.append(f"{port.name} is left out by NCCL_IB_HCA={value}")
        else:
            taken.append(port)
    unknown = (
        ("state", "taken as ACTIVE; ibstatus shows it", [port.name for port in taken if not port.state]),
        ("link layer", "ibstatus shows it", [port.name for port in taken if not port.link_layer]),
    )
    missing = [f"the {what} of {summarize_names(names)} ({how})" for what, how, names in unknown if names]
    if len(taken) > most_devices(version):
        because.append(f"only the first {most_devices(version)} devices count")
        taken = taken[: most_devices(version)]
    if len({p.device for p in taken}) > 1:
        if version >= PCI_ORDER and number(environment, "NCCL_IB_DEVICE_PCI_ORDER", 1):
            if all(_PCI_ADDRESS.fullmatch(p.bus_id) for p in taken):
                because.append("from 2.29.7 on devices are in the order of their PCI addresses")
                taken.sort(key=lambda p: (int(re.sub("[:.]", "", p.bus_id), 16), p.number))
            else:
                doubts.append("from 2.29.7 on devices are sorted by PCI address, which is not known here")
        elif not in_library_order and len({p.device for p in taken}) > 10:
            doubts.append("the order of more than ten devices is libibverbs' own (ibv_devinfo -l shows it)")
    devices = _fused(taken, environment, version, because, doubts)
    return Ports(tuple(taken), devices, tuple(because), tuple(doubts), tuple(missing))


def wanted(taken: Sequence[RdmaPort]) -> list[RdmaPort]:
    """The ports that belong together: the fastest, InfiniBand in a tie; all if a rate or layer is unknown."""
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
    The exact list of these ports; with a port number only if the device has other ports.

    >>> hca_value([RdmaPort("a", 1)], [RdmaPort("a", 1), RdmaPort("b", 1)])
    '=a'
    """
    several = {p.device for p in all_ports if p.number != 1}
    return "=" + ",".join(p.name if p.device in several else p.device for p in chosen)


def _card(port: RdmaPort, environment: Mapping[str, str]) -> str:
    """
    A key for all ports of one NIC, "" if unknown.

    The PCI address without the function digit (virtual functions merged unless NCCL_IB_MERGE_VFS=0),
    else all but the last digit of the port's own GUID.
    """
    if _PCI_ADDRESS.fullmatch(port.bus_id):
        head = port.bus_id[:-1]
        return f"{head[:-3]}00." if number(environment, "NCCL_IB_MERGE_VFS", 1) else head
    default = next((g.gid for g in port.gids if g.index == 0 and g.gid.startswith("fe80::")), "")
    return f"guid {default[:-1]}" if len(default) > 12 else ""


def _fused(
    taken: Sequence[RdmaPort],
    environment: Mapping[str, str],
    version: Version,
    because: list[str],
    doubts: list[str],
) -> tuple[Device, ...]:
    """The devices that this version makes from `taken`; extends `because` and `doubts`."""
    most = 1
    if version >= FUSES_IN_VERBS[0] and number(environment, "NCCL_IB_MERGE_NICS", 1):
        most = 2
        if version >= FUSES_IN_VERBS[1]:
            most = 1 if environment.get("NCCL_NET_MERGE_LEVEL") == "LOC" else MOST_PORTS
            doubts += [
                f"{name}={value}: ringup does not predict which ports NCCL fuses by it"
                for name in BY_HAND
                if taken and (value := environment.get(name, "")) not in ("", "PORT", "LOC")
            ]
    devices: list[Device] = []
    for port in taken:
        same = _card(port, environment)
        for place, device in enumerate(devices):
            one = device.ports[0]
            # From 2.24 on the PCI path alone counts (src/graph/topo.cc).
            by_guid = version < FUSES_IN_VERBS[1] or not port.bus_id
            is_alike = one.link_layer == port.link_layer and (one.guid == port.guid or not by_guid)
            if same and is_alike and len(device.ports) < most and _card(one, environment) == same:
                made = devices[place] = Device((*device.ports, port))
                because.append(f"{made.name} are ports of one card: NCCL fuses them into one device")
                if not port.bus_id:
                    doubts.append(f"that {made.name} share a card is a guess from their GUIDs")
                break
        else:
            devices.append(Device((port,)))
    return tuple(devices)


def shown(port: RdmaPort) -> str:
    """In the format of NCCL's log: `mlx5_1:1/IB`, `mlx5_0:1/RoCE`; `?` if the link layer is unknown."""
    return f"{port.name}/{ {'InfiniBand': 'IB', 'Ethernet': 'RoCE'}.get(port.link_layer, '?') }"


def line(made: Ports, environment: Mapping[str, str], version: Version, oob: str) -> str:
    """NCCL's log line for it; `oob` is INTERFACE:ADDRESS; [RO] assumes libibverbs 1.8."""
    place = {port: n for n, port in enumerate(made.taken)}
    entries = [f"[{n}]{shown(p)}" for n, p in enumerate(made.taken)]
    if FUSES_IN_VERBS[0] <= version < FUSES_IN_VERBS[1]:
        for n, device in enumerate(made.devices):
            first, *others = (place[p] for p in device.ports)
            if others:
                entries[first] = f"[{n}]={{{', '.join(f'[{place[p]}] {shown(p)}' for p in device.ports)}}}"
            for other in others:
                entries[other] = ""
    listed = " ".join(filter(None, entries))
    relaxed = number(environment, "NCCL_IB_PCI_RELAXED_ORDERING", 2) in (1, 2)
    return f"NET/IB : Using {listed} {'[RO]' if relaxed else ''}; OOB {oob}<0>"


@dataclass(frozen=True)
class GidChoice:
    """The index, and why; `index` is None if it depends on an unknown table."""

    index: int | None
    because: str
    gid: Gid | None = None


def gid_index(port: RdmaPort, environment: Mapping[str, str], version: Version) -> GidChoice:
    """NCCL's GID entry for a RoCE port: by variable up to 2.20, later chosen by `ncclIbGetGidIndex`."""
    table = {g.index: g for g in port.gids}
    if port.link_layer == "InfiniBand":
        ignored = "; NCCL ignores NCCL_IB_GID_INDEX there" if environment.get("NCCL_IB_GID_INDEX") else ""
        return GidChoice(0, f"{port.name} is InfiniBand: addressed by LID, GID 0{ignored}", table.get(0))
    chosen = number(environment, "NCCL_IB_GID_INDEX", -1 if version >= CHOOSES_GIDS else 0)
    if chosen >= 0:
        why = "NCCL_IB_GID_INDEX" if environment.get("NCCL_IB_GID_INDEX") else "the default before 2.21"
        known = table.get(chosen)
        lacks = f", an entry {port.name} does not have" if len(table) > 1 and known is None else ""
        return GidChoice(chosen, f"GID index {chosen} of {port.name}: {why}{lacks}", known)
    # A table with one entry comes from ibstatus, which shows only the first.
    if len(table) < 2:
        return GidChoice(None, f"the GID table of {port.name} is not known (show_gids shows it)")
    # The search through the table: each entry is compared with the best so far.
    family = 6 if environment.get("NCCL_IB_ADDR_FAMILY") == "AF_INET6" else 4
    wanted = number(environment, "NCCL_IB_ROCE_VERSION_NUM", 2)
    subnet = _subnet(environment.get("NCCL_IB_ADDR_RANGE", ""), family)

    def is_good(gid: Gid) -> bool:
        address = _address(gid)
        is_valid = not (address.is_unspecified or (address.version == 6 and address.is_link_local))
        return is_valid and (2 if "v2" in gid.kind else 1) == wanted

    best = table.get(0, Gid(0, "::"))
    for index, candidate in sorted(table.items()):
        address = _address(candidate)
        if index == 0 or address.version != family or (subnet and address not in subnet):
            continue
        if (is_good(candidate) and not is_good(best)) or _address(best).version != family:
            best = candidate
    kind = best.kind or "kind unknown"
    # A VLAN's address that is listed before the NIC's own is taken like any other.
    where = f", of {best.netdev}" if best.netdev and best.netdev != port.netdev else ""
    return GidChoice(best.index, f"GID index {best.index} of {port.name}: {best.gid}, {kind}{where}", best)


def _subnet(text: str, family: int) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """NCCL_IB_ADDR_RANGE; ignored without `/` or with another address family."""
    with contextlib.suppress(ValueError):
        if "/" in text and (subnet := ipaddress.ip_network(text, strict=False)).version == family:
            return subnet
    return None


def _address(gid: Gid) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return parsed(gid.gid) or ipaddress.IPv6Address("::")
