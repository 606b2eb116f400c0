"""`--since`: a log from a time on.  Earlier lines are blanked, so that lines keep their numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ringup.errors import UsageError
from ringup.logs.lines import DAY_S, seconds_of

BLANK = bytes(10 if byte == 10 else 32 for byte in range(256))
_HEAD_BYTES = 400


def moment_s(text: str) -> float:
    """
    A time as `seconds_of` counts: from the year's start, or from midnight if it has no date.

    Raises UsageError.

    >>> moment_s("08:30"), moment_s("2026-01-02 00:00:10") == (31 + 2) * DAY_S + 10
    (30600.0, True)
    """
    padded = text if text.count(":") != 1 else f"{text}:00"
    if re.fullmatch(r"\d{4}-\d\d-\d\d", padded):
        padded += " 00:00:00"
    found = seconds_of(padded.replace("T", " ", 1))
    if found is None:
        hint = (
            'a time as in the log ("2026-11-20 08:30", "08:30:15"), or how long before its end ("10m", "2h")'
        )
        raise UsageError(f"--since {text!r} is not a time", hint=hint)
    return found


def is_before(time_s: float, moment: float) -> bool:
    """Whether a line's time is before a moment; clocks without a date are compared as clocks."""
    if (time_s > DAY_S) == (moment > DAY_S):
        return time_s < moment
    return time_s % DAY_S < moment % DAY_S


def times_in(data: bytes) -> Iterator[float]:
    for line in data.split(b"\n"):
        found = seconds_of(line[:_HEAD_BYTES].decode("utf-8", "replace"))
        if found is not None:
            yield found


def since(blocks: Iterable[bytes], moment: float) -> Iterator[bytes]:
    """The blocks with every line blanked that is before the first one of that time or later."""
    rest = b""
    blocks = iter(blocks)
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for number, line in enumerate(lines):
            time_s = seconds_of(line[:_HEAD_BYTES].decode("utf-8", "replace"))
            if time_s is not None and not is_before(time_s, moment):
                before = b"".join(old.translate(BLANK) + b"\n" for old in lines[:number])
                yield before + b"\n".join([*lines[number:], rest])
                yield from blocks
                return
        yield b"".join(line.translate(BLANK) + b"\n" for line in lines)
    yield rest.translate(BLANK)
