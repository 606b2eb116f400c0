"""
Files that start the job, without ringup unless it is to restart it: `ringup script KIND`.

    templates/   one file a kind, and their common parts
    templating   fills them; every value goes through a quoting filter
    quoting      words of bash, and what a node executes

Everything here is text from an `Asked`; nothing is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ringup.model import Job
from ringup.planning import EnvVar, Plan


@dataclass(frozen=True)
class Restarts:
    """`ringup run` in the job, in place of the launcher, and what the scheduler must know of it."""

    words: tuple[str, ...]
    """The whole command, its interpreter first."""
    most: int = 0
    """`--max-restarts`."""
    spares: int = 0
    """Of the nodes, the last ones."""
    signal: str = ""
    """`--save-signal` without SIG; "" for none."""
    notice_s: int = 0
    """How long before its end the job needs that signal."""


@dataclass(frozen=True)
class Asked:
    """What a file is to start, and where."""

    job: Job
    nodes: int
    nproc: int
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
    container: tuple[str, ...] = ()
    """Further options of `docker run`; in a file for Slurm those of srun that name an image."""
    namespace: str = ""
    rdma: str = ""
    """Kubernetes resource of the RDMA devices, "" for none."""
    restarts: Restarts | None = None
    finds_network: bool = False
    """Whether the file finds the network when it runs, by a program in it (`--find-network`)."""


KINDS = ("slurm", "pbs", "lsf", "ssh", "docker", "k8s-job", "jobset", "pytorchjob", "trainjob", "volcano")
"""What `ringup script KIND` takes; each is a template."""
BATCH = ("slurm", "pbs", "lsf")
KNOWN_NODES = ("ssh", "docker")
"""Kinds that name the nodes."""
PODS = ("k8s-job", "jobset", "pytorchjob", "trainjob", "volcano")
"""Kubernetes kinds."""
