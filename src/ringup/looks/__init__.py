"""
What ranks are doing, as their nodes have said it: pure, from one line of JSON to a picture of the job.

    (here)   the data, and its decoding: a node may say anything
    places   where a stack stands: in which collective, or at which line of the user's
    moves    what has changed between two looks
    spawned  ranks that a script has started itself
    fold     many ranks in few lines
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from ringup import flight
from ringup.flight import Flight
from ringup.units import printable

MOST_BYTES = 8 << 20
MOST_RANKS = 4096
MOST_CHILDREN = 64
MOST_FRAMES = 100
LONGEST_NAME = 300
Count = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
"""As it comes from a node: no kernel counts further, and what does could not be made a float."""


@dataclass(frozen=True)
class Frame:
    """One call of a Python stack."""

    file: str
    line: int
    """0 when unknown."""
    function: str
    source: str = ""
    """The line's text where it could be read: of the innermost frame, and of the user's innermost one."""


@dataclass(frozen=True)
class Child:
    """A process below a rank: a DataLoader's worker, a compiler."""

    pid: int
    command: str
    state: str
    wchan: str
    syscall: str
    cpu_s: float
    frames: tuple[Frame, ...] = ()
    why_not: str = ""
    io_bytes: int = 0
    switches: int = 0
    parent: int = 0
    started: int = 0
    is_python: bool = False


@dataclass(frozen=True)
class RankLook:
    """One rank at one moment; counters are totals since it began, CPU and bytes with its descendants'."""

    rank: int
    """Below 0 for a process that its script has started as a rank (`spawned`)."""
    node: str
    local_rank: int
    world_size: int
    run: str
    """The run's tag; "" for a job that ringup has not started."""
    job: tuple[str, str, str]
    """MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID: what its job's ranks have in common."""
    pid: int
    started: int
    """In the kernel's ticks: with the pid, the process's identity."""
    age_s: float
    state: str
    """As in ps: R runs, S sleeps, D cannot be interrupted, T was stopped, Z has ended."""
    wchan: str
    syscall: str
    cpu_s: float
    io_bytes: int
    switches: int
    """How often its main thread has gone to sleep."""
    command: str
    children: tuple[Child, ...] = ()
    frames: tuple[Frame, ...] = ()
    """The main thread's, innermost first; empty when unknown."""
    threads: tuple[tuple[str, tuple[Frame, ...]], ...] = ()
    """The other threads, where they were asked for."""
    how: str = ""
    why_not: str = ""
    flight: Flight | None = None
    """What torch's flight recorder has, where it was asked for."""
    faults: int = 0
    """Pages of memory it has touched for the first time, or had read from a file."""


@dataclass(frozen=True)
class NodeState:
    """Of the node itself; counters since it came up."""

    memory_bytes: int = 0
    memory_available_bytes: int = 0
    swapped_pages: int = 0
    oom_kills: int = 0
    cgroup_oom_kills: int = 0
    disks: tuple[tuple[str, int, int], ...] = ()
    """Path, free bytes, size."""
    interfaces: Mapping[str, int] = field(default_factory=dict)
    """Bytes received and sent."""
    written_bytes: int = 0
    """From memory to disks and file servers, whoever had written them (`nr_written` of /proc/vmstat)."""


@dataclass(frozen=True)
class Ras:
    """What NCCL's RAS service on a node has said; `report` is not yet judged."""

    address: str
    format: str
    report: str
    problem: str


@dataclass(frozen=True)
class NodeLook:
    """One node's answer."""

    node: str
    at_s: float
    """The node's monotonic clock."""
    mode: str
    ranks: tuple[RankLook, ...]
    state: NodeState
    ras: Ras | None = None
    problem: str = ""
    """Why nothing is known."""


class _Child(msgspec.Struct):
    pid: Count
    command: str
    state: str
    wchan: str
    syscall: str
    cpu_s: float
    threads: list[list[Any]] = []
    why_not: str = ""
    io_bytes: Count = 0
    switches: Count = 0
    parent: Count = 0
    started: Count = 0
    is_python: bool = False


