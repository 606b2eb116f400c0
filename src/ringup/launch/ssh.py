"""
One guarded process per node over any `Reach`, so over ssh and on this machine alike.

    result = run(plan, reach, log_dir=Path("runs/1"), write=sys.stdout.write)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ringup.launch import Event, Rendered, RunResult, Watcher
from ringup.launch.blame import End
from ringup.launch.detach import HandOver, note, save
from ringup.launch.interrupts import Interrupts
from ringup.launch.last_look import last_look
from ringup.launch.node import NodeRun
from ringup.launch.output import Output
from ringup.launch.program import guard_program
from ringup.launch.render import render
from ringup.launch.story import Story, short
from ringup.launch.transports import Transports
from ringup.plan import NodePlan, Plan
from ringup.plan.listening import is_listening
from ringup.reach import Reach
from ringup.rules import Finding
from ringup.units import show_seconds

GRACE_S = 3.0
"""SIGTERM to SIGKILL.  All nodes are to end within 5 s of the first failure."""
BEAT_S = 2.0
FIRST_BEATS_S = 0.1
"""Interval of the beats in the first second: short runs need a good clock, too."""
UNKILLABLE_S = 10.0
"""What a guard may take after the grace: 6 s for processes that do not go, the rest for the network."""
AWAY_S = 2.0
"""A longer turn than any of our own makes: this process was stopped, or had no processor or memory."""
DRAIN_S = 5.0
"""How long the last output may make no progress."""


def quiet(_event: Event) -> None:
    """Nobody wants to know."""


def no_consequence(_text: str) -> bool:
    """Every rank's last words are its own."""
    return False


