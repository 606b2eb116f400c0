"""The nodes and the job of a command line."""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ringup import hosts as hosts_module
from ringup.cli import options
from ringup.cli.text_files import read_text
from ringup.errors import NodesError, UsageError
from ringup.jobfiles import BATCH, PODS
from ringup.launchfiles.programs import OPTIONS, meaning_of
from ringup.launchfiles.settings_file import settings
from ringup.launchfiles.start import Kind, starts_ranks
from ringup.model import Host, Job
from ringup.output.terminal import path_shown, say
from ringup.planning.launchers import LAUNCHERS
from ringup.planning.start_line import NODES_ITSELF, StartLine, configured, take_apart
from ringup.secrets import holds_secret
from ringup.transport import Transport
from ringup.transport.interpreters import default_interpreter
from ringup.units import assignment, printable, summarize_names

_WITH = f"launcher that starts the ranks: {', '.join(LAUNCHERS)} (auto: as the script asks)"
LAUNCHER = options.value("--with", "LAUNCHER", _WITH, "auto", dest="launcher", choices=("auto", *LAUNCHERS))


def named(args: argparse.Namespace) -> list[str]:
    return [name for name in options.NODE_OPTIONS if getattr(args, name) is not None]


def nodes_from(args: argparse.Namespace) -> tuple[Host, ...]:
    """The nodes of the command line or the allocation; else this machine.  Raises UsageError, NodesError."""
    found, path = _named_nodes(args), getattr(args, "exclude_from", None)
    if not path:
        return found
    text = re.sub("#.*", "", read_text(path, 1 << 22))
    lines = filter(None, (line.strip(" \t\r,") for line in text.split("\n")))
    bad = {host.name for line in lines for host in _expanded(path, line)}
    left = tuple(host for host in found if host.name not in bad)
    if not left:
        raise UsageError(f"--exclude-from {path} leaves no node", hint="name more nodes, or edit the file")
    if len(left) < len(found):
        out = summarize_names(host.name for host in found if host.name in bad)
        say(f"ringup: left out by {path_shown(path)}: {out}", quiet=getattr(args, "quiet", False))
    return left


def _expanded(path: str, words: str) -> tuple[Host, ...]:
    try:
        return hosts_module.expand(re.sub(r"[\s,]+", ",", words))
    except NodesError as error:
        raise UsageError(f"--exclude-from {path_shown(path)}: {error}", hint=error.hint) from error


def _named_nodes(args: argparse.Namespace) -> tuple[Host, ...]:
    given = named(args)
    if len(given) > 1:
        hint = "give one of -H, --hostfile, --local"
        raise UsageError(f"--{given[0]} and --{given[1]} both name the nodes", hint=hint)
    try:
        if args.hosts is not None:
            found = hosts_module.expand(args.hosts, allow_groups=args.groups)
            return hosts_module.of_allocation(found, os.environ)
        if args.hostfile is not None:
            # /dev/zero has no end.
            return hosts_module.read_hostfile(read_text(args.hostfile, hosts_module.LONGEST_HOSTFILE + 1))
        if args.local is not None:
            return hosts_module.local_nodes(args.local)
    except NodesError as error:
        of_file = f"--hostfile {path_shown(args.hostfile)}: " if args.hostfile is not None else ""
        raise UsageError(f"{of_file}{error}", hint=error.hint) from error
    allocated = hosts_module.from_allocation(os.environ)
    for note in hosts_module.notes(os.environ) if allocated else ():
        say(f"note: {note}", quiet=args.quiet)
    return allocated or hosts_module.this_machine()


def open_transport(args: argparse.Namespace, python: str = "") -> Transport:
    """The transport to the nodes: pods that joined, else the named nodes; `python` runs our programs."""
    pods = getattr(args, "pods", None)
    if pods is not None:
        return Transport(pods.hosts, pods=pods)
    if getattr(args, "no_forward", False):  # nodes on this machine, and srun, would inherit them
        for name in exported(getattr(args, "launcher", "") or ""):
            del os.environ[name]
    return Transport(nodes_from(args), ssh_config=args.ssh_config, python=python)


def hint_python(problems: Iterable[str], args: argparse.Namespace) -> None:
    if any("no python3 on this node" in problem for problem in problems):
        say("hint: --python PATH names a Python (3.8 or newer) that the node has", quiet=args.quiet)


