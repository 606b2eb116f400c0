"""The record of test runs: what it says of each test, and that a run goes on where it was cut."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.record import runs

ROOT = Path(__file__).parent.parent
TESTS = """
import pytest

def test_good(): pass
def test_bad(): assert False
def test_left_out(): pytest.skip("why")

@pytest.fixture
def broken(): raise OSError
def test_without_a_fixture(broken): pass
"""
OUTCOMES = {"good": "passed", "bad": "failed", "left_out": "skipped", "without_a_fixture": "error"}


def run(folder: Path, *options: str, text: str = TESTS) -> None:
    (folder / "test_it.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-p", "tests.record", "--record", "r.jsonl", "--rootdir", "."]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*words, "-p", "no:cacheprovider", *options], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode in (0, 1, 2, 5), done.stdout + done.stderr


def outcomes(folder: Path) -> list[dict[str, str]]:
    return [
        {entry["test"].partition("::test_")[2]: entry["outcome"] for entry in tests}
        for _, tests in runs(folder / "r.jsonl")
    ]


@pytest.mark.parametrize(
    "options", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)], ids=["alone", "xdist"]
)
def test_each_run_has_every_test_with_its_outcome(tmp_path: Path, options: list[str]) -> None:
    run(tmp_path, *options)
    run(tmp_path, *options, "-k", "good")
    assert outcomes(tmp_path) == [OUTCOMES, {"good": "passed"}]
    assert [begun["run"] for begun, _ in runs(tmp_path / "r.jsonl")] == [1, 2]
    reasons = {entry["why"] for _, tests in runs(tmp_path / "r.jsonl") for entry in tests if "why" in entry}
    assert reasons == {"assert False", "OSError"}


def test_a_run_that_was_cut_goes_on_with_the_tests_it_lacks(tmp_path: Path) -> None:
    for number in range(1, 5):
        run(tmp_path, "--for", "0.000001", "--resume")
        assert len(outcomes(tmp_path)[0]) == number
    run(tmp_path, "--resume")
    assert outcomes(tmp_path) == [OUTCOMES]
    assert_none_twice(tmp_path)


@pytest.mark.slow
def test_several_processes_are_cut_as_well(tmp_path: Path) -> None:
    many = "import time\n" + "\n".join(f"def test_{number}(): time.sleep(0.05)" for number in range(50))
    options = ("-n", "2", "--dist", "loadscope", "-p", "tests.spread")
    run(tmp_path, *options, "--for", "0.000001", text=many)
    assert 0 < len(outcomes(tmp_path)[0]) < 50
    run(tmp_path, *options, "--resume", text=many)
    assert outcomes(tmp_path) == [{str(number): "passed" for number in range(50)}]
    assert_none_twice(tmp_path)


def assert_none_twice(folder: Path) -> None:
    ((_, tests),) = runs(folder / "r.jsonl")
    assert max(Counter(entry["test"] for entry in tests).values()) == 1
