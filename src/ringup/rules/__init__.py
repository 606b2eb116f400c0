"""
Rules: a name, a text, and a function from evidence to findings.

A check reads a `Cluster`, a log cause reads `LogEvidence`.  The text of a problem is the docstring of the
function that finds it; a problem that several functions find has its text in `problems.py`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ringup.rules.problems import TEXTS
from ringup.units import grouped, summarize_names
from ringup.version import SITE

if TYPE_CHECKING:  # rules also include causes of logs, which need no facts of nodes
    from ringup.model import Cluster, Node

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""Worst first."""
Confidence = Literal["high", "medium", "low"]
"""Of a failure's cause."""


@dataclass(frozen=True)
class Fix:
    """The action for a finding: text, variables to set, commands to paste."""

    text: str
    env: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


def page_of(rule: str) -> str:
    return f"{SITE}/reference/rules/{rule}/"


@dataclass(frozen=True)
class Problem:
    """
    A kind of problem, with one name; a finding may be milder than `severity`, never worse.

    `parts`: "Why" or "Fix", the case that it is about ("torchrun"; "" for all), the text.
    """

    name: str
    severity: Severity
    summary: str
    why: str
    fix: str
    in_logs: str = ""
    parts: tuple[tuple[str, str, str], ...] = ()

    def of_case(self, case: str) -> tuple[str, str]:
        """Why and the fix of one case: its own text behind what is common to all; KeyError for another."""
        if case not in ("", *(of for _, of, _ in self.parts)):
            raise KeyError(f"{self.name} has no case {case!r}")
        why = " ".join(text for label, of, text in self.parts if label == "Why" and of in ("", case))
        fixes = {of: text for label, of, text in self.parts if label == "Fix"}
        return why or self.why, fixes.get(case) or fixes.get("") or self.fix

    @property
    def page(self) -> str:
        return page_of(self.name)


@dataclass(frozen=True)
class Finding:
    """
    A problem at a place: `where` as text ("node1 enp99s0"), `node` None if it concerns several.

    `subject` is for `planning.mitigations`: "interface:enp99s0", "port:29500", "name:node0", "env:NCCL_NET".
    """

    where: str
    found: str
    wanted: str
    node: str | None = None
    fix: Fix | None = None
    severity: Severity | None = None
    subject: str = ""
    worked_around_by: str | None = None
    rule: str = ""
    why: str = ""
    case: str = ""
    """The case of the problem's text that explains it; "" for the common text."""


@dataclass(frozen=True)
class Skipped:
    """A rule that could not be judged on a node, and why."""

    rule: str
    node: str | None
    reason: str
    as_root: str = ""
    """The command for root to find out, "" if root would know no more."""
    is_partial: bool = False
    """The rule was judged, but only with facts that an ordinary user may see."""
    traceback: str = ""
    """Traceback of a rule that raised: a bug in ringup."""


Function = TypeVar("Function", bound=Callable[..., "Iterator[Finding | Skipped]"])
Scope = Literal["", "machines", "gpus", "rdma"]
"""Jobs that a rule applies to: all, on several machines, with GPUs, or both (RDMA)."""

GIVEN: dict[str, Callable[[Cluster], Any]] = {"cluster": lambda cluster: cluster}
"""Parameter of a rule -> its value.  A rule with a parameter `node` is called for each node."""


@dataclass(frozen=True)
class Rule:
    """A registered check: its problem, the facts it needs, its function."""

    problem: Problem
    reads: tuple[str, ...]
    function: Callable[..., Iterator[Finding | Skipped]]
    scope: Scope = ""


PROBLEMS: dict[str, Problem] = {}
"""Every problem by name, from checks and logs; `ringup explain` lists them."""

CHECKS: dict[str, Rule] = {}
"""Checks by name, in order of their definition."""

INTERNAL_ERRORS: dict[str, Skipped] = {}
"""Rules that raised during this command, by name; `cli` clears it, and exits with code 70."""

Answer = TypeVar("Answer")

_SECTION = re.compile(r"^(Why|Fix|In logs)(?:, ([^:\n]{1,40}))?:\s*", re.MULTILINE)


def described(name: str, severity: Severity, text: str) -> Problem:
    """
    The problem that a text describes, registered.

    The summary comes first; `Why:` and `Fix:` must follow, also for one case alone (`Why, torchrun:`), and
    `In logs:` may follow.
    """
    summary, *parts = (" ".join((part or "").split()) for part in _SECTION.split(text))
    sections = tuple(zip(parts[::3], parts[1::3], parts[2::3], strict=True))
    labels = ("Why", "Fix", "In logs")
    why, fix, in_logs = (" ".join(text for of, _, text in sections if of == label) for label in labels)
    PROBLEMS[name] = Problem(name, severity, summary, why, fix, in_logs, sections)
    return PROBLEMS[name]


