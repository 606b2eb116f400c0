"""The lines of NCCL logs, as the releases from 2.4 to 2.30 word them; for `nccl_logs.py`."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

VERSIONS = ("2.4", "2.7", "2.12", "2.16", "2.18", "2.20", "2.21", "2.23", "2.24", "2.27", "2.29", "2.30")
LABELS = ("none", "srun", "torchrun", "mpirun")
FAULTS = ("none", "missing", "count", "datatype", "root", "kind", "stalled", "no-init")
POINT_TO_POINT = ("Send", "Recv")


@dataclass(frozen=True)
class Plan:
    """What to write; the same plan gives the same bytes."""

    ranks: int = 8
    ranks_per_node: int = 4
    version: str = "2.20"
    layout: str = "merged"
    label: str = "none"
    marks: str = "first"
    """Who prints the trainer's line: "first" (rank 0), "all", "none"."""
    iterations: int = 3
    size_bytes: int = 0
    """Go on with iterations until this size, where set."""
    layers: int = 4
    point_to_point: bool = True
    split: bool = True
    """A communicator per node besides the world."""
    fault: str = "none"
    fault_rank: int = 1
    fault_iteration: int = 1
    """-1: the last one."""
    hang: bool = True
    """All stop soon after the fault, as NCCL would; otherwise they go on."""
    socket_rank: int = -1
    """A rank whose node talks over TCP while the others use InfiniBand."""
    torn: float = 0.0
    """Share of lines that another rank's line is written into."""
    carriage_returns: bool = False
    stamps: str = "none"
    """A time before each line: "none", "nccl" (fixed width), "kubectl" (trailing zeros left out)."""
    warnings: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Op:
    """One call of the training loop."""

    comm: str
    kind: str
    count: int
    datatype: int
    op: int
    root: int
    group: int
    """Calls of one group share an opCount."""


@dataclass
class Rank:
    """One process."""

    rank: int
    host: str
    pid: int
    device: int
    pointers: dict[str, int]
    comm_ranks: dict[str, tuple[str, int, int]]
    """Communicator id, rank and size, by the loop's name for it."""
    stream: int
    op_counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    prefix: str = ""
    label: str = ""


@dataclass
class Truth:
    """What is in the logs."""

    lines: int = 0
    bytes: int = 0
    collectives: dict[str, int] = field(default_factory=dict)
    by_rank: dict[str, dict[str, int]] = field(default_factory=dict)
    by_iteration: list[dict[str, Any]] = field(default_factory=list)
    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    """Collectives called, by communicator and rank in the world."""
    comm_kinds: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)
    mismatch: dict[str, Any] | None = None
    incomplete: list[str] = field(default_factory=list)
    transports: dict[str, dict[str, int]] = field(default_factory=dict)
    torn: dict[str, int] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    last_lines: dict[str, str] = field(default_factory=dict)


def minor(version: str) -> int:
    """The number NCCL 2's wordings change by."""
    return int(version.partition(".")[2])


def make_ranks(plan: Plan, rng: random.Random) -> list[Rank]:
    """Processes as a launcher would place them: node by node."""
    ranks = []
    world_id = f"0x{rng.getrandbits(64) | 1 << 63:x}"
    for r in range(plan.ranks):
        node, local = divmod(r, plan.ranks_per_node)
        pid = 4000 + rng.randrange(90) * 1000 + r * 7
        base = 0x55D000000000 + rng.getrandbits(24) * 0x1000
        here = min(plan.ranks_per_node, plan.ranks - node * plan.ranks_per_node)
        rank = Rank(
            rank=r,
            host=f"gpu-node{node + 1}",
            pid=pid,
            device=local,
            pointers={"world": base, "node": base + 0x234560},
            comm_ranks={"world": (world_id, r, plan.ranks), "node": (f"{world_id}/{node}", local, here)},
            stream=base + 0x1000,
        )
        labels = {"srun": f"{r}: ", "torchrun": f"[rank{r}]:", "mpirun": f"[1,{r}]<stdout>:", "none": ""}
        rank.label = labels[plan.label] if plan.layout == "merged" else ""
        rank.prefix = f"{rank.label}{rank.host}:{pid}:{pid} [{local}] NCCL INFO "
        ranks.append(rank)
    return ranks


def program(plan: Plan, rng: random.Random) -> list[Op]:
    """The calls of one iteration of a sharded training loop, every rank's but for Send and Recv."""
    ops = [Op("world", "Broadcast", 1, 7, 0, plan.ranks - 1, 0)]
    for layer in range(plan.layers):
        size = 10 ** rng.randrange(3, 8) + layer * 16
        ops.append(Op("world", "AllGather", size, 9, 0, 0, len(ops)))
        ops.append(Op("world", "AllGather", size, 9, 0, 0, len(ops)))
        ops.append(Op("world", "ReduceScatter", size, 9, 0, 0, len(ops)))
        if plan.split and layer % 2:
            ops.append(Op("node", "AllReduce", 4096 + layer, 7, 0, 0, len(ops)))
        if plan.point_to_point and layer == plan.layers - 1:
            group = len(ops)
            ops.append(Op("world", "Send", 2048, 7, 0, -1, group))
            ops.append(Op("world", "Recv", 2048, 7, 0, -1, group))
    ops.append(Op("world", "AllReduce", 1, 7, 2, 0, len(ops)))
    return ops


