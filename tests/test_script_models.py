"""
The Kubernetes files against models of their kinds, offline.

`kubernetes` carries Job, Service and ConfigMap, `kubeflow-training` PyTorchJob, `kubeflow-trainer-api`
TrainJob and JobSet.  No package carries Volcano's Job: its pods are checked, and the file says so.
A model drops what it does not know, so what went in must come out again.
"""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringup.cli import command_line
from ringup.planning.launchers import LAUNCHERS

OPTIONS = [
    *("--nodes", "3", "--nproc", "8", "--cpus", "96", "--namespace", "team", "--queue", "gpu"),
    *("--image", "registry.example/torch:2.13", "--rdma", "rdma/hca_shared_devices_a", "--name", "My_job"),
    *("--env", "NCCL_DEBUG=INFO", "--env", "ODD=a: 'b' \"c\" $(NPROC) #", "--env", "API_KEY=k"),
    *("--python", "/opt/venv/bin/python", "--chdir", "/work dir", "--setup", "source env.sh"),
]
ODD = ("train it's.py", "$HOME `id` $(id) $$", 'a"b\\c', "$(NPROC)", "x: - y", "yes")


def model(name: str) -> Any:
    """A package with models; where all must run, it must be there."""
    try:
        return importlib.import_module(name)
    except ImportError:
        if os.environ.get("RINGUP_REQUIRE_LAB") == "1":
            raise
        pytest.skip(f"needs {name}: pip install '.[models]'")


def core(kind: str) -> Callable[[dict[str, Any]], Any]:
    """There and back through a model of Kubernetes' own client or of the training operator."""

    def convert(value: dict[str, Any]) -> Any:
        client = model("kubernetes.client").ApiClient()
        deserialize = client._ApiClient__deserialize
        return client.sanitize_for_serialization(deserialize(value, kind))

    return convert


def pytorch(value: dict[str, Any]) -> Any:
    """There and back through the training operator's models."""
    models = model("kubeflow.training.models")
    client = model("kubernetes.client").ApiClient()
    models.KubeflowOrgV1PyTorchJob  # noqa: B018  (it must be there)
    kubernetes = model("kubernetes.client.models")
    for name in dir(models):
        if name.startswith("KubeflowOrgV1"):
            setattr(kubernetes, name, getattr(models, name))
    return client.sanitize_for_serialization(client._ApiClient__deserialize(value, "KubeflowOrgV1PyTorchJob"))


def trainer(kind: str) -> Callable[[dict[str, Any]], Any]:
    """There and back through a model of the trainer's; types are strict there."""

    def convert(value: dict[str, Any]) -> Any:
        return getattr(model("kubeflow_trainer_api.models"), kind).from_dict(value).to_dict()

    return convert


MODELS = {
    ("v1", "Service"): core("V1Service"),
    ("batch/v1", "Job"): core("V1Job"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): trainer("JobsetV1alpha2JobSet"),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): trainer("TrainerV1alpha1TrainJob"),
    ("kubeflow.org/v1", "PyTorchJob"): pytorch,
}
KINDS = ("k8s-job", "jobset", "pytorchjob", "trainjob", "volcano")


def documents(capsys: pytest.CaptureFixture[str], kind: str, *options: str) -> list[dict[str, Any]]:
    """What `ringup script KIND` writes, read as YAML."""
    assert command_line.dispatch(["script", kind, *OPTIONS, *options, "--", *ODD]) == 0
    return list(model("yaml").safe_load_all(capsys.readouterr().out))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("launcher", ["torchrun", "python"])
def test_every_field_is_one_that_the_kind_has(
    capsys: pytest.CaptureFixture[str], kind: str, launcher: str
) -> None:
    for value in documents(capsys, kind, "--with", launcher):
        came_back(value, MODELS[value["apiVersion"], value["kind"]](value))


def came_back(given: Any, made: Any, where: str = "") -> None:
    """All that went in is there; a model may add defaults (a port's protocol)."""
    if isinstance(given, dict) and isinstance(made, dict):
        for key, value in given.items():
            came_back(value, made.get(key), f"{where}/{key}")
    elif isinstance(given, list) and isinstance(made, list) and len(given) == len(made):
        for number, value in enumerate(given):
            came_back(value, made[number], f"{where}[{number}]")
    else:
        assert given == made, where


