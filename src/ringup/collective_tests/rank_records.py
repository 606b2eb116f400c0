"""The ranks' reports: untrusted lines of JSON after a mark, in each rank's own file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from ringup.planning import Plan
from ringup.runtime.output import file_name

MARK = "@ringup "
LONGEST_FILE_BYTES = 64 << 20
LARGEST = 1e18
Line = dict[str, Any]


def parse(text: str) -> Line | None:
    """
    The object of one line; None for any other output.

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


def by_rank(log_dir: Path, plan: Plan) -> dict[int, list[Line]]:
    """The lines of every rank, empty if its file is missing.  The file determines the rank."""
    found: dict[int, list[Line]] = {rank: [] for rank in range(plan.world_size)}
    for node in plan.nodes:
        for rank in range(node.first_rank, node.first_rank + node.nproc):
            with contextlib.suppress(OSError), (log_dir / file_name(node, rank)).open("rb") as file:
                texts = file.read(LONGEST_FILE_BYTES).decode("utf-8", "replace").split("\n")
                found[rank] = [{**line, "rank": rank} for text in texts if (line := parse(text)) is not None]
    return found


def numbers(line: Line, name: str) -> list[float]:
    """The numbers of a list, or a single number; without NaN and numbers that do not fit a float."""
    value: Any = line.get(name)
    values = value[:4096] if isinstance(value, list) else [value]
    return [float(v) for v in values if type(v) in (int, float) and abs(v) < LARGEST]


def number(line: Line, name: str, default: float = 0.0) -> float:
    return next(iter(numbers(line, name)), default) if not isinstance(line.get(name), list) else default


def text(line: Line, name: str) -> str:
    value: Any = line.get(name)
    return value[:800] if isinstance(value, str) else ""
