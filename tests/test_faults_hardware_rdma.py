"""
`ringup check` on two hosts with RDMA devices, one real fault at a time: named once, and no other rule speaks.

The devices are made-up trees in the kernel's formats, mounted over /sys of hosts that ssh reaches; no
InfiniBand or RoCE hardware was at hand.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from ringup.units import show_bytes
from tests.guards import but_load
from tests.lab import Lab
from tests.lab.faults import FAULTS
from tests.lab.faults.rdma import CARDS
from tests.rdma_tree import UNSET, hexadecimal

pytestmark = [pytest.mark.lab, pytest.mark.slow]

Changes = Mapping[str, str | None]
PORT = "mlx5_1/ports/1"


@dataclass(frozen=True)
class Case:
    """What is wrong on node1 (or with `everywhere` on both), and what a person reads about it."""

    kind: str
    severity: str
    where: str
    word: str
    changes: Changes = field(default_factory=dict)
    everywhere: Changes = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Further faults of the lab."""
    words: tuple[str, ...] = ()
    """Of the command line."""
    times: int = 1
    """Findings, where every node has its own."""


def mapped(address: str) -> str:
    return f"0000:0000:0000:0000:0000:ffff:{hexadecimal(address)}"


ONE = {
    "rdma-port-not-active": Case(
        "ib", "warning", "node1 mlx5_1:1", "DOWN",
        {f"{PORT}/state": "1: DOWN", f"{PORT}/phys_state": "3: Disabled"},
    ),
    "no-subnet-manager": Case(
        "ib", "error", "node1 mlx5_0:1, node1 mlx5_1:1", "INIT",
        {f"mlx5_{n}/ports/1/state": "2: INIT" for n in (0, 1)},
    ),
    "rdma-rate-low": Case(
        "ib", "warning", "node1 mlx5_1:1", "2 lanes", {f"{PORT}/rate": "100 Gb/sec (2X HDR)"}
    ),
    "rdma-device-set-differs": Case("ib", "warning", "node1", "lacks mlx5_1:1", {"mlx5_1": None}),
    "mixed-link-layers-selected": Case("mixed", "warning", "node0, node1 mlx5_bond_0:1", "mlx5_bond_0:1"),
    "management-port-selected": Case(
        "roce", "warning", "mlx5_1:1", "default route",
        everywhere={f"{PORT}/rate": "25 Gb/sec (1X EDR)", f"{PORT}/gid_attrs/ndevs/0": "enp99s0"},
    ),
    "uverbs-not-accessible": Case(
        "ib", "error", "node1 /dev/infiniband", "mlx5_0, mlx5_1",
        {f"/run/rdma/0000:{bus}:00.0/infiniband_verbs/uverbs0/dev": "231:192" for bus in ("2e", "a8")},
    ),
    "ib-char-device-without-module": Case(
        "ib", "error", "node1 ib_uverbs", "not loaded", options={"modules": False}
    ),
    "ib-userspace-missing": Case(
        "ib", "error", "node1 libibverbs", "cannot be loaded", options={"library": False}
    ),
    "rdma-device-name-missing": Case(
        "ib", "error", "node1 NCCL_IB_HCA", "interface of mlx5_0",
        also=(("ifname-absent", {"variable": "NCCL_IB_HCA", "value": "ib0"}),),
    ),
    "ipoib-used-for-data": Case(
        "ib", "warning", "ib0", "NCCL_IB_DISABLE=1", words=("--env", "NCCL_IB_DISABLE=1"), times=2
    ),
    "gid-missing-or-wrong": Case(
        "roce", "error", "node1 mlx5_1:1", "v1", {f"{PORT}/gids/2": UNSET, f"{PORT}/gids/3": UNSET}
    ),
    "gid-subnets-differ": Case(
        "roce", "error", "node1 mlx5_0:1", "10.3.0.0/24",
        {f"mlx5_{n}/ports/1/gids/{k}": mapped(f"10.{3 - n}.0.11") for n in (0, 1) for k in (2, 3)},
    ),
    "rdma-mtu-low": Case("roce", "warning", "node1 mlx5_1:1", "1500 bytes", also=(("mtu", {"nic": "eth3"}),)),
    "dscp-not-trusted": Case(
        "roce", "warning", "mlx5_0:1", "106",
        {"mlx5_0/tc/1/traffic_class": "Global tclass=106"},
        everywhere={"mlx5_1/tc/1/traffic_class": "Global tclass=162"},
    ),
    "pkey-table-empty": Case("ib", "error", "node1 mlx5_1:1", "0x0000", {f"{PORT}/pkeys/0": "0x0000"}),
    "memlock-too-low": Case("ib", "error", "node1", "64 KiB", also=(("low-memlock", {}),)),
}  # fmt: skip
"""Rule -> the fault that makes it speak, alone."""

