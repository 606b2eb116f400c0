"""
Kubernetes: Indexed Job, JobSet, PyTorchJob, TrainJob and Volcano's Job.

In all of them a pod is a node, one launcher runs in it, and the head is the pod with index 0, known by a
name that its headless Service gives it.  Pods have one interface, so none is chosen.

Sources: Kubernetes 1.33 batch/v1 and core/v1; JobSet v1alpha2; Kubeflow training-operator 1.9 and
trainer v1alpha1; Volcano batch.volcano.sh/v1alpha1 and its pytorch plugin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ringup.errors import LaunchError
from ringup.plan import EnvVar
from ringup.plan.formats import comment
from ringup.script import Asked
from ringup.script.words import (
    INTERFACE_NAMES,
    describe,
    is_secret,
    node_lines,
    quoted,
    variables,
    waits,
)
from ringup.script.yaml import Said, document, documents

PORT = 29500
SHM = "the default /dev/shm of 64 MB is too small for NCCL and data loaders"
MEMLOCK = "RDMA registers memory, which the default memlock limit forbids; without RDMA leave it out"
GRACE = "torchrun gives its ranks 30 s to end; the default 30 would cut it off"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")


def _name(asked: Asked) -> str:
    """
    The job's name, which becomes part of host names (RFC 1035 label).

    Raises LaunchError where it cannot.
    """
    name = asked.name.lower().replace("_", "-").replace(".", "-")
    if not _NAME.fullmatch(name):
        raise LaunchError(
            f"{name!r} cannot be part of a host name", hint="--name takes small letters, digits and -"
        )
    return name


def _meta(asked: Asked) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": _name(asked)}
    return {**meta, "namespace": asked.namespace} if asked.namespace else meta


def _script(asked: Asked, given: Mapping[str, str]) -> str:
    """What the container's bash runs; `given` are names and where they come from in this kind."""
    lines = (
        ["set -euo pipefail", f"cd {quoted(asked.job.chdir)}"] if asked.job.chdir else ["set -euo pipefail"]
    )
    lines += [asked.job.setup] if asked.job.setup else []
    lines += [f"PYTHON={quoted(asked.python)} NPROC={asked.nproc} NNODES={asked.nodes}"]
    # exec: a bash that stays is process 1 of the container and swallows SIGTERM.
    begun = [line.removeprefix("  ") for line in node_lines(asked)]
    lines += [f"{name}={value}" for name, value in given.items() if _uses(begun, name)]
    # Kubernetes reads $(NAME) and $$ in arguments itself; $$ is how it is told not to.
    return re.sub(r"\$(?=[$(])", "$$", "\n".join([*lines, *waits(asked), *begun])) + "\n"


def _uses(lines: Iterable[str], name: str) -> bool:
    """Whether a shell variable stands in the text."""
    return any(re.search(rf"\${name}\b|\b{name} ==", line) for line in lines)


def _environment(asked: Asked, *more: Said) -> list[Any]:
    """The container's variables, of `more` those that the launcher uses; a secret comes from a Secret."""
    entries: list[Any] = [said for said in more if _uses(node_lines(asked), said.value["name"])]
    for v in variables(asked):
        entries.append(Said(_variable(asked, v), v.because))
    return entries


def _variable(asked: Asked, v: EnvVar) -> dict[str, Any]:
    if not is_secret(v.name):
        return {"name": v.name, "value": v.value}
    secret = {"name": f"{_name(asked)}-secrets", "key": v.name}
    return {"name": v.name, "valueFrom": {"secretKeyRef": secret}}


def _from_field(name: str, path: str, because: str) -> Said:
    return Said({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}, because)


OWN_ADDRESS = _from_field("ADDRESS", "status.podIP", "this pod's address, told to the others")
RUN = _from_field("RUN_ID", "metadata.labels['batch.kubernetes.io/job-name']", "one name for all pods")


def _resources(asked: Asked) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    if asked.gpus:
        limits["nvidia.com/gpu"] = str(asked.gpus)
    if asked.cpus:
        limits["cpu"] = str(asked.cpus)
    if asked.rdma:
        limits[asked.rdma] = Said("1", "what your RDMA device plugin calls its devices")
    made: dict[str, Any] = {"limits": limits} if limits else {}
    return made


