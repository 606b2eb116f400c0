"""Faults in a shell file, job file or manifest: errors, hangs, commands with unintended effects."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ringup.launchfiles import marks
from ringup.launchfiles.directives import last, tasks_per_node
from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import NODE_LAUNCHERS, TORCH, Launch
from ringup.launchfiles.programs import LAUNCHERS, MODULES, OPTIONS, PROGRAMS, meaning_of
from ringup.launchfiles.shell import Word
from ringup.launchfiles.start import PYTHON, CommandLine
from ringup.lint.job_environment import file_at_hand
from ringup.lint.job_file import JobFile
from ringup.lint.job_numbers import coordinator_at_itself
from ringup.lint.job_variables import names_set
from ringup.lint.rule import SHELL, Found, fault, lines
from ringup.model import LOCAL_RANKS, RANK_VARIABLES, RANKS
from ringup.rules import Finding, Fix, Severity
from ringup.units import lines_of, plural, printable

_DASHES = re.compile("^[–—−]{1,2}\\w")  # en dash, em dash, minus sign
_FLAG_VALUE = re.compile(r"(?i)^(?:true|false|yes|no|none|0|1)$")
_LITERAL_PORT = re.compile(r"^\d{2,6}$")
LAST_PORT = 65535
MOST_PARTS = 64
"""Launches of a file up to which the parts of one world are looked for."""
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")
_STARTS_RANKS = re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|python")
_NAME = re.compile(r"[A-Za-z_]\w*")
PER_TASK = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
PER_TASK_OF = {
    "srun": PER_TASK,
    **dict.fromkeys(
        ("mpirun", "mpiexec", "mpiexec.hydra"),
        (*RANKS[1:4], *LOCAL_RANKS[1:3]),
    ),
}
"""Program that starts tasks -> variables that it sets for each of them."""


def several_nodes(launch: Launch) -> bool:
    """Whether the launcher gets several nodes, or a number that only the run knows."""
    return launch.nnodes != 1 and bool(launch.nnodes_text or launch.option("host", "hostfile"))


# -- the text ------------------------------------------------------------------------------------


@fault("slashes-are-no-comment", SHELL)
def slashes_are_no_comment(job: JobFile) -> Found:
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
def dash_is_no_hyphen(job: JobFile) -> Found:
    """
    An option begins with a typographic dash instead of hyphens.

    Why: web pages and text editors turn `--` into a dash; the program takes the word for an
    argument, often for the image or the script.  In the first line (`#!/bin/sh –l`) the shell takes it for
    the file to run.

    Fix: type `--` again.
    """
    first = next(iter(lines_of(job.text)), "")
    if job.commands and re.match("#!.*\\s[–—−]", first):
        yield 1, f"`{printable(first.split()[-1], 40)}` in the first line", "a hyphen"
    for command in job.commands:
        bad = [w for w in command.words if _DASHES.match(w.raw)]
        if bad:
            yield bad[0].line, f"`{bad[0].raw[:40]}`{lines([w.line for w in bad])}", "two hyphens"


@fault("backslash-before-space", SHELL)
def backslash_before_space(job: JobFile) -> Found:
    """
    A line continuation (backslash) is followed by a space.

    Why: the backslash then quotes the space: at the end of a line the command ends here, and its further
    options are run as commands of their own; inside a line the space belongs to the option behind it, which
    the program does not know.

    Fix: nothing after the backslash.
    """
    for number, line in enumerate(lines_of(job.text), 1):
        if re.search(r"(?<!\\)\\[ \t]+$", line) and not line.lstrip().startswith("#"):
            yield number, "a space after the backslash", "a line end"
    texts = ["", *lines_of(job.text)]
    for launch in job.launches if "\\ -" in job.text else ():
        for number in range(launch.command.line, min(launch.command.last_line + 1, len(texts))):
            match = re.search(r"(?<!\\)\\ +(--?[A-Za-z][\w-]{0,60})", texts[number])
            if match and not {"'", '"'} & {*texts[number][: match.start()]}:
                found = f"`\\ {match[1]}` inside a line: the backslash makes the space a part of the option"
                yield number, found, f"{match[1]} without a backslash"


@fault("command-cut-short", SHELL)
def command_cut_short(job: JobFile) -> Found:
    """
    A comment or a missing backslash ends a command before its last words.

    Why: the shell ends the command there.  The launcher starts without the options and the script that
    follow; the rest is run as a command of its own.

    Fix: no comment behind a backslash or between the lines of a command; a backslash on every line but the
    last.
    """
    texts = ["", *lines_of(job.text)]
    cut = {command.cut_at for command in job.commands if command.cut_at}
    yield from (
        (n, "a comment behind the backslash ends the command", "nothing behind it") for n in sorted(cut)
    )
    for command in job.job.commands:
        shell = command.start.steps[-1].role if command.start.steps else ""
        written = "\n".join(texts[command.line : command.last_line + 1])
        is_end = re.search(r" -\w{0,6}c[ \\\n]*$", written)
        if shell == "shell" and command.start.text == "" and is_end:
            found = f"`{command.start.steps[-1].program} {command.texts[-1]}` ends here, without a command"
            yield command.line, found, "the command in quotes behind it"
    for command in job.commands:
        end = command.last_line
        follows = next((n for n in range(end + 1, len(texts)) if not texts[n].lstrip().startswith("#")), 0)
        is_continued = 0 < end < len(texts) and texts[end].rstrip().endswith("\\")
        is_comment = end + 1 < len(texts) and texts[end + 1].lstrip().startswith("#")
        goes_on = bool(follows) and re.match(r"\s+\S|--\w", texts[follows])
        if is_continued and is_comment and goes_on and end not in cut:
            yield end + 1, "a comment between the lines of a command ends it", "no comment inside a command"
        word = command.words[0]
        if re.match(r"--[A-Za-z]", word.raw) and not any(n in cut for n in range(word.line - 30, word.line)):
            above = range(min(word.line, len(texts)) - 1, 0, -1)
            before = next((n for n in above if texts[n].strip()), 0)
            is_comment = texts[before].lstrip().startswith("#")
            if before and not is_comment and not texts[before].rstrip().endswith("\\"):
                found = f"`{printable(word.raw, 40)}` is run as a command: line {before} has no backslash"
                yield word.line, found, "a backslash at the end of the line above"


@fault("export-takes-further-words", SHELL)
def export_takes_further_words(job: JobFile) -> Found:
    """
    Words after an assignment are exported as well, or refused.

    Why: `export A=b c` exports a variable c; `export A = b` and `export A=b :` are errors, and the value is
    not what it seems.

    Fix: one word after `=` (quoted where it has spaces), `#` before a comment.
    """
    for command in job.commands:
        if command.texts[:1] != ["export"] or not any("=" in w.raw for w in command.words[1:]):
            continue
        own = {word.text.partition("=")[0] for word in job.job.assigned if word.line < command.line}
        odd = [w for w in command.words[1:] if "=" not in w.raw and w.raw[0] != "-" and w.raw not in own]
        odd += [w for w in command.words[1:] if w.raw == "="]
        if odd:
            yield odd[0].line, f"`{odd[0].raw[:40]}` behind the assignment", "NAME=VALUE alone"


# -- options and script ----------------------------------------------------------------------------


@fault("launcher-argument-misread", SHELL)
def launcher_argument_misread(job: JobFile) -> Found:
    for launch in job.launches:
        start, known = launch.start, LAUNCHERS.keys() | PROGRAMS.keys()
        program = posixpath.basename(start.script)
        words = (start.script, *start.arguments)
        modules = ((a, c) for a, b, c in zip(words, words[1:], words[2:], strict=False) if b == "-m")
        before, behind = next((pair for pair in modules if pair[1] in MODULES), ("", ""))
        if behind and start.kind == "script" and re.search(r"[^/\s]python3?$", before):
            found = f"`{printable(before[-30:], 30)} -m {behind}`: a second command inside this one"
            yield launch.line, found, "a line for each command"
        elif behind and start.kind == "script":
            found = f"-m {behind} behind {printable(program, 60)}: python does not see it"
            yield launch.line, found, f"python -m {behind} in front of the script"
        if launch.launcher not in OPTIONS or launch.command.cut_at:
            continue
        word = launch.command.words[start.at]
        if start.python and word.text in LAUNCHERS and not re.search(r"[$`]", word.raw):
            found = f"Python looks for a file `{word.text}` in the working directory"
            yield launch.line, found, f"{word.text} without {start.python} in front of it"
        elif _FLAG_VALUE.match(start.script) and start.kind == "script":
            found = f"{launch.launcher} takes {start.script!r} for the script: the flag has no value"
            yield launch.line, found, "the flag alone, then the script"
        elif start.kind == "script" and (program in known or PYTHON.fullmatch(program)):
            found = f"{launch.launcher} takes `{program}` for the script, and runs it by Python"
            yield launch.line, found, "the script itself"
        elif start.kind == "script" and _HOSTS_OR_COUNT.fullmatch(program) and _begins_with_script(start):
            found = f"{launch.launcher} takes `{start.script}` for the script"
            yield launch.line, found, "an option in front of it (--hostfile), or the script alone"
        elif start.kind == "script" and program.endswith((".yaml", ".yml", ".json")):
            found = f"{launch.launcher} takes `{printable(program, 60)}` for the script: Python runs it"
            is_config = launch.launcher == "accelerate"
            wanted = f"--config_file {printable(start.script, 80)}" if is_config else "the script first"
            yield launch.line, found, wanted
        elif not (start.script or launch.is_opaque or _is_cut(job, launch) or launch.has("help")):
            yield launch.line, f"{launch.launcher} is given no script", "the script behind the options"


_HOSTS_OR_COUNT = re.compile(
    r"(?i)(?:\w{0,40}[-_.])?(?:host|machine|node)_?(?:file|list|s)?(?:\.txt)?|\d{1,9}"
)


def _begins_with_script(start: CommandLine) -> bool:
    return "".join(start.arguments[:1]).endswith(".py")


def _is_cut(job: JobFile, launch: Launch) -> bool:
    """Whether another rule explains missing words: a cut, or a placeholder."""
    texts = lines_of(job.text)[max(0, launch.line - 1) : launch.command.last_line + 1]
    return any(re.search(r"\\[ \t]+$|\\$", text) for text in texts[-2:]) or bool(job.job.placeholders)


@fault("launcher-option-wrong", SHELL)
def launcher_option_wrong(job: JobFile) -> Found:
    """
    An option of the launcher is misspelt, empty or still a placeholder.

    Why: torchrun, accelerate, DeepSpeed and ColossalAI end with a usage message; an empty count is an
    error; `<host>` makes the shell read a file of that name.  accelerate takes one of --cpu, --multi_gpu,
    --tpu, --use_deepspeed and --use_fsdp, and --multi_gpu from two processes on (`commands/launch.py`).

    Fix: the option as the launcher spells it, with a value.
    """
    yield from _refused_by_accelerate(job)
    for number, text in enumerate(lines_of(job.text), 1) if job.launches and not job.job.documents else ():
        if match := _UNFILLED.match(text):
            yield number, f"{match[1]} is a placeholder, and the shell ends at it", "the value"
    placeholders = {line for line, _ in job.job.placeholders}
    for launch in job.launches:
        if launch.launcher not in OPTIONS:
            continue
        # The script may be in a word that only the run knows: what follows would be its own.
        is_behind = bool(launch.start.opaque) and not launch.start.script.endswith(".py")
        for option in launch.start.options:
            line = _word(launch, option.at).line
            if is_behind and not option.is_known:
                continue
            if not option.is_known and not has_mark(option.name):
                near = difflib.get_close_matches(option.name, OPTIONS[launch.launcher], 1, 0.75)
                others = [n for n, options in OPTIONS.items() if option.name in options]
                same = _same_meaning(launch.launcher, option.name, others)
                of = f": it is {others[0]}'s" if others else ""
                is_of_script = option.name[2:] in launch.arguments
                of = ": it is the script's" if is_of_script else of
                yield job.finding(
                    line,
                    f"{launch.launcher} has no option {printable(option.written.split()[0], 60)}{of}",
                    same or (near[0] if near else "an option of the launcher, or the script in front of it"),
                    severity="error" if near or others or is_of_script else "warning",
                )
            elif option.is_known and not option.is_flag and not option.value and line not in placeholders:
                why = ": the variable in it is empty" if "$" in _word(launch, option.at).raw else ""
                yield line, f"{option.written.partition('=')[0].split()[0]} has no value{why}", "a value"
            elif _is_no_count(meaning_of(launch.launcher, option.name), option.value):
                yield line, f"{option.name} is {printable(option.value, 60)!r}", "a number"
        for line, text in job.job.placeholders:
            if launch.line <= line <= launch.command.last_line + 1:
                yield line, f"{text} is a placeholder, and the shell takes `<` for a file", "the value"
                break


_UNFILLED = re.compile(
    r"\s*(?:export\s+)?[A-Za-z_]\w*=[^\s\"'<>#]*(<[A-Za-z][\w-]{0,60}>)[^\s\"'<>]*(?:\s+#.*)?$"
)
_KINDS = ("cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp")


def _refused_by_accelerate(job: JobFile) -> Found:
    for launch in job.launches:
        given = [n for n in _KINDS if launch.launcher == "accelerate" and launch.start.option(n) is not None]
        if len(given) > 1:
            first, second = (f"--{name.replace('-', '_')}" for name in given[:2])
            yield launch.line, f"{first} beside {second}", "one of them"
        elif given == ["multi-gpu"] and launch.start.option("num-processes") in ("0", "1"):
            yield launch.line, "--multi_gpu for one process", "two or more, or no --multi_gpu"


_COUNTS = {
    "nodes": re.compile(r"\d{1,9}(?::\d{1,9})?"),
    "nproc": re.compile(r"\d{1,9}|[a-z]{1,20}"),
    "world_size": re.compile(r"\d{1,9}"),
}
"""torchrun also takes gpu, cpu, auto and the name of a backend for its processes."""


def _is_no_count(meaning: str, value: str) -> bool:
    written = value.isascii() and not has_mark(value) and "$" not in value
    return meaning in _COUNTS and written and not _COUNTS[meaning].fullmatch(value.strip())


def _same_meaning(launcher: str, name: str, others: Sequence[str]) -> str:
    """The name of an option for another launcher; "" if there is none."""
    meaning = next((OPTIONS[other][name] for other in others), "")
    if meaning == "nproc" and launcher == "accelerate":
        return "--num_processes, the total of all machines"
    if meaning == "world_size":
        own = next((o for o, m in OPTIONS[launcher].items() if m == "nproc"), "")
        return f"{own}, the number of each node" if own else ""
    is_common = meaning in ("nproc", "nodes", "rank", "port", "address", "hostfile", "rendezvous", "restarts")
    return next((o for o, m in OPTIONS[launcher].items() if m == meaning), "") if is_common else ""


_ITS_OWN = (
    *("standalone", "nproc-per-node", "nnodes", "node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id"),
    *("num-machines", "machine-rank", "main-process-ip", "main-process-port"),
)
"""Options of torchrun and accelerate that few scripts have."""


@fault("launcher-option-behind-script", SHELL)
def launcher_option_behind_script(job: JobFile) -> Found:
    """
    Options of the launcher come after the script.

    Why: the launcher reads its own options up to the script; what follows goes to the script.  torchrun then
    starts one process, accelerate what its configuration says, and the script refuses or ignores the words.

    Fix: options of the launcher, the script, options of the script:
    `torchrun --nproc_per_node=8 train.py --lr 1`.
    """
    for launch in job.launches:
        options = OPTIONS.get(launch.launcher, {})
        late = [n for n in launch.arguments if n in _ITS_OWN and f"--{n}" in options and not launch.has(n)]
        is_read = bool(late) and not launch.is_opaque and not _DASHES.match(launch.start.script)
        if launch.launcher == "deepspeed":
            of_hosts = re.match(r"[\w.-]+:\d|[\w.-]+@", launch.arguments.get("include", ""))
            late = [n for n in ("hostfile", "include") if n in launch.arguments and not launch.has(n)]
            late = [n for n in late if n == "hostfile" or of_hosts]
            is_read = bool(late) and not launch.is_opaque
        elif launch.launcher not in (*TORCH, "accelerate"):
            continue
        if not is_read:
            continue
        name = posixpath.basename(launch.script)
        text = next((t for path, t in job.others.items() if posixpath.basename(path) == name), None)
        text = job.nearby(job.path, launch.script) if text is None and job.nearby and name else text
        takes = text is not None and any(n in text or n.replace("-", "_") in text for n in late)
        is_bare = not launch.has("nproc-per-node", "nnodes", "num-processes", "num-machines", "config-file")
        is_sure = is_bare and ("standalone" in late or "nproc-per-node" in late or len(late) > 1)
        is_sure = is_sure or launch.launcher == "deepspeed"
        if not takes and not launch.setting("nproc-per-node"):
            found = f"--{late[0]} behind the script: {launch.launcher} does not see it"
            severity: Severity = "error" if is_sure else "warning"
            yield job.finding(launch.line, found, f"--{late[0]} in front of the script", severity=severity)


def _word(launch: Launch, at: int) -> Word:
    return launch.command.words[min(at, len(launch.command.words) - 1)]


# -- how many, and where ---------------------------------------------------------------------------


@fault("launcher-started-per-task", SHELL)
def launcher_started_per_task(job: JobFile) -> Found:
    for launch in job.launches:
        each = launch.per_node or 0
        inner = next(
            (s for s in launch.steps[1:] if s.program in _STARTS_AGAIN and s.role == "starter"), None
        )
        ranks = launch.number(inner.option("-np", "-n", "--np", "--ntasks") or "") if inner else None
        if inner and (ranks or 0) > 1 and (launch.instances or 0) > 1 and launch.started_by in _STARTS_AGAIN:
            found = f"{launch.started_by} starts {inner.program} {launch.instances} times, each {ranks} ranks"
            yield launch.line, found, f"{launch.started_by} or {inner.program}, not both"
            return
        is_node_launcher = launch.launcher in NODE_LAUNCHERS and launch.is_away
        if is_node_launcher and (found := _tasks_not_taken(job, launch)):
            yield job.finding(launch.line, found, "srun -N, with --ntasks-per-node=1", severity="warning")
        if not is_node_launcher or each < 2 or (launch.nnodes and launch.nnodes == launch.instances):
            continue
        step = launch.srun
        own = step and step.option("--ntasks-per-node", "-n", "--ntasks")
        line = launch.line if own or not step else _tasks_line(job) or launch.line
        found = f"{each} tasks a node, and each starts {launch.launcher} (line {launch.line})"
        yield line, found, "one task a node: --ntasks-per-node=1" if step else "one process a node"
        return


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


def _tasks_line(job: JobFile) -> int:
    return max(last(job.job.directives, n)[1] for n in ("ntasks-per-node", "tasks-per-node", "ntasks", "n"))


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
    """
    The launcher is started on several nodes, and each start forms a world of its own.

    Why: without a number of nodes torchrun and accelerate train on their node alone, and DeepSpeed without a
    host file does, too.  Every node trains the same model on the same data, and writes the same checkpoint.

    Fix: `--nnodes=$SLURM_NNODES` with one rendezvous endpoint (accelerate: `--num_machines`,
    `--machine_rank`, `--main_process_ip`); for DeepSpeed a host file on the first node without srun, or
    torchrun.
    """
    for launch in job.launches:
        worlds = launch.worlds or 1
        is_itself = launch.meets_itself and launch.nnodes != 1
        if worlds < 2 or is_itself or not launch.is_away or (launch.per_node or 1) > 1:
            continue
        if launch.launcher == "deepspeed":
            told, wanted = "has no host file", "one start on the first node with --hostfile, or torchrun"
        elif launch.start.option("standalone") is not None:
            told, wanted = "has --standalone: its node alone", "--nnodes and a rendezvous endpoint"
        else:
            count = launch.nnodes or 1
            told = (
                f"is told of {plural(count, 'node')}"
                if launch.nnodes_text
                else "is not told how many nodes there are"
            )
            wanted = f"--nnodes={_nodes_here(launch)}" if launch.launcher in TORCH else "the number of nodes"
        found = f"{launch.started_by} starts it on {launch.nodes} nodes, and {launch.launcher} {told}"
        found += f": {worlds} worlds"
        yield launch.line, found, wanted
    yield from _worlds_by_pdsh(job)


def _worlds_by_pdsh(job: JobFile) -> Found:
    """accelerate passes several machines to `deepspeed --launcher pdsh`: prepare_deepspeed_cmd_env."""
    for launch in job.launches:
        is_many = launch.launcher == "accelerate" and (launch.nnodes or 0) > 1 and not launch.is_opaque
        is_by = launch.config.get("distributed_type") == "DEEPSPEED" or launch.has("use-deepspeed")
        own, how = launch.node_rank_text, launch.option("deepspeed-multinode-launcher")
        is_each = has_mark(own) or own.strip("0").isdecimal() or (launch.worlds or launch.instances or 0) > 1
        if is_many and is_by and is_each and how != "standard" and not launch.has("deepspeed-hostfile"):
            found = "each machine starts it, and DeepSpeed, without a host file, trains on its machine alone"
            yield launch.line, found, "--deepspeed_multinode_launcher standard"


@fault("rendezvous-endpoint-missing", SHELL)
def rendezvous_endpoint_missing(job: JobFile) -> Found:
    """
    A launcher of several nodes is given no address at which they meet.

    Why: with c10d torchrun reads `--rdzv-endpoint` alone and takes localhost without it (`--master-addr` is
    ignored); static it takes 127.0.0.1 where `--master-addr` is missing, whatever MASTER_ADDR is.  Accelerate
    takes None.  Every node then waits for itself.

    Fix: `--rdzv-endpoint=$HEAD:$PORT`, HEAD the first node's name, the same on every node.
    """
    for launch in job.launches:
        is_open = launch.is_set_outside or launch.unread_config or launch.is_opaque
        if launch.endpoint or is_open or (launch.nnodes or 0) < 2 or launch.nodes == 1 == launch.replicas:
            continue
        if launch.launcher in TORCH and launch.backend == "c10d":
            ignored = " (--master_addr is ignored)" if launch.option("master-addr") else ""
            found = f"c10d without --rdzv-endpoint{ignored}: each node meets itself"
            yield launch.line, found, "--rdzv-endpoint"
        elif launch.launcher in TORCH and launch.backend == "static":
            ignored = "; torchrun does not read MASTER_ADDR" if launch.env.get("MASTER_ADDR") else ""
            found = f"no --master-addr: every node takes 127.0.0.1{ignored}"
            yield launch.line, found, "--master-addr, an address of the first node"
        elif launch.launcher == "accelerate" and not _by_deepspeed(launch):
            yield launch.line, "no --main_process_ip for several machines", "--main_process_ip"


def _by_deepspeed(launch: Launch) -> bool:
    """Whether DeepSpeed's own launcher reaches the other nodes, by its host file."""
    how = launch.option("deepspeed-multinode-launcher")
    return launch.has("deepspeed-hostfile") or how not in ("", "standard")


