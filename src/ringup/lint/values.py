"""
What an expression may be: a rank, a local rank, a count, a constant.

Flow-insensitive, over one file: a name is whatever is assigned to it anywhere in its function, a
parameter whatever its callers in this file pass.  `{"rank"}` means surely the global rank; "?" in a set
means that it may be something else, and then no rule speaks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from ringup.lint.source import SPAWNS, Call, Function, Script

RANK, LOCAL, WORLD, DEVICES, NODE, SPAWNED, ARGUMENT = (
    "rank",
    "local",
    "world",
    "devices",
    "node",
    "spawned",
    "argument",
)
UNKNOWN = "?"
Values = frozenset[object]
"""Words above, or `Constant`s."""

# torchrun: torch.distributed.run; the others set by Slurm, Open MPI, Intel MPI, PMI.
ENVIRONMENT = {
    **dict.fromkeys(("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"), RANK),
    **dict.fromkeys(("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"), LOCAL),
    **dict.fromkeys(("WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE"), WORLD),
    **dict.fromkeys(("LOCAL_WORLD_SIZE", "SLURM_GPUS_ON_NODE", "SLURM_NTASKS_PER_NODE"), DEVICES),
    **dict.fromkeys(("NODE_RANK", "GROUP_RANK", "SLURM_NODEID"), NODE),
}
CALLS = {
    "torch.distributed.get_rank": RANK,
    "torch.distributed.get_world_size": WORLD,
    "torch.distributed.get_node_local_rank": LOCAL,
    "torch.cuda.device_count": DEVICES,
    "torch.cuda.current_device": LOCAL,
    "jax.process_index": RANK,
    "deepspeed.comm.get_rank": RANK,
}
ATTRIBUTES = {"process_index": RANK, "local_process_index": LOCAL, "global_rank": RANK}
PASSING = ("int", "str", "float", "max", "min", "torch.device")
DEEPEST = 24


class Constant:
    """A literal value; equal by value and type."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and (type(self.value), self.value) == (
            type(other.value),
            other.value,
        )

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


def constants(values: Values) -> list[object]:
    """The literals, if it can be nothing but a literal; else none."""
    found = [v.value for v in values if isinstance(v, Constant)]
    return found if len(found) == len(values) else []


def surely(values: Values, *words: str) -> bool:
    """Whether it can be nothing but these."""
    return bool(values) and values <= set(words)


