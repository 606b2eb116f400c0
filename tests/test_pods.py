"""N hosts without ssh run one command each: they meet, train, and a wrong token, index or count is named."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ringup.agent.guard import tls
from ringup.agent.guard.arrivals import CROWDED
from ringup.errors import NodesError
from ringup.hosts import pod as pod_module
from ringup.hosts.pod import Pod
from ringup.keys import Authority
from ringup.transport import Transport, client, pod_link, pod_peer, pods
from ringup.transport.pod_admission import PLACES, Admission, listen
from ringup.transport.pod_link import Hello, Link, Refusal, Refused, Welcome
from tests.guards import ROOM, free_port, wait_for

TOKEN = "7c1e94b05fa3d8264be0917ac35df862"
AUTHORITY = Authority(TOKEN.encode())
JOBS = Path(__file__).parent / "jobs"
GATHERED_S = 180
"""Bound of the pods' coming together; where some do not come on purpose, a test has its own."""


def place(environ: dict[str, str], hostname: str = "job-1") -> Pod | None:
    return pod_module.from_environment(environ, hostname)


IN_A_JOB = {"JOB_COMPLETION_INDEX": "1", "RINGUP_NODES": "2", "RINGUP_SERVICE": "svc", "RINGUP_TOKEN": TOKEN}


def test_an_indexed_job_tells_who_the_first_pod_is(tmp_path: Path) -> None:
    found = place(IN_A_JOB)
    assert found is not None
    assert (found.index, found.count, found.name, found.head) == (1, 2, "job-1.svc", "job-0.svc")
    assert (found.port, found.wait_s) == (29100, 300.0)
    assert TOKEN not in repr(found)
    assert place({}) is None
    (tmp_path / "token").write_text(TOKEN + "\n")
    by_file = {**IN_A_JOB, "RINGUP_TOKEN": "", "RINGUP_TOKEN_FILE": str(tmp_path / "token")}
    assert place(by_file) == found


