"""What surrounds a job on a node: its container, memory, stuck processes, libraries, leftovers, paths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ringup.facts.system import Process


@dataclass(frozen=True)
class Container:
    """What confines the job's shell: the tightest limit of its cgroups; infinity is none."""

    kind: str = ""
    """ "docker", "podman", "kubernetes", "lxc", "container"; "" on the machine itself."""
    cpus: float = math.inf
    """Processors' worth of time it may use, whatever number it may run on."""
    memory_bytes: float = math.inf
    processes: float = math.inf
    oom_kills: int = 0
    """Processes of this cgroup that the kernel has ended for memory since the cgroup began."""
    has_login_session: bool = False
    """Whether systemd counts the job's shell as a login of its user."""


@dataclass(frozen=True)
class Memory:
    """Memory under pressure."""

    swap_total_bytes: int = 0
    swap_used_bytes: int = 0
    stalled_share: float | None = None
    """
    Share of the last minute in which some task waited for memory (/proc/pressure/memory); None where the
    kernel keeps no account.
    """
    oom_kills: int = 0
    """Processes the kernel has ended for memory since the machine started."""


@dataclass(frozen=True)
class Numa:
    """The machine's memory nodes, and whether the kernel moves pages between them by itself."""

    nodes: int = 1
    is_balancing: bool = False


@dataclass(frozen=True)
class Stuck:
    """Processes that neither run nor end."""

    processes: int = 0
    """All that were seen."""
    zombies: int = 0
    own_zombies: int = 0
    """Zombies of the user who asked."""
    blocked: tuple[Process, ...] = ()
    """In uninterruptible sleep without a moment's run between two looks."""


@dataclass(frozen=True)
class ShmFile:
    """A file of NCCL's or torch's in /dev/shm."""

    name: str
    size_bytes: int
    user: str
    age_s: float
    owner: Literal["lives", "gone", "unknown"] = "unknown"
    """The process that made it, where the file's name tells."""


@dataclass(frozen=True)
class Look:
    """How long one look at a path took."""

    path: str
    took_s: float
    answered: bool = True
    """False: nothing came back in `took_s`."""


@dataclass(frozen=True)
class Library:
    """A shared library that a process could load."""

    path: str
    version: str = ""
    source: str = ""
    """ "LD_PRELOAD", "LD_LIBRARY_PATH", "wheel", "torch", "conda", "prefix", "system"."""
