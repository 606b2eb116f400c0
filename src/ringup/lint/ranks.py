"""Which number a script takes for which: global rank, local rank, spawned index, world size, device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ringup import problems
from ringup.lint.rule import SCRIPT, fault, lines
from ringup.lint.source import INIT, SPAWNS, Argument, Call, Script
from ringup.lint.values import LOCAL, RANK, SPAWNED, Reader, Values, constants, surely
from ringup.rules import Finding

LOCAL_ARGUMENTS = ("--local_rank", "--local-rank")
HANDLED = frozenset(
    ("accelerate", "deepspeed", "lightning", "pytorch_lightning", "transformers", "colossalai")
)
"""Packages that choose the device and join the process group themselves, from torchrun's variables."""


class Reading:
    """A script with the values in it; what the rules are given."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.values = Reader(script)

    def where(self, line: int) -> str:
        """file:line."""
        return f"{self.script.path}:{line}"

    def environment_writes(self, *names: str) -> Iterator[tuple[str, ast.expr, ast.AST]]:
        """(variable, value, statement) of assignments to os.environ; setdefault is none."""
        for node in ast.walk(self.script.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if (
                        isinstance(target, ast.Subscript)
                        and self.script.dotted(target.value) == "os.environ"
                        and isinstance(target.slice, ast.Constant)
                        and target.slice.value in names
                    ):
                        yield str(target.slice.value), node.value, node
        for call in self.script.named("os.putenv", "os.environ.update"):
            if call.name == "os.putenv" and len(call.node.args) == 2:
                pairs = [(call.node.args[0], call.node.args[1])]
            else:
                dicts = [a for a in call.node.args if isinstance(a, ast.Dict)]
                pairs = [
                    (k, v) for d in dicts for k, v in zip(d.keys, d.values, strict=True) if k is not None
                ]
                for keyword in call.node.keywords:
                    if keyword.arg in names:
                        yield str(keyword.arg), keyword.value, call.node
            for key, value in pairs:
                if isinstance(key, ast.Constant) and key.value in names:
                    yield str(key.value), value, call.node


def device_expressions(script: Script) -> Iterator[tuple[int, ast.expr]]:
    """(line, expression) of everything that numbers a GPU."""
    for call in script.calls:
        last = call.name.rpartition(".")[2]
        if call.name in ("torch.cuda.set_device", "torch.cuda.device", "torch.cuda._set_device"):
            chosen = call.argument("device", 0)
        elif call.name == "torch.device":
            chosen = call.argument("index", 1) or call.argument("device", 0)
        elif last in ("cuda", "to") and "." in call.name and len(call.node.args) == 1:
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
    for node in ast.walk(script.tree):
        if isinstance(node, ast.JoinedStr) and len(node.values) == 2:
            head, tail = node.values
            if isinstance(head, ast.Constant) and head.value == "cuda:":
                yield node.lineno, tail.value if isinstance(tail, ast.FormattedValue) else tail
        elif isinstance(node, ast.BinOp) and getattr(node.left, "value", "") == "cuda:":
            yield node.lineno, node.right


@fault("global-rank-as-device", SCRIPT)
def global_rank_as_device(read: Reading) -> Iterator[Finding]:
    """
    The global rank is used as the number of a GPU.

    Why: GPUs are numbered per node: on the second node of 8 GPUs the ranks begin at 8, and there
    is no GPU 8.  On one node it works, so it shows on the first run on two.

    Fix: `local_rank = int(os.environ["LOCAL_RANK"])`, then `torch.cuda.set_device(local_rank)` and the
    same number everywhere.
    """
    found = [n for n, e in device_expressions(read.script) if surely(read.values.of(e), RANK)]
    if found:
        yield Finding(
            where=read.where(min(found)),
            found=f"the global rank numbers a GPU{lines(found)}",
            wanted="the local rank (LOCAL_RANK)",
        )


def joins(script: Script) -> list[Call]:
    """Calls that join the process group."""
    return script.named(INIT)


def given_rank(read: Reading) -> Iterator[tuple[int, Values]]:
    """(line, values) of what is given as the global rank."""
    for call in joins(read.script):
        rank = call.argument("rank", 4)
        if rank is not None:
            yield call.line, read.values.of(rank)
    for _, value, node in read.environment_writes("RANK"):
        yield getattr(node, "lineno", 1), read.values.of(value)


@fault("local-rank-as-global-rank", SCRIPT)
def local_rank_as_global_rank(read: Reading) -> Iterator[Finding]:
    """
    The local rank is given as the global rank.

    Why: on two nodes every number from 0 is then there twice and the upper half never: the first
    store counts some ranks doubly, the others wait until the time-out.

    Fix: leave `rank=` and `world_size=` out (`init_process_group` reads RANK and WORLD_SIZE that the
    launcher sets), or give `int(os.environ["RANK"])`.
    """
    for line, values in given_rank(read):
        if surely(values, LOCAL, f"{LOCAL}-argument"):
            yield Finding(
                where=read.where(line),
                found="the local rank is given as rank",
                wanted="the global rank (RANK)",
            )


def spawns(script: Script) -> list[Call]:
    """Calls that start this node's ranks from within the script."""
    return script.named(*SPAWNS)


