"""What the job brings along: its code, the libraries it would load, the time it has."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator, Sequence
from math import isinf

from ringup import problems
from ringup.checks.software import usual
from ringup.facts import Cluster, Library, Node
from ringup.nccl import choice
from ringup.reachability import few
from ringup.rules import Finding, Fix, check
from ringup.units import printable, show_seconds

DEFAULT_TIMEOUT_S = {"nccl": 600.0, "gloo": 1800.0}
"""torch/distributed/constants.py: ten minutes for NCCL, thirty for the others."""
RECORDS = (2, 8)
"""torch before this keeps none by itself: TORCH_NCCL_TRACE_BUFFER_SIZE was 0 (FlightRecorder.hpp)."""
WORKERS = ("num_workers", "workers", "dataloader_num_workers", "data_workers")
BUFFER_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


@check("fork-of-code-differs", reads=("revision",), uses=("script", "chdir"), severity="warning")
def fork_of_code_differs(cluster: Cluster) -> Iterator[Finding]:
    """
    The job's directory has different git commits checked out on the nodes.

    Why: ranks that run different code call different collectives, and hang.

    Fix: the same commit everywhere: `git checkout`, a shared file system, or one image.
    """
    # The script itself is compared byte by byte, and a missing directory named, by rules of their own.
    hashes = {n.script.sha256 for n in cluster.nodes if "script" not in n.unknown and n.script.exists}
    if len(hashes - {""}) > 1:
        return
    wanted = usual(cluster, lambda n: n.revision)
    for node in cluster.nodes:
        if node.revision and node.revision != wanted:
            directory = node.chdir.path if "chdir" not in node.unknown and node.chdir.path else "."
            enter = f"cd {shlex.quote(directory)} && git fetch && git checkout {shlex.quote(wanted)}"
            yield Finding(
                f"{node.name} {printable(directory, 200)}",
                found=f"commit {printable(node.revision[:12])}",
                wanted=f"commit {printable(wanted[:12])}, as elsewhere",
                node=node.name,
                fix=Fix(
                    "check out one commit on every node",
                    commands=(f"ssh {shlex.quote(node.name)} {shlex.quote(enter)}",),
                ),
            )


@check(
    "two-nccl-libraries", reads=("nccl_libraries",), uses=("nccl_answer", "interpreter"), severity="warning"
)
def two_nccl_libraries(cluster: Cluster) -> Iterator[Finding]:
    """
    The job would load another NCCL than the one torch was installed with.

    Why: torch prints the version it was built with; faults and variables are those of the one loaded.

    Fix: `unset LD_PRELOAD`, and take the directory out of LD_LIBRARY_PATH; or install that release.
    """
    for node in cluster.nodes:
        wheel = next((x for x in node.nccl_libraries if x.source == "wheel"), None)
        loaded = loaded_library(node)
        if wheel is None or loaded is None or same_file(loaded.path, wheel.path):
            continue
        if loaded.version and loaded.version == wheel.version:
            continue
        yield Finding(
            node.name,
            found=f"{printable(loaded.path, 300)} ({loaded.version or 'release not told'}) is loaded",
            wanted=f"{printable(wheel.path, 300)} ({wheel.version or 'the wheel of torch'})",
            node=node.name,
            fix=Fix(
                "take it out of LD_PRELOAD and LD_LIBRARY_PATH",
                commands=("unset LD_PRELOAD", "echo $LD_LIBRARY_PATH"),
            ),
        )


def same_file(path: str, other: str) -> bool:
    """Whether two spellings name one file, as far as spelling tells."""
    return posixpath.normpath(path) == posixpath.normpath(other)


def loaded_library(node: Node) -> Library | None:
    """What the job's interpreter loaded when it was asked to, else what LD_PRELOAD names; None if neither."""
    answer = node.nccl_answer if "nccl_answer" not in node.unknown else None
    if answer is not None and answer.library:
        return Library(answer.library, answer.version, "asked")
    return next((x for x in node.nccl_libraries if x.source == "LD_PRELOAD"), None)


@check(
    problems.NETWORK_PLUGIN_MISSING,
    reads=("nccl_plugins", "rdma_ports"),
    uses=("interpreter", "gpu_count", "product"),
)
def network_plugin_missing(cluster: Cluster) -> Iterator[Finding]:
    """Amazon's EFA has no verbs that NCCL can use: without the plugin all data goes over TCP."""
    nodes = [n for n in cluster.nodes if uses_nccl(n) and cluster.job.backend != "gloo"]
    for node in nodes:
        devices = [p.device for p in node.rdma_ports if p.driver == "efa"]
        if devices and not node.nccl_plugins:
            machine = (
                f" of {printable(node.product, 60)}" if "product" not in node.unknown and node.product else ""
            )
            yield Finding(
                node.name,
                found=f"no libnccl-net*.so for EFA{machine}: {printable(', '.join(devices), 200)}",
                wanted="the aws-ofi-nccl plugin where NCCL finds it",
                node=node.name,
                severity="warning",
                fix=Fix(
                    "install the plugin, or name its directory",
                    commands=("export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:$LD_LIBRARY_PATH",),
                ),
            )
    named = {n.name: {posixpath.basename(p).split(".so")[0] for p in n.nccl_plugins} for n in nodes}
    without = [n.name for n in nodes if not named[n.name]]
    having = sorted(set().union(*named.values())) if named else []
    if without and having and not any(p.driver == "efa" for n in nodes for p in n.rdma_ports):
        yield Finding(
            few(without),
            found=f"no {printable(', '.join(having), 200)} there, the other nodes have it",
            wanted="the same plugin on every node, or none",
            node=without[0] if len(without) == 1 else None,
            severity="warning",
            fix=Fix(
                "one image for all nodes; or switch it off everywhere",
                env={"NCCL_NET_PLUGIN": "none"},
            ),
        )


