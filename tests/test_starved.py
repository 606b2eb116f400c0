"""A limit that was missed for want of a processor names no cause; what does not depend on time still does."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringup.agent.facts import main as payload
from ringup.checks import ssh as _fills_the_registry  # noqa: F401
from ringup.collectors import node_answer, pairs
from ringup.collectors.pairs import Message, PairClient, Row
from ringup.model import Clock, Cluster, GpuDriver, Host, Look, Node, Resolution, Unreached, cpu_starvation
from ringup.output import console
from ringup.rules import CHECKS, run_checks
from ringup.transport import Transport, connections, cpu, session
from tests import clusters as c
from tests.guards import wait_for
from tests.test_facts_answer import framed, node_of, told

HERE = Path(__file__).parent
BUSY = "while True: pass"
LATE = "no answer within 5.5 s"
NAMES = {"own-hostname-unresolvable", "hostname-unresolvable-from-peer", "reverse-dns-slow"}

has_schedstat = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not count how long processes wait"
)


def rules_of(cluster: Cluster) -> set[str]:
    return {f.rule for f in run_checks(cluster)[0]}


def reasons(cluster: Cluster, rule: str) -> dict[str | None, str]:
    return {s.node: s.reason for s in run_checks(cluster, {rule: CHECKS[rule]})[1]}


def late_node(waited_s: float) -> Node:
    """A node whose resolver had not answered in time, and how long its lookups had no processor."""
    own = Resolution("node1", (), LATE, 5.5)
    return c.plain(1, own_name=own, cpu_waits={"names": waited_s}, load=55.0)


def with_late(waited_s: float) -> Cluster:
    return c.cluster(c.plain(0), node_answer.withdrawn(late_node(waited_s)), c.plain(2))


# -- the judge: what 64 nodes that shared two processors told at load 40 to 69 ----------------------


@pytest.mark.parametrize("waited_s", [1.6, 2.9, 4.8])
def test_a_name_not_resolved_on_a_starved_node_is_not_checked(waited_s: float) -> None:
    cluster = with_late(waited_s)
    assert not rules_of(cluster) & NAMES
    assert "node1 had no CPU time: load 55" in reasons(cluster, "own-hostname-unresolvable")["node1"]


@pytest.mark.parametrize("waited_s", [0.0, 0.04, 0.9])
def test_a_name_not_resolved_on_a_node_with_time_is_a_slow_resolver(waited_s: float) -> None:
    assert rules_of(with_late(waited_s)) & NAMES == {"reverse-dns-slow"}


def test_a_name_that_a_starved_node_denies_is_a_fault_all_the_same() -> None:
    denied = replace(late_node(4.8), own_name=Resolution("node1", (), "Name or service not known", 0.2))
    cluster = c.cluster(c.plain(0), node_answer.withdrawn(denied), c.plain(2))
    assert "own-hostname-unresolvable" in rules_of(cluster)


def test_what_a_node_took_to_answer_counts_without_its_waiting() -> None:
    slow = replace(late_node(4.0), own_name=Resolution("node1", ("10.0.0.11",), "", 4.4))
    assert node_answer.withdrawn(slow).own_name.took_s == pytest.approx(0.4)
    idle = replace(slow, cpu_waits={"names": 0.0})
    assert node_answer.withdrawn(idle).own_name.took_s == 4.4


@pytest.mark.parametrize(
    ("field", "part", "value"),
    [
        ("peer_names", "names", (Resolution("node0", ("10.0.0.10",)), Resolution("node2", (), LATE, 5.5))),
        ("peer_names", "pairs", (Resolution("node2", (), "no answer within 4 s", 4.0),)),
        ("reverse_lookup_s", "names", 5.5),
        ("looks", "work", (Look("/nfs", 2.5, answered=False),)),
        ("looks", "work", (Look("/nfs", 1.8),)),
        ("gpu_driver", "gpu", GpuDriver(silent_s=8.0)),
    ],
)
def test_a_duration_is_taken_back_where_it_was_spent_waiting(field: str, part: str, value: object) -> None:
    asked = replace(c.plain(1), **{field: value, "cpu_waits": {part: 3.0}})
    back = node_answer.withdrawn(asked)
    assert "no CPU time" in back.unknown[field]
    assert getattr(back, field) == getattr(Node(""), field)
    kept = node_answer.withdrawn(replace(asked, cpu_waits={part: 0.3}))
    assert field not in kept.unknown and getattr(kept, field) == value


def test_an_answer_in_milliseconds_is_never_taken_back() -> None:
    names = (Resolution("node0", ("10.0.0.10",), "", 0.002),)
    quick = c.plain(1, peer_names=names, reverse_lookup_s=0.01, looks=(Look("/nfs", 0.1),))
    waits = {"names": 60.0, "work": 60.0, "gpu": 60.0, "pairs": 60.0}
    assert node_answer.withdrawn(replace(quick, cpu_waits=waits)).unknown == quick.unknown


def test_a_part_that_was_ended_while_it_waited_says_so() -> None:
    ended = replace(c.plain(1), unknown={"interfaces": "timed out after 6 s", "routes": "permission denied"})
    unknown = node_answer.withdrawn(replace(ended, cpu_waits={"network": 4.0})).unknown
    assert "no CPU time" in unknown["interfaces"]
    assert unknown["routes"] == "permission denied"


# -- the round of pairs ----------------------------------------------------------------------------


def test_only_an_attempt_that_failed_for_want_of_an_answer_is_doubted() -> None:
    base = c.healthy(3)
    waits = {"node1": 2.0}
    for error, expected in (("timed out", ["node1"]), ("connection refused", []), ("no route to host", [])):
        links = c.breaks(base.links, "node0", "node1", "*", error)
        assert pairs.starved_ends(links, waits, 3.6) == expected
    assert pairs.starved_ends(base.links, waits, 3.6) == []
    dropped = c.breaks(base.links, "node0", "node1", "*", "timed out")
    assert pairs.starved_ends(dropped, {"node1": 0.2}, 3.6) == []


def proven(waits: dict[str, float]) -> pairs.Round:
    """What a round gives in which node1 did not answer node0, and the programs waited so long."""
    nodes = (c.plain(0), c.plain(1))
    talk = pairs.Round(Transport([]), nodes, c.healthy().job)
    talk.clients = {n.name: PairClient(n, "ab" * 16) for n in nodes}
    for client in talk.clients.values():
        client.ready, client.done, client.waited_s = (
            Message(
                "ready",
            ),
            True,
            waits[client.node.name],
        )
    other = talk.clients["node1"].endpoints[0]
    target = pairs.pair_schedule.Target("node0", other, 29500, "interface", 3.6)
    talk.clients["node0"].targets = [target]
    talk.clients["node0"].rows = [Row(0, "routed", "", False, None, "timed out", "", 0, 0, "", False, 0, 0)]
    talk.conclude()
    return talk


def test_a_peer_silent_for_want_of_a_processor_is_not_checked() -> None:
    proof = proven({"node0": 0.1, "node1": 3.1})
    assert proof.starved == ["node1"] and "node1 had no CPU time" in proof.unknown["node1"]
    assert [li.ok for li in proof.links] == [False]
    idle = proven({"node0": 0.1, "node1": 0.1})
    assert (idle.starved, idle.unknown) == ([], {})


def test_a_node_that_could_not_take_part_is_no_error() -> None:
    why = "node1 had no CPU time: load 55"
    cluster = c.healthy(3, pairs_unknown={"node1": why}, pairs_starved=("node1",))
    assert "pairs-not-tested" not in rules_of(cluster)
    assert reasons(cluster, "pairs-not-tested") == {"node1": f"pairs: {why}"}


def test_a_node_whose_interfaces_are_not_known_is_not_checked_rather_than_an_error() -> None:
    blind = replace(c.plain(1), interfaces=(), unknown={"interfaces": "permission denied"})
    why = "its interfaces are not known: permission denied"
    cluster = c.cluster(c.plain(0), blind, c.plain(2), pairs_unknown={"node1": why})
    assert "pairs-not-tested" not in rules_of(cluster)
    assert reasons(cluster, "pairs-not-tested") == {"node1": f"pairs: {why}"}


def test_paths_of_a_starved_node_blame_nobody() -> None:
    silent = [("*", "node1", "*", "timed out")]
    assert rules_of(c.healthy(3, broken=silent))
    starving = {"node1": "node1 had no CPU time: load 55"}
    cluster = c.healthy(3, broken=silent, pairs_unknown=starving, pairs_starved=("node1",))
    assert rules_of(cluster) == set()


# -- this machine ----------------------------------------------------------------------------------


def test_a_node_this_machine_was_too_busy_to_hear_is_not_checked() -> None:
    words = cpu_starvation.words("this machine", 9.0, 62.0, 2)
    cluster = c.cluster(c.plain(0), c.unreached("node1", "no-cpu-time", words))
    assert rules_of(cluster) == set()
    assert reasons(cluster, "no-answer") == {"node1": words}


def test_only_silence_is_excused() -> None:
    for kind in ("ssh-key-refused", "ssh-connection-refused", "ssh-host-key-changed", "ssh-no-route"):
        failure = Unreached(kind, "its own words")  # type: ignore[arg-type]
        assert cpu.judged(failure, 100.0, 10.0) is failure
    gone = Unreached("ssh-name-unknown", "Could not resolve hostname n: Name or service not known")
    assert cpu.judged(gone, 100.0, 10.0) is gone
    silent = Unreached("ssh-timeout", "no TCP connection within 10 s")
    assert cpu.judged(silent, 4.0, 10.0).kind == "no-cpu-time"
    assert cpu.judged(silent, 1.0, 10.0) is silent


def test_time_without_a_processor_does_not_count_up_to_twice_the_limit() -> None:
    assert cpu.is_over(10.1, 10.0, lambda: 0.0)
    assert not cpu.is_over(10.1, 10.0, lambda: 3.0)
    assert cpu.is_over(20.1, 10.0, lambda: 1000.0)


def test_silence_is_measured_by_the_pace_of_the_node() -> None:
    watched = session.Session(Host("n1"), session.Way(["ssh"]), "t", None)  # type: ignore[arg-type]
    fresh: Any = SimpleNamespace(submit=lambda *_: None, begin=lambda: None, host=Host("n1"))
    limits_s = []
    for watched.ready_after_s in (0.2, 2.0, 20.0):
        limits_s.append(connections.PathProbe(watched, fresh)._limit_s)
    assert limits_s[:2] == [connections.STUCK_S, 6.0]
    assert connections.OVERDUE_S + limits_s[2] < 15.0, "ssh's keep-alive ends it before"


def test_an_answer_that_is_only_late_is_not_called_lost() -> None:
    begun = framed(b"{}").partition(b"facts\n")[0][:-6]
    error = Unreached("no-answer", "no complete answer within 20 s")
    lost, late = (node_of(begun, error=error, silent_s=s).unreached for s in (12.0, 0.5))
    assert lost and lost.kind == "ssh-long-answer-lost"
    assert late == error
    starving = Unreached("no-cpu-time", "this machine had no CPU time")
    assert node_of(begun, error=starving, silent_s=12.0).unreached == starving


def test_a_clock_is_off_only_beyond_what_both_measurements_may_err() -> None:
    # Answers of three nodes of one clock, the second and third heard seconds late.
    clocks = (Clock(0.0, 0.1), Clock(2.4, 2.5), Clock(2.6, 2.7))
    late = c.cluster(*(c.plain(k, clock=clock) for k, clock in enumerate(clocks)))
    assert "clock-skew" not in rules_of(late)
    # Two nodes that agree have the right time, or no fault of theirs: the launcher's clock is the odd one.
    for offset_s in (90.0, -90.0):
        alike = c.cluster(*(c.plain(k, clock=Clock(offset_s + 0.01 * k, 0.1)) for k in range(2)))
        assert "clock-skew" not in rules_of(alike)
        alone = c.cluster(c.plain(0, clock=Clock(offset_s, 0.1)), is_local=False)
        assert "clock-skew" in rules_of(alone)
    off = c.cluster(*(c.plain(k, clock=Clock(90.0 * (k == 0), 2.5)) for k in range(3)))
    assert "clock-skew" in rules_of(off)


def test_a_banner_that_does_not_come_is_not_put_down_to_long_packets() -> None:
    for words, blames_mtu in (
        ("TCP connects, but no banner of sshd came within 10 s", False),
        ("Connection timed out during banner exchange", False),
        ("short packets pass (TCP, banner), but the key exchange does not end within 10 s", True),
    ):
        cluster = c.cluster(c.plain(0), c.unreached("node1", "ssh-key-exchange-hangs", words))
        finding = next(f for f in run_checks(cluster)[0] if f.rule == "ssh-key-exchange-hangs")
        assert finding.fix is not None
        assert ("MTU" in finding.fix.text, "full-size" in finding.why) == (blames_mtu, blames_mtu)


def test_a_name_server_that_does_not_answer_is_no_misspelt_name() -> None:
    for error, blames_name in (
        ("Name or service not known", True),
        ("Temporary failure in name resolution", False),
    ):
        words = f"ssh: Could not resolve hostname node1: {error}"
        cluster = c.cluster(c.plain(0), c.unreached("node1", "ssh-name-unknown", words))
        finding = next(f for f in run_checks(cluster)[0] if f.rule == "ssh-name-unknown")
        assert finding.fix is not None
        assert ("spelling mistake" in finding.why, "resolv.conf" not in finding.fix.text) == (
            blames_name,
            blames_name,
        )


def test_packets_sent_again_by_starved_nodes_are_not_called_lost() -> None:
    base = c.healthy(3)
    again = tuple(replace(li, segments=9, retransmitted=3) for li in base.links)
    assert "tcp-retransmits-high" in rules_of(replace(base, links=again))
    busy = tuple(replace(n, cpu_waits={"pairs": 7.2}) for n in base.nodes)
    cluster = replace(base, links=again, nodes=busy)
    assert "tcp-retransmits-high" not in rules_of(cluster)
    assert set(reasons(cluster, "tcp-retransmits-high")) == {"node0", "node1", "node2"}


def test_a_rendezvous_port_silent_for_want_of_a_processor_is_not_filtered() -> None:
    broken = c.healthy(3)
    links = c.breaks(broken.links, "node1", "node0", "*", "timed out", "29500")
    assert "rendezvous-port-filtered" in rules_of(replace(broken, links=links))
    why = {"node1": "node1 had no CPU time"}
    starving = replace(broken, links=links, pairs_unknown=why, pairs_starved=("node1",))
    assert "rendezvous-port-filtered" not in rules_of(starving)


def test_a_cluster_that_was_not_checked_is_not_called_ready() -> None:
    cluster = c.cluster(c.plain(0), c.unreached("node1", "no-cpu-time", "this machine had no CPU time"))
    findings, skipped = run_checks(cluster)
    text = console.check_text(console.Report(cluster, findings, skipped, None), console.Style(io.StringIO()))
    assert text.endswith('Not ready: see "not checked" above.')


# -- real starvation -------------------------------------------------------------------------------


@contextmanager
def starving(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process of low priority on a processor that another one keeps busy."""
    core = min(os.sched_getaffinity(0))

    def low() -> None:
        os.sched_setaffinity(0, {core})
        os.nice(10)

    pinned = f"import os; os.sched_setaffinity(0, {{{core}}})\n{BUSY}"
    busy = subprocess.Popen([sys.executable, "-S", "-E", "-c", pinned])
    try:
        with subprocess.Popen(list(words), preexec_fn=low, stdout=subprocess.PIPE) as process:
            try:
                yield process
            finally:
                process.kill()
    finally:
        busy.kill()
        busy.wait()


