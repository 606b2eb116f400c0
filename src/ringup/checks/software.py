"""The interpreter the job would use, what is installed in it, and the script."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator

from ringup import problems
from ringup.facts import Cluster, Node
from ringup.reachability import few
from ringup.rules import Finding, Fix, check
from ringup.units import printable, twice_quoted


def usual(cluster: Cluster, value: Callable[[Node], str]) -> str:
    """What most nodes have, the head's in a tie; "" when nobody has any."""
    counts = Counter(value(n) for n in cluster.nodes if value(n))
    most = max(counts.values(), default=0)
    return next((value(n) for n in cluster.nodes if value(n) and counts[value(n)] == most), "")


def differing(cluster: Cluster, value: Callable[[Node], str], what: str, advice: str) -> Iterator[Finding]:
    """A finding for each node whose value is not the usual one; nodes without any are left out."""
    wanted = usual(cluster, value)
    for node in cluster.nodes:
        own = value(node)
        if own and own != wanted:
            same = next(n.name for n in cluster.nodes if value(n) == wanted)
            yield Finding(
                node.name,
                found=f"{what} {printable(own, 80)} ({printable(node.interpreter.path, 200)})",
                wanted=f"{printable(wanted, 80)}, as on {same}",
                node=node.name,
                fix=Fix(
                    advice,
                    commands=(
                        f"ssh {shlex.quote(node.name)} {twice_quoted(node.interpreter.path)} -m pip list",
                    ),
                ),
            )


@check("setup-fails", reads=("setup_error",))
def setup_fails(cluster: Cluster) -> Iterator[Finding]:
    """
    The `--setup` command fails on a node.

    Why: it comes before the job and before every probe, so neither can be trusted there.

    Fix: run it by hand on that node, in a non-interactive shell.
    """
    for node in cluster.nodes:
        if node.setup_error:
            yield Finding(
                node.name,
                found=printable(node.setup_error, 400),
                wanted="the command succeeds",
                node=node.name,
                fix=Fix(
                    "make it work in a non-interactive shell of that node",
                    commands=(f"ssh {shlex.quote(node.name)} {shlex.quote(cluster.job.setup)}",),
                ),
            )


@check(problems.PYTHON_OR_LAUNCHER_MISSING, reads=("interpreter",), uses=("setup_error",))
def python_or_launcher_missing(cluster: Cluster) -> Iterator[Finding]:
    """No matter where its command is: a launcher is started as a module of the interpreter."""
    yield from launcher_missing(cluster)
    for node in cluster.nodes:
        if not node.interpreter.path and not ("setup_error" not in node.unknown and node.setup_error):
            wanted = cluster.job.python or "python3"
            other = next((n.interpreter.path for n in cluster.nodes if n.interpreter.path), "")
            yield Finding(
                node.name,
                found=f"no {printable(wanted, 200)} in the shell the job gets",
                wanted=f"an interpreter with torch{f', as {other} elsewhere' if other else ''}",
                node=node.name,
                fix=Fix(
                    "the same environment on every node (shared file system or image), or name it: --python",
                    commands=(f"ssh {shlex.quote(node.name)} 'command -v python3; echo $PATH'",),
                ),
            )


def launcher_missing(cluster: Cluster) -> Iterator[Finding]:
    """The package of the launcher asked for is not beside the interpreter."""
    package = cluster.job.launcher_package
    wanted = usual(cluster, lambda n: n.interpreter.packages.get(package, ""))
    for node in cluster.nodes:
        if package and node.interpreter.path and package not in node.interpreter.packages:
            python = twice_quoted(node.interpreter.path)
            exact = f"{package}=={wanted}" if wanted else package
            yield Finding(
                node.name,
                found=f"{printable(node.interpreter.path, 200)} has no {package}",
                wanted=f"{package} {printable(wanted, 80)}, as on the other nodes" if wanted else package,
                node=node.name,
                fix=Fix(
                    "use the environment that has it (--python, --setup), or install it",
                    commands=(f"ssh {shlex.quote(node.name)} {python} -m pip install {twice_quoted(exact)}",),
                ),
            )