FORWARDED = (
    *("NCCL_", "GLOO_", "TORCH", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "UCX_", "FI_"),
    *("HF_", "TRANSFORMERS_", "WANDB_"),
)
FOR_LAUNCHER = {"accelerate": ("ACCELERATE_",), "deepspeed": ("DEEPSPEED_", "DS_"), "jax": ("JAX_", "XLA_")}
OF_ONE_NODE = (
    *("CUDA_VISIBLE_DEVICES", "NCCL_HOSTID", "TORCHELASTIC_", "JAX_PROCESS_ID", "JAX_COORDINATOR"),
    *("CUDA_VERSION", "NCCL_VERSION"),
)
"""
Prefixes of names whose values belong to one node or rank.

NVIDIA's CUDA images set the last two: they describe the image, and no library reads them.
"""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def forwarded(args: argparse.Namespace, launcher: str) -> dict[str, str]:
    """The exported variables that are forwarded to every node, and for DeepSpeed those of .deepspeed_env."""
    if getattr(args, "no_forward", True) or getattr(args, "from_file", None):
        return {}
    found = exported(launcher)
    # NAME=VALUE lines of .deepspeed_env in the home directory and then here, as in runner.py.
    for file in deepspeed_files() if launcher == "deepspeed" else ():
        for line in read_text(str(file), 1 << 16).splitlines():
            name, equals, value = line.strip().partition("=")
            if equals and _NAME.fullmatch(name):
                found[name] = value
    return found


def exported(launcher: str) -> dict[str, str]:
    names = (*FORWARDED, *FOR_LAUNCHER.get(launcher, ()))
    found = {n: v for n, v in os.environ.items() if n.startswith(names) and not n.startswith(OF_ONE_NODE)}
    return {name: value for name, value in found.items() if _NAME.fullmatch(name)}


def deepspeed_files() -> list[Path]:
    name = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
    return [file for file in (Path.home() / name, Path(name)) if file.is_file()]


def show_forwarded(args: argparse.Namespace, job: Job) -> None:
    """One line with the variables that were forwarded; the values of secrets are hidden."""
    found = {n: v for n, v in forwarded(args, job.launcher).items() if job.env.get(n) == v}
    shown = [n if holds_secret(n, v) else assignment(n, printable(v, 80)) for n, v in sorted(found.items())]
    if shown:
        files = [path_shown(file) for file in deepspeed_files()] if job.launcher == "deepspeed" else []
        read = f", with those of {' and '.join(files)}" if files else ""
        words = f"forwarded to the nodes: {', '.join(shown)}{read} (--no-forward: none)"
        say(f"ringup: {words}", quiet=args.quiet)


def show_ignored(args: argparse.Namespace, job: Job) -> None:
    """One line with the exported variables that are ignored because `--from` contacts no node."""
    ignored = sorted(n for n, v in exported(job.launcher).items() if job.env.get(n) != v)
    if ignored and not getattr(args, "no_forward", True):
        words = f"exported here and ignored, since --from judges saved facts: {summarize_names(ignored)}"
        say(f"ringup: {words} (--env NAME takes one)", quiet=getattr(args, "quiet", False))


def environment_from(pairs: list[str]) -> dict[str, str]:
    """`--env NAME=VALUE` as a mapping; NAME alone takes the value from here.  Raises UsageError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not _NAME.fullmatch(name):
            raise UsageError(f"--env {name!r} is not NAME=VALUE", hint="for example --env NCCL_DEBUG=INFO")
        if not equals and name not in os.environ:
            hint = "export it first, or write its value: --env NAME=VALUE"
            raise UsageError(f"--env {name} names a variable that is not set here", hint=hint)
        if "\0" in value:
            raise UsageError(f"--env {name}: a value cannot hold a NUL byte", hint="leave it out")
        found[name] = value if equals else os.environ[name]
    return found


OWN = (
    *("nodes", "nproc", "world_size", "port", "rendezvous", "rendezvous id", "restarts", "address", "rank"),
    *("hosts", "hostfile", "include", "nodes only", "gpus"),
)
"""Meanings of launcher options that ringup sets itself."""


def launcher_words(text: str, launcher: str = "") -> tuple[str, ...]:
    """`--launcher-args` as a list.  Raises UsageError for an open quote or an option of ringup."""
    words = _split("--launcher-args", text)
    if words and not words[0].startswith("-"):
        hint = "words of the script go behind it: -- train.py --lr 0.1"
        raise UsageError(f"--launcher-args {words[0]}: the launcher's options begin with --", hint=hint)
    for word in words if launcher in OPTIONS else ():
        name = word.partition("=")[0]
        if name.startswith("-") and meaning_of(launcher, name).rstrip("=") in OWN:
            own = "--nodes, --nproc, --master-port, --rdzv, --max-restarts and -H"
            hint = f"leave it out; {own} are ringup's options"
            raise UsageError(f"--launcher-args {name}: ringup sets this option itself", hint=hint)
    return words


def _split(option: str, text: str) -> tuple[str, ...]:
    """An option's arguments, quoted as in a shell.  Raises UsageError."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        hint = "quote it as in a shell: '--a 1 --b \"x y\"'"
        raise UsageError(f"{option} {text!r}: {error}", hint=hint) from error


