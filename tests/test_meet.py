"""agent/meet.py: how a job finds its network when it runs."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ringup.agent_bundle import source

FIRST = 10_000 + secrets.randbelow(900) * 20


def by_itself(text: str) -> str:
    """
    A job file or the program alone: at ports of its own, with patience.

    Runs beside the test may be about to use the usual ports, and a busy machine may take over 4 s.
    """
    for usual, own in (
        ("range(29500, 29517)", f"range({FIRST}, {FIRST + 17})"),
        ("TRY_S, ALL_S = 3, 4, 90", "TRY_S, ALL_S = 3, 40, 120"),
    ):
        assert usual in text
        text = text.replace(usual, own)
    return text


MEET = [sys.executable, "-S", "-c", by_itself(source("meet"))]


def meets(
    folder: Path, start: str, count: int = 2, descriptors: int = 1024, **env: str
) -> subprocess.CompletedProcess[str]:
    """
    `lead` with a shell command that starts `"$@"` on every node, as a scheduler would.

    `descriptors`: how many files it may have open until it asks for more.
    """
    starter = folder / "start"
    starter.write_text(f"#!/bin/bash\n{start}")
    starter.chmod(0o755)
    limit = ["bash", "-c", f'ulimit -Sn {descriptors}; exec "$@"', "bash"]
    words = [*limit, *MEET, "lead", str(count), str(starter), *MEET, "join"]
    return subprocess.run(words, capture_output=True, text=True, timeout=180, env={**os.environ, **env})


EACH = 'for i in 0 1; do "${@:1:5}" "$i" "${@:6}" & done; wait\n'
"""Two nodes, both this machine: the rank follows `join`, the fifth word."""


@pytest.mark.slow
def test_the_address_that_all_reach_and_each_ones_card_are_told(tmp_path: Path) -> None:
    done = meets(tmp_path, EACH)
    assert done.returncode == 0, done.stderr
    head, *nodes = [line.split() for line in done.stdout.splitlines()]
    assert [node[0] for node in nodes] == ["0", "1"]
    assert {node[1] for node in nodes} == {head[0]}
    assert {node[2] for node in nodes} <= {name for _, name in socket.if_nameindex()}
    assert not head[0].startswith("127.")


@pytest.mark.slow
def test_a_port_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    with socket.socket() as holder:
        try:
            holder.bind(("127.0.0.1", FIRST))
            holder.listen()
        except OSError:
            pass  # somebody else holds it, which serves as well
        done = meets(tmp_path, EACH)
        assert done.returncode == 0, done.stderr
        assert FIRST < int(done.stdout.split()[1]) < FIRST + 17


@pytest.mark.slow
def test_a_given_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = meets(tmp_path, EACH, MASTER_PORT=port)
    assert done.returncode == 1
    assert f"no free port from {port} on " in done.stderr


@pytest.mark.slow
def test_an_interface_that_is_not_there_is_no_network(tmp_path: Path) -> None:
    done = meets(tmp_path, EACH, INTERFACE="nosuch0")
    assert done.returncode == 1
    assert "no address on " in done.stderr


@pytest.mark.slow
def test_a_node_that_does_not_come_is_missed(tmp_path: Path) -> None:
    done = meets(tmp_path, '"${@:1:5}" 0 "${@:6}"\n')
    assert done.returncode == 1
    assert "was reached by all 2 nodes: " in done.stderr
    assert " by [0]" in done.stderr


@pytest.mark.slow
def test_a_stranger_is_not_counted(tmp_path: Path) -> None:
    wrong = '"${@:1:5}" 0 "${@:6}"; "${@:1:5}" 1 0123456789abcdef "${@:7}"\n'
    done = meets(tmp_path, wrong)
    assert done.returncode == 1
    assert " by [0]" in done.stderr


CROWD = """
import socket, sys
ports, address = sys.argv[1].split(","), sys.argv[2].split(",")[0]
held = [socket.create_connection((address, int(ports[n % len(ports)]))) for n in range(400)]
print("held", flush=True)
sys.stdin.read()
"""
"""Opens more connections than the head has descriptors, and says nothing on any."""


@pytest.mark.slow
def test_strangers_with_hundreds_of_connections_keep_no_node_out(tmp_path: Path) -> None:
    (tmp_path / "crowd.py").write_text(CROWD)
    crowd = f'{sys.executable} -S {tmp_path}/crowd.py "${{@:6:1}}" "${{@:7:1}}"'
    strangers = f"ulimit -Sn 1024\ncoproc {{ {crowd}; }}\nread -r _ <&${{COPROC[0]}}\n"
    done = meets(tmp_path, strangers + EACH.replace("wait", "wait -n; wait -n"), descriptors=128)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_start_that_fails_fails_the_whole(tmp_path: Path) -> None:
    done = meets(tmp_path, EACH + "exit 9\n")
    assert done.returncode == 9


def test_the_token_is_in_no_argument_and_the_first_answer_of_a_node_counts() -> None:
    spec = importlib.util.spec_from_loader("meet", None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(source("meet"), module.__dict__)
    reached: dict[object, dict[int, list[str]]] = {}
    for own in ("10.0.0.1 eth0", "203.0.113.9 evil0"):
        near, far = socket.socketpair()
        text = f"secret 10.0.0.1 29500 1 {own}"
        far.sendall(text.encode().ljust(256) + module.PAYLOAD)
        module.hear(near, "secret", reached)
        far.close()
    assert reached == {("10.0.0.1", 29500): {1: ["10.0.0.1", "eth0"]}}
    assert "MEET_TOKEN" in source("meet") and "token, ports" not in source("meet")
