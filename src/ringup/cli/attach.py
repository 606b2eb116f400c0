"""
Return to a run started with --detach: its output, its state, its end.

Ctrl-C ends the run.  Closing the terminal only leaves it.  Without a name, the newest run that has not ended.
While attached, it detects hangs like `ringup run`.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path

from ringup import saved_run
from ringup.cli import runs
from ringup.cli.launching import (
    END_FILE,
    RankLines,
    cause_of,
    claimed,
    follow_events,
    show_end,
    watch_of,
    with_cause,
)
from ringup.cli.options import WATCH, flag, folder, value
from ringup.errors import LaunchError
from ringup.output import terminal
from ringup.runtime import Event, attach, detach
from ringup.transport import Transport
from ringup.units import printable

MOST_LINES = 200
"""Of the end of a run."""

OPTIONS = (
    value("run_id", "RUN", "the run's name, as `ringup run --detach` printed it", nargs="?"),
    flag("--list", "list the runs recorded on this machine, newest first"),
    value("--log-dir", "D", "one file per rank and run.json (default: the run's own)", None, folder),
    *WATCH,
    flag("--json", "run.json on stdout, everything else on stderr"),
    flag("--quiet", "print only output and result"),
)


def run(args: argparse.Namespace) -> int:
    known = detach.known()
    if args.list and args.json:
        terminal.print_json(runs=known)
        return 0
    none = "no detached run is recorded on this machine"
    if args.list and not known:
        print(none)
        return 0
    if not known and args.run_id is None:
        raise LaunchError(none, hint="attach where the run was started; `ringup runs` lists other runs")
    noted = [row for row in runs.runs_of(runs.detached()) if row["run"] in known]
    if args.list:
        runs.show(noted, heading=bool(noted))
        gone = [run for run in known if run not in {row["run"] for row in noted}]
        runs.print_table((run, "its folder is gone: `ringup attach RUN` asks its nodes") for run in gone)
        return 0
    living = [row["run"] for row in noted if row["state"] in saved_run.LIVING]
    found = detach.load(args.run_id or next(iter((*living, *known))))
    if (folder := detach.run_folder(found)) != Path(found.log_dir):
        from ringup.cli import supervising

        return supervising.attach_to(folder, args)
    ended = saved_run.read(folder)
    if ended is not None and not ended.is_living and not args.log_dir:
        return show_ended(folder, ended, args)
    with (
        claimed(Path(args.log_dir or found.log_dir), found.run) as log_dir,
        Transport(found.hosts, ssh_config=found.ssh_config) as transport,
    ):
        head, write = found.plan.nodes[0].node, RankLines(args)
        line = f"ringup: run {found.run}, head {head}, logs in {terminal.path_shown(log_dir)}"
        terminal.say(line, quiet=args.quiet)
        result = attach.follow(
            found,
            transport,
            write=write,
            log_dir=log_dir,
            on_event=without_late_starts(follow_events(found.plan.world_size, args), write),
            watcher=watch_of(args.hang_report, args.hang_timeout, transport),
        )
    result, lines, _ = with_cause(result)
    return show_end(result, lines, write, args)


def without_late_starts(on_event: Callable[[Event], None], write: RankLines) -> Callable[[Event], None]:
    """`on_event` without the start of ranks whose output is shown: the head node sends the output first."""
    return lambda event: None if event.kind == "joined" and write.has_lines else on_event(event)


def show_ended(folder: Path, ended: saved_run.SavedRun, args: argparse.Namespace) -> int:
    """The end of a run as it was seen then; nothing is written.  The run's exit code."""
    if args.json:
        print((folder / saved_run.FILE).read_text(encoding="utf-8", errors="replace"))
    where = terminal.path_shown(folder)
    terminal.say(f"ringup: run {ended.run} has ended, logs in {where}", quiet=args.quiet)
    with contextlib.suppress(OSError):
        text = (folder / END_FILE).read_text(encoding="utf-8", errors="replace")
        terminal.say(*(printable(line, 2000) for line in text.splitlines()[:MOST_LINES]))
    if ended.cause:
        terminal.say(*cause_of(str(folder))[0])
    return ended.exit_code or 0
