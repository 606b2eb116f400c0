"""The words each launcher needs on one node: pure functions of a `Place` and the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ringup.facts import Job
from ringup.plan import EnvVar

SHIM = "rank.py"
"""File in a node's run directory that starts one rank and keeps its own exit code."""
LLAMAFACTORY_MODULE = "llamafactory.launcher"
"""What `llamafactory-cli train` has torchrun run (LLaMA-Factory 0.8 to 0.9.5)."""


@dataclass(frozen=True)
class Place:
    """
    Where on the cluster one node's words run.

    In a job file some values are known on the node alone: `python`, `node_rank`, `address`,
    `master_addr`, `master_port` and `run_id` may then be shell text ("$SLURM_NODEID").  It is put
    into the words as it is, and quoting it is up to whoever writes the file.
    """

    python: str
    node_count: int
    node_rank: int | str
    nproc: int
    """Ranks on this node."""
    nproc_all: tuple[int, ...]
    """Ranks on every node, in order."""
    address: str
    """This node's own address on the chosen network, "" when unknown."""
    master_addr: str
    master_port: int | str
    run_id: str
    run_dir: str = ""
    shim: str = ""
    """Path of the shim that launchers are given in place of the script; "" for the script itself."""
    devices: tuple[str, ...] = ()
    """Ids of this node's GPUs as CUDA_VISIBLE_DEVICES names them; () where there is none or all are meant."""
    gpu_count: int = 0
    has_proxy: bool = False
    """Whether a web proxy is set for the job here."""

    @property
    def world_size(self) -> int:
        """Ranks on all nodes together."""
        return sum(self.nproc_all)

    @property
    def is_head(self) -> str:
        """ "1" on the head, "0" elsewhere; shell arithmetic where only the node knows."""
        if isinstance(self.node_rank, int):
            return str(int(self.node_rank == 0))
        return f"$(({self.node_rank.strip('${}')} == 0))"

    @property
    def endpoint(self) -> str:
        """Address and port of the rendezvous, an IPv6 address in brackets."""
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        return f"{host}:{self.master_port}"

    def program(self, job: Job) -> tuple[str, ...]:
        """What the launcher is to run as each rank."""
        if self.shim:
            return (self.shim,)
        return ("-m", LLAMAFACTORY_MODULE) if job.launcher == "llamafactory" else (job.script,)

    def filled(self, text: str) -> str:
        """
        An argument with `{node_rank}` and the like replaced by what they are here.

        >>> Place("py", 2, 1, 4, (4, 4), "", "10.0.0.1", 29500, "").filled("tcp://{master_addr}:{master_port}")
        'tcp://10.0.0.1:29500'
        """
        names = ("node_rank", "node_count", "nproc", "world_size", "master_addr", "master_port")
        for name in names:
            text = text.replace(f"{{{name}}}", str(getattr(self, name)))
        return text


@dataclass(frozen=True)
class Start:
    """What one node executes, and the variables that this needs beside the plan's own."""

    words: tuple[str, ...]
    env: tuple[EnvVar, ...] = ()


def variables(because: str, values: Mapping[str, object]) -> tuple[EnvVar, ...]:
    """Variables with one reason."""
    return tuple(EnvVar(name, str(value), because) for name, value in values.items())
