"""`--html F` and `ringup report`: one self-contained page.  No script, nothing fetched."""

from __future__ import annotations

import contextlib
import functools
import io
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jinja2
import msgspec
from markupsafe import Markup

from ringup import saved_run
from ringup.draw import PATTERNS, STYLE
from ringup.model import Node
from ringup.output import network_pictures, timeline_report
from ringup.output.console import Report, counts, folded, network_line, sections, verdict
from ringup.output.network_pictures import Figure
from ringup.output.terminal import Style, path_shown
from ringup.rules import Finding, Fix
from ringup.saved_run import SavedRun
from ringup.secrets import safe
from ringup.units import (
    export_line,
    grouped,
    plural,
    printable,
    show_bytes,
    show_ranks,
    show_seconds,
    summarize_names,
)
from ringup.version import __version__

if TYPE_CHECKING:
    from ringup.collective_tests import BandwidthReport, CorrectnessReport
    from ringup.logs.read import Diagnosis
    from ringup.logs.rule import Cause
    from ringup.timeline import Timeline

MOST_ROWS = 200
MOST_CAUSES, MOST_FIRST, MOST_EVIDENCE = 8, 3, 3
OUTCOMES = {
    "ok": "The run finished", "rank-failed": "The run failed", "hung": "The run hung",
    "launcher-error": "The start failed", "check-stopped": "The check stopped the run",
    "interrupted": "The run was interrupted", "saved": "The run was ended after it saved",
    "not-saved": "The run was ended before it saved", "running": "The run goes on",
    "restarting": "The run is being restarted",
}  # fmt: skip


VERSIONS = {
    "python": "python", "torch": "torch", "CUDA": "cuda", "NCCL": "nccl", "GPU driver": "driver",
    "kernel": "kernel",
}  # fmt: skip
"""Name on the page -> name in `Node.versions`."""


class Block(NamedTuple):
    """A cause or a finding as shown."""

    severity: str
    rule: str
    head: str
    fields: Sequence[tuple[str, str]] = ()
    evidence: Sequence[str] = ()
    fix: Fix | None = None


