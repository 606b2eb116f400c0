"""Firewalls: a port, all ports but one, one direction, everything."""

from __future__ import annotations

from collections.abc import Iterator

from ..cluster import Lab
from .base import NEW_TCP, fault, filtered


@fault("fw-ports")
def fw_ports(lab: Lab, host: str = "node0", ports: str = "29500") -> Iterator[None]:
    """A host drops connections to these ports (nft set: "29500" or "29500, 40000-50000")."""
    with filtered(lab, host, f"tcp dport {{ {ports} }} drop"):
        yield


@fault("fw-reject")
def fw_reject(lab: Lab, host: str = "node0", ports: str = "29500") -> Iterator[None]:
    """A host answers connections to these ports with a TCP reset."""
    with filtered(lab, host, f"tcp dport {{ {ports} }} reject with tcp reset"):
        yield


@fault("fw-highports")
def fw_highports(lab: Lab, host: str = "node0", ports: str = "29500") -> Iterator[None]:
    """A host drops connections to every port but ssh's and these: "only the port I requested"."""
    with filtered(lab, host, f"tcp dport {{ 22, {ports} }} accept\n{NEW_TCP} drop\nmeta l4proto udp drop"):
        yield


@fault("fw-oneway")
def fw_oneway(lab: Lab, host: str = "node0", source: str = "node1") -> Iterator[None]:
    """A host drops every connection that `source` opens to it, except ssh; the other direction works."""
    # By hardware address: that covers the source's IPv6 link-local addresses too.
    links = lab.sh(source, "cat /sys/class/net/*/address").split()
    macs = ", ".join(sorted({link for link in links if link != "00:00:00:00:00:00"}))
    rule = f"tcp dport 22 accept\nether saddr {{ {macs} }} {NEW_TCP} drop"
    with filtered(lab, host, rule):
        yield


@fault("data-cut")
def data_cut(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host drops everything but ssh, in both directions, on every card."""
    rules = "tcp dport 22 accept\ntcp sport 22 accept\ndrop"
    with filtered(lab, host, rules, rules):
        yield


@fault("link-cut")
def link_cut(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host drops everything, in both directions, open connections too: no FIN, no RST, no answer."""
    with filtered(lab, host, "drop", "drop"):
        yield
