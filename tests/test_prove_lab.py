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

from tests.lab import Lab
from tests.test_pods import PodsInLab

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]


def bench(lab: Lab, hosts: str, *more: str) -> tuple[int, dict[str, Any]]:
    """One rank a host; exit code and JSON."""
    folder = tempfile.mkdtemp(prefix="ringup-bench-", dir="/var/tmp")
    words = ["bench", "-H", hosts, "--nproc", "1", "--backend", "gloo", "--json", "--log-dir", folder, *more]
    try:
        done = lab.run("node0", [sys.executable, "-m", "ringup", *words], timeout_s=500)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def is_busy(told: dict[str, Any]) -> bool:
    """Whether the ranks had no CPU time: on a busy machine that is said, and nothing of links or nodes."""
    return any("no CPU time" in words for words in (told["because"], *told["notes"]))


def test_a_link_far_below_its_stated_rate_is_slow(lab: Callable[..., Lab]) -> None:
    cluster = lab(hosts=2)
    cluster.fault("slow-nic", rate="100mbit")
    code, told = bench(cluster, "node0,node1", "--min", "256K", "--max", "4M", "--link-gbit", "1")
    assert "of what --link-gbit 1 can carry" in told["because"]
    if is_busy(told):
        assert (code, told["verdict"]) == (0, "not_judged")
    else:
        assert (code, told["verdict"]) == (1, "slow")
    assert not any("lost" in note for note in told["notes"])


def test_a_link_of_unknown_rate_is_not_judged(shared_lab: Callable[..., Lab]) -> None:
    code, told = bench(shared_lab(hosts=2), "node0,node1", "--min", "64K", "--max", "256K")
    assert (code, told["verdict"], told["expected_busbw_gbyte_s"]) == (0, "not_judged", None)
    assert "(veth) cannot be read; --link-gbit N states it" in told["because"]


def test_lost_packets_are_named_as_loss(lab: Callable[..., Lab]) -> None:
    cluster = lab(hosts=2)
    cluster.fault("loss", percent=5)
    code, told = bench(
        cluster, "node0,node1", "--min", "256K", "--max", "1M", "--link-gbit", "10", "--anyway"
    )
    if is_busy(told):
        assert (code, told["verdict"]) == (0, "not_judged")
    else:
        assert (code, told["verdict"]) == (1, "slow")
        assert "packets are lost" in told["because"]
    assert any("of its TCP segments retransmitted" in note for note in told["notes"])


def test_the_slow_card_among_four_nodes_is_named(lab: Callable[..., Lab]) -> None:
    cluster = lab(hosts=4)
    cluster.fault("slow-nic", host="node2", rate="100mbit")
    code, told = bench(cluster, "node[0-3]", "--min", "256K", "--max", "1M")
    named = [slow["node"] for slow in told["slow"]]
    if named or not is_busy(told):
        assert (code, told["verdict"], named) == (1, "slow", ["node2"]), told["notes"]


@pytest.mark.parametrize(
    ("command", "plant", "code", "words"),
    [
        ("test", "", 0, "every rank computes correct results"),
        ("test", "1:wrong-input", 1, "one of ranks 0, 1 makes the results wrong"),
        ("bench", "", 0, "not judged: "),
        ("sweep", "", 0, "keep setting 1 (enp99s0, "),
    ],
)
def test_pods_without_ssh_prove_themselves(
    lab: Callable[..., Lab], command: str, plant: str, code: int, words: str
) -> None:
    cluster = lab(hosts=2)
    plants = Path(__file__).parent / "jobs" / "plants"
    options = ["--nproc", "1", "--env", f"RINGUP_PLANT={plant}", "--env", f"PYTHONPATH={plants}"]
    options += {"bench": ["--min", "64K", "--max", "256K"], "sweep": ["--size", "256K"]}.get(command, [])
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
    done = cluster.run("node0", command, timeout_s=300)
    shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr
    assert "not every rank is fine: the launcher on node1: exit code 1" in done.stdout
