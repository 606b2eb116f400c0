"""Streams cut at marks, and ssh's own words understood, in whatever pieces they come."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringup.model import Host
from ringup.transport import bootstrap, ssh

RECORDED = Path(__file__).parent / "recorded" / "ssh"


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """The same bytes in pieces of these sizes."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [p for p in [*pieces, data] if p]


@given(
    st.lists(
        st.binary(max_size=30) | st.sampled_from([b"\x01", b"\x01tok", b"\x01tokx", b"tok "]), max_size=6
    ),
    st.lists(st.integers(1, 20), max_size=30),
)
def test_data_and_marks_survive_any_cut(parts: list[bytes], sizes: list[int]) -> None:
    mark = b"\x01tok end 1 0\n"
    parts = [p.replace(b"\x01tok ", b"") for p in parts]
    stream = bootstrap.MarkedStream("tok")
    data, marks = b"", []
    for piece in cut(mark.join(parts), sizes):
        for found in stream.feed(piece):
            if isinstance(found, bytes):
                data += found
            else:
                marks.append((found, len(data)))
    data += stream.rest()
    joined = mark.join(parts).replace(mark, b"")
    assert data == joined
    assert [m for m, _ in marks] == [("end", "1", "0")] * max(0, len(parts) - 1)


def test_a_line_is_given_out_before_the_next_byte_comes() -> None:
    assert list(bootstrap.MarkedStream("tok").feed(b"step 1\n")) == [b"step 1\n"]


def test_a_mark_that_never_ends_becomes_data() -> None:
    stream = bootstrap.MarkedStream("tok")
    given_out = b"".join(p for p in stream.feed(b"\x01tok " + b"x" * 5000) if isinstance(p, bytes))
    assert given_out + stream.rest() == b"\x01tok " + b"x" * 5000


def errors_of(name: str, size: int = 65536) -> tuple[ssh.Errors, bytes]:
    errors = ssh.Errors()
    data = (RECORDED / f"{name}.txt").read_bytes()
    return errors, b"".join(errors.feed(data[i : i + size]) for i in range(0, len(data), size))


@pytest.mark.parametrize("size", [1, 7, 65536])
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("refused", "ssh-connection-refused", "ssh: connect to host 10.0.0.11 port 22: Connection refused"),
        ("dropped", "ssh-timeout", "ssh: connect to host 10.0.0.11 port 22: Connection timed out"),
        ("no-route", "ssh-no-route", "No route to host"),
        ("name-unknown", "ssh-name-unknown", "Could not resolve hostname nodex"),
        ("key-refused", "ssh-key-refused", "root@10.0.0.11: Permission denied (publickey)."),
        ("host-key-unknown", "ssh-host-key-unknown", "Host key verification failed. ([10.0.0.11] port 22)"),
        ("host-key-unknown-strict", "ssh-host-key-unknown", "Host key verification failed."),
        ("host-key-changed", "ssh-host-key-changed", "Offending ED25519 key in /root/.ssh/known_hosts:2"),
        ("no-banner", "ssh-key-exchange-hangs", "timed out"),
        (
            "jump-refused",
            "ssh-connection-refused",
            "channel 0: open failed: connect failed: Connection refused",
        ),
        ("jump-dropped", "ssh-timeout", "either it or the node does not answer"),
        ("proxy-dropped", "ssh-timeout", "either it or the node does not answer"),
        ("dropped-by-sshd", "ssh-failed", "Connection closed by remote host"),
    ],
)
def test_ssh_words_of_every_failure_are_understood(name: str, kind: str, words: str, size: int) -> None:
    errors, _ = errors_of(name, size)
    failure = errors.ended_early(255, "")
    assert failure.kind == kind
    assert words in failure.words


@pytest.mark.parametrize("name", ["long-packets-dropped", "long-packets-dropped-outgoing"])
def test_a_hanging_key_exchange_is_told_from_a_dead_node(name: str) -> None:
    errors, _ = errors_of(name)
    failure = errors.stuck(10.0)
    assert failure.kind == "ssh-key-exchange-hangs"
    assert "10.0.0.11" in failure.words


@pytest.mark.parametrize("size", [1, 2, 7, 64, 65536])
def test_a_nodes_lines_pass_whole_and_its_last_are_kept_however_they_arrive(size: int) -> None:
    node = b"debugger\nde\n" + b"".join(b"%d\n" % i for i in range(50)) + b"debug1: mine\nlast"
    data = b"debug1: own\r\n" + node[:30] + b"debug1: own\r\n" + node[30:]
    errors = ssh.Errors()
    assert b"".join(errors.feed(data[i : i + size]) for i in range(0, len(data), size)) == node
    assert errors.said().split("\n") == [*map(str, range(31, 50)), "debug1: mine"]


def test_a_silent_proxy_is_not_blamed_on_the_node() -> None:
    errors = ssh.Errors()
    errors.feed(b"debug1: Executing proxy command: exec ssh -W '[10.0.0.11]:22' jump\r\n")
    failure = errors.stuck(10.0)
    assert failure.kind == "ssh-timeout"
    assert "either it or the node does not answer" in failure.words


@pytest.mark.parametrize("size", [1, 5, 65536])
def test_chatter_of_ssh_is_taken_out_and_the_rest_kept(size: int) -> None:
    errors, rest = errors_of("fine", size)
    assert rest == b""
    assert errors.phase is ssh.Phase.LOGGED_IN
    data = b"debug1: of the program\nOpenSSH_x\nloss 1\rloss 2\rno newline"
    passed = b"".join(errors.feed(data[i : i + size]) for i in range(0, len(data), size))
    assert passed == data


def test_a_lost_connection_is_not_blamed_on_what_the_program_said() -> None:
    errors, _ = errors_of("fine")
    errors.feed(b"RuntimeError: Connection refused\nclient_loop: send disconnect: Broken pipe\r\n")
    failure = errors.lost(255)
    assert failure.kind == "ssh-failed"
    assert failure.words == "connection lost: client_loop: send disconnect: Broken pipe"


def test_a_node_that_went_silent_is_a_timeout() -> None:
    errors, _ = errors_of("fine")
    errors.feed(b"Timeout, server 10.0.0.11 not responding.\r\n")
    assert errors.lost(255).kind == "ssh-timeout"


def test_a_killed_client_is_told_by_its_signal() -> None:
    failure = ssh.Errors().lost(-9)
    assert failure.words == "the ssh client was ended by SIGKILL"


def test_words_of_a_hostile_node_are_made_safe_and_short() -> None:
    errors = ssh.Errors()
    errors.feed(b"\x1b]0;owned\x07" + b"A" * 100_000 + b"\r\n")
    words = errors.ended_early(255, "").words
    assert words.isprintable()
    assert len(words) < 1000


def test_host_key_checking_is_never_weakened() -> None:
    words = " ".join(ssh.command(Host("node1", "alice"), "x", ssh_config="f", connect_timeout_s=2.5))
    assert "StrictHostKeyChecking" not in words
    assert "UserKnownHostsFile" not in words
    assert "BatchMode=yes" in words
    assert words.endswith("-o ControlPath=none -l alice -- node1 x")
    assert " -F f " in words
    assert "ConnectTimeout=3 " in words
