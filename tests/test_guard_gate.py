"""The guards of a detached run meet over a hostile network: who is let in, and what a listener learns."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringup.agent.guard import arrivals, link, tls
from ringup.agent.guard import gate as gates
from ringup.keys import Authority, Identity
from tests.guards import GuardedNode, alive, tagged, wait_for

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="nodes are Linux"), pytest.mark.slow]

SECRET = "hf_" + "s3cr3t" * 6
OLDEST = sorted(str(p) for p in Path(sys.base_prefix).parent.glob("3.8*/bin/python"))  # pyenv's layout
WAITS = ["sh", "-c", f"echo {SECRET}; while [ ! -e GO ]; do sleep 0.05; done; echo done"]


def host(node: GuardedNode, identity: Identity, *nodes: int) -> int:
    """Have a guard listen for others: its port."""
    node.tell(
        {
            "type": "host",
            "address": "127.0.0.1",
            "ports": [],
            "nodes": [0, *nodes],
            "identity": dataclasses.asdict(identity),
        }
    )
    answer = node.wait("hosting")
    assert answer["problem"] == ""
    return int(answer["port"])


def join(node: GuardedNode, identity: Identity, port: int) -> str:
    """Have a guard join: why it could not, "" when it is in."""
    node.tell(
        {"type": "join", "address": "127.0.0.1", "port": port, "identity": dataclasses.asdict(identity)}
    )
    return str(node.wait("joined-head")["problem"])


def is_complete(head: GuardedNode) -> bool:
    head.tell({"type": "take-over"})
    return head.wait("detached")["problem"] == ""


class Relay:
    """A man in the middle who hands everything on, and keeps a copy."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.to_head = self.to_node = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            node = self.listener.accept()[0]
            head = socket.create_connection(("127.0.0.1", self.target))
            while True:
                for one in select.select([node, head], [], [])[0]:
                    data = one.recv(65536)
                    if not data:
                        node.close()
                        head.close()
                        return
                    if one is node:
                        self.to_head += data
                        head.sendall(data)
                    else:
                        self.to_node += data
                        node.sendall(data)


