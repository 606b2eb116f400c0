"""The last look after a run: whatever still carries its tag is ended, and said."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable

from ringup import problems
from ringup.launch.node import integer, processes
from ringup.launch.program import last_look_program
from ringup.launch.show import clean
from ringup.plan import Plan
from ringup.reach import Reach
from ringup.reach.hearing import Hearing, one_per_machine
from ringup.rules import Finding, complete
from ringup.units import printable, show_seconds

LONGEST_ANSWER_BYTES = 1 << 20


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
    asked = {host.name for host in one_per_machine(reach.hosts)}
    looks = [(node, Hearing(node.node, LONGEST_ANSWER_BYTES)) for node in plan.nodes if node.node in asked]
    for node, hearing in looks:
        if node.node in reopen:
            reach.reopen(node.node)
        port = plan.master_port if node.rank == 0 else 0
        arguments = (plan.run_id, str(port), f"{wait_s:.1f}")
        reach.start(node.node, last_look_program(), arguments, hearing, label="ringup-last-look").write(b"")
    until = time.monotonic() + limit_s
    while not all(hearing.done for _, hearing in looks) and time.monotonic() < until:
        reach.turn(0.1)
    found = [finding for _, hearing in looks for finding in _judge(hearing, lease_s)]
    return sorted(found, key=lambda f: ("error", "warning", "note").index(f.severity or "error"))


def _judge(heard: Hearing, lease_s: float) -> Iterable[Finding]:
    name = printable(heard.node)
    try:
        answer = json.loads(heard.data)
        if not isinstance(answer, dict):
            raise ValueError
    except (ValueError, RecursionError):
        why = heard.error or "no answer"
        yield _orphan(
            heard,
            found=f"could not be looked at after the run: {why}",
            wanted=f"nothing left (its guard, unheard for {show_seconds(lease_s)}, has ended everything)",
            severity="warning",
        )
        return
    left, killed = processes(answer, "left"), processes(answer, "killed")
    if left:
        yield _orphan(
            heard, found=f"cannot be ended: {'; '.join(left[:5])}", wanted="nothing left", severity="error"
        )
    if killed:
        yield _orphan(
            heard,
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
                node=heard.node,
                severity="warning",
            ),
            problems.PORT_IN_USE,
        )


def _orphan(heard: Hearing, *, found: str, wanted: str, severity: str) -> Finding:
    finding = Finding(
        printable(heard.node),
        found=found,
        wanted=wanted,
        node=heard.node,
        severity=severity,  # type: ignore[arg-type]
    )
    return complete(finding, problems.ORPHAN_OF_EARLIER_RUN)
