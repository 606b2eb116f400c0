"""State of one node during a run, from its guard's messages, which are checked, counted and bounded."""

from __future__ import annotations

import base64
import json
import math
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from ringup.agent.guard import messages
from ringup.model import Unreached
from ringup.planning import NodePlan
from ringup.runtime import LAUNCHER, RankEnd
from ringup.runtime.blame import End
from ringup.runtime.output import Output, clean, end_words, file_name
from ringup.timeline.marks import RankBegan, RankEnded
from ringup.transport import KeepsErrors
from ringup.transport.bootstrap import UNHEARD
from ringup.units import plural, show_seconds

LONGEST_WORDS = 400
MOST_TAILS = 256
"""Failed ranks of a node whose last lines are stored."""
UNHEARD_REASON = "no contact with the "
"""Prefix of the reason of a guard that has ended its job because of the lease (agent/guard/main.py)."""

Message = Mapping[str, Any]


def blob(text: str) -> bytes:
    """Bytes from base64; b"" for other text."""
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""


def processes(listed: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    return tuple(f"{pid} {clean(command, 200)}" for pid, command in listed[:100])


@dataclass(frozen=True)
class RankWorld:
    """One rank as agent/guard/world.py reports it."""

    rank: int
    """-1: all processes of a node whose script starts its own ranks."""
    world_size: int = 0
    """Processes in its world according to its framework at the end; 0 unknown, -1 not to be judged."""
    has_group: bool = False
    """A thread of a process group was seen."""
    is_joined: bool = False
    """A connection to another process of its machine was seen."""
    remote: Sequence[str] = ()
    """Addresses of other machines to which it was connected."""


@dataclass(frozen=True)
class NodeWorld:
    addresses: Sequence[str]
    ranks: Sequence[RankWorld]


@dataclass
class Clock:
    """
    Offset of a node's monotonic clock from this machine's.

    From the beat with the shortest round trip, until the drift since then may exceed a later beat's error.
    """

    ahead_s: float = 0.0
    round_trip_s: float = float("inf")
    age_s: float = 0.0
    """Time from that beat to the latest one."""
    _latest_s: float = 0.0

    @property
    def error_s(self) -> float | None:
        """Error of `ahead_s` at the latest beat; None if nothing was measured."""
        drift_s = messages.DRIFT * self.age_s
        return self.round_trip_s / 2 + drift_s if math.isfinite(self.round_trip_s) else None

    def hear(self, sent_s: float, clock_s: float, now_s: float) -> None:
        """A beat sent at `sent_s` has returned; the node's clock showed `clock_s`."""
        round_trip_s = now_s - sent_s
        self.age_s += max(0.0, now_s - self._latest_s) if self._latest_s else 0.0
        self._latest_s = now_s
        if 0 <= round_trip_s < self.round_trip_s + 2 * messages.DRIFT * self.age_s:
            self.round_trip_s, self.age_s = round_trip_s, 0.0
            self.ahead_s = clock_s - (sent_s + now_s) / 2

    def ours(self, theirs_s: float) -> float:
        """A time of the node's clock on ours; 0 stays 0 and means never."""
        return theirs_s - self.ahead_s if theirs_s else 0.0


@dataclass
class NodeRun(KeepsErrors):
    """A `Listener` on one node's guard."""

    plan: NodePlan
    output: Output
    notify: Callable[[NodeRun, str], None]
    """Called with "ready", "started", "joined", "failed", "over" (or the name of a reply) after a change."""
    send: Callable[[bytes], object] | None = None
    clock: Clock = field(default_factory=Clock)
    now_s: Callable[[], float] = time.monotonic
    """The clock for all times; for a detached run its head's."""
    heard_s: float = field(default_factory=time.monotonic)
    state: str = "starting"
    """starting, ready, running, over (the job is gone there), closed (and so is its guard)."""
    lost: bool = False
    """Its connection ended before the guard reported the end of the job, or its guard lost contact."""
    ranks: dict[int, RankEnd] = field(default_factory=dict)
    """By the rank's pid on the node."""
    ends: list[End] = field(default_factory=list)
    reply: Message = field(default_factory=dict)
    """Its last answer during a handover."""
    look: Message = field(default_factory=dict)
    """Its last snapshot of its ranks."""
    done_s: dict[int, float] = field(default_factory=dict)
    """Pid -> when it exited with code 0 without being stopped, on this machine's clock."""
    output_s: float = 0.0
    """When one of its ranks last printed something or started, on our clock; 0 for never."""
    notes: list[str] = field(default_factory=list)
    absence_s: Callable[[], float] = lambda: 0.0
    """The longest time for which this process, not the node, was suspended."""
    world: NodeWorld | None = None
    """The connections of its ranks; None before the end, or if they were not read."""
    received_bytes: int = 0
    _acknowledged: int = 0
    _lines: Any = field(default_factory=messages.Lines)
    _checker: Any = field(default_factory=lambda: messages.Checker(messages.IN_JOURNAL))
    _refused_by_head: int = 0
    _speakers: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.plan.node

    def tell(self, **message: Any) -> None:
        if self.send and self.state != "closed":
            self.send(json.dumps(message).encode() + b"\n")

    def beat(self, now_s: float) -> None:
        """Show that we are alive, request the time, acknowledge output."""
        self._acknowledged = self.received_bytes
        self.tell(type="beat", sent=now_s, acknowledged=self.received_bytes)

    def on_output(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        for line in self._lines.feed(data):
            if line.strip():
                self.hear(messages.parse(line) or {})
        if self.received_bytes - self._acknowledged >= messages.ACKNOWLEDGE_EVERY_BYTES:
            self._acknowledged = self.received_bytes
            self.tell(type="ack", acknowledged=self.received_bytes)

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        if self.state == "closed":
            return
        if self.state != "over":
            self.give_up(error.words if error else self.last_error() or f"the guard ended with {code}")
        self.lost = self.lost or code == UNHEARD
        self.state = "closed"
        self.notify(self, "over")

    def give_up(self, words: str) -> None:
        if not self.lost:
            self.lost = True
            self._fail_node(time.monotonic(), clean(words))

    def hear(self, message: Message) -> Message:
        """Handle one untrusted message; returns its accepted part."""
        accepted: Message | None = self._checker.check(message)
        if accepted is not None:
            getattr(self, f"_on_{accepted['type']}".replace("-", "_"))(accepted)
        return accepted or {}

    @property
    def refused(self) -> int:
        """Number of its guard's messages that were dropped: malformed, or too many."""
        return int(self._checker.refused + self._lines.too_long) + self._refused_by_head

    def _on_refused(self, message: Message) -> None:
        self._refused_by_head = message["count"]

    def _on_left(self, message: Message) -> None:
        """For a detached run: from a node to its head."""

    def _fail(self, end: End) -> None:
        self.ends.append(end)
        self.notify(self, "failed")

    def _fail_node(self, at_s: float, words: str) -> None:
        self._fail(End("node", self.name, at_s, words=words))

    def _on_beat(self, message: Message) -> None:
        self.clock.hear(message["echo"], message["clock"], time.monotonic())

    def _on_ready(self, message: Message) -> None:
        if not message["reaper"]:
            words = "no subreaper: processes that leave the job's tree are found only by their tag"
            self.notes.append(f"{self.name}: {words}")
        if self.state == "starting":
            self.state = "ready"
            self.notify(self, "ready")

    def _on_started(self, message: Message) -> None:
        self.state = "running"
        self.notify(self, "started")

    def _time(self, message: Message) -> float:
        return self.clock.ours(message.get("at", 0)) or self.now_s()

    def _on_problem(self, message: Message) -> None:
        self._fail_node(self._time(message), clean(message["words"], LONGEST_WORDS))

    def _on_ending(self, message: Message) -> None:
        reason = clean(message["reason"], LONGEST_WORDS)
        if not reason.startswith(UNHEARD_REASON):
            return  # the process that requested the end knows the reason
        if reason.startswith(UNHEARD_REASON + "head"):
            how = "the head node was suspended, or this node was cut off from it"
        elif away_s := self.absence_s():
            how = (
                f"the launching machine was suspended for {show_seconds(away_s)} (stopped, or no memory left)"
            )
        else:
            how = "the launching machine, or the network to it, was suspended"
        self._fail_node(self._time(message), f"it ended its ranks: {reason} (--lease): {how}")

    def _on_hosting(self, message: Message) -> None:
        self.reply = message
        self.notify(self, message["type"])

    _on_joined_head = _on_detached = _on_hosting

    def _on_look(self, message: Message) -> None:
        self.look = message

    def _on_clock(self, message: Message) -> None:
        # For a detached run: the head has compared the clocks, and its own is the reference.
        self.clock.ahead_s = message["ahead"]
        self.clock.round_trip_s = 2 * message.get("error", math.inf)

    def _on_lost(self, message: Message) -> None:
        self.lost = True
        self._fail_node(message["at"], clean(message["words"], LONGEST_WORDS))
        self._over()

    def _on_rank(self, message: Message) -> None:
        rank, local_rank, pid = message["rank"], message["local_rank"], message["pid"]
        self.ranks[pid] = RankEnd(rank, local_rank, self.name, pid, None)
        self.output_s = time.monotonic()
        file, error_s = file_name(self.plan, rank), self.clock.error_s
        self.output.times.note(RankBegan(self._time(message), rank, self.name, file, error_s))
        self.notify(self, "joined")

    def _on_out(self, message: Message) -> None:
        data, rank = blob(message["data"]), message["rank"]
        self.received_bytes += len(data)
        if rank not in self._speakers and len(self._speakers) > 64 + 4 * self.plan.nproc:
            self._checker.refused += 1
            return
        self._speakers.add(rank)
        if rank != LAUNCHER or not self.plan.has_shims:
            self.output_s = time.monotonic()
        self.output.on_rank_output(self.plan, rank, message["fd"], data, self._time(message))

    def _on_dropped(self, message: Message) -> None:
        self.output.on_lost_output(self.plan, message["bytes"])

    def _end(self, message: Message, kind: Any, code: int, rank: int | None) -> End:
        tail = blob(message["tail"]) if len(self.ends) < MOST_TAILS else b""
        return End(
            kind,
            self.name,
            self._time(message),
            rank,
            code,
            self.clock.ours(message.get("traceback_at", 0)),
            self.clock.ours(message["sigterm_at"]),
            tuple(clean(line) for line in tail.decode("utf-8", "replace").split("\n") if line.strip()),
        )

    def _on_exit(self, message: Message) -> None:
        pid, rank, code = message["pid"], message["rank"], message["code"]
        self.ranks[pid] = RankEnd(rank, message["local_rank"], self.name, pid, code)
        self.output.times.note(RankEnded(self._time(message), rank, code))
        if late := message.get("late"):
            words = f"rank {rank} ended well, and was {end_words(-late)} while it was torn down"
            self.notes.append(f"{self.name}: {words}")
        if code != 0:
            self._fail(self._end(message, "rank", code, rank))
        elif not message["sigterm_at"] or late == signal.SIGTERM:  # SIGTERM came when its script had ended
            self.done_s[pid] = self._time(message)

    def _on_world(self, message: Message) -> None:
        self.world = msgspec.convert(message, NodeWorld)

    def _on_launcher_exit(self, message: Message) -> None:
        code, nproc = message["code"], self.plan.nproc
        codes = [rank.code for rank in self.ranks.values()]
        # torchrun that gets SIGTERM passes it on; ranks that save their state then exit with 0, unfinished.
        was_told = b"SignalException" in blob(message["tail"])
        if code != 0 and len(codes) >= nproc and all(one == 0 for one in codes) and not was_told:
            # torchrun's own shutdown may fail after all ranks are done; the ranks' exit codes decide.
            self.notes.append(f"{self.name}: all ranks exited 0, their launcher exited {code}")
        elif code != 0:
            self._fail(self._end(message, "launcher" if self.plan.has_shims else "job", code, None))
        elif self.plan.has_shims and codes.count(0) < nproc and not message["sigterm_at"]:
            ended = f"{codes.count(0)} of its {plural(nproc, 'rank')} had run to their end"
            end = self._end(message, "launcher", code, None)
            self._fail(replace(end, words=f"it exited with 0, but {ended}"))

    def _on_guard_lost(self, message: Message) -> None:
        status, last = message["status"], clean(self.last_error())
        how = f"was {end_words(-os.WTERMSIG(status & 0x7F or 9))}"
        if message["stuck"]:
            how = "made no progress (a stopped process, a dead disk) and was ended"
        elif os.WIFEXITED(status):
            how = f"failed with {os.WEXITSTATUS(status)}" + (f": {last}" if last else "")
        self._fail_node(self._time(message), f"the guard on this node {how}")
        self._over()

    def _on_ended(self, message: Message) -> None:
        if stayed := processes(message["stayed"]):
            words = f"ended {len(stayed)} left running by a job that succeeded: {'; '.join(stayed[:5])}"
            self.notes.append(f"{self.name}: {words}")
        if (kills := message["oom_kills"]) > 0:
            words = f"the kernel ended {plural(kills, 'process', 'processes')} there for memory meanwhile"
            self.notes.append(f"{self.name}: {words} (oom-killer-ran)")
        self._over()

    def _over(self) -> None:
        if self.state != "closed":
            self.state = "over"
            self.notify(self, "over")
