"""Two runs begun at once on one machine do not meet on one port."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ringup import report
from ringup.launch import Failure, RunResult
from ringup.launch.claims import Claims
from ringup.plan import network
from tests import clusters as c

HOLD = """
import sys
from pathlib import Path
from ringup.launch.claims import Claims
claims = Claims(Path(sys.argv[1]))
print(claims.take(29500), flush=True)
sys.stdin.read()
"""


def test_a_port_is_one_runs_until_that_run_has_ended_however_it_ends(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLD, str(tmp_path / "cache")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"True\n"
        claims = Claims(tmp_path / "cache")
        assert not claims.take(29500)
        assert claims.take(29501)
        other.kill()
        other.wait()
        assert claims.take(29500)


def test_a_folder_that_cannot_be_written_claims_nothing_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Claims(tmp_path / "file").take(29500)


def test_a_claimed_port_is_left_to_the_run_that_has_it() -> None:
    for count in (1, 2):
        cluster = c.healthy(count)
        first = network.decide(cluster)
        assert first is not None
        second = network.decide(cluster, taken={first.master_port})
        assert second is not None and second.master_port not in (0, first.master_port)


@pytest.mark.slow
@pytest.mark.torch
def test_a_test_begun_beside_a_run_takes_another_port(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "cache" / "ringup")
    assert claims.take(29500)
    words = ["test", "--local", "1", "--nproc", "1", "--backend", "gloo", "--anyway", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "ringup", *words, "--log-dir", str(tmp_path / "logs")],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    plan = json.loads((tmp_path / "logs" / "run.json").read_text())["plan"]
    assert plan["master_port"] not in (0, 29500), done.stderr


def test_a_port_that_was_taken_after_all_is_named_with_what_to_do() -> None:
    said = "The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE"
    for words, helps in ((said, True), ("RuntimeError: out of ideas", False)):
        failure = Failure("n0", None, 1, "the launcher ended with 1", 2.0, 0.0, (words,), "")
        result = RunResult("r", "rank-failed", 1, failure, (), (), (), ".", 3.0)
        text = " ".join(" ".join(report.run_lines(result, report.Style(io.StringIO()))).split())
        assert words in text
        assert ("choose another port" in text) is helps
