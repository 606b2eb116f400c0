"""Variables that are already set on the nodes."""

from __future__ import annotations

from collections.abc import Iterator

from ringup.addresses import is_address
from ringup.checks import paths
from ringup.checks.network_setup import pins
from ringup.model import Cluster, Node, left_over, once
from ringup.nccl import interface_choice, variables
from ringup.network import gloo
from ringup.network.predictions import Selection, predicted, uses_nccl
from ringup.rules import Finding, Place, Severity, at, check
from ringup.units import printable, summarize_names

READS = ("environment", "interfaces")

LEFT_ON: dict[str, tuple[tuple[str, ...], str]] = {
    "NCCL_P2P_DISABLE": (("1",), "GPUs of a node exchange data through host memory"),
    "NCCL_SHM_DISABLE": (("1",), "ranks of a node exchange data through the network"),
    "NCCL_IB_DISABLE": (("1",), "InfiniBand and RoCE are not used, data goes over TCP"),
    "NCCL_DEBUG": (("TRACE", "ABORT"), "every call is logged, or the job ends at the first warning"),
    "CUDA_LAUNCH_BLOCKING": (("1",), "every kernel waits for the previous one"),
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "every collective is checked by another one first"),
    "TORCH_NCCL_BLOCKING_WAIT": (("1",), "timeouts and errors are handled by waiting"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": (("0",), "a dead peer hangs the job for ever"),
    "NCCL_CHECKS_DISABLE": (("1",), "NCCL does not check its arguments"),
    "NCCL_SOCKET_FAMILY": (("AF_INET6",), "only IPv6 addresses are used"),
}
"""Variable -> values that are only for experiments, and the cost of each."""

SWITCHES = ("NCCL_IB_DISABLE", "NCCL_NET")
"""Variables that turn RDMA off on a node."""

FORCED = ("NCCL_PROTO", "NCCL_ALGO", "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_COMM_ID")
"""Settings that replace NCCL's own decision, whatever their value."""

SHARED = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_FR_", "FI_", "OFI_NCCL_", "UCX_")
"""Prefixes of variables on which both ends of a connection should agree."""


def value(cluster: Cluster, node: Node, name: str) -> str:
    """The value that a rank would see without the plan; "" if unset."""
    return predicted(cluster).of(node).environment.get(name, "")


def origin(cluster: Cluster, node: Node, name: str) -> str:
    if name in cluster.job.env:
        return "set for this job"
    return f"already set on {node.name}" if name in node.environment else f"from nccl.conf on {node.name}"


def at_variable(cluster: Cluster, node: Node, name: str) -> Place:
    """A variable on a node; a plan may change it unless it is the user's own `--env`."""
    return at(node, name, "" if name in cluster.job.env else f"env:{name}@{node.name}")


@once
def settings(cluster: Cluster) -> dict[str, dict[str, list[Node]]]:
    """Variable -> value -> nodes on which a rank would see it."""
    found: dict[str, dict[str, list[Node]]] = {}
    for node in cluster.nodes:
        for name, text in predicted(cluster).of(node).environment.items():
            found.setdefault(name, {}).setdefault(text, []).append(node)
    return found


