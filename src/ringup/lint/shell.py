"""
A shell or job file by its lines: words with their quotes, assignments, commands, launch lines.

A reader and no shell: nothing is expanded but variables that the same file sets to a plain text, and
what is not understood is left out rather than guessed.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ringup.lint.rule import File
from ringup.units import lines_of

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB)\s+(.*)")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TOKEN = re.compile(
    r"(?P<joint>\\\n)|(?P<blank>[ \t\r]+)|(?P<operator>&&|\|\||;;|\|&|[|&;()\n])"
    r"|(?P<part>'[^']*'|`[^`]*`|\"(?:[^\"\\]|\\.)*\"|\\.|[^ \t\r\n'\"`\\$&|;()#]+|[#$\\])"
    r"|(?P<unclosed>['\"`])",
    re.DOTALL,
)
OPERATORS = ("&&", "||", ";;", "|&", "|", "&", ";", "(", ")", "\n")


class Word(NamedTuple):
    """One word, its quotes kept."""

    raw: str
    line: int

    @property
    def text(self) -> str:
        """Without quotes and backslashes."""
        try:
            return "".join(shlex.split(self.raw.replace("\n", " ")) or [""]) if self.raw else ""
        except ValueError:
            return self.raw


class Comment(Word):
    """A comment up to the end of its line."""


@dataclass
class Command:
    """One simple command with what was set when it is reached."""

    words: list[Word]
    line: int
    prefix: dict[str, str] = field(default_factory=dict)
    """Assignments in front of it."""
    assigned: list[Word] = field(default_factory=list)
    """Words of it that assign, `export`'s and env's, too."""
    variables: dict[str, str] = field(default_factory=dict)
    """What the file has set above it, as far as it is plain text."""
    comments: list[Comment] = field(default_factory=list)
    """Comments since the last command."""
    ends_with: str = ""
    """The operator after it: "&", "|", ..."""
    around: Command | None = None
    """The command whose `bash -c` it is."""

    def resolve(self, text: str) -> str:
        """Variables replaced by what the file says, the others left as they are."""
        known = {**self.variables, **self.prefix}
        for _ in range(4):
            text = _VARIABLE.sub(lambda m: known.get(m[1] or m[2], m[0]), text)
        return text

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


@dataclass
class Job(File):
    text: str
    directives: list[tuple[str, str, int]] = field(default_factory=list)
    """(option without dashes, value, line) of #SBATCH, #PBS, #BSUB."""
    commands: list[Command] = field(default_factory=list)

    def option(self, *names: str) -> tuple[str, int]:
        """(value, line) of the last directive of these names; ("", 0) for none."""
        found = [(value, line) for name, value, line in self.directives if name in names]
        return found[-1] if found else ("", 0)


def words(text: str, first_line: int = 1) -> Iterator[Word]:
    """Words, operators (as words) and comments of a text; quotes may span lines."""
    at, line = 0, first_line
    raw, began = "", first_line
    delimiters: list[str] = []
    while match := _TOKEN.match(text, at):
        start, at, kind = at, match.end(), match.lastgroup
        is_comment = match[0] == "#" and not raw
        if kind == "unclosed":
            return
        if kind == "part" and not is_comment:
            if match[0] == "$" and text.startswith("(", at):  # up to the parenthesis that closes it
                depths = itertools.accumulate((c == "(") - (c == ")") for c in text[at:])
                at += next((n for n, depth in enumerate(depths, 1) if not depth), len(text))
            began = began if raw else line
            raw += text[start:at]
        elif raw and kind != "joint":
            yield Word(raw, began)
            delimiters += [found[2] for found in [_HEREDOC.search(raw)] if found]
            raw = ""
        if is_comment:
            end = text.find("\n", at)
            at = end if end >= 0 else len(text)
            yield Comment(text[start:at], line)
        elif kind == "operator":
            yield Word(match[0], line)
        if match[0] == "\n":
            at = _after_heredocs(text, at, delimiters)
            delimiters = []
        line += text.count("\n", start, at)
    if raw:
        yield Word(raw, began)
    yield Word("\n", line)


