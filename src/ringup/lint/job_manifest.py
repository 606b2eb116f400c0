"""Faults in a manifest that keep its pods from starting together, or from finding each other."""

from __future__ import annotations

import difflib
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ringup.launchfiles.manifests import Node, listed, node_at, number, pairs, scalar, value_at
from ringup.launchfiles.model import Launch
from ringup.lint.job_file import JobFile
from ringup.lint.rule import SHELL, Found, fault
from ringup.rules import Finding, Fix
from ringup.units import printable


def _within(job: JobFile, node: Node) -> list[Launch]:
    """The launches whose lines are in a part of the manifest."""
    begin, end = node.start_mark.line + 1, node.end_mark.line + 1
    return [launch for launch in job.launches if begin <= launch.line <= end]


@fault("gang-larger-than-job", SHELL, each="job.documents")
def gang_larger_than_job(job: JobFile, document: Node) -> Found:
    """
    A manifest wants more pods to start at once than it has.

    Why: Volcano refuses a Job whose minAvailable is above the sum of its replicas ("job 'minAvailable' should
    not be greater than total replicas in tasks"), and a task's above its own; the pods of a PyTorchJob stay
    pending, and with an elasticPolicy torchrun waits for minReplicas nodes (training-operator, `elastic.go`).

    Why, gang: the pods that start first hold their GPUs and wait for the others, which may have no place.

    Fix: set minAvailable (minReplicas) to the number of pods, or leave it out.
    """
    tasks = listed(node_at(document, "spec", "tasks"))
    specs = [spec for _, spec in pairs(node_at(document, "spec", "pytorchReplicaSpecs"))]
    asked = [(node_at(document, "spec", "minAvailable"), tasks)] if tasks else []
    asked += [(node_at(document, "spec", "runPolicy", "schedulingPolicy", "minAvailable"), specs)]
    asked += [(node_at(task, "minAvailable"), [task]) for task in tasks]
    elastic = node_at(document, "spec", "elasticPolicy")
    started = _within(job, document)
    # With metrics the operator makes an autoscaler, which adds pods.
    if not node_at(elastic, "metrics") and not any(launch.option("nnodes") for launch in started):
        asked += [(node_at(elastic, "minReplicas"), specs)]
    for node, parts in asked:
        counts = [number(value_at(part, "replicas") or "1") for part in parts]
        least = number(scalar(node)) or 0
        total = sum(count or 0 for count in counts)
        if not parts or None in counts or node is None:
            continue
        name = "minReplicas" if node is node_at(elastic, "minReplicas") else "minAvailable"
        found = f"{name} {least}, and there are {total} pods"
        if least > total:
            yield node, found, f"{name}: {total}"
        elif parts is tasks and 0 < least < total and any(one.nnodes == total for one in started):
            found += " in one world"
            yield job.finding(node, found, f"{name}: {total}", severity="warning", case="gang")


_WAITS = re.compile(r"\b(?:until|while)\b")


@fault("pods-start-in-turn", SHELL, each="job.documents")
def pods_start_in_turn(job: JobFile, document: Node) -> Found:
    """
    A StatefulSet or Job starts its pods one after another, and each first waits for the others.

    Why, StatefulSet: Without `podManagementPolicy: Parallel` Kubernetes makes a pod only once the one before
    it is ready; one whose init container waits for the next one never is.

    Why, Job: A Job without `parallelism` runs one pod at a time (batch/v1: it defaults to 1); the first waits
    for the others, which start when it has ended.

    Fix, StatefulSet: `podManagementPolicy: Parallel`.

    Fix, Job: `parallelism` = `completions`.
    """
    yield from _completed_in_turn(job, document)
    is_set = value_at(document, "kind") == "StatefulSet"
    if not is_set or value_at(document, "spec", "podManagementPolicy") == "Parallel":
        return
    name = value_at(document, "metadata", "name")
    for container in listed(node_at(document, "spec", "template", "spec", "initContainers")):
        text = job.text[container.start_mark.index : container.end_mark.index]
        others = any(part[:1] in "$123456789" for part in text.split(f"{name}-")[1:] if part)
        if others and _WAITS.search(text):
            wanted = "podManagementPolicy: Parallel"
            yield container, "it waits for pods that are made after this one", wanted, "StatefulSet"


def _completed_in_turn(job: JobFile, document: Node) -> Found:
    """A Job whose pods form one world, but run one after another."""
    spec = node_at(document, "spec")
    pods = number(value_at(spec, "completions")) or 0
    if value_at(document, "kind") != "Job" or pods < 2 or node_at(spec, "parallelism") is not None:
        return
    for launch in _within(job, document):
        if (launch.nnodes or 0) > 1:
            found = f"completions: {pods} without parallelism: one pod at a time, and {launch.launcher}"
            found += f" waits for {launch.nnodes} nodes"
            yield node_at(spec, "completions"), found, f"parallelism: {pods}", "Job"
            return


_LITERAL = re.compile(r"\$(?:\{[A-Za-z_]\w{0,99}\}|[A-Za-z_]\w{0,99})")

