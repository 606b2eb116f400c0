"""The order of blame: causes before consequences, on whatever rank or line they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.blame import is_consequence, place, ranked
from ringup.logs.read import read_logs
from ringup.logs.rule import Cause

CLOSED = "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:41"


def rules(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "job.log").write_text(text, encoding="utf-8")
    return [c.rule for c in read_logs([str(tmp_path)]).causes]


@pytest.mark.parametrize(
    "text",
    [
        CLOSED,
        "n0:4:4 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n1<34848>",
        "RuntimeError: Connection reset by peer",
        "recvVector failed on SocketImpl(fd=3): Connection was likely closed. Did the remote "
        "server shutdown?",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "  exitcode  : -15 (pid: 10095)  (SIGTERM)",
        "Received 15 death signal, shutting down workers",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
        "store->get('0') got error: Connection reset by peer",
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=19, OpType=ALLREDUCE)",
        "Received a dump signal due to a collective timeout from another rank",
        "has failed to send a keep-alive heartbeat to the rendezvous 'x'",
        "n0:4:4 [0] NCCL INFO proxy.cc:694 -> 6 [Progress Thread]",
    ],
)
def test_words_about_somebody_elses_end_are_consequences(text: str) -> None:
    assert is_consequence(text)


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'loss'",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "EADDRINUSE",
        "Segmentation fault (core dumped)",
        "exitcode  : -9 (pid: 4)  (SIGKILL)",
        "Bootstrap : no socket interface found",
        "step 12 loss 0.3",
        "",
    ],
)
def test_words_about_ones_own_end_are_none(text: str) -> None:
    assert not is_consequence(text)


def test_a_cause_printed_after_its_consequence_comes_first(tmp_path: Path) -> None:
    assert (
        rules(tmp_path, f"{CLOSED}\n[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n")[0]
        == "gpu-out-of-memory"
    )


def test_a_consequence_is_not_listed_beside_a_cause(tmp_path: Path) -> None:
    assert "peer-died-first" not in rules(
        tmp_path, f"{CLOSED}\n[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n"
    )


def test_hardware_stands_before_the_exception_it_raised(tmp_path: Path) -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n[rank1]: ValueError: nan\n  exitcode  : 1 (pid: 4)\n"
        "kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    assert rules(tmp_path, text)[0] == "gpu-missing"


def test_the_launchers_own_root_cause_is_not_believed() -> None:
    found = read_logs([str(Path(__file__).parent / "recorded" / "logs" / "key-error.log")]).causes
    assert (found[0].rule, found[0].ranks) == ("rank-raised-exception", (1,))


def test_an_exception_that_only_carries_another_failure_is_none(tmp_path: Path) -> None:
    text = (
        "Traceback (most recent call last):\n"
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, invalid "
        "usage, NCCL version 2.19.3\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 2000\n"
    )
    assert rules(tmp_path, text) == ["same-gpu-twice"]


def test_a_log_of_rank_1_alone_stays_below_high_confidence(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(CLOSED, encoding="utf-8")
    assert [c.confidence for c in read_logs([str(tmp_path)]).causes] != ["high"]


def test_a_slow_but_running_finding_never_stands_above_a_failure(tmp_path: Path) -> None:
    text = (
        "n0:4:4 [0] NCCL INFO NCCL_IB_HCA set to ib0\nn0:4:4 [0] NCCL INFO NET/IB : No device found.\n"
        "n0:4:4 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\nn0:4:4 [0] NCCL INFO Using "
        "network Socket\n"
        "n0:4:4 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes\n"
    )
    assert rules(tmp_path, text)[:2] == ["shm-too-small", "rdma-device-name-missing"]


def test_doubt_stands_below_certainty_of_a_later_class() -> None:
    doubtful = Cause("x", "low", rule="gid-missing-or-wrong", severity="error")
    sure = Cause("x", "medium", rule="rdma-retry-exceeded", severity="error")
    assert place(doubtful) < place(sure)
    assert [c.rule for c in ranked([doubtful, sure])] == ["rdma-retry-exceeded", "gid-missing-or-wrong"]


def test_one_name_is_listed_once() -> None:
    twice = [
        Cause("a", "low", rule="port-in-use", severity="error"),
        Cause("b", "high", rule="port-in-use", severity="error"),
    ]
    assert [c.text for c in ranked(twice)] == ["b"]


def test_a_dead_workers_list_of_guesses_is_no_evidence(tmp_path: Path) -> None:
    text = (
        "Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of "
        "file. There are some potential "
        "root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. "
        "(2) ray stop --force is "
        "called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.\n"
    )
    assert rules(tmp_path, text) == ["peer-died-first"]


def test_what_has_a_name_stands_before_nccls_error_that_rests_on_the_same_line(tmp_path: Path) -> None:
    text = (
        "n0:5:9 [0] sharp.c:343 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)\n"
        "n0:5:9 [0] NCCL INFO init.cc:1101 -> 2\n"
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:133, unhandled system error\n"
        "Last error:\nNET/IB : SHARP coll init error: Cannot create SHARP job(-11)\n"
    )
    assert rules(tmp_path, text) == ["sharp-unavailable", "nccl-error-without-detail"]


IPV6 = (
    "[rank{}]:[W1120 10:00:01.2 socket.cpp:697] [c10d] The IPv6 network addresses of (n0, 29500) cannot be "
    "retrieved (gai error: -{}).\n"
)


@pytest.mark.parametrize(
    "reason", ["9 - Address family for hostname not supported", "2 - Name or service not known"]
)
def test_a_name_without_an_ipv6_address_is_no_unknown_name(tmp_path: Path, reason: str) -> None:
    text = "".join(IPV6.format(rank, reason) for rank in range(8))
    assert rules(tmp_path, text) == []
    assert rules(tmp_path, text + "[rank1]: KeyError: 'labels'\n") == ["rank-raised-exception"]
    unmet = "[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect "
    unmet += "to (n0, 29500)."
    unknown = "hostname-unresolvable-from-peer"
    assert (unknown in rules(tmp_path, text + unmet)) == (reason[0] == "2")
    assert rules(tmp_path, text + text.replace("IPv6", "IPv4"))[0] == unknown


UCX_CRASH = """\
[1746.8] [n3:1950659:0] sock.c:334 UCX ERROR connect(fd=1, dest_addr=169.254.4.6:5) failed: Connection refused
[n3:1950659] pml_ucx.c:424  Error: ucp_ep_create(proc=0) failed: Destination is unreachable
[n3:1950659:0:1950659] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x30007)
==== backtrace (tid:1950659) ====
"""


def test_a_crash_just_below_a_failed_connection_is_its_consequence(tmp_path: Path) -> None:
    assert rules(tmp_path, UCX_CRASH)[:2] == ["link-local-address-chosen", "rank-crashed"]
    first, *rest = UCX_CRASH.splitlines(keepends=True)
    far = "".join([first, *(f"step {n} loss 0.3\n" for n in range(40)), *rest])
    assert rules(tmp_path, far)[0] == "rank-crashed"


def test_a_job_killed_for_its_quota_had_no_room(tmp_path: Path) -> None:
    text = "Job 143560526.pbs killed due to exceeding jobfs quota. Quota: 15.0GB, Used: 15.0GB, Host: n4\n"
    assert rules(tmp_path, text)[0] == "disk-full"
