"""Every regular expression applied to foreign text costs time in proportion to that text."""

from __future__ import annotations

import ast
import contextlib
import importlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import pytest

from ringup.logs.lines import LINE_BYTES
from ringup.logs.patterns import PATTERNS
from tests import trees
from tests.regex_cost import cost
from tests.trees import SOURCE

MOST_STEPS = 400
"""For each character: a hostile megabyte costs seconds, however its lines are made."""

MADE_AT_RUN_TIME = {
    "lint/fixes.py": "a name in the script, escaped, in a line of at most 4,096 characters",
    "logs/defects.py": "the table's own patterns; see test_logs_defects.py",
    "logs/evidence.py": "what LogEvidence.all is asked for: found where it is called",
    "logs/lines.py": "escaped words, any of them",
    "logs/patterns/tags.py": "the table's own patterns, all of them below",
    "logs/read.py": "the user's own expression",
    "transport/bootstrap.py": "its own random mark, escaped, and a bounded rest of the line",
    "secrets.py": "its beginnings of tokens and words of commands; see test_secrets.py",
    "agent/rank/rank.py": "a name of the script, put into the constants above it",
}
OWN_TEXT = {"nccl/lines.py", "logs/patterns/tags.py", "logs/patterns/needles.py", "agent_bundle.py"}
"""Whose patterns read the package's own constants and sources."""

FUNCTIONS = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
ON_A_PATTERN = FUNCTIONS - {"compile"}


class Use(NamedTuple):
    where: str
    pattern: str | bytes
    flags: int
    method: str


class Module(NamedTuple):
    path: Path
    tree: ast.Module
    nodes: list[ast.AST]


def modules() -> Iterator[Module]:
    for path in trees.modules():
        yield Module(path, trees.tree(path), trees.nodes(path))


def methods_by_name(of: list[Module]) -> dict[str, set[str]]:
    """How compiled patterns are applied, by their names: one name means one way in the whole package."""
    found: dict[str, set[str]] = {}
    for module in of:
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and node.attr in ON_A_PATTERN:
                name = node.value.attr if isinstance(node.value, ast.Attribute) else ast.unparse(node.value)
                found.setdefault(name, set()).add(node.attr)
    return found


def names_in(path: Path, tree: ast.Module) -> dict[str, Any]:
    """What the module's names mean; `payload` is imported by nobody, so of it only plain constants."""
    if path.is_relative_to(SOURCE / "agent"):
        constants: dict[str, Any] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                constants |= {ast.unparse(target): node.value.value for target in node.targets}
        return constants
    name = ".".join(["ringup", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
    return vars(importlib.import_module(name)) if not name.endswith("__main__") else {}


def is_of_re(node: ast.AST) -> TypeGuard[ast.Call]:
    """Written as `re.search(...)`, `re.compile(...)`, ..."""
    match node:
        case ast.Call(ast.Attribute(ast.Name("re"), function)):
            return function in FUNCTIONS
    return False


def arguments_number_evidence(place: str, tree: ast.Module, known: dict[str, Any]) -> Iterator[Use]:
    """Patterns given to `LogEvidence.all`: of lines by `has` and `lacks`, of fields by their names."""
    for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
        names = dict(known)
        for node in ast.walk(function):
            match node:
                case ast.Assign([ast.Name(name)], (ast.Constant() | ast.BinOp() | ast.JoinedStr()) as value):
                    with contextlib.suppress(NameError, TypeError):  # not a constant
                        names[name] = eval(ast.unparse(value), dict(known))
                case ast.Call(ast.Attribute(_, "all"), keywords=keywords):
                    for given in keywords:
                        method = "search" if given.arg in ("has", "lacks") else "fullmatch"
                        with contextlib.suppress(NameError):  # an escaped word, a part of the log
                            pattern = eval(ast.unparse(given.value), dict(names))
                            yield Use(f"{place}:{node.lineno}", pattern, 0, method)


def uses() -> Iterator[Use]:
    package = list(modules())
    methods = methods_by_name(package)
    for path, tree, nodes in package:
        place = str(path.relative_to(SOURCE))
        if place.startswith("logs/causes/"):
            yield from arguments_number_evidence(place, tree, names_in(path, tree))
        calls = [node for node in nodes if is_of_re(node)]
        if not calls or place in OWN_TEXT:
            continue
        known = {"re": re, **names_in(path, tree)}
        names = {id(n.value): ast.unparse(n.targets[0]) for n in nodes if isinstance(n, ast.Assign)}
        for node in calls:
            function = ast.unparse(node.func).removeprefix("re.")
            given = {k.arg: k.value for k in node.keywords}
            place_of_flags = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(function, 2)
            flags = given.get("flags") or next(iter(node.args[place_of_flags:]), ast.Constant(0))
            try:
                pattern, bits = (eval(ast.unparse(a), dict(known)) for a in (node.args[0], flags))
            except Exception:
                assert place in MADE_AT_RUN_TIME, f"{place}:{node.lineno} {ast.unparse(node)}"
                continue
            if isinstance(pattern, re.Pattern):
                continue  # found where it is compiled
            if function != "compile":
                applied = {function}
            else:
                applied = methods.get(names.get(id(node), ""), set()) or {"search"}
            for method in sorted(applied):
                yield Use(f"{place}:{node.lineno}", pattern, int(bits), method)


def test_every_pattern_of_the_package_costs_time_in_proportion_to_the_text():
    found = list(uses())  # here, not for each pattern a test: every run of any test would parse the package
    assert len(found) > 250
    assert {u.where.split("/")[0] for u in found} >= {"logs", "lint", "parse", "agent", "transport", "checks"}
    costs = {use: cost(use.pattern, use.flags, method=use.method) for use in found}
    assert not {use: steps for use, steps in costs.items() if steps > MOST_STEPS}


@pytest.mark.parametrize("wording", PATTERNS, ids=lambda w: w.tag)
def test_a_wording_costs_time_in_proportion_to_the_line(wording):
    assert cost(wording.text, re.IGNORECASE, longest=LINE_BYTES) <= MOST_STEPS, wording


@pytest.mark.parametrize(
    "pattern, method",
    [
        (r"\d+x", "search"),
        (r"\s*foo", "search"),
        (r"[0-9a-f]+:[0-9a-f]{2}", "search"),
        (r"foo: .*bar", "search"),
        (r"^(a+)+$", "search"),
        (r"^(?:\w+\s*)*$", "search"),
        (r"^.*,.*,.*$", "search"),
        (r"^a.*?\s*$", "match"),
        (r"a*a*", "fullmatch"),
        (r"(?=.*x)y", "search"),
        (r"(?:ab?)*c", "search"),
        (r"\((?:[\w-]{1,120},?)+\)", "search"),
        (r"\((?:[\w-]{1,120},?){1,40}\)", "search"),
        (r"\((?:\w\w?)+\)", "match"),
    ],
)
def test_a_slow_pattern_is_noticed(pattern: str, method: str):
    assert cost(pattern, method=method) == math.inf


@pytest.mark.parametrize(
    "pattern, method",
    [
        (r"(?<!\d)\d+x", "search"),
        (r"\bfoo\b", "search"),
        (r"\[\d+\]", "search"),
        (r"^\s*foo", "search"),
        (r"\d+x", "match"),
        (r"foo (\S+) bar", "search"),
        (r"rank (\d+)", "search"),
        (r"(?:\w+,)*", "match"),
    ],
)
def test_a_fast_pattern_passes(pattern: str, method: str):
    assert cost(pattern, method=method) <= 1
