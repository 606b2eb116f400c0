"""
The fewest variables that make NCCL and Gloo choose right on every node, each with its reason.

What the plan sets, which `run` sets as well: interfaces and RDMA devices.  Added here, on request, is what
a search for a fault needs, and said is what is set already.
"""

from __future__ import annotations

from dataclasses import dataclass

from ringup.facts import Cluster
from ringup.plan import EnvVar, devices, network, roce
from ringup.plan.kept import Kept, kept, presets

RENAMED = (2, 13)
"""A torch whose flight recorder is on by itself and has TORCH_FR_* names; older ones get the old names."""


@dataclass(frozen=True)
class Least:
    """What to set, what is set already, and what could not be decided."""

    env: tuple[EnvVar, ...] = ()
    kept: tuple[Kept, ...] = ()
    notes: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    """What is worth knowing and leaves nothing open: presets recognised, RoCE's variables."""


def least(cluster: Cluster, *, debug: bool = False, log_dir: str = ".") -> Least:
    """The environment for a job on these nodes; `log_dir` is where debugging output goes."""
    notes: list[str] = []
    plan = network.decide(cluster)
    env = list(plan.env) if plan else devices.variables(cluster, notes)
    if plan is None:
        notes.append("no interface could be proven to join all nodes: `ringup check` says why")
    else:
        notes += plan.open
    if debug:
        env += debugging(cluster, log_dir)
    told = (*presets(cluster), *roce.explained(cluster))
    return Least(tuple(env), kept(cluster), tuple(notes), told)


def debugging(cluster: Cluster, log_dir: str) -> list[EnvVar]:
    """What shows where a job hangs: NCCL's own log per rank, and torch's flight recorder."""
    torch = min((_numbers(n.interpreter.torch) for n in cluster.nodes if n.interpreter.torch), default=())
    made = [
        EnvVar("NCCL_DEBUG", "INFO", "interfaces, devices, transports and errors"),
        EnvVar(
            "NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,ENV,NET,GRAPH", "the default, and how the network was chosen"
        ),
        EnvVar(
            "NCCL_DEBUG_FILE",
            f"{log_dir}/nccl.%h.%p.log",
            "one file per rank: %h is the host, %p the process",
        ),
        EnvVar(
            "TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "the flight recorder is written when a collective times out"
        ),
    ]
    where = "TORCH_FR_DUMP_TEMP_FILE"
    if torch < RENAMED:
        where = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
        size = "TORCH_NCCL_TRACE_BUFFER_SIZE"
        made.append(
            EnvVar(size, "2000", "the last 2000 collectives are kept; older torch keeps none by itself")
        )
    made.append(EnvVar(where, f"{log_dir}/flight_recorder_", "where the dump goes, the rank is appended"))
    return [v for v in made if all(devices.user_value(cluster.job, n, v.name) is None for n in cluster.nodes)]


def _numbers(version: str) -> tuple[int, ...]:
    """
    >>> _numbers("2.13.0+cpu")
    (2, 13)
    """
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(p) for p in parts if p.isdecimal())
