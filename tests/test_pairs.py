"""The round of pairs among nodes simulated on this machine: the payload for real, no root."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ringup import collectors
from ringup.agent_bundle import program
from ringup.collectors import pair_schedule, pairs
from ringup.collectors.pair_schedule import Target
from ringup.collectors.pairs import ANSWER_LIMIT_BYTES, PairClient, Round, Row, prove, read_row
from ringup.model import Host, Job, Link, Node, PortRanges, Unreached
from ringup.transport import Transport
from tests.guards import PATIENCE_S, free_port

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the patience of the round: the programs of all nodes share this machine."""
    monkeypatch.setattr(pair_schedule, "PATIENCE_S", 3 * pair_schedule.PATIENCE_S)
    monkeypatch.setattr(pairs, "ROUND_S", 5 * pairs.ROUND_S)
    monkeypatch.setattr(pair_schedule, "DEFAULT_PORT", free_port())  # the usual one is everybody's


def local(count: int) -> tuple[Node, ...]:
    hosts = [Host(f"n{k}", local=True, address=f"127.0.7.{k + 2}") for k in range(count)]
    # Who has answered slowly gets more time to begin.
    return tuple(Node(name=h.name, host=h, answer_s=30.0) for h in hosts)


def proved(
    nodes: tuple[Node, ...], job: Job | None = None, budget_s: float = 110.0, **interpreters: str
) -> Round:
    with Transport(tuple(n.host for n in nodes)) as door:
        for name, path in interpreters.items():
            door.interpreters[name] = path
        return prove(door, nodes, job or Job(), budget_s=budget_s)


def failed(proof: Round) -> list[Link]:
    """Where anything went wrong; another job of this machine may hold a port, which spoils nothing here."""
    return [li for li in proof.links if (not li.ok or li.error) and li.error != "port held"]


def script(folder: Path, text: str) -> str:
    path = folder / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def to_head(proof: Round, port: int) -> list[Link]:
    return [li for li in proof.links if li.purpose == "rendezvous" and li.port == port]


def test_every_pair_is_tried_both_ways_with_small_and_large_messages() -> None:
    proof = proved(local(3))
    tried = {(li.src, li.dst) for li in proof.links if li.purpose == "interface"}
    assert tried == {(a, b) for a in ("n0", "n1", "n2") for b in ("n0", "n1", "n2") if a != b}
    assert failed(proof) == []
    assert all(li.large_packet_ok and li.rtt_ms for li in proof.links if li.purpose == "interface")
    assert (proof.unknown, proof.schedule) == ({}, "")


def test_a_played_node_leaves_by_its_own_address() -> None:
    # Another program may hold a port that is tried.
    assert {li.src_interface for li in proved(local(2)).links if li.ok} == {"lo"}


def test_the_wanted_port_is_proven_on_the_head_alone() -> None:
    port = free_port()
    proof = proved(local(2), Job(port=port))
    assert [(li.src, li.dst, li.ok) for li in to_head(proof, port)] == [("n1", "n0", True)]
    assert {li.dst for li in proof.links if li.purpose == "rendezvous"} == {"n0"}


def test_a_port_that_someone_holds_is_said_to_be_held() -> None:
    with socket.create_server(("127.0.7.2", 0)) as holder:
        port = holder.getsockname()[1]
        proof = proved(local(2), Job(port=port))
    assert [(li.ok, li.error) for li in to_head(proof, port)] == [(False, "port held")]
    assert sum(li.ok for li in proof.links if li.purpose == "rendezvous") >= 3


def test_a_port_held_on_another_address_is_not_free_for_the_store_which_takes_all() -> None:
    with socket.create_server(("127.0.9.9", 0)) as holder:
        port = holder.getsockname()[1]
        assert to_head(proved(local(2), Job(port=port)), port)[0].error == "port held"


def test_ephemeral_ports_stay_in_the_range_of_every_node() -> None:
    narrow = PortRanges(41000, 41999)
    nodes = tuple(replace(n, ports=narrow) for n in local(2))
    spread = {li.port for li in proved(nodes).links if li.purpose == "ephemeral"}
    assert len(spread) == 8 and all(41000 <= p <= 41999 for p in spread)


def test_a_node_without_python_is_unknown_and_the_others_are_proven() -> None:
    proof = proved(local(3), n2="/nowhere/python3")
    assert list(proof.unknown) == ["n2"] and "/nowhere/python3" in proof.unknown["n2"]
    assert {(li.src, li.dst) for li in proof.links} == {("n0", "n1"), ("n1", "n0")}


def test_a_node_that_never_answers_is_unknown_and_the_others_are_proven(tmp_path: Path) -> None:
    proof = proved(local(3), budget_s=52.5, n1=script(tmp_path, "exec sleep 600"))
    assert proof.unknown == {"n1": "did not begin the pair test within 10 s"}
    assert {(li.src, li.dst) for li in proof.links} == {("n0", "n2"), ("n2", "n0")}


