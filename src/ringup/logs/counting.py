"""
Counting files: the one place of the counting engine that opens them, and the processes that share the work.

One file a task, or one slice of a big one; what comes back is as small as a `Part`.  The caller may send a
fold along that sees every line but the plain collective calls.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import SEEK_END
from pathlib import Path
from typing import Any, Protocol

from ringup.logs import counts, tails
from ringup.logs.counts.grammar import PREFIX, bare, label_of
from ringup.logs.counts.ledger import Batch

SLICE_BYTES = 32 << 20
"""Smallest slice of a file: less is not worth the way to another process."""

LARGEST_SLICE_BYTES = 512 << 20
"""What was counted of a slice is held until those before it are put together."""

PRIMER_BYTES = 1 << 20
"""Read first of a file that is cut: who writes to it, to tell a host's name from the end of a torn line."""

MAX_LOCATED = 8
"""Communicators of which the exact place of a difference far back is looked up."""


class Fold(Protocol):
    """What sees the other lines of a slice; made in the process that reads it."""

    def feed(self, batch: Batch) -> None:
        """Line numbers and offsets (of the slice) with their lines."""

    def result(self) -> Any:
        """What to send back; picklable."""


@dataclass(frozen=True)
class Folded:
    """What a fold made of one slice, and what to add to its line numbers and offsets."""

    lines_before: int
    bytes_before: int
    result: Any


@dataclass(frozen=True)
class _Task:
    path: str
    start: int
    end: int
    fold: Callable[[], Fold] | None
    iteration: re.Pattern[bytes] | bool | None
    sequences: bool
    engine: str
    known: tuple[tuple[str, str, str], ...] = ()


def read_range(path: str, start: int, end: int, block_bytes: int = counts.BLOCK_BYTES) -> Iterator[bytes]:
    """Blocks of a file between two offsets; ends early where the file does.  Raises OSError."""
    with open(path, "rb", buffering=0) as stream:
        stream.seek(start)
        left = end - start
        while left > 0 and (block := stream.read(min(left, block_bytes))):
            left -= len(block)
            yield block


def run(
    paths: Iterable[str],
    *,
    processes: int = 1,
    fold: Callable[[], Fold] | None = None,
    iteration: re.Pattern[bytes] | bool | None = None,
    sequences: bool = True,
    engine: str = "auto",
    slice_bytes: int = SLICE_BYTES,
) -> tuple[dict[str, counts.Part], dict[str, list[Folded]]]:
    """
    Count files: a part of each, and what the folds of its slices made of the other lines.

    `fold` is a class or function that can be sent to another process.  Raises OSError for a file that
    cannot be read.
    """
    plan = _Task("", 0, 0, fold, iteration, sequences, engine)
    tasks = [t for path in paths for t in _tasks(path, processes, slice_bytes, plan)]
    slices = Counter(task.path for task in tasks)
    parts: dict[str, counts.Part] = {}
    mergers: dict[str, counts.Merger] = {}
    folded: dict[str, list[Folded]] = {}
    # Slices are put together while later ones are still being read.
    for task, (part, result) in zip(tasks, _map(tasks, processes), strict=True):
        path = task.path
        if slices[path] > 1:
            merger = mergers.setdefault(path, counts.Merger())
            before = merger.whole.lines
            merger.put(part)
            part = merger.whole
        else:
            before = 0
        folded.setdefault(path, []).append(Folded(before, task.start, result))
        parts[path] = part
    return parts, folded


def _tasks(path: str, processes: int, slice_bytes: int, plan: _Task) -> Iterator[_Task]:
    size = Path(path).stat().st_size
    shares = _shares(size, processes, slice_bytes) if processes > 1 else [1]
    known = tuple(who_writes(b"".join(read_range(path, 0, PRIMER_BYTES)))) if len(shares) > 1 else ()

    def read_at(offset: int, size_bytes: int) -> bytes:
        return b"".join(read_range(path, offset, offset + size_bytes))

    for start, end in counts.cut(size, shares, read_at):
        yield replace(plan, path=path, start=start, end=end, known=known)


