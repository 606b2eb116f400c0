"""One node's connection: how it comes up, the requests that travel on it, and how it ends."""

from __future__ import annotations

import random
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ringup.facts import Host, Unreached
from ringup.reach import boot, cpu, ssh
from ringup.reach.client import Client
from ringup.reach.wire import Line, Wire
from ringup.units import printable, show_bytes

KEY_EXCHANGE_S = 0.1
"""CPU time of one ssh login on this side; 62 ms measured with OpenSSH 9.2, ed25519 keys."""
RETRY_AFTER_S = (0.5, 1.0, 2.0, 4.0)
"""When to try again where sshd dropped the connection because too many came at once."""
NOISE_KEPT_BYTES = 4096
NOISE_LIMIT_BYTES = 4 << 20
"""A shell that prints more than this before it answers will not answer."""
UNSENT_LIMIT_BYTES = 64 << 20
"""Bytes for a node that does not take them; a heartbeat a second stays far below."""


class Sink(Protocol):
    """Where the bytes of one request go."""

    def on_output(self, node: str, data: bytes) -> None:
        """Bytes of stdout."""

    def on_errors(self, node: str, data: bytes) -> None:
        """Bytes of stderr."""

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The end."""


class Errors(Protocol):
    """The stderr of the client that reaches a node: takes its own lines out and knows what they mean."""

    phase: ssh.Phase

    def feed(self, data: bytes) -> bytes:
        """What is the node's."""

    def was_dropped(self) -> bool:
        """Whether a second try may succeed."""

    def ended_early(self, code: int, noise: str) -> Unreached:
        """Why the client ended before the node's shell had answered."""

    def stuck(self, silent_s: float) -> Unreached:
        """Why nothing comes."""

    def lost(self, code: int, show_signal: Callable[[int], str]) -> Unreached:
        """Why a client that had served ended."""


@dataclass(frozen=True)
class Way:
    """How a node is reached: the client's words, and who reads its stderr."""

    argv: Sequence[str]
    errors: Callable[[], Errors] = ssh.Errors
    env: Mapping[str, str] | None = None
    """What the client is started with; None: what we were."""
    shared_argv: Sequence[str] = ()
    """What to try once when the key is refused: the connection that the user has open already."""
    is_ssh: bool = True
    """Whether a login comes first, which may hang, and two connections can be compared."""
    is_wire: bool = False
    """Whether `line` is used, and no client is started."""
    line: Line | None = None
    """The connection that a pod has opened for this; None when it has no more."""


class Request:
    """A script on its way; `body` is what follows it on stdin."""

    def __init__(self, kind: Literal["ask", "run"], number: int, body: bytes, sink: Sink | None) -> None:
        self.kind = kind
        self.number = number
        self.body = bytearray(body)
        self.sink = sink
        """None once nobody waits for it."""
        self.closes_stdin = False
        self.has_begun = False
        """Whether the node said that it has the whole request."""
        self.code: int | None = None
        self.ends = 0
        """Marks of the end seen, of two (stdout and stderr)."""