class Impostor:
    """Answers in the head's place, by TLS with an identity of its own; keeps what it was told."""

    def __init__(self, identity: Identity, folder: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        (folder / "impostor.pem").write_text(identity.key + identity.certificate)
        self.context.load_cert_chain(folder / "impostor.pem")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.told = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        look = {"type": "look", "number": 1, "mode": "count", "source": "open('pwned', 'w')"}
        with contextlib.suppress(OSError):
            while True:
                connection = self.listener.accept()[0]
                with (
                    contextlib.suppress(OSError),
                    self.context.wrap_socket(connection, server_side=True) as one,
                ):
                    one.sendall(b'{"type":"welcome"}\n{"type":"leave"}\n{"type":"go"}\n')
                    one.sendall(json.dumps(look).encode() + b"\n")
                    while data := one.recv(65536):
                        self.told += data


@pytest.fixture
def head(tmp_path: Path) -> Iterator[GuardedNode]:
    with GuardedNode(tmp_path, WAITS, node=0) as node:
        yield node


@pytest.fixture
def other(tmp_path: Path) -> Iterator[GuardedNode]:
    with GuardedNode(tmp_path, WAITS, node=1) as node:
        yield node


def finish_run(tmp_path: Path, head: GuardedNode, other: GuardedNode) -> None:
    """The jobs run to their end, without a launcher."""
    wait_for(lambda: tagged(head.run_id) and tagged(other.run_id), "the job runs on both nodes")
    (tmp_path / "GO").touch()
    wait_for(lambda: not alive(head.process.pid) and not alive(other.process.pid), "the guards have ended")


def test_a_relay_between_node_and_head_reads_nothing_and_cannot_replay_it(
    tmp_path: Path, head: GuardedNode, other: GuardedNode
) -> None:
    authority = Authority()
    identity = authority.issue("head")
    relay = Relay(host(head, identity, 1))
    assert join(other, authority.issue("node-1"), relay.port) == ""
    assert is_complete(head)
    finish_run(tmp_path, head, other)
    journal = Path(str(head.run_dir) + ".journal")
    kinds = [json.loads(line)["type"] for line in (journal / "control").read_bytes().splitlines()]
    assert kinds.count("ended") == 2 and kinds.count("finished") == 1
    captured = relay.to_head + relay.to_node
    assert len(captured) > 3000, "the whole conversation went through the relay"
    for words in (SECRET, "type", "beat", "ended", "acknowledged", "node-1", "PRIVATE", head.run_id):
        assert words.encode() not in captured
    with GuardedNode(tmp_path, WAITS, node=0) as again:
        with socket.create_connection(("127.0.0.1", host(again, identity, 1))) as replay:
            replay.settimeout(60)
            replay.sendall(relay.to_head)
            with contextlib.suppress(ConnectionResetError):
                while replay.recv(65536):
                    pass  # until it is turned away
        assert not is_complete(again)
        assert alive(again.process.pid)


@pytest.mark.skipif(not OLDEST, reason="no Python 3.8 here")
@pytest.mark.parametrize("is_head", [True, False])
def test_the_oldest_python_meets_this_one(tmp_path: Path, is_head: bool) -> None:
    pythons = [*OLDEST[:1], sys.executable] if is_head else [sys.executable, *OLDEST[:1]]
    authority = Authority()
    with (
        GuardedNode(tmp_path, WAITS, node=0, python=pythons[0]) as head,
        GuardedNode(tmp_path, WAITS, node=1, python=pythons[1]) as other,
    ):
        assert join(other, authority.issue("node-1"), host(head, authority.issue("head"), 1)) == ""
        assert is_complete(head)
        finish_run(tmp_path, head, other)


@pytest.mark.parametrize("whose", ["another run's head", "this run's node"])
def test_an_impostor_of_the_head_is_told_nothing_and_named_with_both_addresses(
    tmp_path: Path, other: GuardedNode, whose: str
) -> None:
    authority = Authority()
    identity = Authority().issue("head") if whose == "another run's head" else authority.issue("node-2")
    impostor = Impostor(identity, tmp_path)
    problem = join(other, authority.issue("node-1"), impostor.port)
    assert f"127.0.0.1 port {impostor.port} is not the head of this run" in problem
    assert "This node's address is 127.0.0.1" in problem
    other.tell({"type": "beat", "sent": 1.0})
    other.wait("beat")
    assert impostor.told == b""
    assert not other.get("started") and not other.get("look")


def test_something_else_that_listens_at_the_heads_port_is_not_taken_for_the_head(other: GuardedNode) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as one:
            one.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n" + b"welcome\n" * 10)
            one.recv(65536)

    threading.Thread(target=answer, daemon=True).start()
    problem = join(other, Authority().issue("node-1"), listener.getsockname()[1])
    assert "is not the head of this run" in problem


def test_a_head_that_is_not_there_is_named_with_both_addresses(other: GuardedNode) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    problem = join(other, Authority().issue("node-1"), port)
    assert problem.endswith(f"127.0.0.1 port {port} from 127.0.0.1: Connection refused")


def client_context(folder: Path, identity: Identity | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if identity:
        (folder / "client.pem").write_text(identity.key + identity.certificate)
        context.load_cert_chain(folder / "client.pem")
    return context


def is_turned_away(context: ssl.SSLContext, port: int, words: bytes = b"") -> bool:
    """Whether the head closes the connection without a message."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        try:
            with context.wrap_socket(plain) as one:
                one.sendall(words)
                return one.recv(100) == b""
        except (ssl.SSLError, ConnectionError):
            return True


def test_only_a_node_of_this_run_that_is_awaited_is_let_in(tmp_path: Path, head: GuardedNode) -> None:
    authority = Authority()
    port = host(head, authority.issue("head"), 1)
    joined = b'{"type":"left"}\n'
    for identity in (
        None,
        Authority().issue("node-1"),
        authority.issue("node-7"),
        authority.issue("node-0"),
        authority.issue("head"),
        authority.issue("node--1"),
        authority.issue("node-1x"),
    ):
        assert is_turned_away(client_context(tmp_path, identity), port, joined)
    old = client_context(tmp_path, authority.issue("node-1"))
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert is_turned_away(old, port, joined)
    assert not is_complete(head)


HALF_HELLO = bytes.fromhex("160301020001") + b"\0" * 100
GARBAGE = (
    b"x\n",
    b"[" * 200_000 + b"\n",
    b'{"token":"guess","node":1}\n',
    b'{"type":"end"}\n' * 1000,
    b"\x16\x03\x01\xff\xff" + b"y" * 200_000,
    HALF_HELLO,
    b"\0" * 9000,
)


@pytest.mark.parametrize("words", [b"", *GARBAGE], ids=lambda words: repr(words[:12]))
def test_a_stranger_cannot_abort_a_detached_start(
    tmp_path: Path, head: GuardedNode, other: GuardedNode, words: bytes
) -> None:
    authority = Authority()
    port = host(head, authority.issue("head"), 1)
    strangers = []
    for _ in range(20):
        strangers.append(socket.create_connection(("127.0.0.1", port), timeout=60))
        with contextlib.suppress(ConnectionError):
            strangers[-1].sendall(words)
    assert join(other, authority.issue("node-1"), port) == ""
    assert is_complete(head)
    finish_run(tmp_path, head, other)


def test_a_thousand_silent_connections_do_not_keep_a_node_out(
    tmp_path: Path, head: GuardedNode, other: GuardedNode
) -> None:
    authority = Authority()
    port = host(head, authority.issue("head"), 1)
    strangers = []
    for _ in range(1000):
        strangers.append(socket.socket())
        strangers[-1].setblocking(False)
        strangers[-1].connect_ex(("127.0.0.1", port))
    assert join(other, authority.issue("node-1"), port) == ""
    assert is_complete(head)
    for stranger in strangers:
        stranger.close()
    finish_run(tmp_path, head, other)


def test_a_python_without_tls_is_named_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssl.py").write_text("raise ImportError('no libssl.so.3')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    identity = dataclasses.asdict(Authority().issue("head"))
    with GuardedNode(tmp_path, ["true"]) as alone:
        alone.tell({"type": "host", "address": "127.0.0.1", "ports": [], "nodes": [0]})
        assert alone.wait("hosting")["problem"] == "", "one node needs none"
        assert is_complete(alone)
    with GuardedNode(tmp_path, ["true"]) as node:
        node.tell(
            {"type": "host", "address": "127.0.0.1", "ports": [], "nodes": [0, 1], "identity": identity}
        )
        problem = node.wait("hosting")["problem"]
        assert "has no ssl module" in problem and sys.executable in problem and "--python" in problem
        node.tell({"type": "join", "address": "127.0.0.1", "port": 1, "identity": identity})
        assert node.wait("joined-head")["problem"] == problem


# -- the gate by itself, with a clock of ours ------------------------------------------------


def open_gate(welcome: Callable[..., object]) -> tuple[Any, Any, Authority]:
    authority = Authority()
    identity = dataclasses.asdict(authority.issue("head"))
    loop = link.Loop()
    message = {"address": "127.0.0.1", "ports": [], "identity": identity}
    return loop, gates.Gate(loop, message, {1}, welcome), authority


def test_who_sends_a_byte_now_and_then_is_turned_away_in_time() -> None:
    loop, gate, _ = open_gate(lambda *_: None)
    with socket.create_connection(("127.0.0.1", gate.port), timeout=60) as stranger:
        for byte in HALF_HELLO[:8]:
            stranger.sendall(bytes([byte]))
            loop.turn(60)
        assert len(gate.arrivals.links) == 1
        gate.on_time(time.monotonic() + arrivals.HANDSHAKE_S + 1)
        assert not gate.arrivals.links
        assert stranger.recv(10) == b""


def test_an_address_with_many_connections_takes_no_place_of_another() -> None:
    loop, gate, _ = open_gate(lambda *_: None)
    crowd: list[socket.socket] = []

    def connect(source: str) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", gate.port), 60, (source, 0))
        loop.turn(60)
        return made

    crowd += [connect("127.0.0.2") for _ in range(200)]
    honest = connect("127.0.0.3")
    crowd += [connect("127.0.0.2") for _ in range(200)]
    assert len(gate.arrivals.links) <= 1 + gates.STRANGERS
    assert [place for place, _ in gate.arrivals.links.values()].count("127.0.0.3") == 1
    for one in (*crowd, honest):
        one.close()


def test_who_has_one_address_of_ipv6_has_its_whole_network() -> None:
    network = arrivals.network
    assert network("2001:db8::1") == network("2001:db8::2") != network("2001:db8:0:1::1")
    assert network("fe80::1%eth0") == network("fe80::2%eth0")
    assert network("10.0.0.1") != network("10.0.0.2")


def test_who_comes_by_ipv4_to_a_listener_of_both_is_counted_by_its_own_address() -> None:
    assert [arrivals.plain(one) for one in ("::ffff:10.0.0.1", "10.0.0.1", "fe80::1%eth0.5")] == [
        "10.0.0.1",
        "10.0.0.1",
        "fe80::1%eth0.5",
    ]


def test_a_connection_that_is_gone_before_its_first_byte_leaves_the_gate_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*_: object) -> None:
        raise ConnectionResetError

    loop, gate, _ = open_gate(lambda *_: None)
    monkeypatch.setattr(gates, "as_link", gone)
    with socket.create_connection(("127.0.0.1", gate.port), timeout=60) as stranger:
        loop.turn(60)
        assert not gate.arrivals.links
        monkeypatch.undo()
        assert stranger.recv(10) == b""
    with socket.create_connection(("127.0.0.1", gate.port), timeout=60):
        loop.turn(60)
        assert len(gate.arrivals.links) == 1


# -- keys ------------------------------------------------------------------------------------


def test_the_key_leaves_no_file_and_is_in_no_argument_or_environment(
    tmp_path: Path, head: GuardedNode, other: GuardedNode
) -> None:
    authority = Authority()
    port = host(head, authority.issue("head"), 1)
    assert join(other, authority.issue("node-1"), port) == ""
    assert is_complete(head)
    wait_for(lambda: tagged(head.run_id) and tagged(other.run_id), "the job runs on both nodes")
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"PRIVATE KEY" not in path.read_bytes(), path
    for node in (head, other):
        for pid in (node.process.pid, node.wait("ready")["guard"], *tagged(node.run_id)):
            for name in ("cmdline", "environ"):
                with contextlib.suppress(FileNotFoundError):
                    assert b"PRIVATE KEY" not in Path(f"/proc/{pid}/{name}").read_bytes()
            for fd in Path("/proc").glob(f"{pid}/fd/*"):
                with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                    assert "ringup-key" not in os.readlink(fd)  # noqa: PTH115
    finish_run(tmp_path, head, other)


@pytest.mark.parametrize("has_memfd", [True, False])
def test_a_key_reaches_the_library_with_and_without_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memfd: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if not has_memfd:
        monkeypatch.delattr(os, "memfd_create")
    assert tls.context(dataclasses.asdict(Authority().issue("head")), True)
    assert list(tmp_path.iterdir()) == []


# -- readers ---------------------------------------------------------------------------------


def test_a_reader_that_sends_anything_at_all_changes_nothing(tmp_path: Path, head: GuardedNode) -> None:
    host(head, Authority().issue("head"))
    assert is_complete(head)
    wait_for(lambda: tagged(head.run_id), "the job runs")
    ran = tmp_path / "ran"
    source = f"open({str(ran)!r}, 'w')"
    with socket.socket(socket.AF_UNIX) as reader:
        reader.settimeout(60)
        reader.connect(str(head.run_dir / "attach.sock"))
        for words in (
            b"[" * 200_000 + b"\n",
            b'{"type":"end","grace_s":NaN}\n',
            b'{"type":"end","grace_s":"now"}\n',
            b'{"type":"look","node":0,"number":1,"mode":' + json.dumps(source).encode() + b"}\n",
            b'{"type":"look","node":[],"number":1,"mode":"count"}\n',
            b'{"type":"look","node":7,"number":1,"mode":"count"}\n',
            b'{"type":"host"}\n{"type":"go"}\n{"type":"leave"}\n\xff\xfe\n',
            json.dumps({"type": "look", "node": 0, "number": 9, "mode": "count", "source": source}).encode(),
            b"\n",
        ):
            reader.sendall(words)
        heard = b""
        while b'"look"' not in heard or not heard.endswith(b"\n"):
            heard += reader.recv(65536)
    (look,) = [m for m in map(json.loads, heard.splitlines()) if m["type"] == "look"]
    assert look["answer"]["number"] == 9 and look["answer"]["mode"] == "count"
    assert not ran.exists()
    (tmp_path / "GO").touch()
    wait_for(lambda: not alive(head.process.pid), "the guard has ended")
    assert b'"ending"' not in (Path(f"{head.run_dir}.journal") / "control").read_bytes()


def test_a_node_that_turned_hostile_floods_nothing_and_speaks_for_no_other(
    tmp_path: Path, head: GuardedNode
) -> None:
    authority = Authority()
    port = host(head, authority.issue("head"), 1, 2)
    node_2 = client_context(tmp_path, authority.issue("node-2"))
    hostile = client_context(tmp_path, authority.issue("node-1"))
    flood = b'{"type":"problem","words":"x","node":2}\n' * 20_000
    with contextlib.ExitStack() as stack:
        nodes = []
        for context in (node_2, hostile):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            nodes.append(stack.enter_context(context.wrap_socket(plain)))
            assert nodes[-1].recv(100) == b'{"type":"welcome"}\n'
        head.tell({"type": "take-over"})
        for one in nodes:
            while b'"leave"' not in one.recv(65536):
                pass
            one.sendall(b'{"type":"left"}\n')
        assert head.wait("detached")["problem"] == ""
        wait_for(lambda: tagged(head.run_id), "the job runs")
        one.sendall(b'{"type":"look","number":1,"problem":"nobody asked"}\n{"type":"leave"}\n' + flood)
        one.sendall(b"[" * 100_000 + b'\n{"type":"end","reason":"mine"}\n')
        one.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while one.recv(65536):
                pass  # until the head has read everything
    wait_for(lambda: not alive(head.process.pid), "the guard has ended")
    control = (Path(f"{head.run_dir}.journal") / "control").read_bytes()
    told = [json.loads(line) for line in control.splitlines()]
    problems = [m for m in told if m["type"] == "problem"]
    assert len(problems) == 100 and {m["node"] for m in problems} == {1}
    assert {m["node"]: m["count"] for m in told if m["type"] == "refused"} == {1: 20_000 - 100 + 3}
    assert not [m for m in told if m["type"] in ("look", "leave", "end")]
