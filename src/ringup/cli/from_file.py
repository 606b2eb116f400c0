"""A job file, manifest or shell file as options and start line of the job in it."""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from ringup.cli import from_manifest
from ringup.cli.text_files import read_script
from ringup.errors import UsageError
from ringup.jobfiles import BATCH, LIMITED
from ringup.launchfiles import files
from ringup.launchfiles.directives import Directive, gpus_per_node, last, tasks_per_node
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import NODE_LAUNCHERS, Launch
from ringup.launchfiles.shell import Command, Job
from ringup.launchfiles.start import PYTHON
from ringup.model import CONTAINERS, RANK_VARIABLES
from ringup.output.terminal import path_shown, say
from ringup.planning.start_line import HIDING
from ringup.units import printable

SETS_UP = ("source", ".", "module", "conda", "ml", "ulimit")
_KEPT = re.compile(r"(?:NCCL|GLOO|TORCH|PYTORCH|CUDA|OMP|HF|WANDB|TOKENIZERS|UCX|FI|MKL|TRITON)_\w+")
COUNTS = ("--nnodes", "--nproc-per-node", "--num-machines", "--num-processes", "--num-nodes", "--num-gpus")
_SCHEDULED: dict[str, dict[str, tuple[str, ...]]] = {
    "SBATCH": {
        "name": ("job-name", "J"),
        "queue": ("partition", "p"),
        "account": ("account", "A"),
        "time": ("time", "t"),
        "log": ("output", "o"),
    },
    "PBS": {"name": ("N",), "queue": ("q",), "account": ("A",), "log": ("o",)},
    "BSUB": {"name": ("J",), "queue": ("q",), "account": ("P",), "time": ("W",), "log": ("o", "oo")},
}
"""Scheduler -> option of ringup -> the scheduler's own names of it; PBS has its time in `-l`."""


def is_launch_file(path: str) -> bool:
    """Whether a file is a text for this module, not facts from --save."""
    try:
        with Path(path).open("rb") as file:
            return file.read(4096).lstrip()[:1] not in (b"{", b"\x1f", b"")
    except OSError:
        return False


def fill(args: argparse.Namespace, path: str, kind: str) -> list[str]:
    """Set options that only the file has; returns its start line.  Raises UsageError."""
    launch = the_one(path, files.read(path, read_script(path)))
    say(f"ringup: {path_shown(path)}:{launch.line}  {printable(launch.summary)}", quiet=args.quiet)
    job = launch.job
    nodes = launch.nnodes if (launch.nnodes or 1) > 1 else launch.nodes_shown
    nodes = max(nodes or 0, launch.allocated, launch.replicas or 0)
    args.nodes = args.nodes or nodes
    args.nproc = args.nproc or launch.ranks_per_node
    args.gpus = args.gpus if args.gpus is not None else (gpus_per_node(job.directives)[0] or None)
    elsewhere = from_manifest.fill(args, launch)
    for name, value in _requests(job, kind).items():
        if kind not in BATCH and (name != "time" or kind not in LIMITED):
            continue
        if value and re.fullmatch(r"[\w.,:@/+=%-]+", value) and not getattr(args, name, ""):
            setattr(args, name, value)
    args.cpus = args.cpus or _cpus(job, kind)
    before = takewhile(lambda one: one is not launch.command and one.line < launch.line, job.commands)
    setup = (" ".join(word.raw for word in one.words) for one in before if _is_kept(one))
    args.setup = args.setup or " && ".join(setup)
    args.python = args.python or launch.start.python or "python3"
    args.option = [*(text for text, _ in _further(job, kind)), *args.option]
    say(*(f"left out: {left}" for left in left_out(job, launch, kind, elsewhere)), quiet=args.quiet)
    given = {pair.partition("=")[0] for pair in args.env}
    for name, value in launch.env.items():
        if _KEPT.fullmatch(name) and name not in given and not has_mark(value):
            args.env = [*args.env, f"{name}={value}"]
    return _words(launch, quiet=args.quiet)


def _requests(job: Job, kind: str) -> dict[str, str]:
    """Name, queue, account and limit of the job; in a file of the same scheduler, also its log and chunk."""
    found: dict[str, str] = {}
    for scheduler, names in _SCHEDULED.items():
        directives = [d for d in job.directives if d.scheduler == scheduler]
        if not directives:
            continue
        found |= {name: last(directives, *options)[0] for name, options in names.items()}
        if scheduler == "PBS":
            found |= _of_pbs(directives)
        if _KINDS[scheduler] != kind or scheduler == "BSUB":
            found["time"] = _clock(found.get("time", ""), scheduler)
        if _KINDS[scheduler] != kind:
            found |= {"log": "", "chunk": ""}
    return found


