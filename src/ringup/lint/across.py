"""What does not fit between files: the lines for several nodes, a script and the line that starts it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringup import problems
from ringup.lint.meeting import DEBUG_NAMES, is_loopback, without_timeout, written_points
from ringup.lint.ranks import (
    Reading,
    how_many_workers,
    local_rank_argument,
    needs_local_rank_argument,
    spawns,
)
from ringup.lint.rule import ACROSS, SCRIPT, fault
from ringup.lint.shell import Job
from ringup.lint.starts import Launch, launches
from ringup.rules import Finding

_ADDRESS = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?![\d.])")
PER_NODE = ("nproc_per_node", "num_gpus")


@dataclass(frozen=True)
class Part:
    """One node's launch line, with what it says about the meeting."""

    job: Job
    launch: Launch
    hosts: tuple[str, ...]
    """Addresses that the comments above it name: where it is to be run."""
    rank: str
    address: str
    port: str
    count: str
    """Number of nodes, or the world size of a bare script."""
    id: str

    @property
    def where(self) -> str:
        """file:line."""
        return self.job.where(self.launch.line)


@dataclass(frozen=True)
class All:
    """Every file that was given."""

    scripts: Sequence[Reading]
    jobs: Sequence[Job]

    def parts(self) -> list[Part]:
        """Every launch line of every job file."""
        return [part for job in self.jobs for part in _parts(job)]

    def started(self) -> Iterator[tuple[Part, Reading]]:
        """Launch lines together with the script they start, where that was given."""
        for part in self.parts():
            name = part.launch.script.rpartition("/")[2]
            for script in self.scripts:
                if name and script.script.path.rpartition("/")[2] == name:
                    yield part, script

    def rounds(self) -> list[list[Part]]:
        """Lines that belong to one start: the same launcher and script, each node rank once."""
        groups: dict[tuple[str, str], list[list[Part]]] = {}
        for part in self.parts():
            if not part.rank.isdecimal():
                continue
            rounds = groups.setdefault((part.launch.launcher, part.launch.script), [[]])
            if _is_shown_again(part, rounds[-1]):
                rounds.append([])
            rounds[-1].append(part)
        return [one for rounds in groups.values() for one in rounds if one]


def _is_shown_again(part: Part, parts: Sequence[Part]) -> bool:
    """
    Whether a line begins another start: its rank stands in this one already, and nothing says that both
    are to be run at once (comments that name two hosts; a file each).
    """
    same = [other for other in parts if other.rank == part.rank]
    if not same:
        return False
    if any(other.job is part.job for other in same):
        return not any(part.hosts and o.hosts and not set(part.hosts) & set(o.hosts) for o in same)
    ranks = {o.rank for o in parts if o.job is same[0].job}
    return len(ranks) > 1 or (part.address, part.port) != (same[0].address, same[0].port)


def _literal(text: str) -> str:
    return "" if "$" in text or "`" in text else text


def _parts(job: Job) -> Iterator[Part]:
    before = 0
    for launch in launches(job):
        comments = [c for command in job.commands for c in command.comments]
        near = [c for c in comments if before < c.line < launch.line]
        before = launch.line
        endpoint, colon, port = launch.option("rdzv_endpoint").rpartition(":")
        bare = launch.launcher == "python"
        yield Part(
            job,
            launch,
            tuple(dict.fromkeys(a for c in near for a in _ADDRESS.findall(c.text))),
            _literal(launch.variable("RANK") if bare else _rank(launch)),
            _literal(
                launch.option("master_addr", "main_process_ip")
                or (endpoint if colon else launch.option("rdzv_endpoint"))
                or launch.variable("MASTER_ADDR")
            ),
            _literal(
                launch.option("master_port", "main_process_port")
                or (port if colon else "")
                or launch.variable("MASTER_PORT")
            ),
            _literal(
                launch.variable("WORLD_SIZE")
                if bare
                else launch.option("nnodes", "num_machines") or launch.variable("NNODES")
            ),
            _literal(launch.option("rdzv_id")),
        )


def _rank(launch: Launch) -> str:
    if launch.launcher == "llamafactory":
        return launch.variable("NODE_RANK")
    return launch.option("node_rank", "machine_rank")


