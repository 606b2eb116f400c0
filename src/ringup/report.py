"""Findings, plans and facts shown: text for people, JSON for machines.  Nothing is decided here."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, TextIO

from ringup import __version__, problems
from ringup.chosen import expected_json, prediction_lines
from ringup.facts import Cluster, Link, Node
from ringup.launch import RunResult
from ringup.plan import EnvVar, Plan
from ringup.plan.expected import GLOO, Expected
from ringup.plan.kept import Kept
from ringup.rules import Finding, Fix, Severity, Skipped
from ringup.units import columns, export_line, printable, show_seconds

SCHEMA = 1
NOT_REACHED = "not reached"
"""How `facts.unreached_node` begins the reason of every fact it could not have."""
_COLOURS = {"error": "31;1", "warning": "33", "note": "36", "ok": "32", "dim": "2", "bold": "1"}


UNDECIDED = ": not ready, see what was not checked"
"""Of a cluster without errors for which no plan can be made all the same."""


class Style:
    """How wide lines are; colour where wanted: a terminal, NO_COLOR (no-color.org) unset or empty."""

    def __init__(self, stream: TextIO) -> None:
        self.width = columns(stream)
        self.on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.on else text


def envelope(**fields: Any) -> dict[str, Any]:
    """Every JSON object's first two keys, then its own; infinities become null."""
    return {"ringup": __version__, "schema": SCHEMA, **{k: plain(v) for k, v in fields.items()}}


def plain(value: Any) -> Any:
    """Data that JSON can hold: tuples as lists, infinities and NaN as null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def finding_json(finding: Finding) -> dict[str, Any]:
    """A finding as INTERFACE.md promises it."""
    fix = finding.fix or Fix("")
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "node": finding.node,
        "where": finding.where,
        "found": finding.found,
        "wanted": finding.wanted,
        "why": finding.why,
        "worked_around_by": finding.worked_around_by,
        "fix": {"text": fix.text, "env": dict(fix.env), "commands": list(fix.commands)},
    }


def link_json(link: Link) -> dict[str, Any]:
    """One attempt as INTERFACE.md promises it."""
    return {**asdict(link), "error": link.error or None}


def env_json(variables: Iterable[EnvVar]) -> list[dict[str, Any]]:
    """The recommended variables as INTERFACE.md promises them."""
    return [{"name": v.name, "value": v.value, "node": v.node, "because": v.because} for v in variables]


def check_json(
    cluster: Cluster,
    findings: Sequence[Finding],
    skipped: Sequence[Skipped],
    plan: Plan | None,
    predictions: Sequence[Expected] = (),
    kept: Sequence[Kept] = (),
) -> dict[str, Any]:
    """`check --json`."""
    return envelope(
        nodes=[asdict(node) for node in cluster.nodes],
        findings=[finding_json(f) for f in findings],
        not_checked=[asdict(s) for s in skipped],
        pairs=[link_json(link) for link in cluster.links],
        schedule=cluster.schedule,
        env=env_json(plan.env if plan else ()),
        predictions=[expected_json(p) for p in predictions],
        kept=kept_json(kept),
    )


def wrapped(label: str, text: str, style: Style) -> list[str]:
    """Lines of one labelled paragraph, bounded and harmless on a terminal."""
    indent = " " * 10
    return textwrap.wrap(
        printable(text, 2000),
        width=style.width,
        initial_indent=f"  {label:<8}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [f"  {label}"]


def finding_lines(finding: Finding, style: Style) -> list[str]:
    """A finding on a few lines: what, where, why, what to do."""
    severity: Severity = finding.severity or "error"
    head = f"{style(severity, severity)}  {style('bold', printable(finding.where, 200))}  {finding.rule}"
    lines = [head, *wrapped("found", finding.found, style), *wrapped("wanted", finding.wanted, style)]
    if finding.worked_around_by:
        lines += wrapped("avoided", finding.worked_around_by, style)
    if severity != "note":
        lines += wrapped("why", finding.why, style)
    if finding.fix and severity != "note":
        lines += wrapped("fix", finding.fix.text, style)
        lines += [f"          {export_line(k, v)}" for k, v in finding.fix.env.items()]
        lines += [f"          $ {printable(c, 2000)}" for c in finding.fix.commands]
    return lines


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """The same finding on several nodes as one, with all of their places; order kept."""
    groups: dict[tuple[str | None, ...], list[Finding]] = {}
    for f in findings:
        groups.setdefault((f.severity, f.rule, f.found, f.wanted, f.worked_around_by), []).append(f)
    merged = []
    for same in groups.values():
        places = [f.where for f in same]
        shown = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
        merged.append(replace(same[0], where=shown))
    return merged


def brief_lines(finding: Finding, style: Style) -> list[str]:
    """A finding before a run: one line, and one more for how it is gone around."""
    severity: Severity = finding.severity or "error"
    lines = [f"{style(severity, severity)} {printable(finding.where, 200)}: {printable(finding.found, 300)}"]
    if finding.worked_around_by:
        lines.append(f"  avoided: {printable(finding.worked_around_by, 300)}")
    return lines


def kept_json(kept: Iterable[Kept]) -> list[dict[str, Any]]:
    """The variables that are set already, each judged."""
    return [
        {
            "name": printable(k.name),
            "value": printable(k.value),
            "node": k.node,
            "verdict": k.verdict,
            "because": printable(k.because, 1000),
        }
        for k in kept
    ]


def kept_lines(kept: Iterable[Kept]) -> list[str]:
    """A line for each, nodes on which it is judged alike folded."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for k in kept:
        nodes = groups.setdefault((k.name, k.value, k.verdict, k.because), [])
        nodes += [k.node] if k.node else []
    lines = []
    for (name, value, verdict, because), nodes in groups.items():
        more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
        where = f" on {', '.join(printable(n, 64) for n in nodes[:3])}{more}" if nodes else ""
        lines.append(printable(f"{name}={printable(value, 200)}{where}: {verdict}: {because}", 1000))
    return lines


