"""Faults by name: what real clusters do to a job, each with its undo."""

from . import firewall, gpu, kernel, links, names, node, rdma, software, ssh, system
from .base import FAULTS, Fault

__all__ = [
    "FAULTS",
    "Fault",
    "firewall",
    "gpu",
    "kernel",
    "links",
    "names",
    "node",
    "rdma",
    "software",
    "ssh",
    "system",
]
