"""What `check` and `run` say will be chosen: NCCL's or Gloo's choice with the plan, and without it."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from ringup.model import Cluster, RdmaPort, Verbs
from ringup.network.predictions import Expected, Predictions
from ringup.output import console, html_page
from ringup.planning import expected, network, with_transports
from ringup.runtime import record
from tests import clusters as c
from tests.test_env import cluster as with_ports
from tests.test_env import env_of, ib, roce


def foretold(made: Cluster) -> tuple[Expected, ...]:
    return expected(Predictions(made), network.decide(made, "r"))


def text(made: Cluster) -> str:
    plan = network.decide(made, "r")
    return console.check_text(
        console.Report(made, [], [], plan, expected(Predictions(made), plan)), console.Style(io.StringIO())
    )


GPUS = c.job(backend="nccl")


def test_nodes_that_choose_alike_are_told_once_with_nccls_own_lines() -> None:
    shown = text(c.healthy(8, job=GPUS))
    assert "node[0-7] (8 nodes, node0 shown):" in shown
    assert shown.count("Bootstrap: Using") == 1
    assert "    NET/Socket : Using [0]enp99s0:10.0.0.10<0>" in shown


def test_a_node_that_chooses_otherwise_stands_alone() -> None:
    made = c.healthy(3, job=GPUS)
    other = c.changed(made, "node1", rdma_ports=(ib("mlx5_0"),))
    shown = text(other)
    assert "node0, node2 (node0 shown):" in shown and "  node1:\n" in shown
    assert "NET/IB : Using [0]mlx5_0:1/IB" in shown


def test_what_the_plan_sets_is_in_the_prediction_and_what_it_saves_is_said() -> None:
    made = with_ports(ib("mlx5_0"), roce("mlx5_bond_0", 50.0))
    one, _ = foretold(replace(made, job=c.job(backend="nccl")))
    assert one.prediction.interfaces == ("mlx5_0:1/IB",)
    assert one.alone is not None and one.alone.interfaces == ("mlx5_0:1/IB", "mlx5_bond_0:1/RoCE")
    shown = text(replace(made, job=GPUS))
    assert "without the variables above: " in shown and "mlx5_bond_0:1/RoCE" in shown


def test_where_nothing_is_set_there_is_only_one_prediction() -> None:
    assert [e.alone for e in foretold(c.healthy(2, job=GPUS))] == [None, None]


def test_a_job_without_gpus_is_told_what_gloo_announces() -> None:
    one, other = foretold(c.healthy())
    assert (one.prediction.network, one.prediction.interfaces) == ("Gloo", ("enp99s0:10.0.0.10",))
    assert other.prediction.bootstrap is not None and other.prediction.bootstrap.address == "10.0.0.11"
    assert "Gloo announces enp99s0 10.0.0.10" in text(c.healthy()) and "Bootstrap" not in text(c.healthy())


def test_gloos_wrong_choice_is_shown_beside_the_one_the_plan_makes() -> None:
    one, _ = foretold(c.article_002())
    assert one.prediction.interfaces == ("enp99s0:90.91.33.64",)
    assert one.alone is not None and one.alone.interfaces == ("em1:10.12.5.64",)


def test_nodes_with_gpus_are_told_of_nccl_and_unreached_ones_of_nothing() -> None:
    made = c.cluster(c.plain(0, gpu_count=8), c.unreached("node1", "ssh-timeout"))
    assert [(e.prediction.name, e.prediction.network) for e in foretold(made)] == [("node0", "Socket")]


def test_what_is_not_known_of_a_node_is_said_and_nothing_is_claimed() -> None:
    made = c.changed(c.healthy(job=GPUS), "node1", interfaces=(), unknown={"interfaces": "timed out"})
    one = foretold(made)[1].prediction
    assert one.confidence == "low" and one.bootstrap is None
    gloo = foretold(replace(made, job=c.job()))[1].prediction
    assert gloo.bootstrap is None and gloo.missing == ("interfaces (timed out)",)


def test_nodes_whose_interfaces_are_unknown_are_one_kind_and_their_sockets_no_plugins() -> None:
    made = c.healthy(3, job=GPUS)
    for name, more in (("node1", {}), ("node2", {"rdma_ports": "timed out"})):
        unknown = {"interfaces": "timed out", **more}
        made = c.changed(made, name, interfaces=(), unknown=unknown)
    shown = text(made)
    assert "from a plugin" not in shown and shown.count("are unknown") == 1


def test_json_and_page_hold_the_predictions() -> None:
    made = c.article_002()
    plan = network.decide(made, "r")
    report = console.Report(made, [], [], plan, expected(Predictions(made), plan))
    whole = json.loads(json.dumps(console.check_json(report)))
    first = whole["predictions"][0]
    assert first["network"] == "Gloo" and first["alone"]["bootstrap"]["interface"] == "em1"
    assert "Gloo announces enp99s0" in html_page.check_page(report)


def test_on_one_machine_gloos_own_address_is_no_news() -> None:
    alone = replace(c.healthy(1), is_local=True)
    assert "expected NCCL selection" not in text(alone)


def test_a_plan_holds_what_it_leads_to_for_the_record_of_the_run() -> None:
    made = replace(with_ports(ib("mlx5_0"), roce("mlx5_bond_0", 50.0)), job=GPUS)
    plan = network.decide(made, "r")
    assert plan is not None
    written = record.plan_json(with_transports(plan, Predictions(made)))["transports"]
    assert written[0] == {
        "node": "node0",
        "network": "IB",
        "devices": ("mlx5_0:1/IB",),
        "confidence": "high",
    }


def with_cable(made: Cluster) -> Cluster:
    """Beside the card the end of a container's cable, which has a link-local address only."""
    for node in made.nodes:
        cable = c.interface("veth1a2b", "fe80::9/64", index=9, kind="veth")
        made = c.changed(made, node.name, interfaces=(*node.interfaces, cable))
    return made


