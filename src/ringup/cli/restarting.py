"""A run and its attempts: after a failure it checks the nodes again, decides, and acts on the decision."""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ringup import collectors
from ringup.cli import launching, request, restarts
from ringup.cli.command_line import Ended, handling
from ringup.cli.rechecking import Rechecks, failure_cause, pause, until_gone_s
from ringup.errors import UsageError
from ringup.model import Cluster
from ringup.output import restart_report, terminal
from ringup.planning import NodePlan, Plan
from ringup.recovery import table, training_progress
from ringup.recovery.decision import (
    DO_NOT_REQUEUE,
    MAY_REQUEUE,
    Decision,
    EndedAttempt,
    FailureCause,
    Recheck,
    decide,
)
from ringup.recovery.training_progress import StepReader, TrainingProgress
from ringup.rules import Finding
from ringup.runtime import RunResult, Save, node_history
from ringup.runtime.ssh import NOT_SAVED, SAVED
from ringup.saved_run import AttemptCause, AttemptProgress, SavedAttempt
from ringup.secrets import redact_data
from ringup.transport import Transport
from ringup.transport.port_claims import PortClaims
from ringup.units import show_seconds

RETURN_S, ASK_EVERY_S = 10.0, 3.0
"""Unreachable nodes without a spare are queried again for the lease plus RETURN_S."""
BATCH_JOB = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
"""Variables of jobs whose scheduler reads exit codes."""
LEAST_LEFT_S = 60.0
"""A restart needs at least this much of the job's time: with less it could not train."""


def is_on(args: argparse.Namespace) -> bool:
    """Whether the run may have several attempts, each with its own folder."""
    return bool(args.max_restarts or args.spares)


def check_options(args: argparse.Namespace) -> None:
    """Raises UsageError for options that cannot be honoured together."""
    if is_on(args) or args.restart_on or args.no_restart_on:
        restarts.policy_from(args)
    if args.detach and args.save_signal:
        wrong = "--save-signal: the head node of a detached run cannot pass a signal on to the ranks"
        hint = "leave --detach out and keep ringup itself alive: `tmux`, `systemd-run --user ringup run ...`"
        raise UsageError(wrong, hint=hint)


@dataclass
class Attempt:
    """One start of the ranks, with its end if it has ended."""

    entry: SavedAttempt
    """Its record in run.json."""
    plan: Plan
    findings: list[Finding]
    of: int = 1
    """Most attempts without progress."""
    steps: StepReader = field(default_factory=StepReader)
    began_s: float = field(default_factory=time.monotonic)
    progress: TrainingProgress | None = None
    """The saved progress when it started."""

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.of}"

    @property
    def number(self) -> int:
        return self.entry.number

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node.node for node in self.plan.nodes)

    def first_step_s(self) -> float | None:
        return None if self.steps.first_s is None else self.steps.first_s - self.began_s