class Details(NamedTuple):
    """Folded away; a table or lines."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    lines: Sequence[str] = ()
    left_out: int = 0
    shown: bool = False
    """Not folded."""


@dataclass
class Page:
    command: str
    again: str = ""
    """The command that writes this page again."""
    tone: str = "ok"
    """error, warning, note or ok."""
    headline: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    entries: list[Block] = field(default_factory=list)
    first: int = MOST_FIRST
    """Number of entries above the pictures."""
    timeline: Timeline | None = None
    figures: list[Figure] = field(default_factory=list)
    findings: list[Block] = field(default_factory=list)
    details: list[Details] = field(default_factory=list)


def _harmless(value: object) -> object:
    """Text from a node without secrets and control characters; `autoescape` makes it text of HTML."""
    if isinstance(value, Markup | jinja2.Undefined):
        return value
    return "\n".join(safe(line, 2000) for line in str(value).split("\n"))


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("ringup.output"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["commands"] = lambda fix: [*(export_line(k, v) for k, v in fix.env.items()), *fix.commands]
    return made


def render(page: Page) -> str:
    timeline, lanes = page.timeline, None
    if timeline and timeline.ranks and timeline.end_s > 0:
        rows, left_out = timeline_report.rows(timeline)
        lanes = {
            "rows": [(row, Markup(row.picture)) for row in rows],
            "left_out": left_out,
            "axis": timeline_report.axis(timeline),
            "legend": timeline_report.legend(timeline),
            "words": [timeline_report.clock_words(timeline), timeline_report.source_words(timeline)],
        }
    pictures = [(one, Markup(one.picture)) for one in page.figures]
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    own = {"style": Markup(STYLE), "patterns": Markup(PATTERNS), "version": __version__, "made": made}
    return _environment().get_template("page.j2").render(page=page, lanes=lanes, pictures=pictures, **own)


# -- a check -----------------------------------------------------------------------------------


def node_row(node: Node) -> tuple[str, ...]:
    if node.unreached:
        return (node.name, f"not reached: {node.unreached.words}", "", "", "")
    interfaces = []
    for i in node.interfaces:
        addresses = ", ".join(a.address for a in i.addresses) or "no address"
        interfaces.append(f"{i.name} {addresses}{'' if i.is_linked else ' (down)'}")
    shown = "\n".join(interfaces) or ("unknown" if "interfaces" in node.unknown else "none")
    python = "unknown" if "interpreter" in node.unknown else node.interpreter.path or "none"
    gpus = "unknown" if "gpu_count" in node.unknown else str(node.gpu_count)
    return (node.name, shown, python, node.versions.get("torch", "none"), gpus)


def _finding(one: Finding) -> Block:
    fields = [("found", one.found), ("wanted", one.wanted)]
    fields += [("workaround", one.worked_around_by or ""), ("why", one.why)]
    return Block(one.severity or "error", one.rule, one.where, fields, fix=one.fix)


def add_check(page: Page, report: Report) -> None:
    """Findings, pictures of the network and the nodes, the expected selection and set variables."""
    found = folded(report.findings, report.cluster)
    size = f"{plural(len(report.cluster.nodes), 'node')}, {counts(report.findings)}"
    if not page.headline:
        page.headline = verdict(found, report.skipped, report.plan).replace(" above", " below")
        page.tone = found[0].severity or "error" if found else "ok"
        page.facts += [("checked", size), ("network", network_line(report.cluster).partition(": ")[2])]
        shown = [*map(_finding, found)]
        worst = [one for one in shown if one.severity != "note"][:MOST_FIRST]
        page.entries += worst
        page.findings += [one for one in shown if one not in worst]
    page.figures += network_pictures.of_cluster(report)
    rows = [node_row(node) for node in report.cluster.nodes]
    page.details.append(_table("Nodes", ("node", "interfaces", "python", "torch", "GPUs"), rows))
    for title, lines in sections(report, Style(io.StringIO())):
        if lines:
            page.details.append(Details(title[0].upper() + title[1:], lines=lines))
    page.details += _versions(report.cluster.nodes)


def _versions(nodes: Iterable[Node]) -> Iterator[Details]:
    reached = [(node.name, node.versions) for node in nodes if not node.unreached]
    kinds = grouped(((what, own.get(key, "none")), n) for n, own in reached for what, key in VERSIONS.items())
    known = [name for name, version in kinds if version != "unknown"]
    differ = {name for name in known if known.count(name) > 1}
    rows = [
        (name, version, summarize_names(names, 8), "differs" if name in differ else "")
        for (name, version), names in sorted(kinds.items(), key=lambda one: one[0][0] not in differ)
    ]
    if rows:
        yield _table("Versions" + " (some differ)" * bool(differ), ("what", "version", "nodes", ""), rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Details:
    return Details(title, head, rows[:MOST_ROWS], left_out=max(0, len(rows) - MOST_ROWS))


# -- logs and runs -----------------------------------------------------------------------------


def _said(cause: Cause) -> str:
    """Its text without words that a headline already has."""
    return cause.text.removesuffix("; the run was ended as hung")


def _cause(cause: Cause, diagnosis: Diagnosis, headline: str) -> Block:
    files = diagnosis.story.files
    places = ", ".join([*cause.nodes[:16], *([show_ranks(cause.ranks)] if cause.ranks else [])])
    evidence = cause.evidence[:MOST_EVIDENCE]
    lines = [f"{path_shown(files[e.file].path)}:{e.line}  {printable(e.text, 300)}" for e in evidence]
    fields = [("where", places), ("confidence", cause.confidence)]
    if _said(cause) not in headline:
        fields.insert(0, ("cause", cause.text))
    if defect := cause.known_defect:
        fields.append(("known", f"{defect.id}: {defect.text}"))
    return Block(cause.severity or "error", cause.rule, "", fields, lines, cause.fix)


def add_logs(page: Page, diagnosis: Diagnosis) -> None:
    from ringup.output.logs_report import used_devices

    causes = diagnosis.causes
    leads, page.first = causes[0] if causes else None, 1
    if not page.headline:
        page.headline = leads.text if leads else "No failure found"
        page.tone = (leads.severity or "error") if leads else "ok"
    elif leads and leads.severity == "error" == page.tone:
        page.headline += f": {_said(leads)}"
    page.entries += [_cause(cause, diagnosis, page.headline) for cause in causes[:MOST_CAUSES]]
    networks = [
        [h.name, h.kind, " ".join(h.bootstrap or ()), ", ".join(used_devices(h)), ", ".join(h.interfaces)]
        for h in diagnosis.story.hosts.values()
        if h.kind or h.bootstrap
    ]
    run, init = diagnosis.run, {True: "complete", False: "not complete", None: ""}
    if networks:
        head = ("node", "network", "bootstrap", "in use", "available")
        page.details.append(_table("Networks", head, networks))
    if called := [*run.transports.items(), *run.collectives.items()]:
        page.details.append(_table("Transports and collectives", ("what", "count"), called))
    files = []
    for i in diagnosis.story.files:
        rank = "" if i.rank is None else i.rank
        files.append((path_shown(i.path), i.host, rank, i.lines, init[i.init_complete], i.last_line))
    if files:
        columns = ("file", "node", "rank", "lines", "NCCL set-up", "last line")
        page.details.append(_table("Files", columns, files))


def add_run(page: Page, record: SavedRun) -> None:
    """The end of a run, its attempts, environment and findings."""
    how, took = OUTCOMES.get(record.outcome, record.outcome), show_seconds(record.seconds)
    page.headline = f"{how} after {took}"
    if len(record.attempts) > 1:
        page.headline += f", in attempt {len(record.attempts)}"
    if record.outcome == "ok":
        page.headline += ": all ranks exited with 0"
    page.tone = "ok" if record.outcome in ("ok", "saved") else "note" if record.exit_code is None else "error"
    if plan := record.plan:
        ranks = plural(len(record.ranks) or plan.world_size, "rank")
        nodes = summarize_names([n.node for n in plan.nodes], 8)
        page.facts.append(("run", f"{record.run}: {plan.job.script} ({ranks} on {nodes})"))
    page.facts.append(("started", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(record.started))))
    if failure := record.first_failure:
        what = f"{printable(failure.what, 160)}, {show_seconds(failure.at_s)} after the start"
        page.facts.append(("first failure", what))
    if hang := record.stall:
        quiet_s = max(hang.at_s - hang.quiet_s, 0.0)
        since = f"{show_seconds(quiet_s)} after the start" if quiet_s >= 0.1 else "the start"
        page.facts.append(("no progress", f"from {since} on; noticed after {show_seconds(hang.at_s)}"))
    if record.verdict and record.verdict.evidence:
        page.facts.append(("ranks", "\n".join(record.verdict.evidence)))
    page.details += _of_run(record)


def _of_run(record: SavedRun) -> Iterator[Details]:
    if len(record.attempts) > 1:
        attempts = [
            (a.number, ", ".join(a.nodes), show_seconds(a.took_s), a.outcome,
             a.cause.rule if a.cause else "", f"{a.decision or ''}: {a.because}".strip(": "))
            for a in record.attempts
        ]  # fmt: skip
        yield _table("Attempts", ("attempt", "nodes", "took", "outcome", "cause", "then"), attempts)
    if record.plan and record.plan.env:
        set_ = [(export_line(v.name, v.value), v.node or "all nodes", v.because) for v in record.plan.env]
        yield _table("Environment that ringup set", ("variable", "on", "because"), set_)
    expected, seen = (
        {one.node: f"{one.network} {' '.join(one.devices)}".strip() for one in listed}
        for listed in (record.transports.expected, record.transports.seen)
    )
    if expected or seen:
        taken = [(name, expected.get(name, ""), seen.get(name, "")) for name in {**expected, **seen}]
        yield _table("Network: expected and taken", ("node", "expected", "NCCL took"), taken)
    if record.notes:
        yield Details("Notes of the run", lines=record.notes)


# -- bench -------------------------------------------------------------------------------------


def add_bench(page: Page, outcome: BandwidthReport) -> None:
    """Curves, pairs, the verdict against the link's rate."""
    page.tone = {"ok": "ok", "slow": "warning", "not_judged": "note"}[outcome.verdict]
    page.tone = page.tone if outcome.correct else "error"
    wrong = "" if outcome.correct else "A result was wrong. "
    page.headline = f"{wrong}Bandwidth {outcome.verdict.replace('_', ' ')}: {outcome.because}"
    size = f"{plural(outcome.ranks, 'rank')} on {plural(outcome.nodes, 'node')}, {outcome.backend}"
    page.facts.append(("measured", size))
    for slow in outcome.slow:
        rates = f"{slow.busbw_gbyte_s:.3g} GB/s; the others reach {slow.peers_gbyte_s:.3g} GB/s"
        page.entries.append(Block("warning", "", slow.node, (("found", slow.found), ("rate", rates))))
    page.figures = [*network_pictures.of_bench(outcome), *page.figures]
    head = ("operation", "size", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "result")
    rows = []
    for r in outcome.rows:
        numbers = f"{r.time_us:.1f}", f"{r.algbw_gbyte_s:.4g}", f"{r.busbw_gbyte_s:.4g}"
        rows.append((r.op, show_bytes(r.size_bytes), *numbers, "right" if r.correct else "WRONG"))
    page.details.insert(0, _table("Bench: every size", head, rows))