@pytest.mark.parametrize("name", ["RINGUP_NODES", "RINGUP_SERVICE", "RINGUP_HEAD", "JOB_COMPLETION_INDEX"])
def test_one_of_several_pods_without_the_token_does_not_train_alone(name: str) -> None:
    with pytest.raises(NodesError, match="RINGUP_TOKEN") as raised:
        place({name: "1"})
    assert "--local 1" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RINGUP_TOKEN": "short"}, "too weak"),
        ({"RINGUP_TOKEN": "x" * 5000}, "longer than 4,096"),
        ({"RINGUP_TOKEN_FILE": "/x"}, "both set"),
        ({"RINGUP_TOKEN": "", "RINGUP_TOKEN_FILE": "/no/such"}, "cannot be read"),
        ({"RINGUP_NODES": "1"}, "index 1 of 1"),
        ({"RINGUP_NODES": "many"}, "RINGUP_NODES='many'"),
        ({"RINGUP_NODES": ""}, "RINGUP_NODES is not set"),
        ({"JOB_COMPLETION_INDEX": ""}, "RINGUP_INDEX is not set"),
        ({"RINGUP_INDEX": "0"}, "does not end in -0"),
        ({"RINGUP_HEAD": "a b;c"}, "not a host name"),
        ({"RINGUP_PORT": "99999"}, "RINGUP_PORT"),
    ],
)
def test_variables_that_do_not_fit_are_named(change: dict[str, str], words: str) -> None:
    with pytest.raises(NodesError, match=re.escape(words)) as caught:
        place({**IN_A_JOB, **change})
    assert TOKEN not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    "token",
    [
        "a" * 64,
        "0123456789abcdef" * 4,
        "0123456789abcdef-not-a-real-one",
        "98765432109876543210987654321098",
        "aabbccddeeff00112233445566778899",
        "ababababababababababababababababab12",
        "00000000000000000000000000000000ff",
        "deadbeef" * 8,
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "qwertyuiopasdfghjklzxcvbnm1234567890",
        "7c1e94b05fa3d8264be0917ac35df8",  # 120 bits
        "7C1E94B05FA3D8264BE0917AC35DF8",
        "550e8400-e29b-41d4-a716-446655440000",
        "84023718465920375610",
        "hQ7zK2mXw9LpR4vT",
        "password" * 8,
        "changeme-changeme-changeme-changeme",
        "correct horse battery staple",
        "thisisaverylongpassphraseforourcluster",
        "MyCompanyClusterToken2024Production!!",
        "Sup3rS3cr3tP@ssw0rd!Sup3rS3cr3tP@ssw0rd!",
        "hunter2hunter3hunter4hunter5hunter6",
    ],
)
def test_a_token_that_can_be_guessed_is_refused_and_the_way_to_make_one_shown(token: str) -> None:
    with pytest.raises(NodesError, match=r"too weak: about \d+ bits of strength, it needs 128") as caught:
        place({**IN_A_JOB, "RINGUP_TOKEN": token})
    assert "openssl rand -hex 32" in caught.value.hint
    assert token not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize(
    "token",
    [
        "7c1e94b05fa3d8264be0917ac35df862",  # openssl rand -hex 16
        "b7f9c2e81d4a6035c8e2917fb40d53a69e1c7b28f05d4a63c91e8b7260fd345a",
        "mHq9_Zr3VtK0yXc7LwB2dQ",  # secrets.token_urlsafe(16)
        "N0v4rXbJ8yUqKz5TgWmE1cPfDh7LsAoRi2Vx9nB6jYQ",
        "k8Xw3Lq0ZrT5vB9nYc2MhA==",
        "x7bq2vkm9dzt4wlsr8gcnf5jpx6hv2kd",
        "rusty anchor violet comet barrel thunder maple quartz hollow signal ember pilot",
    ],
)
def test_a_token_from_a_generator_is_taken(token: str) -> None:
    assert pod_module.strength_bits(token) >= 128
    assert place({**IN_A_JOB, "RINGUP_TOKEN": token}) is not None


def a_pod(index: int, port: int, **changes: Any) -> Pod:
    fields = {"index": index, "count": 2, "name": f"pod{index}", "head": "127.0.0.1", "port": port}
    return Pod(**{**fields, "wait_s": float(GATHERED_S), "token": TOKEN.encode(), **changes})


class Gathered:
    """A first pod that waits in a thread."""

    def __init__(self, **changes: Any) -> None:
        self.port, self.said = free_port(), []
        self.found: pods.Pods | None = None
        self.error: NodesError | None = None
        self.thread = threading.Thread(target=self._gather, args=(a_pod(0, self.port, **changes),))
        self.thread.start()
        wait_for(lambda: _listens(self.port), "the listener", 60)

    def _gather(self, pod: Pod) -> None:
        try:
            self.found = pods.gather(pod, self.said.append)
        except NodesError as error:
            self.error = error

    def pods(self) -> pods.Pods:
        """All pods, once they have come."""
        self.thread.join(GATHERED_S + 20)
        assert self.found is not None, (self.error, self.said)
        return self.found

    def heard(self, words: str) -> bool:
        return any(words in line for line in self.said)


class OtherPod:
    """`ringup check` in a process that is told by variables that it is another pod."""

    def __init__(self, port: int, **changes: str) -> None:
        own = {"RINGUP_INDEX": "1", "RINGUP_NODES": "2", "RINGUP_HEAD": "127.0.0.1", "RINGUP_PORT": str(port)}
        env = {**os.environ, **own, "RINGUP_TOKEN": TOKEN, "RINGUP_WAIT_S": str(GATHERED_S), **changes}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ringup", "check"], env=env, stderr=subprocess.PIPE, text=True
        )

    def says(self, words: str) -> None:
        """Wait until it has said so."""
        assert self.process.stderr is not None
        assert any(words in line for line in self.process.stderr)

    def ends(self) -> tuple[int, str]:
        said = self.process.communicate(timeout=GATHERED_S)[1]
        return self.process.returncode, said


