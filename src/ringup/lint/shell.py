"""
A shell or job file by its lines: words with their quotes, assignments, directives, commands.

A reader and no shell: nothing is expanded but variables that the same file sets to a plain text, and
what is not understood is left out rather than guessed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_DIRECTIVE = re.compile(r"^#(SBATCH|PBS|BSUB)\s+(.*)")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
OPERATORS = ("&&", "||", ";;", "|&", "|", "&", ";", "(", ")", "\n")


@dataclass(frozen=True)
class Word:
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


@dataclass(frozen=True)
class Comment:
    """A comment line."""

    text: str
    line: int


@dataclass
class Command:
    """One simple command with what was set when it is reached."""

    words: list[Word]
    line: int
    prefix: dict[str, str] = field(default_factory=dict)
    """Assignments in front of it."""
    variables: dict[str, str] = field(default_factory=dict)
    """What the file has set above it, as far as it is plain text."""
    comments: list[Comment] = field(default_factory=list)
    """Comments since the last command."""
    ends_with: str = ""
    """The operator after it: "&", "|", ..."""
    quoted: str = ""
    """The quote around it where it is the text of `bash -c`."""
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
        """Its words without quotes."""
        return [word.text for word in self.words]


@dataclass
class Job:
    """A file of commands, as lines told it."""

    path: str
    text: str
    directives: list[tuple[str, str, int]] = field(default_factory=list)
    """(option without dashes, value, line) of #SBATCH, #PBS, #BSUB."""
    commands: list[Command] = field(default_factory=list)

    def where(self, line: int) -> str:
        """file:line."""
        return f"{self.path}:{line}"

    def option(self, *names: str) -> tuple[str, int]:
        """(value, line) of the last directive of these names; ("", 0) for none."""
        found = [(value, line) for name, value, line in self.directives if name in names]
        return found[-1] if found else ("", 0)


def words(text: str, first_line: int = 1) -> Iterator[Word | Comment]:
    """Words, operators (as words) and comments of a text; quotes may span lines."""
    at, line, n = 0, first_line, len(text)
    raw, began, quote = "", first_line, ""
    here: list[str] = []

    while at <= n:
        c = text[at] if at < n else "\n"
        if quote:
            raw += c
            if c == "\\" and quote == '"' and at + 1 < n:
                at += 1
                raw += text[at]
            elif c == quote:
                quote = ""
            line += text[at : at + 1] == "\n"
            at += 1
            continue
        if c == "\\" and at + 1 < n:
            if text[at + 1] == "\n":
                line += 1
            else:
                began = began if raw else line
                raw += text[at : at + 2]
            at += 2
            continue
        if c in "'\"`":
            began = began if raw else line
            raw, quote = raw + c, c
            at += 1
            continue
        if c == "$" and text[at + 1 : at + 2] == "(":
            began = began if raw else line
            end = _closing(text, at + 1)
            raw += text[at:end]
            line += text.count("\n", at, end)
            at = end
            continue
        operator = next((o for o in OPERATORS if text.startswith(o, at)), "\n" if at >= n else "")
        if c in " \t\r" or operator or (c == "#" and not raw):
            if raw:
                heredoc = _HEREDOC.search(raw)
                here += [heredoc[2]] if heredoc else []
                yield Word(raw, began)
                raw = ""
            if c == "#":
                end = text.find("\n", at)
                end = n if end < 0 else end
                yield Comment(text[at:end], line)
                at = end
            elif operator:
                yield Word(operator, line)
                at += len(operator)
                if operator == "\n":
                    line += 1
                    for word in here:
                        match = re.compile(rf"^\t*{word}\s*$", re.MULTILINE).search(text, at)
                        end = match.end() + 1 if match else n
                        line += text.count("\n", at, end)
                        at = end
                    here = []
            else:
                at += 1
            continue
        began = began if raw else line
        raw += c
        at += 1
    if raw:
        yield Word(raw, began)


def _closing(text: str, at: int) -> int:
    """Index after the parenthesis that closes the one at `at`."""
    depth = 0
    for index in range(at, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index + 1
    return len(text)


def read(path: str, text: str) -> Job:
    """
    A file as commands and directives; never raises.

    >>> read("x.sh", "export A=1; FOO=$A python train.py &").commands[-1].prefix
    {'FOO': '1'}
    """
    job = Job(path, text)
    for number, line in enumerate(text.splitlines(), 1):
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
    parts = re.split(r"\s+#", text)[0].split()
    while parts:
        word = parts.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            continue
        if not equals and parts and not parts[0].startswith("-"):
            value = parts.pop(0)
        yield name, value.strip("\"'")


def _commands(found: Iterator[Word | Comment], variables: dict[str, str]) -> Iterator[Command]:
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
    rest = [w for at, w in enumerate(given) if not (at == 0 and w.raw in KEYWORDS)]
    prefix: dict[str, str] = {}
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0].raw)):
        prefix[match[1]] = _plain(match[2], rest.pop(0).line, {**variables, **prefix})
    command = Command(
        rest,
        given[0].line,
        prefix,
        dict(variables),
        comments,
        operator,
    )
    if not rest:
        variables.update(prefix)
        command.words = given if prefix else []
        command.prefix = {}
    elif rest[0].raw in ("export", "declare", "readonly", "local"):
        for word in rest[1:]:
            match = _ASSIGNMENT.fullmatch(word.raw)
            if match:
                variables[match[1]] = _plain(match[2], word.line, variables)
        command.variables = dict(variables)
    return command


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
            quote = word.raw[0] if word.raw[:1] in ("'", '"') else ""
            for inner in _commands(
                words(word.raw[1:-1] if quote else word.raw, word.line), {**command.variables}
            ):
                inner.quoted, inner.around = inner.quoted or quote, inner.around or command
                inner.variables = {**command.variables, **command.prefix, **inner.variables}
                yield inner
