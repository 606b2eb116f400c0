"""A run from its run.json, for all readers: missing values have their defaults here."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ringup.rules import Finding
from ringup.safe_files import regular

FILE = "run.json"
MOST_BYTES = 64 << 20
LIVING = ("running", "restarting")
"""Outcomes of a run that has not ended."""
Kind = TypeVar("Kind", bound=msgspec.Struct)


class SavedJob(msgspec.Struct):
    script: str = ""
    arguments: list[str] = []
    launcher: str = ""


class NodeHead(msgspec.Struct):
    node: str = ""


class PlanHead(msgspec.Struct):
    job: SavedJob = msgspec.field(default_factory=SavedJob)
    nodes: Sequence[NodeHead] = []
    world_size: int = 0


class SavedCause(msgspec.Struct):
    rule: str = ""


class RunHead(msgspec.Struct):
    """The fields for a list of runs: parsed in a tenth of the time."""

    run: str
    outcome: str
    started: float
    seconds: float = 0.0
    plan: PlanHead | None = None
    cause: SavedCause | None = None
    script: str = ""
    hosts: list[str] = []
    """Of a run that the check stopped, perhaps before there was a plan; as `script`."""

    @property
    def is_living(self) -> bool:
        return self.outcome in LIVING


class SavedNode(NodeHead):
    """The same as `planning.NodePlan`."""

    nproc: int = 0
    first_rank: int = 0
    interface: str = ""
    words: list[str] = []
    env: Mapping[str, str] = {}
    reasons: Mapping[str, str] = {}
    run_dir: str = ""
    versions: Mapping[str, str] = {}
    preset: Mapping[str, str] = {}


class SavedVariable(msgspec.Struct):
    name: str
    value: str
    because: str = ""
    node: str | None = None


class SavedTransport(msgspec.Struct):
    node: str
    network: str = ""
    devices: list[str] = []


class SavedPlan(PlanHead):
    nodes: Sequence[SavedNode] = []
    env: list[SavedVariable] = []
    master_addr: str = ""
    transports: list[SavedTransport] = []


class SavedTransports(msgspec.Struct):
    expected: list[SavedTransport] = []
    seen: list[SavedTransport] = []


class SavedRank(msgspec.Struct):
    rank: int
    node: str = ""
    code: int | None = None


class SavedFailure(msgspec.Struct):
    at_s: float = 0.0
    rank: int | None = None
    what: str = ""
    left_before: list[str] = []


class SavedMissing(msgspec.Struct):
    rank: int | None
    where: str = ""
    pid: int = 0


class SavedHang(msgspec.Struct):
    at_s: float
    quiet_s: float
    verdict: str
    missing: list[SavedMissing] = []


class SavedVerdict(SavedCause):
    text: str = ""
    ranks: list[int] = []
    nodes: list[str] = []
    evidence: list[str] = []


class AttemptCause(SavedCause):
    confidence: str = ""
    nodes: list[str] = []


class AttemptProgress(msgspec.Struct, rename={"begin": "from", "end": "to"}):
    begin: float | None = None
    end: float | None = None
    source: str = ""


class SavedAttempt(msgspec.Struct):
    """One start of the ranks; a supervisor updates it."""

    number: int
    nodes: list[str] = []
    world_size: int = 0
    started: float = 0.0
    ended: float | None = None
    outcome: str = "running"
    cause: AttemptCause | None = None
    evidence: list[dict[str, Any]] = []
    decision: str | None = None
    """The decision after it, None while it runs."""
    because: str = ""
    progress: AttemptProgress | None = None
    seconds: dict[str, float | None] = {}

    @property
    def took_s(self) -> float:
        return (self.ended or self.started) - self.started


class SavedRun(RunHead):
    exit_code: int | None = None
    plan: SavedPlan | None = None
    ranks: list[SavedRank] = []
    first_failure: SavedFailure | None = None
    hangs: list[SavedHang] = []
    verdict: SavedVerdict | None = None
    findings: list[Finding] = []
    notes: list[str] = []
    attempts: list[SavedAttempt] = []
    transports: SavedTransports = msgspec.field(default_factory=SavedTransports)

    @property
    def stall(self) -> SavedHang | None:
        """The last look that found ranks without progress."""
        return next((hang for hang in reversed(self.hangs) if hang.verdict == "stalled"), None)


def head(folder: Path) -> RunHead | None:
    """The same as `read`, without the details."""
    return _read(folder, RunHead)


def read(folder: Path) -> SavedRun | None:
    """The run of a folder, None without a readable run.json."""
    return _read(folder, SavedRun)


def _read(folder: Path, kind: type[Kind]) -> Kind | None:
    with contextlib.suppress(OSError, ValueError, RecursionError), regular(folder / FILE) as file:
        return msgspec.json.decode(file.read(MOST_BYTES), type=kind)
    return None
