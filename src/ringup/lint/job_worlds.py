"""The number of nodes and ranks, and each node's own number among them."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Set as AbstractSet

from ringup.launchfiles.directives import last, node_count, tasks_per_node
from ringup.launchfiles.expansion import PER_TASK
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import BY_ENVIRONMENT, NODE_LAUNCHERS, ON_HOST, TORCH, Launch
from ringup.launchfiles.start import arguments
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.job_numbers import coordinator_at_itself
from ringup.lint.job_programs import worlds_of_fairseq
from ringup.lint.job_variables import names_set
from ringup.lint.rule import SHELL, Found, fault
from ringup.model import LOCAL_RANKS, RANK_VARIABLES, RANKS
from ringup.rules import Fix, Severity
from ringup.units import plural, printable

MOST_PARTS = 64
"""Launches of a file up to which the parts of one world are looked for."""
_OF_TASKS = ("ntasks-per-node", "tasks-per-node", "ntasks", "n")
_NAME = re.compile(r"[A-Za-z_]\w*")
_SETS_NODE_RANK = re.compile(r"(?m)^[ \t]*(?:export )?((?:NODE|MACHINE)_RANK)=[\"']?\$")
PER_TASK_OF = {
    "srun": PER_TASK,
    "jsrun": (*RANKS[1:4], *LOCAL_RANKS[1:3]),
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra"), (*RANKS[1:4], *LOCAL_RANKS[1:3])),
}
"""Program that starts tasks -> variables that it sets for each of them."""


@fault("launcher-started-per-task", SHELL)
def launcher_started_per_task(job: JobFile) -> Found:
    for launch in job.launches:
        if launch.launcher == "vllm" and launch.srun and (count := _tasks_of_server(job, launch)) > 1:
            found = f"srun starts the server {count} times, each wants the same port"
            yield launch.line, found, "one task: --ntasks=1"
        each = launch.per_node or 0
        starters = [step for step in launch.steps if step.role == "starter"]
        inner = next((step for step in starters[1:] if step.program in _STARTS_AGAIN), None)
        ranks = launch.number(inner.option("-np", "-n", "--np", "--ntasks") or "") if inner else None
        if inner and (ranks or 0) > 1 and (launch.instances or 0) > 1 and launch.started_by in _STARTS_AGAIN:
            found = f"{launch.started_by} starts {inner.program} {launch.instances} times, each {ranks} ranks"
            yield launch.line, found, f"{launch.started_by} or {inner.program}, not both"
            return
        is_node_launcher = launch.launcher in NODE_LAUNCHERS and launch.is_away
        if is_node_launcher and launch.nodes is None and (found := _more_than_nodes(launch)):
            yield launch.line, found, "one process a node: -np with the number of nodes, --map-by ppr:1:node"
            return
        if is_node_launcher and (found := _tasks_not_taken(job, launch)):
            yield job.finding(launch.line, found, "srun -N, with --ntasks-per-node=1", severity="warning")
        if launch.command.is_of_some or not is_node_launcher or each < 2:
            continue
        if launch.nnodes and launch.nnodes == launch.instances:
            continue
        step = launch.srun
        own = step and step.option("--ntasks-per-node", "-n", "--ntasks")
        tasks = max(last(job.job.directives, name)[1] for name in _OF_TASKS)
        line = launch.line if own or not step else tasks or launch.line
        found = f"{each} tasks a node, and each starts {launch.launcher} (line {launch.line})"
        yield line, found, "one task a node: --ntasks-per-node=1" if step else "one process a node"
        return


def _more_than_nodes(launch: Launch) -> str:
    """mpirun with more processes than the launcher has nodes, on hosts that are not known here."""
    step = next((step for step in launch.steps if step.program in ("mpirun", "mpiexec")), None)
    total = launch.number(step.option("-np", "-n", "--np") or "") if step else None
    if not launch.nnodes_text or (total or 0) <= (launch.nnodes or 0):
        return ""
    return f"{total} processes, each starts {launch.launcher}, which has --nnodes={launch.nnodes}"


def _tasks_of_server(job: JobFile, launch: Launch) -> int:
    """Tasks with which srun starts a server that gets no rank of its node; 0 if unknown."""
    if launch.arguments.keys() & {"node-rank", "data-parallel-rank", "port-offset"} or launch.is_one_a_round:
        return 0
    by_gpu, gpus = (last(job.job.directives, *names)[0] for names in (("ntasks-per-gpu",), ("gpus", "G")))
    if by_gpu.isdecimal() and gpus.isdecimal():
        return int(by_gpu) * int(gpus)
    return launch.per_node or 0


def _tasks_not_taken(job: JobFile, launch: Launch) -> str:
    """srun's own --ntasks-per-node against the job's number of tasks: without -N or -n srun ignores it."""
    step, asked = launch.srun, tasks_per_node(job.job.directives)
    own = (step and step.option("--ntasks-per-node")) or ""
    if step is None or step.has("-N", "--nodes", "-n", "--ntasks") or launch.allocated < 2:
        return ""
    if not own.isdecimal() or int(own) >= asked:
        return ""
    return f"srun ignores --ntasks-per-node={own} without -N: the job has {asked} tasks a node"


_STARTS_AGAIN = ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "prterun", "jsrun")
_NODES = {
    "PBS": "$(sort -u $PBS_NODEFILE | wc -l)",
    "BSUB": "$(echo $LSB_HOSTS | xargs -n1 | sort -u | wc -l)",
}


def _nodes_here(launch: Launch) -> str:
    """The number of nodes as written for this starter."""
    scheduler = next((d.scheduler for d in launch.job.directives), "")
    known = str(launch.nodes) if launch.nodes and not scheduler else "N, the number of nodes"
    is_slurm = scheduler == "SBATCH" or launch.srun is not None
    return _NODES.get(scheduler) or ("$SLURM_NNODES" if is_slurm else known)


@fault("several-worlds", SHELL)
def several_worlds(job: JobFile) -> Found:
    for launch in job.launches:
        worlds = launch.worlds or 1
        is_itself = launch.meets_itself and launch.nnodes != 1
        is_alone = launch.start.option("standalone") is not None
        is_itself = is_itself or (launch.started_by == "Job" and is_alone)  # each index has its own work
        is_several = worlds > 1 or launch.left_out
        if not is_several or is_itself or not launch.is_away or (launch.per_node or 1) > 1:
            continue
        case = "accelerate" if launch.launcher == "accelerate" else "torchrun"
        if launch.launcher == "deepspeed":
            told, wanted = "has no host file", "one start on the first node with --hostfile, or torchrun"
            case = "DeepSpeed"
        elif is_alone:
            told, wanted = "has --standalone: its node alone", "--nnodes and a rendezvous endpoint"
        else:
            name = "--nnodes" if launch.launcher in TORCH else "number of nodes"
            told = f"has {name} {launch.nnodes}" if launch.nnodes_text else f"has no {name}"
            wanted = f"--nnodes={_nodes_here(launch)}" if launch.launcher in TORCH else "the number of nodes"
        found = f"{launch.started_by} starts it on {launch.nodes} nodes, and {launch.launcher} {told}: "
        if not launch.left_out:
            found += f"{worlds} worlds"
        elif launch.backend == "c10d":
            found += f"no place for {plural(launch.left_out, 'node')}: a wait, then an error"
        else:
            found += "their ranks have the same numbers at one store"
        yield launch.line, found, wanted, "one endpoint" if launch.left_out else case
    yield from _worlds_by_pdsh(job)
    yield from worlds_of_fairseq(job)
    for launch in job.launches:
        if launch.launcher == "ray" and "--head" in launch.command.texts and (launch.instances or 1) > 1:
            found = f"{launch.started_by} starts a head on each of {launch.nodes} nodes"
            wanted = "--head on the first node, --address=HEAD:PORT on the others"
            yield launch.line, found, wanted, "each head is a cluster of its own", f"ray start {wanted}"


_BY_PDSH = (
    "accelerate then starts `deepspeed`, which reaches other nodes by its host file alone.",
    "`--deepspeed_multinode_launcher standard` on each machine, with its `--machine_rank`.",
)


def _worlds_by_pdsh(job: JobFile) -> Found:
    """accelerate passes several machines to `deepspeed --launcher pdsh`: prepare_deepspeed_cmd_env."""
    for launch in job.launches:
        is_many = launch.launcher == "accelerate" and (launch.nnodes or 0) > 1 and not launch.is_opaque
        is_by = launch.config.get("distributed_type") == "DEEPSPEED" or launch.has("use-deepspeed")
        own, how = launch.node_rank_text, launch.option("deepspeed-multinode-launcher")
        is_each = has_mark(own) or own.strip("0").isdecimal() or (launch.worlds or launch.instances or 0) > 1
        if is_many and is_by and is_each and how != "standard" and not launch.has("deepspeed-hostfile"):
            found = "each machine starts it, and DeepSpeed, without a host file, trains on its machine alone"
            yield launch.line, found, "--deepspeed_multinode_launcher standard", *_BY_PDSH


@fault("rendezvous-endpoint-missing", SHELL, each="launches")
def rendezvous_endpoint_missing(job: JobFile, launch: Launch) -> Found:
    """
    A launcher of several nodes is given no address at which they meet.

    Why: every node then waits for the others at itself.

    Why, c10d: Torchrun takes localhost without `--rdzv-endpoint`; it ignores `--master-addr` and MASTER_ADDR.

    Why, static: Torchrun takes 127.0.0.1 without `--master-addr`; it does not read MASTER_ADDR.

    Why, accelerate: Accelerate takes None for the address.

    Fix: `--rdzv-endpoint=$HEAD:$PORT`, HEAD the first node's name, the same on every node.

    Fix, static: `--master-addr=$HEAD`, HEAD the first node's name, the same on every node.

    Fix, accelerate: `--main_process_ip $HEAD`, HEAD the first node's name, the same on every node.
    """
    is_open = launch.is_set_outside or launch.unread_config or launch.is_opaque
    if launch.endpoint or is_open or (launch.nnodes or 0) < 2 or launch.nodes == 1 == launch.replicas:
        return
    if launch.launcher in TORCH and launch.backend == "c10d":
        ignored = " (--master_addr is ignored)" if launch.option("master-addr") else ""
        found = f"c10d without --rdzv-endpoint{ignored}: each node meets itself"
        yield launch.line, found, "--rdzv-endpoint", "c10d"
    elif launch.launcher in TORCH and launch.backend == "static":
        ignored = "; torchrun does not read MASTER_ADDR" if launch.env.get("MASTER_ADDR") else ""
        missing, wanted = "no --master-addr", "--master-addr, an address of the first node"
        if "master-addr" in launch.arguments:
            missing = "--master-addr behind the script goes to the script"
            wanted = "it in front of the script"
        # An operator may set both: torchrun reads PET_NODE_RANK and PET_MASTER_ADDR.
        is_open = launch.started_by == "shell" and not launch.node_rank_text and "MASTER" not in job.text
        found = f"{missing}: every node takes 127.0.0.1{' without PET_MASTER_ADDR' * is_open}{ignored}"
        severity: Severity = "warning" if is_open and "master-addr" not in launch.arguments else "error"
        yield job.finding(launch.line, found, wanted, severity=severity, case="static")
    elif launch.launcher == "accelerate" and not _by_deepspeed(launch):
        yield launch.line, "no --main_process_ip for several machines", "--main_process_ip", "accelerate"


def _by_deepspeed(launch: Launch) -> bool:
    """Whether DeepSpeed's own launcher reaches the other nodes, by its host file."""
    how = launch.option("deepspeed-multinode-launcher")
    return launch.has("deepspeed-hostfile") or how not in ("", "standard")


