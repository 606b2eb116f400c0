"""Every cause is named on what programs print under it, and on nothing that a sound run prints."""

from __future__ import annotations

import html
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ringup.logs import causes
from ringup.logs.blame import PLACE
from ringup.logs.read import Diagnosis, read_logs
from tests.golden_files import part_of
from tests.logs_said import HEALTHY, NOISE, SAID, UNREADABLE


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    log = tmp_path / "job.log"
    log.write_text(text + "\n", encoding="utf-8")
    return read_logs([str(log)])


@pytest.mark.parametrize(("rule", "text"), SAID, ids=[f"{n}-{rule}" for n, (rule, _) in enumerate(SAID)])
def test_the_first_cause_is_the_one_these_lines_mean(tmp_path: Path, rule: str, text: str) -> None:
    found = diagnose(tmp_path, text).causes
    assert found, "nothing was named"
    assert found[0].rule == rule
    assert found[0].evidence, "a cause without a line to show"


@pytest.mark.parametrize("text", HEALTHY, ids=range(len(HEALTHY)))
def test_lines_that_mean_nothing_are_no_error(tmp_path: Path, text: str) -> None:
    diagnosis = diagnose(tmp_path, text)
    assert [c.rule for c in diagnosis.causes if c.severity == "error"] == []
    assert diagnosis.healthy


PREFIXES = (
    "[1,0]<stderr>:",
    "worker-0: ",
    "(RayWorkerWrapper pid=1890, ip=10.41.0.8) ",
    "2024-01-01T00:00:00.000Z ",
    "[rank0]: ",
    "> ",
    "\t",
    "n2 | ",
    "0: ",
    "2024-01-01 10:00:00,123 INFO ",
    "[2024-01-01 10:00:00] ",
    "\x1b[32m",
    "10.0.0.3: ",
    "train-0  | ",
    "Jan 01 10:00:00 n1 train[123]: ",
    "ERROR 02-12 19:57:26 worker_base.py:572] ",
    "[2025-08-17, 16:39:31 UTC] {pod_manager.py:477} INFO - [base] ",
)
"""What launchers, collectors, containers and mail put before a line."""


@pytest.mark.parametrize("number", range(len(SAID)))
def test_what_stands_before_a_line_does_not_hide_what_it_says(tmp_path: Path, number: int) -> None:
    rule, text = SAID[number]
    for prefix in PREFIXES[zlib.crc32(text.encode()) % 4 :: 4]:
        if "rank" in prefix and "[rank" in text:
            continue  # two ranks on one line: anybody's guess
        if rule == "node-rank-duplicate" and "machine_rank" in text:
            continue  # one host's name before both: one host that prints its settings twice
        found = diagnose(tmp_path, "\n".join(prefix + line for line in text.split("\n"))).causes
        assert [c.rule for c in found][:1] == [rule], prefix


FORMS: dict[str, Callable[[str], str]] = {
    "boxed": lambda text: "\n".join(f"│ {line:<180} │" for line in text.split("\n")),
    "escaped": html.escape,
    "windows": lambda text: text.replace("\n", "\r\n"),
    "spaced": lambda text: text.replace("\n", "\n\n"),
    "docker": lambda text: "\n".join(
        json.dumps({"log": line + "\n", "stream": "stderr"}, separators=(",", ":"))
        for line in text.split("\n")
    ),
    "kubernetes": lambda text: "\n".join(
        "2026-01-02T03:04:05.678901234Z stderr F " + line for line in text.split("\n")
    ),
    "folded": lambda text: "\n".join(line + " [repeated 6x across cluster]" for line in text.split("\n")),
}
"""What collectors and web pages make of lines."""
EXCUSED = {
    ("escaped", "launcher-argument-misread"),  # an apostrophe in the very word that is looked for
    ("escaped", "rank-busy-while-others-wait"),
    ("escaped", "shm-too-small"),
}


def as_collected(tmp_path: Path, form: str, said: Sequence[tuple[str, str]]) -> None:
    for rule, text in said:
        if (form, rule) not in EXCUSED:
            found = diagnose(tmp_path, FORMS[form](text)).causes
            assert [c.rule for c in found][:1] == [rule], text


