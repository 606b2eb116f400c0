"""GPUs a job would use: present, free, of one kind, healthy; their NVLinks and their driver."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from statistics import median

from ringup.checks.software import most_common_number, unusual, usual
from ringup.model import Cluster, Gpu, KernelEvent, Node
from ringup.rules import Finding, Severity, Skipped, at, check
from ringup.units import MIB, grouped, printable, show_bytes, show_seconds, summarize_names

HELD_BYTES = 500 * MIB
UNSEEN_BYTES = 1024 * MIB
"""Older drivers count their own reserve, a few hundred MiB, as used."""
RETIRED_FULL = 60
"""Pages; Azure/azurehpc-health-checks removes a node from service near this many."""
SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of nvmlClocksEventReasons that are faults; idle, power cap and application clocks are not."""
PEER_WORDS = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by a driver option",
    "U": "unknown",
}
"""The legend of `nvidia-smi topo -p2p`."""
HARMLESS = {63, 92, 94}
"""A remapped row, many single bit errors, an error contained to its process: the GPU stays usable."""
FAULTS = (
    {48, 92, 119, 120}
    | {*range(56, 59), *range(62, 66), *range(68, 78), *range(79, 87), 88, 89}
    | {*range(94, 106), *range(110, 118), *range(122, 126)}
    | {140, *range(143, 151)}
)
"""
Azure/azurehpc-health-checks and imbue-ai/cluster-health remove a node from service for these; from 140 on
NVIDIA's catalogue of Xids: uncorrectable ECC (140), a reset that is needed (143), NVLink 5 (144 to 150).
"""
RECENT_S = 86400.0
NVLINK_ERRORS = 5
"""imbue-ai/cluster-health inspects a link from five errors on."""


def visible(node: Node) -> tuple[Gpu, ...]:
    return tuple(g for g in node.gpus if g.is_visible)


def named(gpus: Iterable[Gpu]) -> str:
    """ "GPU 0, 3"."""
    return "GPU " + summarize_names([str(g.index) for g in gpus], 8)


def by_model(cluster: Cluster, value: Callable[[Gpu], float]) -> dict[str, list[float]]:
    return grouped((g.name, value(g)) for n in cluster.nodes for g in visible(n))


