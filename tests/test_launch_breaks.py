"""A run in which ringup itself fails: every stage leaves an outcome, and nothing that lives."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringup import hosts
from ringup.errors import LaunchError
from ringup.runtime import Event, ssh
from ringup.transport import Listener, Request, Transport
from tests.guards import tagged, wait_for
from tests.test_launch import make_plan

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux"), pytest.mark.slow]

STAYS = "print('up', flush=True)\ntime.sleep(600)"
FAILS = "print('up', flush=True)\nsys.exit(3)"


class BugError(Exception):
    """A bug of ringup's."""


class Breaking:
    """A `Transport` that raises once the stage has come: at each turn from then on, or once."""

    def __init__(self, door: Transport, stage: str, error: BaseException, *, always: bool = False) -> None:
        self.door, self.stage, self.error, self.always = door, stage, error, always
        self.kinds: set[str] = set()
        self.broke = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.door, name)

    def hear(self, event: Event) -> None:
        self.kinds.add(event.kind)

    def turn(self, timeout_s: float) -> None:
        self.door.turn(timeout_s)
        if self.stage in self.kinds and (self.always or not self.broke):
            self.raise_it()

    def start(self, node: str, program: str, arguments: Any, listener: Listener, **options: Any) -> Request:
        if self.stage in (options["label"], f"{options['label'].partition(':')[0]} on {node}"):
            self.raise_it()
        return self.door.start(node, program, arguments, listener, **options)

    def run(self, program: str, arguments: Any, **options: Any) -> Any:
        return Transport.run(self, program, arguments, **options)  # type: ignore[arg-type]

    def raise_it(self) -> None:
        self.broke = True
        raise self.error


@pytest.mark.alike
@pytest.mark.parametrize(
    ("stage", "script", "error", "outcome", "code"),
    [
        ("ringup-guard on 127.0.0.3", STAYS, BugError("x"), "launcher-error", 70),
        ("ready", STAYS, BugError("x"), "launcher-error", 70),
        ("joined", STAYS, BugError("x"), "launcher-error", 70),
        ("joined", STAYS, KeyboardInterrupt(), "interrupted", 130),
        ("joined", STAYS, LaunchError("x", hint="y"), "launcher-error", 4),
        ("ending", FAILS, BugError("x"), "launcher-error", 70),
        ("ringup-last-look", FAILS, BugError("x"), "launcher-error", 70),
        ("is-consequence", FAILS, BugError("x"), "launcher-error", 70),
    ],
)
def test_a_run_that_ringup_breaks_off_ends_everywhere_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_children: Callable[[], list[str]],
    stage: str,
    script: str,
    error: BaseException,
    outcome: str,
    code: int,
) -> None:
    def is_consequence(_text: str) -> bool:
        if stage == "is-consequence":
            raise error
        return False

    monkeypatch.setattr("ringup.logs.blame.is_consequence", is_consequence)
    before, threads = {*Path("/proc/self/fd").iterdir()}, threading.active_count()
    plan = make_plan(tmp_path, script)
    with Transport(hosts.local_nodes(2)) as door, pytest.raises(type(error)):
        breaking: Any = Breaking(door, stage, error)
        ssh.run(
            plan,
            breaking,
            log_dir=tmp_path / "logs",
            on_event=breaking.hear,
            grace_s=0.5,
        )
    assert not tagged(plan.run_id)
    assert new_children() == []
    assert {*Path("/proc/self/fd").iterdir()} <= before
    assert threading.active_count() <= threads
    told = json.loads((tmp_path / "logs" / "run.json").read_text())
    assert (told["outcome"], told["exit_code"]) == (outcome, code)
    assert told["notes"]


def test_ranks_end_by_the_end_of_their_connection_where_ringup_cannot_even_end_them(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, STAYS)
    with Transport(hosts.local_nodes(2)) as door, pytest.raises(BugError):
        breaking: Any = Breaking(door, "joined", BugError("x"), always=True)
        ssh.run(plan, breaking, log_dir=tmp_path / "logs", on_event=breaking.hear, grace_s=0.5)
    wait_for(lambda: not tagged(plan.run_id), "the ranks end")
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["outcome"] == "launcher-error"


def test_a_detached_run_that_cannot_be_noted_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with Transport(hosts.local_nodes(1)) as door, pytest.raises(LaunchError):
        ssh.run(make_plan(tmp_path, "", nodes=1), door, log_dir=tmp_path / "logs", detach=True)
    assert json.loads((tmp_path / "logs" / "run.json").read_text())["outcome"] == "launcher-error"


def test_an_event_that_cannot_be_shown_is_said_and_ends_no_run(tmp_path: Path) -> None:
    def show(_event: Event) -> None:
        raise BugError("no terminal")

    with Transport(hosts.local_nodes(1)) as door:
        plan = make_plan(tmp_path, "", nodes=1, nproc=1)
        result = ssh.run(plan, door, log_dir=tmp_path / "logs", on_event=show)
    assert result.outcome == "ok"
    assert any("BugError" in note for note in result.notes)
