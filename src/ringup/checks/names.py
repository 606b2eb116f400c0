"""Host names: what a node's own name means on itself and on its peers."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Iterator, Mapping
from functools import lru_cache
from statistics import median_low

from ringup import gloo, problems
from ringup.checks.net import listed, pins
from ringup.checks.paths import best
from ringup.facts import Cluster, Node, Resolution
from ringup.nccl.choice import effective
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, Skipped, check
from ringup.units import twice_quoted

READS = ("own_name", "interfaces", "hostname")
USES = ("environment", "nccl_conf", "peer_names", "fqdn")
SLOW_LOOKUP_S = 1.5
"""
Worth a word when the others are faster: TCPStore looks up every client that connects.

64 hosts that share two processors take up to 1.3 s with nothing wrong.
"""
DEAD_SERVER_S = 4.0
"""A name server that does not answer costs 5 s a try (resolv.conf's default time-out)."""


@lru_cache(maxsize=65536)
def is_address(text: str) -> bool:
    """Whether a name is a literal address."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


@lru_cache(maxsize=65536)
def is_loopback(address: str) -> bool:
    return is_address(address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback


@lru_cache(maxsize=65536)
def family(address: str) -> int:
    return ipaddress.ip_address(address.partition("%")[0]).version


def severity_of(cluster: Cluster, node: Node) -> Severity:
    """A name matters less where Gloo is told its interface."""
    pinned = effective(node, cluster.job.env).get("GLOO_SOCKET_IFNAME")
    return "note" if pinned else "error"


def applies(cluster: Cluster) -> bool:
    return len(cluster.nodes) > 1 and not cluster.is_local


def repaired(cluster: Cluster, node: Node, where: str | None = None) -> Fix:
    """The line that the hosts file should have, and the variable that makes it unnecessary."""
    network = best(cluster)
    address = network.addresses.get(node.name, "") if network else ""
    line = f"{address or 'ADDRESS'} {node.hostname or node.name}"
    return Fix(
        f"give the name the node's address on the shared network in the hosts file of {where or node.name}: "
        f"`{line}`; or set the interface, then names do not matter",
        env=pins(cluster),
        commands=(
            f"ssh {shlex.quote(where or node.name)} getent ahosts {twice_quoted(node.hostname or node.name)}",
        ),
    )


def own_name_fault(cluster: Cluster, node: Node) -> str:
    """
    What is wrong with a node's own name on the node itself: the one most exact name, "" if nothing.

    Each is the name of a rule here but "virtual", which is a matter of interfaces.
    """
    addresses = [a for a in node.own_name.addresses if is_address(a)]
    if not addresses:
        return "reverse-dns-slow" if node.own_name.is_late else "own-hostname-unresolvable"
    held = [a for a in addresses if gloo.owner(node, a) is not None]
    has_ipv4 = any(
        a.family == "inet" for i in node.interfaces if i.kind != "loopback" for a in i.usable_addresses
    )
    if (
        has_ipv4
        and peers_use_ipv4(cluster, node)
        and all(family(a) == 6 and not is_loopback(a) for a in addresses)
    ):
        return "hostname-resolves-to-ipv6-only"
    if held and is_loopback(held[0]):
        return "hostname-resolves-to-loopback"
    if not held:
        loop = any(is_loopback(a) for a in addresses)
        return "hostname-resolves-to-loopback" if loop else "hostname-resolves-to-wrong-address"
    return ""


def peers_use_ipv4(cluster: Cluster, node: Node) -> bool:
    """Whether some other node's own name has an IPv4 address first."""
    firsts = (p.own_name.addresses[0] for p in cluster.nodes if p.name != node.name and p.own_name.addresses)
    return any(is_address(a) and family(a) == 4 for a in firsts)


def own(cluster: Cluster, fault: str) -> Iterator[Node]:
    """The nodes whose own name has this fault."""
    if applies(cluster):
        for node in cluster.nodes:
            if own_name_fault(cluster, node) == fault:
                yield node


@check(problems.HOSTNAME_RESOLVES_TO_LOOPBACK, reads=READS, uses=USES)
def hostname_resolves_to_loopback(cluster: Cluster) -> Iterator[Finding]:
    """Debian's and Ubuntu's installers write 127.0.1.1 into /etc/hosts."""
    for node in own(cluster, "hostname-resolves-to-loopback"):
        yield Finding(
            node.name,
            found=f"{node.hostname} is {', '.join(node.own_name.addresses[:4])} on {node.name} itself",
            wanted="an address that the peers reach",
            node=node.name,
            subject=f"name:{node.name}",
            severity=severity_of(cluster, node),
            fix=repaired(cluster, node),
        )


@check("hostname-resolves-to-ipv6-only", reads=READS, uses=USES)
def hostname_resolves_to_ipv6_only(cluster: Cluster) -> Iterator[Finding]:
    """
    A node's own name has only an IPv6 address while its peers' names have IPv4 ones.

    Why: Gloo compares the addresses of both ends and gives up on two families.

    Fix: an IPv4 address for the name, or `GLOO_SOCKET_IFNAME` on every node.

    In logs: `ss1.ss_family == ss2.ss_family. 2 vs 10`.
    """
    for node in own(cluster, "hostname-resolves-to-ipv6-only"):
        yield Finding(
            node.name,
            found=f"{node.hostname} is only {', '.join(node.own_name.addresses[:4])} on {node.name}",
            wanted="an IPv4 address, as the peers' names have",
            node=node.name,
            subject=f"name:{node.name}",
            severity=severity_of(cluster, node),
            fix=repaired(cluster, node),
        )


@check("hostname-resolves-to-wrong-address", reads=READS, uses=USES)
def hostname_resolves_to_wrong_address(cluster: Cluster) -> Iterator[Finding]:
    """
    A node's own name gives an address that none of its interfaces has.

    Why: Gloo cannot bind it and falls back to loopback; c10d's rendezvous takes the node for another.

    Fix: the node's own address in its hosts file or DNS, or `GLOO_SOCKET_IFNAME`.

    In logs: `Unable to resolve hostname to a (local) address. Using the loopback address as fallback`.
    """
    for node in own(cluster, "hostname-resolves-to-wrong-address"):
        if is_anothers_name(cluster, node):
            continue  # two of one name are said to be that
        yield Finding(
            node.name,
            found=f"{node.hostname} is {', '.join(node.own_name.addresses[:4])} on {node.name}, "
            "which is no address of its own",
            wanted="an address of the node",
            node=node.name,
            subject=f"name:{node.name}",
            severity=severity_of(cluster, node),
            fix=repaired(cluster, node),
        )


def is_anothers_name(cluster: Cluster, node: Node) -> bool:
    """Whether another node has the same name, and the address it means."""
    return any(
        other.hostname == node.hostname and any(gloo.owner(other, a) for a in node.own_name.addresses)
        for other in cluster.nodes
        if other.name != node.name and "hostname" not in other.unknown
    )


@check("own-hostname-unresolvable", reads=READS, uses=USES)
def own_hostname_unresolvable(cluster: Cluster) -> Iterator[Finding]:
    """
    A node does not know its own name.

    Why: torch's launcher asks for it and dies; Gloo falls back to loopback, where no peer finds it.

    Fix: the name in the node's hosts file with its address on the shared network, or
    `GLOO_SOCKET_IFNAME`.

    In logs: `socket.gaierror: [Errno -3] Temporary failure in name resolution`, with no name in it.
    """
    for node in own(cluster, "own-hostname-unresolvable"):
        also = ", nor the name of any other node" if knows_nothing(node) and node.peer_names else ""
        yield Finding(
            node.name,
            found=f"{node.name} does not know its own name {node.hostname}{also}"
            + (f": {node.own_name.error}" if node.own_name.error else ""),
            wanted="an address that the peers reach",
            node=node.name,
            subject=f"name:{node.name}",
            severity=severity_of(cluster, node),
            fix=repaired(cluster, node),
        )


def knows_nothing(node: Node) -> bool:
    """Whether no name at all is known on this node, its own included."""
    if "peer_names" in node.unknown:
        return False
    others = [r for r in node.peer_names if not is_address(r.name)]
    return not node.own_name.addresses and not any(r.addresses for r in others)


@check(
    problems.HOSTNAME_UNRESOLVABLE_FROM_PEER,
    reads=(*READS, "peer_names"),
    uses=("environment", "nccl_conf", "fqdn"),
)
def hostname_unresolvable_from_peer(cluster: Cluster) -> Iterator[Finding]:
    """A name that is an alias in ssh's configuration alone, known nowhere, is nobody's fault."""
    if not applies(cluster):
        return
    places = [p for p in cluster.nodes if not knows_nothing(p)]
    seen = {p.name: {r.name: r for r in p.peer_names} for p in places}
    for node in cluster.nodes:
        wrong: dict[str, list[str]] = {}
        where = []
        for place in places:
            views = wrong_views(node, place, seen[place.name]) if place.name != node.name else []
            where += [place.name] * bool(views)
            for words, label in views:
                wrong.setdefault(label, []).append(words)
        if not wrong:
            continue
        written = node.name in wrong
        words_all = [w for label in sorted(wrong, key=lambda n: n != node.name) for w in wrong[label][:3]]
        yield Finding(
            where[0] if len(where) == 1 else node.name,
            found=listed(words_all),
            wanted=f"an address of {node.name}",
            node=where[0] if len(where) == 1 else None,
            subject=f"name:{node.name}",
            severity="error" if written and is_own_name(node) else "note",
            fix=repaired(cluster, node, where[0]),
        )


def is_own_name(node: Node) -> bool:
    """Whether the user's word for the node is what the node calls itself, and not ssh's alias."""
    return node.name.split(".")[0].lower() == node.hostname.split(".")[0].lower()


def wrong_views(node: Node, place: Node, seen: Mapping[str, Resolution]) -> list[tuple[str, str]]:
    """What is wrong with this node's names as seen on `place`, in words, and the name."""
    found = []
    for name in dict.fromkeys((node.name, node.hostname)):
        if name in seen and not is_address(name):
            words = wrong_view(node, place, seen[name])
            if words:
                found.append((words, name))
    return found


def wrong_view(node: Node, place: Node, seen: Resolution) -> str:
    addresses = [a for a in seen.addresses if is_address(a)]
    if seen.is_late:
        return ""  # It may be known all the same: `reverse-dns-slow` says it of the place.
    if not addresses:
        if seen.name != node.hostname and not is_own_name(node):
            return ""  # ssh's alias; nothing but ssh uses it.
        error = f" ({seen.error})" if seen.error else ""
        return f"{place.name} does not know {seen.name}{error}"
    if set(addresses) & set(node.own_name.addresses):
        return ""  # Wrong or right, it is what the node says of itself.
    if any(gloo.owner(node, a) is not None and not is_loopback(a) for a in addresses):
        return ""
    return f"{seen.name} is {', '.join(addresses[:3])} on {place.name}, which {node.name} does not have"


def late_names(node: Node) -> list[str]:
    """Names for which this node's resolver had no answer when time was up, its own first."""
    own = [node.hostname] if "own_name" not in node.unknown and node.own_name.is_late else []
    others = node.peer_names if "peer_names" not in node.unknown else ()
    return own + [r.name for r in others if r.is_late and r.name not in own]


def unanswered(node: Node, late: list[str]) -> Finding:
    """A look-up that was given up says that it is slow, and not that the name is unknown."""
    limit_s = max(r.took_s for r in (node.own_name, *node.peer_names) if r.is_late)
    shown = few(late, 3)
    look = shlex.quote(f"cat /etc/resolv.conf; time getent ahosts {shlex.quote(late[0])}")
    return Finding(
        node.name,
        found=f"looking up {shown} did not end within {limit_s:.1f} s; it was not waited for any longer",
        wanted="milliseconds",
        node=node.name,
        fix=Fix(
            "remove the name server that does not answer, or write the names into /etc/hosts",
            commands=(f"ssh {shlex.quote(node.name)} {look}",),
        ),
    )


@check("reverse-dns-slow", reads=(), uses=("reverse_lookup_s", "own_name", "peer_names"), severity="warning")
def reverse_dns_slow(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    Looking up a name, or the name of a peer's address, takes long.

    Why: torch's TCPStore looks up every client that connects; a dead name server makes it look
    like a firewall: `client socket has timed out`.

    Fix: remove the dead name server from /etc/resolv.conf, or add `options timeout:1 attempts:1`.  A
    line in /etc/hosts for the plain address does not help.

    In logs: every connect takes 5 or 10 s, while raw TCP is fast.
    """
    for node in cluster.nodes:
        late = late_names(node)
        if late:
            yield unanswered(node, late)
            continue
        if "reverse_lookup_s" in node.unknown:
            yield Skipped("", node.name, f"reverse_lookup_s: {node.unknown['reverse_lookup_s']}")
            continue
        forward = node.own_name.took_s if "own_name" not in node.unknown else 0.0
        if forward and not node.own_name.addresses:
            continue  # A resolver that knows not even the node itself is named for that.
        slowest = max(node.reverse_lookup_s, forward)
        others = [
            n.reverse_lookup_s
            for n in cluster.nodes
            if n.name != node.name and "reverse_lookup_s" not in n.unknown
        ]
        usual = median_low(others) if others else 0.0
        stands_out = node.reverse_lookup_s > max(SLOW_LOOKUP_S, 4 * usual)
        if stands_out or slowest > DEAD_SERVER_S:
            what = "a reverse look-up" if slowest == node.reverse_lookup_s else "looking up its own name"
            yield Finding(
                node.name,
                found=f"{what} takes {slowest:.1f} s",
                wanted="milliseconds",
                node=node.name,
                fix=Fix(
                    "remove the name server that does not answer",
                    commands=(f"ssh {shlex.quote(node.name)} cat /etc/resolv.conf",),
                ),
            )
