"""The rendezvous address and the process group in a script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from ringup.addresses import is_loopback
from ringup.lint.alone import imported_elsewhere, modules_nearby
from ringup.lint.ranks import (
    HANDLED,
    Reading,
    device_expressions,
    is_asked_first,
    is_world_of_one,
    sets_world_of_one,
)
from ringup.lint.rule import SCRIPT, Found, fault, lines
from ringup.lint.source import INIT, MESHES, Function, Script
from ringup.lint.values import UNKNOWN
from ringup.rules import Finding, Severity

_URL = re.compile(r"^tcp://(\[[^\]]+\]|[^:/]+):(\d+)")
DEBUG_NAMES = re.compile(
    r"\b(NCCL_DEBUG|TORCH_DISTRIBUTED_DEBUG|TORCH_CPP_LOG_LEVEL|TORCH_SHOW_CPP_STACKTRACES)\b"
)
_COLLECTIVES = """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier
    broadcast broadcast_object_list gather gather_object monitored_barrier reduce reduce_scatter
    reduce_scatter_tensor scatter scatter_object_list
"""
COLLECTIVES = tuple(f"torch.distributed.{name}" for name in _COLLECTIVES.split())
_OF_ACCELERATOR = ("torch.accelerator.set_device_index", "torch.accelerator.set_device_idx")
SETS_DEVICE = ("torch.cuda.set_device", *_OF_ACCELERATOR)
_CHOOSES = re.compile(
    r"set_device\w{0,20}\(|set_default_device\(|device_id=|CUDA_VISIBLE_DEVICES|(?i:local_?rank)"
)
"""Code of a module that chooses the GPU of a rank, or tells its number."""
_SETS_UP = re.compile(r"(?i)gpu|device|cuda|dist|ddp|setup|set_up|init")


def means_itself(host: str) -> bool:
    """
    Whether a host can only be the machine that reads it.

    >>> means_itself("localhost"), means_itself("127.0.1.1"), means_itself("[::]"), means_itself("10.0.0.1")
    (True, True, True, False)
    """
    host = host.strip("[]")
    return host in ("localhost", "0.0.0.0", "::") or is_loopback(host)


def written_points(read: Reading) -> Iterator[tuple[str, str, int, bool]]:
    """("address" or "port", value, line, under a condition?) of every rendezvous address in the code."""
    for name, value, node in read.environment_writes("MASTER_ADDR", "MASTER_PORT"):
        if is_asked_first(read, node, name) or sets_world_of_one(read, node):
            continue
        under = any(read.script.conditions(node))
        for constant in read.constants(value)[:1]:
            kind = "address" if name == "MASTER_ADDR" else "port"
            yield kind, str(constant), getattr(node, "lineno", 1), under
    for call in read.script.named(INIT):
        method = call.argument("init_method", 1)
        text = _text(read, method) if method is not None else ""
        if (match := _URL.match(text)) and not is_world_of_one(read, call.node):
            under = any(read.script.conditions(call.node))
            if "{" not in match[1]:
                yield "address", match[1], call.line, under
            yield "port", match[2], call.line, under


def _text(read: Reading, node: ast.expr) -> str:
    """A string as far as it is constant; "{}" for other parts."""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            _text(read, part.value if isinstance(part, ast.FormattedValue) else part) for part in node.values
        )
    known = read.constants(node)
    return str(known[0]) if len(known) == 1 else "{}"


@fault("master-address-in-code", SCRIPT)
def master_address_in_code(read: Reading) -> Found:
    """
    The address of the rendezvous is written in the code.

    Why: it overrides what the launcher sets.  With localhost each node connects only to itself and waits
    for the others; a fixed address works on one cluster only.

    Fix: leave MASTER_ADDR to the launcher, or `os.environ.setdefault("MASTER_ADDR", ...)`.
    """
    found = [p for p in written_points(read) if p[0] == "address"]
    for _, value, line, under in found[:1]:
        severity: Severity = "error" if means_itself(value) and not under else "warning"
        said = f"{value!r} is written in the code{lines([p[2] for p in found])}"
        said += ": each node connects only to itself" if means_itself(value) else ""
        yield read.finding(line, said, "MASTER_ADDR as the launcher sets it", severity=severity)


@fault("master-port-in-code", SCRIPT, severity="warning")
def master_port_in_code(read: Reading) -> Found:
    """
    The port of the rendezvous is written in the code.

    Why: it wins over the free port that the launcher has chosen; a leftover of an earlier run on it
    ends the job, or hangs it.  Under torchrun, which listens on its own, nobody may be there at all.

    Fix: leave MASTER_PORT to the launcher, or `os.environ.setdefault("MASTER_PORT", ...)`.
    """
    found = [p for p in written_points(read) if p[0] == "port" and p[1] != "0"]
    for _, value, line, _ in found[:1]:
        also = lines([p[2] for p in found])
        yield line, f"port {value} is written in the code{also}", "MASTER_PORT as the launcher sets it"


def joins_by_nccl(read: Reading) -> bool:
    for call in read.script.named(INIT):
        backend = call.argument("backend", 0)
        is_known = backend is not None and UNKNOWN not in read.values.of(backend)
        if not is_known or any("nccl" in str(k) for k in read.constants(backend)):
            return "cuda" in read.script.text
    return False


@fault("device-never-chosen", SCRIPT)
def device_never_chosen(read: Reading) -> Found:
    """
    The ranks of a node use CUDA, and none of them chooses its GPU.

    Why: every rank then sits on GPU 0: NCCL refuses two ranks of one job on one GPU, or memory runs out.

    Fix: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before `init_process_group`.
    """
    script = read.script
    if not joins_by_nccl(read) or script.imported & HANDLED or "CUDA_VISIBLE_DEVICES" in script.text:
        return
    if script.named(*MESHES) or any(call.argument("device_id") is not None for call in script.named(INIT)):
        return
    chosen = [*device_expressions(script)]
    if any(not read.constants(e) and not _is_fixed(read, e) for _, e in chosen):
        return
    if any(map(_CHOOSES.search, modules_nearby(script, read.nearby))) or _is_chosen_elsewhere(script):
        return
    used = [c.line for c in script.calls if c.name.endswith(".cuda")]
    used += [n for n, e in chosen if _text(read, e).startswith("cuda")]
    if used:
        found = "CUDA is used, and no rank chooses its own GPU"
        yield min(used), found, "set_device(LOCAL_RANK) before the process group"


def _is_chosen_elsewhere(script: Script) -> bool:
    """Whether a function whose name is about GPUs comes from a package that is not known."""
    elsewhere = imported_elsewhere(script)
    relative = {
        alias.asname or alias.name for n in script.of_kind(ast.ImportFrom) if n.level for alias in n.names
    }
    return any(
        _SETS_UP.search(call.last)
        and not call.name.startswith("?")  # a method of a result: timm.create_model(...).cuda()
        and ast.unparse(call.node.func).split(".")[0] in elsewhere | relative
        for call in script.calls
    )


def _is_fixed(read: Reading, node: ast.expr) -> bool:
    """Whether a device expression is the same for all: `torch.device("cuda" if ... else "cpu")`."""
    if isinstance(node, ast.Call) and read.script.dotted(node.func) == "torch.device":
        return len(node.args) == 1 and bool(read.constants(node.args[0]))
    return False


@fault("device-chosen-too-late", SCRIPT, severity="warning")
def device_chosen_too_late(read: Reading) -> Found:
    """
    A rank takes part in a collective before it has chosen its GPU.

    Why: NCCL uses the current device, GPU 0 for every rank until then: a second context on it, or
    two ranks on one GPU.

    Fix: `torch.cuda.set_device(LOCAL_RANK)` first, then `init_process_group`, then collectives.
    """
    if not joins_by_nccl(read):
        return
    chosen = read.script.named(*SETS_DEVICE)
    for first in read.script.named(*COLLECTIVES):
        late = [c for c in chosen if c.inside is first.inside and c.line > first.line]
        if late and not any(c.inside is first.inside and c.line < first.line for c in chosen):
            found = f"set_device comes after {first.name.rpartition('.')[2]} of line {first.line}"
            yield late[0].line, found, "set_device before the first collective"
            return


@fault("no-destroy-process-group", SCRIPT, severity="note")
def no_destroy_process_group(read: Reading) -> Found:
    """
    The script never calls destroy_process_group.

    Why: the communicator's threads are torn down in whatever order the interpreter ends; NCCL may
    hang or warn there, after the training is done.

    Fix: `torch.distributed.destroy_process_group()` as the last thing, best in a `finally`.
    """
    script = read.script
    called = {call.name for call in script.calls if call.inside is None}
    is_program = "__main__" in script.strings or not called.isdisjoint(script.functions)
    started = [call for call in script.named(INIT, *MESHES) if is_program or call.inside is None]
    if started and not any(c.name.endswith("destroy_process_group") for c in script.calls):
        own = started[0].name.rpartition(".")[2]
        found = f"{own} is called here, destroy_process_group nowhere"
        yield started[0].line, found, "destroy_process_group() at the end"


_KEEPS_GROUP = re.compile(r"(?:torch|os|print|int|str|datetime)\b(?!.{0,80}destroy)")


@fault("process-group-twice", SCRIPT)
def process_group_twice(read: Reading) -> Found:
    """
    The script calls init_process_group() a second time.

    Why: torch allows one default process group, and every rank ends with "trying to initialize the default
    process group twice!" (`distributed_c10d.py`, torch 2.13).

    Fix: keep one call; `torch.distributed.new_group(backend="gloo")` for a group with another backend.
    """
    for call, again in pairwise(read.script.named(INIT)):
        blocks = [read.script.parents[read.script.parents[c.node]] for c in (call, again)]
        between = [c.name for c in read.script.calls if call.line < c.line < again.line]
        is_one = blocks[0] is blocks[1] and isinstance(blocks[0], ast.Module | Function)
        if is_one and all(map(_KEEPS_GROUP.match, between)):
            yield again.line, f"init_process_group was called in line {call.line}", "one call"


@fault("timeout-not-timedelta", SCRIPT)
def timeout_not_timedelta(read: Reading) -> Found:
    """
    The timeout of init_process_group() is a number.

    Why: torch takes a `datetime.timedelta` only, and every rank ends with a TypeError: "Expected timeout
    argument to be of type datetime.timedelta" (`distributed_c10d.py`, torch 2.13).

    Fix: `timeout=datetime.timedelta(seconds=1800)`.
    """
    for call in read.script.named(INIT):
        known = read.constants(call.argument("timeout", 2))
        if known and all(type(value) in (int, float) for value in known):
            seconds = known[0]
            yield call.line, f"timeout={seconds}, a number", f"datetime.timedelta(seconds={seconds})"


@fault("no-timeout-while-debugging", SCRIPT, severity="note")
def no_timeout_while_debugging(read: Reading) -> Found:
    """
    The script is being debugged, and a hang takes 10 minutes (NCCL) or 30 (Gloo) to show.

    Why: those are torch's default timeouts (torch/distributed/constants.py).

    Fix: `init_process_group(..., timeout=datetime.timedelta(seconds=60))` while looking for the cause.
    """
    if names := DEBUG_NAMES.findall(read.script.text):
        yield from without_timeout(read, f"{names[0]} is mentioned")


def without_timeout(read: Reading, sign: str) -> Iterator[Finding]:
    """Findings for calls without a timeout; `sign` is the evidence of debugging."""
    for call in read.script.named(INIT)[:1]:
        if call.argument("timeout", 2) is None and not any(k.arg is None for k in call.node.keywords):
            found = f"no timeout= is given, and {sign}"
            yield read.finding(call.line, found, "a timeout of a minute or two while debugging")
