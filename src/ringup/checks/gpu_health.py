"""The health that a GPU, its NVLinks and its driver report."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ringup.checks.gpu import RETIRED_FULL, by_model, has_memory_fault, named, of_gpu, visible
from ringup.checks.software import most_common_number, unusual
from ringup.model import Cluster, Gpu, KernelEvent, Node
from ringup.rules import Finding, Severity, Skipped, at, check
from ringup.units import printable, show_seconds, summarize_names

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
    Fix: one release everywhere.
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
