"""What can be wrong: pure functions from a `Cluster` to findings.  Importing this fills the registry."""

from ringup.checks import (
    environment,
    interfaces,
    job,
    loss,
    machine,
    names,
    nccl,
    net,
    ports,
    software,
    ssh,
    system,
)

__all__ = [
    "environment",
    "interfaces",
    "job",
    "loss",
    "machine",
    "names",
    "nccl",
    "net",
    "ports",
    "software",
    "ssh",
    "system",
]
