"""`ringup bench` on links of known rate: what it measures, what it calls slow, and whom it names."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for
from tests.lab import Lab
from tests.test_pods import PodsInLab

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow, pytest.mark.rate]


def bench(lab: Lab, hosts: str, *more: str) -> tuple[int, dict[str, Any]]:
    """One rank a host; exit code and JSON."""
    folder = tempfile.mkdtemp(prefix="ringup-bench-", dir="/var/tmp")
    words = ["bench", "-H", hosts, "--nproc", "1", "--backend", "gloo", "--json", "--log-dir", folder, *more]
    try:
        done = lab.run("node0", [sys.executable, "-m", "ringup", *words], timeout_s=200)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def iperf_gbyte_s(lab: Lab) -> float:
    """What iperf3 gets from node0 to node1 within 5 s: payload of TCP, as received."""
    address = lab.host("node1").address
    server = lab.popen("node1", ["iperf3", "--server", "--one-off", "--bind", address])
    wait_for(lambda: lab.listening("node1", 5201), "iperf3 listens")
    done = lab.run("node0", ["iperf3", "--client", address, "--time", "5", "--json"], timeout_s=60)
    server.wait(20)
    return float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"]) / 8e9


@pytest.mark.skipif(not shutil.which("iperf3"), reason="no iperf3 here")
@pytest.mark.parametrize(
    ("rate", "gbit_s", "most", "within"),
    # Two busy processors are hardly enough for 1 Gbit/s through Gloo and the shaper.
    [("50mbit", 0.05, "2M", 0.05), ("100mbit", 0.1, "4M", 0.05), ("1gbit", 1, "32M", 0.15)],
)
def test_a_shaped_link_is_measured_as_iperf3_measures_it(
    lab: Callable[..., Lab], rate: str, gbit_s: float, most: str, within: float
) -> None:
    cluster = lab(hosts=2)
    cluster.fault("slow-nic", rate=rate)
    by_iperf = 0.0
    for _ in range(3):  # what else runs on this machine can only make either slower
        by_iperf = max(by_iperf, iperf_gbyte_s(cluster))
        code, told = bench(cluster, "node0,node1", "--min", "256K", "--max", most, "--link-gbit", str(gbit_s))
        best = max(told["rows"], key=lambda row: row["busbw_gbyte_s"])
        measured = best["busbw_gbyte_s"]
        of_the_rest = max(1.0 - best["starved"], 0.5)  # of the time in which the ranks could run at all
        fits = (1 - within) * by_iperf * of_the_rest <= measured <= (1 + within) * by_iperf
        if fits and (code, told["verdict"]) == (0, "ok"):
            break
    assert fits, (measured, by_iperf, best)
    assert (code, told["verdict"]) == (0, "ok"), told["because"]
    assert all(row["correct"] for row in told["rows"])


def test_a_link_far_below_its_stated_rate_is_slow(lab: Callable[..., Lab]) -> None:
    cluster = lab(hosts=2)
    cluster.fault("slow-nic", rate="100mbit")
    code, told = bench(cluster, "node0,node1", "--min", "256K", "--max", "4M", "--link-gbit", "1")
    assert (code, told["verdict"]) == (1, "slow")
    assert "of what --link-gbit 1 can carry" in told["because"]
    assert not any("lost" in note for note in told["notes"])


def test_a_link_of_unknown_rate_is_not_judged(shared_lab: Callable[..., Lab]) -> None:
    code, told = bench(shared_lab(hosts=2), "node0,node1", "--min", "64K", "--max", "256K")
    assert (code, told["verdict"], told["expected_busbw_gbyte_s"]) == (0, "not_judged", None)
    assert "(veth) cannot be read; --link-gbit N states it" in told["because"]


def test_lost_packets_are_named_as_loss(lab: Callable[..., Lab]) -> None:
    cluster = lab(hosts=2)
    cluster.fault("loss", percent=5)
    code, told = bench(
        cluster, "node0,node1", "--min", "256K", "--max", "4M", "--link-gbit", "10", "--anyway"
    )
    assert (code, told["verdict"]) == (1, "slow")
    assert "packets are lost" in told["because"]
    assert any("of its TCP segments sent again" in note for note in told["notes"])


def test_the_slow_card_among_four_nodes_is_named(lab: Callable[..., Lab]) -> None:
    cluster = lab(hosts=4)
    cluster.fault("slow-nic", host="node2", rate="100mbit")
    code, told = bench(cluster, "node[0-3]", "--min", "256K", "--max", "1M")
    assert (code, told["verdict"]) == (1, "slow")
    assert [slow["node"] for slow in told["slow"]] == ["node2"]


def test_the_node_that_never_arrives_is_named(lab: Callable[..., Lab]) -> None:
    plants = Path(__file__).parent / "jobs" / "plants"
    folder = tempfile.mkdtemp(prefix="ringup-test-", dir="/var/tmp")
    words = ["test", "-H", "node0,node1", "--nproc", "1", "--backend", "gloo", "--wait", "25", "--json"]
    words += ["--log-dir", folder, "--env", "RINGUP_PLANT=1:never-arrives", "--env", f"PYTHONPATH={plants}"]
    done = lab(hosts=2).run("node0", [sys.executable, "-m", "ringup", *words], timeout_s=200)
    shutil.rmtree(folder, ignore_errors=True)
    told = json.loads(done.stdout)
    assert (done.returncode, told["ok"]) == (1, False)
    assert [(r["rank"], r["node"]) for r in told["ranks"] if r["is_cause"]] == [(1, "node1")]


@pytest.mark.parametrize(
    ("command", "plant", "code", "words"),
    [
        ("test", "", 0, "every rank computes what it should"),
        ("test", "1:wrong-input", 1, "one of ranks 0, 1 makes the results wrong"),
        ("bench", "", 0, "not judged: "),
    ],
)
def test_pods_without_ssh_prove_themselves(
    lab: Callable[..., Lab], command: str, plant: str, code: int, words: str
) -> None:
    cluster = lab(hosts=2)
    plants = Path(__file__).parent / "jobs" / "plants"
    options = ["--nproc", "1", "--env", f"RINGUP_PLANT={plant}", "--env", f"PYTHONPATH={plants}"]
    options += ["--min", "64K", "--max", "256K"] if command == "bench" else []
    folder = Path(tempfile.mkdtemp(prefix="ringup-pods-", dir="/var/tmp"))
    run = PodsInLab(cluster, folder, *options)
    run.base = ["ringup", command, "--backend", "gloo", "--log-dir", str(folder)]
    try:
        (first, said), (other, _) = run.ends(run.start("node0", 0, 2), run.start("node1", 1, 2))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert (first, other) == (code, code), said
    assert words in said


def test_a_launcher_that_cannot_start_is_named_with_its_words_and_no_rank_is_blamed(
    lab: Callable[..., Lab],
) -> None:
    cluster = lab(hosts=2)
    cluster.fault("torch-missing")
    folder = tempfile.mkdtemp(prefix="ringup-test-", dir="/var/tmp")
    words = ["test", "-H", "node0,node1", "--nproc", "1", "--backend", "gloo", "--anyway"]
    command = [sys.executable, "-m", "ringup", *words, "--log-dir", folder]
    done = cluster.run("node0", command, timeout_s=100)
    shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr
    assert "not every rank is fine: the launcher on node1: exit code 1" in done.stdout
