"""
One file's lines folded into a summary of bounded size: events, and how often each was repeated.

Pure.  Of each tag and source the first few events and the last ones are kept; what
repeats is counted, not stored (a dead peer prints 187,294 alike lines in six seconds).
"""

from __future__ import annotations

import re
import sys
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ringup.logs.counts.model import Comm
from ringup.logs.forms import Clue, Clues, Line
from ringup.logs.labels import LONGEST_LABEL, MOST_LINES, Labels
from ringup.logs.lines import (
    LINE_BYTES,
    TEXT_CHARS,
    Event,
    Head,
    body_of,
    excerpt,
    gate,
    head_of,
    matches,
    message_of,
    short_name,
    texts_of,
    unstamped,
)
from ringup.logs.patterns import OF_ROLE, SETTING_UP, TAGS
from ringup.logs.patterns.tags import Pattern
from ringup.nccl.lines import LISTED_ADDRESS, bounded

LAST_KEPT = 2

MAX_KEYS = 4_000
"""Tags times sources of one file, for a set-up and for all else; of more a few are kept, or one a host."""

FEW_SPEAKERS = 16
"""Sources of one tag that are always heard."""

FEW_CHANNELS = 2
"""Lines of a source for one way between ranks; there are hundreds alike."""

MAX_EVENTS = 24_000
"""Of one file; a kibibyte each.  When there are more, one of each tag and source is kept."""

LISTED_SOCKET = re.compile(bounded(LISTED_ADDRESS))
_LIBRARY_FRAME = re.compile(
    r"site-packages|dist-packages|/lib/python|/lib64/python|<frozen|torch/distributed|/runpy\.py|/rank_main\.py"
    r"|/bin/(?:accelerate|torchrun|deepspeed|horovodrun)$"
)

_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){1,12}[A-Za-z]\w{1,80}|[A-Z]\w{2,80}(?=:))(?:: (?P<text>.*))?$"
)
_NOT_RAISED = re.compile(
    r".*(?:Warning|Logger)|(?:Note|Info|Error|Usage|Rank|Step|Epoch|Loss|Last|Node|Job|Task)\d*"
)
_AT = r"[^\s:]{1,200}:\d+"
QUOTED_CODE = re.compile(
    rf" *(?:(?:\d+ (?:ranks|processes)|(?:rank|process) \d+) \([^)]{{1,400}}\): {_AT}(?: in [^\s:]{{1,200}})?"
    rf"|(?: {{2}}|rank \d+: ){_AT} in [^\s:]{{1,200}}): "
)
"""A rank's place in its code as `ringup stacks` and the hang report print it; source code follows."""
AFTER_THE_RUN = re.compile(r"warning [^\s:]{1,80}: could not be checked after the run: ")
"""By `ringup run`, of a node that it had lost before."""
OF_A_CANDIDATE = re.compile(r"\btorch/_inductor/(?:select_algorithm|autotune_process)\.py:\d{1,6}\]")
"""By the logger of torch.compile's autotuning: a kernel that it tried and rejects; others remain."""
SCARY = TAGS["scare"].patterns
_TELLING = OF_ROLE["failure"] | OF_ROLE["hang"] | {"warn", "exception", "xid", "oom-kill"}
"""Tags of lines that are looked at for why the run failed, whatever words they hold."""

MOST_LOOKS = 4_000
"""Different lines with words of failing that are read in a file; of the rest only the last ones are."""
MOST_LATE = 400

BELOW_A_FRAME = 4
"""Lines from a frame to the exception: the code, and marks below it."""


@dataclass
class Scan:
    """The events of one file."""

    events: list[Event] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    """Lines of each tag, those that are not kept too."""
    communicators: list[Comm] = field(default_factory=list)
    """From the counter."""
    cut: int = 0
    """Lines that hold something to read and are too long to be read whole."""
    open_frame: int = 0
    """The last line of a traceback whose exception has not come, 0 where all have."""
    headless: bool = False
    """Whether it begins amid a traceback."""
    clues: list[Clue] = field(default_factory=list)
    """Lines that may tell why the run failed, by their form."""