# -- the script ----------------------------------------------------------------------------------

KINDS: dict[str, Kind] = {"-m": "module", "--no-python": "command"}
"""Option before a script that is not a file -> its kind."""


def script_words(args: argparse.Namespace, usage: str = "ringup run [options] -- train.py ARGS") -> list[str]:
    """
    The script and its arguments; an option of KINDS comes first if the script is not a file.

    A launcher's start line is parsed: its options go into `args`, and a line on stderr reports it.  Raises
    UsageError without a script, and for options that cannot be honoured.
    """
    if not args.script:
        raise UsageError("no training script was given", hint=usage)
    if "\0" in "".join(args.script):
        raise UsageError(f"{args.script[0]!r} is not a script", hint=usage)
    text = args.script[0]
    if len(args.script) == 1 and len(text.split()) > 1 and not os.path.lexists(Path(args.chdir or "", text)):
        from ringup.launchfiles import files

        if files.read("-", text).launches or "\n" in text or any(map(starts_ranks, text.split())):
            args.script = ["bash", "-c", text]  # the whole line, or several, in quotes
    is_short = getattr(args, "launcher", "") == "llamafactory" and args.script[0] == "train"
    line = take_apart(["llamafactory-cli"] * is_short + args.script)
    take_over(args, line)
    args.script = [line.script, *line.arguments]
    named = Path(args.chdir or "", line.script)
    is_there = line.kind != "module" and os.path.lexists(named)
    if is_there and named.is_dir() and not (named / "__main__.py").is_file():
        hint = f"name a script: -- {line.script.rstrip('/')}/train.py"
        raise UsageError(f"{line.script} is a directory", hint=hint)
    kind = [word for word, kind in KINDS.items() if kind == line.kind]
    return [*kind, line.script, *line.arguments]


