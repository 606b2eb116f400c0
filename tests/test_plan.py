"""The plan: where the ranks meet, on which port, and only the variables that change something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringup.errors import LaunchError
from ringup.model import Cluster, Host, Listener
from ringup.planning import Plan, launchers, network
from ringup.planning.minimal_env import with_nccl_debug
from tests.clusters import article_002, breaks, changed, cluster, healthy, interface, job, node, two_networks


def decided(given: Cluster, **more: object) -> Plan:
    plan = network.decide(replace(given, job=job(**more)), "run-1")
    assert plan is not None
    return plan


def env(plan: Plan) -> dict[str, str]:
    return {v.name: v.value for v in plan.env}


def test_a_healthy_cluster_needs_no_variable_and_torchs_own_port() -> None:
    plan = decided(healthy())
    assert (env(plan), plan.master_addr, plan.master_port) == ({}, "10.0.0.10", 29500)


def test_article_002_is_pinned_to_the_card_every_pair_reached() -> None:
    plan = decided(article_002())
    assert env(plan) == {"NCCL_SOCKET_IFNAME": "=enp99s0", "GLOO_SOCKET_IFNAME": "enp99s0"}
    assert plan.master_addr == "90.91.33.64"
    assert all(v.because for v in plan.env)


def test_a_gloo_job_sets_nothing_of_nccl() -> None:
    assert env(decided(article_002(), backend="gloo")) == {"GLOO_SOCKET_IFNAME": "enp99s0"}


@pytest.mark.parametrize(("gpus", "backend", "says"), [(0, "", True), (0, "nccl", False), (8, "", False)])
def test_a_variable_of_nccls_says_where_no_gpu_was_seen(gpus: int, backend: str, says: bool) -> None:
    cluster = changed(changed(article_002(), "node0", gpu_count=gpus), "node1", gpu_count=gpus)
    made = {v.name: v.because for v in decided(cluster, backend=backend).env}
    assert ("no GPU found" in made["NCCL_SOCKET_IFNAME"]) == says
    assert "no GPU" not in made["GLOO_SOCKET_IFNAME"]


@pytest.mark.parametrize(
    ("more", "is_said"), [({}, True), ({"nproc": 8}, False), ({"launcher": "jax"}, False)]
)
def test_one_rank_for_want_of_a_number_of_gpus_is_said(more: dict[str, Any], is_said: bool) -> None:
    given = changed(healthy(), "node1", unknown={"gpu_count": "nvidia-smi gave no answer"})
    notes = decided(given, **{"nproc": 0, **more}).notes
    assert any("one rank on node1" in n and "no answer" in n for n in notes) == is_said
    assert not any("node0," in n for n in notes)


def test_many_nodes_without_a_number_of_gpus_are_one_note() -> None:
    first = healthy().nodes[0]
    nodes = [replace(first, name=f"n{n}", unknown={"gpu_count": f"n{n} had no CPU time"}) for n in range(40)]
    found = network.decision_notes(replace(healthy(), nodes=tuple(nodes), job=job(nproc=0)), None, 29500)
    (note,) = [note for note in found if "could not be counted" in note]
    assert note.startswith(
        "one rank on each of n0, n1, n2 and 37 more, whose GPUs could not be counted (n0: n0 had"
    )


def test_gpus_that_nobody_could_count_are_not_called_none() -> None:
    cluster = changed(article_002(), "node1", unknown={"gpu_count": "no answer"})
    assert not any("no GPU" in v.because for v in decided(cluster).env)


def test_interface_names_that_differ_are_set_per_node() -> None:
    bad = interface("aaa0", "10.9.9.1/24")
    nodes = (
        node("node0", bad, interface("eth0", "10.0.0.1/24"), own="10.9.9.1"),
        node("node1", interface("ens13", "10.0.0.2/24")),
    )
    plan = decided(cluster(*nodes, broken=[("node1", "node0", "10.9.9.1", "timed out")]))
    gloo = {v.node: v.value for v in plan.env if v.name == "GLOO_SOCKET_IFNAME"}
    assert gloo == {"node0": "eth0", "node1": "ens13"}
    assert [n.env["GLOO_SOCKET_IFNAME"] for n in plan.nodes] == ["eth0", "ens13"]


def test_a_vlan_of_a_fast_bond_does_not_lose_to_the_management_card() -> None:
    nodes = [
        node(
            f"node{k}",
            interface("eno1", f"10.1.0.{10 + k}/24", speed_gbit_s=1.0),
            interface("bond0.100", f"10.2.0.{10 + k}/24", kind="vlan", speed_gbit_s=100.0),
        )
        for k in range(2)
    ]
    plan = decided(cluster(*nodes))
    assert [n.interface for n in plan.nodes] == ["bond0.100"] * 2
    assert plan.master_addr == "10.2.0.10"


def test_a_value_the_user_set_stays_and_is_said() -> None:
    given = changed(article_002(), "node1", environment={"GLOO_SOCKET_IFNAME": "enp99s0"})
    plan = decided(given)
    assert "GLOO_SOCKET_IFNAME" not in plan.nodes[1].env
    assert plan.nodes[0].env["GLOO_SOCKET_IFNAME"] == "enp99s0"
    assert any("set by you" in note for note in plan.notes)


def test_many_nodes_with_the_same_reason_are_one_note_and_one_reason() -> None:
    nodes = [
        node(
            f"node{k}",
            interface("eno1", f"10.1.0.{10 + k}/24", speed_gbit_s=1.0),
            interface(f"eth{k % 2}", f"10.2.0.{10 + k}/24", speed_gbit_s=100.0),
            own=f"10.1.0.{10 + k}",
        )
        for k in range(12)
    ]
    plan = decided(cluster(*nodes), backend="gloo")
    odd, even = ("node[" + ",".join(map(str, range(first, 12, 2))) + "] (6 nodes)" for first in (1, 0))
    assert f"ranks use eth0 on {even}; eth1 on {odd} (head 10.2.0.10)" in plan.notes
    plan = decided(cluster(*nodes), backend="gloo", env={"GLOO_SOCKET_IFNAME": ""})
    assert "GLOO_SOCKET_IFNAME= on node[0-11] (12 nodes) is kept: set by you" in plan.notes
    reasons = {n.name: f"by default Gloo announces eno1: {n.name}" for n in nodes}
    same = dict.fromkeys(reasons, "eth0")
    (pinned,) = network.pin("GLOO_SOCKET_IFNAME", cluster(*nodes), same, reasons, [])
    first, second = [*reasons.values()][:2]
    assert pinned.because == f"{first}; {second}; 10 more nodes likewise"


def test_an_empty_value_of_the_users_is_neither_replaced_nor_told_as_the_shells() -> None:
    given = changed(article_002(), "node0", environment={"GLOO_SOCKET_IFNAME": "em1", "NCCL_DEBUG": "WARN"})
    plan = decided(given, env={"GLOO_SOCKET_IFNAME": "", "NCCL_DEBUG": ""})
    assert "GLOO_SOCKET_IFNAME" not in {v.name for v in plan.env}
    assert [n.env["GLOO_SOCKET_IFNAME"] for n in plan.nodes] == ["", ""]
    assert "GLOO_SOCKET_IFNAME= on node0, node1 is kept: set by you" in plan.notes
    assert with_nccl_debug(plan, given, always=True).env == plan.env


def test_the_users_env_wins_over_the_plan() -> None:
    plan = decided(article_002(), env={"NCCL_SOCKET_IFNAME": "em1"})
    assert all(n.env["NCCL_SOCKET_IFNAME"] == "em1" for n in plan.nodes)


def test_a_held_port_is_left_for_one_that_was_proven() -> None:
    plan = decided(changed(healthy(), "node0", listeners=(Listener("0.0.0.0", 29500),)))
    assert plan.master_port == 29501
    assert any("29500" in note for note in plan.notes)


def test_a_port_one_node_cannot_reach_is_not_taken() -> None:
    given = healthy(3)
    given = replace(given, links=breaks(given.links, "node2", "node0", "10.0.0.10", "timed out", "29500"))
    assert decided(given).master_port == 29501


def test_the_users_port_is_kept() -> None:
    assert decided(healthy(), port=12345).master_port == 12345


def test_no_plan_without_a_network_that_joins_all() -> None:
    given = cluster(*healthy(3).nodes, broken=[("node2", "*", "*", "timed out")])
    assert network.decide(replace(given, job=job()), "run-1") is None


def test_a_lossy_network_is_taken_last() -> None:
    given = cluster(two_networks(0), two_networks(1))
    lossy = tuple(
        replace(li, segments=50, retransmitted=5)
        if li.address.startswith("10.12.5.")
        else replace(li, segments=50)
        for li in given.links
    )
    assert decided(given).master_addr == "10.12.5.64"
    assert decided(replace(given, links=lossy)).master_addr == "90.91.33.64"


def test_a_black_hole_for_large_messages_is_no_network() -> None:
    given = cluster(
        two_networks(0), two_networks(1), broken=[("node0", "node1", "10.12.5.65", "large message lost")]
    )
    assert decided(given).nodes[1].interface == "enp99s0"


def test_ranks_are_numbered_over_nodes_with_different_counts() -> None:
    given = changed(changed(healthy(), "node0", gpu_count=4), "node1", gpu_count=2)
    plan = decided(given, nproc=0)
    assert [(n.nproc, n.first_rank) for n in plan.nodes] == [(4, 0), (2, 4)]
    assert plan.world_size == 6


@pytest.mark.parametrize(
    ("host", "gpus", "ranks"),
    [
        (Host("node0", slots=32, in_batch=True), 4, 4),
        (Host("node0", slots=4, in_slurm=True), 8, 8),
        (Host("node0", slots=32, in_batch=True), 0, 32),
        (Host("node0", slots=2), 8, 2),
        (Host("node0"), 8, 8),
        (Host("node0"), 0, 1),
    ],
)
def test_a_schedulers_slots_are_no_ranks_beside_gpus(host: Host, gpus: int, ranks: int) -> None:
    plan = decided(cluster(replace(healthy().nodes[0], host=host, gpu_count=gpus)), nproc=0)
    assert [n.nproc for n in plan.nodes] == [ranks]


def test_leftovers_of_other_launchers_are_unset() -> None:
    stale = {"PET_NNODES": "4", "RANK": "3", "MASTER_ADDR": "gone", "NCCL_DEBUG": "INFO"}
    plan = decided(changed(healthy(), "node1", environment=stale))
    assert plan.nodes[1].unset == ("MASTER_ADDR", "PET_NNODES", "RANK")
    assert plan.nodes[0].unset == ()


def test_the_interpreter_is_named_by_its_path_and_no_name_is_used_for_the_rendezvous() -> None:
    words = decided(healthy()).nodes[1].words
    assert words[:3] == ("/opt/venv/bin/python", "-m", "torch.distributed.run")
    assert "--master-addr=10.0.0.10" in words
    assert "--node-rank=1" in words


def test_c10d_says_who_hosts_and_which_address_is_told() -> None:
    plan = decided(healthy(), rendezvous="c10d")
    hosts = [next(w for w in n.words if w.startswith("--rdzv-conf=")) for n in plan.nodes]
    assert ["is_host=1" in h for h in hosts] == [True, False]
    assert [w for n in plan.nodes for w in n.words if w.startswith("--local-addr=")] == [
        "--local-addr=10.0.0.10",
        "--local-addr=10.0.0.11",
    ]


def test_arguments_reach_the_script_word_for_word() -> None:
    hostile = ("a b", "$(id)", "--x;y", "\n")
    assert decided(healthy(), arguments=hostile).nodes[0].words[-4:] == hostile


def test_an_unknown_launcher_is_an_error_that_lists_the_known() -> None:
    place = launchers.Place("/py", 1, 0, 1, (1,), "", "127.0.0.1", 29500, "r")
    with pytest.raises(LaunchError) as error:
        launchers.start(place, job(launcher="mpirun"))
    assert "torchrun" in error.value.hint


def test_nodes_played_on_one_machine_need_no_pins() -> None:
    assert decided(replace(article_002(), is_local=True)).env == ()
