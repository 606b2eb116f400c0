"""The package's source, parsed once for all tests of a process."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "ringup"


@functools.cache
def tree(path: Path) -> ast.Module:
    """A file's syntax; what is no Python is empty."""
    return ast.parse(path.read_text() if path.suffix == ".py" else "")


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax."""
    return list(ast.walk(tree(path)))


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))
