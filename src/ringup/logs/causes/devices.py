"""GPUs, shared memory and limits of a host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ringup import problems
from ringup.logs.causes.signs import (
    HARMLESS_XID,
    UNBACKED,
    failure,
    is_of_a_peer,
    made_do,
    refused_semaphores,
    went_on,
    xid_codes,
)
from ringup.logs.lines import Event
from ringup.logs.rule import Cause, cause, seen
from ringup.logs.story import Story
from ringup.units import parse_size_bytes

_UNOPENED = re.compile(r"unable to open shared memory object\b(?:.{0,160}mode)?(?P<why>: .+|$)?")
"""torch's words for a failed shm_open, which needs a descriptor, not space; before 1.10 without errno."""


@cause(problems.SHM_TOO_SMALL)
def shm_too_small(story: Story) -> Iterator[Cause]:
    nccl = [e for e in story.all("shm-failed") if "Too many open files" not in e.text]
    loaders = [e for e in story.all("loader-bus", "shm-torch") if "Too many open files" not in e.text]
    cuda = [e for e in story.all("cuda-failure") if "shm" in e["where"]]
    loaders = [e for e in loaders if not _UNOPENED.search(e.text) or "No space" in e.text]
    loaders += refused_semaphores(story)
    loaders += [e for e in story.all("disk-full") if "'/dev/shm/" in e.text]
    space = [e for e in [*nccl, *loaders] if "No space" in e.text]
    if cuda and not space and not loaders:
        return
    rows = [e for e in story.all("no-space-shm") if _row_bytes(e) <= 128 << 20 or e.number("percent") >= 98]
    if nccl or loaders:
        yield seen(
            [*nccl, *loaders, *rows], "/dev/shm has no room for what NCCL or the data loaders put there"
        )
    elif rows and not went_on(story):
        yield seen(rows, f"/dev/shm has only {rows[0]['size']} (Docker's default is 64 MiB)", "medium")
    elif bus := [e for e in story.all("crash-word") if re.search(r"Bus error|SIGBUS", e.text)]:
        unbacked = any(UNBACKED in e.text for e in bus)
        text = "a bus error is often a page of /dev/shm that could not be had"
        yield seen(bus, text, "medium" if unbacked else "low")


def _row_bytes(event: Event) -> int:
    try:
        return parse_size_bytes(event["size"])
    except ValueError:
        return 1 << 60


@cause(problems.OPEN_FILES_TOO_LOW, passing=True)
def open_files_too_low(story: Story) -> Iterator[Cause]:
    said = story.all("too-many-files")
    if said:
        yield seen(said, "a process ran out of file descriptors")
        return
    unopened = [e for e in story.all("shm-torch") if (m := _UNOPENED.search(e.text)) and not m["why"]]
    if unopened:
        text = "a shared memory object could not be opened: most often the process has no descriptor left"
        yield seen(unopened, text, "medium")


@cause("gpu-out-of-memory", passing=True)
def gpu_out_of_memory(story: Story) -> Iterator[Cause]:
    """
    A rank (or NCCL on it) got no GPU memory.

    Why: model, batch or fragments of that rank; processes of an earlier run may still hold memory.

    Fix: less memory on that rank (batch, sharding, checkpointing), end leftovers, `PYTORCH_CUDA_ALLOC_CONF`.

    In logs: `CUDA out of memory. Tried to allocate`, `Cuda failure 'out of memory'`.
    """
    said = [e for e in story.all("gpu-oom") if not re.search(r"ray\.exceptions|java\.lang", e.text)]
    said = [e for e in said if not made_do(e)]
    nccl = story.all("nccl-calloc") + [
        e for e in story.all("cuda-failure") if "out of memory" in e["text"].lower()
    ]
    if said or nccl:
        where = (said or nccl)[0]
        who = (
            f"rank {where.rank}"
            if where.rank is not None
            else f"a rank{f' on {where.host}' if where.host else ''}"
        )
        yield seen(
            [*said, *nccl],
            f"{who} got no GPU memory; closed sockets and time-outs elsewhere follow from it",
            "high" if said else "medium",
        )


@cause(problems.ECC_UNCORRECTABLE)
def ecc_uncorrectable(story: Story) -> Iterator[Cause]:
    said = story.all("ecc")
    if said:
        host = next((e.host for e in said if e.host), "")
        nvlink = all(re.search("nvlink", e.text, re.I) for e in said)
        what = "NVLink error (a link between GPUs, not memory)" if nvlink else "memory error"
        text = f"a GPU{f' of {host}' if host else ''} has an uncorrectable {what}"
        # The driver's own code for a link says more than CUDA's word for it.
        yield seen(said, text, "medium" if nvlink and xid_codes(story) else "high")


@cause(problems.GPU_MISSING)
def gpu_missing(story: Story) -> Iterator[Cause]:
    said = story.all("gpu-lost")
    off = [e for e in story.all("xid") if (e["code"] or e["code2"]) == "79"]
    bus = story.all("aer")
    if said or off:
        driver = not off and all(re.search("NVML|NVIDIA driver", e.text) for e in said)
        text = "a GPU does not answer or fell off the bus"
        if driver:
            text = (
                "the NVIDIA driver does not answer: not loaded, or its devices were taken from the container"
            )
        yield seen([*said, *off, *bus], text)
    elif len(bus) > 2 or (bus and failure(story) is not None):
        yield seen(
            bus, "a PCIe slot reports bus errors in floods; the device behind it is about to go", "medium"
        )


