"""Error counters that rise while the check runs: of RDMA ports, interfaces and TCP's queues."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ringup import problems
from ringup.checks import paths, picks, verbs
from ringup.checks.interfaces import pins_elsewhere
from ringup.checks.verbs import View
from ringup.facts import Cluster, Node, RdmaPort
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, Skipped, check
from ringup.units import twice_quoted

READS = verbs.READS
USES = (*verbs.USES, "rises")

FLAPPED = {"link_downed": 0.0}
SYMBOLS = {"symbol_error": 10.0}
RECEIVED = {
    "port_rcv_errors": 10.0,
    "local_link_integrity_errors": 0.0,
    "excessive_buffer_overrun_errors": 0.0,
}
DISCARDED = {"port_xmit_discards": 100.0}
RETRIED = {
    "rnr_nak_retry_err": 0.0,
    "req_transport_retries_exceeded": 0.0,
    "local_ack_timeout_err": 1.0,
    "packet_seq_err": 1.0,
    "implied_nak_seq_err": 1.0,
    "roce_slow_restart": 10.0,
}
EFA = {"rx_drops": 0.0, "retrans_timeout_events": 0.0, "unresponsive_remote_events": 0.0}
"""
Counter -> rises a second above which it is a fault.

0 means any.  Rates of NVIDIA's NVSentinel (docs/configuration/nic-health-monitor.md, 07b82dc2);
out_of_sequence is left out, as adaptive routing makes it rise.
"""
CARD = {"rx_errors": 0.0, "rx_crc_errors": 0.0, "tx_errors": 0.0, "tx_carrier_errors": 0.0}
"""Dropped packets are not among them: a protocol nobody here speaks (LLDP) counts as dropped."""


@dataclass(frozen=True)
class Seen:
    """A port of which counters rose, in words, and whether faster than any healthy one."""

    node: Node
    port: RdmaPort
    words: str
    too_fast: bool


def rising(view: View, limits: Mapping[str, float], ports: Mapping[str, list[RdmaPort]]) -> Iterator[Seen]:
    """Ports of which one of these counters rose while the check ran."""
    for node in view.nodes:
        for port in ports.get(node.name, []):
            rose = verbs.rose(node, f"rdma:{port.name}")
            by = {name: rise for name, rise in rose.by.items() if name in limits}
            if by:
                fast = any(rise > limits[name] * rose.over_s for name, rise in by.items())
                words = ", ".join(f"{name} rose by {rise}" for name, rise in by.items())
                yield Seen(node, port, f"{words} within {rose.over_s:.1f} s", fast)


def told(view: View, seen: Iterator[Seen], wanted: str, fix: str, worst: Severity) -> Iterator[Finding]:
    """A finding for each; what is no faster than a healthy link may be is a note."""
    for one in seen:
        node = shlex.quote(one.node.name)
        port = f"/sys/class/infiniband/{twice_quoted(one.port.device)}/ports/{one.port.number}"
        yield Finding(
            f"{one.node.name} {one.port.name}",
            found=one.words,
            wanted=wanted,
            node=one.node.name,
            severity=view.at_most(worst if one.too_fast else "note"),
            fix=Fix(fix, commands=(f"ssh {node} grep -rs [1-9] {port}/counters {port}/hw_counters",)),
        )


@check(problems.LINK_FLAPPED, reads=READS, uses=USES)
def link_flapped(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """During the check itself: a job would have died of it."""
    view = verbs.view_of(cluster)
    yield from verbs.counted_once(view.nodes, {n for n, ports in view.main.items() if ports})
    ports = {n.name: view.allowed(n) for n in view.nodes}
    seen = rising(view, FLAPPED, ports)
    yield from told(view, seen, "a link that stays up", "cable, transceiver and switch port", "error")
    recovered = rising(view, {"link_error_recovery": 1.0}, view.main)
    flapped = {(s.node.name, s.port.name) for s in rising(view, FLAPPED, ports)}
    alone = (s for s in recovered if (s.node.name, s.port.name) not in flapped)
    yield from told(view, alone, "a link that needs no retraining", "cable and transceiver", "warning")


@check("symbol-errors", reads=READS, uses=USES, severity="warning")
def symbol_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    An RDMA port receives damaged symbols.

    Why: every one may cost a packet, which is sent again; the link works, and is slow and fragile.

    Fix: clean or change cable and transceiver.
    """
    view = verbs.view_of(cluster)
    seen = rising(view, SYMBOLS, view.main)
    yield from told(view, seen, "fewer than 10 a second", "clean or change cable and transceiver", "warning")


