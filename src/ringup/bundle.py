"""
A Cluster in a file: what `--save` writes and `--from` works on.

JSON, readable by a later version (new fields have defaults) and by an earlier one
(fields it does not know are skipped).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ringup import __version__
from ringup.errors import BundleError
from ringup.facts import Cluster

SCHEMA = 1
LARGEST_BYTES = 1 << 30
MOST_GPUS, MOST_RANKS = 4096, 1 << 20
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
HIDDEN = "(hidden)"
LATER = (
    "rdma_ports", "verbs", "bonds", "socket_limits", "counters", "rises", "container", "memory", "numa",
    "ptrace_scope", "remove_ipc", "product", "ofed", "stuck", "shm_files", "looks", "disks", "revision",
    "nccl_libraries", "nccl_plugins", "gpus", "gpu_links", "gpu_processes", "gpu_driver", "kernel_events",
    "pci", "processor", "virtual_machine", "boot_options", "uptime_s",
)  # fmt: skip
"""Facts that files of schema 1 did not have from the beginning."""
HINT = "give a file written by `ringup check --save F`"


def without_secrets(cluster: Cluster) -> Cluster:
    """
    The same cluster, the values of secret-looking `--env` hidden; what nodes told was hidden there.

    >>> from ringup.facts import Job
    >>> without_secrets(Cluster((), job=Job(env={"HF_TOKEN": "hf_1", "A": "1"}))).job.env
    {'HF_TOKEN': '(hidden)', 'A': '1'}
    """
    hidden = {k: HIDDEN if any(s in k.upper() for s in SECRETS) else v for k, v in cluster.job.env.items()}
    return dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env=hidden))


def _encodable(value: Any) -> Any:
    """JSON has no infinity (a limit that is none), UTF-8 no half characters (a file name in Latin-1)."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float) and math.isinf(value):
        return "unlimited"
    if isinstance(value, dict):
        return {k: _encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(v) for v in value]
    return value


def to_json(cluster: Cluster) -> bytes:
    """The file's content."""
    plain = _encodable(msgspec.to_builtins(without_secrets(cluster)))
    return msgspec.json.encode({"ringup": __version__, "schema": SCHEMA, "cluster": plain})


def from_json(data: bytes) -> Cluster:
    """
    The cluster in a file's content.

    Raises BundleError for anything that is not one, or of a schema that is too new.
    """
    try:
        whole = msgspec.json.decode(data)
        if not isinstance(whole, dict) or "cluster" not in whole:
            raise BundleError("not a saved collection: it has no cluster", hint=HINT)
        if whole.get("schema") != SCHEMA:
            made_by = str(whole.get("ringup", "an unknown version"))[:40]
            raise BundleError(
                f"a saved collection of schema {str(whole.get('schema'))[:20]}, made by ringup {made_by}",
                hint=f"read it with that version; {__version__} reads schema {SCHEMA}",
            )
        _restore_limits(whole["cluster"])
        _name_uncollected(whole["cluster"])
        return _within_reason(msgspec.convert(whole["cluster"], Cluster))
    except (
        msgspec.MsgspecError,
        ValueError,
        TypeError,
        LookupError,
        RecursionError,
        AttributeError,
    ) as error:
        raise BundleError(f"not a saved collection: {str(error)[:200]}", hint=HINT) from error


def _within_reason(cluster: Cluster) -> Cluster:
    """As what nodes answer is bounded: checks and the plan make one thing a GPU.  Raises ValueError."""
    job = cluster.job
    if job.backend not in ("", "nccl", "gloo"):
        raise ValueError(f"no backend {job.backend[:20]!r}")
    if (
        not all(0 <= node.gpu_count <= MOST_GPUS for node in cluster.nodes)
        or not 0 <= job.nproc <= MOST_RANKS
    ):
        raise ValueError(f"more than {MOST_GPUS} GPUs or {MOST_RANKS} ranks on a node, or fewer than none")
    return cluster


def _restore_limits(cluster: Any) -> None:
    parts = [node.get(name, {}) for node in cluster["nodes"] for name in ("limits", "container")]
    for limits in [*parts, cluster.get("job", {})]:
        for name, value in limits.items():
            if value == "unlimited":
                limits[name] = math.inf


def _name_uncollected(cluster: Any) -> None:
    """What an earlier version did not ask for is unknown, not empty."""
    for node in cluster["nodes"]:
        for name in LATER:
            if name not in node:
                node.setdefault("unknown", {}).setdefault(name, "an earlier version did not collect it")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """
    Where to write what is to stand at `path`: beside it, and it takes its place only if all went well.

    What is no file (/dev/null, /dev/stdout, a pipe) is written into: root could replace it.  Raises OSError.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def save(cluster: Cluster, path: Path) -> None:
    """
    Write a cluster; the file is whole or not there.

    Raises BundleError when it cannot be written.
    """
    try:
        with whole(path) as place:
            place.write_bytes(to_json(cluster))
    except OSError as error:
        raise BundleError(
            f"{path} cannot be written: {error.strerror}", hint="name a file in a directory you may write"
        ) from error


def load(path: Path) -> Cluster:
    """
    Read a cluster written by `save`.

    Raises BundleError when it cannot be read or is something else.
    """
    try:
        with path.open("rb") as file:
            data = file.read(65536)
            if data.lstrip()[:1] == b"{":  # /dev/zero has no end
                data += file.read(LARGEST_BYTES + 1 - len(data))
        if len(data) > LARGEST_BYTES:
            raise BundleError(f"{path} is larger than any saved collection", hint=HINT)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}", hint=HINT) from error
    return from_json(data)
