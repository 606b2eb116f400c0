"""What a node's kernel counted, and what rose while it was watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Counters:
    """
    Totals of one thing at one moment.

    `of` is "interface:NAME", "rdma:DEVICE:PORT", "pci:ADDRESS", "tcp" or "memory"; totals of 0 are left out.
    """

    of: str
    at_s: float
    """The node's monotonic clock."""
    totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Risen:
    """How much counters of one thing rose within `over_s` seconds; () of them means that none did."""

    of: str
    over_s: float
    by: Mapping[str, int] = field(default_factory=dict)


def risen(before: Sequence[Counters], after: Sequence[Counters]) -> tuple[Risen, ...]:
    """
    What rose between two looks; a thing seen only once is left out, a counter that fell was reset.

    >>> risen([Counters("tcp", 1.0, {"a": 3, "b": 9})], [Counters("tcp", 3.5, {"a": 5, "b": 2, "c": 1})])
    (Risen(of='tcp', over_s=2.5, by={'a': 2, 'c': 1}),)
    """
    first = {c.of: c for c in before}
    found = []
    for later in after:
        earlier = first.get(later.of)
        if earlier is None or later.at_s <= earlier.at_s:
            continue
        by = {name: total - earlier.totals.get(name, 0) for name, total in later.totals.items()}
        grown = {name: rise for name, rise in by.items() if rise > 0}
        found.append(Risen(later.of, round(later.at_s - earlier.at_s, 3), grown))
    return tuple(found)
