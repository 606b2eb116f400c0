"""Packets lost between nodes, as the kernels counted them during the pair tests."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from ringup.checks import paths
from ringup.checks.net import READS, USES, pins
from ringup.facts import Cluster, starved
from ringup.reachability import few
from ringup.rules import Finding, Fix, Skipped, check
from ringup.units import twice_quoted

LOST_AT_LEAST = 3
LOST_WARNING = 0.1
LOST_NOTE = 0.05
"""
Share of connections that had to send something again.

Measured with 20 % of the packets dropped on one side of two hosts: a sixth to a half of all
connections; on 64 healthy hosts that share two processors: none of 956 short ones.
"""

ROUND_S = 4.0
"""What an attempt of the pair tests may last, at least."""
Way = tuple[str, str, str]
"""Node, interface, and "into" or "out of" it."""


@dataclass
class Count:
    """Connections that go one way through one interface, and those of them that lost packets."""

    connections: int = 0
    affected: int = 0

    @property
    def share(self) -> float:
        return self.affected / self.connections if self.connections else 0.0


@dataclass(frozen=True)
class Lossy:
    """A network that loses packets; `way` is the worst of `ways`, `alone` when it stands out from them."""

    network: str
    way: Way
    worst: Count
    affected: int
    ways: tuple[Way, ...]
    alone: bool
    severe: bool


@check(
    "tcp-retransmits-high", reads=READS, uses=(*USES, "cpu_waits", "load", "cpu_count"), severity="warning"
)
def tcp_retransmits_high(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    Packets get lost between nodes.

    Why: every lost packet stalls its connection for a fifth of a second or more; training runs, at a
    fraction of the network's speed, and connections fail now and then.

    Fix: cable, transceiver, duplex and switch port of the node named: `ethtool -S IFNAME`.
    """
    yield from paths.untested(cluster)
    busy = starving(cluster)
    yield from (Skipped("", name, why) for name, why in busy.items())
    for lossy in lossy_networks(cluster):
        node, interface, direction = lossy.way
        ends = few(f"{n} {i}" for n, i, _ in lossy.ways)
        most = f"{lossy.worst.affected} of {lossy.worst.connections} connections {direction} {node}"
        yield Finding(
            f"{node} {interface}" if lossy.alone else ends,
            found=f"{most} had to send packets again ({lossy.affected} in all on {lossy.network})",
            wanted="no lost packets on an idle network",
            node=node if lossy.alone else None,
            subject=f"interface:{node}/{interface}",
            severity="warning" if lossy.severe else "note",
            fix=Fix(
                "look at cable, transceiver, duplex and switch port",
                env=pins(cluster),
                commands=(f"ssh {shlex.quote(node)} ethtool -S {twice_quoted(interface)}",),
            ),
        )


def starving(cluster: Cluster) -> dict[str, str]:
    """Nodes whose kernel may have repeated what was only late, with the reason."""
    waits = {n.name: n.cpu_waits.get("pairs", 0.0) for n in cluster.nodes if "cpu_waits" not in n.unknown}
    return {
        n.name: starved.words(n.name, waits[n.name], n.load, n.cpu_count)
        for n in paths.tested(cluster).nodes
        if starved.excuses(waits.get(n.name, 0.0), ROUND_S)
    }


def lossy_networks(cluster: Cluster) -> Iterator[Lossy]:
    """Networks on which too many connections had to send something again."""
    busy = starving(cluster)
    cluster = cluster.only(n for n in paths.tested(cluster).nodes if n.name not in busy)
    for network, ways in counts(cluster).items():
        way, worst = max(ways.items(), key=lambda item: (item[1].share, item[1].affected))
        # Each connection is counted where it goes in and where it came out.
        affected = sum(w.affected for w in ways.values()) // 2
        everywhere = 2 * affected / sum(w.connections for w in ways.values())
        usual = median(w.share for w in ways.values())
        alone = len(cluster.nodes) > 2 and worst.affected >= LOST_AT_LEAST and worst.share > 3 * usual
        if affected >= LOST_AT_LEAST and (alone or everywhere >= LOST_NOTE):
            severe = everywhere >= LOST_WARNING or (alone and worst.share >= 2 * LOST_WARNING)
            yield Lossy(network, way, worst, affected, tuple(ways), alone, severe)


def counts(cluster: Cluster) -> dict[str, dict[Way, Count]]:
    """Network -> what was lost each way, over every path that works and that a job would use."""
    view = paths.View(cluster)
    found: dict[str, dict[Way, Count]] = {}
    for link in cluster.links:
        counted = link.ok and link.segments and {link.src, link.dst} <= view.nodes.keys()
        network = view.network_of(link.dst, link.address) if counted else ""
        if network and view.concerns(link, network) and not cluster.is_local:
            ways = found.setdefault(network, {})
            into = (link.dst, link.dst_interface, "into")
            out_of = (link.src, view.subnets[network].get(link.src, ""), "out of")
            for way in (into, out_of):
                count = ways.setdefault(way, Count())
                count.connections += 1
                # A receiver that is late makes the sender of a large message repeat one segment.
                count.affected += link.retransmitted > (link.purpose == "interface")
    return found