for _block in TEXTS.strip().split("\n\n"):
    _head, _, _text = _block.partition(": ")
    _name, _, _severity = _head.partition(", ")
    described(_name, cast(Severity, _severity), _text)


def problem_of(name: str, severity: Severity, docstring: str | None) -> Problem:
    """The problem in a rule's docstring; without sections in the docstring, the problem of that name."""
    text = inspect.cleandoc(docstring or "")
    is_known = name in PROBLEMS and not _SECTION.search(text)
    return PROBLEMS[name] if is_known else described(name, severity, text)


def check(
    name: str, *, reads: tuple[str, ...] = (), scope: Scope = "", severity: Severity = "error"
) -> Callable[[Function], Function]:
    """
    Register a check.

    `reads`: fields of `Node` that the rule needs.  If one is unknown, the function's cluster lacks the node,
    which is shown as not checked.  Other unknown fields have the value of an empty `Node`.
    """

    def decorate(function: Function) -> Function:
        CHECKS[name] = Rule(problem_of(name, severity, function.__doc__), reads, function, scope)
        return function

    return decorate


def isolated(rule: str, answers: Callable[[], Iterable[Answer]]) -> Iterator[Answer | Skipped]:
    """A rule's results; if it raises, the results so far and, last, the exception.  For all registries."""
    try:
        yield from answers()
    except Exception as error:
        import traceback

        reason = f"internal error in {rule}: {type(error).__name__}"
        broken = Skipped(rule, None, reason, traceback=traceback.format_exc())
        yield INTERNAL_ERRORS.setdefault(rule, broken)


def skipped_json(skipped: Iterable[Skipped]) -> list[dict[str, Any]]:
    """The rules that were not checked, with a traceback only for a bug in ringup."""
    return [{k: v for k, v in asdict(s).items() if v or k != "traceback"} for s in skipped]


def run_checks(
    cluster: Cluster, rules: Mapping[str, Rule] | None = None
) -> tuple[list[Finding], list[Skipped]]:
    """The findings, worst first, and the rules that could not be judged on nodes with unknown facts."""
    answers: list[Finding | Skipped] = []
    lacking = grouped((fact, place) for place, node in enumerate(cluster.nodes) for fact in node.unknown)
    parts: dict[frozenset[int], Cluster] = {}
    for rule in (CHECKS if rules is None else rules).values():
        name, left_out = rule.problem.name, frozenset(n for fact in rule.reads for n in lacking.get(fact, ()))
        for node in (cluster.nodes[place] for place in sorted(left_out)):
            reason = "; ".join(f"{f}: {node.unknown[f]}" for f in rule.reads if f in node.unknown)
            answers.append(Skipped(name, node.name, reason))
        if left_out not in parts:
            parts[left_out] = cluster.only(n for k, n in enumerate(cluster.nodes) if k not in left_out)
        part = parts[left_out]
        if part.nodes or not cluster.nodes:
            answers += isolated(name, lambda: _answers(rule, part))  # noqa: B023
    findings = [answer for answer in answers if isinstance(answer, Finding)]
    findings.sort(key=lambda f: SEVERITIES.index(f.severity or "error"))
    return findings, [answer for answer in answers if isinstance(answer, Skipped)]