@fault("head-is-elsewhere", ACROSS)
def head_is_elsewhere(files: All) -> Iterator[Finding]:
    """
    Rank 0 is started on another host than the one that MASTER_ADDR names.

    Why: the store listens where rank 0 runs; everybody else dials MASTER_ADDR, where nobody answers.

    Fix: MASTER_ADDR = an address of the host on which rank 0 is started, the same on every node.
    """
    for part in files.parts():
        known = part.rank == "0" and part.hosts and _ADDRESS.fullmatch(part.address)
        if known and part.address not in part.hosts and not is_loopback(part.address):
            yield Finding(
                where=part.where,
                found=f"rank 0 runs on {' or '.join(part.hosts)}, MASTER_ADDR is {part.address}",
                wanted="the address of rank 0's own host",
            )


@fault("meeting-point-differs", ACROSS)
def meeting_point_differs(files: All) -> Iterator[Finding]:
    """
    The lines of two nodes, or a script and its launch line, name different meeting points.

    Why: each side waits at its own place until the time-out.

    Fix: one address and one port for all, best set in one place.
    """
    for part, other in _neighbours(files):
        for name, own, theirs in (
            ("address", part.address, other.address),
            ("port", part.port, other.port),
        ):
            if own and theirs and own != theirs:
                yield Finding(
                    where=other.where,
                    found=f"{name} {theirs}, but {own} in {part.where}",
                    wanted=f"the same {name} on every node",
                )
    for part, script in files.started():
        for kind, value, line, _ in written_points(script):
            own = part.address if kind == "address" else part.port
            if own and own != value:
                yield Finding(
                    where=script.where(line),
                    found=f"{kind} {value}, but {own} in {part.where}",
                    wanted="what the launch line says",
                )


def _neighbours(files: All) -> Iterator[tuple[Part, Part]]:
    for parts in files.rounds():
        yield from ((parts[0], other) for other in parts[1:])


@fault(problems.RENDEZVOUS_IDS_DIFFER, ACROSS)
def rendezvous_ids_differ(files: All) -> Iterator[Finding]:
    """Two lines with different --rdzv-id."""
    for part, other in _neighbours(files):
        if part.id and other.id and part.id != other.id:
            yield Finding(
                where=other.where,
                found=f"--rdzv-id {other.id}, but {part.id} in {part.where}",
                wanted="one id for all nodes",
            )


@fault(problems.NODE_RANK_DUPLICATE, ACROSS)
def node_rank_duplicate(files: All) -> Iterator[Finding]:
    """Two lines with one rank, to be run on different hosts."""
    for parts in files.rounds():
        for at, part in enumerate(parts):
            for other in parts[:at]:
                if other.rank == part.rank:
                    yield Finding(
                        where=part.where,
                        found=f"rank {part.rank}, as in {other.where}",
                        wanted="a rank of its own for every node",
                    )


@fault(problems.WORLD_SIZE_DISAGREES, ACROSS)
def world_size_disagrees(files: All) -> Iterator[Finding]:
    """Counts that cannot all be right."""
    for part, other in _neighbours(files):
        if part.count and other.count and part.count != other.count:
            found = f"{other.count} are expected, but {part.count} in {part.where}"
            yield Finding(where=other.where, found=found, wanted="the same count on every node")
    for part in files.parts():
        if part.rank.isdecimal() and part.count.isdecimal() and int(part.rank) >= int(part.count):
            yield Finding(
                where=part.where,
                found=f"rank {part.rank} of {part.count}",
                wanted=f"ranks from 0 to {int(part.count) - 1}",
            )
        nodes, line = part.job.option("nodes", "N")
        if (
            nodes.isdecimal()
            and part.count.isdecimal()
            and nodes != part.count
            and part.launch.launcher != "python"
        ):
            yield Finding(
                where=part.where,
                found=f"{part.count} nodes, but {nodes} in line {line}",
                wanted="the allocation's number: $SLURM_NNODES",
            )
        total, machines = part.launch.option("num_processes"), part.launch.option("num_machines")
        if total.isdecimal() and machines.isdecimal() and int(machines) and int(total) % int(machines):
            yield Finding(
                where=part.where,
                found=f"{total} processes over {machines} machines: {int(total) // int(machines)} on each",
                wanted="a multiple of the machines: --num_processes is the total",
            )


