"""Variables of launch lines that are empty where they are read."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ringup.launchfiles.directives import GPU_NAMES, last
from ringup.launchfiles.marks import COUNT_NAMES, has_mark, is_mark
from ringup.launchfiles.model import BY_ENVIRONMENT, TORCH, Launch
from ringup.launchfiles.passing import MPIRUN, keeps
from ringup.launchfiles.programs import MPI_OPTIONS, OF_OPEN_MPI
from ringup.launchfiles.shell import Command, Word
from ringup.lint.across_files import All, Part
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.ranks import Reading
from ringup.lint.rule import ACROSS, SHELL, Found, fault
from ringup.lint.source import INIT
from ringup.model import LOCAL_RANKS, RANK_VARIABLES, RANKS, TORCHRUN_PREFIXES
from ringup.nccl.variables import edits
from ringup.rules import Finding, Fix, Severity
from ringup.units import lines_of, printable

_NAMED = re.compile(
    r"\b(?:for|read|local|export|mapfile|readarray|printf)[ \t]+(?:-\w{1,9}[ \t]{1,4}){0,4}([A-Za-z_]\w*)"
)
_READ = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_TESTED = re.compile(r"-[nzv] {1,4}\"?\$?\{?([A-Za-z_]\w{0,60})|\{([A-Za-z_]\w{0,60}):?[-+?=]")
GIVEN = frozenset(("i", "j", "k", "n", "host", "node", "line", "f", "http_proxy", "https_proxy", "no_proxy"))
WELL_KNOWN = frozenset((
    *(*RANK_VARIABLES, *RANKS, *LOCAL_RANKS, *COUNT_NAMES, *GPU_NAMES),
    *("SLURM_NODEID", "SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    *("SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_GPUS_PER_NODE"),
    *("PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "JOB_COMPLETION_INDEX"),
))  # fmt: skip
"""Variables of schedulers and launchers; a name that is similar to one of these is misspelt."""
_FAMILIES = ("SLURM_", "SKYPILOT_", "PBS_", "LSB_", "OMPI_", "PMI_", "PMIX_", *TORCHRUN_PREFIXES)
SCHEDULERS = {"SBATCH": "SLURM_", "PBS": "PBS_", "BSUB": "LSB_"}
"""Scheduler of the directives -> prefixes of the variables that it sets."""
_PLACES = {"SLURM_": "job of Slurm", "PBS_": "job of PBS", "LSB_": "job of LSF", "-": "pod"}


def names_set(job: JobFile) -> set[str]:
    """Variables that the file assigns anywhere, also in the text of other shells."""
    return set(re.findall(r"\b([A-Za-z_]\w*)\+?=", job.text)) | set(_NAMED.findall(job.text))


def _words(launch: Launch) -> tuple[Word, ...]:
    """The words up to the script."""
    return launch.command.words[: max(launch.start.script_at, 1)]


def _names(job: JobFile, word: Word) -> list[str]:
    return [m.name for m in job.job.marks.all_of(word.text) if m.name.isidentifier()]


@fault("variable-never-set", SHELL)
def variable_never_set(job: JobFile) -> Found:
    """
    A launch line uses a variable that the file never sets, or does not export to the shell that reads it.

    Why: it is empty then, and the option takes the next word for its value.

    Fix: set it above, `export` it for `srun bash -c '...'`, or write the number.
    """
    known = names_set(job) if job.launches else set()
    is_open = bool(job.job.sources)  # they may set it
    for launch in job.launches:
        for word in _words(launch):
            for name in _names(job, word):
                is_half = name in _MEETING and not known.isdisjoint(_MEETING) and launch.started_by == "srun"
                is_given = name in GIVEN or (name in WELL_KNOWN and not is_half)
                if name in known or is_given or name in launch.command.withheld:
                    continue
                is_real = name.startswith(_FAMILIES)  # SLURM_CPUS_PER_TASK and _GPUS_ are both Slurm's
                near = difflib.get_close_matches(name, known if is_real else known | WELL_KNOWN, 1, 0.85)
                is_slip = bool(near) and not is_open and _is_slip(name, near[0])
                is_slip = is_slip or (
                    bool(near) and near[0] in known and _is_never_read(job, launch, near[0])
                )
                is_like = bool(near) and near[0] in known and bool(job.job.directives)
                is_unset = is_half or is_like or (launch.replicas is None and not name.isupper())
                if is_slip or (is_unset and not is_open):
                    wanted = f"${near[0]}" if near and not is_half else "a value"
                    is_sure = is_slip or (bool(near) and not name.isupper() and not is_half)
                    severity: Severity = "error" if is_sure else "warning"
                    found = f"${name} is set nowhere in this file"
                    yield job.finding(word.line, found, wanted, severity=severity)
        yield from _other_script(job, launch, known) if not is_open else ()
    if is_open:
        return
    yield from _divisors(job, known) if job.launches else ()
    launched = {id(launch.command): launch for launch in job.launches}
    for command in job.job.commands:
        if id(command) in launched or is_mark(command.texts[0]):
            yield from _not_exported(job, command, launched.get(id(command)))


_ANY_READ, _EXPORTS = re.compile(r"\$\{?#?(\w{1,60})"), re.compile(r"\bexport +([^\n]{1,300})")


def _is_never_read(job: JobFile, launch: Launch, name: str) -> bool:
    """Whether nothing in the file reads a variable, and no program that it starts (torchrun sets its own)."""
    is_set_again = launch.launcher in TORCH and name in _MEETING
    exported = _EXPORTS.findall(job.text) if not is_set_again else []
    return name not in _ANY_READ.findall(job.uses) and not any(name in line for line in exported)


def _other_script(job: JobFile, launch: Launch, known: set[str]) -> Found:
    """A script from a variable that nothing sets, where another one holds a script and is never read."""
    held = [w.text.partition("=")[0] for w in job.job.assigned if w.text.endswith(".py")]
    own = next((n for n in held if f"${n}" not in job.text and f"${{{n}" not in job.text), "")
    unknown = launch.start.opaque if own and not launch.start.script else []
    for name in (mark.name for word in unknown for mark in job.job.marks.all_of(word)):
        if name.isidentifier() and name.isupper() and name not in known | WELL_KNOWN:
            yield launch.line, f"${name} is set nowhere in this file, and ${own} is never read", f"${own}"
            return


_ONLY_WITH = {
    "SLURM_GPUS": ("gpus", "G"),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node",),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task",),
}
_ASKED_FOR = ("gres", "gpus", "G", "gpus-per-node", "gpus-per-task")


_WITHOUT_DEFAULT = re.compile(r"\$\w{1,60}|\$\{\w{1,60}\}")


@fault("slurm-variable-empty", SHELL)
def slurm_variable_empty(job: JobFile) -> Found:
    """
    A variable of Slurm is read that does not exist, or that only another option sets.

    Why, GPUs: sbatch(1): SLURM_GPUS is "only set if the -G, --gpus option is specified", SLURM_GPUS_PER_NODE
    and SLURM_GPUS_PER_TASK with theirs.  After `--gres=gpu:4` it is empty.

    Why, tasks: sbatch(1): SLURM_NTASKS_PER_NODE is set with --ntasks-per-node alone.

    Why, name: sbatch(1) and srun(1) list what Slurm sets; another name is empty, without a message.

    Fix, GPUs: use SLURM_GPUS_ON_NODE, which is always set where there are GPUs.

    Fix, tasks: add --ntasks-per-node, or read SLURM_NTASKS.

    Fix, name: write it as sbatch(1) does.
    """
    if not (given := {d.name for d in job.job.directives if d.scheduler == "SBATCH"}):
        return
    asked = given & {*_ASKED_FOR}
    tested = {a or b for a, b in _TESTED.findall(job.text)} - {*_ENDS_WITHOUT.findall(job.text)}
    known = names_set(job) | tested
    read: dict[str, int] = {}
    for number, line in enumerate(job.lines, 1):
        for name in [] if re.match(r"\s*(?:#|echo\b|printf\b)", line) else _WITHOUT_DEFAULT.findall(line):
            read.setdefault(name.strip("${}"), number)
    for name in read.keys() - known:
        plain = name.replace("_", "").rstrip("S")
        alike = (n for n in _OF_SLURM if n.replace("_", "").rstrip("S") == plain and n != name)
        near = _SLIPS.get(name) or next(alike, "")
        if name.startswith("SLURM_") and near and name not in _OF_SLURM:
            found = f"Slurm has no ${name}: it is empty"
            wanted = f"${{{near}}}_" if name.endswith("_") else f"${near}"
            yield job.finding(read[name], found, wanted, is_sure=not name.endswith("_"), case="name")
    for name, options in _ONLY_WITH.items() if asked else ():
        if name in read and name not in known and not asked & {*options}:
            found = f"${name} is empty: the file has no --{options[0]}"
            yield read[name], found, "$SLURM_GPUS_ON_NODE", "GPUs"
    name, is_asked = "SLURM_NTASKS_PER_NODE", bool(given & {"ntasks", "n", "nodes", "N"})
    if is_asked and name in read and name not in known and not given & {"ntasks-per-node", "tasks-per-node"}:
        found = f"${name} is empty: the file has no --ntasks-per-node"
        yield read[name], found, "--ntasks-per-node, or $SLURM_NTASKS", "tasks"


_OF_SLURM = frozenset(
    f"SLURM_{name}"
    for name in """
    ARRAY_JOB_ID ARRAY_TASK_COUNT ARRAY_TASK_ID ARRAY_TASK_MAX ARRAY_TASK_MIN CLUSTER_NAME CPUS_ON_NODE
    CPUS_PER_GPU CPUS_PER_TASK GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_TASK JOBID JOB_ID JOB_NAME JOB_GPUS
    JOB_NODELIST JOB_NUM_NODES JOB_PARTITION JOB_CPUS_PER_NODE LOCALID NNODES NODEID NODELIST NPROCS NTASKS
    NTASKS_PER_NODE PROCID STEPID STEP_ID STEP_NODELIST STEP_NUM_NODES STEP_NUM_TASKS SUBMIT_DIR SUBMIT_HOST
    TASKS_PER_NODE TASK_PID MEM_PER_CPU MEM_PER_NODE RESTART_COUNT LAUNCH_NODE_IPADDR
    """.split()  # noqa: SIM905
)
"""Variables that sbatch(1) and srun(1) list: those of which other spellings are seen."""
_SLIPS = {
    "SLURM_NUM_NODES": "SLURM_NNODES",
    "SLURM_NUM_TASKS": "SLURM_NTASKS",
    "SLURM_NODENAME": "SLURMD_NODENAME",
    "SLURM_NODE_NAME": "SLURMD_NODENAME",
    "SLURM_JOB_NODE_LIST": "SLURM_JOB_NODELIST",
    "SLURM_RANK": "SLURM_PROCID",
    "SLURM_LOCAL_RANK": "SLURM_LOCALID",
    "SLURM_NODE_RANK": "SLURM_NODEID",
}
_ENDS_WITHOUT = re.compile(
    r"-z {1,4}\"?\$\{?(\w{1,60})\}?\"? {0,4}\]{1,2}[^\n]{0,80}(?:\n[^\n]{0,120}){0,2}\bexit\b"
)
"""A job that ends where a variable is empty."""
_BY_LAUNCHERS = frozenset(RANK_VARIABLES) - {"RANK"} | {"NPROC_PER_NODE", "NNODES", "FORCE_TORCHRUN"}
_BY_LAUNCHERS |= {"CUDA_VISIBLE_DEVICES"}
_LONG = 14
"""Characters of a name that two wrong letters do not make another one."""


@fault("launcher-variable-misspelt", SHELL)
def launcher_variable_misspelt(job: JobFile) -> Found:
    """
    A variable given to the launcher is one letter away from one that launchers read, or lacks its `$`.

    Why: the default is taken in place of the value, without a message; `NODE_RANK=node_rank` is a word.

    Fix: write the right name, `$node_rank`.
    """
    scripts = "".join(text for path, text in job.others.items() if path != job.path)
    used = {*_USED.findall(job.text)}
    known = names_set(job) if job.launches else set()
    for launch in job.launches:
        given = [(name, launch.env[name]) for name in RANK_VARIABLES if name in launch.env]
        given += [(o.name, o.value) for o in launch.start.options if o.name[2:] in _ONE_WORD.split()]
        for name, value in given:
            if value in known and len(value) > 3 and value not in ("c10d", "static", "true", "false"):
                found = f"{printable(name, 40)} gets the word {value}, a variable's name"
                yield launch.line, found, f"${value}"
        for name in sorted(launch.env.keys() - _BY_LAUNCHERS - _OF_ONES_OWN):
            most = 2 if len(name) >= _LONG else 1
            alike = (known for known in _BY_LAUNCHERS if abs(len(known) - len(name)) <= most)
            near = next((known for known in alike if 0 < edits(name, known) <= most), "")
            is_own = name.replace("_", "") == near.replace("_", "") or name in scripts  # a script reads it
            if near and not is_own and name not in used:
                yield launch.line, f"{name} is set, and {near} is read", near


_ONE_WORD = (
    "nnodes nproc-per-node node-rank master-addr master-port num-machines num-processes machine-rank"
    " main-process-ip main-process-port num-gpus num-nodes"
)
_USED = re.compile(r"\$\{?(\w{1,60})")
_OF_ONES_OWN = {"NODES", "NNODE", "MASTER_ADDRS", "NODE_RANKS"}
_DIVIDED = re.compile(r"\$\(\([^/\n]{0,200}/([^\n]{1,200}?)\)\)")


def _divisors(job: JobFile, known: set[str]) -> Found:
    """A divisor in $((...)) that nothing sets: bash reads 0 there, and ends the command."""
    tested = {a or b for a, b in _TESTED.findall(job.text)}
    for number, line in enumerate(job.lines, 1):
        match = _DIVIDED.search(line.partition(" #")[0]) if not line.lstrip().startswith("#") else None
        is_path = match is not None and "$(" in match[0][1:]  # of a command within: $(($(wc -l /a/b) - 1))
        names = re.findall(r"(?<![\w{}$])\$?([a-z_]\w*)", match[1]) if match and not is_path else []
        if unset := [n for n in names if n.islower() and len(n) > 2 and n not in known and n not in tested]:
            yield number, f"${unset[0]} is set nowhere in this file: a division by 0", "a value"


def _is_slip(name: str, other: str) -> bool:
    """
    Whether one letter inside a name differs; a number or an end (GPU, GPUS) may well be another's name.

    >>> _is_slip("MASTER_ADR", "MASTER_ADDR"), _is_slip("NNODES", "NODES"), _is_slip("IP_HOST1", "IP_HOST2")
    (True, False, False)
    """
    is_end = name.startswith(other) or name.endswith(other) or other.startswith(name) or other.endswith(name)
    if is_end or len(name) < 6 or re.sub(r"[\d_]", "", name) == re.sub(r"[\d_]", "", other):
        return False  # SLURM_JOBID is as well known as SLURM_JOB_ID
    same = difflib.SequenceMatcher(None, name, other, autojunk=False).get_matching_blocks()
    return sum(block.size for block in same) >= max(len(name), len(other)) - 1


def _not_exported(job: JobFile, command: Command, launch: Launch | None) -> Found:
    """Variables of the batch shell that the shell of `srun bash -c '...'` does not get."""
    options = {id(word) for word in _words(launch)} if launch else set()
    seen = set()
    for word in command.words:
        for name in _names(job, word):
            if command.withheld.get(name) == "export" and name not in seen and name in _inside(word):
                seen.add(name)
                starter = next((s.program for s in command.around if s.role == "starter"), "bash")
                found = f"${name} is set here, not exported: empty in the shell that {starter} starts"
                is_command = word is command.words[0] and is_mark(word.text)
                severity: Severity = "error" if id(word) in options or is_command else "warning"
                yield job.finding(command.line, found, f"export {name}", severity=severity)


def _inside(word: Word) -> set[str]:
    """Variables that the shell which reads the word expands itself: none that an outer one has expanded."""
    return {a or b for a, b in _READ.findall(word.raw)}


def _may_set_more(job: JobFile) -> bool:
    """Whether a sourced, missing file may set variables of the launch."""
    return any(not name.endswith(("activate", "conda.sh", "bashrc", "profile")) for name in job.job.sources)


@fault("variable-not-passed-on", SHELL)
def variable_not_passed_on(job: JobFile) -> Found:
    """
    A launch line or its ranks, behind ssh or in a container, read a variable that does not get there.

    Why: in single quotes the variable is read there, not here.

    Why, login: Ssh and pdsh start a new login without the variables of this shell, exported or not.

    Why, docker: `docker run` passes the variables of -e alone.

    Why, apptainer: With --cleanenv or --containall apptainer passes the variables of --env alone.

    Why, srun: `srun --export=NONE` passes Slurm's own variables alone.

    Why, mpirun: With a list of hosts mpirun passes the variables of -x alone.

    Fix, login: use double quotes, so that this shell inserts the value.

    Fix, docker: use double quotes, so that this shell inserts the value; or `docker run -e NAME`.

    Fix, apptainer: use double quotes, so that this shell inserts the value; or `--env NAME=$NAME`.

    Fix, srun: use double quotes, so that this shell inserts the value; or `srun --export=ALL`.

    Fix, mpirun: use double quotes, so that this shell inserts the value; or `mpirun -x NAME`.
    """
    for launch in job.launches if not _may_set_more(job) else ():
        command, left, in_job = launch.command, dict[str, list[str]](), bool(job.job.directives)
        for at, word in enumerate(command.words):
            for name in (n for n in _names(job, word) if n in _inside(word)):
                if at >= max(launch.start.script_at, 1) and name not in RANK_VARIABLES:
                    continue  # the script may do without it
                is_of_scheduler = name.startswith(tuple(SCHEDULERS.values()))
                keeper = next((s.program for s in command.around if not keeps(s, name, in_job)), "")
                program = keeper if is_of_scheduler else command.withheld.get(name, "export")
                if program not in ("", "export") and name not in left.get(program, ()):
                    left.setdefault(program, []).append(name)
        for program, names in left.items() or _of_ranks(job, launch):
            program = posixpath.basename(program)
            shown = ", ".join(f"${name}" for name in names[:5]) + (" ..." if len(names) > 5 else "")
            found = f"{shown}: read behind {program}, which does not pass it on, so it is empty"
            case, wanted = _HANDED.get(program, ("login", "the value: double quotes around the command"))
            yield launch.line, found, wanted.format(names[0]), case


def _of_ranks(job: JobFile, launch: Launch) -> Iterator[tuple[str, list[str]]]:
    """A container without the address that the file exports for a plain script, and so without any rank's."""
    name = "MASTER_ADDR"
    is_counted = launch.launcher == "python" and launch.started_by in ("srun", *MPIRUN)
    if not is_counted or name not in launch.command.env or name in text_of(job, launch.script):
        return
    for step in launch.steps:
        if posixpath.basename(step.program) in _HANDED and step.role == "wrapper" and not keeps(step, name):
            yield step.program, [name]
            return