class Supervisor:
    """Starts the attempts of a run and decides after each; `cluster` includes the spares."""

    def __init__(self, cluster: Cluster, transport: Transport, place: Path, args: argparse.Namespace) -> None:
        self.cluster, self.transport, self.folder, self.args = cluster, transport, place, args
        self.spares = [node.name for node in cluster.nodes[len(cluster.nodes) - args.spares :]]
        self.run_id, self.claims = "", PortClaims()
        self.epoch_s = time.time() - time.monotonic()
        """For `now`."""
        self.ports: set[int] = set()
        """Rendezvous ports of earlier attempts."""
        self.rechecks = Rechecks(transport, cluster, args, self.spares)
        self.attempts: list[EndedAttempt] = []
        self.entries: list[SavedAttempt] = []
        """All attempts so far, for run.json."""
        self.result: RunResult | None = None
        """The result of the latest attempt that has ended."""
        self.outcome = ""
        self.earlier: list[Attempt] = []
        """Failed attempts until the first step of the next attempt is known."""
        self.decision: Decision | None = None
        self.cause_lines: list[str] = []
        self.write = launching.RankLines(args)
        name = signal.Signals(args.save_signal).name if args.save_signal else ""
        soon_s: float = args.save_grace + restarts.LEFT_AFTER_SAVE_S

        def is_due() -> bool:
            return request.time_left_s() < soon_s

        # A job that begins with less time than that would only save.
        has_time = request.time_left_s() > 2 * soon_s
        self.save = Save(name, args.save_grace, is_due if has_time else Save.is_due) if name else None

    def now(self) -> float:
        """Seconds since the epoch; a clock that is set meanwhile does not change durations."""
        return self.epoch_s + time.monotonic()

    def say(self, *texts: str) -> None:
        terminal.say(*texts, quiet=self.args.quiet)

    def run(self, plan: Plan, findings: list[Finding]) -> int:
        """All attempts, and the end on the screen; the command's exit code."""
        self.run_id = plan.run_id
        self.ports.add(plan.master_port)
        unreached = {node.name: {"not reached"} for node in self.cluster.nodes if node.unreached}
        errors = {**self.rechecks.at_first.errors, **unreached} if self.spares else {}
        self.say(*restart_report.spare_lines({node: errors.get(node, set()) for node in self.spares}))
        return self.supervise(self.begun(plan, findings))

    def supervise(self, following: Attempt | None) -> int:
        """This attempt and the following ones."""
        with self.signals(), self.claims:
            try:
                while following:
                    attempt = following
                    self.result = self.attempt(attempt)
                    following = self.after(attempt)
            except KeyboardInterrupt as interrupt:
                if self.result is None or not is_on(self.args):
                    raise
                # The end is recorded and shown, however often Ctrl-C is pressed.
                with handling((signal.SIGINT, signal.SIGTERM), lambda *_: None):
                    if self.result.outcome in launching.FAILED:
                        self.interrupted(128 + getattr(interrupt, "number", signal.SIGINT))
                    return self.show_end()
            except Exception:
                if self.result and self.outcome == "restarting":
                    self.write_record(self.result.record)
                raise
        return self.show_end()

    def signals(self) -> AbstractContextManager[None]:
        """Between attempts, the signal that requests saving ends the run like SIGTERM."""

        def end(number: int, _frame: object) -> None:
            raise Ended(number)

        own = {self.args.save_signal} if self.save else set()
        return handling(own - {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}, end)

    # -- one attempt -----------------------------------------------------------------------------

    def begun(self, plan: Plan, findings: list[Finding], cause: str = "") -> Attempt:
        number = len(self.entries) + 1
        left = self.decision.restarts_left if self.decision else self.args.max_restarts
        names = [node.node for node in plan.nodes]
        out = {node for one in self.entries for node in one.nodes} - {*names}
        last = str(self.entries[-1].world_size) if self.entries else ""
        known = launching.of_attempt(self.args.max_restarts, number, cause, last, ",".join(sorted(out)))
        nodes = tuple(replace(node, env={**node.env, **known}) for node in plan.nodes)
        progress = self.progress(names)
        entry = SavedAttempt(number, names, plan.world_size, started=self.now())
        self.entries.append(entry)
        return Attempt(entry, replace(plan, nodes=nodes), findings, of=number + left, progress=progress)

    def attempt(self, attempt: Attempt) -> RunResult:
        plan, findings, folder = attempt.plan, attempt.findings, self.folder_of(attempt)
        more = self.watching(attempt)
        return launching.follow(plan, self.transport, findings, folder, self.args, self.write, **more)

    def folder_of(self, attempt: Attempt) -> Path:
        return self.folder / f"attempt-{attempt.number}" if is_on(self.args) else self.folder

    def watching(self, attempt: Attempt) -> dict[str, Any]:
        """Keyword arguments of `runtime.Options`: hang watch, saving and progress."""
        watcher = launching.watch_of(self.args.hang_report, self.args.hang_timeout, self.transport)
        more: dict[str, Any] = {"save": self.save, "watcher": watcher}
        if is_on(self.args):
            more |= {"on_record": self.write_record, "on_lines": partial(self.read, attempt)}
        return more

    def read(self, attempt: Attempt, _node: NodePlan, lines: Sequence[bytes]) -> None:
        """Read the ranks' lines; report once that an attempt trains again, or restarts from the beginning."""
        had_begun, now_s = attempt.steps.first_s is not None, time.monotonic()
        for line in lines:
            attempt.steps.read(line, now_s)
        after_s = attempt.first_step_s()
        if after_s is not None and not had_begun and self.attempts:
            step = self.attempts[-1].step
            lost = "" if step is None else f"; attempt {attempt.number - 1} had reached step {step:.12g}"
            words = f"step {attempt.steps.step:.12g} after {show_seconds(after_s)}{lost}"
            self.say(f"ringup: {attempt} trains: {words}")
        before = next((one for one in self.earlier if attempt.steps.starts_over(one.steps)), None)
        if before is None:
            return
        self.earlier = []
        reached = f"starts over, attempt {before.number} had reached step {before.steps.step:.12g}"
        self.say(f"ringup: {attempt} {reached}: the script must resume from its checkpoints")

    def write_record(self, content: Mapping[str, Any]) -> bool:
        """Write the run's run.json: that of its latest attempt, with all attempts; True if it was written."""
        self.outcome = content["outcome"]
        return launching.write_record(self.folder, self.whole(content))

    def whole(self, content: Mapping[str, Any]) -> dict[str, Any]:
        started, attempts = self.entries[0].started, redact_data(msgspec.to_builtins(self.entries))
        seconds = round(self.now() - started, 3) if len(self.entries) > 1 else content["seconds"]
        # A later attempt appends its number to the run's id.
        run = str(content["run"]).removesuffix(f".{len(self.entries)}")
        return {**content, "run": run, "started": started, "seconds": seconds, "attempts": attempts}

    def progress(self, nodes: Iterable[str]) -> TrainingProgress | None:
        if not is_on(self.args):
            return None
        folders = dict.fromkeys(nodes, self.cluster.job.chdir)
        return training_progress.read(self.transport, self.args.progress, folders)

    # -- after a failure -------------------------------------------------------------------------

    def after(self, attempt: Attempt) -> Attempt | None:
        """Find the cause, check the nodes again, decide; returns the next attempt, None if there is none."""
        assert self.result is not None
        self.result, self.cause_lines, cause = launching.with_cause(self.result)
        entry, result, began_s = attempt.entry, self.result, time.monotonic()
        if result.outcome == "running":
            return None
        entry.seconds = dict.fromkeys(("notice", "end", "recheck", "start", "first_step"))
        entry.seconds.update(result.phases)
        if result.outcome == "hung" and result.record["hangs"]:
            entry.seconds["notice"] = result.record["hangs"][-1]["quiet_s"]
        entry.seconds["first_step"] = attempt.first_step_s()
        entry.ended, entry.outcome = self.now(), result.outcome
        if result.outcome not in launching.FAILED:
            entry.decision = "finished" if result.outcome == "ok" else "stop"
            entry.because = "" if result.outcome == "ok" else f"the run was {result.outcome}"
            entry.progress = self.shown_progress(attempt, self.saved(attempt, result))
            if result.outcome == "ok":
                self.note_nodes(attempt)
            # it failed before it had saved: exit_code tells the scheduler whether to restart it
            elif result.failure:
                known = failure_cause(attempt.plan, result, cause, Recheck())
                self.attempts.append(self.ended(attempt, result, known, None))
                self.decision = self.decide(Recheck())
            return None
        if result.signal and is_on(self.args):  # the signal came while the failed attempt was being ended
            raise Ended(result.signal)
        self.claims.close()
        between = {**result.record, "outcome": "restarting", "exit_code": None}
        is_noted = not self.args.max_restarts or self.write_record(between)
        self.earlier.append(attempt)
        recheck = self.rechecks.look(attempt.plan, result, self.spares) if is_on(self.args) else Recheck()
        saved = self.saved(attempt, result)
        known = failure_cause(attempt.plan, result, cause, recheck)
        self.attempts.append(self.ended(attempt, result, known, saved))
        decision = self.decide(recheck)
        if decision.stopped == "no-nodes" and recheck.unreachable:  # a link may come back
            patience_s = self.args.lease + RETURN_S
            until = time.monotonic() + patience_s
            self.say(f"ringup: {decision.because}; asking again for {show_seconds(patience_s)} (Ctrl-C ends)")
            while decision.stopped == "no-nodes" and time.monotonic() < until:
                pause(self.transport, ASK_EVERY_S)
                recheck = self.rechecks.look(attempt.plan, result, self.spares)
                decision = self.decide(recheck)
        if decision.nodes and not is_noted:
            because = "run.json cannot be written, and without a record nothing is restarted"
            decision = replace(decision, action="stop", because=because, nodes=(), stopped="limit")
        if saved and saved.warning:
            decision = replace(decision, because=f"{decision.because}; {saved.warning}")
        wait_s = max(decision.wait_s, until_gone_s(result, recheck, self.args.lease))
        decision = replace(decision, wait_s=wait_s)
        entry.seconds["recheck"] = round(time.monotonic() - began_s, 3) if is_on(self.args) else None
        entry.progress = self.shown_progress(attempt, saved)
        self.decided(attempt, decision, recheck)
        if not decision.nodes:
            return None
        pause(self.transport, decision.wait_s)
        return self.following(decision, known.rule)

    def saved(self, attempt: Attempt, result: RunResult) -> TrainingProgress | None:
        """The saved progress at the end of an attempt, on the nodes that still answer."""
        return self.progress(node for node in attempt.nodes if node not in result.lost)

    def ended(
        self, attempt: Attempt, result: RunResult, cause: FailureCause, saved: TrainingProgress | None
    ) -> EndedAttempt:
        saved_from, saved_to = training_progress.saved(attempt.progress, saved)
        attempt.entry.cause = AttemptCause(cause.rule, cause.confidence, [*cause.nodes])
        attempt.entry.evidence = (result.record.get("cause") or {}).get("evidence", [])
        return EndedAttempt(
            nodes=attempt.nodes,
            cause=cause,
            seconds=result.seconds,
            exit_code=result.exit_code,
            saved_from=saved_from,
            saved_to=saved_to,
            step=attempt.steps.step,
            first_step_s=attempt.first_step_s(),
            is_hung=result.outcome == "hung",
        )

    def shown_progress(self, attempt: Attempt, saved: TrainingProgress | None) -> AttemptProgress | None:
        """For run.json: saved progress, else the steps in the output."""
        if saved:
            return AttemptProgress(*training_progress.saved(attempt.progress, saved), saved.source)
        step = attempt.steps.step
        return None if step is None else AttemptProgress(None, step, "steps in the output")

    def decide(self, recheck: Recheck) -> Decision:
        policy = restarts.policy_from(self.args)
        try:
            found = decide(self.attempts, recheck, self.spares, policy, random.random)
        except Exception as error:  # a bug in deciding must not hide how the run ended
            because = f"the decision failed: {error!r} (please report this)"
            return Decision("stop", because, stopped="limit")
        left_s = request.time_left_s()
        if found.nodes and left_s < LEAST_LEFT_S:
            because = f"the scheduler leaves {show_seconds(left_s)}, too little for a restart"
            return replace(found, action="stop", because=because, nodes=(), stopped="no-nodes")
        return found

    def decided(self, attempt: Attempt, decision: Decision, recheck: Recheck) -> None:
        self.decision = decision
        cause = self.attempts[-1].cause
        attempt.entry.decision, attempt.entry.because = decision.action, decision.because
        kind = table.ROWS[cause.rule].kind if cause.rule in table.ROWS else ""
        named = cause.nodes if kind in ("exclude", "repeat") and cause.confidence != "low" else ()
        blamed = {*decision.excluded, *recheck.explaining, *named} & set(attempt.nodes)
        self.note_nodes(attempt, sorted(blamed), cause.rule)
        if is_on(self.args):
            evidence = self.cause_lines[2:4]  # below the heading
            style = terminal.Style(sys.stderr)
            self.say(*restart_report.decision_lines(attempt.entry, str(attempt), decision, evidence, style))

    def note_nodes(self, attempt: Attempt, blamed: Sequence[str] = (), cause: str = "") -> None:
        if not self.cluster.is_local:
            node_history.add(self.run_id, attempt.nodes, blamed, cause)

    def following(self, decision: Decision, cause: str) -> Attempt | None:
        """The next attempt, planned from the nodes' current facts; None if no plan is possible."""
        cluster = self.rechecks.cluster
        nodes = tuple(cluster.node(name) for name in decision.nodes)
        part = replace(cluster.only(nodes), nodes=nodes, first="")
        if nodes[0] != cluster.head:  # ports are tested on the head only
            hosts = [node.host for node in nodes]
            part = collectors.collect(self.transport, cluster.job, timeout_s=self.args.timeout, hosts=hosts)
        run_id = f"{self.run_id}.{len(self.entries) + 1}"
        judged = launching.judge(part, run_id, self.args, self.claims, self.ports)
        rules = {rule for rules in self.rechecks.before.errors.values() for rule in rules}
        new = [f for f in judged.findings if f.severity == "error" and f.rule not in rules]
        if judged.plan is None or (new and not self.args.anyway):
            why = ", ".join(dict.fromkeys(f.rule for f in new)) or "no plan is possible"
            because = f"the check before the restart fails: {why}"
            self.decision = replace(decision, action="stop", because=because, nodes=(), stopped="no-nodes")
            self.entries[-1].decision, self.entries[-1].because = "stop", because
            return None
        plan = launching.whole_plan(judged, with_debug=self.args.debug or not cause)
        self.ports.add(plan.master_port)
        return self.begun(plan, judged.findings, cause)

    # -- the end ---------------------------------------------------------------------------------

    def interrupted(self, code: int) -> None:
        assert self.result is not None
        known: dict[str, Any] = {"outcome": "interrupted", "exit_code": code}
        self.decision = Decision("stop", "interrupted before the next attempt", stopped="user")
        self.entries[-1].decision, self.entries[-1].because = "stop", self.decision.because
        self.cause_lines = []
        record = {**self.result.record, **known}
        self.result = replace(self.result, failure=None, record=record, **known)

    def exit_code(self, result: RunResult) -> int:
        """The last attempt's exit code; under a scheduler, one that tells it whether to restart."""
        if result.outcome in (SAVED, NOT_SAVED):
            fails_again = self.decision and self.decision.stopped == "will-fail-again"
            return DO_NOT_REQUEUE if fails_again else MAY_REQUEUE
        has_engine = any(map(os.environ.get, BATCH_JOB)) or getattr(self.args, "pods", None) is not None
        if self.args.max_restarts and has_engine and self.decision:
            return self.decision.scheduler_code or result.exit_code
        return result.exit_code

    def show_end(self) -> int:
        """Show and record how the run ended; returns its exit code."""
        result = self.result
        assert result is not None
        code = self.exit_code(result)
        last = self.decision if self.decision and not self.decision.nodes else None
        stopped = "ok" if result.outcome == "ok" else last.stopped if last else "user"
        end = {"exit_code": code, "restart": {"stopped": stopped}} if result.outcome != "running" else {}
        record = self.whole({**result.record, **end})
        result = replace(result, exit_code=code, record=record)
        launching.write_record(self.folder, record)
        lines: list[str] = []
        if is_on(self.args):
            lines = restart_report.end_lines(self.entries, record["seconds"], self.decision)
        elif self.decision:
            lines = restart_report.would_lines(self.decision, self.attempts[-1].cause.rule)
        return launching.show_end(result, [*lines, *self.cause_lines], self.write, self.args)
