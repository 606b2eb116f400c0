"""Restarts where Slurm restarts, too: an allocation with a spare, job files of `ringup script slurm`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.launched import JOBS
from tests.lab import Lab
from tests.lab.slurm import Slurm, missing
from tests.test_slurm_lab import ENDED_S, NET, RINGUP, RUN, Started, at_rest, folder, nothing_left, record

__all__ = ["at_rest", "folder"]

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LEASE_S = 15
STEPS, STEP_S = "60", "0.1"
WAITS = "wait:0:10"
"""Nobody goes on from the first attempt's tenth step: what a test does to the job comes before its end."""
RESTARTS = ["--max-restarts", "2", "--lease", str(LEASE_S), "--with", "python", "--log-dir", "logs"]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Three nodes, so that one can be a spare."""
    if reason := missing():
        if os.environ.get("RINGUP_REQUIRE_LAB") == "1":
            pytest.fail(f"RINGUP_REQUIRE_LAB=1, but there is no Slurm: {reason}", pytrace=False)
        pytest.skip(f"no Slurm: {reason}")
    with Lab(["login", "node0", "node1", "node2"], net=NET, ttl_s=3 * 3600) as lab:
        made = Slurm(lab)
        try:
            yield made
        finally:
            made.close()


def seen(folder: Path, attempt: int, rank: int) -> dict[str, Any]:
    """What a rank wrote at its start; empty where it has not started."""
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads((folder / f"seen-{attempt}-{rank}").read_text())
        return found
    return {}


def step(folder: Path) -> int:
    """The last step that was saved."""
    path = folder / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.exists() else 0


def go_on(folder: Path) -> None:
    """Let who waits before the tenth step go on."""
    (folder / "go-10").touch()


def allocated(slurm: Slurm, folder: Path, *faults: str) -> Started:
    """A run inside an allocation that outlives its nodes, once it has saved some steps."""
    words = ["salloc", "--quiet", "--no-kill", "--nodes=3", *RUN, *RESTARTS, "--spares", "1"]
    job = [str(JOBS / "checkpointing.py"), str(folder), STEPS, STEP_S, *faults]
    run = Started(slurm, folder, [*words, "--", *job])
    slurm.wait(lambda: step(folder) >= 3 or run.process.poll() is not None, "3 steps", ENDED_S)
    return run


def attempts(folder: Path, name: str) -> list[Any]:
    """One field of every attempt."""
    return [one[name] for one in record(folder)["attempts"]]  # type: ignore[attr-defined]


@contextlib.contextmanager
def repaired(slurm: Slurm, node: str) -> Iterator[None]:
    """A node that works again after the test."""
    try:
        yield
    finally:
        slurm.lab.heal()
        if slurm.daemons[f"slurmd-{node}"].poll() is not None:
            slurm.start_slurmd(node)
        slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)


def test_a_node_that_is_lost_is_replaced_by_the_spare(at_rest: Slurm, folder: Path) -> None:
    run = allocated(at_rest, folder, WAITS)
    with repaired(at_rest, "node1"):
        at_rest.lab.fault("host-off", host="node1")
        at_rest.kill_node("node1")
        assert run.wait() == 0, run.said()
        assert attempts(folder, "nodes") == [["node0", "node1"], ["node0", "node2"]], run.said()
        assert attempts(folder, "decision") == ["exclude", "finished"]
        assert attempts(folder, "cause")[0]["rule"] == "node-lost"
        assert step(folder) == int(STEPS) and "rank 1 finished" in run.stdout
        nothing_left(at_rest)


def test_a_rank_that_is_killed_starts_again_on_the_same_nodes(at_rest: Slurm, folder: Path) -> None:
    run = allocated(at_rest, folder, "kill:1:9")
    assert run.wait() == 0, run.said()
    assert attempts(folder, "nodes") == [["node0", "node1"]] * 2, run.said()
    assert attempts(folder, "decision") == ["same", "finished"]
    nothing_left(at_rest, 5)


def test_a_node_that_slurm_takes_away_is_not_used_again(at_rest: Slurm, folder: Path) -> None:
    run = allocated(at_rest, folder, WAITS)
    with repaired(at_rest, "node1"):
        at_rest.run("scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=test")
        assert run.wait() == 0, run.said()
        assert attempts(folder, "nodes") == [["node0", "node1"], ["node0", "node2"]], run.said()
        assert attempts(folder, "decision") == ["exclude", "finished"]
        nothing_left(at_rest)


def submitted(slurm: Slurm, folder: Path, *faults: str, options: tuple[str, ...] = ()) -> tuple[str, Path]:
    """A file of `ringup script slurm` for two nodes, submitted; the job's number and output."""
    file = folder / "job.sh"
    words = [*RINGUP, "script", "slurm", "--nodes", "2", "--nproc", "1", "--backend", "gloo"]
    words += ["--name", "counts", "--with", "python", "--output", str(file), "--max-restarts", "1"]
    job = [str(JOBS / "checkpointing.py"), str(folder), STEPS, STEP_S, *faults]
    slurm.lab.run(slurm.login, [*words, *options, "--", *job], cwd=folder, check=True)
    number = slurm.run("sbatch", "--parsable", f"--chdir={folder}", str(file)).strip()
    return number, folder / f"counts-{number}.out"


def started_again(slurm: Slurm, job: str) -> str:
    """Slurm waits two minutes with a job that was requeued; it need not here.  Its state in the end."""

    def is_requeued() -> bool:
        return "Restarts=1" in slurm.run("scontrol", "-o", "show", "job", job)

    slurm.wait(is_requeued, "a requeue", ENDED_S)
    slurm.wait(lambda: slurm.state(job) == "PENDING", "the job waits", ENDED_S)
    # A credential of the second in which slurmd revoked the first start's counts as revoked, too (job failed,
    # "Job credential revoked").
    start = ["scontrol", "update", f"JobId={job}", "StartTime=now+3"]

    def is_told() -> bool:
        return slurm.lab.run(slurm.login, start, env=slurm.env, cwd="/").returncode == 0

    slurm.wait(is_told, "the job's new start", ENDED_S)  # refused while the first one still ends
    return slurm.wait_end(job)