_READ_BY_PYTHON = re.compile(r"os\.environ\[[\"'](\w{1,60})[\"']\]")
_PASSED = re.compile(r"(?:NCCL|GLOO|MASTER|UCX|TORCH|PYTORCH|HF|CUDA)_\w+|WORLD_SIZE|OMP_NUM_THREADS|PATH")


@fault("step-without-environment", SHELL)
def step_without_environment(job: JobFile) -> Iterator[Finding]:
    """
    srun or mpirun starts the ranks without variables that the file exports for them.

    Why, srun: after `#SBATCH --export=NONE`, or with a list without ALL, srun passes the list and Slurm's own
    variables alone: by sbatch(1) the steps inherit the option, by srun(1) its own list is all that they get.

    Why, commas: srun ends a value at a comma, and takes the rest for the name of a further variable.

    Why, mpirun: Open MPI passes to other hosts, outside a scheduler's job, the variables of -x alone.

    Fix: `srun --export=ALL`, or `export SLURM_EXPORT_ENV=ALL` above it.

    Fix, mpirun: `mpirun -x NAME` for each of them.
    """
    by_job, line = last([d for d in job.job.directives if d.scheduler == "SBATCH"], "export")
    is_reset = "SLURM_EXPORT_ENV" in job.text
    for launch in job.launches:
        yield from _not_by_mpirun(job, launch)
        yield from _cut_at_commas(job, launch)
        own = launch.of_srun("--export")
        export = own or ("" if is_reset else by_job)
        listed = {part.partition("=")[0] for part in export.split(",")}
        if not launch.srun or not export or "ALL" in listed or has_mark(export.partition("=")[0]):
            continue
        needed = {*_READ_BY_PYTHON.findall(text_of(job, launch.script))}
        env = [n for n in launch.command.env if n not in listed]
        if lost := sorted(n for n in env if _PASSED.fullmatch(n) or n in needed):
            option = printable(launch.shown(own) or by_job, 40)
            shown = f"srun --export={option}" if own else f"--export={option} (line {line})"
            is_needed = any(name.startswith(("MASTER", "NCCL", "WORLD")) or name in needed for name in lost)
            found = f"{shown}: the ranks do not get {_few(lost)}"
            yield job.finding(launch.line, found, "srun --export=ALL", is_sure=is_needed, case="srun")