def _shares(size_bytes: int, processes: int, slice_bytes: int) -> list[int]:
    """
    Bytes of each slice: most of a process's part of what is left, so that none waits long at the end.

    This is guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers C-36, 1987).
    Four fifths, not all: one core of a shared machine may be half as fast again as the other.  Smaller first
    slices make more of them, and each is sent and put together at about 40 ms of CPU.
    """
    if size_bytes < 2 * processes * slice_bytes:
        return [1] * max(1, min(processes, size_bytes // slice_bytes))
    shares, left = [], size_bytes
    while left >= 2 * slice_bytes:
        shares.append(min(max(left * 4 // (5 * processes), slice_bytes), LARGEST_SLICE_BYTES))
        left -= shares[-1]
    return [*shares, left // 2, left - left // 2]


def who_writes(block: bytes) -> Iterator[tuple[str, str, str]]:
    """Host, process id and label of the processes in the beginning of a file."""
    seen = set()
    for raw in block.split(b"\n")[:-1]:
        if b" NCCL " not in raw:
            continue
        line = bare(raw)
        match = PREFIX.search(line[:400])
        if match and match["host"] + match["pid"] not in seen:
            seen.add(match["host"] + match["pid"])
            label = label_of(line[: match.start()], whole=True)
            yield match["host"].decode("utf-8", "replace"), match["pid"].decode(), label


def _map(tasks: list[_Task], processes: int) -> Iterator[tuple[counts.Part, Any]]:
    if processes < 2 or len(tasks) < 2:
        return map(_count, tasks)
    # Here and not above: what starts processes costs as much to import as reading a small log.
    from ringup.logs.share import share

    return share(_count, tasks, min(processes, len(tasks)))


def _count(task: _Task) -> tuple[counts.Part, Any]:
    fold = task.fold() if task.fold else None
    part = counts.scan(
        read_range(task.path, task.start, task.end),
        fold.feed if fold else None,
        iteration=task.iteration,
        sequences=task.sequences,
        engine=task.engine,
        known=task.known,
    )
    return part, fold.result() if fold else None


def ends(paths: Iterable[str]) -> dict[str, tails.Ends]:
    """The first and last bytes of files, for `tails.look`.  Raises OSError."""
    found = {}
    for path in paths:
        with open(path, "rb", buffering=0) as stream:
            size = stream.seek(0, SEEK_END)
            begin = max(0, size - tails.TAIL_BYTES)
            stream.seek(begin)
            tail = stream.read(tails.TAIL_BYTES)
            stream.seek(0)
            # A file hardly longer than both is worth reading whole: then every call is in view.
            wanted = size if size <= tails.HEAD_BYTES + tails.TAIL_BYTES else tails.HEAD_BYTES
            found[path] = tails.Ends(stream.read(wanted), tail, size)
    return found


def differences(
    found: counts.Run, read: Callable[[str, int, int], Iterator[bytes]] = read_range
) -> list[counts.Mismatch]:
    """
    Every place where ranks called different things, its lines read.

    What lies further back than the calls that are kept is searched for in the few lines that can hold it;
    a file that was counted in slices is counted again in one piece for that.
    """
    mismatches = [counts.explain(m, read) for m in found.mismatches]
    for unlocated in found.unlocated[:MAX_LOCATED]:
        narrowed = _narrow(unlocated, found.parts) if unlocated.sliced else unlocated
        place = counts.locate(narrowed, read) if narrowed else None
        if place:
            mismatches.append(place)
    return mismatches


def _narrow(unlocated: counts.Unlocated, parts: Mapping[str, counts.Part]) -> counts.Unlocated | None:
    files = {s.member.file for s in unlocated.spans if s.member.calls.sliced}
    again, _ = run(sorted(files), engine=next(iter(parts.values())).engine)
    narrowed = counts.join({**parts, **again}).unlocated
    return next((u for u in narrowed if u.communicator == unlocated.communicator), None)
