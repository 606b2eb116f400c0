"""Cards, cables, addresses and routes."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from collections.abc import Iterator

from ..cluster import Lab
from ..wiring import TWO_CARDS, Nic
from .base import card, done_and_undone, fault, filtered, forget_neighbours
from .names import named

ARTICLE_002 = "90.91.33.64/24"
TWINS = (Nic("enp99s0", "10.0.0.10/24"), Nic("enp100s0", "10.0.0.110/24"))


@fault("article-002", net=ARTICLE_002)
def article_002(lab: Lab, host: str = "node0") -> Iterator[None]:
    """A host has a first card em1 10.12.5.64 that its own name resolves to; the gateway drops its packets."""
    own = lab.host(host)
    end = f"em1h{lab.hosts.index(own)}"
    # Number 4 is before every card that `wiring.plug` numbers.
    lab.fabric(f"ip link add {end} type veth peer name em1 index 4 netns {own.pid}; ip link set {end} up")
    try:
        lab.sh(own, "ip addr add 10.12.5.64/24 dev em1; ip link set em1 up")
        with named(lab, [own.name], own.name, "10.12.5.64"):
            yield
    finally:
        lab.fabric(f"ip link del {end}")


@fault("article-002-no-route", net=ARTICLE_002)
def article_002_no_route(lab: Lab, host: str = "node0", without: str = "node1") -> Iterator[None]:
    """As article-002, and `without` has no default route: "Network is unreachable" instead of no answer."""
    with article_002(lab, host), no_default_route(lab, without):
        yield


@fault("no-default-route")
def no_default_route(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host has no default route."""
    gateway = lab.host(host).port().gateway
    with done_and_undone(lab, host, "ip route del default", f"ip route add default via {gateway}"):
        yield


@fault("nic-down")
def nic_down(lab: Lab, host: str = "node1", nic: str | None = None) -> Iterator[None]:
    """A card is set down (nic: its name or switch, "ssh" for ssh's; default the first)."""
    port = card(lab, host, nic)
    up = f"ip link set {port.name} up; "
    if port.address6:  # the kernel forgets these, and the routes, of a card that goes down
        up += f"ip addr replace {port.address6} dev {port.name} nodad; "
    if port == lab.host(host).port():
        up += f"ip route replace default via {port.gateway}"
    with done_and_undone(lab, host, f"ip link set {port.name} down", up):
        yield


@fault("no-carrier")
def no_carrier(lab: Lab, host: str = "node1", nic: str | None = None) -> Iterator[None]:
    """A card's cable is unplugged at the switch: up, but no carrier."""
    end = card(lab, host, nic).fabric_end
    lab.fabric(f"ip link set {end} down")
    forget_neighbours(lab)
    try:
        yield
    finally:
        lab.fabric(f"ip link set {end} up")
        forget_neighbours(lab)