class Match(NamedTuple):
    """What an event is made of, where it is kept; most are not."""

    tag: str
    line: int
    fields: dict[str, str]
    head: Head
    text: str
    """The whole line."""
    place: int

    def event(self) -> Event:
        """The event of the first file, with the part of the line worth showing."""
        head = self.head
        text = excerpt(self.text, self.place)
        return Event(self.tag, 0, self.line, text, self.fields, *head[:5], head.time_s)


class Scanner:
    """Give it lines in order; `result()` is what is left of them."""

    def __init__(self) -> None:
        self._gate = gate()
        self.words = self._gate.words
        """Lines without any of these are of no interest, but for those that `take` asks for."""
        self._beginning: list[tuple[int, bytes, bytes | None]] = []
        self._first: dict[tuple[str, str], list[Event]] = {}
        self._last: dict[tuple[str, str], list[Match | Event]] = {}
        self._repeats: Counter[str] = Counter()
        self._keys = [0, 0]
        self._speakers: Counter[str] = Counter()
        self._kept = 0
        self._open: dict[str, str] = {}
        self._framed: tuple[str, int] = ("", -9)
        self._ignored: set[str] = set()
        self._made_do: tuple[str, int] = ("", -9)
        self._handled: set[str] = set()
        self._summary: dict[str, dict[str, str]] = {}
        self._near: tuple[int, Head] = (0, Head())
        self._read_on = 0
        """Up to this line number lines are read that no pattern fits."""
        self._last_error = 0
        self._headless = False
        self._cut = 0
        self._labels = Labels()
        self._clues = Clues()
        self._not_raised = 0
        """The last line whose exception Python only reports."""
        self._looks = 0
        self._late: deque[tuple[int, bytes]] = deque(maxlen=MOST_LATE)

    def take(self, number: int, raw: bytes, words: bytes | None = None) -> int:
        """
        Take a line without its newline, with the numbers of the words in it where these are known.

        Most are dropped after one look.  The answer: up to which line number every line is wanted, whatever
        it holds.
        """
        if not self._labels.learning:
            self._look(number, raw, words)
            return self._read_on
        self._beginning.append((number, raw, words))
        if len(self._beginning) >= MOST_LINES:
            self._learn()
        return sys.maxsize if self._labels.learning else self._read_on

    def _learn(self) -> None:
        """Learn the form of labels from the lines held back, and read these."""
        few, self._beginning = self._beginning, []
        texts = (texts_of(raw[:LINE_BYTES])[:1] for _, raw, _ in few)
        self._labels.learn(unstamped(text[:LONGEST_LABEL]) for first in texts for text in first)
        for one in few:
            self._look(*one)

    def _look(self, number: int, raw: bytes, words: bytes | None) -> None:
        patterns = self._gate(raw, words)
        if not patterns and number > self._read_on:
            return
        if patterns == SCARY and number > self._read_on:
            if self._clues.again(raw, number):
                return
            if self._looks >= MOST_LOOKS:
                self._late.append((number, raw[: 2 * LINE_BYTES]))
                return
        self._take(number, raw, patterns)

    def result(self) -> Scan:
        """The summary, with events in file order."""
        self._learn()
        self._looks = 0
        while self._late:
            self._take(*self._late.popleft(), SCARY)
        events = [e for kept in self._first.values() for e in kept]
        last = [match for kept in self._last.values() for match in kept]
        events += [match if isinstance(match, Event) else match.event() for match in last]
        source, line = self._framed
        open_frame = line if source in self._open else 0
        events.sort(key=lambda e: e.line)
        clues = self._clues.result()
        cut, headless = self._cut, self._headless
        return Scan(events, self._repeats, cut=cut, open_frame=open_frame, headless=headless, clues=clues)

    def _take(self, number: int, raw: bytes, patterns: tuple[Pattern, ...]) -> None:
        self._cut += len(raw) > LINE_BYTES and b"\r" not in raw  # a progress bar writes over itself
        for text in texts_of(raw):
            self._read(number, raw, text, patterns)

    def _read(self, number: int, raw: bytes, text: str, patterns: tuple[Pattern, ...]) -> None:
        if quoted := QUOTED_CODE.match(text):
            text = quoted[0]
        elif AFTER_THE_RUN.match(text) or OF_A_CANDIDATE.search(text):
            return
        head: Head | None = None
        tags: set[str] = set()
        # By `ringup run`; it goes on with what such an end may mean.
        is_ours = text.startswith(("first failure", "hung after"))
        is_scary = SCARY[0] in patterns
        patterns = tuple(p for p in patterns if p is not SCARY[0]) if is_scary else patterns
        for tag, fields, place in matches(text, patterns, self._labels):
            if is_ours and not fields.get("first"):
                continue
            if head is None:
                head = self._head(number, text)
            tags.add(tag)
            self._dispatch(Match(tag, number, fields, head, text, place))
        if number <= self._read_on and "exception" not in tags:
            tags |= self._without_pattern(number, text)
        if is_scary or tags & _TELLING or number <= self._read_on:
            self._look_closer(number, raw, text, head, tags, is_scary)

    def _look_closer(
        self, number: int, raw: bytes, text: str, head: Head | None, tags: set[str], is_scary: bool
    ) -> None:
        """Take a line that may tell why the run failed: by its words, or by the line above."""
        if tags.isdisjoint(_TELLING) and number > self._read_on and self._clues.again(raw, number):
            return
        if self._looks >= MOST_LOOKS:
            self._late.append((number, raw[: 2 * LINE_BYTES]))
            return
        head = self._head(number, text) if head is None else head
        source = _source(head)
        if not (is_scary or tags & _TELLING or self._clues.awaits(source, number)):
            return
        if number == self._not_raised or (
            self._framed[0] == source and self._framed[1] == number - 1 and not tags
        ):
            return  # code below a frame
        self._looks += 1
        tags = {*tags, "made-do"} if self._made_do == (source, number) else tags
        message, is_plain = message_of(text, self._labels), tags.isdisjoint(_TELLING)
        if self._clues.take(Line(number, raw, text, message, head, tags, source, is_plain)):
            self._read_on = max(self._read_on, number + 1)

    def _without_pattern(self, number: int, text: str) -> set[str]:
        """
        What a line says by its place: NCCL's last error below its title, an exception below a traceback.

        The last line of a traceback names the exception, whatever its class is called.
        """
        body, head = body_of(text, self._labels), self._head(number, text)
        if self._last_error == number - 1:
            self._keep(Match("last-error", number, {"text": body.strip()}, head, text, 0))
            return {"warn"}
        found = _RAISED.match(body)
        if found is None or _NOT_RAISED.fullmatch(found["type"]):
            return set()
        if self._framed[0] == (source := _source(head)) and source in self._open:
            self._dispatch(Match("exception", number, found.groupdict(""), head, text, 0))
            return {"exception"}
        return set()

    def _head(self, number: int, text: str) -> Head:
        """The line's own head; a line without any belongs to the one just before it (wrapped records)."""
        head = head_of(text, self._labels)
        near_line, near = self._near
        if head.rank is None and not head.pid and head.label == near.label and number - near_line <= 2:
            head = head._replace(rank=near.rank, host=head.host or near.host)
        self._near = (number, head)
        return head

    def _dispatch(self, match: Match) -> None:
        tag, fields, head = match.tag, match.fields, match.head
        source = _source(head)
        if tag == "made-do":
            self._made_do = source, match.line
            return
        if tag == "traceback":
            self._open[source] = ""
            if self._made_do == (source, match.line - 1):
                self._handled.add(source)
        elif tag == "frame":
            self._frame(source, match)
            self._read_on = match.line + BELOW_A_FRAME
        elif tag == "last-error" and not fields["text"]:
            self._last_error, self._read_on = match.line, max(self._read_on, match.line + 1)
            return
        elif tag == "ignored":
            self._ignored.add(source)
            return
        elif tag == "exception":
            frame = self._open.pop(source, None)
            if source in self._ignored:
                self._ignored.discard(source)
                self._not_raised = match.line
                return
            below = self._framed[0] == source and 0 < match.line - self._framed[1] < 5
            extra = {"frame": frame or "", "traceback": "yes" if frame is not None or below else ""}
            if source in self._handled:
                self._handled.discard(source)
                extra["handled"] = "yes"
            match = match._replace(fields={**fields, **extra})
        elif tag in ("summary-host", "summary-rank"):
            self._summary.setdefault(source, {}).update(fields)
            if len(self._summary) > MAX_KEYS:
                self._summary.clear()
            return
        elif tag == "exit":
            match = _ended(match, self._summary.pop(source, {}))
        elif tag == "env-set":
            for found in TAGS["env-set"].patterns[1].regex.finditer(match.text):
                more = {k: v for k, v in found.groupdict().items() if v}
                if more.get("name") != fields.get("name"):
                    self._keep(match._replace(fields=more, place=found.start()))
        elif tag == "progress":
            *_, last = TAGS[tag].patterns[0].regex.finditer(match.text)  # drawn over itself: as it stood last
            match = match._replace(fields={k: v for k, v in last.groupdict().items() if v is not None})
        elif tag == "socket-list":
            for index, name, address in LISTED_SOCKET.findall(match.text):
                self._keep(match._replace(fields={"index": index, "interface": name, "address": address}))
            return
        self._keep(match)

    def _frame(self, source: str, match: Match) -> None:
        """Remember the innermost line of the user's own code."""
        is_first = not self._repeats["traceback"] and match.line <= BELOW_A_FRAME
        self._headless = self._headless or (is_first and "function" in match.fields)
        self._framed = source, match.line
        file = match.fields.get("file") or ""
        mine = not _LIBRARY_FRAME.search(file)
        if source in self._open or mine:
            kept = self._open.get(source, "")
            self._open[source] = f"{file}:{match.fields.get('number') or ''}" if mine or not kept else kept
            if len(self._open) > MAX_KEYS:
                self._open.clear()

    def _keep(self, match: Match) -> None:
        key = self._key(match)
        if key is None:
            return
        first = self._first.setdefault(key, [])
        self._repeats[match.tag] += 1
        if len(first) < self._limit(match, first):
            first.append(match.event())
            self._kept += 1
        elif TAGS[match.tag].keep:
            last = self._last.setdefault(key, [])
            if len(last) >= (1 if self._kept >= MAX_EVENTS else LAST_KEPT):
                del last[0]
            last.append(match if len(match.text) <= TEXT_CHARS else match.event())

    def _key(self, match: Match) -> tuple[str, str] | None:
        """
        The tag and its source; None where as many sources are held as are kept.

        What all ranks say when they set up must leave room for what one of them fails of: of more ranks than
        fit it is kept by host, and of any tag there is room for a few.
        """
        tag, head = match.tag, match.head
        key = (tag, f"{head.host}:{head.pid}" if head.pid else head.label)
        if key in self._first:
            return key
        pool = tag in SETTING_UP
        if self._keys[pool] >= MAX_KEYS:
            if pool:
                key = (tag, head.host)
                if key in self._first:
                    return key
            if self._speakers[tag] >= FEW_SPEAKERS and self._keys[pool] >= 2 * MAX_KEYS * pool:
                return None
        self._keys[pool] += 1
        self._speakers[tag] += 1
        return key

    def _limit(self, match: Match, first: list[Event]) -> int:
        """How many are kept of a tag and source: the fewer, the more is held already."""
        if self._kept >= MAX_EVENTS:
            return 1
        via = match.fields.get("via") or ""
        if match.tag == "channel" and sum(e["via"] == via for e in first) >= FEW_CHANNELS:
            return 0
        return TAGS[match.tag].keep


def _source(head: Head) -> str:
    """Whose lines are one text: a rank's, else a label's or a host's."""
    return f"rank {head.rank}" if head.rank is not None else head.label or head.host


def _ended(match: Match, known: dict[str, str]) -> Match:
    """A process's end, with what the rows of the launcher's table before it told of it."""
    fields, head = match.fields, match.head
    rank = fields.get("rank") or known.get("rank") or known.get("rank2")
    host = known.get("host") or fields.get("host") or head.host
    number = int(rank) if rank and len(rank) < 9 else head.rank
    return match._replace(fields={**known, **fields}, head=head._replace(host=host, rank=number))


def joined(scan: Scan, file: int, comms: Iterable[Comm] = ()) -> Scan:
    """The scan of a file, its number in each event, and the communicators that were counted there."""
    events = [replace(e, file=file) for e in scan.events]
    clues = [replace(s, event=replace(s.event, file=file)) for s in scan.clues]
    named = [replace(c, host=short_name(c.host)) for c in comms]
    return replace(scan, events=events, clues=clues, communicators=named)
