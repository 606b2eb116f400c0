"""Error counters that rise while the check runs; the kernel's limits for sockets, and its bonds."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from ringup.checks import paths, verbs
from ringup.checks.interfaces import at_interface, pins_elsewhere
from ringup.checks.verbs import View
from ringup.model import Bond, Cluster, Node, RdmaPort
from ringup.network.predictions import picks
from ringup.rules import Finding, Severity, Skipped, at, check
from ringup.units import printable, show_bytes

READS = verbs.READS
Rates = Mapping[str, float]

FLAPPED = {"link_downed": 0.0}
SYMBOLS = {"symbol_error": 10.0}
RECEIVED = {
    "port_rcv_errors": 10.0,
    "local_link_integrity_errors": 0.0,
    "excessive_buffer_overrun_errors": 0.0,
}
RETRIED = {
    **dict.fromkeys(("rnr_nak_retry_err", "req_transport_retries_exceeded"), 0.0),
    **dict.fromkeys(("local_ack_timeout_err", "packet_seq_err", "implied_nak_seq_err"), 1.0),
    "roce_slow_restart": 10.0,
}
EFA = {"rx_drops": 0.0, "retrans_timeout_events": 0.0, "unresponsive_remote_events": 0.0}
"""
Counter -> rises per second above which it is a fault.

0 means any.  Rates of NVIDIA's NVSentinel (docs/configuration/nic-health-monitor.md, 07b82dc2);
out_of_sequence is left out, as adaptive routing makes it rise.
"""
CARD = ("rx_errors", "rx_crc_errors", "tx_errors", "tx_carrier_errors")
"""Dropped packets are not included: an unused protocol (LLDP) also counts as dropped."""
LEAST_BUFFER_BYTES = 4 << 20
"""Largest buffer Linux gives a connection by default (tcp_wmem); 10 Gbit/s for 3 ms on the way."""
FAST_GBIT_S = 10.0
WANTED_BUFFERS = ("tcp_rmem=4096 131072 16777216", "tcp_wmem=4096 65536 16777216")
NEARLY_FULL = 0.8


def rise(node: Node, port: RdmaPort, limits: Rates) -> tuple[str, bool]:
    """The counters of a port that rose while the check ran ("" for none), and whether they rose too fast."""
    rose = verbs.rose(node, f"rdma:{port.name}")
    by = {name: rise for name, rise in rose.by.items() if name in limits}
    words = ", ".join(f"{name} rose by {rise}" for name, rise in by.items())
    too_fast = any(rise > limits[name] * rose.over_s for name, rise in by.items())
    return f"{words} within {rose.over_s:.1f} s" if by else "", too_fast


def findings(
    node: Node, ports: Iterable[RdmaPort], limits: Rates, wanted: str, worst: Severity = "warning"
) -> Iterator[Finding]:
    """One finding for each port with risen counters; a note if they rise as on a healthy link."""
    for port in ports:
        words, too_fast = rise(node, port, limits)
        files = f"/sys/class/infiniband/{shlex.quote(port.device)}/ports/{port.number}"
        if words:
            yield at(node, port.name).finding(
                found=words,
                wanted=wanted,
                severity=worst if too_fast else "note",
                run=f"grep -rs [1-9] {files}/counters {files}/hw_counters",
            )


@check("link-flapped", reads=READS, scope="rdma")
def link_flapped(node: Node, view: View) -> Iterator[Finding | Skipped]:
    """During the check: a job would have failed at that moment."""
    yield from verbs.counted_once(node, view.main[node.name])
    ports = view.allowed(node)
    yield from findings(node, ports, FLAPPED, "a link that stays up", "error")
    others = [p for p in view.main[node.name] if p not in ports or not rise(node, p, FLAPPED)[0]]
    yield from findings(node, others, {"link_error_recovery": 1.0}, "a link that needs no retraining")


def counter_rule(node: Node, view: View, name: str) -> Iterator[Finding]:
    """Main ports whose counters of this rule rose, except where more specific counters explain it."""
    limits, wanted, unless = COUNTER_RULES[name]
    ports = [p for p in view.main[node.name] if not rise(node, p, unless)[1]]
    yield from findings(node, ports, limits, wanted)


COUNTER_RULES: dict[str, tuple[Rates, str, Rates]] = {
    "symbol-errors": (SYMBOLS, "fewer than 10 per second", {}),
    # Damaged symbols cause damaged packets: one cable, one finding.
    "receive-errors": (RECEIVED, "none while nothing is wrong", SYMBOLS),
    "transmit-discards": ({"port_xmit_discards": 100.0}, "fewer than 100 per second", {}),
    "transport-retries": (RETRIED, "none on a healthy fabric", {}),
}
"""Rule -> its counters, the expected state, and the counters that explain them."""

for _name in COUNTER_RULES:
    check(_name, reads=READS, scope="rdma")(partial(counter_rule, name=_name))


@check("efa-underneath", reads=READS, scope="rdma", severity="warning")
def efa_underneath(node: Node) -> Iterator[Finding | Skipped]:
    """
    An EFA device, whose port is always ACTIVE, loses packets or peers.

    Why: EFA does not show its link in the port's state; only its counters show lost packets.
    Fix: use a security group that allows all traffic from and to itself, both ways, and the same subnet and
    placement group; then check the instance's health.
    """
    ports = [p for p in node.rdma_ports if p.driver == "efa"]
    yield from verbs.counted_once(node, ports)
    yield from findings(node, ports, EFA, "none")


def watched(node: Node, cluster: Cluster, view: View) -> set[str]:
    """Interfaces a job would use on a node: those of NCCL and Gloo, the best network, RoCE's."""
    best = paths.best(cluster)
    names = {p.interface for p in picks(cluster, node)}
    names |= {best.interfaces[node.name]} if best and node.name in best.interfaces else set()
    return names | {p.netdev for p in view.main.get(node.name, []) if p.netdev}


