"""
Which address Gloo announces on a node, and which of two nodes opens the connection.

torch `ProcessGroupGloo::createDefaultDevice` and gloo `transport/tcp/device.cc`, `pair.cc`
(torch 2.0 to 2.13).  Like NCCL it never asks whether a peer can reach that address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from ringup.facts import Interface, Job, Node
from ringup.nccl.choice import Choice, addresses, effective

LOOPBACK = "127.0.0.1"


def announced(node: Node, env: Mapping[str, str]) -> tuple[Choice, ...]:
    """
    The addresses this node's ranks tell their peers, nothing when Gloo finds none.

    More than one only where GLOO_SOCKET_IFNAME is a list (torch opens a device for each).
    `env` is what will be set beyond what the node's shell already has.
    """
    named = effective(node, env).get("GLOO_SOCKET_IFNAME", "")
    if len(named) > 1:
        return _by_name(node, named)
    for address in node.own_name.addresses:
        interface = owner(node, address)
        # Gloo takes the first address of the host name that it can bind: one the node owns.
        if interface is not None:
            because = f"the node's own name {node.hostname} resolves to it"
            return (Choice(interface.name, address, because),)
    what = node.own_name.error or "no address of its own"
    because = f"the node's own name {node.hostname} gives {what}: loopback is all that is left"
    because += " unless one comes later" if node.own_name.is_late else ""
    return (Choice("lo", LOOPBACK, because),)


def by_job(job: Job, node: Node, env: Mapping[str, str]) -> tuple[Choice, ...]:
    """
    The addresses that the job's own ranks tell their peers by Gloo; none where they do not use it.

    JAX uses Gloo on CPUs alone, and gives it no interface: only the host name counts then
    (jax 0.10 `xla_bridge.make_cpu_client`).
    """
    if job.launcher != "jax":
        return announced(node, env)
    on_gpus = "gpu_count" not in node.unknown and node.gpu_count > 0
    return () if on_gpus else announced(node, {**env, "GLOO_SOCKET_IFNAME": ""})


def _by_name(node: Node, named: str) -> tuple[Choice, ...]:
    """The first address of each interface named exactly; nothing at all when one of them has none."""
    found = []
    for name in named.split(","):
        interface = node.interface(name)
        first = next(addresses([interface], "", ()), None) if interface else None
        if first is None:
            return ()
        found.append(Choice(name, first[1].address, f"GLOO_SOCKET_IFNAME={named}"))
    return tuple(found)


def owner(node: Node, address: str) -> Interface | None:
    """The interface of this node that holds an address (all of 127.0.0.0/8 is loopback's), or None."""
    try:
        wanted = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    text = str(wanted)
    for interface in node.interfaces:
        if interface.kind == "loopback" and wanted.is_loopback:
            return interface
        # The kernel writes addresses in their canonical form, as `str` does.
        if any(a.address == text for a in interface.addresses):
            return interface
    return None


def differs(node: Node, env: Mapping[str, str], address: str) -> str:
    """Why Gloo, left alone, would not announce `address` on this node; "" when it would."""
    found = announced(node, env)
    if not found:
        named = effective(node, env).get("GLOO_SOCKET_IFNAME", "")
        return f"Gloo finds no address for GLOO_SOCKET_IFNAME={named} on {node.name}"
    if [c.address for c in found] == [address]:
        return ""
    chosen = found[0]
    return f"Gloo alone announces {chosen.interface} {chosen.address}: {chosen.because}"
