"""Having NCCL say which network it takes: a silent fall back to TCP is seen in the first seconds."""

from __future__ import annotations

from dataclasses import replace

from ringup.facts import Cluster
from ringup.plan import EnvVar, Plan
from ringup.plan.devices import user_value

APART = "its lines go to nccl-*.log in the log directory, not to the terminal"
SLOW = ("", "Socket", "Gloo")
"""Networks below which NCCL cannot fall: there is nothing to be watched for."""


def listening(plan: Plan, cluster: Cluster, *, always: bool = False) -> Plan:
    """
    The plan with NCCL_DEBUG set where what NCCL takes can differ from what is expected.

    Only lines of initialisation are asked for (NCCL_DEBUG_SUBSYS), unless `always` (`--debug`) or the user
    says otherwise; a user's own NCCL_DEBUG is left alone, and so are jobs that can only use TCP.
    """
    expects_more = len(plan.nodes) > 1 and any(t.network not in SLOW for t in plan.transports)
    if cluster.job.backend == "gloo" or not (always or expects_more):
        return plan
    if any(user_value(cluster.job, node, "NCCL_DEBUG") is not None for node in cluster.nodes):
        return plan
    added = [EnvVar("NCCL_DEBUG", "INFO", f"tells which network NCCL takes; {APART}")]
    if all(user_value(cluster.job, node, "NCCL_DEBUG_SUBSYS") is None for node in cluster.nodes):
        subsystems = "INIT,BOOTSTRAP,ENV,NET,GRAPH" if always else "INIT,ENV,NET"
        added.append(
            EnvVar("NCCL_DEBUG_SUBSYS", subsystems, "only what is said while communicators are made")
        )
    nodes = tuple(replace(n, env={**{v.name: v.value for v in added}, **n.env}) for n in plan.nodes)
    return replace(plan, nodes=nodes, env=(*plan.env, *added))


def is_listening(plan: Plan) -> bool:
    """Whether NCCL's lines are there because of the plan and not of the user."""
    return any(v.name == "NCCL_DEBUG" for v in plan.env)