def plan_lines(plan: Plan) -> list[str]:
    """What was decided, before a run."""
    ranks = f"{plan.world_size} rank{'s' * (plan.world_size != 1)}"
    nodes = f"{len(plan.nodes)} node{'s' * (len(plan.nodes) != 1)}"
    lines = [f"plan: {ranks} on {nodes}, rendezvous {plan.master_addr} port {plan.master_port}"]
    lines += [f"  {printable(note, 300)}" for note in (*plan.notes, *plan.open)]
    return lines + (env_lines(plan.env) if plan.env else [])


def run_lines(result: RunResult, style: Style) -> list[str]:
    """How a run ended: what cleaning up found, then the first failure, which is read last."""
    lines = [f"ringup: {printable(note, 400)}" for note in result.notes]
    for finding in result.findings:
        lines += brief_lines(finding, style)
    took = show_seconds(result.seconds)
    if result.outcome == "ok":
        if result.findings:
            return [*lines, style("warning", f"done after {took}, with what is said above")]
        return [*lines, style("ok", f"done: all ranks ended well after {took}; nothing left behind")]
    if result.outcome == "running":
        return [*lines, f"the run goes on without us; back to it: ringup attach {result.run_id}"]
    if result.outcome == "interrupted":
        left = "every node was ended, nothing left behind"
        left = "what its nodes were left with is said above" if result.findings else left
        return [*lines, style("warning", f"interrupted after {took}; {left}")]
    failure = result.failure
    if failure is None:
        why, place = held_up(result)
        return [*lines, *place, style("error", f"{result.outcome} after {took}{why}")]
    lines.append(
        style(
            "error",
            f"first failure{' seen' * failure.is_consequence}: {printable(failure.what, 400)},"
            f" {show_seconds(failure.at_s)} after the start",
        )
    )
    lines += [f"  | {line}" for line in failure.lines]
    if any("EADDRINUSE" in line for line in failure.lines):
        lines += wrapped("fix", problems.PORT_IN_USE.fix, style)
    if failure.left_before:
        words = printable("; ".join(failure.left_before), 400)
        lines.append(f"  its own words say that another rank ended first; with exit code 0 did: {words}")
    elif failure.is_consequence:
        lines.append("  its own words say that another rank ended first, and no rank was seen to")
    if failure.file:
        lines.append(f"  all of its output: {printable(failure.file, 400)}")
    elif failure.rank is not None and not failure.lines:
        lines.append("  it printed nothing")
    return lines


