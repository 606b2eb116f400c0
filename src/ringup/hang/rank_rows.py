"""One row per rank for `ringup top`, from two snapshots of counters and the latest stacks; worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ringup.hang import grouping
from ringup.hang.activity import Move, identity, moves
from ringup.hang.snapshots import JobLook, NodeLook, RankLook, jobs, with_started
from ringup.hang.stack_frames import doing, place_of
from ringup.hang.verdict import JudgedRank
from ringup.hang.watched_node import GpuUse, Usage
from ringup.runtime.output import end_words
from ringup.units import grouped, natural

USUAL = ("idle", "waits", "runs", "new", "done")
"""States that a healthy run also has."""
STATES = ("missing", "failed", "exited", "gone", "stopped", "blocked", "not seen", *USUAL)
"""Worst first; see docs/reference/commands.md."""
By = Literal["state", "node", "rank"]


@dataclass(frozen=True)
class RankRow:
    rank: int
    """Negative for a process whose rank only its script knows."""
    node: str
    state: str
    where: str = ""
    pid: int = 0
    cpu_percent: float | None = None
    memory_bytes: int = 0
    gpu: GpuUse | None = None
    step: float | None = None
    steps_per_s: float | None = None

    @property
    def name(self) -> str:
        return str(self.rank) if self.rank >= 0 else f"pid {self.pid}"

    @property
    def badness(self) -> int:
        return STATES.index(self.state)


@dataclass(frozen=True)
class JobState:
    before: Sequence[NodeLook] = ()
    now: Sequence[NodeLook] = ()
    """Counters, some seconds later than `before`."""
    stacks: Mapping[tuple[str, int, int], RankLook] = field(default_factory=dict)
    """The latest snapshot with a stack for each rank, by its identity."""
    moved: Mapping[tuple[str, int, int], Move] = field(default_factory=dict)
    """The latest moves that have bytes over TCP, which most counters lack."""
    missing: Collection[int] = ()
    """Ranks that the hang verdict names."""
    codes: Mapping[int, int] = field(default_factory=dict)
    """Exit codes of ended ranks; minus the signal's number."""
    failed: int | None = None
    """The rank that failed first."""
    planned: Mapping[int, str] = field(default_factory=dict)
    """Rank -> node, for a run with a known plan."""
    earlier: Mapping[int, str] = field(default_factory=dict)
    """Rank -> node, for ranks that ran at some time."""
    usage: Mapping[tuple[str, int, int], Usage] = field(default_factory=dict)
    steps: Mapping[int, tuple[float, float | None]] = field(default_factory=dict)
    """Rank -> the step in its output, and steps per second."""


def job_of(seen: JobState, wanted: str) -> JobLook | None:
    """The latest attempt of the job with that name (a run, a rendezvous); without a name, the largest job."""
    found = jobs([replace(node, ranks=tuple(_with_stack(seen, r) for r in node.ranks)) for node in seen.now])
    fits = [job for job in found if not wanted or wanted in (job.run.partition(".")[0], job.address)]
    return max(fits, key=lambda job: (_attempt(job.run), len(job.ranks)), default=None)


def _attempt(run: str) -> int:
    number = run.partition(".")[2]
    return int(number) if number.isdecimal() else 0


def _with_stack(seen: JobState, rank: RankLook) -> RankLook:
    old = seen.stacks.get(identity(rank))
    if not old:
        return rank
    frames = {(child.pid, child.started): child for child in old.children}
    children = tuple(
        replace(child, frames=known.frames, why_not=known.why_not)
        if (known := frames.get((child.pid, child.started)))
        else child
        for child in rank.children
    )
    same = {name: getattr(old, name) for name in ("frames", "why_not", "flight")}
    return replace(rank, **same, children=children or old.children)


