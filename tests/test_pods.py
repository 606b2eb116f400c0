"""N hosts without ssh run one command each: they meet, train, and a wrong token, index or count is named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.errors import NodesError
from ringup.hosts import pod as pod_module
from ringup.hosts.pod import Pod
from ringup.reach import pod_peer, pods, proof
from tests.guards import wait_for

TOKEN = "0123456789abcdef-not-a-real-one"
JOBS = Path(__file__).parent / "jobs"


def place(environ: dict[str, str], hostname: str = "job-1") -> Pod | None:
    return pod_module.from_environment(environ, hostname, read=lambda path: Path(path).read_text())


IN_A_JOB = {"JOB_COMPLETION_INDEX": "1", "RINGUP_NODES": "2", "RINGUP_SERVICE": "svc", "RINGUP_TOKEN": TOKEN}


def test_an_indexed_job_tells_who_the_first_pod_is(tmp_path: Path) -> None:
    found = place(IN_A_JOB)
    assert found is not None
    assert (found.index, found.count, found.name, found.head) == (1, 2, "job-1.svc", "job-0.svc")
    assert (found.port, found.wait_s) == (29100, 300.0)
    assert TOKEN not in repr(found)
    assert place({k: v for k, v in IN_A_JOB.items() if k != "RINGUP_TOKEN"}) is None
    (tmp_path / "token").write_text(TOKEN + "\n")
    by_file = {**IN_A_JOB, "RINGUP_TOKEN": "", "RINGUP_TOKEN_FILE": str(tmp_path / "token")}
    assert place(by_file) == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RINGUP_TOKEN": "short"}, "shorter than 16"),
        ({"RINGUP_TOKEN_FILE": "/x"}, "both set"),
        ({"RINGUP_TOKEN": "", "RINGUP_TOKEN_FILE": "/no/such"}, "cannot be read"),
        ({"RINGUP_NODES": "1"}, "index 1 of 1"),
        ({"RINGUP_NODES": "many"}, "RINGUP_NODES='many'"),
        ({"RINGUP_NODES": ""}, "RINGUP_NODES is not set"),
        ({"JOB_COMPLETION_INDEX": ""}, "RINGUP_INDEX is not set"),
        ({"RINGUP_INDEX": "0"}, "cannot be told"),
        ({"RINGUP_HEAD": "a b;c"}, "no host name"),
        ({"RINGUP_PORT": "99999"}, "RINGUP_PORT"),
    ],
)
def test_variables_that_do_not_fit_are_named(change: dict[str, str], words: str) -> None:
    with pytest.raises(NodesError, match=re.escape(words)) as caught:
        place({**IN_A_JOB, **change})
    assert TOKEN not in str(caught.value) + caught.value.hint


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def a_pod(index: int, port: int, **changes: Any) -> Pod:
    fields = {"index": index, "count": 2, "name": f"pod{index}", "head": "127.0.0.1", "port": port}
    return Pod(**{**fields, "wait_s": 8.0, "token": TOKEN.encode(), **changes})


class Gathered:
    """A first pod that waits in a thread."""

    def __init__(self, **changes: Any) -> None:
        self.port, self.said = free_port(), []
        self.found: pods.Pods | None = None
        self.error: NodesError | None = None
        self.thread = threading.Thread(target=self._gather, args=(a_pod(0, self.port, **changes),))
        self.thread.start()

    def _gather(self, pod: Pod) -> None:
        try:
            self.found = pods.gather(pod, self.said.append)
        except NodesError as error:
            self.error = error

    def heard(self, words: str) -> bool:
        return any(words in line for line in self.said)


@pytest.mark.slow
def test_the_token_never_travels_and_a_wrong_one_is_named_on_both_sides() -> None:
    head = Gathered(wait_s=3.0)
    wait_for(lambda: _listens(head.port), "the listener", 4)
    said: list[str] = []
    with pytest.raises(NodesError, match="another token"):
        pod_peer.serve(a_pod(1, head.port, token=b"another-token-of-16"), said.append)
    head.thread.join(10)
    assert head.error is not None and "index 1 of 2 did not come within 3.0 s" in str(head.error)
    assert "turned away 127.0.0.1 (says: index 1, pod1): it holds another token" in str(head.error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 3}, "it counts 3 pods, the head 2"),
        ({"index": 0}, "index 0 is taken"),
        ({"index": 7}, "there is no index 7 of 2"),
    ],
)
def test_a_pod_that_does_not_fit_is_turned_away_with_the_reason(changes: dict[str, Any], words: str) -> None:
    head = Gathered(wait_s=3.0)
    wait_for(lambda: _listens(head.port), "the listener", 4)
    with pytest.raises(NodesError, match=re.escape(words)):
        pod_peer.serve(a_pod(changes.pop("index", 1), head.port, **changes), lambda _words: None)
    head.thread.join(10)
    assert words in str(head.error)


def raw(port: int, *lines: bytes) -> bytes:
    """What a stranger who says these lines hears."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        heard = b""
        for line in lines:
            connection.sendall(line)
            with contextlib.suppress(ConnectionResetError):
                heard += connection.recv(4096)
        return heard


