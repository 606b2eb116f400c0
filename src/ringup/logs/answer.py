"""The answer about a run: its causes in order of blame, each with its most informative line first.  Pure."""

from __future__ import annotations

from dataclasses import replace

from ringup.logs.blame import named_first, place, ranked
from ringup.logs.causes import Cause, find
from ringup.logs.defects import defect_of
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event
from ringup.logs.rule import CONFIDENCES
from ringup.logs.telling import answered, with_telling
from ringup.rules import Finding

_SET_UP = "nccl-version bootstrap net-using using-network socket-list init set-up env-set".split()  # noqa: SIM905
_AFTER_SET_UP = ("channel", "connected", "unwind")
_ENDS = (  # noqa: SIM905
    "exit exit-signal child-failed exception closing-signal cancelled sighup run-hung crash-word killed-word"
    " abort-word oom-kill finished work watchdog-stuck"
).split()
FIRST_INFERRED = 6
"""Classes of blame from here on also rest on missing lines: a missing rank, the order of failures."""


def causes_of(log: LogEvidence, *, is_growing: bool = False) -> list[Cause]:
    """The causes of a run, most likely first; for one that `is_growing`, nothing counts as missing."""
    if log.ended and log.ended.stopped_by:
        return [_stopped(finding, line) for finding, line in log.ended.stopped_by]
    found = ranked(find(log))
    if not is_growing and (absent := missing(log)):
        found = [_lowered(cause, absent) for cause in found]
    found = [_of_a_later_command(log, cause) for cause in found]
    if good := log.good:  # causes that rest only on lines of a form that it also has are not news
        found = [c for c in found if not c.evidence or not all(good.has(e.text) for e in c.evidence)]
    found = named_first(with_telling(log, answered(log, found)))
    return [replace(cause, known_defect=defect_of(log, cause.rule, cause.evidence)) for cause in found]


def _of_a_later_command(log: LogEvidence, cause: Cause) -> Cause:
    """A failure of a command that was started after the training: the text states it."""
    is_later = bool(cause.evidence) and all(map(log.outcome.later_command, cause.evidence))
    if cause.severity != "error" or not is_later:
        return cause
    text = f"the training had finished, and a later command failed: {cause.text}"
    return replace(cause, confidence="low", text=text)


def _stopped(finding: Finding, line: Event) -> Cause:
    """An error of the check that stopped the run before it started."""
    text = f"the check stopped the run before its start: {finding.found}"
    nodes = tuple(filter(None, (finding.node,)))
    more = {"rule": finding.rule, "severity": "error", "fix": finding.fix, "telling": line}
    return Cause(text, "high", (line,), nodes, **more)  # type: ignore[arg-type]


def missing(log: LogEvidence) -> list[str]:
    """Signs that the logs of a run are incomplete; none if the run itself kept its record."""
    if log.ended or log.recorded.dumps:
        return []
    found = [one for info in log.files for one in info.cut]
    if not log.has(*_SET_UP) and log.all(*_AFTER_SET_UP, has="NCCL INFO"):
        found.append("no NCCL version line and no set-up")
    if log.outcome.failed and not log.has(*_ENDS):
        found.append("no line about how the processes ended")
    return [*dict.fromkeys(found)]


def _lowered(cause: Cause, absent: list[str]) -> Cause:
    """A cause with the confidence that incomplete logs allow: one step less if it rests on missing lines."""
    rests_on_code = {e.tag for e in cause.evidence} == {"exit"}
    if cause.severity != "error" or (place(cause) < FIRST_INFERRED and not rests_on_code):
        return cause
    less = CONFIDENCES[min(CONFIDENCES.index(cause.confidence) + 1, len(CONFIDENCES) - 1)]
    text = (
        f"{cause.text}; the log is incomplete ({', '.join(absent)}): the missing part may show another cause"
    )
    return replace(cause, confidence=less, text=text)
