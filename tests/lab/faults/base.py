"""What a fault is made of: each change is a `with` block, so its undo stands beside it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..cluster import Lab
from ..wiring import Port

_numbers = itertools.count(1)

NEW_TCP = "tcp flags & (fin | syn | rst | ack) == syn"
"""nft: a connection being opened.  Stateless, so what was open before the fault stays open."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, by name."""

    name: str
    summary: str
    inject: Callable[..., contextlib.AbstractContextManager[None]]
    wants: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `Lab` without which it does not bite."""


FAULTS: dict[str, Fault] = {}


def fault(name: str, **wants: Any) -> Callable[[Callable[..., Iterator[None]]], Callable[..., Any]]:
    """Register a generator function: before its `yield` it breaks, after it it mends."""

    def register(function: Callable[..., Iterator[None]]) -> Callable[..., Any]:
        made = contextlib.contextmanager(function)
        summary = (function.__doc__ or "").strip().splitlines()[0]
        FAULTS[name] = Fault(name, summary, made, wants)
        return made

    return register


def card(lab: Lab, host: str, nic: str | None) -> Port:
    """A card by name or switch; "ssh" is the one that ssh goes through."""
    return lab.host(host).port(lab.ssh_switch if nic == "ssh" else nic)


@contextlib.contextmanager
def filtered(lab: Lab, host: str, incoming: str = "", outgoing: str = "") -> Iterator[None]:
    """Firewall rules on a host, one a line; over lo all passes, as real firewalls have it."""
    table = f"fault{next(_numbers)}"
    chains = ""
    for hook, link, rules in (("input", "iif", incoming), ("output", "oif", outgoing)):
        lines = [f"type filter hook {hook} priority 0;", f"{link} lo accept", *rules.strip().splitlines()]
        chains += f"chain {hook} {{\n" + "\n".join(lines) + "\n}\n"
    lab.run(host, ["nft", "-f", "-"], text=f"table inet {table} {{\n{chains}}}\n", check=True)
    try:
        yield
    finally:
        lab.sh(host, f"nft delete table inet {table}")


@contextlib.contextmanager
def edited(*paths: Path) -> Iterator[None]:
    """The files are what they were again afterwards."""
    before = [path.read_text() for path in paths]
    try:
        yield
    finally:
        for path, text in zip(paths, before, strict=True):
            path.write_text(text)


@contextlib.contextmanager
def done_and_undone(lab: Lab, host: str, do: str, undo: str) -> Iterator[None]:
    """Two shell scripts on a host."""
    lab.sh(host, do)
    try:
        yield
    finally:
        lab.sh(host, undo)


@contextlib.contextmanager
def environment(lab: Lab, host: str, **values: str) -> Iterator[None]:
    """Variables that every session on the host finds set from now on."""
    own = lab.host(host)
    before = dict(own.env)
    own.env.update(values)
    lab.reload_sshd(own)
    try:
        yield
    finally:
        own.env = before
        lab.reload_sshd(own)


def forget_neighbours(lab: Lab) -> None:
    """Empty every ARP table, so that what changed is noticed at once and not after a minute."""
    lab.fabric("ip neigh flush all")
    for host in lab.hosts:
        lab.sh(host, "ip neigh flush all")