@pytest.mark.slow
def test_a_stranger_gets_no_shell_and_does_not_stop_the_others() -> None:
    head = Gathered(wait_s=10.0)
    wait_for(lambda: _listens(head.port), "the listener", 5)
    hello = {
        "version": 1,
        "nonce": "0" * 64,
        "index": 1,
        "count": 2,
        "name": "x",
        "instance": "i",
        "role": "control",
    }
    assert b"refused" in raw(head.port, proof.encode(hello), proof.encode({"proof": "0" * 64}))
    for line in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"\xff\n",
        b"[" * 4000 + b"\n",
        proof.encode({**hello, "version": 9}),
    ):
        assert TOKEN.encode() not in raw(head.port, line)
    # A proof of one connection is none on another: the head's nonce differs.
    with socket.create_connection(("127.0.0.1", head.port)) as first:
        first.sendall(proof.encode(hello))
        nonce = proof.decode(proof.read_line(first))["nonce"]
        right = proof.proof(TOKEN.encode(), "peer", hello, nonce)
        assert b"refused" in raw(head.port, proof.encode(hello), proof.encode({"proof": right}))
    peer = threading.Thread(target=pod_peer_quietly, args=(a_pod(1, head.port),))
    peer.start()
    head.thread.join(15)
    assert head.found is not None and [h.name for h in head.found.hosts] == ["pod0", "127.0.0.1"]
    head.found.finish(5)
    peer.join(10)
    assert RESULTS.pop() == 5


RESULTS: list[int] = []


