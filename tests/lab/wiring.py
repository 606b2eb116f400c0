"""Network cards, switches and addresses of a lab, as the `ip -batch` lines that make them.  Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Nic:
    """One network card, the same on every host but for its address, which counts up from `address`."""

    name: str | tuple[str, ...] = "enp99s0"
    """As the host sees it; a tuple gives each host its own."""
    address: str = "10.0.0.10/24"
    """The first host's.  A /31 makes routed point-to-point links and no switch."""
    switch: str = "data"
    mtu_bytes: int = 1500
    address6: str = ""
    """The first host's IPv6 address, if it has one beside the link-local."""
    hosts: tuple[str, ...] | None = None
    """Only these hosts have the card; None: all."""
    ifindex: int = 0
    """The order in which the host lists its cards; 0: by tens in the order given."""


TWO_CARDS = (Nic("enp99s0", "10.0.0.10/24"), Nic("ib0", "10.1.0.10/24", "fast"))


@dataclass(frozen=True)
class Port:
    """One card of one host, plugged in."""

    name: str
    address: str
    prefix_bits: int
    switch: str
    fabric_end: str
    """The other end of its cable, in the fabric's namespace."""
    ifindex: int
    mtu_bytes: int
    address6: str
    gateway: str

    @property
    def routed(self) -> bool:
        return self.prefix_bits == 31


def plug(names: Sequence[str], nics: Sequence[Nic]) -> dict[str, list[Port]]:
    """Every host's cards.  Interface numbers grow by ten in the order given, so a fault can sort before."""
    ports: dict[str, list[Port]] = {name: [] for name in names}
    for number, nic in enumerate(nics):
        first = ipaddress.ip_interface(nic.address)
        bits = first.network.prefixlen
        for position, host in enumerate(names):
            if nic.hosts is not None and host not in nic.hosts:
                continue
            address = first.ip + position * (2 if bits == 31 else 1)
            gateway = address + 1 if bits == 31 else first.network.broadcast_address - 1
            address6 = ""
            if nic.address6:
                first6 = ipaddress.ip_interface(nic.address6)
                address6 = f"{first6.ip + position}/{first6.network.prefixlen}"
            if bits != 31 and (address not in first.network or address >= gateway):
                raise ValueError(f"{len(names)} hosts do not fit from {nic.address} on")
            ports[host].append(
                Port(
                    name=nic.name if isinstance(nic.name, str) else nic.name[position],
                    address=str(address),
                    prefix_bits=bits,
                    switch=nic.switch,
                    fabric_end=f"h{position}n{number}",
                    ifindex=nic.ifindex or 10 * (number + 1),
                    mtu_bytes=nic.mtu_bytes,
                    address6=address6,
                    gateway=str(gateway),
                )
            )
    return ports


def cable(host: str, port: Port) -> list[str]:
    """The cable from host to switch; `@host` stands for the PID of its init."""
    end, mtu = port.fabric_end, port.mtu_bytes
    peer = f"{port.name} index {port.ifindex} mtu {mtu} netns @{host}"
    lines = [f"link add {end} mtu {mtu} type veth peer name {peer}"]
    if port.routed:
        return [*lines, f"addr add {port.gateway}/31 dev {end}", f"link set {end} up"]
    return [*lines, f"link set {end} master {port.switch} up"]


def fabric_batch(ports: dict[str, list[Port]]) -> list[str]:
    """Switches whose gateway address forwards nothing, so an unreachable net times out; then all cables."""
    switches: dict[str, Port] = {}
    for plugged in ports.values():
        for port in plugged:
            if not port.routed:
                switches.setdefault(port.switch, port)
    lines = ["link set lo up"]
    for name, port in switches.items():
        mtu = max(p.mtu_bytes for plugged in ports.values() for p in plugged if p.switch == name)
        lines += [
            f"link add {name} type bridge",
            f"link set {name} mtu {mtu} up",
            f"addr add {port.gateway}/{port.prefix_bits} dev {name}",
        ]
    return lines + [line for host, plugged in ports.items() for port in plugged for line in cable(host, port)]


def host_batch(plugged: Sequence[Port], ports: dict[str, list[Port]]) -> list[str]:
    """A host's own side: addresses, links up, the default route through its first card's gateway."""
    lines = ["link set lo up"]
    for port in plugged:
        lines.append(f"addr add {port.address}/{port.prefix_bits} dev {port.name}")
        if port.address6:
            lines.append(f"addr add {port.address6} dev {port.name} nodad")
        lines.append(f"link set {port.name} up")
        if port.routed:
            others = [
                o.address for own in ports.values() for o in own if o.switch == port.switch and o != port
            ]
            lines += [f"route add {address}/32 via {port.gateway}" for address in others]
    if plugged:
        lines.append(f"route add default via {plugged[0].gateway}")
    return lines


def docker0_batch(host: str, position: int) -> tuple[list[str], list[str]]:
    """Docker's bridge with the same address on every host, and one container's veth in it: (fabric, host)."""
    end = f"h{position}d"
    fabric = [
        f"link add {end} type veth peer name veth1a2b3c{position % 10} netns @{host}",
        f"link set {end} up",
    ]
    own = [
        "link add docker0 type bridge",
        "addr add 172.17.0.1/16 brd 172.17.255.255 dev docker0",
        "link set docker0 up",
        f"link set veth1a2b3c{position % 10} master docker0 up",
    ]
    return fabric, own
