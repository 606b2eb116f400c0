"""
Output of the tools that show RDMA devices, in any mix and among other lines.

ibstatus, ibstat, ibdev2netdev, `rdma link`, ibv_devinfo, ibv_devices and show_gids.  Each tells a
part of what a port is; `merge` completes one by the other.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from ringup.facts import Gid, RdmaPort
from ringup.units import parse_rate_gbit_s, printable

MOST_PORTS = 4096
_NAME = r"[A-Za-z][\w.-]{0,62}"
_BUS = r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"

_IBSTATUS = re.compile(rf"Infiniband device '({_NAME})' port (\d{{1,3}}) status:\s*$")
_IBSTAT_CA = re.compile(rf"(?:^|\s)CA '({_NAME})'\s*$")
_IBSTAT_PORT = re.compile(r"^\s+Port (\d{1,3}):\s*$")
_DEVINFO_CA = re.compile(rf"^hca_id:\s+({_NAME})\s*$")
_DEVINFO_PORT = re.compile(r"^\s+port:\s+(\d{1,3})\s*$")
_LANES = re.compile(r"\((\d{1,2})X")
_DEVICES_ROW = re.compile(rf"^\s+({_NAME})\s+([0-9a-f]{{16}})\s*$")
_PAIR = re.compile(r"^\s+([A-Za-z_][\w ]*?):\s+(\S.*?)\s*$")
_GID = re.compile(r"^\s+GID\[\s*(\d+)\]:\s+([0-9a-fA-F:.]+)(?:,\s*(.*?))?\s*$")
_NETDEV = re.compile(
    rf"(?:^|\s)(?:({_BUS}) )?({_NAME}) (?:\(.* )?port (\d{{1,3}}) (?:\((\w+)\) *)?==> (\S+) \((\w+)\)\s*$"
)
_LINK = re.compile(
    rf"(?:^|\s)(?:\d+/\d+: )?(?:link )?({_NAME})/(\d{{1,3}}):? (.*?)\bstate (\S+) physical_state (\S+)"
    r"(?: netdev (\S+))?"
)
_GIDS_ROW = re.compile(
    rf"^({_NAME})\s+(\d{{1,3}})\s+(\d{{1,4}})\s+([0-9a-fA-F:]{{39}})\s+(?:[\d.]+\s+)?v([12])(?:\s+(\S+))?\s*$"
)


def state_of(text: str) -> str:
    """
    A port's state in one word.

    >>> state_of("4: ACTIVE"), state_of("PORT_ACTIVE (4)"), state_of("Active"), state_of("Initializing")
    ('ACTIVE', 'ACTIVE', 'ACTIVE', 'INIT')
    """
    match = re.search(r"[A-Za-z_]+", text)
    word = match[0].upper().removeprefix("PORT_") if match else ""
    return {"INITIALIZING": "INIT", "INITIALIZE": "INIT"}.get(word, word)


def gid_of(text: str) -> str:
    """
    A GID in its shortest form, "" for what is none.

    >>> gid_of("0000:0000:0000:0000:0000:ffff:0a00:0001"), gid_of("fe80:0000::1"), gid_of("x")
    ('::ffff:10.0.0.1', 'fe80::1', '')
    """
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return ""
    return f"::ffff:{address.ipv4_mapped}" if address.ipv4_mapped else str(address)


def parse_ibstatus(text: str) -> list[RdmaPort]:
    """
    Ports of `ibstatus`; a label before the first line is fine.

    >>> made = parse_ibstatus('''Infiniband device 'mlx5_1' port 1 status:
    ...     state:       4: ACTIVE
    ...     rate:        200 Gb/sec (4X HDR)
    ...     link_layer:  InfiniBand''')
    >>> made[0].name, made[0].state, made[0].rate_gbit_s, made[0].link_layer
    ('mlx5_1:1', 'ACTIVE', 200.0, 'InfiniBand')
    """
    found: list[RdmaPort] = []
    inside = False
    for line in text.splitlines():
        if match := _IBSTATUS.search(line):
            found.append(RdmaPort(match[1], int(match[2])))
            inside = True
        elif inside and (match := _PAIR.match(line)):
            found[-1] = _with(found[-1], match[1], match[2])
        else:
            inside = False
    return found


def _with(port: RdmaPort, key: str, value: str) -> RdmaPort:
    """The port with one `key: value` line of ibstatus, ibstat or ibv_devinfo."""
    match key.lower().replace("_", " "):
        case "state":
            return dataclasses.replace(port, state=state_of(value))
        case "phys state" | "physical state":
            return dataclasses.replace(port, physical_state=value.split(": ")[-1].split(" (")[0])
        case "link layer":
            return dataclasses.replace(port, link_layer=value.split()[0])
        case "rate":
            lanes = _LANES.search(value)
            width = int(lanes[1]) if lanes else port.width
            return dataclasses.replace(port, rate_gbit_s=_rate(value), width=width)
        case "base lid" | "port lid":
            return dataclasses.replace(port, lid=_whole(value))
        case "sm lid":
            return dataclasses.replace(port, sm_lid=_whole(value))
        case "active mtu":
            return dataclasses.replace(port, active_mtu_bytes=_whole(value.split()[0]))
        case "active width":
            return dataclasses.replace(port, width=_whole(value.split()[0].rstrip("xX")))
        case "fw ver" | "firmware version":
            return dataclasses.replace(port, firmware=printable(value, 64))
        case "ca type":
            return dataclasses.replace(port, hca_type=printable(value, 64))
        case "board id":
            return dataclasses.replace(port, board_id=printable(value, 64))
        case "system image guid" | "sys image guid":
            return dataclasses.replace(port, guid=_digits(value))
        case "default gid":
            gid = gid_of(value)
            return dataclasses.replace(port, gids=(Gid(0, gid),) if gid else ())
    return port


def _rate(value: str) -> float | None:
    """ibstatus writes `200 Gb/sec (4X HDR)`, ibstat a bare number of gigabits."""
    try:
        return parse_rate_gbit_s(value if " " in value else f"{value} Gb/s")
    except ValueError:
        return None


def _whole(value: str) -> int:
    try:
        return int(value, 0) & 0xFFFFFFFF
    except ValueError:
        return 0


def _digits(value: str) -> str:
    """
    A GUID's hexadecimal digits.

    >>> _digits("0x0ac0ebfffefe8e14"), _digits("0ac0:ebff:fefe:8e14")
    ('0ac0ebfffefe8e14', '0ac0ebfffefe8e14')
    """
    return re.sub(r"[^0-9a-f]", "", value.lower().removeprefix("0x"))[:16]


def parse_ibstat(text: str) -> list[RdmaPort]:
    """
    Ports of `ibstat`; a device whose ports were cut away (`ibstat | grep mlx5`) gets port 1 of unknown state.

    >>> [p.name for p in parse_ibstat("CA 'mlx5_0'\\nCA 'mlx5_1'\\n")]
    ['mlx5_0:1', 'mlx5_1:1']
    """
    return _two_levels(text, _IBSTAT_CA, _IBSTAT_PORT)


def parse_ibv_devinfo(text: str) -> list[RdmaPort]:
    """
    Ports of `ibv_devinfo`, with the GID table where `-v` was given.

    >>> made = parse_ibv_devinfo('''hca_id: mlx5_0
    ...     sys_image_guid:   0ac0:ebff:fefe:8e14
    ...         port:   1
    ...             state:        PORT_ACTIVE (4)
    ...             link_layer:   Ethernet
    ...             GID[  1]:     ::ffff:10.0.0.1, RoCE v2''')
    >>> made[0].state, made[0].guid, made[0].gids[0].kind
    ('ACTIVE', '0ac0ebfffefe8e14', 'RoCE v2')
    """
    return _two_levels(text, _DEVINFO_CA, _DEVINFO_PORT)


def _two_levels(text: str, device: re.Pattern[str], port: re.Pattern[str]) -> list[RdmaPort]:
    """A device with lines of its own, then its ports with theirs."""
    found: list[RdmaPort] = []
    inside = False
    for line in text.splitlines():
        if match := device.search(line):
            # Port 0 stands for the device until a port of it is seen.
            found.append(RdmaPort(match[1], 0))
            inside = True
        elif not inside or not line.strip():
            continue
        elif match := port.match(line):
            whole = found[-1]
            made = _of_device(whole, int(match[1]))
            found[-1:] = [made] if whole.number == 0 else [whole, made]
        elif match := _GID.match(line):
            found[-1] = _with_gid(found[-1], int(match[1]), match[2], match[3] or "")
        elif match := _PAIR.match(line):
            found[-1] = _with(found[-1], match[1], match[2])
        else:
            inside = line[:1].isspace()
    return [dataclasses.replace(p, number=1) if p.number == 0 else p for p in found]


def _of_device(whole: RdmaPort, number: int) -> RdmaPort:
    """A port of that device, with what all of its ports share."""
    return RdmaPort(
        whole.device,
        number,
        guid=whole.guid,
        firmware=whole.firmware,
        hca_type=whole.hca_type,
        board_id=whole.board_id,
    )


def _with_gid(port: RdmaPort, index: int, text: str, kind: str) -> RdmaPort:
    gid = gid_of(text)
    if not gid or len(port.gids) >= MOST_PORTS:
        return port
    kind = "IB/RoCE v1" if kind == "RoCE v1" else kind
    return dataclasses.replace(port, gids=(*port.gids, Gid(index, gid, kind)))


def parse_ibdev2netdev(text: str) -> list[RdmaPort]:
    """
    Ports of `ibdev2netdev`, with or without `-v`; an interface that is up has an active port below it.

    >>> made = parse_ibdev2netdev("mlx5_1 port 1 ==> ib0 (Up)\\nmlx5_2 port 1 ==> ens17np0 (Down)\\n")
    >>> [(p.name, p.netdev, p.state) for p in made]
    [('mlx5_1:1', 'ib0', 'ACTIVE'), ('mlx5_2:1', 'ens17np0', '')]
    """
    found = []
    for line in text.splitlines():
        if match := _NETDEV.search(line):
            told = state_of(match[4] or "")
            # An interface may be down over a port that is active, never the other way round.
            state = told or ("ACTIVE" if match[6] == "Up" else "")
            bus = (match[1] or "").lower()
            found.append(RdmaPort(match[2], int(match[3]), state, netdev=match[5], bus_id=bus))
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
    for line in text.splitlines():
        if len(line) < 1000 and (match := _LINK.search(line)):
            words = match[3].split()
            layer = "InfiniBand" if "subnet_prefix" in words else "Ethernet" if match[6] else ""
            told = dict(pairwise(words))
            made = RdmaPort(
                match[1], int(match[2]), state_of(match[4]), match[5], layer, netdev=match[6] or ""
            )
            lids = _whole(told.get("lid", "0")), _whole(told.get("sm_lid", "0"))
            found.append(dataclasses.replace(made, lid=lids[0], sm_lid=lids[1]))
    return found


def parse_ibv_devices(text: str) -> list[RdmaPort]:
    """
    Devices of `ibv_devices`, in the order libibverbs has them.

    >>> text = "    device    node GUID\\n    ------    -----\\n    mlx5_1    0ac0ebfffefe8e14\\n"
    >>> made = parse_ibv_devices(text)
    >>> [p.device for p in made]
    ['mlx5_1']
    """
    found = []
    inside = False
    for line in text.splitlines():
        if line.split() == ["device", "node", "GUID"] or (inside and set(line.split()[0:1]) == {"------"}):
            inside = True
        elif inside and (match := _DEVICES_ROW.match(line)):
            found.append(RdmaPort(match[1], 1))
        else:
            inside = inside and line.strip().startswith("---")
    return found


def parse_show_gids(text: str) -> list[RdmaPort]:
    """
    GID tables of `show_gids`.

    >>> made = parse_show_gids("mlx5_0\\t1\\t3\\t0000:0000:0000:0000:0000:ffff:0a0a:0a6e\\t10.10.10.110  "
    ...     "\\tv2\\tens13np0\\n")
    >>> made[0].gids
    (Gid(index=3, gid='::ffff:10.10.10.110', kind='RoCE v2', netdev='ens13np0'),)
    """
    found: dict[tuple[str, int], RdmaPort] = {}
    for line in text.splitlines():
        if match := _GIDS_ROW.match(line):
            key = match[1], int(match[2])
            port = found.get(key, RdmaPort(*key, netdev=match[6] or ""))
            if len(port.gids) >= MOST_PORTS:
                continue
            kind = "RoCE v2" if match[5] == "2" else "IB/RoCE v1"
            gid = Gid(int(match[3]), gid_of(match[4]), kind, match[6] or "")
            found[key] = dataclasses.replace(port, gids=(*port.gids, gid))
    return list(found.values())


IN_LIBRARY_ORDER = (parse_ibv_devices, parse_ibv_devinfo, parse_rdma_link)
"""Tools that list devices in the order libibverbs, and so NCCL, has them."""
OTHERS = (parse_ibstatus, parse_ibstat, parse_ibdev2netdev, parse_show_gids)
"""Tools that list them by name."""


def parse_rdma(text: str) -> tuple[RdmaPort, ...]:
    """Every port some tool's output in `text` shows, completed by the others, in NCCL's order."""
    listed = [p for parse in IN_LIBRARY_ORDER for p in parse(text)]
    others = sorted((p for parse in OTHERS for p in parse(text)), key=lambda p: natural(p.device))
    return merge([*listed, *others][:MOST_PORTS])


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """
    A key that sorts `mlx5_2` before `mlx5_10`, as the kernel numbers devices.

    >>> sorted(["mlx5_10", "mlx5_2"], key=natural)
    ['mlx5_2', 'mlx5_10']
    """
    pieces: Iterator[str] = (p for p in re.split(r"(\d+)", name) if p)
    return tuple((0, int(p), "") if p.isdecimal() and p.isascii() else (1, 0, p) for p in pieces)


def merge(ports: Iterable[RdmaPort]) -> tuple[RdmaPort, ...]:
    """
    One port for each name, what the first source did not tell taken from the next.

    >>> made = merge([RdmaPort("mlx5_0", 1, "DOWN"), RdmaPort("mlx5_0", 1, "ACTIVE", netdev="eth2")])
    >>> [(p.name, p.state, p.netdev) for p in made]
    [('mlx5_0:1', 'DOWN', 'eth2')]
    """
    found: dict[tuple[str, int], RdmaPort] = {}
    for port in ports:
        key = port.device, port.number
        known = found.get(key)
        if known is None:
            found[key] = port
            continue
        told = {
            f.name: getattr(port, f.name)
            for f in dataclasses.fields(RdmaPort)
            if not getattr(known, f.name) and getattr(port, f.name)
        }
        told["gids"] = _gids(known.gids, port.gids)
        found[key] = dataclasses.replace(known, **told)
    # `ibstat | grep mlx5` names devices only; a port of another number is then the real one.
    kept = [p for p in found.values() if p.state or p.link_layer or not _has_other(found, p)]
    first = {p.device: n for n, p in reversed(list(enumerate(kept)))}
    return tuple(sorted(kept, key=lambda p: (first[p.device], p.number)))


def _has_other(found: dict[tuple[str, int], RdmaPort], port: RdmaPort) -> bool:
    return any(d == port.device and n != port.number and p.state for (d, n), p in found.items())


def _gids(known: tuple[Gid, ...], more: tuple[Gid, ...]) -> tuple[Gid, ...]:
    """Two tables as one by index; the entry that tells its kind wins."""
    table = {g.index: g for g in known}
    for gid in more:
        if gid.index not in table or not table[gid.index].kind:
            table[gid.index] = gid
    return tuple(table[index] for index in sorted(table))
