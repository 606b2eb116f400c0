"""
A list of nodes as written on the command line or in a host file, in that order: the first one is the head.

A name is used in ssh commands, tables, file names and environments: impossible host names are refused here.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from collections import Counter
from typing import NoReturn

from ringup.errors import NodesError
from ringup.model import Host
from ringup.units import printable

MOST_NODES = 10_000
LONGEST_NAME = 253
"""RFC 1035 section 2.3.4, without the final dot."""
LONGEST_TEXT = 1 << 20
"""Longest node list in bytes; enough for 10,000 written-out names."""
LONGEST_HOSTFILE = 8 * LONGEST_TEXT

NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\$?")
_RANGE_WORD = re.compile(r"[A-Za-z0-9_.\-\[\],/]+")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15})(?:/([0-9]{1,15}))?)?")
_HINT = "for example -H 'node[1-8],gpu3' or -H alice@10.0.0.5"
_NUMBER_HINT = (
    "ssh's port is set in ~/.ssh/config, the number of ranks with --nproc or --hostfile (node0 slots=2)"
)


def refuse(what: str, hint: str = _HINT) -> NoReturn:
    raise NodesError(what, hint=hint)


def expand(hosts: str, *, allow_groups: bool = False) -> tuple[Host, ...]:
    """
    The nodes of a list such as `node[1-8],gpu3,alice@10.0.0.5,[::1]`, in the order as written.

    A duplicate node is an error: it would be two nodes on one machine.  Groups (`@name`) and `*` are
    ClusterShell's and need `allow_groups`.

    Raises NodesError for unreadable text, impossible host names, or more than 10,000 nodes.

    >>> [host.name for host in expand("node[9-10],gpu3")]
    ['node9', 'node10', 'gpu3']
    """
    if len(hosts) > LONGEST_TEXT:
        refuse(f"the node list is {len(hosts)} characters long")
    if strange := next((character for character in hosts if not character.isprintable()), ""):
        refuse(f"the node list holds the character {printable(strange)}")
    found: list[Host] = []
    for word in _words(hosts):
        found += _expand_word(word, MOST_NODES - len(found), allow_groups)
    return checked(found)


def _words(hosts: str) -> list[str]:
    if not re.fullmatch(r"(?:[^][]|\[[^][]*\])*", hosts):
        refuse(f"the brackets in {printable(hosts, 80)!r} do not match")
    parts = re.split(r"(\[[^][]*\])", hosts)
    parts[::2] = [outside.replace(",", "\n") for outside in parts[::2]]  # the list itself contains no newline
    return [word.strip(" ") for word in "".join(parts).split("\n")]


def _expand_word(word: str, room: int, allow_groups: bool) -> list[Host]:
    if not word:
        refuse("the node list is empty or has an empty entry")
    if word.startswith("@") or "*" in word:
        if not allow_groups:
            what = f"{printable(word, 80)!r} is a group or a pattern"
            refuse(what, "add --groups to use ClusterShell's groups")
        return [named_host(name, "") for name in _group(word, room)]
    user, at, rest = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        refuse(f"{printable(user, 80)!r} is not a user name")
    if address := ipv6(rest):
        return [Host(address, user)]
    if "[" not in rest:
        return [named_host(rest, user)]
    if not _RANGE_WORD.fullmatch(rest):
        refuse(f"{printable(rest, 80)!r} is not a host name")
    return [named_host(name, user) for name in _names(rest, room)]


def ipv6(text: str) -> str:
    """The IPv6 address in `text`, without brackets; "" if it is none."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        zone = ipaddress.IPv6Address(bare).scope_id
    except ValueError:
        return ""
    return bare if zone is None or re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", zone) else ""


def named_host(name: str, user: str) -> Host:
    """A host of that name; NodesError for an impossible name."""
    if len(name) > LONGEST_NAME:
        size = f"{len(name)} characters long; a host name has {LONGEST_NAME} at most"
        refuse(f"{printable(name, 40)!r} is {size}")
    if not NAME.fullmatch(name):
        has_number = re.fullmatch(r"[^:]+:\d+", name)
        refuse(f"{printable(name, 80)!r} is not a host name", _NUMBER_HINT if has_number else _HINT)
    return Host(name, user)


