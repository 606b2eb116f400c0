"""How a job is submitted, and where and for how long it runs."""

from __future__ import annotations

import re

from ringup.launchfiles.directives import last
from ringup.launchfiles.marks import has_mark, is_mark
from ringup.launchfiles.shell import OWN_FOLDER, Command
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault
from ringup.rules import Severity
from ringup.units import printable

_OPTION = re.compile(
    r"(?:-[NnGct]|--(?:nodes|ntasks|ntasks-per-node|gres|gpus|gpus-per-node|gpus-per-task|cpus-per-task|time"
    r"|partition|account|qos|mem|array|dependency))(?:=.{1,200})?"
)
"""Options of sbatch that ask for something."""
_ALONE = "parsable|test-only|wait|exclusive|requeue|no-requeue|hold|verbose|quiet|spread-job|overcommit"


@fault("submit-options-misplaced", SHELL, each="job.commands")
def submit_options_misplaced(job: JobFile, command: Command) -> Found:
    """
    sbatch takes a word for the job file that is none, or does not read its options.

    Why: sbatch reads its options up to the first other word, which is the job file; what follows are
    arguments of the job file: `sbatch job.sh --nodes=2` asks for one node.  `N48` without its dash is taken
    for the file.

    Fix: `sbatch --nodes=2 job.sh ARGUMENTS`.
    """
    if command.texts[:1] != ["sbatch"] or not (at := _file_of(command)):
        return
    name, behind = command.texts[at], command.texts[at + 1 :]
    late = [word for word in behind if _OPTION.fullmatch(word)]
    if re.fullmatch(r"[NnGc]\d{1,5}", name) and behind:
        yield command.line, f"{name} is taken for the job file", f"-{name}"
    elif late and (text := text_of(job, name)) and not re.search(r"\$@|\$\*|\bgetopts?\b|\bshift\b", text):
        found = f"{printable(late[0], 40)} behind {printable(name, 60)}: sbatch does not read it"
        yield command.line, found, f"{printable(late[0], 40)} in front of it"


def _file_of(command: Command) -> int:
    """The place of the job file among the words of a sbatch; 0 for none, or if it cannot be known."""
    skip = False
    for at, word in enumerate(command.texts[1:], 1):
        if has_mark(word) and not word.startswith("-"):
            return 0
        if skip or word.startswith("-"):
            skip = not skip and bool(re.fullmatch(rf"-[A-Za-z]|--(?!{_ALONE})[\w-]+", word))
        else:
            return at
    return 0


_SHORT = re.compile(r"walltime=(\d{1,3}):00\b(?!:)")


