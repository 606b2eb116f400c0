"""
Write the JSON Schemas of what `--json` prints and run.json holds: src/ringup/schemas/NAME.json.

Facts, findings and plans are ringup's own classes; what is built around them is described here.  Tests hold
every output of every command against them, unknown keys forbidden.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import sys
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_type_hints

import msgspec

import ringup
from ringup.collective_tests import BandwidthReport, RankState, Row
from ringup.collective_tests.sweep import Trial
from ringup.differences import FactChange
from ringup.hang.snapshots import NodeState, RankLook, Ras
from ringup.hang.stack_frames import Place
from ringup.hang.verdict import Kind as Progress
from ringup.lint import HowToStart
from ringup.model import Link, Node, PastRuns
from ringup.planning import EnvVar, ExpectedTransport, Plan
from ringup.planning.preset_variables import Kept
from ringup.rules import Finding, Fix, Problem, Severity, Skipped
from ringup.runtime import Failure, Outcome, RankEnd
from ringup.runtime.clean import NodeLeftovers

FOLDER = Path(__file__).parent.parent / "src" / "ringup" / "schemas"
Confidence = Literal["high", "medium", "low"]


def but(cls: type, name: str, **changed: Any) -> Any:
    """A type with the fields of a dataclass, some of another type or added; None leaves one out."""
    fields = {**get_type_hints(cls, include_extras=True), **changed}
    made = msgspec.defstruct(name, [(field, kind) for field, kind in fields.items() if kind is not None])
    made.__doc__ = cls.__doc__
    BASE[made] = cls
    return made


BASE: dict[type, type] = {}
"""A type made by `but` -> the class it is like."""


class Envelope(TypedDict):
    ringup: str
    """The version that wrote it."""
    schema: Literal[1]


class Output(Envelope, total=False):
    not_checked: list[Skipped]
    """Rules that could not be checked, with the reason."""


# -- check, predict, env -------------------------------------------------------------------------

ShownFinding = but(Finding, "ShownFinding", subject=None, case=None, fix=Fix, severity=Severity, help=str)
"""`help` is the address of the rule's page."""
ProblemPage = but(Problem, "ProblemPage", parts=None, help=str, restart=str | None)
"""`restart` says what a restart after it would do; null where it ends no run."""
TestedPair = but(Link, "TestedPair", error=str | None)


class Bootstrap(TypedDict):
    interface: str
    address: str


class Use(TypedDict):
    gpu: int
    device: str


class PredictedNode(TypedDict):
    name: str
    bootstrap: Bootstrap | None
    network: str | None
    interfaces: list[str]
    oob: str | None
    used: list[Use]
    """Which device each GPU uses."""
    gpudirect: list[int]
    """GPUs whose data go past the CPU's memory."""
    bootstrap_line: str | None
    """As NCCL's log will show it."""
    log_line: str | None
    because: list[str]
    confidence: Confidence


class ExpectedNode(PredictedNode):
    alone: PredictedNode | None
    """Without the recommended variables; null where these change nothing."""


class Predict(Output):
    nodes: list[PredictedNode]


class Checked(TypedDict):
    nodes: list[Node]
    findings: list[ShownFinding]
    not_checked: list[Skipped]
    pairs: list[TestedPair]
    schedule: str
    """How the pairs were chosen when not all were tried; "" means every pair."""
    env: list[EnvVar]
    predictions: list[ExpectedNode]
    kept: list[Kept]
    """Variables that were set already, and what they do."""


class Check(Envelope, Checked):
    """`ringup check --json`."""


class Env(Output):
    env: list[EnvVar]
    kept: list[Kept]
    notes: list[str]
    explained: list[str]


# -- run -----------------------------------------------------------------------------------------


class HeldUp(TypedDict):
    rank: int | None
    node: str
    where: str
    pid: int
    """0 where its process had ended."""


class Apart(TypedDict):
    rank: int
    node: str


