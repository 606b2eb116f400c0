"""What launchers, frameworks and the operating system print when a job ends, read as they mean it."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import Diagnosis, read_logs

ENDS: list[tuple[str, str]] = [
    # Slurm before 21.08 counts the kills and says "may have been killed" in one sentence.
    ("oom-killer-ran", "/var/spool/slurmd/job00007/slurm_script: line 9:  411 Killed      python t.py\nslurmstepd: error: Detected 2 oom-kill event(s) in step 7.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler."),
    ("job-cancelled", "slurmstepd: error: *** STEP 77.0 ON n4 CANCELLED AT 2024-02-03T04:05:06 DUE TO PREEMPTION ***\nslurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\nsrun: error: n4: tasks 0-1: Exited with exit code 1"),
    # Hydra prints the wait status: 9 is SIGKILL, 135 SIGBUS with a core.
    ("rank-killed", "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 412 RUNNING AT n1\n=   EXIT CODE: 9\n=   CLEANING UP REMAINING PROCESSES"),
    ("rank-killed", "=   RANK 3 PID 412 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)"),
    ("rank-crashed", "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)"),
    # Whoever waited in vain lived; its exit closes the others' connections.
    ("rank-fell-behind", "[rank0]: RuntimeError: [/p/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 9000ms for recv operation to complete\n[rank1]: RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4411."),
    ("ddp-unused-parameters", "[rank0]: RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss returned by training_step."),
    # torchrun --nproc-per-node gpu
    ("no-gpu-visible", 'Traceback (most recent call last):\n  File "/env/torch/distributed/run.py", line 748, in determine_local_world_size\n    return int(nproc_per_node)\nValueError: invalid literal for int() with base 10: \'gpu\'\n\nTraceback (most recent call last):\n  File "/env/torch/distributed/run.py", line 755, in determine_local_world_size\n    raise ValueError("Cuda is not available.") from e\nValueError: Cuda is not available.'),
    ("launcher-argument-misread", "usage: Accelerate launch command [-h]\nAccelerate launch command: error: unrecognized arguments: --num_procs"),
    ("job-step-not-launched", "[2026-01-02T10:10:06.9] [3.0] error: pyxis: couldn't mkdir /run/pyxis/7: No such file or directory\n[2026-01-02T10:10:06.9] [3.0] error: Plugin stack initialization failed."),
    ("job-step-not-launched", 'error: pyxis: error: a container with name "pyxis_a" does not exist, and --container-image is not set'),
    ("node-lost", "ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead or unavailable. Node IP: 10.0.0.7, node ID: e5."),
    ("rank-raised-exception", "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[7,1],1]\n  Errorcode: 5"),
    # Ray lists causes; its trainer carries the rank's exception; its own actors have threads.
    ("peer-died-first", "(raylet) A worker died or was killed. Lease ID: " + 56 * "5" + " Worker ID: " + 56 * "a" + " Node ID: " + 56 * "b" + ". The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM killer due to high memory usage, (2) ray stop --force was called, or (3) the worker crashed unexpectedly due to SIGSEGV or another unexpected error. If the process was killed by the kernel OOM killer, consider " + 40 * "isolating " + "it."),
    ("launcher-argument-misread", "An unrecognized option was included on the mpirun command line:\n\n  Option: --oversub"),
    ("node-lost", "NodeName=n1 CoresPerSocket=1\n   RealMemory=1 AllocMem=0 Sockets=2 Boards=1\n   State=DOWN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A"),
    ("container-not-started", "error running hook: exit status 1, stderr: nvidia-container-cli.real: initialization error: driver error: failed to process request"),
    ("port-privileged", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:98 (errno: 13 - Permission denied)."),
    ("peer-died-first", "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker ID: 7\n(TrainController pid=3) Error: Training failed due to worker errors:\n(TrainController pid=3) [Rank 1 Error Snippet]:\n(TrainController pid=3) A worker health check failed.\n(TrainController pid=3) Worker info: Worker(\n(RayTrainWorker pid=8) Error in training function:\n(RayTrainWorker pid=8) Traceback (most recent call last):"),
    # A mapped page of /dev/shm that could not be had, in the words of UCX's handler.
    ("shm-too-small", "[n1:77   :0:91] Caught signal 7 (Bus error: nonexistent physical address)\n 2 0x00758 ncclGroupEnd()  ???:0\nERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -7) local_rank: 0 (pid: 77) of binary: /usr/bin/python"),
    ("open-files-too-low", "RuntimeError: unable to open shared memory object </torch_51_88> in read-write mode\nOSError: [Errno 24] Too many open files"),
    ("rank-raised-exception", "RuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly"),
    ("rank-killed", "RuntimeError: DataLoader worker (pid 71) is killed by signal: Killed. \nRuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly"),
    ("rank-raised-exception", "[rank1]: \tsize mismatch for head.weight: copying a param with shape torch.Size([8]) from checkpoint, the shape in current model is torch.Size([0])."),
    # "not supported" holds the name of Open MPI's daemon.
    ("rank-raised-exception", "[rank5]: app.StateException: the checkpoint was made by 8 ranks, a change to 16 is not supported."),
    ("ssh-not-passwordless", "Error: failed to run torchrun --nnodes=2 t.py on n2, is localhost: False, exception: not a valid RSA private key file"),
    ("peer-died-first", "[1,1]<stderr>:RuntimeError: Horovod has been shut down. This was caused by an exception on one of the ranks."),
    ("device-ordinal-not-visible", "lightning.MisconfigurationException: \n   You requested GPUs: [0, 1]\n   But your machine only has: [0]"),
    ("ddp-unused-parameters", "Parameter indices which did not receive grad for rank 1: 12 13\n In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG"),
    ("node-rank-duplicate", "(env) me@n0:~# FORCE_TORCHRUN=1 NNODES=2 RANK=0 MASTER_ADDR=n0 \\\n> llamafactory-cli train a.yaml\nMulti-node training enabled: num nodes: 2, node rank: 0\n(env) me@n1:~# FORCE_TORCHRUN=1 NNODES=2 RANK=1 MASTER_ADDR=n0 \\\n> llamafactory-cli train a.yaml\nMulti-node training enabled: num nodes: 2, node rank: 0"),
    # A wait at the store while another rank is seen at work is no rank that never came.
    ("rank-busy-while-others-wait", "Tokenizing (num_proc=8):  90%|#########  | 900/1000 [29:58<03:05, 9.1 examples/s][rank1]:[W516 14:34:56.8 socket.cpp:464] [c10d] waitForInput: poll for socket SocketImpl(fd=7) returned 0, likely a timeout\n[rank1]: Traceback (most recent call last):"),
    ("peers-never-joined", "[W228 18:45:15.7 socket.cpp:462] [c10d] waitForInput: poll for socket SocketImpl(fd=1, addr=[n1]:38674, remote=[n0]:23456) returned 0, likely a timeout"),
    ("rank-fell-behind", "[rank4]:[E1129 11:56:57.2 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 4] Exception (either an error or timeout) detected by watchdog at work: 96, last enqueued NCCL work: 96, last completed NCCL work: 95.\n[rank5]:[E1129 11:56:57.2 ProcessGroupNCCL.cpp:616] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600024 milliseconds before timing out."),
    ("rank-fell-behind", "[rank5]:[E723 01:58:45.6 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 5] Received a dump signal due to a collective timeout from  rank 2 and we will try our best to dump the debug info. Last enqueued NCCL work: 136, last completed NCCL work: 136."),
    # multiprocessing's locks are files in /dev/shm.
    ("shm-too-small", '  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__\n    sl = self._semlock = _multiprocessing.SemLock(\nOSError: [Errno 28] No space left on device'),
    ("disk-full", 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    torch.save(m, "m.pt")\nOSError: [Errno 28] No space left on device'),
    ("rank-busy-while-others-wait", "Map (num_proc=9):  70%|#######   | 700/1000 [6:39:53<4:31:33, 17.0 examples/s][E ProcessGroupGloo.cpp:138] Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank."),
    ("job-cancelled", "=>> PBS: job killed: walltime 3617 exceeded limit 3600"),
    ("job-cancelled", "Aborted by PBS Server\nJob exceeded its walltime limit. Job was aborted\nExit_status=-11"),
    ("oom-killer-ran", "=>> PBS: job killed: vmem 9663676416b exceeded limit 8589934592b"),
    ("oom-killer-ran", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137."),
    # Torch up to 1.9 writes the version behind NCCL's word.
    ("nccl-error-without-detail", "Traceback (most recent call last):\nRuntimeError: NCCL error in: /t/ProcessGroupNCCL.cpp:911, invalid usage, NCCL version 2.7.8"),
    ("device-ordinal-not-visible", "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: no supported devices found for platform CUDA"),
    # The launchers of Composer and Lightning; the latter ends all others, then itself.
    ("rank-crashed", "ERROR:composer.cli.launcher:Rank 3 crashed with exit code -7."),
    ("rank-crashed", "ERROR:composer.cli.launcher:Global rank 0 (PID 208) exited with code -11"),
    ("rank-raised-exception", "ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1."),
    ("rank-raised-exception", "[rank: 0] Child process with PID 44 terminated with code 1. Forcefully terminating all other processes to avoid zombies\nKilled"),
    ("rank-crashed", "[rank: 0] Child process with PID 44 terminated with code -11. Forcefully terminating all other processes to avoid zombies\n[rank: 0] Received SIGTERM: 15"),
    # Time limits and preemption, as the program itself hears of them, and as Slurm keeps them.
    ("job-cancelled", "[rank: 0] Received SIGTERM: 15\nBypassing SIGTERM: 15"),
    ("job-cancelled", "Handling auto-requeue signal: 10"),
    ("job-cancelled", "submitit WARNING (2023-07-12 04:18:45,881) - Caught signal SIGHUP on n3: this job is preempted."),
    ("job-cancelled", "submitit WARNING (2023-07-12 04:18:45,881) - Caught signal SIGUSR2 on n3: this job is timed-out."),
    ("job-cancelled", "submitit.core.utils.UncompletedJobError: Job 12_0 (task: 0) with path /w/12_0_result.pkl\nhas not produced any output (state: TIMEOUT)"),
    ("job-cancelled", "123               train        gpu        abc         64    TIMEOUT      0:0 "),
    ("job-cancelled", " 12%|#1        | 300/2500 [59:51<7:00:12,  6.01s/it]\nslurmstepd: error: *** JOB 9 ON n7 CANCELLED AT 2025-01-10T15:27:25 DUE TO TIME LIMIT ***"),
    ("hostname-unresolvable-from-peer", "ssh: Could not resolve hostname n9: Name or service not known\nsubprocess.CalledProcessError: Command '['ssh n9 hostname -I']' returned non-zero exit status 255."),
    # The banner of a container, and an exception whose words fill a line of their own.
    ("driver-too-old-for-cuda", "ERROR: This container was built for NVIDIA Driver Release 450.36 or later, but\n       version 440.100 was detected and compatibility mode is UNAVAILABLE."),
    ("rank-raised-exception", "RuntimeError: " + 40 * "a long word " + "at the end"),
    # What Kubernetes takes away, and what a program of MPI says when it gives up.
    ("oom-killer-ran", "4m11s       Warning   Evicted               pod/train-1    The node was low on resource: memory. Container t was using 5053216Ki, which exceeds its request of 0."),
    ("disk-full", "  message: 'The node was low on resource: ephemeral-storage. Container t was using 73712Ki'\n  reason: Evicted"),
    ("rank-raised-exception", "MPI_ABORT was invoked on rank 8 in communicator MPI_COMM_WORLD\nwith errorcode 1."),
    ("rank-raised-exception", "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 3"),
    ("rank-raised-exception", "mpirun detected that one or more processes exited with non-zero status\n  Process name: [[51,1],2]\n  Exit code:    1"),
    # A wait that ran out says that somebody did not come; what fails after the watchdog's abort says nothing.
    ("rank-fell-behind", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
    ("rank-fell-behind", "RuntimeError: [/p/gloo/gloo/transport/tcp/buffer.cc:76] Read timeout [127.0.0.1]:32444"),
    ("rank-fell-behind", "  what():  [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1804582 milliseconds before timing out.\nRuntimeError: NCCL error in: /t/NCCLUtils.hpp:47, unhandled cuda error, NCCL version 2.7.8"),
    # A remote shell speaks its user's language.
    ("environment-breaks-remote-shell", "n2: bash: -c: 行 0: 未预期的符号“(”附近有语法错误"),
    ("python-or-launcher-missing", "n2: bash: torchrun: 未找到命令"),
    # An exception that speaks of what other causes are about, and is none of them.
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in <module>\n    import einops\nModuleNotFoundError: No module named \'einops\'\nERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: /usr/bin/python'),
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in load\nrequests.exceptions.ConnectionError: HTTPSConnectionPool(host=\'huggingface.co\', port=443): Max retries exceeded (Caused by NameResolutionError("Failed to resolve: Temporary failure in name resolution"))'),
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in load\nhttpx2.ConnectError: [Errno -2] Name or service not known'),
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in load\nRuntimeError: unable to mmap 4096 bytes from file </data/w.bin>: Cannot allocate memory (12)'),
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in step\ntorch._dynamo.exc.Unsupported: a call of print'),
    # The last frames of a traceback whose head was cut off, behind a platform's label.
    ("rank-raised-exception", '[stderr]  File "/env/lib/python3.10/site-packages/a/b.py", line 1, in <module>\n[stderr]    import einops\n[stderr]ModuleNotFoundError: No module named \'einops\''),
    ("rank-raised-exception", '1779264164797\t2026-05-20T08:02:44.797Z\t  File "/w/t.py", line 1300, in step\n\n1779264164797\t2026-05-20T08:02:44.797Z\t    run(batch)\n\n1779264164797\t2026-05-20T08:02:44.797Z\tRuntimeError: The size of tensor a (4) must match the size of tensor b (8)'),
    # shm_open needs a descriptor, not space; torch before 1.10 writes no errno.
    ("open-files-too-low", "RuntimeError: unable to open shared memory object </torch_51_88> in read-write mode"),
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in load\nRuntimeError: unable to open shared memory object </torch_51_88> in read-write mode: File exists (17)'),
    # Ray lists what may have ended a worker, in ever other words; an engine's end wraps its worker's.
    ("peer-died-first", "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: End of file. Some common causes include: (1) the process was killed by the OOM killer, (2) ray stop was called, or (3) the worker crashed unexpectedly due to SIGSEGV."),
    ("nccl-error-without-detail", "(W pid=4) ERROR 07-23 19:34:51 [a.py:487] RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\nERROR 07-23 19:34:55 [core.py:586] EngineCore failed to start.\nERROR 07-23 19:34:55 [core.py:586] Exception: WorkerProc initialization failed due to an exception in a background process."),
    ("rank-fell-behind", "(W pid=9) [rank3]:[E1023 02:44:30.9 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=26, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1200000) ran for 1200007 milliseconds before timing out.\n(raylet) A worker died or was killed while executing a task by an unexpected system error."),
    # A bare exception counts too, and says what its words say.
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in load\nException: no shard for this rank'),
    ("peers-never-joined", "Exception: Timed out waiting for tasks to start. Please check connectivity between servers. You may need to increase the --start-timeout parameter if you have too many servers."),
    ("peer-unreachable-on-interface", "A process or daemon was unable to complete a TCP connection\nto another process:\n  Local host:    n1\n  Remote host:   n2\nThis is usually caused by a firewall on the remote host."),
    # An abort's own words, where nothing else tells more; a full /dev/shm named by its path; srun's count.
    ("rank-crashed", "terminate called after throwing an instance of 'std::logic_error'\n  what():  basic_string: construction from null is not valid\nAborted (core dumped)"),
    ("rank-crashed", "python: pthread_mutex_lock.c:79: Assertion `mutex->__data.__owner == 0' failed.\nt.sh: line 4: 88 Aborted                 (core dumped) python t.py"),
    ("shm-too-small", "OSError: [Errno 28] No space left on device: '/dev/shm/pym-88-x'"),
    ("not-enough-slots", "srun: error: Unable to create step for job 12: More processors requested than permitted"),
    ("rank-raised-exception", 'Traceback (most recent call last):\n  File "t.py", line 4, in load\nEOFError: Ran out of input'),
    ("rank-crashed", "ERROR: Unexpected segmentation fault encountered in worker.\nRuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly"),
    ("python-or-launcher-missing", "RuntimeError: launcher 'pdsh' not installed."),
    # A bar of preparation at torch's limit, cut off by a traceback.
    ("rank-busy-while-others-wait", 'Running tokenizer on dataset: 47%|####7     | 1695000/3634744 [30:09<33:25, 967.30 examples/s]Traceback (most recent call last):\nFile "/job/sft.py", line 66, in run_sft'),
]  # fmt: skip


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    log = tmp_path / "job.log"
    log.write_text(text + "\n", encoding="utf-8")
    return read_logs([str(log)])


@pytest.mark.parametrize(("rule", "text"), ENDS, ids=[f"{n}-{rule}" for n, (rule, _) in enumerate(ENDS)])
def test_the_first_cause_is_what_ended_the_job(tmp_path: Path, rule: str, text: str) -> None:
    assert [c.rule for c in diagnose(tmp_path, text).causes][:1] == [rule]


STORE_GONE = "\n".join(
    (
        "[rank3]:[W1014 10:02:11.902118811 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=61,"
        " addr=[n2]:40242, remote=[n1]:29600): Connection reset by peer",
        "Exception raised from recvBytes at /p/torch/csrc/distributed/c10d/Utils.hpp:679 (most recent call first):",
        "[rank3]:[W1014 10:02:11.903118811 ProcessGroupNCCL.cpp:1662] [PG ID 0 PG GUID 0(default_pg) Rank 3] "
        'Failed to check the "should dump" flag on TCPStore, (maybe TCPStore server has shut down too early), '
        "with error: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown?",
    )
)
"""What torch's heartbeat threads print once rank 0, which holds the store, has gone."""


