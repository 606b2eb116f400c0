"""A parsed training script, never run: calls by full name, functions, arguments."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

Function = ast.FunctionDef | ast.AsyncFunctionDef
Kind = TypeVar("Kind", bound=ast.AST)
SPAWNS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
STARTS_RANKS = (*SPAWNS, "detectron2.engine.launch", "detectron2.engine.launch.launch")
"""Calls that start the ranks of a node."""
INIT = "torch.distributed.init_process_group"
MESHES = (
    "torch.distributed.init_device_mesh",
    "torch.distributed.device_mesh.init_device_mesh",
    "torch.distributed.tensor.init_device_mesh",
    "torch.distributed.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard",
)
"""They call init_process_group() themselves if it was not called, and choose the rank's GPU (torch 2.13)."""


@dataclass(frozen=True)
class Call:
    """One call: `name` is dotted and resolved through the imports ("torch.distributed.barrier")."""

    node: ast.Call
    name: str
    inside: Function | None
    """The function around it; None at module level."""

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def last(self) -> str:
        """The name without its modules and objects."""
        return self.name.rpartition(".")[2]

    def argument(self, name: str, position: int = -1) -> ast.expr | None:
        """A keyword's value, or the one at a position; None if missing."""
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
    is_required: bool = False


@dataclass(frozen=True, eq=False)
class Script:
    path: str
    text: str
    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    """Name in the script -> the dotted name of its import."""
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The whole tree, walked once for all rules."""
        return tuple(ast.walk(self.tree))

    def of_kind(self, kind: type[Kind]) -> Iterator[Kind]:
        return (node for node in self.nodes if isinstance(node, kind))

    @functools.cached_property
    def calls(self) -> tuple[Call, ...]:
        found = [Call(n, self.dotted(n.func), self.function_of(n)) for n in self.of_kind(ast.Call)]
        return tuple(sorted(found, key=lambda call: (call.line, call.node.col_offset)))

    @functools.cached_property
    def functions(self) -> dict[str, Function]:
        """Functions and methods by bare name; the first one of two with one name."""
        found: dict[str, Function] = {}
        for node in self.nodes:
            if isinstance(node, Function):
                found.setdefault(node.name, node)
        return found

    @functools.cached_property
    def imported(self) -> frozenset[str]:
        """Top-level names of the packages it imports."""
        return frozenset(name.split(".")[0] for name in self.aliases.values())

    @functools.cached_property
    def strings(self) -> frozenset[str]:
        """Every short string in its code, without docstrings."""
        return frozenset(
            node.value
            for node in self.of_kind(ast.Constant)
            if isinstance(node.value, str)
            and len(node.value) < 100
            and not isinstance(self.parents.get(node), ast.Expr)
        )

    @functools.cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """Options declared with add_argument, click.option or absl's DEFINE_*."""
        found = []
        for call in self.calls:
            last = call.last
            if last not in ("add_argument", "option") and not last.startswith("DEFINE_"):
                continue
            words = [a.value for a in call.node.args if isinstance(a, ast.Constant)]
            names = tuple(w for w in words if isinstance(w, str) and (w.startswith("-") or "DEFINE" in last))
            if names:
                required = getattr(call.argument("required"), "value", False) is True
                found.append(Argument(names, call.line, required))
        return tuple(found)

    def named(self, *names: str) -> list[Call]:
        return [call for call in self.calls if call.name in names]

    def last(self, node: ast.AST) -> str:
        return self.dotted(node).rpartition(".")[2]

    def dotted(self, node: ast.AST) -> str:
        """The dotted name of an expression, with resolved imports; "" if it has none."""
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
        return next((p for p, _ in self.above(node) if isinstance(p, Function)), None)

    def conditions(self, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
        """Tests of the ifs around a node within its function, and whether its branch is taken."""
        for parent, child in self.above(node):
            if isinstance(parent, Function | ast.Lambda):
                return
            if isinstance(parent, ast.If | ast.While) and child is not parent.test:
                yield parent.test, child not in parent.orelse
            elif isinstance(parent, ast.IfExp) and child is not parent.test:
                yield parent.test, child is parent.body


def read(path: str, text: str) -> Script:
    """
    Parse a script; none of it is imported or run.

    Raises SyntaxError (also for a NUL byte or nesting too deep) if Python cannot read it.
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