_FILLED_IN = re.compile(
    r"\b(?:image|replicas|namespace|name|cpu|memory|gpu|efa)[\"']?:[ \t]{0,9}[\"']?[\w./:-]{0,200}"
    r"\$\{?[A-Za-z_]"
)
"""`image: $IMAGE`: a template that `envsubst` turns into a manifest."""


@fault("variable-without-shell", SHELL)
def variable_without_shell(job: JobFile) -> Iterator[Finding]:
    """
    The command of a container has `$NAME` in it, and no shell that puts the value in.

    Why: Kubernetes starts `command` and `args` without a shell, and replaces `$(NAME)` alone; the launcher is
    given the text `$RANK`.

    Why, name: It leaves `$(NAME)` as it is written where no variable of the container has this name.
    Kubeflow's Trainer sets PET_MASTER_ADDR, PET_MASTER_PORT, PET_NODE_RANK and PET_NNODES, which torchrun
    reads itself.

    Fix: `$(NAME)`, or `command: ["bash", "-c", "torchrun --node-rank=$RANK ..."]`.

    Fix, name: in a TrainJob leave these options out; elsewhere set the variable in `env`.
    """
    if _FILLED_IN.search(job.text):
        return
    for launch in job.launches:
        yield from _without_value(job, launch)
        words = launch.command.words if launch.pod is not None and not launch.command.around else ()
        literal = next((w for w in words if w.raw == w.text and _LITERAL.search(w.text)), None)
        if literal is not None:
            name = (_LITERAL.search(literal.text) or [""])[0]
            found = f"{printable(literal.text, 60)}: no shell reads it, and it stays as it is written"
            yield job.finding(literal.line, found, f"$({name.strip('${}')})")


def _without_value(job: JobFile, launch: Launch) -> Iterator[Finding]:
    is_default = launch.started_by != "TrainJob" or re.search(r"name: *torch-distributed(?![-\w])", job.text)
    if (
        launch.started_by not in ("TrainJob", "Job", "JobSet", "StatefulSet")
        or not is_default
        or "envFrom" in job.text
    ):
        return
    for word in launch.command.words if not launch.command.around else ():
        names = [m.name for m in job.job.marks.all_of(word.text) if m.name in _OF_WORLD]
        if names and names[0] not in launch.command.env and f"$({names[0]})" in job.text:
            found = f"$({names[0]}): the container has no such variable, and it stays as it is written"
            yield job.finding(word.line, found, f"{names[0]} in its env, or without it", case="name")
            return


_OF_WORLD = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "NODE_RANK", "NNODES")
_IN_ONE = re.compile(
    r"(?:\S{0,200}/)?(?:torchrun|python3?|accelerate|deepspeed|mpirun|bash|sh|ray|vllm)\s+\S"
)


@fault("command-in-one-string", SHELL, each="job.documents")
def command_in_one_string(job: JobFile, document: Node) -> Found:
    """
    The list `command` of a container has the program and its options in one string.

    Why: each entry is one word and no shell splits it: the container looks for a program of this whole name
    and ends with "no such file or directory".

    Fix: write each word as an entry: `["torchrun", "--nproc-per-node=4", "t.py"]` or `["bash", "-c", "..."]`.
    """
    for container in _in_pods(document, "containers"):
        first = next(iter(listed(node_at(container, "command"))), None)
        if first is not None and _IN_ONE.match(scalar(first)):
            found = f"`{printable(scalar(first), 60)}` is one word: no program has this name"
            yield first, found, "an entry for each word, or bash -c"


def _pods_of(document: Node) -> list[Node]:
    """The pods' specs of a workload, also of the parts of a PyTorchJob, Volcano Job or JobSet."""
    parts = [document, *listed(node_at(document, "spec", "tasks"))]
    parts += [spec for _, spec in pairs(node_at(document, "spec", "pytorchReplicaSpecs"))]
    parts += [node_at(one, "template") for one in listed(node_at(document, "spec", "replicatedJobs"))]
    group = node_at(document, "spec", "leaderWorkerTemplate")
    pods = [node_at(group, "leaderTemplate", "spec"), node_at(group, "workerTemplate", "spec")]
    pods += [node_at(part, *keys) for part in parts for keys in (("spec",), ("template", "spec"))]
    return [*pods, *(node_at(part, "spec", "template", "spec") for part in parts)]


def _in_pods(document: Node, key: str) -> list[Node]:
    """The containers or volumes of a workload's pods."""
    return [one for pod in _pods_of(document) for one in listed(node_at(pod, key))]


@fault("pytorchjob-refused", SHELL, each="job.documents")
def pytorchjob_refused(job: JobFile, document: Node) -> Found:
    """
    The training operator refuses this PyTorchJob.

    Why: each replica spec needs a container named `pytorch`; the specs are Master, which has one replica, and
    Worker (training-operator, `validatePyTorchReplicaSpecs`).

    Fix: `name: pytorch`; one Master.
    """
    for kind, spec in pairs(node_at(document, "spec", "pytorchReplicaSpecs")):
        line = spec.start_mark.line
        named = listed(node_at(spec, "template", "spec", "containers"))
        names = [value_at(one, "name") for one in named]
        if kind not in ("Master", "Worker"):
            yield line, f"a PyTorchJob has no {printable(kind, 40)}", "Master or Worker"
        elif kind == "Master" and (count := number(value_at(spec, "replicas"))) and count != 1:
            yield node_at(spec, "replicas"), f"{count} replicas of Master", "replicas: 1"
        if names and all(names) and "pytorch" not in names and not re.search(r"[{$<]", "".join(names)):
            found = f"{kind}: no container is named pytorch"
            yield node_at(named[0], "name"), found, "name: pytorch"


