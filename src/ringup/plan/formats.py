"""An environment as a shell script, a Slurm script's part, docker's options or a pod's specification."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence

from ringup.plan import EnvVar
from ringup.units import printable


def comment(text: str) -> str:
    """A reason on one line, safe behind `#`."""
    return printable(" ".join(text.split()), 400)


def shell(env: Sequence[EnvVar], gpu_count: int = 0, *, who: str = '"$(hostname -s)"') -> str:
    """Lines to source; what differs between nodes hangs on the node's short host name."""
    lines = [f"export {v.name}={shlex.quote(v.value)}  # {comment(v.because)}" for v in env if v.node is None]
    nodes = list(dict.fromkeys(v.node for v in env if v.node is not None))
    if nodes:
        lines.append(f"case {who} in")
        for node in nodes:
            lines.append(f"{shlex.quote(node)})")
            own = [v for v in env if v.node == node]
            lines += [f"  export {v.name}={shlex.quote(v.value)}  # {comment(v.because)}" for v in own]
            lines.append("  ;;")
        lines.append("esac")
    return "\n".join(lines or ["# nothing needs to be set: NCCL and Gloo choose right on every node"])


def slurm(env: Sequence[EnvVar], gpu_count: int = 0) -> str:
    """For a batch script: exported before srun, by node inside it."""
    common = shell([v for v in env if v.node is None])
    own = [v for v in env if v.node is not None]
    lines = ["# before srun, which passes the environment on (--export=ALL is its default)", common]
    if own:
        lines += [
            "# in what srun starts on each node, before the launcher",
            shell(own, who='"$SLURMD_NODENAME"'),
        ]
    return "\n".join(lines)


def docker(env: Sequence[EnvVar], gpu_count: int = 0) -> str:
    """Options of `docker run`, the reason of each above."""
    fixed = [
        ("--gpus all", "the GPUs of the machine"),
        ("--network host", "ranks meet on the machine's own addresses, not on docker0"),
        ("--shm-size 8g", "NCCL and data loaders share memory in /dev/shm; docker's default is 64 MB"),
        ("--ulimit memlock=-1", "RDMA registers memory, which the default limit forbids"),
        ("--device /dev/infiniband", "RDMA devices; leave it out where there are none"),
    ]
    lines = ["# the image needs libibverbs1 and librdmacm1 for RDMA"]
    for option, why in fixed:
        lines += [f"# {why}", option]
    for v in env:
        where = f"on {comment(v.node)}: " if v.node else ""
        lines += [f"# {where}{comment(v.because)}", f"--env {shlex.quote(f'{v.name}={v.value}')}"]
    return "\n".join(lines)


def k8s(env: Sequence[EnvVar], gpu_count: int = 0) -> str:
    """Parts of a pod's specification, in YAML."""
    lines = ["containers:", "- name: train"]
    common = [v for v in env if v.node is None]
    lines += ["  env:"] if common else []
    for v in common:
        lines += [f"  - name: {v.name}", f"    value: {json.dumps(v.value)}  # {comment(v.because)}"]
    lines += [
        "  resources:",
        "    limits:",
        f"      nvidia.com/gpu: {gpu_count or 1}",
        "      # the RDMA resource of your device plugin, for example rdma/hca_shared_devices_a: 1",
        "  securityContext:",
        "    capabilities:",
        '      add: ["IPC_LOCK"]  # RDMA registers memory',
        "  volumeMounts:",
        "  - name: shm",
        "    mountPath: /dev/shm",
        "volumes:",
        "- name: shm",
        "  emptyDir:",
        "    medium: Memory  # the default /dev/shm of 64 MB is too small for NCCL",
    ]
    for v in env:
        if v.node is not None:
            lines.append(
                f"# on node {comment(v.node)} only: {v.name}={json.dumps(v.value)}  {comment(v.because)}"
            )
    return "\n".join(lines)


FORMATS: dict[str, Callable[[Sequence[EnvVar], int], str]] = {
    "shell": shell,
    "slurm": slurm,
    "docker": docker,
    "k8s": k8s,
}
"""Name of a format -> its writer; `json` is the command's own."""
