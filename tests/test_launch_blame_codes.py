"""What a rank meant to end with, when tearing down made something else of it."""

from __future__ import annotations

from dataclasses import replace

from ringup.logs.blame import is_consequence
from ringup.runtime import blame
from ringup.runtime.blame import TRACEBACK, End
from ringup.runtime.record import short

RAISED = (
    f"[rank3]: {TRACEBACK}",
    '[rank3]:   File "train.py", line 13',
    "[rank3]: ValueError: the data is bad",
)
TEARDOWN = "terminate called without an active exception"


def end(code: int, lines: tuple[str, ...]) -> End:
    return End("rank", "node1", 5.0, rank=3, code=code, traceback_s=4.0, lines=lines)


def test_an_exception_is_code_1_though_tearing_down_aborted() -> None:
    it = end(-6, (*RAISED, TEARDOWN))
    assert (it.own_code, it.raised, it.failed_s) == (1, "ValueError: the data is bad", 4.0)
    assert short(it) == "rank 3 on node1: ValueError: the data is bad (exit code 1)"


def test_an_abort_of_its_own_stays_an_abort() -> None:
    assert end(-6, ("Assertion `x' failed.",)).own_code == -6
    assert end(-6, (*RAISED, "caught it and went on")).own_code == -6


def test_an_abort_in_the_teardown_is_told_as_one() -> None:
    it = end(-6, ("trained to the end", TEARDOWN))
    assert it.own_code == -6
    assert "a native thread still ran when it was torn down" in short(it)


def test_a_signal_after_a_traceback_is_still_the_signal() -> None:
    assert end(-9, RAISED).own_code == -9


def ended(code: int, *lines: str) -> End:
    return replace(end(code, lines), told_s=4.5)


def test_an_exception_that_was_the_last_word_is_code_1_though_we_ended_the_rank() -> None:
    for code in (-15, -9):
        it = ended(code, *RAISED, '@ringup {"kind": "error", "rank": 3}')
        assert short(it) == "rank 3 on node1: ValueError: the data is bad (exit code 1)"


def test_a_rank_that_went_on_after_a_traceback_until_we_ended_it_is_not_said_to_have_raised() -> None:
    it = ended(-15, *RAISED, "caught it and went on")
    assert (it.own_code, it.raised) == (-15, "")
    how = "a traceback; it went on until ringup ended it (killed by SIGTERM (15))"
    assert short(it) == f"rank 3 on node1: {how}"


def test_the_words_of_an_abort_begin_at_its_exception_above_the_frames() -> None:
    thrown = (
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "  what():  [Rank 0] Process group watchdog thread terminated with exception: NCCL error",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting.",
        *(f"frame #{n}: <unknown function> + 0x129ecc (0x7f717b929ecc in libc.so.6)" for n in range(9)),
    )
    it = end(-6, ("step 4", *thrown))
    assert it.last_words.splitlines() == [*thrown]
    assert (it.own_code, it.raised) == (-6, "")
    found = blame.first([it], is_consequence)
    assert found is not None and found[1]
