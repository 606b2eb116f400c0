"""
From paths to a diagnosis: every file read once, in blocks, by the scanner and the counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ringup.errors import LogsError
from ringup.logs import files
from ringup.logs.blame import ranked
from ringup.logs.causes import Cause, find
from ringup.logs.lines import Gate
from ringup.logs.scan import Scan, Scanner
from ringup.logs.story import FileInfo, Story, versions_of


@dataclass
class Diagnosis:
    """What `ringup logs` answers."""

    causes: list[Cause]
    story: Story
    counts: Any = None
    unreadable: list[files.Unreadable] = field(default_factory=list)
    versions: dict[str, list[str]] = field(default_factory=dict)

    @property
    def transports(self) -> dict[str, int]:
        """How many channels went over what."""
        if self.counts is not None:
            return dict(self.counts.transports)
        found: dict[str, int] = {}
        for event in self.story.all("channel"):
            found[event["via"]] = found.get(event["via"], 0) + 1
        return found

    @property
    def collectives(self) -> dict[str, int]:
        """Calls per kind over all ranks."""
        return dict(self.counts.collectives) if self.counts is not None else {}

    @property
    def by_rank(self) -> dict[str, dict[str, int]]:
        """Calls per rank and kind."""
        return {k: dict(v) for k, v in self.counts.by_rank.items()} if self.counts is not None else {}

    def by_iteration(self) -> list[dict[str, Any]]:
        """Calls per iteration and kind."""
        rows = self.counts.by_iteration if self.counts is not None else []
        return [{"iteration": r.name, "counts": dict(r.counts)} for r in rows]

    @property
    def behind(self) -> list[dict[str, Any]]:
        """Ranks that have not called what others have."""
        rows = self.counts.behind if self.counts is not None else ()
        return [
            {"rank": r.rank, "communicator": r.communicator, "collective": r.collective, "index": r.index}
            for r in rows
        ]

    @property
    def healthy(self) -> bool:
        """No cause of severity error was named."""
        return not any(c.severity == "error" for c in self.causes)


_CALL = b": opCount "


def interesting(block: files.Block) -> Iterable[tuple[int, bytes]]:
    """The numbered lines of a block that are not collective calls."""
    first = block.first_line
    return [(first + n, line) for n, line in enumerate(block.data.split(b"\n")) if line and _CALL not in line]


def scan_file(path: str, number: int, gate: Gate, each: Callable[[files.Block], Any] | None = None) -> Scan:
    """One file's scan; `each` sees every block too.  Raises OSError."""
    scanner = Scanner(number, gate)
    count, last = 0, (0, b"")
    for block in files.blocks(path):
        scanner.feed(interesting(block))
        if each is not None:
            each(block)
        lines = block.data.count(b"\n") + (not block.data.endswith(b"\n"))
        count = block.first_line + lines - 1
        tail = block.data.rstrip()
        if tail:
            start = tail.rfind(b"\n") + 1
            last = (block.first_line + tail.count(b"\n"), tail[start:])
    return scanner.finish(count, last)


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
    gate = Gate()
    infos: list[FileInfo] = []
    scans: list[Scan] = []
    for path in found:
        try:
            scan = scan_file(path, len(infos), gate)
        except OSError as exc:
            refused.append(files.Unreadable(path, exc.strerror or str(exc)))
            continue
        infos.append(FileInfo(path, scan.lines, scan.last_line, scan.last_line_number))
        scans.append(scan)
    if not infos:
        raise LogsError(
            "; ".join(f"{u.path}: {u.reason}" for u in refused[:5]) or "no log was named",
            hint="name log files or a directory that holds some, or `-` for standard input",
        )
    if not any(info.lines for info in infos):
        names = ", ".join(i.path for i in infos[:3])
        refused += [files.Unreadable(i.path, "empty") for i in infos]
        raise LogsError(
            f"nothing to read in {names}: empty", hint="was the job's output redirected elsewhere?"
        )
    story = Story(infos, scans)
    return Diagnosis(ranked(find(story)), story, None, refused, dict(versions_of(story)))