@fault(problems.NPROC_EXCEEDS_GPUS, ACROSS)
def nproc_exceeds_gpus(files: All) -> Iterator[Finding]:
    """More processes a node than the job file asks GPUs for."""
    for part in files.parts():
        value, line = part.job.option("gres", "gpus-per-node")
        gpus = re.search(r"(?:^|:)(\d+)$", value)
        ranks = part.launch.option(*PER_NODE)
        if gpus and ranks.isdecimal() and int(ranks) > int(gpus[1]):
            yield Finding(
                where=part.where,
                found=f"{ranks} processes on {gpus[1]} GPUs (line {line})",
                wanted="as many processes as GPUs",
            )


@fault(problems.LOCAL_RANK_ARGUMENT_REJECTED, ACROSS)
def local_rank_argument_rejected(files: All) -> Iterator[Finding]:
    """A launcher that passes what the script does not take."""
    for part, read in files.started():
        launch, script = part.launch, read.script
        passes = (launch.launcher == "launch" and "use_env" not in launch.options) or (
            launch.launcher == "deepspeed" and "no_local_rank" not in launch.options
        )
        strict = any(c.name.endswith(".parse_args") for c in script.calls)
        argument = local_rank_argument(script)
        spelling = "--local-rank" if launch.launcher == "launch" else "--local_rank"
        if passes and strict and (argument is None or spelling not in argument.spellings):
            yield Finding(
                where=part.where,
                found=f"{launch.launcher} passes {spelling}=N, {script.path} does not take it",
                wanted="torchrun, or an argument of both spellings",
            )


@fault("local-rank-argument-missing", ACROSS)
def local_rank_argument_missing(files: All) -> Iterator[Finding]:
    """
    The script waits for --local-rank, and its launch line passes none.

    Why: every rank then has the default: all of a node's ranks on one GPU, or an error about the argument.

    Fix: read LOCAL_RANK in the script; `ringup run` passes the argument to a script that needs it.
    """
    for part, read in files.started():
        argument = needs_local_rank_argument(read.script)
        given = any("local_rank" in a.replace("-", "_") for a in part.launch.arguments)
        passes_none = part.launch.launcher in ("torchrun", "python", "accelerate")
        if argument is not None and passes_none and not given:
            yield Finding(
                where=part.where,
                found=f"{part.launch.launcher} passes no {argument.spellings[0]} "
                f"({read.where(argument.line)} takes it)",
                wanted="LOCAL_RANK read from the environment",
            )


@fault("ranks-started-twice", ACROSS)
def ranks_started_twice(files: All) -> Iterator[Finding]:
    """
    A launcher starts a process per GPU, and the script spawns one per GPU in each of them.

    Why: N launched times N spawned ranks fight for N GPUs and one port.

    Fix: one process a node for a script that spawns, or no `mp.spawn`.
    """
    for part, read in files.started():
        ranks = part.launch.option(*PER_NODE)
        if (
            spawns(read.script)
            and part.launch.launcher in ("torchrun", "launch", "accelerate")
            and ranks != "1"
        ):
            yield Finding(
                where=part.where,
                found=f"{part.launch.launcher} starts a script that spawns its own ranks "
                f"({read.where(spawns(read.script)[0].line)})",
                wanted="one of the two",
            )


@fault(SCRIPT["no-timeout-while-debugging"][0], ACROSS)
def no_timeout_while_debugging(files: All) -> Iterator[Finding]:
    """The job file sets what one sets to debug."""
    told: set[str] = set()
    for part, read in files.started():
        names = DEBUG_NAMES.findall(part.job.text)
        if names and read.script.path not in told and not DEBUG_NAMES.search(read.script.text):
            told.add(read.script.path)
            yield from without_timeout(read, f"{part.job.path} sets {names[0]}")


@fault(SCRIPT["dataloader-workers-exceed-cpus"][0], ACROSS)
def dataloader_workers_exceed_cpus(files: All) -> Iterator[Finding]:
    """Workers as written in the script against --cpus-per-task."""
    for part, read in files.started():
        cpus, _ = part.job.option("cpus-per-task", "c")
        ranks, workers = part.launch.option(*PER_NODE) or "1", how_many_workers(read)
        if cpus.isdecimal() and ranks.isdecimal() and workers * int(ranks) > int(cpus):
            yield Finding(
                where=part.where,
                found=f"{ranks} ranks with {workers} workers each on {cpus} processors",
                wanted="no more workers than processors",
            )
