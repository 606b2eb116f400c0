"""
How a run went on after a line, and who ended it.  Every cause asks here.

"After" is the order of time: lines of one stream in their order, lines of several streams or files by their
clocks.  Pure.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

from ringup.logs.patterns import OF_ROLE, TAGS
from ringup.units import first_of_each, grouped

if TYPE_CHECKING:
    from ringup.logs.counts.model import Comm
    from ringup.logs.lines import Event
    from ringup.logs.run_record import RunEnd


Key = TypeVar("Key")


class Log(Protocol):
    """The part of the evidence that is read here; the evidence holds its outcome."""

    events: list[Event]
    communicators: list[Comm]
    repeats: Counter[str]
    ended: RunEnd | None

    def all(self, *tags: str, has: str = "", lacks: str = "", **fields: str) -> list[Event]: ...
    def has(self, *tags: str) -> bool: ...
    def at(self, file: int, line: int, below: int = 0) -> Iterator[Event]: ...


ENOUGH = 2
"""Steps of the same stream that show work after a line; one may have been under way."""
ENOUGH_OF_OTHERS = 4
"""Steps of other ranks: without the rank that broke they come one or two further."""
MOST_STREAMS = 64
CLOCKS_APART_S = 2.0
_DAY_S = 86400

ESTABLISHING = frozenset(
    """
    address-family client-failed-any client-refused client-timeout cumem-host eaddrinuse gloo-connect
    gloo-loopback hostfile-missing ib-library-missing ib-open-failed jax-register listen-failed module-missing
    name-tried name-unknown net-not-found nccl-connect no-address no-socket-interface plugin-init-failed
    sharp-off tcpstore-retry topology-broken
    """.split()  # noqa: SIM905
)
"""What keeps ranks from meeting or connecting: where they did so afterwards, a later attempt succeeded."""

RETRACTABLE = OF_ROLE["hang"] | {"xla-threads", "horovod-stalled", "warn"}
_COUNTED = {"coll", "flight", "run-apart", "run-ended", "run-hung"}
"""Facts that were counted or recorded: later progress does not take them back."""

_OF_A_CLOSE = OF_ROLE["consequence"] | {"killed-word"}
_ENDED_A_PROCESS = {"exit", "exit-signal", "child-failed"}
_TAKEN_AWAY = re.compile(r"CANCELLED|TIME LIMIT|PREEMPT|death signal|walltime|Ctrl-C to proc")
PREPARES = re.compile(
    r"(?i)\W*(?:map|filter|tokeni|preprocess|generat|download|convert|group|pack|prepar|load|fetch|sav|read)"
)
_TRAINS = re.compile(r"(?i)train|epoch|step|iter")
_MOVES_BYTES = re.compile(r"[kMG]i?B/s|\dB/s|examples/s|files/s")
_TEARDOWN = re.compile(
    r"Heartbeat ?[Mm]onitor|flag on TCPStore|Failed to check the \"should dump\""
    r"|\[W.{0,200}(?:sendBytes|recvBytes|recvV\w{1,20})(?: failed on SocketImpl| at \S{1,80}Utils\.hpp)"
    r"|TCPStore\S{0,40}\] \[c10d\]"
)


def made_do(event: Event) -> bool:
    """Whether the line itself says that the program goes on without."""
    return bool(TAGS["made-do"].patterns[0].regex.search(event.text))


def is_teardown(event: Event) -> bool:
    """Whether torch also prints this line when its store goes away after a job that ended well."""
    return bool(_TEARDOWN.search(event.text))


_UPPER_LAYERS = re.compile(
    r"(?:init|group|bootstrap|enqueue|transport|proxy|paths|topo|nvls|p2p|shm|net)\.(?:cc|cu)$"
)


def is_unwinding(event: Event) -> bool:
    """
    Whether a `file.cc:line -> code` line tells of a failed call of the user's.

    Probing for plugins and sysfs paths prints such lines too, without reaching the upper layers.
    """
    if event["code"] in ("0", "7") or event["source"] in ("net.cc", "include/net.h"):
        return False
    return bool(_UPPER_LAYERS.search(event["source"]))


@dataclass(frozen=True)
class _Mark:
    """A line that shows work: how much it counts, and the step's number where it is printed."""

    event: Event
    weight: int = 1
    step: int = 0


