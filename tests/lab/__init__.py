"""A cluster played on one machine: hosts out of Linux namespaces, real sshd, faults with their undo."""

from .cluster import Lab
from .host import Host
from .machine import Process, missing
from .wiring import TWO_CARDS, Nic

__all__ = ["TWO_CARDS", "Host", "Lab", "Nic", "Process", "missing"]
