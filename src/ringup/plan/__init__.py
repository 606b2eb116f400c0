"""
What will be started, decided before anything is: pure functions from facts to a `Plan`.

`network.decide` chooses interfaces, address and port, `devices` what RDMA needs; `command` renders
each node's words; `settle` weighs findings against the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringup.facts import Job


@dataclass(frozen=True)
class EnvVar:
    """A variable the plan sets, with its reason; `node` None means on every node."""

    name: str
    value: str
    because: str
    node: str | None = None


@dataclass(frozen=True)
class NodePlan:
    """What one node executes.  `words` run without a shell, in `chdir`, after `setup`."""

    node: str
    rank: int
    """Node rank: the position in the user's list, the head is 0."""
    nproc: int
    """Ranks on this node."""
    first_rank: int
    """Global rank of this node's local rank 0."""
    interface: str
    """The interface the ranks meet on, as this node names it; "" when left to NCCL and Gloo."""
    address: str
    """This node's address on it, "" when unknown."""
    words: tuple[str, ...]
    env: Mapping[str, str]
    """Everything set for the job, the plan's and the user's, complete."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why the launcher needs those variables that are neither the plan's nor the user's."""
    unset: tuple[str, ...] = ()
    chdir: str = ""
    setup: str = ""
    run_dir: str = ""
    """Directory of this run on the node; the guard makes it (0700) and removes it."""


@dataclass(frozen=True)
class Transport:
    """What carries data on a node: "IB", "Socket", "Gloo" or a plugin's name, and over which devices."""

    node: str
    network: str
    devices: tuple[str, ...]
    confidence: str


@dataclass(frozen=True)
class Plan:
    """The whole job, ready to render or start."""

    run_id: str
    job: Job
    nodes: tuple[NodePlan, ...]
    env: tuple[EnvVar, ...]
    master_addr: str
    master_port: int
    world_size: int
    notes: tuple[str, ...] = ()
    """Decisions in words, one line each, worth showing before the start."""
    transports: tuple[Transport, ...] = ()
    """What carries data on each node, as predicted under this plan."""
    open: tuple[str, ...] = ()
    """What could not be decided, one line each."""
    avoided: Mapping[str, str] = field(default_factory=dict)
    """Finding subject -> how the plan avoids it ("interface:em1" -> "ranks meet on enp99s0")."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of files that every node's run directory is given."""
