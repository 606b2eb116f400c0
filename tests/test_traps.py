"""
The trap set: what runs printed, and the cause that is right for each.

tests/traps/README.md says how it was made.  The answers were written before any log was read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringup.logs.read import read_logs
from ringup.logs.rule import Cause
from ringup.rules import INTERNAL_ERRORS, PROBLEMS

pytestmark = pytest.mark.slow

TRAPS = Path(__file__).with_name("traps")

RIGHT_AT_ONCE = 0.98
"""Share of the faults whose first cause is right.  It may rise."""

RIGHT_AMONG_THREE = 0.99
"""Share of the faults with a right cause among the first three."""

STILL_WRONG: dict[str, str] = {}
"""False alarms and wrong answers with high confidence that are known; what mends one takes it out."""


@dataclass(frozen=True)
class Trap:
    """One log, the causes that are right, and those that were named."""

    name: str
    accept: list[str]
    causes: list[Cause]

    def __str__(self) -> str:
        named = ", ".join(f"{c.rule} ({c.confidence})" for c in self.causes[:3]) or "nothing"
        return f"{self.name}: {' or '.join(self.accept)} is right, named: {named}"


@pytest.fixture(scope="module")
def traps() -> list[Trap]:
    """Every trap, read in this one process."""
    before = dict(INTERNAL_ERRORS)
    rows = map(json.loads, (TRAPS / "index.jsonl").read_text(encoding="utf-8").splitlines())
    found = [
        Trap(r["id"], r["accept"], read_logs([str(TRAPS / r["file"])], processes=1).causes) for r in rows
    ]
    assert before == INTERNAL_ERRORS, "a cause raised"
    return found


def shown(traps: list[Trap]) -> str:
    return "\n".join(map(str, traps))


def is_alarm(trap: Trap) -> bool:
    return trap.accept == ["healthy"] and any(c.severity == "error" for c in trap.causes)


def share_right(traps: list[Trap], confidence: str) -> float:
    """Of the failed runs' first causes with this confidence, the share that is right."""
    firsts = [trap for trap in traps if trap.causes and trap.accept != ["healthy"]]
    said = [trap for trap in firsts if trap.causes[0].confidence == confidence]
    return sum(trap.causes[0].rule in trap.accept for trap in said) / len(said)


def is_surely_wrong(trap: Trap) -> bool:
    first = trap.causes[0] if trap.causes and trap.accept != ["healthy"] else None
    return first is not None and first.confidence == "high" and first.rule not in trap.accept


def test_no_run_that_ended_well_is_called_a_failure(traps: list[Trap]) -> None:
    assert sum(trap.accept == ["healthy"] for trap in traps) >= 40
    alarms = [trap for trap in traps if is_alarm(trap) and trap.name not in STILL_WRONG]
    assert alarms == [], shown(alarms)


def test_no_wrong_cause_is_named_with_high_confidence(traps: list[Trap]) -> None:
    wrong = [trap for trap in traps if is_surely_wrong(trap) and trap.name not in STILL_WRONG]
    assert wrong == [], shown(wrong)


def test_what_is_called_still_wrong_is(traps: list[Trap]) -> None:
    wrong = {trap.name for trap in traps if is_alarm(trap) or is_surely_wrong(trap)}
    assert set(STILL_WRONG) - wrong == set(), "mended: take it out of STILL_WRONG"


def test_every_answer_is_a_problem_that_explain_knows(traps: list[Trap]) -> None:
    assert {rule for trap in traps for rule in trap.accept} - {"healthy"} - set(PROBLEMS) == set()


@pytest.mark.parametrize(("first", "share"), [(1, RIGHT_AT_ONCE), (3, RIGHT_AMONG_THREE)])
def test_the_right_cause_is_named(traps: list[Trap], first: int, share: float) -> None:
    faults = [trap for trap in traps if trap.accept != ["healthy"]]
    assert len(faults) >= 120
    missed = [t for t in faults if not any(c.rule in t.accept for c in t.causes[:first])]
    assert len(missed) <= (1 - share) * len(faults) + 1e-9, shown(missed)


@pytest.mark.parametrize(("confidence", "at_least"), [("high", 0.97), ("medium", 0.85)])
def test_a_confidence_means_what_the_page_says(traps: list[Trap], confidence: str, at_least: float) -> None:
    assert share_right(traps, confidence) >= at_least, shown(traps)
