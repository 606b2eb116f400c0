"""
One node while it runs: what its guard says, checked field by field.

A node may say anything (it may not even be the guard who speaks); whatever is not as it
should be is left out, and nothing it says grows without bound.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ringup.facts import Unreached
from ringup.launch import RankEnd
from ringup.launch.blame import End
from ringup.launch.show import clean, end_words
from ringup.plan import NodePlan
from ringup.reach import Channel
from ringup.reach.boot import UNHEARD
from ringup.units import show_seconds

LONGEST_MESSAGE_BYTES = 8 << 20
ERRORS_KEPT_BYTES = 16 << 10
ACKNOWLEDGE_EVERY_BYTES = 64 << 10
MOST_RANKS = 65536
LAUNCHER = -1
"""The "rank" under which a launcher's own output travels."""

UNHEARD_REASON = "no word from the launcher"
"""How a guard's reason begins that has ended its job by the lease (payload/guard.py)."""

Message = Mapping[str, Any]


class Sink(Protocol):
    """Who takes the output of the ranks."""

    def on_rank_output(self, node: NodePlan, rank: int, stream: int, data: bytes) -> None:
        """Bytes of a rank (LAUNCHER: of the node's launcher) in any cut; stream 1 or 2."""

    def on_lost_output(self, node: NodePlan, size_bytes: int) -> None:
        """The node had to drop that much."""


def integer(message: Message, name: str, default: int = 0) -> int:
    """A whole number of sane size, or the default."""
    value = message.get(name)
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 48 else default
    )


def number(message: Message, name: str) -> float:
    """A finite number, or 0."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if abs(value) < 1e15 else 0.0


def text(message: Message, name: str, longest: int = 400) -> str:
    """Words that are safe to print."""
    return clean(str(message.get(name, "")), longest)


def blob(message: Message, name: str) -> bytes:
    """Bytes sent as base64; b"" for what is none."""
    value = message.get(name)
    try:
        return base64.b64decode(value, validate=False) if isinstance(value, str) else b""
    except (binascii.Error, ValueError):
        return b""


def processes(message: Message, name: str) -> tuple[str, ...]:
    """`[[pid, command], ...]` as words."""
    value = message.get(name)
    found = []
    for entry in value[:100] if isinstance(value, list) else ():
        if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int):
            found.append(f"{entry[0]} {clean(str(entry[1]), 200)}")
    return tuple(found)


def has_shims(node: NodePlan) -> bool:
    """Whether the node's launcher starts every rank through our shim; else its own output is the ranks'."""
    return any(node.run_dir and word.startswith(node.run_dir) for word in node.words)


@dataclass
class Clock:
    """How far a node's monotonic clock is ahead of ours, from the beat that came back soonest."""

    ahead_s: float = 0.0
    round_trip_s: float = float("inf")

    def hear(self, sent_s: float, clock_s: float, now_s: float) -> None:
        """A beat sent at `sent_s` is back; the node's clock showed `clock_s`."""
        round_trip_s = now_s - sent_s
        if 0 <= round_trip_s < self.round_trip_s:
            self.round_trip_s = round_trip_s
            self.ahead_s = clock_s - (sent_s + now_s) / 2

    def ours(self, theirs_s: float) -> float:
        """A time of the node's clock on ours; 0 stays 0, which means never."""
        return theirs_s - self.ahead_s if theirs_s else 0.0