class Ssh:
    """Starts a plan over `reach`, takes its news in, ends it; `stop` may be called twice."""

    def __init__(
        self,
        reach: Reach,
        output: Output,
        *,
        lease_s: float = 20.0,
        grace_s: float = GRACE_S,
        start_limit_s: float = 60.0,
        detach: bool = False,
        on_event: Callable[[Event], None] = quiet,
    ) -> None:
        self.detach = detach
        self.hand_over: HandOver | None = None
        self.reach, self.output, self.on_event = reach, output, on_event
        self.lease_s, self.grace_s, self.start_limit_s = lease_s, grace_s, start_limit_s
        self.nodes: list[NodeRun] = []
        self.notes: list[str] = []
        self.stop_reason = ""
        self.started_s = time.monotonic()
        self.world_size = 0
        self._ready = self._joined = 0
        self._next_beat_s = 0.0
        self._give_up_s = float("inf")
        self._turned_s, self._away_s = self.started_s, 0.0
        self._drained = (0, 0.0)

    def render(self, plan: Plan) -> Rendered:
        """Exactly what `start` submits."""
        return render(plan, lease_s=self.lease_s, grace_s=self.grace_s)

    def start(self, plan: Plan, rendered: Rendered) -> None:
        """Start a guard on every node; the job begins once all of them are ready."""
        self.started_s = self._turned_s = time.monotonic()
        self.world_size = plan.world_size
        know_interpreters(self.reach, plan)
        for node_plan in plan.nodes:
            node = NodeRun(node_plan, self.output, self._on_change, absence_s=self._absence_s)
            self.nodes.append(node)
            node.channel = self.reach.start(
                node_plan.node, guard_program(), (), node, label=f"ringup-guard:{plan.run_id}"
            )
            node.tell(**rendered.orders[node_plan.node])
        if self.detach:
            self.hand_over = HandOver(plan, self.nodes, self._cannot_hand_over)

    # -- while it runs -------------------------------------------------------------------------

    def poll(self, timeout_s: float = 0.1) -> bool:
        """Wait for news and take it in; False once no guard is left to hear from."""
        self.reach.turn(timeout_s)
        now = time.monotonic()
        self._note_absence(now)
        if now >= self._next_beat_s:
            young = now - self.started_s < 1.0
            self._next_beat_s = now + (FIRST_BEATS_S if young else min(BEAT_S, self.lease_s / 5))
            for node in self.nodes:
                node.beat(now)
            self.output.on_time(now)
        self._find_silent(now)
        if self.is_detached:
            return False
        if all(node.state == "closed" for node in self.nodes):
            return False
        return now < self._give_up_s and not self._is_drained(now)

    def _absence_s(self) -> float:
        """The longest time for which this process stood still until now; 0 when it never did."""
        longest_s = max(self._away_s, time.monotonic() - self._turned_s)
        return longest_s if longest_s >= AWAY_S else 0.0

    def _note_absence(self, now: float) -> None:
        """Silence while this process itself stood still says nothing of the nodes."""
        away_s = now - self._turned_s
        if away_s >= AWAY_S:
            self._away_s = max(self._away_s, away_s)
            for node in self.nodes:
                node.heard_s = min(now, node.heard_s + away_s)
        self._turned_s = now

    def _find_silent(self, now: float) -> None:
        for node in self.nodes:
            if node.state in ("closed", "over") or node.lost:
                continue
            if node.state == "starting":
                if now - self.started_s > self.start_limit_s:
                    node.give_up(f"its guard was not ready within {show_seconds(self.start_limit_s)}")
            elif now - node.heard_s > 0.7 * self.lease_s:
                node.give_up(
                    f"nothing heard for {show_seconds(now - node.heard_s)}: the node or its network is gone"
                )

    def _is_drained(self, now: float) -> bool:
        """Whether the job is gone everywhere and its last output comes no further."""
        if not all(node.state in ("over", "closed") for node in self.nodes):
            return False
        received = sum(node.received_bytes for node in self.nodes)
        if received != self._drained[0] or not self._drained[1]:
            self._drained = (received, now)
        return now - self._drained[1] > DRAIN_S

    def _on_change(self, node: NodeRun, what: str) -> None:
        self._ready += what == "ready"
        self._joined += what == "joined"
        if what == "ready" and self._ready == len(self.nodes) and not self.stop_reason:
            where = f"each of {len(self.nodes)} nodes" if len(self.nodes) > 1 else "the node"
            self.on_event(Event("ready", f"a guard on {where}"))
            if self.hand_over:
                self.hand_over.begin()
                return
            for other in self.nodes:
                other.tell(type="go")
        elif self.hand_over and what in ("hosting", "joined-head", "detached"):
            if what == "detached" or not self.stop_reason:
                self.hand_over.heard(node, what)
        elif what == "joined":
            self.on_event(Event("joined", f"{self._joined} of {self.world_size} ranks started", node.name))
        elif what == "failed" and not self.stop_reason:
            self.on_event(Event("failed", short(node.ends[-1]), node.name))
            self.stop("the first failure", grace_s=self.grace_s)

    @property
    def is_detached(self) -> bool:
        """Whether the head node has the run."""
        return self.hand_over is not None and self.hand_over.done

    def _cannot_hand_over(self, node: NodeRun, words: str) -> None:
        node.ends.append(End("node", node.name, time.monotonic(), words=f"not detached: {words}"))
        self._on_change(node, "failed")

    def stop(self, reason: str, *, grace_s: float) -> None:
        """End it everywhere; a later call can only make it sooner."""
        if not self.stop_reason:
            self.stop_reason = reason
            self.on_event(Event("ending", f"ending every node: {reason}"))
        self._give_up_s = min(self._give_up_s, time.monotonic() + grace_s + UNKILLABLE_S)
        for node in self.nodes:
            node.tell(type="end", reason=reason, grace_s=grace_s)

    def unfinished(self) -> set[str]:
        """Nodes whose connection is lost or still occupied by a guard."""
        return {node.name for node in self.nodes if node.state != "closed" or node.lost}


def watched(
    watcher: Watcher, nodes: list[NodeRun], tell: Callable[[Event], object]
) -> tuple[str, Watcher | None]:
    """The reason to end the run as hung, or ""; and who goes on watching."""
    try:
        return watcher.on_time(time.monotonic(), nodes, tell), watcher
    except Exception as error:  # a bug in looking is no reason to end what runs
        tell(Event("note", f"hangs are no longer looked for: {error!r} (please report this)"))
        return "", None


