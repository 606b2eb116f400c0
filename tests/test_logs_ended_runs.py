"""Logs of faults caused on purpose under torchrun and other launchers, shortened: the first cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringup.logs.read import read_logs

RECORDED = Path(__file__).parent / "recorded" / "ended_runs"
CASES = [
    # name, cause, confidence, ranks, words of the first evidence
    ("sigabrt", "rank-crashed", "medium", (1,), "exitcode  : -6"),
    ("sigfpe-terminate", "rank-crashed", "medium", (1,), "std::length_error"),
    ("os-exit-3", "rank-raised-exception", "medium", (1,), "exitcode  : 3"),
    ("cpu-limit", "rank-killed", "medium", (1,), "exitcode  : -24"),
    ("readonly-fs", "rank-raised-exception", "high", (0,), "[Errno 30] Read-only file system"),
    ("data-url", "rank-raised-exception", "high", (0,), "urlopen error"),
    ("stdout-closed", "rank-raised-exception", "high", (0,), "BrokenPipeError"),
    ("tool-fails", "rank-raised-exception", "high", (0,), "CalledProcessError"),
    ("thread-raises", "rank-raised-exception", "medium", (1,), "record 17 of shard-001.bin"),
    ("restart-then-other", "rank-killed", "high", (1,), "(exitcode: -9)"),
    ("jax-missing-process", "store-unreachable", "low", (), "JAX distributed service detected fatal errors"),
    ("sys-exit-msg", "rank-raised-exception", "medium", (0,), "exitcode  : 1"),
    ("sigterm-one-rank", "rank-killed", "medium", (1,), "exitcode  : -15"),
    ("double-free", "rank-crashed", "medium", (1,), "double free detected"),
    ("group-exception", "rank-raised-exception", "high", (1,), "ValueError: shard 2: bad magic"),
    ("script-option", "rank-raised-exception", "high", (0,), "unrecognized arguments: --lr-shedule"),
    ("slow-save", "rank-busy-while-others-wait", "medium", (0,), "saving checkpoint to"),
    ("stopped-rank", "rank-fell-behind", "medium", (2,), "Timed out waiting 8000ms for recv operation"),
    ("pytest-fails", "rank-raised-exception", "medium", (), "RuntimeError: The size of tensor a (3)"),
    ("loguru", "rank-raised-exception", "high", (1,), "ZeroDivisionError: division by zero"),
    ("mpi-raises", "rank-raised-exception", "high", (1,), "ZeroDivisionError"),
]


@pytest.mark.parametrize(("name", "rule", "confidence", "ranks", "words"), CASES, ids=[c[0] for c in CASES])
def test_the_first_cause(name: str, rule: str, confidence: str, ranks: tuple[int, ...], words: str) -> None:
    one = read_logs([str(RECORDED / f"{name}.log")]).causes[0]
    assert (one.rule, one.confidence, one.ranks) == (rule, confidence, ranks)
    assert words in one.evidence[0].text


def test_an_exception_is_named_with_the_one_from_which_it_was_raised() -> None:
    one = read_logs([str(RECORDED / "chained.log")]).causes[0]
    assert "raised RuntimeError: cannot build batch 4 at" in one.text
    assert one.text.endswith(", from OSError: [Errno 5] Input/output error: 'data/shard-3.tar'")
    assert [e.text.partition("Error")[0] for e in one.evidence] == ["[rank1]: Runtime", "[rank1]: OS"]


def test_a_process_number_in_a_label_is_no_part_of_the_host(tmp_path: Path) -> None:
    lines = (
        "*** Process received signal ***",
        "Signal: Segmentation fault (11)",
        *(f"[{n:2}] /lib/libc.so.6(+0x3c050)[0x7fa4b625a050]" for n in range(16)),
    )
    log = "".join(f"[gpu-a04:00013] {line}\n" for line in lines)
    ended = (
        "prterun noticed that process rank 1 with PID 13 on node gpu-a04 exited on\nsignal 11 (Segmentation"
    )
    (tmp_path / "run.log").write_text(f"{log}{ended} fault).\n", encoding="utf-8")
    one = read_logs([str(tmp_path / "run.log")]).causes[0]
    assert (one.rule, one.ranks, one.nodes) == ("rank-crashed", (1,), ("gpu-a04",))


@pytest.mark.parametrize("name", ["ok-ray-retries", "ok-exit-noise"])
def test_a_retried_task_and_a_threads_lost_connection_are_no_failure(name: str) -> None:
    causes = read_logs([str(RECORDED / f"{name}.log")]).causes
    assert not [one for one in causes if one.severity == "error"]


HYDRA = """\
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 11 RUNNING AT gpu-a04
=   EXIT CODE: 9
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
"""
MPIRUN = (
    "prterun noticed that process rank 1 with PID 13 on node gpu-a04 exited on\nsignal 15 (Terminated).\n"
)
DEEPSPEED = (
    "[launch.py:259:sigkill_handler] ['python3', 'a.py', '--local_rank=1'] exits with return code = -9\n"
)
SPAWN = "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL\n"


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (HYDRA, ["a rank crashed with a fatal signal"]),
        (MPIRUN, ["rank 1 ended first, by a SIGTERM from outside; the log does not say who sent it"]),
        (DEEPSPEED, ["local rank 1 was killed with SIGKILL; the log does not say by whom"]),
        (SPAWN, ["spawned process 1 was killed with SIGKILL; the log does not say by whom"]),
        ("step 1 loss 2\n[rank 0] validation error did not improve: stopping early, exiting\n", []),
    ],
)
def test_what_other_launchers_report_of_an_end(tmp_path: Path, log: str, found: list[str]) -> None:
    (tmp_path / "run.log").write_text(log, encoding="utf-8")
    assert [one.text for one in read_logs([str(tmp_path / "run.log")]).causes] == found


def test_arguments_that_click_refuses_are_named(tmp_path: Path) -> None:
    log = (RECORDED / "script-option.log").read_text(encoding="utf-8")
    refused = log.replace("train.py: error: unrecognized arguments: ", "Error: No such option: ")
    (tmp_path / "run.log").write_text(refused, encoding="utf-8")
    one = read_logs([str(tmp_path / "run.log")]).causes[0]
    assert one.text.startswith("rank 0 refused its arguments: Error: No such option: --lr-shedule")


def test_after_a_restart_gloo_meets_the_addresses_of_the_attempt_before(tmp_path: Path) -> None:
    log = (RECORDED / "restart-then-other.log").read_text(encoding="utf-8")
    for address in ("10.20.0.4", "127.0.0.1"):
        (tmp_path / "run.log").write_text(log.replace("10.20.0.4", address), encoding="utf-8")
        causes = read_logs([str(tmp_path / "run.log")]).causes
        assert [one.rule for one in causes] == ["rank-killed", "stale-rendezvous-state"]
        assert causes[1].fix and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in causes[1].fix.text


OF_A_NODE = """\
[W1129 10:42:{0}.493702481 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3
[W1129 10:42:{0}.602798342 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3
{1}
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_10:42:{2}
  host      : gpu-a0{3}
  rank      : {3} (local_rank: 0)
  exitcode  : 1 (pid: 22)
"""  # noqa: E501
REFUSED = (
    "RuntimeError: Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:152] timed out connecting: "
    "SO_ERROR: Connection refused, remote=[127.0.0.1]:11688$0"
)


@pytest.mark.parametrize(("begins", "is_one"), [(49, True), (58, False)])
def test_logs_of_nodes_that_ran_at_the_same_time_are_one_run(
    tmp_path: Path, begins: int, is_one: bool
) -> None:
    timeout = (
        "RuntimeError: Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.h:311] Connect timeout"
    )
    log = OF_A_NODE.format(48, REFUSED, 54, 0) + OF_A_NODE.format(begins, timeout, 59, 1)
    (tmp_path / "run.log").write_text(log, encoding="utf-8")
    rules = [one.rule for one in read_logs([str(tmp_path / "run.log")]).causes]
    assert ("hostname-resolves-to-loopback" in rules) == is_one


@pytest.mark.parametrize("sent", [r"(?m)^.*closing signal.*\n", "process 13(?= closing)"])
def test_a_sigterm_that_the_agent_may_have_sent_is_not_from_outside(tmp_path: Path, sent: str) -> None:
    log = (RECORDED / "sigterm-one-rank.log").read_text(encoding="utf-8")
    (tmp_path / "run.log").write_text(
        re.sub(sent, "process 14" * sent.startswith("p"), log), encoding="utf-8"
    )
    assert read_logs([str(tmp_path / "run.log")]).causes[0].rule == "peer-died-first"


def test_a_process_without_a_local_rank_gets_the_rank_of_no_other(tmp_path: Path) -> None:
    log = (
        "Process 99 killed by signal 11\nprocess rank 1 with PID 13 on node n1 exited on signal 9 (Killed).\n"
    )
    (tmp_path / "run.log").write_text(log, encoding="utf-8")
    causes = read_logs([str(tmp_path / "run.log")]).causes
    assert [one.ranks for one in causes] == [(), (1,)]


def test_a_lost_peer_that_is_not_in_the_launchers_table_has_not_failed_on_that_node() -> None:
    one = read_logs([str(RECORDED / "exit0-early.log")]).causes[0]
    assert one.rule == "peer-died-first" and one.text.endswith(
        "(10.20.0.4): a rank of another node, or one of this node that ended with exit code 0"
    )


def test_threads_that_still_ran_abort_a_rank_that_was_already_ending(tmp_path: Path) -> None:
    log = (RECORDED / "sigabrt.log").read_text(encoding="utf-8")
    (tmp_path / "run.log").write_text(
        f"terminate called without an active exception\n{log}", encoding="utf-8"
    )
    one = read_logs([str(tmp_path / "run.log")]).causes[0]
    assert (one.rule, one.ranks) == ("peer-died-first", ())


def test_a_key_that_nobody_sets_names_no_rank(tmp_path: Path) -> None:
    waits = "DistStoreError: wait timeout after 5000ms, keys: /default_pg/0//model_id\n"
    (tmp_path / "run.log").write_text(f"[rank1]: torch.distributed.{waits}", encoding="utf-8")
    one = read_logs([str(tmp_path / "run.log")]).causes[0]
    assert (one.rule, one.ranks) == ("rank-busy-while-others-wait", ())


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("job.sh: line 3: MASTER_ADDR: unbound variable", "rendezvous-variables-missing"),
        ("job.sh: 3: DATA_DIR: parameter not set", "unnamed-failure"),
    ],
)
def test_a_shell_that_ends_for_an_unset_variable_is_a_failure(tmp_path: Path, line: str, rule: str) -> None:
    (tmp_path / "run.log").write_text(f"start\n{line}\n", encoding="utf-8")
    one = read_logs([str(tmp_path / "run.log")]).causes[0]
    assert (one.rule, one.evidence[0].text) == (rule, line)
