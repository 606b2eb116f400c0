"""
A start line as people paste it, taken apart: `torchrun --nproc_per_node 8 train.py`, `python -m pkg.train`.

An option that ringup has becomes ringup's; what ringup decides itself (node rank, master address, rendezvous)
is named with the reason; what concerns the launcher alone is handed on to it; anything else is an error.  No
word of a line is dropped in silence.

Sources of the options: torch 2.13 `distributed/run.py` and `launch.py`, accelerate 1.15 `commands/launch.py`,
DeepSpeed 0.19.8 `launcher/runner.py`, ColossalAI 0.5 `cli/launcher/__init__.py`, axolotl 0.13 `cli/main.py`,
trl 0.24 `cli.py`.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from ringup.errors import UsageError

Kind = Literal["script", "module", "command"]


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


# -- the options of the launchers -----------------------------------------------------------------

FLAG, PASSED = "flag", "passed"
"""Options that the launcher itself is given, without and with a value."""
REPLACED = {
    "address": "ringup takes the head's address on the network that all nodes reach",
    "rank": "ringup gives each node its rank",
    "rendezvous id": "ringup writes the rendezvous: one id per run, the head as host",
    "logs": "ringup keeps a log file per rank: --log-dir",
    "ssh": "ringup reaches the nodes itself",
    "kind": "ringup starts one rank per GPU, on one node or several",
    "one node": "the nodes are those that ringup is given",
}
REFUSED = {
    "tpu": "ringup starts no TPU and no SageMaker jobs",
    "nodes only": "name the nodes with -H, and the GPUs with --env CUDA_VISIBLE_DEVICES=...",
    "ssh options": "write them into a file for --ssh-config",
    "setup": "--setup 'source FILE' does this",
    "own start": "leave it out: ringup starts the script itself",
    "mpirun": "say MULTI_GPU there: ringup starts accelerate on CPUs, too, and without mpirun",
}
_TORCHRUN = {
    "nodes": "nnodes",
    "nproc": "nproc-per-node",
    "port": "master-port",
    "rendezvous": "rdzv-backend",
    "restarts": "max-restarts",
    "address": "rdzv-endpoint master-addr local-addr",
    "rank": "node-rank",
    "rendezvous id": "rdzv-id rdzv-conf standalone=",
    "logs": "log-dir redirects tee",
    "own start": "run-path= logs-specs",
    "kind of script": "module= no-python=",
    FLAG: "virtual-local-rank use-env help",
    PASSED: "monitor-interval start-method event-log-handler role local-ranks-filter numa-binding"
    " duplicate-stdout-filters duplicate-stderr-filters signals-to-handle shutdown-timeout",
}
_ACCELERATE = {
    "nodes": "num-machines",
    "world_size": "num-processes",
    "port": "main-process-port",
    "rendezvous": "rdzv-backend",
    "restarts": "max-restarts",
    "gpus": "gpu-ids",
    "hostfile": "deepspeed-hostfile",
    "address": "main-process-ip",
    "rank": "machine-rank",
    "rendezvous id": "rdzv-conf",
    "logs": "log-dir tee",
    "ssh": "same-network= deepspeed-multinode-launcher",
    "kind": "multi-gpu=",
    "tpu": "tpu= tpu-cluster= tpu-use-sudo= vm aws-access-key-id aws-secret-access-key",
    "own start": "mpirun-hostfile deepspeed-inclusion-filter deepspeed-exclusion-filter",
    "kind of script": "module= no-python=",
    FLAG: "quiet cpu enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic use-deepspeed use-fsdp"
    " dynamo-use-regional-compilation use-parallelism-config use-megatron-lm no-tpu-cluster downcast-bf16"
    " fp8-use-autocast-during-eval debug help",
    PASSED: "config-file mixed-precision num-cpu-threads-per-process dynamo-backend dynamo-mode role"
    " zero-stage monitor-interval env main-training-function deepspeed-config-file offload-optimizer-device"
    " offload-param-device offload-optimizer-nvme-path offload-param-nvme-path gradient-accumulation-steps"
    " gradient-clipping zero3-init-flag zero3-save-16bit-model deepspeed-moe-layer-cls-names",
}
_DEEPSPEED = {
    "nodes": "num-nodes",
    "nproc": "num-gpus num-accelerators",
    "port": "master-port",
    "hostfile": "hostfile",
    "include": "include",
    "address": "master-addr",
    "rank": "node-rank",
    "ssh": "launcher no-ssh= no-ssh-check= force-multi=",
    "logs": "enable-each-rank-log log-level quiet= save-pid=",
    "nodes only": "exclude",
    "ssh options": "ssh-port launcher-args",
    "setup": "venv-script",
    "own start": "autotuning",
    "kind of script": "module= no-python=",
    FLAG: "no-local-rank bind-cores-to-rank help",
    PASSED: "bind-core-list",
}
_COLOSSALAI = {
    "hosts": "host",
    "hostfile": "hostfile",
    "nodes": "num-nodes",
    "nproc": "nproc-per-node",
    "port": "master-port",
    "address": "master-addr",
    "nodes only": "include exclude",
    "ssh options": "ssh-port",
    "own start": "extra-launch-args",
    "kind of script": "module=",
    FLAG: "help",
}


def _by_option(table: Mapping[str, str]) -> dict[str, str]:
    """Option -> its meaning, a `=` behind it where it takes no value."""
    found = {}
    for meaning, names in table.items():
        for name in names.split():
            is_flag = meaning == FLAG or name.endswith("=")
            found["--" + name.rstrip("=")] = meaning + "=" * is_flag
    return found


OPTIONS = {
    "torchrun": _by_option(_TORCHRUN),
    "launch": _by_option(_TORCHRUN),
    "accelerate": _by_option(_ACCELERATE),
    "deepspeed": _by_option(_DEEPSPEED),
    "colossalai": _by_option(_COLOSSALAI),
}
"""Launcher -> option, dashes for underscores -> meaning."""
SHORT = {
    "-m": "--module",
    "-r": "--redirects",
    "-t": "--tee",
    "-q": "--quiet",
    "-i": "--include",
    "-h": "--help",
}
SHORT |= {"-e": "--exclude", "-H": "--host"}
TRAINING = ("--fsdp-", "--megatron-lm-", "--fp8-", "--parallelism-config-")
"""How accelerate's options with a value begin that concern the training alone."""