NONSENSE = [
    "head -c 300000 /dev/urandom",
    """echo '{"op": "ready"}'; echo '[1, 2]'; echo null; echo '{"op": []}'""",
    """echo '{"op": "ready", "ports": {"127.0.7.3": "x", "9.9.9.9": 5}, "held": 3}'; echo '{"op": "done"}'""",
    """echo '{"op": "ready", "ports": {"127.0.7.3": 1}}'
    echo '{"op": "links", "links": [[0, "x"], 7, null, [9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]]}'; exit 3""",
    """echo '{"op": "ready", "ports": {"127.0.7.3": 1}, "failed": 7}'
    echo '{"op": "links", "links": [[0, "routed", "", true, true, "", "", NaN, 1e999, [], "", Infinity, {}]]}'
    echo '{"op": "half", "seen": [1, [2], "abc"]}'
    echo '{"op": "looked-up", "names": [{"name": 1, "took_s": "x"}], "reverse_s": 4}'
    head -c 200000 /dev/zero | tr '\\0' '['; echo; echo '{"op": "done"}'""",
]


@pytest.mark.alike
@pytest.mark.parametrize("words", NONSENSE)
def test_a_node_that_talks_nonsense_spoils_nobody_else(tmp_path: Path, words: str) -> None:
    proof = proved(local(3), budget_s=52.5, n1=script(tmp_path, words))
    fine = [li for li in proof.links if {li.src, li.dst} == {"n0", "n2"}]
    assert [li for li in fine if li.purpose == "interface"] and not set(fine) & set(failed(proof))
    assert not [li for li in proof.links if li.src == "n1" and li.ok]


def test_a_number_beyond_any_float_is_no_answer() -> None:
    peer = PairClient(local(1)[0], "00" * 16)
    for number in (f"1{'0' * 400}", "1e999", "NaN", "-1"):
        row = f'[0, "routed", "", true, true, "", "", {number}, 1.0, "", false, 1, 0]'
        peer.on_output(b'{"op": "links", "links": [%s]}\n' % row.encode())
        look_up = b'{"op": "looked-up", "names": [{"name": "n1", "took_s": %s}], "reverse_s": []}\n'
        peer.on_output(look_up % number.encode())
    assert (peer.rows, peer.names) == ([], ())


def test_a_result_of_an_attempt_that_nobody_asked_for_is_no_link() -> None:
    head, peer = (PairClient(node, "00" * 16) for node in local(2))
    row = Row(0, "routed", "", True, True, "", "", 1.0, 1.0, "", False, 1, 0)
    assert read_row(row, peer, {}, {"n0": head, "n1": peer}) is None


def test_nonsense_of_one_node_hides_no_failure_of_another() -> None:
    head, peer = (PairClient(node, "00" * 16) for node in local(2))
    peer.targets = [Target("n1", head.endpoints[0], 40000, "interface", 3.6)]
    head.on_output(b'{"op": "half", "seen": [[[1], 2, 3]]}\n')
    row = Row(0, "routed", "", False, None, "timed out", "", 0, 0, "", False, 0, 0)
    link = read_row(row, peer, {}, {"n0": head, "n1": peer})
    assert link is not None and link.error == "timed out"


def test_a_node_that_says_too_much_is_not_believed() -> None:
    client = PairClient(local(1)[0], "00" * 16)
    client.on_output(b"x" * (ANSWER_LIMIT_BYTES + 1))
    assert client.failure == "printed more than 16 MiB"


def test_a_node_with_few_file_descriptors_is_slower_not_unreachable(tmp_path: Path) -> None:
    few = script(tmp_path, f'ulimit -n 28; exec {sys.executable} "$@"')
    proof = proved(local(3), n1=few)
    assert failed(proof) == [] and proof.unknown == {}


def test_every_file_of_the_agent_is_python_3_8() -> None:
    for path in Path(collectors.__file__).parents[1].joinpath("agent").rglob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 8))


def test_what_a_dying_node_said_last_is_its_reason(tmp_path: Path) -> None:
    proof = proved(local(2), n1=script(tmp_path, "printf 'no \\033[31mlibz\\n' >&2; exit 9"))
    assert proof.unknown["n1"] == "the pair test ended with 9: no \\x1b[31mlibz"


def test_nodes_that_were_not_reached_are_unknown_for_that_reason() -> None:
    lost = Node(name="n1", host=Host("n1"), unreached=Unreached("ssh-timeout", "no answer"))
    unread = Node(name="n2", host=Host("n2"), unknown={"interfaces": "no such file"})
    with Transport((local(1)[0].host,)) as door:
        proof = prove(door, (local(1)[0], lost, unread), Job(), budget_s=5)
    assert proof.unknown == {
        "n1": "not reached: no answer",
        "n2": "its interfaces are not known: no such file",
    }
    assert proof.links == ()


