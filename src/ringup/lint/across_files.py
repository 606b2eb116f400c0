"""Contradictions between files: the lines for several nodes, a script and the line that starts it."""

from __future__ import annotations

import ast
import functools
import itertools
import posixpath
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringup.launchfiles import marks
from ringup.launchfiles.directives import gpus_per_node, last
from ringup.launchfiles.manifests import accelerators
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import ON_HOST, Launch
from ringup.launchfiles.passing import DOCKER
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.ranks import Reading, local_rank_argument, most_workers, needs_local_rank_argument
from ringup.lint.rendezvous import DEBUG_NAMES, means_itself, without_timeout, written_points
from ringup.lint.rule import ACROSS, fault
from ringup.lint.source import STARTS_RANKS, Script
from ringup.model import LOCAL_RANKS, RANKS
from ringup.rules import Finding, Severity
from ringup.units import plural, printable

_ADDRESS = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?![\d.])")

_NUMBERED = re.compile(r"(?i)\b(?:node|rank|machine|host|server|worker)[ #_-]?(\d{1,3})\b")
_REMARK = re.compile(
    rf"\s{{0,99}}(?:#.*|{_NUMBERED.pattern.removeprefix('(?i)')}:?\s{{0,99}})", re.IGNORECASE
)
"""A comment, or the heading of a pasted line."""


class Part:
    """One node's launch line, with its rendezvous settings; "" for those that it leaves to the shell."""

    def __init__(self, job: JobFile, launch: Launch, hosts: Sequence[str], named: Sequence[str]) -> None:
        self.job, self.launch = job, launch
        self.hosts = hosts
        """Addresses in the comments above it: the hosts to run it on."""
        step = next((s for s in launch.steps if s.program in ON_HOST), None)
        is_own = launch.is_part and launch.command.detached and not launch.command.branches
        is_many = (launch.nnodes or 0) > 1 or launch.unread_config
        numbered = named if len(named) == 1 and is_many else ()
        self.machines = step.positionals if step and is_own else hosts or numbered
        """These, or the host of its starter, if it runs there while others do on theirs, or `# node 1`."""
        variable = {n: v for n, v in launch.command.variables.items() if isinstance(v, str)}.get
        is_bare = launch.launcher == "python"
        address, colon, port = launch.endpoint.rpartition(":")
        is_told = is_bare and {"rank", "world-size"} <= launch.arguments.keys()
        given = launch.arguments if is_told else {}
        rank = (variable("RANK") or given.get("rank", "")) if is_bare else launch.node_rank_text
        self.rank = _literal(rank)
        self.address = _literal((address if colon else launch.endpoint) or (variable("MASTER_ADDR") or ""))
        own_port = launch.option("master-port", "main-process-port")
        self.port = _literal(own_port or (port if colon else "") or (variable("MASTER_PORT") or ""))
        count = variable("WORLD_SIZE") or given.get("world-size", "") if is_bare else launch.nnodes_text
        self.count = _literal(count)
        """Number of nodes, or the world size of a bare script."""
        self.id = _literal(launch.option("rdzv-id"))
        self.ranks = _literal(launch.option("nproc-per-node", "num-gpus"))
        self.where = job.where(launch.line)

    def finding(self, found: str, wanted: str) -> Finding:
        return self.job.finding(self.launch.line, found, wanted)


def _literal(text: str) -> str:
    return "" if has_mark(text) else text


