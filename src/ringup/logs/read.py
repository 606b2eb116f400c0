"""
From paths to a diagnosis: every file read once, by the counter and, where it is no plain call, by
the scanner.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringup.errors import LogsError, UsageError
from ringup.logs import counting, counts, dumps, files
from ringup.logs.blame import ranked
from ringup.logs.causes import Cause, find
from ringup.logs.lines import clean, excerpt
from ringup.logs.scan import Scan, Scanner, joined
from ringup.logs.story import FileInfo, Story, versions_of

if TYPE_CHECKING:
    from ringup.logs import tails

WORTH_A_FIRST_LOOK_BYTES = 32 << 20

SMALL_BYTES = 16 << 20
"""Below this much in all, importing numpy costs more than it saves."""


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


def _scan_stream(path: str, pattern: re.Pattern[bytes] | None, engine: str) -> tuple[counts.Part, Scan]:
    """One gzip file or standard input, read in one piece.  Raises OSError."""
    scanner = Scanner()
    data = (block.data for block in files.blocks(path))
    part = counts.scan(data, scanner.feed, iteration=pattern, engine=engine)
    return part, scanner.result()


def _info(path: str, part: counts.Part) -> FileInfo:
    info = FileInfo(path, part.lines)
    if part.last is not None:
        info.last_line = excerpt(clean(part.last.text.encode("utf-8", "replace")), 0)
        info.last_line_number = part.last.line
    return info


def _diagnosed(
    order: Sequence[str],
    parts: dict[str, counts.Part],
    scans: dict[str, Scan],
    unreadable: list[files.Unreadable],
    facts: str | None = None,
    recorded: dumps.Recorded | None = None,
) -> Diagnosis:
    names = [p for p in dict.fromkeys(order) if p in parts]
    run = counts.join({p: parts[p] for p in names})
    mismatches = _mismatches(run, names, unreadable)
    lined_up = [joined([(0, scans.pop(p))], number) for number, p in enumerate(names)]
    infos = [_info(p, parts[p]) for p in names]
    if facts:
        from ringup.logs.offered import offered

        told = offered(facts)
        if not told.events:
            unreadable.append(
                files.Unreadable(facts, "no saved collection, and no output of ibstatus or the like")
            )
        lined_up.append(joined([(0, told)], len(infos)))
        infos.append(FileInfo(facts, is_log=False))
    infos += recorded.infos() if recorded else []
    story = Story(infos, lined_up, run, mismatches, recorded)
    return Diagnosis(ranked(find(story)), story, run, unreadable)


def _mismatches(
    run: counts.Run, names: Sequence[str], unreadable: list[files.Unreadable]
) -> list[counts.Mismatch]:
    """Where ranks called different things; what only a second reading could tell is said if none can be."""
    again = files.Again()
    packed = {p for p in names if not files.is_plain(p)}
    gone = next((p for p in packed if not Path(p).is_file()), None)
    if gone is None:
        return counting.differences(
            run, lambda path, a, b: (again if path in packed else counting.read_range)(path, a, b)
        )
    for part in run.unlocated[:1]:
        reason = (
            f"cannot be read twice: whether its ranks called different things between #{part.first} and "
            f"#{part.last} of communicator {part.communicator} is not known; give a file"
        )
        unreadable.append(files.Unreadable(gone, reason))
    return list(run.mismatches)


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
    pattern = iteration_pattern(by_iteration)
    plain: list[str] = []
    streams: list[str] = []
    paths_of_dumps = [path for path in dict.fromkeys(found) if files.is_dump(path)]
    recorded, torn, no_dumps = dumps.read(paths_of_dumps)
    refused += torn
    skipped = set(paths_of_dumps) - set(no_dumps)
    for path in dict.fromkeys(p for p in found if p not in skipped):
        reason = files.refusal(path)
        if reason:
            refused.append(files.Unreadable(path, reason))
        else:
            (plain if files.is_plain(path) else streams).append(path)
    total_bytes = sum(_size_bytes(p) for p in [*plain, *streams])
    engine = "stdlib" if total_bytes < SMALL_BYTES else "auto"
    parts: dict[str, counts.Part] = {}
    scans: dict[str, Scan] = {}
    if plain:
        workers = processes or _processes(total_bytes)
        parts, folded = counting.run(plain, processes=workers, fold=Scanner, iteration=pattern, engine=engine)
        scans = {p: joined([(f.lines_before, f.result) for f in folded[p]], 0) for p in plain}
    for path in streams:
        try:
            parts[path], scans[path] = _scan_stream(path, pattern, engine)
        except OSError as exc:
            refused.append(files.Unreadable(path, exc.strerror or str(exc)))
    _refuse_nothing(parts, refused, bool(recorded.dumps))
    return _diagnosed(found, parts, scans, refused, facts, recorded)


def _processes(total_bytes: int) -> int:
    """One process for each 256 MiB, at most one a core."""
    return max(1, min(os.cpu_count() or 1, total_bytes >> 28))


def _size_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size if path != "-" else 0
    except OSError:
        return 0


def _refuse_nothing(parts: dict[str, counts.Part], refused: list[files.Unreadable], has_dumps: bool) -> None:
    """Raise LogsError when there is not a single line to read."""
    empty = [files.Unreadable(p, "empty") for p, part in parts.items() if not part.lines]
    refused += empty
    if len(empty) < len(parts) or has_dumps:
        return
    reasons = [f"{u.path}: {u.reason}" for u in refused]
    raise LogsError(
        "nothing to read: " + ("; ".join(reasons[:5]) or "no log was named"),
        hint="name log files or a directory that holds some, or `-` for standard input",
    )


def first_look(paths: Sequence[str]) -> tails.Verdict | None:
    """
    Who is stuck, from the heads and tails of per-rank files alone; None where reading them whole is as quick.
    """
    from ringup.logs import tails

    found = [p for p in files.find(paths)[0] if files.is_plain(p) and not files.is_dump(p)]
    if len(found) < 2 or sum(map(_size_bytes, found)) < WORTH_A_FIRST_LOOK_BYTES:
        return None
    ends: dict[str, tails.Ends] = {}
    for path in found:
        try:
            ends[path] = tails.Ends(*files.ends(path, tails.HEAD_BYTES, tails.TAIL_BYTES))
        except OSError:
            continue
    return tails.look(ends)
