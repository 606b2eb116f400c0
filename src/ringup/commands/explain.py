"""What a problem means, why it matters and how to fix it; without a name, the list."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ringup.errors import UsageError
from ringup.units import columns

if TYPE_CHECKING:
    from ringup.rules import Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup explain`."""
    parser.add_argument("name", nargs="?", help="a problem's name, as check and logs print it")
    parser.add_argument("--json", action="store_true", help="JSON on stdout")


def listed(problems: Iterable[Problem]) -> Iterator[str]:
    """By name; on a terminal the text stays in its column, elsewhere each is one line."""
    known = sorted(problems, key=lambda problem: problem.name)
    width = max(len(problem.name) for problem in known)
    room = columns(sys.stdout) if sys.stdout.isatty() else sys.maxsize
    for problem in known:
        head = f"{problem.name:<{width}}  {problem.severity:<7}  "
        indent = " " * min(len(head), room // 2)
        yield textwrap.fill(
            problem.summary, room, initial_indent=head, subsequent_indent=indent, break_long_words=False
        )


def run(args: argparse.Namespace) -> int:
    """Print one problem's text, or one line for each."""
    import ringup.checks
    import ringup.lint
    import ringup.logs.causes  # noqa: F401  (all three fill the registry)
    from ringup.report import envelope
    from ringup.rules import PROBLEMS

    if args.name is None:
        if args.json:
            print(json.dumps(envelope(problems=[vars(p) for p in PROBLEMS.values()])))
            return 0
        print("\n".join(listed(PROBLEMS.values())))
        return 0
    if args.name not in PROBLEMS:
        near = difflib.get_close_matches(args.name, PROBLEMS, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`ringup explain` lists them all"
        raise UsageError(f"no problem is named {args.name!r}", hint=hint)
    problem = PROBLEMS[args.name]
    if args.json:
        print(json.dumps(envelope(problem=vars(problem))))
        return 0
    print(f"{problem.name}  (at worst: {problem.severity})\n")
    for label, text in (
        ("", problem.summary),
        ("Why", problem.why),
        ("Fix", problem.fix),
        ("In logs", problem.in_logs),
    ):
        if text:
            print(
                textwrap.fill(f"{label}: {text}" if label else text, width=min(columns(sys.stdout), 92))
                + "\n"
            )
    return 0
