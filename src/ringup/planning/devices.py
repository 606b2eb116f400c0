"""
RDMA devices, the GID index, jobs on CPUs: only the variables that NCCL and frameworks need.

A variable is set only if NCCL would choose wrongly without it, and never on a single machine.
"""

from __future__ import annotations

from collections import Counter

from ringup.model import Cluster, Node
from ringup.nccl import rdma_devices
from ringup.network.predictions import predicted
from ringup.planning import AboutNodes, EnvVar, about_nodes, joined, user_value


def variables(cluster: Cluster, notes: list[str]) -> list[EnvVar]:
    """NCCL_IB_HCA and NCCL_IB_GID_INDEX if they change something; undecided questions go to `notes`."""
    if cluster.job.backend == "gloo" or len(cluster.nodes) < 2 or cluster.is_local:
        return []
    return _devices(cluster, notes) + _gid_index(cluster, notes)


def _devices(cluster: Cluster, notes: list[str]) -> list[EnvVar]:
    """NCCL_IB_HCA if NCCL would also take ports of another network."""
    reasons: dict[str, tuple[str, str]] = {}
    selections = predicted(cluster).nodes
    known = [s for s in selections.values() if "rdma_ports" not in s.node.unknown]
    users = Counter(p.name for one in known for p in one.main_ports)
    said: list[tuple[AboutNodes, str]] = []
    for node in cluster.nodes:
        if why := "not reached" if node.unreached else node.unknown.get("rdma_ports", ""):
            said.append((("the RDMA devices of ", f" are not known: {why}"), node.name))
            continue
        taken, chosen = selections[node.name].rdma_ports, selections[node.name].main_ports
        # The port is slow only here, and other nodes use it at its full rate.  Without it, this node would
        # have another number of devices than its peers.
        left = [p for p in taken if p not in chosen and not users[p.name]]
        own = user_value(cluster.job, node, "NCCL_IB_HCA")
        if left and own is not None:
            kept = f" is kept: set by you; it also takes {left[0].name}"
            said.append(((f"NCCL_IB_HCA={own} on ", kept), node.name))
        elif left:
            out = ", ".join(f"{rdma_devices.shown(p)} {p.rate_gbit_s:g} Gbit/s" for p in left)
            value = rdma_devices.hca_value([p for p in taken if p not in left], node.rdma_ports)
            why = f"NCCL would also take {out}, which is on another network than {chosen[0].name}"
            reasons[node.name] = value, why
    notes += about_nodes(said)
    return _everywhere_or_each("NCCL_IB_HCA", cluster, reasons)


def _everywhere_or_each(name: str, cluster: Cluster, reasons: dict[str, tuple[str, str]]) -> list[EnvVar]:
    """One variable if every node needs the same value, else one for each node that needs it."""
    values = {value for value, _ in reasons.values()}
    because = joined(why for _, why in reasons.values())
    if len(values) == 1 and len(reasons) == len(cluster.nodes):
        return [EnvVar(name, values.pop(), because)]
    return [EnvVar(name, value, why, node=node) for node, (value, why) in reasons.items()]


def _gid_index(cluster: Cluster, notes: list[str]) -> list[EnvVar]:
    """NCCL_IB_GID_INDEX for RoCE before 2.21, if index 0 is not the entry to use."""
    reasons: dict[str, tuple[str, str]] = {}
    said: list[tuple[AboutNodes, str]] = []
    for selection in predicted(cluster).nodes.values():
        node, ports = selection.node, selection.roce_ports
        own = user_value(cluster.job, node, "NCCL_IB_GID_INDEX")
        if not ports or selection.version >= rdma_devices.CHOOSES_GIDS or own is not None:
            continue
        found = {rdma_devices.gid_index(p, {}, rdma_devices.CHOOSES_GIDS).index for p in ports}
        if None in found:
            unread = ": NCCL before 2.21 uses GID index 0; the table is not known (show_gids)"
            said.append((("", unread), node.name))
        elif len(found) > 1:
            indexes = sorted(map(str, found))
            said.append((("", f": RoCE ports need GID indexes {indexes}, but one counts"), node.name))
        elif found != {0}:
            why = "NCCL before 2.21 takes index 0, which is link-local RoCE v1; this entry has an address"
            reasons[node.name] = str(found.pop()), why
    notes += about_nodes(said)
    return _everywhere_or_each("NCCL_IB_GID_INDEX", cluster, reasons)


OTHER_ACCELERATORS = (
    *("habana_torch_plugin", "intel_extension_for_pytorch", "libtpu", "torch_gcu", "torch_mlu", "torch_musa"),
    *("torch_neuronx", "torch_npu", "torch_sdaa", "torch_xla"),
)
"""Packages that give torch or JAX an accelerator that is not counted as a GPU (agent/facts/software.py)."""


def for_cpus(cluster: Cluster, world_size: int) -> list[EnvVar]:
    """
    Variables that the installed frameworks need to form one world of ranks on nodes that have only CPUs.

    Accelerate 1.15 (`state.py`, `_prepare_backend`) uses CPUs for distributed training only if requested,
    else every rank trains alone; transformers' Trainer reads the same variable (`training_args.py`).
    DeepSpeed before 0.14 defaults to CUDA (`real_accelerator.py`); JAX before 0.5 has no collectives between
    CPU processes unless one is named.  Lightning needs nothing.
    """
    if world_size < 2 or not all(map(_has_only_cpus, cluster.nodes)):
        return []
    installed = {name for node in cluster.nodes for name in node.interpreter.packages}
    found = []
    for package, name, value, why in (
        ("accelerate", "ACCELERATE_USE_CPU", "true", "Accelerate and Trainer would train each rank alone"),
        ("deepspeed", "DS_ACCELERATOR", "cpu", "DeepSpeed may look for CUDA"),
        ("jax", "JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo", "JAX may have no collectives between CPUs"),
    ):
        is_used = package in installed and (package != "jax" or cluster.job.launcher == "jax")
        if is_used and all(user_value(cluster.job, node, name) is None for node in cluster.nodes):
            found.append(EnvVar(name, value, f"no node has a GPU: {why}"))
    return found


def _has_only_cpus(node: Node) -> bool:
    """Whether the job certainly has neither GPUs nor other accelerators."""
    if {"gpu_count", "interpreter"} & set(node.unknown) or node.gpu_count:
        return False
    own = node.interpreter
    return "+xpu" not in own.torch and own.packages.keys().isdisjoint(OTHER_ACCELERATORS)
