"""Interfaces and addresses in the output of `ip addr` (with -o, -d, -br) and ifconfig, among other lines."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from ringup.link_kinds import KINDS
from ringup.model import Address, Interface, InterfaceKind
from ringup.units import lines_of

MOST_INTERFACES = 4096
_LINK = re.compile(r"^(\d+): ([^\s:@]+)(?:@(\S+))?: <([^>]*)> (.*)$")
_HARDWARE = re.compile(r"^\s*link/(\S+)")
_UNINDENTED = re.compile(r"(?:link/|inet6? |valid_lft |altname |RX|TX|prefix)")
"""Beginnings of lines that belong to an interface although their indentation was lost."""
_BRIEF = re.compile(
    r"^([\w.@:-]{1,32})\s+(UP|DOWN|UNKNOWN|LOWERLAYERDOWN|DORMANT)\b"
    r"((?:\s{1,40}[0-9a-fA-F:.]{2,45}(?: peer [0-9a-fA-F:.]{2,45})?/\d{1,3}(?: metric \d{1,10})?)*)\s*$"
)
_IFCONFIG = re.compile(r"^([\w.@:-]{1,32})(?:: flags=\d+<([^>]*)>\s+mtu (\d{1,9})|\s+Link encap:\S)")
_ADDRESS = re.compile(r"^(?:(\d+): ([^\s:@]+)\s)?\s*inet6? (?:addr: ?)?([0-9a-fA-F:.]{2,45})(?:/(\d+))?(.*)$")
_LENGTH = re.compile(r"(?:netmask |Mask:|prefixlen )([\d.]+)\b")

BY_NAME: dict[InterfaceKind, tuple[str, ...]] = {
    "bridge": ("docker", "br-", "virbr", "cni", "lxcbr"),
    "veth": ("veth", "cali"),
    "tunnel": ("tun", "tap", "tailscale", "wg", "flannel"),
    "bond": ("bond",),
}
"""Name prefixes that determine the kind if the output has no details (busybox, without -d)."""


def parse_addresses(text: str) -> tuple[tuple[Interface, ...], bool]:
    """
    Interfaces in either output, and whether they are in the kernel's order (ifconfig sorts by name).

    >>> found, _ = parse_addresses("lo   UNKNOWN  127.0.0.1/8 ::1/128\\nib0  UP  10.0.0.5/24 fe80::1/64\\n")
    >>> [(i.name, i.index, [a.address for a in i.addresses]) for i in found]
    [('lo', 1, ['127.0.0.1', '::1']), ('ib0', 2, ['10.0.0.5', 'fe80::1'])]
    >>> parse_addresses("2: eth0    inet 10.0.0.5/24 scope global eth0\\n")[0][0].addresses[0].address
    '10.0.0.5'
    >>> found, in_kernel_order = parse_addresses('''eth0: flags=4163<UP,BROADCAST,RUNNING>  mtu 1500
    ...         inet 10.0.0.23  netmask 255.255.255.0  broadcast 10.0.0.255''')
    >>> found[0].name, found[0].is_up, found[0].addresses[0].prefix_length
    ('eth0', True, 24)
    """
    shown = _shown(text)
    for tool in ("ip", "brief"):
        if any(one["addresses"] for one in shown[tool].values()):
            return made(shown[tool].items()), True
    return made(shown["ifconfig"].items()), len(shown["ifconfig"]) < 2


def _shown(text: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Tool -> name -> its lines about each interface."""
    found: dict[str, dict[str, dict[str, Any]]] = {"ip": {}, "brief": {}, "ifconfig": {}}
    current: dict[str, Any] | None = None
    for line in lines_of(text.replace("\\", "\n")):  # `ip -o` writes a backslash in place of a line end
        if match := _LINK.match(line):
            words = match[5].split()
            current = found["ip"].setdefault(match[2], {"addresses": []})
            mtu = _after("mtu", words)
            current |= {"index": int(match[1]), "flags": match[4].split(","), "beside": match[3] or ""}
            current |= {"mtu": int(mtu) if mtu.isdecimal() else 0, "master": _after("master", words)}
        elif (match := _ADDRESS.match(line)) and (match[1] or current is not None):
            if match[1]:  # `ip -o addr` shows addresses without their links
                unseen = {"addresses": [], "index": int(match[1]), "flags": ["UP", "LOWER_UP"]}
                current = found["ip"].setdefault(match[2], unseen)
            assert current is not None
            length = _LENGTH.search(match[5])
            scope = _after("scope", match[5].split()) or "global"
            add(current, match[3], match[4] or (length[1] if length else ""), scope)
        elif match := _BRIEF.match(line):
            flags = ["UP", "LOWER_UP"] if match[2] in ("UP", "UNKNOWN") else []
            brief = found["brief"].setdefault(match[1].partition("@")[0], {"addresses": [], "flags": flags})
            for word in re.sub(r" peer \S+| metric \d+", "", match[3]).split():
                add(brief, *word.split("/")[:2])
            current = None
        elif match := _IFCONFIG.match(line):
            current = found["ifconfig"].setdefault(match[1], {"addresses": []})
            current |= {"flags": (match[2] or "").split(","), "mtu": int(match[3] or 0)}
        elif current is None or not (line[:1].isspace() or _UNINDENTED.match(line)) or not line.strip():
            current = None
        elif " MTU:" in line:  # busybox's ifconfig
            current["flags"] = line.split()
        else:
            if match := _HARDWARE.match(line):
                current["type"] = match[1]
            for word in line.split():
                if word in KINDS:
                    current.setdefault("kind", KINDS[word])
    return found


