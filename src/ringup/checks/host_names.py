"""Host names: the addresses of a node's own name on the node and on its peers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ringup.addresses import is_address, is_loopback
from ringup.checks.network_setup import listed, pins
from ringup.checks.paths import best
from ringup.checks.software import usual_elsewhere
from ringup.model import Cluster, Node, Resolution, once
from ringup.nccl.interface_choice import effective
from ringup.network import gloo
from ringup.rules import Finding, Severity, Skipped, at, check
from ringup.units import grouped, summarize_names

READS = ("own_name", "interfaces", "hostname")
SLOW_LOOKUP_S = 1.5
"""
Seconds that are reported if the other nodes are faster: TCPStore looks up every client that connects.

64 healthy hosts that share two CPUs take up to 1.3 s.
"""
DEAD_SERVER_S = 4.0
"""Seconds: a name server that does not answer costs 5 s per try (resolv.conf's default timeout)."""


def misnamed(
    cluster: Cluster, node: Node, found: str, wanted: str, severity: Severity, where: str = ""
) -> Finding:
    """The finding, with the line for the hosts file and the variable that replaces it."""
    network = best(cluster)
    address = network.addresses.get(node.name, "") if network else ""
    name, host = node.hostname or node.name, where or node.name
    return at(host, subject=f"name:{node.name}").finding(
        found=found,
        wanted=wanted,
        severity=severity,
        fix=f"give the name the node's address on the shared network in the hosts file of {host}: "
        f"`{address or 'ADDRESS'} {name}`; or set the interface, then names do not matter",
        run=f"getent ahosts {shlex.quote(name)}",
        env=pins(cluster),
    )


def own_name_fault(cluster: Cluster, node: Node) -> str:
    """The most specific rule that applies to a node's own name on the node itself; "" for none."""
    addresses = [a for a in node.own_name.addresses if is_address(a)]
    if not addresses:
        return "reverse-dns-slow" if node.own_name.is_late else "own-hostname-unresolvable"
    held = [a for a in addresses if gloo.owner(node, a) is not None]
    is_v6 = all(":" in a and not is_loopback(a) for a in addresses)
    if node.has_ipv4 and is_v6 and ipv4_named(cluster) - {node.name}:
        return "hostname-resolves-to-ipv6-only"
    if held and is_loopback(held[0]):
        return "hostname-resolves-to-loopback"
    if not held:
        loop = any(is_loopback(a) for a in addresses)
        return "hostname-resolves-to-loopback" if loop else "hostname-resolves-to-wrong-address"
    return ""


@once
def ipv4_named(cluster: Cluster) -> set[str]:
    firsts = ((n.name, n.own_name.addresses[0]) for n in cluster.nodes if n.own_name.addresses)
    return {name for name, a in firsts if is_address(a) and ":" not in a}


def knows_nothing(node: Node) -> bool:
    """Whether this node can resolve no name at all, not even its own."""
    others = any(r.addresses for r in node.peer_names if not is_address(r.name))
    return "peer_names" not in node.unknown and not node.own_name.addresses and not others


OWN_NAME = {
    # Debian's and Ubuntu's installers write 127.0.1.1 into /etc/hosts.
    "hostname-resolves-to-loopback": ("{host} is {own} on {node} itself", "an address that peers can reach"),
    "hostname-resolves-to-ipv6-only": (
        "{host} is only {own} on {node}",
        "an IPv4 address, as the peers' names have",
    ),
    "hostname-resolves-to-wrong-address": (
        "{host} is {own} on {node}, which is not one of its addresses",
        "an address of the node",
    ),
    "own-hostname-unresolvable": (
        "{node} cannot resolve its own name {host}{also}{error}",
        "an address that peers can reach",
    ),
}
"""Rule about a node's own name -> the problem, and the expected state."""


def own_name_rule(node: Node, cluster: Cluster, name: str) -> Iterator[Finding]:
    # A host name matters less if Gloo has its interface by a variable.
    pinned = effective(node, cluster.job.env).get("GLOO_SOCKET_IFNAME")
    if own_name_fault(cluster, node) != name:
        return
    if name == "hostname-resolves-to-wrong-address":
        alike = [n for n in cluster.nodes if n.hostname == node.hostname and n.name != node.name]
        if any(gloo.owner(other, a) for other in alike for a in node.own_name.addresses):
            return  # It is the address of another node with the same name: another rule reports that.
    words, wanted = OWN_NAME[name]
    own, also, error = ", ".join(node.own_name.addresses[:4]), "", ""
    if not own:
        also = "or the name of any other node" if knows_nothing(node) and node.peer_names else ""
        error = f": {node.own_name.error}" if node.own_name.error else ""
    found = words.format(host=node.hostname, own=own, node=node.name, also=also, error=error)
    yield misnamed(cluster, node, found, wanted, "note" if pinned else "error")


for _name in OWN_NAME:
    check(_name, reads=READS, scope="machines")(partial(own_name_rule, name=_name))


@check("hostname-unresolvable-from-peer", reads=(*READS, "peer_names"))
def hostname_unresolvable_from_peer(cluster: Cluster) -> Iterator[Finding]:
    """An alias that exists only in ssh's configuration is not a fault."""
    asked = [n for n in cluster.nodes if not knows_nothing(n)]
    own: dict[str, set[str]] = {}
    for node in cluster.nodes:
        for name in {node.name, node.hostname}:  # a name that two nodes share has no correct answer
            own[name] = set() if name in own else {a for a in node.own_name.addresses if is_address(a)}
    none: set[str] = set()
    views = grouped(
        (found.name, (place, found))
        for place in asked
        for found in place.peer_names
        if own.get(found.name, none).isdisjoint(found.addresses)
    )
    order = {n.name: k for k, n in enumerate(cluster.nodes)}
    for node in cluster.nodes:
        wrong: dict[str, list[str]] = {}
        places: set[str] = set()
        for name in dict.fromkeys((node.name, node.hostname)):
            for place, found in views.get(name, ()) if not is_address(name) else ():
                if place.name != node.name and (view := wrong_view(node, place, found)):
                    places.add(place.name)
                    wrong.setdefault(name, []).append(view)
        if wrong:
            words = listed(view for own in wrong.values() for view in own[:3])
            severity: Severity = "error" if node.name in wrong and is_own_name(node) else "note"
            where = min(places, key=order.__getitem__)
            one = misnamed(cluster, node, words, f"an address of {node.name}", severity, where)
            yield one if len(places) == 1 else replace(one, where=node.name, node=None)


def is_own_name(node: Node) -> bool:
    """Whether the user's name for the node is its host name, not an alias in ssh's configuration."""
    return node.name.split(".")[0].lower() == node.hostname.split(".")[0].lower()


def wrong_view(node: Node, place: Node, resolution: Resolution) -> str:
    addresses = [a for a in resolution.addresses if is_address(a)]
    if resolution.is_late:
        return ""  # The name may be known: `reverse-dns-slow` reports the slow resolver.
    if not addresses:
        if resolution.name != node.hostname and not is_own_name(node):
            return ""  # An alias of ssh; only ssh uses it.
        error = f" ({resolution.error})" if resolution.error else ""
        return f"{place.name} does not know {resolution.name}{error}"
    if set(addresses) & set(node.own_name.addresses):
        return ""  # Right or wrong, it is the node's own answer.
    if any(gloo.owner(node, a) is not None and not is_loopback(a) for a in addresses):
        return ""
    return f"{resolution.name} is {', '.join(addresses[:3])} on {place.name}, which {node.name} does not have"


@check("reverse-dns-slow", severity="warning")
def reverse_dns_slow(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    Looking up a name, or the name of a peer's address, takes long.

    Why: torch's TCPStore looks up every client that connects; a dead name server makes it look
    like a firewall: `client socket has timed out`.
    Fix: remove the dead name server from /etc/resolv.conf, or add `options timeout:1 attempts:1`.  A
    line in /etc/hosts for the plain address does not help.
    In logs: every connect takes 5 or 10 s, while raw TCP is fast.
    """
    asked = [n for n in cluster.nodes if "reverse_lookup_s" not in n.unknown]
    usual = usual_elsewhere([n.reverse_lookup_s for n in asked])
    elsewhere = {n.name: seconds for n, seconds in zip(asked, usual, strict=True)}
    for node in cluster.nodes:
        late = [r for r in (node.own_name, *node.peer_names) if not r.addresses and r.is_late]
        if late:
            # An abandoned lookup was slow; whether the name exists is unknown.
            names = [node.hostname if r is node.own_name else r.name for r in late]
            limit_s = max(r.took_s for r in late)
            if limit_s < SLOW_LOOKUP_S:
                yield Skipped("", node.name, f"name lookups were given up after {limit_s:.1f} s")
                continue
            yield at(node).finding(
                found=f"looking up {summarize_names(names, 3)} did not end within {limit_s:.1f} s; "
                "given up then",
                wanted="milliseconds",
                run=f"cat /etc/resolv.conf; time getent ahosts {shlex.quote(names[0])}",
            )
            continue
        if "reverse_lookup_s" in node.unknown:
            yield Skipped("", node.name, f"reverse_lookup_s: {node.unknown['reverse_lookup_s']}")
            continue
        forward = node.own_name.took_s
        if forward and not node.own_name.addresses:
            continue  # If the resolver does not even know the node itself, the finding names the node.
        slowest = max(node.reverse_lookup_s, forward)
        stands_out = node.reverse_lookup_s > max(SLOW_LOOKUP_S, 4 * elsewhere[node.name])
        if stands_out or slowest > DEAD_SERVER_S:
            what = "a reverse lookup" if slowest == node.reverse_lookup_s else "looking up its own name"
            found = f"{what} takes {slowest:.1f} s"
            yield at(node).finding(found=found, wanted="milliseconds", run="cat /etc/resolv.conf")
