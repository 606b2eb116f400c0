"""The telling line of a log that no wording knows: by its form, behind any label, before its consequences."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ringup.logs.forms import Form, form_of, severity_of
from ringup.logs.lines import message_of
from ringup.logs.patterns import forms as words
from ringup.logs.patterns.tags import Pattern
from ringup.logs.read import Diagnosis, read_logs
from ringup.output.logs_report import as_json
from tests.regex_cost import cost
from tests.test_linear import MOST_STEPS

WAIT = "(Engine pid=7) INFO 10:{:02}:00 [bus.py:4] No free slot in 60 s, still waiting for the workers\n"
REFUSED = "frobnicator: cannot map region 7 of /dev/frob0: Permission denied"


def names(tmp_path: Path, text: str) -> list[str]:
    return [cause.rule for cause in diagnose(tmp_path, text).causes]


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "job.log").write_text(text, encoding="utf-8")
    return read_logs([str(tmp_path / "job.log")])


LABELS = [
    "",
    "[rank3]: ",
    "(Worker_TP3 pid=71) ERROR 10-22 09:33:02 [core.py:57] ",
    "(EngineCore pid=9) (RayWorkerWrapper pid=71, ip=10.2.0.4) ",
    "(TrainWorker[rank=3] pid=71, ip=10.2.0.4) ",
    "2: slurmstepd: error: pyxis:     ",
    "ERROR 2025-11-13T14:41:01.114829205Z [resource.labels.containerName: trainer] ",
    "trainer-0  | [2025-08-11 08:33:52 TP3] ",
    "E1123 13:12:21.201130       9 agent.cc:1549] ",
    "2025-11-13T14:41:01.114829205Z stderr F ",
]


@pytest.mark.parametrize("label", LABELS)
def test_a_failure_in_unknown_words_is_shown_behind_any_label(tmp_path: Path, label: str) -> None:
    text = f"{label}frobnicator 2.1 starts\n{label}{REFUSED}\nsrun: Job step aborted\n"
    cause = diagnose(tmp_path, text).causes[0]
    assert (cause.rule, cause.confidence, cause.severity) == ("unnamed-failure", "low", "error")
    assert cause.telling is not None and cause.telling.line == 2
    assert cause.evidence[0] == cause.telling
    assert REFUSED in cause.text


@pytest.mark.parametrize("label", LABELS)
def test_a_message_is_what_stands_behind_the_labels(label: str) -> None:
    assert message_of(label + REFUSED) == REFUSED


def test_json_has_the_telling_line_with_its_rank_host_and_time(tmp_path: Path) -> None:
    line = f"[rank5]: 2025-08-11 08:33:52,114 ERROR {REFUSED}"
    told = as_json(diagnose(tmp_path, f"n7: {line}\n"))["causes"][0]["telling"]
    assert told == {
        "file": str(tmp_path / "job.log"),
        "line": 1,
        "text": f"n7: {line}",
        "rank": 5,
        "host": "n7",
        "time": "2025-08-11 08:33:52,114",
    }
    json.dumps(told)


def test_what_follows_from_another_end_does_not_speak_first(tmp_path: Path) -> None:
    text = (
        "[rank0]: RuntimeError: Connection closed by peer [10.0.0.2]:41\n"
        f"[rank3]: {REFUSED}\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    cause = diagnose(tmp_path, text).causes[0]
    assert (cause.rule, cause.evidence[0].line) == ("unnamed-failure", 2)


def test_a_library_speaks_before_the_exception_by_which_it_came_up(tmp_path: Path) -> None:
    text = (
        "[1745700389.902821] [n1:62 :0]   ib.c:79  UCX  ERROR Remote access on mlx5_0:1 failed (synd 0x1)\n"
        "Traceback (most recent call last):\n"
        '  File "/job/kv.py", line 3, in <module>\n'
        "    move()\n"
        "kv.errors.TransferError: backend\n"
    )
    found = diagnose(tmp_path, text)
    assert [cause.rule for cause in found.causes] == ["unnamed-failure", "rank-raised-exception"]
    assert found.causes[0].evidence[0].line == 1


def test_a_wait_that_repeats_to_the_end_is_a_hang(tmp_path: Path) -> None:
    text = "engine 1.0 starts\n" + "".join(map(WAIT.format, range(5)))
    cause = diagnose(tmp_path, text).causes[0]
    assert (cause.rule, cause.evidence[0].line) == ("unnamed-failure", 2)
    assert "makes no progress" in cause.text


def test_a_cluster_that_is_not_ready_to_the_end_is_a_hang(tmp_path: Path) -> None:
    text = "".join(f"[2025-05-01 10:00:{n}] Cluster is NOT ready\n" for n in range(10, 15))
    assert "makes no progress" in diagnose(tmp_path, text).causes[0].text


FIRST = {
    "the code of the GPU's firmware that timed out": (
        "gpu-missing",
        "[   84.125000] NVRM: GPU6 ******** GSP Timeout **********\n"
        "[   84.125100] NVRM: Xid (PCI:0000:41:00): 119, pid=9, name=python, Timeout after 6s\n",
        2,
    ),
    "what ssh says about a daemon that does not start": (
        "ssh-not-passwordless",
        "ssh_exchange_identification: Connection closed by remote host\n"
        "prterun was unable to reliably start one or more daemons.\n",
        1,
    ),
    "what the container's hook says": (
        "job-step-not-launched",
        "2: slurmstepd: error: pyxis: container start failed with error code: 1\n"
        "2: slurmstepd: error: pyxis:          91 Segmentation fault      (core dumped) | pwck -R /x\n"
        "2: slurmstepd: error: pyxis:     nvidia-container-cli: ldcache error: terminated with signal 11\n"
        "2: slurmstepd: error: pyxis: couldn't start container\n"
        "2: slurmstepd: error: Failed to invoke spank plugin stack\n",
        3,
    ),
    "what the kubelet repeats": (
        "container-not-started",
        "  Warning  FailedCreatePodSandBox  22m  kubelet  Failed to create pod sandbox: rpc error: refused\n"
        "  Warning  FailedCreatePodSandBox  4m (x93 over 24m)  k  Failed to create pod sandbox: no runtime\n",
        2,
    ),
    "a call of MPI that failed during the run": (
        "unnamed-failure",
        "PMPI_Iprobe(126): MPI_Iprobe(src=MPI_ANY_SOURCE) failed\n"
        "MPIDI_OFI_handle_cq_error(1075): OFI poll failed (ofi_events.c:1077:MPIDI_OFI_handle_cq_error:"
        "Input/output error - PTLTE_NOT_FOUND)\n",
        2,
    ),
    "a job that waited in the queue before its container failed": (
        "job-step-not-launched",
        "srun: job 34262460 queued and waiting for resources\n"
        "srun: job 34262460 has been allocated resources\n"
        "slurmstepd-sp-0016: error: pyxis: couldn't start container\n"
        "slurmstepd-sp-0016: error: Failed to invoke spank plugin stack\n"
        "srun: error: sp-0016: task 0: Exited with exit code 1\n",
        3,
    ),
    "a plugin's reason, not srun's report of it": (
        "job-step-not-launched",
        "srun: error: task 0 launch failed: Plugin initialization failed\n"
        "[2026-09-24T10:10:06.901] [321.0] error: pyxis: couldn't mkdir /run/pyxis/1005: No such file\n",
        2,
    ),
    "an error, not the wait that repeats below it": (
        "unnamed-failure",
        "DEBUG 07-04 17:35:10 [bus.py:456] No free block found in 60 s, still waiting\n"
        "ERROR 07-04 17:35:16 [pool.py:140] Member 1 died unexpectedly, shutting down the pool.\n"
        + 3
        * "DEBUG 07-04 17:36:10 [bus.py:456] No free block found in 60 s, still waiting\n",
        2,
    ),
    "a fault of the GPU, not one that a program raised before": (
        "xid-in-kernel-log",
        "[Wed Jul 30 23:14:18 2026] NVRM: Xid (PCI:0000:00:05): 43, pid=10, name=python, Ch 00000008\n"
        "[Fri Aug  7 13:32:56 2026] NVRM: Xid (PCI:0000:00:08): 94, pid=11, name=python, Contained: SM\n",
        2,
    ),
    "a native library's error at its place in the source, not the exception that repeats it": (
        "unnamed-failure",
        "2026:11:28-16:35:45:(359) |CCL_ERROR| pool.cpp:36 start: error while making a thread: returns 22\n"
        "Traceback (most recent call last):\n"
        '  File "/job/t.py", line 3, in <module>\n'
        "    init()\n"
        "RuntimeError: oneCCL: pool.cpp:134 start_workers: EXCEPTION: failed to start worker # 0\n",
        1,
    ),
    "the reason below a head that says nothing": (
        "unnamed-failure",
        "2026-10-21 10:42:00,218 - serve - ERROR - agent.py:489 - Rank[2] failed.\n"
        "Traceback (most recent call last):\n"
        '  File "/job/t.py", line 3, in run\n'
        "RuntimeError: ACL stream synchronize failed.\n"
        "EI9999: Inner Error!\n"
        "EI9999: 2026-10-21-10:42:00.358.410  The error from device(chipId:3), a task was lost\n",
        6,
    ),
    "an error of Slurm's MPI plugin, which ends the step itself": (
        "unnamed-failure",
        "slurmstepd: error:  mpi/pmix_v4: _tcp_connect: n1 [0]: pmixp_dconn_tcp.c:139: Cannot establish the"
        " connection\n"
        "slurmstepd: error: *** STEP 14.0 ON n1 CANCELLED AT 2026-06-20T09:41:12 ***\n"
        "srun: error: n2: task 12: Killed\n",
        1,
    ),
    "a connection that failed before its library crashed": (
        "link-local-address-chosen",
        "[1746051351.812] [n1:195:0] sock.c:334  UCX  ERROR   connect(fd=168, dest_addr=169.254.4.6:525)"
        " failed: Connection refused\n"
        "[n1:195:0:195] Caught signal 11 (Segmentation fault: address not mapped to object at 0x3)\n",
        1,
    ),
    "a task of the kernel that waits for its file server": (
        "nfs-mount-slow",
        "Jun 17 20:18:09 n1 kernel: nfs_file_flush+0x46/0x60 [nfs]\n"
        "Jun 17 20:18:09 n1 kernel: INFO: task python:80601 blocked for more than 120 seconds.\n",
        2,
    ),
    "a task of the kernel that waits": (
        "unnamed-failure",
        "Jun 17 20:18:09 n1 kernel: ext4_file_write+0x46/0x60\n"
        "Jun 17 20:18:09 n1 kernel: INFO: task python:80601 blocked for more than 120 seconds.\n",
        2,
    ),
    "a fatal event of a link, not one that passed": (
        "xid-in-kernel-log",
        "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008)\n"
        "NVRM: Xid (PCI:0000:00:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000)\n",
        2,
    ),
    "the call that failed, not the option that made it": (
        "stale-rendezvous-state",
        "self.dist_init_method: file:///home/share/vox.init\n"
        "n1:94:95 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
        "n1:94:95 [0] include/socket.h:390 NCCL WARN Connect to 10.38.10.1<21724> failed : Connection refused"
        "\n",
        3,
    ),
    "the call of NVSHMEM that failed, not its status on the way up": (
        "rdma-peer-unreachable",
        "/job/nvshmem/ibgda.cpp:1348: NULL value\nUnable to create ah.\n"
        "/job/nvshmem/ibgda.cpp:3025: non-zero status: 7\n",
        2,
    ),
    "a launcher that ends the rest": (
        "unnamed-failure",
        "n1:11985:12625 [7] NCCL INFO [Service thread] Connection closed by localRank 0\n"
        "[2026-04-02 14:59:58,020] torch.multiprocessing.spawn: [WARNING] Terminating process 119 via signal"
        " SIGTERM\n",
        2,
    ),
    "an error about what is not enough": (
        "unnamed-failure",
        "2023-11-02 02:49:52,374\tERROR gpu_utils.py:114 -- No enough unused GPU cards for any VM\n",
        1,
    ),
    "what a C++ exception says": (
        "rank-crashed",
        "terminate called after throwing an instance of 'frob::Error'\n  what():  no frob at n1:41\n",
        2,
    ),
    "the exception itself, not Ray's head of it": (
        "rank-raised-exception",
        "ray.exceptions.RayTaskError(RuntimeError): ray::Worker.get_next() (pid=1, ip=10.1.0.2)\n"
        '  File "/job/t.py", line 5, in train\n'
        "    step()\n"
        "RuntimeError: no frob\n",
        4,
    ),
    "a library's error that has a name, below the exception": (
        "rdma-peer-unreachable",
        "[1745563465.856286] [n1:16:0] ib_device.c:13 UCX  ERROR ibv_create_ah(dlid=1) for UD mlx5 connect on"
        " mlx5_3 failed: Connection timed out\n"
        "Traceback (most recent call last):\n"
        '  File "/job/kv.py", line 3, in <module>\n'
        "    move()\n"
        "kv.errors.TransferError: backend\n",
        1,
    ),
}


@pytest.mark.parametrize("what", FIRST)
def test_the_line_that_comes_first(tmp_path: Path, what: str) -> None:
    rule, text, line = FIRST[what]
    first = diagnose(tmp_path, text).causes[0]
    assert (first.rule, first.evidence[0].line) == (rule, line)


@pytest.mark.parametrize(
    "said",
    [
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    ],
)
def test_an_exception_about_any_other_end_names_nothing_with_confidence(tmp_path: Path, said: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/job/t.py", line 3, in <module>\n    run()\n{said}\n'
    first = diagnose(tmp_path, text).causes[0]
    assert (first.rule, first.confidence) == ("peer-died-first", "low")


def test_a_plugins_warning_of_what_may_happen_is_no_error() -> None:
    assert form_of("this provider may hang in polling", "", {"warn"}) == Form.WARNING


def test_the_kernels_clock_is_no_part_of_a_message() -> None:
    assert message_of("[ 1843.308145] NVRM: GPU 0000:b3:00.0 is gone") == "NVRM: GPU 0000:b3:00.0 is gone"


def test_a_wait_that_was_over_is_no_hang(tmp_path: Path) -> None:
    text = "".join(map(WAIT.format, range(5))) + "step 1 loss 2.0\nstep 2 loss 1.9\nstep 3 loss 1.8\n"
    assert diagnose(tmp_path, text).healthy


SOUND = [
    "W: deprecated option --foo will fail in a future release\n",
    "Could not load optional kernel, falling back to the slow one\n",
    "iteration 3: error 0.4311, failed lines 0\niteration 4: error 0.4011, failed lines 0\n",
    "task            n  pass  fail  error\nerror-recovery      60      55      5       0       0\n",
    "Warning  FailedMount  4m  kubelet  MountVolume.SetUp failed, retrying\n",
    "INFO cache: entry not found, computing it\n",
    "Sep 03 23:07:26 n1 kernel: amdgpu 0000:12:00.0: [drm] Cannot find any crtc or sizes\n",
    "[53440.605199] knem: module verification failed: required key missing - tainting kernel\n",
    "[53896.075728] mlx5_core 36fd:00:02.0: Successfully unregistered panic handler for port 1\n",
    "xla_bridge.py:146: UserWarning: TPU backend initialization is taking more than 60.0 seconds.\n"
    "  warnings.warn(\nstep 1 loss 10.2\nstep 2 loss 9.8\nstep 3 loss 9.5\n",
    "Tolerations:  node.kubernetes.io/not-ready:NoExecute op=Exists\n"
    "              node.kubernetes.io/unreachable:NoExecute op=Exists for 300s\n",
    "[    2.101001] ACPI Error: No handler for Region [SYSI] (ffff888100) [IPMI] (20210730/evregion-130)\n",
    "libfabric:15:175::core:core:fi_getinfo_():1385<info> fi_getinfo: provider x returned -61 (No data"
    " available)\nlibfabric:15:175::x:fabric:get_info():285<info> X_STRC env variable not set!\n",
    "[87865.171380] systemd-sysv-generator[45205]: stat() failed on /etc/rc.d/x: No such file or directory\n",
    "[n1:23276] btl:usnic: disqualifiying myself due to fi_getinfo(3) failure: No data available (-61)\n"
    "[n1:23276] select: init of component usnic returned failure\n",
    "ERROR stream: client disconnected\n"
    + 2 * "INFO Engine 000: Avg prompt throughput: 140.2 tokens/s, Running: 14 reqs\n",
]


@pytest.mark.parametrize("text", SOUND)
def test_words_of_failing_in_a_sound_log_are_no_failure(tmp_path: Path, text: str) -> None:
    assert diagnose(tmp_path, text).healthy


def test_alike_lines_are_one_sign_that_counts(tmp_path: Path) -> None:
    text = "".join(f"[rank{n}]: frobnicator {n}: unable to open shard {n * 7}\n" for n in range(40))
    found = diagnose(tmp_path, text)
    (clue,) = found.story.clues
    assert (clue.count, clue.last_line) == (40, 40)
    assert len(found.causes[0].evidence) == 1


def test_a_million_different_failures_are_bounded(tmp_path: Path) -> None:
    words = "abcdefghijklmnopqrstuvwxyz"
    lines = (f"cannot open {a}{b}{c}{d}\n" for a in words for b in words for c in words[:6] for d in "xyz")
    found = diagnose(tmp_path, "".join(lines))
    assert len(found.story.clues) <= 2_000
    assert found.causes[0].evidence[0].line == 1


QUORUM = "torchft::lighthouse: {} - INFO start: No quorum, only have {} participants, need 2\n"


@pytest.mark.parametrize(("count", "rules"), [(1, ["unnamed-failure"]), (0, [])])
def test_a_group_that_waits_for_the_other_is_a_heartbeat(
    tmp_path: Path, count: int, rules: list[str]
) -> None:
    assert (
        names(tmp_path, "".join(QUORUM.format(f"2026-01-09T19:50:{n}+00:00", count) for n in range(22, 25)))
        == rules
    )


@pytest.mark.parametrize(
    ("message", "severity", "form"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", "", Form.KERNEL),
        ("Caused by: java.io.IOException: disk", "", Form.CAUSED_BY),
        ("EI0006: Getting socket times out. Reason: 1. The remote does not connect", "", Form.LIBRARY),
        ("ibrc.cpp:418: non-zero status: 22 ibv_modify_qp failed", "", Form.LIBRARY),
        ("train.py: error: unrecognized arguments: --lr", "", Form.PROGRAM),
        ("Failed to load the tokenizer", "error", Form.ERROR),
        ("worker 3 exited with code 9", "", Form.ENDED),
        ("shard 4 is missing", "", Form.FAILING),
        ("Watchdog timeout (limit=300)", "", Form.WAIT),
        ("Failed to load the tokenizer", "warning", Form.WARNING),
        ("Failed to load the tokenizer, retrying", "info", Form.INFO),
        ("step 3 loss 0.1", "info", None),
        ('  File "/job/t.py", line 9, in error_handler', "", None),
    ],
)
def test_the_form_of_a_line(message: str, severity: str, form: Form | None) -> None:
    assert form_of(message, severity, set()) == form


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("(Worker pid=7) ERROR 08-12 [core.py:700] x", "error"),
        ("[rank0]:[E410 01:50:33.8 ProcessGroupNCCL.cpp:1895] x", "error"),
        ("W0613 08:28:11.555796    7053 ucx_utils.cpp:43] x", "warning"),
        ("[2025-03-14 14:33:45,164 E 230966 231591] logging.cc:113: x", "error"),
        ("Warning  FailedScheduling  4m12s  default-scheduler  x", "warning"),
        ("x", ""),
    ],
)
def test_the_severity_of_a_line(line: str, severity: str) -> None:
    assert severity_of(line, message_of(line)) == severity


def spied(*frames: str) -> str:
    """Stacks of as many processes, as py-spy prints them."""
    lines = []
    for number, frame in enumerate(frames):
        lines += [
            f"Process {70 + number} (rank {number}): python -u train.py",
            "Python v3.11.9 (/usr/bin/python3.11)",
            "",
            f'Thread {70 + number} (active): "MainThread"',
            f"    {frame}",
            "    main (train.py:120)",
            f'Thread {90 + number} (idle): "Thread-1"',
            "    wait (threading.py:324)",
        ]
    return "\n".join(lines) + "\n"


IN_ALL_REDUCE = "all_reduce (torch/distributed/distributed_c10d.py:2501)"


def test_of_pasted_stacks_the_process_that_stands_elsewhere_is_named(tmp_path: Path) -> None:
    text = spied(IN_ALL_REDUCE, "_save (torch/serialization.py:944)", IN_ALL_REDUCE, IN_ALL_REDUCE)
    cause = diagnose(tmp_path, text).causes[0]
    assert (cause.rule, cause.ranks) == ("rank-busy-while-others-wait", (1,))
    assert cause.telling is not None and "_save" in cause.telling.text


def test_pasted_stacks_in_one_collective_are_a_stalled_collective(tmp_path: Path) -> None:
    (cause,) = diagnose(tmp_path, spied(*[IN_ALL_REDUCE] * 4)).causes
    assert (cause.rule, cause.confidence) == ("collective-stalled", "low")


def test_pasted_stacks_of_working_processes_are_no_failure(tmp_path: Path) -> None:
    assert diagnose(tmp_path, spied("forward (model.py:7)", "forward (model.py:9)")).healthy


WATCHDOG = (
    "[rank{0}]:[E626 04:20:11.1 ProcessGroupNCCL.cpp:690] [Rank {1}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=3, OpType=ALLTOALL_BASE, NumelIn=50, NumelOut=50, Timeout(ms)=600000) ran for "
    "600019 milliseconds before timing out.\n"
)


def test_who_is_missing_is_judged_among_the_members_of_the_group(tmp_path: Path) -> None:
    text = "".join(WATCHDOG.format(8 + 2 * n, n) for n in (0, 1, 2, 3, 5, 6, 7))
    cause = diagnose(tmp_path, text).causes[0]
    assert (cause.rule, cause.ranks) == ("rank-fell-behind", (16,))


def test_half_of_a_groups_log_blames_nobody(tmp_path: Path) -> None:
    init = "n1:5:6 [0] NCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 busId 1000 - Init COMPLETE\n"
    text = init + "".join(WATCHDOG.format(8 + n, n) for n in (0, 1, 4, 5))
    assert diagnose(tmp_path, text).causes[0].rule == "collective-stalled"


OF_FORMS = [
    *(one for one in vars(words).values() if isinstance(one, Pattern)),
    *words.SPECIFIC,
    *(pattern for pattern, _ in words.MEANINGS),
]


@pytest.mark.parametrize("pattern", OF_FORMS, ids=lambda pattern: pattern.tag)
def test_the_words_of_a_form_cost_time_in_proportion_to_the_line(pattern: Pattern) -> None:
    assert cost(pattern.text, re.IGNORECASE, longest=1_000) <= MOST_STEPS


def test_a_native_error_above_an_exception_that_names_nothing_is_shown_first(tmp_path: Path) -> None:
    text = (
        "E0605 10:48:27.885119 136 ctx.cpp:203] Failed to register memory 0x7b37: Invalid argument [22]\n"
        "Traceback (most recent call last):\n"
        '  File "/job/serve.py", line 7, in start\n'
        "RuntimeError: registration failed\n"
    )
    first, second = diagnose(tmp_path, text).causes[:2]
    assert (first.rule, first.confidence, first.evidence[0].line) == ("unnamed-failure", "low", 1)
    assert second.rule == "rank-raised-exception"


def test_a_failed_assertion_stands_before_what_ray_tells_of_the_dead_worker(tmp_path: Path) -> None:
    text = (
        "python: /src/lib/Utility.cpp:110: Assertion `rows == columns' failed.\n"
        "(raylet) A worker died or was killed while executing a task by an unexpected system error.\n"
    )
    cause = diagnose(tmp_path, text).causes[0]
    assert cause.evidence[0].line == 1


def test_an_error_that_the_job_went_on_after_is_none_whoever_prints_it(tmp_path: Path) -> None:
    text = 'daemon: error: lookup failure for node "n792"\n' + "".join(
        f"0: step {n} loss 2.{n}\n" for n in range(1, 6)
    )
    assert diagnose(tmp_path, text).healthy


def test_the_first_line_of_a_block_is_its_title(tmp_path: Path) -> None:
    text = (
        "[1745700389.902821] [n1:62 :0]   ib.c:79  UCX  ERROR Local protection error on mlx5_0:1\n"
        "[1745700389.902821] [n1:62 :0]   ib.c:79  UCX  ERROR QP 0x9d0 '/dev/x' 10.0.0.1 NCCL_X=1 len 65536\n"
    )
    assert diagnose(tmp_path, text).causes[0].evidence[0].line == 1


def test_a_port_is_never_taken_from_a_clock(tmp_path: Path) -> None:
    text = "[2025-10-28 06:11:43] server 7: bind: Address already in use\n"
    cause = diagnose(tmp_path, text).causes[0]
    assert cause.rule == "port-in-use"
    assert cause.text.startswith("the port ")


SILENT = (
    "[rank 0] step 3 loss 1.2\n[rank 1] step 3 loss 1.3\n"
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/job/train.py", line 9, in <module>\n'
    "[rank0]: RuntimeError: [/gloo/tcp/pair.cc:537] Read error [10.0.0.2]:4433: Connection reset by peer\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    "train.py FAILED\n"
    "Root Cause (first observed failure):\n"
    "[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 3 (pid: 4412)\n"
)


def test_a_rank_that_ended_first_without_a_word_is_named_and_not_the_peer_that_lost_it(
    tmp_path: Path,
) -> None:
    first = diagnose(tmp_path, SILENT).causes[0]
    assert (first.rule, first.ranks) == ("rank-raised-exception", (1,))
    assert "ended first with exit code 3" in first.text


WAITED = (
    "(Engine pid=301) INFO 07-12 13:44:16 [shm.py:548] No available block found in 60 seconds.\n"
    "(Engine pid=301) ERROR 07-12 13:45:16 [core.py:10] Traceback (most recent call last):\n"
    '(Engine pid=301) ERROR 07-12 13:45:16 [core.py:10]   File "/app/engine.py", line 366, in get\n'
    "(Engine pid=301) ERROR 07-12 13:45:16 [core.py:10] TimeoutError: RPC call to sample timed out.\n"
)


def test_who_waits_in_vain_is_not_named_as_the_fault(tmp_path: Path) -> None:
    first = diagnose(tmp_path, WAITED).causes[0]
    assert (first.rule, first.confidence, first.evidence[0].line) == ("unnamed-failure", "low", 4)


def test_a_compilers_error_leads_before_the_exception_of_its_caller(tmp_path: Path) -> None:
    text = (
        "47.98 nvlink error   : Undefined reference to 'state_d' in '/src/ll.o'\n"
        "47.98 ninja: build stopped: subcommand failed.\n"
        "47.99 Traceback (most recent call last):\n"
        '47.99   File "/env/cpp_extension.py", line 22, in build\n'
        "47.99 RuntimeError: Error compiling objects for extension\n"
    )
    assert diagnose(tmp_path, text).causes[0].evidence[0].line == 1


def test_a_worker_that_ends_after_the_full_bar_of_the_training_is_no_failure(tmp_path: Path) -> None:
    text = (
        "(main pid=1) step:198 - loss:0.013\n(main pid=1) step:199 - loss:0.011\n"
        "Training Progress: 100%|#####| 199/199 [2:10:37<00:00, 39.3s/it]\n"
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
        "The process receives a SIGTERM.\n"
    )
    assert diagnose(tmp_path, text).healthy


def test_a_name_for_the_telling_line_itself_stands_before_the_exception_around_it(tmp_path: Path) -> None:
    words = "port: 29500, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use"
    text = (
        "(Actor pid=7) rank 0 of 3 meets at port 29500\n"
        "Traceback (most recent call last):\n"
        '  File "demo.py", line 591, in __init__\n'
        "    self.made = ray.get([one.run.remote() for one in actors])\n"
        "ray.exceptions.RayTaskError(RuntimeError): ray::Actor.__init__() (pid=7, ip=10.5.0.12)\n"
        '  File "/venv/torch/distributed/rendezvous.py", line 185, in _create_c10d_store\n'
        "    return TCPStore(\n"
        f"RuntimeError: The server socket has failed to listen on any local network address. {words}\n"
    )
    found = diagnose(tmp_path, text).causes
    assert [(c.rule, c.confidence) for c in found] == [
        ("port-in-use", "high"),
        ("rank-raised-exception", "medium"),
    ]
    assert found[0].telling is not None and found[0].telling.line == 8


def test_a_server_without_throughput_did_not_go_on(tmp_path: Path) -> None:
    idle = 2 * "INFO Engine 000: Avg prompt throughput: 0.0 tokens/s, Running: 14 reqs\n"
    assert not diagnose(tmp_path, "ERROR stream: engine disconnected, aborted\n" + idle).healthy


HYDRA = "Error executing job with overrides: ['trainer.nnodes=4']\n"


def test_hydras_title_is_not_the_reason(tmp_path: Path) -> None:
    wait = (
        "[rank3]:[E713 14:16:33.5 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation"
        " timeout: WorkNCCL(SeqNum=44, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=8, Timeout(ms)=600000)"
        " ran for 600033 milliseconds before timing out.\n"
    )
    cause = diagnose(tmp_path, wait + HYDRA).causes[0]
    assert (cause.rule, cause.evidence[0].line) == ("rank-fell-behind", 1)


@pytest.mark.parametrize("title", ["because of the following error:", "no weights in"])
def test_what_an_exception_says_below_its_colon_belongs_to_it(tmp_path: Path, title: str) -> None:
    below = "/venv/fast_attn.so: undefined symbol: _ZN3c105ErrorC2E\n"
    frames = 'Traceback (most recent call last):\n  File "/job/t.py", line 9, in <module>\n    go()\n'
    cause = diagnose(tmp_path, f"{frames}RuntimeError: {title}\n{below}").causes[0]
    assert cause.rule == "rank-raised-exception"
    assert ("undefined symbol" in cause.text) == title.endswith(":")


def test_a_cuda_call_outside_nccl_is_not_called_nccls(tmp_path: Path) -> None:
    """The macro of NCCL's own examples, which programs copy."""
    cause = diagnose(
        tmp_path, "Failed: Cuda error /src/reduce.cuh:307 'peer access is not supported'\n"
    ).causes[0]
    assert (cause.rule, cause.confidence) == ("nccl-error-without-detail", "low")
    assert cause.text.startswith("a CUDA call failed (peer access is not supported)")
    said = "n1:11:40 [0] alloc.h:99 NCCL WARN Cuda failure 'invalid argument'\n"
    assert diagnose(tmp_path, said).causes[0].text.startswith("a CUDA call inside NCCL failed")


