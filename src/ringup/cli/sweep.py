"""
Try the network settings that differ, measure each for a short time, and print the best one.

Settings of NCCL_SOCKET_IFNAME, NCCL_IB_HCA and NCCL_IB_DISABLE (GLOO_SOCKET_IFNAME without GPUs) are
predicted first.  Of equal predictions only one is tried; settings that the check proves to hang are not
tried.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ringup.cli import bench, collective, launching, options, pipeline, pods, request
from ringup.collective_tests import job as tests_job
from ringup.collective_tests import sweep
from ringup.collective_tests.sweep import Trial
from ringup.errors import UsageError
from ringup.model import Cluster
from ringup.network.predictions import predicted
from ringup.output import collective_report, terminal
from ringup.output import sweep_report as show
from ringup.planning import expected, network
from ringup.transport import Transport
from ringup.transport.port_claims import PortClaims
from ringup.units import grouped

OPTIONS = (
    options.NODES,
    options.JOB,
    options.group(
        "what to try",
        options.NPROC,
        options.value("--size", "SIZE", "largest message (256M with GPUs, else 16M)", None, bench.size),
        options.value("--timeout", "S", "time limit of the whole sweep (600)", 600.0, options.limit),
        options.value("--wait", "S", "seconds to wait for a rank (60)", 60, options.positive),
        options.flag("--dry-run", "print the settings with their predictions, and stop"),
        options.flag("--anyway", "also try settings that the check proves to hang"),
        options.LOG_DIR,
    ),
    options.group(
        "collecting",
        options.value("--save", "F", "write everything collected to F", None, options.writable),
        options.value("--from", "F", "with --dry-run: use a file written by --save", None, options.readable,
                      dest="from_file"),
    ),
    options.group("output", options.JSON, options.QUIET),
)  # fmt: skip
COLLECT_S, LEAST_S = 60.0, 10.0
"""Longest time for the check; shortest time for one setting."""


@dataclass
class TimeIsUp:
    """A `runtime.Watcher` that ends a run at a given time."""

    end_s: float
    reports: list[dict[str, Any]] = field(default_factory=list)
    stalled: object = None

    def on_time(self, now_s: float, _nodes: object, _tell: object) -> str:
        return "its share of --timeout is used up" if now_s >= self.end_s else ""


@dataclass(frozen=True)
class Sweep:
    args: argparse.Namespace
    cluster: Cluster
    words: tuple[str, ...]
    end_s: float

    def under(self, env: Mapping[str, str]) -> Cluster:
        """The cluster with a job that has this setting."""
        job = self.cluster.job
        job = replace(job, env={**job.env, **env}, script="", arguments=self.words, backend=self.words[1])
        return replace(self.cluster, job=job)


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Check, predict, try, compare; 1 if no setting works."""
    if args.from_file and not args.dry_run:
        hint = "leave --from out, or add --dry-run to see the predictions"
        raise UsageError("`ringup sweep` needs the nodes, and --from contacts none", hint=hint)
    args.strict = args.unfolded = False
    end_s = time.monotonic() + args.timeout
    args.timeout = min(args.timeout, COLLECT_S)
    if args.from_file:
        return _swept(args, pipeline.load(args), None, end_s)
    with request.open_transport(args) as transport:
        return _swept(args, pipeline.collect(transport, request.job_from(args), args), transport, end_s)


