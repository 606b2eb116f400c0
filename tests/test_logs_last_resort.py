"""Where no cause is known the report quotes what the programs print last."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import Diagnosis, read_logs

CATEGORY = (
    "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.cpp:93, unhandled system error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
)


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "job.log").write_text(text, encoding="utf-8")
    return read_logs([str(tmp_path / "job.log")])


@pytest.mark.parametrize("label", ["", "[rank3]: ", "n2: ", "2026-11-20T10:00:00.000Z "])
def test_the_line_below_last_error_is_quoted(tmp_path: Path, label: str) -> None:
    text = CATEGORY + "Last error:\nNET/Example : the handshake was refused\nand more\n"
    cause = diagnose(tmp_path, "".join(label + line for line in text.splitlines(True))).causes[0]
    assert (cause.rule, cause.confidence) == ("nccl-error-without-detail", "low")
    assert "NET/Example : the handshake was refused" in cause.text
    assert cause.evidence[0].line == 4
    assert cause.fix is not None and "NCCL_DEBUG=INFO" in cause.fix.text


def test_the_first_warning_in_unknown_words_is_quoted(tmp_path: Path) -> None:
    text = "".join(
        f"n1:5:5 [0] net.cc:12 NCCL WARN Example link {n} could not be opened\n" for n in range(30)
    )
    init = "n1:5:5 [0] NCCL INFO comm 0x1 rank 6 nranks 8 cudaDev 0 busId 1000 - Init START\n"
    cause = diagnose(tmp_path, init + text + CATEGORY).causes[0]
    assert (cause.rule, cause.confidence, cause.ranks) == ("unnamed-failure", "low", (6,))
    assert "NCCL WARN Example link 0 could not be opened" in cause.text


@pytest.mark.parametrize("kind", ["pkg.errors.TokenizerMismatch", "TokenizerMismatch", "pkg.mismatch"])
@pytest.mark.parametrize("label", ["", "[rank3]: ", "n2: ", "3: "])
def test_the_last_line_of_a_traceback_names_the_exception(tmp_path: Path, kind: str, label: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/job/train.py", line 9, in <module>\n'
        "    step(batch)\n"
        "    ~~~~^^^^^^^\n"
        f"{kind}: vocabulary has 32000 words, not 32001\n"
        "pkg.Other: not the end of any traceback\n"
    )
    cause = diagnose(tmp_path, "".join(label + line for line in text.splitlines(True))).causes[0]
    assert cause.rule == "rank-raised-exception"
    assert f"raised {kind.rpartition('.')[2]}: vocabulary has 32000 words" in cause.text
    assert "/job/train.py:9" in cause.text


@pytest.mark.parametrize(
    "below",
    ["    Mismatch: part of the code", "Extension modules: numpy, torch", "step 5: loss 2.1", "Killed"],
)
def test_other_lines_below_a_frame_are_no_exception(tmp_path: Path, below: str) -> None:
    text = f'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n{below}\n'
    assert diagnose(tmp_path, text).story.all("exception") == []


@pytest.mark.parametrize(
    "reason, words, confidence",
    [
        ("Connection refused", "its own service thread", "low"),
        ("Connection timed out", "a firewall", "medium"),
        ("No route to host", "a firewall", "medium"),
    ],
)
def test_only_a_refused_connection_to_itself_means_that_the_listener_died(
    tmp_path: Path, reason: str, words: str, confidence: str
) -> None:
    text = (
        "n0:5:5 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.3<0>\n"
        f"n0:5:9 [0] misc/socket.cc:484 NCCL WARN Connect to 10.0.0.3<50321> failed : {reason}\n"
    )
    cause = diagnose(tmp_path, text).causes[0]
    assert (cause.rule, cause.confidence) == ("peer-unreachable-on-interface", confidence)
    assert words in cause.text


def test_what_nccl_says_that_it_ignores_is_not_called_an_error_of_its_own(tmp_path: Path) -> None:
    text = "Detected mixed local Net device counts between peers: rank 0 sees 8, rank 1 sees 4. Ignoring."
    found = diagnose(tmp_path, f"n1:11:30 [0] init.cc:1202 NCCL WARN {text}\n").causes
    assert [(c.rule, c.severity) for c in found] == [("rdma-device-set-differs", "note")]


# -- logs that end in the middle of a line -------------------------------------------------------------

FRAMES = 'Traceback (most recent call last):\n  File "/job/t.py", line 9, in main\n    run()\n'
AGENT = "W0128 10:15:38.0 12 torch/distributed/elastic/"
INTERRUPTED = (
    f"{AGENT}agent/server/api.py:741] Received Signals.SIGINT death signal, shutting down workers\n"
    f"{AGENT}multiprocessing/api.py:851] Sending process 56496 closing signal SIGINT\n"
)
WAITS = (
    "[rank{0}]:[E131 16:15:16.6 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran"
    " for 1800004 milliseconds"
)


def test_a_size_that_the_end_of_the_log_cuts_off_is_no_other_size(tmp_path: Path) -> None:
    cut = WAITS.format(3)[: WAITS.format(3).index("NumelIn=") + 8]
    rules = [c.rule for c in diagnose(tmp_path, f"{WAITS.format(1)}\n{cut}").causes]
    assert "collective-mismatch" not in rules
    other = WAITS.format(3).replace("NumelIn=1", "NumelIn=7")
    assert diagnose(tmp_path, f"{WAITS.format(1)}\n{other}").causes[0].rule == "collective-mismatch"


def test_the_message_above_a_traceback_that_is_cut_tells_most(tmp_path: Path) -> None:
    head = "2025-05-22 03:33:36 - [ERROR] - "
    said = f"{head}An error occurred during training: 2 and 8 do not go together\n"
    cause = diagnose(tmp_path, f"{said}{head}{FRAMES}").causes[0]
    assert (cause.rule, cause.evidence[0].line) == ("unnamed-failure", 1)
    assert diagnose(tmp_path, FRAMES).causes[0].evidence[0].line == 2
    pasted = "ValueError: saved size 6561, current size 5533\n\nFull traceback of one rank of eight:\n\n"
    assert diagnose(tmp_path, pasted + FRAMES).causes[0].evidence[0].line == 1


@pytest.mark.parametrize(("command", "line"), [("g++", 4), ("/usr/bin/ninja", 4), ("torchrun", 5)])
def test_a_compiler_that_fails_ends_a_rank_by_itself(tmp_path: Path, command: str, line: int) -> None:
    raised = f"CalledProcessError: Command '['{command}', 'a']' returned non-zero exit status 1."
    said = "".join(f"[rank2]: {line}\n" for line in f"{FRAMES}subprocess.{raised}".splitlines())
    (cause,) = diagnose(tmp_path, f"{said}sh: line 3: cannot open the file\n").causes
    assert (cause.rule, cause.evidence[0].line) == ("unnamed-failure", line)


def test_the_end_of_a_command_alone_is_a_failure(tmp_path: Path) -> None:
    said = "subprocess.CalledProcessError: Command '['torchrun', 't.py']' returned non-zero exit status 1.\n"
    (cause,) = diagnose(tmp_path, f"start\n{FRAMES}{said}").causes
    assert (cause.rule, cause.confidence) == ("unnamed-failure", "low")


def test_the_first_line_of_a_log_is_no_last_error_of_nccl(tmp_path: Path) -> None:
    below = FRAMES.partition("\n")[2]
    assert not diagnose(tmp_path, f"{below}ValueError: 3\n").story.has("last-error")


def test_a_time_limit_of_grpc_ends_a_rank(tmp_path: Path) -> None:
    said = f'{FRAMES}TimeoutError: status: Cancelled, message: "Timeout expired", details: []'
    (cause,) = diagnose(tmp_path, "".join(f"[rank0]: {line}\n" for line in said.splitlines())).causes
    assert (cause.rule, cause.evidence[0].line) == ("unnamed-failure", 4)


def test_the_way_of_an_error_through_old_nccl_is_no_failure_of_its_own(tmp_path: Path) -> None:
    text = (
        "w0:15:91 [3] include/socket.h 398 NCCL WARN Call to recv failed : Connection reset by peer.\n"
        "w0:15:91 [3] transport.cu:153 NCCL WARN transport.cu:153 ->2 [Proxy thread error]\n"
    )
    assert diagnose(tmp_path, text).causes[0].rule == "peer-died-first"


@pytest.mark.parametrize("end", ["", "torch.distributed.elastic.mult"])
def test_a_launcher_that_was_interrupted_has_no_failure_in_its_last_frames(tmp_path: Path, end: str) -> None:
    assert [c.rule for c in diagnose(tmp_path, INTERRUPTED + FRAMES + end).causes] == ["job-cancelled"]


def test_an_older_kernel_tells_whose_limit_ended_a_task(tmp_path: Path) -> None:
    said = "[Thu Mar 20 21:01:25 2025] Task in /docker/6b45 killed as a result of limit of /docker/6b45\n"
    assert diagnose(tmp_path, said).causes[0].rule == "oom-killer-ran"


# -- programs around the command -----------------------------------------------------------------------

WORK = "".join(f"step {n}: loss {3 - n / 50:.3f}\n" for n in range(40)) + "Training completed.\n"
PODS = "NAME                  READY   STATUS      RESTARTS   AGE\n"
POD = "train-{0}   0/1     {1}   {2}   12m\n"


@pytest.mark.parametrize(
    "line",
    [
        "ERROR conda.cli.main_run:execute(125): `conda run python train.py` failed. (See above for error)",
        "make: *** [Makefile:12: train] Error 1",
        "##[error]Process completed with exit code 1.",
        "2026-11-28T07:00:03.0000000Z ##[error]Bash exited with code '1'.",
        "ERROR: Job failed: exit code 1",
        "07:00:03  Finished: FAILURE",
        "error: Recipe `train` failed on line 3 with exit code 1",
        "\t(1) Normal termination (return value 1)",
        "1234.batch        batch                  acct         64     FAILED      1:0 ",
        "thread 'main' panicked at tokenizers/src/models/bpe/model.rs:512:41:\nindex out of bounds: len 5",
        "thread 'main' (12345) panicked at router/src/main.rs:88:14:\nno entry found for key",
        *(POD.format("0", why, "2 (3h ago)") for why in ("Error", "Init:Error", "Evicted", "StartError")),
    ],
)
def test_the_end_of_a_command_is_no_success(tmp_path: Path, line: str) -> None:
    work = WORK.replace("Training completed.\n", "") if "panicked" in line else WORK
    diagnosis = diagnose(tmp_path, f"{work}UserWarning: an old option is deprecated\n{line}\n")
    assert [c.rule for c in diagnosis.causes if c.severity == "error"] == ["unnamed-failure"]
    assert any(part in diagnosis.causes[0].text for part in line.strip().split("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "make: [Makefile:3: clean] Error 1 (ignored)\n" + WORK,
        "make: *** [Makefile:3: clean] Error 1\n" + WORK,
        WORK + "Finished: SUCCESS\n",
        PODS + POD.format("0-x7b2k", "Error", 0) + POD.format("0-p4c9z", "Completed", 0),
        PODS + POD.format("worker-0", "Error", 0) + POD.format("worker-0", "Running", 1),
        PODS + POD.format("worker-0", "Init:0/1", 0),
        "Pods Statuses:    0 Active (0 Ready) / 4 Succeeded / 1 Failed\n",
    ],
)
def test_a_command_that_is_run_again_or_that_nobody_needs_is_no_failure(tmp_path: Path, text: str) -> None:
    assert diagnose(tmp_path, text).healthy


LONG = "/scratch/projects/" + "model-development/" * 7 + "lib/python3.11/site-packages/vllm/worker.py"
CUT = f'  File "{LONG}", line 9, in init_device\n    connect(\n'


@pytest.mark.parametrize("label", ["[rank3]: ", "(Worker pid=7) ERROR 02-12 19:57:26 [worker.py:572] "])
def test_a_traceback_without_its_head_and_its_end_is_a_failure(tmp_path: Path, label: str) -> None:
    cause = diagnose(tmp_path, "".join(label + line for line in CUT.splitlines(True))).causes[0]
    assert (cause.rule, cause.confidence, cause.evidence[0].line) == ("unnamed-failure", "low", 1)
    assert diagnose(tmp_path, CUT).healthy  # a program may print its stack


def test_the_logger_s_line_above_a_cut_traceback_is_quoted(tmp_path: Path) -> None:
    label = "ERROR 04-17 14:15:53 [core.py:387] "
    text = f"Error logs\n{label}Core hit an exception: {FRAMES}".replace("\n", f"\n{label}").strip()
    found = diagnose(tmp_path, text).causes[0]
    assert "Core hit an exception" in found.evidence[1].text


@pytest.mark.parametrize(
    "cut",
    [
        "(Core_0 pid=2) ERROR 05",
        "ERROR 05-22 22:3",
        "### Error logs:",
        "[588912.611023] NVRM: nvAssertFailedNoLog: Assertion failed: !rmapiLockIsOwner() @ rmapi.c:563",
        "[588900.241797] NVRM: kceIsGenSupported_GH100: Could not get root gen speed!",
        "all 176 tasks started, 19 s after the previous attempt's last failure",
        "No exception is raised, but the noise makes real errors hard to see",
    ],
)
def test_a_label_a_title_or_a_remark_is_no_failure(tmp_path: Path, cut: str) -> None:
    assert diagnose(tmp_path, f"step 1\nstep 2\n{cut}").healthy


@pytest.mark.parametrize(
    ("title", "rule"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=113.0.", "oom-killer-ran"),
        (
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 64 got signal: 1",
            "terminal-closed",
        ),
        (
            "socketPollConnect: connect to 10.7.0.10<52597> returned Connection refused",
            "peer-unreachable-on-interface",
        ),
    ],
)
def test_the_title_of_a_thread_stands_above_its_log(tmp_path: Path, title: str, rule: str) -> None:
    steps = "steps:   2%|2| 77/5000 [57:02<60:46:54, 44.45s/it, avr_loss=0.0462]\n"
    found = diagnose(tmp_path, f"# {title}\n\nepoch 4/200\nepoch 5/200\n{steps}")
    assert [c.rule for c in found.causes if c.severity != "note"][:1] == [rule]
    assert diagnose(tmp_path, f"# {title}\n#SBATCH --nodes=2\nepoch 4/200\n").healthy  # a comment


def test_a_launcher_that_ends_its_other_workers_has_lost_one(tmp_path: Path) -> None:
    line = "W0219 09:17:03.8 14 multiprocessing/api.py:858] Sending process {} closing signal SIGTERM\n"
    found = diagnose(tmp_path, line.format(7) + line.format(8)).causes[0]
    assert (found.rule, found.confidence) == ("unnamed-failure", "low")
    assert found.fix is not None and "one of them failed first" in found.fix.text
    cancelled = diagnose(tmp_path, line.format(7).replace("SIGTERM", "SIGINT") + "KeyboardInterrupt\n").causes
    assert cancelled[0].rule == "job-cancelled"


def test_the_watchdog_of_another_backend_speaks_alike(tmp_path: Path) -> None:
    line = (
        "[rank1]:[E324 13:00:25.4 depend.ts:574] [Rank 1] Watchdog caught collective operation timeout:"
        " WorkHCCL(SeqNum=196, OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 milliseconds.\n"
        "[rank1]:[E324 13:00:25.5 compiler_depend.ts:628] Some HCCL operations have failed or timed out.\n"
    )
    found = diagnose(tmp_path, line).causes
    assert found[0].rule in ("collective-stalled", "rank-fell-behind")


def test_the_task_that_came_back_is_quoted(tmp_path: Path) -> None:
    text = (
        "2025-04-05 18:39:10.837: E xla/coordination_service.cc:962] /job:jax_worker/replica:0/task:1"
        " unexpectedly tried to connect with a different incarnation. It has likely restarted.\n"
        "2025-04-05 18:39:10.838: F xla/client.h:80] Terminating process because the JAX"
        " distributed service detected fatal errors.\n"
    )
    found = diagnose(tmp_path, text).causes[0]
    assert (found.rule, found.evidence[0].line) == ("peer-died-first", 1)
    assert "task:1" in found.text


def test_a_store_that_goes_away_alone_is_no_error(tmp_path: Path) -> None:
    line = "[rank1]:[W724 19:26:07.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=3): 0 bytes\n"
    found = diagnose(tmp_path, line)
    assert [(c.rule, c.confidence, c.severity) for c in found.causes] == [
        ("peer-died-first", "low", "warning")
    ]


def test_a_quoted_record_is_read(tmp_path: Path) -> None:
    line = (
        "> [2026-01-04 21:33:04] n0:617:2799 [3] net_ib.cc:2360 NCCL WARN NET/IB: Got completion from peer"
        " 10.4.0.2<53393> with status=12 opcode=1 len=5222 vendor err 129 (Send)\n"
    )
    text = f"The following warning is frequent:\n\n{line}\nIt is not detected.\nMore text.\nAnd more.\n"
    assert diagnose(tmp_path, text).causes[0].rule == "rdma-retry-exceeded"


def test_what_one_line_of_code_passes_on_is_of_others(tmp_path: Path) -> None:
    prefix = "[2025-08-17, 16:39:31 UTC] {pod_manager.py:477} INFO - [base] "
    lines = ["loading", "Task 3 failed: runner not available", "closing"]
    assert not diagnose(tmp_path, "\n".join(prefix + line for line in lines)).healthy
    own = [f"[2025-08-17, 16:39:31 UTC] {{trainer.py:{n}}} INFO - {line}" for n, line in enumerate(lines, 40)]
    assert diagnose(tmp_path, "\n".join(own)).healthy  # the program's own severity


def test_the_rest_of_a_broken_line_is_no_error_by_its_label(tmp_path: Path) -> None:
    label = "ERROR 02-12 19:57:26 worker_base.py:572] "
    text = "The client socket has timed out after 60s while trying to connect to (10.3.4.5\n, 44737)."
    found = diagnose(tmp_path, label + text.replace("\n", f"\n{label}")).causes
    assert found[0].rule == "store-unreachable"


def test_an_error_that_is_retried_to_the_end_is_an_answer(tmp_path: Path) -> None:
    line = "error: Munge encode failed: cannot access /run/m: No such file or directory (retrying ...)\n"
    stamped = "".join(f"[2026-01-02T10:0{n}:00.001] {line}" for n in range(5))
    (cause,) = diagnose(tmp_path, stamped).causes
    assert (cause.rule, cause.confidence) == ("unnamed-failure", "low")
    assert "makes no progress" in cause.text and "Munge encode failed" in cause.text
    assert cause.fix is not None and "missing on that host" in cause.fix.text
    assert diagnose(tmp_path, stamped + "step 1 loss 2.1\nstep 2 loss 2.0\n").healthy


def test_a_librarys_error_just_above_a_crash_is_quoted(tmp_path: Path) -> None:
    text = "2026:01:02-10:00:30:( 7) |CCL_ERROR| kvs.cpp:323 kvs_init: connection error: Connection refused\n"
    crash = "/job/run.sh: line 9:  4711 Segmentation fault      (core dumped) python train.py\n"
    first = diagnose(tmp_path, text + crash).causes[0]
    assert (first.rule, first.confidence) == ("rank-crashed", "high")
    assert "an error just above: kvs.cpp:323 kvs_init" in first.text
    assert [event.line for event in first.evidence] == [2, 1]
    far = diagnose(tmp_path, text + 50 * "one more line\n" + crash).causes[0]
    assert [event.line for event in far.evidence] == [52]


AGENT = """\
failed (exitcode: 1) local_rank: 1 (pid: 913) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 913)
"""


@pytest.mark.parametrize("label", ["[rank0]: ", ""])
def test_the_first_rank_that_ended_without_a_traceback_ended_by_its_own_wish(
    tmp_path: Path, label: str
) -> None:
    began = "rank 0/2 on n1 ready\nrank 1/2 on n1 ready\nshard 17 is corrupt, giving up\n"
    lost = (
        f"{label}RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:55.\n"
    )
    first = diagnose(tmp_path, began + lost + AGENT).causes[0]
    assert first.rule == ("rank-raised-exception" if label else "peer-died-first")
    assert not label or ("shard 17 is corrupt" in first.text and first.ranks == (1,))


def test_the_frames_of_the_watchdog_alone_are_a_timeout(tmp_path: Path) -> None:
    text = (
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:618 (most recent call first):\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in libc10.so)\n"
    )
    found = diagnose(tmp_path, text).causes
    assert found[0].rule in ("collective-stalled", "rank-fell-behind")


RULE = "-" * 74
TARGET = """\
A request was made to map by a hardware object, but a node in the
allocation has no object of that type:

   Object type: GPU
   Node:        node3

