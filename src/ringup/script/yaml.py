"""
Mappings with comments, written as YAML.

A scalar is written plainly only where it can mean nothing else; otherwise as a JSON string, which
YAML 1.2 takes as it is (section 1.3).  Text of several lines is written as a block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringup.plan.formats import comment

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
"""What YAML 1.1 takes for something else than text."""
LINE = 100


@dataclass(frozen=True)
class Said:
    """A value with its reason, which stands in a comment above it."""

    value: Any
    because: str


def document(value: Mapping[str, Any]) -> str:
    """
    One document, with a line end.

    >>> print(document({"a": Said(["x", {"b": 1, "c": "yes"}], "why")}), end="")
    # why
    a:
    - x
    - b: 1
      c: "yes"
    """
    return "\n".join(_mapping(value, "")) + "\n"


def documents(*values: Mapping[str, Any]) -> str:
    """Several documents."""
    return "---\n".join(document(value) for value in values)


def scalar(value: object) -> str:
    """
    >>> scalar("a/b"), scalar("8"), scalar("no"), scalar(8), scalar(True), scalar("a: b")
    ('a/b', '"8"', '"no"', '8', 'true', '"a: b"')
    """
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)


def _mapping(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, entry in value.items():
        if isinstance(entry, Said):
            yield f"{indent}# {comment(entry.because)}"
            entry = entry.value
        yield from _entry(f"{indent}{scalar(key)}:", entry, indent)


def _sequence(value: Sequence[Any], indent: str) -> Iterator[str]:
    for entry in value:
        if isinstance(entry, Said):
            yield f"{indent}# {comment(entry.because)}"
            entry = entry.value
        if isinstance(entry, Mapping) and entry:
            lines = list(_mapping(entry, indent + "  "))
            first = next(i for i, line in enumerate(lines) if not line.lstrip().startswith("#"))
            yield from lines[:first]
            yield f"{indent}- {lines[first].lstrip()}"
            yield from lines[first + 1 :]
        else:
            yield from _entry(f"{indent}-", entry, indent)


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(value, indent + "  ")
    elif isinstance(value, (list, tuple)) and value:
        yield head
        yield from _sequence(value, indent)
    elif isinstance(value, str) and _is_block(value):
        yield f"{head} |"
        yield from (f"{indent}  {line}" if line else "" for line in value.rstrip("\n").split("\n"))
    else:
        yield f"{head} {scalar(value)}"


def _is_block(text: str) -> bool:
    """Whether a block shows the text exactly: lines that print, the first not indented, one line end last."""
    lines = text.split("\n")
    return (
        len(lines) > 2
        and lines[-1] == ""
        and lines[-2] != ""
        and not text.startswith((" ", "\n"))
        and all(line.isprintable() and line == line.rstrip() for line in lines)
    )