@fault("rendezvous-endpoint-own", SHELL)
def rendezvous_endpoint_own(job: JobFile) -> Found:
    """
    The address at which several nodes meet is each node's own: localhost, or a host name read on every node.

    Why: each node opens a store at itself and waits there for the others.

    Fix: the name or address of the first node, read once, the same on every node.
    """
    for launch in job.launches:
        count = launch.nodes if launch.launcher == "python" and launch.is_away else launch.nnodes
        is_own_world = launch.start.option("standalone") is not None
        if launch.launcher in ("colossalai", "deepspeed") or is_own_world or (count or 0) < 2:
            continue
        if (own := launch.host_is_own) and not on_this_machine(job, launch):
            yield launch.line, f"the ranks meet at {own}: each node connects only to itself", "the first node"
    yield from coordinator_at_itself(job)


def on_this_machine(job: JobFile, launch: Launch) -> list[Launch]:
    """The launches of one world that this shell starts, all nodes on its own machine; [] if not."""
    if launch.is_away or (launch.nnodes or 0) < 2 or len(job.launches) > MOST_PARTS:
        return []
    same = [
        one
        for one in job.launches
        if not one.is_away
        and (one.script, one.endpoint, one.nnodes) == (launch.script, launch.endpoint, launch.nnodes)
    ]
    is_all = len(same) == launch.nnodes and all(one.command.detached for one in same[:-1])
    return same if is_all and not any(one.command.branches for one in same) else []