Mapping by an object type that a node does not have would place no
processes on that node at all, so the job cannot be mapped.
"""
DISCONNECTED = """\
An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

More generally: such peer hangups are frequently caused by application
bugs or other external events.
"""
UNBOUND = """\
PRTE tried to bind a new process, but something went wrong and the
process was left unbound. The job will continue, but performance may
be degraded.
"""


def framed(text: str, below: str = "") -> str:
    return f"+ mpirun -np 16 python train.py\n{RULE}\n{text}{RULE}\n{below}"


def test_a_text_that_open_mpi_frames_is_the_answer_where_it_ends_the_log(tmp_path: Path) -> None:
    for below in ("", "[node1:7] 3 more processes have sent help message help-rmaps.txt / no-object\n"):
        cause = diagnose(tmp_path, framed(TARGET, below)).causes[0]
        assert (cause.rule, cause.confidence, cause.evidence[0].line) == ("unnamed-failure", "low", 3)
        assert "A request was made to map by a hardware object" in cause.text
    steps = "".join(f"step {n} loss 0.{n}\n" for n in range(30))
    assert not diagnose(tmp_path, framed(TARGET, steps)).causes
    assert not diagnose(tmp_path, framed(UNBOUND)).causes
    assert not diagnose(tmp_path, framed(f"WARNING: {TARGET}")).causes


def test_below_the_title_of_a_framed_text_stands_what_explains_it(tmp_path: Path) -> None:
    found = diagnose(tmp_path, framed(DISCONNECTED)).causes
    assert [(c.rule, c.evidence[0].line) for c in found] == [("peer-died-first", 3)]


@pytest.mark.parametrize(
    ("address", "cause"),
    [("172.17.0.1", "virtual-interface-chosen"), ("192.168.7.1", "peer-unreachable-on-interface")],
)
def test_open_mpi_gets_its_own_option_and_no_variable_of_nccl(
    tmp_path: Path, address: str, cause: str
) -> None:
    text = (
        "WARNING: Open MPI failed to TCP connect to a peer MPI process.  This\nshould not happen.\n\n"
        "Your Open MPI job may now hang or fail.\n\n  Local host: n1\n  PID:        23111\n"
        f"  Message:    connect() to {address}:1024 failed\n  Error:      No route to host (113)\n"
    )
    found = diagnose(tmp_path, framed(text)).causes[0]
    assert found.rule == cause
    assert found.fix is not None and "btl_tcp_if_include" in found.fix.text
    assert "NCCL_" not in found.fix.text