@pytest.mark.parametrize(
    "before",
    [
        "step 1 loss 2.0\nstep 2 loss 1.9\nstep 3 loss 1.8",
        "PASS\n[rank0]:[W1014 10:02:11.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() "
        "was not called before program exit, which can leak resources.",
    ],
    ids=["trained", "passed"],
)
def test_rank_0_may_be_the_first_to_end_a_run_that_did_its_work(tmp_path: Path, before: str) -> None:
    assert [c for c in diagnose(tmp_path, f"{before}\n{STORE_GONE}").causes if c.severity == "error"] == []


@pytest.mark.parametrize(
    "line",
    [
        "I0101 10:00:00.0 7 torch/distributed/elastic/multiprocessing/api.py:547] Registered signal handler for SIGHUP",
        "handlers for SIGTERM, SIGINT, SIGHUP are there",
        "I0101 10:00:00.0 7 elastic/launcher/api.py:215]   signals_to_handle : SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "Registered signal handler for SIGINT",
        "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0",
        "oom_kill_disable 0",
        "docker run --gpus all --oom-kill-disable image",
        "node n3: uncorrectable ECC errors: 0",
        "preflight: Uncorrectable ECC error count: 0",
        "checking passwordless ssh: ok",
        "coordinator: heartbeat timeout set to 600 s",
        "Missing ranks: []",
        "Stalled ranks: none",
        "The port 8888 is already in use, trying another port.",
    ],
)
def test_what_is_counted_as_none_or_only_prepared_for_is_no_failure(tmp_path: Path, line: str) -> None:
    assert [c.rule for c in diagnose(tmp_path, line).causes] == []


