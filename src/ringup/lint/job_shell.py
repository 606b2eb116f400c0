"""Errors with the scheduler and the shell: directives, line ends, background, `set -e`."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from ringup.launchfiles.directives import (
    FLAGS,
    FORMS,
    OF_SLURM,
    SBATCH,
    SHORT,
    Directive,
    gpus_per_node,
    last,
    loose_word,
)
from ringup.launchfiles.manifests import container_at, number
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import NODE_LAUNCHERS, Launch
from ringup.launchfiles.passing import DOCKER
from ringup.launchfiles.shell import PASTED, Command
from ringup.launchfiles.start import Step
from ringup.lint.job_environment import file_at_hand
from ringup.lint.job_file import PLACEHOLDER, JobFile
from ringup.lint.rule import SHELL, Found, fault, lines
from ringup.rules import Finding, Fix
from ringup.units import lines_of, plural, printable

MOST_TASKS = 100_000
"""Of a --multi-prog file; a longer one is not judged."""
SUBMITTED = {"SBATCH": "sbatch", "PBS": "qsub", "BSUB": "bsub"}
_COUNTS = """
nodes N ntasks n ntasks-per-node cpus-per-task c time t mem mem-per-cpu mem-per-gpu gres gpus G gpus-per-node
gpus-per-task nnodes gpu
"""
_RESOURCES = re.compile(r"(?:.*[,:+])?(?:select|nodes|ncpus|ngpus|mpiprocs|walltime|place)=.*")
_PATHS = ("output", "o", "error", "e", "chdir", "D", "partition", "p", "account", "A", "q", "qos")


@fault("dos-line-ends", SHELL)
def dos_line_ends(job: JobFile) -> Iterator[Finding]:
    """
    A shell or job file has the line ends of Windows (CR LF).

    Why: sbatch refuses it ("Batch script contains DOS line breaks").  bash takes the CR for the last letter
    of each line: a backslash no longer continues a line, `train.py` is looked for under another name, and the
    first line names an interpreter that does not exist.

    Fix: `sed -i 's/\\r$//' FILE`, or `dos2unix FILE`.
    """
    is_refused = any(d.scheduler == "SBATCH" for d in job.job.directives) or "\\\n" in job.text
    if job.is_dos and job.launches and not job.path.endswith((".yaml", ".yml")):
        fix = Fix(f"sed -i 's/\\r$//' {printable(job.path)}")
        yield job.finding(1, "lines end in CR LF", "lines that end in LF", is_sure=is_refused, fix=fix)


def _asks(directive: Directive) -> bool:
    """Whether it requests nodes, tasks, GPUs, time: values that are read as numbers."""
    is_listed = directive.name == "l" and bool(_RESOURCES.fullmatch(directive.value))
    return is_listed or directive.name in _COUNTS.split()


@fault("variable-in-directive", SHELL)
def variable_in_directive(job: JobFile) -> Iterator[Finding]:
    """
    A line for the scheduler has a shell variable in it.

    Why: sbatch, qsub and bsub read these lines themselves, before any shell: `$NODES` stays as it is written,
    which is not a number (the job is refused), nor a path.

    Fix: write the value; or give it in the command line, which has priority: `sbatch --nodes=$NODES job.sh`.
    """
    first = job.job.first_line or 1 << 30
    read = [d for d in job.job.directives if d.line < first]
    for one in (*read, *job.job.submitted):
        is_path = one.scheduler == "SBATCH" and one.name in _PATHS
        if one.scheduler not in SUBMITTED or "$" not in one.value or not (_asks(one) or is_path):
            continue
        program, dashes = SUBMITTED[one.scheduler], "-" * (1 + (len(one.name) > 1))
        found = f"{program} takes {printable(one.value, 60)!r} as it is written"
        option = f"{dashes}{one.name}" + ("=" if len(one.name) > 1 else " ") + one.value
        fix = Fix(f"write the value, or give it to {program}: `{program} {printable(option, 80)} ...`")
        # A folder of this name does not exist, and the job ends at once.
        is_sure = _asks(one) or (one.name in _PATHS[:4] and "/" in one.value.partition("$")[2])
        yield job.finding(one.line, found, "a value", is_sure=is_sure, fix=fix)


@fault("directive-behind-command", SHELL)
def directive_behind_command(job: JobFile) -> Iterator[Finding]:
    """
    Lines for the scheduler come after the first command.

    Why: sbatch and qsub stop to read them at the first line that is neither empty nor a comment.  Those
    behind it are comments: the job gets the default, often one node and no GPU.

    Fix: write all #SBATCH or #PBS lines directly below `#!/bin/bash`.
    """
    late = [d for d in job.job.directives if d.line in job.job.late and d.scheduler in ("SBATCH", "PBS")]
    is_template = "{%" in job.text or "{{" in job.text
    if not late or is_template or not job.text.startswith("#!"):  # a page's text, sbatch refuses it anyway
        return
    asked = {d.name for d in job.job.directives if d.line < job.job.first_line}
    is_lost = any(_asks(d) and d.name not in asked for d in late)
    program = SUBMITTED[late[0].scheduler]
    found = f"behind the command in line {job.job.first_line}: {program} ignores it"
    found += lines([d.line for d in late])
    yield job.finding(late[0].line, found, "above the first command", is_sure=is_lost)


@fault("directive-wrong", SHELL)
def directive_wrong(job: JobFile) -> Found:
    texts = ["", *job.lines]
    of_slurm = [d for d in job.job.directives if d.scheduler == "SBATCH" and d.line not in job.job.late]
    read = [d for d in of_slurm if d.line < len(texts) and texts[d.line].startswith("#SBATCH")]
    is_for_slurm = job.path.endswith((".sbatch", ".slurm"))
    begins = next((text for text in texts if text.strip() and not re.match(r"\s*#(?!!)", text)), "")
    is_late = begins.startswith("#!") and not job.text.startswith("#!") and not job.job.documents
    is_late &= not job.path.endswith(PASTED)
    if read and ((texts[1].startswith("#SBATCH") and is_for_slurm) or is_late):
        found = "no #! in the first line: sbatch refuses the file"
        yield 1, found, "#!/bin/bash in the first line", "first line"
    yield from _refused_by_slurm(job, read)
    yield from _taken_for_comment(job, read)
    for at in dict.fromkeys(d.line for d in read):
        word = loose_word(texts[at])
        if word and re.match(r"#SBATCH\s{1,9}<[A-Za-z][^<>]{0,60}>(?:\s|$)", texts[at]):
            yield (
                at,
                f"{printable(word, 40)}... is a placeholder: sbatch refuses it",
                "the options",
                "template",
            )
            break
        if word and not re.search(r"[<>{}$\[]|\.\.\.", texts[at]):
            found = f"`{printable(word, 40)}` is neither an option nor a value: sbatch refuses the file"
            yield at, found, "the value in quotes; # before a comment", "word"
            break
    for one in read:
        last_word = re.search(r"\s--?(\S{1,60})\s*$", texts[one.line])
        is_bare = last_word is not None and last_word[1] == one.name and one.name in SBATCH
        if is_bare and f"--{one.name}" not in FLAGS:
            found = f"--{one.name} has no value: sbatch takes the next option for it"
            yield job.finding(one.line, found, "a value, or no such line", severity="warning", case="option")
    yield from _memory(job, read)
    for one in read:
        is_named = one.name in ("account", "A", "partition", "p", "qos", "q") and one.value.startswith("<")
        if (is_named or _asks(one)) and PLACEHOLDER.fullmatch(one.value):
            option = f"--{one.name}=" if len(one.name) > 1 else f"-{one.name} "
            found = f"{option}{printable(one.value, 60)} is a placeholder: sbatch refuses it"
            severity = "warning" if is_named or job.is_page else "error"
            yield job.finding(one.line, found, "the value", severity=severity, case="template")
            break
    exports = [d for d in read if d.name == "export"]
    if len({d.value for d in exports}) > 1:
        found = "the last --export alone counts" + lines([0, *(d.line for d in exports[:-1])])
        yield exports[-1].line, found, "one --export with all names", "last one"
    of_pbs = [d for d in job.job.directives if d.scheduler == "PBS" and d.name == "l"]
    chunks = next((d for d in of_pbs if d.value.startswith("select=")), None)
    old = next((d for d in of_pbs if re.match(r"(?:nodes|ncpus|ngpus|mem|ppn|mpiprocs)=", d.value)), None)
    if chunks and old:
        found = f"-l {printable(old.value, 60)} beside -l select (line {chunks.line}): qsub refuses it"
        yield old.line, found, "all of it in select=", "PBS"
    for one in job.job.directives:
        if one.scheduler == "BSUB" and one.name == "g" and one.value.isdecimal():
            yield one.line, f"-g {one.value} is a job group, not GPUs", f"-gpu num={one.value}", "LSF group"
        if one.scheduler == "BSUB" and one.name == "W" and re.fullmatch(r"\d{1,4}(?::\d\d){2}", one.value):
            found = f"-W {one.value}: bsub refuses it"
            yield one.line, found, f"-W {one.value.rpartition(':')[0]}", "LSF time"


def _taken_for_comment(job: JobFile, read: Sequence[Directive]) -> Found:
    """`# SBATCH --nodes=2` with a blank, where the launcher waits for these nodes."""
    wanted = {launch.nnodes for launch in job.launches if (launch.nnodes or 1) > 1}
    every = [at for at, line in enumerate(job.lines, 1) if re.match(r"# {1,4}SBATCH[ \t]+-", line)]
    if len(every) > 1 and job.launches and not job.job.directives:
        found = "`# SBATCH` with a blank is a comment: sbatch reads none of these lines"
        yield job.finding(every[0], found, "#SBATCH", severity="warning", case="comment")
    if not read or any(d.name in ("nodes", "N") for d in read):
        return
    for at, line in enumerate(job.lines, 1):
        asked = re.match(r"# {1,4}SBATCH[ \t]+(?:--nodes[= ]|-N ?)(\d{1,6})[ \t]*$", line)
        if asked and int(asked[1]) in wanted:
            found = "`# SBATCH` with a blank is a comment: the job gets one node"
            yield at, found, f"#SBATCH -N {asked[1]}", "comment"


def _memory(job: JobFile, read: Sequence[Directive]) -> Found:
    is_by_gpu = gpus_per_node(read)[0] or any(one.launcher in NODE_LAUNCHERS for one in job.launches)
    for one in read:
        least = _MEMORY.get(one.name, 0) if is_by_gpu else _MEMORY.get(one.name, 0) // 10
        if one.value.isdecimal() and 0 < int(one.value) < least:
            found = f"--{one.name}={one.value}: a number without a unit counts megabytes"
            yield one.line, found, f"--{one.name}={int(one.value)}G", "memory"
    asked = {d.name: d.line for d in read if d.name in _MEMORY}
    if len(asked) > 1:
        names = " and ".join(f"--{name}" for name in asked)
        yield max(asked.values()), f"{names}: sbatch refuses them together", "one of them", "exclusive"


_MEMORY = {"mem": 1000, "mem-per-cpu": 128, "mem-per-gpu": 512}
"""Option of sbatch -> megabytes with which no rank starts: `import torch` alone takes more."""


def _refused_by_slurm(job: JobFile, read: Sequence[Directive]) -> Found:
    texts = ["", *job.lines]
    for one in read:
        written = next((w for w in texts[one.line].split() if w.split("=")[0].lstrip("-") == one.name), "")
        name, equals, value = written.partition("=")
        if equals and not value and one.name in FORMS:
            yield one.line, f"{name}= has no value: sbatch refuses it", FORMS[one.name][1], "option"
        elif equals and one.name in SHORT:
            yield one.line, f"{written}: sbatch takes ={value} for the value", f"{name} {value}", "option"
        elif told := _refused("sbatch", name or f"--{one.name}", one.value):
            yield one.line, *told, "option"
    steps = [(c.line, s) for c in job.job.commands for s in c.start.steps if s.program == "srun"]
    for line, option in dict.fromkeys((line, o) for line, step in steps for o in step.options):
        if told := _refused("srun", option.name, option.value):
            yield line, *told, "option"


def _refused(program: str, name: str, value: str) -> tuple[str, str] | None:
    """
    (found, expected) for an option that sbatch or srun does not take; plugins may add options of their own.

    >>> _refused("srun", "--ntask-per-node", "4")
    ('srun has no option --ntask-per-node', '--ntasks-per-node')
    >>> _refused("sbatch", "-nodes", "2")
    ('one hyphen: sbatch takes -nodes for -n odes', '--nodes')
    >>> _refused("sbatch", "--time", "24h")
    ('sbatch refuses --time=24h', 'hours:minutes:seconds')
    """
    bare, known = name.lstrip("-"), OF_SLURM[program]
    if not name.startswith("--") and len(bare) > 2 and bare in known:
        return f"one hyphen: {program} takes {name} for -{bare[0]} {bare[1:]}", f"--{bare}"
    if name.startswith("--") and not any(option.startswith(bare) for option in known):
        near = difflib.get_close_matches(bare.replace("_", "-"), known, 1, 0.85)
        return (f"{program} has no option {printable(name, 60)}", f"--{near[0]}") if near else None
    form, expected = FORMS.get(SHORT.get(bare, bare), (None, ""))
    is_written = value and value.isascii() and not has_mark(value) and not _TEMPLATE.search(value)
    if form is not None and is_written and not form.fullmatch(value.strip()):
        return f"{program} refuses {name}={printable(value, 60)}", expected
    return None


_TEMPLATE = re.compile(r"[$<>{}%@\[(]|^[A-Z][A-Z_:]*$|\.\.\.|__")
"""A value that somebody is to write."""


@fault("signal-not-for-shell", SHELL)
def signal_not_for_shell(job: JobFile) -> Found:
    """
    The job file waits for a signal before its time limit that Slurm does not send to it.

    Why: sbatch(1): `--signal` reaches the job's steps, and the batch shell only with `B:`; the `trap` of this
    file never runs.  bash also runs it only after the command in the foreground has ended.

    Fix: `#SBATCH --signal=B:USR1@120`, with the ranks in the background and `wait` behind them.
    """
    value, line = last([d for d in job.job.directives if d.scheduler == "SBATCH"], "signal")
    asked = re.fullmatch(r"(?:R:)?(?:SIG)?([A-Za-z]{3,6}[12]?)(?:@\d{1,6})?", value)
    if asked and asked[1].upper() in _trapped(job):
        yield line, f"--signal={value}: the trap of this file gets no signal", f"--signal=B:{value}"


def _trapped(job: JobFile) -> set[str]:
    """Signals for which the job file's own shell has a trap: a step's shell gets its signals."""
    found = set[str]()
    for command in job.commands:
        texts = command.texts
        is_of_step = any(step.role == "starter" for step in command.around)
        if texts[0] == "trap" and not is_of_step and texts[1:2] != ["-"]:
            found |= {text.upper().removeprefix("SIG") for text in texts[2:]}
    return found


# -- what runs when --------------------------------------------------------------------------------

_ENDS_AT_ONCE = re.compile(
    r"echo|printf|date|export|declare|exit|true|:|cd|module|ml|unset|touch|mkdir|rm|cp|mv|ln|chmod|disown|jobs|set"
    r"|hostname|local|return|trap"
)
_ON_NODES = ("srun", "pbsdsh", "blaunch", "mpirun", "mpiexec", "jsrun")


@fault("background-not-waited-for", SHELL)
def background_not_waited_for(job: JobFile) -> Found:
    """
    The ranks are started in the background, and the file ends without waiting for them.

    Why: the job (or the pod) ends with its shell: Slurm, PBS, LSF and Kubernetes then kill what still runs,
    seconds after the start.

    Fix: `wait` at the end; better, `wait PID` for each, which gives its exit code.
    """
    commands, launched = job.job.commands, {id(launch.command): launch for launch in job.launches}
    at = max((n for n, c in enumerate(commands) if id(c) in launched), default=-1)
    launch = launched.get(id(commands[at])) if at >= 0 else None
    if launch is None and job.job.directives:  # what they start is in another file
        at = max((n for n, c in enumerate(commands) if c.detached and c.texts[0] in _ON_NODES), default=-1)
    one = commands[at] if at >= 0 else None
    if one is None or not one.detached or _is_detached(launch.steps if launch else ()):
        return
    code = re.sub(r"(?m)(?:^|\s)#.*$", "", job.text)
    is_ended = bool(job.job.directives) or (launch is not None and launch.replicas is not None)
    is_ended = is_ended and (launch is None or launch.launcher != "ray")
    waits, short = re.search(r"\b(?:while|until)\b", code) is not None, re.compile(r"sleep [012]?\d?\d")
    rest = [
        "true" if not waits and short.fullmatch(" ".join(c.texts)) else posixpath.basename(c.texts[0])
        for c in commands[at + 1 :]
        if not c.detached
    ]
    if is_ended and not re.search(r"(?<![-\w])wait\b", code) and all(map(_ENDS_AT_ONCE.fullmatch, rest)):
        yield one.line, "it runs in the background, and the file ends: the job kills it", "wait at the end"


def _is_detached(steps: Sequence[Step]) -> bool:
    """Whether it continues in the background of its machine: `docker run -d`, `ssh -f`, tmux."""
    for step in steps:
        program = posixpath.basename(step.program)
        names = [o.name for o in step.options]
        is_container = program in DOCKER and any(
            n == "--detach" or ("d" in n and n[1:].isalpha()) for n in names
        )
        if is_container or program in _IN_BACKGROUND or (program == "ssh" and "-f" in names):
            return True
    return False


_IN_BACKGROUND = ("screen", "tmux", "systemd-run", "at", "batch")


@fault("nodes-started-in-turn", SHELL)
def nodes_started_in_turn(job: JobFile) -> Iterator[Finding]:
    """
    The launcher is started for one node after another, each in the foreground.

    Why: the file stays at the first node until its launcher ends.  That waits for the other nodes, which are
    not started before: it ends with a timeout of the rendezvous.

    Fix: `&` behind the command, and `wait` behind the loop.

    Fix, lines: run each line on its own node, or `ringup run -H NODE,NODE -- ...` in their place.
    """
    yield from _lines_for_nodes(job)
    for launch in job.launches:
        command = launch.command
        count = launch.nnodes or launch.number(launch.env.get("WORLD_SIZE", "")) or 0
        is_own = command.detached or command.branches or launch.nodes == 1 or count < 2
        if launch.is_one_a_round and not is_own and not _is_detached(launch.steps):
            program = launch.started_by
            found = f"{program} in the foreground: the loop waits for the first of {count} nodes"
            fix = Fix(f"`{program} ... &` in the loop, `wait` behind `done`")
            yield job.finding(launch.line, found, f"{program} ... &", fix=fix)


def _lines_for_nodes(job: JobFile) -> Iterator[Finding]:
    """Two lines of one file for node rank 0 and 1 of the same world, started from the same shell."""
    waiting: dict[tuple[object, ...], Launch] = {}
    for launch in job.launches:
        command, rank = launch.command, launch.node_rank_text
        is_waiting = not (command.detached or command.is_nested or _is_detached(launch.steps))
        if not is_waiting or (launch.nnodes or 0) < 2 or not rank.isdecimal() or launch.replicas:
            continue
        world = (launch.endpoint, launch.script or launch.module, command.branches)
        first = waiting.setdefault(world, launch)
        between = job.lines[first.command.last_line : launch.line - 1]
        if first.node_rank_text != rank and not any(line.lstrip().startswith("#") for line in between):
            found = f"node rank {rank} is started when line {first.line} has ended, which waits for it"
            wanted = f"& behind line {first.line}, or each line on its own node"
            yield job.finding(launch.line, found, wanted, severity="warning", case="lines")
            return


@fault("loop-loses-its-list", SHELL)
def loop_loses_its_list(job: JobFile) -> Iterator[Finding]:
    """
    ssh in a loop `while read ...` takes the rest of the list that the loop reads.

    Why: ssh passes its standard input on to the other machine, and here that is the list of hosts: the loop
    ends after the first one.

    Fix: `ssh -n`, or `< /dev/null` behind the command.
    """
    is_by_ssh = any(launch.started_by == "ssh" for launch in job.launches)
    for command in job.job.commands if is_by_ssh and not re.search(r"<\s*/dev/null|<&-", job.text) else ():
        step = next((s for s in command.start.steps if s.program == "ssh"), None)
        if step is None or not command.reads_input or command.detached or command.is_nested:
            continue
        if not any(o.name[1:].isalpha() and {*"nf"} & {*o.name} for o in step.options):
            found = "ssh reads the list of the loop: it ends after the first host"
            yield job.finding(command.line, found, "ssh -n", fix=Fix("`ssh -n`, or `< /dev/null`"))
            return


@fault("multi-prog-incomplete", SHELL, each="job.commands")
def multi_prog_incomplete(job: JobFile, command: Command) -> Found:
    """
    The file of `srun --multi-prog` has no line for one of the tasks.

    Why: srun ends with "invalid, no record for task id"; every task from 0 needs a line.

    Fix: write a line for each task, or `*` for all that have none.
    """
    step = next((s for s in command.start.steps if s.program == "srun" and s.has("--multi-prog")), None)
    name = (command.start.rest or (command.start.script,))[0]
    text = file_at_hand(job, name) if step and name else None
    if step is None or not text:
        return
    asked = step.option("-n", "--ntasks") or last(job.job.directives, "ntasks", "n")[0]
    has_rest = any(line.lstrip().startswith("*") for line in lines_of(text))
    listed = list(islice((task for line in lines_of(text) for task in _tasks(line)), MOST_TASKS))
    missing = sorted({*range(min(number(asked) or 0, MOST_TASKS))}.difference(listed))
    if 0 < len(listed) < MOST_TASKS and missing and not has_rest:
        found = f"{plural(int(asked), 'task')}, and {printable(name, 80)} has no line for task {missing[0]}"
        yield command.line, found, "a line for every task"


def _tasks(line: str) -> Iterator[int]:
    """
    The tasks that a line of a --multi-prog file applies to.

    >>> list(_tasks("0,4-6 python t.py"))
    [0, 4, 5, 6]
    """
    first = line.split("#")[0].split(maxsplit=1)[:1]
    for low, high in re.findall(r"(\d{1,5})(?:-(\d{1,5}))?", first[0]) if first else ():
        yield from range(int(low), int(high or low) + 1)


@fault("ray-ends-with-its-step", SHELL, each="job.commands")
def ray_ends_with_its_step(job: JobFile, command: Command) -> Found:
    """
    srun starts a node of Ray that goes into the background, and the step ends at once.

    Why: `ray start` without --block returns when its daemons run; Slurm ends a step with all its processes
    when its task returns, and the node leaves the cluster again.

    Fix: `srun ... ray start --block ... &`.
    """
    texts = [posixpath.basename(text) for text in command.texts]
    by_srun = not command.is_nested and any(s.program == "srun" for s in command.start.steps)
    is_start = by_srun and ("ray", "start") in pairwise(texts)
    if is_start and not any(text.startswith("--block") for text in texts):
        yield command.line, "`ray start` without --block: its daemons end with the step", "--block and &"


_NEVER = {
    "ray": re.compile(r"--block"),
    "tensorboard": re.compile(r"--logdir(?:=.*)?"),
    "nvidia-smi": re.compile(r"-l|-lms|--loop(?:-ms)?(?:=\d+)?|dmon|pmon"),
    "tail": re.compile(r"-\w{0,9}[fF]|--follow(?:=\w+)?"),
    "sleep": re.compile("inf(?:inity)?"),
    "dask": re.compile("scheduler|worker"),
    "dask-scheduler": re.compile(".*"),
    "vllm": re.compile("serve"),
}
"""Program -> the argument with which it stays in the foreground until it is killed."""


@fault("command-never-returns", SHELL)
def command_never_returns(job: JobFile) -> Found:
    """
    A command that never ends runs in the foreground, in front of the start of the ranks.

    Why: `ray start --block`, TensorBoard, `nvidia-smi -l` and the like stay until they are killed: the shell
    does not reach the next line, and no rank is started.

    Fix: `&` behind it; for the head of Ray `ray start` without --block, too.
    """
    launched = {id(launch.command) for launch in job.launches if launch.replicas is None}
    commands = job.job.commands
    ends = [_never_ends(command) for command in commands]
    for at, (command, program) in enumerate(zip(commands, ends, strict=True)):
        is_next = command.loop is not None and len(command.loop.split()) != 1
        if command.is_of_some and program == "sleep":  # the other tasks go on
            continue
        if program == "ray" and command.branches and "--head" not in command.texts:
            continue  # the nodes of the workers; the others go on
        if not program or command.detached or (command.loop is not None and program != "ray"):
            continue
        taken = dict(command.branches)
        follow = range(at + 1, len(commands))
        later = [commands[n] for n in follow if id(commands[n]) in launched or ends[n] == "ray" == program]
        own = _container_of(job, command) if later else 0
        later = [c for c in later if _container_of(job, c) == own]
        if is_next or any(all(taken.get(line, n) == n for line, n in c.branches) for c in later):
            found = f"`{program}` stays in the foreground: nothing below it runs"
            yield command.line, found, f"{program} ... &"
            return


def _container_of(job: JobFile, command: Command) -> int:
    """Where the container with a command begins in a manifest; 0 outside of one."""
    boxes = (container_at(document, command.line) for document in job.job.documents)
    return next((box[1].start_mark.index for box in boxes if box), 0)


def _never_ends(command: Command) -> str:
    texts = [posixpath.basename(text) for text in command.texts]
    if texts[0] in _IN_BACKGROUND or _is_detached(command.steps):
        return ""
    program = "ray" if "ray" in texts and "start" in texts else texts[0]
    arguments = texts[texts.index(program) + 1 :]
    ends = any(text.startswith(("--pid", "--help", "--version", "-c", "--count")) for text in arguments)
    pattern = _NEVER.get(program)
    return program if pattern and not ends and any(map(pattern.fullmatch, arguments)) else ""


_SHARING = """
    --overlap -O --exact --gres --gpus -G --gpus-per-node --gpus-per-task --mem --mem-per-cpu -w --nodelist -x
    --exclude --relative -r --jobid
