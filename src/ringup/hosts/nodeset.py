"""
A list of nodes as written on the command line.

Ranges are ClusterShell's node-set syntax, but in the order as written: the first node is the
head.  A name goes to ssh and into tables, file names and environments, so what no host can be
called is refused here, once, for everyone.  Nothing is asked of any machine.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import NoReturn

from ringup.errors import NodesError
from ringup.facts import Host
from ringup.units import printable

MOST_NODES = 10_000
LONGEST_NAME = 253
"""RFC 1035 section 2.3.4, without the final dot."""
LONGEST_TEXT = 1 << 20
"""Bytes of a node list that are read at all; 10,000 written-out names stay below."""

NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*\$?")
_RANGE_WORD = re.compile(r"[A-Za-z0-9_.\-\[\],/]+")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:/(\d+))?)?")
_HINT = "for example -H node[1-8],gpu3 or -H alice@10.0.0.5"


def refuse(what: str, hint: str = _HINT) -> NoReturn:
    raise NodesError(what, hint=hint)


def expand(hosts: str, *, allow_groups: bool = False) -> tuple[Host, ...]:
    """
    The nodes of a list such as `node[1-8],gpu3,alice@10.0.0.5,[::1]`, in the order as written.

    A node written twice is an error: it would play two nodes.  Groups (`@name`) and `*` are
    ClusterShell's own and need `allow_groups`.

    Raises NodesError for what cannot be read, is no host name, or is more than 10,000 nodes.

    >>> [host.name for host in expand("node[9-10],gpu3")]
    ['node9', 'node10', 'gpu3']
    """
    if len(hosts) > LONGEST_TEXT:
        refuse(f"the node list is {len(hosts)} characters long")
    _refuse_control_characters(hosts)
    found: list[Host] = []
    for word in _words(hosts):
        found += _expand_word(word, MOST_NODES - len(found), allow_groups)
    return checked(found)


def _refuse_control_characters(text: str) -> None:
    for character in text:
        if not character.isprintable():
            refuse(f"the node list holds the character {printable(character)}")


def _words(hosts: str) -> Iterator[str]:
    """The list cut at the commas that stand outside brackets."""
    depth, word = 0, ""
    for character in hosts:
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            refuse(f"the brackets in {printable(hosts, 80)!r} do not match")
        if character == "," and depth == 0:
            yield word.strip(" ")
            word = ""
        else:
            word += character
    if depth:
        refuse(f"the brackets in {printable(hosts, 80)!r} do not match")
    yield word.strip(" ")


def _expand_word(word: str, room: int, allow_groups: bool) -> list[Host]:
    """The nodes of one word of the list, at most `room`."""
    if not word:
        refuse("the node list is empty or has an empty entry")
    if word.startswith("@") or "*" in word:
        if not allow_groups:
            refuse(
                f"{printable(word, 80)!r} is a group or a pattern",
                "add --groups to use ClusterShell's groups",
            )
        return [named_host(name, "") for name in _cluster_shell(word, room)]
    user, at, rest = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        refuse(f"{printable(user, 80)!r} is not a user name")
    address = ipv6(rest)
    if address:
        return [Host(address, user)]
    if "[" not in rest:
        return [named_host(rest, user)]
    if not _RANGE_WORD.fullmatch(rest):
        refuse(f"{printable(rest, 80)!r} is not a host name")
    if _count(rest) > room:
        refuse(f"{printable(rest, 80)!r} makes more than {MOST_NODES:,} nodes", "name fewer nodes")
    return [named_host(name, user) for name in _cluster_shell(rest, room)]


def ipv6(text: str) -> str:
    """The IPv6 address `text` is, without brackets; "" if it is none."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" not in bare:
        return ""
    address, percent, zone = bare.partition("%")
    if percent and not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", zone):
        return ""
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return ""
    return bare


def named_host(name: str, user: str) -> Host:
    """
    A host of that name.

    Raises NodesError for what cannot be one.
    """
    if len(name) > LONGEST_NAME:
        refuse(
            f"{printable(name, 40)!r} is {len(name)} characters long; a host name has {LONGEST_NAME} at most"
        )
    if not NAME.fullmatch(name):
        refuse(f"{printable(name, 80)!r} is not a host name")
    return Host(name, user)


def _count(word: str) -> int:
    """How many nodes the ranges of a word make, by arithmetic alone."""
    count = 1
    for inside in re.findall(r"\[([^\]]*)\]", word):
        count *= sum(_range_length(part, word) for part in inside.split(","))
    return count


def _range_length(part: str, word: str) -> int:
    match = _RANGE.fullmatch(part)
    if not match or len(part) > 40:
        refuse(f"{printable(part, 40)!r} in {printable(word, 80)!r} is not a range such as 1-8 or 0-6/2")
    first = int(match[1])
    last = int(match[2] or match[1])
    step = int(match[3] or 1)
    if last < first or step < 1:
        refuse(f"{printable(part, 40)!r} in {printable(word, 80)!r} is an empty range")
    return (last - first) // step + 1


def _cluster_shell(word: str, room: int) -> list[str]:
    """
    ClusterShell's reading of one word, in its order.

    A comma inside brackets is cut first (`node[3,1]` is node3, node1): a NodeSet sorts.
    """
    # Imported here: 23 ms that `ringup --help` need not pay.
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    names: list[str] = []
    try:
        for piece in _without_inner_commas(word) if "*" not in word and "@" not in word else [word]:
            nodes = NodeSet(piece)
            if len(nodes) + len(names) > room:
                refuse(f"{printable(word, 80)!r} makes more than {MOST_NODES:,} nodes", "name fewer nodes")
            names += list(nodes)
    except NodeSetException as error:
        refuse(f"{printable(word, 80)!r}: {printable(str(error), 200)}")
    if not names:
        refuse(f"{printable(word, 80)!r} names no node", "`nodeset -LL` lists ClusterShell's groups")
    return names


def _without_inner_commas(word: str) -> Iterator[str]:
    """`r[2,1]n[1-2]` as `r[2]n[1-2]`, `r[1]n[1-2]`: the first bracket varies slowest, as written."""
    match = re.search(r"\[([^\]]*,[^\]]*)\]", word)
    if match is None:
        yield word
        return
    for part in match[1].split(","):
        yield from _without_inner_commas(f"{word[: match.start()]}[{part}]{word[match.end() :]}")


def checked(found: list[Host]) -> tuple[Host, ...]:
    """
    The nodes when there are some, not too many and none twice.

    Raises NodesError otherwise.
    """
    if not found:
        refuse("no node is named")
    if len(found) > MOST_NODES:
        refuse(f"{len(found):,} nodes are named; {MOST_NODES:,} is the most", "name fewer nodes")
    seen: set[str] = set()
    for host in found:
        if host.name in seen:
            refuse(f"{printable(host.name, 80)} is named twice", "name each node once; the first is the head")
        seen.add(host.name)
    return tuple(found)