def take_over(args: argparse.Namespace, line: StartLine) -> None:
    """Put a start line's options into `args`.  Raises UsageError if the command line contradicts them."""
    line = _with_files(args, line)
    kind, is_launch = getattr(args, "kind", ""), line.launcher == "launch"
    if kind in (*BATCH, *PODS) and (line.hosts or line.hostfile) and not named(args):
        line = _only_counted(args, line)
    by_srun = ("srun", NODES_ITSELF)
    if kind == "slurm" and args.launcher == "auto" and not line.launcher and by_srun in line.replaced:
        args.launcher = "python"  # one process a task: the script may read Slurm's variables of each
        line = replace(line, replaced=tuple(one for one in line.replaced if one != by_srun))
    _agree(args, "launcher", "--with", line.launcher or None, ("auto", "torchrun" if is_launch else ""))
    if not named(args):
        args.hosts, args.hostfile = line.hosts or None, line.hostfile or None
    elif line.hosts or line.hostfile:
        what = f"--{named(args)[0]} and the start line both name the nodes"
        raise UsageError(what, hint="leave one of them out")
    _agree(args, "nodes", "--nodes", line.nodes if line.nodes > 1 else None, (0,))
    nproc = line.nproc
    if line.world_size:
        nodes = args.nodes or (not line.is_single and line.nodes) or len(nodes_from(args))
        nproc, odd = divmod(line.world_size, nodes)
        if line.is_single and (line.world_size, nodes) != (1, 1):
            what = f"{line.config}: distributed_type: NO is one process on one node"
            raise UsageError(what, hint="write distributed_type: MULTI_GPU there, or leave the file out")
        if odd or not nproc:
            what = f"{line.world_size} ranks on {nodes} nodes: not the same number on each"
            raise UsageError(what, hint="--nproc N says how many each node has")
    _agree(args, "nproc", "--nproc", nproc or None, (None,))
    _agree(args, "master_port", "--master-port", line.port or None, (0,))
    if line.restarts and not hasattr(args, "max_restarts"):
        wrong = f"--max-restarts {line.restarts}: only `ringup run` restarts"
        raise UsageError(wrong, hint="leave it out of the start line")
    _agree(args, "max_restarts", "--max-restarts", line.restarts or None, (0,))
    if line.rendezvous and hasattr(args, "rdzv"):
        args.rdzv = line.rendezvous
    if line.launcher_arguments:
        args.launcher_args = f"{shlex.join(line.launcher_arguments)} {args.launcher_args}".strip()
    if line.wrapper:
        args.wrap = f"{getattr(args, 'wrap', '')} {shlex.join(line.wrapper)}".strip()
    _contained(args, line)
    args.python, args.chdir = args.python or line.python, args.chdir or line.chdir
    own = Path(default_interpreter(os.environ) or "/").parent / args.python
    if "." in args.python and own.exists() and not (line.image or line.container or line.wrapper):
        args.python = str(own)  # `python3.11` of an environment that is active here, but not on the nodes
    args.setup = " && ".join(part for part in (line.setup, args.setup) if part)
    args.env = [*(f"{name}={value}" for name, value in line.env.items()), *line.forwarded, *args.env]
    replaced = [f"{what}: {why}" for what, why in line.replaced] + _scheduled(args, line)
    if line.taken:
        say(f"ringup: taken over from the start line: {', '.join(line.taken)}", quiet=args.quiet)
    if replaced:
        say(f"ringup: replaced: {'; '.join(replaced)}", quiet=args.quiet)


def _only_counted(args: argparse.Namespace, line: StartLine) -> StartLine:
    """The line without its nodes: their number counts in a file whose scheduler chooses the nodes."""
    asked = {"hosts": line.hosts or None, "hostfile": line.hostfile or None, "exclude_from": None}
    try:
        hosts = nodes_from(argparse.Namespace(**{**vars(args), **asked}))
    except UsageError:
        hosts = ()
    if line.nodes < 2:
        args.nodes = args.nodes or len(hosts)
    slots = {host.slots for host in hosts}
    if len(slots) == 1 and not (line.nproc or line.world_size):
        args.nproc = args.nproc or slots.pop() or None
    line = line.replacing(line.hosts or f"host file {line.hostfile}", "the scheduler chooses the nodes")
    return replace(line, hosts="", hostfile="")


def _contained(args: argparse.Namespace, line: StartLine) -> None:
    """Put an image of docker or srun into `args`; only a job file can start one.  Raises UsageError."""
    kind = getattr(args, "kind", "")
    own, program = ("docker", "docker run") if line.image else ("slurm", "srun")
    fits = kind == own or (kind in PODS and line.image and not line.container)
    if fits and not (kind == "slurm" and args.find_network):
        args.image, args.container = getattr(args, "image", "") or line.image, line.container
    elif line.image or line.container:
        hint = f"`ringup script {own} --nodes N -- {program} ...` writes a job file that does it"
        what = " ".join((program, line.image or line.container[0]))
        raise UsageError(f"{what}: ringup cannot use it here", hint=hint)


def _scheduled(args: argparse.Namespace, line: StartLine) -> list[str]:
    """Put srun's options for a job file into `args`; returns those without use in a running allocation."""
    if not getattr(args, "slurm", hasattr(args, "image")):
        return [f"{written}: the allocation has its own" for written in line.scheduled]
    for written, (name, value) in line.scheduled.items():
        number = value.rpartition(":")[2]
        if name == "option":
            option = written.replace(" ", "=", 1) if written.startswith("--") else written
            args.option = [*args.option, option]
            continue
        if name in ("gpus", "cpus") and not number.isdecimal():
            raise UsageError(f"{written}: {value!r} is not a number", hint=f"--{name} N")
        given = int(number) if name in ("gpus", "cpus") else value
        _agree(args, name, f"--{name}", given, (None, 0, "") if name != "gpus" else (None,))
    return []