def _cut_at_commas(job: JobFile, launch: Launch) -> Iterator[Finding]:
    for before, part in pairwise(launch.of_srun("--export").split(",")):
        if "=" in before and _DEVICE.fullmatch(part) and part not in launch.command.variables:
            found = f"srun splits --export at every comma: {printable(before, 60)} ends there"
            wanted = f"export {before.partition('=')[0]}=..., srun --export=ALL"
            yield job.finding(launch.line, found, wanted, case="commas")
            return


_DEVICE = re.compile(r"[a-z][a-z_]{0,20}\d{1,3}(?:_\d{1,3})?(?::\d)?|\d{1,3}")
"""A device, an interface or a number: no name of a variable."""


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")


def _not_by_mpirun(job: JobFile, launch: Launch) -> Iterator[Finding]:
    by_mpi = [s for s in launch.steps if posixpath.basename(s.program) == "mpirun" and not job.job.directives]
    text = text_of(job, launch.script) if by_mpi else ""
    needed = {*_READ_BY_PYTHON.findall(text)}
    if not text or ("init_process_group" in text and "init_method" not in text):
        needed |= {"MASTER_ADDR"}
    for step in by_mpi:
        given = {option.value.partition("=")[0] for option in step.options if option.name == "-x"}
        is_open_mpi = any(option.name.lstrip("-") in {"H", *OF_OPEN_MPI} for option in step.options)
        hosts, name = (step.option(*MPI_OPTIONS[of]) or "" for of in ("hosts", "hostfile"))
        listed = [line for line in lines_of(text_of(job, name)) if line.strip()]
        count = max(hosts.count(",") + 1, len(listed) or 2 * bool(name))
        own = launch.command.env.keys() - given
        lost = sorted(n for n in own if n in needed or re.fullmatch(r"NCCL_(?!DEBUG)\w+", n))
        if is_open_mpi and count > 1 and lost and not any(map(has_mark, given)):
            found = f"mpirun{' -x' if given else ''}: the ranks of other hosts do not get {_few(lost)}"
            severity: Severity = "error" if given or listed or hosts else "warning"
            yield job.finding(launch.line, found, f"-x {lost[0]}", severity=severity, case="mpirun")


