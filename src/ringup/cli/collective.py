"""Code that `ringup test` and `ringup bench` share: our program replaces the script."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ringup import progress
from ringup.cli import launching, options, pipeline, request, submit
from ringup.collective_tests import CorrectnessReport, correctness, rank_records
from ringup.collective_tests import job as tests_job
from ringup.errors import RingupError, UsageError
from ringup.model import Cluster
from ringup.output import console, terminal
from ringup.output.console import Report
from ringup.planning import Plan
from ringup.runtime import RunResult
from ringup.transport import Transport
from ringup.transport.port_claims import PortClaims

Line = dict[str, Any]
BENCH_FILE = "bench.json"
"""The measurements of a bench, in its folder."""
REPORT_S = 30.0
HOW_FAR = {
    "hello": "{} of {} ranks have started",
    "arrived": "{} of {} ranks have met",
    "result": "{} of {} ranks have computed",
    "row": "{} of {} sizes measured",
    "pair": "{} pairs of nodes measured",
}
"""Progress texts by kind of report; the first number counts the reports."""
ROLL_CALL_S = 60.0
"""Seconds beyond its limits in which our program finds the missing ranks, with a margin."""


@dataclass(frozen=True)
class Started:
    cluster: Cluster
    plan: Plan
    backend: str
    warnings: tuple[str, ...]
    """Why GPUs were expected, if the ranks use none."""
    result: RunResult
    records: Mapping[int, Sequence[Line]]
    ended: CorrectnessReport
    log_dir: Path
    check: Report
    """The check's findings before the start."""

    def code(self, is_ok: bool) -> int:
        """The command's exit code; 130 and similar after an interruption."""
        if self.result.outcome == "interrupted":
            return self.result.exit_code
        return 0 if is_ok else 1


OPTIONS = (
    *options.CHECK,
    options.group(
        "the ranks",
        options.NPROC,
        options.value("--wait", "S", "seconds to wait for a rank (60)", 60, options.positive),
        options.value("--limit", "S", "longest single operation (120)", 120, options.positive),
        options.DRY_RUN,
        options.ANYWAY,
        options.LOG_DIR,
    ),
    options.words("script", options.LINE_WORDS, "a start line whose nodes, ranks and variables are taken"),
)


def take_over(mode: str, args: argparse.Namespace) -> None:
    """Put the nodes, counts and variables of a start line into `args`; its script is ignored."""
    args.nodes, args.launcher, args.launcher_args, args.rdzv = 0, "auto", "", "static"
    if not args.script:
        return
    first = args.script[0]
    words = request.script_words(args)
    if words[:2] == ["--no-python", first]:  # -H node0 node1
        wrong = f"{first!r} is not a start line"
        raise UsageError(wrong, hint=f"ringup {mode} -H node0,node1 -- torchrun --nproc_per_node 8 train.py")
    args.launcher, args.launcher_args, args.script = "torchrun", "", []
    what = " ".join(words[: 1 + (words[0] in request.KINDS)])
    terminal.say(f"ringup: the {mode} runs in place of {terminal.path_shown(what)}", quiet=args.quiet)


