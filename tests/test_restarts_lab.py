"""`ringup run --max-restarts` on hosts that fail: what starts again, where, and what is left of before."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.guards import PATIENCE_S, wait_for
from tests.jobs.launched import CHECKED_AND_ENDED_S, Launched

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LEASE_S = 15
WAITS = "wait:0:10"
"""Nobody goes on from the first attempt's tenth step: what a test does to the run comes before its end."""
OPTIONS = ("--with", "python", "--max-restarts", "3", "--lease", str(LEASE_S))


class Restarted(Launched):
    """A run of tests/jobs/checkpointing.py, started from a host that is no node."""

    def __init__(
        self,
        lab: Any,
        *words: str,
        hosts: str,
        steps: int = 400,
        options: Sequence[str] = OPTIONS,
        on: str = "laptop",
    ) -> None:
        job = ("checkpointing.py", "{folder}", str(steps), "0.1", *words)
        super().__init__(lab, *job, on=on, hosts=hosts, options=options)

    def seen(self, attempt: int, rank: int) -> dict[str, Any]:
        """What a rank of an attempt wrote at its start; waits for it."""
        path = self.folder / f"seen-{attempt}-{rank}"

        def there() -> Any:
            assert self.process.poll() is None or path.exists(), self.said()
            with contextlib.suppress(OSError, ValueError):
                return json.loads(path.read_text())

        why = f"rank {rank} of attempt {attempt}: {self.err}"
        found: dict[str, Any] = wait_for(there, why, CHECKED_AND_ENDED_S)
        return found

    def step(self) -> int:
        path = self.folder / "latest_checkpointed_iteration.txt"
        return int(path.read_text()) if path.exists() else 0

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: self.step() >= step, f"step {step}; {self.err}", CHECKED_AND_ENDED_S)

    def go(self, step: int) -> None:
        """Let who waits before a step go on."""
        (self.folder / f"go-{step}").touch()

    @property
    def attempts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.record["attempts"]
        return found

    def decisions(self) -> list[str]:
        return [one["decision"] for one in self.attempts]

    def of_attempt(self, host: str, attempt: int) -> list[str]:
        """Processes of an attempt on a host."""
        tag = self.run_id if attempt == 1 else f"{self.run_id}.{attempt}"
        return [
            str(p) for p in self.lab.processes(host) if p.environ.get("RINGUP_RUN") == tag and p.state != "Z"
        ]


@pytest.mark.parametrize("off", ["node1", "node0"])
def test_a_node_that_is_powered_off_is_replaced_by_the_spare(lab: Any, off: str) -> None:
    cluster = lab(hosts=["node0", "node1", "node2", "laptop"])
    options = (*OPTIONS, "--spares", "1")
    with Restarted(cluster, WAITS, hosts="node0,node1,node2", options=options, steps=80) as run:
        run.wait_for_step(5)
        cluster.fault("power-off", host=off)
        run.wait_for_step(12)
        left = [run.of_attempt(host, 1) for host in ("node0", "node1", "node2") if host != off]
        assert left == [[], []]
        assert run.wait() == 0, run.said()
        expected = ["node2" if node == off else node for node in ("node0", "node1")]
        assert [run.seen(2, rank)["node"] for rank in (0, 1)] == expected
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1"], expected], run.said()
        assert run.decisions() == ["exclude", "finished"]
        assert run.attempts[0]["cause"] == {"rule": "node-lost", "confidence": "high", "nodes": [off]}
        assert f"without {off}, with node2" in run.stderr


def test_a_node_that_fails_the_check_is_replaced_whatever_the_logs_name(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "node2", "laptop"])
    options = (*OPTIONS, "--spares", "1", "--with", "torchrun")
    with Restarted(cluster, WAITS, hosts="node0,node1,node2", options=options, steps=60) as run:
        run.wait_for_step(5)
        cluster.fault("torch-missing", host="node1")
        (pid,) = [p.pid for p in cluster.processes("node0") if p.host_pid == run.seen(1, 0)["pid"]]
        os.kill(pid, signal.SIGKILL)
        assert run.wait() == 0, run.said()
        first, second = run.attempts
        assert first["cause"]["rule"] == "rank-killed" and first["cause"]["nodes"] == ["node0"], run.said()
        assert second["nodes"] == ["node0", "node2"] and "torch-missing" in first["because"], run.said()


