"""
`ringup check` over ssh on two hosts that play GPU machines, one fault after the other on one of them.

What the kernel and nvidia-smi tell is bound over the host's own (tests/lab/faults/gpu.py); no GPU is needed.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gpu_machine import GPUS
from tests.guards import but_load
from tests.lab import Lab
from tests.lab.faults import gpu
from tests.lab.faults.gpu import CHANGES, WITH_CARDS, machines, spoilt
from tests.lab.faults.rdma import CARDS

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FOUND = {
    "acs": ("acs-enabled", "warning", "0000:1a:00.0"),
    "bus-errors": ("pcie-errors", "warning", "2 uncorrectable"),
    "ecc": ("ecc-uncorrectable", "error", "3 uncorrectable"),
    "fabric": ("fabric-manager-not-running", "error", "In Progress"),
    "hangs": ("nvidia-smi-hangs", "warning", "no answer within"),
    "held": ("gpu-held-by-other-process", "warning", "pid 4711"),
    "hot": ("gpu-throttled", "warning", "hardware thermal slowdown, 92 °C"),
    "iommu": ("iommu-translating", "warning", "DMA-FQ"),
    "less-power": ("gpus-not-alike", "warning", "350 W"),
    "library": ("driver-library-mismatch", "error", "library 595.71"),
    "lost": ("gpu-missing", "error", "Xid 79"),
    "mig": ("mig-or-compute-mode", "warning", "MIG"),
    "narrow": ("pcie-link-degraded", "warning", "x8"),
    "no-driver": ("gpu-missing", "error", "no NVIDIA driver is loaded"),
    "nvlink-errors": ("nvlink-errors", "warning", "41 on GPU 1"),
    "nvlinks": ("nvlink-inactive", "warning", "14 on GPU 1"),
    "old-driver": ("driver-versions-differ", "warning", "470.82.01"),
    "peers": ("p2p-not-supported", "warning", "CNS"),
    "prohibited": ("mig-or-compute-mode", "error", "Prohibited"),
    "remap": ("row-remap-pending", "error", "failed"),
    "reset": ("recovery-action-needed", "error", "Reset"),
    "retired": ("retired-pages-full", "error", "61 pages"),
    "slow-card": ("pcie-link-degraded", "warning", "16 GT/s"),
    "sxid": ("sxid-in-kernel-log", "error", "20034"),
    "xid": ("xid-in-kernel-log", "warning", "Xid 119"),
}
"""Change -> the one finding above a note, its severity and a word of it."""

FOUND_WITH_CARDS = {
    "far-card": ("gpu-nic-far-apart", "warning", "SYS away"),
    "no-gpudirect": ("gpudirect-module-missing", "warning", "neither nvidia_peermem nor DMA-BUF"),
}


@pytest.fixture(scope="module")
def playing() -> Iterator[Lab]:
    """One cluster for all: what is slow is the check, not the change."""
    if gpu.missing():
        pytest.skip(f"no GPU machine can be played: {gpu.missing()} not here")
    with Lab(hosts=2, net="192.168.7.10/24", ttl_s=3 * 3600) as lab:
        lab.fault("gpu-machines")
        yield lab


@pytest.fixture(scope="module")
def with_cards() -> Iterator[Lab]:
    """The same with RDMA devices on the GPUs' own switches."""
    if gpu.missing():
        pytest.skip(f"no GPU machine can be played: {gpu.missing()} not here")
    with Lab(hosts=2, nics=CARDS, ttl_s=3 * 3600) as lab:
        for host in ("node0", "node1"):
            lab.fault("rdma", host=host)
        lab.fault("gpu-machines")
        yield lab


def checked(lab: Lab) -> dict[str, Any]:
    words = [
        sys.executable,
        "-m",
        "ringup",
        "check",
        "-H",
        "node0,node1",
        "--python",
        sys.executable,
        "--json",
    ]
    done = lab.run("node0", words, timeout_s=300)
    assert done.returncode in (0, 1), done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def above_note(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Without what is true of this machine: its root may not raise the limit of locked memory."""
    limited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] != resource.RLIM_INFINITY
    true = {"memlock-too-low"} if limited else set()
    return but_load(f for f in answer["findings"] if f["severity"] != "note" and f["rule"] not in true)


def test_healthy_gpu_machines_give_nothing_above_note(playing: Lab) -> None:
    answer = checked(playing)
    assert above_note(answer) == []
    for node in answer["nodes"]:
        assert (node["gpu_count"], len(node["gpus"]), len(node["pci"])) == (4, 4, 16)


def test_every_change_has_its_finding() -> None:
    assert set(FOUND) == set(CHANGES)
    assert set(FOUND_WITH_CARDS) == set(WITH_CARDS)


@pytest.mark.parametrize("what", FOUND)
def test_a_fault_of_a_gpu_machine_is_named_once(playing: Lab, what: str) -> None:
    named_once(playing, what, *FOUND[what])


def test_gpu_machines_with_rdma_give_nothing_above_note(with_cards: Lab) -> None:
    assert above_note(checked(with_cards)) == []


@pytest.mark.parametrize("what", FOUND_WITH_CARDS)
def test_a_fault_between_gpus_and_cards_is_named_once(with_cards: Lab, what: str) -> None:
    named_once(with_cards, what, *FOUND_WITH_CARDS[what])


def test_bus_errors_that_rise_while_the_check_looks_are_an_error(playing: Lab) -> None:
    made = machines[playing.pid, "node1"]
    path = made.function(GPUS[3]) / "aer_dev_fatal"
    made.set_pci(GPUS[3], aer_dev_fatal=f"TOTAL_ERR_FATAL {0:08d}")
    # Written over in place, one number of fixed width: a reader always finds a whole one.
    write = f"printf 'TOTAL_ERR_FATAL %08d' $n 1<> {path}"
    loop = playing.popen("node1", ["sh", "-c", f"n=0; while :; do n=$((n + 1)); {write}; sleep 0.05; done"])
    try:
        found = above_note(checked(playing))
    finally:
        loop.kill()
        loop.wait()
        made.set_pci(GPUS[3], aer_dev_fatal="TOTAL_ERR_FATAL 0")
    assert [(f["rule"], f["severity"]) for f in found] == [("pcie-errors", "error")]


def named_once(lab: Lab, what: str, rule: str, severity: str, word: str) -> None:
    with spoilt(lab, "node1", what):
        found = above_note(checked(lab))
    assert [(f["rule"], f["severity"], f["node"]) for f in found] == [(rule, severity, "node1")]
    assert word in found[0]["found"]
    assert found[0]["fix"]["commands"]
