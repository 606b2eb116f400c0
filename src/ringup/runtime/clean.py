"""Leftovers on the nodes: of earlier runs (`leftovers`), or of a run at its end (`final_sweep`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, get_type_hints

import msgspec

from ringup.agent_bundle import program
from ringup.planning import Plan
from ringup.rules import PROBLEMS, SEVERITIES, Finding, Problem, at, complete
from ringup.runtime import GRACE_S
from ringup.runtime.node_state import processes
from ringup.runtime.output import clean
from ringup.secrets import redact_data
from ringup.transport import Answer, Transport
from ringup.units import printable, safe_data, show_seconds

LONGEST_ANSWER_BYTES = 4 << 20
LAST_LOOK_BYTES = 1 << 20
LIMIT_S = {"list": 40.0, "kill": 75.0}
"""For all nodes: connecting, then searches of at most 8 s; with "kill" also up to three rounds of 6 s."""
Age = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
QUIET_ROUNDS, BETWEEN_ROUNDS_S = 2, 1.0
"""Number of successive checks that must find nothing more to end, and the time between them."""


@dataclass(frozen=True)
class Left:
    """A job of this user on a node, by its topmost process."""

    pid: int
    age_s: Age
    command: str
    evidence: str
    """Begins with "orphan:" for a leftover, with "running:" for a living job."""
    run: str = ""
    """The run's tag; "" for a job that ringup did not start."""
    ports: tuple[int, ...] = ()
    """TCP ports on which it listens."""
    processes: int = 1
    """Number of processes that would be ended, itself included."""
    doubt: str = ""
    """Why it may still be in use; such a job is never ended."""
    signal: str = ""
    """The signal that ended it: TERM, or KILL if needed."""


@dataclass(frozen=True)
class SharedFile:
    """A file of NCCL or torch in /dev/shm that no process seems to use."""

    path: str
    size_bytes: Size
    age_s: Age
    doubt: str = ""


@dataclass(frozen=True)
class NodeLeftovers:
    node: str
    left: tuple[Left, ...] = ()
    """After ending, if that was requested."""
    ended: tuple[Left, ...] = ()
    running: tuple[Left, ...] = ()
    files: tuple[SharedFile, ...] = ()
    removed: tuple[SharedFile, ...] = ()
    unseen: tuple[str, ...] = ()
    """Processes that could not be judged."""
    error: str = ""
    """Why there is no answer from this node."""

    @property
    def is_clean(self) -> bool:
        return not (self.left or self.files or self.error)


_FOUND = {k: v for k, v in get_type_hints(NodeLeftovers).items() if k not in ("node", "error")}
_Answer: Any = msgspec.defstruct("_Answer", [*_FOUND.items()])
"""The node's line of JSON; msgspec checks every type."""


def leftovers(reach: Transport, *, kill: bool) -> tuple[NodeLeftovers, ...]:
    """Query every node in parallel; `kill` ends proven leftovers."""
    nodes = _leftovers(reach, kill=kill)
    # Ending a lost start may close connections that kept ranks elsewhere alive; those become orphans now.
    follows = len(nodes) > 1 and any(node.ended for node in nodes)
    quiet = 0
    while follows and quiet < QUIET_ROUNDS:
        until = time.monotonic() + BETWEEN_ROUNDS_S
        while time.monotonic() < until:
            reach.turn(0.1)
        again = _leftovers(reach, kill=kill)
        quiet = 0 if any(node.ended for node in again) else quiet + 1
        nodes = tuple(
            replace(second, ended=first.ended + second.ended, removed=first.removed + second.removed)
            for first, second in zip(nodes, again, strict=True)
        )
    return nodes


def _leftovers(reach: Transport, *, kill: bool) -> tuple[NodeLeftovers, ...]:
    mode = "kill" if kill else "list"
    outputs = reach.run(
        program("clean.main"),
        (mode, f"{GRACE_S:g}"),
        label=f"ringup-clean-{mode}",
        doing="leftovers",
        limit_s=LIMIT_S[mode],
        most_bytes=LONGEST_ANSWER_BYTES,
    )
    return tuple(map(_decode, outputs))


def _decode(output: Answer) -> NodeLeftovers:
    name = safe_data(output.node)
    if output.problem:
        return NodeLeftovers(name, error=output.problem)
    try:
        # Types are checked first: an invalid answer is not built in memory.
        answer = msgspec.json.decode(output.stdout, type=_Answer)
        answer = msgspec.convert(safe_data(redact_data(msgspec.to_builtins(answer))), _Answer)
    except (ValueError, RecursionError) as error:
        return NodeLeftovers(name, error=f"its answer cannot be read: {printable(str(error), 200)}")
    return NodeLeftovers(name, **msgspec.structs.asdict(answer))


def final_sweep(
    reach: Transport, plan: Plan, *, reopen: Collection[str], wait_s: float, limit_s: float, lease_s: float
) -> list[Finding]:
    """
    Leftovers on the nodes, the worst first; the sweep takes at most `limit_s` per node.

    The nodes in `reopen` get a new connection; guards have `wait_s` to finish.
    """
    for name in reopen:
        reach.reopen(name)
    outputs = reach.run(
        program("guard.final_sweep"),
        {
            node.node: (plan.run_id, str(plan.master_port if node.rank == 0 else 0), f"{wait_s:.1f}")
            for node in plan.nodes
        },
        label="ringup-last-look",
        doing="leftovers",
        limit_s=limit_s,
        most_bytes=LAST_LOOK_BYTES,
    )
    found = [complete(*one) for output in outputs for one in _judge(output, lease_s)]
    return sorted(found, key=lambda f: SEVERITIES.index(f.severity or "error"))


def not_clean(findings: Iterable[Finding]) -> set[str]:
    """The nodes that, according to a final sweep, have leftovers or could not be queried."""
    rule = PROBLEMS["orphan-of-earlier-run"].name
    return {f.node for f in findings if f.node and f.rule == rule and f.severity != "note"}


class _LastLook(msgspec.Struct):
    """The result of agent/guard/final_sweep.py."""

    killed: list[tuple[int, str]]
    left: list[tuple[int, str]]
    port: int
    port_held: bool
    port_holder: list[int | str]
    """A pid and a command, or empty."""


def _judge(output: Answer, lease_s: float) -> Iterator[tuple[Finding, Problem]]:
    here, orphan, wanted = at(printable(output.node)), PROBLEMS["orphan-of-earlier-run"], "nothing left"
    try:
        answer = msgspec.json.decode(output.stdout, type=_LastLook)
    except (ValueError, RecursionError):
        found = f"could not be checked after the run: {output.problem or 'no answer'}"
        wanted += f" (its guard, without contact for {show_seconds(lease_s)}, has ended everything)"
        yield here.finding(found=found, wanted=wanted, severity="warning"), orphan
        return
    if left := processes(answer.left):
        yield here.finding(found=f"cannot be ended: {'; '.join(left[:5])}", wanted=wanted), orphan
    if killed := processes(answer.killed):
        found = f"ended {len(killed)} left behind: {'; '.join(killed[:5])}"
        yield here.finding(found=found, wanted=wanted, severity="note"), orphan
    if answer.port_held:
        port = at(printable(output.node), f"port {answer.port}")
        by = f" by {clean(' '.join(map(str, answer.port_holder)), 200)}" if answer.port_holder else ""
        found = f"still held after the run{by}"
        yield port.finding(found=found, wanted="free again", severity="warning"), PROBLEMS["port-in-use"]
