"""A detached run with restarts, on hosts that fail: its supervisor is on a host that is no node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guards import wait_for
from tests.jobs.launched import CHECKED_AND_ENDED_S
from tests.test_restarts_lab import OPTIONS, WAITS, Restarted

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.mark.parametrize("off", ["node0", "node1"])
def test_a_node_of_a_detached_run_is_replaced_by_the_spare(lab: Any, off: str) -> None:
    cluster = lab(hosts=["node0", "node1", "node2", "laptop"])
    options = (*OPTIONS, "--detach", "--spares", "1")
    with Restarted(cluster, WAITS, hosts="node0,node1,node2", options=options, steps=80) as run:
        assert run.wait() == 0, run.said()
        run.wait_for_step(5)
        cluster.fault("power-off", host=off)
        attached = run.attach()
        assert attached.wait() == 0, run.said()
        expected = ["node2" if node == off else node for node in ("node0", "node1")]
        assert [one["nodes"] for one in run.attempts] == [["node0", "node1"], expected], run.said()
        assert run.decisions() == ["exclude", "finished"]
        assert run.attempts[0]["cause"]["rule"] == "node-lost", run.attempts[0]
        assert run.attempts[0]["cause"]["nodes"] == [off]
        left = [run.of_attempt(host, 1) for host in ("node0", "node1", "node2") if host != off]
        assert left == [[], []]


def test_a_supervisor_that_reaches_no_node_waits_and_ends_nothing(lab: Any) -> None:
    cluster = lab(hosts=["node0", "node1", "laptop"])
    options = (*OPTIONS, "--detach")
    with Restarted(cluster, WAITS, hosts="node0,node1", options=options, steps=60) as run:
        assert run.wait() == 0, run.said()
        run.wait_for_step(5)
        with cluster.broken("host-off", host="laptop"):
            log = run.log_dir / "supervisor.log"
            asked = "the supervisor's notice"
            wait_for(lambda: "asking again" in log.read_text(), asked, CHECKED_AND_ENDED_S)
            run.go(10)
            run.wait_for_step(20)
        assert run.attach().wait() == 0, run.said()
        assert run.decisions() == ["finished"], run.said()
