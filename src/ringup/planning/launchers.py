"""
The command of each node: one function per launcher, and its row in `LAUNCHERS`.

Arguments are never joined here, and no shell sees them.

Sources: torch 2.13 `torch/distributed/run.py`, `launch.py`, `launcher/api.py`, `elastic/rendezvous/`;
accelerate 1.15 `cli/launch.py`, `utils/launch.py`; ColossalAI 0.5 `cli/launcher/run.py`; LLaMA-Factory 0.9.5
`launcher.py`; DeepSpeed 0.19.8 `launcher/launch.py`, `runner.py`; jax 0.10.2 `_src/distributed.py`,
`_src/clusters/`; PyTorch's imagenet example for scripts that spawn.
"""

from __future__ import annotations

import base64
import json
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, replace

from ringup.errors import LaunchError
from ringup.model import CONTAINERS, Job
from ringup.planning import EnvVar
from ringup.planning.start_line import LLAMAFACTORY_MODULE

SHIM = "rank.py"
"""File in a node's run directory that starts one rank and keeps that rank's exit code."""
C10D_CONF = "is_host={0.is_head},join_timeout={0.wait_s},read_timeout=60"
STATIC_CONF = "timeout={0.wait_s}"
NOT_MULTI_GPU = ("--config_file", "--use_fsdp", "--use_deepspeed", "--use_megatron_lm", "--tpu", "--cpu")
"""Accelerate's options that select another kind of job; only one kind is allowed."""
RANKS = "RINGUP_RANKS"
"""Makes the shim start this node's ranks: "FIRST:COUNT" (agent/rank/rank.py)."""

AS = {"script": (), "module": ("--module",), "command": ("--no_python",)}
"""Options of torchrun, accelerate and deepspeed for the kind of a script."""


@dataclass(frozen=True)
class Place:
    """
    Where on the cluster one node's command runs.

    In a job file, only the node knows some values: `python`, `node_rank`, `address`, `master_addr`,
    `master_port` and `run_id` may then be marks of shell variables (`jobfiles.quoting.variable`).  They are
    inserted unchanged; the writer of the file quotes everything else.
    """

    python: str
    node_count: int
    node_rank: int | str
    nproc: int
    """Ranks on this node."""
    nproc_all: tuple[int, ...]
    """Ranks on every node, in order."""
    address: str
    """This node's own address on the chosen network, "" if unknown."""
    master_addr: str
    master_port: int | str
    run_id: str
    run_dir: str = ""
    shim: str = ""
    """Path of the shim that launchers start in place of the script; "" for the script itself."""
    devices: tuple[str, ...] = ()
    """Ids of this node's GPUs for CUDA_VISIBLE_DEVICES; () without GPUs or for all of them."""
    gpu_count: int = 0
    head: str = ""
    """Shell arithmetic that is true on the head, if only the node knows."""
    has_proxy: bool = False
    """Whether a web proxy is set for the job on this node."""
    wait_s: int = 300
    """How long the nodes wait for each other in torch's rendezvous."""

    @property
    def world_size(self) -> int:
        return sum(self.nproc_all)

    @property
    def is_head(self) -> str:
        """ "1" on the head, "0" elsewhere; shell arithmetic if only the node knows."""
        return self.head or str(int(self.node_rank == 0))

    @property
    def endpoint(self) -> str:
        """Address and port of the rendezvous, with an IPv6 address in brackets."""
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        return f"{host}:{self.master_port}"

    def program(self, job: Job) -> tuple[str, ...]:
        if job.launcher != "llamafactory":
            return (self.shim,) if self.shim else (*AS[job.kind], job.script)
        if self.shim:
            return self.shim, posixpath.join(job.chdir, job.script)
        return "-m", LLAMAFACTORY_MODULE, job.script

    def filled(self, text: str) -> str:
        """
        An argument with `{node_rank}` and similar fields filled in for this node.

        >>> Place("py", 2, 1, 4, (4, 4), "", "10.0.0.1", 29500, "").filled("tcp://{master_addr}:{master_port}")
        'tcp://10.0.0.1:29500'
        """
        for name in ("node_rank", "node_count", "nproc", "world_size", "master_addr", "master_port"):
            text = text.replace(f"{{{name}}}", str(getattr(self, name)))
        return text


@dataclass(frozen=True)
class Start:
    """The command of one node, and the variables that it needs in addition to the plan's."""

    words: tuple[str, ...]
    env: tuple[EnvVar, ...] = ()


def words(text: str, place: Place) -> tuple[str, ...]:
    """The words of a text, with each `{0.NAME}` filled in for this place."""
    return tuple(word.format(place) for word in text.split())


