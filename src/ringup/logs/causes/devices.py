"""GPUs, shared memory and limits of a host."""

from __future__ import annotations

import re

from ringup.logs.causes.symptoms import (
    UNBACKED,
    first_value,
    is_of_a_peer,
    on,
    refused_semaphores,
    xid_codes,
)
from ringup.logs.evidence import LogEvidence
from ringup.logs.outcome import made_do
from ringup.logs.patterns.forms import PROGRAM_XIDS
from ringup.logs.rule import Found, cause, report
from ringup.units import parse_size_bytes

_HELD = re.compile(r"Process (\d{1,9}) has ([\d.]{1,12} [GM]iB) memory in use")
_TOO_LARGE = re.compile(
    r"Tried to allocate (\d{1,9}\.\d\d) ([MG]iB)\. GPU \d+ has a total capacity of (\d{1,9}\.\d\d) ([MG]iB)"
)
"""c10/cuda/CUDACachingAllocator.cpp (torch 2.1 to 2.13)."""
_UNOPENED = re.compile(r"unable to open shared memory object\b(?:.{0,160}mode)?(?P<why>: .+|$)?")
"""torch's messages for a failed shm_open, which needs a descriptor, not space; before 1.10 without errno."""


@cause("shm-too-small")
def shm_too_small(log: LogEvidence) -> Found:
    nccl = log.all("shm-failed", lacks="Too many open files")
    loaders = log.all("loader-bus", "shm-torch", lacks="Too many open files")
    loaders = [e for e in loaders if not _UNOPENED.search(e.text) or "No space" in e.text]
    loaders += [*refused_semaphores(log), *log.all("disk-full", has="'/dev/shm/")]
    by_cuda = any("shm" in e["where"] for e in log.all("cuda-failure"))
    if by_cuda and not loaders and not any("No space" in e.text for e in nccl):
        return None
    rows = log.all("no-space-shm", size=r"\d+(\.\d+)?[KMG]?")
    rows = [e for e in rows if parse_size_bytes(e["size"]) <= 128 << 20 or e.number("percent") >= 98]
    if nccl or loaders:
        text = "/dev/shm has no room for what NCCL or the data loaders put there"
        return report([*nccl, *loaders, *rows], text)
    if rows and not log.outcome.went_on:
        return report(rows, f"/dev/shm has only {rows[0]['size']} (Docker's default is 64 MiB)", "medium")
    bus = log.all("crash-word", has="Bus error|SIGBUS")
    unbacked = any(UNBACKED in e.text for e in bus)
    text = "a bus error is often a page of /dev/shm that could not be had"
    return report(bus, text, "medium" if unbacked else "low")


@cause("open-files-too-low", overcome=None)
def open_files_too_low(log: LogEvidence) -> Found:
    if too_many := log.all("too-many-files"):
        return report(too_many, "a process ran out of file descriptors")
    unopened = [e for e in log.all("shm-torch") if (m := _UNOPENED.search(e.text)) and not m["why"]]
    text = "a shared memory object could not be opened: most often the process has no descriptor left"
    return report(unopened, text, "medium")


@cause("gpu-out-of-memory")
def gpu_out_of_memory(log: LogEvidence) -> Found:
    """
    A rank (or NCCL on it) got no GPU memory.

    Why: model, batch or fragments of that rank; processes of an earlier run may still hold memory.
    Fix: use less memory on that rank (batch, sharding, checkpointing); end leftovers of earlier runs; against
    fragments `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
    In logs: `CUDA out of memory. Tried to allocate`, `Cuda failure 'out of memory'`.
    """
    # A program that warns of it goes on with less.
    refused = log.all("gpu-oom", lacks=r"ray\.exceptions|java\.lang|^\W{0,8}(?:WARN|WARNING)\b")
    refused = [e for e in refused if not made_do(e)]
    events = [*refused, *log.all("nccl-calloc"), *log.all("cuda-failure", text="(?i).*out of memory.*")]
    if not events:
        return None
    who = f"rank {events[0].rank}" if events[0].rank is not None else f"a rank{on(events[0].host)}"
    went_on = all(map(log.outcome.overcome, events))
    effect = "the job went on after it" if went_on else "closed sockets and timeouts elsewhere follow from it"
    text = f"{who} got no GPU memory; {effect}"
    asked = _TOO_LARGE.search(refused[0].text) if refused else None
    if asked and parse_size_bytes(asked[1] + asked[2]) > parse_size_bytes(asked[3] + asked[4]):
        size, whole = f"{asked[1]} {asked[2]}", f"{asked[3]} {asked[4]}"
        return report(events, f"{who} asked for {size} at once, more than its whole GPU has ({whole})")
    held = [m for e in refused if (m := _HELD.search(e.text))][:1]
    held_by = [e for m in held for e in log.all("gpu-process", pid=m[1])]
    if held:
        who = (
            "perhaps this rank itself, seen from outside its container"
            if _may_be_own(held[0])
            else "another one"
        )
        text += f"; process {held[0][1]}, {who}, holds {held[0][2]} of it"
    return report([*events, *held_by], text, "high" if refused else "medium")


