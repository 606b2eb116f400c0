"""
Small changes to facts and texts, and what they change in an answer: the same on every machine and Python.

`sweep` changes one fact at a time.  It watches which facts the answer reads and changes only those; a number
is moved until the answer changes, and the golden file holds that edge.  Changes that change nothing are not
written: a fault that makes one of them matter adds lines.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import itertools
import pathlib
import re
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

Answer = Callable[[Any], Iterable[str]]
Path = tuple[Any, ...]
Leaf = tuple[Path, Any, str]
VERSION = re.compile(r"(\d+)\.(\d+)(\.\d+)?$")
SHORT = 24


def below(limit: int, *seed: object) -> int:
    """A number by CRC-32: no library's generator, which a new version may change."""
    return zlib.crc32(repr(seed).encode()) % limit


def some(of: Iterable[Any], most: int, *seed: object) -> list[Any]:
    """At most so many, by a rank of their own each: one more to choose from moves no other out of order."""
    ranked = sorted(
        {repr(one): one for one in of}.items(), key=lambda p: zlib.crc32(repr((seed, p[0])).encode())
    )
    return [one for _, one in ranked[:most]]


class Reads:
    """Which fields of which frozen objects are read while it watches."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, str]] = set()

    @contextlib.contextmanager
    def watch(self, kinds: Iterable[type]) -> Iterator[None]:
        seen = self.seen

        def reading(self: object, name: str) -> Any:
            seen.add((id(self), name))
            return object.__getattribute__(self, name)

        watched = [*kinds]
        for kind in watched:
            kind.__getattribute__ = reading  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            for kind in watched:
                del kind.__getattribute__  # type: ignore[misc]


def kinds(value: Any, found: set[type] | None = None) -> set[type]:
    """The dataclasses that a value is made of."""
    found = set() if found is None else found
    if dataclasses.is_dataclass(value):
        found.add(type(value))
        for field in dataclasses.fields(value):
            kinds(getattr(value, field.name), found)
    elif isinstance(value, tuple | list):
        for one in value:
            kinds(one, found)
    elif isinstance(value, Mapping):
        for one in value.values():
            kinds(one, found)
    return found


@functools.cache
def written(kind: type, field: dataclasses.Field[Any]) -> str:
    """A field's type as its class writes it; of a choice of words, the words."""
    words = typing.get_args(typing.get_type_hints(kind).get(field.name))
    is_choice = words and all(isinstance(one, str) for one in words)
    return f"one of {' '.join(words)}" if is_choice else str(field.type)


def leaves(
    value: Any, read: set[tuple[int, str]], path: Path = (), hint: str = ""
) -> Iterator[tuple[Path, Any, str]]:
    """(path, value, type as written) of everything below that was read, collections as a whole too."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if (id(value), field.name) in read:
                yield from leaves(
                    getattr(value, field.name), read, (*path, field.name), written(type(value), field)
                )
        return
    yield path, value, hint
    if isinstance(value, tuple | list):
        for number, one in enumerate(value):
            yield from leaves(one, read, (*path, number))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from leaves(one, read, (*path, key))


def put(value: Any, path: Path, new: Any) -> Any:
    """A copy in which something else is there."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return {**value, step: put(value[step], rest, new)}
    if hasattr(value, "_replace"):
        return value._replace(**{value._fields[step]: put(value[step], rest, new)})
    if isinstance(value, tuple | list):
        return type(value)([*value[:step], put(value[step], rest, new), *value[step + 1 :]])
    return dataclasses.replace(value, **{step: put(getattr(value, step), rest, new)})


@functools.cache
def literals(module: ModuleType) -> tuple[str, ...]:
    """Short strings in a module's source: what it compares with."""
    with open(module.__file__ or "", encoding="utf-8") as file:
        nodes = ast.walk(ast.parse(file.read()))
    found = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return tuple(sorted(s for s in found if s and len(s) <= SHORT and " " not in s and s.isprintable()))


_LINES = (pathlib.Path(__file__).parent / "golden" / "words.txt").read_text(encoding="utf-8").splitlines()
COMPARED = {
    name: tuple(words.split())
    for names, words in zip(_LINES[::2], _LINES[1::2], strict=True)
    for name in names.split()
}
"""
Names of rules, and modules of causes -> short strings their source had when the golden files were made.

They stay, so that a rule that is written anew is tried with the same changes.  One that is not here is tried
with its module's.
"""


