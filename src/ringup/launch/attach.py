"""Back to a detached run: its output from the beginning (as far as it was kept), its state, its end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ringup.errors import NodeUnreachable
from ringup.facts import Unreached
from ringup.launch import Event, RunResult, Watcher
from ringup.launch.blame import End
from ringup.launch.detach import Detached
from ringup.launch.interrupts import Interrupts
from ringup.launch.last_look import last_look
from ringup.launch.node import LONGEST_MESSAGE_BYTES, NodeRun, integer, number, text
from ringup.launch.output import Output
from ringup.launch.program import payload
from ringup.launch.ssh import BEAT_S, GRACE_S, know_interpreters, no_consequence, quiet, watched
from ringup.launch.story import Story, short
from ringup.reach import Channel, Reach
from ringup.units import printable

ACKNOWLEDGE_EVERY_BYTES = 64 << 10


class Relayed:
    """What is written to one node's guard, by way of the head's."""

    def __init__(self, head: Channel, node: int) -> None:
        self._head, self._node = head, node

    def write(self, data: bytes) -> None:
        """One message."""
        self._head.write(b'{"node":%d,' % self._node + data[1:])

    def close_stdin(self) -> None:
        """The head's connection stays."""


class Follower:
    """A `Listener` on the head node: the journal's messages, each for the node it is from."""

    def __init__(self, detached: Detached, output: Output, on_event: Callable[[Event], None]) -> None:
        self.head = detached.plan.nodes[0]
        self.nodes = [NodeRun(node, output, self._on_change) for node in detached.plan.nodes]
        self.world_size = detached.plan.world_size
        self.on_event = on_event
        self.channel: Channel | None = None
        self.state = "connecting"
        """connecting, following, over (the journal's end was seen), gone (there is no journal), lost."""
        self.error = ""
        self.began_s = self.wall = self.finished_s = 0.0
        self.reason = ""
        self._received = self._acknowledged = 0
        self._rest = b""

    def join(self, channel: Channel) -> None:
        """`channel` leads to the head's guard, and through it to the others'."""
        self.channel = channel
        for node in self.nodes:
            node.channel = Relayed(channel, node.plan.rank)

    def tell(self, **message: Any) -> None:
        """Send a message to the head's guard."""
        if self.channel is not None:
            self.channel.write(json.dumps(message).encode() + b"\n")

    def beat(self) -> None:
        """Acknowledge what has come."""
        self._acknowledged = self._received
        self.tell(type="beat", acknowledged=self._received)

    def on_output(self, node: str, data: bytes) -> None:
        """Lines of the journal."""
        if self.state == "connecting":
            self.state = "following"
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_MESSAGE_BYTES:
            self._rest = b""
        for line in whole:
            self._hear_line(line)
        if self._received - self._acknowledged > ACKNOWLEDGE_EVERY_BYTES:
            self.beat()

    def on_errors(self, node: str, data: bytes) -> None:
        """Why it cannot be followed."""
        self.error = printable(data.decode("utf-8", "replace").strip()[-400:])

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The journal has been read, or the connection is lost."""
        if error is not None:
            self.state, self.error = "lost", error.words
        elif code != 0:
            self.state = "lost"
            self.error = self.error or f"exit code {code}"
        elif self.state != "gone":
            self._close()

    def _hear_line(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        kind, index = message.get("type"), integer(message, "node", -1)
        if kind == "out":
            self._received += len(line) + 1
        if kind == "began":
            self.began_s, self.wall = number(message, "at"), number(message, "wall")
        elif kind == "finished":
            self.finished_s, self.reason = number(message, "at"), text(message, "reason")
        elif kind == "gone":
            self.state = "gone"
        elif 0 <= index < len(self.nodes):
            told = message.get("told") if kind == "look" else message
            self.nodes[index].hear(told if isinstance(told, dict) else {})

    def _close(self) -> None:
        """All that there is has been read."""
        self.state = "over"
        if not self.finished_s and not any(node.lost or node.ends for node in self.nodes):
            at_s = max([self.began_s] + [e.at_s for n in self.nodes for e in n.ends])
            words = "the guard on the head node ended without a last word"
            self.nodes[0].ends.append(End("node", self.head.node, at_s, words=words))

    def _on_change(self, node: NodeRun, what: str) -> None:
        if what == "joined":
            joined = sum(len(n.ranks) for n in self.nodes)
            self.on_event(Event("joined", f"{joined} of {self.world_size} ranks started", node.name))
        elif what == "failed" and sum(len(n.ends) for n in self.nodes) == 1:
            self.on_event(Event("failed", short(node.ends[-1]), node.name))


def follow(
    detached: Detached,
    reach: Reach,
    *,
    write: Callable[[str], object] | None = None,
    log_dir: Path | None = None,
    grace_s: float = GRACE_S,
    on_event: Callable[[Event], None] = quiet,
    is_consequence: Callable[[str], bool] = no_consequence,
    watcher: Watcher | None = None,
) -> RunResult:
    """
    Replay a detached run's output and follow it to its end.

    `watcher` looks at the run meanwhile.  Ctrl-C ends the run; SIGTERM and SIGHUP only leave it
    (outcome "running").  The ranks' files and run.json are written anew in `log_dir` (default: where
    the run was started).  Raises NodeUnreachable when the head node cannot be reached or knows
    nothing of the run.
    """
    log_dir = log_dir or Path(detached.log_dir)
    with Interrupts() as interrupts:
        story = Story(
            detached.plan, log_dir, list(detached.findings), is_consequence, detached=True, is_told_again=True
        )
        output = Output(log_dir, write)

        def tell(event: Event) -> None:
            output.terminal.later(lambda: on_event(event))

        follower = Follower(detached, output, tell)
        know_interpreters(reach, detached.plan)
        channel = reach.start(
            follower.head.node,
            payload("attach"),
            (follower.head.run_dir,),
            follower,
            label=f"ringup-attach:{detached.run}",
        )
        follower.join(channel)
        story.hangs = watcher.reports if watcher else []
        left = _loop(follower, reach, output, interrupts, story, grace_s, watcher)
        _check(follower, detached)
        story.set_clock(follower.began_s, follower.wall or detached.started, follower.finished_s)
        if left:
            channel.close_stdin()
            return story.result(follower.nodes, output, [], running=interrupts.exit_code)
        tell(Event("looking", "a last look on every node"))
        cleanup = last_look(
            reach,
            detached.plan,
            reopen=(),
            wait_s=grace_s + 2,
            limit_s=grace_s + 14,
            lease_s=detached.lease_s,
        )
        # Whoever attached and ended it: the journal remembers.
        story.hung = follower.reason.startswith("hung")
        interrupted = 130 if follower.reason.startswith("interrupted") else 0
        return story.result(follower.nodes, output, cleanup, interrupted=interrupted)


def _loop(
    follower: Follower,
    reach: Reach,
    output: Output,
    interrupts: Interrupts,
    story: Story,
    grace_s: float,
    watcher: Watcher | None,
) -> bool:
    """Until the journal ends; True when the user leaves before."""
    handled, next_beat_s, ending = 0, 0.0, False
    while follower.state in ("connecting", "following"):
        reach.turn(0.1)
        now = time.monotonic()
        if now >= next_beat_s:
            next_beat_s = now + BEAT_S
            follower.beat()
            output.on_time(now)
        if interrupts.count > handled:
            handled, ending = interrupts.count, True
            if interrupts.first and interrupts.first.name != "SIGINT":
                return True
            follower.on_event(Event("ending", "ending every node: interrupted by SIGINT"))
            reason = "interrupted by SIGINT"
            follower.tell(type="end", reason=reason, grace_s=grace_s if handled == 1 else 0.0)
        if watcher and not ending:
            reason, watcher = watched(watcher, follower.nodes, follower.on_event)
            if reason:
                ending = True
                follower.on_event(Event("ending", f"ending every node: {reason}"))
                follower.tell(type="end", reason=reason, grace_s=grace_s)
        interrupts.refused_stop = False
        if follower.began_s:
            story.note_progress(follower.nodes, output)
        output.tell_problem(follower.on_event)
    return False


def _check(follower: Follower, detached: Detached) -> None:
    name = printable(follower.head.node)
    if follower.state == "lost":
        raise NodeUnreachable(
            f"{name}: {follower.error}", hint=f"the run goes on; `ringup attach {detached.run}` to try again"
        )
    if follower.state == "gone":
        raise NodeUnreachable(
            f"{name} knows nothing of run {detached.run}",
            hint="it ended long ago, or its node was set up anew; `ringup clean` looks for leftovers",
        )
