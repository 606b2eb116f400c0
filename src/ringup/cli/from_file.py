"""A job file, manifest or shell file as options and start line of the job in it."""

from __future__ import annotations

import argparse
import posixpath
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from ringup.cli import from_manifest
from ringup.cli.text_files import read_script
from ringup.errors import UsageError
from ringup.jobfiles import BATCH, LIMITED, PODS, VARIABLE
from ringup.jobfiles.quoting import quoted
from ringup.launchfiles import files
from ringup.launchfiles.directives import Directive, gpus_per_node, last, tasks_per_node
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import NODE_LAUNCHERS, Launch
from ringup.launchfiles.shell import Command, Job
from ringup.launchfiles.start import PYTHON
from ringup.model import CONTAINERS, RANK_VARIABLES, TORCHRUN_PREFIXES
from ringup.output.terminal import path_shown, say
from ringup.planning.start_line import HIDING, WRAPPERS
from ringup.units import printable

SETS_UP = ("source", ".", "module", "conda", "mamba", "micromamba", "ml", "ulimit", "cd")
_OWN = {*RANK_VARIABLES, "NNODES", "NPROC", "NPROC_PER_NODE", "RUN_ID", "ADDRESS", "PYTHON", "FORCE_TORCHRUN"}
"""Variables that the written file, or the launcher it starts, sets itself."""
_IN_JOB = {
    "slurm": "SLURM_JOB_ID SLURM_JOB_NAME SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_SUBMIT_DIR",
    "pbs": "PBS_JOBID PBS_JOBNAME PBS_O_WORKDIR PBS_ARRAY_INDEX",
    "lsf": "LSB_JOBID LSB_JOBNAME LSB_JOBINDEX LS_SUBCWD",
}
"""Kind of job file -> variables of its scheduler with one value for the whole job."""
_SCHEDULERS = ("SLURM_", "PBS_", "LSB_", "LS_", "OMPI_", "PMI")
_PATHS = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LIBRARY_PATH", "CPATH", "MANPATH", "PKG_CONFIG_PATH")
_SUBMITTED = re.compile(r'cd "?\$\{?(?:SLURM_SUBMIT_DIR|PBS_O_WORKDIR|LS_SUBCWD|PWD)\}?"?')
"""Where the written file begins."""
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
            return file.read(4096).lstrip()[:1] not in (b"{", b"\x1f")
    except OSError:
        return False


def fill(args: argparse.Namespace, path: str, kind: str) -> list[str]:
    """Set options that only the file has; returns its start line.  Raises UsageError."""
    launch = the_one(path, files.read(path, read_script(path)))
    say(f"ringup: {path_shown(path)}:{launch.line}  {printable(launch.summary)}", quiet=args.quiet)
    job = launch.job
    is_per_task = launch.ranks_shown != launch.ranks_per_node  # its nodes are tasks
    nodes = launch.nnodes if (launch.nnodes or 1) > 1 and not is_per_task else launch.nodes_shown
    nodes = max(nodes or 0, launch.allocated, launch.replicas or 0)
    args.nodes = args.nodes or nodes
    args.nproc = args.nproc or launch.ranks_shown
    args.gpus = args.gpus if args.gpus is not None else (gpus_per_node(job.directives)[0] or None)
    elsewhere = from_manifest.fill(args, launch)
    for name, value in _requests(job, kind).items():
        goes_over = kind in BATCH or (name == "time" and kind in LIMITED) or (name == "name" and kind in PODS)
        if goes_over and value and re.fullmatch(r"[\w.,:@/+=%-]+", value) and not getattr(args, name, ""):
            setattr(args, name, value)
    args.cpus = args.cpus or _cpus(job, kind)
    before = takewhile(lambda one: one is not launch.command and one.line < launch.line, job.commands)
    args.live = _live_names(launch, kind)
    setup = [text for one in before if (text := _setup_text(one, launch, kind))]
    exports, lost = _environment(args, launch)
    args.setup = args.setup or " &&\n  ".join([*setup, *exports])
    has_own = any(step.program in ("uv", "rye") for step in launch.steps)
    args.python = args.python or launch.start.python or ("" if has_own else "python3")
    args.option = [*(text for text, _ in _further(job, kind)), *args.option]
    left = left_out(job, launch, kind, [*elsewhere, *lost])
    say(*(f"left out: {one}" for one in left), quiet=args.quiet)
    count = [f"NPROC_PER_NODE={args.nproc}"] if launch.launcher == "swift" and args.nproc else []
    return [*count, *_words(launch, args.live, quiet=args.quiet)]


