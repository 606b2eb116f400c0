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
