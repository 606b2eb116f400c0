"""A node's facts from pasted text: output of tools in any mix; all other lines are ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ringup.model import Interface, RdmaPort
from ringup.parse import json_output
from ringup.parse.gpus import parse_square
from ringup.parse.interfaces import parse_addresses
from ringup.parse.rdma_output import IN_LIBRARY_ORDER, merge, parse_rdma
from ringup.parse.topology import Matrix, parse_topo_matrix
from ringup.units import LONGEST_LINE, lines_of, natural

MOST_CHARACTERS = 8 << 20
_PEER_STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""Values in the table of `nvidia-smi topo -p2p`; `topo -m` has others."""
_NOISE = re.compile(r" NCCL (?:INFO|TRACE|WARN) ")
PROMPT = re.compile(
    r"(?:\([\w.-]{1,40}\) ?)?\[?[\w.-]{1,40}@([A-Za-z][\w.-]{0,62})[ :~\]][^\n$#%]{0,200}[$#%](?: .*)?$"
    r"|([a-z][a-z-]{0,30}\d[\w.-]{0,30})[:~ ][^\n$#%]{0,60}[$#] .*$"
)
"""A shell's prompt with its host: user@host:~$ COMMAND, [user@host dir]# COMMAND, node1:~ # COMMAND."""
_PREFIX = re.compile(r"([A-Za-z][\w.-]{0,62}?\d[\w.-]{0,62}): ?(.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_QUOTE = re.compile(r"[ \t]{0,8}>(?: |(?=\r?\n?$))")
_STAMP = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,10}(?:Z|[+-]\d\d:?\d\d)?\]? ?")
_UNUSED = {
    "ethtool": re.compile(r"(?m)^Settings for \S+:$"),
    "lspci": re.compile(r"(?m)^(?:-\[[0-9a-f]{4}:[0-9a-f]{2}\]|[ |\\+-]+[0-9a-f]{2}\.[0-7][- ])"),
}
"""Tools -> one of their lines; NCCL's choice does not depend on them."""
_KNOWN = re.compile(
    "|".join(
        (
            r"\s*\d+: |\s*(?:link/|inet6? |valid_lft|altname|GID\[)|\s*[A-Za-z_][\w ./()-]{0,60}:",
            r".*==>|.*\bstate \S+ physical_state|Infiniband device|CA '|hca_id|n_gids_found|-\[",
            r"\s*(?:DEV\s|-{3})|\s*\w+\s+\d+\s+\d+\s+[0-9a-fA-F:]{39}|\s*(?:GPU|NIC|mlx|CPU)\S*\s+\S",
            r"\s*(?:X|SYS|NODE|PHB|PXB|PIX|NV#|OK|[CGT]?NS|DR|U)\s+=|\S+\s+Link encap",
            r"[\w.@:-]+\s+(?:UP|DOWN|UNKNOWN)\b",
            r"\s+(?:RX|TX|ether|UP|collisions|inet|unspec|loop|infiniband|device)\b|\s*[|+\\-]",
            r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |\s*\d+\s*$|\s+[\d,x./a-zA-Z]+\s*$",
            r"\s*(?:port|phys|max|active|sm_|lid|state|rate|Legend|NIC Legend)\b",
        )
    )
)
"""Beginnings of lines that a supported tool prints."""


