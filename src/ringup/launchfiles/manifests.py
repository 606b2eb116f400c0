"""
Manifests as launches: PyTorchJob, TrainJob, JobSet, Job, Volcano, LeaderWorkerSet, StatefulSet, SkyPilot,
dstack, Azure ML, docker compose.  Commands are found by form: `command` and `args`, `run`, `commands`,
`entrypoint`, text with a launcher.

Sources: Kubernetes 1.33 batch/v1; Kubeflow training-operator 1.9 and trainer 2.3; JobSet v1alpha2; Volcano
batch.volcano.sh/v1alpha1; LeaderWorkerSet v1; SkyPilot 0.10 (task YAML); dstack 0.20 (`executor.go`); Azure
ML's commandJob.schema.json; the Compose specification.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ringup.launchfiles import marks
from ringup.launchfiles.marks import Marks
from ringup.launchfiles.model import (
    OTHER_SCRIPTS,
    TOO_LARGE,
    Launch,
    NotRead,
    PodShare,
    bounded,
    launch_of,
)
from ringup.launchfiles.shell import Job, Sibling, command_of, read_into
from ringup.model import RANK_VARIABLES

MOST_NODES, MOST_DEPTH = 50_000, 60
REPLICAS = ("replicas", "parallelism", "completions", "numNodes", "num_nodes", "numHosts", "size")
"""Keys with the number of pods or nodes that run the containers below them."""
COMMANDS = ("command", "args", "run", "entrypoint")
_STARTS = re.compile(
    r"\b(?:torchrun|accelerate launch|torch\.distributed\.(?:run|launch)|deepspeed|llamafactory-cli)\s"
    r"|\b(?:srun|mpirun|mpiexec)\s[^\n]{0,300}?\bpython"
)
"""Text under another key counts as a command if it contains one of these."""
_SET_BY: dict[str, Mapping[str, str | None]] = {
    "PyTorchJob": dict.fromkeys(("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")),
    "TrainJob": dict.fromkeys(
        ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
    ),
    "SkyPilot": {
        "SKYPILOT_NUM_NODES": marks.NODE_COUNT,
        "SKYPILOT_NODE_IPS": marks.NODES,
        "SKYPILOT_NUM_GPUS_PER_NODE": marks.GPU_COUNT,
        "SKYPILOT_NODE_RANK": None,
    },
    "dstack": {
        "DSTACK_NODES_NUM": marks.NODE_COUNT,
        "DSTACK_NODES_IPS": marks.NODES,
        "DSTACK_GPUS_PER_NODE": marks.GPU_COUNT,
        "DSTACK_MASTER_NODE_IP": marks.FIRST_ADDRESS,
        "DSTACK_NODE_RANK": None,
    },
    "LeaderWorkerSet": {"LWS_GROUP_SIZE": marks.NODE_COUNT},
    "Azure ML": dict.fromkeys(RANK_VARIABLES),
}
"""Operator or service -> the variables that it sets, with their value's mark, if that is not their name."""
_OF_IMAGE = {"vllm/vllm-openai": ["vllm", "serve"]}
"""Image -> its own entrypoint, which gets the arguments of a container without one."""
_RDMA = re.compile(r"rdma|roce|/ib|_ib|infiniband|hca|sriov")
_OF_ONE_POD = ("Pod", "Deployment", "Job", "StatefulSet", "LeaderWorkerSet", "")
"""Kinds with one pod, if nothing counts them."""
Node = Any


class Around(NamedTuple):
    """The fields above a mapping."""

    kind: str
    text: str
    """The file's text."""
    replicas: int | None = None
    pod: PodShare | None = None
    given: Mapping[str, str] = {}
    """Variables that the operator sets in each pod, with their values."""
    tasks: int | None = 1
    """How often each pod or node runs the command."""
    pods: int | None = None
    """Pods of this part of a workload, of which `replicas` are all; None if it has no parts."""


class PodCommand(NamedTuple):
    """A mapping with a command, and the keys above it."""

    node: Node
    around: Around


