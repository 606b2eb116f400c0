"""Cases at an edge that planted faults showed to be missing: each once failed for no test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringup.checks.gpu import FAULTS
from ringup.hang import ras
from ringup.hang.activity import troubles
from ringup.hang.snapshots import NodeState
from ringup.logs.read import Diagnosis, read_logs
from ringup.model import Cluster, Space
from ringup.nccl import rdma_devices
from ringup.nccl.rdma_devices import number
from ringup.parse.nccl import of_release
from ringup.planning.preset_variables import ack_timeout
from ringup.rules import CHECKS, Finding, run_checks
from tests import clusters as c
from tests.rule_cases import everywhere, on_node1
from tests.rule_cases_gpu import FIRES, gpu
from tests.rule_cases_machine import gpus
from tests.rule_cases_rdma import nodes, roce

MIB = 1 << 20


def findings(rule: str, cluster: Cluster) -> list[Finding]:
    return run_checks(cluster, {rule: CHECKS[rule]})[0]


def of_node(cluster: Cluster, name: str, **fields: Any) -> Cluster:
    return c.changed(cluster, name, **fields)


# Checks.


@pytest.mark.parametrize(
    ("heat", "shown"), [((91.0, 84.0), ", 91 °C"), ((None, 84.0), ", 84 °C"), ((None, None), "")]
)
def test_of_throttled_gpus_the_hottest_is_told(heat: tuple[float | None, ...], shown: str) -> None:
    two = tuple(gpu(n, throttle_reasons=0x48, temperature_c=heat[n]) for n in (0, 1))
    (found,) = findings("gpu-throttled", on_node1(gpus=two)())
    assert found.found.endswith(shown) and found.found.count("°C") == bool(shown)


def test_a_variable_that_is_alike_everywhere_hides_no_other_one() -> None:
    cluster = everywhere(environment={"NCCL_ALGO": "Ring"})()
    cluster = of_node(cluster, "node1", environment={"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"})
    assert [f.where for f in findings("environment-differs-between-nodes", cluster)] == ["NCCL_PROTO"]


def test_the_node_without_the_plugin_is_the_one_that_is_named() -> None:
    plugins = ("/usr/lib/libnccl-net.so",)
    cluster = gpus(on_node1(nccl_plugins=plugins))()
    assert [f.node for f in findings("network-plugin-missing", cluster)] == ["node0"]


def test_of_two_traffic_classes_the_lower_is_the_odd_one() -> None:
    cluster = nodes(lambda k: (roce(0, f"10.10.0.{k + 10}", trust="dscp", traffic_class=106 * k),))
    found = findings("dscp-not-trusted", cluster)
    assert [f.node for f in found] == ["node0"] and "traffic classes 0, 106" in found[0].found


def test_a_machine_named_twice_hides_no_pair_of_clones() -> None:
    twice = {"boot_id": "boot-a", "hostname": "alpha"}
    clones = {"boot_id": "boot-b", "hostname": "beta"}
    cluster = c.healthy(4)
    one = cluster.nodes[0].interfaces
    cluster = of_node(of_node(cluster, "node0", **twice), "node1", **twice, interfaces=one)
    cluster = of_node(of_node(cluster, "node2", **clones), "node3", **clones)
    found = [f.found for f in findings("same-machine-twice", cluster)]
    assert any("node0, node1 are one machine" in text for text in found)
    assert any("node2, node3 have one host name, beta" in text for text in found)


def test_an_acs_override_leaves_iommu_groups_without_meaning() -> None:
    cluster = FIRES["acs-enabled"]()
    for node in cluster.nodes:
        cluster = of_node(cluster, node.name, boot_options=("pcie_acs_override=downstream",))
    found, skipped = run_checks(cluster, {"acs-enabled": CHECKS["acs-enabled"]})
    assert not found
    assert any("pcie_acs_override" in s.reason for s in skipped)


@pytest.mark.parametrize(("free", "severities"), [(128 * MIB, ["warning"]), (128 * MIB - 1, ["error"])])
def test_gpus_need_128_mib_free_in_dev_shm(free: int, severities: list[str]) -> None:
    cluster = gpus(on_node1(shm=Space("/dev/shm", 64 << 30, free)))()
    assert [f.severity for f in findings("shm-too-small", cluster)] == severities


@pytest.mark.parametrize(
    ("size", "free", "full"),
    [
        (1 << 30, 8 * MIB, False),
        (1 << 30, MIB // 2, True),
        (1 << 40, 15 * MIB, True),
        (1 << 40, 17 * MIB, False),
    ],
)
def test_a_disk_is_full_below_a_thousandth_and_below_16_mib(size: int, free: int, full: bool) -> None:
    state = replace(NodeState(), disks=(("/scratch", free, size),))
    assert troubles(None, state) == (["/scratch is full"] if full else [])


def test_a_number_in_hexadecimal_or_with_a_sign_is_read_as_nccl_reads_it() -> None:
    assert number({"NCCL_IB_TC": "0x6a"}, "NCCL_IB_TC", 0) == 106
    assert number({}, "NCCL_IB_TC", 7) == 7


def test_a_default_holds_from_the_release_that_brought_it() -> None:
    releases = [(2, 14, 2), (2, 14, 3), (2, 23, 3), (2, 23, 4)]
    assert [ack_timeout(release) for release in releases] == [14, 18, 18, 20]
    files = [("passwd", ["NCCL_NET=IB"]), ("named", ["NCCL_NET=Socket"])]
    assert [of_release(files, release)["NCCL_NET"] for release in releases] == ["IB", "IB", "IB", "Socket"]


def test_an_address_range_may_be_written_with_the_bits_of_a_host() -> None:
    assert str(rdma_devices._subnet("10.1.2.3/16", 4)) == "10.1.0.0/16"


def test_a_rank_that_ras_lists_with_the_most_calls_is_not_behind() -> None:
    text = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  Rank 0 has launched up to operation 9 -- GPU 0 managed by process 10 on node n0
  Rank 1 has launched up to operation 8 -- GPU 1 managed by process 11 on node n0
"""
    assert [one.rank for one in ras.read("text", text)] == [1]


