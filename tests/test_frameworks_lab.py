"""
Frameworks as their own documentation starts them form one world of all ranks on hosts without GPUs.

`tools/get-launchers.sh` makes the environment they are in.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.launched import Launched
from tests.test_launchers_lab import NET, PYTHON, _launchers  # noqa: F401

pytestmark = [pytest.mark.lab, pytest.mark.torch, pytest.mark.slow]

OWN = ["--python", str(PYTHON)]


def started(
    lab: Any, script: str, *arguments: str, options: tuple[str, ...] = (), nproc: int = 1
) -> Launched:
    return Launched(lab(hosts=2, net=NET), script, *arguments, nproc=nproc, options=(*OWN, *options))


@pytest.mark.parametrize(
    ("script", "launcher", "arguments"),
    [
        ("own_accelerate.py", "accelerate", []),
        ("own_accelerate.py", "torchrun", []),
        ("own_trainer.py", "accelerate", ["{folder}/model"]),
        ("own_trainer.py", "torchrun", ["{folder}/model"]),
        ("own_lightning.py", "torchrun", ["2"]),
        ("own_deepspeed.py", "deepspeed", []),
        ("own_deepspeed.py", "torchrun", []),
        ("own_jax.py", "jax", []),
    ],
)
def test_it_forms_one_world_of_two_hosts(lab: Any, script: str, launcher: str, arguments: list[str]) -> None:
    with started(lab, script, *arguments, options=("--with", launcher)) as run:
        assert run.wait() == 0, run.said()
        assert run.stdout.count("a world of 2, sum 3") == 2, run.said()
        rules = [finding["rule"] for finding in run.record["findings"]]
        assert "world-never-formed" not in rules


def test_accelerate_that_is_told_to_train_alone_is_named(lab: Any) -> None:
    alone = ("--with", "accelerate", "--env", "ACCELERATE_USE_CPU=false")
    with started(lab, "own_accelerate.py", options=alone) as run:
        assert run.wait() == 0, run.said()
        assert run.stdout.count("a world of 1, sum 1") == 2, run.said()
        assert run.record["findings"][-1]["rule"] == "world-never-formed"
        said = "each of the 2 ranks counted one process in its world: rank 0 on node0, rank 1 on node1"
        assert f"warning the run: {said}" in run.stderr


def test_two_worlds_of_spawned_ranks_are_named(lab: Any) -> None:
    with started(lab, "own_spawn.py", "20", options=("--anyway",)) as run:
        assert run.wait() == 0, run.said()
        assert run.stdout.count("a world of 2, sum 3") == 4, run.said()
        assert run.record["findings"][-1]["rule"] == "world-never-formed"
        parts = "2 parts of the run: node0 (all of its ranks), node1 (all of its ranks)"
        assert f"warning the run: no connection was seen between {parts}" in run.stderr


def test_a_detached_run_tells_it_to_attach(lab: Any) -> None:
    with started(lab, "own_spawn.py", "20", options=("--anyway", "--detach")) as run:
        assert run.wait() == 0, run.said()
        run.attach()
        assert run.wait() == 0, run.said()
        assert "warning the run: no connection was seen between 2 parts of the run" in run.stderr