def read(path: str, text: str, sibling: Sibling) -> tuple[Job, Sequence[Launch], Sequence[NotRead]]:
    """A manifest's commands and launches; never raises."""
    job = Job(path, marks.without_marks(text), Marks())
    try:
        documents = list(_documents(job.text))
    except Exception as error:  # the parser raises many kinds of errors
        mark = getattr(error, "problem_mark", None)
        words = " ".join(str(getattr(error, "problem", None) or error).split())[:120]
        return job, [], [NotRead(path, mark.line + 1 if mark else 1, f"not YAML: {words}")]
    found = bounded(job, _of_documents(job, documents, sibling))
    left = [NotRead(path, 1, TOO_LARGE)] if job.is_cut else []
    if not found:
        left.append(NotRead(path, 1, "no launch line recognised"))
    return job, found, left


def _of_documents(job: Job, documents: Sequence[Node], sibling: Sibling) -> Iterator[Launch]:
    for document in documents:
        count = [0]
        seen = set()  # an alias is the node of its anchor
        for container in _containers(document, Around(_kind(document), job.text), count, 0):
            if container.node.start_mark.index not in seen:
                yield from _launches(job, container, sibling, document)
            seen.add(container.node.start_mark.index)
        job.documents.append(document)
        if _kind(document) == "ConfigMap":  # its files, mounted somewhere
            job.files |= {name: scalar(value) for name, value in pairs(node_at(document, "data"))}
        job.is_cut = job.is_cut or count[0] > MOST_NODES


def starts_launcher(text: str) -> bool:
    """Whether a text, also one that is not YAML, has a command that starts ranks."""
    return bool(_STARTS.search(text))


def _documents(text: str) -> Iterator[Node]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for number, document in enumerate(yaml.compose_all(text, Loader=loader)):
        if document is not None:
            yield document
        if number > 200:
            return


def pairs(node: Node) -> list[tuple[str, Node]]:
    """Keys and values of a mapping, also those that `<<: *name` merges in; [] for anything else."""
    own = _own_pairs(node)
    merged = [value for key, value in own if key == "<<"]
    # Of several the first counts; what is merged into a merged mapping is left out.
    more = [pair for one in merged for part in reversed(listed(one) or [one]) for pair in _own_pairs(part)]
    names = {key for key, _ in own}
    return [pair for pair in own if pair[0] != "<<"] + [
        pair for pair in more if pair[0] not in names | {"<<"}
    ]


def _own_pairs(node: Node) -> list[tuple[str, Node]]:
    if getattr(node, "id", "") != "mapping":
        return []
    return [(str(key.value), value) for key, value in node.value if key.id == "scalar"]


def scalar(node: Node) -> str:
    return str(node.value) if getattr(node, "id", "") == "scalar" else ""


def _kind(document: Node) -> str:
    return value_at(document, "kind")


def number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else None


