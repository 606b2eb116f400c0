"""What people see on a terminal of 80 columns: nothing wider, but for commands to copy and quoted lines."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ringup import bundle
from ringup.cli.command_line import COMMANDS, dispatch
from ringup.errors import RingupError
from ringup.output.terminal import COPIED
from tests import clusters as c

SCRIPT = """\
import os, torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["RANK"]))
if dist.get_rank() == 0:
    dist.barrier()
"""
LOG = "n1:4:4 [0] init.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
WITH_FACTS = ["--from", "FACTS", "--nproc", "1", "--anyway"]
SCREENS = {
    "check": ["--from", "FACTS"],
    "run": [*WITH_FACTS, "--dry-run", "--", "SCRIPT"],
    "attach": ["--list"],
    "runs": [],
    "top": ["--local", "1", "--once"],
    "diff": ["FACTS", "FACTS"],
    "stacks": ["--local", "1"],
    "lint": ["SCRIPT"],
    "test": ["--local", "1", "--nproc", "1", "--backend", "gloo", "--dry-run", "--anyway"],
    "bench": ["--local", "1", "--nproc", "1", "--backend", "gloo", "--dry-run", "--anyway"],
    "sweep": ["--from", "FACTS", "--dry-run"],
    "script": ["ssh", "--from", "FACTS", "--nproc", "1", "--output", "FILE", "--", "SCRIPT"],
    "clean": ["--local", "1"],
    "env": ["--from", "FACTS", "--debug"],
    "predict": ["--from", "FACTS"],
    "logs": ["LOG"],
    "report": ["LOG", "-o", "FILE"],
    "trace": ["LOG", "-o", "FILE"],
    "explain": [],
    "bundle": ["--from", "FACTS", "-o", "FILE"],
    "completion": ["--help"],
    "config": ["check"],
    "schema": [],
    "demo": ["--help"],
}


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_screen_is_no_wider_than_80_columns(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")  # no line of progress
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # not this user's own runs
    nodes = c.healthy().nodes
    shy = replace(nodes[1], unknown={"clock": "no answer in time, and the node is a long way from here"})
    bundle.save(replace(c.healthy(), nodes=(nodes[0], shy)), tmp_path / "facts.json")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.log").write_text("[rank0]: step 1\n" + LOG * 3)
    files = {"FACTS": "facts.json", "SCRIPT": "train.py", "LOG": "job.log", "FILE": "written"}
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    try:
        dispatch([command, *(files.get(word, word) for word in SCREENS[command])])
    except RingupError as error:
        pytest.fail(f"{error}: {error.hint}")
    except SystemExit:
        assert command in ("completion", "demo")
    lines = screen.getvalue().splitlines()
    quoted = (*COPIED, "job.log:")
    assert lines
    wide = [line.strip() for line in lines if len(line) > 80]
    assert [line for line in wide if " " in line and not line.startswith(quoted)] == []
