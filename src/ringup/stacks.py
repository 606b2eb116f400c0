"""The ranks of running jobs on the nodes, ours or not: asked side by side, put together by job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringup.launch.program import look_program
from ringup.looks import MOST_BYTES, NodeLook, RankLook, decode, silent
from ringup.looks.spawned import started
from ringup.reach import Reach
from ringup.reach.hearing import Hearing, one_per_machine

LIMIT_S = 60.0
"""For all nodes: connecting, then at most 20 s of stacks each."""


@dataclass(frozen=True)
class JobLook:
    """The ranks of one job, over all nodes."""

    run: str
    """The run's tag; "" when ringup has not started it."""
    address: str
    world_size: int
    ranks: tuple[RankLook, ...]

    @property
    def is_spawned(self) -> bool:
        """Whether the script has started its ranks itself, so that they are known as processes alone."""
        return any(rank.rank < 0 for rank in self.ranks)

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks that no node has; of those that a script has started itself nobody knows the numbers."""
        if self.is_spawned:
            return ()
        seen = {rank.rank for rank in self.ranks}
        return tuple(number for number in range(min(self.world_size, 65536)) if number not in seen)


def look(reach: Reach, *, mode: str = "stacks", limit_s: float = LIMIT_S) -> tuple[NodeLook, ...]:
    """
    Ask every node for its ranks and their stacks; nodes played on one machine are asked once.

    `mode` "threads" asks for every thread's stack, "flight" for torch's flight recorder, too.
    """
    hearings = []
    for host in one_per_machine(reach.hosts):
        hearing = Hearing(host.name, MOST_BYTES)
        reach.start(host.name, look_program(), (mode, "", ""), hearing, label="ringup-look").write(b"")
        hearings.append(hearing)
    until = time.monotonic() + limit_s
    while not all(hearing.done for hearing in hearings) and time.monotonic() < until:
        reach.turn(0.1)
    local = [host.name for host in reach.hosts if host.local]
    places = local if len(local) > 1 else []
    return tuple(_told(hearing, places) for hearing in hearings)


def jobs(nodes: Iterable[NodeLook], run: str = "") -> list[JobLook]:
    """What belongs together, by the run's tag or by the rendezvous; only `run`'s when that is given."""
    found: dict[tuple[object, ...], list[RankLook]] = {}
    for node in nodes:
        for rank in node.ranks:
            if not run or rank.run == run:
                key = (rank.run,) if rank.run else (rank.job, rank.world_size)
                found.setdefault(key, []).append(rank)
    return [
        JobLook(
            ranks[0].run,
            ":".join(word for word in ranks[0].job[:2] if word),
            max(rank.world_size for rank in ranks),
            tuple(sorted(started(ranks), key=lambda r: (r.rank, r.node, r.pid))),
        )
        for ranks in found.values()
    ]


def _told(hearing: Hearing, places: Sequence[str]) -> NodeLook:
    """What one node said; see `looks.decode`."""
    if hearing.error or not hearing.done:
        return silent(hearing.node, hearing.error or "no answer in time")
    try:
        said = json.loads(bytes(hearing.data))
    except (ValueError, RecursionError):
        return silent(hearing.node, "its answer cannot be read")
    return decode(hearing.node, said if isinstance(said, dict) else {}, places)
