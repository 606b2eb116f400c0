"""A diagnosis as output: text (cause, evidence, fix, in that order) and data for JSON. Decides nothing."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ringup.logs.against import Change
from ringup.logs.causes.recorder_dumps import not_seen
from ringup.logs.evidence import HostNetworks, LogEvidence
from ringup.logs.lines import Event
from ringup.logs.read import Diagnosis
from ringup.logs.rule import Cause
from ringup.logs.telling import unfinished
from ringup.nccl.plugins import network_name
from ringup.output.terminal import Style, envelope, path_shown
from ringup.rules import INTERNAL_ERRORS, Fix, Severity, page_of, skipped_json
from ringup.secrets import safe
from ringup.units import export_line, grouped, plural, printable, show_ranks

MAX_LINES = 20
"""Lines of the text report on a terminal, unless --all is given."""

MAX_ROWS = 200
"""Iterations, files, kinds of ranks and communicators in the text; --json has all."""

MAX_ATTEMPTS = 8
"""Of a restarted run, in the text."""

Attempts = Mapping[str, Diagnosis | None]
"""For a restarted run: folder -> its diagnosis."""
NO_ATTEMPTS: Attempts = {}

_TIME = re.compile(r"(?:\d{4}[-/]\d\d[-/]\d\d[T _])?(?<!\d)\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_DEVICE = re.compile(r"^(NET/[^/]+)/\d+(?:\(\d+\))?(.*)")


def network_json(host: HostNetworks) -> dict[str, Any]:
    listed = {i.split(":", 1)[0]: i for i in reversed(host.interfaces)}
    return {
        "host": host.name or None,
        "kind": network_name(host.kind) or None,
        "bootstrap": host.bootstrap[0] if host.bootstrap else None,
        "interfaces": [printable(i) for i in host.interfaces],
        "used": [printable(listed.get(n, n)) for n in used_devices(host)],
        "oob": host.oob or None,
    }


def used_devices(host: HostNetworks) -> list[str]:
    """The devices that channels use; NCCL's own text if the list was not printed."""
    return [host.device(net, index) or f"NET/{net}/{index}" for net, index in host.used]


def cause_json(cause: Cause, story: LogEvidence) -> dict[str, Any]:
    fix, files, known, telling = cause.fix or Fix(""), story.files, None, None
    if defect := cause.known_defect:
        versions, fixed_in = defect.versions or None, defect.fixed_in or None
        known = {"id": defect.id, "versions": versions, "fixed_in": fixed_in, "url": defect.url}
    if event := cause.telling:
        clock = _TIME.search(event.text[:160])
        telling = {
            "file": files[event.file].path,
            "line": event.line,
            "text": safe(event.text),
            "rank": event.rank,
            "host": printable(event.host) or None,
            "time": clock[0] if clock else None,
        }
    return {
        "rule": cause.rule,
        "severity": cause.severity,
        "confidence": cause.confidence,
        "text": safe(cause.text),
        "nodes": [printable(n) for n in cause.nodes],
        "ranks": list(cause.ranks),
        "evidence": [
            {"file": files[e.file].path, "line": e.line, "text": safe(e.text)} for e in cause.evidence
        ],
        "telling": telling,
        "known_defect": known,
        "fix": {"text": safe(fix.text), "env": dict(fix.env), "commands": list(fix.commands)},
        "help": page_of(cause.rule),
    }


def as_json(diagnosis: Diagnosis, attempts: Attempts = NO_ATTEMPTS) -> dict[str, Any]:
    story, run, recorded = diagnosis.story, diagnosis.run, diagnosis.story.recorded
    return envelope(
        causes=[cause_json(c, story) for c in diagnosis.causes],
        healthy=diagnosis.healthy,
        unfinished=unfinished(story) if diagnosis.healthy else "",
        files=[
            {
                "path": i.path,
                "host": i.host or None,
                "pid": i.pid or None,
                "rank": i.rank,
                "lines": i.lines,
                "last_line": safe(i.last_line),
                "init_complete": i.init_complete,
            }
            for i in diagnosis.logs
        ],
        versions=diagnosis.versions,
        networks=[network_json(h) for h in story.hosts.values() if h.kind or h.bootstrap],
        transports=run.transports,
        collectives=run.collectives,
        by_rank=run.by_rank,
        by_iteration=list(diagnosis.by_iteration()),
        by_communicator={c.id: c.kinds for c in run.by_communicator.values() if c.kinds},
        nvls=nvls(story),
        behind=diagnosis.behind,
        flight_recorder={
            "dumps": [
                {
                    "path": d.path,
                    "rank": d.rank,
                    "version": d.flight.version,
                    "entries": len(d.flight.entries),
                }
                for d in recorded.dumps.values()
            ],
            "not_seen": not_seen(story),
            "left_out": [u._asdict() for u in recorded.left_out],
        },
        not_checked=skipped_json(INTERNAL_ERRORS.values()),
        unreadable=[u._asdict() for u in diagnosis.unreadable],
        changes=[{"name": n, "good": safe(good), "now": safe(now)} for n, good, now in diagnosis.changes],
        attempts=[
            {"log_dir": folder, "cause": cause_json(one.causes[0], one.story) if one and one.causes else None}
            for folder, one in attempts.items()
        ],
    )