def _container(
    asked: Asked, name: str, given: Mapping[str, str], env: list[Any], port_name: str, port: int
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": name,
        "image": asked.image or Said("IMAGE", "yours: --image"),
        "command": ["bash", "-c"],
        "args": [_script(asked, given)],
    }
    if env:
        made["env"] = env
    made["ports"] = [{"name": port_name, "containerPort": port}]
    if _resources(asked):
        made["resources"] = _resources(asked)
    made["securityContext"] = Said({"capabilities": {"add": ["IPC_LOCK"]}}, MEMLOCK)
    made["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]
    return made


def _pod(container: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        **more,
        "restartPolicy": Said("Never", "a rank that comes back alone is waited for by nobody"),
        "terminationGracePeriodSeconds": Said(60, GRACE),
        "containers": [container],
        "volumes": [Said({"name": "shm", "emptyDir": {"medium": "Memory"}}, SHM)],
    }


def _head(asked: Asked, kind: str, *more: str) -> str:
    lines = [
        f"# {describe(asked)}",
        f"# Written by `ringup script {kind}`, yours to change.  Start it with: kubectl apply -f FILE",
        *(f"# {line}" for line in more),
    ]
    secrets = [v.name for v in asked.env if is_secret(v.name)]
    if secrets:
        keys = " ".join(f"--from-literal={name}=..." for name in secrets)
        lines.append(f"# Before: kubectl create secret generic {_name(asked)}-secrets {keys}")
    lines += [
        f"# On node {comment(v.node)} only: {v.name}={comment(v.value)}  ({comment(v.because)})"
        for v in asked.env
        if v.node is not None and v.name not in INTERFACE_NAMES
    ]
    return "\n".join(lines) + "\n"


NO_GANG = "The scheduler may start some pods only: those wait 15 minutes for the others (Kueue or Volcano"
NO_GANG_END = "start all or none)."


def indexed_job(asked: Asked) -> str:
    """An Indexed Job and the headless Service that gives its pods names."""
    name = _name(asked)
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _meta(asked),
        "spec": {
            "clusterIP": Said("None", "no address of its own: only the pods' names"),
            "publishNotReadyAddresses": Said(True, "the pods look for each other before they are ready"),
            "selector": {"job-name": name},
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    given = {
        "NODE_RANK": "$JOB_COMPLETION_INDEX",
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(PORT),
    }
    container = _container(asked, "train", given, _environment(asked, OWN_ADDRESS, RUN), "rendezvous", PORT)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": _meta(asked),
        "spec": _indexed(
            asked, _pod(container, subdomain=Said(name, f"with the Service: pods are {name}-INDEX.{name}"))
        ),
    }
    return _head(asked, "k8s-job", NO_GANG, NO_GANG_END) + documents(service, job)


def _indexed(asked: Asked, pod: dict[str, Any]) -> dict[str, Any]:
    """Specification of an Indexed Job."""
    return {
        "completions": asked.nodes,
        "parallelism": asked.nodes,
        "completionMode": Said("Indexed", "each pod knows its number: JOB_COMPLETION_INDEX"),
        "backoffLimit": Said(0, "one pod failed: the job has failed, and its other pods are ended"),
        "template": {"spec": pod},
    }


def job_set(asked: Asked) -> str:
    """A JobSet of one replicated Indexed Job; it makes the headless Service itself."""
    name = _name(asked)
    given = {
        "NODE_RANK": "$JOB_COMPLETION_INDEX",
        "MASTER_ADDR": f"{name}-node-0-0.{name}",
        "MASTER_PORT": str(PORT),
    }
    container = _container(asked, "train", given, _environment(asked, OWN_ADDRESS, RUN), "rendezvous", PORT)
    value = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _meta(asked),
        "spec": {
            "network": Said(
                {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
                f"pods are {name}-node-0-INDEX.{name}, and look for each other before they are ready",
            ),
            "failurePolicy": {"maxRestarts": Said(0, "a restart starts all pods anew")},
            "replicatedJobs": [
                {"name": "node", "replicas": 1, "template": {"spec": _indexed(asked, _pod(container))}}
            ],
        },
    }
    return _head(asked, "jobset", "Needs the JobSet controller.", NO_GANG, NO_GANG_END) + document(value)


def pytorch_job(asked: Asked) -> str:
    """Kubeflow's PyTorchJob v1: the operator names master and ranks of nodes."""
    given = {"RUN_ID": _name(asked), "NODE_RANK": "$RANK"}
    why = "what the operator calls RANK is this pod's number: the launcher numbers the ranks itself"
    env = _environment(asked, OWN_ADDRESS)
    container = _container(asked, "pytorch", given, env, "pytorchjob-port", 23456)
    container = {"name": Said("pytorch", "the operator looks for this name"), **_without(container, "name")}
    container["args"] = [Said(container["args"][0], why)]

    def replica(count: int) -> dict[str, Any]:
        pod = _pod(container)
        del pod["restartPolicy"]
        return {"replicas": count, "restartPolicy": "Never", "template": {"spec": pod}}

    specs: dict[str, Any] = {"Master": replica(1)}
    if asked.nodes > 1:
        specs["Worker"] = replica(asked.nodes - 1)
    value = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _meta(asked),
        "spec": {
            "nprocPerNode": str(asked.nproc),
            "runPolicy": {"backoffLimit": 0, "cleanPodPolicy": Said("Running", "what still runs is ended")},
            "pytorchReplicaSpecs": specs,
        },
    }
    text = "Needs Kubeflow's training-operator 1.x; it sets MASTER_ADDR and MASTER_PORT."
    return _head(asked, "pytorchjob", text) + document(value)


