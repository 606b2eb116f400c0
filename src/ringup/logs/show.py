"""A diagnosis shown: text (cause, evidence, fix, in that order) and data for JSON.  Decides nothing."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ringup import __version__
from ringup.flight import show_ranks
from ringup.logs.causes.recorded import not_seen
from ringup.logs.lines import Event
from ringup.logs.read import Diagnosis
from ringup.logs.rule import Cause
from ringup.logs.story import HostStory, Story
from ringup.nccl.plugins import network_name
from ringup.units import export_line, printable

SCHEMA = 1
MAX_LINES = 20
"""What the text report takes on a terminal unless everything is asked for."""

MAX_ROWS = 200
"""Iterations, files, kinds of ranks and communicators that the text shows; --json has all."""

_DEVICE = re.compile(r"(NET/[^/]+)/\d+(?:\(\d+\))?(.*)")

_COLOURS = {"error": "31;1", "warning": "33", "note": "36", "ok": "32", "dim": "2", "bold": "1"}


@dataclass(frozen=True)
class Style:
    """Colour or none, and how wide lines are."""

    on: bool = False
    width: int = 100

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.on else text


def network_json(host: HostStory) -> dict[str, Any]:
    """One host's networks as INTERFACE.md promises them."""
    interfaces = host.interfaces
    return {
        "host": host.name or None,
        "kind": network_name(host.kind) or None,
        "bootstrap": host.bootstrap[0] if host.bootstrap else None,
        "interfaces": [printable(i) for i in interfaces],
        "used": [printable(n) for n in used_entries(host)],
        "oob": host.oob or None,
    }


def used_devices(host: HostStory) -> list[str]:
    """The devices channels go over; NCCL's own words where the list was not printed."""
    return [host.device(net, index) or f"NET/{net}/{index}" for net, index in host.used]


def used_entries(host: HostStory) -> list[str]:
    """As `used_devices`, each the way `interfaces` lists it."""
    entries = []
    for name in used_devices(host):
        listed = next((i for i in host.interfaces if i.split(":", 1)[0] == name), name)
        entries.append(listed)
    return entries


def cause_json(cause: Cause, story: Story) -> dict[str, Any]:
    """One cause as INTERFACE.md promises it."""
    fix = cause.fix
    return {
        "rule": cause.rule,
        "severity": cause.severity,
        "confidence": cause.confidence,
        "text": printable(cause.text),
        "nodes": [printable(n) for n in cause.nodes],
        "ranks": list(cause.ranks),
        "evidence": [
            {"file": story.files[e.file].path, "line": e.line, "text": printable(e.text)}
            for e in cause.evidence
        ],
        "fix": {
            "text": printable(fix.text) if fix else "",
            "env": dict(fix.env) if fix else {},
            "commands": list(fix.commands) if fix else [],
        },
    }


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The whole answer."""
    return {
        "ringup": __version__,
        "schema": SCHEMA,
        "causes": [cause_json(c, diagnosis.story) for c in diagnosis.causes],
        "healthy": diagnosis.healthy,
        "files": [
            {
                "path": i.path,
                "host": i.host or None,
                "pid": i.pid or None,
                "rank": i.rank,
                "lines": i.lines,
                "last_line": printable(i.last_line),
                "init_complete": i.init_complete,
            }
            for i in diagnosis.story.files
            if i.is_log
        ],
        "versions": diagnosis.versions,
        "networks": [network_json(h) for h in diagnosis.story.hosts.values() if h.kind or h.bootstrap],
        "transports": dict(diagnosis.run.transports),
        "collectives": dict(diagnosis.run.collectives),
        "by_rank": {rank: dict(kinds) for rank, kinds in diagnosis.run.by_rank.items()},
        "by_iteration": list(diagnosis.by_iteration()),
        "by_communicator": {c.id: c.kinds for c in diagnosis.run.by_communicator.values() if c.kinds},
        "nvls": nvls(diagnosis.story),
        "behind": diagnosis.behind,
        "flight_recorder": _recorder_json(diagnosis),
        "unreadable": [{"path": u.path, "reason": u.reason} for u in diagnosis.unreadable],
    }


def _recorder_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Torch's dumps: whose were compared, whose were not seen, which were left out and why."""
    recorded = diagnosis.story.recorded
    dumps = recorded.dumps.values() if recorded else ()
    return {
        "dumps": [
            {"path": d.path, "rank": d.rank, "version": d.flight.version, "entries": len(d.flight.entries)}
            for d in dumps
        ],
        "not_seen": not_seen(diagnosis.story),
        "left_out": [{"path": u.path, "reason": u.reason} for u in recorded.left_out] if recorded else [],
    }


