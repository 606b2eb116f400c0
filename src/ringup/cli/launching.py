"""Shared by `run`, `attach`, `test`, `bench` and submitted jobs: folder, port, output and end of a run."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringup import progress
from ringup.cli import pipeline
from ringup.cli.pipeline import Judgement
from ringup.errors import RingupError
from ringup.model import Cluster
from ringup.output import console, terminal
from ringup.planning import Plan, minimal_env, with_transports
from ringup.rules import Finding
from ringup.runtime import Event, RunResult, claims
from ringup.secrets import redact_data
from ringup.transport import Transport
from ringup.transport.port_claims import PortClaims
from ringup.units import plural, printable

if TYPE_CHECKING:
    from ringup.hang import HangWatch
    from ringup.logs.rule import Cause

FAILED = ("rank-failed", "hung", "launcher-error")
END_FILE = "ringup.log"
"""How a run ended, in its log directory."""
FACTS_FILE = "facts.json"
"""The facts of the check before the run, in the folder of the run."""


def new_run_id(log_dir: str | None = None) -> str:
    """
    Sortable by time, unique without coordination, a hundred a second: `20260131-142530-9f3c05d1`.

    Inside a job of `ringup run --slurm` that run's id, by its `log_dir`.
    """
    return (log_dir and claims.submitted(Path(log_dir))) or time.strftime(
        "%Y%m%d-%H%M%S-"
    ) + secrets.token_hex(4)


@contextlib.contextmanager
def claimed(asked: Path, run_id: str, *, is_wanted: bool = True) -> Iterator[Path]:
    """The folder that only this run writes into, removed if it stays empty.  Raises LaunchError."""
    if not is_wanted:
        yield asked
        return
    own = claims.claim(asked, run_id)
    if own != asked:
        shown, now = terminal.path_shown(asked), terminal.path_shown(own)
        terminal.say(f"ringup: {shown} is not empty, so the logs of this run are in {now}")
    try:
        yield own
    finally:
        claims.release(own, run_id)


def judge(
    cluster: Cluster, run_id: str, args: argparse.Namespace, ports: PortClaims, used: Collection[int] = ()
) -> Judgement:
    """Like `pipeline.judge`; `ports` holds a local rendezvous's port, ports in `used` come last."""
    claim = None if args.dry_run or cluster.job.port or not cluster.head.host.local else ports.take
    if used and not cluster.job.port:
        judged = pipeline.judge(cluster, run_id, lambda port: port not in used and (not claim or claim(port)))
        if judged.plan is not None:
            return judged
    return pipeline.judge(cluster, run_id, claim)


def whole_plan(judged: Judgement, *, with_debug: bool) -> Plan:
    """The plan of a judgement, with the transports it expects, and NCCL's log lines if useful."""
    assert judged.plan is not None
    plan = with_transports(judged.plan, judged.predictions)
    return minimal_env.with_nccl_debug(plan, judged.cluster, always=with_debug)


def show_before(judged: Judgement, plan: Plan, args: argparse.Namespace) -> None:
    style = terminal.Style(sys.stderr)
    shown = judged.findings if args.unfolded else console.folded(judged.findings, judged.cluster)
    nodes, found = plural(len(judged.cluster.nodes), "node"), console.counts(shown)
    if any(one.severity == "note" and not one.worked_around_by for one in shown):
        script = judged.cluster.job.script
        found += f" (`ringup check`{f' and `ringup lint {script}` show' if script else ' shows'} notes)"
    terminal.say(f"checked: {nodes}, {found}; {console.network_line(judged.cluster)}", quiet=args.quiet)
    for finding in shown:
        if finding.severity != "note" or (finding.worked_around_by and not args.quiet):
            terminal.say(*console.brief_lines(finding, style))
    terminal.say(*console.plan_lines(plan, style), quiet=args.quiet)


