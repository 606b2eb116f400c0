"""
The most steps a character of hostile text costs a regular expression, read from the pattern itself.

Python's `re` backtracks.  A search is slow where one run of characters can be split among several repeats
in many ways, or where a repeat is entered from every position of the run: `\\d+x` costs n * n / 2 steps on n
digits.  `cost` multiplies the bounds of the repeats that can share one run.  Nothing is timed, so the answer
never varies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

try:
    from re import _constants as names  # type: ignore[attr-defined]
    from re import _parser as sre_parse  # type: ignore[attr-defined]
except ImportError:  # Python 3.10
    import sre_constants as names
    import sre_parse

OTHER = 256
"""Stands for every character beyond Latin-1."""
ALL = frozenset(range(OTHER + 1))
WORD = frozenset(i for i in range(128) if chr(i).isalnum() or chr(i) == "_") | {OTHER}
SMALL = 8
"""Repeats of at most this many are taken as no repeat at all."""
MOST_PATHS = 4096

_CATEGORIES = {
    names.CATEGORY_DIGIT: frozenset(range(48, 58)),
    names.CATEGORY_SPACE: frozenset(map(ord, " \t\n\r\f\v")),
    names.CATEGORY_WORD: WORD,
}
_OPPOSITE = {
    names.CATEGORY_NOT_DIGIT: names.CATEGORY_DIGIT,
    names.CATEGORY_NOT_SPACE: names.CATEGORY_SPACE,
    names.CATEGORY_NOT_WORD: names.CATEGORY_WORD,
}


def _category(name: Any) -> frozenset[int]:
    return _CATEGORIES[name] if name in _CATEGORIES else ALL - _CATEGORIES[_OPPOSITE[name]]


def _cased(chars: frozenset[int], flags: int) -> frozenset[int]:
    if not flags & re.IGNORECASE:
        return chars
    both = {ord(c) for i in chars if i < 128 for c in (chr(i).lower(), chr(i).upper())}
    return chars | both


def chars_of(op: Any, value: Any, flags: int) -> frozenset[int] | None:
    """The characters one element takes; None where it is no single character."""
    if op is names.LITERAL:
        return _cased(frozenset({min(value, OTHER)}), flags)
    if op is names.NOT_LITERAL:
        return ALL - _cased(frozenset({value}), flags)
    if op is names.ANY:
        return ALL if flags & re.DOTALL else ALL - {10}
    if op is not names.IN:
        return None
    found: frozenset[int] = frozenset()
    for kind, what in value:
        if kind is names.LITERAL:
            found |= {min(what, OTHER)}
        elif kind is names.RANGE:
            found |= frozenset(range(min(what[0], OTHER), min(what[1], OTHER) + 1))
        elif kind is names.CATEGORY:
            found |= _category(what)
    found = _cased(found, flags)
    return ALL - found if value[0][0] is names.NEGATE else found


@dataclass(frozen=True)
class Run:
    """A repeat of characters out of one set."""

    chars: frozenset[int]
    least: int
    most: float
    body: tuple[Any, int] = ((), 0)
    """Of a repeated group, the parser's items and flags: it enters a text only where those fit."""


@dataclass(frozen=True)
class Once:
    """Anything else, kept as the parser gave it."""

    op: Any
    value: Any
    flags: int


Element = Run | Once
ENDS = (names.AT_END, names.AT_END_STRING)
REPEATS = {names.MAX_REPEAT, names.MIN_REPEAT, getattr(names, "POSSESSIVE_REPEAT", names.MAX_REPEAT)}


def fits(element: Element, chars: frozenset[int]) -> bool:
    """Whether an element can match inside a run of these characters."""
    if isinstance(element, Run):
        return element.least == 0 or bool(element.chars & chars)
    op, value, flags = element.op, element.value, element.flags
    single = chars_of(op, value, flags)
    if single is not None:
        return bool(single & chars)
    if op in REPEATS:
        return value[0] == 0 or _all_fit(value[2], flags, chars)
    if op is names.SUBPATTERN:
        return _all_fit(value[3], (flags | value[1]) & ~value[2], chars)
    if op is names.BRANCH:
        return any(_all_fit(part, flags, chars) for part in value[1])
    if op is names.AT:
        return _place_fits(value, flags, chars)
    if op is names.ASSERT_NOT:
        only = [chars_of(o, v, flags) for o, v in value[1]]
        # What stands before or behind is of the run as well, except at its two ends.
        return not (len(only) == 1 and only[0] is not None and chars <= only[0])
    if op is names.ASSERT and value[0] < 0:
        only = [chars_of(o, v, flags) for o, v in value[1]]
        return len(only) != 1 or only[0] is None or bool(only[0] & chars)
    return True


def _place_fits(place: Any, flags: int, chars: frozenset[int]) -> bool:
    if place is names.AT_BOUNDARY:
        return bool(chars & WORD) and bool(chars - WORD)
    if place in (names.AT_BEGINNING, names.AT_END):
        return bool(flags & re.MULTILINE) and 10 in chars
    return place is names.AT_NON_BOUNDARY