@pytest.mark.smoke
def test_without_a_spare_it_goes_on_with_fewer_nodes_where_that_is_allowed(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    options = (*OPTIONS, "--min-nodes", "1")
    with Restarted(cluster, WAITS, hosts="node0,node1", options=options, steps=60) as run:
        run.wait_for_step(5)
        cluster.fault("power-off", host="node1")
        assert run.wait() == 0, run.said()
        assert run.decisions() == ["shrink", "finished"], run.said()
        only = run.seen(2, 0)
        assert (only["WORLD_SIZE"], only["RANK"], only["node"]) == ("1", "0", "node0")
        assert only["RINGUP_RESTART_CAUSE"] == "node-lost"


def test_without_a_spare_it_stops_where_fewer_nodes_are_not_allowed(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    with Restarted(cluster, WAITS, hosts="node0,node1") as run:
        run.wait_for_step(5)
        cluster.fault("power-off", host="node1")
        assert run.wait() == 4, run.said()
        assert run.decisions() == ["stop"] and "no restart: " in run.stderr, run.said()
        assert "node1" in run.attempts[0]["because"] and run.step() < 400
        assert run.of_attempt("node0", 1) == []


def test_a_node_whose_link_comes_back_is_used_again(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    with Restarted(cluster, WAITS, hosts="node0,node1", steps=60) as run:
        run.wait_for_step(5)
        with cluster.broken("host-off", host="node1"):
            asked = f"the question; {run.err}"
            wait_for(lambda: "asking again" in run.stderr, asked, CHECKED_AND_ENDED_S)
        assert run.wait() == 0, run.said()
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1"]] * 2, run.said()


def test_spares_that_cannot_run_are_named_at_the_start_and_passed_over(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "node2", "node3", "node4", "laptop"])
    cluster.fault("ssh-key-refused", host="node2")
    cluster.fault("venv-missing", host="node3")
    options = (*OPTIONS, "--spares", "3")
    with Restarted(cluster, WAITS, hosts="node[0-4]", options=options, steps=60) as run:
        run.wait_for_step(5)
        assert "spare: node4 (checked, idle)" in run.stderr, run.said()
        assert all(f"spare {name} cannot be used now" in run.stderr for name in ("node2", "node3"))
        cluster.fault("power-off", host="node1")
        assert run.wait() == 0, run.said()
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1"], ["node0", "node4"]], run.said()
        assert run.seen(2, 0)["RINGUP_EXCLUDED"] == "node1"
        assert run.seen(2, 0)["RINGUP_LAST_WORLD_SIZE"] == "2"


def test_a_node_that_answers_slowly_is_not_left_out(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "node2", "laptop"])
    options = (*OPTIONS, "--spares", "1")
    with Restarted(cluster, "kill:0:10", hosts="node[0-2]", options=options, steps=20) as run:
        run.wait_for_step(5)
        cluster.fault("ssh-slow-shell", host="node1")
        cluster.fault("loss", host="node1")
        assert run.wait() == 0, run.said()
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1"]] * 2, run.said()


def test_a_node_whose_link_flaps_gives_its_place_to_the_spare(lab: Any) -> None:
    """The link is up whenever it is looked at; that it came and went stands in the kernel's counter."""
    cluster = lab(hosts=["node0", "node1", "node2", "laptop"])
    options = (*OPTIONS, "--spares", "1")
    with Restarted(cluster, WAITS, "kill:1:11", hosts="node[0-2]", options=options, steps=20) as run:
        run.wait_for_step(5)
        for _ in range(3):
            with cluster.broken("no-carrier", host="node1"):
                time.sleep(1)
            time.sleep(1)
        run.go(10)
        assert run.wait() == 0, run.said()
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1"], ["node0", "node2"]], run.said()
        assert run.attempts[0]["cause"]["rule"] == "rank-killed", run.said()
        assert "interface-errors" in run.attempts[0]["because"], run.said()


def test_a_spare_that_goes_away_while_it_is_chosen_is_passed_over(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "node2", "node3", "laptop"])
    options = (*OPTIONS, "--spares", "2")
    with Restarted(cluster, WAITS, hosts="node[0-3]", options=options, steps=60) as run:
        run.wait_for_step(5)
        cluster.fault("power-off", host="node1")
        over = f"the end of attempt 1; {run.err}"
        wait_for(lambda: "checking every node for leftovers" in run.stderr, over, CHECKED_AND_ENDED_S)
        cluster.fault("power-off", host="node2")
        assert run.wait() == 0, run.said()
        # Where it was chosen in time it is of a start that failed, and the next spare's turn all the same.
        assert run.attempts[-1]["nodes"] == ["node0", "node3"], run.said()
        assert len(run.attempts) <= 3 and run.attempts[0]["decision"] == "exclude", run.said()