_PBS_COUNTS = (
    *("select", "ncpus", "ngpus", "mpiprocs", "ompthreads", "walltime", "place"),
    *("nodes", "ppn", "gpus"),
)


def _of_pbs(directives: Sequence[Directive]) -> dict[str, str]:
    """Limit and further resources of a chunk in `-l` lines: {"time": "1:00:00", "chunk": ":mem=9gb"}."""
    parts = [part for d in directives if d.name == "l" for part in d.value.split(",")]
    limits = [value for name, _, value in (part.partition("=") for part in parts) if name == "walltime"]
    chunks = [part for part in parts if part.startswith("select=")]
    more = chunks[-1].split(":")[1:] if chunks and "+" not in chunks[-1] else []
    kept = [one for one in more if one.partition("=")[0] not in _PBS_COUNTS]
    return {"time": (limits or [""])[-1], "chunk": "".join(f":{one}" for one in kept)}


def _clock(limit: str, scheduler: str) -> str:
    """
    A scheduler's time limit as hours:minutes:seconds; "" if it is none.

    Sources: sbatch(1) --time, PBS's `[[hours:]minutes:]seconds`, bsub(1) -W `[hour:]minute[/host]`.

    >>> _clock("2:00", "BSUB"), _clock("90", "SBATCH"), _clock("1-12", "SBATCH"), _clock("30:00", "PBS")
    ('2:00:00', '1:30:00', '36:00:00', '0:30:00')
    """
    days, dash, clock = limit.partition("/")[0].rpartition("-")
    parts = clock.split(":")
    if not all(map(str.isdecimal, [*parts, days or "0"])) or len(parts) > 3:
        return ""
    numbers = [int(part) for part in parts]
    if dash or (scheduler == "BSUB" and len(numbers) == 2):
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif scheduler != "PBS" and len(numbers) == 1:
        hours, minutes, seconds = 0, numbers[0], 0
    else:
        hours, minutes, seconds = [0, 0, *numbers][-3:]
    all_seconds = (int(days or 0) * 24 + hours) * 3600 + minutes * 60 + seconds
    return f"{all_seconds // 3600}:{all_seconds // 60 % 60:02}:{all_seconds % 60:02}"


def _cpus(job: Job, kind: str) -> int:
    """CPUs of a node that the file requests from the same scheduler; 0 for none."""
    if kind == "pbs":
        asked = re.findall(r"\bncpus=(\d{1,5})\b", " ".join(d.value for d in job.directives if d.name == "l"))
        return int(asked[-1]) if asked else 0
    each = last(job.directives, "cpus-per-task", "c")[0] if kind == "slurm" else ""
    return int(each) * max(1, tasks_per_node(job.directives)) if each.isdecimal() else 0


def the_one(path: str, found: files.LaunchFile) -> Launch:
    """The one launch of a file; lines that differ only in the node count as one.  Raises UsageError."""
    launches = [one for one in found.launches if one.launcher in NODE_LAUNCHERS] or list(found.launches)
    if not launches:
        why = found.not_read[-1] if found.not_read else None
        reason = f"{why.line}: {why.reason}" if why else "1: no launch line recognised"
        raise UsageError(f"{path}:{reason}", hint="give the line itself: -- torchrun ... train.py")
    kinds = {(one.launcher, one.start.script, one.start.kind) for one in launches}
    if len(kinds) > 1:
        where = ", ".join(str(one.line) for one in launches[:6])
        raise UsageError(f"{path} starts several things (lines {where})", hint="give one of them behind --")
    return launches[0]


def _is_kept(command: Command) -> bool:
    """Whether a command before the launch goes into the written file."""
    is_setup = command.texts[0] in SETS_UP and not command.is_nested
    return is_setup and not any(map(has_mark, command.texts))


_KINDS = {"SBATCH": "slurm", "PBS": "pbs", "BSUB": "lsf"}
_WRITTEN = {
    "slurm": "nodes N ntasks n ntasks-per-node tasks-per-node gres gpus G gpus-per-node gpus-per-task "
    "cpus-per-task c job-name J partition p account A time t output o export",
    "pbs": "N q A o j V",
    "lsf": "n nnodes gpu R J q P W o oo",
}
"""Kind of job file -> options of its scheduler that the written file has itself."""


def _further(job: Job, kind: str) -> Iterator[tuple[str, int]]:
    """Further requests to the same scheduler, as the written file repeats them, and their lines."""
    for one in job.directives:
        is_plain = re.fullmatch(r"[\w.,:@/+=%&|!\[\]-]*", one.value)
        if kind == "pbs" and one.scheduler == "PBS" and one.name == "l":
            kept = [part for part in one.value.split(",") if part.partition("=")[0] not in _PBS_COUNTS]
            if kept and is_plain:
                yield f"-l {','.join(kept)}", one.line
        elif _KINDS.get(one.scheduler) == kind and one.name not in _WRITTEN[kind].split() and is_plain:
            long, value = kind == "slurm" and len(one.name) > 1, one.value
            shown = f"--{one.name}" + f"={value}" * bool(value) if long else f"-{one.name} {value}".strip()
            yield shown, one.line