def _containers(node: Node, around: Around, count: list[int], depth: int) -> Iterator[PodCommand]:
    """Every mapping with a command, with the replicas around it."""
    count[0] += 1
    if count[0] > MOST_NODES or depth > MOST_DEPTH:
        return
    if getattr(node, "id", "") == "sequence":
        for value in node.value:
            yield from _containers(value, around, count, depth + 1)
        return
    if not (items := dict(pairs(node))):
        return
    if depth and "apiVersion" in items and scalar(items.get("kind")):  # in an AppWrapper, a List, a workflow
        around = Around(scalar(items["kind"]), around.text)
    kind = around.kind
    around = around._replace(replicas=_replicas(kind, items, around.replicas))
    if not kind and "command" in items and (count_of := node_at(items.get("resources"), "instance_count")):
        each = number(value_at(items.get("distribution"), "process_count_per_instance") or "1")
        nodes = number(scalar(count_of)) if "distribution" in items or scalar(count_of) == "1" else None
        around = around._replace(kind="Azure ML", replicas=nodes, tasks=each)
    if not depth and listed(items.get("commands")):
        around = around._replace(kind="dstack", replicas=number(value_at(node, "nodes") or "1"))
        yield PodCommand(node, around)
    if "containers" in items:
        around = around._replace(pod=_pod(around.text, node))
    if specs := items.pop("pytorchReplicaSpecs", None):
        pods = [number(value_at(v, "replicas")) for _, v in pairs(specs)]
        total = None if None in pods else sum(one or 0 for one in pods)
        ranks = scalar(items.get("nprocPerNode"))
        given = {"PET_NPROC_PER_NODE": ranks} if ranks.isdecimal() else {}
        if total and "elasticPolicy" not in items:
            given["PET_NNODES"] = str(total)
        for (_, part), own in zip(pairs(specs), pods, strict=True):
            inside = around._replace(replicas=total, given=given, pods=own or 1)
            yield from _containers(part, inside, count, depth + 1)
    if kind == "TrainJob" and (nodes := number(scalar(items.get("numNodes")))):
        ranks = scalar(items.get("numProcPerNode"))
        given = {"PET_NNODES": str(nodes)} | ({"PET_NPROC_PER_NODE": ranks} if ranks.isdecimal() else {})
        around = around._replace(given=given, pod=PodShare(0, True, has_rdma=True, can_lock=True))
    if kind == "Job" and "tasks" in items and items["tasks"].id == "sequence":
        counts = [number(value_at(t, "replicas")) or 1 for t in items["tasks"].value]
        for task, own in zip(items["tasks"].value, counts, strict=True):
            inside = Around("Volcano", around.text, sum(counts), pods=own)
            yield from _containers(task, inside, count, depth + 1)
        return
    if kind == "LeaderWorkerSet" and "leaderTemplate" in items:
        around = around._replace(pods=max(1, (around.replicas or 2) - 1))
        yield from _containers(items.pop("leaderTemplate"), around._replace(pods=1), count, depth + 1)
    if any(getattr(items.get(k), "id", "") in ("scalar", "sequence") for k in COMMANDS):
        yield PodCommand(node, around)
    for key, value in items.items():
        if key.startswith("x-") and not depth:
            continue  # a part of compose that services merge in
        is_steps = key == "run" and any(one.id == "mapping" for one in listed(value))
        texts = _lines_of(value).split("\n") if listed(value) else [scalar(value)]
        if key not in (*COMMANDS, "description", "commands") and any(map(_STARTS.search, texts)):
            yield PodCommand(value, around)
        elif is_steps or key not in (*COMMANDS, "initContainers", "env"):
            yield from _containers(value, around, count, depth + 1)


def node_at(node: Node, *keys: str) -> Node:
    """The node at the keys of nested mappings; None for none."""
    for key in keys:
        node = dict(pairs(node)).get(key)
    return node


def value_at(node: Node, *keys: str) -> str:
    """The scalar at the keys of nested mappings; "" for none."""
    return scalar(node_at(node, *keys))


def listed(node: Node) -> list[Node]:
    """The elements of a sequence; [] for anything else."""
    return list(node.value) if getattr(node, "id", "") == "sequence" else []


def _replicas(kind: str, items: dict[str, Node], outer: int | None) -> int | None:
    """Pods that run the mapping below, given those around it."""
    if kind == "LeaderWorkerSet":  # replicas are groups, each a separate world
        return number(scalar(items.get("size"))) if "size" in items else outer
    if kind in ("PyTorchJob", "Volcano"):
        return outer if outer is not None else number(scalar(items.get("replicas")))
    if not (found := [number(scalar(items[k])) for k in REPLICAS if k in items]):
        return outer
    # A Job runs at most as many pods at a time as its parallelism, and in all as its completions.
    best = min if {"parallelism", "completions"} <= items.keys() else max
    own = best((n for n in found if n is not None), default=None)
    if own is None:
        return None
    # A JobSet's replicas multiply the pods of each of its jobs.
    return own * outer if outer and kind == "JobSet" else own


