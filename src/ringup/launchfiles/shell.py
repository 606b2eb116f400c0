"""
A shell or job file as the commands that it runs, each with its words.  Nothing is executed.

tree-sitter-bash parses; this walks its tree in the shell's order and follows variables through assignments,
arrays, functions, sourced files, `bash -c`, ssh and here-documents.  A value that only the run knows stays in
the words as a mark (`marks`).

    job = read("job.sh", text)
    [command.texts for command in job.commands]

Errors of the grammar: a blank or a backslash and newline before `$X` is inside the expansion; `--a=b` at a
command's beginning looks like an assignment; a redirect can swallow the words after it; a comment after
`X=a-$Y.b` cuts the value.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from ringup.launchfiles import arithmetic, marks
from ringup.launchfiles.directives import Directive, directives_of, node_count
from ringup.launchfiles.expansion import (
    MOST_DEPTH,
    MOST_NESTED,
    MOST_NODES,
    MOST_VALUE,
    VARIABLES_A_NODE,
    Expansion,
    Node,
    Scope,
    Value,
    first,
    is_of_rank,
    parser,
)
from ringup.launchfiles.marks import BREAK, EMPTY, Marks, has_mark, is_mark
from ringup.launchfiles.passing import DOCKER, passed_on
from ringup.launchfiles.start import CommandLine, Step, take_apart
from ringup.launchfiles.substitution import substituted, with_slots
from ringup.model import CONTAINERS

MOST_COMMANDS, MOST_ALTERNATIVES = 5_000, 3
_COUNTED = re.compile(
    r"([A-Za-z_]\w{0,60}) {0,4}= {0,4}(\d{1,9}) {0,4}; {0,4}\1 {0,4}(<=?) {0,4}([^;]{1,200});"
)
_COUNTED_UP = re.compile(
    r"(?<![-\w$])(?:\+\+|--)?([A-Za-z_]\w{0,60})(?: {0,4}(?:\+\+|--|\+=)| ?= ?[^\n;&|]{0,60}?[$({ ]\1\b)"
    r"|\+\+([A-Za-z_]\w{0,60})"
)
"""A variable that a loop's body counts up or down."""
_READS_INPUT = re.compile(r"(?:/\S*/)?(?:ba|z|k|da)?sh(?: +-[ls-]+)*")
_ASKS_FOR_DEFAULT = re.compile(r"\s-[zn]\s|\+x\}|:-\}|\$#")
_ENDS_ON_ERROR = re.compile(r"#!.{0,99}sh .{0,99}-\w{0,9}e")
_LAST_OF_PIPE = re.compile(r"shopt -s lastpipe|\A#!.{0,99}\b[zk]sh")
"""A pipe's last command runs in the shell itself if this is set."""
OWN_FOLDER = re.compile(r"dirname[^|;]{0,60}(?:\$\{?0|BASH_SOURCE)")
_HERE = re.compile(r"PWD|\$\(pwd\)|SLURM_SUBMIT_DIR")
"""Where the file was typed, its own folder mostly."""
_READS_ARGUMENTS_IN_TURN = re.compile(r"\bgetopts?\b|\b(?:while|until|for)\b[^\n]{0,80}\$[\[({\"]{0,3}[#@*1]")
"""Options of a script that a loop reads: their effects are unknown."""
_POSITIONAL = re.compile(r"\$(?:[1-9@*]|\{[1-9@*])")
_TAKES_FILE = re.compile(r"\bkubectl .{0,200}-f ?-|> ?\S{1,200}\.(?:sh|slurm|sbatch|ya?ml)\b")
_SPEAKING = re.compile("chmod|cat|cp|mv|rm|ls|scp|rsync|vim?|wget|curl|git|test|sed|grep|dos2unix")
"""Programs that work on a script but do not run it."""
_STARTS_A_JOB = re.compile(r"\b(?:sbatch|qsub|bsub|torchrun|accelerate|deepspeed)\b")
_ASKS_WHICH_TASK = re.compile(r"(?i)PROCID|NODEID|LOCALID|RANK|hostname")
_TESTS_WHICH_TASK = re.compile(
    r"(?:\[\[?|\(\(|test) (?! {0,4}-[nz])[^\n;&|]{0,200}?(?i:PROCID|NODEID|LOCALID|RANK|hostname)"
)
_TESTS_VALUE = re.compile(
    r"(?:el)?if (?:\[\[?|\(\() {0,2}[\"']?\$?\{?(\w{1,40})\}?[\"']? {0,2}(==?|!=|<=?|>=?|-eq|-ne|-[lg][te])"
    r" {0,2}[\"']?([\w.:*/-]{1,60})[\"']? {0,2}(?:\]\]?|\)\))[; \n]{1,9}then"
)
"""One comparison of a variable with a written value."""
_VARIABLE = re.compile(r"\"?\$\{?(\w{1,40})\}?\"?")
_COMPARED = {"<": "-lt", "<=": "-le", ">": "-gt", ">=": "-ge"}
_SETS = re.compile(r"\b([A-Za-z_]\w{0,40})(?:\+?=|\+\+|--)|\b(?:read|for|getopts) ([^\n]{0,99})")
_NAMES = re.compile(r"[A-Za-z_]\w{0,40}")
_LITERAL = re.compile(
    r"(?m)^[ \t]{0,99}(?:export |local )?([A-Za-z_]\w{0,40})=[\"']?([\w.:/-]{0,60})[\"']?[ \t]{0,9}(?=$|#|;)"
)
_ORDERS = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
_CHANGE = re.compile(
    r"(?P<first>\+\+|--)(?P<before>[A-Za-z_]\w{0,60})"
    r"|(?P<name>[A-Za-z_]\w{0,60}) ?(?P<sign>\+\+|--|[-+]?=) ?(?P<by>\d{0,9})"
)
_PLACEHOLDER = re.compile(rb"(?<![<\d&#])<[A-Za-z](?:[^<>\"'`|&;$\n]{0,100}[\w.)])?>")
_AT_THE_END = re.compile(
    rb"(?m)"
    + _PLACEHOLDER.pattern
    + rb"(?:[ \t]{0,9}\([^()\n]{0,99}\))?(?=[ \t]{0,9}(?:\\[ \t]{1,9})?$|[ \t]{1,99}#)"
)
"""A placeholder at a line's end, or before a comment, with a remark in parentheses."""
_OF_TEMPLATE = re.compile(rb"(?<![$\w{])\{\{-? ?[A-Za-z_][\w.]{0,60}(?: ?\| ?[\w.]{1,40}){0,3} ?-?\}\}")
"""A value that a template is filled with: `{{ nodes }}`."""
_BACKTICKS = re.compile(rb"(?<=[\w/.,:=-])`([^`\\\n'\"#]{1,200})`")
"""A command whose output goes on a word, at which the grammar begins a new one."""
_CONTINUED = re.compile(rb"(?m)^([^#\n]{0,999}[\w,:=/.}])((?:\\\n[^\s\\;|&()<>#'\"`]{1,200}){1,99})")
"""A word that goes on at the beginning of the next lines: the grammar ends it at the backslash."""
_PART_OF_ARGUMENTS = re.compile(rb"\$\{[@*]:[^{}\n]{0,99}\$[^{}\n]{0,99}\}")
"""`${@:$i:1}`, at which the grammar gives up the file."""
MOST_PLACEHOLDERS = 100
PASTED = ("-", ".md", ".mdx", ".rst", ".txt")
"""Ends of the names of texts that may be a page with a file in it: its first line is unknown."""
_PROMPT = re.compile(
    rb"(?m)^[ \t]{0,9}(?:[(\[][^\n$#>()\[\]]{1,60}[)\]] ?){0,2}"
    rb"(?:(?:[\w.-]{1,40}@[\w.-]{1,60}[^\n$#>]{0,80})?\$|[\w.-]{1,40}@[\w.-]{1,60}:[^\s$#>]{0,80}#) (?=\S)"
)
"""A shell's prompt in a pasted session: `$ `, `(env) me@host:~$ `, `[me@host ~]$ `."""
_SECOND_PROMPT = re.compile(rb"(?<=\\\n)> ?")
_TEXT = ("string", "raw_string", "heredoc_body", "comment", "ansi_c_string", "expansion")
_PLAIN = ("program", "do_group", "compound_statement", "subshell")
"""Places where `set -e` checks a command: not in a condition, not in front of && or ||."""
Bodies = Sequence[Sequence[Node]]


