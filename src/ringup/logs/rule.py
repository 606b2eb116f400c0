"""Causes and their registration: one function, one docstring, one name, like a check; `blame` orders them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ringup.logs.defects import Defect
from ringup.logs.lines import Event
from ringup.rules import SEVERITIES, Fix, Problem, Severity, isolated, problem_of
from ringup.rules import Confidence as Confidence
from ringup.units import first_of_each

if TYPE_CHECKING:
    from ringup.logs.evidence import LogEvidence

CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")

A_TRACEBACK = 60
"""Lines of one: an exception so near above it may be the one that was being handled, or led to it."""
MAX_EVIDENCE = 6
"""Lines quoted for one cause; the report has the number of further ones."""


@dataclass(frozen=True)
class Cause:
    """One named cause: the observation, its place, its confidence, the fix."""

    text: str
    confidence: Confidence
    evidence: tuple[Event, ...] = ()
    nodes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    severity: Severity | None = None
    fix: Fix | None = None
    rule: str = ""
    telling: Event | None = None
    """The most informative line of its evidence."""
    known_defect: Defect | None = None


Found = Cause | Iterable[Cause | None] | None
"""The result of a cause's function."""

Finder = Callable[["LogEvidence"], Iterator[Cause]]
CAUSES: dict[str, tuple[Problem, Finder]] = {}
_FALLBACKS: list[tuple[Problem, Finder]] = []


def cause(
    name: str,
    *,
    severity: Severity = "error",
    overcome: Severity | None = "note",
    ending: bool = False,
    fallback: bool = False,
) -> Callable[[Callable[[LogEvidence], Found]], Callable[[LogEvidence], Found]]:
    """
    Register a cause; its docstring is the problem's text, unless `problems.TEXTS` has it.

    `overcome` is its highest severity if the run worked after all of its evidence (a retry, an optional
    import, another program's port); None: it is not named then.  Jobs that a scheduler ends also print an
    `ending` cause: lines after such an end are not evidence of it.  A `fallback` is a second way to find a
    cause registered before; it runs only if nothing named an error.
    """

    def decorate(function: Callable[[LogEvidence], Found]) -> Callable[[LogEvidence], Found]:
        problem = CAUSES[name][0] if fallback else problem_of(name, severity, function.__doc__)

        @functools.wraps(function)
        def completed(log: LogEvidence) -> Iterator[Cause]:
            found = function(log)
            for one in [found] if isinstance(found, Cause) else found or ():
                if one and not (
                    ending and one.evidence and all(map(log.outcome.after_the_end, one.evidence))
                ):
                    severity = max(problem.severity, one.severity or problem.severity, key=SEVERITIES.index)
                    mildest = _as_the_run_went(log, one, severity, overcome)
                    if mildest:
                        fix = one.fix or Fix(problem.fix)
                        yield replace(one, rule=problem.name, severity=mildest, fix=fix)

        if fallback:
            _FALLBACKS.append((problem, completed))
        else:
            CAUSES[name] = problem, completed
        return function

    return decorate


def _as_the_run_went(
    log: LogEvidence, one: Cause, severity: Severity, overcome: Severity | None
) -> Severity | None:
    """The severity of a cause, by the course of the run after its evidence; None if it must not be named."""
    if not one.evidence or (overcome and severity != "error"):
        return severity  # steps of the run do not cancel a cause of slowness
    if all(map(log.outcome.overcome, one.evidence)):
        return overcome
    if overcome != "error" and severity == "error" and log.outcome.all_ended_with_0:
        return "warning"
    return severity


_OF_A_POD = re.compile(r"[a-z0-9.-]{1,230}-\d{1,6}-[a-z0-9]{5}")
_OF_MPIRUN = re.compile(r"[a-z0-9.-]{1,230}-launcher-[a-z0-9]{5}")
"""The pod in which an MPIJob runs mpirun, which passes on what ranks in other pods print."""


def report(
    events: Iterable[Event | None],
    text: str,
    confidence: Confidence = "high",
    *,
    severity: Severity | None = None,
    fix: Fix | None = None,
    nodes: Iterable[str] | None = None,
    ranks: Iterable[int] | None = None,
) -> Cause | None:
    """A cause that quotes lines, of the nodes and ranks that printed them or of those given, or None."""
    printed = [e for e in events if e is not None]
    if not printed:
        return None
    nodes = [e.host for e in printed if e.host] if nodes is None else nodes
    ranks = [e.rank for e in printed if e.rank is not None] if ranks is None else ranks
    quoted = first_of_each((event.place, event) for event in printed)
    evidence = tuple(quoted.values())[:MAX_EVIDENCE]
    return Cause(text, confidence, evidence, _once(nodes), (*sorted(set(ranks)),), severity, fix)


def _once(nodes: Iterable[str]) -> tuple[str, ...]:
    """
    Names without those of mpirun's pod, if there are others, and of pods' hosts.

    The pod `job-1-m9qzz` of an Indexed Job has the name `job-1`.
    """
    names = [*dict.fromkeys(nodes)]
    hosts = {name[:-6] for name in names if _OF_A_POD.fullmatch(name)}
    others = [name for name in names if name not in hosts and not _OF_MPIRUN.fullmatch(name)]
    return tuple(others or names)


def find(log: LogEvidence) -> list[Cause]:
    """Every cause that any rule finds, unordered; severities never above their limit."""

    def answers(of: Iterable[tuple[Problem, Finder]]) -> list[Cause]:
        every = (one for p, function in of for one in isolated(p.name, functools.partial(function, log)))
        return [one for one in every if isinstance(one, Cause)]

    found = answers(CAUSES.values())
    return found if any(c.severity == "error" for c in found) else [*found, *answers(_FALLBACKS)]
