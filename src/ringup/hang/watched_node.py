"""A node and its ranks' output for `ringup top`: counters and stacks as they arrive."""

from __future__ import annotations

import contextlib
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from ringup.agent.guard import messages
from ringup.hang.activity import IDLE_BYTES, Move, flowing, identity, moves
from ringup.hang.snapshots import RankLook, decode, silent, with_started
from ringup.model import Unreached
from ringup.recovery.training_progress import StepReader
from ringup.runtime import RankEnd
from ringup.runtime.node_state import blob
from ringup.runtime.output import clean
from ringup.transport import KeepsErrors

APART_S = 1.0
"""Counters of snapshots closer together are not compared."""
MOST_LINES = 200
READ_BYTES = 64 << 10
RATE_S = 60.0
"""The time over which steps per second are counted."""
LEAST_S = 3.0
"""Rates need at least this time, because output comes in batches."""
LATE_S, LATE_STEPS = 10.0, 5
"""A step is overdue after this many seconds and after the time of this many steps."""
_RANK_FILE = re.compile(r"rank-(\d{1,9})-")


class GpuUse(NamedTuple):
    """Of the GPU that a rank uses."""

    busy_percent: float | None
    all_bytes: int
    """In use by every process on it."""
    own_bytes: int | None
    """In use by the rank and its descendants; None if the driver does not report it."""


class Usage(msgspec.Struct, frozen=True):
    """Memory and GPU use of a rank, as far as known."""

    memory_bytes: int = 0
    """Resident, of its own process."""
    gpu: GpuUse | None = None


class WatchedNode(KeepsErrors):
    """A `Listener` on agent/snapshot/watch.py; `HangWatch` uses it as a `NodeRun`."""

    def __init__(self, name: str, places: tuple[str, ...], is_wanted: Callable[[Mapping[str, Any]], bool]):
        """`places` as in `decode`; `is_wanted`: whether a rank from the node belongs to the job."""
        self.name, self.places, self.is_wanted = name, places, is_wanted
        self.send: Callable[[bytes], object] = lambda data: None
        self.plan, self.ranks = SimpleNamespace(nproc=0), dict[int, RankEnd]()
        self.state, self.output_s = "running", 0.0
        self.look: Mapping[str, Any] = {}
        """The latest answer to a numbered request, only with the job's ranks."""
        self.before = self.now = self._base = self._detailed = silent(name, "no answer yet")
        self.moved: dict[tuple[str, int, int], Move] = {}
        """Between the latest two answers that had the bytes of TCP connections."""
        self.stacks: dict[tuple[str, int, int], RankLook] = {}
        self.usage: dict[tuple[str, int, int], Usage] = {}
        self.stacks_s = self.moved_s = 0.0
        """When the stacks arrived, and when data last moved, on our clock."""
        self.answers = 0
        self.printed: list[str] = []
        """New lines of the journal of a detached run."""
        self._lines = messages.Lines()

    def tell(self, *, type: str, number: int, mode: str) -> None:
        self.send(b"%s %d\n" % (mode.encode(), number))

    def on_output(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._answered(messages.parse(line) or {})

    def _answered(self, answer: dict[str, Any]) -> None:
        now = decode(self.name, answer, self.places)
        if now.problem:
            self.now = silent(self.name, now.problem)
            return
        self.usage = {}
        for rank, plain in zip(now.ranks, answer["ranks"], strict=False):
            known = [(rank.pid, rank.started), *((child.pid, child.started) for child in rank.children)]
            for (pid, started), used in zip(known, (plain, *plain["children"]), strict=False):
                with contextlib.suppress(msgspec.ValidationError):
                    self.usage[rank.node, pid, started] = msgspec.convert(used, Usage)
        if now.at_s - self._base.at_s >= APART_S:
            self.before, self._base = self._base, now
        self.now, self.answers = now, self.answers + 1
        pair = [self.before], [now]
        if now.transfers is not None:  # only some answers have them
            both = with_started([self._detailed]), with_started([now])
            self.moved, self._detailed = moves(*both), now
        found = [*moves(*pair).values(), *(self.moved.values() if now is self._detailed else ())]
        if flowing(*pair) or any(move.io_bytes > IDLE_BYTES or move.transfers for move in found):
            self.moved_s = time.monotonic()
        if now.mode != "count":
            self.stacks, self.stacks_s = {identity(rank): rank for rank in now.ranks}, time.monotonic()
        if answer.get("number"):
            self.look = {**answer, "ranks": [rank for rank in answer["ranks"] if self.is_wanted(rank)]}
        printed = answer.get("printed")
        if isinstance(printed, list):
            self.printed += [line for line in printed if isinstance(line, str)]

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        self.state = "closed"
        words = error.words if error else clean(self.last_error(), 300) or f"watching ended with {code}"
        self.now = silent(self.name, words)


class RankOutput:
    """The last lines of a rank, and the steps that they show."""

    def __init__(self) -> None:
        self.lines = deque[str](maxlen=MOST_LINES)
        self._reader, self._rest = StepReader(), b""
        self._points = deque[tuple[float, float]](maxlen=100)

    def feed(self, data: bytes, now_s: float) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-READ_BYTES:]
        for line in lines:
            self._reader.read(line, now_s)
            if text := clean(line.decode("utf-8", "replace"), 500).expandtabs(4).rstrip():
                self.lines.append(text)
        step = self._reader.step
        if step is not None and (not self._points or step != self._points[-1][1]):
            self._points.append((now_s, step))

    def step(self, now_s: float) -> tuple[float, float | None] | None:
        """The step, and steps per second if known; 0 once the next step is long overdue."""
        if not self._points:
            return None
        old = [point for point in self._points if now_s - point[0] > RATE_S][-1:]
        (began_s, first), (at_s, last) = (old or list(self._points))[0], self._points[-1]
        if at_s - began_s < LEAST_S:
            return last, 0.0 if now_s - at_s > RATE_S else None
        rate = (last - first) / (at_s - began_s)
        is_overdue = now_s - at_s > max(LATE_S, LATE_STEPS / rate) if rate > 0 else True
        return last, 0.0 if is_overdue else rate


