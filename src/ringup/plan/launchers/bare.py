"""
Without torchrun: DeepSpeed's own launcher of one node, JAX, and scripts that need none.

Sources: DeepSpeed 0.19.8 `launcher/launch.py`, `runner.py`; jax 0.10.2 `_src/distributed.py`,
`_src/clusters/`; PyTorch's imagenet example for scripts that spawn.
"""

from __future__ import annotations

import base64
import json

from ringup.facts import Job
from ringup.plan import EnvVar
from ringup.plan.launchers import Place, Start, variables

RANKS = "RINGUP_RANKS"
"""Tells the shim to start this node's ranks itself: "FIRST:COUNT" (payload/rank.py)."""
RANK, LOCAL_RANK = "{rank}", "{local_rank}"
"""What the shim replaces by each rank's own numbers, in arguments and in values of variables."""


def deepspeed(place: Place, job: Job) -> Start:
    """
    `deepspeed.launcher.launch`: what the `deepspeed` command starts on each node by pdsh.

    The command itself sends only NCCL_*, PYTHON*, UCX_* and the like (no GLOO_*, no TORCH_*, no PATH),
    takes its address from `hostname -I`, ends with 0 when its child was killed, and ends every
    DeepSpeed job of the user where it cleans up.  Visible GPUs are handed on by their own ids: the
    launcher overwrites CUDA_VISIBLE_DEVICES with what it is told.
    """
    counts = list(place.nproc_all)
    info = {f"node{i}": [*range(count)] for i, count in enumerate(counts)}
    if isinstance(place.node_rank, int) and len(place.devices) >= place.nproc:
        ids = [int(d) if d.isdecimal() else d for d in place.devices[: place.nproc]]
        info[f"node{place.node_rank}"] = ids
    words = (
        place.python,
        "-u",
        "-m",
        "deepspeed.launcher.launch",
        f"--world_info={packed(info)}",
        f"--node_rank={place.node_rank}",
        f"--master_addr={place.master_addr}",
        f"--master_port={place.master_port}",
        *job.launcher_arguments,
        *place.program(job),
        *job.arguments,
    )
    return Start(words, variables("DeepSpeed's launcher leaves it out", {"LOCAL_WORLD_SIZE": place.nproc}))


def packed(info: object) -> str:
    """As DeepSpeed wants it, and short: an argument may have 128 KiB, which is 4000 nodes of 8 GPUs."""
    return base64.urlsafe_b64encode(json.dumps(info, separators=(",", ":")).encode()).decode()


def meeting(place: Place, because: str = "as torchrun sets it") -> tuple[EnvVar, ...]:
    """What every rank of a node is told alike."""
    values = {
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": place.master_port,
        "WORLD_SIZE": place.world_size,
        "LOCAL_WORLD_SIZE": place.nproc,
        "GROUP_RANK": place.node_rank,
        "GROUP_WORLD_SIZE": place.node_count,
    }
    return variables(because, values)


def each_rank(place: Place, job: Job) -> tuple[tuple[str, ...], tuple[EnvVar, ...]]:
    """The shim as starter of this node's ranks; in a job file the script, started once a rank by others."""
    arguments = tuple(place.filled(word) for word in job.arguments)
    if not place.shim or not isinstance(place.node_rank, int):
        return (place.python, "-u", *place.program(job), *arguments), ()
    first = sum(place.nproc_all[: place.node_rank])
    start = EnvVar(RANKS, f"{first}:{place.nproc}", "first rank of this node, and how many are started here")
    return (place.python, place.shim, *arguments), (start,)


def python(place: Place, job: Job) -> Start:
    """A plain env:// script, once a rank, with the variables torchrun would set."""
    words, env = each_rank(place, job)
    return Start(words, (*meeting(place, "for init_process_group() with env://"), *env))


def jax(place: Place, job: Job) -> Start:
    """
    A script that calls `jax.distributed.initialize()`, by default once a node with all its GPUs.

    JAX reads the coordinator from its own variable, but how many processes there are and which
    this is only from a cluster it knows; Open MPI's variables are the first it looks for and the
    only ones that are nothing but numbers.  From the local rank it would take one GPU a process.
    """
    words, env = each_rank(place, job)
    count = {
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{place.endpoint}",
        "OMPI_COMM_WORLD_SIZE": place.world_size,
        "OMPI_COMM_WORLD_RANK": RANK,
        "OMPI_COMM_WORLD_LOCAL_RANK": LOCAL_RANK,
    }
    # gRPC asks the proxy for the head's address, too, and JAX complains of any variable so named.
    proxy: dict[str, object] = {"no_grpc_proxy": place.master_addr, "JAX_CHECK_PROXY_ENVS": "false"}
    devices: dict[str, object] = {}
    if place.nproc == 1 and place.gpu_count > 1:
        devices["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(place.gpu_count)))
    return Start(
        words,
        (
            EnvVar("JAX_COORDINATOR_ADDRESS", place.endpoint, "read by jax.distributed.initialize()"),
            *variables("how JAX learns its number of processes and its own", count),
            *variables("one process has all GPUs of its node", devices),
            *variables("the coordinator is not behind the web proxy", proxy if place.has_proxy else {}),
            *meeting(place),
            *env,
        ),
    )


def spawn(place: Place, job: Job) -> Start:
    """
    A script that starts its ranks itself with `mp.spawn`: one process a node, told the node's rank.

    RANK and WORLD_SIZE count nodes here, as such scripts expect (PyTorch's imagenet example with
    `--dist-url env://`); a script that takes options instead is given `--rank {node_rank}` and the like.
    """
    arguments = tuple(place.filled(word) for word in job.arguments)
    values = {
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": place.master_port,
        "WORLD_SIZE": place.node_count,
        "RANK": place.node_rank,
        "NODE_RANK": place.node_rank,
        "LOCAL_WORLD_SIZE": place.nproc,
    }
    because = "nodes are counted, the script counts its own processes"
    return Start((place.python, "-u", job.script, *arguments), variables(because, values))
