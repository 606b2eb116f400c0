"""
A start line as people paste it, taken apart: `torchrun --nproc_per_node 8 train.py`, `python -m pkg.train`.

An option that ringup has becomes ringup's; what ringup decides itself (node rank, master address, rendezvous)
is named with the reason; what concerns the launcher alone is handed on to it; anything else is an error.  No
word of a line is dropped in silence.

The words are read by `launchfiles.start`, as those of job files are.  Sources beyond its own: axolotl 0.13
`cli/main.py`, trl 0.24 `cli.py`.
"""

from __future__ import annotations

import difflib
import itertools
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from ringup.errors import UsageError
from ringup.launchfiles import start
from ringup.launchfiles.programs import FLAG, LAUNCHERS, OPTIONS, PASSED, meaning_of
from ringup.launchfiles.start import PYTHON, Kind


@dataclass(frozen=True)
class StartLine:
    """What a line asks for; 0 and "" where it says nothing."""

    script: str = ""
    """A path, or the name of a module or command, as `kind` says."""
    arguments: tuple[str, ...] = ()
    kind: Kind = "script"
    launcher: str = ""
    launcher_arguments: tuple[str, ...] = ()
    python: str = ""
    """The interpreter, where one with a path is named."""
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 0
    nproc: int = 0
    """Ranks per node."""
    world_size: int = 0
    """All ranks, where the launcher counts these (accelerate, srun)."""
    port: int = 0
    restarts: int = 0
    hosts: str = ""
    hostfile: str = ""
    rendezvous: str = ""
    config: str = ""
    """The file of accelerate's --config_file, which may say more of all this."""
    is_single: bool = False
    """Whether the launcher would start one process alone."""
    taken: tuple[str, ...] = ()
    """The options that became ringup's, as written."""
    replaced: tuple[tuple[str, str], ...] = ()
    """(as written, why): what ringup decides itself."""
    setup: str = ""
    """A shell command that comes first: the environment of `conda run`."""
    chdir: str = ""
    forwarded: tuple[str, ...] = ()
    """Variables that are passed on by name."""
    scheduled: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """As written -> (option of ringup, value): what a job file asks the scheduler for."""


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
    "MASTER_ADDR": "address",
    "MASTER_PORT": "port",
    "NODE_RANK": "rank",
    "RANK": "rank",
    "LOCAL_RANK": "rank",
    "WORLD_SIZE": "counted",
    "FORCE_TORCHRUN": "kind",
    "RDZV_ID": "rendezvous id",
}
"""Variables in front of a line that mean what an option means."""
BY_HAND = {"WORLD_SIZE": "world_size"}
"""Where no launcher sets it: `RANK=0 WORLD_SIZE=2 python train.py`."""
LLAMAFACTORY = {"NNODES": "nodes", "NPROC_PER_NODE": "nproc"}


# -- a line --------------------------------------------------------------------------------------

