"""The rendezvous port, and what earlier runs left behind."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from ringup import problems
from ringup.checks import paths
from ringup.checks.net import listed, opening
from ringup.checks.paths import Edge, routed
from ringup.facts import Cluster, Listener, Node, Process
from ringup.rules import Finding, Fix, Skipped, check
from ringup.units import printable, show_seconds, twice_quoted

DEFAULT_PORT = 29500
"""torch's default for --master-port; what every recipe uses."""


def wanted_port(cluster: Cluster) -> int:
    """The port the user insists on, else torch's default."""
    return cluster.job.port or DEFAULT_PORT


def described(process: Process) -> str:
    """A process in words: pid, user, age, command."""
    age = f", {show_seconds(process.age_s)} old" if process.age_s > 0 else ""
    return f"pid {process.pid} of {printable(process.user, 40)}{age}: {printable(process.command, 160)}"


def by_run(processes: Iterable[Process]) -> Iterator[str]:
    """The oldest of each run in words, and how many more that run has."""
    runs: dict[str, list[Process]] = {}
    for process in processes:
        runs.setdefault(process.run_id or str(process.pid), []).append(process)
    for same in runs.values():
        first = max(same, key=lambda process: process.age_s)
        more = f", and {len(same) - 1} more of that run" if len(same) > 1 else ""
        yield f"{described(first)} ({printable(first.evidence, 120)}){more}"


def holder(node: Node, port: int) -> Listener | None:
    """Who listens on a port of this node, the one with a visible owner first."""
    found = [li for li in node.listeners if li.port == port]
    return next((li for li in found if li.process), found[0] if found else None)


def orphans(node: Node) -> tuple[Process, ...]:
    """What earlier runs left: the probe also lists processes of jobs that are alive, and says so."""
    return tuple(p for p in node.leftovers if not p.evidence.startswith("running"))


def is_leftover(node: Node, listener: Listener) -> bool:
    """Whether the listener belongs to a run that `orphan-of-earlier-run` already names."""
    return (
        listener.process is not None
        and "leftovers" not in node.unknown
        and any(listener.process.pid == p.pid for p in orphans(node))
    )


@check(problems.PORT_IN_USE, reads=("listeners",), uses=("leftovers",))
def port_in_use(cluster: Cluster) -> Iterator[Finding]:
    """On the head only: nobody else listens there."""
    if not cluster.nodes or (cluster.first and cluster.nodes[0].name != cluster.first):
        return
    head, port = cluster.head, wanted_port(cluster)
    held = holder(head, port)
    stranger = any(
        li.stranger and li.dst == head.name and li.port == port and li.purpose == "rendezvous"
        for li in cluster.links
    )
    if held is not None and is_leftover(head, held):
        return
    if held is None and not stranger:
        return
    who = (
        described(held.process)
        if held and held.process
        else f"a process of {held.user or 'another user'} that cannot be seen"
        if held
        else "something that answers but cannot be seen"
    )
    commands = (f"ssh {shlex.quote(head.name)} \"sudo ss -ltnp 'sport = :{port}'\"",)
    yield Finding(
        f"{head.name} port {port}",
        found=f"held by {who}",
        wanted=f"port {port} free on the head node",
        node=head.name,
        subject=f"port:{port}",
        fix=Fix(
            "choose another port (`--env MASTER_PORT=29600`), or end that process if it is yours",
            commands=commands,
        ),
    )


