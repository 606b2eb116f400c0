"""
What NCCL (or Gloo, where the job uses no GPU) will choose on every node, with the plan and without it.

One prediction for all who need it: `check`, `run` and `predict` see the same nodes through `known`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ringup import gloo
from ringup.facts import Cluster, Node
from ringup.nccl import across, choice, network, pci, shown
from ringup.nccl.network import Known, Prediction
from ringup.plan import Plan, Transport

GLOO = "Gloo"


@dataclass(frozen=True)
class Expected:
    """One node: what is chosen with what the plan sets, and what would be without it, where that differs."""

    prediction: Prediction
    alone: Prediction | None = None


def expected(cluster: Cluster, plan: Plan | None) -> tuple[Expected, ...]:
    """Of every node that was reached, in the user's order."""
    nodes = [n for n in cluster.nodes if not n.unreached]
    own = cluster.job.env
    set_by_plan = {p.node: {**own, **p.env} for p in plan.nodes} if plan else {}
    foretell = _nccl if across.uses_nccl(cluster) else _gloo
    alone = foretell(nodes, [own] * len(nodes))
    if not plan or not plan.env:
        return tuple(Expected(a) for a in alone)
    made = foretell(nodes, [set_by_plan.get(n.name, own) for n in nodes])
    return tuple(
        Expected(m, a if shown.likeness(m)[:5] != shown.likeness(a)[:5] else None)
        for m, a in zip(made, alone, strict=True)
    )


def with_transports(plan: Plan, cluster: Cluster) -> Plan:
    """The plan with what it leads to, node by node, to be compared with what a run's logs show."""
    made = [e.prediction for e in expected(cluster, plan)]
    found = tuple(Transport(p.name, p.network, p.interfaces, p.confidence) for p in made)
    return replace(plan, transports=found)


def known(node: Node) -> Known:
    """What a node's own facts tell of it."""
    told = node.interpreter.nccl
    tree = pci.topology(node)
    return Known(node, choice.version_of(told), bool(told), topology=tree, is_live_tree=bool(tree.cpus))


def _nccl(nodes: Sequence[Node], env: Sequence[Mapping[str, str]]) -> tuple[Prediction, ...]:
    alone = [network.predict(known(node), e) for node, e in zip(nodes, env, strict=True)]
    return across.together(nodes, alone)


def _gloo(nodes: Sequence[Node], env: Sequence[Mapping[str, str]]) -> tuple[Prediction, ...]:
    return tuple(_announced(node, e) for node, e in zip(nodes, env, strict=True))


def _announced(node: Node, env: Mapping[str, str]) -> Prediction:
    """Gloo's choice: the address its ranks tell their peers."""
    lacks = [name for name in ("interfaces", "own_name") if name in node.unknown]
    if lacks:
        missing = tuple(f"{name} ({node.unknown[name]})" for name in lacks)
        return Prediction(node.name, None, GLOO, missing=missing)
    found = gloo.announced(node, env)
    named = choice.effective(node, env).get("GLOO_SOCKET_IFNAME", "")
    if node.own_name.is_late and not named:
        return Prediction(node.name, None, GLOO, missing=(f"own_name ({node.own_name.error})",))
    if not found:
        return Prediction(node.name, None, "", because=(f"GLOO_SOCKET_IFNAME={named} has no address here",))
    return Prediction(
        node.name,
        found[0],
        GLOO,
        interfaces=tuple(f"{c.interface}:{choice.shown(c)}" for c in found),
        because=tuple(c.because for c in found),
    )
