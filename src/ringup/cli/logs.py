"""
Name the root cause from NCCL, torch and launcher output, and count collectives.

For a restarted run, every attempt is read: the first one that failed is shown, then a line for each.

Give it files and directories, plain or compressed (.gz, .xz, .bz2, .zst), in any mix; `-` is standard input.
Without any it reads standard input, on a terminal the newest run.
Dumps of torch's flight recorder among them (nccl_trace_rank_N and similar, pickled or JSON) are compared:
which rank is behind in which collective, or calls another kind, size or type.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringup.cli import options
from ringup.errors import UsageError
from ringup.output import terminal
from ringup.units import plural, printable

if TYPE_CHECKING:
    from ringup.logs.read import Diagnosis


BY_ITERATION = "show collectives per iteration; REGEX finds its first line (default: common trainers' lines)"
HARDWARE = "a file of `check --save`: the nodes' hardware"
ALL = "every cause, all evidence, counts per rank and communicator, the last line of every file"
AGAINST = "a log or run that worked: list the changes, and ignore lines that it has, too"
SINCE = 'read from this time on ("2026-11-20 08:30", "08:30:15"), or so long before the end ("10m", "2h")'
OPTIONS = (
    options.words("paths", "PATH", "log files, directories and runs; - is standard input"),
    options.value("--by-iteration", "REGEX", BY_ITERATION, nargs="?", const=""),
    options.flag("--digest", "at most 60 lines without secrets, to paste into an issue, a chat or a model"),
    options.value("--against", "GOOD", AGAINST, None, options.there),
    options.value("--since", "TIME", SINCE),
    options.flag("--follow", "keep reading as the files grow, until Ctrl-C"),
    options.value("--from", "F", HARDWARE, None, options.readable, dest="from_file"),
    options.value("--processes", "N", "processes that read (default: by size)", 0, options.positive),
    options.flag("--all --verbose", ALL, dest="verbose"),
    options.JSON,
    options.value("--html", "F", "write a self-contained page as well", None, options.writable),
    options.flag("--quiet", "print only the verdict"),
)


def run(args: argparse.Namespace) -> int:
    """Read, diagnose, show; 1 when a cause of severity error was named."""
    from ringup.logs import files
    from ringup.logs.read import first_look, read_attempts, read_logs
    from ringup.output import logs_report as show

    paths = list(args.paths)
    if not paths and args.by_iteration and Path(args.by_iteration).exists():  # no REGEX, but a PATH
        paths, args.by_iteration = [args.by_iteration], ""
    if not paths and sys.stdin is not None and not sys.stdin.isatty():
        paths = ["-"]
    if not all(path == "-" or os.path.lexists(path) for path in paths or [""]):
        from ringup.cli import runs

        named, paths = paths, runs.by_name(paths) if paths else runs.paths_of([])
        if not named:
            terminal.say(f"the newest run: {terminal.path_shown(paths[0])}", quiet=args.quiet)
    if args.follow:
        return _follow(paths, args)
    options.some_exist(paths)
    for stuck in first_look(paths)[:3] if not (args.json or args.quiet) else ():  # before a long reading
        where = f" on {stuck.host}" if stuck.host else ""
        why = f"{stuck.reason} ({stuck.confidence} confidence)"
        terminal.say(f"first look: rank {stuck.rank}{where}: {why}")
    how = {
        "by_iteration": args.by_iteration,
        "processes": args.processes,
        "facts": args.from_file,
        "from_time": args.since,
        "against": args.against,
    }
    if args.digest and args.json:
        raise UsageError("--digest is a text for people, --json is not", hint="leave one of them out")
    attempts: dict[str, Diagnosis | None] = {}
    if folders := files.attempts(paths):
        diagnosis, attempts = read_attempts(folders, **how)
    else:
        diagnosis = read_logs(paths, **how)
    for one in attempts.values() or [diagnosis]:
        for path, reason in one.unreadable if one else ():
            terminal.say(f"ringup logs: {terminal.path_shown(path)}: {reason}")
    if args.html:
        from ringup.output.html_page import logs_page

        terminal.write(Path(args.html), logs_page(diagnosis))
    if args.digest:
        from ringup.output.digest import digest

        terminal.show(digest(diagnosis))
    elif args.json:
        print(json.dumps(show.as_json(diagnosis, attempts)))
    else:
        _show(args, diagnosis, attempts)
    return 0 if diagnosis.healthy else 1


def _show(args: argparse.Namespace, diagnosis: Diagnosis, attempts: dict[str, Diagnosis | None]) -> None:
    from ringup.output import logs_report as show

    what = {"verbose": args.verbose, "quiet": args.quiet, "iterations": args.by_iteration is not None}
    text = show.as_text(diagnosis, terminal.Style(sys.stdout), **what)
    lines = [] if args.quiet else show.attempt_lines(attempts, whole=args.verbose)
    last = [*attempts.values()][-1:]
    if last and last[0] and has_finished(last[0]) and diagnosis.causes:
        text = f"the run finished in attempt {len(attempts)}; its first failure:\n{text}"
    terminal.show("\n".join([text, *lines]))
    if not diagnosis.causes and not has_finished(diagnosis):
        terminal.say(next_step(diagnosis), quiet=args.quiet)


def has_finished(diagnosis: Diagnosis) -> bool:
    """Whether `ringup run` saw it end well."""
    return diagnosis.story.ended is not None and diagnosis.story.ended.outcome == "ok"


def next_step(diagnosis: Diagnosis) -> str:
    """How to get more information if logs name no cause: a line or two."""
    hint = "hint: while a job hangs, `ringup stacks` shows where each rank is"
    hosts = any(host.kind or host.bootstrap for host in diagnosis.story.hosts.values())
    if hosts or diagnosis.versions.get("nccl") or diagnosis.run.transports or diagnosis.run.collectives:
        return hint
    return f"{hint}\nhint: NCCL's INFO lines are missing: set NCCL_DEBUG=INFO, or use `ringup run --debug`"


def _follow(paths: list[str], args: argparse.Namespace) -> int:
    """Print each change of the first cause until Ctrl-C; then return 1 if it is an error."""
    from ringup.logs import files
    from ringup.logs.follow import changes
    from ringup.output import logs_report as show

    if "-" in paths:
        hint = "name them: ringup logs --follow runs/RUN"
        raise UsageError("--follow reads files that grow, not standard input", hint=hint)
    for name in ("html", "from_file", "by_iteration", "against", "since", "digest"):
        if getattr(args, name) not in (None, False):
            option = name.removesuffix("_file").replace("_", "-")
            raise UsageError(f"--follow and --{option} cannot be combined", hint="leave one of them out")
    found, missing = files.find(paths)
    for path, reason in missing:
        terminal.say(f"ringup logs: {printable(path)}: {reason} yet")
    terminal.say(f"following {plural(len(found), 'file')}; Ctrl-C ends it", quiet=args.quiet)
    code = 0
    with contextlib.suppress(KeyboardInterrupt):
        for story, causes in changes(paths):
            code = int(any(cause.severity == "error" for cause in causes))
            if args.json:
                print(json.dumps(terminal.envelope(**show.cause_json(causes[0], story))), flush=True)
            else:
                terminal.show("\n".join(show.cause_lines(causes[0], story, terminal.Style(sys.stdout))))
    return code
