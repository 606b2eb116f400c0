"""
The nodes' hardware for `--from`: a saved collection, or pasted output of ibstatus and similar.

Either becomes events next to those of the logs, so that causes can compare used and available hardware.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ringup import bundle
from ringup.errors import BundleError
from ringup.logs import files
from ringup.logs.lines import Event
from ringup.logs.scan import Scan, Scanner
from ringup.model import Cluster

MOST_BYTES = 16 << 20
"""Pasted text is a few pages of a terminal; /dev/zero has no end."""


def read_hardware(path: str) -> Scan:
    """Events of one file of facts or pasted text.  Raises BundleError for a file that cannot be read."""
    try:
        return Scan([*_of_cluster(bundle.load(Path(path)))])
    except BundleError:
        try:
            lines = files.whole(path, MOST_BYTES)[0].split(b"\n")
        except OSError as exc:
            raise BundleError(
                f"{path}: {exc.strerror or exc}",
                hint="give a file written by `ringup check --save F`, or pasted output",
            ) from exc
    scanner = Scanner()
    for number, line in enumerate(lines[:100_000], 1):
        scanner.take(number, line)
    return scanner.result()


def _of_cluster(cluster: Cluster) -> Iterator[Event]:
    """Interfaces and RDMA ports of every node, each as one event."""
    for node in cluster.nodes:
        host = (node.hostname or node.name).split(".")[0]
        for interface in node.interfaces:
            address = next((a.address for a in interface.addresses if a.family == "inet"), "")
            state = "Up" if interface.is_up and interface.has_carrier else "Down"
            fields = {"name": interface.name, "kind": interface.kind, "state": state, "address": address}
            text = f"{node.name} {' '.join(fields.values())}".rstrip()
            yield Event("offered-interface", 0, 1, text, fields, host=host)
        for port in node.rdma_ports:
            text = f"{node.name} {port.device}:{port.number} {port.state}"
            fields = {"device": port.device, "state": port.state}
            yield Event("rdma-link", 0, 1, text, fields, host=host)
