"""A real Slurm on lab hosts: inside an allocation without ssh, as a job file, submitted and followed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.launched import JOBS
from tests.lab import Lab
from tests.lab.slurm import Slurm, missing

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NET = "90.91.33.63/24"
"""The login node's address; the nodes have those of the fault `article-002`."""
RINGUP = [sys.executable, "-m", "ringup"]
RUN = [*RINGUP, "run", "--backend", "gloo", "--nproc", "1"]
ENDED_S = 150
"""Bound of a whole job on a loaded machine; reached only by a hang."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """One for all tests of this file; without Slurm's programs they are skipped."""
    if reason := missing():
        if os.environ.get("RINGUP_REQUIRE_LAB") == "1":
            pytest.fail(f"RINGUP_REQUIRE_LAB=1, but there is no Slurm: {reason}", pytrace=False)
        pytest.skip(f"no Slurm: {reason}")
    with Lab(["login", "node0", "node1"], net=NET, ttl_s=3 * 3600) as lab:
        made = Slurm(lab)
        try:
            yield made
        finally:
            made.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that every host sees."""
    made = Path(tempfile.mkdtemp(prefix="ringup-job-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def at_rest(slurm: Slurm) -> Iterator[Slurm]:
    """Slurm with nothing running, and nothing left by the test."""
    slurm.wait(slurm.is_idle, "all nodes idle", ENDED_S)
    yield slurm
    slurm.lab.heal()


class Started:
    """A command on the login node, its output in files."""

    def __init__(self, slurm: Slurm, folder: Path, words: list[str], **env: str) -> None:
        self.slurm, self.out, self.err = slurm, folder / "out", folder / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = slurm.lab.popen(
                slurm.login, words, env={**slurm.env, **env}, cwd=folder, stdout=out, stderr=err
            )

    @property
    def stdout(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    def said(self) -> str:
        """For the message of a failed assertion."""
        return f"exit {self.process.poll()}\n{self.stdout[-3000:]}\n{self.stderr[-3000:]}"

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(ENDED_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running: {self.said()}\n{self.slurm.said()}") from None

    def wait_for(self, text: str, count: int) -> None:
        """Until it has printed `text` so often."""

        def printed() -> bool:
            assert self.process.poll() is None, self.said()
            return self.stdout.count(text) >= count

        self.slurm.wait(printed, f"{count} x {text}", ENDED_S)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)


def without_ssh(folder: Path) -> str:
    """A PATH on which ssh is a program that refuses."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "ssh").write_text("#!/bin/sh\necho ssh was called >&2\nexit 255\n")
    (programs / "ssh").chmod(0o755)
    return f"{programs}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def nothing_left(slurm: Slurm, within_s: float = ENDED_S) -> None:
    """
    No rank, launcher or guard of any job on any node within this time: under KILL_WAIT_S Slurm ended none.

    Then nothing of Slurm's own for a job either, and no job in the queue.
    """
    left: list[str] = []

    def gone(program: str) -> bool:
        left[:] = slurm.left(program=program)
        return not left

    try:
        slurm.wait(lambda: gone("python"), "nothing left", within_s)
        slurm.wait(lambda: gone("") and not slurm.run("squeue", "-h").strip(), "nothing left", ENDED_S)
    except AssertionError as error:
        raise AssertionError(f"left: {left}\n{error}") from None


