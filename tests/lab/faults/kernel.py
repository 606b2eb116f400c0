"""What a host's kernel tells of its cards and allows its sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..cluster import Lab
from .base import card, done_and_undone, fault
from .rdma import counting

SYSCTL = "/proc/sys/net"


@contextlib.contextmanager
def telling(lab: Lab, host: str, path: str, text: str) -> Iterator[str]:
    """A file of /proc or /sys says something else; yields the file that stands in its place."""
    # Below one name each, as two may be there at a time.
    own = f"/run/instead{path.replace('/', '_')}"
    do = f"echo {text} > {own}; mount --bind {own} {path}"
    with done_and_undone(lab, host, do, f"umount -l {path}; rm {own}"):
        yield own


@contextlib.contextmanager
def allowing(lab: Lab, host: str, name: str, value: str) -> Iterator[None]:
    """A setting of the host's network namespace."""
    path = f"{SYSCTL}/{name}"
    before = lab.sh(host, f"cat {path}").strip()
    with done_and_undone(lab, host, f"echo '{value}' > {path}", f"echo '{before}' > {path}"):
        yield


@fault("half-duplex")
def half_duplex(lab: Lab, host: str = "node1", nic: str | None = None) -> Iterator[None]:
    """A card reports half duplex."""
    with telling(lab, host, f"/sys/class/net/{card(lab, host, nic).name}/duplex", "half"):
        yield


@fault("crc-errors")
def crc_errors(lab: Lab, host: str = "node1", nic: str | None = None, step: int = 3) -> Iterator[None]:
    """A card counts damaged packets; the count rises every twentieth of a second."""
    path = f"/sys/class/net/{card(lab, host, nic).name}/statistics/rx_crc_errors"
    with telling(lab, host, path, "00000000") as own, counting(lab, host, {own: step}):
        yield


@fault("conntrack-full")
def conntrack_full(lab: Lab, host: str = "node1") -> Iterator[None]:
    """The connection tracking table is almost full: 65,530 of 65,536 entries."""
    folder = f"{SYSCTL}/netfilter/nf_conntrack"
    with telling(lab, host, f"{folder}_count", "65530"), telling(lab, host, f"{folder}_max", "65536"):
        yield


@fault("short-backlog")
def short_backlog(lab: Lab, host: str = "node0", length: int = 12) -> Iterator[None]:
    """Only `length` connections (default: 12) may wait to be accepted."""
    with allowing(lab, host, "core/somaxconn", str(length)):
        yield


@fault("small-buffers")
def small_buffers(lab: Lab, host: str = "node1", most_bytes: int = 212992) -> Iterator[None]:
    """The kernel limits a connection's buffers to 208 KiB."""
    with (
        allowing(lab, host, "ipv4/tcp_rmem", f"4096 131072 {most_bytes}"),
        allowing(lab, host, "ipv4/tcp_wmem", f"4096 16384 {most_bytes}"),
    ):
        yield