@fault("rendezvous-endpoint-own", SHELL)
def rendezvous_endpoint_own(job: JobFile) -> Found:
    """
    The address at which several nodes meet is each node's own: localhost, or a host name read on every node.

    Why: each node opens a store at itself and waits there for the others.

    Fix: use the name or address of the first node, read once, the same on every node.
    """
    for launch in job.launches:
        several = launch.number(launch.setting("nnodes")) if launch.launcher in TORCH else 0
        if launch.start.option("standalone") is not None and (several or 0) > 1:
            found = f"--standalone: the ranks of {several} nodes meet at localhost:0, each at its own"
            yield launch.line, found, "no --standalone"
            continue
        if several is None and launch.start.option("standalone") is not None and launch.node_rank_text:
            found = f"--standalone, and --nnodes {launch.shown(launch.nnodes_text)}: each node meets itself"
            yield job.finding(launch.line, found, "no --standalone", severity="warning")
        count = launch.nodes if launch.launcher == "python" and launch.is_away else launch.nnodes
        if launch.started_by == "manifest" and launch.env.get("RANK") and "network_mode" not in job.text:
            count = launch.number(launch.env.get("WORLD_SIZE", ""))
        is_own_world = launch.start.option("standalone") is not None
        is_one = (count or 0) < 2 and not (count is None and launch.is_one_a_round)
        # DeepSpeed's runner reads no MASTER_ADDR, ColossalAI's replaces it.
        is_one |= launch.launcher == "deepspeed" and not launch.option("master-addr")
        if launch.launcher == "colossalai" or is_own_world or is_one:
            continue
        if (own := launch.host_is_own) and not on_this_machine(job, launch):
            found = f"the ranks meet at {own}: each node connects only to itself"
            # The first node's own line: torch gives its ranks the address that each node's line has.
            is_first = launch.launcher in (*TORCH, *BY_ENVIRONMENT) and launch.node_rank_text == "0"
            others = (one.host for one in job.launches if one.node_rank_text not in ("", "0"))
            is_first &= launch.backend != "c10d" or any(host != launch.host for host in others)
            yield job.finding(launch.line, found, "the first node", is_sure=not is_first)
    yield from coordinator_at_itself(job)