def _recorder_lines(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    recorded = diagnosis.story.recorded
    if recorded is None or not (recorded.dumps or recorded.left_out):
        return
    line = (
        f"flight recorder: dumps of {show_ranks(list(recorded.dumps))}"
        if recorded.dumps
        else "flight recorder:"
    )
    missing = not_seen(diagnosis.story)
    if missing:
        line += f"; not seen: {show_ranks(missing)}"
    if recorded.left_out:
        path, reason = recorded.left_out[0]
        more = f" and {len(recorded.left_out) - 1} more" if len(recorded.left_out) > 1 else ""
        line += f"; left out: {printable(path)}{more} ({reason})"
    yield from textwrap.wrap(line, width, subsequent_indent="  ")


def as_text(
    diagnosis: Diagnosis,
    style: Style,
    *,
    verbose: bool = False,
    quiet: bool = False,
    iterations: bool = False,
) -> str:
    """The report: verdict first; at most 20 lines unless everything is asked for."""
    lines: list[str] = []
    causes = diagnosis.causes if verbose else diagnosis.causes[:1]
    if diagnosis.healthy:
        lines.append(style("ok", "no cause of a failure was found") + _seen(diagnosis))
    for number, cause in enumerate(causes):
        lines += [""] * bool(number)
        lines += list(cause_lines(cause, diagnosis.story, style, 6 if verbose else 3))
    if quiet:
        return "\n".join(lines[:1])
    rest = diagnosis.causes[len(causes) :]
    if rest:
        more = ", ".join(f"{c.rule} ({c.severity})" for c in rest[:4])
        lines += textwrap.wrap(
            f"also seen: {more}{' ...' if len(rest) > 4 else ''}  (--all shows them)",
            style.width,
            subsequent_indent="  ",
        )
    table = list(_network_table(diagnosis))
    if table:
        lines += ["", *table]
    lines += list(_counts(diagnosis, verbose))
    lines += list(_recorder_lines(diagnosis, style.width))
    if verbose:
        lines += list(_parts(diagnosis))
    elif len(lines) > MAX_LINES:
        lines = [
            *lines[: MAX_LINES - 1],
            style("dim", f"... {len(lines) - MAX_LINES + 1} more lines with --all"),
        ]
    if iterations or verbose:
        lines += list(_iterations(diagnosis))
    if verbose:
        lines += list(_file_lines(diagnosis))
    return "\n".join(lines)


def _seen(diagnosis: Diagnosis) -> str:
    logs = [i for i in diagnosis.story.files if i.is_log]
    dumps = len(diagnosis.story.recorded.dumps) if diagnosis.story.recorded else 0
    also = f" and {dumps} flight recorder dump{'s' * (dumps != 1)}" if dumps else ""
    lines = sum(i.lines for i in logs)
    return f" in {lines} line{'s' * (lines != 1)} of {len(logs)} file{'s' * (len(logs) != 1)}{also}"


def _place(event: Event, story: Story) -> str:
    between = " entry " if event.tag == "flight" else ":"
    return f"{printable(story.files[event.file].path)}{between}{event.line}"


def cause_lines(cause: Cause, story: Story, style: Style, evidence: int = 3) -> Iterator[str]:
    colour = cause.severity or "error"
    where = [*(f"node {n}" for n in cause.nodes[:4])]
    if cause.ranks:
        shown = ", ".join(map(str, cause.ranks[:8])) + (" ..." if len(cause.ranks) > 8 else "")
        where.append(f"rank{'s' * (len(cause.ranks) > 1)} {shown}")
    head = (
        f"{style(colour, cause.severity or 'error')}: {style('bold', cause.rule)} "
        f"({cause.confidence} confidence)"
    )
    yield head + (f"  [{printable('; '.join(where))}]" if where else "")
    yield from textwrap.wrap(printable(cause.text), style.width, initial_indent="  ", subsequent_indent="  ")
    for event in cause.evidence[:evidence]:
        text = printable(event.text.strip())
        yield f"  {style('dim', _place(event, story))}  {text[:150]}{'...' if len(text) > 150 else ''}"
    fix = cause.fix
    if fix:
        yield from textwrap.wrap(
            f"fix: {printable(fix.text)}", style.width, initial_indent="  ", subsequent_indent="       "
        )
        for name, value in fix.env.items():
            yield f"       {export_line(name, value)}"
        for command in fix.commands:
            yield f"       {printable(command, 2000)}"


def _network_table(diagnosis: Diagnosis) -> Iterator[str]:
    hosts = [h for h in diagnosis.story.hosts.values() if h.kind or h.bootstrap]
    rows = [("node", "network", "bootstrap", "used", "of")]
    for host in hosts[:8]:
        used = ", ".join(used_devices(host)[:4]) or "-"
        boot = f"{host.bootstrap[0]} {host.bootstrap[1]}" if host.bootstrap else "-"
        offered = ", ".join(i.split(":", 1)[0] if host.kind == "Socket" else i for i in host.interfaces[:6])
        if len(host.interfaces) > 6:
            offered += f" +{len(host.interfaces) - 6}"
        rows.append((host.name or "-", network_name(host.kind) or "-", boot, used, offered or "-"))
    if len(rows) < 2:
        return
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
        direct = _over_ib(diagnosis.run.transports)
        yield f"transports: {', '.join(shown)}{more}{direct}{_nvls_words(diagnosis.story)}"
    if diagnosis.run.collectives:
        yield f"collectives: {_kinds(diagnosis.run.collectives, 20 if verbose else 6)}"
    yield from _without_init(diagnosis, 200 if verbose else 3)
    for row in diagnosis.behind[: 20 if verbose else 2]:
        yield (
            f"behind: rank {row['rank']} has not called {row['collective']} #{row['index']} of "
            f"{row['communicator']}"
        )


def transports(counts: Mapping[str, int], apart: bool = False) -> list[tuple[str, int]]:
    """
    Ways between ranks and their lines, the most used first; the devices of a network together unless `apart`.

    >>> transports({"NET/IB/0/GDRDMA": 2, "NET/IB/1(2)/GDRDMA": 2, "P2P/CUMEM": 3})
    [('NET/IB/*/GDRDMA', 4), ('P2P/CUMEM', 3)]
    """
    together: dict[str, list[str]] = {}
    for via in counts:
        found = None if apart else _DEVICE.match(via)
        together.setdefault(f"{found[1]}/*{found[2]}" if found else via, []).append(via)
    names = {k if len(vias) > 1 else vias[0]: sum(counts[v] for v in vias) for k, vias in together.items()}
    return sorted(names.items(), key=lambda item: -item[1])


def _over_ib(counts: Mapping[str, int]) -> str:
    via_ib = [via for via in counts if via.startswith("NET/IB")]
    return "; no GPUDirect RDMA" if via_ib and not any("GDRDMA" in via for via in via_ib) else ""


def nvls(story: Story) -> str | None:
    """Whether NVLink SHARP is "used", "available" or "not available"; None where no line tells."""
    if any("NVLS tree" in e.text for e in story.all("connected")):
        return "used"
    said = story.all("nvls")
    return None if not said else "available" if any(not e["no"] for e in said) else "not available"


def _nvls_words(story: Story) -> str:
    state = nvls(story)
    return f"; NVLS {state}" if state else ""


def _kinds(counts: Mapping[str, int], most: int = 20) -> str:
    items = sorted(counts.items(), key=lambda kv: -kv[1])
    return ", ".join(f"{printable(k)} {v}" for k, v in items[:most]) or "-"


def _without_init(diagnosis: Diagnosis, most: int) -> Iterator[str]:
    """Files in which a set-up began and did not end; of one file, its ranks."""
    logs = [i for i in diagnosis.story.files if i.is_log]
    lacking = [i for i in logs if i.init_complete is False]
    ranks = sorted({c.rank for c in diagnosis.story.communicators if c.started and not c.completed})
    if lacking and len(logs) == 1 and ranks:
        yield f"no Init COMPLETE: {show_ranks(ranks)}"
    elif lacking:
        shown = ", ".join(printable(i.path) for i in lacking[:most])
        more = " ..." if len(lacking) > most else ""
        yield f"no Init COMPLETE in {len(lacking)} of {len(logs)} file{'s' * (len(logs) != 1)}: {shown}{more}"


def _parts(diagnosis: Diagnosis) -> Iterator[str]:
    """Releases, and calls of each rank and each communicator; ranks that called the same together."""
    run = diagnosis.run
    if diagnosis.versions:
        yield "versions: " + "; ".join(
            f"{k} {printable(', '.join(v))}" for k, v in diagnosis.versions.items()
        )
    alike: dict[str, list[str]] = {}
    for rank, counts in run.by_rank.items():
        alike.setdefault(_kinds(counts), []).append(rank)
    if alike:
        yield from ("", "collectives per rank:")
    for kinds, names in itertools.islice(alike.items(), MAX_ROWS):
        numbers = sorted(int(n) for n in names if n.isdigit())
        others = sorted(n for n in names if not n.isdigit())
        who = [show_ranks(numbers)] * bool(numbers) + others[:8] + ["..."] * (len(others) > 8)
        yield f"  {printable(', '.join(who))}: {kinds}"
    yield from _and_more(len(alike) - MAX_ROWS)
    called = [c for c in run.by_communicator.values() if c.kinds]
    if called:
        yield from ("", "collectives per communicator:")
    for comm in called[:MAX_ROWS]:
        yield f"  {printable(comm.id)}, {len(comm.members)} of {comm.nranks} ranks seen: {_kinds(comm.kinds)}"
    yield from _and_more(len(called) - MAX_ROWS)


def _and_more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  ... and {count} more, with --json"


def _iterations(diagnosis: Diagnosis) -> Iterator[str]:
    rows = list(itertools.islice(diagnosis.by_iteration(), MAX_ROWS))
    if rows:
        yield ""
        yield "collectives per iteration:"
    for row in rows:
        name = "(outside any)" if row["iteration"] is None else printable(str(row["iteration"]))
        yield f"  {name}: {_kinds(row['counts'])}"
    yield from _and_more(len(diagnosis.run.by_iteration) - MAX_ROWS)


def _file_lines(diagnosis: Diagnosis) -> Iterator[str]:
    logs = [i for i in diagnosis.story.files if i.is_log]
    yield ""
    yield "last line of every file:"
    for info in logs[:MAX_ROWS]:
        state = {True: "init complete", False: "init NOT complete", None: ""}[info.init_complete]
        yield f"  {printable(info.path)}:{info.last_line_number} {state}  {printable(info.last_line)[:120]}"
    yield from _and_more(len(logs) - MAX_ROWS)