class Hang(TypedDict):
    """One look at a run that made no progress."""

    at_s: float
    quiet_s: float
    verdict: Progress
    rule: str
    apart: list[Apart]
    headline: str
    missing: list[HeldUp]
    collective: str
    lines: list[str]


class HangVerdict(TypedDict):
    """What held up a run that was ended as hung."""

    rule: str
    text: str
    ranks: list[int]
    nodes: list[str]
    evidence: list[str]


class SeenTransport(TypedDict):
    node: str
    network: str
    devices: list[str]
    said: list[str]
    """Why NCCL left a network out, in its words."""


class Transports(TypedDict, total=False):
    expected: list[ExpectedTransport]
    seen: list[SeenTransport]
    differ: list[str]
    """Nodes on which they are not the same."""


class FirstCause(TypedDict):
    """What `ringup logs` names for the run's folder."""

    rule: str
    confidence: Confidence
    text: str
    evidence: list[Evidence]
    """At most 3 lines."""


class AttemptCause(TypedDict):
    rule: str
    """ "" where none was found; `node-lost` for a node that stopped responding."""
    confidence: Confidence
    nodes: list[str]


AttemptProgress = TypedDict("AttemptProgress", {"from": float | None, "to": float, "source": str})
"""By the newest complete checkpoint, else by the steps in the output."""


class AttemptSeconds(TypedDict, total=False):
    """null where it is not known or was not needed."""

    notice: float | None
    """From the failure, or a node's last answer, to the end of the run's patience."""
    end: float | None
    """From there until every node was looked at for what is left."""
    recheck: float | None
    """From there to the decision: its cause, the check of the nodes."""
    start: float | None
    """From the attempt's start until all ranks had started."""
    first_step: float | None
    """From the attempt's start to the first step in the output."""


class Attempt(TypedDict):
    number: int
    nodes: list[str]
    world_size: int
    started: float
    """Seconds since the epoch."""
    ended: float | None
    outcome: Outcome
    cause: AttemptCause | None
    evidence: list[Evidence]
    """At most 3 lines that show the cause."""
    decision: Literal["stop", "same", "exclude", "shrink", "finished"] | None
    """What followed; null while it runs."""
    because: str
    progress: AttemptProgress | None
    seconds: AttemptSeconds


class Saved(TypedDict):
    """The end of a run from outside, which its ranks were given time for (--save-signal)."""

    signal: str
    seconds: float
    """From the signal to the end of the last rank, or of the time."""
    result: Literal["saved", "not-saved"]


class RestartEnd(TypedDict):
    stopped: Literal["ok", "will-fail-again", "no-progress", "limit", "no-nodes", "user"]
    """Why there is no further attempt."""


class Run(Envelope):
    run: str
    outcome: Outcome
    exit_code: int | None
    """null while it runs."""
    started: float
    """Seconds since the epoch."""
    seconds: float
    detached: bool
    plan: Plan | None
    ranks: list[RankEnd]
    first_failure: Failure | None
    cleanup: list[Finding]
    hangs: list[Hang]
    verdict: HangVerdict | None
    transports: Transports
    save: Saved | None
    attempts: list[Attempt]
    """Of a run that was started; the fields above are those of the last one."""
    restart: RestartEnd | None
    """null until the last attempt has ended."""
    scheduler_restarts: int | None
    """How often Slurm (SLURM_RESTART_COUNT) or JobSet had restarted this job; null where nothing tells."""
    notes: list[str]


class WholeRun(Run, total=False):
    """run.json, and `ringup run --json` of a run that was started."""

    findings: list[Finding]
    cause: FirstCause | None
    """Of a run that failed or hung; null where the logs name none."""
    script: str
    hosts: list[str]
    """Nodes of a run that the check stopped, as they were named."""


class StoppedRun(Checked, Run):
    """`ringup run --json` where the check stopped it."""

    script: str
    hosts: list[str]
    cause: FirstCause | None
    """The first error of the check."""


class DryRun(Output):
    """`--dry-run --json`."""

    run: str
    text: str
    """What each node would execute, in shell syntax."""
    plan: Plan


