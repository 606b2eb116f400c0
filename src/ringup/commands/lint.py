"""
What in a training script will break or hang when it runs on several nodes.

Python scripts, shell files and job files (Slurm, PBS, LSF) are read, never run.  Files given together are
also compared with one another: the lines for two nodes, a script with the job file that starts it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ringup.errors import UsageError
from ringup.rules import Finding

if TYPE_CHECKING:
    from ringup.facts import Cluster
    from ringup.lint import HowToStart
    from ringup.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup lint`."""
    parser.add_argument("scripts", nargs="+", metavar="SCRIPT", help="a Python script, a shell or job file")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, everything else on stderr")
    parser.add_argument("--quiet", action="store_true", help="findings alone")


def read(path: str) -> str:
    """
    A file's text, whatever bytes it holds.

    Raises UsageError for one that cannot be read or is no text of sane size.
    """
    from ringup.lint import LONGEST_BYTES

    try:
        with Path(path).open("rb") as file:
            data = file.read(LONGEST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="name a script or a job file") from error
    if len(data) > LONGEST_BYTES:
        raise UsageError(
            f"{path} is longer than {LONGEST_BYTES >> 20} MiB", hint="name a script or a job file"
        )
    return data.decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n")


def run(args: argparse.Namespace) -> int:
    """Read, judge, show."""
    from ringup import lint, report

    files = {path: read(path) for path in dict.fromkeys(args.scripts)}
    findings = lint.lint(files)
    starts = {
        path: lint.how_to_start(text, path) for path, text in files.items() if lint.is_script(path, text)
    }
    if args.json:
        print(
            json.dumps(
                report.envelope(findings=[report.finding_json(f) for f in findings], start=_plain(starts))
            )
        )
    else:
        show(findings, starts, args.quiet)
    return 1 if any(f.severity == "error" for f in findings) else 0


def _plain(starts: dict[str, HowToStart]) -> dict[str, dict[str, object]]:
    return {path: vars(start) for path, start in starts.items()}


def show(findings: list[Finding], starts: dict[str, HowToStart], quiet: bool) -> None:
    """Findings worst first, then how each script would be started."""
    from ringup import lint, report

    style = report.Style(sys.stdout)
    for finding in findings:
        print("\n".join(report.finding_lines(finding, style)) + "\n")
    if quiet:
        return
    unreadable = {f.where.rpartition(":")[0] for f in findings if f.rule == lint.NOT_READABLE.name}
    for path, start in starts.items():
        if path not in unreadable:
            print(f"{path}: `ringup run --with {start.launcher}`: {start.why}")
    print(report.counts(findings))


# -- before a run ------------------------------------------------------------------------------

ALSO_ON_ONE_NODE = (
    "collective-on-some-ranks",
    "device-chosen-too-late",
    "device-never-chosen",
    "script-not-readable",
)
"""What breaks between the ranks of one machine, too."""


def before_run(args: argparse.Namespace, script: str) -> list[Finding]:
    """
    Read the script of a run where it lies on this machine, and set `args.launcher` if it was not given.

    What its text alone tells is shown and never stops a run: errors become warnings.
    """
    from dataclasses import replace

    from ringup import lint
    from ringup.commands.common import say

    given = args.launcher
    args.launcher = given or "torchrun"
    path = Path(args.chdir or ".") / script
    try:
        text = read(str(path)) if path.is_file() else ""
    except (UsageError, OSError):  # a name longer than file systems allow is an OSError of is_file
        return []
    if not text or not lint.is_script(script, text):
        return []
    start = lint.how_to_start(text, script)
    if not given and start.launcher != "torchrun":
        args.launcher = start.launcher
        say(f"ringup: --with {start.launcher}: {start.why} ({script}:{start.line})", quiet=args.quiet)
    elif given in ("torchrun", "launch", "accelerate") and start.kind == "spawn":
        say(f"ringup: {start.why} ({script}:{start.line}); under {given} each rank does so: --with spawn?")
    args.script_workers = lint.workers(text, script)
    found = lint.lint({script: text})
    return [replace(f, severity="warning") if f.severity == "error" else f for f in found]


def of_nodes(args: argparse.Namespace, cluster: Cluster, plan: Plan) -> list[Finding]:
    """What was read in the script, as far as it concerns a run of this plan on these nodes."""
    from ringup import lint

    several = len(cluster.nodes) > 1
    found = [f for f in args.script_findings if several or f.rule in ALSO_ON_ONE_NODE]
    workers = getattr(args, "script_workers", None)
    for node in plan.nodes if workers else ():
        facts = cluster.node(node.node)
        known = not {"cpu_count", "container"} & set(facts.unknown)
        if workers and known:
            cpus = min(facts.cpu_count, facts.container.cpus)
            found += lint.too_many_workers(workers, node.node, node.nproc, cpus)
    return found
