"""List the runs of a log directory, newest first: state, age, nodes, ranks, script, outcome and cause."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ringup import saved_run
from ringup.cli import background, options
from ringup.errors import RingupError, UsageError
from ringup.hosts.folding import node_set
from ringup.output import terminal
from ringup.runtime import detach, node_history
from ringup.saved_run import PlanHead, RunHead
from ringup.units import columns, first_of_each, printable, show_seconds, summarize_names

OPTIONS = (
    options.RUNS_DIR,
    options.flag("--nodes", "list the nodes that ended runs in the last 30 days"),
    options.value("--forget", "NODE", "remove a node from that list", ""),
    options.JSON,
    options.flag("--quiet", "no heading"),
)


def runs_of(places: Iterable[Path]) -> list[dict[str, Any]]:
    """The runs whose run.json is in one of these folders, newest first."""
    heads = ((place, saved_run.head(place)) for place in dict.fromkeys(path.absolute() for path in places))
    found = first_of_each((run.run, as_json(place, run)) for place, run in heads if run)
    return sorted(found.values(), key=lambda row: -row["started"])


def listed(log_dir: str | None = None) -> list[dict[str, Any]]:
    """The runs in a log directory; without one those in `runs`, and the detached ones."""
    return runs_of([*folders(Path(log_dir or "runs")), *([] if log_dir else detached())])


def folders(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [folder, *(path for path in folder.iterdir() if path.is_dir())]
    return []


def detached() -> list[Path]:
    """Log folders of the detached runs that this machine started, newest first."""
    found = []
    for run in detach.known():
        with contextlib.suppress(RingupError):
            found.append(detach.run_folder(detach.load(run)))
    return found


def paths_of(words: Sequence[str]) -> list[str]:
    """Paths unchanged, and the folders of named runs; without arguments the newest run's."""
    if words and all(os.path.lexists(one) or one == "-" for one in words):
        return [*words]
    if not words:
        if rows := listed():
            return [rows[0]["log_dir"]]
        hint = "name a run, its folder, log files, or - for standard input"
        raise UsageError("no run is in runs/, and no detached one is noted here", hint=hint)
    options.some_exist(found := by_name(words))
    return found


def by_name(words: Sequence[str]) -> list[str]:
    """The folders of runs in place of their names; other words unchanged."""
    known = {row["run"]: row["log_dir"] for row in listed()}
    return [one if os.path.lexists(one) else known.get(one, one) for one in words]


def as_json(place: Path, run: RunHead) -> dict[str, Any]:
    plan, is_over = run.plan or PlanHead(), not run.is_living
    launcher = None if is_over else background.supervised(place, background.LAUNCHER)
    is_lost = launcher is not None and not launcher.is_alive and launcher.host == os.uname().nodename
    return {
        "run": run.run,
        "state": "ended" if is_over else run.outcome,
        "launcher_gone": is_lost,
        "started": run.started,
        "age_s": max(0.0, time.time() - run.started),
        "seconds": run.seconds,
        "nodes": [node.node for node in plan.nodes] or run.hosts,
        "ranks": plan.world_size,
        "script": plan.job.script
        or run.script
        or " ".join(["ringup", *plan.job.arguments[:1]] if plan.nodes else ()),
        "outcome": run.outcome if is_over else None,
        "cause": run.cause.rule if run.cause else None,
        "log_dir": str(place),
    }


LESS = (2, 3, 1)
"""Columns that a narrow terminal does without: nodes, ranks, age."""


def show(rows: Iterable[Mapping[str, Any]], heading: bool = True) -> None:
    table = [("RUN", "AGE", "NODES", "RANKS", "SCRIPT", "STATE", "CAUSE")] if heading else []
    for row in rows:
        who = node_set(row["nodes"], 2), str(row["ranks"]), Path(row["script"]).name
        state = "launcher-gone" if row["launcher_gone"] else row["state"]
        end = row["outcome"] or state, row["cause"] or ""
        table.append((row["run"], show_seconds(row["age_s"]), *who, *end))
    room = columns(sys.stdout) if sys.stdout.isatty() else sys.maxsize
    kept = list(range(len(table[0]))) if table else []
    for column in LESS:  # the run's name has its time
        widths = [max(len(row[at]) for row in table) for at in kept]
        if sum(widths) + 2 * len(widths) > room:
            kept.remove(column)
    print_table([row[at] for at in kept] for row in table)


def print_table(table: Iterable[Iterable[str]]) -> None:
    for line in terminal.in_columns([[printable(cell, 60) for cell in row] for row in table]):
        print(terminal.fitted(line, sys.stdout))


def show_nodes(args: argparse.Namespace) -> None:
    known = node_history.records()
    if args.json:
        rows = [{"node": n, **vars(p), "is_often_failing": p.is_often_failing} for n, p in known.items()]
        terminal.print_json(nodes=rows)
        return
    table = [("NODE", "RUNS", "ENDED", "OF LAST 5", "LAST", "CAUSES")] if not args.quiet and known else []
    for node, past in known.items():
        counts = str(past.runs), str(past.ended), f"{past.ended_lately} of {past.lately}"
        age = f"{show_seconds(max(0.0, time.time() - past.last_s))} ago"
        table.append((node, *counts, age, summarize_names(past.causes, 3)))
    print_table(table)
    if not known:
        print("no node ended a run in the last 30 days")


def forget(node: str) -> int:
    try:
        if node_history.forget(node):
            print(f"{printable(node)}: forgotten")
            return 0
    except OSError as error:
        raise RingupError(f"the record cannot be written: {error.strerror}", hint="try again") from error
    raise UsageError(f"no run was ended by {node[:80]!r}", hint="`ringup runs --nodes` lists the nodes")


def run(args: argparse.Namespace) -> int:
    if args.forget:
        return forget(args.forget)
    if args.nodes:
        show_nodes(args)
        return 0
    rows = listed(args.log_dir)
    if args.json:
        terminal.print_json(runs=rows)
    elif rows:
        show(rows, not args.quiet)
        if not args.quiet and any(row["outcome"] is None for row in rows if row["run"] in detach.known()):
            terminal.say("running: the last known state; `ringup attach RUN` asks a detached run")
    else:
        print(f"no run in {terminal.path_shown(args.log_dir or 'runs')}")
    return 0
