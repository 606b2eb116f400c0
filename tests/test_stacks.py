"""`ringup stacks`: jobs told apart, ranks folded, dumps of the flight recorder compared."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringup import cli
from ringup.commands import stacks as command
from ringup.errors import LogsError
from ringup.stacks import jobs
from tests.test_judge import SLEEPS, nodes, own, parents, rank, waits
from tests.test_look import Rank


def test_ranks_of_one_run_are_one_job_and_strangers_are_put_together_by_their_rendezvous() -> None:
    ours = [rank(n, waits()) for n in range(2)]
    theirs = [rank(n, waits(), run="", job=("10.0.0.1", "29500", "")) for n in range(4)]
    others = [rank(0, waits(), run="", job=("10.0.0.1", "29501", ""))]
    found = jobs(nodes([*ours, *theirs, *others], 0.0))
    assert [(job.run, job.address, len(job.ranks)) for job in found] == [
        ("r", "", 2),
        ("", "10.0.0.1:29500", 4),
        ("", "10.0.0.1:29501", 1),
    ]
    assert found[0].unseen == (2, 3) and found[1].unseen == ()
    assert [job.run for job in jobs(nodes(ours + theirs, 0.0), "r")] == ["r"]


def test_many_ranks_are_few_lines() -> None:
    ranks = [rank(n, waits(), world_size=32, node=f"node{n // 8}") for n in range(32) if n != 17]
    ranks.append(rank(17, (own(9, "load"),), world_size=32, node="node2"))
    (job,) = jobs(nodes(ranks, 0.0))
    lines = list(command.job_lines(job, full=False))
    assert lines[1:] == [
        "  31 ranks (0-16, 18-31): all_reduce, train.py:88 in main",
        "  rank 17 (node2): train.py:9 in load",
    ]
    full = list(command.job_lines(job, full=True))
    assert "    /home/u/train.py:88 in main" in full and full.count("    /home/u/train.py:88 in main") == 1


def test_ranks_that_a_script_has_started_are_shown_in_their_parents_place() -> None:
    (job,) = jobs(nodes(parents(*SLEEPS), 0.0))
    assert list(command.job_lines(job, full=False))[1:] == [
        "  3 processes (node0): all_reduce, train.py:88 in main",
        "  process 503 (node0): train.py:12 in load: time.sleep(9)",
    ]
    assert "4 processes that the script has started on node0" in next(command.job_lines(job, full=False))


def ringup(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ringup", "stacks", *words], capture_output=True, text=True, **options
    )


@pytest.mark.slow
def test_a_running_rank_is_shown_and_as_json(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)") as one:
        done = ringup("--local", "1", "--run", one.run)
        assert done.returncode == 0, done.stderr
        assert "1 of 4 ranks" in done.stdout and "not seen: ranks 0-2" in done.stdout
        assert "train.py:4 in here: time.sleep(60), asleep" in done.stdout
        (job,) = json.loads(ringup("--local", "1", "--run", one.run, "--json").stdout)["jobs"]
        assert job["ranks"][0]["place"]["where"] == "train.py:4" and job["not_seen"] == [0, 1, 2]
        assert one.process.poll() is None


@pytest.mark.slow
def test_no_rank_is_exit_1_and_said() -> None:
    done = ringup("--local", "1", "--run", "no-such-run")
    assert done.returncode == 1 and "no rank of a job of yours" in done.stderr


def dump(folder: Path, number: int, calls: int) -> str:
    entries = [
        {"process_group": ["0", "default_pg"], "collective_seq_id": n, "profiling_name": "nccl:all_reduce"}
        for n in range(1, calls + 1)
    ]
    path = folder / f"nccl_trace_rank_{number}"
    path.write_bytes(pickle.dumps({"version": "2.4", "entries": entries}))
    return str(path)


def test_dumps_are_compared_by_the_rank_in_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [dump(tmp_path, 0, 5), dump(tmp_path, 7, 4), dump(tmp_path, 3, 5)]
    assert command.from_files(paths) == 1
    assert "rank 7 of default_pg: 4 collectives begun, the others 5" in capsys.readouterr().out
    assert command.from_files(paths[::2]) == 0


def test_compared_dumps_are_json_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [dump(tmp_path, 0, 5), dump(tmp_path, 7, 4)]
    assert cli.dispatch(["stacks", "--json", "--flight", *paths]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1 and told["ranks"] == [0, 7] and "rank" in told["flight"][0]


def test_ranks_without_a_dump_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [dump(tmp_path, 0, 5), dump(tmp_path, 1, 5)]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    for path in paths:
        known = pickle.loads(Path(path).read_bytes())
        Path(path).write_bytes(pickle.dumps({**known, "pg_config": config}))
    assert command.from_files(paths) == 0
    assert "nothing of ranks 2, 3, of the same groups" in capsys.readouterr().out


def test_a_dump_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    path = str(tmp_path / "nosuch")
    with pytest.raises(LogsError, match=f"^{re.escape(path)}: No such file or directory$"):
        command.from_files([path])


def test_two_dumps_of_one_rank_are_not_compared_as_one_run(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [dump(tmp_path, 0, 5), dump(tmp_path / "other", 0, 5)]
    with pytest.raises(LogsError, match="a second dump of rank 0"):
        command.from_files(paths)


@pytest.mark.slow
def test_a_file_that_is_no_dump_is_an_error_of_two_lines(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(os.urandom(100))
    done = ringup("--flight", str(tmp_path / "x"))
    assert done.returncode == 4 and done.stderr.startswith("ringup: ") and "hint: " in done.stderr