def add_bench_of(page: Page, path: Path) -> None:
    """The results of a bench in its folder; nothing without such a file."""
    from ringup.collective_tests import BandwidthReport

    with contextlib.suppress(OSError, ValueError, RecursionError):
        add_bench(page, msgspec.json.decode(path.read_bytes(), type=BandwidthReport))


def add_test(page: Page, outcome: CorrectnessReport) -> None:
    from ringup.output.collective_report import test_verdict

    page.tone = "ok" if outcome.ok else "error"
    page.headline = test_verdict(outcome)
    for rank in [rank for rank in outcome.ranks if rank.is_cause][:MOST_CAUSES]:
        where = f"rank {rank.rank} on {rank.node}"
        page.entries.append(Block("error", "", where, (("device", rank.device), ("found", rank.error or ""))))
    rows = [(r.rank, r.node, r.device, "right" if r.ok else r.error or "") for r in outcome.ranks]
    page.details.insert(0, _table("Ranks", ("rank", "node", "device", "result"), rows))


def check_page(report: Report, page: Page | None = None) -> str:
    """The page of a check; with `page`, below its content."""
    page = page or Page("check")
    add_check(page, report)
    return render(page)


def logs_page(diagnosis: Diagnosis) -> str:
    from ringup.timeline.read import folder_of

    page = Page("logs")
    add_folder(page, diagnosis, folder_of(diagnosis))
    return render(page)


