"""
What was found on the nodes: frozen, and the unit is in the name.

A field that could not be read keeps its empty default, which no rule may read: `Node.unknown` has the reason.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from ringup.model.gpu import Gpu, GpuDriver, GpuLink, GpuProcess, KernelEvent, NvLink, PciDevice, Processor
from ringup.model.network import (
    Address,
    Bond,
    Gid,
    Interface,
    InterfaceKind,
    Listener,
    PortRanges,
    Process,
    RdmaPort,
    Resolution,
    Route,
    SocketLimits,
    Verbs,
)


@dataclass(frozen=True)
class Interpreter:
    """The python of the job's shell; versions are of package metadata, torch is not imported; "": missing."""

    path: str
    version: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    """Version of the NCCL that torch would load ("2.27.7"), "" where there is none."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Launchers and frameworks installed beside it: accelerate, deepspeed, colossalai, jax, ..."""


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
    """A node's clock against the launcher's: remote - local, to within `error_s` (half the round trip)."""

    offset_s: float
    error_s: float


@dataclass(frozen=True)
class NcclAnswer:
    """
    The answer of the very libnccl the job would load, in the job's interpreter and environment.

    `ncclGetUniqueId` needs no GPU and runs NCCL's true choice of the bootstrap interface.
    """

    library: str = ""
    """Path of what was loaded, "" where nobody was asked (`not_asked` says why)."""
    not_asked: str = ""
    version: str = ""
    """ "2.27.7", of ncclGetVersion."""
    result: int = 0
    """ncclResult_t of ncclGetUniqueId: 0 success, 2 system error, 3 internal error, 5 invalid usage."""
    interface: str = ""
    """Where the bootstrap listens, "" where NCCL found nothing."""
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it said is set, by the shell or by nccl.conf."""
    asked_with: Mapping[str, str] = field(default_factory=dict)
    """Variables that steer the answer, of the environment it was asked in, without what nccl.conf adds."""
    plugins: tuple[str, ...] = ()
    """Its lines about network and other plugins."""
    net_plugin: str | None = None
    """Path of the network plugin that the loader finds for it, "" for none; None where unknown."""
    errors: tuple[str, ...] = ()
    """Its warnings, without who said them."""


@dataclass(frozen=True)
class Counters:
    """
    Totals of one thing at one moment.

    `of` is "interface:NAME", "rdma:DEVICE:PORT", "pci:ADDRESS", "tcp" or "memory"; totals of 0 are left out.
    """

    of: str
    at_s: float
    """The node's monotonic clock."""
    totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Risen:
    """How much counters of one thing rose within `over_s` seconds; () of them means that none did."""

    of: str
    over_s: float
    by: Mapping[str, int] = field(default_factory=dict)


def risen(before: Sequence[Counters], after: Sequence[Counters]) -> tuple[Risen, ...]:
    """
    What rose between two looks; a thing seen only once is left out, a counter that fell was reset.

    >>> risen([Counters("tcp", 1.0, {"a": 3, "b": 9})], [Counters("tcp", 3.5, {"a": 5, "b": 2, "c": 1})])
    (Risen(of='tcp', over_s=2.5, by={'a': 2, 'c': 1}),)
    """
    first = {c.of: c for c in before}
    found = []
    for later in after:
        earlier = first.get(later.of)
        if earlier is None or later.at_s <= earlier.at_s:
            continue
        by = {name: total - earlier.totals.get(name, 0) for name, total in later.totals.items()}
        grown = {name: rise for name, rise in by.items() if rise > 0}
        found.append(Risen(later.of, round(later.at_s - earlier.at_s, 3), grown))
    return tuple(found)


@dataclass(frozen=True)
class Container:
    """What confines the job's shell: the tightest limit of its cgroups; infinity is none."""

    kind: str = ""
    """ "docker", "podman", "kubernetes", "lxc", "container"; "" on the machine itself."""
    cpus: float = math.inf
    """CPUs of time that it may use, whatever number it may run on."""
    memory_bytes: float = math.inf
    processes: float = math.inf
    oom_kills: int = 0
    """Processes of this cgroup that the kernel has ended for memory since the cgroup began."""
    has_login_session: bool = False
    """Whether systemd counts the job's shell as a login of its user."""


