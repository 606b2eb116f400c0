"""One of many: a rank on TCP, an interface that is merely listed, lines whose speaker is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import Diagnosis, read_logs


def read(folder: Path, text: str) -> Diagnosis:
    (folder / "job.log").write_text(text)
    return read_logs([str(folder / "job.log")], by_iteration=None)


def rank_lines(rank: int, net: str, *more: str) -> str:
    """What NCCL says of one of 64 ranks, eight on a node."""
    head = f"node{rank // 8}:{1000 + rank}:{2000 + rank} [{rank % 8}] NCCL INFO "
    init = f"comm 0x{rank:x} rank {rank} nranks 64 cudaDev {rank % 8} busId 1000 commId 0xabc - Init "
    lines = [*more, f"Using network {net}", f"{init}START", f"{init}COMPLETE"]
    lines.append(f"Channel 00/0 : {rank}[0] -> {(rank + 1) % 64}[0] [send] via NET/{net}/0")
    return "".join(f"{head}{line}\n" for line in lines)


def test_one_rank_on_tcp_among_63_on_infiniband_is_named_with_the_reason(tmp_path: Path) -> None:
    odd = rank_lines(17, "Socket", "NCCL_IB_DISABLE set by environment to 1.")
    text = "".join(odd if rank == 17 else rank_lines(rank, "IB") for rank in range(64))
    cause = next(c for c in read(tmp_path, text).causes if c.rule == "fell-back-to-sockets")
    assert (cause.severity, cause.ranks, cause.nodes) == ("warning", (17,), ("node2",))
    assert "rank 17 on node2 uses TCP sockets, 63 others InfiniBand or RoCE" in cause.text
    assert "NCCL_IB_DISABLE" in cause.text


@pytest.mark.parametrize("net", ["IB", "Socket"])
def test_ranks_that_all_use_one_network_are_no_finding(tmp_path: Path, net: str) -> None:
    text = "".join(rank_lines(rank, net) for rank in range(64))
    assert not read(tmp_path, text).causes


def test_slurms_job_step_is_no_iteration(tmp_path: Path) -> None:
    diagnosis = read(
        tmp_path,
        "step 1 | loss: 2.0\nstep 2 | loss: 1.9\n"
        "slurmstepd: error: *** STEP 166448.0 ON node1 CANCELLED AT 2024-05-01T10:00:00 ***\n",
    )
    assert all(row.name != "166448" for row in diagnosis.run.by_iteration)


@pytest.mark.parametrize("arrow", ["-> ", ""])
def test_a_transport_is_read_where_the_speaker_and_the_arrow_are_lost(tmp_path: Path, arrow: str) -> None:
    diagnosis = read(tmp_path, f"NCCL INFO Channel 01 : 0[9000] {arrow}1[9000] via NET/IB/0\n")
    assert dict(diagnosis.run.transports) == {"NET/IB/0": 1}


def test_a_difference_that_nccl_ignores_is_no_error(tmp_path: Path) -> None:
    warning = "node0:1:2 [0] NCCL WARN Detected mixed local Net device counts. Ignoring\n"
    assert read(tmp_path, warning + "RuntimeError: no such key\n").causes[0].rule != "rdma-device-set-differs"
    (cause,) = (c for c in read(tmp_path, warning).causes if c.rule == "rdma-device-set-differs")
    assert cause.severity == "note"


def test_a_listed_interface_does_not_stand_above_the_rank_that_died(tmp_path: Path) -> None:
    text = (
        "node0:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]docker0:172.17.0.1<0> "
        "[2]br-1:172.18.0.1<0>\n"
        "node0:1:2 [0] NCCL INFO Using network Socket\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 77)\n"
    )
    causes = read(tmp_path, text).causes
    assert causes[0].rule == "rank-killed" and causes[0].severity == "error"
    assert all(c.severity != "error" for c in causes if c.rule == "virtual-interface-chosen")


OF_WATCHDOG = (
    "[rank{rank}]:[E1121 03:12:4{rank}.221 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective"
    " operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000)"
    " ran for 600021 milliseconds before timing out.\n"
    "[rank{rank}]:[E1121 03:12:4{rank}.225 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank"
    " {rank}] Exception (either an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL"
    " work: {enqueued}, last completed NCCL work: {completed}.\n"
)


@pytest.mark.parametrize(
    ("late", "rule", "ranks"),
    [
        ((2,), "rank-fell-behind", (2,)),
        ((0, 1), "collective-mismatch", None),  # half of them: which half is late is not known
    ],
)
def test_a_rank_that_is_still_in_what_the_others_have_completed_is_named(
    tmp_path: Path, late: tuple[int, ...], rule: str, ranks: tuple[int, ...] | None
) -> None:
    ahead, behind = {"seq": 12, "enqueued": 14, "completed": 11}, {"seq": 11, "enqueued": 11, "completed": 10}
    text = "".join(OF_WATCHDOG.format(rank=r, **(behind if r in late else ahead)) for r in range(4))
    cause = read(tmp_path, text).causes[0]
    assert (cause.rule, cause.confidence == "high") == (rule, False), cause
    assert ranks is None or cause.ranks == ranks


def test_a_placement_on_an_address_that_alone_names_it_is_not_certain(tmp_path: Path) -> None:
    line = "(autoscaler +13s) Error: No available node types can fulfill resource request {{{}'GPU': 1.0}}.\n"
    cause = read(tmp_path, line.format("'node:203.0.113.225': 0.001, ")).causes[0]
    assert (cause.rule, cause.confidence) == ("ray-node-address-differs", "medium")
    cause = read(tmp_path, line.format("")).causes[0]
    assert (cause.rule, cause.confidence) == ("placement-not-possible", "high")


@pytest.mark.parametrize("end, severity", [("", "warning"), ("RuntimeError: Gloo failed\n", "error")])
def test_gloos_own_name_is_not_that_of_a_peer(tmp_path: Path, end: str, severity: str) -> None:
    line = "[rank8] Warning: Unable to resolve hostname to a (local) address. Using the loopback address\n"
    causes = read(tmp_path, line + end).causes
    assert {c.rule: c.severity for c in causes}["hostname-resolves-to-loopback"] == severity
    assert "hostname-unresolvable-from-peer" not in {c.rule for c in causes}


@pytest.mark.parametrize("rank, rule", [(2, "world-size-disagrees"), (1, "stale-rendezvous-state")])
def test_a_rank_beyond_its_world_is_of_another_world(tmp_path: Path, rank: int, rule: str) -> None:
    line = (
        "RuntimeError: Timed out initializing process group in store based barrier on rank: {}, for key: "
        "store_based_barrier_key:1 (world_size=2, worker_count=4, timeout=0:30:00)\n"
    )
    cause = read(tmp_path, line.format(rank)).causes[0]
    assert (cause.rule, cause.confidence) == (rule, "medium")
