"""
Needles: fixed strings of which a line holds at least one wherever a pattern matches.

They are derived from the pattern's text, as RE2's prefilter does, in a quarter of the time of `re`'s parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_PIECE = re.compile(
    r"(?P<text>(?:[^()|*+?{\[\\.^$]|\\\W)+(?![*+?{])|\\\W|[^()|*+?{\[\\.^$])"
    r"|(?P<open>\((?:\?(?:P<\w+>|-?i:|[:=!]|<[=!]))?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<times>[*+?]\??|\{\d+(?:,\d*)?\}\??)|(?P<edge>[$^]|\\[bB])|(?P<set>\[[^]^\\-]{2,8}\])"
    r"|(?P<any>\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|\.)"
)
_ESCAPE = re.compile(r"\\(\W)")
_MOST = 32
"""Strings that a part is followed up to."""
_LONG = 12
"""Characters that tell a needle from ordinary text well; more do not help."""
_NO_NEEDLE = 1000
"""Deduction for a single character: nearly every line contains it."""


class _Part(NamedTuple):
    """Knowledge about a part of a pattern."""

    ends: tuple[str, ...]
    """How what it matches ends, in lower case."""
    is_whole: bool
    """That is all it matches."""
    needles: tuple[str, ...] = ()


_EMPTY = _Part(("",), True)
_ANYTHING = _Part(("",), False)


def needles_of(pattern: str) -> tuple[str, ...]:
    r"""
    Strings in lower case, one of which is in every match; none where the pattern does not tell.

    >>> needles_of(r"(?:exit|return) code ?=? ?(?P<code>-?\d+)|[Kk]illed \w+")
    ('exit code', 'return code', 'killed ')
    """
    found = _alternatives((match.lastgroup or "", match[0]) for match in _PIECE.finditer(pattern)).needles
    return tuple(needle for needle in found if not any(o in needle for o in found if o != needle))


def _alternatives(tokens: Iterator[tuple[str, str]]) -> _Part:
    branches = []
    parts: list[_Part] = []
    for kind, text in tokens:
        if kind == "text":
            text = (_ESCAPE.sub(r"\1", text) if "\\" in text else text).lower()
            parts.append(_Part((text,), True, (text,)))
        elif kind == "any":
            parts.append(_ANYTHING)
        elif kind == "times":
            part = parts.pop()
            if text == "?" and part.is_whole:
                parts.append(_Part((*part.ends, ""), True))
            elif text[0] in "*?" or text.startswith("{0"):
                parts.append(_ANYTHING)
            else:
                parts += [part, _ANYTHING]
        elif kind == "set":
            parts.append(_Part(tuple(dict.fromkeys(text[1:-1].lower())), True))
        elif kind == "open":
            part = _alternatives(tokens)
            parts.append(_EMPTY if text[1:] in ("?!", "?<!", "?=", "?<=") else part)
        elif kind == "or":
            branches.append(_sequence(parts))
            parts = []
        elif kind == "close":
            break
    branches.append(_sequence(parts))
    if len(branches) == 1:
        return branches[0]
    found = [branch.needles for branch in branches]
    needles = tuple(dict.fromkeys(n for group in found for n in group)) if all(found) else ()
    ends = tuple(dict.fromkeys(end for branch in branches for end in branch.ends))
    return _Part(ends, all(branch.is_whole for branch in branches), needles)


def _sequence(parts: list[_Part]) -> _Part:
    """Parts one after the other: neighbours of which all strings are known are joined."""
    if len(parts) == 1 and "" not in parts[0].ends and parts[0].is_whole:
        return _Part(parts[0].ends, True, _better(parts[0].needles, parts[0].ends))
    best: tuple[str, ...] = ()
    ends: tuple[str, ...] = ("",)
    is_whole = True
    for part in parts:
        if part.is_whole and len(part.ends) == 1:
            ends = tuple([end + part.ends[0] for end in ends])
            continue
        best = _better(_better(best, part.needles), ends)
        if part.is_whole and len(ends) * len(part.ends) <= _MOST:
            ends = tuple([end + more for end in ends for more in part.ends])
        else:
            is_whole = False
            ends = part.ends if len(part.ends) <= _MOST else ("",)
    return _Part(ends, is_whole, _better(best, ends))


def _better(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Long strings before short ones, few before many, the later of equals (lines begin alike); what holds the empty string is none."""
    if "" in other or not other:
        return one
    return other if not one or _worth(other) >= _worth(one) else one


def _worth(strings: tuple[str, ...]) -> int:
    shortest = min(_LONG, min(map(len, strings)))
    return 2 * shortest - len(strings) - _NO_NEEDLE * (shortest < 2)
