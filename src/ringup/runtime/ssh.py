"""One guarded process per node over any `Transport`: over ssh, or on this machine."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from ringup.agent.guard import messages
from ringup.agent_bundle import program, source
from ringup.planning import NodePlan, Plan
from ringup.planning.minimal_env import sets_nccl_debug
from ringup.rules import Finding
from ringup.runtime import Event, Options, RunResult, Save
from ringup.runtime.blame import End
from ringup.runtime.clean import final_sweep
from ringup.runtime.detach import HandOver, note
from ringup.runtime.node_state import NodeRun
from ringup.runtime.output import Output
from ringup.runtime.record import RunRecord, short
from ringup.runtime.transports import Transports
from ringup.saved_run import SavedPlan
from ringup.timeline.marks import Began
from ringup.transport import Transport
from ringup.transport.interrupts import Interrupts
from ringup.units import show_seconds

UNKILLABLE_S = 10.0
"""Seconds for a guard after the grace period: 6 s for processes that do not end, the rest for the network."""
AWAY_S = 2.0
"""A longer pause between two turns means that this process was stopped, or lacked CPU or memory."""
SAVED, NOT_SAVED = "saved", "not-saved"
TIME_LIMIT = "the job's time limit is near"
DRAIN_S = 5.0
"""Seconds to wait without new output at the end."""


def use_interpreters(reach: Transport, plan: Plan | SavedPlan | None) -> None:
    """Take the job's Python for our programs where no other is known: the node's own may be old."""
    for node in plan.nodes if plan else ():
        python = node.words[0] if node.words else ""
        if python.startswith("/") and "python" in python.rpartition("/")[2]:
            reach.interpreters.setdefault(node.node, python)


class Followed:
    """A run in progress, and methods to end it."""

    can_be_left = False
    """Whether the user may detach from it before its end."""
    is_on_its_own = False
    """Whether it continues without this process."""

    def __init__(self, options: Options, interrupts: Interrupts) -> None:
        self.options, self.plan, self.interrupts = options, options.plan, interrupts
        self.record = RunRecord(options, is_attached=self.can_be_left)
        self.output = Output(options.log_dir, options.write, nccl_apart=sets_nccl_debug(options.plan))
        transports = Transports(self.plan, self.on_event)
        self.output.readers, self.record.transports = [transports.read, options.on_lines], transports.as_json
        self.nodes: list[NodeRun] = []
        self.stop_reason = ""
        self.save_until_s = 0.0
        """When ranks that save their state are ended; 0 if none does."""
        self.is_limit = False
        """Whether saving began because of the job's time limit, and no signal came since."""
        self._joined, self._has_failed = 0, False
        use_interpreters(options.reach, self.plan)

    def result(self) -> RunResult:
        """Start and follow the run to its end."""
        raise NotImplementedError

    def run(self) -> RunResult:
        """Start and follow; even after an exception, run.json has an end unless the run continues."""
        try:
            return self.result()
        except BaseException as error:
            if not self.is_on_its_own:
                if not self.can_be_left:
                    with contextlib.suppress(Exception):  # if this fails too, the guards get end of file
                        self.stop("ringup failed", grace_s=self.options.grace_s)
                        while self.poll():
                            pass
                self.record.broke_off(error, self.nodes)
            raise
        finally:
            self.output.close()

    def on_event(self, event: Event) -> None:
        self.output.terminal.later(lambda: self.options.on_event(event))

    def poll(self) -> bool:
        """Wait a moment for messages and handle them; False once there will be no more."""
        raise NotImplementedError

    def stop(self, reason: str, *, grace_s: float) -> None:
        """End it on all nodes; a later call can only make it sooner."""
        if not self.stop_reason:
            self.stop_reason, self.record.stopping_s = reason, time.monotonic()
            self.on_event(Event("ending", f"stopping all nodes: {reason}"))

    def on_change(self, node: NodeRun, what: str) -> None:
        if what == "joined":
            self._joined += 1
            if self._joined == self.plan.world_size:
                self.record.joined_s = time.monotonic()
            words = f"{self._joined} of {self.plan.world_size} ranks started"
            self.on_event(Event("joined", words, node.name))
        elif what == "failed" and not self.stop_reason and not self._has_failed:
            self._has_failed = True
            self.on_event(Event("failed", short(node.ends[-1]), node.name))

    def follow(self) -> bool:
        """Follow until the run is over or its head node has it; True if the user detaches before."""
        handled, interrupts, watcher, save = 0, self.interrupts, self.options.watcher, self.options.save
        self.record.hangs = watcher.reports if watcher else []
        while self.poll():
            if interrupts.count > handled:
                handled = interrupts.count
                self.record.hung_then = bool(watcher and watcher.stalled)
                if self.can_be_left and interrupts.name != "SIGINT":
                    return True
                if not self.begin_saving(interrupts.name):
                    grace_s = self.options.grace_s if handled <= 1 + bool(self.save_until_s) else 0.0
                    self.stop(f"interrupted by {interrupts.name}", grace_s=grace_s)
            elif save and not (handled or self.save_until_s) and save.is_due():
                self.begin_saving(TIME_LIMIT)
            if save and 0 < self.save_until_s < time.monotonic() and not self.stop_reason:
                words = f"the ranks have not saved within {show_seconds(save.grace_s)}"
                self.stop(words, grace_s=self.options.grace_s)
            if interrupts.refused_stop and not self.can_be_left:
                interrupts.refused_stop = False
                words = "not stopped: without beats from here the nodes would end the run"
                self.on_event(Event("note", words))
            if watcher and not (self.stop_reason or self.save_until_s):
                try:
                    reason = watcher.on_time(time.monotonic(), self.nodes, self.on_event)
                except Exception as error:  # a bug in the watch must not end the job
                    words = f"hang detection has stopped: {error!r} (please report this)"
                    self.on_event(Event("note", words))
                    reason, watcher = "", None
                if reason:
                    self.record.hung = True
                    self.stop(reason, grace_s=self.options.grace_s)
            self.record.note_progress(self.nodes, self.output)
            self.output.show_problem(self.on_event)
        return False

    def begin_saving(self, began_by: str) -> bool:
        """Make every rank save its state, once; False if the run must end without saving."""
        save = self.options.save
        if not (save and self._joined) or self.stop_reason or began_by == "SIGINT":
            return False
        # saving has begun already; if because of our time limit, Slurm's own signal is still to come
        if self.save_until_s:
            is_first, self.is_limit = self.is_limit, False
            return is_first
        self.is_limit = began_by == TIME_LIMIT
        self.save_until_s = time.monotonic() + save.grace_s
        for node in self.nodes:
            node.tell(type="signal", name=save.signal)
        allowed = f"which has {show_seconds(save.grace_s)} to save"
        self.on_event(Event("ending", f"{began_by}: {save.signal} sent to every rank, {allowed}"))
        return True

    def finish(self, *, interrupted: int, reopen: Collection[str] = (), hurried: bool = False) -> RunResult:
        """Sweep every node, and record how the run ended."""
        self.on_event(Event("looking", "checking every node for leftovers"))
        options, grace_s = self.options, self.options.grace_s
        wait_s, limit_s = (1.0, 4.0) if hurried else (grace_s + 2, grace_s + 14)
        limits = {"wait_s": wait_s, "limit_s": limit_s, "lease_s": options.lease_s}
        cleanup = final_sweep(options.reach, self.plan, reopen=reopen, **limits)
        result = self.record.result(self.nodes, self.output, cleanup, interrupted=interrupted)
        return replace(result, signal=int(self.interrupts.first or 0))


