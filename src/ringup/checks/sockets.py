"""The kernel's side of sockets: buffers, connection tracking, bonds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ringup.checks import picks, rising, verbs
from ringup.facts import Bond, Cluster
from ringup.rules import Finding, Fix, check
from ringup.units import printable, show_bytes, twice_quoted

LEAST_BUFFER_BYTES = 4 << 20
"""Largest buffer Linux gives a connection by default (tcp_wmem); 10 Gbit/s for 3 ms on the way."""
FAST_GBIT_S = 10.0
NEARLY_FULL = 0.8


@check(
    "socket-buffers-small",
    reads=("socket_limits", "interfaces"),
    uses=(*verbs.USES, *picks.USES, "rdma_ports"),
    severity="note",
)
def socket_buffers_small(cluster: Cluster) -> Iterator[Finding]:
    """
    The kernel may not grow TCP buffers far enough for a fast network.

    Why: what is on the way must fit into the buffers; a single connection stays below the link's rate.

    Fix: `sysctl net.ipv4.tcp_rmem="4096 131072 16777216" net.ipv4.tcp_wmem="4096 65536 16777216"`; for NCCL
    also more connections: NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD.
    """
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    view = verbs.known_part(cluster)
    for node in cluster.nodes:
        limits = node.socket_limits
        least = min(limits.tcp_rmem_max_bytes, limits.tcp_wmem_max_bytes)
        speeds = [
            i.speed_gbit_s or cluster.job.link_gbit_s or 0.0
            for p in picks.picks(cluster, node)
            if (i := node.interface(p.interface)) is not None
        ]
        over_tcp = not view.taken.get(node.name)
        if over_tcp and 0 < least < LEAST_BUFFER_BYTES and max(speeds, default=0.0) >= FAST_GBIT_S:
            yield Finding(
                f"{node.name} tcp_rmem, tcp_wmem",
                found=f"at most {show_bytes(least)} a connection on a link of {max(speeds):g} Gbit/s",
                wanted=f"{show_bytes(LEAST_BUFFER_BYTES)} or more",
                node=node.name,
                fix=Fix(
                    "let the kernel grow buffers",
                    commands=tuple(
                        f"ssh {shlex.quote(node.name)} \"sudo sysctl -w 'net.ipv4.{name}'\""
                        for name in ("tcp_rmem=4096 131072 16777216", "tcp_wmem=4096 65536 16777216")
                    ),
                ),
            )


@check("conntrack-nearly-full", reads=("socket_limits",), severity="warning")
def conntrack_nearly_full(cluster: Cluster) -> Iterator[Finding]:
    """
    The table in which the firewall keeps connections is nearly full.

    Why: once it is, new connections are dropped at random; a job of many ranks opens thousands.

    Fix: `sysctl net.netfilter.nf_conntrack_max=...`, or no tracking between the nodes of a job.
    """
    for node in cluster.nodes:
        limits = node.socket_limits
        if limits.conntrack_max and limits.conntrack_count > NEARLY_FULL * limits.conntrack_max:
            more = 4 * limits.conntrack_max
            yield Finding(
                f"{node.name} conntrack",
                found=f"{limits.conntrack_count} of {limits.conntrack_max} connections are in use",
                wanted=f"less than {NEARLY_FULL:.0%}",
                node=node.name,
                fix=Fix(
                    "a larger table",
                    commands=(
                        f"ssh {shlex.quote(node.name)} sudo sysctl -w net.netfilter.nf_conntrack_max={more}",
                    ),
                ),
            )


@check(
    "bond-misconfigured",
    reads=("bonds", "interfaces"),
    uses=(*rising.USES, *picks.USES, "rdma_ports", "ports"),
    severity="warning",
)
def bond_misconfigured(cluster: Cluster) -> Iterator[Finding]:
    """
    A bonded interface has a slave without link, or cannot use its slaves together.

    Why: with one link gone the bond carries half; in active-backup mode or with a hash of layer 2 alone all
    traffic between two nodes goes through one link anyhow.

    Fix: the link that is down; mode 802.3ad and `xmit_hash_policy=layer3+4` where the switch allows it.
    """
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    view = verbs.known_part(cluster)
    used = rising.watched(cluster, view)
    for node in cluster.nodes:
        for bond in node.bonds:
            words = trouble(bond)
            if words and bond.name in used[node.name]:
                yield Finding(
                    f"{node.name} {bond.name}",
                    found=words,
                    wanted="every slave up, and traffic spread over them",
                    node=node.name,
                    severity="warning" if bond.down else "note",
                    fix=Fix(
                        "repair the link, or change the bond's mode or hash",
                        commands=(
                            f"ssh {shlex.quote(node.name)} cat /proc/net/bonding/{twice_quoted(bond.name)}",
                        ),
                    ),
                )


def trouble(bond: Bond) -> str:
    """What is wrong with a bond, "" for nothing."""
    if bond.down:
        return f"{', '.join(printable(s, 40) for s in bond.down)} of {len(bond.slaves)} slaves without link"
    if "active-backup" in bond.mode and len(bond.slaves) > 1:
        return f"{printable(bond.mode, 60)}: one slave at a time"
    if bond.hash_policy == "layer2" and len(bond.slaves) > 1:
        return "hash policy layer2: all traffic to one peer takes one slave"
    return ""