_HANDED = {
    **dict.fromkeys(("docker", "podman", "nvidia-docker", "podman-hpc"), ("docker", "docker run -e {0}")),
    **dict.fromkeys(("apptainer", "singularity"), ("apptainer", "--env {0}=${0}")),
    "srun": ("srun", "srun --export=ALL"),
    **dict.fromkeys(MPIRUN, ("mpirun", "mpirun -x {0}")),
}
"""Program in front of the launcher -> case of the rule's text, what hands a variable over."""


@fault("variable-of-subshell", SHELL)
def variable_of_subshell(job: JobFile) -> Found:
    """
    A launch line uses a variable that only a subshell has set.

    Why: a command after a pipe (`... | while read h; do A=$h; done`) or in parentheses runs in a shell of
    its own; what it sets ends with it, and the variable is empty afterwards.

    Fix: `while read h; do ...; done < <(command)`, `mapfile -t HOSTS < <(command)`, or
    `A=$(command | head -n1)`.
    """
    for launch in job.launches if not _may_set_more(job) else ():
        for word in _words(launch):
            for name in dict.fromkeys(n for n in _names(job, word) if n in job.job.lost):
                begin, end = job.job.lost[name]
                if not begin <= word.line <= end:
                    found = f"${name} is set in a subshell alone (line {begin}): it is empty here"
                    yield word.line, found, f"{name} set in this shell"


