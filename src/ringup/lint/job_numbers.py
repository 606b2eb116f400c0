"""Settings of each node or rank in the line that starts it: rendezvous address, GPUs, port."""

from __future__ import annotations

import difflib
import math
import re
from itertools import pairwise

from ringup.launchfiles import marks
from ringup.launchfiles.directives import gpus_per_node, last, node_count, tasks_per_node
from ringup.launchfiles.model import NODE_LAUNCHERS, TORCH, Launch
from ringup.launchfiles.programs import MPI_OPTIONS, OF_OPEN_MPI
from ringup.launchfiles.start import Step, arguments
from ringup.lint.job_environment import file_at_hand, slots_in, text_of
from ringup.lint.job_file import JobFile
from ringup.lint.job_programs import gpus_of_nccl_tests, mpi_modules, tasks_of_litgpt
from ringup.lint.rule import SHELL, Found, fault
from ringup.rules import Fix
from ringup.units import plural, printable

_LOOPBACK = re.compile(r"(?:tcp://)?(localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[?::1\]?)(?::|$)")
_COORDINATOR = re.compile(
    r"coordinator(?:[-_]address)?|(?:init|dist)[-_](?:method|url)|master[-_]addr(?:ess)?"
)
_LISTS = {marks.NODES, marks.NAMES}
_MANY_GPUS = {"num-gpus", "num-machines", "multiprocessing-distributed"}
_SCHEDULERS = ("SBATCH", "PBS", "BSUB")
_OTHERS = ("YBATCH", "QSUB", "MSUB", "DSUB", "JSUB", "CSUB")
"""Words of other schedulers that look like these."""
_HOSTS = re.compile(r"[\w.-]{1,255}(?::\d{1,4})?(?:,[\w.-]{1,255}(?::\d{1,4})?){0,255}")
_LITERAL = re.compile(r"\b(devices|gpus|num_nodes) ?= ?(\d{1,4})\b(?! ?[-+*/])")
_EACH = r"(?:int\()?os\.environ\[.SLURM_GPUS_ON_NODE.\]|torch\.cuda\.device_count\(\)"
_EACH_GPU = re.compile(rf"\b(?:devices|gpus) ?= ?(?:.auto[\"']|-1\b|{_EACH})")
"""The Trainer uses each GPU that it sees."""
_BY_A_NAME = re.compile(r"\b(devices|gpus) ?= ?(\w{1,60})\b")
_BY_ARGUMENT = re.compile(r"\b(?:devices|gpus) ?= ?(?:args|opts?|hparams|cfg)\.(\w{1,40})\b")
_LIGHTNING = re.compile(r"(?m)^ *(?:import|from) +(?:pytorch_lightning|lightning)\b")
_CUT = re.compile(
    r"echo {1,4}\"?\$\{?SLURM_(?:JOB_)?NODELIST\}?\"? {0,4}\| {0,4}cut -d ?['\"]?,['\"]? -f ?1\b"
)
_FIRST_NODE = '`$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`'


@fault("rendezvous-endpoint-list", SHELL)
def rendezvous_endpoint_list(job: JobFile) -> Found:
    """
    The ranks' address, or `srun -w`, is not one node of the job: it is a list of nodes, or another host.

    Why: SLURM_JOB_NODELIST is `gpu[01-04]`, and `scontrol show hostnames` gives a line for each node;
    neither is a host name, so no rank can look it up.  `NODES=("$LIST")` in quotes is an array of one element
    with all the names in it.

    Fix: `$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)`; an array without quotes.
    """
    for launch in job.launches:
        held = {mark.name for mark in job.job.marks.all_of(launch.host)}
        if (held & _LISTS and launch.allocated != 1) or re.search(r"\[\d+[-,]\d|\w,\w", launch.host):
            yield launch.line, f"the ranks meet at {launch.shown(launch.host)}", "the first of these nodes"
        elif "SLURM_SUBMIT_HOST" in held and launch.launcher in NODE_LAUNCHERS and launch.nnodes != 1:
            found = "the ranks meet at $SLURM_SUBMIT_HOST, where sbatch was typed: no rank runs there"
            why = "The store is opened by a rank of this host, and the job has none there."
            yield launch.line, found, "the first node of the job", why, _FIRST_NODE
    for number, text in enumerate(job.lines, 1):
        if _CUT.search(text.partition(" #")[0]) and node_count(job.job.directives)[0] > 1 and job.launches:
            yield number, "the list may be n[1-2]: cut takes n[1-2] for a name", "scontrol show hostnames"
    for command, step in job.steps("srun"):
        listed = job.job.marks.all_of(step.option("-w", "--nodelist") or "")
        is_list = any(mark.name in _LISTS for mark in listed)
        if step.option("-N", "--nodes") == "1" and is_list and node_count(job.job.directives)[0] > 1:
            yield command.line, "srun -w with the names of all nodes, and --nodes=1", "one node's name"
            return


def coordinator_at_itself(job: JobFile) -> Found:
    """Scripts on several nodes that are given localhost as the address of a coordinator or store."""
    for launch in job.launches:
        if launch.launcher != "python" or not launch.is_away or (launch.nodes or 0) < 2:
            continue
        for name, value in launch.arguments.items():
            if _COORDINATOR.fullmatch(name) and (own := _LOOPBACK.match(value)):
                found = f"--{name} is {own[1]}: each node connects only to itself"
                yield launch.line, found, "the first node"


