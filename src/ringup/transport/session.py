"""One node's connection: its start, its requests and answers, and its end."""

from __future__ import annotations

import itertools
import math
import random
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from ringup.model import Host, Unreached
from ringup.transport import bootstrap, cpu, ssh
from ringup.transport.client import STDERR, STDOUT, Client, Wire, signals_held
from ringup.transport.client_errors import Errors, Phase
from ringup.units import printable, show_bytes

if TYPE_CHECKING:
    from ringup.transport.pod_link import Link

KEY_EXCHANGE_S = 0.1
"""CPU seconds of one ssh login on this side; 62 ms measured with OpenSSH 9.2, ed25519 keys."""
RETRY_AFTER_S = (0.5, 1.0, 2.0, 4.0)
"""Seconds until a retry after sshd dropped one of too many simultaneous connections."""
ERRORS_KEPT_BYTES = 16 << 10
NOISE_KEPT_BYTES = 4096
NOISE_LIMIT_BYTES = 4 << 20
"""A shell that prints more than this before it answers will not answer."""
UNSENT_LIMIT_BYTES = 64 << 20
"""Bytes for a node that does not read them; a heartbeat a second stays far below."""

Kind = Literal["ask", "run"]


@dataclass(frozen=True)
class Answer:
    """Output of one script on one node; above the limit it is cut, and `truncated` is set."""

    node: str
    stdout: bytes = b""
    stderr: bytes = b""
    code: int | None = None
    """The script's exit status; None without a complete answer."""
    error: Unreached | None = None
    took_s: float = 0.0
    silent_s: float = math.inf
    """Seconds without a byte before the script was abandoned."""
    truncated: bool = False

    @property
    def problem(self) -> str:
        """Why the script did not exit with 0, in one safe line; "" if it did."""
        if self.error is not None:
            return printable(self.error.words, 400)
        lines = self.stderr.decode("utf-8", "replace").split("\n") if self.code else []
        last = next((line for line in reversed(lines) if line.strip()), "")
        return printable(last.strip(), 400) or (f"exit code {self.code}" if self.code else "")


class Listener(Protocol):
    """Called with the output of one node's program, only from `Transport.turn` and `Transport.ask`."""

    def on_output(self, data: bytes) -> None:
        """Bytes of stdout, split anywhere."""

    def on_errors(self, data: bytes) -> None:
        """Bytes of stderr (the node's or ssh's), split anywhere."""

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        """The program ended with `code`, or the connection was lost (`code` None, `error` has the reason)."""


class KeepsErrors:
    """The part of a `Listener` that keeps the end of stderr, which is the reason for a failure."""

    errors: bytes = b""

    def on_errors(self, data: bytes) -> None:
        self.errors = (self.errors + data)[-ERRORS_KEPT_BYTES:]

    def last_error(self) -> str:
        """The last line, with any control characters; "" for none."""
        return self.errors.decode("utf-8", "replace").strip().rpartition("\n")[2]


@dataclass(frozen=True)
class Way:
    """How to reach a node: the client's command (empty: by `link`), and the reader of its stderr."""

    argv: Sequence[str] = ()
    errors: Callable[[], Errors] = ssh.Errors
    env: Mapping[str, str] | None = None
    """The client's environment; None for ours."""
    shared_argv: Sequence[str] = ()
    """Command for one more try after a refused key: it uses a connection that the user has already opened."""
    link: Link | None = None
    """The connection that a pod has opened for this; None if it has no more."""

    @property
    def is_ssh(self) -> bool:
        """Whether it begins with a login, which may hang: then a second connection is a useful comparison."""
        return self.errors is ssh.Errors


