"""Nothing of a run is left, whatever happens to ringup, ssh, the network or a guard; nothing else is hurt."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.guards import PATIENCE_S, wait_for
from tests.jobs.launched import CHECKED_AND_ENDED_S, Launched

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

NET = "192.168.7.10/24"
STRANGER = "echo; exec -a 'python -u stays.py stubborn' sleep 3600"
"""A process of the same user that looks like a rank."""
OTHER_RUN = {"RINGUP_RUN": "20260101-000000-abcd", "RINGUP_NODE": "0", "RANK": "0", "MASTER_PORT": "29501"}
Start = Callable[..., Launched]


@pytest.fixture
def start(lab: Any) -> Iterator[Start]:
    """
    Starts a run of two ranks among processes that are none of its business; gives it once all are up.

    By torchrun, which takes seconds to import torch, only where that is asked for.
    """
    runs: list[Launched] = []

    def started(
        mode: str = "stubborn",
        hosts: Any = 2,
        options: Sequence[str] = (),
        launcher: str = "python",
        **more: Any,
    ) -> Launched:
        cluster = lab(hosts, net=NET)
        for host in cluster.hosts:
            for env in ({}, OTHER_RUN):
                stranger = cluster.popen(host, ["bash", "-c", STRANGER], env=env, stdout=subprocess.PIPE)
                stranger.stdout.readline()
        options = [*options, "--with", launcher]
        runs.append(Launched(cluster, "stays.py", mode, "{folder}", options=options, **more))
        return runs[-1] if "--detach" in options else runs[-1].wait_for_output("| up ", 2)

    yield started
    for run in runs:
        assert not run.missing()
        run.__exit__()


def gone(run: Launched, event: Callable[[], object]) -> None:
    """Do it; then nothing of the job is left on any node, whoever its parent is."""
    event()
    run.wait_nothing_left(PATIENCE_S, job_only=True)


def ended(run: Launched, code: int, outcome: str) -> None:
    """Ringup itself has ended so, has said so in run.json, and left no connection."""
    assert run.wait() == code, run.said()
    assert run.record["outcome"] == outcome, run.said()
    run.wait_nothing_left(PATIENCE_S)


@pytest.mark.parametrize("mode", ["plain", "stubborn"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_to_ringup(start: Start, mode: str, number: int, code: int) -> None:
    run = start(mode, launcher="torchrun" if mode == "plain" else "python")
    gone(run, lambda: run.process.send_signal(number))
    ended(run, code, "interrupted")
    assert run.record["cleanup"] == []


def test_ctrl_c_in_a_terminal_which_reaches_its_whole_process_group(start: Start) -> None:
    run = start()
    gone(run, lambda: os.killpg(run.process.pid, signal.SIGINT))
    ended(run, 130, "interrupted")


@pytest.mark.smoke
@pytest.mark.parametrize("mode", ["plain", "stubborn"])
def test_killed_ringup(start: Start, mode: str) -> None:
    run = start(mode, launcher="torchrun")
    gone(run, run.process.kill)
    run.process.wait()
    run.wait_nothing_left(PATIENCE_S)


@pytest.mark.smoke
def test_killed_ssh_clients(start: Start) -> None:
    run = start()
    clients = [p.pid for p in run.lab.processes("node0") if p.command[:1] == ("ssh",)]
    assert len(clients) >= 2

    def kill() -> None:
        for pid in clients:
            os.kill(pid, signal.SIGKILL)

    gone(run, kill)
    ended(run, 4, "launcher-error")


def test_every_ssh_connection_reset(start: Start) -> None:
    run = start()
    gone(run, lambda: run.lab.fault("ssh-reset"))
    ended(run, 4, "launcher-error")


def test_stopped_ringup_as_in_a_suspended_laptop(start: Start) -> None:
    run = start()
    gone(run, lambda: run.process.send_signal(signal.SIGSTOP))
    run.process.send_signal(signal.SIGCONT)
    ended(run, 4, "launcher-error")


@pytest.mark.smoke
@pytest.mark.parametrize("cut", ["node0", "node1"])
def test_link_cut_without_a_word(start: Start, cut: str) -> None:
    run = start(hosts=["node0", "node1", "laptop"], on="laptop")
    gone(run, lambda: run.lab.fault("link-cut", host=cut))
    ended(run, 4, "launcher-error")
    assert f"first failure: {cut}: no contact for" in run.stderr, run.said()


def kill_guard(run: Launched, node: str, half: str) -> None:
    """SIGKILL to the outer half of a node's guard, the inner one, or both."""
    label = f"ringup-guard:{run.run_id}"
    halves = {p.pid: p for p in run.lab.processes(node) if label in p.command}
    inner = next(p for p in halves.values() if p.ppid in halves)
    for pid in {"sentinel": [inner.ppid], "guard": [inner.pid], "both": [inner.ppid, inner.pid]}[half]:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.smoke
