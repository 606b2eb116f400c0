"""Environment, containers and host files of launch files."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator

from ringup.launchfiles.directives import gpus_per_node, tasks_per_node
from ringup.launchfiles.files import named
from ringup.launchfiles.manifests import pairs, value_at
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import NODE_LAUNCHERS, Launch, PodShare
from ringup.launchfiles.passing import DOCKER, keeps
from ringup.launchfiles.programs import MPI_OPTIONS, OF_HYDRA
from ringup.launchfiles.shell import Command
from ringup.launchfiles.start import Step, arguments, take_apart
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault
from ringup.lint.settings import settings
from ringup.model import CONTAINERS
from ringup.nccl import traps, variables
from ringup.nccl.interface_choice import ASSUMED, version_of
from ringup.rules import Finding, Fix
from ringup.units import lines_of, printable

OLDEST = (2, 18)
"""The oldest release of NCCL that is still in use."""
_FOR_RANKS = re.compile(r"(?:NCCL|GLOO)_\w+")
_SLOTS = re.compile(r"(\S+)\s+slots=(\d{1,9})")


@fault("preset-without-effect", SHELL, severity="warning")
def preset_without_effect(job: JobFile) -> Iterator[Finding]:
    """
    A variable of NCCL that the file sets has no effect, or another one than its value suggests.

    Why: another variable rules it out, no release of NCCL since 2.18 reads it, or its value is not a number.
    `ringup env` checks the variables of a running environment in the same way.

    Fix: leave it out, or change the one that rules it out.
    """
    given = {one.name: one for one in settings(job) if one.value}
    environment = {name: one.value for name, one in given.items()}
    said = traps.all_traps(environment, (), (), ASSUMED)
    for name, one in given.items():
        row = variables.row_of(name)
        why = traps.ruled_out(name, environment)
        if not why and row.until and version_of(row.until) < OLDEST:
            why = f"no NCCL since {row.until} reads it"
        if not why:
            spelt = set(traps.spelling(name, one.value))
            own = [s for s in said if s.startswith(f"{name}=") and s not in spelt and "of one's own" not in s]
            why = own[0].removeprefix(f"{name}={one.value}").lstrip(": ") if own else ""
        if why:
            found = f"{name}={printable(one.value, 80)}: {printable(why, 200)}"
            yield job.finding(one.line, found, "a setting that counts", subject=f"env:{name}")


# -- containers ------------------------------------------------------------------------------------


@fault("container-keeps-out", SHELL, severity="warning")
def container_keeps_out(job: JobFile) -> Iterator[Finding]:
    """
    A container is started without what ranks need from the machine.

    Why, network: with docker's own network the ranks of other nodes cannot reach this one.

    Why, shared memory: /dev/shm has 64 MB there; NCCL and data loaders need more, and fail.

    Why, RDMA: RDMA registers memory, which the default memlock limit forbids.

    Why, RDMA device: without an RDMA device NCCL finds no HCA and uses TCP.

    Why, names: a pod on the host's network does not use the cluster's name server.

    Why, variables: variables that are set outside do not reach the ranks inside.

    Why, Slurm: the variable that takes the command's output is empty, unless the image or the site has the
    program.

    Fix: `docker run --network=host --ipc=host --ulimit memlock=-1 --device=/dev/infiniband -e NCCL_DEBUG ...`
    (`ringup script docker` writes it, and the Kubernetes kinds what a pod needs).

    Fix, names: `dnsPolicy: ClusterFirstWithHostNet`.

    Fix, variables: `docker run -e NAME`; apptainer without --cleanenv, or with `--env NAME=$NAME`.

    Fix, Slurm: call the command in the job file, export the result, and read that inside.
    """
    yield from _shards(job)
    yield from _slurm_inside(job)
    for launch in job.launches:
        if launch.pod is not None:
            yield from _pod(job, launch, launch.pod)
        for step in launch.steps:
            program = posixpath.basename(step.program)
            if made := _container_of(job, step):
                yield from _docker(job, launch, made)
                yield from _not_passed(job, launch, step)
            elif program in CONTAINERS and step.has("-e", "--cleanenv", "-C", "--containall"):
                yield from _not_passed(job, launch, step)


@fault("container-on-own-network", SHELL)
def container_on_own_network(job: JobFile) -> Iterator[Finding]:
    """
    Ranks of several nodes run in containers on docker's own network.

    Why: a container then has an address that only its machine knows, and the machine passes nothing on to it:
    the other nodes reach neither the rendezvous nor the ranks.

    Names of containers are unknown there, too: `MASTER_ADDR=trainer1` does not resolve.

    Fix: `docker run --network=host`; a network of one's own (`docker network create`) has the names.
    """
    yield from _names_of_containers(job)
    for launch in job.launches:
        for step in launch.steps:
            made = _container_of(job, step)
            opened = ("--network", "--net", "-p", "--publish", "-P", "--publish-all", "--pod")
            is_local = launch.host.startswith("172.17.") or launch.host_is_own
            if made and not made.has(*opened) and _several(launch) and not is_local:
                found = "no --network=host: other nodes cannot reach a container on docker's own network"
                yield job.finding(launch.line, found, "--network=host")


@fault("pod-without-cluster-names", SHELL, each="launches")
def pod_without_cluster_names(job: JobFile, launch: Launch) -> Iterator[Finding]:
    """
    Ranks in a pod on the host's network meet at the name of a Service or a pod.

    Why: with `hostNetwork: true` a pod asks the name server of its machine, which does not know the cluster's
    names, unless dnsPolicy is ClusterFirstWithHostNet.

    Fix: `dnsPolicy: ClusterFirstWithHostNet`.
    """
    if _is_cut_off(launch) and _is_named_here(job, launch.host):
        found = f"{printable(launch.host, 80)} does not resolve: hostNetwork: true without dnsPolicy"
        yield job.finding(launch.line, found, "dnsPolicy: ClusterFirstWithHostNet")


def _is_cut_off(launch: Launch) -> bool:
    by_name = not re.fullmatch(r"[\d.]+", launch.host)
    return launch.pod is not None and launch.pod.is_cut_off and launch.nnodes != 1 and by_name


def _is_named_here(job: JobFile, host: str) -> bool:
    """Whether a Service or a pod of the file has this name."""
    named = (value_at(document, "metadata", "name") for document in job.job.documents)
    return bool(host) and host.partition(".")[0] in named


@fault("loopback-between-nodes", SHELL, each="launches")
def loopback_between_nodes(job: JobFile, launch: Launch) -> Iterator[Finding]:
    """
    NCCL or Gloo is given the loopback interface alone, or NCCL no longer leaves it out, with several nodes.

    Why: each rank offers 127.0.0.1 as its address; ranks of other nodes connect to themselves.  NCCL needs
    the interface for its start also where the data goes over InfiniBand.  Where nothing is set NCCL leaves
    out lo and docker; a list with ^ replaces that rule, and lo is the first interface that is left.

    Fix: leave NCCL_SOCKET_IFNAME out, exclude (`NCCL_SOCKET_IFNAME=^lo,docker`), or name the network's
    interface.
    """
    nodes = launch.nnodes or launch.nodes or 1
    is_apart = nodes > 1 and not launch.host_is_own
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if is_apart else ():
        value = launch.env.get(name, "").strip("\"'")
        is_list = name == "NCCL_SOCKET_IFNAME" and re.fullmatch(r"\^=?[\w,.-]+", value) is not None
        is_back = is_list and not any("lo".startswith(n) for n in value[1:].lstrip("=").split(","))
        if value not in ("lo", "=lo") and not is_back:
            continue
        is_gloo = re.search(r"backend[= ]gloo", " ".join(launch.start.arguments))
        is_used = is_gloo if name.startswith("GLOO") else not is_gloo
        line = next((w.line for w in job.job.assigned if w.text.startswith(f"{name}=")), launch.line)
        found = f"{name}={value}, and {nodes} nodes: every rank is at 127.0.0.1"
        wanted = f"{value},lo" if is_back else "the network's interface"
        yield job.finding(line, found, wanted, subject=f"env:{name}", is_sure=is_used)


_SHARDS = re.compile(
    r"NUM_SHARD[\"']?(?:[:=]|\n[ \t]{0,80}[\"']?value[\"']?:)[ \"']{0,4}([2-9]|[1-9]\d)(?!\d)"
)
_SHARED = re.compile(r"/dev/shm|shm_size|hostIPC: *true|\bipc: |NCCL_SHM_DISABLE")


def _shards(job: JobFile) -> Iterator[Finding]:
    """huggingface/text-generation-inference, README: its shards exchange data through /dev/shm."""
    is_its_image = re.search(r"(?m)^[ \t-]{0,80}image:.{0,200}/text-generation-inference\b", job.text)
    if is_its_image and (match := _SHARDS.search(job.text)) and not _SHARED.search(job.text):
        found = f"{match[1]} shards, and no memory volume at /dev/shm: it has 64 MB"
        line = job.text.count("\n", 0, match.start()) + 1
        yield job.finding(line, found, "emptyDir: {medium: Memory}", case="shared memory")


_MEMORY = Fix("a volume `emptyDir: {medium: Memory}`, and its mount at /dev/shm.")
_LOCKING = Fix("`securityContext: {capabilities: {add: [IPC_LOCK]}}` of the container.")
_DEVICE = Fix(
    "the cluster's resource for it in `resources: limits:`; `kubectl describe node NODE` lists them."
)


def _pod(job: JobFile, launch: Launch, pod: PodShare) -> Iterator[Finding]:
    if max(pod.gpu_count, launch.ranks_per_node or 0) > 1 and not pod.has_shared_memory:
        if pod.is_service:
            of_build = _has_shm_size_under_build(job, launch)
            found = "shm_size under build is for building the image" if of_build else "no shm_size, no ipc"
            fix = Fix("`ipc: host` of the service, or its `shm_size: 16gb`.")
            found = f"{found}: /dev/shm has 64 MB"
            yield job.finding(launch.line, found, "ipc: host", case="shared memory", fix=fix)
        else:
            found = "no memory volume at /dev/shm: it has 64 MB"
            wanted = "emptyDir: {medium: Memory}"
            yield job.finding(launch.line, found, wanted, case="shared memory", fix=_MEMORY)
    if _is_cut_off(launch) and not _is_named_here(job, launch.host):
        found = "hostNetwork: true without dnsPolicy: names of pods and services do not resolve"
        yield job.finding(launch.line, found, "dnsPolicy: ClusterFirstWithHostNet", case="names")
    if pod.has_rdma and not pod.can_lock:
        found = "an RDMA device without IPC_LOCK"
        more = {} if pod.is_service else {"fix": _LOCKING}
        yield job.finding(launch.line, found, "IPC_LOCK in its capabilities", case="RDMA", **more)
    if launch.env.get("NCCL_IB_HCA") and not pod.has_rdma:
        found = "NCCL_IB_HCA is set, and the pod has no RDMA device"
        more = {} if pod.is_service else {"fix": _DEVICE}
        yield job.finding(launch.line, found, "its resource", case="RDMA device", **more)


def _has_shm_size_under_build(job: JobFile, launch: Launch) -> bool:
    """Whether the launch's service of compose has it where it counts for `docker build` alone."""
    services = [one for d in job.job.documents for _, one in pairs(dict(pairs(d)).get("services"))]
    own = (one for one in services if one.start_mark.line < launch.line <= one.end_mark.line + 1)
    return any(value_at(one, "build", "shm_size") for one in own)


