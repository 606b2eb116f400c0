"""
Facts about the nodes: frozen, with the unit in the name.

A field that could not be read has its empty default, which rules must not use: `Node.unknown` has the reason.
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
    """The Python of the job's shell.  Versions are from package metadata, without importing torch; or ""."""

    path: str
    version: str = ""
    torch: str = ""
    cuda: str = ""
    nccl: str = ""
    """Version of the NCCL that torch would load ("2.27.7"), "" if there is none."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Launchers and frameworks in the same environment: accelerate, deepspeed, colossalai, jax, ..."""

    @property
    def torch_release(self) -> tuple[int, ...]:
        """
        Major and minor release of torch, () if unknown.

        >>> Interpreter("python3", torch="2.13.0+cpu").torch_release, Interpreter("").torch_release
        ((2, 13), ())
        """
        parts = self.torch.split("+")[0].split(".")[:2]
        return tuple(map(int, parts)) if all(p.isdecimal() for p in parts) else ()


@dataclass(frozen=True)
class Limits:
    """Limits of the job's shell; infinity for unlimited."""

    memlock_bytes: float
    open_files: float
    processes: float = float("inf")
    locks_freely: bool = False
    """Whether it has CAP_IPC_LOCK (as root has), so that `memlock_bytes` does not limit it."""


@dataclass(frozen=True)
class Space:
    path: str
    total_bytes: int
    free_bytes: int
    read_only: bool = False


@dataclass(frozen=True)
class FileFact:
    """The training script (or another file) on a node; `sha256` is "" if it is missing."""

    path: str
    exists: bool
    sha256: str = ""
    size_bytes: int = 0
    error: str = ""
    """Why it cannot be read ("Permission denied")."""


@dataclass(frozen=True)
class Clock:
    """A node's clock minus the launcher's, to within `error_s` (half the round trip)."""

    offset_s: float
    error_s: float


@dataclass(frozen=True)
class NcclAnswer:
    """
    The answer of the libnccl that the job would load, in the job's interpreter and environment.

    `ncclGetUniqueId` needs no GPU and runs NCCL's real choice of the bootstrap interface.
    """

    library: str = ""
    """Path of the loaded library, "" if NCCL was not queried (`not_asked` has the reason)."""
    not_asked: str = ""
    version: str = ""
    """"2.27.7", from ncclGetVersion."""
    result: int = 0
    """ncclResult_t of ncclGetUniqueId: 0 success, 2 system error, 3 internal error, 5 invalid usage."""
    interface: str = ""
    """Where the bootstrap listens, "" if NCCL found no interface."""
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its log reports as set, by the shell or by nccl.conf."""
    asked_with: Mapping[str, str] = field(default_factory=dict)
    """Variables in the environment of the query that affect the answer, without those of nccl.conf."""
    plugins: tuple[str, ...] = ()
    """Its lines about network and other plugins."""
    net_plugin: str | None = None
    """Path of the network plugin that the loader finds, "" for none; None if unknown."""
    errors: tuple[str, ...] = ()
    """Its warnings, without host and process."""


@dataclass(frozen=True)
class Counters:
    """
    Totals of one device at one moment.

    `of` is "interface:NAME", "rdma:DEVICE:PORT", "pci:ADDRESS", "tcp" or "memory"; totals of 0 are left out.
    """

    of: str
    at_s: float
    """The node's monotonic clock, in seconds."""
    totals: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Risen:
    """Rises of one device's counters within `over_s` seconds; () of these means that none rose."""

    of: str
    over_s: float
    by: Mapping[str, int] = field(default_factory=dict)


def risen(before: Sequence[Counters], after: Sequence[Counters]) -> tuple[Risen, ...]:
    """
    The rises between two readings, without devices that have only one; a counter that fell was reset.

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
    """Limits of the job's shell: the smallest limit of its cgroups; infinity for none."""

    kind: str = ""
    """ "docker", "podman", "kubernetes", "lxc", "container"; "" on the machine itself."""
    cpus: float = math.inf
    """CPU time that it may use, in CPUs, whatever the number of CPUs it may run on."""
    memory_bytes: float = math.inf
    processes: float = math.inf
    oom_kills: int = 0
    """Processes of this cgroup that the kernel has killed for memory since the cgroup began."""
    has_login_session: bool = False
    """Whether systemd treats the job's shell as a login of its user."""


