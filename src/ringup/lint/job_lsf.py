"""Job files of LSF."""

from __future__ import annotations

import re

from ringup.launchfiles.directives import node_count
from ringup.launchfiles.shell import Command
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault
from ringup.units import printable

_STARTS_ELSEWHERE = re.compile(
    r"\b(?:jsrun|lrun|mpirun|mpiexec|horovodrun|ddlrun|blaunch|ssh|pdsh|deepy\.py)\b"
)


@fault("bsub-reads-no-directives", SHELL, severity="warning", each="job.commands")
def bsub_reads_no_directives(job: JobFile, command: Command) -> Found:
    """
    A job file with `#BSUB` lines is given to bsub as a command.

    Why: bsub reads the lines of a file that comes through its standard input.  As a command the file is only
    executed, in the default queue with one slot, unless the site has set LSB_BSUB_PARSE_SCRIPT=Y (lsf.conf).

    Fix: `bsub < job.sh`.
    """
    words, lines = command.texts, job.lines[command.line - 1 : command.last_line]
    if words[:1] != ["bsub"] or "<" in " ".join(lines):
        return
    name = next((word for word in words[1:] if re.search(r"\.(?:sh|lsf|bsub|job)$", word)), "")
    asked = re.findall(r"(?m)^#BSUB[ \t]+(-\w+)", text_of(job, name))
    if asked and "-nnodes" not in asked:  # sites with it have set this
        found = f"bsub executes {printable(name, 80)}, and reads none of its #BSUB lines"
        yield command.line, found, f"bsub < {name}"


@fault("launch-node-has-no-gpu", SHELL)
def launch_node_has_no_gpu(job: JobFile) -> Found:
    """
    The training runs on the launch node of a cluster that starts its ranks with jsrun.

    Why: `#BSUB -nnodes` is of LSF with jsrun (Summit, Lassen): the job file itself runs on a launch or batch
    node, which has none of the GPUs that the job was given.

    Fix: put jsrun in front of it: `jsrun -n 1 -a 1 -g 6 -c 42 python -m torch.distributed.launch ...`.
    """
    asks = [d for d in job.job.directives if d.scheduler == "BSUB" and d.name == "nnodes"]
    if not asks or not node_count(job.job.directives)[0] or _STARTS_ELSEWHERE.search(job.text):
        return
    for launch in job.launches:
        if launch.started_by == "batch":
            yield launch.line, "started on the launch node, without jsrun", "jsrun in front of it"
            return
