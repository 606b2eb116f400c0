"""Registration of rules about a script or job file: one function, one docstring, one name, as for checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

from ringup.rules import Finding, Fix, Problem, Severity, complete, isolated, problem_of

Found = Iterator[Finding | tuple[Any, str, str] | tuple[Any, str, str, str] | tuple[Any, str, str, str, str]]
"""
Results of a rule: the line (or a YAML node), the found and the expected value; then nothing, the case of the
rule's text (`Why, torchrun: ...`), or why and the fix; or a finding with more.
"""
Function = Callable[..., Found]
SCRIPT: dict[str, tuple[Problem, Function]] = {}
"""Rules about one Python script; input: a `Reading`."""
SHELL: dict[str, tuple[Problem, Function]] = {}
"""Rules about one shell or job file; input: a `Job`."""
ACROSS: dict[str, tuple[Problem, Function]] = {}
"""Rules about several files; input: an `All`."""


@dataclass
class File:
    path: str

    def where(self, line: Any) -> str:
        """The place of a line, or of the first line of a YAML node."""
        return f"{self.path}:{line if isinstance(line, int) else line.start_mark.line + 1}"

    def finding(self, line: Any, found: str, wanted: str, is_sure: object = True, **more: Any) -> Finding:
        """A finding there, a warning unless it `is_sure`; `more` are further fields of `Finding`."""
        more = more if is_sure else {**more, "severity": "warning"}
        return Finding(self.where(line), found, wanted, **more)


def fault(
    name: str, table: dict[str, tuple[Problem, Function]], *, severity: Severity = "error", each: str = ""
) -> Callable[[Function], Function]:
    """
    Register a fault; its docstring is the problem's text, unless `problems.TEXTS` has it.

    With `each`, the function judges one element of this attribute of the file, which it gets as well.
    """

    def decorate(function: Function) -> Function:
        rule = partial(_on_each, each, function) if each else function
        table[name] = (problem_of(name, severity, function.__doc__), rule)
        return function

    return decorate


def _on_each(attribute: str, function: Function, read: Any) -> Found:
    found = attrgetter(attribute)(read)
    for element in found() if callable(found) else found:
        yield from function(read, *(element if isinstance(element, tuple) else (element,)))


def judge(table: dict[str, tuple[Problem, Function]], read: Any) -> Iterator[Finding]:
    """Every finding of one table's rules, complete with name, reason and fix."""
    for problem, function in table.values():
        for found in isolated(problem.name, partial(function, read)):
            if isinstance(found, tuple):
                found = _finding(read, *found)
            if isinstance(found, Finding):
                yield complete(found, problem)


def _finding(read: File, line: Any, found: str, wanted: str, *more: str) -> Finding:
    if len(more) == 2:
        return read.finding(line, found, wanted, why=more[0], fix=Fix(more[1]))
    return read.finding(line, found, wanted, case="".join(more))


def lines(numbers: list[int]) -> str:
    """
    Further lines, for the end of a sentence.

    >>> lines([3, 9, 9])
    ' (also line 9)'
    """
    more = [str(n) for n in sorted(set(numbers))[1:]]
    shown = ", ".join(more[:5]) + (" ..." if len(more) > 5 else "")
    return f" (also line{'s' * (len(more) > 1)} {shown})" if more else ""
