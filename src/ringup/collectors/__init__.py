"""Facts of all nodes: one script per node at once, then tests of every pair; a failed node is a result."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from ringup.collectors import pairs
from ringup.collectors.node_answer import Asked, node_from, withdrawn
from ringup.collectors.probe_script import FIELDS, SETUP_LIMIT_S, facts_script
from ringup.model import Cluster, Host, Interpreter, Job, Node, risen
from ringup.nccl.interface_choice import STEERING
from ringup.secrets import holds_secret
from ringup.transport import Answer, Transport
from ringup.transport.interpreters import default_interpreter

FACTS_S = 20.0
"""Seconds; enough for a node that takes 8 s to log in and whose slowest probe uses all of its 12 s."""
IN_NODE_S = 14.0
"""Seconds; a shorter deadline shortens every limit on the node: a partial answer is better than none."""
PER_NODE_S = 0.15
"""Additional time per node: each ssh costs 0.1 s of this machine's CPU."""
FOR_NCCL = ("NCCL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHON", "HOME", "CUDA_", "FI_", "UCX_")
"""Prefixes of the job's variables that are set while NCCL is queried."""
LARGEST_SCRIPT_BYTES = 64 << 20
MOST_NAMES = 256
"""Most names that a node resolves; every name is resolved on some node."""
REVERSE_ADDRESSES = 2
"""Peers with a reverse lookup of their address: its time depends on the resolver, not on the address."""


def peers_of(position: int, hosts: Sequence[Host]) -> list[Host]:
    """
    The nodes whose names a node resolves: all others; in a very large cluster the next ones and the head.

    >>> [h.name for h in peers_of(1, [Host("a"), Host("b"), Host("c")])]
    ['c', 'a']
    """
    others = [*hosts[position + 1 :], *hosts[:position]]
    return others if len(others) <= MOST_NAMES else [*others[: MOST_NAMES - 1], hosts[0]]


