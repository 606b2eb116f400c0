"""Every command, broken off at every stage: it says so once, and leaves no process, descriptor or thread."""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import command_line
from ringup.model import Host
from ringup.transport import Transport
from tests.guards import free_port, tagged, wait_for
from tests.test_attach import Detached
from tests.test_pods import TOKEN

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux"), pytest.mark.slow]

HERE = Path(__file__).parent
Children = Callable[[], list[str]]

CLIENT = "ringup.transport.client:os.set_blocking"
"""A client was forked, and nobody knows it yet."""
CONNECTED = "ringup.transport.session:Session.begin"
STARTED = "ringup.transport.connections:Transport.start"
READ = "ringup.transport.session:Session._read"
FACTS = "ringup.collectors:node_from"
PAIRS = "ringup.collectors.pairs:PairClient.on_output"
RULES = "ringup.rules:run_checks"
WRITTEN = "sys:stdout.write"

ASKS = ("-H", "fine,other")
PLAYS = ("--local", "2")
PROVES = (*PLAYS, "--nproc", "1", "--python", "python-without-torch", "--anyway")
ATTACH = ("attach",)
POD = ("check", "--quiet")
TABLE: dict[tuple[str, ...], list[str]] = {
    ("check", *ASKS): [
        CLIENT,
        CONNECTED,
        READ,
        FACTS,
        PAIRS,
        RULES,
        "ringup.output.console:check_text",
        WRITTEN,
    ],
    ("check", *PLAYS, "--save", "facts", "--html", "page"): [
        "ringup.bundle:to_json",
        "ringup.output.html_page:check_page",
    ],
    ("env", *PLAYS): [FACTS, "ringup.planning.minimal_env:minimal_env"],
    ("predict", *ASKS): [CONNECTED, FACTS, "ringup.nccl.selection:predict"],
    ("script", "ssh", *PLAYS, "--", "train.py"): [RULES],
    ("bundle", *ASKS, "-o", "b.tgz", "saved"): [
        *(FACTS, "ringup.cli.bundle:ends", "ringup.cli.bundle:without_secrets", WRITTEN)
    ],
    ("test", *PROVES): [
        *(
            CONNECTED,
            FACTS,
            PAIRS,
            "ringup.collective_tests.job:backend_of",
            RULES,
            "ringup.runtime.ssh:Ssh.start",
        ),
        *("ringup.runtime.node_state:NodeRun.on_output", "ringup.collective_tests.rank_records:by_rank"),
        *("ringup.collective_tests.correctness:report", WRITTEN),
    ],
    ("bench", *PROVES): ["ringup.collective_tests.bandwidth:report"],
    ("stacks", *ASKS): [
        CLIENT,
        CONNECTED,
        STARTED,
        READ,
        "ringup.hang.snapshots:decode",
        "ringup.cli.stacks:jobs",
    ],
    ("stacks", *PLAYS, "--json"): [STARTED, WRITTEN],
    ("clean", *ASKS, "--kill"): [CLIENT, STARTED, READ, "ringup.runtime.clean:_decode"],
    ("clean", *PLAYS): [STARTED, WRITTEN],
    ("logs", "a.log", "b.log"): ["ringup.logs.read:causes_of", WRITTEN],
    ATTACH: [
        *(CLIENT, STARTED, READ, "ringup.runtime.attach:Follower.beat"),
        "ringup.runtime.record:RunRecord.note_progress",
    ],
    POD: ["ringup.transport.pod_link:server_context", "ringup.transport.pods:_Gathering.wait", RULES],
}
"""Command -> functions that raise the first time they have done their work."""
FILED = {CLIENT, CONNECTED, STARTED, READ, WRITTEN}
"""Stages at which the system itself may refuse something."""
CASES = [
    (words, stage, error)
    for words, stages in TABLE.items()
    for stage in stages
    for error in (
        (RuntimeError, KeyboardInterrupt, OSError) if stage in FILED else (RuntimeError, KeyboardInterrupt)
    )
]


