"""
Detects that a run makes no progress, and names the ranks that hold it up; the script is not changed.

A snapshot of counters is one short process per node.  Stacks are read only after a silence, or if no rank has
used any resources for the same time although something is printed (a monitor's lines).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from typing import Any

from ringup.hang.activity import Identity, identity, moves
from ringup.hang.snapshots import NodeLook, decode, own_ranks, silent
from ringup.hang.stack_frames import doing
from ringup.hang.verdict import DONE, PENDING_S, Missing, Verdict, judge
from ringup.runtime import Event
from ringup.runtime.node_state import NodeRun
from ringup.timeline.marks import OwnRank, Used
from ringup.units import show_seconds

WINDOW_S = 60.0
"""Seconds without progress before a report."""
APART_S = 10.0
"""Counters are first read at most this many seconds before a report, unless it ends the run."""
ANSWER_S = 50.0
MOST_REPORTS = 50

Tell = Callable[[Event], object]


class HangWatch:
    """A `runtime.Watcher`.  With `end_after_s` 0 it never ends a run; `places` as in `snapshots.decode`."""

    keeps_times = True
    """Whether to record times: true for nodes of a run that ringup started."""

    def __init__(self, window_s: float = WINDOW_S, end_after_s: float = 0.0, places: Sequence[str] = ()):
        self.window_s = min(window_s, end_after_s or window_s)
        self.apart_s = self.window_s / 2 if self.window_s == end_after_s else min(APART_S, self.window_s / 2)
        self.end_after_s, self.places = end_after_s, places
        self.reports: list[dict[str, Any]] = []
        self.stalled: Verdict | None = None
        self._began_s = self._quiet_since = time.monotonic()
        self._base: list[NodeLook] = []
        """The snapshots that the next ones are compared with."""
        self._seen: dict[str, NodeLook] = {}
        """Each node's snapshot from before the flight recorders were read."""
        self._base_s = self._looked_s = self._judged_s = self._began_s
        self._own: set[tuple[str, int]] = set()
        """Node and pid of ranks that the script started itself, once recorded."""
        # Several watches may follow a detached run, and each receives the answers for the others, too.
        self._number, self._mode = secrets.randbelow(1 << 40), ""
        self._despite_output = False
        """Whether output does not count as progress, because no rank has used CPU time or I/O meanwhile."""
        self._idle: set[Identity] = set()
        """Ranks whose main thread hardly woke when the hang was reported."""
        self._said: dict[str, float] = {}
        """Kind of verdict, other than a hang -> the longest silence for which it was reported."""

    def on_time(self, now_s: float, nodes: Sequence[NodeRun], tell: Tell) -> str:
        """To be called often; returns the reason to end the run, or ""."""
        running = [node for node in nodes if node.state == "running"]
        if not running:
            return ""
        heard_s = max(node.output_s for node in nodes)
        if not self.stalled and not self._despite_output:
            self._quiet_since = max(self._quiet_since, heard_s)
        if not self._mode:
            self._ask(self._due(now_s, heard_s), now_s, running)
        elif now_s - self._looked_s > ANSWER_S or {n.look.get("number") for n in running} == {self._number}:
            return self._answered(now_s, nodes, tell)
        return ""

    def quiet_s(self, now_s: float) -> float:
        """Seconds in which no rank has printed anything, or only output that does not count as progress."""
        return now_s - self._quiet_since

    def _due(self, now_s: float, heard_s: float) -> str:
        """The snapshot to take now: "count", "stacks", or "" for none."""
        quiet_s, looked_s = now_s - self._quiet_since, now_s - self._looked_s
        if self.stalled:
            if looked_s < self.apart_s:
                return ""
            overdue = self.end_after_s and quiet_s >= self.end_after_s
            # A rank that prints may make no progress: once overdue, counters that were read since decide.
            is_counted = overdue and self._base_s > self._judged_s
            if not self._base or (heard_s > self._looked_s and not is_counted):
                return "count"  # does it continue?
            return "stacks" if overdue or looked_s >= self.window_s else ""
        if self._base and self._base_s >= self._quiet_since:
            ripe = quiet_s >= self.window_s and now_s - self._base_s >= self.apart_s
            return "stacks" if ripe and now_s - self._judged_s >= min(self.window_s, quiet_s / 2) else ""
        return "count" if max(quiet_s + self.apart_s, looked_s) >= self.window_s else ""

    def _ask(self, mode: str, now_s: float, nodes: Sequence[NodeRun]) -> None:
        if not mode:
            return
        self._number += 1
        self._mode, self._looked_s = mode, now_s
        for node in nodes:
            node.tell(type="look", number=self._number, mode=mode)

    def _answered(self, now_s: float, nodes: Sequence[NodeRun], tell: Tell) -> str:
        mode, self._mode = self._mode, ""
        running = [node for node in nodes if node.state == "running"]
        looks = [
            decode(node.name, node.look, self.places)
            if node.look.get("number") == self._number
            else silent(node.name, "it did not answer in time")
            for node in running
        ]
        for node, look in zip(running, looks, strict=True) if self.keeps_times else ():
            self._note(node, look)
        if mode == "flight":  # a node that does not answer this request answered the previous one
            looks = [self._seen.get(look.node, look) if look.problem else look for look in looks]
        base, base_s = self._base, self._base_s
        reason = ""
        if mode != "count" and self._quiet_since > self._looked_s:
            mode = "count"  # a rank has printed meanwhile: the silence is over
        overdue = self.end_after_s and now_s - self._quiet_since >= self.end_after_s
        if mode == "stacks" and (overdue or not self.stalled) and self._verdict(nodes, looks).is_open:
            # Before the report, torch's flight recorder is read, which costs the ranks CPU time.
            self._seen = {look.node: look for look in looks}
            self._ask("flight", now_s, running)
            return ""
        if mode in ("stacks", "flight"):
            reason = self._judge(now_s, nodes, looks, tell)
        elif (
            base and base_s < self._quiet_since and base_s <= now_s - self.window_s and is_still(base, looks)
        ):
            # The ranks print, but make no progress.
            self._quiet_since, self._despite_output = base_s, True
            self._ask("stacks", now_s, running)
            return ""
        elif self.stalled and base and not is_still(base, looks, self._idle):
            self._goes_on(now_s, tell)
        # A rank has spent CPU time on its flight recorder for us.
        self._base, self._base_s = ([] if mode == "flight" else looks), now_s
        return reason

    def _note(self, node: NodeRun, look: NodeLook) -> None:
        """Add counters and collectives to the record of times."""
        at_s, times = node.clock.ours(look.at_s), node.output.times
        for rank in look.ranks:
            times.note(Used(at_s, rank.rank, rank.cpu_s, rank.io_bytes))
            if rank.flight and look.wall_ns:
                times.calls(at_s, look.wall_ns, rank.rank, rank.flight)
            world = node.plan.env.get("WORLD_SIZE", "")
            for one, age_s in own_ranks(rank, int(world) if world.isdecimal() else 0):
                if (who := (one.node, one.pid)) not in self._own:
                    self._own.add(who)
                    times.note(OwnRank(at_s - age_s, one.rank, one.pid, one.node, node.clock.error_s))

    def _goes_on(self, now_s: float, tell: Tell) -> None:
        took = show_seconds(now_s - self._quiet_since)
        tell(Event("hang", f"the run continues, after {took} without progress"))
        self.stalled, self._quiet_since = None, now_s

    def _judge(self, now_s: float, nodes: Sequence[NodeRun], looks: list[NodeLook], tell: Tell) -> str:
        quiet_s = now_s - self._quiet_since
        despite_output, self._despite_output, self._judged_s = self._despite_output, False, now_s
        verdict = self._verdict(nodes, looks)
        # Data that flows while no rank does anything may be another program's.
        continues = verdict.kind in ("busy", "idle") or (verdict.kind == "flowing" and not verdict.is_open)
        if self.stalled and continues:
            self._goes_on(now_s, tell)
        elif not self.stalled:
            self.stalled = verdict if verdict.is_stalled else None
            self._idle = {who for who, move in moves(self._base, looks).items() if move.is_idle}
            # A silence that is not a hang is reported once, and again when it is twice as long.
            longer = quiet_s >= 2 * self._said.get(verdict.kind, 0.0) and not despite_output
            if verdict.is_stalled or longer:
                self._said[verdict.kind] = quiet_s
                self._report(quiet_s, now_s, verdict, tell)
        if verdict.is_stalled and self.end_after_s and quiet_s >= self.end_after_s:
            return f"hung for {show_seconds(quiet_s)}"
        return ""

    def _verdict(self, nodes: Sequence[NodeRun], looks: list[NodeLook]) -> Verdict:
        # If a script starts its ranks itself, we know one process per node, whose number is the node's.
        whole = [node for node in nodes if len(node.ranks) >= node.plan.nproc]
        ranks = [(rank, node.name) for node in whole for rank in node.ranks.values()]
        ended = [Missing(rank.rank, node, DONE) for rank, node in ranks if rank.code == 0]
        count = sum(node.plan.nproc for node in nodes)
        long_s = min(PENDING_S, 0.8 * self.window_s)
        return judge(self._base, looks, ended=ended, expected=count, long_s=long_s)

    def _report(self, quiet_s: float, now_s: float, verdict: Verdict, tell: Tell) -> None:
        report = {
            "at_s": round(now_s - self._began_s, 1),
            "quiet_s": round(quiet_s, 1),
            "verdict": verdict.kind,
            "rule": verdict.rule,
            "apart": [{"rank": rank, "node": node} for rank, node in verdict.apart],
            "headline": verdict.headline,
            "missing": [asdict(m) | {"rank": m.rank if m.rank >= 0 else None} for m in verdict.missing],
            "collective": verdict.collective,
            "lines": list(verdict.lines),
        }
        if len(self.reports) < MOST_REPORTS:
            self.reports.append(report)
        kind, what = ("hang", "progress") if verdict.is_stalled else ("quiet", "output")
        headline = f"no {what} for {show_seconds(quiet_s)}: {verdict.headline}"
        tell(Event(kind, "\n  ".join([headline, *verdict.lines])))


def is_still(first: Sequence[NodeLook], second: Sequence[NodeLook], idle: Collection[Identity] = ()) -> bool:
    """Whether every rank was seen twice and used nothing since, except to poll (those in `idle` may not)."""
    known = moves(first, second)
    ranks = [rank for node in second for rank in node.ranks]
    if not ranks or any(node.problem for node in second) or any(identity(r) not in known for r in ranks):
        return False
    polling = {who for r in ranks if (who := identity(r)) not in idle and doing(r) == "asleep"}
    return all(move.is_idle or (move.uses_nothing and who in polling) for who, move in known.items())