@dataclass(frozen=True)
class All:
    scripts: Sequence[Reading]
    jobs: Sequence[JobFile]

    @functools.cached_property
    def parts(self) -> list[Part]:
        return [part for job in self.jobs for part in _parts(job)]

    def started(self) -> Iterator[tuple[Part, Reading]]:
        """Launch lines with the scripts they start, if those were given."""
        by_name: dict[str, list[Reading]] = {}
        for script in self.scripts:
            by_name.setdefault(posixpath.basename(script.script.path), []).append(script)
        for part in self.parts:
            start, found = part.launch.start, by_name.get(posixpath.basename(part.launch.start.script), [])
            if start.kind == "module":
                last_parts = "/" + start.script.replace(".", "/") + ".py"
                named = by_name.get(posixpath.basename(last_parts), [])
                found = [one for one in named if f"/{one.script.path}".endswith(last_parts)]
            # Of several of that name the one in the launch file's own folder, or nearest below or above it.
            near = [len(posixpath.commonprefix((f.script.path, part.job.path))) for f in found]
            if near and near.count(max(near)) == 1:
                yield part, found[near.index(max(near))]

    def rounds(self) -> list[list[Part]]:
        """Lines that belong to one start: the same launcher and script, each node rank once."""
        groups: dict[tuple[str, str], list[list[Part]]] = {}
        for part in self.parts:
            if not part.rank.isdecimal():
                continue
            rounds = groups.setdefault((part.launch.launcher, part.launch.start.script), [[]])
            if _is_shown_again(part, rounds[-1]):
                rounds.append([])
            rounds[-1].append(part)
        return [one for rounds in groups.values() for one in rounds if one]

    def differ(self, name: str, words: str, wanted: str) -> Iterator[Finding]:
        """A finding for each line whose value differs from the first line of its start."""
        for parts in self.rounds():
            first, *others = parts
            if name == "address" and first.rank == "0" and means_itself(first.address) and others:
                first, *others = others  # rank 0 reaches its own store by any of its addresses
            own = getattr(first, name)
            for other in others:
                theirs = getattr(other, name)
                if own and theirs and own != theirs:
                    yield other.finding(f"{words.format(theirs)}, but {own} in {first.where}", wanted)


def _is_shown_again(part: Part, parts: Sequence[Part]) -> bool:
    """
    Whether a line begins another start: its rank is already in this one, and nothing shows that both run at
    once (comments that name two hosts; a file each).
    """
    if not (same := [other for other in parts if other.rank == part.rank]):
        return False
    is_elsewhere = (part.address, part.port) != (same[0].address, same[0].port)
    if part.launch.replicas is not None and (part.launch.nnodes or part.launch.number(part.count) or 0) > 1:
        return is_elsewhere  # a manifest's services run at once
    if any(other.job.path == part.job.path for other in same):
        return not any(part.machines and o.machines and not {*part.machines} & {*o.machines} for o in same)
    return len({o.rank for o in parts if o.job is same[0].job}) > 1 or is_elsewhere


def _parts(job: JobFile) -> Iterator[Part]:
    before, texts = 0, ["", *job.lines]
    for launch in job.launches:
        above = " ".join(t for t in texts[before + 1 : launch.line] if _REMARK.fullmatch(t))
        before = launch.line
        found = (tuple(dict.fromkeys(form.findall(above))) for form in (_ADDRESS, _NUMBERED))
        yield Part(job, launch, *found)


@fault("head-is-elsewhere", ACROSS, each="parts")
def head_is_elsewhere(files: All, part: Part) -> Iterator[Finding]:
    """
    Rank 0 is started on another host than the one that MASTER_ADDR names.

    Why: the store listens where rank 0 runs; all others connect to MASTER_ADDR, where nothing listens.

    Fix: set MASTER_ADDR on every node to the same address: one of the host on which rank 0 is started.
    """
    launch = part.launch
    held = {mark.name for mark in launch.job.marks.all_of(launch.host or part.address)}
    if marks.OTHER_NODE in held and launch.backend == "static" and launch.nodes != 1:
        found = "MASTER_ADDR is another node of the list than the first, which has rank 0"
        yield part.finding(found, "an address of the first node")
        return
    known = part.rank == "0" and part.hosts and _ADDRESS.fullmatch(part.address)
    if known and part.address not in part.hosts and not means_itself(part.address):
        found = f"rank 0 runs on {' or '.join(part.hosts)}, MASTER_ADDR is {part.address}"
        yield part.finding(found, "the address of rank 0's own host")