def know_interpreters(reach: Reach, plan: Plan) -> None:
    """Our programs run by the job's Python where nobody has found a better one: a node's own may be old."""
    for node in plan.nodes:
        if node.words:
            reach.interpreters.setdefault(node.node, _interpreter(node))


def _interpreter(node: NodePlan) -> str:
    """The job's own Python where the words name one by its path; it is new enough for the guard."""
    word = node.words[0]
    return word if word.startswith("/") and "python" in word.rpartition("/")[2] else "python3"


def run(
    plan: Plan,
    reach: Reach,
    *,
    log_dir: Path,
    write: Callable[[str], object] | None = None,
    lease_s: float = 20.0,
    grace_s: float = GRACE_S,
    start_limit_s: float = 60.0,
    detach: bool = False,
    ssh_config: str | None = None,
    on_event: Callable[[Event], None] = quiet,
    findings: Iterable[Finding] = (),
    is_consequence: Callable[[str], bool] = no_consequence,
    watcher: Watcher | None = None,
) -> RunResult:
    """
    Start the plan, follow it to its end, end everything, look once more, write run.json.

    `write` takes the ranks' lines (None: none are shown); it is called from another thread and
    may block.  `detach` leaves the run to its head node once that is sure of every other (outcome
    "running"); `ssh_config` is what `attach` is to use then.  Raises LaunchError when `log_dir` (or
    the note of a detached run) cannot be written.
    """
    with Interrupts() as interrupts:
        findings = list(findings)
        story = Story(plan, log_dir, findings, is_consequence, detached=detach)
        if detach:
            save(
                note(
                    plan,
                    reach.hosts,
                    ssh_config=ssh_config,
                    log_dir=log_dir,
                    lease_s=lease_s,
                    findings=findings,
                )
            )

        def tell(event: Event) -> None:
            output.terminal.later(lambda: on_event(event))

        transports = Transports(plan, tell)
        output = Output(log_dir, write, transports.hear, nccl_apart=is_listening(plan))
        story.transports = transports.as_json

        backend = Ssh(
            reach,
            output,
            lease_s=lease_s,
            grace_s=grace_s,
            start_limit_s=start_limit_s,
            detach=detach,
            on_event=tell,
        )
        story.hangs = watcher.reports if watcher else []
        backend.start(plan, backend.render(plan))
        handled = 0
        while backend.poll(0.1):
            if interrupts.count > handled:
                handled = interrupts.count
                name = interrupts.first.name if interrupts.first else "a signal"
                backend.stop(f"interrupted by {name}", grace_s=grace_s if handled == 1 else 0.0)
            if interrupts.refused_stop:
                interrupts.refused_stop = False
                tell(Event("note", "not stopped: without beats from here the nodes would end the run"))
            if watcher and not backend.stop_reason:
                reason, watcher = watched(watcher, backend.nodes, tell)
                if reason:
                    story.hung = True
                    backend.stop(reason, grace_s=grace_s)
            story.note_progress(backend.nodes, output)
            output.tell_problem(tell)
        if backend.is_detached:
            if interrupts.count:
                words = f"too late to end it from here: `ringup attach {plan.run_id}`, then Ctrl-C"
                tell(Event("note", words))
            return story.result(backend.nodes, output, [], running=0)
        tell(Event("looking", "a last look on every node"))
        hurried = interrupts.count > 1
        cleanup = last_look(
            reach,
            plan,
            reopen=backend.unfinished(),
            wait_s=1.0 if hurried else grace_s + 2,
            limit_s=4.0 if hurried else grace_s + 14,
            lease_s=lease_s,
        )
        return story.result(
            backend.nodes,
            output,
            cleanup,
            interrupted=interrupts.exit_code if backend.stop_reason.startswith("interrupted") else 0,
        )
