"""Variables that are already set where the job will run."""

from __future__ import annotations

from collections.abc import Iterator

from ringup import gloo, problems
from ringup.checks import paths
from ringup.checks.interfaces import is_card
from ringup.checks.names import is_address
from ringup.checks.net import pins
from ringup.facts import Cluster, NcclAnswer, Node
from ringup.nccl import across, choice, inuse, rdma, variables
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, check
from ringup.units import printable

READS = ("environment", "interfaces")
USES = ("nccl_conf", "own_name", "interpreter", "hostname", *inuse.READS)

LEFT_ON: dict[str, tuple[tuple[str, ...], str]] = {
    "NCCL_P2P_DISABLE": (("1",), "GPUs of a node exchange data through host memory"),
    "NCCL_SHM_DISABLE": (("1",), "ranks of a node exchange data through the network"),
    "NCCL_IB_DISABLE": (("1",), "InfiniBand and RoCE are not used, data goes over TCP"),
    "NCCL_DEBUG": (("TRACE", "ABORT"), "every call is written out, or the job ends at the first warning"),
    "CUDA_LAUNCH_BLOCKING": (("1",), "every kernel waits for the one before"),
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "every collective is checked by another one first"),
    "TORCH_NCCL_BLOCKING_WAIT": (("1",), "time-outs and errors are handled by waiting"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (("0",), "a dead peer hangs the job for ever"),
    "NCCL_CHECKS_DISABLE": (("1",), "NCCL does not check its arguments"),
    "NCCL_SOCKET_FAMILY": (("AF_INET6",), "only IPv6 addresses are used"),
}
"""Variable -> values that are for experiments only, and what each costs."""

SWITCHES = ("NCCL_IB_DISABLE", "NCCL_NET")
"""What turns RDMA off on a node."""

FORCED = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_COMM_ID")
"""Settings that replace NCCL's own decision whatever their value."""

SHARED = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_FR_", "FI_", "OFI_NCCL_", "UCX_")
"""Prefixes of what both ends of a connection should agree on."""

ELASTIC = ("PET_", "TORCHELASTIC_")
"""Prefixes of what torchrun reads; a run takes them away, and the finding says so."""

RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
)


def value(cluster: Cluster, node: Node, name: str) -> str:
    """What a rank would see without the plan; "" where unset."""
    return choice.effective(node, cluster.job.env).get(name, "")


def origin(cluster: Cluster, node: Node, name: str) -> str:
    """Where a variable comes from, in words."""
    if name in cluster.job.env:
        return "from --env"
    return f"already set on {node.name}" if name in node.environment else f"from nccl.conf on {node.name}"


def subject(cluster: Cluster, node: Node, name: str) -> str:
    """The user's own `--env` is nobody's to avoid."""
    return "" if name in cluster.job.env else f"env:{name}@{node.name}"


@check(problems.INTERFACE_NAME_MISSING, reads=READS, uses=(*USES, "gpu_count"))
def interface_name_missing(cluster: Cluster) -> Iterator[Finding]:
    """What NCCL and Gloo would find for the value on this node: nothing."""
    for node in cluster.nodes:
        names = [n for n in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if finds_nothing(cluster, node, n)]
        told = choice.asked(node, cluster.job.env)
        if told and not told.interface and "NCCL_SOCKET_IFNAME" not in names:
            yield nccl_found_none(node, told)
        if not names:
            continue
        there = (
            ", ".join(i.name for i in node.interfaces if i.addresses and is_card(i)) or "none with an address"
        )
        yield Finding(
            f"{node.name} {names[0]}",
            found=" and ".join(f"{shown(cluster, node, n)} matches no interface" for n in names),
            wanted=f"an interface of {node.name}: {printable(there, 200)}",
            node=node.name,
            subject=subject(cluster, node, names[0]),
            # Without a GPU anywhere nobody reads NCCL's, unless the job says that it is to be used.
            severity=None if "GLOO_SOCKET_IFNAME" in names or across.uses_nccl(cluster) else "warning",
            fix=Fix(
                "unset it where it comes from, or name the interface that exists there",
                env={k: v for k, v in pins(cluster).items() if k in names},
                commands=tuple(f"unset {n}" for n in names),
            ),
        )


