"""
The words each node executes, one function a launcher.

Sources: torch 2.13 `torch/distributed/run.py`, `launcher/api.py`, `elastic/rendezvous/`.
Words are never joined here; a shell never sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringup.errors import LaunchError
from ringup.facts import Job

SHIM = "rank.py"
"""File in a node's run directory that starts one rank and keeps its own exit code."""


@dataclass(frozen=True)
class Place:
    """Where on the cluster one node's words run."""

    python: str
    node_count: int
    node_rank: int
    nproc: int
    nproc_all: tuple[int, ...]
    address: str
    """This node's own address on the chosen network, "" when unknown."""
    master_addr: str
    master_port: int
    run_id: str
    run_dir: str


def torchrun_static(place: Place, job: Job) -> tuple[str, ...]:
    """
    `torchrun` with static rendezvous: the store listens on exactly the address and port given.

    Unlike c10d it never joins a stranger's listener, never asks the host name, and keeps
    the node order (torch 2.13 `static_tcp_rendezvous.py`).
    """
    return (
        place.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={place.node_count}",
        f"--nproc-per-node={place.nproc}",
        f"--node-rank={place.node_rank}",
        f"--master-addr={place.master_addr}",
        f"--master-port={place.master_port}",
        "--rdzv-conf=timeout=300",
        "--max-restarts=0",
        f"{place.run_dir}/{SHIM}",
        *job.arguments,
    )


def torchrun_c10d(place: Place, job: Job) -> tuple[str, ...]:
    """
    `torchrun` with c10d rendezvous, done right.

    `is_host` says who hosts the store, which torch otherwise guesses from the host name's
    addresses alone; `--local-addr` is what the others are told instead of getfqdn()
    (torch 2.13 `rendezvous/utils.py`, `rendezvous/api.py`).  Node order is torch's, not ours.
    """
    endpoint = place.master_addr if ":" not in place.master_addr else f"[{place.master_addr}]"
    local = (f"--local-addr={place.address}",) if place.address else ()
    return (
        place.python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={place.node_count}",
        f"--nproc-per-node={place.nproc}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}:{place.master_port}",
        f"--rdzv-id={place.run_id}",
        f"--rdzv-conf=is_host={int(place.node_rank == 0)},join_timeout=300,read_timeout=60",
        *local,
        "--max-restarts=0",
        f"{place.run_dir}/{SHIM}",
        *job.arguments,
    )


def torchrun(place: Place, job: Job) -> tuple[str, ...]:
    """`torchrun`, with the rendezvous the job asks for."""
    return torchrun_c10d(place, job) if job.rendezvous == "c10d" else torchrun_static(place, job)


LAUNCHERS: dict[str, Callable[[Place, Job], tuple[str, ...]]] = {"torchrun": torchrun}
"""`--with NAME` -> the function that gives a node's words."""


def words(place: Place, job: Job) -> tuple[str, ...]:
    """
    What one node executes.

    Raises LaunchError for a launcher that is not known or cannot do what is asked.
    """
    if job.launcher not in LAUNCHERS:
        raise LaunchError(
            f"no launcher {job.launcher!r}", hint="--with takes one of: " + ", ".join(sorted(LAUNCHERS))
        )
    return LAUNCHERS[job.launcher](place, job)