_OF_SLURM = re.compile(r"(?:\$\(|`|^|[;&|\n]) {0,8}(scontrol|squeue|srun) ")


def _slurm_inside(job: JobFile) -> Iterator[Finding]:
    """Commands of Slurm in the text that a container runs, where the file does not bind their folder."""
    is_bound = "/slurm" in job.text or "munge" in job.text
    for command in () if is_bound else job.job.commands:
        text = command.start.text or ""
        boxed = any(posixpath.basename(s.program) in (*CONTAINERS, *DOCKER) for s in command.start.steps)
        if boxed and (found := _OF_SLURM.search(text[:20_000])):
            what = f"{found[1]} runs inside the container: an image has no commands of Slurm"
            yield job.finding(command.line, what, f"{found[1]} outside of it", case="Slurm")


def _names_of_containers(job: JobFile) -> Iterator[Finding]:
    """Containers on docker's own network that look for another one by its name."""
    made = [
        (command, step)
        for command in job.job.commands
        for step in command.start.steps
        if posixpath.basename(step.program) in DOCKER and step.subcommand in ("run", "create")
    ]
    names = {step.option("--name"): command for command, step in made}
    for command, step in made:
        given = [option.value for option in step.options if option.name in ("-e", "--env")]
        head = next((value[12:] for value in given if value.startswith("MASTER_ADDR=")), "")
        own = step.has("--network", "--net", "--link", "--add-host")
        if not own and head and head != step.option("--name") and head in names:
            found = f"MASTER_ADDR={printable(head, 60)}: docker's own network knows no names of containers"
            yield job.finding(command.line, found, "--network with a network of one's own, or host")