@fault("node-variable-read-too-early", SHELL)
def node_variable_read_too_early(job: JobFile) -> Found:
    """
    A variable that differs per task is read before srun or mpirun has started the tasks.

    Why: in the batch shell SLURM_PROCID, SLURM_NODEID and SLURM_LOCALID are always 0: every node gets node
    rank 0, every task rank 0.  OMPI_COMM_WORLD_RANK and PMI_RANK are not set there at all.

    Fix: `srun bash -c 'torchrun --node-rank=$SLURM_NODEID ...'`, in single quotes.
    """
    wanted = "single quotes around the command, so that each task reads its own"
    seen = set()
    by_command = {id(launch.command): launch for launch in job.launches}
    for command in job.job.commands:
        steps = [step.program for step in (*command.around, *command.start.steps)]
        starter = next((program for program in steps if program in PER_TASK_OF), "")
        if not starter:
            continue
        launch = by_command.get(id(command))
        if command.start.text is not None or (launch and (launch.nodes == 1 or _ignores_rank(launch))):
            continue
        for word in command.words:
            early = read_early(job, word.text, starter)
            is_launched = launch is not None or command.start.launcher or command.start.rest
            if early and is_launched and word.line not in seen:
                seen.add(word.line)
                yield word.line, early, wanted
                break
        for name in (
            RANK_VARIABLES if launch and launch.launcher == "python" and launch.instances != 1 else ()
        ):
            if early := read_early(job, command.env.get(name, ""), starter):
                yield command.line, f"{name}: {early}", f"{name} set in each task"
                break


