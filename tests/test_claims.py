"""Two runs begun at once on one machine do not meet on one port."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringup.checks.ports import DEFAULT_PORT
from ringup.output import console
from ringup.planning import network
from ringup.runtime import Failure, RunResult
from ringup.transport.port_claims import PortClaims
from tests import clusters as c
from tests.guards import wait_for

HOLD = """
import sys
from ringup.transport.port_claims import PortClaims
claims = PortClaims()
print(claims.take(int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def test_a_port_is_one_runs_until_that_run_has_ended_however_it_ends() -> None:
    first, second = 10**6 + os.getpid() * 2, 10**6 + os.getpid() * 2 + 1  # no run's
    words = [sys.executable, "-c", HOLD, str(first)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"True\n"
        with PortClaims() as claims:
            assert not claims.take(first)
            assert claims.take(second)
            assert not PortClaims().take(second)
            other.kill()
            other.wait()
            assert claims.take(first)
        assert PortClaims().take(second)


@pytest.mark.slow
def test_a_check_does_not_listen_where_a_run_is_about_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--anyway", "--dry-run", "--json"]
    words += ["--", "train.py"]
    with PortClaims() as claims:
        wait_for(lambda: claims.take(DEFAULT_PORT), "the usual port: other tests take it, too")
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["plan"]["master_port"] != DEFAULT_PORT, done.stderr


def test_a_claimed_port_is_left_to_the_run_that_has_it() -> None:
    for count in (1, 2):
        cluster = c.healthy(count)
        first = network.decide(cluster)
        assert first is not None
        second = network.decide(cluster, claim=lambda port, claimed=first.master_port: port != claimed)
        assert second is not None and second.master_port not in (0, first.master_port)
    third = network.decide(cluster, claim=lambda port: False)
    assert third is not None and third.master_port != first.master_port


@pytest.mark.slow
@pytest.mark.torch
def test_a_test_begun_beside_a_run_takes_another_port(tmp_path: Path) -> None:
    with PortClaims() as claims:
        port = next(port for port in network.PORTS if claims.take(port))
        words = ["test", "--local", "1", "--nproc", "1", "--backend", "gloo", "--anyway", "--quiet"]
        done = subprocess.run(
            [sys.executable, "-m", "ringup", *words, "--log-dir", str(tmp_path / "logs")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
    plan = json.loads((tmp_path / "logs" / "run.json").read_text())["plan"]
    assert plan["master_port"] not in (0, port), done.stderr


def test_a_port_that_was_taken_after_all_is_named_with_what_to_do() -> None:
    said = "The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE"
    for words, helps in ((said, True), ("RuntimeError: out of ideas", False)):
        failure = Failure("n0", None, 1, "the launcher ended with 1", 2.0, 0.0, (words,), "")
        result = RunResult("r", "rank-failed", 1, failure, (), (), (), ".", 3.0)
        text = " ".join(" ".join(console.run_lines(result, console.Style(io.StringIO()))).split())
        assert words in text
        assert ("choose another port" in text) is helps
