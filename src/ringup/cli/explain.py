"""Explain a problem: what it means, why it matters and how to fix it; without a name, list all."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ringup.cli import options
from ringup.errors import UsageError
from ringup.output import terminal
from ringup.units import columns, summarize_names

if TYPE_CHECKING:
    from ringup.rules import Problem


OPTIONS = (
    options.words("name", "name", "a problem's name, as check and logs print it"),
    options.flag("--json", "JSON on stdout"),
)


def listed(problems: Iterable[Problem]) -> Iterator[str]:
    """By name; wraps the text in its column on a terminal, else prints one line per rule."""
    known = sorted(problems, key=lambda problem: problem.name)
    width = max(len(problem.name) for problem in known)
    room = columns(sys.stdout) if sys.stdout.isatty() else sys.maxsize
    for problem in known:
        head = f"{problem.name:<{width}}  {problem.severity:<7}  "
        indent = " " * min(len(head), room // 2)
        yield "\n".join(terminal.wrapped(problem.summary, room, head, indent))


def run(args: argparse.Namespace) -> int:
    import ringup.checks
    import ringup.lint
    import ringup.logs.causes  # noqa: F401  (all three fill the registry)
    from ringup.recovery.table import ROWS
    from ringup.rules import PROBLEMS

    def as_json(problem: Problem) -> dict[str, object]:
        row = ROWS.get(problem.name)
        told = {name: value for name, value in vars(problem).items() if name != "parts"}
        return {**told, "help": problem.page, "restart": row.sentence if row else None}

    asked = " ".join(args.name)
    if not asked and args.json:
        terminal.print_json(problems=[as_json(p) for p in PROBLEMS.values()])
        return 0
    if not asked:
        print("\n".join(listed(PROBLEMS.values())))
        return 0
    if asked not in PROBLEMS:
        near = [name for name in PROBLEMS if asked.lower() in name]
        near += difflib.get_close_matches(asked, PROBLEMS, n=3, cutoff=0.7)
        texts = {n: f"{n} {p.summary} {p.why} {p.fix} {p.in_logs}".lower() for n, p in PROBLEMS.items()}
        near += [name for name, text in texts.items() if asked.lower() in text]
        near += [name for name, text in texts.items() if all(word in text for word in asked.lower().split())]
        hint = f"did you mean {summarize_names(dict.fromkeys(near), 5)}?"
        hint = hint if near else "`ringup explain` lists all; `ringup logs FILE` finds the cause in a log"
        raise UsageError(f"no problem is named {asked!r}", hint=hint)
    problem = PROBLEMS[asked]
    if args.json:
        terminal.print_json(problem=as_json(problem))
        return 0
    width = min(columns(sys.stdout), 92)
    print(f"{problem.name}  (at worst: {problem.severity})\n")
    print(textwrap.fill(problem.summary, width) + "\n")
    restart = ROWS[problem.name].sentence if problem.name in ROWS else ""
    for label, case, text in (*problem.parts, ("Restart", "", restart)):
        if text:
            print(textwrap.fill(f"{label}{case and ', '}{case}: {text}", width) + "\n")
    print(f"Page: {problem.page}")
    return 0
