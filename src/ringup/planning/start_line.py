"""
Parses a pasted start line: `torchrun --nproc_per_node 8 train.py`, `python -m pkg.train`.

An option that ringup also has becomes ringup's.  For options that ringup decides itself (node rank, master
address, rendezvous), the user gets the reason.  Options of only the launcher are passed on to it; any other
option is an error.  No word of a line is dropped silently.

`launchfiles.start` parses the words.  Further sources: axolotl 0.13 `cli/main.py`, trl 0.24 `cli.py`.
"""

from __future__ import annotations

import difflib
import itertools
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from ringup.errors import UsageError
from ringup.launchfiles import start
from ringup.launchfiles.programs import DASHES, FLAG, LAUNCHERS, MPI_OPTIONS, OPTIONS, PASSED, meaning_of
from ringup.launchfiles.start import PYTHON, Kind
from ringup.model import CONTAINERS, RANK_VARIABLES

if TYPE_CHECKING:
    from ringup.launchfiles import shell


@dataclass(frozen=True)
class StartLine:
    """The parsed line; 0 and "" for missing values."""

    script: str = ""
    """A path, or the name of a module or command, as `kind` says."""
    arguments: tuple[str, ...] = ()
    kind: Kind = "script"
    launcher: str = ""
    launcher_arguments: tuple[str, ...] = ()
    python: str = ""
    """The interpreter, if it is given with a path."""
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 0
    nproc: int = 0
    world_size: int = 0
    """All ranks, for launchers that count these (accelerate, srun)."""
    port: int = 0
    restarts: int = 0
    hosts: str = ""
    hostfile: str = ""
    rendezvous: str = ""
    config: str = ""
    """The file of accelerate's --config_file, which may have further settings."""
    is_single: bool = False
    """Whether the launcher would start only one process."""
    taken: tuple[str, ...] = ()
    """The options that became ringup's, as written."""
    replaced: tuple[tuple[str, str], ...] = ()
    """(as written, why): options that ringup decides itself."""
    setup: str = ""
    """A shell command that runs first: the environment of `conda run`."""
    chdir: str = ""
    forwarded: tuple[str, ...] = ()
    scheduled: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """As written -> (option of ringup, value): a job file's requests to the scheduler."""
    wrapper: tuple[str, ...] = ()
    """Words in front of the start line on each node."""
    image: str = ""
    container: tuple[str, ...] = ()
    """Options of `docker run`, or of srun with an image, which a job file keeps."""

    def replacing(self, written: str, why: str) -> StartLine:
        return replace(self, replaced=(*self.replaced, (written, why)))

    def taking(self, written: str, **more: Any) -> StartLine:
        return replace(self, taken=(*self.taken, written), **more)


# -- what becomes of an option ---------------------------------------------------------------------

REPLACED = {
    "address": "ringup takes the head's address on the network that all nodes reach",
    "rank": "ringup gives each node its rank",
    "rendezvous id": "ringup writes the rendezvous: one id per run, the head as host",
    "logs": "ringup keeps a log file per rank: --log-dir",
    "ssh": "ringup reaches the nodes itself",
    "kind": "ringup starts one rank per GPU, on one node or several",
    "one node": "the nodes are those that ringup is given",
    "counted": "ringup counts nodes and GPUs itself",
}
REFUSED = {
    "tpu": "ringup starts no TPU and no SageMaker jobs",
    "nodes only": "name the nodes with -H, and the GPUs with --env CUDA_VISIBLE_DEVICES=...",
    "ssh options": "write them into a file for --ssh-config",
    "setup": "--setup 'source FILE' does this",
    "own start": "leave it out: ringup starts the script itself",
    "mpirun": "say MULTI_GPU there: ringup starts accelerate on CPUs, too, and without mpirun",
}
VARIABLES = {
    **dict.fromkeys(RANK_VARIABLES, "rank"),
    "MASTER_ADDR": "address",
    "MASTER_PORT": "port",
    "WORLD_SIZE": "counted",
    "FORCE_TORCHRUN": "kind",
    "RDZV_ID": "rendezvous id",
}
"""Variables in front of a line with the meaning of an option."""
BY_HAND = {"WORLD_SIZE": "world_size"}
"""Variables that count only without a launcher: `RANK=0 WORLD_SIZE=2 python train.py`."""
LLAMAFACTORY = {"NNODES": "nodes", "NPROC_PER_NODE": "nproc"}


# -- a line --------------------------------------------------------------------------------------

