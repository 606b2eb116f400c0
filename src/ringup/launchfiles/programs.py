"""
Programs that start or wrap other programs, and the options of the launchers of ranks.

Sources of the launchers' options: torch 2.13 `distributed/run.py` and `launch.py`, accelerate 1.15
`commands/launch.py`, DeepSpeed 0.19.8 `launcher/runner.py`, ColossalAI 0.5 `cli/launcher/__init__.py`.  Of
the others: the manual pages of Slurm 24.05, Open MPI 5, MPICH 4, PBS, LSF, pdsh, OpenSSH, docker, Apptainer,
coreutils, uv and conda.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Role = Literal["starter", "wrapper", "shell"]


class Program(NamedTuple):
    """How to read a program's command line up to the command that it runs."""

    role: Role
    takes: frozenset[str] = frozenset()
    """Options with a value."""
    flags: frozenset[str] | None = None
    """Options without a value, if all others have one."""
    positionals: int = 0
    """Its own words before the command: an image, a host."""
    subcommands: tuple[str, ...] = ()
    """One of these comes first."""
    is_text: bool = False
    """The command's words are joined and read by a shell again."""

    def takes_value(self, option: str) -> bool:
        return option not in self.flags if self.flags is not None else option in self.takes


def _program(role: Role, takes: str = "", *, flags: str = "", **more: object) -> Program:
    return Program(role, frozenset(takes.split()), frozenset(flags.split()) if flags else None, **more)  # type: ignore[arg-type]


MPI = _program(
    "starter",
    flags="""
    --oversubscribe -oversubscribe --allow-run-as-root -allow-run-as-root --tag-output -tag-output
    -l -v -q --report-bindings -report-bindings --display-map --display-allocation --verbose
    -verbose --quiet --bynode --bycore --nooversubscribe --use-hwthread-cpus --nolocal -nolocal
    --timestamp-output -prepend-rank -genvall -genvnone -envall -envnone -print-rank-map --no-vni
    --line-buffer -bynode --do-not-resolve -d --debug --disable-recovery --forward-signals
    """,
)
"""Its options have long names with one dash, such as -wdir."""
_OF_OPEN_MPI = """
    x mca allow-run-as-root npernode pernode npersocket oversubscribe nooversubscribe tag-output
    output-filename display-map display-allocation rank-by rankfile report-uri bynode prefix timeout
    merge-stderr-to-stdout nolocal launch-agent tune am
"""
OF_OPEN_MPI = frozenset(_OF_OPEN_MPI.split())
"""Options of Open MPI 4 and 5 that Hydra (MPICH 5, Intel MPI) refuses; one dash or two."""
_OF_HYDRA = """
    ppn perhost genv genvall genvnone genvlist env envall envnone envlist f hosts launcher bootstrap iface
    rmk usize prepend-rank print-all-exitcodes configfile outfile-pattern errfile-pattern gpus-per-proc
    nameserver membind rr
"""
OF_HYDRA = frozenset(_OF_HYDRA.split())
"""Options of Hydra that Open MPI refuses."""
DASHES = "\u2010-\u2015\u2212"
"""Characters, for a pattern, that an editor or a page writes for hyphens."""
QUOTES, BLANKS = "\u201c\u201d\u2018", "\u00a0\u2007\u202f\u3000"
"""The same for quotes (opening, closing, opening) and for spaces."""
MPI_OPTIONS = {
    "world_size": ("-np", "--np", "-n", "--n", "-c"),
    "nproc": ("-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost"),
    "hostfile": ("-hostfile", "--hostfile", "-machinefile", "--machinefile", "-f"),
    "hosts": ("-H", "--host", "-host", "--hosts", "-hosts"),
}
"""Meaning -> options of mpirun and mpiexec, with any MPI."""
_DOCKER = _program(
    "wrapper",
    """
    -v --volume -e --env --env-file --name -w --workdir --network --net --shm-size --gpus --ulimit
    --ipc --device --user -u --mount --cap-add --entrypoint --runtime -h --hostname --memory -m
    --cpus -p --publish --add-host --pid --security-opt --label -l --platform --cpuset-cpus --tmpfs
    --restart --group-add --pull --userns
    """,
    subcommands=("run", "exec", "create"),
    positionals=1,
)
DOCKER_ITSELF = _program("wrapper", "-H --host -c --context --connection --url --config -l --log-level")
"""docker and podman before their subcommand."""
_COMPOSE = _program(
    "wrapper",
    """
    -f --file -p --project-name --env-file --profile --project-directory --parallel --progress --ansi -e --env
    -v --volume -w --workdir -u --user --name --entrypoint --publish -l --label --cap-add --cap-drop --index
    """,
    subcommands=("run", "exec"),
    positionals=1,
)
_APPTAINER = _program(
    "wrapper",
    """
    -B --bind --env --env-file -H --home -W --workdir --pwd --cwd -o --overlay --network -S
    --scratch --mount --app --apply-cgroups --cpus --memory --nvccli --fakeroot-uid --dns --hostname
    --network-args --add-caps
    """,
    subcommands=("exec", "run"),
    positionals=1,
)
_SRUN = """
-l --label -u --unbuffered -v --verbose -q --quiet -Q -K --kill-on-bad-exit -O --overcommit -s
--oversubscribe -k --no-kill -H --hold -X -Z --exclusive --overlap --exact --pty --contiguous -E
--preserve-env --disable-status --multi-prog --no-container-entrypoint --container-writable -i
--container-mount-home --no-container-mount-home --container-remap-root --no-container-remap-root
--container-readonly --container-entrypoint --spread-job --use-min-nodes --whole --no-allocate
--quit-on-interrupt --test-only --interactive --nv --immediate --resv-ports -I --mpi-combine
--spindle
"""
_UV = """
--with --with-requirements --with-editable --extra --group --only-group --python -p --project
--package --env-file --directory --index --index-url --extra-index-url --config-file
--refresh-package
"""
_NSYS = """
-o --output -t --trace -w --show-output -s --sample -x -c -e -f --force-overwrite --stats -y -d -k
--capture-range --gpu-metrics-device
"""
_NO_OPTIONS = _program("wrapper")
_WITHOUT_OPTIONS = "nohup setsid exec command coproc unbuffer catchsegv caffeinate chronic ddtrun"
_SSH = _program(
    "starter", "-b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", positionals=1, is_text=True
)
_PARALLEL = _program("starter", "-w -x -f -l -t -u -R -g -X -o -L -S --worker --fanout -p", is_text=True)


