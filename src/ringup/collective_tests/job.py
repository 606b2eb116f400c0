"""The program that `test` and `bench` run in place of the user's script, and the backend of its ranks."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from ringup.agent_bundle import program
from ringup.model import Cluster, Node
from ringup.nccl import interface_choice
from ringup.network.predictions import uses_nccl
from ringup.planning import Plan
from ringup.units import grouped, plural, printable, summarize_names, word

FILE = "prove.py"
CUDA = "CUDA_VISIBLE_DEVICES"
OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


Backend = Literal["nccl", "gloo"]

SLURM_GPUS = ("SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
"""Set in a job with GPUs; what Slurm allocated, even if there are no device files."""
HIDING = ("", "-1", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide every GPU on purpose; Slurm sets the last one."""


def backend_of(cluster: Cluster) -> tuple[Backend, tuple[str, ...]]:
    """
    The backend of all ranks, and warnings if GPUs were expected but the job has none.

        --backend given                                 that one, no warning
        the job uses NCCL (`uses_nccl`)                 nccl
        GPU hardware or its driver on a node            nccl, warning; the check or the rank says why it fails
        CUDA_VISIBLE_DEVICES hides the GPUs             gloo, warning
        GPUs allocated or named, none there             gloo, warning
        GPUs could not be counted                       gloo, warning
        no GPU and no sign of one                       gloo
    """
    asked = cluster.job.backend
    if asked:
        return ("nccl" if asked == "nccl" else "gloo"), ()
    if uses_nccl(cluster) == "yes":
        return "nccl", ()
    nodes, env = [n for n in cluster.nodes if not n.unreached], cluster.job.env
    hidden = {n.name for n in nodes if interface_choice.effective(n, env).get(CUDA, "0").strip() in HIDING}
    found = {n.name: _hardware(n) for n in nodes if n.name not in hidden}
    if any(found.values()):
        tail = ", and none is visible to the job (`--backend gloo` tests CPUs instead)"
        return "nccl", _by_words({name: words and words + tail for name, words in found.items()})
    return "gloo", _by_words({n.name: _doubt(n, env, is_hidden=n.name in hidden) for n in nodes})


def _by_words(warnings: Mapping[str, str]) -> tuple[str, ...]:
    """Warnings of several nodes; equal ones share a line."""
    found = grouped((words, name) for name, words in warnings.items() if words)
    return tuple(f"{summarize_names(names)}: {words}" for words, names in found.items())


def _hardware(node: Node) -> str:
    """The evidence that a node has GPUs, or ""; GPUs passed to virtual machines do not count."""
    on_bus = [d for d in node.pci if d.is_own_gpu]
    if on_bus:
        return f"{plural(len(on_bus), 'NVIDIA GPU')} on the PCI bus"
    if node.gpus:
        return f"{plural(len(node.gpus), 'GPU')} listed by the driver's tool"
    return f"NVIDIA driver {node.gpu_driver.version}" if node.gpu_driver.version else ""


def _doubt(node: Node, env: Mapping[str, str], *, is_hidden: bool) -> str:
    """The warning if GPUs are expected on a node but the job has none; else ""."""
    head, seen = "only CPUs are tested: ", interface_choice.effective(node, env)
    if is_hidden:
        found = _hardware(node)
        return f"{head}{CUDA}={word(seen[CUDA])} hides {found}" if found else ""
    if "gpu_count" in node.unknown:
        return f"{head}GPUs could not be counted: {printable(node.unknown['gpu_count'], 200)}"
    names = [CUDA, *(n for n in SLURM_GPUS if seen.get(n) != "0")]
    given = next((n for n in names if seen.get(n)), "")
    return f"{head}{given}={printable(seen[given], 60)}, and no GPU is visible to the job" if given else ""


def sizes(first_bytes: int, last_bytes: int) -> tuple[int, ...]:
    """
    Doubling sizes from the first to the last.

    >>> sizes(1024, 5000)
    (1024, 2048, 4096, 5000)
    """
    found = [first_bytes]
    while found[-1] * 2 <= last_bytes:
        found.append(found[-1] * 2)
    return (*found, last_bytes) if found[-1] < last_bytes else tuple(found)


def shipped(plan: Plan) -> Plan:
    own = [{"RINGUP_SCRIPT": posixpath.join(node.run_dir, FILE)} for node in plan.nodes]
    nodes = tuple(replace(n, env={**n.env, **env}) for n, env in zip(plan.nodes, own, strict=True))
    return replace(plan, nodes=nodes, files={FILE: program("collective.main")})