@dataclass(frozen=True)
class Word:
    text: str
    """Expanded; unknown values as marks."""
    line: int
    raw: str
    """As in the file."""


@dataclass
class Command:
    words: tuple[Word, ...]
    start: CommandLine
    line: int
    env: dict[str, str]
    """Exported variables and those in front of it."""
    variables: dict[str, Value]
    """All variables that the file has set before it."""
    site: str = "batch"
    around: tuple[Step, ...] = ()
    """The commands that run its text: srun, ssh, ..."""
    background: bool = False
    detached: bool = False
    """Whether it, or a command around it, runs in the background."""
    withheld: Mapping[str, str] = field(default_factory=dict)
    """A variable set outside its shell -> the reason why it is missing: a program, or a missing `export`."""
    branches: tuple[tuple[int, int], ...] = ()
    """(line, number) of each `if` or `case` branch that it is in."""
    is_of_some: bool = False
    """Whether a branch around it selects some tasks: not all of them run it."""
    loop: str | None = None
    """The list of the loop around it; None without a loop."""
    reads_input: bool = False
    """Whether it shares the input of a loop `while read ...`."""
    cut_at: int = 0
    """The line of a comment that cuts it, 0 for none."""
    is_nested: bool = False
    last_line: int = 0

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    @property
    def steps(self) -> tuple[Step, ...]:
        return (*self.around, *self.start.steps)


class Count(NamedTuple):
    """A variable that has another number in each round of a loop."""

    first: int
    line: int
    """The line that counts it up; 0 for the loop's own list."""


@dataclass
class Job:
    path: str
    text: str
    marks: Marks
    directives: list[Directive] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    assigned: list[Word] = field(default_factory=list)
    """`NAME=VALUE` of every assignment in the file itself, also those in front of a command or behind env."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that it writes with here-documents."""
    written: set[str] = field(default_factory=set)
    """Files into which its commands write, with any content."""
    written_below: dict[str, int] = field(default_factory=dict)
    """The line above each of these texts in the file."""
    unread: list[tuple[str, int]] = field(default_factory=list)
    """Here-documents that are files of their own, or that kubectl gets, and the lines above them."""
    placeholders: list[tuple[int, str, bool]] = field(default_factory=list)
    """Line and text of `<value>`, and whether the shell stops there: at a line's end `>` has no file."""
    sources: list[str] = field(default_factory=list)
    """Files that it sources and that are missing here."""
    submitted: list[Directive] = field(default_factory=list)
    """Here-documents that it passes to sbatch, qsub or bsub."""
    lost: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Variables that only a subshell sets (of a pipe, for example) -> its first and last line."""
    ruled_out: list[tuple[int, int]] = field(default_factory=list)
    """First and last lines of branches with a start that the file's own values leave out."""
    counted: dict[str, Count | None] = field(default_factory=dict)
    """The mark of a loop's variable -> its counter; None for several."""
    ends: list[Word] = field(default_factory=list)
    """`((i++))` of a zero under `set -e`."""
    first_line: int = 0
    """Of the first command; 0 for none."""
    late: set[int] = field(default_factory=set)
    """Lines of directives after the first command."""
    documents: list[Any] = field(default_factory=list)
    """Of a manifest, as nodes with line numbers."""
    is_cut: bool = False
    """Too large or too deep to be read completely."""


Sibling = Callable[[str], str | None]
"""The text of a file that the current one names; None if it is missing."""


def read(path: str, text: str, sibling: Sibling = lambda _: None) -> Job:
    """The commands of a file; never raises."""
    text = marks.without_marks(text)
    job = Job(path, text, Marks(), directives_of(text))
    _Walk(job, sibling).text(text, Scope(ends_on_error=bool(_ENDS_ON_ERROR.match(text))))
    return job


def command_of(words: Sequence[str], line: int, env: dict[str, str], job: Job, **more: Any) -> Command:
    """A command whose words are already known: a list in a manifest."""
    made = tuple(Word(word, line, word) for word in words)
    return Command(made, take_apart(words), line, env, dict(env), **more)


def read_into(job: Job, text: str, line: int, env: dict[str, str], sibling: Sibling) -> None:
    """Add the commands of a text inside another file, a manifest."""
    _Walk(job, sibling).text(text, Scope(dict(env), set(env), site="task", line_offset=line))


def _blank(match: re.Match[bytes]) -> bytes:
    return b" " * len(match[0])


def _as_a_word(match: re.Match[bytes]) -> bytes:
    """A placeholder as one word of the same length: the grammar would take the next line for its file."""
    return re.sub(rb"[^\w./-]", b"_", match[0])


def _joined(match: re.Match[bytes]) -> bytes:
    """The parts of a word side by side, then its line ends: the length and the later lines stay."""
    return match[1] + match[2].replace(b"\\\n", b"") + b"\\\n" * match[2].count(b"\n")