def record(folder: Path) -> dict[str, object]:
    """run.json."""
    import json

    return json.loads((folder / "logs" / "run.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.torch
def test_a_run_inside_an_allocation_trains_without_ssh(at_rest: Slurm, folder: Path) -> None:
    at_rest.lab.fault("article-002")
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *RUN, "--log-dir", "logs"]
    run = Started(at_rest, folder, [*words, "--", str(JOBS / "train.py")], PATH=without_ssh(folder))
    assert run.wait() == 0, run.said()
    assert run.stdout.count("trained to the end") == 2, run.said()
    assert "worked around: " in run.stderr
    assert "GLOO_SOCKET_IFNAME=enp99s0" in run.stderr
    assert "ntasks-per-node is 2: torchrun needs one task per node" in run.stderr
    assert "ssh was called" not in run.stderr
    assert record(folder)["cleanup"] == []
    nothing_left(at_rest, 5)


def test_the_job_finds_slurms_variables_as_one_task_a_node_would(at_rest: Slurm, folder: Path) -> None:
    script = folder / "shows.py"
    names = ["SLURM_NODEID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_CPUS_ON_NODE"]
    script.write_text(f"import os\nprint(*(os.environ[n] for n in {names}), sep='/', flush=True)\n")
    words = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=3", *RUN]
    run = Started(at_rest, folder, [*words, "--with", "python", "--log-dir", "logs", "--", str(script)])
    assert run.wait() == 0, run.said()
    lines = {line.rpartition("| ")[2] for line in run.stdout.splitlines()}
    assert {"0/0/2/2/3", "1/1/2/2/3"} <= lines, run.said()


def test_a_run_in_each_of_several_tasks_is_refused(at_rest: Slurm, folder: Path) -> None:
    words = ["srun", "--quiet", "--nodes=2", "--ntasks=2", *RUN, "--", str(JOBS / "train.py")]
    run = Started(at_rest, folder, words)
    assert run.wait() != 0
    assert "that srun started, and each of them would start the whole job" in run.stderr
    assert "without srun before it" in run.stderr


def test_a_node_that_dies_ends_the_run_on_the_others(at_rest: Slurm, folder: Path) -> None:
    words = ["salloc", "--quiet", "--nodes=2", *RUN, "--log-dir", "logs", "--with", "python", "--"]
    run = Started(at_rest, folder, [*words, str(JOBS / "stays.py"), "stubborn", str(folder)])
    run.wait_for("up ", 2)
    at_rest.kill_node("node1")
    try:
        assert run.wait() not in (0, 130), run.said()
        assert "first failure: node1" in run.stderr, run.said()
        nothing_left(at_rest)
    finally:
        at_rest.start_slurmd("node1")
        at_rest.run("scontrol", "update", "NodeName=node1", "State=RESUME", check=False)


def written(slurm: Slurm, folder: Path, *words: str, launcher: str = "torchrun", finds: bool = True) -> Path:
    """The file of `ringup script slurm`, as written on the login node."""
    file = folder / "job.sh"
    options = ["--nodes", "2", "--nproc", "1", "--backend", "gloo", "--name", "mingpt", "--output", str(file)]
    options += ["--find-network"] * finds
    command = [*RINGUP, "script", "slurm", *options, "--with", launcher, "--", *words]
    slurm.lab.run(slurm.login, command, cwd=folder, check=True)
    return file


@pytest.mark.torch
def test_a_job_file_trains_with_only_partition_and_account_edited(at_rest: Slurm, folder: Path) -> None:
    at_rest.lab.fault("article-002")
    at_rest.lab.fault("port-busy", host="node0")
    file = written(at_rest, folder, str(JOBS / "train.py"))
    text = file.read_text()
    edited = text.replace("##SBATCH --partition=NAME", "#SBATCH --partition=train")
    edited = edited.replace("##SBATCH --account=NAME", "#SBATCH --account=team")
    assert edited.count("\n#SBATCH --partition=train\n") == edited.count("\n#SBATCH --account=team\n") == 1
    file.write_text(edited)
    tried = at_rest.lab.run(at_rest.login, ["sbatch", "--test-only", str(file)], env=at_rest.env, cwd=folder)
    assert tried.returncode == 0, tried.stderr
    assert "using 2 processors on nodes node[0-1]" in tried.stderr
    job = at_rest.run("sbatch", "--parsable", f"--chdir={folder}", str(file)).strip()
    state = at_rest.wait_end(job, ENDED_S)
    said = (folder / f"mingpt-{job}.out").read_text()
    assert state == "COMPLETED", said
    assert "ranks meet at 90.91.33.64 port 29501" in said
    assert said.count("trained to the end") == 2
    at_rest.lab.heal()  # what holds the port is no part of the job
    nothing_left(at_rest)


@pytest.mark.torch
@pytest.mark.parametrize(("launcher", "script"), [("torchrun", "train.py"), ("python", "train_env.py")])
def test_a_short_job_file_trains(at_rest: Slurm, folder: Path, launcher: str, script: str) -> None:
    file = written(at_rest, folder, str(JOBS / script), launcher=launcher, finds=False)
    assert file.read_text().count("\n") <= 45
    job = at_rest.run("sbatch", "--parsable", f"--chdir={folder}", str(file)).strip()
    state = at_rest.wait_end(job, ENDED_S)
    said = (folder / f"mingpt-{job}.out").read_text()
    assert state == "COMPLETED", said
    assert said.count("trained to the end") == 2
    nothing_left(at_rest)


@pytest.mark.torch
def test_a_job_file_that_is_cancelled_leaves_nothing(at_rest: Slurm, folder: Path) -> None:
    job, out = begun(at_rest, folder)
    at_rest.run("scancel", job)
    assert at_rest.wait_end(job) == "CANCELLED", out.read_text()
    nothing_left(at_rest)


def test_a_job_file_ends_when_a_node_dies(at_rest: Slurm, folder: Path) -> None:
    job, out = begun(at_rest, folder, "python")
    at_rest.kill_node("node1")
    try:
        assert at_rest.wait_end(job) in ("NODE_FAIL", "FAILED", "CANCELLED"), out.read_text()
        nothing_left(at_rest)
    finally:
        at_rest.start_slurmd("node1")
        at_rest.run("scontrol", "update", "NodeName=node1", "State=RESUME", check=False)


def begun(slurm: Slurm, folder: Path, launcher: str = "torchrun") -> tuple[str, Path]:
    """A job of two ranks that stay, once both are up; its number and output."""
    file = written(slurm, folder, str(JOBS / "stays.py"), "plain", str(folder), launcher=launcher)
    job = slurm.run("sbatch", "--parsable", f"--chdir={folder}", str(file)).strip()
    out = folder / f"mingpt-{job}.out"
    slurm.wait(lambda: out.exists() and out.read_text().count("up ") == 2, "both ranks up", ENDED_S)
    return job, out


def submitted(slurm: Slurm, folder: Path, *words: str, more: tuple[str, ...] = ()) -> Started:
    """`ringup run --slurm` of a script of `jobs/`, without torchrun."""
    options = ["--slurm", "--nodes", "2", "--time", "00:20:00", "--log-dir", "logs", "--with", "python"]
    return Started(slurm, folder, [*RUN, *options, *more, "--", str(JOBS / words[0]), *words[1:]])


def test_a_submitted_run_is_followed_and_ends_with_the_ranks_own_code(at_rest: Slurm, folder: Path) -> None:
    script = folder / "fails.py"
    script.write_text(
        "import os, sys\nprint('rank', os.environ['RANK'])\nsys.exit(7 * int(os.environ['RANK']))\n"
    )
    run = submitted(at_rest, folder, str(script))
    assert run.wait() == 7, run.said()
    assert "node1:1| rank 1" in run.stdout, run.said()
    assert "first failure: rank 1 on node1" in run.stdout
    assert record(folder)["outcome"] == "rank-failed"
    nothing_left(at_rest, 5)


def test_a_submitted_run_restarts_within_its_job(at_rest: Slurm, folder: Path) -> None:
    options = ["--slurm", "--nodes", "2", "--log-dir", "logs", "--with", "python", "--max-restarts", "2"]
    job = [str(JOBS / "checkpointing.py"), str(folder), "15", "0.1", "kill:1:5"]
    run = Started(at_rest, folder, [*RUN, *options, "--", *job])
    assert run.wait() == 0, run.said()
    assert [one["decision"] for one in record(folder)["attempts"]] == ["same", "finished"], run.said()
    nothing_left(at_rest, 5)


def test_a_submitted_run_that_would_fail_again_is_not_to_be_requeued(at_rest: Slurm, folder: Path) -> None:
    options = ["--slurm", "--nodes", "2", "--log-dir", "logs", "--with", "python", "--max-restarts", "2"]
    job = [str(JOBS / "checkpointing.py"), str(folder), "15", "0.1", "name:1:1"]
    run = Started(at_rest, folder, [*RUN, *options, "--", *job])
    assert run.wait() == 93, run.said()
    nothing_left(at_rest, 5)


@pytest.mark.parametrize("more", [(), ("--max-restarts", "2")])
def test_ctrl_c_ends_a_submitted_run_and_leaves_nothing(
    at_rest: Slurm, folder: Path, more: tuple[str, ...]
) -> None:
    run = submitted(at_rest, folder, "stays.py", "stubborn", str(folder), more=more)
    run.wait_for("up ", 2)
    run.interrupt()
    assert run.wait() == 130, run.said()
    assert record(folder)["outcome"] == "interrupted"
    assert "nothing left behind" in run.stdout, run.said()
    nothing_left(at_rest, 5)


def test_ctrl_c_takes_a_waiting_job_out_of_the_queue(at_rest: Slurm, folder: Path) -> None:
    holder = at_rest.run(
        "sbatch", "--parsable", "--exclusive", "-N2", "-o/dev/null", "--wrap", "sleep 600"
    ).strip()
    at_rest.wait(lambda: at_rest.state(holder) == "RUNNING", "the holder runs", ENDED_S)
    try:
        run = submitted(at_rest, folder, "train.py")
        at_rest.wait(lambda: "waits: " in run.stderr, "it is said to wait", ENDED_S)
        run.interrupt()
        assert run.wait() == 130, run.said()
        assert record(folder)["outcome"] == "interrupted"
        assert at_rest.run("squeue", "-h", "-o", "%i").split() == [holder]
    finally:
        at_rest.run("scancel", holder)


def test_a_time_limit_ends_a_submitted_run_and_leaves_nothing(at_rest: Slurm, folder: Path) -> None:
    run = submitted(at_rest, folder, "stays.py", "stubborn", str(folder))
    run.wait_for("up ", 2)
    (job,) = at_rest.run("squeue", "-h", "-o", "%i").split()
    at_rest.run("scontrol", "update", f"JobId={job}", "EndTime=now+2")
    assert run.wait() == 143, run.said()
    assert f"Slurm reports for job {job}: TIMEOUT" in run.stderr, run.said()
    nothing_left(at_rest)


def test_what_sbatch_refuses_is_said_in_its_words(at_rest: Slurm, folder: Path) -> None:
    run = Started(at_rest, folder, [*RUN, "--slurm", "--nodes", "2", "--queue", "nowhere", "--", "train.py"])
    assert run.wait() == 4, run.said()
    assert "sbatch refused the job: " in run.stderr
    assert "invalid partition specified: nowhere" in run.stderr