def _container_of(job: JobFile, step: Step) -> Step | None:
    """The `docker run` that made the container of a step, also where the step is a `docker exec`."""
    if posixpath.basename(step.program) not in DOCKER:
        return None
    if step.subcommand != "exec":
        return step if step.subcommand in ("run", "create") else None
    name = "".join(step.positionals[:1])
    mark = job.job.marks.of(name)
    written = mark.name.removeprefix("$(").removesuffix(")").split() if mark else []
    starts = [take_apart(written)] if mark else [command.start for command in job.job.commands]
    made = [one for start in starts for one in start.steps if one.subcommand in ("run", "create")]
    return next((one for one in made if mark or one.option("--name") == name), None)


def _docker(job: JobFile, launch: Launch, step: Step) -> Iterator[Finding]:
    if _several(launch) and not step.has("--network", "--net") and step.has("-p", "--publish", "-P"):
        found = "no --network=host: ranks of other nodes reach the published ports alone"
        yield job.finding(launch.line, found, "--network=host", case="network")
    if launch.ranks_per_node != 1 and not step.has("--ipc", "--shm-size"):
        found = "no --ipc=host or --shm-size: /dev/shm has 64 MB"
        yield job.finding(launch.line, found, "--ipc=host", case="shared memory")
    has_rdma = any("infiniband" in o.value for o in step.options if o.name == "--device")
    if has_rdma and not any("memlock" in o.value for o in step.options if o.name == "--ulimit"):
        found = "RDMA devices without --ulimit memlock=-1"
        yield job.finding(launch.line, found, "--ulimit memlock=-1", case="RDMA")