def _strings(node: Node) -> list[str]:
    if getattr(node, "id", "") == "sequence":
        return [scalar(value) for value in node.value]
    return []


def _launches(job: Job, container: PodCommand, sibling: Sibling, document: Node) -> Iterator[Launch]:
    """The launches of one mapping: a container, or the whole document of a task of SkyPilot or dstack."""
    node = container.node
    items = dict(pairs(node)) or {"": node}
    by = container.around.kind or ("SkyPilot" if node is document and "run" in items else "")
    env = {marks.without_marks(k): v for k, v in _environment(items, by, container, job.marks).items()}
    if by == "SkyPilot" and (count := accelerators(document)):
        env["SKYPILOT_NUM_GPUS_PER_NODE"] = str(count)
    if by == "dstack" and (count := _gpus_of_dstack(node_at(document, "resources", "gpu"))):
        env["DSTACK_GPUS_PER_NODE"] = str(count)
        env["DSTACK_GPUS_NUM"] = str(count * (container.around.replicas or 1))
    before = len(job.commands)
    for words, text, line in _commands(items, by):
        if not by and "run" not in items:  # compose writes $$ for $
            words, text = [word.replace("$$", "$") for word in words], text and text.replace("$$", "$")
        if text is not None:
            read_into(job, text, line, env, sibling)
        else:
            form = _OF_KUBERNETES if container.around.kind else _OF_SHELL
            expanded = [_with_variables(word, form, env, job) for word in words] or [""]
            command = command_of(expanded, line, dict(env), job, site="task")
            if command.start.text is not None:
                nested = {**env, **command.start.env}
                # bash -c TEXT with words after it: $0, $1, ...
                read_into(job, command.start.text, line - 1, nested, sibling)
            else:
                job.commands.append(command)
    kind, _, replicas, pod, _, tasks, pods = container.around
    if kind == "MPIJob" and (
        workers := node_at(document, "spec", "mpiReplicaSpecs", "Worker", "template", "spec")
    ):
        pod = _pod(job.text, workers)  # mpirun in the launcher's pod starts the ranks there
        node = next(iter(listed(node_at(workers, "containers"))), node)
    replicas = 1 if replicas is None and kind in _OF_ONE_POD else replicas
    for command in job.commands[before:]:
        command.is_nested = True
        made = launch_of(job, command, replicas, by or "manifest", tasks)
        is_plain = made is not None and made.launcher == "python" and not made.module
        name = made.script.rpartition("/")[2] if made else ""
        if made and (not is_plain or (name.endswith(".py") and not name.startswith(OTHER_SCRIPTS))):
            made.pods = pods
            made.pod = _of_container(pod, node) if pod else None if by else _of_service(job.text, node)
            if kind == "MPIJob" and made.nodes is None:
                made.nodes, made.per_node = _of_workers(document, made)
            yield made


