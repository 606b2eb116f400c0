"""
The ranks' interface, the rendezvous address and port, and the variables of the job.

Reachability decides, never subnets or names.  A variable is set only if NCCL or Gloo would differ without it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ringup.hosts.folding import node_set
from ringup.model import DEFAULT_PORT, Cluster, Interpreter, left_over
from ringup.network.predictions import predicted, uses_nccl
from ringup.network.reachability import LOST_AT_LEAST, LOST_SHARE, Network, networks, repeats
from ringup.planning import EnvVar, NodePlan, Plan, about_nodes, devices, joined, launchers, user_value
from ringup.units import grouped, summarize_names

LOOPBACK = "127.0.0.1"
PORTS = range(DEFAULT_PORT, DEFAULT_PORT + 17)
"""Rendezvous ports in order of preference: torch's default first, all below Linux's ephemeral range."""

NO_GPU = "; no GPU found: only NCCL jobs need this (with --backend gloo it is not set)"
"""Added to the reason of an NCCL variable if nothing shows that the job uses NCCL."""
UNKNOWN_GPUS = "; GPUs could not be counted: only NCCL jobs need this"

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def decide(cluster: Cluster, run_id: str = "", claim: Callable[[int], bool] | None = None) -> Plan | None:
    """
    The plan for a job on these nodes; None if no plan can start.

    None means: a node was not reached or has no interpreter, no network works between all nodes, or no
    rendezvous port passed the test.  `claim` reserves the port for this run; it is called with the best port
    first and returns False if another run has it.
    """
    nodes = cluster.nodes
    if not nodes or any(n.unreached or not n.interpreter.path for n in nodes):
        return None
    network = choose_network(cluster)
    if (len(nodes) > 1 and not network) or (port := choose_port(cluster, network, claim)) is None:
        return None
    job = cluster.job
    head_address = job.env.get("MASTER_ADDR") or (network.addresses[nodes[0].name] if network else LOOPBACK)
    pins, notes = pin_interfaces(cluster, network)
    undecided: list[str] = []
    # With one process per node, it uses all GPUs there.
    ranks = [job.nproc or 1 if launchers.known(job).by_node else cluster.ranks_on(node) for node in nodes]
    found = (*pins, *devices.variables(cluster, undecided), *devices.for_cpus(cluster, sum(ranks)))
    doubt = {"yes": "", "no": NO_GPU, "unknown": UNKNOWN_GPUS}[uses_nccl(cluster)]
    env = tuple(replace(v, because=v.because + doubt * v.name.startswith("NCCL_")) for v in found)
    notes += decision_notes(cluster, network, port)
    plan = Plan(run_id, job, (), env, head_address, port, sum(ranks), tuple(notes), open=tuple(undecided))
    return replace(plan, nodes=tuple(node_plan(plan, cluster, network, i, ranks) for i in range(len(nodes))))


def otherwise(cluster: Cluster) -> Plan | None:
    """The plan for the reached nodes, as if each had an interpreter: it shows which faults a plan avoids."""
    reached = cluster.only(n for n in cluster.nodes if not n.unreached)
    if all(n.interpreter.path for n in reached.nodes):
        return decide(reached)
    any_python = Interpreter("python3")
    nodes = tuple(n if n.interpreter.path else replace(n, interpreter=any_python) for n in reached.nodes)
    return decide(replace(reached, nodes=nodes))


def choose_network(cluster: Cluster) -> Network | None:
    """The fastest network that works between all pairs, both ways, with small and large messages; or None."""
    if len(cluster.nodes) < 2:
        return None
    found = sorted(networks(cluster), key=lambda n: is_lossy(cluster, n))
    asked = cluster.job.env.get("MASTER_ADDR")
    found = [n for n in found if asked in (None, n.addresses[cluster.head.name])] or found
    pinned = user_interfaces(cluster)
    as_pinned = (n for n in found if all(pinned.get(k) in (None, i) for k, i in n.interfaces.items()))
    return next(as_pinned, next(iter(found), None))


def is_lossy(cluster: Cluster, network: Network) -> bool:
    """Whether so many of its connections retransmitted that another network is better."""
    counts = repeats(cluster).items()
    on_it = [count for (_, dst, address), count in counts if network.addresses.get(dst) == address]
    affected, tried = sum(a for a, _ in on_it), sum(t for _, t in on_it)
    return affected >= LOST_AT_LEAST and affected / tried >= LOST_SHARE


def user_interfaces(cluster: Cluster) -> dict[str, str]:
    """Node -> the one interface in the user's GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME there."""
    wanted = {}
    for node in cluster.nodes:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            value = user_value(cluster.job, node, name)
            exact = value.lstrip("=") if value and not value.startswith("^") else ""
            if exact and node.interface(exact):
                wanted[node.name] = exact
    return wanted


def choose_port(cluster: Cluster, network: Network | None, claim: Callable[[int], bool] | None) -> int | None:
    """A rendezvous port that is free on the head and that every other node reached in the tests."""
    if cluster.job.port:
        return cluster.job.port  # the findings judge it
    head = cluster.head
    held = {listener.port for listener in head.listeners}
    if network is None:
        return next((p for p in PORTS if p not in held and (not claim or claim(p))), None)
    address = network.addresses[head.name]
    others = {n.name for n in cluster.nodes[1:]}
    to_head = [li for li in cluster.links if (li.dst, li.address) == (head.name, address) and li.ok]
    tried = (li for li in to_head if li.bound == "routed" and li.purpose == "rendezvous")
    reached = grouped((li.port, li.src) for li in tried)
    proven = [port for port in reached if others.issubset(reached[port]) and port not in held]
    proven.sort(key=lambda p: (PORTS.index(p) if p in PORTS else len(PORTS), p))
    # If all are claimed, most likely by a check that is about to end, one is tried anyway.
    return next((p for p in proven if not claim or claim(p)), proven[-1] if proven else None)


