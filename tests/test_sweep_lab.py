"""`ringup sweep` on three networks of known rates: what it tries, what it measures, which one it keeps."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.faults.base import filtered
from tests.lab.wiring import Nic

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

CARDS = (Nic("enp99s0", "10.0.0.10/24"), Nic("enp100s0", "10.1.0.10/24", "fast"))
MBIT_S = {"eno1": 50, "enp99s0": 100, "enp100s0": 200}
SWEEP = ["sweep", "-H", "node0,node1", "--nproc", "1", "--backend", "gloo", "--size", "4M"]


@pytest.fixture
def networks(lab: Callable[..., Lab]) -> Lab:
    """Two hosts with a management card and two others, of different rates; names mean the slow one."""
    cluster = lab(hosts=2, nics=CARDS, mgmt="192.168.50.10/24", names="mgmt")
    for name, rate in MBIT_S.items():
        cluster.fault("slow-nic", nic=name, rate=f"{rate}mbit")
    return cluster


@pytest.fixture
def folder() -> Iterator[str]:
    made = tempfile.mkdtemp(prefix="ringup-sweep-", dir="/var/tmp")
    yield made
    shutil.rmtree(made, ignore_errors=True)


def swept(lab: Lab, folder: str, *more: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "ringup", *SWEEP, "--json", "--log-dir", folder, *more]
    done = lab.run("node0", command, timeout_s=500)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def stream_mbit_s(lab: Lab, address: str) -> float:
    """The rate of a plain TCP stream from node1 to an address of node0, without headers."""
    code = "import socket,sys,time; s=socket.create_server((sys.argv[1], 5999)); print(flush=True)\n"
    code += "c,_=s.accept(); n=0; c.recv(1); t=time.time()\n"
    code += "while d := c.recv(1 << 20): n += len(d)\n"
    code += "print(8 * n / (time.time() - t) / 1e6)"
    server = lab.popen("node0", [sys.executable, "-c", code, address], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    server.stdout.readline()
    send = "import socket,sys; s=socket.create_connection((sys.argv[1], 5999)); s.sendall(bytes(12 << 20))"
    lab.run("node1", [sys.executable, "-c", send, address], check=True)
    return float(server.communicate(timeout=60)[0])


def test_each_network_is_tried_once_and_its_rate_is_that_of_a_plain_stream(
    networks: Lab, folder: str
) -> None:
    code, told = swept(networks, folder)
    assert code == 0
    by_device = {s["predicted"][0]["devices"][0]: s for s in told["settings"]}
    assert set(by_device) == set(MBIT_S) and len(told["settings"]) == 3
    assert all(s["used"] == s["predicted"] and s["as_predicted"] for s in told["settings"])
    best = told["settings"][told["keep"]]
    assert best["verdict"] in ("fastest", "as-fast") and best["used"][0]["devices"] == ["enp100s0"]
    for name, setting in by_device.items():
        plain = stream_mbit_s(networks, networks.host("node0").port(name).address)
        # Loosely, for a machine that does other things: a rate never seems higher than its link's.
        assert 0.3 * plain < 8000 * setting["busbw_gbyte_s"] < 1.15 * plain, (name, plain)
        assert plain == pytest.approx(MBIT_S[name], rel=0.15)


def test_a_network_that_the_check_proves_to_hang_is_not_tried_and_said_first(
    networks: Lab, folder: str
) -> None:
    with filtered(networks, "node1", "iifname enp99s0 drop", "oifname enp99s0 drop"):
        command = [sys.executable, "-m", "ringup", *SWEEP, "--log-dir", folder]
        done = networks.run("node0", command, timeout_s=500)
    assert done.returncode == 0, done.stderr
    said, _, _ = done.stderr.partition("ringup: setting ")
    assert "not tried: GLOO_SOCKET_IFNAME=enp99s0: the check proves that it fails" in " ".join(said.split())
    (row,) = [one for one in done.stdout.splitlines() if one[:1].isdigit() and one.split()[1] == "enp99s0"]
    assert row.split()[2:5] == ["-", "-", "-"] and row.endswith("not tried")
    assert len(list(Path(folder).glob("*/run.json"))) == 2


def test_an_interrupt_ends_the_sweep_with_its_table_and_leaves_no_process(networks: Lab, folder: str) -> None:
    command = [sys.executable, "-m", "ringup", *SWEEP, "--log-dir", folder]
    child = networks.popen("node0", command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not list(Path(folder).glob("2/rank-*.log")):
        assert child.poll() is None
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    assert child.returncode == 130
    table = out.partition("PREDICTED")[2].splitlines()
    assert [line.split()[0] for line in table if line[:1].isdigit()] == ["1", "2", "3"]
    assert [p.command for host in networks.hosts for p in networks.processes(host)] == []
