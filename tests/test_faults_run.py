"""
`ringup run` on two hosts with one real fault: it trains, and says what it went around.

Under every one of these a plain torchrun hangs or dies (tests/lab/faults says what each is).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.guards import wait_for
from tests.jobs.launched import Launched
from tests.lab import TWO_CARDS, Nic
from tests.lab.faults import FAULTS

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

HIGH, LOW = "192.168.7.10/24", "10.0.0.10/24"
"""Gloo has the numerically larger address connect: 127.0.1.1 hurts above it and not below."""
DIFFERENT_NAMES = [Nic(("enp99s0", "ens5"), HIGH, "data")]


class Case(NamedTuple):
    """A fault, its cluster, and what the user must read."""

    fault: str
    says: str
    """In the finding's line."""
    avoided: str
    """In the line below it."""
    options: dict[str, Any] = {}  # noqa: RUF012
    """Of the fault."""
    net: str = HIGH
    cluster: dict[str, Any] = {}  # noqa: RUF012
    nproc: int = 1
    kept_port: bool = True
    run: tuple[str, ...] = ()
    """Options of `ringup run`."""


def loopback(node: str, net: str) -> Case:
    """The node's own name means 127.0.1.1 on it."""
    says = f"{node}: {node} is 127.0.1.1 on {node}"
    return Case("name-loopback", says, "addresses are used instead of names", {"host": node}, net)


def docker0(node: str, net: str) -> Case:
    """The node's own name means Docker's bridge, which every node has under one address."""
    says = f"{node} docker0: docker0 172.17.0.1"
    return Case("name-docker0", says, "GLOO_SOCKET_IFNAME=enp99s0", {"host": node}, net)


CASES = {
    "article 002": Case(
        "article-002", "node1 -> node0 em1 10.12.5.64: timed out", "GLOO_SOCKET_IFNAME=enp99s0", nproc=2
    ),
    "own name is 127.0.1.1 on the head": loopback("node0", HIGH),
    "own name is 127.0.1.1 on the other": loopback("node1", HIGH),
    "own name is 127.0.1.1 on the head, 10.x": loopback("node0", LOW),
    "own name is 127.0.1.1 on the other, 10.x": loopback("node1", LOW),
    "own name is docker0 on the head": docker0("node0", HIGH),
    "own name is docker0 on the other": docker0("node1", HIGH),
    "own name is docker0 on the head, 10.x": docker0("node0", LOW),
    "own name is docker0 on the other, 10.x": docker0("node1", LOW),
    "no names known": Case(
        "names-unknown", "node1 cannot resolve its own name node1", "addresses are used instead of names"
    ),
    "the head cannot resolve its own name": Case(
        "own-name-unknown", "own name node0", "GLOO_SOCKET_IFNAME=enp99s0", {"host": "node0"}
    ),
    "the other cannot resolve its own name": Case(
        "own-name-unknown", "own name node1", "GLOO_SOCKET_IFNAME=enp99s0", {"host": "node1"}
    ),
    "the head's name is IPv6 only": Case(
        "name-ipv6-only", "node0 is only fd00:99::a", "addresses are used instead of names"
    ),
    "port 29500 busy": Case("port-busy", "node0 port 29500: held by pid ", "port 29501", kept_port=False),
    "port 29500 held by a stale run": Case(
        "stale-run", "holds port 29500", "the rendezvous is on port 29501", kept_port=False
    ),
    "port 29500 dropped": Case("fw-ports", "node0 port 29500", "the rendezvous is on port", kept_port=False),
    "port 29500 rejected": Case(
        "fw-reject", "node0 port 29500", "the rendezvous is on port", kept_port=False
    ),
    "port 29500 busy, c10d": Case(
        "port-busy",
        "node0 port 29500: held by pid ",
        "port 29501",
        kept_port=False,
        run=("--rdzv", "c10d"),
    ),
    "article 002, c10d": Case(
        "article-002",
        "node1 -> node0 em1 10.12.5.64: timed out",
        "GLOO_SOCKET_IFNAME=enp99s0",
        run=("--rdzv", "c10d"),
    ),
    "one of two cards down": Case(
        "nic-down", "node1 ib0", "ranks use enp99s0", {"nic": "ib0"}, cluster={"nics": TWO_CARDS}
    ),
    "MTU black hole on one of two cards": Case(
        "mtu-blackhole", "ib0", "ranks use enp99s0", {"nic": "ib0"}, cluster={"nics": TWO_CARDS}
    ),
}


def starts(case: Case, lab: Any) -> Launched:
    """The run on its broken cluster."""
    cluster = lab(**{"hosts": 2, "net": case.net, **FAULTS[case.fault].wants, **case.cluster})
    cluster.fault(case.fault, **case.options)
    return Launched(cluster, "train.py", nproc=case.nproc, options=case.run)


def trains(run: Launched, nproc: int) -> None:
    """To the end, on all ranks, and nothing is left."""
    assert run.wait() == 0, run.said()
    assert run.stdout.count("trained to the end") == 2 * nproc, run.said()
    assert run.record["outcome"] == "ok"
    assert [r["code"] for r in run.record["ranks"]] == [0] * 2 * nproc
    assert run.record["cleanup"] == []
    run.leaves_nothing()


def cases() -> list[Any]:
    """Each by its name; the two of article 002, by either rendezvous, are part of the smoke."""
    smoke = ("article 002", "article 002, c10d")
    return [pytest.param(name, marks=[pytest.mark.smoke] if name in smoke else []) for name in CASES]


@pytest.mark.parametrize("name", cases())
def test_trains_and_says_what_it_went_around(lab: Any, name: str) -> None:
    case = CASES[name]
    with starts(case, lab) as run:
        trains(run, case.nproc)
        lines = run.stderr.splitlines()
        said = [i for i, line in enumerate(lines) if case.says in line and not line.startswith("checked: ")]
        assert said, run.said()
        assert "worked around: " in lines[said[0] + 1], run.said()
        assert case.avoided in lines[said[0] + 1], run.said()
        assert (run.port == 29500) is case.kept_port


def test_cards_named_differently_are_pinned_each_by_its_own_name(lab: Any) -> None:
    cluster = lab(hosts=2, nics=DIFFERENT_NAMES)
    cluster.fault("names-unknown")
    with Launched(cluster, "train.py") as run:
        trains(run, 1)
        pinned = {(v["node"], v["value"]) for v in run.record["plan"]["env"]}
        assert {("node0", "enp99s0"), ("node1", "ens5")} <= pinned, run.said()


def test_torchrun_that_ssh_does_not_find_is_started_by_its_path(lab: Any) -> None:
    cluster = lab(hosts=2, net=HIGH)
    assert cluster.ssh("node0", "command -v torchrun").returncode != 0
    with Launched(cluster, "train.py") as run:
        trains(run, 1)
        assert "torchrun is not on the PATH" not in run.stderr  # it makes no difference there


@pytest.mark.parametrize("fault", ["torch-missing", "data-cut", "ssh-key-refused"])
def test_stops_before_anything_is_started(lab: Any, fault: str) -> None:
    cluster = lab(hosts=2, net=HIGH)
    cluster.fault(fault)
    with Launched(cluster, "train.py") as run:
        assert run.wait() == 1, run.said()
        assert run.record["outcome"] == "check-stopped"
        assert run.record["findings"][0]["severity"] == "error"
        assert "nothing was started" in run.stderr
        assert run.stdout == ""
        wait_for(lambda: not any(run.added(host.name) for host in cluster.hosts), "connections are closed")