@pytest.mark.parametrize(
    "line",
    ["Received SIGHUP, shutting down", "launch.sh: line 3:  811 Hangup                  torchrun t.py"],
)
def test_a_hangup_that_came_is_still_told_of(tmp_path: Path, line: str) -> None:
    assert [c.rule for c in diagnose(tmp_path, line).causes][:1] == ["terminal-closed"]


def test_a_store_that_went_while_a_rank_failed_is_still_told_of(tmp_path: Path) -> None:
    found = diagnose(tmp_path, STORE_GONE).causes
    assert [c.rule for c in found] == ["peer-died-first"]


def test_an_uncaught_exception_is_an_error_though_its_traceback_is_cut_off(tmp_path: Path) -> None:
    hooked = diagnose(tmp_path, "[rank5]: KeyError: 'loss'").causes[0]
    last = diagnose(tmp_path, "KeyError: 'loss'").causes[0]
    above = diagnose(tmp_path, "KeyError: 'loss'\n" + 9 * "loading the next file\n").causes[0]
    assert (hooked.severity, last.severity, above.severity) == ("error", "error", "warning")


def test_a_rank_number_where_the_launcher_wants_another_is_doubted_until_it_says_so(tmp_path: Path) -> None:
    command = "$ FORCE_TORCHRUN=1 NNODES=2 RANK=1 llamafactory-cli train a.yaml\n"
    said = "Multi-node training enabled: num nodes: 2, node rank: 0\n"
    assert [diagnose(tmp_path, t).causes[0].confidence for t in (command, command + 2 * said)] == [
        "low",
        "high",
    ]


