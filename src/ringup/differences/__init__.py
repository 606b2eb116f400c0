"""
Two runs, collections of facts or environments compared: the relevant differences, worst first.

`Side` has the facts about one of them; `sides` makes it, `compare` is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ringup.hosts.folding import node_set
from ringup.nccl import variables
from ringup.rules import SEVERITIES, Severity
from ringup.units import grouped

TOPICS: dict[str, Severity] = {
    **dict.fromkeys(("outcome", "problem", "ssh", "path"), "error"),
    **dict.fromkeys(("selection", "plan", "interface", "link", "variable", "version"), "warning"),
    **dict.fromkeys(("rate", "node"), "warning"),
    **dict.fromkeys(("job", "machine"), "note"),
}
"""Topics of facts, the most frequent causes of "it worked yesterday" first; and the severity of a change."""
COUNT_AS_NONE = ("interface", "variable", "version", "node")
"""Topics in which a fact of only one side is a difference; in other topics both sides must have it."""
GOOD = ("ok", "works", "up")
"""Values that cannot be the cause of a failure."""
UNKNOWN = "unknown"
"""A value that could not be read; it is different from a missing one."""
MOST_IN_ORDER = 8
NOISE = 0.1
"""Share of a measured value below which a difference is noise."""


class Amount(NamedTuple):
    value: float
    unit: str
    better: Literal["more", "less"] = "more"

    def __str__(self) -> str:
        return f"{self.value:.3g} {self.unit}"


Value = str | Amount
Key = tuple[str, str]
"""Topic and name."""


@dataclass
class Side:
    """One of the two: facts by topic and name, then by node ("" for the whole job)."""

    path: str
    kind: Literal["run", "facts", "environment"]
    head: str = ""
    """One line: its time, size and outcome."""
    nodes: tuple[str, ...] = ()
    facts: dict[Key, dict[str, Value]] = field(default_factory=dict)
    problems: dict[tuple[str, str], tuple[Severity, str]] = field(default_factory=dict)
    """Rule and node ("" for several) -> severity and finding."""
    not_checked: set[tuple[str, str]] = field(default_factory=set)
    """Rule and node, if known."""
    unknown: dict[tuple[str, str], str] = field(default_factory=dict)
    """Topic and node ("" for all) -> why its facts are unknown."""

    def add(self, topic: str, name: str, value: Value | None, node: str = "") -> None:
        """Add a fact, unless its value is empty."""
        if value:
            self.facts.setdefault((topic, name), {})[node] = value


@dataclass(frozen=True)
class FactChange:
    severity: Severity
    topic: str
    name: str
    nodes: tuple[str, ...]
    """The nodes; () for the whole job."""
    before: str
    """"" if there was none."""
    after: str
    change: float | None = None
    """Relative change of a measured value: 0.5 is 50 % more."""


def compare(a: Side, b: Side) -> list[FactChange]:
    found, unknown = [*_problems(a, b), *_nodes(a, b)], a.unknown.keys() | b.unknown.keys()
    for key in dict.fromkeys([*a.facts, *b.facts]):
        if (key[0], "") not in unknown:
            found += _changes(key, a, b, unknown)
    order = [*TOPICS]
    return sorted(found, key=lambda d: (SEVERITIES.index(d.severity), order.index(d.topic)))


def not_compared(a: Side, b: Side) -> list[str]:
    """Facts of only one side, and the reasons; equal reasons and nodes are listed once."""
    found = []
    for side, other in ((a, b), (b, a)):
        there = {topic for topic, _ in other.facts} | ({"problem"} if other.problems else set())
        lacking = grouped(((t, why), n) for (t, n), why in side.unknown.items() if t in there)
        unread = grouped((name, n) for (_, name), own in side.facts.items() for n in own if own[n] == UNKNOWN)
        lacking |= {(name, "could not be read"): nodes for name, nodes in unread.items()}
        alike = grouped(((why, node_set(filter(None, n))), topic) for (topic, why), n in lacking.items())
        for (why, where), topics in alike.items():
            found.append(f"{', '.join(topics)}: {side.path}: {f'{where}: ' if where else ''}{why}")
    return found


def _changes(key: Key, a: Side, b: Side, unknown: Collection[Key]) -> Iterator[FactChange]:
    """For one fact, a difference for each pair of values, with its nodes."""
    before, after = ({**side.facts.get(key, {})} for side in (a, b))
    pairs: list[tuple[str, Value | None, Value | None]] = [("", before.get(""), after.get(""))]
    if {*before, *after} != {""}:
        before, after = _by_node(before, a.nodes or b.nodes), _by_node(after, b.nodes or a.nodes)
        known = [n for n in b.nodes or a.nodes if (key[0], n) not in unknown]
        pairs = [(n, before.get(n), after.get(n)) for n in known if n in (a.nodes or b.nodes)]
        # A new node is compared with the value that most nodes had.
        for usual, count in Counter(before[n] for n in a.nodes if n in before).most_common(1):
            is_usual = count > len(a.nodes) / 2
            pairs += [(n, usual, after.get(n)) for n in known if is_usual and n not in a.nodes]
    for (old, new), nodes in grouped(((old, new), node) for node, old, new in pairs).items():
        is_missing = key[0] not in COUNT_AS_NONE and None in (old, new)
        if old == new or is_missing or UNKNOWN in (old, new):
            continue
        change, severity = None, TOPICS[key[0]]
        if isinstance(old, Amount) and isinstance(new, Amount) and old.value:
            change = new.value / old.value - 1
            severity = severity if (change < 0) == (new.better == "more") else "note"
        if change is None or abs(change) >= NOISE:
            where = () if nodes == [""] else tuple(nodes)
            is_harmless = new in GOOD or (key[0] == "interface" and old is None)
            is_harmless |= key[0] == "variable" and variables.row_of(key[1]).kind == "debugging"
            severity = "note" if is_harmless else severity
            before_text, after_text = ("" if value is None else str(value) for value in (old, new))
            yield FactChange(severity, *key, where, before_text, after_text, change)


def _by_node(values: dict[str, Value], nodes: Sequence[str]) -> dict[str, Value]:
    """The value of each node: its own, else the one for all nodes."""
    return {**dict.fromkeys(nodes, values[""]), **values} if "" in values else values


def _problems(a: Side, b: Side) -> Iterator[FactChange]:
    """Problems of only one of the two; problems that have disappeared are notes."""
    if ("problem", "") in a.unknown.keys() | b.unknown.keys():
        return
    new = [(key, a.not_checked, *what) for key, what in b.problems.items() if key not in a.problems]
    for (rule, severity, is_sure), same in grouped(
        ((rule, severity, (rule, node) not in unsure), (node, found))
        for (rule, node), unsure, severity, found in new
    ).items():
        nodes, before = tuple(node for node, _ in same if node), "" if is_sure else "not checked"
        yield FactChange(severity, "problem", rule, nodes, before, same[0][1])
    gone = [key for key in a.problems if key not in b.problems and key not in b.not_checked]
    here = [(rule, (node, a.problems[rule, node][1])) for rule, node in gone if node in {*b.nodes, ""}]
    for rule, lost in grouped(here).items():
        yield FactChange("note", "problem", rule, tuple(node for node, _ in lost if node), lost[0][1], "")


def _nodes(a: Side, b: Side) -> Iterator[FactChange]:
    """Nodes that left or were added, and a changed order of the others."""
    if not (a.nodes and b.nodes):
        return
    gone, new = (node_set(n for n in x.nodes if n not in y.nodes) for x, y in ((a, b), (b, a)))
    if gone:
        yield FactChange("warning", "node", "nodes gone", (), gone, "")
    if new:
        yield FactChange("note", "node", "nodes new", (), "", new)
    stayed = [tuple(n for n in side.nodes if n in a.nodes and n in b.nodes) for side in (a, b)]
    if stayed[0] != stayed[1]:
        before, after = (" ".join(order[:MOST_IN_ORDER]) for order in stayed)
        yield FactChange("note", "node", "order", (), before, after)