def _environment(args: argparse.Namespace, launch: Launch) -> tuple[list[str], list[str]]:
    """Add variables of the launch to `args.env`; returns `export` lines of others, and what is left out."""
    given, args.copied = {pair.partition("=")[0] for pair in args.env}, {}
    exports, lost = [], []
    for name, value in launch.env.items():
        shown = launch.shown(value)
        if name in given or name in _OWN or name.startswith(TORCHRUN_PREFIXES) or shown == f"${name}":
            continue
        if not has_mark(value):
            args.env, args.copied[name] = [*args.env, f"{name}={value}"], Path(launch.job.path).name
        elif _is_shell(launch, [value]) and (live := _live_text(shown, (*args.live, *_PATHS))):
            exports.append(f"export {name}={live}")
        else:
            lost.append(f"{name}={printable(shown, 100)}")
    return exports, lost


def _is_shell(launch: Launch, texts: Sequence[str]) -> bool:
    """Whether a shell expands what is shown of each unknown value: not `(first node)`, not `{{ n }}`."""
    return all(mark.is_shell for text in texts for mark in launch.job.marks.all_of(text))


def _live_text(shown: str, names: Collection[str]) -> str:
    """A text in double quotes whose variables the nodes expand; "" if it has others than `names`."""
    used = {plain or braced for plain, braced in re.findall(VARIABLE, shown)}
    is_plain = shown.isprintable() and not re.search(r"[$`\"\\]", re.sub(VARIABLE, "", shown))
    if not is_plain or not used <= set(names):
        return ""
    return '"' + re.sub(rf"\$({'|'.join(_PATHS)})\b", r"${\1:-}", shown) + '"'


def _live_names(launch: Launch, kind: str) -> tuple[str, ...]:
    """Variables that the file uses but does not set, if the shell of the written file has them, too."""
    if kind not in BATCH:
        return ()
    own = {*launch.command.variables, *_OWN}
    names = {name for name in launch.job.marks.names if name.isidentifier() and name not in own}
    return *(name for name in names if not name.startswith(_SCHEDULERS)), *_IN_JOB[kind].split()


def _setup_text(command: Command, launch: Launch, kind: str) -> str:
    """A command before the launch as the written file has it, "" for none; an image has no modules."""
    raw = " ".join(word.raw for word in command.words)
    if command.is_nested or _SUBMITTED.fullmatch(raw):
        return ""
    if re.fullmatch(r'eval "?\$\((?:conda|mamba|micromamba) shell[ .][\w .-]+\)"?', raw):
        return raw
    is_module = command.texts[0] in ("module", "ml")
    is_known = command.texts[0] in SETS_UP and _is_shell(launch, command.texts)
    if not is_known or (is_module and kind in (*PODS, "docker")):
        return ""
    live = _live_names(launch, kind)
    shown = [(word.raw, launch.shown(text)) for word, text in zip(command.words, command.texts, strict=True)]
    texts = [_shell_word(own, raw, live) for raw, own in shown]
    return " ".join(texts) if all(texts) else ""


def _shell_word(shown: str, raw: str, live: Collection[str]) -> str:
    """A word with the values of the first file's variables; "" if it has variables other than `live`."""
    if "$" not in shown:
        return raw if raw == shown and raw.isprintable() else quoted(shown)
    return f'"{shown}"' if _live_text(shown, live) else ""


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
        if KINDS[scheduler] != kind or scheduler == "BSUB":
            found["time"] = _clock(found.get("time", ""), scheduler)
        if KINDS[scheduler] != kind:
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


