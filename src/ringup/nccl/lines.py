"""
The log lines of NCCL (2.4 to 2.30) and RCCL: one grammar for saved logs, a running job and `check`'s query.

Their repetitions are unbounded: compile them with `bounded`, like the rows of `logs.patterns`.
"""

from __future__ import annotations

import re

INFO, WARN = "NCCL INFO ", "NCCL WARN "

_INTERFACE = r"(?P<interface>[\w.@-]+)"
_ADDRESS = r"(?P<address>[0-9A-Fa-f.:]+(?:%[\w.@-]+)?)"
"""A link-local address has its zone after `%`."""

BOOTSTRAP = rf"Bootstrap ?: Using (?:\[0\])?{_INTERFACE}:{_ADDRESS}<\d+>"
ENVIRONMENT = (
    r"\b(?P<name>(?:NCCL|RCCL|GLOO|FI|UCX)_[A-Z0-9_]+) set (?:by environment )?to (?P<value>\S.*?)\.?\s*$"
)
DEVICES = r"NET/(?P<net>[\w ]+?) ?: Using (?P<list>(?:\[\d|=?\{|\[RO\]|;).*)$"
NETWORK = r"Using (?:internal )?network (?P<net>[A-Za-z][\w ./+-]*?)\s*$"
WARNING = WARN + r"(?P<text>.*)$"
NO_PLUGIN = r"No plugin found|Could not find: ?libnccl-net|libnccl-net\.so: cannot open"

LISTED_ADDRESS = rf"\[(?P<index>\d+)\]\s*{_INTERFACE}:{_ADDRESS}<\d+>"
"""An item of a `NET/Socket : Using` list: `[0]eth0:10.0.0.2<0>`."""
LISTED_PORT = r"\[(?P<index>\d+)\](?:=?\{)?(?P<device>[\w.+-]+):(?P<port>\d+)(?::\d+)*/(?P<kind>\w+(?:/\w+)?)"
"""An item of a `NET/IB : Using` list: `[0]mlx5_0:1/IB`, `[1]={[0] mlx5_1:1/RoCE`."""

_OPEN_ENDED = re.compile(r"(?P<what>\\[SwdDs]|\[(?:\\.|[^\]\\])+\]|(?<!\\)\.)(?P<times>[*+])")
_MOST = {"\\d": 24, "\\w": 64, "\\s": 40, "\\S": 200, ".": 300}
_TO_THE_END = re.compile(r"[)?]*\$")
_WHOLE_LINE = 4096
"""Bound of `.*$`: it never fails, so it costs one pass; a smaller bound would not match longer lines."""


def bounded(pattern: str) -> str:
    r"""
    A pattern with every `*` and `+` bounded: the time for a hostile line stays proportional to its length.

    >>> bounded(r"a\S+ b.*?c\.+")
    'a\\S{1,200} b.{0,300}?c\\.+'
    >>> bounded(r"a(?: (.*))?$")
    'a(?: (.{0,4096}))?$'
    """

    def limit(match: re.Match[str]) -> str:
        least = 0 if match["times"] == "*" else 1
        most = _MOST.get(match["what"], 120)
        if match["what"] == "." and _TO_THE_END.match(pattern, match.end()):
            most = _WHOLE_LINE
        return f"{match['what']}{{{least},{most}}}"

    return _OPEN_ENDED.sub(limit, pattern)