def test_what_sockets_would_also_take_is_pinned_only_where_sockets_carry_the_data() -> None:
    over_sockets = with_cable(with_ports())
    assert env_of(over_sockets) == {"NCCL_SOCKET_IFNAME": "=enp99s0"}
    assert env_of(with_cable(with_ports(ib("mlx5_0")))) == {}
    assert env_of(with_cable(with_ports(replace(ib("mlx5_0"), state="DOWN")))) == env_of(over_sockets)
    assert env_of(with_cable(with_ports(ib("mlx5_0"), env={"NCCL_IB_DISABLE": "1"}))) == env_of(over_sockets)


def test_without_libibverbs_sockets_carry_the_data() -> None:
    made = with_cable(with_ports(ib("mlx5_0")))
    lacks = Verbs(error="libibverbs.so.1: cannot open shared object file")
    for name in ("node0", "node1"):
        made = c.changed(made, name, verbs=lacks)
    assert env_of(made) == {"NCCL_SOCKET_IFNAME": "=enp99s0"}


def test_a_plugins_network_is_named_though_its_words_are_not_known() -> None:
    efa = RdmaPort("rdmap16s27", 1, "ACTIVE", link_layer="Unspecified", rate_gbit_s=100.0)
    made = replace(with_ports(efa), job=GPUS)
    for name in ("node0", "node1"):
        made = c.changed(made, name, nccl_plugins=("/opt/amazon/ofi-nccl/lib/libnccl-net.so",))
    assert "    network OFI, from a plugin" in text(made)


def test_why_rdma_devices_carry_no_data_is_said() -> None:
    down = replace(with_ports(replace(ib("mlx5_0"), state="DOWN")), job=GPUS)
    assert "    not over RDMA: mlx5_0:1 is DOWN" in text(down)
    off = replace(with_ports(ib("mlx5_0")), job=c.job(backend="nccl", env={"NCCL_IB_DISABLE": "1"}))
    assert "    not over RDMA: NCCL_IB_DISABLE=1" in text(off)
    assert "not over RDMA" not in text(c.healthy(job=GPUS))


def test_of_many_kinds_of_nodes_only_some_are_shown_and_the_rest_are_counted() -> None:
    made = c.healthy(12, job=GPUS)
    for n in range(12):
        made = c.changed(made, f"node{n}", rdma_ports=(ib(f"hca_{n}"),))
    shown = text(made)
    assert shown.count("NET/IB : Using") == 8 and "and 4 other selections: --all shows them" in shown