@dataclass(frozen=True)
class Memory:
    swap_total_bytes: int = 0
    swap_used_bytes: int = 0
    stalled_share: float | None = None
    """Share of the last minute in which some task waited for memory (/proc/pressure/memory); or None."""
    oom_kills: int = 0
    """Processes that the kernel has killed for memory since the machine started."""


@dataclass(frozen=True)
class Numa:
    """The machine's memory nodes, and whether the kernel moves pages between them automatically."""

    nodes: int = 1
    is_balancing: bool = False


@dataclass(frozen=True)
class Stuck:
    """Processes that neither run nor end."""

    processes: int = 0
    """Number of all such processes."""
    zombies: int = 0
    own_zombies: int = 0
    """Zombies of the user who runs the check."""
    blocked: tuple[Process, ...] = ()
    """In uninterruptible sleep, without running between two readings."""


@dataclass(frozen=True)
class ShmFile:
    name: str
    size_bytes: int
    user: str
    age_s: float
    owner: Literal["lives", "gone", "unknown"] = "unknown"
    """The process that created it, if the file's name has its pid."""


@dataclass(frozen=True)
class Look:
    """The time of one stat() of a path."""

    path: str
    took_s: float
    answered: bool = True
    """False: no answer within `took_s`."""


@dataclass(frozen=True)
class Library:
    path: str
    version: str = ""
    source: str = ""
    """ "LD_PRELOAD", "LD_LIBRARY_PATH", "wheel", "torch", "conda", "prefix", "system"."""


ReachFailure = Literal[
    "ssh-host-key-unknown", "ssh-host-key-changed", "ssh-key-refused", "ssh-connection-refused",
    "ssh-no-route", "ssh-timeout", "ssh-name-unknown", "ssh-key-exchange-hangs", "ssh-long-answer-lost",
    "ssh-failed", "srun-failed", "no-answer", "no-cpu-time",
]  # fmt: skip
"""Why a node was not reached; each has a rule but the last: this machine was busy (`cpu_starvation`)."""


DEFAULT_PORT = 29500
"""torch's own for the rendezvous, which most instructions use."""
RANK_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
TORCHRUN_PREFIXES = ("PET_", "TORCHELASTIC_")
"""Prefixes of variables that silently change torchrun's defaults (torch argparse_util.py)."""
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables that set a process's rank: of torchrun and similar launchers, then MPI, then Slurm."""
CONTAINERS = ("apptainer", "singularity")
"""Programs that run a command in an image, but as processes of the host and on its network."""
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")


def left_over(environment: Iterable[str]) -> list[str]:
    """Names of rank variables in a node's environment; a run removes them."""
    return [name for name in environment if name in RANK_VARIABLES or name.startswith(TORCHRUN_PREFIXES)]


@dataclass(frozen=True)
class Host:
    """A node as the user named it; `address` is the one of a simulated (`--local`) node, else ""."""

    name: str
    """Without user and slots, for all tables."""
    user: str = ""
    slots: int = 0
    local: bool = False
    address: str = ""
    in_slurm: bool = False
    """In the current Slurm allocation, so it is reached with `srun`."""
    in_batch: bool = False
    """In the current PBS or LSF allocation."""

    def ranks(self, gpu_count: int) -> int:
        """Ranks from the slots of a host file, else 0: a scheduler's slots are tasks or CPUs, not ranks."""
        return 0 if gpu_count and (self.in_slurm or self.in_batch) else self.slots


