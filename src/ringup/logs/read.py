"""
From paths to a diagnosis: every file is read once, by the counter and, for lines that are not plain calls, by
the scanner.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringup import progress
from ringup.errors import LogsError, UsageError
from ringup.logs import counts, dumps, files, posts
from ringup.logs.against import Change, changes, reference_of
from ringup.logs.answer import causes_of
from ringup.logs.appended import LastRun, blanked, last_run
from ringup.logs.causes import Cause
from ringup.logs.evidence import LogEvidence
from ringup.logs.files import FileInfo, Unreadable
from ringup.logs.forms import Reference
from ringup.logs.lines import LINE_BYTES, clean, excerpt
from ringup.logs.scan import BELOW_A_FRAME, Scan, Scanner, joined, on_lines
from ringup.logs.since import is_before, moment_s, since, times_in
from ringup.logs.telling import GENERIC
from ringup.logs.wrapped import MOST_BYTES, Wrapped, joined_lines
from ringup.units import duration_s, plural, show_bytes

if TYPE_CHECKING:
    from ringup.logs import quick_scan

WORTH_A_FIRST_LOOK_BYTES = 32 << 20

MAX_LOCATED = 8
"""Communicators for which the exact place of a difference far back is searched."""

UNNAMED = GENERIC | {"unnamed-failure"}

_TAIL_BYTES = 64 << 10
"""Of a file's end, which is searched for its last time."""

Counted = tuple[counts.Part, Scan]
"""The counts of a file, and the events of its other lines."""


@dataclass
class Diagnosis:
    """The result of `ringup logs`."""

    causes: list[Cause]
    story: LogEvidence
    run: counts.Run
    unreadable: list[Unreadable] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """No cause of severity error was named."""
        return not any(c.severity == "error" for c in self.causes)

    @property
    def changes(self) -> list[Change]:
        """Differences from the log of a good run; empty if none was given."""
        return list(changes(self.story.good, self.story)) if self.story.good else []

    @property
    def logs(self) -> list[FileInfo]:
        return [info for info in self.story.files if info.is_log]

    @property
    def versions(self) -> dict[str, list[str]]:
        """Printed releases: NCCL's own and the driver's CUDA."""
        nccl = {e["version"].rstrip(".") for e in self.story.all("nccl-version")}
        cuda = {e["version"] for e in self.story.all("cuda-driver")}
        return {k: sorted(v) for k, v in (("nccl", nccl), ("cuda_driver", cuda)) if v}

    def by_iteration(self) -> Iterator[dict[str, Any]]:
        """Calls per iteration and kind; empty if no line marks an iteration."""
        for row in self.run.by_iteration:
            if row.name is not None or len(self.run.by_iteration) > 1:
                yield {"iteration": row.name, "counts": dict(row.counts)}

    @property
    def behind(self) -> list[dict[str, Any]]:
        """Ranks that have not called what others have."""
        return [
            {
                "rank": int(r.member.name) if r.member.name.isdigit() else r.member.name,
                "communicator": r.communicator,
                "collective": r.collective,
                "index": r.index,
            }
            for r in self.run.behind
        ]


def _info(path: str, part: counts.Part, scan: Scan) -> FileInfo:
    """A file with its missing parts: the end of its last line, the end or the beginning of a traceback."""
    info = FileInfo(path, scan.lines or part.lines)
    if part.last is not None:
        offset, number, raw = part.last
        info.last_line_number = scan.lines or number
        info.last_line = excerpt(clean(raw), 0)
        if offset + len(raw) >= part.bytes and b"\r" not in raw:
            info.cut.append("the last line is cut off")
    if scan.open_frame and info.lines - scan.open_frame < BELOW_A_FRAME:
        info.cut.append("a traceback without its last line")
    if scan.headless:
        info.cut.append("a traceback without its first line")
    return info