@fault("directive-misspelt", SHELL)
def directive_misspelt(job: JobFile) -> Found:
    """
    A line at the head of a job file is nearly `#SBATCH`, `#PBS` or `#BSUB`.

    Why: the scheduler takes it for a comment, and its request has no effect.

    Fix: write the right word, in capitals and without a space behind `#`.
    """
    for number, line in enumerate(job.lines, 1):
        if line.strip() and not line.startswith("#"):
            return
        match = re.match(r"#([A-Za-z]{3,8})[ \t]+--?[A-Za-z]", line)
        near = difflib.get_close_matches(match[1].upper(), _SCHEDULERS, 1, 0.7) if match else []
        if match and near and match[1] not in (*_SCHEDULERS, *_OTHERS):
            yield number, f"#{match[1]}, a comment for the scheduler", f"#{near[0]}"


@fault("launcher-spreads-itself", SHELL, each="launches")
def launcher_spreads_itself(job: JobFile, launch: Launch) -> Found:
    """
    A launcher that starts all nodes of its host list itself is started on each of them.

    Why: DeepSpeed and ColossalAI reach every host of the list by ssh; started N times they start N worlds,
    which fight for the same GPUs and the same port.

    Fix: start it once, on the first node and without srun; or DeepSpeed with --no_ssh and --node_rank.
    """
    spreads = launch.launcher in ("deepspeed", "colossalai") and launch.has("hostfile", "host")
    is_one = launch.start.option("no-ssh") is not None or launch.is_opaque
    if spreads and launch.is_away and (launch.instances or 0) > 1 and not is_one:
        found = f"{launch.started_by} starts it {launch.instances} times, and it starts every host itself"
        yield launch.line, found, "one start, on the first node"


@fault("open-mpi-slots", SHELL)
def open_mpi_slots(job: JobFile) -> Found:
    yield from _slots_of_chunks(job)
    yield from _slots_of_tasks(job)
    for command, step in job.steps("mpirun") if not job.job.directives else ():
        hosts = step.option(*MPI_OPTIONS["hosts"]) or ""
        count = step.option(*MPI_OPTIONS["world_size"]) or ""
        is_open = any(o.name.lstrip("-") in OF_OPEN_MPI or o.value.startswith("ppr:") for o in step.options)
        slots = _slots(hosts)
        is_more = "oversubscribe" in " ".join(o.written for o in step.options).lower()
        host, _, first = hosts.partition(",")[0].partition(":")
        is_spread = step.has(*_SPREADS) or (step.option("--map-by", "-map-by") or "slot") != "slot"
        is_first = is_open and count.isdecimal() and first.isdecimal() and not is_spread
        if is_first and hosts.count(",") and int(count) <= int(first):
            found = f"{plural(int(count), 'rank')}, and {host} has {first} slots: the other hosts get none"
            yield command.line, found, f"{host}:N, where N is the number of its ranks, not a port", "hosts"
        if is_open and count.isdecimal() and 0 < slots < int(count) and not is_more:
            found = f"{plural(int(count), 'rank')} on {plural(slots, 'slot')}: {hosts}"
            names = [host.partition(":")[0] for host in hosts.split(",")[:4]]
            yield command.line, found, "slots: " + ",".join(f"{name}:N" for name in names), "hosts"
    for launch in (one for one in job.launches if one.launcher == "horovod"):
        given = dict(pairwise(launch.command.texts))
        total = launch.number(given.get("-np") or given.get("--num-proc") or "") or 0
        hosts = given.get("-H") or given.get("--hosts") or ""
        name = given.get("--hostfile") or given.get("-hostfile") or ""
        if hosts and (cut := re.fullmatch(r"[\w.-]+:\d{1,4}", launch.start.script)):
            found = f"the list of hosts ends at the blank: horovodrun takes {cut[0]} for the command"
            yield launch.line, found, f"-H {hosts},{cut[0]}", "horovodrun"
            continue
        slots = _slots(hosts) or slots_in(text_of(job, name)) or total
        if total > slots:
            found = f"{plural(total, 'rank')} on {plural(slots, 'slot')}: {hosts or printable(name, 80)}"
            yield launch.line, found, "as many slots as ranks", "horovodrun"


_SPREADS = ("-bynode", "--bynode", "-npernode", "--npernode", "-N")
"""Options with which Open MPI does not fill the first host first."""


def _slots(hosts: str) -> int:
    """Slots of `a:8,b`; 0 for a list of another form."""
    listed = hosts.split(",") if _HOSTS.fullmatch(hosts) else []
    return sum(int(host.partition(":")[2] or 1) for host in listed if host)


