"""`ringup stacks`: jobs told apart, ranks folded, dumps of the flight recorder compared."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringup.agent_bundle import program
from ringup.cli import stacks as command
from ringup.cli.commands import parser_for
from ringup.cli.watched_job import WatchedJob
from ringup.flight_recorder import dump
from ringup.hang.snapshots import decode, jobs
from ringup.model import Host
from tests.guards import wait_for
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
    last = list(command.job_lines(found[0], full=False))[-1]
    assert last == "  not seen: ranks 2-3: ended, or on nodes that -H does not name"
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


def shown_with_stack(run: str) -> str:
    """What is shown of a run; "" where the rank had no CPU time to tell its stack, and that is said."""
    done = ringup("--local", "1", "--run", run)
    assert done.returncode == 0, done.stderr
    assert "train.py" in done.stdout or "no Python stack" in done.stdout, done.stdout
    return done.stdout if "train.py" in done.stdout else ""


def job_with_stack(run: str) -> dict[str, Any]:
    """The one job of a run; {} where the rank had no CPU time to tell its stack, and that is said."""
    (job,) = json.loads(ringup("--local", "1", "--run", run, "--json").stdout)["jobs"]
    (one,) = job["ranks"]
    assert one["place"]["where"] or one["why_not"], one
    found: dict[str, Any] = job if one["place"]["where"] else {}
    return found


@pytest.mark.slow
def test_a_running_rank_is_shown_and_as_json(tmp_path: Path) -> None:
    with Rank(tmp_path, "time.sleep(60)") as one:
        shown = wait_for(lambda: shown_with_stack(one.run), "a stack")
        assert "1 of 4 ranks" in shown and "not seen: ranks 0-2" in shown
        assert "train.py:4 in here: time.sleep(60), asleep" in shown
        job = wait_for(lambda: job_with_stack(one.run), "a stack as JSON")
        assert job["ranks"][0]["place"]["where"] == "train.py:4" and job["not_seen"] == [0, 1, 2]
        assert one.process.poll() is None


@pytest.mark.slow
def test_no_rank_is_exit_1_and_said() -> None:
    done = ringup("--local", "1", "--run", "no-such-run")
    assert done.returncode == 1 and "run no-such-run has no running ranks" in done.stderr


def flight(calls: int, members: str = "") -> dump.Flight:
    entries = [
        {"process_group": ["0", "default_pg"], "collective_seq_id": n, "profiling_name": "nccl:all_reduce"}
        for n in range(1, calls + 1)
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": members}} if members else {}
    return dump.read(pickle.dumps({"version": "2.4", "entries": entries, "pg_config": config}))


def test_the_rank_whose_collectives_differ_is_named() -> None:
    flights = {0: flight(5), 7: flight(4), 3: flight(5)}
    assert "rank 7 has not started collective 5 of default_pg" in "".join(command.differences(flights))
    del flights[7]
    assert "2 ranks have begun the same collectives" in "".join(command.differences(flights))


def test_ranks_without_a_dump_are_said() -> None:
    flights = {0: flight(5, "[0, 1, 2, 3]"), 1: flight(5, "[0, 1, 2, 3]")}
    assert "nothing of ranks 2-3, of the same groups" in "".join(command.differences(flights))


def test_a_stack_that_py_spy_could_tell_comes_with_the_way_to_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    why = "it was not started by ringup; no py-spy on this node"
    found = nodes([rank(n, (), why_not=why, python="/home/u/my env/bin/python") for n in range(2)], 0.0)
    first, way = command.remedies(tuple(found), is_local=False)
    assert (
        first
        == "hint: no py-spy on node0: --with-py-spy needs one on this machine, too; or install it there:"
    )
    # The shell here hands on one word, and the shell there reads it.
    ssh, node, command_there = shlex.split(way.removeprefix("  $ "))
    assert (ssh, node) == ("ssh", "node0")
    assert shlex.split(command_there) == ["/home/u/my env/bin/python", *["-m", "pip", "install", "py-spy"]]
    (tmp_path / "py-spy").touch(0o755)
    first, way = command.remedies(tuple(found), is_local=True)
    assert "--with-py-spy sends this machine's" in first
    assert way == "  $ '/home/u/my env/bin/python' -m pip install py-spy"
    assert list(command.remedies(tuple(nodes([rank(0, waits())], 0.0)), is_local=False)) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be another user")
@pytest.mark.slow
def test_processes_of_other_users_are_named_and_not_read() -> None:
    words = [
        "setpriv",
        "--reuid",
        "nobody",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        "input()",
        "train.py",
    ]
    process = subprocess.Popen(words, env={"RANK": "0", "WORLD_SIZE": "1"}, cwd="/", stdin=subprocess.PIPE)
    try:
        wait_for(lambda: Path(f"/proc/{process.pid}").stat().st_uid != 0, "another user's process")
        wait_for(lambda: b"setpriv" not in Path(f"/proc/{process.pid}/cmdline").read_bytes(), "its program")
        asked = [sys.executable, "-c", program("snapshot.main"), "stacks", "no-such-run", ""]
        look = decode("n1", json.loads(subprocess.run(asked, capture_output=True, check=True).stdout))
        assert look.ranks == () and look.state.others.get("nobody", 0) >= 1
        (line,) = command.unreadable((look,))
        assert "nobody (" in line and "run `ringup stacks` as that user" in line
    finally:
        process.communicate(b"\n")


def test_the_nodes_of_a_named_run_are_asked_unless_others_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = WatchedJob("20260101-000000-abcd", (Host("node0"), Host("node1")), None)
    monkeypatch.setattr(command, "job_named", lambda args: known)
    for words, hosts in ((["--python", "py"], ["node0", "node1"]), (["-H", "node7"], ["node7"])):
        args = parser_for("stacks").read(["runs/20260101-000000-abcd", *words])
        with command.transport_of(args) as transport:
            assert [host.name for host in transport.hosts] == hosts
            assert {*transport.interpreters.values()} <= {"py"}
        assert args.run == "20260101-000000-abcd"
