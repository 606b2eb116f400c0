"""Answers, line by line, compared whole with a golden file; `make golden` rewrites them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "answers"


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