def call_text(rank: Rank, op: Op, plan: Plan, op_count: int, rng: random.Random) -> str:
    """The line of one call, without what launchers put before it."""
    root = op.root if op.kind not in POINT_TO_POINT else (rank.rank + 1) % plan.ranks
    size = rank.comm_ranks[op.comm][2]
    send = "(nil)" if op.kind == "Recv" else f"0x7f{rng.getrandbits(40):010x}"
    receive = "(nil)" if op.kind == "Send" else f"0x7f{rng.getrandbits(40):010x}"
    return (
        f"{op.kind}: opCount {op_count:x} sendbuff {send} recvbuff {receive} count {op.count}"
        f" datatype {op.datatype} op {op.op} root {root} comm 0x{rank.pointers[op.comm]:x}"
        f" [nranks={size}] stream 0x{rank.stream:x}"
    )


def init_line(rank: Rank, comm: str, version: str, state: str) -> str | None:
    """An Init line as this version prints it; None where it prints none."""
    id_, number, size = rank.comm_ranks[comm]
    n = minor(version)
    if state == "START" and n < 18:
        return None
    child = comm == "node" and n >= 23
    bus = f" busId {0x1000 * (rank.device + 1) + 0x60000:x}"
    text = f"comm 0x{rank.pointers[comm]:x} rank {number} nranks {size} cudaDev {rank.device}"
    text += {True: f" nvmlDev {rank.device}", False: ""}[n == 4 or n >= 18]
    text += bus if n > 4 else ""
    if child:
        split = {True: "childCount 1 ", False: "splitCount 1 " if n >= 24 else ""}[n >= 29]
        text += f" parent 0x{rank.pointers['world']:x} {split}color {id_.partition('/')[2]} key {number}"
    elif n >= 16:
        text += f" commId {id_ if comm == 'world' else '0x' + format(abs(hash_id(id_)), 'x')}"
    if n >= 21:
        name = "ncclCommSplit" if child else "ncclCommInitRank" + ("Config" if n >= 23 else "")
        text = f"{name} {text}"
    if n >= 29 and state == "START":
        text = f"[Rank {rank.rank}] {text}"
    return text + ("- " if child and state == "START" else " - ") + f"Init {state}"


def hash_id(text: str) -> int:
    """A number for a name that does not change from run to run."""
    value = 14695981039346656037
    for byte in text.encode():
        value = (value ^ byte) * 1099511628211 % (1 << 64)
    return value | 1 << 63


def comm_name(rank: Rank, comm: str, plan: Plan) -> str:
    """How the reader names the communicator."""
    id_, _, size = rank.comm_ranks[comm]
    n = minor(plan.version)
    if n < 16:
        return f"{size} ranks #0"
    if comm == "world":
        return id_
    if n >= 23:
        split = "1" if n >= 24 else "#0"
        return f"{id_.partition('/')[0]} split {split} color {id_.partition('/')[2]}"
    return "0x" + format(abs(hash_id(id_)), "x")


def setup_lines(rank: Rank, plan: Plan, truth: Truth, comms: list[str]) -> Iterator[str]:
    """From the first line to Init COMPLETE and the transports, of one rank."""
    n = minor(plan.version)
    node = rank.rank // plan.ranks_per_node
    colon = ":" if n >= 24 else " :"
    address = f"10.0.{node}.{rank.device + 1}"
    yield f"Bootstrap{colon} Using eth0:{address}<0>"
    on_socket = plan.socket_rank >= 0 and plan.socket_rank // plan.ranks_per_node == node
    if on_socket:
        yield "NET/IB : No device found."
        yield f"NET/Socket : Using [0]eth0:{address}<0>"
        yield "Using network Socket"
    else:
        ordering = "[RO]" if n >= 12 else ""
        yield f"NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB {ordering}; OOB eth0:{address}<0>"
        yield "Using network IB"
    missing = plan.fault == "no-init" and rank.rank == plan.fault_rank
    for comm in comms:
        start = init_line(rank, comm, plan.version, "START")
        if start:
            yield start
        if missing:
            return
        if comm == "world":
            yield from transport_lines(rank, plan, truth, "Socket/0" if on_socket else "IB/0/GDRDMA")
        if plan.fault == "no-init" and comm == "world":
            return
        yield init_line(rank, comm, plan.version, "COMPLETE") or ""


def transport_lines(rank: Rank, plan: Plan, truth: Truth, net: str) -> Iterator[str]:
    """Two channels around the ring: NVLink within a node, the network between nodes."""
    n = minor(plan.version)
    word = "Ring" if n < 7 else "Channel"
    suffix = "/0" if n >= 14 else ""
    peer = (rank.rank + 1) % plan.ranks
    if plan.ranks < 2:
        return
    across = peer // plan.ranks_per_node != rank.rank // plan.ranks_per_node
    via = f"NET/{net}" if across else ("P2P/CUMEM" if n >= 18 else "P2P/IPC")
    send = " [send]" if across else ""
    for channel in range(2):
        seen = truth.transports.setdefault(rank.host, {})
        seen[via] = seen.get(via, 0) + 1
        device = peer % plan.ranks_per_node
        yield (
            f"{word} {channel:02d}{suffix} : {rank.rank}[{rank.device}] -> {peer}[{device}]{send} via {via}"
        )
    if n >= 8:
        yield "Connected all rings" + (", use ring PXN 0 GDR 1" if n >= 24 else "")
