"""
Name the root cause from NCCL, torch and launcher output, and count collectives.

Give it files and directories, plain or .gz, in any mix; `-` is standard input.  Dumps of torch's flight
recorder among them (nccl_trace_rank_N and the like, pickled or JSON) are joined: which rank is behind in
which collective, or calls another kind, size or type.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringup import __version__
from ringup.commands import common
from ringup.errors import UsageError
from ringup.units import columns, printable

if TYPE_CHECKING:
    from ringup.logs.read import Diagnosis
    from ringup.logs.show import Style


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
        help="show collectives per iteration; REGEX finds the line that starts one (default: "
        "common trainers' lines)",
    )
    parser.add_argument("--follow", action="store_true", help="keep reading as the files grow, until Ctrl-C")
    parser.add_argument(
        "--from", dest="from_file", metavar="F", help="a saved collection: what the nodes' hardware offers"
    )
    parser.add_argument(
        "--processes",
        type=common.positive,
        default=0,
        metavar="N",
        help="processes that read (default: by size)",
    )
    parser.add_argument(
        "--all",
        "--verbose",
        dest="verbose",
        action="store_true",
        help="every cause, all evidence, counts per rank and communicator, the last line of every file",
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout, everything else on stderr")
    parser.add_argument("--html", metavar="F", help="write a self-contained page as well")
    parser.add_argument("--quiet", action="store_true", help="the verdict only")


def run(args: argparse.Namespace) -> int:
    """Read, diagnose, show; 1 when a cause of severity error was named."""
    # Read by numpy's BLAS when it is imported, whose threads, never used here, spin on the other cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from ringup.logs import show
    from ringup.logs.read import read_logs

    paths = list(args.paths)
    if not paths:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(
                "no log was named", hint="ringup logs FILE..., a directory, or `-` for standard input"
            )
        paths = ["-"]
    if args.html:
        common.writable(args.html)
    if args.follow:
        _fits_follow(paths, args)
        return _follow(paths, args)
    if not (args.json or args.quiet):
        _first_look(paths)
    diagnosis = read_logs(
        paths, by_iteration=args.by_iteration, processes=args.processes, facts=args.from_file
    )
    for path, reason in diagnosis.unreadable:
        print(f"ringup logs: {printable(path)}: {reason}", file=sys.stderr)
    if args.html:
        from ringup.commands.logs_page import page

        common.write(Path(args.html), page(diagnosis))
    if args.json:
        json.dump(show.as_json(diagnosis), sys.stdout)
        sys.stdout.write("\n")
    else:
        iterations = args.by_iteration is not None
        text = show.as_text(
            diagnosis, _style(), verbose=args.verbose, quiet=args.quiet, iterations=iterations
        )
        print(text)
        if not diagnosis.causes:
            common.say(next_step(diagnosis), quiet=args.quiet)
    return 0 if diagnosis.healthy else 1


def next_step(diagnosis: Diagnosis) -> str:
    """What tells more of a job whose logs name no cause: a line or two."""
    hint = "hint: while a job hangs, `ringup stacks` shows where each rank is"
    hosts = any(host.kind or host.bootstrap for host in diagnosis.story.hosts.values())
    if hosts or diagnosis.versions.get("nccl") or diagnosis.run.transports or diagnosis.run.collectives:
        return hint
    return f"{hint}\nhint: NCCL's own lines are missing: NCCL_DEBUG=INFO, or `ringup run --debug`"


def _style() -> Style:
    from ringup.logs.show import Style

    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Style(wanted, columns(sys.stdout))


def _fits_follow(paths: list[str], args: argparse.Namespace) -> None:
    """Say what is followed; raises UsageError for what cannot be."""
    from ringup.logs import files

    if "-" in paths:
        raise UsageError(
            "--follow reads files that grow, not standard input",
            hint="name them: ringup logs --follow runs/RUN",
        )
    for name in ("html", "from_file", "by_iteration"):
        if getattr(args, name) is not None:
            option = name.removesuffix("_file").replace("_", "-")
            raise UsageError(f"--follow and --{option} do not go together", hint="leave one of them out")
    found, missing = files.find(paths)
    for path, reason in missing:
        common.say(f"ringup logs: {printable(path)}: {reason} yet")
    common.say(f"following {len(found)} file{'s' * (len(found) != 1)}; Ctrl-C ends it", quiet=args.quiet)


def _follow(paths: list[str], args: argparse.Namespace) -> int:
    """Say each change of the first cause until Ctrl-C; then 1 when it is an error."""
    from ringup.logs import show
    from ringup.logs.follow import changes

    code = 0
    with contextlib.suppress(KeyboardInterrupt):
        for story, causes in changes(paths):
            code = int(causes[0].severity == "error")
            if args.json:
                told = {"ringup": __version__, "schema": show.SCHEMA, **show.cause_json(causes[0], story)}
                print(json.dumps(told), flush=True)
            else:
                print("\n".join(show.cause_lines(causes[0], story, _style())), flush=True)
    return code


def _first_look(paths: list[str]) -> None:
    """On stderr, before a long reading: who seems to be stuck."""
    from ringup.logs.read import first_look

    verdict = first_look(paths)
    if verdict is None:
        return
    for stuck in verdict.stuck[:3]:
        where = f" on {stuck.host}" if stuck.host else ""
        line = f"first look: rank {stuck.rank}{where}: {stuck.reason} ({stuck.confidence} confidence)"
        print(printable(line), file=sys.stderr)
