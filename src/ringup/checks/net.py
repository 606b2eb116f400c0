"""Reachability: what the pair tests found wrong on the networks a job would use."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from ringup import problems
from ringup.checks import paths
from ringup.checks.paths import Edge, Fault
from ringup.checks.picks import expects_nccl, picks
from ringup.facts import Cluster
from ringup.reachability import cut_pairs, few, networks
from ringup.rules import Finding, Fix, Skipped, check
from ringup.units import printable, twice_quoted

READS = (*paths.READS, "cluster.links")
USES = paths.USES
SHOWN = 4
"""Failing paths listed in a finding; the rest are counted."""


def listed(items: Iterable[object]) -> str:
    """A few of many, and how many more there are, apart by semicolons."""
    words = list(dict.fromkeys(str(e) for e in items))
    more = f"; and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return "; ".join(words[:SHOWN]) + more


def place(fault: Fault) -> tuple[str, str | None, str]:
    """Where (for people), node and subject of a fault."""
    if fault.node:
        interface = fault.interface
        subject = f"interface:{fault.node}/{interface}" if interface and fault.network else ""
        return f"{fault.node} {interface}".strip(), fault.node, subject
    ends = list(dict.fromkeys(f"{e.dst} {e.interface}" for e in fault.edges))
    first = fault.edges[0]
    return few(ends), None, f"interface:{first.dst}/{first.interface}"


def pins(cluster: Cluster) -> dict[str, str]:
    """The variables that keep NCCL and Gloo on the best proven network, where it has one name everywhere."""
    network = paths.best(cluster)
    names = set(network.interfaces.values()) if network else set()
    if len(names) != 1:
        return {}
    name = names.pop()
    by_nccl = {"NCCL_SOCKET_IFNAME": f"={name}"}
    if cluster.job.launcher == "jax":  # reads no variable for Gloo
        return by_nccl if expects_nccl(cluster) else {}
    return {**by_nccl, "GLOO_SOCKET_IFNAME": name}


def keep_off(cluster: Cluster, edge: Edge) -> str:
    """How a job stays on the good network, in words."""
    network = paths.best(cluster)
    if cluster.job.launcher == "jax" and network and edge.dst in network.addresses:
        name = printable(cluster.node(edge.dst).hostname, 80)
        return (
            f"JAX on CPUs announces what a node's name means, and no variable changes that: let {name} mean "
            f"{network.addresses[edge.dst]} in /etc/hosts of {edge.dst}"
        )
    return "keep NCCL and Gloo on the network every node reached"


def why_used(cluster: Cluster, edge: Edge) -> str:
    """Who would use the address, in words; "" when it is only one of the networks the nodes share."""
    reasons = [
        p.because
        for p in picks(cluster, cluster.node(edge.dst))
        if p.interface == edge.interface and p.address == edge.address
    ]
    return f" ({'; '.join(dict.fromkeys(reasons))})" if reasons else ""


def of_kind(cluster: Cluster, kind: paths.Kind) -> Iterator[Fault]:
    return (f for f in paths.faults(cluster) if f.kind == kind)


def is_wall(cluster: Cluster, fault: Fault) -> bool:
    """Whether this fault is that nodes sharing a network reach each other on none at all."""
    return not paths.proven(cluster) and any("/" in e.network and e.network[0].isdigit() for e in fault.edges)


@check(problems.PEER_UNREACHABLE_ON_INTERFACE, reads=READS, uses=USES)
def peer_unreachable_on_interface(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """A network is left, and this address is not on it."""
    yield from paths.untested(cluster)
    for fault in of_kind(cluster, "unreachable"):
        if is_wall(cluster, fault):
            continue
        where, node, subject = place(fault)
        first = fault.edges[0]
        yield Finding(
            where,
            found=listed(fault.edges) + why_used(cluster, first),
            wanted="every address that NCCL or Gloo announces is reached by every peer",
            node=node,
            subject=subject,
            fix=Fix(
                f"{keep_off(cluster, first)}; then repair the cable, VLAN, route or "
                "firewall of this one, or take its address away",
                env=pins(cluster),
                commands=(
                    f"ssh {shlex.quote(first.src)} ip route get {twice_quoted(first.address)}",
                    f"ssh {shlex.quote(first.src)} ping -c 3 {twice_quoted(first.address)}",
                ),
            ),
        )


@check("pairs-not-tested", reads=(), uses=("interpreter",))
def pairs_not_tested(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    Whether the nodes reach each other could not be tested on a node.

    Why: without the proof no interface can be chosen for it, and a job would be started blindly.

    Fix: see the reason given; the test needs a python3 (3.8 or newer) on the node and an answer in time.
    """
    for node in cluster.nodes:
        reason = cluster.pairs_unknown.get(node.name, "")
        no_python = "interpreter" not in node.unknown and not node.interpreter.path
        if not reason or len(cluster.nodes) < 2:
            continue
        if "interfaces" in node.unknown or node.name in cluster.pairs_starved:
            yield Skipped("", node.name, f"pairs: {printable(reason, 400)}")
        elif not no_python:
            yield Finding(
                node.name,
                found=printable(reason, 400),
                wanted="every node tests its paths to the others",
                node=node.name,
                fix=Fix(
                    "see what the node says to a short Python program",
                    commands=(f"ssh {shlex.quote(node.name)} python3 --version",),
                ),
            )