def uses_nccl(node: Node) -> bool:
    """Whether torch on this node comes with NCCL, and there are GPUs."""
    if "interpreter" in node.unknown or "gpu_count" in node.unknown:
        return False
    return bool(node.gpu_count and node.interpreter.cuda)


@check("timeout-longer-than-scheduler", reads=("cluster.job",), uses=("gpu_count",), severity="note")
def timeout_longer_than_scheduler(cluster: Cluster) -> Iterator[Finding]:
    """
    The scheduler ends the job before a hung collective would be reported.

    Why: the time that is left is shorter than the backend's timeout, so a hang ends as "time limit" and
    nobody learns where.

    Fix: a longer allocation, or a shorter `timeout=` for `init_process_group`.
    """
    left = cluster.job.time_left_s
    gpus = any(n.gpu_count for n in cluster.nodes if "gpu_count" not in n.unknown)
    backend = cluster.job.backend or ("nccl" if gpus else "gloo")
    timeout = DEFAULT_TIMEOUT_S[backend]
    if not isinf(left) and left < timeout:
        yield Finding(
            "the allocation",
            found=f"{show_seconds(left)} left",
            wanted=f"more than {show_seconds(timeout)}, after which {backend} reports a hang",
            fix=Fix("ask for more time", commands=("scontrol show job $SLURM_JOB_ID | grep -i TimeLimit",)),
        )


@check("dataloader-can-starve", reads=("cpu_count",), uses=("gpu_count",), severity="note")
def dataloader_can_starve(cluster: Cluster) -> Iterator[Finding]:
    """
    The script is given more data loader workers than a node has processors for.

    Why: workers of all ranks take turns with each other and with NCCL's own threads; steps then wait for
    data (torch's DataLoader warns of the same for one rank).

    Fix: fewer workers a rank, or more processors in the request.
    """
    workers = workers_in(cluster.job.arguments)
    for node in cluster.nodes:
        gpus = node.gpu_count if "gpu_count" not in node.unknown else 0
        ranks = cluster.job.nproc or gpus or 1
        if node.cpu_count and workers * ranks > node.cpu_count:
            yield Finding(
                node.name,
                found=f"{workers} workers for each of {ranks} ranks, on {node.cpu_count} processors",
                wanted=f"{max(1, node.cpu_count // ranks)} or fewer a rank",
                node=node.name,
                fix=Fix("fewer workers", commands=(f"ssh {shlex.quote(node.name)} nproc",)),
            )


def workers_in(arguments: Sequence[str]) -> int:
    """
    The number of data loader workers among a script's arguments, 0 where none is told.

    >>> workers_in(["--num-workers=8"]), workers_in(["--lr", "1", "-j", "4", "--workers", "x"])
    (8, 0)
    """
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.startswith("--") and name.strip("-").replace("-", "_") in WORKERS:
            text = value if equals else arguments[at + 1] if at + 1 < len(arguments) else ""
            return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    return 0


@check(
    "flight-recorder-off",
    reads=("environment", "interpreter"),
    uses=("gpu_count", "nccl_conf"),
    severity="note",
)
def flight_recorder_off(cluster: Cluster) -> Iterator[Finding]:
    """
    torch keeps no record of the last collectives.

    Why: when ranks hang, the record is what tells which rank fell behind, and in which collective.

    Fix: `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1` (newer torch:
    `TORCH_FR_BUFFER_SIZE`); `ringup env --debug` prints the names that fit.
    """
    off = []
    for node in cluster.nodes:
        env = choice.effective(node, cluster.job.env)
        sizes = [env[name] for name in BUFFER_NAMES if name in env]
        old = version_numbers(node.interpreter.torch) < RECORDS
        if uses_nccl(node) and (sizes[0] == "0" if sizes else old):
            off.append(
                (node, f"{BUFFER_NAMES[1]}=0" if sizes else f"torch {node.interpreter.torch} keeps none")
            )
    if off:
        yield Finding(
            few(n.name for n, _ in off),
            found=printable(off[0][1], 100),
            wanted="the last 2000 collectives of every rank",
            node=off[0][0].name if len(off) == 1 else None,
            fix=Fix(
                "switch it on",
                env={"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
            ),
        )


def version_numbers(text: str) -> tuple[int, ...]:
    """
    >>> version_numbers("2.7.1+cu128"), version_numbers("")
    ((2, 7), (99,))
    """
    parts = text.split("+")[0].split(".")[:2]
    return tuple(int(p) for p in parts) if parts and all(p.isdecimal() for p in parts) else (99,)
