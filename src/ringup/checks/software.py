"""The job's software: interpreter and packages, script and code, libraries (and NCCL's selection), time."""

from __future__ import annotations

import posixpath
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from ringup.model import Cluster, Library, Node
from ringup.nccl import interface_choice
from ringup.network.predictions import Selection, uses_nccl
from ringup.rules import Finding, Place, at, check, ssh_target
from ringup.units import printable, show_seconds

DEFAULT_TIMEOUT_S = {"nccl": 600.0, "gloo": 1800.0}
"""torch/distributed/constants.py: ten minutes for NCCL, thirty for the others."""
RECORDS = (2, 8)
"""Earlier torch keeps no records by default: TORCH_NCCL_TRACE_BUFFER_SIZE was 0 (FlightRecorder.hpp)."""
WORKERS = ("num_workers", "workers", "dataloader_num_workers", "data_workers")
BUFFER_NAMES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def usual(cluster: Cluster, value: Callable[[Node], str]) -> str:
    """The value of most nodes, in a tie the head's; "" if no node has one."""
    return most_common(map(value, cluster.nodes))


def unusual(cluster: Cluster, value: Callable[[Node], str]) -> list[tuple[Node, str, str]]:
    """Nodes with another value than the usual one, with both values."""
    wanted = usual(cluster, value)
    return [(n, own, wanted) for n in cluster.nodes if (own := value(n)) and own != wanted]


def most_common(values: Iterable[str]) -> str:
    """The first of equally common values; "" does not count."""
    return next((value for value, _ in Counter(filter(None, values)).most_common(1)), "")


def most_common_number(numbers: Iterable[float]) -> float:
    """
    The largest of equally common values, because the smaller one is usually the fault.

    >>> most_common_number([100.0, 200.0]), most_common_number([1.0, 1.0, 2.0]), most_common_number([])
    (200.0, 1.0, 0.0)
    """
    counts = Counter(numbers)
    return max(counts, key=lambda number: (counts[number], number), default=0.0)


def usual_elsewhere(values: Sequence[float]) -> list[float]:
    """
    For each value the lower median of the others; 0 if there are none.

    >>> usual_elsewhere([1.0, 5.0, 2.0, 9.0]), usual_elsewhere([3.0])
    ([5.0, 2.0, 5.0, 2.0], [0.0])
    """
    order = sorted(range(len(values)), key=lambda k: values[k])
    middle = (len(values) - 2) // 2
    rank = {k: place for place, k in enumerate(order)}
    if len(values) < 2:
        return [0.0] * len(values)
    return [values[order[middle + (rank[k] <= middle)]] for k in range(len(values))]


def packaged(node: Node, package: str) -> str:
    return node.interpreter.packages.get(package, "")


def torch_of(node: Node, _: str = "torch") -> str:
    """The version that torch reports; with the one that pip recorded if an upgrade was incomplete."""
    own, recorded = node.interpreter.torch, packaged(node, "torch")
    same = not recorded or recorded.partition("+")[0] == own.partition("+")[0]
    return own if same or not own else f"{own}, by pip's record {recorded}"


def lacking(cluster: Cluster, package: str, value: Callable[[Node], str]) -> Iterator[Finding]:
    wanted = usual(cluster, value)
    exact = f"{package}=={wanted.partition('+')[0]}" if wanted else package
    elsewhere = usual(cluster, lambda n: n.interpreter.path if value(n) else "")
    for node in cluster.nodes:
        own = node.interpreter.path
        if package and own and not value(node):
            by, run = "", f"{shlex.quote(own)} -m pip install {shlex.quote(exact)}"
            fix = "use the environment that has it (--python, --setup), or install it"
            if elsewhere not in ("", own):
                by, run = f": {printable(elsewhere, 200)}", f"ls -lL {shlex.quote(elsewhere)}"
                fix = "the same environment under the same path on every node, or --python, --setup"
            yield at(node).finding(
                found=f"{printable(own, 200)} has no {package}",
                wanted=f"{package} {printable(wanted, 80)}, as on the other nodes{by}" if wanted else package,
                fix=fix,
                run=run,
            )


