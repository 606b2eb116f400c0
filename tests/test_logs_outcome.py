"""How a run went on after a line, and who ended it."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs import outcome
from ringup.logs.patterns import TAGS
from ringup.logs.read import Diagnosis, read_logs
from ringup.logs.telling import unfinished
from tests.logs_scares import SCARES

SETUP = "n1:11:11 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
INIT = "".join(
    f"n{rank + 1}:{11 + rank}:30 [0] NCCL INFO ncclCommInitRank comm 0x{rank + 1} rank {rank} nranks 2 "
    f"cudaDev 0 nvmlDev 0 busId 1000 commId 0x77 - Init {state}\n"
    for state in ("START", "COMPLETE")
    for rank in (0, 1)
)
BAR = "Training: {0:>3}%|{1:<10}| {0}/100 [{0}:00<01:39,  1.00it/s]"
WORK = {
    "steps": "".join(f"step {n} loss 2.{n}\n" for n in range(2, 9)),
    "records": "".join(f"{{'loss': 2.{n}, 'grad_norm': 1.{n}, 'epoch': 0.0{n}}}\n" for n in range(2, 9)),
    "one bar": "\r".join(BAR.format(n, "#" * (n // 10)) for n in range(10, 101, 10)) + "\n",
    "bars": "".join(BAR.format(n, "#" * (n // 10)) + "\n" for n in range(10, 90, 10)),
    "finished": "step 1 loss 3.0\n`Trainer.fit` stopped: `max_epochs=1` reached.\n",
    "results": "".join(
        f"  {size}  {size // 4}  float  sum  -1  {size}.0  1.10  1.10  0  {size}.1  1.10  1.10  0\n"
        for size in (1024, 2048, 4096)
    ),
}  # fmt: skip
FAILED = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/job/train.py", line 9, in <module>\n[rank1]:     step(batch)\n'
    "[rank1]: KeyError: 'labels'\n"
)


def diagnose(tmp_path: Path, **logs: str) -> Diagnosis:
    for name, text in logs.items():
        (tmp_path / f"{name}.log").write_text(text, encoding="utf-8")
    return read_logs([str(tmp_path)])


def errors(diagnosis: Diagnosis) -> list[str]:
    return [c.rule for c in diagnosis.causes if c.severity == "error"]


def sound(place: str, line: str, work: str) -> str:
    if place == "setting up":
        return SETUP + line + "\n" + INIT + work
    return SETUP + INIT + (line + "\n" + work if place == "running" else work + line + "\n")


@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("place, line", SCARES, ids=range(len(SCARES)))
def test_what_a_run_went_on_after_is_no_error(tmp_path: Path, place: str, line: str, work: str) -> None:
    assert errors(diagnose(tmp_path, job=sound(place, line, WORK[work]))) == []


@pytest.mark.parametrize("place, line", SCARES, ids=range(len(SCARES)))
def test_a_scare_is_not_blamed_for_a_later_failure(tmp_path: Path, place: str, line: str) -> None:
    if place != "ending":
        diagnosis = diagnose(tmp_path, job=sound(place, line, WORK["steps"]) + FAILED)
        assert [diagnosis.causes[0].rule, *errors(diagnosis)[:1]] == ["rank-raised-exception"] * 2


REFUSED = "n1:11:30 [0] misc/socket.cc:484 NCCL WARN Connect to 10.0.0.2<50321> failed : No route to host\n"
STEPS = WORK["steps"]


@pytest.mark.parametrize(
    "text",
    [
        STEPS + REFUSED,
        REFUSED,
        REFUSED + "step 2 loss 2.1\n",
        "1: " + REFUSED + "".join("0: " + step for step in STEPS.splitlines(True)),
        REFUSED + STEPS + "[rank1]: ncclRemoteError: remote process exited or there was a network error\n",
    ],
    ids=["steps before it", "no steps", "one step", "another rank's lines put behind", "broke again"],
)  # fmt: skip
def test_an_error_without_work_after_it_stays_an_error(tmp_path: Path, text: str) -> None:
    event = diagnose(tmp_path, job=SETUP + text).story.all("nccl-connect")[0]
    gone_on = "broke again" in text or text.startswith(REFUSED + STEPS)
    story = diagnose(tmp_path, job=SETUP + text).story
    assert story.outcome.overcome(event) is gone_on


KEY_ERROR = "2026-11-20 10:00:10 KeyError: 'labels'\n"


@pytest.mark.parametrize("minute, overcome", [(1, True), (0, False)], ids=["after it", "before it"])
def test_the_clocks_order_lines_of_different_files(tmp_path: Path, minute: int, overcome: bool) -> None:
    steps = "".join(f"2026-11-20 10:0{minute}:0{n} step {n} loss 2.1\n" for n in (1, 2, 8))
    story = diagnose(tmp_path, rank0=steps, rank1=KEY_ERROR).story
    assert story.outcome.overcome(story.all("exception")[0]) is overcome


def test_two_steps_of_other_ranks_do_not_show_that_a_rank_lives(tmp_path: Path) -> None:
    text = "[rank1]: KeyError: 'labels'\n[rank0]: step 7 loss 2.1\n[rank0]: step 8 loss 2.0\n"
    story = diagnose(tmp_path, job=text).story
    assert not story.outcome.overcome(story.all("exception")[0])
    text += "[rank0]: step 12 loss 2.0\n"
    story = diagnose(tmp_path, job=text).story
    assert story.outcome.overcome(story.all("exception")[0])


def test_a_restart_overcomes_the_end_of_ranks(tmp_path: Path) -> None:
    ended = "".join(
        f"failed (exitcode: -9) local_rank: {rank} (pid: 7{rank}) of binary: /usr/bin/python\n"
        for rank in (0, 1)
    )
    again = "[default] Worker group FAILED. 2/3 attempts left; will restart worker group\n"
    gave_up = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    assert errors(diagnose(tmp_path, job=STEPS + ended + gave_up + STEPS)) == ["rank-killed"]
    assert errors(diagnose(tmp_path, job=STEPS + FAILED + ended + STEPS)) == []
    assert errors(diagnose(tmp_path, job=STEPS + ended + again + STEPS)) == []
    others = "".join(f"[rank0]: step {n} loss 2.{n}\n" for n in (1, 2))
    assert errors(diagnose(tmp_path, job=FAILED + others)) == ["rank-raised-exception"]
    assert errors(diagnose(tmp_path, job=FAILED + again + others)) == []
    assert errors(diagnose(tmp_path, job=FAILED + again + others + FAILED)) == ["rank-raised-exception"]


OF_AN_ACTOR = """\
(Cleaner pid=22) Exception in thread Monitor:
(Cleaner pid=22) Traceback (most recent call last):
(Cleaner pid=22)   File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
(Cleaner pid=22)     self.run()
(Cleaner pid=22) ConnectionError: Found two Ray instances
(Controller pid=7) [2026-01-02 10:00:00,7 E 7 9] core_worker.cc:2465: Actor 'Watcher' with ID 'a01f' has arguments
"""
OF_A_WORKER = """\
(RayTrainWorker pid=31) Traceback (most recent call last):
(RayTrainWorker pid=31)   File "/job/t.py", line 9, in loop
(RayTrainWorker pid=31) ValueError: the vocabulary does not fit
"""
OF_THE_TRAINER = """\
Traceback (most recent call last):
  File "/job/t.py", line 18, in <module>
    trainer.fit()
