"""
Faults in a training script or job file that break or hang it on several nodes.

Files are read, never run or imported.  Only faults that the text shows are reported.

    findings = lint({"train.py": text, "job.sh": text})
    how_to_start(text).launcher

    source, values   a Python script and what its expressions may be
    ranks, rendezvous, collectives   rules on a script
    settings   rules on the variables that a script or job file sets
    job_file   a shell or job file or manifest, read by `launchfiles`
    job_words   rules on the words of a command: options, the script
    job_worlds, job_rendezvous   rules on the number of nodes and ranks, on where they meet
    job_shell, job_submission   rules on directives and the shell, on how a job is submitted
    job_environment, job_variables   rules on containers and the environment, on variables that are empty
    job_numbers, job_manifest   rules on each rank's own settings, on pods
    job_training, job_and_script   rules on sizes, settings of DeepSpeed and FSDP, and scripts that differ
    job_lsf   rules on job files of LSF
    job_programs   programs that choose GPUs or form a world themselves: fairseq, nccl-tests, litgpt
    alone   scripts that train in one process
    across_files   rules between files
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

from ringup.launchfiles import submitit
from ringup.launchfiles.files import MOST_BLOCKS, Nearby, blocks
from ringup.launchfiles.model import NotRead

# Some of these are imported only for their rules.
from ringup.lint import (  # noqa: F401
    across_files,
    alone,
    collectives,
    job_and_script,
    job_environment,
    job_lsf,
    job_manifest,
    job_numbers,
    job_rendezvous,
    job_shell,
    job_submission,
    job_training,
    job_variables,
    job_words,
    job_worlds,
    ranks,
    rendezvous,
    settings,
    source,
)
from ringup.lint.job_file import JobFile, job_file
from ringup.lint.rule import ACROSS, SCRIPT, SHELL, judge
from ringup.rules import SEVERITIES, Finding, Fix, complete, described
from ringup.units import first_of_each

LONGEST = 2 << 20
"""Characters of a file."""

Kind = Literal["environment", "local-rank", "spawn", "jax", "alone", "unknown"]


@dataclass(frozen=True)
class HowToStart:
    """How to start a script, according to its text."""

    kind: Kind
    launcher: str
    """The value of `ringup run --with` for it."""
    argument: str = ""
    """The option for its local rank, in its spelling ("--local_rank"); "" for none."""
    line: int = 0
    """The line with the reason; 0 for none."""
    why: str = ""
    is_only_way: bool = False
    """Whether the script cannot train on several ranks with another launcher."""


_UNREADABLE = """
Python cannot read the script.

Why: every rank ends at once with a SyntaxError.

