"""Attaching to a detached run: its output from the beginning (as far as available), its state, its end."""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

from ringup import saved_run
from ringup.agent.guard import messages
from ringup.agent_bundle import program
from ringup.errors import NodeUnreachable
from ringup.model import Unreached
from ringup.runtime import Options, RunResult
from ringup.runtime.blame import End
from ringup.runtime.detach import Detached
from ringup.runtime.node_state import LONGEST_WORDS, NodeRun
from ringup.runtime.output import clean
from ringup.runtime.ssh import Followed
from ringup.timeline.marks import Began
from ringup.transport import KeepsErrors, Transport
from ringup.transport.interrupts import Interrupts
from ringup.units import printable, show_bytes


class Follower(KeepsErrors, Followed):
    """A `Listener` on the head node: passes each message of the journal to its node's `NodeRun`."""

    can_be_left = is_on_its_own = True

    def __init__(
        self, detached: Detached, options: Options, interrupts: Interrupts, head_lost: str = ""
    ) -> None:
        """`head_lost`: why the head node is lost for good; the run then ended with it."""
        super().__init__(options, interrupts)
        self.output.continue_files()
        self.head_lost = head_lost
        self.detached, self.head = detached, detached.plan.nodes[0]
        self.record.started = detached.started
        self.state = "following"
        """following, over (the journal's end was read), gone (there is no journal), lost."""
        self.error = ""
        self.began_s = self.wall = self.finished_s = 0.0
        self.latest_s = 0.0
        """The latest time in the head's messages, on its clock."""
        self.reason = ""
        self._received = self._acknowledged = 0
        self._next_beat_s = 0.0
        self._lines = messages.Lines()
        self._checker = messages.Checker(messages.FROM_JOURNAL)
        for node in self.plan.nodes:
            send = functools.partial(self._relay, node.rank)
            self.nodes.append(NodeRun(node, self.output, self.on_change, send, now_s=lambda: self.latest_s))
        self.nodes[0].clock.round_trip_s = 0.0  # the run has its own clock

    def _relay(self, node: int, data: bytes) -> None:
        """To one node's guard, through the head's guard."""
        self.channel.write(b'{"node":%d,' % node + data[1:])

    def result(self) -> RunResult:
        if self.head_lost:
            self.is_on_its_own = False
            self.record.started_s -= time.time() - self.detached.started
            self.nodes[0].give_up(self.head_lost)
            return self.finish(interrupted=0, reopen={node.name for node in self.nodes})
        label, own = f"ringup-attach:{self.detached.run}", (self.head.run_dir,)
        start, node = self.options.reach.start, self.head.node
        self.channel = start(node, program("guard.attach"), own, self, label=label)
        is_left = self.follow()
        name, run = printable(self.head.node), self.detached.run
        if self.state == "lost":
            hint = f"the run goes on; `ringup attach {run}` to try again"
            raise NodeUnreachable(f"{name}: {self.error}", hint=hint)
        if self.state == "gone":
            hint = "it ended long ago, or its node was reinstalled; `ringup clean` looks for leftovers"
            noted = saved_run.head(self.record.log_dir)
            self.is_on_its_own = noted is None or noted.outcome != "running"
            raise NodeUnreachable(f"{name} has no record of run {run}", hint=hint)
        # If the run never began, its clock starts with the first failure.
        began_s = self.began_s or min((end.at_s for node in self.nodes for end in node.ends), default=0.0)
        if began_s:
            self.record.started_s, self.record.ended_s = began_s, self.finished_s or began_s
            self.record.started = self.wall or self.detached.started
        if is_left:
            self.channel.close_stdin()
            return self.record.result(self.nodes, self.output, [], running=self.interrupts.exit_code)
        # The journal has the reason, even if another `attach` ended the run.
        self.record.hung = self.reason.startswith("hung")
        return self.finish(interrupted=130 if self.reason.startswith("interrupted") else 0)

    def poll(self) -> bool:
        self.options.reach.turn(0.1)
        if (now := time.monotonic()) >= self._next_beat_s:
            self._next_beat_s = now + messages.BEAT_S
            self.beat()
            self.output.on_time(now)
        return self.state == "following"

    def stop(self, reason: str, *, grace_s: float) -> None:
        super().stop(reason, grace_s=grace_s)
        self._tell(type="end", reason=reason, grace_s=grace_s)

    def _tell(self, **message: Any) -> None:
        self.channel.write(json.dumps(message).encode() + b"\n")

    def beat(self) -> None:
        self._acknowledged = self._received
        self._tell(type="beat", acknowledged=self._received)

    def on_output(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._read(line)
        if self._received - self._acknowledged > messages.ACKNOWLEDGE_EVERY_BYTES:
            self.beat()

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        if error is not None or code != 0:
            last = clean(self.last_error(), LONGEST_WORDS)
            self.state, self.error = "lost", error.words if error else last or f"exit code {code}"
        elif self.state != "gone":
            self.state, self.is_on_its_own = "over", False
            if not self.finished_s and not any(one.lost or one.ends for one in self.nodes):
                words = "the guard on the head node ended without a report"
                self.nodes[0].ends.append(End("node", self.head.node, self.began_s, words=words))

    def _read(self, line: bytes) -> None:
        message = messages.parse(line) or {}
        kind, index = str(message.get("type")), message.get("node")
        if kind == "out":
            self._received += len(line) + 1
        if kind in messages.FROM_JOURNAL:
            message = self._checker.check(message) or {}
            kind = str(message.get("type"))
        if kind == "began":
            self.began_s = self.latest_s = message["at"]
            self.wall = message["wall"]
            self.output.times.note(Began(self.began_s))
        elif kind == "finished":
            self.finished_s, self.reason = message["at"], clean(message["reason"], LONGEST_WORDS)
            if message["lost_bytes"]:  # an earlier reader may have them
                lost = show_bytes(message["lost_bytes"])
                words = "it keeps 64 MiB, less on a full disk; they may be missing here"
                self.output.terminal.lines([f"ringup: the head node dropped {lost} of output: {words}"])
        elif kind == "gone":
            self.state = "gone"
        elif type(index) is int and 0 <= index < len(self.nodes):
            inner = message["answer"] if kind == "look" else message
            accepted = self.nodes[index].hear(inner if isinstance(inner, dict) else {})
            if index == 0:
                self.latest_s = accepted.get("at", self.latest_s)


def follow(
    detached: Detached,
    reach: Transport,
    *,
    log_dir: Path | None = None,
    head_lost: str = "",
    **options: Any,
) -> RunResult:
    """
    Replay a detached run's output and follow it to its end; `options` are those of `Options`.

    Ctrl-C ends the run; SIGTERM and SIGHUP only leave it (outcome "running").  In `log_dir` (default: the
    folder from the start of the run) the ranks' files are continued and run.json is written again.  Raises
    NodeUnreachable if the head node cannot be reached or does not know the run; but with `head_lost`, the
    proven reason why it is lost, the run has ended for that reason.
    """
    with Interrupts() as interrupts:
        how = Options(
            plan=detached.plan,
            reach=reach,
            log_dir=log_dir or Path(detached.log_dir),
            lease_s=detached.lease_s,
            findings=detached.findings,
            detach=True,
            **options,
        )
        return Follower(detached, how, interrupts, head_lost).run()
