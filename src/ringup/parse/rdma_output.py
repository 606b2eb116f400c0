"""RDMA devices in the output of ibstatus, ibstat, ibdev2netdev, `rdma link`, ibv_devinfo and others."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from ringup.model import Gid, RdmaPort
from ringup.units import lines_of, natural, parse_rate_gbit_s

MOST_PORTS = 4096
_NAME = r"[A-Za-z][\w.-]{0,62}"
_BUS = r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

_IBSTATUS = re.compile(rf"Infiniband device '({_NAME})' port (\d{{1,3}}) status:\s*$")
_IBSTAT_CA = re.compile(rf"(?:^|\s)CA '({_NAME})'\s*$")
_IBSTAT_PORT = re.compile(r"^\s+Port (\d{1,3}):\s*$")
_DEVINFO_CA = re.compile(rf"^hca_id:\s+({_NAME})\s*$")
_DEVINFO_PORT = re.compile(r"^\s+port:\s+(\d{1,3})\s*$")
_PAIR = re.compile(r"^\s+([A-Za-z_][\w ]*):\s+(\S.*)$")
_GID = re.compile(r"^\s+GID\[\s*(\d+)\]:\s+([0-9a-fA-F:.]+)(?:,(.*))?$")
_BLANKS = re.compile(r"[ \t]+")
"""`| column -t` inserts more of them between the words."""
_NETDEV = re.compile(
    rf"(?:^|\s)(?:({_BUS}) )?({_NAME}) (?:\(.{{0,200}} )?port (\d{{1,3}}) "
    r"(?:\((\w+) *\) *)?==> (\S+) \((\w+)\)\s*$"
)
_LINK = re.compile(
    rf"(?:^|\s)(?:\d+/\d+: )?(?:link )?({_NAME})/(\d{{1,3}}):? (.{{0,200}}?)\bstate (\S+) "
    r"physical_state \S+(?: netdev (\S+))?"
)
_LAYERS = {
    "InfiniBand": re.compile(r"ib[\dpsxfn]\w*"),
    "Ethernet": re.compile(r"en[opsxPb]\w+|eth\d\S*|em\d\w*|p\d+p\d+|roce\w+"),
}
"""
Link layer -> names that udev gives an interface (`ibp3s0`, `enp1s0f0np0`) or a device (`rocep1s0f0`) of it:
systemd.net-naming-scheme(7), rdma-core's persistent names.
"""
_GIDS_ROW = re.compile(
    rf"^\s*({_NAME})\s+(\d{{1,3}})\s+(\d{{1,4}})\s+([0-9a-fA-F:]{{39}})\s+(?:[\d.]+\s+)?v([12])(?:\s+(\S+))?\s*$"
)


def state_of(text: str) -> str:
    """
    A port's state as one word.

    >>> state_of("4: ACTIVE"), state_of("PORT_ACTIVE (4)"), state_of("Active"), state_of("Initializing")
    ('ACTIVE', 'ACTIVE', 'ACTIVE', 'INIT')
    """
    match = re.search(r"[A-Za-z_]+", text)
    word = match[0].upper().removeprefix("PORT_") if match else ""
    return {"INITIALIZING": "INIT", "INITIALIZE": "INIT"}.get(word, word)


def gid_of(text: str) -> str:
    """
    A GID in its shortest form, "" for other text.

    >>> gid_of("0000:0000:0000:0000:0000:ffff:0a00:0001"), gid_of("fe80:0000::1"), gid_of("x")
    ('::ffff:10.0.0.1', 'fe80::1', '')
    """
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return ""
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def _rate(value: str) -> float | None:
    """ibstatus writes `200 Gb/sec (4X HDR)`, ibstat only the number of gigabits."""
    try:
        return parse_rate_gbit_s(value if " " in value else f"{value} Gb/s")
    except ValueError:
        return None


def _guid(value: str) -> str:
    """ "0x0ac0ebfffefe8e14" of ibstat and "0ac0:ebff:fefe:8e14" of ibv_devinfo as hexadecimal digits."""
    return re.sub(r"[^0-9a-f]", "", value.lower().removeprefix("0x"))[:16]


_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "state": ("state", state_of),
    "link layer": ("link_layer", lambda value: value.split()[0]),
    "rate": ("rate_gbit_s", _rate),
    "system image guid": ("guid", _guid),
    "sys image guid": ("guid", _guid),
    "default gid": ("gids", lambda value: [Gid(0, gid_of(value))]),
}
"""Key of a `key: value` line (with _ for a blank) -> field of RdmaPort and the parser of its value."""


def _sections(text: str, head: re.Pattern[str], port: re.Pattern[str] | None = None) -> list[RdmaPort]:
    """
    Ports of a tool that writes `key: value` lines below `head`, for each `port` of a device if given.

    >>> made = parse_ibv_devinfo('''hca_id: mlx5_0
    ...     sys_image_guid:   0ac0:ebff:fefe:8e14
    ...         port:   1
    ...             state:        PORT_ACTIVE (4)
    ...             link_layer:   Ethernet
    ...             GID[  1]:     ::ffff:10.0.0.1, RoCE v2''')
    >>> made[0].state, made[0].guid, made[0].gids[0].kind
    ('ACTIVE', '0ac0ebfffefe8e14', 'RoCE v2')
    """
    found: list[dict[str, Any]] = []
    inside = False
    for line in lines_of(text):
        if match := head.search(line):
            # Number 0 is the device until one of its ports is found.
            found.append({"device": match[1], "number": 0 if port else int(match[2])})
            inside = True
        elif not inside or not line.strip():
            continue
        elif port and (match := port.match(line)):
            if found[-1]["number"]:
                found.append({name: found[-1][name] for name in ("device", "guid") if name in found[-1]})
            found[-1]["number"] = int(match[1])
        elif match := _GID.match(line):
            kind = (match[3] or "").strip()
            gid = Gid(int(match[1]), gid_of(match[2]), "IB/RoCE v1" if kind == "RoCE v1" else kind)
            found[-1].setdefault("gids", []).append(gid)
        elif match := _PAIR.match(line):
            field, convert = _FIELDS.get(match[1].lower().replace("_", " "), ("", str))
            if field:
                found[-1][field] = convert(match[2].rstrip())
        else:
            inside = line[:1].isspace()
    for one in found:
        one["number"] = one["number"] or 1
        one["gids"] = tuple(gid for gid in one.get("gids", ())[:MOST_PORTS] if gid.gid)
    return [RdmaPort(**one) for one in found]


parse_ibstatus = partial(_sections, head=_IBSTATUS)
parse_ibstat = partial(_sections, head=_IBSTAT_CA, port=_IBSTAT_PORT)
"""A device without its port lines (`ibstat | grep mlx5`) gets port 1 with an unknown state."""
parse_ibv_devinfo = partial(_sections, head=_DEVINFO_CA, port=_DEVINFO_PORT)
"""Includes the GID table if `-v` was given."""


def _rows(text: str, row: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Lines of a tool that shows one port per line."""
    return (match for line in lines_of(text) if len(line) < 1000 and (match := row.search(line)))


