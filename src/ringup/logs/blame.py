"""
The order of blame among several causes.  Only this module ranks causes.

Class first, then confidence, then the order of this table, then time.  A consequence never beats a cause,
whatever its rank or line: the cause is often printed after it and in another file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ringup.logs.patterns import OF_ROLE
from ringup.logs.patterns.forms import CONSEQUENCE
from ringup.logs.patterns.tags import Pattern
from ringup.logs.rule import A_TRACEBACK, CONFIDENCES, Cause
from ringup.rules import SEVERITIES
from ringup.units import first_of_each

if TYPE_CHECKING:
    from ringup.logs.lines import Event

ORDER = {
    place: tuple(names.split())
    for place, names in {
        1: """
            ecc-uncorrectable gpu-missing xid-in-kernel-log driver-too-old-for-cuda driver-library-mismatch
            gpu-architecture-not-built fabric-manager-not-running nvls-setup-failed rdma-adapter-event
            link-flapped pcie-errors nvlink-failed
        """,
        2: """
            environment-breaks-remote-shell ssh-not-passwordless python-or-launcher-missing
            local-rank-argument-rejected launcher-argument-misread hostfile-missing gpu-out-of-memory
            same-gpu-twice device-ordinal-not-visible nproc-exceeds-gpus model-differs-between-ranks
            ddp-unused-parameters all-reduce-wrong ray-node-address-differs not-enough-slots
            placement-not-possible no-gpu-visible disk-full pod-not-scheduled container-not-started
            job-step-not-launched ssh-connection-refused ssh-timeout ssh-no-route
            rendezvous-variables-missing host-memory-refused parameter-ready-twice
            process-group-started-twice nccl-called-wrongly communicator-left-over shared-file-raced
            file-not-shared rank-raised-exception
        """,
        3: """
            node-lost oom-killer-ran terminal-closed rank-crashed rank-killed orphan-of-earlier-run
            job-cancelled
        """,
        4: "shm-too-small memlock-too-low open-files-too-low process-limit-reached nfs-mount-slow",
        5: """
            gloo-ifname-in-nccl-syntax interface-name-missing interface-down nccl-versions-differ
            environment-differs-between-nodes topology-detection-failed gpus-hidden-between-ranks
            cumem-host-unusable mixed-link-layers-selected rdma-device-set-differs rdma-device-unusable
            gid-missing-or-wrong rdma-peer-unreachable acs-enabled network-plugin-missing
            network-plugin-init-failed hostname-resolves-to-loopback loopback-interface-chosen
            virtual-interface-chosen same-address-on-two-nodes link-local-address-chosen
            peer-unreachable-on-interface hostname-unresolvable-from-peer rdma-port-not-active
            rdma-device-name-missing uverbs-not-accessible fell-back-to-sockets ipoib-used-for-data
            gpudirect-module-missing transport-differs-between-ranks sharp-unavailable
            imex-not-working peer-mappings-exhausted
            nccl-library-too-old two-nccl-libraries network-plugin-too-old kernel-cannot-pin-memory
            user-buffers-not-registrable sidecar-intercepts-ranks nccl-setting-invalid address-families-differ
            path-mtu-black-hole
        """,
        6: """
            world-never-formed rendezvous-ids-differ launcher-started-per-task slurm-tasks-mismatch
            stale-rendezvous-state node-rank-duplicate port-in-use port-privileged world-size-disagrees
            rendezvous-host-not-recognised ephemeral-ports-exhausted store-unreachable peers-never-joined
        """,
        7: """
            build-lock-left collective-mismatch rank-busy-while-others-wait
            uneven-batches-between-ranks rank-fell-behind
        """,
        8: """
            rdma-retry-exceeded collective-stalled peer-died-first container-restarts
            nccl-error-without-detail init-never-finished unnamed-failure
        """,
    }.items()
}
"""Classes of blame, worst first, and the order inside each."""

PLACE = {name: (place, n) for place, names in ORDER.items() for n, name in enumerate(names)}

EXPLAINED_BY = {
    name: tuple(others.split())
    for name, others in {
        "port-in-use": "node-rank-duplicate",
        "placement-not-possible": "ray-node-address-differs",
        "job-step-not-launched": "disk-full python-or-launcher-missing",
        "network-plugin-init-failed": "network-plugin-too-old",
        "container-not-started": "disk-full",
        "store-unreachable": (
            "port-in-use port-privileged hostname-unresolvable-from-peer environment-breaks-remote-shell"
        ),
        "peers-never-joined": (
            "port-in-use rendezvous-ids-differ stale-rendezvous-state launcher-started-per-task"
        ),
        "rank-killed": "oom-killer-ran",
        "link-local-address-chosen": "virtual-interface-chosen",
        "peer-unreachable-on-interface": (
            "link-local-address-chosen virtual-interface-chosen loopback-interface-chosen"
        ),
        "hostname-unresolvable-from-peer": "environment-breaks-remote-shell",
        "fell-back-to-sockets": "rdma-device-name-missing rdma-port-not-active",
        "ipoib-used-for-data": "rdma-device-name-missing rdma-port-not-active fell-back-to-sockets",
        "rank-crashed": "shm-too-small",
        "collective-mismatch": "environment-differs-between-nodes nccl-versions-differ",
        "node-rank-duplicate": "slurm-tasks-mismatch",
        "uverbs-not-accessible": "rdma-device-set-differs",
        "rank-raised-exception": "all-reduce-wrong",
        "acs-enabled": "rdma-retry-exceeded",
    }.items()
}
"""Causes that another cause in the same logs already explains."""

_CONSEQUENCE = Pattern("consequence", CONSEQUENCE)


def is_consequence(text: str) -> bool:
    """
    Whether a rank's last lines are the consequence of another one's end.

    Cheap and without state: for a launcher that must pick the first real failure among
    several ranks' last lines.

    >>> is_consequence("RuntimeError: Connection closed by peer [10.0.0.2]:41")
    True
    >>> is_consequence("KeyError: 'loss'")
    False
    """
    return bool(_CONSEQUENCE.regex.search(text[:65536]))


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
    """Causes in order of blame, without those that another one explains; one of each name."""
    best = first_of_each((cause.rule, cause) for cause in sorted(causes, key=_key))
    sure = {c.rule for c in best.values() if c.severity == "error" and c.confidence != "low"}
    strong = {rule for rule in sure if place(best[rule]) < 8}
    unsure = [c for c in best.values() if c.confidence != "high"]
    inferred = {c.rule for c in unsure if {e.tag for e in c.evidence} <= OF_ROLE["choice"]}

    def is_explained(cause: Cause) -> bool:
        others = (best[rule] for rule in EXPLAINED_BY.get(cause.rule, ()) if rule in best)
        if any(_key(other) < _key(cause) for other in others):
            return True
        if cause.rule == "nccl-error-without-detail" and sure - {cause.rule}:
            return True
        stronger = strong - inferred if cause.rule == "init-never-finished" else strong
        return place(cause) == 8 and bool(stronger)

    return _own_bug_first(_named_first([cause for cause in best.values() if not is_explained(cause)]))


_OWN_BUGS = re.compile(
    r"(?:^|\.)(?:KeyError|IndexError|AttributeError|NameError|UnboundLocalError|TypeError|ZeroDivisionError"
    r"|NotImplementedError|SyntaxError|IndentationError|RecursionError)$"
)
"""Exceptions that a fault of a GPU, a driver, a disk or the network does not raise."""
_JUST_ABOVE = 8
"""Lines between a failed call and the crash that it leads to."""


def _own_bug_first(causes: list[Cause]) -> list[Cause]:
    """
    Moves an exception that is the program's own mistake before causes that its stream printed earlier.

    The process went on after those lines, and ended by this exception: they become warnings.
    """
    bug = next((c for c in causes if c.rule == "rank-raised-exception" and c.confidence != "low"), None)
    raised = next((e for e in bug.evidence if e.tag == "exception"), None) if bug else None
    if bug is None or raised is None or not (raised["traceback"] and _OWN_BUGS.search(raised["type"])):
        return causes

    def is_survived(event: Event) -> bool:
        near = event["traceback"] and raised.line - event.line < A_TRACEBACK
        ended = event["uncaught"] or event.tag in OF_ROLE["end"]
        is_above = event.file == raised.file and event.line < raised.line
        return is_above and event.rank in (None, raised.rank) and not (near or ended)

    earlier = [c for c in causes[: causes.index(bug)] if all(map(is_survived, c.evidence))]
    rest = [replace(c, severity="warning") if c in earlier else c for c in causes if c is not bug]
    at = min((causes.index(c) for c in earlier), default=causes.index(bug))
    return [*rest[:at], bug, *rest[at:]]


def _named_first(causes: list[Cause]) -> list[Cause]:
    """
    Moves a first cause that only states a failure behind the causes that name it.

    These are on the lines of NCCL's bare error, on the rank with only an exit code, or just above a crash.
    """
    named: list[Cause] = []
    vague = causes[0] if causes else None
    if vague and vague.rule == "nccl-error-without-detail":
        lines = {e.place for e in vague.evidence}
        named = [c for c in causes if c.severity != "note" and lines & {e.place for e in c.evidence}]
    elif (
        vague
        and vague.rule == "rank-raised-exception"
        and {e.tag for e in vague.evidence} <= {"exit", "last-words"}
    ):
        ranks = {e.rank for e in vague.evidence}
        sure = [c for c in causes if place(c) < 8 and c.confidence != "low" and c.severity == "error"]
        named = [c for c in sure if ranks & {e.rank for e in c.evidence}]
    elif vague and vague.rule == "rank-crashed":
        end = vague.evidence[0]
        sure = [c for c in causes if place(c) == 5 and c.confidence == "high" and c.severity == "error"]
        named = [c for c in sure if any(_fails_just_above(e, end) for e in c.evidence)]
    named = [c for c in named if c is not vague]
    return named + [c for c in causes if c not in named]


def _fails_just_above(event: Event, end: Event) -> bool:
    """Whether it is a failed call of the process that then crashed: libraries clean up badly."""
    is_near = event.file == end.file and 0 < end.line - event.line <= _JUST_ABOVE
    return is_near and event.rank == end.rank and event.tag in OF_ROLE["failure"]


def named_first(causes: list[Cause]) -> list[Cause]:
    """Moves a cause that only states that a rank raised an error behind the cause on the same line."""
    vague = causes[0] if causes else None
    text = vague.evidence[0].text if vague and vague.evidence else ""
    if vague is None or vague.rule != "rank-raised-exception" or "Error: " not in text:
        return causes
    sure, told = CONFIDENCES.index(vague.confidence), vague.evidence[0].place
    others = [c for c in causes[1:] if place(c) < 7 and CONFIDENCES.index(c.confidence) <= sure]
    named = [c for c in others if c.severity == "error" and told in {e.place for e in c.evidence}]
    return named + [c for c in causes if c not in named]
