"""Findings, plans and facts as output: text for people, JSON for machines.  Nothing is decided here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ringup.hosts.folding import MOST_LISTED, node_set
from ringup.model import Cluster, Link, Node
from ringup.output import folding
from ringup.output.pair_matrix import pair_matrix
from ringup.output.terminal import Style, envelope, plain, wrapped
from ringup.rules import PROBLEMS, SEVERITIES, Finding, Fix, Severity, Skipped, page_of, skipped_json
from ringup.secrets import redact, redact_data, safe
from ringup.units import assignment, export_line, grouped, plural, printable, show_seconds, summarize_names

if TYPE_CHECKING:
    from ringup.network.predictions import Expected
    from ringup.planning import EnvVar, Plan
    from ringup.planning.preset_variables import Kept
    from ringup.runtime import Failure, RunResult

NOT_REACHED = "not reached"
"""Prefix of the reason of every unknown fact in `model.unreached_node`."""


def finding_json(finding: Finding) -> dict[str, Any]:
    shown = asdict(replace(finding, fix=finding.fix or Fix("")))
    del shown["subject"], shown["case"]
    shown["help"] = page_of(finding.rule)
    found: dict[str, Any] = plain(redact_data(shown))
    return found


class Report(NamedTuple):
    """The result of a check, in the order of a pipeline's steps."""

    cluster: Cluster
    findings: Sequence[Finding]
    skipped: Sequence[Skipped]
    plan: Plan | None
    predictions: Sequence[Expected] = ()
    kept: Sequence[Kept] = ()


def check_json(report: Report) -> dict[str, Any]:
    from ringup.output.prediction_report import expected_json

    cluster = report.cluster
    return envelope(
        nodes=cluster.nodes,
        findings=[finding_json(f) for f in report.findings],
        not_checked=skipped_json(report.skipped),
        pairs=[{**link, "error": link["error"] or None} for link in plain(cluster.links)],
        schedule=cluster.schedule,
        env=report.plan.env if report.plan else [],
        predictions=[expected_json(p) for p in report.predictions],
        kept=kept_json(report.kept),
    )


def labelled(label: str, text: str, style: Style) -> list[str]:
    """Lines of one labelled paragraph, bounded and safe for a terminal."""
    return paragraph(redact(text), style, f"  {label:<11}", " " * 13) or [f"  {label}"]


def paragraph(text: str, style: Style, first: str = "  ", next_lines: str = "    ") -> list[str]:
    """Lines no wider than the terminal, `first` before the first and `next_lines` before each other."""
    return wrapped(printable(text, 2000), style.width, first, next_lines)


def finding_lines(finding: Finding, style: Style) -> list[str]:
    severity: Severity = finding.severity or "error"
    head = f"{style(severity, severity)}  {style('bold', printable(finding.where, 200))}  {finding.rule}"
    lines = [head, *labelled("found", finding.found, style), *labelled("wanted", finding.wanted, style)]
    if finding.worked_around_by:
        lines += labelled("workaround", finding.worked_around_by, style)
    if severity != "note":
        lines += labelled("why", finding.why, style)
    if finding.fix and severity != "note":
        lines += labelled("fix", finding.fix.text, style)
        lines += [f"             {export_line(k, v)}" for k, v in finding.fix.env.items()]
        lines += [f"             {'$ ' * (c[:1] != '#')}{printable(c, 2000)}" for c in finding.fix.commands]
    return lines


def findings_lines(findings: Iterable[Finding], style: Style) -> Iterator[str]:
    """Findings one after another; the first error or warning of each rule ends with its page's address."""
    named: set[str] = set()
    for finding in findings:
        yield from finding_lines(finding, style)
        if finding.severity != "note" and finding.rule not in named:
            named.add(finding.rule)
            yield f"  {'more':<11}{page_of(finding.rule)}"
        yield ""