def _environment(takes: str = "") -> Program:
    """A tool with `run` that starts a command in its own environment."""
    return _program("wrapper", takes, subcommands=("run",))


PROGRAMS: dict[str, Program] = {
    "srun": _program("starter", flags=_SRUN),
    **dict.fromkeys(("mpirun", "mpiexec", "prterun", "prun", "mpiexec.hydra", "mpirun_rsh"), MPI),
    "pdsh": _PARALLEL,
    "clush": _PARALLEL._replace(takes=_PARALLEL.takes - {"-L", "-S"}),
    "dsh": _PARALLEL,
    "pssh": _PARALLEL._replace(takes=_PARALLEL.takes | {"-H", "-h", "-i"}),
    "ssh": _SSH,
    "gcloud": _program("starter"),
    "pbsdsh": _program("starter", "-n -h"),
    "pbs_tmrsh": _program("starter", "-n", positionals=1, is_text=True),
    "blaunch": _program("starter", "-z -u", positionals=1, is_text=True),
    "jsrun": _program("starter", flags="-h --immediate --stdio_append -I"),
    "lrun": _program("starter", "-N -n -T -p -g"),
    "aprun": _program("starter", "-n -N -d -j -cc -b -S"),
    "flux": _program(
        "starter", "-n -N -c -g --nodes --ntasks -t --time-limit", subcommands=("run", "submit", "alloc")
    ),
    "kubectl": _program("starter", "-n -c --namespace --container", subcommands=("exec",), positionals=1),
    "parallel": _program("starter", "-j --jobs -a --arg-file --colsep", is_text=True),
    "ibrun": _program("starter", "-n -o -np"),
    **dict.fromkeys(("docker", "podman", "nvidia-docker", "podman-hpc"), _DOCKER),
    "docker-compose": _COMPOSE,
    **dict.fromkeys(("apptainer", "singularity"), _APPTAINER),
    "enroot": _program(
        "wrapper", "-m --mount -e --env -c --conf --rc", subcommands=("start",), positionals=1
    ),
    "shifter": _program("wrapper", "--image -V --volume --module -e --env --entrypoint -w --workdir"),
    "charliecloud": _NO_OPTIONS,
    "uv": _environment(_UV),
    "poetry": _environment("-C --directory -P --project"),
    "pipenv": _environment(),
    "pdm": _environment("-p --project"),
    "rye": _environment(),
    "hatch": _environment("-e --env"),
    "pixi": _environment("-e --environment --manifest-path"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), _environment("-n --name -p --prefix --cwd")),
    "nsys": _program("wrapper", _NSYS, subcommands=("profile",)),
    "ncu": _program("wrapper", "-o --set --section -k -c -s --target-processes -f --launch-count"),
    "numactl": _program("wrapper", "-N -m -C -i -p --cpunodebind --membind --physcpubind --interleave"),
    "timeout": _program("wrapper", "-s --signal -k --kill-after", positionals=1),
    "taskset": _program("wrapper", positionals=1),
    "env": _program("wrapper", "-u --unset -C --chdir"),
    "sudo": _program("wrapper", "-u -g -C -h"),
    "nice": _program("wrapper", "-n --adjustment"),
    "ionice": _program("wrapper", "-c -n -p"),
    "stdbuf": _program("wrapper", "-i -o -e"),
    "time": _program("wrapper", "-f -o"),
    "xargs": _program("starter", "-I -n -P -L -d -a"),
    "ray": _program(
        "wrapper", "--address --working-dir --runtime-env-json --runtime-env", subcommands=("job",)
    ),
    **dict.fromkeys(_WITHOUT_OPTIONS.split(), _NO_OPTIONS),
    **dict.fromkeys(("bash", "sh", "zsh", "dash", "ksh"), _program("shell", "-o +o --rcfile --init-file -O")),
    "eval": _program("shell"),
}
"""Program -> how to read its command line."""
TWO_VALUES = frozenset(
    ["--mca", "-mca", "--gmca", "-gmca", "--prtemca", "--pmixmca", "--omca", "-genv", "-env", "--tune"]
)
"""Options of MPI's starters with two values."""