def _slots_of_chunks(job: JobFile) -> Found:
    """PBS Professional's Reference Guide, PBS_NODEFILE: its lines are the sum of mpiprocs over all chunks."""
    asked = [d.value for d in job.job.directives if d.scheduler == "PBS" and d.name == "l"]
    chunks = [value for value in asked if value.startswith("select=")]
    slots, is_module = node_count(job.job.directives)[0], mpi_modules(job)[0]
    is_open_ended = bool(re.search(r"(?i)oversubscribe|PBS_NODEFILE *[=>]", job.text))
    if len(chunks) != 1 or not slots or is_open_ended:
        return
    each = re.findall(r"mpiprocs=(\d{1,4})", chunks[0]) if "+" not in chunks[0] else []
    if "mpiprocs" in chunks[0] and len(each) != 1:
        return
    slots *= int("".join(each) or 1)
    # On one node an Open MPI without PBS's library, as in containers, counts the cores.
    for command, step in job.steps("mpirun", "mpiexec"):
        names = {option.name.lstrip("-") for option in step.options}
        is_open = step.program == "mpirun" and (is_module or (slots > 1 and names & OF_OPEN_MPI))
        count = step.option(*MPI_OPTIONS["world_size"]) or ""
        named = job.job.marks.of(step.option(*MPI_OPTIONS["hostfile"]) or "")
        is_other = bool(names & _HOST_OPTIONS) and (named is None or named.name != "PBS_NODEFILE")
        if (is_open or each) and count.isdecimal() and int(count) > slots and not is_other:
            found = f"{plural(int(count), 'rank')} on {plural(slots, 'slot')}: {printable(chunks[0], 60)}"
            found += "" if each else " has no mpiprocs"
            nodes = node_count(job.job.directives)[0]
            yield command.line, found, f"mpiprocs={-(-int(count) // nodes)} in each chunk", "PBS"


def _slots_of_tasks(job: JobFile) -> Found:
    """Open MPI's FAQ on Slurm: its slots are the tasks of the job, as far as the file asks for some."""
    asks = [one for one in job.job.directives if one.scheduler == "SBATCH"]
    each, total = tasks_per_node(asks), last(asks, "ntasks", "n")[0]
    nodes = node_count(asks)[0] if last(asks, "nodes", "N")[0] else 1
    slots = int(total) if total.isdecimal() else each * nodes
    is_open_ended = re.search(r"(?i)oversubscribe|SLURM_\w{1,40}=|--het|salloc", job.text)
    is_asked = total or last(asks, "ntasks-per-node", "tasks-per-node")[0]
    if not (slots and is_asked and mpi_modules(job)[0]) or is_open_ended:
        return
    for command, step in job.steps("mpirun"):
        count = step.option(*MPI_OPTIONS["world_size"]) or ""
        names = {option.name.lstrip("-") for option in step.options}
        if count.isdecimal() and int(count) > slots and not names & _HOST_OPTIONS:
            found = f"{plural(int(count), 'rank')}, and {plural(slots, 'task')} of Slurm: too few slots"
            yield command.line, found, f"#SBATCH --ntasks={count}", "Slurm"


_HOST_OPTIONS = {"H", "host", "hostfile", "machinefile", "default-hostfile"}


@fault("resource-sets-exceed-hosts", SHELL)
def resource_sets_exceed_hosts(job: JobFile) -> Found:
    """
    jsrun is asked for more resource sets than fit on the job's hosts.

    Why: `--rs_per_host` times the hosts of `#BSUB -nnodes` is what fits; jsrun ends with an error.

    Fix: set --nrs to hosts x --rs_per_host.
    """
    hosts = node_count(job.job.directives)[0]
    for command in job.job.commands:
        for step in (s for s in command.start.steps if s.program == "jsrun"):
            sets, each = step.option("-n", "--nrs") or "", step.option("-r", "--rs_per_host") or ""
            if sets.isdecimal() and each.isdecimal() and 0 < hosts * int(each) < int(sets):
                found = f"{sets} resource sets, {each} on each of {plural(hosts, 'host')}"
                yield command.line, found, f"--nrs {hosts * int(each)}"


@fault("gpus-exceed-pod", SHELL, each="launches")
def gpus_exceed_pod(job: JobFile, launch: Launch) -> Found:
    """
    vLLM or SGLang needs more GPUs than its container or node has.

    Why: `--tensor-parallel-size` x `--pipeline-parallel-size` GPUs of one node are needed, unless Ray or
    `--nnodes` adds other nodes; the engine does not start.

    Fix: request as many GPUs in the resources of the container; for several nodes use Ray.
    """
    gpus = launch.pod.gpu_count if launch.pod else gpus_per_node(job.job.directives)[0]
    given = {n: launch.number(v) for n, v in launch.arguments.items()}
    wanted = given.get("tensor-parallel-size") or given.get("tp-size") or given.get("tp") or 1
    wanted *= given.get("pipeline-parallel-size") or given.get("pp-size") or 1
    is_one = not launch.arguments.keys() & {"nnodes", "node-rank"}
    is_one = is_one and launch.arguments.get("distributed-executor-backend", "mp") == "mp"
    is_one = is_one and launch.started_by != "LeaderWorkerSet"
    visible = launch.env.get("CUDA_VISIBLE_DEVICES", "").strip("\"'")
    if re.fullmatch(r"\d{1,3}(?:,\d{1,3}){0,63}", visible) and not launch.is_away:
        gpus = visible.count(",") + 1
    is_one = is_one and 0 < gpus < wanted and not re.search(r"\bray\b", job.text)
    if is_one and re.search("vllm|sglang", " ".join(launch.command.texts[:6])):
        found = f"{wanted} GPUs (tensor x pipeline), and the {'container' if launch.pod else 'node'}"
        found += f" has {gpus}"
        yield launch.line, found, f"{wanted} GPUs"
    elif launch.launcher == "vllm" and not launch.pod and 0 < gpus * launch.allocated < wanted:
        found = f"{wanted} GPUs (tensor x pipeline), and the job's {launch.allocated} nodes have {gpus} each"
        yield launch.line, found, f"{gpus * launch.allocated} GPUs"


