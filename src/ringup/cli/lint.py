"""
What in a training script will break or hang when it runs on several nodes.

Python scripts, shell files and job files (Slurm, PBS, LSF) are read, never run; of a directory all such files
below it.  Files given together are also compared with one another: the lines for two nodes, a script with the
job file that starts it.  `# ringup: ignore[RULE]` at the end of a line leaves out what is found there.

--fix repairs what is certain: a misspelt variable of NCCL or Gloo, `==` in an assignment, blanks in NCCL's
lists, `export A = b`, a dash in place of two hyphens, a blank behind a backslash.  It changes nothing else in
a file and no line with an ignore comment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ringup import progress
from ringup.cli import options, request
from ringup.errors import UsageError
from ringup.output import terminal
from ringup.rules import INTERNAL_ERRORS, Finding, skipped_json
from ringup.units import plural

if TYPE_CHECKING:
    from ringup.lint import HowToStart
    from ringup.model import Cluster
    from ringup.planning import Plan


FORMATS = ("text", "json", "sarif", "github")
OPTIONS = (
    options.words("scripts", "SCRIPT", "a Python script, a shell or job file, a directory, - for stdin", "+"),
    options.choice("--format", FORMATS, f"{', '.join(FORMATS)} (text)", "text"),
    options.flag("--json", "the same as --format json"),
    options.flag("--fix", "repair what is certain, and list the rest"),
    options.flag("--diff", "print what --fix would change, and change nothing"),
    options.flag("--quiet", "findings alone"),
)


SUFFIXES = (".py", ".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".lsf")
NOT_OURS = {"node_modules", "site-packages", "__pycache__", "build", "dist", "venv", "env"}
MOST_FILES = 5000


def files_of(paths: Sequence[str]) -> list[str]:
    """The files named, and those below the directories named, in order.  Raises UsageError for too many."""
    found = []
    for path in paths:
        if path == "-" or not Path(path).is_dir():
            found.append(path)
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in NOT_OURS)
            found += [str(Path(folder, name)) for name in sorted(names) if name.endswith(SUFFIXES)]
            if len(found) > MOST_FILES:
                raise UsageError(
                    f"{path}: more than {MOST_FILES} files", hint="name its folders with scripts"
                )
    return list(dict.fromkeys(found))


def read(path: str) -> str:
    """A file's text, whatever bytes it holds.  Raises UsageError where it is too long or cannot be read."""
    from ringup.lint import LONGEST

    hint = "name a script or a job file"
    text = request.read_text(path, LONGEST + 1, hint)
    if len(text) > LONGEST:
        raise UsageError(f"{path} is longer than {LONGEST >> 20} Mi characters", hint=hint)
    return text


def run(args: argparse.Namespace) -> int:
    from ringup import lint
    from ringup.cli import fixing
    from ringup.lint import fixes
    from ringup.output import console, machine_formats

    files = {path: read(path) for path in files_of(args.scripts)}
    with progress.line(f"reading {plural(len(files), 'script')}"):
        findings = fixes.not_ignored(lint.lint(files), files)
    if any(finding.rule in fixes.REPAIRS for finding in findings):
        repaired, done, left = fixes.repair(files)
    else:
        repaired, done, left = files, [], findings
    if args.diff:
        differs = fixing.apply(args.scripts, files, repaired, show=True)
        words = f"{plural(len(done), 'finding')} would be fixed; {console.counts(left)} left"
        terminal.say(words, quiet=args.quiet)
        return 1 if differs or any(f.severity == "error" for f in left) else 0
    if args.fix:
        fixing.apply(args.scripts, files, repaired, show=False)
        files, findings = repaired, left
    form = "json" if args.json else args.format
    if form == "sarif":
        print(json.dumps(machine_formats.sarif(findings), indent=1))
    elif form == "github":
        print("\n".join(machine_formats.github(findings)))
    else:
        starts = {p: lint.how_to_start(text, p) for p, text in files.items() if lint.is_script(p, text)}
        if form == "json":
            terminal.print_json(
                findings=[console.finding_json(f) for f in findings],
                **({"fixed": [console.finding_json(f) for f in done]} if args.fix else {}),
                not_checked=skipped_json(INTERNAL_ERRORS.values()),
                start={path: vars(start) for path, start in starts.items()},
            )
        else:
            fixable = 0 if args.fix else len(done)
            show_fixed(done if args.fix else [], files)
            show(findings, starts, args.quiet, f" ({fixable} fixed by --fix)" if fixable else "")
    return 1 if any(f.severity == "error" for f in findings) else 0