@check("interface-errors", reads=("interfaces",), scope="machines", severity="warning")
def interface_errors(node: Node, cluster: Cluster, view: View) -> Iterator[Finding | Skipped]:
    """
    A network interface has damaged packets, or lost its link, while the check ran.

    Why: a damaged packet is lost and sent again; a link that goes away ends RDMA connections and stalls TCP.
    Fix: check cable, transceiver, duplex and switch port: `ethtool -S IFNAME`.
    """
    used = watched(node, cluster, view)
    yield from verbs.counted_once(node, used)
    for name in sorted(used):
        rose = verbs.rose(node, f"interface:{name}")
        words = [f"{k} rose by {v}" for k, v in rose.by.items() if k in CARD]
        # Down and up again are two changes; `interface-down` finds a link that is down now.
        flaps = rose.by.get("carrier_changes", 0)
        words += [f"the link changed {flaps} times"] if flaps > 1 else []
        if words:
            yield at_interface(node, name).finding(
                found=f"{', '.join(words)} within {rose.over_s:.1f} s",
                wanted="no damaged packet, and a link that stays up",
                run=f"ethtool -S {shlex.quote(name)}",
                env=pins_elsewhere(cluster, node, name),
            )


@check("backlog-overflow", reads=("socket_limits",), scope="machines", severity="warning")
def backlog_overflow(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    The head node's queue of new connections is shorter than the job has ranks, or has just overflowed.

    Why: all ranks connect to the store at once; a connection without room is dropped and retried after
    seconds, and some ranks report that the store timed out.
    Fix: `sysctl net.core.somaxconn=4096` on the first node.
    """
    if node.name != cluster.head_name:
        return
    room = node.socket_limits.somaxconn
    wanted = sum(map(cluster.ranks_on, cluster.nodes))
    lost = verbs.rose(node, "tcp").by.get("ListenOverflows", 0)
    if (room and room < wanted) or lost:
        words = f"somaxconn {room}, {wanted} ranks"
        yield at(node, "somaxconn").finding(
            found=words + (f"; {lost} connections were dropped during the check" if lost else ""),
            wanted=f"room for {max(4096, wanted)} connections that wait",
            run=f"sudo sysctl -w net.core.somaxconn={max(4096, wanted)}",
        )


@check("socket-buffers-small", reads=("socket_limits", "interfaces"), scope="machines", severity="note")
def socket_buffers_small(node: Node, cluster: Cluster, view: View) -> Iterator[Finding]:
    """
    The kernel may not grow TCP buffers far enough for a fast network.

    Why: data in flight must fit into the buffers; a single connection stays below the link's rate.
    Fix: `sysctl net.ipv4.tcp_rmem="4096 131072 16777216" net.ipv4.tcp_wmem="4096 65536 16777216"`; for NCCL
    also more connections: NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD.
    """
    limits = node.socket_limits
    least = min(limits.tcp_rmem_max_bytes, limits.tcp_wmem_max_bytes)
    cards = filter(None, (node.interface(p.interface) for p in picks(cluster, node)))
    fastest = max((i.speed_gbit_s or cluster.job.link_gbit_s or 0.0 for i in cards), default=0.0)
    over_tcp = not view.taken.get(node.name)
    if over_tcp and 0 < least < LEAST_BUFFER_BYTES and fastest >= FAST_GBIT_S:
        yield at(node, "tcp_rmem, tcp_wmem").finding(
            found=f"at most {show_bytes(least)} a connection on a link of {fastest:g} Gbit/s",
            wanted=f"{show_bytes(LEAST_BUFFER_BYTES)} or more",
            run=[f"sudo sysctl -w 'net.ipv4.{setting}'" for setting in WANTED_BUFFERS],
        )


@check("conntrack-nearly-full", reads=("socket_limits",), severity="warning")
def conntrack_nearly_full(node: Node) -> Iterator[Finding]:
    """
    The table in which the firewall keeps connections is nearly full.

    Why: once it is, new connections are dropped at random; a job of many ranks opens thousands.
    Fix: `sysctl net.netfilter.nf_conntrack_max=...`, or no tracking between the nodes of a job.
    """
    limits = node.socket_limits
    if limits.conntrack_max and limits.conntrack_count > NEARLY_FULL * limits.conntrack_max:
        more = 4 * limits.conntrack_max
        yield at(node, "conntrack").finding(
            found=f"{limits.conntrack_count} of {limits.conntrack_max} connections are in use",
            wanted=f"less than {NEARLY_FULL:.0%}",
            run=f"sudo sysctl -w net.netfilter.nf_conntrack_max={more}",
        )


@check("bond-misconfigured", reads=("bonds", "interfaces"), scope="machines", severity="warning")
def bond_misconfigured(node: Node, cluster: Cluster, view: View) -> Iterator[Finding]:
    """
    A bonded interface has a slave without link, or cannot use its slaves together.

    Why: with one link gone the bond carries half; in active-backup mode or with a hash of layer 2 alone all
    traffic between two nodes goes through one link anyhow.
    Fix: repair the link that is down; use 802.3ad and `xmit_hash_policy=layer3+4` if the switch allows it.
    """
    for bond in node.bonds:
        words = trouble(bond)
        if words and bond.name in watched(node, cluster, view):
            yield at(node, bond.name).finding(
                found=words,
                wanted="every slave up" if bond.down else "traffic spread over the slaves",
                severity="warning" if bond.down else "note",
                fix="" if bond.down else "nothing if one link is enough; else mode 802.3ad with layer3+4",
                run=f"cat /proc/net/bonding/{shlex.quote(bond.name)}",
            )


def trouble(bond: Bond) -> str:
    if bond.down:
        return f"{', '.join(printable(s, 40) for s in bond.down)} of {len(bond.slaves)} slaves without link"
    if "active-backup" in bond.mode and len(bond.slaves) > 1:
        return f"{printable(bond.mode, 60)}: one slave at a time"
    if bond.hash_policy == "layer2" and len(bond.slaves) > 1:
        return "hash policy layer2: all traffic to one peer takes one slave"
    return ""