def parse_ibdev2netdev(text: str) -> list[RdmaPort]:
    """
    Ports of `ibdev2netdev`, with or without `-v`; an interface that is up has an active port.

    A RoCE port is down where its interface is; IPoIB may be down on an active port.

    >>> made = parse_ibdev2netdev("mlx5_1 port 1 ==> ib0 (Down)\\nmlx5_2 port 1 ==> ens17np0 (Down)\\n")
    >>> [(p.name, p.netdev, p.link_layer, p.state) for p in made]
    [('mlx5_1:1', 'ib0', 'InfiniBand', ''), ('mlx5_2:1', 'ens17np0', 'Ethernet', 'DOWN')]
    """
    found = []
    rows = _rows(_BLANKS.sub(" ", text), _NETDEV)
    for bus, device, number, state, netdev, up in map(re.Match.groups, rows):
        layers = (layer for layer, names in _LAYERS.items() for n in (device, netdev) if names.fullmatch(n))
        layer = next(layers, "")
        known = "ACTIVE" if up == "Up" else "DOWN" if layer == "Ethernet" else ""
        bus_id = (bus or "").lower()
        state = state_of(state or "") or known
        found.append(RdmaPort(device, int(number), state, link_layer=layer, netdev=netdev, bus_id=bus_id))
    return found


def parse_rdma_link(text: str) -> list[RdmaPort]:
    """
    Ports of `rdma link`; only InfiniBand has a subnet prefix there.

    >>> made = parse_rdma_link("link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth2 \\n"
    ...     "link mlx5_1/1 subnet_prefix fe80:0000:0000:0000 lid 6 sm_lid 6 lmc 0 state DOWN "
    ...     "physical_state POLLING\\n")
    >>> [(p.name, p.link_layer, p.state, p.netdev) for p in made]
    [('mlx5_0:1', 'Ethernet', 'ACTIVE', 'eth2'), ('mlx5_1:1', 'InfiniBand', 'DOWN', '')]
    """
    found = []
    for device, number, words, state, netdev in map(re.Match.groups, _rows(text, _LINK)):
        layer = "InfiniBand" if "subnet_prefix" in words.split() else "Ethernet" if netdev else ""
        found.append(RdmaPort(device, int(number), state_of(state), link_layer=layer, netdev=netdev or ""))
    return found