@fault("meeting-point-differs", ACROSS)
def meeting_point_differs(files: All) -> Iterator[Finding]:
    yield from files.differ("address", "address {}", "the same address on every node")
    yield from files.differ("port", "port {}", "the same port on every node")
    for part, script in files.started():
        for kind, value, line, _ in written_points(script):
            if (own := getattr(part, kind)) and own != value:
                found = f"{kind} {value}, but {own} in {part.where}"
                yield script.finding(line, found, "what the launch line says")


@fault("rendezvous-ids-differ", ACROSS)
def rendezvous_ids_differ(files: All) -> Iterator[Finding]:
    yield from files.differ("id", "--rdzv-id {}", "one id for all nodes")


@fault("node-rank-duplicate", ACROSS)
def node_rank_duplicate(files: All) -> Iterator[Finding]:
    for parts in files.rounds():
        for other, part in itertools.combinations(parts, 2):
            if other.rank == part.rank and (part.launch.replicas or 1) == 1:
                found = f"rank {part.rank}, as in {other.where}"
                yield part.finding(found, "a rank of its own for every node")


@fault("world-size-disagrees", ACROSS)
def world_size_disagrees(files: All) -> Iterator[Finding]:
    yield from files.differ("count", "{} are expected", "the same count on every node")
    for part in files.parts:
        if part.rank.isdecimal() and part.count.isdecimal() and int(part.rank) >= int(part.count):
            yield part.finding(f"rank {part.rank} of {part.count}", f"ranks from 0 to {int(part.count) - 1}")
        total, machines = part.launch.option("num-processes"), part.launch.option("num-machines")
        if total.isdecimal() and machines.isdecimal() and int(machines) and int(total) % int(machines):
            found = f"{total} processes over {machines} machines: {int(total) // int(machines)} on each"
            yield part.finding(found, "a multiple of the machines: --num_processes is the total")


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_DEVICE = re.compile(r"\d{1,3}|(?:GPU|MIG)-[\w-]+")


def _by_task_number(text: str) -> bool:
    """Whether a script takes the GPU whose number is SLURM_LOCALID, as JAX does."""
    own = "SLURM_LOCALID" in text and re.search(r"set_device\(|local_device_ids", text)
    is_wrapped = re.search(r"%[ \t]*(?:torch|\w{0,40}device_count|n\w{0,20})", text)
    return bool(own or re.search(r"jax\.distributed\.initialize\(\s*\)", text)) and not is_wrapped


_TRAINS = re.compile(r"(?i)train|fine_?tune|sft")
_OF_STEP = ("--gpus-per-node", "--gres", "--gpus-per-task")


def _gpus_seen(launch: Launch) -> tuple[int, int]:
    """(GPUs of its node that the launcher sees, the line that says so); (0, 0) if nothing does."""
    directives = launch.job.directives
    gpus, line = gpus_per_node(directives)
    each, at = last(directives, "gpus-per-task")
    if not gpus and each and launch.srun and "gpu-bind" not in {d.name for d in directives}:
        gpus, line = launch.number(each.rpartition(":")[2]) or 0, at
    for step in launch.steps:
        given = ""
        if step.program == "srun" and not step.has("--gpu-bind"):
            given = next((value for name in _OF_STEP if (value := step.option(name))), "")
        elif step.program == "jsrun":
            given = step.option("-g", "--gpu_per_rs") or ""
        elif posixpath.basename(step.program) in DOCKER and (asked := step.option("--gpus")):
            listed = asked.strip("'\"").partition("device=")[2]
            given = str(len(listed.split(","))) if re.fullmatch(r"[\d,]{1,99}", listed) else asked
        count = launch.number(given.rpartition(":")[2]) if given else None
        gpus, line = (count, launch.line) if count is not None else (gpus, line)
    if launch.pod:
        return launch.pod.gpu_count, launch.line
    for document in launch.job.documents if launch.started_by == "SkyPilot" else ():
        if document.start_mark.line < launch.line <= document.end_mark.line + 1:
            return accelerators(document), launch.line
    return gpus, line


