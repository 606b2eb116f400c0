"""An environment as a shell script, a Slurm script's part, docker's options or a pod's specification."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ringup.errors import LaunchError
from ringup.model import Cluster
from ringup.planning import EnvVar
from ringup.units import grouped, printable, word

SHM_GIB = 8
"""NCCL takes about 10 MB per GPU pair; data loaders' batches take the rest."""


@dataclass(frozen=True)
class Machine:
    """Properties of the machine that a container needs."""

    gpu_count: int = 0
    has_rdma: bool | None = None
    """None if unknown."""
    in_pod: bool = False
    """The nodes were pods: their interface names apply only inside pods."""
    is_decided: bool = True
    """No relevant question is undecided."""
    harmful: tuple[str, ...] = ()
    """Variables that are already set and harmful."""

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
    """Shell lines for all nodes, then a `case` on the node's short host name."""
    lines = [line(v) for v in env if v.node is None]
    own = grouped((v.node, f"  {line(v)}") for v in env if v.node is not None)
    cases = grouped((tuple(rows), shlex.quote(node)) for node, rows in own.items())
    rows = [row for same, nodes in cases.items() for row in (f"{'|'.join(nodes)})", *same, "  ;;")]
    return [*lines, f"case {who} in", *rows, "esac"] if rows else lines


def exported(v: EnvVar) -> str:
    return f"export {v.name}={word(v.value)}  # {comment(v.because)}"


def shell(env: Sequence[EnvVar], machine: Machine) -> str:
    """Lines to source."""
    nothing = "no variable is known to be needed, but a question is open: see stderr, or --json"
    if machine.is_decided:
        nothing = "nothing needs to be set: NCCL and Gloo choose right on every node"
    if machine.is_decided and machine.harmful:
        nothing = f"nothing needs to be set, but unset these harmful variables: {' '.join(machine.harmful)}"
    return "\n".join(by_node(env, exported) or [f"# {nothing}"])


def slurm(env: Sequence[EnvVar], machine: Machine) -> str:
    """For a batch script: exported before srun, node by node inside it."""
    lines = ["# before srun, which passes the environment on (--export=ALL is its default)"]
    common = [v for v in env if v.node is None]
    lines += [shell(common, machine)] if common or not env else []
    own = by_node([v for v in env if v.node is not None], exported, who='"$SLURMD_NODENAME"')
    lines += ["# in what srun starts on each node, before the launcher"] if own else []
    return "\n".join([*lines, *own])


def docker(env: Sequence[EnvVar], machine: Machine) -> str:
    """A bash array of options for `docker run`, each with its reason."""
    has_gpus, may_have_rdma = bool(machine.gpu_count), machine.has_rdma is not False
    shared = "NCCL and data loaders share memory in /dev/shm; docker gives 64 MB"
    options = (
        (has_gpus, "--gpus all", "the GPUs of the machine (NVIDIA Container Toolkit)"),
        (True, "--network host", "ranks use the machine's own addresses, not docker0"),
        (True, f"--shm-size {SHM_GIB}g", shared),
        (True, "--ulimit nofile=65536:65536", "a socket to every peer, and the loaders' pipes"),
        (True, "--init", "an init reaps processes that have ended"),
        (has_gpus, "--ulimit stack=67108864", "as NVIDIA's images advise"),
        (may_have_rdma, "--device /dev/infiniband", "RDMA devices, and the connection manager's"),
        (may_have_rdma, "--cap-add IPC_LOCK", "RDMA registers memory"),
        (may_have_rdma, "--ulimit memlock=-1:-1", "RDMA registers memory, which the default limit forbids"),
    )
    lines = ["options=(", *(f"  {option}  # {why}" for is_meant, option, why in options if is_meant), ")"]
    lines += by_node(env, lambda v: f"options+=(--env {v.name}={word(v.value)})  # {comment(v.because)}")
    if may_have_rdma:
        lines.append("# the image needs libibverbs1, librdmacm1 and ibverbs-providers (or rdma-core)")
    return "\n".join([*lines, '# docker run "${options[@]}" IMAGE COMMAND'])


def unexpanded(text: str) -> str:
    """
    A text that Kubernetes passes unchanged to the container, as an argument or a variable's value.

    Kubernetes expands $(NAME) and $$ there, and breaks a non-ASCII character after a $ (Expand in
    third_party/forked/golang/expansion).

    >>> unexpanded("$(NPROC) $$ $HOME")
    '$$(NPROC) $$$ $HOME'
    """
    return re.sub(r"\$(?=[$(]|[^\x00-\x7f])", "$$", text)


def quoted(text: str) -> str:
    """
    A text in YAML's double quotes, with escapes for characters that are unsafe on a terminal.

    Raises LaunchError for bytes that are not UTF-8, because YAML is text.

    >>> print(quoted('a"b\\x7f'), quoted("no"))
    "a\\"b\\U0000007F" "no"
    """
    if any("\ud800" <= c <= "\udfff" for c in text):
        wrong = f"{printable(text, 80)} is not UTF-8, and a YAML file holds nothing else"
        raise LaunchError(wrong, hint="rename it, or leave it out")
    inner = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in inner)


def k8s(env: Sequence[EnvVar], machine: Machine) -> str:
    """Parts of a pod's specification, in YAML."""
    common = [v for v in env if v.node is None]
    own_names = any(v.name.endswith("_IFNAME") for v in env) and not machine.in_pod
    rdma, gpus = machine.has_rdma is not False, machine.gpu_count
    lines = ["hostNetwork: true  # the interface names below are the machines' own"] if own_names else []
    lines += ["dnsPolicy: ClusterFirstWithHostNet"] if own_names else []
    lines += ["containers:", "- name: train", *(["  env:"] if common else [])]
    for v in common:
        lines += [f"  - name: {v.name}", f"    value: {quoted(unexpanded(v.value))}  # {comment(v.because)}"]
    lines += ["  resources:", "    limits:"] if gpus or rdma else []
    lines += [f"      nvidia.com/gpu: {gpus}"] if gpus else []
    if rdma:
        lines.append("      rdma/hca: 1  # as your RDMA device plugin calls it: `kubectl describe node`")
        lines += ["  securityContext:", "    capabilities:"]
        lines.append('      add: ["IPC_LOCK"]  # RDMA registers memory')
    lines += ["  volumeMounts:", "  - name: shm", "    mountPath: /dev/shm", "volumes:", "- name: shm"]
    lines += ["  emptyDir:", "    medium: Memory  # the default /dev/shm of 64 MB is too small for NCCL"]
    lines.append(f"    sizeLimit: {SHM_GIB}Gi  # counts against the memory limit of the pod")
    for v in env:
        if v.node is not None:
            setting = f"{v.name}={quoted(v.value)}"
            lines.append(f"# on node {comment(v.node)} only: {setting}  {comment(v.because)}")
    return "\n".join(lines)


FORMATS = {"shell": shell, "slurm": slurm, "docker": docker, "k8s": k8s}
"""Name of a format -> its writer; the command itself writes `json`."""
