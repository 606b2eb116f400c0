"""Ranks whose data goes a slower way than their peers': a warning with their names, though nothing failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import read_logs
from ringup.logs.rule import Cause

HOSTS = 4
GPUS = 2
NETWORK = {
    "IB": "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "Socket": "NET/Socket : Using [0]eth0:10.0.0.1<0>",
}
OFF = "NCCL_P2P_DISABLE set by environment to 1."
GDR = "gpudirect-module-missing"
NAME = "transport-differs-between-ranks"


def process(rank: int, odd: dict[str, str]) -> list[str]:
    """What NCCL prints in one process of a sound run; `odd` changes parts of it."""
    host, gpu = divmod(rank, GPUS)
    ways = {
        "net": f"NET/IB/{gpu}/GDRDMA",
        "local": "P2P/CUMEM",
        "speed": "400000",
        "GPU": "24.0",
        "NIC": "24.0",
    }
    ways |= {"using": "IB", "why": ""} | odd
    comm = f"comm 0x{rank + 1} rank {rank} nranks 8 cudaDev {gpu} busId {gpu}000 commId 0x7"
    lines = [
        *filter(None, [ways["why"]]),
        NETWORK[ways["using"]],
        f"NET/IB: [{gpu}] mlx5_{gpu}:uverbs{gpu}:1/IB provider=Mlx5 speed={ways['speed']} context=0x1",
        f"Using network {ways['using']}",
        f"{comm} - Init START",
        f"              + PCI[{ways['GPU']}] - GPU/{gpu}000 ({rank})",
        f"              + PCI[{ways['NIC']}] - NIC/{gpu}5000",
        f"Channel 00/0 : {rank}[{gpu}] -> {rank ^ 1}[{gpu ^ 1}] via {ways['local']}",
        f"Channel 00/0 : {rank}[{gpu}] -> {(rank + GPUS) % 8}[{gpu}] [send] via {ways['net']}",
        f"{comm} - Init COMPLETE",
    ]  # fmt: skip
    return [f"n{host}:{100 + rank}:{200 + rank} [{gpu}] NCCL INFO {line}" for line in lines]


def causes(tmp_path: Path, odd: dict[int, dict[str, str]]) -> dict[str, Cause]:
    lines = [line for rank in range(HOSTS * GPUS) for line in process(rank, odd.get(rank, {}))]
    lines += [f"step {n} loss 2.{n}" for n in range(9)]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {c.rule: c for c in read_logs([str(tmp_path / "job.log")]).causes}


def test_equal_ranks_are_no_cause(tmp_path: Path) -> None:
    assert causes(tmp_path, {}) == {}


TCP = {"using": "Socket", "net": "NET/Socket/0", "why": "NET/IB : No device found."}


@pytest.mark.parametrize(
    "odd, rule, ranks, words",
    [
        ({5: TCP}, "fell-back-to-sockets", {5}, ["rank 5 on n2", "No device found"]),
        ({2: {"net": "NET/IB/0"}, 3: {"net": "NET/IB/1"}}, GDR, {2, 3}, ["ranks 2-3 on n1", "GPUDirect"]),
        ({3: {"net": "NET/IB/1"}}, GDR, {3}, ["rank 3 on n1", "too far from their NIC"]),
        ({6: {"local": "SHM/direct/direct"}}, NAME, {6}, ["rank 6 on n3", "without P2P"]),
        ({6: {"local": "SHM/direct/direct", "why": OFF}}, NAME, {6}, ["NCCL_P2P_DISABLE"]),
        ({5: {"net": "NET/IB/0/GDRDMA"}}, NAME, set(), ["n2", "use 1 network devices, on other hosts 2"]),
        ({4: {"speed": "100000"}}, NAME, set(), ["mlx5_0 of n2", "100 Gbit/s", "400"]),
        ({7: {"GPU": "6.0"}}, NAME, set(), ["GPU 1000 of n3", "6.0 GB/s", "width or generation"]),
        ({7: {"NIC": "12.0"}}, NAME, set(), ["NIC 15000 of n3", "12.0 GB/s"]),
    ],
    ids=["TCP", "no GPUDirect on a host", "no GPUDirect on a rank", "no P2P", "no P2P, by a variable",
         "fewer NICs", "a slow port", "a slow GPU slot", "a slow NIC slot"],
)  # fmt: skip
def test_the_slower_ranks_are_named_with_the_likely_reason(
    tmp_path: Path, odd: dict[int, dict[str, str]], rule: str, ranks: set[int], words: list[str]
) -> None:
    found = causes(tmp_path, odd)
    assert [*found] == [rule] and found[rule].severity == "warning"
    assert all(word in found[rule].text for word in words), found[rule].text
    assert not ranks or ranks <= set(found[rule].ranks)


@pytest.mark.parametrize("local", ["SHM/direct/direct", "P2P/IPC"])
def test_what_all_hosts_have_is_no_difference(tmp_path: Path, local: str) -> None:
    every = {"local": local, "net": "NET/Socket/0", "using": "Socket", "GPU": "12.0", "speed": "100000"}
    assert causes(tmp_path, dict.fromkeys(range(HOSTS * GPUS), every)) == {}


def test_half_of_the_ranks_are_no_minority(tmp_path: Path) -> None:
    odd = {rank: {"local": "SHM/direct/direct", "GPU": "12.0"} for rank in range(0, 8, 2)}
    assert causes(tmp_path, odd) == {}


@pytest.mark.parametrize(
    ("device", "fix"),
    [("mlx5_1:1", "NCCL_IB_HCA='=mlx5_0:1,mlx5_1:1'"), ("a$(reboot):1", "NCCL_IB_HCA='=mlx5_0:1'")],
)
def test_the_fix_names_the_devices_of_one_kind_and_nothing_else_of_the_log(
    tmp_path: Path, device: str, fix: str
) -> None:
    using = f"NET/IB : Using [0]mlx5_0:1/IB [1]{device}/IB [2]mlx5_9:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"
    lines = [using, "Using network IB", "comm 0x1 rank 0 nranks 2 cudaDev 0 busId 0 - Init START"]
    (tmp_path / "a.log").write_text("".join(f"n0:1:2 [0] NCCL INFO {line}\n" for line in lines))
    found = [c.fix for c in read_logs([str(tmp_path)]).causes if c.rule == "mixed-link-layers-selected"]
    assert found and found[0] is not None and fix in found[0].text