@dataclass(frozen=True)
class Memory:
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
    path: str
    version: str = ""
    source: str = ""
    """ "LD_PRELOAD", "LD_LIBRARY_PATH", "wheel", "torch", "conda", "prefix", "system"."""


ReachFailure = Literal[
    "ssh-host-key-unknown",
    "ssh-host-key-changed",
    "ssh-key-refused",
    "ssh-connection-refused",
    "ssh-no-route",
    "ssh-timeout",
    "ssh-name-unknown",
    "ssh-key-exchange-hangs",
    "ssh-long-answer-lost",
    "ssh-failed",
    "srun-failed",
    "no-answer",
    "no-cpu-time",
]
"""How a node was not reached, each a rule; but the last: this machine was too busy (see `cpu_starvation`)."""


RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
TORCHRUN_PREFIXES = ("PET_", "TORCHELASTIC_")
"""Of variables that change torchrun's defaults without a message (torch argparse_util.py)."""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""What tells a process its rank: torchrun and its like, then MPI, then Slurm."""
CONTAINERS = ("apptainer", "singularity")
"""Programs that run a command in an image, beside the host's own processes and with its network."""
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def left_over(environment: Iterable[str]) -> list[str]:
    """Names in a node's environment that belong to ranks; a run takes them away."""
    return [name for name in environment if name in RANK_VARIABLES or name.startswith(TORCHRUN_PREFIXES)]


@dataclass(frozen=True)
class Host:
    """A node as the user named it; `address` is what a `--local` node plays on, empty elsewhere."""

    name: str
    """Without user and slots, as every table shows it."""
    user: str = ""
    slots: int = 0
    local: bool = False
    address: str = ""
    in_slurm: bool = False
    """Of the Slurm allocation we run in, so `srun` is the way to it."""
    in_batch: bool = False
    """Of the PBS or LSF allocation we run in."""

    def ranks(self, gpu_count: int) -> int:
        """Ranks its slots ask for, else 0: a scheduler's are tasks or CPUs, no ranks beside GPUs."""
        return 0 if gpu_count and (self.in_slurm or self.in_batch) else self.slots


@dataclass(frozen=True)
class Unreached:
    """Why a node could not be asked: the failure's name and ssh's (or the shell's) own words."""

    kind: ReachFailure
    words: str


