"""The nodes: from the command line, a host file, the current allocation, or this machine."""

from __future__ import annotations

import os

from ringup.hosts.allocation import from_allocation, notes, of_allocation
from ringup.hosts.nodeset import LONGEST_HOSTFILE, LONGEST_NAME, NAME, expand, read_hostfile, refuse
from ringup.model import Host

__all__ = [
    "LONGEST_HOSTFILE", "expand", "from_allocation", "local_nodes", "notes", "of_allocation",
    "read_hostfile", "this_machine",
]  # fmt: skip


def local_nodes(count: int) -> tuple[Host, ...]:
    """
    Simulated nodes on this machine, each named by its loopback address: 127.0.0.2, .3, ...

    Raises NodesError for fewer than 1 or more than 200.

    >>> [host.name for host in local_nodes(2)]
    ['127.0.0.2', '127.0.0.3']
    """
    if not 1 <= count <= 200:
        refuse(f"--local {count} is out of range", "1 to 200 nodes can be simulated on one machine")
    return tuple(Host(name=a, local=True, address=a) for a in map("127.0.0.{}".format, range(2, count + 2)))


def this_machine() -> tuple[Host, ...]:
    """Only this machine, without ssh, by its host name."""
    name = os.uname().nodename
    return (Host(name if NAME.fullmatch(name) and len(name) <= LONGEST_NAME else "localhost", local=True),)