def folded(findings: Sequence[Finding], cluster: Cluster | None = None) -> list[Finding]:
    """The same finding on several nodes as one, with all their places; in order.  See `folding`."""
    own = folding.own_words(cluster) if cluster else {}
    merged = []
    for one in folding.merge_equal([_entry(finding, own) for finding in findings]):
        same = [findings[place] for place in one.places]
        first, (found, wanted, around, text) = same[0], one.texts
        commands = on_all_nodes([(f.node or "", c) for f in same if f.fix for c in f.fix.commands])
        fix = first.fix and replace(first.fix, text=text, commands=commands)
        where = first.where if len(same) == 1 else _places(same, one.is_example)
        shown = replace(first, where=where, found=found, wanted=wanted, worked_around_by=around or None)
        merged.append((replace(shown, fix=fix), same))
    few = []
    for variants in grouped(((f.severity, f.rule), (f, same)) for f, same in merged).values():
        rest = variants[MOST_VARIANTS:] if len(variants) > MOST_VARIANTS + 1 else []
        few += [finding for finding, _ in variants[: len(variants) - len(rest)]]
        if rest:  # as one, with the text of the first
            first, every = rest[0][0], [f for _, same in rest for f in same]
            words = f"{len(rest)} more variants (--all shows them), the first: {first.found}"
            few.append(replace(first, where=_places(every, is_example=True), found=words))
    return few


MOST_VARIANTS = 3
"""Findings of one rule and severity that are shown separately."""


def _entry(f: Finding, own: folding.Own) -> folding.NodeText:
    node, fix = f.node or "", f.fix or Fix("")
    texts = (f.found, f.wanted, f.worked_around_by or "", fix.text)
    key = (f.severity, f.rule, *fix.env.items())
    return folding.NodeText(f.where, texts, own.get(node, {node} - {""}), key)


def _places(findings: Sequence[Finding], is_example: bool) -> str:
    """Nodes with their devices; devices that the same nodes have are listed together."""
    # The device is what follows the node's name; a finding about several nodes has none in front.
    things = grouped((f.where.removeprefix(f.node or "").strip(), f.node or "") for f in findings)
    nodes = grouped((tuple(names), thing) for thing, names in things.items())
    parts = []
    for number, (names, what) in enumerate(nodes.items()):
        who = folding.who(names, is_example and not number) if any(names) else ""
        parts.append(f"{who} {summarize_names(what)}".strip())
    return summarize_names(parts, between="; ")


MOST_COMMANDS = 6
"""Most commands of one finding; if nodes need different ones, those of the first node."""
LONGEST_LOOP = 1000


_SSH = re.compile(r"(?P<ssh>ssh(?: -F (?:'[^']*'|[^' ]+))?) (?P<node>[^- ]\S*) (?P<rest>.*)", re.DOTALL)
"""A command for a node, as `rules.ssh` writes it."""