@pytest.fixture
def other_pod() -> Iterator[Callable[..., OtherPod]]:
    """Makes pods in processes, which are ended with the test."""
    made: list[OtherPod] = []

    def make(port: int, **changes: str) -> OtherPod:
        made.append(OtherPod(port, **changes))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.wait()


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True


STRANGER = "ab5d97c3e1f0428896d4b7a2c0e35f1d"


@pytest.mark.slow
def test_a_pod_with_another_token_is_named_on_both_sides(other_pod: Callable[..., OtherPod]) -> None:
    head = Gathered()
    with pytest.raises(NodesError, match=rf"no first pod .* within {ROOM}.0 s: it has another token"):
        stranger = a_pod(1, head.port, token=STRANGER.encode(), wait_s=float(ROOM))
        pod_peer.serve(stranger, lambda _words: None)
    other_pod(head.port)
    head.pods().finish(0)
    named = [line for line in head.said if line.startswith("turned away")]
    assert named[0] == "turned away 127.0.0.1: it has another token, or is not ringup"
    # Once when it came first, and once at the end how often it came.
    assert len(named) <= 2 and all(line.endswith(named[0][-30:]) for line in named)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": 3}, "it counts 3 pods, the head 2"),
        ({"index": 0}, "index 0 is taken"),
        ({"index": 7}, "there is no index 7 of 2"),
    ],
)
def test_a_pod_that_does_not_fit_is_turned_away_with_the_reason(
    changes: dict[str, Any], words: str, other_pod: Callable[..., OtherPod]
) -> None:
    head = Gathered()
    index = changes.pop("index", 1)
    with pytest.raises(NodesError, match=re.escape(words)):
        pod_peer.serve(a_pod(index, head.port, **changes), lambda _words: None)
    other_pod(head.port)
    head.pods().finish(0)
    assert head.heard(f"turned away 127.0.0.1 (pod-{index}): ") and head.heard(words)


def test_a_head_that_waited_in_vain_names_who_is_missing_and_who_was_turned_away() -> None:
    said: list[str] = []
    port = free_port()
    gathering = pods._Gathering(a_pod(0, port, count=3, wait_s=0.0), said.append)
    try:
        (stranger,) = crowd(port, 1)
        stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        wait_for(lambda: gathering._admission.turn(0.1) or gathering._admission.strangers, "it to come", 60)
        stranger.close()
        with pytest.raises(NodesError) as caught:
            gathering.wait()
    finally:
        gathering.close()
    lines = str(caught.value).split("\n")
    assert lines[0] == "indices 1, 2 of 3 did not come within 0 ms"
    assert lines[1].startswith("turned away 127.0.0.1: it does not speak TLS 1.3")


# -- strangers ---------------------------------------------------------------------------------


def client_hello() -> bytes:
    """How a TLS connection begins, from somebody who holds no token."""
    said = ssl.MemoryBIO()
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with contextlib.suppress(ssl.SSLWantReadError):
        stranger.wrap_bio(ssl.MemoryBIO(), said, server_hostname="head").do_handshake()
    return said.read()


def crowd(port: int, count: int, source: str = "127.0.0.1") -> list[socket.socket]:
    """So many connections that say nothing."""
    return [
        socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
        for _ in range(count)
    ]


@pytest.mark.slow
def test_seventy_connections_that_dribble_do_not_keep_a_pod_out(other_pod: Callable[..., OtherPod]) -> None:
    head = Gathered()
    dribblers = crowd(head.port, 70)
    is_over = threading.Event()

    def dribble() -> None:
        for byte in client_hello():
            for one in dribblers:
                with contextlib.suppress(OSError):
                    one.send(bytes([byte]))
            if is_over.wait(1.0):
                return

    thread = threading.Thread(target=dribble)
    thread.start()
    try:
        other = other_pod(head.port)
        head.pods().finish(3)
        assert other.ends()[0] == 3
    finally:
        is_over.set()
        thread.join()
        for one in dribblers:
            one.close()


