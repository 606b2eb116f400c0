"""What a rank meant to end with, when tearing down made something else of it."""

from __future__ import annotations

import doctest

from ringup.launch import blame
from ringup.launch.blame import TRACEBACK, End
from ringup.launch.story import short

RAISED = (
    f"[rank3]: {TRACEBACK}",
    '[rank3]:   File "train.py", line 13',
    "[rank3]: ValueError: the data is bad",
)
TEARDOWN = "terminate called without an active exception"


def end(code: int, lines: tuple[str, ...]) -> End:
    return End("rank", "node1", 5.0, rank=3, code=code, traceback_s=4.0, lines=lines)


def test_the_examples_hold() -> None:
    assert doctest.testmod(blame).failed == 0


def test_an_exception_is_code_1_though_tearing_down_aborted() -> None:
    it = end(-6, (*RAISED, TEARDOWN))
    assert (it.own_code, it.raised, it.failed_s) == (1, "ValueError: the data is bad", 4.0)
    assert short(it) == "rank 3 on node1: ValueError: the data is bad (exit code 1)"


def test_an_abort_of_its_own_stays_an_abort() -> None:
    assert end(-6, ("Assertion `x' failed.",)).own_code == -6
    assert end(-6, (*RAISED, "caught it and went on")).own_code == -6


def test_a_signal_after_a_traceback_is_still_the_signal() -> None:
    assert end(-9, RAISED).own_code == -9
