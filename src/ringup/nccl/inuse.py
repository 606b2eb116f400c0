"""Which IP interfaces NCCL really uses: with RDMA only the one it meets on, else all that carry data."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from ringup.facts import Node
from ringup.nccl import choice, rdma
from ringup.nccl.choice import Choice

READS = ("rdma_ports", "verbs", "nccl_answer")
"""Facts looked at here where they are known, beside those of `choice`."""


def is_over_rdma(node: Node, env: Mapping[str, str]) -> bool:
    """Whether RDMA devices carry the data on this node; False where that is not known."""
    if "rdma_ports" in node.unknown or "verbs" in node.unknown or node.verbs.error:
        return False
    return bool(rdma.taken(node, env))


def interfaces(node: Node, env: Mapping[str, str]) -> tuple[Choice, ...]:
    """In the order NCCL lists them; `env` is what will be set beyond the node's own environment."""
    if is_over_rdma(node, env):
        first = choice.bootstrap(node, env)
        return (first,) if first else ()
    return choice.sockets(node, env)


def differs(node: Node, env: Mapping[str, str], wanted: str, good: AbstractSet[str] = frozenset()) -> str:
    """
    Why NCCL, left alone, would not stay on interface `wanted`; "" when it would.

    `good` names other interfaces of this node that may carry data as well.
    """
    first = choice.bootstrap(node, env)
    if first is None:
        return f"NCCL finds no interface on {node.name}"
    if first.interface != wanted and first.interface not in good:
        return f"NCCL alone takes {first.interface} {first.address} on {node.name}: {first.because}"
    for also in interfaces(node, env):
        if also.interface != wanted and also.interface not in good:
            return f"NCCL alone also carries data over {also.interface} {also.address} on {node.name}"
    return ""