@check("receive-errors", reads=READS, uses=USES, severity="warning")
def receive_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    An RDMA port receives packets it must throw away.

    Why: they were damaged on the way or came faster than the port took them; each is sent again.

    Fix: cable, transceiver and switch port; look at the other end of the cable as well.
    """
    view = verbs.view_of(cluster)
    symbols = {(s.node.name, s.port.name) for s in rising(view, SYMBOLS, view.main) if s.too_fast}
    # Damaged symbols make damaged packets: one cable, one finding.
    seen = (s for s in rising(view, RECEIVED, view.main) if (s.node.name, s.port.name) not in symbols)
    yield from told(view, seen, "none while nothing is wrong", "cable, transceiver, both ends", "warning")


@check("transmit-discards", reads=READS, uses=USES, severity="warning")
def transmit_discards(cluster: Cluster) -> Iterator[Finding]:
    """
    An RDMA port throws packets away that it should send.

    Why: the receiver or a switch on the way takes no more; a slow node or a congested link holds all others.

    Fix: find who does not take packets: the port's peer, congestion control, a host that is slow to receive.
    """
    view = verbs.view_of(cluster)
    seen = rising(view, DISCARDED, view.main)
    yield from told(
        view, seen, "fewer than 100 a second", "look for a slow receiver or a hot link", "warning"
    )


@check("transport-retries", reads=READS, uses=USES, severity="warning")
def transport_retries(cluster: Cluster) -> Iterator[Finding]:
    """
    The RDMA transport has to send messages again.

    Why: packets are lost on the way or answers come too late; when retries run out the job dies (status 12).

    Fix: on RoCE flow control and ECN on every switch; on InfiniBand the cables; a receiver that is overrun.

    In logs: `Got completion ... status=12`, later.
    """
    view = verbs.view_of(cluster)
    seen = rising(view, RETRIED, view.main)
    yield from told(
        view, seen, "none on a sound fabric", "flow control (PFC, ECN), cables, receivers", "warning"
    )


@check("efa-underneath", reads=READS, uses=USES, severity="warning")
def efa_underneath(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    An EFA device, whose port is always ACTIVE, loses packets or peers.

    Why: EFA does not show its link in the port's state; what does not arrive is seen in its counters only.

    Fix: a security group that allows all traffic from and to itself, both ways; the same subnet and placement
    group; then the instance's health.
    """
    view = verbs.view_of(cluster)
    ports = {n.name: [p for p in n.rdma_ports if p.driver == "efa"] for n in view.nodes}
    yield from verbs.counted_once(view.nodes, {n for n, own in ports.items() if own})
    seen = rising(view, EFA, ports)
    yield from told(view, seen, "none", "let the security group allow itself, in and out", "warning")


def watched(cluster: Cluster, view: View) -> dict[str, set[str]]:
    """Node -> interfaces a job would use there: what NCCL and Gloo take, the best network, RoCE's."""
    best = paths.best(cluster)
    found = {}
    for node in cluster.nodes:
        names = {p.interface for p in picks.picks(cluster, node)}
        names |= {best.interfaces[node.name]} if best and node.name in best.interfaces else set()
        if "rdma_ports" not in node.unknown:
            names |= {p.netdev for p in view.main.get(node.name, []) if p.netdev}
        found[node.name] = names
    return found


@check(
    "interface-errors",
    reads=("interfaces",),
    uses=(*verbs.USES, *paths.USES, "rdma_ports", "rises"),
    severity="warning",
)
def interface_errors(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    A network interface has damaged packets, or lost its link, while the check ran.

    Why: a damaged packet is lost and sent again; a link that goes away ends RDMA connections and stalls TCP.

    Fix: cable, transceiver, duplex and switch port: `ethtool -S IFNAME`.
    """
    if cluster.is_local or len(cluster.nodes) < 2:
        return
    view = verbs.known_part(cluster)
    used = watched(cluster, view)
    yield from verbs.counted_once(cluster.nodes, {n for n, names in used.items() if names})
    for node in cluster.nodes:
        for name in sorted(used[node.name]):
            rose = verbs.rose(node, f"interface:{name}")
            by = {k: v for k, v in rose.by.items() if k in CARD}
            # Down and up again are two; a link that is down now is said by its own rule.
            flaps = rose.by.get("carrier_changes", 0)
            if by or flaps > 1:
                words = [f"{k} rose by {v}" for k, v in by.items()]
                words += [f"the link changed {flaps} times"] if flaps > 1 else []
                yield Finding(
                    f"{node.name} {name}",
                    found=f"{', '.join(words)} within {rose.over_s:.1f} s",
                    wanted="no damaged packet, and a link that stays up",
                    node=node.name,
                    subject=f"interface:{node.name}/{name}",
                    fix=Fix(
                        "look at cable, transceiver, duplex and switch port",
                        env=pins_elsewhere(cluster, node, name),
                        commands=(f"ssh {shlex.quote(node.name)} ethtool -S {twice_quoted(name)}",),
                    ),
                )


def ranks(cluster: Cluster) -> int:
    """Ranks of the job, as far as known."""
    own = [
        cluster.job.nproc or n.host.slots or (n.gpu_count if "gpu_count" not in n.unknown else 0) or 1
        for n in cluster.nodes
    ]
    return sum(own)


@check("backlog-overflow", reads=("socket_limits",), uses=("rises", "gpu_count"), severity="warning")
def backlog_overflow(cluster: Cluster) -> Iterator[Finding]:
    """
    The head node's queue of new connections is shorter than the job has ranks, or has just overflowed.

    Why: all ranks connect to the store at once; a connection for which there is no room is dropped and tried
    again after seconds, and some ranks say that the store timed out.

    Fix: `sysctl net.core.somaxconn=4096` on the first node.
    """
    first = cluster.first or (cluster.nodes[0].name if cluster.nodes else "")
    for node in cluster.nodes:
        if node.name != first or cluster.is_local or len(cluster.nodes) < 2:
            continue
        room, wanted = node.socket_limits.somaxconn, ranks(cluster)
        lost = verbs.rose(node, "tcp").by.get("ListenOverflows", 0)
        if (room and room < wanted) or lost:
            words = f"somaxconn {room}, {wanted} ranks"
            yield Finding(
                f"{node.name} somaxconn",
                found=words + (f"; {lost} connections were dropped during the check" if lost else ""),
                wanted=f"room for {few([str(max(4096, wanted))])} connections that wait",
                node=node.name,
                fix=Fix(
                    "a longer queue",
                    commands=(
                        f"ssh {shlex.quote(node.name)} sudo sysctl -w net.core.somaxconn={max(4096, wanted)}",
                    ),
                ),
            )
