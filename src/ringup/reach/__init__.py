"""
The only door to other machines.

A `Reach` holds one connection per node for the whole of a command.  On it scripts are
asked (`ask`) and programs are talked to (`start`).  Nothing here raises because a node
fails: a failure is an `Answer` with its `error`, or an `on_exit`.

    open          the one constructor
    boot          the loop that waits on a node; frames of requests and answers
    ssh           OpenSSH's client: its command line, how far it got, what its words mean
    client        the process with its pipes
    session       one node's connection and the requests on it
    cpu           how long processes here waited for a processor
    witness       a second connection to a node whose answer does not come
    connections   all of them under one loop
    proof         two pods prove to each other that they share a token
    pods          the first of N pods without ssh hears the others; pod_peer is what those do
    wire          a waiting shell in another pod, over the connections it opened
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ringup.facts import Host, Unreached

if TYPE_CHECKING:
    from ringup.reach.pods import Pods


@dataclass(frozen=True)
class Answer:
    """What one node said to one script; output beyond the bound is cut and `truncated` says so."""

    node: str
    stdout: bytes = b""
    stderr: bytes = b""
    code: int | None = None
    """The script's exit status; None when there was no complete answer."""
    error: Unreached | None = None
    took_s: float = 0.0
    silent_s: float = math.inf
    """How long nothing had come when it was given up."""
    truncated: bool = False


class Listener(Protocol):
    """Who hears a program on a node; called from `Reach.turn` and `Reach.ask` only."""

    def on_output(self, node: str, data: bytes) -> None:
        """Bytes of the program's stdout, in any cut."""

    def on_errors(self, node: str, data: bytes) -> None:
        """Bytes of the program's (or ssh's) stderr, in any cut."""

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The program ended with `code`, or the connection was lost (`code` None, `error` says how)."""


class Channel(Protocol):
    """A program running on a node, its stdin open."""

    def write(self, data: bytes) -> None:
        """Send bytes to the program's stdin; never blocks; lost silently once the node is gone."""

    def close_stdin(self) -> None:
        """End of file on the program's stdin (and the end of this node's connection)."""


class Reach(Protocol):
    """One connection to each node; a context manager that closes them."""

    hosts: tuple[Host, ...]
    interpreters: dict[str, str]
    """Node name -> the Python that `start` uses there; `python3` where there is none."""

    def ask(
        self,
        scripts: Mapping[str, str],
        *,
        deadline_s: float,
        on_answer: Callable[[Answer], None] | None = None,
        limit_bytes: int = 8 << 20,
    ) -> dict[str, Answer]:
        """
        Run an `sh` script on each named node, side by side, and wait for the answers.

        Its stdin is empty, its environment that of a non-interactive login; it may be of any length
        and never stands in `ps`.  A node slower than `deadline_s` yields an `Answer` with `error` and
        what came so far; it never delays the others beyond that.  (The time counts from the call, or
        from when the connection was begun where more nodes than `fanout` take turns.)  A script that
        overran goes on on its node: give its commands deadlines of their own.  `on_answer` hears each
        answer as it comes.  stdout is kept up to `limit_bytes`, stderr up to 256 KiB.
        """

    def start(
        self,
        node: str,
        program: str,
        arguments: tuple[str, ...],
        listener: Listener,
        *,
        label: str = "ringup",
    ) -> Channel:
        """
        Start Python source `program` (3.8+, standard library) on a node, stdin and stdout open.

        `arguments` become sys.argv[1:]; `label` becomes sys.argv[0], and `ps` on the node shows it (never
        the arguments) as the last words of `python3 -c ...`.  Where there is no such interpreter the
        exit code is 127 and the words are on stderr.  While it runs, other requests to this node wait.
        """

    def turn(self, timeout_s: float) -> None:
        """
        Wait up to `timeout_s` for anything from any node, call the listeners, return after one batch.

        May return earlier, so that a flag set by a signal handler is seen.
        """

    def reopen(self, node: str) -> None:
        """Give up a node's connection, dead or alive, and begin a fresh one."""

    def noise(self, node: str) -> str:
        """What the node's shell printed before it answered, in one safe line; "" for a quiet one."""

    def close(self) -> None:
        """
        End every connection; may be called twice.

        Programs of `start` get end of file; wait for their `on_exit` first if they are to clean up in view.
        """

    def __enter__(self) -> Reach: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def open(
    hosts: Sequence[Host],
    *,
    ssh_config: str | None = None,
    connect_timeout_s: float = 10.0,
    answer_timeout_s: float = 30.0,
    fanout: int = 64,
    pods: Pods | None = None,
) -> Reach:
    """
    Begin the connections to all nodes, `fanout` at a time, and return at once.

    `connect_timeout_s`: silence allowed to TCP connect, key exchange and login, each;
    `answer_timeout_s`: what a node's login shell may then take to start; `pods`: gathered ones are
    reached by the connections they have opened.
    """
    from ringup.reach.connections import Connections

    return Connections(
        hosts,
        ssh_config=ssh_config,
        connect_timeout_s=connect_timeout_s,
        answer_timeout_s=answer_timeout_s,
        fanout=fanout,
        pods=pods,
    )