def on_all_nodes(commands: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """
    Commands and their nodes, each once; equal commands for more than three nodes are one loop.

    >>> on_all_nodes([("n0", "ssh n0 'id; ls'"), ("n0", "ip link"), ("n1", "ssh n1 'id; ls'")])
    ("ssh n0 'id; ls'", 'ip link', "ssh n1 'id; ls'")
    >>> on_all_nodes([(f"n{i}", f"ssh n{i} 'id; ls'") for i in range(4)])
    ('for node in n0 n1 n2 n3; do ssh "$node" \\'id; ls\\'; done',)
    """
    ways = [_SSH.fullmatch(command) for _, command in commands]
    nodes = grouped((way.group("ssh", "rest"), way["node"]) for way in ways if way)
    found: dict[str, str] = {}
    for (about, command), way in zip(commands, ways, strict=True):
        same = dict.fromkeys(nodes[way.group("ssh", "rest")] if way else ())
        if way and len(same) > 3:
            loop = f'for node in {" ".join(same)}; do {way["ssh"]} "$node" {way["rest"]}; done'
            command = loop if len(loop) < LONGEST_LOOP else command
        found.setdefault(command, about)
    if len(found) <= MOST_COMMANDS:
        return tuple(found)
    about = next(iter(found.values()))
    others = len({*found.values()} - {about})
    firsts = [command for command, node in found.items() if node == about][:MOST_COMMANDS]
    return (*firsts, f"# and likewise for the other {plural(others, 'node')}") if others else tuple(firsts)


def brief_lines(finding: Finding, style: Style) -> list[str]:
    """A finding before a run: its text, and how ringup works around it or what it wants."""
    severity: Severity = finding.severity or "error"
    found, how = safe(finding.found, 300), printable(finding.worked_around_by or "", 300)
    lines = [f"{style(severity, severity)} {printable(finding.where, 200)}: {found}"]
    if how:
        lines.append(f"  worked around: {how}")
    elif severity != "note" and finding.rule:
        lines.append(f"  wanted: {printable(finding.wanted, 300)} (`ringup explain {finding.rule}`)")
    return lines


def kept_json(kept: Iterable[Kept]) -> list[dict[str, Any]]:
    return [{k: v and printable(v, 1000) for k, v in asdict(one).items()} for one in kept]


def kept_lines(kept: Iterable[Kept], *, unfolded: bool = False) -> list[str]:
    """A line for each; nodes with the same verdict are folded unless `unfolded`."""
    lines = []
    rows = [(replace(k, node=None), [k.node]) for k in kept]
    for one, nodes in rows if unfolded else grouped((k, n[0]) for k, n in rows).items():
        names = [printable(n, 64) for n in nodes if n]
        where = f" on {node_set(names)}" if names else ""
        head = assignment(one.name, printable(one.value, 200))
        lines.append(printable(f"{head}{where}: {one.verdict}: {one.because}", 1000))
    return lines


def plan_lines(plan: Plan, style: Style) -> list[str]:
    ranks, nodes = plural(plan.world_size, "rank"), plural(len(plan.nodes), "node")
    lines = [f"plan: {ranks} on {nodes}, rendezvous at {plan.master_addr} port {plan.master_port}"]
    lines += [line for note in (*plan.notes, *plan.open) for line in paragraph(note, style)]
    return lines + (env_lines(plan.env, style) if plan.env else [])


WISHED = {
    "interrupted": "",
    "saved": "; every rank saved its state",
    "not-saved": "; not every rank saved its state",
}
"""Outcomes of a run that was ended from outside."""
HELD = "no progress before it was interrupted: "


def run_lines(result: RunResult, style: Style) -> list[str]:
    """The end of a run: notes, findings of the clean-up, and last the outcome or the first failure."""
    lines = [f"ringup: {printable(note, 400)}" for note in result.notes]
    for finding in result.findings:
        lines += brief_lines(finding, style)
        if finding.rule == "world-never-formed":
            lines += labelled("fix", PROBLEMS["world-never-formed"].fix, style)
    took = show_seconds(result.seconds)
    if result.outcome == "ok":
        if lines:
            return [*lines, style("warning", f"Finished after {took}; read the lines above.")]
        return [*lines, style("ok", f"Finished: all ranks exited with 0 after {took}; nothing left behind.")]
    if result.outcome == "running":
        again = f"`ringup attach {result.run_id}` returns to it."
        return [*lines, f"The run continues in the background. {again}"]
    if result.outcome in WISHED:
        see_above = "see above for what is left on the nodes"
        left = see_above if result.findings else "nothing left behind on any node"
        if stuck := result.record.get("verdict"):
            what = f"{HELD}{printable(stuck['text'], 300)}"
            lines += [*places(result), style("error", what)]
        if result.failure:
            lines.append(style("error", failure_line(result.failure)))
        return [*lines, style("warning", f"Interrupted after {took}{WISHED[result.outcome]}; {left}.")]
    failure = result.failure
    if failure is None:
        how = f"hung, ended {took} after the start" if result.outcome == "hung" else ""
        words = f"{how or f'{result.outcome} after {took}'}{held_up(result)}"
        return [*lines, *places(result), style("error", words)]
    lines.append(style("error", failure_line(failure)))
    lines += [f"  | {redact(line)}" for line in failure.lines]
    if any("EADDRINUSE" in line for line in failure.lines):
        lines += labelled("fix", PROBLEMS["port-in-use"].fix, style)
    if failure.left_before:
        earlier = printable("; ".join(failure.left_before), 400)
        lines.append(f"  Its error blames another rank. These exited earlier, with code 0: {earlier}")
    elif failure.is_consequence:
        lines.append("  Its error blames another rank, but no other rank failed first.")
    if failure.file:
        lines.append(f"  full output: {printable(failure.file, 400)}")
    elif failure.rank is not None and not failure.lines:
        lines.append("  it printed nothing")
    return lines


def failure_line(failure: Failure) -> str:
    """The line about the first failure, in the form that `ringup logs` reads."""
    seen, at = " seen" * failure.is_consequence, show_seconds(failure.at_s)
    return f"first failure{seen}: {safe(failure.what)}, {at} after the start"


def _missing(hang: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ranks that are missing in a look at a run."""
    return [one for one in hang["missing"] if one["rank"] is not None]


def held_up(result: RunResult) -> str:
    """For a run stopped as hung: the missing ranks, as `ringup logs` reads them."""
    if result.outcome != "hung" or (hang := result.stall) is None:
        return ""
    missing = _missing(hang)
    words = f" missing from {printable(hang['collective'], 64)}"
    if not missing or not hang["collective"] or words not in hang.get("headline", words):
        # It has called something else, or is behind; only its process may be known.
        return f": {printable(hang.get('headline', ''), 300)}".rstrip(": ")
    ranks = ", ".join(str(one["rank"]) for one in missing[:8]) + (", ..." if len(missing) > 8 else "")
    nodes = ", ".join(dict.fromkeys(printable(one["node"], 64) for one in missing[:8]))
    return f": rank{'s' * (len(missing) != 1)} {ranks} on {nodes}{words}"


_GROUP = re.compile(r"(?:\d{1,7} ranks|(?:rank|process) \d{1,7}) \(")
"""Ranks with the same stack (`ringup.hang.grouping.group_line`)."""


def places(result: RunResult) -> list[str]:
    """Where each rank of a run that hung is, the missing ones first, and torch's flight recorder of these."""
    if (hang := result.stall) is None:
        return []
    known, missing = hang.get("lines", ()), _missing(hang)
    own = tuple(f"flight recorder: rank {one['rank']} " for one in missing)
    shown = [f"rank {one['rank']} ({one['node']}): {one['where']}" for one in missing[:8] if one["where"]]
    ends = tuple(one["where"] for one in missing if one["where"])
    shown += [line for line in known if _GROUP.match(line) and not line.endswith(ends)][:4]
    shown += [line for line in known if line.startswith((*own, "flight recorder: ranks "))][:2]
    lines = [f"  {printable(line, 300)}" for line in shown]
    return ["where each was in the code:", *lines] if lines else []


def node_text(node: Node) -> str:
    """Addresses, software and GPUs of a node in a line, or why it was not reached."""
    if node.unreached:
        return f"not reached: {printable(node.unreached.words, 200)}"
    outside = [i for i in node.interfaces if i.kind != "loopback"]
    usable = [f"{i.name} {a.address}" for i in outside for a in i.usable_addresses]
    addresses = ", ".join(usable or (f"{i.name} {a.address}" for i in node.interfaces for a in i.addresses))
    torch = node.interpreter.torch
    software = f"torch {torch}" if torch else "torch unknown" if "interpreter" in node.unknown else "no torch"
    kinds = sorted({g.name for g in node.gpus if g.is_visible and g.name})
    gpus = plural(node.gpu_count, "GPU") if node.gpu_count else "no GPU"
    gpus = "GPUs unknown" if "gpu_count" in node.unknown else gpus
    gpus += f" ({printable(', '.join(kinds), 80)})" if kinds and node.gpu_count else ""
    addresses = addresses or ("interfaces unknown" if "interfaces" in node.unknown else "no address")
    return f"{printable(addresses, 300)}  |  {printable(software, 60)}, {gpus}"


MOST_KINDS = 12
"""Kinds of nodes and of failed paths in a text."""


def node_lines(cluster: Cluster, style: Style, *, unfolded: bool = False) -> list[str]:
    """A line for each kind of node; of a few nodes, or with `unfolded`, for each node."""
    rows = [(printable(node.name, 64), node_text(node)) for node in cluster.nodes]
    unfolded = unfolded or len(rows) <= MOST_LISTED
    kinds = rows if unfolded else list(folding.by_node(rows, folding.own_words(cluster)))
    shown = kinds if unfolded or len(kinds) <= MOST_KINDS else kinds[: MOST_KINDS - 1]
    width = min(40, max((len(name) for name, _ in shown), default=4))
    lines = [line for name, text in shown for line in paragraph(f"{name:<{width}}  {text}", style)]
    left = len(kinds) - len(shown)
    return lines + ([f"  and {left} more kinds of nodes: --all shows them"] if left else [])


def tested_paths(cluster: Cluster) -> tuple[list[Link], list[Link]]:
    """The tested paths between nodes, and those of them that do not work."""
    tried = [li for li in cluster.links if li.purpose == "interface" and li.bound == "routed"]
    return tried, [li for li in tried if not li.works]


def network_line(cluster: Cluster) -> str:
    """The number of paths between nodes that work, the failing ones, and the tested ones."""
    tried, bad = tested_paths(cluster)
    if not tried:
        return "network: no paths tested" if len(cluster.nodes) > 1 else "network: one node, no paths to test"
    how = cluster.schedule or "all pairs of nodes, all addresses, small and large messages"
    failed = summarize_names(folding.failed_paths(tried, bad), MOST_KINDS)
    good = f"network: {len(tried) - len(bad):,} of {len(tried):,} paths work ({how})"
    return f"{good}; failed: {failed}" if bad else good


def env_lines(variables: Sequence[EnvVar], style: Style, *, unfolded: bool = False) -> list[str]:
    """The recommended environment to paste, each variable with its reason."""
    lines = []
    rows = [(replace(v, node=None), [v.node]) for v in variables]
    for v, nodes in rows if unfolded else grouped((v, n[0]) for v, n in rows).items():
        names = [printable(n, 64) for n in nodes if n]
        reason = f"{f'on {node_set(names)}: ' if names else ''}{printable(v.because, 300)}"
        lines += [f"  {export_line(v.name, v.value)}", *paragraph(reason, style, "      # ", "      # ")]
    return lines or ["  nothing to set: the defaults of NCCL and Gloo work here"]


def root_lines(skipped: Sequence[Skipped], *, unfolded: bool = False) -> list[str]:
    """Additional checks as root: a line for each command, with its rules and nodes."""
    lines = []
    rows = [((s.rule, s.as_root), [s]) for s in skipped if s.as_root]
    for (rule, command), same in rows if unfolded else grouped((k, s[0]) for k, s in rows).items():
        where = node_set(printable(s.node or "all", 64) for s in same)
        why = same[0].reason.removeprefix("needs root: ")
        lines += [f"  {rule} on {where}: {printable(why, 200)}", f"    $ {printable(command, 300)}"]
    return lines


def skipped_lines(skipped: Sequence[Skipped], *, unfolded: bool = False) -> list[str]:
    """
    Unchecked rules, one line per reason: rules are folded, and nodes with the same text.

    If several facts are unknown for one reason (`--setup` failed), the reason is shown once.  If that would
    be many lines, nodes with one reason are together, whichever rules it concerns.
    """
    own = {s.node or "": frozenset([s.node]) for s in skipped if s.node}
    shown = [s for s in skipped if not s.is_partial]
    if unfolded:
        return [f"  {printable(s.node or 'all', 64)}: {s.rule}: {printable(s.reason)}" for s in shown]
    rows = []
    for (node, reason), same in grouped(((s.node, common_reason(s.reason)), s) for s in shown).items():
        names = summarize_names((s.rule for s in same), 3)
        if reason == NOT_REACHED:
            names = plural(len(same), "rule")
        elif len({s.reason for s in same}) == 1:
            reason = same[0].reason
        rows.append((printable(node or "all", 64), f"{names}: {printable(reason, 300)}"))
    lines = [f"  {nodes}: {words}" for nodes, words in folding.by_node(rows, own, numbers=True)]
    return lines if len(lines) <= MOST_KINDS else _by_reason(shown, own)


def _by_reason(skipped: Sequence[Skipped], own: folding.Own) -> list[str]:
    """The unchecked rules, a line for each kind of reason."""
    names = [printable(s.node or "all", 64) for s in skipped]
    entries = [
        folding.NodeText(name, (_whys(s.reason)[0],), own.get(s.node or "", ()))
        for name, s in zip(names, skipped, strict=True)
    ]
    lines = []
    for one in folding.merge_equal(entries):
        rules = grouped((skipped[place].rule, names[place]) for place in one.places)
        some = "some of " * (len(set(map(frozenset, rules.values()))) > 1)
        nodes = folding.who(list(dict.fromkeys(names[place] for place in one.places)), one.is_example)
        lines.append(f"  {nodes}: {some}{summarize_names(rules, 3)}: {printable(one.texts[0], 300)}")
    left = len(lines) - MOST_KINDS
    return [*lines[:MOST_KINDS], *([f"  and {left} more reasons: --all shows them"] if left > 0 else [])]


_FACT = re.compile(r"(?:^|; )[a-z_]+: ")


def _whys(reason: str) -> list[str]:
    """The reasons why facts are unknown, without the facts' names."""
    return [NOT_REACHED] if f": {NOT_REACHED}:" in reason else [why for why in _FACT.split(reason) if why]


def common_reason(reason: str) -> str:
    """
    The common reason why all these facts are unknown, if it is the same for each.

    >>> common_reason("limits: --setup failed; gpu_count: --setup failed"), common_reason("a: b; c: d")
    ('--setup failed', 'a: b; c: d')
    """
    whys = set(_whys(reason))
    return whys.pop() if len(whys) == 1 else reason


def counts(findings: Sequence[Finding]) -> str:
    """ "1 error, 2 warnings", or that there are none."""
    numbers = {severity: sum(f.severity == severity for f in findings) for severity in SEVERITIES}
    return ", ".join(plural(n, severity) for severity, n in numbers.items() if n) or "no problems found"


def verdict(findings: Sequence[Finding], skipped: Sequence[Skipped], plan: Plan | None) -> str:
    """The last line of a check: whether the job can start, and the findings to read before."""
    errors = sum(f.severity == "error" for f in findings)
    warnings = [f for f in findings if f.severity == "warning"]
    if errors:
        return f"Not ready: fix the {plural(errors, 'error') if errors > 1 else 'error'} above."
    found = f"{plural(len(warnings), 'warning')} (see above)" if warnings else "No problems found"
    if plan is None:
        is_unsure = any(not s.is_partial for s in skipped)
        return 'Not ready: see "not checked" above.' if is_unsure else f"{found}."
    if not warnings:
        return f"{found}. Ready to run."
    around = sum(bool(f.worked_around_by) for f in warnings)
    if around == len(warnings):
        return f"Ready to run. ringup works around {found}."
    return f"Ready to run, with {found}." + (f" ringup works around {around} of them." if around else "")


def sections(report: Report, style: Style, *, unfolded: bool = False) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each section of a check, except its findings."""
    # Other commands print findings alone.
    from ringup.network.predictions import GLOO
    from ringup.output.prediction_report import prediction_lines

    plan, predictions = report.plan, report.predictions
    if plan:
        notes = (line for note in (*plan.notes, *plan.open) for line in paragraph(note, style))
        yield "environment", [*env_lines(plan.env, style, unfolded=unfolded), *notes]
    if predictions and not (report.cluster.is_local and predictions[0].prediction.network == GLOO):
        title = f"expected {'Gloo' if predictions[0].prediction.network == GLOO else 'NCCL'} selection"
        yield title, prediction_lines(predictions, unfolded=unfolded)
    yield "already set", [f"  {line}" for line in kept_lines(report.kept, unfolded=unfolded)]
    yield "not checked", skipped_lines(report.skipped, unfolded=unfolded)
    yield "more checks as root", root_lines(report.skipped, unfolded=unfolded)


WITHOUT_ROOT = "Without root: give the commands with sudo to the administrators of the nodes."


def check_text(report: Report, style: Style, *, unfolded: bool = False) -> str:
    """`ringup check` for people, errors and the verdict last; `unfolded` shows every node and finding."""
    cluster = report.cluster
    lines = [style("bold", plural(len(cluster.nodes), "node"))]
    lines += node_lines(cluster, style, unfolded=unfolded)
    tried, failed = tested_paths(cluster)
    lines += [*paragraph(network_line(cluster), style), *pair_matrix(tried, failed, style)]
    for li in failed if unfolded else ():
        why = printable(li.error or "a large message was lost", 200)
        words = f"{li.src} -> {li.dst} {li.dst_interface} {li.address}: {why}"
        lines += paragraph(words, style, "    ", "      ")
    lines.append("")
    for title, rows in sections(report, style, unfolded=unfolded):
        lines += [style("bold", title), *rows, ""] if rows else []
    shown = list(report.findings) if unfolded else folded(report.findings, cluster)
    lines += findings_lines(sorted(shown, key=lambda f: -SEVERITIES.index(f.severity or "error")), style)
    if any("sudo " in c for f in shown if f.fix for c in f.fix.commands) and any(
        n.uid > 0 for n in cluster.nodes
    ):
        lines += [*paragraph(WITHOUT_ROOT, style), ""]
    worst = report.findings[0].severity or "error" if report.findings else "ok"
    return "\n".join([*lines, style(worst, verdict(shown, report.skipped, report.plan))])
