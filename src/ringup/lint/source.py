"""A training script as text that was read, never run: calls by full name, functions, arguments."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef
SPAWNS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
INIT = "torch.distributed.init_process_group"


@dataclass(frozen=True)
class Call:
    """One call: `name` is dotted and resolved through the imports ("torch.distributed.barrier")."""

    node: ast.Call
    name: str
    inside: Function | None
    """The function it stands in; None at module level."""

    @property
    def line(self) -> int:
        """Where it begins, from 1."""
        return self.node.lineno

    def argument(self, name: str, position: int = -1) -> ast.expr | None:
        """A keyword's value, or the one at a position; None when it is not given."""
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return keyword.value
        if 0 <= position < len(self.node.args):
            given = self.node.args[position]
            return None if isinstance(given, ast.Starred) else given
        return None


@dataclass(frozen=True)
class Argument:
    """A command-line option that the script declares (argparse, click, absl): its spellings."""

    spellings: tuple[str, ...]
    line: int
    default: ast.expr | None
    is_required: bool = False


@dataclass(frozen=True, eq=False)
class Script:
    """A parsed script."""

    path: str
    text: str
    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    """Name in the script -> the dotted name it was imported from."""
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    @functools.cached_property
    def calls(self) -> tuple[Call, ...]:
        """Every call, in order of lines."""
        found = [
            Call(node, self.dotted(node.func), self.function_of(node))
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
        ]
        return tuple(sorted(found, key=lambda call: (call.line, call.node.col_offset)))

    @functools.cached_property
    def functions(self) -> dict[str, Function]:
        """Functions and methods by bare name; of two with one name the first."""
        found: dict[str, Function] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.setdefault(node.name, node)
        return found

    @functools.cached_property
    def imported(self) -> frozenset[str]:
        """Top-level names of the packages it imports."""
        return frozenset(name.split(".")[0] for name in self.aliases.values())

    @functools.cached_property
    def strings(self) -> frozenset[str]:
        """Every short string in its code, docstrings left out."""
        return frozenset(
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and len(node.value) < 100
            and not isinstance(self.parents.get(node), ast.Expr)
        )

    @functools.cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Options declared with add_argument, click.option or absl's DEFINE_*."""
        return tuple(self._arguments())

    def _arguments(self) -> Iterator[Argument]:
        for call in self.calls:
            last = call.name.rpartition(".")[2]
            if last not in ("add_argument", "option") and not last.startswith("DEFINE_"):
                continue
            words = [a.value for a in call.node.args if isinstance(a, ast.Constant)]
            names = tuple(w for w in words if isinstance(w, str) and (w.startswith("-") or "DEFINE" in last))
            if names:
                required = getattr(call.argument("required"), "value", False) is True
                yield Argument(names, call.line, call.argument("default"), required)

    def named(self, *names: str) -> list[Call]:
        """Calls of any of these dotted names."""
        return [call for call in self.calls if call.name in names]

    def dotted(self, node: ast.AST) -> str:
        """
        The dotted name of an expression, "" for one that has none.

        >>> script = read("x.py", "import torch.distributed as d" + chr(10) + "d.barrier()")
        >>> script.calls[0].name
        'torch.distributed.barrier'
        """
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else f"?.{node.attr}"
        return ""

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(parent, child) from a node up to the module."""
        while node in self.parents:
            yield self.parents[node], node
            node = self.parents[node]

    def function_of(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        return next(
            (p for p, _ in self.above(node) if isinstance(p, ast.FunctionDef | ast.AsyncFunctionDef)), None
        )

    def conditions(self, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
        """Tests of the ifs around a node within its function, and whether it is in the branch taken."""
        for parent, child in self.above(node):
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return
            if isinstance(parent, ast.If | ast.While) and child is not parent.test:
                yield parent.test, child not in parent.orelse
            elif isinstance(parent, ast.IfExp) and child is not parent.test:
                yield parent.test, child is parent.body


def read(path: str, text: str) -> Script:
    """
    Parse a script; nothing of it is imported or run.

    Raises SyntaxError (also for a NUL byte or nesting too deep) where Python cannot read it.
    """
    try:
        tree = ast.parse(text)
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from error
    return Script(path, text, tree, dict(_aliases(tree)), parents)


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield (name.asname, name.name) if name.asname else (name.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                yield name.asname or name.name, f"{node.module}.{name.name}"
