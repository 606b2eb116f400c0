"""`ringup logs --digest`: a run's logs in 60 lines, without secrets, for an issue, a chat or a model."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from ringup.logs import files
from ringup.logs.answer import missing
from ringup.logs.lines import Event, clean
from ringup.logs.read import Diagnosis
from ringup.logs.rule import Cause
from ringup.logs.telling import follows, standing
from ringup.output.logs_report import behind_lines, changed_lines, network_table, transports
from ringup.output.terminal import path_shown
from ringup.secrets import safe
from ringup.units import plural, printable, show_ranks
from ringup.version import __version__

MAX_LINES = 60
MAX_COLUMNS = 200
AROUND = 2
"""Lines shown before and after an informative line."""
MOST_PLACES = 4
MOST_COMMANDS = 3
MOST_SETTINGS = 8


def digest(diagnosis: Diagnosis) -> str:
    parts = (
        _what_ran(diagnosis),
        changed_lines(diagnosis.changes, MOST_SETTINGS, "more"),
        _answers(diagnosis.causes[:3]),
        _telling(diagnosis),
        _apart(diagnosis),
        _absent(diagnosis),
    )
    lines = [line[:MAX_COLUMNS] for part in parts for line in part]
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"... {len(lines) - MAX_LINES + 1} more lines left out"]
    return "\n".join(lines)


def _what_ran(diagnosis: Diagnosis) -> Iterator[str]:
    story = diagnosis.story
    logs = diagnosis.logs
    size = f"{plural(sum(i.lines for i in logs), 'line')} of {plural(len(logs), 'file')}"
    yield f"ringup {__version__} digest: {size}"
    commands = dict.fromkeys(e.text.strip() for e in story.all("command"))
    for text in list(commands)[:MOST_COMMANDS]:
        yield f"ran: {safe(text, 180)}"
    facts = [f"{name} {', '.join(found)}" for name, found in diagnosis.versions.items()]
    ranks = max((c.nranks for c in story.communicators), default=0)
    facts += [f"{ranks} ranks"] * bool(ranks)
    hosts = [name for name in story.hosts if name]
    facts += [f"nodes {', '.join(hosts[:6])}{' ...' if len(hosts) > 6 else ''}"] * bool(hosts)
    if facts:
        yield printable(f"what: {'; '.join(facts)}")
    yield from islice(network_table(diagnosis), 1, 6)  # the heading and four nodes
    if diagnosis.run.transports:
        ways = [f"{name} x{n}" for name, n in transports(diagnosis.run.transports)[:5]]
        yield printable(f"transports: {', '.join(ways)}")


def _answers(causes: Sequence[Cause]) -> Iterator[str]:
    if not any(c.severity == "error" for c in causes):
        yield "answer: no failure found"
    for cause in causes:
        where = [*cause.nodes[:4], *([show_ranks(cause.ranks)] if cause.ranks else [])]
        at = f" [{printable('; '.join(where))}]" if where else ""
        name = f"{cause.severity} {cause.rule} ({cause.confidence} confidence){at}"
        yield f"answer: {name}: {safe(cause.text, 240)}"
        if defect := cause.known_defect:
            versions = f" ({defect.versions})" if defect.versions else ""
            yield f"known: {defect.id}{versions}: {defect.text}"
            yield f"       {defect.url}"
    if causes and causes[0].fix:
        yield f"try: {safe(causes[0].fix.text, 240)}"


def _telling(diagnosis: Diagnosis) -> Iterator[str]:
    """The most informative lines of the causes, then the next clues, each with the lines around it."""
    story = diagnosis.story
    events = [c.telling for c in diagnosis.causes[:3] if c.telling]
    events += [s.event for s in standing(story) if not follows(s)]
    places: dict[tuple[int, int], Event] = {}
    for event in events:
        near = any(e.file == event.file and abs(e.line - event.line) <= AROUND for e in places.values())
        if not near and len(places) < MOST_PLACES:
            places[event.file, event.line] = event
    for event in places.values():
        path = story.files[event.file].path
        who = [f"rank {event.rank}"] * (event.rank is not None) + [event.host] * bool(event.host)
        yield printable(f"at {path_shown(path)}:{event.line}{' (' + ', '.join(who) + ')' if who else ''}")
        around = lines_of(path, range(max(1, event.line - AROUND), event.line + AROUND + 1))
        for number, text in (around or {event.line: event.text}).items():
            yield f"  {'>' if number == event.line else ' '} {safe(text.strip(), 180)}"


def lines_of(path: str, numbers: Collection[int]) -> dict[int, str]:
    """Lines of a file by their numbers, {} where it cannot be read a second time."""
    found: dict[int, str] = {}
    if path == "-":
        return found
    first, last, at, rest = min(numbers), max(numbers), 1, b""
    with contextlib.suppress(OSError):
        for block in files.blocks(path):
            if at + block.count(b"\n") < first:
                at += block.count(b"\n")
                rest = (rest + block).rpartition(b"\n")[2][-files.BLOCK_BYTES :]
                continue
            *lines, rest = (rest + block).split(b"\n")
            found |= {number: clean(line) for number, line in enumerate(lines, at) if number in numbers}
            at += len(lines)
            if at > last:
                return found
        if at in numbers and rest:
            found[at] = clean(rest)
    return found


def _apart(diagnosis: Diagnosis) -> Iterator[str]:
    """Ranks that are behind, and settings that differ between hosts."""
    yield from behind_lines(diagnosis, 3)
    hosts = [host for host in diagnosis.story.hosts.values() if host.env]
    names = sorted({name for host in hosts for name in host.env})
    differing = [name for name in names if len({host.value(name) for host in hosts}) > 1]
    for name in differing[:4]:
        values = ", ".join(f"{host.name or '-'} {host.value(name) or '(not set)'}" for host in hosts[:4])
        yield safe(f"differs: {name}: {values}")


def _absent(diagnosis: Diagnosis) -> Iterator[str]:
    found = missing(diagnosis.story)
    wanted = max((c.nranks for c in diagnosis.story.communicators), default=0)
    seen = {c.rank for c in diagnosis.story.communicators}
    seen |= {e.rank for e in diagnosis.story.events if e.rank is not None}
    silent = [rank for rank in range(min(wanted, 100_000)) if rank not in seen]
    if silent and seen:
        found.append(f"no line of {show_ranks(silent[:64])}")
    events = diagnosis.story.events
    has_info = diagnosis.versions.get("nccl") or any("NCCL INFO" in e.text for e in events)
    in_gloo = any(e.tag.startswith("gloo") for e in events)
    if not (has_info or in_gloo) and any(c.severity == "error" for c in diagnosis.causes):
        found.append("NCCL's INFO lines (NCCL_DEBUG=INFO)")
    if found:
        yield f"missing: {'; '.join(found)}"