_INDICES = {"J": "PBS_ARRAY_INDEX", "t": "PBS_ARRAYID"}
"""Option of an array of PBS Professional, and of Torque -> the variable with the index."""


def _index_of_array(job: JobFile) -> Found:
    asked = {d.name for d in job.job.directives if d.scheduler == "PBS" and d.name in _INDICES}
    for name in asked if len(asked) == 1 else ():
        right, wrong = _INDICES[name], next(v for n, v in _INDICES.items() if n != name)
        if wrong in job.text and right not in job.text:
            line = next(n for n, text in enumerate(job.lines, 1) if wrong in text)
            why = "PBS Professional and OpenPBS have -J and PBS_ARRAY_INDEX, Torque -t and PBS_ARRAYID."
            yield line, f"${wrong} is empty: this array is one of -{name}", f"${right}", why, f"${right}"


_LIST_READ = re.compile(r"(?<![\w-])(cat|sort|uniq|head) [^|;()<>\n]{0,40}\$\{?(SLURM_(?:JOB_)?NODELIST)\b")


@fault("variable-of-other-scheduler", SHELL)
def variable_of_other_scheduler(job: JobFile) -> Found:
    """
    A launch line reads a variable that another scheduler sets.

    Why: Slurm sets SLURM_..., PBS sets PBS_..., LSF sets LSB_..., and none of them those of another; a pod
    has none of them.  The variable is empty, and the launcher refuses an empty number.

    Fix: use the scheduler's own: `$SLURM_NNODES`; `$(sort -u $PBS_NODEFILE | wc -l)`; `$(echo $LSB_HOSTS | tr
    ' ' '\\n' | sort -u | wc -l)`.
    """
    for number, written in enumerate(job.lines, 1) if job.launches else ():
        if (read := _LIST_READ.search(written)) and not written.lstrip().startswith("#"):
            why = "Slurm's list is a text, n[01-02]; PBS has a file"
            found = f"{read[1]} ${read[2]}: a list of names, not a file"
            yield number, found, "$(scontrol show hostnames)", why, "scontrol show hostnames"
    yield from _index_of_array(job)
    own = {SCHEDULERS[d.scheduler] for d in job.job.directives if d.scheduler in SCHEDULERS}
    known = names_set(job) if job.launches else set()
    tested = {a or b for a, b in _TESTED.findall(job.text)}
    for launch in job.launches:
        if launch.pod is None if launch.replicas is not None else len(own) != 1:
            continue
        texts = [(word.line, word.raw) for word in _words(launch)]
        used = {name for _, raw in texts for pair in _READ.findall(raw) for name in pair}
        texts += [(w.line, w.raw) for w in job.job.assigned if w.text.partition("=")[0] in used]
        for line, name in ((n, a or b) for n, raw in texts for a, b in _READ.findall(raw)):
            mine = next(iter(own), "-")
            is_other = name.startswith(tuple(SCHEDULERS.values())) and not name.startswith(mine)
            if not is_other or name in known or name in launch.env or name in tested:
                continue
            # sbatch reads #PBS and #BSUB lines as well.
            is_sure = mine in ("SLURM_", "-") or mine in re.findall(r"\b(SLURM_|PBS_|LSB_)[A-Z]", job.text)
            found = f"${name} is not set in a {_PLACES[mine]}: it is empty"
            yield job.finding(line, found, f"a variable {mine}..." if own else "a value", is_sure=is_sure)
            break


