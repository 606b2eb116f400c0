"""
From paths to a diagnosis: every file read once, by the counter and, where it is no plain call, by the scanner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringup.errors import LogsError, UsageError
from ringup.logs import counts, files
from ringup.logs.blame import ranked
from ringup.logs.causes import Cause, find
from ringup.logs.lines import Gate, clean, excerpt
from ringup.logs.scan import Scan, Scanner
from ringup.logs.story import FileInfo, Story, versions_of

SMALL_BYTES = 16 << 20
"""Below this much in all, importing numpy costs more than it saves."""

LOCATED_AT_MOST = 16
"""Differences far back in the log that are looked up again."""


@dataclass
class Diagnosis:
    """What `ringup logs` answers."""

    causes: list[Cause]
    story: Story
    run: counts.Run
    unreadable: list[files.Unreadable] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """No cause of severity error was named."""
        return not any(c.severity == "error" for c in self.causes)

    @property
    def versions(self) -> dict[str, list[str]]:
        """Releases that were printed."""
        return dict(versions_of(self.story))

    def by_iteration(self) -> Iterator[dict[str, Any]]:
        """Calls per iteration and kind; nothing where no line marks an iteration."""
        for row in self.run.iterations():
            if row.name is not None or len(self.run.by_iteration) > 1:
                yield {"iteration": row.name, "counts": dict(row.counts)}

    @property
    def behind(self) -> list[dict[str, Any]]:
        """Ranks that have not called what others have."""
        return [
            {
                "rank": int(r.rank) if r.rank.isdigit() else r.rank,
                "communicator": r.communicator,
                "collective": r.collective,
                "index": r.index,
            }
            for r in self.run.behind
        ]


class Reading:
    """Files read so far."""

    def __init__(self, pattern: re.Pattern[bytes] | bool | None = None, engine: str = "auto") -> None:
        self.infos: list[FileInfo] = []
        self.scans: list[Scan] = []
        self.parts: dict[str, counts.Part] = {}
        self._gate = Gate()
        self._pattern = pattern
        self._engine = engine

    def add(self, path: str) -> None:
        """Read one file.  Raises OSError."""
        scanner = Scanner(len(self.infos), self._gate)
        blocks = (block.data for block in files.blocks(path))
        part = counts.scan(blocks, scanner.feed, iteration=self._pattern, engine=self._engine)
        self.take(path, part, scanner.result())

    def take(self, path: str, part: counts.Part, scan: Scan) -> None:
        """A file that was read elsewhere."""
        last = part.last
        info = FileInfo(path, part.lines)
        if last is not None:
            info.last_line = excerpt(clean(last.text.encode("utf-8", "replace")), 0)
            info.last_line_number = last.line
        self.infos.append(info)
        self.scans.append(scan)
        self.parts[path] = part

    def diagnosis(self, unreadable: list[files.Unreadable]) -> Diagnosis:
        """What all of it means."""
        run = counts.join(self.parts)
        located = _located(run)
        story = Story(self.infos, self.scans, run, located)
        return Diagnosis(ranked(find(story)), story, run, unreadable)


def _located(run: counts.Run) -> list[counts.Mismatch]:
    """Differences between ranks that only a second look at a few lines can place."""
    found = list(run.mismatches)
    for unlocated in run.unlocated[:LOCATED_AT_MOST]:
        names = {s.member.file for s in unlocated.spans}
        if all(files.can_be_read_again(n) for n in names):
            mismatch = counts.locate(unlocated, files.part_of)
            if mismatch is not None:
                found.append(mismatch)
    return found


def iteration_pattern(text: str | None) -> re.Pattern[bytes] | None:
    """The expression of `--by-iteration`; None stands for the common trainers' lines.  Raises UsageError."""
    if not text:
        return None
    try:
        pattern = re.compile(text.encode())
    except re.error as exc:
        raise UsageError(
            f"--by-iteration is no regular expression: {exc}",
            hint=r"for example 'step (\d+)': one group names the iteration",
        ) from exc
    return pattern if pattern.groups else re.compile(b"(" + text.encode() + b")")


def read_logs(
    paths: Sequence[str],
    *,
    by_iteration: str | None = None,
    processes: int = 0,
    facts: str | None = None,
) -> Diagnosis:
    """
    Diagnose files and directories (`-` is standard input).

    Raises LogsError when nothing could be read.
    """
    found, refused = files.find(paths)
    total_bytes = sum(_size_bytes(p) for p in found)
    reading = Reading(iteration_pattern(by_iteration), "stdlib" if total_bytes < SMALL_BYTES else "auto")
    for path in found:
        try:
            reading.add(path)
        except OSError as exc:
            refused.append(files.Unreadable(path, exc.strerror or str(exc)))
    _refuse_nothing(reading.infos, refused)
    return reading.diagnosis(refused)


def _size_bytes(path: str) -> int:
    try:
        return os.stat(path).st_size if path != "-" else 0
    except OSError:
        return 0


def _refuse_nothing(infos: Iterable[FileInfo], refused: list[files.Unreadable]) -> None:
    """Raise LogsError when there is not a single line to read."""
    infos = list(infos)
    if any(info.lines for info in infos):
        refused += [files.Unreadable(i.path, "empty") for i in infos if not i.lines]
        return
    reasons = [f"{u.path}: {u.reason}" for u in refused] + [f"{i.path}: empty" for i in infos]
    raise LogsError(
        "nothing to read: " + ("; ".join(reasons[:5]) or "no log was named"),
        hint="name log files or a directory that holds some, or `-` for standard input",
    )
