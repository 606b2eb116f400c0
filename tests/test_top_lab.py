"""`ringup top` on a host that is no node, of a run over ssh: `e` asks, then ends the run."""

from __future__ import annotations

import fcntl
import os
import pty
import sys
import termios
from typing import Any

import pytest

from tests.guards import wait_for
from tests.jobs.launched import CHECKED_AND_ENDED_S
from tests.test_restarts_lab import Restarted
from tests.test_top_terminal import Terminal

pytestmark = [pytest.mark.lab, pytest.mark.slow]


class LabTerminal(Terminal):
    """`ringup top RUN` on a host of the lab."""

    def __init__(self, run: Restarted) -> None:
        self.ours, self._theirs = pty.openpty()
        self.resize(120, 30)
        self.modes, self.sent = termios.tcgetattr(self._theirs), b""
        ends = {"stdin": self._theirs, "stdout": self._theirs, "stderr": self._theirs}
        command = [sys.executable, "-m", "ringup", "top", str(run.log_dir)]
        self.process = run.lab.popen(
            run.on,
            command,
            env={"TERM": "xterm", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **ends,
        )


@pytest.mark.parametrize("how", [(), ("--detach",)])
def test_e_ends_the_run_on_every_node_once_it_is_confirmed(lab: Any, how: tuple[str, ...]) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    options = ("--with", "python", *how)
    with Restarted(cluster, hosts="node0,node1", options=options, steps=4000) as run:
        run.wait_for_step(5)
        with LabTerminal(run) as top:
            top.until(b"2 ranks on 2 nodes")
            top.until(b"checkpointing.py:")
            top.type(b"e")
            top.until(b"on every node? y: yes, any other key: no")
            top.type(b"n")
            top.until(b"not ended")
            step = run.step()
            run.wait_for_step(step + 5)
            top.type(b"e")
            top.until(b"on every node? y: yes, any other key: no")
            top.type(b"y")
            top.until(b"The run is ending")
            gone = lambda: not any(run.of_attempt(host, 1) for host in ("node0", "node1"))  # noqa: E731
            wait_for(gone, "the end of every process of the run", CHECKED_AND_ENDED_S)
            assert top.end() == 0 and b"The run has ended" in top.sent
            assert top.now() == top.modes
        attached = run.attach() if how else run
        assert attached.wait() == 130, run.said()
        assert run.record["outcome"] == "interrupted", run.said()