@fault("host-off")
def host_off(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host is off: no cable has a carrier, and its addresses do not answer."""
    with contextlib.ExitStack() as stack:
        for port in lab.host(host).ports:
            stack.enter_context(no_carrier(lab, host, port.name))
        yield


@fault("power-off")
def power_off(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host loses power: host-off, and every process is gone; it comes back with another boot id."""
    with host_off(lab, host):
        for process in lab.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        yield
        (lab.host(host).state / "boot_id").write_text(f"{uuid.uuid4()}\n")


@fault("loss")
def loss(lab: Lab, host: str = "node1", nic: str | None = None, percent: int = 5) -> Iterator[None]:
    """A card loses this share of its packets in each direction; by default the first card, perhaps ssh's."""
    name = card(lab, host, nic).name
    chance = f"numgen random mod 100 < {percent} drop"
    with filtered(lab, host, f"iifname {name} {chance}", f"oifname {name} {chance}"):
        yield


@fault("loss-ssh")
def loss_ssh(lab: Lab, host: str = "node1", every: int = 5) -> Iterator[None]:
    """The card that ssh uses loses every fifth packet in each direction: by count, so never all of a few."""
    name, lost = card(lab, host, "ssh").name, f"numgen inc mod {every} == 0 drop"
    with filtered(lab, host, f"iifname {name} {lost}", f"oifname {name} {lost}"):
        yield


@fault("mtu")
def mtu(lab: Lab, host: str = "node1", nic: str | None = None, size_bytes: int = 1500) -> Iterator[None]:
    """A card's MTU is 1500, whatever the others' is."""
    port = card(lab, host, nic)
    set_to = f"ip link set dev {port.name} mtu"
    with done_and_undone(lab, host, f"{set_to} {size_bytes}", f"{set_to} {port.mtu_bytes}"):
        yield


@fault("mtu-blackhole")
def mtu_blackhole(
    lab: Lab, host: str = "node1", nic: str | None = None, size_bytes: int = 1400
) -> Iterator[None]:
    """A card silently drops packets over 1400 bytes, in both directions; ping works."""
    name = card(lab, host, nic).name
    large = f"meta length > {size_bytes} drop"
    with filtered(lab, host, f"iifname {name} {large}", f"oifname {name} {large}"):
        yield


@fault("mtu-blackhole-ssh")
def mtu_blackhole_ssh(lab: Lab, host: str = "node1", size_bytes: int = 1400) -> Iterator[None]:
    """As mtu-blackhole, on the card that ssh uses: ssh hangs in its key exchange."""
    with mtu_blackhole(lab, host, "ssh", size_bytes):
        yield


@fault("mtu-blackhole-after-login")
def mtu_blackhole_after_login(
    lab: Lab, host: str = "node1", size_bytes: int = 1400, login_bytes: int = 9000
) -> Iterator[None]:
    """As mtu-blackhole, but each ssh connection's first 9000 bytes pass: only the first long answer hangs."""
    name = card(lab, host, "ssh").name
    rules = [
        f"tcp {way} 22 ct bytes < {login_bytes} accept\n{link} {name} meta length > {size_bytes} drop"
        for way, link in (("dport", "iifname"), ("sport", "oifname"))
    ]
    accounting = "/proc/sys/net/netfilter/nf_conntrack_acct"  # without it `ct bytes` is always 0
    with done_and_undone(lab, host, f"echo 1 > {accounting}", "true"), filtered(lab, host, *rules):
        yield


@fault("slow-nic")
def slow_nic(lab: Lab, host: str = "node1", nic: str | None = None, rate: str = "100mbit") -> Iterator[None]:
    """A card passes 100 Mbit/s in each direction."""
    port = card(lab, host, nic)
    shape = f"root tbf rate {rate} burst 32k latency 50ms"
    lab.fabric(f"tc qdisc add dev {port.fabric_end} {shape}")
    try:
        do, undo = f"tc qdisc add dev {port.name} {shape}", f"tc qdisc del dev {port.name} root"
        with done_and_undone(lab, host, do, undo):
            yield
    finally:
        lab.fabric(f"tc qdisc del dev {port.fabric_end} root")


@fault("duplicate-address")
def duplicate_address(
    lab: Lab, host: str = "node1", of: str = "node0", nic: str | None = None
) -> Iterator[None]:
    """A host also has the address of another."""
    port, other = card(lab, host, nic), card(lab, of, nic)
    address = f"{other.address}/{other.prefix_bits} dev {port.name}"
    with done_and_undone(lab, host, f"ip addr add {address}", f"ip addr del {address}"):
        forget_neighbours(lab)
        yield
    forget_neighbours(lab)


@fault("strict-twins", nics=TWINS, mgmt="192.168.50.10/24", names="mgmt")
def strict_twins(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host with two cards in one subnet filters strictly by reverse path."""
    files = " ".join(f"/proc/sys/net/ipv4/conf/{n}/rp_filter" for n in ("all", "enp99s0", "enp100s0"))
    strict, loose = (f"echo {value} | tee {files} >/dev/null" for value in (1, 0))
    with done_and_undone(lab, host, strict, loose):
        yield


@fault("asym-route", nics=TWO_CARDS)
def asym_route(lab: Lab, host: str = "node0", peer: str = "node1", nic: str = "ib0") -> Iterator[None]:
    """A host filters strictly by reverse path, and its route to a peer's second card uses its first."""
    own, other = lab.host(host).port(), card(lab, peer, nic)
    route = f"{other.address}/32 dev {own.name}"
    names = ("all", own.name, lab.host(host).port(nic).name)
    files = " ".join(f"/proc/sys/net/ipv4/conf/{name}/rp_filter" for name in names)
    strict, loose = (f"echo {value} | tee {files} >/dev/null" for value in (1, 0))
    with done_and_undone(lab, host, f"ip route add {route}; {strict}", f"{loose}; ip route del {route}"):
        yield