@fault("deepspeed-without-hosts", SHELL, severity="warning", each="launches")
def deepspeed_without_hosts(job: JobFile, launch: Launch) -> Found:
    """
    DeepSpeed is given several nodes, and no option names a host file.

    Why: it reads /job/hostfile then; where that is missing it trains on this node alone, with a warning, or
    ends because a host of --include is unknown.

    Fix: `--hostfile FILE`.
    """
    several = "@" in launch.option("include") or (launch.nnodes or 0) > 1
    is_named = launch.has("hostfile", "no-ssh", "force-multi") or launch.is_opaque
    if launch.launcher == "deepspeed" and several and not is_named and not launch.is_away:
        found = "several nodes without --hostfile: without /job/hostfile DeepSpeed takes this one alone"
        yield launch.line, found, "--hostfile"


@fault("deepspeed-options-exclude", SHELL, each="launches")
def deepspeed_options_exclude(job: JobFile, launch: Launch) -> Found:
    """
    DeepSpeed is given --include or --exclude together with --num_gpus or --num_nodes, or --node_rank alone.

    Why, GPUs: its runner refuses them together (`Cannot specify num_nodes/gpus with include/exclude`), and
    --include together with --exclude (`mutually exclusive`).

    Why, MPI: with several hosts its MPI launchers refuse both (`multinode_runner.py`, validate_args).

    Why, node rank: DeepSpeed reads --node_rank with --no_ssh alone (0.19.8 `launcher/runner.py`).  Without
    --no_ssh a start on each node launches on all nodes of the host file, or ends where there is none.

    Fix, GPUs: --include alone names the nodes and their GPUs.

    Fix, MPI: use a host file with the hosts and slots, and none of these options.

    Fix, node rank: start it once with a host file, or with --no_ssh on each node.
    """
    count = next((n for n in ("num-gpus", "num-accelerators", "num-nodes") if launch.has(n)), "")
    if launch.launcher == "deepspeed" and count and launch.has("include", "exclude"):
        found = f"--include or --exclude beside --{count.replace('-', '_')}"
        yield launch.line, found, "one of the two", "GPUs"
    elif launch.launcher == "deepspeed" and launch.has("include") and launch.has("exclude"):
        yield launch.line, "--include together with --exclude", "one of the two", "GPUs"
    elif count and launch.option("launcher").lower() in ("openmpi", "mpich", "impi", "mvapich"):
        found = f"--{count.replace('-', '_')} with --launcher {launch.option('launcher')}"
        yield job.finding(launch.line, found, "a host file alone", severity="warning", case="MPI")
    own = (launch.start.option("node-rank") or "0") if launch.launcher == "deepspeed" else "0"
    is_left = launch.has("no-ssh") or launch.start.option("no-ssh") is not None or launch.nnodes == 1
    if own != "0" and not is_left and not launch.is_opaque:
        yield launch.line, "--node_rank without --no_ssh: DeepSpeed does not read it", "--no_ssh", "node rank"


@fault("visible-devices-ignored", SHELL, each="launches")
def visible_devices_ignored(job: JobFile, launch: Launch) -> Found:
    """
    DeepSpeed ignores CUDA_VISIBLE_DEVICES where an option or a host file names the GPUs, or how many.

    Why: with --num_gpus its runner deletes the variable and takes the first GPUs; two jobs that share a
    machine in this way run on the same ones.  With a host file each node takes the first of its slots.

    Fix: `--include localhost:2,3` in place of both.
    """
    visible, count = launch.env.get("CUDA_VISIBLE_DEVICES", ""), launch.option("num-gpus")
    if launch.launcher != "deepspeed" or launch.is_away or launch.has("exclude"):
        return
    listed = launch.option("include").rpartition(":")[2]
    if launch.has("include") and "@" not in launch.option("include"):
        if visible and listed and visible.strip("\"'") != listed:
            shown = printable(launch.shown(visible), 40)
            found = f"--include takes GPUs {listed}, whatever CUDA_VISIBLE_DEVICES={shown} is"
            yield launch.line, found, "one of the two"
        return
    if launch.has("hostfile") and re.fullmatch(r"\d{1,3}(?:,\d{1,3}){0,63}", visible):
        if file_at_hand(job, launch.option("hostfile")) is not None:
            found = f"CUDA_VISIBLE_DEVICES={visible}, and the host file decides which GPUs are taken"
            yield launch.line, found, "--include HOST:2,3@..., without CUDA_VISIBLE_DEVICES"
        return
    if re.fullmatch(r"\d{1,3}(?:,\d{1,3}){0,63}", visible) and count.isdecimal():
        first = ",".join(map(str, range(int(count))))
        if visible != first:
            found = f"--num_gpus={count} takes GPUs {first}, not {visible}"
            fix = Fix(f"--include localhost:{visible}, without --num_gpus and CUDA_VISIBLE_DEVICES")
            yield job.finding(launch.line, found, "--include", fix=fix)