def pin_interfaces(cluster: Cluster, network: Network | None) -> tuple[list[EnvVar], list[str]]:
    """The interface variables that change something, and notes about them."""
    pins, notes, selections = list[EnvVar](), list[str](), predicted(cluster).nodes
    if network is None or cluster.is_local:
        # On one machine, NCCL and Gloo always choose the machine's own address.
        return pins, notes
    # The chosen network and equally good ones: they work between all pairs, and none is slower.
    like = (network.speed_gbit_s, network.family)
    equals = [network, *(n for n in networks(cluster) if (n.speed_gbit_s, n.family) == like)]
    if cluster.job.backend != "gloo":
        found = {
            name: one.nccl_leaves(network.interfaces[name], {e.interfaces[name] for e in equals})
            for name, one in selections.items()
        }
        pins += pin("NCCL_SOCKET_IFNAME", cluster, network.interfaces, found, notes, prefix="=")
    if cluster.job.launcher == "jax":  # it reads no variable for Gloo
        return pins, notes
    found = {name: one.gloo_leaves({e.addresses[name] for e in equals}) for name, one in selections.items()}
    return pins + pin("GLOO_SOCKET_IFNAME", cluster, network.interfaces, found, notes), notes


def pin(
    name: str,
    cluster: Cluster,
    wanted: Mapping[str, str],
    reasons: Mapping[str, str],
    notes: list[str],
    prefix: str = "",
) -> list[EnvVar]:
    """One variable for every node if any node needs it; one per node if interface names differ."""
    if not (because := joined(filter(None, reasons.values()))):
        return []
    own = {n.name: user_value(cluster.job, n, name) for n in cluster.nodes}
    kept = ((f"{name}={value} on ", n) for n, value in own.items() if value is not None)
    notes += about_nodes(((before, " is kept: set by you"), n) for before, n in kept)
    free = [n.name for n in cluster.nodes if own[n.name] is None]
    if len(free) == len(cluster.nodes) and len(set(wanted.values())) == 1:
        return [EnvVar(name, prefix + next(iter(wanted.values())), because)]
    return [EnvVar(name, prefix + wanted[n], reasons.get(n) or because, node=n) for n in free]


def decision_notes(cluster: Cluster, network: Network | None, port: int) -> Iterator[str]:
    """Why the port is not torch's default, which network is used, and other unexpected decisions."""
    launcher, head = launchers.known(cluster.job), cluster.head.name
    if port != PORTS[0] and not cluster.job.port:
        is_held = any(listener.port == PORTS[0] for listener in cluster.head.listeners)
        why = f"in use on {head}" if is_held else f"claimed by another run on {head}, or not reachable there"
        yield f"rendezvous on port {port}: {PORTS[0]} is {why}"
    if network is not None:
        same = grouped((interface, node) for node, interface in network.interfaces.items())
        each = "; ".join(f"{interface} on {node_set(on)}" for interface, on in same.items())
        yield f"ranks use {each if len(same) > 1 else next(iter(same))} (head {network.addresses[head]})"
    if cluster.job.is_in_image:
        yield "Python, torch and its packages are not checked: they are in the image"
    if launcher.note and not any(w.startswith("--config_file") for w in cluster.job.launcher_arguments):
        yield launcher.note
    # There should be one rank per GPU, but the GPUs could not be counted.
    unsure = [n for n in cluster.nodes if "gpu_count" in n.unknown and not n.host.ranks(0)]
    if unsure and not cluster.job.nproc and not launcher.by_node:
        first, listed = unsure[0], summarize_names((node.name for node in unsure), 3)
        where = listed if len(unsure) == 1 else f"each of {listed}"
        of = "" if len(unsure) == 1 else f"{first.name}: "
        why = f"whose GPUs could not be counted ({of}{first.unknown['gpu_count']})"
        yield f"one rank on {where}, {why}; or --nproc N"


def node_plan(
    plan: Plan, cluster: Cluster, network: Network | None, rank: int, ranks: Sequence[int]
) -> NodePlan:
    node, job = cluster.nodes[rank], plan.job
    run_dir = posixpath.join(node.cache.path or "/tmp/ringup", f"{plan.run_id or 'RUN'}-{rank}")
    address = network.addresses[node.name] if network else LOOPBACK
    visible = job.env.get("CUDA_VISIBLE_DEVICES") or node.environment.get("CUDA_VISIBLE_DEVICES", "")
    set_there = {**node.environment, **job.env}
    place = launchers.Place(
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
        shim=posixpath.join(run_dir, launchers.SHIM),
        devices=tuple(d.strip() for d in visible.split(",") if d.strip()),
        gpu_count=node.gpu_count,
        has_proxy=any(name.lower() in PROXIES and value for name, value in set_there.items()),
    )
    begun = launchers.start(place, job)
    env = {v.name: v.value for v in plan.env if v.node in (None, node.name)}
    env |= {v.name: v.value for v in begun.env}
    if any(word.startswith(run_dir) for word in begun.words):
        env["RINGUP_SCRIPT"] = launchers.shown_to_shim(job)
    env |= {k: v for k, v in job.env.items() if k not in ("MASTER_ADDR", "MASTER_PORT")}
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
        unset=tuple(sorted(set(left_over(node.environment)) - set(job.env))),
        chdir=job.chdir,
        setup=job.setup,
        run_dir=run_dir,
        versions=node.versions,
        preset={**node.nccl_conf, **node.environment},
    )
