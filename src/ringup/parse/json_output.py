"""Output of `ip -j addr` and `rdma -j link`: JSON, on one line or several, among other lines."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ringup.link_kinds import KINDS
from ringup.model import Interface, RdmaPort
from ringup.parse.interfaces import add, made
from ringup.parse.rdma_output import state_of

MOST_LISTS = 64


def lists_in(text: str) -> Iterator[list[dict[str, Any]]]:
    """Every JSON list of objects that starts a line of `text`."""
    decoder, end = json.JSONDecoder(), 0
    for begin in islice(re.finditer(r"(?m)^\[", text), MOST_LISTS):
        with contextlib.suppress(ValueError, RecursionError):
            if begin.start() >= end:
                found, end = decoder.raw_decode(text, begin.start())
                if found and all(isinstance(one, dict) for one in found):
                    yield found


def interfaces_of(text: str) -> tuple[Interface, ...]:
    """
    >>> made = interfaces_of('[{"ifindex": 2, "ifname": "eno1", "flags": ["UP"], "mtu": 9000, "addr_info": '
    ...     '[{"family": "inet", "local": "10.0.0.1", "prefixlen": 24, "scope": "global"}]}]')
    >>> made[0].name, made[0].mtu_bytes, made[0].addresses[0].address
    ('eno1', 9000, '10.0.0.1')
    """
    found = []
    for one in (one for every in lists_in(text) for one in every if "ifname" in one and "ifindex" in one):
        details, flags, listed = (one.get(name) for name in ("linkinfo", "flags", "addr_info"))
        shown: dict[str, Any] = {
            "type": str(one.get("link_type", "")),
            "beside": str(one.get("link", "")),
            "kind": KINDS.get(str(details.get("info_kind", "")) if isinstance(details, dict) else ""),
            "index": _whole(one["ifindex"]),
            "mtu": _whole(one.get("mtu")),
            "master": str(one.get("master", ""))[:64],
            "flags": flags if isinstance(flags, list) else [],
            "addresses": [],
        }
        for known in listed if isinstance(listed, list) else ():
            if isinstance(known, dict) and "local" in known and "prefixlen" in known:
                add(shown, str(known["local"]), str(known["prefixlen"]), str(known.get("scope", "global")))
        found.append((str(one["ifname"])[:64], shown))
    return made(found)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0


def ports_of(text: str) -> list[RdmaPort]:
    """
    >>> made = ports_of('[{"ifname": "mlx5_0", "port": 1, "state": "ACTIVE", "netdev": "eth2"}]')
    >>> made[0].name, made[0].link_layer
    ('mlx5_0:1', 'Ethernet')
    """
    found = []
    for one in (one for every in lists_in(text) for one in every if "ifname" in one and "port" in one):
        netdev = str(one.get("netdev", ""))
        layer = "InfiniBand" if "subnet_prefix" in one else "Ethernet" if netdev else ""
        name, state = str(one["ifname"])[:64], state_of(str(one.get("state", "")))
        found.append(RdmaPort(name, _whole(one["port"]) or 1, state, link_layer=layer, netdev=netdev))
    return found
