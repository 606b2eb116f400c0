"""How long processes of this machine waited for a CPU, as the kernel counts it."""

from __future__ import annotations

import os
from collections.abc import Callable

from ringup.agent.proc import process
from ringup.model import Unreached, cpu_starvation

TIMED = ("ssh-timeout", "ssh-key-exchange-hangs", "ssh-long-answer-lost", "no-answer")
"""Failures that may come from a missed limit; a resolver's missed limit is a "temporary failure"."""


waited_s: Callable[..., float] = process.waited_s


def is_over(silent_s: float, limit_s: float, lost_s: Callable[[], float]) -> bool:
    """Whether a silence exceeds the limit; time without a CPU is subtracted, up to twice the limit."""
    return silent_s > limit_s and silent_s > limit_s + min(lost_s(), limit_s)


def judged(failure: Unreached, lost_s: float, limit_s: float) -> Unreached:
    """A missed limit as a failure; if this machine was starved, the node is not judged."""
    is_timed = failure.kind in TIMED or "Temporary failure" in failure.words
    if is_timed and cpu_starvation.excuses(lost_s, limit_s):
        return Unreached("no-cpu-time", words(lost_s))
    return failure


def words(lost_s: float) -> str:
    """A sentence that this machine was CPU-starved."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = 0.0
    return cpu_starvation.words("this machine", lost_s, load, os.cpu_count() or 0)