@fault("spawn-knows-one-node", SCRIPT)
def spawn_knows_one_node(read: Reading) -> Iterator[Finding]:
    """
    The script starts its own ranks and numbers them from 0 on every node.

    Why: the index that `mp.spawn` hands out is the local one; without the node's rank in it, every
    node makes a world of its own or the ranks of two nodes collide.

    Fix: take `mp.spawn` out and start the script with torchrun (`ringup run`), or compute
    `rank = node_rank * gpus_per_node + index` and `world_size = nodes * gpus_per_node`.
    """
    calls = spawns(read.script) or [c for c in read.script.calls if c.name.rpartition(".")[2] == "Process"]
    if not calls:
        return
    for line, values in given_rank(read):
        if surely(values, SPAWNED):
            yield Finding(
                where=read.where(line),
                found=f"the index from line {calls[0].line} is given as rank: it is the same on every node",
                wanted="node rank x processes per node + index",
            )
            return


@fault("spawn-count-in-code", SCRIPT, severity="warning")
def spawn_count_in_code(read: Reading) -> Iterator[Finding]:
    """
    The number of processes to spawn is written in the code.

    Why: a node with fewer GPUs gets ranks without one, a node with more leaves some idle.

    Fix: `nprocs=torch.cuda.device_count()`, or no `mp.spawn` and a launcher that counts.
    """
    for call in spawns(read.script):
        count = call.argument("nprocs", 2)
        known = constants(read.values.of(count)) if count is not None else [1]
        if known and all(isinstance(n, int) for n in known):
            yield Finding(
                where=read.where(call.line),
                found=f"always {' or '.join(map(str, known))} processes",
                wanted="as many as the node has GPUs",
            )