def read_early(job: JobFile, text: str, starter: str) -> str:
    """The value of a variable that differs per task, in the shell that reads it here; "" if it reads none."""
    for mark in job.job.marks.all_of(text):
        if mark.name in PER_TASK_OF[starter] and mark.site == "batch":
            told = "0 on every node" if starter == "srun" else "nothing is set yet"
            return f"${mark.name} is replaced before {starter} starts: {told}"
    return ""


def _ignores_rank(launch: Launch) -> bool:
    """Whether the launcher does not use the node rank: c10d numbers the nodes itself."""
    is_known = launch.launcher in (*TORCH, "accelerate")
    return is_known and (launch.backend == "c10d" or launch.nnodes == 1)


def has_one_rank_for_all(launch: Launch, assigned: AbstractSet[str] = frozenset()) -> str:
    """Why every started node gets the same node rank; "" if it does not, or may not."""
    is_static = launch.launcher in (*TORCH, "accelerate", "llamafactory") and launch.backend == "static"
    one = launch.nodes == 1 or launch.replicas == 1
    one = one or launch.started_by in ("kubectl", "xargs", "parallel")
    one = one or (launch.started_by == "ssh" and bool(launch.command.branches))
    is_open = launch.is_opaque or launch.is_set_outside or _by_deepspeed(launch)
    is_open = is_open or (launch.unread_config and launch.start.option("machine-rank") is None)
    on_one = launch.srun is not None and launch.srun.has("-w", "--nodelist")
    if not is_static or not launch.is_away or one or on_one or is_open or (launch.nnodes or 0) < 2:
        return ""
    text = launch.node_rank_text
    if not text and launch.launcher == "llamafactory" and launch.srun is None:
        return ""  # the machine may set NODE_RANK
    if not text:
        is_set = "rank=" in launch.option("rdzv-conf") or has_mark(launch.option("rdzv-conf"))
        return "" if is_set else "nothing gives the node's rank"
    mark = launch.job.marks.of(text)
    of_others = launch.started_by == "SkyPilot" and mark and not mark.name.startswith("SKYPILOT")
    of_this_shell = launch.started_by == "ssh" and mark and mark.site == "batch"
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
    assigned = names_set(job)
    for launch in job.launches:
        how = has_one_rank_for_all(launch, assigned)
        if how:
            same = launch.node_rank_text if launch.node_rank_text.isdecimal() else "0"
            yield job.finding(
                launch.line,
                f"{launch.started_by} starts this on every node, and {how}: all are node {same}",
                "--node-rank, another on each node",
                severity="warning" if launch.unread_config else "error",
                fix=Fix(_EACH_ITS_OWN.get(launch.started_by, "give each node its own: 0, 1, 2, ...")),
            )
        ranks = [one.node_rank_text or "0" for one in on_this_machine(job, launch)]
        if launch.backend == "static" and len(ranks) > 1 and len({*ranks}) == 1 and ranks[0].isdecimal():
            found = f"{len(ranks)} launches of one world, and each is node {ranks[0]}"
            yield launch.line, found, "--node-rank, another for each"
        old = launch.launcher == "llamafactory" and launch.env.get("RANK")
        if old and not launch.env.get("NODE_RANK") and launch.env.get("NNODES", "") not in ("", "1"):
            yield job.finding(
                launch.line,
                "RANK is given; LLaMA-Factory 0.9.1 and later read NODE_RANK: every node is node 0",
                "NODE_RANK (both for older versions, too)",
                fix=Fix(
                    "Set NODE_RANK as well as RANK.", env={"NODE_RANK": launch.shown(launch.env["RANK"])}
                ),
            )


