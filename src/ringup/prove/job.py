"""What is planned in place of the user's script: our own program, sent along with the guard."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import Literal

from ringup.facts import Cluster, Job
from ringup.launch.program import prove_program
from ringup.plan import Plan

FILE = "prove.py"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


def backend_of(cluster: Cluster) -> Literal["nccl", "gloo"]:
    """What the ranks use: as asked, else NCCL where any node has a GPU.  The same on all of them."""
    asked = cluster.job.backend
    if asked in ("nccl", "gloo"):
        return "nccl" if asked == "nccl" else "gloo"
    return "nccl" if any(node.gpu_count for node in cluster.nodes) else "gloo"


def sizes(first_bytes: int, last_bytes: int) -> tuple[int, ...]:
    """
    Doubling sizes from the first to the last.

    >>> sizes(1024, 5000)
    (1024, 2048, 4096, 5000)
    """
    found = [first_bytes]
    while found[-1] * 2 <= last_bytes:
        found.append(found[-1] * 2)
    return (*found, last_bytes) if found[-1] < last_bytes else tuple(found)


def proving(job: Job, arguments: tuple[str, ...], backend: str) -> Job:
    """The job with our program's arguments, and no script of the user's."""
    return replace(job, script="", arguments=arguments, backend=backend)


def shipped(plan: Plan) -> Plan:
    """The plan with our program in place of the script."""
    nodes = [
        replace(node, env={**node.env, "RINGUP_SCRIPT": posixpath.join(node.run_dir, FILE)})
        for node in plan.nodes
    ]
    return replace(plan, nodes=tuple(nodes), files={FILE: prove_program()})
