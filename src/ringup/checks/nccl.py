"""What NCCL's own library said on the nodes, held against what is predicted of it."""

from __future__ import annotations

from collections.abc import Iterator

from ringup.facts import Cluster
from ringup.nccl import choice
from ringup.rules import Finding, check
from ringup.units import printable


@check(
    "nccl-answer-differs",
    reads=("nccl_answer", "interfaces"),
    uses=("environment", "nccl_conf", "interpreter"),
    severity="note",
)
def nccl_answer_differs(cluster: Cluster) -> Iterator[Finding]:
    """
    NCCL, asked on a node, takes another interface than its source makes us expect.

    Why: what the library itself says counts, and is what the plan goes by; that the prediction errs
    may matter for what cannot be asked: RDMA devices, and which card each GPU uses.

    Fix: nothing to do for the job; please report it with `ringup bundle`.
    """
    for node in cluster.nodes:
        told = choice.asked(node, cluster.job.env)
        if not told:
            continue
        ours = choice.by_rules(node, cluster.job.env)
        expected = (ours.interface, ours.address) if ours else ("", "")
        if (told.interface, told.address) != expected:
            said = f"{told.interface} {told.address}" if told.interface else "; ".join(told.errors)
            yield Finding(
                f"{node.name} NCCL",
                found=f"NCCL {told.version} itself says: {printable(said, 300)}",
                wanted=f"as expected: {printable(' '.join(expected), 100)}"
                if ours
                else "as expected: no interface",
                node=node.name,
            )