_INDICES = re.compile(r"\d{1,2}(?:,\d{1,2}){0,63}")


@fault("gpu-hidden-from-container", SHELL, each="launches")
def gpu_hidden_from_container(job: JobFile, launch: Launch) -> Iterator[Finding]:
    """
    A container sees some GPUs of its machine, and CUDA_VISIBLE_DEVICES names others in it.

    Why: inside a container the GPUs that it was given count from 0: with `--gpus '"device=2,3"'` they are 0
    and 1, and CUDA_VISIBLE_DEVICES=2,3 hides both.

    Fix: leave CUDA_VISIBLE_DEVICES out.
    """
    visible = launch.env.get("CUDA_VISIBLE_DEVICES", "").strip("\"'")
    if not _INDICES.fullmatch(visible):
        return
    given = launch.pod.gpu_count if launch.pod and launch.pod.is_service else 0
    if given and max(map(int, visible.split(","))) >= given:
        found = f"CUDA_VISIBLE_DEVICES={visible}, and the container has GPUs 0 to {given - 1}"
        yield job.finding(launch.line, found, "no CUDA_VISIBLE_DEVICES")
    for step in launch.steps:
        made = _container_of(job, step)
        asked = ((made.option("--gpus") or "") if made else "").strip("\"'")
        count = int(asked) if asked.isdecimal() else len(asked.removeprefix("device=").split(","))
        is_part = asked.isdecimal() or asked.startswith("device=")
        if is_part and max(map(int, visible.split(","))) >= count:
            found = f"CUDA_VISIBLE_DEVICES={visible}, and the container has GPUs 0 to {count - 1}"
            yield job.finding(launch.line, found, "no CUDA_VISIBLE_DEVICES")


