"""
What in a training script or job file breaks or hangs when it runs on several nodes.

Files are read, never run or imported.  What cannot be told from the text is not said.

    findings = lint({"train.py": text, "job.sh": text})
    how_to_start(text).launcher

    source, values   a Python script and what its expressions may be
    ranks, meeting, collectives   rules on a script
    shell, starts    a shell or job file and its launch lines
    job_rules, across   rules on those, and between files
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Some of these are imported for their rules alone.
from ringup.lint import across, collectives, job_rules, meeting, ranks, shell, source  # noqa: F401
from ringup.lint.rule import ACROSS, SCRIPT, SHELL, judge
from ringup.rules import SEVERITIES, Finding, complete, problem_from_docstring, register

LONGEST_BYTES = 2 << 20

Kind = Literal["environment", "local-rank", "spawn", "jax", "unknown"]


@dataclass(frozen=True)
class HowToStart:
    """How the text of a script says that it wants to be started."""

    kind: Kind
    launcher: str
    """What `ringup run --with` should be for it."""
    argument: str = ""
    """The option by which it wants its local rank, as it spells it ("--local_rank"); "" for none."""
    line: int = 0
    """The line that says so; 0 for none."""
    why: str = ""


NOT_READABLE = register(
    problem_from_docstring(
        "script-not-readable",
        "error",
        """
        Python cannot read the script.

        Why: every rank ends at once with a SyntaxError.

        Fix: repair the line; where the nodes have a newer Python than this machine, it may be fine there.
        """,
    )
)


def is_script(path: str, text: str) -> bool:
    """
    Whether a file is Python, by its name or first line; else it is read as a shell or job file.

    >>> is_script("train.py", ""), is_script("job.sh", "#!/bin/bash")
    (True, False)
    """
    first = text.split("\n", 1)[0]
    return path.endswith(".py") or (first.startswith("#!") and "python" in first)


def lint(files: Mapping[str, str]) -> list[Finding]:
    """
    Findings of files (path -> text), worst first.

    Files given together are also compared: the lines for two nodes, a script and its job file.
    """
    scripts: list[ranks.Reading] = []
    jobs: list[shell.Job] = []
    findings: list[Finding] = []
    for path, text in files.items():
        if not is_script(path, text):
            jobs.append(shell.read(path, text))
            continue
        try:
            scripts.append(ranks.Reading(source.read(path, text)))
        except SyntaxError as error:
            findings.append(_unreadable(path, error))
    for script in scripts:
        findings += judge(SCRIPT, script)
    for job in jobs:
        findings += judge(SHELL, job)
    findings += judge(ACROSS, across.All(scripts, jobs))
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity or "error"), _place(f.where)))
    return findings


def _place(where: str) -> tuple[str, int]:
    path, _, line = where.rpartition(":")
    return path, int(line) if line.isdecimal() else 0


def _unreadable(path: str, error: SyntaxError) -> Finding:
    version = ".".join(map(str, sys.version_info[:2]))
    found = Finding(
        where=f"{path}:{error.lineno or 1}",
        found=f"Python {version} cannot read it: {error.msg}",
        wanted="a script that Python can read",
    )
    return complete(found, NOT_READABLE)


def how_to_start(text: str, path: str = "script") -> HowToStart:
    """How a script wants to be started; `unknown` (and torchrun) where its text does not tell."""
    try:
        script = source.read(path, text)
    except SyntaxError:
        return HowToStart("unknown", "torchrun", why="it cannot be read")
    for call in script.named("jax.distributed.initialize"):
        return HowToStart("jax", "jax", line=call.line, why="it calls jax.distributed.initialize")
    for call in ranks.spawns(script):
        return HowToStart("spawn", "spawn", line=call.line, why=f"it starts its own ranks with {call.name}")
    argument = ranks.needs_local_rank_argument(script)
    if argument is not None:
        spelling = next((s for s in ("--local-rank", "--local_rank") if s in argument.spellings), "")
        why = f"it takes its local rank from {spelling}"
        return HowToStart("local-rank", "launch", spelling, argument.line, why)
    joined = [c for c in script.calls if c.name.endswith(("init_process_group", "init_distributed"))]
    if joined or script.imported & ranks.HANDLED or "LOCAL_RANK" in script.strings:
        line = joined[0].line if joined else 0
        return HowToStart("environment", "torchrun", line=line, why="it takes its rank from the environment")
    return HowToStart("unknown", "torchrun", why="nothing in it says how it wants to be started")


def workers(text: str, path: str = "script") -> tuple[str, int] | None:
    """(file:line, workers of one rank) of the DataLoader with the most, where the number is written."""
    try:
        read = ranks.Reading(source.read(path, text))
    except SyntaxError:
        return None
    found = max(ranks.workers_in_code(read), key=lambda one: one[1], default=(0, 0))
    return (read.where(found[0]), found[1]) if found[1] else None


def too_many_workers(written: tuple[str, int], node: str, rank_count: int, cpus: float) -> list[Finding]:
    """A finding where a node's ranks start more workers than it has processors; `cpus` 0: unknown."""
    where, count = written
    if not 0 < cpus < count * rank_count:
        return []
    found = Finding(
        where=f"{node} ({where})",
        node=node,
        found=f"{rank_count} ranks with {count} workers each on {cpus:g} processors",
        wanted="no more workers than processors",
    )
    return [complete(found, SCRIPT["dataloader-workers-exceed-cpus"][0])]
