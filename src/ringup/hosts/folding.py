"""Many node names as one node set, in ClusterShell's syntax, which `-H` reads."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from ringup.hosts.nodeset import NAME
from ringup.units import grouped

MOST_LISTED = 4
LONGEST_SET = 160
MOST_VARYING = 2
"""Numbers that may differ between the names of one set: above this, ClusterShell's time is quadratic."""
SHOWN = 3
"""Names shown if they form no set; the others are counted."""
_NUMBER = re.compile(r"([0-9]+)")


def node_set(names: Iterable[str], most: int = MOST_LISTED) -> str:
    """
    A few names in their order; more than `most` as a set with its size, without duplicates.

    >>> node_set(["b", "a", "b"]), node_set(f"node{i}" for i in range(12))
    ('b, a', 'node[0-11] (12 nodes)')
    """
    every = tuple(dict.fromkeys(names))
    return ", ".join(every) if len(every) <= most else f"{_bounded(every)} ({len(every):,} nodes)"


@functools.lru_cache(maxsize=64)
def _bounded(names: tuple[str, ...]) -> str:
    """The set with as many names as fit a line, and the number of the others."""
    shown = names
    while len(text := folded(shown)) > LONGEST_SET and len(shown) > 1:
        shown = shown[: max(1, len(shown) * LONGEST_SET // len(text))]
    left = len(names) - len(shown)
    return f"{text} and {left:,} more" if left else text


def folded(names: Iterable[str]) -> str:
    """
    The names as compact sets; of names that differ in many numbers, only the first ones.

    >>> folded(["r1-n1", "r1-n2", "r2-n1", "r2-n2", "head"]), folded(["n1", "n01", "n2"])
    ('r[1-2]-n[1-2],head', 'n[1-2,01]')
    """
    # Imported here: 23 ms that few commands need.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    alike = grouped((tuple(_NUMBER.split(name)[::2]), name) for name in names)
    found = []
    for same in alike.values():
        columns = zip(*(_NUMBER.findall(name) for name in same), strict=True)
        varying = sum(len(set(column)) > 1 for column in columns)
        if varying <= MOST_VARYING and all(map(NAME.fullmatch, same)):
            found.append(str(NodeSet.fromlist(same, resolver=RESOLVER_NOGROUP)))
        else:
            left = len(same) - SHOWN
            found.append(",".join(same[:SHOWN]) + (f" and {left:,} more" if left > 0 else ""))
    return ",".join(found)
