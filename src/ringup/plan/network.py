"""
Which interface the ranks meet on, at which address and port, and what must be set for the job.

Reachability decides; subnets and names never do.  A variable is set only where NCCL or
Gloo, left alone, would choose otherwise.
"""

from __future__ import annotations

import posixpath
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from ringup import gloo
from ringup.facts import Cluster, Job, Node
from ringup.nccl import across, inuse
from ringup.plan import EnvVar, NodePlan, Plan, command, devices
from ringup.plan.devices import user_value
from ringup.reachability import Network, losses, networks

LOOPBACK = "127.0.0.1"
PORTS = (29500, *range(29501, 29517))
"""Rendezvous ports in order of preference: torch's default first, all below Linux's ephemeral range."""

LOSSY_AT_LEAST, LOSSY_SHARE = 3, 0.1
"""
Connections that had to send something again, and their share, from which a network is taken last.

On 64 healthy hosts that share two processors none of 956 short connections did; with 20 % of the
packets dropped a sixth to a half of all.
"""

STALE = ("PET_", "TORCHELASTIC_")
"""Prefixes of variables that change torchrun's defaults behind the user's back (torch argparse_util.py)."""

NO_GPU = "; no GPU was seen, so it does nothing unless the job uses NCCL (--backend gloo leaves it out)"
"""Behind the reason of a variable of NCCL's where nothing says that the job uses it."""

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""What a launcher sets for its ranks; in a node's shell they are leftovers."""


def decide(cluster: Cluster, run_id: str = "", taken: Container[int] = ()) -> Plan | None:
    """
    The plan for a job on these nodes; None when no plan can start.

    None means: a node was not reached or has no interpreter, no network joins all nodes,
    or no rendezvous port was proven.  The findings say which.  `taken`: ports that another run has claimed.
    """
    nodes = cluster.nodes
    if not nodes or any(n.unreached or not n.interpreter.path for n in nodes):
        return None
    network = choose_network(cluster)
    if len(nodes) > 1 and network is None:
        return None
    port = choose_port(cluster, network, taken)
    if port is None:
        return None
    job = cluster.job
    head_address = network.addresses[nodes[0].name] if network else LOOPBACK
    head_address = job.env.get("MASTER_ADDR") or head_address
    pins, notes = pin_interfaces(cluster, network)
    undecided: list[str] = []
    env = tuple(with_doubt(v, cluster) for v in (*pins, *devices.variables(cluster, undecided)))
    ranks = rank_counts(cluster)
    plan = Plan(
        run_id=run_id,
        job=job,
        nodes=(),
        env=env,
        master_addr=head_address,
        master_port=port,
        world_size=sum(ranks),
        notes=tuple(
            notes
            + port_notes(cluster, port)
            + network_notes(cluster, network)
            + launcher_notes(job)
            + rank_notes(cluster)
        ),
        open=tuple(undecided),
        avoided=avoided(cluster, network, port, pins),
    )
    return replace(plan, nodes=tuple(node_plan(plan, cluster, network, i, ranks) for i in range(len(nodes))))


def with_doubt(variable: EnvVar, cluster: Cluster) -> EnvVar:
    """A variable of NCCL's, which is set in case the job uses it, says so where no node has a GPU."""
    if not variable.name.startswith("NCCL_") or across.uses_nccl(cluster):
        return variable
    return replace(variable, because=variable.because + NO_GPU)


def choose_network(cluster: Cluster) -> Network | None:
    """The fastest network every pair reached both ways, small and large; None where there is none."""
    if len(cluster.nodes) < 2:
        return None
    found = sorted(networks(cluster), key=lambda n: is_lossy(cluster, n))
    asked = cluster.job.env.get("MASTER_ADDR")
    found = [n for n in found if asked in (None, n.addresses[cluster.head.name])] or found
    pinned = user_interfaces(cluster)
    if pinned:
        for network in found:
            if all(pinned.get(n) in (None, i) for n, i in network.interfaces.items()):
                return network
    return found[0] if found else None


def is_lossy(cluster: Cluster, network: Network) -> bool:
    """Whether so many connections on it had to send something again that another network is better."""
    on_it = [x for x in losses(cluster) if network.addresses.get(x.dst) == x.address]
    affected, tried = sum(x.affected for x in on_it), sum(x.connections for x in on_it)
    return affected >= LOSSY_AT_LEAST and affected / tried >= LOSSY_SHARE


