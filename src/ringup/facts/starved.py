"""
Whether a limit was missed because nobody had a processor: the one place that judges it.

What did not answer within N seconds proves something only when those N seconds were there to be
used.  A process that was ready to run and waited for a processor (the kernel counts it) was not
able to answer, and one that waited here was not able to hear it.
"""

from __future__ import annotations

from collections.abc import Mapping

SHARE = 0.25
"""
A limit counts as missed by the one who was asked while less than this part of it was lost to waiting.

Limits here are ten times and more what an idle machine needs, so with three quarters of one left a
healthy node has answered.
"""

LEAST_S = 0.5
"""No limit here is so short that less would matter: what fails at once fails for a reason of its own."""


def excuses(waited_s: float, limit_s: float) -> bool:
    """
    Whether waiting for a processor so long explains that a limit was missed.

    >>> excuses(3.0, 4.0), excuses(0.3, 4.0), excuses(0.1, 0.1)
    (True, False, False)
    """
    return waited_s >= max(LEAST_S, SHARE * limit_s)


def longest(waits: Mapping[str, float]) -> float:
    """
    The longest wait of a node's processes, in seconds.

    >>> longest({"names": 0.5, "system": 2.0}), longest({})
    (2.0, 0.0)
    """
    return max(waits.values(), default=0.0)


def words(who: str, waited_s: float, load: float, cpu_count: int) -> str:
    """
    The reason why something is not checked, and what to do.

    >>> words("node3", 5.21, 62.3, 2).partition("; ")[0]
    'node3 had no CPU time: load 62 on 2 processors, 5.2 s spent waiting for one'
    """
    processors = f" on {cpu_count} processor{'s' * (cpu_count != 1)}" if cpu_count else ""
    return (
        f"{who} had no CPU time: load {load:.0f}{processors}, {waited_s:.1f} s spent waiting for one; "
        "check again when less runs there"
    )