@check("launcher-versions-differ", reads=("interpreter",), severity="warning")
def launcher_versions_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have different versions of the launcher that is asked for.

    Why: options, defaults and what ranks are told change between releases, and of JAX the protocol.

    Fix: one environment for all nodes: a shared file system or an image.
    """
    package = cluster.job.launcher_package
    yield from differing(
        cluster,
        lambda n: n.interpreter.packages.get(package, ""),
        package,
        f"install the same {package} on every node",
    )


@check("torch-without-cuda", reads=("interpreter", "gpu_count"))
def torch_without_cuda(cluster: Cluster) -> Iterator[Finding]:
    """
    The node has GPUs, and the torch the job would use was built without support for any.

    Why: `backend="nccl"` and `.cuda()` raise on every rank of that node; what asks first whether CUDA is
    there trains on the processors instead, without a word.

    Fix: install the build for the driver's CUDA (`pip install torch` from PyTorch's own index for it), or
    name the environment that has it (`--python`, `--setup`).

    In logs: `Torch not compiled with CUDA enabled`, `Distributed package doesn't have NCCL built in`.
    """
    if cluster.job.backend == "gloo" or cluster.job.launcher == "jax":
        return
    for node in cluster.nodes:
        build = node.interpreter.torch
        if node.gpu_count and build and not node.interpreter.cuda and "rocm" not in build:
            asked = f"{shlex.quote(node.interpreter.path)} -c 'import torch; print(torch.version.cuda)'"
            yield Finding(
                node.name,
                found=f"torch {printable(build, 60)} uses no GPU, and there are {node.gpu_count}",
                wanted="a build for CUDA or ROCm",
                node=node.name,
                severity="error" if cluster.job.backend == "nccl" else "note",
                fix=Fix(
                    "install a build for CUDA, or name the environment that has one (--python, --setup)",
                    commands=(f"ssh {shlex.quote(node.name)} {shlex.quote(asked)}",),
                ),
            )


@check("torch-missing", reads=("interpreter",))
def torch_missing(cluster: Cluster) -> Iterator[Finding]:
    """
    The interpreter the job would use has no torch.

    Why: the ranks of that node die at once, all others wait for them.

    Fix: the same environment on every node: `--python`, `--setup` (module load, conda activate), or
    install torch there.

    In logs: `ModuleNotFoundError: No module named 'torch'` on one host only.
    """
    if cluster.job.launcher == "jax":
        return
    wanted = usual(cluster, lambda n: n.interpreter.torch)
    for node in cluster.nodes:
        if node.interpreter.path and not node.interpreter.torch:
            python = twice_quoted(node.interpreter.path)
            package = f"torch=={wanted.partition('+')[0]}" if wanted else "torch"
            yield Finding(
                node.name,
                found=f"{printable(node.interpreter.path, 200)} has no torch",
                wanted=f"torch {wanted}, as on the other nodes" if wanted else "torch",
                node=node.name,
                fix=Fix(
                    "use the environment that has it (--python, --setup), or install it",
                    commands=(
                        f"ssh {shlex.quote(node.name)} {python} -m pip install {twice_quoted(package)}",
                    ),
                ),
            )


@check("torch-versions-differ", reads=("interpreter",))
def torch_versions_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have different versions of torch.

    Why: the store's protocol, pickles and collectives' fingerprints change between releases; it may
    train for a while and then hang.

    Fix: one environment for all nodes: a shared file system or an image.
    """
    yield from differing(cluster, torch_of, "torch", "install the same torch on every node")


def torch_of(node: Node) -> str:
    """The version torch reports; with the one pip recorded where an upgrade was left half done."""
    own, recorded = node.interpreter.torch, node.interpreter.packages.get("torch", "")
    same = not recorded or recorded.partition("+")[0] == own.partition("+")[0]
    return own if same or not own else f"{own}, by pip's record {recorded}"


def same_torch(cluster: Cluster) -> bool:
    return len({torch_of(n) for n in cluster.nodes if n.interpreter.torch}) <= 1


@check(problems.NCCL_VERSIONS_DIFFER, reads=("interpreter",))
def nccl_versions_differ(cluster: Cluster) -> Iterator[Finding]:
    """Where torch differs, that is said instead: NCCL comes with it."""
    if same_torch(cluster):
        yield from differing(
            cluster, lambda n: n.interpreter.nccl, "NCCL", "install the same NCCL wheel on every node"
        )


@check("cuda-versions-differ", reads=("interpreter",), severity="warning")
def cuda_versions_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes' torch is built for different CUDA releases.

    Why: NCCL and kernels differ with it, and so do speed and results.

    Fix: the same wheel on every node.
    """
    if same_torch(cluster):
        yield from differing(
            cluster, lambda n: n.interpreter.cuda, "CUDA", "install the same wheel on every node"
        )


@check("python-versions-differ", reads=("interpreter",), severity="warning")
def python_versions_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have different minor versions of Python.

    Why: pickles, data loaders and compiled packages are not the same.

    Fix: one environment for all nodes; `--python` names it.
    """
    yield from differing(
        cluster,
        lambda n: ".".join(n.interpreter.version.split(".")[:2]),
        "Python",
        "use the same interpreter on every node",
    )