class _Walk(Expansion):
    def __init__(self, job: Job, sibling: Sibling) -> None:
        super().__init__(job.marks, job.directives)
        self.job, self.sibling = job, sibling
        self.keeps_last = bool(_LAST_OF_PIPE.search(job.text))
        self.into = ""
        """The file that gets the output of the loop around a command."""
        self.whole = b""
        """The file's own text."""
        self.alternatives: dict[str, list[tuple[str, ...]]] = {}
        """A mark -> the words that the branches of an `if` or `case` gave the variable."""

    # -- structure ---------------------------------------------------------------------------------

    def text(self, text: str, scope: Scope) -> None:
        """Walk a text in a scope."""
        if self.nested >= MOST_NESTED or len(text) > 1 << 21:
            self.job.is_cut = True
            return
        given = text.encode("utf-8", "replace")
        if not self.nested and _PROMPT.search(given):
            given = _PROMPT.sub(_blank, _SECOND_PROMPT.sub(_blank, given))
        given = _OF_TEMPLATE.sub(lambda m: self.marks.make(m[0].decode(), scope.site).encode(), given)
        given = _BACKTICKS.sub(rb"$(\1)", given)
        given = _PART_OF_ARGUMENTS.sub(lambda m: b"$(:" + b" " * (len(m[0]) - 4) + b")", given)
        with self.reading(_CONTINUED.sub(_joined, _AT_THE_END.sub(_as_a_word, given))):
            self.whole = self.whole or self.source
            root = parser().parse(self.source).root_node
            self._find_placeholders(given, root, scope)
            nodes = root.children
            if self.nested == 1 and self.job.directives:
                self._directives(root)
            self.body(nodes, scope, 0)

    def _find_placeholders(self, given: bytes, root: Node, scope: Scope) -> None:
        """Remember `<value>` outside quotes, where the shell takes `<` and `>` for redirections."""
        for match in islice(_PLACEHOLDER.finditer(given), MOST_PLACEHOLDERS):
            node = root.descendant_for_byte_range(match.start(), match.end() - 1)
            while node is not None and node.type not in _TEXT:
                node = node.parent
            if node is None:
                line = given.count(b"\n", 0, match.start()) + 1 + scope.line_offset
                stops = _AT_THE_END.match(given, match.start()) is not None
                self.job.placeholders.append((line, match[0].decode("utf-8", "replace"), stops))

    def _directives(self, root: Node) -> None:
        """The directives that the scheduler reads: those before the first command."""
        begin = next((n.start_point[0] + 1 for n in root.children if n.type != "comment"), 0)
        places = (
            (d.line, (d.line - 1, 0), (d.line - 1, 1)) for d in self.job.directives if d.line > begin > 0
        )
        shown = ((line, root.descendant_for_point_range(at, to)) for line, at, to in places)
        self.job.first_line = begin
        self.job.late = {line for line, node in shown if node is not None and node.type == "comment"}

    def body(self, nodes: Sequence[Node], scope: Scope, depth: int) -> None:
        for at, node in enumerate(nodes):
            if scope.has_ended:
                return
            follows = nodes[at + 1] if at + 1 < len(nodes) else None
            was = scope.background, scope.detached
            scope.background = follows is not None and follows.type == "&"
            scope.detached = scope.detached or scope.background
            self.statement(node, scope, depth + 1)
            scope.background, scope.detached = was

    def statement(self, node: Node, scope: Scope, depth: int) -> None:
        self.nodes += 1
        if depth > MOST_DEPTH or self.nodes > MOST_NODES or len(self.job.commands) > MOST_COMMANDS:
            self.job.is_cut = True
            return
        kind = node.type
        handler = getattr(self, f"_{kind}", None)
        if handler is not None:
            handler(node, scope, depth)
        elif kind == "list" and (chosen := _assigned_by_test(node)):
            self.branch(node, [[one] for one in chosen], scope, depth, len(chosen) > 1)
        elif kind == "list":  # a command after && or || may not run
            was = scope.has_ended, scope.ends_on_error, scope.is_of_some
            asks_task = scope.site == "task" and bool(_TESTS_WHICH_TASK.match(self.raw(node)))
            scope.ends_on_error, scope.is_of_some = False, scope.is_of_some or asks_task
            self.body(node.children, scope, depth)
            ends_some = asks_task and scope.has_ended
            scope.has_ended, scope.ends_on_error, scope.is_of_some = was
            scope.is_of_some |= ends_some
        elif kind == "compound_statement" and node.children and node.children[0].type == "((":
            self._arithmetic(self.raw(node)[2:-2], node, scope)
        elif kind in ("compound_statement", "do_group", "negated_command", "ERROR", "program"):
            self.body(node.children, scope, depth)
        elif kind == "subshell":
            inner = self.copied(scope)
            self.body(node.children, inner, depth)
            self._lose(inner, scope, node)
        elif kind == "pipeline":
            self._pipeline_of(node, scope, depth)

    def _pipeline_of(self, node: Node, scope: Scope, depth: int) -> None:
        if (parts := node.named_children) and parts[-1].type == "while_statement" and len(parts) > 1:
            listed = substituted(self._stages(parts[:-1], scope), scope.site, self.marks)
            inner = replace(self.copied(scope), loop=listed)
            self.body(parts[-1:], inner, depth)
            self._lose(inner, scope, node)
            return
        for part in parts:
            inner = scope if self.keeps_last and part == parts[-1] else self.copied(scope)
            self.statement(part, inner, depth + 1)
            self._lose(inner, scope, part)

    def _lose(self, inner: Scope, scope: Scope, node: Node) -> None:
        """Remember variables that only a subshell sets."""
        line = self.line(node, scope)
        for name in inner.variables.keys() - scope.variables.keys():
            self.job.lost.setdefault(name, (line, line + node.end_point[0] - node.start_point[0]))

    def _arithmetic(self, text: str, node: Node, scope: Scope) -> None:
        """`((i++))` and `let i++`: whether they end the script under `set -e`, and the next value."""
        match = _CHANGE.fullmatch(text.strip().strip("\"'"))
        if match is None:
            return
        name = match["name"] or match["before"]
        begun = self.job.counted.get(first(scope.variables.get(name, "")))
        line = self.line(node, scope)
        sign, by = match["sign"] or match["first"], match["by"] or "1"
        now = str(begun.first) if begun and begun.line == line else first(scope.variables.get(name, ""))
        now = "0" if sign == "=" else now
        if not now.isdecimal() or not by.isdecimal() or len(now + by) > 9:
            return
        new = int(by) if sign == "=" else int(now) + (-1 if sign[0] == "-" else 1) * int(by)
        is_zero = (int(now) if match["sign"] in ("++", "--") else new) == 0
        kind = node.parent.type if node.parent is not None else ""
        if is_zero and scope.ends_on_error and kind in _PLAIN and not scope.branches:
            self.job.ends.append(Word(self.raw(node), line, self.raw(node)))
        if not begun:
            scope.variables[name] = str(new)

    def _redirected_statement(self, node: Node, scope: Scope, depth: int) -> None:
        body = node.child_by_field_name("body")
        redirects = [child for child in node.children if child != body]
        extra: list[Word] = []
        into, document = "", None
        if any(c.type == "ERROR" and self.raw(c) == "&" for one in redirects for c in one.children):
            scope.background = scope.detached = True  # `<<EOF &`; restored by `body`
        for one in redirects:
            names = [c for c in one.named_children if c.type not in ("file_descriptor", "heredoc_start")]
            if one.type == "file_redirect" and names:
                signs = {child.type for child in one.children}
                if not signs.isdisjoint((">", ">>", "&>", ">|")):
                    into = into or "".join(self.words_of(names[0], scope)[:1])
                    self.job.files.pop("" if ">>" in signs else into, None)
                # Words after a redirect are the command's.
                for name in names[1:]:
                    extra += self._words([name], scope)
            elif one.type == "heredoc_redirect":
                document, more, target = self._document(one, scope)
                extra += more
                into = into or target
                between = self.source[body.end_byte : one.start_byte] if body is not None else b""
                if between.strip(b" \t\n\\") == b"-" and _STARTS_A_JOB.search(self.raw(body)):
                    extra.append(Word("-", self.line(one, scope), "-"))  # the grammar drops it
                first_line = self.raw(node).partition("\n")[0]
                if document and not has_mark(document[0]) and _TAKES_FILE.search(first_line):
                    self.job.unread.append(document)
                self._behind_document(one, scope, depth)
        self.job.written.add(into)
        if body is None:
            return
        if into and not document and body.type in ("command", "pipeline"):
            made = substituted(self._stages([body], scope), scope.site, self.marks)
            mark = next(iter(self.marks.all_of(made)), None)
            if mark and mark.name == marks.NODES:  # `scontrol show hostnames > FILE`
                self.job.files[into] = f"{made}\n"
        if body.type == "command":
            self._run(body, scope, depth, extra, document, into)
        else:
            was, self.into = self.into, into
            self.statement(body, scope, depth + 1)
            self.into = was

    def _append(self, into: str, words: Sequence[str], scope: Scope) -> None:
        """Remember a line of a host file, which a loop writes once for each node in its list."""
        before = self.job.files.get(into, "")
        if scope.branches:  # perhaps
            self.job.files.pop(into, None)
        if scope.branches or len(before) > MOST_VALUE:
            return
        texts = [word for word in words[1:] if not re.fullmatch("-[neE]+", word)]
        if words[0] == "printf" and texts:
            values = iter(texts[1:])
            texts = [re.sub(r"%[sd]", lambda _: next(values, ""), texts[0]).replace("\\n", "\n").rstrip("\n")]
        line, listed = " ".join(texts), (scope.loop or "").split()
        held = next((m for m in self.marks.all_of(line) if m.site == "loop"), None)
        is_known = 0 < len(listed) <= 2000 and not any(
            has_mark(one) and not self._is_list(one) for one in listed
        )
        if held and is_known and len(line) < 300:  # as those of a host file
            sign = self.marks.make(*held)
            line = "\n".join(line.replace(sign, one) for one in listed)
        self.job.files[into] = f"{before}{line}\n"

    def _behind_document(self, node: Node, scope: Scope, depth: int) -> None:
        for child in node.named_children:
            if child.type in ("pipeline", "list", "command"):
                self.statement(child, scope, depth + 1)

    def _document(self, node: Node, scope: Scope) -> tuple[tuple[str, int] | None, list[Word], str]:
        """(text, its line) of a here-document, the words after its `<<`, and its target file."""
        body, is_quoted, target = None, False, ""
        extra: list[Word] = []
        for child in node.named_children:
            if child.type == "heredoc_start":
                is_quoted = self.raw(child)[:1] in "'\"\\"
            elif child.type == "heredoc_body":
                body = child
            elif child.type == "file_redirect" and child.named_children:
                target = "".join(self.words_of(child.named_children[-1], scope)[:1])
            elif child.type in ("word", "string", "raw_string", "simple_expansion", "concatenation"):
                extra += self._words([child], scope)
        if body is None:
            return None, extra, target
        text = self.raw(body) if is_quoted else self._spliced(body, scope)
        return (text, body.start_point[0] + scope.line_offset), extra, target

    def _spliced(self, node: Node, scope: Scope) -> str:
        """A node's text with the expansions in it replaced."""
        parts, at = [], node.start_byte
        for child in node.named_children:
            if child.type.endswith(("expansion", "substitution")):
                parts.append(self.source[at : child.start_byte].decode("utf-8", "replace"))
                parts.append(self.value(child, scope, 0, True).replace(BREAK, " ").replace(EMPTY, ""))
                at = child.end_byte
        parts.append(self.source[at : node.end_byte].decode("utf-8", "replace"))
        # The grammar leaves `$@` in a here-document as it is.
        given = " ".join(_listed(self.lookup("@", scope)))
        text = re.sub(r"(?<!\\)\$[@*]", lambda _: given, "".join(parts))
        return re.sub(r"\\([$`\\])", r"\1", text)

    def _if_statement(self, node: Node, scope: Scope, depth: int) -> None:
        bodies: list[list[Node]] = [[]]
        holds = [self._holds(node, scope)]
        condition: list[Node] = []
        seen_then = False
        for child in node.children:
            if child.type == "then":
                seen_then = True
                self._condition(condition, scope, depth)
            elif not seen_then:
                condition.append(child)
            elif child.type in ("elif_clause", "else_clause"):
                bodies.append(child.named_children)
                holds.append(child.type == "else_clause" or self._holds(child, scope))
            else:
                bodies[-1].append(child)
        last = holds.index(True) if True in holds else len(holds)
        taken = [body for n, body in enumerate(bodies) if holds[n] is not False and n <= last]
        self.branch(node, taken, scope, depth, True in holds)
        self._rule_out([body for body in bodies if body not in taken], scope)

    def _rule_out(self, bodies: Bodies, scope: Scope) -> None:
        """Remember the branches with a start that a known value leaves out."""
        for body in bodies:
            texts = [text for one in body if not (text := self.raw(one)).startswith("echo ")]
            if any(map(_STARTS_A_JOB.search, texts)):
                end = body[-1].end_point[0] - body[0].start_point[0]
                self.job.ruled_out.append((line := self.line(body[0], scope), line + end))

    def _holds(self, clause: Node, scope: Scope) -> bool | None:
        """Whether an `if` or `elif` that tests a known value applies; None if unknown."""
        begin = self.source[clause.start_byte : clause.start_byte + 300]
        match = _TESTS_VALUE.match(begin.decode("utf-8", "replace"))
        value = self._fixed(match[1], scope) if match else None
        if match is None or value is None:
            return None
        sign, wanted = _COMPARED.get(match[2], match[2]), match[3]
        if sign[0] != "-":
            return fnmatchcase(value, wanted) == (sign != "!=")
        if not (value.isdecimal() and wanted.isdecimal()):
            return None
        order = (int(value) > int(wanted)) - (int(value) < int(wanted))
        return order in _ORDERS[sign]

    def _fixed(self, name: str, scope: Scope) -> str | None:
        """A variable's value if nothing outside the file changes it; None if that is unknown."""
        value = first(self.lookup(name, scope))
        mark = self.marks.of(value)
        if mark and mark.name in marks.COUNT_NAMES:
            return str(node_count(self.job.directives)[0] or "") or None
        if has_mark(value):
            return None
        is_own = self._literals.get(name) == value and not self.job.sources
        return value if is_own or value in (scope.arguments or ()) else None

    @cached_property
    def _literals(self) -> dict[str, str]:
        """Variables that the file sets once, to a written value."""
        sets = [(m[1], m[2]) for m in _SETS.finditer(self.job.text)]
        counts = Counter(name for one, more in sets for name in (one or "", *_NAMES.findall(more or "")))
        return {name: value for name, value in _LITERAL.findall(self.job.text) if counts[name] == 1}

    def _condition(self, nodes: Sequence[Node], scope: Scope, depth: int) -> None:
        """The commands between `if` and `then`, `while` and `do`: their failure does not end the script."""
        was, scope.ends_on_error = scope.ends_on_error, False
        self.body(nodes, scope, depth)
        scope.ends_on_error = was

    def _case_statement(self, node: Node, scope: Scope, depth: int) -> None:
        items = [child for child in node.named_children if child.type == "case_item"]
        values = [item.children_by_field_name("value") for item in items]
        bodies = [
            [c for c in item.children if c.id not in {v.id for v in listed}]
            for item, listed in zip(items, values, strict=True)
        ]
        subject = _VARIABLE.fullmatch(self.raw(node.child_by_field_name("value") or node))
        known = self._fixed(subject[1], scope) if subject else None
        fits = [any(fnmatchcase(known or "", self.raw(v).strip("'\"")) for v in listed) for listed in values]
        if known is not None and True in fits:
            taken = bodies[fits.index(True)]
            self.branch(node, [taken], scope, depth, True)
            self._rule_out([body for body in bodies if body is not taken], scope)
            return
        self.branch(node, bodies, scope, depth, any(self.raw(i).lstrip().startswith("*") for i in items))

    def branch(self, node: Node, bodies: Bodies, scope: Scope, depth: int, has_else: bool) -> None:
        """Each branch on a copy; afterwards values that differ between them are unknown."""
        line = self.line(node, scope)
        is_default = node.type in ("if_statement", "list") and bool(
            _ASKS_FOR_DEFAULT.search(self.raw(node)[:200])
        )
        asks_task = scope.site == "task" and bool(_ASKS_WHICH_TASK.search(self.raw(node).partition("\n")[0]))
        ends = []
        for number, body in enumerate(bodies):
            inner = replace(self.copied(scope), branches=(*scope.branches, (line, number)))
            inner.is_of_some = scope.is_of_some or asks_task
            self.body(body, inner, depth)
            if not inner.has_ended:
                ends.append(inner)
        scope.is_of_some |= asks_task and not is_default and len(ends) < len(bodies)
        scope.has_ended |= has_else and not ends
        for inner in ends:
            scope.exported |= inner.exported
            scope.functions.update(inner.functions)
        names = {n for inner in ends for n, v in inner.variables.items() if scope.variables.get(n) != v}
        is_sure = has_else and len(ends) == len(bodies)
        for name in names:
            values = {inner.variables.get(name) for inner in ends if name in inner.variables}
            before = scope.variables.get(name)
            gives_way = before is None or is_sure or (is_default and has_mark(first(before)))
            if len(values) == 1 and gives_way:
                scope.variables[name] = next(iter(values)) or ""
            elif before is None or is_sure or is_of_rank(name):
                made = self.unknown(name, scope)
                scope.variables[name] = made
                self.alternatives[made] = sorted({_split_value(v) for v in values if v})[:MOST_ALTERNATIVES]

    def _for_statement(self, node: Node, scope: Scope, depth: int) -> None:
        children = node.named_children
        name = self.raw(children[0]) if children else "i"
        listed = [c for c in children[1:] if c.type not in ("do_group", "compound_statement")]
        shown = " ".join(word for child in listed for word in self.words_of(child, scope))
        self._loop(node, scope, depth, {name: self.marks.make(name, "loop")}, shown)

    def _c_style_for_statement(self, node: Node, scope: Scope, depth: int) -> None:
        match = _COUNTED.search(self.raw(node).split("do", 1)[0])
        name = match[1] if match else "i"
        shown = ""
        if match:
            end = arithmetic.computed(match[4], lambda n: self.counted(n, scope))
            if end.lstrip("-").isdecimal():
                shown = " ".join(map(str, range(int(match[2]), min(int(end) + (match[3] == "<="), 10_000))))
            else:
                shown = end if is_mark(end) else self.unknown("(count)", scope)
        self._loop(node, scope, depth, {name: self.marks.make(name, "loop")}, shown)

    def _while_statement(self, node: Node, scope: Scope, depth: int) -> None:
        head = self.raw(node).split("do", 1)[0]
        names = re.findall(r"[A-Za-z_]\w*", head.partition("read")[2])
        variables = {n: self.marks.make(n, "loop") for n in names[:20] if n != "r"}
        before = scope.reads_input
        self._condition([c for c in node.children if c.type != "do_group"], self.copied(scope), depth)
        scope.reads_input = "read" in head.split() and "-u" not in head and "<&" not in head
        self._loop(node, scope, depth, variables, scope.loop or "")
        scope.reads_input = before

    def _loop(self, node: Node, scope: Scope, depth: int, names: dict[str, str], shown: str) -> None:
        is_inside = bool(scope.around) and scope.loop is not None  # the starter's own loop counts
        inner = replace(self.copied(scope), loop=scope.loop if is_inside else shown)
        inner.variables |= names
        # Variables that the body counts up have another value in each round.
        raw, at, line = self.raw(node), 0, self.line(node, scope)
        for found in _COUNTED_UP.finditer(raw):
            line, at = line + raw.count("\n", at, found.start()), found.start()
            name = found[1] or found[2]
            begin = first(scope.variables.get(name, ""))
            if begin.isdecimal() and not is_mark(first(inner.variables[name])):
                inner.variables[name] = mark = self.marks.make(name, "loop")
                self._count(mark, begin, line)
        for mark in names.values():
            self._count(mark, shown.split(" ", 1)[0], 0)
        self.body([c for c in node.children if c.type in ("do_group", "compound_statement")], inner, depth)
        scope.functions.update(inner.functions)
        scope.exported |= inner.exported
        for name, value in inner.variables.items():
            seen = scope.variables.get(name)
            if seen != value and name not in names:
                is_known = seen is None and isinstance(value, str)
                scope.variables[name] = value if is_known else self.unknown(name, scope)

    def _count(self, mark: Value, begin: str, line: int) -> None:
        made = Count(int(begin), line) if begin.isascii() and begin.isdecimal() and len(begin) < 8 else None
        same = self.job.counted.setdefault(first(mark), made) == made
        self.job.counted[first(mark)] = made if same else None

    _until_statement = _while_statement

    def _function_definition(self, node: Node, scope: Scope, depth: int) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            scope.functions[self.raw(name)] = (body, self.source, scope.line_offset)

    # -- variables ---------------------------------------------------------------------------------

    def _variable_assignment(
        self, node: Node, scope: Scope, depth: int, exported: bool = False
    ) -> Word | None:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None:
            return None
        raw = self.raw(node)
        name, _, index = self.raw(name_node).partition("[")
        if name.startswith("-"):
            self._lost(node, scope)
            return None
        appends = any(c.type == "+=" for c in node.children)
        value: Value
        if value_node is None:
            value = ""
        elif value_node.type == "array":
            items = [c for c in value_node.named_children if c.type != "comment"]
            value = tuple(w for c in items for w in self._element_of(c, scope))
        else:
            value = self.value(value_node, scope, 0, True).replace(BREAK, " ").replace(EMPTY, "")[:MOST_VALUE]
        if value_node is not None and _STARTS_A_JOB.search(self.raw(value_node)):
            self._answered(value_node, scope, depth)
        known = scope.variables.get(name, () if index else "")
        if index:
            value = (*_listed(known), first(value))
        elif appends and isinstance(known, str) and isinstance(value, str):
            value = (known + value)[:MOST_VALUE]
        elif appends:
            value = (*(_listed(known) if known else ()), *_listed(value))[:2000]
        scope.variables[name] = value
        if exported or scope.exports_all:
            scope.exported.add(name)
        made = Word(f"{name}={first(value)}", self.line(node, scope), raw)
        if self.nested < 2:
            self.job.assigned.append(made)
        return made

    def _answered(self, node: Node, scope: Scope, depth: int) -> None:
        """Walk the commands whose output a variable gets: `id=$(sbatch --parsable job.sh)`."""
        for child in node.named_children if node.type == "string" else (node,):
            if child.type == "command_substitution":
                self.body(child.named_children, self.copied(scope), depth + 1)

    def _element_of(self, node: Node, scope: Scope) -> list[str]:
        """The elements that a word gives an array; a list in double quotes is one of them."""
        words = self.words_of(node, scope)
        is_one = node.type == "string" and len(words) == 1 and self._is_list(words[0])
        return [self.marks.make(marks.NAMES, scope.site)] if is_one and "[@]" not in self.raw(node) else words

    def _variable_assignments(self, node: Node, scope: Scope, depth: int) -> None:
        for child in node.named_children:
            self.statement(child, scope, depth + 1)

    def _lost(self, node: Node, scope: Scope) -> None:
        """`--nnodes=2` at the place of a command."""
        raw = self.raw(node)
        self._record((Word(raw, self.line(node, scope), raw),), scope, node, {})

    def _declaration_command(self, node: Node, scope: Scope, depth: int) -> None:
        keyword = node.children[0].type if node.children else ""
        words = [Word(keyword, self.line(node, scope), keyword)]
        flags = [self.raw(c) for c in node.named_children if self.raw(c).startswith("-")]
        exports = keyword == "export" or any("x" in f for f in flags)
        for child in node.named_children:
            if child.type == "variable_assignment":
                made = self._variable_assignment(child, scope, depth, exports)
                if made is not None:
                    words.append(made)
            elif _is_cut_value(words[-1].raw) and child.prev_sibling.end_byte == child.start_byte:
                # The grammar cuts `A=$B/$C/$D` in two.
                name, _, value = (words[-1].raw + self.raw(child)).partition("=")
                scope.variables[name] = self._text_of(value, scope)
                words[-1] = Word(f"{name}={first(scope.variables[name])}", words[-1].line, words[-1].raw)
            else:
                raw = self.raw(child)
                words.append(Word(raw, self.line(child, scope), raw))
                if child.type == "variable_name" and exports:
                    scope.exported.add(raw)
        self._record(tuple(words), scope, node, {})

    def _unset_command(self, node: Node, scope: Scope, depth: int) -> None:
        for child in node.named_children:
            scope.variables.pop(self.raw(child), None)

    # -- commands ----------------------------------------------------------------------------------

    def _command(self, node: Node, scope: Scope, depth: int) -> None:
        self._run(node, scope, depth, [], None, "")

    def _prefix_and_words(
        self, node: Node, scope: Scope, depth: int
    ) -> tuple[dict[str, str], list[Node]] | None:
        """The variables in front of a command, and its words; None for anything else."""
        prefix: dict[str, str] = {}
        given: list[Node] = []
        own_lines = self._on_own_lines(node)
        for child in node.children:
            if child.id in own_lines:
                self._variable_assignment(child, scope, depth)
            elif child.type == "variable_assignment":
                name = self.raw(child.children[0]).partition("[")[0]
                before = scope.variables.get(name)
                made = self._variable_assignment(child, scope, depth)
                if made is None:
                    return None
                prefix[name] = made.text.partition("=")[2]
                scope.variables.pop(name, None)
                scope.variables |= {name: before} if before is not None else {}
            elif child.is_named and child.type not in ("comment", "herestring_redirect"):
                given += child.named_children[:1] if child.type == "command_name" else [child]
        return prefix, given

    def _on_own_lines(self, node: Node) -> set[int]:
        """Assignments that the grammar joins with the command on a later line: `A=1 B=2`, then `train.sh`."""
        found, following = set(), node.end_byte
        has_ended = False
        for child in reversed(node.children):
            has_ended |= bool(re.search(rb"(?<!\\)\n", self.source[child.end_byte : following]))
            following = child.start_byte
            if child.type == "variable_assignment" and has_ended:
                found.add(child.id)
            elif child.type not in ("variable_assignment", "comment"):
                has_ended = False
        return found

    def _words(self, nodes: Iterable[Node], scope: Scope) -> list[Word]:
        found: list[Word] = []
        end = -1
        for node in nodes:
            raw, line = self.marks.as_written(self.raw(node)), self.line(node, scope)
            end, is_next = node.end_byte, node.start_byte == end
            if is_next and found and found[-1].raw.endswith("$"):  # the grammar cuts a-$B.c after the sign
                whole = found[-1].raw + raw
                found[-1] = Word(self._text_of(whole, scope), found[-1].line, whole)
                continue
            # A blank or a continued line in front of $X is inside the expansion.
            skipped = len(raw) - len(raw.lstrip(" \t\n\\"))
            line += raw[:skipped].count("\n") if node.type in ("simple_expansion", "expansion") else 0
            found += [Word(text, line, raw.lstrip(" \t\n\\") or raw) for text in self.words_of(node, scope)]
        return found

    def _run(
        self,
        node: Node,
        scope: Scope,
        depth: int,
        extra: list[Word],
        document: tuple[str, int] | None,
        into: str,
    ) -> None:
        """A simple command: recorded, or the text that it runs is walked."""
        first_two = node.children[:2]
        if [c.type for c in first_two] == ["variable_assignment", "command_name"]:
            value = first_two[0].child_by_field_name("value")
            if value is not None and first_two[0].end_byte == first_two[1].start_byte:
                # The grammar cuts `X=a-$Y.sh` in front of a comment.
                text = self.source[value.start_byte : first_two[1].end_byte].decode("utf-8", "replace")
                scope.variables[self.raw(first_two[0].children[0])] = self._text_of(text, scope)
                return
        cut_at = self._cut_at(node, scope)
        found = self._prefix_and_words(node, scope, depth)
        words = (*self._words(found[1], scope), *extra) if found else ()
        if not found or not words:
            return
        prefix = found[0]
        parent = node.parent
        around = parent if parent is not None and parent.type == "redirected_statement" else node
        held = self._chosen(words)
        for given in self.alternatives.get(held, ()):
            # A command, or its options, that an `if` chose: each of them may run.
            parts = [(w, given if w.text == held else [w.text]) for w in words]
            chosen = tuple(Word(text, w.line, w.raw) for w, texts in parts for text in texts)
            self._inside(self._record(chosen, scope, node, prefix, cut_at), scope, depth, document)
        if held:
            return
        self._builtin(words, scope, node, self.raw(around)[:1000])
        is_read = words[0].text == "read" and len(words) > 1 and words[-2].text == ""  # read -d '' NAME <<EOF
        if document is not None and is_read:
            scope.variables[words[-1].text] = document[0].replace("\\\n", " ").strip()
        if document is not None and into and words[0].text in ("cat", "tee"):
            self.job.files[into], self.job.written_below[into] = document
        elif into and words[0].text == "echo" and words[-1].text.startswith("#!"):
            self.job.files[into] = words[-1].text
        elif (target := into or self.into) and words[0].text in ("echo", "printf"):
            self._append(target, [word.text for word in words], scope)
        if document is not None and words[0].text == "tee" and len(words) > 1:
            target = words[-1].text
            self.job.files[target], self.job.written_below[target] = document
        self._inside(self._record(words, scope, node, prefix, cut_at), scope, depth, document)

    def _chosen(self, words: Sequence[Word]) -> str:
        """The word that a branch chose at the place of the command or next to it; "" for none."""
        if not any(word.text in self.alternatives for word in words):
            return ""
        rest = take_apart([word.text for word in words]).rest
        return next((t for t in (*(w.text for w in words[:2]), *rest[:1]) if t in self.alternatives), "")

    def _cut_at(self, node: Node, scope: Scope) -> int:
        """The line where a backslash and a blank come before a comment and end the command; 0: none."""
        end = self.source.find(b"\n", node.end_byte)
        text = self.source[node.start_byte : end if end >= 0 else len(self.source)].decode("utf-8", "replace")
        found = re.search(r"\\[ \t]+#", text)
        return self.line(node, scope) + text[: found.start()].count("\n") if found else 0

    def _record(
        self, words: tuple[Word, ...], scope: Scope, node: Node, prefix: dict[str, str], cut_at: int = 0
    ) -> Command:
        start = take_apart([word.text for word in words])
        # Only starters need all variables.
        is_start = bool(start.launcher or start.steps or start.text or words[0].text in scope.functions)
        self.nodes += len(scope.variables) // VARIABLES_A_NODE if is_start else 0
        offset = scope.line_offset
        env = {**scope.environment(), **prefix} if is_start else prefix
        command = Command(words, start, words[0].line, env, {}, cut_at=cut_at, branches=scope.branches)
        command.variables = {**scope.variables, **prefix} if start.launcher else {}
        command.site, command.around, command.loop = scope.site, scope.around, scope.loop
        command.reads_input, command.is_of_some = scope.reads_input, scope.is_of_some
        command.detached = scope.detached or words[0].text == "coproc"
        command.withheld = {n: by for n, by in scope.withheld.items() if n not in scope.variables}
        is_of_file = self.nested == 1 or self.source is self.whole  # a function of it
        command.background = scope.background or words[0].text == "coproc"
        command.is_nested = not is_of_file or bool(scope.around)
        command.last_line = node.end_point[0] + 1 + offset if offset >= 0 else words[-1].line
        if words[0].text == "env" and self.nested < 2:
            self.job.assigned += [w for w in words if re.match(r"[A-Za-z_]\w*=", w.raw)]
        self.job.commands.append(command)
        return command

    def _builtin(self, words: tuple[Word, ...], scope: Scope, node: Node, raw: str) -> None:
        """Commands that change this shell."""
        texts = [word.text for word in words]
        name = texts[0]
        if name == "exit":
            scope.has_ended = True
        elif name == "shift" and scope.arguments:
            scope.arguments = scope.arguments[int(texts[1]) if texts[1:2] and texts[1].isdecimal() else 1 :]
        elif name == "set":
            _set(texts[1:], scope)
        elif name == "sed" and texts[-1] in self.job.files and (added := with_slots(name, texts[1:])):
            self.job.files[texts[-1]] = re.sub(r"(?<=\S)(?=\n)", added, self.job.files[texts[-1]])
        elif name == "let" and len(texts) == 2:
            self._arithmetic(texts[1], node, scope)
        elif name == "printf" and texts[1:2] == ["-v"] and len(texts) > 3 and texts[2].isidentifier():
            is_plain = texts[3] == "%s" and len(texts) == 5
            scope.variables[texts[2]] = texts[4] if is_plain else self.unknown(texts[2], scope)
        elif name in ("read", "mapfile", "readarray"):
            is_array = name != "read" or any(re.match(r"-\w*a", text) for text in texts)
            is_list = is_array and re.search(r"hostnames|NODEFILE|LSB_(?:HOSTS|MCPU|DJOB)", raw)
            for text in texts[1:]:
                if re.fullmatch(r"[A-Za-z_]\w*", text):
                    nodes = (self.marks.make(marks.NODES, scope.site),)
                    scope.variables[text] = nodes if is_list else self.unknown(text, scope)
        elif name in (".", "source") and len(texts) > 1:
            self._source(texts[1], scope)

    def _source(self, name: str, scope: Scope) -> None:
        text = self.job.files.get(name) or self.sibling(self.own_file(name))
        if text is None:
            self.job.sources.append(name)
            return
        count = len(self.job.commands)
        at = replace(scope, line_offset=-1)
        self.text(marks.without_marks(text), at)
        # Another file's launches are judged in that file; its variables count here.
        del self.job.commands[count:]
        scope.variables, scope.exported, scope.functions = at.variables, at.exported, at.functions

    def _inside(self, command: Command, scope: Scope, depth: int, document: tuple[str, int] | None) -> None:
        """Walk the text that a command runs: a function, a text, a file written here or available."""
        start, name = command.start, command.words[0].text
        if name in scope.functions and depth < MOST_DEPTH - 10 and self.nested < MOST_NESTED:
            self._call_once(name, command, scope, depth)
            return
        if start.text is None and document is None and not (start.steps or start.rest):
            return
        if name == "sbatch" and not self.job.directives and "--wrap" in " ".join(command.texts):
            self._wrapped(command, scope)
            return
        is_away = any(step.role == "starter" for step in start.steps)
        inner = replace(
            self.copied(scope),
            around=(*scope.around, *start.steps),
            site="task" if is_away else scope.site,
            background=command.background,
        )
        inner.variables |= {**command.env, **start.env}
        inner.exported |= set(start.env) | set(command.env)
        if is_away or any(step.role == "shell" and step.program != "eval" for step in start.steps):
            self._new_shell(inner, start)
        reads_document = document is not None and _READS_INPUT.fullmatch(start.text or "")
        if start.text is not None and not reads_document:
            inner.arguments = None
            inner.line_offset, inner.at_line = self._offset(command, start.text)
            self._nested_text(start.text, inner)
            return
        shell = start.steps[-1:] and start.steps[-1].role == "shell"
        given = tuple(start.arguments if shell else start.rest[1:])
        target = start.script if shell else (start.rest or ("",))[0]
        if (
            document is not None
            and (shell or name in ("sbatch", "qsub", "bsub", "ssh"))
            and not target.endswith(".sh")
        ):
            inner.line_offset, inner.at_line = document[1], 0
            self._nested_text(document[0], inner, directives=name in ("sbatch", "qsub", "bsub"))
            return
        if name == "sbatch":
            target = next((t for t in command.texts[1:] if t in self.job.files), "")
        same = next((n for n in self.job.files if n.removeprefix("./") == target.removeprefix("./")), "")
        written = self.job.files.get(same)
        if written is not None:
            above = self.job.written_below.get(same, -1)
            inner.line_offset, inner.at_line = above, command.line if above < 0 else 0
            inner.arguments = given
            self._nested_text(written, inner, directives=name == "sbatch")
            return
        if not target.endswith((".sh", ".bash")) or _SPEAKING.fullmatch(name):
            return
        other = self.sibling(self.own_file(target))
        boxed = any(posixpath.basename(step.program) in (*DOCKER, *CONTAINERS) for step in start.steps)
        # Another file is judged separately, unless this one decides where it runs or with which arguments.
        is_open = _READS_ARGUMENTS_IN_TURN.search(other or "")
        if other is not None and (is_away or boxed or (given and not is_open and _POSITIONAL.search(other))):
            inner.line_offset, inner.at_line = -1, command.line
            inner.arguments = None if is_open else given
            self._nested_text(marks.without_marks(other), inner)

    def _call_once(self, name: str, command: Command, scope: Scope, depth: int) -> None:
        """Walk a function; if a launcher is in it, the command's words are its own: `retry srun torchrun`."""
        count = len(self.job.commands)
        self._call(name, command, scope, depth)
        if any(one.start.launcher for one in self.job.commands[count:]):
            command.start = CommandLine()

    def _wrapped(self, command: Command, scope: Scope) -> None:
        """`sbatch -N 2 --wrap='...'`: a job file in one line."""
        asked, _, rest = "\0".join(command.texts[1:]).partition("--wrap")
        text, *more = rest[1:].split("\0")
        inner = self.copied(scope)
        inner.variables, inner.exported, inner.arguments = dict(scope.environment()), set(scope.exported), ()
        inner.line_offset, inner.at_line = -1, command.line
        made = directives_of("#SBATCH " + " ".join([*asked.split("\0"), *more]))
        self.job.directives += [replace(d, line=command.line) for d in made]
        self._nested_text(text, inner)

    def own_file(self, name: str) -> str:
        """`$(dirname "$0")/env.sh` and similar as the name of a file in the same folder."""
        held = self.marks.all_of(name)
        own = re.fullmatch(r"(.)/(?:\./)?([^/].*)", name) if len(held) == 1 else None
        is_near = own and (OWN_FOLDER.search(held[0].name) or _HERE.fullmatch(held[0].name))
        return own[2] if own and is_near and is_mark(own[1]) else name

    def _new_shell(self, inner: Scope, start: CommandLine) -> None:
        """Keep only the variables that reach a newly started shell."""
        kept: dict[str, str] = {}
        exported = set(inner.exported)
        passed = {n: first(v) for n, v in inner.variables.items()}
        for step in start.steps:
            before, passed = passed, passed_on(step, passed, bool(self.job.directives))
            kept |= dict.fromkeys(before.keys() - passed.keys(), step.program)
            # apptainer sets X from APPTAINERENV_X
            exported |= passed_on(step, {n: v for n, v in before.items() if n in exported}).keys()
        kept |= dict.fromkeys(passed.keys() - exported, "export")
        inner.variables = {**{n: v for n, v in passed.items() if n in exported}, **start.env}
        inner.exported, inner.withheld = set(inner.variables), {**inner.withheld, **kept}
        inner.exports_all = inner.ends_on_error = False

    def _nested_text(self, text: str, scope: Scope, directives: bool = False) -> None:
        if directives:
            made = [replace(d, line=scope.at_line or scope.line_offset + d.line) for d in directives_of(text)]
            self.job.directives += made
            self.job.submitted += made
        scope.has_ended = False
        self.text(text, scope)

    def _offset(self, command: Command, text: str) -> tuple[int, int]:
        """The position of a command's text in the file, if the text is literally there."""
        for word in command.words:
            if word.raw[:1] in "'\"" and text.count("\n") and word.raw.count("\n") == text.count("\n"):
                return word.line - 1, 0
        return -1, command.line if "\n" in text else command.words[-1].line

    def _call(self, name: str, command: Command, scope: Scope, depth: int) -> None:
        body, source, offset = scope.functions[name]
        inner = self.copied(scope)
        inner.arguments = tuple(command.texts[1:])
        passed = [word.raw.strip('"') in ("$@", "$*", "${@}") for word in command.words[1:]]
        if any(passed) and scope.arguments is None:  # those of the file, which are unknown
            inner.variables |= {str(n + 1): command.texts[n + 1] for n in range(passed.index(True))}
            inner.arguments = None
        inner.variables |= {n: v for n, v in command.env.items() if n not in scope.variables}
        inner.line_offset = offset
        inner.functions = {n: f for n, f in scope.functions.items() if n != name}  # it may call itself
        with self.reading(source):
            self.body([body], inner, depth)
        scope.variables, scope.exported = inner.variables, inner.exported