QUERIES = ("hostname", "nvidia-smi", "echo", "cat", "mkdir", "rm", "date", "ls", "ip", "cp", "which", "ps")
"""Commands that people run on other nodes in addition to a job."""
OTHERS = ("ray", "ringup", "dask", "flux", "horovodrun")


def starts_elsewhere(job: JobFile) -> bool:
    """Whether anything in the file starts more than a query on other nodes."""
    for command in job.job.commands:
        start = command.start
        program = posixpath.basename((start.rest or (start.script or start.program,))[0])
        is_away = any(step.role == "starter" for step in (*command.around, *start.steps))
        if is_away and program not in QUERIES:
            return True
        if any(posixpath.basename(text) in OTHERS for text in command.texts[:2]):
            return True
    return False


@fault("launcher-on-first-node-alone", SHELL)
def launcher_on_first_node_alone(job: JobFile) -> Found:
    """
    A job file requests several nodes, but starts the launcher only on the first.

    Why: Slurm and PBS run the file on the first node only; a launcher of several nodes then waits for the
    others, one of a single node leaves them idle.

    Fix: `srun --ntasks-per-node=1` in front of the launcher (mpirun, pbsdsh), or `ringup run -- ...` in its
    place.
    """
    away = None
    for launch in job.launches:
        own = launch.has("config-file") or _by_deepspeed(launch) or launch.is_opaque
        is_node_launcher = launch.launcher in ("torchrun", "launch", "accelerate", "llamafactory")
        if launch.started_by != "batch" or launch.allocated < 2 or not is_node_launcher or own:
            continue
        away = starts_elsewhere(job) if away is None else away
        if away:
            return
        is_one = launch.nnodes == 1
        what = "trains on the first node alone" if is_one else "waits for nodes on which nothing starts it"
        yield job.finding(
            launch.line,
            f"{launch.allocated} nodes are asked for, and {launch.launcher} {what}",
            "srun in front of it",
            severity="warning" if is_one else "error",
        )
        return