@check("launcher-not-on-path", reads=("torchrun_on_path",), uses=("interpreter",), severity="warning")
def launcher_not_on_path(cluster: Cluster) -> Iterator[Finding]:
    """
    torchrun is not on the PATH of a non-interactive shell.

    Why: `ssh NODE torchrun ...` says `command not found` on that node, and the head waits ten minutes.

    Fix: start it as a module of an interpreter named by its path, `/path/to/python -m
    torch.distributed.run`; or extend PATH where non-interactive shells read it.

    In logs: `bash: line 1: torchrun: command not found`.
    """
    if cluster.is_local or cluster.job.launcher not in ("torchrun", ""):
        return
    # Where torch itself is missing torchrun cannot be there: that fault has its own name.
    able = [n for n in cluster.nodes if "interpreter" not in n.unknown and n.interpreter.torch]
    missing = [n for n in able if not n.torchrun_on_path]
    everywhere = len(missing) == len(able)
    for node in missing[:1] if everywhere else missing:
        where = "any node" if everywhere and len(missing) > 1 else node.name
        yield Finding(
            node.name if not everywhere or len(missing) == 1 else few(n.name for n in missing),
            found=f"torchrun is not on the PATH of a non-interactive shell on {where}",
            wanted="torchrun on PATH, or the interpreter's absolute path",
            node=node.name if len(missing) == 1 or not everywhere else None,
            subject=f"path:{node.name}",
            severity="note" if everywhere else "warning",
            fix=Fix(
                "start it by the interpreter's path",
                commands=(f"{shlex.quote(node.interpreter.path)} -m torch.distributed.run ...",),
            ),
        )


def copying(cluster: Cluster, node: Node, path: str) -> tuple[str, ...]:
    """What copies a path to a node; nothing where all nodes are this machine."""
    quoted = shlex.quote(path)
    return () if cluster.is_local else (f"rsync -a {quoted} {shlex.quote(node.name)}:{quoted}",)


@check("directory-missing", reads=("chdir",))
def directory_missing(cluster: Cluster) -> Iterator[Finding]:
    """
    The directory the job starts in does not exist on a node.

    Why: the ranks of that node cannot start; launchers then fall back to the home directory or hang.

    Fix: the same path on every node (shared file system, rsync), or `--chdir`.
    """
    lost = not any(n.chdir.exists or "chdir" in n.unknown for n in cluster.nodes)
    advice = "no node has it: correct its name, or copy it there" if lost else "copy it"
    for node in cluster.nodes:
        if node.chdir.path and not node.chdir.exists:
            yield Finding(
                node.name,
                found=f"no directory {printable(node.chdir.path, 200)}",
                wanted="the directory the job starts in, on every node",
                node=node.name,
                fix=Fix(
                    f"{advice}; or name one that every node has: --chdir",
                    commands=copying(cluster, node, node.chdir.path + "/"),
                ),
            )


@check("script-missing", reads=("script",), uses=("chdir",))
def script_missing(cluster: Cluster) -> Iterator[Finding]:
    """
    The training script does not exist on a node.

    Why: the ranks of that node die at once, all others wait for them.

    Fix: the same files on every node: a shared file system, or rsync.

    In logs: `can't open file 'train.py': [Errno 2] No such file or directory`.
    """
    for node in cluster.nodes:
        no_directory = "chdir" not in node.unknown and node.chdir.path and not node.chdir.exists
        if node.script.path and not node.script.exists and not no_directory:
            lost = not any(n.script.exists for n in cluster.nodes)
            yield Finding(
                node.name,
                found=f"no file {printable(node.script.path, 200)}",
                wanted="the script on every node",
                node=node.name,
                fix=Fix(
                    "no node has it: correct its name, or copy it there" if lost else "copy it to that node",
                    commands=copying(cluster, node, node.script.path),
                ),
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
            yield Finding(
                node.name,
                found=f"{printable(node.script.path, 200)} is another file "
                f"({node.script.size_bytes} bytes, sha256 {node.script.sha256[:12]})",
                wanted=f"the same as on {head} (sha256 {wanted[:12]})",
                node=node.name,
                fix=Fix("copy the head's script", commands=copying(cluster, node, node.script.path)),
            )
