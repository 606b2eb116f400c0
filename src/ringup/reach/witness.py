"""
A second look at a node whose answer does not come: is the script slow, or the path broken?

TCP delivers in order, so behind one long packet that a path swallows nothing arrives any
more, and a slow script looks the same.  A second connection tells them apart: it must carry
long packets for its key exchange, and is asked for a long answer besides.
"""

from __future__ import annotations

import time

from ringup.facts import Unreached
from ringup.reach import boot
from ringup.reach.session import Request, Session
from ringup.reach.ssh import Phase

OVERDUE_S = 4.0
"""Silence before a node is looked at again; at 20 % loss it takes five losses in a row."""
STUCK_S = 4.0
"""Silence of the second connection that counts.  With OVERDUE_S it stays below 10 s together."""
PACE, STUCK_MOST_S = 3.0, 8.0
"""
A busy node is slow at everything: its silence counts when it is so many times what letting us in took, or
STUCK_MOST_S, for a little later ssh's own keep-alive gives the connection up without a name for it.
"""
LONG_BYTES = 20_000
"""More than the largest frame in use (9,000 bytes), in several packets."""


def patience_s(watched: Session) -> float:
    """What the silence of a second connection to this node must last to mean something."""
    return min(STUCK_MOST_S, max(STUCK_S, PACE * watched.ready_after_s))


class Witness:
    """One second connection, for as long as the first one is silent."""

    def __init__(self, watched: Session, fresh: Session) -> None:
        self.watched = watched
        self.fresh = fresh
        self._heard = watched.heard
        self._limit_s = patience_s(watched)
        self._got_bytes = 0
        script = f"head -c {LONG_BYTES} /dev/zero"
        fresh.submit(Request("ask", 0, boot.request(fresh.token, "ask", 0, script), self))
        fresh.begin()

    def on_output(self, node: str, data: bytes) -> None:
        """Part of the long answer."""
        self._got_bytes += len(data)

    def on_errors(self, node: str, data: bytes) -> None:
        """Of no interest."""

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """Of no interest: `verdict` looks at the connection."""

    def verdict(self) -> Unreached | bool:
        """True while it is not known, False when nothing is wrong with the path, else what is wrong."""
        if self.watched.state != "ready" or self.watched.heard != self._heard:
            return False
        if self.fresh.state == "dead":
            return self._dead()
        if self._got_bytes >= LONG_BYTES:
            return False
        if time.monotonic() - self.fresh.heard < self._limit_s:
            return True
        phase = self.fresh.errors.phase
        # Without even sshd's banner, which is short, it is the node that hangs or is starved, not the path.
        if Phase.BANNER <= phase < Phase.KEYS or self.fresh.state == "ready":
            failure = self.fresh.judged(Unreached("ssh-long-answer-lost", self._words()), self._limit_s)
            # Nothing is said of a path by a machine that could not look; the answer may still come.
            return False if failure.kind == "no-cpu-time" else failure
        # Not connected at all: ssh's own deadline gives the words for it.
        return phase < Phase.CONNECTED

    def _dead(self) -> Unreached | bool:
        failure = self.fresh.failure
        if failure is not None and failure.kind in ("ssh-timeout", "ssh-no-route"):
            return Unreached(
                failure.kind, f"the answer stopped coming, and a second connection fails: {failure.words}"
            )
        return False

    def _words(self) -> str:
        request = self.watched.current
        arrived = request is not None and request.has_begun
        lost = "its long answer" if arrived else "the long request"
        return f"short packets pass, {lost} does not; a second connection stops at long ones, too"

    def end(self) -> Session:
        """Give the second connection up."""
        self.fresh.fail(Unreached("ssh-failed", "no longer needed"))
        return self.fresh