class Outcome:
    """What became of one run, from the events of its logs and from its own record."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[tuple[int, int, str], bool] = {}

    # How far it came.

    @cached_property
    def set_up(self) -> bool:
        """Whether some communicator's ranks all completed, or a later stage was reached."""
        return any(c.complete for c in self._log.communicators) or self._log.has("init-timings")

    @cached_property
    def trained(self) -> bool:
        """Whether steps went by: data did flow."""
        return max(self._log.repeats["step"], self._log.repeats["loss"]) > 1

    @cached_property
    def went_on(self) -> bool:
        """Whether ranks completed their communicators or trained."""
        return self.set_up or self.trained or self._log.has("nccl-tests-row")

    @cached_property
    def ended_well(self) -> bool:
        """Whether the work was done, as far as the log shows, and processes ended of themselves."""
        return self.went_on or self._log.has("unclosed-group", "finished")

    def first_attempt(self, events: Iterable[Event]) -> list[Event]:
        """Those before anything broke in their file: a later attempt may have another world."""
        return [e for e in events if e.line < min(self._break_lines.get(e.file, ()), default=e.line + 1)]

    @property
    def all_ended_with_0(self) -> bool:
        """Whether `ringup run` saw every rank end with exit code 0."""
        return self._log.ended is not None and self._log.ended.outcome == "ok"

    # Who ended it.

    @cached_property
    def by_ringup(self) -> bool:
        """Whether `ringup run` ended the ranks: one failed, or none came further (--hang-timeout, Ctrl-C)."""
        ended = self._log.ended
        by_itself = ended and (ended.outcome in ("hung", "rank-failed") or ended.verdict.rule)
        return self._log.has("run-hung") or bool(by_itself)

    @cached_property
    def from_outside(self) -> list[Event]:
        """The lines that say that a scheduler or a user ended the job; none where `ringup run` did."""
        if self.by_ringup:
            return []
        # A launcher sends signals when a rank of its own ends.
        own_end = self._log.has("exit", "exception", "closing-signal")
        own = r"|Received SIG\w+: \d" if own_end else ""
        return self._log.all("cancelled", lacks="closing signal" + own)

    @cached_property
    def limit(self) -> str:
        """The scheduler's reason, such as "time limit" or "preemption"; "" where none is printed."""
        found = (e[f] for e in self.from_outside for f in e.fields if f.startswith("why") and e[f])
        return next(found, "").lower()

    def after_the_end(self, event: Event) -> bool:
        """Whether a line follows one that says that a scheduler took the job away."""
        taken = (e for e in self.from_outside if _TAKEN_AWAY.search(e.text))
        return any(e.file == event.file and e.line < event.line for e in taken)

    def before_the_end(self, events: Iterable[Event]) -> list[Event]:
        """Those that do not follow the end of a job that a scheduler took away."""
        return [e for e in events if not self.after_the_end(e)]

    # How it failed.

    def failure(self, *apart: str) -> Event | None:
        """The first line of something that went wrong and was not overcome, `apart` from these tags."""
        for event in self._log.all(*(tag for tag in OF_ROLE["failure"] if tag not in apart)):
            if not (
                (event.tag == "exit" and event["code"] == "0")
                or (event.tag == "unwind" and not is_unwinding(event))
                or (event.tag == "nccl-connect" and "retrying" in event.text)
                or self.overcome(event)
            ):
                return event
        return None

    @cached_property
    def failed(self) -> Event | None:
        """The first line of something that went wrong and was not overcome."""
        return self.failure()

    @cached_property
    def hang(self) -> Event | None:
        """A line that says the job stood still or was ended for it, where it did not go on afterwards."""
        return next((e for e in self._log.all(*OF_ROLE["hang"]) if not self.overcome(e)), None)

    @property
    def stopped(self) -> Event | None:
        """The line that says the job failed, else the one that says it stood still."""
        return self.failed or self.hang

    # What followed a line.

    def overcome(self, event: Event) -> bool:
        """Whether the run worked after a line, so that the line is not what the run failed of."""
        key = event.file, event.line, event.tag
        if key not in self._known:
            self._known[key] = self._is_overcome(event)
        return self._known[key]

    def _is_overcome(self, event: Event) -> bool:
        if event.tag in _COUNTED:
            return False
        if event.tag in RETRACTABLE and any(self._follows(e, event) for e in self._log.all("retracted")):
            return True
        if event.tag in ESTABLISHING and self._established_after(event):
            return True
        if self._handled(event) or self._had_finished(event) or self._finished_after(event):
            return True
        ended, again = self._last_end[event.file], self._last_restart[event.file]
        if ended > event.line and again < ended:
            return False
        from_line = max(event.line, self._last_break[event.file])
        own = {m.event.line: m.weight for m in self._own_marks(event) if m.event.line > from_line}
        if sum(own.values()) >= ENOUGH:
            return True
        others = [m for m in self._some_marks if m.event.line > self._last_break[m.event.file]]
        others = [m for m in others if self._follows(m.event, event)]
        if again > event.line:  # an agent starts all ranks again, those that had not failed, too
            return sum({m.event.line: m.weight for m in others}.values()) >= ENOUGH
        steps = [m.step for m in others if m.step]
        return bool(steps and max(steps) - min(steps) >= ENOUGH_OF_OTHERS)

    def work_after(self, file: int, line: int) -> int:
        """How much work the streams of a file show after a line: its steps, and its end twice."""
        streams = [marks for (at, _), marks in self._marks.items() if at == file]
        return sum(mark.weight for marks in streams for mark in marks if mark.event.line > line)

    def worked_before(self, event: Event) -> bool:
        """Whether the line's own rank, else its stream, had worked before it."""
        return any(mark.event.line < event.line for mark in self._own_marks(event))

    def _own_marks(self, event: Event) -> list[_Mark]:
        marks = self._marks.get((event.file, event.label), ())
        return [m for m in marks if m.event.rank == event.rank or None in (m.event.rank, event.rank)]

    def _follows(self, later: Event, event: Event) -> bool:
        """Whether a line was printed after another: by its place in one stream, else by the clocks."""
        if later.file == event.file:
            together = later.label == event.label or self._first_line[later.file, later.label] < event.line
            return later.line > event.line and together
        if later.time_s is None or event.time_s is None:
            return False
        dated = later.time_s > _DAY_S
        return dated == (event.time_s > _DAY_S) and later.time_s > event.time_s + CLOCKS_APART_S

    def _handled(self, event: Event) -> bool:
        """Whether the program logged this line's exception and went on, or tests that passed printed it."""
        if self._last_passed[event.file] > event.line:
            return True
        return any(e["handled"] for e in self._log.at(event.file, event.line))

    def _finished_after(self, event: Event) -> bool:
        """Whether a later attempt finished: the event's own rank did, else all that were at work in it."""
        done = {_who(e) for e in self._last_finishes if self._follows(e, event)}
        if event.rank is not None or not done:
            return event.rank in done
        worlds = self._log.all("rank-of-world")
        again = [w for w in worlds if w.file == event.file and self._follows(w, event)]
        return (set(range(again[-1].number("nranks"))) if again else self._at_work) <= done

    @cached_property
    def _last_finishes(self) -> list[Event]:
        """Ends of work in a file after the last break, by those that were at work there."""
        found = [e for e in self._log.all("finished") if e.line > self._last_break[e.file]]
        return [e for e in found if e.rank is not None or _who(e) in self._at_work]

    @cached_property
    def _at_work(self) -> set[int | str]:
        """The ranks, else the labels, that printed steps after what broke last in their file."""
        marks = (m.event for stream in self._marks.values() for m in stream if m.event.tag != "finished")
        return {_who(e) for e in marks if e.line > self._last_break[e.file]}

    def _had_finished(self, event: Event) -> bool:
        """Whether a stream had done its work before it lost its peers or helpers, and none failed."""
        if event.tag not in _OF_A_CLOSE or self._last_end[event.file] or self._log.has("exception"):
            return False
        own = [m.event for m in self._own_marks(event) if m.event.line < event.line]
        last = max(own, key=lambda e: e.line, default=None)
        return last is not None and any(map(_is_the_end, self._log.at(last.file, last.line)))

    def _established_after(self, event: Event) -> bool:
        """Whether the same process completed a communicator later, or worked, whatever broke after that."""
        streams: list[tuple[object, ...]] = [(event.file, event.host, event.pid)]
        if not event.pid:
            ranks: tuple[object, ...] = ("any",) if event.rank is None else (event.rank, None)
            streams = [(event.file, event.label, rank) for rank in ranks]
        if any(self._last_done[stream] > event.line for stream in streams):
            return True
        places = self._break_lines[event.file]
        at = bisect_right(places, event.line)
        end = next(iter(places[at : at + 1]), sys.maxsize)
        worked = {m.event.line for m in self._own_marks(event) if event.line < m.event.line < end}
        return len(worked) >= ENOUGH

    @cached_property
    def _breaks(self) -> list[Event]:
        found = self._log.all(*OF_ROLE["end"])
        found = [e for e in found if not (e.tag == "exit" and e["code"] == "0")]
        return [e for e in found if not (is_teardown(e) or self._handled(e))]

    @cached_property
    def _break_lines(self) -> defaultdict[int, list[int]]:
        return defaultdict(list, grouped((e.file, e.line) for e in self._breaks))

    @cached_property
    def _last_break(self) -> dict[int, int]:
        return _last_lines((e.file, e) for e in self._breaks)

    @cached_property
    def _last_end(self) -> dict[int, int]:
        return _last_lines((e.file, e) for e in self._breaks if e.tag in _ENDED_A_PROCESS)

    @cached_property
    def _last_restart(self) -> dict[int, int]:
        return _last_lines((e.file, e) for e in self._log.all("restarted"))

    @cached_property
    def _last_passed(self) -> dict[int, int]:
        failed = {e.place for e in self._log.all("tests-failed")}
        passed = self._log.all("tests-passed")
        # unittest says it two lines below
        return _last_lines((e.file, e) for e in passed if (e.file, e.line + 2) not in failed)

    @cached_property
    def _last_done(self) -> dict[tuple[object, ...], int]:
        """Of each process, and of each stream and rank: the last line of a communicator's completion."""
        done = [*self._log.all("init", state="(?i)complete"), *self._log.all("init-timings")]
        found: list[tuple[tuple[object, ...], Event]] = []
        for event in done:
            keys = (event.host, event.pid), (event.label, event.rank), (event.label, "any")
            found += [((event.file, *key), event) for key in keys]
        return _last_lines(found)

    @cached_property
    def _marks(self) -> dict[tuple[int, str], list[_Mark]]:
        """The lines of each stream that show work."""
        marks = [_Mark(e, 1, e.number("step")) for e in self._log.all("step", "loss", "nccl-tests-row")]
        marks += [_Mark(e) for e in self._log.all("epoch-done", "saved")]
        marks += [_Mark(e, ENOUGH) for e in self._log.all("finished")]
        bars = [e for e in self._log.all("progress") if not is_preparing(e)]
        marks += [_Mark(e, ENOUGH if e["percent"] == "100" else 1, e.number("percent")) for e in bars]
        return grouped(((mark.event.file, mark.event.label), mark) for mark in marks)

    @cached_property
    def _some_marks(self) -> list[_Mark]:
        """Of so many streams that they show whether the run went on, however many ranks there are."""
        return [m for stream in sorted(self._marks)[:MOST_STREAMS] for m in self._marks[stream]]

    @cached_property
    def _first_line(self) -> dict[tuple[int, str], int]:
        return first_of_each(((e.file, e.label), e.line) for e in self._log.events)


def _last_lines(events: Iterable[tuple[Key, Event]]) -> dict[Key, int]:
    """The last line of each key, 0 for one that has none."""
    last: dict[Key, int] = defaultdict(int)
    for key, event in events:
        last[key] = max(last[key], event.line)
    return last


def _who(event: Event) -> int | str:
    """Who printed a line: its rank, else its label."""
    return event.label if event.rank is None else event.rank


def _is_the_end(event: Event) -> bool:
    """Whether a line says that all work is done: in words, or as the full bar of the training."""
    return event.tag == "finished" or (event["percent"] == "100" and bool(_TRAINS.search(event["what"])))


def is_preparing(bar: Event) -> bool:
    """Whether a progress bar is of work before the training: data that are fetched, read or converted."""
    return bool(PREPARES.match(bar["what"]) or _MOVES_BYTES.search(bar.text))
