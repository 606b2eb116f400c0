"""Everything that a program on one node prints, bounded, and why there may be nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ringup.facts import Host, Unreached
from ringup.units import printable


@dataclass
class Hearing:
    """A `Sink` for a program whose answer is read once it is complete."""

    node: str
    most_bytes: int
    data: bytearray = field(default_factory=bytearray)
    errors: bytes = b""
    done: bool = False
    error: str = ""
    """One line, safe to print; "" when the program ended with 0."""

    def on_output(self, node: str, data: bytes) -> None:
        """Part of the answer."""
        if len(self.data) < self.most_bytes:
            self.data += data

    def on_errors(self, node: str, data: bytes) -> None:
        """Why there may be none."""
        self.errors = (self.errors + data)[-4096:]

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The answer is complete, or never will be."""
        self.done = True
        if error is not None:
            self.error = printable(error.words, 400)
        elif code != 0:
            lines = self.errors.decode("utf-8", "replace").strip().splitlines()
            self.error = printable(lines[-1], 400) if lines else f"exit code {code}"


def one_per_machine(hosts: Iterable[Host]) -> list[Host]:
    """Nodes played on one machine are one machine: only the first of them is asked."""
    found: list[Host] = []
    for host in hosts:
        if not (host.local and any(other.local for other in found)):
            found.append(host)
    return found
