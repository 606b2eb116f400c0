"""NCCL's configuration files, read as NCCL reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NAMED_SINCE = (2, 23, 4)
"""NCCL_CONF_FILE is read from this release on."""
HOME_SINCE = (2, 30, 3)
"""From here on ~ is $HOME; before, the directory of the passwd entry (userHomeDir in src/misc/param.cc)."""


def parse_nccl_conf(lines: Iterable[str]) -> dict[str, str]:
    """
    Variables of one file: a line beginning with `#` or without `=` is skipped, the first wins.

    As setEnvFile in NCCL's src/misc/param.cc: no blanks are stripped, so `NCCL_DEBUG = INFO`
    sets a variable named "NCCL_DEBUG " that nobody reads; names and values end after 1023 bytes.

    >>> parse_nccl_conf(["# a comment", "NCCL_DEBUG=INFO", " NCCL_IB_DISABLE=1", "NCCL_DEBUG=WARN", "off"])
    {'NCCL_DEBUG': 'INFO', ' NCCL_IB_DISABLE': '1'}
    """
    found: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name[:1023], value[:1023])
    return found


def merged(files: Iterable[Iterable[str]]) -> dict[str, str]:
    """
    Variables of several files, the first that sets one wins (the user's before /etc/nccl.conf).

    >>> merged([["NCCL_DEBUG=INFO"], ["NCCL_DEBUG=WARN", "NCCL_NET=Socket"]])
    {'NCCL_DEBUG': 'INFO', 'NCCL_NET': 'Socket'}
    """
    found: dict[str, str] = {}
    for lines in files:
        for name, value in parse_nccl_conf(lines).items():
            found.setdefault(name, value)
    return found


def of_release(files: Iterable[tuple[str, Sequence[str]]], version: tuple[int, ...]) -> dict[str, str]:
    """
    Variables that this release of NCCL takes from (source, lines) as payload/facts_files.py tells them.

    >>> files = [("passwd", ["NCCL_NET=IB"]), ("home", ["NCCL_NET=Socket"]), ("system", ["NCCL_NTHREADS=64"])]
    >>> of_release(files, (2, 27, 7)), of_release(files, (2, 30, 7))["NCCL_NET"]
    ({'NCCL_NET': 'IB', 'NCCL_NTHREADS': '64'}, 'Socket')
    """
    found = dict(files)
    own = "home" if version >= HOME_SINCE else "passwd"
    if "named" in found and version >= NAMED_SINCE:
        own = "named"
    return merged(found.get(source, ()) for source in (own, "system"))