def test_a_checkpoint_that_fits_in_part_is_no_failure_of_a_job_that_trains(tmp_path: Path) -> None:
    said = "size mismatch for head.weight: copying a param with shape torch.Size([8]) from checkpoint"
    trained = "\nstep 1 loss: 2.1\nstep 2 loss: 2.0\nstep 3 loss: 1.9"
    assert [c for c in diagnose(tmp_path, said + trained).causes if c.severity == "error"] == []


def test_a_bar_of_a_run_that_did_not_end_says_nothing(tmp_path: Path) -> None:
    assert not diagnose(
        tmp_path, "Epoch 3:  41%|####      | 410/1000 [10:11<14:40,  1.49s/it, loss=2.1]"
    ).causes
    assert not diagnose(tmp_path, " 41%|####      | 410/1000 [29:59<44:40,  4.49s/it]").causes


def test_a_bar_near_a_limit_is_no_hang_of_a_job_that_somebody_cancelled(tmp_path: Path) -> None:
    bar = " 34%|###4      | 18/53 [29:22<56:48, 97.38s/it]"
    said = "slurmstepd: error: *** JOB 9 ON n7 CANCELLED AT 2025-01-10T15:27:25 ***"
    assert [c.rule for c in diagnose(tmp_path, f"{bar}{said}").causes] == ["job-cancelled"]