@check("setup-fails", reads=("setup_error",))
def setup_fails(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    The `--setup` command fails on a node.

    Why: it runs before the job and before every probe, so neither can be trusted there.
    Fix: run it by hand on that node, in a non-interactive shell.
    """
    if node.setup_error:
        yield at(node).finding(
            found=printable(node.setup_error, 400), wanted="the command succeeds", run=cluster.job.setup
        )


@check("python-or-launcher-missing", reads=("interpreter",))
def python_or_launcher_missing(cluster: Cluster) -> Iterator[Finding]:
    """The location of its command does not matter: a launcher is started as a module of the interpreter."""
    package = cluster.job.launcher_package
    yield from lacking(cluster, package, lambda n: packaged(n, package))
    for node in cluster.nodes:
        if not node.interpreter.path and not node.setup_error:
            wanted = cluster.job.python or "python3"
            other = next((n.interpreter.path for n in cluster.nodes if n.interpreter.path), "")
            yield at(node).finding(
                found=f"no {printable(wanted, 200)} in the shell the job gets",
                wanted=f"an interpreter with torch{f', as {other} elsewhere' if other else ''}",
                run="command -v python3; echo $PATH",
            )


@check("torch-without-cuda", reads=("interpreter", "gpu_count"))
def torch_without_cuda(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    The node has GPUs, and the torch the job would use was built without support for any.

    Why: `backend="nccl"` and `.cuda()` raise on every rank of that node; a script that first checks whether
    CUDA is available trains on CPUs instead, without a message.
    Fix: install the build for the driver's CUDA (`pip install torch` from PyTorch's own index for it), or
    name the environment that has it (`--python`, `--setup`).
    In logs: `Torch not compiled with CUDA enabled`, `Distributed package doesn't have NCCL built in`.
    """
    build, job = node.interpreter.torch, cluster.job
    wants_gpus = node.gpu_count and job.backend != "gloo" and job.launcher != "jax"
    if wants_gpus and build and not node.interpreter.cuda and "rocm" not in build:
        yield at(node).finding(
            found=f"torch {printable(build, 60)} uses no GPU, and there are {node.gpu_count}",
            wanted="a build for CUDA or ROCm",
            severity="error" if job.backend == "nccl" else "note",
            run=f"{shlex.quote(node.interpreter.path)} -c 'import torch; print(torch.version.cuda)'",
        )


@check("torch-missing", reads=("interpreter",))
def torch_missing(cluster: Cluster) -> Iterator[Finding]:
    """
    The interpreter the job would use has no torch.

    Why: the ranks of that node die at once, all others wait for them.
    Fix: use the same environment on every node: `--python`, `--setup` (module load, conda activate), or
    install torch there.
    In logs: `ModuleNotFoundError: No module named 'torch'` on one host only.
    """
    if cluster.job.launcher != "jax":
        yield from lacking(cluster, "torch", lambda n: n.interpreter.torch)


VERSIONS: dict[str, tuple[str, Callable[[Node, str], str]]] = {
    "launcher-versions-differ": ("", packaged),
    "torch-versions-differ": ("torch", torch_of),
    "nccl-versions-differ": ("NCCL", lambda n, _: n.interpreter.nccl),
    "cuda-versions-differ": ("CUDA", lambda n, _: n.interpreter.cuda),
    "python-versions-differ": ("Python", lambda n, _: ".".join(n.interpreter.version.split(".")[:2])),
}
"""Rule -> the package ("" for the launcher's) and its version on a node."""


def versions_differ(cluster: Cluster, rule: str) -> Iterator[Finding]:
    """Nodes with an unusual version of a package; for one that comes with torch, only with the same torch."""
    package, value = VERSIONS[rule]
    name = package or cluster.job.launcher_package
    own = [value(n, name) for n in cluster.nodes]
    shows = "--version" if package == "Python" else "-m pip list"
    wanted = most_common(own)
    if package in ("NCCL", "CUDA") and len({torch_of(n) for n in cluster.nodes if n.interpreter.torch}) > 1:
        return
    for node, version in zip(cluster.nodes, own, strict=True):
        if version and version != wanted:
            yield at(node).finding(
                found=f"{name} {printable(version, 80)} ({printable(node.interpreter.path, 200)})",
                wanted=f"{printable(wanted, 80)}, as on {cluster.nodes[own.index(wanted)].name}",
                run=f"{shlex.quote(node.interpreter.path)} {shows}",
            )


for _rule in VERSIONS:
    check(_rule, reads=("interpreter",))(partial(versions_differ, rule=_rule))


@check("launcher-not-on-path", reads=("torchrun_on_path", "interpreter"), severity="warning")
def launcher_not_on_path(cluster: Cluster) -> Iterator[Finding]:
    """
    torchrun is not on the PATH of a non-interactive shell.

    Why: `ssh NODE torchrun ...` says `command not found` on that node, and the head waits ten minutes.
    Fix: start it as a module of an interpreter named by its path, `/path/to/python -m
    torch.distributed.run`; or extend PATH where non-interactive shells read it.
    In logs: `bash: line 1: torchrun: command not found`.
    """
    # Ringup itself starts ranks by the interpreter's path.
    if cluster.is_local or cluster.job.script or cluster.job.launcher not in ("torchrun", ""):
        return
    # Without torch there is no torchrun: another rule reports that.
    able = [n for n in cluster.nodes if n.interpreter.torch]
    missing = [n for n in able if not n.torchrun_on_path]
    everywhere = len(missing) == len(able)
    for nodes in filter(None, [missing] if everywhere else [[n] for n in missing]):
        where = "any node" if len(nodes) > 1 else nodes[0].name
        yield at(nodes, subject=f"path:{nodes[0].name}").finding(
            found=f"torchrun is not on the PATH of a non-interactive shell on {where}",
            wanted="torchrun on PATH, or the interpreter's absolute path",
            severity="note" if everywhere else "warning",
            fix="start it by the interpreter's path",
            commands=[f"{shlex.quote(nodes[0].interpreter.path)} -m torch.distributed.run ..."],
        )


def copying(cluster: Cluster, node: Node, path: str, sha256: str = "") -> tuple[str, ...]:
    """A command that copies a path to a node, if the launching machine has that path (with this content)."""
    here = cluster.here.get(path.rstrip("/"))
    if cluster.is_local or here is None or (sha256 and here != sha256):
        return ()
    quoted = shlex.quote(path)
    return (f"rsync -a {quoted} {ssh_target(node)}:{quoted}",)


def advice(cluster: Cluster, path: str, having: list[Node]) -> str:
    """How a node can get a file or directory that only the nodes in `having` have."""
    if path in cluster.here:
        return "copy it there"
    lost = "no node has it: correct its name, or copy it there"
    return f"copy it there from {having[0].name}" if having else lost


@check("directory-missing", reads=("chdir",))
def directory_missing(cluster: Cluster) -> Iterator[Finding]:
    """
    The directory the job starts in does not exist on a node.

    Why: the ranks of that node cannot start; launchers then fall back to the home directory or hang.
    Fix: use the same path on every node (shared file system, rsync), or `--chdir`.
    """
    having = [n for n in cluster.nodes if n.chdir.exists]
    for node in cluster.nodes:
        if node.chdir.path and not node.chdir.exists:
            yield at(node).finding(
                found=f"no directory {printable(node.chdir.path, 200)}",
                wanted="the directory the job starts in, on every node",
                fix=f"{advice(cluster, node.chdir.path, having)}; or name one that every node has: --chdir",
                commands=copying(cluster, node, node.chdir.path + "/"),
            )


@check("script-missing", reads=("script",))
def script_missing(cluster: Cluster) -> Iterator[Finding]:
    """
    The training script does not exist on a node, or the user of the job may not read it.

    Why: the ranks of that node die at once, all others wait for them.
    Fix: put the same files on every node: a shared file system, or rsync.
    In logs: `can't open file 'train.py': [Errno 2] No such file or directory`.
    """
    having = [n for n in cluster.nodes if n.script.exists]
    for node in cluster.nodes:
        no_directory = node.chdir.path and not node.chdir.exists
        if node.script.error:
            yield at(node).finding(
                found=f"{printable(node.script.path, 200)}: {printable(node.script.error, 80)}",
                wanted="a script that the user of the job can read",
                fix="allow it for the file and every directory above it",
                run=f"namei -l {shlex.quote(node.script.path)}",
            )
        elif node.script.path and not node.script.exists and not no_directory:
            yield at(node).finding(
                found=f"no file {printable(node.script.path, 200)}",
                wanted="the script on every node",
                fix=advice(cluster, node.script.path, having),
                commands=copying(cluster, node, node.script.path),
            )


@check("script-differs", reads=("script",))
def script_differs(cluster: Cluster) -> Iterator[Finding]:
    """
    The training script is not the same file on all nodes.

    Why: ranks that run different code call different collectives, and hang.
    Fix: copy the head's script to the others, or use a shared file system.
    """
    hashes = {n.name: n.script.sha256 for n in cluster.nodes if n.script.exists and n.script.sha256}
    wanted = next(iter(hashes.values()), "")
    for node in cluster.nodes:
        if hashes.get(node.name, wanted) != wanted:
            head = next(iter(hashes))
            yield at(node).finding(
                found=f"{printable(node.script.path, 200)} is another file "
                f"({node.script.size_bytes} bytes, sha256 {node.script.sha256[:12]})",
                wanted=f"the same as on {head} (sha256 {wanted[:12]})",
                commands=copying(cluster, node, node.script.path, wanted),
            )


@check("fork-of-code-differs", reads=("revision",), severity="warning")
def fork_of_code_differs(cluster: Cluster) -> Iterator[Finding]:
    """
    The job's directory has different git commits checked out on the nodes.

    Why: ranks that run different code call different collectives, and hang.
    Fix: use the same commit everywhere: `git checkout`, a shared file system, or one image.
    """
    # Other rules compare the script byte by byte and report a missing directory.
    hashes = {n.script.sha256 for n in cluster.nodes if n.script.exists}
    if len(hashes - {""}) > 1:
        return
    for node, own, wanted in unusual(cluster, lambda n: n.revision):
        directory = node.chdir.path or "."
        yield at(node, printable(directory, 200)).finding(
            found=f"commit {printable(own[:12])}",
            wanted=f"commit {printable(wanted[:12])}, as on the other nodes",
            run=f"cd {shlex.quote(directory)} && git fetch && git checkout {shlex.quote(wanted)}",
        )


@check("two-nccl-libraries", reads=("nccl_libraries",))
def two_nccl_libraries(node: Node) -> Iterator[Finding]:
    """The job would load another NCCL than the one torch was installed with."""
    wheel = next((x for x in node.nccl_libraries if x.source == "wheel"), None)
    loaded = next((x for x in node.nccl_libraries if x.source == "LD_PRELOAD"), None)
    if node.nccl_answer.library:
        loaded = Library(node.nccl_answer.library, node.nccl_answer.version, "asked")
    if wheel is None or loaded is None or (loaded.version and loaded.version == wheel.version):
        return
    if posixpath.normpath(loaded.path) == posixpath.normpath(wheel.path):
        return
    yield at(node).finding(
        found=f"{printable(loaded.path, 300)} ({loaded.version or 'release unknown'}) is loaded",
        wanted=f"{printable(wheel.path, 300)} ({wheel.version or 'the wheel of torch'})",
        commands=("unset LD_PRELOAD", "echo $LD_LIBRARY_PATH"),
        severity="warning",
    )


@check("network-plugin-missing", reads=("nccl_plugins", "rdma_ports", "interpreter", "gpu_count"))
def network_plugin_missing(cluster: Cluster) -> Iterator[Finding]:
    """NCCL cannot use the verbs of Amazon's EFA: without the plugin all data use TCP."""
    nodes = [n for n in cluster.nodes if runs_nccl(cluster, n)]
    for node in nodes:
        devices = [p.device for p in node.rdma_ports if p.driver == "efa"]
        if devices and not node.nccl_plugins:
            machine = f" of {printable(node.product, 60)}" if node.product else ""
            yield at(node).finding(
                found=f"no libnccl-net*.so for EFA{machine}: {printable(', '.join(devices), 200)}",
                wanted="the aws-ofi-nccl plugin where NCCL finds it",
                severity="warning",
                fix="install the plugin, or name its directory",
                commands=("export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:$LD_LIBRARY_PATH",),
            )
    named = {n.name: {posixpath.basename(p).split(".so")[0] for p in n.nccl_plugins} for n in nodes}
    without = [n for n in nodes if not named[n.name]]
    having = sorted(set().union(*named.values())) if named else []
    if without and having and not any(p.driver == "efa" for n in nodes for p in n.rdma_ports):
        yield at(without).finding(
            found=f"no {printable(', '.join(having), 200)} there, the other nodes have it",
            wanted="the same plugin on every node, or none",
            severity="warning",
            fix="use one image on all nodes, or disable the plugin everywhere",
            env={"NCCL_NET_PLUGIN": "none"},
        )


def runs_nccl(cluster: Cluster, node: Node) -> bool:
    """Whether this node certainly runs NCCL: the job uses it there, and torch comes with CUDA."""
    return bool(node.interpreter.cuda) and uses_nccl(Cluster((node,), job=cluster.job)) == "yes"


@check("timeout-longer-than-scheduler", severity="note")
def timeout_longer_than_scheduler(cluster: Cluster) -> Iterator[Finding]:
    """
    The scheduler ends the job before a hung collective would be reported.

    Why: the time that is left is shorter than the backend's timeout, so a hang ends as "time limit" and its
    place stays unknown.
    Fix: request a longer allocation, or set a shorter `timeout=` for `init_process_group`.
    """
    left = cluster.job.time_left_s
    # If GPUs could not be counted, the shorter limit applies, to avoid a false alarm.
    backend = "gloo" if uses_nccl(cluster) == "no" else "nccl"
    timeout = DEFAULT_TIMEOUT_S[backend]
    if left < timeout:
        yield Place("the allocation", ()).finding(
            found=f"{show_seconds(left)} left",
            wanted=f"more than {show_seconds(timeout)}, after which {backend} reports a hang",
            commands=["scontrol show job $SLURM_JOB_ID | grep -i TimeLimit"],
        )


@check("dataloader-can-starve", reads=("cpu_count",), severity="note")
def dataloader_can_starve(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    The script is given more data loader workers than a node has CPUs for.

    Why: workers of all ranks take turns with each other and with NCCL's own threads; steps then wait for
    data (torch's DataLoader warns of the same for one rank).
    Fix: use fewer workers per rank, or request more CPUs.
    """
    workers, ranks = workers_in(cluster.job.arguments), cluster.ranks_on(node)
    if node.cpu_count and workers * ranks > node.cpu_count:
        yield at(node).finding(
            found=f"{workers} workers for each of {ranks} ranks, on {node.cpu_count} CPUs",
            wanted=f"{max(1, node.cpu_count // ranks)} or fewer a rank",
            run="nproc",
        )


def workers_in(arguments: Sequence[str]) -> int:
    """
    The number of data loader workers in a script's arguments, 0 if not given.

    >>> workers_in(["--num-workers=8"]), workers_in(["--lr", "1", "-j", "4", "--workers", "x"])
    (8, 0)
    """
    for index, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.startswith("--") and name.strip("-").replace("-", "_") in WORKERS:
            text = value if equals else arguments[index + 1] if index + 1 < len(arguments) else ""
            return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    return 0


@check("flight-recorder-off", reads=("environment", "interpreter", "gpu_count"), severity="note")
def flight_recorder_off(cluster: Cluster) -> Iterator[Finding]:
    """
    torch keeps no record of the last collectives.

    Why: when ranks hang, the record shows which rank fell behind, and in which collective.
    Fix: `TORCH_NCCL_TRACE_BUFFER_SIZE=2000` and `TORCH_NCCL_DUMP_ON_TIMEOUT=1` (newer torch:
    `TORCH_FR_BUFFER_SIZE`); `ringup env --debug` prints the names that fit.
    """
    off = {}
    for node in cluster.nodes:
        env = interface_choice.effective(node, cluster.job.env)
        size = next((env[name] for name in BUFFER_NAMES if name in env), "")
        old = () != node.interpreter.torch_release < RECORDS
        if runs_nccl(cluster, node) and (size == "0" if size else old):
            off[node.name] = f"{BUFFER_NAMES[1]}=0" if size else f"torch {node.interpreter.torch} keeps none"
    if off:
        yield at(off).finding(
            found=printable(next(iter(off.values())), 100),
            wanted="the last 2000 collectives of every rank",
            env={"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"},
        )


@check("nccl-answer-differs", reads=("nccl_answer", "interfaces"), severity="note")
def nccl_answer_differs(node: Node, cluster: Cluster) -> Iterator[Finding]:
    """
    NCCL, queried on a node, uses another interface than ringup predicts from its source.

    Why: the plan uses the library's own answer; the wrong prediction may matter where it cannot be queried:
    RDMA devices, and which NIC each GPU uses.
    Fix: nothing to do for the job; please report it with `ringup bundle`.
    """
    selection = Selection(node, cluster.job, cluster.job.env)
    answer = interface_choice.asked(node, selection.env)
    if not answer:
        return
    ours = interface_choice.first(node, selection.environment, selection.version)
    expected = (ours.interface, ours.address) if ours else ("", "")
    if (answer.interface, answer.address) != expected:
        words = f"{answer.interface} {answer.address}" if answer.interface else "; ".join(answer.errors)
        yield at(node, "NCCL").finding(
            found=f"NCCL {answer.version} itself says: {printable(words, 300)}",
            wanted=f"as expected: {printable(' '.join(expected), 100) if ours else 'no interface'}",
        )
