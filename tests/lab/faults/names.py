"""What host names mean: on the host itself and on the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ..cluster import Lab
from .base import edited, fault


@contextlib.contextmanager
def named(lab: Lab, on: Sequence[str], name: str, address: str) -> Iterator[None]:
    """On the hosts `on`, `name` means `address`, or nothing when that is empty."""
    paths = [lab.host(host).etc("hosts") for host in on]
    with edited(*paths):
        for path in paths:
            rows = [line.split() for line in path.read_text().splitlines()]
            kept = [[row[0], *(word for word in row[1:] if word != name)] for row in rows if row]
            lines = [" ".join(row) for row in kept if len(row) > 1] + (
                [f"{address} {name}"] if address else []
            )
            path.write_text("".join(f"{line}\n" for line in lines))
        yield


def everyone(lab: Lab) -> list[str]:
    return [host.name for host in lab.hosts]


@fault("name-loopback")
def name_loopback(lab: Lab, host: str = "node0", of: str = "") -> Iterator[None]:
    """A host's own name (or the name `of`) resolves to 127.0.1.1 on it, as Debian's installer writes it."""
    with named(lab, [host], of or host, "127.0.1.1"):
        yield


@fault("name-docker0", docker0=True)
def name_docker0(lab: Lab, host: str = "node0", of: str = "") -> Iterator[None]:
    """A host's own name (or the name `of`) resolves to docker0's 172.17.0.1 on it."""
    with named(lab, [host], of or host, "172.17.0.1"):
        yield


@fault("name-dead")
def name_dead(lab: Lab, host: str = "node1", of: str = "node0", address: str = "") -> Iterator[None]:
    """On a host, the name `of` resolves to an unused address on the same network."""
    # Two below the gateway, which is the last: no lab counts up to there.
    nobody = address or lab.host(of).port(lab.names_switch).gateway.rpartition(".")[0] + ".252"
    with named(lab, [host], of, nobody):
        yield


@fault("name-unknown")
def name_unknown(lab: Lab, host: str = "node1", of: str = "node0") -> Iterator[None]:
    """A host cannot resolve the name `of`."""
    with named(lab, [host], of, ""):
        yield


@fault("own-name-unknown")
def own_name_unknown(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host cannot resolve its own name."""
    with named(lab, [host], host, ""):
        yield


@fault("names-unknown")
def names_unknown(lab: Lab, host: str = "") -> Iterator[None]:
    """A host (default: all) resolves no name but localhost; ssh still has addresses in its own config."""
    paths = [lab.host(name).etc("hosts") for name in ([host] if host else everyone(lab))]
    with edited(*paths):
        for path in paths:
            path.write_text("127.0.0.1 localhost\n::1 localhost\n")
        yield


@fault("name-ipv6-only")
def name_ipv6_only(lab: Lab, of: str = "node0") -> Iterator[None]:
    """The name `of` resolves to an IPv6 address everywhere, although the card has IPv4."""
    with contextlib.ExitStack() as stack:
        for position, host in enumerate(lab.hosts):
            address = f"fd00:99::{10 + position:x}/64 dev {host.port(lab.names_switch).name}"
            lab.sh(host, f"ip addr add {address} nodad")
            stack.callback(lab.sh, host, f"ip addr del {address}")
        own = lab.hosts.index(lab.host(of))
        stack.enter_context(named(lab, everyone(lab), of, f"fd00:99::{10 + own:x}"))
        yield
