"""A job file, manifest or shell file as options and start line of the job in it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from ringup.cli.text_files import read_script
from ringup.errors import UsageError
from ringup.launchfiles import files
from ringup.launchfiles.directives import gpus_per_node, last, tasks_per_node
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import NODE_LAUNCHERS, Launch
from ringup.launchfiles.shell import Job
from ringup.launchfiles.start import PYTHON
from ringup.model import RANK_VARIABLES
from ringup.output.terminal import path_shown, say
from ringup.units import printable

SETS_UP = ("source", ".", "module", "conda", "ml", "ulimit")
_KEPT = re.compile(r"(?:NCCL|GLOO|TORCH|PYTORCH|CUDA|OMP|HF|WANDB|TOKENIZERS|UCX|FI|MKL|TRITON)_\w+")
COUNTS = ("--nnodes", "--nproc-per-node", "--num-machines", "--num-processes", "--num-nodes", "--num-gpus")
_SCHEDULED = {
    "name": ("job-name", "J", "N"),
    "queue": ("partition", "p", "q"),
    "account": ("account", "A", "P"),
    "time": ("time", "t", "W"),
}


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
    for name, options in _SCHEDULED.items():
        value = last([d for d in job.directives if d.scheduler in ("SBATCH", "BSUB", "PBS")], *options)[0]
        if value and re.fullmatch(r"[\w.,:@/+=%-]+", value) and not getattr(args, name):
            setattr(args, name, value)
    each = last(job.directives, "cpus-per-task", "c")[0] if kind == "slurm" else ""
    if each.isdecimal() and not args.cpus:
        args.cpus = int(each) * max(1, tasks_per_node(job.directives))
    args.setup = args.setup or " && ".join(_setup(job, launch))
    args.python = args.python or launch.start.python or "python3"
    args.option = [*(text for text, _ in _further(job, kind)), *args.option]
    for left in left_out(job, launch, kind):
        say(f"left out: {left}", quiet=args.quiet)
    given = {pair.partition("=")[0] for pair in args.env}
    for name, value in launch.env.items():
        if _KEPT.fullmatch(name) and name not in given and not has_mark(value):
            args.env = [*args.env, f"{name}={value}"]
    return _words(launch, quiet=args.quiet)


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


def _setup(job: Job, launch: Launch) -> Iterator[str]:
    """The commands before the launch that change its environment."""
    for command in job.commands:
        if command is launch.command or command.line >= launch.line:
            return
        texts = command.texts
        if texts[0] in SETS_UP and not command.is_nested and not any(map(has_mark, texts)):
            yield " ".join(word.raw for word in command.words)


_KINDS = {"SBATCH": "slurm", "PBS": "pbs", "BSUB": "lsf"}
_WRITTEN = {
    "slurm": "nodes N ntasks n ntasks-per-node tasks-per-node gres gpus G gpus-per-node gpus-per-task "
    "cpus-per-task c job-name J partition p account A time t output o error e export",
    "pbs": "l N q A P o e j V",
    "lsf": "n nnodes gpu R J q P W o e",
}
"""Kind of job file -> options of its scheduler that the written file has itself."""


def _further(job: Job, kind: str) -> Iterator[tuple[str, int]]:
    """Further requests to the same scheduler, as the written file repeats them, and their lines."""
    for one in job.directives:
        is_plain = re.fullmatch(r"[\w.,:@/+=%&|!\[\]-]*", one.value)
        if _KINDS.get(one.scheduler) == kind and one.name not in _WRITTEN[kind].split() and is_plain:
            long, value = kind == "slurm" and len(one.name) > 1, one.value
            yield (
                (f"--{one.name}" + f"={value}" * bool(value) if long else f"-{one.name} {value}".strip()),
                one.line,
            )


_SILENT = (
    *SETS_UP,
    "export",
    "set",
    "echo",
    "cd",
    "date",
    "hostname",
    "trap",
    "wait",
    "exit",
    "unset",
    "nvidia-smi",
)
MOST_LEFT = 8


def left_out(job: Job, launch: Launch, kind: str) -> list[str]:
    """Commands and requests of a file that the written one does not have."""
    kept = {line for _, line in _further(job, kind)}
    found = [
        (one.line, f"{one.name} {one.value}".strip())
        for one in job.directives
        if one.line not in kept and one.name not in _WRITTEN.get(kind, "").split()
    ]
    for command in job.commands:
        is_other = command is not launch.command and command.texts[0] not in _SILENT and not command.is_nested
        if is_other and not command.start.launcher and "=" not in command.texts[0]:
            found.append((command.line, " ".join(word.raw for word in command.words)))
    shown = [f"line {line}: {printable(text, 100)}" for line, text in dict.fromkeys(found)]
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
    return [*env, *(launch.shown(text) for text in texts)]


def explain(args: argparse.Namespace, path: str) -> None:
    from ringup.lint import lint

    for finding in lint({path: read_script(path)}):
        if finding.severity == "error":
            words = f"{finding.rule}: {printable(finding.found, 300)}; here: {finding.wanted}"
            say(f"{path_shown(finding.where)}  {words}", quiet=args.quiet)