@fault("nproc-exceeds-gpus", ACROSS, each="parts")
def nproc_exceeds_gpus(files: All, part: Part) -> Iterator[Finding]:
    launch = part.launch
    gpus, line = _gpus_seen(launch)
    is_by_gpu = launch.launcher != "python" and not launch.has("cpu")
    ranks = (launch.ranks_per_node or 0) if is_by_gpu else 0
    is_set_by_step = launch.srun is not None and gpus > 0  # Slurm sets it for each step
    is_other = launch.launcher == "deepspeed" or is_set_by_step or "gloo" in launch.arguments.values()
    visible = [launch.env[name] for name in VISIBLE if launch.env.get(name) and not launch.has("gpu-ids")]
    listed = visible[0].split(",") if visible and not is_other else []
    if listed and all(_DEVICE.fullmatch(one.strip()) for one in listed) and ranks > len(listed):
        found = f"{ranks} processes, and {plural(len(listed), 'GPU')} ({visible[0]}) visible"
        yield part.finding(printable(found, 120), "as many processes as visible GPUs")
    elif gpus and ranks > gpus:
        found = f"{ranks} processes on {plural(gpus, 'GPU')} (line {line})"
        yield part.finding(found, "as many processes as GPUs")
    # jsrun(1): -a and -g count for each resource set.
    sets = next((step for step in launch.steps if step.program == "jsrun"), None)
    each = (launch.number(sets.option("-a", "--tasks_per_rs") or "") if sets else launch.per_node) or 0
    local = launch.job.marks.of(launch.env.get(LOCAL_RANKS[0], ""))
    by_number = local is not None and local.name in LOCAL_RANKS and "nccl" in launch.arguments.values()
    by_number = by_number or _by_task_number(text_of(part.job, launch.script))
    is_few = launch.launcher == "python" and launch.is_away and each > gpus > 0
    names = {d.name for d in launch.job.directives} | {o.name[2:] for s in launch.steps for o in s.options}
    is_several = "gloo" in launch.env.values() or names & {"ntasks-per-gpu", "gpus-per-task", "gpu-bind"}
    if is_few and (sets or _TRAINS.search(launch.script)) and not (by_number or is_several):
        found = f"{each} ranks on {plural(gpus, 'GPU')} of each {'set' if sets else 'node'} (line {line})"
        found += ": NCCL refuses two on one"
        yield part.job.finding(launch.line, found, "as many tasks as GPUs", severity="warning")
    if is_few and launch.srun and by_number:
        is_each = line == last(launch.job.directives, "gpus-per-task")[1]
        seen, does = f"{plural(gpus, 'GPU')} (line {line})", "takes the GPU of its number"
        found = f"{each} tasks on {seen}, each {does}"
        if is_each:  # sbatch(1): --gpus-per-task implies --gpu-bind=per_task
            found = f"each of {each} tasks sees {seen}, and {does}"
        wanted = f"--gpus-per-node={each * gpus}" if is_each else "as many tasks as GPUs"
        yield part.finding(found, wanted)
    given = next((launch.env[name].strip("\"'") for name in VISIBLE if launch.env.get(name)), "")
    if given.startswith("[") or re.fullmatch(r"\d{1,3} ?(?:-|\.\.) ?\d{1,3}", given):
        found = f"CUDA reads a list 0,1,2, not {printable(given, 60)}: these GPUs are not visible"
        yield part.finding(found, "0,1,2,3")
    ids = launch.option("gpu-ids").strip("\"'").split(",") if launch.nnodes == 1 else []
    if all(map(str.isdecimal, ids)) and ranks > len(ids) > 0:
        found = f"{ranks} processes, and --gpu_ids has {plural(len(ids), 'GPU')}"
        yield part.finding(found, "as many processes as GPUs")
    chosen = launch.arguments.get("device", "").split(",")
    if len(chosen) > 1 and all(map(str.isdecimal, chosen)) and ranks > len(chosen):
        found = f"{ranks} processes, and --device has {plural(len(chosen), 'GPU')}"
        yield part.finding(found, "as many processes as GPUs")
    asked, line = last(part.job.job.directives, "gpus", "G")
    whole, world = launch.number(asked.rpartition(":")[2]) or 0, launch.world_size or 0
    if ranks and not gpus and world > whole > 0:
        found = f"{world} processes on {plural(whole, 'GPU')}: --gpus (line {line}) counts all nodes"
        yield part.finding(found, "--gpus-per-node, or as many processes as GPUs")


