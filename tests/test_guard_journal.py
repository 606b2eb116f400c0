"""The journal of a detached run: bounded, and never without the run's end."""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ringup


@pytest.fixture
def payload(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """payload/guard_journal.py as a module, as it is on a node."""
    monkeypatch.syspath_prepend(str(Path(ringup.__file__).parent / "payload"))
    yield importlib.import_module("guard_journal")
    sys.modules.pop("guard_journal", None)


def test_what_a_full_disk_has_not_taken_follows_when_there_is_room(payload: Any, tmp_path: Path) -> None:
    journal = payload.Journal(str(tmp_path / "a.journal"))
    lines = [b'{"type":"exit","rank":%d}\n' % rank for rank in range(4)]
    journal.add_control(lines[0])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(lines[0]) + 10, before[1]))  # half of the next one fits
    try:
        journal.add_control(lines[1])
        journal.add_control(lines[2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.add_control(lines[3])
    assert (tmp_path / "a.journal" / "control").read_bytes() == b"".join(lines)


def test_the_end_is_kept_however_much_was_said_before(
    payload: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payload, "CONTROL_BYTES", 8_010)
    journal = payload.Journal(str(tmp_path / "a.journal"))
    for _ in range(10):
        journal.add_control(b"x" * 4000 + b"\n")
    journal.add_control(b'{"type":"finished"}\n')
    kept = (tmp_path / "a.journal" / "control").read_bytes()
    assert len(kept) < 8_100 and kept.endswith(b'{"type":"finished"}\n')


def test_a_run_that_goes_on_for_weeks_in_silence_keeps_its_journal(payload: Any, tmp_path: Path) -> None:
    living, ended = (payload.Journal(str(tmp_path / f"{name}.journal")) for name in ("living", "ended"))
    long_ago = (1.0, 1.0)
    for journal in (living, ended):
        os.utime(journal.directory, long_ago)
    living.keep(payload.KEEP_EVERY_S * 2)
    payload.Journal(str(tmp_path / "new.journal"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["living.journal", "new.journal"]