COUNTS = ("nodes", "nproc", "world_size")
DECIDED = (*COUNTS, "port", "address", "rank", "rendezvous", "rendezvous id")
"""What no script's name can be the value of."""
_OF_ALLOCATION = re.compile(r"\$\{?(?:SLURM|PBS|LSB|OMPI)_\w+\}?")
_COMMAND = re.compile(r"[A-Za-z][\w-]{0,63}")
_BEFORE = {
    "nohup": "--detach lets a run go on without this terminal",
    "setsid": "--detach lets a run go on without this terminal",
    "time": "run.json has the times",
    "exec": "ringup starts the ranks",
    "env": "ringup sets the variables",
}
_OF_SHELLS = "give the line in it that starts the ranks; --no-python in front starts it once per rank"
_INSIDE = "give the line behind the image, where ringup runs in it; `ringup script docker` writes job files"
_AROUND = "put it in front of ringup, or leave it out: ringup starts the ranks on every node itself"
_OF_ENVIRONMENT = "--python PATH of that environment, then -- train.py"
_INSTEAD = {
    **dict.fromkeys(("bash", "sh", "zsh", "dash", "ksh", "source", "."), _OF_SHELLS),
    **dict.fromkeys(("docker", "podman", "nvidia-docker", "podman-hpc", "shifter"), _INSIDE),
    **dict.fromkeys(("singularity", "apptainer", "enroot"), _INSIDE),
    **dict.fromkeys(("pipenv", "pdm", "rye", "hatch", "pixi"), _OF_ENVIRONMENT),
    **dict.fromkeys(
        ("numactl", "taskset", "nice", "ionice", "stdbuf", "timeout", "xargs", "parallel"), _AROUND
    ),
    **dict.fromkeys(("nsys", "ncu"), "--no-python nsys profile python train.py profiles every rank"),
    "make": "give the line that make runs: `make -n` prints it",
    "sudo": "run ringup itself as that user",
    **dict.fromkeys(("ssh", "pdsh", "clush", "dsh", "pssh", "blaunch", "pbsdsh"), "name the nodes with -H"),
    "kubectl": "`ringup script k8s-job` writes a job, `--pods` runs inside one",
    "horovodrun": "ringup starts no Horovod jobs",
    "ray": "start Ray itself; `ringup check` and `ringup logs` work beside it",
    "sbatch": "`ringup script slurm --from FILE` writes the file anew; `ringup lint FILE` reads it",
    "tune": "`tune cp RECIPE RECIPE.py`, then -- torchrun --nproc_per_node 8 RECIPE.py --config FILE.yaml",
    **dict.fromkeys(("fabric", "lightning"), "write its options into Fabric(...), then -- train.py"),
    "composer": "-- torchrun --nproc_per_node 8 train.py starts the same ranks",
    "torchx": "give the line that torchx starts: -- torchrun ... train.py",
    "poetry": '--python "$(poetry env info -e)" -- train.py',
}
"""Programs that cannot be honoured -> what to do."""
_CONDA = 'eval "$(conda shell.posix hook)" && conda activate {}'


def starts_ranks(word: str) -> bool:
    """Whether a word begins a start line that is no plain script."""
    program = posixpath.basename(word)
    own = program in (*LAUNCHERS, "srun", "mpirun", "mpiexec", "uv", "conda", "mamba")
    return own or bool(PYTHON.fullmatch(program))


def take_apart(words: Sequence[str]) -> StartLine:
    """
    The line's parts.  Raises UsageError for what cannot be honoured, with what to do instead.

    >>> take_apart("NCCL_DEBUG=INFO torchrun --nproc_per_node 8 train.py --lr 1".split()).nproc
    8
    """
    words, line = _unwrapped(words)
    found = start.take_apart(words)
    variables = VARIABLES | {"llamafactory": LLAMAFACTORY, "python": BY_HAND}.get(found.launcher, {})
    for name, value in found.env.items():
        if name in variables:
            line = _meant(line, variables[name], f"{name}={value}", value)
        else:
            line = replace(line, env={**line.env, name: value})
    launcher = found.launcher if found.launcher != "python" else ""
    for step in found.steps:
        line = _stepped(line, step, bool(launcher), words)
    left = list(itertools.dropwhile(start.ASSIGNED.match, words[found.at :]))
    program = posixpath.basename(left[0]) if left else ""
    if program in _INSTEAD:
        _refuse(" ".join(left[:2]), _INSTEAD[program])
    if launcher in OPTIONS:
        return _launched(replace(line, launcher=launcher), found, left)
    if launcher == "llamafactory":
        return _ending(replace(line, launcher=launcher), left[2:])
    if launcher == "axolotl":
        return _axolotl(line, left[2:])
    if launcher == "trl":
        return _trl(line, left[1:])
    if program in LAUNCHERS and not launcher:
        _refuse(" ".join(left[:2]), f"a job starts with `{program} {LAUNCHERS[program][1]}`")
    if PYTHON.fullmatch(program):
        return _interpreted(line, left)
    return _bare(line, left, program)


