"""What a GPU, its NVLinks and its driver say of their own health."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from ringup import problems
from ringup.checks.gpu import for_gpus, has_memory_fault, known, named, of_gpu, on, seen
from ringup.facts import Cluster, Gpu, KernelEvent, Node
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, Skipped, check
from ringup.units import printable, show_seconds

RETIRED_FULL = 60
"""Pages; Azure/azurehpc-health-checks takes a node out near this many."""
HARMLESS = {63, 92, 94}
"""A row remapped, many single bit errors, an error contained to its process: the GPU goes on."""
FAULTS = (
    {48, 92, 119, 120}
    | {*range(56, 59), *range(62, 66), *range(68, 78), *range(79, 87), 88, 89}
    | {*range(94, 106), *range(110, 118), *range(122, 126)}
)
"""Azure/azurehpc-health-checks and imbue-ai/cluster-health take a node out for these."""
RECENT_S = 86400.0
NVLINK_ERRORS = 5
"""imbue-ai/cluster-health: from five on a link is looked at."""


def not_told(cluster: Cluster, *fields: str) -> Iterator[Skipped]:
    """Nodes whose driver is too old to be asked."""
    for node in cluster.nodes:
        missing = [f for f in fields if f in node.gpu_driver.refused]
        if node.gpus and missing:
            release = printable(node.gpu_driver.version, 40)
            yield Skipped("", node.name, f"driver {release} does not tell {few(missing)}")


@check(problems.ECC_UNCORRECTABLE, reads=("gpus",), uses=("gpu_driver",))
@for_gpus
def ecc_uncorrectable(cluster: Cluster) -> Iterator[Finding]:
    """Where the driver says that the GPU may be used on, it is no reason to stop."""
    for node in cluster.nodes:
        for gpu in seen(node):
            if gpu.ecc_uncorrected:
                pending = "; a remap of its rows waits for a reset" if gpu.remap_pending else ""
                action = f"; the driver asks for: {gpu.recovery_action}" if needs_action(gpu) else ""
                yield Finding(
                    f"{node.name} {of_gpu(gpu)}",
                    found=f"{gpu.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
                    + pending
                    + printable(action, 80),
                    wanted="none",
                    node=node.name,
                    severity="warning" if gpu.recovery_action == "None" else "error",
                    fix=Fix(
                        "drain the node and reset the GPU; replace it when they come back",
                        commands=(
                            on(node, "nvidia-smi", "-q", "-d", "ECC,ROW_REMAPPER", "-i", str(gpu.index)),
                            on(node, "sudo", "nvidia-smi", "--gpu-reset", "-i", str(gpu.index)),
                        ),
                    ),
                )


def needs_action(gpu: Gpu) -> bool:
    return gpu.recovery_action not in ("", "None")


@check("row-remap-pending", reads=("gpus",), uses=("gpu_driver",))
@for_gpus
def row_remap_pending(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    A GPU could not replace bad memory rows, or waits for a reset to do so.

    Why: a failed remap means that the spare rows are used up.  With one pending, programs run on
    unharmed, and the bad row is avoided only after the next reset.

    Fix: reset the GPU (`nvidia-smi --gpu-reset`) while nothing runs; replace it after a failure.
    """
    yield from not_told(cluster, "remapped_rows.pending", "remapped_rows.failure")
    for node in cluster.nodes:
        for gpu in seen(node):
            if gpu.remap_failed or (gpu.remap_pending and not gpu.ecc_uncorrected):
                yield Finding(
                    f"{node.name} {of_gpu(gpu)}",
                    found="a row remap failed" if gpu.remap_failed else "a row remap waits for a reset",
                    wanted="no bad row in use",
                    node=node.name,
                    severity="error" if gpu.remap_failed else "warning",
                    fix=Fix(
                        "replace the GPU" if gpu.remap_failed else "reset it when nothing runs there",
                        commands=(on(node, "nvidia-smi", "-q", "-d", "ROW_REMAPPER", "-i", str(gpu.index)),),
                    ),
                )


