"""What `ringup bench` compares a rate with, and what it says of a low one: from facts and logs alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from ringup.collective_tests import CorrectnessReport, LinkRate, Row
from ringup.collective_tests import bandwidth as judging
from ringup.collective_tests.link_rate import carries, link_rate
from ringup.model import Cluster, Gpu, GpuLink, Job, Node, NvLink, RdmaPort
from ringup.output import collective_report as show
from ringup.planning import ExpectedTransport, NodePlan, Plan
from tests.clusters import cluster, interface, node

NETWORK = {"IB": ("mlx5_0:1/IB", "mlx5_1:1/IB", "mlx5_2:1/IB", "mlx5_3:1/IB"), "Socket": ("eth0",), "OFI": ()}


def gpus(
    count: int, links: int = 18, gbyte_s: float = 26.562, path: str = "NV18", **more: Any
) -> dict[str, Any]:
    """Facts of a node with GPUs, each with its NVLinks, all pairs joined alike."""
    own = tuple(NvLink(i, gbyte_s) for i in range(links))
    return {
        "gpu_count": count,
        "gpus": tuple(Gpu(i, "GPU", nvlinks=own, **more) for i in range(count)),
        "gpu_links": tuple(GpuLink(a, b, "OK", path) for a, b in combinations(range(count), 2)),
    }


def made(
    nodes: Sequence[Node], nproc: int, network: str = "IB", link_gbit_s: float | None = None
) -> tuple[Cluster, Plan]:
    """These nodes with a job of so many ranks each, and its plan."""
    names = [n.name for n in nodes]
    planned = tuple(NodePlan(n, i, nproc, i * nproc, "eth0", "", (), {}) for i, n in enumerate(names))
    expected = tuple(ExpectedTransport(n, network, NETWORK[network], "high") for n in names)
    plan = Plan("r", Job(), planned, (), "", 29500, nproc * len(names), transports=expected)
    return replace(cluster(*nodes), job=Job(link_gbit_s=link_gbit_s)), plan


def pair_of_nodes(rate_gbit_s: float | None = 400.0, **facts: Any) -> list[Node]:
    ports = tuple(
        RdmaPort(f"mlx5_{i}", 1, "ACTIVE", "", "InfiniBand", rate_gbit_s, width=4) for i in range(4)
    )
    return [
        node(f"n{k}", interface("eth0", f"10.0.0.{k}/24", speed_gbit_s=25.0), rdma_ports=ports, **facts)
        for k in (1, 2)
    ]


def test_one_node_is_judged_by_the_nvlink_of_its_gpus() -> None:
    nodes, plan = made([node("n1", interface("eth0", "10.0.0.1/24"), **gpus(8))], 8)
    rate = link_rate(nodes, plan, "nccl")
    assert (rate.gbit_s, rate.over, rate.devices) == (pytest.approx(450 * 8, rel=0.001), "nvlink", 1)
    assert rate.source == "n1, NVLink of 450 GB/s a GPU,"
    for op in ("all_reduce", "all_to_all", "send_recv"):
        assert carries(rate, plan, op) == pytest.approx(450, rel=0.001)
    rows = [Row("all_reduce", 1, 1.0, 1.0, 100.0, True, 20, (), 1.0)] * 3
    assert judging.judge(rows, 450.0, rate, ()) == (
        "slow",
        "100 GB/s bus bandwidth is 22 % of what n1, NVLink of 450 GB/s a GPU, can carry",
    )


def test_gpus_joined_without_a_switch_have_to_each_other_what_joins_the_pair() -> None:
    facts = gpus(4, links=12, gbyte_s=25.0, path="NV4")
    nodes, plan = made([node("n1", interface("eth0", "10.0.0.1/24"), **facts)], 2)
    assert link_rate(nodes, plan, "nccl").gbit_s == pytest.approx(100 * 8 * 0.9412)
    nodes, plan = made(nodes.nodes, 4)
    rate = link_rate(nodes, plan, "nccl")
    assert rate.gbit_s == pytest.approx(300 * 8 * 0.9412)
    assert carries(rate, plan, "send_recv") is None
    row = Row("send_recv", 1, 1.0, 1.0, 100.0, True, 20, (), 1.0)
    because = "send_recv uses one of 3 links of a GPU, which one is not known"
    assert judging.judge([row], None, rate, ()) == ("not_judged", because)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        gpus(4, path="SYS"),
        gpus(4, links=0, path="NV4"),
        {**gpus(4), "gpu_links": (GpuLink(0, 1, "OK", "NV12"), GpuLink(2, 3, "OK", "NV12"))},
    ],
)
def test_one_node_without_nvlink_between_all_gpus_is_not_judged_and_says_why(facts: dict[str, Any]) -> None:
    nodes, plan = made([node("n1", interface("eth0", "10.0.0.1/24"), **facts)], 4)
    rate = link_rate(nodes, plan, "nccl")
    assert rate.gbit_s is None and "not every pair of GPUs of n1 is known to be joined" in rate.source


def test_one_node_without_gpus_has_no_link_to_be_compared_with() -> None:
    nodes, plan = made([node("n1", interface("eth0", "10.0.0.1/24"))], 4)
    assert link_rate(nodes, plan, "gloo").source == "one node: no link between nodes to compare with"


def test_nvlink_slower_than_the_cards_is_the_slowest_link() -> None:
    nodes, plan = made(pair_of_nodes(800.0, **gpus(8, links=8, path="NV8")), 8)
    rate = link_rate(nodes, plan, "nccl")
    assert (rate.gbit_s, rate.over) == (pytest.approx(200 * 8, rel=0.001), "rdma")
    assert rate.source == "n1, NVLink of 200 GB/s a GPU,"


def test_ranks_that_have_fewer_cards_than_their_node_are_compared_with_those() -> None:
    for nproc, wanted in ((8, 1600.0), (4, 800.0), (1, 400.0)):
        nodes, plan = made(pair_of_nodes(**gpus(8)), nproc)
        assert link_rate(nodes, plan, "nccl").gbit_s == wanted
    assert "n1 1 of mlx5_0:1, mlx5_1:1" in link_rate(nodes, plan, "nccl").source
    nodes, plan = made(pair_of_nodes(**gpus(1)), 1)  # one GPU, four cards
    assert link_rate(nodes, plan, "nccl").gbit_s == 1600.0


def test_a_low_rate_of_gpus_that_may_meet_over_pcie_is_not_called_the_links() -> None:
    nodes, plan = made(pair_of_nodes(**gpus(8, path="SYS")), 8)
    rate = link_rate(nodes, plan, "nccl")
    assert rate.gbit_s == 1600.0
    rows = [Row("all_reduce", 1, 1.0, 1.0, b, True, 20, (), 1.0) for b in (20.0, 20.0, 20.0)]
    verdict, because = judging.judge(rows, 200.0, rate, ())
    assert verdict == "not_judged" and because.endswith("is known to be joined by NVLink: PCIe may be slower")
    assert judging.judge([replace(r, busbw_gbyte_s=150.0) for r in rows], 200.0, rate, ())[0] == "ok"
    nodes, plan = made(pair_of_nodes(**gpus(8, path="SYS")), 8, "Socket")
    assert not link_rate(nodes, plan, "nccl").doubt  # 25 Gbit/s is less than any PCIe


def test_a_network_of_a_plugin_is_not_compared_with_the_ethernet_card() -> None:
    nodes, plan = made(pair_of_nodes(**gpus(8)), 8, "OFI")
    rate = link_rate(nodes, plan, "nccl")
    assert rate.gbit_s is None and rate.source.startswith("NCCL is expected to use OFI on n1")
    nodes, plan = made(nodes.nodes, 8, "OFI", link_gbit_s=3200.0)
    assert link_rate(nodes, plan, "nccl").gbit_s == 3200.0


@pytest.mark.parametrize("rate_gbit_s", [None, 100.0])
def test_a_stated_rate_is_that_of_one_of_a_nodes_cards(rate_gbit_s: float | None) -> None:
    nodes, plan = made(pair_of_nodes(rate_gbit_s, **gpus(8)), 8, link_gbit_s=200.0)
    rate = link_rate(nodes, plan, "nccl")
    assert (rate.gbit_s, rate.source, rate.over) == (800.0, "--link-gbit 200 a card of 4", "rdma")
    assert carries(rate, plan, "send_recv") is None


def test_the_rate_of_old_infiniband_is_not_judged() -> None:
    assert link_rate(*made(pair_of_nodes(40.0), 8), "nccl").gbit_s is None
    assert link_rate(*made(pair_of_nodes(100.0), 8), "nccl").gbit_s == 400.0


RDMA = LinkRate(1600.0, "n1 mlx5_0:1", over="rdma", devices=4)


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"P2P/CUMEM": 8, "NET/Socket/0": 4}, ["NCCL uses Socket (TCP), not IB, on every node"]),
        (
            {"NET/IB/0": 4, "NET/IB/1": 4, "NET/IB/2(3)": 4, "P2P/IPC": 2},
            ["NCCL uses no GPUDirect RDMA, the data passes through host memory, on every node"],
        ),
        ({"NET/IB/0/GDRDMA": 4, "NET/IB/0(1)/GDRDMA/Shared": 4}, ["NCCL uses 1 of 4 cards on every node"]),
        ({"NET/IB/0/GDRDMA": 4, "NET/IB/1/GDRDMA": 4}, []),
        (
            {
                "NET/IBext_v8/0/GDRDMA(PCI)": 4,
                "NET/IBext_v8/3/GDRDMA": 4,
                "SHM/direct/direct": 2,
                "P2P/IPC": 1,
            },
            [],
        ),
        (
            {"SHM/direct/direct": 8},
            ["NCCL uses host memory (SHM) between the GPUs of a node, not P2P, on every node"],
        ),
        ({}, []),
    ],
)
def test_what_nccl_says_of_the_datas_way_says_why_it_is_slow(
    counts: dict[str, int], words: list[str]
) -> None:
    _, plan = made(pair_of_nodes(), 8)
    assert judging.slow_reasons({"n1": counts, "n2": counts}, plan, 4) == words


@pytest.mark.parametrize("network", ["Socket", ""])
def test_sockets_are_no_reason_where_nothing_else_was_expected(network: str) -> None:
    _, plan = made(pair_of_nodes(), 8)
    plan = replace(plan, transports=tuple(replace(t, network=network) for t in plan.transports))
    assert judging.slow_reasons({"n1": {"NET/Socket/0": 4}}, plan, 4) == []


def test_the_host_whose_way_is_worse_is_named_in_the_verdict() -> None:
    _, plan = made(pair_of_nodes(), 8)
    row = {
        "kind": "row",
        "op": "all_reduce",
        "size_bytes": 1,
        "busbw_gbyte_s": 9.0,
        "correct": True,
        "rank": 0,
    }
    channels = {"n1": {"NET/IB/0/GDRDMA": 2, "NET/IB/1/GDRDMA": 2}, "n2": {"NET/IB/0": 2, "NET/IB/1": 2}}
    found = judging.report(plan, {0: [row] * 3}, RDMA, "nccl", ["all_reduce"], channels)
    assert found.verdict == "slow"
    assert found.because.endswith("; NCCL uses no GPUDirect RDMA, the data passes through host memory, on n2")
    assert found.transports == {"NET/IB/0/GDRDMA": 2, "NET/IB/1/GDRDMA": 2, "NET/IB/0": 2, "NET/IB/1": 2}
    fast = judging.report(
        plan, {0: [{**row, "busbw_gbyte_s": 150.0}] * 3}, RDMA, "nccl", ["all_reduce"], channels
    )
    assert fast.verdict == "ok" and "GPUDirect" not in fast.because


def test_a_rate_above_all_cards_may_be_another_algorithm_than_a_ring() -> None:
    rows = [Row("all_reduce", 1, 1.0, 1.0, 240.0, True, 20, (), 1.0)] * 3
    verdict, because = judging.judge(rows, 200.0, RDMA, ())
    assert verdict == "not_judged"
    assert because.endswith(": NCCL did not use a ring, or part of the data used another path")


def test_a_rank_that_kept_a_processor_busy_is_no_proof_against_the_link() -> None:
    link = LinkRate(100.0, "n1 eth0, 100 Gbit/s")
    rows = [Row("all_reduce", 1, 1.0, 1.0, 1.5, True, 20, (), 1.0, busy=1.2)] * 3
    verdict, because = judging.judge(rows, 12.5, link, ())
    assert verdict == "not_judged" and "a rank kept a CPU busy" in because
    assert judging.judge([replace(row, busy=0.3) for row in rows], 12.5, link, ())[0] == "slow"


def test_sizes_that_did_not_fit_into_memory_are_told_with_the_rank() -> None:
    _, plan = made(pair_of_nodes(), 8)
    line = {"kind": "left_out", "rank": 0, "size_bytes": 1 << 29, "of": 5, "free_bytes": 1 << 30}
    found = judging.report(plan, {0: [line]}, RDMA, "nccl", ["all_reduce"], {})
    assert found.notes == ("512 MiB and more left out: rank 5 has 1 GiB of memory free",)


def test_who_straggles_is_told_for_every_operation_in_json_too() -> None:

    _, plan = made(pair_of_nodes(), 2)
    row = {"kind": "row", "size_bytes": 1, "busbw_gbyte_s": 9.0, "correct": True, "rank": 0}
    lines = [{**row, "op": "broadcast", "median_us": [10, 10, 20, 10]} for _ in range(5)]
    lines += [{**row, "op": "all_reduce", "median_us": [10, 10, 10, 10]} for _ in range(5)]
    found = judging.report(plan, {0: lines}, RDMA, "gloo", ["all_reduce", "broadcast"], {})
    told = "broadcast: rank 2 took over 1.25 times the ranks' median in 5 of the 5 largest sizes"
    assert show.bench_json(found, CorrectnessReport((), ()))["notes"] == [told]
    assert f"note: {told}" in show.bench_lines(found)


def test_every_operation_has_a_chart_with_its_name_and_unit() -> None:
    _, plan = made(pair_of_nodes(), 2)
    row = {"kind": "row", "correct": True, "rank": 0}
    rates = {"all_reduce": (1.0, 2.0), "broadcast": (4.0, 8.0)}
    lines = [
        {**row, "op": op, "size_bytes": 1024 << n, "busbw_gbyte_s": rate}
        for op, both in rates.items()
        for n, rate in enumerate(both)
    ]
    found = judging.report(plan, {0: lines}, RDMA, "gloo", [*rates], {})
    shown = show.bench_lines(found)
    at = shown.index("all_reduce: bus bandwidth (GB/s) by size")
    assert [line.split()[0] for line in shown[at + 1 : at + 3]] == ["1", "2"]
    far = " the link  carries 200, off this scale"
    assert shown[at + 3 : at + 6] == [far, "", "broadcast: bus bandwidth (GB/s) by size"]
    # Each has a scale of its own.
    assert shown[at + 2].count("#") == shown[at + 7].count("#") == show.CURVE_WIDTH


def test_the_chart_shows_how_far_the_rates_are_from_what_the_link_carries() -> None:
    rows = [Row("all_reduce", 1024 << n, 1.0, 1.0, 5.0 * (n + 1), True, 20, (), 1.0) for n in range(2)]
    *_, largest, link = show.curve(rows, 20.0)
    assert largest == f"    2 KiB  {'#' * (show.CURVE_WIDTH // 2)} 10"
    assert link == f" the link  {'-' * show.CURVE_WIDTH} 20"
    assert not any("the link" in line for line in show.curve(rows, None))
