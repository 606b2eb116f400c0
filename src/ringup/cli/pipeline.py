"""From a command line to a judged cluster: collect, predict, judge and plan, each once."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringup import progress
from ringup.cli import request
from ringup.errors import UsageError
from ringup.model import Cluster, Job, Node
from ringup.output import terminal
from ringup.units import printable

if TYPE_CHECKING:
    from ringup.network.predictions import Predictions
    from ringup.output.console import Report
    from ringup.planning import Plan
    from ringup.rules import Finding, Skipped
    from ringup.transport import Transport


def cluster_of(args: argparse.Namespace) -> Cluster:
    """The saved facts of `--from`, else fresh facts of the nodes."""
    if args.from_file:
        return load(args)
    job = request.job_from(args)
    with request.open_transport(args) as transport:
        return collect(transport, job, args)


def collect(transport: Transport, job: Job, args: argparse.Namespace) -> Cluster:
    """Facts of all nodes and tests between them; saved if `--save` is given."""
    # `checks` is for `judge`; meanwhile ssh logs in.
    from ringup import bundle, checks, collectors  # noqa: F401
    from ringup.runtime import node_history

    request.show_forwarded(args, job)
    cluster = collectors.collect(transport, job, timeout_s=args.timeout)
    past, names = node_history.records(), {node.name for node in cluster.nodes}
    cluster = replace(cluster, past={name: past[name] for name in names & past.keys()})
    if args.save:
        bundle.save(cluster, Path(args.save))
    return cluster


def load(args: argparse.Namespace, words: list[str] | None = None) -> Cluster:
    """
    The facts of `--from F`, for this command line's job; `words` are the script and its arguments.

    Without `words`, options that this command line leaves open have their saved values.  Raises UsageError
    for options that need the nodes: other nodes, another interpreter.
    """
    from ringup import bundle

    gc.disable()  # the read data contains no garbage, and collecting it takes longer than reading
    try:
        saved = bundle.load(Path(args.from_file))
    finally:
        gc.freeze()
        gc.enable()
    job, before = request.job_from(args, words), saved.job
    for name in request.named(args):
        hint = "the saved ones are judged; leave one out"
        raise UsageError(f"--from and --{name} both name the nodes", hint=hint)
    if getattr(args, "exclude_from", None):
        what = "--exclude-from has no effect with --from: every saved node is judged"
        raise UsageError(what, hint="leave it out")
    for name in ("python", "setup"):
        if getattr(job, name) not in ("", getattr(before, name)):
            what = f"--{name} has no effect with --from: the facts were saved without it"
            raise UsageError(what, hint=f"collect them again: `ringup check ... --{name} ... --save F`")
    saved_ones = ("python", "setup", "time_left_s", *(() if args.chdir else ("chdir",)))
    job = replace(job, **{name: getattr(before, name) for name in saved_ones})
    if words is None:
        given = {f.name: getattr(job, f.name) for f in fields(Job)}
        changed = {name: value for name, value in given.items() if value != getattr(Job(), name)}
        job = replace(before, **{**changed, "env": {**before.env, **job.env}})
    request.show_ignored(args, job)
    return with_job(saved, job)


def with_job(saved: Cluster, job: Job) -> Cluster:
    """Saved facts for this job, without those about another directory or script."""
    facts = ["chdir", "revision"] if job.chdir != saved.job.chdir else []
    facts += ["script"] if facts or job.script != saved.job.script else []
    stale = dict.fromkeys(facts, "it was not checked when this was saved")
    nodes = tuple(replace(node, unknown={**stale, **node.unknown}) for node in saved.nodes)
    return replace(saved, job=job, nodes=nodes)


@dataclass(frozen=True)
class Judgement:
    cluster: Cluster
    predictions: Predictions
    """Computed without the plan's variables."""
    findings: list[Finding]
    """Weighed against the plan, worst first."""
    skipped: list[Skipped]
    plan: Plan | None
    """None if no plan is possible."""

    @property
    def brief(self) -> Report:
        from ringup.output.console import Report

        return Report(self.cluster, self.findings, self.skipped, self.plan)

    @cached_property
    def report(self) -> Report:
        """The check, the expected selection, and the variables that are already set."""
        from ringup.planning import expected
        from ringup.planning.preset_variables import kept

        selected = expected(self.predictions, self.plan)
        return self.brief._replace(predictions=selected, kept=kept(self.cluster))


@progress.line("judging what was collected")
def judge(cluster: Cluster, run_id: str = "", claim: Callable[[int], bool] | None = None) -> Judgement:
    """Predictions, findings and plan of a cluster; `claim` as in `network.decide`."""
    from ringup.checks import privileges  # importing the package fills the registry
    from ringup.network.predictions import predicted
    from ringup.planning import mitigations, network
    from ringup.rules import run_checks

    findings, skipped = run_checks(cluster)
    skipped = privileges.would_add(cluster, skipped)
    plan = network.decide(cluster, run_id, claim)
    would_be = plan or (network.otherwise(cluster) if any(f.subject for f in findings) else None)
    findings = mitigations.weigh(findings, would_be, cluster)
    return Judgement(cluster, predicted(cluster), findings, skipped, plan)


def exit_code(findings: list[Finding], skipped: list[Skipped], strict: bool) -> int:
    """1 for an error, 3 for an unchecked rule under --strict, else 0."""
    if any(f.severity == "error" for f in findings):
        return 1
    return 3 if strict and any(not s.is_partial for s in skipped) else 0


def say_unreached(nodes: Iterable[Node]) -> int:
    """Print the unreachable nodes; returns the exit code for them, 0 if there are none."""
    from ringup.output import folding

    words = {node.name: f"not reached: {printable(node.unreached.words)}" for node in nodes if node.unreached}
    terminal.say(*(f"ringup: {line}" for line in folding.of_nodes(words)))
    return int(bool(words))


def write_page(judged: Judgement, args: Any) -> None:
    if args.html:
        from ringup.output import html_page

        terminal.write(Path(args.html), html_page.check_page(judged.report))
        terminal.say(f"page written: {terminal.path_shown(args.html)}", quiet=args.quiet)


NOTHING_TO_START = ("directory-missing", "script-missing")


def refused(judged: Judgement, args: argparse.Namespace) -> int:
    """Print why the check stops a start; returns the exit code, 0 if nothing stops it."""
    code = exit_code(judged.findings, judged.skipped, args.strict)
    if judged.plan is not None and (not code or args.anyway):
        return 0
    from ringup.output import console

    style = terminal.Style(sys.stderr)
    terminal.say(console.check_text(judged.brief, style, unfolded=args.unfolded))
    way_out = f"; --anyway starts despite {'unchecked rules (--strict)' if code == 3 else 'errors'}"
    if judged.plan is None or any(
        f.rule in NOTHING_TO_START and f.severity == "error" for f in judged.findings
    ):
        until = "this is fixed" if code == 1 else "this can be checked"
        way_out = f"; --anyway does not help: no rank can start until {until}"
    terminal.say(style("error", "nothing was started") + way_out)
    return code or 1
