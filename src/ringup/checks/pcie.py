"""The PCI tree between GPUs, network cards and processors."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from ringup import problems
from ringup.checks.gpu import for_gpus, known, on
from ringup.facts import Cluster, Node, PciDevice
from ringup.nccl import pci
from ringup.reachability import few
from ringup.rules import Finding, Fix, Severity, Skipped, check
from ringup.units import printable, show_seconds

CORRECTABLE_PER_MIN = 10.0
CORRECTABLE_LEAST = 1000
GPU_IDLE = 0x1
"""Bit of nvmlClocksEventReasons; an idle GPU lowers its link's speed."""
AMD = 0x1002
"""Of its GPUs; its processors' root ports have 0x1022."""
NETWORK = (0x0200, 0x0207)
REDIRECTS = 0b1100
"""Bits of the ACS control register: requests and completions between peers are sent upwards."""


def kind_of(device: PciDevice) -> str:
    if device.is_nvidia_gpu:
        return "GPU"
    if device.is_nvswitch:
        return "NVSwitch"
    return "bridge" if device.is_bridge else "network card" if device.class_code in NETWORK else "device"


def where_of(node: Node, device: PciDevice) -> str:
    return f"{node.name} {kind_of(device)} {printable(device.bus_id, 40)}"


def has_own_link(device: PciDevice) -> bool:
    """Whether its link status is of the link above it; a root or downstream port tells of the one below."""
    return not device.is_bridge or len(device.above) % 2 == 1


def may_rest(node: Node, device: PciDevice) -> bool:
    """Whether the link may only be slow because nobody uses it: of a GPU that is not known to be busy."""
    if device.vendor == AMD:  # the GPU, or the switch on its board: whether they idle is not told
        return True
    if not device.is_nvidia_gpu:
        return False
    gpus = node.gpus if known(node, "gpus") else ()
    gpu = next((g for g in gpus if g.bus_id == device.bus_id), None)
    return gpu is None or gpu.throttle_reasons is None or bool(gpu.throttle_reasons & GPU_IDLE)


def widest_links(cluster: Cluster) -> dict[tuple[str, int, int], int]:
    """Place and kind of a device -> the most lanes it runs at on any node."""
    found: dict[tuple[str, int, int], int] = {}
    for device in (d for n in cluster.nodes for d in n.pci):
        key = device.bus_id, device.vendor, device.device
        found[key] = max(found.get(key, 0), device.link_width or 0)
    return found