@fault("world-size-disagrees", SHELL)
def world_size_disagrees(job: JobFile) -> Found:
    """Nodes or ranks that contradict what starts them, or each other in accelerate's configuration."""
    given = dict(re.findall(r"(?m)^(num_machines|num_processes): {0,4}([1-9]\d{0,5})\b", job.text))
    if not job.launches and len(given) == 2:
        total, machines = int(given["num_processes"]), int(given["num_machines"])
        if total % machines:
            line = next(n for n, t in enumerate(lines_of(job.text), 1) if t.startswith("num_processes:"))
            found = f"{total} processes over {machines} machines: {total // machines} on each"
            yield line, found, "a multiple of the machines: num_processes is the total"
    together = Counter((one.script, one.nnodes_text) for one in job.launches)
    for launch in job.launches:
        count, wanted = launch.instances, launch.nnodes or 0
        told = launch.number(launch.env.get("WORLD_SIZE", ""))
        if launch.launcher == "python" and launch.is_away and "RANK" in launch.env and told and count:
            if told != count:
                found = f"WORLD_SIZE is {told}, and {launch.started_by} starts {count} ranks"
                yield launch.line, found, f"WORLD_SIZE={count}"
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
        is_alone = launch.started_by in ("manifest", "Pod") and count == 1  # another starts the others
        words = launch.shown(" ".join(launch.command.texts))
        if launch.started_by == "LeaderWorkerSet" and "LWS_" not in words:
            continue
        if off := _ranks_from(job, launch):
            yield job.finding(launch.line, off[0], off[1])
            continue
        is_part = (count or 0) < wanted and count != launch.allocated
        is_short = launch.started_by == "ssh" and (is_part or launch.command.branches)
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


