"""Judging costs in proportion to nodes and tried links, also where every node has a finding."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import FrameType
from typing import Any

import pytest

import ringup.checks  # noqa: F401  (fills the registry)
from ringup.model import Cluster, Link, Resolution
from ringup.rules import CHECKS, run_checks
from tests import clusters as c

PARTNERS = 6


def large(count: int) -> Cluster:
    """A new one each time: what was worked out about a cluster is kept with it."""
    return replace(_large(count))


@cache
def _large(count: int) -> Cluster:
    """Each node tried from a few others on two networks, knowing a few names; a card of each is down."""
    nodes = []
    for k in range(count):
        high, low = divmod(k, 250)
        cards = [
            c.interface("enp1s0", f"10.1.{high}.{low + 1}/16", speed_gbit_s=10.0),
            c.interface("ib0", f"10.2.{high}.{low + 1}/16", kind="infiniband", speed_gbit_s=200.0),
            c.interface("enp9s0", f"10.3.{high}.{low + 1}/16", up=k % 2 == 0),
            c.interface("docker0", "172.17.0.1/16", kind="bridge"),
        ]
        peers = [(k + j) % count for j in range(1, PARTNERS)]
        names = tuple(Resolution(f"node{p}", (f"10.1.{p // 250}.{p % 250 + 1}",)) for p in peers)
        nodes.append(c.node(f"node{k}", *cards, gpu_count=8, peer_names=names, answer_s=float(k % 9)))
    links = []
    for k, source in enumerate(nodes):
        for target in (nodes[(k + j) % count] for j in range(1, PARTNERS)):
            for card in target.interfaces[1:3]:
                way = Link(
                    source.name, target.name, card.name, card.name, card.addresses[0].address, 40123, True
                )
                links.append(replace(way, large_packet_ok=True, mbyte_s=900.0))
    return Cluster(tuple(nodes), tuple(links))


def with_one_unreached(cluster: Cluster) -> Cluster:
    """Every rule then sees a part of the cluster."""
    return replace(cluster, nodes=(*cluster.nodes[:-1], c.unreached("away", "ssh-timeout")))


def calls(of: Callable[[], Any]) -> int:
    """Functions called."""
    count = 0

    def counting(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        of()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("changed", [lambda cluster: cluster, with_one_unreached], ids=["all", "one away"])
def test_judging_four_times_the_nodes_takes_about_four_times_the_calls(
    changed: Callable[[Cluster], Cluster],
) -> None:
    small, big = changed(large(60)), changed(large(240))
    run_checks(changed(large(12)))  # imports, compiled patterns
    few, many = calls(lambda: run_checks(small)), calls(lambda: run_checks(big))
    assert many <= 5 * few


def test_one_node_that_is_away_has_nothing_judged_twice() -> None:
    big = with_one_unreached(large(240))
    run_checks(with_one_unreached(large(12)))  # imports, compiled patterns
    assert calls(lambda: run_checks(big)) <= 2000 * 240


@pytest.mark.parametrize("name", CHECKS)
def test_no_rule_looks_at_every_pair_of_nodes(name: str) -> None:
    rule = {name: CHECKS[name]}
    run_checks(large(240), rule)  # imports, compiled patterns; every name and address is known by then
    small, big = large(60), large(240)
    few, many = calls(lambda: run_checks(small, rule)), calls(lambda: run_checks(big, rule))
    assert many <= 5.5 * few, f"{few} calls for 60 nodes, {many} for 240"
