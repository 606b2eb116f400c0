"""The pages people read say what the program does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ringup import cli

ROOT = Path(__file__).parent.parent


def test_the_generated_pages_are_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "docs.py"), "--check"], capture_output=True, text=True
    )
    # argparse's layout of --help changed between Python versions; the pages are written with 3.11.
    if sys.version_info[:2] != (3, 11) and "rules.md" not in done.stdout:
        return
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_names_every_command_and_no_other() -> None:
    named = set(re.findall(r"`ringup ([a-z]+)", (ROOT / "README.md").read_text()))
    assert named == set(cli.COMMANDS)


def test_no_tracked_text_names_a_path_of_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    names = (
        listed.stdout.split()
        if listed.returncode == 0
        else [str(p.relative_to(ROOT)) for p in ROOT.glob("src/**/*.py")]
    )
    here = str(ROOT.parent) + "/"
    for name in names:
        path = ROOT / name
        if path.is_file() and len(here) > 6 and here not in ("/root/", "/home/", "/tmp/"):
            assert here.encode() not in path.read_bytes(), name