def on_this_machine(job: JobFile, launch: Launch) -> list[Launch]:
    """The launches of one world that this file starts, all nodes on one machine; [] if not."""
    on_host = launch.pod is not None and launch.pod.is_on_host
    if (launch.is_away and not on_host) or (launch.nnodes or 0) < 2 or len(job.launches) > MOST_PARTS:
        return []
    same = [
        one
        for one in job.launches
        if (one.pod and one.pod.is_on_host if on_host else not one.is_away)
        and (one.script, one.endpoint, one.nnodes) == (launch.script, launch.endpoint, launch.nnodes)
    ]
    is_all = len(same) == launch.nnodes and (on_host or all(one.command.detached for one in same[:-1]))
    return same if is_all and len({one.command.branches for one in same}) == 1 else []


@fault("node-variable-read-too-early", SHELL)
def node_variable_read_too_early(job: JobFile) -> Found:
    """
    A variable that differs per task is read before srun or mpirun has started the tasks.

    Why, Slurm: in the batch shell SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID are always 0: every node gets
    node rank 0, every task rank 0.

    Why, MPI: only the tasks have OMPI_COMM_WORLD_RANK or PMI_RANK; in this shell they are empty.

    Fix, Slurm: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'`, in single quotes.

    Fix, MPI: `mpirun ... bash -c 'RANK=$OMPI_COMM_WORLD_RANK python train.py'`, in single quotes.
    """
    yield from _fields_of_awk(job)
    wanted = "single quotes around the command, so that each task reads its own"
    seen = set()
    by_command = {id(launch.command): launch for launch in job.launches}
    for command in job.job.commands:
        steps = [step.program for step in command.steps]
        if not (starter := next((program for program in steps if program in PER_TASK_OF), "")):
            continue
        launch = by_command.get(id(command))
        if command.start.text is not None or (launch and (launch.nodes == 1 or _ignores_rank(launch))):
            continue
        of = "Slurm" if starter == "srun" else "MPI"
        for step in command.start.steps if launch else ():
            if early := read_early(job, job.job.files.get(step.program.removeprefix("./"), ""), starter):
                found, own = f"in {printable(step.program, 60)}, which this file writes, {early}", "<<'EOF'"
                yield command.line, found, f"quotes around the mark of the here-document: {own}", of
        is_launched = launch is not None or command.start.launcher or command.start.rest
        for word in command.words if is_launched else ():
            if word.line not in seen and (early := read_early(job, word.text, starter)):
                seen.add(word.line)
                yield word.line, early, wanted, of
                break
        by_name = launch is not None and launch.launcher in ("python", *BY_ENVIRONMENT)
        is_several = launch is not None and by_name and launch.instances != 1
        for name in RANK_VARIABLES if is_several else ():
            if early := read_early(job, command.env.get(name, ""), starter):
                # A wrapper in another file may set it again.
                is_open = any(s.program.endswith(".sh") for s in command.steps)
                found, own = f"{name}: {early}", f"{name} set in each task"
                yield job.finding(command.line, found, own, is_sure=not is_open, case=of)
                break


