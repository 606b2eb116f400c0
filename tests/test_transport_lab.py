"""Real sshd under real faults: each is named, in time, and the healthy node is not delayed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for
from tests.lab import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

HERE = Path(__file__).parent


def ask(lab: Lab, *scripts: str, nodes: str = "node0,node1") -> list[dict[str, Any]]:
    """What `ask_nodes.py` on node0 saw, a dict of nodes per script, and the time of it all last."""
    words = [sys.executable, str(HERE / "ask_nodes.py"), nodes, *(scripts or ("echo end",))]
    done = lab.run("node0", words, timeout_s=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        pytest.param(
            "ssh-key-unknown",
            "ssh-host-key-unknown",
            "Host key verification failed",
            marks=pytest.mark.smoke,
        ),
        ("ssh-key-changed", "ssh-host-key-changed", "Offending ED25519 key in /root/.ssh/known_hosts:"),
        ("ssh-key-refused", "ssh-key-refused", "Permission denied (publickey)"),
        ("ssh-refused", "ssh-connection-refused", "port 22: Connection refused"),
        ("ssh-dropped", "ssh-timeout", "port 22: Connection timed out"),
        ("ssh-no-route", "ssh-no-route", "port 22: No route to host"),
        ("host-off", "ssh-no-route", "port 22: No route to host"),
        ("ssh-name-unknown", "ssh-name-unknown", "Could not resolve hostname node1"),
        ("mtu-blackhole-ssh", "ssh-key-exchange-hangs", "short packets pass"),
    ],
)
def test_every_way_in_that_fails_is_named(
    shared_lab: Callable[..., Lab], fault: str, kind: str, words: str
) -> None:
    lab = shared_lab(hosts=2)
    lab.fault(fault, host="node1")
    answers, total = ask(lab)
    assert answers["node1"]["kind"] == kind
    assert words in answers["node1"]["words"]
    assert answers["node0"]["kind"] is None
    assert answers["node0"]["took_s"] < total["all_s"]


@pytest.mark.parametrize(
    "script", ["head -c 200000 /dev/zero", "# " + "x" * 60_000], ids=["answer", "request"]
)
def test_a_long_packet_lost_after_login_is_named(shared_lab: Callable[..., Lab], script: str) -> None:
    lab = shared_lab(hosts=2)
    lab.fault("mtu-blackhole-after-login", host="node1")

    def is_named() -> bool:
        """Without CPU time the login itself may last too long."""
        kind = ask(lab, script)[0]["node1"]["kind"]
        assert kind in ("ssh-long-answer-lost", "ssh-timeout")
        return kind == "ssh-long-answer-lost"

    wait_for(is_named, "the lost answer")


def test_a_node_that_takes_eight_seconds_answers(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab(hosts=2)
    lab.fault("ssh-slow-shell", host="node1")
    answers, _ = ask(lab)
    assert [a["kind"] for a in answers.values()] == [None, None]
    assert answers["node1"]["took_s"] > 8


def test_a_slow_script_is_not_taken_for_a_broken_path(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab(hosts=2)
    answers, _ = ask(lab, "sleep 10; echo end")
    assert [a["stdout_bytes"] for a in answers.values()] == [4, 4]


def test_a_fifth_of_all_packets_lost_is_survived(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab(hosts=2)
    lab.fault("loss-ssh", host="node1")
    answers, again, _ = ask(lab, "head -c 20000 /dev/zero", "echo end")
    assert [a["kind"] for a in (*answers.values(), *again.values())] == [None] * 4


def test_one_connection_serves_all_rounds(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab(hosts=2)
    answers, again, third, _ = ask(lab, "echo 1", "echo 2", "ss -Htn state established sport = :22 | wc -l")
    assert [a["kind"] for a in (*answers.values(), *again.values())] == [None] * 4
    assert third["node1"]["stdout_bytes"] == 2


def test_the_users_own_master_is_the_way_in_where_the_key_is_refused(shared_lab: Callable[..., Lab]) -> None:
    lab = shared_lab(hosts=2)
    lab.sh("node0", "ssh -fNM -o ControlPath=/root/master node1 </dev/null >/dev/null 2>&1")
    config = "/root/.ssh/config"
    lab.sh("node0", f"cp {config} /root/kept; echo '  ControlPath /root/master' >> {config}")
    try:
        lab.fault("ssh-key-refused", host="node1")
        answers, again, _ = ask(lab, "echo end", "echo again")
        assert [a["kind"] for a in (answers["node1"], again["node1"])] == [None, None]
        lab.sh("node0", "ssh -O exit -o ControlPath=/root/master node1 2>/dev/null")
        answers, _ = ask(lab)
        assert answers["node1"]["kind"] == "ssh-key-refused"
    finally:
        lab.sh("node0", f"cp /root/kept {config}")


PROGRAM = """
import os, sys, time
from ringup import hosts
from ringup.transport import Transport
class Recorder:
    def __init__(self, node): self.node = node
    def on_output(self, data): print("up", self.node, flush=True)
    def on_errors(self, data): pass
    def on_exit(self, code, error): print("exit", self.node, code, error and error.kind, flush=True)
