"""What each cause makes of many slightly different stories: events changed, left out, added and mixed."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ringup.flight_recorder.dump import from_data
from ringup.logs import counts
from ringup.logs.causes import symptoms as signs
from ringup.logs.counts.model import Comm
from ringup.logs.dumps import Dump, Recorded
from ringup.logs.evidence import LogEvidence
from ringup.logs.files import FileInfo
from ringup.logs.lines import Event
from ringup.logs.outcome import is_unwinding, made_do
from ringup.logs.patterns import PATTERNS
from ringup.logs.read import read_logs
from ringup.logs.rule import CAUSES, Finder
from ringup.logs.scan import Scan, Scanner, joined
from tests.flight_dumps import call, dump, waits
from tests.golden_files import compare, part_of
from tests.logs_said import HEALTHY, SAID
from tests.variations import below, compared, difference, some, sweep

pytestmark = pytest.mark.slow

CHANGES = 40
ADDED = 24
MIXED = 320


@dataclasses.dataclass(frozen=True)
class Told:
    """What a story is made of."""

    events: tuple[Event, ...]
    communicators: tuple[Comm, ...] = ()
    repeats: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def story(self) -> LogEvidence:
        """Of at most three files, made anew: a story writes into what it is given."""
        files = [FileInfo(f"{n}.log") for n in range(3)]
        comms = [dataclasses.replace(c) for c in self.communicators]
        order = sorted(self.events, key=lambda e: (e.file, e.line))
        return LogEvidence(files, [Scan([*order], Counter(self.repeats), comms)])

    def more(self, *events: Event) -> Told:
        return dataclasses.replace(self, events=(*self.events, *events))


def read(text: str) -> Told:
    scanner = Scanner()
    lines = text.encode().split(b"\n")
    for number, line in enumerate(lines, 1):
        scanner.take(number, line)
    scan = joined(scanner.result(), 0, counts.scan([text.encode()]).comms.values())
    return Told(tuple(scan.events), tuple(scan.communicators), dict(scan.repeats))


@cache
def known() -> dict[str, list[Event]]:
    """Tag -> every event that an excerpt holds."""
    found: dict[str, list[Event]] = defaultdict(list)
    for text in [*(text for _, text in SAID), *HEALTHY]:
        for event in read(text).events:
            found[event.tag].append(event)
    for wording in (w for w in PATTERNS if len(found[w.tag]) < 3):
        for text in [*some(re.findall(r"[A-Za-z][\w ]{3,40}", wording.text), 2, wording.text), ""]:
            values = {}
            for name in wording.regex.groupindex:
                of_digits = re.search(rf"\(\?P<{name}>-?\??\[?-?\\d", wording.text)
                usual = NUMBERS if of_digits else WORDS
                values[name] = usual[below(len(usual), name, wording.text, text)]
            found[wording.tag].append(Event(wording.tag, 0, 1, f"{text} {' '.join(values.values())}", values))
    return found


NUMBERS = ("0", "1", "2", "8", "500")
WORDS = ("3-5", "10.0.0.7", "eth0", "", "timed out", "DOWN", "Init", "4, 5")
"""What a group of a wording may have held, of which there are few excerpts."""


def found(function: Finder, told: Told) -> Iterator[str]:
    for one in function(told.story()):
        lines = " ".join(f"{e.file}:{e.line}" for e in one.evidence)
        where = f"{','.join(one.nodes)} {','.join(map(str, one.ranks))}"
        fix = one.fix and (one.fix.text, one.fix.env, one.fix.commands)
        yield f"{one.severity} {one.confidence} [{where}] {one.text} ({lines}) {fix or ''}"


def module_of(rule: str) -> ModuleType:
    return sys.modules[CAUSES[rule][1].__module__]


@cache
def tags(module: ModuleType) -> tuple[str, ...]:
    """The tags that a module asks for, and what a run that failed, hung or went on says."""
    usual = (
        "exit",
        "exception",
        "work",
        "store-barrier",
        "step",
        "nccl-tests-row",
        "init-timings",
        "child-failed",
    )
    return tuple(sorted({*compared(module.__name__, module), *usual} & known().keys()))


def added(told: Told, tag: str, seed: object) -> Iterator[tuple[str, Told]]:
    """One event of this tag before, on the line of and after what is there."""
    pool, lines = known()[tag], [e.line for e in told.events] or [1]
    for where, line in (("before", 0), ("on", lines[0]), ("after", lines[-1] + 1)):
        one = pool[below(len(pool), seed, where)]
        host = told.events[0].host if told.events and below(2, seed, where) else one.host
        yield f"{tag} {where}", told.more(dataclasses.replace(one, line=line, host=host))


def changed(rule: str, text: str) -> Iterator[str]:
    """A cause's answers to its own excerpt, changed in each event, and with one more."""
    told, function, words = read(text), CAUSES[rule][1], compared(CAUSES[rule][1].__module__, module_of(rule))
    usual = [*found(function, told)]
    yield from sweep(told, partial(found, function), seed=text, most=CHANGES, words=words)
    others = [(f"without {n}", dataclasses.replace(told, events=(*told.events[:n], *told.events[n + 1 :])))
              for n in range(len(told.events))]  # fmt: skip
    more = [one for tag in tags(module_of(rule)) for one in added(told, tag, (text, tag))]
    for done, other in [*some(others, 8, text), *some(more, ADDED, text)]:
        lines = [*found(function, other)]
        if lines != usual:
            yield f"  {done}"
            yield from difference(usual, lines)


PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_a_cause_answers_to_changed_events_as_before(part: int) -> None:
    def answers() -> Iterator[str]:
        for rule, text in part_of(SAID, part, PARTS):
            if rule in CAUSES:
                yield f"{rule} {text[:60]!r}"
                yield from changed(rule, text)

    compare(f"causes-{part}.txt", answers())


MODULES = sorted({function.__module__ for _, function in CAUSES.values()})


def mixed(module: ModuleType, seed: object) -> Told:
    """A few events that a module asks for, near and far, of some hosts and files; most after an excerpt."""
    pool = tags(module)
    texts = [text for rule, text in SAID if rule in CAUSES and module_of(rule) is module]
    told = read(texts[below(len(texts), seed)]) if below(3, seed, "alone") else Told(())
    line, events = max((e.line for e in told.events), default=0), [*told.events]
    for n in range(1 + below(5, seed, "count")):
        tag = pool[below(len(pool), seed, n, "tag")]
        one = known()[tag][below(len(known()[tag]), seed, n, "event")]
        line += (0, 1, 1, 3, 250)[below(5, seed, n, "line")]
        host = ("n0", "n1", "", one.host)[below(4, seed, n, "host")]
        rank = (0, 1, 3, one.rank)[below(4, seed, n, "rank")]
        events.append(dataclasses.replace(one, line=line, file=below(6, seed, n) // 5, host=host, rank=rank))
    comms = [
        Comm(f"n{n % 2}", str(n), "0x1", n, 1 + below(4, seed, "size"), "", "0x9", None, True, bool(below(2, seed, "done", n)))
        for n in range(max(0, below(6, seed, "comms") - 2))
    ]  # fmt: skip
    return Told(
        tuple(events),
        (*told.communicators, *comms),
        {**told.repeats, "step": (0, 0, 1, 5)[below(4, seed, "steps")]},
    )


@pytest.mark.parametrize("name", MODULES)
def test_mixed_events_are_judged_as_before(name: str) -> None:
    module = sys.modules[name]
    own = {rule: function for rule, (_, function) in CAUSES.items() if function.__module__ == name}

    def answers() -> Iterator[str]:
        for seed in range(MIXED):
            told = mixed(module, (name, seed))
            shown = [f"  {rule} {line}" for rule, function in own.items() for line in found(function, told)]
            if shown:
                yield f"{seed}"
                yield from shown

    compare(f"mixed-{name.rpartition('.')[2]}.txt", answers())


def test_a_run_is_known_to_have_failed_as_before() -> None:
    def signs_of(told: Told) -> str:
        story = told.story()
        return f"{bool(story.outcome.failed)} {bool(story.outcome.hang)} {story.outcome.went_on} {story.outcome.trained}"

    def answers() -> Iterator[str]:
        for tag, events in sorted(known().items()):
            for n, event in enumerate(events[:4]):
                alone = Told((event,))
                yield f"{tag} {n} {signs_of(alone)} {is_unwinding(event)} {signs.is_of_a_peer(event)}"
                story = alone.story()
                yield f"  {signs.of_the_web(event)} {made_do(event)} {story.nodes_wanted()} {story.spans_hosts}"

    compare("signs.txt", answers())


# --- what was counted and recorded


def coll(rank: int, calls: str, host: str = "") -> list[str]:
    """COLL lines of one rank: a letter a call."""
    kinds = {"a": "AllReduce", "b": "Broadcast", "g": "AllGather"}
    head = f"{host or f'n{rank // 2}'}:{100 + rank}:{100 + rank} [{rank % 2}] NCCL INFO"
    return [
        f"{head} {kinds[one.lower()]}: opCount {n:x} sendbuff 0x1 recvbuff 0x2 count {8 + one.isupper()} datatype 7 op 0 "
        f"root 0 comm 0x{rank + 1}f [nranks=4] stream 0x5"
        for n, one in enumerate(calls)
    ]


COUNTED: dict[str, tuple[str, ...]] = {
    "agree": ("aab", "aab", "aab", "aab"),
    "one behind": ("aabg", "aab", "aabg", "aabg"),
    "two behind": ("aabgaa", "a", "aabgaa", "aab"),
    "kind": ("aabg", "aabb", "aabg", "aabg"),
    "count": ("aabg", "aaBg", "aabg", "aabg"),
    "left out": ("agbga", "agga", "agbga", "agbga"),
    "two apart": ("aabg", "aaag", "aabg", "aaBG"),
}
ENDINGS = (
    "",
    "[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, "
    "OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
)


@pytest.mark.parametrize("name", COUNTED)
def test_counted_calls_are_judged_as_before(tmp_path: Path, name: str) -> None:
    def answers() -> Iterator[str]:
        for number, ending in enumerate(ENDINGS):
            for shape in ("in one file", "by file"):
                folder = tmp_path / f"{number} {shape}"
                folder.mkdir()
                for rank, calls in enumerate(COUNTED[name]):
                    path = folder / ("job.log" if shape == "in one file" else f"rank{rank}.log")
                    with path.open("a") as file:
                        file.write(
                            "\n".join([*coll(rank, calls), *([ending] if ending and rank == 0 else []), ""])
                        )
                yield f"{number} {shape}"
                for one in read_logs([str(folder)]).causes:
                    lines = " ".join(f"{e.file}:{e.line}" for e in one.evidence)
                    yield f"  {one.severity} {one.confidence} {one.rule} {one.nodes} {one.ranks} {one.text} ({lines})"

    compare(f"counted-{name.replace(' ', '-')}.txt", answers())


@dataclasses.dataclass(frozen=True)
class Left:
    """What a run left: dumps of the recorder, written so long after their last call; and lines."""

    dumps: Mapping[int, Mapping[str, Any]]
    age_s: float = 40.0
    told: Told = Told(())

    def story(self) -> LogEvidence:
        flights = {rank: from_data(one) for rank, one in self.dumps.items()}
        made = {}
        for rank, one in flights.items():
            bare = Dump(f"{rank}.dump", rank, one)
            made[rank] = dataclasses.replace(bare, written_s=bare.last_ns / 1e9 + self.age_s)
        recorded = Recorded(made)
        told = self.told.story()
        scans = [Scan([*told.events], Counter(), told.communicators)]
        return LogEvidence([*told.files, *recorded.infos()], scans, recorded=recorded)


STEPS = [call(), call("broadcast", 3), call(size=[2, 3])]
AHEAD = dump([*STEPS, waits(size=100, retired=True)], ranks=range(3))
FAR = dump([*STEPS, waits(size=100)], ranks=range(4))
IN_PAIR = dump([*STEPS, call(size=3, group="2:tp"), waits(size=4, group="2:tp")])
DUMPS: dict[str, dict[int, Any]] = {
    "agree": {0: dump(STEPS), 1: dump(STEPS)},
    "behind": {0: AHEAD, 1: dump(STEPS), 2: AHEAD},
    "behind, unsure": {0: FAR, 1: dump(STEPS), 2: FAR},
    "in another group": {0: AHEAD, 1: IN_PAIR, 2: AHEAD, 3: dump([*STEPS, call(size=3, group="2:tp")])},
    "in a transfer": {0: AHEAD, 1: dump([*STEPS, waits("recv 1<-0", 3, is_p2p=True, group="3:pp")]), 2: AHEAD},
    "another call": {0: AHEAD, 1: dump([*STEPS, waits("barrier", retired=True)]), 2: AHEAD},
    "another version": {0: AHEAD, 1: dump([*STEPS, waits("barrier")], "2.3"), 2: AHEAD},
    "lost": {0: AHEAD, 1: dump(STEPS, lost=2), 2: dump([*STEPS, waits("barrier")], lost=3)},
    "all stand": {0: AHEAD, 1: AHEAD, 2: AHEAD},
    "one unseen": {0: FAR, 1: FAR, 3: FAR},
    "alone": {0: FAR},
    "left out": {0: dump([*STEPS, call("barrier"), *STEPS]), 1: dump([*STEPS, *STEPS]), 2: dump([*STEPS, call("barrier"), *STEPS])},
}  # fmt: skip
FINDERS = tuple(CAUSES[name][1] for name in ("rank-fell-behind", "collective-mismatch", "collective-stalled"))


def judged(left: Left) -> Iterator[str]:
    for function in FINDERS:
        for one in function(left.story()):
            lines = " ".join(f"{e.file}:{e.line}:{e.text}" for e in one.evidence)
            yield f"{one.severity} {one.confidence} {one.nodes} {one.ranks} {one.text} ({lines})"


@pytest.mark.parametrize("part", range(2))
def test_dumps_beside_lines_are_judged_as_before(part: int) -> None:
    def answers() -> Iterator[str]:
        for name in part_of(DUMPS, part, 2):
            for number, text in enumerate(ENDINGS):
                comms = tuple(
                    Comm(f"n{n // 2}", str(n), "0x1", n, 5, "", "0x9", None, True, True) for n in range(3)
                )
                told = dataclasses.replace(read(text), communicators=comms if number == 1 else ())
                for age_s in (2.0, 599.0) if number == 0 else (40.0,):
                    yield f"{name} {number} {age_s}"
                    yield from sweep(
                        Left(DUMPS[name], age_s, told), judged, seed=(name, number), most=20, each=1
                    )

    compare(f"recorded-{part}.txt", answers())
