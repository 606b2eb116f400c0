"""`ringup test` and `ringup bench`: right results on every rank, and the rate that collectives reach."""

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
    """ "cuda:3 NVIDIA H100", "cpu"; "" when the rank never said."""
    ok: bool
    error: str | None
    """Why it is not ok, in one line."""
    is_cause: bool = False
    """Whether the fault is this rank's own, and not that another one was missing or wrong."""
    bus_id: str = ""
    """PCI address of its GPU, "" where unknown: CUDA counts only those left to the job, in its own order."""


@dataclass(frozen=True)
class CorrectnessReport:
    ranks: tuple[RankState, ...]
    suspects: tuple[int, ...]
    """Ranks that gave wrong results with others too; several where the tests do not separate them."""
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every rank computed what arithmetic gives."""
        return bool(self.ranks) and all(rank.ok for rank in self.ranks)


@dataclass(frozen=True)
class Row:
    """
    One size of one operation; formulas are nccl-tests' (doc/PERFORMANCE.md).

    `size_bytes` is the whole buffer's, `time_us` the mean over ranks of the mean of all calls.
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
    """The worst rank's."""
    wrong_ranks: tuple[int, ...] = ()
    starved: float = 0.0
    """The part of the time, 0 to 1, that the ranks may have waited for a CPU."""
    waited_us: tuple[float, ...] = ()
    """How long the threads of every rank (the first 256) waited for a CPU, a call."""
    busy: float = 0.0
    """CPUs that the busiest rank kept busy, with Gloo; 0 with NCCL, whose threads poll."""


@dataclass(frozen=True)
class Pair:
    """Bus bandwidth of an all-reduce between two nodes only."""

    nodes: tuple[str, str]
    busbw_gbyte_s: float
    starved: float = 0.0
    """As a row's."""
    stage: str = ""
    """ "again": measured to see whether who looks slow still does, and what healthy nodes then reach."""


def at_best(rate: float, starved: float) -> float:
    """
    A rate without the part of the time that the ranks waited for a CPU.

    >>> at_best(0.5, 0.5), at_best(0.5, 1.0)
    (1.0, inf)
    """
    return rate / (1.0 - starved) if starved < 1.0 else math.inf


@dataclass(frozen=True)
class LinkRate:
    """The rate at which a node can send, in Gb/s one way."""

    gbit_s: float | None
    source: str
    """Of the rate; the reason where it is not known."""
    payload_share: float = 1.0
    """Part of the rate that is left for the payload (headers of TCP)."""
    over: Literal["tcp", "rdma", "nvlink"] = "tcp"
    devices: int = 1
    """How many cards of a node (or ways from a GPU to others) the rate is the sum of."""
    doubt: str = ""
    """What else may be slow instead, so that a low rate is no proof against the link."""


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
    """From NCCL's own lines; empty with Gloo."""

    @property
    def correct(self) -> bool:
        return all(row.correct for row in self.rows)
