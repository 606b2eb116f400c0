"""
Ranks that a script has started itself: they have no rank in their environment, but a parent that waits.

`torch.multiprocessing.spawn` and `start_processes` wait in `ProcessContext.join`
(torch/multiprocessing/spawn.py, torch 2.0 to 2.13); whom they have started are the ranks then.  Which number
each has only the script knows, so they are named by process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ringup.looks import Child, NodeLook, RankLook

NO_NUMBER = -1
_WAITS_IN = "torch/multiprocessing/spawn.py"


def spread(
    first: Sequence[NodeLook], second: Sequence[NodeLook]
) -> tuple[Sequence[NodeLook], Sequence[NodeLook]]:
    """
    Both looks, with the processes in the place of their parents where every rank is such a parent.

    Where some are not, the ranks are those with a number, and one of them has others work for it.
    """
    ranks = [rank for node in second for rank in node.ranks]
    if not all(_is_parent(rank) for rank in ranks):
        return first, second
    parents = {(rank.node, rank.pid) for rank in ranks}
    return _replaced(first, parents), _replaced(second, parents)


def started(ranks: Sequence[RankLook]) -> Sequence[RankLook]:
    """The same for one look at one job: the processes where every rank is such a parent, else the ranks."""
    if not all(_is_parent(rank) for rank in ranks):
        return ranks
    return [_as_rank(rank, child) for rank in ranks for child in _ranks(rank)]


def _is_parent(rank: RankLook) -> bool:
    return any(frame.file.endswith(_WAITS_IN) for frame in rank.frames) and bool(_ranks(rank))


def _ranks(parent: RankLook) -> list[Child]:
    """Its own children that run Python, without the process that tracks shared memory."""
    return [
        child
        for child in parent.children
        if child.parent == parent.pid and child.is_python and "resource_tracker" not in child.command
    ]


def _replaced(nodes: Sequence[NodeLook], parents: set[tuple[str, int]]) -> list[NodeLook]:
    return [
        dataclasses.replace(
            node,
            ranks=tuple(
                one
                for rank in node.ranks
                for one in (
                    [_as_rank(rank, child) for child in _ranks(rank)]
                    if (rank.node, rank.pid) in parents
                    else [rank]
                )
            ),
        )
        for node in nodes
    ]


def _as_rank(parent: RankLook, child: Child) -> RankLook:
    below = tuple(other for other in parent.children if other.parent == child.pid)
    return dataclasses.replace(
        parent,
        rank=NO_NUMBER,
        pid=child.pid,
        started=child.started,
        state=child.state,
        wchan=child.wchan,
        syscall=child.syscall,
        cpu_s=child.cpu_s + sum(other.cpu_s for other in below),
        io_bytes=child.io_bytes + sum(other.io_bytes for other in below),
        switches=child.switches,
        command=child.command,
        children=below,
        frames=child.frames,
        threads=(),
        how="",
        why_not="" if child.frames else child.why_not,
        flight=None,
    )
