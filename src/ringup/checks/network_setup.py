"""Results of the pair tests on the networks a job would use: unreachable peers, lost packets."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from ringup.checks import paths
from ringup.checks.paths import Edge, Fault
from ringup.model import Cluster, Node, cpu_starvation, once
from ringup.network.predictions import picks, uses_nccl
from ringup.network.reachability import LOST_AT_LEAST, LOST_SHARE, cut_pairs, networks
from ringup.rules import Finding, Place, Skipped, at, at_each, check, ssh
from ringup.units import printable, summarize_names

READS = paths.READS
SHOWN = 4
"""Failing paths listed in a finding; the rest are counted."""
LOST_NOTE = 0.05
"""Share of connections that retransmitted, from which it is noted."""

ROUND_S = 4.0
"""Shortest time limit for an attempt of the pair tests."""


def listed(items: Iterable[object]) -> str:
    """The first few items and the number of the others, separated by semicolons."""
    return summarize_names(items, SHOWN, "; ")


def place(fault: Fault) -> Place:
    """The blamed node's interface, or all unreachable interfaces."""
    if fault.node:
        interface = fault.interface
        subject = f"interface:{fault.node}/{interface}" if interface and fault.network else ""
        return at(fault.node, interface, subject)
    first = fault.edges[0]
    where = summarize_names(f"{e.dst} {e.interface}" for e in fault.edges)
    return Place(where, (), f"interface:{first.dst}/{first.interface}")


def place_to_avoid(cluster: Cluster, fault: Fault) -> Place:
    """The same; with a subject only if ranks can use another path."""
    found = place(fault)
    return found if paths.proven(cluster) else replace(found, subject="")


@once
def pins(cluster: Cluster) -> dict[str, str]:
    """Variables that keep NCCL and Gloo on the best working network, if its interface has one name."""
    network = paths.best(cluster)
    names = set(network.interfaces.values()) if network else set()
    if len(names) != 1:
        return {}
    name = names.pop()
    by_nccl = {"NCCL_SOCKET_IFNAME": f"={name}"}
    if cluster.job.launcher == "jax":  # it reads no variable for Gloo
        return by_nccl if uses_nccl(cluster) != "no" else {}
    return {**by_nccl, "GLOO_SOCKET_IFNAME": name}


def of_kind(cluster: Cluster, kind: paths.Kind) -> Iterator[Fault]:
    return (f for f in paths.faults(cluster) if f.kind == kind)


def is_wall(cluster: Cluster, fault: Fault) -> bool:
    """Whether, because of this fault, nodes that share networks reach each other on none of them."""
    return not paths.proven(cluster) and any("/" in e.network and e.network[0].isdigit() for e in fault.edges)


