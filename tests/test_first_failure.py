"""The first failure anywhere ends every node at once, and is what the user reads."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.logs.read import read_logs
from tests.guards import wait_for
from tests.jobs.launched import CHECKED_AND_ENDED_S, Launched
from tests.jobs.prints_anything import WILD

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

NET = "192.168.7.10/24"
ENDS = {
    "exit": (3, "exit code 3"),
    "kill": (137, "killed by SIGKILL (9)"),
    "raise": (1, "ValueError: the loss is no number (exit code 1)"),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every host of the lab sees."""
    with tempfile.TemporaryDirectory(prefix="ringup-first-", dir="/var/tmp") as name:
        yield Path(name)


def ranks_left(run: Launched) -> list[str]:
    """Ranks and launchers on every node, guards and ringup apart."""
    return [
        entry
        for host in run.lab.hosts
        for entry in run.added(host.name)
        if str(run.folder) in entry or "torch.distributed.run" in entry or "rank.py" in entry
    ]


def wait_until_ended(run: Launched, mark: Path) -> None:
    """Until the failing rank has written its mark, and then until no rank is left."""
    wait_for(lambda: mark.exists() or run.process.poll() is not None, "the failure", CHECKED_AND_ENDED_S)
    assert mark.exists(), run.said()
    wait_for(lambda: not ranks_left(run), "the end of every rank")


def report_of(run: Launched) -> list[str]:
    """What stands below the last progress line."""
    lines = run.stderr.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("ringup: "))
    return lines[last + 1 :]


def failed(run: Launched, rank: int, node: str, code: int, how: str) -> None:
    """Exit code, first line of the report and run.json are of that rank."""
    assert run.wait() == code, run.said()
    assert report_of(run)[0].startswith(f"first failure: rank {rank} on {node}: {how}"), run.said()
    record = run.record
    assert (record["outcome"], record["exit_code"]) == ("rank-failed", code)
    assert (record["first_failure"]["rank"], record["first_failure"]["node"]) == (rank, node)
    assert record["cleanup"] == []
    named = read_logs([str(run.log_dir)]).causes[0]
    assert named.ranks == (rank,), named
    run.leaves_nothing()


@pytest.mark.smoke
@pytest.mark.parametrize("how", ENDS)
def test_failing_rank_among_waiting_ones_ends_all_nodes_and_is_named(
    lab: Any, folder: Path, how: str
) -> None:
    cluster = lab(hosts=2, net=NET)
    with Launched(cluster, "fails_in_step.py", "3", how, str(folder), nproc=2) as run:
        wait_until_ended(run, folder / "failed")
        code, words = ENDS[how]
        failed(run, 3, "node1", code, words)
        last = "ValueError: the loss is no number" if how == "raise" else f"rank 3 ends by {how}"
        assert last in "\n".join(report_of(run)[1:])


def test_failing_rank_on_a_host_90_s_ahead_is_first_all_the_same(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=2, net=NET)
    cluster.fault("clock", host="node1")
    with Launched(cluster, "fails_in_step.py", "1", "raise", str(folder)) as run:
        failed(run, 1, "node1", *ENDS["raise"])


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("ahead", ["node0", "node1"])
def test_of_two_failures_the_first_is_named_whatever_the_clocks_say(
    lab: Any, folder: Path, first: int, ahead: str
) -> None:
    cluster = lab(hosts=2, net=NET)
    cluster.fault("clock", host=ahead)
    with Launched(cluster, "ends_in_order.py", str(first), str(folder), on="node0") as run:
        failed(run, first, f"node{first}", 3, "exit code 3")
        assert {r["code"] for r in run.record["ranks"]} == {3, 4}, run.said()
        assert "the first to go" in "\n".join(report_of(run))


def test_wild_output_is_kept_as_it_came_and_shown_without_what_a_terminal_obeys(lab: Any) -> None:
    cluster = lab(hosts=2, net=NET)
    with Launched(cluster, "prints_anything.py") as run:
        failed(run, 1, "node1", 3, "exit code 3")
        shown = run.out.read_bytes() + run.err.read_bytes()
        assert not set(shown) & (set(range(32)) - {9, 10}), run.said()
        assert b"\x7f" not in shown
        assert "\x9b" not in shown.decode()
        assert max(map(len, shown.decode().splitlines())) < 4200
        kept = (run.log_dir / "rank-00001-node1.log").read_bytes()
        assert len(kept) == 2 * len(WILD) + len(b"\x1b[5m the end\n")
        assert kept.count(b"x" * (1 << 16)) >= 2
        assert "the end" in "\n".join(report_of(run))
