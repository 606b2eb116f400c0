"""A node's processes, interpreter, limits, space, files and clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Process:
    """A process of interest; `run_id` is the run tag in its environment, where readable."""

    pid: int
    ppid: int
    user: str
    age_s: float
    command: str
    run_id: str = ""
    evidence: str = ""
    """Why it counts as left by an earlier run: "parent gone", "torchrun environment", ..."""


@dataclass(frozen=True)
class Interpreter:
    """
    The python the job would use, as found in the shell the job gets.

    Versions are read from package metadata, never by importing torch; "" means not installed.
    """

    path: str
    version: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    """Version of the NCCL that torch would load ("2.27.7"), "" where there is none."""
    numpy: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Launchers and frameworks installed beside it: accelerate, deepspeed, colossalai, jax, ..."""
    torch_path: str = ""


@dataclass(frozen=True)
class Limits:
    """Limits of the job's own shell; infinity is unlimited."""

    memlock_bytes: float
    open_files: float
    processes: float = float("inf")
    locks_freely: bool = False
    """Whether `memlock_bytes` does not bind it: it has CAP_IPC_LOCK, as root of the machine itself has."""


@dataclass(frozen=True)
class Space:
    """Room on one file system."""

    path: str
    total_bytes: int
    free_bytes: int
    read_only: bool = False


@dataclass(frozen=True)
class FileFact:
    """The training script (or another file) on a node; `sha256` is "" where it is missing."""

    path: str
    exists: bool
    sha256: str = ""
    size_bytes: int = 0


@dataclass(frozen=True)
class Clock:
    """
    A node's clock against the launcher's: offset = remote - local, at the best round trip.

    The true offset lies within `error_s` of `offset_s` (half the round trip).
    """

    offset_s: float
    error_s: float
