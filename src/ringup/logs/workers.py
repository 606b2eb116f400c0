"""
Work shared with other processes, this one doing its part.

A pool keeps the process that asks idle, and its start is long beside a gigabyte's second and a half.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, TypeVar

from ringup import progress

_PROCESSOR = 36
"""Place of the processor last run on, counted behind the name (proc(5), field 39)."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def share(work: Callable[[Task], Result], tasks: Sequence[Task], processes: int) -> Iterator[Result]:
    """
    The results in the order of the tasks; whoever is free takes the next one.

    Raises what `work` raises.  What a process that was killed had begun is done here, and so is
    everything where this process has threads: a fork would copy the locks they hold.
    """
    if sys.platform != "linux" or _has_threads():
        yield from map(work, tasks)
        return
    context: Any = mp.get_context("fork")  # it has all imports done
    left = iter(range(len(tasks)))  # the place of the next task: one step of the interpreter takes it
    results: list[Future[Result]] = [Future() for _ in tasks]
    helpers, pipes, threads = [], list[Connection](), list[Thread]()
    cpus = _other_cpus()
    try:
        for _ in range(processes - 1):
            ours, theirs = context.Pipe()
            pipes.append(ours)
            helper = context.Process(target=_help, args=(work, tasks, theirs, pipes, cpus), daemon=True)
            helper.start()
            theirs.close()
            helpers.append(helper)
        for pipe in pipes:
            threads.append(Thread(target=_serve, args=(pipe, left, results), daemon=True))
            threads[-1].start()
        done = 0
        for at in left:
            results[at].set_result(work(tasks[at]))
            # What is done with results counts as our part of the work: the others take more tasks meanwhile.
            while done < len(tasks) and results[done].done():
                yield results[done].result()
                results[done] = Future()  # what was given is not held here until the last one is
                done += 1
        for thread in threads:
            thread.join()
        for at in range(done, len(tasks)):
            # Not done: its process was killed.
            yield results[at].result() if results[at].done() else work(tasks[at])
            results[at] = Future()
    finally:
        for helper in helpers:
            helper.kill()
            helper.join()
            helper.close()
        # A pipe closed under its thread would leave that with a number that is another file's next.
        for thread in threads:
            thread.join()
        for pipe in pipes:
            pipe.close()


def _has_threads() -> bool:
    """Whether this process has more than one thread, Python's or another's."""
    try:
        return sum(1 for _ in os.scandir("/proc/self/task")) > 1
    except OSError:
        return True


def _other_cpus() -> set[int]:
    """
    All processors we may use but the one we are on; empty where that is not known.

    Measured on Linux 6.18, two processors: two processes left to themselves took 0.33 and 0.48 s for what two
    that were kept apart did in 0.34 and 0.37 s.
    """
    try:
        with open("/proc/self/stat", "rb") as stream:
            mine = int(stream.read().rpartition(b")")[2].split()[_PROCESSOR])
        return os.sched_getaffinity(0) - {mine}
    except (OSError, AttributeError, ValueError, IndexError):
        return set()


def _help(
    work: Callable[[Task], Any],
    tasks: Sequence[Task],
    pipe: Connection,
    others: Sequence[Connection],
    cpus: set[int],
) -> None:
    progress.allow(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for other in others:  # held here, they would hide the end of the process that asks
        other.close()
    if cpus:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cpus)
    with contextlib.suppress(EOFError, OSError):
        while (at := pipe.recv()) is not None:
            try:
                answer = pickle.dumps((work(tasks[at]), None), pickle.HIGHEST_PROTOCOL)
            except Exception as exc:
                answer = pickle.dumps((None, exc))
            pipe.send_bytes(answer)


def _serve(pipe: Connection, left: Iterator[int], results: list[Future[Any]]) -> None:
    """Give one helper task after task; the one it dies of is left undone."""
    with contextlib.suppress(EOFError, OSError):
        for at in left:
            pipe.send(at)
            result, error = pickle.loads(pipe.recv_bytes())
            if error is not None:
                results[at].set_exception(error)
            else:
                results[at].set_result(result)