RISING = {
    "link-flapped": ("node0", "mlx5_0:1", "mlx5_0/ports/1/counters/link_downed"),
    "symbol-errors": ("node0", "mlx5_1:1", "mlx5_1/ports/1/counters/symbol_error"),
    "receive-errors": ("node1", "mlx5_0:1", "mlx5_0/ports/1/counters/port_rcv_errors"),
    "transmit-discards": ("node1", "mlx5_1:1", "mlx5_1/ports/1/counters/port_xmit_discards"),
    "transport-retries": ("node1", "mlx5_1:1", "mlx5_1/ports/1/hw_counters/local_ack_timeout_err"),
}
"""Rule -> node, port, and the counter that rises there; all at once."""

SOCKETS = {
    "interface-down": ("warning", "node1 ib0", "down", "nic-down", {"nic": "ib0"}, ()),
    "same-address-on-two-nodes": ("warning", "ib0", "10.1.0.10", "duplicate-address", {"nic": "ib0"}, ()),
    "path-mtu-black-hole": ("warning", "node1 eth2", "large", "mtu-blackhole", {"nic": "eth2"}, ()),
    "interface-errors": ("warning", "node1 enp99s0", "rx_crc_errors", "crc-errors", {}, ()),
    "mtu-differs": ("note", "node1 enp99s0", "1400 bytes", "mtu", {"size_bytes": 1400}, ()),
    "slow-interface-chosen": ("warning", "node1 enp99s0", "half duplex", "half-duplex", {}, ()),
    "conntrack-nearly-full": ("warning", "node1 conntrack", "65530 of 65536", "conntrack-full", {}, ()),
    "backlog-overflow": (
        "warning", "node0 somaxconn", "16 ranks", "short-backlog", {}, ("--hostfile", "/root/hosts")
    ),
    "socket-buffers-small": ("note", "node1", "208 KiB", "small-buffers", {}, ("--link-gbit", "100")),
    "loopback-interface-chosen": (
        "error", "node1 NCCL_SOCKET_IFNAME", "lo", "ifname-absent",
        {"variable": "NCCL_SOCKET_IFNAME", "value": "^docker"}, (),
    ),
    "gloo-ifname-in-nccl-syntax": (
        "error", "node1 GLOO_SOCKET_IFNAME", "^docker", "ifname-absent",
        {"variable": "GLOO_SOCKET_IFNAME", "value": "^docker"}, (),
    ),
}  # fmt: skip
"""Rule -> severity, where, a word, and the fault of cards and kernels that makes it speak; no RDMA there."""


EFA = ("efa-underneath", "node1 rdmap0s6:1")
DOCKER = ("virtual-interface-chosen", {"node0 veth1a2b3c0", "node1 veth1a2b3c1"})
TWINS = ("several-interfaces-one-subnet", "node1 enp99s0, enp100s0")
"""Rules that need a lab of their own, and where they speak."""


