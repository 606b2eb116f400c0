"""The nodes of the Slurm, PBS, LSF or Kubernetes allocation that this process runs in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from ringup.errors import NodesError
from ringup.hosts import nodeset
from ringup.hosts.nodeset import MOST_NODES, expand, read_hostfile, refuse
from ringup.model import Host
from ringup.units import printable


def from_allocation(environ: Mapping[str, str]) -> tuple[Host, ...] | None:
    """The nodes of a Slurm, PBS, LSF or Kubernetes allocation, None for none.  Raises NodesError."""
    found = (source(environ) for source in (_slurm, _pbs_lsf, _kubernetes))
    return next((hosts for hosts in found if hosts is not None), None)


def _slurm(environ: Mapping[str, str]) -> tuple[Host, ...] | None:
    """SLURM_JOB_NODELIST is a node set in Slurm's order; SLURM_TASKS_PER_NODE (`4(x2),3`) follows it."""
    if not (nodes := environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")):
        return None
    tasks, task = environ.get("SLURM_STEP_NUM_TASKS", ""), environ.get("SLURM_PROCID", "")
    if tasks.isdecimal() and int(tasks) > 1:
        refuse(
            f"this is task {printable(task, 10)} of {tasks[:10]} that srun started, and each of them would "
            "start the whole job",
            "call ringup once, in the batch script or in salloc's shell, without srun before it",
        )
    found = tuple(dataclasses.replace(host, in_slurm=True) for host in expand(nodes))
    slots = [*_slurm_counts(environ.get("SLURM_TASKS_PER_NODE", ""))]
    if len(slots) != len(found):
        return found
    return tuple(dataclasses.replace(host, slots=n) for host, n in zip(found, slots, strict=True))


def of_allocation(hosts: tuple[Host, ...], environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Nodes on the command line that Slurm has allocated are reached by srun; with a user name, by ssh."""
    try:
        allocated = {host.name for host in expand(environ.get("SLURM_JOB_NODELIST", ""))}
    except NodesError:
        return hosts
    return tuple(
        dataclasses.replace(host, in_slurm=True) if host.name in allocated and not host.user else host
        for host in hosts
    )


def notes(environ: Mapping[str, str]) -> list[str]:
    """Notes about Slurm's allocation for its user, one sentence each."""
    tasks = environ.get("SLURM_NTASKS_PER_NODE", "")
    if environ.get("SLURM_JOB_NODELIST") and tasks.isdecimal() and int(tasks) > 1:
        return [
            f"ntasks-per-node is {tasks[:10]}: torchrun needs one task per node, and ringup starts one; "
            "--nproc says how many ranks"
        ]
    return []


def _slurm_counts(text: str) -> Iterator[int]:
    """
    >>> list(_slurm_counts("4(x2),3"))
    [4, 4, 3]
    """
    for part in text.split(",") if text else ():
        if not (match := re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,5})\))?", part)):
            return
        yield from [int(match[1])] * min(int(match[2] or 1), MOST_NODES + 1)


def _pbs_lsf(environ: Mapping[str, str]) -> tuple[Host, ...] | None:
    """PBS_NODEFILE, LSB_DJOB_HOSTFILE: a file with a line per slot; LSB_MCPU_HOSTS: "host n host n"."""
    hosts: tuple[Host, ...] | None = None
    for variable in ("PBS_NODEFILE", "LSB_DJOB_HOSTFILE"):
        if hosts is None and (path := environ.get(variable)):
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    hosts = read_hostfile(file.read(nodeset.LONGEST_HOSTFILE))
            except OSError as error:
                problem = f"{variable} names {printable(path, 200)}: {error.strerror}"
                raise NodesError(problem, hint="name the nodes with -H") from error
            except NodesError as error:
                raise NodesError(f"{variable}: {error}", hint="name the nodes with -H") from error
    words = environ.get("LSB_MCPU_HOSTS", "").split()
    if hosts is None and words and len(words) % 2 == 0:
        hosts = read_hostfile("\n".join(map(" slots=".join, zip(words[::2], words[1::2], strict=True))))
    return tuple(dataclasses.replace(host, in_batch=True) for host in hosts) if hosts else None


def _kubernetes(environ: Mapping[str, str]) -> tuple[Host, ...] | None:
    """An Indexed Job: pods are `JOB-INDEX.SERVICE`; manifests like ours set the count and the service."""
    index = environ.get("JOB_COMPLETION_INDEX")
    count = environ.get("RINGUP_NODES") or environ.get("JOB_COMPLETIONS") or environ.get("NNODES")
    if not index or not count or not count.isdecimal():
        return None
    if not 0 < int(count) <= MOST_NODES:
        refuse(f"{count} pods in the Indexed Job", f"1 to {MOST_NODES:,}")
    job, dash, own = environ.get("HOSTNAME", "").split(".")[0].rpartition("-")
    if not dash or own != index:
        refuse("HOSTNAME does not end with JOB_COMPLETION_INDEX", "name the nodes with -H")
    service = environ.get("RINGUP_SERVICE") or environ.get("SERVICE_NAME") or ""
    suffix = f".{service}" if service else ""
    return nodeset.checked([nodeset.named_host(f"{job}-{i}{suffix}", "") for i in range(int(count))])