_ROCM = re.compile(r"(?i)rocm|\bhip\b|\bamd\b|miopen|rccl|\blumi")


@fault("image-without-gpus", SHELL, severity="warning")
def image_without_gpus(job: JobFile) -> Iterator[Finding]:
    """
    A job has GPUs, and apptainer (singularity) or docker starts its image without them.

    Why: without `--nv` the driver's libraries are missing inside: torch finds no GPU.  A site can make it the
    default (`always use nv` in apptainer.conf, docker's `default-runtime`); images for ROCm have their own
    libraries.

    Fix: `apptainer exec --nv IMAGE ...`, `docker run --gpus all IMAGE ...`.
    """
    has_gpus = gpus_per_node(job.job.directives)[0]
    for launch in job.launches if not _ROCM.search(job.text) else ():
        for step in launch.steps:
            program, wanted = posixpath.basename(step.program), "--nv"
            given: tuple[str, ...] = ("--nv", "--nvccli")
            is_one = bool(has_gpus) and program in CONTAINERS and step.subcommand in ("exec", "run")
            if program == DOCKER[0] and step.subcommand == "run" and (has_gpus or _several(launch)):
                given, wanted = ("--gpus", "--runtime", "--device", "--privileged"), "--gpus all"
                is_one = "NVIDIA_VISIBLE_DEVICES" not in job.text and launch.launcher in NODE_LAUNCHERS
            by_variable = re.search(r"(?:APPTAINER|SINGULARITY)_(?:NV|NVCCLI)\b", job.text)
            is_open = any(has_mark(option.name) for option in step.options)
            if is_one and not step.has(*given) and not by_variable and not is_open:
                found = f"{program} {step.subcommand} without {wanted.split()[0]}"
                yield job.finding(launch.line, found, wanted)


@fault("docker-gpus-in-quotes", SHELL, each="job.commands")
def docker_gpus_in_quotes(job: JobFile, command: Command) -> Iterator[Finding]:
    """
    A list of GPUs for `docker run --gpus` is not in two pairs of quotes.

    Why: docker splits the value at commas, and takes `device=0,1` for device 0 and a count of 1: "cannot set
    both Count and DeviceIDs on device request".

    Fix: `--gpus '"device=0,1"'`.
    """
    for step in (s for s in command.start.steps if posixpath.basename(s.program) in DOCKER[:1]):
        value = step.option("--gpus") or ""
        if re.fullmatch(r"device=[\w-]{1,60}(?:,[\w-]{1,60}){1,63}", value):
            found = f"--gpus {printable(value, 60)}: docker splits it at the comma"
            yield job.finding(command.line, found, f"--gpus '\"{printable(value, 80)}\"'")


def _several(launch: Launch) -> bool:
    return bool(launch.nnodes_text) and launch.nnodes != 1


