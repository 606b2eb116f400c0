"""
Whether a limit was missed because a process got no CPU time; judged only here.

A process that was ready to run but waited for a CPU (the kernel counts that time) could not answer in time,
or could not read the answer: then a missed limit proves nothing.
"""

from __future__ import annotations

from ringup.units import plural

SHARE = 0.25
"""
A missed limit counts while less than this share of it was lost to waiting for a CPU.

Limits are ten times the time of an idle machine: a healthy node answers within three quarters of a limit.
"""

LEAST_S = 0.5
"""Shorter waits never matter, because no limit here is so short: an immediate failure has another cause."""


def excuses(waited_s: float, limit_s: float) -> bool:
    """
    Whether a wait of this length for a CPU explains a missed limit.

    >>> excuses(3.0, 4.0), excuses(0.3, 4.0), excuses(0.1, 0.1)
    (True, False, False)
    """
    return waited_s >= max(LEAST_S, SHARE * limit_s)


def words(who: str, waited_s: float, load: float, cpu_count: int) -> str:
    """
    The reason why something was not checked, and what to do.

    >>> words("node3", 5.21, 62.3, 2).partition("; ")[0]
    'node3 had no CPU time: load 62 on 2 CPUs, waited 5.2 s for one'
    """
    cpus = f" on {plural(cpu_count, 'CPU')}" if cpu_count else ""
    return (
        f"{who} had no CPU time: load {load:.0f}{cpus}, waited {waited_s:.1f} s for one; "
        "check again when the node is idle"
    )
