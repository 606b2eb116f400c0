"""
Writing that must never hold up the beats to the nodes: a thread with a bounded queue.

A terminal stopped by Ctrl-S or a dead file server blocks the thread alone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Pump:
    """Runs actions one after the other; `put` refuses when too much is waiting."""

    def __init__(self, name: str, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._bytes = 0
        self._change = threading.Condition()
        self._closed = False
        self.problem = ""
        """What an action failed with; those after it are done all the same."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, action: Callable[[], None], size_bytes: int) -> bool:
        """Queue an action that writes that much; False when there is no room."""
        with self._change:
            if self._closed or self._bytes + size_bytes > self._most_bytes:
                return False
            self._waiting.append((action, size_bytes))
            self._bytes += size_bytes
            self._change.notify()
            return True

    def close(self, timeout_s: float) -> bool:
        """Finish what is waiting; False when that takes longer than `timeout_s`, and it is then given up."""
        with self._change:
            self._closed = True
            self._change.notify()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._change:
                while not self._waiting:
                    if self._closed:
                        return
                    self._change.wait()
                action, size_bytes = self._waiting.popleft()
            try:
                action()
            except Exception as error:  # a thread that ends here would lose all that follows
                self.problem = self.problem or f"{error!r} (please report this)"
            with self._change:
                self._bytes -= size_bytes