@pytest.mark.parametrize("form", FORMS)
def test_how_a_collector_writes_lines_does_not_hide_what_they_say(tmp_path: Path, form: str) -> None:
    as_collected(tmp_path, form, part_of(SAID, [*FORMS].index(form), len(FORMS)))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_no_collector_hides_what_any_line_says(tmp_path: Path, form: str) -> None:
    as_collected(tmp_path, form, SAID)


@pytest.mark.parametrize("which", UNREADABLE)
def test_a_setting_that_nccl_cannot_read_is_what_is_named(tmp_path: Path, which: str) -> None:
    assert [c.rule for c in diagnose(tmp_path, UNREADABLE[which]).causes] == ["nccl-setting-invalid"]


GAVE_UP = (
    "[rank0]:[E1126 08:45:51.163 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1000, NumelOut=1000, Timeout(ms)=10000) ran for "
    "10027 milliseconds before timing out.\n"
)
SIGNALLED = (
    "[rank{0}]:[E1126 08:45:56.344 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
    "Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the "
    "debug info. Last enqueued NCCL work: {1}, last completed NCCL work: 3.This is most likely caused by\n"
)


def test_the_rank_that_has_not_enqueued_what_others_stand_in_is_the_one_behind(tmp_path: Path) -> None:
    text = GAVE_UP + SIGNALLED.format(0, 4) + SIGNALLED.format(1, 3)
    (found,) = diagnose(tmp_path, text).causes
    assert (found.rule, found.confidence, found.ranks) == ("rank-fell-behind", "medium", (1,))


@pytest.mark.parametrize(("completed", "ranks"), [("-1", ()), ("3", (0,))])
def test_where_no_collective_has_ever_worked_nobody_is_to_blame(
    tmp_path: Path, completed: str, ranks: tuple[int, ...]
) -> None:
    state = SIGNALLED.replace("work: 3", f"work: {completed}")
    found = diagnose(
        tmp_path, GAVE_UP.replace("ank0", "ank1").replace("ank 0", "ank 1") + state.format(2, 4)
    ).causes
    assert (found[0].rule, found[0].ranks) == ("rank-fell-behind", ranks)
    assert "ranks 1-2" in found[0].text


def test_a_rank_that_stands_in_the_same_number_is_not_behind(tmp_path: Path) -> None:
    """Recorded with calls of two sizes: the rank with the larger one had already enqueued the next."""
    text = GAVE_UP + SIGNALLED.format(0, 4) + SIGNALLED.format(1, 5)
    assert not [c for c in diagnose(tmp_path, text).causes if c.rule == "rank-fell-behind" and c.ranks]


SETUP = (
    "n1:11:11 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    "n1:11:30 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
)
INIT = "".join(
    f"n{rank + 1}:11:30 [0] NCCL INFO ncclCommInitRank comm 0x{rank + 1} rank {rank} nranks 2 cudaDev 0 "
    f"nvmlDev 0 busId 1000 commId 0x77 - Init {state}\n"
    for state in ("START", "COMPLETE")
    for rank in (0, 1)
)
TRAINED = {
    "steps": "".join(f"step {n} loss 2.{n}\n" for n in range(2, 9)),
    "records": "".join(f"{{'loss': 2.{n}, 'grad_norm': 1.{n}, 'epoch': 0.0{n}}}\n" for n in range(2, 9)),
}


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("line", NOISE, ids=range(len(NOISE)))
def test_a_job_that_went_on_after_a_line_did_not_fail_of_it(tmp_path: Path, line: str, trained: str) -> None:
    for text in (SETUP + line + "\n" + INIT, SETUP + INIT + line + "\n"):
        diagnosis = diagnose(tmp_path, text + TRAINED[trained])
        assert [c.rule for c in diagnosis.causes if c.severity == "error"] == []


def all_causes() -> list[str]:
    from ringup.logs.evidence import LogEvidence

    causes.find(LogEvidence([], []))
    return sorted(causes.CAUSES)


def test_an_empty_story_has_no_cause() -> None:
    from ringup.logs.evidence import LogEvidence

    assert causes.find(LogEvidence([], [])) == []


def test_every_cause_has_an_excerpt_that_shows_it() -> None:
    shown = {rule for rule, _ in SAID}
    shown |= {
        "rdma-port-not-active",
        "ipoib-used-for-data",
        "mixed-link-layers-selected",
        "driver-library-mismatch",
        "node-lost",  # only ringup's own last words tell of it: test_logs_ended
    }
    assert set(all_causes()) - shown == set(), "add an excerpt of each to tests/logs_said.py"


