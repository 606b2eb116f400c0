"""
The words of one command, parsed as its programs would parse them: starters, wrappers, launcher, script.

    found = take_apart(["srun", "-N2", "torchrun", "--nproc_per_node=8", "train.py"])
    found.launcher, found.script, [step.program for step in found.steps]
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ringup.launchfiles.marks import is_mark
from ringup.launchfiles.programs import (
    DOCKER_ITSELF,
    LAUNCHERS,
    MODULES,
    MPI,
    OPTIONS,
    PROGRAMS,
    TWO_VALUES,
    Program,
    Role,
    full_name,
)

Kind = Literal["script", "module", "command"]
ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
PYTHON = re.compile(r"(?:python|pypy)(?:\d(?:\.\d+)?)?t?|python\.sh")
"""python.sh is Isaac Sim's."""
SCRIPTS = (".py", ".sh", ".bash", ".slurm", ".sbatch")
MOST_STEPS, MOST_WORDS = 24, 200
_OPTION = re.compile(r"-[^\d\s.]\S*\Z")
"""A word that argparse never takes for the value of an option."""
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.[\w-]+)+)=(.*)")
"""Of Hydra, Lightning and verl: `trainer.devices=4`."""
STARTING = re.compile(r"launch|mpi")
"""In the name of an unknown program that may start its command on every node."""
SPEAKING = re.compile(r"echo|printf|which|pip|pkill|grep|ps|alias|:|export|cat|test|\[|cd")
"""Programs that only mention a launcher."""

RUN_OTHERS = {
    "debugpy-run": ("-p", "--port", "--log-to", "-P", "--python"),
    "debugpy": ("--listen", "--connect", "--log-to", "--adapter-access-token", "--parent-session-pid"),
    "pdb": ("-c", "--command"),
    "cProfile": ("-o", "-s"),
}
"""Tools, most of them Python's modules, that run another module or script -> their options with a value."""
_NO_RANKS = ("ssh", "docker", "time", "exec", "command", "eval")
"""Words that may also be something else in the place of a script."""


@dataclass(frozen=True)
class Option:
    name: str
    """Dashes for underscores; the full name for a launcher's option."""
    value: str
    """"" for a flag."""
    written: str
    """As it was given, with its value."""
    at: int
    """Index of the command's word."""
    is_flag: bool = False
    is_known: bool = True
    has_value: bool = True
    """False if the line ends after an option that takes a value."""


@dataclass(frozen=True)
class Step:
    """A program in front of the launcher."""

    program: str
    role: Role
    options: tuple[Option, ...] = ()
    positionals: tuple[str, ...] = ()
    at: int = 0
    """Index of the command's word."""
    subcommand: str = ""

    def option(self, *names: str) -> str | None:
        """The last value of one of these options; None for none."""
        return next((o.value for o in reversed(self.options) if o.name in names), None)

    def has(self, *names: str) -> bool:
        return self.option(*names) is not None


@dataclass
class CommandLine:
    """The program that a command starts."""

    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    launcher: str = ""
    """torchrun, launch, accelerate, ..., python for an interpreter, "" for none."""
    program: str = ""
    """The launcher's word as written."""
    options: list[Option] = field(default_factory=list)
    kind: Kind = "script"
    script: str = ""
    arguments: tuple[str, ...] = ()
    script_at: int = -1
    at: int = 0
    """Index of the launcher's word, or of the word in its place."""
    python: str = ""
    """The interpreter as written, "" for none."""
    python_options: list[str] = field(default_factory=list)
    text: str | None = None
    """Shell text that a step runs: of `bash -c`, eval, ssh."""
    rest: tuple[str, ...] = ()
    """Words without a launcher, if there is none."""
    opaque: list[str] = field(default_factory=list)
    """Unknown words in the launcher's options: they may contain any option."""

    def option(self, *names: str) -> str | None:
        """The last value of one of the launcher's options, such as `nnodes`; None for none."""
        return next((o.value for o in reversed(self.options) if o.name[2:] in names), None)


