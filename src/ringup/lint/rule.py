"""How a fault of a script or job file is registered: one function, one docstring, one name, as for checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ringup.rules import Finding, Problem, Severity, complete, problem_from_docstring, register

Function = Callable[[Any], Iterator[Finding]]
SCRIPT: dict[str, tuple[Problem, Function]] = {}
"""Faults of one Python script, given a `Reading`."""
SHELL: dict[str, tuple[Problem, Function]] = {}
"""Faults of one shell or job file, given a `Job`."""
ACROSS: dict[str, tuple[Problem, Function]] = {}
"""Faults between files, given an `All`."""


def fault(
    name: str | Problem, table: dict[str, tuple[Problem, Function]], *, severity: Severity = "error"
) -> Callable[[Function], Function]:
    """Register a fault; its docstring is the problem's text, unless the problem is given."""

    def decorate(function: Function) -> Function:
        problem = (
            name if isinstance(name, Problem) else problem_from_docstring(name, severity, function.__doc__)
        )
        if problem.name in table:
            raise ValueError(f"two faults named {problem.name}")
        table[problem.name] = (register(problem), function)
        return function

    return decorate


def judge(table: dict[str, tuple[Problem, Function]], read: Any) -> Iterator[Finding]:
    """Every finding of one table's rules, complete with name, reason and fix."""
    for problem, function in table.values():
        for finding in function(read):
            yield complete(finding, problem)


def lines(numbers: list[int]) -> str:
    """
    Further lines, for the end of a sentence.

    >>> lines([3, 9, 9])
    ' (also line 9)'
    """
    more = sorted(set(numbers))[1:]
    if not more:
        return ""
    shown = ", ".join(map(str, more[:5])) + (" ..." if len(more) > 5 else "")
    return f" (also line{'s' * (len(more) > 1)} {shown})"
