"""
One file's lines as a summary of bounded size: events, and the number of their repetitions.

Pure.  Of each tag and source the first few events and the last ones are stored; repetitions are counted, not
stored (a dead peer prints 187,294 equal lines in six seconds).
"""

from __future__ import annotations

import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ringup.logs.appended import LastRun
from ringup.logs.counts.model import Comm
from ringup.logs.forms import Clue, Clues, severity_of
from ringup.logs.labels import LONGEST_LABEL, MOST_LINES, Labels, collected_as, front_of
from ringup.logs.lines import (
    DAY_S,
    LINE_BYTES,
    TEXT_CHARS,
    Event,
    Head,
    begins_a_record,
    body_of,
    excerpt,
    gate,
    head_of,
    is_syslog,
    matches,
    message_of,
    seconds_of,
    short_name,
    texts_of,
    unstamped,
)
from ringup.logs.patterns import OF_ROLE, SETTING_UP, TAGS
from ringup.logs.patterns.tags import Pattern
from ringup.nccl.lines import LISTED_ADDRESS, bounded

LAST_KEPT = 2

MAX_KEYS = 4_000
"""Tags times sources of one file, for a set-up and for all else; of more, only a few are stored."""

FEW_SPEAKERS = 16
"""Sources of one tag that are always stored."""

FEW_CHANNELS = 2
"""Lines of a source for one transport between ranks; there are hundreds alike."""

MAX_EVENTS = 24_000
"""Of one file; a kibibyte each.  If there are more, one of each tag and source is stored."""

LISTED_SOCKET = re.compile(bounded(LISTED_ADDRESS))
_LIBRARY_FRAME = re.compile(
    r"site-packages|dist-packages|/lib/python|/lib64/python|<frozen|torch/distributed|/runpy\.py|/rank_main\.py"
    r"|/bin/(?:accelerate|torchrun|deepspeed|horovodrun)$"
)