_IN_QUOTES = re.compile(r"\"(?:[^\"$`]|\$(?!\())*\bawk '[^'\"]{0,200}\{ ?print +(\$\d{1,2})[^'\"]{0,100}'")


def _fields_of_awk(job: JobFile) -> Found:
    """`ssh n1 "ps | awk '{print $2}'"`: in double quotes $2 is the script's own argument."""
    for command in job.job.commands:
        for word in command.words:
            if match := _IN_QUOTES.match(word.raw[:2000]):
                found = f"{match[1]} of awk in double quotes: this shell replaces it"
                why = f"Inside double quotes the script's own {match[1]} is put in, which is often empty."
                yield word.line, found, f"\\{match[1]}", why, f"write \\{match[1]}"


def read_early(job: JobFile, text: str, starter: str) -> str:
    """The value of a variable that differs per task, in the shell that reads it here; "" if it reads none."""
    for mark in job.job.marks.all_of(text):
        if mark.name in PER_TASK_OF[starter] and mark.site == "batch":
            told = "0 on every node" if starter == "srun" else "nothing is set yet"
            return f"${mark.name} is replaced before {starter} starts: {told}"
    return ""


def _ignores_rank(launch: Launch) -> bool:
    """Whether the launcher does not use the node rank: c10d numbers the nodes itself."""
    return launch.launcher in (*TORCH, "accelerate") and (launch.backend == "c10d" or launch.nnodes == 1)


def has_one_rank_for_all(launch: Launch, assigned: AbstractSet[str] = frozenset()) -> str:
    """Why every started node gets the same node rank; "" if it does not, or may not."""
    is_static = launch.launcher in (*TORCH, "accelerate", *BY_ENVIRONMENT) and launch.backend == "static"
    one = launch.nodes == 1 or launch.replicas == 1
    one = one or launch.started_by in ("kubectl", "xargs", "parallel")
    one = one or (launch.started_by in ON_HOST and bool(launch.command.branches))
    is_open = launch.is_opaque or _by_deepspeed(launch)
    is_open = is_open or (launch.is_set_outside and launch.start.option("node-rank") is None)
    is_open = is_open or (launch.unread_config and launch.start.option("machine-rank") is None)
    on_one = launch.srun is not None and launch.srun.has("-w", "--nodelist") and not launch.is_one_a_round
    is_one_node = (launch.nnodes or 0) < 2 and not (launch.nnodes is None and launch.is_one_a_round)
    if not is_static or not launch.is_away or one or on_one or is_open or is_one_node:
        return ""
    text = launch.node_rank_text
    if not text and launch.launcher in BY_ENVIRONMENT and launch.srun is None:
        return ""  # the machine may set NODE_RANK
    if not text:
        is_set = "rank=" in launch.option("rdzv-conf") or has_mark(launch.option("rdzv-conf"))
        return "" if is_set else "nothing gives the node's rank"
    mark = launch.job.marks.of(text)
    if mark and mark.name == "SLURM_LOCALID" and launch.srun and launch.per_node == 1:
        return f"{launch.shown(text)} is the task's number on its node"
    of_others = launch.started_by == "SkyPilot" and mark and not mark.name.startswith("SKYPILOT")
    of_this_shell = launch.started_by in ("ssh", "gcloud") and mark and mark.site == "batch"
    if mark and _NAME.fullmatch(mark.name) and (of_others or of_this_shell) and mark.name not in assigned:
        return f"nothing sets {launch.shown(text)} for each node"
    return f"the node rank is {text}" if text.isdecimal() else ""


