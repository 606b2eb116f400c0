"""Output of iproute2's `ip`, with or without `-o` and `-d`: links, addresses, routes."""

from __future__ import annotations

import dataclasses
import re

from ringup.facts import Address, Interface, InterfaceKind, Route

_LINK = re.compile(r"^(\d+): ([^\s:@]+)(?:@(\S+))?: <([^>]*)> (.*)$")
_ADDRESS = re.compile(r"^(?:(\d+): (\S+)\s+|\s+)(inet6?) (\S+)(.*)$")
_HARDWARE = re.compile(r"^\s+link/(\S+)(?: ([0-9a-f:]+))?(.*)$")

KINDS: dict[str, InterfaceKind] = {
    "bridge": "bridge",
    "openvswitch": "bridge",
    "veth": "veth",
    "bond": "bond",
    "team": "bond",
    "vlan": "vlan",
    "macvlan": "macvlan",
    "macvtap": "macvlan",
    "ipvlan": "macvlan",
    "tun": "tunnel",
    "gre": "tunnel",
    "gretap": "tunnel",
    "ipip": "tunnel",
    "sit": "tunnel",
    "ip6tnl": "tunnel",
    "vxlan": "tunnel",
    "geneve": "tunnel",
    "wireguard": "tunnel",
    "dummy": "virtual",
    "ifb": "virtual",
    "vrf": "virtual",
    "ipoib": "infiniband",
}
"""Words by which `ip -d link` names a device's kind."""

_BY_NAME: tuple[tuple[str, InterfaceKind], ...] = (
    ("docker", "bridge"),
    ("br-", "bridge"),
    ("virbr", "bridge"),
    ("cni", "bridge"),
    ("lxcbr", "bridge"),
    ("veth", "veth"),
    ("cali", "veth"),
    ("tun", "tunnel"),
    ("tap", "tunnel"),
    ("tailscale", "tunnel"),
    ("wg", "tunnel"),
    ("flannel", "tunnel"),
    ("bond", "bond"),
)
"""Where the output has no details (busybox): names that give the kind away."""


def _kind(name: str, link_type: str, details: str, beside: str = "") -> InterfaceKind:
    """`beside` is what stands after @: the other end, or what the link sits on."""
    if link_type == "loopback":
        return "loopback"
    if link_type == "infiniband":
        return "infiniband"
    if link_type in ("ipip", "sit", "gre", "none", "tunnel6"):
        return "tunnel"
    for word in details.split():
        if word in KINDS:
            return KINDS[word]
    known = next((kind for start, kind in _BY_NAME if name.startswith(start)), None)
    # eth0@if7 is a container's end of a veth; eth0.5@eth0 may be many things, none of them a device.
    return known or ("veth" if beside.startswith("if") else "virtual" if beside else "physical")


def _after(word: str, words: list[str], default: str = "") -> str:
    """The word after another one."""
    return words[words.index(word) + 1] if word in words[:-1] else default


def _scope(address: str, scope: str) -> str:
    if address.startswith("169.254."):
        return "link"
    return "host" if address.startswith("127.") else scope


def parse_ip_links(text: str) -> tuple[Interface, ...]:
    """
    Interfaces of `ip addr` or `ip link`, or of both one after the other, in order of index.

    >>> made = parse_ip_links('''2: eth0: <BROADCAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default
    ...     link/ether 02:42:ac:11:00:02 brd ff:ff:ff:ff:ff:ff
    ...     inet 10.0.0.5/24 brd 10.0.0.255 scope global eth0''')
    >>> made[0].name, made[0].mtu_bytes, made[0].addresses[0].address
    ('eth0', 1500, '10.0.0.5')
    """
    found: dict[str, Interface] = {}
    details: dict[str, tuple[str, str]] = {}
    beside: dict[str, str] = {}
    current = ""
    for line in text.replace("\\", "\n").splitlines():
        if match := _LINK.match(line):
            current = match[2]
            beside[current] = match[3] or ""
            words = match[5].split()
            flags = match[4].split(",")
            mtu = _after("mtu", words, "0")
            found[current] = dataclasses.replace(
                found.get(current, Interface(current, int(match[1]), "physical", False, False, 0)),
                is_up="UP" in flags,
                has_carrier="LOWER_UP" in flags,
                mtu_bytes=int(mtu) if mtu.isdecimal() else 0,
                master=_after("master", words),
            )
        elif (match := _HARDWARE.match(line)) and current in found:
            details[current] = (match[1], match[3])
            mac = match[2] or ""
            if mac.strip("0:"):
                found[current] = dataclasses.replace(found[current], mac=mac)
        elif match := _ADDRESS.match(line):
            name = match[2] or current
            address, _, length = match[4].partition("/")
            inet6 = match[3] == "inet6"
            scope = _scope(address, _after("scope", match[5].split(), "global"))
            if name in found:
                made = Address(
                    address,
                    int(length) if length.isdecimal() else (128 if inet6 else 32),
                    "inet6" if inet6 else "inet",
                    scope,
                )
                found[name] = dataclasses.replace(found[name], addresses=(*found[name].addresses, made))
        elif current in details and line.startswith(" "):
            link_type, known = details[current]
            details[current] = (link_type, known + line)
    shown = [
        dataclasses.replace(i, kind=_kind(n, *details.get(n, ("", "")), beside[n])) for n, i in found.items()
    ]
    return tuple(sorted(shown, key=lambda interface: interface.index))


def parse_ip_routes(text: str) -> tuple[Route, ...]:
    """
    Unicast routes of `ip route`.

    >>> parse_ip_routes("default via 10.0.0.1 dev eth0 metric 100\\n")
    (Route(destination='default', interface='eth0', gateway='10.0.0.1', source='', metric=100),)
    """
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words or "dev" not in words or words[0] in ("unreachable", "blackhole", "prohibit", "nexthop"):
            continue
        where = words[0] if words[0] == "default" or "/" in words[0] else words[0] + "/32"
        metric = _after("metric", words, "0")
        found.append(
            Route(
                where,
                _after("dev", words),
                _after("via", words),
                _after("src", words),
                int(metric) if metric.isdecimal() else 0,
            )
        )
    return tuple(found)