def _unwrapped(words: Sequence[str]) -> tuple[Sequence[str], StartLine]:
    """The words with those of a `bash -c TEXT` in its place, and what the text does before the launch."""
    found, line = start.take_apart(words), StartLine()
    last = found.steps[-1] if found.steps else None
    if found.text is None or last is None or last.program not in ("bash", "sh", "zsh", "dash", "ksh"):
        return words, line
    from ringup.launchfiles import model, shell

    job = shell.read("", found.text)
    launches = model.launches_of(job)
    if len(launches) != 1:
        _refuse(f"{last.program} -c", f"it starts {len(launches)} launchers; {_OF_SHELLS}")
    setup = []
    for command in job.commands[: job.commands.index(launches[0].command)]:
        texts = [job.marks.shown(text) for text in command.texts]
        if texts[0] == "cd" and len(texts) == 2:
            line = replace(line, chdir=texts[1])
        elif texts[0] in ("source", ".", "module", "conda", "ulimit"):
            setup.append(shlex.join(texts))
        elif texts[0] not in ("export", "set", "exec"):
            _refuse(texts[0], f"--setup takes a command that comes first; {_OF_SHELLS}")
    at = next(i for i, word in enumerate(words) if posixpath.basename(word) == last.program)
    env = [f"{name}={job.marks.shown(value)}" for name, value in launches[0].command.env.items()]
    inner = [job.marks.shown(text) for text in launches[0].command.texts]
    return [*env, *words[:at], *inner], replace(line, setup=" && ".join(setup))


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
    """The line with what a starter or wrapper in front of the launcher asks for."""
    program = posixpath.basename(step.program)
    if program in _BEFORE and not any(o.name in ("-u", "-C", "--unset", "--chdir") for o in step.options):
        return replace(line, replaced=(*line.replaced, (step.program, _BEFORE[program])))
    if program == "uv":
        if step.options:
            _refuse(
                f"uv run {step.options[0].written}", "`uv sync` makes that environment, then -- uv run ..."
            )
        return replace(line, python=".venv/bin/python", taken=(*line.taken, "uv run"))
    if program == "srun":
        return _srun(line, step, has_launcher)
    if program in ("mpirun", "mpiexec"):
        return _mpirun(line, step, has_launcher)
    name = step.option("-n", "--name", "-p", "--prefix")
    if program in ("conda", "mamba", "micromamba") and name:
        taken = f"{program} run {step.options[0].written}"
        return replace(line, setup=_CONDA.format(shlex.quote(name)), taken=(*line.taken, taken))
    at = next((i for i, w in enumerate(words) if posixpath.basename(w) == program), 0)
    raise UsageError(
        f"{' '.join(words[at : at + 2])}: cannot be honoured", hint=_INSTEAD.get(program, _AROUND)
    )


def _refuse(what: str, hint: str) -> NoReturn:
    raise UsageError(f"{what}: cannot be honoured", hint=hint)


def _ending(line: StartLine, left: Sequence[str]) -> StartLine:
    """The line with what is started, and its arguments."""
    if not left or not left[0].strip() or left[0].startswith("-"):
        what = f"{left[0]!r} is not a script" if left else "no training script was given"
        raise UsageError(what, hint="its own options go behind it: -- train.py --lr 0.1")
    line = replace(line, script=left[0], arguments=tuple(left[1:]))
    return _counted(line, LIGHTNING) if line.kind == "script" else line