def fit(count: int, word: str, room: int) -> None:
    if count > room:
        refuse(f"{printable(word, 80)!r} makes more than {MOST_NODES:,} nodes", "name fewer nodes")


def _names(word: str, room: int) -> list[str]:
    """The names of a word with ranges; the first bracket varies slowest."""
    first, *rest = re.split(r"\[([^][]*)\]", word)
    numbers = [[_range(part, word) for part in inside.split(",")] for inside in rest[::2]]
    fit(math.prod(sum(len(span) for span, _ in parts) for parts in numbers), word, room)
    names = [first]
    for parts, text in zip(numbers, rest[1::2], strict=True):
        ends = [f"{number:0{width}}{text}" for span, width in parts for number in span]
        names = [name + end for name in names for end in ends]
    return names


def _range(part: str, word: str) -> tuple[range, int]:
    """The numbers of `1-8`, `01-10` or `0-6/2`, and their least width."""
    if not (match := _RANGE.fullmatch(part)):
        refuse(f"{printable(part, 40)!r} in {printable(word, 80)!r} is not a range such as 1-8 or 0-6/2")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or step < 1:
        refuse(f"{printable(part, 40)!r} in {printable(word, 80)!r} is an empty range")
    return range(first, last + 1, step), len(match[1])


def _group(word: str, room: int) -> list[str]:
    """The nodes of one of ClusterShell's groups or patterns, in its order."""
    # Imported here: 23 ms that `ringup --help` does not need.
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    try:
        nodes = NodeSet(word)
    except NodeSetException as error:
        refuse(f"{printable(word, 80)!r}: {printable(str(error), 200)}")
    fit(len(nodes), word, room)
    if not nodes:
        refuse(f"{printable(word, 80)!r} names no node", "`nodeset -LL` lists ClusterShell's groups")
    return list(nodes)


def checked(found: list[Host]) -> tuple[Host, ...]:
    """The nodes; NodesError if there are none, too many, or duplicates."""
    if not found:
        refuse("no node is named")
    if len(found) > MOST_NODES:
        refuse(f"{len(found):,} nodes are named; {MOST_NODES:,} is the most", "name fewer nodes")
    name, times = Counter(host.name for host in found).most_common(1)[0]
    if times > 1:
        refuse(f"{printable(name, 80)} is named twice", "name each node once; the first is the head")
    return tuple(found)


def read_hostfile(text: str) -> tuple[Host, ...]:
    """
    The nodes of a host file: one per line, `slots=N` (Open MPI, DeepSpeed) or `host:N` (MPICH), `#` comments.

    Ranges work as in `expand`; a repeated line adds a slot to its node (PBS writes files in this way).

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
        name, *settings = words
        slots = 0
        split = re.fullmatch(r"([^:]+|\[[0-9A-Fa-f:.]+\]):(\d{1,6})", name)
        if split and not ipv6(name):
            name, slots = split[1], int(split[2])
        try:
            for one in settings:
                key, _, value = one.partition("=")
                if key not in ("slots", "max_slots", "max-slots"):
                    refuse(f"{printable(one, 80)!r} is not understood", "one node per line: node1 slots=8")
                if not re.fullmatch(r"[0-9]{1,6}", value):
                    refuse(f"{printable(one, 80)!r} is not slots=N", "for example: node1 slots=8")
                slots = int(value) if key == "slots" else slots
            hosts = expand(name)
        except NodesError as error:
            hint = "one node per line: node1 slots=8" if error.hint == _HINT else error.hint
            raise NodesError(f"line {number}: {error}", hint=hint) from error
        for host in hosts:
            before = found.get(host.name)
            total = (before.slots or 1) + (slots or 1) if before else slots
            found[host.name] = dataclasses.replace(host, slots=total)
        if len(found) > MOST_NODES:
            break
    return checked([*found.values()])
