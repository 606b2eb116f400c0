"""
What the choices of several nodes mean together: each node chooses alone, and nothing in NCCL compares.

NCCL src/plugin/net.cc chooses per process; src/transport/net_ib connects the n-th device with the n-th.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ringup.facts import Cluster, Node
from ringup.nccl.network import Prediction

MOST_COMPARED = 64
"""Every node is held against so many others: one that differs shows against any of a kind."""


def uses_nccl(cluster: Cluster) -> bool:
    """Whether NCCL will run: it was asked for, or no node is known to be without GPUs."""
    if cluster.job.backend:
        return cluster.job.backend == "nccl"
    return any("gpu_count" in n.unknown or n.gpu_count for n in cluster.nodes if not n.unreached)


def together(nodes: Sequence[Node], predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """The predictions with what only the others make wrong; `nodes` are those they are of."""
    made = []
    sample = list(zip(nodes, predictions, strict=True))[:MOST_COMPARED]
    for node, one in zip(nodes, predictions, strict=True):
        others = [(n, p) for n, p in sample if n.name != node.name]
        found = [*_network(one, others), *_devices(one, others), *_subnet(node, one, others)]
        found += _scope(node, one, others)
        made.append(replace(one, because=(*one.because, *found)))
    return tuple(made)


Others = Sequence[tuple[Node, Prediction]]


def _network(one: Prediction, others: Others) -> list[str]:
    kinds = Counter(p.network for _, p in others if p.network)
    if not one.network or not kinds or one.network in kinds:
        return []
    kind, _ = kinds.most_common(1)[0]
    who = next(p.name for _, p in others if p.network == kind)
    return [
        f"{who} chooses {kind}, this node {one.network}: their ranks do not connect, and nothing says why"
    ]


def _devices(one: Prediction, others: Others) -> list[str]:
    """The n-th device of one node meets the n-th of another: kinds must agree."""
    if one.network != "IB":
        return []
    own = [name.rpartition("/")[2] for name in one.interfaces]
    for _, other in others:
        theirs = [name.rpartition("/")[2] for name in other.interfaces]
        if other.network == "IB" and theirs != own:
            told = (
                f"{other.name} lists {' '.join(other.interfaces)}: the n-th device here meets the n-th there"
            )
            return [f"{told}; NCCL_IB_HCA can name those that belong together"]
    return []


def _subnet(node: Node, one: Prediction, others: Others) -> list[str]:
    own = _of_bootstrap(node, one)
    if own is None:
        return []
    for other_node, other in others:
        theirs = _of_bootstrap(other_node, other)
        if theirs is not None and theirs.network != own.network:
            return [
                f"{other.name} is reached at {theirs.ip}, this node at {own.ip}: two subnets, "
                "which must be routed (`ringup check` tries it)"
            ]
    return []


def _of_bootstrap(node: Node, one: Prediction) -> ipaddress.IPv4Interface | None:
    """The bootstrap's IPv4 address with its subnet; None for what is not routed anyway."""
    interface = node.interface(one.bootstrap.interface) if one.bootstrap else None
    for address in interface.addresses if interface else ():
        if one.bootstrap and address.address == one.bootstrap.address and address.family == "inet":
            try:
                return ipaddress.IPv4Interface(f"{address.address}/{address.prefix_length}")
            except ValueError:
                return None
    return None


def _scope(node: Node, one: Prediction, others: Others) -> list[str]:
    """A link-local address travels with this node's number of the interface, which peers take for theirs."""
    if not one.bootstrap or not one.bootstrap.address.lower().startswith("fe80:"):
        return []
    own = node.interface(one.bootstrap.interface)
    for other_node, other in others:
        theirs = other_node.interface(own.name) if own else None
        if own and theirs and theirs.index != own.index:
            return [
                f"{own.name} is interface {own.index} here and {theirs.index} on {other.name}: "
                "a link-local address told from one to the other names another interface there"
            ]
    return []
