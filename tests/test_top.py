"""`ringup top`: rows from snapshots, the picture of them, the job that is watched, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import top
from ringup.cli.background import LAUNCHER, noted, supervised
from ringup.cli.commands import parser_for
from ringup.cli.watched_job import WatchedJob, job_named
from ringup.errors import LaunchError, UsageError
from ringup.hang.activity import identity
from ringup.hang.rank_rows import JobState, RankRow, RowLine, job_of, lines_of, rank_rows
from ringup.hang.snapshots import NodeLook, RankLook, silent
from ringup.hang.watched_node import GpuUse, Printed, RankOutput, Usage, WatchedNode
from ringup.hosts import local_nodes
from ringup.output.screen import Screen
from ringup.output.top_picture import View, picture
from ringup.runtime import record
from tests.test_judge import SLEEPS, nodes, own, parents, rank, waits
from tests.top_played import PlayedTransport, hosts_for, look


def seen(*ranks: RankLook, seconds: float = 10.0, **more: Any) -> JobState:
    """A job whose ranks have used since the first snapshot what their counters say, their stacks known."""
    bare = [replace(r, frames=(), children=()) for r in ranks]
    before = [replace(r, cpu_s=0.0, io_bytes=0, switches=0) for r in bare]
    stacks = {identity(r): r for r in ranks}
    return JobState(nodes(before, 0.0), nodes(bare, seconds), stacks, **more)


def rows(known: JobState) -> dict[int, tuple[str, str]]:
    return {row.rank: (row.state, row.where) for row in rank_rows(known, job_of(known, ""))}


def test_a_row_says_whether_a_rank_runs_waits_or_stands() -> None:
    found = rows(
        seen(
            rank(0, waits(), cpu_s=9.9),
            rank(1, (own(9, "step"),), cpu_s=5.0),
            rank(2, SLEEPS, syscall="clock_nanosleep"),
            rank(3, SLEEPS, state="T"),
        )
    )
    assert found[0] == ("waits", "all_reduce, train.py:88 in main")
    assert found[1][0] == "runs" and found[1][1].startswith("train.py:9 in step")
    assert found[2][0] == "idle" and found[2][1].endswith("asleep")
    assert found[3][0] == "stopped"


def test_a_rank_that_only_transfers_over_tcp_runs_as_the_hang_watch_has_it() -> None:
    node = watched()
    for at_s, size in ((10.0, 0), (12.0, None), (20.0, 9 << 20), (22.0, None)):
        answer = look(0, 1, "stacks" if size is not None else "count", at_s)
        answer["transfers"] = None if size is None else {str(answer["ranks"][0]["pid"]): [0, {"7": size}]}
        told(node, answer)
    (move,) = node.moved.values()
    assert move.transfers and node.moved_s
    idle = rank(2, SLEEPS, syscall="clock_nanosleep")
    assert rows(seen(idle))[2][0] == "idle"
    assert rows(seen(idle, moved={identity(idle): move}))[2][0] == "runs"


def test_ranks_that_do_not_run_have_a_row_with_what_is_known_of_them() -> None:
    known = seen(rank(0, waits()), codes={1: 3, 2: 0}, failed=1, planned={1: "node0", 2: "node1", 3: "node9"})
    known = replace(
        known, now=[*known.now, NodeLook("node9", 0.0, "", (), known.now[0].state, problem="no route")]
    )
    found = rows(known)
    assert found[1] == ("failed", "exit code 3") and found[2] == ("done", "")
    assert found[3] == ("not seen", "no route")
    assert rows(replace(known, failed=None))[1][0] == "exited"
    gone = rows(seen(rank(0, waits()), earlier={1: "node0"}))
    assert gone[1] == ("gone", "ended; its exit code is not known") and gone[2][0] == "not seen"


def test_a_rank_of_which_one_snapshot_came_is_not_judged() -> None:
    one = rank(0, waits())
    assert rows(JobState(now=nodes([one], 5.0), stacks={identity(one): one}))[0][0] == "new"


def test_an_old_stack_is_not_shown_of_another_process_with_the_same_pid() -> None:
    known = seen(rank(0, waits()))
    again = replace(known, now=nodes([rank(0, (), started=7)], 10.0))
    assert rows(again)[0] == ("new", "")


def test_processes_that_a_script_starts_itself_are_rows_without_a_rank() -> None:
    known = seen(*parents(*SLEEPS))
    found = [row.name for row in rank_rows(known, job_of(known, ""))]
    assert found and all(name.startswith("pid ") for name in found)


def test_counters_of_processes_that_a_script_starts_are_compared_and_shown() -> None:
    known = seen(*parents(*SLEEPS, cpu_s=5.0))
    running = [*parents(*SLEEPS, cpu_s=5.0)]
    counted = [
        replace(r, frames=(), children=tuple(replace(c, frames=()) for c in r.children)) for r in running
    ]
    earlier = [replace(r, children=tuple(replace(c, cpu_s=0.0) for c in r.children)) for r in counted]
    used = {("node0", 503, 7): Usage(1 << 30, GpuUse(97.0, 61 << 30, 60 << 30))}
    known = replace(known, before=nodes(earlier, 0.0), now=nodes(counted, 10.0), usage=used)
    found = {row.name: row for row in rank_rows(known, job_of(known, ""))}
    assert {name: row.state for name, row in found.items()} == {
        **dict.fromkeys(("pid 500", "pid 501", "pid 502"), "waits"), "pid 503": "runs",
    }  # fmt: skip
    assert found["pid 503"].cpu_percent == 50.0 and found["pid 503"].memory_bytes == 1 << 30
    assert (
        found["pid 503"].where.startswith("train.py:12") and found["pid 503"].gpu == used["node0", 503, 7].gpu
    )
    (line,) = [line for line in lines_of([*found.values()], "state") if len(line.rows) == 3]
    assert "3 processes" in [text for text, _ in picture(view([line]), 200, 20)][2]


def test_the_latest_attempt_of_a_run_is_shown_and_of_other_jobs_the_largest() -> None:
    ranks = [rank(0, waits(), run="r"), rank(1, waits(), run="r.2"), rank(2, waits(), run="r.10", pid=9)]
    theirs = [rank(n, waits(), run="", job=("h", "1", ""), pid=500 + n) for n in range(2)]
    known = seen(*ranks, *theirs)
    assert (job := job_of(known, "r")) and job.run == "r.10"
    assert (job := job_of(known, "h:1")) and len(job.ranks) == 2
    assert job_of(known, "other") is None


def many(count: int, odd: int) -> list[RankRow]:
    return [
        RankRow(
            n,
            f"node{n // 8}",
            *(("idle", "train.py:12 in load") if n == odd else ("waits", "all_reduce")),
            pid=n,
        )
        for n in range(count)
    ]


def test_of_512_ranks_the_odd_one_comes_first_however_they_are_folded() -> None:
    states = lines_of(many(512, 301), "state")
    assert [len(line.rows) for line in states] == [1, 511] and states[0].rows[0].rank == 301
    by_node = lines_of(many(512, 301), "node")
    assert len(by_node) == 64 and by_node[0].key == "node37" and by_node[0].rows[0].rank == 301
    assert [line.key for line in by_node[1:4]] == ["node0", "node1", "node2"]
    assert [line.rows[0].rank for line in lines_of(many(512, 301), "rank")[:3]] == [301, 0, 1]


def test_a_bad_state_comes_before_a_rare_one() -> None:
    found = [
        *many(16, 3),
        RankRow(16, "node2", "exited", "exit code 1"),
        RankRow(17, "node2", "exited", "exit code 1"),
    ]
    assert [line.rows[0].state for line in lines_of(found, "state")] == ["exited", "idle", "waits"]


def test_an_opened_line_shows_its_rows() -> None:
    (odd, same) = lines_of(many(4, 1), "state")
    opened = lines_of(many(4, 1), "state", {same.key, odd.key})
    assert [(line.is_open, line.is_inner, len(line.rows)) for line in opened] == [
        (False, False, 1),
        (True, False, 3),
        *[(False, True, 1)] * 3,
    ]


def view(lines: list[RowLine], **more: Any) -> View:
    return View("run r: 512 ranks", more.pop("verdict", ()), "error", lines, more.pop("rates", {}), **more)


@pytest.mark.parametrize("width", [1, 20, 40, 79, 200])
@pytest.mark.parametrize("height", [2, 10, 23, 50])
@pytest.mark.parametrize("by", ["state", "node", "rank"])
def test_no_picture_is_larger_than_its_screen(width: int, height: int, by: Any) -> None:
    shown = view(
        lines_of(many(512, 301), by),
        verdict=("HANGS: " + "why " * 60, "detail " * 40),
        tail=["x" * 300] * 50,
        notes=["node1: " + "w" * 300] * 9,
        rates={f"node{n}": {"ib0": 2e9, "eno1": 3.0} for n in range(64)},
    )
    found = picture(shown, width, height)
    assert len(found) <= height and all(len(text) <= width for text, _ in found)


def test_a_small_screen_shows_the_verdict_the_odd_rank_and_its_last_lines() -> None:
    hung = lines_of(many(512, 301), "state")
    shown = view(hung, verdict=("HANGS: rank 301 is missing",), tail=[f"line {n}" for n in range(50)])
    text = [line for line, _ in picture(shown, 79, 23)]
    assert text[1] == "HANGS: rank 301 is missing"
    assert text[3].split()[:3] == ["301", "node37", "idle"]
    assert text[4].startswith("+ 0-300, 302-511") and "all_reduce" in text[4]
    assert text[-2] == "line 49" and text[5].startswith("-- rank 301 on node37")


def test_what_a_narrow_screen_leaves_out_of_the_table_is_told_of_the_chosen_line() -> None:
    row = RankRow(
        3, "node0", "waits", "all_reduce", 7, 99.6, 3 << 30, GpuUse(97.0, 61 << 30, 60 << 30), 812, 0.25
    )
    shown = view([RowLine("k", (row,))], rates={"node0": {"ib0": 2.0 * (1 << 30), "eno1": 1024.0}})
    wide = [line for line, _ in picture(shown, 200, 20)]
    assert wide[2].split() == [
        *("3", "node0", "waits", "812", "4.0", "s", "each", "100%", "97%", "60GiB", "3GiB"),
        *("ib0", "2", "GiB/s,", "eno1", "1", "KiB/s", "all_reduce"),
    ]
    narrow = " ".join(" ".join(line for line, _ in picture(shown, 60, 20)).split())
    assert "ib0 2 GiB/s, eno1 1 KiB/s" in narrow and "3GiB memory" in narrow
    assert "60GiB GPU memory, 61GiB of all processes on that GPU" in narrow


def test_where_the_driver_does_not_tell_a_rank_s_share_the_gpu_s_memory_is_called_a_bound() -> None:
    rows = [RankRow(n, "node0", "waits", "all_reduce", gpu=GpuUse(97.0, 61 << 30, None)) for n in range(2)]
    text = [line for line, _ in picture(view([RowLine("k", tuple(rows))]), 200, 20)]
    assert "≤61GiB" in text[2].split()
    assert "GPU memory: 61GiB of all processes on that GPU" in text[3]


def test_rows_that_do_not_fit_are_counted_and_the_chosen_one_is_shown() -> None:
    lines = lines_of(many(512, 301), "rank")
    text = [line for line, _ in picture(view(lines, chosen=400), 79, 23)]
    assert any(line.split()[:1] == ["399"] for line in text)
    assert any("more lines" in line and line.startswith("…") for line in text)
    colours = [colour for _, colour in picture(view(lines, chosen=400), 79, 23)]
    assert colours.count("chosen") == 1


# -- what comes from the nodes ---------------------------------------------------------------


def told(node: WatchedNode, answer: Mapping[str, Any]) -> None:
    node.on_output(json.dumps(answer).encode() + b"\n")


def watched(name: str = "node0") -> WatchedNode:
    return WatchedNode(name, (), lambda rank: rank["run"] == "r")


def test_counters_are_compared_with_those_of_at_least_a_second_before() -> None:
    node = watched()
    for at_s in (10.0, 10.4, 10.8, 12.0, 12.1, 14.0):
        told(node, look(0, 8, "count", at_s))
        assert node.now.at_s == at_s and not node.now.problem
        assert node.before.at_s == {10.0: 0.0, 10.4: 0.0, 10.8: 0.0, 12.0: 10.0, 12.1: 10.0, 14.0: 12.0}[at_s]


@pytest.mark.parametrize("gpu", ["x", ["x"], [1, 2], [1, 2, 3, 4], [1.0, 1e99], [1.0, 5, "x"], {"a": 1}])
def test_what_is_no_use_of_a_gpu_is_left_out(gpu: object) -> None:
    node, answer = watched(), look(0, 2, "count", 10.0)
    answer["ranks"][0]["gpu"] = gpu
    told(node, answer)
    assert (
        list(node.usage.values()) == [Usage(3 << 30, GpuUse(97.0, 61 << 30, 60 << 30))]
        and not node.now.problem
    )


def test_stacks_stay_until_newer_ones_come() -> None:
    node = watched()
    told(node, look(0, 8, "stacks", 10.0))
    told(node, look(0, 8, "count", 12.0))
    assert len(node.stacks) == 8 and all(one.frames for one in node.stacks.values())


def test_only_answers_with_a_number_are_for_the_watch_and_only_ranks_of_the_job() -> None:
    node, answer = watched(), look(0, 2, "stacks", 10.0)
    answer["ranks"][1]["run"] = "other"
    told(node, answer)
    assert not node.look
    told(node, {**answer, "number": 7})
    assert [one["rank"] for one in node.look["ranks"]] == [0] and node.look["number"] == 7


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"type": "look"},
        {**look(0, 1, "count", 1.0), "ranks": "x", "number": 3},
        {**look(0, 1, "count", 1.0), "node": [], "number": 3},
        {**look(0, 1, "count", 1.0), "ranks": [{"gpu": ["x"]}], "number": 3},
    ],
)
def test_an_answer_that_is_none_is_a_problem_of_the_node_alone(answer: dict[str, Any]) -> None:
    node = watched()
    told(node, answer)
    assert node.now.problem and not node.look


def test_hostile_words_of_a_node_are_shown_and_not_sent() -> None:
    node, answer = watched(), look(0, 1, "stacks", 10.0)
    answer["ranks"][0]["threads"] = [[[["/x/\x1b[2Jtrain.py", 3, "ma\u202ein"]], "main"]]
    told(node, answer)
    for part in (b"first\n\x1b[31mla", b"st\x07 words\n"):
        node.on_errors(part)
    known = JobState(now=[node.now], stacks=node.stacks)
    (row,) = [row for row in rank_rows(known, job_of(known, "")) if row.rank == 0]
    assert row.where.isprintable() and "train.py" in row.where
    node.on_exit(1, None)
    assert node.now.problem == "last words" and node.state == "closed"


def test_steps_a_second_are_counted_from_what_comes_while_it_is_watched() -> None:
    output = RankOutput()
    output.feed(b"".join(b"step %d loss 2\n" % n for n in range(500)), 100.0)
    assert output.step(101.0) == (499, None)
    output.feed(b"step 500 loss 2\nstep 5", 102.0)
    output.feed(b"01 loss\n", 104.0)
    assert output.step(104.0) == (501, 0.5)
    assert output.step(113.0) == (501, 0.5) and output.step(114.5) == (501, 0.0) == output.step(300.0)


def test_lines_of_a_rank_are_safe_for_a_terminal() -> None:
    output = RankOutput()
    output.feed(b"\x1b[2Jred\x1b[31m\tx\n\n 10%\r 90%\n" + b"y" * 5000 + b"\n", 1.0)
    assert output.lines[0] == "red x" and output.lines[1] == " 90%"
    assert len(output.lines[2]) < 600 and all(line.isprintable() for line in output.lines)


def test_files_of_the_latest_attempt_are_followed(tmp_path: Path) -> None:
    printed = Printed()
    (tmp_path / "rank-00003-node1.log").write_text("step 1 loss\n" * 40_000 + "step 7 loss\n")
    (tmp_path / "node0-launcher.log").write_text("x\n")
    printed.read_files(tmp_path, 5.0)
    assert printed.latest_s == 5.0 and [*printed.ranks] == [3] and printed.ranks[3].step(5.0) == (7, None)
    printed.read_files(tmp_path, 6.0)
    assert printed.latest_s == 5.0
    with (tmp_path / "rank-00003-node1.log").open("a") as file:
        file.write("step 8 loss\n")
    printed.read_files(tmp_path, 7.0)
    assert printed.ranks[3].step(7.0) == (8, None)
    for number in (2, 10):
        (tmp_path / f"attempt-{number}").mkdir()
        (tmp_path / f"attempt-{number}" / "rank-00000-n.log").write_text(f"step {number} loss\n")
    printed.read_files(tmp_path, 9.0)
    assert [*printed.ranks] == [0] and printed.ranks[0].step(9.0) == (10, None)


def test_a_journal_tells_output_exits_and_the_end_and_nothing_else() -> None:
    printed = Printed()
    out = {"type": "out", "node": 0, "rank": 1, "fd": 1, "at": 1.0, "data": "c3RlcCA5IGxvc3MK"}
    gone = {"type": "exit", "node": 0, "rank": 1, "local_rank": 1, "pid": 5, "code": 3, "at": 1.0,
            "traceback_at": 0, "sigterm_at": 0, "lost": False, "tail": ""}  # fmt: skip
    bad = [{**out, "rank": "x"}, {**gone, "code": 1e9}, {"type": "other"}, [], 3]
    printed.read_journal(map(json.dumps, [*bad, "not JSON"]), 1.0)
    assert not printed.ranks and not printed.codes and not printed.latest_s
    finished = {"type": "finished", "at": 2.0, "reason": "", "lost_bytes": 0}
    printed.read_journal(map(json.dumps, [out, gone, finished]), 2.0)
    assert printed.ranks[1].step(2.0) == (9, None) and printed.codes == {1: 3}
    assert printed.end == "every rank has ended"


# -- the command -----------------------------------------------------------------------------


class Typed(Screen):
    """A terminal on which somebody types."""

    has_keys = True

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    def size(self) -> tuple[int, int]:
        return 79, 23

    def draw(self, lines: Any) -> None:
        self.shown.append([text for text, _ in lines])


def opened(world_size: int, *words: str, job: WatchedJob | None = None) -> tuple[top.Top, PlayedTransport]:
    """A view whose nodes have answered twice."""
    hosts = hosts_for(world_size)
    transport, args = PlayedTransport(hosts, world_size), parser_for("top").read([*words])
    found = top.Top(job or WatchedJob("r", hosts, None), transport, Typed(), args)  # type: ignore[arg-type]
    for node in transport.nodes:
        for at_s, mode in (10.0, "count"), (12.0, "stacks"):
            answer = look(node.first, world_size, mode, at_s)
            node.listener.on_output(json.dumps(answer).encode() + b"\n")
    found.update(time.monotonic())
    return found, transport


def test_keys_choose_fold_open_and_filter() -> None:
    shown, _ = opened(16)
    shown.draw(100.0)
    (line,) = shown.lines
    assert len(line.rows) == 16 and shown.chosen == line.key
    for key, count in ("f", 2), ("down", 2), ("enter", 10), ("f", 16), ("f", 1):
        shown.press(key)
        shown.update(100.0)
        shown.draw(100.0)
        assert len(shown.lines) == count, key
    for key in ("/", "n", "o", "d", "e", "1", "x", "back", "enter"):
        shown.press(key)
    shown.update(100.0)
    assert shown.filter == "node1" and {row.node for row in shown.lines[0].rows} == {"node1"}
    assert "filter: node1" in shown.title()
    for key in ("/", "escape"):
        shown.press(key)
    assert not shown.filter and not shown.asks
    with pytest.raises(KeyboardInterrupt):
        shown.press("q")


def test_e_asks_before_it_ends_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(WatchedJob, "end", lambda job: ended.append(job.name) or "ending")
    shown, _ = opened(8)
    for key in ("e", "n", "y", "e", "q"):
        shown.press(key)
        assert ended == []
    shown.press("e")
    assert shown.prompt() == "End r on every node? y: yes, any other key: no"
    shown.press("y")
    assert ended == ["r"] and shown.prompt() == "ending"


def test_s_asks_every_node_for_stacks() -> None:
    shown, _ = opened(16)
    before = [node.stacks_s for node in shown.nodes]
    shown.press("s")
    assert all(new.stacks_s > old for new, old in zip(shown.nodes, before, strict=True))


def judged_at(shown: top.Top, *seconds: float) -> None:
    for at_s in seconds:
        shown.judge(at_s)
        shown.update(at_s)


def test_the_verdict_ripens_and_names_the_rank_that_is_missing() -> None:
    shown, _ = opened(512, "--hang-report", "10")
    assert shown.hang
    began = shown.hang._began_s
    shown.update(began)
    assert shown.verdict(began + 1.0) == ((), "")
    judged_at(shown, began + 6.0, began + 6.1)
    assert shown.verdict(began + 6.2)[0] == (
        "Nothing was read, written or sent for 6.2 s; verdict after 10 s",
    )
    judged_at(shown, *(began + at_s for at_s in (12.0, 12.1, 12.2, 12.3)))
    (first, *_), colour = shown.verdict(began + 12.4)
    assert (
        first == "HANGS: no progress for 12 s: rank 301 (node37) is missing from all_reduce"
        and colour == "error"
    )
    assert shown.lines[0].rows[0].rank == 301 and shown.lines[0].rows[0].state == "missing"


def test_no_hang_is_judged_where_a_rank_cannot_be_seen() -> None:
    shown, _ = opened(512, "--hang-report", "10")
    lost = shown.nodes[3]
    lost.on_exit(None, None)
    shown.update(shown.seen_s)
    assert shown.hang
    began = shown.hang._began_s
    judged_at(shown, *(began + at_s for at_s in (6.0, 6.1, 12.0, 12.1, 12.2, 12.3)))
    assert not shown.hang.stalled
    words = "8 ranks cannot be seen from here, so no hang is judged"
    assert shown.verdict(began + 12.4) == ((words,), "warning")
    assert [row.rank for row in shown.lines[0].rows] == list(range(24, 32))


def run_json(folder: Path, run: str, outcome: str, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record.write(folder, record.run_json(run, outcome=outcome, exit_code=None, started=9.0, **more))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def named(*words: str) -> WatchedJob:
    return job_named(parser_for("top").read([*words]))


class Noted:
    """As much of a `Transport` as a note needs."""

    hosts, ssh_config = local_nodes(2), None


def test_without_a_name_the_newest_run_that_has_not_ended_is_watched(home: Path) -> None:
    run_json(home / "runs" / "a", "a", "running")
    run_json(home / "runs" / "b", "b", "ok")
    assert named().folder is None  # nobody knows how the nodes of `a` are reached
    with noted(home / "runs" / "a", Noted(), is_wanted=True):  # type: ignore[arg-type]
        for words in [], ["a"], ["runs/a"], ["runs/a/"], [str(home / "runs" / "a")]:
            job = named(*words)
            assert (job.name, job.folder, job.hosts) == ("a", home / "runs" / "a", Noted.hosts)
            assert (who := job.owner()) and who.pid == os.getpid() and who.is_alive
        assert named("--local", "1").folder is None
        assert named("--local", "1", "--log-dir", "runs/a").folder == home / "runs" / "a"
        assert named("--local", "1", "--log-dir", "runs/b").folder is None
    assert not (home / "runs" / "a" / LAUNCHER).exists()
    with pytest.raises(LaunchError, match="is not known here"):
        named("a")
    assert named("a", "--local", "2").hosts == Noted.hosts
    with pytest.raises(LaunchError, match="has ended: ok"):
        named("b")
    assert named("10.0.0.1:29500").name == "10.0.0.1:29500"
    assert named("elsewhere", "--local", "1").name == "elsewhere"
    with pytest.raises(UsageError, match="no run 'c' is known here"):
        named("c")


def test_a_folder_that_cannot_be_written_ends_no_run(home: Path) -> None:
    with noted(home / "none", Noted(), is_wanted=True):  # type: ignore[arg-type]
        pass
    with noted(home, Noted(), is_wanted=False):  # type: ignore[arg-type]
        assert not (home / LAUNCHER).exists()


def test_where_nothing_runs_one_picture_says_so() -> None:
    shown, _ = opened(8, "--once", job=WatchedJob("other", hosts_for(8), None))
    (node,) = shown.nodes
    before, node.before = node.before, silent(node.name, "no answer yet")
    assert not shown.end_of_job(shown.seen_s)
    node.before = before
    assert shown.end_of_job(shown.seen_s) == "You have no running ranks on these nodes (others: -H NODES)."
    shown.earlier[0] = "node0"
    assert shown.end_of_job(shown.seen_s + 60.0) == "The job's ranks are gone."


def test_nodes_with_the_same_problem_share_a_line_and_others_are_counted() -> None:
    shown, _ = opened(8, "--once", job=WatchedJob("other", hosts_for(8), None))
    same = [silent(f"n{k}", f"n{k} does not answer") for k in range(9)]
    shown.seen = replace(shown.seen, before=tuple(same), now=tuple(same))
    view = shown.view(shown.seen_s)
    assert view.notes == ["n[0-8] (9 nodes, n0 shown): n0 does not answer"]
    texts = [text for text, _ in picture(replace(view, notes=[f"note {k}" for k in range(9)]), 80, 40)]
    assert texts[texts.index("note 3") + 1] == "and 5 more"


def test_where_nothing_runs_the_printed_picture_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = opened(8, job=WatchedJob("other", hosts_for(8), None))
    shown.screen.has_keys = False
    monkeypatch.setattr(shown, "is_known", lambda: True)
    monkeypatch.setattr(shown, "update", lambda now_s: None)
    monkeypatch.setattr(shown, "end_of_job", lambda now_s: "none" if shown.drawn_s else "")
    shown.ranks = None
    drawn: list[object] = []
    monkeypatch.setattr(shown.screen, "draw", drawn.append)
    assert shown.run() == 1 and len(drawn) == 1


def test_the_end_of_a_run_is_shown_though_the_nodes_have_not_told_it_yet(home: Path) -> None:
    ranks = [{"rank": n, "node": "node0", "code": 3 if n == 5 else -15} for n in range(8)]
    failure = {"what": "rank 5 on node0: exit code 3", "rank": 5}
    run_json(home, "r", "rank-failed", ranks=ranks, first_failure=failure)
    shown, _ = opened(8, job=WatchedJob("r", hosts_for(8), None, home))
    assert [(line.rows[0].state, len(line.rows)) for line in shown.lines] == [("failed", 1), ("exited", 7)]
    assert shown.end_of_job(0.0).startswith("The run has ended: rank-failed: rank 5 on node0: exit code 3\n")


def test_codes_and_the_end_of_a_run_are_read_from_its_record(home: Path) -> None:
    job = WatchedJob("a", (), None, home)
    job.read_record()
    assert not job.how_ended and not job.codes
    ranks = [{"rank": 0, "node": "n", "code": None}, {"rank": 1, "node": "n", "code": 3}]
    run_json(home, "a", "running", ranks=ranks)
    job.read_record()
    assert not job.how_ended and job.codes == {1: 3}
    (home / "run.json").write_text("{")
    job.read_record()
    failure = {"what": "rank 1 on n: exit code 3", "rank": 1}
    run_json(home, "a", "rank-failed", ranks=ranks, first_failure=failure)
    os.utime(home / "run.json", ns=(1, 1))
    job.read_record()
    assert job.how_ended == "rank-failed: rank 1 on n: exit code 3"


HOLDS = """\
import signal, sys, time
from pathlib import Path
from ringup.cli.background import noted
from tests.test_top import Noted
with noted(Path(sys.argv[1]), Noted(), is_wanted=True):
    try:
        print("up", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(7)
"""


@pytest.mark.slow
def test_to_end_a_run_interrupts_the_process_that_has_it_and_no_other(home: Path) -> None:
    job = WatchedJob("a", (), None, home)
    assert job.end().startswith("Not ended: the process that has this run is gone")
    words = [sys.executable, "-c", HOLDS, str(home)]
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=where) as process:
        assert process.stdout and process.stdout.readline() == "up\n"
        assert (
            job.end() == f"The run is ending: Ctrl-C was sent to the process that has it (pid {process.pid})."
        )
        assert process.wait() == 7
    assert supervised(home, LAUNCHER) is None
    # Left by a process that was killed, whose number is somebody else's now: nobody holds the lock.
    (home / LAUNCHER).write_text(f"{os.getpid()} {os.uname().nodename}\n{{}}")
    assert job.end().startswith("Not ended: the process that has this run is gone")
    assert WatchedJob("h:1", (), None).end().startswith("Not ended: ringup has not started this job")