def _without(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in value.items() if k != key}


def train_job(asked: Asked) -> str:
    """Kubeflow's TrainJob v2 on the runtime `torch-distributed`, which sets torchrun's PET_ variables."""
    given = {
        "RUN_ID": _name(asked),
        "NODE_RANK": "$PET_NODE_RANK",
        "MASTER_ADDR": "$PET_MASTER_ADDR",
        "MASTER_PORT": "$PET_MASTER_PORT",
        "ADDRESS": '"$(hostname -i | cut -d" " -f1)"',
    }
    trainer: dict[str, Any] = {
        "numNodes": asked.nodes,
        "numProcPerNode": Said(asked.nproc, "auto would be the number of CPUs where no GPU is asked for"),
        "image": asked.image or Said("IMAGE", "yours: --image"),
        "command": ["bash", "-c"],
        "args": [_script(asked, given)],
    }
    env = _environment(asked)
    if env:
        trainer["env"] = env
    if _resources(asked):
        trainer["resourcesPerNode"] = _resources(asked)
    patch = {
        "containers": [
            {
                "name": "node",
                "securityContext": Said({"capabilities": {"add": ["IPC_LOCK"]}}, MEMLOCK),
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "terminationGracePeriodSeconds": Said(60, GRACE),
        "volumes": [Said({"name": "shm", "emptyDir": {"medium": "Memory"}}, SHM)],
    }
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": patch}}}}]
    patches = [
        {
            "manager": "ringup.script/file",
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
        }
    ]
    value = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": _meta(asked),
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": trainer,
            "runtimePatches": Said(
                patches, "what the runtime's pods need besides; trainer 2.3 knows this field"
            ),
        },
    }
    return _head(
        asked,
        "trainjob",
        "Needs Kubeflow's trainer 2.3 with its runtime torch-distributed, which sets PET_MASTER_ADDR ...",
    ) + document(value)


def volcano(asked: Asked) -> str:
    """Volcano's Job with its pytorch plugin: all pods or none are started."""
    given = {"RUN_ID": _name(asked), "NODE_RANK": "$RANK"}
    container = _container(asked, "train", given, _environment(asked, OWN_ADDRESS), "pytorchjob", 23456)
    tasks: list[dict[str, Any]] = [
        {
            "name": "master",
            "replicas": 1,
            "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
            "template": {"spec": _pod(container)},
        }
    ]
    if asked.nodes > 1:
        worker = {"name": "worker", "replicas": asked.nodes - 1, "template": {"spec": _pod(container)}}
        tasks.append(worker)
    options = ["--master=master", "--worker=worker", "--port=23456", "--wait-master-enabled=true"]
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "minAvailable": Said(asked.nodes, "a gang: no pod starts before all can"),
        "plugins": Said(
            {"pytorch": options, "svc": [], "env": []},
            "they set MASTER_ADDR, MASTER_PORT and, by pod, RANK and WORLD_SIZE",
        ),
        "policies": [
            {"event": "PodFailed", "action": "AbortJob"},
            {"event": "PodEvicted", "action": "AbortJob"},
        ],
        "tasks": tasks,
    }
    if asked.queue:
        spec["queue"] = asked.queue
    value = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": _meta(asked), "spec": spec}
    return _head(
        asked,
        "volcano",
        "Needs Volcano.  No package carries a model of this kind: its fields were checked against Volcano's",
        "documentation, not by a schema; `kubectl apply --dry-run=server` asks the cluster.",
    ) + document(value)