# -- rendezvous ------------------------------------------------------------------------------------


@fault("head-address-guessed", SHELL, severity="warning")
def head_address_guessed(job: JobFile) -> Found:
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


@fault("rendezvous-without-id", SHELL, severity="note")
def rendezvous_without_id(job: JobFile) -> Found:
    """
    A c10d rendezvous of several nodes has no id.

    Why: all runs without one are called "none"; what an earlier run left at the
    endpoint is joined without a message.

    Fix: `--rdzv-id` with the job's id, the same on every node.
    """
    for launch in job.launches:
        is_c10d = launch.launcher == "torchrun" and launch.backend == "c10d" and launch.nnodes != 1
        if is_c10d and not launch.setting("rdzv-id") and not launch.is_opaque:
            yield launch.line, "no --rdzv-id", "an id for this run"


_NEW_ON_EACH = re.compile(r"\$\((?:uuidgen|hostname|openssl|mktemp|cat /proc|date .*%N|shuf).*|S?RANDOM|\$+")


@fault("rendezvous-ids-differ", SHELL)
def rendezvous_id_of_each_node(job: JobFile) -> Found:
    """An id that each node, or each round of the loop, generates."""
    for launch in job.launches:
        held = job.job.marks.all_of(launch.setting("rdzv-id"))
        own = {marks.OWN_NAME, marks.OWN_ADDRESS, *PER_TASK}
        sites = ("task", "loop") if launch.is_one_a_round else ("task",)
        new = [m for m in held if m.site in sites and (_NEW_ON_EACH.fullmatch(m.name) or m.name in own)]
        is_one = launch.nodes == 1 or launch.nnodes == 1 or not launch.is_away or launch.replicas == 1
        if new and not is_one and launch.launcher in TORCH:
            found = f"--rdzv-id={launch.shown(launch.setting('rdzv-id'))}: another on each node"
            yield launch.line, printable(found, 120), "one id for all nodes: the job's, or one made before"


@fault("rendezvous-host-unsure", SHELL, severity="warning")
def rendezvous_host_unsure(job: JobFile) -> Found:
    """
    With the c10d rendezvous, torch guesses from the host name which node owns the endpoint's address.

    Why: torch compares the endpoint with the node's own host name, then with the addresses of that name; an
    address of another network card, or 127.0.1.1 in the hosts file, and no node opens the store: every node
    waits (pytorch issue 73656).

    Fix: the first node's name as endpoint; static rendezvous (`--node-rank`, `--master-addr`); or
    `--rdzv-conf is_host=1` on the head and `is_host=0` elsewhere, with `--local-addr`.
    """
    for launch in job.launches:
        is_c10d = launch.launcher in ("torchrun", "accelerate") and launch.backend == "c10d"
        if not is_c10d or "is_host" in launch.option("rdzv-conf") or not several_nodes(launch):
            continue
        held = {mark.name for mark in job.job.marks.all_of(launch.host)}
        if _ADDRESS.fullmatch(launch.host) or held & {marks.FIRST_ADDRESS, marks.OWN_ADDRESS}:
            if launch.host_is_own:
                continue
            yield job.finding(
                launch.line,
                f"nothing says which node is {launch.shown(launch.endpoint)}",
                "the first node's name, is_host in --rdzv-conf, or static rendezvous",
                worked_around_by="`ringup run` uses static rendezvous, or gives is_host with c10d",
            )


@fault("port-privileged", SHELL)
def port_privileged(job: JobFile) -> Found:
    """
    The port of the rendezvous is below 1024, or above 65535.

    Why: below 1024 only root may listen; for anybody else the head ends with "Permission denied".  torch
    refuses a port above 65535 (`_create_c10d_store`).

    Fix: a port from 1024 to 65535.
    """
    for launch in job.launches:
        port = launch.endpoint.rpartition(":")[2] or launch.option("main-process-port", "master-port")
        if _LITERAL_PORT.match(port) and int(port) > LAST_PORT:
            yield launch.line, f"port {port}: there is none above {LAST_PORT}", "a port from 1024 to 65535"
        elif _LITERAL_PORT.match(port) and 0 < int(port) < 1024 and launch.replicas is None:
            yield launch.line, f"port {port}", "a port above 1023"


@fault("rank-not-set", SHELL)
def launcher_left_out(job: JobFile) -> Found:
    """
    Scripts that are started once, without a launcher, with settings for several ranks.

    `--launcher pytorch` is OpenMMLab's and BasicSR's; WORLD_SIZE of Slurm's tasks waits for all of them.
    """
    for launch in job.launches:
        counted = {mark.name for mark in job.job.marks.all_of(launch.env.get("WORLD_SIZE", ""))}
        is_alone = launch.launcher == "python" and launch.started_by == "batch" and not starts_elsewhere(job)
        if is_alone and any("SLURM_NTASKS" in name for name in counted) and "RANK" not in launch.env:
            tasks = tasks_per_node(job.job.directives)
            if tasks > 1 and "spawn" not in (file_at_hand(job, launch.script) or ""):
                found = f"WORLD_SIZE counts {tasks} tasks a node, and without srun there is one"
                yield launch.line, found, "srun in front of it"
        is_told = launch.arguments.get("launcher") == "pytorch"
        if launch.launcher == "python" and is_told and "RANK" not in launch.env and not launch.is_away:
            found = "--launcher pytorch: the script reads RANK, and python alone sets none"
            yield launch.line, found, "torchrun in place of python"


