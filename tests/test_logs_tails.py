"""Tail first: the stuck rank from the ends of the files, and a plain word where they do not tell."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from bench.nccl_lines import Plan
from bench.nccl_logs import generate

from ringup.logs import files, quick_scan


def look(folder: Path) -> list[quick_scan.Stuck]:
    paths = [str(p) for p in sorted(folder.glob("*.log"))]
    return quick_scan.look((p, *files.ends(p, quick_scan.HEAD_BYTES, quick_scan.TAIL_BYTES)) for p in paths)


def big(fault: str, **words: object) -> Plan:
    """More than heads and tails can hold."""
    plan = Plan(layout="per-rank", iterations=60, layers=12, fault=fault, fault_rank=5, fault_iteration=-1)
    return replace(plan, **words)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(3))
def test_the_rank_that_stopped_first_is_named(tmp_path: Path, seed: int) -> None:
    generate(big("stalled", seed=seed), tmp_path)
    assert [(s.rank, s.confidence) for s in look(tmp_path)] == [("5", "medium")]


@pytest.mark.parametrize("fault", ["count", "datatype", "kind", "missing"])
def test_the_rank_that_called_something_else_is_named(tmp_path: Path, fault: str) -> None:
    generate(big(fault, seed=4), tmp_path)
    (stuck,) = look(tmp_path)
    assert stuck.rank == "5" and "where others called" in stuck.reason


@pytest.mark.parametrize("version", ["2.18", "2.24", "2.30"])
def test_a_rank_without_init_start_is_named(tmp_path: Path, version: str) -> None:
    generate(Plan(layout="per-rank", fault="no-init", fault_rank=3, seed=3, version=version), tmp_path)
    (stuck,) = look(tmp_path)
    assert stuck.rank == "3" and "no further than init-start" in stuck.reason


def test_a_rank_without_a_file_is_named_when_the_others_wait(tmp_path: Path) -> None:
    generate(Plan(layout="per-rank", fault="no-init", fault_rank=3, seed=3), tmp_path)
    next(p for p in tmp_path.glob("*.log") if "rank 3 nranks" in p.read_text()).unlink()
    assert [s.rank for s in look(tmp_path)] == ["3"]


def test_a_run_that_ended_well_has_no_stuck_rank(tmp_path: Path) -> None:
    generate(Plan(layout="per-rank", iterations=60, layers=12, seed=5), tmp_path)
    assert look(tmp_path) == []


def test_calls_that_are_all_alike_are_not_guessed_at(tmp_path: Path) -> None:
    line = (
        "n{r}:1{r}:1 [0] NCCL INFO AllReduce: opCount {i:x} sendbuff 0x7f recvbuff 0x7f count 8 datatype 7"
        " op 0 root 0 comm 0x5{r} [nranks=2] stream 0x6\n"
    )
    init = "n{r}:1{r}:1 [0] NCCL INFO comm 0x5{r} rank {r} nranks 2 cudaDev 0 commId 0x9 - Init COMPLETE\n"
    for r, calls in ((0, 2000), (1, 1999)):
        text = init.format(r=r) + "".join(line.format(r=r, i=i) for i in range(calls))
        (tmp_path / f"{r}.log").write_text(text)
    assert look(tmp_path) == []


def test_the_ends_of_thousands_of_files_are_not_held_at_once(tmp_path: Path) -> None:
    generate(big("stalled", seed=1), tmp_path)
    paths = sorted(tmp_path.glob("*.log"))
    sizes = quick_scan.HEAD_BYTES, quick_scan.TAIL_BYTES
    tracemalloc.start()
    try:
        quick_scan.look((str(p), *files.ends(str(p), *sizes)) for _ in range(20) for p in paths)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 20 * len(paths) * sum(sizes) / 4


def test_empty_and_foreign_files_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"")
    (tmp_path / "b.log").write_bytes(b"\x00\xff" * 100_000)
    assert look(tmp_path) == []
