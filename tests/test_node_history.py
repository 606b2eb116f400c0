"""The record of nodes that ended runs: bounded, shared by processes, shown and forgotten."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ringup import bundle
from ringup.checks.memory_and_cpus import node_failed_often
from ringup.cli.command_line import dispatch
from ringup.errors import UsageError
from ringup.model import PastRuns
from ringup.runtime import node_history
from tests import json_outputs

NODES = ("node0", "node1", "node2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ringup"


def runs(*causes: str, node: str = "node1") -> None:
    """Runs of all nodes, each ended by this node for a cause; "" is a run that no node ended."""
    for number, cause in enumerate(causes):
        assert node_history.add(f"{node}-run{number}", NODES, {node} if cause else (), cause)


def test_a_node_that_ended_3_of_its_last_5_runs_is_often_failing() -> None:
    runs("rank-killed", "", "link-flapped", "", "rank-killed")
    (past,) = node_history.records().values()
    assert past.is_often_failing
    assert (past.runs, past.ended, past.ended_lately, past.lately) == (5, 3, 3, 5)
    assert past.causes == ("rank-killed", "link-flapped")
    assert past.last_s == pytest.approx(time.time(), abs=60)


def test_later_runs_that_went_well_clear_it() -> None:
    runs("rank-killed", "rank-killed", "rank-killed", "", "", "")
    past = node_history.records()["node1"]
    assert (past.ended_lately, past.is_often_failing) == (2, False)


def test_attempts_of_one_run_count_once() -> None:
    for _ in range(5):
        assert node_history.add("run", NODES, {"node1"}, "rank-killed")
    assert node_history.add("run", NODES)
    assert (past := node_history.records()["node1"]).runs == past.ended == 1
    assert past.causes == ("rank-killed",)


def test_nodes_that_ended_no_run_are_not_recorded(folder: Path) -> None:
    runs("", "", "")
    assert not folder.exists()
    runs("rank-killed")
    assert list(node_history.records()) == ["node1"]


def test_the_worst_node_comes_first() -> None:
    runs("rank-killed", node="node0")
    runs("rank-killed", "link-flapped", node="node2")
    assert list(node_history.records()) == ["node2", "node0"]


def test_runs_of_more_than_30_days_ago_are_left_out(folder: Path) -> None:
    runs("rank-killed", "rank-killed")
    file = folder / node_history.FILE
    content = json.loads(file.read_text())
    content["nodes"]["node1"][0][0] -= 31 * 86400
    file.write_text(json.dumps(content))
    assert node_history.records()["node1"].runs == 1


def test_the_record_stays_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_history, "MOST_NODES", 5)
    for number in range(8):
        node_history.add("run", [], {f"node{number}"}, "x" * 5000)
    runs(*["rank-killed"] * 30, node="node7")
    past = node_history.records()
    assert set(past) == {f"node{n}" for n in range(3, 8)}
    assert past["node7"].runs == node_history.MOST_RUNS
    assert (folder / node_history.FILE).stat().st_size < 10_000


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"nodes": 1}', '{"nodes": {"a": [1]}}', "[" * 9999, '{"nodes": {"a": [[NaN, "r", "c"]]}}'],
)  # fmt: skip
def test_a_broken_record_is_an_empty_one_and_is_replaced(text: str, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / node_history.FILE).write_text(text)
    assert node_history.records() == {}
    runs("rank-killed")
    assert list(node_history.records()) == ["node1"]


def test_names_of_a_record_cannot_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    node_history.add("run", [], {"\x1b[2Jn"}, "\x1b]0;x\x07")
    assert dispatch(["runs", "--nodes"]) == 0
    assert not set(capsys.readouterr().out) & {"\x1b", "\x07"}


WRITER = """
import sys
from ringup.runtime import node_history
for number in range(25):
    assert node_history.add(f"{sys.argv[1]}-{number}", ["shared"], {"shared", sys.argv[1]}, "rank-killed")
"""


def test_processes_that_write_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    past = node_history.records()
    assert (past["a"].runs, past["b"].runs) == (node_history.MOST_RUNS,) * 2
    assert past["shared"].ended == node_history.MOST_RUNS


def test_a_lock_that_is_never_free_ends_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_history, "LOCK_S", 0.05)
    folder.mkdir(parents=True)
    with (folder / f".{node_history.FILE}.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert not node_history.add("run", NODES, {"node1"}, "rank-killed")
    assert node_history.add("run", NODES, {"node1"}, "rank-killed")


def test_a_cache_that_cannot_be_written_ends_no_run(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the directory should be")
    assert not node_history.add("run", NODES, {"node1"}, "rank-killed")
    assert node_history.records() == {}


def test_nodes_are_listed_and_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    runs("rank-killed", "", "link-flapped", "rank-killed")
    assert dispatch(["runs", "--nodes"]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["NODE", "RUNS", "ENDED", "OF", "LAST", "5", "LAST", "CAUSES"]
    assert line.split()[:6] == ["node1", "4", "3", "3", "of", "4"]
    assert line.endswith("rank-killed, link-flapped")
    assert dispatch(["runs", "--nodes", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    json_outputs.check("runs", shown)
    assert (shown["nodes"][0]["node"], shown["nodes"][0]["is_often_failing"]) == ("node1", True)
    assert dispatch(["runs", "--forget", "node1"]) == 0
    assert capsys.readouterr().out == "node1: forgotten\n"
    assert node_history.records() == {}
    with pytest.raises(UsageError):
        dispatch(["runs", "--forget", "node1"])


def test_a_check_gets_the_record_of_its_nodes_alone(tmp_path: Path) -> None:
    runs(*["rank-killed"] * 3, node="node9")
    runs(*["rank-killed"] * 3, node="127.0.0.2")
    dispatch(["check", "--local", "2", "--quiet", "--save", str(tmp_path / "facts")])
    cluster = bundle.load(tmp_path / "facts")
    assert list(cluster.past) == ["127.0.0.2"]
    local = [finding for node in cluster.nodes for finding in node_failed_often(node, cluster)]
    assert local == [], "nodes that are played here are no hardware"
    real = replace(cluster, is_local=False)
    (finding,) = [finding for node in real.nodes for finding in node_failed_often(node, real)]
    assert (finding.node, finding.found) == ("127.0.0.2", "ended 3 of its last 3 runs: rank-killed")
    assert finding.fix
    assert finding.fix.commands == ("ringup runs --forget 127.0.0.2",)


def test_what_is_often_failing_is_3_of_5() -> None:
    assert [PastRuns(9, 9, count, 5).is_often_failing for count in (2, 3, 5)] == [False, True, True]


def test_the_record_is_private(folder: Path) -> None:
    runs("rank-killed")
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.glob("[!.]*")] == [node_history.FILE]