@pytest.mark.slow
def test_a_dribbling_connection_is_ended_after_its_time_and_named() -> None:
    said: list[str] = []
    with an_admission(said) as (admission, port, _):
        (dribbler,) = crowd(port, 1)
        dribbler.setblocking(False)
        hello, begun, sent = client_hello(), time.monotonic(), 0

        def is_ended() -> bool:
            nonlocal sent
            admission.turn(0.2)
            due = int(4 * (time.monotonic() - begun))  # 240 of 500 bytes within the bound below
            try:
                sent += dribbler.send(hello[sent:due])
                return dribbler.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        wait_for(is_ended, "the end of the connection", 60)
        dribbler.close()
    assert said == ["turned away 127.0.0.1: not authenticated within 10 s"]


@pytest.mark.slow
def test_a_thousand_connections_at_once_do_not_keep_a_pod_out(other_pod: Callable[..., OtherPod]) -> None:
    client.allow_open_files(3000)
    head = Gathered()
    other = other_pod(head.port)
    strangers = crowd(head.port, 700) + crowd(head.port, 300, "127.0.0.9")
    try:
        head.pods().finish(3)
        assert other.ends()[0] == 3
    finally:
        for one in strangers:
            one.close()
    assert sum("too many unauthenticated" in line for line in head.said) <= 4


@contextlib.contextmanager
def an_admission(said: list[str]) -> Iterator[tuple[Admission, int, list[Hello]]]:
    """One under its own selector, its port, and the hellos of those that were let in."""
    hellos: list[Hello] = []
    port = free_port()
    context = pod_link.server_context(AUTHORITY)

    def on_hello(connection: Link, _address: str, hello: Hello) -> None:
        hellos.append(hello)
        connection.say(Welcome())

    with selectors.DefaultSelector() as selector:
        admission = Admission(listen(port), context, selector, on_hello, said.append)
        yield admission, port, hellos
        admission.close()


def test_an_address_that_takes_every_place_crowds_out_itself_alone() -> None:
    said: list[str] = []
    with an_admission(said) as (admission, port, _):
        (honest,) = crowd(port, 1)
        strangers = crowd(port, PLACES + 50, "127.0.0.9")
        crowded = ("127.0.0.9", CROWDED)
        wait_for(lambda: admission.turn(0.1) or admission.strangers[crowded] == 51, "51 turned away", 60)
        assert said == [f"turned away 127.0.0.9: {CROWDED}"]
        assert admission.turned_away() == [f"turned away 127.0.0.9 51 times: {CROWDED}"]
        honest.setblocking(False)
        with pytest.raises(BlockingIOError):
            honest.recv(1)
        for one in (honest, *strangers):
            one.close()


HELLO = Hello(2, 1, 2, "pod1", "an-instance")


def dialled(admission: Admission, port: int, hello: Hello, index: int = 1) -> Link | Exception:
    """What comes of a pod's dial, the admission being turned beside it."""
    came: list[Link | Exception] = []

    def dial() -> None:
        try:
            came.append(pod_link.dial(("127.0.0.1", port), pod_link.client_context(AUTHORITY, index), hello))
        except (OSError, Refused) as error:
            came.append(error)

    thread = threading.Thread(target=dial)
    thread.start()
    wait_for(lambda: admission.turn(0.1) or came, "an answer", 60)
    thread.join()
    return came[0]


def test_a_connection_whose_shell_cannot_start_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with an_admission([]) as (admission, port, _), selectors.DefaultSelector() as selector:
        link = dialled(admission, port, HELLO)
        assert isinstance(link, Link)
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(FileNotFoundError):
            pod_peer._Shell(link, "a-token", selector)
        assert link._tls.fileno() == -1 and not selector.get_map()