@dataclass(frozen=True)
class Node:
    name: str
    host: Host = field(default_factory=lambda: Host(""))
    unreached: Unreached | None = None
    hostname: str = ""
    boot_id: str = ""
    user: str = ""
    uid: int = -1
    kernel: str = ""
    machine: str = ""
    cpu_count: int = 0
    """CPUs this user may run on (sched_getaffinity), not those of the machine."""
    memory_bytes: int = 0
    own_name: Resolution = field(default_factory=lambda: Resolution(""))
    """What the node's own hostname resolves to on the node itself."""
    peer_names: tuple[Resolution, ...] = ()
    """What the other nodes' names (as the user wrote them, and as they call themselves) resolve to here."""
    reverse_lookup_s: float = 0.0
    """Seconds one reverse lookup of a peer's address takes."""
    interfaces: tuple[Interface, ...] = ()
    routes: tuple[Route, ...] = ()
    listeners: tuple[Listener, ...] = ()
    leftovers: tuple[Process, ...] = ()
    """Processes that look like ranks or launchers of an earlier run."""
    interpreter: Interpreter = field(default_factory=lambda: Interpreter(""))
    torchrun_on_path: str = ""
    """Path of torchrun in a non-interactive shell, "" when it is not on PATH there."""
    limits: Limits = field(default_factory=lambda: Limits(0, 0))
    shm: Space = field(default_factory=lambda: Space("/dev/shm", 0, 0))
    tmp: Space = field(default_factory=lambda: Space("/tmp", 0, 0))
    cache: Space = field(default_factory=lambda: Space("", 0, 0))
    """First writable of ~/.cache/ringup, /dev/shm, /tmp: where a run keeps its few files on the node."""
    disks: tuple[Space, ...] = ()
    """File systems of the job's directory, of TMPDIR and of NCCL_DEBUG_FILE; each once."""
    looks: tuple[Look, ...] = ()
    """How long one look at those directories, at the script and at paths among its arguments took."""
    shm_files: tuple[ShmFile, ...] = ()
    """Files of NCCL's and torch's in /dev/shm, the largest first."""
    container: Container = field(default_factory=Container)
    memory: Memory = field(default_factory=Memory)
    numa: Numa = field(default_factory=Numa)
    stuck: Stuck = field(default_factory=Stuck)
    ptrace_scope: int = 0
    """kernel.yama.ptrace_scope, 0 where the kernel has no Yama."""
    remove_ipc: str = "no"
    """RemoveIPC of systemd-logind, "" where nothing sets it, "no" where it does not concern the user."""
    product: str = ""
    """Vendor and model of the machine ("Amazon EC2 p5.48xlarge"), "" where the firmware does not tell."""
    revision: str = ""
    """Commit that git has checked out in the job's directory, "" for none."""
    nccl_libraries: tuple[Library, ...] = ()
    """Every libnccl.so a process of the job could load."""
    nccl_plugins: tuple[str, ...] = ()
    """Paths of libnccl-net*.so that NCCL could load."""
    chdir: FileFact = field(default_factory=lambda: FileFact("", False))
    script: FileFact = field(default_factory=lambda: FileFact("", False))
    clock: Clock = field(default_factory=lambda: Clock(0.0, 0.0))
    answer_s: float = 0.0
    """Seconds from asking to the node's complete answer."""
    ports: PortRanges = field(default_factory=lambda: PortRanges(32768, 60999))
    environment: Mapping[str, str] = field(default_factory=dict)
    """NCCL_*, GLOO_*, TORCH_*, PET_*, ... already set in the shell the job gets."""
    nccl_conf: Mapping[str, str] = field(default_factory=dict)
    """Variables set by /etc/nccl.conf or ~/.nccl.conf, the latter winning."""
    nccl_answer: NcclAnswer = field(default_factory=NcclAnswer)
    """What the job's own libnccl said here; empty where the job would not use NCCL."""
    gpu_count: int = 0
    """GPUs visible to the job; 0 where there are none."""
    gpus: tuple[Gpu, ...] = ()
    """All that the vendor's tool lists, hidden ones too."""
    gpu_links: tuple[GpuLink, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    gpu_driver: GpuDriver = field(default_factory=GpuDriver)
    kernel_events: tuple[KernelEvent, ...] = ()
    """Faults of GPUs and NVSwitches in the kernel log."""
    pci: tuple[PciDevice, ...] = ()
    """GPUs, NVSwitches, network cards and all bridges above them."""
    processor: Processor = field(default_factory=Processor)
    virtual_machine: str = ""
    """Who made the virtual machine this is; "" on bare metal."""
    boot_options: tuple[str, ...] = ()
    """Words of the kernel's command line about IOMMU, ACS and PCI."""
    uptime_s: float = 0.0
    rdma_ports: tuple[RdmaPort, ...] = ()
    """In the order libibverbs lists the devices."""
    verbs: Verbs = field(default_factory=Verbs)
    bonds: tuple[Bond, ...] = ()
    socket_limits: SocketLimits = field(default_factory=SocketLimits)
    counters: tuple[Counters, ...] = ()
    """Totals of errors when the node was first asked."""
    rises: tuple[Risen, ...] = ()
    """What rose until the pair tests had ended."""
    cpu_waits: Mapping[str, float] = field(default_factory=dict)
    """What was done there -> seconds its process was ready to run and had no CPU; see `cpu_starvation`."""
    load: float = 0.0
    """Load average of the last minute when it was asked."""
    setup_error: str = ""
    """What `--setup` said when it failed, with its exit status; "" when it went well or none was asked."""
    shell_noise: str = ""
    """What the shell's start-up files printed before our script could."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Field name -> why it could not be read."""

    def interface(self, name: str) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)

    @property
    def versions(self) -> dict[str, str]:
        """Releases of what a job uses here, by name; "unknown" for what could not be read."""
        own = self.interpreter
        found = {
            "python": own.version,
            "torch": own.torch,
            "cuda": own.cuda,
            "nccl": own.nccl,
            **own.packages,
        }
        found = dict.fromkeys(found, "unknown") if "interpreter" in self.unknown else found
        for name, field_name, version in (
            ("driver", "gpu_driver", self.gpu_driver.version),
            ("kernel", "kernel", self.kernel),
            ("firmware", "rdma_ports", ", ".join(dict.fromkeys(p.firmware for p in self.rdma_ports))),
        ):
            found[name] = "unknown" if field_name in self.unknown else version
        return {name: version for name, version in found.items() if version}