def test_a_field_that_the_kind_has_not_is_noticed() -> None:
    wrong = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"completion": 2, "template": {"spec": {}}}}
    with pytest.raises((AssertionError, ValueError)):
        came_back(wrong, core("V1Job")(wrong))


def test_pods_of_a_volcano_job_are_pods(capsys: pytest.CaptureFixture[str]) -> None:
    (value,) = documents(capsys, "volcano")
    assert [task["replicas"] for task in value["spec"]["tasks"]] == [1, 2]
    assert value["spec"]["minAvailable"] == 3
    for task in value["spec"]["tasks"]:
        came_back(task["template"], core("V1PodTemplateSpec")(task["template"]))


def container(value: Any) -> dict[str, Any]:
    """The first container (or trainer) of a document: what has a command."""
    if isinstance(value, dict):
        if "command" in value:
            return value
        value = list(value.values())
    return next((c for entry in value if isinstance(entry, (dict, list)) if (c := container(entry))), {})


def by_kubernetes(text: str, names: set[str]) -> str:
    """What the kubelet makes of an argument: `$(NAME)` where it knows NAME, `$$` is `$` (expansion.go)."""
    made, at = "", 0
    while at < len(text):
        if text[at] == "$" and text[at + 1 : at + 2] == "$":
            made, at = made + "$", at + 2
        elif text[at : at + 2] == "$(" and ")" in text[at:]:
            end = text.index(")", at)
            name = text[at + 2 : end]
            made, at = made + ("EXPANDED" if name in names else text[at : end + 1]), end + 1
        else:
            made, at = made + text[at], at + 1
    return made


PLACES = {
    "k8s-job": {"JOB_COMPLETION_INDEX": "1"},
    "jobset": {"JOB_COMPLETION_INDEX": "1"},
    "pytorchjob": {"RANK": "1", "MASTER_ADDR": "my-job-master-0", "MASTER_PORT": "23456"},
    "trainjob": {
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "my-job-node-0-0.my-job",
        "PET_MASTER_PORT": "29500",
    },
    "volcano": {"RANK": "1", "MASTER_ADDR": "my-job-master-0.my-job", "MASTER_PORT": "23456"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_pod_starts_the_launcher_with_the_words_that_were_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str, launcher: str
) -> None:
    value = documents(capsys, kind, "--with", launcher)[-1]
    made = container(value)
    names = {entry["name"] for entry in made["env"]}
    script = by_kubernetes(made["args"][0], names | {"NPROC"})
    show = tmp_path / "python"
    show.write_text('#!/bin/bash\nprintf "%s\\0" "$@" "rank=${RANK-}" "host=${MASTER_ADDR-}" >>"$SHOWN"\n')
    show.chmod(0o755)
    script = script.replace("/opt/venv/bin/python", str(show))
    script = script.replace("cd '/work dir'", "").replace("source env.sh", "")
    env = {"PATH": os.environ["PATH"], "SHOWN": str(tmp_path / "shown"), "ADDRESS": "10.1.2.3", "RUN_ID": "r"}
    done = subprocess.run(
        [*made["command"], script], env={**env, **PLACES[kind]}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "shown").read_text().split("\0")
    at = words.index(ODD[1])
    assert tuple(words[at : at + len(ODD) - 1]) == ODD[1:]
    assert words[at - 1].endswith(ODD[0])
    head = {"k8s-job": "my-job-0.my-job", "jobset": "my-job-node-0-0.my-job"}
    host = head.get(kind) or PLACES[kind].get("MASTER_ADDR") or PLACES[kind]["PET_MASTER_ADDR"]
    assert any(host in word for word in words), words


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_stands_in_no_manifest(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    (entry,) = [e for e in container(documents(capsys, kind)[-1])["env"] if e["name"] == "API_KEY"]
    assert entry["valueFrom"] == {"secretKeyRef": {"name": "my-job-secrets", "key": "API_KEY"}}


@pytest.mark.parametrize("kind", KINDS)
def test_pods_have_shared_memory_and_may_lock_it(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    text = repr(documents(capsys, kind))
    assert "{'name': 'shm', 'emptyDir': {'medium': 'Memory'}}" in text
    assert "{'name': 'shm', 'mountPath': '/dev/shm'}" in text
    assert "IPC_LOCK" in text
    assert "'rdma/hca_shared_devices_a': '1'" in text
    assert "'nvidia.com/gpu': '8'" in text