def parse_show_gids(text: str) -> list[RdmaPort]:
    """
    GID tables of `show_gids`.

    >>> made = parse_show_gids("mlx5_0\\t1\\t3\\t0000:0000:0000:0000:0000:ffff:0a0a:0a6e\\t10.10.10.110  "
    ...     "\\tv2\\tens13np0\\n")
    >>> made[0].gids
    (Gid(index=3, gid='::ffff:10.10.10.110', kind='RoCE v2', netdev='ens13np0'),)
    """
    found: dict[tuple[str, int], list[Gid]] = {}
    for device, port, index, gid, version, netdev in map(re.Match.groups, _rows(text, _GIDS_ROW)):
        kind = "RoCE v2" if version == "2" else "IB/RoCE v1"
        found.setdefault((device, int(port)), []).append(Gid(int(index), gid_of(gid), kind, netdev or ""))
    made = []
    for key, gids in found.items():
        # Only RoCE has version 2.
        layer = "Ethernet" if any(gid.kind == "RoCE v2" for gid in gids) else ""
        made.append(RdmaPort(*key, link_layer=layer, netdev=gids[0].netdev, gids=(*gids[:MOST_PORTS],)))
    return made


_EFA = re.compile(
    rf"^provider: efa$(?:\n[ \t]{{1,8}}(?!domain)\w.{{0,200}}$){{0,8}}\n[ \t]{{1,8}}domain: ({_NAME}?)-\w+$",
    re.M,
)


def parse_fi_info(text: str) -> list[RdmaPort]:
    """
    Amazon's devices in `fi_info -p efa`; only a plugin can use their link layer.

    >>> made = parse_fi_info("provider: efa\\n    fabric: efa\\n    domain: rdmap49s0-rdm\\n")
    >>> [(p.name, p.state, p.link_layer) for p in made]
    [('rdmap49s0:1', 'ACTIVE', 'Unspecified')]
    """
    names = dict.fromkeys(match[1] for match in _EFA.finditer(text))
    return [RdmaPort(name, 1, "ACTIVE", link_layer="Unspecified") for name in names]


IN_LIBRARY_ORDER = (parse_ibv_devinfo, parse_rdma_link)
"""Tools that list devices in the order of libibverbs and NCCL."""
OTHERS = (parse_ibstatus, parse_ibstat, parse_ibdev2netdev, parse_show_gids, parse_fi_info)
"""Tools that list them by name."""


def parse_rdma(text: str) -> tuple[RdmaPort, ...]:
    """Every port in any tool's output in `text`, merged, in NCCL's order."""
    listed = [p for parse in IN_LIBRARY_ORDER for p in parse(text)]
    others = sorted((p for parse in OTHERS for p in parse(text)), key=lambda p: natural(p.device))
    return merge([*listed, *others][:MOST_PORTS])


def merge(ports: Iterable[RdmaPort]) -> tuple[RdmaPort, ...]:
    """
    One port for each name; values that the first source lacks come from the next.

    >>> made = merge([RdmaPort("mlx5_0", 1, "DOWN"), RdmaPort("mlx5_0", 1, "ACTIVE", netdev="eth2")])
    >>> [(p.name, p.state, p.netdev) for p in made]
    [('mlx5_0:1', 'DOWN', 'eth2')]
    """
    found: dict[str, RdmaPort] = {}
    for port in ports:
        known = found.setdefault(port.name, port)
        values = {name: value or getattr(port, name) for name, value in vars(known).items()}
        # GID tables are merged by index; an entry with a kind has priority.
        table = {g.index: g for g in known.gids}
        table |= {g.index: g for g in port.gids if g.index not in table or not table[g.index].kind}
        found[port.name] = RdmaPort(**{**values, "gids": tuple(table[n] for n in sorted(table))})
    # `ibstat | grep mlx5` names only devices; a port with another number is then the real one.
    stated = {p.device for p in found.values() if p.state}
    kept = [p for p in found.values() if p.state or p.link_layer or p.device not in stated]
    first = {p.device: n for n, p in reversed(list(enumerate(kept)))}
    return tuple(sorted(kept, key=lambda p: (first[p.device], p.number)))
