"""
What a node told late, or not at all, because its processes had no processor: taken back, with the reason.

Only what a limit or a duration says is doubted; what was read is as true on a busy node as on an idle one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from ringup.facts import Link, Node, starved
from ringup.probes.script import FIELDS, LIMITS_S

LATE = re.compile(r"(.* gave )?no answer within |timed out after ")
"""How payload/facts*.py and payload/pairs_names.py say that a limit was missed."""
SLOW_S = 1.0
"""No rule calls anything slow that took less."""
LATE_LINKS = ("timed out", "no answer", "answer lost", "large message lost", "large answer lost", "")
"""Errors of an attempt (see payload/pairs_wire.py) after which more patience might have shown more."""

_EMPTY = Node("")
"""Its fields are what a field that is not known holds."""


def why(node: Node, waited_s: float) -> str:
    """The reason of everything taken back."""
    return starved.words(node.name, waited_s, node.load, node.cpu_count)


def withdrawn(node: Node) -> Node:
    """The node without what it could not have told in time, each field with the reason in `unknown`."""
    unknown = dict(node.unknown)
    for part, waited_s in node.cpu_waits.items():
        for name in FIELDS.get(part, ()):
            if LATE.match(unknown.get(name, "")) and starved.excuses(waited_s, LIMITS_S[part]):
                unknown[name] = why(node, waited_s)
    for name, (waited_s, took_s) in doubtful(node).items():
        if name not in unknown and took_s >= SLOW_S and starved.excuses(waited_s, took_s):
            unknown[name] = why(node, waited_s)
    own_name = node.own_name
    if own_name.took_s >= SLOW_S:
        # It did answer: what counts is what it took beyond waiting for a processor.
        own_name = replace(own_name, took_s=max(0.0, own_name.took_s - node.cpu_waits.get("names", 0.0)))
    taken = {name: getattr(_EMPTY, name) for name in unknown.keys() - node.unknown.keys()}
    return replace(node, **{"own_name": own_name, **taken, "unknown": unknown})


def doubtful(node: Node) -> dict[str, tuple[float, float]]:
    """Field -> seconds without a processor, seconds that its value claims somebody else needed."""
    waits = node.cpu_waits
    names_s = waits.get("names", 0.0)
    looked_up_s = max(names_s, waits.get("pairs", 0.0))  # each round asks for some names
    return {
        "own_name": (names_s, late_s([(node.own_name.error, node.own_name.took_s)])),
        "peer_names": (looked_up_s, late_s((r.error, r.took_s) for r in node.peer_names)),
        "reverse_lookup_s": (looked_up_s, node.reverse_lookup_s),
        "looks": (waits.get("work", 0.0), max((look.took_s for look in node.looks), default=0.0)),
        "gpu_driver": (waits.get("gpu", 0.0), node.gpu_driver.silent_s),
    }


def late_s(answers: Iterable[tuple[str, float]]) -> float:
    """The longest of (error, seconds) that says a limit was missed; 0.0 when none does."""
    return max((took_s for error, took_s in answers if LATE.match(error)), default=0.0)


def starved_ends(links: Iterable[Link], waits: Mapping[str, float], limit_s: float) -> list[str]:
    """Nodes that had no processor while an attempt from or to them failed for want of an answer."""
    found = [
        end
        for link in links
        if not (link.ok and link.large_packet_ok is not False) and link.error in LATE_LINKS
        for end in (link.src, link.dst)
        if starved.excuses(waits.get(end, 0.0), limit_s)
    ]
    return list(dict.fromkeys(found))
