"""Literal addresses, subnets, and the names that interfaces have."""

from __future__ import annotations

import functools
import ipaddress
import re

VIRTUAL_NAMES = re.compile(
    r"(?i)(?:docker|br-|veth|virbr|vnet|vmnet|vboxnet|vethernet|cni|cali|flannel|cilium|antrea|weave|ovs|kube"
    r"|nodelocaldns|nerdctl|podman|lxc|lxd|tailscale|vxlan|genev|dummy|tunl|ip6tnl|utun|zt"
    r"|(?:tun|tap|wg|sit|gre|gretap|ppp)(?:[-_\d]|$))"
)
"""Usual names of bridges, tunnels and the interfaces of containers."""


def has_virtual_name(interface: str) -> bool:
    """
    Whether an interface has a name that containers, virtual machines and tunnels usually have.

    >>> [has_virtual_name(name) for name in ("docker0", "tun0", "ib0", "green0")]
    [True, True, False, False]
    """
    return VIRTUAL_NAMES.match(interface) is not None


@functools.lru_cache(maxsize=65536)
def parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A literal address without its zone; IPv4 inside IPv6 as IPv4.  None for anything else."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return (found.ipv4_mapped if found.version == 6 else None) or found


def is_address(text: str) -> bool:
    return parsed(text) is not None


def is_loopback(address: str) -> bool:
    """
    Whether an address only reaches its own host; False for other text.

    >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("::ffff:127.0.0.1"), is_loopback("10.0.0.1")
    (True, True, True, False)
    """
    found = parsed(address)
    return found is not None and found.is_loopback


@functools.lru_cache(maxsize=65536)
def subnet(address: str, prefix_length: int) -> str:
    """The network of an address, as text; "" for other text."""
    try:
        return str(ipaddress.ip_network(f"{address}/{prefix_length}", strict=False))
    except ValueError:
        return ""


_network = functools.lru_cache(maxsize=65536)(ipaddress.ip_network)


@functools.lru_cache(maxsize=65536)
def within(address: str, network: str) -> bool:
    """Whether a subnet holds an address; False for "" and for other text."""
    try:
        net, own = _network(network), ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return own.version == net.version and own in net
