"""NCCL's configuration files, read as NCCL reads them."""

from __future__ import annotations

from collections.abc import Iterable


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
