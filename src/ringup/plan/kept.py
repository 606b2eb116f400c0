"""
Judging variables that are already set: kept they are, whoever set them, but what each does is said.

A variable that steers NCCL's choice is judged by the choice with it and without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ringup import gloo
from ringup.facts import Cluster, Node, RdmaPort
from ringup.nccl import choice, clouds, gids, network, rdma, releases, traps, variables
from ringup.nccl.known import Known, Prediction
from ringup.plan.network import choose_network
from ringup.reachability import few
from ringup.units import printable

Verdict = Literal[
    "right", "no-op", "harmful", "changes", "site", "debugging", "typo", "obsolete", "leftover",
    "contradicting", "not judged",
]  # fmt: skip
"""
What a variable does here: what is needed, nothing, damage, another choice than NCCL's own, something only
the site's network people can confirm, output or tests only; nothing because it is misspelt, because this
release does not read it, because it is for another cloud's machines, or because another one rules it out.
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

EXPERIMENTS: Mapping[str, str] = {
    "NCCL_ALGO": "takes the choice of algorithm from NCCL; a collective it does not fit fails",
    "NCCL_PROTO": "takes the choice of protocol from NCCL; LL128 where it is not safe corrupts data",
    "NCCL_NTHREADS": "for tuning tests; must be equal on all ranks",
    "NCCL_BUFFSIZE": "for tuning tests; must be equal on all ranks",
    "NCCL_CHECKS_DISABLE": "deprecated: NCCL no longer checks arguments",
    "NCCL_LAUNCH_MODE": "deprecated: GROUP serialises launches",
    "NCCL_MIN_NCHANNELS": "deprecated, for NCCL_MIN_CTAS; takes processors of the GPU from the model",
    "NCCL_MAX_NCHANNELS": "deprecated, for NCCL_MAX_CTAS; fewer channels, less bandwidth",
    "NCCL_GRAPH_FILE": "replaces NCCL's own search; wrong after any change of the machine",
    "TORCH_NCCL_BLOCKING_WAIT": "every collective is waited for by the processor",
    "TORCH_NCCL_DESYNC_DEBUG": "every collective is written to the store",
}
"""Variables of a tuning test, which a run is better without."""