LIGHTNING = {"--trainer.devices": "nproc", "--trainer.num_nodes": "nodes"}
"""Of LightningCLI's scripts; Lightning refuses to train with other counts."""
_PYTHON_OPTIONS: dict[str, dict[str, str]] = {
    "-u": {},  # ringup starts every rank so
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
    line = replace(line, python=python if "/" in python else line.python, env=env)
    if left[:1] != ["-m"]:
        return _ending(line, left)
    return _ending(replace(line, kind="module"), left[1:])


def _launched(line: StartLine, found: start.CommandLine, left: list[str]) -> StartLine:
    """The launcher's options, then the script."""
    kept: list[str] = []
    for option in found.options:
        name = option.written.split()[0].partition("=")[0]
        meaning = meaning_of(line.launcher, name)
        if not meaning or option.name == "--help":
            near = difflib.get_close_matches(option.name, OPTIONS[line.launcher], 1, 0.75)
            mean = "".join(f"did you mean {one}? " for one in near)
            _refuse(f"{line.launcher} {name}", f"{mean}options of the script go behind it: train.py --lr 0.1")
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
    if line.hosts and line.hostfile:
        line = _of_hostfile(line)
    if PYTHON.fullmatch(posixpath.basename(found.script)) and line.kind == "script":
        _refuse(
            f"{line.launcher} {found.script}", f"{line.launcher} wants the script itself: leave python out"
        )
    folder = posixpath.dirname(found.program) if not found.python else ""
    line = replace(line, python=line.python or (f"{folder}/python" if folder else ""))
    line = replace(line, launcher_arguments=(*line.launcher_arguments, *kept))
    return _ending(line, [found.script, *found.arguments] if found.script_at >= 0 else [])


def _of_hostfile(line: StartLine) -> StartLine:
    """DeepSpeed's --include of nodes that a host file has, too."""
    if "CUDA_VISIBLE_DEVICES" not in line.env:
        _refuse("--include without GPUs", f"-H {line.hosts} --nproc N, N as {line.hostfile} says")
    file = next(word for word in line.taken if "hostfile" in word or word.startswith("-H"))
    taken = tuple(word for word in line.taken if word != file)
    return replace(
        line, hostfile="", taken=taken, replaced=(*line.replaced, (file, "--include names the nodes"))
    )


def _meant(line: StartLine, meaning: str, written: str, value: str) -> StartLine:
    """The line with one option taken over, replaced or refused."""
    if meaning in REFUSED:
        _refuse(written, REFUSED[meaning])
    if meaning in REPLACED:
        return replace(line, replaced=(*line.replaced, (written, REPLACED[meaning])))
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
        return replace(line, replaced=(*line.replaced, (written, REPLACED["counted"])))
    elif meaning == "port" and value.startswith("$"):
        return replace(line, replaced=(*line.replaced, (written, "ringup finds a free port")))
    elif meaning in (*COUNTS, "port"):
        low, _, high = value.partition(":")
        if high and low != high:
            _refuse(written, f"say how many nodes: --nodes {high}")
        if not low.isascii() or not low.isdigit() or not int(low):
            raise UsageError(f"{written}: {value!r} is not a number", hint="write the number in its place")
        if meaning == "nodes" and int(low) == 1:
            return replace(line, nodes=1, replaced=(*line.replaced, (written, REPLACED["one node"])))
        found = {meaning: int(low)}
    return replace(line, taken=(*line.taken, written), **found)


def _included(line: StartLine, written: str, value: str) -> dict[str, Any]:
    """DeepSpeed's `NODE[:GPU,...][@NODE...]`, where every node has the same GPUs."""
    parts = [part.partition(":") for part in value.split("@")]
    names, gpus = [name for name, _, _ in parts], {slots for _, _, slots in parts}
    if len(gpus) > 1 or not all(names):
        _refuse(written, "name the nodes with -H: the GPUs must be the same on every node")
    env = {"CUDA_VISIBLE_DEVICES": slots, **line.env} if (slots := gpus.pop()) else line.env
    return {"hosts": "" if names == ["localhost"] else ",".join(names), "env": env}


def _axolotl(line: StartLine, left: list[str]) -> StartLine:
    """`axolotl train CONFIG [--launcher NAME] ARGS [-- launcher's options]`: its module under it."""
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


def _counted(line: StartLine, counts: Mapping[str, str]) -> StartLine:
    """Counts among the arguments that a trainer compares with the ranks there are; they stay arguments."""
    for word, following in itertools.pairwise([*line.arguments, ""]):
        name, equals, value = word.partition("=")
        value = value if equals else following
        if name in counts and (value.isdigit() or value == "auto"):
            line = _meant(line, counts[name], word if equals else f"{name} {value}", value)
    return line


def _litgpt(line: StartLine) -> StartLine:
    """`litgpt finetune MODEL --devices 4`: finetuning has one GPU where nothing is said (finetune/*.py)."""
    kind = (*line.arguments, "")[0]
    if not kind.startswith(("finetune", "pretrain")):
        _refuse(f"litgpt {kind}", "a job starts with `litgpt finetune` or `litgpt pretrain`")
    is_said = any(word.startswith(("--devices", "--config")) for word in line.arguments)
    line = line if is_said or kind == "pretrain" else replace(line, nproc=1)
    return _counted(line, {"--devices": "nproc", "--num_nodes": "nodes"})


TRL_OWN = ("--gradient_accumulation_steps", "--debug", "--log_dir", "--env", "--role", "--quiet", "--tee")
"""Names that accelerate has, too; trl reads them first."""


def _trl(line: StartLine, left: list[str]) -> StartLine:
    """`trl sft ARGS`: trl's script under accelerate, whose options may stand anywhere among the arguments."""
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
                _refuse(
                    f"{name} {value}",
                    "name the file: --accelerate_config .../trl/accelerate_configs/zero2.yaml",
                )
            own += ["--config_file", value]
        elif name not in TRL_OWN and (meaning := OPTIONS["accelerate"].get(name.replace("_", "-"))):
            own += [word] if equals or meaning.endswith("=") else [word, next(words, "")]
        else:
            kept.append(word)
    words_of_it = ["accelerate", *own, "-m", f"trl.scripts.{left[0]}", *kept]
    return _started(replace(line, launcher="accelerate"), words_of_it)


def _started(line: StartLine, words: list[str]) -> StartLine:
    """The line with a launcher's words that another program would make."""
    words = ["accelerate", "launch", *words[1:]] if words[0] == "accelerate" else words
    return _launched(line, start.take_apart(words), words)


SINGLE, NOT_STARTED = ("NO", "no", "false"), ("MULTI_CPU", "XLA", "TPU", "AMAZON_SAGEMAKER")
UNSAID = {"main_process_port": "0", "rdzv_backend": "static", "gpu_ids": "all", "num_processes": "-1"}
"""Values in accelerate's file that ask for nothing."""


def configured(line: StartLine, settings: Sequence[tuple[str, str]]) -> StartLine:
    """
    The line with what accelerate's file says about counts, addresses and nodes, where the line says nothing.

    `taken` and `replaced` of the answer are those of the file alone.  Raises UsageError as `take_apart` does.
    """
    known, said = OPTIONS["accelerate"], dict(settings)
    kinds = said.get("distributed_type", ""), said.get("compute_environment", "")
    for kind, why in ((k, "mpirun" if k == "MULTI_CPU" else "tpu") for k in kinds if k in NOT_STARTED):
        _refuse(f"{line.config}: {kind}", REFUSED[why])
    single = kinds[0] in SINGLE
    given: dict[str, object] = {
        "nodes": line.nodes,
        "world_size": line.world_size or single,
        "port": line.port,
    }
    given |= {
        "rendezvous": line.rendezvous,
        "hostfile": line.hostfile or line.hosts,
        "gpus": "CUDA_VISIBLE_DEVICES" in line.env,
    }
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


_SRUN = {
    "--nodes": "nodes",
    "-N": "nodes",
    "--ntasks-per-node": "nproc",
    "--ntasks": "world_size",
    "-n": "world_size",
}
SCHEDULED = {
    **dict.fromkeys(("-p", "--partition"), "queue"),
    **dict.fromkeys(("-A", "--account"), "account"),
    **dict.fromkeys(("-t", "--time"), "time"),
    **dict.fromkeys(("-J", "--job-name"), "name"),
    **dict.fromkeys(("-c", "--cpus-per-task"), "cpus"),
    **dict.fromkeys(("--gres", "--gpus-per-node", "--gpus-per-task"), "gpus"),
}
"""srun's options that a job file has; in a running allocation they are decided."""
_SRUN_ENDS = ("-l", "--label", "-u", "--unbuffered", "-K", "-K1", "--kill-on-bad-exit", "--wait", "-W")
_SRUN_OWN = ("--export", "--mpi", "-o", "--output", "-e", "--error", "--overlap", "--exact", "--jobid", "-v")
ENDS_TOGETHER = "ringup labels every line, and a rank that fails ends the others"
_NODES_ITSELF = "ringup starts on every node itself"


def _srun(line: StartLine, step: start.Step, has_launcher: bool) -> StartLine:
    """srun's counts; a launcher inside it counts its own ranks."""
    line = replace(line, replaced=(*line.replaced, ("srun", _NODES_ITSELF)))
    for option in step.options:
        name = option.name.partition("=")[0]
        if name in SCHEDULED:
            line = replace(
                line, scheduled={**line.scheduled, option.written: (SCHEDULED[name], option.value)}
            )
        elif name in _SRUN_ENDS:
            line = replace(line, replaced=(*line.replaced, (option.written, ENDS_TOGETHER)))
        elif name in _SRUN_OWN and option.value in ("", "ALL", "none", "pmi2", "pmix") + (option.value,) * (
            name != "--export"
        ):
            line = replace(line, replaced=(*line.replaced, (option.written, _NODES_ITSELF)))
        elif name in ("-w", "--nodelist"):
            line = _meant(line, "hosts", option.written, option.value)
        elif name not in _SRUN:
            _refuse(f"srun {name}", "leave srun out: ringup starts on every node of the allocation")
        elif name in ("--nodes", "-N") or not has_launcher:
            line = _meant(line, _SRUN[name], option.written, option.value)
        else:
            line = replace(
                line, replaced=(*line.replaced, (option.written, "ringup starts one launcher per node"))
            )
    return line


_MPI = {
    **dict.fromkeys(("-np", "--np", "-n", "--n"), "world_size"),
    **dict.fromkeys(("-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost"), "nproc"),
    **dict.fromkeys(("-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f"), "hostfile"),
}
_MPI_HOSTS = ("-H", "--host", "-host", "--hosts", "-hosts")
_WITHOUT_MPI = "ringup starts the ranks itself, without MPI"


def _mpirun(line: StartLine, step: start.Step, has_launcher: bool) -> StartLine:
    """
    The hosts and counts of mpirun; -x becomes variables.

    The ranks of a plain script then get RANK, WORLD_SIZE and LOCAL_RANK in place of OMPI_COMM_WORLD_*.
    """
    line = replace(line, replaced=(*line.replaced, (step.program, _WITHOUT_MPI)))
    if not has_launcher:
        line = replace(line, launcher="python")
    for option in step.options:
        mapped = re.fullmatch(r"ppr:(\d+):node", option.value) if option.name.endswith("map-by") else None
        if option.name in _MPI_HOSTS:
            line = _mpi_hosts(line, option.written, option.value)
        elif option.name == "-x":
            name, equals, value = option.value.partition("=")
            line = (
                replace(line, env={**line.env, name: value})
                if equals
                else replace(line, forwarded=(*line.forwarded, name))
            )
        elif option.name in _MPI or mapped:
            meaning, value = ("nproc", mapped[1]) if mapped else (_MPI[option.name], option.value)
            if has_launcher and meaning in ("world_size", "nproc"):
                meaning = "nodes" if meaning == "world_size" else ""
            if meaning:
                line = _meant(line, meaning, option.written, value)
            elif value != "1":
                _refuse(
                    option.written, "each of these would start a launcher: one a node, --map-by ppr:1:node"
                )
            else:
                line = replace(line, replaced=(*line.replaced, (option.written, _WITHOUT_MPI)))
        else:
            line = replace(line, replaced=(*line.replaced, (option.written, _WITHOUT_MPI)))
    return line


def _mpi_hosts(line: StartLine, written: str, value: str) -> StartLine:
    """`a:4,b:4`: the nodes, and how many ranks each gets."""
    names, counts = zip(*(part.partition(":")[::2] for part in value.split(",")), strict=True)
    if len(set(counts)) > 1:
        _refuse(written, "the same number of slots on every node, or --hostfile with slots=N")
    line = _meant(line, "hosts", written, ",".join(names))
    return replace(line, nproc=int(counts[0])) if counts[0].isdecimal() and not line.nproc else line
