"""Facts of real hosts, reached through real sshd, with something wrong on them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from ringup import collectors
from ringup.model import Host, Job, Node
from ringup.transport import Transport
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def facts(lab: Lab, **job: Any) -> dict[str, Node]:
    """Every host's facts, without the pairs."""
    hosts = [Host(h.name) for h in lab.hosts]
    with Transport(hosts, ssh_config=str(lab.ssh_config)) as door:
        asked = Job(**{"chdir": "/", "python": sys.executable, **job})
        nodes = collectors.facts(door, asked, 90.0)
    return {n.name: n for n in nodes}


@pytest.fixture
def lab2(shared_lab: Callable[..., Lab]) -> Lab:
    return shared_lab(2, docker0=True, venv_on_path=True)


def test_a_healthy_host_has_no_unknown_fact(lab2: Lab) -> None:
    found = facts(lab2)
    for node in found.values():
        assert (node.unreached, dict(node.unknown), node.leftovers, node.setup_error) == (None, {}, (), "")
        assert node.torchrun_on_path
        card = node.interface("enp99s0")
        assert card is not None and card.is_up and card.has_carrier and card.mtu_bytes == 1500
        bridge = node.interface("docker0")
        assert bridge is not None and bridge.kind == "bridge"
    assert found["node0"].boot_id != found["node1"].boot_id
    assert found["node0"].peer_names[0].addresses == (lab2.host("node1").address,)


@pytest.mark.parametrize(
    ("fault", "addresses"),
    [("name-loopback", ("127.0.1.1",)), ("name-docker0", ("172.17.0.1",)), ("own-name-unknown", ())],
)
def test_what_a_host_takes_its_own_name_for_is_seen(
    lab2: Lab, fault: str, addresses: tuple[str, ...]
) -> None:
    host = "node1" if fault == "own-name-unknown" else "node0"
    lab2.fault(fault, host=host)
    node = facts(lab2)[host]
    assert node.own_name.addresses == addresses
    assert bool(node.own_name.error) is not bool(addresses)


def test_a_dead_resolver_is_seen_by_the_time_a_reverse_look_up_takes(lab2: Lab) -> None:
    resolver = lab2.host("node1").etc("resolv.conf")
    before = resolver.read_text()
    resolver.write_text("nameserver 198.51.100.7\n")  # RFC 5737: nobody answers there
    try:
        node = facts(lab2)["node1"]
    finally:
        resolver.write_text(before)
    assert node.reverse_lookup_s > 4  # the resolver waits for 5 s, some of them before the clock is read
    assert node.peer_names[0].addresses == (lab2.host("node0").address,)
    assert "interfaces" not in node.unknown


def test_who_holds_a_port_is_named(lab2: Lab) -> None:
    lab2.fault("port-busy", host="node0", port=29500)
    held = next(li for li in facts(lab2)["node0"].listeners if li.port == 29500)
    assert held.process is not None and held.process.command.startswith("nc ")


def test_a_rank_left_behind_is_an_orphan_with_its_evidence(lab2: Lab) -> None:
    lab2.fault("stale-run")
    found = facts(lab2)
    (rank,) = found["node0"].leftovers
    assert rank.evidence.startswith("orphan: its parent is gone; rank 0 of 4")
    assert found["node1"].leftovers == ()


def test_a_clock_that_is_ahead_is_seen_beyond_its_error(lab2: Lab) -> None:
    lab2.fault("clock", host="node1", ahead_s=90)
    found = facts(lab2)
    assert dict(found["node1"].unknown) == {}
    clock = found["node1"].clock
    assert abs(clock.offset_s - 90) <= clock.error_s + 0.1
    assert abs(found["node0"].clock.offset_s) <= found["node0"].clock.error_s + 0.01


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("low-memlock", lambda n: n.limits.memlock_bytes == 65536),
        ("low-nofile", lambda n: n.limits.open_files == 64),
        ("small-shm", lambda n: n.shm.total_bytes == 65536),
        ("full-tmp", lambda n: n.tmp.free_bytes == 0 and n.cache.path),
        ("ifname-absent", lambda n: n.environment["GLOO_SOCKET_IFNAME"] == "eth7"),
        ("venv-missing", lambda n: n.interpreter.path == "" and n.torchrun_on_path == ""),
    ],
)
def test_what_the_jobs_shell_gets_is_seen(lab2: Lab, fault: str, seen: Callable[[Node], bool]) -> None:
    lab2.fault(fault, host="node1")
    node = facts(lab2)["node1"]
    assert dict(node.unknown) == {}
    assert seen(node)


@pytest.mark.torch
def test_another_torch_and_no_torch_are_seen(lab2: Lab) -> None:
    with lab2.broken("torch-version", host="node1", version="2.6.0"):
        assert facts(lab2)["node1"].interpreter.torch == "2.6.0"
    with lab2.broken("torch-missing", host="node1"):
        node = facts(lab2)["node1"]
    assert node.interpreter.path == sys.executable and node.interpreter.torch == ""


def test_a_host_without_python_is_unknown_for_that_reason(lab: Callable[..., Lab]) -> None:
    made = lab(2)
    made.fault("venv-missing", host="node1")
    made.sh("node1", "for p in /usr/bin/python3*; do mount --bind /dev/null $p; done")
    node = facts(made, python="")["node1"]
    assert node.unreached is None
    assert node.unknown["listeners"] == "no python3 on this node"


def test_a_slow_shell_is_waited_for_and_timed(lab2: Lab) -> None:
    lab2.fault("ssh-slow-shell", host="node1", delay_s=3)
    found = facts(lab2)
    assert found["node1"].unreached is None
    assert found["node1"].answer_s >= 3
