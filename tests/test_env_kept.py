"""Variables that are set already: left from elsewhere, contradicting, needed; and RoCE's explained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ringup import bundle
from ringup.cli import command_line
from ringup.model import Cluster
from ringup.output.console import kept_lines
from ringup.planning.minimal_env import minimal_env
from ringup.planning.preset_variables import kept
from tests import clusters as c
from tests.test_env import NEW, OLD, PLATFORM, cluster, ib, on_eth0, roce, verdicts


def told(made: Cluster, name: str) -> str:
    """What is said of one variable."""
    return next(k.because for k in kept(made) if k.name == name)


def on(product: str, made: Cluster) -> Cluster:
    return replace(made, nodes=tuple(replace(n, product=product) for n in made.nodes))


GOOGLE = {"NCCL_FASTRAK_NUM_FLOWS": "2", "NCCL_NET": "FasTrak"}


def test_settings_of_one_cloud_on_anothers_machine_are_leftovers() -> None:
    made = on("Amazon EC2 p5.48xlarge", cluster(ib("mlx5_0"), env=GOOGLE))
    assert verdicts(made) == dict.fromkeys(GOOGLE, "leftover")
    assert "Google Cloud's machines, and this one is Amazon EC2 p5.48xlarge" in told(made, "NCCL_NET")


def test_on_their_own_cloud_they_are_judged_as_any_other() -> None:
    made = on("Google Google Compute Engine", cluster(ib("mlx5_0"), env=GOOGLE))
    assert "leftover" not in verdicts(made).values()


def test_a_machine_that_does_not_tell_whose_it_is_accuses_nobody() -> None:
    made = on("", cluster(env={"NCCL_TOPO_FILE": "/opt/microsoft/ndv4-topo.xml"}))
    assert verdicts(made) == {"NCCL_TOPO_FILE": "site"}


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5_0"}, "NCCL_IB_HCA"),
        ({"NCCL_NET": "Socket", "NCCL_IB_TIMEOUT": "22"}, "NCCL_IB_TIMEOUT"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "NCCL_P2P_LEVEL"),
    ],
)
def test_of_two_that_contradict_each_other_the_loser_is_named(env: dict[str, str], name: str) -> None:
    made = cluster(ib("mlx5_0"), env=env)
    assert verdicts(made)[name] == "contradicting"
    other = next(n for n in env if n != name)
    assert other in told(made, name)


def test_where_a_file_says_otherwise_it_is_told_who_wins() -> None:
    made = cluster(ib("mlx5_0"))
    for name in ("node0", "node1"):
        made = c.changed(made, name, environment={"NCCL_DEBUG": "INFO"}, nccl_conf={"NCCL_DEBUG": "WARN"})
    assert told(made, "NCCL_DEBUG").endswith("; nccl.conf has WARN, and the shell wins")


def test_a_level_that_nccl_does_not_know_logs_nothing() -> None:
    made = cluster(ib("mlx5_0"), env={"NCCL_DEBUG": "=INFO"})
    assert verdicts(made) == {"NCCL_DEBUG": "no-op"}
    assert kept_lines(kept(made))[0].startswith("NCCL_DEBUG='=INFO': no-op: nothing is logged")
    assert verdicts(cluster(ib("mlx5_0"), env={"NCCL_DEBUG": "info"})) == {"NCCL_DEBUG": "debugging"}


def test_a_variable_newer_than_the_release_is_obsolete_only_where_the_release_is_known() -> None:
    env = {"NCCL_IB_MERGE_NICS": "0"}
    assert verdicts(cluster(ib("mlx5_0"), nccl="2.18.5", env=env)) == {"NCCL_IB_MERGE_NICS": "obsolete"}
    assert verdicts(cluster(ib("mlx5_0"), nccl="", env={"NCCL_SOCKET_MAGIC": "1"})) == {
        "NCCL_SOCKET_MAGIC": "not judged"
    }


def test_the_release_that_an_image_names_is_no_setting() -> None:
    assert not verdicts(cluster(ib("mlx5_0"), env={"NCCL_VERSION": "2.28.3-1"}))


def test_what_the_plan_would_set_is_right() -> None:
    ports = (ib("mlx5_0"), ib("mlx5_1"), roce("mlx5_bond_0", 50.0))
    assert verdicts(cluster(*ports, env={"NCCL_IB_HCA": "=mlx5_0,mlx5_1"})) == {"NCCL_IB_HCA": "right"}
    article = c.article_002(job=c.job(env={"NCCL_SOCKET_IFNAME": "enp99s0", "GLOO_SOCKET_IFNAME": "enp99s0"}))
    assert {(k.name, k.verdict) for k in kept(article) if k.node == "node0"} == {
        ("NCCL_SOCKET_IFNAME", "right"),
        ("GLOO_SOCKET_IFNAME", "right"),
    }


@pytest.mark.parametrize(("nccl", "seconds"), [("2.12.12", "0.067"), ("2.20.5", "1.1"), (NEW, "4.3")])
def test_the_default_time_of_a_try_is_that_of_the_release(nccl: str, seconds: str) -> None:
    made = cluster(roce("mlx5_0"), nccl=nccl, env={"NCCL_IB_TIMEOUT": "22"})
    assert f"waits 17 s for a lost packet ({seconds} s by default)" in told(made, "NCCL_IB_TIMEOUT")


# A platform's presets.


def test_a_platforms_presets_are_judged_one_by_one() -> None:
    made = on_eth0(cluster(roce("mlx5_0"), nccl=OLD, env=PLATFORM))
    found = verdicts(made)
    assert found["NCCL_IB_GID_INDEX"] == "right" and "before 2.21" in told(made, "NCCL_IB_GID_INDEX")
    assert all(k.because for k in kept(made))


def test_where_one_of_them_stops_the_job_the_others_are_judged_as_if_it_were_gone() -> None:
    # Interfaces are called enp99s0 there, devices bnxt_re0: neither name matches.
    found = verdicts(cluster(roce("bnxt_re0"), env=PLATFORM))
    assert found["NCCL_SOCKET_IFNAME"] == found["NCCL_IB_HCA"] == "harmful"


def test_nodes_that_choose_alike_are_told_once() -> None:
    names = [k.name for k in kept(on_eth0(cluster(env=PLATFORM)))]
    assert sorted(names) == sorted(PLATFORM)


# RoCE.


def test_rocs_variables_are_explained_and_none_is_invented() -> None:
    made = minimal_env(cluster(roce("mlx5_0"), roce("mlx5_1")))
    text = "\n".join(made.explained)
    assert made.env == ()
    assert "leave it unset: NCCL since 2.21 finds the entry itself, here 3 (::ffff:10.0.0.1 RoCE v2)" in text
    assert "NCCL_IB_TC: not set. Do not guess it" in text
    assert "NCCL_IB_TIMEOUT: 20, the default" in text and "NCCL_IB_QPS_PER_CONNECTION: 1, the default" in text


def test_the_sites_traffic_class_is_said_with_its_dscp() -> None:
    text = "\n".join(minimal_env(cluster(roce("mlx5_0"), env={"NCCL_IB_TC": "106"})).explained)
    assert "NCCL_IB_TC: 106 (DSCP 26), set by the site and kept" in text


def test_a_class_the_driver_sets_by_itself_is_left_to_it() -> None:
    text = "\n".join(minimal_env(cluster(roce("mlx5_0", traffic_class=136))).explained)
    assert "the driver marks all RoCE traffic here with 136 (DSCP 34)" in text


@pytest.mark.parametrize("made", [cluster(ib("mlx5_0")), cluster(), c.healthy()])
def test_without_roce_nothing_is_explained(made: Cluster) -> None:
    assert minimal_env(made).explained == ()


# Where it is shown.


def test_check_shows_what_is_set_already_and_what_it_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "cluster.json"
    made = c.changed(cluster(ib("mlx5_0")), "node1", environment={"NCCL_IB_DISABLE": "1", "NCCL_IB_HAC": "x"})
    bundle.save(made, saved)
    command_line.dispatch(["check", "--from", str(saved)])
    text = capsys.readouterr().out.partition("already set")[2]
    assert "NCCL_IB_DISABLE=1 on node1: harmful: NCCL does not use RDMA" in text
    assert "NCCL_IB_HAC=x on node1: typo: no program reads this name; NCCL_IB_HCA is similar" in text
    command_line.dispatch(["check", "--from", str(saved), "--json"])
    whole = json.loads(capsys.readouterr().out)
    assert [(k["name"], k["node"], k["verdict"]) for k in whole["kept"]] == [
        ("NCCL_IB_DISABLE", "node1", "harmful"),
        ("NCCL_IB_HAC", "node1", "typo"),
    ]


def test_env_shows_the_presets_and_rocs_variables_beside_the_script(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = tmp_path / "cluster.json"
    bundle.save(on_eth0(cluster(roce("mlx5_0"), env=PLATFORM)), saved)
    assert command_line.dispatch(["env", "--from", str(saved), "--strict"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("# nothing needs to be set")
    assert "NCCL_IB_TC: 136 (DSCP 34)" in shown.err
    assert shown.err.count("kept: ") == len(PLATFORM)