@progress.line("looking for causes")
def _diagnosed(
    counted: dict[str, Counted],
    unreadable: list[Unreadable],
    facts: str | None,
    recorded: dumps.Recorded,
    good: Reference | None,
) -> Diagnosis:
    run = counts.join({path: part for path, (part, _) in counted.items()})
    mismatches = mismatches_of(run, unreadable)
    scans = [joined(scan, n, part.comms.values()) for n, (part, scan) in enumerate(counted.values())]
    for path, scan in zip(counted, scans, strict=True):
        if scan.cut:
            reason = f"longer than {LINE_BYTES:,} bytes: the middle was not read"
            unreadable.append(Unreadable(path, f"{plural(scan.cut, 'line')} {reason}"))
        if scan.is_broken_off:
            unreadable.append(Unreadable(path, "the compressed file is incomplete: read as far as it goes"))
        if scan.last_run.offset:
            reason = (
                f"{scan.last_run.runs} runs one after another; read: the last, from line {scan.last_run.line}"
            )
            unreadable.append(Unreadable(path, reason))
    infos = [_info(path, part, scan) for path, (part, scan) in counted.items()]
    if facts:
        from ringup.logs.hardware import read_hardware

        scan = read_hardware(facts)
        if not scan.events:
            reason = "no saved collection, and no output of ibstatus or the like"
            unreadable.append(Unreadable(facts, reason))
        scans.append(joined(scan, len(infos)))
        infos.append(FileInfo(facts, is_log=False))
    infos += recorded.infos()
    ended = None
    if any(Path(path).name == files.END_FILE for path in counted):
        from ringup.logs.run_record import end_of_run  # other logs are read sooner without its decoder

        ended = end_of_run([*counted])
    story = LogEvidence(infos, scans, run, mismatches, recorded, ended, good)
    return Diagnosis(causes_of(story), story, run, unreadable)


def mismatches_of(run: counts.Run, unreadable: list[Unreadable]) -> list[counts.Mismatch]:
    """
    Where ranks called different things, with their lines.

    A position before the stored calls is searched in the few lines that can contain it; if no second reading
    is possible, that is noted.
    """
    again = files.Again()
    gone = next((path for path in run.parts if path == "-" or not Path(path).is_file()), None)
    if gone is None:
        found = [counts.locate(unlocated, again) for unlocated in run.unlocated[:MAX_LOCATED]]
        return [*(counts.explain(m, again) for m in run.mismatches), *filter(None, found)]
    for part in run.unlocated[:1]:
        reason = (
            f"cannot be read twice: whether its ranks called different things between #{part.first} and "
            f"#{part.last} of communicator {part.communicator} is not known; give a file"
        )
        unreadable.append(Unreadable(gone, reason))
    return list(run.mismatches)


def iteration_pattern(text: str | None) -> re.Pattern[bytes] | None:
    """The expression of `--by-iteration`; None for the common trainers' lines.  Raises UsageError."""
    if not text:
        return None
    try:
        pattern = re.compile(text.encode())
    except re.error as exc:
        raise UsageError(
            f"--by-iteration is not a regular expression: {exc}",
            hint=r"for example 'step (\d+)': one group names the iteration",
        ) from exc
    return pattern if pattern.groups else re.compile(b"(" + text.encode() + b")")


def read_logs(
    paths: Sequence[str],
    *,
    by_iteration: str | None = None,
    processes: int = 0,
    facts: str | None = None,
    from_time: str | None = None,
    against: str | None = None,
) -> Diagnosis:
    """
    Diagnose files and directories (`-` is standard input), from a time on, compared with a log of a good run.

    Raises LogsError if nothing could be read, UsageError for an invalid time.
    """
    good = reference_of(read_logs([against], processes=processes).story) if against else None
    found, refused = files.find(paths)
    pattern = iteration_pattern(by_iteration)
    paths_of_dumps = [path for path in dict.fromkeys(found) if files.is_dump(path)]
    recorded, torn, no_dumps = dumps.read(paths_of_dumps)
    refused += torn
    skipped = set(paths_of_dumps) - set(no_dumps)
    logs = [path for path in dict.fromkeys(found) if path not in skipped]
    # One process for each 256 MiB, at most one a core.
    by_size = max(1, min(os.cpu_count() or 1, sum(map(_size_bytes, logs)) >> 28))
    counted: dict[str, Counted] = {}
    moment = _moment(from_time, logs) if from_time else None
    for path, one in count_files(logs, processes or by_size, pattern, moment).items():
        if isinstance(one, str):
            refused.append(Unreadable(path, one))
        else:
            counted[path] = one
    _refuse_nothing(counted, refused, bool(recorded.dumps))
    answer = _diagnosed(counted, refused, facts, recorded, good)
    errors = [one for one in answer.causes if one.severity == "error"]
    is_named = bool(errors) and (errors[0].rule not in UNNAMED or errors[0].confidence != "low")
    if is_named or facts or good or moment is not None or answer.story.outcome.trained or recorded.dumps:
        return answer
    post = _as_post(logs, pattern)
    is_better = post and not post.healthy and (not errors or post.causes[0].rule not in UNNAMED)
    return post if post and is_better else answer