def held_up(result: RunResult) -> tuple[str, list[str]]:
    """Of a run that was ended as hung: who was missing (words that `ringup logs` reads), and where."""
    hangs = [hang for hang in result.record.get("hangs", ()) if hang["verdict"] == "stalled"]
    if result.outcome != "hung" or not hangs:
        return "", []
    hang, missing = hangs[-1], [one for one in hangs[-1]["missing"] if one["rank"] is not None]
    lines = [f"  rank {one['rank']}: {printable(one['where'], 300)}" for one in missing[:8] if one["where"]]
    words = f" missing from {printable(hang['collective'], 64)}"
    if not missing or not hang["collective"] or words not in hang.get("headline", words):
        # It has called something else, or is behind; which process it is may be all that is known.
        return f": {printable(hang.get('headline', ''), 300)}".rstrip(": "), lines
    ranks = ", ".join(str(one["rank"]) for one in missing[:8]) + (", ..." if len(missing) > 8 else "")
    nodes = ", ".join(dict.fromkeys(printable(one["node"], 64) for one in missing[:8]))
    return f": rank{'s' * (len(missing) != 1)} {ranks} on {nodes}{words}", lines


def node_line(node: Node, width: int) -> str:
    """One node in one line."""
    name = f"{printable(node.name, 64):<{width}}"
    if node.unreached:
        return f"  {name}  not reached: {printable(node.unreached.words, 200)}"
    addresses = ", ".join(
        f"{i.name} {a.address}" for i in node.interfaces if i.kind != "loopback" for a in i.usable_addresses
    )
    if not addresses and node.interfaces:
        addresses = ", ".join(f"{i.name} {a.address}" for i in node.interfaces for a in i.addresses)
    torch = node.interpreter.torch
    software = (
        f"torch {torch}" if torch else "no torch" if "interpreter" not in node.unknown else "torch unknown"
    )
    kinds = sorted({g.name for g in node.gpus if g.is_visible and g.name})
    gpus = f"{node.gpu_count} GPU{'s' * (node.gpu_count != 1)}" if node.gpu_count else "no GPU"
    gpus = "GPUs unknown" if "gpu_count" in node.unknown else gpus
    gpus += f" ({printable(', '.join(kinds), 80)})" if kinds and node.gpu_count else ""
    return f"  {name}  {printable(addresses, 300)}  |  {printable(software, 60)}, {gpus}"


def pairs_line(cluster: Cluster) -> str:
    """How many attempts succeeded, and whether they were all there could be."""
    tried = [li for li in cluster.links if li.purpose == "interface" and li.bound == "routed"]
    if not tried:
        return "no pairs tried" if len(cluster.nodes) > 1 else "one node: no pairs to prove"
    good = sum(li.ok and li.large_packet_ok is not False for li in tried)
    how = cluster.schedule or "every node to every address of every other, both directions"
    return f"{good} of {len(tried)} paths carry small and large messages ({how})"


def env_lines(variables: Sequence[EnvVar]) -> list[str]:
    """The recommended environment, each with its reason."""
    if not variables:
        return ["  nothing to set: NCCL and Gloo choose well here"]
    return [
        f"  {v.name}={printable(v.value)}{f'  [{printable(v.node, 64)}]' if v.node else ''}"
        f"  # {printable(v.because, 300)}"
        for v in variables
    ]


def root_lines(skipped: Sequence[Skipped]) -> list[str]:
    """What root would add: a line for each command, with the rules and nodes it is for."""
    groups: dict[tuple[str, str], list[Skipped]] = {}
    for s in skipped:
        if s.as_root:
            groups.setdefault((s.rule, s.as_root), []).append(s)
    lines = []
    for (rule, command), same in groups.items():
        nodes = [printable(s.node or "all", 64) for s in same]
        where = ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")
        why = same[0].reason.removeprefix("needs root: ")
        lines += [f"  {rule} on {where}: {printable(why, 200)}", f"    $ {printable(command, 300)}"]
    return lines


