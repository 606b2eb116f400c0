"""Addresses of peers that cannot be reached, though the interface is a sane one."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import hang
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story, is_link_local, is_loopback
from ringup.rules import Fix


def network_of(address: str) -> str:
    """
    The /24 an IPv4 address most likely stands in; "" for anything else.

    Logs do not print prefix lengths; two addresses of one /24 are taken for neighbours,
    two of different /16 for strangers.

    >>> network_of("10.12.5.64"), network_of("fe80::1")
    ('10.12.5', '')
    """
    try:
        return ".".join(str(ipaddress.IPv4Address(address)).split(".")[:3])
    except ValueError:
        return ""


@cause(problems.PEER_UNREACHABLE_ON_INTERFACE, passing=True)
def peer_unreachable_on_interface(story: Story) -> Iterator[Cause]:
    dialled = [e for e in story.all("nccl-connect", "gloo-connect") if _is_real_peer(e)]
    apart = _strangers(story)
    hard = [e for e in dialled if "retrying" not in e.text] or (dialled if not story.init_complete else [])
    if story.has("root-count", "root-info", "rank-checked-in"):
        # The root gave up over what the ranks told it: nobody listens at its address any more.
        hard = [
            e for e in hard if e["reason"] not in ("Connection refused", "Software caused connection abort")
        ]
    mesh = [
        e for e in story.all("gloo-mesh") if not story.has("gloo-remote", "gloo-connect", "gloo-loopback")
    ]
    lost = story.all("mpi-lost")
    foreign = story.all("no-common-subnet")
    if foreign:
        address = next((e["address"] for e in foreign if e["address"]), "NCCL_COMM_ID's address")
        yield seen(foreign, f"no interface here is in the network of {address}, which NCCL_COMM_ID names")
    elif hard:
        yield _unreachable(story, hard, apart)
    elif lost and not story.has("ssh-connect"):
        yield seen(lost, "mpirun lost its daemon on a node: no way back to the first node's address?", "low")
    elif mesh:
        yield seen(
            mesh,
            "Gloo cannot connect to a peer and does not say where: compare the addresses the hosts announce",
            "low",
        )
    elif apart and not story.init_complete:
        fix = _shared_fix(story)
        text = (
            "hosts bootstrap on addresses of different networks ("
            + ", ".join(
                f"{h.name} {h.bootstrap[0]} {h.bootstrap[1]}" for h in story.hosts.values() if h.bootstrap
            )
            + ") and nobody got past it"
        )
        sure = fix is not None or hang(story) is not None
        yield seen(
            [*apart, hang(story)],
            text,
            "medium" if sure else "low",
            severity=None if sure else "warning",
            fix=fix,
        )


def _is_real_peer(event: Event) -> bool:
    address = event["address"].strip("[]")
    return not is_link_local(address) and not is_loopback(address)


def _unreachable(story: Story, events: list[Event], apart: list[Event]) -> Cause:
    address = next((e["address"] for e in events if e["address"]), "")
    reason = next((e["reason"] or e["reason2"] for e in events if e["reason"] or e["reason2"]), "")
    speaker = events[0].host
    own = story.hosts.get(speaker)
    if own and address and address in [a for _, a in own.sockets.values()]:
        text = (
            f"{speaker} cannot connect to its own address {address}: look for the failure of "
            "its own service thread first"
        )
        return seen(events, text, "low")
    peer = next(
        (h for h in story.hosts.values() if address and h.bootstrap and h.bootstrap[1] == address), None
    )
    text = f"{address or 'a peer'} cannot be reached{f' from {speaker}' if speaker else ''}"
    if peer and peer.bootstrap:
        text += f"; it is what {peer.name} chose ({peer.bootstrap[0]})"
    if reason and reason != "Software caused connection abort":
        text += f": {reason.lower()}"
    sure = bool(address) and (
        bool(apart)
        or reason.lower() in ("no route to host", "network is unreachable", "connection timed out")
    )
    return seen(
        [*events, *apart],
        text,
        "high" if sure and len(events) > 0 and apart else "medium",
        fix=_shared_fix(story),
    )


def _strangers(story: Story) -> list[Event]:
    """Bootstrap lines of hosts whose addresses share not even a /16."""
    firsts: dict[str, Event] = {}
    for host in story.hosts.values():
        if host.bootstrap and network_of(host.bootstrap[1]):
            firsts[host.name] = host.events["bootstrap"][0]
    wide = {network_of(e["address"]).rsplit(".", 1)[0] for e in firsts.values()}
    return list(firsts.values()) if len(wide) > 1 else []


def _shared_fix(story: Story) -> Fix | None:
    """The interface of a network every host has an address in, where the lists show one."""
    names: dict[str, dict[str, str]] = defaultdict(dict)
    hosts = [h for h in story.hosts.values() if h.sockets]
    for host in hosts:
        for name, address in host.sockets.values():
            if network_of(address) and not is_loopback(address):
                names[network_of(address)].setdefault(host.name, name)
    shared = [v for v in names.values() if len(v) == len(hosts) > 1]
    if not shared:
        return None
    chosen = dict.fromkeys(shared[0].values())
    if len(chosen) == 1:
        value = next(iter(chosen))
        return Fix(
            f"NCCL_SOCKET_IFNAME={value} on every process (the network all hosts share)",
            env={"NCCL_SOCKET_IFNAME": value, "GLOO_SOCKET_IFNAME": value},
        )
    each = ", ".join(f"{host}: {name}" for host, name in shared[0].items())
    return Fix(f"NCCL_SOCKET_IFNAME = the interface of the network all hosts share ({each})")