def start(
    mode: str,
    args: argparse.Namespace,
    more: Callable[[argparse.Namespace, str], tuple[str, ...]] = lambda _args, _backend: (),
    on_line: Callable[[Line], None] = lambda _line: None,
) -> Started | int:
    """Check, plan, run; an exit code if nothing was started."""
    if args.from_file:
        hint = "leave --from out, or use `ringup check --from F`"
        raise UsageError(f"`ringup {mode}` needs the nodes, and --from contacts none", hint=hint)
    take_over(mode, args)
    run_id = launching.new_run_id()
    asked = Path(args.log_dir or f"runs/{run_id}")
    with (
        launching.claimed(asked, run_id, is_wanted=not args.dry_run) as log_dir,
        PortClaims() as claims,
        request.open_transport(args) as transport,
    ):
        submit.check_node_count(args, transport.hosts)
        cluster = pipeline.collect(transport, request.job_from(args), args)
        backend, warnings = tests_job.backend_of(cluster)
        terminal.say(*(terminal.Style(sys.stderr)("warning", f"warning: {words}") for words in warnings))
        words = (mode, backend, str(args.wait), str(args.limit), *more(args, backend))
        cluster = replace(cluster, job=replace(cluster.job, script="", arguments=words, backend=backend))
        judged = launching.judge(cluster, run_id, args, claims)
        pipeline.write_page(judged, args)
        if code := pipeline.refused(judged, args):
            if args.json:
                shown = console.check_json(judged.brief) | unstarted(args, len(cluster.nodes))
                print(json.dumps({**shown, "warnings": warnings}))
            return code
        plan = plan_of(judged, backend)
        if args.dry_run:
            return launching.show_words(plan, args)
        launching.show_before(judged, plan, args)
        # The hang watch names the ranks that hold up the others before their own limit ends, and ends ranks
        # that do not end.
        report_s = min(REPORT_S, max(2.0, args.limit / 2))
        watch = launching.watch_of(report_s, 2 * args.limit + ROLL_CALL_S, transport)
        started = measure(judged, plan, transport, log_dir, args, on_line=on_line, watcher=watch)
    show_end(started.records, started.result)
    return replace(started, warnings=warnings)


def plan_of(judged: pipeline.Judgement, backend: str) -> Plan:
    """The plan of a judgement, with our program in place of the script."""
    assert judged.plan is not None
    shipped = replace(judged, plan=tests_job.shipped(judged.plan))
    return launching.whole_plan(shipped, with_debug=backend == "nccl")


def measure(
    judged: pipeline.Judgement,
    plan: Plan,
    transport: Transport,
    log_dir: Path,
    args: argparse.Namespace,
    **more: Any,
) -> Started:
    """Run a plan of our program to its end.  `more`: `on_line` gets reports, `watcher` as of a run."""
    words = plan.job.arguments
    with progress.line():
        write = reader(plan.world_size, words, more.pop("on_line", lambda _line: None))
        result = launching.follow(plan, transport, judged.findings, log_dir, args, write, **more)
    records = rank_records.by_rank(log_dir, plan)
    ended = correctness.report(plan, records, result)
    return Started(judged.cluster, plan, words[1], (), result, records, ended, log_dir, judged.report)


def reader(ranks: int, words: Sequence[str], on_line: Callable[[Line], None]) -> Callable[[str], None]:
    """Reads the ranks' output: passes reports to `on_line`, and counts them on a progress line."""
    counts = Counter({"hello": 0})
    cases = math.prod(word.count(",") + 1 for word in words[4:6])

    def show(kind: str) -> None:
        if far := HOW_FAR.get(kind):
            progress.show(f"{words[0]}: {far.format(counts[kind], ranks if 'ranks' in far else cases)}")

    def write(text: str) -> None:
        for line in map(rank_records.parse, (shown.partition("| ")[2] for shown in text.splitlines())):
            if line is not None:
                on_line(line)
                counts[line["kind"]] += 1
                show(line["kind"])

    show("hello")
    return write


def show_end(records: Mapping[int, Sequence[Line]], result: RunResult) -> None:
    """Print how the run failed, unless a rank reported it; else print the leftovers."""
    style = terminal.Style(sys.stderr)
    lines = [line for finding in result.findings for line in console.brief_lines(finding, style)]
    terminal.say(*(console.run_lines(result, style) if correctness.is_unreported(records, result) else lines))


def unstarted(args: argparse.Namespace, node_count: int) -> dict[str, Any]:
    """The keys of `test --json` and `bench --json` if nothing was started."""
    if not hasattr(args, "op"):
        return {"ranks": [], "ok": False}
    empty = {"ranks": 0, "rows": [], "link_gbit_s": None, "expected_busbw_gbyte_s": None, "slow": []}
    verdict = {"verdict": "not_judged", "because": "nothing was started"}
    return {"op": args.op, "nodes": node_count, **empty, **verdict}


def channels(started: Started) -> dict[str, dict[str, int]]:
    """Channels by host and transport as NCCL printed them; {} with Gloo."""
    if started.backend != "nccl":
        return {}
    from ringup.logs import read

    try:
        return dict(read.read_logs(sorted(map(str, started.log_dir.glob("*.log")))).run.transports_by_host)
    except RingupError:
        return {}
