"""Work shared with other processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from ringup.logs.workers import share


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


def test_processes_killed_at_any_moment_hold_up_nobody() -> None:
    for _ in range(20):
        results = share(square, range(200), 4)
        found = [next(results)]
        # They take a task, do one, or give one back at this moment.
        for helper in multiprocessing.active_children():
            helper.kill()
        assert [*found, *results] == [n * n for n in range(200)]


def test_a_process_with_threads_is_not_forked() -> None:
    held, ended = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (held.set(), ended.wait()))
    thread.start()
    held.wait()
    try:
        assert set(share(lambda _: os.getpid(), range(20), 3)) == {os.getpid()}
    finally:
        ended.set()
        thread.join()


def test_no_helper_and_no_descriptor_is_left_when_the_caller_stops_early() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    results = share(square, range(100), 3)
    assert next(iter(results)) == 0
    results.close()  # type: ignore[attr-defined]
    assert multiprocessing.active_children() == []
    assert sorted(Path("/proc/self/fd").iterdir()) == before
