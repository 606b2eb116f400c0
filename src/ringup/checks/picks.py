"""
Which interfaces a job would use on a node, left to NCCL and Gloo: the ones that rules judge.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringup import gloo
from ringup.facts import Cluster, Interface, Node
from ringup.nccl import inuse

USES = ("own_name", "hostname", "environment", "nccl_conf", "interpreter", "gpu_count", *inuse.READS)
"""Facts looked at here where they are known."""

VIRTUAL_NAMES = (
    "docker", "br-", "virbr", "veth", "cni", "flannel", "cali",
    "tailscale", "wg", "tun", "tap", "lxc", "kube-",
)  # fmt: skip
"""How bridges and ends of containers' cables are usually called."""


@dataclass(frozen=True)
class Pick:
    """An interface that will be used unless something is set, and by whom, in words."""

    interface: str
    address: str
    because: str
    by_gloo: bool


def picks(cluster: Cluster, node: Node) -> tuple[Pick, ...]:
    """What Gloo announces and NCCL takes on this node, Gloo first; nothing for what is not known."""
    env = cluster.job.env
    found: list[Pick] = []
    if "own_name" not in node.unknown:
        found += [Pick(c.interface, c.address, c.because, True) for c in gloo.by_job(cluster.job, node, env)]
    if cluster.job.backend != "gloo":
        for chosen in inuse.interfaces(node, env):
            because = f"NCCL takes it, {chosen.because}"
            found.append(Pick(chosen.interface, chosen.address, because, False))
    return tuple(found)


def expects_nccl(cluster: Cluster) -> bool:
    """Whether NCCL will really run: it was asked for, or there is a GPU somewhere."""
    if cluster.job.backend:
        return cluster.job.backend == "nccl"
    return any("gpu_count" not in node.unknown and node.gpu_count for node in cluster.nodes)


def is_virtual(interface: Interface) -> bool:
    """
    Whether this is a bridge, tunnel or a container's cable rather than a network card.

    A veth with a global address is a container's own network card and is none.
    """
    if interface.kind in ("bridge", "tunnel", "virtual"):
        return True
    if interface.kind == "veth" and not interface.usable_addresses:
        return True
    return interface.kind not in ("physical", "bond", "infiniband") and interface.name.startswith(
        VIRTUAL_NAMES
    )


def is_candidate(interface: Interface) -> bool:
    """Whether ranks could meet here: a card of its own with an address that peers can be told."""
    return bool(
        interface.usable_addresses
        and interface.kind != "loopback"
        and not interface.master
        and not is_virtual(interface)
    )