@fault("port-used-twice", SHELL)
def port_used_twice(job: JobFile) -> Found:
    """
    Two launchers that run at the same time on one machine are given the same port.

    Why: each opens a store there; the second ends with EADDRINUSE, or joins the first one's.

    Fix: give each another `--master-port`, or `--standalone`, which takes a free one.
    """
    before: dict[str, Launch] = {}
    waits = [c.line for c in job.job.commands if c.texts[:1] == ["wait"]]
    for launch in job.launches:
        port = launch.endpoint.rpartition(":")[2] if ":" in launch.endpoint else ""
        if launch.backend == "static":
            port = port or launch.option("main-process-port") or launch.setting("master-port")
            port = port or ("29500" if launch.launcher != "accelerate" else "")  # torch's default
        is_single = launch.launcher in (*TORCH, "accelerate", "deepspeed") and launch.nnodes == 1
        hosts = launch.option("hostfile") if launch.launcher == "deepspeed" else ""
        if launch.launcher == "python" and _MANY_GPUS & launch.arguments.keys():
            # detectron2 and the like start their ranks themselves, at this address.
            own = next((v for n in ("dist-url", "init-method") if (v := launch.arguments.get(n))), "")
            own = own if _LOOPBACK.match(own) else ""
            port, is_single = own.rpartition(":")[2], True
        is_open = launch.is_away or not (is_single or hosts)
        if is_open or not port.isdecimal() or port == "0":
            continue
        own = f"{port}{hosts}{launch.command.branches}"
        other = before.get(own)
        if other is not None and not any(other.line < line < launch.line for line in waits):
            yield launch.line, f"port {port}, as the launch before it, which still runs", "another port"
            return
        if launch.command.detached:
            before[own] = launch


_OF_DETECTRON = re.compile(r"(?:^|/)(?:\w{1,40}_)?train_net\.py$")


@fault("workers-started-per-task", SHELL, each="launches")
def workers_started_per_task(job: JobFile, launch: Launch) -> Found:
    """
    srun starts a program several times on a node, and each starts a worker for every GPU itself.

    Why: `--num-gpus 4` of detectron2's train_net.py, `--multiprocessing-distributed` of torch's ImageNet
    example and GPT-NeoX's deepy.py start the ranks of a node, or of all: copies fight for GPUs and a port.

    Fix: `srun --ntasks-per-node=1`; deepy.py once, without srun.
    """
    is_task, each = launch.launcher == "python" and launch.srun is not None, launch.per_node or 0
    gpus = launch.number(launch.arguments.get("num-gpus", "")) or 0
    spawns = "multiprocessing-distributed" in launch.arguments
    spawns = spawns or (gpus > 1 and _OF_DETECTRON.search(launch.script) is not None)
    if is_task and each > 1 and spawns:
        found = f"{plural(each, 'task')} on a node, and each starts a worker for every GPU"
        yield launch.line, found, "--ntasks-per-node=1"
    of_neox = launch.command.texts[launch.start.script_at].endswith("deepy.py")
    if launch.srun and of_neox and (launch.instances or 0) > 1:
        yield launch.line, f"{launch.instances} tasks, and deepy.py starts all ranks itself", "no srun"


@fault("gpus-left-idle", SHELL, each="launches")
def gpus_left_idle(job: JobFile, launch: Launch) -> Found:
    """
    The launcher starts fewer ranks on a node than it has GPUs.

    Why: torchrun's --nproc-per-node is 1 where nothing gives it, and accelerate's --num_processes is the
    total of all machines; the other GPUs are paid for and idle, unless one rank drives them all.

    Fix: `--nproc-per-node=gpu`, or the number; accelerate: machines x GPUs.
    """
    gpus = gpus_per_node(job.job.directives)[0] or (launch.pod.gpu_count if launch.pod else 0)
    of_task = last(job.job.directives, "gpus-per-task")[0].rpartition(":")[2]
    gpus = gpus or (launch.number(of_task) or 0 if launch.per_node == 1 and launch.srun else 0)
    visible = launch.env.get("CUDA_VISIBLE_DEVICES", "")
    gpus = gpus or (visible.count(",") + 1 if re.fullmatch(r"\d{1,2}(?:,\d{1,2}){1,15}", visible) else 0)
    by_tasks = any("NTASKS_PER_NODE" in word.raw for word in launch.command.words)
    is_open = launch.is_opaque or launch.is_set_outside
    is_given = bool(launch.setting("nproc-per-node")) and not (by_tasks and launch.per_node == 1)
    if launch.launcher in TORCH and not (is_open or is_given) and gpus > 1 and (launch.per_node or 1) == 1:
        of = ": SLURM_NTASKS_PER_NODE is 1" if by_tasks else ""
        found = f"1 rank on each node of {gpus} GPUs{of}"
        yield job.finding(launch.line, found, "--nproc-per-node", severity="warning")
    is_by_list = marks.SLOT_COUNT in {
        mark.name for s in launch.steps for mark in launch.job.marks.all_of(s.option("-np", "-n") or "")
    }
    if launch.launcher == "python" and gpus > 1 and is_by_list and not tasks_per_node(job.job.directives):
        found = f"1 rank on each node of {gpus} GPUs: without mpiprocs PBS lists each node once"
        why = "a chunk of PBS has one process without mpiprocs"
        fix = Fix(f"`select=N:...:mpiprocs={gpus}`")
        wanted = f"mpiprocs={gpus} in the select of qsub"
        yield job.finding(launch.line, found, wanted, severity="warning", why=why, fix=fix)
    machines, total = launch.nnodes or 1, launch.number(launch.option("num-processes"))
    if launch.launcher == "accelerate" and gpus > 1 and machines > 1 and total == gpus:
        each = launch.ranks_per_node
        found = f"{total} processes over {machines} machines of {gpus} GPUs: {each} on each"
        yield launch.line, found, f"--num_processes {machines * gpus}: it is the total of all machines"


