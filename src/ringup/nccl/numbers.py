"""A variable's number, as NCCL reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping


def number(environment: Mapping[str, str], name: str, default: int) -> int:
    """
    A variable as NCCL's NCCL_PARAM reads it: strtoll with base 0, so text that is no number is 0.

    >>> number({"A": "0x2"}, "A", 5), number({"A": "true"}, "A", 5), number({"A": ""}, "A", 5)
    (2, 0, 5)
    """
    text = environment.get(name, "")
    if not text:
        return default
    match = re.match(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|\d+)", text)
    if not match:
        return 0
    digits = match[2][:20]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
    kept = re.match("[0-7]*", digits)[0] if base == 8 else digits  # type: ignore[index]
    value = int(kept or "0", base)
    return -value if match[1] == "-" else value
