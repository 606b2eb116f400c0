"""
Judging variables that are already set: kept they are, whoever set them, but what each does is said.

A variable that steers NCCL's choice is judged by the choice with it and without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ringup.facts import Cluster, Node, RdmaPort
from ringup.nccl import choice, gids, network, rdma, traps, variables
from ringup.nccl.network import Known, Prediction

Verdict = Literal["no-op", "harmful", "changes", "site", "debugging", "typo", "not judged"]
"""
What a variable does here: nothing, damage, another choice than NCCL's own, something only the site's
network people can confirm, output or tests only, nothing because it is misspelt.
"""

STEERING = (
    "NCCL_SOCKET_IFNAME",
    "NCCL_SOCKET_FAMILY",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_COMM_ID",
    "NCCL_IB_MERGE_NICS",
    "NCCL_IB_DEVICE_PCI_ORDER",
)
"""Variables whose effect is a choice that can be predicted."""

DEBUGGING: Mapping[str, str] = {
    "NCCL_DEBUG": "log output only; INFO is cheap at the default subsystems",
    "NCCL_DEBUG_SUBSYS": "which log lines are printed",
    "NCCL_DEBUG_FILE": "where log lines go",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL checks every collective and slows training",
    "TORCH_CPP_LOG_LEVEL": "log output only",
    "TORCH_SHOW_CPP_STACKTRACES": "log output only",
    "CUDA_LAUNCH_BLOCKING": "serialises every kernel: for debugging only, very slow",
    "NCCL_P2P_DISABLE": "for tests only: GPUs of a node no longer talk directly, far slower",
    "NCCL_SHM_DISABLE": "for tests only: ranks of a node talk over the network instead",
}
"""Variables of a search for a fault, that a run does not need."""

FABRIC = (
    "NCCL_IB_TC",
    "NCCL_IB_FIFO_TC",
    "NCCL_IB_SL",
    "NCCL_IB_TIMEOUT",
    "NCCL_IB_RETRY_CNT",
    "NCCL_IB_QPS_PER_CONNECTION",
    "NCCL_IB_SPLIT_DATA_ON_QPS",
    "NCCL_IB_ADAPTIVE_ROUTING",
    "NCCL_IB_PKEY",
)
"""Variables of RDMA traffic: what is right depends on the switches."""

PREFIXES = (
    "NCCL_",
    "GLOO_",
    "TORCH_NCCL_",
    "TORCH_DISTRIBUTED_",
    "TORCH_CPP_",
    "CUDA_LAUNCH_",
    "TORCH_SHOW_",
)


@dataclass(frozen=True)
class Kept:
    """One variable as it is set on one node (None: on all), and what it does."""

    name: str
    value: str
    verdict: Verdict
    because: str
    node: str | None = None


def kept(cluster: Cluster) -> tuple[Kept, ...]:
    """Every variable already set, node by node; told once where all nodes agree."""
    found: dict[tuple[str, str, Verdict, str], list[str]] = {}
    for node in cluster.nodes:
        if node.unreached:
            continue
        for one in judged(node, cluster.job.env):
            found.setdefault((one.name, one.value, one.verdict, one.because), []).append(node.name)
    everywhere = len([n for n in cluster.nodes if not n.unreached])
    made: list[Kept] = []
    for (name, value, verdict, because), nodes in found.items():
        which: list[str | None] = [None] if len(nodes) == everywhere else [*nodes]
        made += [Kept(name, value, verdict, because, node) for node in which]
    return tuple(sorted(made, key=lambda k: (k.name, k.node or "")))


def judged(node: Node, env: Mapping[str, str]) -> Iterator[Kept]:
    """The variables of one node's ranks, each judged."""
    environment = choice.effective(node, env)
    bare = dataclasses.replace(node, environment={}, nccl_conf={})
    version = choice.version_of(node.interpreter.nccl)
    known = Known(bare, version, bool(node.interpreter.nccl))
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIXES):
            verdict, because = judge(name, known, environment)
            yield Kept(name, value, verdict, because)


