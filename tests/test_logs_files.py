"""Input files: what is found, opened, cut, and refused."""

from __future__ import annotations

import codecs
import gzip
import os
from pathlib import Path

import pytest

from ringup.errors import LogsError
from ringup.logs import files
from ringup.logs.read import read_logs

LINE = "n0:4:4 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"


def test_a_directory_gives_its_logs_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("rank10.log", "rank2.log", "train.py", ".hidden", "sub/rank1.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n")
    found, refused = files.find([str(tmp_path)])
    assert [Path(p).name for p in found] == ["rank2.log", "rank10.log", "rank1.txt"]
    assert not refused


def test_a_file_named_itself_is_read_whatever_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text(LINE)
    assert read_logs([str(tmp_path / "out.json")]).causes[0].rule == "interface-name-missing"


def test_gzip_is_read_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(gzip.compress(LINE.encode()))
    assert read_logs([str(tmp_path / "a.log")]).causes[0].rule == "interface-name-missing"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_is_read(tmp_path: Path, encoding: str) -> None:
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    text = "é" * 300_000 + "\r\n" + LINE.replace("\n", "\r\n")
    (tmp_path / "a.log").write_bytes(mark + text.encode(encoding))
    found = read_logs([str(tmp_path / "a.log")])
    assert found.causes[0].rule == "interface-name-missing"
    assert found.causes[0].evidence[0].line == 2


def test_a_copy_of_a_page_has_no_break_spaces(tmp_path: Path) -> None:
    text = "step 3 loss 0.2\n" * 20_000 + LINE
    (tmp_path / "a.log").write_text(text.replace(" ", "\u00a0"), encoding="utf-8")
    found = read_logs([str(tmp_path / "a.log")])
    assert [(c.rule, c.evidence[0].line) for c in found.causes] == [("interface-name-missing", 20_001)]


def test_a_web_editors_escapes_are_taken_out(tmp_path: Path) -> None:
    text = r"RuntimeError: The server socket has failed to bind to \[::\]:29500 (errno: 98 - EADDRINUSE\_X)"
    (tmp_path / "a.log").write_text(text, encoding="utf-8")
    assert "[::]:29500" in read_logs([str(tmp_path / "a.log")]).causes[0].evidence[0].text


def test_a_gzip_file_that_breaks_off_gives_what_came_before(tmp_path: Path) -> None:
    whole = gzip.compress(LINE.encode() + b"".join(b"line %d\n" % n for n in range(50_000)))
    (tmp_path / "a.gz").write_bytes(whole[: len(whole) // 2])
    assert read_logs([str(tmp_path / "a.gz")]).causes[0].rule == "interface-name-missing"


def test_a_packed_line_without_end_is_read_in_bounded_memory_and_the_next_is_numbered(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"first\n" + b"x" * 9_000_000 + b"\n" + LINE.encode()))
    (event,) = read_logs([str(path)]).causes[0].evidence
    assert event.line == 3


@pytest.mark.parametrize("kind", ["missing", "empty", "directory"])
def test_nothing_to_read_is_one_clear_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "empty":
        path.write_text("")
    elif kind == "directory":
        path.mkdir()
    with pytest.raises(LogsError) as caught:
        read_logs([str(path)])
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 4
    assert caught.value.hint


def test_a_name_that_no_file_can_have_is_refused_and_what_else_there_is_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LINE)
    (tmp_path / "b.log").symlink_to("b" * 300)
    diagnosis = read_logs([str(tmp_path), "c" * 300])
    assert diagnosis.causes
    assert [u.path for u in diagnosis.unreadable] == [str(tmp_path / "b.log"), "c" * 300]
    assert all("too long" in u.reason for u in diagnosis.unreadable)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every directory")
def test_a_directory_that_may_not_be_read_is_not_called_one_without_logs(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir(mode=0)
    _, refused = files.find([str(tmp_path)])
    assert [(u.path, u.reason) for u in refused] == [(str(tmp_path / "in"), "Permission denied")]


def test_files_past_the_most_that_are_read_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    for name in "abc":
        (tmp_path / f"{name}.log").write_text("x\n")
    found, refused = files.find([str(tmp_path)])
    assert len(found) == 2
    assert [u.path for u in refused] == [str(tmp_path / "c.log")]


def test_one_unreadable_file_among_readable_ones_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(LINE)
    diagnosis = read_logs([str(tmp_path / "a.log"), str(tmp_path / "gone.log")])
    assert [u.path for u in diagnosis.unreadable] == [str(tmp_path / "gone.log")]
    assert diagnosis.causes


def test_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(LINE)
    assert len(read_logs([str(path), str(path), str(tmp_path)]).story.files) == 1


def test_a_file_that_is_one_long_line_without_an_end_is_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"x" * (2 << 20))
    diagnosis = read_logs([str(path)])
    assert [file.lines for file in diagnosis.story.files] == [1]


@pytest.mark.parametrize(
    "name",
    [
        "rank{}.log",
        "train_rank_{}.out",
        "globalrank-{}_localrank-0.txt",
        "workerlog.{}",
        "attempt_0/{}/stderr.log",
    ],
)
def test_a_file_that_is_named_by_its_rank_gives_it(tmp_path: Path, name: str) -> None:
    raised = (
        'Traceback (most recent call last):\n  File "/job/t.py", line 9, in <module>\n    x\nKeyError: 1\n'
    )
    for rank, text in ((0, "step 1 loss 2.0\n"), (3, raised)):
        path = tmp_path / name.format(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert read_logs([str(tmp_path)]).causes[0].ranks == (3,)


def test_names_of_two_nodes_that_count_from_0_give_no_rank(tmp_path: Path) -> None:
    for node in ("a", "b"):
        path = tmp_path / node / "attempt_0" / "1" / "stderr.log"
        path.parent.mkdir(parents=True)
        path.write_text("ValueError: x\n" if node == "a" else "step 1\n", encoding="utf-8")
    assert not read_logs([str(tmp_path)]).causes[0].ranks


def test_a_line_that_names_another_rank_counts_more_than_the_file_s_name(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("[rank2]: ValueError: x\nValueError: y\n", encoding="utf-8")
    assert 0 not in read_logs([str(tmp_path)]).causes[0].ranks


def test_a_device_without_end_is_refused() -> None:
    with pytest.raises(LogsError, match="not text"):
        read_logs(["/dev/zero"])


def test_a_file_of_nul_bytes_is_not_called_sound(tmp_path: Path) -> None:
    data = 512 * b"\0"
    (tmp_path / "a.log").write_bytes(data)
    with pytest.raises(LogsError, match="no readable text"):
        read_logs([str(tmp_path / "a.log")])
    (tmp_path / "b.log").write_bytes(data + b"step 1\n")
    (tmp_path / "rank3.err").write_bytes(b"\n")  # as of a rank that prints nothing there
    reasons = [u.reason for u in read_logs([str(tmp_path)]).unreadable]
    assert reasons == ["no readable text: only NUL bytes"]