def finds_nothing(cluster: Cluster, node: Node, name: str) -> bool:
    """Whether this variable leaves its reader without any interface on this node."""
    text = value(cluster, node, name)
    if len(text) < 2:
        return False
    if name == "GLOO_SOCKET_IFNAME":
        return not nccl_syntax(text) and not gloo.announced(node, cluster.job.env)
    told = choice.asked(node, cluster.job.env)
    if told:
        return not told.interface
    return cluster.job.backend != "gloo" and not inuse.interfaces(node, cluster.job.env)


def nccl_found_none(node: Node, told: NcclAnswer) -> Finding:
    """NCCL was asked on the node and failed, without a name set that would explain it."""
    return Finding(
        f"{node.name} NCCL",
        found=f"NCCL {told.version}, asked there, says: {printable('; '.join(told.errors), 300)}",
        wanted="an interface for its bootstrap",
        node=node.name,
        fix=Fix(
            "give the node an address on the network the nodes share, and unset NCCL_COMM_ID if it is set"
        ),
    )


def shown(cluster: Cluster, node: Node, name: str) -> str:
    """A variable with its value and where it comes from."""
    return f"{name}={printable(value(cluster, node, name), 100)} ({origin(cluster, node, name)})"


def nccl_syntax(text: str) -> bool:
    return text.startswith(("^", "="))


@check(problems.GLOO_IFNAME_IN_NCCL_SYNTAX, reads=READS, uses=USES)
def gloo_ifname_in_nccl_syntax(cluster: Cluster) -> Iterator[Finding]:
    for node in cluster.nodes:
        text = value(cluster, node, "GLOO_SOCKET_IFNAME")
        if nccl_syntax(text):
            yield Finding(
                f"{node.name} GLOO_SOCKET_IFNAME",
                found=shown(cluster, node, "GLOO_SOCKET_IFNAME"),
                wanted="the name of one interface",
                node=node.name,
                subject=subject(cluster, node, "GLOO_SOCKET_IFNAME"),
                fix=Fix(
                    "name one interface",
                    env={k: v for k, v in pins(cluster).items() if k == "GLOO_SOCKET_IFNAME"},
                ),
            )


@check(problems.LOOPBACK_INTERFACE_CHOSEN, reads=READS, uses=USES)
def loopback_interface_chosen(cluster: Cluster) -> Iterator[Finding]:
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    for node in cluster.nodes:
        names = [n for n in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if takes_loopback(cluster, node, n)]
        if names:
            yield Finding(
                f"{node.name} {names[0]}",
                found=" and ".join(f"{shown(cluster, node, n)} takes lo" for n in names),
                wanted="an interface that the peers reach",
                node=node.name,
                subject=subject(cluster, node, names[0]),
                fix=Fix("name the interface the nodes share", env=pins(cluster)),
            )


def takes_loopback(cluster: Cluster, node: Node, name: str) -> bool:
    """Whether the value of this variable leads its reader to lo."""
    env = cluster.job.env
    if len(value(cluster, node, name)) < 2 or (name.startswith("NCCL") and cluster.job.backend == "gloo"):
        return False
    chosen = inuse.interfaces(node, env) if name.startswith("NCCL") else gloo.announced(node, env)
    kinds = [i.kind for c in chosen if (i := node.interface(c.interface)) is not None]
    return "loopback" in kinds


def parts_networks(cluster: Cluster, name: str) -> bool:
    """Whether this switch keeps some nodes from RDMA, over which the others would send to them."""
    if name not in SWITCHES or not across.uses_nccl(cluster):
        return False
    nodes = [n for n in cluster.nodes if "rdma_ports" not in n.unknown]
    env = cluster.job.env
    kept_from = [n for n in nodes if value(cluster, n, name) and not rdma.is_asked(n, env)]
    has_ports = any(p.state == "ACTIVE" for n in kept_from for p in n.rdma_ports)
    return has_ports and any(rdma.taken(n, env) for n in nodes)