_EACH_ITS_OWN = {
    "srun": "srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...', in single quotes",
    "mpirun": "mpirun ... bash -c 'torchrun --node-rank=$OMPI_COMM_WORLD_RANK ...', in single quotes",
    "ssh": "count in the loop: `--node-rank=$i`, one more in each round",
    "SkyPilot": "--node-rank=$SKYPILOT_NODE_RANK",
}


@fault("node-rank-duplicate", SHELL)
def node_rank_not_read(job: JobFile) -> Found:
    """LLaMA-Factory's RANK, which is NODE_RANK since 0.9.1; and a missing one, which torchrun reads as 0."""
    assigned, seen = names_set(job), set[str]()
    for launch in job.launches:
        how = has_one_rank_for_all(launch, assigned)
        if how and launch.replicas is not None:  # once for Master and Worker of one workload
            how = "" if how + launch.script in seen else how
            seen.add(how + launch.script)
        same = [
            one.pods or 0
            for one in job.launches
            if (one.started_by, one.node_rank_text) == (launch.started_by, launch.node_rank_text)
        ]
        if how and (launch.pods is None or sum(same) > 1):
            number = launch.node_rank_text if launch.node_rank_text.isdecimal() else "0"  # SLURM_LOCALID, too
            where = f"in {launch.pods} pods" if (launch.pods or 0) > 1 else "on every node"
            found = f"{launch.started_by} starts this {where}, and {how}: all are node {number}"
            severity: Severity = "warning" if launch.unread_config else "error"
            fix = Fix(_EACH_ITS_OWN.get(launch.started_by, "give each node its own: 0, 1, 2, ..."))
            wanted = "--node-rank, another on each node"
            yield job.finding(launch.line, found, wanted, severity=severity, fix=fix)
        is_alone = launch.backend == "static" and (launch.nnodes or 0) > 1 and len(job.launches) == 1
        other = _SETS_NODE_RANK.search(job.text) if is_alone else None
        is_read = other and any(f"{begin}{other[1]}" in job.text for begin in ("$", "${"))
        if other and not (launch.is_away or is_read) and launch.node_rank_text == "0":
            found = f"the node rank is written as 0, and nothing reads {other[1]}"
            yield job.finding(launch.line, found, f"--node-rank ${other[1]}", severity="warning")
        if how := _counts_its_part(job, launch):
            yield launch.line, how, "a number of its own for each pod"
        ranks = [one.node_rank_text or "0" for one in on_this_machine(job, launch)]
        if launch.backend == "static" and len(ranks) > 1 and len({*ranks}) == 1 and ranks[0].isdecimal():
            found = f"{len(ranks)} launches of one world, and each is node {ranks[0]}"
            yield launch.line, found, "--node-rank, another for each"
        own = launch.job.marks.of(launch.env.get("RANK", "")) if launch.launcher == "python" else None
        each, of_nodes = launch.per_node or 0, own is not None and own.name == "SLURM_NODEID"
        if of_nodes and each > 1:
            yield launch.line, f"RANK=$SLURM_NODEID: the {each} tasks of a node are one rank", "SLURM_PROCID"
        elif own and own.name in ("SLURM_LOCALID", *LOCAL_RANKS[1:]) and (launch.nodes or 0) > 1:
            found = f"RANK=${own.name}, the task's number on its node: {launch.nodes} tasks are rank 0"
            yield launch.line, found, "RANK=$SLURM_PROCID" if launch.srun else "the rank among all nodes"
        old = launch.launcher == "llamafactory" and launch.env.get("RANK")
        if old and not launch.env.get("NODE_RANK") and launch.env.get("NNODES", "") not in ("", "1"):
            found = "RANK is given; LLaMA-Factory 0.9.1 and later read NODE_RANK: every node is node 0"
            fix = Fix("Set NODE_RANK as well as RANK.", env={"NODE_RANK": launch.shown(launch.env["RANK"])})
            yield job.finding(launch.line, found, "NODE_RANK (both for older versions, too)", fix=fix)


def _counts_its_part(job: JobFile, launch: Launch) -> str:
    """Why the index in a pod's node rank counts only the pods of its part of the workload."""
    mark = launch.job.marks.of(launch.node_rank_text)
    name, by = mark.name if mark else "", launch.started_by
    parts = [one for one in job.launches if one.started_by == by and one.script == launch.script]
    if by == "Volcano" and name in ("VC_TASK_INDEX", "VK_TASK_INDEX") and len(parts) > 1:
        return f"${name} counts the pods of one task: the first of each task is 0"
    if by == "JobSet" and name == "JOB_COMPLETION_INDEX" and (launch.replicas or 0) > 1:
        each = re.findall(r"\bparallelism: {0,4}(\d{1,4})\b", job.text)
        if {*each} <= {"1"}:
            return f"${name} counts the pods of one Job: it is 0 in each of {launch.replicas} Jobs"
    if by == "LeaderWorkerSet" and name == "LWS_GROUP_INDEX" and (launch.replicas or 0) > 1:
        return f"${name} is the group's number, the same in all of its {launch.replicas} pods"
    return ""


