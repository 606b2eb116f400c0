"""
The only door to other machines.

A `Reach` holds one connection per node for the whole of a command.  On it scripts are
asked (`ask`) and programs are talked to (`start`).  Nothing here raises because a node
fails: a failure is an `Answer` with its `error`, or an `on_exit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ringup.facts import Host, Unreached


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
    """One connection to each node."""

    hosts: tuple[Host, ...]

    def ask(
        self,
        scripts: Mapping[str, str],
        *,
        deadline_s: float,
        on_answer: Callable[[Answer], None] | None = None,
    ) -> dict[str, Answer]:
        """
        Run an `sh` script on each named node, side by side, and wait for the answers.

        A node slower than `deadline_s` yields an `Answer` with `error`; it never delays the others
        beyond that.
        """

    def start(self, node: str, program: str, arguments: tuple[str, ...], listener: Listener) -> Channel:
        """
        Start Python source `program` (3.8+, standard library) on a node, stdin and stdout open.

        `arguments` become sys.argv[1:].  The node's `python3` runs it, or the interpreter named
        by `interpreters[node]`.
        """

    def turn(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for anything from any node, call the listeners, return after one batch."""

    def close(self) -> None:
        """End every connection; may be called twice."""
