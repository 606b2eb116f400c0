"""py-spy for nodes that lack it: finds these nodes, and packs the launching side's own py-spy."""

from __future__ import annotations

import base64
import shutil
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

from ringup.errors import LaunchError
from ringup.hang.snapshots import NodeLook, RankLook
from ringup.units import grouped

MISSING = "no py-spy on this node"
"""Part of `why_not` from agent/snapshot/stacks.py."""
MACHINES = {21: "ppc64le", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
"""ELF's e_machine -> os.uname().machine."""
MOST_BYTES = 64 << 20


def lacking(nodes: Iterable[NodeLook]) -> dict[str, list[RankLook]]:
    """Node -> ranks without a stack (their own or a child's) because the node has no py-spy."""

    def lacks(rank: RankLook) -> bool:
        return any(MISSING in why for why in (rank.why_not, *(child.why_not for child in rank.children)))

    return grouped((node.node, rank) for node in nodes for rank in node.ranks if lacks(rank))


def own() -> str:
    beside = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=beside) or shutil.which("py-spy") or ""


def packed() -> str:
    """This machine's py-spy in the format of the program on a node.  Raises LaunchError if there is none."""
    path, hint = own(), "pip install py-spy here (on Linux), or on the nodes"
    if not path:
        raise LaunchError("--with-py-spy: this machine has no py-spy to send", hint=hint)
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES)
    except OSError as error:
        raise LaunchError(f"--with-py-spy: {path}: {error.strerror}", hint=hint) from error
    machine = MACHINES.get(int.from_bytes(data[18:20], "little")) if data[:4] == b"\x7fELF" else None
    if machine is None:
        raise LaunchError(f"--with-py-spy: {path} is not a program for Linux", hint=hint)
    return f"{machine}:{base64.b64encode(zlib.compress(data)).decode('ascii')}"
