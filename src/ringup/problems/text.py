"""How a problem that is shared is written down."""

from __future__ import annotations

from ringup.rules import Problem, Severity, problem_from_docstring, register


def shared(name: str, severity: Severity, text: str) -> Problem:
    """A problem from its text, registered."""
    return register(problem_from_docstring(name, severity, text))
