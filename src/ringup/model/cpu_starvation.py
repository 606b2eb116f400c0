"""
Whether a limit was missed because a process got no CPU time: the only place that judges it.

A process that was ready to run and waited for a CPU (the kernel counts it) could not answer in time, or
could not read the answer: the missed limit proves nothing then.
"""

from __future__ import annotations

from ringup.units import plural

SHARE = 0.25
"""
A limit counts as missed while less than this part of it was lost to waiting for a CPU.

Limits are ten times what an idle machine needs: a healthy node answers in three quarters of one.
"""

LEAST_S = 0.5
"""No limit here is so short that less would matter: what fails at once fails for a reason of its own."""


def excuses(waited_s: float, limit_s: float) -> bool:
    """
    Whether so long a wait for a CPU explains that a limit was missed.

    >>> excuses(3.0, 4.0), excuses(0.3, 4.0), excuses(0.1, 0.1)
    (True, False, False)
    """
    return waited_s >= max(LEAST_S, SHARE * limit_s)


def words(who: str, waited_s: float, load: float, cpu_count: int) -> str:
    """
    The reason why something is not checked, and what to do.

    >>> words("node3", 5.21, 62.3, 2).partition("; ")[0]
    'node3 had no CPU time: load 62 on 2 CPUs, waited 5.2 s for one'
    """
    cpus = f" on {plural(cpu_count, 'CPU')}" if cpu_count else ""
    return (
        f"{who} had no CPU time: load {load:.0f}{cpus}, waited {waited_s:.1f} s for one; "
        "check again when the node is idle"
    )