def test_every_cause_has_its_place_in_the_order_of_blame() -> None:
    assert set(all_causes()) - set(PLACE) == set(), "add them to ORDER in logs/blame.py"


def test_evidence_points_at_a_line_that_holds_it(tmp_path: Path) -> None:
    for rule, text in SAID:
        lines = text.split("\n")
        for found in diagnose(tmp_path, text).causes:
            for event in found.evidence:
                shown = event.text.strip(".").strip()
                assert shown[:40] in lines[event.line - 1], (rule, event)


def test_a_failed_call_without_a_known_reason_is_named_with_its_error(tmp_path: Path) -> None:
    text = "n1:7:9 [0] misc/ibvwrap.cc:192 NCCL WARN Call to ibv_alloc_td failed with error Bad address\n"
    text += "n1:7:9 [0] NCCL INFO transport/net_ib.cc:1872 -> 2"
    first = diagnose(tmp_path, text).causes[0]
    assert first.rule == "unnamed-failure"
    assert "Call to ibv_alloc_td failed with error Bad address" in first.text


CLOSED = (
    "[rank0]: RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:547] Connection closed by peer "
    "[10.0.0.2]:41022\n"
)


def test_what_a_run_saw_end_first_goes_before_what_peers_say_of_it(tmp_path: Path) -> None:
    end = "first failure: rank 1 on node1: exit code 7, 2.3 s after the start\n  it printed nothing\n"
    first = diagnose(tmp_path, CLOSED + end).causes[0]
    assert (first.rule, first.ranks, first.nodes) == ("rank-raised-exception", (1,), ("node1",))
    assert "rank 1 ended first, with exit code 7" in first.text


def test_the_exception_of_who_ended_first_goes_before_its_exit_code(tmp_path: Path) -> None:
    error = "ModuleNotFoundError: No module named 'flash_attn'"
    frame = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n'
    (tmp_path / "rank-00001-node1.log").write_text(f"{frame}{error}\n")
    end = f"first failure: rank 1 on node1: {error} (exit code 1), 2.3 s after the start\n"
    (tmp_path / "ringup.log").write_text(end)
    first = read_logs([str(tmp_path)]).causes[0]
    assert (first.rule, first.confidence, first.ranks) == ("rank-raised-exception", "high", (1,))
    assert "rank 1 raised ModuleNotFoundError" in first.text and "train.py:3" in first.text


def test_what_the_output_of_who_ended_first_names_goes_before_its_exit_code(tmp_path: Path) -> None:
    error = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    frame = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 3, in main\n'
    (tmp_path / "rank-00000-node0.log").write_text(f"{frame}{error}\n")
    end = f"first failure: rank 0 on node0: {error} (exit code 1), 7.1 s after the start\n"
    (tmp_path / "ringup.log").write_text(end)
    first = read_logs([str(tmp_path)]).causes[0]
    assert (first.rule, first.confidence) == ("port-in-use", "high")


def test_why_nccl_refused_goes_before_the_exit_code_of_who_ended_first(tmp_path: Path) -> None:
    raised = (
        "[rank{0}]: Traceback (most recent call last):\n"
        '[rank{0}]:   File "/home/ada/train.py", line 299, in step\n'
        "[rank{0}]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:93, invalid usage (run "
        "with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
        "[rank{0}]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "[rank{0}]: Last error:\n"
        "[rank{0}]: Failed to initialize any NET plugin\n"
    )
    for rank in (0, 1):
        (tmp_path / f"rank-0000{rank}-node{rank}.log").write_text(raised.format(rank))
    what = "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."
    end = f"first failure: rank 1 on node1: {what} (exit code 1), 18 s after the start\n"
    (tmp_path / "ringup.log").write_text(end)
    assert read_logs([str(tmp_path)]).causes[0].rule == "network-plugin-init-failed"


def test_a_disk_that_was_full_for_ringups_own_files_is_no_cause(tmp_path: Path) -> None:
    full = "ringup: /nfs/runs/a/rank-00000-node4.log: No space left on device{}\n"
    end = "first failure: rank 2 on node3: killed by SIGKILL (9), 19 min after the start\n"
    for lacks in ("", ": the log directory lacks output from then on; the run continues"):
        assert [c.rule for c in diagnose(tmp_path, full.format(lacks) + end).causes] == ["rank-killed"]