def add(shown: dict[str, Any], text: str, length: str = "", scope: str = "global") -> None:
    """Add an address with its prefix length or netmask; other text is left out."""
    try:
        known = ipaddress.ip_interface(f"{text}/{length}" if length else text)
    except ValueError:
        return
    scope = "host" if known.is_loopback else "link" if known.is_link_local else scope
    family: Literal["inet", "inet6"] = "inet" if known.version == 4 else "inet6"
    if len(shown["addresses"]) < MOST_INTERFACES:
        shown["addresses"].append(Address(str(known.ip), known.network.prefixlen, family, scope))


def made(shown: Iterable[tuple[str, dict[str, Any]]]) -> tuple[Interface, ...]:
    """Interfaces by their index; without one, by their position."""
    found = []
    for place, (name, one) in enumerate(shown, 1):
        flags, more = one["flags"], {"master": one.get("master", ""), "addresses": tuple(one["addresses"])}
        state = "UP" in flags, "LOWER_UP" in flags or "RUNNING" in flags, one.get("mtu", 0)
        found.append(Interface(name, one.get("index", place), kind_of(name, one), *state, **more))
    return tuple(sorted(found, key=lambda interface: interface.index))[:MOST_INTERFACES]


def kind_of(name: str, shown: dict[str, Any]) -> InterfaceKind:
    """An interface's kind from its link type, its peer or parent, and its name."""
    link_type, beside, known = shown.get("type", ""), shown.get("beside", ""), shown.get("kind")
    if link_type == "loopback" or name == "lo":
        return "loopback"
    if link_type == "infiniband":
        return "infiniband"
    if link_type in ("ipip", "sit", "gre", "none", "tunnel6"):
        return "tunnel"
    by_name: Iterator[InterfaceKind] = (kind for kind, starts in BY_NAME.items() if name.startswith(starts))
    # eth0@if7 is a container's end of a veth; eth0.5@eth0 may be many kinds, but not a physical device.
    rest: InterfaceKind = "veth" if beside.startswith("if") else "virtual" if beside else "physical"
    return known or next(by_name, rest)


def _after(word: str, words: list[str]) -> str:
    return words[words.index(word) + 1] if word in words[:-1] else ""
