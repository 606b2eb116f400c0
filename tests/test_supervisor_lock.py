"""The file by which a run knows its supervisor, while others look at it."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from ringup.cli import background
from ringup.errors import LaunchError
from ringup.runtime.detach import SUPERVISOR


def test_who_only_looks_keeps_no_supervisor_out(tmp_path: Path) -> None:
    (tmp_path / SUPERVISOR).write_text("4242 node0")
    looks = os.open(tmp_path / SUPERVISOR, os.O_RDONLY)
    fcntl.flock(looks, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, (looks,)).start()
    background.Background(-1).hold(tmp_path)
    found = background.supervised(tmp_path)
    assert found == background.Supervised(os.getpid(), os.uname().nodename, True)


def test_a_second_one_is_refused_at_once(tmp_path: Path) -> None:
    first = background.Background(-1)
    first.hold(tmp_path)
    with pytest.raises(LaunchError, match="has a supervisor already"):
        background.Background(-1).hold(tmp_path)


def test_the_file_names_a_supervisor_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / SUPERVISOR).write_text("424242 a-node-with-a-longer-name-than-this-one-has")
    cut, found = os.ftruncate, []

    def looked_at(descriptor: int, length: int) -> None:
        for what in (lambda: None, lambda: cut(descriptor, length)):
            what()
            found.append(background.supervised(tmp_path))

    monkeypatch.setattr(os, "ftruncate", looked_at)
    background.Background(-1).hold(tmp_path)
    assert len(found) == 2 and all(who and who.is_alive for who in found)
    assert (tmp_path / SUPERVISOR).read_text() == f"{os.getpid()} {os.uname().nodename}"
