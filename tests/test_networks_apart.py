"""One node over RDMA, the other not: NCCL compares nothing and hangs, so whatever parts them is one error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import ringup.checks  # noqa: F401
from ringup.model import Cluster, RdmaPort, Verbs
from ringup.network.predictions import Predictions
from ringup.planning import expected, mitigations, network
from ringup.rules import run_checks
from tests import clusters as c
from tests.test_env import cluster, ib, roce

VERBS = Verbs("/usr/lib64/libibverbs.so.1", providers=("mlx5",), modules=("ib_core", "ib_uverbs", "mlx5_ib"))
PORT = ib("mlx5_0", driver="mlx5_core")
Change = Callable[[Cluster], Cluster]


def pair() -> Cluster:
    """Two nodes with GPUs and an InfiniBand port each."""
    made = replace(cluster(PORT), job=c.job(backend="nccl"))
    for name in ("node0", "node1"):
        made = c.changed(made, name, verbs=VERBS, gpu_count=8)
    return made


def with_port(*ports: RdmaPort) -> Change:
    return lambda made: c.changed(made, "node1", rdma_ports=ports)


def with_variable(name: str, value: str) -> Change:
    return lambda made: c.changed(made, "node1", environment={name: value})


def without_library(made: Cluster) -> Cluster:
    return c.changed(made, "node1", verbs=replace(VERBS, library="", error="libibverbs.so.1: cannot open"))


PARTED: dict[str, tuple[Change, str]] = {
    "no library": (without_library, "ib-userspace-missing"),
    "this user cannot open": (with_port(replace(PORT, can_open=False)), "uverbs-not-accessible"),
    "down": (with_port(replace(PORT, state="DOWN")), "rdma-port-not-active"),
    "no device": (with_port(), "rdma-device-set-differs"),
    "turned off": (with_variable("NCCL_IB_DISABLE", "1"), "harmful-env-left-on"),
    "another network": (with_variable("NCCL_NET", "Socket"), "environment-differs-between-nodes"),
    "an interface as device": (with_variable("NCCL_IB_HCA", "ib0"), "rdma-device-name-missing"),
    "RoCE": (with_port(roce("mlx5_0", 200.0)), "mixed-link-layers-selected"),
}


def errors(made: Cluster) -> list[tuple[str, str | None]]:
    found = mitigations.weigh(run_checks(made)[0], network.decide(made, "r"), made)
    return [(f.rule, f.node) for f in found if f.severity == "error"]


def test_nodes_alike_are_no_error() -> None:
    assert errors(pair()) == []


@pytest.mark.parametrize("what", PARTED)
def test_whatever_parts_two_nodes_is_one_error_on_the_node_it_is_on(what: str) -> None:
    change, rule = PARTED[what]
    assert errors(change(pair())) == [(rule, "node1")]


@pytest.mark.parametrize("what", [w for w in PARTED if w != "RoCE"])
def test_the_prediction_shows_the_two_networks(what: str) -> None:
    made = PARTED[what][0](pair())
    foretold = [e.prediction for e in expected(Predictions(made), None)]
    assert [p.network for p in foretold] == ["IB", "Socket"]
    assert any("their ranks do not connect" in b for b in foretold[1].because)


@pytest.mark.parametrize(("name", "value"), [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")])
def test_turned_off_everywhere_or_without_gpus_it_is_no_error(name: str, value: str) -> None:
    everywhere = c.changed(with_variable(name, value)(pair()), "node0", environment={name: value})
    assert errors(everywhere) == []
    gloo = replace(with_variable(name, value)(pair()), job=c.job(backend="gloo"))
    assert errors(gloo) == []