ray.train.WorkerGroupError: Training failed due to worker errors:
"""


def test_a_thread_of_an_actor_of_ray_is_no_rank(tmp_path: Path) -> None:
    reports = "".join(
        f"(RayTrainWorker pid=31) Reporting training result {n}: TrainingReport(metrics={{}})\n"
        for n in (1, 2)
    )
    done = "Result(metrics=None, checkpoint=None, error=None, path='/out/a')\n"
    assert diagnose(tmp_path, job=OF_AN_ACTOR + reports + done).healthy
    first = diagnose(tmp_path, job=OF_AN_ACTOR + OF_A_WORKER + OF_THE_TRAINER).causes[0]
    assert (first.rule, first.confidence) == ("rank-raised-exception", "medium")
    assert "raised ValueError: the vocabulary does not fit at /job/t.py:9" in first.text


def test_an_end_of_a_process_that_has_ended_is_no_failure(tmp_path: Path) -> None:
    assert diagnose(tmp_path, job=STEPS + "bash: line 5: kill: (299) - No such process\n").healthy


TAKEN = "slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***\n"


def test_what_follows_the_end_from_outside_is_no_failure(tmp_path: Path) -> None:
    after = (
        "[rank1]: RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4411\n"
    )
    killed = "srun: error: n1: tasks 0-1: Killed\n"
    diagnosis = diagnose(tmp_path, job=STEPS + TAKEN + after + killed)
    assert errors(diagnosis) == []
    assert diagnosis.story.outcome.limit == "time limit"
    assert errors(diagnose(tmp_path, job=STEPS + after + killed + TAKEN)) != []


def test_every_tag_that_is_asked_for_exists() -> None:
    assert set(TAGS) >= outcome.ESTABLISHING | outcome.RETRACTABLE


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.15 GiB, 1.00 GiB is free.\n"
TRACED = 'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n    main()\n'
TRACED += '  File "/job/train.py", line 4, in main\n    step(batch)\n'
PODS = "NAME        READY   STATUS      RESTARTS   AGE\nllama-0-q2xk7  0/1   Error     0   12m\nllama-1-b7dzz  1/1   Running   0   12m\n"
TRIED = "WARNING retrying the connection to the store\n"


@pytest.mark.parametrize(
    "text, rule",
    {
        "a warning above an uncaught exception": (STEPS + TRIED + TRACED + "KeyError: 'labels'\n", "rank-raised-exception"),
        "wandb's summary": (STEPS + OOM + "wandb: train/loss 2.1 step 9\nwandb: loss 2.1\nwandb: step 9\n", "gpu-out-of-memory"),
        "another bar": (STEPS + OOM + "Uploading logs: 100%|####| 9/9 [00:01<00:00, 9.0it/s]\n", "gpu-out-of-memory"),
        "probes of the health": (
            "INFO: Application startup complete.\n" + OOM + 'INFO: 10.0.0.9:1 - "GET /health HTTP/1.1" 200 OK\n' * 3,
            "gpu-out-of-memory",
        ),
        "saved at the failure": (STEPS + OOM + "checkpoint saved to /ckpt/a\nweights saved to /ckpt/b\n", "gpu-out-of-memory"),
        "tests of a later program": (
            OOM + "[launch.py:325:sigkill_handler] ['python', 't.py'] exits with return code = 1\n+ pytest -q\n12 passed in 3.10s\n",
            "gpu-out-of-memory",
        ),
        "another stage": (
            "{'train_runtime': 1200.1, 'train_loss': 2.2, 'epoch': 1.0}\n=== stage 2: merge ===\nrun.sh: line 9:  8812 Killed"
            "                  python merge.py\n",
            "rank-killed",
        ),
        "a stranger's request": (
            'INFO: Application startup complete.\ntorch.AcceleratorError: CUDA error: an illegal memory access was encountered\n'
            'INFO: 10.0.0.8:1 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized\n',
            "rank-raised-exception",
        ),
        "the last line": (STEPS + "ValueError: expected more than 1 value per channel\n", "rank-raised-exception"),
        "only the end": ("training on 4 nodes\nno checkpoints in /ckpt\ncommand terminated with exit code 1\n", "unnamed-failure"),
        "a needed import": (
            "flash-attn not found, falling back to sdpa\n" + TRACED + "ModuleNotFoundError: No module named 'job.data'\n",
            "rank-raised-exception",
        ),
        "a job's end in GitHub Actions": (STEPS + "training finished\n##[error]Process completed with exit code 1.\n", "unnamed-failure"),
        "a job's end in GitLab": (STEPS + "Cleaning up project directory\nERROR: Job failed: exit code 1\n", "unnamed-failure"),
        "a job's end in Jenkins": (STEPS + "[Pipeline] End of Pipeline\nFinished: FAILURE\n", "unnamed-failure"),
        "conda run": (
            STEPS + "ERROR conda.cli.main_run:execute(125): `conda run torchrun t.py` failed. (See above for error)\n",
            "unnamed-failure",
        ),
        "a panic in Rust": (
            STEPS + "thread '<unnamed>' panicked at src/models/bpe/trainer.rs:517:35:\ncalled `Option::unwrap()` on a `None` value\n",
            "unnamed-failure",
        ),
        "one of several tasks": (
            "[task 0] step 1 loss 2.0\n[task 2] step 1 loss 2.0\n"
            + "".join(f"[task 1] {line}\n" for line in [*TRACED.splitlines(), "KeyError: 'lr'"])
            + "[task 0] training finished\n[task 2] training finished\n",
            "rank-raised-exception",
        ),
        "a pod that failed": (PODS, "unnamed-failure"),
        "none of some": ("ERROR: failed: 0/8 workers registered\n", "unnamed-failure"),
    }.values(),
)  # fmt: skip
def test_what_is_no_work_does_not_cancel_a_failure(tmp_path: Path, text: str, rule: str) -> None:
    assert errors(diagnose(tmp_path, job=text))[:1] == [rule]


def test_a_pod_whose_replacement_completed_is_no_failure(tmp_path: Path) -> None:
    again = PODS.replace("1/1   Running", "0/1   Completed") + "llama-0-z9kpp  0/1   Completed   0   5m\n"
    assert errors(diagnose(tmp_path, job=again)) == []
    assert errors(diagnose(tmp_path, job=again.replace("llama-0-z9kpp", "eval-0-z9kpp"))) == [
        "unnamed-failure"
    ]


def test_tests_of_googletest_that_passed_are_no_failure(tmp_path: Path) -> None:
    text = "[ RUN      ] Nccl.Timeout\nWatchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)\n"
    text += "[       OK ] Nccl.Timeout (5012 ms)\n[  PASSED  ] 2 tests.\n"
    assert errors(diagnose(tmp_path, job=text)) == []
    assert errors(diagnose(tmp_path, job=text + "[  FAILED  ] 1 test, listed below:\n")) != []


def test_a_launchers_own_signals_are_not_the_cause(tmp_path: Path) -> None:
    text = "cannot read restart file restart.0500\nsrun: error: n1: task 0: Exited with exit code 1\n"
    found = errors(diagnose(tmp_path, job=text + "srun: error: n2: tasks 8-15: Killed\n"))
    assert found and "rank-killed" not in found
    alone = diagnose(tmp_path, job="srun: error: n2: tasks 8-15: Killed\n" + text)
    assert errors(alone)[:1] == ["rank-killed"]


def test_a_line_without_a_rank_does_not_get_that_of_a_line_far_above(tmp_path: Path) -> None:
    text = "[rank0]: using GPU 0 as device, which is currently unknown.\nstep 1 loss 2.0\nstep 2 loss 2.0\n"
    text += "[launch.py:325:sigkill_handler] ['python', '-u', 'train.py', '--local_rank=3'] exits with return code = -11\n"
    assert diagnose(tmp_path, job=text).causes[0].ranks == ()


@pytest.mark.parametrize("code", [63, 92])
def test_a_code_of_the_driver_that_ends_nothing_is_a_note(tmp_path: Path, code: int) -> None:
    text = f"[ 12.1] NVRM: Xid (PCI:0000:4e:00): {code}, pid='<unknown>', name=<unknown>\n"
    assert errors(diagnose(tmp_path, job=text + STEPS)) == []
    assert errors(diagnose(tmp_path, job=text.replace(f": {code},", ": 48,"))) != []


FAILS = "ERROR: failed to reach the head node, giving up\n"


@pytest.mark.parametrize(
    "line, ended",
    [
        ("Training completed.\nEvaluation finished.", True),
        ("Training: 10 of 10 epochs done", True),
        ("Train step 60/60 done. loss 0.0121", True),
        ("Training of the model on 8 GPUs finished", True),
        ("Training: 2 of 10 epochs done", False),
        ("Train step 6/60 done", False),
        ("Training stopped before max_steps completed", False),
        ("Finished training epoch 2", False),
        ("Evaluation finished.", False),
        ("Tokenizer training completed.", False),
        ("Training data preparation finished", False),
    ],
)
def test_only_the_end_of_all_work_excuses_what_follows(tmp_path: Path, line: str, ended: bool) -> None:
    assert diagnose(tmp_path, job=f"{WORK['steps']}{line}\n{FAILS}").healthy == ended


RAISED = 'Traceback (most recent call last):\n  File "/job/t.py", line 9, in <module>\nValueError: lr=abc\n'
KILLED = "/var/spool/slurmd/job12/slurm_script: line 14: 4242 Killed                  python t.py\n"


@pytest.mark.parametrize(
    "failure, rule", [(RAISED, "rank-raised-exception"), (KILLED, "rank-killed")], ids=["raised", "killed"]
)
def test_one_of_several_jobs_in_a_file_failed(tmp_path: Path, failure: str, rule: str) -> None:
    done = WORK["steps"] + "Training completed.\n"
    assert errors(diagnose(tmp_path, job=f"== job 1 ==\n{failure}== job 2 ==\n{done}")) == [rule]
    assert diagnose(tmp_path, job=f"== job 1 ==\n{failure}== job 1 ==\n{done}").healthy
    assert diagnose(tmp_path, job=f"== attempt 1 ==\n{failure}== attempt 2 ==\n{done}").healthy


def test_other_tasks_that_end_well_do_not_excuse_one_that_failed(tmp_path: Path) -> None:
    ends = [f"task {n}: training finished\n" for n in range(5)]
    ends[2] = "task 2: exited with code 1\n"
    assert errors(diagnose(tmp_path, job="".join(ends))) == ["unnamed-failure"]
    assert diagnose(tmp_path, job="".join([*ends, "task 2: training finished\n"])).healthy


TIME_LIMIT = "slurmstepd: error: *** JOB 33 ON n5 CANCELLED AT 2026-08-28T09:00:20 DUE TO TIME LIMIT ***\n"
STALLED = (
    "[1,1]<stderr>:[2026-02-01 10:00:00.1: W horovod/common/stall_inspector.cc:107] One or more tensors were"
    " submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of"
    " ranks for more than 60 seconds.\n[1,1]<stderr>:Missing ranks:\n[1,1]<stderr>:0: [metric_avg]\n"
)
PUT_AWAY = (
    "rm: cannot remove '/dev/shm/nccl-*': No such file or directory\nfatal: not a git repository: .git\n"
    "ERROR:2025-03-02 11:56:34,332:git root error: Cmd('git') failed due to: exit code(128)\n"
    "  stderr: 'fatal: detected dubious ownership in repository at '/job'\n"
    "To add an exception for this directory, call:\n\n\tgit config --global --add safe.directory /job\n"
)
NAMESPACE = (
    "slurmstepd: error: pyxis: container start failed with error code: 1\n"
    "slurmstepd: error: pyxis:     enroot-nsenter: failed to create user namespace: No space left on device\n"
    "slurmstepd: error: pyxis: couldn't start container\n"
)
WATCHDOG = (
    "[rank{0}]:[E1021 14:12:00.5 ProcessGroupNCCL.cpp:685] [Rank {0}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={1}, NumelOut=8, Timeout(ms)=600000) ran for 600021"
    " milliseconds before timing out.\n[rank{0}]:[E1021 14:12:00.5 ProcessGroupNCCL.cpp:2252] [PG ID 1 PG GUID"
    " 3(mesh) Rank {0}]  failure detected by watchdog at work sequence id: {1} PG status: last enqueued work:"
    " {3}, last completed work: {4}\n"
)
BEHIND = "".join(WATCHDOG.format(rank, 11, "ALLREDUCE", 13, 10) for rank in (0, 1, 2))
BEHIND += WATCHDOG.format(3, 10, "ALLGATHER", 10, 9)
STOPPED_VLLM = (
    "(APIServer pid=7) INFO 08-21 10:24:34 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
    "(APIServer pid=7) ERROR 08-21 10:24:34 [async_llm.py:704] AsyncLLM output_handler failed.\n"
    "(APIServer pid=7) ERROR 08-21 10:24:34 [async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: EngineCore"
    " encountered an issue. See stack trace (above) for the root cause.\n"
)
STOPPED_SGLANG = (
    "[2026-08-02 00:17:43] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    "[2026-08-02 00:17:43] Subprocess detokenizer (pid=9) crashed with exit code -15. Triggering SIGQUIT for cleanup...\n"
)
TASK_BEFORE_LIMIT = (
    "0: <0-7,64-71> is invalid\nsrun: error: n5: task 0: Exited with exit code 1\n"
    "0: slurmstepd: error: *** STEP 33.7 ON n5 CANCELLED AT 2026-08-28T09:00:20 DUE TO TIME LIMIT ***\n"
)
SHUT_LATE = (
    "[2026-11-14 15:07:13,109] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'n2_9_0'"
    " has failed to shutdown the rendezvous '33' due to an error of type RendezvousConnectionError.\n"
)
REPORT = "deepspeed info ................... 0.18.3, unknown, unknown\nninja .................. [OKAY]\n"
CLOSED = "n1:9:9 [0] misc/socket.cc:72 NCCL WARN socketProgress: Connection closed by remote peer n2<46776>\n"
ADVICE = (
    "- If you own the model, modify its class (after `PreTrainedModel`, otherwise you'll get an exception).\n"
)
TITLED = (
    '---first error\n[n2] Rank 7, stack.size() INTERNAL ASSERT FAILED at "../torch/csrc/autograd/profiler_python.cpp":964,'
    " please report a bug to PyTorch.\n"
)
MLPERF = (
    "".join(
        f'0: :::MLLOG {{"namespace": "", "time_ms": 17150685{n}, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 1.{n}}}\n'
        for n in range(5)
    )
    + '0: :::MLLOG {"time_ms": 171506858, "key": "run_stop", "value": 0.92, "metadata": {"lineno": 9, "status": "success"}}\n'
)
STEP_BEFORE = "++ srun --ntasks=1 prepare.sh\nsrun: error: n1: task 0: Exited with exit code 1\n"
PROXIES = "".join(
    f"n1:9:41 [1] proxy.cc:{line}\n"
    for line in (
        "1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable",
        "1497 NCCL WARN [Service thread] Could not receive type from localRank 1, res=3, closed=0",
        "1521 NCCL WARN [Proxy Service 1] Failed to execute operation Close from rank 1, retcode 3",
    )
)
PROFILE = "Memset (Unknown)  0.00%  0.000us  0.00%  0.000us  0.000us  8.896ms  4.15%  8.896ms\n"
INDUCTOR = "[rank0]:W0801 17:49:10.593000 7 torch/_inductor/utils.py:1731] Not enough SMs to use max_autotune_gemm mode\n"


@pytest.mark.parametrize(
    "text, rules",
    {
        "a namespace is no disk": (NAMESPACE, ["job-step-not-launched"]),
        "Lightning's answer to a signal": (
            STEPS + TIME_LIMIT + TRACED + "lightning.pytorch.utilities.exceptions.SIGTERMException\n", []
        ),
        "Horovod waited": (STALLED + "[1,0]<stdout>:Epoch 2/2 loss 0.44\n", []),
        "Horovod waits": ("[1,0]<stdout>:Epoch 1/2 loss 0.61\n" + STALLED, ["rank-fell-behind"]),
        "files that are not there": (PUT_AWAY + "smoke test passed\n", []),
        "a metric": (STEPS + "SER (sentence error rate) 61.2%\n", []),
        "a rank in an earlier collective": (BEHIND, ["rank-fell-behind"]),
        "somebody stops vLLM": (STOPPED_VLLM, []),
        "somebody stops SGLang": (STOPPED_SGLANG, []),
        "the store is gone first": (SHUT_LATE, []),
        "a report's row is no failure": (REPORT + CLOSED, ["peer-died-first"]),
        "advice": (ADVICE + SHUT_LATE, []),
        "proxies that close": (MLPERF + PROXIES, []),
        "proxies of a run that did not end": (
            SETUP + INIT + PROXIES, ["peer-died-first", "nccl-error-without-detail"]
        ),
        "a step before the run": (STEP_BEFORE + MLPERF, []),
        "a step behind the run": (MLPERF + STEP_BEFORE, ["rank-raised-exception"]),
        "a profiler's row": (PROFILE, []),
        "a warning behind a rank's prefix": (INDUCTOR, []),
    }.values(),
)  # fmt: skip
def test_the_errors_of_a_log(tmp_path: Path, text: str, rules: list[str]) -> None:
    assert errors(diagnose(tmp_path, job=text)) == rules


def test_tracebacks_one_after_another_are_not_inside_each_other(tmp_path: Path) -> None:
    one = "".join(
        f"n2: {line}\n" for line in [*TRACED.splitlines(), "ModuleNotFoundError: No module named 'bnb'"]
    )
    text = f"{one}{one}n1: torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 2/4 clients joined.\n"
    cause = diagnose(tmp_path, job=text).causes[0]
    assert cause.rule == "rank-raised-exception" and "inside it" not in cause.text


def test_a_long_message_is_seen_to_be_cut(tmp_path: Path) -> None:
    said = "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 256 != 4 * 8 * 6: "
    found = diagnose(tmp_path, job=STEPS + TRACED + f"AssertionError: {said}{'check ' * 20}\n").causes[0]
    assert "… at /job/train.py:4" in found.text


def test_a_task_that_ended_comes_before_the_time_limit_that_ended_the_others(tmp_path: Path) -> None:
    assert diagnose(tmp_path, job=TASK_BEFORE_LIMIT).causes[0].rule == "rank-raised-exception"


def test_an_assertion_of_torch_says_more_than_the_title_above_it(tmp_path: Path) -> None:
    assert diagnose(tmp_path, job=TITLED).causes[0].evidence[0].line == 2


@pytest.mark.parametrize("interface, rules", [("eth0", ["virtual-interface-chosen"]), ("ibp37s0", [])])
def test_addresses_of_dockers_bridge_count_where_a_container_has_them(
    tmp_path: Path, interface: str, rules: list[str]
) -> None:
    lines = "".join(f"n{n}:9:9 [0] NCCL INFO Bootstrap : Using {interface}:172.17.1.{n}<0>\n" for n in (1, 2))
    failed = FAILED + "srun: error: n1: task 0: Exited with exit code 1\n"
    causes = diagnose(tmp_path, job=lines + failed).causes
    assert [c.rule for c in causes if c.rule == "virtual-interface-chosen"] == rules


@pytest.mark.parametrize("node_of_0, sure", [("n1", "high"), ("n2", "medium")])
def test_a_file_that_only_other_nodes_than_rank_0s_lack_is_not_shared(
    tmp_path: Path, node_of_0: str, sure: str
) -> None:
    lines = f"{node_of_0}: [rank0]: saving checkpoint\nn2: [rank4]: Traceback (most recent call last):\n"
    lines += "n2: [rank4]: FileNotFoundError: [Errno 2] No such file or directory: '/data/index-cache/9_doc_idx.npy'\n"
    lines += (
        "n2: [2026-03-28 00:11:20,100] [ERROR] [launch.py:325:sigkill_handler] exits with return code = 1\n"
    )
    found = {c.rule: c.confidence for c in diagnose(tmp_path, job=lines).causes}
    assert found["file-not-shared"] == sure


def test_rows_without_words_are_not_the_first_failure(tmp_path: Path) -> None:
    rows = [
        "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 2/4 clients joined."
    ]
    rows += ["torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "t.py FAILED"]
    rows += [
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 0 (local_rank: 0)",
        "  exitcode  : 1 (pid: 9)",
    ]
    cause = diagnose(tmp_path, job="".join(f"node-a | {row}\n" for row in rows)).causes[0]
    assert (cause.rule, cause.evidence[0].line) == ("peers-never-joined", 1)


def test_an_impossible_number_of_ranks_is_another_releases_message(tmp_path: Path) -> None:
    text = "n0:5:9 [0] bootstrap.cc:133 NCCL WARN Bootstrap Root : mismatch in rank count from procs 2 : {}\n"
    assert errors(diagnose(tmp_path, job=text.format(4))) == ["world-size-disagrees"]
    assert errors(diagnose(tmp_path, job=text.format(33554432))) == ["nccl-versions-differ"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("Evaluation finished.\n***** Running training *****\n  Num Epochs = 3\n", "before its first step"),
        ("Epoch 1/10 loss 2.1\nEpoch 2/10 loss 1.9\n", "at 2 of 10"),
    ],
)
def test_a_log_that_ends_before_the_work_does_is_called_so(tmp_path: Path, text: str, words: str) -> None:
    found = diagnose(tmp_path, job=text)
    assert found.causes == [] and words in unfinished(found.story)
    assert unfinished(diagnose(tmp_path, job=f"{text}{WORK['steps']}Training completed.\n").story) == ""


TIMED_OUT = "".join(
    f"[rank{rank}]:[E302 10:21:44.2 ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=311, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n"
    for rank in (1, 3)
)


@pytest.mark.parametrize(
    "silent, back",
    [
        (
            "[Mon Mar  2 10:11:40 2026] nfs: server nas01 not responding, still trying\n",
            "nfs: server nas01 OK\n",
        ),
        (
            "kernel: LustreError: home-MDT0000: Connection to home-MDT0000 (at 10.1.1.3@o2ib) was lost; in progress operations using this service will wait for recovery to complete\n",
            "kernel: Lustre: home-MDT0000: Connection restored to 10.1.1.3@o2ib (at 10.1.1.3@o2ib)\n",
        ),
    ],
)
def test_a_file_server_that_does_not_answer_explains_a_hang(tmp_path: Path, silent: str, back: str) -> None:
    first = diagnose(tmp_path, job=WORK["steps"] + silent + TIMED_OUT).causes[0]
    assert (first.rule, first.severity, first.confidence) == ("nfs-mount-slow", "error", "medium")
    (alone,) = diagnose(tmp_path, job=WORK["steps"] + silent).causes
    assert (alone.rule, alone.severity) == ("nfs-mount-slow", "warning")
    back_again = diagnose(tmp_path, job=silent + back + TIMED_OUT).causes
    assert back_again[0].rule == "rank-fell-behind"


PING = "$ ping -c 3 -M do -s {0} 10.0.0.5\nPING 10.0.0.5 (10.0.0.5) {0}({1}) bytes of data.\n\n3 packets transmitted, {2} received, 0% packet loss\n"


@pytest.mark.parametrize(
    "lost, other, named", [(8972, (56, 3), True), (8972, (56, 0), False), (56, (8972, 3), False)]
)
def test_large_pings_that_are_lost_where_small_ones_pass_are_a_black_hole(
    tmp_path: Path, lost: int, other: tuple[int, int], named: bool
) -> None:
    table = "# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor)\n" + WORK["results"]
    size, got = other
    text = table + PING.format(lost, lost + 28, 0) + PING.format(size, size + 28, got)
    found = diagnose(tmp_path, job=text).causes
    assert [c.rule for c in found] == ["path-mtu-black-hole"] * named


def test_connections_that_close_after_scancel_are_no_failure_of_nccl(tmp_path: Path) -> None:
    ended = "slurmstepd: error: *** STEP 88121.0 ON gpu01 CANCELLED AT 2026-03-01T10:11:12 ***\n"
    closed = "node2:31:77 [1] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer node1<51234>\n"
    assert [c.rule for c in diagnose(tmp_path, job=f"step 4\n{ended}{closed}").causes] == ["job-cancelled"]


def test_the_bridge_of_docker_is_named_with_every_host_that_chose_it(tmp_path: Path) -> None:
    lines = "".join(
        f"n{n}:9:9 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\nn{n}:9:9 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0>\n"
        for n in (1, 2, 3)
    )
    failed = "n2:9:30 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<44321> failed : Connection refused\n"
    first = diagnose(tmp_path, job=lines + failed).causes[0]
    assert (first.rule, first.nodes) == ("virtual-interface-chosen", ("n1", "n2", "n3"))
    assert first.text == "NCCL uses virtual interfaces on n1, n2, n3: docker0"


@pytest.mark.parametrize("name, is_used", [("eth1", True), ("eth0", False)])
@pytest.mark.parametrize("listed", [True, False])
def test_an_interface_that_nccl_uses_already_is_no_fix(
    tmp_path: Path, name: str, is_used: bool, listed: bool
) -> None:
    lines = "".join(
        f"n{n}:9:9 [0] NCCL INFO Bootstrap : Using {name}:10.{5 if is_used else n}.0.{n}<0>\n"
        + f"n{n}:9:9 [0] NCCL INFO NET/Socket : Using [0]eth1:10.5.0.{n}<0>\n" * listed
        for n in (1, 2)
    )
    failed = "n2:9:12 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.5.0.1<44321> failed : Connection timed out\n"
    fix = diagnose(tmp_path, job=lines + failed).causes[0].fix
    assert fix is not None and fix.text.startswith("routes and firewall") is is_used
    assert bool(fix.env) is (listed and not is_used)


def test_each_host_is_told_its_own_interface(tmp_path: Path) -> None:
    text = "".join(
        f"{host}:5:9 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n"
        f"{host}:5:9 [0] NCCL INFO NET/Socket : Using [0]docker0:172.17.0.1<0> [1]{name}:10.0.0.{n}<0>\n"
        for n, (host, name) in enumerate([("n1", "eno1"), ("n2", "ens3")], 1)
    )
    refused = "n2:5:9 [0] socket.h:400 NCCL WARN Connect to 172.17.0.1<41001> failed : Connection refused\n"
    (tmp_path / "job.log").write_text(text + refused, encoding="utf-8")
    fix = read_logs([str(tmp_path / "job.log")]).causes[0].fix
    assert fix and not fix.env
    assert (
        fix.text.startswith("on n1: set NCCL_SOCKET_IFNAME=eno1 ")
        and "n2: set NCCL_SOCKET_IFNAME=ens3" in fix.text
    )


def test_the_steps_of_a_launcher_are_no_work_of_the_ranks(tmp_path: Path) -> None:
    steps = "".join(
        f"step {n}/9: {word}ing the logs\n" for n, word in enumerate(["copy", "send", "mov"] * 3, 1)
    )
    (tmp_path / "job.log").write_text(
        f"RuntimeError: CUDA error: invalid device ordinal\n{steps}", encoding="utf-8"
    )
    assert [c.rule for c in read_logs([str(tmp_path / "job.log")]).causes] == ["device-ordinal-not-visible"]
