"""The other pods: find the first one, open waiting shells to it, end with it."""

from __future__ import annotations

import secrets
import select
import selectors
import time

from ringup.errors import NodesError
from ringup.hosts.pod import Pod, without_secrets
from ringup.keys import Authority
from ringup.transport import bootstrap, pod_link
from ringup.transport.client import STDERR, STDIN, STDOUT, Client
from ringup.transport.interrupts import Interrupts
from ringup.transport.pod_admission import Say
from ringup.transport.pod_link import End, Hello, Link, Refused
from ringup.transport.pods import SHELLS
from ringup.units import printable, show_seconds

AGAIN_S = (0.2, 0.4, 1.0)
END_S = 30.0
"""Seconds in which guards must end their job after the first pod is gone; they watch the lease."""
HELD_BYTES = 1 << 20
"""Most bytes buffered for a slow reader; above this, nothing more is read from the other side."""
LOST = 4


class _Shell:
    def __init__(self, connection: Link, loop: str, selector: selectors.BaseSelector) -> None:
        self.link = connection
        self.has_ended = False
        self._open = {STDOUT, STDERR}
        try:
            self.client = Client(
                ["sh", "-c", bootstrap.loop_script(loop)],
                selector,
                self._on_data,
                self._on_end,
                without_secrets(),
            )
        except BaseException:  # no process was started: only this code knows the connection
            connection.close()
            raise
        # However the connection ends: a guard that gets end of file ends its job.
        connection.attach(selector, self._on_frame, self._on_lost)

    def _on_frame(self, kind: int, data: bytes) -> None:
        if kind != STDIN:
            raise ConnectionError("a frame that is not expected here")
        if data:
            self.client.send(data)
        else:
            self.client.close_stdin()

    def _on_lost(self, _error: OSError) -> None:
        self.client.close_stdin()
        self.link.close()

    def _on_data(self, stream: int, data: bytes) -> None:
        if not data:
            self._open.discard(stream)
        self.link.send(stream, data)

    def _on_end(self, _code: int) -> None:
        """The shell has ended; its descendants may still hold its streams."""
        self.has_ended = True
        for stream in [*self._open]:
            self._on_data(stream, b"")


class Peer:
    def __init__(self, pod: Pod, say: Say, interrupts: Interrupts) -> None:
        self.pod, self.say, self.interrupts = pod, say, interrupts
        self.instance = secrets.token_hex(8)
        self.context = pod_link.client_context(Authority(pod.token), pod.index)
        self.selector = selectors.DefaultSelector()
        self.shells: list[_Shell] = []
        self._looked = 0.0

    def take_part(self) -> int:
        """The same as `serve`; raises KeyboardInterrupt if interrupted before the first pod answers."""
        with self.selector:
            until = time.monotonic() + self.pod.wait_s
            control = self.dial(until)
            try:
                for number in range(SHELLS):
                    loop = secrets.token_hex(16)
                    self.shells.append(_Shell(self.dial(until, number, loop), loop, self.selector))
                place = f"index {self.pod.index} of {self.pod.count}"
                self.say(f"{place}: taking part in the run of {self.pod.head}")
                return self.wait_for_end(control)
            finally:
                self.end_shells()
                control.close()

    def dial(self, until: float, shell: int | None = None, loop: str = "") -> Link:
        """A connection that the first pod has accepted, tried until `until`; NodesError if it is refused."""
        pod = self.pod
        hello = Hello(2, pod.index, pod.count, pod.name, self.instance, shell, loop)
        where, waits_for, tries = f"{pod.head} port {pod.port}", "", 0
        while True:
            try:
                return pod_link.dial((pod.head, pod.port), self.context, hello)
            except Refused as refused:
                if refused.final:
                    hint = "every pod needs the same token and count, and an index of its own"
                    raise NodesError(f"the first pod at {where}: {refused}", hint=hint) from refused
                why = str(refused)
            except (OSError, UnicodeError) as error:
                # Also for a peer with another token: it has not authenticated, and cannot end this pod.
                why = pod_link.explain(error)
            if time.monotonic() > until:
                hint = "is index 0 running, is its name in the DNS (headless service), is the port open, "
                hint += "does it have the same token?"
                late = f"no first pod at {where} within {show_seconds(pod.wait_s)}: {why}"
                raise NodesError(late, hint=hint)
            if why != waits_for:
                self.say(f"waiting for the first pod at {where}: {why}")
                waits_for = why
            select.select([], [], [], AGAIN_S[min(tries, len(AGAIN_S) - 1)])
            if self.interrupts.count:
                raise KeyboardInterrupt
            tries += 1

    def wait_for_end(self, control: Link) -> int:
        """Wait for the end and report it: the run's own exit code, or why there is none."""
        received: list[End | OSError] = []

        def on_frame(kind: int, content: bytes) -> None:
            received.append(pod_link.decode(kind, content, End))

        control.attach(self.selector, on_frame, received.append)
        while not received and not self.interrupts.count:
            self._turn(1.0)
        self.end_shells()
        if self.interrupts.count:
            return self.interrupts.exit_code
        end = received[0]
        if isinstance(end, End):
            words = f": {printable(end.words, pod_link.LONGEST_WORDS)}" if end.words else ""
            self.say(f"the first pod ended with {end.code}{words}")
            return end.code
        self.say("the first pod is gone; no process of its run is left here")
        return LOST

    def _turn(self, timeout_s: float) -> None:
        pod_link.turn(self.selector, timeout_s)
        for shell in self.shells:  # from neither side is more read than the other one takes
            shell.link.hold(shell.client.unsent_bytes > HELD_BYTES)
            shell.client.hold(shell.link.unsent_bytes > HELD_BYTES)
        if time.monotonic() - self._looked >= timeout_s:
            self._looked = time.monotonic()
            for shell in self.shells:
                if not shell.has_ended:
                    shell.client.look()

    def end_shells(self) -> None:
        """
        End of file for all: guards then end their jobs, and report it; processes that remain are killed.

        A signal would not be enough: a guard has its own session, and stays until its job is gone.
        """
        for shell in self.shells:
            shell.client.close_stdin()
        until = time.monotonic() + END_S
        while not all(shell.has_ended for shell in self.shells) and time.monotonic() < until:
            self._turn(0.05)
        until = min(until, time.monotonic() + 1.0)
        while any(shell.link.unsent_bytes for shell in self.shells) and time.monotonic() < until:
            self._turn(0.05)
        for shell in self.shells:
            shell.client.end()
            shell.link.close()
        for shell in self.shells:
            shell.client.reap(1.0)
        self.shells = []


def serve(pod: Pod, say: Say) -> int:
    """Take part in the first pod's run; returns its exit code.  NodesError without answer or if refused."""
    with Interrupts() as interrupts:
        try:
            return Peer(pod, say, interrupts).take_part()
        except KeyboardInterrupt:
            return interrupts.exit_code