@dataclass(eq=False)
class Request:
    """A queued script, or a program that runs on a node with its stdin open."""

    session: Session
    kind: Kind
    number: int
    body: bytes
    listener: Listener | None
    """None once its answer is no longer needed."""
    outlives: bool
    """As for `Transport.start`."""
    closes_stdin: bool = False
    has_begun: bool = False
    """Whether the node has confirmed the whole request."""
    ends: int = 0
    """Number of end marks seen, of two (stdout and stderr)."""

    @property
    def _client(self) -> Client | Wire | None:
        return self.session.client if self.session.current is self else None

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin; never blocks; lost silently once the node is lost."""
        client = self._client
        if self.session.state == "dead" or self.ends == 2 or self.closes_stdin:
            return
        if client is None:
            self.body += data
            return
        client.send(data)
        if client.unsent_bytes > UNSENT_LIMIT_BYTES:
            words = f"the node has not read {show_bytes(UNSENT_LIMIT_BYTES)} sent to it"
            self.session.fail(Unreached("ssh-failed", words))

    def close_stdin(self) -> None:
        """End of file on the program's stdin (and the end of this node's connection)."""
        self.closes_stdin = True
        if client := self._client:
            client.close_stdin()


class Session:
    """A connection to one node: "waiting" for its turn, "connecting", "ready"; "dead" with a `failure`."""

    def __init__(self, host: Host, way: Way, token: str, selector: selectors.BaseSelector) -> None:
        self.host = host
        self.state: Literal["waiting", "connecting", "ready", "dead"] = "waiting"
        self.failure: Unreached | None = None
        self.errors = way.errors()
        self.noise = b""
        self.began = 0.0
        self.not_before = 0.0
        """Monotonic time of the earliest (next) try."""
        self.last_byte_s = 0.0
        """Monotonic time of the last byte (or step of ssh) from the node."""
        self.sent = 0.0
        """Monotonic time at which the current request was sent."""
        self.ready_after_s = 0.0
        """Seconds for connecting, logging in and starting the shell."""
        self._waited_s = 0.0
        self.client: Client | Wire | None = None
        self.current: Request | None = None
        self.queue: deque[Request] = deque()
        self._way = way
        self._selector = selector
        self.token = token
        self._streams: dict[int, bootstrap.MarkedStream] = {}
        self._noise_bytes = 0
        self._numbers = itertools.count(1)
        self._tries = 0
        self._readies = 0
        """Number of readiness marks seen, of two (stdout and stderr)."""

    @property
    def is_logging_in(self) -> bool:
        return self.state == "connecting" and not (self._way.is_ssh and self.errors.phase is Phase.LOGGED_IN)

    def is_overdue(self, now: float, silent_s: float) -> bool:
        """Whether a script was sent over ssh and has been silent for too long."""
        waits = self.state == "ready" and self.current is not None and self.current.kind == "ask"
        return waits and self._way.is_ssh and now - max(self.last_byte_s, self.sent) > silent_s

    def begin(self) -> None:
        """Start the client; if that fails, it is the node's failure."""
        self.began = self.last_byte_s = time.monotonic()
        self._waited_s = cpu.waited_s()
        self.state = "connecting"
        self._streams = {n: bootstrap.MarkedStream(self.token) for n in (STDOUT, STDERR)}
        callbacks = (self._selector, self._read, self._ended)
        if not self._way.argv:
            if self._way.link is None:
                self.fail(Unreached("no-answer", "every connection that the pod opened is used up"))
            else:
                self.client = Wire(self._way.link, *callbacks)
            return
        try:
            with signals_held():
                self.client = Client(self._way.argv, *callbacks, self._way.env)
        except OSError as error:
            words = f"{self._way.argv[0]} cannot be started here: {error.strerror or error}"
            self.fail(Unreached("ssh-failed", words))

    def submit(
        self, kind: Kind, script: str, listener: Listener, *, stdin: bytes = b"", outlives: bool = False
    ) -> Request:
        """Run a script after the earlier requests: "ask" with an empty stdin, "run" with an open one."""
        number = next(self._numbers)
        body = bootstrap.request(self.token, kind, number, script) + stdin
        request = Request(self, kind, number, body, listener, outlives)
        self.queue.append(request)
        self._next()
        return request

    def _next(self) -> None:
        if self.state != "ready" or self.current is not None or not self.queue or self.client is None:
            return
        self.current = request = self.queue.popleft()
        self.sent = time.monotonic()
        self.client.send(request.body)
        request.body = b""
        if request.closes_stdin:
            self.client.close_stdin()

    def _read(self, number: int, data: bytes) -> None:
        self.last_byte_s, stream = time.monotonic(), self._streams[number]
        if data and number == STDERR and not (data := self.errors.feed(data)):
            return
        for piece in stream.feed(data) if data else filter(None, [stream.rest()]):
            if isinstance(piece, bytes):
                self._on_data(number, piece)
            else:
                self._on_mark(piece)

    def _on_data(self, number: int, data: bytes) -> None:
        if self.state != "connecting":
            if self.current is not None and (listener := self.current.listener) is not None:
                (listener.on_output if number == STDOUT else listener.on_errors)(data)
        elif number == STDOUT or self.errors.phase is Phase.LOGGED_IN:  # before it only ssh writes errors
            self.noise = (self.noise + data)[:NOISE_KEPT_BYTES]
            self._noise_bytes += len(data)
            if self._noise_bytes > NOISE_LIMIT_BYTES:
                words = f"the shell printed {show_bytes(NOISE_LIMIT_BYTES)} before it answered"
                self.fail(Unreached("no-answer", f"{words}: {self.show_noise()}"))

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
            if self.current.ends == 2:
                request, self.current = self.current, None
                if request.listener is not None:
                    code = int(words[2]) if words[2].isdecimal() else None
                    request.listener.on_exit(code, None)
                self._next()

    def on_time(self, now: float, connect_timeout_s: float, answer_timeout_s: float, crowd: int = 0) -> None:
        """End a silent connection and late requests; `crowd`: others in key exchange on this machine."""
        if self.state == "connecting":
            logged_in = self.errors.phase is Phase.LOGGED_IN
            allowed = answer_timeout_s if logged_in else connect_timeout_s + crowd * KEY_EXCHANGE_S
            is_late = cpu.is_over(now - self.last_byte_s, allowed, self.starved_s)
            is_endless = now - self.began > 2 * connect_timeout_s + answer_timeout_s
            if is_endless and not is_late and self.noise:
                words = f"the shell prints without end before it answers: {self.show_noise()}"
                self.fail(Unreached("no-answer", words))
            elif is_late or is_endless:
                self.fail(self.judged(self.errors.stuck(allowed), allowed))
        if self.state == "dead":
            self._end_requests()

    def starved_s(self) -> float:
        """Seconds this process, or the client, had no CPU since the client began."""
        return max(cpu.waited_s() - self._waited_s, self.client.waited_s if self.client else 0.0)

    def judged(self, failure: Unreached, limit_s: float) -> Unreached:
        return cpu.judged(failure, self.starved_s(), limit_s)

    def _ended(self, code: int) -> None:
        if self.state not in ("connecting", "ready"):
            return
        if self.errors.was_dropped() and self._tries < len(RETRY_AFTER_S):
            # All dropped connections came at the same moment.
            self._try_again(RETRY_AFTER_S[self._tries] * random.uniform(0.5, 1.5))
            return
        if self.state == "ready":
            failure = self.errors.lost(code)
        else:
            failure = self.errors.ended_early(code, self.show_noise())
            shared = self._way.shared_argv
            if failure.kind == "ssh-key-refused" and shared and ssh.has_control_path(shared):
                self._way = replace(self._way, argv=shared, shared_argv=())
                self._try_again(0.0)
                return
        if failure.kind != "no-answer":  # that one is a shell that has ended
            failure = self.judged(failure, ssh.OWN_LIMIT_S)
        self.fail(failure)

    def _try_again(self, after_s: float) -> None:
        self.end()
        self.not_before = time.monotonic() + after_s
        self._tries += 1
        self.state = "waiting"
        self.errors = self._way.errors()
        self._readies = 0

    def show_noise(self) -> str:
        """Output of the shell's start-up files, in one safe line."""
        return printable(" / ".join(self.noise.decode("utf-8", "replace").split("\n")).strip(" /"), 200)

    def fail(self, failure: Unreached) -> None:
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
            if request.listener is not None:
                request.listener.on_exit(None, self.failure)

    def end(self) -> None:
        """
        Close the pipes and end the client; its processes on the node end by end of file.

        On this machine the shell and its processes are killed too, but not a guard, which cleans up itself.
        """
        if self.client is not None:
            self.client.end(spare=self.host.local and self.current is not None and self.current.outlives)