VARIABLES = {
    "MASTER_ADDR": "address",
    "MASTER_PORT": "port",
    "NODE_RANK": "rank",
    "RANK": "rank",
    "FORCE_TORCHRUN": "kind",
    "RDZV_ID": "rendezvous id",
}
"""Variables in front of a line that mean what an option means."""
LLAMAFACTORY = {"NNODES": "nodes", "NPROC_PER_NODE": "nproc"}


def meaning_of(launcher: str, written: str) -> str:
    """What an option means to its launcher, which takes short forms and unique beginnings; "" for none."""
    options = OPTIONS[launcher]
    name = SHORT.get(written, written.replace("_", "-"))
    if not name.startswith("--"):
        return ""
    found = [name] if name in options else [one for one in options if one.startswith(name)]
    if launcher == "accelerate" and name not in options and name.startswith(TRAINING):
        return PASSED
    return options[found[0]] if len(found) == 1 else ""


# -- a line --------------------------------------------------------------------------------------

_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_COMMAND = re.compile(r"[A-Za-z][\w-]{0,63}")
_PYTHON = re.compile(r"(?:python|pypy)(?:\d(?:\.\d+)?)?t?")
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
_PROGRAMS = {
    "torchrun": "",
    "accelerate": "launch",
    "accelerate-launch": "",
    "deepspeed": "",
    "colossalai": "run",
}
"""Program -> the subcommand that starts a job."""
_BEFORE = {
    "nohup": "--detach lets a run go on without this terminal",
    "setsid": "--detach lets a run go on without this terminal",
    "time": "run.json has the times",
    "exec": "ringup starts the ranks",
    "env": "ringup sets the variables",
}
_OF_SHELLS = "give the line in it that starts the ranks; --no-python in front starts it once per rank"
_INSIDE = "give the line behind the image, where ringup runs in it; `ringup script docker` writes job files"
_INSTEAD = {
    **dict.fromkeys(("bash", "sh", "zsh", "source"), _OF_SHELLS),
    **dict.fromkeys(("docker", "podman", "singularity", "apptainer", "enroot"), _INSIDE),
    **dict.fromkeys(
        ("pipenv", "pdm", "hatch", "pixi"), "--python PATH of that environment, then -- train.py"
    ),
    "make": "give the line that make runs: `make -n` prints it",
    "sudo": "run ringup itself as that user",
    "ssh": "name the nodes with -H, and give the line behind ssh",
    "kubectl": "`ringup script k8s-job` writes a job, `--pods` runs inside one",
    "mpirun": "give the line behind mpirun: ringup starts it once per rank",
    "mpiexec": "give the line behind mpiexec: ringup starts it once per rank",
    "horovodrun": "ringup starts no Horovod jobs",
    "ray": "start Ray itself; `ringup check` and `ringup logs` work beside it",
    "sbatch": "`ringup run --slurm -- train.py`, or `ringup lint FILE`",
    "tune": "`tune cp RECIPE RECIPE.py`, then -- torchrun --nproc_per_node 8 RECIPE.py --config FILE.yaml",
    "fabric": "write its options into Fabric(...), then -- train.py",
    "conda": "--setup 'conda activate NAME' -- train.py",
    "poetry": '--python "$(poetry env info -e)" -- train.py',
}
"""Programs that cannot be honoured -> what to do."""