class JobFile(Output):
    """`ringup run --slurm --dry-run --json`."""

    run: str
    kind: Literal["slurm"]
    text: str


class RunRow(TypedDict):
    run: str
    state: Literal["running", "restarting", "ended"]
    launcher_gone: bool
    """What started it has died without a record of the end."""
    started: float
    age_s: float
    seconds: float
    nodes: list[str]
    ranks: int
    script: str
    outcome: Outcome | None
    """null until it has ended."""
    cause: str | None
    """The rule that `ringup logs` names."""
    log_dir: str


class Runs(Output):
    runs: list[RunRow]


NodeRow = but(PastRuns, "NodeRow", node=str, is_often_failing=bool)


class Nodes(Output):
    """`ringup runs --nodes --json`."""

    nodes: list[NodeRow]


class RunNames(Output):
    """`ringup attach --list --json`, the newest first."""

    runs: list[str]


# -- test, bench ---------------------------------------------------------------------------------


class Test(Output):
    ranks: list[RankState]
    suspects: list[int]
    """Ranks that gave wrong results with others too; several where the tests do not separate them."""
    notes: list[str]
    ok: bool
    backend: str
    warnings: list[str]
    """Why GPUs were expected, where the ranks use none."""


class StoppedTest(Check):
    """`ringup test --json` where the check stopped it."""

    ranks: list[RankState]
    ok: Literal[False]
    warnings: list[str]


BenchRow = but(Row, "BenchRow", op=None)


class Operation(TypedDict):
    op: str
    rows: list[BenchRow]


Bench = but(
    BandwidthReport,
    "Bench",
    ringup=str,
    schema=Literal[1],
    not_checked=list[Skipped],
    ops=None,
    op=str,
    rows=list[BenchRow],
    more=list[Operation],
    link=None,
    link_gbit_s=float | None,
    failed=list[RankState],
    warnings=list[str],
)
"""`more` has the rows of further operations, `failed` the ranks that did not finish."""


class StoppedBench(Check):
    """`ringup bench --json` where the check stopped it."""

    op: str
    ranks: Literal[0]
    rows: list[BenchRow]
    link_gbit_s: None
    expected_busbw_gbyte_s: None
    slow: list[str]
    verdict: Literal["not_judged"]
    because: str
    warnings: list[str]


# -- sweep, diff ---------------------------------------------------------------------------------


class Sweep(Output):
    backend: str
    op: Literal["all_reduce"]
    settings: list[Trial]
    keep: int | None
    """Place of the setting to keep among them; null where none works."""
    env: list[EnvVar]
    """All that is to be set for it, ringup's own variables too."""
    warnings: list[str]


class Compared(TypedDict):
    path: str
    kind: Literal["run", "facts", "environment"]
    head: str
    """When it was, how large and how it ended."""


class Diff(Output):
    a: Compared
    b: Compared
    differences: list[FactChange]
    """The worst first."""
    not_compared: list[str]
    """What only one of the two has, with the reason."""


# -- stacks, clean, lint, script, explain, config ------------------------------------------------


class RankGroup(TypedDict):
    """Ranks that are at the same place."""

    ranks: list[int]
    place: Place
    doing: str


StacksRank = but(RankLook, "StacksRank", place=Place)


class StacksJob(TypedDict):
    run: str
    """The run's tag; "" for a job that ringup has not started."""
    address: str
    world_size: int
    not_seen: list[int]
    groups: list[RankGroup]
    ranks: list[StacksRank]


class StacksNode(TypedDict):
    name: str
    problem: str
    state: NodeState
    ras: Ras | None


class Stacks(Output):
    jobs: list[StacksJob]
    nodes: list[StacksNode]


class Clean(Output):
    kill: bool
    nodes: list[NodeLeftovers]


