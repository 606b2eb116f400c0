"""
NCCL's RAS report, read: who has launched fewer collectives than the others, who does not answer.

NCCL 2.24.3 and later; JSON since 2.28.7 (user guide "RAS", `src/ras/client_support.cc`).  Counts are
launches by the CPU, not completions, and send and recv are not counted: equal counts prove nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ringup.units import printable

MOST_NAMED = 32
_BLOCK = re.compile(
    r"^[ \t]{0,40}#\d+-\d+ \(([0-9a-f]+)\) (?:MISMATCH|INCOMPLETE|ERROR|TIMEOUT)", re.MULTILINE
)
_RANK = re.compile(
    r"Rank (\d{1,18}) has (?:launched up to operation (\d{1,18})|not launched any operations)"
    r"(?: -- GPU \S+ managed by process (\d{1,18}) on node (\S+))?"
)
_MANY = re.compile(
    r"\b(\d{1,18}) ranks? ha(?:ve|s) (?:launched up to operation (\d{1,18})|not launched any operations)"
)
_KIND = re.compile(r"Communicator ranks have different (?:(\w+) )?operation counts")
_MISSING = re.compile(r"The missing ranks?: ([\d, -]+)")
_DEAD = re.compile(r"Process (\d{1,18}) on node (\S+?)(?: managing GPUs? \S+)?(?: is)? considered dead")


@dataclass(frozen=True)
class RankBehind:
    """A rank of a communicator that has launched less than most, or does not answer."""

    communicator: str
    """NCCL's hash, as in its log."""
    rank: int
    """Within the communicator."""
    host: str
    pid: int
    """0 when the report does not say."""
    what: str
    """ "AllReduce: 41 launched, the others 42", "does not answer"."""

    @property
    def is_counted(self) -> bool:
        return "launched" in self.what


def read(form: str, text: str) -> list[RankBehind]:
    """Whom a report in either form names; nobody where it cannot be read.  Never raises."""
    return [*islice(_read_json(text) if form == "json" else _read_text(text), MOST_NAMED)]


def _read_json(text: str) -> Iterator[RankBehind]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return
    for communicator in _list(whole, "communicators") if isinstance(whole, dict) else ():
        yield from _of_communicator(communicator)


def _list(mapping: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = mapping.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(mapping: dict[str, Any], name: str) -> int:
    value = mapping.get(name)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else 0


def _of_communicator(communicator: dict[str, Any]) -> Iterator[RankBehind]:
    name = printable(str(communicator.get("hash", "")), 40)
    ranks = _list(communicator, "ranks")
    counts = [_counts(rank) for rank in ranks]
    for kind in sorted({kind for one in counts for kind in one}):
        numbers = [one.get(kind, 0) for one in counts]
        most = max(numbers)
        low = [(rank, number) for rank, number in zip(ranks, numbers, strict=True) if number < most]
        if 0 < len(low) <= len(ranks) / 2:
            for rank, number in low:
                yield _behind(name, rank, f"{kind}: {number} launched, the others {most}")
    for rank in _list(communicator, "missing_ranks"):
        status = rank.get("status")
        dead = isinstance(status, dict) and status.get("considered_dead") is True
        yield _behind(name, rank, "is considered dead" if dead else "does not answer")


def _counts(rank: dict[str, Any]) -> dict[str, int]:
    counts = rank.get("collective_counts")
    if not isinstance(counts, dict):
        return {}
    return {printable(str(kind), 40): _number(counts, kind) for kind in list(counts)[:32]}


def _behind(communicator: str, rank: dict[str, Any], what: str) -> RankBehind:
    host = printable(str(rank.get("host", "")), 100)
    return RankBehind(communicator, _number(rank, "rank"), host, _number(rank, "pid"), what)


def _read_text(text: str) -> Iterator[RankBehind]:
    parts = _BLOCK.split(text)
    for communicator, block in zip(parts[1::2], parts[2::2], strict=True):
        yield from _of_block(communicator, block)


def _of_block(communicator: str, block: str) -> Iterator[RankBehind]:
    kind_match = _KIND.search(block)
    kind = f"{kind_match[1]}: " if kind_match and kind_match[1] else ""
    sizes: Counter[int] = Counter()
    for many in _MANY.finditer(block):
        sizes[int(many[2] or 0)] += int(many[1])
    ranks = [(int(m[1]), int(m[2] or 0), int(m[3] or 0), m[4] or "") for m in _RANK.finditer(block)]
    most = max([*sizes, *(count for _, count, _, _ in ranks)], default=0)
    for rank, count, pid, host in ranks:
        if count < most:
            what = f"{kind}{count} launched, the others {most}"
            yield RankBehind(communicator, rank, printable(host, 100), pid, what)
    for missing in _MISSING.finditer(block):
        for rank_text in re.findall(r"\b\d{1,18}\b", missing[1])[:MOST_NAMED]:
            yield RankBehind(communicator, int(rank_text), "", 0, "does not answer")
    for dead in _DEAD.finditer(block):
        yield RankBehind(communicator, -1, printable(dead[2], 100), int(dead[1]), "is considered dead")
