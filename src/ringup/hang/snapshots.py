"""Snapshots of ranks: queries all nodes in parallel and sorts their untrusted answers by job."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ringup.agent.snapshot import stack_frames
from ringup.agent_bundle import program
from ringup.flight_recorder.dump import Flight, from_data
from ringup.secrets import redact
from ringup.transport import Answer, Transport
from ringup.units import grouped, printable, safe_data

MOST_BYTES = 8 << 20
MOST_RANKS = 4096
MOST_CHILDREN = 64
MOST_FRAMES = 100
LONGEST_NAME = 300


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    """0 if unknown."""
    function: str
    source: str = ""
    """The text of the innermost line and of the user's innermost line, if readable."""


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
    """One rank at one moment; counters are totals since its start, CPU and bytes include its descendants'."""

    rank: int
    """Negative for a process that its script has started as a rank (`spawned`)."""
    node: str
    local_rank: int
    world_size: int
    run: str
    """The run's tag; "" for a job that ringup did not start."""
    job: tuple[str, str, str]
    """MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID: equal for all ranks of a job."""
    pid: int
    started: int
    """In the kernel's ticks: with the pid, the process's identity."""
    age_s: float
    state: str
    """As in ps: R running, S sleeping, D uninterruptible, T stopped, Z ended."""
    wchan: str
    syscall: str
    cpu_s: float
    io_bytes: int
    switches: int
    """Number of times that its main thread has gone to sleep."""
    command: str
    children: tuple[Child, ...] = ()
    frames: tuple[Frame, ...] = ()
    """The main thread's, innermost first; empty if unknown."""
    threads: tuple[tuple[str, tuple[Frame, ...]], ...] = ()
    """The other threads, if requested."""
    how: str = ""
    why_not: str = ""
    flight: Flight | None = None
    """The content of torch's flight recorder, if requested."""
    python: str = ""
    """Its interpreter's path."""
    faults: int = 0
    """Pages that it has touched for the first time, or that were read from a file for it."""
    answer_bytes: int = 0
    """That it wrote for this look, after its bytes had been counted."""
    queued_s: float = 0.0
    """For which its main thread waited for a CPU (`/proc/PID/schedstat`)."""
    thread_reads: tuple[tuple[int, int, int, int], ...] = ()
    """Of its other threads that read: id, bytes (part of `io_bytes`), calls, and how often it has slept."""
    namespace: str = ""
    """Its network namespace, if it is another than that of the process that looks."""
    unanswered: tuple[str, ...] = ()
    """Addresses that have not acknowledged data for seconds, however often the kernel sent it again."""


@dataclass(frozen=True)
class NodeState:
    """State of the node itself; counters since it started."""

    memory_bytes: int = 0
    memory_available_bytes: int = 0
    swapped_pages: int = 0
    oom_kills: int = 0
    cgroup_oom_kills: int = 0
    disks: tuple[tuple[str, int, int], ...] = ()
    """Path, free bytes, size."""
    interfaces: Mapping[str, int] = field(default_factory=dict)
    """Bytes received and sent, by interface."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Users whose Python processes cannot be read, and their number; set if no rank was found."""
    written_bytes: int = 0
    """From memory to disks and file servers, for all processes (`nr_written` of /proc/vmstat)."""


@dataclass(frozen=True)
class Ras:
    """The report of NCCL's RAS service on a node; `report` is not yet parsed."""

    address: str
    format: str
    report: str
    problem: str


@dataclass(frozen=True)
class NodeLook:
    node: str
    at_s: float
    """The node's monotonic clock."""
    mode: str
    ranks: tuple[RankLook, ...]
    state: NodeState
    ras: Ras | None = None
    problem: str = ""
    """Why the report is missing."""
    wall_ns: int = 0
    """Since 1970 by the node's clock, at the same moment; 0 if missing."""
    transfers: Mapping[str, tuple[int, Mapping[str, int]]] | None = None
    """
    Pid -> (most bytes of a connection that is left out, bytes received and sent by inode of a TCP connection,
    or by interface of the rank's own network namespace); None if unknown.
    """


