"""Clusters for tests: small builders, so that a case says only what is special about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ringup.model import (
    Address,
    Cluster,
    FileFact,
    Host,
    Interface,
    InterfaceKind,
    Interpreter,
    Job,
    Limits,
    Link,
    Node,
    Process,
    Resolution,
    Route,
    Space,
    Unreached,
    unreached_node,
)

GIB = 1024**3
TORCH = Interpreter("/opt/venv/bin/python", "3.11.7", "2.13.0", "13.0", "2.28.9")


def address(text: str) -> Address:
    """ "10.0.0.1/24" or "fe80::1/64" as an Address."""
    own, _, prefix = text.partition("/")
    v6 = ":" in own
    scope = (
        "link" if own.startswith("fe80") else "host" if own.startswith("127.") or own == "::1" else "global"
    )
    return Address(own, int(prefix or (64 if v6 else 24)), "inet6" if v6 else "inet", scope)


def interface(
    name: str, *addresses: str, index: int = 2, kind: InterfaceKind = "physical", up: bool = True, **more: Any
) -> Interface:
    """An interface, up and with carrier unless said otherwise."""
    more.setdefault("has_carrier", up)
    more.setdefault("mtu_bytes", 1500)
    return Interface(name, index, kind, is_up=up, addresses=tuple(address(a) for a in addresses), **more)


LO = interface("lo", "127.0.0.1/8", "::1/128", index=1, kind="loopback", mtu_bytes=65536)


def numbered(*interfaces: Interface) -> tuple[Interface, ...]:
    """lo and these, with the kernel's index in the order given."""
    return (LO, *(replace(i, index=k) for k, i in enumerate(interfaces, start=2)))


def node(name: str, *interfaces: Interface, own: str | None = None, **more: Any) -> Node:
    """
    A healthy node with these interfaces.

    `own` is what its host name resolves to on itself; by default the first interface's first address.
    """
    first = next((a.address for i in interfaces for a in i.usable_addresses), "")
    own = first if own is None else own
    defaults: dict[str, Any] = {
        "host": Host(name),
        "hostname": name,
        "boot_id": f"boot-{name}",
        "machine": "x86_64",
        "kernel": "6.8.0",
        "user": "ada",
        "cpu_count": 16,
        "own_name": Resolution(
            name, tuple(own.split()) if own else (), "" if own else "Name or service not known"
        ),
        "interfaces": numbered(*interfaces),
        "routes": (Route("default", interfaces[0].name if interfaces else "lo"),),
        "interpreter": TORCH,
        "torchrun_on_path": "/opt/venv/bin/torchrun",
        "limits": Limits(float("inf"), 65536),
        "shm": Space("/dev/shm", 64 * GIB, 60 * GIB),
        "tmp": Space("/tmp", 100 * GIB, 90 * GIB),
        "cache": Space("/home/ada/.cache/ringup", 100 * GIB, 90 * GIB),
        "chdir": FileFact("/home/ada/project", True),
        "script": FileFact("/home/ada/project/train.py", True, "ab" * 32, 2048),
        "answer_s": 0.8,
    }
    return Node(name=name, **{**defaults, **more})


def unreached(name: str, kind: Any, words: str = "ssh's own words") -> Node:
    """A node that could not be asked."""
    return unreached_node(Host(name), Unreached(kind, words))


def links(nodes: Sequence[Node], rendezvous: Iterable[int] = (29500, 29501, 29502)) -> tuple[Link, ...]:
    """
    Every node reaches every address of every peer, on every port tried.

    The source interface is the one in the same /24 (or /64), else the first.
    """
    found: list[Link] = []
    for src in nodes:
        for dst in nodes:
            if src.name == dst.name:
                continue
            for i in dst.interfaces:
                if i.kind == "loopback" or not (i.is_up and i.has_carrier):
                    continue
                for a in i.usable_addresses:
                    via = via_interface(src, a)
                    base = Link(src.name, dst.name, via, i.name, a.address, 40123, True, rtt_ms=0.2)
                    found.append(replace(base, large_packet_ok=True, mbyte_s=900.0))
                    found += [replace(base, port=p, purpose="ephemeral") for p in (35000, 47000, 58000)]
                    if dst is nodes[0]:
                        found += [replace(base, port=p, purpose="rendezvous") for p in rendezvous]
    return tuple(found)


def via_interface(src: Node, target: Address) -> str:
    """The interface of `src` that shares the target's network, else its first."""
    head = target.address.rpartition(":" if ":" in target.address else ".")[0]
    own = [i for i in src.interfaces if i.kind != "loopback" and i.usable_addresses]
    for i in own:
        if any(a.address.startswith(head) for a in i.usable_addresses):
            return i.name
    return own[0].name if own else ""