def _not_passed(job: JobFile, launch: Launch, step: Step) -> Iterator[Finding]:
    """Variables for NCCL and Gloo that are set outside a container and not passed into it."""
    outside = {*launch.command.env, *(n for n, why in launch.command.withheld.items() if why == step.program)}
    left = sorted(n for n in outside - launch.env.keys() if _FOR_RANKS.fullmatch(n) and not keeps(step, n))
    if left:
        found = f"{', '.join(left[:4])} set outside the container, not passed into it"
        yield job.finding(launch.line, found, f"-e {left[0]}", case="variables")


# -- DeepSpeed's host file -------------------------------------------------------------------------


@fault("hostfile-wrong", SHELL, each="launches")
def hostfile_wrong(job: JobFile, launch: Launch) -> Found:
    """
    A host file is missing, malformed, or lacks nodes or slots that the line needs.

    Why, DeepSpeed: without the file DeepSpeed trains on its node alone, with a warning.  Every line must be
    `HOST slots=N`, and each host appear once.  A host of --include that is not in it, or more --num_nodes
    than it has, is an error or fewer nodes than requested (0.19.8 `launcher/runner.py`).

    Why, Open MPI: Open MPI refuses more processes than the file has slots, and a host that is listed twice.

    Why, horovodrun: horovodrun reads `HOST slots=N`, and ends at a line without `=`.

    Why, Hydra: Hydra, the mpirun of MPICH and Intel MPI, reads `HOST:N`.

    Why, ColossalAI: ColossalAI takes each line whole for the name of a host (0.5.0 `cli/launcher/run.py`).

    Fix: write one `HOST slots=N` per line, for every node, with N its GPUs.

    Fix, Hydra: write one `HOST:N` per line.

    Fix, ColossalAI: write one host name per line, without a number.
    """
    yield from _slots_of_mpi(job, launch)
    yield from _slots_of_horovod(job, launch)
    parts = launch.option("include").split("@") if launch.launcher == "deepspeed" else ()
    if ranged := [part for part in parts if re.search(r":(?:\d+,)*\d+-\d", part)]:
        found = f"--include {printable(ranged[0], 60)}: DeepSpeed knows no ranges"
        why, wanted = "each part between commas must be one number", "each GPU: localhost:0,1,2,3"
        yield launch.line, found, wanted, why, "list every GPU: localhost:0,1,2,3"
    name = launch.option("hostfile")
    if launch.launcher == "colossalai":
        yield from _names_alone(job, launch, name)
    if launch.launcher != "deepspeed" or not name:
        return
    text = file_at_hand(job, name)
    if text is None or has_mark(text):
        yield from _from_scheduler(job, launch, launch.shown(name))
    if has_mark(name):
        return
    if text is None:
        is_made = name in job.job.written or job.text.count(posixpath.basename(name)) > 1
        if job.nearby and not is_made and not name.startswith("/"):
            found = f"{printable(name, 80)} is not here: without it DeepSpeed trains on one node"
            yield job.finding(launch.line, found, "a host file", severity="warning", case="DeepSpeed")
        return
    if not has_mark(text):
        yield from _contents(job, launch, name, text)


_COPIED = re.compile(
    r"(?:cat|cp|(?:sed|awk) '[^'\n]{1,99}')[ \t]{1,4}[\"']?\$\{?(PBS_NODEFILE|LSB_DJOB_HOSTFILE)\}?"
    r"[\"']?[ \t]{0,4}>?[ \t]{0,4}([\w./${}-]{1,99})"
    r"|scontrol show hostnames?\b[^|>\n]{0,99}>[ \t]{0,4}([\w./-]{1,99})"
)