MOST_PATHS = 6
NODE_ASKS = {"NCCL_CONF_FILE", "NCCL_DEBUG_FILE", "CUDA_VISIBLE_DEVICES", "TMPDIR"}
NODE_ASKS |= {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONNOUSERSITE"}
"""Variables of the job with paths that a node must check."""


def paths_in(arguments: Sequence[str]) -> list[str]:
    """
    Absolute paths among the script's arguments: its data, checkpoints, models.

    >>> paths_in(["--data=/nfs/set", "--out", "/scratch/x", "--lr=1e-4", "-", "/"])
    ['/nfs/set', '/scratch/x']
    """
    words = (word.partition("=")[2] if word.startswith("-") else word for word in arguments)
    return list(dict.fromkeys(w for w in words if w.startswith("/") and 1 < len(w) < 1024))[:MOST_PATHS]


def facts_request(position: int, hosts: Sequence[Host], job: Job, default_python: str) -> dict[str, object]:
    """The request for the node at this position; see agent/facts/main.py."""
    peers = peers_of(position, hosts)
    return {
        "python": job.python,
        "default_python": default_python,
        "chdir": job.chdir,
        "script": job.file,
        "is_module": job.kind == "module",
        "paths": paths_in(job.arguments),
        "env": {k: v for k, v in job.env.items() if k in NODE_ASKS},
        "backend": job.backend,
        "nccl_env": {k: v for k, v in job.env.items() if k.startswith(FOR_NCCL) and not holds_secret(k, v)},
        "nccl_steering": (*STEERING, "NCCL_NET_PLUGIN"),
        "names": list(dict.fromkeys(p.name for p in peers if not p.local)),
        "addresses": [p.address for p in peers if p.address][:REVERSE_ADDRESSES],
    }


def facts(reach: Transport, job: Job, deadline_s: float, hosts: Sequence[Host] = ()) -> tuple[Node, ...]:
    """The first round: the nodes, as their answers describe them."""
    default_python = default_interpreter(os.environ)
    hosts, began = tuple(hosts or reach.hosts), time.time()
    asked: dict[str, Asked] = {}
    nodes: dict[str, Node] = {}
    scripts = {}
    for position, host in enumerate(hosts):
        token = os.urandom(12).hex()
        asked[host.name] = Asked(host, token, tuple(FIELDS), dict(job.env), began)
        request = facts_request(position, hosts, job, default_python)
        scale = min(1.0, deadline_s / IN_NODE_S)
        scripts[host.name] = facts_script(token, request, setup=job.setup, scale=scale)

    def on_answer(answer: Answer) -> None:
        name = answer.node
        node, python = node_from(answer, asked[name], heard_s=time.time(), noise=reach.noise(name))
        nodes[name] = in_image(node, job) if job.is_in_image and not node.unreached else node
        if python:
            reach.interpreters[name] = python

    reach.ask(scripts, doing="facts", deadline_s=deadline_s, on_answer=on_answer)
    return tuple(nodes[host.name] for host in hosts)


def in_image(node: Node, job: Job) -> Node:
    """A node whose job runs in an image: only the interpreter's name is known."""
    unknown = {**node.unknown, "interpreter": f"it is in an image, behind {job.wrapper[0]}"}
    return dataclasses.replace(node, interpreter=Interpreter(job.python or "python3"), unknown=unknown)


def facts_deadline_s(count: int, job: Job, timeout_s: float) -> float:
    """
    Seconds for the first round with this many nodes; the pairs keep at least a third of the total.

    >>> facts_deadline_s(2, Job(), 60.0), facts_deadline_s(2, Job(), 6.0)
    (20.3, 4.0)
    """
    return min(FACTS_S + PER_NODE_S * count + (SETUP_LIMIT_S if job.setup else 0), timeout_s * 2 / 3)


def names_to_ask(nodes: Sequence[Node]) -> list[str]:
    """
    Host names that nodes report but that are not in the node list.

    >>> a, b = Node("10.0.0.1", hostname="n1"), Node("n2", hostname="n2")
    >>> names_to_ask([a, b])
    ['n1']
    """
    written = {node.name for node in nodes}
    named = [n.hostname for n in nodes if n.hostname and not n.host.local and n.hostname not in written]
    return list(dict.fromkeys(named))[:MOST_NAMES]


def addresses_to_ask(nodes: Sequence[Node]) -> list[str]:
    """Addresses for reverse lookups if the first round had none."""
    if all("reverse_lookup_s" not in n.unknown or n.unreached for n in nodes):
        return []
    found = [a.address for n in nodes for i in n.interfaces if i.is_up for a in i.usable_addresses[:1]]
    return found[: REVERSE_ADDRESSES + 1]


def collect(reach: Transport, job: Job, *, timeout_s: float = 60.0, hosts: Sequence[Host] = ()) -> Cluster:
    """
    Everything that can be known before a job starts, within `timeout_s` seconds.

    `hosts`: the nodes to check, the head first (default: all of `reach`).  Stores in `reach.interpreters` the
    Python that answered on each node.  Never raises because of a node.
    """
    ends = time.monotonic() + timeout_s
    hosts = tuple(hosts or reach.hosts)
    nodes = facts(reach, job, facts_deadline_s(len(hosts), job, timeout_s), hosts)
    talk = pairs.prove(
        reach,
        nodes,
        job,
        budget_s=max(1.0, ends - time.monotonic()),
        names=names_to_ask(nodes),
        reverse=addresses_to_ask(nodes),
    )
    return Cluster(
        nodes=tuple(with_rises(withdrawn(with_names(node, talk)), talk) for node in nodes),
        links=talk.links,
        job=job,
        schedule=talk.schedule,
        pairs_unknown=talk.unknown,
        pairs_starved=tuple(talk.starved),
        is_local=all(host.local for host in hosts),
        ssh_config=reach.ssh_config or "",
        here=lying_here(job),
    )


def lying_here(job: Job) -> dict[str, str]:
    """The parts of the job's directory and script that exist on this machine; see `Cluster.here`."""
    directory = Path(job.chdir)
    script = directory / job.file
    found = {str(directory): ""} if job.chdir and directory.is_dir() else {}
    with contextlib.suppress(OSError):
        if job.file and script.is_file() and script.stat().st_size <= LARGEST_SCRIPT_BYTES:
            found[str(script)] = hashlib.sha256(script.read_bytes()).hexdigest()
    return found


def with_rises(node: Node, talk: pairs.Round) -> Node:
    client = talk.clients.get(node.name)
    if "counters" in node.unknown:
        why = node.unknown["counters"]
    elif client is None or not client.counters:
        why = f"the counters were read once only: {talk.unknown.get(node.name, 'no pairs were tried')}"
    else:
        return dataclasses.replace(node, rises=risen(node.counters, client.counters))
    return dataclasses.replace(node, unknown={**node.unknown, "rises": why})


def with_names(node: Node, talk: pairs.Round) -> Node:
    if (client := talk.clients.get(node.name)) is None:
        return node
    unknown = dict(node.unknown)
    names, reverse_s = node.peer_names, node.reverse_lookup_s
    known = {r.name for r in names} | {node.hostname}
    if "peer_names" not in unknown:
        names = (*names, *(r for r in client.names if r.name not in known))
    if client.reverse_s and unknown.pop("reverse_lookup_s", ""):
        reverse_s = max(client.reverse_s)
    waits = {**node.cpu_waits, "pairs": client.waited_s}
    return dataclasses.replace(
        node, peer_names=names, reverse_lookup_s=reverse_s, cpu_waits=waits, unknown=unknown
    )