@check("rendezvous-port-filtered", reads=("interfaces",), uses=("listeners", "ports"))
def rendezvous_port_filtered(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    The rendezvous port of the head node is closed to its peers, while other ports answer.

    Why: a filter on just this port; the head waits for ever, its peers say `timed out` after a
    minute, even where they were refused at once.

    Fix: another port, or open this one on the head node.

    In logs: `The client socket has timed out after 60000ms while trying to connect to (node0, 29500)`.
    """
    port = wanted_port(cluster)
    head = cluster.first or (cluster.nodes[0].name if cluster.nodes else "")
    yield from paths.untested(cluster)
    cluster = paths.tested(cluster)
    works = {(s, d, a) for (s, d, a), li in routed(cluster).items() if li.ok}
    lost: list[Edge] = []
    reached = set()
    for link in cluster.links:
        key = (link.src, link.dst, link.address)
        if link.purpose == "rendezvous" and link.dst == head and link.port == port and link.bound == "routed":
            if link.ok:
                reached.add(key)
            elif key in works and not link.stranger and link.error != "port held":
                lost.append(
                    Edge(
                        link.src,
                        link.dst,
                        link.dst_interface,
                        link.address,
                        "",
                        "filtered",
                        link.error,
                        (link.src, link.dst),
                        link.src_interface,
                    )
                )
    lost = [e for e in lost if (e.src, e.dst, e.address) not in reached]
    if lost:
        yield Finding(
            f"{head} port {port}",
            found=listed(f"{e.src} -> {e.address} port {port}: {e.error}" for e in lost)
            + "; other ports answer",
            wanted=f"port {port} open to every node, or another port",
            node=head,
            subject=f"port:{port}",
            fix=Fix(
                f"choose another port (`--env MASTER_PORT=29600`), or open {port} on {head}",
                commands=opening(cluster, lost),
            ),
        )


@check(problems.ORPHAN_OF_EARLIER_RUN, reads=("leftovers",), uses=("listeners",))
def orphan_of_earlier_run(cluster: Cluster) -> Iterator[Finding]:
    """One finding for a node, whatever the number of processes."""
    port = wanted_port(cluster)
    for node in cluster.nodes:
        left = orphans(node)
        if not left:
            continue
        held = holder(node, port) if "listeners" not in node.unknown else None
        holds = held is not None and is_leftover(node, held)
        words = listed(f"{described(p)} ({p.evidence})" if p.evidence else described(p) for p in left)
        pids = " ".join(str(p.pid) for p in left[:32])
        is_head = node.name == (cluster.first or cluster.nodes[0].name)
        yield Finding(
            node.name,
            found=words + (f"; holds port {port}" if holds else ""),
            wanted="no process of an earlier run",
            node=node.name,
            subject=f"port:{port}" if holds and is_head else "",
            severity="error" if holds and is_head else "warning",
            fix=Fix(
                "`ringup clean` lists them, `ringup clean --kill` ends what is provably a leftover",
                commands=(
                    f"ringup clean -H {shlex.quote(node.name)}",
                    f"ssh {shlex.quote(node.name)} ps -fp {twice_quoted(pids)}",
                ),
            ),
        )


@check("other-job-running", reads=("leftovers",), severity="note")
def other_job_running(cluster: Cluster) -> Iterator[Finding]:
    """
    Another job of the same user is running on a node.

    Why: two jobs share processors, GPUs and the network there; whoever measures or waits for memory
    should know.

    Fix: wait for it, or end it if it is not wanted any more.
    """
    for node in cluster.nodes:
        alive = [p for p in node.leftovers if p.evidence.startswith("running")]
        if alive:
            yield Finding(
                node.name,
                found=listed(by_run(alive)),
                wanted="nodes of one's own",
                node=node.name,
            )


@check("ports-reserved-or-ephemeral", reads=("ports",), severity="note")
def port_in_ephemeral_range(cluster: Cluster) -> Iterator[Finding]:
    """
    The rendezvous port lies in the range from which the kernel takes ports for outgoing connections.

    Why: some other connection may hold it at the wrong moment; a failure that comes and goes.

    Fix: a port below the range, or add it to `net.ipv4.ip_local_reserved_ports`.
    """
    port = cluster.job.port
    for node in cluster.nodes[:1]:
        ranges = node.ports
        inside = ranges.ephemeral_first <= port <= ranges.ephemeral_last
        if port and inside and port not in ranges.reserved and node.name == (cluster.first or node.name):
            yield Finding(
                f"{node.name} port {port}",
                found=f"{port} is within {ranges.ephemeral_first}-{ranges.ephemeral_last}",
                wanted=f"a port below {ranges.ephemeral_first}",
                node=node.name,
                fix=Fix(
                    "choose a port below the range, or reserve it",
                    commands=(
                        f"ssh {shlex.quote(node.name)} sudo sysctl net.ipv4.ip_local_reserved_ports={port}",
                    ),
                ),
            )