@fault("master-address-not-exported", ACROSS)
def master_address_not_exported(files: All) -> Iterator[Finding]:
    """
    The script takes its rendezvous from MASTER_ADDR and MASTER_PORT, and the job file does not export them.

    Why: srun's tasks, and every other program, see exported variables alone: `init_process_group` with `env://`
    ends with "environment variable MASTER_ADDR expected, but not set".

    Fix: `export MASTER_ADDR MASTER_PORT`.
    """
    for part, read in files.started():
        yield from _without_address(part, read)
    for part in files.parts:
        launch, job = part.launch, part.job
        kept = {n for n, why in launch.command.withheld.items() if why == "export"}
        left = [n for n in _MEETING if n in {*launch.command.variables, *kept} and n not in launch.env]
        is_read = any(f"${n}" in job.uses or f"${{{n}" in job.uses for n in left)
        is_half = len(left) == 1 and not launch.env.keys().isdisjoint(_MEETING)
        is_needed = launch.launcher in BY_ENVIRONMENT and (launch.nnodes or 0) > 1 and "MASTER_ADDR" in left
        is_half = is_half and launch.launcher == "python"
        if launch.is_away and (is_half or is_needed) and not is_read:
            yield _not_for_the_ranks(part, left, "error" if is_needed else "warning")
        if launch.is_away and not text_of(job, launch.script) and (other := _missing(part)):
            found = f"{other} is set nowhere, and RANK, WORLD_SIZE and the other half of the address are"
            yield job.finding(launch.line, found, f"export {other}=...", severity="warning")