AGENT = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-02-05_01:02:51
  host      : node0
  rank      : 0 (local_rank: 0)
  exitcode  : 4 (pid: 4711)
  error_file: <N/A>
"""


def test_what_a_run_saw_end_first_goes_before_what_a_nodes_launcher_saw_end_first(tmp_path: Path) -> None:
    end = "first failure: rank 1 on node1: exit code 3, 2.3 s after the start\n  it printed nothing\n"
    first = diagnose(tmp_path, end + AGENT).causes[0]
    assert (first.rule, first.ranks, first.nodes) == ("rank-raised-exception", (1,), ("node1",))


@pytest.mark.parametrize(
    ("how", "rule"),
    [
        (
            "killed by SIGKILL (9): often the kernel's out-of-memory killer (see `dmesg`)",
            "rank-killed",
        ),
        ("killed by SIGSEGV (11): a crash in native code", "rank-crashed"),
        ("killed by SIGBUS (7): often /dev/shm is full", "rank-crashed"),
    ],
)
def test_a_signal_that_a_run_saw_is_named(how: str, rule: str, tmp_path: Path) -> None:
    end = f"first failure: rank 3 on node1: {how}, 2.3 s after the start\n"
    causes = diagnose(tmp_path, CLOSED + end).causes
    assert (causes[0].rule, causes[0].ranks) == (rule, (3,))
    assert {c.rule for c in causes} <= {rule, "peer-died-first"}


@pytest.mark.parametrize("hung", ["hung after 13 s", "hung, ended 13 s after the start"])
@pytest.mark.parametrize(
    ("who", "ranks"), [("rank 1 on node1", (1,)), ("ranks 1, 3 on node1, node2", (1, 3))]
)
def test_a_run_that_was_ended_as_hung_names_who_was_missing(
    who: str, ranks: tuple[int, ...], hung: str, tmp_path: Path
) -> None:
    said = "W1122 02:57:46.888000 42 api.py:753] Received 15 death signal, shutting down workers\n"
    first = diagnose(tmp_path, f"{said}{hung}: {who} missing from all_reduce\n").causes[0]
    assert (first.rule, first.severity, first.ranks) == ("rank-fell-behind", "error", ranks)
    assert first.nodes == tuple(who.partition(" on ")[2].split(", "))
    assert "never came to all_reduce; the run was ended as hung" in first.text


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        ("hung, ended 13 s after the start: rank 1 on node1 missing from all_reduce", "rank-fell-behind"),
        (
            "first failure: rank 3 on node1: ValueError: no (exit code 1), 2.3 s after the start\n"
            "  | [rank3]: ValueError: no",
            "rank-raised-exception",
        ),
        (
            "first failure: rank 3 on node1: killed by SIGKILL (9): often the kernel's out-of-memory killer"
            " (see `dmesg`), 2.3 s after the start",
            "oom-killer-ran",
        ),
        (
            "first failure: rank 3 on node2: killed by SIGKILL (9): often the kernel's out-of-memory killer"
            " (see `dmesg`), 2.3 s after the start",
            "rank-killed",
        ),
    ],
)
def test_a_node_that_was_short_of_memory_is_the_cause_only_if_a_rank_was_killed(
    end: str, rule: str, tmp_path: Path
) -> None:
    counted = "ringup: node1: the kernel ended 1 process there for memory meanwhile (oom-killer-ran)\n"
    first = diagnose(tmp_path, f"{counted}{end}\n").causes[0]
    assert (first.rule, first.severity) == (rule, "error")


def test_a_failure_whose_words_name_another_rank_is_no_first_one(tmp_path: Path) -> None:
    end = "first failure seen: rank 0 on node0: RuntimeError (exit code 1), 2.3 s after the start\n"
    assert not any("ended first, with" in c.text for c in diagnose(tmp_path, CLOSED + end).causes)


BRIDGES = (
    "n0:7:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.3<0> [1]veth1a:fe80::1%veth1a<0> "
    "[2]veth2b:fe80::2%veth2b<0> [3]br-3c:172.18.0.1<0>\n"
    "n0:7:9 [0] NCCL INFO comm 0x55 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0x9 - Init COMPLETE\n"
)


def test_bridges_are_not_blamed_for_a_program_that_fails_after_ranks_met(tmp_path: Path) -> None:
    said = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nAttributeError: no x'
    causes = diagnose(tmp_path, BRIDGES + said).causes
    assert [c.rule for c in causes if c.severity == "error"] == ["rank-raised-exception"]


def test_bridges_are_blamed_when_the_network_fails_after_ranks_met(tmp_path: Path) -> None:
    sent = "n0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/3\n"
    said = "n0:7:9 [0] misc/socket.cc:61 NCCL WARN Call to bind failed : Cannot assign requested address"
    assert diagnose(tmp_path, BRIDGES + sent + said).causes[0].rule == "virtual-interface-chosen"


def test_an_nvlink_error_is_not_called_a_memory_error(tmp_path: Path) -> None:
    said = "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"
    text = diagnose(tmp_path, said).causes[0].text
    assert "NVLink" in text
    assert "uncorrectable memory" not in text


def test_a_process_that_loads_two_copies_of_nccl_is_no_rank_of_another_release(tmp_path: Path) -> None:
    said = "".join(
        f"n{n}:{n}8:{n}8 [0] NCCL INFO NCCL version {version}+cuda12.6\n"
        for version in ("2.22.3", "2.25.1")
        for n in (0, 1)
    )
    end = "n0:8:11 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer n1<36138>"
    assert [c.rule for c in diagnose(tmp_path, said + end).causes] == ["peer-died-first"]


def test_loopback_is_not_blamed_where_all_ranks_are_on_one_machine(tmp_path: Path) -> None:
    said = (
        "n0:7:9 [0] NCCL INFO Bootstrap : Using lo:127.0.0.1<0>\n"
        "n0:7:9 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>\n"
        "n0:7:9 [0] NCCL INFO comm 0x55 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
        "n0:7:9 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [receive] via NET/Socket/0\n"
        "n0:7:11 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer n0<36138>\n"
    )
    assert "loopback-interface-chosen" not in [c.rule for c in diagnose(tmp_path, said).causes]


def test_bridges_are_not_blamed_for_a_wait_after_steps_went_by(tmp_path: Path) -> None:
    steps = "".join(f"step {n} loss 2.{n}\n" for n in range(1, 5))
    sent = "n0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/3\n"
    wait = (
        "[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 "
        "milliseconds before timing out."
    )
    causes = diagnose(tmp_path, BRIDGES + sent + steps + wait).causes
    assert "virtual-interface-chosen" not in [c.rule for c in causes if c.severity == "error"]


LISTED = (
    "n0:7:9 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.3<0> [1]docker0:172.17.0.1<0>\n"
    "n1:8:9 [0] NCCL INFO NET/Socket : Using [0]eno1:10.0.0.4<0> [1]docker0:172.17.0.1<0>\n"
)
MOSTLY = LISTED.replace("\n", " [2]virbr0:192.168.122.1<0> [3]flannel.1:10.244.0.0<0>\n")
DEATHS = {
    "its own exception": (
        'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyError: 3\n',
        "",
    ),
    "SIGSEGV": ("!!!!!!! Segfault encountered !!!!!!!\n", "-11"),
    "SIGKILL": ("", "-9"),
    "the GPU's memory": ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n", ""),
    "CUDA": ("RuntimeError: CUDA error: an illegal memory access was encountered\n", ""),
    "the library": (
        "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory\n",
        "",
    ),
}


@pytest.mark.parametrize(
    ("error", "variable"),
    [
        ("CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING"),
        ("CUDA error: an illegal instruction was encountered", "CUDA_LAUNCH_BLOCKING"),
        ("NPU function error: AclrtSynchronizeDevice, error code is 507035", "ASCEND_LAUNCH_BLOCKING"),
    ],
)
def test_the_variable_that_shows_a_broken_kernel(tmp_path: Path, error: str, variable: str) -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n    x()\n'
    cause = diagnose(tmp_path, f"{trace}RuntimeError: {error}\n").causes[0]
    assert cause.rule == "rank-raised-exception" and variable in cause.text


def test_a_key_that_cannot_be_read_is_not_refused_by_the_node(tmp_path: Path) -> None:
    said = "Error: failed to run torchrun t.py on n1, exception: not a valid RSA private key file\n"
    assert "refuse" not in diagnose(tmp_path, said).causes[0].text


@pytest.mark.parametrize("listed", [LISTED, MOSTLY], ids=["one", "most"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_rank_that_died_of_something_comes_before_an_interface_that_was_merely_listed(
    tmp_path: Path, listed: str, death: str
) -> None:
    said, code = DEATHS[death]
    agent = (
        "E1112 10:00:00.000000 7 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: "
        f"{code or 1}) local_rank: 0 (pid: 7) of binary: /usr/bin/python3\n"
    )
    peer = (
        "n1:8:11 [0] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer n0<36138>\n"
    )
    causes = diagnose(tmp_path, listed + said + agent + peer).causes
    assert causes and causes[0].rule != "virtual-interface-chosen", [(c.rule, c.severity) for c in causes]
    named = [c for c in causes if c.rule == "virtual-interface-chosen"]
    assert all(c.severity != "error" for c in named)


def test_counts_of_devices_that_nccl_ignores_are_no_error(tmp_path: Path) -> None:
    said = (
        "n0:7:9 [0] init.cc:1010 NCCL WARN Detected mixed local Net device counts, rank 0 has 2, rank 1: 1."
    )
    causes = {c.rule: c for c in diagnose(tmp_path, f"{said} Ignoring\n").causes}
    assert causes["rdma-device-set-differs"].severity == "note"
    assert "error" not in {c.severity for c in causes.values()}
    assert diagnose(tmp_path, f"{said}\n").causes[0].severity == "error"


@pytest.mark.parametrize(
    ("end", "rule"),
    [
        ("killed by SIGTERM (15): ended from outside", "rank-killed"),
        ("killed by SIGABRT (6): a failed assertion", "rank-crashed"),
        ("exit code 3", "rank-raised-exception"),
    ],
)
def test_the_end_that_ringup_saw_first_comes_before_what_its_peers_say(
    tmp_path: Path, end: str, rule: str
) -> None:
    peer = (
        "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited\nncclRemoteError: x"
    )
    first = diagnose(tmp_path, f"{peer}\nfirst failure: rank 1 on n1: {end}, 33 s after the start").causes[0]
    assert (first.rule, first.confidence, first.ranks) == (rule, "medium", (1,))


HIDES = {
    "cannot import name 'Random' from 'random' (/w/random.py)": "/w/random.py",
    "partially initialized module 'torch' has no attribute 'SymInt'": "/w/pickle.py",
    "module 'numpy' has no attribute 'array' (consider renaming '/w/numpy.py')": "/w/numpy.py",
    "cannot import name 'Trainer' from 'mine.train' (/w/mine/train.py)": "",
    "cannot import name 'Any' from 'random' (/usr/lib/python3.11/random.py)": "",
}
"""Python 3.11 and 3.13's words of a failed import, and the file that hides a module in it."""