@fault("mpi-job-slots", SHELL)
def mpi_job_slots(job: JobFile) -> Found:
    """
    The launcher of an MPIJob starts more ranks than its workers have slots.

    Why: the operator writes a host file with slotsPerWorker for each worker, 1 without it; mpirun ends with
    "There are not enough slots available".

    Fix: `mpirun -np` = workers x slotsPerWorker.
    """
    for document in job.job.documents if "MPIJob" in job.text else ():
        each = number(value_at(document, "spec", "slotsPerWorker") or "1")
        own = node_at(document, "spec", "mpiReplicaSpecs", "Worker")
        workers = number(value_at(own, "replicas") or "1") if own is not None else 0
        is_open_mpi = value_at(document, "spec", "mpiImplementation") in ("", "OpenMPI")
        if value_at(document, "spec", "runLauncherAsWorker") == "true" and workers:
            workers += 1
        for command, step in job.steps("mpirun") if each and workers and is_open_mpi else ():
            ranks = number(step.option("-np", "-n", "--np") or "") or 0
            is_within = document.start_mark.line < command.line <= document.end_mark.line + 1
            if is_within and ranks > (each or 0) * (workers or 0) and "oversubscribe" not in job.text:
                found = f"{ranks} ranks, and {workers} hosts have {each} slots each"
                yield command.line, found, f"-np {(each or 0) * (workers or 0)}"


_OF_COMPOSE = """
annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs container_name
cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime cpu_shares cpus cpuset
credential_spec depends_on deploy develop device_cgroup_rules devices dns dns_opt dns_search domainname
driver_opts entrypoint env_file environment expose extends external_links extra_hosts gpus group_add
healthcheck hostname image init ipc isolation label_file labels links logging mac_address mem_limit
mem_reservation mem_swappiness memswap_limit models network_mode networks oom_kill_disable oom_score_adj pid
pids_limit platform ports post_start pre_stop privileged profiles provider pull_policy pull_refresh_after
read_only restart runtime scale secrets security_opt shm_size stdin_open stop_grace_period stop_signal
storage_opt sysctls tmpfs tty ulimits use_api_socket user userns_mode uts volumes volumes_from working_dir <<
"""
_KEYS_OF_COMPOSE = frozenset(_OF_COMPOSE.split())
"""Of a service, by the Compose specification (`compose-spec.json`)."""


@fault("compose-refused", SHELL)
def compose_refused(job: JobFile) -> Found:
    """
    docker compose refuses the file.

    Why: a service has a key that the Compose specification lacks ("additional properties ... not allowed");
    GPUs are under `deploy: resources: reservations: devices`, each with capabilities, and with count or
    device_ids, not both; network_mode excludes networks; `deploy: resources: limits` takes cpus, memory and
    pids alone; a service with a container_name cannot have replicas.

    Fix: write the key in its place.
    """
    for document in job.job.documents if job.launches else ():
        for _, service in pairs(node_at(document, "services")):
            own = dict(pairs(service))
            wrong = next((k for k in own if k not in _KEYS_OF_COMPOSE and not k.startswith("x-")), "")
            if wrong and own.keys() & {"image", "build"}:
                near = [*difflib.get_close_matches(wrong, _KEYS_OF_COMPOSE, 1, 0.8), "a key that it knows"]
                wanted = "under deploy:" if wrong == "resources" else near[0]
                line = own[wrong].start_mark.line + (own[wrong].id == "scalar")
                yield line, f"a service of compose has no key {printable(wrong, 40)}", wanted
            limits = dict(pairs(node_at(service, "deploy", "resources", "limits")))
            for key in sorted(limits.keys() - {"cpus", "memory", "pids", "<<"}):
                if not key.startswith("x-"):
                    found = f"limits of a service have no key {printable(key, 40)}"
                    wanted = "under the service itself" if key in _KEYS_OF_COMPOSE else "cpus, memory or pids"
                    yield limits[key], found, wanted
            copies = number(value_at(service, "deploy", "replicas") or value_at(service, "scale")) or 1
            if copies > 1 and "container_name" in own:
                yield own["container_name"], f"container_name, and {copies} containers", "no container_name"
            if "network_mode" in own and "networks" in own:
                line = own["networks"].start_mark.line
                why, fix = "compose takes one of the two for a service", "leave networks or network_mode out"
                yield line, "networks beside network_mode", "one of them", why, fix
            for device in listed(node_at(service, "deploy", "resources", "reservations", "devices")):
                given = dict(pairs(device))
                count = number(scalar(given.get("count"))) or 0
                if copies > 1 and count:
                    taken = "GPU 0" if count == 1 else f"the first {count} GPUs"
                    found = f"{copies} replicas, each on {taken}"
                    fix = "a service for each, with its device_ids"
                    why = "docker gives every container the first"
                    yield device, found, "device_ids, one service for each", why, fix
                if {"count", "device_ids"} <= given.keys():
                    yield device, "count and device_ids for one device", "one of them"
                if given and "capabilities" not in given:
                    yield device, "a device without capabilities", "capabilities: [gpu]"