_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w{0,60}\.){1,12}[A-Za-z]\w{1,80}|[A-Z]\w{2,80}(?=:)|Stop(?:Async)?Iteration$)"
    r"(?:: (?!\[?(?:WARNING|INFO|DEBUG|ERROR)\b)(?P<text>.*))?$"
)
_OF_A_TRACEBACK = re.compile(r", line \d{1,7}, in ")
"""Dumps of running threads are without the comma."""
_CLASS = re.compile(r"(?:\w+\.)+[A-Z]|.*(?i:error|timeout|exception|iteration)$")
_NOT_RAISED = re.compile(
    r".*(?:Warning|Logger)|[A-Z]{3,20}"
    r"|(?:Note|Info|Error|Usage|Message|Arguments|Rank|Step|Epoch|Loss|Last|Node|Job|Task|Hostname|Host|Device|Name|Model|Time)\d*"
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
_BEGINS_ANEW = re.compile(
    r"(?i)[EWIF]\d{4} \d\d:|(?:global[ _]?)?(?:step|epoch|iter)|srun: |slurmstepd: |\S{1,80}: line \d+: |\["
    r"|terminate called |Fatal Python error: "
)
"""A line that may be of any rank, whichever rank printed the line above it."""
_TITLE = re.compile(
    r"(?i)error|exception|fail|fatal|critical|warn|" + TAGS["made-do"].patterns[0].regex.pattern
)
"""Words of a message above the traceback that its program prints for it."""
_OUTERMOST = ("<module>", "_run_module_as_main")
"""Where a traceback begins that nobody caught: one that is caught begins where it is caught."""
SCARY = TAGS["scare"].patterns
_TELLING = OF_ROLE["failure"] | OF_ROLE["hang"] | {"warn", "exception", "xid", "oom-kill"}
"""Tags of lines that are read for the reason of the failure, whatever their words."""

MOST_LOOKS = 4_000
"""Different lines with words of a failure that are read in a file; of the rest only the last ones."""
MOST_LATE = 400

MOST_OF_A_REPLY = 40
_ENDS_A_REPLY = re.compile(
    r"(?i)^#|<\|(?:im_end|eot_id|endoftext|im_start|start_header|user|assistant)|</s>|^Traceback \("
    r"|\bstep\b|\bepoch\b|\bloss\b|\d%\||^\[|^\S{1,80}(?::\d+|\[\d+\]): |: line \d+: |^srun: |^slurmstepd: "
    r"|NCCL (?:INFO|WARN)|^terminate called|^Fatal Python error|^(?:Killed|Aborted|Bus error|Segmentation)"
)
MOST_OF_A_BLOCK = 24
"""Lines of a framed text, without the frame."""
BELOW_A_FRAME = 4
"""Lines from a frame to the exception: the code, and marks below it."""


@dataclass
class Scan:
    """The events of one file."""

    events: list[Event] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    """Lines of each tag, including those that are not stored."""
    communicators: list[Comm] = field(default_factory=list)
    """From the counter."""
    cut: int = 0
    """Lines with relevant text that are too long to be read whole."""
    open_frame: int = 0
    """The last line of a traceback whose exception has not come, 0 where all have."""
    began: tuple[int, float] | None = None
    """The first line with a program's own date, and its time; syslog writes months in letters."""
    headless: bool = False
    """Whether it begins inside a traceback."""
    clues: list[Clue] = field(default_factory=list)
    """Lines that may explain the failure, by their form."""
    last_run: LastRun = field(default_factory=LastRun)
    """Of a file of several runs, the one that was read."""
    is_broken_off: bool = False
    """Whether it is a compressed file without its end."""
    lines: int = 0
    """Of the file, if a terminal has broken them; they were read joined."""


class Match(NamedTuple):
    """The parts of an event, before it is stored; most are not."""

    tag: str
    line: int
    fields: dict[str, str]
    head: Head
    text: str
    place: int

    def event(self) -> Event:
        """The event of the first file, with the part of the line to show."""
        head = self.head
        text = excerpt(self.text, self.place)
        return Event(self.tag, 0, self.line, text, self.fields, *head[:5], head.time_s)


class Scanner:
    """Give it lines in order; `result()` is their summary."""

    def __init__(self) -> None:
        self._gate = gate()
        self.words = self._gate.words
        """Lines without any of these are skipped, except those that `take` requests."""
        self._beginning: list[tuple[int, bytes, bytes | None]] = []
        self._first: dict[tuple[str, str], list[Event]] = {}
        self._last: dict[tuple[str, str], list[Match | Event]] = {}
        self._repeats: Counter[str] = Counter()
        self._keys = [0, 0]
        self._speakers: Counter[str] = Counter()
        self._kept = 0
        self._open: dict[str, str] = {}
        self._framed: tuple[str, int] = ("", -9)
        self._innermost: Match | None = None
        self._code = -9
        """The last line of source below a frame."""
        self._call_stack = -9
        """The last frame of the stack that Python's logging prints below its own error."""
        self._asserted: tuple[int, str] = (-9, "")
        self._notes: dict[str, dict[str, str]] = {}
        """Of each source: what the lines above its next exception say of that."""
        self._titled: tuple[str, int] = ("", -9)
        self._made_do: tuple[str, int] = ("", -9)
        self._title, self._title_line = "", 0
        self._summary: dict[str, dict[str, str]] = {}
        self._near: tuple[int, Head] = (0, Head())
        self._is_title = False
        self._read_on = 0
        """Up to this line number, lines are read that no pattern fits."""
        self._last_error = -9
        self._headless = False
        self._began: tuple[int, float] | None = None
        self._quotes = False
        self._reply = 0
        """Up to this line number, lines may be a model's text."""
        self._indent = 0
        """Blanks in front of every line, or of a block of code in Markdown."""
        self._cut = 0
        self._front: re.Pattern[bytes] | None = None
        self._labels = Labels()
        self._clues = Clues()
        self._ruled_off = -99
        """The first line of a block that Open MPI frames."""
        self._not_raised = self._raised = 0
        """The last line whose exception Python only reports."""
        self._looks = 0
        self._late: deque[tuple[int, bytes]] = deque(maxlen=MOST_LATE)

    def take(self, number: int, raw: bytes, words: bytes | None = None) -> int:
        """
        Take a line without its newline, with the numbers of its words if known.

        Most are dropped after one check.  Returns the line number up to which every line is wanted, whatever
        it contains.
        """
        if not self._labels.learning:
            self._look(number, self._behind_front(raw), words)
            return self._read_on
        self._beginning.append((number, raw, words))
        if len(self._beginning) >= MOST_LINES:
            self._learn()
        return sys.maxsize if self._labels.learning else self._read_on

    def _learn(self) -> None:
        """Learn the form of labels from the stored lines, and read these."""
        few, self._beginning = self._beginning, []
        below = next((number for number, raw, _ in few[1:] if raw.strip()), 0)
        if few and few[0][0] == 1 and few[0][1].startswith(b"# ") and below != 2:
            few[0], self._title_line = (1, few[0][1][2:], None), 1  # a thread's title, as Markdown's heading
        lines = [raw for _, raw, _ in few if raw.strip()]
        self._front, self._clues.collected = front_of(lines), collected_as(lines)
        few = [(number, self._behind_front(raw), words) for number, raw, words in few]
        texts = (texts_of(raw[:LINE_BYTES])[:1] for _, raw, _ in few)
        self._labels.learn(unstamped(text[:LONGEST_LABEL]) for first in texts for text in first)
        self._quotes = 2 * sum(raw.startswith(b"> ") for _, raw, _ in few) < len(few)
        blanks = [len(raw) - len(raw.lstrip(b" \t")) for _, raw, _ in few if raw.strip()]
        self._indent = min(blanks, default=0)
        block = [count for count in blanks if count >= 4]
        if (
            not self._indent
            and len(block) >= 3 * blanks.count(0)
            and len(block) + blanks.count(0) == len(blanks)
        ):
            self._indent = min(block, default=0)  # Markdown's, below a person's words
        for number, raw, _ in few:
            text = (texts_of(raw[:LONGEST_LABEL]) or [""])[0]
            time_s = None if self._began or is_syslog(text) else seconds_of(text)
            if time_s is not None and time_s > DAY_S:
                self._began = number, time_s
        for one in few:
            self._look(*one)

    def _behind_front(self, raw: bytes) -> bytes:
        match = self._front.match(raw) if self._front else None
        return raw[match.end() :] if match else raw

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
        events += [self._innermost.event()] if open_frame and self._innermost else []
        events.sort(key=lambda e: e.line)
        return Scan(
            events,
            self._repeats,
            cut=self._cut,
            open_frame=open_frame,
            began=self._began,
            headless=self._headless,
            clues=self._clues.result(),
        )

    def _take(self, number: int, raw: bytes, patterns: tuple[Pattern, ...]) -> None:
        self._cut += len(raw) > LINE_BYTES and b"\r" not in raw  # a progress bar writes over itself
        indent = 0 if raw[: self._indent].strip() else self._indent
        for text in texts_of(raw[indent:]):
            self._read(number, raw, text, patterns)

    def _read(self, number: int, raw: bytes, text: str, patterns: tuple[Pattern, ...]) -> None:
        if quoted := QUOTED_CODE.match(text):
            text = quoted[0]
        elif AFTER_THE_RUN.match(text) or OF_A_CANDIDATE.search(text):
            return
        head: Head | None = None
        tags: set[str] = set()
        # By `ringup run`; it continues with the usual meaning of such an end.
        is_ours = text.startswith(("first failure", "hung after", "hung, ended"))
        is_scary = SCARY[0] in patterns
        patterns = tuple(p for p in patterns if p is not SCARY[0]) if is_scary else patterns
        is_code = self._is_code(number, text)
        for tag, fields, place in matches(text, patterns, self._labels, is_code=is_code):
            if is_ours and not fields.get("first"):
                continue
            if head is None:
                head = self._head(number, text)
            if tag == "ruled-off":
                self._frame_a_block(number)
            tags.add(tag)
            self._dispatch(Match(tag, number, fields, head, text, place))
        if is_code:
            return
        if number <= self._read_on and "exception" not in tags:
            tags |= self._without_pattern(number, text)
        if is_scary or tags & _TELLING or number <= self._read_on:
            self._look_closer(number, raw, text, head, tags, is_scary)

    def _is_code(self, number: int, text: str) -> bool:
        """Whether a line is quoted by `> `, or is source below a frame, which Python indents by four."""
        if self._quotes and text.startswith("> ") and unstamped(text[2:]) == text[2:]:
            return True
        if number <= self._reply:
            # Its end, another turn, a program's record or step, or a traceback, which may be the program's.
            if not (_ENDS_A_REPLY.search(text) or seconds_of(text) or self._labels.split(text)[0]):
                return True
            self._reply = number if "<|" in text else 0
        if number - 1 not in (self._framed[1], self._code):
            return False
        body = body_of(text, self._labels)
        if not body.startswith("    "):
            return False
        self._code = number
        self._asserted = (number, body.strip()) if "assert " in body else self._asserted
        return True

    def _look_closer(
        self, number: int, raw: bytes, text: str, head: Head | None, tags: set[str], is_scary: bool
    ) -> None:
        """Take a line that may explain the failure: by its words, or by the line above."""
        if tags.isdisjoint(_TELLING) and number > self._read_on and self._clues.again(raw, number):
            return
        if self._looks >= MOST_LOOKS:
            self._late.append((number, raw[: 2 * LINE_BYTES]))
            return
        head = self._head(number, text) if head is None else head
        source = head.source
        if not (is_scary or tags & _TELLING or self._clues.awaits(source, number)):
            return
        if 1 < number - self._ruled_off <= MOST_OF_A_BLOCK and tags.isdisjoint(_TELLING):
            return  # the first line of Open MPI's text is its title, the others explain it
        if number == self._not_raised or (
            self._framed[0] == source and self._framed[1] == number - 1 and not tags
        ):
            return  # code below a frame
        self._looks += 1
        tags = {*tags, "made-do"} if self._made_do == (source, number) else tags
        tags = {*tags, "raised"} if self._raised == number else tags
        message, is_plain = message_of(text, self._labels), tags.isdisjoint(_TELLING)
        if self._clues.take(number, raw, text, message, head, tags, is_plain):
            self._read_on = max(self._read_on, number + 1)

    def _without_pattern(self, number: int, text: str) -> set[str]:
        """The tag of a line by its place: NCCL's last error below its title, any exception below frames."""
        body, head = body_of(text, self._labels), self._head(number, text)
        if self._last_error == number - 1:
            self._keep(Match("last-error", number, {"text": body.strip()}, head, text, 0))
            return {"warn"}
        if 0 < number - self._ruled_off <= MOST_OF_A_BLOCK and body.strip():
            self._keep(Match("ruled-off", number, {"text": body.strip()}, head, text, 0))
        found = _RAISED.match(body.lstrip("\t"))
        if found is None or _NOT_RAISED.fullmatch(found["type"]):
            if found and found["type"].endswith("Warning") and "ignored" in self._notes.get(head.source, ()):
                del self._notes[head.source]
                self._open.pop(head.source, None)
            return set()
        if found["text"] is None and not _CLASS.match(found["type"]):
            return set()  # a name that the end of the log cuts off
        # Right below the code any name is a class; further down it may begin a line of the program.
        is_next = head.rank is not None or number - 1 in (self._framed[1], self._code)
        is_raised = is_next or _CLASS.match(found["type"])
        if is_raised and self._framed[0] == (source := head.source) and source in self._open:
            self._dispatch(Match("exception", number, found.groupdict(""), head, text, 0))
            return {"exception"}
        return set()

    def _head(self, number: int, text: str) -> Head:
        """The line's own head; a line without any belongs to the one just before it (wrapped records)."""
        head = head_of(text, self._labels)
        if number == self._title_line:
            return head._replace(label="#")  # a text of its own: the log below does not follow it in time
        near_line, near = self._near
        is_near = number - near_line <= 2 and head.label == near.label
        is_near = is_near and not (begins_a_record(text) or _BEGINS_ANEW.match(text))
        is_titled = not text.startswith("Traceback (") or near_line == number or self._is_title
        if head.rank is None and not head.pid and is_near and is_titled:
            head = head._replace(rank=near.rank, host=head.host or near.host)
        self._is_title = bool(_TITLE.search(text))
        self._near = (number, head)
        return head

    def _dispatch(self, match: Match) -> None:
        tag, fields, head = match.tag, match.fields, match.head
        source = head.source
        if tag == "reply-began":
            self._reply = self._read_on = match.line + MOST_OF_A_REPLY
            return
        if tag == "call-stack" or (tag == "frame" and match.line - self._call_stack < BELOW_A_FRAME):
            self._call_stack = match.line
            return
        if tag == "made-do":
            self._made_do, self._title = (source, match.line), match.text
            return
        if tag == "traceback":
            self._open[source] = ""
            self._titled = source, match.line
            self._clues.title(source, match.line - 1)
            if self._made_do == (source, match.line - 1):
                severity = severity_of(self._title, message_of(self._title, self._labels))
                if severity != "info":  # a skipped step is not a title
                    self._note(source, "logged" if severity else "handled")
        elif tag == "frame":
            if self._titled == (source, match.line - 1) and fields.get("function") in _OUTERMOST:
                self._note(source, "uncaught")
            self._frame(source, match)
            self._read_on = match.line + BELOW_A_FRAME
        elif tag == "last-error" and not fields["text"]:
            self._last_error, self._read_on = match.line, max(self._read_on, match.line + 1)
            return
        elif tag in ("ignored", "thread"):
            self._note(source, tag)
            return
        elif tag == "exception":
            frame, notes = self._open.pop(source, None), self._notes.pop(source, {})
            if "ignored" in notes:
                self._not_raised = match.line
                return
            match = match._replace(fields={**fields, **self._raised_below(frame, match), **notes})
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
            # a bar that was redrawn: its last state
            *_, last = TAGS[tag].patterns[0].regex.finditer(match.text)
            match = match._replace(fields={k: v for k, v in last.groupdict().items() if v is not None})
        elif tag == "socket-list":
            for index, name, address in LISTED_SOCKET.findall(match.text):
                self._keep(match._replace(fields={"index": index, "interface": name, "address": address}))
            return
        self._keep(match)

    def _frame_a_block(self, number: int) -> None:
        is_end = 0 < number - self._ruled_off <= MOST_OF_A_BLOCK + 1
        self._ruled_off = -99 if is_end else number
        self._read_on = max(self._read_on, number + MOST_OF_A_BLOCK * (not is_end))

    def _raised_below(self, frame: str | None, match: Match) -> dict[str, str]:
        """The fields of an exception from the frames above it."""
        below = self._framed[0] == match.head.source and 0 < match.line - self._framed[1] < 5
        extra = {"frame": frame or "", "traceback": "yes" if frame is not None or below else ""}
        extra["inner"] = self._innermost.fields.get("file") or "" if below and self._innermost else ""
        if below and self._asserted[0] > self._framed[1] and not match.fields.get("text"):
            extra["text"] = self._asserted[1]  # an assertion without a message
        self._raised = match.line if extra["traceback"] else self._raised
        return extra

    def _note(self, source: str, what: str) -> None:
        self._notes.setdefault(source, {})[what] = "yes"
        if len(self._notes) > MAX_KEYS:
            self._notes.clear()

    def _frame(self, source: str, match: Match) -> None:
        """Remember the innermost line of the user's own code."""
        is_first = not self._repeats["traceback"] and match.line <= BELOW_A_FRAME
        self._headless = self._headless or (is_first and "function" in match.fields)
        self._framed, self._innermost = (source, match.line), match
        file = match.fields.get("file") or ""
        mine = not _LIBRARY_FRAME.search(file)
        if source in self._open or mine or _OF_A_TRACEBACK.search(match.text):
            kept = self._open.get(source, "")
            self._open[source] = f"{file}:{match.fields.get('number') or ''}" if mine or not kept else kept
            if len(self._open) > MAX_KEYS:
                self._open.clear()

    def _keep(self, match: Match) -> None:
        n, of = (match.fields.get(name) or match.fields.get(f"{name}2") for name in ("n", "of"))
        is_part = match.tag == "finished" and n != of  # of the steps
        key = None if is_part else self._key(match)
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
        The tag and its source; None if the maximum number of sources is stored.

        Messages that all ranks print at their set-up must leave room for those about a failure of one: of
        more ranks than fit they are stored by host, and every tag has room for a few.
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
        """Number that is stored of a tag and source: smaller, the more is already stored."""
        if self._kept >= MAX_EVENTS:
            return 1
        via = match.fields.get("via") or ""
        if match.tag == "channel" and sum(e["via"] == via for e in first) >= FEW_CHANNELS:
            return 0
        return TAGS[match.tag].keep


def _ended(match: Match, known: dict[str, str]) -> Match:
    """A process's end, with the earlier rows about it in the launcher's table."""
    fields, head = match.fields, match.head
    rank = fields.get("rank") or known.get("rank") or known.get("rank2")
    host = known.get("host") or fields.get("host") or head.host
    number = int(rank) if rank and len(rank) < 9 else head.rank
    return match._replace(fields={**known, **fields}, head=head._replace(host=host, rank=number))


def joined(scan: Scan, file: int, comms: Iterable[Comm] = ()) -> Scan:
    """The scan of a file, its number in each event, and its counted communicators."""
    events = [replace(e, file=file) for e in scan.events]
    clues = [replace(s, event=replace(s.event, file=file)) for s in scan.clues]
    named = [replace(c, host=short_name(c.host)) for c in comms]
    return replace(scan, events=events, clues=clues, communicators=named)


def on_lines(scan: Scan, line: Callable[[int], int], count: int) -> Scan:
    """The scan with other line numbers: those of the file of `count` lines from which it was joined."""
    events = [replace(e, line=line(e.line)) for e in scan.events]
    clues = [replace(s, event=replace(s.event, line=line(s.event.line))) for s in scan.clues]
    began = (line(scan.began[0]), scan.began[1]) if scan.began else None
    return replace(
        scan, events=events, clues=clues, began=began, open_frame=line(scan.open_frame), lines=count
    )
