"""
Find faults in training scripts and job files that break or hang a run on several nodes.

Reads Python scripts, shell files, job files (Slurm, PBS, LSF) and manifests (YAML) without running them; in a
directory all such files except tests (test_*.py, *_test.py, conftest.py).  The output begins with the input:
each launch line with its nodes, ranks and worlds, and the files in which none was recognised.
Files given together are also compared with one another: the lines for two nodes, a script with the
job file that starts it.  A start line after `--` replaces the files: `-- torchrun ... train.py`.
`# ringup: ignore[RULE]` at the end of a line suppresses the findings of that line.

--fix repairs certain faults only: a misspelt variable of NCCL or Gloo, `==` in an assignment, blanks in
NCCL's lists, `export A = b`, a dash in place of two hyphens, a blank after a backslash.  It changes nothing
else in a file and no line with an ignore comment.  For a job file that starts another job than intended it
proposes another, as `ringup script KIND --from FILE` writes it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ringup import progress
from ringup.cli import options
from ringup.cli.text_files import nearby, read_script
from ringup.errors import RingupError, UsageError
from ringup.launchfiles.start import ASSIGNED, starts_ranks, take_apart
from ringup.output import terminal
from ringup.rules import INTERNAL_ERRORS, Finding, skipped_json
from ringup.units import plural, printable

if TYPE_CHECKING:
    from ringup.launchfiles.model import NotRead
    from ringup.lint import Examined, HowToStart


FORMATS = ("text", "json", "sarif", "github")
OPTIONS = (
    options.words("scripts", "SCRIPT", "a Python script, a shell or job file, a directory, - for stdin", "+"),
    options.choice("--format", FORMATS, f"{', '.join(FORMATS)} (text)", "text"),
    options.flag("--json", "the same as --format json"),
    options.flag("--fix", "repair what is certain, and list the rest"),
    options.flag("--diff", "print what --fix would change, and change nothing"),
    options.flag("--strict", "exit 3 when no launch line was recognised in a file, or a rule failed"),
    options.flag("--quiet", "findings alone"),
)


MANIFESTS = (".yaml", ".yml")
SUFFIXES = (".py", ".sh", ".bash", ".sbatch", ".slurm", ".pbs", ".lsf", ".job", *MANIFESTS)
NOT_OURS = {"node_modules", "site-packages", "__pycache__", "build", "dist", "venv", "env"}
_TEST = re.compile(r"(?:test_.*|.*_test|conftest)\.py")
"""Names of pytest's own files: they simulate several nodes on one machine."""
MOST_FILES = 5000


def files_of(paths: Sequence[str]) -> list[str]:
    """The named files, and those below the named directories, in order.  Raises UsageError for too many."""
    found = []
    for path in paths:
        if path == "-" or not os.access(path, os.F_OK) or not Path(path).is_dir():
            found.append(path)
            continue
        for folder, folders, names in os.walk(path, onerror=say_closed):
            folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in NOT_OURS)
            wanted = (name for name in sorted(names) if name.endswith(SUFFIXES) and not _TEST.fullmatch(name))
            found += [str(Path(folder, name)) for name in wanted if Path(folder, name).is_file()]
            if len(found) > MOST_FILES:
                hint = "name its folders with scripts"
                raise UsageError(f"{path}: more than {MOST_FILES} files", hint=hint)
    return list(dict.fromkeys(found))


def say_closed(error: OSError) -> None:
    terminal.say(f"{terminal.path_shown(error.filename)}  not read: {error.strerror}")


