"""
Back to a run started with --detach: its output, its state, its end.

Ctrl-C ends the run.  Closing the terminal only leaves it.  Without a name, the newest run.
Hangs are looked for while it is attached, as `ringup run` does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ringup.commands import common
from ringup.commands.run import (
    add_watch_arguments,
    follow_events,
    is_consequence,
    say_end,
    watch_of,
    write_to,
)
from ringup.errors import LaunchError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup attach`."""
    parser.add_argument(
        "run_id", nargs="?", metavar="RUN", help="the run's name, as `ringup run --detach` printed it"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the runs noted on this machine, newest first"
    )
    parser.add_argument(
        "--log-dir", metavar="D", help="one file per rank and run.json (default: the run's own)"
    )
    add_watch_arguments(parser)
    parser.add_argument("--json", action="store_true", help="run.json on stdout, everything else on stderr")
    parser.add_argument("--quiet", action="store_true", help="no progress, only output and result")


def run(args: argparse.Namespace) -> int:
    """Follow the run to its end; the job's own exit code."""
    from ringup import reach
    from ringup.launch import attach, detach

    known = detach.known()
    if args.list and args.json:
        from ringup.report import envelope

        print(json.dumps(envelope(runs=known)))
        return 0
    if args.list:
        print("\n".join(known) or "no detached run is noted here")
        return 0
    if args.run_id is None and not known:
        raise LaunchError(
            "no detached run is noted here", hint="attach from where `ringup run --detach` was started"
        )
    found = detach.load(args.run_id or known[0])
    log_dir = Path(args.log_dir or found.log_dir)
    common.say(
        f"ringup: run {found.run}, head {found.plan.nodes[0].node}, logs in {log_dir}", quiet=args.quiet
    )
    with reach.open(found.hosts, ssh_config=found.ssh_config) as door:
        result = attach.follow(
            found,
            door,
            write=write_to(sys.stderr if args.json else sys.stdout),
            log_dir=log_dir,
            on_event=follow_events(found.plan.world_size, args.quiet),
            is_consequence=is_consequence,
            watcher=watch_of(args, door),
        )
    if args.json:
        print(json.dumps(result.record, indent=1))
    say_end(result)
    return result.exit_code