@pytest.mark.parametrize("kind", ["requests.exceptions.ConnectionError", "ConnectionError"])
def test_a_server_that_resets_the_connection_is_no_peer_that_died(tmp_path: Path, kind: str) -> None:
    text = f"""[rank1]: Traceback (most recent call last):
[rank1]:   File "/w/t.py", line 30, in main
[rank1]: {kind}: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))
E1128 02:31:42.3 8 torch/distributed/elastic/api.py:869] failed (exitcode: 1) local_rank: 1 (pid: 8)
"""
    assert names(tmp_path, text)[:1] == ["rank-raised-exception"]
    in_python = text.replace("('Connection aborted.', ConnectionResetError(104, ", "[Errno 104] ").replace(
        "'))", ""
    )
    assert names(tmp_path, in_python.replace(kind, "ConnectionResetError"))[:1] == ["peer-died-first"]


def test_a_watchdogs_timeout_on_two_lines_is_one(tmp_path: Path) -> None:
    begin = "[Rank 0] Watchdog caught collective operation timeout:\n"
    for rest in ("", "  WorkNCCL(..., OpType=ALLREDUCE, NumelIn=1, Timeout(ms)=1800000)\n"):
        assert names(tmp_path, begin + rest) == ["rank-fell-behind"]


def test_a_library_in_the_place_of_the_driver_is_no_sure_sign_of_an_old_driver(tmp_path: Path) -> None:
    warn = "n0:5:9 [1] misc/cudawrap.cc:230 NCCL WARN CUDA some PFN functions not found in the library\n"
    crash = (
        "[183.7] python[38]: segfault at 0 ip 00007efeb76ad8a2 sp 00007ffd error 4 in libvgpu.so[7ef+38]\n"
    )
    assert names(tmp_path, warn) == ["driver-too-old-for-cuda"]
    assert names(tmp_path, warn + crash)[:1] == ["rank-crashed"]


