"""Many ranks in few lines: "31 ranks (0-16, 18-31): all_reduce, train.py:88"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringup.hang import ras
from ringup.hang.snapshots import Frame, NodeLook, RankLook
from ringup.hang.stack_frames import Place, child_place, doing, place_of
from ringup.units import printable, ranges

MOST_RAS_LINES = 8


@dataclass(frozen=True)
class RankGroup:
    place: Place
    doing: str
    ranks: tuple[RankLook, ...]


def group(ranks: Iterable[RankLook]) -> list[RankGroup]:
    """Ranks by where they are, the largest group first."""
    found: dict[tuple[Place, str, str], list[RankLook]] = {}
    for rank in sorted(ranks, key=lambda r: (r.rank, r.node, r.pid)):
        place = place_of(rank.frames)
        # The kind of wait (futex, poll) does not matter.
        words = "" if place.waits and rank.state not in "DTtZ" else doing(rank)
        key = (place, words, "" if rank.frames else rank.why_not)
        found.setdefault(key, []).append(rank)
    groups = [RankGroup(key[0], key[1], tuple(members)) for key, members in found.items()]
    return sorted(groups, key=lambda g: (-len(g.ranks), g.ranks[0].rank))


def name(rank: RankLook) -> str:
    """ "rank 3", or "process 4711" if only the script knows the rank's number."""
    return f"rank {rank.rank}" if rank.rank >= 0 else f"process {rank.pid}"


def who(ranks: Sequence[RankLook]) -> str:
    """ "rank 3 (node1)" or "3 ranks (0-2)"."""
    if len(ranks) == 1:
        return f"{name(ranks[0])} ({ranks[0].node})"
    if any(rank.rank < 0 for rank in ranks):
        places = ", ".join(dict.fromkeys(rank.node for rank in ranks[:8]))
        return f"{len(ranks)} processes ({places})"
    return f"{len(ranks)} ranks ({ranges(r.rank for r in ranks)})"


def where(place: Place, words: str = "") -> str:
    """ "all_reduce, train.py:88 in step", and the state of its process there."""
    at = place.where
    if at and place.function and place.function != "<module>":
        at += f" in {place.function}"
    if at and place.kind == "own" and place.source:
        at += f": {place.source}"
    parts = [part for part in (place.what, at, words) if part]
    return ", ".join(parts) or "nothing known"


def group_line(one: RankGroup) -> str:
    if one.place.kind == "unknown":
        rank = one.ranks[0]
        known = one.doing or f"state {rank.state}{f', {rank.wchan}' if rank.wchan else ''}"
        return f"{who(one.ranks)}: {known}; no Python stack: {rank.why_not or 'not requested'}"
    return f"{who(one.ranks)}: {where(one.place, one.doing)}"


def child_lines(one: RankGroup) -> list[str]:
    """The calls in which the processes below a single rank are stuck, if they explain more than the rank."""
    if len(one.ranks) > 4 or one.place.waits:
        return []
    lines = []
    for rank in one.ranks:
        known, held = child_place(rank.children), [child for child in rank.children if child.state in "DT"]
        if known:
            lines.append(f"its process {known[0].pid}: {where(known[1], doing(known[0]))}")
        elif held:
            lines.append(f"its process {held[0].pid} ({held[0].command[:60]}): {doing(held[0])}")
    return lines[:2]


def lines(ranks: Iterable[RankLook]) -> list[str]:
    found = []
    for one in group(ranks):
        found.append(group_line(one))
        found += [f"  {line}" for line in child_lines(one)]
    return found


def stack_lines(frames: tuple[Frame, ...]) -> list[str]:
    return [
        f"{frame.file}:{frame.line} in {frame.function}{f': {frame.source}' if frame.source else ''}"
        for frame in frames
    ]


def ras_behind(nodes: Sequence[NodeLook]) -> set[ras.RankBehind]:
    return {
        behind
        for node in nodes
        if node.ras and node.ras.report
        for behind in ras.read(node.ras.format, node.ras.report)
    }


def ras_lines(nodes: Sequence[NodeLook]) -> Iterable[str]:
    """The report of NCCL's RAS, one line each; nothing about communicators without any of these ranks."""
    ranks = [rank for node in nodes for rank in node.ranks]
    own = {*(rank.pid for rank in ranks), *(child.pid for rank in ranks for child in rank.children)}
    # If several jobs use a node, another job may have answered.
    known = [behind for behind in ras_behind(nodes) if not behind.members or behind.members & own]
    for one in sorted(known, key=lambda b: (b.communicator, b.rank))[:MOST_RAS_LINES]:
        process = f" (process {one.pid} on {one.host})" if one.pid else ""
        who = f"rank {one.rank}" if one.rank >= 0 else "a rank"
        yield f"NCCL's RAS: {who} of communicator {one.communicator}{process}: {one.what}"
    for node in nodes:
        if node.ras and node.ras.problem:
            at = f"{printable(node.node, 64)}: NCCL's RAS at {printable(node.ras.address, 60)}"
            yield f"{at}: {printable(node.ras.problem, 200)}"
