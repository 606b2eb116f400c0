"""
A Cluster in a file: `--save` writes it, `--from` reads it.

JSON that later versions read (new fields have defaults), and earlier ones (unknown fields are skipped).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict, TypeVar, get_type_hints

import msgspec

from ringup.errors import BundleError, writing
from ringup.model import Cluster, Container, Job, Limits, Node
from ringup.safe_files import replacing
from ringup.secrets import redact_data, redact_env
from ringup.version import __version__

SCHEMA = 1
LARGEST_BYTES = 1 << 30
MOST_GPUS, MOST_RANKS = 4096, 1 << 20
HINT = "give a file written by `ringup check --save F` (pasted output: `ringup predict --output F`)"

Kind = TypeVar("Kind")


def _saved(kind: type, **other: Any) -> Any:
    """The fields of a class that are saved, some as plain data."""
    return TypedDict(kind.__name__, {**get_type_hints(kind), **other}, total=False)  # type: ignore[operator]


class _File(TypedDict, total=False):
    ringup: Any
    schema: Any
    cluster: msgspec.Raw


_LIMITED: dict[str, type] = {"limits": Limits, "container": Container}
_FACTS = [fact.name for fact in dataclasses.fields(Node) if fact.name != "unknown"]
_NODE = _saved(Node, **dict.fromkeys(_LIMITED, dict[str, Any]))
_CLUSTER = _saved(Cluster, nodes=list[_NODE], job=dict[str, Any])  # type: ignore[valid-type]


def _encodable(value: Any) -> Any:
    """JSON has no infinity (a missing limit), UTF-8 no surrogates (a file name in Latin-1)."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float) and math.isinf(value):
        return "unlimited"
    if isinstance(value, dict):
        return {k: _encodable(v) for k, v in value.items()}
    return [_encodable(v) for v in value] if isinstance(value, list | tuple) else value


def to_json(cluster: Cluster) -> bytes:
    """The file's content, with hidden secrets."""
    job = dataclasses.replace(cluster.job, env=redact_env(cluster.job.env))
    plain = _encodable(redact_data(msgspec.to_builtins(dataclasses.replace(cluster, job=job))))
    return msgspec.json.encode({"ringup": __version__, "schema": SCHEMA, "cluster": plain})


def from_json(data: bytes) -> Cluster:
    """The cluster in a file's content.  Raises BundleError for anything else, or a schema that is too new."""
    try:
        whole = msgspec.json.decode(data, type=_File)
        if missing := {"cluster", "schema"} - whole.keys():
            raise BundleError(f"not a saved collection: it has no {min(missing)}", hint=HINT)
        if whole.get("schema") != SCHEMA:
            made_by = str(whole.get("ringup", "an unknown version"))[:40]
            raise BundleError(
                f"a saved collection of schema {str(whole.get('schema'))[:20]}, made by ringup {made_by}",
                hint=f"read it with that version; {__version__} reads schema {SCHEMA}",
            )
        saved = msgspec.json.decode(whole["cluster"], type=_CLUSTER)
        if not (nodes := tuple(map(_node, saved.get("nodes", ())))):
            raise ValueError("it has no nodes")
        job = _unlimited(saved.get("job", {}), Job)
        # Bounded like nodes' answers: checks and plans grow with GPUs and ranks.
        if job.backend not in ("", "nccl", "gloo"):
            raise ValueError(f"no backend {job.backend[:20]!r}")
        if not all(0 <= n.gpu_count <= MOST_GPUS for n in nodes) or not 0 <= job.nproc <= MOST_RANKS:
            words = f"more than {MOST_GPUS} GPUs or {MOST_RANKS} ranks on a node, or fewer than none"
            raise ValueError(words)
        return Cluster(**{**saved, "nodes": nodes, "job": job})
    except (ValueError, TypeError, LookupError, RecursionError, AttributeError) as error:
        raise BundleError(f"not a saved collection: {str(error)[:200]}", hint=HINT) from error


def _unlimited(saved: dict[str, Any], kind: type[Kind]) -> Kind:
    return msgspec.convert({k: math.inf if v == "unlimited" else v for k, v in saved.items()}, kind)


def _node(saved: dict[str, Any]) -> Node:
    """A node.  Facts that an earlier version did not collect are unknown, not empty."""
    limited: Any = {name: _unlimited(saved[name], kind) for name, kind in _LIMITED.items() if name in saved}
    unknown = dict(saved.get("unknown", {}))
    for name in (name for name in _FACTS if name not in saved):
        unknown.setdefault(name, "an earlier version did not collect it")
    return Node(**{**saved, **limited, "unknown": unknown})


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """
    A temporary file that replaces `path` if the block succeeds.  Raises OSError.

    A `path` that is not a regular file (/dev/null, a pipe) is written itself: root could replace it.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    with replacing(path.resolve()) as fresh:
        yield fresh


def save(cluster: Cluster, path: Path) -> None:
    """Write a cluster; the file is complete or absent.  Raises BundleError if it cannot be written."""
    with writing(path, kind=BundleError), whole(path) as place:
        place.write_bytes(to_json(cluster))


def load(path: Path) -> Cluster:
    """Read a cluster written by `save`.  Raises BundleError if it cannot be read or is something else."""
    try:
        with path.open("rb") as file:
            data = file.read(65536)
            if data.lstrip()[:1] == b"{":  # /dev/zero has no end
                data += file.read(LARGEST_BYTES + 1 - len(data))
        if len(data) > LARGEST_BYTES:
            raise BundleError(f"{path} is larger than any saved collection", hint=HINT)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}", hint=HINT) from error
    try:
        return from_json(data)
    except BundleError as error:
        raise BundleError(f"{path}: {error}", hint=error.hint) from error
