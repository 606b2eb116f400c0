"""What frameworks are told on nodes without GPUs, and that nothing is told where more may be there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringup.model import Cluster, Job
from ringup.planning import devices
from tests import clusters as c

PACKAGES = {"torch": "2.13.0", "accelerate": "1.15.0", "deepspeed": "0.19.8", "jax": "0.10.2"}


def nodes(packages: dict[str, str] = PACKAGES, torch: str = "2.13.0+cpu", **job: Any) -> Cluster:
    """Two nodes without GPUs."""
    base = c.healthy(2, job=Job(**job))
    own = replace(c.TORCH, torch=torch, packages=packages)
    return replace(base, nodes=tuple(replace(n, interpreter=own, gpu_count=0) for n in base.nodes))


def told(cluster: Cluster, world_size: int = 2) -> dict[str, str]:
    return {v.name: v.value for v in devices.for_cpus(cluster, world_size)}


def test_installed_frameworks_are_told_to_train_on_cpus_together() -> None:
    assert told(nodes()) == {"ACCELERATE_USE_CPU": "true", "DS_ACCELERATOR": "cpu"}
    assert told(nodes(launcher="jax"))["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] == "gloo"
    assert told(nodes({"torch": "2.13.0", "jax": "0.10.2"})) == {}
    reason = devices.for_cpus(nodes(), 2)[0].because
    assert reason == "no node has a GPU: Accelerate and Trainer would train each rank alone"


@pytest.mark.parametrize(
    "cluster",
    [
        c.changed(nodes(), "node1", gpu_count=8),
        c.changed(nodes(), "node1", unknown={"gpu_count": "nvidia-smi did not answer"}),
        c.changed(nodes(), "node1", unknown={"interpreter": "not found"}),
        nodes({**PACKAGES, "torch_npu": "2.5.1"}),
        nodes({**PACKAGES, "habana_torch_plugin": "1.20"}),
        nodes(torch="2.13.0+xpu"),
    ],
    ids=["a GPU on one node", "uncounted GPUs", "unknown packages", "an NPU", "Gaudi", "Intel's GPUs"],
)
def test_nobody_is_told_who_may_have_more_than_cpus(cluster: Cluster) -> None:
    assert told(cluster) == {}


def test_what_the_user_sets_stays_and_one_rank_needs_nothing() -> None:
    assert told(nodes(env={"ACCELERATE_USE_CPU": "false"})) == {"DS_ACCELERATOR": "cpu"}
    in_the_shell = c.changed(nodes(), "node0", environment={"DS_ACCELERATOR": "xpu"})
    assert told(in_the_shell) == {"ACCELERATE_USE_CPU": "true"}
    assert told(nodes(), world_size=1) == {}