def take_apart(words: Sequence[str]) -> CommandLine:
    """
    The started programs; unknown programs are wrappers if a known launcher follows.

    >>> take_apart(["A=1", "srun", "-n", "2", "python", "-u", "-m", "pkg.train", "--lr", "1"]).script
    'pkg.train'
    """
    made, at = CommandLine(), 0
    for _ in range(MOST_STEPS):
        while at < len(words) and ASSIGNED.match(words[at]):
            name, _, value = words[at].partition("=")
            made.env[name] = value
            at += 1
        program = posixpath.basename(words[at]) if at < len(words) else ""
        follows = "".join(words[at + 1 : at + 2])
        if program not in PROGRAMS or (program in LAUNCHERS and follows in LAUNCHERS[program][1].split()):
            break
        after = _step(made, words, at, program)
        if after < 0 or made.text is not None:
            return made
        at = after
    _launcher(made, words, at)
    return made


def starts_ranks(word: str) -> bool:
    """Whether a word begins a start line of a launcher, not a plain script."""
    program = posixpath.basename(word)
    own = program in LAUNCHERS or (program in PROGRAMS and program not in _NO_RANKS)
    return own or program in RUN_OTHERS or bool(PYTHON.fullmatch(program))


def options_of(words: Sequence[str], at: int, program: Program) -> tuple[list[Option], int]:
    """Leading options of a starter or wrapper, and the index of the word after them."""
    found: list[Option] = []
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word, begun = words[at], at
        at += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        is_long = word.startswith("--")
        if program.flags is not None and all(f"-{letter}" in program.flags for letter in word[1:]):
            pass  # -lu
        elif name in TWO_VALUES:
            count = 1 if name.endswith("env") and "=" in "".join(words[at : at + 1]) else 2
            value = " ".join(words[at : at + count])
            at += count
        elif not equals and not is_long and len(word) > 2 and _is_glued(word, program):
            name, value = word[:2], word[2:]
        elif not equals and at < len(words) and program.takes_value(name):
            if program.flags is not None and _begins(words, at):  # its table of flags may lack one
                found.append(Option(name, "", word, begun))
                break
            value = words[at]
            at += 1
        found.append(Option(name, value, " ".join(words[begun:at]), begun))
    return found, at


def _is_glued(word: str, program: Program) -> bool:
    """Whether a short option carries its value: -n8, -N2, jsrun's -a6."""
    if program.flags is not None and word[2:].isdecimal():
        return word[:2] not in program.flags - {"-K"}
    if program is MPI:
        return False
    if program.flags is not None:
        return word[1] in "nNcpAJoetwxGDKW" and word[:2] not in program.flags - {"-K"} and word[2:3] != "p"
    return word[:2] in program.takes and word not in program.takes


def _begins(words: Sequence[str], at: int) -> bool:
    """Whether a command begins at this word, so that it is not an option's value."""
    word = posixpath.basename(words[at])
    is_starter = word in PROGRAMS and word not in ("time", "env", "ray")
    return word in LAUNCHERS or is_starter or bool(PYTHON.fullmatch(word))


def _step(made: CommandLine, words: Sequence[str], at: int, program: str) -> int:
    """Add one starter, wrapper or shell; returns the index of the command after it, -1 without one."""
    known = PROGRAMS[program]
    if known.role == "shell":
        return _shell(made, words, at, program)
    if program == "gcloud":
        return _by_gcloud(made, words, at)
    program, at = _past_daemon(made, words, at, program)
    known, begun, subcommand = PROGRAMS[program], at, ""
    at += 1
    before, at = options_of(words, at, known)
    if known.subcommands:
        while at < len(words) and words[at] not in known.subcommands and not words[at].startswith("-"):
            if program not in ("ray",):
                made.rest = tuple(words[begun:])
                return -1
            at += 1
        if at == len(words):  # `ray stop`
            made.rest = tuple(words[begun:])
            return -1
        subcommand = words[at]
        at += 1
        if program == "ray" and words[at : at + 1] == ["submit"]:
            at += 1
    options, at = options_of(words, at, known)
    own = 0 if program == "blaunch" and any(o.name == "-z" for o in before) else known.positionals
    given = words[at : at + own]
    at += own
    if program == "kubectl" and words[at : at + 1] == ["--"]:
        at += 1
    if program == "uv" and (before + options) and any(o.name in ("-m", "--module") for o in options):
        # `uv run -m pkg` is `python -m pkg`.
        at = next(o.at for o in options if o.name in ("-m", "--module"))
        options = [o for o in options if o.at < at]
        made.steps.append(Step(program, known.role, tuple(before + options), (), begun))
        made.python = "python"
        return at
    if program == "command" and any(o.name in ("-v", "-V") for o in before):  # it only looks for it
        made.rest = tuple(words[begun:])
        return -1
    if program == "env":
        options = before
    late, at = options_of(words, at, known) if program == "ssh" else ([], at)
    every = tuple(before + options + late)
    made.steps.append(Step(program, known.role, every, tuple(given), begun, subcommand))
    entry = made.steps[-1].option("--entrypoint") if known.subcommands else None
    if posixpath.basename(entry or "") in ("bash", "sh") and re.match(r"-\w*c", "".join(words[at : at + 1])):
        made.text = "".join(words[at + 1 : at + 2])
        return -1
    if known.is_text:
        made.text = " ".join(words[at:])
        return -1
    return at