@fault("local-rank-argument-rejected", ACROSS)
def local_rank_argument_rejected(files: All) -> Iterator[Finding]:
    passed = {"launch": ("use-env", "--local-rank"), "deepspeed": ("no-local-rank", "--local_rank")}
    for part, read in files.started():
        launch, script = part.launch, read.script
        switch, spelling = passed.get(launch.launcher, ("", ""))
        strict = any(c.name.endswith(".parse_args") for c in script.calls)
        argument = local_rank_argument(script)
        is_taken = argument is not None and spelling in argument.spellings
        if spelling and strict and not launch.has(switch) and not is_taken:
            found = f"{launch.launcher} passes {spelling}=N, {script.path} does not take it"
            yield part.finding(found, "torchrun, or an argument of both spellings")


@fault("local-rank-argument-missing", ACROSS, each="started")
def local_rank_argument_missing(files: All, part: Part, read: Reading) -> Iterator[Finding]:
    """
    The script waits for --local-rank, and its launch line passes none.

    Why: every rank then has the default: all of a node's ranks on one GPU, or an error about the argument.

    Fix: read LOCAL_RANK in the script; `ringup run` passes the argument to a script that needs it.
    """
    argument = needs_local_rank_argument(read.script)
    given = any("local_rank" in a.replace("-", "_") for a in part.launch.start.arguments)
    passes_none = part.launch.launcher in ("torchrun", "python", "accelerate")
    if argument is not None and passes_none and not given:
        found = f"{part.launch.launcher} passes no {argument.spellings[0]}"
        found += f" ({read.where(argument.line)} takes it)"
        yield part.finding(found, "LOCAL_RANK read from the environment")


@fault("ranks-started-twice", ACROSS, each="started")
def ranks_started_twice(files: All, part: Part, read: Reading) -> Iterator[Finding]:
    """
    A launcher starts a process per GPU, and the script spawns one per GPU in each of them.

    Why: N launched times N spawned ranks fight for N GPUs and one port.

    Fix: start one process per node for a script that spawns, or take `mp.spawn` out.
    """
    spawned, launcher = read.script.named(*STARTS_RANKS), part.launch.launcher
    if spawned and launcher in ("torchrun", "launch", "accelerate") and part.ranks != "1":
        found = f"{launcher} starts a script that spawns its own ranks ({read.where(spawned[0].line)})"
        yield part.finding(found, "one of the two")


def scheduler_rank(script: Script) -> str:
    """The variable from which the script takes its rank, if it only numbers the scheduler's tasks."""
    if "RANK" in script.strings or "LOCAL_RANK" in script.strings:
        return ""
    named = next((name for name in RANKS[:0:-1] if name in script.strings), "")
    return named or ("mpi4py" if "mpi4py" in script.imported else "")


@fault("rank-from-the-scheduler", ACROSS, each="started")
def rank_from_the_scheduler(files: All, part: Part, read: Reading) -> Iterator[Finding]:
    """
    The script takes its rank from the scheduler or MPI, and a launcher starts several ranks in each task.

    Why: all ranks of a node see the number of the node's one task: they call themselves the same rank.

    Fix: use RANK and LOCAL_RANK of the launcher in the script, or start one task per rank and no launcher
    (`srun --ntasks-per-node=8 python train.py`).
    """
    name, launcher = scheduler_rank(read.script), part.launch.launcher
    if name and launcher in ("torchrun", "launch", "accelerate", "deepspeed") and part.ranks != "1":
        found = f"{read.script.path} takes its rank from {name}: one number for all ranks of a node"
        yield part.finding(found, f"RANK, which {launcher} sets")