@dataclass(frozen=True)
class Unreached:
    """Why a node could not be queried: the failure's name, and the error text of ssh (or the shell)."""

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
    """CPUs this user may run on (sched_getaffinity), not all CPUs of the machine."""
    memory_bytes: int = 0
    own_name: Resolution = field(default_factory=lambda: Resolution(""))
    """Addresses of the node's own host name on the node itself."""
    peer_names: tuple[Resolution, ...] = ()
    """Addresses on this node of the other nodes' names (as the user wrote them, and their host names)."""
    reverse_lookup_s: float = 0.0
    """Seconds for one reverse lookup of a peer's address."""
    interfaces: tuple[Interface, ...] = ()
    routes: tuple[Route, ...] = ()
    listeners: tuple[Listener, ...] = ()
    leftovers: tuple[Process, ...] = ()
    """Processes that look like ranks or launchers of an earlier run."""
    interpreter: Interpreter = field(default_factory=lambda: Interpreter(""))
    torchrun_on_path: str = ""
    """Path of torchrun in a non-interactive shell, "" if it is not on PATH there."""
    limits: Limits = field(default_factory=lambda: Limits(0, 0))
    shm: Space = field(default_factory=lambda: Space("/dev/shm", 0, 0))
    tmp: Space = field(default_factory=lambda: Space("/tmp", 0, 0))
    cache: Space = field(default_factory=lambda: Space("", 0, 0))
    """First writable one of ~/.cache/ringup, /dev/shm, /tmp: a run stores its few files there."""
    disks: tuple[Space, ...] = ()
    """File systems of the job's directory, of TMPDIR and of NCCL_DEBUG_FILE, without duplicates."""
    looks: tuple[Look, ...] = ()
    """Times of one stat() of these directories, the script, and paths among its arguments."""
    shm_files: tuple[ShmFile, ...] = ()
    """Files of NCCL and torch in /dev/shm, the largest first."""
    container: Container = field(default_factory=Container)
    memory: Memory = field(default_factory=Memory)
    numa: Numa = field(default_factory=Numa)
    stuck: Stuck = field(default_factory=Stuck)
    ptrace_scope: int = 0
    """kernel.yama.ptrace_scope, 0 if the kernel has no Yama."""
    remove_ipc: str = "no"
    """RemoveIPC of systemd-logind, "" if unset, "no" if it does not affect the user."""
    product: str = ""
    """Vendor and model of the machine ("Amazon EC2 p5.48xlarge"), "" if the firmware lacks them."""
    revision: str = ""
    """Commit that git has checked out in the job's directory, "" for none."""
    nccl_libraries: tuple[Library, ...] = ()
    """Every libnccl.so that a process of the job could load."""
    nccl_plugins: tuple[str, ...] = ()
    """Paths of libnccl-net*.so that NCCL could load."""
    chdir: FileFact = field(default_factory=lambda: FileFact("", False))
    script: FileFact = field(default_factory=lambda: FileFact("", False))
    clock: Clock = field(default_factory=lambda: Clock(0.0, 0.0))
    answer_s: float = 0.0
    """Seconds from the request to the node's complete answer."""
    ports: PortRanges = field(default_factory=lambda: PortRanges(32768, 60999))
    environment: Mapping[str, str] = field(default_factory=dict)
    """NCCL_*, GLOO_*, TORCH_*, PET_*, ... already set in the job's shell."""
    nccl_conf: Mapping[str, str] = field(default_factory=dict)
    """Variables set by /etc/nccl.conf or ~/.nccl.conf; the latter has priority."""
    nccl_answer: NcclAnswer = field(default_factory=NcclAnswer)
    """The answer of the job's own libnccl on this node; empty if the job would not use NCCL."""
    gpu_count: int = 0
    """GPUs visible to the job; 0 if there are none."""
    gpus: tuple[Gpu, ...] = ()
    """All GPUs that the vendor's tool lists, including hidden ones."""
    gpu_links: tuple[GpuLink, ...] = ()
    gpu_processes: tuple[GpuProcess, ...] = ()
    gpu_driver: GpuDriver = field(default_factory=GpuDriver)
    kernel_events: tuple[KernelEvent, ...] = ()
    """Faults of GPUs and NVSwitches in the kernel log."""
    pci: tuple[PciDevice, ...] = ()
    """GPUs, NVSwitches, NICs and all bridges above them."""
    processor: Processor = field(default_factory=Processor)
    virtual_machine: str = ""
    """The hypervisor's vendor; "" on bare metal."""
    boot_options: tuple[str, ...] = ()
    """Kernel boot options about IOMMU, ACS and PCI."""
    uptime_s: float = 0.0
    rdma_ports: tuple[RdmaPort, ...] = ()
    """In libibverbs' order of devices."""
    verbs: Verbs = field(default_factory=Verbs)
    bonds: tuple[Bond, ...] = ()
    socket_limits: SocketLimits = field(default_factory=SocketLimits)
    counters: tuple[Counters, ...] = ()
    """Totals of errors at the first reading of the node."""
    rises: tuple[Risen, ...] = ()
    """Counters that rose until the end of the pair tests."""
    cpu_waits: Mapping[str, float] = field(default_factory=dict)
    """Part of the check -> seconds its process was ready to run and had no CPU; see `cpu_starvation`."""
    load: float = 0.0
    """Load average of the last minute at the query."""
    setup_error: str = ""
    """The output of a failed `--setup`, with its exit status; "" after success or without --setup."""
    shell_noise: str = ""
    """The output of the shell's start-up files before our script."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Field name -> why it could not be read."""

    @property
    def has_ipv4(self) -> bool:
        """Whether it has an IPv4 address for peers."""
        return any(a.family == "inet" for i in self.interfaces for a in i.usable_addresses)

    def interface(self, name: str) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the job's software on this node, by name; "unknown" for unreadable ones."""
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
    """A node that could not be queried: every fact is unknown, for that reason."""
    known = {"name", "host", "unreached", "unknown"}
    reason = f"not reached: {failure.words}"
    unknown = {f.name: reason for f in dataclasses.fields(Node) if f.name not in known}
    return Node(host.name, host, failure, unknown=unknown)


