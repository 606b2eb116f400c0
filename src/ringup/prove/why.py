"""Why a rate is low: what NCCL's own lines say of the way that the data took."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ringup.nccl.plugins import network_name
from ringup.plan import Plan
from ringup.units import printable

_NET = re.compile(r"NET/([^/]+)/(\d+)(?:\(\d+\))?((?:/.*)?)$")
FEW = 0.5
"""Of the expected cards: NCCL may fuse the two ports of one card into a device."""
MOST_HOSTS = 3


def reasons(channels: Mapping[str, Mapping[str, int]], plan: Plan, cards: int) -> list[str]:
    """
    In words, those that are true of some host; `channels` counts what follows `via`, by host.

    `cards` is how many a node's ranks were expected to use.
    """
    found: dict[str, list[str]] = {}
    expected = {t.network for t in plan.transports} - {""}
    for host, counts in sorted(channels.items()):
        for words in _of_host(counts, expected, cards):
            found.setdefault(words, []).append(printable(host, 64))
    return [f"{words} on {_hosts(hosts, len(channels))}" for words, hosts in found.items()]


def _of_host(counts: Mapping[str, int], expected: set[str], cards: int) -> Iterator[str]:
    """What is worse than it might be on one host."""
    lines = [match for via in counts if (match := _NET.match(via))]
    networks = {network_name(line[1]) for line in lines}
    if "Socket" in networks and expected and "Socket" not in expected:
        yield f"NCCL uses Socket (TCP), not {' or '.join(sorted(expected))},"
    fast = [line for line in lines if network_name(line[1]) != "Socket"]
    if fast and not any("GDRDMA" in line[3] for line in fast):
        yield "NCCL uses no GPUDirect RDMA, the data passes through host memory,"
    used = {line[2] for line in fast if network_name(line[1]) == "IB"}
    if used and len(used) < FEW * cards:
        yield f"NCCL uses {len(used)} of {cards} cards"
    inside = {via.partition("/")[0] for via in counts}
    if "SHM" in inside and "P2P" not in inside:
        yield "NCCL uses host memory (SHM) between the GPUs of a node, not P2P,"


def _hosts(hosts: list[str], total: int) -> str:
    """
    >>> _hosts(["a"], 3), _hosts(["a", "b"], 2), _hosts(["a", "b", "c", "d"], 9)
    ('a', 'every node', 'a, b, c and 1 more')
    """
    if len(hosts) == total > 1:
        return "every node"
    more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
    return ", ".join(hosts[:MOST_HOSTS]) + more
