"""
Finds the first failure; times are already on the launcher's clock.

A rank that ended because of another rank is never named before a rank that failed without such a cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from signal import SIGABRT, SIGKILL, SIGTERM, Signals
from typing import Literal

from ringup.units import grouped

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_COUNTS_S = 60.0
"""Seconds before the end in which a traceback may still be its cause: NCCL's shutdown takes time."""
# C++'s message if a destructor meets a running thread. torch 2.13 causes it if Python ends with an open Gloo
# process group, after the exception that ended it and in place of exit code 1.
_TEARDOWN = "terminate called without an active exception"
_THROWN = "terminate called after throwing an instance of"
_EXCEPTION = re.compile(r"(?:\[rank\d+\]: )?([A-Za-z_][\w.]*(?:: .*)?)$")
# A script that Python cannot compile: Python prints the place, but no traceback title.
_UNREAD = re.compile(r"(?:SyntaxError|IndentationError|TabError): ")
# torch/multiprocessing/spawn.py (1.13 to 2.13)
_SPAWNED = re.compile(
    r"[\w.]*ProcessExitedException: process \d+ terminated with "
    rf"(?:exit code (\d{{1,3}})|signal ({'|'.join(s.name for s in Signals)}))$"
)
# Reports of the ranks of `ringup test` and `ringup bench` in their output (agent/collective/world.py)
_OURS = re.compile("@ringup ")
LAST_WORDS_LINES = 5
CONSEQUENCE = 2


@dataclass(frozen=True)
class End:
    """A failed end of a rank, of a node's launcher, or of a node."""

    kind: Literal["rank", "job", "launcher", "node"]
    """"job": the process of a node without shims, whose ranks cannot be distinguished."""
    node: str
    at_s: float
    """Launcher's monotonic clock."""
    rank: int | None = None
    code: int | None = None
    traceback_s: float = 0.0
    """When the last traceback began; 0 if there was none."""
    told_s: float = 0.0
    """When the guard requested the end of this node's job; 0 if it had not."""
    lines: tuple[str, ...] = ()
    words: str = ""

    @property
    def raised(self) -> str:
        """
        The exception that ended it ("ValueError: the data is bad"), "" for none.

        >>> End("rank", "n", 0, code=1, lines=(TRACEBACK, "  File ...", "ValueError: bad")).raised
        'ValueError: bad'
        >>> End("rank", "n", 0, code=1, lines=("def (", "    ^", "SyntaxError: invalid syntax")).raised
        'SyntaxError: invalid syntax'
        """
        if self.code not in (1, -SIGABRT) and not self.was_raising:
            return ""
        if TRACEBACK not in self.last_words:
            return self.lines[-1] if self.code == 1 and self.lines and _UNREAD.match(self.lines[-1]) else ""
        lines = [line for line in self.last_words.splitlines()[1:] if line.strip()]
        if self.code == -SIGABRT:
            if _TEARDOWN not in lines:
                return ""
            lines = lines[: lines.index(_TEARDOWN)]
        return next((found[1] for line in reversed(lines) if (found := _EXCEPTION.match(line))), "")

    @property
    def was_raising(self) -> bool:
        """Whether an exception was its last output when it was ended; a rank that catches one prints more."""
        was_told = 0 < self.told_s <= self.at_s
        if self.code != -SIGTERM and not (was_told and self.code == -SIGKILL):
            return False
        if not 0 < self.traceback_s < (self.told_s if was_told else self.at_s):
            return False
        said = [line for line in self.last_words.splitlines()[1:] if line.strip() and not _OURS.match(line)]
        return bool(said) and _EXCEPTION.match(said[-1]) is not None

    @property
    def torn_down(self) -> bool:
        """Whether it aborted because a native thread still ran during its teardown."""
        return self.code == -SIGABRT and _TEARDOWN in self.lines[-LAST_WORDS_LINES:]

    @property
    def own_code(self) -> int | None:
        """The intended exit code: 1 for an exception, for `mp.spawn` that of the failed process."""
        if not self.raised:
            return self.code
        if not (spawned := _SPAWNED.match(self.raised)):
            return 1
        number, signal_name = spawned.groups()
        return int(number) if number else -Signals[signal_name]

    @property
    def failed_s(self) -> float:
        """Time of the failure: the beginning of the last traceback if that ended it, else the end."""
        told = 0 < self.told_s <= self.at_s
        by_traceback = self.own_code == 1 or (told and self.traceback_s < self.told_s)
        if self.traceback_s and by_traceback and 0 <= self.at_s - self.traceback_s < TRACEBACK_COUNTS_S:
            return self.traceback_s
        return self.at_s

    @property
    def last_words(self) -> str:
        """Its output at the end: its last traceback (C++: exception) and all after it, or its last lines."""
        begins = [i for i, line in enumerate(self.lines) if TRACEBACK in line]  # torch: "[rank3]: Traceback"
        if self.code == -SIGABRT and not begins:
            begins = [i for i, line in enumerate(self.lines) if line.startswith(_THROWN)]
        return "\n".join(self.lines[begins[-1] if begins else -LAST_WORDS_LINES :])


def blame_class(end: End, siblings: Iterable[End], is_consequence: Callable[[str], bool]) -> int:
    """
    The distance of an end from the cause. 0: failed first. 1: ended by ringup, some time after a traceback.

    2: its last output blames a peer. 3: ended by SIGTERM after a sibling on its node (launchers do that),
    without an exception of its own. 4: ended by ringup. 5: a launcher, which only reports its ranks' end.
    """
    before = [s for s in siblings if s is not end and s.kind == "rank" and s.failed_s <= end.failed_s]
    if end.kind == "launcher" and before:
        return 5
    if 0 < end.told_s <= end.failed_s:
        return 4
    if end.code == -SIGTERM and before and not end.raised:
        return 3
    if is_consequence(end.last_words):
        return CONSEQUENCE
    return int(0 < end.told_s <= end.at_s and not end.raised)


def first(ends: Iterable[End], is_consequence: Callable[[str], bool]) -> tuple[End, bool] | None:
    """The failure to show, if any, and whether its last output blames a rank that did not fail first."""
    known = list(ends)
    by_node = grouped((end.node, end) for end in known)
    classes = [blame_class(end, by_node[end.node], is_consequence) for end in known]
    placed = sorted(zip(classes, known, strict=True), key=lambda pair: (pair[0], pair[1].failed_s))
    return (placed[0][1], placed[0][0] == CONSEQUENCE) if placed else None