Fix: repair the line; where the nodes have a newer Python than this machine, it may be fine there.
"""
NOT_READABLE = described("script-not-readable", "error", _UNREADABLE)
PASS_LOCAL_RANK = ("launch", "deepspeed")
"""Launchers that give each rank the option."""
_BEGINS_WITH_IMPORT = re.compile(
    r"(?:[ \t]*(?:#[^\n]*)?\n){0,500}(?:(?:[\"]{3}[^\"]{0,9999}[\"]{3}|'{3}[^']{0,9999}'{3})\s{0,99})?"
    r"(?:import \w|from [\w.]{1,200} import )"
)


def is_script(path: str, text: str) -> bool:
    """
    Whether a file is Python, by its name or first line; else it is read as a shell or job file.

    Standard input has no name: there an import comes before any other code.

    >>> is_script("train.py", ""), is_script("job.sh", "#!/bin/bash"), is_script("-", "# a\\nimport torch")
    (True, False, True)
    """
    first = text.split("\n", 1)[0]
    if path == "-" and not first.startswith("#!"):
        return bool(_BEGINS_WITH_IMPORT.match(text))
    return path.endswith(".py") or (first.startswith("#!") and "python" in first)


@dataclass(frozen=True)
class Examined:
    findings: list[Finding]
    """Worst first."""
    jobs: list[JobFile]
    """Shell files, job files and manifests after they were read."""


def lint(files: Mapping[str, str], nearby: Nearby | None = None) -> list[Finding]:
    """
    Findings of files (path -> text), worst first.

    Files given together are also compared: the lines for two nodes, a script and its job file.
    """
    return examine(files, nearby).findings


def examine(files: Mapping[str, str], nearby: Nearby | None = None) -> Examined:
    """Findings of files, and the launches in them."""
    scripts: list[ranks.Reading] = []
    jobs: list[JobFile] = []
    submitted: list[JobFile] = []
    findings: list[Finding] = []
    for path, text in files.items():
        if not is_script(path, text):
            parts = blocks(path, "" if _OTHERS.search(path) else text)
            made = [job_file(path, part, files, nearby) for part in parts[:MOST_BLOCKS]]
            kept = [one for one in made if one.launches] or made[:1]
            if rest := "".join(parts[MOST_BLOCKS:]):
                line = len(rest) - len(rest.lstrip("\n")) + 1
                late = NotRead(path, line, f"behind the first {MOST_BLOCKS} blocks of the page")
                kept[-1].read = replace(kept[-1].read, not_read=(*kept[-1].read.not_read, late))
            for job in kept:
                jobs.append(job)
                findings += _without_consequences([*judge(SHELL, job)], job)
            continue
        try:
            scripts.append(ranks.Reading(source.read(path, text), partial(_module, path, files, nearby)))
            findings += judge(SCRIPT, scripts[-1])
            if started := submitit.as_shell(scripts[-1].script.tree, path):
                submitted.append(job_file(path, started, files, nearby))
        except SyntaxError as error:
            version = ".".join(map(str, sys.version_info[:2]))
            words = f"Python {version} cannot read it: {error.msg}"
            found = Finding(f"{path}:{error.lineno or 1}", words, "a script that Python can read")
            findings.append(complete(found, NOT_READABLE))
    findings += judge(ACROSS, across_files.All(scripts, jobs))
    # A job file in a here-document is read twice: in its place, and as what sbatch runs.
    findings = [*first_of_each(((f.rule, f.where, f.found), f) for f in findings).values()]
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity or "error"), _place(f.where)))
    return Examined(findings, [*jobs, *submitted])


def _module(path: str, files: Mapping[str, str], nearby: Nearby | None, name: str) -> str | None:
    return files[name] if name in files else nearby(path, name) if nearby else None


_OTHERS = re.compile(r"(?:^|/)requirements[\w.-]{0,60}\.(?:txt|in)$|\.(?:jsonc?|toml|ini|cfg)$")
"""Files without commands, which others name."""
_MALFORMED = re.compile("command-cut-short|backslash-before-space|launcher-(?:option-wrong|argument-misread)")
_OF_WORLDS = ("several-worlds", "rendezvous-endpoint-missing", "node-rank-duplicate", "world-size-disagrees")


def _without_consequences(findings: list[Finding], job: JobFile) -> list[Finding]:
    """The findings without those about the worlds of a command that does not end as intended."""
    wrong = [_place(f.where)[1] for f in findings if _MALFORMED.fullmatch(f.rule)]
    spans = [(one.line, one.command.last_line + 2) for one in job.launches]
    cut = {begin for begin, end in spans if any(begin <= line <= end for line in wrong)}
    return [f for f in findings if f.rule not in _OF_WORLDS or _place(f.where)[1] not in cut]


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return path, int(line) if line.isdecimal() else 0


def how_to_start(text: str, path: str = "script", reader: alone.Reader = lambda path: None) -> HowToStart:
    """
    How to start a script; `unknown` (and torchrun) if its text does not show it.

    `reader` gives the texts of modules next to it: path -> text, or None.
    """
    try:
        script = source.read(path, text)
    except SyntaxError:
        return HowToStart("unknown", "torchrun", why="it cannot be read")
    for call in script.named("jax.distributed.initialize"):
        return HowToStart("jax", "jax", "", call.line, "it calls jax.distributed.initialize")
    for call in script.named(*source.STARTS_RANKS):
        return HowToStart("spawn", "spawn", "", call.line, f"it starts its own ranks with {call.name}", True)
    argument = ranks.needs_local_rank_argument(script)
    if argument is not None:
        spelling = next((s for s in ("--local-rank", "--local_rank") if s in argument.spellings), "")
        why = f"it takes its local rank from {spelling}"
        return HowToStart("local-rank", "launch", spelling, argument.line, why, argument.is_required)
    joined = script.named(source.INIT, *source.MESHES)
    joined += [c for c in script.calls if c.name.endswith(("init_process_group", "init_distributed"))]
    if joined or script.imported & ranks.HANDLED or "LOCAL_RANK" in script.strings:
        line = joined[0].line if joined else 0
        return HowToStart("environment", "torchrun", line=line, why="it takes its rank from the environment")
    if line := alone.trains_alone(script, reader):
        return HowToStart(
            "alone", "torchrun", "", line, "it trains in one process: nothing in it joins ranks"
        )
    return HowToStart("unknown", "torchrun", why="no sign of another launcher in it")


def misfit(start: HowToStart, launcher: str, script: str) -> list[Finding]:
    """
    A finding where a script that can only be started in one way is given to another launcher, or to several
    ranks though it trains in one process.
    """
    if start.kind == "alone":
        found = Finding(f"{script}:{start.line}", start.why, "a process group")
        return [complete(found, SHELL["ranks-train-alone"][0])]
    passes = start.kind == "local-rank" and launcher in PASS_LOCAL_RANK
    if not start.is_only_way or passes or launcher == start.launcher:
        return []
    words = f"{start.why}: --with {launcher} cannot start it"
    fix = Fix(f"`--with {start.launcher} -- {script}` in place of `--with {launcher}`")
    found = Finding(f"{script}:{start.line}", words, f"--with {start.launcher}", fix=fix)
    rule = "local-rank-argument-missing" if start.kind == "local-rank" else "ranks-started-twice"
    return [complete(found, ACROSS[rule][0])]


_OF_A_NODE = re.compile(r"--?(?:(?:machine|node|host)[-_]?(?:rank|id)|rank|process[-_](?:id|index))")


def one_rank_for_all(
    start: HowToStart | None, launcher: str, script: str, given: Sequence[str]
) -> list[Finding]:
    """A finding where a script on several nodes gets each node's number, or the nodes, in the wrong way."""
    if launcher not in ("spawn", "python", "jax"):
        return []
    pairs = [(w.partition("=")[0], w.partition("=")[2] or after) for w, after in pairwise((*given, ""))]
    if fixed := next((pair for pair in pairs if _OF_A_NODE.fullmatch(pair[0]) and pair[1].isdecimal()), None):
        found = Finding(script, f"{' '.join(fixed)} on every node", f"{fixed[0]} {{node_rank}}")
        return [complete(found, ACROSS["node-rank-duplicate"][0])]
    if start and "detectron2" in start.why and not any(name == "--num-machines" for name, _ in pairs):
        words = "--num-machines {node_count} --machine-rank {node_rank} --dist-url tcp://{master_addr}:{master_port}"
        found = Finding(f"{script}:{start.line}", "it trains on its node alone without --num-machines", words)
        return [complete(found, SCRIPT["spawn-knows-one-node"][0])]
    return []