def of_gpu(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({printable(gpu.bus_id or gpu.uuid, 60)})"


def has_memory_fault(gpu: Gpu) -> bool:
    retired = (gpu.retired_pages or 0) >= RETIRED_FULL or bool(gpu.retirement_pending)
    return bool(gpu.ecc_uncorrected or gpu.remap_pending or gpu.remap_failed or retired)


def without_driver(node: Node) -> list[str]:
    """PCI addresses of NVIDIA GPUs where no NVIDIA driver is loaded."""
    return [] if node.gpu_driver.version else [d.bus_id for d in node.pci if d.is_own_gpu]


@check("gpu-missing", reads=("gpu_driver", "pci"), scope="gpus")
def gpu_missing(cluster: Cluster) -> Iterator[Finding]:
    """Only proven cases: a GPU hidden by a container or a scheduler is not missing."""
    elsewhere = any(n.gpu_count for n in cluster.nodes)
    for node in cluster.nodes:
        lost = [*node.gpu_driver.lost, *(g.bus_id for g in node.gpus if "lost" in g.trouble)]
        for bus in dict.fromkeys(lost):
            events = [e for e in node.kernel_events if e.kind == "xid" and e.bus_id == bus]
            last = f"; Xid {events[-1].code}: {printable(events[-1].text, 120)}" if events else ""
            yield at(node, f"GPU {bus}").finding(
                found=f"the driver lists it but nvidia-smi gets no answer{last}",
                wanted="every GPU of the machine answers",
                fix="drain the node and power it off and on; replace the GPU if it disappears again",
                run="sudo dmesg | grep -i -e Xid -e AER | tail",
            )
        own = sum(device.is_own_gpu for device in node.pci)
        if without_driver(node):
            why = f", {printable(node.gpu_driver.error or 'no NVIDIA driver is loaded', 120)}"
            wanted, command = "a driver that drives them", "sudo modprobe nvidia"
            fix = "load or install the driver, as on the other nodes"
        elif own and node.gpu_driver.error.startswith("No devices were found") and not lost:
            why = ", and none for the job's shell: nvidia-smi finds no device there"
            wanted, command = "GPUs that the job may use", "ls -l /dev/nvidia*"
            fix = "request GPUs from the scheduler or container (--gres, --gpus), or read the driver's log"
        else:
            continue
        yield at(node).finding(
            found=f"{own} NVIDIA GPUs on the PCI bus{why}",
            wanted=wanted,
            severity="error" if elsewhere or cluster.job.backend == "nccl" else "note",
            fix=fix,
            run=f"{command}; sudo dmesg | grep -i nvrm | tail",
        )


@check("gpu-held-by-other-process", reads=("gpus", "gpu_processes"), severity="warning", scope="gpus")
def gpu_held_by_other_process(node: Node) -> Iterator[Finding]:
    """
    GPU memory is in use before the job starts.

    Why: another job, or a rank left over from an earlier run; the new job runs out of memory or
    shares the GPU and slows every rank.
    Fix: find its owner: `ringup clean` for your own leftovers, the scheduler for others'.
    """
    # Other rules name ranks of an earlier or another run.
    named_elsewhere = {p.pid for p in node.leftovers}
    holders = [p for p in node.gpu_processes if p.pid not in named_elsewhere]
    taken = []
    for gpu in visible(node):
        own = [p for p in holders if p.gpu == gpu.index]
        used = sum(p.used_bytes or 0 for p in own)
        much = min(HELD_BYTES, gpu.memory_bytes // 20)
        nobody = not any(p.gpu == gpu.index for p in node.gpu_processes)
        hidden = nobody and (gpu.used_bytes or 0) > max(UNSEEN_BYTES, gpu.memory_bytes // 20)
        if hidden or (own and (used >= much or any(p.used_bytes is None for p in own))):
            taken.append(gpu)
    if not taken:
        return
    pids = [p for p in holders if p.gpu in {g.index for g in taken}]
    shown = summarize_names([f"pid {p.pid} {printable(p.name, 60)}" for p in pids], 3)
    used = max(sum(g.used_bytes or 0 for g in taken), sum(p.used_bytes or 0 for p in pids))
    numbers = " ".join(str(p) for p in sorted({p.pid for p in pids})[:20])
    yield at(node, named(taken)).finding(
        found=f"{show_bytes(used)} in use by {shown or 'a process that is hidden here'}",
        wanted="free GPUs",
        run=f"ps -o user,pid,lstart,args -p {shlex.quote(numbers)}" if pids else "nvidia-smi",
    )


@check("gpu-throttled", reads=("gpus",), severity="warning", scope="gpus")
def gpu_throttled(node: Node) -> Iterator[Finding]:
    """
    A GPU slows its clocks down because of heat or power.

    Why: collectives wait for the slowest rank, so one hot GPU of sixteen slows all sixteen.
    Fix: check cooling, dust, power supply and its cables of that machine; leave the node out until then.
    """
    slowed = [g for g in visible(node) if (g.throttle_reasons or 0) & sum(SLOWED)]
    if slowed:
        reasons = [w for bit, w in SLOWED.items() if any((g.throttle_reasons or 0) & bit for g in slowed)]
        heat = max(g.temperature_c or 0.0 for g in slowed)
        yield at(node, named(slowed)).finding(
            found=", ".join(reasons) + (f", {heat:g} °C" if heat else ""),
            wanted="clocks limited only by the load",
            run="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        )


@check("nvidia-smi-hangs", reads=("gpu_driver",), scope="gpus")
def nvidia_smi_hangs(node: Node) -> Iterator[Finding]:
    """
    nvidia-smi gives no answer.

    Why: inside the kernel it means a wedged driver, and CUDA will hang there too.  It may also only be
    slow: without persistence mode the driver initializes every GPU for every query.
    Fix: `nvidia-smi -pm 1` (or nvidia-persistenced) where it is slow; reboot the node where it hangs.
    """
    driver = node.gpu_driver
    if driver.silent_s:
        how = ", stuck inside the kernel" if driver.is_stuck else ""
        yield at(node).finding(
            found=f"no answer within {driver.silent_s:.1f} s{how}",
            wanted="an answer within a second or two",
            severity="error" if driver.is_stuck else "warning",
            run=('sudo dmesg | grep -i -e nvrm -e "blocked for more" | tail', "sudo nvidia-smi -pm 1"),
        )


@check("mig-or-compute-mode", reads=("gpus",), scope="gpus")
def mig_or_compute_mode(node: Node) -> Iterator[Finding]:
    """
    A GPU is cut into MIG slices, or set to refuse programs.

    Why: a process sees one slice only, NCCL has no peer access between slices, and ranks that share one
    GPU are refused (`Duplicate GPU detected`).  A GPU in mode Prohibited runs nothing at all.
    Fix: use other GPUs, since `nvidia-smi -mig 0` destroys the slices of all users of a GPU; for the mode
    `sudo nvidia-smi -c DEFAULT` on that GPU while nothing runs on it.
    """
    closed = [g for g in visible(node) if g.compute_mode == "Prohibited"]
    sliced = [g for g in visible(node) if g.is_mig]
    for gpus in filter(None, (closed, sliced)):
        numbers, is_closed = ",".join(str(g.index) for g in gpus), gpus is closed
        yield at(node, named(gpus)).finding(
            found="compute mode Prohibited" if is_closed else "MIG mode is on",
            wanted="whole GPUs that any process may use",
            severity="error" if is_closed else "warning",
            run=f"sudo nvidia-smi -i {numbers} -c DEFAULT" if is_closed else "nvidia-smi -L",
        )


def kinds(node: Node) -> str:
    models = {f"{g.name} {round(g.memory_bytes / 1024**3)} GiB" for g in visible(node) if g.name}
    return ", ".join(sorted(models))


@check("gpus-not-alike", reads=("gpus",), severity="warning", scope="gpus")
def gpus_not_alike(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes' GPUs are of different models or have different power limits.

    Why: every step waits for the slowest GPU, and a batch that fits one may not fit another.
    Fix: use nodes of one kind in one job, and the same `nvidia-smi -pl` everywhere.
    """
    wanted = usual(cluster, kinds)
    limits = by_model(cluster, lambda gpu: gpu.power_limit_w or 0.0)
    usually = {model: most_common_number(filter(None, own)) for model, own in limits.items()}
    for node in cluster.nodes:
        own = kinds(node)
        if own and own != wanted:
            yield at(node).finding(
                found=printable(own, 200),
                wanted=f"{printable(wanted, 200)}, as on the other nodes",
                run="nvidia-smi -L",
            )
            continue
        for gpu in visible(node):
            limit = usually[gpu.name]
            if gpu.power_limit_w and limit and gpu.power_limit_w < 0.95 * limit:
                yield at(node, of_gpu(gpu)).finding(
                    found=f"power limit {gpu.power_limit_w:g} W",
                    wanted=f"{limit:g} W, as other GPUs of its kind",
                    run=f"sudo nvidia-smi -i {gpu.index} -pl {limit:g}",
                )


@check("p2p-not-supported", reads=("gpu_links",), severity="warning", scope="gpus")
def p2p_not_supported(cluster: Cluster) -> Iterator[Finding]:
    """
    GPUs of one node cannot read each other's memory.

    Why: NCCL then copies through host memory, which is several times slower.  Consumer and small
    data-centre boards (L4) have no such path; elsewhere IOMMU, ACS or the driver forbid it.
    Fix: `nvidia-smi topo -p2p r` names the reason; turn IOMMU and ACS off, or try another driver. Set
    `NCCL_P2P_DISABLE=1` where copies hang.
    """
    pairs = {n.name: refused_pairs(n) for n in cluster.nodes}
    everywhere = all(len(pairs[n.name]) == len(n.gpu_links) for n in cluster.nodes if n.gpu_links)
    alike = len({code for found in pairs.values() for code in found}) == 1
    for node, found in ((node, pairs[node.name]) for node in cluster.nodes if pairs[node.name]):
        words = ", ".join(f"{c} ({PEER_WORDS.get(c, 'not explained')})" for c in sorted(set(found)))
        yield at(node).finding(
            found=f"{len(found)} of {len(node.gpu_links)} pairs of GPUs: {printable(words, 120)}",
            wanted="OK between all of them",
            severity="note" if everywhere and alike else "warning",
            run="nvidia-smi topo -p2p r",
        )


def refused_pairs(node: Node) -> list[str]:
    """Why GPUs have no access to each other, one reason per pair; empty if MIG is the reason."""
    hidden = {g.index for g in node.gpus if not g.is_visible}
    links = () if any(g.is_mig for g in node.gpus) else node.gpu_links
    return [x.peer for x in links if x.peer not in ("OK", "") and not hidden & {x.first, x.second}]


def refused_fields(node: Node, *fields: str) -> Iterator[Skipped]:
    """The node's driver is too old for this query."""
    missing = [f for f in fields if f in node.gpu_driver.refused]
    if node.gpus and missing:
        release = printable(node.gpu_driver.version, 40)
        yield Skipped("", node.name, f"driver {release} does not report {summarize_names(missing)}")


@check("ecc-uncorrectable", reads=("gpus",), scope="gpus")
def ecc_uncorrectable(node: Node) -> Iterator[Finding]:
    """If the driver allows further use of the GPU, the job may start."""
    for gpu in visible(node):
        if gpu.ecc_uncorrected:
            pending = "; a remap of its rows waits for a reset" if gpu.remap_pending else ""
            action = f"; the driver asks for: {gpu.recovery_action}" if needs_action(gpu) else ""
            yield at(node, of_gpu(gpu)).finding(
                found=f"{gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
                + pending
                + printable(action, 80),
                wanted="none",
                severity="warning" if gpu.recovery_action == "None" else "error",
                run=(
                    f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {gpu.index}",
                    f"sudo nvidia-smi --gpu-reset -i {gpu.index}",
                ),
            )


def needs_action(gpu: Gpu) -> bool:
    return gpu.recovery_action not in ("", "None")


@check("row-remap-pending", reads=("gpus",), scope="gpus")
def row_remap_pending(node: Node) -> Iterator[Finding | Skipped]:
    """
    A GPU could not replace bad memory rows, or waits for a reset to do so.

    Why: a failed remap means that the spare rows are used up.  With one pending, programs keep running, and
    the bad row is avoided only after the next reset.
    Fix: reset the GPU (`nvidia-smi --gpu-reset`) while nothing runs; replace it after a failure.
    """
    yield from refused_fields(node, "remapped_rows.pending", "remapped_rows.failure")
    for gpu in visible(node):
        if gpu.remap_failed or (gpu.remap_pending and not gpu.ecc_uncorrected):
            yield at(node, of_gpu(gpu)).finding(
                found="a row remap failed" if gpu.remap_failed else "a row remap waits for a reset",
                wanted="no bad row in use",
                severity="error" if gpu.remap_failed else "warning",
                run=f"nvidia-smi -q -d ROW_REMAPPER -i {gpu.index}",
            )


@check("retired-pages-full", reads=("gpus",), scope="gpus")
def retired_pages_full(node: Node) -> Iterator[Finding]:
    """
    A GPU (V100 and older) has retired nearly all the memory pages it can, or waits for a reboot to.

    Why: a page that cannot be retired fails again and again, and each time a rank dies.
    Fix: reboot where it is pending; replace a board with 60 pages or more.
    """
    for gpu in visible(node):
        pages = gpu.retired_pages or 0
        if pages >= RETIRED_FULL or (gpu.retirement_pending and not gpu.ecc_uncorrected):
            full = pages >= RETIRED_FULL
            yield at(node, of_gpu(gpu)).finding(
                found=f"{pages} pages retired"
                + (", more wait for a reboot" if gpu.retirement_pending else ""),
                wanted=f"fewer than {RETIRED_FULL}, none waiting",
                severity="error" if full else "warning",
                run=f"nvidia-smi -q -d PAGE_RETIREMENT -i {gpu.index}",
            )


@check("recovery-action-needed", reads=("gpus",), scope="gpus")
def recovery_action_needed(node: Node) -> Iterator[Finding | Skipped]:
    """
    The driver says that a GPU must be reset, drained or its node rebooted before it is used again.

    Why: this is the driver's verdict after a fault; programs on that GPU fail or hang.
    Fix: follow it: `nvidia-smi --gpu-reset -i N`, or a reboot.
    """
    yield from refused_fields(node, "gpu_recovery_action")
    for gpu in visible(node):
        trouble = gpu.trouble if "lost" not in gpu.trouble else ""
        words = f"recovery action {gpu.recovery_action}" if needs_action(gpu) else trouble
        if words and not has_memory_fault(gpu):
            yield at(node, of_gpu(gpu)).finding(
                found=printable(words, 80),
                wanted="recovery action None",
                run=f"sudo nvidia-smi --gpu-reset -i {gpu.index}",
            )


def explained(node: Node, bus: str) -> bool:
    """Whether another rule already names this GPU's fault."""
    return bus in node.gpu_driver.lost or any(
        has_memory_fault(g) or needs_action(g) or bool(g.trouble) for g in node.gpus if g.bus_id == bus
    )


@check("xid-in-kernel-log", reads=("kernel_events",), scope="gpus")
def xid_in_kernel_log(node: Node) -> Iterator[Finding]:
    """Without errors that programs may cause.  Old errors, and GPUs the driver calls healthy, only warn."""
    for bus in dict.fromkeys(e.bus_id for e in node.kernel_events if e.kind == "xid"):
        events = [e for e in node.kernel_events if e.bus_id == bus and e.code in FAULTS]
        if not events or explained(node, bus) or any(g.bus_id == bus and not g.is_visible for g in node.gpus):
            continue
        worst = min(events, key=lambda e: (e.code in HARMLESS, e.age_s))
        well = any(g.bus_id == bus and g.recovery_action == "None" for g in node.gpus)
        mild = well or worst.code in HARMLESS or worst.age_s > RECENT_S
        yield logged(node, f"GPU {printable(bus, 40)}", worst, "warning" if mild else "error")


def logged(node: Node, thing: str, event: KernelEvent, severity: Severity) -> Finding:
    times = f", {event.count} times" if event.count > 1 else ""
    kind = "Xid" if event.kind == "xid" else "SXid"
    return at(node, thing).finding(
        found=f"{kind} {event.code} {show_seconds(event.age_s)} ago{times}: {printable(event.text, 160)}",
        wanted=f"no {kind}",
        severity=severity,
        run="sudo dmesg -T | grep -i xid | tail",
    )


@check("sxid-in-kernel-log", reads=("kernel_events",), scope="gpus")
def sxid_in_kernel_log(node: Node) -> Iterator[Finding]:
    """
    An NVSwitch reported a fault.

    Why: a fatal one ends the programs on every GPU of the machine; others precede slow or failing NVLinks.
    Fix: restart the fabric manager and reset the GPUs, or reboot; replace the board when it returns.
    In logs: `SXid (PCI:0000:c1:00.0): 20034, Fatal`.
    """
    events = [e for e in node.kernel_events if e.kind == "sxid"]
    if events:
        worst = min(events, key=lambda e: (is_mild(e), e.age_s))
        thing = f"NVSwitch {printable(worst.bus_id, 40)}"
        yield logged(node, thing, worst, "warning" if is_mild(worst) else "error")


def is_mild(event: KernelEvent) -> bool:
    return "Non-fatal" in event.text or "Fatal" not in event.text or event.age_s > RECENT_S


def active(gpu: Gpu) -> int:
    return sum(1 for link in gpu.nvlinks if link.gbyte_s > 0)


def most_active(cluster: Cluster) -> dict[str, float]:
    """Model -> NVLinks that its GPUs usually have up; the larger number in a tie."""
    numbers = by_model(cluster, lambda g: active(g) if g.nvlinks else -1)
    return {name: most_common_number(n for n in own if n >= 0) for name, own in numbers.items()}


@check("nvlink-inactive", reads=("gpus",), severity="warning", scope="gpus")
def nvlink_inactive(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU has fewer active NVLinks than others of its kind.

    Why: NCCL's rings run as fast as the narrowest GPU; without any link they fall back to PCIe.
    Fix: reset the GPUs of that node (and restart its fabric manager); reseat the bridge or the board.
    """
    usually = most_active(cluster)
    for node in cluster.nodes:
        fewer = [g for g in visible(node) if g.nvlinks and active(g) < usually[g.name]]
        if fewer:
            numbers = summarize_names([f"{active(g)} on GPU {g.index}" for g in fewer])
            yield at(node, named(fewer)).finding(
                found=f"NVLinks active: {numbers}",
                wanted=f"{usually[fewer[0].name]}, as other GPUs of its kind",
                run="nvidia-smi nvlink --status",
            )


def link_errors(gpu: Gpu) -> int:
    return sum(link.errors or 0 for link in gpu.nvlinks)


@check("nvlink-errors", reads=("gpus",), severity="warning", scope="gpus")
def nvlink_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    The NVLinks of a GPU have had errors since its driver was loaded, far more than others of its kind.

    Why: replays cost bandwidth, and the link usually fails soon after (Xid 74).
    Fix: watch whether they grow (`nvidia-smi nvlink -e`); drain the node, reseat or replace.
    """
    usually = most_active(cluster)
    errors = by_model(cluster, link_errors)
    limits = {name: max(NVLINK_ERRORS, 10 * median(numbers)) for name, numbers in errors.items()}
    for node in cluster.nodes:
        up = [g for g in visible(node) if g.nvlinks and active(g) >= usually[g.name]]
        bad = [g for g in up if link_errors(g) >= limits[g.name]]
        if bad:
            numbers = summarize_names([f"{link_errors(g)} on GPU {g.index}" for g in bad])
            yield at(node, named(bad)).finding(
                found=f"replay, recovery and CRC errors: {numbers}",
                wanted="none, as on other GPUs",
                run="nvidia-smi nvlink -e",
            )


@check("fabric-manager-not-running", reads=("gpus",), scope="gpus")
def fabric_manager_not_running(node: Node) -> Iterator[Finding | Skipped]:
    """The GPUs' own fabric state if the driver reports it; else the process, on machines with NVSwitches."""
    manager = node.gpu_driver.fabric_manager
    with_state = [g for g in visible(node) if g.fabric_state]
    unready = [g for g in with_state if not is_ready(g)]
    switches = [d for d in node.pci if d.is_nvswitch]
    if unready:
        state = f"{unready[0].fabric_state} {unready[0].fabric_status}".strip()
        nobody = ", and no nv-fabricmanager runs" if manager == "absent" else ""
        found, thing = f"fabric state {printable(state, 80)}{nobody}", named(unready)
    elif switches and not with_state and manager == "absent":
        found, thing = f"{len(switches)} NVSwitches, and no nv-fabricmanager runs", ""
    else:
        if switches and not with_state and manager == "hidden":
            yield Skipped("", node.name, "the host's processes are hidden in this container")
        return
    yield at(node, thing).finding(
        found=found,
        wanted="a fabric manager of the driver's release, state Completed",
        run=("sudo systemctl enable --now nvidia-fabricmanager", "systemctl status nvidia-fabricmanager"),
    )


def is_ready(gpu: Gpu) -> bool:
    state, status = gpu.fabric_state.lower(), gpu.fabric_status.lower()
    return state == "not supported" or (state == "completed" and status in ("", "success"))


LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""CUDA's major release -> its oldest driver branch (docs.nvidia.com/deploy/cuda-compatibility, table 1)."""


def branch(release: str) -> int:
    """
    The driver's branch, 0 if unknown.

    >>> branch("590.48.01"), branch("")
    (590, 0)
    """
    head = release.partition(".")[0]
    return int(head) if head.isdecimal() and len(head) < 6 else 0


@check("driver-too-old-for-cuda", reads=("gpu_driver", "interpreter"), scope="gpus")
def driver_too_old_for_cuda(node: Node) -> Iterator[Finding]:
    """Only a warning with a compatibility library on LD_LIBRARY_PATH, which can make it work."""
    cuda = branch(node.interpreter.cuda)
    least = LEAST_DRIVER.get(cuda, 0)
    own = branch(node.gpu_driver.version)
    if own and own < least:
        paths = node.environment.get("LD_LIBRARY_PATH", "")
        supported = max((c for c, oldest in LEAST_DRIVER.items() if own >= oldest), default=10)
        yield at(node).finding(
            found=f"driver {printable(node.gpu_driver.version, 40)} under torch for CUDA "
            f"{printable(node.interpreter.cuda, 20)}",
            wanted=f"driver {least} or later, or a torch for CUDA {supported}",
            severity="warning" if "compat" in paths else "error",
            run="cat /proc/driver/nvidia/version",
        )


@check("driver-versions-differ", reads=("gpu_driver",), scope="gpus", severity="warning")
def driver_versions_differ(cluster: Cluster) -> Iterator[Finding]:
    """
    The nodes have different releases of the GPU driver.

    Why: one node lacks a feature of the others (NVLink SHARP, DMA-BUF, a fix), or is slower; failures on that
    node alone look like hardware faults.
    Fix: install one release everywhere.
    """
    for node, version, wanted in unusual(cluster, lambda n: n.gpu_driver.version):
        yield at(node).finding(
            found=f"driver {printable(version, 40)}",
            wanted=f"{printable(wanted, 40)}, as on most nodes",
            run="nvidia-smi -q",
        )


@check("driver-library-mismatch", reads=("gpu_driver",), scope="gpus")
def driver_library_mismatch(node: Node) -> Iterator[Finding]:
    """nvidia-smi's own error text (NVML error 18)."""
    driver = node.gpu_driver
    if "Driver/library version mismatch" in driver.error:
        yield at(node).finding(
            found=f"kernel module {printable(driver.version or 'of another release', 40)}, "
            f"library {printable(driver.library or 'of another release', 40)}",
            wanted="both of one release",
            run=("cat /sys/module/nvidia/version", "sudo systemctl reboot"),
        )