_OF_TASKS = (*RANKS[1:], *LOCAL_RANKS[1:])
_COMMON = ("torch", "torchvision", "torchaudio", "numpy", "tqdm", "transformers", "yaml")
_PLAIN = {*sys.stdlib_module_names, *_COMMON}
"""Packages that set no rank; any other, also one next to the script, may."""


@fault("rank-not-set", ACROSS, each="started")
def rank_not_set(files: All, part: Part, read: Reading) -> Iterator[Finding]:
    """
    The script takes its rank from RANK, and nothing that starts it sets it.

    Why: mpirun sets OMPI_COMM_WORLD_RANK and srun SLURM_PROCID, neither sets RANK or WORLD_SIZE, and python
    sets none of them.  Every rank fails, or calls itself rank 0 of 1 and trains alone.

    Fix: use torchrun, or `srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train.py'`.
    """
    launch, script = part.launch, read.script
    by = launch.started_by if launch.started_by in ("srun", "mpirun", "mpiexec") else ""
    is_given = re.search(r"\bRANK(?:=| {0,4}:)", part.job.text) or launch.env.get("RANK")
    is_alone = launch.launcher == "python" and launch.started_by in ("batch", "shell")
    name = _needed(script) if is_alone and not part.job.job.sources else ""
    if name and name not in part.job.text and name not in launch.env:
        found = f"python sets no {name}, and {script.path} ends without it"
        severity: Severity = "error" if part.job.job.directives else "warning"
        yield part.job.finding(launch.line, found, "torchrun in place of python", severity=severity)
    if not by or launch.launcher != "python" or launch.instances == 1 or is_given:
        return
    is_plain = "RANK" in script.strings and script.strings.isdisjoint(_OF_TASKS)
    if script.imported <= _PLAIN and (is_plain or _needed(script) == RANKS[0]):
        found = f"{by} sets no RANK, and {script.path} takes its rank from there"
        yield part.finding(found, "RANK, WORLD_SIZE and LOCAL_RANK of each task")


def _needed(script: Script) -> str:
    """A variable of the ranks without which the script ends at once; "" for none."""
    if any(script.named(*STARTS_RANKS)) or "argparse.REMAINDER" in script.text:
        return ""
    needs: list[tuple[ast.AST, str]] = [
        (c.node, "RANK") for c in script.named("colossalai.launch_from_torch")
    ]
    for node in script.of_kind(ast.Subscript):
        name = getattr(node.slice, "value", "")
        if name in (RANKS[0], LOCAL_RANKS[0], "WORLD_SIZE") and script.dotted(node.value) == "os.environ":
            if isinstance(node.ctx, ast.Store):
                return ""
            needs.append((node, str(name)))
    for needed, name in needs:
        function = script.function_of(needed)
        is_run = function is None or function.name == "main"
        is_sure = not any(
            isinstance(above, ast.If | ast.Try | ast.IfExp) for above, _ in script.above(needed)
        )
        if is_run and is_sure:
            return name
    return ""


@fault("no-timeout-while-debugging", ACROSS)
def no_timeout_while_debugging(files: All) -> Iterator[Finding]:
    told: set[str] = set()
    for part, read in files.started():
        names = DEBUG_NAMES.findall(part.job.text)
        if names and read.script.path not in told and not DEBUG_NAMES.search(read.script.text):
            told.add(read.script.path)
            yield from without_timeout(read, f"{part.job.path} sets {names[0]}")


@fault("dataloader-workers-exceed-cpus", ACROSS)
def dataloader_workers_exceed_cpus(files: All) -> Iterator[Finding]:
    for part, read in files.started():
        cpus, _ = last(part.job.job.directives, "cpus-per-task", "c")
        ranks, workers = part.ranks or "1", most_workers(read)[1]
        if cpus.isdecimal() and ranks.isdecimal() and workers * int(ranks) > int(cpus):
            found = f"{ranks} ranks with {workers} workers each on {cpus} processors"
            yield part.finding(found, "no more workers than CPUs")
