"""The check of the nodes between two attempts, and the failure's cause for the decision."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ringup import collectors
from ringup.cli import pipeline
from ringup.model import Cluster, Counters, Node, Risen, risen
from ringup.planning import Plan
from ringup.recovery import table
from ringup.recovery.decision import FailureCause, Recheck
from ringup.rules import Finding
from ringup.runtime import RunResult
from ringup.runtime.blame import End
from ringup.runtime.clean import final_sweep, not_clean
from ringup.transport import Transport
from ringup.units import grouped, printable

if TYPE_CHECKING:
    from ringup.logs.rule import Cause

SWEEP_WAIT_S, SWEEP_LIMIT_S = 5.0, 17.0
ENDED_BY_US = (None, 0, -signal.SIGTERM, -signal.SIGKILL)
HELD = "gpu-held-by-other-process"
FREE_WITHIN_S, ASK_EVERY_S = 50.0, 2.0
"""Seconds until a GPU's memory is free again, and between queries of its node (NVRx waits as long)."""
FLAPS = 4
"""State changes of a link that are more than one cut: down and up again are two."""
Rules = Mapping[str, set[str]]
"""Node -> names of rules."""


class Seen(NamedTuple):
    errors: Rules
    warnings: Rules

    def since(self, before: Seen) -> Seen:
        pairs = zip(self, before, strict=True)
        return Seen(*({n: rules - old.get(n, set()) for n, rules in now.items()} for now, old in pairs))

    def with_warning(self, rule: str) -> set[str]:
        return {node for node, rules in self.warnings.items() if rule in rules}


class Rechecks:
    """`first`: the nodes before the first attempt, including `spares`."""

    def __init__(
        self, transport: Transport, first: Cluster, args: argparse.Namespace, spares: Sequence[str] = ()
    ) -> None:
        self.transport, self.first, self.args, self.spares = transport, first, args, spares
        self.cluster = first
        """The nodes in the latest check."""
        self.counters = {node.name: node.counters for node in first.nodes}
        """Their values at the beginning of the attempt."""

    @cached_property
    def at_first(self) -> Seen:
        return seen(self.first)

    @cached_property
    def before(self) -> Seen:
        """Earlier findings; for a spare, which has run no rank, those of the other nodes."""
        errors, warnings = self.at_first
        others = [rules for node, rules in errors.items() if node not in self.spares]
        return Seen({**errors, **dict.fromkeys(self.spares, set().union(*others))}, warnings)

    def look(self, plan: Plan, result: RunResult, spares: Iterable[str]) -> Recheck:
        """Check every node again: answer, leftovers, new errors; a bad answer must come twice."""
        wanted = {*spares, *(node.node for node in plan.nodes)}
        unclean = self.unclean(plan, result)
        self.reopen((self.unreached() & wanted) - unclean)
        now = self.collected()
        doubtful = self.unreached() & wanted - unclean
        if doubtful or any(now.errors.values()):
            self.reopen(doubtful)
            again = self.collected()
            twice = {node: rules & again.errors.get(node, set()) for node, rules in now.errors.items()}
            now = Seen(twice, again.warnings)
        until = time.monotonic() + FREE_WITHIN_S
        while now.with_warning(HELD) & {node.node for node in plan.nodes} and time.monotonic() < until:
            pause(self.transport, ASK_EVERY_S)
            now = Seen(now.errors, self.collected().warnings)
        held = wanted & now.with_warning(HELD)
        found = {**now.errors, **{node: now.errors.get(node, set()) | {HELD} for node in held}}
        before = {node.name: node.boot_id for node in self.first.nodes}
        self.counters = {node.name: node.counters for node in self.cluster.nodes}
        rebooted = (n.name for n in self.cluster.nodes if n.boot_id and before[n.name] not in ("", n.boot_id))
        unreached = self.unreached()
        errors = {node: sorted(rules) for node, rules in found.items() if rules and node not in unreached}
        return Recheck(errors, unreached, unclean - unreached, frozenset(rebooted), now.warnings)

    def unreached(self) -> frozenset[str]:
        return frozenset(node.name for node in self.cluster.nodes if node.unreached)

    def reopen(self, names: Iterable[str]) -> None:
        for name in names:
            self.transport.reopen(name)

    def collected(self) -> Seen:
        """Collect the facts again; returns the problems that are new since the start."""
        found = collectors.collect(self.transport, self.first.job, timeout_s=self.args.timeout)
        nodes = tuple(with_flaps(node, self.counters.get(node.name, ())) for node in found.nodes)
        self.cluster = replace(found, nodes=nodes)
        return seen(self.cluster).since(self.before)

    def unclean(self, plan: Plan, result: RunResult) -> frozenset[str]:
        """Nodes that did not prove that an attempt left nothing; each is queried twice."""
        names = not_clean(result.findings)
        if not names:
            return frozenset()
        part = replace(plan, nodes=tuple(node for node in plan.nodes if node.node in names))
        limits = {"wait_s": SWEEP_WAIT_S, "limit_s": SWEEP_LIMIT_S, "lease_s": self.args.lease}
        return frozenset(not_clean(final_sweep(self.transport, part, reopen=names, **limits)))


