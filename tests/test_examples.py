"""The example is what its README says: its job file is fresh, lint has nothing to say, and it trains."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "chargpt"


def ringup(*words: str, cwd: Path = EXAMPLE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringup", *words], cwd=cwd, capture_output=True, text=True, timeout=280
    )


def documented() -> list[str]:
    """The README's words that make job.sh."""
    lines = (EXAMPLE / "README.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("    ringup script slurm --output job.sh")]
    return shlex.split(line)[1:]


@pytest.mark.slow
def test_the_job_file_is_what_the_documented_command_writes(tmp_path: Path) -> None:
    words = documented()
    words[words.index("--output") + 1] = str(tmp_path / "job.sh")
    done = ringup(*words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "job.sh").read_text() == (EXAMPLE / "job.sh").read_text(), "make job.sh anew"


def test_only_partition_and_account_are_left_to_edit() -> None:
    text = (EXAMPLE / "job.sh").read_text()
    assert "#SBATCH --partition=PARTITION\n" in text and "#SBATCH --account=ACCOUNT\n" in text
    assert str(EXAMPLE.parent.parent) not in text


def test_lint_has_nothing_to_say_of_the_example() -> None:
    done = ringup("lint", "train.py", "job.sh")
    assert done.returncode == 0 and "no problems found" in done.stdout, done.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_it_trains_on_two_played_nodes_and_goes_on_from_its_snapshot(tmp_path: Path) -> None:
    small = (
        (EXAMPLE / "config.toml")
        .read_text()
        .replace("layers = 4", "layers = 1")
        .replace("width = 128", "width = 16")
    )
    (tmp_path / "config.toml").write_text(small)
    (tmp_path / "text.txt").write_text((EXAMPLE / "text.txt").read_text()[:6000])
    words = ["run", "--local", "2", "--nproc", "1", "--backend", "gloo", "--log-dir", str(tmp_path / "logs")]
    job = ["--", str(EXAMPLE / "train.py"), "config.toml", "--epochs"]
    first = ringup(*words, *job, "1", cwd=tmp_path)
    assert first.returncode == 0 and "epoch 0: loss" in first.stdout, first.stderr
    second = ringup(*words, "--with", "python", *job, "2", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "epoch 1: loss" in second.stdout and "epoch 0" not in second.stdout