@functools.cache
def _parameters(function: Callable[..., object]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _answers(rule: Rule, cluster: Cluster) -> Iterator[Finding | Skipped]:
    """The results of the rule's function, called with the parameters that it names."""
    from ringup.network.predictions import uses_nccl

    alone = cluster.is_local or len(cluster.nodes) < 2
    if alone and rule.scope in ("machines", "rdma"):
        return
    if rule.scope in ("gpus", "rdma") and cluster.job.backend == "gloo":
        return
    names = _parameters(rule.function)
    given = {name: GIVEN[name](cluster) for name in names if name in GIVEN}
    each = [{**given, "node": node} for node in cluster.nodes] if "node" in names else [given]
    for answer in itertools.chain.from_iterable(rule.function(**one) for one in each):
        if isinstance(answer, Skipped):
            yield replace(answer, rule=rule.problem.name)
        else:
            finding = complete(answer, rule.problem)
            if rule.scope == "rdma" and uses_nccl(cluster) == "no":
                finding = replace(finding, severity="note")  # a note only
            if finding.fix and cluster.ssh_config:
                lines = tuple(with_ssh_config(c, cluster.ssh_config) for c in finding.fix.commands)
                finding = replace(finding, fix=replace(finding.fix, commands=lines))
            yield typed_here(finding) if cluster.is_local else finding


def complete(finding: Finding, problem: Problem) -> Finding:
    """A finding with its rule's name, reason, severity (never above the rule's) and a fix."""
    ceiling = SEVERITIES.index(problem.severity)
    wanted = SEVERITIES.index(finding.severity or problem.severity)
    fix = finding.fix or Fix("")
    why, remedy = problem.of_case(finding.case)
    return replace(
        finding,
        rule=problem.name,
        why=finding.why or why,
        severity=SEVERITIES[max(ceiling, wanted)],
        fix=replace(fix, text=fix.text or remedy),
    )


@dataclass(frozen=True)
class Place:
    """The place of a finding; `at` and `at_each` make one.  `subject`: see `Finding`."""

    where: str
    nodes: tuple[Node | str, ...]
    subject: str = ""

    def finding(
        self,
        *,
        found: str,
        wanted: str,
        fix: str = "",
        run: str | Iterable[str] = (),
        commands: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        severity: Severity | None = None,
    ) -> Finding:
        """A finding; `run`: commands on the first node, `commands`: to paste here, `env`: to set."""
        on = self.nodes[0] if self.nodes else ""
        lines = (*(ssh(on, c) for c in ([run] if isinstance(run, str) else run)), *commands)
        names = {n if isinstance(n, str) else n.name for n in self.nodes}
        node = names.pop() if len(names) == 1 else None
        remedy = Fix(fix, env or {}, lines) if fix or lines or env else None
        return Finding(self.where, found, wanted, node, remedy, severity, self.subject)


def at(nodes: Node | str | Iterable[Node | str], thing: str = "", subject: str = "") -> Place:
    """One or several nodes, optionally with a device ("enp99s0", "GPU 3")."""
    from ringup.hosts.folding import node_set

    several = tuple(nodes) if isinstance(nodes, Iterable) and not isinstance(nodes, str) else (nodes,)
    where = node_set(n if isinstance(n, str) else n.name for n in several)
    return Place(f"{where} {thing}".strip(), several, subject)


def at_each(things: Iterable[tuple[Node | str, str]], subject: str = "") -> Place:
    """Several nodes, each with its own device."""
    pairs = tuple(things)
    where = summarize_names(f"{n if isinstance(n, str) else n.name} {thing}".strip() for n, thing in pairs)
    return Place(where, tuple(n for n, _ in pairs), subject)


def ssh_target(node: Node | str) -> str:
    """The argument of ssh for a node, quoted; with a user if the node was given with one."""
    if isinstance(node, str):
        return shlex.quote(node)
    name = node.host.name or node.name
    return shlex.quote(f"{node.host.user}@{name}" if node.host.user else name)


_PLAIN = re.compile(r"[\w@%+=:,./ -]+", re.ASCII)
_NOT_IN_DOUBLE_QUOTES = re.compile(r"""["$`!]|\\(?:[\\]|$)""")


def ssh(node: Node | str, command: str) -> str:
    """
    A command for a node, ready to paste; quoted if the local shell would interpret it.

    >>> print(ssh("a", "id -u"), ssh("a", "df | tail"), ssh("a", "ls 'a b'"), sep=", ")
    ssh a id -u, ssh a 'df | tail', ssh a "ls 'a b'"
    """
    if not _PLAIN.fullmatch(command):
        in_double = "'" in command and not _NOT_IN_DOUBLE_QUOTES.search(command)
        command = f'"{command}"' if in_double else shlex.quote(command)
    return f"ssh {ssh_target(node)} {command}"


_BY_SSH = re.compile(r"(?:time )?ssh(?:-copy-id)?(?= )")


def with_ssh_config(command: str, file: str) -> str:
    """
    A command to paste, which reaches nodes like ringup with `--ssh-config FILE`.

    >>> with_ssh_config("time ssh n true", "c"), with_ssh_config("rsync -a f n:f", "c")
    ('time ssh -F c n true', "rsync -a -e 'ssh -F c' f n:f")
    """
    option = f"-F {shlex.quote(file)}" if file else ""
    if not file or not (way := _BY_SSH.match(command)):
        is_copy = file and command.startswith("rsync -a ")
        return command.replace("-a ", f"-a -e {shlex.quote(f'ssh {option}')} ", 1) if is_copy else command
    return f"{way[0]} {option}{command[way.end() :]}"


def typed_here(finding: Finding) -> Finding:
    """
    A finding about simulated nodes on this machine: its commands need no ssh and no `-H`.

    >>> fix = Fix("", commands=("ssh n 'id; ls'", "ringup clean -H n"))
    >>> typed_here(Finding("n", "", "", fix=fix)).fix.commands
    ('id; ls', 'ringup clean')
    """
    if finding.fix is None:
        return finding
    words = [(shlex.split(c), c.partition(" -H ")[0]) for c in finding.fix.commands]
    # ssh joins its arguments with blanks, and the node's shell parses the result.
    commands = (" ".join(w[2:]) if w[:1] == ["ssh"] else c for w, c in words)
    return replace(finding, fix=replace(finding.fix, commands=tuple(dict.fromkeys(commands))))