@check("no-common-network", reads=READS, uses=USES)
def no_common_network(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    There is no network on which every node reaches every other.

    Why: NCCL and Gloo connect every rank with others directly, in both directions.  Without a
    network that all nodes share, every launcher hangs.

    Fix: look at the paths listed: a firewall between the nodes, a VLAN, a cable or a missing
    route.  Open all TCP ports between the nodes of a job.

    In logs: nothing at all, or `Connection timed out` after two minutes.
    """
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    yield from paths.untested(cluster)
    cluster = paths.tested(cluster)
    tried = any(li.purpose == "interface" for li in cluster.links)
    if len(cluster.nodes) < 2 or not tried or networks(cluster):
        return
    found = paths.faults(cluster)
    walls = [f for f in found if f.kind == "unreachable" and is_wall(cluster, f)]
    if not walls and found:
        return  # The fault that cuts the last network is named by its own rule.
    pairs = cut_pairs(cluster)
    edges = [e for f in walls for e in f.edges]
    words = listed(edges) or listed(f"{src} reaches no address of {dst}" for src, dst in pairs)
    ends = list(dict.fromkeys(f"{e.dst} {e.interface}" for e in edges))
    node = paths.blamed(edges) if edges else ""
    if len(cluster.nodes) == 2:
        node = ""
    yield Finding(
        node or few(ends or [f"{s} -> {d}" for s, d in pairs] or ["all nodes"]),
        found=words or "no two nodes have a network in common",
        wanted="one network on which every node reaches every other, both ways, on all ports",
        node=node or None,
        fix=Fix(
            "open all TCP ports between the nodes of a job, or repair the cable, VLAN or route",
            commands=opening(cluster, edges),
        ),
    )


@check("asymmetric-reachability", reads=READS, uses=USES)
def asymmetric_reachability(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    One node reaches another, but not the other way round.

    Why: who opens a connection depends on rank and address, so half of them fail; a hang that
    comes and goes with the order of the nodes.

    Fix: a firewall that admits one side only, a route that is missing on one side, or reverse
    path filtering (`sysctl net.ipv4.conf.all.rp_filter=2`) on the node that drops.

    In logs: `client socket has timed out` on one node, silence on the other.
    """
    yield from paths.untested(cluster)
    for fault in of_kind(cluster, "one-way"):
        where, node, subject = place(fault)
        ways = list(dict.fromkeys(e.cut for e in fault.edges))
        cut = few(f"{a} -> {b}" for a, b in ways)
        yield Finding(
            where,
            found=f"nothing gets through {cut}, while the way back works: {listed(fault.edges)}",
            wanted="connections in both directions",
            node=node,
            subject=subject if paths.proven(cluster) else "",
            fix=Fix(
                f"open all TCP ports for the peers on {fault.node or 'both nodes'}; if there is no firewall, "
                "compare the routes of both nodes and set rp_filter to 2",
                env=pins(cluster),
                commands=opening(cluster, fault.edges),
            ),
        )


@check(problems.FIREWALL_DROPS_HIGH_PORTS, reads=READS, uses=USES)
def firewall_drops_high_ports(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """Only low ports answer; one finding for a node, whatever the number of its networks."""
    yield from paths.untested(cluster)
    for fault in of_kind(cluster, "filtered"):
        where, node, _ = place(fault)
        yield Finding(
            where,
            found=f"only low ports answer, connections to ports above are lost: {listed(fault.edges)}",
            wanted="every port open between the nodes of a job",
            node=node,
            subject=place(fault)[2] if paths.proven(cluster) else "",
            fix=Fix(
                "open all TCP ports between the nodes, or the range that the kernel gives out "
                "(net.ipv4.ip_local_port_range)",
                commands=opening(cluster, fault.edges),
            ),
        )


@check("path-mtu-black-hole", reads=READS, uses=USES)
def path_mtu_black_hole(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    Small packets pass and full-size ones vanish.

    Why: connections open, the first tensor never arrives, and nobody says a word: ping and ssh work.

    Fix: the same MTU on every node and switch of the network, and let ICMP "fragmentation needed"
    through; until then a smaller MTU on the nodes, or `sysctl net.ipv4.tcp_mtu_probing=1`.

    In logs: `Timed out waiting 10000ms for recv operation to complete`, like a hang of the program.
    """
    yield from paths.untested(cluster)
    for fault in of_kind(cluster, "black-hole"):
        where, node, subject = place(fault)
        mtus = mtu_words(cluster, fault)
        commands = []
        for name, interface in dict.fromkeys((e.dst, e.interface) for e in fault.edges):
            dev = twice_quoted(interface)
            commands.append(f"ssh {shlex.quote(name)} sudo ip link set dev {dev} mtu 1280")
        yield Finding(
            where,
            found=f"{listed(fault.edges)}{mtus}",
            wanted="packets of the interfaces' own MTU arrive",
            node=node,
            subject=subject if paths.proven(cluster) else "",
            fix=Fix(
                "the same MTU along the whole path; until then a smaller one on both ends, or "
                "`sudo sysctl -w net.ipv4.tcp_mtu_probing=1` on every node",
                env=pins(cluster),
                commands=tuple(commands[:SHOWN]),
            ),
        )


def mtu_words(cluster: Cluster, fault: Fault) -> str:
    """The MTUs of the interfaces concerned, in words."""
    mtus = {}
    for edge in fault.edges:
        for name, interface in ((edge.dst, edge.interface), (edge.src, edge.src_interface)):
            facts = cluster.node(name).interface(interface)
            if facts:
                mtus[f"{name} {interface}"] = facts.mtu_bytes
    return f" (MTU: {listed(f'{k} {v} bytes' for k, v in mtus.items())})" if mtus else ""


def opening(cluster: Cluster, edges: Iterable[Edge]) -> tuple[str, ...]:
    """Commands that let the peers in, on the nodes that drop, for the firewall most distributions have."""
    lines = []
    for edge in edges:
        sender, dropper = edge.cut
        sources = [
            a.address
            for i in cluster.node(sender).interfaces
            if i.name == (edge.src_interface if sender == edge.src else edge.interface)
            for a in i.usable_addresses
        ]
        for source in sources[:1]:
            tool = "ip6tables" if ":" in source else "iptables"
            rule = f"sudo {tool} -I INPUT -p tcp -s {twice_quoted(source)} -j ACCEPT"
            lines.append(f"ssh {shlex.quote(dropper)} {rule}")
    return tuple(dict.fromkeys(lines))[:SHOWN]
