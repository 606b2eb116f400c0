"""
All nodes' connections under one `selectors` loop; the one implementation of `Reach`.

ClusterShell's Task was tried as the engine and is not it (1.10.1, measured): `resume(timeout)`
ends every worker when its time is over, so a caller cannot take turns with it; its clients cut
lines before they hand out anything, so output without a newline is neither seen nor bounded
(300 MB of it: over 500 MB of memory and, quadratic, not done after 8 minutes of CPU); and
how far ssh got cannot be learnt from it.  Node sets stay ClusterShell's.
"""

from __future__ import annotations

import os
import resource
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from ringup.facts import Host, Unreached
from ringup.hosts.pod import without_secrets
from ringup.reach import Answer, Listener, boot, srun, ssh, wire
from ringup.reach.pods import Pods
from ringup.reach.session import Request, Session, Way
from ringup.reach.wire import Line
from ringup.reach.witness import OVERDUE_S, Witness
from ringup.units import show_bytes, show_seconds

TICK_S = 0.1
"""How often deadlines are looked at, and the longest a `turn` waits: a signal handler's flag is seen soon."""
WITNESSES_AT_ONCE = 4
"""A slow cluster is not to be made slower by second connections."""
LOOKED_AT_PER_TICK = 256
FDS_PER_NODE = 3
FDS_SPARE = 128


class Connections:
    """One connection per node, opened side by side, at most `fanout` of them connecting at a time."""

    def __init__(
        self,
        hosts: Sequence[Host],
        *,
        ssh_config: str | None = None,
        connect_timeout_s: float = 10.0,
        answer_timeout_s: float = 30.0,
        fanout: int = 64,
        pods: Pods | None = None,
    ) -> None:
        self.hosts = tuple(hosts)
        self._pods = pods
        self.interpreters: dict[str, str] = {}
        self._ssh_config = ssh_config
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._fanout = fanout
        self._selector = selectors.DefaultSelector()
        self._number = 0
        self._next_tick = 0.0
        self._looked_at = 0
        self._ended: list[Session] = []
        self._closed = False
        self._witnesses: dict[Session, Witness] = {}
        self._cleared: dict[Session, float] = {}
        """Sessions whose path was found fine, and their `heard` at that time."""
        allow_open_files(len(self.hosts) * FDS_PER_NODE + FDS_SPARE)
        self._sessions = {host.name: self._session(host) for host in self.hosts}
        self._waiting = deque(self._sessions.values())
        self._begin_waiting()

    # -- opening -------------------------------------------------------------------------------

    def _session(self, host: Host) -> Session:
        line = self._pods.take(host.name) if self._pods else None
        token = line.token if line else boot.new_token()
        return Session(host, self._way(host, token, line), token, self._selector)

    def _way(self, host: Host, token: str, line: Line | None) -> Way:
        """This machine's shell, what a pod has opened, a step of the allocation, or ssh."""
        if self._pods:
            own = host.name == self._pods.own
            return Way(
                ["sh", "-c", boot.loop_script(token)],
                wire.Errors,
                env=without_secrets(),
                is_ssh=False,
                is_wire=not own,
                line=line,
            )
        if host.local:
            return Way(["sh", "-c", boot.loop_script(token)], is_ssh=False)
        if host.in_slurm and not self._ssh_config and srun.is_here(os.environ):
            argv = srun.command(host, self.hosts, boot.loop_script(token), os.environ)
            return Way(argv, srun.Errors, srun.environment(os.environ), is_ssh=False)
        argv, shared_argv = (
            ssh.command(
                host,
                boot.login_command(token),
                ssh_config=self._ssh_config,
                connect_timeout_s=self._connect_timeout_s,
                shared=shared,
            )
            for shared in (False, True)
        )
        return Way(argv, shared_argv=shared_argv)

    def _begin_waiting(self) -> None:
        """Open what the window allows, in the order of the nodes."""
        if not self._waiting:
            return
        room = self._fanout - self._logging_in()
        now = time.monotonic()
        for _ in range(len(self._waiting)):
            if room <= 0:
                return
            session = self._waiting.popleft()
            if session.state != "waiting":
                continue
            if session.not_before > now:
                self._waiting.append(session)
                continue
            session.begin()
            room -= 1

    def _logging_in(self) -> int:
        return sum(session.is_logging_in for session in self._sessions.values())

    def reopen(self, node: str) -> None:
        """Give up a node's connection and make a fresh one; what ran on the old one ends with an error."""
        old = self._sessions[node]
        self._give_up(old, "given up for a fresh connection")
        self._sessions[node] = self._session(old.host)
        self._waiting.appendleft(self._sessions[node])
        self._begin_waiting()

    def _give_up(self, session: Session, words: str) -> None:
        session.fail(Unreached("ssh-failed", words))
        self._ended.append(session)

    # -- what is asked -------------------------------------------------------------------------

    def ask(
        self,
        scripts: Mapping[str, str],
        *,
        deadline_s: float,
        on_answer: Callable[[Answer], None] | None = None,
        limit_bytes: int = 8 << 20,
    ) -> dict[str, Answer]:
        """As `Reach.ask`."""
        asked = [
            _Question(self._sessions[node], script, self._next_number(), deadline_s, limit_bytes)
            for node, script in scripts.items()
        ]
        answers: dict[str, Answer] = {}
        self._next_tick = 0.0
        waiting = asked
        while waiting:
            self.turn(TICK_S)
            now = time.monotonic()
            still = []
            for question in waiting:
                answer = question.answer(now)
                if answer is None:
                    still.append(question)
                    continue
                answers[answer.node] = answer
                if on_answer is not None:
                    on_answer(answer)
            waiting = still
        return {node: answers[node] for node in scripts}

    def start(
        self,
        node: str,
        program: str,
        arguments: tuple[str, ...],
        listener: Listener,
        *,
        label: str = "ringup",
    ) -> Program:
        """As `Reach.start`."""
        session = self._sessions[node]
        number = self._next_number()
        interpreter = self.interpreters.get(node, "python3")
        body = boot.python_request(session.token, number, interpreter, label, program, arguments)
        request = Request("run", number, body, listener)
        session.submit(request)
        self._next_tick = 0.0
        return Program(session, request)

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def noise(self, node: str) -> str:
        """What the node's shell printed before it answered, in one safe line; "" for a quiet one."""
        return self._sessions[node].show_noise()

    # -- the loop ------------------------------------------------------------------------------

    def turn(self, timeout_s: float) -> None:
        """As `Reach.turn`; returns after 0.1 s at the latest."""
        now = time.monotonic()
        if now >= self._next_tick:
            self._tick(now)
        if self._closed:
            return
        for key, _ in self._selector.select(max(0.0, min(timeout_s, TICK_S))):
            # A listener may have closed or replaced connections of this same batch, or all.
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
        for _ in range(min(LOOKED_AT_PER_TICK, len(sessions))):
            self._looked_at = (self._looked_at + 1) % len(sessions)
            sessions[self._looked_at].look_at_process()

    def _look_twice(self, sessions: Sequence[Session], now: float) -> None:
        """Open second connections to nodes whose answer does not come, and hear what those tell."""
        if self._closed:
            return
        for session, witness in list(self._witnesses.items()):
            witness.fresh.on_time(now, self._connect_timeout_s, self._answer_timeout_s)
            verdict = witness.verdict()
            if verdict is True:
                continue
            del self._witnesses[session]
            self._ended.append(witness.end())
            self._cleared[session] = session.heard
            if isinstance(verdict, Unreached):
                session.fail(verdict)
        for session in sessions:
            if len(self._witnesses) >= WITNESSES_AT_ONCE:
                return
            if session.is_overdue(now, OVERDUE_S) and self._cleared.get(session) != session.heard:
                self._witnesses.setdefault(session, Witness(session, self._session(session.host)))

    def close(self) -> None:
        """End every connection; may be called twice."""
        if self._closed:
            return
        self._closed = True
        self._ended += [witness.end() for witness in self._witnesses.values()]
        for session in self._sessions.values():
            self._give_up(session, "closed")
        until = time.monotonic() + 1.0
        for session in self._ended:
            session.reap(max(0.0, until - time.monotonic()))
        self._selector.close()

    def __enter__(self) -> Connections:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Program:
    """A program running on a node: the `Channel` that `start` gives."""

    def __init__(self, session: Session, request: Request) -> None:
        self._session = session
        self._request = request

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin; never blocks; lost silently once the node is gone."""
        self._session.write(self._request, data)

    def close_stdin(self) -> None:
        """End of file on the program's stdin, and the end of this connection once the program has ended."""
        self._session.close_stdin(self._request)


