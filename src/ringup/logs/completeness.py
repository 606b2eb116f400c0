"""What of a run's logs is missing: their beginning, their end, the end of a line.  Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ringup.logs.blame import place
from ringup.logs.counts import Part
from ringup.logs.rule import CONFIDENCES, Cause
from ringup.logs.scan import BELOW_A_FRAME, Scan

if TYPE_CHECKING:
    from ringup.logs.evidence import LogEvidence

_SET_UP = "nccl-version bootstrap net-using using-network socket-list init set-up env-set".split()  # noqa: SIM905
_AFTER_SET_UP = ("channel", "connected", "unwind")
_ENDS = (  # noqa: SIM905
    "exit exit-signal child-failed exception closing-signal cancelled sighup run-hung crash-word killed-word"
    " abort-word oom-kill finished work watchdog-stuck"
).split()
FIRST_INFERRED = 6
"""Classes of blame from here on rest on what is absent, too: who did not come, who failed first."""


def cut_in(part: Part, scan: Scan) -> tuple[str, ...]:
    """What is missing in one file: the end of its last line, the end or the beginning of a traceback."""
    found = []
    if part.last is not None:
        offset, _, raw = part.last
        if offset + len(raw) >= part.bytes and b"\r" not in raw:
            found.append("the last line is cut off")
    if scan.open_frame and part.lines - scan.open_frame < BELOW_A_FRAME:
        found.append("a traceback without its last line")
    if scan.headless:
        found.append("a traceback without its first line")
    return tuple(found)


def missing(log: LogEvidence) -> list[str]:
    """What shows that the logs of a run are not whole; nothing where the run itself kept its record."""
    if log.ended or log.recorded.dumps:
        return []
    found = [one for info in log.files for one in info.cut]
    if not log.has(*_SET_UP) and log.all(*_AFTER_SET_UP, has="NCCL INFO"):
        found.append("no NCCL version line and no set-up")
    if log.outcome.failed and not log.has(*_ENDS):
        found.append("no line about how the processes ended")
    return [*dict.fromkeys(found)]


def lowered(causes: list[Cause], absent: list[str]) -> list[Cause]:
    """The causes as sure as incomplete logs allow: those that rest on what is absent lose one step."""

    def lower(cause: Cause) -> Cause:
        rests_on_code = {e.tag for e in cause.evidence} == {"exit"}
        if cause.severity != "error" or (place(cause) < FIRST_INFERRED and not rests_on_code):
            return cause
        less = CONFIDENCES[min(CONFIDENCES.index(cause.confidence) + 1, len(CONFIDENCES) - 1)]
        text = f"{cause.text}; the log is incomplete ({', '.join(absent)}): the missing part may name another"
        return replace(cause, confidence=less, text=text)

    return [lower(cause) for cause in causes] if absent else causes
