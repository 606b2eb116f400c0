"""The requests of #SBATCH, #PBS, #BSUB and #PJM lines to the scheduler."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ringup.launchfiles import marks
from ringup.units import lines_of

_OF_SBATCH = """
account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
container-id contiguous core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot
dependency distribution error exclude exclusive export export-file extra extra-node-info get-user-env gid
gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help hint hold
ignore-pbs input job-name kill-on-invalid-dep licenses mail-type mail-user mcs-label mem mem-bind mem_bind
mem-per-cpu mem-per-gpu mincpus network nice no-kill no-requeue nodefile nodelist nodes ntasks
ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output overcommit oversubscribe
parsable partition power prefer priority profile propagate qos quiet reboot requeue reservation resv-ports
segment share signal sockets-per-node spread-job stepmgr switches tasks-per-node test-only thread-spec
threads-per-core time time-min tmp tres-bind tres-per-task uid usage use-min-nodes verbose wait
wait-all-nodes wckey wrap
"""
SBATCH = frozenset(_OF_SBATCH.split())
"""The long options of sbatch, Slurm 24.05: sbatch(1), and `src/common/slurm_opt.c` for older names."""
_FLAGS = """
--help --usage --share --nice --propagate --resv-ports --immediate --version
--contiguous --exclusive --hold -H --ignore-pbs --no-requeue --overcommit -O -s --oversubscribe --parsable
--quiet -Q --reboot --requeue --spread-job --test-only --use-min-nodes --verbose -v --wait -W --stepmgr
--get-user-env --no-kill -k
"""
FLAGS = frozenset(_FLAGS.split())
"""Of these, those that take no value in a word of its own."""
_OF_SRUN_ALONE = """
accel-bind bcast bcast-exclude compress cpu-bind cpu_bind cpu_binding debugger-test disable-status epilog
exact external-launcher gres-bind het-group interactive jobid kill-on-bad-exit label mpi mpi-combine
multi-prog no-allocate overlap pack-group preserve-env prolog pty quit-on-interrupt relative send-libs
slurmd-debug slurmd_debug task-epilog task-prolog threads treewidth unbuffered version whole x11
"""
OF_SLURM = {"sbatch": SBATCH, "srun": SBATCH | frozenset(_OF_SRUN_ALONE.split())}
"""Program -> its long options, without those of plugins."""
SHORT = {"n": "ntasks", "N": "nodes", "c": "cpus-per-task", "t": "time"}
_COUNT = re.compile(r"0{0,9}[1-9]\d{0,9}")
_MEMORY = re.compile(r"(?i)\d{1,12}(?:[kmgt]b?)?")
FORMS = {
    **dict.fromkeys(("ntasks", "cpus-per-task", "ntasks-per-node", "ntasks-per-gpu"), (_COUNT, "a number")),
    "nodes": (re.compile(r"(?i)\d{1,9}[km]?(?:[-,:]\d{1,9}[km]?){0,64}"), "a number, or 2-4"),
    "time": (
        re.compile(r"(?i)-1|infinite|unlimited|(?:\d{1,9}-)?\d{1,9}(?::\d{1,9}){0,2}"),
        "hours:minutes:seconds",
    ),
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), (_MEMORY, "a whole number, with K, M, G or T")),
    "cpus-per-gpu": (_COUNT, "a number"),
    "gres": (re.compile(r"(?!\d{1,9}$).{1,400}"), "gpu:NUMBER"),
}
"""Long option of sbatch and srun -> (its values, the same for people); tried with Slurm 22.05."""
_READ = re.compile(r"(?:[^'\"#\\]|\\.|'[^']{0,400}'|\"[^\"]{0,400}\"){0,4000}")
_DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB|PJM|\$|COBALT|FLUX:)\s+(.*)")


@dataclass(frozen=True)
class Directive:
    scheduler: str
    name: str
    """The option without dashes."""
    value: str
    line: int
    component: int = 0
    """The part of a heterogeneous job of Slurm that it belongs to."""


def directives_of(text: str) -> list[Directive]:
    """
    >>> [(d.name, d.value) for d in directives_of("#SBATCH --nodes=2 -t 0:05:00   # five minutes")]
    [('nodes', '2'), ('t', '0:05:00')]
    """
    found, part = [], 0
    for number, line in enumerate(lines_of(text), 1):
        if match := _DIRECTIVE.match(line):
            part += match[2].strip() in ("hetjob", "packjob")
            text = before_comment(match[2]) if match[1] == "SBATCH" else match[2]
            found += [Directive(match[1], name, value, number, part) for name, value in _options(text)]
    return found


def before_comment(text: str) -> str:
    """
    The part of a #SBATCH line that sbatch reads: `_get_argument` in sbatch's opt.c ends it at any plain `#`.

    >>> before_comment("--mail-type=ALL# events"), before_comment("--comment='a#b' -N2")
    ('--mail-type=ALL', "--comment='a#b' -N2")
    """
    read = _READ.match(text)
    return text[: read.end()] if read and text[read.end() : read.end() + 1] == "#" else text


def _options(text: str) -> Iterator[tuple[str, str]]:
    # In a here-document the shell replaces `$(grep -c a b)`, in which nothing is an option.
    bare = re.sub(r"\$\([^()]{0,200}\)", lambda m: m[0].replace(" ", "\u00a0"), re.split(r"\s#", text)[0])
    try:
        parts = shlex.split(bare)  # a value in quotes may have blanks
    except ValueError:
        parts = bare.split()
    while parts:
        word = parts.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            continue
        if not word.startswith("--") and len(name) > 1 and name[0] in "NnpcJ" and name[1:].isdecimal():
            name, value, equals = name[0], name[1:], "="
        if not equals and parts and not parts[0].startswith("-"):
            value = parts.pop(0)
        yield name, value.strip("\"'").replace("\u00a0", " ")


def loose_word(line: str) -> str:
    """
    The first word of a #SBATCH line that is neither an option nor an option's value; "" for none.

    >>> loose_word("#SBATCH --job-name=Big simulation"), loose_word("#SBATCH -J 'Big simulation'  # a name")
    ('simulation', '')
    """
    try:
        words = shlex.split(before_comment(line.removeprefix("#SBATCH")), comments=False)
    except ValueError:
        return ""
    may_take = False
    for word in words:
        if word.startswith("-"):
            may_take = "=" not in word and word not in FLAGS and (word[:2] == "--" or len(word) == 2)
        elif may_take:
            may_take = False
        else:
            return word
    return ""


def last(directives: Sequence[Directive], *names: str) -> tuple[str, int]:
    """(value, line) of the last directive of these names; ("", 0) for none."""
    found = [(d.value, d.line) for d in directives if d.name in names]
    return found[-1] if found else ("", 0)


def node_count(directives: Sequence[Directive]) -> tuple[int, int]:
    """(requested nodes, line); (0, 0) if the directives lack them, or describe several parts of a job."""
    if len({d.component for d in directives}) > 1:
        return 0, 0
    for d in reversed(directives):
        value = d.value
        if d.scheduler == "SBATCH" and d.name in ("nodes", "N"):
            least = value.partition("-")[0]
            tasks = last([one for one in directives if one.scheduler == "SBATCH"], "ntasks", "n")[0]
            # sbatch: "can't run 1 processes on 2 nodes, setting nnodes to 1"
            most = int(tasks) if tasks.isascii() and tasks.isdecimal() and int(tasks) else 1 << 20
            return (min(int(least), most), d.line) if least.isascii() and least.isdecimal() else (0, d.line)
        by_pbs = re.match(r"(?:select|nodes)=(\d{1,6})([:+][^,]{0,400})?", value) if d.name == "l" else None
        if d.scheduler == "PBS" and by_pbs:
            return int(by_pbs[1]) + sum(map(int, re.findall(r"\+(\d{1,6})", by_pbs[2] or ""))), d.line
        if d.scheduler == "BSUB" and d.name == "nnodes" and value.isascii() and value.isdecimal():
            return int(value), d.line
        is_other = d.scheduler in ("PJM", "COBALT") and d.name in ("L", "n")
        by_tsubame = re.match(r"(?:node_f|f_node)=(\d{1,5})$", value)  # whole nodes of Grid Engine there
        if d.scheduler == "$" and d.name == "l" and by_tsubame:
            return int(by_tsubame[1]), d.line
        if is_other and (match := re.search(r"(?:node=|^)(\d{1,6})$", value)):
            return int(match[1]), d.line
    return _from_tasks(directives)


def _from_tasks(directives: Sequence[Directive]) -> tuple[int, int]:
    """Slurm's nodes from `--ntasks` over `--ntasks-per-node`; LSF's from -n over ptile."""
    total, line = last(directives, "ntasks", "n")
    each = last(directives, "ntasks-per-node", "tasks-per-node")[0]
    asked = " ".join(d.value for d in directives if d.name == "R")
    if not each and (match := re.search(r"ptile=(\d{1,5})", asked)):
        each = match[1]
    if total.isascii() and each.isascii() and total.isdecimal() and each.isdecimal() and int(each):
        return -(-int(total) // int(each)), line
    return int(total == "1" and directives[0].scheduler == "SBATCH"), line


def tasks_per_node(directives: Sequence[Directive]) -> int:
    """Tasks that Slurm, PBS or LSF start on each node; 0 if the directives lack it."""
    value = last(directives, "ntasks-per-node", "tasks-per-node")[0]
    each = int(value) if value.isdecimal() else 0
    total = last([d for d in directives if d.scheduler == "SBATCH"], "ntasks", "n")[0]
    nodes = last([d for d in directives if d.scheduler == "SBATCH"], "nodes", "N")[0]
    if total.isdecimal() and nodes.isdecimal() and int(nodes):
        # sbatch(1): with --ntasks, --ntasks-per-node is the most that a node gets.
        spread = max(1, -(-int(total) // int(nodes)))
        return min(each, spread) if each else spread
    if each:
        return each
    for d in directives:
        if d.scheduler == "PBS" and (match := re.search(r"(?:mpiprocs|ppn)=(\d{1,4})", d.value)):
            return int(match[1])
        if d.scheduler == "BSUB" and (match := re.search(r"ptile=(\d{1,4})", d.value)):
            return int(match[1])
    return 0


GPU_NAMES = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", marks.GPU_COUNT, "SLURM_GPUS_PER_TASK")


def allocated_count(name: str, directives: Sequence[Directive], nodes: int) -> int:
    """The value of a scheduler's count in a job of so many nodes; 0 if the directives lack it."""
    tasks = tasks_per_node(directives)
    if name in marks.COUNT_NAMES:
        return nodes
    if name in GPU_NAMES:
        return gpus_per_node(directives)[0]
    if name == marks.SLOT_COUNT:
        return nodes * (tasks or 1)
    if name == "SLURM_NTASKS_PER_NODE":  # the option's own value, whatever --ntasks is
        own = last(directives, "ntasks-per-node", "tasks-per-node")[0]
        return int(own) if own.isdecimal() else tasks
    if name == "LSB_DJOB_NUMPROC":
        slots = last([d for d in directives if d.scheduler == "BSUB"], "n")[0]
        return int(slots) if slots.isdecimal() else 0
    return nodes * tasks if name in ("SLURM_NTASKS", "SLURM_NPROCS") else 0


def gpus_per_node(directives: Sequence[Directive]) -> tuple[int, int]:
    """(GPUs of each node, line) that the directives request; (0, 0) if they lack them."""
    for d in directives:
        is_slurm = d.scheduler == "SBATCH" and d.name in ("gres", "gpus-per-node")
        if is_slurm and (match := re.search(r"(?:^|:)(\d{1,3})(?:\(|,|$)", d.value)):
            return int(match[1]), d.line
        if d.scheduler == "PBS" and (match := re.search(r"(?:ngpus|gpus)=(\d{1,3})", d.value)):
            return int(match[1]), d.line
        if d.scheduler == "BSUB" and d.name == "gpu" and (match := re.search(r"num=(\d{1,3})", d.value)):
            return int(match[1]), d.line
    return 0, 0
