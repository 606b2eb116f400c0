"""How a job is submitted, and where and for how long it runs."""

from __future__ import annotations

import re

from ringup.launchfiles.directives import last
from ringup.launchfiles.marks import has_mark, is_mark
from ringup.launchfiles.shell import OWN_FOLDER, Command
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault
from ringup.units import lines_of, printable

_OPTION = re.compile(
    r"(?:-[NnGct]|--(?:nodes|ntasks|ntasks-per-node|gres|gpus|gpus-per-node|gpus-per-task|cpus-per-task|time"
    r"|partition|account|qos|mem|array|dependency))(?:=.{1,200})?"
)
"""Options of sbatch that ask for something."""
_ALONE = "parsable|test-only|wait|exclusive|requeue|no-requeue|hold|verbose|quiet|spread-job|overcommit"
_WITH_VALUE = re.compile(rf"-[A-Za-z]|--(?!{_ALONE})[\w-]+")
_PASSES_ON = re.compile(r"\$@|\$\*|\bgetopts?\b|\bshift\b")


@fault("submit-options-misplaced", SHELL)
def submit_options_misplaced(job: JobFile) -> Found:
    """
    sbatch takes a word for the job file that is none, or does not read its options.

    Why: sbatch reads its options up to the first other word, which is the job file; what follows are
    arguments of the job file: `sbatch job.sh --nodes=2` asks for one node.  `N48` without its dash is taken
    for the file.

    Fix: `sbatch --nodes=2 job.sh ARGUMENTS`.
    """
    for command in job.job.commands:
        if command.texts[:1] != ["sbatch"] or not (at := _file_of(command)):
            continue
        name, behind = command.texts[at], command.texts[at + 1 :]
        late = [word for word in behind if _OPTION.fullmatch(word)]
        if re.fullmatch(r"[NnGc]\d{1,5}", name) and behind:
            yield command.line, f"{name} is taken for the job file", f"-{name}"
        elif late and (text := text_of(job, name)) and not _PASSES_ON.search(text):
            found = f"{printable(late[0], 40)} behind {printable(name, 60)}: sbatch does not read it"
            yield command.line, found, f"{printable(late[0], 40)} in front of it"


def _file_of(command: Command) -> int:
    """The place of the job file among the words of a sbatch; 0 for none, or if it cannot be known."""
    skip = False
    for at, word in enumerate(command.texts[1:], 1):
        if has_mark(word) and not word.startswith("-"):
            return 0
        if skip or word.startswith("-"):
            skip = not skip and bool(_WITH_VALUE.fullmatch(word))
        else:
            return at
    return 0


_LIKE_HOURS = re.compile(r"24|48|72|96|120|168")
_SHORT = re.compile(r"walltime=(\d{1,3}):00\b(?!:)")


@fault("time-limit-in-minutes", SHELL, severity="warning")
def time_limit_in_minutes(job: JobFile) -> Found:
    """
    A time limit that looks like hours is in minutes.

    Why: sbatch(1): a number alone is minutes; for PBS `walltime=12:00` is [[hours:]minutes:]seconds.

    Fix: `--time=24:00:00`, `walltime=12:00:00`.
    """
    value, line = last(job.job.directives, "time", "t")
    if _LIKE_HOURS.fullmatch(value) and job.launches:
        yield line, f"--time={value} is {value} minutes", f"--time={value}:00:00"
    for one in job.job.directives if job.launches else ():
        short = _SHORT.search(one.value) if one.scheduler == "PBS" and one.name == "l" else None
        if short and int(short[1]) < 60:
            yield one.line, f"walltime={short[1]}:00 is {short[1]} minutes", f"walltime={short[1]}:00:00"


_CHANGES = re.compile(r"(?m)^[ \t]{0,80}(?:cd|pushd)\b|PBS_O_WORKDIR|PBS_JOBDIR")


@fault("job-starts-at-home", SHELL, severity="warning")
def job_starts_at_home(job: JobFile) -> Found:
    """
    A job of PBS names its script by a relative path, and stays in the home directory.

    Why: PBS starts a job in the user's home directory, not where qsub was typed; `-d` of Torque changes it.

    Fix: `cd $PBS_O_WORKDIR` at the beginning.
    """
    read = [one for one in job.job.directives if one.scheduler == "PBS"]
    if not read or any(one.name in ("d", "w") for one in read) or _CHANGES.search(job.text):
        return
    for launch in job.launches:
        if re.match(r"[\w.][\w./-]{0,200}\.py$", launch.script) and not launch.steps:
            yield launch.line, f"{printable(launch.script, 80)} in the home directory", "cd $PBS_O_WORKDIR"
            return


_KNOWS_FOLDER = re.compile(r"SLURM_SUBMIT_DIR|PBS_O_WORKDIR|scontrol show job|/spool|slurm_script")


@fault("job-file-is-a-copy", SHELL)
def job_file_is_a_copy(job: JobFile) -> Found:
    """
    A job file looks for the script in its own folder.

    Why: Slurm and PBS run a copy of the job file in a folder of theirs (/var/spool/slurmd/...):
    `$0` and BASH_SOURCE name the copy, and its folder has no script.

    Fix: `$SLURM_SUBMIT_DIR`, `$PBS_O_WORKDIR`, or the whole path.
    """
    head = re.match(r"(?:[ \t]*(?:#[^\n]*)?\n){1,500}", job.text)
    scheduler = re.search(r"(?m)^#(SBATCH|PBS)[ \t]+-", head[0]) if head else None
    for launch in job.launches if scheduler and not _KNOWS_FOLDER.search(job.text) else ():
        mark = next(iter(job.job.marks.all_of(launch.script)), None)
        if scheduler and mark and is_mark(launch.script[:1]) and OWN_FOLDER.search(mark.name):
            name = printable(launch.shown(launch.script.rpartition("/")[2]), 60)
            found = f"{name} in the job file's folder: the scheduler runs a copy of the file in another one"
            yield launch.line, found, "$PBS_O_WORKDIR" if scheduler[1] == "PBS" else "$SLURM_SUBMIT_DIR"


_PBS_REFUSES = re.compile(
    r"#PBS[ \t]+(?:(?P<bare>(?:mem|walltime|nodes|select|ncpus|ngpus|vmem|pmem|place)=\S{0,80})"
    r"|-l[ \t]+(?P<blank>\w{1,20}=)[ \t]+\S)"
)


@fault("pbs-directive-refused", SHELL)
def pbs_directive_refused(job: JobFile) -> Found:
    """
    qsub refuses a line for PBS.

    Why, request: a request needs `-l` in front of it, and no blank behind `=`; qsub ends with "directive
    error".

    Why, array: arrays are -J in PBS Professional and OpenPBS, -t in Torque.

    Fix, request: `#PBS -l walltime=24:00:00`, `#PBS -l select=2:ngpus=4`.

    Fix, array: `#PBS -J 1-4`.
    """
    for number, line in enumerate(lines_of(job.text), 1):
        if line.strip() and not line.startswith("#"):
            return
        if refused := _PBS_REFUSES.match(line):
            what = refused["bare"] or refused["blank"]
            found = f"{printable(what, 60)} without -l" if refused["bare"] else f"a blank behind {what}"
            yield number, found, f"#PBS -l {printable(what, 60)}", "request"
        if re.match(r"#PBS[ \t]+-t[ \t]+\d", line) and re.search(r"(?m)^#PBS[ \t]+-l[ \t]+select=", job.text):
            found = "-t is Torque's, and select= PBS Professional's: its qsub refuses -t"
            yield number, found, "-J", "array"