def _swept(args: argparse.Namespace, cluster: Cluster, transport: Transport | None, end_s: float) -> int:
    if len(cluster.nodes) < 2:
        raise UsageError("one node: no network is used between nodes", hint="ringup sweep -H node0,node1")
    backend, warnings = tests_job.backend_of(cluster)
    size = args.size or (256 if backend == "nccl" else 16) * bench.MIB
    this = Sweep(args, cluster, ("bench", backend, str(args.wait), "", "all_reduce", "", "0"), end_s)
    trials = list(_trials(this, sweep.candidates(cluster, backend)))
    style = terminal.Style(sys.stderr)
    alone = sweep.ways(predicted(this.under({})).made)
    said = [style("warning", f"warning: {w}") for w in warnings]
    terminal.say(*said, *show.before(trials, alone, style, args.anyway), quiet=args.quiet)
    # A rank that waits in vain names the missing ranks before the setting's time is over.
    limit_s = max(LEAST_S, (end_s - time.monotonic()) / len(trials) / 2)
    sizes = ",".join(str(max(4, size // part)) for part in (16, 4, 1))
    words = (*this.words[:3], f"{limit_s:.0f}", "all_reduce", sizes, "0")
    done: list[Trial] = []
    code = 0
    if transport and not args.dry_run:
        if all(trial.because for trial in trials) and not args.anyway:
            code = pipeline.refused(pipeline.judge(this.under({})), args)
        else:
            done, code = _tried(replace(this, words=words), trials, transport)
    made, keep = sweep.judged([*done, *trials[len(done) :]])
    if args.json:
        terminal.print_json(**show.as_json(made, keep, backend), warnings=warnings)
    else:
        terminal.show("\n".join(show.lines(made, keep, terminal.Style(sys.stdout), is_over=not args.dry_run)))
    return code or (0 if keep or args.dry_run else 1)


def _trials(this: Sweep, found: list[dict[str, str]]) -> Iterator[Trial]:
    """A trial for each distinct prediction: the first setting that the check does not expect to fail."""
    plans = [(env, network.decide(this.under(env))) for env in found]
    made = (expected(predicted(this.under(env)), plan) for env, plan in plans)
    keys = [sweep.ways(one.prediction for one in predictions) for predictions in made]
    for way, same in grouped(zip(keys, plans, strict=True)).items():
        reasons = dict[int, str]()
        for at, (env, _) in enumerate(same):
            judged = pipeline.judge(this.under(env))
            error = next((f for f in judged.findings if f.severity == "error"), None)
            reasons[at] = "" if judged.plan else "no plan is possible: `ringup check` says why"
            reasons[at] = f"{error.where}: {error.found}" if error else reasons[at]
            if not reasons[at]:
                break
        at = next((at for at, why in reasons.items() if not why), 0)
        env, plan = same[at]
        also = tuple(other for other, _ in same if other is not env)
        adds = tuple(v for v in plan.env if v.name not in env) if plan else ()
        yield Trial(env, way, also, adds, because=reasons[at])


def _tried(this: Sweep, trials: list[Trial], transport: Transport) -> tuple[list[Trial], int]:
    """The finished trials, and the exit code after an interruption."""
    run_id, args = launching.new_run_id(), this.args
    done: list[Trial] = []
    with launching.claimed(Path(args.log_dir or f"runs/{run_id}"), run_id) as log_dir:
        terminal.say(f"ringup: logs in {terminal.path_shown(log_dir)}", quiet=args.quiet)
        for number, trial in enumerate(trials, 1):
            left_s = this.end_s - time.monotonic()
            to_do = sum(not t.because or args.anyway for t in trials[number - 1 :])
            if trial.because and not args.anyway:
                done.append(trial)
                continue
            if left_s < LEAST_S:
                done.append(replace(trial, because="the time is over: --timeout gives more"))
                continue
            terminal.say(f"ringup: setting {number}: {show.setting(trial)}", quiet=args.quiet)
            end_s = time.monotonic() + left_s / max(1, to_do)
            made, code = _one(this, trial, transport, log_dir / str(number), end_s)
            done.append(made)
            if code:
                return done, code
    return done, 0


def _one(this: Sweep, trial: Trial, transport: Transport, log_dir: Path, end_s: float) -> tuple[Trial, int]:
    """Measure one setting; with the exit code after an interruption."""
    quiet = copy.copy(this.args)
    quiet.quiet = True
    with PortClaims() as claims:
        judged = launching.judge(this.under(trial.env), launching.new_run_id(), this.args, claims)
        if judged.plan is None:
            return trial, 0
        plan = collective.plan_of(judged, this.words[1])
        started = collective.measure(judged, plan, transport, log_dir, quiet, watcher=TimeIsUp(end_s))
    collective.show_end(started.records, started.result)
    how, lines = started.result.outcome, [line for own in started.records.values() for line in own]
    channels = collective.channels(started)
    found = bench.report_of(started, ("all_reduce",), channels)
    taken = sweep.used(judged.cluster, plan, lines, started.result.record, channels)
    failed = "" if how == "ok" else collective_report.culprits(started.ended)
    if how == "hung":
        failed = "not finished in its share of --timeout"
    made = sweep.measured(trial, found, taken, failed)
    return made, started.result.exit_code if how == "interrupted" else 0