_TRAINING = re.compile(r"(?i)train|fine_?tune|main|test|eval|sft|fit")
_NODE_COUNT = re.compile(r"(?:trainer\.)?(?:n(?:um)?-?)?nodes|num-machines")
_REACHES_OTHERS = re.compile(r"(?i)host|node|slurm|mpi|launch|cluster|ray|dask|submit|deepy")


@fault("launcher-on-first-node-alone", SHELL)
def launcher_on_first_node_alone(job: JobFile) -> Found:
    """
    A job file requests several nodes, but starts the launcher only on the first.

    Why: Slurm and PBS run the file on the first node only; a launcher of several nodes then waits for the
    others, one of a single node leaves them idle.

    Why, configuration: Only a DeepSpeed launcher such as pdsh in accelerate's configuration would start them.

    Fix: `ringup run -- ...` in its place.

    Fix, Slurm: `srun --ntasks-per-node=1` in front of the launcher, or `ringup run -- ...` in its place.

    Fix, PBS: `mpiexec` with one process per node in front of the launcher (pbsdsh), or `ringup run -- ...` in
    its place.
    """
    for launch in job.launches:
        is_ray = launch.launcher == "ray"  # `ray start`
        # With --multi_gpu it takes no DeepSpeed from its configuration: launch.py, _validate_launch_command.
        is_unread = launch.unread_config and not launch.has("multi-gpu")
        is_unsure = is_unread and launch.has("machine-rank")
        own = (is_unread and not is_unsure) or _by_deepspeed(launch)
        own = own or (launch.is_opaque and not is_ray and not launch.nnodes_text)
        is_node_launcher = is_ray or launch.launcher in (*TORCH, "accelerate", *BY_ENVIRONMENT)
        is_node_launcher = is_node_launcher or (launch.launcher == "deepspeed" and launch.nnodes == 1)
        name = posixpath.basename(launch.script)
        told = [o for o in launch.arguments if _NODE_COUNT.fullmatch(o)]
        is_told = any(launch.number(launch.arguments[o]) == launch.allocated for o in told)
        others = [
            w for w in launch.start.arguments if w.lstrip("-").partition("=")[0].replace("_", "-") not in told
        ]
        trains = _TRAINING.search(name) and not _REACHES_OTHERS.search(" ".join([name, *others]))
        is_node_launcher = is_node_launcher or (launch.launcher == "python" and bool(trains))
        if launch.started_by != "batch" or launch.allocated < 2 or not is_node_launcher or own:
            continue
        if job.away - {"ray" * is_ray}:
            return
        if _is_of_one_node(job, launch):
            continue
        is_started = is_ray or launch.unread_config
        alone = f"{'starts' if is_started else 'trains'} on the first node alone"
        what = alone if is_started or launch.nnodes == 1 else "waits for nodes on which nothing starts it"
        found = f"{launch.allocated} nodes are asked for, and {launch.launcher} {what}"
        if launch.launcher == "python":
            found = f"{launch.allocated} nodes are asked for, and python is started on the first alone"
            severity: Severity = "error" if is_told else "warning"
            yield job.finding(launch.line, found, "one node, or srun in front of it", severity=severity)
        elif is_unsure:
            wanted = "srun in front of it"
            yield job.finding(launch.line, found, wanted, severity="warning", case="configuration")
        elif launch.launcher == "deepspeed":  # with srun each node would form a world of its own
            fix = Fix("write a host file with `HOST slots=N` for every node, and give it: `--hostfile FILE`")
            yield job.finding(launch.line, found, "--hostfile with every node", fix=fix)
        else:
            of = {"SBATCH": "Slurm", "PBS": "PBS"}.get(launch.job.directives[0].scheduler, "")
            starter = {"Slurm": "srun", "PBS": "mpiexec, one process per node,"}.get(
                of, "a start on every node"
            )
            yield launch.line, found, f"{starter} in front of it", of
        return


def _is_of_one_node(job: JobFile, launch: Launch) -> bool:
    """Whether it is in a branch of an `if` whose other branch starts on the nodes of a host file."""
    own = dict(launch.command.branches)
    others = [dict(one.command.branches) for one in job.launches if one.option("hostfile")]
    return any(other[line] != own[line] for other in others for line in own.keys() & other.keys())


_PARTS = ("manifest", "Pod")
"""Starters of one part of a world; others start the rest."""
_PRODUCT = re.compile(
    r"(?m)(?:^|\s)(\w{1,40})=\"?\$\(\( {0,4}\$?\{?(\w{1,40})\}? {0,4}\* {0,4}\$?\{?(\w{1,40})\}? {0,4}\)\)"
)
_EACH = re.compile(r"--(?:num[_-]gpus|nproc[_-]per[_-]node)[= ]\"?\$\{?(\w{1,40})")
_NODES_GIVEN = re.compile(r"--(?:num[_-]nodes|nnodes)[= ]\"?\$\{?(\w{1,40})")


def _of_ray(job: JobFile) -> Found:
    """More nodes than the job that starts Ray: "Total available GPUs ... is less than" (verl's trainer)."""
    is_own = any(one.launcher == "ray" for one in job.launches)
    for launch in job.launches if is_own else ():
        asked = launch.nodes_shown or 0
        if launch.is_by_ray and launch.started_by == "batch" and asked > launch.allocated > 0:
            found = f"trainer.nnodes={asked}, and Ray has the {plural(launch.allocated, 'node')} of this job"
            yield launch.line, found, f"trainer.nnodes={launch.allocated}"