def show_fixed(done: list[Finding], files: Mapping[str, str]) -> None:
    from ringup.lint import fixes
    from ringup.output import console

    style = terminal.Style(sys.stdout)
    for finding in done:
        head = f"fixed  {style('bold', terminal.path_shown(finding.where))}  {finding.rule}"
        line = fixes.line_of(files, finding).strip()
        terminal.show("\n".join([head, *console.labelled("now", line, style)]) + "\n")


def show(
    findings: list[Finding], starts: dict[str, HowToStart], quiet: bool, how_many_fixed: str = ""
) -> None:
    from ringup import lint
    from ringup.output import console

    style = terminal.Style(sys.stdout)
    if findings:
        terminal.show("\n".join(console.findings_lines(findings, style)))
    if quiet:
        return
    unreadable = {f.where.rpartition(":")[0] for f in findings if f.rule == lint.NOT_READABLE.name}
    for path, start in starts.items():
        if path not in unreadable:
            words = f"start it with `ringup run --with {start.launcher}`: {start.why}"
            terminal.show(f"{terminal.path_shown(path)}: {words}")
    terminal.show(console.counts(findings) + how_many_fixed)


# -- before a run ------------------------------------------------------------------------------

ALSO_ON_ONE_NODE = (
    *("collective-on-some-ranks", "device-chosen-too-late", "device-never-chosen", "script-not-readable"),
)
"""What breaks between the ranks of one machine, too."""
STOPS = ("local-rank-as-global-rank", "master-address-in-code", "spawn-knows-one-node")
"""Errors with which several nodes never form one world, whatever they are; other errors become warnings."""


def before_run(args: argparse.Namespace, script: str) -> None:
    """
    Read a run's script where its file is on this machine; set `args.launcher` if it was not given.

    What was read is left in `args` for `of_nodes`.
    """
    from ringup import lint
    from ringup.lint import fixes

    given = args.launcher if args.launcher != "auto" else ""
    args.launcher = given or "torchrun"
    args.script_findings, args.script_start, args.script_workers = [], None, ("", 0)
    args.script_world = ("", -1, -1)
    path = Path(args.chdir or ".") / script
    try:
        text = read(str(path)) if script and path.is_file() else ""
    except (UsageError, OSError):  # a name longer than file systems allow is an OSError of is_file
        return
    if not text or not lint.is_script(script, text):
        return
    start = lint.how_to_start(text, script)
    if not given and start.launcher != "torchrun":
        args.launcher = start.launcher
        why = f"{start.why} ({script}:{start.line})"
        terminal.say(f"ringup: uses --with {start.launcher}: {why}", quiet=args.quiet)
    args.script_start = start
    args.script_workers = lint.workers(text, script)
    if start.kind != "spawn":  # counts its own ranks
        args.script_world = lint.written_world(text, script)
    args.script_findings = fixes.not_ignored(lint.lint({script: text}), {script: text})


def misfit(args: argparse.Namespace) -> list[Finding]:
    """A finding where --with names a launcher that cannot start the script."""
    from ringup import lint

    start, (script, *given) = args.script_start, args.script
    # An option of the script's own that the user gives is the user's to know.
    if start is None or (start.argument and any(w.partition("=")[0] == start.argument for w in given)):
        return []
    return lint.misfit(start, args.launcher, script)


def softened(findings: list[Finding], but: Sequence[str] = ()) -> list[Finding]:
    """Errors as warnings, `but` those of some rules: a text alone does not tell how the script is used."""
    return [
        replace(f, severity="warning") if f.severity == "error" and f.rule not in but else f for f in findings
    ]


def of_nodes(args: argparse.Namespace, cluster: Cluster, plan: Plan | None) -> list[Finding]:
    """What was read in the script, as far as it concerns a run of this plan on these nodes."""
    from ringup import lint

    several = len(cluster.nodes) > 1
    found = [f for f in args.script_findings if several or f.rule in ALSO_ON_ONE_NODE]
    # Nodes of one machine share localhost.
    found = softened(found, [rule for rule in STOPS if not cluster.is_local or rule != STOPS[1]])
    if plan and plan.world_size > 1:
        wrong = lint.wrong_world(args.script_world, plan.world_size)
        found = [f for f in found if not wrong or f.rule != wrong[0].rule] + wrong + misfit(args)
    for node in plan.nodes if plan else ():
        facts = cluster.node(node.node)
        if not {"cpu_count", "container"} & set(facts.unknown):
            cpus = min(facts.cpu_count, facts.container.cpus)
            found += lint.too_many_workers(args.script_workers, node.node, node.nproc, cpus)
    return found