def test_a_time_limit_of_the_scheduler_is_told(tmp_path: Path) -> None:
    said = "slurmstepd: error: *** JOB 9 ON n7 CANCELLED AT 2025-01-10T15:27:25 DUE TO TIME LIMIT ***"
    (found,) = diagnose(tmp_path, said).causes
    assert found.severity == "warning" and "time limit" in found.text


def test_a_process_of_jax_that_is_not_registered_may_also_wait_for_others(tmp_path: Path) -> None:
    title = "F1129 10:07:49.1 33 client.h:80] Terminating process because the JAX distributed service detected fatal errors. "
    text = f"{title}This most likely indicates that another task died. absl::Status: DEADLINE_EXCEEDED: Deadline Exceeded\n\n"
    (cause,) = diagnose(tmp_path, text + "RPC: /xla.coordination.CoordinationService/RegisterTask\n").causes
    assert (cause.rule, cause.confidence) == ("store-unreachable", "low")
    assert "or fewer processes came than num_processes says" in cause.text


def test_another_service_may_answer_in_the_stores_place(tmp_path: Path) -> None:
    where = "[c10d] TCP client failed to connect/validate to host 10.1.1.1:29823 -"
    why = "Ping failed, invalid value returned from server. Expected: 7, Got: 9\n"
    text = 7 * f"[W1129 10:04:07.6 TCPStore.cpp:340] {where} retrying (try=0): {why}"
    text += f"[E1129 10:04:16.1 TCPStore.cpp:328] {where} timed out (try=6): {why}"
    cause = diagnose(tmp_path, f"{text}torch.distributed.DistNetworkError: {why}").causes[0]
    assert (cause.rule, cause.confidence) == ("store-unreachable", "medium")
    assert "10.1.1.1:29823: a proxy or another service answers there" in cause.text