_IS_HERE = re.compile(
    r"default|desktop-linux|rootless|orbstack|colima|unix:.*|.*(?:localhost|127\.0\.0\.1).*"
)
"""Contexts and addresses of a docker daemon on this machine."""


def _past_daemon(made: CommandLine, words: Sequence[str], at: int, program: str) -> tuple[str, int]:
    """
    The program and its last word before the subcommand's: `docker -H HOST`, `docker compose`.

    A daemon on another machine is a starter there.
    """
    if program not in ("docker", "podman"):
        return program, at
    options, after = options_of(words, at + 1, DOCKER_ITSELF)
    hosts = [o for o in options if o.name not in ("--config", "-l", "--log-level") and o.value]
    if hosts and not _IS_HERE.fullmatch(hosts[-1].value):
        made.steps.append(Step(program, "starter", (), (hosts[-1].value,), at))
    is_compose = words[after : after + 1] == ["compose"]
    return ("docker-compose", after) if is_compose else (program, after - 1)


def _by_gcloud(made: CommandLine, words: Sequence[str], at: int) -> int:
    """`gcloud compute ssh NAME --command=TEXT`, and of TPUs: `gcloud compute tpus tpu-vm ssh`."""
    given = [word for word in words[at + 1 :] if not word.startswith("-")]
    if "ssh" in given[:5] and "compute" in given[:2]:
        options = arguments(words[at:])
        found = tuple(Option(f"--{name}", value, name, at) for name, value in options.items())
        made.steps.append(Step("gcloud", "starter", found, tuple(given[given.index("ssh") + 1 :][:1]), at))
        made.text = options.get("command")
    else:
        made.rest = tuple(words[at:])
    return -1


def _shell(made: CommandLine, words: Sequence[str], at: int, program: str) -> int:
    """`bash -c TEXT`, `bash FILE`, eval."""
    if program == "eval":
        made.steps.append(Step(program, "shell", at=at))
        made.text = " ".join(words[at + 1 :])
        return -1
    begun = at
    at += 1
    while at < len(words) and words[at][:1] in "-+" and words[at] not in ("-", "--"):
        word = words[at]
        at += 1
        if word.startswith("-") and not word.startswith("--") and "c" in word[1:]:
            made.steps.append(Step(program, "shell", at=begun))
            while at < len(words) - 1 and words[at].startswith("-"):  # bash -c -l TEXT
                at += 1
            made.text = words[at] if at < len(words) else ""
            return -1
        at += word in ("-o", "+o", "-O", "--rcfile", "--init-file")
    made.rest = tuple(words[at:] or words[begun:])
    made.steps.append(Step(program, "shell", at=begun))
    if at < len(words):
        made.script, made.arguments, made.script_at = words[at], tuple(words[at + 1 :]), at
        _unknown(made, words, at)  # a script that runs the following words
    return -1


