"""Every run has a folder of its own, whatever `--log-dir` says; `logs` never mixes runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ringup.cli.launching import new_run_id
from ringup.errors import LaunchError
from ringup.runtime import claims

FAILS = """
import sys
print("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB", flush=True)
sys.exit(1)
"""


def ringup(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ringup", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))


def run(log_dir: Path, script: Path, ranks: int) -> subprocess.CompletedProcess[str]:
    """On one node: between several, a machine without CPU time for the pair test stops the start."""
    words = ["--local", "1", "--nproc", str(ranks), "--backend", "gloo", "--with", "python"]
    return ringup("run", *words, "--anyway", "--log-dir", str(log_dir), "--", str(script))


def test_a_directory_that_is_absent_or_empty_is_used_itself(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".nfs0001").touch()
    assert claims.claim(tmp_path / "empty", "run-1") == tmp_path / "empty"
    assert claims.claim(tmp_path / "a" / "b", "run-1") == tmp_path / "a" / "b"


def test_a_directory_that_is_in_use_or_holds_files_gets_a_folder_inside(tmp_path: Path) -> None:
    assert claims.claim(tmp_path / "logs", "run-1") == tmp_path / "logs"
    assert claims.claim(tmp_path / "logs", "run-2") == tmp_path / "logs" / "run-2"
    assert claims.claim(tmp_path / "logs", "run-1") == tmp_path / "logs"
    assert claims.claim(tmp_path / "logs", "run-2") == tmp_path / "logs" / "run-2"
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "rank-00000-node0.log").touch()
    assert claims.claim(tmp_path / "old", "run-1") == tmp_path / "old" / "run-1"


def test_runs_that_start_at_one_moment_do_not_share_a_folder(tmp_path: Path) -> None:
    names = [f"run-{i}" for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: claims.claim(tmp_path / "logs", name), names))
    assert len(set(found)) == len(names)
    assert found.count(tmp_path / "logs") == 1


def test_the_run_inside_a_submitted_job_takes_the_folder_of_its_job_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "20260131-142530-9f3c05d1"
    logs = claims.claim(tmp_path / "logs", own)
    (logs / "job.sh").touch()
    (logs / "job.out").touch()
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert claims.submitted(logs) == ""
    assert claims.claim(logs, "stranger") == logs / "stranger"
    (logs / "stranger" / claims.OWNER).unlink()
    (logs / "stranger").rmdir()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert new_run_id(str(logs)) == own  # the name of the folder is that of the run
    assert claims.claim(logs, own) == logs == claims.newest(logs)
    (logs / "run.json").touch()
    assert new_run_id(str(logs)) != own
    again = claims.claim(logs, "requeued")
    assert again == logs / "requeued"
    os.utime(again / claims.OWNER, ns=(1, (logs / claims.OWNER).stat().st_mtime_ns + 1))
    assert claims.newest(logs) == again


def test_a_place_where_no_folder_can_be_made_is_an_error_to_act_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be written") as raised:
        claims.claim(tmp_path / "file" / "logs", "run-1")
    assert "--log-dir" in raised.value.hint


def test_a_failed_run_does_not_end_in_the_verdict_of_the_next_with_the_same_log_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    (tmp_path / "sound.py").write_text("print('step 1 loss 0.5')\n")
    logs = tmp_path / "logs"
    failed = run(logs, tmp_path / "fails.py", 3)
    outcome = json.loads((logs / "run.json").read_text())["outcome"]
    assert (failed.returncode, outcome) == (1, "rank-failed"), failed.stderr
    first = sorted(p.name for p in logs.iterdir())
    sound = run(logs, tmp_path / "sound.py", 2)
    assert sound.returncode == 0, sound.stderr
    (inside,) = [p for p in logs.iterdir() if p.is_dir()]
    assert f"ringup: {logs} is not empty, so the logs of this run are in {inside}\n" in sound.stderr
    assert sorted(p.name for p in logs.iterdir() if p != inside) == first
    assert json.loads((inside / "run.json").read_text())["outcome"] == "ok"
    assert len(list(inside.glob("rank-*.log"))) == 2
    told = ringup("logs", "--json", str(logs))
    assert f"{logs}: 2 runs: only the newest is read, {inside}" in told.stderr
    diagnosis = json.loads(told.stdout)
    assert (told.returncode, diagnosis["healthy"]) == (0, True)
    assert all(Path(f["path"]).parent == inside for f in diagnosis["files"])
    named = ringup("logs", "--json", *map(str, logs.glob("rank-*.log")))
    assert "out-of-memory" in json.loads(named.stdout)["causes"][0]["rule"]


def test_a_directory_of_runs_is_read_by_its_newest_alone(tmp_path: Path) -> None:
    for number, text in enumerate(("CUDA out of memory. Tried to allocate 2.00 GiB", "fine")):
        own = tmp_path / f"b{9 - number}"
        own.mkdir()
        content = {
            "ringup": "0.1.0",
            "schema": 1,
            "run": own.name,
            "outcome": "ok",
            "started": 1700000000.5 + number,
        }
        (own / "run.json").write_text(json.dumps(content, indent=1))
        (own / "rank-00000-node0.log").write_text(f"RuntimeError: {text}\n" if not number else "step 1\n")
    told = ringup("logs", str(tmp_path))
    assert told.returncode == 0, told.stdout
    assert "2 runs" in told.stderr and f"{tmp_path}/b8" in told.stderr
