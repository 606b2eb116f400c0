"""`--follow`: read growing files until stopped, and report each change of the first cause."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ringup.logs import counts, dumps, files
from ringup.logs.answer import causes_of
from ringup.logs.causes import Cause
from ringup.logs.evidence import LogEvidence
from ringup.logs.files import FileInfo
from ringup.logs.read import mismatches_of
from ringup.logs.scan import Scanner, joined

POLL_S = 1.0
STILL_S = 60.0
"""Seconds without a new line after which a rank counts as behind: its lines may be late."""
CATCH_UP_S = 5.0
"""Seconds between diagnoses while there is more to read."""
REST = 3
"""Pause after a diagnosis, as a multiple of its duration: a growing log must not keep a CPU busy."""
STEP_BYTES = 8 << 20
"""Bytes read of one file between two diagnoses, so that one huge file does not delay the others."""


class Growing:
    """A file that is being written."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._inode = 0
        self.is_at_end = True
        self._begin()

    def _begin(self) -> None:
        self.scanner, self._offset = Scanner(), 0
        self.ledger = counts.Ledger(None, self.scanner.take, words=self.scanner.words)

    def step(self) -> bool:
        """Read new bytes; returns whether there were any.  A shorter or new file is read from the start."""
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
        self.is_at_end = len(data) < STEP_BYTES
        return bool(data)


class Watch:
    """Files and directories that are read again and again."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = [p for p in paths if p != "-"]
        self._files: dict[str, Growing] = {}
        self._dumps: dict[str, tuple[int, int]] = {}

    def step(self) -> bool:
        """Read everything once, new files included; returns whether anything was added."""
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

    @property
    def is_at_end(self) -> bool:
        return all(file.is_at_end for file in self._files.values())

    def story(self, is_still: bool) -> LogEvidence:
        """The evidence so far; ranks count as behind only while nothing is being written."""
        growing = list(self._files.values())
        parts = {file.path: file.ledger.updated() for file in growing}
        scans = [joined(f.scanner.result(), n, f.ledger.part.comms.values()) for n, f in enumerate(growing)]
        run, recorded = counts.join(parts), dumps.read(list(self._dumps))[0]
        infos = [FileInfo(path, part.lines) for path, part in parts.items()]
        mismatches = mismatches_of(run, [])
        run = run if is_still else replace(run, behind=())
        return LogEvidence([*infos, *recorded.infos()], scans, run, mismatches, recorded)


def _stamp(path: str) -> tuple[int, int] | None:
    """Changes when a file is written; None while it is empty and its type is unknown."""
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return (state.st_mtime_ns, state.st_size) if state.st_size else None


def changes(
    paths: Sequence[str],
    stop: Callable[[], bool] = lambda: False,
    poll_s: float = POLL_S,
    still_s: float = STILL_S,
) -> Iterator[tuple[LogEvidence, list[Cause]]]:
    """The evidence and its causes whenever the first cause or its confidence changes, until `stop()`."""
    watch = Watch(paths)
    said: tuple[str, str] | None = None
    grown_s, looked_s = time.monotonic(), 0.0
    seen = "still"
    while not stop():
        if watch.step():
            grown_s, seen = time.monotonic(), ""
        now_s = time.monotonic()
        state = "still" if now_s - grown_s >= still_s else "growing"
        if seen not in ("still", state) and (watch.is_at_end or now_s - looked_s > CATCH_UP_S):
            looked_s, seen = now_s, state
            story = watch.story(is_still=state == "still")
            causes = causes_of(story, is_growing=True)
            now = (causes[0].rule, causes[0].confidence) if causes else None
            if now is not None and now != said:
                yield story, causes
            said = now
        if watch.is_at_end:
            time.sleep(max(poll_s, REST * (time.monotonic() - now_s)))
