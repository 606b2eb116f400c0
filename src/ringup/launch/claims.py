"""
The rendezvous port of a run on this machine, kept from the check until the run has ended.

Two runs begun in the same seconds both find a port free, for neither listens yet.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO


class Claims:
    """Ports this process has claimed among the user's runs here; given up when it ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: list[IO[bytes]] = []

    def take(self, port: int) -> bool:
        """Whether no other run has claimed the port; true, too, where nothing can be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / f"port-{port}.lock").open("ab")
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        except OSError:  # a file system without locks
            file.close()
            return True
        self._held.append(file)
        return True