def _may_be_own(held: re.Match[str]) -> bool:
    """
    Whether the process that holds the memory may be the rank: the driver knows it by another number.

    torch (`c10/cuda/CUDACachingAllocator.cpp`) then lists no "this process has", and what it allocated itself
    is within what that process holds.
    """
    text = held.string
    own = re.search(r"([\d.]{1,12}) (KiB|MiB|GiB) is allocated by PyTorch", text)
    is_listed = "this process has" in text or len(_HELD.findall(text)) > 1
    if own is None or is_listed:
        return False
    return parse_size_bytes(own[1] + own[2]) <= parse_size_bytes(held[2])


@cause("ecc-uncorrectable", overcome="warning")
def ecc_uncorrectable(log: LogEvidence) -> Found:
    errors = log.all("ecc")
    host = next((e.host for e in errors if e.host), "")
    what = "hardware (RAS)" if first_value(errors, "ras") else "memory"
    text = f"a GPU{f' of {host}' if host else ''} has an uncorrectable {what} error"
    # nvidia-smi counts since the driver was loaded: a job before may have had it.
    return report(errors, text, "medium" if all(e["count"] for e in errors) else "high")


@cause("nvlink-failed")
def nvlink_failed(log: LogEvidence) -> Found:
    errors = log.all("nvlink-error")
    host = next((e.host for e in errors if e.host), "")
    text = f"an NVLink of a GPU{f' of {host}' if host else ''} has an uncorrectable error"
    # The driver's own code for a link is more precise than CUDA's message.
    return report(errors, text, "medium" if xid_codes(log) else "high")


@cause("gpu-missing", overcome="warning")
def gpu_missing(log: LogEvidence) -> Found:
    lost, bus = log.all("gpu-lost"), log.all("aer")
    codes = {"79", "119", "120"} if lost else {"79"}  # a GPU's firmware (GSP) that timed out, and is lost
    off = [e for e in log.all("xid") if first_value([e], "code", "code2") in codes]
    if lost or off:
        text = "a GPU does not answer or fell off the bus"
        if not off and len(log.all("gpu-lost", has="NVML|NVIDIA driver")) == len(lost):
            text = (
                "the NVIDIA driver does not answer: not loaded, or its devices were taken from the container"
            )
        return report([*off, *lost, *bus], text)
    text = "a PCIe slot reports bus errors; the device behind it may be about to go"
    if all("corrected" in e.text.lower() and "uncorrected" not in e.text.lower() for e in bus):
        # The link repeats the transfer, and nothing is lost.
        return report(bus, text, "low", severity="warning") if len(bus) > 2 else None
    return report(bus, text, "medium") if len(bus) > 2 or log.outcome.failed else None


INFORMING_XIDS = {63, 92}
"""A recorded row remapping, and a high rate of corrected errors (NVIDIA's Xid catalogue)."""


@cause("xid-in-kernel-log", overcome=None)
def xid_in_kernel_log(log: LogEvidence) -> Found:
    codes = xid_codes(log)
    if codes and INFORMING_XIDS.issuperset(codes):
        text = f"the driver reported code {', '.join(map(str, codes))}, which ends no process"
        return report(log.all("xid"), text, "low", severity="note")
    grave = log.has("sxid") or not PROGRAM_XIDS.issuperset(codes)
    text = f"the driver reported Xid {', '.join(map(str, codes)) or 'without number'}"
    text += "" if grave else " (usually the program's own fault)"
    events = log.all("xid", "sxid")
    if grave:  # those that a program raises follow from the fault, or are of another day
        programs = {*map(str, PROGRAM_XIDS)}
        events.sort(key=lambda e: " Nonfatal " in e.text or first_value([e], "code", "code2") in programs)
    return report(events, text, "high" if grave else "low")


