"""
One file's lines folded into a summary of bounded size: events, communicators, last line.

Pure.  Of each tag and source the first few events and the last ones are kept; what
repeats is counted, not stored (a dead peer prints 187,294 alike lines in six seconds).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ringup.logs.lines import TEXT_CHARS, Event, Gate, Head, clean, excerpt, gate, head_of, matches
from ringup.logs.wordings.nccl import SETUP

FIRST_KEPT = 6
LAST_KEPT = 2
KEPT = {
    "channel": 64,
    "init": 512,
    "env-set": 200,
    "socket-list": 40,
    "exit": 32,
    "work": 24,
    "work-state": 24,
    "exception": 16,
    "frame": 0,
    "command": 40,
    "step": 2,
    "loss": 2,
    "progress": 3,
    "busy-word": 4,
    "unwind": 12,
    "warn": 12,
    "store-barrier": 16,
    "global-rank": 64,
    "ib-device": 64,
    "nccl-tests-row": 6,
    "coll": 4,
    "nccl-connect": 16,
    "visible-devices": 4,
}
"""How many of a tag are kept per source, where it is not `FIRST_KEPT`."""

MAX_KEYS = 4_000
"""Tags times sources of one file, for a set-up and for all else; of more a few are kept, or one a host."""

FEW_SPEAKERS = 16
"""Sources of one tag that are always heard."""

FEW_CHANNELS = 2
"""Lines of a source for one way between ranks; there are hundreds alike."""

MAX_EVENTS = 24_000
"""Of one file; a kibibyte each.  When there are more, one of each tag and source is kept."""

MAX_COMMUNICATORS = 4_096

_TOGETHER = {
    "init", "traceback", "frame", "ignored", "exception", "summary-host", "summary-rank", "exit", "env-set",
    "socket-list",
}  # fmt: skip
"""What says something only with other lines, or several things at once."""
_SETTING_UP = frozenset(w.tag for w in SETUP)
_ENV = next(w.pattern for w in SETUP if w.tag == "env-set" and "=" in w.text)
_LISTED = re.compile(r"\[(\d+)\]\s*([\w.@-]+):([0-9A-Fa-f.:]+(?:%[\w.@-]+)?)<\d+>")
_LIBRARY_FRAME = re.compile(
    r"site-packages|dist-packages|/lib/python|/lib64/python|<frozen|torch/distributed|/runpy\.py"
)


@dataclass
class Communicator:
    """One rank's side of one communicator, as the Init lines tell it."""

    comm: str
    comm_id: str
    rank: int
    nranks: int
    host: str
    pid: str
    device: str
    file: int
    started: int = 0
    completed: int = 0


@dataclass
class Scan:
    """What one file said."""

    events: list[Event] = field(default_factory=list)
    repeats: dict[tuple[str, str], int] = field(default_factory=dict)
    communicators: list[Communicator] = field(default_factory=list)


class Said(NamedTuple):
    """What an event is made of, where it is kept; most are not."""

    tag: str
    line: int
    fields: dict[str, str]
    head: Head
    text: str
    """The whole line."""
    place: int

    def event(self, file: int) -> Event:
        """The event, with the part of the line worth showing."""
        head = self.head
        text = excerpt(self.text, self.place)
        return Event(self.tag, file, self.line, text, self.fields, *head[:5], head.time_s)