def test_a_hello_with_another_index_than_its_certificate_is_refused() -> None:
    said: list[str] = []
    with an_admission(said) as (admission, port, hellos):
        refused = dialled(admission, port, HELLO, index=2)
        assert isinstance(refused, Refused)
        assert str(refused) == "it claims index 1 with the certificate of pod-2"
        admitted = dialled(admission, port, HELLO)
        assert isinstance(admitted, Link)
        admitted.close()
    assert hellos == [HELLO]
    assert said == [
        "turned away 127.0.0.1 (pod-2): it claims index 1 with the certificate of pod-2",
    ]


@pytest.mark.parametrize(
    "frame",
    [
        b"[" * 4000,
        b'{"type":"hello","version":' + b"[" * 4000,
        b'{"type":"hello","x":' + b'{"x":' * 700,
        b'{"type":"hello"}',
        b"\xff\xfe",
        b'{"type":"end","code":0}',
        msgspec.json.encode({**msgspec.to_builtins(HELLO), "source": "import os"}),
        msgspec.json.encode({**msgspec.to_builtins(HELLO), "name": "x" * 3000}),
        msgspec.json.encode({**msgspec.to_builtins(HELLO), "index": True}),
        b" " * (1 << 20),
    ],
)
def test_a_message_of_another_form_is_refused_and_the_next_pod_comes_in(frame: bytes) -> None:
    said: list[str] = []
    with an_admission(said) as (admission, port, hellos):
        heard: list[Any] = []
        with selectors.DefaultSelector() as selector:
            connection = Link(
                socket.create_connection(("127.0.0.1", port)),
                pod_link.client_context(AUTHORITY, 1),
                demands=tls.HEAD,
            )
            connection.attach(selector, lambda *frame: heard.append(frame), heard.append)
            connection.send(pod_link.MESSAGE, frame)
            wait_for(
                lambda: admission.turn(0.0) or pod_link.turn(selector, 0.1) or heard, "the end or a word", 60
            )
            connection.close()
        assert not hellos
        admitted = dialled(admission, port, HELLO)
        assert isinstance(admitted, Link)
        admitted.close()


@pytest.mark.parametrize("first", [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 600, b'{"version":1,"nonce":"0"}\n'])
def test_who_does_not_speak_tls_is_named_and_told_nothing(first: bytes) -> None:
    said: list[str] = []
    with an_admission(said) as (admission, port, _):
        (stranger,) = crowd(port, 1)
        stranger.sendall(first)
        wait_for(lambda: admission.turn(0.1) or said, "a line", 60)
        with contextlib.suppress(ConnectionError):
            assert len(stranger.recv(100)) <= 7  # an alert
        stranger.close()
    assert said[0].startswith("turned away 127.0.0.1: it does not speak TLS 1.3 as a pod does")


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
def test_a_client_without_a_certificate_or_with_an_older_tls_is_turned_away(newest: ssl.TLSVersion) -> None:
    said: list[str] = []
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode, stranger.maximum_version = False, ssl.CERT_NONE, newest
    with an_admission(said) as (admission, port, hellos):
        (connection,) = crowd(port, 1)

        def shake() -> None:
            with contextlib.suppress(OSError), stranger.wrap_socket(connection) as secured:
                secured.recv(1)

        thread = threading.Thread(target=shake)
        thread.start()
        wait_for(lambda: admission.turn(0.1) or said, "a line", 60)
        thread.join()
    assert "it does not speak TLS 1.3 as a pod does" in said[0] and not hellos


