"""
Check, decide, launch, watch, clean up.

Everything after `--` is the training script and its arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ringup.commands import check, common, lint, pods, submit
from ringup.commands.parser import SCRIPT_WORDS
from ringup.errors import UsageError
from ringup.facts import Cluster
from ringup.launch import Event, RunResult
from ringup.plan import Plan
from ringup.plan.command import LAUNCHERS
from ringup.reach import Reach
from ringup.rules import Finding, Skipped

if TYPE_CHECKING:
    from ringup.launch.claims import Claims
    from ringup.watch import Watch

END_FILE = "ringup.log"
"""How a run ended, in its log directory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ringup run`."""
    common.add_node_arguments(parser)
    common.add_job_arguments(parser)
    common.add_collection_arguments(parser)
    common.add_output_arguments(parser)
    group = parser.add_argument_group("the job")
    group.add_argument(
        "--nproc", type=common.ranks, metavar="N", help="ranks per node (default: visible GPUs)"
    )
    common.add_launcher_argument(group, LAUNCHERS)
    group.add_argument(
        "--launcher-args", default="", metavar="'...'", help="options for the launcher itself, as one word"
    )
    group.add_argument(
        "--rdzv",
        choices=("static", "c10d"),
        default="static",
        help="rendezvous of what torchrun is in (static)",
    )
    group.add_argument("--dry-run", action="store_true", help="print what each node would execute, and stop")
    group.add_argument("--anyway", action="store_true", help="start despite errors")
    group.add_argument(
        "--lease", type=seconds, default=20.0, metavar="S", help="how long a node goes on unheard (20)"
    )
    add_watch_arguments(group)
    group.add_argument(
        "--detach", action="store_true", help="leave the run to the head node; see `ringup attach`"
    )
    group.add_argument("--log-dir", metavar="D", help="one file per rank, run.json (default: runs/RUN)")
    group.add_argument(
        "--debug", action="store_true", help="NCCL's own lines of every rank, in nccl-*.log beside its file"
    )
    submit.add_arguments(parser)
    parser.add_argument(
        "script", nargs="*", metavar=SCRIPT_WORDS, help="the training script and its arguments"
    )


def add_watch_arguments(parser: argparse._ActionsContainer) -> None:
    """Options of whoever watches a run."""
    parser.add_argument(
        "--hang-report",
        type=window,
        default=60.0,
        metavar="S",
        help="say who holds the run up after so long without progress (60; 0: never)",
    )
    parser.add_argument(
        "--hang-timeout",
        type=window,
        default=0.0,
        metavar="S",
        help="end a run that hangs for so long, with 124",
    )


def seconds(text: str) -> float:
    """A lease no shorter than the beat can carry."""
    given = common.number(text)
    if not 5 <= given <= 86400:
        raise argparse.ArgumentTypeError(f"{text} is not from 5 to 86400 seconds")
    return given


def window(text: str) -> float:
    """A time without progress, 0 for never; a node needs a moment for a look."""
    given = common.number(text)
    if given != 0 and not 2 <= given <= 86400 * 30:
        raise argparse.ArgumentTypeError(f"{text} is neither 0 nor from 2 seconds to 30 days")
    return given


def new_run_id() -> str:
    """Sortable by time, unique without coordination, a hundred a second: `20260131-142530-9f3c05d1`."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(4)


def script_words(args: argparse.Namespace, usage: str = "ringup run [options] -- train.py ARGS") -> list[str]:
    """
    The script and its arguments.

    Raises UsageError when there is none, or when an option of ours stands where the script should.
    """
    words: list[str] = args.script
    if not words:
        raise UsageError("no training script was given", hint=usage)
    if not words[0].strip() or "\0" in "".join(words) or words[0].startswith("-"):
        raise UsageError(f"{words[0]!r} is no script", hint=usage)
    return words


def log_directory(args: argparse.Namespace, run_id: str) -> Path:
    """`--log-dir`, or runs/RUN below the current directory."""
    return Path(args.log_dir) if args.log_dir else Path("runs") / run_id


def is_consequence(text: str) -> bool:
    """Whether a rank's last words say that somebody else ended first."""
    from ringup.logs import blame

    return blame.is_consequence(text)


def show_before(cluster: Cluster, findings: list[Finding], plan: Plan, args: argparse.Namespace) -> None:
    """What the check found and what was decided, briefly, on stderr."""
    from ringup import report

    style = report.Style(sys.stderr)
    nodes = f"{len(cluster.nodes)} node{'s' * (len(cluster.nodes) != 1)}"
    common.say(f"checked: {nodes}, {report.counts(findings)}; {report.pairs_line(cluster)}", quiet=args.quiet)
    for finding in report.folded(findings):
        if finding.severity == "note" and not finding.worked_around_by:
            continue
        for line in report.brief_lines(finding, style):
            common.say(line)
    for line in report.plan_lines(plan):
        common.say(line, quiet=args.quiet)


def stopped(log_dir: Path | None, code: int, run_id: str, findings: list[Finding]) -> dict[str, Any]:
    """run.json of a run that the check stopped; written where there is a directory for it."""
    from ringup.launch import record

    content = record.unstarted_json(
        run_id, outcome="check-stopped", exit_code=code, started=time.time(), findings=findings
    )
    if log_dir is None:
        return content
    try:
        log_dir.mkdir(parents=True, exist_ok=True)
        record.write(log_dir, content)
    except OSError as error:
        common.say(f"ringup: {log_dir}/run.json was not written: {error.strerror}")
    return content


def show_words(plan: Plan, text: str, as_json: bool) -> int:
    """`--dry-run`: what each node would execute."""
    from ringup.launch.record import plan_json
    from ringup.report import envelope

    print(json.dumps(envelope(run=plan.run_id, text=text, plan=plan_json(plan))) if as_json else text)
    return 0


@pods.everywhere
def run(args: argparse.Namespace) -> int:
    """Collect, judge, decide, launch; the job's own exit code."""
    words = script_words(args)
    args.script_findings = lint.before_run(args, words[0])
    job = common.job_from(args, words)
    if args.from_file and not args.dry_run:
        raise UsageError(
            "--from reaches no node, so nothing can run", hint="add --dry-run, or leave --from out"
        )
    run_id = new_run_id()
    log_dir = log_directory(args, run_id)
    if args.slurm:
        return submit.run(args, words, run_id, log_dir)
    if args.from_file:
        return decide_and_start(check.loaded(args, words), None, run_id, log_dir, args)
    if args.detach and not args.ssh_config and any(host.in_slurm for host in common.nodes_from(args)):
        raise UsageError(
            "--detach: inside an allocation a run ends with the steps that srun holds",
            hint="`ringup run --slurm --detach` submits it as a job of its own",
        )
    with common.door(args) as door:
        cluster = check.collect(door, job, args, check.Progress(args.quiet))
        check.save(cluster, args)
        return decide_and_start(cluster, door, run_id, log_dir, args)


def listens_here(cluster: Cluster, args: argparse.Namespace) -> bool:
    """Whether a job starts whose rendezvous, on a port of our choice, is on this machine."""
    chosen = not args.dry_run and not cluster.job.port
    return chosen and cluster.head.host.local and bool(cluster.head.cache.path)


def judged(
    cluster: Cluster, run_id: str, args: argparse.Namespace
) -> tuple[list[Finding], list[Skipped], Plan | None, Claims]:
    """As `check.judge`; and the claim on the plan's port, to be held until the job has ended."""
    from ringup.launch.claims import Claims

    findings, skipped, plan = check.judge(cluster, run_id)
    claims, taken = Claims(Path(cluster.head.cache.path)), set[int]()
    while plan and listens_here(cluster, args) and not claims.take(plan.master_port):
        taken.add(plan.master_port)
        findings, skipped, plan = check.judge(cluster, run_id, taken)
    return findings, skipped, plan, claims


def decide_and_start(
    cluster: Cluster, door: Reach | None, run_id: str, log_dir: Path, args: argparse.Namespace
) -> int:
    """From facts to the end of the job."""
    from ringup import report
    from ringup.launch.render import render

    findings, skipped, plan, _claims = judged(cluster, run_id, args)
    check.write_page(cluster, findings, skipped, plan, args)
    code = check.exit_code(findings, skipped, args.strict)
    if plan is None or (code and not args.anyway):
        style = report.Style(sys.stderr)
        common.say(report.check_text(cluster, findings, skipped, plan, style))
        common.say(style("error", "nothing was started") + check.way_out(plan, code))
        content = stopped(None if args.dry_run else log_dir, code or 1, run_id, findings)
        if args.json:
            print(json.dumps({**content, **report.check_json(cluster, findings, skipped, plan)}))
        return code or 1
    from ringup.plan.expected import with_transports
    from ringup.plan.listening import listening

    plan = listening(with_transports(plan, cluster), cluster, always=args.debug)
    findings += lint.of_nodes(args, cluster, plan)
    show_before(cluster, findings, plan, args)
    if args.dry_run:
        return show_words(plan, render(plan, lease_s=args.lease).text, args.json)
    assert door is not None
    return start(plan, door, findings, log_dir, args)


def write_to(stream: TextIO) -> Callable[[str], object]:
    """Takes the ranks' lines."""

    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    return write


def follow_events(world_size: int, quiet: bool) -> Callable[[Event], None]:
    """Shows what happens to a run, on stderr."""
    from ringup.report import Style

    style = Style(sys.stderr)

    def on_event(event: Event) -> None:
        all_joined = event.kind == "joined" and event.text.startswith(f"{world_size} of")
        if event.kind == "hang":
            common.say(style("error", f"ringup: {event.text}"))
        elif event.kind in ("transport", "problem"):
            common.say(style("warning", f"ringup: {event.text}"))
        elif all_joined or event.kind in ("ready", "ending", "note", "looking", "quiet"):
            common.say(style("dim", f"ringup: {event.text}"), quiet=quiet)

    return on_event


def watch_of(args: argparse.Namespace, door: Reach) -> Watch | None:
    """Who watches the run; nobody where that is not wanted."""
    from ringup.watch import Watch

    window_s = args.hang_report or args.hang_timeout
    local = [host.name for host in door.hosts if host.local]
    return Watch(window_s, args.hang_timeout, local if len(local) > 1 else ()) if window_s else None


def start(plan: Plan, door: Reach, findings: list[Finding], log_dir: Path, args: argparse.Namespace) -> int:
    """Launch, follow, and say how it ended."""
    from ringup import report
    from ringup.launch import ssh

    if args.detach and args.hang_timeout:
        words = f"--hang-timeout: a detached run is watched by `ringup attach {plan.run_id}` alone"
        common.say(f"ringup: {words}, which has that option, too")
    style = report.Style(sys.stderr)
    common.say(style("dim", f"ringup: run {plan.run_id}, logs in {log_dir}"), quiet=args.quiet)
    result = ssh.run(
        plan,
        door,
        log_dir=log_dir,
        write=write_to(sys.stderr if args.json else sys.stdout),
        lease_s=args.lease,
        detach=args.detach,
        ssh_config=args.ssh_config,
        on_event=follow_events(plan.world_size, args.quiet),
        findings=findings,
        is_consequence=is_consequence,
        watcher=watch_of(args, door),
    )
    if args.json:
        print(json.dumps(result.record, indent=1))
    say_end(result)
    return result.exit_code


def say_end(result: RunResult) -> None:
    """How a run ended, on stderr; and beside its ranks' logs, where `ringup logs` reads it."""
    from ringup import report

    for line in report.run_lines(result, report.Style(sys.stderr)):
        common.say(line)
    # A rank's last lines, quoted here, stand in its own log.
    lines = [
        one for one in report.run_lines(result, report.Style(io.StringIO())) if not one.startswith("  | ")
    ]
    plain = "".join(f"{line}\n" for line in lines)
    with contextlib.suppress(OSError):  # said already, and run.json has it
        Path(result.log_dir, END_FILE).write_text(plain, encoding="utf-8", errors="backslashreplace")
