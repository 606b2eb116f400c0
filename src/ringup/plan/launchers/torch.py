"""
Launchers around torchrun: itself, its predecessor, Accelerate, ColossalAI's and LLaMA-Factory's way.

Sources: torch 2.13 `torch/distributed/run.py`, `launch.py`, `launcher/api.py`, `elastic/rendezvous/`;
accelerate 1.15 `commands/launch.py`, `utils/launch.py`; ColossalAI 0.5 `cli/launcher/run.py`;
LLaMA-Factory 0.9.5 `launcher.py`.
"""

from __future__ import annotations

import posixpath

from ringup.facts import Job
from ringup.plan.launchers import Place, Start, variables

C10D_CONF = "join_timeout=300,read_timeout=60"
STATIC_CONF = "timeout=300"
NOT_MULTI_GPU = ("--config_file", "--use_fsdp", "--use_deepspeed", "--use_megatron_lm", "--tpu", "--cpu")
"""Accelerate's options that name another kind of job; it takes one kind only."""


def static_words(place: Place, module: str) -> tuple[str, ...]:
    """
    Static rendezvous: the store listens on exactly the address and port given.

    Unlike c10d it never joins a stranger's listener, never asks the host name, and keeps
    the node order (torch 2.13 `static_tcp_rendezvous.py`).
    """
    return (
        place.python,
        "-m",
        module,
        f"--nnodes={place.node_count}",
        f"--nproc-per-node={place.nproc}",
        f"--node-rank={place.node_rank}",
        f"--master-addr={place.master_addr}",
        f"--master-port={place.master_port}",
        f"--rdzv-conf={STATIC_CONF}",
        "--max-restarts=0",
    )


def c10d_words(place: Place, module: str) -> tuple[str, ...]:
    """
    c10d rendezvous, done right.

    `is_host` says who hosts the store, which torch otherwise guesses from the host name's
    addresses alone; `--local-addr` is what the others are told instead of getfqdn()
    (torch 2.13 `rendezvous/utils.py`, `rendezvous/api.py`).  Node order is torch's, not ours.
    """
    local = (f"--local-addr={place.address}",) if place.address else ()
    return (
        place.python,
        "-m",
        module,
        f"--nnodes={place.node_count}",
        f"--nproc-per-node={place.nproc}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={place.endpoint}",
        f"--rdzv-id={place.run_id}",
        f"--rdzv-conf=is_host={place.is_head},{C10D_CONF}",
        *local,
        "--max-restarts=0",
    )


def torch_words(place: Place, job: Job, module: str) -> tuple[str, ...]:
    """The options of torchrun or `torch.distributed.launch` for the job's rendezvous, the user's own last."""
    words = c10d_words if job.rendezvous == "c10d" else static_words
    return (*words(place, module), *job.launcher_arguments)


def torchrun(place: Place, job: Job) -> Start:
    """`torchrun`, as a module of the interpreter: no PATH is asked for it."""
    words = torch_words(place, job, "torch.distributed.run")
    return Start((*words, *place.program(job), *job.arguments))


def launch(place: Place, job: Job) -> Start:
    """
    `torch.distributed.launch`: torchrun that also passes `--local-rank=K`.

    torch 1 passed `--local_rank`, torch 2 passes `--local-rank`; the shim gives the script the one it knows.
    """
    words = torch_words(place, job, "torch.distributed.launch")
    return Start((*words, *place.program(job), *job.arguments))


def colossalai(place: Place, job: Job) -> Start:
    """
    What `colossalai run` starts on each node, without `colossalai run`.

    It reaches the nodes by an ssh of its own (paramiko), sends them the head's whole environment in
    double quotes, so that each node's own variables are lost and `$` expands, runs whatever `torchrun`
    is on PATH, and leaves all of it running when it ends.  What it runs there is plain static torchrun.
    """
    return torchrun(place, job)


def llamafactory(place: Place, job: Job) -> Start:
    """
    What `llamafactory-cli train` starts on each node, without `llamafactory-cli`.

    The CLI reads its node rank from RANK up to 0.9.0 and from NODE_RANK since, takes a random port
    where MASTER_PORT is not set, runs whatever `torchrun` is on PATH, breaks arguments at spaces, and
    with RDZV_ID leaves out `is_host` and `--local-addr`.  None of that matters here; the variables by
    which it tunes torch are set as it sets them.
    """
    words = torch_words(place, job, "torch.distributed.run")
    config = posixpath.join(job.chdir, job.script) if place.shim else job.script
    env: dict[str, object] = {}
    if job.env.get("OPTIM_TORCH", "1").lower() in ("1", "true", "y"):
        env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_NCCL_AVOID_RECORD_STREAMS": 1}
    because = "as llamafactory-cli sets it, unless OPTIM_TORCH=0"
    return Start((*words, *place.program(job), config, *job.arguments), variables(because, env))


def accelerate(place: Place, job: Job) -> Start:
    """
    `accelerate launch`, every option given, so that no node's `accelerate config` file decides.

    `--num_processes` is the total.  `--same_network` is left out: with it the endpoint is lost under
    c10d.  It knows neither rendezvous id nor own address, but reads torchrun's PET_RDZV_ID and
    PET_LOCAL_ADDR; its DeepSpeed part would start pdsh without `standard`.
    """
    c10d = job.rendezvous == "c10d"
    conf = f"is_host={place.is_head},{C10D_CONF}" if c10d else STATIC_CONF
    own_kind = any(word.partition("=")[0] in NOT_MULTI_GPU for word in job.launcher_arguments)
    kind = () if own_kind or place.world_size < 2 else ("--multi_gpu",)
    precision = () if own_kind else ("--mixed_precision=no", "--dynamo_backend=no")
    words = (
        place.python,
        "-m",
        "accelerate.commands.launch",
        *kind,
        f"--num_machines={place.node_count}",
        f"--num_processes={place.world_size}",
        f"--machine_rank={place.node_rank}",
        f"--main_process_ip={place.master_addr}",
        f"--main_process_port={place.master_port}",
        f"--rdzv_backend={job.rendezvous}",
        f"--rdzv_conf={conf}",
        "--max_restarts=0",
        *precision,
        "--gpu_ids=all",
        "--deepspeed_multinode_launcher=standard",
        *job.launcher_arguments,
        *place.program(job),
        *job.arguments,
    )
    env: dict[str, object] = {"PET_RDZV_ID": place.run_id} if c10d else {}
    if c10d and place.address:
        env["PET_LOCAL_ADDR"] = place.address
    alone: dict[str, object] = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1}
    alone |= {"MASTER_ADDR": place.master_addr, "MASTER_PORT": place.master_port}
    return Start(
        words,
        (
            *variables("read by the torchrun inside accelerate", env),
            *variables("accelerate starts a single rank bare", alone if place.world_size < 2 else {}),
        ),
    )
