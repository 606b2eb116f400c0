"""A shell file, job file or manifest with its launch lines, as input of the rules."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ringup.launchfiles.files import Files, LaunchFile, Nearby, read
from ringup.launchfiles.model import Launch
from ringup.launchfiles.shell import Command, Job
from ringup.launchfiles.start import Step
from ringup.lint.rule import File
from ringup.units import lines_of

QUERIES = ("hostname", "nvidia-smi", "echo", "cat", "mkdir", "rm", "date", "ls", "ip", "cp", "which", "ps")
"""Commands that people run on other nodes in addition to a job."""
OTHERS = {"ray", "ringup", "dask", "flux", "horovodrun"}
PLACEHOLDER = re.compile(
    r"<[^<>]{1,60}>?|\[[^\[\]]{1,60}\]?|\{ ?\w{1,60} ?\}|(?i:x{1,9}|your\W?\w{1,60})|\.{2,3}"
)
"""A value that is to be filled in."""


@dataclass
class JobFile(File):
    text: str
    read: LaunchFile
    others: Files = field(default_factory=dict)
    """Path -> text of the files given together with it."""
    nearby: Nearby | None = None
    """Texts of further files that it names."""
    is_dos: bool = False
    """Whether its lines end in CR LF; not in `text`."""

    @property
    def job(self) -> Job:
        return self.read.job

    @property
    def launches(self) -> Sequence[Launch]:
        return self.read.launches

    @property
    def is_page(self) -> bool:
        """Whether people read it and fill in its placeholders."""
        return self.path.endswith((".md", ".mdx", ".rst"))

    @cached_property
    def lines(self) -> list[str]:
        return lines_of(self.text)

    @cached_property
    def commands(self) -> list[Command]:
        """The commands in the file itself, without duplicates."""
        seen: dict[tuple[int, int], Command] = {}
        for command in self.job.commands:
            if not command.is_nested:
                seen.setdefault((command.line, len(command.words)), command)
        return list(seen.values())

    @cached_property
    def uses(self) -> str:
        """The text without the lines that only show something."""
        return "\n".join(line for line in self.lines if not line.lstrip().startswith("echo "))

    @cached_property
    def away(self) -> set[str]:
        """Programs by which the file starts more than a query on other nodes; "starter" for all starters."""
        found: set[str] = set()
        for command in self.job.commands:
            start = command.start
            program = posixpath.basename((start.rest or (start.script or start.program,))[0])
            if program not in QUERIES and any(step.role == "starter" for step in command.steps):
                found.add("starter")
            found |= OTHERS.intersection(map(posixpath.basename, command.texts[:2]))
        return found

    def steps(self, *programs: str) -> Iterator[tuple[Command, Step]]:
        """Each command with each of these programs in front of it."""
        for command in self.job.commands:
            yield from ((command, step) for step in command.steps if step.program in programs)


def job_file(path: str, text: str, others: Files, nearby: Nearby | None = None) -> JobFile:
    is_dos, text = "\r\n" in text, text.replace("\r\n", "\n")
    return JobFile(path, text, read(path, text, others, nearby), others, nearby, is_dos)
