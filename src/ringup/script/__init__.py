"""
Files that start the job without ringup: `ringup script KIND`.

    words        what one node executes, as shell text, and why each variable is set
    batch        slurm, pbs, lsf: the job finds its network when it starts (payload/meet.py)
    hosts        ssh, docker: the nodes are known, and so is the plan
    kubernetes   k8s-job, jobset, pytorchjob, trainjob, volcano
    yaml         mappings with comments, written as YAML

Everything here is text from an `Asked`; nothing is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ringup.facts import Job
from ringup.plan import EnvVar, Plan


@dataclass(frozen=True)
class Asked:
    """What a file is to start, and where."""

    job: Job
    nodes: int
    nproc: int
    """Ranks on each node."""
    gpus: int
    """GPUs asked for on each node; 0 for a job without."""
    name: str
    python: str
    """Interpreter on the nodes: a path, or a name to be looked up on PATH."""
    plan: Plan | None = None
    """What was decided from live nodes or saved facts; None where none were looked at."""
    env: tuple[EnvVar, ...] = ()
    """The plan's variables, those of `--debug`, the user's own."""
    queue: str = ""
    """Partition (Slurm) or queue (PBS, LSF)."""
    account: str = ""
    time: str = ""
    """Limit as HH:MM:SS."""
    cpus: int = 0
    """CPUs on each node; 0: what the site gives."""
    options: tuple[str, ...] = ()
    """Further options of the scheduler, one a line."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Node -> how ssh is to call it, where a user name belongs to it."""
    image: str = ""
    """Container image of docker and Kubernetes."""
    namespace: str = ""
    rdma: str = ""
    """Kubernetes resource of the RDMA devices, "" for none."""


def kinds() -> Mapping[str, Callable[[Asked], str]]:
    """Name of a kind -> its writer."""
    from ringup.script import batch, hosts, kubernetes

    return {
        "slurm": batch.slurm,
        "pbs": batch.pbs,
        "lsf": batch.lsf,
        "ssh": hosts.ssh,
        "docker": hosts.docker,
        "k8s-job": kubernetes.indexed_job,
        "jobset": kubernetes.job_set,
        "pytorchjob": kubernetes.pytorch_job,
        "trainjob": kubernetes.train_job,
        "volcano": kubernetes.volcano,
    }


KINDS = (
    "slurm",
    "pbs",
    "lsf",
    "ssh",
    "docker",
    "k8s-job",
    "jobset",
    "pytorchjob",
    "trainjob",
    "volcano",
)
"""INTERFACE.md's names."""
