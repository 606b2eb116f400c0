"""Bonds and limits of sockets as the facts script reads them, on files written as the kernel writes them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from ringup.agent.facts import network
from ringup.model import Bond, Node, SocketLimits
from tests.test_facts import ask, request_of

BOND = """Ethernet Channel Bonding Driver: v6.1.0-18-amd64

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
Transmit Hash Policy: layer3+4 (1)
MII Status: up
MII Polling Interval (ms): 100

802.3ad info
LACP active: on

Slave Interface: eth0
MII Status: up
Speed: 25000 Mbps

Slave Interface: eth1
MII Status: down
Speed: Unknown
Link Failure Count: 2
"""


def asked(root: Path, **files: str) -> Node:
    for path, text in files.items():
        own = root / path.replace("__", "/")
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(text)
    return ask(request_of(root=str(root)), parts=("network",))


def test_a_bond_tells_its_mode_its_hash_and_the_slave_without_link(tmp_path: Path) -> None:
    node = asked(tmp_path, proc__net__bonding__bond0=BOND)
    mode = "IEEE 802.3ad Dynamic link aggregation"
    assert node.bonds == (Bond("bond0", mode, "layer3+4", ("eth0", "eth1"), ("eth1",)),)


def test_without_bonding_there_is_no_bond(tmp_path: Path) -> None:
    node = asked(tmp_path)
    assert node.bonds == () and "bonds" not in node.unknown


def test_the_last_of_three_numbers_is_what_the_kernel_may_grow_a_buffer_to(tmp_path: Path) -> None:
    node = asked(
        tmp_path,
        proc__sys__net__ipv4__tcp_rmem="4096\t131072\t6291456\n",
        proc__sys__net__ipv4__tcp_wmem="4096\t16384\t4194304\n",
        proc__sys__net__core__somaxconn="4096\n",
        proc__sys__net__netfilter__nf_conntrack_max="262144\n",
        proc__sys__net__netfilter__nf_conntrack_count="17\n",
    )
    assert node.socket_limits == SocketLimits(6291456, 4194304, 4096, 17, 262144)


def test_without_sysctls_limits_are_unknown_with_the_reason(tmp_path: Path) -> None:
    assert "/proc/sys/net is not there" in asked(tmp_path).unknown["socket_limits"]


def test_this_machine_tells_its_limits_and_the_duplex_of_its_cards() -> None:
    node = ask(request_of(), parts=("network",))
    assert node.socket_limits.somaxconn > 0 and node.socket_limits.tcp_rmem_max_bytes > 0
    assert {i.duplex for i in node.interfaces} <= {"", "full", "half", "unknown"}


def test_the_label_of_an_address_is_kept_where_it_is_not_the_interfaces_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(address: str, label: bytes) -> bytes:
        text = label + b"\0" * (8 - len(label))
        attributes = struct.pack("=HH", 8, 2) + socket.inet_aton(address) + struct.pack("=HH", 12, 3) + text
        return struct.pack("=BBBBI", socket.AF_INET, 24, 0, 0, 2) + attributes

    answers = [answer("10.0.0.1", b"eth0"), answer("10.9.0.1", b"eth0:1")]
    monkeypatch.setattr(network, "dump", lambda *_: answers)
    found = {2: {"name": "eth0", "addresses": list[dict[str, str]]()}}
    network.add_addresses(found)
    assert [(a["address"], a["label"]) for a in found[2]["addresses"]] == [
        ("10.0.0.1", ""),
        ("10.9.0.1", "eth0:1"),
    ]
