"""
The telling line: the one of a run's clues that an expert would point at.  Pure.

Clues that the run overcame are left out.  Those that follow from another end count only where nothing else is
left.  Then the form decides, then how specific the line is, then time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ringup.logs.blame import place
from ringup.logs.forms import Clue, Form
from ringup.logs.patterns import OF_ROLE
from ringup.logs.rule import Cause

if TYPE_CHECKING:
    from ringup.logs.evidence import LogEvidence
    from ringup.logs.lines import Event

TO_THE_END = 0.05
"""A wait whose last line stands in this last share of its file is a heartbeat: the job makes no progress."""
BEATS = 3
SURE = Form.FAILING
"""Up to this form a clue alone shows that something failed."""
SPECIFIC = 0.3
"""What each concrete thing that a line names is worth, in steps of forms."""
_WAITS = re.compile(
    r"(?i)waiting (?:for|on)|still waiting|may be stuck|\b(?:hung|hanging|stuck|stalled)\b|no progress"
    r"|No available shared memory|clients joined|not all .{0,60}joined|heartbeat"
)


def follows(clue: Clue) -> bool:
    """Whether a line tells of another's end, or wraps what is printed elsewhere."""
    return clue.follows or not clue.tags.isdisjoint(OF_ROLE["consequence"])


def weight(log: LogEvidence, clue: Clue) -> tuple[float, ...]:
    """The order of blame among clues: the smallest is the most telling."""
    place = (float(clue.event.file), float(clue.event.line))
    order = (clue.event.time_s or 0.0, *place) if log.is_dated else place
    return (float(follows(clue)), clue.form - SPECIFIC * min(clue.specific, 3), *order)


def standing(log: LogEvidence) -> list[Clue]:
    """The clues that the run did not overcome, the most telling first."""

    def overcome(clue: Clue) -> bool:
        events = [clue.event, *log.at(clue.event.file, clue.event.line)]
        return log.outcome.after_the_end(clue.event) or any(map(log.outcome.overcome, events))

    left = [clue for clue in log.clues if not overcome(clue)]
    if log.good is not None:
        left = [clue for clue in left if not log.good.has(clue.event.text)]
    return sorted(left, key=lambda clue: weight(log, clue))


def heartbeat(log: LogEvidence) -> Clue | None:
    """A line about waiting that repeats to the end of its file, and no work after it."""
    for clue in log.clues:
        lines = log.files[clue.event.file].lines
        if clue.count < BEATS or clue.last_line < lines - max(3, TO_THE_END * lines):
            continue
        waits = clue.form in (Form.WAIT, Form.INFO, Form.WARNING) and _WAITS.search(clue.message)
        if waits and not log.outcome.work_after(clue.event.file, clue.last_line):
            return clue
    return None


def with_telling(log: LogEvidence, causes: Iterable[Cause]) -> list[Cause]:
    """The causes with the line that tells most in front of their evidence."""
    at = {s.event.place: s for s in log.clues}

    def of(event: Event) -> tuple[float, ...]:
        return weight(log, at[event.file, event.line])

    def ordered(cause: Cause) -> Cause:
        if not cause.evidence:
            return cause
        first = cause.evidence[0]
        known = [event for event in cause.evidence if event.place in at]
        best = min(known, key=of, default=first)
        as_it_is = place(cause) < 8 or cause.rule == "unnamed-failure"
        if as_it_is or (first in known and of(first)[:2] <= of(best)[:2]):
            best = first
        rest = [event for event in cause.evidence if event is not best]
        return replace(cause, telling=best, evidence=(best, *rest))

    return [ordered(cause) for cause in causes]
