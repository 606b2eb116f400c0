"""
Facts of all nodes, frozen: one script to every node at once, then every pair tried.

One node that fails, lies or is slow is a result; the others are known all the same.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from ringup.bundle import SECRETS
from ringup.facts import Cluster, Host, Job, Node, Unreached, risen, unreached_node
from ringup.probes import pairs
from ringup.probes.answer import Asked, node_from
from ringup.probes.doubts import withdrawn
from ringup.probes.script import PARTS, SETUP_LIMIT_S, facts_script
from ringup.reach import Answer, Reach

DEFAULT_TIMEOUT_S = 60.0
FACTS_S = 20.0
"""For a node that takes 8 s to log in and whose slowest probe takes all its 12 s."""
IN_NODE_S = 14.0
"""A shorter deadline shortens every limit on the node: parts of an answer are better than none."""
PER_NODE_S = 0.15
"""More for every node: ssh costs 0.1 s of this machine's CPU each."""
FOR_NCCL = ("NCCL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON", "HOME", "CUDA_", "FI_", "UCX_")
"""Variables of the job that NCCL is asked under."""
MOST_NAMES = 256
"""Names a node is asked to resolve; every name is asked somewhere."""
REVERSE_ADDRESSES = 2
"""Peers whose addresses are looked up backwards: the time is the resolver's, not the address's."""

Progress = Callable[[str], None]


def default_interpreter(environ: Mapping[str, str]) -> str:
    """
    The python of the environment that is active here; a node uses it when it has that path.

    >>> default_interpreter({"VIRTUAL_ENV": "/v", "CONDA_PREFIX": "/c"}), default_interpreter({})
    ('/v/bin/python', '')
    """
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(name, "")
        if prefix.startswith("/"):
            return f"{prefix.rstrip('/')}/bin/python"
    return ""


def own_interpreter() -> str:
    """The python that runs us, when it is an environment that trains: one with torch in it."""
    in_environment = sys.prefix != sys.base_prefix
    return sys.executable if in_environment and importlib.util.find_spec("torch") else ""


def peers_of(position: int, hosts: Sequence[Host]) -> list[Host]:
    """
    Whose names a node is asked to resolve: all others, or of a very large cluster the next ones and the head.

    >>> [h.name for h in peers_of(1, [Host("a"), Host("b"), Host("c")])]
    ['c', 'a']
    """
    others = [*hosts[position + 1 :], *hosts[:position]]
    if len(others) <= MOST_NAMES:
        return others
    return [*others[: MOST_NAMES - 1], hosts[0]]


def is_secret(name: str) -> bool:
    """Whether a variable's value may not travel in a question."""
    return any(word in name.upper() for word in SECRETS)


MOST_PATHS = 6
NODE_ASKS = (
    "NCCL_CONF_FILE",
    "NCCL_DEBUG_FILE",
    "CUDA_VISIBLE_DEVICES",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
)
"""Variables of the job that decide where a node looks."""


def paths_in(arguments: Sequence[str]) -> list[str]:
    """
    Absolute paths among the script's arguments: its data, checkpoints, models.

    >>> paths_in(["--data=/nfs/set", "--out", "/scratch/x", "--lr=1e-4", "-", "/"])
    ['/nfs/set', '/scratch/x']
    """
    words = (word.partition("=")[2] if word.startswith("-") else word for word in arguments)
    return list(dict.fromkeys(w for w in words if w.startswith("/") and 1 < len(w) < 1024))[:MOST_PATHS]


def facts_request(position: int, hosts: Sequence[Host], job: Job, default_python: str) -> dict[str, object]:
    """What the node at this position is asked; see payload/facts*.py."""
    peers = peers_of(position, hosts)
    named = [p.name for p in peers if not p.local]
    return {
        "python": job.python,
        "default_python": default_python,
        "chdir": job.chdir,
        "script": job.script,
        "paths": paths_in(job.arguments),
        "env": {k: v for k, v in job.env.items() if k in NODE_ASKS},
        "backend": job.backend,
        "nccl_env": {k: v for k, v in job.env.items() if k.startswith(FOR_NCCL) and not is_secret(k)},
        "names": list(dict.fromkeys(named)),
        "addresses": [p.address for p in peers if p.address][:REVERSE_ADDRESSES],
    }


