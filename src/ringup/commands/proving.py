"""What `ringup test` and `ringup bench` share: our program in place of a script, started like any other."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringup.commands import check, common
from ringup.commands import run as run_command
from ringup.errors import UsageError
from ringup.facts import Cluster
from ringup.launch import RunResult
from ringup.plan import Plan
from ringup.reach import Reach

if TYPE_CHECKING:
    from ringup.watch import Watch

Line = dict[str, Any]
REPORT_S = 30.0
ROLL_CALL_S = 60.0
"""How long our program may take beyond its limits to find out who is missing; with a margin."""


@dataclass(frozen=True)
class Started:
    """A run of our program that has ended."""

    cluster: Cluster
    plan: Plan
    backend: str
    result: RunResult
    told: Mapping[int, Sequence[Line]]
    log_dir: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of both commands."""
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    common.add_collection_arguments(parser)
    common.add_output_arguments(parser)
    group = parser.add_argument_group("the ranks")
    group.add_argument(
        "--nproc", type=common.ranks, metavar="N", help="ranks per node (default: visible GPUs)"
    )
    group.add_argument(
        "--wait", type=common.positive, default=60, metavar="S", help="how long to wait for a rank (60)"
    )
    group.add_argument(
        "--limit", type=common.positive, default=120, metavar="S", help="longest single operation (120)"
    )
    group.add_argument("--dry-run", action="store_true", help="print what each node would execute, and stop")
    group.add_argument("--anyway", action="store_true", help="start despite errors")
    group.add_argument("--log-dir", metavar="D", help="one file per rank, run.json (default: runs/RUN)")


def no_more(_args: argparse.Namespace, _backend: str) -> tuple[str, ...]:
    """No arguments beyond the common ones."""
    return ()


def nothing(_line: Line) -> None:
    """Nobody watches."""


def start(
    mode: str,
    args: argparse.Namespace,
    more: Callable[[argparse.Namespace, str], tuple[str, ...]] = no_more,
    on_line: Callable[[Line], None] = nothing,
) -> Started | int:
    """Check, plan, run; an exit code where nothing was started."""
    from ringup import report
    from ringup.launch.render import render
    from ringup.plan.expected import with_transports
    from ringup.plan.listening import listening
    from ringup.prove import job as prove_job
    from ringup.prove import lines

    run_id = run_command.new_run_id()
    log_dir = run_command.log_directory(args, run_id)
    if args.from_file:
        raise UsageError(
            f"--from reaches no node, and `ringup {mode}` must",
            hint="leave --from out; `ringup check` takes it",
        )
    with common.door(args) as door:
        cluster = check.collect(door, common.job_from(args), args, check.Progress(args.quiet))
        check.save(cluster, args)
        backend = prove_job.backend_of(cluster)
        told = (mode, backend, str(args.wait), str(args.limit), *more(args, backend))
        cluster = replace(cluster, job=prove_job.proving(cluster.job, told, backend))
        findings, skipped, plan, _claims = run_command.judged(cluster, run_id, args)
        check.write_page(cluster, findings, skipped, plan, args)
        code = check.exit_code(findings, skipped, args.strict)
        if plan is None or (code and not args.anyway):
            common.say(report.check_text(cluster, findings, skipped, plan, report.Style(sys.stderr)))
            common.say("nothing was started" + check.way_out(plan, code))
            if args.json:
                told_all = report.check_json(cluster, findings, skipped, plan)
                print(json.dumps({**told_all, **unstarted(args, len(cluster.nodes))}))
            return code or 1
        plan = with_transports(prove_job.shipped(plan), cluster)
        plan = listening(plan, cluster, always=backend == "nccl")
        if args.dry_run:
            return run_command.show_words(plan, render(plan).text, args.json)
        run_command.show_before(cluster, findings, plan, args)
        common.say(f"ringup: run {plan.run_id}, logs in {log_dir}", quiet=args.quiet)
        from ringup.launch import ssh

        result = ssh.run(
            plan,
            door,
            log_dir=log_dir,
            write=Listener(on_line),
            ssh_config=args.ssh_config,
            on_event=run_command.follow_events(plan.world_size, args.quiet),
            findings=findings,
            is_consequence=run_command.is_consequence,
            watcher=watcher(args.limit, door),
        )
    told_by_rank = lines.by_rank(log_dir, plan)
    for line in after(told_by_rank, result):
        common.say(line)
    return Started(cluster, plan, backend, result, told_by_rank, log_dir)


def unstarted(args: argparse.Namespace, node_count: int) -> dict[str, Any]:
    """The keys that INTERFACE.md promises of `test --json` and `bench --json`, where nothing was started."""
    if not hasattr(args, "op"):
        return {"ranks": [], "ok": False}
    return {
        "op": args.op,
        "nodes": node_count,
        "ranks": 0,
        "rows": [],
        "link_gbit_s": None,
        "expected_busbw_gbyte_s": None,
        "verdict": "not_judged",
        "because": "nothing was started",
        "slow": [],
    }


def after(told: Mapping[int, Sequence[Line]], result: RunResult) -> list[str]:
    """What is said of the run itself: how it failed where our program could not tell it, what was left."""
    from ringup import report
    from ringup.prove import tested

    style = report.Style(sys.stderr)
    if tested.untold(told, result):
        return report.run_lines(result, style)
    return [line for finding in result.findings for line in report.brief_lines(finding, style)]


def watcher(limit_s: float, door: Reach) -> Watch:
    """Says who holds the others up before their own time is over; ends what does not end by itself."""
    from ringup.watch import Watch

    local = [host.name for host in door.hosts if host.local]
    return Watch(
        min(REPORT_S, max(2.0, limit_s / 2)), 2 * limit_s + ROLL_CALL_S, local if len(local) > 1 else ()
    )


class Listener:
    """Takes the ranks' lines as they come; hands on those of our program."""

    def __init__(self, on_line: Callable[[Line], None]) -> None:
        self.on_line = on_line

    def __call__(self, text: str) -> None:
        from ringup.prove import lines

        for shown in text.splitlines():
            line = lines.parse(shown.partition("| ")[2])
            if line is not None:
                self.on_line(line)


def channels(started: Started) -> dict[str, dict[str, int]]:
    """Channels by host and transport as NCCL printed them; {} with Gloo."""
    if started.backend != "nccl":
        return {}
    from ringup.errors import RingupError
    from ringup.logs import read

    try:
        return dict(read.read_logs([str(started.log_dir)]).run.transports_by_host)
    except RingupError:
        return {}