def _as_post(paths: list[str], pattern: re.Pattern[bytes] | None) -> Diagnosis | None:
    """One small file as a person's words about a run; None if nobody writes in it."""
    if len(paths) != 1 or not files.is_plain(paths[0]) or _size_bytes(paths[0]) > posts.MOST_BYTES:
        return None
    post = posts.quoted(files.whole(paths[0], posts.MOST_BYTES)[0])
    if post is None:
        return None
    scanner = Scanner()
    part = counts.scan(post.lines.blocks(), scanner.take, iteration=pattern, words=scanner.words)
    scan = on_lines(scanner.result(), post.lines.line, post.lines.line_count)
    found = _diagnosed({paths[0]: (part, scan)}, [], None, dumps.Recorded(), None)
    found.causes = [replace(c, confidence="low", text=f"{c.text}; only a post says so") for c in found.causes]
    if found.healthy and (failure := posts.reported_failure(post)):
        found.causes.insert(0, failure)
    return found


def read_attempts(folders: Sequence[str], **options: Any) -> tuple[Diagnosis, dict[str, Diagnosis | None]]:
    """
    The diagnosis to show (the first that names a failure, else the last), and that of each folder.

    None for an attempt without a line.  Raises LogsError if nothing could be read.
    """
    found: dict[str, Diagnosis | None] = {}
    for folder in folders:
        found[folder] = None
        with contextlib.suppress(LogsError):
            found[folder] = read_logs([folder], **options)
    read = [one for one in found.values() if one]
    if not read:
        raise LogsError("nothing to read in any attempt", hint="name log files, or a directory of some")
    return next((one for one in read if not one.healthy), read[-1]), found


@progress.line()
def count_files(
    paths: Sequence[str],
    processes: int = 1,
    iteration: re.Pattern[bytes] | None = None,
    moment: float | None = None,
) -> dict[str, Counted | str]:
    """Each file counted and scanned, or the reason why it cannot be read."""
    reading = _Reading(paths)
    count = functools.partial(_count, iteration, moment, reading)
    if processes < 2 or len(paths) < 2 or "-" in paths:
        return dict(zip(paths, map(count, paths), strict=True))
    # Here and not above: importing multiprocessing costs as much as reading a small log.
    from ringup.logs.workers import share

    return dict(zip(paths, share(count, paths, processes, reading.show), strict=True))