class Scanner:
    """Feed it batches of lines in order; `result()` is what is left of them."""

    def __init__(self, file: int = 0, known: Gate | None = None) -> None:
        self.file = file
        self._gate = known or gate()
        self._first: dict[tuple[str, str], list[Event]] = {}
        self._last: dict[tuple[str, str], list[Said | Event]] = {}
        self._repeats: dict[tuple[str, str], int] = {}
        self._keys = [0, 0]
        self._speakers: Counter[str] = Counter()
        self._kept = 0
        self._comms: dict[tuple[str, str, str, str], Communicator] = {}
        self._open: dict[str, str] = {}
        self._framed: tuple[str, int] = ("", -9)
        self._ignored: set[str] = set()
        self._summary: dict[str, dict[str, str]] = {}
        self._near: tuple[int, Head] = (0, Head())

    def feed(self, batch: Iterable[tuple[int, int, bytes]]) -> None:
        """Take lines (number, offset, text without newline); most are dropped after one look."""
        look = self._gate
        for number, _, raw in batch:
            wordings = look(raw)
            if wordings:
                self._take(number, raw, wordings)

    def result(self) -> Scan:
        """The summary, with events in file order."""
        events = [e for kept in self._first.values() for e in kept]
        last = [said for kept in self._last.values() for said in kept]
        events += [said if isinstance(said, Event) else said.event(self.file) for said in last]
        return Scan(
            events=sorted(events, key=lambda e: e.line),
            repeats=self._repeats,
            communicators=list(self._comms.values()),
        )

    def _take(self, number: int, raw: bytes, wordings: tuple[object, ...]) -> None:
        text = clean(raw)
        head: Head | None = None
        # By `ringup run`; it goes on with what such an end may mean.
        is_ours = text.startswith(("first failure", "hung after"))
        for tag, fields, place in matches(text, wordings):  # type: ignore[arg-type]
            if is_ours and not fields.get("first"):
                continue
            if head is None:
                head = self._head(number, text)
            self._dispatch(Said(tag, number, fields, head, text, place))

    def _head(self, number: int, text: str) -> Head:
        """The line's own head; a line without any belongs to the one just before it (wrapped records)."""
        head = head_of(text)
        near_line, near = self._near
        if head.rank is None and not head.pid and head.label == near.label and number - near_line <= 2:
            head = head._replace(rank=near.rank, host=head.host or near.host)
        self._near = (number, head)
        return head

    def _dispatch(self, said: Said) -> None:
        tag, fields, head = said.tag, said.fields, said.head
        if tag not in _TOGETHER:
            self._keep(said)
            return
        source = f"rank {head.rank}" if head.rank is not None else head.label or head.host
        if tag == "init":
            self._init(said.event(self.file))
        elif tag == "traceback":
            self._open[source] = ""
        elif tag == "frame":
            self._frame(source, said)
        elif tag == "ignored":
            self._ignored.add(source)
            return
        elif tag == "exception":
            frame = self._open.pop(source, None)
            if source in self._ignored:
                self._ignored.discard(source)
                return
            below = self._framed[0] == source and 0 < said.line - self._framed[1] < 5
            extra = {"frame": frame or "", "traceback": "yes" if frame is not None or below else ""}
            said = said._replace(fields={**fields, **extra})
        elif tag in ("summary-host", "summary-rank"):
            self._summary.setdefault(source, {}).update(fields)
            if len(self._summary) > MAX_KEYS:
                self._summary.clear()
            return
        elif tag == "exit":
            said = _ended(said, self._summary.pop(source, {}))
        elif tag == "env-set":
            for found in _ENV.finditer(said.text):
                more = {k: v for k, v in found.groupdict().items() if v}
                if more.get("name") != fields.get("name"):
                    self._keep(said._replace(fields=more, place=found.start()))
        elif tag == "socket-list":
            for index, name, address in _LISTED.findall(said.text):
                self._keep(said._replace(fields={"index": index, "interface": name, "address": address}))
            return
        self._keep(said)

    def _frame(self, source: str, said: Said) -> None:
        """A traceback's line of code: the innermost one of the user's own is remembered."""
        self._framed = source, said.line
        file = said.fields.get("file") or ""
        mine = not _LIBRARY_FRAME.search(file)
        if source in self._open or mine:
            kept = self._open.get(source, "")
            self._open[source] = f"{file}:{said.fields.get('number') or ''}" if mine or not kept else kept
            if len(self._open) > MAX_KEYS:
                self._open.clear()

    def _keep(self, said: Said) -> None:
        key = self._key(said)
        if key is None:
            return
        first = self._first.setdefault(key, [])
        self._repeats[key] = self._repeats.get(key, 0) + 1
        if len(first) < self._limit(said, first):
            first.append(said.event(self.file))
            self._kept += 1
        elif KEPT.get(said.tag, FIRST_KEPT):
            last = self._last.setdefault(key, [])
            if len(last) >= (1 if self._kept >= MAX_EVENTS else LAST_KEPT):
                del last[0]
            last.append(said if len(said.text) <= TEXT_CHARS else said.event(self.file))

    def _key(self, said: Said) -> tuple[str, str] | None:
        """
        The tag and who said it; None where as many have said as much as is kept.

        What all ranks say when they set up must leave room for what one of them fails of: of more ranks than
        fit it is kept by host, and of any tag there is room for a few.
        """
        tag, head = said.tag, said.head
        key = (tag, f"{head.host}:{head.pid}" if head.pid else head.label)
        if key in self._first:
            return key
        pool = tag in _SETTING_UP
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

    def _limit(self, said: Said, first: list[Event]) -> int:
        """How many are kept of a tag and source: the fewer, the more is held already."""
        if self._kept >= MAX_EVENTS:
            return 1
        if (
            said.tag == "channel"
            and sum(e["via"] == (said.fields.get("via") or "") for e in first) >= FEW_CHANNELS
        ):
            return 0
        return KEPT.get(said.tag, FIRST_KEPT)

    def _init(self, event: Event) -> None:
        key = (event.host, event.pid, event["comm"], event["rank"])
        comm = self._comms.get(key)
        if comm is None:
            if len(self._comms) >= MAX_COMMUNICATORS:
                return
            found = re.search(r"commId (0x[0-9a-fA-F]+)", event["more"])
            device = re.search(r"cudaDev (\d+)", event["more"])
            comm = self._comms[key] = Communicator(
                event["comm"],
                found[1] if found else "",
                event.number("rank"),
                event.number("nranks"),
                event.host,
                event.pid,
                device[1] if device else event.device,
                self.file,
            )
        if event["state"].upper() == "START":
            comm.started, comm.completed = event.line, 0
        else:
            comm.completed = event.line


def _ended(said: Said, known: dict[str, str]) -> Said:
    """A process's end, with what the rows of the launcher's table before it told of it."""
    fields, head = said.fields, said.head
    rank = fields.get("rank") or known.get("rank")
    return said._replace(
        fields={**known, **fields},
        head=head._replace(
            host=known.get("host") or fields.get("host") or head.host,
            rank=int(rank) if rank and len(rank) < 9 else head.rank,
        ),
    )


def joined(slices: Iterable[tuple[int, Scan]], file: int) -> Scan:
    """One file's scan from those of its slices; each comes with the number of lines before it."""
    whole = Scan()
    comms: dict[tuple[str, str, str, int], Communicator] = {}
    for before, scan in slices:
        whole.events += [replace(e, file=file, line=e.line + before) for e in scan.events]
        for said, count in scan.repeats.items():
            whole.repeats[said] = whole.repeats.get(said, 0) + count
        for comm in scan.communicators:
            moved = replace(
                comm,
                file=file,
                started=comm.started and comm.started + before,
                completed=comm.completed and comm.completed + before,
            )
            key = (comm.host, comm.pid, comm.comm, comm.rank)
            known = comms.get(key)
            if known is None or comm.started:
                comms[key] = moved
            else:
                known.completed = moved.completed
                known.comm_id = known.comm_id or moved.comm_id
    whole.communicators = list(comms.values())
    return whole
