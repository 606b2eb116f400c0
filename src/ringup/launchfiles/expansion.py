"""
Words of a shell after its expansion: variables, defaults, arrays, arithmetic, `$(commands)`.

A value that only the run knows stays in the text as a mark (`marks`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ringup.launchfiles import arithmetic, marks
from ringup.launchfiles.directives import Directive, allocated_count, node_count
from ringup.launchfiles.marks import BREAK, EMPTY, Marks, has_mark
from ringup.launchfiles.start import Step
from ringup.launchfiles.substitution import substituted

Node = Any
"""A node of tree-sitter's tree."""
Value = str | tuple[str, ...]
MOST_NODES, MOST_DEPTH, MOST_VALUE, MOST_NESTED = 60_000, 60, 32_768, 8
VARIABLES_A_NODE = 20
"""This many copied variables cost as much as a node of the tree."""
_NAME = re.compile(r"\w{1,200}|[@*#?$!-]")
_LOCAL = ("localhost", "127.0.0.1", "::1")
PER_TASK = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")


@dataclass
class Scope:
    """The state of one shell."""

    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    functions: dict[str, tuple[Node, bytes, int]] = field(default_factory=dict)
    arguments: tuple[str, ...] | None = None
    site: str = "batch"
    around: tuple[Step, ...] = ()
    branches: tuple[tuple[int, int], ...] = ()
    is_of_some: bool = False
    loop: str | None = None
    reads_input: bool = False
    """Whether it is in a loop `while read ...`, whose input a command in it may consume."""
    background: bool = False
    detached: bool = False
    """Whether it, or a command around it, runs in the background."""
    exports_all: bool = False
    ends_on_error: bool = False
    withheld: dict[str, str] = field(default_factory=dict)
    """A variable set outside -> the reason that this shell lacks it: a program in between, no `export`."""
    line_offset: int = 0
    """Added to the line numbers of a text that is read again; -1: all are `at_line`."""
    at_line: int = 0
    has_ended: bool = False

    def environment(self) -> dict[str, str]:
        return {n: first(v) for n, v in self.variables.items() if n in self.exported}


def first(value: Value) -> str:
    return value if isinstance(value, str) else (value or ("",))[0]


