"""A file that lists nodes, in the forms of Open MPI, MPICH, DeepSpeed and PBS."""

from __future__ import annotations

import dataclasses
import re

from ringup.errors import NodesError
from ringup.facts import Host
from ringup.hosts.nodeset import LONGEST_TEXT, MOST_NODES, checked, expand, ipv6, refuse
from ringup.units import printable

LONGEST_HOSTFILE = 8 * LONGEST_TEXT


def read_hostfile(text: str) -> tuple[Host, ...]:
    """
    The nodes of a host file: one a line, `slots=N` (Open MPI, DeepSpeed) or `host:N` (MPICH), `#` comments.

    Ranges work as in `expand`; a repeated line is one node with a slot more (as PBS writes it).

    Raises NodesError with the line's number.

    >>> [(host.name, host.slots) for host in read_hostfile("node1 slots=8  # head\\nnode2:4\\n")]
    [('node1', 8), ('node2', 4)]
    """
    if len(text) > LONGEST_HOSTFILE:
        refuse(f"the host file is longer than {LONGEST_HOSTFILE:,} characters")
    found: dict[str, Host] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        words = raw.split("#", 1)[0].split()
        if not words:
            continue
        try:
            hosts = _hostfile_line(words)
        except NodesError as error:
            raise NodesError(f"line {number}: {error}", hint=error.hint) from error
        for host in hosts:
            before = found.get(host.name)
            slots = (before.slots or 1) + (host.slots or 1) if before else host.slots
            found[host.name] = dataclasses.replace(host, slots=slots)
        if len(found) > MOST_NODES:
            break
    return checked([*found.values()])


def _hostfile_line(words: list[str]) -> tuple[Host, ...]:
    name, *rest = words
    slots = 0
    split = re.fullmatch(r"([^:]+|\[[0-9A-Fa-f:.]+\]):(\d{1,6})", name)
    if split and not ipv6(name):
        name, slots = split[1], int(split[2])
    for word in rest:
        key, _, value = word.partition("=")
        if key in ("slots", "max_slots", "max-slots"):
            if not re.fullmatch(r"[0-9]{1,6}", value):
                refuse(f"{printable(word, 80)!r} is not slots=N", "for example: node1 slots=8")
            slots = int(value) if key == "slots" else slots
        else:
            refuse(f"{printable(word, 80)!r} is not understood", "one node a line: node1 slots=8")
    return tuple(dataclasses.replace(host, slots=slots) for host in expand(name))
