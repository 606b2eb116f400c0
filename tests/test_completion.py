"""What a shell offers at Tab."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("shtab", reason="shtab is not installed")


def script(shell: str, home: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "ringup", "completion", shell], capture_output=True, text=True, check=True
    )
    file = home / f"completion.{shell}"
    file.write_text(done.stdout)
    return file


@pytest.mark.slow
def test_bash_offers_commands_options_choices_problems_and_hosts(tmp_path: Path) -> None:
    file = script("bash", tmp_path)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host gpu1 gpu2\n  User me\nHost *\n")
    for words, wanted in {
        "ringup ch": "check",
        "ringup run --nod": "--nodes",
        "ringup run --with torch": "torchrun",
        "ringup env --format sl": "slurm",
        "ringup explain port-in-u": "port-in-use",
        "ringup check -H gp": "gpu1 gpu2",
        "ringup completion f": "fish",
    }.items():
        asked = f"source {file}; COMP_WORDS=({words}); COMP_CWORD={words.count(' ')}"
        done = subprocess.run(
            ["bash", "-c", f"{asked}; _shtab_ringup; echo ${{COMPREPLY[@]}}"],
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == wanted.split(), (words, done)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_theirs(shell: str, tmp_path: Path) -> None:
    file = script(shell, tmp_path)
    assert "ringup" in file.read_text()
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", file], check=True)