@fault("time-limit-in-minutes", SHELL, severity="warning")
def time_limit_in_minutes(job: JobFile) -> Found:
    """
    A time limit that looks like hours is in minutes.

    Why: sbatch(1): a number alone is minutes; for PBS `walltime=12:00` is [[hours:]minutes:]seconds.

    Fix: `--time=24:00:00`, `walltime=12:00:00`.
    """
    value, line = last(job.job.directives, "time", "t")
    if re.fullmatch(r"24|48|72|96|168", value) and job.launches:
        yield line, f"--time={value} is {value} minutes", f"--time={value}:00:00"
    for one in job.job.directives if job.launches else ():
        short = _SHORT.search(one.value) if one.scheduler == "PBS" and one.name == "l" else None
        if short and int(short[1]) < 60 and int(short[1]) % 5:  # 30:00 may be half an hour
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
    A job file looks for the script, or for a file that it sources, in its own folder.

    Why: Slurm and PBS run a copy of the job file in a folder of theirs (/var/spool/slurmd/...):
    `$0` and BASH_SOURCE name the copy, and its folder has no script.

    Fix: `$SLURM_SUBMIT_DIR`, `$PBS_O_WORKDIR`, or the whole path.
    """
    head = re.match(r"(?:[ \t]*(?:#[^\n]*)?\n){1,500}", job.text)
    scheduler = re.search(r"(?m)^#(SBATCH|PBS)[ \t]+-", head[0]) if head else None
    if not scheduler or _KNOWS_FOLDER.search(job.text):
        return
    start = "$PBS_O_WORKDIR" if scheduler[1] == "PBS" else "$SLURM_SUBMIT_DIR"
    for command in job.job.commands:
        folder = command.texts[1] if command.texts[0] == "cd" and len(command.texts) == 2 else ""
        names = [mark.name for mark in job.job.marks.all_of(folder)]
        inner = {name for text in names for name in re.findall(r"\$\{?(\w{1,60})", text)}
        texts = [w.raw for w in job.job.assigned if w.text.partition("=")[0] in inner] if inner else ()
        read = any(map(OWN_FOLDER.search, (*names, *texts)))
        later = [one for one in job.launches if one.line > command.line]
        name = later[0].start.script if later else ""
        severity: Severity = "warning" if later and later[0].module else "error"  # it may be installed
        if read and not command.is_nested and name[:1] not in ("/", "") and not has_mark(name):
            found = f"{printable(name, 60)} is looked for where the scheduler's copy of this file is"
            yield job.finding(command.line, found, f"cd {start}", severity=severity)
            return
    sourced = [c for c in job.job.commands if c.texts[0] in ("source", ".") and not c.is_nested]
    read_at = [(c.texts[1], c.line) for c in sourced if len(c.texts) > 1]
    for script, line in [*read_at, *((launch.script, launch.line) for launch in job.launches)]:
        mark = next(iter(job.job.marks.all_of(script)), None)
        if mark and is_mark(script[:1]) and OWN_FOLDER.search(mark.name):
            name = printable(job.job.marks.shown(script.rpartition("/")[2]), 60)
            found = f"{name} in the job file's folder: the scheduler runs a copy of the file in another one"
            yield line, found, start
            return


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
    for number, line in enumerate(job.lines, 1):
        if line.strip() and not line.startswith("#"):
            return
        if refused := _PBS_REFUSES.match(line):
            what = refused["bare"] or refused["blank"]
            found = f"{printable(what, 60)} without -l" if refused["bare"] else f"a blank behind {what}"
            yield number, found, f"#PBS -l {printable(what, 60)}", "request"
        if re.match(r"#PBS[ \t]+-t[ \t]+\d", line) and re.search(r"(?m)^#PBS[ \t]+-l[ \t]+select=", job.text):
            yield number, "-t is Torque's, and select= PBS Professional's: its qsub refuses -t", "-J", "array"


_ID_OF = re.compile(
    r"(?m)^[ \t]{0,40}(?:export |local )?(\w{1,60})=\"?\$\([ \t]{0,4}sbatch\b((?:[^()]|\\\n){0,2000})\)"
)
_DEPENDS = re.compile(r"(?:--dependency|-d)[= ]\"?after\w*:[^\s\"$]{0,99}\$\{?(\w{1,60})\}?(?![#%/\w])")
_TAKEN_APART = re.compile(r"(?m)^[ \t]{0,40}(\w{1,60})=[^\n]{0,200}?\$\{?(\w{1,60})")


@fault("job-id-with-words", SHELL)
def job_id_with_words(job: JobFile) -> Found:
    """
    A job depends on the whole line that sbatch prints.

    Why: sbatch(1): without --parsable it prints "Submitted batch job 123"; the shell splits this at the
    blanks, and the next sbatch takes `batch` for the job file.

    Fix: `ID=$(sbatch --parsable job.sh)`.
    """
    if "sbatch" not in job.text:
        return
    printed = {n for n, words in _ID_OF.findall(job.text) if "--parsable" not in words and "|" not in words}
    printed -= {name for name, read in _TAKEN_APART.findall(job.text) if name == read}
    for match in _DEPENDS.finditer(job.text):
        if match[1] in printed:
            found = f"${match[1]} is `Submitted batch job N`"
            yield job.text.count("\n", 0, match.start()) + 1, found, f"{match[1]}=$(sbatch --parsable ...)"


_LINE_OF_INDEX = re.compile(
    r"\bsed (?:-n )?[\"']{0,2}\$\{?(?:SLURM_ARRAY_TASK_ID|PBS_ARRAY_INDEX|SGE_TASK_ID)\}?[\"']{0,2}[pq]"
    r"|\bhead -n? ?[\"']?\$\{?(?:SLURM_ARRAY_TASK_ID|PBS_ARRAY_INDEX)\}?[\"']? [^|\n]{1,200}\| ?tail -n? ?1"
    r"|\bawk [\"']NR ?== ?\$\{?(?:SLURM_ARRAY_TASK_ID|PBS_ARRAY_INDEX)"
)
_FROM_0 = re.compile(r"[^\[]{0,99}\[0\D|0(?:\D|$)")


@fault("array-index-0", SHELL)
def array_index_0(job: JobFile) -> Found:
    """
    A job array has the index 0, and its lines or LSF count from 1.

    Why, lines: sed, head and awk count a file's lines from 1: sed ends with "invalid usage of line address
    0", the others print nothing; the last line of the file is never taken.

    Why, LSF: bsub(1): indices are positive; it refuses the array.

    Fix, lines: use an array from 1, or the index + 1.

    Fix, LSF: use an array from 1, and `$((LSB_JOBINDEX - 1))`.
    """
    names = {"SBATCH": ("array", "a"), "PBS": ("J",), "BSUB": ("J",)}
    line_of = next((n for n, text in enumerate(job.lines, 1) if _LINE_OF_INDEX.search(text)), 0)
    for one in job.job.directives:
        if one.name not in names.get(one.scheduler, ()) or not _FROM_0.match(one.value):
            continue
        shown = printable(one.value, 60)
        if one.scheduler == "BSUB" and "[" in one.value:
            yield one.line, f"-J {shown}: LSF counts from 1", "an array from 1", "LSF"
        elif one.scheduler != "BSUB" and line_of:
            found = f"the array begins at 0, and line {line_of} takes this line of a file"
            yield one.line, found, "an array from 1", "lines"