COUNTS = ("nodes", "nproc", "world_size")
DECIDED = (*COUNTS, "port", "address", "rank", "rendezvous", "rendezvous id")
"""Meanings of options whose value cannot be a script's name."""
_OF_ALLOCATION = re.compile(r"\$\{?(?:SLURM|PBS|LSB|OMPI)_\w+\}?")
_OF_TASKS = ("SLURM_", "OMPI_", "PMI", "PBS_", "LSB_")
_COMMAND = re.compile(r"[A-Za-z][\w-]{0,63}")
_BEFORE = {
    **dict.fromkeys(("nohup", "setsid"), "--detach lets a run go on without this terminal"),
    "time": "run.json has the times",
    "exec": "ringup starts the ranks",
    "env": "ringup sets the variables",
}
_OF_SHELLS = "give the line in it that starts the ranks; --no-python in front starts it once per rank"
_INSIDE = "run ringup in the container, with the line behind the image"
_AROUND = "leave it out, or name it with --wrap: it then comes before the command that each node starts"
_DETACH = "leave it out: --detach lets a run go on without this terminal"
_OF_FILE = "`ringup script slurm --from FILE` writes the file again; `ringup lint FILE` reads it"
_OF_SERVERS = "a server starts its own ranks: start it itself; `ringup check` and `ringup logs` work with it"
_SERVERS = re.compile(r"(vllm\.entrypoints|sglang\.launch_server)\b")
_DRIVERS = re.compile(r"verl\.trainer\.main_|openrlhf\.cli\.train_\w{0,20}ray\b|determined\.launch\.")
"""Modules that run once, and start the ranks by Ray or in Determined's cluster."""
_OF_DRIVERS = "it runs once and starts the ranks itself: start it itself; `ringup check` works with it"
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_INSTEAD = {
    **dict.fromkeys((*_SHELLS, "source", "."), _OF_SHELLS),
    **dict.fromkeys(("docker", "podman", "nvidia-docker", "podman-hpc", "shifter", "enroot"), _INSIDE),
    **dict.fromkeys(("screen", "tmux"), _DETACH),
    **dict.fromkeys(("sbatch", "qsub", "bsub"), _OF_FILE),
    "make": "give the line that make runs: `make -n` prints it",
    "sudo": "run ringup itself as that user",
    **dict.fromkeys(("blaunch", "pbsdsh", "parallel", "xargs"), "name the nodes with -H"),
    "kubectl": "`ringup script k8s-job` writes a Job; in its pods: `ringup run -- train.py`",
    "horovodrun": "ringup starts no Horovod jobs",
    "ray": "start Ray itself; `ringup check` and `ringup logs` work with it",
    **dict.fromkeys(("vllm", "sglang"), _OF_SERVERS),
    "composer": "-- torchrun --nproc_per_node 8 train.py starts the same ranks",
    "torchx": "give the line that torchx starts: -- torchrun ... train.py",
    "torchpack": "it starts the ranks by mpirun: give the line behind it: -- python train.py",
    "yolo": "it starts its own ranks, on one machine alone: start it without ringup",
    **dict.fromkeys(("xtuner", "oumi", "mim"), "it starts its own ranks: give the line that it starts"),
}
"""Programs that cannot be honoured -> what to do."""
_KEPT = ("env", "numactl", "taskset", "nice", "ionice", "stdbuf", "timeout", "nsys", "ncu")
"""Programs that are kept in front of each node's start line."""
_IMAGES = ("docker", "podman", "nvidia-docker", *CONTAINERS)
_REMOTE = {"ssh": "", "pdsh": "-w", "clush": "-w"}
"""Programs that start on other nodes -> the option that names the nodes."""
_ENVIRONMENTS = {
    "poetry": '. "$(poetry {} env info --path)/bin/activate"',
    "pipenv": '. "$(pipenv {} --venv)/bin/activate"',
    "pdm": 'eval "$(pdm venv activate {})"',
    "hatch": '. "$(hatch env find {})/bin/activate"',
    "pixi": 'eval "$(pixi shell-hook {})"',
}
"""Program with `run` -> the shell command for the same environment, with its options."""
WRAPPERS = (*_KEPT, *_ENVIRONMENTS, "uv", "rye", "conda", "mamba", "micromamba")
_TASKS = ("pdm", "hatch", "pixi", "rye")
"""Tools whose `run` also takes names of tasks."""
VENV = ".venv/bin/python"
_ONE_PYTHON = re.compile(r".{0,4096}/|python\d\.\d")
"""An interpreter that is not just any: `/opt/conda/bin/python`, `python3.9`."""