@check(
    problems.ENVIRONMENT_DIFFERS_BETWEEN_NODES,
    reads=("environment",),
    uses=("nccl_conf", "rdma_ports", "interpreter", "gpu_count"),
)
def environment_differs_between_nodes(cluster: Cluster) -> Iterator[Finding]:
    """Interface names may differ; what decides the size of messages may not.  Bad values have their rules."""
    seen: dict[str, dict[str, str]] = {}
    for node in cluster.nodes:
        for name, text in choice.effective(node, cluster.job.env).items():
            if name.startswith(SHARED) and name not in variables.PER_NODE and not is_named(name, text):
                seen.setdefault(name, {})[node.name] = text
    for name, values in seen.items():
        if len(values) == len(cluster.nodes) and len(set(values.values())) == 1:
            continue
        fatal = name in variables.MUST_MATCH or parts_networks(cluster, name)
        breaks: Severity = "error" if fatal else "warning"
        odd = list(values)
        words = few(f"{n.name}: {printable(values.get(n.name, 'unset'), 80)}" for n in cluster.nodes)
        yield Finding(
            name,
            found=words,
            wanted="one value on every node",
            node=odd[0] if len(odd) == 1 else None,
            subject=f"env:{name}@{odd[0]}",
            severity=breaks if name.startswith("NCCL_") else "note",
            fix=Fix(f"set it through the launcher: --env {name}=..., or unset it everywhere"),
        )


def is_named(name: str, text: str) -> bool:
    """Whether another rule says of this setting, alone, that it should not be."""
    bad_values, _ = LEFT_ON.get(name, ((), ""))
    return text.upper() in bad_values or bool(variables.meant(name))


def is_idle_switch(node: Node, name: str) -> bool:
    """Whether RDMA is turned off on a node that has none."""
    return name == "NCCL_IB_DISABLE" and "rdma_ports" not in node.unknown and not node.rdma_ports


@check(
    "harmful-env-left-on",
    reads=("environment",),
    uses=("nccl_conf", "rdma_ports", "interpreter", "gpu_count"),
)
def harmful_env_left_on(cluster: Cluster) -> Iterator[Finding]:
    """
    A setting meant for experiments or debugging is still on.

    Why: each of them costs speed, hides errors or replaces NCCL's own decision.

    Fix: unset it in the shell's start-up files, the image or nccl.conf.
    """
    found: dict[tuple[str, str, str], list[Node]] = {}
    for node in cluster.nodes:
        for name, text in choice.effective(node, cluster.job.env).items():
            if name in cluster.job.env or is_idle_switch(node, name):
                continue  # The user has just asked for it, or it changes nothing here.
            values, cost = LEFT_ON.get(name, ((), ""))
            if text.upper() in values:
                found.setdefault((name, text, cost), []).append(node)
            elif name in FORCED and text:
                found.setdefault((name, text, "it replaces NCCL's own decision"), []).append(node)
    for (name, text, cost), nodes in found.items():
        where = few(n.name for n in nodes)
        alone = parts_networks(cluster, name)
        if alone:
            cost += "; the other nodes use them: their ranks do not connect"
        yield Finding(
            f"{where} {name}",
            found=f"{name}={printable(text, 100)}: {cost} ({origin(cluster, nodes[0], name)})",
            wanted="unset, unless you know why",
            node=nodes[0].name if len(nodes) == 1 else None,
            subject=f"env:{name}@{nodes[0].name}",
            severity="error" if alone else "note" if name in FORCED else "warning",
            fix=Fix("unset it where it comes from", commands=(f"unset {name}",)),
        )


@check("unknown-nccl-variable", reads=("environment",), uses=("nccl_conf",), severity="warning")
def unknown_nccl_variable(cluster: Cluster) -> Iterator[Finding]:
    """
    A variable looks like one of NCCL's, and is none.

    Why: NCCL ignores a name it does not know without a word, so the setting has no effect.

    Fix: the spelling that was meant.
    """
    seen: dict[str, list[Node]] = {}
    for node in cluster.nodes:
        for name in choice.effective(node, cluster.job.env):
            if variables.meant(name):
                seen.setdefault(name, []).append(node)
    for name, nodes in seen.items():
        shown = printable(name, 80)
        yield Finding(
            f"{few(n.name for n in nodes)} {shown}",
            found=f"{shown} ({origin(cluster, nodes[0], name)})",
            wanted=variables.meant(name),
            node=nodes[0].name if len(nodes) == 1 else None,
            fix=Fix(f"did you mean {variables.meant(name)}?"),
        )


