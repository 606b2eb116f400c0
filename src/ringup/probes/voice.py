"""One node in the round of pairs: what it said, and how to talk to it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ringup.facts import Node, Unreached
from ringup.probes import schedule
from ringup.probes.schedule import Target
from ringup.reach import Channel
from ringup.units import printable

ANSWER_LIMIT_BYTES = 16 << 20
"""What one node may say; beyond it the node is not believed."""
ERRORS_KEPT_BYTES = 2000


class Voice:
    """One node in the round: what it said, and how to talk to it."""

    def __init__(self, node: Node, answer: str) -> None:
        self.node = node
        self.answer = answer
        """The token it gives to those who connect."""
        self.endpoints = schedule.endpoints(node)
        self.channel: Channel | None = None
        self.failure = ""
        self.ready: dict[str, Any] | None = None
        self.targets: list[Target] = []
        self.rows: list[list[Any]] = []
        self.half_open: list[list[Any]] = []
        self.names: list[list[Any]] | None = None
        self.reverse: list[list[Any]] | None = None
        self.counted: Any = None
        """Its counters when all was tried, as it told them."""
        self.waited_s = 0.0
        """How long its program had no processor."""
        self.done = False
        self.looked_up = False
        self._rest = b""
        self._errors = b""
        self._heard_bytes = 0

    @property
    def listening(self) -> bool:
        """Whether peers can try it."""
        return self.ready is not None

    def say(self, **order: Any) -> None:
        """One order, lost silently once the node is gone."""
        if self.channel is not None:
            self.channel.write(json.dumps(order).encode() + b"\n")

    def hear(self, data: bytes) -> None:
        """Bytes of the payload's stdout, in any cut."""
        self._heard_bytes += len(data)
        if self._heard_bytes > ANSWER_LIMIT_BYTES:
            self.fail(f"said more than {ANSWER_LIMIT_BYTES >> 20} MiB")
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                # A login script may print; whoever prints instead of the payload never gets ready.
                self._errors = (self._errors + line + b"\n")[-ERRORS_KEPT_BYTES:]

    def hear_errors(self, data: bytes) -> None:
        """Bytes of stderr: the last of them are the reason when it fails."""
        self._errors = (self._errors + data)[-ERRORS_KEPT_BYTES:]

    def fail(self, reason: str) -> None:
        """Nothing more is expected of it."""
        self.failure = self.failure or reason

    def ended(self, code: int | None, error: Unreached | None) -> None:
        """The program is gone."""
        last = self._errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        if error is not None:
            self.fail(error.words)
        elif not self.done:
            self.fail(f"the pair test ended with {code}" + (f": {printable(last, 200)}" if last else ""))

    def _take(self, message: dict[str, Any]) -> None:
        kind = message["op"]
        if kind == "ready":
            self.ready = message
        elif kind == "links":
            self.rows += lists(message["links"], 13)
        elif kind == "half":
            self.half_open += lists(message["seen"], 3)
        elif kind == "looked-up":
            self.names, self.reverse = lists(message["names"], 4), lists(message["reverse"], 4)
            self.looked_up = True
        elif kind == "done":
            self.done = True
            self.counted = message.get("counters")
            self.waited_s = seconds(message.get("waited"))


def seconds(value: Any) -> float:
    """
    A time that a node told; 0.0 for what is none.

    >>> seconds(1), seconds(-1), seconds("x")
    (1.0, 0.0, 0.0)
    """
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else 0.0


def lists(value: Any, length: int) -> list[list[Any]]:
    """The rows of that length in what a node said."""
    return [row for row in value if isinstance(row, list) and len(row) == length]


def integers(message: Mapping[str, Any] | None, name: str) -> list[int]:
    """A list of ports a node named, without anything else it may have said."""
    value = (message or {}).get(name)
    return [p for p in value if isinstance(p, int) and 0 < p < 65536] if isinstance(value, list) else []


def listened(voice: Voice) -> Iterable[tuple[str, int]]:
    """(address, port) a node says it listens on."""
    ports = (voice.ready or {}).get("ports")
    known = {e.address for e in voice.endpoints}
    if isinstance(ports, dict):
        for address, port in ports.items():
            if address in known and isinstance(port, int) and 0 < port < 65536:
                yield address, port
