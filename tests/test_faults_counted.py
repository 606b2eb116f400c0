"""
How many rules of the catalogue a real fault in the lab has made speak.

Read from the tables of the fault tests (tests/test_faults_*.py): a rule counts where one of them names it.
Those tests run the command over ssh and compare what it says with the table, whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ringup.checks  # noqa: F401  (fills the registry)
from ringup.rules import CHECKS

HERE = Path(__file__).parent
FILES = sorted(p for p in HERE.glob("test_faults_*.py") if p != Path(__file__))
LEAST = 100
"""Forty-five were asked for; this many had spoken when it was last counted, and none may fall silent."""
SILENT = {"QUIET"}
"""Tables of faults of which nothing is said."""


def tables(path: Path) -> Iterator[tuple[str, ast.expr]]:
    """The tables of a test file: names in capitals that it assigns."""
    for statement in ast.parse(path.read_text()).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
        for target in targets:
            value = statement.value  # type: ignore[attr-defined]
            if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
                yield target.id, value


def named(path: Path) -> set[str]:
    """Rules that the tables of a test file expect to speak."""
    found: set[str] = set()
    for name, value in tables(path):
        if name not in SILENT:
            words = {n.value for n in ast.walk(value) if isinstance(n, ast.Constant)}
            found |= words & set(CHECKS)
    return found


def test_a_hundred_rules_have_spoken_of_a_real_fault_in_the_lab() -> None:
    spoken = set().union(*map(named, FILES))
    assert len(spoken) >= LEAST, f"only {len(spoken)}: {', '.join(sorted(spoken))}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_every_table_of_faults_is_of_a_lab(path: Path) -> None:
    assert not named(path) or "pytest.mark.lab" in path.read_text()


if __name__ == "__main__":
    for path in FILES:
        print(f"{path.name}: {', '.join(sorted(named(path)))}")
