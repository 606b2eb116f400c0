"""`--follow`: read growing files until told to stop, and say so each time the first cause changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ringup.logs import counts, dumps, files
from ringup.logs.answer import causes_of
from ringup.logs.causes import Cause
from ringup.logs.evidence import LogEvidence
from ringup.logs.files import FileInfo
from ringup.logs.scan import Scanner, joined

POLL_S = 1.0
STEP_BYTES = 8 << 20
"""Read of one file between two looks, so that one huge file does not keep the others waiting."""


class Growing:
    """One file that is being written."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._inode = 0
        self._begin()

    def _begin(self) -> None:
        self.scanner, self._offset = Scanner(), 0
        self.ledger = counts.Ledger(other=self.scanner.feed)

    def step(self) -> bool:
        """Read what was added; whether anything was.  A file that shrank or was replaced is read anew."""
        try:
            with open(self.path, "rb") as stream:
                state = os.fstat(stream.fileno())
                if state.st_size < self._offset or (self._inode and state.st_ino != self._inode):
                    self._begin()
                self._inode = state.st_ino
                stream.seek(self._offset)
                data = stream.read(STEP_BYTES)
        except OSError:
            return False
        self._offset += len(data)
        self.ledger.feed(data)
        return bool(data)


class Watch:
    """Files and directories that are looked at again and again."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = [p for p in paths if p != "-"]
        self._files: dict[str, Growing] = {}
        self._dumps: dict[str, tuple[int, int]] = {}

    def step(self) -> bool:
        """Look once at everything, new files included; whether anything was added."""
        found, _ = files.find(self.paths)
        news = False
        for path in found:
            if path in self._files or not (stamp := _stamp(path)):
                continue
            if path in self._dumps or files.is_dump(path):
                news = news or self._dumps.get(path) != stamp
                self._dumps[path] = stamp
            elif files.is_plain(path):
                self._files[path] = Growing(path)
        return sum(f.step() for f in self._files.values()) > 0 or news

    def story(self) -> LogEvidence:
        """The story so far."""
        growing = list(self._files.values())
        scans = [joined(f.scanner.result(), n, f.ledger.part.comms.values()) for n, f in enumerate(growing)]
        recorded = dumps.read(list(self._dumps))[0]
        infos = [FileInfo(f.path, f.ledger.updated().lines) for f in growing]
        return LogEvidence([*infos, *recorded.infos()], scans, recorded=recorded)


def _stamp(path: str) -> tuple[int, int] | None:
    """What changes when a file is written; None while it is empty: then nobody knows what it will be."""
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return (state.st_mtime_ns, state.st_size) if state.st_size else None


def changes(
    paths: Sequence[str], stop: Callable[[], bool] = lambda: False, poll_s: float = POLL_S
) -> Iterator[tuple[LogEvidence, list[Cause]]]:
    """The story and its causes each time the first cause or its confidence changes, until `stop` says so."""
    watch = Watch(paths)
    said: tuple[str, str] | None = None
    while not stop():
        if watch.step():
            story = watch.story()
            causes = causes_of(story, is_growing=True)
            now = (causes[0].rule, causes[0].confidence) if causes else None
            if now is not None and now != said:
                yield story, causes
            said = now
            continue
        time.sleep(poll_s)