KINDS = {"SBATCH": "slurm", "PBS": "pbs", "BSUB": "lsf"}
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
        elif KINDS.get(one.scheduler) == kind and one.name not in _WRITTEN[kind].split() and is_plain:
            long, value = kind == "slurm" and len(one.name) > 1, one.value
            shown = f"--{one.name}" + f"={value}" * bool(value) if long else f"-{one.name} {value}".strip()
            yield shown, one.line


_NO_WRAPPERS = ("exec", "command", "coproc", "time", "env", "nohup", "setsid")
_SILENT = ("export", "set", "echo", "date", "hostname", "wait", "exit", "unset", "nvidia-smi")
MOST_LEFT = 16
_OF_SITE = ("partition", "p", "queue", "q", "account", "A", "P", "output", "error", "o", "e", "oo")
"""Requests that mean nothing outside a batch system."""


def _is_written(one: Directive, kind: str) -> bool:
    """Whether the written file has the meaning of a directive itself."""
    known = _WRITTEN.get(KINDS.get(one.scheduler, ""), "").split()
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
        is_other &= not _SUBMITTED.fullmatch(" ".join(word.raw for word in command.words))
        is_other &= not _setup_text(command, launch, kind) or command.line >= launch.line
        is_other &= not command.line <= launch.line <= command.last_line  # the launch is in its text
        if is_other and not command.start.launcher and "=" not in command.texts[0]:
            found.append((command.line, " ".join(word.raw for word in command.words)))
    shown = [*(f"line {line}: {printable(text, 100)}" for line, text in dict.fromkeys(found)), *more]
    return shown[:MOST_LEFT] + [f"{len(shown) - MOST_LEFT} more lines"] * (len(shown) > MOST_LEFT)


def _words(launch: Launch, live: Collection[str], quiet: bool) -> list[str]:
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
    unknown = [text for text in start.arguments if has_mark(text)]
    is_live = (_is_shell(launch, [text]) and _live_text(launch.shown(text), live) for text in unknown)
    if own := [launch.shown(text) for text, one in zip(unknown, is_live, strict=True) if not one]:
        shown = printable(", ".join(own[:6]), 200)
        say(f"note: only the run knows {shown}: it stays as it is written, fill it in", quiet=quiet)
    return [*_in_front(launch, quiet), *(launch.shown(text) for text in texts)]


def _in_front(launch: Launch, quiet: bool) -> list[str]:
    """Wrappers and containers in front of the launcher, and srun if it names an image or starts the ranks."""
    found: list[str] = []
    for step in launch.steps:
        program = posixpath.basename(step.program)
        words = [word for one in step.options for word in one.written.split(" ", 1)]
        if program == "srun":
            words = [
                f"{o.name}={o.value}" for o in step.options if o.name.startswith("--container-") and o.value
            ]
        is_starter = program == "srun" and launch.launcher == "python"
        if not (words or is_starter) and (step.role != "wrapper" or program in _NO_WRAPPERS):
            continue
        words = [
            launch.shown(w) for w in (program, *filter(None, [step.subcommand]), *words, *step.positionals)
        ]
        hides = program in CONTAINERS and HIDING & set(words)
        if hides or any("$" in word for word in words) or program not in (*WRAPPERS, *CONTAINERS, "srun"):
            what = "container" if program in (*CONTAINERS, "srun", "docker", "podman") else "wrapper"
            say(f"left out: the {what}, {printable(shlex.join(words), 200)}", quiet=quiet)
        else:
            found += words
    return found


def explain(args: argparse.Namespace, path: str) -> None:
    from ringup.lint import lint

    for finding in lint({path: read_script(path)}):
        if finding.severity == "error":
            words = f"{finding.rule}: {printable(finding.found, 300)}; here: {finding.wanted}"
            say(f"{path_shown(finding.where)}  {words}", quiet=args.quiet)
