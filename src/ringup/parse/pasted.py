"""A node's facts from pasted text: output of tools in any mix; all other lines are ignored."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ringup.model import Interface, RdmaPort
from ringup.parse import json_output
from ringup.parse.gpus import parse_square
from ringup.parse.interfaces import parse_addresses
from ringup.parse.rdma_output import IN_LIBRARY_ORDER, merge, parse_rdma
from ringup.parse.topology import Matrix, parse_topo_matrix
from ringup.units import COLOURS, LONGEST_LINE, lines_of, natural

MOST_CHARACTERS = 8 << 20
_PEER_STATES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""Values in the table of `nvidia-smi topo -p2p`; `topo -m` has others."""
_TABLE = re.compile(r"(?m)^(?=[ \t]{1,40}GPU0[ \t]{1,20}GPU1\b)")
"""In front of the first line of a table of GPUs."""
_NOISE = re.compile(r" NCCL (?:INFO|TRACE|WARN) ")
PROMPT = re.compile(
    r"(?:\([\w.() -]{1,60}\) ?)?\[?[\w.-]{1,40}@([A-Za-z][\w.-]{0,62})[ :~\]][^\n$#%]{0,200}[$#%](?: .*)?$"
    r"|([a-z][a-z-]{0,30}\d[\w.-]{0,30})[:~ ][^\n$#%]{0,60}[$#] .*$"
)
"""A shell's prompt with its host: user@host:~$ COMMAND, [user@host dir]# COMMAND, node1:~ # COMMAND."""
_HEAD = re.compile(r"-{4,99}\s*\n(\S{1,99})()\s*\n-{4,99}\s*")
"""The three lines that dshbak prints in front of a host's own; `clubak` of ClusterShell prints the same."""
_PREFIX = re.compile(
    r"(?:([A-Za-z][\w.-]{0,62}?\d[\w.-]{0,62}):|\[pod/([^\]\s]{1,200})\]|([A-Za-z][\w.-]{0,80}) {1,20}\|)"
    r" ?(.*)"
)
"""A host of clush and pdsh, a pod of `kubectl logs --prefix`, a service of docker compose; and the rest."""
_TASK = re.compile(
    r"(?P<task>\d{1,5}): ?(?P<rest>(?P<own>\d+: |\s+inet |CA '|hca_id|Infiniband|\s*GPU0\s"
    r"|mlx\d_\w+ (?:port )?\s*\d\b|[\w.@-]+\s+(?:UP|DOWN|UNKNOWN)\s)?.*)"
)
"""A line of `srun --label`."""
_NUMBER = re.compile(r"[ \t]{0,8}(\d{1,6})(?:\t|[:|] ?| {2})")
"""A line's number, as `cat -n` and viewers show it."""
_QUOTE = re.compile(r"[ \t]{0,8}>(?: |(?=\r?\n?$))")
_STAMP = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{0,10}(?:Z|[+-]\d\d:?\d\d)?\]? ?")
_UNUSED = {
    "ethtool": re.compile(r"(?m)^Settings for \S+:$"),
    "lspci": re.compile(r"(?m)^(?:-\[[0-9a-f]{4}:[0-9a-f]{2}\]|[ |\\+-]+[0-9a-f]{2}\.[0-7][- ])"),
}
"""Tools -> one of their lines; NCCL's choice does not depend on them."""
_VARIABLE = re.compile(
    r"(?m)^ {0,9}(?:export |declare -x )?((?:NCCL|GLOO)_[A-Z0-9_]{1,60})=[\"']?([^\s\"']{1,200})[\"']? *$"
)
_KNOWN = re.compile(
    r"\s*\d+: |\s*(?:link/|inet6? |valid_lft|altname|GID\[)|\s*[A-Za-z_][\w ./()-]{0,60}:"
    r"|.*==>|.*\bstate \S+ physical_state|Infiniband device|CA '|hca_id|n_gids_found|-\["
    r"|\s*(?:DEV\s|-{3})|\s*\w+\s+\d+\s+\d+\s+[0-9a-fA-F:]{39}|\s*(?:GPU|NIC|mlx|CPU)\S*\s+\S"
    r"|\s*(?:X|SYS|NODE|PHB|PXB|PIX|NV#|OK|[CGT]?NS|DR|U)\s+=|\S+\s+Link encap"
    r"|[\w.@:-]+\s+(?:UP|DOWN|UNKNOWN)\b"
    r"|\s+(?:RX|TX|ether|UP|collisions|inet|unspec|loop|infiniband|device)\b|\s*[|+\\-]"
    r"|[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] |\s*\d+\s*$|\s+[\d,x./a-zA-Z]+\s*$"
    r"|\s*(?:port|phys|max|active|sm_|lid|state|rate|Legend|NIC Legend)\b"
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
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of NCCL and Gloo, as `env` or a job file has them."""

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
        _peers(lines),
        bool(known or interfaces) and not any(i.kind == "loopback" for i in known or interfaces),
        tuple(tool for tool, form in _UNUSED.items() if form.search(lines)),
        tuple(_strange(cut)),
        dict(_VARIABLE.findall(lines)),
    )


def _peers(text: str) -> dict[tuple[int, int], str]:
    """The table of `nvidia-smi topo -p2p`, also next to one of `topo -m`."""
    found: dict[tuple[int, int], str] = {}
    for table in _TABLE.split(text):
        cells = parse_square(lines_of(table))
        found |= cells if cells and set(cells.values()) <= set(_PEER_STATES) else {}
    return found


def _strange(text: str) -> Iterator[int]:
    """Numbers of lines that look like no known tool's, at most as many as a person reads."""
    found, in_json = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        in_json = bare.startswith(("[", "{")) or (in_json and bare[:1] in '"}],{[')
        is_left = in_json or not bare or bare[:1] in "#$\x1b" or len(line) > LONGEST_LINE
        is_left = is_left or bool(PROMPT.match(line) or _KNOWN.match(line) or _VARIABLE.match(line))
        if not is_left and found < 200:
            found += 1
            yield number


def unwrapped(text: str) -> str:
    """
    A paste without what each of its lines has in front: a quotation mark, a time, a number, an indentation.

    Colours are left out as well, and the character references of a page's source.

    >>> unwrapped("> 1: lo: x\\n>     inet 127.0.0.1/8\\n")
    '1: lo: x\\n    inet 127.0.0.1/8\\n'
    """
    if "&lt;" in text and "<" not in text:
        text = html.unescape(text[: MOST_CHARACTERS + 1])
    lines = COLOURS.sub("", text[: MOST_CHARACTERS + 1]).splitlines(keepends=True)
    if len(lines) > 4 and not any(a.strip() and b.strip() for a, b in itertools.pairwise(lines)):
        lines = [line for line in lines if line.strip()]  # a mail has doubled each end of a line
    numbers = [_NUMBER.match(line) for line in lines if line.strip()]
    counted = [int(match[1]) for match in numbers if match]
    if len(counted) == len(numbers) > 2 and all(b - a in (1, 2) for a, b in itertools.pairwise(counted)):
        lines = [_NUMBER.sub("", line, count=1) for line in lines]
    for form in (_STAMP, _QUOTE, _STAMP):
        if all(form.match(line) for line in lines if line.strip()):
            lines = [form.sub("", line, count=1) for line in lines]
    indent = min((len(line) - len(line.lstrip(" \t")) for line in lines if line.strip()), default=0)
    return "".join(line[indent:] if line.strip() else line for line in lines)


def _prefixed(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(host, pod, service or task; rest) of each line; nothing if a line has no such prefix."""
    known = [_PREFIX.match(line) for line in lines]
    if all(known):
        yield from ((m[1] or m[2] or m[3], m[4]) for m in known if m)
        return
    tasks = [_TASK.match(line) for line in lines]
    if all(tasks) and any(m["own"] for m in tasks if m):
        yield from ((m["task"], m["rest"]) for m in tasks if m)


def hosts_in(text: str) -> dict[str, str]:
    """
    Host -> its part of a paste from several hosts, by the prompts, by the heads of dshbak or by the prefix of
    clush and pdsh on each line; one entry named "" for a single host.

    >>> hosts_in("u@n1:~$ ip a\\n1: lo: x\\nu@n2:~$ ip a\\n1: lo: y\\n")["n2"]
    '1: lo: y\\n'
    """
    lines = text[:MOST_CHARACTERS].splitlines(keepends=True)
    prefixed = list(_prefixed([line for line in lines if line.strip()]))
    names = {name for name, _ in prefixed}
    if names and len(prefixed) > 2 * len(names):
        found: dict[str, str] = dict.fromkeys(sorted(names, key=natural), "")
        for name, rest in prefixed:
            found[name] += rest + "\n"
        return found if len(names) > 1 else {"": "".join(found.values())}
    found, current = {"": ""}, ""
    for at, line in enumerate(lines):
        if head := _HEAD.fullmatch("".join(lines[max(0, at - 2) : at + 1])):
            found[current] = found[current].removesuffix("".join(lines[at - 2 : at]))
        if match := head or PROMPT.match(line):
            current = match[1] or match[2]
            found.setdefault(current, "")
        else:
            found[current] += line
    named = {name: part for name, part in found.items() if name and part.strip()}
    return named if len(named) > 1 else _by_repeats(lines)


_ROWS = (
    re.compile(r"Infiniband (device) '(\S{1,63})' (port \d)"),
    re.compile(r"\s?(CA) '(\S{1,63})'()"),
    re.compile(r"(hca_id):\s{1,40}(\S{1,63})()"),
    re.compile(r"[ \t]{0,8}(?:link )?(\S{1,63})(/\d):? .{0,200}( state) "),
    re.compile(
        r"\A(?:[0-9a-fA-F]{4,8}:\S{7} )?([A-Za-z]\S{1,62}) +(?:\([^=\n]{0,300}\) )?(port +\d)[^=]{0,40}(==>)"
    ),
    re.compile(r"\s{0,8}(\S{1,63})\s{1,20}(\d{1,3}\s{1,20}\d{1,4})\s{1,20}[0-9a-fA-F:]{39}()"),
    re.compile(r"(\d{1,4}: )([\w.-]{1,16})(?:@\S{1,20})?(:) <"),
)
"""Lines that a tool prints once for each device, port, GID or interface."""
_BREAK = re.compile(r"\s*$|[ \t]{0,8}(?:```|[#$] |DEV\s+PORT)|[^\n$#]{0,99}[$#] \S")
"""A line between the outputs of two commands."""
_MOST_PARTS = 16


def _by_repeats(lines: list[str]) -> dict[str, str]:
    """
    The parts of a paste that shows the same devices again with other values: another node, or another time.

    >>> list(_by_repeats(["mlx5_0 port 1 ==> eth0 (Up)\\n", "\\n", "mlx5_0 port 1 ==> eth4 (Down)\\n"]))
    ['part 1', 'part 2']
    """
    parts, seen, begin, pause = list[str](), set[tuple[str, ...]](), 0, 0
    for at, line in enumerate(lines):
        match = next((match for form in _ROWS if (match := form.match(line))), None)
        if _BREAK.match(line):
            pause = at
        if match and match.groups() in seen:
            cut = pause if pause > begin else at
            parts.append("".join(lines[begin:cut]))
            begin, seen = cut, set()
        if match:
            seen.add(match.groups())
    parts.append("".join(lines[begin:]))
    if len(parts) > _MOST_PARTS:
        return {"": "".join(lines)}
    apart = [parts[0]]
    for part in parts[1:]:
        if _contradicts(parse_pasted(apart[-1]), parse_pasted(part)):
            apart.append(part)
        else:
            apart[-1] += part
    named = {f"part {number}": part for number, part in enumerate(apart, 1)}
    return named if len(apart) > 1 else {"": apart[0]}


def _contradicts(one: Pasted, other: Pasted) -> bool:
    """Whether a device, a GID or an interface of two pastes has another value in the other one."""
    values = [
        {
            **{(p.name, of): getattr(p, of) for p in paste.rdma_ports for of in ("state", "netdev", "guid")},
            **{(p.name, str(gid.index)): gid.gid for p in paste.rdma_ports for gid in p.gids},
            **{(i.name, "address"): ",".join(map(str, i.addresses)) for i in paste.interfaces},
        }
        for paste in (one, other)
    ]
    first, second = values
    whole = [{i.name for i in paste.interfaces} for paste in (one, other) if not paste.is_part]
    if all(whole) and len(whole) == 2 and whole[0] - whole[1] and whole[1] - whole[0]:
        return True  # two whole lists of interfaces, each with one that the other lacks
    return any(first[key] and second.get(key) not in (None, "", first[key]) for key in first)


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
        environment={**other.environment, **one.environment},
    )
