"""
Files that start the job, without ringup unless it must restart the job: `ringup script KIND`.

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
    """`ringup run` in the job, in place of the launcher, and settings for the scheduler."""

    words: tuple[str, ...]
    """The whole command, with its interpreter."""
    most: int = 0
    spares: int = 0
    """Number of spares; the last nodes."""
    signal: str = ""
    """`--save-signal` without SIG; "" for none."""
    notice_s: int = 0
    """Seconds before its end at which the job needs that signal."""


@dataclass(frozen=True)
class Asked:
    """The job that a file starts, and its place."""

    job: Job
    nodes: int
    nproc: int
    gpus: int
    """GPUs to request on each node; 0 for a job without GPUs."""
    name: str
    python: str
    """Interpreter on the nodes: a path, or a name on PATH."""
    plan: Plan | None = None
    """The plan from live nodes or saved facts; None without them."""
    env: tuple[EnvVar, ...] = ()
    """The plan's variables, those of `--debug`, the user's own."""
    queue: str = ""
    """Partition (Slurm) or queue (PBS, LSF)."""
    account: str = ""
    time: str = ""
    """Limit as HH:MM:SS."""
    cpus: int = 0
    """CPUs on each node; 0 for the site's default."""
    options: tuple[str, ...] = ()
    """Further options of the scheduler, one per line."""
    log: str = ""
    """File of the job's output, as the scheduler writes it; "" for one with the job's name."""
    chunk: str = ""
    """Further resources of a chunk of PBS, such as ":mem=380gb"."""
    targets: Mapping[str, str] = field(default_factory=dict)
    """Node -> its name for ssh, if it has a user name."""
    image: str = ""
    """Container image of docker and Kubernetes."""
    container: tuple[str, ...] = ()
    """Further options of `docker run`; in a file for Slurm, srun's options that name an image."""
    namespace: str = ""
    rdma: str = ""
    """Kubernetes resource of the RDMA devices, "" for none."""
    restarts: Restarts | None = None
    wait_s: int = 300
    """How long the nodes wait for each other: pods start once they are scheduled and have their image."""
    live: tuple[str, ...] = ()
    """Variables that the nodes expand in the script's arguments: `$SLURM_JOB_ID`."""
    finds_network: bool = False
    """Whether the file contains a program that finds the network at its start (`--find-network`)."""


VARIABLE = r"\$(?:(\w+)|\{(\w+)\})"
KINDS = ("slurm", "pbs", "lsf", "ssh", "docker", "k8s-job", "jobset", "pytorchjob", "trainjob", "volcano")
"""Values of KIND in `ringup script KIND`; each is a template."""
BATCH = ("slurm", "pbs", "lsf")
KNOWN_NODES = ("ssh", "docker")
"""Kinds that name the nodes."""
PODS = ("k8s-job", "jobset", "pytorchjob", "trainjob", "volcano")
LIMITED = (*BATCH, "k8s-job", "jobset", "pytorchjob")
"""Kinds with a limit of time."""
