"""The shape of the code: plain names, small functions.  The exceptions only get fewer."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import trees as parsed
from tests.trees import SOURCE

Function = ast.FunctionDef | ast.AsyncFunctionDef

MOST_LINES, MOST_ARGUMENTS, MEDIAN_ARGUMENTS = 60, 7, 3
LONG: set[str] = set()
"""Functions that are too long today.  This list may only shrink."""
WIDE: set[str] = set()
"""Functions with too many arguments today.  This list may only shrink."""

TWICE = {
    *("Asked", "Behind", "Clock", "End", "Ended", "Errors", "Event", "Group", "Job"),
    *("Launch", "Link", "Listener", "Node", "Part", "Place", "Process", "Row"),
    *("RunEnd", "Stuck", "Table", "View", "Watch", "Way"),
}
"""Names of two classes today.  This list may only shrink."""

OUT = {
    "anew": 0,
    "asked": 6,
    "benched": 0,
    "beside": 1,
    "door": 0,
    "doubts": 0,
    "few": 0,
    "fold": 0,
    "heard": 0,
    "hearing": 0,
    "kept": 4,
    "look": 12,
    "looks": 3,
    "meant": 1,
    "meeting": 2,
    "offered": 0,
    "prove": 1,
    "proven": 2,
    "said": 1,
    "settle": 0,
    "settled": 0,
    "signs": 0,
    "stands": 0,
    "story": 1,
    "tails": 0,
    "told": 0,
    "voice": 0,
    "witness": 0,
    "wordings": 0,
}
"""Words of a private language, and how many names still hold each.  The numbers may only fall."""

RIDDLES = {
    "told": "told",
    "said": "said",
    "heard": "heard",
    "meant": "meant",
    "stands": "st(?:ands?|ood)",
    "beside": "beside",
    "anew": "anew",
    "whose own": "whose own",
    "whoever": "whoever",
    "goes round": "go(?:es|ne) round",
    "of ours": "of ours",
    "in words": "in words",
    "for want of": "for want of",
    "by itself": "by (?:itself|themselves)",
    "looked at": "looked at",
    "left to itself": "left to itself",
    "waved through": "waved through",
    "is no X": "(?<!there )(?:is|are) no (?!longer)[a-z]+",
    "processor": "(?<!word )processors?",
}
"""Name -> pattern of words that one reading does not explain: no comment, docstring or page has them."""


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Path below src/ringup -> syntax."""
    return {str(path.relative_to(SOURCE)): parsed.tree(path) for path in parsed.modules()}


def functions() -> Iterator[tuple[str, Function]]:
    for path in trees():
        yield from ((path, node) for node in parsed.nodes(SOURCE / path) if isinstance(node, Function))


def argument_count(function: Function) -> int:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_no_function_is_longer_than_a_screen() -> None:
    long = {f"{p}:{f.name}" for p, f in functions() if (f.end_lineno or 0) - f.lineno >= MOST_LINES}
    assert long <= LONG, f"split these: {sorted(long - LONG)}"


def test_no_function_takes_more_arguments_than_a_reader_can_keep_in_mind() -> None:
    counts = {f"{path}:{function.name}": argument_count(function) for path, function in functions()}
    assert {name for name, count in counts.items() if count > MOST_ARGUMENTS} <= WIDE
    assert statistics.median(counts.values()) <= MEDIAN_ARGUMENTS


def test_names_of_modules_classes_and_functions_are_plain() -> None:
    names = [part for path in trees() for part in Path(path).with_suffix("").parts[-1:]]
    for path in parsed.modules():
        names += [n.name for n in parsed.nodes(path) if isinstance(n, Function | ast.ClassDef)]
    words = Counter(
        word
        for name in names
        if not name.startswith("_")
        for word in set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))
    )
    found = {word: words[word] for word in OUT if words[word] > OUT[word]}
    assert found == {}, "say it in the field's words"


@functools.cache
def texts(path: str) -> tuple[str, ...]:
    """Comments and docstrings of a file, without examples."""
    found = re.findall(r"(?:^|\s)# (.+)", (SOURCE / path).read_text(), re.MULTILINE)
    for node in parsed.nodes(SOURCE / path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.append(re.sub(r">>>.*?(?=\n\s*\n|\Z)", "", str(node.value.value), flags=re.DOTALL))
    return tuple(found)


def pages() -> Iterator[tuple[str, str]]:
    """Prose of the documentation, without code blocks."""
    root = SOURCE.parent.parent
    for path in (root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))):
        if "examples" not in path.parts:
            text = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
            yield str(path.relative_to(root)), text


def riddles(text: str) -> list[str]:
    text = re.sub(r"`[^`]*`", "", text)
    return [name for name, words in RIDDLES.items() if re.search(rf"\b(?:{words})\b", text, re.IGNORECASE)]


def test_comments_docstrings_and_pages_are_plain() -> None:
    sources = [(p, text) for p in trees() for text in texts(p)]
    found = [(path, riddles(text), text) for path, text in [*sources, *pages()] if riddles(text)]
    assert found == [], "say it in the field's words"


WITH_EXAMPLES = [str(p.relative_to(SOURCE)) for p in parsed.modules() if ">>> " in p.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES)
def test_the_examples_in_the_docstrings_are_true(path: str) -> None:
    name = ".".join(("ringup", *Path(path).with_suffix("").parts)).removesuffix(".__init__")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_a_docstring_names_the_thing() -> None:
    """None begins with What or Who: that is a clause in place of a name."""
    found = [
        (path, text)
        for path in trees()
        for text in texts(path)
        if re.match(r"\s*(?:What|Who|Whoever)\b", text)
    ]
    assert found == []


def test_words_without_a_meaning_at_first_reading_are_recognised() -> None:
    assert riddles("The node is told anew, by itself.") == ["told", "anew", "by itself"]
    assert riddles("A path that is no regular file") == ["is no X"]
    assert riddles("There is no plan; the run is no longer alive; `said`") == []


def test_one_name_of_a_class_means_one_thing() -> None:
    """Those of the nodes' programs are their own, as they are read alone."""
    places: dict[str, list[str]] = {}
    for path, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and "agent/" not in path:
                places.setdefault(node.name, []).append(path)
    assert {name: p for name, p in places.items() if len(p) > 1 and name not in TWICE} == {}