def _of_all_nodes(job: JobFile) -> Found:
    """A number of ranks for each node that was multiplied by the nodes."""
    products = {name: {a, b} for name, a, b in _PRODUCT.findall(job.text)}
    for launch in (one for one in job.launches if products and one.launcher in (*TORCH, "deepspeed")):
        written = " ".join(word.raw for word in launch.command.words)
        each, nodes = _EACH.search(written), _NODES_GIVEN.search(written)
        if each and nodes and nodes[1] in products.get(each[1], ()) and nodes[1] != each[1]:
            own = "".join(products[each[1]] - {nodes[1]})
            found = f"${each[1]} are the ranks of all nodes: started on each of them"
            why = "torchrun's --nproc-per-node and DeepSpeed's --num_gpus are numbers for one node."
            yield launch.line, found, f"${own}", why, f"give it ${own}"


@fault("world-size-disagrees", SHELL)
def world_size_disagrees(job: JobFile) -> Found:
    """Nodes or ranks that contradict what starts them, or each other in accelerate's configuration."""
    given = dict(re.findall(r"(?m)^(num_machines|num_processes): {0,4}([1-9]\d{0,5})\b", job.text))
    if not job.launches and len(given) == 2:
        total, machines = int(given["num_processes"]), int(given["num_machines"])
        if total % machines:
            line = next(n for n, t in enumerate(job.lines, 1) if t.startswith("num_processes:"))
            found = f"{total} processes over {machines} machines: {total // machines} on each"
            yield line, found, "a multiple of the machines: num_processes is the total"
    yield from _of_all_nodes(job)
    yield from _of_ray(job)
    together = Counter((one.script, one.nnodes_text) for one in job.launches)
    for launch in job.launches:
        count, wanted = launch.instances, launch.nnodes or 0
        if (launch.allocated or wanted) < wanted <= launch.most_nodes:
            continue  # Slurm may give as many
        if launch.launcher == "python" and launch.is_away and count:
            yield from _of_programs(launch, count)
            continue
        rank = launch.number(launch.node_rank_text) or 0
        if launch.launcher in TORCH and launch.backend == "static" and rank >= wanted > 0:
            numbers = "0, which opens the store" if wanted == 1 else f"0 to {wanted - 1}"
            yield launch.line, f"--node-rank={rank}, and the nodes are {numbers}", "one of these"
            continue
        if launch.launcher not in NODE_LAUNCHERS or wanted < 2 or launch.launcher == "deepspeed":
            continue
        if together[(launch.script, launch.nnodes_text)] > 1 and launch.command.detached:
            continue  # parts of one world
        is_alone = launch.started_by in _PARTS and count == 1
        words = launch.shown(" ".join(launch.command.texts))
        is_elastic = launch.started_by == "PyTorchJob" and re.search(r"\bmaxReplicas: *[2-9]", job.text)
        if is_elastic or (launch.started_by == "LeaderWorkerSet" and "LWS_" not in words):
            continue  # an autoscaler may change the number of pods
        is_several = tasks_per_node(job.job.directives) > 1 and launch.is_node_count(launch.nnodes_text)
        if is_several and re.search(r"\$\(echo \"?\$\{?LSB_HOSTS\}?\"? ?\| ?wc -w ?\)", job.text):
            found = "LSB_HOSTS has a word for each slot, not for each host"
            yield launch.line, found, "$(echo $LSB_HOSTS | xargs -n1 | sort -u | wc -l)"
            continue
        if off := _ranks_from(job, launch):
            yield job.finding(launch.line, off[0], off[1])
            continue
        is_part = (count or 0) < wanted and count != launch.allocated
        is_short = launch.started_by in ON_HOST and (is_part or launch.command.branches)
        if launch.is_away and count and count % wanted and not is_short and not is_alone:
            times = "once" if count == 1 else f"{count} times"
            found = f"it waits for {wanted} nodes, and {launch.started_by} starts it {times}"
            if launch.started_by == "LeaderWorkerSet":
                found = f"it waits for {wanted} nodes, and a group has {plural(count, 'pod')} (size)"
                yield launch.line, found, f"size: {wanted}; replicas counts the groups"
                continue
        elif (
            launch.started_by == "batch"
            and launch.nnodes_text.isdecimal()
            and launch.allocated not in (0, wanted)
        ):
            found = f"{wanted} nodes, but {launch.allocated} are asked for"
        else:
            continue
        yield launch.line, found, f"as many as it is started on: {_nodes_here(launch)}"


def _of_programs(launch: Launch, count: int) -> Found:
    """A world size by the environment or by fairseq's option, of ranks that are started one by one."""
    wanted = launch.number(launch.env.get("WORLD_SIZE", "")) if "RANK" in launch.env else None
    most = launch.number(launch.arguments.get("distributed-world-size", "")) or 0
    if wanted and wanted != count and launch.started_by not in _PARTS:
        found = f"WORLD_SIZE is {wanted}, and {launch.started_by} starts {count} ranks"
        yield launch.line, found, f"WORLD_SIZE={count}"
    elif 0 < most < count:
        found = f"--distributed-world-size {most}, and {launch.started_by} starts {count} ranks"
        yield launch.line, found, f"--distributed-world-size {count}"