def _after_heredocs(text: str, at: int, delimiters: list[str]) -> int:
    """Index of the line after the here-documents that begin at `at`."""
    for word in delimiters:
        match = re.compile(rf"^\t*{word}\s*$", re.MULTILINE).search(text, at)
        at = min(match.end() + 1, len(text)) if match else len(text)
    return at


def read(path: str, text: str) -> Job:
    """
    A file as commands and directives; never raises.

    >>> read("x.sh", "export A=1; FOO=$A python train.py &").commands[-1].prefix
    {'FOO': '1'}
    """
    job = Job(path, text)
    for number, line in enumerate(lines_of(text), 1):
        match = _DIRECTIVE.match(line)
        if match:
            job.directives += [(n, v, number) for n, v in _directive(match[2])]
    job.commands = list(_commands(words(text), {}))
    return job


def _directive(text: str) -> Iterator[tuple[str, str]]:
    """
    >>> list(_directive("--nodes=2 -t 0:05:00   # five minutes"))
    [('nodes', '2'), ('t', '0:05:00')]
    """
    parts = re.split(r"\s#", text)[0].split()
    while parts:
        word = parts.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            continue
        if not equals and parts and not parts[0].startswith("-"):
            value = parts.pop(0)
        yield name, value.strip("\"'")


def _commands(found: Iterator[Word], variables: dict[str, str]) -> Iterator[Command]:
    current: list[Word] = []
    comments: list[Comment] = []
    for word in found:
        if isinstance(word, Comment):
            comments.append(word)
        elif word.raw not in OPERATORS:
            current.append(word)
        elif current:
            command = _command(current, variables, comments, word.raw)
            current = []
            if command.words:
                comments = []
                yield command
                yield from _inner(command)


def _command(given: list[Word], variables: dict[str, str], comments: list[Comment], operator: str) -> Command:
    rest = given[1:] if given[0].raw in KEYWORDS else given[:]
    prefix: dict[str, str] = {}
    exporting = next((i for i, word in enumerate(rest) if word.raw in EXPORTING), len(rest))
    assigned = list(itertools.takewhile(lambda word: _ASSIGNMENT.fullmatch(word.raw), rest))
    assigned += [word for word in rest[exporting + 1 :] if _ASSIGNMENT.fullmatch(word.raw)]
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0].raw)):
        prefix[match[1]] = _plain(match[2], rest.pop(0).line, {**variables, **prefix})
    command = Command(rest, given[0].line, prefix, assigned, dict(variables), comments, operator)
    if not rest:
        variables.update(prefix)
        command.words = given if prefix else []
        command.prefix = {}
    elif rest[0].raw in EXPORTING[:-1]:
        for word in rest[1:]:
            match = _ASSIGNMENT.fullmatch(word.raw)
            if match:
                variables[match[1]] = _plain(match[2], word.line, variables)
        command.variables = dict(variables)
    return command


EXPORTING = ("export", "declare", "readonly", "local", "env")
KEYWORDS = ("then", "do", "else", "{", "!", "if", "while", "elif", "time", "exec")


def _plain(raw: str, line: int, known: dict[str, str]) -> str:
    """A value without quotes, its variables replaced; kept raw where a command makes it."""
    if "$(" in raw or "`" in raw:
        return raw
    text = Word(raw, line).text
    if raw.startswith("'"):
        return text
    return _VARIABLE.sub(lambda m: known.get(m[1] or m[2], m[0]), text)


def _inner(command: Command) -> Iterator[Command]:
    """The commands in the text of `bash -c TEXT`."""
    texts = command.texts
    for at, text in enumerate(texts[:-1]):
        if text in ("-c", "-lc") and at and texts[at - 1].rpartition("/")[2] in ("bash", "sh", "zsh"):
            word = command.words[at + 1]
            text = word.raw[1:-1] if word.raw[:1] in ("'", '"') else word.raw
            for inner in _commands(words(text, word.line), {**command.variables}):
                inner.around = inner.around or command
                inner.variables = {**command.variables, **command.prefix, **inner.variables}
                yield inner


