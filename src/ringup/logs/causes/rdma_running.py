"""RDMA in use: addresses, retries, links that go down, memory that cannot be registered."""

from __future__ import annotations

import re

from ringup.logs.causes.transports import channels, name_ranks, parted
from ringup.logs.evidence import LogEvidence
from ringup.logs.lines import Event, ranks_of
from ringup.logs.patterns import OF_ROLE
from ringup.logs.patterns.forms import ERRNO
from ringup.logs.rule import Confidence, Found, cause, report
from ringup.rules import Fix

_NOT_PINNED = r"ibv_reg_mr(?:_iova2?)?\b.{0,120}(?:Bad address|\berrno:? ?14\b)"
"""Only a peer-memory module can pin plain GPU addresses; a DMA-BUF has a separate call."""

_NOT_ANSWERING = r"timed out|with 1(?:10|13)\b|status: 1(?:10|13) |Host is unreachable|No route to host"
_OF_A_PORT = r"(?i)port (?:error|down|err|active|state)|link (?:down|error)"


def _on_a_link_local_gid(log: LogEvidence) -> list[Event]:
    """Lines that show an fe80:: GID of this end; NCCL prints GIDs (as two hex words) for Ethernet only."""
    return [*log.all("modify-qp", has="(?i)local GID fe80"), *log.all("gid-link-local")]


@cause("gid-missing-or-wrong", overcome=None)
def gid_missing_or_wrong(log: LogEvidence) -> Found:
    roce = log.all("net-using", has="/RoCE")
    roce += log.all("env-set", name="NCCL_IB_(?:GID_INDEX|TC|ROCE_VERSION_NUM)")
    if unknown := log.all("query-gid"):
        return report([*unknown, *roce[:1]], "the RDMA port has no GID at the requested index")
    refused = (
        r"Invalid argument|Network is unreachable|Address not available|No data available"
        r"|with (?:22|61|101)\b|status: (?:22|61|101) "
    )
    if unset := log.all("modify-qp", has=refused):
        text = (
            "a RoCE queue pair cannot be brought up: its GID has no routable address or not the peer's kind"
        )
        return report([*unset, *roce[:1]], text)
    if (empty := log.all("gid-empty")) and (failed := log.all("modify-qp")):
        return report([*failed, *empty], "the RDMA port has an empty GID at that index: no address", "medium")
    stuck, local = log.all("modify-qp", has=_NOT_ANSWERING), _on_a_link_local_gid(log)
    if stuck and local:
        text = "a RoCE queue pair is brought up on a link-local GID (fe80::), which no router carries"
        return report([*stuck, *local[:1], *roce[:1]], text, "medium")
    if log.outcome.trained:
        return None  # the GID worked
    # NCCL prints GIDs only for Ethernet links: InfiniBand, where all have fe80::, prints none.
    if link_local := log.all("wc-error", has="(?i)localGid:? ?fe80", status="12|13"):
        sure: Confidence = "medium" if roce else "low"  # a line without a port may be about InfiniBand
        return report([*link_local, *roce[:1]], "the queue pair uses a link-local GID (fe80::)", sure)
    retry = log.all("wc-error", status="12|13")
    text = "RoCE with a chosen GID index and no answer from the peer: compare `show_gids` on both"
    return report([*roce, *retry], text, "low") if retry and roce else None


_OPEN_EFA = Fix(
    "rules of the security group for all traffic to and from itself, in both directions: one for 0.0.0.0/0 "
    "does not count for EFA; with -ingress in place of -egress again",
    commands=(
        "aws ec2 authorize-security-group-egress --group-id SG "
        "--ip-permissions 'IpProtocol=-1,UserIdGroupPairs=[{GroupId=SG}]'",
    ),
)