def skipped_lines(skipped: Sequence[Skipped]) -> list[str]:
    """
    What was not checked, one line a reason: rules folded, and nodes of which the same is said.

    Where several facts are unknown for one reason (`--setup` failed), the reason stands once.
    """
    groups: dict[tuple[str | None, str], list[Skipped]] = {}
    for s in (s for s in skipped if not s.is_partial):
        groups.setdefault((s.node, common_reason(s.reason)), []).append(s)
    alike: dict[str, list[str]] = {}
    for (node, reason), same in groups.items():
        rules = [s.rule for s in same]
        names = ", ".join(rules[:3]) + (f" and {len(rules) - 3} more" if len(rules) > 3 else "")
        if reason == NOT_REACHED:
            names = f"{len(rules)} rule{'s' * (len(rules) != 1)}"
        if len({s.reason for s in same}) == 1 and reason != NOT_REACHED:
            reason = same[0].reason
        alike.setdefault(f"{names}: {printable(reason, 300)}", []).append(printable(node or "all", 64))
    return [
        f"  {', '.join(nodes[:3])}{f' and {len(nodes) - 3} more' * (len(nodes) > 3)}: {words}"
        for words, nodes in alike.items()
    ]


def common_reason(reason: str) -> str:
    """
    Why all the facts of a reason are unknown, where it is the same for each.

    >>> common_reason("limits: --setup failed; gpu_count: --setup failed"), common_reason("a: b; c: d")
    ('--setup failed', 'a: b; c: d')
    """
    if f": {NOT_REACHED}:" in reason:
        return NOT_REACHED
    parts = [part.partition(": ") for part in reason.split("; ")]
    whys = {why for fact, _, why in parts if fact.isidentifier()}
    return whys.pop() if len(whys) == 1 and all(fact.isidentifier() for fact, _, _ in parts) else reason


def counts(findings: Sequence[Finding]) -> str:
    """ "1 error, 2 warnings" or the good news."""
    words = []
    for severity in ("error", "warning", "note"):
        number = sum(f.severity == severity for f in findings)
        if number:
            words.append(f"{number} {severity}{'s' * (number != 1)}")
    return ", ".join(words) or "nothing found"


def check_text(
    cluster: Cluster,
    findings: Sequence[Finding],
    skipped: Sequence[Skipped],
    plan: Plan | None,
    style: Style,
    predictions: Sequence[Expected] = (),
    kept: Sequence[Kept] = (),
) -> str:
    """`ringup check` for people: findings worst first, then what the plan would be and what it leads to."""
    width = max((len(n.name) for n in cluster.nodes), default=4)
    lines = [style("bold", f"{len(cluster.nodes)} node{'s' * (len(cluster.nodes) != 1)}")]
    shown = cluster.nodes if len(cluster.nodes) <= 16 else (*cluster.nodes[:8], *cluster.nodes[-2:])
    lines += [node_line(node, min(width, 40)) for node in shown]
    if len(shown) < len(cluster.nodes):
        lines.append(f"  ... {len(cluster.nodes) - len(shown)} more nodes are in --json")
    lines += [f"  {pairs_line(cluster)}", ""]
    for finding in folded(findings):
        lines += [*finding_lines(finding, style), ""]
    if plan:
        lines += [style("bold", "environment"), *env_lines(plan.env)]
        lines += [f"  {printable(note, 300)}" for note in (*plan.notes, *plan.open)]
        lines.append("")
    if predictions and not (cluster.is_local and predictions[0].prediction.network == GLOO):
        lines += [style("bold", "what will be chosen"), *prediction_lines(predictions), ""]
    for title, told in (
        ("set already", [f"  {line}" for line in kept_lines(kept)]),
        ("not checked", skipped_lines(skipped)),
        ("root would also see", root_lines(skipped)),
    ):
        lines += [style("bold", title), *told, ""] if told else []
    worst = findings[0].severity or "error" if findings else "ok"
    verdict = counts(folded(findings))
    undecided = UNDECIDED if any(not s.is_partial for s in skipped) else ""
    if worst in ("ok", "note"):
        verdict += ": ready to run" if plan else undecided
    elif worst == "warning":
        verdict += ": ready to run, with what is said above" if plan else undecided
    else:
        verdict += ": do not start before the errors are gone"
    lines.append(style(worst, verdict))
    return "\n".join(lines)
