"""What launchers wrap around a rank's own words is peeled off, and the numbers that they print are read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from ringup.logs.read import read_logs


class Case(NamedTuple):
    """A log in a launcher's words, and the first cause that it shows."""

    name: str
    rule: str
    says: str
    text: str


CASES = (
    Case('elastic summary', 'rank-raised-exception', 'rank 4', 'E1120 10:00:00.1 9 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 4411) of binary: /env/bin/python\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\nFailures:\n[1]:\n  time      : 2026-11-20_10:00:01\n  host      : n1\n  rank      : 5 (local_rank: 1)\n  exitcode  : 1 (pid: 4412)\n  error_file: <N/A>\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_10:00:00\n  host      : n1\n  rank      : 4 (local_rank: 0)\n  exitcode  : 1 (pid: 4411)\n  error_file: <N/A>'),
    Case('members of two sizes', 'world-size-disagrees', '2, 4', 'n0: Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2\nn1: Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/4'),
    Case('horovod gloo', 'rank-raised-exception', 'KeyError', '[1]<stderr>:Traceback (most recent call last):\n[1]<stderr>:  File "train.py", line 12, in <module>\n[1]<stderr>:    main()\n[1]<stderr>:KeyError: \'labels\'\nProcess 1 exit with status code 1.\nTerminating remaining workers after failure of Process 1.\nProcess 0 exit with status code 143.\nTraceback (most recent call last):\n  File "/usr/local/bin/horovodrun", line 8, in <module>\n    sys.exit(run_commandline())\n  File "/env/lib/python3.10/site-packages/horovod/runner/launch.py", line 837, in run_commandline\n    _run(args)\n  File "/env/lib/python3.10/site-packages/horovod/runner/gloo_run.py", line 312, in launch_gloo\n    .format(name=name, code=exit_code))\nRuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The first process to do so was:\nProcess name: 1\nExit code: 1'),
    Case('horovod only wrapper', 'rank-killed', '', 'Process 1 exit with status code 1.\nTerminating remaining workers after failure of Process 1.\nTraceback (most recent call last):\n  File "/env/lib/python3.10/site-packages/horovod/runner/gloo_run.py", line 312, in launch_gloo\n    .format(name=name, code=exit_code))\nRuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The first process to do so was:\nProcess name: 1\nExit code: 137'),
    Case('another container is ended', 'unnamed-failure', 'Horovod detected', '[2026-12-07 10:43:01] 087c0ee7 || RuntimeError: Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated. The first process to do so was:\n[2026-12-07 10:43:01] 087c0ee7 || Exit code: 1\n[2026-12-07 10:43:21] ef45fdce || INFO: rpc error: code = Unknown desc = Error: No such container: 4def\n[2026-12-07 10:43:22] ef45fdce || INFO: container failed with non-zero exit code:  (exit code 137)'),
    Case('ray task error', 'rank-raised-exception', 'bad shape', '2026-01-02 03:04:05,123\tERROR tune_controller.py:1331 -- Trial task failed for trial TorchTrainer_1\nTraceback (most recent call last):\n  File "/env/lib/python3.10/site-packages/ray/air/execution/_internal/event_manager.py", line 110, in resolve_future\n    result = ray.get(future)\nray.exceptions.RayTaskError(ValueError): ray::_Inner.train() (pid=4711, ip=10.0.0.3, actor_id=abc, repr=TorchTrainer)\n  File "/env/lib/python3.10/site-packages/ray/train/trainer.py", line 43, in __next__\n    next_results = self._run_with_error_handling(self._fetch_next_result)\n  File "/job/train.py", line 33, in train_func\n    raise ValueError("bad shape")\nValueError: bad shape'),
    Case('ray system', 'peer-died-first', '', 'ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Trainer\n\tactor_id: 32b0\n\tpid: 991\n\tip: 10.0.0.4\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors.'),
    Case('ray segv', 'rank-crashed', '', '(Trainer pid=991, ip=10.0.0.4) *** SIGSEGV received at time=1767322345 on cpu 3 ***\n(Trainer pid=991, ip=10.0.0.4) PC: @     0x7f10  (unknown)  (unknown)\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2.'),
    Case('ray gcs', 'port-in-use', '', '[2026-01-02 03:04:05,123 W 71 71] gcs_rpc_client.h:151: Failed to connect to GCS at address 10.0.0.1:6379 within 5 seconds.\nConnectionError: Ray is trying to start at 10.0.0.1:6379, but is already running at x'),
    Case('ray gcs2', 'store-unreachable', '', '2026-01-02 03:04:05,123 INFO worker.py:1540 -- Connecting to existing Ray cluster at address: 10.0.0.1:6379...\n[2026-01-02 03:04:10,130 E 71 71] gcs_client.cc:214: Failed to connect to GCS within 60 seconds. GCS may have been killed.'),
    Case('prte noexec', 'python-or-launcher-missing', 'pythn', '--------------------------------------------------------------------------\nprterun was unable to launch the specified application as it could not access\nor execute an executable:\n\nExecutable: pythn\nNode: n1\n\nwhile attempting to start process rank 2.\n--------------------------------------------------------------------------'),
    Case('prte died', 'rank-crashed', '', '--------------------------------------------------------------------------\nprterun noticed that process rank 3 with PID 4711 on node n2 exited on\nsignal 11 (Segmentation fault).\n--------------------------------------------------------------------------'),
    Case('prte exit', 'rank-raised-exception', 'rank 5', '--------------------------------------------------------------------------\nprterun detected that one or more processes exited with non-zero status,\nthus causing the job to be terminated. The first process to do so was:\n\n   Process name: [prterun-n0-1234@1,5]\n   Exit code:    3\n--------------------------------------------------------------------------'),
    Case('old socket timeout', 'store-unreachable', '', 'Traceback (most recent call last):\n  File "/job/t.py", line 8, in <module>\n    dist.init_process_group("nccl")\n  File "/env/lib/python3.8/site-packages/torch/distributed/distributed_c10d.py", line 595, in init_process_group\n    _store_based_barrier(rank, store, timeout)\nRuntimeError: Socket Timeout'),
    Case('custom exc', 'rank-raised-exception', 'TokenizerMismatch: vocabulary 3 != 4 at /job/data.py:5', 'Traceback (most recent call last):\n  File "/job/t.py", line 8, in <module>\n    load()\n  File "/job/data.py", line 5, in load\n    raise TokenizerMismatch(3, 4)\npkg.data.TokenizerMismatch: vocabulary 3 != 4\nE0101 10:00:00.000000 1 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 0 (pid: 41) of binary: /usr/bin/python'),
    Case('two collectives', 'collective-mismatch', 'rank 0: all_reduce; rank 1: broadcast', '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/job/t.py", line 8, in <module>\n[rank0]:     dist.all_reduce(x)\n[rank0]:   File "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper\n[rank0]:     return func(*args, **kwargs)\n[rank0]:   File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3045, in all_reduce\n[rank0]:     work.wait()\n[rank0]: RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete\n[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/t.py", line 11, in <module>\n[rank1]:     dist.broadcast(x, 0)\n[rank1]:   File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2880, in broadcast\n[rank1]:     work.wait()\n[rank1]: RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete'),
    Case('member differs', 'world-size-disagrees', '', 'n0: Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8\nn0: Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/8\nn1: Initializing distributed: GLOBAL_RANK: 4, MEMBER: 5/16\nn1: torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 6/8 clients joined.'),
    Case('member twice no slurm', 'node-rank-duplicate', '', 'n0: Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\nn0: Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/4\nn1: Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\nn1: Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/4\nn1: torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 2/4 clients joined.'),
    Case('rank too large', 'world-size-disagrees', 'rank 2 does not fit into 2', 'RuntimeError: [enforce fail at ../third_party/gloo/gloo/context.cc:27] rank < size. 2 vs 2'),
    Case('clients and why', 'store-unreachable', '', 'n0: torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\nn1: [W socket.cpp:663] [c10d] The client socket has failed to connect to [10.9.0.1]:29500 (errno: 113 - No route to host).\nn1: torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (10.9.0.1, 29500).'),
    Case('own refused file', 'stale-rendezvous-state', '', 'init_method="file:///nfs/run/init" rank 0 world_size 2\nRuntimeError: Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error; failed to connect: SO_ERROR: Connection refused, remote=[10.0.0.3]:5871'),
    Case('lightning', 'rank-raised-exception', "KeyError: 'y'", 'Traceback (most recent call last):\n  File "/job/t.py", line 8, in <module>\n    trainer.fit(m)\ntorch.multiprocessing.spawn.ProcessRaisedException:\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):\n  File "/env/lib/python3.10/site-packages/torch/multiprocessing/spawn.py", line 90, in _wrap\n    fn(i, *args)\n  File "/job/m.py", line 20, in training_step\n    x = batch["y"]\nKeyError: \'y\'\n'),
    Case('scalar alloc', 'host-memory-refused', '', 'n1: Traceback (most recent call last):\nn1:   File "/job/t.py", line 4, in <module>\nn1:     x = torch.empty(10**12)\nn1: RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can\'t allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)'),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_launchers_words_do_not_hide_what_its_rank_died_of(tmp_path: Path, case: Case) -> None:
    log = tmp_path / "job.log"
    log.write_text(case.text + "\n", encoding="utf-8")
    first = read_logs([str(log)]).causes[0]
    assert first.rule == case.rule
    assert case.says in first.text


@pytest.mark.parametrize(
    ("name", "ranks"), [("horovod only wrapper", (1,)), ("prte died", (3,)), ("prte exit", (5,))]
)
def test_the_rank_is_read_where_the_launcher_names_it(
    tmp_path: Path, name: str, ranks: tuple[int, ...]
) -> None:
    log = tmp_path / "job.log"
    log.write_text(next(case.text for case in CASES if case.name == name) + "\n", encoding="utf-8")
    assert read_logs([str(log)]).causes[0].ranks == ranks


@pytest.mark.parametrize(
    "text",
    [
        # Members that fit, a traceback that was caught, ranks in one collective.
        "n0: GLOBAL_RANK: 0, MEMBER: 1/2\nn1: GLOBAL_RANK: 1, MEMBER: 2/2\nn0: step 1 loss 2\nn0: step 2 loss 1",
        'step 1 loss 2.0\nTraceback (most recent call last):\n  File "/job/t.py", line 8, in f\n    g()\n'
        "data.SkippedSample: 3\nstep 2 loss 1.9\nstep 3 loss 1.8\nstep 4 loss 1.7",
        "[INFO] rank 3/8 ready\n[INFO] rank 7/8 ready\nstep 1 loss 2\nstep 2 loss 1",
    ],
)
def test_numbers_that_fit_and_exceptions_that_were_caught_are_no_error(tmp_path: Path, text: str) -> None:
    log = tmp_path / "job.log"
    log.write_text(text + "\n", encoding="utf-8")
    assert [c.rule for c in read_logs([str(log)]).causes if c.severity == "error"] == []


def test_a_test_that_is_started_again_after_it_failed_is_one_world(tmp_path: Path) -> None:
    begin = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor)\n#\n# Using devices\n"
    ranks = "#  Rank  0 Group  0 Pid 9 on n0 device  0 [0x0f] NVIDIA H100\n" * 2
    (tmp_path / "a.log").write_text(begin + ranks + "n0: Test failure common.cu:1\n.. n0 pid 9\n" + begin)
    assert "world-never-formed" not in [c.rule for c in read_logs([str(tmp_path)]).causes]


def test_a_script_that_may_not_be_read_is_not_said_to_be_missing(tmp_path: Path) -> None:
    words = "/env/bin/python: can't open file '/job/train.py': [Errno 13] Permission denied\n"
    (tmp_path / "a.log").write_text(words)
    found = read_logs([str(tmp_path)]).causes[0]
    assert found.text == "/job/train.py is there, but may not be read or executed"


def test_a_command_that_a_node_cannot_start_is_missing_there(tmp_path: Path) -> None:
    words = (
        "first failure: 127.0.0.2: cannot start numactl: No such file or directory, 1.4 s after the start\n"
    )
    (tmp_path / "ringup.log").write_text(words)
    found = read_logs([str(tmp_path)]).causes[0]
    assert (found.rule, found.text) == ("python-or-launcher-missing", "numactl does not exist")


def test_every_node_that_lacks_a_command_is_named(tmp_path: Path) -> None:
    said = "".join(f"n{n}: bash: torchrun: command not found\n" for n in (1, 2))
    (tmp_path / "job.log").write_text(said)
    (first, *_) = read_logs([str(tmp_path)]).causes
    assert first.text == "torchrun does not exist on n1, n2"