def _readable(text: str, path: str) -> ranks.Reading | None:
    try:
        return ranks.Reading(source.read(path, text))
    except SyntaxError:
        return None


def of_scheduler(text: str, script: str, launcher: str) -> list[Finding]:
    """A finding where a script takes its rank from the scheduler, for a run with several ranks a node."""
    read = _readable(text, script)
    if not (name := across_files.scheduler_rank(read.script) if read else ""):
        return []
    words = f"it takes its rank from {name}, which is the node's number here: --with {launcher} sets RANK"
    found = Finding(f"{script}:1", words, "RANK and LOCAL_RANK", severity="warning")
    return [complete(found, ACROSS["rank-from-the-scheduler"][0])]


def workers(text: str, path: str = "script") -> tuple[str, int]:
    """(file:line, workers of one rank) of the DataLoader with the most; 0 if no number is written."""
    read = _readable(text, path)
    line, count = ranks.most_workers(read) if read else (0, 0)
    return f"{path}:{line}", count


def written_world(text: str, path: str = "script") -> tuple[str, int, int]:
    """(file:line, rank, world size) as numbers that `init_process_group` is always given; -1 for others."""
    read = _readable(text, path)
    line, rank, size = ranks.written_world(read) if read else (0, -1, -1)
    return f"{path}:{line}", rank, size


def wrong_world(written: tuple[str, int, int], world_size: int) -> list[Finding]:
    """A finding if the numbers in a script do not match a run of this many ranks, more than one."""
    where, rank, size = written
    if world_size < 2 or (rank < 0 and size in (-1, world_size)):
        return []
    code, every = f"world_size={size} is written in the code", f"every rank calls itself rank {rank}"
    number = code if rank < 0 else every
    found = Finding(where, f"{number}; this run has {world_size} ranks", "what the launcher sets")
    return [complete(found, SCRIPT["world-size-in-code"][0])]


def too_many_workers(written: tuple[str, int], node: str, rank_count: int, cpus: float) -> list[Finding]:
    """A finding where a node's ranks start more workers than it has CPUs; `cpus` 0: unknown."""
    where, count = written
    if not 0 < cpus < count * rank_count:
        return []
    words = f"{rank_count} ranks with {count} workers each on {cpus:g} processors"
    found = Finding(f"{node} ({where})", words, "no more workers than CPUs", node)
    return [complete(found, SCRIPT["dataloader-workers-exceed-cpus"][0])]
