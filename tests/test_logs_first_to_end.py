"""Who ended first, and what its own output says: two ranks on one GPU (torch 2.11, NCCL 2.28.9, JAX 0.11)."""

# ruff: noqa: E501

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringup.logs.appended import last_run
from ringup.logs.read import read_logs
from ringup.logs.rule import Cause

STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(5))
ASYNC = (
    "[rank0]:[E1127 13:25:38.072408512 ProcessGroupNCCL.cpp:612] [Rank 0] Collective WorkNCCL(SeqNum=10, "
    "OpType=ALLREDUCE, NumelIn=8320, NumelOut=8320, Timeout(ms)=600000) raised the following async exception: "
    "NCCL error: remote process exited or there was a network error, NCCL version 2.28.9\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "Last error:\n"
    "socketProgress: Connection closed by remote peer\n"
)
DUMPS = (
    "[rank0]:[E1127 13:25:38.076226378 ProcessGroupNCCL.cpp:2636] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
    "First PG on this rank to signal dumping.\n"
)
TABLE = """\
W1127 13:25:38.735000 6064 torch/distributed/elastic/multiprocessing/api.py:1012] Sending process 6197 closing signal SIGTERM
E1127 13:25:39.151000 6064 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: -11) local_rank: 1 (pid: 6198) of binary: /venv/bin/python3
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
======================================================
train.py FAILED
------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-27_13:25:39
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 6197)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 6197
------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_13:25:38
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -11 (pid: 6198)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 6198
======================================================
"""


def causes(folder: Path, record: dict[str, Any] | None = None, **logs: str) -> tuple[Cause, ...]:
    """Of the logs, by name; with a record they are those of `ringup run`."""
    for name, text in logs.items():
        (folder / f"{name.replace('_', '-')}.log").write_text(text, encoding="utf-8")
    if record:
        (folder / "run.json").write_text(json.dumps({"ringup": "0", "run": "r", "started": 1.0, **record}))
    return (*read_logs([str(folder)]).causes,)


def failed_first(how: str) -> str:
    return f"first failure: rank 1 on node1: {how}, 24 s after the start\n"


def test_a_launchers_record_is_not_of_the_rank_above_it(tmp_path: Path) -> None:
    (first, *_) = causes(tmp_path, all=STEPS + ASYNC + DUMPS + TABLE)
    assert (first.rule, first.confidence, first.ranks) == ("rank-crashed", "high", (1,))


@pytest.mark.parametrize("signal, number", [("SIGALRM", 14), ("SIGUSR1", 10), ("SIGTERM", 15)])
def test_a_signal_that_ends_a_rank_first_is_named(tmp_path: Path, signal: str, number: int) -> None:
    ended = failed_first(f"killed by {signal} ({number})")
    (first, *_) = causes(tmp_path, rank_00000_node0=STEPS + ASYNC, ringup=ended)
    assert (first.rule, first.confidence, first.ranks) == ("rank-killed", "medium", (1,))
    assert signal in first.text


def test_the_last_line_of_a_rank_that_ended_first_is_shown(tmp_path: Path) -> None:
    said = "ERROR: tokenizer.model not found under /data/llama, aborting"
    logs = {"rank_00000_node0": STEPS + ASYNC, "rank_00001_node1": f"{STEPS}{said}\n"}
    (first, *_) = causes(tmp_path, ringup=failed_first("exit code 1"), **logs)
    assert (first.rule, first.confidence, first.ranks) == ("rank-raised-exception", "medium", (1,))
    assert said in first.text and first.evidence[0].text == said and first.evidence[0].line == 6