@fault("volume-not-mounted", SHELL)
def volume_not_mounted(job: JobFile) -> Found:
    """
    A pod has a volume in memory for /dev/shm, and no container mounts it.

    Why: /dev/shm stays at 64 MB, and NCCL and data loaders fail.

    Fix: `volumeMounts: [{name: dshm, mountPath: /dev/shm}]`.
    """
    for document in job.job.documents if job.launches else ():
        containers = _in_pods(document, "containers")
        mounted = {value_at(m, "name") for one in containers for m in listed(node_at(one, "volumeMounts"))}
        for volume in _in_pods(document, "volumes") if containers else ():
            name, medium = value_at(volume, "name"), value_at(volume, "emptyDir", "medium")
            if medium == "Memory" and name and name not in mounted:
                found = f"the volume {printable(name, 60)} is mounted nowhere"
                yield volume, found, "mountPath: /dev/shm"


@fault("manifest-refused", SHELL)
def manifest_refused(job: JobFile) -> Found:
    """
    Kubernetes refuses a workload that starts ranks.

    Why, policy: a Job's pods need `restartPolicy: Never` or OnFailure.

    Why, selector: the selector of a Deployment or StatefulSet must fit the labels of its pods.

    Why, GPUs: GPUs are set as limits, and requests must be equal.

    Why, volume: a mount needs a volume of its name.

    Why, text: a command is a list of texts; values of variables, labels, nodeSelector, rayStartParams and a
    ConfigMap's data are texts. YAML takes 29500 and true without quotes for a number and a truth value.

    Fix, text: put quotes around it.

    Fix: write it as Kubernetes asks for it; `kubectl apply --dry-run=server -f FILE` shows what it refuses.
    """
    for document in job.job.documents if "{{" not in job.text else ():
        if value_at(document, "apiVersion"):
            yield from _texts_refused(document, value_at(document, "kind"), 0)
        if not job.launches:
            continue
        kind, template = value_at(document, "kind"), node_at(document, "spec", "template")
        policy = value_at(template, "spec", "restartPolicy")
        is_batch = value_at(document, "apiVersion").startswith("batch/")
        if kind == "Job" and is_batch and template is not None and policy not in ("Never", "OnFailure"):
            found = f"a Job with restartPolicy: {printable(policy or 'Always', 40)}"
            yield template, found, "Never or OnFailure", "policy"
        wanted = {k: scalar(v) for k, v in pairs(node_at(document, "spec", "selector", "matchLabels"))}
        labels = {k: scalar(v) for k, v in pairs(node_at(template, "metadata", "labels"))}
        if kind in ("Deployment", "StatefulSet") and labels and not wanted.items() <= labels.items():
            found = "the selector does not fit the pods' labels"
            selector = node_at(document, "spec", "selector")
            yield selector, found, "the same labels in both", "selector"
        yield from _pods_refused(document)


def _pods_refused(document: Node) -> Found:
    claims = {
        value_at(c, "metadata", "name") for c in listed(node_at(document, "spec", "volumeClaimTemplates"))
    }
    for pod in _pods_of(document):
        volumes = {value_at(volume, "name") for volume in listed(node_at(pod, "volumes"))} | claims
        for container in listed(node_at(pod, "containers")):
            asked, most = (node_at(container, "resources", name) for name in ("requests", "limits"))
            for name, node in pairs(asked):
                limit = value_at(most, name)
                is_extended = "/" in name and "kubernetes.io/" not in name
                if is_extended and limit != scalar(node) and not re.search("[{$<]", limit + scalar(node)):
                    found = f"requests: {name} {printable(scalar(node), 20)}, limits: {limit or 'none'}"
                    yield node, found, "the same number as limit", "GPUs"
            yield from _text_refused(container)
            for mount in listed(node_at(container, "volumeMounts")):
                if (name := value_at(mount, "name")) and name not in volumes and not re.search("[{$<]", name):
                    found = f"no volume is named {printable(name, 60)}"
                    yield mount, found, "a volume of this name", "volume"


_NO_TEXT = re.compile(r"tag:yaml\.org,2002:(int|bool|float)")
_OF_TEXTS = frozenset(("labels", "annotations", "matchLabels", "nodeSelector", "rayStartParams"))
"""Keys of the mappings whose values are texts."""


def _texts_refused(node: Node, kind: str, depth: int) -> Found:
    """Numbers and truth values in mappings of texts."""
    for key, value in pairs(node) if depth < 12 else ():
        if key in _OF_TEXTS or (key == "data" and kind == "ConfigMap" and depth == 0):
            for name, one in pairs(value):
                yield from _no_text(name, one)
        else:
            for child in listed(value) or [value]:
                yield from _texts_refused(child, kind, depth + 1)