DEBUGGING: Mapping[str, str] = {
    "NCCL_DEBUG": "log output only; INFO is cheap at the default subsystems, TRACE is not",
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
    "TORCH_FR_",
    "FI_",
    "OFI_NCCL_",
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
    joined = choose_network(cluster)
    for node in cluster.nodes:
        if node.unreached:
            continue
        interface = joined.interfaces.get(node.name, "") if joined else ""
        for one in judged(node, cluster.job.env, interface):
            found.setdefault((one.name, one.value, one.verdict, one.because), []).append(node.name)
    everywhere = len([n for n in cluster.nodes if not n.unreached])
    made: list[Kept] = []
    for (name, value, verdict, because), nodes in found.items():
        which: list[str | None] = [None] if len(nodes) == everywhere else [*nodes]
        made += [Kept(name, value, verdict, because, node) for node in which]
    return tuple(sorted(made, key=lambda k: (k.name, k.node or "")))


def presets(cluster: Cluster) -> list[str]:
    """What sets of variables that belong together give away about where they come from."""
    found: dict[tuple[str, ...], list[str]] = {}
    for node in cluster.nodes:
        names = clouds.scnet_presets(choice.effective(node, cluster.job.env))
        if names:
            found.setdefault(tuple(names), []).append(node.name)
    return [
        f"{few(nodes)}: {len(names)} of the {len(clouds.SCNET)} variables that Scnet presets for its RoCE"
        " network (pods with eth0, mlx5 devices) are set as there; each is judged by what it does here"
        for names, nodes in found.items()
    ]


def judged(node: Node, env: Mapping[str, str], interface: str = "") -> Iterator[Kept]:
    """The variables of one node's ranks, each judged; `interface` is where the plan has the ranks meet."""
    environment = choice.effective(node, env)
    bare = dataclasses.replace(node, environment={}, nccl_conf={})
    version = choice.version_of(node.interpreter.nccl)
    known = Known(bare, version, bool(node.interpreter.nccl))
    working = _working(known, environment)
    for name, value in sorted(environment.items()):
        if name.startswith(PREFIXES):
            verdict, because = judge(name, known, {**working, name: value}, interface)
            yield Kept(name, value, verdict, because + _overruled(name, value, node, env))


def _working(known: Known, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what makes the bootstrap fail: under a failure nothing else does anything."""
    left = dict(environment)
    for name in ("NCCL_COMM_ID", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME"):
        if name in left and network.predict(known, left).bootstrap is None:
            del left[name]
    return left


def _overruled(name: str, value: str, node: Node, env: Mapping[str, str]) -> str:
    """Where else it is set, with another value that loses."""
    places = (("the shell", node.environment), ("nccl.conf", node.nccl_conf))
    losing = [f"{where} has {own[name]}" for where, own in places if own.get(name, value) != value]
    who = "--env" if name in env else "the shell"
    return f"; {' and '.join(losing)}, and {who} wins" if losing else ""


def judge(
    name: str, known: Known, environment: Mapping[str, str], interface: str = ""
) -> tuple[Verdict, str]:
    """What `name` does in this environment on this node."""
    meant = variables.meant(name)
    if meant:
        return "typo", f"nobody reads this name; {meant} was meant"
    # Of a release that is only assumed nothing is known.
    unread = releases.unread(name, known.version) if known.version_is_known else ""
    if unread:
        return "obsolete", unread
    foreign = _foreign(name, known.node, environment)
    if foreign:
        return foreign
    ruled_out = _ruled_out(name, environment)
    if ruled_out:
        return "contradicting", ruled_out
    if name in DEBUGGING:
        return _debugging(name, environment)
    if name in EXPERIMENTS:
        return "debugging", f"for experiments: {EXPERIMENTS[name]}"
    if name == "GLOO_SOCKET_IFNAME":
        return _gloo(known.node, environment, interface)
    if name == "NCCL_IB_GID_INDEX":
        return _gid_index(known, environment)
    if name in FABRIC:
        return _fabric(name, known, environment)
    if name in STEERING:
        return _steering(name, known, environment, interface)
    return "not judged", "kept as it is"


def _foreign(name: str, node: Node, environment: Mapping[str, str]) -> tuple[Verdict, str] | None:
    """A setting of one cloud's machines; None on that cloud, and for anybody's setting."""
    cloud = clouds.owner(name, environment[name])
    if cloud is None:
        return None
    told = "" if "product" in node.unknown else node.product
    if not told:
        return "site", f"it is for {cloud.name}'s machines; this one does not tell whose it is"
    if clouds.is_on(cloud, told):
        return None
    return "leftover", f"it is for {cloud.name}'s machines, and this one is {printable(told, 60)}"


def _ruled_out(name: str, environment: Mapping[str, str]) -> str:
    """Which other variable leaves this one without effect; "" for none."""
    if name.startswith("NCCL_IB_") and name != "NCCL_IB_DISABLE":
        if rdma.is_disabled(environment):
            return f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']} switches off what it is for"
        network = environment.get("NCCL_NET", "")
        if network.lower() == "socket":
            return f"NCCL_NET={network} leaves no use for it"
    if name == "NCCL_P2P_LEVEL" and environment.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1 leaves no use for it"
    if name == "NCCL_DEBUG_SUBSYS" and not environment.get("NCCL_DEBUG"):
        return "nothing is logged as long as NCCL_DEBUG is not set"
    return ""


def _debugging(name: str, environment: Mapping[str, str]) -> tuple[Verdict, str]:
    value = environment[name]
    if name == "NCCL_DEBUG_FILE" and "%p" not in value:
        return "harmful", "all ranks of a node write into one file; %h and %p make it one for each"
    if name == "NCCL_DEBUG" and value.upper() == "VERSION":
        return "debugging", "one line with the release"
    return "debugging", DEBUGGING[name]


def _gloo(node: Node, environment: Mapping[str, str], interface: str) -> tuple[Verdict, str]:
    """By the address Gloo announces with it and without it."""
    without = {k: v for k, v in environment.items() if k != "GLOO_SOCKET_IFNAME"}
    own = [c.interface for c in gloo.announced(node, environment)]
    alone = [c.interface for c in gloo.announced(node, without)]
    if not own:
        return "harmful", "Gloo finds no interface of that name here, and fails"
    if own == alone:
        return "no-op", f"Gloo takes {own[0]} without it as well"
    if own == [interface]:
        return "right", f"the ranks meet on {interface}; Gloo alone takes {alone[0] if alone else 'none'}"
    return "changes", f"Gloo takes {', '.join(own)} with it, {', '.join(alone) or 'none'} without it"


def _steering(name: str, known: Known, environment: Mapping[str, str], interface: str) -> tuple[Verdict, str]:
    """By what NCCL chooses with it and without it."""
    with_it = network.predict(known, environment)
    without = network.predict(known, {k: v for k, v in environment.items() if k != name})
    told = _traps_of(name, known, environment)
    if _choice(with_it) == _choice(without):
        if name == "NCCL_IB_DISABLE" and not rdma.is_disabled(environment):
            return "no-op", f"{environment[name]} is the default: RDMA is used where there is any"
        if name.startswith("NCCL_IB_") and without.network == "Socket":
            return "no-op", told or "no RDMA port is used here"
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
    if _is_needed(name, known, environment, interface):
        return "right", f"needed here: {_shown(with_it)}; without it: {_shown(without)}"
    return "changes", f"with it: {_shown(with_it)}; without it: {_shown(without)}"


def _is_needed(name: str, known: Known, environment: Mapping[str, str], interface: str) -> bool:
    """Whether it makes the choice that the plan would have made."""
    if name == "NCCL_IB_HCA":
        bare = {k: v for k, v in environment.items() if k != name}
        wanted = rdma.wanted(used_ports(known, bare))
        return bool(wanted) and [*used_ports(known, environment)] == [*wanted]
    if name == "NCCL_SOCKET_IFNAME" and interface:
        chosen = network.predict(known, environment).bootstrap
        return chosen is not None and chosen.interface == interface
    return False


def _choice(made: Prediction) -> tuple[object, ...]:
    boot = made.bootstrap
    return boot and (boot.interface, boot.address), made.network, made.interfaces, made.oob, made.used


def _shown(made: Prediction) -> str:
    boot = f"bootstrap on {made.bootstrap.interface}, " if made.bootstrap else ""
    # A socket's address is each node's own: without it nodes that choose alike are told once.
    names = [i.partition(":")[0] if made.network == "Socket" else i for i in made.interfaces]
    return f"{boot}network {made.network or 'none'} {' '.join(names)}".strip()


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
        return "right", "before 2.21 NCCL takes index 0 without it, a link-local entry of RoCE v1"
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
        default = ack_timeout(known.version)
        wait_s = 4.096e-6 * 2 ** min(31, max(0, rdma.number(environment, name, default)))
        usual_s = 4.096e-6 * 2**default
        tried = f"a lost packet is noticed after {wait_s:.2g} s a try ({usual_s:.2g} s by default)"
        if rdma.number(environment, name, default) == default:
            return "no-op", f"{tried}: the default of this release"
        return "site", f"{tried}: it hides a bad link longer and heals nothing"
    if name == "NCCL_IB_QPS_PER_CONNECTION":
        if rdma.number(environment, name, 1) == 1:
            return "no-op", "1 is the default"
        return "site", "spreads a connection over the paths of an ECMP fabric; must be equal on all nodes"
    return "site", "depends on the fabric; must be equal on all nodes"


def ack_timeout(version: choice.Version) -> int:
    """NCCL_IB_TIMEOUT when it is not set: 14, from 2.14 on 18, from 2.23 on 20 (net_ib of each release)."""
    return 20 if version >= (2, 23, 4) else 18 if version >= (2, 14, 3) else 14