def _from_scheduler(job: JobFile, launch: Launch, name: str) -> Found:
    """A host file that is the scheduler's list of nodes: names without slots, or one for each task."""
    for source, *targets in _COPIED.findall(job.text):
        if posixpath.basename("".join(targets)) != posixpath.basename(name):
            continue
        each = tasks_per_node(job.job.directives)
        if source and each > 1 and not re.search(r"\buniq\b|\bsort[ \t]+-u\b", job.text):
            found = f"{printable(name, 80)}: {source} names each host {each} times, once for each task"
            yield launch.line, found, "sort -u: each host once", "DeepSpeed"
        elif "slots" not in job.text:
            found = f"{printable(name, 80)} has the names of the nodes alone, without slots"
            yield launch.line, found, "HOST slots=N on every line", "DeepSpeed"


def _names_alone(job: JobFile, launch: Launch, name: str) -> Found:
    hosts = [line.strip() for line in lines_of(text_of(job, name)) if line.strip()]
    bad = next((host for host in hosts if re.search(r"\s|^#", host) and not has_mark(host)), None)
    twice = next((host for host in hosts if hosts.count(host) > 1), None)
    if bad or twice:
        shown = printable(bad or twice or "", 60)
        what = f"{shown!r} is taken for a host's name" if bad else f"{shown} twice"
        found = f"{printable(name, 80)}: {what}"
        yield launch.line, found, "one host's name a line, each once, nothing else", "ColossalAI"


def _slots_of_mpi(job: JobFile, launch: Launch) -> Found:
    """Open MPI 5 starts no more ranks than its host file has slots, each host's once (MPICH: `HOST:N`)."""
    for step in (s for s in launch.steps if s.program in ("mpirun", "mpiexec", "prterun", "mpiexec.hydra")):
        name = step.option(*MPI_OPTIONS["hostfile"]) or ""
        total = launch.number(step.option("-np", "-n", "--np", "--n", "-c") or "") or 0
        text = text_of(job, name)
        hosts = [match[1] for line in lines_of(text) if (match := _SLOTS.match(line.strip()))]
        named = {o.name.lstrip("-") for o in step.options}
        by_hydra = step.program == "mpiexec.hydra" or bool(named & OF_HYDRA)
        if hosts and by_hydra:
            found = f"{printable(name, 80)} has slots=, which is Open MPI's form: Hydra refuses it"
            yield launch.line, found, "HOST:N on every line", "Hydra"
            return
        if twice := next((host for host in hosts if hosts.count(host) > 1), ""):
            found = f"{printable(name, 80)} gives slots of {printable(twice, 60)} twice: Open MPI refuses it"
            yield launch.line, found, "each host once", "Open MPI"
        slots = 0 if has_mark(text) else slots_in(text)
        may = any("oversubscribe" in o.written.lower() for o in step.options) or "OVERSUBSCRIBE" in job.text
        if total > slots > 0 and not may:
            found = f"{total} processes, and {printable(name, 80)} has {slots} slots"
            yield launch.line, found, "as many slots as processes", "Open MPI"


def _slots_of_horovod(job: JobFile, launch: Launch) -> Found:
    """horovod 0.28 `runner/util/hosts.py`, parse_host_files: what follows the line's `=`."""
    given = arguments(launch.command.texts) if launch.launcher == "horovod" else {}
    name = given.get("hostfile", "")
    lines = [line.strip() for line in lines_of(text_of(job, name)) if line.strip()]
    if bad := next((line for line in lines if "=" not in line and not has_mark(line)), ""):
        found = f"{printable(name, 80)}: {printable(bad, 60)!r} has no slots=N, and horovodrun ends"
        yield launch.line, found, "HOST slots=N on every line", "horovodrun"


def slots_in(text: str) -> int:
    """All slots of a host file; 0 unless every host has a number of its own."""
    lines = [line.strip() for line in lines_of(text) if line.strip() and line.strip()[0] != "#"]
    slots = [int(match[1]) for line in lines if (match := re.search(r"\bslots *= *(\d{1,6})\b", line))]
    return sum(slots) if len(slots) == len(lines) else 0


