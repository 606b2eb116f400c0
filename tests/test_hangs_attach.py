"""A detached run is watched by whoever is attached to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guards import free_port, wait_for
from tests.test_hangs import REPORTED_S, STUCK, line_of

pytestmark = [pytest.mark.slow, pytest.mark.torch]

RINGUP = [sys.executable, "-m", "ringup"]


class Detached:
    """A run of stuck.py on two nodes simulated on this machine, left to its head."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.log_dir = folder, folder / "log"
        self.env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        words = [*RINGUP, "run", "--local", "2", "--nproc", "1", "--backend", "gloo", "--with", "python"]
        words += ["--detach", "--log-dir", str(self.log_dir), "--env", f"MASTER_PORT={free_port()}"]
        words += ["--env", f"PYTHONPATH={STUCK.parent / 'plants'}"]  # torch is imported faster
        subprocess.run([*words, "--", str(STUCK), *arguments], check=True, cwd=folder, env=self.env)
        self.attached: list[subprocess.Popen[bytes]] = []

    def attach(self, *options: str) -> subprocess.Popen[bytes]:
        """`ringup attach` to it; what it says goes to err-N."""
        with (self.folder / f"err-{len(self.attached)}").open("wb") as err:
            self.attached.append(
                subprocess.Popen(
                    [*RINGUP, "attach", *options], cwd=self.folder, env=self.env, stdout=err, stderr=err
                )
            )
        return self.attached[-1]

    def said(self, number: int = 0) -> str:
        return (self.folder / f"err-{number}").read_text()


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[Detached]:
    run = Detached(tmp_path, "sleep", "1", str(tmp_path))
    yield run
    if not any(process.poll() is None for process in run.attached):
        run.attach("--hang-report", "0")
    for process in run.attached:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(180)


def test_whoever_is_attached_is_told_who_holds_the_run_up(detached: Detached) -> None:
    for number in range(2):  # two at a time: each hears the other's answers, too
        detached.attach("--hang-report", "4", "--log-dir", str(detached.folder / f"seen-{number}"))
    for number in range(2):
        # A report may come before, of ranks that are slow to begin.
        missing = "rank 1 (127.0.0.3) is missing from all_reduce"
        wait_for(lambda n=number, m=missing: m in detached.said(n), f"a report: {missing}", REPORTED_S)
        assert "no progress for" in detached.said(number)
        assert line_of("sleep") in detached.said(number)

        def noted(n: int = number) -> bool:
            with contextlib.suppress(FileNotFoundError):
                return bool(json.loads((detached.folder / f"seen-{n}" / "run.json").read_text())["hangs"])
            return False

        wait_for(noted, "run.json")


def test_who_is_attached_may_end_a_hung_run_with_124(detached: Detached) -> None:
    first = detached.attach("--hang-report", "4", "--hang-timeout", "6")
    assert first.wait(REPORTED_S) == 124, detached.said()
    assert detached.attach().wait(180) == 124, detached.said(1)  # the head remembers
    record = json.loads((detached.log_dir / "run.json").read_text())
    assert record["outcome"] == "hung"