def attempt_lines(attempts: Attempts, *, whole: bool) -> list[str]:
    """A line for each attempt of a restarted run: its first cause."""
    rows = []
    for folder, one in attempts.items():
        said = "nothing to read" if one is None else "no failure found"
        if one and one.causes:
            cause = one.causes[0]
            said = f"{cause.rule} ({cause.confidence} confidence): {safe(cause.text, 120)}"
        rows.append(f"{path_shown(folder)}: {said}")
    if len(rows) > MAX_ATTEMPTS and not whole:
        rows[MAX_ATTEMPTS - 2 : -1] = [f"... {len(rows) - MAX_ATTEMPTS + 1} more attempts with --all"]
    return ["", *rows] if rows else []


def _recorder_lines(story: LogEvidence, width: int) -> Iterator[str]:
    recorded, missing = story.recorded, not_seen(story)
    if not (recorded.dumps or recorded.left_out):
        return
    parts = [f"dumps of {show_ranks(recorded.dumps)}"] if recorded.dumps else []
    parts += [f"not seen: {show_ranks(missing)}"] if missing else []
    if recorded.left_out:
        path, reason = recorded.left_out[0]
        more = f" and {len(recorded.left_out) - 1} more" if len(recorded.left_out) > 1 else ""
        parts.append(f"left out: {path_shown(path)}{more} ({reason})")
    yield from textwrap.wrap(f"flight recorder: {'; '.join(parts)}", width, subsequent_indent="  ")


def as_text(
    diagnosis: Diagnosis,
    style: Style,
    *,
    verbose: bool = False,
    quiet: bool = False,
    iterations: bool = False,
) -> str:
    """The report: verdict first; at most 20 lines unless --all is given."""
    lines: list[str] = [] if quiet else [*changed_lines(diagnosis.changes, 40 if verbose else 5)]
    causes = diagnosis.causes if verbose else diagnosis.causes[:1]
    if diagnosis.healthy:
        is_open = any(cause.rule == "init-never-finished" for cause in diagnosis.causes)
        is_stopped = bool(causes) and causes[0].rule == "job-cancelled" and causes[0].confidence == "high"
        text = "Ended from outside, no other failure found" if is_stopped else "No failure found"
        verdict = style("warning" if INTERNAL_ERRORS or is_open or is_stopped else "ok", text)
        ends = "its end is in the middle of NCCL's init" if is_open else unfinished(diagnosis.story)
        lines += textwrap.wrap(f"{verdict}{_seen(diagnosis)}{ends and f'; {ends}'}", style.width)
    for number, cause in enumerate(causes):
        lines += [""] * bool(number)
        lines += list(cause_lines(cause, diagnosis.story, style, 6 if verbose else 3))
    if quiet:
        return "\n".join(lines[:1])
    rest = diagnosis.causes[len(causes) :]
    if rest:
        more = ", ".join(f"{c.rule} ({c.severity})" for c in rest[:4]) + " ..." * (len(rest) > 4)
        lines += textwrap.wrap(f"also seen: {more}  (--all shows them)", style.width, subsequent_indent="  ")
    if INTERNAL_ERRORS:
        broken = f"not checked (a bug in ringup): {', '.join(INTERNAL_ERRORS)}"
        lines += textwrap.wrap(broken, style.width, subsequent_indent="  ")
    lines += [*network_table(diagnosis), *_counts(diagnosis, verbose)]
    lines += _recorder_lines(diagnosis.story, style.width)
    if verbose:
        lines += _parts(diagnosis)
    elif len(lines) > MAX_LINES:
        more = style("dim", f"... {len(lines) - MAX_LINES + 1} more lines with --all")
        lines = [*lines[: MAX_LINES - 1], more]
    if iterations or verbose:
        lines += _iterations(diagnosis)
    if verbose:
        state = {True: "init complete", False: "init NOT complete", None: ""}
        rows = [
            f"  {path_shown(i.path)}:{i.last_line_number} {state[i.init_complete]}  {safe(i.last_line)[:120]}"
            for i in diagnosis.logs
        ]
        lines += _block("last line of every file:", rows)
    return "\n".join(lines)