@fault("world-size-in-code", SCRIPT)
def world_size_in_code(read: Reading) -> Iterator[Finding]:
    """
    The world size or a rank is written in the code.

    Why: with any other number of processes the meeting waits for ranks that never come, or is
    over before the last ones arrive.

    Fix: leave `world_size=` and `rank=` out of `init_process_group`: the launcher's WORLD_SIZE and
    RANK are read.
    """
    found: list[tuple[int, str]] = []
    for call in joins(read.script):
        for name, at in (("world_size", 3), ("rank", 4)):
            given = call.argument(name, at)
            known = constants(read.values.of(given)) if given is not None else []
            if known and all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in known):
                found.append((call.line, f"{name}={' or '.join(map(str, known))}"))
    for name, value, node in read.environment_writes("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        known = constants(read.values.of(value))
        if known:
            found.append((getattr(node, "lineno", 1), f"{name}={known[0]}"))
    if found:
        yield Finding(
            where=read.where(min(n for n, _ in found)),
            found=f"written in the code: {', '.join(dict.fromkeys(w for _, w in found))}",
            wanted="what the launcher sets",
        )


def local_rank_argument(script: Script) -> Argument | None:
    """The option by which the script takes its local rank, where it has one."""
    return next((a for a in script.arguments if any(s in LOCAL_ARGUMENTS for s in a.spellings)), None)


def needs_local_rank_argument(script: Script) -> Argument | None:
    """That option, where the script cannot do without or uses it and reads no LOCAL_RANK instead."""
    argument = local_rank_argument(script)
    if argument is not None and argument.is_required:
        return argument
    if argument is None or script.imported & HANDLED:
        return None
    if script.strings & {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"}:
        return None
    used = any(
        (isinstance(n, ast.Attribute) and n.attr == "local_rank")
        or (isinstance(n, ast.arg) and n.arg == "local_rank")  # click
        for n in ast.walk(script.tree)
    )
    return argument if used and not script.named("torch.distributed.get_node_local_rank") else None


@fault("local-rank-argument-expected", SCRIPT, severity="warning")
def local_rank_argument_expected(read: Reading) -> Iterator[Finding]:
    """
    The script takes its local rank from a command-line option and not from LOCAL_RANK.

    Why: only `torch.distributed.launch` passes it, which is deprecated; under torchrun every rank
    has the default and all of them use one GPU, or ends where the option is required.

    Fix: `local_rank = int(os.environ["LOCAL_RANK"])`; it is set by torchrun and by
    `torch.distributed.launch` alike.
    """
    argument = needs_local_rank_argument(read.script)
    if argument is not None:
        role = "must be given" if argument.is_required else "is where the local rank comes from"
        yield Finding(
            where=read.where(argument.line),
            found=f"{' / '.join(argument.spellings)} {role}",
            wanted="LOCAL_RANK from the environment",
            worked_around_by="`ringup run` starts it so that every rank gets this argument",
        )


@fault(problems.LOCAL_RANK_ARGUMENT_REJECTED, SCRIPT)
def local_rank_argument_rejected(read: Reading) -> Iterator[Finding]:
    """The old spelling alone."""
    argument = needs_local_rank_argument(read.script)
    if argument is not None and "--local-rank" not in argument.spellings:
        yield Finding(
            where=read.where(argument.line),
            found="--local_rank alone: torch.distributed.launch has passed --local-rank since torch 2.0",
            wanted="both spellings, or LOCAL_RANK from the environment",
            severity="warning",
            worked_around_by="`ringup run` passes the spelling that the script knows",
        )


COUNTED = ("os.cpu_count", "multiprocessing.cpu_count", "torch.multiprocessing.cpu_count", "psutil.cpu_count")


@fault("dataloader-workers-exceed-cpus", SCRIPT, severity="warning")
def dataloader_workers_exceed_cpus(read: Reading) -> Iterator[Finding]:
    """
    The ranks of a node start more data-loading processes than they have processors.

    Why: a job's share of a node (cgroup, affinity, Slurm's --cpus-per-task) is what counts, and every
    rank starts its own workers; too many of them slow one another and may be killed for memory.

    Fix: `num_workers = len(os.sched_getaffinity(0)) // LOCAL_WORLD_SIZE`, less one for the rank itself.
    """
    for call in read.script.calls:
        given = call.argument("num_workers")
        if given is None or not call.name.endswith("DataLoader"):
            continue
        names = [read.script.dotted(n.func) for n in ast.walk(given) if isinstance(n, ast.Call)]
        divided = any(isinstance(n, ast.BinOp) for n in ast.walk(given))
        if any(name in COUNTED for name in names) and not divided:
            yield Finding(
                where=read.where(call.line),
                found="every rank starts a worker for each processor of the machine",
                wanted="the job's own processors, divided among the node's ranks",
            )


def workers_in_code(read: Reading) -> list[tuple[int, int]]:
    """(line, workers of one rank) of each DataLoader whose count is written down."""
    found = []
    for call in read.script.calls:
        given = call.argument("num_workers")
        if given is not None and call.name.endswith("DataLoader"):
            known = [n for n in constants(read.values.of(given)) if isinstance(n, int)]
            found += [(call.line, max(known))] if known else []
    return found


def how_many_workers(read: Reading) -> int:
    """The most workers that one rank starts as far as they are written in the code; 0 for none."""
    return max((n for _, n in workers_in_code(read)), default=0)
