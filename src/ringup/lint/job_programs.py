"""Programs that choose their GPUs or form their world themselves: fairseq, nccl-tests, litgpt."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import NamedTuple

from ringup.launchfiles.directives import gpus_per_node
from ringup.launchfiles.model import placed
from ringup.launchfiles.shell import Command
from ringup.launchfiles.start import Step, arguments
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.rule import Found
from ringup.units import plural, printable


class StartedProgram(NamedTuple):
    """A program that srun or mpirun starts, if it is neither a launcher nor Python."""

    command: Command
    step: Step
    nodes: int | None
    each: int | None
    """Processes on each node."""

    @property
    def words(self) -> tuple[str, ...]:
        return self.command.start.rest

    @property
    def program(self) -> str:
        return posixpath.basename(self.words[0])


def _starts(job: JobFile, name: re.Pattern[str]) -> Iterator[StartedProgram]:
    for command in job.job.commands:
        steps = [s for s in command.steps if s.role == "starter"]
        rest = command.start.rest
        if steps and rest and name.fullmatch(posixpath.basename(rest[0])):
            yield StartedProgram(command, steps[0], *placed(job.job, command))


_FAIRSEQ = re.compile(r"fairseq(?:-hydra)?-train")
_MEETS = re.compile(r"distributed[-_](?:port|init[-_]method)|\btpu\b|\bcpu\b")
_ALONE = re.compile(r"distributed[-_]world[-_]size[=: ]+1(?!\d)")
_MORE_WORDS = re.compile(r"(?i)arg|opt|flag|param|conf|extra|[@*]|^\d$")
"""Names of variables that may hold options."""


def worlds_of_fairseq(job: JobFile) -> Found:
    """
    Tasks of srun with fairseq that do not know of each other.

    fairseq/distributed/utils.py, infer_init_method: only `distributed_port` makes fairseq read Slurm's
    variables; without it, RANK or an address it asserts world size <= GPUs of the node, and trains there.
    """
    for start in _starts(job, _FAIRSEQ):
        text = _settings_of_fairseq(job, start)
        environment = {**start.command.env, **start.command.start.env}
        several = (start.nodes or 1) * (start.each or 1)
        is_open = _MEETS.search(text) or _ALONE.search(text) or "RANK" in environment
        if start.step.program != "srun" or several < 2 or not text or is_open:
            continue
        is_hydra = start.program == "fairseq-hydra-train"
        given = "distributed_training.distributed_port=12345" if is_hydra else "--distributed-port 12345"
        total = start.step.option("-n", "--ntasks") or ""
        count = max(int(total), several) if total.isdecimal() else several
        found = f"{count} tasks of fairseq without a port: each trains alone, on the GPUs of its node"
        yield start.command.line, found, given, "fairseq"


def _settings_of_fairseq(job: JobFile, start: StartedProgram) -> str:
    """Its words and its configuration; "" if further settings may be elsewhere."""
    names = [mark.name for word in start.words for mark in job.job.marks.all_of(word)]
    if any(map(_MORE_WORDS.search, names)):
        return ""
    words, given = " ".join(start.words), arguments(start.words)
    if start.program == "fairseq-train":
        return words
    wanted = posixpath.join(given.get("config-dir", ""), given.get("config-name", "") + ".yaml")
    at_hand = [t for p, t in job.others.items() if posixpath.basename(p) == posixpath.basename(wanted)]
    config = text_of(job, wanted) or "".join(at_hand[:1])
    return f"{words}\n{config}" if config else ""


_NCCL_TESTS = re.compile(
    "(?:all_reduce|all_gather|alltoall|broadcast|gather|hypercube|reduce|reduce_scatter|scatter|sendrecv)_perf"
)
_ONE_GPU = re.compile(
    r"--gpus-per-task[= ](?:[\w.-]{1,60}:)?1(?!\S)"
    r"|--tres-per-task[= ]gres[/:]gpu(?:[:=][\w.-]{1,60})?[:=]1(?!\S)"
    r"|--gpu-bind[= ](?:single|per_task):1(?!\S)|--tres-bind[= ]gres/gpu:(?:single|per_task):1(?!\S)"
)
_NOT_BOUND = re.compile(r"-bind[= ]\S{0,20}(?:none|map|mask|closest)|NCCL_TESTS_DEVICE|VISIBLE_DEVICES")


def gpus_of_nccl_tests(job: JobFile) -> Found:
    """
    nccl-tests that look for GPUs which their task does not see, or the node does not have.

    NVIDIA/nccl-tests, src/common.cu: the first GPU is the process's number on its host x -t x -g.
    """
    asked = " ".join(f"--{d.name}={d.value}" for d in job.job.directives if d.scheduler == "SBATCH")
    for start in _starts(job, _NCCL_TESTS):
        given, each, line = arguments(start.words), start.each or 0, start.command.line
        own = " ".join(option.written for option in start.step.options)
        counts = [given.get("g") or given.get("ngpus", "1"), given.get("t") or given.get("nthreads", "1")]
        if each < 2 or not all(count.isdecimal() for count in counts) or "NCCL_TESTS_DEVICE=" in job.text:
            continue
        gpus = int(counts[0]) * int(counts[1])
        has = gpus_per_node(job.job.directives)[0]
        is_bound = start.step.program == "srun" and _ONE_GPU.search(f"{asked} {own}")
        if is_bound and not _NOT_BOUND.search(job.text):
            found = f"each task sees one GPU, number 0; {start.program} takes the GPU of the task's number"
            yield line, found, "--gpus-per-node", "Slurm"
        elif has and each * gpus > has and not start.step.has("--gres", "--gpus-per-node", "-G", "--gpus"):
            found = f"{plural(each, 'process')} a node with {gpus} GPUs each, and a node has {has}"
            yield line, found, f"{each} x -g at most {has}", "nccl-tests"


_LITGPT = re.compile("litgpt")
_DEVICES = re.compile(r"(?m)^devices: *(\d{1,4})[ \t]*(?:#.*)?$")


def tasks_of_litgpt(job: JobFile) -> Found:
    """litgpt makes a Fabric of `devices`; under Slurm Fabric starts no processes itself."""
    for start in _starts(job, _LITGPT):
        if start.step.program != "srun" or not re.match("pretrain|finetune", "".join(start.words[1:2])):
            continue
        given = arguments(start.words)
        own = _DEVICES.search(text_of(job, given.get("config", "")))
        devices = given.get("devices") or (own[1] if own else "")
        if start.each and devices.isdecimal() and int(devices) > 1 and int(devices) != start.each:
            found = f"{plural(start.each, 'task')} a node, and litgpt has devices={printable(devices, 8)}"
            yield start.command.line, found, f"--ntasks-per-node={devices}"


_LOADS = re.compile(r"(?m)^[ \t]{0,80}(?:module (?:load|add)|ml) (?! *(?:-|unload))[^#\n]{0,300}")
_HYDRA = re.compile(r"(?i)\b(?:mpich|mvapich2?|impi|intel-?mpi|intel-oneapi-mpi)\b")
_IMAGE = re.compile(r"(?i)(?:^|/)(?:Dockerfile|environment|env|conda)[\w.-]{0,40}$")
_INSTALLS = re.compile(r"(?m)(?:^|[ \t])(?:- )?((?:lib)?(?:openmpi|mpich)(?:-bin|-dev)?)(?=[ \t\\=<>]|$)")


def mpi_modules(job: JobFile) -> tuple[bool, bool]:
    """Whether the file loads a module of Open MPI, and one of an MPI that Hydra starts."""
    images = (text for path, text in job.others.items() if _IMAGE.search(path))
    words = _LOADS.findall(job.text) + [word for text in images for word in _INSTALLS.findall(text)]
    loaded = " ".join(words)
    return bool(re.search(r"(?i)\b(?:open-?mpi|hpcx)\b", loaded)), bool(_HYDRA.search(loaded))
