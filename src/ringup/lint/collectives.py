"""Collectives that only some ranks reach: the others wait until the timeout."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Literal

from ringup.lint.ranks import Reading
from ringup.lint.rendezvous import COLLECTIVES
from ringup.lint.rule import SCRIPT, Found, fault
from ringup.lint.source import Call, Function
from ringup.lint.values import ARGUMENT, LOCAL, RANK, SPAWNED, parameters
from ringup.units import printable

Side = Literal["zero", "others", ""]
"""The ranks that a condition lets through, as far as it concerns ranks: one (mostly 0), or all others."""

_OF_RANK = (
    "global local world node machine group dist distributed ddp fsdp my own this self cur current mpi proc"
)
_OF_RANK += " process worker gpu device slurm trainer pg replica shard stage coord dp tp pp mp ep sp cp"
_WORDS = "|".join([*_OF_RANK.split(), r"(?:data|tensor|model|pipeline|expert|sequence|context)_?parallel"])
_RANK_NAME = re.compile(rf"^(?:(?:{_WORDS})_){{0,3}}(?:rank|gpu_id|process_index)$")
"""Names of ranks of processes, not of matrices: no `lora_rank`."""
_MAIN_NAME = re.compile(
    r"^(?:is_)?(?:local_|world_|global_)?(?:main|master|(?:global_|rank_?|process_)(?:0|zero))(?:_process|_rank)?$"
)
_SIZE_NAME = re.compile(r"^(?:get_)?(?:world_?size|num_processes|nprocs)$")
_ONE = ((ast.Eq, "1"), (ast.LtE, "1"), (ast.Lt, "2"))
_SWAPPED: dict[Side, Side] = {"zero": "others", "others": "zero", "": ""}
METHODS = {
    "accelerate": ("wait_for_everyone", "gather", "gather_for_metrics", "reduce", "save_state", "backward"),
    "deepspeed": ("save_checkpoint", "load_checkpoint", "backward", "step"),
    "transformers": ("train", "evaluate", "predict"),
    "trl": ("train", "evaluate"),
}
"""Methods that every process must call, of objects made by a call of that package."""
OF_SHARDED = {
    "accelerate": ("get_state_dict", "save_model"),
    "deepspeed": ("save_16bit_model", "_zero3_consolidated_16bit_state_dict"),
    "transformers": ("save_model",),
    "trl": ("save_model",),
}
"""The same, where the parameters are sharded (`_is_sharded`)."""
MORE = (*COLLECTIVES, "torch.distributed.new_group", "torch.distributed.checkpoint.save")
MORE += ("torch.distributed.checkpoint.load", "torch.distributed.checkpoint.async_save")
_STAGE_3 = re.compile(r"[\"']stage[\"'] {0,4}: {0,4}3\b|\bzero_stage {0,4}= {0,4}3\b")
"""With it DeepSpeed's ranks gather the parameters that they save."""
_GROUP_AT = dict.fromkeys(("barrier", "monitored_barrier"), 0)
_GROUP_AT |= dict.fromkeys(("reduce", "reduce_scatter", "reduce_scatter_tensor", "gather", "scatter"), 3)
_GROUP_AT |= dict.fromkeys(("gather_object", "scatter_object_list"), 3)
_GROUP_AT |= {name.rpartition(".")[2]: 2 for name in COLLECTIVES if name.rpartition(".")[2] not in _GROUP_AT}
"""Position of the process group among a collective's arguments (torch/distributed/distributed_c10d.py)."""
_OTHER_STAGE = re.compile(r"(?:[\"']stage[\"'] {0,4}:|\bzero_stage {0,4}=)(?! {0,4}3\b)")
FULL_STATE = tuple(
    f"torch.distributed.checkpoint.state_dict.get_{part}state_dict" for part in ("", "model_", "optimizer_")
)
"""Calls that gather what FSDP has sharded, with `full_state_dict=True`."""
FSDP = ("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.FSDP")
_NOT_GATHERED = re.compile(
    r"NO_SHARD|SHARD_GRAD_OP|ZERO2|LOCAL_STATE|SHARDED_STATE|LocalState|ShardedState|summon_full_params|_hook\("
    r"|sharding_strategy {0,4}=(?! {0,4}[\w.]{0,80}\b(?:FULL|HYBRID)_SHARD\b)"
    r"|state_dict_type\((?![^)]{0,200}\bFULL_STATE_DICT\b)"
)
"""Code by which a state_dict() or a forward pass of FSDP may need no other rank."""
_TRAINERS = "transformers.Trainer transformers.Seq2SeqTrainer trl.SFTTrainer trl.DPOTrainer trl.RewardTrainer"
OFFICIAL = ("accelerate.Accelerator", "deepspeed.initialize", *_TRAINERS.split())