def starts_ranks(word: str) -> bool:
    """Whether a word begins a start line that is no plain script."""
    program = posixpath.basename(word)
    own = program in (*_PROGRAMS, "llamafactory-cli", "lmf", "axolotl", "trl", "srun", "uv")
    return own or bool(_PYTHON.fullmatch(program))


def take_apart(words: Sequence[str]) -> StartLine:
    """
    The line's parts.  Raises UsageError for what cannot be honoured, with what to do instead.

    >>> take_apart("NCCL_DEBUG=INFO torchrun --nproc_per_node 8 train.py --lr 1".split()).nproc
    8
    """
    line, left = StartLine(), list(words)
    variables = VARIABLES | (LLAMAFACTORY if "llamafactory-cli" in left else {})
    while left:
        program = posixpath.basename(left[0])
        if _ASSIGNED.match(left[0]):
            name, _, value = left[0].partition("=")
            if name in variables:
                line = _meant(line, variables[name], left.pop(0), value)
            else:
                line, left = replace(line, env={**line.env, name: value}), left[1:]
        elif program in _BEFORE:
            line = replace(line, replaced=(*line.replaced, (left.pop(0), _BEFORE[program])))
        elif left[:2] == ["uv", "run"]:
            line, left = replace(line, python=".venv/bin/python", taken=(*line.taken, "uv run")), left[2:]
        elif program == "srun":
            line, left = _srun(line, left[1:])
        else:
            break
    program = posixpath.basename(left[0]) if left else ""
    if program in _INSTEAD:
        _refuse(" ".join(left[:2]), _INSTEAD[program])
    if program in _PROGRAMS:
        own = _PROGRAMS[program]
        if own and left[1:2] != [own]:
            _refuse(" ".join(left[:2]), f"a job starts with `{program} {own}`")
        return _launched(replace(line, launcher=program.removesuffix("-launch")), left[2 if own else 1 :])
    if _PYTHON.fullmatch(program):
        return _interpreted(line, left)
    if program in ("llamafactory-cli", "lmf", "axolotl") and left[1:2] != ["train"]:
        _refuse(" ".join(left[:2]), f"a job starts with `{program} train`")
    if program in ("llamafactory-cli", "lmf"):
        return _ending(replace(line, launcher="llamafactory"), left[2:])
    if program == "axolotl":
        return _axolotl(line, left[2:])
    if program == "trl":
        return _trl(line, left[1:])
    if left[:1] == ["-m"]:
        return _ending(replace(line, kind="module"), left[1:])
    if left[:1] in (["--no-python"], ["--no_python"]):
        return _ending(replace(line, kind="command"), left[1:])
    if program.endswith(".sh"):
        _refuse(left[0], _OF_SHELLS)
    is_command = bool(left and _COMMAND.fullmatch(left[0]))
    line = _ending(replace(line, kind="command" if is_command else "script"), left)
    return _litgpt(line) if program == "litgpt" else line


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
    if left[1:2] and left[1] in _MODULES:
        return _launched(replace(line, launcher=_MODULES[left[1]]), left[2:])
    return _ending(replace(line, kind="module"), left[1:])