def of_attempt(
    most: int, number: int = 1, cause: str = "", last_world_size: str = "", excluded: str = ""
) -> dict[str, str]:
    """Variables by which a script knows which attempt of how many it is, and what came before."""
    return {
        "RINGUP_ATTEMPT": str(number),
        "RINGUP_RESTART_CAUSE": cause,
        "RINGUP_LAST_WORLD_SIZE": last_world_size,
        "RINGUP_EXCLUDED": excluded,
        "RINGUP_MAX_RESTARTS": str(most),
        "TORCHELASTIC_RESTART_COUNT": str(number - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(most),
    }


def show_words(plan: Plan, args: argparse.Namespace) -> int:
    """`--dry-run`: the commands that each node would run."""
    from ringup.runtime.record import plan_json, plan_text

    env = of_attempt(getattr(args, "max_restarts", 0))
    own = " ".join(f"{name}={value}" for name, value in env.items())
    text = plan_text(plan, f"export {own}  # which attempt this is, for the script")
    plan = replace(plan, nodes=tuple(replace(node, env={**node.env, **env}) for node in plan.nodes))
    if args.json:
        terminal.print_json(run=plan.run_id, text=text, plan=plan_json(plan))
    else:
        print(text)
    return 0


def follow(
    plan: Plan,
    transport: Transport,
    findings: list[Finding],
    log_dir: Path,
    args: argparse.Namespace,
    write: Callable[[str], None],
    **more: Any,
) -> RunResult:
    """The same as `runtime.ssh.run`; `more` are its options."""
    from ringup.runtime import ssh

    line = f"ringup: run {plan.run_id}, logs in {terminal.path_shown(log_dir)}"
    terminal.say(terminal.Style(sys.stderr)("dim", line), quiet=args.quiet)
    return ssh.run(
        plan,
        transport,
        log_dir=log_dir,
        write=write,
        detach=getattr(args, "detach", False),
        ssh_config=args.ssh_config,
        on_event=follow_events(plan.world_size, args),
        findings=findings,
        **({"lease_s": args.lease} if hasattr(args, "lease") else {}),
        **more,
    )


class RankLines:
    """Prints the ranks' lines; a closed or full stream does not end the run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._stream = sys.stderr if args.json else sys.stdout
        self._is_open, self._lost, self.has_lines = True, "", False

    def __call__(self, text: str) -> None:
        progress.hide()
        self.has_lines = True
        try:
            if self._is_open:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError) as error:
            self._is_open = False
            if not isinstance(error, BrokenPipeError):  # the reader closed the pipe
                self._lost = getattr(error, "strerror", None) or str(error)

    def code(self, code: int) -> int:
        """The command's exit code; lost lines are reported and make it a failure."""
        if self._lost:
            terminal.say(f"ringup: output: {self._lost}; the missing lines are in the log directory")
        return code or (RingupError.exit_code if self._lost else 0)


def follow_events(world_size: int, args: argparse.Namespace) -> Callable[[Event], None]:
    style = terminal.Style(sys.stderr)
    # Otherwise the user may wait for an end or a restart that never comes.
    ends = "ends and restarts" if getattr(args, "max_restarts", 0) else "ends"
    goes_on = f"\n  the run continues; `--hang-timeout S` {ends} a run that hangs"
    of_hang = "" if getattr(args, "hang_timeout", True) else goes_on

    def on_event(event: Event) -> None:
        if event.kind == "hang" and event.text.startswith("no progress"):
            head, *lines = event.text.split("\n")
            known = (line for line in lines if line.strip().removeprefix("flight recorder: ") not in head)
            event = replace(event, text="\n".join([head, *known]) + of_hang)
        all_joined = event.kind == "joined" and event.text.startswith(f"{world_size} of")
        colour = {"hang": "error", "transport": "warning", "problem": "warning"}.get(event.kind, "dim")
        if colour != "dim" or all_joined or event.kind in ("ready", "ending", "note", "looking", "quiet"):
            terminal.say(style(colour, f"ringup: {event.text}"), quiet=args.quiet and colour == "dim")

    return on_event


def watch_of(report_s: float, end_s: float, transport: Transport) -> HangWatch | None:
    """Reports a run without progress after `report_s`, ends it after `end_s` (0 for never)."""
    from ringup.hang import HangWatch

    local = [host.name for host in transport.hosts if host.local]
    if not (report_s or end_s):
        return None
    return HangWatch(report_s or end_s, end_s, local if len(local) > 1 else ())


MOST_SAVED = 256
"""Nodes whose facts are saved in a run's folder: 13 kB each."""


def write_page(check: console.Report, log_dir: Path, name: str) -> None:
    """Replace the check's page by the run's page."""
    from ringup.output import html_page

    page = html_page.Page("run", f"ringup report {terminal.path_shown(log_dir)}")
    with contextlib.suppress(RingupError):  # a log without lines
        html_page.add_logs_of(page, [str(log_dir)])
    terminal.write(Path(name), html_page.check_page(check, page))


def write_record(log_dir: Path, content: dict[str, Any]) -> bool:
    """Write run.json; False, with a message, if that fails."""
    from ringup.runtime import record

    try:
        record.write(log_dir, content)
    except OSError as error:
        terminal.say(f"ringup: {terminal.path_shown(log_dir)}/run.json was not written: {error.strerror}")
        return False
    return True


def stopped_record(run_id: str, code: int, judged: Judgement) -> dict[str, Any]:
    """run.json of a run that the check stopped: no rank was seen."""
    from ringup.runtime.record import plan_json, run_json

    named = {"script": judged.cluster.job.script, "hosts": [node.name for node in judged.cluster.nodes]}
    known: dict[str, Any] = {"findings": judged.findings, "cause": None, **named}
    if judged.plan:
        known["plan"] = plan_json(whole_plan(judged, with_debug=False))
    if first := next((one for one in judged.findings if one.severity == "error"), None):
        known["cause"] = {"rule": first.rule, "confidence": "high", "text": first.found, "evidence": []}
    return run_json(run_id, outcome="check-stopped", exit_code=code, started=time.time(), **known)


def write_stopped(log_dir: Path, content: dict[str, Any]) -> None:
    """Write run.json and ringup.log, a line for each error."""
    if write_record(log_dir, content):
        errors = [one for one in content["findings"] if one["severity"] == "error"]
        where = [one["where"] or one["node"] or "" for one in errors]
        lines = [printable(f"{e['rule']}  {w}: {e['found']}") for e, w in zip(errors, where, strict=True)]
        with contextlib.suppress(OSError):  # run.json has them, too
            Path(log_dir, END_FILE).write_text("\n".join([*lines, "nothing was started", ""]), "utf-8")


CAUSE_LINES, EVIDENCE = 14, 3


def cause_of(log_dir: str) -> tuple[list[str], Cause | None, dict[str, Any] | None]:
    """The first cause that `ringup logs` names for a run's folder: lines to show, the cause, its record."""
    from ringup.logs.read import read_logs
    from ringup.output import logs_report

    where = terminal.path_shown(log_dir)
    try:
        found = read_logs([log_dir])
    except RingupError as error:
        return [f"cause: not known: {error}"], None, None
    if not found.causes:
        return [f"cause: the logs name none; `ringup logs {where}` shows what they hold"], None, None
    first = found.causes[0]
    lines = list(logs_report.cause_lines(first, found.story, terminal.Style(sys.stderr)))[:CAUSE_LINES]
    evidence = logs_report.cause_json(first, found.story)["evidence"][:EVIDENCE]
    known = {"rule": first.rule, "confidence": first.confidence, "text": first.text, "evidence": evidence}
    return ["", *lines, f"  more: ringup logs {where}"], first, known


def with_cause(result: RunResult) -> tuple[RunResult, list[str], Cause | None]:
    """Add the cause to run.json and the end to the log directory; the result, lines to show, the cause."""
    shown = console.run_lines(result, terminal.Style(io.StringIO()))
    with contextlib.suppress(OSError):  # run.json also has it
        # A rank's last lines, quoted here, are also in its own log.
        text = "".join(f"{line}\n" for line in shown if not line.startswith("  | "))
        Path(result.log_dir, END_FILE).write_text(text, encoding="utf-8", errors="backslashreplace")
    if not (result.outcome in FAILED or result.failure or result.record.get("verdict")):
        return result, [], None
    lines, cause, known = cause_of(result.log_dir)
    result = replace(result, record={**result.record, "cause": redact_data(known)})
    write_record(Path(result.log_dir), dict(result.record))
    return result, lines, cause


def show_end(result: RunResult, more: Sequence[str], write: RankLines, args: argparse.Namespace) -> int:
    """Show how a run ended, then the lines `more` (--json: the record on stdout); returns the exit code."""
    if args.json:
        print(json.dumps(result.record, indent=1))
    shown = result
    if args.quiet:  # lost output is reported even with --json
        findings = tuple(one for one in result.findings if one.severity != "note")
        shown = replace(result, notes=(result.problem,) if result.problem else (), findings=findings)
    quoted = f"{END_FILE}:"  # evidence from the lines of `run_lines`
    end = console.run_lines(shown, terminal.Style(sys.stderr))
    held = printable((result.record.get("verdict") or {}).get("text", ""))
    if held and held in " ".join(" ".join(more).split()):  # the cause repeats it
        end = [line for line in end if console.HELD not in line]
    terminal.say(*end, *(line for line in more if quoted not in line))
    return write.code(result.exit_code)
