"""The attempts of a run on the screen: each end and its decision, and at the end the table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ringup.hosts.folding import node_set
from ringup.output.terminal import Style, in_columns
from ringup.saved_run import AttemptProgress, SavedAttempt
from ringup.units import printable, show_seconds

if TYPE_CHECKING:
    from ringup.recovery.decision import Decision

EARLIEST_TIME_S = 1e9
"""Progress from here on is seconds since the epoch (recovery.training_progress)."""
ENDS_AT_ONCE = 1.0
"""A shorter wait in seconds is not mentioned."""


def spare_lines(errors: Mapping[str, Iterable[str]]) -> list[str]:
    """The check's results for the spares: node -> rules of severity error."""
    good = [node for node, rules in errors.items() if not rules]
    lines = [f"ringup: spare: {node_set(map(printable, good))} (checked, idle)"] if good else []
    bad = {node: ", ".join(sorted(rules)) for node, rules in errors.items() if rules}
    return lines + [f"ringup: spare {printable(node)} cannot be used now: {why}" for node, why in bad.items()]


def cause_words(entry: SavedAttempt) -> str:
    """ "rank-killed on node1"."""
    cause = entry.cause
    if not cause:
        return entry.outcome
    on = f" on {node_set(map(printable, cause.nodes))}" if cause.nodes else ""
    return f"{cause.rule}{on}" if cause.rule else "no cause found"


def progress_words(progress: AttemptProgress | None) -> str:
    """ "40 to 90", "90"; a time of day if a checkpoint shows no step."""
    known = [one for one in (progress.begin, progress.end) if one is not None] if progress else []
    if any(value > EARLIEST_TIME_S for value in known):
        return " to ".join(time.strftime("%H:%M:%S", time.localtime(value)) for value in known)
    return " to ".join(f"{value:.12g}" for value in known)


def decision_lines(
    entry: SavedAttempt, name: str, decision: Decision, evidence: Sequence[str], style: Style
) -> list[str]:
    """Between two attempts: the end of one ("attempt 1 of 4"), with `evidence`, and the next step."""
    progress, shown = entry.progress, progress_words(entry.progress)
    at = f", progress {shown} ({printable(progress.source, 200)})" if progress and shown else ""
    took = show_seconds(entry.took_s)
    sure = f" ({entry.cause.confidence} confidence)" if entry.cause and entry.cause.rule else ""
    lines = [style("warning", f"ringup: {name} ended after {took}{at}: {cause_words(entry)}{sure}")]
    if not decision.nodes:
        return lines
    lines += evidence
    number = entry.number + 1
    following = f"attempt {number} of {number + decision.restarts_left}"
    when = "starts now"
    if decision.wait_s > ENDS_AT_ONCE:
        when = f"starts in {show_seconds(decision.wait_s)} (Ctrl-C ends the run)"
    why = printable(decision.because, 600)
    return [*lines, f"ringup: {why}", style("bold", f"ringup: {following} {when}")]


def would_lines(decision: Decision, rule: str) -> list[str]:
    """Without --max-restarts: whether a restart would help after that cause."""
    from ringup.recovery.table import ROWS

    why = f" (`ringup explain {rule}`)" if rule else ""
    if decision.stopped == "limit" and rule in ROWS and ROWS[rule].kind == "confirm":
        return [f"restart: it may fail in the same way; --max-restarts K tries it once{why}"]
    if decision.stopped == "limit":
        return [f"restart: it may help; --max-restarts K tries it{why}"]
    if decision.stopped == "will-fail-again":
        return [f"restart: it would fail again{why}"]
    return [f"restart: it would not help: {printable(decision.because, 300)}"]


def end_lines(entries: Sequence[SavedAttempt], whole_s: float, decision: Decision | None) -> list[str]:
    """The table of attempts, the share of training time, the repairs, why there is no restart."""
    if len(entries) < 2 and (decision is None or decision.nodes):
        return []
    rows: list[tuple[str, ...]] = [("attempt", "nodes", "progress", "time", "ended by", "then")]
    rows += [_row(entry, following) for entry, following in zip(entries, [*entries[1:], None], strict=True)]
    if not any(progress_words(entry.progress) for entry in entries):
        rows = [(*row[:2], *row[3:]) for row in rows]
    lines = ["", *in_columns(rows)]
    trained = sum(map(trained_s, entries))
    share = f" ({min(100, round(100 * trained / whole_s))} %)" if whole_s else ""
    if trained >= 1:
        lines.append(f"trained {show_seconds(trained)} of {show_seconds(whole_s)}{share}")
    if repair := _to_repair(entries):
        lines.append(f"to repair: {repair}")
    if decision and not decision.nodes:
        lines.append(f"no restart: {printable(decision.because, 600)}")
    return lines


def _row(entry: SavedAttempt, following: SavedAttempt | None) -> tuple[str, ...]:
    steps = progress_words(entry.progress) or "-"
    ended = "finished" if entry.outcome == "ok" else cause_words(entry)
    then = "" if entry.outcome == "ok" else "stop"
    if following:
        out = node_set(printable(node) for node in entry.nodes if node not in following.nodes)
        new = node_set(printable(node) for node in following.nodes if node not in entry.nodes)
        then = ", ".join([f"without {out}"] * bool(out) + [f"with {new}"] * bool(new)) or "same nodes"
    who = str(entry.number), node_set(map(printable, entry.nodes))
    return (*who, steps, show_seconds(entry.took_s), ended, then)


def trained_s(entry: SavedAttempt) -> float:
    """Seconds of an attempt from its first step (else the start of its ranks) to its failure."""
    seconds = entry.seconds
    before = seconds.get("first_step") or seconds.get("start")
    if before is None or not entry.ended:
        return 0.0
    lost = before + (seconds.get("notice") or 0.0) + (seconds.get("end") or 0.0)
    return max(0.0, entry.took_s - lost)


def _to_repair(entries: Sequence[SavedAttempt]) -> str:
    """Nodes that were left out, each with the cause of the attempt that they ended."""
    found = {}
    for entry, following in pairwise(entries):
        for node in entry.nodes:
            if node not in following.nodes:
                found[node] = entry.cause.rule if entry.cause else ""
    return "; ".join(f"{printable(node)}: {rule or 'see its logs'}" for node, rule in found.items())