@fault("gpu-count-with-type", SHELL)
def gpu_count_with_type(job: JobFile) -> Found:
    """
    A launcher takes its number of ranks from a variable of Slurm that holds more than a number.

    Why: `--gpus-per-node=a100:4` makes SLURM_GPUS_PER_NODE `a100:4`, and SLURM_TASKS_PER_NODE of two nodes is
    `4(x2)`.

    Fix: use SLURM_GPUS_ON_NODE, or the number itself.
    """
    typed = {
        f"SLURM_{name.upper().replace('-', '_')}": value
        for name in ("gpus-per-node", "gpus-per-task", "gpus")
        if re.search(r"[A-Za-z]\w{0,40}:\d", value := last(job.job.directives, name)[0])
    }
    if node_count(job.job.directives)[0] > 1:
        typed["SLURM_TASKS_PER_NODE"] = "4(x2), a list for all nodes"
    for launch in job.launches:
        text = launch.setting("nproc-per-node") or launch.option("num-processes", "num-gpus")
        for mark in job.job.marks.all_of(text):
            if mark.name in typed:
                yield launch.line, f"${mark.name} is {typed[mark.name]}", "a number: $SLURM_GPUS_ON_NODE"


_BY_GLOBAL_RANK = re.compile(
    r"(?<![#\w])((?:CUDA|HIP|ROCR)_VISIBLE_DEVICES|LOCAL_RANK)=[\"']?\$\{?"
    r"(SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK)\}?[\"']?(?:\s|;|$)"
)
_BY_REMAINDER = re.compile(r"\brank % (?:torch\.cuda\.device_count\(\)|\d{1,2}|\w{0,20}gpus\w{0,20})")


@fault("gpu-by-global-rank", SHELL)
def gpu_by_global_rank(job: JobFile) -> Found:
    """
    A rank's GPU is chosen by its number among all ranks, not among those of its node.

    Why: on the second node of four GPUs the ranks are 4 to 7, and the GPUs still 0 to 3: no such device.
    `rank % 4` fits where a node has ranks in a row; `--map-by node` and `--distribution=cyclic` deal them out
    in turn, and two ranks of a node take one GPU ("Duplicate GPU detected").

    Fix: use SLURM_LOCALID, or OMPI_COMM_WORLD_LOCAL_RANK.
    """
    for launch in job.launches:
        nodes, each = launch.nodes or 1, launch.per_node or 1
        starters = [s for s in launch.steps if s.option("--map-by", "-map-by") == "node" or s.has("-bynode")]
        is_in_turn = bool(starters) or launch.of_srun("-m", "--distribution").startswith("cyclic")
        taken = _BY_REMAINDER.search(text_of(job, launch.script)) if is_in_turn else None
        if taken and math.gcd(nodes, each) > 1:
            found = f"{taken[0]}, and the ranks of {nodes} nodes are dealt out in turn"
            yield launch.line, found, "OMPI_COMM_WORLD_LOCAL_RANK" if starters else "SLURM_LOCALID"
    away = [one for one in job.launches if one.is_away and (one.nodes or 0) > 1]
    for number, line in enumerate(job.lines, 1):
        match = _BY_GLOBAL_RANK.search(line.partition(" #")[0])
        if match and away and not line.lstrip().startswith("#"):
            local = "SLURM_LOCALID" if match[2].startswith("SLURM") else "OMPI_COMM_WORLD_LOCAL_RANK"
            yield number, f"{match[1]}=${match[2]}, and there are {away[0].nodes} nodes", f"${local}"


