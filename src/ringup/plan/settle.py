"""
Findings weighed against the plan.

What the plan avoids is a warning that says how; what no plan avoids stays what it was.
Whether an interface is avoided is not taken on trust: what NCCL and Gloo would choose is
worked out again under the environment the plan sets.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace

from ringup import gloo
from ringup.facts import Cluster, Node
from ringup.nccl import choice, inuse, rdma
from ringup.plan import NodePlan, Plan
from ringup.rules import SEVERITIES, Finding

PINS = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def settle(findings: Sequence[Finding], plan: Plan | None, cluster: Cluster) -> list[Finding]:
    """The findings with their final severity, worst first; without a plan nothing is avoided."""
    settled = [settled_one(f, plan, cluster) if plan else f for f in findings]
    # Of two errors the one that no plan could avoid comes first: it is what stops the job.
    return sorted(settled, key=lambda f: (SEVERITIES.index(f.severity or "error"), bool(f.subject)))


def settled_one(finding: Finding, plan: Plan, cluster: Cluster) -> Finding:
    """One finding: at most a warning, with the way round it, where the plan goes round it."""
    how = avoidance(finding.subject, plan, cluster)
    if not how:
        return finding
    severity = "warning" if finding.severity in (None, "error") else finding.severity
    return replace(finding, severity=severity, worked_around_by=finding.worked_around_by or how)


def avoidance(subject: str, plan: Plan, cluster: Cluster) -> str:
    """How the plan avoids what a finding is about; "" when it does not."""
    kind, _, rest = subject.partition(":")
    if kind == "interface":
        node, _, interface = rest.partition("/")
        return interface_avoided(node, interface, plan, cluster)
    if kind == "name":
        return name_avoided(rest, plan, cluster)
    if kind == "port":
        other = str(plan.master_port) != rest
        return f"the rendezvous is on port {plan.master_port}" if other else ""
    if kind == "path":
        parts = planned(rest, plan)
        absolute = parts is not None and parts.words[:1] and parts.words[0].startswith("/")
        return f"the interpreter is started by its path, {parts.words[0]}" if parts and absolute else ""
    if kind == "rdma":
        node, _, port = rest.partition("/")
        return rdma_avoided(node, port, plan, cluster)
    if kind == "env":
        name, _, node = rest.partition("@")
        return variable_avoided(name, node, plan, cluster)
    return plan.avoided.get(subject, "")


def planned(node: str, plan: Plan) -> NodePlan | None:
    """This node's part of the plan."""
    return next((n for n in plan.nodes if n.node == node), None)


def facts(node: str, cluster: Cluster) -> Node | None:
    """This node's facts."""
    return next((n for n in cluster.nodes if n.name == node), None)


def interface_avoided(node: str, interface: str, plan: Plan, cluster: Cluster) -> str:
    """Whether neither the rendezvous, nor Gloo, nor NCCL uses the interface under the plan."""
    part, known = planned(node, plan), facts(node, cluster)
    if part is None or known is None or not part.interface or part.interface == interface:
        return ""
    env = {**cluster.job.env, **part.env}
    used = {c.interface for c in gloo.by_job(cluster.job, known, env)}
    if cluster.job.backend != "gloo":
        used |= {c.interface for c in inuse.interfaces(known, env)}
    if interface in used:
        return ""
    pins = " and ".join(f"{name}={part.env[name]}" for name in PINS if name in part.env)
    return f"ranks meet on {part.interface} ({part.address}){f', by {pins}' if pins else ''}"


def rdma_avoided(node: str, port: str, plan: Plan, cluster: Cluster) -> str:
    """Whether NCCL leaves an RDMA port alone under the plan, which it takes without it."""
    part, known = planned(node, plan), facts(node, cluster)
    value = part.env.get("NCCL_IB_HCA", "") if part else ""
    if part is None or known is None or not value or "NCCL_IB_HCA" in cluster.job.env:
        return ""
    taken = rdma.taken(known, {**cluster.job.env, **part.env})
    return f"NCCL_IB_HCA={value}" if port not in {p.name for p in taken} else ""


def name_avoided(node: str, plan: Plan, cluster: Cluster) -> str:
    """Whether ranks meet by address, and Gloo on this node announces the planned one without asking names."""
    part, known = planned(node, plan), facts(node, cluster)
    if part is None or known is None or not is_address(plan.master_addr):
        return ""
    env = {**cluster.job.env, **part.env}
    addresses = [c.address for c in gloo.by_job(cluster.job, known, env)]
    if addresses != [part.address] and (addresses or cluster.job.launcher != "jax"):
        return ""
    pin = part.env.get("GLOO_SOCKET_IFNAME")
    words = f"addresses are used instead of names ({node} is {part.address})"
    return words + (f", GLOO_SOCKET_IFNAME={pin}" if pin else "")


def is_address(text: str) -> bool:
    """Whether this is a literal address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def variable_avoided(name: str, node: str, plan: Plan, cluster: Cluster) -> str:
    """Whether the plan takes a variable away on a node or replaces its value."""
    part, known = planned(node, plan), facts(node, cluster)
    if part is None or known is None:
        return ""
    if name in part.unset and name not in part.env:
        return f"{name} is unset for the job"
    before = choice.effective(known, {}).get(name)
    after = part.env.get(name, before)
    if after != before and name not in cluster.job.env:
        return f"the plan sets {name}={after} there"
    return ""