class _Reading:
    """The progress of reading the files, in a line of progress; processes forked later continue it."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._files, self._bytes = len(paths), sum(map(_size_bytes, paths))
        # A step that two processes take at once may count once.
        self._done = memoryview(mmap.mmap(-1, 16)).cast("Q")

    def block(self, size_bytes: int) -> None:
        self._done[0] += size_bytes
        self.show()

    def show(self) -> None:
        part = f"{min(99, 100 * self._done[0] // self._bytes)} % of " if self._bytes else ""
        amount = show_bytes(self._bytes or self._done[0])
        of = f", {self._done[1]} of {self._files} files" if self._files > 1 else ""
        progress.show(f"reading logs: {part}{amount}{of}")

    def file(self) -> None:
        self._done[1] += 1


def _count(
    iteration: re.Pattern[bytes] | None, moment: float | None, reading: _Reading, path: str
) -> Counted | str:
    scanner = Scanner()
    try:
        broken: list[bool] = []
        said: list[bool] = []
        blocks = _noted(files.blocks(path, reading.block, lambda: broken.append(True)), said)
        wrapped = _wrapped(path)
        if wrapped:
            blocks = wrapped.blocks()
        last = last_run(path) if moment is None and files.is_plain(path) else LastRun()
        if moment is not None:
            blocks = since(blocks, moment)
        elif last.offset:
            blocks = blanked(blocks, last.offset)
        part = counts.scan(blocks, scanner.take, iteration=iteration, words=scanner.words)
    except OSError as exc:
        return exc.strerror or str(exc)
    finally:
        reading.file()
    if part.lines and not (said or wrapped):
        return "no readable text: only NUL bytes"
    scan = replace(scanner.result(), last_run=last, is_broken_off=bool(broken))
    return part, on_lines(scan, wrapped.line, wrapped.line_count) if wrapped else scan


def _noted(blocks: Iterable[bytes], said: list[bool]) -> Iterator[bytes]:
    """The blocks; whether one of them holds anything but NUL bytes goes to `said`."""
    for block in blocks:
        if not said and block.strip(b"\0"):
            said.append(True)
        yield block


def _wrapped(path: str) -> Wrapped | None:
    """A plain file as it was printed, if a terminal has broken its lines.  Raises OSError."""
    if not files.is_plain(path) or not 0 < _size_bytes(path) <= MOST_BYTES:
        return None
    return joined_lines(files.whole(path, MOST_BYTES)[0])


def _moment(text: str, paths: Sequence[str]) -> float:
    """
    The time that `--since` names; a duration counts back from the last time in the logs.

    Raises UsageError if the logs show no time, or none as late.
    """
    back_s = duration_s(text)
    moment = moment_s(text) if back_s is None else 0.0
    last = [time_s for path in paths if path != "-" for time_s in _last_times(path)]
    if "-" in paths and back_s is None:
        return moment
    if not last:
        raise UsageError(f"--since {text}: the logs show no time", hint="leave --since out")
    if back_s is None and all(is_before(time_s, moment) for time_s in last):
        raise UsageError(f"--since {text}: the last time in the logs is earlier", hint="give an earlier time")
    return moment if back_s is None else max(last) - back_s


def _last_times(path: str) -> list[float]:
    with contextlib.suppress(OSError):
        if files.is_plain(path):
            head, tail, _ = files.ends(path, _TAIL_BYTES, _TAIL_BYTES)
            return [*times_in(head), *times_in(tail)][-1:]
        tail = b""
        for block in files.blocks(path):
            tail = (tail + block)[-_TAIL_BYTES:]
        return [*times_in(tail)][-1:]
    return []


def _size_bytes(path: str) -> int:
    try:
        return Path(path).stat().st_size if path != "-" else 0
    except OSError:
        return 0


def _refuse_nothing(counted: dict[str, Counted], refused: list[Unreadable], has_dumps: bool) -> None:
    empty = [Unreadable(path, "empty") for path, (part, _) in counted.items() if not part.lines]
    refused += empty
    if len(empty) < len(counted) or has_dumps:
        return
    reasons = [f"{u.path}: {u.reason}" for u in refused]
    raise LogsError(
        "nothing to read: " + ("; ".join(reasons[:5]) or "no log file given"),
        hint="name log files or a directory that holds some, or `-` for standard input",
    )


def first_look(paths: Sequence[str]) -> list[quick_scan.Stuck]:
    """The stuck ranks, from only the ends of per-rank files; empty if reading them whole is as quick."""
    from ringup.logs import quick_scan

    found = [p for p in files.find(paths)[0] if files.is_plain(p) and not files.is_dump(p)]
    if len(found) < 2 or sum(map(_size_bytes, found)) < WORTH_A_FIRST_LOOK_BYTES:
        return []
    sizes = quick_scan.HEAD_BYTES, quick_scan.TAIL_BYTES

    def ends() -> Iterator[quick_scan.Ends]:
        for path in found:
            with contextlib.suppress(OSError):
                yield path, *files.ends(path, *sizes)

    return quick_scan.look(ends())
