"""
Causes: named problems read out of a story, each with its evidence; one module a family of problems.

Importing this fills the registry.
"""

from __future__ import annotations

from ringup.logs.causes import (
    aftermath,
    devices,
    disagree,
    interface,
    launch,
    meeting,
    numbers,
    plugin,
    process,
    rdma,
    rdma_running,
    software,
    unreachable,
)
from ringup.logs.rule import CAUSES, Cause, find

__all__ = [
    "CAUSES",
    "Cause",
    "aftermath",
    "devices",
    "disagree",
    "find",
    "interface",
    "launch",
    "meeting",
    "numbers",
    "plugin",
    "process",
    "rdma",
    "rdma_running",
    "software",
    "unreachable",
]