def rank_rows(seen: JobState, job: JobLook | None) -> list[RankRow]:
    """A row for each rank of a job: running, ended, or never seen."""
    known = moves(with_started(seen.before), with_started(seen.now))
    running = job.ranks if job else ()
    rows = [_row(seen, rank, known.get(identity(rank))) for rank in running]
    if job and job.is_spawned:
        return rows
    problems = {node.node: node.problem for node in seen.now if node.problem}
    expected = dict.fromkeys((*seen.codes, *(job.unseen if job else ())), "")
    expected = {**expected, **seen.planned, **seen.earlier}
    for rank in sorted(expected.keys() - {rank.rank for rank in running}):
        node, code = expected[rank], seen.codes.get(rank)
        if code is not None:
            state = "done" if code == 0 else "failed" if rank == seen.failed else "exited"
            where = end_words(code) if code else ""
        elif node in problems:
            state, where = "not seen", problems[node]
        elif rank in seen.earlier:
            state, where = "gone", "ended; its exit code is not known"
        else:
            state, where = "not seen", "not started, ended, or on a node that is not watched"
        step, rate = seen.steps.get(rank, (None, None))
        rows.append(RankRow(rank, node, state, where, step=step, steps_per_s=rate))
    return rows


def _row(seen: JobState, look: RankLook, move: Move | None) -> RankRow:
    if move and (detailed := seen.moved.get(identity(look))) and detailed.transfers:
        move = replace(move, tcp_bytes=int(detailed.tcp_bytes / detailed.seconds * move.seconds))
    judged = JudgedRank(look, place_of(look.frames), move)
    by_kernel = {"T": "stopped", "t": "stopped", "D": "blocked", "Z": "gone"}.get(look.state)
    if look.rank in seen.missing:
        state = "missing"
    elif by_kernel or move is None:
        state = by_kernel or "new"
    elif judged.waits:
        state = "waits"
    else:
        state = "runs" if judged.works else "idle"
    words = "" if judged.place.waits and look.state not in "DTtZ" else doing(look)
    where = grouping.where(judged.place, words) if judged.place.kind != "unknown" else words
    if not where and look.why_not:
        where = f"no stack: {look.why_not}"
    percent = 100 * move.cpu_s / move.seconds if move and move.seconds > 0 and move.cpu_s >= 0 else None
    used = seen.usage.get(identity(look), Usage())
    steps = seen.steps.get(look.rank, (None, None))
    return RankRow(look.rank, look.node, state, where, look.pid, percent, used.memory_bytes, used.gpu, *steps)


# -- rows as lines ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RowLine:
    """Rows that share a line, and the key that opens or closes it."""

    key: Hashable
    rows: tuple[RankRow, ...]
    is_open: bool = False
    is_inner: bool = False
    """Whether it is a row of the open line above."""


def lines_of(rows: Sequence[RankRow], by: By, opened: Collection[Hashable] = ()) -> list[RowLine]:
    """Rows grouped by equal state (`by` "state"), by node, or not; the rows of an open line follow it."""
    alike = Counter((row.state, row.where) for row in rows)

    def key(row: RankRow) -> Hashable:
        if by == "state":
            return row.state, row.where
        return row.node if by == "node" else (row.name, row.node)

    def order(members: Sequence[RankRow]) -> tuple[object, ...]:
        # The usual states are not problems: rarer rows come first.
        worst = min(members[0].badness, STATES.index(USUAL[0]))
        rarest = min(alike[row.state, row.where] for row in members)
        return worst, rarest, natural(members[0].node) if by == "node" else (), members[0].rank

    found = []
    worst_first = sorted(rows, key=lambda row: (row.badness, row.rank, row.pid))
    groups = grouped((key(row), row) for row in worst_first)
    for name, members in sorted(groups.items(), key=lambda pair: order(pair[1])):
        is_open = name in opened and len(members) > 1
        found.append(RowLine(name, tuple(members), is_open))
        if is_open:
            found += [RowLine((name, row.name), (row,), is_inner=True) for row in members]
    return found


def state_counts(rows: Sequence[RankRow]) -> dict[str, int]:
    counts = Counter(row.state for row in rows)
    return {state: counts[state] for state in STATES if counts[state]}
