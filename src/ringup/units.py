"""Sizes, rates and durations: parsed from tools' output, formatted for people."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import signal
from collections.abc import Iterable
from typing import Any, TextIO, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

MIB, GIB = 1024**2, 1024**3
_SIZE = re.compile(r"^\s*([0-9.]+)\s{0,8}([KMGTPE]?)(i?)B?\s*$", re.IGNORECASE)
_RATE = re.compile(r"^\s*([0-9.]+)\s*([KMGT]?)b(?:it)?(?:/s(?:ec)?|ps)?\b", re.IGNORECASE)
_DURATION = re.compile(r"\s{0,8}([0-9]{1,9}\.?[0-9]{0,9}|\.[0-9]{1,9})\s{0,8}(s|m|min|h|d)\s{0,8}")
_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def parse_size_bytes(text: str) -> int:
    """
    Bytes in a size as people write it; K, M, G are powers of 1024 as in `du` and nccl-tests.

    Raises ValueError for other text.

    >>> parse_size_bytes("64M"), parse_size_bytes("1GiB"), parse_size_bytes("512")
    (67108864, 1073741824, 512)
    """
    if not (match := _SIZE.match(text)):
        raise ValueError(f"not a size: {text!r}")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].upper()])


def parse_rate_gbit_s(text: str) -> float:
    """
    Gigabits per second in a rate as sysfs or ethtool prints it.

    Raises ValueError for other text.

    >>> parse_rate_gbit_s("200 Gb/sec (4X HDR)"), parse_rate_gbit_s("1000Mb/s")
    (200.0, 1.0)
    """
    if not (match := _RATE.match(text)):
        raise ValueError(f"not a rate: {text!r}")
    return float(match[1]) * 1000.0 ** (_POWERS[match[2].upper()] - 3)


def duration_s(text: str) -> float | None:
    """
    Seconds of a number with its unit, None for any other text.

    >>> duration_s("90s"), duration_s("1.5h"), duration_s("90"), duration_s("08:30")
    (90.0, 5400.0, None, None)
    """
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _UNITS_S[match[2]] if match else None


def show_bytes(size_bytes: float) -> str:
    """
    A size in the largest unit that keeps it at or above one.

    >>> show_bytes(67108864), show_bytes(900), show_bytes(float("inf"))
    ('64 MiB', '900 B', 'unlimited')
    """
    if math.isinf(size_bytes):
        return "unlimited"
    value, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(value) < 1024 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def show_seconds(seconds: float) -> str:
    """
    A duration, short enough for a table.

    >>> show_seconds(0.0004), show_seconds(3.25), show_seconds(4000), show_seconds(200000)
    ('0.4 ms', '3.2 s', '1 h 6 min', '2 d 7 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if (minutes := int(seconds // 60)) < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """
    Key -> its values, in their order.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def first_of_each(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, Value]:
    """
    Key -> its first value, in their order.

    >>> first_of_each([("a", 1), ("b", 2), ("a", 3)])
    {'a': 1, 'b': 2}
    """
    found: dict[Key, Value] = {}
    for key, value in pairs:
        found.setdefault(key, value)
    return found


def summarize_names(names: Iterable[object], most: int = 4, between: str = ", ") -> str:
    """
    Names in a line, without duplicates; the rest is counted.

    >>> summarize_names(["a", "b", "c"], most=2), summarize_names(["a", "b", "a"], most=2, between="; ")
    ('a, b and 1 more', 'a; b')
    """
    every = list(dict.fromkeys(map(str, names)))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return between.join(every[:most]) + more


def ranges(numbers: Iterable[int]) -> str:
    """
    Whole numbers in order, with neighbours as ranges.

    >>> ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in neighbours(numbers))


def neighbours(numbers: Iterable[int]) -> list[list[int]]:
    """First and last of each run of neighbours."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def show_ranks(ranks: Iterable[int], most: int = 8) -> str:
    """
    Ranks as text; above `most` ranges the rest is counted.

    >>> show_ranks([3]), show_ranks([7, 0, 1, 2]), show_ranks([0, 2, 4], most=2)
    ('rank 3', 'ranks 0-2, 7', 'ranks 0, 2 and 1 more')
    """
    every = set(ranks)
    shown = {n for first, last in neighbours(every)[:most] for n in range(first, last + 1)}
    more = f" and {len(every) - len(shown)} more" if len(every) > len(shown) else ""
    return f"{'rank' if len(every) == 1 else 'ranks'} {ranges(shown)}{more}"


def plural(count: int, noun: str, nouns: str = "") -> str:
    """
    A count with its noun; `nouns` for an irregular plural.

    >>> plural(1, "rank"), plural(1200, "rank"), plural(0, "index", "indices")
    ('1 rank', '1,200 ranks', '0 indices')
    """
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def signal_name(number: int) -> str:
    """
    A signal's name as text.

    >>> signal_name(9), signal_name(99)
    ('SIGKILL', 'signal 99')
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


LONGEST_LINE = 2048
"""Most characters of one line of other programs' text that are read."""


def lines_of(text: str) -> list[str]:
    """
    The lines of a tool's output or of a script, each of bounded length; a cut line has a mark at its end.

    >>> lines_of("a\\n" + "b" * 2050)[1].removeprefix("b" * LONGEST_LINE)
    ' [2 characters left out]'
    """
    lines = text.splitlines()
    for number, line in enumerate(lines) if len(text) > LONGEST_LINE else ():
        if len(line) > LONGEST_LINE:
            lines[number] = f"{line[:LONGEST_LINE]} [{len(line) - LONGEST_LINE} characters left out]"
    return lines


def columns(stream: TextIO) -> int:
    """Characters per line, at least 40: COLUMNS, else a terminal's width, else 100."""
    given = os.environ.get("COLUMNS", "")
    found = int(given) if given.isdecimal() and len(given) < 6 else 0
    if not found:
        # a pipe or a file; a closed stream or one without a file
        with contextlib.suppress(OSError, ValueError):
            found = os.get_terminal_size(stream.fileno()).columns
    return max(found, 40) if found else 100


COLOURS = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]")
"""A terminal's control sequences (ECMA-48, CSI): colours and movements of the cursor."""
ESCAPES = re.compile(
    COLOURS.pattern
    + r"|\x1b[\]P^_X][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # strings, such as OSC: titles, links, clipboard
    r"|\x1b[ -/]{0,8}[0-~]"  # two- and three-byte sequences
)