def judge(name: str, known: Known, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    """What `name` does in this environment on this node."""
    meant = variables.meant(name)
    if meant:
        return "typo", f"nobody reads this name; {meant} was meant"
    if name in DEBUGGING:
        return "debugging", DEBUGGING[name]
    if name == "NCCL_IB_GID_INDEX":
        return _gid_index(known, environment)
    if name in FABRIC:
        return _fabric(name, known, environment)
    if name in STEERING:
        return _steering(name, known, environment)
    return "not judged", "kept as it is"


def _steering(name: str, known: Known, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    """By what NCCL chooses with it and without it."""
    with_it = network.predict(known, environment)
    without = network.predict(known, {k: v for k, v in environment.items() if k != name})
    told = _traps_of(name, known, environment)
    if _choice(with_it) == _choice(without):
        same = (
            f"NCCL chooses the same without it: {_shown(without)}"
            if without.network
            else "it changes nothing"
        )
        return "no-op", told or same
    if not with_it.network and without.network:
        failure = with_it.log_line or "init fails"
        return "harmful", told or f"NCCL fails with it ({failure}); without it: {_shown(without)}"
    if with_it.network == "Socket" and without.network == "IB":
        return "harmful", told or f"RDMA is left unused; without it: {_shown(without)}"
    return "changes", f"with it: {_shown(with_it)}; without it: {_shown(without)}"


def _choice(made: Prediction) -> tuple[object, ...]:
    boot = made.bootstrap
    return boot and (boot.interface, boot.address), made.network, made.interfaces, made.oob, made.used


def _shown(made: Prediction) -> str:
    boot = f"bootstrap on {made.bootstrap.interface}, " if made.bootstrap else ""
    return f"{boot}network {made.network or 'none'} {' '.join(made.interfaces)}".strip()


def _traps_of(name: str, known: Known, environment: Mapping[str, str]) -> str:
    node = known.node
    found = traps.all_traps(environment, node.interfaces, node.rdma_ports, known.version)
    return "; ".join(sentence for sentence in found if sentence.startswith(name))


def used_ports(known: Known, environment: Mapping[str, str]) -> tuple[RdmaPort, ...]:
    """The RDMA ports NCCL uses in this environment; none where it takes sockets."""
    made = network.predict(known, environment)
    if made.network != "IB":
        return ()
    return rdma.ports(known.node.rdma_ports, environment, known.version).taken


def _gid_index(known: Known, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    """Against the entry NCCL would take by itself."""
    ports = [p for p in used_ports(known, environment) if p.link_layer == "Ethernet"]
    if not ports:
        return "no-op", "it is read for RoCE only, and no RoCE port is used here"
    without = {k: v for k, v in environment.items() if k != "NCCL_IB_GID_INDEX"}
    own = [gids.gid_index(p, environment, known.version) for p in ports]
    best = [gids.gid_index(p, without, max(known.version, gids.CHOOSES)) for p in ports]
    if any(b.index is None for b in best):
        return "site", "the GID tables are not known: whether the index is right cannot be told"
    wrong = [o for o, b in zip(own, best, strict=True) if o.index != b.index]
    if not wrong:
        if known.version >= gids.CHOOSES:
            return "no-op", "NCCL takes the same entry without it (from 2.21 on it looks for it)"
        return "changes", "right: before 2.21 NCCL takes index 0 without it"
    bad = [o for o in wrong if o.gid is None or "v2" not in o.gid.kind]
    shown = "; ".join(
        f"{o.because}, NCCL alone takes {b.index}" for o, b in zip(own, best, strict=True) if o in wrong
    )
    return ("harmful" if bad else "changes"), shown


def _fabric(name: str, known: Known, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    """Of RDMA traffic: without effect where there is none, else the site's to confirm."""
    ports = used_ports(known, environment)
    if "rdma_ports" in known.node.unknown:
        return "not judged", "the RDMA devices of this node are not known"
    if not ports:
        return "no-op", "no RDMA port is used here"
    if name in ("NCCL_IB_TC", "NCCL_IB_FIFO_TC"):
        if all(p.link_layer == "InfiniBand" for p in ports):
            return "no-op", "traffic classes are for RoCE, the ports are InfiniBand (NCCL_IB_SL counts there)"
        dscp = rdma.number(environment, name, 0) >> 2
        return "site", f"DSCP {dscp}: right if the switches' lossless class has it, which a node cannot see"
    if name == "NCCL_IB_TIMEOUT":
        wait_s = 4.096e-6 * 2 ** min(31, max(0, rdma.number(environment, name, 20)))
        tried = f"a lost packet is noticed after {wait_s:.2g} s a try (4.3 s by default)"
        return "site", f"{tried}: it hides a bad link longer and heals nothing"
    if name == "NCCL_IB_QPS_PER_CONNECTION":
        return "site", "spreads a connection over the paths of an ECMP fabric; must be equal on all nodes"
    return "site", "depends on the fabric; must be equal on all nodes"
