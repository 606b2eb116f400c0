"""Logs that torch 2.11, NCCL 2.28.9 and JAX 0.11 wrote, two ranks on one NVIDIA H200, cut to what decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import read_logs

HUNG = "hung, ended 35 s after the start: rank 1 (node1) is missing: the others wait for the GPU\n"
KILLS = 'os.kill(os.getpid(), signal.SIGKILL) if once else read("/dev/shm/x")  # CUDA out of memory'
STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(5))
_REFUSED = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:29501: Failed to connect to "
    "remote host: Connection refused\n"
)
COORDINATOR_GONE = (
    "W1126 20:27:52.747105    4484 pjrt_client.cc:1605] WatchTasksAsync failed for task 0: UNAVAILABLE: "
    f"{_REFUSED}"
    "Additional GRPC error information from remote target coordination_service while calling "
    f"/xla.coordination.CoordinationService/WatchTasks:\n:UNAVAILABLE:{_REFUSED}"
)
NEVER_THERE = COORDINATOR_GONE.replace("WatchTasksAsync", "RegisterTask").replace(
    "WatchTasks", "RegisterTask"
)
ASSERTED = """\
/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1515: indexSelectSmallIndex: block: [0,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 119, in <module>
[rank1]:     say("rank %d: %s" % (rank, y.sum().item()))
[rank1]:                                ^^^^^^^^^^^^^^
[rank1]: torch.AcceleratorError: CUDA error: device-side assert triggered
[rank1]: CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.

n1:11959:12386 [0] NCCL INFO comm 0x26fc1f50 rank 1 nRanks 2 cudaDev 0 busId 60 - Abort START

[2026-11-26 20:31:45] n1:11959:12386 [0] misc/strongstream.cc:402 NCCL WARN Cuda failure 'device-side assert triggered'

[2026-11-26 20:31:45] n1:11959:12386 [0] init.cc:2223 NCCL WARN commDestroySync: comm 0x26fc1f50 rank 1 sync hostStream error 1

[2026-11-26 20:31:46] n1:11959:12386 [0] include/alloc.h:250 NCCL WARN Cuda failure 710 'device-side assert triggered'
n1:11959:12386 [0] NCCL INFO include/alloc.h:386 -> 1
"""  # noqa: E501
FRAME = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/train.py", line 9, in <module>\n'
CLOSED = """\
[rank0]:[E1126 20:28:04.200 ProcessGroupNCCL.cpp:612] [Rank 0] Collective WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1000, NumelOut=1000, Timeout(ms)=600000) raised the following async exception: NCCL error: {0}
[rank0]:[E1126 20:28:04.201 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected by watchdog at work sequence id: 7 PG status: last enqueued work: 7, last completed work: 6
"""  # noqa: E501


def first(tmp_path: Path, **logs: str) -> list[tuple[str, str]]:
    for name, text in logs.items():
        (tmp_path / f"{name}.log").write_text(text, encoding="utf-8")
    return [(one.rule, one.severity or "") for one in read_logs([str(tmp_path)]).causes]


@pytest.mark.parametrize(
    "place",
    [
        "  rank 1: job.py:182 in once: {}, asleep\n",
        "  rank 1 (node1): job.py:182: {}, asleep\n",
        "  2 ranks (0-1): job.py:182 in once: {}\n",
        "    /job/job.py:182 in once: {}\n",
    ],
)
def test_source_code_in_a_stack_is_no_event(tmp_path: Path, place: str) -> None:
    found = first(tmp_path, ringup=place.format(KILLS) + HUNG)
    assert found == [("rank-fell-behind", "error")]


def test_what_a_rank_says_of_itself_is_no_source_code(tmp_path: Path) -> None:
    found = first(
        tmp_path, job=STEPS + "rank 1: train.py:182: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert found[0] == ("gpu-out-of-memory", "error")


def test_the_coordinator_that_goes_away_at_the_end_is_no_error(tmp_path: Path) -> None:
    assert first(tmp_path, rank0=STEPS + "finished\n" + COORDINATOR_GONE, rank1=COORDINATOR_GONE) == []


def test_the_coordinator_that_never_answered_is_an_error(tmp_path: Path) -> None:
    assert first(tmp_path, rank0=NEVER_THERE)[0] == ("store-unreachable", "error")


AUTOTUNES = "".join(
    f"[rank1]:E1126 21:33:12.409000 1368 torch/_inductor/select_algorithm.py:3541] [0/0] {line}\n"
    for line in (
        "Exception No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 262144 "
        "Hardware limit:232448 Reducing block sizes or `num_stages` may help. for benchmark choice",
        "Traceback (most recent call last):",
        '  File "/v/torch/_inductor/select_algorithm.py", line 3464, in precompile_with_captured_stdout',
        "    choice.precompile()",
        "RuntimeError: No valid triton configs. OutOfMemoryError: out of resource: triton_mm Required: 9",
    )
)


def test_a_kernel_that_autotuning_rejects_is_no_error(tmp_path: Path) -> None:
    assert first(tmp_path, rank1="step 0 2000.0\n" + AUTOTUNES) == []


def test_a_kernel_without_resources_is_no_lack_of_gpu_memory(tmp_path: Path) -> None:
    raised = (
        "[rank1]: triton.runtime.errors.OutOfMemoryError: out of resource: shared memory, Required: 262144\n"
    )
    found = first(tmp_path, rank1=STEPS + FRAME + raised)
    assert found[0] == ("rank-raised-exception", "error")


def test_what_nccl_prints_when_it_is_torn_down_stands_behind_the_exception(tmp_path: Path) -> None:
    assert first(tmp_path, rank1=ASSERTED)[0] == ("rank-raised-exception", "error")


@pytest.mark.parametrize(
    "kind, rules",
    [
        ("error", ["device-ordinal-not-visible"]),
        ("refused", ["device-ordinal-not-visible"]),
        ("unsupported", []),
    ],
)
def test_records_of_a_test_are_read_as_what_they_hold(tmp_path: Path, kind: str, rules: list[str]) -> None:
    hello = '@ringup {"kind": "hello", "rank": 0}\n'
    record = (
        f'@ringup {{"kind": "{kind}", "rank": 1, "error": "no CUDA device 1 for local rank 1: 1 visible"}}\n'
    )
    assert [rule for rule, _ in first(tmp_path, rank1=hello + record)] == rules


@pytest.mark.parametrize(
    "why, is_behind",
    [
        ("remote process exited or there was a network error, NCCL version 2.28.9", False),
        ("Watchdog caught collective operation timeout", True),
    ],
)
def test_the_watchdogs_numbers_count_only_after_a_timeout(tmp_path: Path, why: str, is_behind: bool) -> None:
    rules = [rule for rule, _ in first(tmp_path, rank0=STEPS + CLOSED.format(why))]
    assert ("rank-fell-behind" in rules) == is_behind
