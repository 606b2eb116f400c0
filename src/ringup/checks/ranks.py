"""How many ranks a node is to start, and whether its processors and its memory are enough for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ringup.facts import Cluster, Node
from ringup.rules import Finding, Fix, Severity, check
from ringup.units import show_bytes

CROWD = 16
"""Ranks a processor from which nobody can have meant it: each gets less than a tenth of one."""
LEAST_RANK_BYTES = 64 * 1024**2
"""
What a rank surely keeps to itself.

Measured with torch 2.13 for CPUs: 142 MiB of private memory after `import torch` alone.
"""


def ranks_on(cluster: Cluster, node: Node) -> int:
    """Ranks this node would get; a host file's slots count as the plan counts them."""
    gpus = node.gpu_count if "gpu_count" not in node.unknown else 0
    return cluster.job.nproc or node.host.ranks(gpus) or gpus or 1


def on_machine(cluster: Cluster, node: Node) -> int:
    """Ranks on the machine this node is: `--local` plays all nodes on one."""
    return ranks_on(cluster, node) * (len(cluster.nodes) if cluster.is_local else 1)


def for_ranks(cluster: Cluster, node: Node) -> str:
    """Their number, in words."""
    ranks, all_ranks = ranks_on(cluster, node), on_machine(cluster, node)
    more = f", {all_ranks} in all on this machine" if all_ranks > ranks else ""
    return f"{ranks} rank{'s' * (ranks != 1)}{more}"


def least_bytes(cluster: Cluster, node: Node) -> int:
    """What the ranks that were asked for surely need, where that is more than the machine has; else 0."""
    asked, needed = cluster.job.nproc or node.host.slots, on_machine(cluster, node) * LEAST_RANK_BYTES
    known = "memory_bytes" not in node.unknown
    return needed if asked and known and 0 < node.memory_bytes < needed else 0


@check(
    "processors-fewer-than-ranks",
    reads=("cpu_count",),
    uses=("gpu_count", "memory_bytes"),
    severity="warning",
)
def processors_fewer_than_ranks(cluster: Cluster) -> Iterator[Finding]:
    """
    A node lets the job use fewer processors than it has ranks there, or far fewer than its peers do.

    Why: a cgroup, an affinity mask or a scheduler's binding, or a number of ranks that was not meant; ranks,
    loaders and NCCL's own threads then take turns, and the slowest rank sets the pace.

    Fix: more processors in the request (`--cpus-per-task`, the pod's limits), `--cpu-bind=none`; or fewer
    ranks: `--nproc`.
    """
    most = max((n.cpu_count for n in cluster.nodes), default=0)
    for node in cluster.nodes:
        ranks = ranks_on(cluster, node)
        fewer, odd = 0 < node.cpu_count < ranks, 0 < node.cpu_count < most / 2
        crowded = node.cpu_count > 0 and on_machine(cluster, node) > CROWD * node.cpu_count
        if (fewer or odd or crowded) and not least_bytes(cluster, node):
            severity: Severity = "warning" if odd or crowded else "note"
            yield Finding(
                node.name,
                found=f"{node.cpu_count} processors for {for_ranks(cluster, node)}",
                wanted=f"{most}, as elsewhere" if odd else f"{ranks} or more",
                node=node.name,
                severity=severity,
                fix=Fix(
                    "fewer ranks (--nproc)" if crowded else "ask for more, or loosen the binding",
                    commands=(f"ssh {shlex.quote(node.name)} grep Cpus_allowed_list /proc/self/status",),
                ),
            )


@check("ranks-exceed-memory", reads=("memory_bytes",), uses=("gpu_count", "cpu_count"))
def ranks_exceed_memory(cluster: Cluster) -> Iterator[Finding]:
    """
    More ranks are asked for on a node than its memory can hold, whatever they do.

    Why: before all have started the kernel ends processes for want of memory, and not only theirs.

    Fix: fewer ranks: `--nproc`, or the slots in the host file.  `--anyway` starts them all the same.
    """
    for node in cluster.nodes:
        needed = least_bytes(cluster, node)
        if needed:
            processors = f" and {node.cpu_count} processors" if node.cpu_count else ""
            yield Finding(
                node.name,
                found=f"{show_bytes(node.memory_bytes)} of memory{processors} for {for_ranks(cluster, node)}",
                wanted=f"{show_bytes(needed)} at the very least: {show_bytes(LEAST_RANK_BYTES)} a rank",
                node=node.name,
                fix=Fix(f"fewer ranks: --nproc {node.cpu_count or 1}"),
            )
