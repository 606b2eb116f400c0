"""
How a run continued after a line, and the reason of its end.  Every cause uses this module.

"After" means the order of time: lines of one stream in their order, lines of several streams or files by
their clocks.  Pure.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, TypeVar

from ringup.logs.lines import DAY_S
from ringup.logs.mentions import SETTINGS
from ringup.logs.patterns import OF_ROLE, TAGS
from ringup.units import first_of_each, grouped

if TYPE_CHECKING:
    from ringup.logs.counts.model import Comm
    from ringup.logs.files import FileInfo
    from ringup.logs.lines import Event
    from ringup.logs.run_record import RunEnd


Key = TypeVar("Key")


class Log(Protocol):
    """The part of the evidence that this module reads; the evidence contains its outcome."""

    events: list[Event]
    files: list[FileInfo]
    communicators: list[Comm]
    repeats: Counter[str]
    ended: RunEnd | None
    began: list[tuple[int, float] | None]

    def all(self, *tags: str, has: str = "", lacks: str = "", **fields: str) -> list[Event]: ...
    def has(self, *tags: str) -> bool: ...
    def at(self, file: int, line: int, below: int = 0) -> Iterator[Event]: ...
    def tags_at(self, event: Event, below: int = 0) -> set[str]: ...


MOST_BEFORE_REPLY = 60
"""Lines of a server's traceback, up to the reply that its client gets."""
ENOUGH = 2
"""Steps of the same stream that show work after a line; one may have been in progress."""
ENOUGH_OF_OTHERS = 4
"""Steps of other ranks: without the failed rank they can do one or two more."""
MOST_STREAMS = 64
CLOCKS_APART_S = 2.0

ZONES_APART_S = 14 * 3600

ESTABLISHING = OF_ROLE["establishing"]
RETRACTABLE = OF_ROLE["hang"] | {"xla-threads", "horovod-stalled", "warn", "server-silent"}
_COUNTED = {"coll", "flight", "run-apart", "run-ended", "run-hung"}
"""Counted or recorded facts: later progress does not cancel them."""

_OF_A_CLOSE = OF_ROLE["consequence"] | {"killed-word"}
RANK_PROGRAMS = re.compile(r"(?i)python|pt_\w|ray\b|torchrun|deepspeed|accelerate|vllm|sglang|train")
"""Names of training and serving processes in the kernel, which keeps 15 characters."""
_OF_THE_HOST = {"oom-kill", "ray-head", "killed-word", "store-timeout", "client-timeout"}
"""Lines that a host or a cluster also prints after the job."""
_LASTING = {"xid", "sxid", "ecc", "aer", "ib-port-down", "async-event", "nvlink-error", "gpu-lost"}
"""Faults that last, although the job continues for a time."""
_OF_A_KERNEL = _LASTING | {"oom-kill", "server-silent"}
_NEVER_PASSED = _LASTING | SETTINGS | OF_ROLE["end"] | {"killed-word", "crash-word", "abort-word", "oom-kill"}
"""Lasting facts and ends of processes: buffered lines of other ranks may follow."""
_ENDED_A_PROCESS = {"exit", "exit-signal", "child-failed"}
_TAKEN_AWAY = re.compile(
    r"CANCELLED|TIME LIMIT|PREEMPT|death signal|walltime|Ctrl-C to proc|shutdown triggered|SIGTERM received"
)
_A_STEP = r"\*\*\* STEP \S{1,40} ON \S{1,80} CANCELLED AT \S{10,30} \*\*\*"
"""Slurm's line on the end of a step, without a reason."""
PREPARES = re.compile(
    r"(?i)\W*(?:map|filter|tokeni|preprocess|generat|download|convert|group|pack|prepar|load|fetch|sav|read)"
)
_STARTS_RANKS = re.compile(r"(?i)train|tun|srun|mpi|torchrun|deepspeed|accelerate|\bssh\b")
_TRAINS = re.compile(r"(?i)train|epoch|step|iter")
_MOVES_BYTES = re.compile(r"[kMG]i?B/s|\dB/s|examples/s|files/s")
_BY_A_SHELL = r"(?: line \d+|^\S*sh): +\d+ |(?:exit|status|code)\W{1,3}(?:code )?\d"
"""How a shell or a container's runtime reports that a program ended."""
_OF_A_JOB = re.compile(r"(?i)\W{0,40}(?:array )?(task|job|seed|fold|experiment|config)\W{1,3}(\d{1,6})\b")
_OF_A_GPU = {"illegal-access", "cuda-failure", "gpu-oom", "ecc", "gpu-lost"}
_PROBES = r"\"(?:GET|HEAD) "
_SUMMARY = re.compile(r"\W{0,8}wandb: ")
"""wandb repeats the last figures when the process ends, however it ends."""
_TEARDOWN = re.compile(
    r"Heartbeat ?[Mm]onitor|flag on TCPStore|failed to shutdown the rendezvous"
    r"|Failed to check the \"should dump\""
    r"|\[W.{0,200}(?:sendBytes|recvBytes|recvV\w{1,20})(?: failed on SocketImpl| at \S{1,80}Utils\.hpp)"
    r"|TCPStore\S{0,40}\] \[c10d\]"
)