def _launcher(made: CommandLine, words: Sequence[str], at: int) -> None:
    """The launcher after the steps, with its options and the script."""
    made.at = at
    if at >= len(words):
        return
    made.program = words[at]
    program = posixpath.basename(words[at])
    if made.python and words[at] == "-m":
        _interpreted(made, words, at)
        return
    if program in LAUNCHERS:
        launcher, subcommand = LAUNCHERS[program]
        if subcommand and "".join(words[at + 1 : at + 2]) not in subcommand.split():
            made.rest = tuple(words[at:])
            return
        made.launcher = launcher
        _options(made, words, at + (2 if subcommand else 1))
    elif PYTHON.fullmatch(program):
        made.python = words[at]
        _interpreted(made, words, at + 1)
    elif program in RUN_OTHERS:
        made.python, end, module = "python3", at + 1, 0
        while "".join(words[end : end + 1]).startswith("-") and words[end] != "--":
            module = end if words[end] == "-m" else module
            end += 1 + (words[end] in ("-m", *RUN_OTHERS[program]))
        end += words[end : end + 1] == ["--"]
        _interpreted(made, words, module or end, module and end)
    elif program.endswith(".py") and any(s.program == "uv" or s.role == "starter" for s in made.steps):
        made.launcher, made.script, made.script_at = "python", words[at], at
        made.arguments = tuple(words[at + 1 :])
    else:
        _unknown(made, words, at)


def _unknown(made: CommandLine, words: Sequence[str], at: int) -> None:
    """An unknown program: a wrapper, if a launcher follows."""
    for further in range(at + 1, min(len(words), at + MOST_WORDS)):
        program = posixpath.basename(words[further])
        follows = words[further + 1 :]
        folder = posixpath.basename(posixpath.dirname(words[further]))
        before = words[further - 1] if further > at + 1 else ""
        is_value = before.startswith("--") and "=" not in before and program in ("deepspeed", "ds")
        is_launcher = (
            program in LAUNCHERS
            and follows
            and not is_value
            and folder in ("", "bin", "Scripts")
            and (not LAUNCHERS[program][1] or "".join(follows[:1]) in LAUNCHERS[program][1].split())
        )
        if is_launcher and program not in ("tune", "ds", "fabric", "composer", "lightning", "trl"):
            break
        if PYTHON.fullmatch(program) and (
            follows[:1] == ["-m"] or any(w.endswith(".py") for w in follows[:4])
        ):
            break
        if PROGRAMS.get(program, PROGRAMS["env"]).role == "shell" and re.match(
            r"-\w*c", "".join(follows[:1])
        ):
            break
    else:
        made.rest = tuple(words[at:])
        return
    if SPEAKING.fullmatch(posixpath.basename(words[at])):
        made.rest = tuple(words[at:])
        return
    starts = STARTING.search(posixpath.basename(words[at])) and PYTHON.fullmatch(
        posixpath.basename(words[further])
    )
    role: Role = "starter" if starts else "wrapper"
    made.steps.append(Step(words[at], role, (), tuple(words[at + 1 : further]), at))
    if posixpath.basename(words[further]) in PROGRAMS:
        _step(made, words, further, posixpath.basename(words[further]))
    else:
        _launcher(made, words, further)
    if posixpath.basename(words[at]) == "oumi":  # it gives the launcher its numbers
        made.opaque.append(words[at])


def _interpreted(made: CommandLine, words: Sequence[str], at: int, after: int = 0) -> None:
    """`python [-u -X ...] SCRIPT | -m MODULE`; `after` is the module's first word if more is between."""
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        option = words[at]
        if option == "-c":
            made.rest = tuple(words)
            return
        at += 1
        if option in ("-X", "-W") and at < len(words):
            option += words[at]
            at += 1
        made.python_options.append(option)
    if words[at : at + 1] == ["-m"]:
        module = words[at + 1] if at + 1 < len(words) else ""
        if module in RUN_OTHERS:
            at += 2
            while words[at : at + 1] != ["-m"] and "".join(words[at : at + 1]).startswith("-"):
                at += 2 if words[at] in RUN_OTHERS[module] else 1
            _interpreted(made, words, at)
            return
        if module in MODULES:
            made.launcher = MODULES[module]
            at += 2 + (module.endswith(("accelerate_cli", "colossalai.cli")) and at + 2 < len(words))
            _options(made, words, after or at)
            return
        made.kind, at = "module", at + 1
    elif posixpath.basename("".join(words[at : at + 1])) in LAUNCHERS and not made.python_options:
        _launcher(made, words, at)  # python $(which torchrun) ...
        return
    made.launcher = "python"
    _script(made, words, at)
    made.arguments = tuple(words[after:]) if after else made.arguments
    if made.script_at >= 0 and "--" in made.arguments:
        _submitted(made, words, words.index("--", made.script_at) + 1)