DEEPSPEED_HOSTFILE = "/job/hostfile"
"""The file that `deepspeed` reads without --hostfile (launcher/runner.py)."""


def _with_files(args: argparse.Namespace, line: StartLine) -> StartLine:
    """The line with the settings from files that its launcher reads.  Raises UsageError."""
    is_open = not (line.hosts or line.hostfile or named(args) or "CUDA_VISIBLE_DEVICES" in line.env)
    if line.launcher == "deepspeed" and is_open and Path(DEEPSPEED_HOSTFILE).is_file():
        return replace(line, hostfile=DEEPSPEED_HOSTFILE, taken=(*line.taken, DEEPSPEED_HOSTFILE))
    if not line.config:
        return line
    hint = "name a file of `accelerate config`, or leave --config_file out"
    try:
        said = settings(read_text(str(Path(args.chdir or ".") / line.config), 1 << 16, hint))
    except (ValueError, RecursionError, AttributeError) as error:
        raise UsageError(f"{line.config}: {printable(str(error), 200)}", hint=hint) from error
    found = configured(line, said)
    taken = f"taken over: {', '.join(found.taken)}; " if found.taken else ""
    replaced = ", ".join(what for what, _ in found.replaced)
    replaced = f"replaced by ringup's own: {replaced}; " if replaced else ""
    say(f"ringup: {path_shown(line.config)}: {taken}{replaced}the rest goes to accelerate", quiet=args.quiet)
    return replace(found, taken=line.taken, replaced=line.replaced)


def _agree(args: argparse.Namespace, name: str, option: str, value: object, unset: Sequence[object]) -> None:
    """Set an option of `args` to the start line's value, if it has one.  Raises UsageError if they differ."""
    own = getattr(args, name, unset[0])
    if value is None:
        return
    if own not in (*unset, value):
        raise UsageError(f"{option} {own}, but the start line says {value}", hint="leave one of them out")
    if own == unset[0] or not own:
        setattr(args, name, value)


def job_from(args: argparse.Namespace, words: list[str] | None = None) -> Job:
    """The requested job; `words` are the script and its arguments (for `run`).  Raises UsageError."""
    launcher = getattr(args, "launcher", "torchrun").replace("auto", "torchrun")
    words = words or [""]
    kind: Kind = KINDS.get(words[0], "script")
    script, *arguments = words if kind == "script" else words[1:]
    own = environment_from(args.env)
    env = {**forwarded(args, launcher), **own}
    asked, set_there = str(getattr(args, "master_port", 0) or ""), own.get("MASTER_PORT", "")
    if asked and set_there not in ("", asked):
        hint = "leave one of them out"
        raise UsageError(f"--master-port {asked}, and --env MASTER_PORT={set_there}", hint=hint)
    port = asked or env.get("MASTER_PORT", "")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"MASTER_PORT={port!r} is not a port", hint="a number from 1 to 65535")
    try:
        chdir = str(Path.cwd() / args.chdir) if not args.chdir.startswith("/") else args.chdir
    except OSError as error:
        hint = "`cd` to one that is there, or name one with --chdir /..."
        raise UsageError(f"the current directory: {error.strerror}", hint=hint) from error
    return Job(
        script=script,
        kind=kind,
        arguments=tuple(arguments),
        chdir=chdir,
        setup=args.setup,
        python=args.python,
        nproc=getattr(args, "nproc", None) or 0,
        launcher=launcher,
        wrapper=_split("--wrap", getattr(args, "wrap", "")),
        launcher_arguments=launcher_words(getattr(args, "launcher_args", ""), getattr(args, "launcher", "")),
        backend=args.backend,
        rendezvous=getattr(args, "rdzv", "static"),
        port=int(port) if port else 0,
        env=env,
        debug=getattr(args, "debug", False),
        link_gbit_s=args.link_gbit,
        time_left_s=time_left_s(),
    )


def time_left_s() -> float:
    """Seconds until the scheduler's limit for this job; infinite if unknown."""
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    return max(0.0, int(end) - time.time()) if end.isascii() and end.isdigit() else math.inf
