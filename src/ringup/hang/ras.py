"""
Reads NCCL's RAS report: ranks that have launched fewer collectives than others, or do not answer.

NCCL 2.24.3 and later; JSON since 2.28.7 (user guide "RAS", `src/ras/client_support.cc`).  The counts are
launches by the CPU, not completions, and exclude send and recv: equal counts prove nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
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
    """0 if the report lacks it."""
    what: str
    """ "AllReduce: 41 launched, the others 42", "does not answer"."""
    is_minor: bool = False
    """Whether the ranks that have launched less are the minority."""
    is_apart: bool = False
    """Whether it is also ahead in another kind: then no common order of calls fits all ranks."""
    members: frozenset[int] = field(default=frozenset(), compare=False)
    """Process ids of the communicator's ranks that have answered; empty if the report lacks them."""

    @property
    def is_counted(self) -> bool:
        return "launched" in self.what

    @property
    def kind(self) -> str:
        """ "AllReduce"; "" if the report lacks it."""
        return self.what.partition(":")[0] if self.is_counted and ":" in self.what else ""


def read(form: str, text: str) -> list[RankBehind]:
    """The ranks that a report of either form names; none if it cannot be read.  Never raises."""
    if form == "json":
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            return []
        communicators = _list(whole, "communicators") if isinstance(whole, dict) else []
        return [*islice(chain.from_iterable(map(_of_communicator, communicators)), MOST_NAMED)]
    parts = _BLOCK.split(text)
    blocks = zip(parts[1::2], parts[2::2], strict=True)
    ranks = (rank for communicator, block in blocks for rank in _of_block(communicator, block))
    found = [*islice(ranks, MOST_NAMED)]
    return [replace(one, is_apart=_is_apart(one, found)) for one in found]


def _is_apart(one: RankBehind, found: list[RankBehind]) -> bool:
    """Whether it and another rank of its communicator are each behind in a kind in which the other is not."""
    counted = [other for other in found if other.is_counted and other.communicator == one.communicator]
    own = {other.kind for other in counted if other.rank == one.rank}
    for other in counted:
        theirs = {another.kind for another in counted if another.rank == other.rank}
        if one.is_counted and own - theirs and theirs - own:
            return True
    return False


def _list(mapping: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = mapping.get(name)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _number(mapping: dict[str, Any], name: str) -> int:
    value = mapping.get(name)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else 0


def _of_communicator(communicator: dict[str, Any]) -> Iterator[RankBehind]:
    name = printable(str(communicator.get("hash", "")), 40)
    ranks = _list(communicator, "ranks")
    members = frozenset(_number(rank, "pid") for rank in ranks)

    def behind(rank: dict[str, Any], what: str, is_minor: bool = False, is_apart: bool = False) -> RankBehind:
        host, pid = printable(str(rank.get("host", "")), 100), _number(rank, "pid")
        return RankBehind(name, _number(rank, "rank"), host, pid, what, is_minor, is_apart, members)

    counts = [_counts(rank) for rank in ranks]
    kinds = sorted({kind for one in counts for kind in one})
    vectors = [tuple(one.get(kind, 0) for kind in kinds) for one in counts]
    differ = _differing(set(vectors))
    for kind in kinds:
        numbers = [one.get(kind, 0) for one in counts]
        most = max(numbers)
        low = [n for n, number in enumerate(numbers) if number < most]
        if 0 < len(low) <= len(ranks) / 2:
            for n in low:
                what = f"{kind}: {numbers[n]} launched, the others {most}"
                yield behind(ranks[n], what, len(low) < len(ranks) / 2, vectors[n] in differ)
    for rank in _list(communicator, "missing_ranks"):
        status = rank.get("status")
        dead = isinstance(status, dict) and status.get("considered_dead") is True
        yield behind(rank, "is considered dead" if dead else "does not answer")


def _counts(rank: dict[str, Any]) -> dict[str, int]:
    counts = rank.get("collective_counts")
    if not isinstance(counts, dict):
        return {}
    return {printable(str(kind), 40): _number(counts, kind) for kind in list(counts)[:32]}


def _differing(vectors: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """From counts by kind, those that another rank contradicts: more of one kind and fewer of another."""
    if len(vectors) > MOST_NAMED:
        return set()
    return {
        one
        for one in vectors
        for other in vectors
        if any(a < b for a, b in zip(one, other, strict=True))
        and any(a > b for a, b in zip(one, other, strict=True))
    }


def _of_block(communicator: str, block: str) -> Iterator[RankBehind]:
    heads = [*_KIND.finditer(block)]
    ends = [*(head.start() for head in heads[1:]), len(block)]
    for head, end in zip(heads, ends, strict=False):
        kind = f"{head[1]}: " if head[1] else ""
        yield from _of_kind(communicator, kind, block[head.end() : end])
    for missing in _MISSING.finditer(block):
        for rank_text in re.findall(r"\b\d{1,18}\b", missing[1])[:MOST_NAMED]:
            yield RankBehind(communicator, int(rank_text), "", 0, "does not answer")
    for dead in _DEAD.finditer(block):
        yield RankBehind(communicator, -1, printable(dead[2], 100), int(dead[1]), "is considered dead")


def _of_kind(communicator: str, kind: str, part: str) -> Iterator[RankBehind]:
    ranks = [(int(m[1]), int(m[2] or 0), int(m[3] or 0), m[4] or "") for m in _RANK.finditer(part)]
    sizes: Counter[int] = Counter()
    for many in _MANY.finditer(part):
        sizes[int(many[2] or 0)] += int(many[1])
    sizes = sizes or Counter(count for _, count, _, _ in ranks)
    most = max([*sizes, *(count for _, count, _, _ in ranks)], default=0)
    is_minor = sizes.total() < 2 * sizes[most]
    for rank, count, pid, host in ranks:
        if count < most:
            what = f"{kind}{count} launched, the others {most}"
            yield RankBehind(communicator, rank, printable(host, 100), pid, what, is_minor)
