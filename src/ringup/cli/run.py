"""
Check, decide, launch, watch, clean up.

Everything after `--` is the training script and its arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from dataclasses import replace
from pathlib import Path

from ringup.cli import background, before_run, launching, options, pipeline, pods, request, restarting, submit
from ringup.cli.background import Background
from ringup.cli.launching import claimed
from ringup.cli.restarts import RESTARTS, check_node_count
from ringup.errors import RingupError, UsageError
from ringup.model import Cluster
from ringup.output import console, terminal
from ringup.rules import SEVERITIES
from ringup.runtime import detach
from ringup.transport import Transport
from ringup.transport.port_claims import PortClaims

RUN = options.group(
    "the job",
    options.NPROC,
    request.LAUNCHER,
    options.value("--launcher-args", "'...'", "options for the launcher itself, as one word", ""),
    options.WRAP,
    options.RENDEZVOUS,
    options.MASTER_PORT,
    options.DRY_RUN,
    options.ANYWAY,
    options.value("--lease", "S", "time without contact; then a node ends ranks (20)", 20.0, options.lease),
    *options.WATCH,
    options.flag("--detach", "run in the background on the head node; see `ringup attach`"),
    options.LOG_DIR,
    options.flag("--debug", "also log NCCL's INFO lines of every rank, in nccl-*.log"),
)
SLURM = options.flag("--slurm", "submit the run as a Slurm job, and follow it")
OPTIONS = (*options.CHECK, RUN, RESTARTS, SLURM, options.SCHEDULERS, options.SCRIPT)


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Collect, judge, decide, launch; the job's own exit code."""
    words = request.script_words(args)
    before_run.before_run(args, request.job_from(args, words).file)
    job = request.job_from(args, words)
    if args.from_file and not args.dry_run:
        hint = "add --dry-run, or leave --from out"
        raise UsageError("--from contacts no node, so nothing can run", hint=hint)
    restarting.check_options(args)
    run_id = launching.new_run_id(args.log_dir)
    log_dir = Path(args.log_dir or f"runs/{run_id}")
    if args.slurm:
        return submit.run(args, OPTIONS, words, run_id, log_dir)
    submit.refuse_batch_options(args)
    if args.from_file:
        cluster = pipeline.load(args, words)
        submit.check_node_count(args, [node.host for node in cluster.nodes])
        return decide_and_start(cluster, None, run_id, log_dir, args, PortClaims())
    if args.detach and not args.ssh_config and any(host.in_slurm for host in request.nodes_from(args)):
        wrong = "--detach: inside an allocation a run ends with the steps that srun holds"
        raise UsageError(wrong, hint="`ringup run --slurm --detach` submits it as a job of its own")
    if args.detach:
        detach.writable()

    def go_on(supervisor: Background | None = None) -> int:
        args.background = supervisor
        with (
            claimed(log_dir, run_id, is_wanted=not args.dry_run) as folder,
            PortClaims() as claims,
            request.open_transport(args) as transport,
            background.noted(folder, transport, is_wanted=not (args.dry_run or args.detach)),
        ):
            submit.check_node_count(args, transport.hosts)
            check_node_count(args, len(transport.hosts))
            cluster = pipeline.collect(transport, job, args)
            return decide_and_start(cluster, transport, run_id, folder, args, claims)

    if args.detach and restarting.is_on(args) and not args.dry_run:
        return background.start(go_on)
    return go_on()


def decide_and_start(
    cluster: Cluster,
    transport: Transport | None,
    run_id: str,
    log_dir: Path,
    args: argparse.Namespace,
    claims: PortClaims,
) -> int:
    whole = cluster
    check_node_count(args, len(whole.nodes))
    cluster = whole.only(whole.nodes[: len(whole.nodes) - args.spares])
    judged = launching.judge(cluster, run_id, args, claims)
    findings = [*judged.findings, *before_run.of_nodes(args, cluster, judged.plan)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity or "error"))
    judged = replace(judged, findings=findings)
    pipeline.write_page(judged, args)
    if code := pipeline.refused(judged, args):
        content = launching.stopped_record(run_id, code, judged)
        if not args.dry_run:
            launching.write_stopped(log_dir, content)
        if args.json:
            print(json.dumps({**content, **console.check_json(judged.brief)}))
        return code
    plan = launching.whole_plan(judged, with_debug=args.debug)
    launching.show_before(judged, plan, args)
    if args.dry_run:
        return launching.show_words(plan, args)
    assert transport is not None
    if len(whole.nodes) <= launching.MOST_SAVED:
        from ringup import bundle

        with contextlib.suppress(RingupError):  # without the facts, only the report is shorter
            bundle.save(whole, log_dir / launching.FACTS_FILE)
    if args.detach and args.hang_timeout and not restarting.is_on(args):
        words = f"--hang-timeout: a detached run is watched by `ringup attach {plan.run_id}` alone"
        terminal.say(f"ringup: {words}, which has that option, too")
    if args.detach and restarting.is_on(args):
        from ringup.cli.supervising import DetachedSupervisor

        return DetachedSupervisor(whole, transport, log_dir, args).run(plan, findings)
    code = restarting.Supervisor(whole, transport, log_dir, args).run(plan, findings)
    if args.html:
        launching.write_page(judged.report, log_dir, args.html)
    return code