@dataclass(frozen=True)
class Pasted:
    rdma_ports: tuple[RdmaPort, ...] = ()
    devices_in_library_order: bool = True
    interfaces: tuple[Interface, ...] = ()
    interfaces_in_kernel_order: bool = True
    matrix: Matrix = field(default_factory=dict)
    is_cut: bool = False
    """The text was longer than the limit."""
    peers: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Pairs of GPUs -> the value in `nvidia-smi topo -p2p`, "OK" or the reason."""
    is_part: bool = False
    """Only some interfaces were pasted: every machine has `lo`, but it is missing."""
    unused: tuple[str, ...] = ()
    """Tools whose output was recognised but does not affect the prediction."""
    not_understood: tuple[int, ...] = ()
    """Numbers of lines that no known tool prints."""

    @property
    def is_empty(self) -> bool:
        return not (self.rdma_ports or self.interfaces or self.matrix or self.peers)


def parse_pasted(text: str) -> Pasted:
    """
    The facts from all known tools' output in `text`.

    >>> made = parse_pasted("some log line\\nibdev2netdev: mlx5_0 port 1 ==> ib0 (Up)\\nepoch 1\\n")
    >>> made.rdma_ports[0].netdev
    'ib0'
    """
    cut = text[:MOST_CHARACTERS]
    # Without lines that no tool prints: NCCL's own, and overlong ones.
    kept = (line for line in cut.splitlines() if len(line) <= LONGEST_LINE and not _NOISE.search(line))
    lines = "\n".join(kept)
    by_json = json_output.ports_of(lines)
    ports = merge([*parse_rdma(lines), *by_json])
    matrix = parse_topo_matrix(lines)
    if not ports:  # only `topo -m` names the devices, and it has nothing else about them
        names = dict.fromkeys(name for _, name in matrix if not name.startswith("NIC"))
        ports = tuple(RdmaPort(name, 1) for name in names)
    interfaces, in_order = parse_addresses(lines)
    known = json_output.interfaces_of(lines)
    return Pasted(
        ports,
        bool(by_json) or any(parse(lines) for parse in IN_LIBRARY_ORDER),
        known or interfaces,
        bool(known) or in_order,
        matrix,
        len(text) > MOST_CHARACTERS,
        {pair: cell for pair, cell in parse_square(lines_of(lines)).items() if cell in _PEER_STATES},
        bool(known or interfaces) and not any(i.kind == "loopback" for i in known or interfaces),
        tuple(tool for tool, form in _UNUSED.items() if form.search(lines)),
        tuple(_strange(cut)),
    )


def _strange(text: str) -> Iterator[int]:
    """Numbers of lines that look like no known tool's, at most as many as a person reads."""
    found, in_json = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        in_json = bare.startswith(("[", "{")) or (in_json and bare[:1] in '"}],{[')
        is_left = in_json or not bare or bare[:1] in "#$\x1b" or len(line) > LONGEST_LINE
        if not is_left and not PROMPT.match(line) and not _KNOWN.match(line) and found < 200:
            found += 1
            yield number


def unwrapped(text: str) -> str:
    """
    A paste without what each of its lines has in front: a quotation mark, a time, the same indentation.

    Colours are left out as well.

    >>> unwrapped("> 1: lo: x\\n>     inet 127.0.0.1/8\\n")
    '1: lo: x\\n    inet 127.0.0.1/8\\n'
    """
    lines = _COLOUR.sub("", text[: MOST_CHARACTERS + 1]).splitlines(keepends=True)
    for form in (_STAMP, _QUOTE, _STAMP):
        if all(form.match(line) for line in lines if line.strip()):
            lines = [form.sub("", line, count=1) for line in lines]
    indent = min((len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()), default=0)
    return "".join(line[indent:] if line.strip() else line for line in lines)


def hosts_in(text: str) -> dict[str, str]:
    """
    Host -> its part of a paste from several hosts, by the prompts or by the prefix of clush and pdsh on each
    line; one entry named "" for a single host.

    >>> hosts_in("u@n1:~$ ip a\\n1: lo: x\\nu@n2:~$ ip a\\n1: lo: y\\n")["n2"]
    '1: lo: y\\n'
    """
    lines = text[:MOST_CHARACTERS].splitlines(keepends=True)
    prefixed = [_PREFIX.match(line) for line in lines if line.strip()]
    names = {match[1] for match in prefixed if match}
    if names and all(prefixed) and len(prefixed) > 2 * len(names):
        found: dict[str, str] = dict.fromkeys(sorted(names, key=natural), "")
        for match in prefixed:
            assert match is not None
            found[match[1]] += match[2] + "\n"
        return found if len(names) > 1 else {"": "".join(found.values())}
    found, current = {"": ""}, ""
    for line in lines:
        if match := PROMPT.match(line):
            current = match[1] or match[2]
            found.setdefault(current, "")
        else:
            found[current] += line
    named = {name: part for name, part in found.items() if name and part.strip()}
    return named if len(named) > 1 else {"": text}


def together(one: Pasted, other: Pasted) -> Pasted:
    """Two pastes of one node as one; the first has priority."""
    first = one if one.interfaces else other
    return Pasted(
        merge([*one.rdma_ports, *other.rdma_ports]),
        one.devices_in_library_order and other.devices_in_library_order,
        first.interfaces,
        first.interfaces_in_kernel_order,
        {**other.matrix, **one.matrix},
        one.is_cut or other.is_cut,
        {**other.peers, **one.peers},
        first.is_part,
        tuple(dict.fromkeys((*one.unused, *other.unused))),
    )