def _no_text(name: str, node: Node) -> Found:
    if kind := _NO_TEXT.match(getattr(node, "tag", "")):
        value = printable(scalar(node), 40)
        found = f"{printable(name, 60)}: {value} is of type {kind[1]}"
        yield node, found, f'"{value}" in quotes', "text"


def _text_refused(container: Node) -> Found:
    """A command in place of a list; a word or a variable's value that YAML takes for a number."""
    for key in ("command", "args"):
        if (own := scalar(node := node_at(container, key))) and not re.search("[{$<]", own):
            found = f"{key}: `{printable(own, 60)}` is one text"
            yield node, found, "[a, list, of, words]", "text"
        for word in listed(node):
            yield from _no_text(key, word)
    for variable in listed(node_at(container, "env")):
        yield from _no_text(value_at(variable, "name"), node_at(variable, "value"))


@fault("service-named-vllm", SHELL)
def service_named_vllm(job: JobFile) -> Found:
    """
    vLLM runs in a namespace with a Service named vllm, and takes the Service's variable for its own port.

    Why: Kubernetes gives every pod VLLM_PORT=tcp://... for this Service (not for a headless one); vLLM reads
    VLLM_PORT and ends with an error about a URI.

    Fix: choose another name for the Service, or set `enableServiceLinks: false` in the pod.
    """
    for document in job.job.documents if any(one.launcher == "vllm" for one in job.launches) else ():
        name = node_at(document, "metadata", "name")
        is_headless = value_at(document, "spec", "clusterIP") == "None"
        is_service = value_at(document, "kind") == "Service" and scalar(name) == "vllm"
        if is_service and not is_headless and "enableServiceLinks" not in job.text:
            yield name, "a Service named vllm", "another name"


@fault("job-without-index", SHELL, each="job.documents")
def job_without_index(job: JobFile, document: Node) -> Found:
    """
    The pods of a Job read JOB_COMPLETION_INDEX, and the Job is not Indexed.

    Why: Kubernetes sets it for `completionMode: Indexed` alone; it is empty, and no pod has its own rank.

    Fix: `completionMode: Indexed`.
    """
    kind, of_cron = value_at(document, "kind"), node_at(document, "spec", "jobTemplate")
    is_job = kind in ("Job", "CronJob") and value_at(document, "apiVersion").startswith("batch/")
    text = job.text[document.start_mark.index : document.end_mark.index]
    before, name, _ = text.partition("JOB_COMPLETION_INDEX")
    is_named = re.search(r"name: *[\"']?JOB_COMPLETION_INDEX", text)
    if (
        is_job
        and name
        and not is_named
        and value_at(of_cron or document, "spec", "completionMode") != "Indexed"
    ):
        line = document.start_mark.line + 1 + before.count("\n")
        yield line, f"${name} is empty: the Job is not Indexed", "completionMode: Indexed"


_OF_DEEPSPEED = (
    *("gradient_accumulation_steps", "gradient_clipping", "zero_stage"),
    *("offload_optimizer_device", "offload_param_device"),
    *("offload_optimizer_nvme_path", "offload_param_nvme_path"),
)


@fault("deepspeed-settings-twice", SHELL, each="job.documents")
def deepspeed_settings_twice(job: JobFile, document: Node) -> Found:
    """
    accelerate's configuration names a file of DeepSpeed's, and sets itself what belongs there.

    Why: accelerate ends with "When using `deepspeed_config_file`, the following accelerate config variables
    will be ignored" (`DeepSpeedPlugin` in utils/dataclasses.py), for these and mixed_precision.

    Fix: keep these settings in DeepSpeed's file alone.
    """
    own = dict(pairs(node_at(document, "deepspeed_config")))
    is_given = any(re.search(r"--mixed[-_]precision\b", text) for text in job.others.values())
    also = {"mixed_precision": node_at(document, "mixed_precision")} if not is_given else {}
    own |= {n: v for n, v in also.items() if scalar(v) not in ("", "null", "~")}
    both = [name for name in (*_OF_DEEPSPEED, "mixed_precision") if name in own]
    if both and scalar(own.get("deepspeed_config_file")):
        found = f"{', '.join(both)} beside deepspeed_config_file"
        yield own[both[0]], found, "deepspeed_config_file alone"


_WHICH_MACHINE = re.compile(
    r"(?m)^(machine_rank|main_process_ip|main_process_port|num_machines): {0,4}(\S{1,80})"
)
_COMMENTED = re.compile(r"(?m)^#.{0,1000}$\n?")


