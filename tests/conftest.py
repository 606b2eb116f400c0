"""Fixtures of the lab, and what is skipped where its needs are not met."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests import json_outputs
from tests.lab import Lab, missing

WAITING = (
    "test_supervising_lab",
    "test_restarts_lab",
    "test_script_restarts_lab",
    "test_sweep_lab",
    "test_prove_lab",
    "test_pods",
    "test_orphans",
    "test_launch_orphans",
    "test_hostile",
    "test_hangs",
    "test_attach_lab",
    "test_transport_lab",
    "test_pairs_lab",
    "test_transports_lab",
    "test_docs_console",
    "test_lab",
)
"""Files of lab tests that wait most of their time, the longest first."""
WHOLE_TORCH = ("test_examples", "test_docs_console")
"""Files whose jobs are users' own."""


ONLY_FILES = frozenset(os.environ.get("ONLY_FILES", "").splitlines())
"""Files with tests to run, from the Makefile; pytest would list their folder for each of them."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    is_here = collection_path.parent == Path(__file__).parent and collection_path.suffix == ".py"
    return True if ONLY_FILES and is_here and str(collection_path) not in ONLY_FILES else None


def pytest_configure() -> None:
    """
    Signals as a terminal has them, whatever started the tests; no limit of time for an example.

    Under nohup, or in the background of a script, SIGHUP or SIGINT are ignored, and every job the
    tests start would inherit that; so they would a width of the screen, and what NVIDIA's images export
    for jobs (CUDA_HOME, TORCH_CUDA_ARCH_LIST), which ringup forwards to nodes.
    """
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("any load", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("any load")
    os.environ.pop("COLUMNS", None)
    for name in [n for n in os.environ if n.startswith(("CUDA_", "NCCL_", "TORCH_"))]:
        del os.environ[name]
    os.environ["LIGHT_TORCH_IN_LAB"] = str(Path(__file__).with_name("light_torch.py"))
    json_outputs.install()
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto` half as many again as there are cores, as many tests wait for processes; at most 8."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, cores + (cores + 1) // 2)


def pytest_runtest_teardown() -> None:
    """A test fails during which a rule raised: it is listed as not checked, and its answer is missing."""
    rules = sys.modules.get("ringup.rules")
    raised = dict(rules.INTERNAL_ERRORS) if rules else {}
    if rules and raised:
        rules.INTERNAL_ERRORS.clear()
        pytest.fail("\n".join(broken.traceback for broken in raised.values()), pytrace=False)


@pytest.fixture
def _torch_is_imported_faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In jobs of tests (tests/light_torch.py), a little also in users' examples and with a DataLoader."""
    item = request.node
    monkeypatch.setenv("LIGHT_TORCH", os.environ["LIGHT_TORCH_IN_LAB"])
    if "loader" in item.nodeid or item.path.stem in WHOLE_TORCH:
        monkeypatch.setenv("WHOLE_TORCH", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Of many cases alike `make test` takes one in five, and no training: `make test-slow` has the rest.

    The longest go first, so that no run ends with one of them alone; lab tests that wait most of their
    time (for a timeout, a lease, Slurm) are spread among those that need the CPUs.
    """
    for item in items:
        alike = item.get_closest_marker("alike") and zlib.crc32(item.nodeid.encode()) % 5
        if alike or item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("torch") and not item.get_closest_marker("lab"):
            item.fixturenames.append("_torch_is_imported_faster")  # type: ignore[attr-defined]
    items.sort(key=lambda item: not item.get_closest_marker("torch"))
    waiting = [item for item in items if item.get_closest_marker("lab") and item.path.stem in WAITING]
    waiting.sort(key=lambda item: WAITING.index(item.path.stem))
    # Places are fractions of a run.  Its second half is short tests, its first those that train.
    place = {item.nodeid: 0.55 * number / len(waiting) for number, item in enumerate(waiting)}
    others = [item for item in items if item.nodeid not in place]
    place |= {item.nodeid: number / len(others) for number, item in enumerate(others)}
    items.sort(key=lambda item: place[item.nodeid])


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
def new_children() -> Callable[[], list[str]]:
    """
    Processes this one has started since the test began, ended ones that nobody has waited for among them.

    Earlier tests of the same process may have left some of theirs.
    """
    known = {pid for pid, _ in _children()}
    return lambda: [words for pid, words in _children() if pid not in known]


def _children() -> list[tuple[str, str]]:
    command = ["ps", "-o", "pid=,stat=,args=", "--ppid", str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.split(None, 1) for line in done.stdout.splitlines()]
    return [(pid, words) for pid, words in lines if "ps -o" not in words]


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
            _labs[key] = Lab(*args, ttl_s=6 * 3600, **options)
        used.append(_labs[key])
        return _labs[key]

    yield get
    for one in used:
        one.heal()