def unreached_node(host: Host, failure: Unreached) -> Node:
    """A node that could not be asked: every fact unknown, for that reason."""
    known = {"name", "host", "unreached", "unknown"}
    reason = f"not reached: {failure.words}"
    return Node(
        name=host.name,
        host=host,
        unreached=failure,
        unknown={f.name: reason for f in dataclasses.fields(Node) if f.name not in known},
    )


Answer = TypeVar("Answer")


def once(function: Callable[[Cluster], Answer]) -> Callable[[Cluster], Answer]:
    """The function, its answer worked out once for each cluster and kept with it."""

    @functools.wraps(function)
    def ask(cluster: Cluster) -> Answer:
        answers = vars(cluster).setdefault("_answers", {})
        if function not in answers:
            answers[function] = function(cluster)
        found: Answer = answers[function]
        return found

    return ask


OFTEN = 3
"""Runs, of a node's last five."""
LinkPurpose = Literal["interface", "rendezvous", "ephemeral"]


@dataclass(frozen=True, slots=True)
class Link:
    """
    One attempt to talk from `src` to an address of `dst`.

    `bound`: "routed" as NCCL and Gloo do it, "source" to an address of `src_interface`, "device" to that
    (both only to explain a failure).  If routed, the kernel chose `src_interface`, "" where it could not say.
    """

    src: str
    dst: str
    src_interface: str
    dst_interface: str
    address: str
    port: int
    ok: bool
    error: str = ""
    """Kernel's words in short: "timed out", "connection refused", "no route to host", ..."""
    rtt_ms: float | None = None
    large_packet_ok: bool | None = None
    """None: not tried, because the small message already failed."""
    bound: Literal["routed", "source", "device"] = "routed"
    purpose: LinkPurpose = "interface"
    stranger: bool = False
    """Something answered that does not know our token."""
    answered_by: str = ""
    """The node whose token answered, where it is not `dst` (an address that several nodes own)."""
    mbyte_s: float | None = None
    """Rate of the large message as the kernel saw it delivered, a hint only."""
    segments: int = 0
    """TCP segments `src` sent, repeated ones included, by its kernel; 0 where nothing came through."""
    retransmitted: int = 0
    """Those it had to send again, lost connection requests included: packets or their answers were lost."""