class ShownLaunch(TypedDict):
    """A launch line as it was understood; null where only the run, or another file, knows."""

    file: str
    line: int
    launcher: str
    """torchrun, launch, accelerate, deepspeed, ..., python."""
    started_by: str
    """srun, mpirun, ssh, ..., a manifest's kind; batch: the scheduler's one node; shell: by hand."""
    wrapping: list[str]
    """Programs between the two: apptainer, uv, numactl, ..."""
    nodes: int | None
    ranks_per_node: int | None
    worlds: int | None
    endpoint: str | None
    module: str | None
    script: str | None
    unknown: list[str]
    """Fields whose value is not known."""


class UnreadFile(TypedDict):
    file: str
    line: int
    reason: str


class Lint(Output):
    findings: list[ShownFinding]
    launches: list[ShownLaunch]
    not_read: list[UnreadFile]
    """Files without a launch line, and parts that were not understood."""
    fixed: list[ShownFinding]
    """With --fix: those that are repaired; `findings` are those left."""
    start: dict[str, HowToStart]
    """Of each script."""


class Script(Output):
    kind: str
    text: str


class Explained(Output):
    problem: ProblemPage


class Problems(Output):
    problems: list[ProblemPage]


class Option(TypedDict):
    value: Any
    origin: str
    """A file, the name of a variable, or "default"."""


class Config(Output):
    options: dict[str, Option]


# -- logs ----------------------------------------------------------------------------------------


class Evidence(TypedDict):
    file: str
    line: int
    text: str


class Telling(TypedDict):
    """A line, who printed it and when."""

    file: str
    line: int
    text: str
    rank: int | None
    host: str | None
    time: str | None
    """As printed in the line, null where it has none."""


class KnownDefect(TypedDict):
    """A defect with the place where it is written."""

    id: str
    versions: str | None
    """The affected versions, in words."""
    fixed_in: str | None
    url: str


class Change(TypedDict):
    """A setting, version or size that differs from the log that went well (`--against`)."""

    name: str
    good: str
    now: str


class NamedCause(TypedDict):
    rule: str
    severity: Severity
    confidence: Confidence
    text: str
    nodes: list[str]
    ranks: list[int]
    evidence: list[Evidence]
    """The telling line first."""
    telling: Telling | None
    """The line that tells most; null where the cause quotes none."""
    known_defect: KnownDefect | None
    """A defect of a library that the lines and the printed version fit."""
    fix: Fix
    help: str
    """Address of the rule's page."""


class FollowedCause(Output, NamedCause):
    """A line of `ringup logs --follow --json`: the first cause has changed."""


class LogFile(TypedDict):
    path: str
    host: str | None
    pid: str | None
    rank: int | None
    lines: int
    last_line: str
    init_complete: bool | None
    """null where the log has nothing of NCCL's start."""


class HostNetwork(TypedDict):
    host: str | None
    kind: str | None
    bootstrap: str | None
    interfaces: list[str]
    used: list[str]
    oob: str | None


class Behind(TypedDict):
    rank: int | str
    communicator: str
    collective: str
    index: int


class Iteration(TypedDict):
    iteration: str | None
    counts: dict[str, int]


class Dump(TypedDict):
    path: str
    rank: int
    version: str
    entries: int


class Unread(TypedDict):
    path: str
    reason: str


class FlightRecorder(TypedDict):
    dumps: list[Dump]
    not_seen: list[int]
    left_out: list[Unread]


class LoggedAttempt(TypedDict):
    log_dir: str
    cause: NamedCause | None
    """The first one; null where its logs name none."""


class Logs(Envelope):
    """`ringup logs --json`; of a restarted run all but `attempts` is of its first attempt that failed."""

    causes: list[NamedCause]
    """The most likely first."""
    healthy: bool
    """Whether no cause of severity error was named."""
    unfinished: str
    """How a healthy log ends before its training does, "" where it does not."""
    files: list[LogFile]
    versions: dict[str, list[str]]
    networks: list[HostNetwork]
    transports: dict[str, int]
    collectives: dict[str, int]
    by_rank: dict[str, dict[str, int]]
    by_iteration: list[Iteration]
    by_communicator: dict[str, dict[str, int]]
    nvls: str | None
    behind: list[Behind]
    flight_recorder: FlightRecorder
    not_checked: list[Skipped]
    unreadable: list[Unread]
    changes: list[Change]
    """With `--against`; else empty."""
    attempts: list[LoggedAttempt]
    """Of a restarted run, in order; else empty."""