def runs(folder: Path) -> list[dict[str, Any]]:
    """run.json of every start of the job, the oldest first."""
    found = [json.loads(path.read_text()) for path in folder.glob("runs/*/run.json")]
    return sorted(found, key=lambda one: float(one["started"]))


def test_a_job_that_would_fail_again_ends_with_93_and_is_not_requeued(at_rest: Slurm, folder: Path) -> None:
    job, out = submitted(at_rest, folder, "name:1:1")
    assert at_rest.wait_end(job, ENDED_S) == "FAILED", out.read_text()
    shown = at_rest.run("scontrol", "-o", "show", "job", job)
    assert "ExitCode=93:0" in shown and "Restarts=0" in shown, shown
    assert [(one["exit_code"], one["scheduler_restarts"]) for one in runs(folder)] == [(93, 0)]
    nothing_left(at_rest, 5)


def test_ranks_that_saved_go_on_where_they_were_when_slurm_starts_the_job_again(
    at_rest: Slurm, folder: Path
) -> None:
    job, out = submitted(at_rest, folder, WAITS, options=("--save-signal", "USR1", "--save-grace", "30"))
    at_rest.wait(lambda: step(folder) >= 3, "3 steps", ENDED_S)
    # As Slurm sends it before the time limit: to the batch shell alone.
    at_rest.run("scancel", "--batch", "--signal=USR1", job)
    at_rest.wait(lambda: out.read_text().count("saved on 1 signal") == 2, "both have saved", ENDED_S)
    go_on(folder)
    assert started_again(at_rest, job) == "COMPLETED", out.read_text()
    first, second = runs(folder)
    assert (first["exit_code"], first["save"]["result"], first["scheduler_restarts"]) == (75, "saved", 0)
    assert (second["exit_code"], second["scheduler_restarts"]) == (0, 1), out.read_text()
    assert [seen(folder, 1, rank)["SLURM_RESTART_COUNT"] for rank in (0, 1)] == ["1", "1"]
    text = out.read_text()
    assert "saved on 1 signal" in text and f"step {STEPS}" in text, "one file holds the output of both starts"
    assert text.count("step 3\n") == 1, "the second start goes on after the first"
    nothing_left(at_rest, 5)


def test_a_job_without_nodes_enough_ends_with_75_and_is_requeued(at_rest: Slurm, folder: Path) -> None:
    job, out = submitted(at_rest, folder, WAITS)
    at_rest.wait(lambda: step(folder) >= 3, "3 steps", ENDED_S)
    lost = seen(folder, 1, 1)["node"]
    with repaired(at_rest, lost):
        at_rest.lab.fault("host-off", host=lost)
        at_rest.kill_node(lost)
        go_on(folder)
        state = started_again(at_rest, job)
        job_now = at_rest.run("scontrol", "-o", "show", "job", job)
        # The end of the output first: a record keeps the beginning of a message.
        text = out.read_text()
        why = f"{state}\n{at_rest.about(job)}\n{text[-1200:]}\n{job_now}\n{text}"
        assert state == "COMPLETED", why
        first, second = runs(folder)
        assert first["exit_code"] == 75 and first["attempts"][-1]["decision"] == "stop", why
        assert lost not in second["attempts"][0]["nodes"] and second["scheduler_restarts"] == 1
        nothing_left(at_rest)


@pytest.mark.parametrize("save", [(), ("--save-signal", "USR1")])
def test_a_job_that_is_cancelled_is_not_requeued(at_rest: Slurm, folder: Path, save: tuple[str, ...]) -> None:
    job, out = submitted(at_rest, folder, WAITS, options=save)
    at_rest.wait(lambda: step(folder) >= 3, "3 steps", ENDED_S)
    at_rest.run("scancel", job)
    assert at_rest.wait_end(job) == "CANCELLED", out.read_text()
    assert "Restarts=0" in at_rest.run("scontrol", "-o", "show", "job", job)
    nothing_left(at_rest)
    (only,) = runs(folder)
    # Slurm ends the steps at once: no rank can save, and ringup may still ask them to.
    codes = {"interrupted": 128 + signal.SIGTERM} | ({"not-saved": 75} if save else {})
    assert codes.get(only["outcome"]) == only["exit_code"], out.read_text()


def test_a_submitted_run_is_followed_through_a_requeue(at_rest: Slurm, folder: Path) -> None:
    words = [*RUN, "--slurm", "--nodes", "2", *RESTARTS, "--save-signal", "USR1", "--"]
    job_words = [str(JOBS / "checkpointing.py"), str(folder), STEPS, STEP_S, WAITS]
    run = Started(at_rest, folder, [*words, *job_words])
    at_rest.wait(lambda: step(folder) >= 3, "3 steps", ENDED_S)
    (job,) = at_rest.run("squeue", "-h", "-o", "%i").split()
    at_rest.run("scancel", "--batch", "--signal=USR1", job)
    at_rest.wait(lambda: run.stdout.count("saved on 1 signal") == 2, "both have saved", ENDED_S)
    go_on(folder)
    assert started_again(at_rest, job) == "COMPLETED", run.said()
    assert run.wait() == 0, run.said()
    assert "saved on 1 signal" in run.stdout and f"step {STEPS}\n" in run.stdout
    assert run.stdout.count("| step 3\n") == 1
    nothing_left(at_rest, 5)