def plant(monkeypatch: pytest.MonkeyPatch, stage: str, error: BaseException) -> list[str]:
    """Have the function named raise when it has done its work, once; the stage, when it has."""
    module, _, path = stage.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original, came = getattr(owner, name), []

    def raising(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if not came:
            came.append(stage)
            raise error
        return result

    monkeypatch.setattr(owner, name, raising)
    return came


class Left:
    """What is there beyond what was there before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, children: Children) -> None:
        self.children = children
        self.mark = f"RINGUP_TEST_MARK={secrets.token_hex(8)}"
        monkeypatch.setenv(*self.mark.split("="))
        self.open, self.threads = self.descriptors(), threading.active_count()

    def descriptors(self) -> set[Path]:
        return {*Path("/proc/self/fd").iterdir()}

    def processes(self) -> list[str]:
        """What carries our mark in its environment, on nodes too: they are played on this machine."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def is_nothing(self) -> None:
        assert self.children() == []
        wait_for(lambda: threading.active_count() <= self.threads, f"threads end: {threading.enumerate()}")
        assert self.descriptors() <= self.open
        wait_for(lambda: not self.processes(), f"nothing of ours is left: {self.processes()}")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, new_children: Children) -> Left:
    """A folder of our own, nodes by a played ssh client, a Python without torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(HERE / "bin"), str(tmp_path), os.environ["PATH"]]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    python = tmp_path / "python-without-torch"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    (tmp_path / "saved").mkdir()
    for path in ("train.py", "a.log", "b.log", "saved/rank.log"):
        (tmp_path / path).write_text("import torch\n")
    return Left(monkeypatch, new_children)


@pytest.fixture
def surroundings(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A detached run to attach to; what tells a pod that it leads."""
    if words == ATTACH:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        run = Detached(tmp_path, "time.sleep(600)", nodes=1)
        yield
        for pid in [*run.guards(), *tagged(run.plan.run_id)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return
    if words == POD:
        pod = {"INDEX": "0", "NODES": "1", "HEAD": "127.0.0.1", "PORT": str(free_port()), "TOKEN": TOKEN}
        for name, value in pod.items():
            monkeypatch.setenv(f"RINGUP_{name}", value)
    yield


@pytest.mark.alike
@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize(
    ("words", "stage", "error"),
    CASES,
    ids=[f"{words[0]}{n}-{stage}-{error.__name__}" for n, (words, stage, error) in enumerate(CASES)],
)
def test_a_command_that_is_broken_off_says_so_once_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    left: Left,
    words: tuple[str, ...],
    stage: str,
    error: type[BaseException],
) -> None:
    came = plant(monkeypatch, stage, error("planted"))
    with pytest.raises(SystemExit) as ended:
        command_line.main([*words])
    said = capsys.readouterr()
    assert came == [stage], said.err
    if error is OSError and stage == CLIENT:  # a failure of the node, named as one
        assert ended.value.code in (1, 4)
        assert "cannot be started here: planted" in said.out + said.err
    elif error is KeyboardInterrupt:
        assert ended.value.code == 130
        assert said.err.splitlines()[-1] == "ringup: interrupted"
        assert "Traceback" not in said.err
    else:
        assert ended.value.code == 70
        assert "this is a bug in ringup" in said.err.splitlines()[-1]
        assert said.err.count("Traceback") == 1
    left.is_nothing()


@pytest.mark.usefixtures("left")
def test_a_ctrl_c_while_a_client_is_started_leaves_none(monkeypatch: pytest.MonkeyPatch, left: Left) -> None:
    def start(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started = popen(*words, **options)
        signal.raise_signal(signal.SIGINT)
        return started

    popen = subprocess.Popen
    monkeypatch.setattr("ringup.transport.client.subprocess.Popen", start)
    with pytest.raises(KeyboardInterrupt), Transport([Host("fine")]):
        pass
    monkeypatch.undo()
    left.is_nothing()
