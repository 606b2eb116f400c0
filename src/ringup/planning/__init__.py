"""
The complete plan of a job before it starts: pure functions from facts to a `Plan`.

`network.decide` chooses interfaces, address and port, `devices` the variables for RDMA; `launchers` renders
each node's command; `mitigations.weigh` weighs findings against the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ringup.hosts.folding import node_set
from ringup.model import Job, Node
from ringup.units import grouped

if TYPE_CHECKING:
    from ringup.network.predictions import Expected, Predictions


@dataclass(frozen=True)
class EnvVar:
    """A variable of the plan, with its reason; `node` None means every node."""

    name: str
    value: str
    because: str
    node: str | None = None


@dataclass(frozen=True)
class NodePlan:
    """The command of one node.  `words` run without a shell, in `chdir`, after `setup`."""

    node: str
    rank: int
    """Node rank: the position in the user's list; the head is 0."""
    nproc: int
    first_rank: int
    """Global rank of this node's local rank 0."""
    interface: str
    """The interface that the ranks use on this node; "" if NCCL and Gloo choose it."""
    address: str
    """This node's address on it, "" if unknown."""
    words: tuple[str, ...]
    env: Mapping[str, str]
    """All variables of the job, both the plan's and the user's."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why the launcher needs the variables that are neither the plan's nor the user's."""
    unset: tuple[str, ...] = ()
    chdir: str = ""
    setup: str = ""
    run_dir: str = ""
    """Directory of this run on the node; the guard makes it (0700) and removes it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The same as `Node.versions`, for `ringup diff`."""
    preset: Mapping[str, str] = field(default_factory=dict)
    """Variables that the node's shell or nccl.conf had set before."""

    @property
    def has_shims(self) -> bool:
        """Whether the launcher starts each rank through our shim; else its output is also the ranks'."""
        return any(self.run_dir and word.startswith(self.run_dir) for word in self.words)


@dataclass(frozen=True)
class ExpectedTransport:
    """The transport on a node, "IB", "Socket", "Gloo" or a plugin's name, and its devices."""

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
    """The predicted transport of each node under this plan."""
    open: tuple[str, ...] = ()
    """Undecided questions, one line each."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Name -> text of files for every node's run directory."""


def planned(alone: Predictions, plan: Plan) -> Predictions:
    """The predictions with the plan's variables."""
    return alone.under({part.node: part.env for part in plan.nodes})


def expected(alone: Predictions, plan: Plan | None) -> tuple[Expected, ...]:
    """The selection of every reached node, with and without the plan."""
    return alone.expected(planned(alone, plan) if plan and plan.env else alone)


def with_transports(plan: Plan, alone: Predictions) -> Plan:
    """The plan with the expected transport of each node, to compare with a run's logs."""
    made = [e.prediction for e in expected(alone, plan)]
    found = tuple(ExpectedTransport(p.name, p.network, p.interfaces, p.confidence) for p in made)
    return replace(plan, transports=found)


AboutNodes = tuple[str, str]
"""A note's text before and after the names of its nodes."""


def about_nodes(said: Iterable[tuple[AboutNodes, str]]) -> list[str]:
    """One note for all nodes with the same text."""
    return [f"{before}{node_set(on)}{after}" for (before, after), on in grouped(said).items()]


def joined(reasons: Iterable[str]) -> str:
    """
    The reasons of several nodes for one value; more than three are counted.

    >>> joined(["a", "b", "a"]), joined("abcd")
    ('a; b', 'a; b; 2 more nodes likewise')
    """
    every = [*dict.fromkeys(reasons)]
    return "; ".join([*every[:2], f"{len(every) - 2} more nodes likewise"] if len(every) > 3 else every)


def user_value(job: Job, node: Node, name: str) -> str | None:
    """The user's value: from `--env`, then the node's shell, then (for NCCL) nccl.conf; None if unset."""
    if name in job.env:
        return job.env[name]  # also "": `--env NAME=` removes the shell's value
    return node.environment.get(name) or node.nccl_conf.get(name) or None