class _Rank(msgspec.Struct):
    rank: Count
    local_rank: Count
    world_size: Count
    run: str
    node: str
    job: tuple[str, str, str]
    pid: Count
    started: Count
    age_s: float
    state: str
    wchan: str
    syscall: str
    cpu_s: float
    io_bytes: Count
    switches: Count
    command: str
    children: list[_Child]
    threads: list[list[Any]] = []
    how: str = ""
    why_not: str = ""
    flight: Any = None
    faults: Count = 0


class _Node(msgspec.Struct):
    memory_bytes: Count
    memory_available_bytes: Count
    swapped_pages: Count
    oom_kills: Count
    cgroup_oom_kills: Count
    disks: list[tuple[str, Count, Count]]
    interfaces: dict[str, Count]
    written_bytes: Count = 0


class _Said(msgspec.Struct):
    at: float
    mode: str
    ranks: list[_Rank]
    node: _Node
    ras: Ras | None = None


def decode(node: str, said: Mapping[str, Any], places: Sequence[str] = ()) -> NodeLook:
    """
    What one node said, checked and bounded; `problem` says what was wrong with it.

    `places` names the nodes of a run whose nodes are played on one machine, by their index.
    """
    if isinstance(said.get("problem"), str):
        return silent(node, said["problem"])
    try:
        whole = msgspec.convert(said, type=_Said)
        ranks = tuple(_rank(_place(node, one.node, places), one) for one in whole.ranks[:MOST_RANKS])
    except (ArithmeticError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        return silent(node, f"its answer cannot be read: {error}")
    state = NodeState(
        whole.node.memory_bytes,
        whole.node.memory_available_bytes,
        whole.node.swapped_pages,
        whole.node.oom_kills,
        whole.node.cgroup_oom_kills,
        tuple((printable(path, LONGEST_NAME), free, size) for path, free, size in whole.node.disks[:16]),
        {printable(name, 64): size for name, size in list(whole.node.interfaces.items())[:256]},
        whole.node.written_bytes,
    )
    return NodeLook(node, whole.at, printable(whole.mode, 10), ranks, state, whole.ras)


def _place(node: str, index: str, places: Sequence[str]) -> str:
    return places[int(index)] if index.isdecimal() and int(index) < len(places) else node


def silent(node: str, problem: str) -> NodeLook:
    """A node of which nothing is known."""
    return NodeLook(node, 0.0, "", (), NodeState(), problem=printable(problem, 400))


def _frames(thread: list[Any]) -> tuple[Frame, ...]:
    found = []
    for frame in thread[0][:MOST_FRAMES]:
        line = int(frame[1]) if 0 < int(frame[1]) < 1 << 31 else 0
        source = printable(str(frame[3]).strip(), 200) if len(frame) > 3 else ""
        found.append(
            Frame(printable(str(frame[0]), LONGEST_NAME), line, printable(str(frame[2]), 200), source)
        )
    return tuple(found)


def _rank(node: str, one: _Rank) -> RankLook:
    threads = [(printable(str(t[1]), 100), _frames(t)) for t in one.threads[:64]]
    children = tuple(
        Child(
            child.pid,
            printable(child.command, LONGEST_NAME),
            printable(child.state, 2),
            printable(child.wchan, 100),
            printable(child.syscall, LONGEST_NAME),
            child.cpu_s,
            _frames(child.threads[0]) if child.threads else (),
            printable(child.why_not, 400),
            child.io_bytes,
            child.switches,
            child.parent,
            child.started,
            child.is_python,
        )
        for child in one.children[:MOST_CHILDREN]
    )
    job = tuple(printable(word, 200) for word in one.job)
    return RankLook(
        rank=one.rank,
        node=node,
        local_rank=one.local_rank,
        world_size=one.world_size,
        run=printable(one.run, 100),
        job=(job[0], job[1], job[2]),
        pid=one.pid,
        started=one.started,
        age_s=one.age_s,
        state=printable(one.state, 2),
        wchan=printable(one.wchan, 100),
        syscall=printable(one.syscall, LONGEST_NAME),
        cpu_s=one.cpu_s,
        io_bytes=one.io_bytes,
        switches=one.switches,
        command=printable(one.command, LONGEST_NAME),
        children=children,
        frames=threads[0][1] if threads else (),
        threads=tuple(threads[1:]),
        how=printable(one.how, 20),
        why_not=printable(one.why_not, 400),
        flight=flight.from_data(one.flight) if isinstance(one.flight, dict) else None,
        faults=one.faults,
    )
