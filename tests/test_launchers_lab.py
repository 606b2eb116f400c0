"""
Every launcher really started on two hosts: it trains where a plain start hangs, and tells who failed.

`tools/get-launchers.sh` makes the environment they are in.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.jobs.launched import JOBS, Launched

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

PYTHON = Path(__file__).parent.parent / ".venv-launchers" / "bin" / "python"
NET = "192.168.7.10/24"


class Case(NamedTuple):
    """A launcher, its script, and what the script needs."""

    script: str
    options: tuple[str, ...] = ()
    ending: str = "{rank} {end}"
    """Arguments that have a rank end before its time."""
    is_first: bool = True
    """Whether the rank is told by its number; else its node is."""


CASES = {
    "accelerate": Case("train_accelerate.py"),
    "deepspeed": Case("train_deepspeed.py", ("--env", "DS_ACCELERATOR=cpu")),
    "colossalai": Case("train_colossalai.py"),
    "llamafactory": Case(
        "sft.yaml", ("--env", f"PYTHONPATH={JOBS / 'llamafactory_stub'}"), ending="rank={rank} end={end}"
    ),
    "jax": Case("train_jax.py", ("--env", "JAX_PLATFORMS=cpu")),
    "python": Case("train_env.py"),
    "launch": Case("train_local_rank.py"),
    "spawn": Case("train_spawn.py", is_first=False),
}
TRAINS = [(name, "static") for name in CASES if name != "jax"] + [("accelerate", "c10d")]


@pytest.fixture(autouse=True)
def _launchers() -> None:
    if not PYTHON.exists():
        if os.environ.get("RINGUP_REQUIRE_LAB") == "1":
            pytest.fail("RINGUP_REQUIRE_LAB=1, but there is no .venv-launchers", pytrace=False)
        pytest.skip("no .venv-launchers (tools/get-launchers.sh)")


def started(lab: Any, name: str, *arguments: str, nproc: int = 1, options: tuple[str, ...] = ()) -> Launched:
    """The run of a launcher's own script."""
    case = CASES[name]
    chosen = ("--with", name, "--python", str(PYTHON), *case.options, *options)
    return Launched(lab, case.script, *arguments, nproc=nproc, options=chosen)


@pytest.mark.parametrize(("name", "rdzv"), TRAINS)
def test_it_trains_around_article_002(lab: Any, name: str, rdzv: str) -> None:
    cluster = lab(hosts=2, net=NET)
    cluster.fault("article-002")
    with started(cluster, name, nproc=2, options=("--rdzv", rdzv)) as run:
        assert run.wait() == 0, run.said()
        assert run.stdout.count("trained to the end") == 4, run.said()
        assert run.record["outcome"] == "ok"
        assert run.record["cleanup"] == []
        run.leaves_nothing()
        shown = {line.partition("|")[0] for line in run.stdout.splitlines()}
        files = {path.name for path in run.log_dir.glob("*.log") if path.stat().st_size}
        if name == "spawn":
            assert shown == {"node0", "node1"}
            assert {"node0-launcher.log", "node1-launcher.log"} <= files
        else:
            assert {"node0:0", "node0:1", "node1:2", "node1:3"} <= shown, run.said()
            assert {f"rank-0000{i}-node{i // 2}.log" for i in range(4)} <= files


def test_jax_trains_on_healthy_hosts_as_several_processes_each(lab: Any) -> None:
    with started(lab(hosts=2, net=NET), "jax", nproc=2) as run:
        assert run.wait() == 0, run.said()
        assert run.stdout.count("trained to the end") == 4, run.said()
        run.leaves_nothing()


def test_jax_on_cpus_is_stopped_by_article_002_before_it_hangs(lab: Any) -> None:
    cluster = lab(hosts=2, net=NET)
    cluster.fault("article-002")
    with started(cluster, "jax") as run:
        assert run.wait() == 1, run.said()
        assert run.record["outcome"] == "check-stopped"
        assert "10.12.5.64" in run.record["findings"][0]["found"]
        assert "no variable changes that" in run.record["findings"][0]["fix"]["text"]


def test_jax_finds_its_coordinator_where_a_web_proxy_is_set(lab: Any) -> None:
    cluster = lab(hosts=2, net=NET)
    with started(cluster, "jax", options=("--env", "https_proxy=http://192.168.7.99:3128")) as run:
        assert run.wait() == 0, run.said()


ENDS = [(name, "3", 3) for name in ("accelerate", "llamafactory", "jax", "launch", "spawn")]
ENDS += [(name, "kill", 128 + 9) for name in ("deepspeed", "python", "spawn")]


@pytest.mark.parametrize(("name", "end", "code"), ENDS)
def test_how_a_rank_ended_is_how_the_run_ends(lab: Any, name: str, end: str, code: int) -> None:
    case = CASES[name]
    with started(lab(hosts=2, net=NET), name, *case.ending.format(rank=1, end=end).split()) as run:
        assert run.wait() == code, run.said()
        failure = run.record["first_failure"]
        assert (run.record["outcome"], failure["node"]) == ("rank-failed", "node1"), run.said()
        assert failure["rank"] == (1 if case.is_first else None)
        run.leaves_nothing()


@pytest.mark.parametrize("name", ["deepspeed", "jax", "spawn"])
def test_ctrl_c_leaves_nothing(lab: Any, name: str) -> None:
    with started(lab(hosts=2, net=NET), name, "1", "stay") as run:
        run.wait_for_output("stays")
        os.killpg(run.process.pid, signal.SIGINT)
        assert run.wait() == 130, run.said()
        assert run.record["outcome"] == "interrupted"
        run.leaves_nothing()


def test_a_launcher_that_is_not_there_stops_the_run_with_the_command_that_installs_it(lab: Any) -> None:
    cluster = lab(hosts=2, net=NET)
    with Launched(cluster, "train.py", options=("--with", "colossalai")) as run:
        assert run.wait() == 1, run.said()
        assert run.record["outcome"] == "check-stopped"
        assert [f["rule"] for f in run.record["findings"][:2]] == ["python-or-launcher-missing"] * 2
        assert "-m pip install colossalai" in run.record["findings"][0]["fix"]["commands"][0]
        assert run.stdout == ""
