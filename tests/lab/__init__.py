"""A cluster played on one machine: hosts out of Linux namespaces, real sshd, faults with their undo."""

from .cluster import Host, Lab, Process, missing
from .wiring import Nic

__all__ = ["Host", "Lab", "Nic", "Process", "missing"]
