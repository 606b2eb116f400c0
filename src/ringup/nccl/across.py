"""
What the choices of several nodes mean together: each node chooses alone, and nothing in NCCL compares.

NCCL src/plugin/net.cc chooses per process; src/transport/net_ib connects the n-th device with the n-th.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ringup.facts import Cluster, Node
from ringup.nccl.network import Prediction

MOST_COMPARED = 64
"""Every node is held against so many others: one that differs shows against any of a kind."""


def uses_nccl(cluster: Cluster) -> bool:
    """Whether NCCL will run: it was asked for, or no node is known to be without GPUs."""
    if cluster.job.backend:
        return cluster.job.backend == "nccl"
    return any("gpu_count" in n.unknown or n.gpu_count for n in cluster.nodes if not n.unreached)


@dataclass(frozen=True)
class _Seen:
    """A node with its prediction, and what is compared of it."""

    node: Node
    prediction: Prediction
    address: ipaddress.IPv4Interface | None
    """The bootstrap's, with its subnet."""
    kinds: tuple[str, ...]
    """Link layers of its RDMA devices, in order."""


def together(nodes: Sequence[Node], predictions: Sequence[Prediction]) -> tuple[Prediction, ...]:
    """The predictions with what only the others make wrong; `nodes` are those they are of."""
    seen = [
        _Seen(n, p, _of_bootstrap(n, p), tuple(i.rpartition("/")[2] for i in p.interfaces))
        for n, p in zip(nodes, predictions, strict=True)
    ]
    sample = seen[:MOST_COMPARED]
    made = []
    for one in seen:
        others = [s for s in sample if s.node.name != one.node.name]
        found = [*_network(one, others), *_devices(one, others), *_subnet(one, others), *_scope(one, others)]
        made.append(replace(one.prediction, because=(*one.prediction.because, *found)))
    return tuple(made)


def _network(one: _Seen, others: Sequence[_Seen]) -> list[str]:
    own = one.prediction.network
    kinds = Counter(s.prediction.network for s in others if s.prediction.network)
    if not own or not kinds or own in kinds:
        return []
    kind, _ = kinds.most_common(1)[0]
    who = next(s.node.name for s in others if s.prediction.network == kind)
    return [f"{who} chooses {kind}, this node {own}: their ranks do not connect, and nothing says why"]


def _devices(one: _Seen, others: Sequence[_Seen]) -> list[str]:
    """The n-th device of one node meets the n-th of another: kinds must agree."""
    if one.prediction.network != "IB":
        return []
    other = next((s for s in others if s.prediction.network == "IB" and s.kinds != one.kinds), None)
    if other is None:
        return []
    listed = " ".join(other.prediction.interfaces)
    told = f"{other.node.name} lists {listed}: the n-th device here meets the n-th there"
    return [f"{told}; NCCL_IB_HCA can name those that belong together"]


def _subnet(one: _Seen, others: Sequence[_Seen]) -> list[str]:
    if one.address is None:
        return []
    own = one.address.network
    other = next((s for s in others if s.address is not None and s.address.network != own), None)
    if other is None or other.address is None:
        return []
    return [
        f"{other.node.name} is reached at {other.address.ip}, this node at {one.address.ip}: two subnets, "
        "which must be routed (`ringup check` tries it)"
    ]


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


def _scope(one: _Seen, others: Sequence[_Seen]) -> list[str]:
    """A link-local address travels with this node's number of the interface, which peers take for theirs."""
    boot = one.prediction.bootstrap
    if not boot or not boot.address.lower().startswith("fe80:"):
        return []
    own = one.node.interface(boot.interface)
    for other in others:
        theirs = other.node.interface(own.name) if own else None
        if own and theirs and theirs.index != own.index:
            return [
                f"{own.name} is interface {own.index} here and {theirs.index} on {other.node.name}: "
                "a link-local address told from one to the other names another interface there"
            ]
    return []
