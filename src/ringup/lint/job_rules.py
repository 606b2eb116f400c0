"""What in a shell or job file breaks, hangs or does something else than it says."""

from __future__ import annotations

import re

from ringup.lint.rule import SHELL, Found, fault, lines
from ringup.lint.shell import Job, Launch, launches
from ringup.rules import Fix
from ringup.units import lines_of

_PER_TASK = re.compile(r"\$\{?(SLURM_(?:PROCID|NODEID|LOCALID|TASK_PID)|SLURMD_NODENAME)\b")
_DASHES = re.compile("^[–—−]{1,2}\\w")  # en dash, em dash, minus sign
_FLAG_VALUE = re.compile(r"(?i)^(?:true|false|yes|no|none|0|1)$")
_LITERAL_PORT = re.compile(r"^\d{2,5}$")
_STARTS_RANKS = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|python")
NODE_LAUNCHERS = ("torchrun", "launch", "accelerate", "deepspeed", "llamafactory")
PORTS = ("master_port", "main_process_port")
GIVEN = frozenset(("i", "j", "k", "n", "host", "node", "line", "f"))


def several_nodes(launch: Launch, job: Job) -> bool:
    """Whether it is one of several nodes' lines, or may be."""
    count = launch.option("nnodes", "num_machines") or launch.variable("NNODES")
    if count not in ("", "1", "1:1") or job.option("nodes", "N")[0] not in ("", "1"):
        return True
    return "," in launch.option("host") or bool(launch.option("hostfile"))


@fault("slashes-are-no-comment", SHELL)
def slashes_are_no_comment(job: Job) -> Found:
    """
    `//` after a command is taken for a comment.

    Why: the shell knows no `//`; it and the words behind it go to the command as arguments, and a
    training script refuses what it does not know.

    Fix: `#` begins a comment.
    """
    for command in job.commands:
        word = next((w for w in command.words[1:] if re.fullmatch("//[^/]*", w.raw)), None)
        if word is not None:
            program = command.texts[0].rpartition("/")[2]
            found = f"`{word.raw}` and what follows are arguments of {program}"
            yield word.line, found, "# before a comment"


@fault("dash-is-no-hyphen", SHELL)
def dash_is_no_hyphen(job: Job) -> Found:
    """
    An option begins with a typographic dash instead of hyphens.

    Why: web pages and word processors turn `--` into a dash; the program takes the word for an
    argument, often for the image or the script.

    Fix: type `--` again.
    """
    for command in job.commands:
        bad = [w for w in command.words if _DASHES.match(w.raw)]
        if bad:
            yield bad[0].line, f"`{bad[0].raw[:40]}`{lines([w.line for w in bad])}", "two hyphens"


@fault("backslash-before-space", SHELL)
def backslash_before_space(job: Job) -> Found:
    """
    A line continuation (backslash) is followed by a space.

    Why: the backslash then quotes the space, the command ends here, and its further options are run
    as commands of their own.

    Fix: nothing after the backslash.
    """
    for number, line in enumerate(lines_of(job.text), 1):
        if re.search(r"(?<!\\)\\[ \t]+$", line) and not line.lstrip().startswith("#"):
            yield number, "a space after the backslash", "a line end"


@fault("export-takes-further-words", SHELL)
def export_takes_further_words(job: Job) -> Found:
    """
    Words after an assignment are exported as well, or refused.

    Why: `export A=b c` exports a variable c; `export A = b` and `export A=b :` are errors, and the value is
    not what it seems.

    Fix: one word after `=` (quoted where it has spaces), `#` before a comment.
    """
    for command in job.commands:
        texts = command.texts
        if texts[:1] != ["export"] or not any("=" in t for t in texts[1:]):
            continue
        odd = [w for w in command.words[1:] if "=" not in w.raw and not w.raw.startswith("-")]
        odd += [w for w in command.words[1:] if w.raw == "="]
        if odd:
            yield odd[0].line, f"`{odd[0].raw[:40]}` behind the assignment", "NAME=VALUE alone"