def _set(texts: Sequence[str], scope: Scope) -> None:
    """`set -e`, `set +a`, `set -euo pipefail`, `set -o errexit`."""
    for at, text in enumerate(texts):
        is_on, letters = text[:1] == "-", text[1:] if text[:1] in ("-", "+") and text[:2] != "--" else ""
        name = texts[at + 1] if letters.endswith("o") and at + 1 < len(texts) else ""
        if "a" in letters or name == "allexport":
            scope.exports_all = is_on
        if "e" in letters or name == "errexit":
            scope.ends_on_error = is_on


_ASSIGNS = ("variable_assignment", "variable_assignments", "declaration_command")


def _assigned_by_test(node: Node) -> list[Node]:
    """The assignments of `[ TEST ] && A=1` and `[ TEST ] && A=1 || A=2`; [] for any other list."""
    left, right = node.named_children[0], node.named_children[-1]
    if right.type not in _ASSIGNS:
        return []
    if left.type == "list":
        before = _assigned_by_test(left)
        return [*before, right] if before else []
    return [right] if left.type == "test_command" else []


def _split_value(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else tuple(value.split())


def _listed(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)


def _is_cut_value(raw: str) -> bool:
    """Whether an assignment's text ends where the grammar cuts `A=$B/$C`: before the name, unquoted."""
    plain = re.sub(r"\$\([^()]{0,500}\)", "", raw)
    return "=" in raw and raw.endswith("$") and not re.search(r"[\"'(`]", plain)
