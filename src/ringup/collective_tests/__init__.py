"""`ringup test` and `ringup bench`: correctness on every rank, and bandwidth of collectives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RankState:
    rank: int
    node: str
    local_rank: int
    device: str
    """"cuda:3 NVIDIA H100", "cpu"; "" if the rank did not report it."""
    ok: bool
    error: str | None
    """The problem, in one line."""
    is_cause: bool = False
    """Whether this rank caused the fault, rather than another one that was missing or wrong."""
    bus_id: str = ""
    """PCI address of its GPU, "" if unknown: CUDA counts only the job's GPUs, in its own order."""


@dataclass(frozen=True)
class CorrectnessReport:
    ranks: tuple[RankState, ...]
    suspects: tuple[int, ...]
    """Ranks that gave wrong results with others too; several if the tests cannot separate them."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return bool(self.ranks) and all(rank.ok for rank in self.ranks)


@dataclass(frozen=True)
class Row:
    """
    One size of one operation; formulas are nccl-tests' (doc/PERFORMANCE.md).

    `size_bytes` is that of the whole buffer; `time_us` is the mean over ranks of the mean of all calls.
    """

    op: str
    size_bytes: int
    time_us: float
    algbw_gbyte_s: float
    busbw_gbyte_s: float
    correct: bool
    iterations: int
    median_us: tuple[float, ...]
    """Of every rank (the first 256)."""
    p99_us: float
    """Of the slowest rank."""
    wrong_ranks: tuple[int, ...] = ()
    starved: float = 0.0
    """The share of the time, 0 to 1, that may have been lost while ranks waited for a CPU."""
    waited_us: tuple[float, ...] = ()
    """Microseconds per call that the threads of every rank (the first 256) waited for a CPU."""
    busy: float = 0.0
    """CPUs in use by the busiest rank, with Gloo; 0 with NCCL, whose threads poll."""


@dataclass(frozen=True)
class Pair:
    """Bus bandwidth of an all-reduce between only two nodes."""

    nodes: tuple[str, str]
    busbw_gbyte_s: float
    starved: float = 0.0
    """As in `Row`."""
    stage: str = ""
    """"again": measured again, to see whether a slow node stays slow, and the healthy nodes' speed then."""


def at_best(rate: float, starved: float) -> float:
    """
    A rate without the share of the time that the ranks waited for a CPU.

    >>> at_best(0.5, 0.5), at_best(0.5, 1.0)
    (1.0, inf)
    """
    return rate / (1.0 - starved) if starved < 1.0 else math.inf


@dataclass(frozen=True)
class LinkRate:
    """The rate at which a node can send, in Gb/s per direction."""

    gbit_s: float | None
    source: str
    """The source of the rate; or why it is unknown."""
    payload_share: float = 1.0
    """Share of the rate that is payload, without the headers of TCP."""
    over: Literal["tcp", "rdma", "nvlink"] = "tcp"
    devices: int = 1
    """Number of NICs of a node (or paths from a GPU to others) whose rates add up to this rate."""
    doubt: str = ""
    """Another possible bottleneck: with it, a low rate is not proof against the link."""


@dataclass(frozen=True)
class Slow:
    """A node or a link that is slower than its peers."""

    node: str
    found: str
    busbw_gbyte_s: float
    peers_gbyte_s: float


@dataclass(frozen=True)
class BandwidthReport:
    ops: tuple[str, ...]
    nodes: int
    ranks: int
    backend: str
    rows: tuple[Row, ...]
    pairs: tuple[Pair, ...]
    link: LinkRate
    expected_busbw_gbyte_s: float | None
    verdict: Literal["ok", "slow", "not_judged"]
    because: str
    slow: tuple[Slow, ...]
    notes: tuple[str, ...]
    transports: dict[str, int]
    """From NCCL's log; empty with Gloo."""

    @property
    def correct(self) -> bool:
        return all(row.correct for row in self.rows)