LAUNCHERS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "llamafactory-cli": "llamafactory",
    "accelerate launch": "accelerate",
    "colossalai run": "colossalai",
    "-m torch.distributed.run": "torchrun",
    "-m torch.distributed.launch": "launch",
    "-m accelerate.commands.launch": "accelerate",
    "-m deepspeed.launcher.runner": "deepspeed",
}
"""First words of a command, `python` left out -> its launcher."""
FLAGS = frozenset(
    (
        *("standalone", "no_python", "module", "m", "use_env", "run_path", "virtual_local_rank"),  # torch
        *("multi_gpu", "multi_cpu", "cpu", "tpu", "same_network", "use_deepspeed", "use_fsdp", "debug"),
        *("no_ssh", "no_local_rank", "force_multi", "save_pid"),  # deepspeed
    )
)
"""Options without a value, of torchrun, accelerate and deepspeed."""
SRUN_FLAGS = frozenset(
    ("label", "l", "exclusive", "overlap", "K", "u", "unbuffered", "v", "exact", "kill_on_bad_exit")
)
SRUN_GLUED = "nNcpAJoetwxGD"
"""Short options of srun that may carry their value: -n8."""
PREFIXES = ("exec", "nohup", "time", "setsid", "then", "do")
_PYTHON = re.compile(r"^(?:.*/)?python[\d.]*$")


@dataclass(frozen=True)
class Launch:
    command: Command
    launcher: str
    """torchrun, launch, accelerate, deepspeed, colossalai, llamafactory, or python for a bare script."""
    options: dict[str, str]
    """Names with underscores, values with the file's variables replaced; "" for a flag."""
    script: str
    arguments: tuple[str, ...]
    srun: dict[str, str] | None
    """Options of the `srun` in front of it; None where there is none."""

    @property
    def line(self) -> int:
        return self.command.line

    def option(self, *names: str) -> str:
        """The first of these options that is given; "" for none."""
        return next((self.options[n] for n in names if n in self.options), "")

    def variable(self, name: str) -> str:
        """What an environment variable is at this line, as far as the file says."""
        return {**self.command.variables, **self.command.prefix}.get(name, "")


def options_of(
    words: Sequence[str], flags: frozenset[str], glued: str = ""
) -> tuple[dict[str, str], list[str]]:
    """
    Leading options, and the rest; `glued` are short options that may carry their value.

    >>> options_of(["--nnodes", "2", "--standalone", "--a-b=1", "train.py", "-c", "x"], FLAGS)
    ({'nnodes': '2', 'standalone': '', 'a_b': '1'}, ['train.py', '-c', 'x'])
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--") and len(word) > 2 and word[1] in glued:
            name, value = word[1], word[2:]
        elif not equals and name not in flags and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        found[name] = value
    return found, rest[1:] if rest[:1] == ["--"] else rest


def launches(job: Job) -> list[Launch]:
    return [launch for command in job.commands if (launch := _launch(command))]


def _launch(command: Command) -> Launch | None:
    words = [command.resolve(text) for text in command.texts]
    srun: dict[str, str] | None = None
    if command.around is not None and command.around.texts[:1] == ["srun"]:
        srun = options_of(command.around.texts[1:], SRUN_FLAGS, SRUN_GLUED)[0]
    while words and (program := words[0].rpartition("/")[2]) in ("srun", "env", *PREFIXES):
        words = words[1:]
        if program == "srun":
            srun, words = options_of(words, SRUN_FLAGS, SRUN_GLUED)
        while program == "env" and words and re.match(r"-|\w+=", words[0]):
            words = words[1:]
    launcher, rest = _program(words) if words else ("", [])
    options, rest = options_of(rest, FLAGS) if launcher != "python" else ({}, rest)
    script = rest[0] if rest else ""
    if not launcher or (launcher == "python" and not script.endswith(".py")):
        return None
    return Launch(command, launcher, options, script, tuple(rest[1:]), srun)


def _program(words: list[str]) -> tuple[str, list[str]]:
    """(launcher, what follows) of a command; ("", []) for anything else."""
    rest = [words[0].rpartition("/")[2], *words[1:]]
    if _PYTHON.match(words[0]):
        del rest[0]
        while rest and rest[0].startswith("-") and rest[0] != "-m":
            rest = rest[2:] if rest[0] in ("-W", "-X") else rest[1:]
        if rest[:1] != ["-m"]:
            return "python", rest
    for count in (1, 2):
        if launcher := LAUNCHERS.get(" ".join(rest[:count])):
            return launcher, rest[count:]
    return "", []
