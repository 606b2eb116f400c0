"""The journal of a detached run: bounded, and never without the run's end."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from ringup.agent.guard import journal as module
from ringup.agent.guard.journal import Journal


def test_what_a_full_disk_has_not_taken_follows_when_there_is_room(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "a.journal"))
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONTROL_BYTES", 8_010)
    journal = Journal(str(tmp_path / "a.journal"))
    for _ in range(10):
        journal.add_control(b"x" * 4000 + b"\n")
    journal.add_control(b'{"type":"finished"}\n')
    kept = (tmp_path / "a.journal" / "control").read_bytes()
    assert len(kept) < 8_100 and kept.endswith(b'{"type":"finished"}\n')


def test_a_run_that_goes_on_for_weeks_in_silence_keeps_its_journal(tmp_path: Path) -> None:
    living, ended = (Journal(str(tmp_path / f"{name}.journal")) for name in ("living", "ended"))
    long_ago = (1.0, 1.0)
    for journal in (living, ended):
        os.utime(journal.directory, long_ago)
    living.keep(module.KEEP_EVERY_S * 2)
    Journal(str(tmp_path / "new.journal"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["living.journal", "new.journal"]


def test_output_that_a_full_disk_took_in_part_leaves_no_hole(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "a.journal"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal.add_output(b"first\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # half of the next line fits
    try:
        journal.add_output(b"second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    journal.add_output(b"third\n")
    assert (tmp_path / "a.journal" / "out-0").read_bytes() == b"first\nthird\n"
    assert journal.lost_bytes == len(b"second\n")
