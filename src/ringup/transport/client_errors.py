"""The stderr of a node's client: separates the client's own lines, which explain failures, from others."""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from ringup.model import Unreached
from ringup.units import show_seconds, signal_name

Phase = IntEnum("Phase", "BEGUN PROXIED RESOLVED CONNECTED BANNER KEYS LOGGED_IN", start=0)
"""Progress of a connection, in order."""


class Errors:
    """stderr of a shell without a client (here, or in another pod): all of it is the node's."""

    phase = Phase.LOGGED_IN

    def __init__(self, who: str = "the shell here", lost: str = "") -> None:
        self._who, self._lost = who, lost

    def feed(self, data: bytes) -> bytes:
        """The bytes of the node; the beginning of a line that may be the client's is held back."""
        return data

    def was_dropped(self) -> bool:
        """Whether a second try may succeed."""
        return False

    def ended_early(self, code: int, noise: str) -> Unreached:
        """Why it ended before the node's shell had answered."""
        return Unreached("no-answer", f"{self._who} ended with {code}" + (f": {noise}" if noise else ""))

    def stuck(self, silent_s: float) -> Unreached:
        """Why nothing was received for `silent_s`."""
        return Unreached("no-answer", f"{self._who} did not answer within {show_seconds(silent_s)}")

    def lost(self, code: int) -> Unreached:
        """Why it ended after it had worked."""
        return Unreached("no-answer", self._lost or f"{self._who} ended with {code}")


class ClientErrors(Errors):
    """stderr of ssh or srun: debug lines are removed, the last lines of the client and the node are kept."""

    CHATTER: tuple[bytes, ...]
    """Prefixes of lines that are removed."""
    MARKS: tuple[bytes, ...]
    """Every line of the client contains one of these: a node's flood without them is not split into lines."""
    KEPT_LINES = 20
    LONGEST_LINE = 8192

    def __init__(self) -> None:
        self._own: deque[str] = deque(maxlen=self.KEPT_LINES)
        self._others: deque[str] = deque(maxlen=self.KEPT_LINES)
        self._line = b""
        self._passed = False
        """Whether the beginning of this line has already been passed on."""

    def _is_own(self, line: bytes) -> bool:
        raise NotImplementedError

    def _note(self, line: bytes) -> None:
        self._own.append(_text(line))

    def feed(self, data: bytes) -> bytes:
        first, newline, rest = data.partition(b"\n")
        end = rest.rfind(b"\n") + 1
        lines, last = rest[:end], rest[end:]
        passed = [self._piece(first + newline)] if data else []
        if any(mark in lines for mark in self.MARKS):
            passed += [self._piece(line + b"\n") for line in lines.split(b"\n")[:-1]]
        else:
            passed.append(lines)
            self._others.extend(map(_text, lines.rsplit(b"\n", self.KEPT_LINES + 1)[:-1]))
        if last:
            passed.append(self._piece(last))
        return b"".join(passed)

    def _piece(self, piece: bytes) -> bytes:
        ends, passed = piece.endswith(b"\n"), self._passed
        line = self._line + piece
        begun = not ends and any(c.startswith(line) for c in self.CHATTER)
        if not passed and (begun or line.startswith(self.CHATTER)):
            if not ends and len(line) < self.LONGEST_LINE:
                self._line = line
                return b""
            if ends and self._is_own(line):
                self._line = b""
                self._note(line)
                return b""
        if ends:
            (self._own if self._is_own(line) else self._others).append(_text(line))
        self._line = b"" if ends else line[: self.LONGEST_LINE]
        self._passed = not ends
        return piece if passed else line


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").strip()


def how_ended(client: str, code: int) -> str:
    """
    >>> how_ended("ssh", -9), how_ended("ssh", 255)
    ('ssh was ended by SIGKILL', 'ssh ended with 255')
    """
    return f"{client} ended with {code}" if code >= 0 else f"{client} was ended by {signal_name(-code)}"
