"""
RDMA devices and the GID index: what NCCL must be told to use the ports that belong together, and no more.

Nothing is set that NCCL chooses well by itself, nor on one machine alone, where no network is used.
"""

from __future__ import annotations

from collections import Counter

from ringup.facts import Cluster, Job, Node
from ringup.nccl import choice, gids, rdma
from ringup.plan import EnvVar


def variables(cluster: Cluster, notes: list[str]) -> list[EnvVar]:
    """NCCL_IB_HCA and NCCL_IB_GID_INDEX where they change something; what could not be decided in `notes`."""
    if cluster.job.backend == "gloo" or len(cluster.nodes) < 2 or cluster.is_local:
        return []
    return _devices(cluster, notes) + _gid_index(cluster, notes)


def user_value(job: Job, node: Node, name: str) -> str | None:
    """
    What the user set: `--env`, then the node's shell, then nccl.conf for NCCL's own; None when unset.

    `--env NAME=` is a wish, too: it takes away what the shell has.
    """
    if name in job.env:
        return job.env[name]
    return node.environment.get(name) or node.nccl_conf.get(name) or None


def _devices(cluster: Cluster, notes: list[str]) -> list[EnvVar]:
    """NCCL_IB_HCA where NCCL would also take ports of another network."""
    reasons: dict[str, tuple[str, str]] = {}
    known = [n for n in cluster.nodes if "rdma_ports" not in n.unknown]
    users = Counter(p.name for n in known for p in rdma.wanted(rdma.taken(n, cluster.job.env)))
    for node in cluster.nodes:
        if "rdma_ports" in node.unknown:
            notes.append(f"the RDMA devices of {node.name} are not known: {node.unknown['rdma_ports']}")
            continue
        taken = rdma.taken(node, cluster.job.env)
        chosen = rdma.wanted(taken)
        # A port that other nodes use at its full rate has lost it here: without it, node and peers would
        # have different numbers of devices.
        left = [p for p in taken if p not in chosen and not users[p.name]]
        own = user_value(cluster.job, node, "NCCL_IB_HCA")
        if left and own is None:
            out = ", ".join(f"{rdma.shown(p)} {p.rate_gbit_s:g} Gbit/s" for p in left)
            why = f"NCCL would also take {out}, which is not of the network of {chosen[0].name}"
            reasons[node.name] = rdma.hca_value([p for p in taken if p not in left], node.rdma_ports), why
        elif left:
            notes.append(f"NCCL_IB_HCA={own} on {node.name} is yours and stays, it also takes {left[0].name}")
    return _everywhere_or_each("NCCL_IB_HCA", cluster, reasons)


def _everywhere_or_each(name: str, cluster: Cluster, reasons: dict[str, tuple[str, str]]) -> list[EnvVar]:
    """One variable where every node needs the same value, else one for each node that needs it."""
    values = {value for value, _ in reasons.values()}
    because = "; ".join(dict.fromkeys(why for _, why in reasons.values()))
    if len(values) == 1 and len(reasons) == len(cluster.nodes):
        return [EnvVar(name, values.pop(), because)]
    return [EnvVar(name, value, why, node=node) for node, (value, why) in reasons.items()]


def _gid_index(cluster: Cluster, notes: list[str]) -> list[EnvVar]:
    """NCCL_IB_GID_INDEX for RoCE before 2.21, where index 0 is not the entry to use."""
    reasons: dict[str, tuple[str, str]] = {}
    for node in cluster.nodes:
        version = choice.version_of(node.interpreter.nccl)
        ports = [p for p in rdma.wanted(rdma.taken(node, cluster.job.env)) if p.link_layer == "Ethernet"]
        own = user_value(cluster.job, node, "NCCL_IB_GID_INDEX")
        if not ports or version >= gids.CHOOSES or own is not None:
            continue
        found = {gids.gid_index(p, {}, gids.CHOOSES).index for p in ports}
        if None in found:
            notes.append(
                f"{node.name}: NCCL before 2.21 uses GID index 0; the table is not known (show_gids)"
            )
        elif len(found) > 1:
            notes.append(
                f"{node.name}: its RoCE ports need GID indexes {sorted(map(str, found))}, but one counts"
            )
        elif found != {0}:
            why = "NCCL before 2.21 takes index 0, which is link-local RoCE v1; this entry has an address"
            reasons[node.name] = str(found.pop()), why
    return _everywhere_or_each("NCCL_IB_GID_INDEX", cluster, reasons)
