"""
The words each node executes, one function a launcher.

Words are never joined here; a shell never sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ringup.errors import LaunchError
from ringup.facts import Job
from ringup.plan.launchers import LLAMAFACTORY_MODULE, SHIM, Place, Start, bare, torch

__all__ = ["LAUNCHERS", "SHIM", "Launcher", "Place", "Start", "known", "program", "start"]


@dataclass(frozen=True)
class Launcher:
    """One way to start the ranks of a node."""

    start: Callable[[Place, Job], Start]
    rendezvous: tuple[str, ...] = ("static",)
    is_even: bool = False
    """Whether every node must have the same number of ranks."""
    is_bare: bool = False
    """Whether there is no launcher that could take options."""
    by_node: bool = False
    """Whether one process a node is the default, and not one a GPU."""
    note: str = ""
    """What a user who knows the launcher would not expect."""


BOTH = ("static", "c10d")

LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(torch.torchrun, BOTH),
    "accelerate": Launcher(
        torch.accelerate,
        BOTH,
        is_even=True,
        note="no node's accelerate config is used: precision is what the script says, or --launcher-args",
    ),
    "deepspeed": Launcher(bare.deepspeed, note="deepspeed: its launcher of one node, without pdsh and ssh"),
    "colossalai": Launcher(
        torch.colossalai, BOTH, note="colossalai run: what it starts on each node, without its own ssh"
    ),
    "llamafactory": Launcher(
        torch.llamafactory,
        BOTH,
        note="llamafactory-cli: what it starts on each node, torchrun and its module",
    ),
    "jax": Launcher(bare.jax, is_bare=True, by_node=True),
    "python": Launcher(bare.python, is_bare=True),
    "launch": Launcher(torch.launch, BOTH),
    "spawn": Launcher(
        bare.spawn,
        is_even=True,
        is_bare=True,
        note="mp.spawn: one process a node; ranks share their node's prefix and log file",
    ),
}
"""`--with NAME` -> how a node is started."""


def known(job: Job) -> Launcher:
    """
    The job's launcher.

    Raises LaunchError for one that is not known.
    """
    if job.launcher not in LAUNCHERS:
        raise LaunchError(
            f"no launcher {job.launcher!r}", hint="--with takes one of: " + ", ".join(sorted(LAUNCHERS))
        )
    return LAUNCHERS[job.launcher]


def start(place: Place, job: Job) -> Start:
    """
    What one node executes, and the variables this needs there.

    Raises LaunchError for a launcher that is not known or cannot do what is asked.
    """
    launcher = known(job)
    if job.rendezvous not in launcher.rendezvous:
        raise LaunchError(
            f"{job.launcher} has no {job.rendezvous} rendezvous",
            hint="leave --rdzv out, or take --with torchrun",
        )
    if launcher.is_even and len(set(place.nproc_all)) > 1:
        counts = ", ".join(map(str, place.nproc_all))
        raise LaunchError(
            f"{job.launcher} cannot start different numbers of ranks on the nodes ({counts})",
            hint="give all the same with --nproc, or take --with torchrun",
        )
    if launcher.is_bare and job.launcher_arguments:
        raise LaunchError(
            f"--with {job.launcher} has no launcher that could take --launcher-args",
            hint="options of the script go behind it",
        )
    return launcher.start(place, job)


def program(job: Job, script: str) -> str:
    """What the shim is told to run (RINGUP_SCRIPT): `script` is the path of the job's own."""
    return f"-m {LLAMAFACTORY_MODULE}" if job.launcher == "llamafactory" else script