def _submitted(made: CommandLine, words: Sequence[str], at: int) -> None:
    """`python submit.py --gpus 8 -- torchrun t.py`: the script starts the command behind `--`, anywhere."""
    launcher, subcommand = LAUNCHERS.get(posixpath.basename("".join(words[at : at + 1])), ("", ""))
    if launcher and (not subcommand or "".join(words[at + 1 : at + 2]) in subcommand.split()):
        name = posixpath.basename(made.script)
        made.steps.append(Step(name, "starter", (), (), made.script_at))
        made.kind, made.script, made.arguments, made.script_at, made.python = "script", "", (), -1, ""
        _launcher(made, words, at)
        made.opaque.append(name)  # it may add options


def _options(made: CommandLine, words: Sequence[str], at: int) -> None:
    """The launcher's options, parsed like the launcher does, then the script."""
    if made.launcher not in OPTIONS:
        made.opaque += [w for w in words[at:] if is_mark(w)]
        if made.launcher == "trl":
            made.kind, made.script, made.script_at = "command", "".join(words[at : at + 1]), at
            made.arguments = tuple(words[at + 1 :])
            return
        if made.launcher == "swift":
            made.arguments = tuple(words[at:])  # each takes several values, and the script is swift's own
            return
        if made.launcher == "vllm" and "".join(words[at : at + 1]).startswith("-"):
            made.arguments = tuple(words[at:])  # the model is one of its options
            return
        if made.launcher == "determined":  # its options, `--`, and the command of each rank
            at = words.index("--", at) + 1 if "--" in words[at:] else at
            made.kind = "command"
        while at < len(words) and words[at].startswith("-") and words[at] != "-m":
            follows = "".join(words[at + 1 : at + 2])
            is_value = "=" not in words[at] and not follows.startswith("-") and not follows.endswith(SCRIPTS)
            at += 2 if is_value else 1
        if words[at : at + 1] == ["-m"]:
            made.kind, at = "module", at + 1
        _script(made, words, at)
        return
    table = OPTIONS[made.launcher]
    while at < len(words):
        word, begun = words[at], at
        if is_mark(word):
            made.opaque.append(word)
            at += 1
            continue
        if not word.startswith("-") or word == "-":
            break
        at += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        full = full_name(made.launcher, name)
        is_flag = table.get(full, "passed" if full else "").endswith("=")
        has_value = True
        if not equals and (full and not is_flag):
            has_value = at < len(words) and not (made.launcher != "colossalai" and _OPTION.match(words[at]))
            value = words[at] if has_value else ""
            at += has_value
        elif not equals and not full and at + 1 < len(words) and not words[at].startswith("-"):
            # An unknown option's value, unless that is the script.
            is_value = not words[at].endswith(SCRIPTS)
            value, at = (words[at], at + 1) if is_value else ("", at)
        written = " ".join(words[begun:at])
        made.options.append(
            Option(full or name.replace("_", "-"), value, written, begun, is_flag, bool(full), has_value)
        )
        if full in ("--module", "--no-python"):
            made.kind = "module" if full == "--module" else "command"
    word = words[at] if at < len(words) else ""
    if made.opaque and made.kind == "script" and (_OVERRIDE.fullmatch(word) or word.isdecimal()):
        at = words.index(made.opaque[-1])  # `torchrun ... $SCRIPT trainer.devices=8`
        made.options = [option for option in made.options if option.at < at]
    _script(made, words, at)


def _script(made: CommandLine, words: Sequence[str], at: int) -> None:
    if at < len(words):
        made.script, made.script_at = words[at], at
        made.arguments = tuple(words[at + 1 :])


def arguments(words: Sequence[str]) -> Mapping[str, str]:
    """
    Options among a script's arguments, and Hydra's `a.b=c`, dashes for underscores; "" for a flag.

    >>> arguments(["cfg.yaml", "--tensor_model_parallel-size", "8", "--fp16", "--lr=1", "+t.num_nodes=2"])
    {'tensor-model-parallel-size': '8', 'fp16': '', 'lr': '1', 't.num-nodes': '2'}
    """
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if match := _OVERRIDE.fullmatch(word):
            found[match[1].replace("_", "-")] = match[2]
        if not word.startswith("-") or word in ("-", "--"):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        follows = words[at + 1] if at + 1 < len(words) else "-"
        if not equals and (not follows.startswith("-") or follows[1:].isdecimal()):
            value = follows
        found[name.replace("_", "-")] = value
    return found
