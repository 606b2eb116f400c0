"""A detached run on hosts with a listener on the wire, or with an impostor in the head's place."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards import wait_for
from tests.test_attach_lab import DETACH

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SECRET = "hf_" + "s3cr3t" * 6
SCRIPT = f"""
print("{SECRET}", rank, flush=True)
while not os.path.exists(os.environ["GO"]): time.sleep(0.05)
print("done", rank, flush=True)
"""

SNIFFER = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind((sys.argv[1], 0))
with open(sys.argv[2], "wb", buffering=0) as file:
    print("listening", flush=True)
    while True:
        file.write(wire.recv(65536))
"""

# Takes every port that the head might listen on, and plays a head that hands out a program.
IMPOSTOR = """
import json, pathlib, select, socket, ssl, sys
from ringup.keys import Authority
folder, address = pathlib.Path(sys.argv[1]), sys.argv[2]
identity = Authority().issue("head")
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
(folder / "impostor.pem").write_text(identity.key + identity.certificate)
context.load_cert_chain(folder / "impostor.pem")
doors = [socket.create_server((address, port), reuse_port=True) for port in range(29501, 29517)]
look = {"type": "look", "number": 1, "mode": "count", "source": f"open('{folder}/ran', 'w')"}
words = [{"type": "welcome"}, {"type": "leave"}, {"type": "go"}, look]
print("listening", flush=True)
while True:
    for door in select.select(doors, [], [])[0]:
        connection = door.accept()[0]
        (folder / "met").touch()
        try:
            with context.wrap_socket(connection, server_side=True) as one:
                one.sendall(b"".join(json.dumps(word).encode() + b"\\n" for word in words))
                while data := one.recv(65536):
                    with open(folder / "heard", "ab") as file:
                        file.write(data)
        except OSError:
            pass
"""


class Stage:
    """Two nodes and a laptop that starts a detached run on them."""

    def __init__(self, lab: Any, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.run_id = ""

    def start(self, host: str, source: str, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """Python on a host, once it has printed its first line."""
        environment = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        made: subprocess.Popen[bytes] = self.lab.popen(
            host,
            [sys.executable, "-c", source, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            **options,
        )
        assert made.stdout
        self.text = made.stdout.readline().decode()
        return made

    def detach(self) -> None:
        """Start it: how it went is in `text`."""
        script = SCRIPT.replace('os.environ["GO"]', repr(str(self.folder / "go")))
        words = [str(self.folder), script, "node0,node1", "29543", self.lab.host("node0").address]
        process = self.start("laptop", DETACH, *words, stdin=subprocess.PIPE)
        self.run_id = (self.folder / "run_id").read_text()
        process.kill()
        process.wait()

    def left(self) -> list[int]:
        """Processes of the run, its guards among them."""
        return [
            p.pid
            for node in ("node0", "node1")
            for p in self.lab.processes(node)
            if self.run_id in " ".join(p.command) or self.run_id in str(p.environ)
        ]


@pytest.fixture
def stage(shared_lab: Any) -> Iterator[Stage]:
    folder = Path(tempfile.mkdtemp(prefix="ringup-gate-", dir="/var/tmp"))
    made = Stage(shared_lab(["node0", "node1", "laptop"]), folder)
    yield made
    for pid in made.left() if made.run_id else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder)


@pytest.mark.smoke
def test_who_listens_on_the_wire_of_a_detached_run_reads_nothing_of_it(stage: Stage) -> None:
    card = stage.lab.host("node1").ports[0].name
    wire = stage.folder / "wire"
    sniffer = stage.start("node1", SNIFFER, card, str(wire))
    stage.detach()
    assert "running" in stage.text
    (stage.folder / "go").touch()
    wait_for(lambda: not stage.left(), "the run has ended")
    sniffer.kill()
    sniffer.wait()
    captured = wire.read_bytes()
    port = (29501).to_bytes(2, "big")
    assert captured.count(port) > 10, "the guards' conversation was on this wire"
    for words in (SECRET, "done", '"type"', "beat", "acknowledged", "PRIVATE KEY", "node-1", stage.run_id):
        assert words.encode() not in captured


@pytest.mark.smoke
def test_an_impostor_of_the_head_gets_no_word_and_no_program_run(stage: Stage) -> None:
    address = stage.lab.host("node0").address
    # On node1 alone the address is node1's: the laptop's question for it (ARP) is left to node0.
    ignore = "/proc/sys/net/ipv4/conf/all/arp_ignore"
    stage.lab.sh("node1", f"echo 1 >{ignore}; ip address add {address}/32 dev lo")
    impostor = stage.start("node1", IMPOSTOR, str(stage.folder), address)
    try:
        stage.detach()
    finally:
        impostor.kill()
        impostor.wait()
        stage.lab.sh("node1", f"ip address del {address}/32 dev lo; echo 0 >{ignore}")
    assert (stage.folder / "met").exists(), stage.text
    assert "launcher-error node1: not detached: the program at" in stage.text
    assert f"{address} port 295" in stage.text and "This node's address is" in stage.text
    assert not (stage.folder / "heard").exists(), "it was told something"
    assert not (stage.folder / "ran").exists(), "its program ran"
    wait_for(lambda: not stage.left(), "nothing is left")


def test_strangers_from_a_third_host_do_not_abort_a_detached_start(stage: Stage) -> None:
    flood = """
import socket, sys, time
print("ready", flush=True)
held, deep = [], b"[" * 100_000
while True:
    for port in range(29501, 29505):
        made = socket.socket()
        made.setblocking(False)
        made.connect_ex((sys.argv[1], port))
        held.append(made)
    for made in held[-400:]:
        try: made.send(deep)
        except OSError: pass
    del held[:-900]
    time.sleep(0.002)
"""
    stranger = stage.start("laptop", flood, stage.lab.host("node0").address)
    try:
        stage.detach()
        assert "running" in stage.text
    finally:
        stranger.kill()
        stranger.wait()
    (stage.folder / "go").touch()
    wait_for(lambda: not stage.left(), "the run has ended")