class _Question:
    """A script on a node and what has come of its answer."""

    ERRORS_LIMIT_BYTES = 256 << 10

    def __init__(
        self, session: Session, script: str, number: int, deadline_s: float, limit_bytes: int
    ) -> None:
        self._session = session
        self._deadline_s = deadline_s
        self._limit_bytes = limit_bytes
        self._asked = time.monotonic()
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._truncated = False
        self._end: tuple[int | None, Unreached | None] | None = None
        self._ended_at = 0.0
        self._request = Request("ask", number, boot.request(session.token, "ask", number, script), self)
        session.submit(self._request)

    def on_output(self, node: str, data: bytes) -> None:
        """Keep up to the limit."""
        self._keep(self._stdout, data, self._limit_bytes)

    def on_errors(self, node: str, data: bytes) -> None:
        """Keep up to the limit."""
        self._keep(self._stderr, data, self.ERRORS_LIMIT_BYTES)

    def _keep(self, kept: bytearray, data: bytes, limit_bytes: int) -> None:
        room = limit_bytes - len(kept)
        kept += data[:room]
        self._truncated = self._truncated or len(data) > room

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The script has ended, or the node is lost."""
        self._end = (code, error)
        self._ended_at = time.monotonic()

    def answer(self, now: float) -> Answer | None:
        """The answer once there is one; a node past its deadline has one, too."""
        if self._end is None:
            # A node whose turn to be connected came late has the same time as the others.
            began = max(self._asked, self._session.began)
            if self._session.state == "waiting" or now - began < self._deadline_s:
                return None
            self._request.sink = None
            self.on_exit(self._session.host.name, None, self._overdue())
        assert self._end is not None
        return Answer(
            self._session.host.name,
            bytes(self._stdout),
            bytes(self._stderr),
            self._end[0],
            self._end[1],
            self._ended_at - self._asked,
            self._ended_at - self._session.heard,
            self._truncated,
        )

    def _overdue(self) -> Unreached:
        limit_s = self._deadline_s
        if self._session.state == "connecting":
            return self._session.judged(self._session.stuck(limit_s), limit_s)
        if self._session.is_running_program:
            return Unreached("no-answer", "not asked: a program runs on this node's connection")
        came = f"{show_bytes(len(self._stdout))} came" if self._stdout else "nothing came"
        failure = Unreached("no-answer", f"no complete answer within {show_seconds(limit_s)}; {came}")
        return self._session.judged(failure, limit_s)


def allow_open_files(count: int) -> None:
    """Raise this process's soft limit of open files towards `count`, as far as the hard one goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            # macOS refuses values above kern.maxfilesperproc; connections past it then say so.
            return