Answer = TypeVar("Answer")


def once(function: Callable[[Cluster], Answer]) -> Callable[[Cluster], Answer]:
    """The function, with its result cached in each cluster."""

    @functools.wraps(function)
    def ask(cluster: Cluster) -> Answer:
        answers = vars(cluster).setdefault("_answers", {})
        if function not in answers:
            answers[function] = function(cluster)
        found: Answer = answers[function]
        return found

    return ask


OFTEN = 3
"""Number of a node's last five runs that counts as often."""
LinkPurpose = Literal["interface", "rendezvous", "ephemeral"]


@dataclass(frozen=True, slots=True)
class Link:
    """
    One attempt to connect from `src` to an address of `dst`.

    `bound`: "routed" as NCCL and Gloo do it, "source" from an address of `src_interface`, "device" from that
    interface (both only to explain a failure).  If routed, the kernel chose `src_interface`, "" if it is
    unknown.
    """

    src: str
    dst: str
    src_interface: str
    dst_interface: str
    address: str
    port: int
    ok: bool
    error: str = ""
    """The kernel's error in short: "timed out", "connection refused", "no route to host", ..."""
    rtt_ms: float | None = None
    large_packet_ok: bool | None = None
    """None: not tried, because the small message had already failed."""
    bound: Literal["routed", "source", "device"] = "routed"
    purpose: LinkPurpose = "interface"
    stranger: bool = False
    """Another program answered, which does not know our token."""
    answered_by: str = ""
    """The node whose token answered, if it is not `dst` (an address that several nodes have)."""
    mbyte_s: float | None = None
    """Rate of the large message as the kernel measured it; only a hint."""
    segments: int = 0
    """TCP segments that the kernel of `src` sent, including retransmissions; 0 if nothing got through."""
    retransmitted: int = 0
    """Retransmitted ones, including connection requests: packets or their answers were lost."""

    @property
    def works(self) -> bool:
        """Whether small and large messages get through."""
        return self.ok and self.large_packet_ok is not False