@check("interface-name-missing", reads=READS)
def interface_name_missing(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """NCCL or Gloo would find no interface for the value on this node."""
    selection = predicted(cluster).of(node)
    names = [n for n in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if finds_nothing(selection, n)]
    answer = interface_choice.asked(node, cluster.job.env)
    if answer and not answer.interface and "NCCL_SOCKET_IFNAME" not in names:
        words = printable("; ".join(answer.errors), 300)
        yield at(node, "NCCL").finding(
            found=f"NCCL {answer.version} on that node reports: {words}",
            wanted="an interface for its bootstrap",
            fix="give the node an address on the nodes' network, and unset NCCL_COMM_ID if it is set",
        )
    if not names:
        return
    there = ", ".join(i.name for i in node.interfaces if i.addresses and paths.is_card(i))
    yield at_variable(cluster, node, names[0]).finding(
        found=" and ".join(f"{shown(cluster, node, n)} matches no interface" for n in names),
        wanted=f"an interface of {node.name}: {printable(there, 200) or 'none with an address'}",
        severity=None if "GLOO_SOCKET_IFNAME" in names or uses_nccl(cluster) == "yes" else "warning",
        fix="unset it where it is set, or name an interface that exists there",
        env={k: v for k, v in pins(cluster).items() if k in names},
        commands=tuple(f"unset {n}" for n in names),
    )


def finds_nothing(selection: Selection, name: str) -> bool:
    """Whether this variable leaves NCCL or Gloo without any interface on this node."""
    text = selection.environment.get(name, "")
    if len(text) < 2:
        return False
    if name == "GLOO_SOCKET_IFNAME":
        return not text.startswith(("^", "=")) and not selection.gloo
    answer = interface_choice.asked(selection.node, selection.env)
    if answer:
        return not answer.interface
    return selection.job.backend != "gloo" and not selection.interfaces


def shown(cluster: Cluster, node: Node, name: str) -> str:
    return f"{name}={printable(value(cluster, node, name), 100)} ({origin(cluster, node, name)})"


@check("gloo-ifname-in-nccl-syntax", reads=READS)
def gloo_ifname_in_nccl_syntax(node: Node, cluster: Cluster) -> Iterator[Finding]:
    text = value(cluster, node, "GLOO_SOCKET_IFNAME")
    if text.startswith(("^", "=")):
        yield at_variable(cluster, node, "GLOO_SOCKET_IFNAME").finding(
            found=shown(cluster, node, "GLOO_SOCKET_IFNAME"),
            wanted="the name of one interface",
            env={k: v for k, v in pins(cluster).items() if k == "GLOO_SOCKET_IFNAME"},
        )


@check("loopback-interface-chosen", reads=READS, scope="machines")
def loopback_interface_chosen(node: Node, cluster: Cluster) -> Iterator[Finding]:
    selection = predicted(cluster).of(node)
    names = [n for n in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if takes_loopback(selection, n)]
    if names:
        yield at_variable(cluster, node, names[0]).finding(
            found=" and ".join(f"{shown(cluster, node, n)} takes lo" for n in names),
            wanted="an interface that peers can reach",
            env=pins(cluster),
        )


def takes_loopback(selection: Selection, name: str) -> bool:
    is_nccl = name.startswith("NCCL")
    if len(selection.environment.get(name, "")) < 2 or (is_nccl and selection.job.backend == "gloo"):
        return False
    chosen = selection.interfaces if is_nccl else selection.gloo
    kinds = [i.kind for c in chosen if (i := selection.node.interface(c.interface)) is not None]
    return "loopback" in kinds


def parts_networks(cluster: Cluster, name: str) -> bool:
    """Whether this switch turns RDMA off on some nodes while the others would use RDMA to reach them."""
    if name not in SWITCHES or uses_nccl(cluster) == "no":
        return False
    selections = [predicted(cluster).of(n) for n in cluster.nodes if "rdma_ports" not in n.unknown]
    kept_from = [s.node for s in selections if s.environment.get(name) and not s.tries_rdma]
    has_ports = any(p.is_active for n in kept_from for p in n.rdma_ports)
    return has_ports and any(s.rdma_ports for s in selections)


@check("environment-differs-between-nodes", reads=("environment",))
def environment_differs_between_nodes(cluster: Cluster) -> Iterator[Finding]:
    """Interface names may differ, settings for message sizes may not.  Other rules report bad values."""
    for name, nodes_of in settings(cluster).items():
        row, (bad_values, _) = variables.row_of(name), LEFT_ON.get(name, ((), ""))
        named = {t for t in nodes_of if t.upper() in bad_values or variables.meant(name)}
        values = {n.name: t for t, nodes in nodes_of.items() if t not in named for n in nodes}
        everywhere = len(values) == len(cluster.nodes) and len(set(values.values())) == 1
        if not name.startswith(SHARED) or row.per_node or everywhere or not values:
            continue
        breaks: Severity = "error" if row.must_match or parts_networks(cluster, name) else "warning"
        names = [n.name for n in cluster.nodes]
        with_it = [n for n in names if n in values]
        yield Place(name, tuple(with_it), f"env:{name}@{with_it[0]}").finding(
            found=summarize_names(f"{n}: {printable(values.get(n, 'unset'), 80)}" for n in names),
            wanted="one value on every node",
            severity=breaks if name.startswith("NCCL_") else "note",
            fix=f"set it through the launcher: --env {name}=..., or unset it everywhere",
        )


@check("harmful-env-left-on", reads=("environment",))
def harmful_env_left_on(cluster: Cluster) -> Iterator[Finding]:
    """
    A setting for experiments or debugging is still on.

    Why: each of them costs speed, hides errors or replaces NCCL's own decision.
    Fix: unset it in the shell's start-up files, the image or nccl.conf.
    """
    for name, values in settings(cluster).items():
        bad_values, cost = LEFT_ON.get(name, ((), "it replaces NCCL's own decision"))
        alone, is_switch = parts_networks(cluster, name), name == "NCCL_IB_DISABLE"
        if alone:
            cost += "; the other nodes use them: their ranks do not connect"
        for text, everyone in values.items():
            # On a node without RDMA it changes nothing.
            nodes = [n for n in everyone if not is_switch or "rdma_ports" in n.unknown or n.rdma_ports]
            is_bad = text.upper() in bad_values or (name in FORCED and text)
            if name == "NCCL_SOCKET_FAMILY" and not any(n.has_ipv4 or not n.interfaces for n in nodes):
                continue  # there are no others
            if not is_bad or not nodes or name in cluster.job.env:  # the user has just set it
                continue
            yield at(nodes, name, f"env:{name}@{nodes[0].name}").finding(
                found=f"{name}={printable(text, 100)}: {cost} ({origin(cluster, nodes[0], name)})",
                wanted="unset, unless you know why",
                severity="error" if alone else "note" if name in FORCED else "warning",
                commands=[f"unset {name}"],
            )


@check("unknown-nccl-variable", reads=("environment",), severity="warning")
def unknown_nccl_variable(cluster: Cluster) -> Iterator[Finding]:
    for name, values in settings(cluster).items():
        if variables.meant(name):
            nodes = [n for some in values.values() for n in some]
            yield at(nodes, printable(name, 80)).finding(
                found=f"{printable(name, 80)} ({origin(cluster, nodes[0], name)})",
                wanted=variables.meant(name),
                fix=f"did you mean {variables.meant(name)}?",
            )


@check("stale-nccl-config", reads=("nccl_conf",), severity="warning")
def stale_nccl_config(node: Node) -> Iterator[Finding]:
    """
    A nccl.conf sets variables without the user's knowledge.

    Why: NCCL reads /etc/nccl.conf and ~/.nccl.conf and prints their settings as `set by
    environment`; a file copied from another cluster names interfaces this one does not have.
    Fix: check the file, and remove settings for another cluster.
    """
    if node.nccl_conf:
        words = ", ".join(f"{k}={v}" for k, v in list(node.nccl_conf.items())[:6])
        yield at(node, "nccl.conf").finding(
            found=printable(words, 300), wanted="a file written for this cluster, or none", severity="note"
        )


@check("launcher-environment-preset", reads=("environment",), severity="warning")
def launcher_environment_preset(node: Node) -> Iterator[Finding]:
    """
    Variables that a launcher sets for its ranks are already set in a node's shell.

    Why: PET_* and TORCHELASTIC_* silently change torchrun's defaults; a left-over RANK or WORLD_SIZE makes
    a single process wait for peers.
    Fix: unset them in the shell's start-up files or the image.
    """
    names = left_over(node.environment)
    if names:
        words = ", ".join(f"{n}={printable(node.environment[n], 60)}" for n in names[:6])
        yield at(node, subject=f"env:{names[0]}@{node.name}").finding(
            found=words,
            wanted="none of them set before the launcher starts",
            commands=("unset " + " ".join(names[:12]),),
        )


@check("address-not-of-rank0", reads=("interfaces",))
def address_not_of_rank0(cluster: Cluster) -> Iterator[Finding]:
    """
    MASTER_ADDR is not an address of the first node.

    Why: the first node opens the store; the others connect to MASTER_ADDR.
    Fix: leave it to ringup, or name the first node's address on the shared network.
    In logs: `The client socket has timed out`, or EADDRNOTAVAIL on rank 0.
    """
    wanted = cluster.job.env.get("MASTER_ADDR", "")
    head = next((n for n in cluster.nodes if n.name == cluster.head_name), None)
    literal = wanted == "localhost" or is_address(wanted)
    if not literal or head is None or cluster.is_local:
        return
    owner = gloo.owner(head, "127.0.0.1" if wanted == "localhost" else wanted)
    if owner is None or (owner.kind == "loopback" and len(cluster.nodes) > 1):
        best = paths.best(cluster)
        own = best.addresses[head.name] if best else ""
        yield at(head, "MASTER_ADDR").finding(
            found=f"MASTER_ADDR={printable(wanted, 100)} is not an address of {head.name} for its peers",
            wanted=own or f"an address of {head.name}",
            env={"MASTER_ADDR": own} if own else {},
        )


@check("proxy-variables-set", reads=("environment",), severity="note")
def proxy_variables_set(cluster: Cluster) -> Iterator[Finding]:
    """
    A web proxy is set for the job's shell, and no_proxy does not list the nodes.

    Why: rendezvous over HTTP or gRPC (etcd, JAX's coordinator) and download tests go to the proxy
    instead of the peer.
    Fix: list the nodes' names and networks in `no_proxy`.
    """
    with_proxy = {}
    for node in cluster.nodes:
        set_here = {name.lower() for name, text in node.environment.items() if text}
        proxies = [n for n in ("http_proxy", "https_proxy", "all_proxy") if n in set_here]
        if proxies and "no_proxy" not in set_here:
            with_proxy[node.name] = ", ".join(proxies)
    if with_proxy and len(cluster.nodes) > 1:
        yield at(with_proxy).finding(
            found=f"{next(iter(with_proxy.values()))} set, no_proxy is not",
            wanted="no_proxy with the names and networks of the nodes",
        )
