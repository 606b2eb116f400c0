"""Sizes, rates and durations: read from the words tools print, shown for people."""

from __future__ import annotations

import math
import os
import re
import shlex
from typing import TextIO

_SIZE = re.compile(r"^\s*([0-9.]+)\s*([KMGTPE]?)(i?)B?\s*$", re.IGNORECASE)
_RATE = re.compile(r"^\s*([0-9.]+)\s*([KMGT]?)b(?:it)?(?:/s(?:ec)?|ps)?\b", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}


def parse_size_bytes(text: str) -> int:
    """
    Bytes in a size as people write it; K, M, G are powers of 1024 as in `du` and nccl-tests.

    Raises ValueError for anything else.

    >>> parse_size_bytes("64M"), parse_size_bytes("1GiB"), parse_size_bytes("512")
    (67108864, 1073741824, 512)
    """
    match = _SIZE.match(text)
    if not match:
        raise ValueError(f"not a size: {text!r}")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].upper()])


def parse_rate_gbit_s(text: str) -> float:
    """
    Gigabits per second in a rate as sysfs or ethtool prints it.

    Raises ValueError for anything else.

    >>> parse_rate_gbit_s("200 Gb/sec (4X HDR)"), parse_rate_gbit_s("1000Mb/s")
    (200.0, 1.0)
    """
    match = _RATE.match(text)
    if not match:
        raise ValueError(f"not a rate: {text!r}")
    return float(match[1]) * 1000.0 ** (_POWERS[match[2].upper()] - 3)


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
    A duration in words short enough for a table.

    >>> show_seconds(0.0004), show_seconds(3.25), show_seconds(4000), show_seconds(200000)
    ('0.4 ms', '3.2 s', '1 h 6 min', '2 d 7 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def columns(stream: TextIO) -> int:
    """Characters a line may have: a terminal's width where the stream is one, never below 40; else 100."""
    try:
        found = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # a pipe or a file; a closed stream, or one without a file
        found = 0
    return max(found, 40) if found else 100


def printable(text: str, limit: int = 400) -> str:
    """
    Text from elsewhere made safe for a terminal: control characters shown, length bounded.

    >>> printable("a\\x1b[31mred\\x07")
    'a\\\\x1b[31mred\\\\x07'
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    # Bidirectional controls and line separators can hide text too (Unicode TR 36).
    return "".join(
        c if c.isprintable() or c == " " else c.encode("unicode_escape").decode("ascii") for c in cut
    )


def word(text: str) -> str:
    """
    One word of a shell, in quotes unless it is plain: `==a` looks wrong, and zsh would look for a program.

    >>> print(word("=a,b"), word("1"), word("it's"))
    '=a,b' 1 'it'"'"'s'
    """
    quoted = shlex.quote(text)
    return quoted if quoted != text or not set(text) & {"=", ","} else f"'{text}'"


def export_line(name: str, value: str) -> str:
    """
    A variable as somebody may paste it, whatever a node or a log put into its value.

    >>> export_line("NCCL_SOCKET_IFNAME", "=e$(id)")
    "export NCCL_SOCKET_IFNAME='=e$(id)'"
    """
    return f"export {name}={word(printable(value))}"


def twice_quoted(text: str) -> str:
    """
    A word of a command behind `ssh NODE`: this shell and the one on the node each take a layer off.

    >>> twice_quoted("eth0"), shlex.split(shlex.split(twice_quoted("$(id)"))[0])
    ('eth0', ['$(id)'])
    """
    once = shlex.quote(text)
    return text if once == text else shlex.quote(once)