def cluster(*nodes: Node, broken: Iterable[tuple[str, str, str, str]] = (), **more: Any) -> Cluster:
    """
    A cluster in which everything works but what `broken` lists.

    Each entry is (src, dst, address of dst, error) with "*" for any; see `breaks`.
    """
    reached = [n for n in nodes if n.unreached is None]
    found = links(reached)
    for src, dst, target, error in broken:
        found = breaks(found, src, dst, target, error)
    given = {n.name: tuple(r for r in names_of(nodes) if r.name != n.name) for n in nodes}
    filled = tuple(n if n.unreached or n.peer_names else replace(n, peer_names=given[n.name]) for n in nodes)
    return Cluster(filled, more.pop("links", found), **more)


def names_of(nodes: Sequence[Node]) -> tuple[Resolution, ...]:
    """What a healthy resolver says of every node's name: its first address."""
    return tuple(
        Resolution(n.name, tuple(a.address for i in n.interfaces[1:2] for a in i.usable_addresses[:1]))
        for n in nodes
        if n.unreached is None
    )


LARGE = ("large message lost", "large answer lost")


def breaks(
    found: Iterable[Link], src: str, dst: str, target: str, error: str, ports: str = "all"
) -> tuple[Link, ...]:
    """
    The links with those that match failing with `error`.

    `ports` is "all", "high" (from 32768), or one port.  An MTU black hole breaks large messages only.
    """

    def hit(link: Link) -> bool:
        same = all(
            want in ("*", have) for want, have in ((src, link.src), (dst, link.dst), (target, link.address))
        )
        port = ports == "all" or (ports == "high" and link.port >= 32768) or str(link.port) == ports
        return same and port

    def broken(link: Link) -> Link:
        if error in LARGE:
            large = link.purpose == "interface"
            return replace(link, large_packet_ok=False, error=error, mbyte_s=None) if large else link
        return replace(link, ok=False, error=error, large_packet_ok=None, rtt_ms=None, mbyte_s=None)

    return tuple(broken(li) if hit(li) else li for li in found)


def healthy(count: int = 2, **more: Any) -> Cluster:
    """Nodes with one fast card and docker0, as most clusters are."""
    return cluster(*(plain(k) for k in range(count)), **more)


def plain(k: int, **more: Any) -> Node:
    """Node k of a healthy cluster: enp99s0 on 10.0.0.0/24 at 100 Gbit/s, docker0 as everywhere."""
    card = interface("enp99s0", f"10.0.0.{10 + k}/24", f"fe80::{10 + k}/64", speed_gbit_s=100.0)
    docker = interface("docker0", "172.17.0.1/16", kind="bridge", up=True, has_carrier=False)
    return node(f"node{k}", card, docker, **more)


def two_networks(k: int, first: str = "em1", **more: Any) -> Node:
    """Node k with a management card (10.12.5.x, 1 Gbit/s) before the fast one (90.91.33.x)."""
    slow = interface(first, f"10.12.5.{64 + k}/24", speed_gbit_s=100.0)
    fast = interface("enp99s0", f"90.91.33.{64 + k}/24", speed_gbit_s=100.0)
    return node(f"node{k}", slow, fast, **{"own": f"90.91.33.{64 + k}", **more})


def article_002(**more: Any) -> Cluster:
    """Hosts 90.91.33.64 and .65; node0 has em1 10.12.5.64 first and under its own name, out of reach."""
    fast = [interface("enp99s0", f"90.91.33.{64 + k}/24", speed_gbit_s=10.0) for k in (0, 1)]
    em1 = interface("em1", "10.12.5.64/24", speed_gbit_s=1.0)
    nodes = (node("node0", em1, fast[0], own="10.12.5.64"), node("node1", fast[1]))
    return cluster(*nodes, broken=[("node1", "node0", "10.12.5.64", "timed out")], **more)


def changed(base: Cluster, name: str, **fields: Any) -> Cluster:
    """The cluster with some facts of one node replaced."""
    return replace(base, nodes=tuple(replace(n, **fields) if n.name == name else n for n in base.nodes))


def process(pid: int = 4242, **more: Any) -> Process:
    """A stale rank."""
    defaults = {
        "user": "ada",
        "age_s": 7200.0,
        "command": "python train.py",
        "evidence": "parent gone",
    }
    return Process(pid=pid, **{**defaults, **more})


def job(**more: Any) -> Job:
    """A job of two ranks a node."""
    return Job(**{"script": "train.py", "chdir": "/home/ada/project", "nproc": 2, **more})