@cause("rdma-peer-unreachable", overcome=None)
def rdma_peer_unreachable(log: LogEvidence) -> Found:
    """
    A queue pair to the peer cannot be brought up.

    Why: the RoCE addresses are not routed to each other, or the rails are not joined.
    Fix: check addresses and routes of the RoCE ports; set `NCCL_CROSS_NIC=0` when only pairs across rails
    fail; test that pair with `ib_write_bw`.
    In logs: `ibv_modify_qp failed with error Connection timed out`.
    """
    if stuck := log.all("modify-qp", has=_NOT_ANSWERING):
        text = "the address of a queue pair's peer cannot be resolved or reached"
        return report(stuck, text, "low" if _on_a_link_local_gid(log) else "medium")  # a wrong GID, too
    if apart := [e for e in log.all("modify-qp") if e["handle"]]:
        return report(apart, "NVSHMEM cannot connect its queue pairs to a peer's", "low")
    text = "EFA does not reach the peer: its security group must allow all traffic to and from itself"
    return report(log.all("efa-blocked"), text, "medium", fix=_OPEN_EFA)


@cause("rdma-retry-exceeded")
def rdma_retry_exceeded(log: LogEvidence) -> Found:
    """
    Packets to one peer were not acknowledged (InfiniBand status 12).

    Why: at once after init the ports cannot reach each other (GID, subnet, rails); after hours a link or
    congestion; always one device: that port.
    Fix: test that pair and device by `ib_write_bw`; raise NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT only for
    congestion.
    In logs: `Got completion ... with status=12`, `IBV_WC_RETRY_EXC_ERR(12) ... vendor err 129`.
    """
    lost = log.all("wc-error")
    lost = [e for e in lost if e["status"] in ("12", "13") or e["retry"] or "RETRY_EXC" in e["name"].upper()]
    devices, peers = (sorted({e[field] for e in lost} - {""})[:3] for field in ("hca", "peer"))
    text = f"no acknowledgement from {', '.join(peers) or 'a peer'}"
    return report(lost, text + (f" on {', '.join(devices)}" if devices else ""), "medium")


@cause("link-flapped", overcome="warning")
def link_flapped(log: LogEvidence) -> Found:
    ports = [e for e in log.all("async-event") if re.search(_OF_A_PORT, e["event"])]
    events, text = [*ports, *log.all("ib-port-down")], "an RDMA port went down during the run"
    is_felt = log.has(*OF_ROLE["nccl"], *OF_ROLE["consequence"], *OF_ROLE["hang"])
    sure: Confidence = "high" if ports else "medium" if is_felt else "low"
    return report(events, text, sure, ranks=ranks_of(ports))


_ADAPTER_FAULT = re.compile(r"(?i)GID|catastrophic|fatal|LID|SM |client|device|internal error")


@cause("rdma-adapter-event", overcome="warning")
def rdma_adapter_event(log: LogEvidence) -> Found:
    """
    The RDMA adapter reported a change or a fault.

    Why: a changed GID table means that addresses of a RoCE port changed under the job; a catastrophic event
    is the adapter's hardware or firmware.
    Fix: keep addresses stable (no DHCP renewals, no container network edits); reset or replace the adapter.
    In logs: `Got async event : GID table change`, `local catastrophic error`, `device fatal`.
    """
    events = [e for e in log.all("async-event") if not re.search(_OF_A_PORT, e["event"])]
    if not events:
        return None
    harmless = (
        all(re.search("non-fatal|GID table changed", e.text) for e in events) and not log.outcome.failed
    )
    text = f"the adapter reported: {events[0]['event'].strip()}"
    sure: Confidence = "high" if any(_ADAPTER_FAULT.search(e["event"]) for e in events) else "low"
    return report(events, text, sure, severity="warning" if harmless else None)


