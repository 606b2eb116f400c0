"""
What will be started, decided before anything is: pure functions from facts to a `Plan`.

`network.decide` chooses interfaces, address and port, `devices` what RDMA needs; `launchers` renders
each node's words; `mitigations.weigh` weighs findings against the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ringup.model import Job, Node

if TYPE_CHECKING:
    from ringup.network.predictions import Expected, Predictions


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
    first_rank: int
    """Global rank of this node's local rank 0."""
    interface: str
    """The interface the ranks use, as this node names it; "" when left to NCCL and Gloo."""
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
    versions: Mapping[str, str] = field(default_factory=dict)
    """As `Node.versions`, for `ringup diff`."""
    preset: Mapping[str, str] = field(default_factory=dict)
    """Variables that its shell or nccl.conf had set before."""

    @property
    def has_shims(self) -> bool:
        """Whether the launcher starts every rank through our shim; else its own output is the ranks'."""
        return any(self.run_dir and word.startswith(self.run_dir) for word in self.words)


@dataclass(frozen=True)
class ExpectedTransport:
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
    """Decisions to show before the start, one line each."""
    transports: tuple[ExpectedTransport, ...] = ()
    """What carries data on each node, as predicted under this plan."""
    open: tuple[str, ...] = ()
    """What could not be decided, one line each."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of files that every node's run directory is given."""


def planned(alone: Predictions, plan: Plan) -> Predictions:
    """The predictions under what a plan sets."""
    return alone.under({part.node: part.env for part in plan.nodes})


def expected(alone: Predictions, plan: Plan | None) -> tuple[Expected, ...]:
    """What every node that was reached selects, under the plan and without it."""
    return alone.expected(planned(alone, plan) if plan and plan.env else alone)


def with_transports(plan: Plan, alone: Predictions) -> Plan:
    """The plan with what it leads to, node by node, to be compared with what a run's logs show."""
    made = [e.prediction for e in expected(alone, plan)]
    found = tuple(ExpectedTransport(p.name, p.network, p.interfaces, p.confidence) for p in made)
    return replace(plan, transports=found)


def user_value(job: Job, node: Node, name: str) -> str | None:
    """
    What the user set: `--env`, then the node's shell, then nccl.conf for NCCL's own; None when unset.

    `--env NAME=` takes away what the shell has.
    """
    if name in job.env:
        return job.env[name]
    return node.environment.get(name) or node.nccl_conf.get(name) or None