def pause(transport: Transport, seconds: float) -> None:
    """Wait, and keep the connections alive; a signal ends it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        transport.turn(0.1)


def with_flaps(node: Node, before: Sequence[Counters]) -> Node:
    """The node with link changes since `before`; the check itself compares only a few seconds."""
    flapped = {r.of: r for r in risen(before, node.counters) if r.by.get("carrier_changes", 0) >= FLAPS}
    own = {r.of: r for r in node.rises}
    for of, rise in flapped.items():
        changes = {"carrier_changes": rise.by["carrier_changes"]}
        own[of] = Risen(of, rise.over_s, {**(own[of].by if of in own else {}), **changes})
    return replace(node, rises=tuple(own.values())) if flapped else node


def seen(cluster: Cluster) -> Seen:
    """The check's findings on the nodes that were reached."""
    reached = cluster.only(node for node in cluster.nodes if not node.unreached)
    if not reached.nodes:
        return Seen({}, {})
    findings = pipeline.judge(reached).findings
    warnings = grouped((one.node, one.rule) for one in findings if one.node and one.severity == "warning")
    errors = errors_by_node(findings, [node.name for node in reached.nodes])
    return Seen(errors, {node: set(rules) for node, rules in warnings.items()})


def until_gone_s(result: RunResult, recheck: Recheck, lease_s: float) -> float:
    """Seconds until the ranks on unreachable nodes are gone: their guards end them when the lease ends."""
    is_silent = recheck.unreachable.intersection(result.lost)
    return max(0.0, result.heard_s + lease_s - time.monotonic()) if is_silent else 0.0


def errors_by_node(findings: Iterable[Finding], names: list[str]) -> dict[str, set[str]]:
    """Node -> the rules of severity error that concern it."""
    found: dict[str, set[str]] = {}
    shared: list[tuple[set[str], str]] = []
    for finding in findings:
        if (finding.severity or "error") != "error":
            continue
        if finding.node:
            found.setdefault(finding.node, set()).add(finding.rule)
        else:
            shared.append(({name for name in names if has_name(finding.where, name)}, finding.rule))
    while shared := [(among, rule) for among, rule in shared if among and not among & found.keys()]:
        # For a failure between nodes, the node with the most failures; of several the last one.
        counts = {name: sum(name in among for among, _ in shared) for name in names}
        worst = max(names, key=lambda name: (counts[name], names.index(name)))
        found[worst] = {rule for among, rule in shared if worst in among}
    return found


def has_name(text: str, name: str) -> bool:
    """
    Whether a text names that node, not one with a longer name.

    >>> has_name("node1 -> node10 em1", "node1"), has_name("node10 em1", "node1")
    (True, False)
    """
    return name in {word.strip(",;()") for word in text.split()}


def failure_cause(plan: Plan, result: RunResult, cause: Cause | None, recheck: Recheck) -> FailureCause:
    """The cause for `decide`: that of `ringup logs`, unless a node is lost and no surer cause is known."""
    gone = [n.node for n in plan.nodes if n.node in {*result.lost, *recheck.unreachable}]
    first = result.failure
    is_node = first is not None and first.rank is None and first.node in gone
    is_sure = cause is not None and cause.confidence != "low" and not (first and first.is_consequence)
    if gone and not (is_sure and cause and (set(cause.nodes) & set(gone) or not is_node)):
        return FailureCause(table.NODE_LOST, "high", tuple(gone))
    if cause is None:
        return FailureCause(detail=raised(result))
    is_raised = cause.rule == "rank-raised-exception"
    named: Iterable[int] = cause.ranks
    if is_raised and not (cause.ranks or cause.nodes) and first and first.rank is not None:
        named = sorted({r.rank for r in result.ranks if r.code == first.code})  # a traceback names no rank
    ranks = tuple(rank for rank in named if 0 <= rank < plan.world_size)
    of_ranks = {n.node for n in plan.nodes for r in ranks if n.first_rank <= r < n.first_rank + n.nproc}
    nodes = tuple(n.node for n in plan.nodes if n.node in cause.nodes or n.node in of_ranks)
    # Texts of other causes contain times and numbers, which differ each time.
    evidence = fault_codes(cause) if cause.rule == "xid-in-kernel-log" else ""
    if is_raised and first and (first.code or 0) > 1:
        evidence = f"exit code {first.code}"  # the script chose it; 1 is Python's default
    detail = raised(result) or evidence
    # A rank on another node that failed on its own may have raised it, too.
    others = [r.code for r in result.ranks if r.node not in nodes]
    only_there = (
        is_raised
        and table.OF_THE_NODE.match(detail) is not None
        # If most nodes raised it, the other ranks were ended before they got so far.
        and bool(nodes and others and 2 * len(nodes) <= len(plan.nodes))
        and all(code in ENDED_BY_US for code in others)
    )
    return FailureCause(cause.rule, cause.confidence, nodes, ranks, detail, only_there)


def fault_codes(cause: Cause) -> str:
    """The driver's codes without the other numbers: "Xid 79", "SXid 20034 fatal"."""
    names, found = {"xid": "Xid", "sxid": "SXid"}, []
    for event in cause.evidence:
        if event.tag in names:
            is_fatal = table.FATAL_CODE.search(event.text) is not None
            code = event["code"] or event["code2"]
            found.append(f"{names[event.tag]} {code}{' fatal' if is_fatal else ''}")
    return ", ".join(dict.fromkeys(found))


def raised(result: RunResult) -> str:
    """The exception that ended the first failed rank, "" for none."""
    if not (failure := result.failure) or failure.rank is None:
        return ""
    end = End("rank", failure.node, 0.0, failure.rank, failure.code, lines=failure.lines)
    by_us = replace(end, code=1).raised  # a signal ended it while it raised, according to the record
    return end.raised or (by_us if printable(by_us) in failure.what else "")
