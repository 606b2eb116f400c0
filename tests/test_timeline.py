"""What each rank did when: the times a run notes, and the timeline that they, logs and dumps give."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringup.output import timeline_report
from ringup.timeline import SCRIPT, RankLine, Timeline, Track, marks
from ringup.timeline.read import read, timeline_of
from tests import flight_dumps, run_folders
from tests.run_folders import BEGAN_S, Planted, call

NAN = pytest.approx(math.nan, nan_ok=True)


def timeline(*paths: Path) -> Timeline:
    return timeline_of(*read([str(path) for path in paths]))


def noted(lines: list[bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines]


def test_times_of_output_are_noted_seldom_and_both_ends_of_a_silence_are_kept() -> None:
    lines: list[bytes] = []
    recorder = marks.Recorder(lines.append)
    recorder.note(marks.Began(100.0))
    for n in range(1000):
        recorder.output("a.log", 100.0 + n * 0.01, 10)
    recorder.output("a.log", 500.0, 10)
    recorder.flush()
    found = [one for one in noted(lines) if one["what"] == "output"]
    assert len(found) < 60
    assert found[-1]["bytes"] == 10_010 and found[-1]["since_s"] == 500.0
    before = found[-2]
    assert before["bytes"] == 10_000 and before["at_s"] == pytest.approx(109.99)


def test_each_byte_of_a_log_has_the_time_at_which_it_came(tmp_path: Path) -> None:
    lines: list[bytes] = []
    recorder = marks.Recorder(lines.append)
    recorder.note(marks.Began(BEGAN_S))
    recorder.note(marks.RankBegan(BEGAN_S, 0, "n", "a.log", None))
    for at_s in (1.0, 2.0, 60.0):
        recorder.output("a.log", BEGAN_S + at_s, 10)
    recorder.flush()
    (tmp_path / marks.FILE).write_bytes(b"".join(lines))
    times = marks.read(tmp_path)
    assert times is not None
    at = [marks.byte_s(times.files["a.log"], offset) for offset in (0, 10, 20, 29, 30)]
    assert at == [pytest.approx(1.0), pytest.approx(2.0), pytest.approx(60.0), pytest.approx(60.0), None]


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[" * 5000, b'{"what":"rank"}', b'{"what":"x","at_s":1}', b"\xff\xfe", b'{"what":"began"}'],
)
def test_lines_that_are_no_times_are_left_out(tmp_path: Path, line: bytes) -> None:
    folder = run_folders.write(tmp_path / "run", [Planted(0, ended_s=5.0, code=0)])
    path = folder / marks.FILE
    path.write_bytes(line + b"\n" + path.read_bytes() + line)
    times = marks.read(folder)
    assert times is not None and times.ends[0].at_s == pytest.approx(5.0)


def test_the_begin_may_come_after_the_first_output(tmp_path: Path) -> None:
    folder = run_folders.write(tmp_path / "run", [Planted(0, output=[(3.0, "x")], ended_s=5.0, code=0)])
    first, *rest = (folder / marks.FILE).read_bytes().splitlines(keepends=True)
    (folder / marks.FILE).write_bytes(b"".join([*rest, first]))
    times = marks.read(folder)
    assert times is not None and times.ends[0].at_s == pytest.approx(5.0)


def test_a_rank_that_does_not_come_is_the_planted_one_and_the_others_wait_from_their_call_on(
    tmp_path: Path,
) -> None:
    ranks = [
        Planted(
            n,
            f"node{n // 2}",
            ended_s=31.0,
            code=-15,
            calls=[call(1, 8.0, 8.1)] + ([] if n == 2 else [call(2, 10.0 + n, None)]),
        )
        for n in range(4)
    ]
    verdict = run_folders.hang(2)
    found = timeline(run_folders.write(tmp_path / "run", ranks, "hung", **verdict))
    assert [line.role for line in found.ranks] == ["", "", "missing", ""]
    assert [line.waits_s for line in found.ranks] == [
        pytest.approx(10.0),
        pytest.approx(11.0),
        None,
        pytest.approx(13.0),
    ]
    assert found.ranks[2].where == "data.py:14 in fetch"
    assert found.ranks[0].where == "all_reduce train.py:48"
    assert found.clock == "one" and found.clock_error_s == 0.001
    assert found.end_s == pytest.approx(31.0) and found.started == run_folders.STARTED
    rows, left_out = timeline_report.rows(found)
    assert [row.is_named for row in rows] == [False, False, True, False] and left_out == 0
    assert rows[2].words.startswith("does not come, data.py:14")
    assert 'class="b-bad"' in rows[2].picture and 'class="b-bad"' not in rows[0].picture


def test_ranks_whose_calls_differ_have_each_its_own_call_in_its_words(tmp_path: Path) -> None:
    usual = [call(1, 8.0, 8.1), call(2, 10.0, None)]
    other = [call(1, 8.0, 8.1), call(2, 9.0, 9.1, "broadcast", where="eval.py:7"), call(3, 11.0, None)]
    planted = [Planted(n, ended_s=31.0, code=-15, calls=other if n == 1 else usual) for n in range(3)]
    run_folders.write(tmp_path, planted, "hung", **run_folders.hang(1))
    content = json.loads((tmp_path / "run.json").read_text())
    content["hangs"][0]["missing"] = []
    content["verdict"] = {"rule": "collective-mismatch", "ranks": [0, 1]}
    (tmp_path / "run.json").write_text(json.dumps(content))
    found = timeline(tmp_path)
    words = [timeline_report.rank_words(line, found.end_s) for line in found.ranks]
    assert words[0].startswith("calls all_reduce [8] Float train.py:48 for ")
    assert words[1].startswith("calls broadcast [8] Float eval.py:7 for ")
    assert words[2].startswith("waits in all_reduce train.py:48 for ")


def test_a_rank_that_left_while_the_others_wait_for_it_is_the_missing_one(tmp_path: Path) -> None:
    planted = [
        Planted(
            n,
            ended_s=12.0 if n == 1 else 31.0,
            code=0 if n == 1 else -15,
            calls=[call(1, 10.0, None)] * (n != 1),
        )
        for n in range(3)
    ]
    run_folders.write(tmp_path, planted, "hung", **run_folders.hang(1, "ended with code 0"))
    content = json.loads((tmp_path / "run.json").read_text())
    content["verdict"] = {"rule": "uneven-batches-between-ranks", "ranks": [1]}
    (tmp_path / "run.json").write_text(json.dumps(content))
    found = timeline(tmp_path)
    assert [line.role for line in found.ranks] == ["", "missing", ""]
    assert timeline_report.rank_words(found.ranks[1], found.end_s) == "does not come, ended with code 0"


def own(rank: int, pid: int, node: str) -> marks.OwnRank:
    return marks.OwnRank(run_folders.BEGAN_S + 5.0, rank, pid, node, 0.25)


def with_own(folder: Path, *ranks: marks.OwnRank, launcher: str = "python", **missing: Any) -> Timeline:
    """Of two scripts, a node each, that have started these ranks; one of them did not come."""
    scripts = [Planted(n, f"node{n}", ended_s=40.0, code=-15) for n in range(2)]
    run_folders.write(folder, scripts, "hung", **run_folders.hang(0))
    with (folder / marks.FILE).open("ab") as file:
        for one in (*ranks, marks.Used(run_folders.BEGAN_S + 9.0, 1, 3.0, 5)):
            file.write(msgspec.json.encode(one) + b"\n")
    content = json.loads((folder / "run.json").read_text())
    content["plan"]["job"]["launcher"] = launcher
    content["hangs"][0]["missing"] = [{"node": "node0", "where": "data.py:14", **missing}]
    content["verdict"] = {
        "rule": "rank-fell-behind",
        "ranks": [r for r in (missing["rank"],) if r is not None],
    }
    (folder / "run.json").write_text(json.dumps(content))
    return timeline_of(*read([str(folder)]))


def test_ranks_that_a_script_starts_have_rows_of_their_own_beside_the_scripts(tmp_path: Path) -> None:
    ranks = [own(n, 500 + n, f"node{n // 2}") for n in range(4)]
    found = with_own(tmp_path, *ranks, rank=1, pid=501)
    rows = {(line.title, line.node): line for line in found.ranks}
    assert [*rows] == [
        ("script", "node0"), ("script", "node1"), ("rank 0", "node0"), ("rank 1", "node0"),
        ("rank 2", "node1"), ("rank 3", "node1"),
    ]  # fmt: skip
    assert [line.title for line in found.ranks if line.role == "missing"] == ["rank 1"]
    assert rows["rank 1", "node0"].where == "data.py:14" and rows["rank 1", "node0"].began_s == 5.0
    assert [len(line.use) for line in found.ranks] == [0, 0, 0, 1, 0, 0]
    assert [line.waits_s for line in found.ranks] == [None, None, 10.0, None, 10.0, 10.0]
    assert found.clock_error_s == 0.25


def test_spawned_ranks_are_named_by_their_process(tmp_path: Path) -> None:
    ranks = [own(-1, 500 + n, f"node{n}") for n in range(2)]
    found = with_own(tmp_path, *ranks, launcher="spawn", rank=None, pid=501)
    lines = [line for line in found.ranks if line.name != SCRIPT]
    assert [(line.title, line.role) for line in lines] == [("process 500", ""), ("process 501", "missing")]
    assert [row.label for row in timeline_report.rows(found)[0] if row.is_named] == ["process 501"]


def test_the_first_failure_stands_where_run_json_has_it(tmp_path: Path) -> None:
    failure = {"node": "node0", "rank": 1, "code": 1, "what": "rank 1 on node0: exit code 1", "at_s": 12.5}
    ranks = [Planted(0, ended_s=14.0, code=-15), Planted(1, ended_s=12.6, code=1)]
    folder = run_folders.write(tmp_path / "run", ranks, "rank-failed", first_failure=failure, seconds=15.0)
    found = timeline(folder)
    assert found.ranks[1].role == "failed" and found.ranks[1].failed_s == 12.5
    assert [line.ended_s for line in found.ranks] == [pytest.approx(14.0), pytest.approx(12.6)]
    row = timeline_report.rows(found)[0][1]
    assert row.words == "failed first, 12 s after the start, exit code 1"


def test_steps_and_ncclcalls_of_a_run_have_times_of_their_output(tmp_path: Path) -> None:
    text = run_folders.coll_lines("node0", 0, 1, 100).splitlines()
    output = [(5.0 + n, line) for n, line in enumerate(text)]
    found = timeline(run_folders.write(tmp_path / "run", [Planted(0, output=output, ended_s=200.0, code=0)]))
    line = found.ranks[0]
    assert found.source == "lines"
    assert line.init_s == (pytest.approx(5.0), pytest.approx(6.0))
    assert list(line.steps) == [pytest.approx(8.0), pytest.approx(59.0)]
    (track,) = line.tracks
    assert list(track.number) == list(range(1, 101)) and track.ranks == 1
    assert track.begun_s[0] == pytest.approx(7.0) and track.begun_s[-1] == pytest.approx(108.0)
    assert track.ended_s[0] == NAN
    assert found.kinds[track.kind[0]].size_bytes == 4096


def test_logs_without_times_keep_the_order_and_say_so(tmp_path: Path) -> None:
    for rank in range(2):
        text = run_folders.coll_lines("node0", rank, 2, 5 - rank)
        (tmp_path / f"r{rank}.log").write_text(text)
    found = timeline(tmp_path)
    assert found.clock == "order"
    assert [len(line.tracks[0].number) for line in found.ranks] == [5, 4]
    assert "no times" in timeline_report.clock_words(found)


def test_stamps_of_the_lines_are_the_times_where_a_job_is_not_ours(tmp_path: Path) -> None:
    for rank in range(2):
        lines = run_folders.coll_lines("node0", rank, 2, 3).splitlines()
        stamped = [f"[2026-05-05 06:16:{10 + n + rank:02d}] {line}" for n, line in enumerate(lines)]
        (tmp_path / f"r{rank}.log").write_text("\n".join(stamped) + "\n")
    found = timeline(tmp_path)
    assert found.clock == "own"
    assert [list(line.tracks[0].begun_s) for line in found.ranks] == [[2.0, 4.0, 5.0], [3.0, 5.0, 6.0]]


def test_times_that_have_no_common_begin_are_not_mixed(tmp_path: Path) -> None:
    lines = run_folders.coll_lines("node0", 0, 1, 3).splitlines()
    stamped = "\n".join(f"[2026-05-05 06:16:{10 + n}] {line}" for n, line in enumerate(lines))
    (tmp_path / "dumps").mkdir()
    (tmp_path / "dumps" / "r0.log").write_text(stamped)
    flight_dumps.written(tmp_path / "dumps", {0: flight_dumps.dump([flight_dumps.call()])})
    found = timeline(tmp_path / "dumps")
    assert found.source == "dumps" and not found.ranks[0].steps and found.ranks[0].init_s is None
    folder = run_folders.write(tmp_path / "run", [Planted(0, ended_s=5.0, code=0)], seconds=6.0)
    (folder / marks.FILE).unlink()
    (folder / "rank-00000-node0.log").write_text(stamped)
    found = timeline(folder)
    assert not found.ranks[0].tracks and found.end_s == 6.0


@pytest.mark.parametrize(("nodes", "is_told"), [(("a", "a"), False), (("a", "b"), True)])
def test_dumps_of_several_nodes_are_not_on_one_clock(nodes: tuple[str, str], is_told: bool) -> None:
    ranks = [RankLine(rank, node, tracks=[Track("0")]) for rank, node in enumerate(nodes)]
    found = Timeline(ranks, 9.0, clock="one", clock_error_s=0.001, source="dumps")
    assert ("except those of collectives" in timeline_report.clock_words(found)) == is_told
    assert ("clocks of different nodes were not compared" in timeline_report.source_words(found)) == is_told


def test_dumps_alone_give_their_calls_and_the_end_of_those_that_ended(tmp_path: Path) -> None:
    dumps = {
        0: flight_dumps.dump([flight_dumps.call(), flight_dumps.waits("barrier")], ranks=range(2)),
        1: flight_dumps.dump([flight_dumps.call()], ranks=range(2)),
    }
    first = dumps[0]["entries"][0]
    first["time_discovered_completed_ns"] = first["time_created_ns"] + 5_000_000
    found = timeline(flight_dumps.written(tmp_path / "dumps", dumps))
    assert found.source == "dumps" and found.clock == "own"
    assert "nodes of the ranks are not known" in timeline_report.clock_words(found)
    (own,), (other,) = (line.tracks for line in found.ranks)
    assert list(own.begun_s) == [0.0, pytest.approx(0.02)]
    assert list(own.ended_s) == [pytest.approx(0.005), math.inf]
    assert list(other.ended_s) == [NAN]
    assert [line.waits_s for line in found.ranks] == [pytest.approx(0.02), None]


def test_a_running_rank_and_one_that_never_came_have_their_words(tmp_path: Path) -> None:
    ranks = [Planted(0), Planted(1, began_s=None)]
    found = timeline(run_folders.write(tmp_path / "run", ranks, "running", seconds=9.0, exit_code=None))
    words = [row.words for row in timeline_report.rows(found)[0]]
    assert words == ["no end recorded", "no process was seen"]


def test_a_run_that_has_printed_nothing_yet_has_a_timeline(tmp_path: Path) -> None:
    folder = run_folders.write(tmp_path / "run", [Planted(0)], "running", seconds=9.0, exit_code=None)
    (folder / "ringup.log").unlink()
    assert timeline(folder).ranks[0].began_s == pytest.approx(2.0)


def test_of_a_restarted_run_the_attempt_that_failed_is_drawn(tmp_path: Path) -> None:
    failure = {"node": "node0", "rank": 0, "code": 1, "what": "rank 0 on node0: exit code 1", "at_s": 3.5}
    run = tmp_path / "run"
    text = [(3.0, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")]
    planted = [Planted(0, output=text, ended_s=4.0, code=1)]
    run_folders.write(run / "attempt-1", planted, "rank-failed", first_failure=failure, seconds=5.0)
    run_folders.write(run / "attempt-2", [Planted(0, output=[(3.0, "step 1")], ended_s=9.0, code=0)])
    assert timeline(run).ranks[0].failed_s == 3.5


def test_of_512_ranks_the_named_one_and_each_kind_are_shown(tmp_path: Path) -> None:
    ranks = [Planted(n, f"node{n // 8}", ended_s=31.0, code=-15) for n in range(512)]
    folder = run_folders.write(tmp_path / "run", ranks, "hung", **run_folders.hang(300))
    content = json.loads((folder / "run.json").read_text())
    content["verdict"] = {
        "rule": "rank-fell-behind",
        "text": "",
        "ranks": [300],
        "nodes": ["node37"],
        "evidence": [],
    }
    (folder / "run.json").write_text(json.dumps(content))
    rows, left_out = timeline_report.rows(timeline(folder))
    assert len(rows) == 2 and left_out == 0
    assert rows[0].label == "rank 300" and rows[0].is_named
    assert rows[1].label == "511 ranks (ranks 0-299, 301-511)"