def take_apart(words: Sequence[str]) -> StartLine:
    """
    The line's parts.  Raises UsageError for parts that cannot be honoured, with a hint.

    >>> take_apart("NCCL_DEBUG=INFO torchrun --nproc_per_node 8 train.py --lr 1".split()).nproc
    8
    """
    _check_copied(words)
    words, line = _unwrapped(words)
    found = start.take_apart(words)
    line = _started_by(line, found, words)
    if line.world_size and line.nproc and not (line.nodes or line.hosts or line.hostfile):
        line = replace(line, nodes=line.world_size // line.nproc * (line.world_size % line.nproc == 0))
    tool = next((step.program for step in found.steps if step.program in _TASKS), "")
    is_command = line.kind == "command" and not line.launcher
    if tool and (is_command or (line.kind == "script" and ":" in line.script)):
        _refuse(f"{tool} run {line.script}", "it may name a task of the project: give the line that it runs")
    if line.kind == "command" and line.python == VENV and "/" not in line.script:
        return replace(line, script=posixpath.join(posixpath.dirname(VENV), line.script))
    return line


_TYPED_DASH = re.compile(rf"-?[{DASHES}][{DASHES}-]?(?=[A-Za-z][\w-]{{0,60}}(?:=|\Z))")
_TYPED_QUOTE = re.compile(r"(?:[\w-]{0,60}=)?[\u201c\u2018][^\s\u201d\u2019]*\Z|[^\s\u201c\u2018]*\u201d\Z")
_BEHIND_BLANK = re.compile(r"\s+--?[A-Za-z]")


def _check_copied(words: Sequence[str]) -> None:
    """Raises UsageError for words that a page or an editor has changed."""
    for word in words:
        if _TYPED_DASH.match(word):
            plain = _TYPED_DASH.sub("--", word)
            raise UsageError(f"{word} begins with a typographic dash", hint=f"type it again: {plain}")
        if _TYPED_QUOTE.match(word):
            raise UsageError(f"{word} has a typographic quote", hint="type the quotes again: \" or '")
        if _BEHIND_BLANK.match(word):
            raise UsageError(
                f"{word!r} is one word", hint="no backslash in front of a blank: it must end its line"
            )
    if words and words[-1] and not words[-1].strip(" \\"):
        raise UsageError("the line ends with a backslash", hint="give all lines of it")


def _started_by(line: StartLine, found: start.CommandLine, words: Sequence[str]) -> StartLine:
    variables = VARIABLES | {"llamafactory": LLAMAFACTORY, "python": BY_HAND}.get(found.launcher, {})
    for name, value in found.env.items():
        if name in variables:
            line = _meant(line, variables[name], f"{name}={value}", value)
        else:
            line = replace(line, env={**line.env, name: value})
    launcher = found.launcher if found.launcher != "python" else ""
    inside, line = line.wrapper, replace(line, wrapper=())
    ends = [*(step.at for step in found.steps[1:]), found.at]
    for step, end in zip(found.steps, ends, strict=False):
        line = _stepped(line, step, bool(launcher), words[step.at : end if end > step.at else len(words)])
    line = replace(line, wrapper=(*line.wrapper, *inside))
    if _ONE_PYTHON.match(found.python) and not line.python:
        line = replace(line, python=found.python)
    if line.image or line.container or any(map(_is_container, line.wrapper)):
        line = replace(line, python=line.python or found.python or "python3")
    left = list(itertools.dropwhile(start.ASSIGNED.match, words[found.at :]))
    program = posixpath.basename(left[0]) if left else ""
    if program in _INSTEAD:
        _refuse(" ".join(left[:2]), _INSTEAD[program])
    around = program if program in start.RUN_OTHERS else "".join(left[2:3]) if left[1:2] == ["-m"] else ""
    if around in start.RUN_OTHERS and (launcher or around == program):
        _refuse(around, "leave it out: it would watch the launcher, or every rank on one port")
    if launcher in OPTIONS and launcher not in _BY_OTHERS:
        return _launched(replace(line, launcher=launcher), found)
    if launcher == "llamafactory":
        if left[2:] and left[2].startswith("--"):  # options in place of a YAML file
            return _started(
                replace(line, launcher="torchrun"), ["torchrun", "-m", LLAMAFACTORY_MODULE, *left[2:]]
            )
        return _ending(replace(line, launcher=launcher), left[2:])
    if launcher in _BY_OTHERS:
        return _BY_OTHERS[launcher](line, left[1:])
    if program in _SWIFT and left[1:2] and left[1] in _SWIFT_TASKS:
        return _swift(line, f"{_SWIFT[program]}.{left[1]}", left[2:])
    if program in LAUNCHERS and not launcher:
        _refuse(" ".join(left[:2]), f"a job starts with `{program} {LAUNCHERS[program][1]}`")
    return _interpreted(line, left) if PYTHON.fullmatch(program) else _bare(line, left, program)


def _unwrapped(words: Sequence[str]) -> tuple[Sequence[str], StartLine]:
    """The words, with `bash -c TEXT` replaced by TEXT's launch; and TEXT's commands before the launch."""
    found, line = start.take_apart(words), StartLine()
    last = found.steps[-1] if found.steps else None
    if found.text is None or last is None or last.program not in (*_SHELLS, *_REMOTE):
        return words, line
    if last.program in _REMOTE:
        line = _remote(line, last)
    from ringup.launchfiles import files

    read = files.read("-", found.text)
    job, launches = read.job, read.launches
    lines = {(one.nnodes, one.ranks_per_node, *_without_rank(one.start)) for one in launches}
    ranks = {one.node_rank_text for one in launches}
    if len(lines) != 1 or len(ranks) < len(launches):
        shown = f"{found.text.strip()[:60]!r} is not one line that starts ranks"
        raise UsageError(shown, hint=f"it starts {len(launches)} launchers; {_OF_SHELLS}")
    line = _behind(line, job, launches[-1].command)
    setup = []
    for command in job.commands[: job.commands.index(launches[0].command)]:
        texts = [job.marks.shown(text) for text in command.texts]
        if texts[0] == "cd" and len(texts) == 2:
            line = replace(line, chdir=texts[1])
        elif texts[0] in ("source", ".", "module", "conda", "ulimit"):
            setup.append(shlex.join(texts))
        elif texts[0] not in ("export", "set", "exec"):
            _refuse(texts[0], f"--setup takes a command that comes first; {_OF_SHELLS}")
    if unknown := job.marks.all_of(" ".join((launches[0].start.script, *launches[0].start.arguments))):
        shown = job.marks.shown(job.marks.make(*unknown[0]))
        _refuse(shown, "write its value, or give the line without quotes")
    env = []
    for name, value in launches[0].command.env.items():
        shown = job.marks.shown(value)
        if any(mark.name.startswith(_OF_TASKS) for mark in job.marks.all_of(value)) and name not in VARIABLES:
            _refuse(f"{name}={shown}", "only the ranks know its value: set it in the script")
        if shown != value and name not in VARIABLES:
            setup.append(f'export {name}="{shown}"')
        else:
            env.append(f"{name}={shown}")
    inner = [job.marks.shown(text) for text in launches[0].command.texts]
    _check_copied(inner)
    if any(step.role == "wrapper" and step.program in _IMAGES for step in found.steps):
        # Commands before it belong into the image.
        setup = [f"cd {shlex.quote(line.chdir)}"] * bool(line.chdir) + setup
        own = ("bash", "-c", " && ".join([*setup, 'exec "$@"']), "bash") if setup else ()
        return [*env, *words[: last.at], *inner], replace(line, chdir="", wrapper=own)
    return [*env, *words[: last.at], *inner], replace(line, setup=" && ".join(setup))


def _without_rank(found: start.CommandLine) -> tuple[object, ...]:
    return found.launcher, found.kind, found.script, tuple(found.arguments)


def _behind(line: StartLine, job: shell.Job, launch: shell.Command) -> StartLine:
    """The line with what a text has behind its launch.  Raises UsageError for the rest of a cut line."""
    if launch.cut_at:
        _refuse(job.text.split("\n")[launch.cut_at - 1], "a comment cuts the line here: leave it out")
    for redirect in re.findall(r"\s((?:\d|&)?>{1,2} ?[\w./$%{}-]{1,200})", job.text)[:3]:
        line = line.replacing(redirect, REPLACED["logs"])
    for command in job.commands[job.commands.index(launch) + 1 :]:
        shown = " ".join(word.raw for word in command.words)[:60]
        if shown.startswith("-"):
            _refuse(shown, "the line above ends too early: its backslash must be the last character")
        if not command.is_nested:
            line = line.replacing(shown, "it is behind the line that starts the ranks")
    return line


def _remote(line: StartLine, step: start.Step) -> StartLine:
    """The line with the nodes of ssh, pdsh or clush."""
    named = step.positionals[0] if step.program == "ssh" and step.positionals else step.option("-w") or ""
    own = [o for o in step.options if o.value and o.name not in (_REMOTE[step.program], "-R", "-f", "-l")]
    if own or not named or named[0] in "^@-" or step.has("-l"):
        _refuse(f"{step.program} {own[0].written if own else named}", "name the nodes with -H; --ssh-config")
    written = (step.program, *(o.written for o in step.options), *step.positionals)
    return line.taking(" ".join(written), hosts=named)


def _bare(line: StartLine, left: list[str], program: str) -> StartLine:
    """A script, `-m MODULE`, `--no-python COMMAND` or the name of a command."""
    if left[:1] == ["-m"]:
        return _ending(replace(line, kind="module"), left[1:])
    if left[:1] in (["--no-python"], ["--no_python"]):
        return _ending(replace(line, kind="command"), left[1:])
    if program.endswith(".sh"):
        _refuse(left[0], _OF_SHELLS)
    is_command = bool(left and _COMMAND.fullmatch(left[0]))
    line = _ending(replace(line, kind="command" if is_command else "script"), left)
    return _litgpt(line) if program == "litgpt" else line


def _stepped(line: StartLine, step: start.Step, has_launcher: bool, words: Sequence[str]) -> StartLine:
    """The line with the settings of a starter or wrapper in front of the launcher; `words` are its own."""
    program = posixpath.basename(step.program)
    if program in _BEFORE and not step.options:
        return line.replacing(step.program, _BEFORE[program])
    if program == "srun":
        return _srun(line, step, has_launcher)
    if program in ("mpirun", "mpiexec"):
        return _mpirun(line, step, has_launcher)
    if program in ("docker", "podman", "nvidia-docker") and "run" in words[1:3]:
        return _docker(line, step)
    taken = line.taking(shlex.join(words))
    if program == "uv":
        return _uv(taken, step)
    if program == "rye":
        return replace(taken, python=VENV)
    if program in _ENVIRONMENTS:
        options = shlex.join(word for o in step.options for word in o.written.split())
        setup = " ".join(_ENVIRONMENTS[program].format(options).split()).replace(" )", ")")
        return replace(taken, setup=setup)
    if program in ("conda", "mamba", "micromamba"):
        return _conda(taken, step, program)
    if program not in _KEPT and not _is_container(program):
        _refuse(" ".join(words[:2]), _INSTEAD.get(program, _AROUND))
    _check_kept(step, words)
    return replace(taken, wrapper=(*line.wrapper, *words))


def _is_container(word: str) -> bool:
    return posixpath.basename(word) in CONTAINERS


HIDING = {"-e", "--cleanenv", "-C", "--containall", "-p", "--pid"}


def _check_kept(step: start.Step, words: Sequence[str]) -> None:
    """Raises UsageError for a wrapper that cannot wrap ringup's own command."""
    if unknown := next((word for word in words if "$" in word), ""):
        _refuse(unknown, "only the ranks know its value: write it into the script")
    if step.program == "env" and not step.has("-u", "--unset"):
        _refuse(" ".join(words[:2]), "give the variables in front of the line: NAME=VALUE torchrun ...")
    if hiding := [o.name for o in step.options if o.name in HIDING and _is_container(step.program)]:
        hint = "leave it out: the ranks' variables and process ids must be the same outside the image"
        _refuse(f"{step.program} {hiding[0]}", hint)


def _uv(line: StartLine, step: start.Step) -> StartLine:
    """`uv run`: the interpreter of the project's environment; its other options update that environment."""
    folder, sync = "", []
    for option in step.options:
        if option.name in ("--project", "--directory"):
            folder = option.value
            line = replace(line, chdir=folder if option.name == "--directory" else line.chdir)
        elif option.name in ("--with", "--with-requirements", "--with-editable", "--env-file", "--isolated"):
            _refuse(f"uv run {option.written}", "`uv sync` makes that environment, then -- uv run ...")
        elif option.name not in ("--no-sync", "-q", "--quiet"):
            sync += option.written.split()
    python = posixpath.join("" if line.chdir else folder, VENV)
    project = ["--project", folder] if folder and not line.chdir else []
    setup = shlex.join(["uv", "sync", "--inexact", *project, *sync]) if sync else ""
    return replace(line, python=python, setup=setup or line.setup)


def _conda(line: StartLine, step: start.Step, program: str) -> StartLine:
    """`conda run -n NAME`: activates that environment."""
    name, setup = step.option("-n", "--name", "-p", "--prefix"), line.setup
    if name and program == "micromamba":
        hook = "micromamba shell hook --shell posix"
        setup = f'eval "$({hook})" && micromamba activate {shlex.quote(name)}'
    elif name:
        setup = f'eval "$(conda shell.posix hook)" && conda activate {shlex.quote(name)}'
    return replace(line, setup=setup, chdir=step.option("--cwd") or line.chdir)


_OF_DOCKER = (
    *("--rm", "-it", "-ti", "-i", "-t", "-d", "--interactive", "--tty", "--detach", "--init", "--name"),
    *("--network", "--net", "--ipc", "--shm-size", "--ulimit", "--restart"),
)
"""Options of `docker run` that a job file sets itself."""


def _docker(line: StartLine, step: start.Step) -> StartLine:
    """The image and the options of `docker run`; -e becomes variables."""
    line = line.taking(step.program, image="".join(step.positionals))
    for option in step.options:
        if option.name in ("-e", "--env"):
            line = _passed(line, option)
        elif match := re.fullmatch(r"--gpus\W+device=([\w,-]+)\"?", option.written):
            line = replace(line, env={"CUDA_VISIBLE_DEVICES": match[1], **line.env})
            line = line.replacing(option.written, "CUDA_VISIBLE_DEVICES names them")
        elif option.name in _OF_DOCKER or (option.name, option.value.strip("\"'")) == ("--gpus", "all"):
            line = line.replacing(option.written, "the job file sets its own")
        elif option.name == "--gpus":
            _refuse(option.written, "--gpus all, and -e CUDA_VISIBLE_DEVICES=0,1 for some of them")
        else:
            words = [option.written] if "=" in option.written else [option.name, option.value]
            line = replace(line, container=(*line.container, *filter(None, words)))
    return line


def _passed(line: StartLine, option: start.Option) -> StartLine:
    """Sets NAME=VALUE, forwards NAME."""
    name, equals, value = option.value.partition("=")
    if name in VARIABLES and equals:
        return _meant(line, VARIABLES[name], option.written, value)
    if name in VARIABLES:
        return line.replacing(option.written, "ringup sets it")
    if equals:
        return replace(line, env={**line.env, name: value})
    return replace(line, forwarded=(*line.forwarded, name))


def _refuse(what: str, hint: str) -> NoReturn:
    raise UsageError(f"{what}: ringup cannot use it", hint=hint)


_NO_SCRIPT = re.compile(r"\.py -|^\[.*\]$|^(?:\.{3}|\u2026)$")
"""A script with its options in one word, or a placeholder."""


def _ending(line: StartLine, left: Sequence[str]) -> StartLine:
    """The line with the started program and its arguments."""
    if not left or not left[0].strip() or left[0].startswith("-"):
        what = f"{left[0]!r} is not a script" if left else "no training script was given"
        raise UsageError(what, hint="its own options go behind it: -- train.py --lr 0.1")
    if line.kind == "script" and _NO_SCRIPT.search(left[0]):
        hint = "the script's name alone, and its options behind it: -- train.py --lr 0.1"
        raise UsageError(f"{left[0]!r} is not a script", hint=hint)
    if posixpath.basename(left[0]) == "deepy.py":
        _refuse(left[0], "it starts deepspeed itself: run it without ringup, or give the line that it prints")
    line = replace(line, script=left[0], arguments=tuple(left[1:]))
    return _counted(line, LIGHTNING) if line.kind == "script" else line


LIGHTNING = {"--trainer.devices": "nproc", "--trainer.num_nodes": "nodes"}
"""Arguments of LightningCLI's scripts; Lightning refuses to train with other counts."""
_PYTHON_OPTIONS: dict[str, dict[str, str]] = {
    "-u": {},  # ringup starts every rank in this way
    "-O": {"PYTHONOPTIMIZE": "1"},
    "-B": {"PYTHONDONTWRITEBYTECODE": "1"},
    "-s": {"PYTHONNOUSERSITE": "1"},
    "-Xfaulthandler": {"PYTHONFAULTHANDLER": "1"},
    "-Wignore": {"PYTHONWARNINGS": "ignore"},
}


def _interpreted(line: StartLine, left: list[str]) -> StartLine:
    """`python [-u -O ...] SCRIPT | -m MODULE`; the options become variables."""
    env = dict(line.env)
    python = left.pop(0)
    while left and left[0].startswith("-") and left[0] != "-m":
        option = left.pop(0)
        option += left.pop(0) if option in ("-X", "-W") and left else ""
        if option not in _PYTHON_OPTIONS:
            _refuse(f"python {option}", "-- python train.py, or -- python -m pkg.train")
        env |= _PYTHON_OPTIONS[option]
    line = replace(line, python=python if _ONE_PYTHON.match(python) else line.python, env=env)
    if left[:1] != ["-m"]:
        return _ending(line, left)
    if _SERVERS.match("".join(left[1:2])):
        _refuse(f"python -m {left[1]}", _OF_SERVERS)
    if _DRIVERS.match("".join(left[1:2])):
        _refuse(f"python -m {left[1]}", _OF_DRIVERS)
    return _ending(replace(line, kind="module"), left[1:])


def _launched(line: StartLine, found: start.CommandLine) -> StartLine:
    kept: list[str] = []
    for option in found.options:
        name = option.written.split()[0].partition("=")[0]
        meaning = meaning_of(line.launcher, name)
        if not meaning or option.name == "--help":
            near = difflib.get_close_matches(option.name, OPTIONS[line.launcher], 1, 0.75)
            mean = "".join(f"did you mean {one}? " for one in near)
            hint = f"{mean}options of the script go behind it: train.py --lr 0.1"
            raise UsageError(f"{line.launcher} {name}: ringup does not know this option", hint=hint)
        is_next = option.value.startswith("--") or (option.value.endswith(".py") and meaning in DECIDED)
        is_empty = not option.has_value or (option.written.endswith("=") and meaning in (*COUNTS, "port"))
        if is_empty or (is_next and "=" not in option.written):
            hint = f"is a variable empty in this shell? write {name} VALUE, or leave it out"
            raise UsageError(f"{name} needs a value", hint=hint)
        if meaning.startswith("kind of script"):
            line = replace(line, kind="command" if "python" in name else "module")
        elif meaning.rstrip("=") in (FLAG, PASSED):
            kept += [name] if option.is_flag else [name, option.value]
        else:
            line = _meant(line, meaning.rstrip("="), option.written, option.value)
        if line.launcher == "accelerate" and option.name == "--config-file":
            line = replace(line, config=option.value)
    if line.hosts and line.hostfile:  # DeepSpeed's --include names some of the file's nodes
        if "CUDA_VISIBLE_DEVICES" not in line.env:
            _refuse("--include without GPUs", f"-H {line.hosts} --nproc N, N as {line.hostfile} says")
        file = next(word for word in line.taken if "hostfile" in word or word.startswith("-H"))
        line = replace(line, hostfile="", taken=tuple(word for word in line.taken if word != file))
        line = line.replacing(file, "--include names the nodes")
    if PYTHON.fullmatch(posixpath.basename(found.script)) and line.kind == "script":
        hint = f"{line.launcher} wants the script itself: leave python out"
        _refuse(f"{line.launcher} {found.script}", hint)
    folder = posixpath.dirname(found.program) if not found.python else ""
    line = replace(line, python=line.python or (f"{folder}/python" if folder else ""))
    line = replace(line, launcher_arguments=(*line.launcher_arguments, *kept))
    return _ending(line, [found.script, *found.arguments] if found.script_at >= 0 else [])


def _meant(line: StartLine, meaning: str, written: str, value: str) -> StartLine:
    """The line with one option taken over, replaced or refused."""
    if meaning in REFUSED:
        _refuse(written, REFUSED[meaning])
    if meaning in REPLACED:
        return line.replacing(written, REPLACED[meaning])
    found: dict[str, Any] = {meaning: value}
    if meaning == "restarts":
        if not (value.isascii() and value.isdigit() and len(value) < 5):
            raise UsageError(f"{written}: {value!r} is not a number", hint="write the number in its place")
        found = {meaning: int(value)}
    elif meaning == "gpus":
        found = {} if value == "all" else {"env": {"CUDA_VISIBLE_DEVICES": value, **line.env}}
    elif meaning == "include":
        found = _included(line, written, value)
    elif meaning == "rendezvous" and value not in ("static", "c10d"):
        _refuse(written, "--rdzv takes static or c10d")
    elif (meaning, value) in (("nproc", "gpu"), ("nproc", "auto"), ("port", "0")):
        found = {}
    elif meaning in COUNTS and _OF_ALLOCATION.fullmatch(value):
        return line.replacing(written, REPLACED["counted"])
    elif meaning == "port" and value.startswith("$"):
        return line.replacing(written, "ringup finds a free port")
    elif meaning in (*COUNTS, "port"):
        low, _, high = value.partition(":")
        if high and low != high:
            _refuse(written, f"say how many nodes: --nodes {high}")
        if not low.isascii() or not low.isdigit() or not int(low):
            raise UsageError(f"{written}: {value!r} is not a number", hint="write the number in its place")
        if meaning == "nodes" and int(low) == 1:
            return replace(line, nodes=1).replacing(written, REPLACED["one node"])
        found = {meaning: int(low)}
    return line.taking(written, **found)


def _included(line: StartLine, written: str, value: str) -> dict[str, Any]:
    """DeepSpeed's `NODE[:GPU,...][@NODE...]`, if every node has the same GPUs."""
    parts = [part.partition(":") for part in value.split("@")]
    names, gpus = [name for name, _, _ in parts], {slots for _, _, slots in parts}
    if len(gpus) > 1 or not all(names):
        _refuse(written, "name the nodes with -H: the GPUs must be the same on every node")
    env = {"CUDA_VISIBLE_DEVICES": slots, **line.env} if (slots := gpus.pop()) else line.env
    return {"hosts": "" if names == ["localhost"] else ",".join(names), "env": env}


def _axolotl(line: StartLine, left: list[str]) -> StartLine:
    """`axolotl train CONFIG [--launcher NAME] ARGS [-- launcher's options]`: its module and launcher."""
    left = left[1:]
    at = left.index("--") if "--" in left else len(left)
    left, own, launcher = left[:at], left[at + 1 :], "accelerate"
    for i, word in enumerate(left):
        if word.partition("=")[0] == "--launcher":
            launcher = word.partition("=")[2] or "".join(left[i + 1 : i + 2])
            del left[i : i + (1 if "=" in word else 2)]
            break
    words = ["-m", "axolotl.cli.train", *left]
    if launcher == "python":
        return _interpreted(line, ["python", *words])
    if launcher not in ("accelerate", "torchrun"):
        _refuse(f"axolotl --launcher {launcher}", "it takes accelerate, torchrun or python")
    return _started(replace(line, launcher=launcher), [launcher, *own, *words])


def _tune(line: StartLine, left: list[str]) -> StartLine:
    """
    torchtune's `tune run [torchrun's options] RECIPE`: `tune run RECIPE` as each rank.

    Without torchrun's options, it runs the recipe in its own process (torchtune 0.6 `_cli/run.py`).
    """
    left = left[1:]
    at = max(0, start.take_apart(["torchrun", *left]).script_at - 1)
    line = line if at else replace(line, nproc=1)
    words = ["torchrun", *left[:at], "--no-python", "tune", "run", *left[at:]]
    return _started(replace(line, launcher="torchrun"), words if len(left) > at else words[: at + 1])


LLAMAFACTORY_MODULE = "llamafactory.launcher"
"""The module that `llamafactory-cli train` runs with torchrun (LLaMA-Factory 0.8 to 0.9.5)."""
_SWIFT = {"swift": "swift.cli", "megatron": "swift.cli._megatron"}
_SWIFT_TASKS = ("pt", "sft", "rlhf")


def _swift(line: StartLine, module: str, left: list[str]) -> StartLine:
    """ms-swift's `swift sft`: torchrun if NPROC_PER_NODE or NNODES is set (ms-swift 3.5 `cli/main.py`)."""
    for name, meaning in LLAMAFACTORY.items():
        if name in line.env:
            env = {n: v for n, v in line.env.items() if n != name}
            line = _meant(replace(line, env=env), meaning, f"{name}={line.env[name]}", line.env[name])
    line = line if line.nproc or line.nodes else replace(line, nproc=1)
    return _started(replace(line, launcher="torchrun"), ["torchrun", "-m", module, *left])


_FABRIC = {"--devices": "nproc", "--num-nodes": "nodes", "--node-rank": "rank"}
_FABRIC |= {"--main-address": "address", "--main-port": "port"}
_OF_FABRIC = ("--accelerator", "--strategy", "--precision")


def _fabric(line: StartLine, left: list[str]) -> StartLine:
    """`fabric run [OPTIONS] train.py`: torchrun, with the variables of Lightning 2.5 `fabric/cli.py`."""
    env = {"LT_CLI_USED": "1", "LT_DEVICES": "1", "LT_NUM_NODES": "1"}
    left = left[2:] if left[1:2] == ["model"] else left[1:]
    while left and left[0].startswith("-"):
        written = left.pop(0)
        name, equals, value = written.partition("=")
        value = value if equals else left.pop(0) if left else ""
        name, written = name.replace("_", "-"), written if equals else f"{written} {value}"
        if name in (*_OF_FABRIC, "--devices", "--num-nodes"):
            env[f"LT_{name[2:].upper().replace('-', '_')}"] = value
        if name in _FABRIC:
            line = _meant(line, _FABRIC[name], written, value)
        elif name in _OF_FABRIC:
            line = line.taking(written)
        else:
            _refuse(f"fabric run {written}", "options of the script go behind it: train.py --lr 0.1")
    line = replace(line, launcher="torchrun", nproc=line.nproc or 1, env={**line.env, **env})
    return _ending(line, left)


def _counted(line: StartLine, counts: Mapping[str, str]) -> StartLine:
    """Counts in the arguments that a trainer compares with the number of ranks; kept as arguments."""
    for word, following in itertools.pairwise([*line.arguments, ""]):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name in counts and (value.isdigit() or value == "auto"):
            line = _meant(line, counts[name], word if equals else f"{name} {value}", value)
    return line


def _litgpt(line: StartLine) -> StartLine:
    """`litgpt finetune MODEL --devices 4`: the default for finetuning is one GPU (finetune/*.py)."""
    kind = (*line.arguments, "")[0]
    if not kind.startswith(("finetune", "pretrain")):
        _refuse(f"litgpt {kind}", "a job starts with `litgpt finetune` or `litgpt pretrain`")
    is_said = any(word.startswith(("--devices", "--config")) for word in line.arguments)
    line = line if is_said or kind == "pretrain" else replace(line, nproc=1)
    return _counted(line, {"--devices": "nproc", "--num_nodes": "nodes"})


TRL_OWN = ("--gradient_accumulation_steps", "--debug", "--log_dir", "--env", "--role", "--quiet", "--tee")
"""Names that accelerate also has; trl reads them first."""


def _trl(line: StartLine, left: list[str]) -> StartLine:
    """`trl sft ARGS`: trl's script under accelerate, whose options may be anywhere in the arguments."""
    if left[:1] not in (["sft"], ["dpo"], ["grpo"], ["kto"], ["reward"], ["rloo"]):
        _refuse(f"trl {' '.join(left[:1])}", "a job starts with `trl sft`, dpo, grpo, kto, reward or rloo")
    own: list[str] = []
    kept: list[str] = []
    words = iter(left[1:])
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--accelerate_config":
            value = value or next(words, "")
            if not value.endswith((".yaml", ".yml")):
                _refuse(f"{name} {value}", "name the file: --accelerate_config .../zero2.yaml")
            own += ["--config_file", value]
        elif name not in TRL_OWN and (meaning := OPTIONS["accelerate"].get(name.replace("_", "-"))):
            own += [word] if equals or meaning.endswith("=") else [word, next(words, "")]
        else:
            kept.append(word)
    own += ["-m", f"trl.scripts.{left[0]}", *kept]
    return _started(replace(line, launcher="accelerate"), ["accelerate", *own])


_BY_OTHERS = {"axolotl": _axolotl, "tune": _tune, "fabric": _fabric, "trl": _trl}


def _started(line: StartLine, words: list[str]) -> StartLine:
    """The line of a program that starts a launcher, with the words that it would pass to the launcher."""
    words = ["accelerate", "launch", *words[1:]] if words[0] == "accelerate" else words
    return _launched(line, start.take_apart(words))


SINGLE, NOT_STARTED = ("NO", "no", "false"), ("MULTI_CPU", "XLA", "TPU", "AMAZON_SAGEMAKER")
UNSAID = {"main_process_port": "0", "rdzv_backend": "static", "gpu_ids": "all", "num_processes": "-1"}
"""Values in accelerate's file that mean the default."""


def configured(line: StartLine, settings: Sequence[tuple[str, str]]) -> StartLine:
    """
    The line with the counts, addresses and nodes of accelerate's file, unless the line sets them.

    `taken` and `replaced` of the result are only the file's.  Raises UsageError as `take_apart` does.
    """
    known, said = OPTIONS["accelerate"], dict(settings)
    kinds = said.get("distributed_type", ""), said.get("compute_environment", "")
    for kind, why in ((k, "mpirun" if k == "MULTI_CPU" else "tpu") for k in kinds if k in NOT_STARTED):
        _refuse(f"{line.config}: {kind}", REFUSED[why])
    single = kinds[0] in SINGLE
    given: dict[str, object] = {n: getattr(line, n) for n in ("nodes", "port", "rendezvous")}
    given |= {"world_size": line.world_size or single, "hostfile": line.hostfile or line.hosts}
    given["gpus"] = "CUDA_VISIBLE_DEVICES" in line.env
    line = replace(line, taken=(), replaced=())
    for name, value in said.items():
        meaning = known.get(f"--{name.replace('_', '-')}", "")
        kind = meaning.rstrip("=")
        is_off = meaning.endswith("=") and value.lower() not in ("true", "yes")
        if value in ("", UNSAID.get(name)) or is_off or given.get(kind):
            continue
        if kind not in ("", FLAG, PASSED, "kind of script"):
            line = _meant(line, kind, f"{name}: {value}", value)
    return replace(line, is_single=True, world_size=line.world_size or 1) if single else line


_SRUN = {"--nodes": "nodes", "-N": "nodes", "--ntasks-per-node": "nproc", "--tasks-per-node": "nproc"}
_SRUN |= {"--ntasks": "world_size", "-n": "world_size"}
_SCHEDULED = {
    "queue": "-p --partition",
    "account": "-A --account",
    "time": "-t --time",
    "name": "-J --job-name",
    "cpus": "-c --cpus-per-task",
    "gpus": "--gres --gpus-per-node --gpus-per-task",
    "option": "--mem --mem-per-cpu --mem-per-gpu -C --constraint -q --qos --reservation --exclusive"
    " -x --exclude --quotatype -G --gpus --cpus-per-gpu",
}
SCHEDULED = {name: meaning for meaning, names in _SCHEDULED.items() for name in names.split()}
"""srun's options for a job file; in a running allocation they are fixed."""
_SRUN_ENDS = re.compile("--(?:pty|label|unbuffered|kill-on-bad-exit|wait)|-K1|-W|-[luvQKX]+")
_SRUN_OWN = ("--export", "--mpi", "-o", "--output", "-e", "--error", "--overlap", "--exact", "--jobid", "-v")
ENDS_TOGETHER = "ringup labels every line, and a rank that fails ends the others"
NODES_ITSELF = "ringup starts on every node itself"


def _srun(line: StartLine, step: start.Step, has_launcher: bool) -> StartLine:
    """srun's counts; a launcher inside srun counts its own ranks."""
    line = line.replacing("srun", NODES_ITSELF)
    for option in step.options:
        name = option.name.partition("=")[0]
        if name in SCHEDULED:
            scheduled = {**line.scheduled, option.written: (SCHEDULED[name], option.value)}
            line = replace(line, scheduled=scheduled)
        elif _SRUN_ENDS.fullmatch(name):
            line = line.replacing(option.written, ENDS_TOGETHER)
        elif name in _SRUN_OWN and (name != "--export" or option.value in ("", "ALL")):
            line = line.replacing(option.written, NODES_ITSELF)
        elif name in ("-w", "--nodelist"):
            line = _meant(line, "hosts", option.written, option.value)
        elif name.startswith("--container-") or name == "--no-container-mount-home":
            line = replace(line, container=(*line.container, *option.written.split(" ", 1)))
        elif name in ("--chdir", "-D"):
            line = line.taking(option.written, chdir=option.value)
        elif name not in _SRUN:
            _refuse(f"srun {name}", "leave srun out: ringup starts on every node of the allocation")
        elif name in ("--nodes", "-N") or not has_launcher:
            line = _meant(line, _SRUN[name], option.written, option.value)
        else:
            line = line.replacing(option.written, "ringup starts one launcher per node")
    return line


_MPI = {name: meaning for meaning, names in MPI_OPTIONS.items() for name in names}
_WITHOUT_MPI = "ringup starts the ranks itself, without MPI"


def _mpirun(line: StartLine, step: start.Step, has_launcher: bool) -> StartLine:
    """
    The hosts and counts of mpirun; -x becomes variables.

    The ranks of a plain script then get RANK, WORLD_SIZE and LOCAL_RANK in place of OMPI_COMM_WORLD_*.
    """
    line = line.replacing(step.program, _WITHOUT_MPI)
    if not has_launcher:
        line = replace(line, launcher="python")
    for option in step.options:
        mapped = re.fullmatch(r"ppr:(\d+):node", option.value) if option.name.endswith("map-by") else None
        meaning, value = ("nproc", mapped[1]) if mapped else (_MPI.get(option.name, ""), option.value)
        if has_launcher and meaning == "world_size":
            meaning = "nodes"
        elif has_launcher and meaning == "nproc":
            meaning = ""
            if value != "1":
                hint = "each of these would start a launcher: one a node, --map-by ppr:1:node"
                _refuse(option.written, hint)
        if option.name == "-x":
            line = _passed(line, option)
        elif meaning == "hosts":
            line = _mpi_hosts(line, option.written, value)
        elif meaning:
            line = _meant(line, meaning, option.written, value)
        else:
            line = line.replacing(option.written, _WITHOUT_MPI)
    return line


def _mpi_hosts(line: StartLine, written: str, value: str) -> StartLine:
    """`a:4,b:4`: the nodes, and the number of ranks of each."""
    names, counts = zip(*(part.partition(":")[::2] for part in value.split(",")), strict=True)
    if len(set(counts)) > 1:
        _refuse(written, "the same number of slots on every node, or --hostfile with slots=N")
    line = _meant(line, "hosts", written, ",".join(names))
    return replace(line, nproc=int(counts[0])) if counts[0].isdecimal() and not line.nproc else line
