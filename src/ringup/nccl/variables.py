"""
The environment variables of `variables.json`: reader, releases, effect, and cloud.

Names and releases are from `NCCL_PARAM` and `ncclGetEnv` in the sources of every NCCL from 2.3.5 to 2.30.7;
all releases from 2.18 on read a row without `since` and `until`.  The clouds' variables are from their own
guides: Google's GPUDirect-TCPX, FasTrak (TCPXO), gIB; AWS's aws-ofi-nccl with EFA; Azure's ND topology files.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from ringup.nccl.interface_choice import Version, version_of


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row; a name that ends with `*` covers all names with that prefix."""

    name: str
    by: Literal["NCCL", "RCCL", "Gloo", "torch", "CUDA", "UCX", "libfabric", "plugin", "build"] = "NCCL"
    """The program or library that reads it."""
    since: str = ""
    until: str = ""
    """The first and the last release that reads it, if not all do."""
    kind: Literal["", "steering", "gid", "gloo", "fabric", "debugging", "experiment"] = ""
    """How `planning.preset_variables` treats it."""
    what: str = ""
    must_match: bool = False
    """Must be equal on all ranks: it changes the size or order of messages."""
    per_node: bool = False
    """May differ between nodes."""
    clouds: Mapping[str, tuple[str, ...]] = {}
    """Cloud -> parts of a value, in lower case, that only this cloud uses; "" for every value."""


_ROWS = msgspec.json.decode(Path(__file__).with_name("variables.json").read_bytes(), type=list[Variable])
TABLE = {row.name: row for row in _ROWS}
_FAMILIES = tuple(name[:-1] for name in TABLE if name.endswith("*"))
MACHINES = {"Google Cloud": "google", "AWS": "amazon", "Azure": "microsoft"}
"""Cloud -> part of the DMI vendor or product of its machines, in lower case."""
MOST_EDITS = 2


def row_of(name: str) -> Variable:
    """A variable's row; an empty one for an unknown variable."""
    return TABLE.get(name) or Variable(name)


@lru_cache(maxsize=1024)  # every node has the same names, and each is compared with all known names
def meant(name: str) -> str:
    """
    The known variable that a name is probably a misspelling of; "" if it is known, a plugin's, or like none.

    >>> meant("NCCL_SOCKET_IFNAMES"), meant("NCCL_DEBUG"), meant("NCCL_OFI_TOPO"), meant("NCCL_GDR_LEVEL")
    ('NCCL_SOCKET_IFNAME', '', '', 'NCCL_NET_GDR_LEVEL')
    """
    if not name.startswith(("NCCL_", "GLOO_")) or name in TABLE or name.startswith(_FAMILIES):
        return ""
    # Two edits turn one short name into another: NCCL_NET is not a misspelt NCCL_RAS.
    most = min(MOST_EDITS, (len(name) - len("NCCL_")) // 3)
    near = [k for k in TABLE if k[:5] == name[:5] and abs(len(k) - len(name)) <= most]
    close = difflib.get_close_matches(name, near, 1, 1 - (most + 0.5) / len(name))
    return close[0] if close else _with_one_word_more(name)


def _with_one_word_more(name: str) -> str:
    """The only variable of today's NCCL that has one word more; "" for none, or for a name of two words."""
    words = name.split("_")
    found = []
    for known in (k for k, row in TABLE.items() if not row.until and k.count("_") == len(words)):
        parts = known.split("_")
        found += [known] if any(parts[:at] + parts[at + 1 :] == words for at in range(1, len(parts))) else []
    return found[0] if len(found) == 1 and len(words) > 2 else ""


@lru_cache(maxsize=4096)
def edits(a: str, b: str) -> int:
    """
    Edits (add, remove, change or swap letters) that turn one name into the other.

    >>> edits("NCCL_DEBUG", "NCCL_DEUBG"), edits("IFNAM", "IFNAME"), edits("", "ab")
    (1, 1, 2)
    """
    while a and a[:1] == b[:1]:
        a, b = a[1:], b[1:]
    before, row = [0], [*range(len(b) + 1)]
    for i, letter in enumerate(a, 1):
        two_before, before, row = before, row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other)))
            if i > 1 and j > 1 and (a[i - 2], letter) == (other, b[j - 2]):
                row[-1] = min(row[-1], two_before[j - 2] + 1)
    return int(row[-1])


@lru_cache(maxsize=256)
def only_candidate(name: str) -> str:
    """
    The known variable of a misspelt name, if it is the only candidate: no other within two more
    edits, and no changed digit; else "".

    >>> only_candidate("GLOO_SOCKET_IFNAM"), only_candidate("NCCL_MX_NCHANNELS")
    ('GLOO_SOCKET_IFNAME', '')
    """
    best = meant(name)
    most = edits(name, best) + 2
    alike = [known for known in TABLE if abs(len(known) - len(name)) <= most and known[:4] == name[:4]]
    near = [known for known in alike if edits(known, name) <= most]
    return best if near == [best] and re.sub(r"\D", "", name) == re.sub(r"\D", "", best) else ""


def unread(name: str, version: Version) -> str:
    """
    Why a release does not read a variable; "" if it does, or if the name is unknown.

    >>> unread("NCCL_IB_MERGE_NICS", (2, 18, 5)), unread("NCCL_RINGS", (2, 27, 7))
    ('NCCL 2.18.5 does not read it: it came with 2.20.3', 'NCCL 2.27.7 does not read it: the last was 2.4.8')
    """
    row, head = row_of(name), f"NCCL {'.'.join(map(str, version))} does not read it:"
    if row.since and version < version_of(row.since):
        return f"{head} it came with {row.since}"
    return f"{head} the last was {row.until}" if row.until and version > version_of(row.until) else ""


def owner(name: str, value: str) -> str:
    """
    The one cloud that uses this setting, "" for any.

    >>> owner("NCCL_FASTRAK_NUM_FLOWS", "2"), owner("NCCL_NET", "Socket")
    ('Google Cloud', '')
    """
    family = next((f"{f}*" for f in _FAMILIES if name.startswith(f)), name)
    for cloud, parts in row_of(family).clouds.items():
        if any(part in value.lower() for part in parts):
            return cloud
    return ""


def number(environment: Mapping[str, str], name: str, default: int) -> int:
    """
    A variable's value as NCCL_PARAM reads it: strtoll with base 0, so other text is 0.

    >>> number({"A": "0x2"}, "A", 5), number({"A": "true"}, "A", 5), number({"A": ""}, "A", 5)
    (2, 0, 5)
    """
    if not (text := environment.get(name, "")):
        return default
    match = re.match(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]{1,20})|(0[0-7]{0,20})|(\d{1,20}))", text)
    if not match:
        return 0
    sign, *digits = match.groups()
    value = next(int(text, base) for text, base in zip(digits, (16, 8, 10), strict=True) if text)
    return -value if sign == "-" else value
