"""`ringup env`: the fewest variables, what is already set judged, and the formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringup import bundle
from ringup.cli import command_line
from ringup.model import Cluster, Gid, Host, RdmaPort, Unreached, unreached_node
from ringup.nccl.rdma_devices import hca_value, wanted
from ringup.planning import network
from ringup.planning.minimal_env import minimal_env
from ringup.planning.preset_variables import kept
from tests import clusters as c
from tests import rule_cases_rdma as r

NEW, OLD = "2.28.9", "2.20.5"


def ib(device: str, rate: float = 200.0, **more: Any) -> RdmaPort:
    return RdmaPort(device, 1, "ACTIVE", link_layer="InfiniBand", rate_gbit_s=rate, **more)


def roce(device: str, rate: float = 100.0, **more: Any) -> RdmaPort:
    table = (
        Gid(0, "fe80::1", "IB/RoCE v1"),
        Gid(1, "fe80::1", "RoCE v2"),
        Gid(2, "::ffff:10.0.0.1", "IB/RoCE v1"),
        Gid(3, "::ffff:10.0.0.1", "RoCE v2"),
    )
    made = RdmaPort(device, 1, "ACTIVE", link_layer="Ethernet", rate_gbit_s=rate, gids=table)
    return replace(made, **more)


def cluster(*ports: RdmaPort, nccl: str = NEW, env: dict[str, str] | None = None) -> Cluster:
    """Two nodes with one card each, these RDMA ports, this NCCL."""
    made = c.healthy()
    told = replace(c.TORCH, nccl=nccl)
    for name in ("node0", "node1"):
        made = c.changed(made, name, rdma_ports=ports, interpreter=told)
    return replace(made, job=c.job(env=env or {}))


def env_of(made: Cluster, **options: Any) -> dict[str, str]:
    return {v.name: v.value for v in minimal_env(made, **options).env}


# What is set.


@pytest.mark.parametrize(
    "ports", [(), (ib("mlx5_0"),), (ib("mlx5_0"), ib("mlx5_1")), (roce("mlx5_0"), roce("mlx5_1"))]
)
def test_nothing_is_set_where_nccl_chooses_right(ports: tuple[RdmaPort, ...]) -> None:
    assert env_of(cluster(*ports)) == {}


def test_a_bond_among_fast_ports_is_left_out_and_the_reason_names_it() -> None:
    ports = (ib("mlx5_0"), ib("mlx5_1"), roce("mlx5_bond_0", 50.0))
    made = minimal_env(cluster(*ports)).env
    assert [(v.name, v.value, v.node) for v in made] == [("NCCL_IB_HCA", "=mlx5_0,mlx5_1", None)]
    assert "mlx5_bond_0:1/RoCE 50 Gbit/s" in made[0].because


def test_a_slow_port_of_the_same_kind_is_another_network() -> None:
    assert env_of(cluster(roce("mlx5_0", 400.0), roce("mlx5_1", 25.0))) == {"NCCL_IB_HCA": "=mlx5_0"}


def test_where_only_one_node_has_the_extra_port_only_that_node_is_told() -> None:
    made = c.changed(cluster(ib("mlx5_0")), "node1", rdma_ports=(ib("mlx5_0"), roce("mlx5_1", 25.0)))
    assert [(v.value, v.node) for v in minimal_env(made).env] == [("=mlx5_0", "node1")]


def test_ports_that_are_down_or_of_unknown_rate_decide_nothing() -> None:
    assert env_of(cluster(ib("mlx5_0"), replace(roce("mlx5_1", 25.0), state="DOWN"))) == {}
    assert wanted([ib("a"), replace(roce("b"), rate_gbit_s=None)]) == [
        ib("a"),
        replace(roce("b"), rate_gbit_s=None),
    ]


def test_what_the_user_set_stays() -> None:
    made = minimal_env(cluster(ib("mlx5_0"), roce("mlx5_1", 25.0), env={"NCCL_IB_HCA": "mlx5"}))
    assert made.env == () and any("set by you" in n for n in made.notes)


def test_a_gid_index_is_set_only_for_roce_and_only_before_2_21() -> None:
    assert env_of(cluster(roce("mlx5_0"), nccl=OLD)) == {"NCCL_IB_GID_INDEX": "3"}
    assert env_of(cluster(roce("mlx5_0"), nccl=NEW)) == {}
    assert env_of(cluster(ib("mlx5_0"), nccl=OLD)) == {}


def test_with_rdma_off_or_gloo_no_device_is_named() -> None:
    ports = (ib("mlx5_0"), roce("mlx5_1", 25.0))
    assert env_of(cluster(*ports, env={"NCCL_IB_DISABLE": "1"})) == {}
    made = cluster(*ports)
    assert env_of(replace(made, job=replace(made.job, backend="gloo"))) == {}


def test_devices_that_could_not_be_read_are_a_note() -> None:
    made = c.changed(cluster(), "node1", unknown={"rdma_ports": "no sysfs"})
    assert any("node1" in n and "no sysfs" in n for n in minimal_env(made).notes)


def test_the_interface_pin_of_the_plan_is_among_them() -> None:
    assert env_of(c.article_002(job=c.job()))["NCCL_SOCKET_IFNAME"] == "=enp99s0"


def test_debugging_names_fit_the_installed_torch() -> None:
    assert "TORCH_FR_DUMP_TEMP_FILE" in env_of(cluster(), debug=True)
    old = c.changed(cluster(), "node0", interpreter=replace(c.TORCH, torch="2.4.1"))
    names = env_of(old, debug=True, log_dir="/logs")
    assert names["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000" and "TORCH_FR_DUMP_TEMP_FILE" not in names
    assert names["NCCL_DEBUG_FILE"] == "/logs/nccl.%h.%p.log"


def test_a_port_number_is_written_only_where_its_device_has_others() -> None:
    two = [ib("a"), replace(ib("a"), number=2), ib("b")]
    assert hca_value([two[0], two[2]], two) == "=a:1,b"


# What is set already: the eight defaults of a platform's page, on three kinds of cluster.

PLATFORM = {
    "NCCL_IB_TC": "136",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_SOCKET_IFNAME": "eth",
    "NCCL_DEBUG": "INFO",
    "NCCL_IB_HCA": "mlx5",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_IB_QPS_PER_CONNECTION": "8",
    "NCCL_IB_DISABLE": "0",
}


def verdicts(made: Cluster) -> dict[str, str]:
    return {k.name: k.verdict for k in kept(made)}


def on_eth0(made: Cluster) -> Cluster:
    for k, node in enumerate(made.nodes):
        cards = c.numbered(c.interface("eth0", f"10.0.0.{10 + k}/24"))
        made = c.changed(made, node.name, interfaces=cards)
    return made


def test_the_platforms_defaults_on_roce_are_mostly_the_sites_or_nothing() -> None:
    assert verdicts(on_eth0(cluster(roce("mlx5_0"), env=PLATFORM))) == {
        "NCCL_IB_TC": "site",
        "NCCL_IB_GID_INDEX": "no-op",
        "NCCL_SOCKET_IFNAME": "no-op",
        "NCCL_DEBUG": "debugging",
        "NCCL_IB_HCA": "no-op",
        "NCCL_IB_TIMEOUT": "site",
        "NCCL_IB_QPS_PER_CONNECTION": "site",
        "NCCL_IB_DISABLE": "no-op",
    }


def test_on_infiniband_traffic_class_and_gid_index_do_nothing() -> None:
    found = verdicts(on_eth0(cluster(ib("mlx5_0"), env=PLATFORM)))
    assert found["NCCL_IB_TC"] == found["NCCL_IB_GID_INDEX"] == "no-op"


def test_on_another_cloud_they_break_the_job() -> None:
    # Interfaces are called enp99s0 there, devices bnxt_re0.
    found = verdicts(cluster(roce("bnxt_re0"), env=PLATFORM))
    assert found["NCCL_SOCKET_IFNAME"] == "harmful"
    env = {k: v for k, v in PLATFORM.items() if k != "NCCL_SOCKET_IFNAME"}
    assert verdicts(cluster(roce("bnxt_re0"), env=env))["NCCL_IB_HCA"] == "harmful"


def test_without_rdma_they_do_nothing() -> None:
    found = verdicts(on_eth0(cluster(env=PLATFORM)))
    assert {v for k, v in found.items() if k != "NCCL_DEBUG"} == {"no-op"}


@pytest.mark.parametrize(
    ("env", "verdict"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "harmful"),
        ({"NCCL_IB_HCA": "ib0"}, "harmful"),
        ({"NCCL_NET": "Socket"}, "harmful"),
        ({"NCCL_IB_HCA": "=mlx5_0"}, "changes"),
        ({"NCCL_SOCKET_IFNAME": "==enp99s0"}, "harmful"),
        ({"NCCL_IB_HCAS": "mlx5"}, "typo"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "debugging"),
        ({"NCCL_P2P_DISABLE": "1"}, "debugging"),
        ({"NCCL_BUFFSIZE": "8388608"}, "debugging"),
        ({"NCCL_CROSS_NIC": "1"}, "not judged"),
        ({"NCCL_RINGS": "0 1 2"}, "obsolete"),
        ({"NCCL_IB_QUERY_PORT_SPEED": "1"}, "obsolete"),
        ({"NCCL_FASTRAK_NUM_FLOWS": "2"}, "site"),
        ({"NCCL_DEBUG_SUBSYS": "NET"}, "contradicting"),
        ({"NCCL_DEBUG_FILE": "/tmp/nccl.log"}, "harmful"),
        ({"NCCL_DEBUG_FILE": "/tmp/nccl.%h.%p"}, "debugging"),
        ({"GLOO_SOCKET_IFNAME": "enp99s0"}, "no-op"),
        ({"GLOO_SOCKET_IFNAME": "eth7"}, "harmful"),
    ],
)
def test_a_variable_is_judged_by_what_it_does(env: dict[str, str], verdict: str) -> None:
    assert verdicts(cluster(ib("mlx5_0"), ib("mlx5_1"), env=env)) == {next(iter(env)): verdict}


def test_an_index_of_an_entry_that_is_v1_or_missing_is_harmful() -> None:
    for index in ("0", "2", "9"):
        assert verdicts(cluster(roce("mlx5_0"), env={"NCCL_IB_GID_INDEX": index})) == {
            "NCCL_IB_GID_INDEX": "harmful"
        }


def test_a_variable_of_one_nodes_shell_is_told_with_that_node() -> None:
    made = c.changed(cluster(ib("mlx5_0")), "node1", environment={"NCCL_IB_DISABLE": "1"})
    assert [(k.node, k.verdict) for k in kept(made)] == [("node1", "harmful")]


# The command.


def test_json_of_the_command_holds_env_kept_and_notes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "cluster.json"
    ports = (ib("mlx5_0"), roce("mlx5_1", 25.0))
    bundle.save(cluster(*ports, env={"NCCL_DEBUG": "INFO"}), saved)
    assert command_line.dispatch(["env", "--from", str(saved), "--format", "json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["env"][0]["name"] == "NCCL_IB_HCA" and whole["env"][0]["because"]
    assert whole["kept"][0]["verdict"] == "debugging" and whole["notes"] == []


def test_the_shell_format_goes_to_stdout_and_the_rest_to_stderr(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "cluster.json"
    bundle.save(cluster(env={"NCCL_DEBUG": "INFO"}), saved)
    assert command_line.dispatch(["env", "--from", str(saved)]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("# nothing needs to be set") and "kept: NCCL_DEBUG=INFO" in told.err
    assert "was checked" not in told.err
    alone = replace(cluster(), nodes=cluster().nodes[:1])
    bundle.save(alone, saved)
    assert command_line.dispatch(["env", "--from", str(saved)]) == 0
    assert f"note: only {alone.nodes[0].name} was checked" in capsys.readouterr().err
    lost = replace(alone.nodes[0], unreached=Unreached("ssh-name-unknown", "no such name"))
    bundle.save(replace(alone, nodes=(lost,)), saved)
    assert command_line.dispatch(["env", "--from", str(saved)]) == 1
    assert "was checked" not in capsys.readouterr().err


def test_where_a_set_variable_does_harm_nccl_is_not_said_to_choose_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle.save(cluster(), tmp_path / "cluster.json")
    words = ["env", "--from", str(tmp_path / "cluster.json"), "--env", "NCCL_SOCKET_IFNAME=nosuch"]
    assert command_line.dispatch(words) == 0
    told = capsys.readouterr()
    assert "NCCL_SOCKET_IFNAME=nosuch: harmful" in told.err
    assert "choose right" not in told.out and told.out.endswith("harmful variables: NCCL_SOCKET_IFNAME\n")


@pytest.mark.parametrize("form", ["shell", "slurm"])
def test_a_node_that_was_not_reached_is_not_said_to_choose_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, form: str
) -> None:
    saved, made = tmp_path / "cluster.json", cluster()
    lost = unreached_node(Host("node1"), Unreached("ssh-key-refused", "no"))
    bundle.save(replace(made, nodes=(made.nodes[0], lost)), saved)
    assert command_line.dispatch(["env", "--from", str(saved), "--format", form]) == 1
    told = capsys.readouterr()
    assert "choose right" not in told.out and "a question is open" in told.out
    assert "note: no interface could be proven to join all nodes" in told.err


def test_run_and_check_set_what_env_prints() -> None:
    made = cluster(ib("mlx5_0"), roce("mlx5_bond_0", 50.0))
    plan = network.decide(made, "r")
    assert plan is not None and plan.env == minimal_env(made).env
    assert all(n.env["NCCL_IB_HCA"] == "=mlx5_0" for n in plan.nodes)


def test_on_one_machine_no_device_is_named() -> None:
    one = replace(cluster(ib("mlx5_0"), roce("mlx5_1", 25.0)), is_local=True)
    assert env_of(one) == {} and env_of(one.only(one.nodes[:1])) == {}


def test_a_port_that_lost_its_rate_on_one_node_is_left_out_nowhere() -> None:
    for rate in (100.0, 50.0):
        cluster = r.with_port(r.two_ib, rate_gbit_s=rate)()
        assert not [v for v in minimal_env(cluster).env if v.name == "NCCL_IB_HCA"]
