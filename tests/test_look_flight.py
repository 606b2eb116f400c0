"""What a rank tells of torch's flight recorder when it is asked, and what that does to the rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.guards import wait_for
from tests.test_look import Rank

pytestmark = [pytest.mark.slow, pytest.mark.torch]

WORK = """\
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + os.getcwd() + "/meet", rank=0, world_size=1)
def step():
    dist.all_reduce(torch.ones(3))
step()
open("ready", "w").close()
while not os.path.exists("asked"):
    time.sleep(0.02)
loaded = "torch._inductor" in sys.modules
import torch._inductor
os.mkdir("loaded" if loaded else "fresh")
time.sleep(60)
"""


def test_the_line_of_a_call_is_told_without_loading_torchs_compiler(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORK)
    with Rank(tmp_path, "import work", python=sys.executable) as rank:
        wait_for((tmp_path / "ready").exists, "a collective", 180)
        flight = rank.seen("flight").flight
        assert flight and not flight.problem
        (entry,) = flight.entries
        assert (entry.call, entry.where) == ("all_reduce [3] Float", "work.py:4")
        (tmp_path / "asked").touch()
        # Whoever imports it afterwards can.
        wait_for(lambda: [*tmp_path.glob("fresh"), *tmp_path.glob("loaded")], "the import", 180)
        assert (tmp_path / "fresh").exists()