def decode(node: str, answer: Mapping[str, Any], places: Sequence[str] = ()) -> NodeLook:
    """A node's answer, bounded; `problem`: its fault; `places`: simulated nodes, by index."""
    if isinstance(answer.get("problem"), str):
        return silent(node, answer["problem"])
    try:
        ranks = tuple(_rank(node, one, places) for one in answer["ranks"][:MOST_RANKS])
        state = {**answer["node"], "disks": answer["node"]["disks"][:16]}
        state["interfaces"] = dict(list(state["interfaces"].items())[:256])
        if missing := _ALWAYS - state.keys():
            raise KeyError(*missing)
        found = {"node": node, "at_s": answer["at"], "mode": answer["mode"], "ranks": [], "state": state}
        found["wall_ns"] = answer.get("wall_ns", 0)
        found["transfers"] = answer.get("transfers")
        decoded = msgspec.convert(safe_data(found), NodeLook)
        return dataclasses.replace(decoded, ranks=ranks, ras=msgspec.convert(answer.get("ras"), Ras | None))
    except _UNREADABLE as error:
        return silent(node, f"its answer cannot be read: {error}")


_ALWAYS = {"memory_bytes", "memory_available_bytes", "swapped_pages", "oom_kills", "cgroup_oom_kills"}
_UNREADABLE = (
    ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError
)  # fmt: skip


def silent(node: str, problem: str) -> NodeLook:
    return NodeLook(node, 0.0, "", (), NodeState(), problem=printable(problem, 400))


def _frames(thread: list[Any]) -> list[dict[str, Any]]:
    return [
        {
            "file": str(file),
            "line": int(line) if 0 < int(line) < 1 << 31 else 0,
            "function": str(function),
            "source": redact(str(source[0]).strip())[:200] if source else "",
        }
        for file, line, function, *source in thread[0][:MOST_FRAMES]
    ]


def _rank(node: str, given: dict[str, Any], places: Sequence[str]) -> RankLook:
    index = given["node"]
    name = places[int(index)] if index.isdecimal() and int(index) < len(places) else node
    one = {**given, "node": name, "command": redact(given["command"])}
    flight = one.pop("flight", None)
    threads = [[t[1], _frames(t)] for t in one.pop("threads", [])[:64]]
    one["frames"], one["threads"] = (threads[0][1], threads[1:]) if threads else ([], [])
    one["children"] = [
        {
            **child,
            "command": redact(child["command"]),
            "threads": [],
            "frames": _frames(child["threads"][0]) if child.get("threads") else [],
        }
        for child in one["children"][:MOST_CHILDREN]
    ]
    found = msgspec.convert(safe_data(one, LONGEST_NAME), RankLook)
    known = from_data(flight) if isinstance(flight, dict) else None
    return dataclasses.replace(found, flight=known)


def spread(
    first: Sequence[NodeLook], second: Sequence[NodeLook]
) -> tuple[Sequence[NodeLook], Sequence[NodeLook]]:
    """
    Both snapshots; if every rank is a parent that waits for processes it started, these are the ranks.

    If only some are, such a rank has helper processes and is still the rank.
    """
    if not all(_is_parent(rank) for node in second for rank in node.ranks):
        return first, second
    started = [tuple(itertools.chain(*map(_started, node.ranks))) for node in second]
    nodes = [dataclasses.replace(node, ranks=ranks) for node, ranks in zip(second, started, strict=True)]
    return with_started(first), nodes


def with_started(nodes: Iterable[NodeLook]) -> list[NodeLook]:
    """The same with processes that parents started, so that their counters can also be compared."""
    return [
        dataclasses.replace(node, ranks=(*node.ranks, *itertools.chain(*map(_started, node.ranks))))
        for node in nodes
    ]


def own_ranks(rank: RankLook, world_size: int) -> Iterator[tuple[RankLook, float]]:
    """
    The ranks that a run's script has started itself, and their age in seconds.

    `world_size`: as ringup has set it for the script, 0 where a launcher sets it.
    """
    if 0 < world_size < rank.world_size:
        yield rank, rank.age_s
    elif _is_parent(rank):
        for one in _started(rank):
            yield one, rank.age_s - (one.started - rank.started) / TICKS_PER_S