@pytest.mark.parametrize(("words", "file"), HIDES.items())
def test_a_file_that_hides_a_module_is_named(tmp_path: Path, words: str, file: str) -> None:
    frame = 'Traceback (most recent call last):\n  File "/w/pickle.py", line 3, in <module>\n'
    trace = f"{frame}ImportError: {words}\n"
    cause = diagnose(tmp_path, trace).causes[0]
    assert cause.rule == "rank-raised-exception"
    assert bool(file) == ("has the name of a module" in cause.text) and cause.text.startswith(file)


@pytest.mark.parametrize(
    ("inner", "module", "hides"),
    [
        ("/opt/lib/python3.11/functools.py", "types", True),
        ("/opt/lib64/python3.9/site-packages/old/a.py", "inspect", False),  # a name that Python has dropped
        ("/opt/lib/python3.11/functools.py", "numpy", False),
    ],
)
def test_python_lacks_no_name_of_its_own_modules(
    tmp_path: Path, inner: str, module: str, hides: bool
) -> None:
    frames = "".join(f'  File "{file}", line 3, in <module>\n    x()\n' for file in ("/w/train.py", inner))
    error = f"AttributeError: module '{module}' has no attribute 'MethodType'\n"
    cause = diagnose(tmp_path, f"Traceback (most recent call last):\n{frames}{error}").causes[0]
    assert cause.text.startswith(f"{module}.py has the name of a module") is hides


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("EOFError: EOF when reading a line", "argument of the script"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "HF_HUB_OFFLINE=1"),
        ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests", "hf download"),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)", "hf auth login"),
        ("ImportError: /w/a.so: undefined symbol: _ZN3c104cuda9SetDeviceEi", "built for another torch"),
        ("RuntimeError: Failed to import a for:\n/w/a.so: undefined symbol: _ZN2at4_ops1aE", "another torch"),
        ("ImportError: /w/a.so: undefined symbol: _ZN3foo1aE", "correct the error that the traceback shows"),
        ("OSError: no such table", "correct the error that the traceback shows"),
        ("RuntimeError: world_size (4) is not divisible by 8", "sizes whose product divides the ranks"),
        (
            "AssertionError: Invalid parallel dims: dp(1) * tp(4) != WORLD_SIZE(16)",
            "product divides the ranks",
        ),
    ],
)
def test_the_fix_of_an_exception_that_says_what_is_missing(tmp_path: Path, error: str, fix: str) -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/train.py", line 3, in <module>\n'
    (first,) = diagnose(tmp_path, f"{trace}{error}\n").causes
    assert first.rule == "rank-raised-exception" and first.fix and fix in first.fix.text