@dataclass(frozen=True)
class Job:
    """What the user asked to start; what checks and the plan judge against."""

    script: str = ""
    """A file; or the name of a module or a command, as `kind` says."""
    arguments: tuple[str, ...] = ()
    chdir: str = ""
    setup: str = ""
    python: str = ""
    """As the user gave it; "" means the node's `python3`, or the active environment's."""
    kind: Literal["script", "module", "command"] = "script"
    nproc: int = 0
    """Ranks per node; 0 means the visible GPUs of each node."""
    launcher: str = "torchrun"
    launcher_arguments: tuple[str, ...] = ()
    """Options of the user for the launcher itself; the last word in its command line."""
    wrapper: tuple[str, ...] = ()
    """Words in front of what each node starts: numactl, a profiler, `apptainer exec IMAGE`."""
    backend: str = ""
    rendezvous: Literal["static", "c10d"] = "static"
    port: int = 0
    """Rendezvous port the user insists on; 0 means free choice."""
    env: Mapping[str, str] = field(default_factory=dict)
    """`--env` of the user; wins over everything."""
    debug: bool = False
    link_gbit_s: float | None = None
    time_left_s: float = math.inf
    """What the scheduler leaves the job, from when it was asked; infinity where nothing tells."""

    @property
    def file(self) -> str:
        """The script's file, in `chdir` unless absolute; of a module where it may be; "" for none."""
        if self.kind == "module":
            return self.script.replace(".", "/") + ".py"
        return self.script if self.kind == "script" or "/" in self.script else ""

    @property
    def is_in_image(self) -> bool:
        """Whether the interpreter is one of an image, into which nobody looks before the start."""
        return any(word.rpartition("/")[2] in CONTAINERS for word in self.wrapper)

    @property
    def launcher_package(self) -> str:
        """The distribution the launcher comes in, "" where it is torch's own or none is needed."""
        return "" if self.launcher in ("", "torchrun", "python", "launch", "spawn") else self.launcher


@dataclass(frozen=True)
class PastRuns:
    """What a node did in the user's earlier runs of the last 30 days; see runtime.node_history."""

    runs: int
    ended: int
    """Runs that it ended."""
    ended_lately: int
    """Those among its last `lately` ones."""
    lately: int
    causes: tuple[str, ...] = ()
    """Why, the latest first."""
    last_s: float = 0.0
    """When it ended one last, in seconds since the epoch."""

    @property
    def is_often_failing(self) -> bool:
        return self.ended_lately >= OFTEN


@dataclass(frozen=True)
class Cluster:
    """All nodes in the user's order (the first is the head) and what was tried between them."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    job: Job = field(default_factory=Job)
    schedule: str = ""
    """How the pairs were chosen when not all were tried; "" means every pair."""
    pairs_unknown: Mapping[str, str] = field(default_factory=dict)
    """Node name -> why the pair tests say nothing about it."""
    pairs_starved: tuple[str, ...] = ()
    """Those of `pairs_unknown` that got no CPU time, which is no fault of theirs."""
    is_local: bool = False
    """`--local N` or one machine: host identity is not judged."""
    ssh_config: str = ""
    """`--ssh-config` of the launching machine: commands to paste there need it."""
    here: Mapping[str, str] = field(default_factory=dict)
    """What the launching machine has of the job: path -> sha256 of the script, "" of the directory."""
    past: Mapping[str, PastRuns] = field(default_factory=dict)
    """Node name -> its earlier runs, where it ended one."""
    first: str = ""
    """Name of the head of the whole cluster, where this is a part of one (`only`) that may lack it."""

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def head_name(self) -> str:
        """Of the whole cluster's first node, also where this is a part without it."""
        return self.first or (self.nodes[0].name if self.nodes else "")

    def ranks_on(self, node: Node) -> int:
        """Ranks of a node: as asked for, else its slots in a host file, else one a visible GPU."""
        return self.job.nproc or node.host.ranks(node.gpu_count) or node.gpu_count or 1

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        return self._by_name[name]

    def only(self, nodes: Iterable[Node]) -> Cluster:
        """The same cluster with only these nodes and the links between them."""
        kept = tuple(nodes)
        if len(kept) == len(self.nodes):
            return self
        names = frozenset(n.name for n in kept)
        if names not in self._parts:
            links = tuple(li for li in self.links if li.src in names and li.dst in names)
            self._parts[names] = dataclasses.replace(self, nodes=kept, links=links, first=self.head_name)
        return self._parts[names]

    @functools.cached_property
    def _by_name(self) -> dict[str, Node]:
        return {n.name: n for n in reversed(self.nodes)}

    @functools.cached_property
    def _parts(self) -> dict[frozenset[str], Cluster]:
        """What `only` gave: a hundred rules ask for the same few parts."""
        return {}
