"""
Interfaces with their addresses from pasted output: `ip addr` in all its forms, ifconfig old and new.

Among other lines; a section ends with the first line that cannot belong to it.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass, replace
from typing import Any

from ringup.facts import Address, Interface, InterfaceKind
from ringup.parse.ip import parse_ip_links

MOST_INTERFACES = 4096
_IP_START = re.compile(r"^\d+: [^\s:]+(?::? .*<|\s+inet6? )|^\d+: [^\s:]+: <")
_ONE_LINE = re.compile(r"^(\d+): (\S+)\s+inet6? ")
_BRIEF = re.compile(
    r"^([\w.@:-]{1,32})\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT)\b"
    r"((?:\s+[0-9a-fA-F:.]+/\d{1,3}(?: metric \d+)?)*)\s*$"
)
_NEW = re.compile(r"^([\w.@:-]{1,32}): flags=\d+<([^>]*)>\s+mtu (\d{1,9})")
_OLD = re.compile(r"^([\w.@:-]{1,32})\s+Link encap:(\S.*)$")
_INET = re.compile(r"^\s+inet (?:addr:)?([\d.]+)(?:.*?(?:netmask |Mask:)([\d.]+))?")
_INET6 = re.compile(r"^\s+inet6 (?:addr: )?([0-9a-fA-F:]+)(?:/(\d+)|\s+prefixlen (\d+))")


@dataclass(frozen=True)
class Interfaces:
    """What was found, and whether its order is the kernel's (ifconfig sorts by name)."""

    found: tuple[Interface, ...] = ()
    in_kernel_order: bool = True


def parse_addresses(text: str) -> Interfaces:
    """
    Interfaces of whichever of the tools' outputs are in `text`; `ip` is believed before ifconfig.

    >>> made = parse_addresses("lo   UNKNOWN  127.0.0.1/8 ::1/128\\nib0  UP  10.0.0.5/24 fe80::1/64\\n")
    >>> [(i.name, i.index, [a.address for a in i.addresses]) for i in made.found]
    [('lo', 1, ['127.0.0.1', '::1']), ('ib0', 2, ['10.0.0.5', 'fe80::1'])]
    """
    for parse in (parse_ip_json, parse_ip_text, parse_ip_brief):
        made = parse(text)
        if any(i.addresses for i in made):
            return Interfaces(made[:MOST_INTERFACES])
    made = parse_ifconfig(text)
    return Interfaces(made[:MOST_INTERFACES], in_kernel_order=len(made) < 2)


def parse_ip_text(text: str) -> tuple[Interface, ...]:
    """
    Interfaces of `ip addr` and `ip -o addr`, nothing else in `text` being mistaken for theirs.

    >>> made = parse_ip_text("2: eth0    inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0\\n")
    >>> made[0].addresses[0].address
    '10.0.0.5'
    """
    kept: list[str] = []
    named: set[str] = set()
    inside = False
    for line in text.splitlines():
        if _IP_START.match(line):
            # `ip -o addr` shows addresses without their links: a line stands in for each.
            one = _ONE_LINE.match(line)
            name = one[2] if one else line.split(": ", 2)[1].partition("@")[0]
            if one and name not in named:
                kept.append(f"{one[1]}: {name}: <UP,LOWER_UP> mtu 0")
            named.add(name)
            inside = True
        else:
            inside = inside and line[:1].isspace() and bool(line.strip())
        if inside:
            kept.append(line)
    return tuple(_believed(i) for i in parse_ip_links("\n".join(kept))) if kept else ()


def _believed(interface: Interface) -> Interface:
    """Without what stands in an address's place and is none."""
    made = tuple(a for a in interface.addresses if _address(a.address, str(a.prefix_length)))
    return replace(interface, addresses=made)


def parse_ip_brief(text: str) -> tuple[Interface, ...]:
    """Interfaces of `ip -br addr`, in the kernel's order; the index is the place in the list."""
    found: list[Interface] = []
    for line in text.splitlines():
        if match := _BRIEF.match(line):
            name, is_up = match[1].partition("@")[0], match[2] in ("UP", "UNKNOWN")
            made = [_address(*word.split("/")) for word in match[3].split() if "/" in word]
            addresses = tuple(a for a in made if a)
            found.append(_interface(name, len(found) + 1, is_up, addresses))
    return tuple(found)


