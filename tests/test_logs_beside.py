"""A log beside one that went well, from a time on, compressed, and in 60 lines."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pytest

from ringup.errors import LogsError, UsageError
from ringup.logs.read import Diagnosis, read_logs
from ringup.logs.since import since
from ringup.output.digest import MAX_LINES, digest
from tests.test_logs_cli import ringup

HEAD = (
    "n1:5:5 [0] NCCL INFO NCCL version 2.{minor}.3+cuda12.9\n"
    "n1:5:5 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to {gid}.\n"
    "n1:5:5 [0] NCCL INFO NCCL_DEBUG set by environment to INFO.\n"
    "[2026-11-20 08:00:01] loader: cannot open cache /scratch/{minor}1: Permission denied\n"
)
BROKEN = "[2026-11-20 08:30:01] frobnicator: cannot map region 7 of /dev/frob0: Permission denied\n"


def diagnose(tmp_path: Path, text: str, **options: str) -> Diagnosis:
    (tmp_path / "job.log").write_text(text, encoding="utf-8")
    return read_logs([str(tmp_path / "job.log")], **options)  # type: ignore[arg-type]


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "good.txt").write_text(HEAD.format(minor=27, gid=1), encoding="utf-8")
    return str(tmp_path / "good.txt")


def test_a_line_that_the_good_log_has_too_is_no_news(tmp_path: Path, good: str) -> None:
    text = HEAD.format(minor=28, gid=3) + BROKEN
    assert diagnose(tmp_path, text).causes[0].evidence[0].line == 4
    assert diagnose(tmp_path, text, against=good).causes[0].evidence[0].line == 5


def test_what_changed_is_listed_by_name(tmp_path: Path, good: str) -> None:
    found = diagnose(tmp_path, HEAD.format(minor=28, gid=3) + BROKEN, against=good)
    assert [tuple(change) for change in found.changes] == [
        ("NCCL version", "2.27.3", "2.28.3"),
        ("NCCL_IB_GID_INDEX", "1", "3"),
    ]


def test_a_log_like_the_good_one_is_no_failure(tmp_path: Path, good: str) -> None:
    assert diagnose(tmp_path, HEAD.format(minor=27, gid=1), against=good).healthy


def test_the_changes_stand_above_the_cause(tmp_path: Path, good: str) -> None:
    (tmp_path / "job.log").write_text(HEAD.format(minor=28, gid=3) + BROKEN, encoding="utf-8")
    done = ringup(str(tmp_path / "job.log"), "--against", good)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "changed: NCCL version: 2.27.3 -> 2.28.3"
    assert lines[2].startswith("error: unnamed-failure")


PACKED = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}


@pytest.mark.parametrize("kind", PACKED)
def test_a_compressed_log_gives_the_same_answer(tmp_path: Path, kind: str) -> None:
    text = HEAD.format(minor=28, gid=3) + BROKEN
    plain = diagnose(tmp_path, text)
    (tmp_path / f"job.log.{kind}").write_bytes(PACKED[kind](text.encode()))
    packed = read_logs([str(tmp_path / f"job.log.{kind}")])
    assert [(c.rule, c.evidence[0].line) for c in packed.causes] == [
        (c.rule, c.evidence[0].line) for c in plain.causes
    ]


@pytest.mark.parametrize("kind", PACKED)
def test_a_compressed_log_that_breaks_off_is_read_up_to_there(tmp_path: Path, kind: str) -> None:
    text = "".join(
        f"frobnicator: cannot map region {n * n} of /dev/frob{n % 97}: Permission denied\n"
        for n in range(9000)
    )
    whole = PACKED[kind](text.encode())
    (tmp_path / "job.log").write_bytes(whole[: len(whole) * 9 // 10])
    try:
        assert read_logs([str(tmp_path / "job.log")]).causes[0].rule == "unnamed-failure"
    except LogsError:
        assert kind == "bz2", "one block of bzip2 is all or nothing"


def test_a_zstd_log_is_read_or_refused_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 40)
    with pytest.raises(LogsError):
        read_logs([str(tmp_path / "job.log")])


TIMED = "2026-11-20 08:{:02}:00 worker {}: frobnicator: cannot map region: Permission denied\n"


@pytest.mark.parametrize(
    ("moment", "line"),
    [
        ("08:30", 31),
        ("08:30:30", 32),
        ("2026-11-20 08:30", 31),
        ("2026-11-20T08:59:00", 60),
        ("10m", 50),
        ("600s", 50),
    ],
)
def test_since_reads_from_a_time_on_and_lines_keep_their_numbers(
    tmp_path: Path, moment: str, line: int
) -> None:
    text = "".join(TIMED.format(n, n) for n in range(60))
    assert diagnose(tmp_path, text, from_time=moment).causes[0].evidence[0].line == line


def test_since_takes_lines_without_a_time_behind_the_first_that_has_one() -> None:
    blocks = [b"2026-11-20 08:00:00 a\nb\n2026-11-20 09:0", b"0:00 c\nd\n"]
    assert b"".join(since(blocks, (11 * 31 + 20) * 86400.0 + 8.5 * 3600)) == (
        b" " * 21 + b"\n" + b" " + b"\n2026-11-20 09:00:00 c\nd\n"
    )


@pytest.mark.parametrize(
    ("moment", "why"), [("08:30", "no time"), ("2026-06-01", "earlier"), ("10m", "no time")]
)
def test_since_refuses_what_leaves_nothing(tmp_path: Path, moment: str, why: str) -> None:
    stamp = "" if why == "no time" else "2026-01-02T03:20:21Z "
    (tmp_path / "a.log").write_text(f"{stamp}RuntimeError: CUDA error: out of memory\n" * 9)
    with pytest.raises(UsageError, match=why):
        read_logs([str(tmp_path / "a.log")], from_time=moment)


@pytest.mark.parametrize("moment", ["soon", "8", "25"])
def test_since_refuses_what_is_no_time(tmp_path: Path, moment: str) -> None:
    with pytest.raises(UsageError):
        diagnose(tmp_path, BROKEN, from_time=moment)


def test_a_duration_needs_a_time_to_count_from(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        diagnose(tmp_path, "frobnicator: cannot map\n", from_time="10m")


def test_a_digest_shows_the_telling_line_with_two_lines_around(tmp_path: Path) -> None:
    text = "one\ntwo\n" + BROKEN + "four\nfive\nsix\n"
    lines = digest(diagnose(tmp_path, text)).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("at "))
    assert lines[at].endswith("job.log:3")
    assert [line.split()[-1] for line in lines[at + 1 : at + 6]] == ["one", "two", "denied", "four", "five"]
    assert lines[at + 3].startswith("  > ")


def test_a_digest_holds_no_secret(tmp_path: Path) -> None:
    text = "$ HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345 torchrun train.py\n" + BROKEN
    assert "hf_abc" not in digest(diagnose(tmp_path, text))


def test_a_digest_of_a_huge_log_fits_its_lines(tmp_path: Path) -> None:
    hosts = "".join(
        f"n{n}:5:5 [0] NCCL INFO Bootstrap: Using eth{n}:10.0.0.{n}<0>\n"
        f"n{n}:5:5 [0] NCCL INFO NCCL_IB_HCA set by environment to mlx5_{n}.\n"
        f"n{n}: frob{chr(97 + n % 26)}{chr(97 + n // 26)}: cannot map region of /dev/x: Permission denied\n"
        for n in range(200)
    )
    text = digest(diagnose(tmp_path, hosts * 3))
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= 200


def test_a_digest_of_standard_input_is_printed_by_the_command() -> None:
    done = ringup("-", "--digest", stdin=BROKEN.encode())
    assert done.returncode == 1
    assert done.stdout.startswith("ringup ")
    assert "answer: error unnamed-failure (low confidence)" in done.stdout


ON_IB = (
    "n1:5:5 [0] NCCL INFO Bootstrap : Using ib0:10.0.0.7<0>\n"
    "n1:5:9 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB ib0:10.0.0.7<0>\n"
    "n1:5:9 [0] NCCL INFO Using network IB\n"
)
ON_TCP = (
    "n1:5:5 [0] NCCL INFO Bootstrap : Using eno1:192.168.4.7<0>\n"
    "n1:5:9 [0] NCCL INFO NET/IB : No device found.\n"
    "n1:5:9 [0] NCCL INFO NET/Socket : Using [0]eno1:192.168.4.7<0>\n"
    "n1:5:9 [0] NCCL INFO Using network Socket\n"
)


def test_a_run_that_has_lost_infiniband_since_the_good_one_is_warned_of(tmp_path: Path) -> None:
    good = tmp_path / "good.log"
    good.write_text(ON_IB)
    (tmp_path / "job.log").write_text(ON_TCP)
    cause = read_logs([str(tmp_path / "job.log")], against=str(good)).causes[0]
    assert (cause.rule, cause.severity, cause.nodes) == ("fell-back-to-sockets", "warning", ("n1",))
    assert all(one.rule != cause.rule for one in read_logs([str(tmp_path / "job.log")]).causes)
