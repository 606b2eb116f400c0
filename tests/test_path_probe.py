"""What a second connection's silence says of the path, and what it does not."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ringup.model import Unreached
from ringup.transport.client_errors import Phase
from ringup.transport.connections import PathProbe


def verdict(phase: Phase, state: str = "connecting") -> Unreached | bool:
    """Of a probe whose second connection got so far and then sent nothing more."""
    fresh: Any = SimpleNamespace(state=state, last_byte_s=-math.inf, errors=SimpleNamespace(phase=phase))
    fresh.judged = lambda failure, limit_s: failure
    made: Any = PathProbe.__new__(PathProbe)
    made.watched = SimpleNamespace(state="ready", last_byte_s=1.0, current=None)
    made.fresh, made._last_byte_s, made._limit_s = fresh, 1.0, 4.0
    made._answer = SimpleNamespace(came_bytes=0)
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
