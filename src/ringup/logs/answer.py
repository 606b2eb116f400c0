"""The answer about a run: its causes in order of blame, each with its telling line first.  Pure."""

from __future__ import annotations

from dataclasses import replace

from ringup.logs.blame import ranked
from ringup.logs.causes import Cause, find
from ringup.logs.causes.unnamed import answered
from ringup.logs.completeness import lowered, missing
from ringup.logs.defects import defect_of
from ringup.logs.evidence import LogEvidence
from ringup.logs.forms import Reference
from ringup.logs.telling import with_telling


def causes_of(log: LogEvidence, *, is_growing: bool = False) -> list[Cause]:
    """The causes of a run, most likely first; of one that `is_growing` nothing is missing yet."""
    found = ranked(find(log))
    if not is_growing:
        found = lowered(found, missing(log))
    if log.good is not None:
        found = [one for one in found if not _is_no_news(log.good, one)]
    found = with_telling(log, answered(log, found))
    return [replace(cause, known_defect=defect_of(log, cause.rule, cause.evidence)) for cause in found]


def _is_no_news(good: Reference, cause: Cause) -> bool:
    """Whether a cause rests on nothing but lines of a form that the good log has, too."""
    return bool(cause.evidence) and all(good.has(event.text) for event in cause.evidence)
