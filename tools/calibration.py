#!/usr/bin/env python3
"""
How often `ringup logs` is right, by the confidence it states, over logs whose cause is known.

    calibration.py INDEX.jsonl... [--misses] [--part FROM TO]

An index has one JSON object a line: `file` (relative to the index), `accept` (the names that are right;
["healthy"] for a log of a sound run) and `scored`.  Of each log the first cause counts; of a sound run's log
only an error counts, and it is wrong.  `--part 0 0.8` reads the first 80 % of each log's bytes only, and
`--part 0.4 1` the last 60 %: logs that were cut.  The exit code is 2 where an index cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ringup.errors import LogsError
from ringup.logs.read import read_logs
from ringup.logs.rule import CONFIDENCES

BARS = {"high": 0.97, "medium": 0.85}
"""The share that must be right for a confidence to mean something."""


class Answer(NamedTuple):
    """What was answered about one log, and whether it is right."""

    name: str
    confidence: str
    is_right: bool
    wanted: str
    given: str


def cases(index: Path) -> Iterator[tuple[Path, list[str]]]:
    """The log and the accepted names of every scored case."""
    for line in index.read_text(encoding="utf-8").splitlines():
        case = json.loads(line) if line.strip() else None
        if case and case["scored"]:
            yield index.parent / case["file"], case["accept"]


def part_of(log: Path, part: tuple[float, float], folder: Path) -> Path:
    """A file with that part of a log's bytes; of a directory's files one after the other."""
    files = [log] if log.is_file() else sorted(path for path in log.rglob("*") if path.is_file())
    data = b"".join(path.read_bytes() for path in files)
    first, last = (round(len(data) * share) for share in part)
    (folder / "part.log").write_bytes(data[first:last])
    return folder / "part.log"


def answer(log: Path, accepted: list[str], part: tuple[float, float] | None) -> Answer:
    """The first cause of a log, compared with the names that are right."""
    name = f"{log.parent.name}/{log.name}"
    wanted = " | ".join(accepted)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = part_of(log, part, Path(folder)) if part else log
            causes = read_logs([str(path)], processes=1).causes
    except LogsError as exc:
        return Answer(name, "none", accepted == ["healthy"], wanted, str(exc))
    if accepted == ["healthy"]:
        causes = [cause for cause in causes if cause.severity == "error"]
    if not causes:
        return Answer(name, "none", accepted == ["healthy"], wanted, "no cause")
    return Answer(name, causes[0].confidence, causes[0].rule in accepted, wanted, causes[0].rule)


def table(answers: list[Answer]) -> Iterator[str]:
    """One row a confidence: how many answers, how many right, the share, and the share that is asked for."""
    rows = defaultdict(list)
    for one in answers:
        rows[one.confidence].append(one.is_right)
    yield "| confidence | logs | right | share | at least |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for confidence in (*CONFIDENCES, "none"):
        if right := rows[confidence]:
            share, bar = sum(right) / len(right), BARS.get(confidence)
            wanted = f"{bar:.0%}" if bar else "-"
            yield f"| {confidence} | {len(right)} | {sum(right)} | {share:.1%} | {wanted} |"


def main(argv: list[str] | None = None) -> int:
    """Print the table; 2 where an index cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("index", type=Path, nargs="+")
    parser.add_argument("--misses", action="store_true", help="list the wrong answers as well")
    parser.add_argument(
        "--part", type=float, nargs=2, metavar=("FROM", "TO"), help="shares of each log's bytes"
    )
    options = parser.parse_args(argv)
    try:
        answers = [answer(*case, options.part) for index in options.index for case in cases(index)]
    except (OSError, ValueError, KeyError) as exc:
        print(f"calibration: {exc!r}", file=sys.stderr)
        return 2
    print("\n".join(table(answers)))
    for one in answers:
        if options.misses and not one.is_right:
            print(f"{one.name}: {one.wanted} -> {one.given} ({one.confidence})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