@cause(problems.XID_IN_KERNEL_LOG, passing=True)
def xid_in_kernel_log(story: Story) -> Iterator[Cause]:
    said = story.all("xid", "sxid")
    if not said:
        return
    codes = xid_codes(story)
    grave = [c for c in codes if c not in HARMLESS_XID] or story.has("sxid")
    yield seen(
        said,
        f"the driver reported fault code {', '.join(map(str, codes)) or 'without number'}"
        + ("" if grave else " (usually the program's own fault)"),
        "high" if grave else "low",
    )


@cause(problems.FABRIC_MANAGER_NOT_RUNNING, passing=True)
def fabric_manager_not_running(story: Story) -> Iterator[Cause]:
    said = [e for e in story.all("fabric-manager") if not _running(e)]
    units = story.all("fabric-unit")
    failed = [
        u
        for u in story.all("unit-failed")
        if any(u.file == e.file and 0 < u.line - e.line < 6 for e in units)
    ]
    bind = [e for e in story.all("nvls-failed") if re.search(r"Fabric ?Manager|NVSwitches", e.text)]
    if said or failed:
        yield seen([*said, *failed, *bind], "the fabric manager does not run in the driver's version")
    elif bind:
        yield seen(
            bind, "NVLink multicast memory cannot be bound: fabric manager or NVSwitch state", "medium"
        )


def _running(event: Event) -> bool:
    return "active (running)" in event.text


@cause("nvls-setup-failed", passing=True)
def nvls_setup_failed(story: Story) -> Iterator[Cause]:
    """
    NVLink SHARP multicast cannot be set up.

    Why: the fabric manager was restarted without a GPU reset, or a container lacks the capability devices.

    Fix: restart the fabric manager and reset the GPUs; expose /dev/nvidia-caps to the container;
    `NCCL_NVLS_ENABLE=0` to go on without.

    In logs: a WARN from NCCL's nvls transport: `Cuda failure 1 'invalid argument'` or `401`.
    """
    said = [
        e
        for e in story.all("cuda-failure")
        if "nvls" in e["where"].lower() and not re.search(r"out of memory|not yet initialized", e["text"])
    ]
    bind = story.all("nvls-failed")
    if said or bind:
        vague = not bind and all("initialization error" in e["text"] for e in said)
        yield seen(
            [*said, *bind],
            "NVLink SHARP (multicast) cannot be set up on this host",
            "low" if vague else "high",
        )


@cause("gpus-hidden-between-ranks")
def gpus_hidden_between_ranks(story: Story) -> Iterator[Cause]:
    """
    Ranks of one node see only their own GPU, so peer access and topology fail or all traffic goes
    over the NIC.

    Why: a container or cgroup per GPU hides the others.

    Fix: expose all GPUs of the node to all its ranks; no `--gpus-per-task`.

    In logs: `nvmlDeviceGetHandleByPciBusId() failed: Not Found`.
    """
    said = story.all("nvml-lookup") + [e for e in story.all("bad-ordinal") if is_of_a_peer(e)]
    if said:
        yield seen(said, "a rank cannot look up its neighbour's GPU: containers or cgroups hide it", "high")
        return
    alone = [e for e in story.all("topology") if e.number("nodes") == 1 and e.number("local") > 1]
    via = [e for e in story.all("channel") if "NET/" in e["via"]]
    if alone and via and len([h for h in story.hosts if h]) <= 1:
        yield seen([*alone[:1], *via[:2]], "ranks of one node talk over the NIC", "low", severity="warning")


@cause("cumem-host-unusable", passing=True)
def cumem_host_unusable(story: Story) -> Iterator[Cause]:
    """
    NCCL's cuMem host buffers do not work here.

    Why: no peer access between the GPUs, or NUMA calls blocked in the container.

    Fix: `NCCL_CUMEM_HOST_ENABLE=0`, a larger /dev/shm, or allow the calls.

    In logs: `Cuda failure 217 'peer access is not supported'` from the shm transport.
    """
    said = [
        e
        for e in story.all("cuda-failure")
        if "shm" in e["where"]
        and re.search(r"peer access|not supported|invalid (?:argument|device)", e["text"])
    ]
    # Where NCCL kept its host memory in files, a CUDA call on it failed in shmutils or shm.h.
    said = [e for e in said if "shmutils" not in e["where"] and not e["where"].endswith("shm.h")]
    notice = story.all("cumem-host")
    if said:
        yield seen([*said, *notice], "NCCL's cuMem host buffers do not work between these GPUs", "high")
    elif notice:
        failed = failure(story) is not None
        yield seen(
            notice,
            "cuMem host buffers do not work; NCCL falls back to files in /dev/shm",
            "medium" if failed else "low",
            severity=None if failed else "note",
        )