_SILENT = ("export", "set", "echo", "cd", "date", "hostname", "wait", "exit", "unset", "nvidia-smi")
MOST_LEFT = 16
_OF_SITE = ("partition", "p", "queue", "q", "account", "A", "P", "output", "error", "o", "e", "oo")
"""Requests that mean nothing outside a batch system."""


def _is_written(one: Directive, kind: str) -> bool:
    """Whether the written file has the meaning of a directive itself."""
    known = _WRITTEN.get(_KINDS.get(one.scheduler, ""), "").split()
    if kind not in BATCH and one.name in _OF_SITE:
        return False
    if one.scheduler == "PBS" and one.name == "l":
        names = {part.partition("=")[0] for part in one.value.split(",")}
        return names <= set(_PBS_COUNTS) and (kind == "pbs" or not _of_pbs([one])["chunk"])
    if one.scheduler == "BSUB" and one.name == "R":
        return re.fullmatch(r"span\[[^\]]*\]", one.value) is not None
    return one.name in known


def left_out(job: Job, launch: Launch, kind: str, more: Sequence[str] = ()) -> list[str]:
    """Commands and requests of a file, and `more`, that the written one does not have."""
    kept = {line for _, line in _further(job, kind)}
    found = [
        (one.line, f"{one.name} {one.value}".strip())
        for one in job.directives
        if one.line not in kept and not _is_written(one, kind)
    ]
    for command in job.commands:
        is_other = command is not launch.command and command.texts[0] not in _SILENT and not command.is_nested
        is_other &= not _is_kept(command) or command.line >= launch.line
        is_other &= not command.line <= launch.line <= command.last_line  # the launch is in its text
        if is_other and not command.start.launcher and "=" not in command.texts[0]:
            found.append((command.line, " ".join(word.raw for word in command.words)))
    shown = [*(f"line {line}: {printable(text, 100)}" for line, text in dict.fromkeys(found)), *more]
    return shown[:MOST_LEFT] + [f"{len(shown) - MOST_LEFT} more lines"] * (len(shown) > MOST_LEFT)


def _words(launch: Launch, quiet: bool) -> list[str]:
    """The launcher's arguments, without srun or similar in front; counts become options of ringup."""
    start = launch.start
    dropped = set[int]()
    for option in start.options:
        if option.name in COUNTS:
            dropped.update(range(option.at, option.at + len(option.written.split())))
    if start.launcher != "python" and PYTHON.fullmatch(start.script):
        dropped.add(start.script_at)
    texts = [t for n, t in enumerate(launch.command.texts) if n >= start.at and n not in dropped]
    if start.launcher == "python" and not start.python:
        texts = ["python", *texts]
    own = [launch.shown(text) for text in start.arguments if has_mark(text)]
    if own:
        shown = printable(", ".join(own[:6]), 200)
        say(f"note: only the run knows {shown}: it stays as it is written, fill it in", quiet=quiet)
    env = [f"{n}={launch.shown(v)}" for n, v in start.env.items() if n not in RANK_VARIABLES]
    return [*env, *_container(launch, quiet), *(launch.shown(text) for text in texts)]


def _container(launch: Launch, quiet: bool) -> list[str]:
    """The container in front of the launcher, if its words are known: Apptainer's, or options of srun."""
    words: list[str] = []
    for step in launch.steps:
        options = [word for one in step.options for word in one.written.split(" ", 1)]
        if step.program == "srun":
            own = [o for o in step.options if o.name.startswith("--container-") and o.value]
            words += ["srun", *(f"{o.name}={o.value}" for o in own)] if own else []
        elif posixpath.basename(step.program) in CONTAINERS:
            words += [*filter(None, (step.program, step.subcommand)), *options, *step.positionals]
    shown = [launch.shown(word) for word in words]
    if any("$" in word for word in shown) or HIDING & set(words):
        say(f"left out: the container, {printable(' '.join(shown), 200)}", quiet=quiet)
        return []
    return shown


def explain(args: argparse.Namespace, path: str) -> None:
    from ringup.lint import lint

    for finding in lint({path: read_script(path)}):
        if finding.severity == "error":
            words = f"{finding.rule}: {printable(finding.found, 300)}; here: {finding.wanted}"
            say(f"{path_shown(finding.where)}  {words}", quiet=args.quiet)