class Sides:
    def __init__(self, read: Reading) -> None:
        self.read, self.script = read, read.script
        self.made = self._made()
        sizes = (c.argument("r") for c in self.script.calls)
        self.of_matrices = {ast.unparse(size) for size in sizes if size is not None}
        """Expressions given as `r=`, as peft.LoraConfig takes the rank of its matrices."""
        self.fsdp = self._fsdp()
        self.is_sharded = self._is_sharded()
        self.direct = {c for c in self.script.calls if self.is_collective(c)}
        self.reaching = self._reaching()

    def _made(self) -> dict[str, str]:
        """Name of a variable -> package of its object."""
        found = {}
        for node in self.script.of_kind(ast.Assign):
            name = self.script.dotted(node.value.func) if isinstance(node.value, ast.Call) else ""
            if name in OFFICIAL:
                target = node.targets[0]
                first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
                found[self.script.dotted(first)] = name.split(".")[0]
        return found

    def _is_sharded(self) -> bool:
        """Whether the script, or a JSON file that it names, certainly chooses ZeRO-3 or accelerate's FSDP."""
        given = (c.argument(name) for c in self.script.calls for name in ("config", "deepspeed"))
        named = [g.value for g in given if isinstance(g, ast.Constant) and isinstance(g.value, str)]
        texts = [self.script.text, *(self.read.nearby(name) or "" for name in named)]
        plugins = (c.argument("fsdp_plugin") for c in self.script.calls)
        is_stage_3 = any(map(_STAGE_3.search, texts)) and not any(map(_OTHER_STAGE.search, texts))
        return is_stage_3 or any(isinstance(plugin, ast.Call) for plugin in plugins)

    def _gathers_all(self, call: Call) -> bool:
        """Whether a call outside a class gathers the state of a model that FSDP certainly has sharded."""
        options = call.argument("options", 2 if call.name == FULL_STATE[0] else 1)
        if isinstance(options, ast.Name):
            named = self.script.of_kind(ast.Assign)
            same = [n.value for n in named if options.id in map(self.script.dotted, n.targets)]
            options = same[0] if len(same) == 1 else None
        is_full = isinstance(options, ast.Call) and any(
            k.arg == "full_state_dict" and getattr(k.value, "value", None) is True for k in options.keywords
        )
        shards = (c for c in self.script.calls if c.last == "fully_shard" or c.name in FSDP)
        return is_full and any(not any(self.script.conditions(c.node)) for c in shards)

    def _fsdp(self) -> set[tuple[Function | None, str]]:
        """(function, name) of variables that certainly are models of FSDP1, whose full state is gathered."""
        if _NOT_GATHERED.search(self.script.text):
            return set()
        found, other = set(), set()
        for node in self.script.of_kind(ast.Name):
            if not isinstance(node.ctx, ast.Store):
                continue
            key, assigned = (self.script.function_of(node), node.id), self.script.parents.get(node)
            value = assigned.value if isinstance(assigned, ast.Assign) else None
            call = value if isinstance(value, ast.Call) and len(value.args) == 1 else None
            is_whole = call is not None and all(k.arg for k in call.keywords)
            is_fsdp = call is not None and is_whole and self.script.dotted(call.func) in FSDP
            is_plain = value is not None and key not in found  # an earlier model, before it is wrapped
            if is_fsdp and not any(self.script.conditions(node)):
                found.add(key)
            elif not is_plain:
                other.add(key)
        return self._passed(found - other)

    def _passed(self, found: set[tuple[Function | None, str]]) -> set[tuple[Function | None, str]]:
        """These, and the parameters of this script's functions that get nothing else."""
        passed = set(found)
        for function in self.script.functions.values() if found else ():
            calls = [c for c in self.script.calls if c.name == function.name]
            names = (n for n in ast.walk(function) if isinstance(n, ast.Name))
            stored = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
            for at, name in enumerate(parameters(function)):
                given = [(c.inside, ast.unparse(a)) for c in calls if (a := c.argument(name, at))]
                if len(given) == len(calls) > 0 and name not in stored and found.issuperset(given):
                    passed.add((function, name))
        return passed

    def _gathers(self, forward: Call) -> bool:
        """
        Whether parameters are sharded before a forward pass: those of wrapped layers always, those of the
        root after backward() only.
        """
        passes = [c for c in self.script.calls if c.name == forward.name and c.inside is forward.inside]
        is_after_backward = len(passes) <= 2 and any(c.last == "backward" for c in self.script.calls)
        return is_after_backward or "auto_wrap_policy" in self.script.text

    def is_collective(self, call: Call) -> bool:
        """Whether every rank (of the whole world) has to make this call."""
        if call.name in MORE:
            groups = (call.argument("group", _GROUP_AT.get(call.last, -1)), call.argument("process_group"))
            return groups == (None, None)
        owner, _, method = call.name.rpartition(".")
        if (call.inside, owner or method) in self.fsdp:
            return method == "state_dict" or (not owner and self._gathers(call))
        if call.name in FULL_STATE:
            return self._gathers_all(call)
        if call.name == "deepspeed.zero.GatheredParameters":
            return self.is_sharded
        package = self.made.get(owner, "")
        return method in METHODS.get(package, ()) or (
            self.is_sharded and method in OF_SHARDED.get(package, ())
        )

    def _reaching(self) -> dict[str, str]:
        """Functions of this script that all ranks must enter -> the collective in them."""
        found: dict[str, str] = {}
        for _ in range(4):
            for call in self.script.calls:
                what = call.last if call in self.direct else found.get(self.own(call), "")
                if what and call.inside and not self.gate(call.node)[0] and not self._is_optional(call):
                    found.setdefault(call.inside.name, what)
        return found

    def _is_optional(self, call: Call) -> bool:
        """Whether it depends on a parameter, so that a caller may have turned it off."""
        names = parameters(call.inside) if call.inside else []
        tests = (n for test, _ in self.script.conditions(call.node) for n in ast.walk(test))
        return any(isinstance(n, ast.Name) and n.id in names for n in tests)

    def own(self, call: Call) -> str:
        """Name of a function of this script that is called, "" for any other."""
        owner, _, name = call.name.rpartition(".")
        return name if owner in ("", "self") and name in self.script.functions else ""

    # -- conditions ----------------------------------------------------------------------------

    def gate(self, node: ast.AST) -> tuple[Side, ast.expr | None]:
        """
        The ranks that reach a place within its function, by the ifs around it, and the test.

        Below `if a and rank == 0: ... elif b: ...` all ranks may come to b: a and b may exclude each other.
        """
        narrowed, conditions = False, [*self.script.conditions(node)]
        if any(taken and self._is_alone(test) for test, taken in conditions):
            return "", None
        for test, taken in conditions:
            if (side := self.side(test)) and (taken or not narrowed or not isinstance(test, ast.BoolOp)):
                return side if taken else _SWAPPED[side], test
            narrowed = narrowed or not isinstance(test, ast.Constant)
        return "", None

    def _is_alone(self, test: ast.expr) -> bool:
        """Whether only a process without others passes: `world_size == 1`, `rank == -1`."""
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return any(map(self._is_alone, test.values))
        if not isinstance(test, ast.Compare) or len(test.ops) != 1:
            return False
        left = test.left.func if isinstance(test.left, ast.Call) else test.left
        shown = (type(test.ops[0]), ast.unparse(test.comparators[0]))
        if self._is_rank(test.left):
            return shown in ((ast.Eq, "-1"), (ast.Lt, "0"))
        return bool(_SIZE_NAME.match(self.script.last(left))) and shown in _ONE

    def side(self, test: ast.expr, depth: int = 0) -> Side:
        if depth > 8:
            return ""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            if self._is_rank(test.operand):
                return "zero"
            return _SWAPPED[self.side(test.operand, depth + 1)]
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            return next((s for s in (self.side(v, depth + 1) for v in test.values) if s), "")
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._compared(test.left, test.ops[0], test.comparators[0])
        if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            return self._named(test, depth)
        return ""

    def _compared(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Side:
        if not self._is_rank(left):
            return ""
        if isinstance(operator, ast.In | ast.NotIn) and isinstance(right, ast.List | ast.Tuple | ast.Set):
            some: Side = "zero" if {ast.unparse(e) for e in right.elts} <= {"-1", "0"} else ""
            return some if isinstance(operator, ast.In) else _SWAPPED[some]
        number = ast.unparse(right)
        if number == "0" and isinstance(operator, ast.NotEq | ast.Gt):
            return "others"
        is_one = isinstance(operator, ast.Eq) and number.isdecimal()  # == -1: not a rank, a process alone
        return "zero" if is_one or (number, type(operator)) in (("0", ast.LtE), ("1", ast.Lt)) else ""

    def _is_rank(self, node: ast.expr) -> bool:
        values = self.read.values.of(node)
        if values & {RANK, LOCAL, SPAWNED, f"{LOCAL}-argument"}:
            return True
        if isinstance(node, ast.Call):
            return self.script.last(node.func) in ("get_rank", "get_local_rank")
        name = self.script.last(node)
        if ast.unparse(node) in self.of_matrices:
            return False
        return bool(_RANK_NAME.match(name)) and values <= {"?", ARGUMENT, "environment", "local-argument"}

    def _named(self, test: ast.expr, depth: int) -> Side:
        """A variable that contains such a test, or a name that means it."""
        name = self.script.last(test.func if isinstance(test, ast.Call) else test)
        if isinstance(test, ast.Name) and self._is_switch(test):
            return ""
        if not isinstance(test, ast.Call):
            for node in self.script.of_kind(ast.Assign):
                is_test = isinstance(node.value, ast.Compare | ast.UnaryOp)
                if is_test and any(self.script.last(t) == name for t in node.targets):
                    return self.side(node.value, depth + 1)
            if self._is_rank(test):
                return "others"
        return "zero" if _MAIN_NAME.match(name) else ""

    def _is_switch(self, name: ast.Name) -> bool:
        """Whether it is a parameter that is True or False, unless a caller sets it: `rank0=False`."""
        inside = self.script.function_of(name)
        given = ast.unparse(inside.args) if inside else ""
        return any(f"{name.id}{kind}={value}" in given for kind in ("", ": bool") for value in (True, False))


def _leaves(block: list[ast.stmt]) -> bool:
    last = block[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return isinstance(last, ast.Return | ast.Continue | ast.Break)


def _after_leaving(sides: Sides) -> Iterator[tuple[ast.If, Side, list[ast.stmt]]]:
    """Places where some ranks leave: the if, the side that continues, the code only for that side."""
    for node in sides.script.nodes:
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for at, statement in enumerate(block if isinstance(block, list) else ()):
                leaves = isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body)
                if leaves and (side := sides.side(statement.test)):
                    yield statement, _SWAPPED[side], block[at + 1 :]  # type: ignore[index]


def _shown(test: ast.expr) -> str:
    return f"`{printable(ast.unparse(test), 60)}` in line {test.lineno}"


def _on_each_side(node: ast.If | None, call: Call) -> bool:
    """Whether a call of this name is in both blocks of an `if`, perhaps behind another one."""

    def makes_it(block: list[ast.stmt]) -> bool:
        calls = (n for statement in block for n in ast.walk(statement) if isinstance(n, ast.Call))
        return any(ast.unparse(n.func).endswith(call.last) for n in calls)

    return node is not None and makes_it(node.body) and makes_it(node.orelse)


@fault("collective-on-some-ranks", SCRIPT)
def collective_on_some_ranks(read: Reading) -> Found:
    """
    A collective or barrier is in code that only some ranks reach.

    Why: every rank has to make the call.  Those that do wait for the others until the timeout, or are
    matched with another call that comes later.  FSDP gathers its parameters in state_dict() and in a
    forward pass.

    Fix: take the call out of the `if`, and leave only what one rank may do alone (printing, saving) in it.
    """
    sides = Sides(read)
    limited: list[tuple[Call, str, Side, str]] = []
    both = {node.test: node for node in read.script.nodes if isinstance(node, ast.If) and node.orelse}
    rest = [*_after_leaving(sides)]
    for call in read.script.calls:
        what = call.last if call in sides.direct else sides.reaching.get(sides.own(call), "")
        side, test = sides.gate(call.node) if what else ("", None)
        if test is not None and not _on_each_side(both.get(test), call):
            limited.append((call, what, side, _shown(test)))
        for statement, side, block in rest if what and test is None else ():
            here = call.inside is sides.script.function_of(statement)
            if here and block and block[0].lineno <= call.line <= (block[-1].end_lineno or 0):
                limited.append((call, what, side, f"{_shown(statement.test)}, where the others leave"))
    divisions = {(call.inside, what, side) for call, what, side, _ in limited}
    for call, what, side, divided in limited:
        if (call.inside, what, _SWAPPED[side]) in divisions:
            continue
        what = f"the forward pass {what}()" if (call.inside, call.name) in sides.fsdp else what
        through = "" if call in sides.direct else f" (in {sides.own(call)})"
        yield call.line, f"only some ranks reach {what}{through}: {divided}", "every rank makes the call"