class Reader:
    """Values in one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._assigned: dict[tuple[Function | None, str], list[tuple[ast.expr | None, int]]] = {}
        self._attributes: dict[str, list[tuple[ast.expr, Function | None]]] = {}
        self._callers: dict[str, list[Call]] = {}
        self._spawned: dict[str, list[Call]] = {}
        self._memo: dict[tuple[int, int], Values] = {}
        for node in ast.walk(script.tree):
            self._note(node)
        for call in script.calls:
            self._note_call(call)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._assign(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._assign(node.target, node.value)
        elif isinstance(node, ast.AugAssign):
            self._assign(node.target, None)
        elif isinstance(node, ast.For):
            self._assign(node.target, node.iter if _is_range(node.iter) else None, loop=True)

    def _assign(self, target: ast.expr, value: ast.expr | None, *, loop: bool = False) -> None:
        inside = self.script.function_of(target)
        if isinstance(target, ast.Name):
            self._assigned.setdefault((inside, target.id), []).append((value, -2 if loop else -1))
        elif isinstance(target, ast.Attribute) and value is not None:
            self._attributes.setdefault(target.attr, []).append((value, inside))
        elif isinstance(target, ast.Tuple | ast.List):
            for at, element in enumerate(target.elts):
                if isinstance(element, ast.Name):
                    self._assigned.setdefault((inside, element.id), []).append((None if loop else value, at))

    def _note_call(self, call: Call) -> None:
        name = call.name.rpartition(".")[2]
        self._callers.setdefault(name, []).append(call)
        function = None
        if call.name in SPAWNS:
            function = call.argument("fn", 0)
        elif name == "Process":
            function = call.argument("target")
        if isinstance(function, ast.Name | ast.Attribute):
            self._spawned.setdefault(self.script.dotted(function).rpartition(".")[2], []).append(call)

    # -- reading -------------------------------------------------------------------------------

    def of(self, node: ast.expr | None, depth: int = 0) -> Values:
        """What an expression may be."""
        if node is None or depth > DEEPEST:
            return frozenset((UNKNOWN,))
        key = (id(node), -1)
        if key not in self._memo:
            self._memo[key] = frozenset()  # what refers to itself adds nothing
            self._memo[key] = self._of(node, depth + 1)
        return self._memo[key]

    def _of(self, node: ast.expr, depth: int) -> Values:
        if isinstance(node, ast.Constant):
            return frozenset((Constant(node.value),))
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
            return frozenset().union(*(self.of(v, depth) for v in node.values))
        if isinstance(node, ast.NamedExpr):
            return self.of(node.value, depth)
        return frozenset((UNKNOWN,))

    def _union(self, values: Iterable[Values]) -> Values:
        return frozenset().union(*values) or frozenset((UNKNOWN,))

    def _name(self, node: ast.Name, depth: int) -> Values:
        inside = self.script.function_of(node)
        while True:
            given = self._assigned.get((inside, node.id), [])
            found = [self._assigned_value(value, at, depth) for value, at in given]
            if inside is not None and node.id in _parameters(inside):
                found.append(self._parameter(inside, node.id, depth))
            if found:
                return self._union(found)
            if inside is None:
                return frozenset((UNKNOWN,))
            inside = self.script.function_of(inside)

    def _assigned_value(self, value: ast.expr | None, at: int, depth: int) -> Values:
        if at == -2:
            return frozenset((SPAWNED if value is not None else UNKNOWN,))
        return self.of(value, depth) if at == -1 else self._element(value, at, depth)

    def _element(self, value: ast.expr | None, at: int, depth: int) -> Values:
        """The at-th part of a tuple: written out, or returned by a function of this file."""
        if isinstance(value, ast.Tuple | ast.List):
            return self.of(value.elts[at], depth) if at < len(value.elts) else frozenset((UNKNOWN,))
        if isinstance(value, ast.Call) and depth < DEEPEST:
            function = self.script.functions.get(self.script.dotted(value.func).rpartition(".")[2])
            if function is not None:
                return self._union(self._element(r, at, depth + 1) for r in _returns(function))
        return frozenset((UNKNOWN,))

    def _parameter(self, function: Function, name: str, depth: int) -> Values:
        """What its callers pass; unknown when nobody here calls it."""
        names = _parameters(function)
        at = names.index(name)
        method = bool(names) and names[0] in ("self", "cls")
        found: list[Values] = []
        for call in self._callers.get(function.name, []):
            given = call.argument(name, at - method)
            found.append(self.of(given, depth) if given is not None else self._default(function, name, depth))
        for call in self._spawned.get(function.name, []):
            found.append(self._spawn_argument(call, at - method, depth))
        return self._union(found)

    def _spawn_argument(self, call: Call, at: int, depth: int) -> Values:
        extra = call.argument("args", 1 if call.name in SPAWNS else 3)
        given: Sequence[ast.expr] = extra.elts if isinstance(extra, ast.Tuple | ast.List) else ()
        if call.name in SPAWNS:
            if at == 0:
                return frozenset((SPAWNED,))
            at -= 1
        return self.of(given[at], depth) if at < len(given) else frozenset((UNKNOWN,))

    def _default(self, function: Function, name: str, depth: int) -> Values:
        names, defaults = _parameters(function), function.args.defaults
        at = names.index(name) - (len(names) - len(defaults))
        return self.of(defaults[at], depth) if 0 <= at < len(defaults) else frozenset((UNKNOWN,))

    def _attribute(self, node: ast.Attribute, depth: int) -> Values:
        declared = {s.lstrip("-").replace("-", "_") for a in self.script.arguments for s in a.spellings}
        found = [self.of(value, depth) for value, _ in self._attributes.get(node.attr, ())]
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
        return frozenset((UNKNOWN,))

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
        return frozenset((UNKNOWN,))

    def _arithmetic(self, node: ast.BinOp, depth: int) -> Values:
        left = self.of(node.left, depth)
        if isinstance(node.op, ast.Mod) and (surely(left, RANK, SPAWNED) or left & {RANK}):
            return frozenset((LOCAL,))
        scaled = any(isinstance(s, ast.BinOp) and isinstance(s.op, ast.Mult) for s in (node.left, node.right))
        if isinstance(node.op, ast.Add) and scaled:
            return frozenset((RANK,))  # node * ranks per node + local rank
        return frozenset((UNKNOWN,))


def _is_range(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"


def _parameters(function: Function) -> list[str]:
    return [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _returns(function: Function) -> list[ast.expr]:
    return [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