def printable(text: str, limit: int = 400) -> str:
    """
    Text from other programs made safe for a terminal: control characters shown, length bounded.

    >>> printable("a\\x1b[31mred\\x07")
    'a\\\\x1b[31mred\\\\x07'
    """
    text = text.replace("\t", " ")
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    # Bidirectional controls and line separators can hide text too (Unicode TR 36).
    safe = (c if c.isprintable() or c == " " else c.encode("unicode_escape").decode("ascii") for c in cut)
    return "".join(safe)


def safe_data(value: Any, longest: int = 400) -> Any:
    """
    Plain data in which every string (keys, too) is safe for a terminal and of bounded length.

    Raises ValueError for a number larger than any counter of a kernel.

    >>> safe_data({"a": ["x\\x1b[1my", 1]})
    {'a': ['x\\\\x1b[1my', 1]}
    """
    if isinstance(value, str):
        return value if value.isprintable() and len(value) <= longest else printable(value, longest)
    if isinstance(value, dict):
        return {safe_data(key, longest): safe_data(one, longest) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(safe_data(one, longest) for one in value)
    if isinstance(value, int) and abs(value) > 1 << 62:
        raise ValueError("a number that large")
    return value


def word(text: str) -> str:
    """
    One word of a shell, quoted unless it is plain: `==a` looks wrong, and zsh would search for a program.

    >>> print(word("=a,b"), word("1"), word("it's"))
    '=a,b' 1 'it'"'"'s'
    """
    quoted = shlex.quote(text)
    return quoted if quoted != text or not set(text) & {"=", ","} else f"'{text}'"


def assignment(name: str, value: str) -> str:
    """
    A variable's assignment, safe to paste even if a node or a log supplied its value.

    >>> assignment("NCCL_SOCKET_IFNAME", "=e$(id)"), assignment("NCCL_IB_HCA", "mlx5_0")
    ("NCCL_SOCKET_IFNAME='=e$(id)'", 'NCCL_IB_HCA=mlx5_0')
    """
    return f"{name}={word(printable(value))}"


def export_line(name: str, value: str) -> str:
    return f"export {assignment(name, value)}"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """
    A key that sorts `mlx5_2` before `mlx5_10`, as the kernel numbers devices.

    >>> sorted(["mlx5_10", "mlx5_2"], key=natural)
    ['mlx5_2', 'mlx5_10']
    """
    pieces = filter(None, re.split(r"(\d+)", name))
    return tuple((0, int(p), "") if p.isdecimal() and p.isascii() else (1, 0, p) for p in pieces)