def test_the_underline_of_a_traceback_tells_nothing(tmp_path: Path) -> None:
    label = "(EngineCore_DP0 pid=379) ERROR 11-01 02:10:36 [core.py:708]"
    text = f"{label}            ^^^^^^^^^^^^^^^^^^^^\n{label} ValueError: the model has no such layer\n"
    assert "^^^" not in diagnose(tmp_path, text).causes[0].text


def test_a_script_that_refuses_its_arguments_is_named_as_such(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank-00000-n0.log").write_text("usage: t.py [-h]\nt.py: error: unrecognized arguments: --lr 3\n")
    end = "first failure: rank 0 on n0: exit code 2, 102 ms after the start\n"
    (run / "ringup.log").write_text(end)
    first = read_logs([str(run)]).causes[0]
    assert (first.rule, first.confidence) == ("rank-raised-exception", "high")
    assert "refused its arguments" in first.text


def test_a_rank_that_ringup_ended_before_it_had_saved_is_not_ended_from_outside(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run": "r", "outcome": "not-saved", "started": 1.0}')
    end = "first failure: rank 1 on n0: ended by ringup with SIGTERM (15), 8.5 s after the start\n"
    (tmp_path / "ringup.log").write_text(end)
    first = read_logs([str(tmp_path / "ringup.log")]).causes[0]
    assert first.rule == "rank-killed" and "had not saved its state" in first.text


def test_a_pod_and_its_host_name_are_one_node(tmp_path: Path) -> None:
    pod = "[pod/train-1-m9qzz/train]"
    text = (
        f"{pod} E1128 01:02:03.0 7 torch/elastic/api.py:869] failed (exitcode: -9) local_rank: 3\n"
        f"{pod}   host      : train-1\n{pod}   rank      : 11 (local_rank: 3)\n"
        f"{pod}   exitcode  : -9 (pid: 71)\n{pod}   traceback : Signal 9 (SIGKILL) received by PID 71\n"
    )
    assert diagnose(tmp_path, text).causes[0].nodes == ("train-1-m9qzz",)


def test_a_bracketed_clock_is_no_host(tmp_path: Path) -> None:
    text = "[Wed Jul 30 23:14:18 2026] NVRM: Xid (PCI:0000:00:05): 79, pid=10, GPU has fallen off the bus.\n"
    assert diagnose(tmp_path, 8 * text).causes[0].nodes == ()


@pytest.mark.parametrize(
    "failed",
    [
        "+ python merge.py --out /out\nTraceback (most recent call last):\n"
        '  File "/job/merge.py", line 8, in <module>\n    merge()\nOSError: /models/base has no config\n',
        "python: can't open file '/job/convert.py': [Errno 2] No such file or directory\n",
    ],
)
def test_a_later_command_is_not_the_training_that_had_finished(tmp_path: Path, failed: str) -> None:
    steps = "".join(f"step {n}/100 loss 0.4\n" for n in range(96, 101))
    first = diagnose(tmp_path, steps + "Training completed.\n" + failed).causes[0]
    assert (first.severity, first.confidence) == ("error", "low")
    assert first.text.startswith("the training had finished, and a later command failed: ")
    again = failed.replace("merge", "train").replace("convert.py", "train.py")
    before = diagnose(tmp_path, steps + again).causes[0]
    assert "later command" not in before.text


def test_a_process_killed_in_another_step_of_the_job_is_not_surely_the_reason(tmp_path: Path) -> None:
    end = "slurmstepd: error: *** STEP 812.1 ON n1 CANCELLED AT 2026-11-20T10:01:11 ***\n"
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId=812.{}. Some tasks have been OOM Killed.\n"
    other, own = (diagnose(tmp_path, end + oom.format(step)) for step in (0, 1))
    assert [c.confidence for c in other.causes if c.rule == "oom-killer-ran"] == ["low"]
    assert "step 812.0" in next(c.text for c in other.causes if c.rule == "oom-killer-ran")
    assert [c.confidence for c in own.causes if c.rule == "oom-killer-ran"] == ["high"]


@pytest.mark.parametrize(("address", "rule"), [("172.17.0.1", True), ("172.17.30.8", False)])
def test_only_the_first_addresses_of_dockers_bridge_are_taken_for_it(
    tmp_path: Path, address: str, rule: bool
) -> None:
    line = f"n1:5:6 [0] socket.cc:50 NCCL WARN Connect to {address}<404> failed : No route to host\n"
    first = diagnose(tmp_path, line).causes[0]
    assert (first.rule == "virtual-interface-chosen") is rule


def test_an_exception_on_a_gpu_in_the_drivers_words_is_no_crash_of_a_process(tmp_path: Path) -> None:
    text = (
        "NVRM: Xid (PCI:0000:cb:00): 13, pid=1, Graphics SM Warp Exception: Illegal Instruction Parameter\n"
    )
    assert "rank-crashed" not in names(tmp_path, text)
