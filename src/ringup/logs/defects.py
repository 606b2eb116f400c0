"""
Known defects of libraries: chosen by a cause's own lines and by the version in the log.

One row per defect in `known_defects.json`, from release notes and issue threads: its causes (`rules`), a
pattern for their lines (`line`), further text that the log must contain (`needs`), and the affected versions
(`from` up to, but not including, `fixed_in`).  Without a printed version a row fits only if it `is_plain`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringup.logs.evidence import LogEvidence
    from ringup.logs.lines import Event


@dataclass(frozen=True)
class Defect:
    """One row: the defect, its versions, and its source."""

    id: str
    package: str
    text: str
    url: str
    since: str
    fixed_in: str
    rules: frozenset[str]
    line: str = ""
    """A pattern, "" for none; compiled when a cause of its rules is checked."""
    needs: str = ""
    version: str = ""
    min_ranks: int = 0
    is_plain: bool = False

    @property
    def versions(self) -> str:
        """The affected versions as text, "" if unknown."""
        if self.since and self.fixed_in:
            return f"{self.package} {self.since} up to {self.fixed_in}"
        if self.fixed_in:
            return f"{self.package} before {self.fixed_in}"
        return f"{self.package} {self.since} and later" if self.since else ""

    def has(self, version: str) -> bool:
        now = numbers(version)
        return numbers(self.since) <= now and (not self.fixed_in or now < numbers(self.fixed_in))


def numbers(version: str) -> tuple[int, ...]:
    """
    A version for comparison.

    >>> numbers("2.27.3") < numbers("2.28"), numbers("")
    (True, ())
    """
    return tuple(int(part) for part in re.findall(r"\d{1,6}", version)[:4])


@functools.cache
def defects() -> tuple[Defect, ...]:
    from importlib.resources import files  # a tenth of the start of `ringup logs`, for failures only

    text = files("ringup.logs").joinpath("known_defects.json").read_text(encoding="utf-8")
    rows = json.loads(text)
    return tuple(Defect(since=row.pop("from"), rules=frozenset(row.pop("rules")), **row) for row in rows)


def defect_of(log: LogEvidence, rule: str, evidence: Iterable[Event]) -> Defect | None:
    """The known defect that fits a cause's lines and the printed versions, None for none."""
    quoted = [event.text for event in evidence]
    for defect in defects():
        if rule not in defect.rules or not _is_affected(log, defect):
            continue
        texts = [*quoted, *(e.text for e in log.all("ras-frame"))]
        if defect.line and not any(re.search(defect.line, text) for text in texts):
            continue
        if defect.needs and not any(re.search(defect.needs, text) for text in _texts(log)):
            continue
        ranks = max((c.nranks for c in log.communicators), default=0)
        if ranks >= defect.min_ranks:
            return defect
    return None


def _texts(log: LogEvidence) -> list[str]:
    return [*(event.text for event in log.events), *(clue.event.text for clue in log.clues)]


def _is_affected(log: LogEvidence, defect: Defect) -> bool:
    """Whether all printed versions have the defect; without any, whether its line is enough."""
    if defect.version:
        found = [m[1] for text in _texts(log) if (m := re.search(defect.version, text))]
    elif defect.package == "NCCL":
        found = [e["version"] for e in log.all("nccl-version", lacks="compiled with")]
    else:
        found = []
    if not found or defect.is_plain:
        return defect.is_plain
    return all(map(defect.has, found))