class Facts:
    """The first round: hears answers as they come, holds the nodes they describe."""

    def __init__(self, reach: Reach, job: Job, deadline_s: float, on_progress: Progress) -> None:
        self.reach, self.job = reach, job
        self.deadline_s = deadline_s
        self.on_progress = on_progress
        self.hosts = tuple(reach.hosts)
        self.asked: dict[str, Asked] = {}
        self.nodes: dict[str, Node] = {}

    def ask(self) -> tuple[Node, ...]:
        """All nodes in the user's order."""
        default_python = default_interpreter(os.environ) or own_interpreter()
        began = time.time()
        scripts = {}
        for position, host in enumerate(self.hosts):
            token = secrets.token_hex(12)
            self.asked[host.name] = Asked(host, token, tuple(PARTS), dict(self.job.env), began)
            request = facts_request(position, self.hosts, self.job, default_python)
            scripts[host.name] = facts_script(
                token,
                request,
                parts=tuple(PARTS),
                setup=self.job.setup,
                scale=min(1.0, self.deadline_s / IN_NODE_S),
            )
        self._show()
        answers = self.reach.ask(scripts, deadline_s=self.deadline_s, on_answer=self.hear)
        for name, answer in answers.items():
            if name not in self.nodes:
                self.hear(dataclasses.replace(answer, node=name))
        return tuple(self.nodes.get(h.name) or unreached_node(h, _SILENT) for h in self.hosts)

    def hear(self, answer: Answer) -> None:
        """One node's answer."""
        asked = self.asked.get(answer.node)
        if asked is None:
            return
        noise = self.reach.noise(answer.node)
        node, python = node_from(answer, asked, heard_s=time.time(), noise=noise)
        self.nodes[answer.node] = node
        if python:
            self.reach.interpreters[answer.node] = python
        self._show()

    def _show(self) -> None:
        waiting = [h.name for h in self.hosts if h.name not in self.nodes]
        told = f"facts: {len(self.nodes)} of {len(self.hosts)} nodes answered"
        if waiting and self.nodes:
            more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
            told += f", waiting for {', '.join(waiting[:3])}{more}"
        self.on_progress(told)


_SILENT = Unreached("no-answer", "nothing came back")


def facts_deadline_s(count: int, job: Job, timeout_s: float) -> float:
    """
    Seconds for the first round of so many nodes; the pairs keep at least a third of the whole.

    >>> facts_deadline_s(2, Job(), 60.0), facts_deadline_s(2, Job(), 6.0)
    (20.3, 4.0)
    """
    wanted = FACTS_S + PER_NODE_S * count + (SETUP_LIMIT_S if job.setup else 0)
    return min(wanted, timeout_s * 2 / 3)


def names_to_ask(nodes: Sequence[Node]) -> list[str]:
    """
    Host names the nodes call themselves by that nobody has been asked about yet.

    >>> a, b = Node("10.0.0.1", hostname="n1"), Node("n2", hostname="n2")
    >>> names_to_ask([a, b])
    ['n1']
    """
    written = {node.name for node in nodes}
    named = [n.hostname for n in nodes if n.hostname and not n.host.local and n.hostname not in written]
    return list(dict.fromkeys(named))[:MOST_NAMES]


def addresses_to_ask(nodes: Sequence[Node]) -> list[str]:
    """Addresses to look up backwards where the first round knew of none."""
    if all("reverse_lookup_s" not in n.unknown or n.unreached for n in nodes):
        return []
    found = [a.address for n in nodes for i in n.interfaces if i.is_up for a in i.usable_addresses[:1]]
    return found[: REVERSE_ADDRESSES + 1]


def collect(
    reach: Reach, job: Job, *, timeout_s: float | None = None, on_progress: Progress | None = None
) -> Cluster:
    """
    Everything that can be known before a job starts, within `timeout_s` seconds (60).

    Leaves in `reach.interpreters` the python that answered on each node.  Never raises
    because of a node.
    """
    timeout_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    ends = time.monotonic() + timeout_s
    show = on_progress or (lambda text: None)
    hosts = tuple(reach.hosts)
    nodes = Facts(reach, job, facts_deadline_s(len(hosts), job, timeout_s), show).ask()
    proof = pairs.prove(
        reach,
        nodes,
        job,
        budget_s=max(1.0, ends - time.monotonic()),
        names=names_to_ask(nodes),
        reverse=addresses_to_ask(nodes),
        on_progress=show,
    )
    return Cluster(
        nodes=tuple(with_rises(withdrawn(with_names(node, proof)), proof) for node in nodes),
        links=proof.links,
        job=job,
        schedule=proof.schedule,
        pairs_unknown=dict(proof.unknown),
        pairs_starved=proof.starved,
        is_local=all(host.local for host in hosts),
    )


def with_rises(node: Node, proof: pairs.Proof) -> Node:
    """A node with what its counters rose by between the two rounds."""
    if "counters" in node.unknown:
        why = node.unknown["counters"]
    elif node.name not in proof.counters:
        why = f"the counters were read once only: {proof.unknown.get(node.name, 'no pairs were tried')}"
    else:
        return dataclasses.replace(node, rises=risen(node.counters, proof.counters[node.name]))
    return dataclasses.replace(node, unknown={**node.unknown, "rises": why})


def with_names(node: Node, proof: pairs.Proof) -> Node:
    """A node with what it resolved in the second round."""
    unknown = dict(node.unknown)
    names, reverse_s = node.peer_names, node.reverse_lookup_s
    known = {r.name for r in names} | {node.hostname}
    if "peer_names" not in unknown:
        names = (*names, *(r for r in proof.peer_names.get(node.name, ()) if r.name not in known))
    looked_up = [r.took_s for r in proof.reverse.get(node.name, ())]
    if looked_up and "reverse_lookup_s" in unknown:
        reverse_s = max(looked_up)
        del unknown["reverse_lookup_s"]
    return dataclasses.replace(
        node,
        peer_names=names,
        reverse_lookup_s=reverse_s,
        cpu_waits={**node.cpu_waits, "pairs": proof.cpu_waits.get(node.name, 0.0)},
        unknown=unknown,
    )
