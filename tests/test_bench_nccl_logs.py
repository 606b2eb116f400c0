"""The generator of NCCL logs: the same plan gives the same bytes, and its truth is what grep would find."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from bench.nccl_lines import FAULTS, VERSIONS, Plan
from bench.nccl_logs import generate


def logs(folder: Path) -> str:
    return "".join(p.read_text() for p in sorted(folder.glob("*.log")))


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        generate(Plan(seed=5, torn=0.05), tmp_path / name)
    assert (tmp_path / "a/job.log").read_bytes() == (tmp_path / "b/job.log").read_bytes()
    assert (tmp_path / "a/truth.json").read_text() == (tmp_path / "b/truth.json").read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_truth_counts_what_grep_counts(tmp_path: Path, version: str) -> None:
    truth = generate(Plan(version=version, split=False, seed=1), tmp_path)
    kinds = Counter(re.findall(r"NCCL INFO (\w+): opCount [0-9a-f]+ sendbuff", logs(tmp_path)))
    assert truth.collectives == dict(kinds)
    assert truth.lines == logs(tmp_path).count("\n")


def test_op_count_stays_where_there_is_no_network_work(tmp_path: Path) -> None:
    generate(Plan(ranks=4, ranks_per_node=4, seed=2), tmp_path)
    assert set(re.findall(r"opCount (\w+)", logs(tmp_path))) == {"0"}


def test_op_count_differs_between_ranks_that_called_the_same(tmp_path: Path) -> None:
    truth = generate(Plan(ranks=8, layout="per-rank", seed=2), tmp_path)
    world = max(truth.positions.values(), key=len)
    assert len(set(world.values())) == 1
    last = {re.findall(r"AllReduce: opCount (\w+)", p.read_text())[-1] for p in tmp_path.glob("*.log")}
    assert len(last) > 1


def test_calls_of_a_group_share_their_op_count(tmp_path: Path) -> None:
    generate(Plan(ranks=8, layout="per-rank", seed=2), tmp_path)
    text = next(tmp_path.glob("*.log")).read_text()
    assert re.findall(r"Send: opCount (\w+)", text) == re.findall(r"Recv: opCount (\w+)", text)


@pytest.mark.parametrize("fault", [f for f in FAULTS if f != "none"])
def test_a_fault_stands_in_the_truth(tmp_path: Path, fault: str) -> None:
    generate(Plan(fault=fault, fault_rank=3, seed=3), tmp_path)
    truth = json.loads((tmp_path / "truth.json").read_text())
    if fault == "no-init":
        assert truth["incomplete"] == [str(r) for r in range(8)]
    elif fault == "stalled":
        assert [b.rpartition(" ")[2] for b in truth["behind"]] == ["3"]
    else:
        assert truth["mismatch"]["ranks"] == ["3"]


def test_a_rank_on_socket_stands_out(tmp_path: Path) -> None:
    truth = generate(Plan(socket_rank=0, seed=3), tmp_path)
    assert truth.transports["gpu-node1"] == {"P2P/CUMEM": 6, "NET/Socket/0": 2}
    assert truth.transports["gpu-node2"] == {"P2P/CUMEM": 6, "NET/IB/0/GDRDMA": 2}


@pytest.mark.slow
def test_the_benchmark_runs_on_small_logs(tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "bench" / "logs.py"
    words = ["--size=2M", "--ranks=16", "--rounds=1", "--only=counts-python,diagnosis,tails", "--json"]
    done = subprocess.run(
        [sys.executable, str(script), *words, f"--dir={tmp_path}"], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert [r["name"] for r in report["results"]] == ["counts-python", "diagnosis", "tails"]
    assert "'9', 'medium'" in report["results"][2]["output"]
    assert list(tmp_path.iterdir()) == []


def test_size_is_reached(tmp_path: Path) -> None:
    truth = generate(Plan(size_bytes=200_000, seed=3), tmp_path)
    assert 200_000 <= (tmp_path / "job.log").stat().st_size == truth.bytes < 400_000
