"""
One machine of each platform, from its files to the environment for a job: compared whole with golden files.

The real parts of the facts script read the tree; findings, predictions and variables are those of two such
nodes that reach each other.  `make golden` rewrites; read the difference.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import shutil
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import ringup.checks  # noqa: F401
from ringup.model import Cluster
from ringup.nccl.selection import Prediction, predict
from ringup.network.predictions import Expected, Predictions, known
from ringup.output import console, prediction_report
from ringup.planning import expected, mitigations, network
from ringup.planning.minimal_env import minimal_env
from ringup.rules import Finding, run_checks
from tests import platforms

GOLDEN = Path(__file__).parent / "golden" / "platforms"

pytestmark = pytest.mark.slow


@cache
def built(name: str) -> Cluster:
    """Two nodes of a platform."""
    folder = mkdtemp(prefix="ringup-platform-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return platforms.cluster(name, Path(folder))


def settled(made: Cluster) -> list[Finding]:
    findings, _ = run_checks(made)
    return mitigations.weigh(findings, network.decide(made, "run"), made)


def foretold(name: str) -> Expected:
    made = built(name)
    return expected(Predictions(made), network.decide(made, "run"))[0]


def compare(path: Path, text: str) -> None:
    if os.environ.get("RINGUP_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def as_data(name: str) -> dict[str, Any]:
    """Everything that is known, judged, foretold and decided of a platform."""
    made = built(name)
    plan = network.decide(made, "run")
    assert plan is not None
    _, skipped = run_checks(made)
    variables = minimal_env(made)
    return {
        "facts": platforms.told(made.nodes[0]),
        "unknown": dict(made.nodes[0].unknown),
        "findings": [
            {k: v for k, v in console.finding_json(f).items() if k != "help"} for f in settled(made)
        ],
        "not_checked": [[s.rule, s.node, s.reason] for s in skipped],
        "predictions": [prediction_report.expected_json(p) for p in expected(Predictions(made), plan)],
        "env": [asdict(v) for v in variables.env],
        "notes": [*plan.notes, *variables.notes],
    }


@pytest.mark.parametrize("name", platforms.NAMES)
def test_a_platforms_facts_findings_prediction_and_environment_are_the_golden_ones(name: str) -> None:
    data = json.dumps(as_data(name), indent=1, sort_keys=True, ensure_ascii=False)
    compare(GOLDEN / f"{name}.json", data + "\n")


@pytest.mark.parametrize("name", platforms.NAMES)
def test_what_check_prints_of_a_platform_is_the_golden_text(name: str) -> None:
    made = built(name)
    plan = network.decide(made, "run")
    _, skipped = run_checks(made)
    style = console.Style(io.StringIO())
    text = console.check_text(
        console.Report(made, settled(made), skipped, plan, expected(Predictions(made), plan)), style
    )
    compare(GOLDEN / f"{name}.txt", text + "\n")


@pytest.mark.parametrize("name", platforms.NAMES)
def test_every_description_says_where_it_comes_from(name: str) -> None:
    assert (platforms.RECORDED / name / "README").read_text().startswith("from: ")


def test_there_is_a_tree_for_every_platform_and_a_golden_file_for_every_tree() -> None:
    assert len(platforms.NAMES) >= 7
    assert {p.stem for p in GOLDEN.glob("*.json")} == set(platforms.NAMES)
    assert {p.stem for p in GOLDEN.glob("*.txt")} == set(platforms.NAMES)


# What must be true whatever the golden files say.


def test_on_a_node_with_a_roce_port_and_one_that_is_down_the_near_infiniband_port_is_used() -> None:
    one = foretold("hdr-roce-down")
    assert one.prediction.network == "IB"
    assert one.prediction.interfaces == ("mlx5_1:1/IB", "mlx5_3:1/IB")
    assert [(u.gpu, u.device) for u in one.prediction.used] == [(0, "mlx5_1:1")]
    assert one.alone is not None and one.alone.interfaces[0] == "mlx5_0:1/RoCE"


def test_beside_eight_adapters_the_bond_is_left_out_and_each_gpu_uses_its_neighbour() -> None:
    made = foretold("eight-hcas-bond").prediction
    assert made.interfaces == tuple(f"mlx5_{n}:1/IB" for n in range(8))
    assert [(u.gpu, u.device) for u in made.used] == [(n, f"mlx5_{n}:1") for n in range(8)]
    assert [v.value for v in minimal_env(built("eight-hcas-bond")).env if v.name == "NCCL_IB_HCA"] == [
        "=" + ",".join(f"mlx5_{n}" for n in range(8))
    ]


def test_roce_with_a_vlan_names_the_entry_of_the_table_that_is_taken() -> None:
    made = foretold("roce").prediction
    assert made.network == "IB" and [u.device for u in made.used] == ["mlx5_0:1", "mlx5_1:1"]
    assert any("GID index 3 of mlx5_1:1" in b and "eth3.200" in b for b in made.because)


def test_plain_ethernet_uses_the_port_and_neither_docker0_nor_a_containers_cable() -> None:
    made = foretold("ethernet-docker").prediction
    assert made.network == "Socket" and [i.partition(":")[0] for i in made.interfaces] == ["eno1"]


def test_efa_without_its_plugin_falls_back_to_sockets_and_with_it_goes_over_libfabric() -> None:
    made = foretold("efa").prediction
    assert made.network == "Socket" and any("no OFI plugin is there" in b for b in made.because)
    node = replace(built("efa").nodes[0], nccl_plugins=("/opt/amazon/ofi-nccl/lib/libnccl-net.so",))
    assert predict(known(node), {}).network == "OFI"
    assert predict(known(replace(node, unknown={"nccl_plugins": "x"})), {}).confidence == "low"


def test_a_node_without_gpus_is_told_of_gloo() -> None:
    made = foretold("no-gpu").prediction
    assert made.network == "Gloo" and made.interfaces == ("eno1:10.0.0.10",)


def test_gpus_that_cannot_reach_each_other_are_no_fault_of_the_network() -> None:
    assert foretold("consumer-no-p2p").prediction.network == "Socket"
    assert {u.device for u in foretold("consumer-no-p2p").prediction.used} == {"enp6s0"}


@pytest.mark.parametrize("name", platforms.NAMES)
def test_no_platform_has_an_error(name: str) -> None:
    errors = [f"{f.rule}: {f.found}" for f in settled(built(name)) if f.severity == "error"]
    assert errors == [] or name == "efa", errors


# The results of article 000, sentence by sentence, on the live tree of a node of that build.


def alone(**env: str) -> Prediction:
    """What NCCL does on the node with an InfiniBand port near and far, a RoCE port, and one that is down."""
    return predict(known(built("hdr-roce-down").nodes[0]), env)


def used(made: Prediction) -> list[str]:
    return [u.device for u in made.used]


@pytest.mark.parametrize("value", ["ib0", "ib1", "ens13np0", "ens17np0", "ens21f0"])
def test_with_a_name_that_is_no_rdma_device_both_ib_interfaces_are_listed_and_ib0_is_used(value: str) -> None:
    made = alone(NCCL_IB_DISABLE="0", NCCL_IB_HCA=value)
    assert made.network == "Socket" and [i.split(":")[0] for i in made.interfaces] == ["ib1", "ib0"]
    assert used(made) == ["ib0"]  # the log's `via NET/Socket/1`


@pytest.mark.parametrize("value", ["mlx5_0", "mlx5_1", "mlx5_3"])
def test_an_rdma_device_that_is_named_is_used(value: str) -> None:
    made = alone(NCCL_IB_DISABLE="0", NCCL_IB_HCA=value)
    assert made.network == "IB" and used(made) == [f"{value}:1"]


def test_an_rdma_device_that_is_named_and_down_is_replaced_by_sockets() -> None:
    made = alone(NCCL_IB_DISABLE="0", NCCL_IB_HCA="mlx5_2")
    assert made.network == "Socket" and used(made) == ["ib0"]
    assert any("mlx5_2:1 is DOWN" in b for b in made.because)


def test_with_nothing_said_the_fastest_native_infiniband_port_is_used_by_itself() -> None:
    made = alone(NCCL_IB_DISABLE="0")
    assert made.interfaces == ("mlx5_0:1/RoCE", "mlx5_1:1/IB", "mlx5_3:1/IB") and used(made) == ["mlx5_1:1"]


@pytest.mark.parametrize("value", ["ib0", "ib1", "ens13np0", "ens21f0"])
def test_with_rdma_off_the_interface_that_is_named_is_used(value: str) -> None:
    made = alone(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME=value)
    assert made.network == "Socket" and used(made) == [value]
    assert made.bootstrap is not None and made.bootstrap.interface == value


def test_with_rdma_off_an_interface_that_cannot_be_used_is_an_error_at_once() -> None:
    made = alone(NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="ens17np0")
    assert (made.network, made.log_line) == ("", "Bootstrap : no socket interface found")


def test_with_rdma_off_and_nothing_said_ib0_and_ib1_are_found_and_ib0_is_used() -> None:
    made = alone(NCCL_IB_DISABLE="1")
    assert [i.split(":")[0] for i in made.interfaces] == ["ib1", "ib0"] and used(made) == ["ib0"]


def test_a_topology_file_makes_the_live_tree_doubtful() -> None:
    assert alone().confidence == "high"
    made = alone(NCCL_TOPO_FILE="/opt/topo.xml")
    assert made.confidence == "medium" and any("NCCL_TOPO_FILE" in d for d in made.doubts)


def test_a_gpu_that_is_not_on_the_tree_makes_it_doubtful() -> None:
    node = replace(built("hdr-roce-down").nodes[0], gpu_count=2)
    assert any("1 of 2 GPUs" in d for d in predict(known(node), {}).doubts)


def test_without_a_tree_nothing_is_said_of_the_card_a_gpu_uses() -> None:
    node = replace(built("hdr-roce-down").nodes[0], pci=(), unknown={"pci": "/sys is not mounted"})
    made = predict(known(node), {})
    assert made.used == () and any("depends on the PCI tree" in b for b in made.because)
