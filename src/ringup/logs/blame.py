"""
The order of blame: which of several causes stands first.  The only place that ranks.

Class first, then confidence, then the order of this table, then time.  A consequence
never beats a cause, on whatever rank or line it stands: the cause is often printed after it
and in another file.
"""

from __future__ import annotations

import re

from ringup.logs.rule import CONFIDENCES, Cause
from ringup.rules import SEVERITIES

ORDER: dict[int, tuple[str, ...]] = {
    1: (
        "ecc-uncorrectable",
        "gpu-missing",
        "xid-in-kernel-log",
        "driver-too-old-for-cuda",
        "driver-library-mismatch",
        "gpu-architecture-not-built",
        "fabric-manager-not-running",
        "nvls-setup-failed",
        "rdma-adapter-event",
        "link-flapped",
        "pcie-errors",
    ),
    2: (
        "environment-breaks-remote-shell",
        "ssh-not-passwordless",
        "python-or-launcher-missing",
        "local-rank-argument-rejected",
        "launcher-argument-misread",
        "hostfile-missing",
        "gpu-out-of-memory",
        "same-gpu-twice",
        "device-ordinal-not-visible",
        "nproc-exceeds-gpus",
        "model-differs-between-ranks",
        "ddp-unused-parameters",
        "all-reduce-wrong",
        "rank-raised-exception",
    ),
    3: (
        "oom-killer-ran",
        "terminal-closed",
        "rank-crashed",
        "rank-killed",
        "orphan-of-earlier-run",
        "job-cancelled",
    ),
    4: ("shm-too-small", "memlock-too-low", "open-files-too-low"),
    5: (
        "gloo-ifname-in-nccl-syntax",
        "interface-name-missing",
        "interface-down",
        "nccl-versions-differ",
        "environment-differs-between-nodes",
        "topology-detection-failed",
        "gpus-hidden-between-ranks",
        "cumem-host-unusable",
        "mixed-link-layers-selected",
        "rdma-device-set-differs",
        "rdma-device-unusable",
        "gid-missing-or-wrong",
        "rdma-peer-unreachable",
        "acs-enabled",
        "network-plugin-missing",
        "network-plugin-init-failed",
        "hostname-resolves-to-loopback",
        "loopback-interface-chosen",
        "virtual-interface-chosen",
        "same-address-on-two-nodes",
        "link-local-address-chosen",
        "peer-unreachable-on-interface",
        "hostname-unresolvable-from-peer",
        "rdma-port-not-active",
        "rdma-device-name-missing",
        "uverbs-not-accessible",
        "fell-back-to-sockets",
        "ipoib-used-for-data",
        "gpudirect-module-missing",
        "sharp-unavailable",
    ),
    6: (
        "rendezvous-ids-differ",
        "launcher-started-per-task",
        "slurm-tasks-mismatch",
        "stale-rendezvous-state",
        "port-in-use",
        "node-rank-duplicate",
        "world-size-disagrees",
        "rendezvous-host-not-recognised",
        "store-unreachable",
        "peers-never-joined",
    ),
    7: (
        "collective-mismatch",
        "rank-busy-while-others-wait",
        "uneven-batches-between-ranks",
        "rank-fell-behind",
    ),
    8: (
        "rdma-retry-exceeded",
        "collective-stalled",
        "peer-died-first",
        "nccl-error-without-detail",
        "init-never-finished",
    ),
}
"""Classes of blame, worst first, and the order inside each."""