# -- launchers -----------------------------------------------------------------------------------

LAUNCHERS = {
    "torchrun": ("torchrun", ""),
    "torchrun.py": ("torchrun", ""),
    "torchrun_jsc": ("torchrun", ""),
    "torchx": ("torchx", "run"),
    "accelerate": ("accelerate", "launch"),
    "accelerate-launch": ("accelerate", ""),
    "deepspeed": ("deepspeed", ""),
    "ds": ("deepspeed", ""),
    "colossalai": ("colossalai", "run"),
    "llamafactory-cli": ("llamafactory", "train"),
    "lmf": ("llamafactory", "train"),
    "swift": ("swift", "sft pt rlhf"),
    "megatron": ("swift", "sft pt rlhf"),
    "ft_launcher": ("torchrun", ""),
    "hyperpodrun": ("torchrun", ""),
    "axolotl": ("axolotl", "train"),
    "xtuner": ("xtuner", "train"),
    "trl": ("trl", ""),
    "horovodrun": ("horovod", ""),
    "composer": ("composer", ""),
    "tune": ("tune", "run"),
    "fabric": ("fabric", "run"),
    "lightning": ("fabric", "run"),
    "ray": ("ray", "start"),
    "vllm": ("vllm", "serve"),
}
"""Program -> its launcher, and the subcommands that start a job."""
MODULES = {
    "torch.distributed.run": "torchrun",
    "torchrun_jsc": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed-node",
    "deepspeed": "deepspeed",
    "colossalai.cli": "colossalai",
    "composer.cli.launcher": "composer",
    "axolotl.cli.main": "axolotl",
    "determined.launch.torch_distributed": "determined",
    "determined.launch.deepspeed": "determined",
    "determined.launch.horovod": "determined",
}
FLAG, PASSED = "flag", "passed"
"""Options of the launcher itself, without and with a value."""
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
    "own start": "autotuning elastic-training= min-elastic-nodes max-elastic-nodes",
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
    """Option -> its meaning, with a `=` after it if it takes no value."""
    found = {}
    for meaning, names in table.items():
        for name in names.split():
            is_flag = meaning == FLAG or name.endswith("=")
            found["--" + name.rstrip("=")] = meaning + "=" * is_flag
    return found


OPTIONS = {
    "torchrun": _by_option(_TORCHRUN),
    "launch": _by_option(_TORCHRUN),
    "tune": _by_option(_TORCHRUN),
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
    "-e": "--exclude",
    "-H": "--host",
}
TRAINING = ("--fsdp-", "--megatron-lm-", "--fp8-", "--parallelism-config-")
"""Prefixes of accelerate's options with a value that concern only the training."""


def full_name(launcher: str, written: str) -> str:
    """An option's full name with dashes, from a short form or a unique beginning; "" for none."""
    options = OPTIONS[launcher]
    name = SHORT.get(written, written.replace("_", "-"))
    if not name.startswith("--"):
        return ""
    if name in options or (launcher == "accelerate" and name.startswith(TRAINING)):
        return name
    found = [one for one in options if one.startswith(name)]
    return found[0] if len(found) == 1 else ""


def meaning_of(launcher: str, written: str) -> str:
    """The meaning of an option for its launcher; "" if it is not an option of the launcher."""
    name = full_name(launcher, written)
    return OPTIONS[launcher].get(name, PASSED) if name else ""
