"""
The network plugin that NCCL loads before its own networks.

NCCL src/plugin/plugin_open.cc (2.20 to 2.30): NCCL_NET_PLUGIN names plugins, else NCCL tries
`libnccl-net.so`; `X` means the file X and libnccl-net-X.so.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ringup.nccl.lines import NO_PLUGIN

if TYPE_CHECKING:
    from ringup.model import Node

_LOADED = re.compile(r"Loaded net plugin|Plugin Path|Successfully loaded external network plugin")
_NONE = re.compile(NO_PLUGIN)

_SAME = {"AWS": "OFI", "Libfabric": "OFI", "IBext": "IB"}
"""Prefix of a plugin's network name -> ringup's name for it."""


def network_name(printed: str) -> str:
    """
    The name of a network for comparisons; NCCL prints a plugin's own name with a suffix.

    >>> network_name("IB to comm"), network_name("AWS Libfabric"), network_name("IBext_v8")
    ('IB', 'OFI', 'IB')
    """
    name = printed.partition(" to comm")[0].strip()
    return next((known for begin, known in _SAME.items() if name.startswith(begin)), name)


def wanted(environment: Mapping[str, str]) -> tuple[str, ...]:
    """
    File names that NCCL tries; none if plugins are turned off.

    >>> wanted({"NCCL_NET_PLUGIN": "ofi"}), wanted({"NCCL_NET_PLUGIN": "none"})
    (('ofi', 'libnccl-net-ofi.so'), ())
    """
    named = environment.get("NCCL_NET_PLUGIN", "")
    if named.lower() == "none":
        return ()
    words = [w for w in named.split(",") if w]
    return tuple(n for w in words for n in (w, f"libnccl-net-{w}.so")) or ("libnccl-net.so",)


def loads(node: Node, environment: Mapping[str, str]) -> str | None:
    """The plugin that NCCL will load, "" for none, None if unknown."""
    if not (names := wanted(environment)):
        return ""
    answer = node.nccl_answer
    as_asked = environment.get("NCCL_NET_PLUGIN", "") == answer.asked_with.get("NCCL_NET_PLUGIN", "")
    if answer.net_plugin is not None and as_asked and "nccl_answer" not in node.unknown:
        return answer.net_plugin
    lines = " ".join(answer.plugins)
    if _NONE.search(lines) and any(n in lines for n in names):
        return ""
    if "nccl_plugins" in node.unknown or not node.interpreter.path:
        return None
    found = next((p for n in names for p in node.nccl_plugins if n in (p, posixpath.basename(p))), "")
    return found or ("the one it loaded when it was queried" if _LOADED.search(lines) else "")
