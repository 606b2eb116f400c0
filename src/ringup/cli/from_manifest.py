"""A workload of Kubernetes as options of `ringup script`: its name, image and GPUs, and what is left out."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Any

from ringup.launchfiles.manifests import container_at, listed, node_at, pairs, scalar, value_at
from ringup.launchfiles.model import Launch
from ringup.model import RANK_VARIABLES
from ringup.units import printable

_OF_GPUS = re.compile(r".{1,99}\.com/(?:gpu|mig-\S{1,40})")
_OF_RDMA = re.compile(r"(?i)rdma|roce|infiniband|/ib|_ib|hca|sriov")
_WRITTEN = {
    "metadata": ("name", "namespace"),
    "pod": ("containers", "restartPolicy", "subdomain", "hostname", "terminationGracePeriodSeconds"),
    "container": ("name", "image", "command", "args", "env", "resources", "ports", "securityContext"),
}
"""Part of a manifest -> its fields that the written file has itself, or has no need of."""


def fill(args: argparse.Namespace, launch: Launch) -> list[str]:
    """Set the options that only the manifest has; what it has besides, one line for each field."""
    for document in launch.job.documents:
        if found := container_at(document, launch.line):
            return _fill(args, document, *found)
    return []


def _fill(args: argparse.Namespace, document: Any, pod: Any, container: Any) -> list[str]:
    limits = pairs(node_at(container, "resources", "limits"))
    gpus = [scalar(node) for name, node in limits if _OF_GPUS.fullmatch(name)]
    rdma = [name for name, _ in limits if _OF_RDMA.search(name)]
    found = {
        "name": value_at(document, "metadata", "name"),
        "namespace": value_at(document, "metadata", "namespace"),
        "image": value_at(container, "image"),
        "rdma": "".join(rdma[:1]),
        "chdir": value_at(container, "workingDir"),
    }
    for name, value in found.items():
        if re.fullmatch(r"[\w.,:@/+=%-]+", value) and not getattr(args, name, ""):
            setattr(args, name, value)
    if args.gpus is None and gpus and gpus[0].isdecimal():
        args.gpus = int(gpus[0])
    return [f"line {n}: {printable(text, 100)}" for n, text in sorted(_left(args, document, pod, container))]


def _left(args: argparse.Namespace, document: Any, pod: Any, container: Any) -> Iterator[tuple[int, str]]:
    """(line, field and value) of everything that the written file lacks."""
    yield from _fields(node_at(document, "metadata"), _WRITTEN["metadata"])
    yield from _fields(node_at(document, "spec", "template", "metadata"), ("labels",))
    volumes = [v for v in listed(node_at(pod, "volumes")) if value_at(v, "emptyDir", "medium") != "Memory"]
    yield from _fields(pod, (*_WRITTEN["pod"], "volumes"))
    for volume in volumes:
        yield volume.start_mark.line + 1, f"volume {value_at(volume, 'name')}"
    yield from _fields(container, (*_WRITTEN["container"], "volumeMounts", "workingDir"))
    for variable in listed(node_at(container, "env")):
        name = value_at(variable, "name")
        if node_at(variable, "valueFrom") is not None and name not in RANK_VARIABLES:
            yield variable.start_mark.line + 1, f"{name}, whose value comes from elsewhere"
    for part in ("requests", "limits"):
        for name, node in pairs(node_at(container, "resources", part)):
            if not _OF_GPUS.fullmatch(name) and name != args.rdma:
                yield node.start_mark.line + 1, f"{part}: {name} {scalar(node)}"


def _fields(node: Any, known: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    for name, value in pairs(node):
        if name not in known:
            yield value.start_mark.line + 1, f"{name} {_shown(value)}".strip()


def _shown(node: Any) -> str:
    """A value on one line; the names of its fields where it has some."""
    names = [name for name, _ in pairs(node)]
    names += [value_at(one, "key") or value_at(one, "name") for one in listed(node)]
    return scalar(node) or ", ".join(filter(None, names))