def _contents(job: JobFile, launch: Launch, name: str, text: str) -> Found:
    lines = [line.strip() for line in lines_of(text) if line.strip() and not line.strip().startswith("#")]
    bad = next((line for line in lines if not _SLOTS.match(line)), None)
    hosts = [match[1] for line in lines if (match := _SLOTS.match(line))]
    if bad is not None or not lines:
        found = f"{printable(name, 80)}: {printable(bad or 'empty', 60)!r} is not HOST slots=N"
        yield launch.line, found, "HOST slots=N on every line", "DeepSpeed"
        return
    if twice := next((host for host in hosts if hosts.count(host) > 1), ""):
        found = f"{printable(name, 80)} has {printable(twice, 60)} twice"
        yield launch.line, found, "each host once", "DeepSpeed"
    wanted = [part.partition(":")[0] for part in launch.option("include").split("@") if part]
    if missing := [host for host in wanted if host not in hosts and not has_mark(host)]:
        found = f"--include {printable(missing[0], 60)}, which {printable(name, 80)} does not have"
        yield launch.line, found, "a host of the host file", "DeepSpeed"
    slots = {match[1]: int(match[2]) for line in lines if (match := _SLOTS.match(line))}
    for part in launch.option("include").split("@"):
        host, _, listed = part.partition(":")
        if [n for n in listed.split(",") if n.isdecimal() and int(n) >= slots.get(host, 1 << 20)]:
            found = f"--include {printable(part, 60)}; {printable(name, 80)} gives {host} {slots[host]} slots"
            yield launch.line, found, f"slots from 0 to {slots[host] - 1}", "DeepSpeed"
    each = launch.ranks_per_node or 0
    few = min((int(match[2]) for line in lines if (match := _SLOTS.match(line))), default=each)
    if few < each:
        found = f"--num_gpus {each} on every host, and {printable(name, 80)} has slots={few}"
        yield job.finding(launch.line, found, "as many GPUs as slots", severity="warning", case="DeepSpeed")
    if (count := launch.nnodes) and launch.option("num-nodes") and count > len(hosts):
        found = f"--num_nodes {count}, and {printable(name, 80)} has {len(hosts)}"
        yield launch.line, found, "as many hosts as nodes", "DeepSpeed"


@fault("deepspeed-batch-disagrees", SHELL, each="launches")
def deepspeed_batch_disagrees(job: JobFile, launch: Launch) -> Iterator[Finding]:
    """
    The batch sizes in DeepSpeed's configuration do not fit the number of ranks.

    Why: DeepSpeed asserts train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x
    ranks (`runtime/config.py`); every rank ends at the start.

    Fix: leave train_batch_size out, or "auto" under transformers.
    """
    name = launch.arguments.get("deepspeed-config") or launch.arguments.get("deepspeed", "")
    is_split = any("parallel-size" in option for option in launch.arguments)
    text = file_at_hand(job, name) if name.endswith(".json") else None
    if not launch.world_size or text is None or is_split:
        return
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    values = [given.get(key) for key in names] if isinstance(given, dict) else [None]
    whole, micro, steps = [v if type(v) is int and v > 0 else 0 for v in (*values, None, None)[:3]]
    each = micro * (steps or 1) * launch.world_size
    if whole and micro and (whole != each if steps else whole % each):
        shown = f"{micro} x {steps} x" if steps else f"a multiple of {micro} x"
        found = f"{printable(name, 80)}: train_batch_size {whole} is not {shown} {launch.world_size} ranks"
        yield job.finding(launch.line, found, "batch sizes that fit")


def text_of(job: JobFile, name: str) -> str:
    """The text of a file that the line names; "" if there is none at hand."""
    return file_at_hand(job, name) or ""


def file_at_hand(job: JobFile, name: str) -> str | None:
    """A file that the line names, if it is available."""
    if not name or has_mark(name):
        return None
    own = job.job.files
    text = own.get(name) or (own.get(posixpath.basename(name)) if job.job.documents else None)
    text = text or named(name, job.path, job.others)
    return job.nearby(job.path, name) if text is None and job.nearby else text
