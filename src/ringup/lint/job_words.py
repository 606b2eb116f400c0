"""The words of a command: comments, dashes, the launcher's options, the script."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ringup.launchfiles.marks import has_mark
from ringup.launchfiles.model import TORCH, Launch
from ringup.launchfiles.programs import (
    BLANKS,
    DASHES,
    LAUNCHERS,
    MODULES,
    MPI_OPTIONS,
    OF_HYDRA,
    OF_OPEN_MPI,
    OPTIONS,
    PROGRAMS,
    QUOTES,
    meaning_of,
)
from ringup.launchfiles.shell import Command, Word
from ringup.launchfiles.start import ASSIGNED, PYTHON
from ringup.lint.job_environment import text_of
from ringup.lint.job_file import JobFile
from ringup.lint.job_programs import mpi_modules
from ringup.lint.rule import SHELL, Found, fault, lines
from ringup.nccl.variables import TABLE
from ringup.rules import Severity
from ringup.units import printable

_TYPED_DASH = re.compile(rf"^-?[{DASHES}][{DASHES}-]?\w")


@fault("slashes-are-no-comment", SHELL, each="commands")
def slashes_are_no_comment(job: JobFile, command: Command) -> Found:
    """
    `//` after a command is taken for a comment.

    Why: the shell knows no `//`; it and the words behind it go to the command as arguments, and a
    training script refuses what it does not know.

    Fix: `#` begins a comment.
    """
    slashes = ((w, b) for b, w in pairwise(command.words) if re.fullmatch("//[^/]*", w.raw))
    # `--render-output //frame_` is a value.
    word = next((w for w, before in slashes if w.raw == "//" or not before.raw.startswith("-")), None)
    if word is not None:
        program = command.texts[0].rpartition("/")[2]
        yield word.line, f"`{word.raw}` and what follows are arguments of {program}", "# before a comment"


@fault("dash-is-no-hyphen", SHELL)
def dash_is_no_hyphen(job: JobFile) -> Found:
    """
    An option begins with a typographic dash instead of hyphens.

    Why: web pages and text editors turn `--` into a dash; the program takes the word for an
    argument, often for the image or the script.  In the first line (`#!/bin/sh –l`) the shell takes it for
    the file to run.

    Fix: type `--` again.
    """
    first = next(iter(job.lines), "")
    if job.commands and re.match(rf"#!.*\s[{DASHES}]", first):
        yield 1, f"`{printable(first.split()[-1], 40)}` in the first line", "a hyphen"
    for command in _written(job):
        if bad := [w for w in command.words if _TYPED_DASH.match(w.text)]:
            yield bad[0].line, f"`{printable(bad[0].text, 40)}`{lines([w.line for w in bad])}", "two hyphens"


def _written(job: JobFile) -> Iterator[Command]:
    """The commands in the file itself, and launches in texts that these run."""
    yield from job.commands
    yield from (launch.command for launch in job.launches if launch.command.is_nested)


_TYPED = re.compile(rf"[^\"'{QUOTES}]{{0,999}}([{QUOTES}](?=[\w./${{-])|(?<=\w){QUOTES[1]}\Z|[{BLANKS}])")
_UNCLOSED = re.compile(r"(\$\{[A-Za-z_]\w{0,60}(?:\[[\w@*]{1,60}\])?)(?=[ \t\"':]|\Z)(?!:[-=?+])[^{}]*\Z")


@fault("shell-reads-other-words", SHELL)
def shell_reads_other_words(job: JobFile) -> Found:
    """
    A typographic quote or blank, or a missing brace, makes other words of a command than it shows.

    Why, quote: the shell knows straight quotes alone: “a b” is two words with quotes in them.

    Why, blank: a non-breaking space is a character of the word, and no program or option has this name.

    Why, brace: the shell takes what follows for a part of `${NAME`, up to the next brace, and refuses it.

    Fix, quote: type the quotes again: `"` or `'`.

    Fix, blank: type the space again.

    Fix, brace: `}` behind the name.
    """
    for command in _written(job):
        pairs = ((w, m[1]) for w in command.words if (m := _TYPED.match(w.raw)))
        for word, sign in [] if command.texts[0] in ("echo", "printf") else [*pairs][:1]:
            case, wanted = ("quote", "straight quotes") if sign in QUOTES else ("blank", "a space")
            name = {"quote": "typographic quote", "blank": "non-breaking space"}[case]
            found = f"a {name} (U+{ord(sign):04X}) in `{printable(word.raw, 60)}`"
            yield word.line, found, wanted, case
    for launch in job.launches:
        written = "\n".join(job.lines[launch.command.line - 1 : launch.command.last_line])
        if open_end := _UNCLOSED.search(written.replace("\\\n", " ")):
            yield launch.line, f"`{open_end[1]}` has no closing brace", open_end[1] + "}", "brace"


@fault("backslash-before-space", SHELL)
def backslash_before_space(job: JobFile) -> Found:
    """
    A line continuation (backslash) is followed by a space.

    Why: the backslash then quotes the space: at the end of a line the command ends here, and its further
    options are run as commands of their own; inside a line the space belongs to the option behind it, which
    the program does not know.

    Fix: nothing after the backslash.
    """
    for number, line in enumerate(job.lines, 1):
        if re.search(r"(?<!\\)\\[ \t]+$", line) and not line.lstrip().startswith("#"):
            yield number, "a space after the backslash", "a line end"
    texts = ["", *job.lines]
    for launch in job.launches if "\\ -" in job.text else ():
        for number in range(launch.command.line, min(launch.command.last_line + 1, len(texts))):
            match = re.search(r"(?<!\\)\\ +(--?[A-Za-z][\w-]{0,60})", texts[number])
            if match and not {"'", '"'} & {*texts[number][: match.start()]}:
                found = f"`\\ {match[1]}` inside a line: the backslash makes the space a part of the option"
                yield number, found, f"{match[1]} without a backslash"


_TO_COMMENT = re.compile(r"\s#[^'\"]{0,200}\\$")


@fault("command-cut-short", SHELL)
def command_cut_short(job: JobFile) -> Found:
    """
    A comment or a missing backslash ends a command before its last words.

    Why: the shell ends the command there.  The launcher starts without the options and the script that
    follow; the rest is run as a command of its own.

    Fix: remove comments behind a backslash and between the lines of a command; end every line but the last
    with a backslash.
    """
    texts = ["", *job.lines]
    of_blocks = [one for one in job.job.commands if one.last_line] if job.job.documents else []
    cut = {command.cut_at for command in (*job.commands, *of_blocks) if command.cut_at}
    yield from (
        (n, "a comment behind the backslash ends the command", "nothing behind it") for n in sorted(cut)
    )
    for command in job.job.commands:
        shell = command.start.steps[-1].role if command.start.steps else ""
        written = "\n".join(texts[command.line : command.last_line + 1])
        if shell == "shell" and command.start.text == "" and re.search(r" -\w{0,6}c[ \\\n]*$", written):
            found = f"`{command.start.steps[-1].program} {command.texts[-1]}` ends here, without a command"
            yield command.line, found, "the command in quotes behind it"
    by_line = {launch.command.line: launch for launch in job.launches}
    for command in job.commands:
        launch, steps = by_line.get(command.last_line + 1), command.start.steps
        is_start = any(s.role == "starter" for s in steps) and not command.start.launcher
        if launch is None or not is_start or (command.line == command.last_line and command.start.rest):
            continue
        first, after = texts[command.line], texts[launch.line]
        if len(after) - len(after.lstrip()) > len(first) - len(first.lstrip()) and not launch.is_away:
            found = f"{launch.launcher} is a command of its own: line {command.last_line} has no backslash"
            yield launch.line, found, "a backslash at the end of the line above"
    odd, listed = {line for line, _, _ in job.job.placeholders}, set[int]()
    for command in (*job.commands, *of_blocks):
        end = command.last_line
        follows = next((n for n in range(end + 1, len(texts)) if not texts[n].lstrip().startswith("#")), 0)
        in_comment = 0 < end < len(texts) and _TO_COMMENT.search(texts[end]) is not None
        is_continued = 0 < end < len(texts) and texts[end].rstrip().endswith("\\") and not in_comment
        is_comment = end + 1 < len(texts) and texts[end + 1].lstrip().startswith("#")
        goes_on = bool(follows) and re.match(r"\s+\S|--\w", texts[follows])
        if goes_on and follows == end + 1 and in_comment and end not in cut:
            yield end, "the backslash is a part of the comment: the command ends here", "no comment in it"
        if is_continued and is_comment and goes_on and end not in cut:
            yield end + 1, "a comment between the lines of a command ends it", "no comment inside a command"
        word = command.words[0]
        if re.match(r"--[A-Za-z]", word.raw) and not any(n in cut for n in range(word.line - 30, word.line)):
            above = range(min(word.line, len(texts)) - 1, 0, -1)
            before = next((n for n in above if texts[n].strip()), 0)
            if not before or before in listed or texts[before].lstrip().startswith("#"):
                listed.add(word.line)  # options alone
                continue
            above_it = texts[before].rstrip()
            is_quoted = above_it.endswith("\\\\") and not above_it.endswith("\\\\\\")
            if word.line not in odd and (is_quoted or not above_it.endswith("\\")):
                has = f"line {before} has {'two backslashes' if is_quoted else 'no backslash'}"
                found = f"`{printable(word.raw, 40)}` is run as a command: {has}"
                is_part = job.is_page and "..." in map(str.strip, texts)  # of a command
                wanted = "a backslash at the end of the line above"
                yield job.finding(word.line, found, wanted, is_sure=not is_part)


@fault("export-takes-further-words", SHELL, each="commands")
def export_takes_further_words(job: JobFile, command: Command) -> Found:
    """
    Words after an assignment are exported as well, or refused.

    Why: `export A=b c` exports a variable c; `export A = b` and `export A=b :` are errors, and the value is
    not what it seems.

    Fix: write one word after `=` (in quotes where it has spaces), and `#` before a comment.
    """
    if command.texts[:1] != ["export"] or not any("=" in w.raw for w in command.words[1:]):
        return
    begin = next(at for at, w in enumerate(command.words) if "=" in w.raw)
    odd = [w for w in command.words[1:] if w.raw == "="]
    for word in command.words[begin:]:
        if "=" in word.raw or word.raw[0] == "-" or re.fullmatch("[A-Z_][A-Z0-9_]{0,80}", word.raw):
            continue
        is_own = any(w.text.startswith(f"{word.raw}=") for w in job.job.assigned if w.line < command.line)
        odd += [] if is_own else [word]
    if odd:
        yield odd[0].line, f"`{odd[0].raw[:40]}` behind the assignment", "NAME=VALUE alone"


_RUNS = ("srun", "nohup", "setsid", "nice", "timeout", "numactl", "taskset", "stdbuf")
_SETS = re.compile("([A-Z_][A-Z0-9_]{0,60})=.")


@fault("assignment-without-effect", SHELL)
def assignment_without_effect(job: JobFile) -> Found:
    """
    A line that should set a variable does not.

    Why, form: in bash `set A=b` sets $1, `export $A=b` exports what $A holds, and `A = b` runs a command A.

    Why, own: `CUDA_VISIBLE_DEVICES=2,3` on a line of its own, without `export`, is the shell's own variable.

    Why, program: the first word behind srun, nohup or nice and their options is the program that they start.

    Why, never run: `CMD="torchrun train.py"` runs nothing, as long as no line has $CMD.

    Fix: `export A=b`.

    Fix, program: write the assignment in front: `A=b nohup python train.py`.

    Fix, never run: add a line that runs it: `srun $CMD`.
    """
    if re.search(r"\A#!.{0,99}csh|(?m:^#PBS +-S +\S{0,99}csh)", job.text):
        return
    yield from _kept_by_the_shell(job)
    yield from _never_run(job)
    for command in job.commands:
        if len(command.words) < 2:
            continue
        first, second = command.words[:2]
        steps = command.start.steps
        for step, end in zip(steps, [*(s.at for s in steps[1:]), command.start.at], strict=False):
            word = command.words[max(min(end, len(command.words)) - 1, 0)]
            is_value = any(option.written.endswith(word.text) for option in step.options)
            if step.program in _RUNS and end - 1 > step.at and _SETS.match(word.text) and not is_value:
                shown = printable(word.raw, 60)
                yield word.line, f"{step.program} takes {shown} for the program", f"{shown} first", "program"
        is_bash = job.text.startswith("#!") or not job.job.directives  # else the user's own shell reads it
        name = (
            _SETS.match(second.text) if is_bash and first.text == "set" and len(command.words) == 2 else None
        )
        if name and (f"${name[1]}" in job.text or f"${{{name[1]}" in job.text):
            found, wanted = f"set {name[1]}=... sets $1", f"export {printable(second.text, 80)}"
            yield command.line, found, wanted, "form"
        elif first.text == "export" and re.match(r"\$[A-Za-z_]\w{0,60}=", second.raw):
            shown = printable(second.raw, 60)
            found = f"export {shown}: what {shown.partition('=')[0]} holds"
            yield command.line, found, f"export {shown[1:]}", "form"
        elif second.raw[:1] == "=" and second.raw[1:2] != "=" and re.fullmatch(r"\w{2,60}", first.raw):
            is_read = any(match[1] == first.raw for match in _READS.finditer(job.text))
            if is_read or (first.raw.isupper() and second.raw == "="):
                yield command.line, f"`{first.raw} =` runs a command {first.raw}", f"{first.raw}=...", "form"


_READS = re.compile(r"\$\{?([A-Za-z_]\w{0,60})")
_HOLDS_A_START = re.compile(r"\b(?:torchrun|accelerate launch|deepspeed|torch\.distributed\.(?:run|launch)) ")


def _never_run(job: JobFile) -> Found:
    """A start line in a variable that is the end of its file."""
    if job.launches or not job.job.directives or not job.job.assigned:
        return
    last = max(job.job.assigned, key=lambda word: word.line)
    name, _, value = last.text.partition("=")
    value = value if re.match(r"\w+=[\"']", last.raw) else ""
    plain = ("echo", "export", "exit")
    behind = [c for c in job.job.commands if c.line > last.line and c.texts[0] not in plain]
    is_start = ".py" in value and _HOLDS_A_START.search(value[:4000])
    name_of_it = posixpath.basename(job.path)
    is_sourced = any(name_of_it in text for path, text in job.others.items() if path != job.path)
    if is_start and not behind and not is_sourced:
        yield last.line, f"{name} holds a start line, and nothing runs it", f"srun ${name}", "never run"


_READ_OR_EXPORTED = re.compile(r"\$\{?(\w{1,60})|(?:export|declare|typeset|-e|-x|--env)[ =]([^\n]{0,200})")


def _kept_by_the_shell(job: JobFile) -> Found:
    """Variables that only programs read, assigned without `export`."""
    if job.job.directives or re.search(r"(?m)^[ \t]{0,20}(?:set -\w{0,9}a|set -o allexport)\b", job.text):
        return  # Slurm exports CUDA_VISIBLE_DEVICES itself
    found = _READ_OR_EXPORTED.findall(job.text)
    used = {word for pair in found for word in re.findall(r"\w+", " ".join(pair))}
    for launch in job.launches:
        for name in sorted(launch.command.variables.keys() - launch.env.keys() - used):
            here = next((w.line for w in job.job.assigned if w.text.startswith(f"{name}=")), 0)
            if here and (name == "CUDA_VISIBLE_DEVICES" or name in TABLE):
                yield here, f"{name} is not exported: the ranks do not get it", f"export {name}=...", "own"


@fault("launcher-argument-misread", SHELL, each="launches")
def launcher_argument_misread(job: JobFile, launch: Launch) -> Found:
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
    if launch.launcher == "python" and launch.module in ("torchrun", "accelerate", "deepspeed"):
        found = f"Python cannot run {launch.module} as a module"
        yield launch.line, found, f"{launch.module}, or python -m {_AS_MODULE[launch.module]}"
    if "#" in start.arguments and not launch.command.cut_at:
        found = "`#` is an argument of the script: in quotes it begins no comment"
        yield job.finding(launch.line, found, "the options alone in quotes", severity="warning")
    if launch.launcher not in OPTIONS or launch.command.cut_at:
        return
    word, follows = launch.command.words[start.at], "".join(start.arguments[:1])
    if start.kind == "module" and start.script.endswith(".py") and not has_mark(start.script):
        found = f"-m {printable(start.script, 60)}: Python looks for a module of this whole name"
        yield launch.line, found, f"-m {start.script[:-3].replace('/', '.').lstrip('.')}, or no -m"
    elif start.python and word.text in LAUNCHERS and not re.search(r"[$`]", word.raw):
        found = f"Python looks for a file `{word.text}` in the working directory"
        yield launch.line, found, f"{word.text} without {start.python} in front of it"
    elif re.match(r"(?i)^(?:true|false|yes|no|none|0|1)$", start.script) and start.kind == "script":
        found = f"{launch.launcher} takes {start.script!r} for the script: the flag has no value"
        yield launch.line, found, "the flag alone, then the script"
    elif start.script in ("\\", "#") and start.kind == "script":
        found = f"{launch.launcher} takes `{start.script}` for the script: in quotes # begins no comment"
        yield launch.line, found, "the options alone in quotes"
    elif start.kind == "script" and (program in known or PYTHON.fullmatch(program)):
        found = f"{launch.launcher} takes `{program}` for the script, and runs it by Python"
        yield launch.line, found, "the script itself"
    elif start.kind == "script" and _HOSTS_OR_COUNT.fullmatch(program) and follows.endswith(".py"):
        found = f"{launch.launcher} takes `{start.script}` for the script"
        yield launch.line, found, "an option in front of it (--hostfile), or the script alone"
    elif start.kind == "script" and program.endswith((".yaml", ".yml", ".json")) and not launch.is_opaque:
        found = f"{launch.launcher} takes `{printable(program, 60)}` for the script: Python runs it"
        yield launch.line, found, "--config_file" if launch.launcher == "accelerate" else "the script first"
    elif not (start.script or launch.is_opaque or _is_cut(job, launch) or launch.has("help")):
        found, wanted = f"{launch.launcher} is given no script", "the script behind the options"
        yield job.finding(launch.line, found, wanted, is_sure=not job.is_page)


_AS_MODULE = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.launch",
    "deepspeed": "deepspeed.launcher.runner",
}
_HOSTS_OR_COUNT = re.compile(
    r"(?i)(?:\w{0,40}[-_.])?(?:host|machine|node)_?(?:file|list|s)?(?:\.txt)?|:?\d{1,9}"
)


def _is_cut(job: JobFile, launch: Launch) -> bool:
    """Whether another rule explains missing words: a cut, or a placeholder."""
    texts = job.lines[max(0, launch.line - 1) : launch.command.last_line]
    return any(re.search(r"\\[ \t]+$|\\$", text) for text in texts[-1:]) or bool(job.job.placeholders)


def _parted(word: Word) -> tuple[str, str, str]:
    return word.text.partition("=")


def _empty_by_blank(job: JobFile) -> Found:
    """`--option=$NAME` without quotes, where the value begins with a blank."""
    blank = {name for name, _, value in map(_parted, job.job.assigned) if value.startswith(" ")}
    for launch in job.launches:
        for word in launch.command.words if blank else ():
            if (match := re.fullmatch(r"--[\w-]{1,40}=\$\{?(\w{1,60})\}?", word.raw)) and match[1] in blank:
                found = f"{printable(word.raw, 60)}: the value begins with a blank, the option is empty"
                yield word.line, found, "the value without the blank, or quotes", "value"


def _hosts_missing(job: JobFile) -> Found:
    """mpirun takes the program for the value of an option that has none."""
    for command in job.job.commands:
        for step in (s for s in command.start.steps if s.program in ("mpirun", "mpiexec", "horovodrun")):
            names = (*MPI_OPTIONS["hosts"], *MPI_OPTIONS["hostfile"])
            bare = next((o for o in step.options if o.name in names and not o.value), None)
            follows = "".join(command.texts[bare.at + 1 : bare.at + 2]) if bare else ""
            if bare and PYTHON.fullmatch(follows):
                found = f"{bare.name} has no value: it takes {follows}"
                yield command.line, found, "the hosts behind it", "value"


def _option_as_value(job: JobFile) -> Found:
    """`horovodrun --mpi-args "--tag-output"`: argparse takes one word that begins with - for an option."""
    for launch in (one for one in job.launches if one.launcher == "horovod"):
        for name, value in pairwise(launch.command.texts):
            if name in ("--mpi-args", "--mpi-flags") and value.startswith("-") and " " not in value:
                yield launch.line, f"{name} has no value: {value} is an option", f'{name}="{value}"', "value"


@fault("launcher-option-wrong", SHELL)
def launcher_option_wrong(job: JobFile) -> Found:
    yield from _refused_by_accelerate(job)
    yield from _hosts_missing(job)
    yield from _option_as_value(job)
    yield from _backend_wrong(job)
    yield from _placeholders(job)
    yield from _empty_by_blank(job)
    placeholders = {line for line, _, _ in job.job.placeholders}
    for launch in job.launches:
        if launch.launcher not in OPTIONS:
            continue
        # The script may be in a word that only the run knows: what follows would be its own.
        unsure = launch.start.opaque if not launch.start.script.endswith(".py") else ()
        places = (at for at, text in enumerate(launch.command.texts) if text in unsure)
        behind = next(places, 0) if unsure else len(launch.command.words)
        for option in launch.start.options:
            line = _word(launch, option.at).line
            if option.at > behind and not option.is_known:
                continue
            own = {"ft_launcher": "--ft-", "hyperpodrun": "--"}.get(launch.start.program.split("/")[-1], "-")
            is_more = own != "-" and option.name.startswith(own)
            if not option.is_known and not is_more and not has_mark(option.name):
                near = difflib.get_close_matches(option.name, OPTIONS[launch.launcher], 1, 0.75)
                others = [n for n, options in OPTIONS.items() if option.name in options]
                same = _same_meaning(launch.launcher, option.name, others)
                of = f": it is {others[0]}'s" if others else ""
                is_of_script = option.name[2:] in launch.arguments
                of = ": it is the script's" if is_of_script else of
                is_one = " " in option.name  # argparse takes a word with a blank for the script
                written = printable(launch.shown(option.written if is_one else option.written.split()[0]), 60)
                of = ": the quotes make it one word" if is_one else of
                found = f"{launch.launcher} has no option {written}{of}"
                wanted = near[0] if near else "an option of the launcher, or the script in front of it"
                severity: Severity = "error" if near or others or is_of_script or is_one else "warning"
                yield job.finding(line, found, same or wanted, severity=severity, case="option")
            elif option.is_known and not option.is_flag and not option.value and line not in placeholders:
                read = _READ_THERE.findall(" ".join(w.raw for w in launch.command.words[option.at :][:2]))
                if not {name for name, _, value in map(_parted, job.job.assigned) if value}.intersection(
                    read
                ):
                    found = f"{option.written.partition('=')[0].split()[0]} has no value"
                    yield line, found + ": the variable in it is empty" * bool(read), "a value", "value"
            elif line in placeholders:
                continue
            elif _is_no_count(meaning_of(launch.launcher, option.name), option.value):
                found = f"{option.name} is {printable(option.value, 60)!r}"
                yield job.finding(line, found, "a number", is_sure=not job.is_page, case="value")


def _placeholders(job: JobFile) -> Found:
    # A page's reader fills them in.
    for launch in job.launches:
        if re.fullmatch(r"(?i)x{1,9}(?:\.x{1,9}){3}|your[-_]\w{2,40}", launch.host):
            yield launch.line, f"{launch.host} is a placeholder", "the first node's address", "placeholder"
    if stops := [(line, text) for line, text, is_end in job.job.placeholders if is_end and job.launches]:
        # The placeholder last: words behind the name of a secret are hidden.
        found = f"the shell stops here with a syntax error{lines([line for line, _ in stops])}"
        found += f": placeholder {printable(stops[0][1], 60)}"
        yield job.finding(stops[0][0], found, "the value", is_sure=not job.is_page, case="placeholder")
    for line, text, is_end in job.job.placeholders:
        at_launch = any(one.line <= line <= one.command.last_line + 1 for one in job.launches)
        is_assigned = ASSIGNED.match(job.lines[line - 1].removeprefix("export "))
        if job.launches and not is_end and (at_launch or is_assigned):
            found = f"the shell takes `<` for a file: placeholder {printable(text, 60)}"
            yield job.finding(line, found, "the value", is_sure=not job.is_page, case="placeholder")
            break


_READ_THERE = re.compile(r"\$\{?(\w{1,60})")
_KINDS = ("cpu", "multi-gpu", "tpu", "use-deepspeed", "use-fsdp")


def _backend_wrong(job: JobFile) -> Found:
    for launch in job.launches:
        backend = launch.option("rdzv-backend") if launch.launcher in TORCH else ""
        if backend.lower() in ("nccl", "gloo", "mpi", "tcp", "env", "c10"):
            yield launch.line, f"torchrun has no rendezvous backend {backend}", "c10d or static", "rendezvous"
        port = launch.option("master-port") if backend == "c10d" and launch.endpoint else ""
        if port and ":" not in launch.endpoint.strip("[]"):
            found = "--master-port counts for static rendezvous alone: the endpoint takes 29400"
            wanted = f"--rdzv-endpoint={launch.shown(launch.endpoint)}:{launch.shown(port)}"
            yield job.finding(launch.line, found, wanted, severity="warning", case="port")


def _refused_by_accelerate(job: JobFile) -> Found:
    for launch in job.launches:
        given = [n for n in _KINDS if launch.launcher == "accelerate" and launch.start.option(n) is not None]
        if len(given) > 1:
            first, second = (f"--{name.replace('-', '_')}" for name in given[:2])
            yield launch.line, f"{first} beside {second}", "one of them", "accelerate"
        elif given == ["multi-gpu"] and launch.config.get("distributed_type") in ("FSDP", "DEEPSPEED"):
            kind = launch.config["distributed_type"]
            found = f"--multi_gpu: accelerate leaves out the configuration's {kind}"
            yield launch.line, found, "no --multi_gpu", "accelerate"
        elif given == ["multi-gpu"] and launch.start.option("num-processes") in ("0", "1"):
            yield launch.line, "--multi_gpu for one process", "two or more, or no --multi_gpu", "accelerate"
        machines, total = launch.nnodes or 1, launch.number(launch.option("num-processes")) or 0
        if launch.launcher == "accelerate" and total and total % machines:
            found = f"--num_processes {total} on {machines} machines: {total // machines} on each"
            wanted = "the total of all machines, a multiple of their number"
            yield job.finding(launch.line, found, wanted, is_sure=total < machines, case="accelerate")


_COUNTS = {
    "nodes": re.compile(r"\d{1,9}(?::\d{1,9})?"),
    "nproc": re.compile(r"\d{1,9}|[a-z]{1,20}"),
    "world_size": re.compile(r"\d{1,9}"),
}
"""torchrun also takes gpu, cpu, auto and the name of a backend for its processes."""


def _is_no_count(meaning: str, value: str) -> bool:
    is_written = meaning in _COUNTS and not has_mark(value) and "$" not in value
    return is_written and not _COUNTS[meaning].fullmatch(value.strip())


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
_ALSO_ITS_OWN = ("multi-gpu", "num-processes", "mixed-precision", "use-deepspeed", "use-fsdp", "config-file")
"""Options of accelerate that some scripts have."""


@fault("launcher-option-behind-script", SHELL, each="launches")
def launcher_option_behind_script(job: JobFile, launch: Launch) -> Found:
    """
    Options of the launcher come after the script.

    Why: the launcher reads its own options up to the script; what follows goes to the script.  torchrun then
    starts one process, accelerate what its configuration says, and the script refuses or ignores the words.

    Fix: write options of the launcher, the script, options of the script: `torchrun --nproc_per_node=8
    train.py --lr 1`.
    """
    options = OPTIONS.get(launch.launcher, {})
    late = [n for n in launch.arguments if n in _ITS_OWN and f"--{n}" in options and not launch.has(n)]
    if launch.launcher == "accelerate" and "add_argument(" in (own := text_of(job, launch.script)):
        named = [n for n in _ALSO_ITS_OWN if n in launch.arguments and not launch.has(n)]
        late += [n for n in named if n.replace("-", "_") not in own and n not in own]
    is_read = bool(late) and not launch.is_opaque and not _TYPED_DASH.match(launch.start.script)
    if launch.launcher == "deepspeed":
        of_hosts = re.match(r"[\w.-]+:\d|[\w.-]+@", launch.arguments.get("include", ""))
        late = [n for n in ("hostfile", "include") if n in launch.arguments and not launch.has(n)]
        late = [n for n in late if n == "hostfile" or of_hosts]
        is_read = bool(late) and not launch.is_opaque
    elif launch.launcher not in (*TORCH, "accelerate"):
        return
    if not is_read:
        return
    text = text_of(job, launch.script)
    takes = any(n in text or n.replace("-", "_") in text for n in late)
    is_bare = not launch.has("nproc-per-node", "nnodes", "num-processes", "num-machines", "config-file")
    is_sure = is_bare and ("standalone" in late or "nproc-per-node" in late or len(late) > 1)
    is_sure = is_sure or launch.launcher == "deepspeed"
    if not takes and not launch.setting("nproc-per-node"):
        found = f"--{late[0]} behind the script: {launch.launcher} does not see it"
        yield job.finding(launch.line, found, f"--{late[0]} in front of the script", is_sure=is_sure)


def _word(launch: Launch, at: int) -> Word:
    return launch.command.words[min(at, len(launch.command.words) - 1)]


@fault("option-of-later-torch", SHELL)
def option_of_later_torch(job: JobFile) -> Found:
    """
    An option of torchrun is spelt with dashes, and the file names a torch that does not know them.

    Why: `--nproc-per-node` is accepted since torch 2.0; before, torchrun takes `--nproc_per_node` alone and
    ends with "unrecognized arguments".

    Fix: write underscores, which every release takes.
    """
    versions = {*re.findall(r"\b(?:pytorch[:/]v?|torch==)(1\.\d{1,2})\b", job.text)}
    for launch in job.launches if versions else ():
        written = (o.written.partition("=")[0] for o in launch.start.options)
        if (option := next((name for name in written if "-" in name[2:]), "")) and launch.launcher in TORCH:
            yield launch.line, f"{option}, and torch is {min(versions)}", f"--{option[2:].replace('-', '_')}"


@fault("launcher-deprecated", SHELL, severity="note")
def launcher_deprecated(job: JobFile) -> Found:
    """
    torch.distributed.launch is deprecated.

    Why: it passes --local-rank to the script and will go.

    Fix: use torchrun, and read LOCAL_RANK from the environment.
    """
    for launch in [one for one in job.launches if one.launcher == "launch"][:1]:
        yield launch.line, "torch.distributed.launch", "torchrun"


@fault("mpi-option-of-another", SHELL)
def mpi_option_of_another(job: JobFile) -> Found:
    """
    mpirun gets an option that its MPI does not have: Open MPI's, or Hydra's (MPICH, MVAPICH, Intel MPI).

    Why: each refuses the other's options: Hydra with `unrecognized argument x`, Open MPI with `An
    unrecognized option was included on the mpirun command line`.

    Fix: Open MPI: -x NAME=VALUE, --map-by ppr:N:node, --hostfile; Hydra: -genv NAME VALUE, -ppn N, -f FILE.
    """
    is_open, is_hydra = mpi_modules(job)
    texts = job.lines
    for launch in job.launches:
        path = next((w for w in launch.command.texts if w.endswith("/mpirun")), "")
        text = text_of(job, launch.script) if path else ""
        if is_hydra and not is_open and "openmpi" in path and "mpi4py" in text:
            found = f"{printable(path, 60)}, and mpi4py's MPI is MPICH: each process is alone, rank 0 of 1"
            yield launch.line, found, "the mpirun of mpi4py's own MPI"
        by_hydra = any(s.program in ("mpiexec.hydra", "mpirun_rsh") for s in launch.steps)
        by_hydra = by_hydra or (is_hydra and not is_open and launch.started_by in ("mpirun", "mpiexec"))
        written = " ".join(texts[launch.command.line - 1 : launch.command.last_line])
        name = re.search(r"\$\{?(OMPI_COMM_WORLD_\w{1,20})\}?(?!:)", written)
        if by_hydra and name and "PMI_" not in written:
            found = f"${name[1]} is Open MPI's: another MPI sets PMI_RANK"
            yield launch.line, found, "$PMI_RANK, $MPI_LOCALRANKID"
    for command, step in job.steps("mpirun", "mpiexec"):
        names = [option.name for option in step.options]
        of_open = next((n for n in names if n.lstrip("-") in OF_OPEN_MPI), "")
        of_hydra = next((n for n in names if n.lstrip("-") in OF_HYDRA), "")
        if of_open and of_hydra:
            yield command.line, f"{of_open} is Open MPI's, {of_hydra} is Hydra's", "options of one MPI"
        elif of_open and is_hydra and not is_open:
            yield command.line, f"{of_open} is Open MPI's, the module is another MPI's", "its own option"
        elif of_hydra and is_open and not is_hydra:
            yield command.line, f"{of_hydra} is Hydra's, the module is Open MPI's", "its own option"


_RUN_FIRST = re.compile(r"\$\((?:[^ ]{0,200}/)?(?:python[\d.]{0,8}|torchrun|accelerate|deepspeed) (?!-c )")
_BEHIND = ("--mca", "-mca", "--bind-to", "-bind-to", "--map-by", "-map-by", "--hostfile", "-x", "-np")


@fault("mpirun-option-behind-program", SHELL, each="launches")
def mpirun_option_behind_program(job: JobFile, launch: Launch) -> Found:
    """
    Options of mpirun come after the program.

    Why: mpirun reads its options up to the program; what follows are arguments of the script.

    Fix: write mpirun's options in front of the program.
    """
    is_mpi = launch.started_by in ("mpirun", "mpiexec") and launch.launcher == "python"
    given = [word for word in launch.start.arguments if word in _BEHIND]
    if is_mpi and len({*given}) > 1:
        yield launch.line, f"{', '.join(dict.fromkeys(given))} behind the program", "in front of it"


_VARIABLE = "(?:NCCL|CUDA|MASTER|LD)_[A-Z_]{1,40}|(?:PYTHON)?PATH"


@fault("mpirun-takes-name-for-program", SHELL, each="job.commands")
def mpirun_takes_name_for_program(job: JobFile, command: Command) -> Found:
    """
    Several names follow one `-x` of Open MPI.

    Why: `-x` takes one name; mpirun takes the next word for the program, and finds none of this name.

    Fix: `-x PATH -x LD_LIBRARY_PATH`.
    """
    steps = command.start.steps
    at = next((n for n, one in enumerate(steps) if one.program in ("mpirun", "mpiexec")), None)
    if at is None:
        return
    step, name = steps[at], (*(one.program for one in steps[at + 1 :]), *command.start.rest, "")[0]
    is_known = name in command.env or re.fullmatch(_VARIABLE, name)
    if step.has("-x") and is_known and re.fullmatch("[A-Z][A-Z0-9_]{1,60}", name):
        yield command.line, f"-x takes one name, and {name} is taken for the program", f"-x {name}"


_PLACES = re.compile("bind|map-by|cpus-per|rankfile|mca|bycore|bysocket")
_STARTS_ALL = re.compile("(?:ppr:1:node|node)?")


@fault("mpirun-binds-to-core", SHELL)
def mpirun_binds_to_core(job: JobFile) -> Found:
    """
    Open MPI binds each of one or two processes to one core, and they have several threads.

    Why: mpirun(1) of Open MPI: without `--bind-to` up to two processes are bound to a core each, more of them
    to a socket or NUMA node.  All threads of such a process, and data loaders' workers, share that core.

    Fix: `--bind-to none`, or `--map-by slot:PE=THREADS`.
    """
    is_open = mpi_modules(job)[0]
    for command in job.job.commands:
        for step in (s for s in command.start.steps if s.program in ("mpirun", "mpiexec")):
            names = [option.name.lstrip("-") for option in step.options]
            given = dict(o.value.split("=", 1) for o in step.options if o.name == "-x" and "=" in o.value)
            threads = given.get("OMP_NUM_THREADS") or command.env.get("OMP_NUM_THREADS", "")
            count = step.option(*MPI_OPTIONS["world_size"]) or ""
            is_bound = any(map(_PLACES.match, names))
            is_open_mpi = is_open or any(name in OF_OPEN_MPI for name in names)
            is_threaded = threads.isdecimal() and int(threads) > 1
            placed = step.option("--map-by", "-map-by") or ""
            others = any(map(_PLACES.match, (n for n in names if n != "map-by")))
            launcher = command.start.launcher if command.start.launcher in TORCH and not others else ""
            if is_open_mpi and launcher and count in ("1", "2") and _STARTS_ALL.fullmatch(placed):
                found = f"-np {count}: one core for all ranks that {launcher} starts there"
                yield job.finding(command.line, found, "--bind-to none", severity="warning")
            elif is_open_mpi and not is_bound and count in ("1", "2") and is_threaded:
                found = f"-np {count}: one core for the {threads} threads of each process"
                yield command.line, found, "--bind-to none"


@fault("program-is-an-output", SHELL, each="job.commands")
def program_is_an_output(job: JobFile, command: Command) -> Found:
    """
    The command that a starter should run is in backticks or $(...).

    Why: the shell runs it first, once, on this node alone, and the starter gets its output as the program.

    Fix: write the command without backticks.
    """
    mark = job.job.marks.of("".join(command.start.rest[:1]))
    starters = [step.program for step in command.start.steps if step.role == "starter"]
    if mark and starters and _RUN_FIRST.match(mark.name):
        found = f"the shell runs `{printable(mark.name[2:-1], 60)}` before {starters[-1]}"
        yield command.line, found, "the command itself"