"""
_SHARES = tuple(_SHARING.split())
"""Options of a step that takes only a part of the job, or shares it."""


@fault("step-holds-nodes", SHELL)
def step_holds_nodes(job: JobFile) -> Found:
    """
    A step in the background that never ends holds the nodes that the next step needs.

    Why: since Slurm 20.11 a step has its GPUs and memory alone, all of the job's where it asks for none: the
    next srun waits until the time limit ("Job step creation temporarily disabled, retrying").

    Fix: `srun --overlap` for the one in the background.
    """
    launches = [one for one in job.launches if one.srun and not one.srun.has(*_SHARES)]
    if not gpus_per_node(job.job.directives)[0] or "SLURM_OVERLAP" in job.text:
        return
    for command in job.job.commands:
        step = next((s for s in command.steps if s.program == "srun"), None)
        if step is None or not command.detached or step.has(*_SHARES) or "--pid" in command.texts:
            continue
        texts = [posixpath.basename(text) for text in command.texts]
        program = next((text for text in texts if text in _NEVER), "")
        is_endless = any(map(_NEVER[program].fullmatch, texts)) if program else False
        later = next(
            (one for one in launches if one.line > command.line and one.nodes == one.allocated), None
        )
        if is_endless and later:
            found = f"`{program}` never ends, and holds the nodes: srun in line {later.line} waits"
            yield command.line, found, "srun --overlap"
            return


@fault("zero-ends-script", SHELL)
def zero_ends_script(job: JobFile) -> Iterator[Finding]:
    """
    Under `set -e`, an arithmetic command with the value 0 ends the script.

    Why: `((i++))` gives the value before the addition; where that is 0 its exit code is 1, and `set -e` ends
    the script there: what follows, and the next rounds of the loop, never run.

    Fix: `i=$((i + 1))`, or `((i++)) || true`.
    """
    for word in job.job.ends if job.launches else ():
        name = next(iter(re.findall(r"[A-Za-z_]\w*", word.text.removeprefix("let"))), "i")
        found = f"`{printable(word.text, 40)}` has the value 0: set -e ends the script here"
        yield job.finding(word.line, found, f"{name}=$(({name} + 1))")


# -- what outlives a failure, or is not passed on --------------------------------------------------

_STARTS_RANKS = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|python")


@fault("tasks-outlive-a-failure", SHELL, severity="note")
def tasks_outlive_a_failure(job: JobFile) -> Found:
    """
    srun leaves the other nodes running when one has failed.

    Why: that is its default; the healthy nodes wait for the failed one until the time limit.

    Fix: `srun --kill-on-bad-exit=1 --wait=60`.
    """
    for launch in job.launches:
        step = launch.srun
        kills = step and any(o.name.startswith(("--kill-on-bad-exit", "-K")) for o in step.options)
        if step and not kills and launch.allocated > 1 and "SLURM_KILL_BAD_EXIT" not in job.text:
            yield launch.line, "no --kill-on-bad-exit", "--kill-on-bad-exit=1"
            return


@fault("processors-not-passed-on", SHELL, severity="note")
def processors_not_passed_on(job: JobFile) -> Found:
    """
    srun does not take --cpus-per-task from the batch file.

    Why: Slurm 22.05 to 23.02 do not pass it on; every node's ranks then share one core.

    Fix: `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK` before srun.
    """
    value, line = last(job.job.directives, "cpus-per-task", "c")
    if not value or "SRUN_CPUS_PER_TASK" in job.text:
        return
    for launch in job.launches:
        if launch.srun is not None and not launch.srun.has("--cpus-per-task", "-c"):
            found = f"--cpus-per-task={value}, and srun in line {launch.line} has none"
            yield line, found, "SRUN_CPUS_PER_TASK, for Slurm 22.05 to 23.02"
            return


@fault("ssh-loop-leaves-ranks", SHELL, severity="warning")
def ssh_loop_leaves_ranks(job: JobFile) -> Found:
    """
    Ranks are started over ssh in the background, and nothing ends them with the script.

    Why: Ctrl-C does not reach background jobs and ssh without a terminal passes no hang-up on: the ranks
    go on, hold the port, and the next run hangs.  `wait` without a job returns 0, whatever failed.

    Fix: `ringup run -H ...`; or `ssh -tt`, and `wait PID` for each.
    """
    for command in job.commands:
        texts = command.texts
        lasts = texts[:1] == ["ssh"] and command.background and "-tt" not in texts
        if lasts and _STARTS_RANKS.search(" ".join(texts[1:])):
            yield command.line, "ssh ... &", "something that ends the ranks"
            return