@fault("launcher-started-per-task", SHELL)
def launcher_started_per_task(job: Job) -> Found:
    value, line = job.option("ntasks-per-node", "tasks-per-node")
    total, total_line = job.option("ntasks", "n")
    nodes = job.option("nodes", "N")[0]
    for launch in launches(job):
        if launch.launcher not in NODE_LAUNCHERS or launch.srun is None:
            continue
        own = launch.srun.get("ntasks_per_node", "")
        count = own or ("" if "n" in launch.srun or "ntasks" in launch.srun else value)
        if count.isdecimal() and int(count) > 1:
            found = f"{count} tasks a node, and each starts {launch.launcher} (line {launch.line})"
            yield launch.line if own else line, found, "one task a node: --ntasks-per-node=1"
            return
        tasks = launch.srun.get("n") or launch.srun.get("ntasks") or total
        if not count and tasks.isdecimal() and nodes.isdecimal() and int(tasks) > int(nodes):
            at = launch.line if launch.srun.get("n") else total_line or launch.line
            yield at, f"{tasks} tasks on {nodes} nodes, and each starts {launch.launcher}", "one task a node"
            return


@fault("node-variable-read-too-early", SHELL)
def node_variable_read_too_early(job: Job) -> Found:
    """
    A variable that differs per task is read in the batch shell, before srun has started the tasks.

    Why: there SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID are always 0: every node gets node rank 0.

    Fix: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'`, in single quotes.
    """
    for command in job.commands:
        if command.texts[:1] != ["srun"]:
            continue
        for word in command.words[1:]:
            quoted = re.sub(r"'[^']*'", "", word.raw) if not word.raw.startswith('"') else word.raw
            if match := _PER_TASK.search(re.sub(r"\\\$", "", quoted)):
                found = f"${match[1]} is replaced before srun starts: 0 on every node"
                yield word.line, found, "single quotes around the command, so that each task reads its own"
                break


@fault("head-address-guessed", SHELL, severity="warning")
def head_address_guessed(job: Job) -> Found:
    """
    The head's address is taken from a command that gives the first address, whichever network it is on.

    Why: `hostname -i` is often 127.0.1.1, `hostname -I` begins with the management network or docker, and
    SLURM_LAUNCH_NODE_IPADDR is where srun ran, a login node perhaps.

    Fix: an address on the network that all nodes share; `ringup env` names it.
    """
    pattern = re.compile(r"hostname\s+(?:-[iI]\b|--ip-address|--all-ip)|SLURM_LAUNCH_NODE_IPADDR")
    for number, line in enumerate(lines_of(job.text), 1):
        match = pattern.search(line.split("#")[0])
        if match and re.search(r"(?i)addr|master|head|endpoint|main_process_ip|ip=", line):
            yield number, f"`{match[0]}`", "an address that every node can reach"


@fault("launcher-argument-misread", SHELL)
def launcher_argument_misread(job: Job) -> Found:
    for launch in launches(job):
        if _FLAG_VALUE.match(launch.script):
            found = f"{launch.launcher} takes {launch.script!r} for the script: the flag has no value"
            yield launch.line, found, "the flag alone, then the script"