def pod_peer_quietly(pod: Pod) -> None:
    """A peer in a thread, where no signal handler can be set."""
    peer = pod_peer._Peer(pod, lambda _words: None)
    until = time.monotonic() + pod.wait_s
    with peer.dial("control", until) as control:
        for number in range(pods.SHELLS):
            peer.open_shell(number, until)
        RESULTS.append(peer.heed(control))


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# -- in the lab --------------------------------------------------------------------------------


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every host of a lab sees; each has a /tmp of its own."""
    with tempfile.TemporaryDirectory(prefix="ringup-pods-", dir="/var/tmp") as name:
        yield Path(name)


def ranks(cluster: Any, host: str, script: str) -> list[Any]:
    """Processes that run a script, `ringup run` itself left out."""
    return [
        p
        for p in cluster.processes(host)
        if p.command and p.command[-1].endswith(script) and "--with" not in p.command
    ]


class PodsInLab:
    """`ringup run` on each host, with nothing but variables."""

    def __init__(self, cluster: Any, folder: Path, *words: str) -> None:
        self.cluster, self.folder, self.words = cluster, folder, words
        self.started: list[subprocess.Popen[str]] = []
        self.base = ["ringup", "run", "--backend", "gloo", "--nproc", "1", "--log-dir", str(folder)]

    def start(self, host: str, index: int, count: int, **variables: str) -> subprocess.Popen[str]:
        own = {"JOB_COMPLETION_INDEX": str(index), "RINGUP_NODES": str(count), "RINGUP_TOKEN": TOKEN}
        env = {**own, "RINGUP_HEAD": "node0", "RINGUP_WAIT_S": "90", **variables}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        child = self.cluster.popen(host, [*self.base, *self.words], env=env, cwd=JOBS, text=True, **pipes)
        self.started.append(child)
        return child

    def ends(self, *children: subprocess.Popen[str], timeout_s: float = 120) -> list[tuple[int, str]]:
        said = [child.communicate(timeout=timeout_s)[0] for child in children]
        return [(child.returncode, words) for child, words in zip(children, said, strict=True)]


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.torch
def test_three_hosts_without_ssh_train_whatever_order_they_start_in(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=3)
    for host in ("node0", "node1", "node2"):
        for one in cluster.everything(host):
            if any("sshd" in word for word in one.command[:1]):
                os.kill(one.pid, signal.SIGKILL)
    assert cluster.run("node0", ["ssh", "-o", "BatchMode=yes", "node1", "true"]).returncode == 255
    run = PodsInLab(cluster, folder / "logs", "--", "train.py", "--steps", "2")
    last = run.start("node2", 2, 3)
    middle = run.start("node1", 1, 3)
    assert middle.stdout is not None
    assert "waiting for the first pod at node0 port 29100" in middle.stdout.readline()
    head = run.start("node0", 0, 3)
    ended = run.ends(head, middle, last)
    assert [code for code, _ in ended] == [0, 0, 0], ended[0][1] + ended[1][1]
    assert ended[0][1].count("trained to the end") == 3
    assert "ended with 0" in ended[1][1] and "ended with 0" in ended[2][1]
    assert TOKEN not in "".join(words for _, words in ended)
    said = json.loads((folder / "logs" / "run.json").read_text())
    assert said["outcome"] == "ok" and TOKEN not in json.dumps(said)


@pytest.mark.lab
@pytest.mark.slow
def test_all_pods_end_with_the_failed_ranks_code_and_nothing_is_left(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=2)
    script = folder / "fails.py"
    script.write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1':\n    sys.exit(7)\ntime.sleep(600)\n"
    )
    run = PodsInLab(cluster, folder / "logs", "--with", "python", "--", str(script))
    ended = run.ends(run.start("node0", 0, 2), run.start("node1", 1, 2))
    assert [code for code, _ in ended] == [7, 7], ended
    for host in ("node0", "node1"):
        assert not ranks(cluster, host, "fails.py")


@pytest.mark.lab
@pytest.mark.slow
def test_when_the_first_pod_dies_the_others_leave_nothing(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=2)
    script = folder / "stays_long.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run = PodsInLab(cluster, folder / "logs", "--with", "python", "--", str(script))
    head, peer = run.start("node0", 0, 2), run.start("node1", 1, 2)
    wait_for(lambda: bool(ranks(cluster, "node1", "stays_long.py")), "its rank", 60)
    head.kill()
    ((code, said),) = run.ends(peer, timeout_s=60)
    assert code == 4 and "the first pod is gone" in said
    wait_for(lambda: not ranks(cluster, "node1", "stays_long.py"), "nothing left", 30)


@pytest.mark.lab
@pytest.mark.slow
def test_two_with_one_index_a_missing_one_and_two_first_pods_are_named(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=3)
    short = {"RINGUP_WAIT_S": "12"}
    run = PodsInLab(cluster, folder / "logs", "--", "train.py")
    head, one = run.start("node0", 0, 3, **short), run.start("node1", 1, 3, **short)
    wait_for(lambda: bool(cluster.processes("node1", "ru_T")), "its shells", 30)
    again = run.start("node2", 1, 3, **short)
    ended = run.ends(head, one, again)
    assert [code for code, _ in ended] == [4, 4, 4], ended
    assert "index 2 of 3 did not come within 12 s" in ended[0][1]
    assert "index 1 is taken by node1" in ended[0][1] and "index 1 is taken by node1" in ended[2][1]
    assert "did not come" in ended[1][1]

    wrong = run.start("node1", 0, 2, RINGUP_PORT="29101", **short)
    first = run.start("node0", 0, 2, RINGUP_PORT="29101", **short)
    ended = run.ends(wrong, first)
    assert ended[0][0] == 4 and "two pods say that they are index 0" in ended[0][1]


@pytest.mark.lab
@pytest.mark.slow
def test_a_pod_that_is_told_to_end_leaves_nothing_and_ends_the_run(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=2)
    script = folder / "stays_long.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run = PodsInLab(cluster, folder / "logs", "--with", "python", "--", str(script))
    head, peer = run.start("node0", 0, 2), run.start("node1", 1, 2)
    for host in ("node0", "node1"):
        wait_for(lambda h=host: bool(ranks(cluster, h, "stays_long.py")), "its rank", 60)
    peer.terminate()
    (first, said), (second, _) = run.ends(head, peer, timeout_s=90)
    assert second == 143 and first not in (0, 70), said
    for host in ("node0", "node1"):
        assert not ranks(cluster, host, "stays_long.py")


@pytest.mark.lab
@pytest.mark.slow
def test_check_is_led_by_the_first_pod_too(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=2)
    run = PodsInLab(cluster, folder / "logs")
    run.base = ["ringup", "check", "--backend", "gloo"]
    ended = run.ends(run.start("node0", 0, 2), run.start("node1", 1, 2))
    assert [code for code, _ in ended] == [0, 0], ended
    assert "node1" in ended[0][1] and "taking part" in ended[1][1]