@dataclass(frozen=True)
class Job:
    """The job that the user requests; checks and the plan are for it."""

    script: str = ""
    """A file; or the name of a module or a command, as `kind` says."""
    arguments: tuple[str, ...] = ()
    chdir: str = ""
    setup: str = ""
    python: str = ""
    """As the user gave it; "" means the node's `python3`, or the active environment's."""
    kind: Literal["script", "module", "command"] = "script"
    nproc: int = 0
    """Ranks per node; 0 for the visible GPUs of each node."""
    launcher: str = "torchrun"
    launcher_arguments: tuple[str, ...] = ()
    """The user's options for the launcher itself; they come last on its command line."""
    wrapper: tuple[str, ...] = ()
    """Command in front of the start line on each node: numactl, a profiler, `apptainer exec IMAGE`."""
    backend: str = ""
    rendezvous: Literal["static", "c10d"] = "static"
    port: int = 0
    """Rendezvous port that the user requires; 0 for any."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The user's `--env`; it overrides everything."""
    debug: bool = False
    link_gbit_s: float | None = None
    time_left_s: float = math.inf
    """Seconds until the scheduler's limit at the query; infinity if unknown."""

    @property
    def file(self) -> str:
        """The script's file, in `chdir` unless absolute; for a module its probable file; "" for none."""
        if self.kind == "module":
            return self.script.replace(".", "/") + ".py"
        return self.script if self.kind == "script" or "/" in self.script else ""

    @property
    def is_in_image(self) -> bool:
        """Whether the interpreter is inside an image, which cannot be inspected before the start."""
        return any(word.rpartition("/")[2] in CONTAINERS for word in self.wrapper)

    @property
    def launcher_package(self) -> str:
        """The package of the launcher, "" if it is torch's own or none is needed."""
        return "" if self.launcher in ("", "torchrun", "python", "launch", "spawn") else self.launcher


@dataclass(frozen=True)
class PastRuns:
    """A node's results in the user's runs of the last 30 days; see runtime.node_history."""

    runs: int
    ended: int
    """Number of runs that it ended."""
    ended_lately: int
    """Number of these among its last `lately` runs."""
    lately: int
    causes: tuple[str, ...] = ()
    """The causes, the latest first."""
    last_s: float = 0.0
    """Time of the last such end, in seconds since the epoch."""

    @property
    def is_often_failing(self) -> bool:
        return self.ended_lately >= OFTEN


@dataclass(frozen=True)
class Cluster:
    """All nodes in the user's order (the first is the head), and the connection attempts between them."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    job: Job = field(default_factory=Job)
    schedule: str = ""
    """How the pairs were chosen if not all were tried; "" means every pair."""
    pairs_unknown: Mapping[str, str] = field(default_factory=dict)
    """Node name -> why the pair tests have no result for it."""
    pairs_starved: tuple[str, ...] = ()
    """Those in `pairs_unknown` that got no CPU time, so that they are not at fault."""
    is_local: bool = False
    """`--local N` or one machine: host identity is not judged."""
    ssh_config: str = ""
    """`--ssh-config` of the launching machine, for commands that users paste there."""
    here: Mapping[str, str] = field(default_factory=dict)
    """Files of the job on the launching machine: path -> sha256 of the script, "" for the directory."""
    past: Mapping[str, PastRuns] = field(default_factory=dict)
    """Node name -> its earlier runs, if it ended one of them."""
    first: str = ""
    """Name of the head of the whole cluster, if this is a part (`only`) that may not contain it."""

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def head_name(self) -> str:
        """Name of the whole cluster's first node, even if this is a part without it."""
        return self.first or (self.nodes[0].name if self.nodes else "")

    def ranks_on(self, node: Node) -> int:
        """Ranks of a node: as requested, else its slots in a host file, else one per visible GPU."""
        return self.job.nproc or node.host.ranks(node.gpu_count) or node.gpu_count or 1

    def node(self, name: str) -> Node:
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
        """Cached results of `only`: a hundred rules need the same few parts."""
        return {}
