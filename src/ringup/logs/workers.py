"""Work shared with forked processes: they need not import modules that this one has imported."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any, TypeVar

from ringup import progress

TICK_S = 0.25

Task = TypeVar("Task")
Result = TypeVar("Result")


def share(
    work: Callable[[Task], Result], tasks: Sequence[Task], processes: int, tick: Callable[[], object] = bool
) -> Iterator[Result]:
    """
    The results in the order of the tasks; the first free process takes the next task.

    `tick` is called now and then.  Raises the exceptions of `work`.  The unfinished task of a killed process
    is done here, as is everything if this process has threads: a fork would copy the locks they hold.
    """
    if sys.platform != "linux" or _has_threads():
        yield from map(work, tasks)
        return
    context: Any = mp.get_context("fork")
    left = iter(range(len(tasks)))
    begun: dict[Any, int] = {}
    done: dict[int, tuple[Any, Exception | None]] = {}
    lost: set[int] = set()
    helpers = []

    def give(pipe: Any) -> None:
        """Send the next task to a process; a process that is gone, or has no task left, is not read."""
        begun.pop(pipe, None)
        at = next(left, None)
        try:
            if at is not None:
                pipe.send(at)
                begun[pipe] = at
                return
        except OSError:
            lost.add(at or 0)
        pipe.close()

    try:
        for _ in range(min(processes, len(tasks))):
            ours, theirs = context.Pipe()
            held = [ours, *begun]  # closed there, because they would hide the end of this process
            helpers.append(context.Process(target=_help, args=(work, tasks, theirs, held), daemon=True))
            helpers[-1].start()
            theirs.close()
            give(ours)
        for at in range(len(tasks)):
            while begun and at not in done and at not in lost:
                ready: list[Any] = wait([*begun], TICK_S)
                for pipe in ready:
                    with contextlib.suppress(EOFError, OSError):
                        done[begun[pipe]] = pipe.recv()
                    lost |= {begun[pipe]} - done.keys()
                    give(pipe)
                tick()
            result, error = done.pop(at) if at in done else (work(tasks[at]), None)
            if error is not None:
                raise error
            yield result
    finally:
        for pipe in begun:
            pipe.close()
        for helper in helpers:
            helper.kill()
            helper.join()
            helper.close()


def _has_threads() -> bool:
    """Whether this process has more than one thread, Python's or another's."""
    try:
        return sum(1 for _ in os.scandir("/proc/self/task")) > 1
    except OSError:
        return True


def _help(work: Callable[[Task], Any], tasks: Sequence[Task], pipe: Any, others: Sequence[Any]) -> None:
    progress.allow(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for other in others:
        other.close()
    with contextlib.suppress(EOFError, OSError):
        while True:
            at = pipe.recv()
            try:
                answer: Any = (work(tasks[at]), None)
            except Exception as exc:
                answer = (None, exc)
            pipe.send(answer)