@check("pcie-link-degraded", reads=("pci",), uses=("gpus", "virtual_machine"), severity="warning")
@for_gpus
def pcie_link_degraded(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU's, network card's or switch's PCI Express link runs narrower or slower than both of its ends can.

    Why: every byte between GPU, card and memory passes it; half the lanes are half the bandwidth, and it is
    often the first sign of a device that will fall off the bus.

    Fix: reseat the board or riser, look at the slot and BIOS settings, then replace it.
    """
    elsewhere = widest_links(cluster)
    for node in cluster.nodes:
        by_bus = {d.bus_id: d for d in node.pci}
        for device in node.pci:
            if not has_own_link(device):
                continue
            # A virtual machine's ports say what they like; only peers count there.
            wide, fast = (0, 0.0) if is_virtual(node) else best_link(device, by_bus)
            wide = max(wide, elsewhere[device.bus_id, device.vendor, device.device])
            narrow = 0 < (device.link_width or 0) < wide
            slow = 0 < (device.link_gt_s or 0) < fast and not may_rest(node, device)
            if not (narrow or slow):
                continue
            lanes = f"x{device.link_width}" if narrow else ""
            rate = f"{device.link_gt_s:g} GT/s" if slow else ""
            wanted = " ".join(filter(None, [f"x{wide}" if narrow else "", f"{fast:g} GT/s" if slow else ""]))
            yield Finding(
                where_of(node, device),
                found=f"link {lanes} {rate}".replace("  ", " ").strip(),
                wanted=wanted,
                node=node.name,
                fix=Fix(
                    "reseat it; compare with a sound node",
                    commands=(on(node, "sudo", "lspci", "-vvs", shlex.quote(device.bus_id)),),
                ),
            )


def is_virtual(node: Node) -> bool:
    return known(node, "virtual_machine") and bool(node.virtual_machine)


def bus_matters(node: Node) -> Severity:
    """A warning where data goes over the bus: RDMA devices, or GPUs that NVLink does not join."""
    cards = known(node, "rdma_ports") and any(p.state == "ACTIVE" for p in node.rdma_ports)
    paths = [link.path for link in node.gpu_links] if known(node, "gpu_links") else [""]
    return "warning" if cards or any(not path.startswith("NV") for path in paths) else "note"


def best_link(device: PciDevice, by_bus: Mapping[str, PciDevice]) -> tuple[int, float]:
    """Lanes and GT/s that both ends of the link above a device can; 0 where that is not told."""
    port = by_bus.get(device.above[-1]) if device.above else None
    if port is None or not (device.max_link_width and port.max_link_width):
        return 0, 0.0
    rates = [d.max_link_gt_s for d in (device, port) if d.max_link_gt_s]
    return min(device.max_link_width, port.max_link_width), min(rates, default=0.0)


@check(problems.PCIE_ERRORS, reads=("pci", "uptime_s"), uses=("gpu_driver", "rises"))
@for_gpus
def pcie_errors(cluster: Cluster) -> Iterator[Finding]:
    """Errors that rise while the check looks; of those since boot only what is uncorrectable or frequent."""
    for node in cluster.nodes:
        lost = node.gpu_driver.lost if known(node, "gpu_driver") else ()
        for device in node.pci:
            told = bus_errors(node, device)
            if not told or device.bus_id in lost:
                continue
            found, severity = told
            files = shlex.quote(f"/sys/bus/pci/devices/{device.bus_id}") + "/aer_dev_*"
            yield Finding(
                where_of(node, device),
                found=found,
                wanted="none",
                node=node.name,
                severity=severity,
                fix=Fix(
                    "see whether they grow; reseat the board or riser",
                    commands=(on(node, shlex.quote(f"grep . {files}")),),
                ),
            )


def bus_errors(node: Node, device: PciDevice) -> tuple[str, Severity] | None:
    """What is wrong with the link of a device, and how bad that is."""
    rises = node.rises if known(node, "rises") else ()
    for rise in rises:
        if rise.of == f"pci:{device.bus_id}":
            worse = rise.by.get("fatal_errors", 0) + rise.by.get("nonfatal_errors", 0)
            often = rise.by.get("correctable_errors", 0)
            if worse:
                return f"{worse} uncorrectable bus errors in {show_seconds(rise.over_s)}", "error"
            if often >= CORRECTABLE_PER_MIN:
                return f"{often} correctable bus errors in {show_seconds(rise.over_s)}", "warning"
    worse = (device.fatal_errors or 0) + (device.nonfatal_errors or 0)
    often = device.correctable_errors or 0
    per_min = often / max(1.0, node.uptime_s / 60)
    if worse:
        return f"{worse} uncorrectable bus errors since boot", "warning"
    if often >= CORRECTABLE_LEAST and per_min > CORRECTABLE_PER_MIN:
        return f"{often} correctable bus errors since boot, {per_min:.0f} a minute", "warning"
    return None


@check("gpu-nic-far-apart", reads=("gpus", "pci", "rdma_ports"), severity="warning")
@for_gpus
def gpu_nic_far_apart(cluster: Cluster) -> Iterator[Finding]:
    """
    A GPU's nearest RDMA device is beyond a processor, where on a peer node one sits beside it.

    Why: NCCL then leaves GPUDirect out for that GPU, and its data crosses the link between processors.

    Fix: the card in the slot it has on the other nodes; in a virtual machine, the provider's topology file
    (NCCL_TOPO_FILE).
    """
    nearest = {n.name: nearest_cards(n) for n in cluster.nodes}
    counts = {n.name: len(pci.cards_of(n)) for n in cluster.nodes}
    bests: dict[int, pci.Distance] = {}
    for gpu, (own, _) in (item for found in nearest.values() for item in found.items()):
        bests[gpu] = min(bests.get(gpu, own), own, key=pci.ORDER.index)
    most = max(counts.values(), default=0)
    for node in cluster.nodes:
        far = []
        for gpu, (own, card) in nearest[node.name].items():
            best = bests[gpu]
            # A card that is gone is another fault.
            if own in ("NODE", "SYS") and best in ("PIX", "PXB", "PHB") and counts[node.name] == most:
                far.append((gpu, own, card, best))
        if far:
            gpu, own, card, best = far[0]
            numbers = few([str(f[0]) for f in far], 8)
            yield Finding(
                f"{node.name} GPU {numbers}",
                found=f"nearest is {printable(card, 40)}, {own} away",
                wanted=f"{best}, as on other nodes",
                node=node.name,
                fix=Fix(
                    "the card in the same slot as elsewhere",
                    commands=(on(node, "nvidia-smi", "topo", "-m"),),
                ),
            )


def nearest_cards(node: Node) -> dict[int, tuple[pci.Distance, str]]:
    """GPU -> its nearest RDMA device, for the GPUs the job sees."""
    hidden = {g.index for g in node.gpus if not g.is_visible}
    found: dict[int, tuple[pci.Distance, str]] = {}
    cards = pci.cards_of(node)
    for gpu, device in pci.gpus_of(node).items():
        ways = [(pci.distance(device, card), name) for name, card in cards.items()]
        if ways and gpu not in hidden:
            found[gpu] = min(ways, key=lambda way: pci.ORDER.index(way[0]))
    return found


@check(
    problems.GPUDIRECT_MODULE_MISSING,
    reads=("gpu_driver", "rdma_ports", "kernel"),
    uses=("gpus", "pci"),
)
@for_gpus
def gpudirect_module_missing(cluster: Cluster) -> Iterator[Finding]:
    """DMA-BUF does as well: the open kernel module on Linux 5.12.  GeForce boards have neither."""
    for node in cluster.nodes:
        drivers = {d.bus_id: d.driver for d in node.pci} if known(node, "pci") else {}
        ports = [p for p in node.rdma_ports if p.state == "ACTIVE" and drivers.get(p.bus_id) != "efa"]
        gpus = node.gpus if known(node, "gpus") else ()
        consumer = bool(gpus) and all("GeForce" in g.name for g in gpus)
        if ports and node.gpu_driver.version and not consumer and not pci.has_gpudirect(node):
            kind = "open" if node.gpu_driver.is_open else "proprietary"
            yield Finding(
                node.name,
                found=f"neither nvidia_peermem nor DMA-BUF ({kind} driver {node.gpu_driver.version}, "
                f"Linux {printable(node.kernel, 40)})",
                wanted=f"a way from {few([p.device for p in ports])} into GPU memory",
                node=node.name,
                fix=Fix("load the module", commands=(on(node, "sudo", "modprobe", "nvidia-peermem"),)),
            )


def peers_of_interest(node: Node) -> list[PciDevice]:
    """GPUs and RDMA cards: what talks to each other over the bus."""
    cards = {p.bus_id for p in node.rdma_ports} if known(node, "rdma_ports") else set()
    return [d for d in node.pci if d.is_nvidia_gpu or d.bus_id in cards]


@check(
    problems.ACS_ENABLED,
    reads=("pci",),
    uses=("virtual_machine", "boot_options", "rdma_ports", "gpu_links"),
)
@for_gpus
def acs_enabled(cluster: Cluster) -> Iterator[Finding | Skipped]:
    """
    Told by the register where root asks, else by IOMMU groups: the kernel puts devices below one switch into
    one group unless ACS keeps them apart (pci_acs_path_enabled).  In a virtual machine it cannot be off.
    """
    for node in cluster.nodes:
        if is_virtual(node):
            continue
        pairs = below_one_switch(peers_of_interest(node))
        if not pairs:
            continue
        registers = {d.bus_id: d.acs_control for d in node.pci if d.acs_control is not None}
        ports = list(dict.fromkeys(d.above[-1] for pair in pairs for d in pair))
        if all(p in registers for p in ports):
            redirecting = [p for p in ports if registers[p] & REDIRECTS]
            if redirecting:
                yield acs_finding(node, redirecting, f"{few(redirecting)} send peers' requests upwards")
            continue
        options = node.boot_options if known(node, "boot_options") else ()
        if any(o.startswith("pcie_acs_override") for o in options):
            yield Skipped("", node.name, "pcie_acs_override makes IOMMU groups that say nothing of ACS")
            continue
        grouped = [(a, b) for a, b in pairs if a.iommu_group is not None and b.iommu_group is not None]
        if not grouped:
            yield Skipped("", node.name, "without an IOMMU only root can tell: sudo lspci -vvv | grep ACSCtl")
            continue
        apart = [(a, b) for a, b in grouped if a.iommu_group != b.iommu_group]
        if apart:
            one, other = apart[0]
            found = f"{one.bus_id} and {other.bus_id} are below one switch, in IOMMU groups "
            ports = list(dict.fromkeys(d.above[-1] for pair in apart for d in pair))
            yield acs_finding(node, ports, f"{found}{one.iommu_group} and {other.iommu_group}")


def acs_finding(node: Node, ports: Sequence[str], found: str) -> Finding:
    commands = [on(node, "sudo", "setpci", "-s", shlex.quote(p), "ECAP_ACS+0x6.w=0000") for p in ports[:8]]
    return Finding(
        f"{node.name} {len(ports)} ports of PCI switches",
        found=printable(found, 200),
        wanted="no ACS between GPUs and cards below one switch",
        node=node.name,
        severity=bus_matters(node),
        fix=Fix("ACS off on these ports (until the next boot), or in the BIOS", commands=tuple(commands)),
    )


def below_one_switch(devices: list[PciDevice]) -> list[tuple[PciDevice, PciDevice]]:
    """Pairs that could speak to each other without leaving their switch."""
    return [
        (a, b)
        for k, a in enumerate(devices)
        for b in devices[k + 1 :]
        if a.above and b.above and a.above[-1] != b.above[-1] and pci.distance(a, b) in ("PIX", "PXB")
    ]


@check(
    "iommu-translating",
    reads=("pci", "machine"),
    uses=("virtual_machine", "boot_options", "rdma_ports", "gpu_links"),
    severity="warning",
)
@for_gpus
def iommu_translating(cluster: Cluster) -> Iterator[Finding]:
    """
    The IOMMU translates what GPUs and network cards send, on a machine that is not virtual.

    Why: transfers between them go up to the processor and are slow; on some boards they hang or arrive
    wrong.

    Fix: `iommu=pt` on the kernel's command line (or the IOMMU off in the BIOS), then reboot.
    """
    for node in cluster.nodes:
        # On other architectures than x86 that is how they work.
        if is_virtual(node) or node.machine != "x86_64":
            continue
        devices = peers_of_interest(node)
        translated = [d for d in devices if d.iommu_type.startswith("DMA")]
        if len(devices) > 1 and translated:
            options = " ".join(node.boot_options) if known(node, "boot_options") else ""
            yield Finding(
                f"{node.name} {len(translated)} GPUs and cards",
                found=f"IOMMU groups of type {translated[0].iommu_type}"
                + (f"; booted with {printable(options, 120)}" if options else ""),
                wanted="type identity",
                node=node.name,
                severity=bus_matters(node),
                fix=Fix(
                    "iommu=pt for the kernel, then reboot",
                    commands=(on(node, "sudo", "grubby", "--update-kernel=ALL", "--args=iommu=pt"),),
                ),
            )