@cause("memlock-too-low", overcome=None)
def memlock_too_low(log: LogEvidence) -> Found:
    low = r"(?i)current|too (?:low|small)|Please|limit(?:ed)? (?:is|to|reached)|unlimited'"
    limits, refused = log.all("memlock-said", has=low), log.all("ib-no-memory")
    memory = [e for e in refused if e["reason"] or "Cannot allocate" in e.text]
    bare = log.all("ib-no-memory", lacks=ERRNO, reason="")
    if log.has("memlock-unlimited") and not limits:
        return None  # ENOMEM is the adapter's, or the GPU driver's
    if not (memory or limits):
        text = "a queue or memory region is refused; the usual reason is the memlock limit"
        return report(bare, text, "low")
    # NCCL requests memory when it connects: its own complaint is the end, another library's may not be.
    ended = log.has("nccl-system", "exit", "exception") or any("NCCL WARN" in e.text for e in refused)
    goes_on = not ended and any(h.kind == "Socket" for h in log.hosts.values())
    text = "memory cannot be locked for RDMA: the process's memlock limit"
    if not limits:
        # ENOMEM from verbs is nearly always RLIMIT_MEMLOCK, but an exhausted adapter reports the same.
        text += ", or the adapter has no more queues; `ulimit -l` in the job's shell shows it"
    sure: Confidence = "high" if limits else "medium"
    return report([*limits, *memory, *bare], text, sure, severity="warning" if goes_on else None)


@cause("acs-enabled")
def acs_enabled(log: LogEvidence) -> Found:
    errors = log.all("wc-error")
    if protection := [e for e in errors if e["status"] == "4" or "LOC_PROT" in e["name"].upper()]:
        text = "the NIC may not touch the GPU's memory: GPUDirect is blocked (ACS, or ATS in a VM)"
        return report(protection, text, "medium" if any(e["vendor"] == "81" for e in protection) else "low")
    flushed = [e for e in errors if e["status"] == "5" or "WR_FLUSH" in e["name"].upper()]
    if flushed != errors or log.has("exit", "ray-died", "nccl-remote", "exception"):
        return None
    text = "queue pairs are flushed as the first error: ACS or firmware, or the peer ended"
    return report(flushed, text, "low") if any(e["vendor"] == "249" for e in flushed) else None


@cause("user-buffers-not-registrable", overcome=None)
def user_buffers_not_registrable(log: LogEvidence) -> Found:
    refused, own = log.all("buffers-refused"), log.all("buffers-own")
    if own and refused:
        return report([*refused, *own], "RDMA cannot register the buffers of this allocator", "medium")
    # EINVAL: the GPU's driver answers so for memory that was mapped without the right to RDMA.
    text = "RDMA refuses a buffer: one of an allocator that maps memory itself (`cuMemCreate`)?"
    return report([e for e in refused if e["why"].lower() == "invalid argument"], text, "low")


@cause("gpudirect-module-missing", overcome="warning")
def gpudirect_module_missing(log: LogEvidence) -> Found:
    if refused := log.all("ib-no-memory", has=_NOT_PINNED):
        text = "the kernel cannot pin an address for RDMA (EFAULT): of a GPU, without a peer-memory module?"
        return report(refused, text, "medium")
    off = log.all("gdr-disabled", lacks="distance|Socket")
    paths = channels(log, ".*(?:NET/IB|Libfabric).*")
    without, direct = parted(paths, lambda e: "GDRDMA" in e["via"])
    on_ib = any(h.ib_devices or h.kind.startswith("IB") for h in log.hosts.values())
    if off and (paths or on_ib or any("HCA" in e["what"] for e in off)):
        text = "GPUDirect RDMA is off: the peer-memory module is absent or not known to this NCCL"
        return report(off, text)
    if direct and without:
        slow, fast = [*without.values()], [*direct.values()]
        whole = {e.host for e in slow} - {e.host for e in fast}
        text = f"{name_ranks(slow)} without GPUDirect, {len(fast)} others with it"
        text += "" if whole else ": too far from their NIC, or another kind of GPU"
        who = ranks_of(slow)
        hosts = dict.fromkeys(e.host for e in slow)
        return report([*slow[:2], fast[0]], text, "high" if whole else "medium", nodes=hosts, ranks=who)
    able = log.all("gpu-datacentre")[:1]
    text = "no channel uses GPUDirect: the peer-memory module is absent, or GPU and NIC are too far apart"
    return report([*paths[:2], *able], text, "low") if without and able else None
