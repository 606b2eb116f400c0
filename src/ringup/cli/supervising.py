"""A detached run with restarts: if its supervisor dies, the next `attach` starts another."""

from __future__ import annotations

import argparse
import functools
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from ringup import bundle
from ringup.cli import background, launching, request
from ringup.cli.background import Background
from ringup.cli.command_line import Ended, options_of
from ringup.cli.rechecking import pause
from ringup.cli.restarting import ASK_EVERY_S, RETURN_S, Attempt, Supervisor
from ringup.errors import LaunchError, NodeUnreachable, UsageError, writing
from ringup.output import terminal
from ringup.planning import Plan
from ringup.recovery.decision import Decision, EndedAttempt
from ringup.recovery.training_progress import TrainingProgress
from ringup.rules import Finding
from ringup.runtime import RunResult, attach, detach, record
from ringup.runtime.clean import leftovers
from ringup.saved_run import SavedAttempt
from ringup.secrets import HIDDEN, redact_env
from ringup.units import printable, show_seconds, summarize_names

STATE, FACTS = ".supervisor.json", ".supervisor-facts.json"


class State(msgspec.Struct, frozen=True):
    argv: list[str]
    """The arguments of `ringup`."""
    chdir: str
    env: dict[str, str]
    """Variables forwarded to the nodes; of secrets only the name."""
    run_id: str
    number: int
    cause: str
    """The cause of the attempt before it."""
    is_handed_over: bool
    """Whether the head node runs the latest attempt."""
    spares: list[str]
    ports: list[int]
    attempts: list[EndedAttempt]
    """The attempts before the latest."""
    progress: TrainingProgress | None
    """The saved progress at the start of the latest attempt."""
    of: int = 0
    """Most attempts without progress, as known at the start of the latest attempt."""


class DetachedSupervisor(Supervisor):
    """Hands each attempt to its head node, follows it from the background, and decides after it."""

    argv: Sequence[str] = ()
    """The arguments of the `ringup` command that began the run."""
    resumed: Attempt | None = None
    """The attempt that another supervisor has started."""

    def run(self, plan: Plan, findings: list[Finding]) -> int:
        self.args.background.hold(self.folder)
        self.argv = sys.argv[1:]
        bundle.save(self.cluster, self.folder / FACTS)
        return super().run(plan, findings)

    def attempt(self, attempt: Attempt) -> RunResult:
        self.result = None  # this process ends, not the attempt
        if attempt is self.resumed:
            return self.watch(attempt)
        self.note(attempt, is_handed_over=False)
        result = super().attempt(attempt)
        if result.outcome != "running":
            return result
        self.note(attempt, is_handed_over=True)
        self.leave(attempt)
        return self.watch(attempt)

    def note(self, attempt: Attempt, *, is_handed_over: bool) -> None:
        state = State(
            argv=[*self.argv],
            chdir=str(Path.cwd()),
            env=redact_env(request.forwarded(self.args, self.cluster.job.launcher)),
            run_id=self.run_id,
            number=attempt.number,
            cause=self.attempts[-1].cause.rule if self.attempts else "",
            is_handed_over=is_handed_over,
            spares=self.spares,
            ports=sorted(self.ports),
            attempts=self.attempts,
            progress=attempt.progress,
            of=attempt.of,
        )
        path = self.folder / STATE
        with writing(path, "free space there: `ringup attach` needs that file if this process dies"):
            record.replace_file(path, json.dumps(msgspec.to_builtins(state)), mode=0o600)

    def leave(self, attempt: Attempt) -> None:
        """Leave the terminal, if this process still has one."""
        if attempt.number == 1:
            where = terminal.path_shown(str(self.folder / background.LOG))
            self.say(f"ringup: supervisor: pid {os.getpid()} on this machine; its log is {where}")
            self.say(f"The run continues in the background. `ringup attach {self.run_id}` returns to it.")
            if self.args.json:
                print(json.dumps(record_of(self.folder), indent=1))
        self.args.json = False
        self.args.background.leave(self.folder)

    def watch(self, attempt: Attempt) -> RunResult:
        """
        Follow an attempt to its end.

        An unreachable head node is tried again until it answers, or until the other nodes prove that the
        attempt has ended there: then the head node is lost.
        """
        noted, words, lost_s = detach.load(attempt.plan.run_id), "", 0.0
        patience_s = self.args.lease + RETURN_S
        for node in attempt.nodes:  # each guard has already used the old connection of its node
            self.transport.reopen(node)
        while True:
            asked_s = time.monotonic()
            try:
                return self.follow(noted, attempt, head_lost=words)
            except NodeUnreachable as error:
                now_s = time.monotonic()
                if not lost_s or now_s - asked_s > patience_s:  # the head answered in between
                    lost_s = now_s
                    self.say(f"ringup: {error}; asking again")
            pause(self.transport, ASK_EVERY_S)
            self.transport.reopen(attempt.nodes[0])
            silent_s = time.monotonic() - lost_s
            if silent_s > patience_s and self.has_ended(attempt):
                words = f"no contact for {show_seconds(silent_s)}: the node or its network is down"

    def follow(self, noted: detach.Detached, attempt: Attempt, head_lost: str = "") -> RunResult:
        return attach.follow(
            noted,
            self.transport,
            log_dir=self.folder_of(attempt),
            head_lost=head_lost,
            write=self.write,
            on_event=launching.follow_events(attempt.plan.world_size, self.args),
            **self.watching(attempt),
        )

    def has_ended(self, attempt: Attempt) -> bool:
        """Whether at least one node of an attempt answers, and none that answers has a process of it."""
        for name in attempt.nodes[1:]:  # this machine's own network may have been down
            self.transport.reopen(name)
        found = [node for node in leftovers(self.transport, kill=False) if node.node in attempt.nodes]
        alive = {one.run for node in found for one in (*node.running, *node.left)}
        return any(not node.error for node in found) and attempt.plan.run_id not in alive

    def interrupted(self, code: int) -> None:
        """Between attempts only Ctrl-C ends the run; after other signals `attach` starts a new supervisor."""
        if code != 128 + signal.SIGINT:
            raise Ended(code - 128)
        super().interrupted(code)

    def show_end(self) -> int:
        code = super().show_end()
        if self.result and self.result.outcome != "running":
            for name in (STATE, FACTS):
                (self.folder / name).unlink(missing_ok=True)
        return code

    # -- after the death of another supervisor -------------------------------------------------

    def resume(self, state: State) -> int:
        self.args.background.hold(self.folder)
        self.args.background.leave(self.folder)
        self.run_id, self.argv = state.run_id, state.argv
        self.attempts, self.ports = [*state.attempts], set(state.ports)
        entries = record_of(self.folder)["attempts"][: state.number]
        self.entries = msgspec.convert(entries, list[SavedAttempt])
        self.say(f"ringup: supervisor: pid {os.getpid()} continues with attempt {state.number}")
        noted = detach.load(state.run_id + f".{state.number}" * (state.number > 1))
        began_s = time.monotonic() - (time.time() - noted.started)
        attempt = Attempt(
            self.entries[-1],
            noted.plan,
            list(noted.findings),
            of=max(state.of, state.number),
            began_s=began_s,
            progress=state.progress,
        )
        if state.is_handed_over:
            self.resumed = attempt
            return self.supervise(attempt)
        try:
            self.result = self.follow(noted, attempt)
            following = self.after(attempt)
        except NodeUnreachable as error:  # it died before the head node took over the attempt: repeat it
            if attempt.number == 1:
                what = "the run never began: its supervisor died before"
                raise LaunchError(what, hint="start it again") from error
            pause(self.transport, self.args.lease)  # which ends the old guards
            self.entries.pop()
            self.rechecks.collected()
            left = attempt.of - attempt.number
            self.decision = Decision("same", "", nodes=attempt.nodes, restarts_left=left)
            following = self.following(self.decision, state.cause)
        return self.supervise(following)