def variables(because: str, text: str, place: Place) -> tuple[EnvVar, ...]:
    """`NAME=VALUE` words as variables, with each `{0.NAME}` filled in for this place."""
    pairs = (word.partition("=") for word in text.split())
    return tuple(EnvVar(name, value.format(place), because) for name, _, value in pairs)


STORE = "MASTER_ADDR={0.master_addr} MASTER_PORT={0.master_port} "
AS_TORCHRUN = STORE + (
    "WORLD_SIZE={0.world_size} LOCAL_WORLD_SIZE={0.nproc} "
    "GROUP_RANK={0.node_rank} GROUP_WORLD_SIZE={0.node_count}"
)
"""The variables that are equal on every rank of a node."""

# -- around torchrun -----------------------------------------------------------------------------

TORCHRUN = "{0.python} -m torch.distributed.%s --nnodes={0.node_count} --nproc-per-node={0.nproc} %s"
STATIC = (
    "--node-rank={0.node_rank} --master-addr={0.master_addr} --master-port={0.master_port} "
    f"--rdzv-conf={STATIC_CONF} --max-restarts=0"
)
C10D = (
    "--rdzv-backend=c10d --rdzv-endpoint={0.endpoint} --rdzv-id={0.run_id} "
    f"--rdzv-conf={C10D_CONF} %s --max-restarts=0"
)


def torchrun(place: Place, job: Job) -> Start:
    """
    `torchrun` or `torch.distributed.launch`, as a module of the interpreter, so that PATH does not matter.

    Static: the store listens on exactly the address and port given.  Unlike c10d it never joins a stranger's
    listener, never uses the host name, and keeps the node order (torch 2.13 `static_tcp_rendezvous.py`).

    c10d: `is_host` decides which node hosts the store, which torch otherwise guesses only from the host
    name's addresses; the other nodes get `--local-addr` instead of getfqdn() (torch 2.13
    `rendezvous/utils.py`, `rendezvous/api.py`). torch decides the node order.

    `launch` also passes the local rank: torch 1 as `--local_rank`, torch 2 as `--local-rank`; the shim passes
    the spelling that the script knows.
    """
    c10d = C10D % ("--local-addr={0.address}" if place.address else "")
    module = "launch" if job.launcher == "launch" else "run"
    return Start(words(TORCHRUN % (module, c10d if job.rendezvous == "c10d" else STATIC), place))


def llamafactory(place: Place, job: Job) -> Start:
    """
    The command that `llamafactory-cli train` starts on each node, without `llamafactory-cli`.

    The CLI reads its node rank from RANK up to 0.9.0 and from NODE_RANK since, takes a random port without
    MASTER_PORT, runs any `torchrun` on PATH, splits arguments at spaces, and with RDZV_ID leaves out
    `is_host` and `--local-addr`.  None of that matters here; it tunes torch by the same variables.
    """
    tuned = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True TORCH_NCCL_AVOID_RECORD_STREAMS=1"
    is_tuned = job.env.get("OPTIM_TORCH", "1").lower() in ("1", "true", "y")
    env = variables("as llamafactory-cli sets it, unless OPTIM_TORCH=0", tuned if is_tuned else "", place)
    return replace(torchrun(place, job), env=env)


ACCELERATE = (
    "--num_machines={0.node_count} --num_processes={0.world_size} --machine_rank={0.node_rank} "
    "--main_process_ip={0.master_addr} --main_process_port={0.master_port} "
    "--rdzv_backend=%s --rdzv_conf=%s --max_restarts=0 %s --gpu_ids=all "
    "--deepspeed_multinode_launcher=standard"
)

_DEFAULTS = ("--mixed_precision", "--dynamo_backend")
"""Options of accelerate that a node's configuration would set otherwise."""


def accelerate(place: Place, job: Job) -> Start:
    """
    `accelerate launch` with every option, so that no node's `accelerate config` file has an effect.

    `--num_processes` is the total.  `--same_network` is left out: with it the endpoint is lost under c10d.
    It has no options for rendezvous id and own address, but reads torchrun's PET_RDZV_ID and PET_LOCAL_ADDR;
    its DeepSpeed part would start pdsh without `standard`.
    """
    is_c10d, is_single = job.rendezvous == "c10d", place.world_size < 2
    is_own_kind = any(word.partition("=")[0] in NOT_MULTI_GPU for word in job.launcher_arguments)
    kind = "" if is_own_kind or is_single else " --multi_gpu"
    given = {word.partition("=")[0] for word in job.launcher_arguments}
    defaults = "" if is_own_kind else " ".join(f"{name}=no" for name in _DEFAULTS if name not in given)
    options = ACCELERATE % (job.rendezvous, C10D_CONF if is_c10d else STATIC_CONF, defaults)
    pet = "PET_RDZV_ID={0.run_id} " + "PET_LOCAL_ADDR={0.address}" * bool(place.address)
    env = variables("read by the torchrun inside accelerate", pet if is_c10d else "", place)
    single = f"RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 {STORE}" if is_single else ""
    env += variables("accelerate starts a single rank bare", single, place)
    return Start(words(f"{{0.python}} -m accelerate.commands.launch{kind} {options}", place), env)


