"""Text that mentions an error is no error, and what looks like it and is one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.mentions import is_mention
from ringup.logs.read import Diagnosis, read_logs

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

FULL = "No space left on device"
ASSERT = "CUDA error: device-side assert triggered"
MENTIONED_AND_MEANT = {
    "a shell's trace": (
        '+ [[ ! -e /dev/nvidia0 ]] && echo "no CUDA-capable device is detected"',
        "RuntimeError: no CUDA-capable device is detected",
        "device-ordinal-not-visible",
    ),
    "a comment": (
        "# exit code 137 = killed, 139 = Segmentation fault",
        "t.sh: line 3: 77 Killed p.py",
        "rank-killed",
    ),
    "a setting": (f'  restart_on: {{disk: "{FULL}"}}', f"OSError: [Errno 28] {FULL}", "disk-full"),
    "a sample": (
        "eval 3: text='bind: Address already in use, code: -98'",
        "RuntimeError: bind: Address already in use, code: -98",
        "port-in-use",
    ),
    "a list of signals": (
        "restart_on: [NCCL_TIMEOUT, SIGKILL, SIGSEGV]",
        "Fatal Python error: Segmentation fault (SIGSEGV)",
        "rank-crashed",
    ),
    "a help text": (f"  --on-oom {{skip,abort}}  what to do after {OOM}", OOM, "gpu-out-of-memory"),
    "a commit": (f"* a1b2c3d {OOM}", OOM, "gpu-out-of-memory"),
    "a line of source": (f'src/train.py:12:    log("{OOM}")', f"src/train.py:12: {OOM}", "gpu-out-of-memory"),
    "a count of none": (
        "[health] uncorrectable ECC errors: 0   row remapping failure: No",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "ecc-uncorrectable",
    ),
    "source below a frame": (
        f'  File "/job/guard.py", line 31, in guard\n    except Full: raise Left("{ASSERT}")',
        f"RuntimeError: {ASSERT}",
        "rank-raised-exception",
    ),
    "a quoted log": (f"> [rank3]: {OOM}", f"[rank3]: {OOM}", "gpu-out-of-memory"),
    "a patch": (
        '-    raise Left("No CUDA GPUs are available")',
        "Left: No CUDA GPUs are available",
        "device-ordinal-not-visible",
    ),
    "a table": (
        "| NVLink uncorrectable ECC error | Pass - 0 found |",
        "| NVLink uncorrectable ECC error | Fail - 2 found |",
        "ecc-uncorrectable",
    ),
    "a remedy": (
        "  fix: Segmentation fault (core dumped): install it again",
        "*** SIGSEGV received ***",
        "rank-crashed",
    ),
}


def read(tmp_path: Path, text: str) -> Diagnosis:
    path = tmp_path / "job.log"
    path.write_text(text)
    return read_logs([str(path)])


@pytest.mark.parametrize("what", MENTIONED_AND_MEANT)
def test_a_line_that_only_mentions_an_error_names_no_cause(tmp_path: Path, what: str) -> None:
    mentioned, meant, rule = MENTIONED_AND_MEANT[what]
    assert read(tmp_path, f"joining\n{mentioned}\nloading\n").healthy
    assert [c.rule for c in read(tmp_path, f"joining\n{meant}\nloading\n").causes][:1] == [rule]


@pytest.mark.parametrize("what", MENTIONED_AND_MEANT)
def test_a_line_that_only_mentions_an_error_hides_no_cause(tmp_path: Path, what: str) -> None:
    mentioned, _, _ = MENTIONED_AND_MEANT[what]
    failed = '[rank1]: Traceback (most recent call last):\n[rank1]: KeyError: "labels"\n'
    found = read(tmp_path, f"joining\n{mentioned}\nloading\n{failed}").causes
    assert found[0].evidence[0].text.endswith('KeyError: "labels"')


UNCAUGHT = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\nKeyError: 1\n'
)
CAUGHT = UNCAUGHT.replace("<module>", "fetch")
STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(10, 90, 10))


def test_steps_that_python_had_buffered_do_not_take_back_a_traceback(tmp_path: Path) -> None:
    """Standard output that is a pipe is written after the traceback."""
    assert read(tmp_path, UNCAUGHT + STEPS).causes[0].rule == "rank-raised-exception"


@pytest.mark.parametrize("after", [CAUGHT + STEPS, UNCAUGHT + STEPS + "Training completed\n"])
def test_an_exception_that_was_caught_and_worked_on_after_is_no_failure(tmp_path: Path, after: str) -> None:
    assert read(tmp_path, after).healthy


def test_a_failure_that_a_later_attempt_worked_on_after_is_not_what_ended_that(tmp_path: Path) -> None:
    first = f"[rank1]: {OOM}\nattempt 2 with batch size 16\n"
    second = "[rank0]: Traceback (most recent call last):\n[rank0]: ZeroDivisionError: division by zero\n"
    ended = "torch elastic api.py: failed (exitcode: 1) local_rank: 0 (pid: 41) of binary: python\n"
    assert read(tmp_path, first + STEPS + second + ended).causes[0].evidence[0].line == 12
    assert read(tmp_path, first + STEPS + ended).causes[0].rule == "gpu-out-of-memory"


def test_kernel_lines_of_before_the_run_and_of_other_programs_are_no_reason(tmp_path: Path) -> None:
    failed = (
        "2026-11-26 09:12:03 joining\n[rank0]: Traceback (most recent call last):\n[rank0]: KeyError: 1\n"
    )
    killed = "Out of memory: Killed process 3312 (python3) total-vm:129331200kB\n"
    sure = {}
    for line in (
        f"[Wed Nov 25 03:12:11 2026] {killed}",
        f"[Thu Nov 26 09:00:11 2026] {killed}",
        f"[Thu Nov 26 09:00:11 2026] {killed}".replace("python3", "nginx"),
    ):
        found = read(tmp_path, line + failed).causes
        sure[line[:9], "nginx" in line] = [c.confidence for c in found if c.rule == "oom-killer-ran"]
    assert sure == {("[Wed Nov ", False): [], ("[Thu Nov ", False): ["high"], ("[Thu Nov ", True): ["low"]}


def test_what_is_printed_after_a_good_end_is_no_reason(tmp_path: Path) -> None:
    end = "[rank0] step 10 loss 2.1\nTraining completed\n"
    thread = "Exception in thread Feeder:\n" + CAUGHT
    for after in (thread, "rm: cannot remove '/dev/shm/nccl-*': No such file or directory\n"):
        assert read(tmp_path, end + after).healthy
    assert not read(tmp_path, end + UNCAUGHT).healthy


@pytest.mark.parametrize(
    ("first", "last", "rule"),
    [
        ("what():  CUDA error: an illegal memory access was encountered", "Aborted", "rank-raised-exception"),
        ("t.sh: line 3: 77 Killed python train.py", "Exited with exit code 137", "rank-killed"),
        (
            "torch api.py: failed (exitcode: -9) local_rank: 3 (pid: 77)",
            "Exited with exit code 1",
            "rank-killed",
        ),
        (OOM, "Exited with exit code 1", "gpu-out-of-memory"),
    ],
)
def test_steps_that_other_ranks_had_buffered_take_back_no_end(
    tmp_path: Path, first: str, last: str, rule: str
) -> None:
    text = f"{first}\n{STEPS}srun: error: n1: task 3: {last}\n"
    assert read(tmp_path, text).causes[0].rule == rule


def test_a_server_that_the_kernel_kills_had_not_ended(tmp_path: Path) -> None:
    killed = (
        "Nov 26 09:40:02 n1 kernel: Out of memory: Killed process 41 (VLLM::EngineCor) total-vm:129331200kB\n"
    )
    assert (
        read(tmp_path, f"INFO:     Application startup complete.\n{killed}").causes[0].rule
        == "oom-killer-ran"
    )


@pytest.mark.parametrize(
    "text",
    [
        "returned non-zero exit status 1: error: no space left on device",
        "while dialing node1: connection refused",
        "assertion failed: expected 4 ranks",
        "with error: RuntimeError: CUDA out of memory",
    ],
)
def test_a_sentence_that_begins_like_code_is_none(text: str) -> None:
    assert not is_mention(text)


OF_A_PEER = (
    "[rank3]: Traceback (most recent call last):\n"
    "[rank3]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or"
    " there was a network error, NCCL version 2.20.5\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "[Fri Nov 20 05:01:00 2026] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n",
        "[1203331.221345] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n",
        "[1203331.221] Out of memory: Killed process 88123 (python3) total-vm:991223344kB, anon-rss:5kB\n",
    ],
)
def test_a_line_of_the_kernel_is_not_of_the_rank_before_it(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.log").write_text(OF_A_PEER + line)
    cause = read_logs([str(tmp_path / "a.log")]).causes[0]
    assert (cause.rule in ("gpu-missing", "oom-killer-ran"), cause.ranks) == (True, ()), cause


CANCELLED = (
    "slurmstepd: error: *** JOB 71201 ON gpu-c03 CANCELLED AT 2026-11-15T01:00:00 DUE TO NODE FAILURE, SEE"
    " SLURMCTLD LOG FOR DETAILS ***\n"
)


@pytest.mark.parametrize(
    ("text", "rule", "severity", "nodes"),
    [
        (f"{CANCELLED}srun: error: Node failure on gpu-c05\n", "node-lost", "error", ("gpu-c05",)),
        (CANCELLED, "node-lost", "error", ()),
        (f"{CANCELLED}step 20 loss 0.9\nstep 30 loss 0.8\n", "job-cancelled", "note", ()),
    ],
)
def test_a_node_that_slurm_loses_is_the_cause_of_the_end(
    tmp_path: Path, text: str, rule: str, severity: str, nodes: tuple[str, ...]
) -> None:
    (tmp_path / "a.log").write_text(f"step 10 loss 1.0\n{text}")
    (cause,) = read_logs([str(tmp_path / "a.log")]).causes
    assert (cause.rule, cause.severity, cause.nodes) == (rule, severity, nodes)