SCHEMAS: dict[str, tuple[Any, ...]] = {
    "attach": (WholeRun, RunNames),
    "bench": (Bench, StoppedBench, DryRun),
    "check": (Check,),
    "clean": (Clean,),
    "config": (Config,),
    "diff": (Diff,),
    "env": (Env,),
    "explain": (Problems, Explained),
    "lint": (Lint,),
    "logs": (Logs, FollowedCause),
    "predict": (Predict,),
    "run": (WholeRun, StoppedRun, DryRun, JobFile),
    "runs": (Runs, Nodes),
    "script": (Script,),
    "stacks": (Stacks,),
    "sweep": (Sweep,),
    "test": (Test, StoppedTest, DryRun),
}
"""Name -> what it may be."""

MAY_LACK = {"Skipped": {"traceback"}, "Job": {"time_left_s"}, "Bench": {"not_checked"}, "Lint": {"fixed"}}
"""Keys that are left out where nothing is known."""
INFINITE = {
    "Limits": ("memlock_bytes", "open_files", "processes"),
    "Container": ("cpus", "memory_bytes", "processes"),
}
"""Numbers that are null for infinity."""


def classes(kind: Any, found: dict[str, type]) -> dict[str, type]:
    """The classes with fields that a type is made of, by name."""
    for part in get_args(kind):
        classes(part, found)
    if inspect.isclass(kind) and kind.__module__ != "builtins" and kind.__name__ not in found:
        found[kind.__name__] = kind
        for part in get_type_hints(kind, include_extras=True).values():
            classes(part, found)
    return found


@functools.cache
def described(module: str) -> dict[str, tuple[list[str], dict[str, str]]]:
    """The classes of a module: the names of their bases, and the strings below their fields."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    found = {}
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        texts = {}
        for field, text in itertools.pairwise(cls.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(text.value.value.split())
        found[cls.name] = [base.id for base in cls.bases if isinstance(base, ast.Name)], texts
    return found


def texts_of(cls: type) -> dict[str, str]:
    """What is written below the fields of a class and of its bases."""
    cls, known = BASE.get(cls, cls), described(BASE.get(cls, cls).__module__)
    names, texts = [cls.__name__], {}
    for name in names:
        bases, own = known.get(name, ([], {}))
        texts.update({field: text for field, text in own.items() if field not in texts})
        names += bases
    return texts


def schema_of(name: str) -> dict[str, Any]:
    """One schema: every key that is always there is required, others may come with a later version."""
    kinds = SCHEMAS[name]
    tops, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    known = classes(tuple[kinds], {})
    for part, shape in parts.items():
        cls, fields = known[part], shape.get("properties", {})
        optional = getattr(cls, "__optional_keys__", frozenset()) | MAY_LACK.get(part, set())
        if fields:
            shape["required"] = [field for field in fields if field not in optional]
        texts = texts_of(cls)
        for field, its in fields.items():
            its.pop("default", None)
            if field in INFINITE.get(part, ()):
                its["type"] = [its["type"], "null"]
            if field in texts:
                its["description"] = texts[field]
        if "description" in shape:
            shape["description"] = " ".join(shape["description"].split())
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{ringup.SITE}/schemas/1/{name}.json",
        "title": f"ringup {name} --json",
    }
    return {
        **head,
        **(tops[0] if len(tops) == 1 else {"anyOf": list(tops)}),
        "$defs": dict(sorted(parts.items())),
    }


def texts() -> dict[Path, str]:
    """Every schema's file and its content: a line, for it is read by programs; `ringup schema` indents it."""
    short = (",", ":")
    return {FOLDER / f"{n}.json": json.dumps(schema_of(n), separators=short) + "\n" for n in SCHEMAS}


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text)