def _missing(part: Part) -> str:
    """The half of the address that nothing sets for a script with RANK, WORLD_SIZE and the other half."""
    missing, env = [n for n in _MEETING if n not in part.job.text], part.launch.env
    is_read = {"RANK", "WORLD_SIZE", *_MEETING}.difference(missing) <= env.keys() and not part.job.job.sources
    return missing[0] if len(missing) == 1 and is_read and part.launch.launcher == "python" else ""


_MEETING = ("MASTER_ADDR", "MASTER_PORT")


def _not_for_the_ranks(part: Part, left: Sequence[str], severity: Severity) -> Finding:
    fix = Fix(f"`export {' '.join(left)}` in front of the start")
    names = " and ".join(left)
    found = f"{names} {'is' if len(left) == 1 else 'are'} set, not exported: the ranks do not see it"
    return part.job.finding(part.launch.line, found, f"export {' '.join(left)}", fix=fix, severity=severity)


def _without_address(part: Part, read: Reading) -> Iterator[Finding]:
    launch, calls = part.launch, read.script.named(INIT)
    if launch.launcher != "python" or not calls or "MASTER_ADDR" in read.script.strings:
        return
    methods = [call.argument("init_method", 1) for call in calls]
    if any(m is not None and read.constants(m) not in (["env://"], [None]) for m in methods):
        return
    left = [n for n in _MEETING if n in launch.command.variables and n not in launch.env]
    if any(call.argument("store", 5) is not None for call in calls):
        return
    if left:
        yield _not_for_the_ranks(part, left, "error")
    elif launch.is_away and (other := _missing(part)) and other not in read.script.strings:
        found = f"{other} is set nowhere, and init_process_group reads it"
        yield part.job.finding(launch.line, found, f"export {other}=...")