_OF_JAX = """\
Traceback (most recent call last):
  File "/job/train.py", line 19, in <module>
    step(x).block_until_ready()
jax.errors.JaxRuntimeError: INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):
  File "/job/train.py", line 19, in <module>
  File "/v/site-packages/jax/_src/callback.py", line 71, in __call__
  File "/job/train.py", line 7, in log
ValueError: metric sink refuses 80.0 [executable_name='jit_step']
"""
_OF_DCP = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 47, in <module>
[rank0]:     dcp.load(state, checkpoint_id="step-2")
[rank0]:   File "/v/site-packages/torch/distributed/checkpoint/utils.py", line 221, in reduce_scatter
[rank0]:     raise result
[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([0, 1])
[rank0]: Traceback (most recent call last): (RANK 0)
[rank0]:   File "/v/site-packages/torch/distributed/checkpoint/default_planner.py", line 475, in plan
[rank0]:     raise RuntimeError(f"Missing key in checkpoint state_dict: {fqn}.")
[rank0]: RuntimeError: Missing key in checkpoint state_dict: model.head.weight.
"""


@pytest.mark.parametrize(
    "log, said",
    [(_OF_JAX, "ValueError: metric sink refuses 80.0"), (_OF_DCP, "RuntimeError: Missing key in checkpoint")],
)
def test_the_exception_inside_another_ones_message_is_shown(tmp_path: Path, log: str, said: str) -> None:
    (first, *_) = causes(tmp_path, job=log)
    assert first.rule == "rank-raised-exception"
    assert said in first.text and said in first.evidence[0].text


def waited(rank: int) -> str:
    where = "/p/gloo/transport/tcp/unbound_buffer.cc:78"
    return f"[rank{rank}]: RuntimeError: [{where}] Timed out waiting 5000ms for recv operation to complete\n"


@pytest.mark.parametrize("late, ranks", [((1,), (1,)), ((), ()), ((1, 2), ())])
def test_the_rank_that_did_not_wait_with_the_others_is_behind(
    tmp_path: Path, late: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    logs = {f"rank_0000{n}_node0": "" if n in late else STEPS + waited(n) for n in range(4)}
    end = f"first failure seen: rank 3 on node0: {waited(3)[9:].strip()} (exit code 1), 9 s after the start\n"
    (first, *_) = causes(tmp_path, ringup=end, **logs)
    assert (first.rule, first.confidence == "medium", first.ranks) == ("rank-fell-behind", bool(ranks), ranks)


_THREAD = """\
Exception in thread Thread-1 (prefetch):
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1073, in _bootstrap_inner
    self.run()
  File "/job/train.py", line 47, in prefetch
    ready.put(read(n))
OSError: [Errno 5] Input/output error: '/data/part-3'
"""
_HUNG = (
    "  rank 1: train.py:54: loss = model(ready.get()).square().mean()\n"
    "hung after 52 s: rank 1 (node1) is missing: the others wait for the GPU\n"
)


_OWN = _THREAD.replace("OSError: [Errno 5] Input/output error", "ValueError: a truncated file")


@pytest.mark.parametrize("thread", [_THREAD, _OWN])
@pytest.mark.parametrize("rank, name", [(1, "rank-raised-exception"), (0, "rank-fell-behind")])
def test_a_thread_of_the_missing_rank_that_ended_is_the_reason(
    tmp_path: Path, rank: int, name: str, thread: str
) -> None:
    steps = [STEPS, STEPS * (thread is _THREAD)]  # a rank need not print any
    logs = {f"rank_0000{n}_node{n}": "step 0 loss 2.9\n" + thread * (n == rank) + steps[n] for n in (0, 1)}
    verdict = {
        "rule": "rank-fell-behind",
        "text": "rank 1 (node1) is missing",
        "ranks": [1],
        "nodes": ["node1"],
    }
    (first, *_) = causes(tmp_path, {"outcome": "hung", "verdict": verdict}, ringup=_HUNG, **logs)
    assert first.rule == name
    if rank == 1:
        assert first.confidence == "medium" and first.ranks == (1,) and "train.py:47" in first.text


def gathered(call: str, error: str) -> str:
    return "".join(
        f"[rank0]: {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/job/train.py", line 46, in <module>',
            f"    dist.{call}(state, everyone)",
            f'  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3433, in {call}',
            "    input_tensor.resize_(max_object_size)",
            error,
        )
    )


_HUGE = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."


@pytest.mark.parametrize(
    "call, error, name",
    [
        ("gather_object", _HUGE, "collective-mismatch"),
        (
            "broadcast_object_list",
            "_pickle.UnpicklingError: invalid load key, '\\x00'.",
            "collective-mismatch",
        ),
        ("all_reduce", _HUGE, "rank-raised-exception"),
        ("gather_object", "ValueError: too many objects", "rank-raised-exception"),
    ],
)
def test_an_object_of_impossible_size_is_another_collectives_data(
    tmp_path: Path, call: str, error: str, name: str
) -> None:
    (first, *_) = causes(tmp_path, job=STEPS + gathered(call, error))
    assert first.rule == name
    assert first.confidence != "high" or name == "rank-raised-exception"


_STACK = (
    "[rank0]:[E1127 13:25:17.398480194 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: \n"
    "#0 all_gather_into_tensor from /v/site-packages/torch/distributed/distributed_c10d.py:4186\n"
    "#10 evaluation_loop from /v/site-packages/transformers/trainer.py:2879\n"
)
_DUMP = (
    "[rank0]:[E1127 13:25:18.070492600 ProcessGroupNCCL.cpp:1914] [PG ID 0 PG GUID 0(default_pg) Rank 0] "
    "Received a dump signal due to a collective timeout from this local rank and we will try our best to dump "
    "the debug info. Last enqueued NCCL work: 35, last completed NCCL work: 34.\n"
)


def test_a_rank_that_ended_with_0_while_another_waits_is_named_after_an_interrupt(tmp_path: Path) -> None:
    logs = {"rank_00000_node0": STEPS + ASYNC + _STACK + _DUMP, "rank_00001_node1": STEPS + "done\n"}
    ranks = [
        {"rank": n, "local_rank": 0, "node": f"node{n}", "pid": 9, "code": code}
        for n, code in ((0, -15), (1, 0))
    ]
    record = {"outcome": "interrupted", "ranks": ranks, "first_failure": None, "verdict": None}
    (first, *_) = causes(tmp_path, record, ringup="Interrupted after 90 s; nothing left behind.\n", **logs)
    assert (first.rule, first.confidence, first.ranks) == ("rank-fell-behind", "medium", (1,))


@pytest.mark.parametrize("size, name", [(1, "rank-fell-behind"), (8320, "uneven-batches-between-ranks")])
def test_a_call_of_one_number_is_no_uneven_data(tmp_path: Path, size: int, name: str) -> None:
    logs = {
        "rank_00000_node0": STEPS + ASYNC.replace("8320", str(size)),
        "rank_00001_node1": STEPS + "done\n",
    }
    failure = {"left_before": ["rank 1 on node1, 69 s before"]}
    record = {"outcome": "rank-failed", "first_failure": failure, "verdict": None}
    end = "first failure seen: rank 0 on node0: killed by SIGABRT (6), 91 s after the start\n"
    (first, *_) = causes(tmp_path, record, ringup=end, **logs)
    assert (first.rule, first.confidence, first.ranks) == (name, "medium", (1,))


def test_a_warning_about_a_conversion_is_no_long_work(tmp_path: Path) -> None:
    warned = (
        "/job/train.py:52: UserWarning: Converting a tensor with requires_grad=True to a scalar may lead\n"
    )
    rules = [one.rule for one in causes(tmp_path, rank0=warned + STEPS + ASYNC + _DUMP)]
    assert "rank-busy-while-others-wait" not in rules


def test_the_stack_of_the_rank_that_waits_is_no_long_work(tmp_path: Path) -> None:
    rules = [one.rule for one in causes(tmp_path, rank0=STEPS + ASYNC + _STACK + _DUMP)]
    assert "rank-busy-while-others-wait" not in rules


def test_logs_of_two_ranks_one_after_another_are_one_run(tmp_path: Path) -> None:
    banner = (
        "[W1127 13:24:54.224 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved\n"
    )
    log = tmp_path / "all.log"
    log.write_text(
        "".join(
            banner + STEPS + gathered("gather_object", _HUGE).replace("rank0", f"rank{n}") for n in (0, 1)
        )
    )
    assert last_run(str(log)).runs == 1


def test_killed_behind_a_progress_bar_is_seen(tmp_path: Path) -> None:
    bar = "".join(
        f"\r  9%|9         | {n}/11013 [2:00:{n % 60:02}<6:51:58,  2.52s/it]" for n in range(1190, 1199)
    )
    (first, *_) = causes(tmp_path, job=f"loading\n{bar}Killed\n")
    assert (first.rule, first.confidence) == ("rank-killed", "medium")


_HUNG_UP = """\
[2025-02-18 15:50:58,685] torch.distributed.elastic.multiprocessing.api: [WARNING] Sending process 47144 closing signal SIGTERM
Traceback (most recent call last):
  File "/v/dist-packages/torch/distributed/elastic/multiprocessing/api.py", line 62, in _terminate_process_handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 47068 got signal: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/usr/lib/python3.8/logging/__init__.py", line 1697, in isEnabledFor
    return self._cache[level]
KeyError: 30
"""


def test_an_exception_that_logging_handles_is_not_the_programs(tmp_path: Path) -> None:
    (first, *_) = causes(tmp_path, job=STEPS + _HUNG_UP)
    assert (first.rule, first.confidence) == ("terminal-closed", "high")