def compared(name: str, module: ModuleType) -> tuple[str, ...]:
    """What a rule or module compares with."""
    return COMPARED.get(name) or literals(module)


def ladder(value: Any, hint: str) -> list[Any]:
    """Rising values around a number or a version, between which edges are looked for."""
    if isinstance(value, str):
        major, minor, rest = VERSION.match(value).groups()  # type: ignore[union-attr]
        return [f"{major}.{n}{rest or ''}" for n in sorted({0, int(minor), int(minor) + 1, 40})]
    if isinstance(value, float) and value not in (float("inf"), float("-inf")) and value == value:
        return sorted({0.0, value / 2, value, value + 1.0, value * 2, value * 100, 1e6})
    if isinstance(value, int):
        return sorted({0, value - 1 if value > 0 else -1, value, value + 1, value * 2, value * 16, 1000})
    return [0.0, 1.0, 1000.0] if "float" in hint else [0, 1, 1000]


def between(low: Any, high: Any) -> Any:
    """A value in the middle, or None where there is none."""
    if isinstance(low, str):
        (major, one, rest), (_, other, _) = VERSION.match(low).groups(), VERSION.match(high).groups()  # type: ignore[union-attr]
        middle = (int(one) + int(other)) // 2
        return None if middle == int(one) else f"{major}.{middle}{rest or ''}"
    middle = (low + high) // 2 if isinstance(low, int) and isinstance(high, int) else (low + high) / 2
    return None if middle in (low, high) else middle


def others(value: Any, hint: str, alike: list[Any], words: Iterable[str], seed: object) -> list[Any]:
    """Values to put there instead."""
    none = [None] if "None" in hint and value is not None else []
    if isinstance(value, bool):
        return [not value, *none]
    if hasattr(value, "_replace"):
        return []
    if isinstance(value, tuple | list):
        kind, gone = type(value), below(max(1, len(value)), seed)
        made = [kind([*value[:gone], *value[gone + 1 :]]), value[::-1], kind([*value, *value[:1]]), kind()]
        return (
            [one for one in made if one != value] if value and not isinstance(value[0], int | float) else []
        )
    if isinstance(value, Mapping):
        return [{k: v for k, v in value.items() if k != key} for key in value][:4] + none
    if isinstance(value, str) and hint.startswith("one of "):
        return [one for one in hint.split()[2:] if one != value]
    if isinstance(value, str):
        numbered = [re.sub(r"\d+(?=\D*$)", lambda m: str(int(m[0]) + 1), value)] if value else []
        made = ["", f"{value}x", value.swapcase(), *numbered, *some(alike, 2, seed), *some(words, 3, seed)]
        return [one for n, one in enumerate(made) if one != value and one not in made[:n]] + none
    if value is None:
        made = [True, False] if "bool" in hint else []
        return [*made, *(some(words, 1, seed) if "str" in hint else []), *some(alike, 2, seed)]
    return none