def _all_fit(items: Any, flags: int, chars: frozenset[int]) -> bool:
    return all(fits(Once(op, value, flags), chars) for op, value in items)


def may_be_empty(element: Element) -> bool:
    """Whether an element never fails: it may take nothing, and asks for nothing."""
    if isinstance(element, Run):
        return element.least == 0
    op, value, flags = element.op, element.value, element.flags
    if op in REPEATS:
        return bool(value[0] == 0)
    if op is names.SUBPATTERN:
        return all(may_be_empty(Once(o, v, flags)) for o, v in value[3])
    if op is names.BRANCH:
        return any(all(may_be_empty(Once(o, v, flags)) for o, v in part) for part in value[1])
    return False


def _union(items: Any, flags: int) -> frozenset[int]:
    """Every character the items may take."""
    found: frozenset[int] = frozenset()
    for op, value in items:
        single = chars_of(op, value, flags)
        if single is not None:
            found |= single
        elif op in REPEATS:
            found |= _union(value[2], flags)
        elif op is names.SUBPATTERN:
            found |= _union(value[3], (flags | value[1]) & ~value[2])
        elif op is names.BRANCH:
            for part in value[1]:
                found |= _union(part, flags)
    return found


def _has_runs(items: Any) -> bool:
    for op, value in items:
        if op in REPEATS:
            if value[1] > SMALL or _has_runs(value[2]):
                return True
        elif op is names.SUBPATTERN:
            if _has_runs(value[3]):
                return True
        elif op is names.BRANCH:
            if any(map(_has_runs, value[1])):
                return True
        elif op in (names.ASSERT, names.ASSERT_NOT) and _has_runs(value[1]):
            return True
    return False


Path = tuple[tuple[Element, ...], bool]
"""Elements in order, and whether the path ends inside a lookaround (nothing behind it belongs to it)."""


def paths(items: Any, flags: int) -> Iterator[Path]:
    """Every way through a pattern, as far as ways differ in their long repeats."""
    items = list(items)
    if not items:
        yield (), False
        return
    (op, value), rest = items[0], items[1:]
    for first, ended in _first_paths(op, value, flags):
        if ended:
            yield first, True
            continue
        for more, over in paths(rest, flags):
            yield (*first, *more), over


def _first_paths(op: Any, value: Any, flags: int) -> Iterator[Path]:
    if not _has_runs([(op, value)]):
        yield (Once(op, value, flags),), False
    elif op is names.SUBPATTERN:
        yield from paths(value[3], (flags | value[1]) & ~value[2])
    elif op is names.BRANCH:
        for part in value[1]:
            yield from paths(part, flags)
    elif op in (names.ASSERT, names.ASSERT_NOT):
        for inner, _ in paths(value[1], flags):
            yield (*inner, Once(names.FAILURE, None, flags)), True
        yield (Once(op, value, flags),), False
    else:
        yield from _repeat_paths(value, flags)


def _repeat_paths(value: Any, flags: int) -> Iterator[Path]:
    least, most, body = value
    most = math.inf if most == names.MAXREPEAT else most
    body = list(body)
    while len(body) == 1 and body[0][0] is names.SUBPATTERN:
        inner = body[0][1]
        flags, body = (flags | inner[1]) & ~inner[2], list(inner[3])
    single = chars_of(*body[0], flags) if len(body) == 1 else None
    if single is not None:
        yield (Run(single, least, most),), False
        return
    if least == 0:
        yield (), False
    for one, over in paths(body, flags):
        yield one, over
        if shared := _split_in_many_ways(one, most):
            yield (Run(shared, least, math.inf),) * 2, False
        if most > 1 and not over:
            for two, again in paths(body, flags):
                yield (*one, *two), again
    if most > SMALL:
        longest = sre_parse.SubPattern(sre_parse.State(), body).getwidth()[1]
        yield (Run(_union(body, flags), least, most * min(longest, 1 << 20), (tuple(body), flags)),), False


def _split_in_many_ways(body: tuple[Element, ...], times: float) -> frozenset[int]:
    """The characters of which one run can be cut anywhere, once a turn of a repeat: `(?:\\w{1,9},?)+`."""
    for i, element in enumerate(body):
        if isinstance(element, Run):
            least, most, chars = element.least, element.most, element.chars
        elif element.op in REPEATS and len(element.value[2]) == 1:
            least, most, _ = element.value
            chars = chars_of(*element.value[2][0], element.flags) or frozenset()
        else:
            continue
        others = (*body[:i], *body[i + 1 :])
        if (
            times > 1
            and (most - least + 1) ** times > MOST_PATHS
            and chars
            and all(fits(e, chars) for e in others)
        ):
            return chars
    return frozenset()