def parse_ip_json(text: str) -> tuple[Interface, ...]:
    """
    Interfaces of `ip -j addr`.

    >>> made = parse_ip_json('[{"ifindex":2,"ifname":"eth0","flags":["UP","LOWER_UP"],"mtu":1500,'
    ...     '"addr_info":[{"family":"inet","local":"10.0.0.5","prefixlen":24,"scope":"global"}]}]')
    >>> made[0].addresses[0].address
    '10.0.0.5'
    """
    start = text.find('[{"ifindex"')
    if start < 0:
        return ()
    try:
        listed = json.JSONDecoder().raw_decode(text, start)[0]
        return tuple(_from_json(item) for item in listed if item.get("ifname"))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()


def _from_json(item: dict[str, Any]) -> Interface:
    flags = item.get("flags") or []
    told = item.get("addr_info") or []
    made = [_address(str(a.get("local", "")), str(a.get("prefixlen", ""))) for a in told]
    mtu = item.get("mtu")
    return Interface(
        str(item["ifname"])[:64],
        int(item.get("ifindex", 0)),
        _kind(str(item["ifname"]), str(item.get("link_type", ""))),
        "UP" in flags,
        "LOWER_UP" in flags,
        mtu if isinstance(mtu, int) else 0,
        addresses=tuple(a for a in made if a),
    )


def parse_ifconfig(text: str) -> tuple[Interface, ...]:
    """
    Interfaces of net-tools' ifconfig, old and new, in the order shown: by name, not the kernel's.

    >>> made = parse_ifconfig('''eth0: flags=4163<UP,BROADCAST,RUNNING,MULTICAST>  mtu 1500
    ...         inet 10.0.0.23  netmask 255.255.255.0  broadcast 10.0.0.255''')
    >>> made[0].name, made[0].is_up, made[0].addresses[0].prefix_length
    ('eth0', True, 24)
    """
    found: list[Interface] = []
    inside = False
    for line in text.splitlines():
        if match := _NEW.match(line):
            flags = match[2].split(",")
            made = _interface(match[1], len(found) + 1, "UP" in flags, (), "RUNNING" in flags)
            found.append(replace(made, mtu_bytes=int(match[3])))
            inside = True
        elif match := _OLD.match(line):
            found.append(_interface(match[1], len(found) + 1, False, ()))
            inside = True
        elif not inside or not line[:1].isspace() or not line.strip():
            inside = False
        elif match := _INET.match(line):
            found[-1] = _adding(found[-1], _address(match[1], match[2] or "32"))
        elif match := _INET6.match(line):
            found[-1] = _adding(found[-1], _address(match[1], match[2] or match[3] or "128"))
        elif " MTU:" in line:
            words = line.split()
            found[-1] = replace(found[-1], is_up="UP" in words, has_carrier="RUNNING" in words)
    return tuple(found)


def _adding(interface: Interface, address: Address | None) -> Interface:
    if address is None or len(interface.addresses) >= MOST_INTERFACES:
        return interface
    return replace(interface, addresses=(*interface.addresses, address))


def _interface(
    name: str, index: int, is_up: bool, addresses: tuple[Address, ...], has_carrier: bool | None = None
) -> Interface:
    carrier = is_up if has_carrier is None else has_carrier
    return Interface(name, index, _kind(name, ""), is_up, carrier, 0, addresses=addresses)


def _kind(name: str, link_type: str) -> InterfaceKind:
    if name == "lo" or link_type == "loopback":
        return "loopback"
    return "infiniband" if link_type == "infiniband" else "physical"


def _address(text: str, length: str) -> Address | None:
    """An address with its prefix length (or netmask), None for what is none."""
    try:
        shown = ipaddress.ip_interface(f"{text}/{length}")
    except ValueError:
        return None
    scope = "host" if shown.is_loopback else "link" if shown.is_link_local else "global"
    family = "inet" if shown.version == 4 else "inet6"
    return Address(str(shown.ip), shown.network.prefixlen, family, scope)  # type: ignore[arg-type]
