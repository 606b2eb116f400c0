"""
Real runs that hang: the right rank, node and line are named; and real runs that are only slow.

On nodes simulated on this machine, so for any user; two cases on lab hosts besides.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ringup.logs.read import read_logs
from tests.guards import PATIENCE_S, free_port, wait_for
from tests.jobs.launched import JOBS, Launched

pytestmark = [pytest.mark.slow, pytest.mark.torch]

STUCK = JOBS / "stuck.py"
WINDOW_S = "4"
REPORTED_S = 240
"""A bound for a loaded machine, four imports of torch included; bench/hangs.py tells how long it takes."""


def line_of(function: str) -> str:
    """ "stuck.py:42": the line marked "# here" in a function of the job."""
    inside = False
    for number, line in enumerate(STUCK.read_text().splitlines(), 1):
        if re.match(r"\s*def ", line):
            inside = f"def {function}(" in line
        if inside and line.endswith("# here"):
            return f"stuck.py:{number}"
    raise AssertionError(function)


class Run:
    """`ringup run --local 2` of a job of ours: two ranks, and no torchrun, which imports torch as well."""

    def __init__(
        self,
        folder: Path,
        script: str,
        *arguments: str,
        nproc: int = 1,
        launcher: str = "python",
        options: Sequence[str] = (),
    ) -> None:
        self.log_dir = folder / "log"
        words = [sys.executable, "-m", "ringup", "run", "--local", "2", "--nproc", str(nproc)]
        words += ["--backend", "gloo", "--with", launcher]
        words += ["--hang-report", WINDOW_S, "--log-dir", str(self.log_dir), *options]
        words += ["--env", f"MASTER_PORT={free_port()}"]  # the usual one is everybody's
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                [*words, "--", str(JOBS / script), *arguments], cwd=folder, stdout=out, stderr=err
            )
        self.folder = folder

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(180)

    def said(self) -> str:
        return (self.folder / "err").read_text() + (self.folder / "out").read_text()[-2000:]

    def record(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.log_dir / "run.json").read_text())
            return found
        except FileNotFoundError:
            return {}

    def hangs(self) -> list[dict[str, Any]]:
        """What it reported as a hang so far."""
        return [one for one in self.record().get("hangs", ()) if one["verdict"] == "stalled"]

    def hang(self) -> dict[str, Any]:
        """The first, once there is one."""

        def reported() -> bool:
            assert self.process.poll() is None, self.said()
            return bool(self.hangs())

        wait_for(reported, f"a report; {self.folder}/err", REPORTED_S)
        return self.hangs()[0]


SLOW = ("tokenise,save,checkpoint", "compile,first_step,fetch", "loader,uneven")
NAMED = {
    "sleep": line_of("sleep"),
    "read": line_of("read"),
    "disk": line_of("disk"),
    "other_kind": line_of("other_kind"),
}


@pytest.mark.parametrize("how", ["read", "disk"])
def test_the_rank_that_holds_a_run_up_is_named_with_its_line(how: str, tmp_path: Path) -> None:
    with Run(tmp_path, "stuck.py", how, "1", str(tmp_path)) as run:
        hang = run.hang()
        (missing,) = hang["missing"]
        assert (missing["rank"], missing["node"]) == (1, "127.0.0.3"), run.said()
        assert NAMED[how] in missing["where"], run.said()
        assert hang["collective"] == "all_reduce" and len(run.hangs()) == 1
        assert "no progress for" in run.said()


def test_a_rank_is_named_for_which_the_other_polls_in_its_own_code(tmp_path: Path) -> None:
    with Run(tmp_path, "stuck.py", "polled", "1", str(tmp_path)) as run:
        hang = run.hang()
        assert [m["rank"] for m in hang["missing"]] == [1], run.said()
        assert hang["collective"] == "all_reduce" and "has not started collective" in run.said(), run.said()


def test_a_rank_that_calls_another_shape_is_named_and_so_it_is_when_the_user_interrupts(
    tmp_path: Path,
) -> None:
    options = ["--max-restarts", "3"]
    with Run(tmp_path, "stuck.py", "other_shape", "3", nproc=2, launcher="torchrun", options=options) as run:
        hang = run.hang()
        assert [one["rank"] for one in hang["missing"]] == [3], run.said()
        assert any("all_reduce [3] Float on rank 3" in line for line in hang["lines"]), run.said()
        assert line_of("other_shape") in hang["missing"][0]["where"], run.said()
        stays = "the run continues; `--hang-timeout S` ends and restarts a run that hangs"
        wait_for(lambda: stays in run.said(), "that it stays")
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(PATIENCE_S) == 130, run.said()
        record = run.record()
        assert (record["outcome"], record["verdict"]["text"]) == ("interrupted", hang["headline"])
        held = f"no progress before it was interrupted: {hang['headline']}"
        (end,) = run.log_dir.rglob("ringup.log")
        assert held in end.read_text() and held not in run.said()
        (cause,) = read_logs([str(run.log_dir)]).causes
        assert cause.rule == "collective-mismatch", cause


def test_a_stopped_rank_is_named_and_said_to_go_on_once_it_does(tmp_path: Path) -> None:
    with Run(tmp_path, "stuck.py", "stop", "1", str(tmp_path)) as run:
        (missing,) = run.hang()["missing"]
        assert missing["rank"] == 1 and missing["node"] == "127.0.0.3"
        assert "stopped (state T" in missing["where"]
        if Path(sys.executable).with_name("py-spy").exists():
            assert line_of("stop") in missing["where"], run.said()
        else:
            assert "no py-spy on this node" in run.said()
        (pid,) = (rank["pid"] for rank in run.record()["ranks"] if rank["rank"] == 1)
        subprocess.run(["kill", "-CONT", str(pid)], check=True)
        wait_for(lambda: "the run continues" in run.said(), "its going on", REPORTED_S)


def test_a_rank_that_skips_a_collective_is_named_by_where_it_is(tmp_path: Path) -> None:
    with Run(tmp_path, "stuck.py", "skip", "2", nproc=2) as run:
        (missing,) = run.hang()["missing"]
        lines = STUCK.read_text().splitlines()
        (number,) = (n for n, line in enumerate(lines, 1) if "dist.broadcast(" in line)
        assert missing["rank"] == 2 and f"stuck.py:{number}" in missing["where"], run.said()


def test_a_worker_of_the_data_loader_is_named_below_its_rank(tmp_path: Path) -> None:
    with Run(tmp_path, "stuck.py", "loader", "0", str(tmp_path), launcher="torchrun") as run:
        hang = run.hang()
        (missing,) = hang["missing"]
        assert missing["rank"] == 0 and missing["where"].startswith("DataLoader next"), run.said()
        assert any(line_of("__getitem__") in line for line in hang["lines"]), hang


@pytest.mark.parametrize(("method", "nproc"), [("fork", 2), ("spawn", 1)])
def test_of_ranks_that_the_script_starts_itself_the_process_is_named(
    method: str, nproc: int, tmp_path: Path
) -> None:
    if method == "spawn" and not Path(sys.executable).with_name("py-spy").exists():
        pytest.skip("no py-spy beside this Python: only forked processes tell their stack themselves")
    with Run(tmp_path, "spawned_stuck.py", method, nproc=nproc, launcher="spawn") as run:
        hang = run.hang()
        (missing,) = hang["missing"]
        assert (missing["rank"], missing["node"]) == (None, "127.0.0.3"), run.said()
        assert "time.sleep(3600)" in missing["where"] and hang["collective"] == "all_reduce", run.said()


@pytest.mark.parametrize(
    ("how", "rule"), [("sleep", "rank-fell-behind"), ("other_kind", "collective-mismatch")]
)
def test_a_hung_run_is_ended_with_124_and_run_and_logs_name_the_same_rank(
    how: str, rule: str, tmp_path: Path
) -> None:
    with Run(tmp_path, "stuck.py", how, "3", nproc=2, options=["--hang-timeout", "8"]) as run:
        assert run.process.wait(REPORTED_S) == 124, run.said()
        record, (hang,) = run.record(), run.hangs()
        assert (record["outcome"], record["exit_code"]) == ("hung", 124)
        (missing,) = hang["missing"]
        assert (missing["rank"], missing["node"]) == (3, "127.0.0.3"), run.said()
        assert NAMED[how] in missing["where"] and hang["collective"] == "all_reduce", run.said()
        assert "no progress for" in run.said()
        assert (record["verdict"]["rule"], record["verdict"]["ranks"]) == (rule, [3])
        cause = read_logs([str(run.log_dir)]).causes[0]
        assert (cause.rule, cause.ranks) == (rule, (3,)), run.said()


def test_ranks_that_wait_where_nobody_listens_are_ended_and_no_collective_is_blamed(tmp_path: Path) -> None:
    with Run(tmp_path, "no_store.py", options=["--hang-timeout", "10"]) as run:
        assert run.process.wait(REPORTED_S) == 124, run.said()
        assert run.record()["verdict"]["rule"] == "init-never-finished"
        assert "every rank waits in TCPStore" in run.said()


def test_a_rank_that_left_with_code_0_is_named_beside_the_one_it_took_along(tmp_path: Path) -> None:
    with Run(tmp_path, "stuck.py", "leave", "3", nproc=2, launcher="torchrun") as run:
        assert run.process.wait(REPORTED_S) != 0
        assert "exited earlier, with code 0: rank 3 on 127.0.0.3" in run.said(), run.said()
        cause = read_logs([str(run.log_dir)]).causes[0]
        assert (cause.rule, cause.ranks) == ("uneven-batches-between-ranks", (3,)), run.said()


@pytest.mark.parametrize("how", SLOW)
def test_a_run_that_is_only_slow_is_not_called_hung(how: str, tmp_path: Path) -> None:
    with Run(tmp_path, "slow_but_well.py", how, "12", options=["--hang-timeout", "6"]) as run:
        assert run.process.wait(REPORTED_S) == 0, run.said()
        assert not run.hangs(), run.said()


def test_a_run_that_is_not_to_be_watched_is_not(tmp_path: Path) -> None:
    with Run(tmp_path, "slow_but_well.py", "tokenise", "5", options=["--hang-report", "0"]) as run:
        assert run.process.wait(REPORTED_S) == 0, run.said()
        assert run.record()["hangs"] == [] and "no output for" not in run.said()


@pytest.mark.lab
@pytest.mark.parametrize("how", [pytest.param("sleep", marks=pytest.mark.smoke), "disk"])
def test_on_four_hosts_the_one_with_the_missing_rank_is_named(how: str, shared_lab: Any) -> None:
    hosts = ",".join(f"node{n}" for n in range(4))
    options = ["--hang-report", WINDOW_S]
    lab = shared_lab(hosts=4)
    with Launched(lab, "stuck.py", how, "5", "{folder}", hosts=hosts, nproc=2, options=options) as run:
        wait_for(lambda: run.record.get("hangs"), "a report", REPORTED_S)

        def stalled() -> Any:
            return [one for one in run.record["hangs"] if one["verdict"] == "stalled"]

        (hang,) = wait_for(stalled, "a hang", REPORTED_S)
        (missing,) = hang["missing"]
        assert (missing["rank"], missing["node"]) == (5, "node2") and NAMED[how] in missing["where"]
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130