def is_asleep(pid: int) -> bool:
    """Whether a process is `sleep` and sleeps."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
    return (name, rest[:1]) == ("sleep", "S")


@has_schedstat
@pytest.mark.slow
def test_a_process_that_gets_no_processor_is_seen_to_wait_and_a_sleeping_one_is_not() -> None:
    asleep = subprocess.Popen(["sleep", "600"])
    try:
        wait_for(lambda: is_asleep(asleep.pid), "its sleep")
        before_s = cpu.waited_s(asleep.pid)
        with starving([sys.executable, "-S", "-E", "-c", BUSY]) as process:
            until = time.monotonic() + 60
            while cpu.waited_s(process.pid) < 1.0:
                assert time.monotonic() < until, "nothing was counted"
                time.sleep(0.05)
            assert payload.longest_wait_s(process.pid) >= 1.0
        assert cpu.waited_s(asleep.pid) - before_s < 0.5
    finally:
        asleep.kill()
        asleep.wait()


def test_a_process_that_is_gone_or_not_counted_waited_for_nothing() -> None:
    assert cpu.waited_s(0) == 0.0
    assert payload.longest_wait_s("nobody") == 0.0


@has_schedstat
@pytest.mark.slow
def test_a_part_tells_how_long_it_had_no_processor() -> None:
    burn = "import time\ndef questions(r, root):\n while time.process_time() < 0.1: pass\n return ()"
    program = (
        "import sys, types; sys.path.insert(0, sys.argv[1])\n"
        "from ringup.agent.facts import main\n"
        "played = sys.modules['ringup.agent.facts.names'] = types.ModuleType('names')\n"
        "exec(sys.argv[2], vars(played))\n"
        "print(main.run(['names'], {}, '', {'names': 60.0})['names'][0])"
    )
    words = [sys.executable, "-S", "-E", "-c", program, str(Path(payload.__file__).parents[3]), burn]
    with starving(words) as process:
        assert process.stdout is not None
        said = process.stdout.read().decode()
    waited_s = told({"names": eval(said)}).cpu_waits["names"]
    assert waited_s > 0.3, said


@has_schedstat
@pytest.mark.slow
def test_a_starved_ssh_client_names_nothing_and_an_idle_one_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both speak as far as sshd's banner; one is then kept from running, the other waits for the node."""
    core = min(os.sched_getaffinity(0))
    played = tmp_path / "ssh"
    # A shell, of programs that were read just before: waiting for a busy disk does not count as starving.
    subprocess.run(["nice", "-n", "10", "taskset", "-c", str(core), "sh", "-c", ":"], check=True)
    played.write_text(
        "#!/bin/sh\n"
        "printf 'debug1: Connection established.\\r\\ndebug1: Remote protocol version 2.0\\r\\n' >&2\n"
        "case $* in *busy*) ;; *) exec sleep 60;; esac\n"
        f"exec nice -n 10 taskset -c {core} sh -c 'while :; do :; done'\n"
    )
    played.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    hosts = [Host("busy"), Host("idle")]
    with starving(["sleep", "60"]), Transport(hosts, connect_timeout_s=6.0) as door:
        answers = door.ask({"busy": "echo", "idle": "echo"}, deadline_s=30)
    kinds = {name: answer.error and answer.error.kind for name, answer in answers.items()}
    assert kinds == {"busy": "no-cpu-time", "idle": "ssh-key-exchange-hangs"}