def checked(cluster: Lab, *words: str) -> dict[str, Any]:
    """What a check on node0 says of both hosts."""
    cluster.sh("node0", "printf 'node0 slots=8\nnode1 slots=8\n' > /root/hosts")
    hosts = () if "--hostfile" in words else ("-H", "node0,node1")
    command = [sys.executable, "-m", "ringup", "check", *hosts, "--python", sys.executable]
    # Not in the checkout: a commit made meanwhile is a fault of its own.
    done = cluster.run("node0", [*command, "--backend", "nccl", "--json", *words], cwd="/root", timeout_s=300)
    assert done.returncode in (0, 1), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def above_note(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """
    Without what is truly wrong with RDMA on this machine.

    Its root may not raise the limit of locked memory where it lacks CAP_SYS_RESOURCE.
    """
    own = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    limit = "" if own == resource.RLIM_INFINITY else show_bytes(own)
    here = [f for f in answer["findings"] if f["severity"] != "note"]
    return but_load(
        f for f in here if f["rule"] != "memlock-too-low" or not limit or not f["found"].startswith(limit)
    )


@pytest.mark.parametrize("kind", ["", "ib", "roce", "efa"])
def test_hosts_with_sound_devices_give_nothing_above_a_note(
    shared_lab: Callable[..., Lab], kind: str
) -> None:
    cluster = shared_lab(hosts=2, nics=CARDS)
    for host in ("node0", "node1") if kind else ():
        cluster.fault("rdma", host=host, kind=kind)
    answer = checked(cluster)
    assert above_note(answer) == []
    assert [s for s in answer["not_checked"] if s["rule"].startswith(("rdma", "ib-", "link-"))] == []
    if kind:
        assert all(len(node["rdma_ports"]) == 2 for node in answer["nodes"])


@pytest.mark.parametrize("rule", ONE)
def test_a_fault_of_rdma_is_named_once(shared_lab: Callable[..., Lab], rule: str) -> None:
    case = ONE[rule]
    cluster = shared_lab(hosts=2, nics=CARDS)
    cluster.fault("rdma", host="node0", kind=case.kind, changes=case.everywhere)
    changes = {**case.everywhere, **case.changes}
    cluster.fault("rdma", host="node1", kind=case.kind, changes=changes, **case.options)
    for name, options in case.also:
        cluster.fault(name, host="node1", **options)
    found = above_note(checked(cluster, *case.words))
    assert [(f["rule"], f["severity"]) for f in found] == [(rule, case.severity)] * case.times, found
    assert case.where in found[0]["where"]
    assert case.word in found[0]["found"]
    assert found[0]["fix"]["text"]


def test_counters_that_rise_are_named_by_port(shared_lab: Callable[..., Lab]) -> None:
    cluster = shared_lab(hosts=2, nics=CARDS)
    for host in ("node0", "node1"):
        own = {counter: 1000 for node, _, counter in RISING.values() if node == host}
        cluster.fault("rdma-counters", host=host, kind="ib", rising=own)
    found = {(f["rule"], f["where"]) for f in above_note(checked(cluster))}
    assert found == {(rule, f"{node} {port}") for rule, (node, port, _) in RISING.items()}


def test_what_efa_loses_is_seen_though_its_port_is_active(shared_lab: Callable[..., Lab]) -> None:
    cluster = shared_lab(hosts=2, nics=CARDS)
    cluster.fault("rdma", host="node0", kind="efa")
    cluster.fault("rdma-counters", kind="efa", rising={"rdmap0s6/ports/1/hw_counters/rx_drops": 5})
    found = above_note(checked(cluster))
    assert [(f["rule"], f["where"]) for f in found] == [EFA]


@pytest.mark.parametrize("rule", SOCKETS)
def test_a_fault_of_cards_or_kernel_is_named_once(shared_lab: Callable[..., Lab], rule: str) -> None:
    severity, where, word, fault, options, words = SOCKETS[rule]
    cluster = shared_lab(hosts=2, nics=CARDS)
    cluster.fault(fault, **options)
    findings = checked(cluster, *words)["findings"]
    found = but_load([f for f in findings if f["severity"] != "note" or f["rule"] == rule], rule)
    assert [(f["rule"], f["severity"]) for f in found] == [(rule, severity)], found
    assert where in found[0]["where"]
    assert word in found[0]["found"]


def test_the_cable_of_a_container_that_nccl_would_take_is_named(lab: Callable[..., Lab]) -> None:
    found = above_note(checked(lab(hosts=2, docker0=True)))
    assert ({f["rule"] for f in found}, {f["where"] for f in found}) == ({DOCKER[0]}, DOCKER[1])
    assert all(f["worked_around_by"] for f in found)


def test_two_cards_in_one_subnet_under_strict_filtering_are_named(lab: Callable[..., Lab]) -> None:
    cluster = lab(hosts=2, **FAULTS["strict-twins"].wants)
    assert above_note(checked(cluster)) == []
    cluster.fault("strict-twins")
    assert [(f["rule"], f["where"]) for f in above_note(checked(cluster))] == [TWINS]
