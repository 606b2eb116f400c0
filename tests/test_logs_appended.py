"""Several runs in one file: the last one is judged, and the answer says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringup.logs.appended import last_run
from ringup.logs.read import Diagnosis, read_logs

BANNER = (
    "grep: warning: GREP_OPTIONS is deprecated; please use an alias or script\n"
    "Namespace(lr=0.{n}, steps={n})\n"
)
WORK = "".join(f"step {n} loss 2.{n}\n" for n in range(1, 9))
RAISED = 'Traceback (most recent call last):\n  File "/job/t.py", line 9, in <module>\n    go()\n{0}\n'
OOM = RAISED.format("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
KEY = RAISED.format("KeyError: 'labels'")


def diagnose(tmp_path: Path, text: str) -> Diagnosis:
    log = tmp_path / "job.log"
    log.write_text(text, encoding="utf-8")
    return read_logs([str(log)])


def appended(*ends: str) -> str:
    return "".join(BANNER.format(n=n) + WORK + end for n, end in enumerate(ends, 1))


def test_the_last_of_several_runs_is_judged(tmp_path: Path) -> None:
    found = diagnose(tmp_path, appended(OOM, OOM, KEY))
    assert [c.rule for c in found.causes if c.severity == "error"] == ["rank-raised-exception"]
    assert found.causes[0].evidence[0].line == 42
    (said,) = found.unreadable
    assert said.reason == "3 runs one after another; read: the last, from line 29"


def test_a_last_run_that_works_is_sound(tmp_path: Path) -> None:
    assert diagnose(tmp_path, appended(OOM, "")).healthy


@pytest.mark.parametrize(
    "text",
    [
        appended(OOM),
        appended("", ""),
        "".join(f"[rank{n}]: " + line + "\n" for n in (0, 1) for line in appended(KEY).splitlines()),
        appended(OOM + "[W] elastic: restarting worker group\n", KEY),
        BANNER.format(n=1) * 7 + WORK + KEY + BANNER.format(n=1) + WORK,
    ],
    ids=["one", "no failure between", "two ranks", "a launcher's restart", "a banner of each rank"],
)
def test_what_is_one_run_is_read_whole(tmp_path: Path, text: str) -> None:
    log = tmp_path / "job.log"
    log.write_text(text, encoding="utf-8")
    assert last_run(str(log)).runs == 1


def test_an_empty_or_odd_file_is_one_run(tmp_path: Path) -> None:
    for data in (b"", b"\n\n", b"x" * 5000, b"\0\xff\n" * 100):
        (tmp_path / "odd.log").write_bytes(data)
        assert last_run(str(tmp_path / "odd.log")).offset == 0


def test_a_start_that_ended_without_a_word_is_a_run_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "workerlog.2"
    log.write_text(appended(OOM, OOM, "", KEY, OOM, KEY, ""), encoding="utf-8")
    assert last_run(str(log))[1:] == (81, 6)
    assert diagnose(tmp_path, log.read_text()).healthy


def test_a_word_of_a_library_is_no_restart(tmp_path: Path) -> None:
    frame = "9   paddle::memory::allocation::RetryAllocator::AllocateImpl(unsigned long)\n"
    log = tmp_path / "job.log"
    log.write_text(appended(frame + OOM, KEY), encoding="utf-8")
    assert last_run(str(log)).runs == 2


def test_sigterm_in_the_words_of_paddle_is_no_failure_of_its_own(tmp_path: Path) -> None:
    ended = "FatalError: `Termination signal` is detected by the operating system.\n"
    found = diagnose(tmp_path, WORK + "C++ Traceback (most recent call last):\n" + ended)
    assert [(c.rule, c.severity) for c in found.causes] == [("job-cancelled", "note")]
