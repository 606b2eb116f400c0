"""
A pytest plugin (`-p tests.record`): what became of each test goes to a file; a run goes on where it was cut.

The file has a JSON object per line.  A run begins with {"run": its number, "commit", "began": Unix seconds,
"load": the load average of one minute}; each test adds {"test", "outcome", "seconds"}, with an outcome of
passed, failed, error (before or after the test itself), skipped or rerun; of a failure also {"why"}.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LONGEST_WHY = 2000
DONE = ("passed", "failed", "error", "skipped")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("record")
    group.addoption("--record", type=Path, metavar="F", help="append outcomes and durations to F")
    group.addoption("--resume", action="store_true", help="go on with the last run of F: no test twice")
    group.addoption(
        "--for", type=float, metavar="S", dest="for_s", help="stop after S seconds; --resume goes on"
    )


def runs(file: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The runs of a record, each with its tests."""
    begun: dict[str, Any] | None = None
    tests: list[dict[str, Any]] = []
    for line in file.read_text().splitlines() if file.exists() else []:
        entry = json.loads(line)
        if "run" in entry:
            if begun is not None:
                yield begun, tests
            begun, tests = entry, []
        else:
            tests.append(entry)
    if begun is not None:
        yield begun, tests


class Writer:
    """Appends what the reports say, also those of other processes (xdist)."""

    def __init__(self, config: pytest.Config, file: Path) -> None:
        self.file = file
        self.session: pytest.Session | None = None
        self.until = time.monotonic() + (config.getoption("for_s") or float("inf"))
        file.parent.mkdir(parents=True, exist_ok=True)
        last = [begun for begun, _ in runs(file)]
        if not (last and config.getoption("resume")):
            words = ["git", "describe", "--always", "--dirty"]
            commit = subprocess.run(words, cwd=config.rootpath, capture_output=True, text=True).stdout.strip()
            number = last[-1]["run"] + 1 if last else 1
            self.add({"run": number, "commit": commit, "began": time.time(), "load": os.getloadavg()[0]})

    def add(self, entry: dict[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.session = session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failed_around = report.when != "call" and report.outcome == "failed"
        if report.when == "call" or failed_around or report.outcome in ("skipped", "rerun"):
            outcome = "error" if failed_around else report.outcome
            name, seconds = report.nodeid, round(report.duration, 2)
            crash = getattr(report.longrepr, "reprcrash", None)
            why = {"why": crash.message[:LONGEST_WHY]} if crash else {}
            self.add({"test": name, "outcome": outcome, "seconds": seconds, **why})
        if time.monotonic() > self.until and self.session is not None:
            controller = self.session.config.pluginmanager.get_plugin("dsession")  # of xdist
            (controller or self.session).shouldstop = "the time is over (--for); --resume goes on"


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("record")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Writer(config, file.absolute()), "ringup-record")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what the last run has done."""
    if not (config.getoption("record") and config.getoption("resume")):
        return
    *_, (_, tests) = [({}, []), *runs(config.getoption("record").absolute())]
    done = {entry["test"] for entry in tests if entry["outcome"] in DONE}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]
