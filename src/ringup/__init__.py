"""
Check, launch and guard multi-node GPU training, and name the root cause when it hangs.

From Python: `collect(nodes)` gives a `Cluster` of frozen facts, `judge(cluster)` what is wrong with it,
`decide(cluster)` the plan for a job on it, `read_logs(paths)` the cause that logs show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ringup.facts import Cluster, Job
    from ringup.plan import Plan
    from ringup.rules import Finding, Skipped

__version__ = "0.1.0"
__all__ = ["__version__", "collect", "decide", "judge", "read_logs"]


def collect(nodes: str, job: Job | None = None, *, ssh_config: str | None = None) -> Cluster:
    """
    Facts of the nodes (`"node[1-8]"`, as `-H` takes them) and what was proven between them.

    A node that fails is a result.  Raises NodesError when the list cannot be read.
    """
    from ringup import hosts, probes, reach
    from ringup.facts import Job

    with reach.open(hosts.expand(nodes), ssh_config=ssh_config) as door:
        return probes.collect(door, job or Job())


def judge(cluster: Cluster) -> tuple[list[Finding], list[Skipped]]:
    """What is wrong, settled against the plan, worst first; and what could not be checked."""
    import ringup.checks
    from ringup.plan import settle
    from ringup.rules import run_checks

    assert ringup.checks  # its import fills the registry
    findings, skipped = run_checks(cluster)
    return settle.settle(findings, decide(cluster), cluster), skipped


def decide(cluster: Cluster) -> Plan | None:
    """The plan for the cluster's job; None when no plan can start (the findings say why)."""
    from ringup.plan import network

    return network.decide(cluster)


def read_logs(*paths: str) -> Any:
    """The diagnosis of log files and directories.  Raises LogsError when none could be read."""
    from ringup.logs import read

    return read.read_logs(list(paths))