PLACE = {name: (place, n) for place, names in ORDER.items() for n, name in enumerate(names)}

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "store-unreachable": (
        "port-in-use",
        "hostname-unresolvable-from-peer",
        "environment-breaks-remote-shell",
    ),
    "peers-never-joined": (
        "port-in-use",
        "rendezvous-ids-differ",
        "stale-rendezvous-state",
        "launcher-started-per-task",
    ),
    "rank-killed": ("oom-killer-ran",),
    "link-local-address-chosen": ("virtual-interface-chosen",),
    "peer-unreachable-on-interface": (
        "link-local-address-chosen",
        "virtual-interface-chosen",
        "loopback-interface-chosen",
    ),
    "hostname-unresolvable-from-peer": ("environment-breaks-remote-shell",),
    "fell-back-to-sockets": ("rdma-device-name-missing", "rdma-port-not-active"),
    "ipoib-used-for-data": ("rdma-device-name-missing", "rdma-port-not-active", "fell-back-to-sockets"),
    "rank-crashed": ("shm-too-small",),
    "gpu-missing": (),
    "collective-mismatch": ("environment-differs-between-nodes", "nccl-versions-differ"),
    "node-rank-duplicate": ("slurm-tasks-mismatch",),
    "uverbs-not-accessible": ("rdma-device-set-differs",),
    "rank-raised-exception": ("all-reduce-wrong",),
    "acs-enabled": ("rdma-retry-exceeded",),
}
"""A cause that another one, found in the same story, already accounts for."""

SET_UP = {"net-using", "socket-list", "bootstrap", "init-stopped", "using-network"}
"""Evidence that shows a choice, not a failure: what it explains is inferred, the bare fact stays listed."""

_CONSEQUENCE = re.compile(
    r"(?i)connection closed by (?:remote )?peer|closed by remote peer|connection reset by peer"
    r"|recvVector failed|recvValue failed|sendBytes failed"
    r"|broken ?pipe|another rank|ncclRemoteError|remote process exited|Proxy Call to rank \d+ "
    r"failed|Socket recv failed while polling"
    r"|(?:received|got) signal:? 15\b|Signal 15\b|SIGTERM|store->get\('[^']*'\) got error"
    r"|keep-alive heartbeat|failed to shutdown the rendezvous"
    r"|RendezvousConnectionError|watchdog caught collective|taking the entire process down|remote "
    r"worker crash|remote server shutdown"
    r"|failed to send RPC to coordination|num_nodes_waiting|Error encountered progressing operation"
    r"|exitcode\s*: -15|received 15 death signal"
    r"|-> 6(?: \[|$|\s)|got 0 bytes|Connection was likely closed|EngineDeadError|ActorDiedError"
    r"|ConnectionResetError|Broken pipe|Horovod has been shut down"
)


def is_consequence(text: str) -> bool:
    """
    Whether a rank's last words tell that somebody else ended first.

    Cheap and without state: for a launcher that must pick the first real failure among
    several ranks' last lines.

    >>> is_consequence("RuntimeError: Connection closed by peer [10.0.0.2]:41")
    True
    >>> is_consequence("KeyError: 'loss'")
    False
    """
    return bool(_CONSEQUENCE.search(text[:65536]))


def place(cause: Cause) -> int:
    """The class of blame a cause belongs to, 1 to 8."""
    return PLACE.get(cause.rule, (8, 99))[0]


def _key(cause: Cause) -> tuple[float, ...]:
    weight = CONFIDENCES.index(cause.confidence)
    severity = SEVERITIES.index(cause.severity or "error")
    where, order = PLACE.get(cause.rule, (8, 99))
    times = [e.time_s for e in cause.evidence if e.time_s is not None]
    line = cause.evidence[0].line if cause.evidence else 0
    return (severity, weight == 2, where, weight, order, min(times, default=0.0), line)


def ranked(causes: list[Cause]) -> list[Cause]:
    """Causes in order of blame, without those another one explains; one of each name."""
    best: dict[str, Cause] = {}
    for cause in sorted(causes, key=_key):
        best.setdefault(cause.rule, cause)
    strong = {
        c.rule for c in best.values() if c.severity == "error" and c.confidence != "low" and place(c) < 8
    }
    inferred = {
        c.rule for c in best.values() if c.confidence != "high" and {e.tag for e in c.evidence} <= SET_UP
    }
    kept = []
    for cause in best.values():
        explained = [r for r in EXPLAINED_BY.get(cause.rule, ()) if r in best and _key(best[r]) < _key(cause)]
        consequence = place(cause) == 8 and bool(
            strong - inferred if cause.rule == "init-never-finished" else strong
        )
        bare = cause.rule == "nccl-error-without-detail" and any(
            c.severity == "error" and c.confidence != "low" and c is not cause for c in best.values()
        )
        if not explained and not consequence and not bare:
            kept.append(cause)
    return sorted(kept, key=_key)