def of_line(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """A start line as the text of `-`, and its script; for plain paths nothing, and the paths."""
    has_options = any(word.startswith("-") and word != "-" for word in words)
    if not (has_options or starts_ranks(words[0]) or ASSIGNED.match(words[0])):
        return {}, words
    found = take_apart(words)
    text = {"-": shlex.join(words) + "\n"} if found.launcher or found.steps else {}
    script = found.script or words[words[0] in ("-m", "--no-python")]
    is_module = found.kind == "module" or words[0] == "-m"
    path = f"{script.replace('.', '/')}.py" if is_module else script
    if text and (found.kind == "command" or (is_module and not Path(path).is_file())):
        terminal.say(f"note: {printable(script)} was not read, the line alone was")
        return text, []
    return text, [path]


def run(args: argparse.Namespace) -> int:
    from ringup import lint
    from ringup.cli import fixing
    from ringup.lint import fixes
    from ringup.lint.job_manifest import is_configuration
    from ringup.output import console

    line, args.scripts = of_line(args.scripts)
    files = line | {p: read_script(p, None if p.endswith(".py") else "") for p in files_of(args.scripts)}
    args.scripts += line
    with progress.line(f"reading {plural(len(files), 'script')}"):
        examined = lint.examine(files, nearby)
    starts = starts_of(files)
    notes = fixes.not_ignored(of_one_process(starts), files)
    findings = fixes.not_ignored(examined.findings, files) + notes
    if any(finding.rule in fixes.REPAIRS for finding in findings):
        repaired, done, left = fixes.repair(files, nearby, examined.findings)
        left += notes
    else:
        repaired, done, left = files, [], findings
    if args.diff:
        differs = fixing.apply(args.scripts, files, repaired, show=True)
        rest = f"{console.counts(left)} left" if left else "nothing else found"
        words = f"{plural(len(done), 'finding')} would be fixed; {rest}"
        terminal.say(words, quiet=args.quiet)
        return 1 if differs or any(f.severity == "error" for f in left) else 0
    if args.fix:
        fixing.apply(args.scripts, files, repaired, show=False)
        files, findings = repaired, left
    form = "json" if args.json else args.format
    left_unread = unread(examined, args.scripts)
    if form in ("sarif", "github"):
        from ringup.output import sarif_junit
    if form == "sarif":
        print(json.dumps(sarif_junit.sarif(findings), indent=1))
    elif form == "github":
        print("\n".join(sarif_junit.github(findings)))
    elif form == "json":
        terminal.print_json(
            findings=[console.finding_json(f) for f in findings],
            **({"fixed": [console.finding_json(f) for f in done]} if args.fix else {}),
            launches=[one.as_json() for job in examined.jobs for one in job.launches],
            not_read=[{"file": n.path, "line": n.line, "reason": printable(n.reason)} for n in left_unread],
            not_checked=skipped_json(INTERNAL_ERRORS.values()),
            start={path: vars(start) for path, start in starts.items()},
        )
    else:
        is_read = any(job.launches or is_configuration(job) for job in examined.jobs)
        has_checked = bool(findings or starts or done or is_read)
        counts = console.counts(findings) + after_counts(args.fix, len(done), bool(findings))
        counts = counts if has_checked else "nothing was checked: no launch line and no training script"
        show_fixed(done if args.fix else [], files)
        if not args.quiet:
            show_read(examined, left_unread)
        show(findings, starts, args.quiet, counts)
        if args.fix:
            show_right_files(examined, findings)
    if any(f.severity == "error" for f in findings):
        return 1
    return 3 if args.strict and (left_unread or INTERNAL_ERRORS) else 0


def starts_of(files: Mapping[str, str]) -> dict[str, HowToStart]:
    """How each of the scripts among the files is started."""
    from ringup import lint

    scripts = ((path, text) for path, text in files.items() if lint.is_script(path, text))
    return {path: lint.how_to_start(text, path, partial(nearby, "")) for path, text in scripts}


def of_one_process(starts: Mapping[str, HowToStart]) -> list[Finding]:
    """A note for each script that trains in one process: on several ranks each would train alone."""
    from ringup import lint

    alone = ((path, start) for path, start in starts.items() if start.kind == "alone")
    return [
        replace(f, severity="note", found=f"{f.found}; on several ranks each would train alone")
        for path, start in alone
        for f in lint.misfit(start, start.launcher, path)
    ]


def after_counts(is_fix: bool, repaired: int, has_findings: bool) -> str:
    """The words about --fix behind the number of findings."""
    if is_fix:
        return "; --fix repairs none of them" if has_findings and not repaired else ""
    return f" ({repaired} fixed by --fix)" if repaired else ""


LAUNCHING = (
    *("several-worlds", "launcher-started-per-task", "launcher-on-first-node-alone", "node-rank-duplicate"),
    *("rendezvous-endpoint-missing", "rendezvous-endpoint-own", "node-variable-read-too-early"),
    *("launcher-argument-misread", "command-cut-short", "launcher-option-wrong", "world-size-disagrees"),
)
"""Rules about files that start another job than intended."""


def show_right_files(examined: Examined, findings: Sequence[Finding]) -> None:
    """For each job file with a launch error, print the file that starts the intended job."""
    from ringup.cli import from_file, script
    from ringup.cli.commands import parser_for

    wrong = {f.where.rpartition(":")[0] for f in findings if f.severity == "error" and f.rule in LAUNCHING}
    jobs = (j for j in examined.jobs if j.path in wrong and j.launches and j.path != "-")
    for job in (j for j in jobs if not any(one.pod for one in j.launches)):
        scheduler = "".join(d.scheduler for d in job.job.directives[:1])
        words = [from_file.KINDS.get(scheduler, "slurm"), "--from", job.path, "--quiet"]
        name = terminal.path_shown(job.path)
        head = f"A proposal, as `ringup script {words[0]} --from {name}` writes it ({name} is not changed):"
        terminal.show(f"\n{head}\n")
        try:
            script.run(parser_for("script").read(words))
            for left in from_file.left_out(job.job, from_file.the_one(job.path, job.read), words[0]):
                terminal.show(f"left out: {left}")
        except RingupError as error:
            terminal.show(f"{printable(str(error))}\nhint: {printable(error.hint)}")


def unread(examined: Examined, named: Sequence[str]) -> list[NotRead]:
    """Files that were not understood, without templates and manifests of a directory that launch nothing."""
    from ringup.launchfiles.manifests import starts_launcher

    return [
        one
        for job in examined.jobs
        for one in job.read.not_read
        if one.path in named
        or not one.path.endswith(MANIFESTS)
        or (one.reason.startswith("not YAML") and "kind:" in job.text and "{{" not in job.text)
        or (one.reason.startswith("not YAML") and starts_launcher(job.text))
    ]


def show_read(examined: Examined, left: Sequence[NotRead]) -> None:
    """
    The understood launches, one per line: `job.sh:4  srun torchrun: 2 nodes x 8 ranks, one world`.

    More than five equal ones of a file are one line.
    """
    from ringup.lint.rule import lines

    places: dict[tuple[str, str], dict[int, None]] = {}
    for launch in (one for job in examined.jobs for one in job.launches):
        more = f" (unknown: {', '.join(launch.unknown)})" if launch.unknown else ""
        words = f"{printable(launch.summary)}{printable(more)}"
        places.setdefault((launch.job.path, words), {})[launch.line] = None
    paths = [job.path for job in examined.jobs]
    kept = [
        (paths.index(path), at, f"{words}{lines([*same]) if len(same) > 5 else ''}")
        for (path, words), same in places.items()
        for at in [*same][: 1 if len(same) > 5 else 5]
    ]
    for number, at, words in sorted(kept):
        terminal.show(f"{terminal.path_shown(f'{paths[number]}:{at}')}  {words}")
    for one in left:
        terminal.show(f"{terminal.path_shown(f'{one.path}:{one.line}')}  not read: {printable(one.reason)}")


def show_fixed(done: list[Finding], files: Mapping[str, str]) -> None:
    from ringup.lint import fixes
    from ringup.output import console

    style = terminal.Style(sys.stdout)
    for finding in done:
        head = f"fixed  {style('bold', terminal.path_shown(finding.where))}  {finding.rule}"
        line = fixes.line_of(files, finding).strip()
        terminal.show("\n".join([head, *console.labelled("now", line, style)]) + "\n")


def folded(findings: Sequence[Finding]) -> Iterator[Finding]:
    """The findings, those that many lines of a file share as the first of them, which names the others."""
    from ringup.lint.rule import lines

    same: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        same.setdefault((one.where.rpartition(":")[0], one.rule, one.found), []).append(one)
    for first, *rest in same.values():
        places = [int("0" + one.where.rpartition(":")[2]) for one in (first, *rest)] if rest[2:] else []
        yield from [replace(first, found=first.found + lines(places))] if places else [first, *rest]


def show(findings: list[Finding], starts: dict[str, HowToStart], quiet: bool, counts: str) -> None:
    from ringup import lint
    from ringup.output import console

    style = terminal.Style(sys.stdout)
    if findings:
        near = [replace(f, where=terminal.path_shown(f.where)) for f in folded(findings)]
        terminal.show("\n".join(console.findings_lines(near, style)))
    if quiet:
        return
    unreadable = {f.where.rpartition(":")[0] for f in findings if f.rule == lint.NOT_READABLE.name}
    wrong = {f.where.rpartition(":")[0] for f in findings if f.severity == "error"}
    for path, start in starts.items():
        if path not in unreadable and start.kind != "alone":
            words = f"start it with `ringup run --with {start.launcher}`: {start.why}"
            first = "once fixed, " if path in wrong else ""
            terminal.show(f"{terminal.path_shown(path)}: {first}{words}")
    terminal.show(counts)