def user_interfaces(cluster: Cluster) -> dict[str, str]:
    """Node -> the one interface the user named there in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME."""
    wanted = {}
    for node in cluster.nodes:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            value = user_value(cluster.job, node, name)
            exact = value.lstrip("=") if value and not value.startswith("^") else ""
            if exact and node.interface(exact):
                wanted[node.name] = exact
    return wanted


def choose_port(cluster: Cluster, network: Network | None, taken: Container[int] = ()) -> int | None:
    """
    A rendezvous port proven free on the head and reachable from every other node.

    The user's own port is kept whatever was found: the findings judge it.
    """
    if cluster.job.port:
        return cluster.job.port
    head = cluster.head
    held = {listener.port for listener in head.listeners}
    if network is None:
        return next((p for p in PORTS if p not in held and p not in taken), None)
    address = network.addresses[head.name]
    others = {n.name for n in cluster.nodes[1:]}
    reached: dict[int, set[str]] = {}
    for link in cluster.links:
        to_head = link.dst == head.name and link.address == address
        rendezvous = link.bound == "routed" and link.purpose == "rendezvous"
        if to_head and link.ok and rendezvous and link.port not in taken:
            reached.setdefault(link.port, set()).add(link.src)
    proven = [port for port in reached if reached[port] >= others and port not in held]
    return min(proven, key=lambda p: (PORTS.index(p) if p in PORTS else len(PORTS), p), default=None)


def pin_interfaces(cluster: Cluster, network: Network | None) -> tuple[list[EnvVar], list[str]]:
    """The interface variables that change something, and what is worth saying about them."""
    if network is None or cluster.is_local:
        # One machine: whatever NCCL and Gloo choose is its own address.
        return [], []
    pins: list[EnvVar] = []
    notes: list[str] = []
    wanted, env = network.interfaces, cluster.job.env
    equals = as_good(cluster, network)
    if cluster.job.backend != "gloo":
        found = {
            n.name: inuse.differs(n, env, wanted[n.name], {e.interfaces[n.name] for e in equals})
            for n in cluster.nodes
        }
        pins += pin("NCCL_SOCKET_IFNAME", cluster, wanted, found, notes, prefix="=")
    if cluster.job.launcher == "jax":  # which reads no variable for Gloo
        return pins, notes
    found = {n.name: gloo_differs(n, env, [e.addresses[n.name] for e in equals]) for n in cluster.nodes}
    pins += pin("GLOO_SOCKET_IFNAME", cluster, wanted, found, notes)
    return pins, notes


def as_good(cluster: Cluster, network: Network) -> list[Network]:
    """The chosen network first, then those that serve as well: every pair reached them, none is slower."""
    return [network] + [
        other
        for other in networks(cluster)
        if other != network and (other.speed_gbit_s, other.family) == (network.speed_gbit_s, network.family)
    ]


def gloo_differs(node: Node, env: Mapping[str, str], good: Sequence[str]) -> str:
    """Why Gloo, left alone, would announce none of `good` (the chosen address first); "" when not."""
    announced = gloo.announced(node, env)
    if len(announced) == 1 and announced[0].address in good:
        return ""
    return gloo.differs(node, env, good[0])


def pin(
    name: str,
    cluster: Cluster,
    wanted: Mapping[str, str],
    reasons: Mapping[str, str],
    notes: list[str],
    prefix: str = "",
) -> list[EnvVar]:
    """One variable on every node when any node needs it; per node where interface names differ."""
    reasons = {node: why for node, why in reasons.items() if why}
    if not reasons:
        return []
    free = []
    for node in cluster.nodes:
        own = user_value(cluster.job, node, name)
        if own is not None:
            notes.append(f"{name}={own} on {node.name} is yours and stays")
        else:
            free.append(node.name)
    because = "; ".join(dict.fromkeys(reasons.values()))
    if len(free) == len(cluster.nodes) and len(set(wanted.values())) == 1:
        return [EnvVar(name, prefix + next(iter(wanted.values())), because)]
    return [EnvVar(name, prefix + wanted[n], reasons.get(n, because), node=n) for n in free]


def port_notes(cluster: Cluster, port: int) -> list[str]:
    """Why the port is not torch's default, if it is not."""
    if port == PORTS[0] or cluster.job.port:
        return []
    head = cluster.head.name
    return [f"rendezvous on port {port}: {PORTS[0]} is held or claimed on {head}, or not reachable there"]


def network_notes(cluster: Cluster, network: Network | None) -> list[str]:
    """The network in one line."""
    if network is None:
        return []
    names = set(network.interfaces.values())
    where = (
        next(iter(names))
        if len(names) == 1
        else ", ".join(f"{n}: {i}" for n, i in network.interfaces.items())
    )
    return [f"ranks meet on {where} (head {network.addresses[cluster.head.name]})"]


