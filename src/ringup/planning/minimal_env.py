"""The fewest variables with which NCCL and Gloo choose right on every node, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ringup.model import Cluster
from ringup.planning import EnvVar, Plan, devices, network, user_value
from ringup.planning.preset_variables import Kept, kept, roce_explained

APART = "its lines go to nccl-*.log in the log directory, not to the terminal"
SLOW = ("", "Socket", "Gloo")
"""The slowest networks: NCCL cannot fall back from these, so a watch for it is useless."""
SUBSYSTEMS = "INIT,BOOTSTRAP,ENV,NET,GRAPH"
RENAMED = (2, 13)
"""From this torch release on, the flight recorder is on by default and its variables are TORCH_FR_*."""


@dataclass(frozen=True)
class MinimalEnv:
    """Variables to set, variables that are already set, and undecided questions."""

    env: tuple[EnvVar, ...] = ()
    kept: tuple[Kept, ...] = ()
    notes: tuple[str, ...] = ()
    explained: tuple[str, ...] = ()
    """Notes on RoCE's variables; they leave nothing open."""


def minimal_env(cluster: Cluster, *, debug: bool = False, log_dir: str = ".") -> MinimalEnv:
    """The environment for a job on these nodes; debugging output goes to `log_dir`."""
    plan, notes = network.decide(cluster), list[str]()
    env = plan.env if plan else tuple(devices.variables(cluster, notes))
    unproven = "no interface could be proven to join all nodes: `ringup check` says why"
    notes += plan.open if plan else (unproven,)
    env += tuple(debugging(cluster, log_dir) if debug else ())
    return MinimalEnv(env, kept(cluster), tuple(notes), tuple(roce_explained(cluster)))


def debugging(cluster: Cluster, log_dir: str) -> list[EnvVar]:
    """Variables that show where a job hangs: NCCL's log per rank, and torch's flight recorder."""
    torch = min((n.interpreter.torch_release for n in cluster.nodes if n.interpreter.torch), default=())
    rows = [
        ("NCCL_DEBUG", "INFO", "interfaces, devices, transports and errors"),
        ("NCCL_DEBUG_SUBSYS", SUBSYSTEMS, "the default, and how the network was chosen"),
        ("NCCL_DEBUG_FILE", f"{log_dir}/nccl.%h.%p.log", "one file per rank: %h is the host, %p the process"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "the flight recorder is written when a collective times out"),
    ]
    where = "TORCH_FR_DUMP_TEMP_FILE"
    if torch < RENAMED:
        where = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"
        kept_ones = "the last 2000 collectives are kept; older torch keeps none by default"
        rows.append(("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", kept_ones))
    rows.append((where, f"{log_dir}/flight_recorder_", "where the dump goes, the rank is appended"))
    made = [EnvVar(*row) for row in rows]
    return [v for v in made if all(user_value(cluster.job, n, v.name) is None for n in cluster.nodes)]


def with_nccl_debug(plan: Plan, cluster: Cluster, *, always: bool = False) -> Plan:
    """
    The plan with NCCL_DEBUG if NCCL's choice may differ from the expected one.

    It requests only lines of initialisation (NCCL_DEBUG_SUBSYS), unless `always` (`--debug`) or the user sets
    otherwise.  A user's own NCCL_DEBUG is not changed, nor are jobs that can only use TCP.
    """
    expects_more = len(plan.nodes) > 1 and any(t.network not in SLOW for t in plan.transports)
    if cluster.job.backend == "gloo" or not (always or expects_more):
        return plan
    if any(user_value(cluster.job, node, "NCCL_DEBUG") is not None for node in cluster.nodes):
        return plan
    added = [EnvVar("NCCL_DEBUG", "INFO", f"shows which network NCCL takes; {APART}")]
    if all(user_value(cluster.job, node, "NCCL_DEBUG_SUBSYS") is None for node in cluster.nodes):
        why = "only lines printed while communicators are created"
        added.append(EnvVar("NCCL_DEBUG_SUBSYS", SUBSYSTEMS if always else "INIT,ENV,NET", why))
    nodes = tuple(replace(n, env={**{v.name: v.value for v in added}, **n.env}) for n in plan.nodes)
    return replace(plan, nodes=nodes, env=(*plan.env, *added))


def sets_nccl_debug(plan: Plan) -> bool:
    """Whether the plan, not the user, caused NCCL's log lines."""
    return any(v.name == "NCCL_DEBUG" for v in plan.env)
