"""Look at every node and prove every pair before anything is started."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Container
from pathlib import Path
from typing import Any

from ringup.commands import common, pods
from ringup.facts import Cluster, Job
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
    job = common.job_from(args)
    if args.from_file:
        from ringup import bundle

        cluster = bundle.load(Path(args.from_file))
    else:
        with common.door(args) as door:
            cluster = collect(door, job, args, Progress(args.quiet))
        save(cluster, args)
    findings, skipped, plan = judge(cluster)
    show(cluster, findings, skipped, plan, args)
    return exit_code(findings, skipped, args.strict)
