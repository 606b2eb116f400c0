"""Fixtures of the lab, and what is skipped where its needs are not met."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab import Lab, missing


def pytest_configure() -> None:
    """
    Signals as a terminal has them, whatever started the tests.

    Under nohup, or in the background of a script, SIGHUP or SIGINT are ignored, and every job the
    tests start would inherit that.
    """
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A lab test needs root, namespaces and tools; a torch test an importable torch."""
    if item.get_closest_marker("lab") and (reason := missing()):
        if os.environ.get("RINGUP_REQUIRE_LAB") == "1":
            pytest.fail(f"RINGUP_REQUIRE_LAB=1, but no lab can be built: {reason}", pytrace=False)
        pytest.skip(f"no lab: {reason}")
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        if os.environ.get("RINGUP_REQUIRE_LAB") == "1":
            pytest.fail("RINGUP_REQUIRE_LAB=1, but torch is not importable", pytrace=False)
        pytest.skip("torch is not importable")


@pytest.fixture
def lab() -> Iterator[Callable[..., Lab]]:
    """`lab(hosts=2, ...)` builds a cluster for this one test; two hosts take 0.1 s."""
    built: list[Lab] = []

    def build(*args: Any, **options: Any) -> Lab:
        built.append(Lab(*args, **options))
        return built[-1]

    yield build
    for one in reversed(built):
        one.close()


@pytest.fixture(scope="session")
def _labs() -> Iterator[dict[str, Lab]]:
    built: dict[str, Lab] = {}
    yield built
    for one in built.values():
        one.close()


@pytest.fixture
def shared_lab(_labs: dict[str, Lab]) -> Iterator[Callable[..., Lab]]:
    """The same cluster for every test that asks with the same words; healed after each."""
    used: list[Lab] = []

    def get(*args: Any, **options: Any) -> Lab:
        key = repr((args, sorted(options.items())))
        if key not in _labs:
            _labs[key] = Lab(*args, ttl_s=3600, **options)
        used.append(_labs[key])
        return _labs[key]

    yield get
    for one in used:
        one.heal()
