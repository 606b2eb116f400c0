"""
What programs print, by meaning: every wording of every version behind one tag.

A `Wording` is a tag, a pattern on the message text and the lower-case words of which
one must stand in the line before the pattern is tried.  Message texts only: the
`file.cc:line` in front of them changes with every release.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Wording:
    """One way of saying one thing."""

    tag: str
    text: str
    needles: tuple[str, ...]

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The pattern, compiled when a line first holds one of the words."""
        return re.compile(self.text, re.IGNORECASE)

    @cached_property
    def anchored(self) -> bool:
        """Whether it asks for the beginning of a message."""
        return "^" in re.sub(r"\[\^|\\\^", "", self.text)


_OPEN_ENDED = re.compile(r"(?P<what>\\[SwdDs]|\[(?:\\.|[^\]\\])+\]|(?<!\\)\.)(?P<times>[*+])")
_MOST = {"\\d": 24, "\\w": 64, "\\s": 40, "\\S": 200, ".": 300}

_TO_THE_END = re.compile(r"[)?]*\$")
_WHOLE_LINE = 4096
"""What `.*$` may take: it never fails, so it costs one pass; less would lose every longer line."""


def bounded(pattern: str) -> str:
    r"""
    A pattern with every `*` and `+` bounded: a hostile line costs time in proportion to its length.

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


def say(tag: str, pattern: str, *needles: str) -> Wording:
    """A wording; the pattern ignores case, `needles` are literal lower-case words, any of which must be there."""
    return Wording(tag, bounded(pattern), needles)


ADDRESS = (
    r"(?P<address>\[?[0-9a-fA-F:.]+(?:%[\w.-]+)?\]?(?![\w-])|[A-Za-z][\w-]*(?:\.[\w-]+){0,9})"
    r"(?:<(?P<port>\d+)>|:(?P<port2>\d+))?"
)
"""A peer as NCCL prints it: `10.1.1.7<45123>`; IPv6 stands without brackets, with its zone after `%`; some print a host's name."""

ERRNO = (
    r"(?P<reason>No route to host|Connection timed out|Connection refused|Network is unreachable"
    r"|Software caused connection abort|Host is unreachable|Operation timed out|Network unreachable"
    r"|Transport endpoint is not connected|Cannot assign requested address|Invalid argument"
    r"|No such device|Protocol not available|Operation now in progress)"
)