def is_number(value: Any, hint: str) -> bool:
    if value is None:
        return "float" in hint or "int" in hint.replace("Interface", "")
    if isinstance(value, str):
        return bool(VERSION.match(value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def shape(lines: Iterable[str]) -> tuple[str, ...]:
    """The answer without its numbers."""
    return tuple(re.sub(r"\d+(?:\.\d+)?", "#", line) for line in lines)


def shared(one: str, other: str) -> int:
    """How long both begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def difference(usual: list[str], lines: list[str]) -> Iterator[str]:
    """What is gone (by its number in the usual answer) and what is new; of one changed line, the change."""
    gone = [number for number, line in enumerate(usual) if line not in lines]
    new = [line for line in lines if line not in usual]
    for number, line in zip(gone, new, strict=False) if len(gone) == len(new) else ():
        start = shared(usual[number], line)
        end = shared(usual[number][start:][::-1], line[start:][::-1])
        yield f"    {number}: ...{line[max(0, start - 8) : len(line) - end]}..."
    if len(gone) != len(new):
        if gone:
            yield f"    without {', '.join(map(str, gone[:12]))}{' ...' if len(gone) > 12 else ''}"
        yield from (f"    + {line}" for line in new)
    if not gone and not new:
        yield f"    order {', '.join(str(usual.index(line)) for line in lines)}"


def sweep(
    whole: Any, answer: Answer, *, seed: object, most: int, words: Iterable[str] = (), each: int = 2
) -> Iterator[str]:
    """
    The usual answer, then each change that changes it, with the difference.

    `most` answers are asked for, edges aside; of alike paths (node 0's and node 1's) `each` are tried.
    """
    words, reads = [*words], Reads()

    def asked(value: Any) -> list[str]:
        try:
            return [line.replace("\n", "\\n") for line in answer(value)]
        except Exception as error:
            return [type(error).__name__]

    with reads.watch(kinds(whole)):
        usual = [line.replace("\n", "\\n") for line in answer(whole)]
    yield from (f"    {number}: {line}" for number, line in enumerate(usual))
    by_pattern: dict[Path, list[Leaf]] = {}
    for path, value, hint in leaves(whole, reads.seen):
        pattern = tuple("*" if isinstance(step, int) else step for step in path)
        by_pattern.setdefault(pattern, []).append((path, value, hint))
    queue = []
    for pattern, known in by_pattern.items():
        chosen = some(known, each, seed, pattern)
        queue += [(number, below(1 << 30, seed, pattern), pattern, one) for number, one in enumerate(chosen)]
    left = most
    for _, _, pattern, (path, value, hint) in sorted(queue, key=lambda entry: entry[:2]):
        name = ".".join(map(str, path))
        alike = [v for _, v, _ in by_pattern[pattern] if v != value and v is not None]
        tried: list[tuple[Any, list[str]]] = []
        for new in others(value, hint, alike, words, (seed, path)):
            left -= 1
            lines = asked(put(whole, path, new))
            if lines != usual:
                yield f"  {name} = {f'{len(new)} elements' if isinstance(new, tuple | list | dict) else new}"
                yield from difference(usual, lines)
        if is_number(value, hint):
            values = ladder(value, hint)
            left -= len(values)
            tried = [(one, usual if one == value else asked(put(whole, path, one))) for one in values]
            yield from edges(tried, name, lambda one, path=path: asked(put(whole, path, one)))
        if left <= 0:
            return


def edges(tried: list[tuple[Any, list[str]]], name: str, asked: Callable[[Any], list[str]]) -> Iterator[str]:
    """Where the answer changes its words, to the last bit; and one answer whose numbers alone changed."""
    numbers = True
    for (low, before), (high, after) in itertools.pairwise(tried):
        if shape(before) == shape(after):
            if before != after and numbers:
                numbers = False
                yield f"  {name}: {low!r}, {high!r}"
                yield from difference(before, after)
            continue
        for _ in range(70):
            middle = between(low, high)
            if middle is None:
                break
            lines = asked(middle)
            if shape(lines) == shape(before):
                low, before = middle, lines
            else:
                high, after = middle, lines
        yield f"  {name}: {low!r} | {high!r}"
        yield from difference(before, after)


def texts(text: str, most: int, seed: object) -> Iterator[tuple[str, str]]:
    """(what was done, the text changed in one place): lines dropped, doubled, swapped; words, numbers."""
    lines = text.split("\n")
    changes: list[tuple[str, int, int]] = []
    for number, line in enumerate(lines):
        changes += [("drop", number, 0), ("double", number, 0), ("cut", number, 0)]
        changes += [("word", number, n) for n in range(len(line.split()))]
        changes += [("number", number, n) for n in range(len(re.findall(r"\d+", line)))]
        changes += [("swap", number, 0)] * (number + 1 < len(lines))
    for done, number, place in some(changes, most, seed):
        made, line = list(lines), lines[number]
        if done == "drop":
            del made[number]
        elif done == "double":
            made.insert(number, line)
        elif done == "cut":
            made[number] = line[: len(line) // 2]
        elif done == "swap":
            made[number], made[number + 1] = made[number + 1], line
        elif done == "word":
            found = [*re.finditer(r"\S+\s*", line)][place]
            made[number] = line[: found.start()] + line[found.end() :]
        else:
            found = [*re.finditer(r"\d+", line)][place]
            new = some([int(found[0]) + 1, 0, int(found[0]) * 2], 1, seed, number, place)[0]
            made[number] = f"{line[: found.start()]}{new}{line[found.end() :]}"
        yield f"{done} {number}.{place}", "\n".join(made)
