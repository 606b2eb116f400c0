"""Answers, line by line, compared whole with a golden file; `make golden` rewrites them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
GOLDEN = Path(__file__).parent / "golden" / "answers"


def part_of(items: Iterable[T], part: int, parts: int) -> list[T]:
    """The items that one of several files holds.  A new item changes this file alone."""
    return [item for item in items if zlib.crc32(repr(item).encode()) % parts == part]


def compare(name: str, lines: Iterable[str]) -> None:
    """Equal to the golden file; the first lines that differ are what is shown."""
    path, text = GOLDEN / name, [line.replace("\n", "\\n") for line in lines]
    if os.environ.get("RINGUP_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
    wanted = path.read_text(encoding="utf-8").split("\n")[:-1]
    differ = [(a, b) for a, b in zip(text, wanted, strict=False) if a != b]
    hint = f"{path}: if the new answer is right, run `make golden`"
    assert differ[:3] == [] and len(text) == len(wanted), hint