def test_xids_at_the_ends_of_ranges_are_faults() -> None:
    assert {105, 110, 117, 122, 125} <= FAULTS and not {93, 106, 109, 118, 121, 126} & FAULTS


# Logs.


def diagnose(folder: Path, *lines: str) -> Diagnosis:
    log = folder / "job.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_logs([str(log)])


def rules(found: Diagnosis) -> list[str]:
    return [cause.rule for cause in found.causes]


def test_a_missing_program_that_is_no_launcher_is_not_called_one(tmp_path: Path) -> None:
    found = diagnose(tmp_path, "slurmstepd: error: execve(): nvidia-smi: No such file or directory")
    assert "python-or-launcher-missing" not in rules(found)


def test_two_hidden_gpus_of_one_node_talk_over_the_nic(tmp_path: Path) -> None:
    lines = [
        f"n0:{5 + r}:{9 + r} [{r}] NCCL INFO comm 0x{r + 1}000 rank {r} nRanks 2 nNodes 1 localRanks 2 "
        f"localRank {r} MNNVL 0"
        for r in range(2)
    ]
    via = "n0:5:9 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0"
    assert "gpus-hidden-between-ranks" in rules(diagnose(tmp_path, *lines, via))
    alone = [line.replace("localRanks 2", "localRanks 1") for line in lines[:1]]
    assert "gpus-hidden-between-ranks" not in rules(diagnose(tmp_path, *alone, via))


def test_one_node_without_a_host_file_needs_none(tmp_path: Path) -> None:
    warned = "[WARNING] [runner.py:202:fetch_hostfile] Unable to find hostfile, will proceed with training"
    assert "hostfile-missing" not in rules(diagnose(tmp_path, warned, "--nnodes=1 train.py"))