def _same_machine(job: JobFile) -> Found:
    """Two configurations in a folder that are alike, also in machine_rank: the second by its name."""
    own, plain = dict(_WHICH_MACHINE.findall(job.text)), _COMMENTED.sub("", job.text).strip()
    if len(own) < 4 or own["num_machines"] == "1":
        return
    here = posixpath.dirname(job.path)
    others = [(path, text) for path, text in job.others.items() if posixpath.dirname(path) == here]
    alike = [path for path, text in others if _COMMENTED.sub("", text).strip() == plain]
    if alike and job.path > min(alike):
        line = next(n for n, text in enumerate(job.lines, 1) if text.startswith("machine_rank:"))
        first = posixpath.basename(min(alike))
        found = f"machine_rank: {printable(own['machine_rank'], 20)}, as in {printable(first, 60)}"
        why = "accelerate starts the host of the rendezvous on machine 0: with two of them no group forms."
        yield line, found, "another number for each machine", why, "machine_rank: 1"


@fault("accelerate-config-wrong", SHELL)
def accelerate_config_wrong(job: JobFile) -> Found:
    """
    accelerate's configuration requests more processes than it names GPUs, or for nodes it cannot find.

    Why, processes: num_processes is the total, divided evenly among num_machines; gpu_ids are this machine's.

    Why, hosts: with `deepspeed_multinode_launcher: pdsh` DeepSpeed takes the other machines from a host file,
    and trains on this one alone without it.

    Why, value: accelerate refuses names that it does not know (`config_args.py`), and a `MULTI_GPU` with one
    GPU (`launch.py`); an address or port that cannot be one ends in the rendezvous.

    Why, network: with same_network accelerate passes the address as master_addr, which torchrun does not read
    under c10d.

    Fix, processes: set num_processes to num_machines x GPUs.

    Fix, hosts: set deepspeed_hostfile, or `deepspeed_multinode_launcher: standard`.

    Fix, value: correct that line; `accelerate config` writes a file with the right names.

    Fix, network: leave same_network out.
    """
    yield from _same_machine(job)
    for document in job.job.documents:
        if value_at(document, "distributed_type") and value_at(document, "compute_environment"):
            yield from _values_of_accelerate(dict(pairs(document)))
            yield from _settings_of_another_kind(job, document)
            yield from _offload_without_stage(job, dict(pairs(node_at(document, "deepspeed_config"))))
        machines = number(value_at(document, "num_machines")) or 1
        total = number(value_at(document, "num_processes")) or 0
        ids = value_at(document, "gpu_ids").split(",")
        each = total // machines
        if all(map(str.isdecimal, ids)) and each not in (0, len(ids)):
            found = f"{each} processes on this machine, and gpu_ids has {len(ids)}"
            if each < len(ids):
                found = f"gpu_ids has {len(ids)}, and {each} processes take them: GPUs stay idle"
            wanted = "num_processes: the machines x their GPUs"
            yield node_at(document, "gpu_ids"), found, wanted, "processes"
        own = dict(pairs(node_at(document, "deepspeed_config")))
        how = scalar(own.get("deepspeed_multinode_launcher"))
        if machines > 1 and how not in ("", "standard") and not scalar(own.get("deepspeed_hostfile")):
            found = f"{machines} machines by {printable(how, 20)}, and no deepspeed_hostfile"
            yield own["deepspeed_multinode_launcher"], found, "deepspeed_hostfile", "hosts"


_KEYS = """
compute_environment distributed_type mixed_precision use_cpu debug num_processes machine_rank num_machines
gpu_ids main_process_ip main_process_port rdzv_backend same_network main_training_function
enable_cpu_affinity fp8_config deepspeed_config fsdp_config parallelism_config megatron_lm_config
mpirun_config ipex_config downcast_bf16 tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file
commands tpu_vm tpu_env dynamo_config fp16 dynamo_backend
"""
_OF_ACCELERATE = frozenset(_KEYS.split())
"""Keys of accelerate 1.15 and older ones (`commands/config/config_args.py`)."""
_OF_BLOCK = {
    **dict.fromkeys(("zero_stage", "zero3_", "offload_", "deepspeed_"), "deepspeed_config"),
    "fsdp_": "fsdp_config",
    "megatron_lm_": "megatron_lm_config",
}
"""Beginning of a key -> the block that it belongs to."""
_PORT = re.compile(r"^(?:\D|[1-5]?\d{1,4}$|6[0-4]\d{3}$|65[0-4]\d\d$|655[0-2]\d$|6553[0-5]$)")
_POSSIBLE = {
    "main_process_port": (_PORT, "a port up to 65535"),
    "main_process_ip": (re.compile(r"\D"), "an address or a host's name"),
    "mixed_precision": (re.compile("^(?:no|fp16|bf16|fp8)$"), "no, fp16, bf16 or fp8"),
}
"""Key -> (form of its values, the same for people); null and placeholders pass."""
_TRUTH = (
    "YAML reads no, yes, off and on without quotes as truth values; accelerate takes a text for it.",
    "quotes around it.",
)