def _ranks_from(job: JobFile, launch: Launch) -> tuple[str, str] | None:
    """(found, expected) if a loop numbers all nodes but does not begin at 0."""
    text, wanted = launch.node_rank_text, launch.nnodes or 0
    count = job.job.counted.get(text)
    is_all = launch.nodes == wanted and len(job.launches) == 1 and not launch.command.branches
    if count is None or launch.backend != "static" or not is_all:
        return None
    begin = count.first + (0 < count.line < launch.line)
    shown = f"{launch.shown(text)} is {begin} to {begin + wanted - 1}"
    return (f"{shown}, and the nodes are 0 to {wanted - 1}", "a count from 0") if begin else None


@fault("ray-port-differs", SHELL)
def ray_port_differs(job: JobFile) -> Found:
    """
    Nodes of Ray are started with another port than that of the head, or without an address.

    Why: nothing listens there, and `ray start` ends after its attempts to connect; the head's port is 6379
    without --port.  Without --head and without an address `ray start` ends with a usage message.

    Fix: use one port for `--port` and `--address`.
    """
    heads, seen = set(), []
    for launch in (one for one in job.launches if one.launcher == "ray"):
        given = arguments(launch.command.texts)
        port = given.get("port") or "6379"
        if "head" in given:
            heads.add(port)
        elif given.get("address", "") == "" and not launch.is_opaque and "RAY_ADDRESS" not in job.text:
            found = "`ray start` without --head, and without the head's address"
            yield launch.line, found, "--address=HEAD:6379"
        elif (address := given.get("address", "")) and ":" in address:
            seen.append((launch.line, address.rpartition(":")[2]))
    for line, port in seen:
        if len(heads) == 1 and port.isdecimal() and port not in heads and min(heads).isdecimal():
            yield line, f"port {port}, and the head listens at {min(heads)}", f"port {min(heads)}"


@fault("step-exceeds-job", SHELL)
def step_exceeds_job(job: JobFile) -> Found:
    """
    srun asks for more nodes than the job has.

    Why: srun ends with "Only allocated N nodes asked for M".

    Fix: request no more nodes than `#SBATCH --nodes`.
    """
    nodes, line = node_count(job.job.directives)
    for launch in job.launches:
        step, asked = launch.srun, launch.number(launch.of_srun("-N", "--nodes")) or 0
        most = launch.most_nodes or nodes
        if step and 0 < most < asked and not step.has("--jobid", "--het-group"):
            found = f"srun --nodes={asked}, and the job has {most} (line {line})"
            yield launch.line, found, f"at most {most}"
        if launch.started_by in ("mpirun", "mpiexec") and 0 < most < (launch.nodes or 0):
            found = f"its ranks are those of {launch.nodes} nodes, and the job has {most} (line {line})"
            yield job.finding(launch.line, found, f"ranks of {most} nodes", severity="warning")


_BY_NODES = re.compile(r"world_size *= *int\(os\.(?:environ\[|getenv\()[\"']SLURM_(?:NNODES|NTASKS|NPROCS)")

_COUNTS_TASKS = re.compile(r"\bWORLD_SIZE=[^\n]{0,60}SLURM_NTASKS")


@fault("rank-not-set", SHELL, each="launches")
def launcher_left_out(job: JobFile, launch: Launch) -> Found:
    """
    Scripts that are started once, without a launcher, with settings for several ranks.

    `--launcher pytorch` is OpenMMLab's and BasicSR's; WORLD_SIZE of Slurm's tasks waits for all of them.
    """
    is_alone = launch.launcher == "python" and launch.started_by == "batch" and not job.away
    is_counted = "WORLD_SIZE" in launch.env and _COUNTS_TASKS.search(job.text)
    if is_alone and is_counted and "RANK" not in launch.env:
        tasks = tasks_per_node(job.job.directives)
        if tasks > 1 and "spawn" not in text_of(job, launch.script):
            found = f"WORLD_SIZE counts {tasks} tasks a node, and without srun there is one"
            yield launch.line, found, "srun in front of it"
    text = text_of(job, launch.script) if is_alone else ""
    nodes, line = node_count(job.job.directives)
    if nodes > 1 and _BY_NODES.search(text) and "init_process_group" in text:
        found = f"the script counts {nodes} nodes (line {line}), and without srun it runs on one"
        yield launch.line, found, "srun in front of it"
    is_told = launch.arguments.get("launcher") == "pytorch" and "RANK" not in launch.env
    if launch.launcher == "python" and is_told and not launch.is_away:
        found = "--launcher pytorch: the script reads RANK, and python alone sets none"
        yield launch.line, found, "torchrun in place of python"
    elif launch.launcher == "python" and is_told and launch.started_by in PER_TASK_OF:
        found = f"--launcher pytorch: the script reads RANK, and {launch.started_by} sets none"
        own = "slurm" if launch.started_by == "srun" else "mpi"
        yield launch.line, found, f"--launcher {own}, or torchrun in place of python"
