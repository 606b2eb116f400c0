"""Options for restarts and for saving before the end, and their effect on a run."""

from __future__ import annotations

import argparse
import signal

from ringup.agent.guard import messages
from ringup.cli.options import count, group, many, number, positive, seconds, value
from ringup.errors import UsageError
from ringup.recovery import table
from ringup.recovery.decision import Policy
from ringup.units import plural

MOST_RESTARTS = 1000
MOST_GRACE_S = 86400.0
LEFT_AFTER_SAVE_S = 60
"""Seconds of the job's time for ending the run after the ranks have saved."""


def signal_number(text: str) -> int:
    """
    A signal by name or number, for argparse.

    >>> signal_number("USR1"), signal_number("sigterm"), signal_number("12")
    (10, 15, 12)
    """
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    is_number = text.isascii() and text.isdecimal() and len(text) < 4
    known = {s.name: s for s in signal.Signals}
    found = next((s for s in known.values() if is_number and s == int(text)), known.get(name))
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a signal, e.g. USR1 or TERM")
    if found.name not in messages.SAVE_SIGNALS:
        can = ", ".join(name.removeprefix("SIG") for name in messages.SAVE_SIGNALS)
        raise argparse.ArgumentTypeError(f"{found.name} does not ask a rank to save; one of {can}")
    return int(found)


restarts = number(f"a count from 0 to {MOST_RESTARTS}", 0, MOST_RESTARTS, int)
grace = number("a time from 0 to 86400 seconds", 0, MOST_GRACE_S, seconds)
RESTARTS = group(
    "restarts",
    value("--max-restarts", "K", "restart at most K times in a row without progress (0)", 0, restarts),
    value("--spares", "N", "the last N nodes are spares: checked, idle until needed (0)", 0, count),
    value("--min-nodes", "M", "go on with M nodes when no spare is left (all)", 0, positive),
    value("--progress", "PATH", "file with a number, a checkpoint, or the directory of checkpoints", ""),
    many("--restart-on", "CODE|CAUSE", "restart after this exit code or cause; repeatable"),
    many("--no-restart-on", "CODE|CAUSE", "never restart after it; repeatable"),
    value("--save-signal", "SIG", "signal that asks the ranks to save before the end", None, signal_number),
    value("--save-grace", "S", "time the ranks get to save (120)", 120.0, grace),
)


def policy_from(args: argparse.Namespace) -> Policy:
    """The policy of the options.  Raises UsageError for an invalid exit code or cause."""
    restart, never = (
        frozenset(table.code_or_cause(option, word) for text in given for word in text.split(","))
        for option, given in (("--restart-on", args.restart_on), ("--no-restart-on", args.no_restart_on))
    )
    if both := sorted(map(str, restart & never)):
        raise UsageError(f"{both[0]} is in --restart-on and --no-restart-on", hint="leave one of them out")
    return Policy(args.max_restarts, args.min_nodes, restart, never)


def check_node_count(args: argparse.Namespace, count: int) -> None:
    """Raises UsageError if `count` named nodes, spares included, are too few for the run."""
    used = count - args.spares
    if used < 1:
        wrong = f"--spares {args.spares}: {plural(count, 'node')} leave none for the run"
        raise UsageError(wrong, hint="name more nodes, or fewer spares")
    if args.min_nodes > used:
        wrong = f"--min-nodes {args.min_nodes}: the run has {plural(used, 'node')} without its spares"
        raise UsageError(wrong, hint=f"--min-nodes {used} or less")
