"""Problems that a run's script shows before it is started."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ringup.cli.text_files import nearby, read_script
from ringup.errors import UsageError
from ringup.output import terminal
from ringup.rules import Finding

if TYPE_CHECKING:
    from ringup.model import Cluster
    from ringup.planning import Plan


ALSO_ON_ONE_NODE = (
    *("collective-on-some-ranks", "device-chosen-too-late", "device-never-chosen", "script-not-readable"),
    *("gradients-never-averaged", "timeout-not-timedelta"),
)
"""Errors that also affect ranks on one machine."""
STOPS = ("local-rank-as-global-rank", "master-address-in-code", "spawn-knows-one-node")
"""Errors that always prevent several nodes from forming one world; other errors become warnings."""


def before_run(args: argparse.Namespace, script: str) -> None:
    """Read a script on this machine into `args` for `of_nodes`; set `args.launcher` if not given."""
    from ringup import lint
    from ringup.lint import fixes

    given = args.launcher if args.launcher != "auto" else ""
    args.launcher = given or "torchrun"
    args.script_findings, args.script_start, args.script_workers = [], None, ("", 0)
    args.script_by_scheduler = []
    args.script_world = ("", -1, -1)
    path = Path(args.chdir or ".") / script
    try:
        text = read_script(str(path)) if script and path.is_file() else ""
    except (UsageError, OSError):  # is_file raises OSError for a name longer than file systems allow
        return
    if not text or not lint.is_script(script, text):
        return
    modules = partial(nearby, str(Path(args.chdir or ".") / "-"))
    start = lint.how_to_start(text, script, modules)
    if not given and start.launcher != "torchrun":
        args.launcher = start.launcher
        why = f"{start.why} ({script}:{start.line})"
        terminal.say(f"ringup: uses --with {start.launcher}: {why}", quiet=args.quiet)
    args.script_start = start
    args.script_workers = lint.workers(text, script)
    if start.kind != "spawn":  # the script counts its own ranks
        args.script_world = lint.written_world(text, script)
    args.script_by_scheduler = lint.of_scheduler(text, script, args.launcher)
    found = lint.lint({script: text}, lambda _, name: modules(name))
    args.script_findings = fixes.not_ignored(found, {script: text})


def misfit(args: argparse.Namespace) -> list[Finding]:
    """A finding if --with names a launcher that cannot start the script."""
    from ringup import lint

    start, (script, *given) = args.script_start, args.script
    # An option of the script that the user gives is the user's decision.
    if start is None or (start.argument and any(w.partition("=")[0] == start.argument for w in given)):
        return []
    return lint.misfit(start, args.launcher, script)


def softened(findings: list[Finding], but: Sequence[str] = ()) -> list[Finding]:
    """Errors as warnings, except those of some rules: the text alone does not show how the script is used."""
    return [
        replace(f, severity="warning") if f.severity == "error" and f.rule not in but else f for f in findings
    ]


def of_nodes(args: argparse.Namespace, cluster: Cluster, plan: Plan | None) -> list[Finding]:
    """The findings in the script that apply to a run of this plan on these nodes."""
    from ringup import lint

    several = len(cluster.nodes) > 1
    found = [f for f in args.script_findings if several or f.rule in ALSO_ON_ONE_NODE]
    # Nodes of one machine share localhost; a newer Python may read what this one cannot.
    here = ".".join(map(str, sys.version_info[:2]))
    is_same = all(node.interpreter.version.rpartition(".")[0] in ("", here) for node in cluster.nodes)
    stops = [rule for rule in STOPS if not cluster.is_local or rule != STOPS[1]]
    found = softened(found, [*stops, *["script-not-readable"] * is_same])
    if plan and plan.world_size > 1:
        wrong = lint.wrong_world(args.script_world, plan.world_size)
        found = [f for f in found if not wrong or f.rule != wrong[0].rule] + wrong + misfit(args)
        if several:
            found += lint.one_rank_for_all(args.script_start, args.launcher, args.script[0], args.script[1:])
    if plan and any(node.nproc > 1 for node in plan.nodes):
        found += args.script_by_scheduler
    for node in plan.nodes if plan else ():
        facts = cluster.node(node.node)
        if not {"cpu_count", "container"} & set(facts.unknown):
            cpus = min(facts.cpu_count, facts.container.cpus)
            found += lint.too_many_workers(args.script_workers, node.node, node.nproc, cpus)
    return found