def changed_lines(found: Sequence[Change], most: int, the_rest: str = "more with --all") -> Iterator[str]:
    """Differences from the log of a good run."""
    for name, good, now in found[:most]:
        yield safe(f"changed: {name}: {good or '(not printed)'} -> {now or '(not printed)'}")
    if len(found) > most:
        yield f"changed: {len(found) - most} {the_rest}"


def behind_lines(diagnosis: Diagnosis, most: int) -> Iterator[str]:
    for row in diagnosis.behind[:most]:
        called = f"{row['collective']} #{row['index']} of {row['communicator']}"
        yield f"behind: rank {row['rank']} has not called {called}"


def _seen(diagnosis: Diagnosis) -> str:
    dumps = len(diagnosis.story.recorded.dumps)
    also = f" and {plural(dumps, 'flight recorder dump')}" if dumps else ""
    lines = plural(sum(i.lines for i in diagnosis.logs), "line")
    return f" in {lines} of {plural(len(diagnosis.logs), 'file')}{also}"


def _place(event: Event, story: LogEvidence) -> str:
    between = " entry " if event.tag == "flight" else ":"
    return f"{path_shown(story.files[event.file].path)}{between}{event.line}"


def cause_lines(cause: Cause, story: LogEvidence, style: Style, evidence: int = 3) -> Iterator[str]:
    severity: Severity = cause.severity or "error"
    nodes = cause.nodes or story.nodes_of_files(cause.ranks)
    where = [f"node {n}" for n in nodes[:4]] + ([show_ranks(cause.ranks)] if cause.ranks else [])
    place = f"  [{printable('; '.join(where))}]" if where else ""
    yield f"{style(severity, severity)}: {style('bold', cause.rule)} ({cause.confidence} confidence){place}"
    yield from textwrap.wrap(safe(cause.text), style.width, initial_indent="  ", subsequent_indent="  ")
    for event in cause.evidence[:evidence]:
        text = safe(event.text.strip())
        yield f"  {style('dim', _place(event, story))}  {text[:150]}{'...' if len(text) > 150 else ''}"
    if defect := cause.known_defect:
        versions = f" ({defect.versions}; fixed in {defect.fixed_in})" if defect.fixed_in else ""
        known = f"  known: {defect.id}{versions}: {defect.text}"
        yield from textwrap.wrap(known, style.width, subsequent_indent=" " * 9)
        yield f"         {defect.url}"
    if fix := cause.fix:
        yield from textwrap.wrap(f"  fix: {safe(fix.text)}", style.width, subsequent_indent=" " * 7)
        for name, value in fix.env.items():
            yield f"       {export_line(name, value)}"
        for command in fix.commands:
            yield f"       {safe(command, 2000)}"


def network_table(diagnosis: Diagnosis) -> Iterator[str]:
    """An empty line, a heading, and for each of the first nodes: network, bootstrap, devices."""
    hosts = [h for h in diagnosis.story.hosts.values() if h.kind or h.bootstrap]
    rows = [("node", "network", "bootstrap", "in use", "available")]
    for host in hosts[:8]:
        used = ", ".join(used_devices(host)[:4]) or "-"
        boot = f"{host.bootstrap[0]} {host.bootstrap[1]}" if host.bootstrap else "-"
        offered = ", ".join(i.split(":", 1)[0] if host.kind == "Socket" else i for i in host.interfaces[:6])
        if len(host.interfaces) > 6:
            offered += f" +{len(host.interfaces) - 6}"
        rows.append((host.name or "-", network_name(host.kind) or "-", boot, used, offered or "-"))
    if not hosts:
        return
    yield ""
    widths = [min(34, max(len(r[n]) for r in rows)) for n in range(5)]
    for row in rows:
        yield "  ".join(printable(cell)[:60].ljust(widths[n]) for n, cell in enumerate(row)).rstrip()
    if len(hosts) > 8:
        yield f"... and {len(hosts) - 8} more nodes"


