"""
Check, launch and guard multi-node GPU training, and name the root cause when it hangs.

From Python: `collect(nodes)` gives a `Cluster` of frozen facts, `judge(cluster)` its problems,
`decide(cluster)` the plan for a job on it, `read_logs(paths)` the cause that logs show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ringup.version import SITE, SOURCE, __version__

if TYPE_CHECKING:
    from ringup.model import Cluster, Job
    from ringup.planning import Plan
    from ringup.rules import Finding, Skipped

__all__ = ["SITE", "SOURCE", "__version__", "collect", "decide", "judge", "read_logs"]


def collect(nodes: str, job: Job | None = None, *, ssh_config: str | None = None) -> Cluster:
    """
    Facts of the nodes (`"node[1-8]"`, in the syntax of `-H`) and the results of the tests between them.

    A node that fails is a result.  Raises NodesError when the list cannot be read.
    """
    from ringup import collectors, hosts
    from ringup.model import Job
    from ringup.transport import Transport

    with Transport(hosts.expand(nodes), ssh_config=ssh_config) as door:
        return collectors.collect(door, job or Job())


def judge(cluster: Cluster) -> tuple[list[Finding], list[Skipped]]:
    """The problems, worst first, weighed against the plan; and the rules that could not be checked."""
    from ringup.cli import pipeline

    judged = pipeline.judge(cluster)
    return judged.findings, judged.skipped


def decide(cluster: Cluster) -> Plan | None:
    """The plan for the cluster's job; None when no plan can start (the findings say why)."""
    from ringup.planning import network

    return network.decide(cluster)


def read_logs(*paths: str) -> Any:
    """The diagnosis of log files and directories.  Raises LogsError when none could be read."""
    from ringup.logs import read

    return read.read_logs(list(paths))