class Printed:
    """The ranks' output: from the files of a run here, or from the journal of a detached run."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankOutput] = {}
        self.codes: dict[int, int] = {}
        """Exit codes from the journal."""
        self.latest_s = 0.0
        self.end = ""
        """Why a detached run ended."""
        self._folder, self._places = Path(), dict[Path, int]()
        self._checker = messages.Checker({**messages.IN_JOURNAL, **messages.FROM_JOURNAL})

    def _feed(self, rank: int, data: bytes, now_s: float) -> None:
        self.latest_s = now_s
        self.ranks.setdefault(rank, RankOutput()).feed(data, now_s)

    def read_files(self, folder: Path, now_s: float) -> None:
        """New output in the files of a run's latest attempt."""
        attempts = sorted(folder.glob("attempt-*"), key=lambda path: (len(path.name), path.name))
        if (latest := attempts[-1] if attempts else folder) != self._folder:
            self._folder, self.ranks = latest, {}
        for path in latest.glob("rank-*.log"):
            match = _RANK_FILE.match(path.name)
            with contextlib.suppress(OSError):
                if match and (data := self._new_in(path)):
                    self._feed(int(match[1]), data, now_s)

    def _new_in(self, path: Path) -> bytes:
        size, known = path.stat().st_size, self._places.get(path, 0)
        if size == known:
            return b""
        with path.open("rb") as file:
            file.seek(max(min(known, size), size - READ_BYTES))
            data = file.read(READ_BYTES)
            self._places[path] = file.tell()
        return data

    def read_journal(self, lines: Iterable[str], now_s: float) -> None:
        for line in lines:
            message = self._checker.check(messages.parse(line.encode()) or {}) or {}
            if message.get("type") == "out":
                self._feed(message["rank"], blob(message["data"]), now_s)
            elif message.get("type") == "exit":
                self.codes[message["rank"]] = message["code"]
            elif message.get("type") == "finished":
                self.end = clean(message["reason"], 200) or "every rank has ended"