def _counts(diagnosis: Diagnosis, verbose: bool) -> Iterator[str]:
    if diagnosis.run.transports:
        items = [f"{printable(name)} x{n}" for name, n in transports(diagnosis.run.transports, verbose)]
        shown = items[: 40 if verbose else 6]
        more = f", {len(items) - len(shown)} more kinds" if len(items) > len(shown) else ""
        via_ib = [via for via in diagnosis.run.transports if via.startswith("NET/IB")]
        if via_ib and not any("GDRDMA" in via for via in via_ib):
            more += "; no GPUDirect RDMA"
        if state := nvls(diagnosis.story):
            more += f"; NVLS {state}"
        yield f"transports: {', '.join(shown)}{more}"
    if diagnosis.run.collectives:
        yield f"collectives: {_kinds(diagnosis.run.collectives, 20 if verbose else 6)}"
    yield from _without_init(diagnosis, 200 if verbose else 3)
    yield from behind_lines(diagnosis, 20 if verbose else 2)


def transports(counts: Mapping[str, int], apart: bool = False) -> list[tuple[str, int]]:
    """
    Transports between ranks and their lines, the most used first; one network's devices count as one.

    >>> transports({"NET/IB/0/GDRDMA": 2, "NET/IB/1(2)/GDRDMA": 2, "P2P/CUMEM": 3})
    [('NET/IB/*/GDRDMA', 4), ('P2P/CUMEM', 3)]
    """
    together = grouped((via if apart else _DEVICE.sub(r"\1/*\2", via), via) for via in counts)
    names = {k if len(vias) > 1 else vias[0]: sum(counts[v] for v in vias) for k, vias in together.items()}
    return sorted(names.items(), key=lambda item: -item[1])


def nvls(story: LogEvidence) -> str | None:
    """Whether NVLink SHARP is "used", "available" or "not available"; None if no line shows it."""
    if any("NVLS tree" in e.text for e in story.all("connected")):
        return "used"
    lines = story.all("nvls")
    return None if not lines else "available" if any(not e["no"] for e in lines) else "not available"


def _kinds(counts: Mapping[str, int], most: int = 20) -> str:
    items = sorted(counts.items(), key=lambda kv: -kv[1])
    return ", ".join(f"{printable(k)} {v}" for k, v in items[:most]) or "-"


def _without_init(diagnosis: Diagnosis, most: int) -> Iterator[str]:
    """Files in which a set-up began and did not end; for one file, its ranks."""
    logs = diagnosis.logs
    lacking = [i for i in logs if i.init_complete is False]
    ranks = sorted({c.rank for c in diagnosis.story.communicators if c.started and not c.complete})
    if lacking and len(logs) == 1 and ranks:
        yield f"no Init COMPLETE: {show_ranks(ranks)}"
    elif lacking:
        shown = ", ".join(path_shown(i.path) for i in lacking[:most])
        more = " ..." if len(lacking) > most else ""
        yield f"no Init COMPLETE line in {len(lacking)} of {plural(len(logs), 'file')}: {shown}{more}"


def _parts(diagnosis: Diagnosis) -> Iterator[str]:
    """Releases, and calls of each rank and each communicator; ranks with equal calls together."""
    run = diagnosis.run
    if diagnosis.versions:
        versions = (f"{k} {printable(', '.join(v))}" for k, v in diagnosis.versions.items())
        yield f"versions: {'; '.join(versions)}"
    alike = grouped((_kinds(counts), rank) for rank, counts in run.by_rank.items())
    ranks = [f"  {printable(_rank_names(names))}: {kinds}" for kinds, names in alike.items()]
    yield from _block("collectives per rank:", ranks)
    called = [c for c in run.by_communicator.values() if c.kinds]
    rows = [
        f"  {printable(c.id)}, {len(c.members)} of {c.nranks} ranks seen: {_kinds(c.kinds)}" for c in called
    ]
    yield from _block("collectives per communicator:", rows)


def _rank_names(names: list[str]) -> str:
    numbers = [int(n) for n in names if n.isdigit()]
    others = sorted(n for n in names if not n.isdigit())
    return ", ".join([show_ranks(numbers)] * bool(numbers) + others[:8] + ["..."] * (len(others) > 8))


def _block(title: str, rows: Sequence[str]) -> Iterator[str]:
    """A titled list, as long as the text may be."""
    if rows:
        yield from ("", title, *rows[:MAX_ROWS])
    if len(rows) > MAX_ROWS:
        yield f"  ... and {len(rows) - MAX_ROWS} more, with --json"


def _iterations(diagnosis: Diagnosis) -> Iterator[str]:
    found = ((row["iteration"], _kinds(row["counts"])) for row in diagnosis.by_iteration())
    rows = [f"  {'(outside any)' if i is None else printable(str(i))}: {kinds}" for i, kinds in found]
    yield from _block("collectives per iteration:", rows)
