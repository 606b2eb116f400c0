"""A log of a good run compared with one of a failed run: lines whose form only one has.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ringup.logs.forms import Reference, shape_of
from ringup.logs.lines import message_of
from ringup.units import grouped

if TYPE_CHECKING:
    from ringup.logs.evidence import LogEvidence

MOST_VALUES = 4
"""Values of one setting that are shown; every rank may have a different one."""


class Change(NamedTuple):
    name: str
    good: str
    now: str


def facts_of(log: LogEvidence) -> dict[str, frozenset[str]]:
    """Name -> values: settings, versions, networks, sizes."""
    facts = [(e["name"], e["value"]) for e in log.all("env-set", lacks=r"run (?:again )?with ")]
    facts += [("NCCL version", e["version"].rstrip(".")) for e in log.all("nccl-version")]
    facts += [("CUDA driver version", e["version"]) for e in log.all("cuda-driver")]
    facts += [("network", host.kind) for host in log.hosts.values()]
    facts += [("bootstrap interface", host.bootstrap[0]) for host in log.hosts.values() if host.bootstrap]
    facts.append(("ranks", str(max((c.nranks for c in log.communicators), default=""))))
    facts.append(("hosts", str(len([h for h in log.hosts if h]) or "")))
    known = grouped((name, value) for name, value in facts if value)
    return {name: frozenset(values) for name, values in known.items()}


def reference_of(log: LogEvidence) -> Reference:
    texts = [*(e.text for e in log.events), *(s.event.text for s in log.clues)]
    return Reference(frozenset(shape_of(message_of(text)) for text in texts), facts_of(log))


def changes(good: Reference, log: LogEvidence) -> Iterator[Change]:
    """The differences, by name; a setting that only one log prints counts if both print settings."""
    now = facts_of(log)
    for name in sorted({*good.facts, *now}):
        before, after = good.facts.get(name, frozenset()), now.get(name, frozenset())
        if before != after and (before or after):
            yield Change(name, _shown(before), _shown(after))


def _shown(values: Iterable[str]) -> str:
    every = sorted(values)
    more = f", {len(every) - MOST_VALUES} more" if len(every) > MOST_VALUES else ""
    return ", ".join(every[:MOST_VALUES]) + more
