"""Output of the commands every node has, for nodes without python: df, ulimit, getent."""

from __future__ import annotations

import math

from ringup.facts import Resolution, Space


def parse_df(text: str, path: str) -> Space:
    """
    The one file system of `df -P -k PATH`.  Raises ValueError for anything else.

    >>> parse_df('''Filesystem     1024-blocks  Used Available Capacity Mounted on
    ... tmpfs                65536    12     65524       1% /dev/shm''', "/dev/shm")
    Space(path='/dev/shm', total_bytes=67108864, free_bytes=67096576, read_only=False)
    """
    lines = text.splitlines()
    # A file system's name may hold blanks; the numbers are counted from "NN%".
    words = lines[-1].split() if len(lines) > 1 else []
    at = next((i for i, word in enumerate(words) if word.endswith("%") and i >= 3), None)
    if at is None:
        raise ValueError(f"not the output of df: {text[:80]!r}")
    return Space(path, int(words[at - 3]) * 1024, int(words[at - 1]) * 1024)


def parse_ulimit(text: str, unit: int = 1) -> float:
    """
    A limit as `ulimit -l` (unit 1024 bytes) or `ulimit -n` prints it.

    >>> parse_ulimit("64\\n", 1024), parse_ulimit("unlimited\\n")
    (65536.0, inf)
    """
    word = text.strip()
    return math.inf if word == "unlimited" else float(int(word)) * unit


def parse_getent(name: str, text: str) -> Resolution:
    """
    What `getent ahosts NAME; echo "ended $?"` says, each address once; 2 is a name unknown.

    Raises ValueError where it was not there or did not end in time (124, of `timeout`).

    >>> parse_getent("n1", "10.0.0.5    STREAM n1\\n10.0.0.5    DGRAM\\nended 0\\n").addresses
    ('10.0.0.5',)
    """
    lines = [line.split() for line in text.splitlines() if line.split()]
    code = lines.pop()[1] if lines and lines[-1][0] == "ended" and len(lines[-1]) == 2 else "0"
    found = tuple(dict.fromkeys(words[0] for words in lines))
    if not found and code not in ("0", "2"):
        raise ValueError("getent did not end in time" if code == "124" else f"getent ended with {code}")
    return Resolution(name, found, "" if found else "Name or service not known")
