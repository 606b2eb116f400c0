"""A cluster played on one machine: hosts out of Linux namespaces, real sshd, faults with their undo."""

from .cluster import Lab
from .host import Host
from .machine import Process, missing
from .wiring import Nic

__all__ = ["Host", "Lab", "Nic", "Process", "missing"]
