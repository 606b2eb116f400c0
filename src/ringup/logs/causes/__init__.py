"""Causes: named problems in a run's logs, one module per family.  Importing this fills the registry."""

from __future__ import annotations

from ringup.logs.causes import (
    aftermath,
    devices,
    interface,
    launch,
    mismatch,
    one_line,
    process,
    rdma_running,
    rdma_setup,
    rendezvous,
    software,
    transports,
)
from ringup.logs.rule import CAUSES, Cause, find

__all__ = ["Cause", "find"]
