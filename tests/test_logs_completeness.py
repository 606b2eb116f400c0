"""A log that is not whole lowers the confidence of what rests on absent lines, and says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.read import read_logs
from ringup.logs.rule import Cause

SETUP = "n0:5:5 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nNCCL version 2.21.5+cuda12.4\n"
CLOSED = "n0:5:9 [0] socket.cc:50 NCCL WARN Connection closed by remote peer 10.0.0.2<46494>\n"
UNWIND = "n0:5:9 [0] NCCL INFO transport.cc:133 -> 6\n"
TRACEBACK = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n    step(batch)\n'
)
RAISED = "torch.distributed.DistBackendError: remote process exited or there was a network error\n"
WHOLE = SETUP + CLOSED + UNWIND + TRACEBACK + RAISED
OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


def first(tmp_path: Path, text: str) -> Cause:
    (tmp_path / "job.log").write_text(text, encoding="utf-8")
    return read_logs([str(tmp_path / "job.log")]).causes[0]


def test_a_whole_log_lowers_nothing(tmp_path: Path) -> None:
    cause = first(tmp_path, WHOLE)
    assert (cause.rule, cause.confidence) == ("peer-died-first", "medium")
    assert "incomplete" not in cause.text


@pytest.mark.parametrize(
    "text, words",
    [
        (WHOLE[:-20], "the last line is cut off"),
        (SETUP + CLOSED + UNWIND + TRACEBACK, "a traceback without its last line"),
        (TRACEBACK.split("\n", 1)[1] + RAISED + SETUP + CLOSED, "a traceback without its first line"),
        (CLOSED + UNWIND + TRACEBACK + RAISED, "no NCCL version line and no set-up"),
        (SETUP + CLOSED + UNWIND, "no line about how the processes ended"),
    ],
)
def test_a_cut_log_lowers_the_confidence_and_names_what_is_missing(
    tmp_path: Path, text: str, words: str
) -> None:
    cause = first(tmp_path, text)
    assert (cause.rule, cause.confidence) == ("peer-died-first", "low")
    assert words in cause.text


def test_what_a_line_says_itself_stays_as_sure_in_a_cut_log(tmp_path: Path) -> None:
    cause = first(tmp_path, OOM + CLOSED + UNWIND[:-9])
    assert (cause.rule, cause.confidence) == ("gpu-out-of-memory", "high")
    assert "incomplete" not in cause.text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\n"])
def test_a_last_line_that_was_ended_is_not_cut(tmp_path: Path, end: str) -> None:
    assert "cut off" not in first(tmp_path, WHOLE[:-1] + end).text


@pytest.mark.parametrize("label", ["", "[rank3]: ", "n2: "])
def test_a_log_that_ends_inside_a_traceback_has_failed(tmp_path: Path, label: str) -> None:
    cause = first(tmp_path, "".join(label + line for line in ("step 9\n" + TRACEBACK).splitlines(True)))
    assert (cause.rule, cause.severity, cause.confidence) == ("unnamed-failure", "error", "low")
    assert cause.evidence[0].line == 3 and "ends inside a traceback" in cause.text


def test_a_traceback_that_python_ignores_is_no_open_end(tmp_path: Path) -> None:
    ignored = "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + TRACEBACK.replace(
        "    step(batch)\n", ""
    )
    (tmp_path / "job.log").write_text("step 9\n" + ignored + "OSError: gone\n", encoding="utf-8")
    assert not read_logs([str(tmp_path / "job.log")]).causes


@pytest.mark.parametrize(
    "line",
    [
        "You are using a model of type llama to instantiate a model of type x. This is not supported.",
        "libfabric:7:1:core:core:ofi_init():339<warn> Failed to initialize hmem: No data available",
        "Error while read file idx",
    ],
)
def test_a_weak_line_explains_no_end_far_behind_it(tmp_path: Path, line: str) -> None:
    def errors(behind: int) -> list[Cause]:
        lines = "".join(f"loaded part {n} of the model\n" for n in range(behind))
        (tmp_path / "job.log").write_text(f"start\n{line}\n{lines}", encoding="utf-8")
        return [c for c in read_logs([str(tmp_path / "job.log")]).causes if c.severity == "error"]

    assert [c.rule for c in errors(2)] == ["unnamed-failure"]
    assert not errors(150)


HANGUP = "/job/run.sh: line 57: 3698895 Hangup                  ( torchrun train.py )\n"


def test_a_shell_that_is_hung_up_on_after_a_failure_is_no_cause(tmp_path: Path) -> None:
    assert first(tmp_path, "step 9\n" + HANGUP).rule == "terminal-closed"
    failed = "E1 failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: /usr/bin/python3\n"
    assert first(tmp_path, "step 9\n" + failed + HANGUP).rule != "terminal-closed"


PLUGIN = "n0:5:5 [0] nccl_net_ofi_init:1415 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n"


def test_a_plugin_that_gave_up_is_no_error_in_a_log_that_goes_on(tmp_path: Path) -> None:
    assert first(tmp_path, PLUGIN + CLOSED + UNWIND + TRACEBACK + RAISED).severity == "error"
    assert first(tmp_path, PLUGIN + 30 * "loading the model\n").severity == "warning"


def test_an_exception_inside_main_process_first_is_no_long_work(tmp_path: Path) -> None:
    text = TRACEBACK.replace("step(batch)", "with args.main_process_first():")
    assert first(tmp_path, text).rule == "unnamed-failure"
    assert first(tmp_path, text + "ValueError: no column 'prompt'\n").rule == "rank-raised-exception"


@pytest.mark.parametrize("indent", ["    ", "\t"])
def test_a_log_in_an_indented_block_is_read_as_it_is(tmp_path: Path, indent: str) -> None:
    text = "".join(indent + line for line in (TRACEBACK + OOM.removeprefix("[rank3]: ")).splitlines(True))
    assert first(tmp_path, text).rule == "gpu-out-of-memory"
    raised = first(
        tmp_path, "".join(indent + line for line in (TRACEBACK + "app.Wrong: x\n").splitlines(True))
    )
    assert (raised.rule, raised.evidence[0].line) == ("rank-raised-exception", 4)


@pytest.mark.parametrize("label", ["[pod/train-worker-0/pytorch] ", "train-worker-0  | ", "train-0: "])
def test_a_name_is_no_word_of_a_training_that_finished(tmp_path: Path, label: str) -> None:
    text = "step 8 loss 2.1\n" + TRACEBACK + "app.Wrong: x\nINFO:     Finished server process [52]\n"
    cause = first(tmp_path, "".join(label + line for line in text.splitlines(True)))
    assert (cause.rule, cause.severity) == ("rank-raised-exception", "error")


PROSE = "Hi all, my training fails on two nodes with an error:\n\n"


@pytest.mark.parametrize(
    "form",
    ["```\n{}```\n", "```shell\n{}```\n", "<details>\n\n```\n{}```\n</details>\n"],
    ids=["plain", "shell", "details"],
)
def test_a_person_s_own_words_around_a_log_are_no_lines_of_it(tmp_path: Path, form: str) -> None:
    cause = first(
        tmp_path, PROSE + form.format("step 8\n" + TRACEBACK + "app.Wrong: x\n") + "\nAny help is welcome.\n"
    )
    assert cause.rule == "rank-raised-exception"


def test_a_block_of_code_below_a_person_s_words_is_read(tmp_path: Path) -> None:
    block = "".join("    " + line for line in ("step 8 loss 2.1\n" + WHOLE).splitlines(True))
    assert first(tmp_path, PROSE + block + "\nAny help is welcome.\n").rule == first(tmp_path, WHOLE).rule


@pytest.mark.parametrize(
    "line",
    [
        "[n4:10178] 4 more processes have sent help message help-mpi-btl-base.txt / btl:no-nics",
        '[n4:10178] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages',
        "[n4:9622:f]  vfs_fuse.c:281  UCX  ERROR inotify_add_watch(/tmp) failed: No space left on device",
    ],
)
def test_a_remark_of_mpi_is_no_failure(tmp_path: Path, line: str) -> None:
    (tmp_path / "job.log").write_text(f"start\n{line}\n", encoding="utf-8")
    assert not read_logs([str(tmp_path / "job.log")]).causes


STALLED = (
    "[rank0]:[E412 22:27:53.211 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for"
    " 600003 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("lines", "is_busy"),
    [
        ("> building sample index map ...\n", True),
        ("> building sample index map ...\n> finished\ntraining ...\n", False),
        ("Loading checkpoint shards: 100%|####| 38/38 [00:33<00:00,  1.15it/s]\n", False),
        ("Loading checkpoint shards:  50%|##  | 19/38 [00:16<00:16,  1.15it/s]\n", True),
        ("  tokenizer_type .................................. GPT2BPETokenizer\n", False),
    ],
)
def test_work_that_was_done_when_training_began_holds_nobody_up(
    tmp_path: Path, lines: str, is_busy: bool
) -> None:
    (tmp_path / "job.log").write_text(lines + STALLED, encoding="utf-8")
    rules = [cause.rule for cause in read_logs([str(tmp_path / "job.log")]).causes]
    assert ("rank-busy-while-others-wait" in rules) is is_busy
