"""What earlier runs left on the nodes; the looking and the ending is payload/clean.py's."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from ringup.launch.program import joined
from ringup.launch.show import clean
from ringup.reach import Reach
from ringup.reach.hearing import Hearing, one_per_machine

LONGEST_ANSWER_BYTES = 4 << 20
GRACE_S = 3.0
"""Between TERM and KILL."""
LIMIT_S = {"list": 40.0, "kill": 75.0}
"""For all nodes: connecting, then looks of at most 8 s; with "kill" up to three rounds of 6 s as well."""
OLDEST_S = 1e9
QUIET_ROUNDS, BETWEEN_ROUNDS_S = 2, 1.0
"""Looks in which nothing more is to be ended, before that is believed."""


@dataclass(frozen=True)
class Left:
    """A job of ours on a node, by its topmost process."""

    pid: int
    age_s: float
    command: str
    evidence: str
    """Begins "orphan:" for what was left behind, "running:" for a living job."""
    run: str = ""
    """The run's tag; "" for a job that ringup has not started."""
    ports: tuple[int, ...] = ()
    """TCP ports it listens on."""
    processes: int = 1
    """How many would be ended with it, itself counted."""
    doubt: str = ""
    """Why it may be wanted after all; such a one is never ended."""
    signal: str = ""
    """Of an ended one: TERM, or KILL where that was needed."""


@dataclass(frozen=True)
class SharedFile:
    """A file of NCCL's or torch's in /dev/shm that nobody seems to use."""

    path: str
    size_bytes: int
    age_s: float
    doubt: str = ""


@dataclass(frozen=True)
class NodeLeftovers:
    """One node's answer."""

    node: str
    left: tuple[Left, ...] = ()
    """After ending, where that was asked for."""
    ended: tuple[Left, ...] = ()
    running: tuple[Left, ...] = ()
    files: tuple[SharedFile, ...] = ()
    removed: tuple[SharedFile, ...] = ()
    unseen: tuple[str, ...] = ()
    """What could not be judged."""
    error: str = ""
    """Why nothing is known of this node."""

    @property
    def is_clean(self) -> bool:
        """Whether the node was looked at and nothing is left."""
        return not (self.left or self.files or self.error)


@dataclass(frozen=True)
class _Said:
    """The node's line of JSON; msgspec checks every type."""

    left: tuple[Left, ...]
    ended: tuple[Left, ...]
    running: tuple[Left, ...]
    files: tuple[SharedFile, ...]
    removed: tuple[SharedFile, ...]
    unseen: tuple[str, ...]


@functools.cache
def program() -> str:
    """What is sent to the nodes; arguments: "list" or "kill", seconds of grace."""
    return joined(("guard_tree", "facts_processes", "clean_files", "clean_strays"), "clean")


def look(reach: Reach, *, kill: bool, limit_s: float = 0.0) -> tuple[NodeLeftovers, ...]:
    """
    Ask every node side by side; with `kill`, proven leftovers are ended there.

    Nodes played on one machine (`--local`) are asked once.  `limit_s` 0 means LIMIT_S.
    """
    nodes = _look(reach, kill=kill, limit_s=limit_s)
    # Where a lost start was ended whose connections kept ranks elsewhere alive, those lose their parent now.
    follows = len(nodes) > 1 and any(node.ended for node in nodes)
    quiet = 0
    while follows and quiet < QUIET_ROUNDS:
        until = time.monotonic() + BETWEEN_ROUNDS_S
        while time.monotonic() < until:
            reach.turn(0.1)
        again = _look(reach, kill=kill, limit_s=limit_s)
        quiet = 0 if any(node.ended for node in again) else quiet + 1
        nodes = tuple(_both(first, second) for first, second in zip(nodes, again, strict=True))
    return nodes


def _both(first: NodeLeftovers, second: NodeLeftovers) -> NodeLeftovers:
    """What two rounds have ended, and what the second one saw."""
    return replace(second, ended=first.ended + second.ended, removed=first.removed + second.removed)


def _look(reach: Reach, *, kill: bool, limit_s: float) -> tuple[NodeLeftovers, ...]:
    mode = "kill" if kill else "list"
    hearings = [Hearing(host.name, LONGEST_ANSWER_BYTES) for host in one_per_machine(reach.hosts)]
    for hearing in hearings:
        channel = reach.start(
            hearing.node, program(), (mode, f"{GRACE_S:g}"), hearing, label=f"ringup-clean-{mode}"
        )
        channel.write(b"")
    until = time.monotonic() + (limit_s or LIMIT_S[mode])
    while not all(hearing.done for hearing in hearings) and time.monotonic() < until:
        reach.turn(0.1)
    return tuple(_judged(hearing) for hearing in hearings)


def _judged(hearing: Hearing) -> NodeLeftovers:
    name = clean(hearing.node, 255)
    if hearing.error or not hearing.done:
        return NodeLeftovers(name, error=hearing.error or "no answer in time")
    try:
        said = msgspec.json.decode(bytes(hearing.data), type=_Said)
    except (msgspec.MsgspecError, ValueError) as error:
        return NodeLeftovers(name, error=f"its answer cannot be read: {clean(str(error), 200)}")
    return NodeLeftovers(
        name,
        left=_safe(said.left),
        ended=_safe(said.ended),
        running=_safe(said.running),
        files=_safe_files(said.files),
        removed=_safe_files(said.removed),
        unseen=tuple(clean(words, 400) for words in said.unseen[:100]),
    )


def _age_s(value: float) -> float:
    return min(max(value, 0.0), OLDEST_S)


def _safe(found: Iterable[Left]) -> tuple[Left, ...]:
    return tuple(
        Left(
            pid=one.pid,
            age_s=_age_s(one.age_s),
            command=clean(one.command, 300),
            evidence=clean(one.evidence, 400),
            run=clean(one.run, 100),
            ports=one.ports[:100],
            processes=one.processes,
            doubt=clean(one.doubt, 400),
            signal=clean(one.signal, 10),
        )
        for one in found
    )


def _safe_files(found: Iterable[SharedFile]) -> tuple[SharedFile, ...]:
    return tuple(
        SharedFile(
            clean(one.path, 300),
            max(0, min(one.size_bytes, 1 << 60)),
            _age_s(one.age_s),
            clean(one.doubt, 400),
        )
        for one in found
    )