@fault("lightning-tasks-mismatch", SHELL)
def lightning_tasks_mismatch(job: JobFile) -> Found:
    """
    Lightning is started in a job of Slurm with another number of tasks a node than the Trainer has devices.

    Why: under Slurm Lightning starts no processes itself; each task of srun is one rank.  With too few it
    raises an error, trains on fewer GPUs, or waits for ranks that nobody starts.

    Why, no number: It reads SLURM_NTASKS_PER_NODE, which Slurm sets with --ntasks-per-node alone
    (`lightning/fabric/plugins/environments/slurm.py`).

    Fix: `#SBATCH --ntasks-per-node` equal to `devices`, and srun in front of python.
    """
    tasks, gpus = tasks_per_node(job.job.directives), gpus_per_node(job.job.directives)[0]
    for launch in job.launches:
        of_slurm = any(d.scheduler == "SBATCH" for d in job.job.directives)
        if launch.launcher != "python" or not launch.script or not of_slurm:
            continue
        devices, nodes = _of_trainer(job, launch)
        if (step := launch.srun) and _lacks_number(job, launch, step):
            found = "several tasks without --ntasks-per-node: Lightning ends with an error"
            yield launch.line, found, "--ntasks-per-node", "no number"
        elif step and not step.has("--ntasks-per-node", "--ntasks", "-n") and (line := _fewer(job)):
            text = text_of(job, launch.script)
            if _LIGHTNING.search(text) or (not text and "lightning" in launch.script.lower()):
                most = last(job.job.directives, "ntasks-per-node", "tasks-per-node")[0]
                found = f"--ntasks decides: srun starts fewer than the {most} ranks a node of Lightning"
                yield job.finding(line, found, f"--ntasks-per-node={most} alone", is_sure=text)
        elif step is None and launch.started_by == "batch" and devices * nodes > 1 and max(nodes, tasks) > 1:
            found = f"Lightning waits for {devices * nodes} ranks, and without srun there is one"
            yield launch.line, found, "srun in front of it"
        elif step and nodes > 1 and launch.nodes == launch.allocated != nodes and launch.allocated:
            found = f"num_nodes={nodes}, and the job has {plural(launch.allocated, 'node')}"
            yield launch.line, found, f"num_nodes={launch.allocated}"
        elif step and gpus and devices > gpus:
            yield launch.line, f"devices={devices}, and a node has {plural(gpus, 'GPU')}", f"devices={gpus}"
        elif step and devices > 1 and not step.has("--ntasks-per-node", "--ntasks", "-n"):
            each = tasks or launch.per_node or 0
            if each and each != devices:
                found = f"{plural(each, 'task')} a node, and devices={devices}"
                yield launch.line, found, f"--ntasks-per-node={devices}"
    yield from tasks_of_litgpt(job)


def _lacks_number(job: JobFile, launch: Launch, step: Step) -> bool:
    """Whether Lightning's tasks get no SLURM_NTASKS_PER_NODE."""
    given = {one.name for one in job.job.directives}
    total = launch.number(last(job.job.directives, "ntasks", "n")[0]) or launch.instances or 1
    is_asked = step.has("--ntasks-per-node") or bool(given & {"ntasks-per-node", "tasks-per-node"})
    is_set = is_asked or "SLURM_NTASKS_PER_NODE" in job.text
    return total > 1 and not is_set and bool(_LIGHTNING.search(text_of(job, launch.script)))


def _fewer(job: JobFile) -> int:
    """The line of a smaller --ntasks, 0 for none; sbatch(1): it takes precedence over --ntasks-per-node."""
    (total, line), nodes = last(job.job.directives, "ntasks", "n"), node_count(job.job.directives)[0] or 1
    each = last(job.job.directives, "ntasks-per-node", "tasks-per-node")[0]
    is_number = total.isdecimal() and each.isdecimal()
    return line if is_number and 0 < int(total) < int(each) * nodes else 0


def _of_trainer(job: JobFile, launch: Launch) -> tuple[int, int]:
    """(devices, nodes) of Lightning's Trainer or Fabric, by the command or the script; 0 and 1 if unknown."""
    text = text_of(job, launch.script)
    is_read = bool(_LIGHTNING.search(text)) and ("devices" in text or "gpus" in text)
    own = {name: launch.arguments.get(f"trainer.{name}", "") for name in ("devices", "num-nodes")}
    given = {name.replace("-", "_"): value * value.isdecimal() for name, value in own.items()}
    literal = dict(_LITERAL.findall(text)) if is_read else {}
    devices = given["devices"] or (launch.arguments.get("devices", "") if is_read else "")
    devices = devices or literal.get("devices", "") or literal.get("gpus", "")
    if not devices and is_read and (own_name := _BY_ARGUMENT.search(text)):
        devices = launch.arguments.get(own_name[1].replace("_", "-"), "")
    if not devices and is_read and not _BINDS.search(job.text) and "cpu" not in text:
        values = dict(re.findall(rf"(?m)^ *(\w{{1,60}}) = ({_EACH})", text))
        text = _BY_A_NAME.sub(lambda m: f"{m[1]}={values.get(m[2], m[2])}", text)
        devices = str(gpus_per_node(job.job.directives)[0]) if _EACH_GPU.search(text) else ""
    nodes = given["num_nodes"] or literal.get("num_nodes", "")
    return int(devices) if devices.isdecimal() else 0, int(nodes) if nodes.isdecimal() and int(nodes) else 1


_ONE = re.compile(r"(?:[\w.-]{1,60}:)?1")
_BINDS = re.compile(
    r"gpus?-per-task|tasks-per-gpu|(?i:gpu[-_]bind|tres[-_]bind|VISIBLE_DEVICES|LOCAL_DEVICE_IDS)"
)
"""Options that decide which GPUs of its node a task sees."""
_BY_TASK = re.compile(
    r"(?m)^ {0,20}(\w{1,60}) = int\(os\.environ\[.(SLURM_LOCALID|OMPI_COMM_WORLD_LOCAL_RANK).\]\)$"
)


