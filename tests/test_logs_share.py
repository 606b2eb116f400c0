"""Work shared with other processes."""

from __future__ import annotations

import os
import signal

import pytest

from ringup.logs.share import share


def square(n: int) -> int:
    return n * n


def test_results_come_in_the_order_of_the_tasks() -> None:
    assert list(share(square, range(50), 3)) == [n * n for n in range(50)]


def test_what_a_task_raises_is_raised_here() -> None:
    def work(n: int) -> int:
        if n == 7:
            raise FileNotFoundError("gone.log")
        return n

    with pytest.raises(FileNotFoundError, match=r"gone\.log"):
        list(share(work, range(12), 2))


def test_the_task_of_a_killed_process_is_done_here() -> None:
    here = os.getpid()

    def work(n: int) -> int:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    assert list(share(work, range(6), 2)) == list(range(6))
