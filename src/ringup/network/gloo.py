"""
The address that Gloo announces on a node, and which of two nodes opens the connection.

torch `ProcessGroupGloo::createDefaultDevice` and gloo `transport/tcp/device.cc`, `pair.cc` (torch 2.0 to
2.13).  Like NCCL, Gloo never checks whether a peer can reach that address.
"""

from __future__ import annotations

from collections.abc import Mapping

from ringup.addresses import is_loopback, parsed
from ringup.model import Interface, Node
from ringup.nccl.interface_choice import Choice, addresses, effective

LOOPBACK = "127.0.0.1"


def announced(node: Node, env: Mapping[str, str]) -> tuple[Choice, ...]:
    """The announced addresses: several if GLOO_SOCKET_IFNAME is a list, none if one of these has none."""
    named = effective(node, env).get("GLOO_SOCKET_IFNAME", "")
    if len(named) > 1:
        found = []
        for name in named.split(","):  # exact names, or labels of addresses; the first address of each
            known = ((i, a) for i, a in addresses(node.interfaces, "", ()) if name == (a.label or i.name))
            if (first := next(known, None)) is None:
                return ()
            found.append(Choice(first[0].name, first[1].address, f"GLOO_SOCKET_IFNAME={named}", by_gloo=True))
        return tuple(found)
    for address in node.own_name.addresses:
        interface = owner(node, address)
        # Gloo takes the first address of the host name that it can bind: one that the node has.
        if interface is not None:
            because = f"the node's own name {node.hostname} resolves to it"
            return (Choice(interface.name, address, because, by_gloo=True),)
    what = node.own_name.error or "no address of its own"
    because = f"the node's own name {node.hostname} gives {what}: loopback is all that is left"
    because += " unless one comes later" if node.own_name.is_late else ""
    return (Choice("lo", LOOPBACK, because, by_gloo=True),)


def owner(node: Node, address: str) -> Interface | None:
    """The interface of this node with an address (all of 127.0.0.0/8 belongs to loopback), or None."""
    found = parsed(address)
    wanted = str(found)  # the kernel also writes addresses in their canonical form
    for interface in node.interfaces if found else ():
        is_own = interface.kind == "loopback" and is_loopback(address)
        if is_own or any(a.address == wanted for a in interface.addresses):
            return interface
    return None
