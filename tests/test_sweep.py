"""`ringup sweep`: which settings are tried, what was used, which one is kept; without any node."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringup import bundle
from ringup.cli import sweep as command
from ringup.cli.command_line import dispatch
from ringup.collective_tests import BandwidthReport, LinkRate, Row, sweep
from ringup.collective_tests.sweep import DataPath, Trial
from ringup.errors import UsageError
from ringup.model import Cluster, Job, RdmaPort
from ringup.output import sweep_report as show
from ringup.output.terminal import Style
from ringup.planning import EnvVar, ExpectedTransport, NodePlan, Plan
from tests import clusters as c
from tests import json_outputs


def port(device: str, rate: float, layer: str = "InfiniBand", state: str = "ACTIVE") -> RdmaPort:
    return RdmaPort(device, 1, state, "", layer, rate, width=4)


def with_gpus(*ports: RdmaPort) -> Cluster:
    nodes = []
    for k in range(2):
        management = c.interface("eno1", f"10.9.0.{k + 1}/24")
        fast = c.interface("ib0", f"10.1.0.{k + 1}/24", kind="infiniband")
        nodes.append(c.node(f"n{k}", management, fast, rdma_ports=ports, gpu_count=8))
    return c.cluster(*nodes)


def hca_values(cluster: Cluster) -> list[str]:
    found = sweep.candidates(cluster, "nccl")
    return [env["NCCL_IB_HCA"] for env in found if "NCCL_IB_HCA" in env]


def trials_of(cluster: Cluster, backend: str) -> list[Trial]:
    words = ("bench", backend, "60", "60", "all_reduce", "1024", "0")
    this = command.Sweep(argparse.Namespace(dry_run=True), cluster, words, 0.0)
    return list(command._trials(this, sweep.candidates(cluster, backend)))


def test_interfaces_that_every_node_has_are_candidates_by_their_exact_name() -> None:
    nodes = [c.two_networks(0), c.two_networks(1, first="em2")]
    assert sweep.candidates(c.cluster(*nodes), "gloo") == [{}, {"GLOO_SOCKET_IFNAME": "enp99s0"}]
    assert sweep.candidates(c.cluster(*nodes), "nccl") == [{}, {"NCCL_SOCKET_IFNAME": "=enp99s0"}]


def test_what_the_user_set_for_the_job_is_not_varied() -> None:
    cluster = replace(with_gpus(port("mlx5_0", 200.0)), job=Job(env={"NCCL_IB_HCA": "mlx5_0"}))
    found = sweep.candidates(cluster, "nccl")
    assert len(found) > 3 and not any("NCCL_IB_HCA" in env for env in found)


def test_few_rdma_ports_are_tried_one_by_one_and_many_by_kind() -> None:
    two = [port("mlx5_0", 100.0, "Ethernet"), port("mlx5_1", 200.0), port("mlx5_2", 200.0, state="DOWN")]
    assert hca_values(with_gpus(*two)) == ["=mlx5_0", "=mlx5_1"]
    nine = [port("mlx5_bond_0", 50.0, "Ethernet"), *(port(f"mlx5_{k}", 400.0) for k in range(8))]
    assert hca_values(with_gpus(*nine)) == ["=mlx5_bond_0", f"={','.join(f'mlx5_{k}' for k in range(8))}"]


def test_settings_with_one_prediction_are_one_trial_with_the_fewest_variables() -> None:
    found = trials_of(with_gpus(port("mlx5_0", 200.0)), "nccl")
    by_path = {(t.predicted[0].network, *t.predicted[0].devices): t for t in found}
    assert set(by_path) == {("IB", "mlx5_0:1"), ("Socket", "ib0"), ("Socket", "eno1")}
    default = by_path["IB", "mlx5_0:1"]
    assert default.env == {} and {"NCCL_IB_HCA": "=mlx5_0"} in default.also
    assert {"NCCL_SOCKET_IFNAME": "=eno1"} in default.also  # its bootstrap differs, its data path does not
    assert by_path["Socket", "eno1"].env == {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "=eno1"}
    assert not any(t.because for t in found)


def test_what_the_check_proves_to_hang_is_a_trial_with_the_proof() -> None:
    nodes = [c.two_networks(k) for k in range(2)]
    cluster = c.cluster(*nodes, broken=[("node1", "node0", "10.12.5.64", "timed out")])
    found = {t.predicted[0].devices: t for t in trials_of(cluster, "gloo")}
    assert "node1 -> node0 em1 10.12.5.64: timed out" in found[("em1",)].because
    good = found[("enp99s0",)]
    assert good.because == "" and good.env == {} and good.also == ({"GLOO_SOCKET_IFNAME": "enp99s0"},)
    chosen = replace(good, adds=(EnvVar("GLOO_SOCKET_IFNAME", "enp99s0", ""),))
    shown = show.lines((chosen,), None, Style(io.StringIO()), is_over=False)
    assert shown[-1] == "   ringup's choice: GLOO_SOCKET_IFNAME=enp99s0"  # not again as an equal prediction


# -- what was used -------------------------------------------------------------------------------


def plan_of(cluster: Cluster, network: str, devices: Sequence[str]) -> Plan:
    nodes = tuple(NodePlan(n.name, k, 1, k, "", "", (), {}) for k, n in enumerate(cluster.nodes))
    made = tuple(ExpectedTransport(n.name, network, tuple(devices), "high") for n in cluster.nodes)
    return Plan("r", Job(), nodes, (), "", 29500, len(nodes), transports=made)


def used(cluster: Cluster, plan: Plan, sent: object, **more: Any) -> list[DataPath]:
    lines = [{"kind": "tcp", "rank": k, "sent_bytes": sent} for k in range(len(cluster.nodes))]
    record = {"transports": {"seen": more.get("seen", [])}}
    return list(sweep.used(cluster, plan, lines, record, more.get("channels", {})))


@pytest.mark.parametrize(
    ("sent", "devices"),
    [
        ({"lo": 0, "em1": 900, "enp99s0": 10_000_000}, ("enp99s0",)),
        ({"em1": 4_000_000, "enp99s0": 10_000_000}, ("em1", "enp99s0")),
        ({}, ()),
        (None, ()),
        ({"x": "1", "y": [1], "em1": 5}, ("em1",)),
    ],
)
def test_over_tcp_the_kernels_counters_tell_which_interface_carried_the_data(
    sent: object, devices: tuple[str, ...]
) -> None:
    cluster = c.cluster(*(c.two_networks(k) for k in range(2)))
    found = used(cluster, plan_of(cluster, "Gloo", ["enp99s0:90.91.33.64"]), sent)
    assert found == [DataPath(n.name, "Gloo", devices) for n in cluster.nodes]


def test_bytes_of_a_vlan_are_not_also_those_of_its_card() -> None:
    cards = [
        [c.interface("eth0"), c.interface("eth0.7", f"10.0.0.{k + 1}/24", kind="vlan")] for k in range(2)
    ]
    cluster = c.cluster(*(c.node(f"n{k}", *own) for k, own in enumerate(cards)))
    plan = plan_of(cluster, "Gloo", ["eth0.7:10.0.0.1"])
    assert used(cluster, plan, {"eth0": 5000, "eth0.7": 4900})[0].devices == ("eth0.7",)


def test_over_rdma_nccls_channels_tell_which_devices_carried_the_data() -> None:
    cluster = with_gpus(port("mlx5_0", 200.0), port("mlx5_1", 200.0))
    shown = ["mlx5_0:1/IB", "mlx5_1:1/IB"]
    seen = [{"node": n.name, "network": "IB", "devices": shown} for n in cluster.nodes]
    channels = {"n0": {"NET/IB/1/GDRDMA": 8, "P2P/CUMEM": 4}, "n1": {"NET/IB/0(2)": 1, "NET/IB/1": 1}}
    found = used(cluster, plan_of(cluster, "IB", shown), {"eno1": 99}, seen=seen, channels=channels)
    assert [one.devices for one in found] == [("mlx5_1:1",), ("mlx5_0:1", "mlx5_1:1")]


def test_nccl_over_tcp_where_rdma_was_predicted_is_not_as_predicted() -> None:
    cluster = with_gpus(port("mlx5_0", 200.0))
    seen = [{"node": n.name, "network": "Socket", "devices": ["eno1:10.9.0.1<0>"]} for n in cluster.nodes]
    found = used(cluster, plan_of(cluster, "IB", ["mlx5_0:1/IB"]), {"eno1": 99}, seen=seen)
    assert [(one.network, one.devices) for one in found] == [("Socket", ("eno1",))] * 2
    trial = sweep.measured(Trial({}, tuple(DataPath(n.name, "IB", ("mlx5_0:1",)) for n in cluster.nodes)),
                           report(1.0), tuple(found), "")  # fmt: skip
    assert trial.as_predicted is False and "NOT AS PREDICTED" in show.verdict(trial, 1.0)


def test_a_part_of_the_predicted_devices_is_as_predicted_and_none_is_not_known() -> None:
    two = (DataPath("n0", "IB", ("mlx5_0:1", "mlx5_1:1")),)
    for devices, expected in ((("mlx5_0:1",), True), (("mlx5_2:1",), False), ((), None)):
        made = sweep.measured(Trial({}, two), report(1.0), (DataPath("n0", "IB", devices),), "")
        assert made.as_predicted is expected


# -- which one to keep ---------------------------------------------------------------------------


def report(rate: float, **more: Any) -> BandwidthReport:
    row = Row("all_reduce", 1 << 20, 1.0, rate, rate, more.pop("correct", True), 20, (), 1.0, **more)
    link = LinkRate(None, "")
    return BandwidthReport((row.op,), 2, 2, "gloo", (row,), (), link, None, "not_judged", "", (), (), {})


def trial(name: str, rate: float = 0.0, failed: str = "", **more: Any) -> Trial:
    path = (DataPath("n0", "Gloo", (name,)), DataPath("n1", "Gloo", (name,)))
    made = Trial({"GLOO_SOCKET_IFNAME": name}, path)
    return sweep.measured(made, report(rate, **more), path, failed)


def test_of_settings_that_are_as_fast_the_first_is_kept() -> None:
    made, keep = sweep.judged([trial("a", 0.95), trial("b", 1.0), trial("c", 0.5)])
    assert [t.verdict for t in made] == ["as-fast", "fastest", "slower"]
    assert keep is made[0]


def test_wrong_results_and_failures_are_never_kept() -> None:
    wrong = trial("a", 9.0, correct=False, wrong_ranks=(1,))
    made, keep = sweep.judged([wrong, trial("b", failed="rank 1 on n1"), trial("c", 1.0)])
    assert [t.verdict for t in made] == ["wrong", "failed", "fastest"] and keep is made[2]
    assert sweep.judged([wrong])[1] is None


def test_a_rate_of_ranks_without_cpu_time_is_no_verdict() -> None:
    made, keep = sweep.judged([trial("a", 0.5, starved=0.6), trial("b", 1.0), trial("c", 0.5, starved=0.1)])
    assert [t.verdict for t in made] == ["not-judged", "fastest", "slower"] and keep is made[1]
    assert "no CPU time for up to 60%" in made[0].because


def test_a_trial_ends_when_its_time_is_over() -> None:
    watch = command.TimeIsUp(100.0)
    assert watch.on_time(99.9, (), None) == "" and watch.on_time(100.0, (), None)


# -- the screen ----------------------------------------------------------------------------------


def test_the_table_ends_with_the_setting_to_keep_and_fits_80_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    hangs = Trial(
        {"GLOO_SOCKET_IFNAME": "em1"}, trial("em1", 1.0).predicted, because="node0 em1: " + "x " * 60
    )
    made, keep = sweep.judged([trial("eno1", 0.1), trial("enp99s0", 1.0), hangs])
    lines = show.lines(made, keep, Style(io.StringIO()), is_over=True)
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines if line[:1].isdigit()]
    assert [row[1:3] for row in rows] == [["eno1", "eno1"], ["enp99s0", "enp99s0"], ["em1", "-"]]
    assert rows[0][-4:] == ["10%", "of", "the", "fastest"] and rows[2][-2:] == ["not", "tried"]
    assert lines[-3].startswith("keep setting 2 (enp99s0, 1 GB/s):")
    assert lines[-2] == "  export GLOO_SOCKET_IFNAME=enp99s0"
    assert show.lines(made, None, Style(io.StringIO()), is_over=True)[-1] == "No setting works."


def test_many_devices_and_nodes_that_differ_are_short() -> None:
    eight = tuple(f"mlx5_{k}:1" for k in range(8))
    assert show.devices([DataPath(n, "IB", eight) for n in ("n0", "n1")]) == "IB mlx5_0:1..mlx5_7:1 (8)"
    apart = [DataPath("n0", "Gloo", ("em1",)), DataPath("n1", "Gloo", ("enp99s0",))]
    assert show.devices(apart) == "n0: em1; n1: enp99s0"
    assert show.devices([DataPath("n0", "", ())]) == "unknown"


def test_what_is_proven_to_fail_is_said_before_it_is_tried_anyway() -> None:
    proven = Trial({"GLOO_SOCKET_IFNAME": "em1"}, trial("em1").predicted, because="timed out")
    style = Style(io.StringIO())
    said = [" ".join(" ".join(show.before([proven], (), style, anyway)).split()) for anyway in (False, True)]
    words = "GLOO_SOCKET_IFNAME=em1: the check proves that it fails: timed out"
    assert said[0].endswith(f"not tried: {words}") and said[1].endswith(
        f"tried all the same (--anyway): {words}"
    )


def test_names_of_devices_cannot_reach_the_terminal() -> None:
    made, keep = sweep.judged([trial("e\x1b]0;x\x07", 1.0)])
    assert not set("".join(show.lines(made, keep, Style(io.StringIO()), is_over=True))) & {"\x1b", "\x07"}
    assert not set("".join(show.before(made, (), Style(io.StringIO()), False))) & {"\x1b", "\x07"}


def test_a_dry_run_contacts_no_node_and_its_json_is_as_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle.save(c.article_002(), tmp_path / "facts")
    assert dispatch(["sweep", "--from", "facts", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    json_outputs.check("sweep", told)
    (only,) = told["settings"]
    assert (told["keep"], only["verdict"]) == (None, "not-tried")
    assert [v["name"] for v in only["adds"]] == ["GLOO_SOCKET_IFNAME"]
    assert not (tmp_path / "runs").exists()


def test_what_would_be_used_without_ringup_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle.save(c.article_002(), tmp_path / "facts")
    assert dispatch(["sweep", "--from", "facts", "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    not_tried = "without ringup's variables, not tried: node0: em1; node1: enp99s0"
    assert f"{not_tried} (by default Gloo announces em1" in said
    bundle.save(c.healthy(2), tmp_path / "facts")
    assert dispatch(["sweep", "--from", "facts", "--dry-run"]) == 0
    assert "without ringup" not in capsys.readouterr().err


def test_saved_facts_alone_cannot_be_measured_and_one_node_has_no_network(tmp_path: Path) -> None:
    bundle.save(c.healthy(1), tmp_path / "one")
    with pytest.raises(UsageError, match="needs the nodes"):
        dispatch(["sweep", "--from", str(tmp_path / "one")])
    with pytest.raises(UsageError, match="no network is used"):
        dispatch(["sweep", "--from", str(tmp_path / "one"), "--dry-run"])