def add_logs_of(page: Page, paths: Sequence[str]) -> None:
    """Logs of a job or a run; for a restarted run those of the attempt that failed first."""
    from ringup.timeline.read import read

    diagnosis, folder = read(paths)
    is_attempt = folder is not None and folder.parent == Path(paths[0])
    add_folder(page, diagnosis, folder, saved_run.read(Path(paths[0])) if is_attempt else None)


def add_folder(page: Page, diagnosis: Diagnosis, folder: Path | None, whole: SavedRun | None = None) -> None:
    """Logs with their timeline, and their run; `whole`: the run that it is an attempt of."""
    from ringup.timeline.read import timeline_of

    record = whole or (saved_run.read(folder) if folder else None)
    if record:
        add_run(page, record)
        if whole and folder:
            number, count = folder.name.removeprefix("attempt-"), len(whole.attempts)
            words = f"attempt {number} of {count}, the first that failed: its cause and its timeline"
            page.facts.append(("below", words))
        page.findings += map(_finding, record.findings)
    page.timeline = timeline_of(diagnosis, folder)
    add_logs(page, diagnosis)


def diff_page(heads: Sequence[str], rows: Sequence[Sequence[str]], lacking: Sequence[str]) -> str:
    """The two sides, a row for each difference, and facts that could not be compared."""
    page = Page("diff", rows[0][0] if rows else "ok", plural(len(rows), "difference"))
    page.facts = [(head[:1], head[2:]) for head in heads]
    page.facts.append(("not compared", "\n".join(lacking)))
    table = _table("What differs", ("severity", "what", "where", "A", "B"), rows)
    page.details.append(table._replace(shown=True))
    return render(page)