@dataclass
class NodeRun:
    """A `Listener` on one node's guard."""

    plan: NodePlan
    sink: Sink
    notify: Callable[[NodeRun, str], None]
    """Called with "ready", "started", "joined", "failed", "over" (or the name of a reply) after a change."""
    channel: Channel | None = None
    clock: Clock = field(default_factory=Clock)
    heard_s: float = field(default_factory=time.monotonic)
    state: str = "starting"
    """starting, ready, running, over (the job is gone there), closed (and so is its guard)."""
    lost: bool = False
    """Its connection ended without the guard having said that the job is over, or unheard."""
    ranks: dict[int, RankEnd] = field(default_factory=dict)
    """By the rank's pid on the node."""
    ends: list[End] = field(default_factory=list)
    launcher_code: int | None = None
    left: tuple[str, ...] = ()
    guard_pid: int = 0
    reply: Message = field(default_factory=dict)
    """What it last answered while a run is handed over."""
    look: Message = field(default_factory=dict)
    """What it last answered when asked what its ranks are doing."""
    done_s: dict[int, float] = field(default_factory=dict)
    """Pid -> when it ended with code 0 unasked, on our clock."""
    output_s: float = 0.0
    """When a rank of it last printed something or started, on our clock; 0 for never."""
    notes: list[str] = field(default_factory=list)
    absence_s: Callable[[], float] = lambda: 0.0
    """The longest time for which this process, and not the node, stood still."""
    errors: bytes = b""
    """Last bytes of the guard's (or ssh's) stderr."""
    received_bytes: int = 0
    _acknowledged: int = 0
    _rest: bytes = b""

    @property
    def name(self) -> str:
        """The node's name as the user wrote it."""
        return self.plan.node

    # -- to the guard --------------------------------------------------------------------------

    def tell(self, **message: Any) -> None:
        """Send a message; lost silently when the node is."""
        if self.channel is not None and self.state != "closed":
            self.channel.write(json.dumps(message).encode() + b"\n")

    def beat(self, now_s: float) -> None:
        """Prove that we live, ask for the time, acknowledge output."""
        self._acknowledged = self.received_bytes
        self.tell(type="beat", sent=now_s, acknowledged=self.received_bytes)

    # -- from the guard ------------------------------------------------------------------------

    def on_output(self, node: str, data: bytes) -> None:
        """Bytes of the guard's stdout."""
        self.heard_s = time.monotonic()
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_MESSAGE_BYTES:
            self._rest = b""
        for line in whole:
            self.hear_line(line)
        if self.received_bytes - self._acknowledged >= ACKNOWLEDGE_EVERY_BYTES:
            self._acknowledged = self.received_bytes
            self.tell(type="ack", acknowledged=self.received_bytes)

    def on_errors(self, node: str, data: bytes) -> None:
        """Bytes of stderr: the guard's own troubles, or ssh's."""
        self.errors = (self.errors + data)[-ERRORS_KEPT_BYTES:]

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The guard has ended, or the node is lost."""
        if self.state == "closed":
            return
        if self.state != "over":
            self.give_up(error.words if error else self._said() or f"the guard ended with {code}")
        self.lost = self.lost or code == UNHEARD
        self.state = "closed"
        self.notify(self, "over")

    def give_up(self, words: str) -> None:
        """The node is lost to us."""
        if not self.lost:
            self.lost = True
            self._fail(End("node", self.name, time.monotonic(), words=clean(words)))

    def _said(self) -> str:
        lines = self.errors.decode("utf-8", "replace").strip().splitlines()
        return clean(lines[-1]) if lines else ""

    def hear_line(self, line: bytes) -> None:
        """One line, which may be anything."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(message, dict):
            self.hear(message)

    def hear(self, message: Message) -> None:
        """One message."""
        handler = getattr(self, f"_on_{message.get('type')}".replace("-", "_"), None)
        if handler is not None and isinstance(message.get("type"), str):
            handler(message)

    def _fail(self, end: End) -> None:
        self.ends.append(end)
        self.notify(self, "failed")

    def _on_beat(self, message: Message) -> None:
        self.clock.hear(number(message, "echo"), number(message, "clock"), time.monotonic())

    def _on_ready(self, message: Message) -> None:
        self.guard_pid = integer(message, "pid")
        if message.get("reaper") is False:
            self.notes.append(
                f"{self.name}: no subreaper there: what leaves the job's tree is found by its tag alone"
            )
        if self.state == "starting":
            self.state = "ready"
            self.notify(self, "ready")

    def _on_started(self, message: Message) -> None:
        self.state = "running"
        self.notify(self, "started")

    def _time(self, message: Message) -> float:
        """When it happened, on our clock."""
        return self.clock.ours(number(message, "at")) or time.monotonic()

    def _on_problem(self, message: Message) -> None:
        self._fail(End("node", self.name, self._time(message), words=text(message, "words")))

    def _on_ending(self, message: Message) -> None:
        reason = text(message, "reason")
        if not reason.startswith(UNHEARD_REASON):
            return  # by whoever asked for it it is known why
        if away_s := self.absence_s():
            how = f"this machine stood still for {show_seconds(away_s)} (stopped, or out of memory)"
        else:
            how = "where the run is led from, or the network to it, stood still"
        words = f"it ended the run by its lease, {reason}: {how}; --lease says how long it waits"
        self._fail(End("node", self.name, self._time(message), words=words))

    def _reply(self, message: Message, what: str) -> None:
        self.reply = message
        self.notify(self, what)

    def _on_look(self, message: Message) -> None:
        self.look = message

    def _on_hosting(self, message: Message) -> None:
        self._reply(message, "hosting")

    def _on_joined_head(self, message: Message) -> None:
        self._reply(message, "joined-head")

    def _on_detached(self, message: Message) -> None:
        self._reply(message, "detached")

    def _on_clock(self, message: Message) -> None:
        # Of a detached run: the head has compared the clocks, and its own is the one that counts.
        self.clock.ahead_s = number(message, "ahead")

    def _on_lost(self, message: Message) -> None:
        self.lost = True
        self._fail(End("node", self.name, number(message, "at"), words=text(message, "words")))
        self._over()

    def _on_rank(self, message: Message) -> None:
        pid = integer(message, "pid")
        if len(self.ranks) < MOST_RANKS:
            self.ranks[pid] = RankEnd(
                integer(message, "rank", -1), integer(message, "local_rank", -1), self.name, pid, None
            )
            self.output_s = time.monotonic()
            self.notify(self, "joined")

    def _on_out(self, message: Message) -> None:
        data = blob(message, "data")
        self.received_bytes += len(data)
        if integer(message, "rank", -1) != LAUNCHER or not has_shims(self.plan):
            self.output_s = time.monotonic()
        stream = 2 if integer(message, "fd") == 2 else 1
        self.sink.on_rank_output(self.plan, integer(message, "rank", -1), stream, data)

    def _on_dropped(self, message: Message) -> None:
        self.sink.on_lost_output(self.plan, integer(message, "bytes"))

    def _end(self, message: Message, kind: Any, code: int, rank: int | None) -> End:
        lines = blob(message, "tail").decode("utf-8", "replace").split("\n")
        return End(
            kind,
            self.name,
            self._time(message),
            rank,
            code,
            self.clock.ours(number(message, "traceback_at")),
            self.clock.ours(number(message, "told_at")),
            tuple(clean(line) for line in lines if line.strip()),
        )

    def _on_exit(self, message: Message) -> None:
        pid, rank, code = integer(message, "pid"), integer(message, "rank", -1), integer(message, "code")
        if pid in self.ranks or len(self.ranks) < MOST_RANKS:
            self.ranks[pid] = RankEnd(rank, integer(message, "local_rank", -1), self.name, pid, code)
        if code != 0:
            self._fail(self._end(message, "rank", code, rank))
        elif not number(message, "told_at") and len(self.done_s) < MOST_RANKS:
            self.done_s[pid] = self._time(message)

    def _on_launcher_exit(self, message: Message) -> None:
        self.launcher_code = integer(message, "code")
        codes = [rank.code for rank in self.ranks.values()]
        if self.launcher_code != 0 and len(codes) >= self.plan.nproc and not any(code != 0 for code in codes):
            # torchrun's own shutdown may fail after all is done; the ranks decide.
            self.notes.append(f"{self.name}: all ranks ended well, their launcher with {self.launcher_code}")
        elif self.launcher_code != 0:
            kind = "launcher" if has_shims(self.plan) else "job"
            self._fail(self._end(message, kind, self.launcher_code, None))

    def _on_guard_lost(self, message: Message) -> None:
        self.left = processes(message, "left")
        words = f"the guard on this node {self._guard_end(message)}"
        self._fail(End("node", self.name, self._time(message), words=words))
        self._over()

    def _guard_end(self, message: Message) -> str:
        status = integer(message, "status", 9)
        if message.get("stuck") is True:
            return "did not move any more (a stopped process, a dead disk) and was ended"
        if 0 <= status < 0x10000 and os.WIFEXITED(status):
            said = self._said()
            return f"failed with {os.WEXITSTATUS(status)}" + (f": {said}" if said else "")
        return f"was {end_words(-os.WTERMSIG(status & 0x7F or 9))}"

    def _on_ended(self, message: Message) -> None:
        self.left = processes(message, "left")
        stayed = processes(message, "stayed")
        if stayed:
            words = "; ".join(stayed[:5])
            self.notes.append(
                f"{self.name}: ended {len(stayed)} left running by a job that ended well: {words}"
            )
        kills = integer(message, "oom_kills")
        if kills > 0:
            what = f"the kernel ended {kills} process{'es' * (kills != 1)} there for memory meanwhile"
            self.notes.append(f"{self.name}: {what} (oom-killer-ran)")
        self._over()

    def _over(self) -> None:
        if self.state != "closed":
            self.state = "over"
            self.notify(self, "over")
