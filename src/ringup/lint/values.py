"""
The possible meanings of an expression: a rank, a local rank, a constant.

Flow-insensitive, within one file: a name is anything that is assigned to it in its function, a parameter
anything that its callers in this file pass.  `{"rank"}` means certainly the global rank; "?" in a set means
that it may be something else, and then no rule applies.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ringup.lint.source import SPAWNS, Call, Function, Script
from ringup.model import LOCAL_RANKS, RANKS

RANK, LOCAL, NODE, SPAWNED, ARGUMENT = "rank", "local", "node", "spawned", "argument"
LOOPED = "looped"
"""The variable of a loop over range(): a rank only where a started process gets it (then SPAWNED)."""
_OF_RANKS = frozenset((RANK, LOCAL, NODE, SPAWNED, f"{LOCAL}-argument"))
_NAMED_AFTER_RANKS = re.compile(r"(?i)^(?:\w+_)?rank$|^nr$|^(?:node|machine)(?:_?(?:id|index|nr))?$")
UNKNOWN = "?"
Values = frozenset[object]
"""Words above, or `Constant`s."""
NOTHING: Values = frozenset((UNKNOWN,))

# torchrun: torch.distributed.run; the others set by Slurm, Open MPI, Intel MPI, PMI.
ENVIRONMENT = {
    **dict.fromkeys(RANKS, RANK),
    **dict.fromkeys(LOCAL_RANKS, LOCAL),
    **dict.fromkeys(("NODE_RANK", "GROUP_RANK", "SLURM_NODEID"), NODE),
}
CALLS = {
    "torch.distributed.get_rank": RANK,
    "torch.distributed.get_node_local_rank": LOCAL,
    "torch.cuda.current_device": LOCAL,
    "jax.process_index": RANK,
    "deepspeed.comm.get_rank": RANK,
}
ATTRIBUTES = {"process_index": RANK, "local_process_index": LOCAL, "global_rank": RANK}
PASSING = ("int", "str", "float", "max", "min", "torch.device")
DEEPEST = 24


class Constant(NamedTuple):
    """A literal value; equal by type and value."""

    kind: type
    value: object


def constants(values: Values) -> list[object]:
    """The literals, if it can be nothing but a literal; else none."""
    found = [v.value for v in values if isinstance(v, Constant)]
    return found if len(found) == len(values) else []


def surely(values: Values, *words: str) -> bool:
    """Whether it is certainly one of these."""
    return bool(values) and values <= set(words)


class Reader:
    def __init__(self, script: Script) -> None:
        self.script = script
        self._assigned: dict[tuple[Function | None, str], list[Values | tuple[ast.expr, int]]]
        self._assigned = defaultdict(list)
        self._attributes: dict[str, list[ast.expr]] = defaultdict(list)
        self._callers: dict[str, list[Call]] = defaultdict(list)
        self._spawned: dict[str, list[Call]] = defaultdict(list)
        self._memo: dict[ast.expr, Values] = {}
        self._parts: dict[tuple[ast.expr, int], Values] = {}
        for node in script.nodes:
            self._note(node)
        for call in script.calls:
            self._callers[call.last].append(call)
            function = call.argument("target") if call.last == "Process" else None
            function = call.argument("fn", 0) if call.name in SPAWNS else function
            if isinstance(function, ast.Name | ast.Attribute):
                self._spawned[script.last(function)].append(call)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, NOTHING)
        elif isinstance(node, ast.For):
            is_range = isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") == "range"
            self._assign(node.target, frozenset((LOOPED,)) if is_range else NOTHING)

    def _assign(self, target: ast.expr, value: ast.expr | Values, at: int = -1) -> None:
        if isinstance(target, ast.Name):
            given = value if isinstance(value, frozenset) else (value, at)
            self._assigned[self.script.function_of(target), target.id].append(given)
        elif isinstance(target, ast.Attribute) and isinstance(value, ast.expr) and at < 0:
            self._attributes[target.attr].append(value)
        elif isinstance(target, ast.Tuple | ast.List) and at < 0:
            for number, element in enumerate(target.elts):
                self._assign(element, value, number)

    # -- reading -------------------------------------------------------------------------------

    def of(self, node: ast.expr | None, depth: int = 0) -> Values:
        if node is None or depth > DEEPEST:
            return NOTHING
        if node not in self._memo:
            self._memo[node] = frozenset()  # a self-reference adds nothing
            self._memo[node] = self._of(node, depth + 1)
        return self._memo[node]

    def _of(self, node: ast.expr, depth: int) -> Values:
        if isinstance(node, ast.Constant):
            return frozenset((Constant(type(node.value), node.value),))
        if isinstance(node, ast.Name):
            return self._name(node, depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, ast.Subscript):
            return self._environment(self.script.dotted(node.value) + ".get", [node.slice])
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node, depth)
        if isinstance(node, ast.IfExp):
            return self.of(node.body, depth) | self.of(node.orelse, depth)
        if isinstance(node, ast.BoolOp):
            return self._union(self.of(v, depth) for v in node.values)
        if isinstance(node, ast.NamedExpr):
            return self.of(node.value, depth)
        return NOTHING

    def _union(self, values: Iterable[Values]) -> Values:
        return frozenset().union(*values) or NOTHING

    def _name(self, node: ast.Name, depth: int) -> Values:
        inside = self.script.function_of(node)
        while True:
            given = self._assigned.get((inside, node.id), [])
            found = [g if isinstance(g, frozenset) else self._element(*g, depth) for g in given]
            if inside is not None and node.id in parameters(inside):
                found.append(self._parameter(inside, node.id, depth))
            if found:
                return self._union(found)
            if inside is None:
                return NOTHING
            inside = self.script.function_of(inside)

    def _element(self, value: ast.expr, at: int, depth: int) -> Values:
        """The at-th part of a tuple, written out or returned by a function of this file; -1: the value."""
        if at < 0:
            return self.of(value, depth)
        if isinstance(value, ast.Tuple | ast.List):
            return self.of(value.elts[at], depth) if at < len(value.elts) else NOTHING
        if isinstance(value, ast.Call) and depth < DEEPEST:
            function = self.script.functions.get(self.script.last(value.func))
            if function is not None and (value, at) not in self._parts:
                self._parts[value, at] = frozenset()  # a function that returns its own call adds nothing
                parts = (self._element(r, at, depth + 1) for r in _returns(function))
                self._parts[value, at] = self._union(parts)
            return self._parts.get((value, at), NOTHING)
        return NOTHING

    def _parameter(self, function: Function, name: str, depth: int) -> Values:
        """The arguments of its callers; unknown if no call is in this file."""
        names, defaults = parameters(function), function.args.defaults
        at = names.index(name)
        from_end = at - (len(names) - len(defaults))
        default = defaults[from_end] if 0 <= from_end < len(defaults) else None
        at -= names[0] in ("self", "cls")
        found = [
            self.of(c.argument(name, at) or default, depth) for c in self._callers.get(function.name, [])
        ]
        found += [self._spawn_argument(call, at, depth) for call in self._spawned.get(function.name, [])]
        return self._union(found)

    def _spawn_argument(self, call: Call, at: int, depth: int) -> Values:
        extra = call.argument("args", 1 if call.name in SPAWNS else 3)
        given: Sequence[ast.expr] = extra.elts if isinstance(extra, ast.Tuple | ast.List) else ()
        if call.name in SPAWNS:
            if at == 0:
                return frozenset((SPAWNED,))
            at -= 1
        found = self.of(given[at], depth) if at < len(given) else NOTHING
        return frozenset(SPAWNED if v == LOOPED else v for v in found)

    def _attribute(self, node: ast.Attribute, depth: int) -> Values:
        declared = {s.lstrip("-").replace("-", "_") for a in self.script.arguments for s in a.spellings}
        found = [self.of(value, depth) for value in self._attributes.get(node.attr, ())]
        if node.attr in declared:
            found.append(frozenset((f"{LOCAL}-argument" if node.attr == "local_rank" else ARGUMENT,)))
        if not found and node.attr in ATTRIBUTES:
            return frozenset((ATTRIBUTES[node.attr],))
        return self._union(found)

    def _environment(self, name: str, arguments: Sequence[ast.expr]) -> Values:
        if name in ("os.environ.get", "os.getenv", "os.environ.__getitem__", "os.environ.setdefault"):
            variable = arguments[0] if arguments else None
            if isinstance(variable, ast.Constant) and isinstance(variable.value, str):
                return frozenset((ENVIRONMENT.get(variable.value, "environment"),))
        return NOTHING

    def _call(self, node: ast.Call, depth: int) -> Values:
        name = self.script.dotted(node.func)
        if name in CALLS:
            return frozenset((UNKNOWN,) if name.endswith("get_rank") and node.args else (CALLS[name],))
        if name in PASSING and node.args:
            return self.of(node.args[-1], depth)
        found = self._environment(name, node.args)
        if UNKNOWN not in found:
            return found
        function = self.script.functions.get(name.rpartition(".")[2])
        if function is not None and depth < DEEPEST:
            return self._union(self.of(r, depth) for r in _returns(function))
        return NOTHING

    def _arithmetic(self, node: ast.BinOp, depth: int) -> Values:
        left = self.of(node.left, depth)
        if isinstance(node.op, ast.Mod) and (surely(left, RANK, SPAWNED) or left & {RANK}):
            return frozenset((LOCAL,))
        if isinstance(node.op, ast.Mod) and surely(left, LOOPED):
            return left
        scaled = any(isinstance(s, ast.BinOp) and isinstance(s.op, ast.Mult) for s in (node.left, node.right))
        if isinstance(node.op, ast.Add) and scaled and self._has_rank(node, depth):
            return frozenset((RANK,))  # node * ranks per node + local rank
        return NOTHING

    def _has_rank(self, node: ast.BinOp, depth: int) -> bool:
        """Whether a part of a sum is a rank by value or name; `epoch * steps + step` has none."""
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute | ast.Subscript)]
        named = any(_NAMED_AFTER_RANKS.search(self.script.last(n)) for n in names)
        return named or any(self.of(n, depth) & _OF_RANKS for n in names)


def parameters(function: Function) -> list[str]:
    """The names of a function's parameters, positional ones first."""
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _returns(function: Function) -> list[ast.expr]:
    return [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