# -- without torchrun ----------------------------------------------------------------------------


def deepspeed(place: Place, job: Job) -> Start:
    """
    `deepspeed.launcher.launch`, which the `deepspeed` command starts on each node by pdsh.

    The command itself sends only NCCL_*, PYTHON*, UCX_* and similar variables (no GLOO_*, no TORCH_*, no
    PATH), takes its address from `hostname -I`, exits with 0 after its child was killed, and its clean-up
    ends every DeepSpeed job of the user.  Visible GPUs are passed by their own ids, because the launcher
    overwrites CUDA_VISIBLE_DEVICES with its argument.
    """
    info = {f"node{i}": [*range(count)] for i, count in enumerate(place.nproc_all)}
    if len(place.devices) >= place.nproc:
        ids = [int(d) if d.isdecimal() else d for d in place.devices[: place.nproc]]
        info[f"node{place.node_rank}"] = ids
    # In short form: an argument may have 128 KiB, which is 4000 nodes of 8 GPUs.
    packed = base64.urlsafe_b64encode(json.dumps(info, separators=(",", ":")).encode()).decode()
    text = (
        f"{{0.python}} -u -m deepspeed.launcher.launch --world_info={packed} --node_rank={{0.node_rank}} "
        "--master_addr={0.master_addr} --master_port={0.master_port}"
    )
    env = variables("DeepSpeed's launcher leaves it out", "LOCAL_WORLD_SIZE={0.nproc}", place)
    return Start(words(text, place), env)


def interpreted(place: Place, job: Job) -> tuple[str, ...]:
    """The script without a launcher."""
    if job.kind == "command":
        return (job.script,)
    return (place.python, "-u", *(("-m",) if job.kind == "module" else ()), job.script)


def each_rank(place: Place, job: Job) -> Start:
    """The shim, which starts this node's ranks; in a job file the script, started once per rank."""
    arguments = map(place.filled, job.arguments)
    if not place.shim:
        return Start((*interpreted(place, job), *arguments))
    first = sum(place.nproc_all[: int(place.node_rank)])
    start = EnvVar(RANKS, f"{first}:{place.nproc}", "first rank of this node, and how many are started here")
    return Start((place.python, place.shim, *arguments), (start,))


def python(place: Place, job: Job) -> Start:
    """A plain env:// script, once per rank, with the variables that torchrun would set."""
    begun = each_rank(place, job)
    env = variables("for init_process_group() with env://", AS_TORCHRUN, place)
    return replace(begun, env=env + begun.env)


JAX = (
    "OMPI_MCA_orte_hnp_uri=0.0;tcp://{0.endpoint} OMPI_COMM_WORLD_SIZE={0.world_size} "
    "OMPI_COMM_WORLD_RANK={{rank}} OMPI_COMM_WORLD_LOCAL_RANK={{local_rank}}"
)


def jax(place: Place, job: Job) -> Start:
    """
    A script that calls `jax.distributed.initialize()`, by default once per node with all its GPUs.

    JAX reads the coordinator from its own variable, but the number and index of processes only from a cluster
    that it knows.  It checks Open MPI's variables first, and only these are plain numbers.  With the local
    rank it would take one GPU per process.
    """
    ids = ",".join(map(str, range(place.gpu_count)))
    local_ids = f"JAX_LOCAL_DEVICE_IDS={ids}" if place.nproc == 1 and place.gpu_count > 1 else ""
    # gRPC also contacts the head through the proxy, and JAX complains about every variable with such a name.
    proxy = "no_grpc_proxy={0.master_addr} JAX_CHECK_PROXY_ENVS=false" if place.has_proxy else ""
    rows = (
        ("read by jax.distributed.initialize()", "JAX_COORDINATOR_ADDRESS={0.endpoint}"),
        ("how JAX learns its number of processes and its own", JAX),
        ("one process has all GPUs of its node", local_ids),
        ("the coordinator is not behind the web proxy", proxy),
        ("as torchrun sets it", AS_TORCHRUN),
    )
    begun = each_rank(place, job)
    return replace(begun, env=(*(v for row in rows for v in variables(*row, place)), *begun.env))


