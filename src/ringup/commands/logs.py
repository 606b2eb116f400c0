"""
Name the root cause from NCCL, torch and launcher output, and count collectives.

Give it files and directories, plain or .gz, in any mix; `-` is standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ringup.errors import UsageError

HELP = "name the root cause from NCCL, torch and launcher output"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup logs`."""
    parser.add_argument(
        "paths", nargs="*", metavar="PATH", help="log files and directories; - is standard input"
    )
    parser.add_argument(
        "--by-iteration",
        nargs="?",
        const="",
        metavar="REGEX",
        help="show collectives per iteration; REGEX finds the line that starts one (default: common trainers' lines)",
    )
    parser.add_argument("--follow", action="store_true", help="keep reading as the files grow, until Ctrl-C")
    parser.add_argument(
        "--from", dest="from_file", metavar="F", help="a saved collection: what the nodes' hardware offers"
    )
    parser.add_argument(
        "--processes", type=int, default=0, metavar="N", help="processes that read (default: by size)"
    )
    parser.add_argument(
        "--all",
        "--verbose",
        dest="verbose",
        action="store_true",
        help="every cause, all evidence, per-rank counts",
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout, everything else on stderr")
    parser.add_argument("--html", metavar="F", help="write a self-contained page as well")
    parser.add_argument("--quiet", action="store_true", help="the verdict only")


def run(args: argparse.Namespace) -> int:
    """Read, diagnose, show; 1 when a cause of severity error was named."""
    from ringup.logs import show
    from ringup.logs.read import read_logs

    paths = list(args.paths)
    if not paths:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(
                "no log was named", hint="ringup logs FILE..., a directory, or `-` for standard input"
            )
        paths = ["-"]
    if args.follow:
        from ringup.logs.follow import follow

        return follow(paths, args)
    diagnosis = read_logs(
        paths, by_iteration=args.by_iteration, processes=args.processes, facts=args.from_file
    )
    for path, reason in diagnosis.unreadable:
        print(f"ringup logs: {path}: {reason}", file=sys.stderr)
    if args.html:
        from ringup.logs.page import page

        Path(args.html).write_text(page(diagnosis), encoding="utf-8")
    if args.json:
        json.dump(
            show.as_json(diagnosis, everything=args.by_iteration is not None or args.verbose), sys.stdout
        )
        sys.stdout.write("\n")
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        style = show.Style(colour)
        print(
            show.as_text(
                diagnosis,
                style,
                verbose=args.verbose,
                quiet=args.quiet,
                iterations=args.by_iteration is not None,
            )
        )
    return 0 if diagnosis.healthy else 1
