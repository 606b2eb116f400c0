"""Look at every node and prove every pair before anything is started."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Container
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ringup.commands import common, pods
from ringup.errors import UsageError
from ringup.facts import Cluster, Job, Node
from ringup.plan import Plan
from ringup.reach import Reach
from ringup.rules import Finding, Skipped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup check`."""
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    common.add_collection_arguments(parser)
    common.add_output_arguments(parser)


class Progress:
    """One line on stderr that says what is being waited for; a plain line each where there is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.started = time.monotonic()
        self.last = ""

    def __call__(self, text: str) -> None:
        if self.quiet or text == self.last:
            return
        self.last = text
        if self.live:  # what goes on in a second line could not be wiped out
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            print(f"\r\x1b[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Leave the line clean for what follows."""
        if self.live and self.last:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self.last = ""


def collect(reach: Reach, job: Job, args: argparse.Namespace, progress: Progress) -> Cluster:
    """Facts of all nodes and what was proven between them."""
    from ringup import probes

    common.writable(args.save, getattr(args, "html", None))
    try:
        return probes.collect(reach, job, timeout_s=args.timeout, on_progress=progress)
    finally:
        progress.done()


def loaded(args: Any, words: list[str] | None = None) -> Cluster:
    """
    `--from F`, for the job that this command line asks for; `words` are the script and its arguments.

    Without `words`, what is not said here is as it was when it was saved.  Raises UsageError for what only
    nodes could tell: other ones, another interpreter.
    """
    from ringup import bundle

    saved = bundle.load(Path(args.from_file))
    job, before = common.job_from(args, words), saved.job
    for name in ("hosts", "hostfile", "local"):
        if getattr(args, name) is not None:
            raise UsageError(
                f"--from and --{name} both name the nodes", hint="the saved ones are judged; leave one out"
            )
    for name in ("python", "setup"):
        if getattr(job, name) not in ("", getattr(before, name)):
            raise UsageError(
                f"--{name}: --from reaches no node, and what was saved was found without it",
                hint=f"ask the nodes again: `ringup check ... --{name} ... --save F`",
            )
    kept = ("python", "setup", "time_left_s", *(() if args.chdir else ("chdir",)))
    job = replace(job, **{name: getattr(before, name) for name in kept})
    if words is None:
        given = {f.name: getattr(job, f.name) for f in fields(Job)}
        changed = {name: value for name, value in given.items() if value != getattr(Job(), name)}
        job = replace(before, **{**changed, "env": {**before.env, **job.env}})
    return replace(saved, job=job, nodes=tuple(not_looked_at(node, before, job) for node in saved.nodes))


def not_looked_at(node: Node, saved: Job, job: Job) -> Node:
    """The node without what was saved of another directory or script than the job's."""
    facts = ["chdir", "revision"] if job.chdir != saved.chdir else []
    facts += ["script"] if facts or job.script != saved.script else []
    why = "it was not looked for when this was saved"
    return replace(node, unknown={**dict.fromkeys(facts, why), **node.unknown})


def judge(
    cluster: Cluster, run_id: str = "", taken: Container[int] = ()
) -> tuple[list[Finding], list[Skipped], Plan | None]:
    """Findings settled against the plan they allow, worst first; the plan is None when none is possible."""
    from ringup.checks import privileges  # the package fills the registry
    from ringup.plan import network, settle
    from ringup.rules import run_checks

    findings, skipped = run_checks(cluster)
    skipped = privileges.would_add(cluster, skipped)
    plan = network.decide(cluster, run_id, taken)
    return settle.settle(findings, plan, cluster), skipped, plan


def exit_code(findings: list[Finding], skipped: list[Skipped], strict: bool) -> int:
    """As INTERFACE.md says: 1 an error, 3 something not checked under --strict, else 0."""
    if any(f.severity == "error" for f in findings):
        return 1
    return 3 if strict and any(not s.is_partial for s in skipped) else 0


def way_out(plan: Plan | None, code: int) -> str:
    """What is said behind "nothing was started"."""
    if plan is None:
        return "; --anyway would not help: no plan can be made before that is mended"
    return f"; --anyway starts despite {'what was not checked (--strict)' if code == 3 else 'errors'}"


def save(cluster: Cluster, args: argparse.Namespace) -> None:
    """`--save F`."""
    if args.save:
        from ringup import bundle

        bundle.save(cluster, Path(args.save))


def write_page(
    cluster: Cluster, findings: list[Finding], skipped: list[Skipped], plan: Plan | None, args: Any
) -> None:
    """`--html F`."""
    if args.html:
        from ringup import page
        from ringup.plan.expected import expected
        from ringup.plan.kept import kept

        told = (expected(cluster, plan), kept(cluster))
        common.write(Path(args.html), page.check_page(cluster, findings, skipped, plan, *told))
        common.say(f"page written: {args.html}", quiet=args.quiet)


def show(
    cluster: Cluster, findings: list[Finding], skipped: list[Skipped], plan: Plan | None, args: Any
) -> None:
    """The result, as asked: text or JSON, and a page."""
    from ringup import report
    from ringup.plan.expected import expected
    from ringup.plan.kept import kept

    predictions, set_already = expected(cluster, plan), kept(cluster)
    write_page(cluster, findings, skipped, plan, args)
    if args.json:
        print(json.dumps(report.check_json(cluster, findings, skipped, plan, predictions, set_already)))
    else:
        style = report.Style(sys.stdout)
        print(report.check_text(cluster, findings, skipped, plan, style, predictions, set_already))


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Collect, judge, show."""
    if args.from_file:
        cluster = loaded(args)
    else:
        job = common.job_from(args)
        with common.door(args) as door:
            cluster = collect(door, job, args, Progress(args.quiet))
        save(cluster, args)
    findings, skipped, plan = judge(cluster)
    show(cluster, findings, skipped, plan, args)
    return exit_code(findings, skipped, args.strict)
