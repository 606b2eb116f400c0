"""
All nodes' connections under one `selectors` loop; see `Transport`.

ClusterShell's Task is not used (1.10.1, measured): `resume(timeout)` ends every worker at its timeout; output
without a newline is neither passed on nor bounded (300 MB of it: over 500 MB of memory, not done after 8
minutes of CPU); and it does not show ssh's progress.
"""

from __future__ import annotations

import functools
import math
import os
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ringup import progress
from ringup.hosts.pod import without_secrets
from ringup.model import Host, Unreached
from ringup.transport import bootstrap, srun, ssh
from ringup.transport.client import FDS_SPARE, KILL_AFTER_S, allow_open_files, signals_held
from ringup.transport.client_errors import Errors, Phase
from ringup.transport.interpreters import for_jobs
from ringup.transport.session import Answer, Listener, Request, Session, Way
from ringup.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from ringup.transport.pod_link import Link
    from ringup.transport.pods import Pods

TICK_S = 0.1
"""Seconds between checks of deadlines; a `turn` waits no longer, so a signal handler's flag is seen soon."""
OVERDUE_S = 4.0
"""Seconds of silence before a node's path is probed; at 20 % loss that takes five losses in a row."""
STUCK_S = 4.0
"""Seconds of silence of the second connection that count.  Together with OVERDUE_S below 10 s."""
PACE, STUCK_MOST_S = 3.0, 8.0
"""
A busy node is slow at everything: its silence counts from this many times the login's duration, at most
STUCK_MOST_S, because a little later ssh's own keep-alive gives the connection up without a clear reason.
"""
LONG_BYTES = 20_000
"""More than the largest usual frame (9,000 bytes), in several packets."""
PROBES_AT_ONCE = 4
"""Second connections must not make a slow cluster slower."""
LOOKED_AT_PER_TICK = 256
FDS_PER_NODE = 3


