"""`ringup run` where InfiniBand is expected: a fall back to TCP is said while the job runs."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable

import pytest

from tests.guards import wait_for
from tests.jobs.launched import CHECKED_AND_ENDED_S, JOBS, Launched
from tests.lab import Lab
from tests.lab.faults.rdma import CARDS

pytestmark = [pytest.mark.lab, pytest.mark.slow]

VERSIONS = ("2.18.3", "2.20.5", "2.22.3", "2.24.3", "2.27.7", "2.28.9")
EXPECTED = "not IB over mlx5_0:1/IB, mlx5_1:1/IB as expected"
# This machine's root may not lock all memory, which the check calls an error; the job takes nothing.
OPTIONS = ("--backend", "nccl", "--with", "python", "--anyway")


@pytest.fixture
def cards(shared_lab: Callable[..., Lab]) -> Lab:
    """Two hosts with two InfiniBand ports each."""
    cluster = shared_lab(hosts=2, nics=CARDS)
    for host in ("node0", "node1"):
        cluster.fault("rdma", host=host)
    return cluster


def start(cluster: Lab, version: str, networks: str, *options: str) -> Launched:
    words = (version, networks, "{folder}/go")
    return Launched(cluster, "says_nccl.py", *words, options=[*OPTIONS, *options])


def go(run: Launched) -> int:
    (run.folder / "go").touch()
    return run.wait()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fall_back_is_said_while_the_job_runs_with_nccls_reason(cards: Lab, version: str) -> None:
    with start(cards, version, "IB,Socket") as run:
        wait_for(lambda: EXPECTED in run.stderr, "the words", CHECKED_AND_ENDED_S)
        assert run.process.poll() is None
        assert go(run) == 0, run.said()
        (said,) = [line for line in run.stderr.splitlines() if "NCCL uses" in line]
        assert said.startswith(f"ringup: node1: NCCL uses Socket, {EXPECTED}; this is TCP")
        assert 'NCCL says: "NET/IB : No device found' in said
        assert "ringup explain fell-back-to-sockets" in said
        told = run.record["transports"]
        assert told["differ"] == ["node1"]
        assert {s["node"]: s["network"] for s in told["seen"]} == {"node0": "IB", "node1": "Socket"}


def test_what_is_as_expected_is_not_said_and_nccls_lines_have_files_of_their_own(cards: Lab) -> None:
    with start(cards, "2.28.9", "IB") as run:
        run.wait_for_output("step 1 of rank", 2)
        assert go(run) == 0, run.said()
        assert "NCCL uses" not in run.stderr
        assert run.record["transports"]["differ"] == []
        assert "NCCL INFO" not in run.stdout
        for rank in (0, 1):
            nccl = (run.log_dir / f"nccl-0000{rank}-node{rank}.log").read_text()
            assert "Assigned NET plugin IB to comm" in nccl and "step" not in nccl
            own = (run.log_dir / f"rank-0000{rank}-node{rank}.log").read_text()
            assert own == f"step 1 of rank {rank}\ntrained to the end\n"


def test_quiet_does_not_silence_a_fall_back(cards: Lab) -> None:
    with start(cards, "2.28.9", "Socket", "--quiet") as run:
        wait_for(lambda: run.stderr.count("NCCL uses") == 2, "two nodes", CHECKED_AND_ENDED_S)
        assert go(run) == 0, run.said()
        assert run.stderr.count("ringup explain fell-back-to-sockets") == 1


def test_where_the_user_asks_nccl_for_nothing_nothing_is_said_or_changed(cards: Lab) -> None:
    with start(cards, "2.28.9", "Socket", "--env", "NCCL_DEBUG=WARN") as run:
        run.wait_for_output("step 1 of rank", 2)
        assert go(run) == 0, run.said()
        assert "NCCL uses" not in run.stderr
        assert run.record["transports"]["seen"] == []


@pytest.mark.torch
def test_under_torchrun_on_nodes_played_here_it_is_said_as_well(cards: Lab) -> None:
    folder = tempfile.mkdtemp(prefix="ringup-run-", dir="/var/tmp")
    words = ["run", "--local", "2", "--nproc", "1", *OPTIONS[:2], "--with", "torchrun", "--anyway"]
    script = [str(JOBS / "says_nccl.py"), "2.27.7", "Socket", "/dev/null"]
    command = [sys.executable, "-m", "ringup", *words, "--log-dir", folder, "--", *script]
    try:
        done = cards.run("node0", command, timeout_s=300, cwd="/root")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"NCCL uses Socket, {EXPECTED}") == 2, done.stderr