@pytest.mark.parametrize("half", ["sentinel", "guard", "both"])
@pytest.mark.parametrize("node", ["node0", "node1"])
def test_killed_guard(start: Start, node: str, half: str) -> None:
    run = start()
    gone(run, lambda: kill_guard(run, node, half))
    ended(run, 4, "launcher-error")
    assert f"first failure: {node}: " in run.stderr, run.said()


def words_on(run: Launched, node: str) -> str:
    """Every command line on a node."""
    return "\n".join(" ".join(p.command) for p in run.lab.processes(node))


EARLY: dict[str, Callable[[Launched], bool]] = {
    "the check has logged in": lambda run: "ru_T=" in words_on(run, "node1"),
    "the guards are being started": lambda run: "ringup: run " in run.stderr,
    "torchrun starts": lambda run: "torch.distributed.run" in words_on(run, "node1"),
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("moment", EARLY)
def test_signal_before_the_ranks_are_up(lab: Any, moment: str, number: int) -> None:
    with Launched(lab(2, net=NET), "stays.py", "stubborn", "{folder}") as run:
        wait_for(lambda: EARLY[moment](run), moment, CHECKED_AND_ENDED_S)
        run.process.send_signal(number)
        assert run.wait(PATIENCE_S) == (130 if number == signal.SIGINT else -signal.SIGKILL), run.said()
        wait_for(lambda: not [*run.added("node0"), *run.added("node1")], "nothing left")


@pytest.fixture
def detached(start: Start) -> Launched:
    """A run handed over from a laptop, its ranks up and nobody attached; every connection is reset."""
    run = start(hosts=["node0", "node1", "laptop"], on="laptop", options=["--detach"])
    assert run.wait() == 0, run.said()
    assert run.record["outcome"] == "running", run.said()
    run.lab.fault("ssh-reset")
    run.attach().wait_for_output("| up ", 2)
    run.process.kill()
    run.process.wait()
    return run


def lives(run: Launched) -> bool:
    """Every rank with its three children, and the guard of each node."""
    return all(len(run.of_the_job(node)) >= 5 for node in ("node0", "node1"))


def test_detached_run_goes_on_without_ringup_and_ends_by_ctrl_c(detached: Launched) -> None:
    detached.attach().wait_for_output("| up ", 2)
    detached.lab.fault("ssh-reset")
    detached.wait()
    assert lives(detached), detached.said()
    detached.attach().wait_for_output("| up ", 2)
    gone(detached, lambda: detached.process.send_signal(signal.SIGINT))
    ended(detached, 130, "interrupted")


@pytest.mark.smoke
@pytest.mark.parametrize("half", ["sentinel", "guard", "both"])
@pytest.mark.parametrize("node", ["node0", "node1"])
def test_killed_guard_of_a_detached_run(detached: Launched, node: str, half: str) -> None:
    assert lives(detached)
    gone(detached, lambda: kill_guard(detached, node, half))
    detached.wait_nothing_left(PATIENCE_S)
    detached.attach()
    assert detached.wait() == 4, detached.said()
    assert f"first failure: {node}: " in detached.stderr, detached.said()


@pytest.mark.smoke
@pytest.mark.parametrize("cut", ["node0", "node1"])
def test_link_cut_under_a_detached_run(detached: Launched, cut: str) -> None:
    assert lives(detached)
    gone(detached, lambda: detached.lab.fault("link-cut", host=cut))
    detached.wait_nothing_left(PATIENCE_S)
