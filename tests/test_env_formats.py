"""The formats of `ringup env`: complete, valid for their readers, and safe whatever the values are."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from ringup.model import Container
from ringup.planning import EnvVar, env_formats
from ringup.planning.env_formats import FORMATS, Machine
from tests import clusters as c
from tests.test_env import cluster, ib
from tests.test_script_quoting import expanded

EVERYWHERE = EnvVar("NCCL_IB_HCA", "=mlx5_0,mlx5_1", "a bond\nis left $(out)")
HERE = EnvVar("NCCL_SOCKET_IFNAME", "=a b", "names differ", node="n1")
EVIL = [
    "$(touch canary)",
    "`touch canary`",
    "'; touch canary; '",
    '"; touch canary; "',
    "a\ntouch canary\n",
    "x # y",
    "\x1b[2J\x7f\x85\u2028\u202e",
    "no",
    "",
    "{a: b}",
    "- x",
    "é\U0001f600",
    "%s\\n\\",
]
IGNORED = "SC2034,SC2016,SC1003,SC1111,SC1112,SC2089,SC2090"
"""The array is used by the last line; the rest is the evil values, meant as they stand."""
MACHINES = [Machine(), Machine(8, True), Machine(8, False), Machine(0, None), Machine(8, True, in_pod=True)]


def evil() -> list[EnvVar]:
    """Variables whose values, reasons and nodes are hostile."""
    made = [EnvVar(f"NCCL_V{k}", value, f"because {value}") for k, value in enumerate(EVIL)]
    # A name of a node never holds a line end: reach refuses it.
    nodes = [v.replace("\n", " ") or "n0" for v in EVIL]
    return made + [EnvVar("NCCL_HERE", v, v, node=n) for v, n in zip(EVIL, nodes, strict=True)]


def run(script: str, folder: Path, shell: str = "sh") -> str:
    done = subprocess.run(
        [shell, "-eu", "-c", script], capture_output=True, cwd=folder, env={"PATH": os.environ["PATH"]}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode("utf-8", "surrogateescape")


def test_a_shell_gets_exactly_the_values_of_its_node(tmp_path: Path) -> None:
    here = replace(HERE, node=run("hostname -s", tmp_path).strip())
    script = (
        env_formats.shell([EVERYWHERE, here], Machine())
        + '\nprintf "%s|%s" "$NCCL_IB_HCA" "$NCCL_SOCKET_IFNAME"'
    )
    assert run(script, tmp_path) == "=mlx5_0,mlx5_1|=a b"


def test_a_slurm_step_gets_those_of_its_node_and_no_others(tmp_path: Path) -> None:
    script = "SLURMD_NODENAME=n2\n" + env_formats.slurm([EVERYWHERE, HERE], Machine())
    assert run(script + '\nprintf "%s" "${NCCL_SOCKET_IFNAME-unset}"', tmp_path) == "unset"
    assert run(script.replace("=n2", "=n1", 1) + '\nprintf "%s" "$NCCL_SOCKET_IFNAME"', tmp_path) == "=a b"


@pytest.mark.parametrize("name", ["shell", "slurm"])
def test_hostile_values_arrive_unchanged_and_execute_nothing(name: str, tmp_path: Path) -> None:
    ask = "\n".join(f'printf "%s\\0" "$NCCL_V{k}"' for k in range(len(EVIL)))
    told = run(f"SLURMD_NODENAME=none\n{FORMATS[name](evil(), Machine())}\n{ask}", tmp_path)
    assert told.split("\0")[:-1] == EVIL
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("machine", MACHINES)
def test_docker_gets_the_values_as_words_of_an_array(machine: Machine, tmp_path: Path) -> None:
    script = env_formats.docker(evil(), machine) + '\nprintf "%s\\0" "${options[@]}"'
    words = run(script, tmp_path, "bash").split("\0")[:-1]
    given = [w.partition("=")[2] for at, w in enumerate(words) if at and words[at - 1] == "--env"]
    assert given[: len(EVIL)] == EVIL
    assert not (tmp_path / "canary").exists()
    assert "--shm-size" in words and "--network" in words
    assert ("--gpus" in words) == bool(machine.gpu_count)
    assert ("/dev/infiniband" in words) == (machine.has_rdma is not False)
    assert ("memlock=-1:-1" in words) == ("IPC_LOCK" in words) == (machine.has_rdma is not False)


def test_docker_sets_a_nodes_own_variable_on_that_node_alone(tmp_path: Path) -> None:
    script = env_formats.docker([HERE], Machine()) + '\nprintf "%s\\n" "${options[@]}"'
    assert "NCCL_SOCKET_IFNAME" not in run(script, tmp_path, "bash")


def pod(env: Sequence[EnvVar], machine: Machine) -> dict[str, Any]:
    """The specification as a reader of YAML has it."""
    found: dict[str, Any] = yaml.safe_load(env_formats.k8s(env, machine))
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_a_pod_gets_shared_memory_and_what_its_devices_need(machine: Machine) -> None:
    spec = pod([EVERYWHERE], machine)
    container = spec["containers"][0]
    assert container["env"] == [{"name": "NCCL_IB_HCA", "value": "=mlx5_0,mlx5_1"}]
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert spec["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    limits = container.get("resources", {}).get("limits", {})
    assert limits.get("nvidia.com/gpu", 0) == machine.gpu_count
    rdma = machine.has_rdma is not False
    assert ("rdma/hca" in limits) == rdma
    assert ("securityContext" in container) == rdma


def test_hostile_values_in_a_pod_are_what_they_were() -> None:
    env = pod(evil(), Machine())["containers"][0]["env"]
    assert [expanded(v["value"], {}) for v in env] == EVIL
    assert all(isinstance(v["value"], str) for v in env)


def test_a_machines_interface_names_need_its_network_and_a_pods_own_do_not() -> None:
    pinned = replace(HERE, node=None)
    assert pod([pinned], Machine())["hostNetwork"] is True
    assert "hostNetwork" not in pod([pinned], Machine(in_pod=True))
    assert "hostNetwork" not in pod([EVERYWHERE], Machine())


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_holds_each_variable_and_reason(name: str) -> None:
    text = FORMATS[name]([EVERYWHERE, HERE], Machine(8, True))
    assert "=mlx5_0,mlx5_1" in text and "a bond is left $(out)" in text and "names differ" in text


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_sends_a_control_character_to_the_terminal_in_a_reason(name: str) -> None:
    text = FORMATS[name]([EnvVar("NCCL_NET", "IB", "\x1b]0;x\x07\nnew line")], Machine())
    assert "\x1b" not in text and "\x07" not in text and "new line" in text


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck here")
@pytest.mark.parametrize(("name", "dialect"), [("shell", "sh"), ("slurm", "sh"), ("docker", "bash")])
def test_shellcheck_has_no_complaint(name: str, dialect: str) -> None:
    for machine in MACHINES:
        text = FORMATS[name]([EVERYWHERE, HERE, *evil()], machine)
        # SC2034 is for the array, which the last line uses; SC2016 for the values of `evil`, meant literally.
        done = subprocess.run(
            ["shellcheck", "-s", dialect, "-e", IGNORED, "-"],
            input=text, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


def test_what_a_container_needs_is_read_off_the_nodes() -> None:
    assert Machine.of(c.healthy()) == Machine(0, False)
    made = c.changed(cluster(ib("mlx5_0")), "node1", gpu_count=8)
    assert Machine.of(made) == Machine(8, True)
    assert Machine.of(c.changed(c.healthy(), "node1", unknown={"rdma_ports": "no sysfs"})).has_rdma is None
    pods = replace(
        c.healthy(), nodes=tuple(replace(n, container=Container("kubernetes")) for n in made.nodes)
    )
    assert Machine.of(pods).in_pod
