"""
What a cause is, and how one is registered.

A cause is registered like a check: one function, one docstring, one name.  Which of
several causes stands first is decided in `blame`, nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ringup.logs.lines import Event
from ringup.rules import SEVERITIES, Fix, Problem, Severity, problem_from_docstring, register

if TYPE_CHECKING:
    from ringup.logs.story import Story

Confidence = Literal["high", "medium", "low"]
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")

MAX_EVIDENCE = 6
"""Lines quoted for one cause; the report says how many more there are."""


@dataclass(frozen=True)
class Cause:
    """One named cause: what was seen, where, how sure, what to do."""

    text: str
    confidence: Confidence
    evidence: tuple[Event, ...] = ()
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    severity: Severity | None = None
    fix: Fix | None = None
    rule: str = ""


Finder = Callable[["Story"], Iterator[Cause]]
CAUSES: dict[str, tuple[Problem, Finder]] = {}
_PASSING: set[str] = set()
_LAST: list[tuple[Problem, Finder]] = []


def cause(
    name: str | Problem, *, severity: Severity = "error", passing: bool = False
) -> Callable[[Finder], Finder]:
    """
    Register a cause; its docstring is the problem's text, unless the problem is given.

    A passing one keeps a job from starting or ends it: where training went on after its
    evidence, it was something else (a retry, an optional import, another program's port).
    """

    def decorate(function: Finder) -> Finder:
        problem = (
            name if isinstance(name, Problem) else problem_from_docstring(name, severity, function.__doc__)
        )
        register(problem)
        if problem.name in CAUSES:
            raise ValueError(f"two causes named {problem.name}")
        CAUSES[problem.name] = (problem, function)
        if passing:
            _PASSING.add(problem.name)
        return function

    return decorate


def last_look(name: str) -> Callable[[Finder], Finder]:
    """Register what else may show a cause already registered, asked only where nothing named an error."""

    def decorate(function: Finder) -> Finder:
        _LAST.append((CAUSES[name][0], function))
        return function

    return decorate


def seen(
    events: Iterable[Event | None],
    text: str,
    confidence: Confidence = "high",
    *,
    severity: Severity | None = None,
    fix: Fix | None = None,
    nodes: Iterable[str] | None = None,
    ranks: Iterable[int] | None = None,
) -> Cause:
    """A cause whose nodes and ranks are those that spoke, unless others are named."""
    spoken = [e for e in events if e is not None]
    picked: list[Event] = []
    for event in spoken:
        if len(picked) < MAX_EVIDENCE and (event.file, event.line) not in {(p.file, p.line) for p in picked}:
            picked.append(event)
    return Cause(
        text=text,
        confidence=confidence,
        evidence=tuple(picked),
        nodes=tuple(dict.fromkeys(nodes if nodes is not None else (e.host for e in spoken if e.host))),
        ranks=tuple(
            sorted(set(ranks if ranks is not None else (e.rank for e in spoken if e.rank is not None)))
        ),
        severity=severity,
        fix=fix,
    )


def find(story: Story) -> list[Cause]:
    """Every cause any rule sees, unordered; severities never above their ceiling."""
    found = [c for problem, function in CAUSES.values() for c in _asked(story, problem, function)]
    if not any(c.severity == "error" for c in found):
        found += [c for problem, function in _LAST for c in _asked(story, problem, function)]
    return found


def _asked(story: Story, problem: Problem, function: Finder) -> Iterator[Cause]:
    for item in function(story):
        if problem.name in _PASSING and item.evidence and all(map(story.overcome, item.evidence)):
            continue
        ceiling = SEVERITIES.index(problem.severity)
        wanted = SEVERITIES.index(item.severity or problem.severity)
        yield replace(
            item,
            rule=problem.name,
            severity=SEVERITIES[max(ceiling, wanted)],
            fix=item.fix or Fix(problem.fix),
        )