@check("retired-pages-full", reads=("gpus",))
@for_gpus
def retired_pages_full(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU (V100 and older) has retired nearly all the memory pages it can, or waits for a reboot to.

    Why: a page that cannot be retired fails again and again, and each time a rank dies.

    Fix: reboot where it is pending; replace a board with 60 pages or more.
    """
    for node in cluster.nodes:
        for gpu in seen(node):
            pages = gpu.retired_pages or 0
            if pages >= RETIRED_FULL or (gpu.retirement_pending and not gpu.ecc_uncorrected):
                full = pages >= RETIRED_FULL
                yield Finding(
                    f"{node.name} {of_gpu(gpu)}",
                    found=f"{pages} pages retired"
                    + (", more wait for a reboot" if gpu.retirement_pending else ""),
                    wanted=f"fewer than {RETIRED_FULL}, none waiting",
                    node=node.name,
                    severity="error" if full else "warning",
                    fix=Fix(
                        "replace the board" if full else "reboot the node when nothing runs there",
                        commands=(
                            on(node, "nvidia-smi", "-q", "-d", "PAGE_RETIREMENT", "-i", str(gpu.index)),
                        ),
                    ),
                )


@check("recovery-action-needed", reads=("gpus",), uses=("gpu_driver",))
@for_gpus
def recovery_action_needed(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    The driver says that a GPU must be reset, drained or its node rebooted before it is used again.

    Why: it is the driver's own verdict after a fault; programs on that GPU fail or hang.

    Fix: what it asks for: `nvidia-smi --gpu-reset -i N`, or a reboot.
    """
    yield from not_told(cluster, "gpu_recovery_action")
    for node in cluster.nodes:
        for gpu in seen(node):
            trouble = gpu.trouble if "lost" not in gpu.trouble else ""
            if has_memory_fault(gpu) or not (needs_action(gpu) or trouble):
                continue
            yield Finding(
                f"{node.name} {of_gpu(gpu)}",
                found=printable(
                    f"recovery action {gpu.recovery_action}" if needs_action(gpu) else trouble, 80
                ),
                wanted="recovery action None",
                node=node.name,
                fix=Fix(
                    "do as it says, while nothing runs there",
                    commands=(on(node, "sudo", "nvidia-smi", "--gpu-reset", "-i", str(gpu.index)),),
                ),
            )


def explained(node: Node, bus: str) -> bool:
    """Whether another rule names this GPU's fault already."""
    if known(node, "gpu_driver") and bus in node.gpu_driver.lost:
        return True
    gpus = node.gpus if known(node, "gpus") else ()
    return any(g.bus_id == bus and (has_memory_fault(g) or needs_action(g) or bool(g.trouble)) for g in gpus)


def hidden(node: Node, bus: str) -> bool:
    """Whether the job does not see the GPU."""
    return known(node, "gpus") and any(g.bus_id == bus and not g.is_visible for g in node.gpus)


@check(problems.XID_IN_KERNEL_LOG, reads=("kernel_events",), uses=("gpus", "gpu_driver"))
@for_gpus
def xid_in_kernel_log(cluster: Cluster) -> Iterator[Finding]:
    """Those a program may cause itself are left out; old ones, and GPUs the driver calls well, only warn."""
    for node in cluster.nodes:
        for bus in dict.fromkeys(e.bus_id for e in node.kernel_events if e.kind == "xid"):
            events = [e for e in node.kernel_events if e.bus_id == bus and e.code in FAULTS]
            if not events or explained(node, bus) or hidden(node, bus):
                continue
            worst = min(events, key=lambda e: (e.code in HARMLESS, e.age_s))
            gpus = node.gpus if known(node, "gpus") else ()
            well = any(g.bus_id == bus and g.recovery_action == "None" for g in gpus)
            mild = well or worst.code in HARMLESS or worst.age_s > RECENT_S
            yield logged(node, f"{node.name} GPU {printable(bus, 40)}", worst, "warning" if mild else "error")


def logged(node: Node, where: str, event: KernelEvent, severity: Severity) -> Finding:
    times = f", {event.count} times" if event.count > 1 else ""
    kind = "Xid" if event.kind == "xid" else "SXid"
    return Finding(
        where,
        found=f"{kind} {event.code} {show_seconds(event.age_s)} ago{times}: {printable(event.text, 160)}",
        wanted=f"no {kind}",
        node=node.name,
        severity=severity,
        fix=Fix(
            "look the code up (docs.nvidia.com/deploy/xid-errors); drain and reset what it names",
            commands=(on(node, "'sudo dmesg -T | grep -i xid | tail'"),),
        ),
    )


@check("sxid-in-kernel-log", reads=("kernel_events",))
@for_gpus
def sxid_in_kernel_log(cluster: Cluster) -> Iterator[Finding]:
    """
    An NVSwitch reported a fault.

    Why: a fatal one ends the programs on every GPU of the machine; others precede slow or failing NVLinks.

    Fix: restart the fabric manager and reset the GPUs, or reboot; replace the board when it returns.

    In logs: `SXid (PCI:0000:c1:00.0): 20034, Fatal`.
    """
    for node in cluster.nodes:
        events = [e for e in node.kernel_events if e.kind == "sxid"]
        if events:
            worst = min(events, key=lambda e: (is_mild(e), e.age_s))
            where = f"{node.name} NVSwitch {printable(worst.bus_id, 40)}"
            yield logged(node, where, worst, "warning" if is_mild(worst) else "error")


def is_mild(event: KernelEvent) -> bool:
    return "Non-fatal" in event.text or "Fatal" not in event.text or event.age_s > RECENT_S


def active(gpu: Gpu) -> int:
    return sum(1 for link in gpu.nvlinks if link.gbyte_s > 0)


def most_active(cluster: Cluster) -> dict[str, int]:
    """Model -> NVLinks that its GPUs usually have up; the larger number in a tie."""
    numbers: dict[str, Counter[int]] = {}
    for gpu in (g for n in cluster.nodes for g in seen(n) if g.nvlinks):
        numbers.setdefault(gpu.name, Counter())[active(gpu)] += 1
    return {name: max(counts, key=lambda c: (counts[c], c)) for name, counts in numbers.items()}


@check("nvlink-inactive", reads=("gpus",), severity="warning")
@for_gpus
def nvlink_inactive(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU has fewer active NVLinks than others of its kind.

    Why: NCCL's rings run as fast as the narrowest GPU; without any link they fall back to PCIe.

    Fix: reset the GPUs of that node (and restart its fabric manager); reseat the bridge or the board.
    """
    usually = most_active(cluster)
    for node in cluster.nodes:
        fewer = [g for g in seen(node) if g.nvlinks and active(g) < usually[g.name]]
        if fewer:
            numbers = few([f"{active(g)} on GPU {g.index}" for g in fewer])
            yield Finding(
                f"{node.name} {named(fewer)}",
                found=f"NVLinks active: {numbers}",
                wanted=f"{usually[fewer[0].name]}, as other GPUs of its kind",
                node=node.name,
                fix=Fix(
                    "reset the GPUs when nothing runs there, then look at the hardware",
                    commands=(on(node, "nvidia-smi", "nvlink", "--status"),),
                ),
            )


def link_errors(gpu: Gpu) -> int:
    return sum(link.errors or 0 for link in gpu.nvlinks)


@check("nvlink-errors", reads=("gpus",), severity="warning")
@for_gpus
def nvlink_errors(cluster: Cluster) -> Iterator[Finding]:
    """
    The NVLinks of a GPU have had errors since its driver was loaded, far more than others of its kind.

    Why: replays cost bandwidth, and the link usually fails soon after (Xid 74).

    Fix: watch whether they grow (`nvidia-smi nvlink -e`); drain the node, reseat or replace.
    """
    usually = most_active(cluster)
    counts: dict[str, list[int]] = {}
    for gpu in (g for n in cluster.nodes for g in seen(n)):
        counts.setdefault(gpu.name, []).append(link_errors(gpu))
    limits = {name: max(NVLINK_ERRORS, 10 * median(numbers)) for name, numbers in counts.items()}
    for node in cluster.nodes:
        up = [g for g in seen(node) if g.nvlinks and active(g) >= usually[g.name]]
        bad = [g for g in up if link_errors(g) >= limits[g.name]]
        if bad:
            numbers = few([f"{link_errors(g)} on GPU {g.index}" for g in bad])
            yield Finding(
                f"{node.name} {named(bad)}",
                found=f"replay, recovery and CRC errors: {numbers}",
                wanted="none, as on other GPUs",
                node=node.name,
                fix=Fix(
                    "see whether they grow while a job runs",
                    commands=(on(node, "nvidia-smi", "nvlink", "-e"),),
                ),
            )


@check(problems.FABRIC_MANAGER_NOT_RUNNING, reads=("gpus",), uses=("gpu_driver", "pci"))
@for_gpus
def fabric_manager_not_running(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """The GPUs' own state of the fabric where the driver tells it; else the process, where NVSwitches are."""
    for node in cluster.nodes:
        manager = node.gpu_driver.fabric_manager if known(node, "gpu_driver") else "hidden"
        unready = [g for g in seen(node) if g.fabric_state and not is_ready(g)]
        told = any(g.fabric_state for g in seen(node))
        switches = [d for d in node.pci if d.is_nvswitch] if known(node, "pci") else []
        if unready:
            state = f"{unready[0].fabric_state} {unready[0].fabric_status}".strip()
            nobody = ", and no nv-fabricmanager runs" if manager == "absent" else ""
            found, where = f"fabric state {printable(state, 80)}{nobody}", f"{node.name} {named(unready)}"
        elif switches and not told and manager == "absent":
            found, where = f"{len(switches)} NVSwitches, and no nv-fabricmanager runs", node.name
        else:
            if switches and not told and manager == "hidden":
                yield Skipped("", node.name, "the machine's own processes are not shown here (a container)")
            continue
        yield Finding(
            where,
            found=found,
            wanted="a fabric manager of the driver's release, state Completed",
            node=node.name,
            fix=Fix(
                "start it in exactly the driver's release",
                commands=(
                    on(node, "sudo", "systemctl", "enable", "--now", "nvidia-fabricmanager"),
                    on(node, "systemctl", "status", "nvidia-fabricmanager"),
                ),
            ),
        )


def is_ready(gpu: Gpu) -> bool:
    state, status = gpu.fabric_state.lower(), gpu.fabric_status.lower()
    return state == "not supported" or (state == "completed" and status in ("", "success"))