def _of_workers(document: Node, launch: Launch) -> tuple[int | None, int | None]:
    """(pods, ranks in each) of an MPIJob, whose ranks fill the slots of a worker before the next."""
    slots = number(value_at(document, "spec", "slotsPerWorker") or "1") or 1
    step = next((s for s in launch.steps if s.program in ("mpirun", "mpiexec")), None)
    total = launch.number((step and step.option("-np", "-n", "--np", "-c")) or "") or 0
    return (1, total) if 0 < total <= slots else (None, None) if total % slots else (total // slots, slots)


def _of_container(pod: PodShare, container: Node) -> PodShare:
    """A pod's share with the limits of one of its containers."""
    limits = dict(pairs(node_at(container, "resources", "limits")))
    limits |= pairs(node_at(container, "resourcesPerNode", "limits"))
    counts = [number(scalar(value)) or 0 for name, value in limits.items() if name.endswith("/gpu")]
    has_rdma = pod.has_rdma or any(map(_RDMA.search, limits))
    return replace(pod, gpu_count=max(counts, default=0), has_rdma=has_rdma)


def container_at(document: Node, line: int, depth: int = 0) -> tuple[Node, Node] | None:
    """(the pod's mapping, the container's mapping) around a line of a manifest."""
    for container in listed(node_at(document, "containers")):
        if container.start_mark.line < line <= container.end_mark.line + 1:
            return document, container
    for _, value in pairs(document) if depth < MOST_DEPTH else ():
        for child in listed(value) or [value]:
            if found := container_at(child, line, depth + 1):
                return found
    return None


def _of_service(text: str, service: Node) -> PodShare | None:
    """A compose service's share of its machine; None where it takes more from elsewhere."""
    items = dict(pairs(service))
    if not items.keys() & {"image", "build"} or items.keys() & {"<<", "extends"}:
        return None
    text = text[service.start_mark.index : service.end_mark.index]
    devices = listed(node_at(service, "deploy", "resources", "reservations", "devices"))
    counts = [number(value_at(d, "count")) or _ids(d) for d in devices]
    is_privileged = scalar(items.get("privileged")) == "true"
    return PodShare(
        gpu_count=max(counts, default=0),
        has_shared_memory=bool({"shm_size", "ipc"} & items.keys()) or "/dev/shm" in text,
        has_rdma=is_privileged or "/dev/infiniband" in text,
        can_lock=is_privileged or "IPC_LOCK" in text or "memlock" in text,
        is_service=True,
        is_on_host=value_at(service, "network_mode") == "host",
    )


def accelerators(document: Node) -> int:
    """GPUs of each node that a task of SkyPilot asks for; 0 if that is open."""
    node = node_at(document, "resources", "accelerators")
    name, colon, count = scalar(node).partition(":")
    named = pairs(node) or ([(name, node)] if name else [])
    text = count or ("1" if name and not colon else "".join(scalar(value) for _, value in named))
    return number(text) or 0 if len(named) == 1 and "tpu" not in named[0][0].lower() else 0


def _gpus_of_dstack(node: Node) -> int:
    """GPUs of each node: `H100:80GB:8`, `{name: H100, count: 8}`, one without a count; 0 for a range."""
    count = value_at(node, "count") if pairs(node) else scalar(node).rpartition(":")[2]
    is_open = ".." in count or not (pairs(node) or scalar(node))
    return 0 if is_open else number(count) or 1


def _ids(device: Node) -> int:
    """Devices that a service names; 0 if one of them is all of its kind: CDI's `nvidia.com/gpu=all`."""
    names = _strings(node_at(device, "device_ids"))
    return 0 if any(name.endswith("all") for name in names) else len(names)


def _pod(text: str, pod: Node) -> PodShare:
    """The machine settings in a pod's mapping."""
    text = text[pod.start_mark.index : pod.end_mark.index]
    on_host = value_at(pod, "hostNetwork") == "true"
    is_privileged = bool(re.search(r"\bprivileged: *true", text))
    return PodShare(
        has_shared_memory="/dev/shm" in text or value_at(pod, "hostIPC") == "true",
        is_cut_off=on_host and value_at(pod, "dnsPolicy") not in ("ClusterFirstWithHostNet", "None"),
        has_rdma=is_privileged or "/dev/infiniband" in text,
        can_lock=is_privileged or "IPC_LOCK" in text,
    )


def _commands(items: dict[str, Node], by: str) -> Iterator[tuple[list[str], str | None, int]]:
    """(words, None, line) or ([], shell text, line before it) of a container."""
    if by == "dstack":  # joined with `&&`
        yield [], _in_its_lines(listed(items["commands"])), 0
        return
    for key in ("command", "entrypoint", "args", "run", ""):
        node = items.get(key)
        if node is None:
            continue
        line = node.start_mark.line + 1
        if text := _lines_of(node) if not key else "":
            yield [], text, 0
            return
        if node.id == "scalar":
            offset = line if node.style in ("|", ">") else line - 1
            text = str(node.value)
            program = _entrypoint(items, key)
            if by == "Azure ML":  # bash runs it, after ${{inputs.NAME}} is replaced
                text = re.sub(r"\$\{\{[^{}]{0,200}\}\}", "x", text)
            elif program or (key in ("command", "entrypoint", "args") and node.style not in ("|", ">")):
                try:
                    yield program + shlex.split(text), None, line
                    return
                except ValueError:
                    pass
            yield [], text, offset
            return
        words = _strings(node)
        more = items.get("args") if key in ("command", "entrypoint") else None
        words += _strings(more)
        if more is not None and more.id == "scalar":
            words.append(scalar(more))
        texts = [v for n in (node, more) if n is not None and n.id == "sequence" for v in n.value]
        at = next((v for v in texts if "\n" in scalar(v)), None)
        if at is not None:
            line = at.start_mark.line + 1 + (at.style in ("|", ">"))
        elif words[:1] and words[0].rpartition("/")[2] in ("bash", "sh") and more is not None:
            line = more.start_mark.line + 1
        yield _entrypoint(items, key) + words, None, line
        return


def _lines_of(node: Node) -> str:
    """A list of shell lines, or of one command's words, as a text; "" for anything else."""
    parts = listed(node)
    if not parts or not all(scalar(part) for part in parts):
        return ""
    if scalar(parts[0]).isalpha() and scalar(parts[-1 if len(parts) < 2 else 1]).startswith("-"):
        above: int = parts[0].start_mark.line
        return "\n" * above + " ".join(map(scalar, parts)) + "\n"
    return _in_its_lines(parts)


def _in_its_lines(commands: Sequence[Node]) -> str:
    """The text of several scalars, each at its line of the file."""
    text = ""
    for one in commands:
        begin = one.start_mark.line + (one.style in ("|", ">"))
        text += "\n" * max(1, begin - text.count("\n")) if begin else ""
        text += scalar(one).rstrip("\n")
    return text + "\n"


def _entrypoint(items: dict[str, Node], key: str) -> list[str]:
    """The image's own program, where a container has arguments alone: Kubernetes' args, compose's command."""
    image = re.sub(r"[:@].*", "", scalar(items.get("image")))
    is_replaced = key == "entrypoint" or (key == "command" and ("name" in items or "args" in items))
    return [] if is_replaced else next((_OF_IMAGE[i] for i in _OF_IMAGE if image.endswith(i)), [])


def _environment(items: dict[str, Node], by: str, container: PodCommand, known: Marks) -> dict[str, str]:
    """Variables set by the manifest, its operator or service."""
    found = {name: known.make(mark or name, "task") for name, mark in _SET_BY.get(by, {}).items()}
    found |= container.around.given
    for key in ("env", "envs", "environment", "environment_variables"):
        node = items.get(key)
        for name, value in pairs(node):
            found[name] = scalar(value)
        for entry in node.value if node is not None and node.id == "sequence" else ():
            pair = dict(pairs(entry))
            if name := scalar(pair.get("name")):
                found[name] = scalar(pair["value"]) if "value" in pair else known.make(name, "task")
            elif "=" in scalar(entry):
                left, _, right = scalar(entry).partition("=")
                found[left] = right
    return found


_OF_KUBERNETES = re.compile(r"\$(?:\$|\(([A-Za-z_]\w*)\))")
_OF_SHELL = re.compile(r"\$[({]?([A-Za-z_]\w*)[)}]?")
"""In compose, and where a chart puts the words into its own template."""


def _with_variables(word: str, form: re.Pattern[str], env: dict[str, str], job: Job) -> str:
    """
    The word with its variables replaced: Kubernetes' `$(NAME)`, and `$` for `$$`.

    Kubernetes leaves the name of no variable as it is, and a shell runs it: `$(hostname)`.
    """

    def value(match: re.Match[str]) -> str:
        if not (name := match[1]):
            return "$"
        return match[0] if name.islower() and name not in env else env.get(name, job.marks.make(name, "task"))

    return form.sub(value, word)
