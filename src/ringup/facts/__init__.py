"""
What was found on the nodes: frozen, and the unit is in the name.

A value that could not be read is not here: its field's name stands in
`Node.unknown` with the reason, and the field keeps its empty default, which no
rule may then read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ringup.facts.counters import Counters, Risen, risen
from ringup.facts.gpu import Gpu, GpuDriver, GpuLink, GpuProcess, KernelEvent, NvLink
from ringup.facts.machine import Container, Library, Look, Memory, Numa, ShmFile, Stuck
from ringup.facts.nccl import NcclAnswer
from ringup.facts.network import (
    Address,
    Bond,
    Interface,
    InterfaceKind,
    Listener,
    PortRanges,
    Resolution,
    Route,
    SocketLimits,
)
from ringup.facts.pci import PciDevice, Processor
from ringup.facts.rdma import Gid, RdmaPort, Verbs
from ringup.facts.system import Clock, FileFact, Interpreter, Limits, Process, Space

__all__ = [
    "Address",
    "Bond",
    "Clock",
    "Cluster",
    "Container",
    "Counters",
    "FileFact",
    "Gid",
    "Gpu",
    "GpuDriver",
    "GpuLink",
    "GpuProcess",
    "Host",
    "Interface",
    "InterfaceKind",
    "Interpreter",
    "Job",
    "KernelEvent",
    "Library",
    "Limits",
    "Link",
    "LinkPurpose",
    "Listener",
    "Look",
    "Memory",
    "NcclAnswer",
    "Node",
    "Numa",
    "NvLink",
    "PciDevice",
    "PortRanges",
    "Process",
    "Processor",
    "RdmaPort",
    "ReachFailure",
    "Resolution",
    "Risen",
    "Route",
    "ShmFile",
    "SocketLimits",
    "Space",
    "Stuck",
    "Unreached",
    "Verbs",
    "risen",
    "unreached_node",
]

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
"""
How a node was not reached; each is also the name of a rule, but the last.

That one says nothing of the node: this machine was too busy to hear it (see `starved`).
"""


@dataclass(frozen=True)
class Host:
    """
    Who a node is before anything was asked.

    `name` is how the user wrote it (without user and slots) and is what every table
    shows; `address` is what a `--local` node plays on, empty elsewhere.
    """

    name: str
    user: str = ""
    slots: int = 0
    local: bool = False
    address: str = ""
    in_slurm: bool = False
    """Of the Slurm allocation we run in, so `srun` is the way to it."""
    in_batch: bool = False
    """Of the PBS or LSF allocation we run in."""

    def ranks(self, gpu_count: int) -> int:
        """
        Ranks that its slots ask for, 0 where they ask for none.

        Those of a host file are ranks; a scheduler's are tasks or processors, which are none beside GPUs.
        """
        return 0 if gpu_count and (self.in_slurm or self.in_batch) else self.slots


@dataclass(frozen=True)
class Unreached:
    """Why a node could not be asked: the failure's name and ssh's (or the shell's) own words."""

    kind: ReachFailure
    words: str


@dataclass(frozen=True)
class Node:
    """Everything known of one node."""

    name: str
    host: Host = field(default_factory=lambda: Host(""))
    unreached: Unreached | None = None
    hostname: str = ""
    fqdn: str = ""
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
    """Seconds one reverse look-up of a peer's address takes."""
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
    ofed: str = ""
    """Version of the vendor's RDMA drivers, "" for the kernel's own."""
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
    """What was done there -> seconds its process was ready to run and had no processor; see `starved`."""
    load: float = 0.0
    """Load average of the last minute when it was asked."""
    setup_error: str = ""
    """What `--setup` said when it failed, with its exit status; "" when it went well or none was asked."""
    shell_noise: str = ""
    """What the shell's start-up files printed before our script could."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Field name -> why it could not be read."""

    def interface(self, name: str) -> Interface | None:
        """The interface of that name, or None."""
        return next((i for i in self.interfaces if i.name == name), None)


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


LinkPurpose = Literal["interface", "rendezvous", "ephemeral"]


@dataclass(frozen=True)
class Link:
    """
    One attempt to talk from `src` to an address of `dst`.

    `bound` says how the socket was opened: "routed" as NCCL and Gloo do it, "source" bound
    to an address of `src_interface`, "device" bound to the device (only to explain a failure).
    `src_interface` of a routed attempt is the one the kernel chose, "" where it could not say.
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
    arguments: tuple[str, ...] = ()
    chdir: str = ""
    setup: str = ""
    python: str = ""
    """As the user gave it; "" means the default of INTERFACE.md."""
    nproc: int = 0
    """Ranks per node; 0 means the visible GPUs of each node."""
    launcher: str = "torchrun"
    launcher_arguments: tuple[str, ...] = ()
    """Options of the user for the launcher itself; the last word in its command line."""
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
    def launcher_package(self) -> str:
        """The distribution the launcher comes in, "" where it is torch's own or none is needed."""
        return "" if self.launcher in ("", "torchrun", "python", "launch", "spawn") else self.launcher


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
    """Those of `pairs_unknown` for want of a processor, which is no fault of theirs."""
    is_local: bool = False
    """`--local N` or one machine: host identity is not judged."""
    first: str = ""
    """Name of the head of the whole cluster, where this is a part of one (`only`) that may lack it."""

    @property
    def head(self) -> Node:
        """The node that hosts the rendezvous."""
        return self.nodes[0]

    def node(self, name: str) -> Node:
        """The node of that name; KeyError if there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def only(self, nodes: Iterable[Node]) -> Cluster:
        """The same cluster with only these nodes and the links between them."""
        kept = tuple(nodes)
        if len(kept) == len(self.nodes):
            return self
        names = {n.name for n in kept}
        links = tuple(li for li in self.links if li.src in names and li.dst in names)
        first = self.first or (self.nodes[0].name if self.nodes else "")
        return dataclasses.replace(self, nodes=kept, links=links, first=first)