program = '''
import sys
print("up", flush=True)
sys.stdin.read()
open(sys.argv[1], "w").close()
'''
with Transport(hosts.expand("node0,node1")) as transport:
    for node in ("node0", "node1"):
        transport.start(node, program, (sys.argv[1] + node,), Recorder(node), label="ringup-guard r1")
    while True:
        transport.turn(1.0)
"""


@pytest.fixture
def launcher(
    shared_lab: Callable[..., Lab], tmp_path: Path
) -> Iterator[tuple[Lab, subprocess.Popen[str], Path]]:
    """A launcher on node0 with a program on both nodes; each leaves a file at its end of file."""
    lab = shared_lab(hosts=2)
    # The hosts share the disk, but not /tmp, where tmp_path lies.
    shared = Path(tempfile.mkdtemp(dir="/var/tmp"))
    words = [sys.executable, "-c", PROGRAM, f"{shared}/"]
    child = lab.popen("node0", words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert sorted(child.stdout.readline() for _ in range(2)) == ["up node0\n", "up node1\n"]
    yield lab, child, shared
    child.kill()
    child.wait()
    child.stdout.close()
    shutil.rmtree(shared, ignore_errors=True)  # a program that hears of its end only now may still write


@pytest.mark.smoke
def test_killing_the_launcher_is_end_of_file_everywhere(
    launcher: tuple[Lab, subprocess.Popen[str], Path],
) -> None:
    lab, child, shared = launcher
    child.send_signal(signal.SIGKILL)
    wait_for(lambda: {p.name for p in shared.iterdir()} == {"node0", "node1"}, "two files")
    wait_for(
        lambda: not lab.processes("node0", "ringup") and not lab.processes("node1", "ringup"),
        "no program left",
    )
    wait_for(lambda: not lab.processes("node0", "ssh -T"), "no client left")


def test_a_reset_connection_is_the_end_of_its_program_only(
    launcher: tuple[Lab, subprocess.Popen[str], Path],
) -> None:
    lab, child, shared = launcher
    lab.sh("node1", "ss --tcp --kill sport = :22 >/dev/null")
    assert child.stdout is not None
    assert child.stdout.readline() == "exit node1 None ssh-failed\n"
    wait_for(lambda: {p.name for p in shared.iterdir()} == {"node1"}, "a file")
    assert child.poll() is None


def test_a_link_cut_without_a_word_is_noticed(launcher: tuple[Lab, subprocess.Popen[str], Path]) -> None:
    lab, child, _ = launcher
    assert child.stdout is not None
    with lab.broken("link-cut", host="node1"):
        assert child.stdout.readline() == "exit node1 None ssh-timeout\n"
