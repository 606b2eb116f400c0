"""A tag: one subject of messages, in every wording of every version."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from ringup.logs.patterns.needles import needles_of
from ringup.nccl.lines import bounded

ROLES = {
    "failure": "something went wrong",
    "hang": "the job stood still, or was ended for it",
    "consequence": "a rank prints it because another one ended",
    "weak": "a consequence that other things have, too",
    "end": "what went before it in its file was not overcome",
    "context": "does not tell what an exception on its line was",
    "choice": "shows a choice, no failure: what it explains is inferred",
    "detail": "a warning that a cause of its own reads: no failure without detail",
    "establishing": "a failed rendezvous or connection: if it succeeds afterwards, a later attempt worked",
    "setting": "what a command, a setting, a stack or a table carries; all others are things that happen",
    "local": "a failure that no network interface is behind",
    "nccl": "a failure that a network plugin can be behind",
}
"""The roles of a tag for the causes; most tags have none."""

FIRST_KEPT = 6
"""Events kept of a tag and source, where its row has no other number; the last two are kept as well."""


@dataclass(frozen=True)
class Pattern:
    """One wording of a tag; matched without regard to case, message texts only: `file.cc:line` changes."""

    tag: str
    source: str

    @cached_property
    def text(self) -> str:
        return bounded(self.source)

    @cached_property
    def needles(self) -> tuple[str, ...]:
        """Fixed strings: the pattern is tried only on lines with at least one of them."""
        return needles_of(self.source)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Compiled when a line first holds a needle."""
        return re.compile(self.text, re.IGNORECASE)

    @cached_property
    def anchored(self) -> bool:
        """Whether it matches only at the beginning of a message."""
        return "^" in re.sub(r"\[\^|\\\^", "", self.source)


@dataclass(frozen=True)
class Tag:
    """A row of the table: what is printed, what it means to the causes, how much of it is kept."""

    name: str
    roles: frozenset[str]
    patterns: tuple[Pattern, ...]
    keep: int


def tag(name: str, roles: str, *patterns: str, keep: int = FIRST_KEPT) -> Tag:
    """A row; of a line's patterns the first that matches gives the fields (named groups)."""
    return Tag(name, frozenset(roles.split()), tuple(Pattern(name, p) for p in patterns), keep)


ADDRESS = (
    r"(?P<address>\[?[0-9a-fA-F:.]+(?:%[\w.-]+)?\]?(?![\w-])|[A-Za-z][\w-]*(?:\.[\w-]+){0,9})"
    r"(?:<(?P<port>\d+)>|:(?P<port2>\d+))?"
)
"""A peer as NCCL prints it: `10.1.1.7<45123>`; IPv6 has its zone after `%`, no brackets; some print a host name."""

ERRNO = (
    r"(?P<reason>No route to(?: host)?|Connection timed out|Connection refused|Network is unreachable"
    r"|Software caused connection abort|Host is unreachable|Operation timed out|Network unreachable"
    r"|Transport endpoint is not connected|Cannot assign requested address|Invalid argument"
    r"|No such device|Protocol not available|Operation now in progress)"
)