def test_two_nodes_that_are_lost_at_once_are_one_decision(lab: Any) -> None:
    """A short cut before that ends nothing; a spare that no longer answers is passed over."""
    cluster = lab(hosts=["node0", "node1", "node2", "node3", "node4", "laptop"])
    options = (*OPTIONS, "--spares", "2", "--min-nodes", "2")
    with Restarted(cluster, WAITS, "wait:0:60", hosts="node[0-4]", options=options, steps=150) as run:
        run.wait_for_step(5)
        assert "spare: node3, node4 (checked, idle)" in run.stderr, run.said()
        with cluster.broken("link-cut", host="node1"):
            time.sleep(1)
        run.go(10)
        run.wait_for_step(20)
        assert not (run.folder / "seen-2-0").exists(), run.said()
        cluster.fault("ssh-dropped", host="node3")
        cluster.fault("power-off", host="node1")
        time.sleep(1)
        cluster.fault("power-off", host="node2")
        assert run.wait() == 0, run.said()
        assert run.decisions() == ["shrink", "finished"], run.said()
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1", "node2"], ["node0", "node4"]]
        assert [run.seen(2, rank)["WORLD_SIZE"] for rank in (0, 1)] == ["2", "2"]


@pytest.mark.parametrize(
    "fault, launcher, decisions",
    [
        ("kill:1:5", "python", ["same", "finished"]),
        ("kill:1:5", "torchrun", ["same", "finished"]),
        ("raise:1:5", "python", ["same", "finished"]),
        ("name:1:1", "python", ["stop"]),
        ("exit:1:5:*", "python", ["same", "stop"]),
    ],
)
def test_what_follows_a_failed_rank(lab: Any, fault: str, launcher: str, decisions: list[str]) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    with Restarted(
        cluster, fault, hosts="node0,node1", options=(*OPTIONS, "--with", launcher), steps=20
    ) as run:
        code = run.wait()
        assert run.decisions() == decisions, run.said()
        assert (code == 0) == (decisions[-1] == "finished"), run.said()
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1"]] * len(decisions)
        for number in range(1, len(decisions) + 1):
            seen = [run.seen(number, rank) for rank in (0, 1)]
            assert [one["RINGUP_ATTEMPT"] for one in seen] == [str(number)] * 2
            assert [one["TORCHELASTIC_RESTART_COUNT"] for one in seen] == [str(number - 1)] * 2
            assert [one["TORCHELASTIC_MAX_RESTARTS"] for one in seen] == ["3"] * 2
            run_id = "none" if launcher == "torchrun" else None  # torchrun's own word without a rendezvous id
            assert [one["TORCHELASTIC_RUN_ID"] for one in seen] == [run_id] * 2
            assert (run.log_dir / f"attempt-{number}" / "run.json").exists()
        ports = {run.seen(number, 0)["MASTER_PORT"] for number in range(1, len(decisions) + 1)}
        assert len(ports) == len(decisions)


def test_an_interrupt_between_two_attempts_ends_the_run(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    with Restarted(cluster, "kill:1:5:*", hosts="node0,node1") as run:
        over = f"the end; {run.err}"
        wait_for(lambda: "checking every node for leftovers" in run.stderr, over, CHECKED_AND_ENDED_S)
        told = "attempt 1 of 4 ended"
        wait_for(lambda: run.record["attempts"][0]["ended"] or told in run.stderr, "its record")
        os.kill(run.process.pid, signal.SIGINT)
        assert run.wait() == 130, run.said()
        assert run.record["outcome"] == "interrupted" and run.record["exit_code"] == 130
        run.wait_nothing_left(PATIENCE_S, ["node0", "node1"])


def test_the_ranks_save_once_before_an_end_from_outside(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    options = (*OPTIONS, "--save-signal", "USR1", "--save-grace", "30")
    with Restarted(cluster, hosts="node0,node1", options=options) as run:
        run.wait_for_step(5)
        os.kill(run.process.pid, signal.SIGTERM)
        assert run.wait() == 75, run.said()
        assert [run.stdout.count(f"rank {rank} saved on 1 signal") for rank in (0, 1)] == [1, 1], run.said()
        assert run.record["save"]["result"] == run.record["outcome"] == "saved"
        assert run.decisions() == ["stop"]


def test_ranks_that_do_not_save_in_time_are_ended(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    options = (*OPTIONS, "--save-signal", "USR1", "--save-grace", "1")
    with Restarted(cluster, "hang:1:5", hosts="node0,node1", options=options) as run:
        wait_for((run.folder / "hangs-1-1").exists, "the hang", CHECKED_AND_ENDED_S)
        os.kill(run.process.pid, signal.SIGUSR1)
        assert run.wait() == 75, run.said()
        assert run.record["save"]["result"] == run.record["outcome"] == "not-saved"
        run.wait_nothing_left(PATIENCE_S, ["node0", "node1"])
