"""The last look after a run: whatever still carries its tag is ended, and said."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ringup import problems
from ringup.facts import Unreached
from ringup.launch.node import integer, processes
from ringup.launch.program import last_look_program
from ringup.launch.show import clean
from ringup.plan import NodePlan, Plan
from ringup.reach import Reach
from ringup.rules import Finding, complete
from ringup.units import printable, show_seconds

LONGEST_ANSWER_BYTES = 1 << 20


@dataclass
class Look:
    """One node's answer."""

    node: NodePlan
    data: bytes = b""
    done: bool = False
    error: str = ""
    errors: bytes = field(default=b"", repr=False)

    def on_output(self, node: str, data: bytes) -> None:
        """Part of the answer."""
        self.data = (self.data + data)[:LONGEST_ANSWER_BYTES]

    def on_errors(self, node: str, data: bytes) -> None:
        """Why there may be none."""
        self.errors = (self.errors + data)[-4096:]

    def on_exit(self, node: str, code: int | None, error: Unreached | None) -> None:
        """The answer is complete, or never will be."""
        self.done = True
        if error is not None:
            self.error = error.words
        elif code != 0:
            lines = self.errors.decode("utf-8", "replace").strip().splitlines()
            self.error = clean(lines[-1]) if lines else f"exit code {code}"


def last_look(
    reach: Reach,
    plan: Plan,
    *,
    reopen: Collection[str],
    wait_s: float,
    limit_s: float,
    lease_s: float,
) -> list[Finding]:
    """
    Look on every node, side by side, for at most `limit_s`; what was found, worst first.

    `reopen` names nodes whose connection is lost or occupied; `wait_s` is what guards may still need.
    """
    looks = []
    for node in _one_per_machine(reach, plan):
        if node.node in reopen:
            reach.reopen(node.node)
        look = Look(node)
        port = plan.master_port if node.rank == 0 else 0
        arguments = (plan.run_id, str(port), f"{wait_s:.1f}")
        reach.start(node.node, last_look_program(), arguments, look, label="ringup-last-look").write(b"")
        looks.append(look)
    until = time.monotonic() + limit_s
    while not all(look.done for look in looks) and time.monotonic() < until:
        reach.turn(0.1)
    found = [finding for look in looks for finding in _judge(look, lease_s)]
    return sorted(found, key=lambda f: ("error", "warning", "note").index(f.severity or "error"))


def _one_per_machine(reach: Reach, plan: Plan) -> Iterable[NodePlan]:
    local = {host.name for host in reach.hosts if host.local}
    seen_local = False
    for node in plan.nodes:
        if node.node in local and seen_local:
            continue
        seen_local = seen_local or node.node in local
        yield node


def _judge(look: Look, lease_s: float) -> Iterable[Finding]:
    name = printable(look.node.node)
    try:
        answer = json.loads(look.data)
        if not isinstance(answer, dict):
            raise ValueError
    except ValueError:
        why = printable(look.error) or "no answer"
        yield _orphan(
            look,
            found=f"could not be looked at after the run: {why}",
            wanted=f"nothing left (its guard, unheard for {show_seconds(lease_s)}, has ended everything)",
            severity="warning",
        )
        return
    left, killed = processes(answer, "left"), processes(answer, "killed")
    if left:
        yield _orphan(
            look, found=f"cannot be ended: {'; '.join(left[:5])}", wanted="nothing left", severity="error"
        )
    if killed:
        yield _orphan(
            look,
            found=f"ended {len(killed)} left behind: {'; '.join(killed[:5])}",
            wanted="nothing left",
            severity="note",
        )
    if answer.get("port_held") is True:
        holder = answer.get("port_holder")
        by = ""
        if isinstance(holder, list) and len(holder) == 2:
            by = f" by {integer({'pid': holder[0]}, 'pid')} {clean(str(holder[1]), 200)}"
        port = integer(answer, "port")
        yield complete(
            Finding(
                f"{name} port {port}",
                found=f"still held after the run{by}",
                wanted="free again",
                node=look.node.node,
                severity="warning",
            ),
            problems.PORT_IN_USE,
        )


def _orphan(look: Look, *, found: str, wanted: str, severity: str) -> Finding:
    finding = Finding(
        printable(look.node.node),
        found=found,
        wanted=wanted,
        node=look.node.node,
        severity=severity,  # type: ignore[arg-type]
    )
    return complete(finding, problems.ORPHAN_OF_EARLIER_RUN)
