"""
Lines that may explain a failure, recognized by their form and not by their wording.

A line that no pattern knows still has a form: it has a severity, ends a traceback, names an errno, or reports
a wait that ended.  The form ranks it.  Equal lines, apart from numbers, are one clue with its count, its
ranks, and its last place.  Pure, bounded.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum

from ringup.logs.lines import Event, Head, excerpt, message_of
from ringup.logs.mentions import NONE, is_mention, unquoted
from ringup.logs.patterns import forms as words


class Form(IntEnum):
    """How telling a line is by its form, the most telling first."""

    KERNEL = 1
    CAUSED_BY = 2
    LIBRARY = 3
    EXCEPTION = 4
    PROGRAM = 5
    ERROR = 6
    ERRNO = 7
    ENDED = 8
    FAILING = 9
    WAIT = 10
    WARNING = 11
    INFO = 12


MOST_CLUES = 1_000
"""Different clues of a file; above this only the more informative forms are taken, up to twice as many."""
MOST_RANKS = 64
SHAPE_CHARS = 160
READ_WHOLE = 8
"""This many equal lines are read for their ranks; of more, only the number and the last place are stored."""


@dataclass
class Clue:
    """A message of one form: its first line as an event, its count and its further places."""

    form: Form
    event: Event
    message: str
    """The first line without the prefixes of launchers, loggers and collectors."""
    severity: str = ""
    specific: int = 0
    """Number of concrete things in it: an errno, an object, an address, a setting, a number."""
    follows: bool = False
    tags: frozenset[str] = frozenset()
    count: int = 1
    last_line: int = 0
    ranks: set[int] = field(default_factory=set)
    times: list[float] = field(default_factory=list)


_LETTER = dict.fromkeys("FC", "fatal") | dict.fromkeys("ES", "error") | dict.fromkeys("INDT", "info")
_LETTER |= {"W": "warning"}
_NUMBERS = re.compile(r"0x[0-9a-f]{1,32}|\b[0-9a-f]{8,64}\b|\d{1,24}", re.IGNORECASE)


def severity_of(text: str, message: str) -> str:
    """
    The severity of a line, from its labels or the message's beginning; "" without one.

    >>> severity_of("(W pid=1) ERROR 08-12 [core.py:700] no cache", "no cache")
    'error'
    >>> severity_of("[rank0]:[W822 10:11:02.1 s.cpp:7] lost", "lost")
    'warning'
    """
    front = text[: max(0, len(text) - len(message)) + 24][:300]
    found = list(words.SEVERITY.finditer(front))
    # Of several, the innermost: a program that passes a line on adds its own severity.
    return _LETTER[next(g for g in found[-1].groups() if g)[0].upper()] if found else ""


def specific(message: str) -> int:
    """Number of kinds of concrete things in a message, 0 to 5."""
    return sum(1 for one in words.SPECIFIC if one.regex.search(message))


_WAITED = {"work", "work-state", "work-aborted", "watchdog-stuck"}
_OF_AN_END = {"abort-word", "crash-word", "killed-word", "exit", "exit-signal", "child-failed"}
_OF_AN_END |= {"closing-signal"}
_WORD = re.compile(r"(?<![\[\w])[A-Za-z]{3}")
_NAMELESS = re.compile(r"\s*(?:Exception|Error):?\s*")


def form_of(message: str, severity: str, tags: AbstractSet[str], before: Form | None = None) -> Form | None:
    """
    The form of a message, None if it is not informative; `before` is the form of the line it belongs to.

    >>> form_of("Call to ibv_modify_qp failed with 61", "", {"warn"})
    <Form.LIBRARY: 3>
    >>> form_of("step 3: loss 0.2", "info", set())
    """
    text = unquoted(message[:1000])
    if is_mention(text) or ("exception" not in tags and NONE.search(text)):
        return None
    if words.KERNEL.regex.search(text):
        xid = words.XID.search(text)
        return Form.ENDED if xid and int(xid[1]) in words.PROGRAM_XIDS else Form.KERNEL
    if not tags.isdisjoint(_WAITED):
        return Form.WAIT
    if not tags.isdisjoint(_OF_AN_END) and "xid" not in tags:
        return Form.ENDED
    if "exception" in tags:
        if _NAMELESS.fullmatch(text):
            return None
        return Form.WARNING if severity in ("warning", "info") else Form.EXCEPTION
    if words.NOISE.regex.search(text):
        return None
    goes_on = "made-do" in tags or bool(words.GOES_ON.regex.search(text))
    if before is not None and not goes_on and _WORD.search(text):
        return before if before < Form.WARNING else min(before, form_of(message, severity, tags) or before)
    if words.CAUSED_BY.regex.search(text) and not goes_on:
        return Form.CAUSED_BY
    of_source = severity == "error" and bool(words.OF_SOURCE.match(text))
    if "warn" in tags or of_source or words.LIBRARY.regex.search(text):
        return Form.WARNING if goes_on or words.HARMLESS.regex.search(text) else Form.LIBRARY
    if "unwind" in tags:
        return None
    if severity == "info" or goes_on:
        mild = words.FAILS.regex.search(text) or words.WAITS.regex.search(text)
        return (Form.WARNING if severity in ("error", "fatal") else Form.INFO) if mild else None
    if severity == "warning":
        return Form.WARNING
    if words.PROGRAM.regex.search(text):
        return Form.PROGRAM
    fails = bool(words.FAILS.regex.search(text))
    if severity in ("error", "fatal") and (fails or severity == "fatal" or words.WAITS.regex.search(text)):
        return Form.WAIT if words.WAITS.regex.search(text) and not fails else Form.ERROR
    if words.NAMES_ERRNO.regex.search(text):
        return Form.ERRNO
    if words.ENDED.regex.search(text):
        return Form.ENDED
    if words.WAITS.regex.search(text):
        return Form.WAIT
    return None if not fails else Form.FAILING if words.FAILED.regex.search(text) else Form.WARNING


def shape_of(message: str) -> str:
    """
    A message without its numbers: equal for similar lines.

    >>> shape_of("Connect to 10.0.0.2<4411> failed") == shape_of("Connect to 10.0.0.3<9> failed")
    True
    """
    return _NUMBERS.sub("#", message.strip()[:SHAPE_CHARS])


@dataclass(frozen=True)
class Reference:
    """A log of a good run: the forms of its lines; its settings, versions and sizes by name."""

    forms: frozenset[str]
    facts: dict[str, frozenset[str]]

    def has(self, text: str) -> bool:
        """Whether it also contains a line of this form."""
        return shape_of(message_of(text)) in self.forms


class Clues:
    """The clues of one file: feed it the lines that contain a word of a failure."""

    def __init__(self) -> None:
        self.collected = ""
        """The severity that a collector gives each line."""
        self._found: dict[str, Clue] = {}
        self._raw: dict[bytes, Clue | None] = {}
        self._open: dict[str, tuple[int, Form]] = {}
        self._near: tuple[int, str, Clue | None] = (0, "", None)

    def again(self, raw: bytes, number: int) -> bool:
        """Whether a line equals many that have been read; it is counted."""
        shape = raw.translate(None, b"0123456789")
        if shape not in self._raw:
            return False
        clue = self._raw[shape]
        if clue is not None:
            if clue.count < READ_WHOLE:
                return False
            clue.count += 1
            clue.last_line = number
        return True

    def awaits(self, source: str, number: int) -> bool:
        """Whether a line belongs to the one above it, which ended with a colon."""
        return self._open.get(source, (0, None))[0] == number - 1

    def take(
        self,
        number: int,
        raw: bytes,
        text: str,
        message: str,
        head: Head,
        tags: AbstractSet[str],
        is_plain: bool,
    ) -> bool:
        """Whether the line below belongs to this one; of an `is_plain` line only the words count."""
        source = head.source
        line, before = self._open.pop(source, (0, None))
        severity = severity_of(text, message)
        if severity and (severity == self.collected or (severity == "info" and "raised" in tags)):
            severity = ""  # logging puts its level on a traceback's first line; on the last, a collector has
        form = form_of(message, severity, tags, before if line == number - 1 else None)
        shape = shape_of(message)
        clue = None
        if form is not None:
            clue = self._found.get(shape)
            if clue is not None:
                clue.count += 1
                clue.last_line = number
                clue.form = min(clue.form, form)
            elif len(self._found) < MOST_CLUES * (1 + (form <= Form.PROGRAM)):
                event = Event("clue", 0, number, excerpt(text, 0), {}, *head[:5], head.time_s)
                clue = Clue(form, event, message.strip()[:400], severity, last_line=number)
                clue.specific, clue.tags = specific(message[:1000]), frozenset(tags)
                clue.follows = bool(
                    words.FOLLOWS.regex.search(message[:1000]) and not words.OF_A_COMPILER.search(message)
                )
                near_line, near_source, near = self._near
                if near and (near_line, near_source, near.form) == (number - 1, source, form):
                    clue.specific = min(clue.specific, near.specific)  # the first of a block is its title
                self._found[shape] = clue
            if clue is not None:
                if head.rank is not None and len(clue.ranks) < MOST_RANKS:
                    clue.ranks.add(head.rank)
                if head.time_s is not None:
                    clue.times = [*clue.times[:1], head.time_s]
        self._near = number, source, clue
        if is_plain and len(self._raw) < 4 * MOST_CLUES:
            self._raw.setdefault(raw.translate(None, b"0123456789"), clue)
        if words.ENDS_OPEN.search(message[-200:]) and len(self._open) < MOST_CLUES:
            self._open[source] = number, form or Form.ERROR
            return True
        return False

    def title(self, source: str, number: int) -> None:
        """The line is the title of the traceback below it, which has the reason."""
        line, near_source, near = self._near
        if near is not None and (line, near_source) == (number, source) and not near.specific:
            near.follows |= near.form in (Form.ERROR, Form.FAILING)

    def result(self) -> list[Clue]:
        return sorted(self._found.values(), key=lambda clue: clue.event.line)
