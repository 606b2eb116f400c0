"""The report on the screen: what is asked for is there whole, what is not stays within twenty lines."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.nccl_lines import Plan
from bench.nccl_logs import generate

from ringup.logs.read import Diagnosis, read_logs
from ringup.logs.rule import CAUSES, Cause
from ringup.output import logs_report as show
from ringup.output.terminal import Style
from ringup.rules import INTERNAL_ERRORS

LINE = "n0:4:4 [0] NCCL INFO "


def said(tmp_path: Path, *messages: str) -> Diagnosis:
    (tmp_path / "x.log").write_text("".join(f"{LINE}{m}\n" for m in messages), encoding="utf-8")
    return read_logs([str(tmp_path / "x.log")])


def lines(diagnosis: Diagnosis, **asked: bool) -> list[str]:
    return show.as_text(diagnosis, Style(io.StringIO()), **asked).splitlines()


def test_iterations_that_are_asked_for_are_not_cut(tmp_path: Path) -> None:
    generate(Plan(iterations=60, marks="all", layout="per-rank"), tmp_path)
    diagnosis = read_logs([str(tmp_path)])
    asked = lines(diagnosis, iterations=True)
    assert sum(line.startswith("  ") and ": All" in line for line in asked) == 60
    assert len(lines(diagnosis)) <= show.MAX_LINES


def test_calls_outside_any_iteration_and_iterations_without_calls_have_words(tmp_path: Path) -> None:
    call = "AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x1 count 8 datatype 7 op 0 root 0 comm 0x5 [nranks=2]"
    (tmp_path / "x.log").write_text(f"{LINE}{call} stream 0x6\nstep 1\nstep 2\n", encoding="utf-8")
    rows = lines(read_logs([str(tmp_path)]), iterations=True)
    assert rows[-3:] == ["  (outside any): AllReduce 1", "  1: -", "  2: -"]


def test_past_the_most_rows_the_rest_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "MAX_ROWS", 5)
    generate(Plan(iterations=9, marks="all", layout="per-rank"), tmp_path)
    shown = lines(read_logs([str(tmp_path)]), verbose=True)
    assert shown.count("  ... and 3 more, with --json") == 1  # of 8 files
    assert any(line.startswith("  ... and") for line in shown[: shown.index("last line of every file:")])


def test_everything_holds_each_rank_each_communicator_and_each_files_last_line(tmp_path: Path) -> None:
    truth = generate(Plan(fault="stalled", fault_rank=3, layout="per-rank", marks="none"), tmp_path)
    diagnosis = read_logs([str(tmp_path)])
    text = "\n".join(lines(diagnosis, verbose=True))
    for counts in truth.by_rank.values():
        assert all(f"{kind} {n}" in text for kind, n in counts.items())
    answer = show.as_json(diagnosis)
    assert answer["by_communicator"]
    for name, kinds in answer["by_communicator"].items():
        assert f"  {name}, " in text
        assert kinds == {k: sum(c.get(k, 0) for c in truth.comm_kinds[name].values()) for k in kinds}
    for last in truth.last_lines.values():
        assert last[:120] in text
    assert not any("collectives per" in line for line in lines(diagnosis))


def test_files_that_lack_init_complete_are_named_without_being_asked(tmp_path: Path) -> None:
    comm = "comm 0x5 rank {} nranks 2 cudaDev 0 busId 1000 commId 0x7 - Init {}"
    for rank, states in enumerate((("START", "COMPLETE"), ("START",))):
        text = "".join(f"n{rank}:4:4 [0] NCCL INFO {comm.format(rank, s)}\n" for s in states)
        (tmp_path / f"rank{rank}.log").write_text(text, encoding="utf-8")
    assert f"no Init COMPLETE line in 1 of 2 files: {tmp_path / 'rank1.log'}" in lines(
        read_logs([str(tmp_path)])
    )
    merged = "".join(p.read_text(encoding="utf-8") for p in sorted(tmp_path.glob("*.log")))
    (tmp_path / "job.out").write_text(merged, encoding="utf-8")
    assert "no Init COMPLETE: rank 1" in lines(read_logs([str(tmp_path / "job.out")]))


@pytest.mark.parametrize(
    ("messages", "state"),
    [
        (["NVLS multicast support is available on dev 0", "Connected NVLS tree"], "used"),
        (["NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"], "available"),
        (["NVLS multicast support is not available on dev 0"], "not available"),
        (["cudaDriverVersion 12040"], None),
    ],
)
def test_whether_nvls_is_used_is_told(tmp_path: Path, messages: list[str], state: str | None) -> None:
    diagnosis = said(tmp_path, *messages, "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
    assert show.as_json(diagnosis)["nvls"] == state
    expected = "transports: P2P/CUMEM x1" + (f"; NVLS {state}" if state else "")
    assert expected in lines(diagnosis)


def test_the_devices_of_a_network_do_not_hide_the_other_ways(tmp_path: Path) -> None:
    ways = [f"Channel 0{n}/0 : 0[0] -> 8[0] [send] via NET/IB/{n}" for n in range(8)]
    diagnosis = said(tmp_path, *ways, "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")
    assert "transports: NET/IB/* x8, SHM/direct/direct x1; no GPUDirect RDMA" in lines(diagnosis)
    assert "NET/IB/7 x1" in "\n".join(lines(diagnosis, verbose=True))


def test_a_cause_that_raised_is_named_as_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(log: object) -> Iterator[Cause]:
        raise TypeError("planted")
        yield

    problem, _ = CAUSES["port-in-use"]
    monkeypatch.setitem(CAUSES, "port-in-use", (problem, raises))
    found = lines(said(tmp_path, "Using network Socket"))
    assert INTERNAL_ERRORS.pop("port-in-use").traceback
    assert "not checked (a bug in ringup): port-in-use" in found


def test_a_log_that_ends_in_the_init_is_not_simply_without_failure(tmp_path: Path) -> None:
    begun = "ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 7000 commId 0xa - Init"
    whole = said(tmp_path, "Using network IB", f"{begun} START", f"{begun} COMPLETE")
    assert lines(whole)[0] == "No failure found in 3 lines of 1 file"
    cut = said(tmp_path, "Using network IB", f"{begun} START")
    assert lines(cut)[0] == "No failure found in 2 lines of 1 file; its end is in the middle of NCCL's init"


def test_a_job_ended_from_outside_is_said_in_the_first_line(tmp_path: Path) -> None:
    ended = said(tmp_path, "=>> PBS: job killed: walltime 3642 exceeded limit 3600")
    assert lines(ended)[0] == "Ended from outside, no other failure found in 1 line of 1 file"
    assert "job-cancelled" in lines(ended)[1]
