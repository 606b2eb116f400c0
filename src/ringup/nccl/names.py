"""
NCCL's filter for interface and device names: NCCL_SOCKET_IFNAME, NCCL_IB_HCA, NCCL_OOB_NET_IFNAME.

NCCL `parseStringList` and `matchIfList` (src/misc/utils.cc), 2.18 to 2.30.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ANY = -1
_NAME_LENGTH = 63
"""NCCL cuts names at MAX_IF_NAME_SIZE - 1 characters."""


@dataclass(frozen=True)
class Item:
    """One name of a list, with the port it is limited to (`ANY` for all)."""

    name: str
    port: int = ANY


@dataclass(frozen=True)
class Filter:
    """A parsed list: `negate` from a leading `^`, `exact` from a leading `=`, in that order only."""

    items: tuple[Item, ...]
    negate: bool = False
    exact: bool = False

    def accepts(self, name: str, port: int = ANY) -> bool:
        """Whether NCCL would take this interface (or device port); an empty list takes all."""
        return self._matches(name, port) != self.negate

    def _matches(self, name: str, port: int) -> bool:
        if not self.items:
            return True
        for item in self.items:
            same = name == item.name if self.exact else name.startswith(item.name)
            if same and (ANY in (item.port, port) or item.port == port):
                return True
        return False


def parse(text: str, limit: int = 16) -> Filter:
    """
    The filter a value stands for; items beyond `limit` are ignored, as NCCL does in silence.

    `limit` is 16 for interfaces, 32 for NCCL_IB_HCA (16 before 2.18.5).

    >>> parse("^docker,lo").accepts("docker0"), parse("=eth1").accepts("eth10")
    (False, False)
    >>> parse("eth0, eth1").accepts("eth1")   # blanks are not trimmed
    False
    """
    negate = text.startswith("^")
    rest = text[1:] if negate else text
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    items = []
    for part in rest.split(","):
        name, colon, port = part.partition(":")
        if name:
            items.append(Item(name[:_NAME_LENGTH], _port(port) if colon else ANY))
    return Filter(tuple(items[:limit]), negate, exact)


def _port(text: str) -> int:
    """The number before a further `:` (rail, plane in 2.30.7), as C's atoi reads it; empty is any."""
    text = text.partition(":")[0]
    if not text:
        return ANY
    match = re.match(r"\s*[+-]?\d+", text)
    return int(match[0]) if match else 0
