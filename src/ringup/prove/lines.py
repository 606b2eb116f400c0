"""What the ranks told: lines of JSON behind a mark, in each rank's own file.  Hostile as all output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringup.launch.output import file_name
from ringup.plan import Plan

MARK = "@ringup "
LONGEST_FILE_BYTES = 64 << 20
LARGEST = 1e18
Line = dict[str, Any]


def parse(text: str) -> Line | None:
    """
    One line, None when it is none of ours.

    >>> parse('@ringup {"kind": "done", "rank": 0}'), parse("step 1"), parse("@ringup [1]")
    ({'kind': 'done', 'rank': 0}, None, None)
    """
    if not text.startswith(MARK):
        return None
    try:
        line = json.loads(text[len(MARK) :])
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and isinstance(line.get("kind"), str) else None


def of_rank(log_dir: Path, plan: Plan, rank: int) -> Iterator[Line]:
    """What one rank told; nothing when its file is not there.  The rank is that of the file."""
    node = next(n for n in plan.nodes if n.first_rank <= rank < n.first_rank + n.nproc)
    try:
        with (log_dir / file_name(node, rank)).open("rb") as file:
            data = file.read(LONGEST_FILE_BYTES)
    except OSError:
        return
    for text in data.decode("utf-8", "replace").split("\n"):
        line = parse(text)
        if line is not None:
            yield {**line, "rank": rank}


def by_rank(log_dir: Path, plan: Plan) -> dict[int, list[Line]]:
    """What every rank told."""
    return {rank: list(of_rank(log_dir, plan, rank)) for rank in range(plan.world_size)}


def _finite(value: object) -> float | None:
    """A number that can be counted with; None for anything else, NaN and what no float holds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if abs(value) < LARGEST else None


def number(line: Line, name: str, default: float = 0.0) -> float:
    """A number of a line; the default for anything else."""
    found = _finite(line.get(name))
    return default if found is None else found


def numbers(line: Line, name: str) -> list[float]:
    """A list of numbers of a line."""
    value = line.get(name)
    if not isinstance(value, list):
        return []
    return [found for one in value[:4096] if (found := _finite(one)) is not None]


def text(line: Line, name: str) -> str:
    """A text of a line, bounded."""
    value = line.get(name)
    return value[:800] if isinstance(value, str) else ""
