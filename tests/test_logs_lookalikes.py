"""Lines that look like a failure's and are none, and failures that other lines report."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import Diagnosis, read_logs

FRAME = 'Traceback (most recent call last):\n  File "/job/t.py", line 9, in <module>\n    import model\n'
EXITS = "srun: error: n1: task 0: Exited with exit code 1\n"
IMPORT = [
    "WARNING 08-14 19:24:23 [_custom_ops.py:20] Failed to import from vllm._C with "
    """ModuleNotFoundError("No module named 'vllm._C'")""",
    "(main_task pid=2105103) No module named 'vllm._version'",
    "[2026-03-27 09:31:24 TP1] Ignore import error when loading sglang.srt.models.glm_ocr: No module named"
    " 'transformers.models.glm_ocr'",
]


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    log = tmp_path / "job.log"
    log.write_text(text + "\n", encoding="utf-8")
    return read_logs([str(log)])


@pytest.mark.parametrize("line", IMPORT)
def test_an_import_that_a_program_does_without_is_no_cause(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, line).healthy
    found = diagnose(tmp_path, f"{line}\n{FRAME}ValueError: head size 80\n{EXITS}")
    assert found.causes[0].rule == "rank-raised-exception" and "head size" in found.causes[0].text


@pytest.mark.parametrize(
    "text",
    [
        FRAME + "ModuleNotFoundError: No module named 'torch'",
        "/usr/bin/python3: No module named torch.distributed.run",
        "[rank1]: ModuleNotFoundError: No module named 'deepspeed'",
    ],
)
def test_an_import_that_ends_python_is_one(tmp_path: Path, text: str) -> None:
    assert diagnose(tmp_path, text).causes[0].rule == "python-or-launcher-missing"


def test_a_line_far_below_the_code_is_no_exception(tmp_path: Path) -> None:
    text = FRAME + "/lib/x.py:20: UserWarning: no _ARRAY_API\n  device = None\nHostname: n1, Rank: 3\n"
    assert "Hostname" not in "".join(c.text for c in diagnose(tmp_path, text).causes)


def test_the_kill_comes_before_the_exception_that_reports_it(tmp_path: Path) -> None:
    died = "RuntimeError: One of the subprocesses has abruptly died during map operation."
    killed = (
        "slurmstepd-n1: error: Detected 4 oom_kill events in StepId=7.batch. Some tasks have been OOM Killed."
    )
    text = "".join(f"[rank{n}]: {line}\n" for n in range(2) for line in (FRAME + died).splitlines())
    assert diagnose(tmp_path, f"{text}{EXITS}{killed}").causes[0].rule == "oom-killer-ran"
    assert diagnose(tmp_path, f"{text}{EXITS}").causes[0].rule == "rank-raised-exception"


def test_what_follows_an_interrupt_is_no_failure_of_its_own(tmp_path: Path) -> None:
    text = f"step 1\n{FRAME}KeyboardInterrupt\nFatalError: `Process abort signal` is detected\n"
    assert "rank-raised-exception" not in [c.rule for c in diagnose(tmp_path, text).causes]


def test_a_tpu_without_memory_is_one(tmp_path: Path) -> None:
    said = "RuntimeError: XLA:TPU compile permanent error. Ran out of memory in memory space hbm."
    assert diagnose(tmp_path, f"{FRAME}{said}\n{EXITS}").causes[0].rule == "gpu-out-of-memory"


def test_a_request_that_a_server_refuses_is_no_failure(tmp_path: Path) -> None:
    lines = f"ERROR:    Exception in ASGI application\n{FRAME}vllm.exceptions.VLLMValidationError: too long"
    text = "".join(f"(APIServer pid=9) {line}\n" for line in lines.splitlines())
    assert diagnose(tmp_path, text + '(APIServer pid=9) INFO: 10.0.0.1:39 - "POST /v1 HTTP/1.1" 400').healthy
    assert not diagnose(tmp_path, text.replace("Exception in ASGI application", "stopped")).healthy


def test_an_exception_that_ends_in_a_reply_to_the_client_is_none_of_the_server(tmp_path: Path) -> None:
    head = "ERROR 08-08 05:13:55 [serving_chat.py:203] "
    lines = f"Error in preprocessing prompt inputs\n{FRAME}ValueError: the context length is 32768 tokens"
    text = "".join(f"{head}{line}\n" for line in lines.splitlines())
    reply = 'INFO:     127.0.0.1:59964 - "POST /v1/chat/completions HTTP/1.1" {}\n'
    assert diagnose(tmp_path, text + reply.format("400 Bad Request")).healthy
    assert not diagnose(tmp_path, text + reply.format("500 Internal Server Error")).healthy


def test_a_node_that_is_never_ready_is_named(tmp_path: Path) -> None:
    said = "RuntimeError: Failed to wait for all nodes to be ready"
    found = diagnose(tmp_path, f"Timeout: Not all nodes are ready after 3600 seconds\n{FRAME}{said}\n{EXITS}")
    assert found.causes[0].rule == "peers-never-joined"


def test_ranks_in_different_collectives_do_not_count_parameters(tmp_path: Path) -> None:
    late = (
        "[E ProcessGroupNCCL.cpp:474] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=1800000) ran for 1800149"
        " milliseconds before timing out."
    )
    sizes = (
        "n1:9:9 [3] transport/net_ib.cc:1081 NCCL WARN NET/IB : req 0/1 tag 3 peer 10.0.0.3<4889> collective"
    )
    text = [f"{sizes} mismatch error, local size 78848 remote size 65536"]
    text += [late.format(rank, 1296, "ALLREDUCE", 622650) for rank in (0, 1)]
    text += [late.format(rank, 1295, "ALLGATHER", 1) for rank in (2, 3)]
    model = " DDP expects same model across all ranks, but Rank 3 has 131 params"
    text += [f"{model}, while rank 0 has inconsistent 202 params."]
    found = {c.rule: c.confidence for c in diagnose(tmp_path, "\n".join(text)).causes}
    assert found.get("model-differs-between-ranks", "low") == "low" and "collective-mismatch" in found


@pytest.mark.parametrize(
    "line",
    [
        'n1:9:9 [0] init.cpp:126 NCCL WARN Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can'
        " lead to low RCCL performance, system instablity or hang!",
        "RCCL version 2.16.5+hip5.6 HEAD:unknown+",
        "Trainer: Warning - Could not find a wrapped model",
        "(raylet) [2026-09-05 12:02:06,638 E 215 247] (raylet) file_system_monitor.cc:116: /tmp/ray/s is over"
        " 95% full, available space: 2.1 GB; capacity: 96.7 GB. Object creation will fail if spilling is"
        " required.",
        "Group Comms Status Errors\n    0         1         4         8        32  RUNNING  MISMATCH\nErrors",
    ],
)
def test_a_warning_of_what_may_come_is_no_failure(tmp_path: Path, line: str) -> None:
    assert diagnose(tmp_path, line).healthy


def test_a_communicator_that_is_used_below_its_failure_is_not_misused(tmp_path: Path) -> None:
    used = (
        "n1:9:9 [1] init.cc:290 NCCL WARN Attempt to use communicator before the previous operation returned"
    )
    broke = (
        "n1:9:12 [1] net_socket.cc:488 NCCL WARN NET/Socket : peer 10.0.0.4<4198> message truncated :"
        " receiving 4 bytes instead of 2."
    )
    assert diagnose(tmp_path, f"{used} ncclSuccess").causes[0].rule == "nccl-called-wrongly"
    found = [c.rule for c in diagnose(tmp_path, f"{broke}\n{used} ncclSuccess").causes]
    assert found[0] == "collective-mismatch" and "nccl-called-wrongly" not in found


OF_RAS = (
    "#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
    "  14 ranks have launched up to operation 64\n"
)


@pytest.mark.parametrize(
    "below, ranks, severity",
    [
        ("  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 165 on node n1\n", (7,),
         "error"),
        ("  2 ranks have not launched any operations\n  Rank 1 -- GPU 1 managed by process 3 on node n0\n"
         "  Rank 3 -- GPU 3 managed by process 5 on node n0\n", (1, 3), "error"),
        ("  2 ranks have launched up to operation 65\n", (), "warning"),
    ],
)  # fmt: skip
def test_the_report_of_nccls_ras_names_the_ranks_behind(
    tmp_path: Path, below: str, ranks: tuple[int, ...], severity: str
) -> None:
    (found,) = diagnose(tmp_path, OF_RAS + below).causes
    assert (found.rule, found.ranks, found.severity) == ("rank-fell-behind", ranks, severity)


def test_the_counts_of_two_communicators_are_not_compared(tmp_path: Path) -> None:
    other = OF_RAS.replace("#0-0", "#1-0").replace("64", "9")
    assert diagnose(tmp_path, OF_RAS + other).healthy


def test_the_error_in_a_containers_log_is_shown_and_not_its_first_line(tmp_path: Path) -> None:
    log = ["printing enroot log file:", "    /usr/bin/enroot: line 44: HOME: unbound variable",
           "    [ERROR] Command not found: nvidia-container-cli", "couldn't start container"]  # fmt: skip
    found = diagnose(tmp_path, "\n".join(f"slurmstepd: error: pyxis: {line}" for line in log)).causes[0]
    assert found.rule == "job-step-not-launched" and "nvidia-container-cli" in found.text


def test_the_end_of_a_program_that_prepares_a_container_is_no_end_of_a_rank(tmp_path: Path) -> None:
    log = ["    10-shadow.sh: line 70: 34 Segmentation fault      (core dumped) | pwck",
           "    nvidia-container-cli: ldcache error: process /sbin/ldconfig terminated with signal 9",
           "couldn't start container"]  # fmt: skip
    found = diagnose(tmp_path, "\n".join(f"4: slurmstepd: error: pyxis: {line}" for line in log))
    assert {c.rule for c in found.causes} == {"job-step-not-launched"}


@pytest.mark.parametrize(
    "line, rule",
    [
        ("[ERROR] Background srun 'ray-worker-1' died (pid=9). Attempting to exit.", "unnamed-failure"),
        ("ibgda.cpp:2234: NULL value Unable to create ah.", "rdma-peer-unreachable"),
        ("ping: local error: message too long, mtu=1500", "unnamed-failure"),
        ("[2026-06-26 07:25:31 DP4 TP4] Watchdog timeout (self.watchdog_timeout=300)", "unnamed-failure"),
    ],
)
def test_a_line_without_a_reason_is_shown_and_its_name_is_not_sure(
    tmp_path: Path, line: str, rule: str
) -> None:
    found = diagnose(tmp_path, line).causes
    assert [(c.rule, c.confidence) for c in found] == [(rule, "low")]
    assert line[-20:] in found[0].evidence[0].text


def test_a_resource_that_slurm_does_not_know_may_be_a_wrong_name(tmp_path: Path) -> None:
    said = "srun: error: Unable to create step for job 4: Invalid generic resource (gres) specification"
    assert [(c.rule, c.confidence) for c in diagnose(tmp_path, said).causes] == [
        ("not-enough-slots", "medium")
    ]


def test_the_code_of_grpc_is_not_shown_for_the_reason_above_it(tmp_path: Path) -> None:
    lines = (
        "F0929 17:42:48.594200 1044529 client.h:77] Terminating process because the JAX distributed service"
        " detected fatal errors. absl::Status: UNAVAILABLE: Failed to send RPC to coordination service.\n"
        ':UNKNOWN:Error received from peer  {grpc_message:"Socket closed", grpc_status:14}'
    )
    found = diagnose(tmp_path, lines).causes[0]
    assert found.rule == "peer-died-first" and found.telling is not None and found.telling.line == 1


FELL_BACK = f"no flash_attn, falling back to eager\n{FRAME}ModuleNotFoundError: No module named 'model'\n"


def test_a_fallback_excuses_an_import_only_if_the_program_goes_on(tmp_path: Path) -> None:
    assert not diagnose(tmp_path, FELL_BACK.rstrip()).healthy
    assert not diagnose(tmp_path, FELL_BACK + EXITS.rstrip()).healthy
    assert diagnose(tmp_path, FELL_BACK + "Loading the model\nReady").healthy


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
RUN = "[ RUN      ] Comm.Oom"


@pytest.mark.parametrize(
    "above, below",
    [
        ("[==========] Running 3 tests from 1 test suite.\n" + RUN, "[       OK ] Comm.Oom (7 ms)\n" + RUN),
        ("=== test session starts ===\ncollected 30 items\n", "PASSED             [  3%]\n"),
        ("=== test session starts ===\na.py::test_a FAILED  [ 3%]\n", "a.py::test_b PASSED  [ 6%]\n"),
        ("### Response:\nIt means that there is no memory:\n", ""),
        ("<|im_start|>assistant\n", "It was killed.\n<|im_end|>\n"),
        ("<|start_header_id|>assistant<|end_header_id|>\n\n", ""),
    ],
)
def test_text_of_a_model_and_output_of_a_test_that_passed_are_no_failure(
    tmp_path: Path, above: str, below: str
) -> None:
    found = diagnose(tmp_path, f"{above}\n{OOM}\n{below}")
    assert found.healthy or "FAILED" in found.causes[0].text
    assert "gpu-out-of-memory" not in {c.rule for c in found.causes if c.severity == "error"}


@pytest.mark.parametrize(
    "above, below",
    [
        ("[==========] Running 3 tests from 1 test suite.\n[       OK ] Comm.A (7 ms)\n" + RUN, ""),
        ("=== test session starts ===\na.py::test_a ", "FAILED  [ 3%]\na.py::test_b PASSED  [ 6%]\n"),
        ("### Response:\nHello\n" + FRAME, ""),
        ("<|im_start|>assistant\nHello<|im_end|>\n", ""),
        ("### Response:\nHello\n2026-11-28 07:00:00,123 ERROR ", ""),
    ],
)
def test_an_error_below_them_is_one(tmp_path: Path, above: str, below: str) -> None:
    assert diagnose(tmp_path, f"{above}{OOM}\n{below}").causes[0].rule == "gpu-out-of-memory"


def test_the_subjects_of_commits_are_no_failures(tmp_path: Path) -> None:
    subjects = "def5678 Fix CUDA out of memory in eval\n* 0a1b2c3 (HEAD -> main) Segmentation fault\n"
    assert diagnose(tmp_path, "abc1234 fix NCCL timeout\n" + subjects).healthy
    assert not diagnose(tmp_path, subjects + OOM).healthy


@pytest.mark.parametrize(
    "end", ["Killed", "Segmentation fault (core dumped)", "srun: error: n1: task 0: Killed"]
)
def test_a_process_that_ends_below_a_models_text_has_failed(tmp_path: Path, end: str) -> None:
    assert diagnose(tmp_path, f"### Response:\nIt is the sum of both.\n{end}\n").causes[0].severity == "error"


@pytest.mark.parametrize(
    "said",
    [
        "[2026-06-26 07:25:31 TP4] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
        "libfabric:2:17::core:core:cuda_hmem_dl_init():499<warn> Failed to dlopen libx.so.  Trying libx.so.1",
        "libfabric:2:17::core:core:cuda_gdrcopy_hmem_init():192<warn> gdrcopy_dl_hmem_init failed!",
        "2026-03-03 17:06:40,101 sagemaker-training-toolkit INFO     Cannot connect to host algo-2",
        "systemd[1]: s: PID file /run/s.pid not readable (yet?) after start: No such file or directory",
    ],
)
def test_a_line_of_a_program_that_tries_again_is_no_failure(tmp_path: Path, said: str) -> None:
    assert not diagnose(tmp_path, f"{said}\nstarting\n").causes


def test_an_address_of_no_known_family_has_two_possible_reasons(tmp_path: Path) -> None:
    said = (
        "n0:7:9 [4] m.cc:397 NCCL WARN Net : connecting to address  with family 33621 is neither AF_INET(2)"
    )
    first = diagnose(tmp_path, said).causes[0]
    assert (first.rule, first.confidence) == ("interface-name-missing", "low")
    assert "or it runs another NCCL" in first.text


NCCL_FAILED = (
    "torch.distributed.DistBackendError: NCCL error in: /t/x.hpp:73, invalid usage (run with"
    " NCCL_DEBUG=WARN for details), NCCL version 2.29.2\n"
)
OFI = "n0:1:2 [0] f:4 NCCL WARN NET/OFI "
CCL = "2026:03:13-10:36:27:(  636) |CCL_{}| "


@pytest.mark.parametrize(
    ("text", "rule", "confidence", "words"),
    [
        # A call of the driver maps memory for a peer; the process sees both numbers.
        (
            f"{FRAME}RuntimeError: CUDA driver error: invalid device ordinal",
            "rank-raised-exception",
            "medium",
            "",
        ),
        (
            f"{FRAME}RuntimeError: CUDA error: invalid device ordinal",
            "device-ordinal-not-visible",
            "high",
            "",
        ),
        # A port below 1024 is not taken: the process may not use it.
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network"
            " address. The server socket has failed to bind to [::]:98 (errno: 13 - Permission denied).",
            "port-privileged",
            "high",
            "port 98: it is below 1024",
        ),
        (f"{NCCL_FAILED}ncclDevCommCreate failed", "nccl-error-without-detail", "medium", "ncclDevComm"),
        (f"{NCCL_FAILED}ncclInvalidUsage: it failed", "nccl-error-without-detail", "medium", "category"),
        (
            f"DeepEP timeout check failed: rank = 3\n{FRAME}Error: CUDA error: unspecified launch failure",
            "rank-fell-behind",
            "low",
            "",
        ),
        (
            CCL.format("ERROR") + "f.cpp:2 fill: condition fds[i] > 0 failed",
            "unnamed-failure",
            "low",
            "fds[i]",
        ),
        ("DeepEP timeout check failed: rank = 6, value = 0)", "rank-fell-behind", "low", ""),
        (f"{FRAME}RuntimeError: DeepEP error: timeout (dispatch CPU)", "rank-fell-behind", "low", ""),
        ("[saver.cpp] CUresult error  result=2 file=s.cpp", "gpu-out-of-memory", "high", ""),
        ("The worker group startup timed out after 30.0 s", "placement-not-possible", "medium", ""),
        (
            ":0:r.cpp:3: Callback: Queue 0x7f78cb aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL"
            " operation resulted in a hardware exception. code: 0x1016\nFatal Python error: Aborted",
            "rank-crashed",
            "low",
            "HSA_STATUS_ERROR",
        ),
        (
            "[1.5] amdgpu 0:66:0: amdgpu: VM_L2_PROTECTION_FAULT_STATUS:0x341051\n[1.6] MAPPING_ERROR: 0x0",
            "unnamed-failure",
            "low",
            "VM_L2",
        ),
        (
            f"{FRAME}RuntimeError: Connection reset by peer\n"
            "Error: failed to run torchrun a.py on n1, exception: Encountered a bad command exit code!",
            "peer-died-first",
            "low",
            "",
        ),
        (
            f"{FRAME}    assert len(a) == 3\n           ^^^\nAssertionError",
            "rank-raised-exception",
            "medium",
            "len(a)",
        ),
    ],
)
def test_a_program_reports_it_in_its_own_form(
    tmp_path: Path, text: str, rule: str, confidence: str, words: str
) -> None:
    first = diagnose(tmp_path, text).causes[0]
    assert (first.rule, first.confidence) == (rule, confidence)
    assert words in first.text


def test_the_reason_of_a_network_plugin_is_above_its_last_line(tmp_path: Path) -> None:
    gave_up = f"{OFI}Unexpected group size 0\n{OFI}aws-ofi-nccl initialization failed\n"
    for end in ("", "n0:1:2 [0] NCCL INFO Failed to initialize any NET plugin\n"):
        first = diagnose(tmp_path, gave_up + end).causes[0]
        assert (first.rule, first.evidence[0].line) == ("network-plugin-init-failed", 1)
        assert "NCCL_NET" not in first.text


@pytest.mark.parametrize(
    "text",
    [
        CCL.format("WARN") + "could not get local_idx/count from environment variables",
        "2024-01-31 10:21:35.0: W tsl/p.cc:170] Failed to retrieve preemption notice from coordination"
        " service: UNAVAILABLE: Socket closed. This is only expected if one of the tasks is unhealthy",
        # NCCL only warns of errors while it frees a communicator.
        "n0:7:7 [0] p2p.cc:1128 NCCL WARN Cuda failure 1 'invalid argument'\n"
        "n0:7:7 [0] init.cc:9 NCCL WARN commReclaim: cleanup comm 0x1 rank 0 failed in destroy, error 1",
        "The worker group startup timed out after 30.0 s waiting\nStarted training worker group of size 8:",
    ],
)
def test_a_warning_of_a_library_alone_is_no_failure(tmp_path: Path, text: str) -> None:
    assert diagnose(tmp_path, text).healthy


@pytest.mark.parametrize(
    "line",
    [
        "Clang version: Could not collect",
        "[conda] Could not collect",
        "bash: cannot set terminal process group (-1): Inappropriate ioctl for device",
        "bash: no job control in this shell",
        "groups: cannot find name for group ID 1001",
        "mesg: ttyname failed: Inappropriate ioctl for device",
        "bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8)",
        "Could not chdir to home directory /home/ada: No such file or directory",
    ],
)
def test_what_a_login_or_a_report_of_versions_lacks_is_no_failure(tmp_path: Path, line: str) -> None:
    (tmp_path / "job.log").write_text(
        f"{line}\nnode-a:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    )
    assert read_logs([str(tmp_path / "job.log")]).healthy


SET_UP = (
    "node-a:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    "node-a:1:9 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\n"
    "node-b:2:9 [0] NCCL INFO comm 0x2 rank 1 nranks 2 cudaDev 0 busId 1000 - Init COMPLETE\n"
)
OF_THE_SCRIPT = [
    "curl: (6) Could not resolve host: telemetry.example.com",
    "fatal: unable to access 'https://git.example.com/repo.git/': Could not resolve host: git.example.com",
    "W: Failed to fetch http://archive.example.com/x  Temporary failure resolving 'archive.example.com'",
    "wget: unable to resolve host address 'data.example.com'",
    "sudo: unable to resolve host gpu-1: Temporary failure in name resolution",
    "cat: /sys/class/net/eth9/speed: No such file or directory",
    "bash: /root/.bashrc: Permission denied",
    "./setup.sh: line 3: 1234 Killed                  sleep 1000",
    "--- Logging error ---\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/lib/python3.11/logging/__init__.py", line 1110, in emit\n'
    "    msg = self.format(record)\n"
    "TypeError: not all arguments converted during string formatting\n"
    "Call stack:\n"
    '  File "/job/train.py", line 3, in <module>\n'
    '    log.info("a", 1)\n'
    "Message: 'a'\n"
    "Arguments: (1,)",
    "Error in sitecustomize; set PYTHONVERBOSE for traceback:\n"
    "ModuleNotFoundError: No module named 'apport_python_hook'",
    "Exception ignored in: <function Pool.__del__ at 0x7f>\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.11/multiprocessing/pool.py", line 271, in __del__\n'
    "ResourceWarning: unclosed running multiprocessing pool",
    "CUDA error: out of memory (caught, reducing batch size to 8)",
    "| WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 20.00 MiB;\n"
    "| WARNING: OOM: attempting to recover from OOM in forward/backward pass",
    "slurmstepd: error: Unable to create TMPDIR [/tmp/ada]: Permission denied",
    "slurmstepd: error: task_p_pre_launch: unable to set CPU affinity",
    "bash: ulimit: open files: cannot modify limit: Operation not permitted",
    "node-a sshd[99]: error: kex_exchange_identification: Connection closed by remote host",
    "2026-11-20 10:00:00.12: I external/tsl/cudart_stub.cc:31] Could not find cuda drivers on your machine",
]


@pytest.mark.parametrize("line", OF_THE_SCRIPT)
def test_what_a_script_prints_before_its_ranks_work_is_no_failure(tmp_path: Path, line: str) -> None:
    (tmp_path / "job.log").write_text(f"{line}\n{SET_UP}")
    assert read_logs([str(tmp_path / "job.log")]).healthy


@pytest.mark.parametrize("line", OF_THE_SCRIPT)
def test_what_a_script_prints_hides_no_cause(tmp_path: Path, line: str) -> None:
    failed = "node-a:1:9 [0] net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1\n"
    (tmp_path / "job.log").write_text(f"{line}\n{SET_UP}{failed}")
    assert read_logs([str(tmp_path / "job.log")]).causes[0].rule == "rdma-retry-exceeded"


def test_modules_that_a_shell_lacks_do_not_explain_what_ranks_printed_before(tmp_path: Path) -> None:
    failed = "node-a:1:9 [0] net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1\n"
    (tmp_path / "job.log").write_text(f"{failed}job.sh: line 12: module: command not found\n")
    assert read_logs([str(tmp_path / "job.log")]).causes[0].rule == "rdma-retry-exceeded"


def test_a_file_that_begins_or_ends_a_bar_within_a_minute_is_no_long_work(tmp_path: Path) -> None:
    wait = (
        "[rank2]:[E ProcessGroupNCCL.cpp:563] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=19, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600014 ms\n"
    )
    bar = "Downloading shards:   0%|          | 0/4 [00:00<?, ?it/s]\n"
    warning = "huggingface/tokenizers: The current process just got forked\n"
    (tmp_path / "job.log").write_text(bar + warning + wait)
    assert read_logs([str(tmp_path / "job.log")]).causes[0].rule != "rank-busy-while-others-wait"


def test_one_connection_that_is_tried_again_is_not_certain(tmp_path: Path) -> None:
    line = "node-a:1:9 [0] NCCL INFO Call to connect returned Connection refused, retrying\n"
    start = "node-a:1:9 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    for times, confidence in ((1, "low"), (3, "medium")):
        (tmp_path / "job.log").write_text(start + line * times)
        cause = read_logs([str(tmp_path / "job.log")]).causes[0]
        assert (cause.rule, cause.confidence) == ("peer-unreachable-on-interface", confidence)


def test_an_allocation_above_it_does_not_answer_rays_request(tmp_path: Path) -> None:
    given = "salloc: Granted job allocation 12\n"
    asked = (
        "Error: No available node types can fulfill resource request {'node:10.0.0.9': 0.001, 'GPU': 1.0}\n"
    )
    (tmp_path / "job.log").write_text(given + asked)
    assert read_logs([str(tmp_path / "job.log")]).causes[0].rule == "ray-node-address-differs"
    (tmp_path / "job.log").write_text(asked + given)
    assert "ray-node-address-differs" not in [c.rule for c in read_logs([str(tmp_path / "job.log")]).causes]


def test_the_severity_of_torchs_older_form_counts(tmp_path: Path) -> None:
    line = "[{} socket.cpp:601] [c10d] The client socket has failed to connect to [n1]:22456 (errno: 22)\n"
    (tmp_path / "job.log").write_text(line.format("W") + "Using bfloat16 Automatic Mixed Precision (AMP)\n")
    assert read_logs([str(tmp_path / "job.log")]).healthy
    (tmp_path / "job.log").write_text(line.format("E"))
    assert not read_logs([str(tmp_path / "job.log")]).healthy


@pytest.mark.parametrize(
    "below, is_error",
    [
        ("", True),
        ("Loading data\nRunning\n", False),
        ("srun: error: n1: task 0: Exited with exit code 127\n", True),
    ],
)
def test_a_script_that_prints_on_did_not_end_for_want_of_modules(
    tmp_path: Path, below: str, is_error: bool
) -> None:
    (tmp_path / "job.log").write_text(f"job.sh: line 3: module: command not found\n{below}")
    assert read_logs([str(tmp_path / "job.log")]).healthy != is_error


def test_a_warning_that_nccl_goes_on_from_is_no_error_without_detail(tmp_path: Path) -> None:
    warning = "node-a:1:9 [0] graph/search.cc:1150 NCCL WARN Could not find a path for pattern 4, {}\n"
    (tmp_path / "job.log").write_text(warning.format("falling back to simple order") + SET_UP)
    assert read_logs([str(tmp_path / "job.log")]).healthy


def test_rays_word_about_its_workers_is_no_process_of_an_earlier_run(tmp_path: Path) -> None:
    ray = "(raylet) worker_pool.cc:580: The worker process(99) is late. The process is still alive\n"
    taken = "RuntimeError: server socket failed to listen: port: 29500, EADDRINUSE: Address already in use\n"
    (tmp_path / "job.log").write_text(ray + taken)
    assert read_logs([str(tmp_path / "job.log")]).causes[0].rule == "port-in-use"


# A cause's words in a message that means something else: of Slurm (src/srun, src/sbatch, src/slurmd),
# aws-ofi-nccl, Ray, vLLM, SGLang, Megatron Core, JAX, Composer, SkyPilot, huggingface_hub, verl and torch.
SOMETHING_ELSE = [
    ("oom-killer-ran", "srun: error: Invalid --oom-kill-step specification"),
    ("oom-killer-ran", "slurmstepd: error: Cannot parse oom_kill counter from /x memory.oom_control."),
    ("fabric-manager-not-running", "slurmstepd: error: POST to fabric manager for collectives failed: 2"),
    (
        "not-enough-slots",
        "srun: error: Unable to allocate resources: Invalid account or partition combination",
    ),
    ("shm-too-small", "sbatch: error: Unable to open file train.sh"),
    (
        "network-plugin-init-failed",
        "n3:8:9 [0] nccl_ofi_rdma.cpp:12 NCCL WARN NET/OFI fi_read failed; RC: -5, Error: I/O error",
    ),
    (
        "network-plugin-init-failed",
        "n3:8:9 [0] nccl_ofi_gin.cpp:12 NCCL WARN NET/OFI Failed to find rank for src addr 2",
    ),
    (
        "network-plugin-missing",
        "WARNING 08-12 [volume.py:110] RunPod network volume id not found for 4; skip delete",
    ),
    (
        "hostname-unresolvable-from-peer",
        "INFO 08-12 [x.py:9] None detected (e.g. KUBERNETES_SERVICE_HOST not found).",
    ),
    (
        "peer-died-first",
        "INFO 08-12 [token_channel.py:314] ZMQ socket closed; stopping prompt-token receiver.",
    ),
    ("rank-killed", "WARNING 08-12 [job_supervisor.py:422] Job is now being force-killed with SIGKILL."),
    (
        "rank-killed",
        "WARNING 08-12 [launcher.py:488] Failed to kill rank 3; terminating with SIGKILL instead",
    ),
    (
        "rank-crashed",
        "WARNING 08-12 [gpt_oss.py:112] using triton MOE kernel to avoid triton_kernels SIGSEGV",
    ),
    ("port-in-use", "WARNING 08-12 [parallel.py:750] Address already in use. Retrying with a new port."),
    (
        "port-in-use",
        "WARNING 08-12 [c.py:122] Port 4 is already in use. Binding to a random available port instead.",
    ),
    (
        "peers-never-joined",
        "WARNING 08-12 [server.py:972] Submission gate barrier timed out with 2 in flight, proceeding",
    ),
    (
        "collective-mismatch",
        "WARNING 08-12 [ipc_loader.py:213] Skipping mismatched cached tensor model.embed",
    ),
    (
        "rank-fell-behind",
        "INFO 08-12 [d.py:2291] Build with Gloo to aid collective desynchronization debugging.",
    ),
    (
        "ssh-not-passwordless",
        "WARNING 08-12 [_cache_manager.py:1034] Couldn't delete /x: permission denied (13)",
    ),
    (
        "ssh-not-passwordless",
        FRAME + "PermissionError: Authentication failed during upload. Token may have expired.",
    ),
    (
        "hostname-unresolvable-from-peer",
        FRAME + "RemoteCodeGateError: the checkpoint directory cannot be resolved for inspection",
    ),
    ("open-files-too-low", "FATAL:   --tokenfile is only supported for login to a remote endpoint"),
    ("ssh-not-passwordless", "FATAL:   Failed to load key material: /x"),
    ("network-plugin-init-failed", "libibverbs: Couldn't create CQ"),
    ("collective-mismatch", FRAME + "ValueError: broadcasting_vmap: mismatched input shapes"),
    ("host-memory-refused", FRAME + "MemoryError: No enough free memory blocks."),
    ("shm-too-small", FRAME + "ValueError: Ran out of shared memory."),
]


@pytest.mark.parametrize(("cause", "text"), SOMETHING_ELSE)
def test_a_causes_words_in_another_message_do_not_name_it(tmp_path: Path, cause: str, text: str) -> None:
    assert cause not in {found.rule for found in diagnose(tmp_path, text).causes}