class Session:
    """
    A connection to one node.

    Goes from "waiting" (its turn has not come) over "connecting" to "ready", and ends "dead";
    `failure` then says why.
    """

    def __init__(
        self,
        host: Host,
        way: Way,
        token: str,
        selector: selectors.BaseSelector,
    ) -> None:
        self.host = host
        self.state: Literal["waiting", "connecting", "ready", "dead"] = "waiting"
        self.failure: Unreached | None = None
        self.errors = way.errors()
        self.noise = b""
        self.began = 0.0
        self.not_before = 0.0
        """Monotonic time before which it is not (again) tried."""
        self.heard = 0.0
        """Monotonic time of the last byte (or step of ssh's) from the node."""
        self.sent = 0.0
        """Monotonic time at which the current request was sent."""
        self.ready_after_s = 0.0
        """What connecting, logging in and starting the shell took."""
        self._waited_s = 0.0
        self.client: Client | Wire | None = None
        self.current: Request | None = None
        self.queue: deque[Request] = deque()
        self._way = way
        self._selector = selector
        self._stdout = boot.MarkedStream(token)
        self._stderr = boot.MarkedStream(token)
        self.token = token
        self._noise_bytes = 0
        self._tries = 0
        self._readies = 0
        """Marks of readiness seen, of two (stdout and stderr)."""

    @property
    def is_local(self) -> bool:
        """Whether the node is played on this machine, without ssh."""
        return self.host.local

    @property
    def is_logging_in(self) -> bool:
        """Whether it is on its way, and the login is not done."""
        is_through = self._way.is_ssh and self.errors.phase is ssh.Phase.LOGGED_IN
        return self.state == "connecting" and not is_through

    @property
    def is_running_program(self) -> bool:
        """Whether a program of `start` has this connection."""
        return self.current is not None and self.current.kind == "run"

    def is_overdue(self, now: float, silent_s: float) -> bool:
        """Whether a script was sent over ssh and nothing came for so long."""
        waits = self.state == "ready" and self.current is not None and self.current.kind == "ask"
        return waits and self._way.is_ssh and now - max(self.heard, self.sent) > silent_s

    def begin(self) -> None:
        """Start the process; a failure to do so is the node's failure."""
        self.began = self.heard = time.monotonic()
        self._waited_s = cpu.waited_s()
        self.state = "connecting"
        ears = (self._selector, self._read_stdout, self._read_stderr, self._ended)
        if self._way.is_wire:
            if self._way.line is None:
                self.fail(Unreached("no-answer", "every connection that the pod opened is used up"))
            else:
                self.client = Wire(self._way.line, *ears)
            return
        try:
            self.client = Client(self._way.argv, *ears, self._way.env)
        except OSError as error:
            self.fail(
                Unreached("ssh-failed", f"{self._way.argv[0]} cannot be started here: {error.strerror}")
            )

    # -- requests ------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Send a request when those before it have ended; a dead connection ends it at the next `on_time`."""
        self.queue.append(request)
        self._next()

    def write(self, request: Request, data: bytes) -> None:
        """More of a request's stdin."""
        if self.state == "dead" or request.ends == 2 or request.closes_stdin:
            return
        if request is not self.current or self.client is None:
            request.body += data
            return
        self.client.send(data)
        if self.client.unsent_bytes > UNSENT_LIMIT_BYTES:
            words = f"the node has not read {show_bytes(UNSENT_LIMIT_BYTES)} sent to it"
            self.fail(Unreached("ssh-failed", words))

    def close_stdin(self, request: Request) -> None:
        """End of file after what was written."""
        request.closes_stdin = True
        if request is self.current and self.client is not None:
            self.client.close_stdin()

    def _next(self) -> None:
        if self.state != "ready" or self.current is not None or not self.queue or self.client is None:
            return
        self.current = request = self.queue.popleft()
        self.sent = time.monotonic()
        self.client.send(bytes(request.body))
        request.body.clear()
        if request.closes_stdin:
            self.client.close_stdin()

    # -- what comes from the node --------------------------------------------------------------

    def _read_stdout(self, data: bytes) -> None:
        self.heard = time.monotonic()
        for piece in self._stdout.feed(data) if data else [self._stdout.rest()]:
            if isinstance(piece, bytes):
                self._on_stdout(piece)
            else:
                self._on_mark(piece)

    def _read_stderr(self, data: bytes) -> None:
        self.heard = time.monotonic()
        if data and not self.is_local:
            data = self.errors.feed(data)
            if not data:
                return
        for piece in self._stderr.feed(data) if data else [self._stderr.rest()]:
            if isinstance(piece, bytes):
                self._on_stderr(piece)
            else:
                self._on_mark(piece)

    def _on_stdout(self, data: bytes) -> None:
        if not data:
            return
        if self.state == "connecting":
            self._on_noise(data)
        elif self.current is not None and self.current.sink is not None:
            self.current.sink.on_output(self.host.name, data)

    def _on_stderr(self, data: bytes) -> None:
        if not data:
            return
        if self.state == "connecting":
            # Before the login only ssh itself speaks.
            if self.is_local or self.errors.phase is ssh.Phase.LOGGED_IN:
                self._on_noise(data)
        elif self.current is not None and self.current.sink is not None:
            self.current.sink.on_errors(self.host.name, data)

    def _on_noise(self, data: bytes) -> None:
        self.noise = (self.noise + data)[:NOISE_KEPT_BYTES]
        self._noise_bytes += len(data)
        if self._noise_bytes > NOISE_LIMIT_BYTES:
            words = (
                f"the shell printed {show_bytes(NOISE_LIMIT_BYTES)} before it answered: {self.show_noise()}"
            )
            self.fail(Unreached("no-answer", words))

    def _on_mark(self, words: tuple[str, ...]) -> None:
        if words == ("ready",) and self.state == "connecting":
            self._readies += 1
            if self._readies == 2:
                self.state = "ready"
                self.ready_after_s = time.monotonic() - self.began
                self._next()
        elif len(words) == 2 and words[0] == "begin" and self.current:
            self.current.has_begun = True
        elif len(words) == 3 and words[0] == "end" and self.current and words[1] == str(self.current.number):
            self.current.ends += 1
            self.current.code = int(words[2]) if words[2].isdecimal() else None
            if self.current.ends == 2:
                self._finish(self.current.code, None)

    def _finish(self, code: int | None, error: Unreached | None) -> None:
        """The current request has ended; the next may go."""
        request, self.current = self.current, None
        if request is not None and request.sink is not None:
            request.sink.on_exit(self.host.name, code, error)
        self._next()

    # -- ends ----------------------------------------------------------------------------------

    def on_time(self, now: float, connect_timeout_s: float, answer_timeout_s: float, crowd: int = 0) -> None:
        """
        Give up a connection that says nothing; end requests that came too late.

        `crowd`: connections that exchange keys at the same time, on the same processors here.
        """
        if self.state == "connecting":
            logged_in = self.is_local or self.errors.phase is ssh.Phase.LOGGED_IN
            allowed = answer_timeout_s if logged_in else connect_timeout_s + crowd * KEY_EXCHANGE_S
            is_late = cpu.is_over(now - self.heard, allowed, self.starved_s)
            if is_late or now - self.began > 2 * connect_timeout_s + answer_timeout_s:
                self.fail(self.judged(self.stuck(allowed), allowed))
        if self.state == "dead":
            self._end_requests()

    def look_at_process(self) -> None:
        """Notice a process that ended while something it started still holds its pipes."""
        if self.client is not None and self.state in ("connecting", "ready"):
            self.client.look()

    def stuck(self, silent_s: float) -> Unreached:
        """What a connection that says nothing is stuck in."""
        words = f"the shell here did not answer within {silent_s:.0f} s"
        return Unreached("no-answer", words) if self.is_local else self.errors.stuck(silent_s)

    def starved_s(self) -> float:
        """Seconds this process, or the one that reaches the node, had no processor since it was begun."""
        return max(cpu.waited_s() - self._waited_s, self.client.waited_s if self.client else 0.0)

    def judged(self, failure: Unreached, limit_s: float) -> Unreached:
        """A failure to answer within a limit, as `cpu.judged`."""
        return cpu.judged(failure, self.starved_s(), limit_s)

    def _ended(self, code: int) -> None:
        """The process is gone."""
        if self.state not in ("connecting", "ready"):
            return
        if self.is_local:
            failure = Unreached("no-answer", f"the shell here ended with {code}{self._said()}")
        elif self.errors.was_dropped() and self._tries < len(RETRY_AFTER_S):
            self._try_again(RETRY_AFTER_S[self._tries] * random.uniform(0.5, 1.5))
            return
        elif self.state == "connecting":
            failure = self.errors.ended_early(code, self.show_noise())
            shared = self._way.shared_argv
            if failure.kind == "ssh-key-refused" and shared and ssh.has_control_path(shared):
                self._way = replace(self._way, argv=shared, shared_argv=())
                self._try_again(0.0)
                return
        else:
            failure = self.errors.lost(code, _signal_name)
        is_timed = failure.kind != "no-answer"  # that one is a shell that ended
        self.fail(self.judged(failure, ssh.OWN_LIMIT_S) if is_timed else failure)

    def _try_again(self, after_s: float) -> None:
        """Wait for another turn; callers jitter, for all that were dropped came at the same moment."""
        self.end()
        self.not_before = time.monotonic() + after_s
        self._tries += 1
        self.state = "waiting"
        self.errors = self._way.errors()
        self._readies = 0

    def _said(self) -> str:
        noise = self.show_noise()
        return f": {noise}" if noise else ""

    def show_noise(self) -> str:
        """What the shell's start-up files printed, in one safe line."""
        return printable(" / ".join(self.noise.decode("utf-8", "replace").split("\n")).strip(" /"), 200)

    def fail(self, failure: Unreached) -> None:
        """Give the connection up, and every request on it."""
        if self.state == "dead":
            return
        self.state = "dead"
        self.failure = failure
        self.end()
        self._end_requests()

    def _end_requests(self) -> None:
        requests = [r for r in (self.current, *self.queue) if r is not None]
        self.current = None
        self.queue.clear()
        for request in requests:
            if request.sink is not None:
                request.sink.on_exit(self.host.name, None, self.failure)

    def end(self) -> None:
        """
        Close the pipes and end the client; what it left on the node ends by end of file.

        On this machine the shell and what a script left behind are ended too, but never a
        program of `start`: that one cleans up after itself.
        """
        if self.client is not None:
            self.client.end(spare=self.is_local and self.is_running_program)

    def reap(self, wait_s: float) -> None:
        """Wait for the ended client; past `wait_s` it is killed."""
        if self.client is not None:
            self.client.reap(wait_s)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
