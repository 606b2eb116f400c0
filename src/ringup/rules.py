"""
Rules: a name, a text, and a function from evidence to findings.

A check reads a `Cluster`, a log cause reads a `Story`.  The text of a problem is
the docstring of the function that finds it; one that both can see is written
once in `problems.py` and given to both.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first."""


@dataclass(frozen=True)
class Fix:
    """What to do about a finding: words, variables to set, commands to paste."""

    text: str
    env: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """
    One thing that can be wrong, named once.

    `severity` is a ceiling: a finding may be milder, never worse.
    """

    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    in_logs: str = ""


@dataclass(frozen=True)
class Finding:
    """
    A problem seen somewhere.

    `where` is for people ("node1 enp99s0"), `node` is the node's name or None when
    it concerns several, `subject` names the thing for `plan.settle`
    ("interface:enp99s0", "port:29500", "name:node0", "env:NCCL_NET").
    """

    where: str
    found: str
    wanted: str
    node: str | None = None
    fix: Fix | None = None
    severity: Severity | None = None
    subject: str = ""
    worked_around_by: str | None = None
    rule: str = ""
    why: str = ""


@dataclass(frozen=True)
class Skipped:
    """A rule that could not be judged on a node, and why."""

    rule: str
    node: str | None
    reason: str
    as_root: str = ""
    """What root would run to know it, "" where root would know no more."""
    is_partial: bool = False
    """The rule was judged, with what an ordinary user may see."""


@dataclass(frozen=True)
class Rule:
    """A registered check: its problem, the facts it reads, its function."""

    problem: Problem
    reads: tuple[str, ...]
    function: Callable[..., Iterator[Finding | Skipped]]
    uses: tuple[str, ...] = ()
    """Fields that make the judgement sharper where they are known, without which it is still made."""


PROBLEMS: dict[str, Problem] = {}
"""Every problem by name, whoever finds it; what `ringup explain` lists."""

CHECKS: dict[str, Rule] = {}
"""Checks by name, in order of definition."""

_SECTION = re.compile(r"^(Why|Fix|In logs):\s*", re.MULTILINE)


def problem_from_docstring(name: str, severity: Severity, docstring: str | None) -> Problem:
    """
    The problem a rule's docstring describes.

    The first paragraph is the summary; `Why:` and `Fix:` must follow, `In logs:` may.
    Raises ValueError for a docstring without them: a rule nobody can act on.
    """
    text = inspect.cleandoc(docstring or "")
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))

    def flat(part: str) -> str:
        return " ".join(part.split())

    if not flat(parts[0]) or "Why" not in sections or "Fix" not in sections:
        raise ValueError(f"rule {name}: the docstring needs a summary, `Why:` and `Fix:`")
    return Problem(
        name=name,
        severity=severity,
        summary=flat(parts[0]),
        why=flat(sections["Why"]),
        fix=flat(sections["Fix"]),
        in_logs=flat(sections.get("In logs", "")),
    )


def register(problem: Problem) -> Problem:
    """Add a problem to the list; the same text twice is fine, two texts for one name are not."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", problem.name):
        raise ValueError(f"rule name is not kebab-case: {problem.name!r}")
    known = PROBLEMS.setdefault(problem.name, problem)
    if known != problem:
        raise ValueError(f"two texts for one problem: {problem.name}")
    return problem


def check(
    name: str | Problem,
    *,
    reads: tuple[str, ...],
    uses: tuple[str, ...] = (),
    severity: Severity = "error",
) -> Callable[[Callable[..., Iterator[Finding | Skipped]]], Callable[..., Iterator[Finding | Skipped]]]:
    """
    Register a check.

    `reads` lists the fields of `Node` it looks at: a node where one is unknown is
    left out of the cluster the function sees, and shown as not checked.  Names
    beginning with "cluster." (such as "cluster.links") are fields of `Cluster`.  `uses`
    lists fields it looks at only where they are known.
    """

    def decorate(
        function: Callable[..., Iterator[Finding | Skipped]],
    ) -> Callable[..., Iterator[Finding | Skipped]]:
        problem = (
            name if isinstance(name, Problem) else problem_from_docstring(name, severity, function.__doc__)
        )
        register(problem)
        if problem.name in CHECKS:
            raise ValueError(f"two checks named {problem.name}")
        CHECKS[problem.name] = Rule(problem, reads, function, uses)
        return function

    return decorate


def run_checks(cluster: Any, rules: Mapping[str, Rule] | None = None) -> tuple[list[Finding], list[Skipped]]:
    """
    Judge a cluster: findings worst first, and what could not be judged.

    A rule sees only the nodes on which everything it reads is known.
    """
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for rule in (CHECKS if rules is None else rules).values():
        name = rule.problem.name
        judged = []
        for node in cluster.nodes:
            missing = [f for f in rule.reads if f in node.unknown]
            if missing:
                reason = "; ".join(f"{f}: {node.unknown[f]}" for f in missing)
                skipped.append(Skipped(name, node.name, reason))
            else:
                judged.append(node)
        if not judged and cluster.nodes:
            continue
        for answer in rule.function(cluster.only(judged)):
            if isinstance(answer, Skipped):
                skipped.append(replace(answer, rule=name))
            else:
                finding = complete(answer, rule.problem)
                findings.append(typed_here(finding) if cluster.is_local else finding)
    findings.sort(key=lambda f: SEVERITIES.index(f.severity or "error"))
    return findings, skipped


def complete(finding: Finding, problem: Problem) -> Finding:
    """A finding with its rule's name, reason, severity (never above the ceiling) and a fix."""
    ceiling = SEVERITIES.index(problem.severity)
    wanted = SEVERITIES.index(finding.severity or problem.severity)
    return replace(
        finding,
        rule=problem.name,
        why=finding.why or problem.why,
        severity=SEVERITIES[max(ceiling, wanted)],
        fix=finding.fix or Fix(problem.fix),
    )


def typed_here(finding: Finding) -> Finding:
    """
    A finding about nodes that are played on this machine: its commands need no ssh.

    >>> typed_here(Finding("n", "", "", fix=Fix("", commands=("ssh n 'id; ls'", "ping n")))).fix.commands
    ('id; ls', 'ping n')
    """
    if finding.fix is None:
        return finding
    words = [(shlex.split(c), c) for c in finding.fix.commands]
    # ssh joins what it is given with blanks, and the shell on the node reads that.
    commands = (" ".join(w[2:]) if w[:1] == ["ssh"] else c for w, c in words)
    return replace(finding, fix=replace(finding.fix, commands=tuple(dict.fromkeys(commands))))