def record_of(folder: Path) -> dict[str, Any]:
    """The content of run.json.  Raises LaunchError if it cannot be read."""
    try:
        found: dict[str, Any] = json.loads((folder / record.FILE).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        hint = f"`ringup logs {folder}` reads what the ranks printed"
        raise LaunchError(f"{folder / record.FILE} cannot be read: {error}", hint=hint) from error
    return found


def go_on(folder: Path, process: Background) -> int:
    """Continue the run of a supervisor that died; returns its exit code."""
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes(), type=State)
        os.chdir(state.chdir)
    except (OSError, ValueError, RecursionError) as error:
        hint = "`ringup clean` shows what is left of it"
        raise LaunchError(f"the run cannot be supervised again: {error}", hint=hint) from error
    args = options_of(state.argv)
    args.background = process
    words = request.script_words(args)
    job = request.job_from(args, words)
    # Exactly the variables of the start, except secrets, which are not in the file.
    now, shown = request.forwarded(args, job.launcher), {n: v for n, v in state.env.items() if v != HIDDEN}
    for name in now.keys() - state.env.keys():
        os.environ.pop(name, None)
    os.environ.update(shown)
    missing = summarize_names(sorted(state.env.keys() - shown.keys() - now.keys()))
    cluster = replace(bundle.load(folder / FACTS), job=request.job_from(args, words))
    with request.open_transport(args) as transport:
        supervisor = DetachedSupervisor(cluster, transport, folder, args)
        if missing:
            supervisor.say(f"ringup: not exported here, so the next attempts do not get: {missing}")
        return supervisor.resume(state)


def attach_to(folder: Path, args: argparse.Namespace) -> int:
    """Show the output of a run's supervisor until it ends; replace a dead one.  Returns the exit code."""
    if args.log_dir:
        hint = f"its logs are in {terminal.path_shown(folder)}"
        raise UsageError("--log-dir: the supervisor of this run writes its logs", hint=hint)
    who = background.supervised(folder)
    if who and not who.is_alive and (folder / STATE).exists():
        if who.host != os.uname().nodename:
            hint = f"attach there; if that machine is gone, remove {folder / detach.SUPERVISOR}"
            raise LaunchError(f"the supervisor of this run was on {printable(who.host)}", hint=hint)
        code = background.start(functools.partial(go_on, folder))
        who = background.supervised(folder)
        if code and not (who and who.is_alive):
            return code
    background.show(folder, launching.RankLines(args))
    content = record_of(folder)
    if args.json:
        print(json.dumps(content, indent=1))
    if (folder / STATE).exists():
        hint = "`ringup attach` again starts another"
        raise LaunchError("the supervisor has ended, its run has not", hint=hint)
    return int(content["exit_code"])