@check("stale-nccl-config", reads=("nccl_conf",), severity="warning")
def stale_nccl_config(cluster: Cluster) -> Iterator[Finding]:
    """
    A nccl.conf sets variables behind the user's back.

    Why: NCCL reads /etc/nccl.conf and ~/.nccl.conf and prints what is in them as `set by
    environment`; a file copied from another cluster names interfaces this one does not have.

    Fix: look at the file, and remove what is not meant for this cluster.
    """
    for node in cluster.nodes:
        if node.nccl_conf:
            words = ", ".join(f"{k}={v}" for k, v in list(node.nccl_conf.items())[:6])
            yield Finding(
                f"{node.name} nccl.conf",
                found=printable(words, 300),
                wanted="a file meant for this cluster, or none",
                node=node.name,
                severity="note",
            )


@check("launcher-environment-preset", reads=("environment",), severity="warning")
def launcher_environment_preset(cluster: Cluster) -> Iterator[Finding]:
    """
    Variables that a launcher sets for its ranks are already set in a node's shell.

    Why: PET_* and TORCHELASTIC_* silently change torchrun's defaults; a left-over RANK or WORLD_SIZE makes
    a single process wait for peers.

    Fix: unset them in the shell's start-up files or the image.
    """
    for node in cluster.nodes:
        names = [n for n in node.environment if n.startswith(ELASTIC) or n in RANK_VARIABLES]
        if names:
            words = ", ".join(f"{n}={printable(node.environment[n], 60)}" for n in names[:6])
            yield Finding(
                node.name,
                found=words,
                wanted="none of them set before the launcher starts",
                node=node.name,
                subject=f"env:{names[0]}@{node.name}",
                fix=Fix("unset them where they come from", commands=("unset " + " ".join(names[:12]),)),
            )


@check("address-not-of-rank0", reads=("interfaces",), uses=paths.USES)
def address_not_of_rank0(cluster: Cluster) -> Iterator[Finding]:
    """
    MASTER_ADDR is no address of the first node.

    Why: the store is opened on the first node; the others look for it where MASTER_ADDR says.

    Fix: leave it to ringup, or name the first node's address on the shared network.

    In logs: `The client socket has timed out`, or EADDRNOTAVAIL on rank 0.
    """
    wanted = cluster.job.env.get("MASTER_ADDR", "")
    head = next((n for n in cluster.nodes if n.name == (cluster.first or n.name)), None)
    literal = wanted == "localhost" or is_address(wanted)
    if not literal or head is None or cluster.is_local:
        return
    owner = gloo.owner(head, "127.0.0.1" if wanted == "localhost" else wanted)
    if owner is None or (owner.kind == "loopback" and len(cluster.nodes) > 1):
        best = paths.best(cluster)
        own = best.addresses[head.name] if best else ""
        yield Finding(
            f"{head.name} MASTER_ADDR",
            found=f"MASTER_ADDR={printable(wanted, 100)} is no address of {head.name} for its peers",
            wanted=own or f"an address of {head.name}",
            node=head.name,
            fix=Fix("leave it out, or name that address", env={"MASTER_ADDR": own} if own else {}),
        )


@check("proxy-variables-set", reads=("environment",), severity="note")
def proxy_variables_set(cluster: Cluster) -> Iterator[Finding]:
    """
    A web proxy is set for the job's shell, and nothing excepts the nodes from it.

    Why: rendezvous over HTTP or gRPC (etcd, JAX's coordinator) and download tests go to the proxy
    instead of the peer.

    Fix: list the nodes' names and networks in `no_proxy`.
    """
    with_proxy = []
    for node in cluster.nodes:
        lower = {name.lower(): text for name, text in node.environment.items()}
        set_here = [n for n in ("http_proxy", "https_proxy", "all_proxy") if lower.get(n)]
        if set_here and not lower.get("no_proxy"):
            with_proxy.append((node.name, set_here))
    if with_proxy and len(cluster.nodes) > 1:
        yield Finding(
            few(name for name, _ in with_proxy),
            found=f"{', '.join(with_proxy[0][1])} set, no_proxy is not",
            wanted="no_proxy with the names and networks of the nodes",
            node=with_proxy[0][0] if len(with_proxy) == 1 else None,
        )