def _never_fails(rest: tuple[Element, ...], last: Run, longest: float) -> bool:
    """Whether a match is sure once a run has been entered."""
    if last.most >= longest and last.chars >= ALL - {10}:
        # The rest of a line, taken whole: its end is where the run stops.
        rest = tuple(e for e in rest if not (isinstance(e, Once) and e.op is names.AT and e.value in ENDS))
    if last.chars == ALL:
        rest = tuple(e for e in rest if not _may_be_the_end(e))
    return all(map(may_be_empty, rest))


def _may_be_the_end(element: Element) -> bool:
    """`(?:END|\\Z)`, which a run of any characters reaches."""
    if isinstance(element, Run) or element.op not in (names.SUBPATTERN, names.BRANCH):
        return False
    parts = [element.value[3]] if element.op is names.SUBPATTERN else element.value[1]
    return any(
        len(p) == 1 and (p[0] == (names.AT, names.AT_END_STRING) or _may_be_the_end(Once(*p[0], 0)))
        for p in parts
    )


def _chain_costs(path: tuple[Element, ...], from_anywhere: bool, longest: float) -> Iterator[float]:
    runs = [i for i, e in enumerate(path) if isinstance(e, Run) and e.most > SMALL]
    for start in runs:
        element = path[start]
        assert isinstance(element, Run)
        yield from _extend(path, runs, [start], element.chars, from_anywhere, longest)


def _endless(most: list[float], pumped: bool) -> float:
    """Of runs of which one has no bound at all: the first such run alone is paid by its own characters."""
    return math.inf if pumped or most.count(math.inf) > 1 else math.prod(sorted(most)[:-1])


def period(elements: tuple[Element, ...]) -> int:
    """How far apart two matches of the elements begin at least: as many places as they hold letters."""
    return max([1, len(frozenset().union(*map(_letters, elements))), *map(_fewest, elements)])


def _fewest(element: Element) -> int:
    if isinstance(element, Run) or element.op not in (names.SUBPATTERN, names.BRANCH):
        return 1
    parts = [element.value[3]] if element.op is names.SUBPATTERN else element.value[1]
    return min(period(tuple(Once(*item, element.flags) for item in part)) for part in parts)


def _letters(element: Element) -> frozenset[str]:
    if isinstance(element, Run):
        return frozenset()
    op, value, flags = element.op, element.value, element.flags
    if op is names.LITERAL:
        return frozenset(chr(value).lower())
    inner = value[3] if op is names.SUBPATTERN else value[2] if op in REPEATS and value[0] else ()
    return frozenset().union(*(_letters(Once(o, v, flags)) for o, v in inner))


def _extend(
    path: tuple[Element, ...],
    runs: list[int],
    chain: list[int],
    chars: frozenset[int],
    from_anywhere: bool,
    longest: float,
) -> Iterator[float]:
    last = path[chain[-1]]
    assert isinstance(last, Run)
    if not _never_fails(path[chain[-1] + 1 :], last, longest):
        # Where what stands before a run has k different letters, it begins at most once in k places.
        gaps = pairwise([-1, *chain])
        apart = [period(path[before + 1 : after]) for before, after in gaps]
        most = [min(path[i].most, longest) for i in chain]  # type: ignore[union-attr]
        ways = math.prod(most) / math.prod(apart[1:])
        pumped = from_anywhere and all(fits(e, chars) for e in path[: chain[0]])
        yield ways / (apart[0] if pumped else max(most)) if ways < math.inf else _endless(most, pumped)
    for following in (i for i in runs if i > chain[-1]):
        element = path[following]
        assert isinstance(element, Run)
        shared = chars & element.chars
        bodies = [path[i].body for i in (*chain, following)]  # type: ignore[union-attr]
        if (
            shared
            and all(_all_fit(*body, shared) for body in bodies)
            and all(fits(e, shared) for e in path[chain[-1] + 1 : following])
        ):
            yield from _extend(path, runs, [*chain, following], shared, from_anywhere, longest)


def cost(pattern: str | bytes, flags: int = 0, *, method: str = "search", longest: float = math.inf) -> float:
    """
    The most steps for each character of a text; infinite where they grow with the text.

    `method` is how the pattern is applied: `match` and `fullmatch` try the text's beginning alone.  With
    `longest`, texts are single lines of at most so many characters.

    >>> cost(r"\\d+x"), cost(r"(?<!\\d)\\d+x"), cost(r"\\d{1,9}x"), cost(r"^(a+)+$")
    (inf, 1, 9.0, inf)
    >>> cost(r"a*a*", method="match"), cost(r"a*a*", method="fullmatch"), cost(r"x.*$", longest=2048)
    (1, inf, 1)
    """
    parsed = sre_parse.parse(pattern, flags)
    state = parsed.state.flags
    end = (Once(names.AT, names.AT_END_STRING, state),) if method == "fullmatch" else ()
    worst: float = 1
    for number, (path, inside) in enumerate(paths(parsed, state)):
        if number > MOST_PATHS:
            raise ValueError(f"too many ways through {pattern!r}")
        whole = path if inside else path + end
        worst = max([worst, *_chain_costs(whole, method not in ("match", "fullmatch"), longest)])
    return worst