def is_without_rank(launch: Launch, job: Job) -> bool:
    """Whether srun starts torchrun with a static rendezvous (its default) of several nodes and no rank."""
    if launch.launcher != "torchrun" or launch.srun is None or launch.option("nnodes") in ("", "1"):
        return False
    given = {"node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "standalone"} & launch.options.keys()
    by_node = {"w", "nodelist", "N", "nodes"} & launch.srun.keys()
    # A word before the script that is no option could hold any of them.
    return not given and not by_node and "PET_" not in job.text and launch.script.endswith(".py")


@fault("node-rank-duplicate", SHELL)
def node_rank_not_read(job: Job) -> Found:
    """LLaMA-Factory's RANK, which is NODE_RANK since 0.9.1; and none at all, which torchrun takes for 0."""
    for launch in launches(job):
        if is_without_rank(launch, job):
            yield job.finding(
                launch.line,
                "srun starts this on every node, and nothing gives the node's rank: all are node 0",
                "--node-rank, read by each task",
                fix=Fix("srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...', in single quotes"),
            )
        old = launch.launcher == "llamafactory" and launch.variable("RANK")
        if old and not launch.variable("NODE_RANK") and launch.variable("NNODES") not in ("", "1"):
            yield job.finding(
                launch.line,
                "RANK is given; LLaMA-Factory 0.9.1 and later read NODE_RANK: every node is node 0",
                "NODE_RANK (both for older versions, too)",
                fix=Fix("Set NODE_RANK as well as RANK.", env={"NODE_RANK": launch.variable("RANK")}),
            )


STARTERS = re.compile(
    r"\b(?:srun|mpirun|mpiexec|prun|prterun|pdsh|clush|pbsdsh|pbs_tmrsh|blaunch|jsrun|aprun|flux|dsh|ssh|parallel"
    r"|ray|ringup|scontrol exec)\b"
)
"""What may start a line on other nodes of an allocation."""


def allocated_nodes(job: Job) -> tuple[str, int]:
    """(number of nodes, line) that #SBATCH or #PBS asks for, where it is more than one; ("", 0) otherwise."""
    value, line = job.option("nodes", "N")
    for name, text, number in job.directives:
        if match := re.match(r"(?:select|nodes)=(\d+)", text if name == "l" else ""):
            value, line = match[1], number
    least = value.partition("-")[0]
    return (least, line) if least.isdecimal() and int(least) > 1 else ("", 0)


@fault("launcher-on-first-node-alone", SHELL)
def launcher_on_first_node_alone(job: Job) -> Found:
    """
    A job file asks for several nodes, and nothing in it starts the launcher on more than the first.

    Why: Slurm and PBS run the file on the first node only; a launcher of several nodes then waits for the
    others, one of a single node leaves them idle.

    Fix: `srun --ntasks-per-node=1` in front of the launcher (mpirun, pbsdsh), or `ringup run -- ...` in its
    place.
    """
    count, line = allocated_nodes(job)
    code = re.sub(r"(?m)(?:^|\s)#.*$", "", job.text)
    if not count or STARTERS.search(code):
        return
    for launch in launches(job):
        own = {"config_file", "deepspeed_hostfile", "deepspeed_multinode_launcher"} & set(launch.options)
        if launch.launcher not in ("torchrun", "launch", "accelerate", "llamafactory") or own:
            continue
        several = launch.option("nnodes", "num_machines") or launch.variable("NNODES")
        is_one = several in ("", "1", "1:1")
        what = "trains on the first node alone" if is_one else "waits for nodes on which nothing starts it"
        yield job.finding(
            launch.line,
            f"{count} nodes are asked for in line {line}, and {launch.launcher} {what}",
            "srun in front of it",
            severity="warning" if is_one else "error",
        )
        return


@fault("rendezvous-without-id", SHELL, severity="note")
def rendezvous_without_id(job: Job) -> Found:
    """
    A c10d rendezvous of several nodes has no id.

    Why: all runs without one are called "none"; what an earlier run left at the
    endpoint is joined without a message.

    Fix: `--rdzv-id` with the job's id, the same on every node.
    """
    for launch in launches(job):
        c10d = launch.option("rdzv_backend") == "c10d" and launch.launcher == "torchrun"
        if c10d and several_nodes(launch, job) and not launch.option("rdzv_id"):
            yield launch.line, "no --rdzv-id", "an id for this run"


@fault("rendezvous-host-unsure", SHELL, severity="warning")
def rendezvous_host_unsure(job: Job) -> Found:
    """
    With the c10d rendezvous, torch guesses from the host name which node is the endpoint.

    Why: only addresses of the node's own host name count as its own; an address of another network card,
    or 127.0.1.1 in the hosts file, and nobody opens the store: every node waits (pytorch issue 73656).

    Fix: static rendezvous (`--node-rank`, `--master-addr`), or `--rdzv-conf is_host=1` on the head and
    `is_host=0` elsewhere, with `--local-addr`.
    """
    for launch in launches(job):
        guesses = launch.option("rdzv_backend") == "c10d" and "is_host" not in launch.option("rdzv_conf")
        if guesses and launch.launcher in ("torchrun", "accelerate") and several_nodes(launch, job):
            endpoint = launch.option("rdzv_endpoint", "main_process_ip") or "the endpoint"
            yield job.finding(
                launch.line,
                f"nothing says which node is {endpoint}",
                "is_host in --rdzv-conf, or static rendezvous",
                worked_around_by="`ringup run` uses static rendezvous, or gives is_host with c10d",
            )


@fault("port-in-file", SHELL, severity="note")
def port_in_file(job: Job) -> Found:
    """
    The port of the rendezvous is written in the file.

    Why: a leftover of an earlier run, or another job on the node, may hold it: with c10d the job hangs
    without a message, otherwise it ends with EADDRINUSE.

    Fix: a port that is free at that moment (`ringup run` finds one), or one derived from the job's id.
    """
    found: list[tuple[int, str]] = []
    for launch in launches(job):
        endpoint = launch.option("rdzv_endpoint").rpartition(":")
        values = [launch.option(*PORTS), launch.variable("MASTER_PORT"), endpoint[2] if endpoint[1] else ""]
        port = next((v for v in values if _LITERAL_PORT.match(v)), "")
        if port and port != "0":
            found.append((launch.line, port))
        elif launch.launcher == "colossalai" and not launch.option(*PORTS):
            found.append((launch.line, "29500 by default"))
    if found:
        yield found[0][0], f"port {found[0][1]}{lines([n for n, _ in found])}", "a port known to be free"


@fault("tasks-outlive-a-failure", SHELL, severity="note")
def tasks_outlive_a_failure(job: Job) -> Found:
    """
    srun leaves the other nodes running when one has failed.

    Why: that is its default; the healthy nodes wait for the failed one until the time limit.

    Fix: `srun --kill-on-bad-exit=1 --wait=60`.
    """
    for launch in launches(job):
        several = launch.srun is not None and job.option("nodes", "N")[0] not in ("", "1")
        kills = {"kill_on_bad_exit", "K", "K1"} & set(launch.srun or ()) or "SLURM_KILL_BAD_EXIT" in job.text
        if several and not kills:
            yield launch.line, "no --kill-on-bad-exit", "--kill-on-bad-exit=1"
            return


@fault("processors-not-passed-on", SHELL, severity="note")
def processors_not_passed_on(job: Job) -> Found:
    """
    srun does not take --cpus-per-task from the batch file.

    Why: Slurm 22.05 to 23.02 do not pass it on; every node's ranks then share one core.

    Fix: `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before srun.
    """
    value, line = job.option("cpus-per-task", "c")
    if not value or "SRUN_CPUS_PER_TASK" in job.text:
        return
    for launch in launches(job):
        if launch.srun is not None and not {"cpus_per_task", "c"} & set(launch.srun):
            found = f"--cpus-per-task={value}, and srun in line {launch.line} has none"
            yield line, found, "SRUN_CPUS_PER_TASK, for Slurm 22.05 to 23.02"
            return


@fault("variable-never-set", SHELL, severity="warning")
def variable_never_set(job: Job) -> Found:
    """
    A launch line uses a variable that the file never sets.

    Why: it is empty then, and the option takes the next word for its value.

    Fix: set it above, or write the number.
    """
    known = GIVEN | set(re.findall(r"\b([A-Za-z_]\w*)=", job.text))
    known |= set(re.findall(r"\b(?:for|read|local|export)\s+(?:-\w{1,9}\s{1,4}){0,4}([a-z_]\w*)", job.text))
    for word in (w for launch in launches(job) for w in launch.command.words if w.raw[0] != "'"):
        for a, b in re.findall(r"\$(?:\{([a-z_]\w*)\}|([a-z_]\w*))", word.raw):
            if (a or b) not in known:
                yield word.line, f"${a or b} is set nowhere in this file", "a value"


@fault("launcher-deprecated", SHELL, severity="note")
def launcher_deprecated(job: Job) -> Found:
    """
    torch.distributed.launch is deprecated.

    Why: it passes --local-rank to the script and will go.

    Fix: torchrun, and LOCAL_RANK from the environment.
    """
    for launch in [one for one in launches(job) if one.launcher == "launch"][:1]:
        yield launch.line, "torch.distributed.launch", "torchrun"


@fault("ssh-loop-leaves-ranks", SHELL, severity="warning")
def ssh_loop_leaves_ranks(job: Job) -> Found:
    """
    Ranks are started over ssh in the background, and nothing ends them with the script.

    Why: Ctrl-C does not reach background jobs and ssh without a terminal passes no hang-up on: the ranks
    go on, hold the port, and the next run hangs.  `wait` without a job returns 0, whatever failed.

    Fix: `ringup run -H ...`; or `ssh -tt`, and `wait PID` for each.
    """
    for command in job.commands:
        texts = command.texts
        lasts = texts[:1] == ["ssh"] and command.ends_with == "&" and "-tt" not in texts
        if lasts and _STARTS_RANKS.search(" ".join(texts[1:])):
            yield command.line, "ssh ... &", "something that ends the ranks"
            return