def _is_parent(rank: RankLook) -> bool:
    return any(frame.file.endswith(stack_frames.WAITS_IN) for frame in rank.frames) and bool(_started(rank))


def _started(parent: RankLook) -> list[RankLook]:
    """A rank's own Python children as ranks, without the process that tracks shared memory."""
    same = ("pid", "started", "state", "wchan", "syscall", "switches", "command", "frames")
    found = []
    for child in parent.children:
        if child.parent != parent.pid or not child.is_python or "resource_tracker" in child.command:
            continue
        below = tuple(other for other in parent.children if other.parent == child.pid)
        own = {name: getattr(child, name) for name in same}
        own["cpu_s"] = child.cpu_s + sum(other.cpu_s for other in below)
        own["io_bytes"] = child.io_bytes + sum(other.io_bytes for other in below)
        own["why_not"] = "" if child.frames else child.why_not
        found.append(
            dataclasses.replace(
                parent, **own, rank=-1, children=below, threads=(), how="", flight=None, thread_reads=()
            )
        )
    return found


TICKS_PER_S = 100
"""USER_HZ, the unit of /proc/PID/stat: the same on every architecture with GPUs."""
LIMIT_S = 60.0
"""For all nodes: connecting, then at most 20 s for the stacks of each."""


@dataclass(frozen=True)
class JobLook:
    run: str
    """The run's tag; "" if ringup did not start it."""
    address: str
    world_size: int
    ranks: tuple[RankLook, ...]

    @property
    def is_spawned(self) -> bool:
        """Whether the script started its ranks itself, so that only their processes are known."""
        return any(rank.rank < 0 for rank in self.ranks)

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks that no node has; unknown if a script started its ranks itself."""
        if self.is_spawned:
            return ()
        seen = {rank.rank for rank in self.ranks}
        return tuple(number for number in range(min(self.world_size, 65536)) if number not in seen)


def look(
    reach: Transport,
    *,
    mode: str = "stacks",
    run: str = "",
    pyspy: str = "",
    names: Iterable[str] | None = None,
) -> tuple[NodeLook, ...]:
    """
    Query every node (or those in `names`) for its ranks and their stacks; this machine is queried once.

    `mode` "threads" also reads every thread's stack, "flight" also torch's flight recorder.  `run`: only that
    run's ranks, and NCCL's report is from them, not from another job.  `pyspy`: a packed py-spy for nodes
    without one.
    """
    arguments = (mode, run, "", pyspy)
    ask = program("snapshot.main"), arguments if names is None else dict.fromkeys(names, arguments)
    answers = reach.run(*ask, label="ringup-look", doing="stacks", limit_s=LIMIT_S, most_bytes=MOST_BYTES)
    local = [host.name for host in reach.hosts if host.local]
    places = local if len(local) > 1 else []
    return tuple(_decoded(answer, places) for answer in answers)


def jobs(nodes: Iterable[NodeLook], run: str = "") -> list[JobLook]:
    """Ranks by job, from the run's tag or the rendezvous; with `run` only that run's."""
    every = [rank for node in nodes for rank in node.ranks if not run or rank.run == run]
    found = []
    for ranks in grouped(((r.run,) if r.run else (r.job, r.world_size), r) for r in every).values():
        address = ":".join(word for word in ranks[0].job[:2] if word)
        world_size = max(rank.world_size for rank in ranks)
        if all(map(_is_parent, ranks)):  # as in `spread`
            ranks = [one for rank in ranks for one in _started(rank)]
        ranks.sort(key=lambda r: (r.rank, r.node, r.pid))
        found.append(JobLook(ranks[0].run, address, world_size, tuple(ranks)))
    return found


def _decoded(answer: Answer, places: Sequence[str]) -> NodeLook:
    if answer.problem:
        return silent(answer.node, answer.problem)
    try:
        data = json.loads(answer.stdout)
    except (ValueError, RecursionError):
        return silent(answer.node, "its answer cannot be read")
    return decode(answer.node, data if isinstance(data, dict) else {}, places)
