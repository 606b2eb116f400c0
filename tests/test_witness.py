"""What a second connection's silence says of the path, and what it does not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ringup.facts import Unreached
from ringup.reach.ssh import Phase
from ringup.reach.witness import Witness


def verdict(phase: Phase, state: str = "connecting") -> Unreached | bool:
    """Of a witness whose second connection got so far and then fell silent for ever."""
    fresh: Any = SimpleNamespace(state=state, heard=-math.inf, errors=SimpleNamespace(phase=phase))
    fresh.judged = lambda failure, limit_s: failure
    made: Any = Witness.__new__(Witness)
    made.watched = SimpleNamespace(state="ready", heard=1.0, current=None)
    made.fresh, made._heard, made._limit_s, made._got_bytes = fresh, 1.0, 4.0, 0
    found: Unreached | bool = made.verdict()
    return found


@pytest.mark.parametrize(("phase", "state"), [(Phase.BANNER, "connecting"), (Phase.LOGGED_IN, "ready")])
def test_a_second_connection_that_stops_at_long_packets_speaks_of_the_path(phase: Phase, state: str) -> None:
    found = verdict(phase, state)
    assert isinstance(found, Unreached) and found.kind == "ssh-long-answer-lost"


def test_a_second_connection_without_a_banner_says_nothing_of_the_path() -> None:
    assert verdict(Phase.CONNECTED) is False


def test_a_second_connection_that_does_not_come_about_is_waited_for() -> None:
    assert verdict(Phase.RESOLVED) is True