def test_names_and_addresses_are_looked_up_in_the_same_round() -> None:
    nodes = local(2)
    with Transport(tuple(n.host for n in nodes)) as door:
        proof = prove(door, nodes, Job(), budget_s=110, names=["localhost", "a" * 70], reverse=["127.0.0.1"])
    for node in nodes:
        good, bad = proof.clients[node.name].names
        assert good.name == "localhost" and good.addresses and good.took_s >= 0
        assert bad.addresses == () and bad.error
        assert proof.clients[node.name].reverse_s[0] >= 0


def begin(**changed: object) -> bytes:
    order = {
        "op": "begin", "run": "11" * 16, "answer": "22" * 16, "alone": "127.0.7.9", "listen": ["127.0.7.9"],
        "port": 0, "ephemeral": [], "rendezvous": [], "names": [], "reverse": [], "lookup_s": 1,
        "deadline_s": 300,
    }  # fmt: skip
    return json.dumps({**order, **changed}).encode() + b"\n"


def payload() -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", program("pairtest.main")]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def ended(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin and process.stdout
    process.stdin.close()
    process.stdout.close()
    return process.wait(60)


def ready(process: subprocess.Popen[bytes], **changed: object) -> int:
    """The port it listens on."""
    assert process.stdin and process.stdout
    process.stdin.write(begin(**changed))
    port = json.loads(process.stdout.readline())["ports"]["127.0.7.9"]
    assert isinstance(port, int)
    return port


def test_the_payload_ends_with_its_input() -> None:
    process = payload()
    port = ready(process)
    assert ended(process) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.7.9", port), timeout=PATIENCE_S)


def test_the_payload_ends_at_its_deadline_though_nobody_tells_it() -> None:
    process = payload()
    ready(process, deadline_s=5)
    assert process.wait(60) != 0
    ended(process)


@pytest.mark.parametrize("alone", ["", "127.0.7.9"])
def test_the_port_of_a_run_that_has_just_ended_is_free(alone: str) -> None:
    port = free_port()
    here = ("127.0.0.1", port)
    with socket.create_server(here) as store, socket.create_connection(here) as rank:
        store.accept()[0].close()  # who closes first keeps the port for a minute, in TIME_WAIT
        assert rank.recv(1) == b""
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(here)
    process = payload()
    assert process.stdin and process.stdout
    process.stdin.write(begin(alone=alone, rendezvous=[port]))
    said = json.loads(process.stdout.readline())
    assert (said["rendezvous"], said["held"]) == ([port], {})
    ended(process)


def test_a_caller_that_does_not_know_the_token_gets_nothing() -> None:
    process = payload()
    port = ready(process)
    for said in (b"GET / HTTP/1.1\r\n\r\n", b"ringup-1" + b"\x33" * 20):
        with socket.create_connection(("127.0.7.9", port), timeout=PATIENCE_S) as stranger:
            stranger.sendall(said)
            assert stranger.recv(100) == b""
    with socket.create_connection(("127.0.7.9", port), timeout=PATIENCE_S) as known:
        known.sendall(b"ringup-1" + b"\x11" * 16 + bytes(4))
        assert known.recv(100) == b"ringup-1" + b"\x22" * 16
    ended(process)


@pytest.mark.parametrize(
    ("said", "error", "stranger"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "stranger answered", True),
        (b"ringup-1" + b"\x44" * 16, "another node answered", False),
        (b"", "no answer", False),
    ],
)
def test_a_listener_that_does_not_know_the_token_proves_nothing(
    said: bytes, error: str, stranger: bool
) -> None:
    process = payload()
    ready(process)
    assert process.stdin and process.stdout
    with socket.create_server(("127.0.7.8", 0)) as listener:
        port = listener.getsockname()[1]
        target = [0, "127.0.7.8", port, "22" * 16, 65536, 5.0, []]
        process.stdin.write(json.dumps({"op": "try", "targets": [target]}).encode() + b"\n")
        with listener.accept()[0] as other:
            other.sendall(said)
            told = json.loads(process.stdout.readline())
            while told["op"] != "links":
                told = json.loads(process.stdout.readline())
            row = told["links"][0]
    assert (row[3], row[5], row[10]) == (False, error, stranger)
    ended(process)


def test_ipv6_addresses_are_tried_like_others() -> None:
    process = payload()
    assert process.stdin and process.stdout
    process.stdin.write(begin(alone="", listen=["::1"]))
    told = json.loads(process.stdout.readline())
    if "::1" not in told["ports"]:
        ended(process)
        pytest.skip("this machine has no ::1")
    target = [0, "::1", told["ports"]["::1"], "22" * 16, 65536, 60.0, []]
    process.stdin.write(json.dumps({"op": "try", "targets": [target]}).encode() + b"\n")
    row = json.loads(process.stdout.readline())["links"][0]
    assert row[3:7] == [True, True, "", "::1"]
    ended(process)