@check("peer-unreachable-on-interface", reads=READS)
def peer_unreachable_on_interface(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """Another network works, but this address cannot be reached."""
    yield from paths.untested(cluster)
    best = paths.best(cluster)
    for fault in of_kind(cluster, "unreachable"):
        if is_wall(cluster, fault):
            continue
        first, keep_off = fault.edges[0], "keep NCCL and Gloo on the network every node reached"
        if cluster.job.launcher == "jax" and best and first.dst in best.addresses:
            name = printable(cluster.node(first.dst).hostname, 80)
            keep_off = (
                "JAX on CPUs announces the address of a node's host name, and no variable changes that: "
                f"map {name} to {best.addresses[first.dst]} in /etc/hosts of {first.dst}"
            )
        address, used = shlex.quote(first.address), picks(cluster, cluster.node(first.dst))
        here = (p for p in used if (p.interface, p.address) == (first.interface, first.address))
        reasons = "; ".join(dict.fromkeys(p.because for p in here))
        yield place(fault).finding(
            found=listed(fault.edges) + (f" ({reasons})" if reasons else ""),
            wanted="every peer can reach every address that NCCL or Gloo announces",
            fix=f"{keep_off}; then repair the cable, VLAN, route or "
            "firewall of this one, or remove its address",
            commands=[ssh(first.src, c) for c in (f"ip route get {address}", f"ping -c 3 {address}")],
            env=pins(cluster),
        )


@check("pairs-not-tested")
def pairs_not_tested(node: Node, cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    A node could not test its paths to the others.

    Why: without the test no interface can be chosen for it, and the job may hang.
    Fix: see the reason; the test needs a python3 (3.8 or newer) on the node and an answer in time.
    """
    reason = cluster.pairs_unknown.get(node.name, "")
    no_python = "interpreter" not in node.unknown and not node.interpreter.path
    if not reason or len(cluster.nodes) < 2:
        return
    if "interfaces" in node.unknown or node.name in cluster.pairs_starved:
        yield Skipped("", node.name, f"pairs: {printable(reason, 400)}")
    elif not no_python:
        yield at(node).finding(
            found=printable(reason, 400),
            wanted="every node tests its paths to the others",
            run="python3 --version",
        )


@check("no-common-network", reads=READS, scope="machines")
def no_common_network(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    There is no network on which every node reaches every other.

    Why: NCCL and Gloo connect every rank with others directly, in both directions.  Without a
    network that all nodes share, every launcher hangs.
    Fix: look at the paths listed: a firewall between the nodes, a VLAN, a cable or a missing
    route.  Open all TCP ports between the nodes of a job.
    In logs: nothing at all, or `Connection timed out` after two minutes.
    """
    yield from paths.untested(cluster)
    cluster = paths.tested(cluster)
    tried = any(li.purpose == "interface" for li in cluster.links)
    if len(cluster.nodes) < 2 or not tried or networks(cluster):
        return
    found = paths.faults(cluster)
    walls = [f for f in found if f.kind == "unreachable" and is_wall(cluster, f)]
    if not walls and found:
        return  # If the fault leaves no network, another rule reports it.
    pairs = cut_pairs(cluster)
    edges = [e for f in walls for e in f.edges]
    words = listed(edges) or listed(f"{src} reaches no address of {dst}" for src, dst in pairs)
    ends = [f"{e.dst} {e.interface}" for e in edges] or [f"{s} -> {d}" for s, d in pairs] or ["all nodes"]
    node = paths.blamed(edges) if edges and len(cluster.nodes) > 2 else ""
    yield (at(node) if node else Place(summarize_names(ends), ())).finding(
        found=words or "no two nodes have a network in common",
        wanted="one network on which every node reaches every other, both ways, on all ports",
        fix="open all TCP ports between the nodes of a job, or repair the cable, VLAN or route",
        commands=opening(cluster, edges),
    )


@check("asymmetric-reachability", reads=READS)
def asymmetric_reachability(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    One node reaches another, but not the other way round.

    Why: rank and address decide which side opens a connection, so half of them fail; the hang depends on
    the order of the nodes.
    Fix: look for a firewall that admits one side only, a route that is missing on one side, or reverse path
    filtering (`sysctl net.ipv4.conf.all.rp_filter=2`) on the node that drops.
    In logs: `client socket has timed out` on one node, no message on the other.
    """
    yield from paths.untested(cluster)
    for fault in of_kind(cluster, "one-way"):
        cut = summarize_names(f"{e.cut[0]} -> {e.cut[1]}" for e in fault.edges)
        yield place_to_avoid(cluster, fault).finding(
            found=f"nothing gets through {cut}; the reverse direction works: {listed(fault.edges)}",
            wanted="connections in both directions",
            fix=f"open all TCP ports for the peers on {fault.node or 'both nodes'}; if there is no firewall, "
            "compare the routes of both nodes and set rp_filter to 2",
            commands=opening(cluster, fault.edges),
            env=pins(cluster),
        )


@check("firewall-drops-high-ports", reads=READS)
def firewall_drops_high_ports(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """Only low ports answer; one finding per node, whatever the number of its networks."""
    yield from paths.untested(cluster)
    for fault in of_kind(cluster, "filtered"):
        yield place_to_avoid(cluster, fault).finding(
            found=f"only low ports answer, connections to ports above are lost: {listed(fault.edges)}",
            wanted="every port open between the nodes of a job",
            commands=opening(cluster, fault.edges),
        )


@check("path-mtu-black-hole", reads=READS)
def path_mtu_black_hole(cluster: Cluster) -> Iterator[Finding | Skipped]:
    yield from paths.untested(cluster)
    for fault in of_kind(cluster, "black-hole"):
        ends = [(n, i) for e in fault.edges for n, i in ((e.dst, e.interface), (e.src, e.src_interface))]
        facts = {f"{n} {i}": cluster.node(n).interface(i) for n, i in ends}
        mtus = listed(f"{name} {i.mtu_bytes} bytes" for name, i in facts.items() if i)
        targets = list(dict.fromkeys((e.dst, e.interface) for e in fault.edges))[:SHOWN]
        yield place_to_avoid(cluster, fault).finding(
            found=listed(fault.edges) + (f" (MTU: {mtus})" if mtus else ""),
            wanted="packets as large as the interface's MTU arrive",
            fix="the same MTU along the whole path; until then a smaller one on both ends, or "
            "`sudo sysctl -w net.ipv4.tcp_mtu_probing=1` on every node",
            commands=[ssh(n, f"sudo ip link set dev {shlex.quote(i)} mtu 1280") for n, i in targets],
            env=pins(cluster),
        )


def opening(cluster: Cluster, edges: Iterable[Edge]) -> list[str]:
    """Commands that admit the peers on the nodes that drop, for the usual firewall of most distributions."""
    lines = []
    for edge in edges:
        sender, dropper = edge.cut
        interface = cluster.node(sender).interface(
            edge.src_interface if sender == edge.src else edge.interface
        )
        for source in interface.usable_addresses[:1] if interface else ():
            tool = "ip6tables" if ":" in source.address else "iptables"
            rule = f"sudo {tool} -I INPUT -p tcp -s {shlex.quote(source.address)} -j ACCEPT"
            lines.append(ssh(dropper, rule))
    return list(dict.fromkeys(lines))[:SHOWN]


Way = tuple[str, str, str]
"""Node, interface, and "into" or "out of" it."""


class Lossy(NamedTuple):
    """A network that loses packets; `way` is the worst of `ways`, `alone` if it differs from the others."""

    found: str
    way: Way
    ways: tuple[Way, ...]
    alone: bool
    severe: bool


@check("tcp-retransmits-high", reads=READS, severity="warning")
def tcp_retransmits_high(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    Packets get lost between nodes.

    Why: every lost packet stalls its connection for a fifth of a second or more; training runs, at a
    fraction of the network's speed, and connections fail now and then.
    Fix: check cable, transceiver, duplex and switch port of the node named: `ethtool -S IFNAME`.
    """
    yield from paths.untested(cluster)
    busy = starving(cluster)
    yield from (Skipped("", name, why) for name, why in busy.items())
    best = paths.best(cluster)
    for lossy in lossy_networks(cluster):
        node, interface, _ = lossy.way
        subject = f"interface:{node}/{interface}"
        ends = [(node, interface)] if lossy.alone else [(n, i) for n, i, _ in lossy.ways]
        is_best = best and set(best.interfaces.values()) & {i for _, i, _ in lossy.ways}
        yield at_each(ends, subject).finding(
            found=lossy.found,
            wanted="no lost packets on an idle network",
            severity="warning" if lossy.severe else "note",
            commands=[ssh(node, f"ethtool -S {shlex.quote(interface)}")],
            env={} if is_best else pins(cluster),
        )


@once
def starving(cluster: Cluster) -> dict[str, str]:
    """Nodes whose kernel may have retransmitted packets that were only late, with the reason."""
    found = {}
    for node in paths.tested(cluster).nodes:
        waited_s = node.cpu_waits.get("pairs", 0.0)
        if cpu_starvation.excuses(waited_s, ROUND_S):
            found[node.name] = cpu_starvation.words(node.name, waited_s, node.load, node.cpu_count)
    return found


@once
def lossy_networks(cluster: Cluster) -> list[Lossy]:
    """Networks on which too many connections retransmitted."""
    found = []
    busy = starving(cluster)
    cluster = cluster.only(n for n in paths.tested(cluster).nodes if n.name not in busy)
    for network, ways in connections(cluster).items():
        shares = {way: sum(lost) / len(lost) for way, lost in ways.items()}
        way = max(shares, key=lambda way: (shares[way], sum(ways[way])))
        worst, share = sum(ways[way]), shares[way]
        # Each connection counts at its source and at its destination.
        affected = sum(map(sum, ways.values())) // 2
        everywhere = 2 * affected / sum(map(len, ways.values()))
        alone = len(cluster.nodes) > 2 and worst >= LOST_AT_LEAST and share > 3 * median(shares.values())
        if affected >= LOST_AT_LEAST and (alone or everywhere >= LOST_NOTE):
            severe = everywhere >= LOST_SHARE or (alone and share >= 2 * LOST_SHARE)
            words = (
                f"{worst} of {len(ways[way])} connections {way[2]} {way[0]} retransmitted packets"
                f" ({affected} in all on {network})"
            )
            found.append(Lossy(words, way, tuple(ways), alone, severe))
    return found


def connections(cluster: Cluster) -> dict[str, dict[Way, list[bool]]]:
    """Network -> way -> whether each connection lost packets; only of working paths that a job would use."""
    found: dict[str, dict[Way, list[bool]]] = {}
    if not any(link.retransmitted for link in cluster.links):
        return found
    view, names = paths.view_of(cluster), {n.name for n in cluster.nodes}
    for link in cluster.links:
        counted = link.ok and link.segments and link.src in names and link.dst in names
        network = view.network_of(link.dst, link.address) if counted else ""
        if network and view.concerns(link, network) and not cluster.is_local:
            ways = found.setdefault(network, {})
            into = (link.dst, link.dst_interface, "into")
            out_of = (link.src, view.subnets[network].get(link.src, ""), "out of")
            for way in (into, out_of):
                # A late receiver makes the sender of a large message retransmit one segment.
                ways.setdefault(way, []).append(link.retransmitted > (link.purpose == "interface"))
    return found