def order(plan: Plan, node: NodePlan, *, lease_s: float, grace_s: float) -> dict[str, Any]:
    """The order for one node's guard (see agent/guard/main.py)."""
    own = ("words", "env", "unset", "chdir", "setup", "run_dir")
    return {
        "run_id": plan.run_id,
        "node": node.rank,
        "world_size": plan.world_size,
        **{name: getattr(node, name) for name in own},
        "lease_s": lease_s,
        "grace_s": grace_s,
        "rank_source": program("rank.rank"),
        "main_source": source("rank.rank_main"),
        "look_source": program("snapshot.main"),
        "files": dict(plan.files),
    }


class Ssh(Followed):
    """Starts a plan and handles the guards' messages."""

    def __init__(self, options: Options, interrupts: Interrupts) -> None:
        super().__init__(options, interrupts)
        self.hand_over: HandOver | None = None
        self.started_s = time.monotonic()
        self._ready = 0
        self._next_beat_s = 0.0
        self._give_up_s = float("inf")
        self._turned_s, self._away_s = self.started_s, 0.0
        self._drained = (0, 0.0)

    def start(self) -> None:
        """Start a guard on every node; the job begins once all of them are ready."""
        options = self.options
        if options.detach:
            note(options, options.reach.hosts)
        self.started_s = self._turned_s = time.monotonic()
        self.output.times.note(Began(self.record.started_s))
        label = f"ringup-guard:{self.plan.run_id}"
        for plan in self.plan.nodes:
            node = NodeRun(plan, self.output, self.on_change, absence_s=self._absence_s)
            self.nodes.append(node)
            start = options.reach.start
            node.send = start(plan.node, program("guard.main"), (), node, label=label, outlives=True).write
            node.tell(**order(self.plan, plan, lease_s=options.lease_s, grace_s=options.grace_s))
        if options.detach:
            self.hand_over = HandOver(self.plan, self.nodes)

    def result(self) -> RunResult:
        self.start()
        self.follow()
        if self.is_on_its_own:
            if self.interrupts.count:
                words = f"too late to end it from here: `ringup attach {self.plan.run_id}`, then Ctrl-C"
                self.on_event(Event("note", words))
            return self.record.result(self.nodes, self.output, [], running=0)
        is_wish = self.save_until_s or self.stop_reason.startswith("interrupted")
        if (save := self.options.save) and self.save_until_s and self.interrupts.name != "SIGINT":
            self.record.save = self._saved(save)
        return self.finish(
            interrupted=self.interrupts.exit_code if is_wish else 0,
            reopen={node.name for node in self.nodes if node.state != "closed" or node.lost},
            hurried=self.interrupts.count > 1,
        )

    def _saved(self, save: Save) -> dict[str, object]:
        """For run.json.  A rank has saved if it exited on its own with 0 or 128 + the signal's number."""
        codes = [rank.code for node in self.nodes for rank in node.ranks.values()]
        own = {0, 128 + signal.Signals[save.signal]}
        is_saved = not self.stop_reason and len(codes) == self.plan.world_size and own.issuperset(codes)
        seconds = round(time.monotonic() - self.save_until_s + save.grace_s, 3)
        return {"signal": save.signal, "seconds": seconds, "result": SAVED if is_saved else NOT_SAVED}

    def poll(self) -> bool:
        """Also False if guards that should end do not."""
        self.options.reach.turn(0.1)
        now = time.monotonic()
        self._note_absence(now)
        if now >= self._next_beat_s:
            usual_s = min(messages.BEAT_S, self.options.lease_s / 5)
            self._next_beat_s = now + (messages.FIRST_BEATS_S if now - self.started_s < 1.0 else usual_s)
            for node in self.nodes:
                node.beat(now)
            self.output.on_time(now)
        self._find_silent(now)
        # The final sweep tries again to reach a node that stopped responding.
        if self.is_on_its_own or all(node.state == "closed" or node.lost for node in self.nodes):
            return False
        return now < self._give_up_s and not self._is_drained(now)

    def _absence_s(self) -> float:
        """The longest time for which this process was suspended; 0 if it never was."""
        longest_s = max(self._away_s, time.monotonic() - self._turned_s)
        return longest_s if longest_s >= AWAY_S else 0.0

    def _note_absence(self, now: float) -> None:
        """Silence while this process itself was suspended is not the nodes' fault."""
        if (away_s := now - self._turned_s) >= AWAY_S:
            self._away_s = max(self._away_s, away_s)
            for node in self.nodes:
                node.heard_s = min(now, node.heard_s + away_s)
        self._turned_s = now

    def _find_silent(self, now: float) -> None:
        limit_s = self.options.start_limit_s
        for node in self.nodes:
            if node.state in ("closed", "over") or node.lost:
                continue
            if node.state == "starting":
                if now - self.started_s > limit_s:
                    node.give_up(f"its guard was not ready within {show_seconds(limit_s)}")
            elif now - node.heard_s > 0.7 * self.options.lease_s:
                silent = show_seconds(now - node.heard_s)
                node.give_up(f"no contact for {silent}: the node or its network is down")

    def _is_drained(self, now: float) -> bool:
        """Whether the job is gone on all nodes, and no more output arrives."""
        if not all(node.state in ("over", "closed") for node in self.nodes):
            return False
        received = sum(node.received_bytes for node in self.nodes)
        if received != self._drained[0] or not self._drained[1]:
            self._drained = (received, now)
        return now - self._drained[1] > DRAIN_S

    def on_change(self, node: NodeRun, what: str) -> None:
        super().on_change(node, what)
        self._ready += what == "ready"
        if what == "ready" and self._ready == len(self.nodes) and not self.stop_reason:
            where = f"each of {len(self.nodes)} nodes" if len(self.nodes) > 1 else "the node"
            self.on_event(Event("ready", f"a guard on {where}"))
            if self.hand_over:
                self.hand_over.begin()
                return
            for other in self.nodes:
                other.tell(type="go")
        elif self.hand_over and what in ("hosting", "joined-head", "detached"):
            if what != "detached" and self.stop_reason:
                return
            if words := self.hand_over.on_reply(node, what):
                node.ends.append(End("node", node.name, time.monotonic(), words=f"not detached: {words}"))
                self.on_change(node, "failed")
            elif what == "detached" and node is self.nodes[0]:
                self.is_on_its_own = True
        elif what == "failed" and not (self.stop_reason or self.save_until_s):
            self.stop("the first failure", grace_s=self.options.grace_s)

    def stop(self, reason: str, *, grace_s: float) -> None:
        super().stop(reason, grace_s=grace_s)
        self._give_up_s = min(self._give_up_s, time.monotonic() + grace_s + UNKILLABLE_S)
        for node in self.nodes:
            node.tell(type="end", reason=reason, grace_s=grace_s)


def run(plan: Plan, reach: Transport, *, findings: Iterable[Finding] = (), **options: Any) -> RunResult:
    """
    Start the plan, follow it to its end, end everything, sweep the nodes, write run.json.

    `options` are those of `Options`.  After any exception, the ranks are ended and run.json has an end.
    Raises LaunchError if `log_dir` (or the record of a detached run) cannot be written.
    """
    how = Options(plan=plan, reach=reach, findings=tuple(findings), **options)
    with Interrupts(*([signal.Signals[how.save.signal]] if how.save else [])) as interrupts:
        return Ssh(how, interrupts).run()
