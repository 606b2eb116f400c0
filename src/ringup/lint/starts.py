"""The launch lines of a shell or job file: which launcher, with which options, for which script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringup.lint.shell import Command, Job

LAUNCHERS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "llamafactory-cli": "llamafactory",
}
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
FLAGS = frozenset(
    [
        "standalone",
        "no_python",
        "module",
        "m",
        "use_env",
        "run_path",
        "multi_gpu",
        "multi_cpu",
        "cpu",
        "same_network",
        "no_ssh",
        "no_local_rank",
        "force_multi",
        "use_deepspeed",
        "use_fsdp",
        "save_pid",
        "virtual_local_rank",
        "debug",
        "tpu",
    ]
)
"""Options without a value, of torchrun, accelerate and deepspeed."""
_PYTHON = re.compile(r"^(?:.*/)?python[\d.]*$")
_SRUN_TAKES = frozenset(["n", "N", "c", "p", "A", "J", "o", "e", "t", "w", "x", "G", "D"])


@dataclass(frozen=True)
class Launch:
    """One launch line."""

    command: Command
    launcher: str
    """torchrun, launch, accelerate, deepspeed, colossalai, llamafactory, or python for a bare script."""
    options: dict[str, str]
    """Names with underscores, values with the file's variables replaced; "" for a flag."""
    script: str
    arguments: tuple[str, ...]
    srun: dict[str, str] | None
    """Options of the `srun` in front of it; None where there is none."""

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.command.line

    def option(self, *names: str) -> str:
        """The first of these options that is given; "" for none."""
        return next((self.options[n] for n in names if n in self.options), "")

    def variable(self, name: str) -> str:
        """What an environment variable is at this line, as far as the file says."""
        return {**self.command.variables, **self.command.prefix}.get(name, "")


def options_of(words: Sequence[str], flags: frozenset[str]) -> tuple[dict[str, str], list[str]]:
    """
    Leading options, and the rest.

    >>> options_of(["--nnodes", "2", "--standalone", "--a-b=1", "train.py", "-c", "x"], FLAGS)
    ({'nnodes': '2', 'standalone': '', 'a_b': '1'}, ['train.py', '-c', 'x'])
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in flags and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        found[name] = value
    return found, rest[1:] if rest[:1] == ["--"] else rest


def launches(job: Job) -> list[Launch]:
    """Every launch line of a file."""
    return [launch for command in job.commands for launch in _launch(command)]


def _launch(command: Command) -> Iterator[Launch]:
    words = [command.resolve(text) for text in command.texts]
    srun: dict[str, str] | None = None
    outer = command.around
    if outer is not None and outer.texts[:1] == ["srun"]:
        srun = _srun(outer.texts[1:])[0]
    while words:
        program = words[0].rpartition("/")[2]
        if program == "srun":
            srun, words = _srun(words[1:])
        elif program in ("exec", "nohup", "time", "setsid", "then", "do"):
            words = words[1:]
        elif program == "env":
            words = words[1:]
            while words and (words[0].startswith("-") or re.match(r"\w+=", words[0])):
                words = words[1:]
        else:
            break
    if not words or words[0] in ("bash", "sh"):
        return
    launcher, rest = _program(words)
    if not launcher:
        return
    options, rest = options_of(rest, FLAGS) if launcher != "python" else ({}, rest)
    script = rest[0] if rest else ""
    if launcher == "python" and not script.endswith(".py"):
        return
    yield Launch(command, launcher, options, script, tuple(rest[1:]), srun)


def _srun(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """srun's options (a short one may carry its value: -n8), and the command."""
    found: dict[str, str] = {}
    rest = list(words)
    flags = frozenset(
        ("label", "l", "exclusive", "overlap", "K", "u", "unbuffered", "v", "exact", "kill_on_bad_exit")
    )
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") and len(word) > 2 and word[1] in _SRUN_TAKES:
            name, value = word[1], word[2:]
        elif not equals and name not in flags and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        found[name] = value
    return found, rest[1:] if rest[:1] == ["--"] else rest


def _program(words: list[str]) -> tuple[str, list[str]]:
    """(launcher, what follows) of a command; ("", []) for anything else."""
    program = words[0].rpartition("/")[2]
    if program in LAUNCHERS:
        return LAUNCHERS[program], words[1:]
    if program == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate", words[2:]
    if program == "colossalai" and words[1:2] == ["run"]:
        return "colossalai", words[2:]
    if _PYTHON.match(words[0]):
        rest = words[1:]
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
        if rest[:1] == ["-m"]:
            return (MODULES.get(rest[1], ""), rest[2:]) if len(rest) > 1 else ("", [])
        return "python", rest
    return "", []