def launcher_notes(job: Job) -> list[str]:
    """What is done otherwise than the launcher's own command does it."""
    note = command.known(job).note
    return [note] if note else []


def rank_notes(cluster: Cluster) -> list[str]:
    """Where the number of ranks should be that of the GPUs, and nobody could count them."""
    if cluster.job.nproc or command.known(cluster.job).by_node:
        return []
    unsure = [n for n in cluster.nodes if "gpu_count" in n.unknown and not n.host.ranks(0)]
    return [
        f"one rank on {n.name}, whose GPUs could not be counted ({n.unknown['gpu_count']}); or --nproc N"
        for n in unsure[:3]
    ]


def avoided(cluster: Cluster, network: Network | None, port: int, pins: Sequence[EnvVar]) -> dict[str, str]:
    """Finding subject -> how this plan avoids it."""
    words: dict[str, str] = {}
    pinned = " and ".join(dict.fromkeys(f"{v.name}={v.value}" for v in pins))
    for node in cluster.nodes:
        if network is not None:
            chosen = network.interfaces[node.name]
            how = f"the ranks meet on {chosen}" + (f", by {pinned}" if pinned else "")
            for interface in node.interfaces:
                if interface.name != chosen:
                    words[f"interface:{node.name}/{interface.name}"] = how
            address = network.addresses[node.name]
            words[f"name:{node.name}"] = f"addresses are used instead of names ({node.name} is {address})"
        words[f"path:{node.name}"] = f"the interpreter is started by its path, {node.interpreter.path}"
    if port != PORTS[0] and not cluster.job.port:
        words[f"port:{PORTS[0]}"] = f"the rendezvous is on port {port}"
    return words


def node_plan(
    plan: Plan, cluster: Cluster, network: Network | None, rank: int, ranks: Sequence[int]
) -> NodePlan:
    """One node's words, environment and directories."""
    node, job = cluster.nodes[rank], plan.job
    run_dir = posixpath.join(node.cache.path or "/tmp/ringup", f"{plan.run_id or 'RUN'}-{rank}")
    address = network.addresses[node.name] if network else LOOPBACK
    begun = command.start(place_of(plan, node, rank, ranks, address, run_dir), job)
    env = {v.name: v.value for v in plan.env if v.node in (None, node.name)}
    env |= {v.name: v.value for v in begun.env}
    if any(word.startswith(run_dir) for word in begun.words):
        env["RINGUP_SCRIPT"] = command.program(job, posixpath.join(job.chdir, job.script))
    env |= {k: v for k, v in job.env.items() if k not in ("MASTER_ADDR", "MASTER_PORT")}
    stale = [k for k in node.environment if k.startswith(STALE) or k in RANK_VARIABLES]
    return NodePlan(
        node=node.name,
        rank=rank,
        nproc=ranks[rank],
        first_rank=sum(ranks[:rank]),
        interface=network.interfaces[node.name] if network else "",
        address=address,
        words=begun.words,
        env=env,
        reasons={v.name: v.because for v in begun.env},
        unset=tuple(sorted(set(stale) - set(job.env))),
        chdir=job.chdir,
        setup=job.setup,
        run_dir=run_dir,
    )


def place_of(
    plan: Plan, node: Node, rank: int, ranks: Sequence[int], address: str, run_dir: str
) -> command.Place:
    """Where a node's launcher runs."""
    job = plan.job
    visible = job.env.get("CUDA_VISIBLE_DEVICES") or node.environment.get("CUDA_VISIBLE_DEVICES", "")
    return command.Place(
        python=node.interpreter.path,
        node_count=len(ranks),
        node_rank=rank,
        nproc=ranks[rank],
        nproc_all=tuple(ranks),
        address=address,
        master_addr=plan.master_addr,
        master_port=plan.master_port,
        run_id=plan.run_id,
        run_dir=run_dir,
        shim=posixpath.join(run_dir, command.SHIM),
        devices=tuple(d.strip() for d in visible.split(",") if d.strip()),
        gpu_count=node.gpu_count,
        has_proxy=any(
            name.lower() in PROXIES and value for name, value in {**node.environment, **job.env}.items()
        ),
    )


def rank_counts(cluster: Cluster) -> list[int]:
    """Ranks on each node: as asked, else one a visible GPU; where one process has all GPUs, one."""
    job = cluster.job
    if command.known(job).by_node:
        return [job.nproc or 1] * len(cluster.nodes)
    return [job.nproc or n.host.ranks(n.gpu_count) or n.gpu_count or 1 for n in cluster.nodes]
