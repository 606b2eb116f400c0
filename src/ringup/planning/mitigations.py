"""
Findings weighed against the plan: a finding that the plan avoids becomes a warning that explains how.

An interface counts as avoided only if NCCL and Gloo are predicted to select another one under the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ringup.addresses import is_address
from ringup.model import Cluster
from ringup.nccl import interface_choice
from ringup.network.predictions import Predictions, Selection, predicted, uses_nccl
from ringup.planning import NodePlan, Plan, planned
from ringup.rules import SEVERITIES, Finding
from ringup.units import assignment

PINS = NCCL, GLOO = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def weigh(findings: Sequence[Finding], plan: Plan | None, cluster: Cluster) -> list[Finding]:
    """The findings with their final severity, worst first; without a plan none is avoided."""
    if plan:
        alone = predicted(cluster)
        avoided = _Avoided(plan, alone, planned(alone, plan), {part.node: part for part in plan.nodes})
        findings = [avoided.weigh(finding) for finding in findings]
    # Of two errors, the one that no plan could avoid comes first, because it stops the job.
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity or "error"), bool(f.subject)))


@dataclass(frozen=True)
class _Avoided:
    """How a plan works around findings; each method returns "" if it does not."""

    plan: Plan
    alone: Predictions
    planned: Predictions
    parts: Mapping[str, NodePlan]

    def weigh(self, finding: Finding) -> Finding:
        """If the plan avoids the finding, at most a warning that explains how."""
        kind, _, rest = finding.subject.partition(":")
        node = rest.partition("@")[2] if kind == "env" else rest.partition("/")[0]
        part, selection = self.parts.get(node), self.planned.nodes.get(node)
        how = self.port(rest) if kind == "port" else ""
        if kind in KINDS and part and selection:
            how = getattr(self, kind)(rest, part, selection)
        if not how:
            return finding
        severity = "warning" if finding.severity in (None, "error") else finding.severity
        return replace(finding, severity=severity, worked_around_by=finding.worked_around_by or how)

    def interface(self, rest: str, part: NodePlan, selection: Selection) -> str:
        """`NODE/INTERFACE`: the rendezvous, Gloo and NCCL all use another interface under the plan."""
        interface = rest.partition("/")[2]
        if part.interface in ("", interface):
            return ""
        by_gloo, by_nccl = self._used_by(GLOO, selection), self._used_by(NCCL, selection)
        # If NCCL or Gloo has no interface left, the job has not avoided this one.
        fails = uses_nccl(self.alone.cluster) != "no" and not by_nccl
        fails = fails or (selection.job.launcher != "jax" and not by_gloo)
        if fails or interface in by_gloo | by_nccl:
            return ""
        named = [name for name in PINS if name in part.env and self._leads_away(name, interface, selection)]
        pins = " and ".join(assignment(name, part.env[name]) for name in named)
        return f"ranks use {part.interface} ({part.address}){f', by {pins}' if pins else ''}"

    def rdma(self, rest: str, part: NodePlan, selection: Selection) -> str:
        """`NODE/PORT`: NCCL does not use this RDMA port under the plan, but would without it."""
        node, _, port = rest.partition("/")
        value = part.env.get("NCCL_IB_HCA", "")
        if not value or "NCCL_IB_HCA" in selection.job.env:
            return ""
        alone = {p.name for p in self.alone.nodes[node].rdma_ports}
        is_left = port in alone - {p.name for p in selection.rdma_ports}
        return assignment("NCCL_IB_HCA", value) if is_left else ""

    def name(self, node: str, part: NodePlan, selection: Selection) -> str:
        """Ranks use addresses, and Gloo on this node announces the planned one without a name lookup."""
        if not is_address(self.plan.master_addr):
            return ""
        addresses = [c.address for c in selection.gloo_of_job]
        if addresses != [part.address] and (addresses or selection.job.launcher != "jax"):
            return ""
        pin = part.env.get("GLOO_SOCKET_IFNAME")
        words = f"addresses are used instead of names ({node} is {part.address})"
        return words + (f", {assignment('GLOO_SOCKET_IFNAME', pin)}" if pin else "")

    def port(self, port: str) -> str:
        planned_port = self.plan.master_port
        return f"the rendezvous is on port {planned_port}" if str(planned_port) != port else ""

    def path(self, _node: str, part: NodePlan, _selection: Selection) -> str:
        first = part.words[0] if part.words else ""
        return f"the interpreter is started by its path, {first}" if first.startswith("/") else ""

    def env(self, rest: str, part: NodePlan, selection: Selection) -> str:
        """`NAME@NODE`: the plan removes a variable on a node or replaces its value."""
        name = rest.partition("@")[0]
        if name in part.unset and name not in part.env:
            return f"{name} is unset for the job"
        before = interface_choice.effective(selection.node, {}).get(name)
        after = part.env.get(name, before)
        is_changed = after != before and name not in selection.job.env
        return f"the plan sets {assignment(name, after or '')} there" if is_changed else ""

    @staticmethod
    def _used_by(variable: str, selection: Selection) -> set[str]:
        """The interfaces that the reader of this variable uses."""
        if variable == GLOO:
            return {c.interface for c in selection.gloo_of_job}
        return set() if selection.job.backend == "gloo" else {c.interface for c in selection.interfaces}

    def _leads_away(self, variable: str, interface: str, selection: Selection) -> bool:
        """Whether this variable makes its reader use another interface."""
        without = selection.with_env(**{variable: ""})
        return bool(self._used_by(variable, selection)) and interface in self._used_by(variable, without)


KINDS = ("interface", "rdma", "name", "path", "env")
"""Prefixes of a finding's subject, besides "port"."""