class Transport:
    """One connection to each node; a context manager that closes them."""

    def __init__(
        self,
        hosts: Sequence[Host],
        *,
        ssh_config: str | None = None,
        connect_timeout_s: float = 10.0,
        answer_timeout_s: float = 30.0,
        fanout: int = 64,
        pods: Pods | None = None,
        python: str = "",
    ) -> None:
        """
        Begin the connections to all nodes, `fanout` at a time, and return at once.

        `connect_timeout_s`: seconds of silence allowed for each of TCP connect, key exchange and login;
        `answer_timeout_s`: seconds for a login shell to start after that; `pods` have opened the connections.
        """
        self.hosts = tuple(hosts)
        self._pods = pods
        self.interpreters = {host.name: python for host in hosts if python}
        """Node name -> the Python that `start` uses there; `python3` for others."""
        self.ssh_config = ssh_config
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._fanout = fanout
        self._selector = selectors.DefaultSelector()
        self._next_tick = 0.0
        self._looked_at = 0
        self._opened: list[Session] = []
        """Every connection whose client may exist: current ones, second ones, abandoned ones."""
        self._closed = False
        self._probes: dict[Session, PathProbe] = {}
        self._cleared: dict[Session, float] = {}
        """Sessions whose path passed the probe, and their `last_byte_s` at that time."""
        allow_open_files(len(self.hosts) * FDS_PER_NODE + FDS_SPARE)
        try:
            self._sessions = {host.name: self._session(host) for host in self.hosts}
            self._waiting = deque(self._sessions.values())
        except BaseException:
            self.close()
            raise

    def _session(self, host: Host) -> Session:
        link = self._pods.take(host.name) if self._pods else None
        token = link.loop if link else os.urandom(16).hex()
        self._opened.append(Session(host, self._way(host, token, link), token, self._selector))
        return self._opened[-1]

    def _way(self, host: Host, token: str, link: Link | None) -> Way:
        """This machine's shell, a pod's connection, a step of the allocation, or ssh."""
        if self._pods and host.name != self._pods.own:
            return Way(errors=functools.partial(Errors, *_POD_SHELL), link=link)
        if self._pods or host.local:
            env = for_jobs(without_secrets() if self._pods else os.environ)
            return Way(["sh", "-c", bootstrap.loop_script(token)], Errors, env)
        if host.in_slurm and not self.ssh_config and srun.is_here(os.environ):
            argv = srun.command(host, self.hosts, bootstrap.loop_script(token), os.environ)
            return Way(argv, srun.Errors, srun.environment(for_jobs(os.environ)))
        words = functools.partial(ssh.command, host, bootstrap.login_command(token), self.ssh_config)
        limit_s = self._connect_timeout_s
        return Way(words(limit_s), shared_argv=words(limit_s, shared=True))

    def _begin_waiting(self) -> None:
        """Open as many connections as the window allows, in the order of the nodes."""
        if not self._waiting:
            return
        room = self._fanout - self._logging_in()
        now = time.monotonic()
        for _ in range(len(self._waiting)):
            if room <= 0:
                return
            session = self._waiting.popleft()
            if session.state == "waiting" and session.not_before > now:
                self._waiting.append(session)
            elif session.state == "waiting":
                session.begin()
                room -= 1

    def _logging_in(self) -> int:
        return sum(session.is_logging_in for session in self._sessions.values())

    def reopen(self, node: str) -> None:
        """Abandon a node's connection and make a new one; requests on the old one end with an error."""
        old = self._sessions[node]
        if probe := self._probes.pop(old, None):
            probe.fresh.fail(_UNNEEDED)
        old.fail(Unreached("ssh-failed", "replaced by a new connection"))
        self._sessions[node] = self._session(old.host)
        self._waiting.appendleft(self._sessions[node])
        self._begin_waiting()

    def ask(
        self,
        scripts: Mapping[str, str],
        *,
        deadline_s: float,
        doing: str = "",
        on_answer: Callable[[Answer], None] | None = None,
        limit_bytes: int = 8 << 20,
    ) -> dict[str, Answer]:
        """
        Run an `sh` script on each named node in parallel, and wait for the answers.

        Its stdin is empty, its environment that of a non-interactive login; `ps` never shows it.  A node
        slower than `deadline_s` (from the call, or from the connection's turn) yields an `Answer` with
        `error` and its output so far.  Its script continues: give its commands their own deadlines.
        `on_answer` gets each answer as it arrives; `doing` describes the request in a progress line.  Limits:
        `limit_bytes` of stdout, 256 KiB of stderr.
        """
        questions = [_Question(self._sessions[node], deadline_s, limit_bytes) for node in scripts]
        for one in questions:
            one.request = one.session.submit("ask", scripts[one.node], one)
        return self._answers(questions, doing, on_answer)

    def run(
        self,
        program: str,
        arguments: Mapping[str, tuple[str, ...]] | tuple[str, ...],
        *,
        label: str,
        limit_s: float,
        most_bytes: int,
        doing: str = "",
    ) -> list[Answer]:
        """The output of one program on every node (once for simulated nodes); `arguments` may be by node."""
        if not isinstance(arguments, Mapping):
            arguments = {host.name: arguments for host in self.hosts}
        local = next((host for host in self.hosts if host.local), None)
        names = [host.name for host in self.hosts if not host.local or host is local]
        sessions = [self._sessions[name] for name in names if name in arguments]
        questions = [_Question(session, limit_s, most_bytes) for session in sessions]
        for one in questions:
            one.request = self.start(one.node, program, arguments[one.node], one, label=label)
        return [*self._answers(questions, doing).values()]

    @progress.line()
    def _answers(
        self, questions: list[_Question], doing: str, on_answer: Callable[[Answer], None] | None = None
    ) -> dict[str, Answer]:
        waiting, answers = questions, dict[str, Answer]()
        self._next_tick = 0.0
        while waiting:
            self.turn(TICK_S)
            now = time.monotonic()
            for answer in filter(None, [question.answer(now) for question in waiting]):
                answers[answer.node] = answer
                if on_answer is not None:
                    on_answer(answer)
            waiting = [question for question in waiting if question.node not in answers]
            if doing:
                names = [question.node for question in waiting]
                progress.show(progress.answered(doing, [one.node for one in questions], names))
        return {question.node: answers[question.node] for question in questions}

    def start(
        self,
        node: str,
        program: str,
        arguments: tuple[str, ...],
        listener: Listener,
        *,
        label: str = "ringup",
        outlives: bool = False,
    ) -> Request:
        """
        Start Python source `program` (3.8+, standard library) on a node, with stdin and stdout open.

        `arguments` become sys.argv[1:]; `label` becomes sys.argv[0], which `ps` on the node shows (never the
        arguments).  Without such an interpreter the exit code is 127.  Other requests to this node wait
        meanwhile.  `outlives`: on this machine `close` ends it by end of file, and does not wait for it.
        """
        self._next_tick = 0.0
        interpreter = self.interpreters.get(node, "python3")
        script, source = bootstrap.python_script(interpreter, label, program, arguments)
        return self._sessions[node].submit("run", script, listener, stdin=source, outlives=outlives)

    def noise(self, node: str) -> str:
        """Output of the node's shell before it answered, in one safe line; "" if there was none."""
        return self._sessions[node].show_noise()

    def turn(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` (0.1 s at most) for one batch from any node, and call the listeners."""
        if (now := time.monotonic()) >= self._next_tick:
            self._tick(now)
        if self._closed:
            return
        for key, _ in self._selector.select(max(0.0, min(timeout_s, TICK_S))):
            # A listener may have closed or replaced connections of the same batch, or all connections.
            if not self._closed and self._selector.get_map().get(key.fd) is key:
                key.data()
        if not self._closed:
            self._begin_waiting()

    def _tick(self, now: float) -> None:
        self._next_tick = now + TICK_S
        sessions = list(self._sessions.values())
        crowd = self._logging_in()
        for session in sessions:
            session.on_time(now, self._connect_timeout_s, self._answer_timeout_s, crowd)
            if session.state == "waiting" and session.not_before and session not in self._waiting:
                self._waiting.append(session)
        self._look_twice(sessions, now)
        self._opened = [
            one for one in self._opened if one.state != "dead" or (one.client and not one.client.is_gone(now))
        ]
        for _ in range(min(LOOKED_AT_PER_TICK, len(sessions))):
            self._looked_at = (self._looked_at + 1) % len(sessions)
            session = sessions[self._looked_at]
            if session.client is not None and session.state in ("connecting", "ready"):
                session.client.look()

    def _look_twice(self, sessions: Sequence[Session], now: float) -> None:
        """Open second connections to nodes whose answer does not come, and use them to judge the path."""
        if self._closed:
            return
        for session, probe in list(self._probes.items()):
            probe.fresh.on_time(now, self._connect_timeout_s, self._answer_timeout_s)
            verdict = probe.verdict()
            if verdict is True:
                continue
            del self._probes[session]
            probe.fresh.fail(_UNNEEDED)
            self._cleared[session] = session.last_byte_s
            if isinstance(verdict, Unreached):
                session.fail(verdict)
        for session in sessions:
            if len(self._probes) >= PROBES_AT_ONCE:
                return
            if session in self._probes or self._cleared.get(session) == session.last_byte_s:
                continue
            if session.is_overdue(now, OVERDUE_S):
                self._probes[session] = PathProbe(session, self._session(session.host))

    def close(self) -> None:
        """
        End every connection; may be called twice.  After 1 s only processes that outlive it are left here.

        Programs of `start` get end of file; wait for `on_exit` first if their clean-up must be finished.
        """
        if self._closed:
            return
        with signals_held(), ExitStack() as last:  # its callbacks are called even if a listener raises
            self._closed = True
            last.callback(self._selector.close)
            last.callback(self._reap)
            for session in self._opened:
                last.callback(session.fail, Unreached("ssh-failed", "closed"))

    def _reap(self) -> None:
        until = time.monotonic() + KILL_AFTER_S
        for session in self._opened:
            if session.client is not None:
                session.client.reap(max(0.0, until - time.monotonic()))

    def __enter__(self) -> Transport:
        """Clients start here, so that an exception between `open` and `with` leaves none."""
        try:
            self._begin_waiting()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_UNNEEDED = Unreached("ssh-failed", "no longer needed")
_POD_SHELL = ("the pod's shell", "the connection to the pod is lost: it has ended, or its network has")


class _Question:
    ERRORS_LIMIT_BYTES = 256 << 10
    FLOOD_BYTES = 16 << 20
    """A script that prints this much more than the limit will not end with an answer."""

    request: Request

    def __init__(self, session: Session, deadline_s: float, limit_bytes: int) -> None:
        self.session, self.node = session, session.host.name
        self._deadline_s = deadline_s
        self._limit_bytes = limit_bytes
        self._asked = time.monotonic()
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._truncated = False
        self.came_bytes = 0
        self._answer: Answer | None = None

    def on_output(self, data: bytes) -> None:
        self._keep(self._stdout, data, self._limit_bytes)

    def on_errors(self, data: bytes) -> None:
        self._keep(self._stderr, data, self.ERRORS_LIMIT_BYTES)

    def _keep(self, kept: bytearray, data: bytes, limit_bytes: int) -> None:
        room = limit_bytes - len(kept)
        kept += data[:room]
        self._truncated = self._truncated or len(data) > room
        self.came_bytes += len(data)
        if self.came_bytes > self._limit_bytes + self.FLOOD_BYTES:
            self.session.fail(self._flooded())

    def _flooded(self) -> Unreached:
        much = show_bytes(self.came_bytes)
        return Unreached("no-answer", f"its output does not end: {much} and no complete answer")

    def on_exit(self, code: int | None, error: Unreached | None) -> None:
        now, said = time.monotonic(), (bytes(self._stdout), bytes(self._stderr))
        took_s, silent_s = now - self._asked, now - self.session.last_byte_s
        self._answer = Answer(self.node, *said, code, error, took_s, silent_s, self._truncated)

    def answer(self, now: float) -> Answer | None:
        """The answer if there is one, or if the node is past its deadline."""
        if self._answer is None:
            # A node that was connected late gets as much time as the others.
            began = max(self._asked, self.session.began)
            if self.session.state == "waiting" or now - began < self._deadline_s:
                return None
            self.request.listener = None
            self.on_exit(None, self._overdue())
        return self._answer

    def _overdue(self) -> Unreached:
        limit_s = self._deadline_s
        if self.session.state == "connecting":
            return self.session.judged(self.session.errors.stuck(limit_s), limit_s)
        current = self.session.current
        if current is not None and current is not self.request and current.kind == "run":
            return Unreached("no-answer", "not queried: a program runs on this node's connection")
        if self._truncated:  # this much output shows that it had enough time
            return self._flooded()
        came = f"{show_bytes(len(self._stdout))} came" if self._stdout else "nothing came"
        failure = Unreached("no-answer", f"no complete answer within {show_seconds(limit_s)}; {came}")
        return self.session.judged(failure, limit_s)


class PathProbe:
    """
    A second connection to a node whose answer does not come: is the script slow, or the path broken?

    TCP delivers in order: after one lost long packet nothing arrives any more, which looks like a slow
    script.  A second connection needs long packets for its key exchange, and for the answer requested.
    """

    def __init__(self, watched: Session, fresh: Session) -> None:
        self.watched, self.fresh = watched, fresh
        self._last_byte_s = watched.last_byte_s
        self._limit_s = min(STUCK_MOST_S, max(STUCK_S, PACE * watched.ready_after_s))
        self._answer = _Question(fresh, math.inf, LONG_BYTES)
        fresh.submit("ask", f"head -c {LONG_BYTES} /dev/zero", self._answer)
        fresh.begin()

    def verdict(self) -> Unreached | bool:
        """True while undecided, False if the path works, else the path's problem."""
        if self.watched.state != "ready" or self.watched.last_byte_s != self._last_byte_s:
            return False
        if self.fresh.state == "dead":
            why = self.fresh.failure
            if why is None or why.kind not in ("ssh-timeout", "ssh-no-route"):
                return False
            words = f"the answer stopped coming, and a second connection fails: {why.words}"
            return Unreached(why.kind, words)
        if self._answer.came_bytes >= LONG_BYTES:
            return False
        if time.monotonic() - self.fresh.last_byte_s < self._limit_s:
            return True
        phase = self.fresh.errors.phase
        # Without even sshd's banner, which is short, the node hangs or is starved: the path is not at fault.
        if Phase.BANNER <= phase < Phase.KEYS or self.fresh.state == "ready":
            request = self.watched.current
            lost = "its long answer" if request is not None and request.has_begun else "the long request"
            words = f"short packets pass, {lost} does not; a second connection stops at long ones, too"
            failure = self.fresh.judged(Unreached("ssh-long-answer-lost", words), self._limit_s)
            # This machine, if starved, cannot judge a path; the answer may still come.
            return False if failure.kind == "no-cpu-time" else failure
        # Not connected at all: ssh's own timeout gives the error text.
        return phase < Phase.CONNECTED
