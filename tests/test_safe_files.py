"""Files in folders that other users may also write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringup import saved_run
from ringup.agent.guard import sentinel
from ringup.bundle import whole
from ringup.cli.lint import files_of
from ringup.runtime.record import replace_file
from ringup.runtime.slurm import Submitted
from ringup.safe_files import regular, replacing


def test_a_fifo_in_the_place_of_a_file_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    os.mkfifo(tmp_path / "train.py")
    with pytest.raises(OSError, match="not a regular file"):
        regular(tmp_path / "run.json")
    assert saved_run.read(tmp_path) is None
    assert files_of([str(tmp_path)]) == []


def test_what_a_stranger_has_put_at_a_temporary_name_is_not_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    target = tmp_path / "run.json"
    (tmp_path / f".run.json.{os.getpid()}").symlink_to(victim)
    replace_file(target, "new")
    with whole(target) as place:
        place.write_text("newer")
    assert target.read_text() == "newer" and victim.read_text() == "mine"
    with replacing(target) as one, replacing(target) as other:
        assert one != other


def test_a_mask_applies_to_a_replaced_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "a", "x")
        replace_file(tmp_path / "b", "x", 0o600)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"]
    assert modes == [0o640, 0o600]


def test_the_runs_directory_is_not_made_in_one_that_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own, shared = tmp_path / "own", tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "open to other users" in sentinel.make_run_dir(str(shared / "RUN-0"), [])
    assert sentinel.make_run_dir(str(own / "RUN-0"), [("rank.py", "pass")]) == ""
    assert (own / "RUN-0" / "rank.py").read_text() == "pass"


def test_the_output_of_a_job_reaches_the_terminal_without_control_sequences(tmp_path: Path) -> None:
    said: list[str] = []
    output = tmp_path / "job.out"
    output.write_bytes(b"one\n\x1b]52;c;eA==\x07two\x1b[2J\nth")
    Submitted("1", output, {}).read(said.append)
    assert said == ["one\ntwo\nth"]
