"""RDMA in use: addresses, retries, links that go down, memory that cannot be registered."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import failure, trained
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story

_RETRY = ("12", "13")

_UNANSWERED = re.compile(
    r"Unreachable remote|Unresponsive receiver(?:\.| \(connection never|$)|\bRC: (?:20|113)\b"
)
"""Completions of EFA without an answer: EHOSTUNREACH, before that IBV_WC_RESP_TIMEOUT_ERR (verbs.h: 20)."""


_NOT_PINNED = re.compile(r"ibv_reg_mr(?:_iova2?)?\b.{0,120}(?:Bad address|\berrno:? ?14\b)")
"""Only a peer-memory module can pin GPU addresses given as such; a DMA-BUF has a call of its own."""

_NOT_ANSWERING = re.compile(r"timed out|with 110\b|Host is unreachable|No route to host")


def _on_a_link_local_gid(story: Story) -> list[Event]:
    """Lines that show an fe80:: GID of this end; NCCL prints GIDs (as two hex words) for Ethernet only."""
    said = [e for e in story.all("modify-qp") if re.search(r"(?i)local GID fe80", e.text)]
    return [*said, *story.all("gid-link-local")]


def _is_roce(story: Story) -> list[Event]:
    found = [e for e in story.all("net-using") if "/RoCE" in e.text]
    found += [
        e
        for e in story.all("env-set")
        if e["name"] in ("NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_ROCE_VERSION_NUM")
    ]
    return found


@cause(problems.GID_MISSING_OR_WRONG, passing=True)
def gid_missing_or_wrong(story: Story) -> Iterator[Cause]:
    said = [
        e
        for e in story.all("modify-qp")
        if re.search(
            r"Invalid argument|Network is unreachable|No route|Address not available|with (?:22|101)\b",
            e.text,
        )
    ]
    roce = _is_roce(story)
    if asked := story.all("query-gid"):
        yield seen([*asked, *roce[:1]], "the RDMA port has no GID at the index that is asked for")
        return
    if said:
        yield seen(
            [*said, *roce[:1]],
            "a RoCE queue pair cannot be brought up: its GID has no routable address or not the peer's kind",
        )
        return
    stuck = [e for e in story.all("modify-qp") if _NOT_ANSWERING.search(e.text)]
    if stuck and (local := _on_a_link_local_gid(story)):
        text = "a RoCE queue pair is brought up on a link-local GID (fe80::), which no router carries"
        yield seen([*stuck, *local[:1], *roce[:1]], text, "medium")
        return
    if trained(story):
        return  # the GID worked
    retry = [e for e in story.all("wc-error") if e["status"] in _RETRY]
    # NCCL prints GIDs for Ethernet links only: on InfiniBand, where fe80:: is what all have, there is none.
    link_local = [e for e in retry if re.search(r"(?i)localGid:? ?fe80", e.text)]
    if link_local:
        yield seen([*link_local, *roce[:1]], "the queue pair uses a link-local GID (fe80::)", "medium")
    elif retry and roce:
        yield seen(
            [*roce, *retry],
            "RoCE with a chosen GID index and no answer from the peer: compare `show_gids` on both",
            "low",
        )


@cause("rdma-peer-unreachable", passing=True)
def rdma_peer_unreachable(story: Story) -> Iterator[Cause]:
    """
    A queue pair to the peer cannot be brought up.

    Why: the RoCE addresses are not routed to each other, or the rails are not joined.

    Fix: addresses and routes of the RoCE ports; `NCCL_CROSS_NIC=0` when only pairs across rails fail;
    `ib_write_bw` on that pair.

    In logs: `ibv_modify_qp failed with error Connection timed out`.
    """
    said = [e for e in story.all("modify-qp") if _NOT_ANSWERING.search(e.text)]
    if said:
        text = "the address of a queue pair's peer cannot be resolved or reached"
        yield seen(said, text, "low" if _on_a_link_local_gid(story) else "high")
    elif silent := [e for e in story.all("ofi-request") if _UNANSWERED.search(e.text)]:
        yield seen(
            silent,
            "a peer never answered over EFA: the security group must allow all traffic to and from itself",
            "medium",
        )


@cause("rdma-retry-exceeded")
def rdma_retry_exceeded(story: Story) -> Iterator[Cause]:
    """
    Packets to one peer were not acknowledged (InfiniBand status 12).

    Why: at once after init the ports cannot reach each other (GID, subnet, rails); after hours a link or
    congestion; always one device: that port.

    Fix: `ib_write_bw` on the named pair and device; NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT only for
    congestion.

    In logs: `Got completion ... with status=12`, `IBV_WC_RETRY_EXC_ERR(12) ... vendor err 129`.
    """
    said = [e for e in story.all("wc-error") if e["status"] in _RETRY or "RETRY_EXC" in e["name"].upper()]
    if said:
        devices = sorted({e["hca"] for e in said if e["hca"]})
        peers = sorted({e["peer"] for e in said if e["peer"]})
        text = f"no acknowledgement from {', '.join(peers[:3]) or 'a peer'}"
        if devices:
            text += f" on {', '.join(devices[:3])}"
        yield seen(said, text, "medium")


@cause(problems.LINK_FLAPPED)
def link_flapped(story: Story) -> Iterator[Cause]:
    said = [
        e
        for e in story.all("async-event")
        if re.search(r"port (?:error|down|err|active|state)|link (?:down|error)", e["event"], re.I)
    ]
    kernel = story.all("ib-port-down")
    if said or kernel:
        ranks = {e.rank for e in said if e.rank is not None}
        yield seen(
            [*said, *kernel],
            "an RDMA port went down during the run",
            "high" if said else "medium",
            severity="warning" if said and all(map(story.overcome, said)) else None,
            ranks=ranks,
        )


@cause("rdma-adapter-event")
def rdma_adapter_event(story: Story) -> Iterator[Cause]:
    """
    The RDMA adapter reported a change or fault of its own.

    Why: a changed GID table means that addresses of a RoCE port changed under the job; a
    catastrophic event is
    the adapter's hardware or firmware.

    Fix: stable addresses (no DHCP renewals, no container network edits); reset or replace the adapter.

    In logs: `Got async event : GID table change`, `local catastrophic error`, `device fatal`.
    """
    said = [
        e
        for e in story.all("async-event")
        if not re.search(r"port (?:error|down|err|active|state)|link (?:down|error)", e["event"], re.I)
    ]
    if not said:
        return
    adapter = [
        e
        for e in said
        if re.search(r"GID|catastrophic|fatal|LID|SM |client|device|internal error", e["event"], re.I)
    ]
    mild = all(re.search(r"non-fatal|GID table changed", e.text) for e in said) and failure(story) is None
    mild = mild or all(map(story.overcome, said))
    yield seen(
        said,
        f"the adapter reported: {said[0]['event'].strip()}",
        "high" if adapter else "low",
        severity="warning" if mild else None,
    )


@cause(problems.MEMLOCK_TOO_LOW, passing=True)
def memlock_too_low(story: Story) -> Iterator[Cause]:
    refused = story.all("ib-no-memory")
    said = [
        e
        for e in story.all("memlock-said")
        if re.search(
            r"current|too (?:low|small)|Please|limit(?:ed)? (?:is|to|reached)|unlimited'", e.text, re.I
        )
    ]
    memory = [e for e in refused if e["reason"] or "Cannot allocate" in e.text]
    bare = [
        e
        for e in refused
        if not e["reason"] and not re.search(r"Invalid argument|No such|Bad address|Operation not", e.text)
    ]
    # NCCL asks for memory when it connects: its own complaint is the end, another library's may not be.
    goes_on = (
        any(h.kind == "Socket" for h in story.hosts.values())
        and not story.has("nccl-system", "exit", "exception")
        and not any("NCCL WARN" in e.text for e in refused)
    )
    if memory or said:
        # ENOMEM from verbs is nearly always RLIMIT_MEMLOCK, but an exhausted adapter says the same.
        yield seen(
            [*said, *memory, *bare],
            "memory cannot be locked for RDMA: the process's memlock limit"
            + ("" if said else ", or the adapter has no more queues; `ulimit -l` in the job's shell tells"),
            "high" if said else "medium",
            severity="warning" if goes_on else None,
        )
    elif bare:
        yield seen(
            bare, "a queue or memory region is refused; the usual reason is the memlock limit", "medium"
        )


@cause(problems.ACS_ENABLED)
def acs_enabled(story: Story) -> Iterator[Cause]:
    errors = story.all("wc-error")
    protection = [e for e in errors if e["status"] == "4" or "LOC_PROT" in e["name"].upper()]
    flushed = [e for e in errors if (e["status"] == "5" or "WR_FLUSH" in e["name"].upper())]
    others = [e for e in errors if e not in flushed]
    if protection:
        sure = any(e["vendor"] == "81" for e in protection)
        yield seen(
            protection,
            "the NIC may not touch the GPU's memory: GPUDirect is blocked (ACS, or ATS in a VM)",
            "medium" if sure else "low",
        )
    elif (
        flushed
        and not others
        and any(e["vendor"] == "249" for e in flushed)
        and not story.has("exit", "ray-died", "nccl-remote", "exception")
    ):
        yield seen(
            flushed, "queue pairs are flushed as the first error: ACS or firmware, or the peer ended", "low"
        )


@cause(problems.GPUDIRECT_MODULE_MISSING)
def gpudirect_module_missing(story: Story) -> Iterator[Cause]:
    if refused := [e for e in story.all("ib-no-memory") if _NOT_PINNED.search(e.text)]:
        text = "the kernel cannot pin an address for RDMA (EFAULT): of a GPU, without a peer-memory module?"
        yield seen(refused, text, "medium")
        return
    off = [e for e in story.all("gdr-disabled") if "distance" not in e.text and "Socket" not in e.text]
    paths = [
        e for e in story.all("channel", "channel-loose") if "NET/IB" in e["via"] or "Libfabric" in e["via"]
    ]
    direct = {e.host for e in paths if "GDRDMA" in e["via"]}
    without = {e.host for e in paths if "GDRDMA" not in e["via"]} - direct
    ib = any(h.ib_devices or h.kind.startswith("IB") for h in story.hosts.values()) or any(
        "HCA" in e["what"] for e in off
    )
    if off and (ib or paths):
        yield seen(
            off, "GPUDirect RDMA is off: the peer-memory module is absent or not known to this NCCL", "high"
        )
    elif direct and without:
        lines = [e for e in paths if e.host in without][:2] + [e for e in paths if e.host in direct][:1]
        yield seen(
            lines,
            f"channels of {', '.join(sorted(without)) or 'one host'} go without GPUDirect, others have it",
            "high",
            nodes=sorted(without),
        )
    elif without and (able := story.all("gpu-datacentre")):
        yield seen(
            [*paths[:2], *able[:1]],
            "no channel uses GPUDirect: the peer-memory module is absent, or GPU and NIC stand too far apart",
            "low",
        )