_CLOSES = re.compile(r"operation Close from rank|Could not receive type from localRank")


def made_do(event: Event) -> bool:
    """Whether the line itself states that the program continues without."""
    return bool(TAGS["made-do"].patterns[0].regex.search(event.text))


def is_teardown(event: Event) -> bool:
    """Whether torch also prints this line when its store goes away after a job that ended well."""
    return bool(_TEARDOWN.search(event.text))


_UPPER_LAYERS = re.compile(
    r"(?:init|group|bootstrap|enqueue|transport|proxy|paths|topo|nvls|p2p|shm|net)\.(?:cc|cu)$"
)


def is_unwinding(event: Event) -> bool:
    """Whether a `file.cc:line -> code` line is of a failed call, not of probing below the upper layers."""
    if event["code"] in ("0", "7") or event["source"] in ("net.cc", "include/net.h"):
        return False
    return bool(_UPPER_LAYERS.search(event["source"]))


@dataclass(frozen=True)
class _Mark:
    """A line that shows work: its weight, and the step's number if printed."""

    event: Event
    weight: int = 1
    step: int = 0


class Outcome:
    """The outcome of one run, from the events of its logs and from its own record."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[tuple[int, int, str], bool] = {}

    # Progress of the run.

    @cached_property
    def set_up(self) -> bool:
        """Whether all ranks of some communicator completed it, or a later stage was reached."""
        return any(c.complete for c in self._log.communicators) or self._log.has("init-timings")

    @cached_property
    def trained(self) -> bool:
        """Whether steps were done: data did flow."""
        return max(self._log.repeats["step"], self._log.repeats["loss"]) > 1

    @cached_property
    def went_on(self) -> bool:
        """Whether ranks completed their communicators or trained."""
        return self.set_up or self.trained or self._log.has("nccl-tests-row")

    @cached_property
    def ended_well(self) -> bool:
        """Whether the work was done, as far as the log shows, and processes ended on their own."""
        return self.went_on or self._log.has("unclosed-group", "finished")

    def closes(self, event: Event) -> bool:
        """Whether a proxy of NCCL prints this line while a finished job closes its communicators."""
        return self._log.has("finished") and bool(_CLOSES.search(event.text))

    def first_attempt(self, events: Iterable[Event]) -> list[Event]:
        """Events before the first failure in their file: a later attempt may have another world."""
        return [e for e in events if e.line < min(self._break_lines.get(e.file, ()), default=e.line + 1)]

    @property
    def all_ended_with_0(self) -> bool:
        """Whether `ringup run` saw every rank end with exit code 0."""
        return self._log.ended is not None and self._log.ended.outcome == "ok"

    # Reason of its end.

    @cached_property
    def by_ringup(self) -> bool:
        """Whether `ringup run` ended the ranks: one failed, or none made progress, or Ctrl-C."""
        ended = self._log.ended
        by_itself = ended and (ended.outcome in ("hung", "rank-failed") or ended.verdict.rule)
        return self._log.has("run-hung") or bool(by_itself)

    @cached_property
    def from_outside(self) -> list[Event]:
        """The lines that report that a scheduler or a user ended the job; empty if `ringup run` did."""
        if self.by_ringup:
            return []
        # A launcher sends signals when one of its ranks ends.
        own_end = self._log.has("exit", "exception", "closing-signal")
        own = r"|Received SIG\w+: \d" if own_end else ""
        if self._log.ended and self._log.ended.outcome == "launcher-error":
            own += "|signal|SIGTERM|shutdown triggered"  # `ringup run` sent them: a node was lost, say
        found = self._log.all("cancelled", lacks="closing signal" + own)
        return [e for e in found if not (e in self._by_a_plugin or self._is_of_earlier_attempt(e))]

    @cached_property
    def _by_a_plugin(self) -> list[Event]:
        """Ends of steps below an error of Slurm's MPI plugin, which kills its step itself."""
        plugin = first_of_each((e.file, e.line) for e in self._log.all("mpi-plugin"))
        return [e for e in self._log.all("cancelled", has=_A_STEP) if e.line > plugin.get(e.file, e.line)]

    @cached_property
    def limit(self) -> str:
        """The scheduler's reason, such as "time limit" or "preemption"; "" if none is printed."""
        found = (e[f] for e in self.from_outside for f in e.fields if f.startswith("why") and e[f])
        return next(reversed([*found]), "").lower()

    def after_the_end(self, event: Event) -> bool:
        """Whether a line follows one that reports that a scheduler ended the job."""
        taken = (e for e in [*self.from_outside, *self._by_a_plugin] if _TAKEN_AWAY.search(e.text))
        return any(e.file == event.file and e.line < event.line for e in taken)

    def before_the_end(self, events: Iterable[Event]) -> list[Event]:
        """Those that do not follow the end of a job that a scheduler ended."""
        return [e for e in events if not self.after_the_end(e)]

    @cached_property
    def interrupted(self) -> dict[tuple[int, str], int]:
        """For each stream that somebody interrupted (KeyboardInterrupt) the line: what follows is of that."""
        found = (e for e in self._log.all("exception") if e["type"].endswith("KeyboardInterrupt"))
        return first_of_each(((e.file, e.label), e.line) for e in found)

    # How it failed.

    def failure(self, *apart: str) -> Event | None:
        """The first line of a failure after which the run did not work, except these tags."""
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
        return self.failure()

    @cached_property
    def hang(self) -> Event | None:
        """A line that reports that the job hung or was ended for it, if it did not continue afterwards."""
        return next((e for e in self._log.all(*OF_ROLE["hang"]) if not self.overcome(e)), None)

    @property
    def stopped(self) -> Event | None:
        """The line that reports that the job failed, else the one that reports that it hung."""
        return self.failed or self.hang

    # Events after a line.

    def overcome(self, event: Event) -> bool:
        """Whether the run worked after a line, so that the line is not the reason of its failure."""
        key = event.file, event.line, event.tag
        if key not in self._known:
            self._known[key] = self._is_overcome(event)
        return self._known[key]

    def _is_overcome(self, event: Event) -> bool:
        if event.tag in _COUNTED:
            return False
        if self._is_of_earlier_attempt(event):
            return True
        if event.tag in RETRACTABLE and any(self._follows(e, event) for e in self._log.all("retracted")):
            return True
        if event.tag in ESTABLISHING and self._established_after(event):
            return True
        if event.tag == "horovod-stalled" and self.work_after(event):
            return True  # printed after 60 s of waiting, which went on
        if event.tag in _OF_A_KERNEL and event.time_s is not None and self._is_of_before(event):
            return True
        if self._handled(event) or self._had_finished(event) or self._finished_after(event):
            return True
        if event.tag not in _NEVER_PASSED and self._worked_before_the_end(event):
            return True
        ended, again = self._last_end[event.file], self._last_restart[event.file]
        if again < ended > event.line:
            return False
        from_line = max(event.line, self._last_break[event.file])
        marks = [m for m in self._own_marks(event) if m.event.line > from_line]
        is_work = any(m.event.tag != "saved" for m in marks)  # a program may save when it fails
        if is_work and sum({m.event.line: m.weight for m in marks}.values()) >= ENOUGH:
            return again > event.line or not self._is_flushed(event, marks)
        others = [m for m in self._some_marks if m.event.line > self._last_break[m.event.file]]
        others = [m for m in others if self._follows(m.event, event)]
        if again > event.line:  # an agent starts all ranks again, also those that had not failed
            return sum({m.event.line: m.weight for m in others}.values()) >= ENOUGH
        steps = [m.step for m in others if m.step]
        return bool(steps and max(steps) - min(steps) >= ENOUGH_OF_OTHERS)

    def _is_of_earlier_attempt(self, event: Event) -> bool:
        return self._begun[event.file] <= event.line < self._last_attempt.get(event.file, 0)

    @cached_property
    def _last_attempt(self) -> dict[int, int]:
        """
        For each file the end of the attempt before the last one: a row of an elastic agent's table, with
        work and a table of the same host's agent below it.
        """
        found: dict[int, int] = {}
        rows = (((e.file, e["host"]), e.line) for e in self._log.all("exit") if e["host"] and e["local"])
        for (file, _), lines in grouped(rows).items():
            for end, later in pairwise(lines):
                if len({m.event.line for m in self._all_marks[file] if end < m.event.line < later}) >= ENOUGH:
                    found[file] = max(end, found.get(file, 0))
        return found

    def _worked_before_the_end(self, event: Event) -> bool:
        """
        Whether its rank worked on after a line, and failed later of something else.

        Python prints its standard output last, so steps may belong before the line: only another failure
        after them shows that the rank went on.  A line above all lines of the job precedes all its work.
        In a stream of several ranks those that wait for the failed one do one or two more steps.
        """
        marks, is_own, need, at = self._own_marks(event), False, ENOUGH_OF_OTHERS, event.line
        if self._is_preface(event):
            marks, need, at = self._all_marks[event.file], ENOUGH, self._begun[event.file]
        elif event.label.isdigit():
            is_own, need = True, ENOUGH
        elif event.rank is not None:
            is_own, own = True, [m for m in marks if m.event.rank == event.rank]
            marks, need = (own, ENOUGH) if own else (marks, ENOUGH_OF_OTHERS)
        places = self._break_lines[event.file]
        end = next(iter(places[bisect_right(places, at) :]), sys.maxsize)
        lines = {m.event.line: m.weight for m in marks if event.line < m.event.line < end}
        later = [e for e in self._own_failures if lines and e.file == event.file and e.line > min(lines)]
        later = [e for e in later if (e.tag, e["type"]) != (event.tag, event["type"])]
        if is_own and any(e.label == event.label and (e.label or e.rank == event.rank) for e in later):
            return True
        return bool(later) and sum(lines.values()) >= need

    def is_above_the_ranks(self, event: Event) -> bool:
        """Whether the script that starts the ranks printed a line, and then went on to start them."""
        return self._begun[event.file] < sys.maxsize and self._is_preface(event)

    def _is_preface(self, event: Event) -> bool:
        """Whether no rank printed a line and it is above all of the job's, as LSF's report of the end."""
        begun = self._begun[event.file]
        if event.label or event.pid or event.rank is not None or event.line >= begun:
            return False
        ends = (e for e in self._breaks if e.file == event.file and e.tag in _ENDED_A_PROCESS)
        return not any(e.line < begun for e in ends)

    @cached_property
    def _own_failures(self) -> list[Event]:
        """Failures that do not follow from another rank's end, and ends from outside."""
        of_others = OF_ROLE["consequence"] | OF_ROLE["end"] | OF_ROLE["nccl"]
        tags = (tag for tag in OF_ROLE["failure"] if tag not in of_others)
        found = [e for e in self._log.all(*tags) if not self._log.tags_at(e) & of_others]
        killed = self._log.all("exit", has=r"(?i)exitcode\W{1,6}-9\b|Killed|signal\W{0,3}9\b|SIGKILL")
        return [*found, *killed, *self._log.all("cancelled", "oom-kill", "xid", "work", "watchdog-stuck")]

    @cached_property
    def _all_marks(self) -> defaultdict[int, list[_Mark]]:
        """The lines of each file that show work."""
        every = ((file, mark) for (file, _), found in self._marks.items() for mark in found)
        return defaultdict(list, grouped(every))

    def _is_flushed(self, event: Event, marks: Iterable[_Mark]) -> bool:
        """
        Whether steps after an exception that nobody caught may be what Python had buffered: it prints its
        standard output last.  The end of the work, or a later clock, shows that the program went on; so does
        any step after an import that failed.
        """
        if not any(map(_is_uncaught, self._log.at(*event.place))):
            return False
        if event.time_s is not None and any((m.event.time_s or 0) > event.time_s for m in marks):
            return False
        ends = marks if event.rank is not None else self._all_marks[event.file]
        return not any(m.event.line > event.line and _is_the_end(m.event) for m in ends)

    @cached_property
    def _begun(self) -> defaultdict[int, int]:
        """The first line of each file that a rank printed, that shows work, or that begins a job."""
        own = (e for e in self._log.events if e.rank is not None or e.pid)
        marks = (m.event for found in self._all_marks.values() for m in found)
        first = defaultdict(lambda: sys.maxsize, {file: jobs[0] for file, jobs in self._jobs.items()})
        for event in (*own, *marks):
            first[event.file] = min(first[event.file], event.line)
        return first

    def work_after(self, event: Event, line: int = 0) -> int:
        """The amount of work in its file after an event, or a line: the steps, and the end twice."""
        later = [m for m in self._all_marks[event.file] if m.event.line > (line or event.line)]
        return sum(mark.weight for mark in later if not self._is_of_another(mark.event, event))

    def _is_of_another(self, later: Event, event: Event) -> bool:
        """Whether a line is of another of several jobs in one file: by its number, or below its banner."""
        mine, its = _OF_A_JOB.match(event.text), _OF_A_JOB.match(later.text)
        if mine and its:
            return mine[1].lower() == its[1].lower() and mine[2] != its[2]
        jobs = self._jobs.get(event.file, [])
        if bisect_right(jobs, event.line) == bisect_right(jobs, later.line):
            return False
        here = self._log.at(*event.place)
        return any(e["uncaught"] or e.tag in _ENDED_A_PROCESS or re.search(_BY_A_SHELL, e.text) for e in here)

    @cached_property
    def _jobs(self) -> dict[int, list[int]]:
        """For each file the banners of its jobs, if no number comes again, as that of a retried one does."""
        found = grouped((e.file, e) for e in self._log.all("stage-began") if e["job"])
        once = {f: es for f, es in found.items() if len({(e["job"], e["n"]) for e in es}) == len(es)}
        return {file: [e.line for e in es] for file, es in once.items()}

    def worked_before(self, event: Event) -> bool:
        """Whether the line's own rank, else its stream, had worked before it."""
        return any(mark.event.line < event.line for mark in self._own_marks(event))

    def _own_marks(self, event: Event) -> list[_Mark]:
        marks = self._marks.get((event.file, event.label), ())
        own = (m for m in marks if m.event.rank == event.rank or None in (m.event.rank, event.rank))
        return [m for m in own if not self._is_of_another(m.event, event)]

    def _follows(self, later: Event, event: Event) -> bool:
        """Whether a line was printed after another: by its position in one stream, else by the clocks."""
        if later.file == event.file:
            together = later.label == event.label or self._first_line[later.file, later.label] < event.line
            return later.line > event.line and together and not self._is_of_another(later, event)
        if later.time_s is None or event.time_s is None:
            return False
        dated = later.time_s > DAY_S
        return dated == (event.time_s > DAY_S) and later.time_s > event.time_s + CLOCKS_APART_S

    def _is_of_before(self, event: Event) -> bool:
        """Whether a kernel's line is older than the run by more than clocks of two time zones can differ."""
        begun = self._log.began[event.file] if event.file < len(self._log.began) else None
        if begun is None or event.time_s is None or event.time_s < DAY_S:
            return False
        return event.line < begun[0] and event.time_s + ZONES_APART_S < begun[1]

    def _handled(self, event: Event) -> bool:
        """Whether the program logged this line's exception and went on, or tests that passed printed it."""
        if self._is_of_a_test(event) or (event.tag in _OF_A_CLOSE and made_do(event)):
            return True
        # A server logs why it refuses a request, and answers the next one.
        refused = (e for e in self._log.all("request-refused") if e.file == event.file)
        here = [*self._log.at(*event.place)]
        of_a_gpu = any(e.tag in _OF_A_GPU for e in here)
        if not of_a_gpu and any(0 < e.line - event.line <= MOST_BEFORE_REPLY for e in refused):
            return True
        if not any(e["logged"] or e["handled"] for e in here):
            return False
        uncaught = [e for e in here if e["uncaught"]]
        # A traceback that the script's own lines log begins like one that nobody caught, as does one of an
        # optional import.
        may_be_caught = any(e["logged"] for e in here) or not any(map(_is_uncaught, uncaught))
        return not uncaught or (may_be_caught and self._is_gone_on(event))

    def _is_gone_on(self, event: Event) -> bool:
        """Whether the log goes on after a line, and not with the end of a process."""
        later = (e for e in self._ends if e.file == event.file and e.line > event.line)
        is_ended = any(e.tag in _ENDED_A_PROCESS for e in later)
        return event.line < self._log.files[event.file].lines and not is_ended

    @cached_property
    def _ends(self) -> list[Event]:
        return [e for e in self._log.all(*OF_ROLE["end"]) if not (e.tag == "exit" and e["code"] == "0")]

    def _finished_after(self, event: Event) -> bool:
        """Whether a later attempt finished: the event's own rank did, else all that worked in it."""
        # srun reports the end of a step at once: what begins below it is another step.
        is_step = (
            event.text.startswith("srun: error: ") and self._last_end[event.file] < self._begun[event.file]
        )
        if is_step or (self._is_preface(event) and not self._last_end[event.file]):
            return any(_is_the_end(m.event) for m in self._all_marks[event.file])
        done = {_who(e) for e in self._last_finishes if self._follows(e, event)}
        if event.rank is not None or not done:
            return event.rank in done
        worlds = self._log.all("rank-of-world")
        again = [w for w in worlds if w.file == event.file and self._follows(w, event)]
        return (set(range(again[-1].number("nranks"))) if again else self._at_work) <= done

    @cached_property
    def _last_finishes(self) -> list[Event]:
        """Ends of work in a file after the last failure, by the ranks that worked there."""
        found = [e for e in self._log.all("finished") if e.line > self._last_break[e.file]]
        return [e for e in found if e.rank is not None or _who(e) in self._at_work]

    @cached_property
    def _at_work(self) -> set[int | str]:
        """The ranks, else the labels, that printed steps after the last failure in their file."""
        marks = (m.event for stream in self._marks.values() for m in stream if m.event.tag != "finished")
        return {_who(e) for e in marks if e.line > self._last_break[e.file]}

    def _had_finished(self, event: Event) -> bool:
        """Whether a stream had done its work before it lost peers, helpers or threads, and none failed."""
        in_thread = any(e["thread"] for e in self._log.at(*event.place))
        killed = re.search(r"(?: line \d+|^\S*sh): +\d+ Killed (.*)", event.text)
        if killed and RANK_PROGRAMS.search(killed[1]) and not self._log.has("finished"):
            return False  # the bar of an epoch is full before each next one
        is_close = event.tag in _OF_A_CLOSE and not any(e.line <= event.line for e in self._raised)
        of_a_host = event.tag in _OF_THE_HOST and not RANK_PROGRAMS.match(event["victim"] or event["victim2"])
        return (is_close or in_thread or of_a_host) and self.aftermath(event)

    def aftermath(self, event: Event) -> bool:
        """Whether a line follows the end of its stream's work, else of its file's, and no process failed."""
        if self._last_end[event.file]:
            return False
        marks = self._own_marks(event) or (self._all_marks[event.file] if event.rank is None else [])
        work = (m.event for m in marks if m.event.tag != "saved" and not self._is_of_another(m.event, event))
        last = max(work, key=lambda e: e.line, default=None)
        if last is None or last.line >= event.line:
            return False
        begun = (e.line for e in self._log.all("stage-began") if e.file == event.file)
        if any(last.line < line < event.line for line in begun):
            return False
        ends = [e for e in self._log.at(last.file, last.line) if _is_the_end(e)]
        trains = self.trained and not self._log.all("finished", eval="")  # an evaluation between
        return bool(ends) and not (trains and all(e["eval"] for e in ends))

    def later_command(self, event: Event) -> bool:
        """Whether another command printed a line, started after the training in its file had finished."""
        done = [e for e in self._log.all("finished", eval="") if e.file == event.file and e.line < event.line]
        if not done or not self.trained:
            return False
        end = done[-1].line
        begun = [e for e in self._log.all("command") if not _STARTS_RANKS.search(e["command"])]
        begun += [event] if event.tag == "command-missing" else []
        is_begun = any(e.file == event.file and end < e.line <= event.line for e in begun)
        return is_begun and all(_is_full(m.event) for m in self._all_marks[event.file] if m.event.line > end)

    @cached_property
    def _raised(self) -> list[Event]:
        return [e for e in self._log.all("exception") if not (e["thread"] or self._handled(e))]

    def _established_after(self, event: Event) -> bool:
        """Whether the same process completed a communicator later, or worked, whatever failed after that."""
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
        return [e for e in self._ends if not (is_teardown(e) or self._handled(e))]

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
        """An elastic agent whose ranks failed starts them again, or ends with an exception of its own."""
        given_up = _last_lines((e.file, e) for e in self._log.all("child-failed"))
        again = (e for e in self._log.all("exit", has=r"failed \(exitcode") if e.line > given_up[e.file])
        return _last_lines((e.file, e) for e in [*self._log.all("restarted"), *again])

    def _is_of_a_test(self, event: Event) -> bool:
        """
        Whether a line is of a session of tests that passed.

        The session's first line is not always printed: then it begins after the last end of a program.
        """
        passed = next((line for line in self._passed[event.file] if line > event.line), 0)
        before = [e for e in self._session_bounds if e.file == event.file and e.line < passed]
        began = [e.line for e in before if e.tag == "tests-began"] or [e.line for e in before]
        began += [e.line for e in self._log.all("tests-failed") if e.file == event.file and e.line < passed]
        return bool(passed) and event.line > max(began, default=0)

    @cached_property
    def _session_bounds(self) -> list[Event]:
        by_a_shell = self._log.all("killed-word", "crash-word", has=_BY_A_SHELL)
        return [*self._log.all("tests-began", *_ENDED_A_PROCESS), *by_a_shell]

    @cached_property
    def _passed(self) -> dict[int, list[int]]:
        """For each file the lines that report that all tests of a session passed."""
        failed = {e.place for e in self._log.all("tests-failed")}
        passed = self._log.all("tests-passed")
        # unittest reports it two lines below
        found = grouped((e.file, e.line) for e in passed if (e.file, e.line + 2) not in failed)
        return defaultdict(list, found)

    @cached_property
    def _last_done(self) -> dict[tuple[object, ...], int]:
        """For each process, and each stream and rank: the last line of a communicator's completion."""
        done = [*self._log.all("init", state="(?i)complete"), *self._log.all("init-timings")]
        found: list[tuple[tuple[object, ...], Event]] = []
        for event in done:
            keys = (event.host, event.pid), (event.label, event.rank), (event.label, "any")
            found += [((event.file, *key), event) for key in keys]
        return _last_lines(found)

    @cached_property
    def _marks(self) -> dict[tuple[int, str], list[_Mark]]:
        marks = [_Mark(e, 1, e.number("step")) for e in self._log.all("step", "loss", "nccl-tests-row")]
        marks += [_Mark(e) for e in self._log.all("epoch-done", "saved")]
        marks += [_Mark(e, ENOUGH if e["began"] else 1) for e in self._log.all("served", lacks=_PROBES)]
        marks += [_Mark(e, ENOUGH) for e in self._log.all("finished")]
        bars = [e for e in self._log.all("progress") if not is_preparing(e)]
        marks += [_Mark(e, ENOUGH if _is_full(e) else 1, e.number("percent")) for e in bars]
        own = (mark for mark in marks if not _SUMMARY.match(mark.event.text))
        return grouped(((mark.event.file, mark.event.label), mark) for mark in own)

    @cached_property
    def _some_marks(self) -> list[_Mark]:
        """For enough streams to show whether the run continued, however many ranks there are."""
        return [m for stream in sorted(self._marks)[:MOST_STREAMS] for m in self._marks[stream]]

    @cached_property
    def _first_line(self) -> dict[tuple[int, str], int]:
        return first_of_each(((e.file, e.label), e.line) for e in self._log.events)


def _last_lines(events: Iterable[tuple[Key, Event]]) -> dict[Key, int]:
    """The last line of each key, 0 without one."""
    last: dict[Key, int] = defaultdict(int)
    for key, event in events:
        last[key] = max(last[key], event.line)
    return last


def _who(event: Event) -> int | str:
    return event.label if event.rank is None else event.rank


def _is_uncaught(event: Event) -> bool:
    """Whether a traceback goes up to the program's first line; one of an optional import does, too."""
    return bool(event["uncaught"]) and not event["type"].endswith(("ImportError", "ModuleNotFoundError"))


def _is_the_end(event: Event) -> bool:
    """Whether a line reports that all work is done: as text, or as the full bar of the training."""
    return event.tag == "finished" or (event["percent"] == "100" and bool(_TRAINS.search(event["what"])))


def _is_full(bar: Event) -> bool:
    """Whether it is the full bar of the training, or of the program's only loop: that one has no name."""
    return _is_the_end(bar) or (bar["percent"] == "100" and not bar["what"].strip(" |:"))


def is_preparing(bar: Event) -> bool:
    """Whether a progress bar is for work before the training: fetching, reading or converting data."""
    return bool(PREPARES.match(bar["what"]) or _MOVES_BYTES.search(bar.text))
