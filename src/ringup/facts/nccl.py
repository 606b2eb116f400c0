"""What NCCL's own library said on a node, asked before the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class NcclAnswer:
    """
    The answer of the very libnccl the job would load, in the job's interpreter and environment.

    `ncclGetUniqueId` needs no GPU and runs NCCL's true choice of the bootstrap interface.
    """

    library: str = ""
    """Path of what was loaded, "" where nobody was asked (`not_asked` says why)."""
    not_asked: str = ""
    version: str = ""
    """ "2.27.7", of ncclGetVersion."""
    result: int = 0
    """ncclResult_t of ncclGetUniqueId: 0 success, 2 system error, 3 internal error, 5 invalid usage."""
    interface: str = ""
    """Where the bootstrap listens, "" where NCCL found nothing."""
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it said is set, by the shell or by nccl.conf."""
    asked_with: Mapping[str, str] = field(default_factory=dict)
    """NCCL_* of the environment it was asked in, without what nccl.conf adds."""
    plugins: tuple[str, ...] = ()
    """Its lines about network and other plugins."""
    net_plugin: str | None = None
    """Path of the network plugin that the loader finds for it, "" for none; None where that was not told."""
    errors: tuple[str, ...] = ()
    """Its warnings, without who said them."""
