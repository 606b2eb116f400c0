"""
A log that went well beside one that did not: what differs; lines of a form that both have are no news.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ringup.logs.forms import Reference, shape_of
from ringup.logs.lines import message_of

if TYPE_CHECKING:
    from ringup.logs.evidence import LogEvidence

MOST_VALUES = 4
"""Values of one setting that are shown; every rank may have its own."""


class Change(NamedTuple):
    """A setting, a version or a size that is not as it was."""

    name: str
    good: str
    now: str


def facts_of(log: LogEvidence) -> dict[str, frozenset[str]]:
    """Name -> values: settings, versions, networks, sizes."""
    found: dict[str, set[str]] = {}

    def add(name: str, value: str) -> None:
        if value:
            found.setdefault(name, set()).add(value)

    for event in log.all("env-set", lacks=r"run (?:again )?with "):
        add(event["name"], event["value"])
    for event in log.all("nccl-version"):
        add("NCCL version", event["version"].rstrip("."))
    for event in log.all("cuda-driver"):
        add("CUDA driver version", event["version"])
    for host in log.hosts.values():
        add("network", host.kind)
        add("bootstrap interface", host.bootstrap[0] if host.bootstrap else "")
    add("ranks", str(max((c.nranks for c in log.communicators), default="")))
    add("hosts", str(len([h for h in log.hosts if h]) or ""))
    return {name: frozenset(values) for name, values in found.items()}


def reference_of(log: LogEvidence) -> Reference:
    """A log as the measure of another."""
    texts = [*(e.text for e in log.events), *(s.event.text for s in log.clues)]
    return Reference(frozenset(shape_of(message_of(text)) for text in texts), facts_of(log))


def changes(good: Reference, log: LogEvidence) -> Iterator[Change]:
    """What differs, by name; a setting that only one of the two prints counts where both print settings."""
    now = facts_of(log)
    for name in sorted({*good.facts, *now}):
        before, after = good.facts.get(name, frozenset()), now.get(name, frozenset())
        if before != after and (before or after):
            yield Change(name, _shown(before), _shown(after))


def _shown(values: Iterable[str]) -> str:
    every = sorted(values)
    more = f", {len(every) - MOST_VALUES} more" if len(every) > MOST_VALUES else ""
    return ", ".join(every[:MOST_VALUES]) + more
