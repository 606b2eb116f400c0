"""The ranks of running jobs on the nodes, ours or not: asked side by side, put together by job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ringup.facts import Host, Unreached
from ringup.launch.program import look_program
from ringup.looks import MOST_BYTES, NodeLook, RankLook, decode, silent
from ringup.reach import Reach

LIMIT_S = 60.0
"""For all nodes: connecting, then at most 20 s of stacks each."""


@dataclass
class _Hearing:
    """Collects what the program on one node prints."""

    node: str
    data: bytearray = field(default_factory=bytearray)
    errors: bytes = b""
    done: bool = False
    error: str = ""

    def on_output(self, node: str, data: bytes) -> None:
        """Part of the answer."""
        if len(self.data) < MOST_BYTES:
            self.data += data

    def on_errors(self, node: str, data: bytes) -> None:
        """Why there may be none."""
        self.errors = (self.errors + data)[-4096:]

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The answer is complete, or never will be."""
        self.done = True
        if error is not None:
            self.error = error.words
        elif code != 0:
            lines = self.errors.decode("utf-8", "replace").strip().splitlines()
            self.error = lines[-1] if lines else f"exit code {code}"

    def look(self, places: Sequence[str]) -> NodeLook:
        """What it said; see `looks.decode`."""
        if self.error or not self.done:
            return silent(self.node, self.error or "no answer in time")
        try:
            said = json.loads(bytes(self.data))
        except (ValueError, RecursionError):
            return silent(self.node, "its answer cannot be read")
        return decode(self.node, said if isinstance(said, dict) else {}, places)


@dataclass(frozen=True)
class JobLook:
    """The ranks of one job, over all nodes."""

    run: str
    """The run's tag; "" when ringup has not started it."""
    address: str
    world_size: int
    ranks: tuple[RankLook, ...]

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks that no node has."""
        seen = {rank.rank for rank in self.ranks}
        return tuple(number for number in range(min(self.world_size, 65536)) if number not in seen)


def look(reach: Reach, *, mode: str = "stacks", limit_s: float = LIMIT_S) -> tuple[NodeLook, ...]:
    """
    Ask every node for its ranks and their stacks; nodes played on one machine are asked once.

    `mode` "threads" asks for every thread's stack, "flight" for torch's flight recorder, too.
    """
    hearings = []
    for host in _one_per_machine(reach.hosts):
        hearing = _Hearing(host.name)
        reach.start(host.name, look_program(), (mode, "", ""), hearing, label="ringup-look").write(b"")
        hearings.append(hearing)
    until = time.monotonic() + limit_s
    while not all(hearing.done for hearing in hearings) and time.monotonic() < until:
        reach.turn(0.1)
    local = [host.name for host in reach.hosts if host.local]
    places = local if len(local) > 1 else []
    return tuple(hearing.look(places) for hearing in hearings)


def _one_per_machine(hosts: Iterable[Host]) -> list[Host]:
    found: list[Host] = []
    for host in hosts:
        if not (host.local and any(other.local for other in found)):
            found.append(host)
    return found


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
            tuple(sorted(ranks, key=lambda r: (r.rank, r.node, r.pid))),
        )
        for ranks in found.values()
    ]