def _values_of_accelerate(given: Mapping[str, Any]) -> Found:
    for key, node in given.items():
        value = scalar(node)
        near = difflib.get_close_matches(key, _OF_ACCELERATE, 1, 0.85)
        is_written = value not in ("", "null", "~") and not re.search(r"[${<]", value)
        block = next((block for begins, block in _OF_BLOCK.items() if key.startswith(begins)), "")
        if key not in _OF_ACCELERATE and (near or block):
            wanted = near[0] if near else f"{key} inside {block}"
            found = f"accelerate knows no {printable(key, 40)}{' outside of ' * bool(block)}{block}"
            yield node, found, wanted, "value"
        elif key == "mixed_precision" and _NO_TEXT.match(getattr(node, "tag", "")):
            found = f"mixed_precision: {value} is a truth value of YAML: accelerate ends with AttributeError"
            yield node, found, f'mixed_precision: "{value}"', *_TRUTH
        elif is_written and key in _POSSIBLE and not _POSSIBLE[key][0].search(value):
            yield node, f"{key} is {printable(value, 40)}", _POSSIBLE[key][1], "value"
    machines, rank = (number(scalar(given.get(key))) for key in ("num_machines", "machine_rank"))
    if machines and rank and rank >= machines:
        found = f"machine_rank {rank}, and the {machines} machines are 0 to {machines - 1}"
        yield given["machine_rank"], found, "one of these", "value"
    backend = scalar(given.get("rdzv_backend"))
    if (machines or 1) > 1 and backend == "c10d" and scalar(given.get("same_network")).lower() == "true":
        found = "same_network with c10d: torchrun gets no endpoint; each machine meets itself at localhost"
        yield given["same_network"], found, "same_network: false, or rdzv_backend: static", "network"
    kind, ids = scalar(given.get("distributed_type")), scalar(given.get("gpu_ids"))
    if kind == "MULTI_GPU" and ids.isdecimal() and (machines or 1) == 1:
        yield given["gpu_ids"], f"MULTI_GPU, and gpu_ids has one GPU: {ids}", "two or more", "value"


_BLOCKS = (
    ("fsdp_config", "FSDP", re.compile(r"--use[-_]fsdp\b")),
    ("deepspeed_config", "DEEPSPEED", re.compile(r"--use[-_]deepspeed\b")),
)


def _settings_of_another_kind(job: JobFile, document: Node) -> Found:
    """accelerate 1.15 `commands/launch.py`: a block counts for its own distributed_type alone."""
    kind = value_at(document, "distributed_type")
    for key, wanted, option in _BLOCKS if kind in ("MULTI_GPU", "NO", "FSDP", "DEEPSPEED") else ():
        block = pairs(node := node_at(document, key))
        if block and kind != wanted and not any(map(option.search, job.others.values())):
            found = f"{key} is not read: distributed_type is {kind}"
            yield node.start_mark.line, found, f"distributed_type: {wanted}", "value"


def _offload_without_stage(job: JobFile, given: Mapping[str, Any]) -> Found:
    """DeepSpeed 0.19.8 `runtime/zero/config.py`: offload_param is valid with stage 3 alone."""
    stage, device = scalar(given.get("zero_stage")), scalar(given.get("offload_param_device"))
    if stage in ("0", "1", "2") and device in ("cpu", "nvme"):
        line, found = given["offload_param_device"], f"offload_param_device at stage {stage}"
        why = "only stage 3 splits and offloads parameters"
        yield job.finding(line, found, "stage 3", severity="warning", why=why, fix=Fix("zero_stage: 3"))


def is_configuration(job: JobFile) -> bool:
    """Whether the file is one of accelerate's or DeepSpeed's configurations, without a launch line."""
    documents = [dict(pairs(document)) for document in job.job.documents]
    return any("compute_environment" in d or "zero_optimization" in d for d in documents)


_OF_JOB, _OF_JOBSET = re.compile(r"\d{1,6}"), re.compile(r"[\w-]{1,99}-\d{1,6}-\d{1,6}")
"""Suffixes of the names of a workload's pods."""


