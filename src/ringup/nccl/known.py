"""What is known of a node, and what is predicted of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ringup.facts import Node
from ringup.nccl import choice, topology
from ringup.nccl.choice import Choice, Version
from ringup.parse.topology import Matrix, Topology


@dataclass(frozen=True)
class Known:
    """What is known of a node, and how well."""

    node: Node
    """`node.unknown` holds "interfaces" and "rdma_ports" where these could not be read."""
    version: Version = choice.ASSUMED
    version_is_known: bool = True
    interfaces_in_kernel_order: bool = True
    devices_in_library_order: bool = True
    asked_counts: bool = True
    """False where another version or pasted output is judged: the node's NCCL said nothing of that."""
    topology: Topology = field(default_factory=Topology)
    is_live_tree: bool = False
    """The topology was put together from sysfs; else NCCL's own dump was given."""
    matrix: Matrix = field(default_factory=Matrix)


@dataclass(frozen=True)
class Prediction:
    """NCCL's choice on one node."""

    name: str
    bootstrap: Choice | None
    network: str
    """"IB", "Socket", a plugin's name, or "" where NCCL fails (or it cannot be told)."""
    interfaces: tuple[str, ...] = ()
    oob: str = ""
    used: tuple[topology.Use, ...] = ()
    bootstrap_line: str = ""
    log_line: str = ""
    because: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    fell_back: str = ""
    """Why sockets carry the data though RDMA devices are there."""

    @property
    def confidence(self) -> Literal["high", "medium", "low"]:
        """Low where a fact is missing, medium where a known fact allows another outcome."""
        return "low" if self.missing else "medium" if self.doubts else "high"


@dataclass
class Notes:
    """What is found out on the way to a prediction."""

    because: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    fell_back: str = ""
