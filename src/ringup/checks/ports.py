"""The rendezvous port, and leftovers of earlier runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from ringup.checks import paths
from ringup.checks.network_setup import listed, opening
from ringup.checks.paths import Edge, routed
from ringup.model import DEFAULT_PORT, Cluster, Listener, Node, Process
from ringup.rules import Finding, Skipped, at, check, ssh
from ringup.units import grouped, printable, show_seconds


def wanted_port(cluster: Cluster) -> int:
    return cluster.job.port or DEFAULT_PORT


def described(process: Process) -> str:
    age = f", {show_seconds(process.age_s)} old" if process.age_s > 0 else ""
    return f"pid {process.pid} of {printable(process.user, 40)}{age}: {printable(process.command, 160)}"


def holder(node: Node, port: int) -> Listener | None:
    """The listener on a port of this node, preferably one with a visible owner."""
    found = [li for li in node.listeners if li.port == port]
    return next((li for li in found if li.process), found[0] if found else None)


def orphans(node: Node) -> tuple[Process, ...]:
    """Leftovers of earlier runs; the probe also lists processes of running jobs, with a mark."""
    return tuple(p for p in node.leftovers if not p.evidence.startswith("running"))


def is_leftover(node: Node, listener: Listener) -> bool:
    """Whether the listener belongs to a run that `orphan-of-earlier-run` already reports."""
    return listener.process is not None and listener.process.pid in {p.pid for p in orphans(node)}


@check("port-in-use", reads=("listeners",))
def port_in_use(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """On the head only: no other node listens there."""
    if node.name != cluster.head_name:
        return
    port = wanted_port(cluster)
    held = holder(node, port)
    stranger = any(
        li.stranger and li.dst == node.name and li.port == port and li.purpose == "rendezvous"
        for li in cluster.links
    )
    if is_leftover(node, held) if held else not stranger:
        return
    of = f" of {held.user or 'another user'}" if held else ""
    who = described(held.process) if held and held.process else f"a process{of} that this user cannot see"
    leave_out = "leave --master-port out: ringup takes a free port; or " if cluster.job.port else ""
    yield at(node, f"port {port}", subject=f"port:{port}").finding(
        found=f"held by {who}",
        wanted=f"port {port} free on the head node",
        fix=f"{leave_out}end that process if it is yours",
        run=f"sudo ss -ltnp 'sport = :{port}'",
    )


@check("rendezvous-port-filtered", reads=("interfaces",))
def rendezvous_port_filtered(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    The rendezvous port of the head node is closed to its peers, while other ports answer.

    Why: a filter on just this port; the head waits for ever, its peers report `timed out` after a minute,
    even if they were refused at once.
    Fix: use another port, or open this one on the head node.
    In logs: `The client socket has timed out after 60000ms while trying to connect to (node0, 29500)`.
    """
    port = wanted_port(cluster)
    head = cluster.head_name
    yield from paths.untested(cluster)
    cluster = paths.tested(cluster)
    tried = [li for li in cluster.links if li.purpose == "rendezvous" and li.bound == "routed"]
    to_port = [li for li in tried if (li.dst, li.port) == (head, port)]
    reached, others = {(li.src, li.dst, li.address) for li in to_port if li.ok}, routed(cluster)
    lost = []
    for li in to_port:
        ends, to, way = (li.src, li.dst), (li.dst_interface, li.address), (li.src, li.dst, li.address)
        is_answered = li.ok or li.stranger or li.error == "port held" or way in reached
        if not is_answered and way in others and others[way].ok:
            lost.append(Edge(*ends, *to, "", "filtered", li.error, ends, li.src_interface))
    if lost:
        yield at(head, f"port {port}", subject=f"port:{port}").finding(
            found=listed(f"{e.src} -> {e.address} port {port}: {e.error}" for e in lost)
            + "; other ports answer",
            wanted=f"port {port} open to every node, or another port",
            fix=f"another port (`ringup run --master-port {port + 1}`), or open {port} on {head}",
            commands=opening(cluster, lost),
        )


@check("orphan-of-earlier-run", reads=("leftovers",))
def orphan_of_earlier_run(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """One finding per node, whatever the number of processes."""
    port, left = wanted_port(cluster), orphans(node)
    if left:
        held = holder(node, port)
        holds = held is not None and is_leftover(node, held)
        words = listed(f"{described(p)} ({p.evidence})" if p.evidence else described(p) for p in left)
        pids = " ".join(str(p.pid) for p in left[:32])
        is_on_head = holds and node.name == cluster.head_name
        yield at(node, subject=f"port:{port}" if is_on_head else "").finding(
            found=words + (f"; holds port {port}" if holds else ""),
            wanted="no process of an earlier run",
            severity="error" if is_on_head else "warning",
            commands=(f"ringup clean -H {shlex.quote(node.name)}", ssh(node, f"ps -fp {shlex.quote(pids)}")),
        )


@check("other-job-running", reads=("leftovers",), severity="note")
def other_job_running(node: Node) -> Iterator[Finding]:
    """
    Another job of the same user is running on a node.

    Why: two jobs share CPUs, GPUs and the network there: measurements are wrong and memory may run out.
    Fix: wait for it, or end it if it is not wanted any more.
    """
    alive = [p for p in node.leftovers if p.evidence.startswith("running")]
    words = []
    for same in grouped((p.run_id or p.evidence.partition(";")[0], p) for p in alive).values():
        oldest = max(same, key=lambda process: process.age_s)
        how = "of that run" if oldest.run_id else "with that parent"
        more = f", and {len(same) - 1} more {how}" if len(same) > 1 else ""
        words.append(f"{described(oldest)} ({printable(oldest.evidence, 120)}){more}")
    if words:
        yield at(node).finding(found=listed(words), wanted="nodes that no other job uses")


@check("ports-reserved-or-ephemeral", reads=("ports",), severity="note")
def port_in_ephemeral_range(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    The rendezvous port lies in the range from which the kernel takes ports for outgoing connections.

    Why: another connection may use it at the wrong moment: the failure comes and goes.
    Fix: choose a port below the range, or add it to `net.ipv4.ip_local_reserved_ports`.
    """
    port, ranges = cluster.job.port, node.ports
    inside = ranges.ephemeral_first <= port <= ranges.ephemeral_last
    if port and inside and port not in ranges.reserved and node.name == cluster.head_name:
        kept = '"$(cat /proc/sys/net/ipv4/ip_local_reserved_ports)",' if ranges.reserved else ""
        yield at(node, f"port {port}").finding(
            found=f"{port} is within {ranges.ephemeral_first}-{ranges.ephemeral_last}",
            wanted=f"a port below {ranges.ephemeral_first}",
            run=f"sudo sysctl net.ipv4.ip_local_reserved_ports={kept}{port}",
        )