STEPS = "".join(f"step {n} | loss 2.{n}\n" for n in range(10, 30))
BUG = (
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/w/train.py", line 9, in <module>\n'
    "[rank2]: AssertionError: sequence too long\n"
)
NO_MEMORY = BUG.replace("AssertionError: sequence too long", "torch.OutOfMemoryError: CUDA out of memory.")
TABLE = (
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2025-11-04_03:14:31\n"
    "  host      : gpu-a07\n  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 48211)\n"
)
NO_MODULE = "/var/spool/slurmd/job8/slurm_script: line 12: module: command not found\n"
CORRECTED = (
    "mlx5_core 0000:17:00.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)\n"
)
NOT_FATAL = "nvidia-nvswitch0: SXid (PCI:0000:c5:00.0): 22013, Non-fatal, Link 33 Minion Link DLREQ\n"
PEER_GONE = "NCCL WARN socketProgress: Connection closed by remote peer gpu-a09<51622>\n"
LIMIT = "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2025-11-04T05:00:00 DUE TO TIME LIMIT ***\n"
NODE = LIMIT.replace("T05", "T01").replace("TIME LIMIT", "NODE FAILURE")
LAST = {
    "the last attempt counts": ("rank-raised-exception", STEPS + NO_MEMORY + TABLE + STEPS + BUG + TABLE),
    "an earlier bug is history": ("gpu-out-of-memory", STEPS + BUG + TABLE + STEPS + NO_MEMORY + TABLE),
    "the last end counts": ("job-cancelled", STEPS + NODE + STEPS + LIMIT),
    "modules, then a peer": ("peer-died-first", NO_MODULE + STEPS + PEER_GONE),
    "modules, then SIGKILL": ("rank-killed", NO_MODULE + "srun: error: n1: task 3: Killed\n"),
    "modules, then a limit": ("job-cancelled", NO_MODULE + LIMIT),
    "modules end the script": (
        "python-or-launcher-missing",
        NO_MODULE + "srun: error: n1: task 0: Exited with exit code 127\n",
    ),
    "a corrected PCIe error": ("peer-died-first", CORRECTED + STEPS + PEER_GONE),
    "an SXid that ends nothing": ("peer-died-first", NOT_FATAL + STEPS + PEER_GONE),
    "a port that was down": (
        "rank-raised-exception",
        "mlx5_core 0000:17:00.0 ens17np0: Link down\n" + STEPS + BUG + TABLE,
    ),
}


@pytest.mark.parametrize("case", LAST)
def test_a_warning_or_an_earlier_attempt_is_not_the_cause(tmp_path: Path, case: str) -> None:
    rule, text = LAST[case]
    severe = [c for c in diagnose(tmp_path, text).causes if c.severity == "error" or c.rule == rule]
    assert severe[0].rule == rule, [(c.rule, c.confidence) for c in severe]


def test_a_launchers_exception_is_not_inside_the_programs(tmp_path: Path) -> None:
    launcher = BUG.replace("[rank2]: ", "").replace("AssertionError: ", "subprocess.CalledProcessError: ")
    text = diagnose(tmp_path, BUG.replace("[rank2]: ", "") + launcher).causes[0].text
    assert "AssertionError: sequence too long" in text and "CalledProcessError" not in text


def test_a_watchdogs_abort_is_no_crash(tmp_path: Path) -> None:
    said = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 2] Process group watchdog thread terminated with\n"
    )
    assert "rank-crashed" not in {c.rule for c in diagnose(tmp_path, said).causes}
