"""What a host has installed: the disk is shared, so another torch is an overlay seen by one host."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from ..cluster import Lab
from .base import done_and_undone, fault

_numbers = itertools.count(1)


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")  # looks, does not import
    if spec is None or spec.origin is None:
        raise RuntimeError("torch is not importable here, so it cannot be changed on a host")
    return Path(spec.origin).parent


@contextlib.contextmanager
def _overlaid(lab: Lab, host: str, folder: Path, changes: str) -> Iterator[None]:
    """`folder` as one host sees it, with what the shell lines `changes` leave in an empty upper layer."""
    top = f"/run/overlay{next(_numbers)}"
    options = f"lowerdir={folder},upperdir={top}/upper,workdir={top}/work"
    prepare = f"mkdir -p {top}/upper {top}/work; cd {top}/upper"
    do = f"{prepare}; {changes}; mount -t overlay -o {options} overlay {folder}"
    with done_and_undone(lab, host, do, f"umount -l {folder}; rm -rf {top}"):
        yield


@fault("torch-missing")
def torch_missing(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host's interpreter has everything but torch."""
    site = _torch().parent
    # A character device 0:0 in an overlay's upper layer hides the name below (kernel: overlayfs.rst).
    gone = " ".join(["torch", *(path.name for path in site.glob("torch-*.dist-info"))])
    with _overlaid(lab, host, site, f"for name in {gone}; do mknod $name c 0 0; done"):
        yield


@fault("torch-version")
def torch_version(lab: Lab, host: str = "node1", version: str = "2.6.0") -> Iterator[None]:
    """A host's torch reports 2.6.0, in its metadata and in torch.__version__."""
    torch = _torch()
    info = next(torch.parent.glob("torch-*.dist-info"))
    new = f"torch-{version}.dist-info"
    metadata = f"cp -r {info} {new}; sed -i 's/^Version: .*/Version: {version}/' {new}/METADATA"
    attribute = f"sed \"s/^__version__ = .*/__version__ = '{version}'/\" {torch}/version.py"
    changes = f"mknod {info.name} c 0 0; {metadata}; mkdir torch; {attribute} > torch/version.py"
    with _overlaid(lab, host, torch.parent, changes):
        yield


@fault("venv-missing")
def venv_missing(lab: Lab, host: str = "node1") -> Iterator[None]:
    """A host does not have the venv: its folder is empty there."""
    empty = f"/run/empty{next(_numbers)}"
    do = f"mkdir {empty}; mount --bind {empty} {sys.prefix}"
    with done_and_undone(lab, host, do, f"umount -l {sys.prefix}; rmdir {empty}"):
        yield