@fault("gpu-hidden-from-task", SHELL)
def gpu_hidden_from_task(job: JobFile) -> Found:
    """
    Slurm shows a task its own GPU alone, and the program takes another one, or more of them.

    Why, Slurm: with `--gpus-per-task=1` or `--ntasks-per-gpu=1` each task sees its GPU alone, number 0 there
    (sbatch(1)).  JAX and `set_device` with SLURM_LOCALID then look for GPU 1 in task 1, and Lightning for all
    `devices`.

    Why, nccl-tests: each process takes -g x -t GPUs, the first ones by its number on its host
    (`src/common.cu`).

    Why, jsrun: jsrun shows the tasks of a resource set its own GPUs alone: with `-a 1 -g 1` one, number 0.

    Fix, Slurm: `--gpus-per-node` in place of `--gpus-per-task`, or `--gpu-bind=none`.

    Fix, nccl-tests: `-g 1` with one process for each GPU.

    Fix, jsrun: take GPU 0 in each task: `set_device(0)`.
    """
    yield from gpus_of_nccl_tests(job)
    value, line = last(job.job.directives, "gpus-per-task", "ntasks-per-gpu")
    is_bound = _ONE.fullmatch(value) and len(_BINDS.findall(job.text)) == 1
    for launch in job.launches:
        step, asked = launch.srun, launch.of_srun("--gpus-per-task", "--ntasks-per-gpu")
        sets = next((s for s in launch.steps if s.program == "jsrun"), None)
        if sets is not None and "".join(sets.option("-a", "--tasks_per_rs") or "1") == "1":
            step, asked = sets, sets.option("-g", "--gpu_per_rs") or ""
        if launch.launcher != "python" or step is None or not (is_bound or _ONE.fullmatch(asked)):
            continue
        several = step.has("--ntasks-per-gpu") or (launch.per_node or 2) > 1
        if len(_BINDS.findall(job.text)) > 1 or not several:
            continue
        text = text_of(job, launch.script)
        devices, own = _of_trainer(job, launch)[0], _BY_TASK.search(text)
        if devices > 1:
            taken = f"Lightning takes devices={devices}"
        elif _JAX.search(text) and "VISIBLE_DEVICES" not in text:
            taken = "JAX takes the GPU of the task's number"
        elif own and f"set_device({own[1]})" in text and "VISIBLE_DEVICES" not in text:
            taken = f"set_device takes the GPU of {own[2]}"
        else:
            continue
        found = f"each task sees one GPU, number 0, and {taken}"
        wanted = "--gpus-per-node" if sets is None else "set_device(0)"
        yield line if is_bound else launch.line, found, wanted, "Slurm" if sets is None else "jsrun"
        return


_JAX = re.compile(r"\bjax\.distributed\.initialize\([ \t]*\)")


@fault("jax-device-per-task", SHELL)
def jax_device_per_task(job: JobFile) -> Found:
    """
    JAX is started by srun with one task on a node of several GPUs.

    Why: under Slurm `jax.distributed.initialize()` gives each task the one device of its SLURM_LOCALID; the
    node's other GPUs stay idle.

    Fix: start a task for each GPU (`--ntasks-per-node=4`), or set `local_device_ids=` with all of them.
    """
    tasks, gpus = tasks_per_node(job.job.directives), gpus_per_node(job.job.directives)[0]
    for launch in job.launches:
        is_by_srun = launch.launcher == "python" and launch.srun is not None and launch.per_node == tasks
        text = file_at_hand(job, launch.script) if is_by_srun and launch.script else ""
        if text and _JAX.search(text) and 0 < tasks < gpus:
            found = f"{plural(tasks, 'task')} on a node of {gpus} GPUs, and JAX takes one for each"
            yield launch.line, found, f"--ntasks-per-node={gpus}"


_SLICE = re.compile(r"v\d\w{0,6}-(\d{1,5})")
_STARTS = re.compile(r"\bpython3? (?!-m pip)[^;&|]|\.sh\b|\b(?:ray|docker|tmux|screen|nohup) ")


@fault("tpu-host-alone", SHELL)
def tpu_host_alone(job: JobFile) -> Found:
    """
    A program is started on one host of a TPU slice that has several.

    Why: `gcloud compute tpus tpu-vm ssh` runs its command on worker 0 unless `--worker` says otherwise.  A
    slice of more than 8 (`v4-32`) has several hosts, and JAX waits on this one for the chips of the others.

    Fix: `--worker=all`.
    """
    commands = [c for c in job.job.commands if c.texts[0] == "gcloud" and "tpu-vm" in c.texts[:5]]
    asked = [(c, arguments(c.texts)) for c in commands]
    sizes = [m for _, given in asked if (m := _SLICE.fullmatch(given.get("accelerator-type", "")))]
    if len(sizes) != 1 or int(sizes[0][1]) <= 8 or "xla_dist" in job.text:
        return
    starts = [(c, given) for c, given in asked if _STARTS.search(given.get("command", ""))]
    if any(given.get("worker", "0") != "0" for _, given in starts):
        return
    for command, given in starts:
        if re.search(r"\bpython3? (?:-m )?[\w./]{0,80}train", given["command"]):
            yield command.line, f"started on one host of {sizes[0][0]}, which has several", "--worker=all"