def spawn(place: Place, job: Job) -> Start:
    """
    A script that starts its ranks itself with `mp.spawn`: one process per node, which gets the node's rank.

    RANK and WORLD_SIZE count nodes here, as such scripts expect (PyTorch's imagenet example with `--dist-url
    env://`); a script that takes options instead needs `--rank {node_rank}` and similar.
    """
    counts = "WORLD_SIZE={0.node_count} RANK={0.node_rank} NODE_RANK={0.node_rank} LOCAL_WORLD_SIZE={0.nproc}"
    env = variables("nodes are counted, the script counts its own processes", STORE + counts, place)
    return Start((*interpreted(place, job), *map(place.filled, job.arguments)), env)


def shown_to_shim(job: Job) -> str:
    """The command that the shim starts as each rank (RINGUP_SCRIPT of agent/rank/rank.py)."""
    if job.launcher == "llamafactory":
        return f"-m {LLAMAFACTORY_MODULE}"
    if job.kind == "module":
        return f"-m {job.script}"
    path = posixpath.join(job.chdir, job.file)
    return path if job.kind == "script" else f"--no-python {path if job.file else job.script}"


def wrapped(place: Place, job: Job) -> tuple[str, ...]:
    """The words in front of the launcher; an image gets the run's directory."""
    words = list(job.wrapper)
    if place.run_dir and job.is_in_image:
        at = next(i for i, word in enumerate(words) if posixpath.basename(word) in CONTAINERS)
        at = next(i for i in range(at, len(words)) if words[i] in ("exec", "run"))
        # In one word: an argument that begins with the run's directory would look like a program of ringup.
        words.insert(at + 1, f"--bind={place.run_dir}")
    return tuple(words)


# -- all of them ---------------------------------------------------------------------------------

BOTH = ("static", "c10d")


@dataclass(frozen=True)
class Launcher:
    begin: Callable[[Place, Job], Start]
    """The launcher's own words; if it is bare, all words."""
    rendezvous: tuple[str, ...] = ("static",)
    is_even: bool = False
    """Whether every node must have the same number of ranks."""
    is_bare: bool = False
    """Whether there is no launcher that takes options."""
    by_node: bool = False
    """Whether the default is one process per node, not one per GPU."""
    note: str = ""
    """A note on differences from the launcher's own behaviour."""

    def start(self, place: Place, job: Job) -> Start:
        begun = self.begin(place, job)
        own = () if self.is_bare else (*job.launcher_arguments, *place.program(job), *job.arguments)
        return replace(begun, words=(*wrapped(place, job), *begun.words, *own))


LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(torchrun, BOTH),
    "accelerate": Launcher(
        accelerate,
        BOTH,
        is_even=True,
        note="accelerate's config files are not used: set the precision in the script or by --launcher-args",
    ),
    "deepspeed": Launcher(deepspeed, note="deepspeed: its launcher of one node, without pdsh and ssh"),
    # `colossalai run` reaches the nodes by its own ssh client (paramiko) and sends them the head's
    # environment in double quotes, so that each node's own variables are lost and `$` expands.  It runs any
    # `torchrun` on PATH, and leaves all of it running when it ends.  Its command is plain static torchrun.
    "colossalai": Launcher(torchrun, BOTH, note="colossalai run: its start of each node, without its ssh"),
    "llamafactory": Launcher(
        llamafactory, BOTH, note="llamafactory-cli: its start of each node, by torchrun"
    ),
    "jax": Launcher(jax, is_bare=True, by_node=True),
    "python": Launcher(python, is_bare=True),
    "launch": Launcher(torchrun, BOTH),
    "spawn": Launcher(
        spawn,
        is_even=True,
        is_bare=True,
        note="mp.spawn: one process a node; ranks share their node's prefix and log file",
    ),
}
"""`--with NAME` -> how to start a node."""


def known(job: Job) -> Launcher:
    if job.launcher in LAUNCHERS:
        return LAUNCHERS[job.launcher]
    names = ", ".join(sorted(LAUNCHERS))
    raise LaunchError(f"no launcher {job.launcher!r}", hint=f"--with takes one of: {names}")


def start(place: Place, job: Job) -> Start:
    """A node's command.  Raises LaunchError for a launcher that is unknown or lacks what the job needs."""
    launcher = known(job)
    if job.rendezvous not in launcher.rendezvous:
        words = f"{job.launcher} has no {job.rendezvous} rendezvous"
        raise LaunchError(words, hint="leave --rdzv out, or take --with torchrun")
    if launcher.is_even and len(set(place.nproc_all)) > 1:
        counts = ", ".join(map(str, place.nproc_all))
        words = f"{job.launcher} cannot start different numbers of ranks on the nodes ({counts})"
        raise LaunchError(words, hint="give all the same with --nproc, or take --with torchrun")
    if launcher.is_bare and job.launcher_arguments:
        words = f"--with {job.launcher} has no launcher that could take --launcher-args"
        raise LaunchError(words, hint="options of the script go behind it")
    return launcher.start(place, job)
