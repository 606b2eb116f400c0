"""`--follow`: read growing files until told to stop, and say so each time the first cause changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ringup.logs import dumps, files
from ringup.logs.blame import ranked
from ringup.logs.causes import Cause, find
from ringup.logs.scan import Scanner, joined
from ringup.logs.story import FileInfo, Story

POLL_S = 1.0
STEP_BYTES = 8 << 20
"""Read of one file between two looks, so that one huge file does not keep the others waiting."""


@dataclass
class Growing:
    """One file that is being written."""

    path: str
    scanner: Scanner = field(default_factory=Scanner)
    offset: int = 0
    line: int = 1
    rest: bytes = b""
    inode: int = 0

    def step(self) -> bool:
        """Read what was added; whether anything was.  A file that shrank or was replaced is read anew."""
        try:
            with open(self.path, "rb") as stream:
                state = os.fstat(stream.fileno())
                if state.st_size < self.offset or (self.inode and state.st_ino != self.inode):
                    self.scanner, self.offset, self.line, self.rest = Scanner(), 0, 1, b""
                self.inode = state.st_ino
                stream.seek(self.offset)
                data = stream.read(STEP_BYTES)
        except OSError:
            return False
        if not data:
            return False
        self.offset += len(data)
        whole = self.rest + data
        cut = whole.rfind(b"\n") + 1
        self.rest = whole[cut:][-files.LONGEST_LINE_BYTES :]
        lines = whole[:cut].split(b"\n")[:-1]
        self.scanner.feed((self.line + n, 0, text) for n, text in enumerate(lines))
        self.line += len(lines)
        return True


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

    def story(self) -> Story:
        """The story so far."""
        growing = list(self._files.values())
        scans = [joined([(0, f.scanner.result())], n) for n, f in enumerate(growing)]
        recorded = dumps.read(list(self._dumps))[0]
        infos = [FileInfo(f.path, f.line - 1) for f in growing]
        return Story([*infos, *recorded.infos()], scans, recorded=recorded)


def _stamp(path: str) -> tuple[int, int] | None:
    """What changes when a file is written; None while it is empty: then nobody knows what it will be."""
    try:
        state = Path(path).stat()
    except OSError:
        return None
    return (state.st_mtime_ns, state.st_size) if state.st_size else None


def changes(
    paths: Sequence[str], stop: Callable[[], bool] = lambda: False, poll_s: float = POLL_S
) -> Iterator[tuple[Story, list[Cause]]]:
    """The story and its causes each time the first cause or its confidence changes, until `stop` says so."""
    watch = Watch(paths)
    said: tuple[str, str] | None = None
    while not stop():
        if watch.step():
            story = watch.story()
            causes = ranked(find(story))
            now = (causes[0].rule, causes[0].confidence) if causes else None
            if now is not None and now != said:
                yield story, causes
            said = now
            continue
        time.sleep(poll_s)