def _launched(line: StartLine, left: list[str]) -> StartLine:
    """The launcher's options, read as it would read them, then the script."""
    kept: list[str] = []
    while left and left[0].startswith("-"):
        written = left.pop(0)
        if written == "--":
            break
        name, equals, value = written.partition("=")
        meaning = meaning_of(line.launcher, name)
        if not meaning or name in ("-h", "--help"):
            _refuse(f"{line.launcher} {name}", "options of the script go behind it: train.py --lr 0.1")
        is_flag = meaning.endswith("=")
        if not is_flag and not equals:
            if not left:
                raise UsageError(f"{name} needs a value", hint=f"{name} VALUE train.py")
            value = left.pop(0)
            written = f"{name} {value}"
        if meaning.startswith("kind of script"):
            line = replace(line, kind="command" if "python" in name else "module")
        elif meaning.rstrip("=") in (FLAG, PASSED):
            kept += [name] if is_flag else [name, value]
        else:
            line = _meant(line, meaning.rstrip("="), written, value)
        if line.launcher == "accelerate" and name.replace("_", "-") == "--config-file":
            line = replace(line, config=value)
    if line.hosts and line.hostfile:
        line = _of_hostfile(line)
    return _ending(replace(line, launcher_arguments=(*line.launcher_arguments, *kept)), left)


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
    elif meaning in ("nodes", "nproc", "world_size", "port"):
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
    return _launched(replace(line, launcher=launcher), [*own, *words])


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
    return _launched(replace(line, launcher="accelerate"), [*own, "-m", f"trl.scripts.{left[0]}", *kept])


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


_SRUN_ENDS = ("-l", "--label", "-u", "--unbuffered", "-K", "-K1", "--kill-on-bad-exit", "--wait")
ENDS_TOGETHER = "ringup labels every line, and a rank that fails ends the others"


def _srun(line: StartLine, left: list[str]) -> tuple[StartLine, list[str]]:
    """srun's counts; a launcher inside it counts its own ranks."""
    counts = []
    line = replace(line, replaced=(*line.replaced, ("srun", "ringup starts on every node itself")))
    while left and left[0].startswith("-"):
        written = left.pop(0)
        name, equals, value = written.partition("=")
        if name in _SRUN_ENDS:
            line = replace(line, replaced=(*line.replaced, (written, ENDS_TOGETHER)))
            continue
        if name not in _SRUN:
            _refuse(f"srun {name}", "leave srun out: ringup starts on every node of the allocation")
        if not equals:
            value = left.pop(0) if left else ""
            written += f" {value}"
        counts.append((_SRUN[name], written, value))
    for meaning, written, value in counts:
        if meaning == "nodes" or not any(
            posixpath.basename(w) in _PROGRAMS or w in _MODULES for w in left[:4]
        ):
            line = _meant(line, meaning, written, value)
        else:
            line = replace(line, replaced=(*line.replaced, (written, "ringup starts one launcher per node")))
    return line, left
