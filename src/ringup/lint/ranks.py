"""The numbers in a script: global rank, local rank, spawned index, world size, device."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from ringup.lint.rule import SCRIPT, File, Found, fault, lines
from ringup.lint.source import INIT, SPAWNS, Argument, Call, Script
from ringup.lint.values import LOCAL, LOOPED, RANK, SPAWNED, Reader, Values, constants, surely
from ringup.model import LOCAL_RANKS

LOCAL_ARGUMENTS = ("--local_rank", "--local-rank")
HANDLED = frozenset(
    (
        *("accelerate", "colossalai", "composer", "deepspeed", "lightning", "lightning_fabric"),
        *("pytorch_lightning", "transformers", "trl"),
    )
)
"""Packages that choose the device and join the process group themselves, from torchrun's variables."""


class Reading(File):
    """A script with its values, as input of the rules."""

    def __init__(self, script: Script, nearby: Callable[[str], str | None] = lambda path: None) -> None:
        super().__init__(script.path)
        self.script = script
        self.values = Reader(script)
        self.nearby = nearby
        """Path of a module next to it -> its text."""

    def constants(self, node: ast.expr | None) -> list[object]:
        """The literals that an expression may be, if it can be nothing else."""
        return constants(self.values.of(node))

    def environment_writes(self, *names: str) -> Iterator[tuple[str, ast.expr, ast.AST]]:
        """(variable, value, statement) of assignments to os.environ, all by default; no setdefault."""
        found: list[tuple[ast.expr | None, ast.expr, ast.AST]] = []
        for node in self.script.of_kind(ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and self.script.dotted(target.value) == "os.environ":
                    found.append((target.slice, node.value, node))
        for call in self.script.named("os.putenv", "os.environ.update"):
            arguments = call.node.args
            if call.name == "os.putenv" and len(arguments) == 2:
                found.append((arguments[0], arguments[1], call.node))
            for each in (a for a in arguments if isinstance(a, ast.Dict)):
                found += [(k, v, call.node) for k, v in zip(each.keys, each.values, strict=True)]
            found += [(ast.Constant(k.arg), k.value, call.node) for k in call.node.keywords]
        for key, value, where in found:
            if isinstance(key, ast.Constant) and (not names or key.value in names):
                yield str(key.value), value, where


_OF_TORCH = ("cuda.set_device", "cuda.device", "cuda._set_device", "set_default_device")
_BY_DEVICE = tuple(f"torch.{name}" for name in _OF_TORCH)
_BY_DEVICE += ("torch.accelerator.set_device_index", "torch.accelerator.set_device_idx")
_BY_DEVICE += ("torch.accelerator.device_index",)


def device_expressions(script: Script) -> Iterator[tuple[int, ast.expr]]:
    """(line, expression) of every number of a GPU."""
    for call in script.calls:
        if call.name in _BY_DEVICE:
            chosen = call.argument("device", 0)
        elif call.name == "torch.device":
            chosen = call.argument("index", 1) or call.argument("device", 0)
        elif call.last in ("cuda", "to") and "." in call.name and len(call.node.args) == 1:
            chosen = call.node.args[0]
        else:
            chosen = None
        if chosen is not None:
            yield call.line, chosen
        for keyword in call.node.keywords:
            if keyword.arg == "device_ids" and isinstance(keyword.value, ast.List):
                yield from ((call.line, e) for e in keyword.value.elts)
            elif keyword.arg in ("output_device", "device", "device_id"):
                yield call.line, keyword.value
    for text in script.of_kind(ast.JoinedStr):
        if len(text.values) == 2 and getattr(text.values[0], "value", "") == "cuda:":
            tail = text.values[1]
            yield text.lineno, tail.value if isinstance(tail, ast.FormattedValue) else tail
    for sum_ in script.of_kind(ast.BinOp):
        if getattr(sum_.left, "value", "") == "cuda:":
            yield sum_.lineno, sum_.right


@fault("global-rank-as-device", SCRIPT)
def global_rank_as_device(read: Reading) -> Found:
    """
    The global rank is used as the number of a GPU.

    Why: GPUs are numbered per node: on the second node of 8 GPUs the ranks begin at 8, and no
    GPU has that number.  On one node it works, so the first run on two nodes fails.

    Fix: `local_rank = int(os.environ["LOCAL_RANK"])`, then `torch.cuda.set_device(local_rank)` and the
    same number everywhere.
    """
    if found := [n for n, e in device_expressions(read.script) if surely(read.values.of(e), RANK)]:
        yield min(found), f"the global rank numbers a GPU{lines(found)}", "the local rank (LOCAL_RANK)"


def given_rank(read: Reading) -> Iterator[tuple[int, Values]]:
    """(line, values) of arguments for the global rank."""
    for call in read.script.named(INIT):
        rank = call.argument("rank", 4)
        if rank is not None:
            yield call.line, read.values.of(rank)
    for _, value, node in read.environment_writes("RANK"):
        if not sets_world_of_one(read, node):
            yield getattr(node, "lineno", 1), read.values.of(value)


@fault("local-rank-as-global-rank", SCRIPT)
def local_rank_as_global_rank(read: Reading) -> Found:
    """
    The local rank is given as the global rank.

    Why: on two nodes every number from 0 is then there twice and the upper half never: the first
    store counts some ranks doubly, the others wait until the timeout.

    Fix: leave `rank=` and `world_size=` out (`init_process_group` reads RANK and WORLD_SIZE that the
    launcher sets), or give `int(os.environ["RANK"])`.
    """
    for line, values in given_rank(read):
        if surely(values, LOCAL, f"{LOCAL}-argument"):
            yield line, "the local rank is given as rank", "the global rank (RANK)"


@fault("spawn-knows-one-node", SCRIPT)
def spawn_knows_one_node(read: Reading) -> Found:
    """
    The script starts its own ranks and numbers them from 0 on every node.

    Why: the index that `mp.spawn` hands out is the local one; without the node's rank in it, every node
    forms its own world, or the ranks of two nodes collide.

    Fix: take `mp.spawn` out and start the script with torchrun (`ringup run`), or compute
    `rank = node_rank * gpus_per_node + index` and `world_size = nodes * gpus_per_node`: under
    `ringup run`, `int(os.environ["NODE_RANK"])` is the node's rank and `int(os.environ["WORLD_SIZE"])` the
    number of nodes.
    """
    calls = read.script.named(*SPAWNS) or [c for c in read.script.calls if c.last == "Process"]
    for line, values in given_rank(read) if calls else ():
        if surely(values, SPAWNED, LOOPED):
            found = f"rank is the index of line {calls[0].line}, which is the same on every node"
            yield line, found, "node rank x processes per node + index"
            return


@fault("spawn-count-in-code", SCRIPT, severity="warning")
def spawn_count_in_code(read: Reading) -> Found:
    """
    The number of processes to spawn is written in the code.

    Why: a node with fewer GPUs gets ranks without one, a node with more leaves some idle.

    Fix: `nprocs=torch.cuda.device_count()`, or no `mp.spawn` and a launcher that counts.
    """
    for call in read.script.named(*SPAWNS):
        count = call.argument("nprocs", 2)
        known = read.constants(count) if count is not None else [1]
        if known and all(isinstance(n, int) for n in known):
            found = f"always {' or '.join(map(str, known))} processes"
            yield call.line, found, "as many as the node has GPUs"


_DISTRIBUTED = re.compile(
    r"(?i)(?:^|[^a-z])(?:rank|rank0|world_?size|dist|distributed|ddp|fsdp|multi_?gpu|multi_?node|launched|torchrun"
    r"|slurm|procid|ntasks|n?procs?|nproc_per_node|num_processes|device_count|n_?gpus?|num_gpus|single|standalone)"
    r"(?:$|[^a-z])"
)
"""Words of a test whether the process is one of several."""


def is_asked_first(read: Reading, node: ast.AST, name: str) -> bool:
    """Whether a write is under a test for the variable, or after a failed read of it."""
    return any(
        isinstance(parent, ast.ExceptHandler)
        or (isinstance(parent, ast.If) and name in ast.dump(parent.test))
        for parent, _ in read.script.above(node)
    )


def is_world_of_one(read: Reading, node: ast.Call) -> bool:
    """Whether init_process_group() is called for a process without a launcher, after a test for one."""
    size = Call(node, INIT, None).argument("world_size", 3)
    return read.constants(size) == [1] and _is_tested_first(read, node)


def sets_world_of_one(read: Reading, node: ast.AST) -> bool:
    """Whether code near a write to os.environ sets WORLD_SIZE to 1, after a test for a launcher."""
    above = next((parent for parent, _ in read.script.above(node) if isinstance(parent, ast.If)), None)
    return any(
        str(read.constants(value)[:1]) in ("[1]", "['1']")
        and any(parent is above for parent, _ in read.script.above(write))
        and _is_tested_first(read, write)
        for _, value, write in read.environment_writes("WORLD_SIZE")
    )


def _is_tested_first(read: Reading, node: ast.AST) -> bool:
    """Whether an `except`, an `if`, or one before it that returns, tests for a distributed job."""
    for parent, child in read.script.above(node):
        if isinstance(parent, ast.ExceptHandler):
            return True
        tests = [parent.test] if isinstance(parent, ast.If) and child is not parent.test else []
        for block in (getattr(parent, field, None) for field in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and child in block:
                before = block[: block.index(child)]
                tests += [s.test for s in before if isinstance(s, ast.If) and _ends(s.body)]
        if any(_is_of_ranks(read, test) for test in tests):
            return True
    return False


def _ends(block: list[ast.stmt]) -> bool:
    last = block[-1]
    called = last.value.func if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) else None
    exits = called is not None and ast.unparse(called) in ("sys.exit", "exit", "quit", "os._exit")
    return exits or isinstance(last, ast.Return | ast.Raise)


def _is_of_ranks(read: Reading, test: ast.expr) -> bool:
    """Whether a test, or a value assigned to a name in it, mentions ranks or a distributed job."""
    names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
    texts = [ast.unparse(test)]
    for assigned in read.script.of_kind(ast.Assign):
        if any(isinstance(target, ast.Name) and target.id in names for target in assigned.targets):
            texts.append(ast.unparse(assigned.value))
    return any(map(_DISTRIBUTED.search, texts))


@fault("world-size-in-code", SCRIPT)
def world_size_in_code(read: Reading) -> Found:
    """
    The world size or a rank is written in the code.

    Why: with any other number of processes the rendezvous waits for ranks that never come, or completes
    before the last ones arrive.

    Fix: leave `world_size=` and `rank=` out of `init_process_group`: the launcher's WORLD_SIZE and
    RANK are read.
    """
    found: list[tuple[int, str]] = []
    for call in read.script.named(INIT):
        backend, store = call.argument("backend", 0), ast.unparse(call.argument("store", 5) or call.node.func)
        if is_world_of_one(read, call.node) or read.constants(backend) == ["fake"] or "HashStore" in store:
            continue  # one process alone
        for name, at in (("world_size", 3), ("rank", 4)):
            known = read.constants(call.argument(name, at))
            if known and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in known):
                found.append((call.line, f"{name}={' or '.join(map(str, known))}"))
    for name, value, node in read.environment_writes("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        known = read.constants(value)
        is_default = is_asked_first(read, node, name) or sets_world_of_one(read, node)
        is_first = str(known[:1]) in ("[0]", "['0']") and _is_tested_first(read, node)
        if known and not is_default and not is_first and not _is_other_case(read, node, name):
            found.append((getattr(node, "lineno", 1), f"{name}={known[0]}"))
    if found:
        written = ", ".join(dict.fromkeys(w for _, w in found))
        yield min(found)[0], f"{written} is written in the code", "what the launcher sets"


def _is_other_case(read: Reading, node: ast.AST, name: str) -> bool:
    """Whether the other branch of the `if` around a write sets the variable to what only the run knows."""
    above = next((parent for parent, _ in read.script.above(node) if isinstance(parent, ast.If)), None)
    others = ((value, other) for _, value, other in read.environment_writes(name) if other is not node)
    return above is not None and any(
        not read.constants(value) and any(parent is above for parent, _ in read.script.above(other))
        for value, other in others
    )


def written_world(read: Reading) -> tuple[int, int, int]:
    """(line, rank, world size) of an unconditional call of `init_process_group`; -1 for other expressions."""
    for call in read.script.named(INIT):
        known = [read.constants(call.argument(name, at)) for name, at in (("rank", 4), ("world_size", 3))]
        numbers = [k[0] if len(k) == 1 and type(k[0]) is int else -1 for k in known]
        if numbers != [-1, -1] and not any(read.script.conditions(call.node)):
            return call.line, int(str(numbers[0])), int(str(numbers[1]))
    return 0, -1, -1


def local_rank_argument(script: Script) -> Argument | None:
    """The option from which the script takes its local rank, if it has one."""
    return next((a for a in script.arguments if any(s in LOCAL_ARGUMENTS for s in a.spellings)), None)


def needs_local_rank_argument(script: Script) -> Argument | None:
    """That option, if the script requires it, or uses it and does not read LOCAL_RANK."""
    argument = local_rank_argument(script)
    if argument is not None and argument.is_required:
        return argument
    if argument is None or script.imported & HANDLED or script.strings & set(LOCAL_RANKS):
        return None
    # As an attribute, or as click's parameter.
    used = any("local_rank" in (getattr(n, "attr", ""), getattr(n, "arg", "")) for n in script.nodes)
    return argument if used and not script.named("torch.distributed.get_node_local_rank") else None


@fault("local-rank-argument-expected", SCRIPT, severity="warning")
def local_rank_argument_expected(read: Reading) -> Found:
    """
    The script takes its local rank from a command-line option and not from LOCAL_RANK.

    Why: only `torch.distributed.launch` passes it, which is deprecated.  Under torchrun every rank has the
    default, and all of them use one GPU; a required option ends every rank.

    Fix: `local_rank = int(os.environ["LOCAL_RANK"])`; it is set by torchrun and by
    `torch.distributed.launch` alike.
    """
    argument = needs_local_rank_argument(read.script)
    if argument is not None:
        role = "must be given" if argument.is_required else "is where the local rank comes from"
        found = f"{' / '.join(argument.spellings)} {role}"
        by = "`ringup run` starts it so that every rank gets this argument"
        yield read.finding(argument.line, found, "LOCAL_RANK from the environment", worked_around_by=by)


@fault("local-rank-argument-rejected", SCRIPT)
def local_rank_argument_rejected(read: Reading) -> Found:
    argument = needs_local_rank_argument(read.script)
    if argument is not None and "--local-rank" not in argument.spellings:
        found = "--local_rank alone: torch.distributed.launch has passed --local-rank since torch 2.0"
        wanted = "both spellings, or LOCAL_RANK from the environment"
        by = "`ringup run` passes the spelling that the script knows"
        yield read.finding(argument.line, found, wanted, severity="warning", worked_around_by=by)


COUNTED = ("os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "psutil.cpu_count")


@fault("dataloader-workers-exceed-cpus", SCRIPT, severity="warning")
def dataloader_workers_exceed_cpus(read: Reading) -> Found:
    """
    The ranks of a node start more data-loading processes than they have CPUs.

    Why: a job's share of a node (cgroup, affinity, Slurm's --cpus-per-task) is what counts, and every
    rank starts its own workers; too many of them slow one another and may be killed for memory.

    Fix: `num_workers = len(os.sched_getaffinity(0)) // LOCAL_WORLD_SIZE`, less one for the rank itself.
    """
    for line, given in _workers(read):
        names = [read.script.dotted(n.func) for n in ast.walk(given) if isinstance(n, ast.Call)]
        divided = any(isinstance(n, ast.BinOp) for n in ast.walk(given))
        if any(name in COUNTED for name in names) and not divided:
            found = "every rank starts a worker for each CPU of the machine"
            yield line, found, "the job's CPUs, divided among the node's ranks"


def _workers(read: Reading) -> Iterator[tuple[int, ast.expr]]:
    for call in read.script.calls:
        given = call.argument("num_workers")
        if given is not None and call.name.endswith("DataLoader"):
            yield call.line, given


def most_workers(read: Reading) -> tuple[int, int]:
    """(line, workers of one rank) of the DataLoader with the most, as far as written; else zeros."""
    counts = [(line, n) for line, e in _workers(read) for n in read.constants(e) if isinstance(n, int)]
    return max(counts, key=lambda one: one[1], default=(0, 0))