@fault("port-in-file", SHELL, severity="note")
def port_in_file(job: JobFile) -> Found:
    """
    The port of the rendezvous is written in the file.

    Why: a leftover of an earlier run, or another job on the node, may hold it: with c10d the job hangs
    without a message, otherwise it ends with EADDRINUSE.

    Fix: a port that is free at that moment (`ringup run` finds one), or one derived from the job's id.
    """
    found: list[tuple[int, str]] = []
    for launch in job.launches:
        endpoint = launch.option("rdzv-endpoint").rpartition(":")
        values = [
            launch.option("master-port", "main-process-port"),
            launch.env.get("MASTER_PORT", ""),
            endpoint[2] if endpoint[1] else "",
            str(launch.command.variables.get("MASTER_PORT", "")),
        ]
        port = next((v for v in values if _LITERAL_PORT.match(v)), "")
        if launch.replicas is not None:
            continue
        if port and port != "0":
            found.append((launch.line, port))
        elif launch.launcher == "colossalai" and not launch.option("master-port"):
            found.append((launch.line, "29500 by default"))
    if found:
        yield found[0][0], f"port {found[0][1]}{lines([n for n, _ in found])}", "a port known to be free"


# -- Slurm, variables, the rest ----------------------------------------------------------------------


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


@fault("launcher-deprecated", SHELL, severity="note")
def launcher_deprecated(job: JobFile) -> Found:
    """
    torch.distributed.launch is deprecated.

    Why: it passes --local-rank to the script and will go.

    Fix: torchrun, and LOCAL_RANK from the environment.
    """
    for launch in [one for one in job.launches if one.launcher == "launch"][:1]:
        yield launch.line, "torch.distributed.launch", "torchrun"


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


# -- sizes -------------------------------------------------------------------------------------------


@fault("parallel-sizes-do-not-divide", SHELL)
def parallel_sizes_do_not_divide(job: JobFile) -> Iterator[Finding]:
    """
    Tensor, pipeline, context or expert parallel sizes do not divide the number of ranks, or a batch does not.

    Why: Megatron asserts that the ranks are a multiple of tensor x pipeline x context sizes
    (`megatron/training/arguments.py`), and the global batch a multiple of micro batch x data-parallel size
    (`num_microbatches_calculator.py`), and splits heads, layers and experts evenly; verl, EasyR1 and
    OpenRLHF assert the same of theirs: every rank ends at the start.

    Fix: sizes whose product divides the ranks.
    """
    for launch in job.launches:
        given = {n: launch.number(v) for n, v in launch.arguments.items()}
        actors = (given.get("actor-num-nodes") or 0) * (given.get("actor-num-gpus-per-node") or 0)
        given["ranks"] = launch.world_size or actors or None
        given.setdefault("expert-tensor-parallel-size", given.get("tensor-model-parallel-size"))
        for whole, by, unless in _DIVIDED:
            left, right = _product(given, whole), _product(given, by)
            is_apart = unless is not None and any(map(unless.search, given))
            if left and right and left % right and not is_apart:
                found = f"{_shown(given, whole)}, and {_shown(given, by)}"
                yield job.finding(launch.line, found, f"a multiple of {right}")
                break


def _product(given: Mapping[str, int | None], names: str) -> int:
    """0 if a size is missing or unknown; one with `?` may be missing."""
    made = 1
    for name in names.split():
        made *= given.get(name.rstrip("?"), 1 if name.endswith("?") else 0) or 0
    return made


def _shown(given: Mapping[str, int | None], names: str) -> str:
    known = [(n, given[n]) for n in names.replace("?", "").split() if n in given]
    parts = [f"{n.rpartition('.')[2]} {size}" for n, size in known if size != 1 or len(known) == 1]
    return " x ".join(parts) + (f" = {_product(given, names)}" if len(parts) > 1 else "")


_MODEL = "tensor-model-parallel-size pipeline-model-parallel-size? context-parallel-size?"
_EXPERTS = "expert-model-parallel-size expert-tensor-parallel-size pipeline-model-parallel-size?"
_UNEVEN = re.compile(
    "decoder-(?:first|last)-|pipeline-model-parallel-layout|account-for-|encoder-num|standalone-embedding"
    "|custom-pipeline|schedule-method|pp-partition-method|hybrid-"
)
_GPUS = "trainer.nnodes? trainer.n-gpus-per-node"
_MEGATRON = re.compile(r"\.(?:strategy|megatron)")
_SPLIT = re.compile("ring-attn-size|ds-tensor-parallel-size")
_DIVIDED = (
    # Megatron: training/arguments.py, transformer_config.py, moe_layer.py, num_microbatches_calculator.py
    ("ranks", _MODEL, None),
    ("ranks", _EXPERTS, None),
    ("num-attention-heads", "tensor-model-parallel-size", None),
    ("num-experts", "expert-model-parallel-size", None),
    ("num-layers", "pipeline-model-parallel-size", _UNEVEN),
    (f"global-batch-size {_MODEL}", "micro-batch-size ranks", None),
    # verl: workers/fsdp_workers.py, utils/config.py; EasyR1: workers/fsdp_workers.py, trainer/ray_trainer.py
    (_GPUS, "actor-rollout-ref.rollout.tensor-model-parallel-size", None),
    (_GPUS, "worker.rollout.tensor-parallel-size", None),
    ("data.train-batch-size actor-rollout-ref.rollout.n?", _GPUS, _MEGATRON),
    ("data.rollout-batch-size", "worker.actor.global-batch-size", None),
    # OpenRLHF: utils/deepspeed/deepspeed.py
    ("train-batch-size", "micro-train-batch-size ranks", _SPLIT),
)
"""(sizes, sizes whose product divides that of the first, options that make it otherwise)."""
