"""
RoCE's variables, explained and never invented: what each would do here, and who knows its value.

A node cannot see the switches: which traffic class is lossless, how many paths there are.  So nothing is
set here; what NCCL or the driver does by itself is said, and whom to ask for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ringup.facts import Cluster, Node, RdmaPort
from ringup.nccl import choice, gids, rdma
from ringup.plan.kept import ack_timeout
from ringup.reachability import few

RETRIES = 7
"""NCCL_IB_RETRY_CNT when it is not set."""


def explained(cluster: Cluster) -> list[str]:
    """A few sentences where some node sends over RoCE; none elsewhere."""
    ports = {n.name: roce_ports(n, cluster.job.env) for n in cluster.nodes if "rdma_ports" not in n.unknown}
    nodes = [n for n in cluster.nodes if ports.get(n.name)]
    if not nodes or cluster.job.backend == "gloo":
        return []
    told = [f"RoCE on {few(n.name for n in nodes)}:"]
    told += [_gid_index(nodes, ports, cluster.job.env), _traffic_class(nodes, ports, cluster.job.env)]
    told += [_timeout(nodes, cluster.job.env), _queue_pairs(nodes, cluster.job.env)]
    return told


def roce_ports(node: Node, env: Mapping[str, str]) -> list[RdmaPort]:
    """The RoCE ports NCCL uses on this node."""
    return [p for p in rdma.wanted(rdma.taken(node, env)) if p.link_layer == "Ethernet"]


def _set_to(name: str, nodes: Sequence[Node], env: Mapping[str, str]) -> list[str]:
    """Its values where it is set."""
    return sorted({v for n in nodes if (v := choice.effective(n, env).get(name, ""))})


def _gid_index(nodes: Sequence[Node], ports: Mapping[str, Sequence[RdmaPort]], env: Mapping[str, str]) -> str:
    found = {}
    for node in nodes:
        version = choice.version_of(node.interpreter.nccl)
        for port in ports[node.name]:
            made = gids.gid_index(port, choice.effective(node, env), version)
            gid = f"{made.gid.gid} {made.gid.kind}" if made.gid else "an entry that is not known"
            found[f"{made.index} ({gid})" if made.index is not None else "what its table says"] = version
    shown = few(found)
    if all(version >= gids.CHOOSES for version in found.values()):
        return f"  NCCL_IB_GID_INDEX: leave it; NCCL since 2.21 looks for the entry itself, here {shown}"
    return f"  NCCL_IB_GID_INDEX: before 2.21 NCCL takes index 0 when it is not set; here it uses {shown}"


def _traffic_class(
    nodes: Sequence[Node], ports: Mapping[str, Sequence[RdmaPort]], env: Mapping[str, str]
) -> str:
    values = _set_to("NCCL_IB_TC", nodes, env)
    if values:
        shown = ", ".join(f"{v} (DSCP {int(v) >> 2})" if v.isdecimal() else v for v in values)
        return f"  NCCL_IB_TC: {shown} is the site's, and kept; right if the switches' lossless class has it"
    marked = {p.traffic_class for n in nodes for p in ports[n.name] if p.traffic_class}
    if marked:
        shown = ", ".join(f"{v} (DSCP {v >> 2})" for v in sorted(marked))
        return f"  NCCL_IB_TC: leave it; the driver marks all RoCE traffic here with {shown}"
    return (
        "  NCCL_IB_TC: not set, and not to be guessed: ask who runs the switches for the DSCP of the lossless"
        " class, then 4 times that on every node; without one (or with PFC on all traffic) leave it"
    )


def _timeout(nodes: Sequence[Node], env: Mapping[str, str]) -> str:
    usual = max(ack_timeout(choice.version_of(n.interpreter.nccl)) for n in nodes)
    values = _set_to("NCCL_IB_TIMEOUT", nodes, env)
    now = ", ".join(values) or f"{usual}, the default"
    wait_s = 4.096e-6 * 2**usual
    return (
        f"  NCCL_IB_TIMEOUT: {now}; at {usual} a try lasts {wait_s:.2g} s and there are {RETRIES}: more of"
        " either rides out a reboot of a switch, and hides a bad link as long"
    )


def _queue_pairs(nodes: Sequence[Node], env: Mapping[str, str]) -> str:
    values = _set_to("NCCL_IB_QPS_PER_CONNECTION", nodes, env)
    return (
        f"  NCCL_IB_QPS_PER_CONNECTION: {', '.join(values) or '1, the default'}; 4 or 8 spread a connection"
        " over the paths of an ECMP fabric, and only there; equal on all nodes; `ringup bench` tells"
    )
