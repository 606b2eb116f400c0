"""
`ringup check` on two hosts with one real fault: named once, worst first, and whether a job may start.

The table is what people meet (a fault of tests/lab/faults) and what they must read.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.guards import but_load

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

ERROR, WARNING = "error", "warning"

STOPS = {
    "data-cut": ("no-common-network", "node1 enp99s0"),
    "fw-highports": ("firewall-drops-high-ports", "node0 enp99s0"),
    "fw-oneway": ("asymmetric-reachability", "node0 enp99s0"),
    "host-off": ("ssh-no-route", "node1"),
    "ifname-absent": ("interface-name-missing", "node1 GLOO_SOCKET_IFNAME"),
    "link-cut": ("ssh-timeout", "node1"),
    "mtu-blackhole-after-login": ("ssh-long-answer-lost", "node1"),
    "mtu-blackhole-ssh": ("ssh-key-exchange-hangs", "node1"),
    "ssh-dropped": ("ssh-timeout", "node1"),
    "ssh-key-changed": ("ssh-host-key-changed", "node1"),
    "ssh-key-refused": ("ssh-key-refused", "node1"),
    "ssh-key-unknown": ("ssh-host-key-unknown", "node1"),
    "ssh-name-unknown": ("ssh-name-unknown", "node1"),
    "ssh-no-route": ("ssh-no-route", "node1"),
    "ssh-refused": ("ssh-connection-refused", "node1"),
    "torch-missing": ("torch-missing", "node1"),
    "torch-version": ("torch-versions-differ", "node1"),
    "venv-missing": ("python-or-launcher-missing", "node1"),
}
"""Fault -> the one error, and where.  Nothing may start."""

AVOIDED = {
    "article-002": ("peer-unreachable-on-interface", "node0 em1", "10.12.5.64"),
    "article-002-no-route": ("peer-unreachable-on-interface", "node0 em1", "10.12.5.64"),
    "fw-ports": ("rendezvous-port-filtered", "node0 port 29500", "node1"),
    "fw-reject": ("rendezvous-port-filtered", "node0 port 29500", "refused"),
    "name-dead": ("hostname-unresolvable-from-peer", "node1", "192.168.7.252"),
    "name-docker0": ("hostname-resolves-to-wrong-address", "node0", "172.17.0.1"),
    "name-ipv6-only": ("hostname-resolves-to-ipv6-only", "node0", "fd00"),
    "name-loopback": ("hostname-resolves-to-loopback", "node0", "127.0.1.1"),
    "name-unknown": ("hostname-unresolvable-from-peer", "node1", "node0"),
    "own-name-unknown": ("own-hostname-unresolvable", "node1", "node1"),
    "port-busy": ("port-in-use", "node0 port 29500", "pid "),
    "stale-run": ("orphan-of-earlier-run", "node0", "pid "),
}
"""Fault -> the one warning, where, and a word of it; the plan goes around it and says how."""

SAID = {
    "clock": ("clock-skew", "node1", "90 s"),
    "full-tmp": ("disk-full", "node1", "/tmp"),
    "loss-ssh": ("tcp-retransmits-high", "node1", "retransmitted"),
    "low-nofile": ("open-files-too-low", "node1", "64"),
    "small-shm": ("shm-too-small", "node1", "64 KiB"),
    "ssh-slow-shell": ("answer-slow", "node1", "answered after "),
}
"""Fault -> the one warning; it does not stop a job."""

QUIET = ("low-memlock", "no-default-route", "slow-nic")
"""Nothing a job here would meet, or nothing that can be told (a veth has no rate to compare with)."""

NET = {"article-002": "90.91.33.64/24", "article-002-no-route": "90.91.33.64/24"}


def checked(lab: Any, fault: str | None, **options: Any) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a check run on node0."""
    cluster = lab(hosts=2, net=NET.get(fault or "", "192.168.7.10/24"), **options)
    if fault:
        cluster.fault(fault)
    command = [
        sys.executable,
        "-m",
        "ringup",
        "check",
        "-H",
        "node0,node1",
        "--python",
        sys.executable,
        "--json",
    ]
    if fault == "loss-ssh":  # packets sent again take their time, on a busy machine more
        command += ["--timeout", "120"]
    done = cluster.run("node0", command, timeout_s=300)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def above_note(answer: dict[str, Any], about: str = "") -> list[dict[str, Any]]:
    return but_load([f for f in answer["findings"] if f["severity"] != "note"], about)


def test_a_healthy_cluster_gives_nothing_above_note_and_sets_nothing(lab: Any) -> None:
    code, answer = checked(lab, None)
    assert (code, above_note(answer), answer["env"]) == (0, [], [])
    assert all(p["ok"] and p["large_packet_ok"] is not False for p in answer["pairs"])


@pytest.mark.parametrize("fault", STOPS)
def test_what_would_stop_a_job_is_the_one_error(lab: Any, fault: str) -> None:
    rule, where = STOPS[fault]
    code, answer = checked(lab, fault)
    found = [(f["rule"], f["severity"]) for f in above_note(answer)]
    assert found == [(rule, ERROR)]
    assert code == 1
    finding = above_note(answer)[0]
    assert where in finding["where"]
    assert finding["worked_around_by"] is None
    assert finding["fix"]["text"]


@pytest.mark.parametrize("fault", AVOIDED)
def test_what_the_plan_goes_around_is_the_one_warning_and_says_how(lab: Any, fault: str) -> None:
    rule, where, word = AVOIDED[fault]
    code, answer = checked(lab, fault)
    found = [(f["rule"], f["severity"]) for f in above_note(answer)]
    assert found == [(rule, WARNING)]
    assert code == 0
    finding = above_note(answer)[0]
    assert where in finding["where"]
    assert word in finding["found"]
    assert finding["worked_around_by"]


@pytest.mark.parametrize("fault", SAID)
def test_what_only_slows_or_misleads_is_the_one_warning(lab: Any, fault: str) -> None:
    rule, where, word = SAID[fault]
    code, answer = checked(lab, fault)
    found = above_note(answer, rule)  # lost packets may slow a node's answer as well
    assert [(f["rule"], f["severity"]) for f in found] == [(rule, WARNING)], answer["findings"]
    assert code == 0
    assert where in found[0]["where"]
    assert word in found[0]["found"] + found[0]["where"]


@pytest.mark.parametrize("fault", QUIET)
def test_what_no_job_here_would_meet_is_not_mentioned(lab: Any, fault: str) -> None:
    code, answer = checked(lab, fault)
    assert (code, above_note(answer)) == (0, [])


def test_article_002_names_the_failing_direction_and_pins_the_good_interface(lab: Any) -> None:
    _, answer = checked(lab, "article-002")
    finding = above_note(answer)[0]
    assert "node1 -> node0 em1 10.12.5.64: timed out" in finding["found"]
    env = {v["name"]: v["value"] for v in answer["env"]}
    assert env == {"NCCL_SOCKET_IFNAME": "=enp99s0", "GLOO_SOCKET_IFNAME": "enp99s0"}
    assert all(v["because"] for v in answer["env"])