@functools.cache
def parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class Expansion:
    """The words of one text, and limits for all texts of a file."""

    def __init__(self, known: Marks, directives: list[Directive]) -> None:
        self.marks, self.directives = known, directives
        self.nodes = self.nested = 0
        self.source = b""

    @contextlib.contextmanager
    def reading(self, source: bytes) -> Iterator[None]:
        """Read another text within this one."""
        outer, self.source = self.source, source
        self.nested += 1
        try:
            yield
        finally:
            self.source = outer
            self.nested -= 1

    def unknown(self, name: str, scope: Scope) -> str:
        return self.marks.make(name, scope.site)

    def copied(self, scope: Scope) -> Scope:
        """A scope with its own variables; copies are counted, because a file may have thousands of each."""
        self.nodes += len(scope.variables) // VARIABLES_A_NODE
        return replace(scope, variables=dict(scope.variables), exported=set(scope.exported))

    def counted(self, name: str, scope: Scope) -> str:
        """A variable in arithmetic; the scheduler's counts come from the directives."""
        text = first(self.lookup(name, scope))
        mark = self.marks.of(text)
        known = mark and allocated_count(mark.name, self.directives, node_count(self.directives)[0])
        return str(known) if known else text

    def lookup(self, name: str, scope: Scope) -> Value:
        """A variable's value; unknown if the file does not set it."""
        if name in scope.variables:
            return scope.variables[name]
        if scope.arguments is not None:
            if name.isdecimal() and name != "0":
                at = int(name) - 1
                return scope.arguments[at] if at < len(scope.arguments) else ""
            if name in ("@", "*"):
                return scope.arguments
            if name == "#":
                return str(len(scope.arguments))
        if (
            name in PER_TASK
            and scope.site == "batch"
            and any(d.scheduler == "SBATCH" for d in self.directives)
        ):
            return self.marks.make(name, "batch")
        if name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "LSB_HOSTS", "SLURM_STEP_NODELIST"):
            return self.marks.make(marks.NODES, scope.site)
        if name == "HOSTNAME" or (name == "SLURMD_NODENAME" and scope.site != "batch"):
            return self.marks.make(marks.OWN_NAME, scope.site)
        if name == "SLURMD_NODENAME":
            return self.marks.make(marks.FIRST_NODE, scope.site)
        return self.marks.make(name, "loop" if name == "RANDOM" and scope.loop is not None else scope.site)

    # -- words -------------------------------------------------------------------------------------

    def raw(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def line(self, node: Node, scope: Scope) -> int:
        if scope.line_offset < 0:
            return scope.at_line
        return int(node.start_point[0]) + 1 + scope.line_offset

    def words_of(self, node: Node, scope: Scope) -> list[str]:
        """The words from one word of the file."""
        text = self.value(node, scope, 0, False)
        parts = text.split(BREAK) if BREAK in text else [text]
        return [part.replace(EMPTY, "") for part in parts if part]

    def value(self, node: Node, scope: Scope, depth: int, quoted: bool) -> str:
        """A word's text; BREAK between the words of an expansion that is not quoted."""
        self.nodes += 1
        kind = node.type
        if depth > MOST_DEPTH or self.nodes > MOST_NODES:
            return self.unknown("...", scope)
        if kind == "string":
            return self._string(node, scope, depth) or EMPTY
        if kind == "raw_string":
            return self.raw(node)[1:-1] or EMPTY
        if kind in ("ansi_c_string", "translated_string"):
            return self.raw(node)[2:-1].replace("\\n", "\n").replace("\\t", "\t").replace("\\'", "'") or EMPTY
        if kind in ("concatenation", "command_name"):
            # {a,b} and similar come in pieces; kept as written.
            return "".join(self.value(c, scope, depth + 1, quoted) for c in node.children)[:MOST_VALUE]
        if kind in ("simple_expansion", "expansion"):
            found = self._expanded(node, scope, depth, quoted)
            self.nodes += len(found) // 64  # values that grow make a small file a large one
            return found
        if kind == "command_substitution":
            return _split(self._substituted(node, scope), quoted)
        if kind == "arithmetic_expansion":
            found = arithmetic.computed(self.raw(node)[3:-2], lambda n: self.counted(n, scope))
            return found if found else self.unknown(self.raw(node)[:60], scope)
        if kind == "brace_expression":
            return _range(self.raw(node))
        if kind == "process_substitution":
            found = substituted(self._stages(node.named_children, scope), scope.site, self.marks)
            return found or self.unknown("<(...)", scope)
        if kind == "array":
            return BREAK.join(
                w for c in node.named_children if c.type != "comment" for w in self.words_of(c, scope)
            )
        return _unescaped(self.raw(node))

    def _string(self, node: Node, scope: Scope, depth: int) -> str:
        parts, at = [], node.start_byte + 1
        for child in node.children[1:-1] if len(node.children) > 1 else ():
            parts.append(self.source[at : child.start_byte].decode("utf-8", "replace"))
            at = child.end_byte
            raw = self.raw(child)
            if child.is_named and child.type != "string_content":
                # Blanks before an expansion are inside it.
                parts.append(raw[: len(raw) - len(raw.lstrip())] if child.type != "string" else "")
                raw = self.value(child, scope, depth + 1, True)
            parts.append(raw)
        parts.append(self.source[at : max(at, node.end_byte - 1)].decode("utf-8", "replace"))
        # Inside double quotes a backslash quotes four characters and a line end.
        text = re.sub(r"\\([$`\"\\\n])", lambda m: "" if m[1] == "\n" else m[1], "".join(parts))
        return text.replace(EMPTY, "")[:MOST_VALUE]

    def _expanded(self, node: Node, scope: Scope, depth: int, quoted: bool) -> str:
        """`$X`, `${X:-default}`, `${A[@]}` and similar."""
        raw = self.raw(node).strip(" \t\n\\")
        if not raw.startswith("${"):
            return self._whole(self.lookup(raw[1:], scope), raw[1:], scope, quoted)
        inside = raw[2:].removesuffix("}")
        sign = inside[:1] if inside[:1] in ("#", "!") and len(inside) > 1 else ""
        match = _NAME.match(inside, len(sign))
        if match is None:
            return self.unknown(inside[:60], scope)
        name, rest, index = match[0], inside[match.end() :], ""
        if rest.startswith("[") and "]" in rest:
            index, _, rest = rest[1:].partition("]")
        value = self.lookup(name, scope)
        if sign == "#":
            return self._length(value, index, raw, scope)
        if sign == "!" and index in ("@", "*"):  # the positions of a list
            items = value if isinstance(value, tuple) else (value,)
            if any(self._is_list(item) for item in items):
                return items[0]
            return BREAK.join(map(str, range(len(items))))
        if sign == "!":
            if not (target := first(value)).isidentifier():
                return self.unknown(raw, scope)
            return _joined(self.lookup(target, scope), "", quoted)
        if index:
            if (part := re.fullmatch(r":\s?(\d{1,4})(?::(\d{1,4}))?", rest)) and isinstance(value, tuple):
                end = int(part[1]) + int(part[2]) if part[2] else None
                value = value[int(part[1]) : end]
            return self._element(value, index, raw, scope, quoted)
        part = re.fullmatch(r":\s?(\d{1,3})(?::(\d{1,3}))?", rest) if name in ("@", "*") else None
        if part and isinstance(value, tuple):
            begin = max(int(part[1]) - 1, 0)
            value, rest = value[begin : begin + int(part[2]) if part[2] else None], ""
        if rest:
            return self._with_default(name, value, rest, scope, quoted)
        return self._whole(value, name, scope, quoted)

    def _whole(self, value: Value, name: str, scope: Scope, quoted: bool) -> str:
        """A variable without an index: of an array the first element."""
        is_array = isinstance(value, tuple) and name not in ("@", "*")
        if is_array and self._is_list(first(value)):
            return self.marks.make(marks.FIRST_NODE, scope.site)
        return _joined(value, name, quoted)

    def _length(self, value: Value, index: str, raw: str, scope: Scope) -> str:
        if index in ("@", "*"):
            items = value if isinstance(value, tuple) else (value,)
            if any(self._is_list(i) for i in items):
                return self.marks.make(marks.NODE_COUNT, scope.site)
            return self.unknown(raw, scope) if any(map(has_mark, items)) else str(len(items))
        return str(len(first(value)))

    def _is_list(self, text: str) -> bool:
        mark = self.marks.of(text)
        return mark is not None and mark.name == marks.NODES

    def _element(self, value: Value, index: str, raw: str, scope: Scope, quoted: bool) -> str:
        items = value if isinstance(value, tuple) else (value,)
        if index in ("@", "*"):
            return _joined(items, index, quoted)
        at = arithmetic.computed(index, lambda n: self.counted(n, scope))
        names = re.findall(r"[A-Za-z_]\w*", index)
        counted = [m for n in names for m in self.marks.all_of(first(self.lookup(n, scope)))]
        site = "loop" if any(m.site == "loop" for m in counted) else scope.site
        if items and self._is_list(items[0]):
            if at == "0":
                return self.marks.make(marks.FIRST_NODE, scope.site)
            return self.marks.make(marks.OTHER_NODE if at.lstrip("-").isdecimal() else raw, site)
        if at.lstrip("-").isdecimal() and abs(int(at)) < len(items) + (at[0] == "-"):
            return items[int(at)]
        return self.marks.make(raw, site)

    def _with_default(self, name: str, value: Value, rest: str, scope: Scope, quoted: bool) -> str:
        """`:-`, `:=`, `:+`, `#`, `%`, `//` after a name."""
        is_set = name in scope.variables or (scope.arguments is not None and name.isdecimal())
        text = first(value)
        operator = rest[:2] if rest[:1] == ":" else rest[:1]
        if operator in (":-", ":=", "-", "="):
            if is_set and text:
                return _joined(value, "", quoted)
            default = self._text_of(rest[len(operator) :], scope)
            is_outer = name in PER_TASK or name.startswith(("SLURM_", "PMI_", "OMPI_", "PBS_"))
            if is_outer or (scope.arguments is None and (is_of_rank(name) or default in _LOCAL)):
                return self.unknown(name, scope)  # set if the file is run on several nodes
            if "=" in operator:
                scope.variables[name] = default
            return _split(default, quoted) or EMPTY * quoted
        if operator in (":+", "+"):
            return _split(self._text_of(rest[len(operator) :], scope), quoted) if is_set and text else ""
        if operator in (":?", "?"):
            return _joined(value, "", quoted)
        if has_mark(text):
            # A part of an unknown value: the first of a list stays the first.
            if self._is_list(text) and rest.startswith("%%"):
                return self.marks.make(marks.FIRST_NODE, scope.site)
            return self.unknown(f"{name}{rest}"[:60], scope) if self.marks.of(text) else text
        return _trimmed(text, rest)

    def _text_of(self, text: str, scope: Scope) -> str:
        """A text inside an expansion, expanded."""
        if not re.search(r"[$`'\"\\]", text):
            return text
        if self.nested >= MOST_NESTED:
            return self.unknown(text[:60], scope)
        quoted = text if text[:1] in "'\"" else f'"{text}"'
        with self.reading(f"x={quoted}\n".encode("utf-8", "replace")):
            node = parser().parse(self.source).root_node
            found = next((c for c in node.named_children if c.type == "variable_assignment"), None)
            value = found.child_by_field_name("value") if found is not None else None
            made = self.value(value, scope, 0, True) if value is not None else text
            return made.replace(EMPTY, "").replace(BREAK, " ")

    # -- command substitution ----------------------------------------------------------------------

    def _substituted(self, node: Node, scope: Scope) -> str:
        raw = self.raw(node)
        nodes = [c for c in node.named_children if c.type != "comment"]
        found = substituted(self._stages(nodes, scope), scope.site, self.marks)
        is_new = scope.loop is not None and raw.strip("$(`) ") == "uuidgen"  # different in each round
        name = "$(" + re.sub(r"^\$?[(`]|[)`]$", "", raw)[:80] + ")"
        return found if found else self.marks.make(name, "loop" if is_new else scope.site)

    def _stages(self, nodes: Sequence[Node], scope: Scope) -> list[list[str]]:
        """The commands of a pipeline as words, `<` files after a "<"; [] if it is not a pipeline."""
        found: list[list[str]] = []
        self.nodes += 1
        if len(nodes) != 1 or self.nodes > MOST_NODES:
            return found
        for node in self._commands_in(nodes[0]):
            words: list[str] = []
            body = node.child_by_field_name("body") if node.type == "redirected_statement" else node
            parts = body.named_children if body is not None and body.type == "command" else []
            for child in [*parts, *(node.named_children if body != node else [])]:
                if child.type == "herestring_redirect":
                    words += ["<<<", *(w for c in child.named_children for w in self.words_of(c, scope))]
                elif child.type == "file_redirect" and child.children[0].type == "<" and child.named_children:
                    words += ["<", *self.words_of(child.named_children[-1], scope)]
                elif child in parts and child.type not in ("variable_assignment", "comment", "file_redirect"):
                    named = child.named_children if child.type == "command_name" else []
                    words += self.words_of((named or [child])[0], scope)
            found.append(words)
        return found

    def _commands_in(self, node: Node) -> Iterator[Node]:
        if node.type in ("pipeline", "compound_statement", "subshell", "list"):
            for child in node.named_children:
                yield from self._commands_in(child)
        else:
            yield node


def is_of_rank(name: str) -> bool:
    """Whether a platform sets a variable on each node, or to the number of nodes."""
    return bool(re.search(r"(?i)rank|nodeid|node_id|world_?size|worker_num", name))


def _unescaped(raw: str) -> str:
    return re.sub(r"(?s)\\(.)", lambda m: m[1].strip("\n"), raw) if "\\" in raw else raw


def _split(text: str, quoted: bool) -> str:
    return text if quoted else BREAK.join(text.split())


def _joined(value: Value, name: str, quoted: bool) -> str:
    """A value as words; that of `@` or `*` has as many as it has elements, but one for "$*" in quotes."""
    if isinstance(value, str):
        return _split(value, quoted)
    if name == "*" and quoted:
        return " ".join(value)
    if name in ("@", "*"):
        return BREAK.join((item or EMPTY) if quoted else _split(item, False) for item in value)
    return _split(first(value), quoted)


def _range(raw: str) -> str:
    match = re.fullmatch(r"\{(\d{1,6})\.\.(\d{1,6})\}", raw)
    if not match or int(match[2]) < int(match[1]) or int(match[2]) - int(match[1]) > 5000:
        return raw
    return BREAK.join(map(str, range(int(match[1]), int(match[2]) + 1)))


def _trimmed(text: str, rest: str) -> str:
    """`${X%.*}`, `${X##*/}` and `${X/a/b}` of a known text, as far as the patterns are plain."""
    if not (match := re.fullmatch(r"(##?|%%?)(.{1,40})", rest, re.DOTALL)):
        return text
    sign, pattern = match[1], match[2]
    if sign[0] == "#" and pattern.startswith("*") and len(pattern) == 2:
        return text.rpartition(pattern[1])[2] if sign == "##" else text.partition(pattern[1])[2] or text
    if sign[0] == "%" and pattern.endswith("*") and len(pattern) == 2:
        at = text.find(pattern[0]) if sign == "%%" else text.rfind(pattern[0])
        return text[:at] if at >= 0 else text
    return text.removesuffix(pattern) if sign[0] == "%" else text.removeprefix(pattern)