@cause("fabric-manager-not-running", overcome=None)
def fabric_manager_not_running(log: LogEvidence) -> Found:
    units = {(e.file, e.line + below) for e in log.all("fabric-unit") for below in range(1, 6)}
    failed = [e for e in log.all("unit-failed") if e.place in units]
    failed = [*log.all("fabric-manager", lacks=r"active \(running\)"), *failed]
    bind = log.all("nvls-failed", has="Fabric ?Manager|NVSwitches")
    if failed:
        return report([*failed, *bind], "the fabric manager does not run in the driver's version")
    text = "NVLink multicast memory cannot be bound: fabric manager or NVSwitch state"
    return report(bind, text, "medium")


@cause("nvls-setup-failed", overcome=None)
def nvls_setup_failed(log: LogEvidence) -> Found:
    """
    NVLink SHARP multicast cannot be set up.

    Why: the fabric manager was restarted without a GPU reset, or a container lacks the capability devices.
    Fix: restart the fabric manager and reset the GPUs; expose /dev/nvidia-caps to the container;
    `NCCL_NVLS_ENABLE=0` to go on without.
    In logs: a WARN from NCCL's nvls transport: `Cuda failure 1 'invalid argument'` or `401`.
    """
    calls = log.all(
        "cuda-failure", where="(?i).*nvls.*", text="(?!.*(?:out of memory|not yet initialized)).*"
    )
    bind = log.all("nvls-failed")
    vague = not bind and all("initialization error" in e["text"] for e in calls)
    text = "NVLink SHARP (multicast) cannot be set up on this host"
    return report([*calls, *bind], text, "low" if vague else "high")


@cause("gpus-hidden-between-ranks")
def gpus_hidden_between_ranks(log: LogEvidence) -> Found:
    """
    Ranks of one node see only their own GPU, so peer access and topology fail or all traffic goes
    over the NIC.

    Why: a container or cgroup per GPU hides the others.
    Fix: expose all GPUs of the node to all its ranks; no `--gpus-per-task`.
    In logs: `nvmlDeviceGetHandleByPciBusId() failed: Not Found`.
    """
    hidden = log.all("nvml-lookup") + [e for e in log.all("bad-ordinal") if is_of_a_peer(e)]
    # NCCL first checks whether peers reach each other; a rank that cannot open the peer's handle does not.
    shut = log.all("peer-access", has="(?i)ipc ?(?:open)?(?:mem)?handle")
    if hidden or shut:
        text = "a rank cannot look up its neighbour's GPU: containers or cgroups hide it"
        return report([*hidden, *shut], text, "high" if hidden else "medium")
    alone = [e for e in log.all("topology") if e.number("nodes") == 1 and e.number("local") > 1]
    via = log.all("channel", via=".*NET/.*")
    if alone and via and len([h for h in log.hosts if h]) <= 1:
        text = "ranks of one node talk over the NIC"
        return report([*alone[:1], *via[:2]], text, "low", severity="warning")
    return None


@cause("cumem-host-unusable", overcome=None)
def cumem_host_unusable(log: LogEvidence) -> Found:
    """
    NCCL's cuMem host buffers do not work here.

    Why: no peer access between the GPUs, or NUMA calls blocked in the container.
    Fix: set `NCCL_CUMEM_HOST_ENABLE=0`, give it a larger /dev/shm, or allow the calls.
    In logs: `Cuda failure 217 'peer access is not supported'` from the shm transport.
    """
    # Where NCCL kept its host memory in files, a CUDA call on it failed in shmutils or shm.h.
    where = r"(?!.*shmutils|.*shm\.h$).*shm.*"
    calls = log.all(
        "cuda-failure", where=where, text=r".*(peer access|not supported|invalid (argument|device)).*"
    )
    notice = log.all("cumem-host")
    if calls:
        return report([*calls, *notice], "NCCL's cuMem host buffers do not work between these GPUs")
    text = "cuMem host buffers do not work; NCCL falls back to files in /dev/shm"
    failed = log.outcome.failed is not None
    return report(notice, text, "medium" if failed else "low", severity=None if failed else "note")