@fault("pod-name-unknown", SHELL)
def pod_name_unknown(job: JobFile) -> Found:
    """
    The name of a pod at which the ranks meet does not exist in the cluster's DNS.

    Why: a pod is known as POD.SERVICE only under the headless Service that its serviceName or subdomain
    names, and only where a Service of this name exists; a JobSet makes one of its own name or of
    spec.network.subdomain.

    Fix: use one name in all three places: the Service's metadata.name, serviceName or subdomain, the address.
    """
    documents = job.job.documents
    services = {
        value_at(d, "metadata", "name"): dict(pairs(node_at(d, "spec", "selector")))
        for d in documents
        if value_at(d, "kind") == "Service"
    }
    for document in documents:
        kind, name = value_at(document, "kind"), value_at(document, "metadata", "name")
        template = node_at(document, "spec", "template")
        node = node_at(document, "spec", "serviceName") or node_at(template, "spec", "subdomain")
        if kind == "JobSet":
            node = node_at(document, "spec", "network", "subdomain") or node_at(document, "metadata", "name")
        elif kind in ("StatefulSet", "Job") and template is not None:
            labels = {key: scalar(value) for key, value in pairs(node_at(template, "metadata", "labels"))}
            yield from _unserved(job, document, node, services, labels)
        else:
            continue
        for launch in _within(job, document):
            pod, _, rest = launch.host.partition(".")
            domain = rest.partition(".")[0]
            number_of = _OF_JOBSET if kind == "JobSet" else _OF_JOB
            jobs = [value_at(one, "name") for one in listed(node_at(document, "spec", "replicatedJobs"))]
            number_alone = (one for one in jobs if _OF_JOB.fullmatch(pod.removeprefix(f"{name}-{one}-")))
            short = next(number_alone, "")
            if kind == "JobSet" and short and domain:
                found = f"{printable(pod)}: no pod has this name, each has two numbers"
                yield launch.line, found, f"{name}-{short}-0-0.{domain}"
                continue
            is_own = pod.startswith(f"{name}-") and number_of.fullmatch(pod.removeprefix(f"{name}-"))
            is_of_none = kind == "JobSet" and not any(pod.startswith(f"{name}-{one}-") for one in jobs)
            if domain and is_own and is_of_none and jobs:
                found = f"{printable(pod)}: no part of the JobSet has this name"
                yield launch.line, found, f"{name}-{jobs[0]}-0-0.{domain}"
            elif domain and is_own and scalar(node) != domain:
                own = f"{pod}.{scalar(node)}" if node is not None else ""
                known = f"the pod's name is {printable(own)}" if own else "this pod has no subdomain"
                found = f"{printable(pod)}.{printable(domain)}: {known}"
                wanted = own or f"subdomain: {domain}"
                yield launch.line, found, wanted
            searched = {"dnsConfig", "hostAliases"} & dict(pairs(node_at(template, "spec"))).keys()
            is_bare = is_own and not rest and pod not in services and kind != "JobSet"
            if is_bare and not searched and (launch.nnodes or 0) > 1:
                found = f"{printable(pod)}: other pods do not know a pod by its name alone"
                wanted = f"{pod}.{scalar(node) or 'SERVICE, and subdomain: SERVICE'}"
                yield job.finding(launch.line, found, wanted, severity="warning")


_GIVEN_TO_PODS = re.compile(r"job-name|kubernetes\.io/|kubeflow\.org/|x-k8s\.io/|controller-uid")
"""Labels that controllers add."""


def _unserved(
    job: JobFile, document: Node, node: Node, services: dict[str, Any], labels: dict[str, str]
) -> Found:
    """A Service without these pods, or none with the name that the pods and the launch use."""
    wanted = scalar(node)
    others = (text for path, text in job.others.items() if path != job.path)
    elsewhere = any(wanted in re.findall(r"\bname: {0,4}[\"']?([\w.-]{1,99})", text) for text in others)
    if wanted in services and not elsewhere:
        chosen = {key: scalar(value) for key, value in services[wanted].items()}
        given = chosen.items()
        apart = [k for k, value in given if labels.get(k) != value and not _GIVEN_TO_PODS.search(k)]
        if apart and labels:
            key = apart[0]
            found = f"the Service {printable(wanted)} selects {key}: {printable(chosen[key])}; no pod has it"
            why = "A Service without pods has no addresses: the names of its pods do not resolve."
            fix = "the same label in the Service's selector and in the pods' template"
            wanted_label = f"{key}: {labels.get(key) or 'a label of the pods'}"
            yield services[wanted][key], found, wanted_label, why, fix
    if not wanted or wanted in services or elsewhere:
        return
    for name, selector in services.items():
        chosen = {key: scalar(value) for key, value in selector.items()}
        if chosen and chosen.items() <= labels.items():
            found = f"no Service is named {printable(wanted)}; {printable(name)} selects these pods"
            yield node, found, name
            return
    if not services and any(
        one.host.partition(".")[2].partition(".")[0] == wanted for one in _within(job, document)
    ):
        found = f"no Service is named {printable(wanted)} in these files: the pods' names need one"
        yield job.finding(node, found, f"a headless Service {printable(wanted)}", severity="note")


@fault("rank-starts-after-another", SHELL, each="job.documents")
def rank_starts_after_another(job: JobFile, document: Node) -> Found:
    """
    A part of one world is started only after another part of it has ended.

    Why: the first waits in the rendezvous for the second, which is started when the first is done: it times
    out, and the second is never started.

    Fix: remove the condition (compose: `depends_on: [rank0]`; JobSet: `status: Ready`): ranks start together.
    """
    services = dict(pairs(node_at(document, "services")))
    replicated = listed(node_at(document, "spec", "replicatedJobs"))
    jobs = {value_at(one, "name"): one for one in replicated}
    waits = [
        (name, first, node_at(how, "condition"), services)
        for name, service in services.items()
        for first, how in pairs(node_at(service, "depends_on"))
    ]
    for name, one in jobs.items():
        for first in listed(node_at(one, "dependsOn")):
            waits.append((name, value_at(first, "name"), node_at(first, "status"), jobs))
    for name, first, how, parts in waits:
        if scalar(how) not in ("service_completed_successfully", "Complete") or first not in parts:
            continue
        before, after = _within(job, parts[first]), _within(job, parts[name])
        together = {one.script for one in before if one.nnodes != 1 and one.nnodes_text}
        if together & {one.script for one in after}:
            found = f"{printable(name)} starts when {printable(first)} has ended, which waits for it"
            yield how, found, "no condition: all ranks start at once"
