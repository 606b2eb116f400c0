"""The end of a run as `ringup run` itself recorded it: its verdict has priority over the logs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ringup import saved_run
from ringup.logs import files
from ringup.logs.lines import Event
from ringup.rules import Finding
from ringup.saved_run import SavedFailure, SavedVerdict
from ringup.units import printable

MOST_BYTES = 16 << 20
INTERRUPTED = ("interrupted", "not-saved")
"""Outcomes of a run that its user ended."""
MOST_LINES = 5
"""Lines of proof above the last line."""


class RunEnd(NamedTuple):
    """The end of a run, from run.json, and the last line of ringup.log."""

    outcome: str
    verdict: SavedVerdict
    """`rule` is empty if the run named no cause of the hang."""
    line: Event
    proof: tuple[Event, ...] = ()
    """The lines above it: the place of the missing ranks, and their flight recorder entries."""
    left_before: tuple[str, ...] = ()
    """Ranks that had ended with code 0 before others lost them or Ctrl-C: "rank 3 on node1, 0.2 s before"."""

    stopped_by: tuple[tuple[Finding, Event], ...] = ()
    """The errors of the check that stopped it, and their lines."""


def end_of_run(paths: Sequence[str]) -> RunEnd | None:
    """The end of the run in the files' folder; None without ringup.log and run.json of one run."""
    own = [number for number, path in enumerate(paths) if Path(path).name == files.END_FILE]
    if len(own) != 1:
        return None
    path = Path(paths[own[0]])
    record = saved_run.read(path.parent)
    try:
        lines = files.whole(str(path), MOST_BYTES)[0].decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    if not (record and lines):
        return None
    if record.outcome == "check-stopped":
        errors = [one for one in record.findings if one.severity == "error"]
        events = [Event("run-ended", own[0], n, printable(t.strip(), 300)) for n, t in enumerate(lines, 1)]
        stopped_by = tuple(zip(errors, events, strict=False))
        return RunEnd(record.outcome, SavedVerdict(), events[-1], stopped_by=stopped_by)
    numbered = [*enumerate(lines, 1)][-1 - MOST_LINES :]
    shown = [(n, text) for n, text in numbered if text.startswith(("  rank ", "  flight recorder: "))]
    *proof, line = (
        Event("run-ended", own[0], n, printable(text.strip(), 300)) for n, text in [*shown, numbered[-1]]
    )
    names: Sequence[str] = (record.first_failure or SavedFailure()).left_before
    if record.outcome in INTERRUPTED and any(one.code for one in record.ranks):
        names = tuple(f"rank {one.rank} on {one.node}" for one in record.ranks if one.code == 0)
    left = tuple(printable(one, 120) for one in names[:8])
    return RunEnd(record.outcome, record.verdict or SavedVerdict(), line, tuple(proof), left)
