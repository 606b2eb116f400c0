"""An environment as a shell script, a Slurm script's part, docker's options or a pod's specification."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringup.facts import Cluster
from ringup.plan import EnvVar
from ringup.units import printable, word

SHM_GIB = 8
"""NCCL takes some 10 MB a GPU pair; data loaders' batches take the rest."""


@dataclass(frozen=True)
class Machine:
    """What a container needs of the machine it runs on."""

    gpu_count: int = 0
    has_rdma: bool | None = None
    """None where that is not known."""
    in_pod: bool = False
    """The nodes asked were pods: their interface names are a pod's own."""
    is_decided: bool = True
    """Nothing that could matter was left open."""

    @staticmethod
    def of(cluster: Cluster) -> Machine:
        """The largest node, and whether any has RDMA devices."""
        unknown = any("rdma_ports" in n.unknown for n in cluster.nodes)
        rdma = any(n.rdma_ports for n in cluster.nodes if "rdma_ports" not in n.unknown)
        pods = [n for n in cluster.nodes if "container" not in n.unknown and n.container.kind == "kubernetes"]
        return Machine(
            gpu_count=max((n.gpu_count for n in cluster.nodes if "gpu_count" not in n.unknown), default=0),
            has_rdma=True if rdma else None if unknown else False,
            in_pod=bool(pods) and len(pods) == len(cluster.nodes),
        )


def comment(text: str) -> str:
    """A reason on one line, safe behind `#`."""
    return printable(" ".join(text.split()), 400)


def by_node(
    env: Sequence[EnvVar], line: Callable[[EnvVar], str], *, who: str = '"$(hostname -s)"'
) -> list[str]:
    """Shell lines for all nodes, then those that hang on the node's short host name."""
    lines = [line(v) for v in env if v.node is None]
    nodes = list(dict.fromkeys(v.node for v in env if v.node is not None))
    if nodes:
        lines.append(f"case {who} in")
        for node in nodes:
            lines.append(f"{shlex.quote(node)})")
            lines += [f"  {line(v)}" for v in env if v.node == node]
            lines.append("  ;;")
        lines.append("esac")
    return lines


def exported(v: EnvVar) -> str:
    """One line of a shell script."""
    return f"export {v.name}={word(v.value)}  # {comment(v.because)}"


def shell(env: Sequence[EnvVar], machine: Machine | None = None) -> str:
    """Lines to source."""
    lines = by_node(env, exported)
    is_decided = machine is None or machine.is_decided
    nothing = "nothing needs to be set: NCCL and Gloo choose right on every node"
    unsure = "nothing is known that has to be set, but something was left open: see stderr, or --json"
    return "\n".join(lines or [f"# {nothing if is_decided else unsure}"])


def slurm(env: Sequence[EnvVar], machine: Machine | None = None) -> str:
    """For a batch script: exported before srun, by node inside it."""
    lines = ["# before srun, which passes the environment on (--export=ALL is its default)"]
    lines.append(shell([v for v in env if v.node is None], machine))
    own = [v for v in env if v.node is not None]
    if own:
        lines.append("# in what srun starts on each node, before the launcher")
        lines += by_node(own, exported, who='"$SLURMD_NODENAME"')
    return "\n".join(lines)


def docker(env: Sequence[EnvVar], machine: Machine | None = None) -> str:
    """A bash array of options for `docker run`, the reason behind each."""
    machine = machine or Machine()
    options = [
        ("--network host", "ranks meet on the machine's own addresses, not on docker0"),
        (f"--shm-size {SHM_GIB}g", "NCCL and data loaders share memory in /dev/shm; docker gives 64 MB"),
        ("--ulimit nofile=65536:65536", "a socket to every peer, and the loaders' pipes"),
        ("--init", "somebody takes away the processes that have ended"),
    ]
    if machine.gpu_count:
        options.insert(0, ("--gpus all", "the GPUs of the machine (NVIDIA Container Toolkit)"))
        options.append(("--ulimit stack=67108864", "as NVIDIA's images advise"))
    rdma = [
        ("--device /dev/infiniband", "RDMA devices, and the connection manager's"),
        ("--cap-add IPC_LOCK", "RDMA registers memory"),
        ("--ulimit memlock=-1:-1", "RDMA registers memory, which the default limit forbids"),
    ]
    lines = ["options=("]
    lines += [f"  {option}  # {why}" for option, why in options]
    if machine.has_rdma is not False:
        lines += [f"  {option}  # {why}" for option, why in rdma]
    lines.append(")")
    lines += by_node(env, lambda v: f"options+=(--env {v.name}={word(v.value)})  # {comment(v.because)}")
    if machine.has_rdma is not False:
        lines.append("# the image needs libibverbs1, librdmacm1 and ibverbs-providers (or rdma-core)")
    lines.append('# docker run "${options[@]}" IMAGE COMMAND')
    return "\n".join(lines)


def quoted(text: str) -> str:
    """
    A text in YAML's double quotes, every character that no terminal should see escaped.

    >>> print(quoted('a"b\\x7f'), quoted("no"))
    "a\\"b\\x7F" "no"
    """
    inner = json.dumps(text, ensure_ascii=False)[1:-1]
    return f'"{"".join(c if c.isprintable() else escaped(c) for c in inner)}"'


def escaped(character: str) -> str:
    """YAML's own escape, section 5.7."""
    number = ord(character)
    return (
        f"\\x{number:02X}" if number < 256 else f"\\u{number:04X}" if number < 65536 else f"\\U{number:08X}"
    )


def k8s(env: Sequence[EnvVar], machine: Machine | None = None) -> str:
    """Parts of a pod's specification, in YAML."""
    machine = machine or Machine()
    common = [v for v in env if v.node is None]
    lines = []
    if any(v.name.endswith("_IFNAME") for v in env) and not machine.in_pod:
        lines += [
            "hostNetwork: true  # the interface names below are the machines' own",
            "dnsPolicy: ClusterFirstWithHostNet",
        ]
    lines += ["containers:", "- name: train"]
    lines += ["  env:"] if common else []
    for v in common:
        lines += [f"  - name: {v.name}", f"    value: {quoted(v.value)}  # {comment(v.because)}"]
    rdma = machine.has_rdma is not False
    if machine.gpu_count or rdma:
        lines += ["  resources:", "    limits:"]
        if machine.gpu_count:
            lines.append(f"      nvidia.com/gpu: {machine.gpu_count}")
        if rdma:
            lines.append("      rdma/hca: 1  # as your RDMA device plugin calls it: `kubectl describe node`")
    if rdma:
        lines += [
            "  securityContext:",
            "    capabilities:",
            '      add: ["IPC_LOCK"]  # RDMA registers memory',
        ]
    lines += [
        "  volumeMounts:",
        "  - name: shm",
        "    mountPath: /dev/shm",
        "volumes:",
        "- name: shm",
        "  emptyDir:",
        "    medium: Memory  # the default /dev/shm of 64 MB is too small for NCCL",
        f"    sizeLimit: {SHM_GIB}Gi  # counts against the memory limit of the pod",
    ]
    lines += [
        f"# on node {comment(v.node)} only: {v.name}={quoted(v.value)}  {comment(v.because)}"
        for v in env
        if v.node is not None
    ]
    return "\n".join(lines)


FORMATS: dict[str, Callable[[Sequence[EnvVar], Machine | None], str]] = {
    "shell": shell,
    "slurm": slurm,
    "docker": docker,
    "k8s": k8s,
}
"""Name of a format -> its writer; `json` is the command's own."""