@pytest.mark.slow
def test_what_the_head_says_is_shown_without_its_control_characters() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, selectors.DefaultSelector() as selector:
        port = server.getsockname()[1]

        def refuse() -> None:
            heard: list[Any] = []
            connection = Link(server.accept()[0], pod_link.server_context(AUTHORITY))
            connection.attach(selector, lambda *frame: heard.append(frame), heard.append)
            wait_for(lambda: pod_link.turn(selector, 0.1) or heard, "the hello", 60)
            connection.say(Refusal("no\x1b[2J\u202e" + "x" * 3000))
            connection.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        with pytest.raises(NodesError) as caught:
            pod_peer.serve(a_pod(1, port), lambda _words: None)
        thread.join()
    assert "no\\x1b[2J\\u202e" in str(caught.value) and len(str(caught.value)) < 500


# -- in the middle -----------------------------------------------------------------------------


class Relay:
    """Stands between a pod and the head, keeps every byte, and may add bytes of its own."""

    def __init__(self, port: int) -> None:
        self.head = port
        self.captured = bytearray()
        self.to_head: list[bytearray] = []
        self.pods: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                pod = self._server.accept()[0]
                try:
                    head = socket.create_connection(("127.0.0.1", self.head))
                except OSError:
                    pod.close()
                    continue
                self.pods.append(pod)
                self.to_head.append(bytearray())
                for one, other, copy in ((pod, head, self.to_head[-1]), (head, pod, bytearray())):
                    threading.Thread(target=self._pass_on, args=(one, other, copy), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket, copy: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self.captured += data
                copy += data
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.close()
        for pod in self.pods:
            pod.close()


@pytest.fixture
def relay() -> Iterator[Callable[[int], Relay]]:
    made: list[Relay] = []

    def make(port: int) -> Relay:
        made.append(Relay(port))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.slow
def test_a_relay_without_the_token_reads_no_secret_and_runs_nothing(
    other_pod: Callable[..., OtherPod], relay: Callable[[int], Relay], tmp_path: Path
) -> None:
    head = Gathered()
    middle = relay(head.port)
    other = other_pod(middle.port, PLANTED="secret-of-the-environment")
    found = head.pods()
    with Transport(found.hosts, pods=found) as transport:
        name = found.hosts[1].name
        answer = transport.ask({name: "echo secret-of-the-command; echo $PLANTED"}, deadline_s=60)[name]
        assert answer.stdout == b"secret-of-the-command\nsecret-of-the-environment\n"
        seen = bytes(middle.captured)
        assert len(seen) > 1000
        for secret in (b"secret-of", TOKEN.encode(), b"PLANTED", b"printf"):
            assert secret not in seen
        # It knows how a request looks, and would need the loop's token, which once went in clear.
        loops = set(re.findall(rb'"loop":"([0-9a-f]{32})"', seen)) or {b"0" * 32}
        script = f"touch {tmp_path}/planted".encode()
        for loop in loops:
            request = b"\n%s ask 1 %d\n%s" % (loop, len(script), script)
            for frame in (request, struct.pack(">BI", 0, len(request)) + request):
                for pod in middle.pods:
                    with contextlib.suppress(OSError):
                        pod.sendall(frame)
    code, said = other.ends()
    assert not [*tmp_path.iterdir()]
    assert code == 4 and "the first pod is gone" in said


@pytest.mark.slow
def test_a_recording_played_again_opens_nothing(
    other_pod: Callable[..., OtherPod], relay: Callable[[int], Relay]
) -> None:
    head = Gathered(count=3)
    middle = relay(head.port)
    other_pod(middle.port, RINGUP_NODES="3").says("taking part")
    assert len(middle.to_head) == 1 + pods.SHELLS
    for recording in [bytes(one) for one in middle.to_head]:
        with socket.create_connection(("127.0.0.1", head.port), timeout=60) as again:
            again.sendall(recording)
            with contextlib.suppress(ConnectionError):
                while again.recv(4096):
                    pass
    assert not head.heard("index 1 is taken"), "it was taken for a pod"
    assert head.heard("turned away 127.0.0.1: it does not speak TLS 1.3 as a pod does")
    other_pod(head.port, RINGUP_NODES="3", RINGUP_INDEX="2")
    assert len(head.pods().hosts) == 3
    head.pods().finish(0)


@pytest.mark.slow
def test_a_false_head_gets_no_shell_and_cannot_send_a_pod_away(other_pod: Callable[..., OtherPod]) -> None:
    false = Authority(STRANGER.encode())
    hellos: list[Hello] = []
    port, said = free_port(), []
    with selectors.DefaultSelector() as selector:
        context = pod_link.server_context(false)
        context.verify_mode = ssl.CERT_NONE
        admission = Admission(
            listen(port), context, selector, lambda *found: hellos.append(found[2]), said.append
        )
        other = other_pod(port)
        wait_for(lambda: admission.turn(0.1) or admission.strangers.total() > 1, "a second try", 60)
        admission.close()
    assert not hellos
    head = Gathered.__new__(Gathered)
    head.port, head.said, head.found, head.error = port, [], None, None
    head.thread = threading.Thread(target=head._gather, args=(a_pod(0, port),))
    head.thread.start()
    head.pods().finish(3)
    code, words = other.ends()
    assert code == 3 and "it has another token" in words


# -- shells ------------------------------------------------------------------------------------


class Recorder:
    """Listens to a program."""

    def __init__(self) -> None:
        self.out, self.err = bytearray(), bytearray()
        self.end: tuple[int | None, Any] | None = None

    def on_output(self, data: bytes) -> None:
        self.out += data

    def on_errors(self, data: bytes) -> None:
        self.err += data

    def on_exit(self, code: int | None, error: Any) -> None:
        self.end = (code, error)


def turned_until(transport: Transport, what: Callable[[], Any]) -> None:
    """Without a pause between turns, of which much output takes many."""
    until = time.monotonic() + 60
    while not what():
        assert time.monotonic() < until, "not within 60 s"
        transport.turn(0.1)


ECHO = """
import sys
data = sys.stdin.buffer.read()
sys.stderr.write("read to the end\\n")
sys.stdout.buffer.write(data * 3)
"""


@pytest.mark.slow
def test_a_program_gets_end_of_file_and_its_output_comes_whole(other_pod: Callable[..., OtherPod]) -> None:
    head = Gathered()
    other = other_pod(head.port)
    found = head.pods()
    name, heard = found.hosts[1].name, Recorder()
    sent = os.urandom(3 << 20)
    with Transport(found.hosts, pods=found) as transport:
        transport.interpreters[name] = sys.executable
        channel = transport.start(name, ECHO, (), heard)
        channel.write(sent)
        channel.close_stdin()
        turned_until(transport, lambda: heard.end)
        assert heard.end == (0, None) and bytes(heard.err) == b"read to the end\n"
        assert bytes(heard.out) == sent * 3
        transport.reopen(name)
        answer = transport.ask({name: "echo fresh; exit 3"}, deadline_s=60)[name]
        assert (answer.stdout, answer.code) == (b"fresh\n", 3)
    found.finish(6)
    assert other.ends()[0] == 6


@pytest.mark.slow
def test_a_program_whose_head_reads_nothing_waits_and_the_pod_stays_small(
    other_pod: Callable[..., OtherPod],
) -> None:
    head = Gathered()
    other = other_pod(head.port)
    found = head.pods()
    name, heard = found.hosts[1].name, Recorder()
    loud = "import os\nfor _ in range(1 << 10): os.write(1, b'x' * (1 << 16))\n"
    with Transport(found.hosts, pods=found) as transport:
        transport.interpreters[name] = sys.executable
        transport.start(name, loud, (), heard)
        turned_until(transport, lambda: heard.out)
        # The head stops here until the pod's end waits, too.
        stalled = -1

        def is_stalled() -> bool:
            nonlocal stalled
            last, stalled = stalled, written_bytes(other.process.pid)
            threading.Event().wait(0.5)
            return last == stalled

        wait_for(is_stalled, "the pod to wait", 60)
        assert resident_mib(other.process.pid) < 200
        turned_until(transport, lambda: heard.end)
        assert len(heard.out) == 64 << 20
    found.finish(0)
    assert other.ends()[0] == 0


def written_bytes(pid: int) -> int:
    """What a process has written so far."""
    return int(re.search(r"wchar: (\d+)", Path(f"/proc/{pid}/io").read_text())[1])  # type: ignore[index]


def resident_mib(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) >> 10  # type: ignore[index]


def test_without_a_token_nothing_of_tls_is_loaded() -> None:
    code = "import sys, ringup.transport.connections as _; print({'ssl', 'cryptography'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


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
        env = {**own, "RINGUP_HEAD": "node0", "RINGUP_WAIT_S": str(GATHERED_S), **variables}
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        child = self.cluster.popen(host, [*self.base, *self.words], env=env, cwd=JOBS, text=True, **pipes)
        self.started.append(child)
        return child

    def ends(self, *children: subprocess.Popen[str], timeout_s: float = 300) -> list[tuple[int, str]]:
        said = [child.communicate(timeout=timeout_s)[0] for child in children]
        return [(child.returncode, words) for child, words in zip(children, said, strict=True)]


@pytest.mark.smoke
@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.torch
def test_three_hosts_without_ssh_train_whatever_order_they_start_in(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=3)
    for host in ("node0", "node1", "node2"):
        for one in cluster.everything(host):
            if any("sshd" in word for word in one.command[:1]):
                with contextlib.suppress(ProcessLookupError):  # a session's ends with its client
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
    wait_for(lambda: bool(ranks(cluster, "node1", "stays_long.py")), "its rank", GATHERED_S)
    head.kill()
    ((code, said),) = run.ends(peer)
    assert code == 4 and "the first pod is gone" in said
    wait_for(lambda: not ranks(cluster, "node1", "stays_long.py"), "nothing left")


@pytest.mark.lab
@pytest.mark.slow
def test_two_with_one_index_a_missing_one_and_two_first_pods_are_named(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=3)
    short = {"RINGUP_WAIT_S": "30"}
    run = PodsInLab(cluster, folder / "logs", "--", "train.py")
    head, one = run.start("node0", 0, 3, **short), run.start("node1", 1, 3, **short)
    wait_for(lambda: bool(cluster.processes("node1", "ru_T")), "its shells")
    again = run.start("node2", 1, 3, **short)
    ended = run.ends(head, one, again)
    assert [code for code, _ in ended] == [4, 4, 4], ended
    assert "index 2 of 3 did not come within 30 s" in ended[0][1]
    assert "index 1 is taken by node1" in ended[0][1] and "index 1 is taken by node1" in ended[2][1]
    assert "did not come" in ended[1][1]

    wrong = run.start("node1", 0, 2, RINGUP_PORT="29101", **short)
    first = run.start("node0", 0, 2, RINGUP_PORT="29101", **short)
    ended = run.ends(wrong, first)
    assert ended[0][0] == 4 and "two pods claim index 0" in ended[0][1]


@pytest.mark.lab
@pytest.mark.slow
def test_a_pod_that_is_told_to_end_leaves_nothing_and_ends_the_run(lab: Any, folder: Path) -> None:
    cluster = lab(hosts=2)
    script = folder / "stays_long.py"
    script.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    run = PodsInLab(cluster, folder / "logs", "--with", "python", "--", str(script))
    head, peer = run.start("node0", 0, 2), run.start("node1", 1, 2)
    for host in ("node0", "node1"):
        wait_for(lambda h=host: bool(ranks(cluster, h, "stays_long.py")), "its rank", GATHERED_S)
    peer.terminate()
    (first, said), (second, _) = run.ends(head, peer)
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
