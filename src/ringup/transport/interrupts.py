"""The user's signals: one requests a clean end, two end at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """
    Counts signals while it is entered; read between two turns of the loop.

    A SIGHUP that was already ignored (nohup) stays ignored.  Ctrl-Z is refused: a stopped launcher sends no
    beats, and the nodes would end the run when the lease ends.
    """

    def __init__(self, *more: signal.Signals) -> None:
        """`more` signals count like those that end a process."""
        self._numbers = (*ENDING, *more)
        self.first: signal.Signals | None = None
        self.count = 0
        self.refused_stop = False
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """128 + the first signal's number: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + (self.first or signal.SIGINT)

    @property
    def name(self) -> str:
        return self.first.name if self.first else ""

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.first = self.first or signal.Signals(number)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.refused_stop = True

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._heard)
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._stop)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            with contextlib.suppress(TypeError, ValueError):
                signal.signal(number, handler)
